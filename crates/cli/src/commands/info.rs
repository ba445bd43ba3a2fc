//! `directfs info`: an image's properties, usage, users, and the guarantee of its medium. It only
//! reads, and takes no lock for longer than an instant.

use crate::arguments::Info;
use crate::asking::{self, Answer, Unanswered};
use crate::processes::{self, ImageUser};
use crate::terminal::{bold, print_fact, share};
use crate::{mounts, units};
use anyhow::{Context, Result};
use engine::format::{
    DENTRY_HEADER_BYTES, FEATURE_FILE_FLAGS, FEATURE_RESERVE, FEATURE_RESIZED, FEATURE_USED_SLOTS, FEATURES_COMPAT,
    FEATURES_INCOMPAT, FEATURES_RO_COMPAT, INODE_BYTES, Superblock, dentry_lines,
};
use image::{Image, OpenImage, Pending, Users};
use pmem::{BLOCK_BYTES, Backing, Direct, LINE_BYTES, Persistence};
use posix::commits::CommitStatus;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bytes of a log slot, the directory's word that refers to a dentry.
const SLOT_BYTES: u64 = 8;

#[derive(Serialize)]
struct Facts {
    #[serde(serialize_with = "units::path_as_text")]
    image: PathBuf,
    label: String,
    uuid: String,
    format_version: u64,
    features: Features,
    created_ns: u64,
    length: u64,
    block_bytes: u64,
    blocks: u64,
    /// Blocks that only root may take.
    blocks_reserved: u64,
    inodes: u64,
    epoch: u32,
    clean: bool,
    backing: String,
    persistence: &'static str,
    /// What programs cannot do on this device.
    mapping_limit: Option<String>,
    /// What is on the disk, while processes use an image on one.
    commits: Option<Commits>,
    /// What the next use recovers, of an image on a disk.
    pending: Option<String>,
    in_use: bool,
    in_use_for_writing: bool,
    used_by: Vec<ImageUser>,
    #[serde(serialize_with = "units::paths_as_text")]
    mounted_on: Vec<PathBuf>,
    /// The first of them whose server does not answer, and the server.
    not_answering: Option<String>,
    /// Usage of the image; none if it is unknown until a recovery.
    usage: Option<Usage>,
    footprint: Footprint,
    cache: Option<Cache>,
    last_recovery: Option<LastRecovery>,
}

#[derive(Serialize)]
struct Features {
    compat: u64,
    ro_compat: u64,
    incompat: u64,
}

#[derive(Clone, Copy, Serialize)]
struct Usage {
    blocks_used: u64,
    blocks_free: u64,
    inodes_used: u64,
    inodes_free: u64,
}

/// What a power failure would leave.
#[derive(Clone, Copy, Serialize)]
pub struct Commits {
    /// The programs work on a hidden file beside the image, and not in memory.
    works_on_disk: bool,
    /// Bytes that changed since the last commit.
    pub uncommitted_bytes: u64,
    /// Age of the last commit; none yet: none.
    pub age_ms: Option<u64>,
    pub commits: u64,
    journal_used_bytes: u64,
    journal_bytes: u64,
    /// The errno of the last commit, if it failed.
    pub errno: Option<i32>,
    /// How often threads waited for a commit's cut, and a time that 999 of 1,000 waits kept below.
    waits: u64,
    waits_p999_ns: u64,
}

impl Commits {
    /// As an attached image reports them.
    pub fn of(status: CommitStatus, works_on_disk: bool) -> Commits {
        let now_ns = units::now_ns();
        let age_ms = (status.committed_ns > 0).then(|| now_ns.saturating_sub(status.committed_ns) / 1_000_000);
        Commits {
            works_on_disk,
            uncommitted_bytes: status.changed_bytes,
            age_ms,
            commits: status.commits,
            journal_used_bytes: status.used_bytes,
            journal_bytes: status.log_bytes,
            errno: status.error.map(|errno| errno.0),
            waits: status.waits.total(),
            waits_p999_ns: status.waits.below_ns(999),
        }
    }

    /// What is not on the disk, in words.
    pub fn sentence(&self) -> String {
        let age = match self.age_ms {
            Some(age_ms) => format!("the last commit is {:.1} s old", age_ms as f64 / 1000.0),
            None => "no commit yet".to_owned(),
        };
        let failed = match self.errno {
            Some(errno) => format!("; the last commit FAILED: {}", std::io::Error::from_raw_os_error(errno)),
            None => String::new(),
        };
        format!("{} not on the disk, {age}{failed}", units::size(self.uncommitted_bytes))
    }
}

