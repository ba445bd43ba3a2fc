//! Mount options, as passed by mount(8), fstab and `directfs mount -o`.

use crate::error::OptionError;
use image::CommitPolicy;
use std::path::PathBuf;
use std::time::Duration;

/// How long a reply is valid by default. Nothing but the kernel's own requests changes the image of
/// an exclusive mount, so it could be forever.
const VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// The least value of `memory`. It is a limit, below which the copy lies beside the image.
pub const MEMORY_BYTES_LEAST: u64 = 1 << 20;

/// How long the kernel caches names, attributes and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Not at all: other processes may change the image at any time.
    None,
    /// For this duration. The server uses the image exclusively.
    Exclusive(Duration),
}

impl Cache {
    /// How long a reply is valid.
    pub fn validity(self) -> Duration {
        match self {
            Cache::None => Duration::ZERO,
            Cache::Exclusive(validity) => validity,
        }
    }

    /// Whether the server uses the image exclusively.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Cache::Exclusive(_))
    }
}

/// The options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Refuse all changes.
    pub read_only: bool,
    /// Flags for the kernel (`MS_NOSUID` and similar), without `MS_RDONLY`.
    pub kernel_flags: libc::c_ulong,
    /// The flags of the kernel that an option has set or cleared explicitly.
    pub named_flags: libc::c_ulong,
    /// Whether users other than the mounting one have access; `None`: only if root mounts.
    pub allow_other: Option<bool>,
    /// Show this user as the owner of all files.
    pub uid: Option<u32>,
    /// Show this group for all files.
    pub gid: Option<u32>,
    /// What the kernel caches.
    pub cache: Cache,
    /// Number of server threads; 0: by the number of processors.
    pub threads: usize,
    /// The device that mount(8) shows; `None`: the path of the image.
    pub source: Option<String>,
    /// Maximum number of files cached in memory; 0: as many as the image can have.
    pub cached_files_max: u64,
    /// Change the flags of an existing mount instead of mounting.
    pub remount: bool,
    /// When changes of an image on a disk are committed to it.
    pub commits: CommitPolicy,
    /// The most memory that the working copy of an image on a disk may take; none: half of what is
    /// available.
    pub memory_bytes_max: Option<u64>,
    /// The file for messages of a server in the background; none: the log of the machine.
    pub log: Option<PathBuf>,
    /// Start another server when one dies.
    pub keep: bool,
    /// The image's file is fetched while it is read, which may fail: metadata is read first, and a
    /// failure is EIO. Only with `read_only`.
    pub is_fetched: bool,
    /// The image comes from a store, whose writers decide what is in it.
    pub is_of_store: bool,
    /// The URL of a store to which the image is replicated while it is mounted. The caller does so.
    pub replicate: Option<String>,
    /// Show no extended attributes and access control lists. The kernel then does not ask for them.
    pub no_xattr: bool,
    /// Use /dev/fuse also where the kernel offers io_uring.
    pub no_io_uring: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            kernel_flags: 0,
            named_flags: 0,
            allow_other: None,
            uid: None,
            gid: None,
            cache: Cache::Exclusive(VALIDITY),
            threads: 0,
            source: None,
            cached_files_max: 0,
            remount: false,
            commits: CommitPolicy::default(),
            memory_bytes_max: None,
            log: None,
            keep: false,
            is_fetched: false,
            is_of_store: false,
            replicate: None,
            no_xattr: false,
            no_io_uring: false,
        }
    }
}

