//! Arguments of the commands that bring programs to an image.

use crate::mounts::RUN_DIRECTORY;
use crate::units::{parse_seconds, parse_size};
use clap::{Args, Parser};
use image::CommitPolicy;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `mount`.
#[derive(Debug, Args)]
#[command(after_help = with_mount_options("\
Messages of a server in the background go to the log of the machine (syslog, the journal), or to the
file of --log; in the foreground to standard error.

Keys of --json: image, directory, read_only, server (its process).

Examples:
  directfs mount /dev/shm/work.img /mnt/work
  directfs mount /dev/shm/work.img /mnt/work -o ro,nosuid
  directfs mount /var/lib/work.img /mnt/work -o cache=0       shared with `directfs run`
  directfs mount --foreground /dev/shm/work.img /mnt/work     ends with Ctrl-C or umount
  directfs mount s3://backup/work /mnt/work                   the newest state, read-only"))]
pub struct Mount {
    /// The image, or the URL of a store (see push), of which the newest state is mounted read-only
    /// and fetched while it is read.
    pub image: PathBuf,
    /// The directory to mount it on.
    pub directory: PathBuf,
    /// Options of mount(8).
    #[arg(short, value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Stay in the foreground.
    #[arg(long, short)]
    pub foreground: bool,
    /// Mount read-only.
    #[arg(long, short)]
    pub read_only: bool,
    /// Write messages of the server to this file.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long, conflicts_with = "foreground")]
    pub json: bool,
    #[command(flatten)]
    pub commits: CommitOptions,
    /// File descriptor to which one byte is written when the mount is ready.
    #[arg(long, hide = true, value_name = "FD")]
    pub ready_fd: Option<i32>,
    /// The URL whose newest state the image is, a file of a process that fetches it.
    #[arg(long, hide = true, value_name = "URL")]
    pub fetched_from: Option<String>,
    /// The URL whose newest state the image is, a file of the cache.
    #[arg(long, hide = true, value_name = "URL")]
    pub cached_from: Option<String>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --image the files are in a new image in memory, which is removed when the last program of
the run exits. Without a command it starts your shell ($SHELL) in the mount directory.
DIRECTFS_MOUNT contains the mount directory. Several runs, and mounts with -o cache=0, can use an
image at the same time.

Examples:
  directfs run                                     a shell in a new file system in memory
  directfs run -- sh -c 'cd $DIRECTFS_MOUNT && cp -r /usr/include . && du -sh .'
  directfs run --image /dev/shm/work.img -- make -C /mnt/directfs/project
  directfs run --image /dev/shm/work.img --at /work -C /work/project -- git status
  directfs run --image work.img --discard -- make test          leaves no trace
  directfs run --image /srv/data.img --read-only -- ./train.py  changes nothing
  directfs run --image work.img --atomic -- ./upgrade.sh        all of it, or nothing
  directfs run --image s3://backup/work --discard -- make test  fetched once, kept in the cache
  directfs run --image s3://backup/work --atomic -- ./upgrade.sh     pushed if it succeeds

Exit codes: that of the command (or the same signal); 125 directfs failed, 126 the command cannot be
executed, 127 it was not found.")]
pub struct Run {
    /// The image [default: a new one in memory]; with --read-only, --discard or
    /// --atomic also the URL of a store (see push).
    #[arg(long, short)]
    pub image: Option<PathBuf>,
    /// Absolute path at which programs see the image; it need not exist. Existing files there are
    /// hidden from the programs.
    #[arg(long, default_value = RUN_DIRECTORY, value_name = "DIR")]
    pub at: PathBuf,
    /// Start the command in this directory, which may be in the image.
    #[arg(long, short = 'C', value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// Maximum size of the image in memory, which uses memory only as it fills [default: half of
    /// the available memory].
    #[arg(long, short, value_parser = parse_size, value_name = "SIZE", conflicts_with = "image")]
    pub size: Option<u64>,
    /// Flush cache lines even on media that do not survive a power failure, so that calls cost what
    /// they do on persistent memory.
    #[arg(long)]
    pub always_flush: bool,
    #[command(flatten)]
    pub commits: CommitOptions,
    /// Leave the image as it is, whatever happens: all changes stay in memory, and are discarded.
    /// Many such runs can use one image at once.
    #[arg(long, requires = "image", conflicts_with_all = ["atomic", "read_only", "no_commit", "commit_interval"])]
    pub discard: bool,
    /// Permit no changes (EROFS). To read the image's file is enough: on a read-only medium, or as
    /// another user. Many such runs can use one image at once.
    #[arg(long, requires = "image", conflicts_with_all = ["atomic", "no_commit", "commit_interval", "always_flush"])]
    pub read_only: bool,
    /// Commit all changes as one if the command exits with 0, and else discard them. The image must
    /// be on a disk, and no other process can use it meanwhile. To a store the changes are pushed,
    /// if the state that was opened is still the newest one; else they are kept in a local image.
    #[arg(long, requires = "image", conflicts_with_all = ["no_commit", "commit_interval"])]
    pub atomic: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Arguments of `profile`.
#[derive(Debug, Args)]
#[command(after_help = "\
The report follows the program's own output, on standard error. Counted are the calls that the image
serves, in the program and in all programs that it starts, but not in those of other users. A time
includes waits, for example for a lock or a FIFO. A file has one path, from the root, whatever
directory a program names it from.

Examples:
  directfs profile --image work.img -- make -j4
  directfs profile --json --output profile.json -- git clone repo /mnt/directfs/repo

Keys of --json: command, wall_ns, programs, calls (name, count, total_ns), paths (path, count,
total_ns), paths_not_counted (calls with one of further paths).")]
pub struct Profile {
    #[command(flatten)]
    pub run: Run,
    /// Report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the report to this file.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How an image on a disk is committed to it.
#[derive(Debug, Args)]
pub struct CommitOptions {
    /// For an image on a disk: commit its changes to the disk this often, and not only when a
    /// program syncs. 0: only then [default: 5].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "no_commit")]
    pub commit_interval: Option<Duration>,
    /// For an image on a disk: use it in place and never commit. Needs no memory for a copy. A
    /// power failure may destroy the image: only for scratch work.
    #[arg(long)]
    pub no_commit: bool,
    /// For an image on a disk: the most memory that the copy may take on which programs work, for
    /// example 2G. A larger image has the copy in a hidden file beside it, of which the kernel
    /// keeps in memory what is used [default: half of the available memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, conflicts_with = "no_commit")]
    pub memory: Option<u64>,
}

fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < fuse::MEMORY_BYTES_LEAST => Err(format!("{text} is too little; write at least 1M")),
        bytes => Ok(bytes),
    }
}

/// How the options of `-o` begin in help; their section of a manual page is made from the list.
pub const MOUNT_OPTIONS: &str = "Options (-o), separated by commas:";

/// Help of a mount, with the options of `-o` in front.
fn with_mount_options(rest: &str) -> String {
    const INDENT: usize = 18;
    let mut text = format!("{MOUNT_OPTIONS}\n");
    for (names, meaning) in fuse::OPTION_DESCRIPTIONS {
        let mut line = format!("  {names:<width$}", width = INDENT - 2);
        if names.len() > INDENT - 3 {
            text += &format!("{line}\n");
            line = " ".repeat(INDENT);
        }
        for word in meaning.split(' ') {
            if line.len() + 1 + word.len() > 100 {
                text += &format!("{}\n", line.trim_end());
                line = " ".repeat(INDENT);
            }
            line += word;
            line.push(' ');
        }
        text += &format!("{}\n", line.trim_end());
    }
    text + "\n" + rest
}

/// Arguments of `commit-service`.
#[derive(Debug, Args)]
pub struct CommitService {
    /// How often to commit; without it, on request.
    #[arg(long, value_name = "MILLISECONDS")]
    pub interval_ms: Option<u64>,
}

impl CommitOptions {
    /// The policy that the options ask for.
    pub fn policy(&self) -> CommitPolicy {
        match self.commit_interval {
            _ if self.no_commit => CommitPolicy::Never,
            None => CommitPolicy::default(),
            Some(interval) if interval.is_zero() => CommitPolicy::WhenSynced,
            Some(interval) => CommitPolicy::Every(interval),
        }
    }
}

/// Arguments of the hidden `run-inside` and `run-static`.
#[derive(Debug, Args)]
pub struct RunInside {
    /// For `run-static`: an entry of the environment for the program's loader.
    #[arg(long = "entry")]
    pub entries: Vec<OsString>,
    /// The command and its arguments; for `run-static` its path, and the arguments from the zeroth
    /// on.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// The command line of a mount(8) helper: `mount.directfs IMAGE DIR [-sfnv] [-o OPTIONS]`.
#[derive(Debug, Parser)]
#[command(name = "mount.directfs", version, about = "Mount a DirectFS image, as mount(8) asks for it.")]
#[command(after_help = with_mount_options("\
Examples:
  mount -t directfs /var/lib/work.img /mnt/work
  mount -t directfs -o ro,nosuid /var/lib/work.img /mnt/work

Exit codes, as for mount(8): 0 mounted, 2 wrong usage, 32 the mount failed.

In /etc/fstab:
  /var/lib/work.img  /mnt/work  directfs  defaults,nofail  0  0"))]
pub struct MountHelper {
    /// The image.
    pub image: PathBuf,
    /// The directory to mount it on.
    pub directory: PathBuf,
    /// Options of mount(8).
    #[arg(short, value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Ignore unknown options.
    #[arg(short)]
    pub sloppy: bool,
    /// Check everything without mounting.
    #[arg(short)]
    pub fake: bool,
    /// Do not write /etc/mtab (accepted and ignored).
    #[arg(short)]
    pub no_mtab: bool,
    /// Print what is done.
    #[arg(short)]
    pub verbose: bool,
    /// Mount read-only.
    #[arg(short)]
    pub read_only: bool,
    /// Mount read-write.
    #[arg(short = 'w')]
    pub writable: bool,
    /// The file system type given to mount(8).
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

/// Arguments of `umount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys of --json: directory, image.

Examples:
  directfs umount /mnt/work
  directfs umount --lazy /mnt/work       detach now, end with the last user")]
pub struct Umount {
    /// The mount point.
    pub directory: PathBuf,
    /// Detach even if files are open; do not wait.
    #[arg(long, short)]
    pub lazy: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}