/// The cost of an empty file on the image.
#[derive(Serialize)]
struct Footprint {
    inode_bytes: u64,
    log_slot_bytes: u64,
    dentry_bytes_min: u64,
    /// Maximum length of a name in the smallest dentry.
    name_bytes_in_min: u64,
}

/// The state that the image's users keep in shared memory.
#[derive(Serialize)]
struct Cache {
    files: u64,
    names: u64,
    dram_bytes_per_file: f64,
}

#[derive(Serialize)]
struct LastRecovery {
    scanned: bool,
    duration_ns: u64,
    names: u64,
    inodes: u64,
}

/// Prints the properties of an image.
pub fn run(arguments: &Info) -> Result<()> {
    let facts = gather(&arguments.image)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&facts)?);
    } else {
        facts.print();
    }
    Ok(())
}

fn gather(path: &Path) -> Result<Facts> {
    let (mapping, pending, geometry) = image::map_described(path)?;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let backing = match pending {
        Pending::Nothing => mapping.backing(),
        // What is mapped is in memory.
        Pending::Commits(_) | Pending::WorkingCopy => Backing::of_file(&file),
    };
    // SAFETY: nothing is stored through the region.
    let region = unsafe { mapping.region_for_reading(Direct) };
    let superblock = region.first::<Superblock>().ok().context("the superblock was valid before")?;
    let users = image::users(&file).with_context(|| format!("cannot query the locks on {}", path.display()))?;
    let state = superblock.state();
    let mounted_on = mounted_on(path);
    let usage = mounted_on.first().map(|point| usage_of_mount(point));
    let silent = mounted_on.first().filter(|_| matches!(usage, Some(Err(Unanswered::Silent))));
    let live = live(path, users, state.clean);
    Ok(Facts {
        label: label(superblock),
        uuid: units::uuid(&uuid(superblock)),
        format_version: superblock.version.load(),
        features: Features {
            compat: superblock.features_compat.load(),
            ro_compat: superblock.features_ro_compat.load(),
            incompat: superblock.features_incompat.load(),
        },
        created_ns: superblock.created_ns.load(),
        length: superblock.length.load(),
        block_bytes: BLOCK_BYTES,
        blocks: geometry.data_end() - geometry.data_block,
        blocks_reserved: superblock.reserved_blocks(),
        inodes: geometry.inodes_max() - 1,
        epoch: state.epoch,
        clean: state.clean,
        backing: backing.to_string(),
        persistence: live.persistence.unwrap_or(backing.persistence()).sentence(),
        mapping_limit: super::mkfs::mapping_limit(path),
        commits: live.commits,
        pending: if users.writing { None } else { describe(pending) },
        in_use: users.attached,
        in_use_for_writing: users.writing,
        used_by: processes::users_of(processes::identity(&file.metadata()?)),
        usage: usage.and_then(Result::ok).or(live.usage),
        not_answering: silent.map(|point| processes::silent_servers(path, point)),
        mounted_on,
        footprint: footprint(),
        cache: live.cache,
        last_recovery: live.last_recovery,
        image: path.to_owned(),
    })
}

/// Label and UUID of an image.
pub fn identity(path: &Path) -> Result<(String, String)> {
    let (mapping, ..) = image::map_described(path)?;
    // SAFETY: nothing is stored through the region.
    let region = unsafe { mapping.region_for_reading(Direct) };
    let superblock = region.first::<Superblock>().ok().context("the superblock was valid before")?;
    Ok((label(superblock), units::uuid(&uuid(superblock))))
}

fn describe(pending: Pending) -> Option<String> {
    match pending {
        Pending::Nothing => None,
        Pending::Commits(count) => {
            Some(format!("{} in the journal; the next use recovers them", units::counted(count, "commit")))
        }
        Pending::WorkingCopy => {
            Some("a newer state in memory, which the last processes left; the next use commits it".to_owned())
        }
    }
}

fn label(superblock: &Superblock) -> String {
    let bytes: Vec<u8> = superblock.label.iter().flat_map(|cell| cell.load().to_le_bytes()).collect();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    // The label may be hostile: no control sequence of it may reach a terminal.
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

fn uuid(superblock: &Superblock) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&superblock.uuid[0].load().to_le_bytes());
    bytes[8..].copy_from_slice(&superblock.uuid[1].load().to_le_bytes());
    bytes
}