/// All options and what they do, for help texts and manual pages.
pub const DESCRIPTIONS: &[(&str, &str)] = &[
    ("ro, rw", "read-only, read-write"),
    (
        "suid, nosuid, dev, nodev, exec, noexec",
        "as for mount(8). Root's mount of an image of a store, or that other users can write, is nosuid,nodev unless suid or \
         dev is named",
    ),
    ("atime, noatime, diratime, nodiratime", "when a read sets the time of access, as for mount(8)"),
    ("relatime, norelatime, strictatime, nostrictatime, lazytime, nolazytime", "as for mount(8)"),
    (
        "sync, dirsync",
        "for an image on a disk: each change, or each change of a name, is committed when its call returns. If \
         that fails, the server's log says so, and the next fsync fails. A remount does not change these options",
    ),
    ("async, silent, loud", "as for mount(8)"),
    ("uid=N, gid=N", "all files appear as this user's, as this group's"),
    (
        "allow_other, noallow_other",
        "other users may use the mount, or may not; the default for root is that they may. Other users need \
         user_allow_other in /etc/fuse.conf",
    ),
    (
        "cache=SECONDS",
        "how long the kernel may cache names, attributes and content. Above zero (the default is a day) the mount has the \
         image alone; cache=0 shares it with runs and other mounts",
    ),
    ("commit=SECONDS", "for an image on a disk: how often to commit; 0: only when a program syncs [default: 5]"),
    ("no_commit", "for an image on a disk: use it in place, and never commit; a power failure may destroy it"),
    ("memory=SIZE", "for an image on a disk: the most memory for the copy on which programs work, for example 2G"),
    ("cached_files=N", "files cached in memory at most [default: all]"),
    ("threads=N", "threads of the server, 1 to 64 [default: as many as processors]"),
    ("keep, nokeep", "a second process replaces a server that dies; programs on the mount wait meanwhile"),
    (
        "xattr, noxattr",
        "noxattr: no extended attributes, file capabilities and access lists: fewer requests for a new file",
    ),
    ("io_uring, no_io_uring", "no_io_uring: requests go through /dev/fuse also where the kernel offers io_uring"),
    ("log=FILE", "messages of the server go to this file [default: the log of the machine, /dev/log]"),
    ("replicate=URL", "each second what was committed goes to a store, as with `directfs replicate`; not with keep"),
    ("fsname=NAME", "the source that mount(8) shows [default: the path of the image]"),
    ("remount", "change ro, rw and the flags of an existing mount"),
    (
        "user, nouser, users, nousers, owner, noowner, group, nogroup",
        "as in fstab(5); user, users, owner and group imply nosuid and nodev, the first two noexec as well",
    ),
    ("defaults, auto, noauto, nofail, _netdev, _rnetdev, x-*, X-*", "for mount(8) and systemd, as in fstab(5)"),
    ("default_permissions, loop, nomand, comment=TEXT", "accepted, and without effect; the first always applies"),
];

/// An option without a value, and what it sets.
type Switch = (&'static str, fn(&mut MountOptions));

/// Options without a value that are neither flags of the kernel nor ignored.
const SWITCHES: &[Switch] = &[
    ("ro", |options| options.read_only = true),
    ("rw", |options| options.read_only = false),
    ("allow_other", |options| options.allow_other = Some(true)),
    ("noallow_other", |options| options.allow_other = Some(false)),
    ("remount", |options| options.remount = true),
    ("no_commit", |options| options.commits = CommitPolicy::Never),
    ("keep", |options| options.keep = true),
    ("nokeep", |options| options.keep = false),
    ("xattr", |options| options.no_xattr = false),
    ("noxattr", |options| options.no_xattr = true),
    ("io_uring", |options| options.no_io_uring = false),
    ("no_io_uring", |options| options.no_io_uring = true),
    // A mount by users (fstab) must not grant privileges unless a later option says so.
    ("user", |options| options.kernel_flags |= libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC),
    ("users", |options| options.kernel_flags |= libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC),
    ("owner", |options| options.kernel_flags |= libc::MS_NOSUID | libc::MS_NODEV),
    ("group", |options| options.kernel_flags |= libc::MS_NOSUID | libc::MS_NODEV),
];

/// Options that are a kernel flag, with the value that they set.
const FLAGS: &[(&str, libc::c_ulong, bool)] = &[
    ("nosuid", libc::MS_NOSUID, true),
    ("suid", libc::MS_NOSUID, false),
    ("nodev", libc::MS_NODEV, true),
    ("dev", libc::MS_NODEV, false),
    ("noexec", libc::MS_NOEXEC, true),
    ("exec", libc::MS_NOEXEC, false),
    ("noatime", libc::MS_NOATIME, true),
    ("atime", libc::MS_NOATIME, false),
    ("nodiratime", libc::MS_NODIRATIME, true),
    ("diratime", libc::MS_NODIRATIME, false),
    ("relatime", libc::MS_RELATIME, true),
    ("norelatime", libc::MS_RELATIME, false),
    ("strictatime", libc::MS_STRICTATIME, true),
    ("nostrictatime", libc::MS_STRICTATIME, false),
    ("lazytime", libc::MS_LAZYTIME, true),
    ("nolazytime", libc::MS_LAZYTIME, false),
    ("sync", libc::MS_SYNCHRONOUS, true),
    ("async", libc::MS_SYNCHRONOUS, false),
    ("dirsync", libc::MS_DIRSYNC, true),
    ("silent", libc::MS_SILENT, true),
    ("loud", libc::MS_SILENT, false),
];

/// Options that concern only fstab, mount(8) and init, or that always apply.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "_netdev",
    "nofail",
    "_rnetdev",
    "default_permissions",
    "loop",
    "nomand",
];

impl MountOptions {
    /// Applies a list in the format of `-o`: names and `name=value`, separated by commas. Later
    /// options take precedence.
    pub fn apply(&mut self, list: &str) -> Result<(), OptionError> {
        list.split(',').map(str::trim).filter(|option| !option.is_empty()).try_for_each(|option| self.apply_one(option))
    }

    /// Parses a list into options.
    pub fn parse(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.apply(list)?;
        Ok(options)
    }

    /// Adds `nosuid` and `nodev`, unless options name `suid` or `dev`, for an image that users
    /// other than root can write, and fill with set-user-ID programs and devices of their own.
    /// The writers of a store are not known.
    pub(crate) fn distrust(&mut self, is_writable_by_others: bool) {
        if is_writable_by_others || self.is_of_store {
            self.kernel_flags |= (libc::MS_NOSUID | libc::MS_NODEV) & !self.named_flags;
        }
    }

    /// Kernel flags that the mount got because its image is not trusted, and that no option names.
    pub(crate) fn distrusted_flags(&self) -> libc::c_ulong {
        self.kernel_flags & !self.named_flags
    }

    fn apply_one(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if let Some(value) = value
            && self.apply_value(name, value)?
        {
            return Ok(());
        }
        if name.starts_with("x-") || name.starts_with("X-") || name == "comment" || IGNORED.contains(&option) {
            return Ok(());
        }
        if let Some(&(_, flag, on)) = FLAGS.iter().find(|(known, ..)| *known == option) {
            self.kernel_flags = if on { self.kernel_flags | flag } else { self.kernel_flags & !flag };
            self.named_flags |= flag;
            return Ok(());
        }
        let Some((_, apply)) = SWITCHES.iter().find(|(known, _)| *known == option) else {
            return Err(OptionError::Unknown { name: option.to_owned() });
        };
        apply(self);
        Ok(())
    }

    /// Applies `name=value`; returns whether the option takes a value.
    fn apply_value(&mut self, name: &str, value: &str) -> Result<bool, OptionError> {
        match name {
            "uid" => self.uid = Some(number(name, value, "a user id")?),
            "gid" => self.gid = Some(number(name, value, "a group id")?),
            "threads" => self.threads = number(name, value, "a number of threads from 1 to 64")?,
            "cached_files" => self.cached_files_max = number(name, value, "a number of files")?,
            "fsname" => self.source = Some(value.to_owned()),
            "cache" => self.cache = cache(name, value)?,
            "commit" => self.commits = commits(name, value)?,
            "memory" => self.memory_bytes_max = Some(memory(name, value)?),
            "log" if !value.is_empty() => self.log = Some(PathBuf::from(value)),
            "log" => return Err(bad_value(name, value, "a file")),
            "replicate" if value.contains("://") => self.replicate = Some(value.to_owned()),
            "replicate" => return Err(bad_value(name, value, "the URL of a store, as s3://BUCKET/PREFIX")),
            // mount(8) passes the user's name with `user`.
            "user" => self.apply_one("user")?,
            // For a remount mount(8) repeats the options that the kernel shows.
            "subtype" | "user_id" | "group_id" => {}
            _ => return Ok(false),
        }
        if self.threads > 64 {
            return Err(bad_value(name, value, "a number of threads from 1 to 64"));
        }
        Ok(true)
    }
}

fn cache(name: &str, value: &str) -> Result<Cache, OptionError> {
    let wanted = "seconds, such as 0 (share the image), 0.5 or 60";
    let seconds: f64 = number(name, value, wanted)?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(validity) if validity.is_zero() => Ok(Cache::None),
        Ok(validity) => Ok(Cache::Exclusive(validity)),
        Err(_) => Err(bad_value(name, value, wanted)),
    }
}

fn memory(name: &str, value: &str) -> Result<u64, OptionError> {
    let wanted = "a size of at least 1M, such as 512M or 4G";
    let shifts = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let (digits, shift) =
        shifts.iter().find_map(|(unit, shift)| Some((value.strip_suffix(unit)?, *shift))).unwrap_or((value, 0));
    let count: u64 = number(name, digits, wanted)?;
    let bytes = count.checked_mul(1 << shift).filter(|&bytes| bytes >= MEMORY_BYTES_LEAST);
    bytes.ok_or_else(|| bad_value(name, value, wanted))
}

fn commits(name: &str, value: &str) -> Result<CommitPolicy, OptionError> {
    let wanted = "seconds, such as 0 (only when a program syncs), 0.5 or 60";
    let seconds: f64 = number(name, value, wanted)?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(interval) if interval.is_zero() => Ok(CommitPolicy::WhenSynced),
        Ok(interval) => Ok(CommitPolicy::Every(interval)),
        Err(_) => Err(bad_value(name, value, wanted)),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str, wanted: &'static str) -> Result<T, OptionError> {
    value.parse().map_err(|_| bad_value(name, value, wanted))
}