fn footprint() -> Footprint {
    Footprint {
        inode_bytes: INODE_BYTES,
        log_slot_bytes: SLOT_BYTES,
        dentry_bytes_min: dentry_lines(1) * LINE_BYTES,
        name_bytes_in_min: dentry_lines(1) * LINE_BYTES - DENTRY_HEADER_BYTES,
    }
}

fn mounted_on(path: &Path) -> Vec<PathBuf> {
    mounts::of_image(path).into_iter().map(|mount| mount.point).collect()
}

/// Usage of the image as reported by the server that has it mounted.
fn usage_of_mount(point: &Path) -> Answer<Usage> {
    let space = asking::space(point)?;
    Ok(Usage {
        blocks_used: space.blocks.saturating_sub(space.blocks_free),
        blocks_free: space.blocks_free,
        inodes_used: space.inodes.saturating_sub(space.inodes_free),
        inodes_free: space.inodes_free,
    })
}

/// Properties that only an attached image has.
#[derive(Default)]
struct Live {
    usage: Option<Usage>,
    cache: Option<Cache>,
    last_recovery: Option<LastRecovery>,
    persistence: Option<Persistence>,
    commits: Option<Commits>,
}

/// Reads the shared memory of the image's users, or, if there are none, the state of the last
/// detach. It only reads.
fn live(path: &Path, users: Users, clean: bool) -> Live {
    if users.none() && !clean {
        return Live::default();
    }
    let options = OpenImage { read_only: true, timeout: Duration::ZERO, ..OpenImage::default() };
    // If another process uses the image exclusively, these figures are unknown; this is not an
    // error.
    let Ok(image) = Image::open(path, &options) else { return Live::default() };
    let fs = image.fs();
    let is_used = users.attached;
    let persistence = is_used.then(|| image.persistence());
    let commits = image.commit_status().filter(|_| is_used).map(|status| Commits::of(status, image.works_on_disk()));
    let Ok(space) = fs.enter().and_then(|thread| thread.space()) else { return Live::default() };
    let usage = Usage {
        blocks_used: space.blocks - space.blocks_free,
        blocks_free: space.blocks_free,
        inodes_used: space.inodes - space.inodes_free,
        inodes_free: space.inodes_free,
    };
    // Without other users, these figures would describe this process's own memory.
    if !users.attached {
        return Live { usage: Some(usage), ..Live::default() };
    }
    let unknown = Live { usage: Some(usage), persistence, commits, ..Live::default() };
    let Ok(header) = fs.dram().header() else { return unknown };
    let bucket_bytes = size_of::<engine::dram::Bucket>() as u64;
    let index_bytes = (header.buckets.load(Relaxed) + header.overflow_next.load(Relaxed)) * bucket_bytes;
    let Ok(cached) = fs.cached() else { return unknown };
    let cachelet_bytes = cached.files * size_of::<engine::dram::Cachelet>() as u64;
    let cache = (cached.files > 0).then(|| Cache {
        files: cached.files,
        names: cached.names,
        dram_bytes_per_file: (index_bytes + cachelet_bytes) as f64 / cached.files as f64,
    });
    let [duration_ns, names, inodes, scanned] = std::array::from_fn(|index| header.recovery[index].load(Relaxed));
    let last_recovery = LastRecovery { scanned: scanned == 1, duration_ns, names, inodes };
    Live { cache, last_recovery: Some(last_recovery), ..unknown }
}