fn bad_value(name: &str, value: &str, wanted: &'static str) -> OptionError {
    OptionError::Value { name: name.to_owned(), wanted, given: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrusted_image_gets_nosuid_and_nodev_unless_they_are_named() {
        for (list, flags) in [
            ("", libc::MS_NOSUID | libc::MS_NODEV),
            ("rw,noatime", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME),
            ("suid", libc::MS_NODEV),
            ("dev,suid", 0),
            ("suid,nosuid", libc::MS_NOSUID | libc::MS_NODEV),
        ] {
            let mut options = MountOptions::parse(list).unwrap();
            options.distrust(true);
            assert_eq!(options.kernel_flags, flags, "{list}");
        }
    }

    #[test]
    fn a_line_of_fstab_is_understood() {
        let options =
            MountOptions::parse("defaults,noauto,user,exec,ro,_netdev,nofail,x-systemd.automount,uid=1000,gid=100")
                .unwrap();
        assert!(options.read_only);
        assert_eq!((options.uid, options.gid), (Some(1000), Some(100)));
        assert_eq!(options.kernel_flags, libc::MS_NOSUID | libc::MS_NODEV, "exec after user wins");
    }

    #[test]
    fn later_options_win() {
        let options = MountOptions::parse("ro,nosuid,rw,suid,noatime").unwrap();
        assert!(!options.read_only);
        assert_eq!(options.kernel_flags, libc::MS_NOATIME);
    }

    #[test]
    fn the_cache_is_seconds() {
        assert_eq!(MountOptions::parse("").unwrap().cache, Cache::Exclusive(VALIDITY));
        assert_eq!(MountOptions::parse("cache=0").unwrap().cache, Cache::None);
        assert_eq!(MountOptions::parse("cache=0.25").unwrap().cache, Cache::Exclusive(Duration::from_millis(250)));
        assert!(matches!(MountOptions::parse("cache=-1"), Err(OptionError::Value { .. })));
        assert!(matches!(MountOptions::parse("cache=NaN"), Err(OptionError::Value { .. })));
    }

    #[test]
    fn commits_are_seconds_or_none() {
        assert_eq!(MountOptions::parse("").unwrap().commits, CommitPolicy::Every(Duration::from_secs(5)));
        assert_eq!(MountOptions::parse("commit=0").unwrap().commits, CommitPolicy::WhenSynced);
        let half = CommitPolicy::Every(Duration::from_millis(500));
        assert_eq!(MountOptions::parse("no_commit,commit=0.5").unwrap().commits, half);
        assert_eq!(MountOptions::parse("no_commit").unwrap().commits, CommitPolicy::Never);
    }

    #[test]
    fn memory_is_a_size() {
        assert_eq!(MountOptions::parse("memory=2G").unwrap().memory_bytes_max, Some(2 << 30));
        assert_eq!(MountOptions::parse("memory=1048576").unwrap().memory_bytes_max, Some(1 << 20));
        for too_little in ["memory=0", "memory=1", "memory=1023K"] {
            assert!(matches!(MountOptions::parse(too_little), Err(OptionError::Value { .. })), "{too_little}");
        }
        assert!(MountOptions::parse("memory=2X").is_err() && MountOptions::parse("memory=99999999999T").is_err());
        assert!(matches!(MountOptions::parse("commit=soon"), Err(OptionError::Value { .. })));
    }

    fn described() -> impl Iterator<Item = &'static str> {
        DESCRIPTIONS.iter().flat_map(|(names, _)| names.split(", "))
    }

    #[test]
    fn every_option_is_described() {
        let flags = FLAGS.iter().map(|(name, ..)| *name);
        for known in flags.chain(IGNORED.iter().copied()).chain(SWITCHES.iter().map(|(name, _)| *name)) {
            assert!(described().any(|name| name == known), "{known}");
        }
    }

    #[test]
    fn every_described_option_is_understood() {
        let samples = [
            ("N", "7"),
            ("SECONDS", "1"),
            ("SIZE", "2G"),
            ("FILE", "/var/log/directfs"),
            ("URL", "s3://backup/work"),
            ("NAME", "work"),
            ("TEXT", "a"),
            ("*", "a"),
        ];
        for name in described() {
            let option = samples.iter().fold(name.to_owned(), |option, (placeholder, value)| {
                match option.strip_suffix(placeholder) {
                    Some(stem) if stem.ends_with(['=', '-']) => format!("{stem}{value}"),
                    _ => option,
                }
            });
            assert!(MountOptions::parse(&option).is_ok(), "{option}");
        }
    }

    #[test]
    fn unknown_options_are_errors() {
        for unknown in ["nosuit", "uid", "blksize=512", "ro=1", "allow_root"] {
            let error = MountOptions::parse(unknown).unwrap_err();
            assert_eq!(error, OptionError::Unknown { name: unknown.to_owned() });
        }
        assert!(matches!(MountOptions::parse("uid=root"), Err(OptionError::Value { .. })));
        assert!(matches!(MountOptions::parse("threads=100"), Err(OptionError::Value { .. })));
    }
}