impl Features {
    /// What the image has: names, and the bits of those of later versions.
    fn names(&self) -> String {
        let known = [
            (self.ro_compat, FEATURE_USED_SLOTS, "bounds of used slots"),
            (self.ro_compat, FEATURE_FILE_FLAGS, "file flags"),
            (self.incompat, FEATURE_RESIZED, "resized"),
            (self.compat, FEATURE_RESERVE, "reserve"),
        ];
        let mut names: Vec<String> = known
            .into_iter()
            .filter(|(features, feature, _)| features & feature != 0)
            .map(|(_, _, name)| name.to_owned())
            .collect();
        let later = [
            ("compatible", self.compat & !FEATURES_COMPAT),
            ("read-only compatible", self.ro_compat & !FEATURES_RO_COMPAT),
            ("incompatible", self.incompat & !FEATURES_INCOMPAT),
        ];
        names.extend(later.into_iter().filter(|(_, bits)| *bits != 0).map(|(kind, bits)| format!("{kind} {bits:#x}")));
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

impl Facts {
    fn print(&self) {
        println!("{}", bold(self.image.display()));
        print_fact("label", if self.label.is_empty() { "none" } else { &self.label });
        print_fact("uuid", &self.uuid);
        print_fact("format", format_args!("version {}, features: {}", self.format_version, self.features.names()));
        print_fact(
            "size",
            format_args!("{}, {} for files", units::size(self.length), units::size(self.blocks * BLOCK_BYTES)),
        );
        if self.blocks_reserved > 0 {
            print_fact("reserved for root", units::size(self.blocks_reserved * BLOCK_BYTES));
        }
        match self.usage {
            Some(usage) => {
                print_fact("blocks of 4 KiB", format_args!("{} used", share(usage.blocks_used, self.blocks)));
                print_fact("inodes", format_args!("{} used", share(usage.inodes_used, self.inodes)));
            }
            None => print_fact("usage", self.why_unknown()),
        }
        print_fact("epoch", self.epoch);
        print_fact("state", self.state());
        self.print_users();
        print_fact("backing", &self.backing);
        print_fact("persistence", self.persistence);
        if let Some(limit) = &self.mapping_limit {
            print_fact("limit", limit);
        }
        if let Some(commits) = &self.commits {
            print_fact("commits", commits.sentence());
            let (used, bytes) = (units::size(commits.journal_used_bytes), units::size(commits.journal_bytes));
            print_fact("journal", format_args!("{used} of {bytes} used"));
            let place = if commits.works_on_disk { "a hidden file beside the image" } else { "memory" };
            print_fact("programs work on", format_args!("a copy in {place}"));
            if commits.waits > 0 {
                let (waits, below) = (units::count(commits.waits), units::duration(commits.waits_p999_ns as f64));
                print_fact("waits for cuts", format_args!("{waits}, 999 of 1,000 below {below}"));
            }
        }
        if let Some(pending) = &self.pending {
            print_fact("pending", pending);
        }
        self.print_footprint();
    }

    fn why_unknown(&self) -> &'static str {
        if self.in_use {
            "unknown: a process uses the image exclusively"
        } else {
            "unknown until the next use recovers the image"
        }
    }

    fn state(&self) -> &'static str {
        match (self.clean, self.in_use_for_writing) {
            (true, _) => "clean",
            (false, true) => "in use",
            (false, false) => "not left cleanly; the next use recovers it",
        }
    }

    fn print_users(&self) {
        for point in &self.mounted_on {
            print_fact("mounted on", point.display());
        }
        if let Some(silent) = &self.not_answering {
            print_fact("NOT ANSWERING", silent);
        }
        for transport in self.used_by.iter().filter_map(|user| user.requests_through) {
            print_fact("requests through", transport.description());
        }
        let names: Vec<String> = self.used_by.iter().map(|user| format!("{} ({})", user.pid, user.command)).collect();
        match (self.in_use, names.is_empty()) {
            (true, true) => print_fact("used by", "processes of other users"),
            (_, false) => print_fact("used by", names.join(", ")),
            (false, true) => print_fact("used by", "no process"),
        }
    }

    fn print_footprint(&self) {
        let Footprint { inode_bytes, log_slot_bytes, dentry_bytes_min, name_bytes_in_min } = self.footprint;
        print_fact(
            "an empty file",
            format_args!(
                "uses {} bytes of the image: inode {inode_bytes}, log slot {log_slot_bytes}, dentry {dentry_bytes_min} (with a name of up to \
                 {name_bytes_in_min} bytes)",
                inode_bytes + log_slot_bytes + dentry_bytes_min
            ),
        );
        if let Some(Cache { files, names, dram_bytes_per_file }) = self.cache {
            let (files, names) = (units::counted(files, "file"), units::counted(names, "name"));
            print_fact(
                "cached",
                format_args!("{files} with {names}, {dram_bytes_per_file:.0} bytes of memory per file"),
            );
        }
        if let Some(LastRecovery { scanned, duration_ns, names, inodes }) = self.last_recovery {
            let how = if scanned { "scanned after a crash" } else { "clean, without a scan" };
            let (names, inodes) = (units::counted(names, "name"), units::counted(inodes, "inode"));
            print_fact(
                "last attach",
                format_args!("{how}: {names}, {inodes} in {}", units::duration(duration_ns as f64)),
            );
        }
    }
}
