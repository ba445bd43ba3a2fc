//! Results of stat, statx and statfs, in the kernel's layouts.
//!
//! Decision: docs/decisions/hot-paths.md, "No load is wider than the stores before it".

use crate::process::session::Calling;
use crate::server::Server;
use core::mem::offset_of;
use engine::format::ROOT_INODE;
use engine::{Attributes, FileFlags};
use libc::{stat, statx, statx_timestamp};
use posix::FileSystemStatus;

/// Sectors in a block; st_blocks counts sectors.
const SECTORS_PER_BLOCK: u64 = 8;
/// FUSE's, as on a mount: programs have a name for it, and treat the two alike.
pub const MAGIC: i64 = 0x6573_5546;
/// "DFS1".
const NAME: u64 = 0x4446_5331;
/// The mount's id, which no other mount has: the kernel counts reusable ids from 0, and unique
/// ones from 2^31; it reaches neither.
pub const MOUNT_ID: u64 = NAME;
/// The mount's id among ids that are never reused.
pub const MOUNT_ID_UNIQUE: u64 = NAME << 32;

fn seconds(ns: i64) -> (i64, i64) {
    const SECOND_NS: u64 = 1_000_000_000;
    match u64::try_from(ns) {
        // The usual case, with a few instructions less.
        Ok(ns) => ((ns / SECOND_NS) as i64, (ns % SECOND_NS) as i64),
        Err(_) => (ns.div_euclid(SECOND_NS as i64), ns.rem_euclid(SECOND_NS as i64)),
    }
}

/// Words of `struct stat`.
pub const STAT_WORDS: usize = size_of::<stat>() / 8;
const _: () = {
    assert!(size_of::<stat>() == STAT_WORDS * 8 && STAT_WORDS == 18);
    assert!(offset_of!(stat, st_ino) == 8 && offset_of!(stat, st_nlink) == 16);
    assert!(offset_of!(stat, st_mode) == 24 && offset_of!(stat, st_uid) == 28 && offset_of!(stat, st_gid) == 32);
    assert!(offset_of!(stat, st_rdev) == 40 && offset_of!(stat, st_size) == 48 && offset_of!(stat, st_blksize) == 56);
    assert!(offset_of!(stat, st_blocks) == 64 && offset_of!(stat, st_atime) == 72 && offset_of!(stat, st_mtime) == 88);
    assert!(offset_of!(stat, st_ctime) == 104 && offset_of!(stat, st_ctime_nsec) == 112);
};

/// For stat and similar calls: a `struct stat` in words. It is thus stored and loaded again in the
/// same pieces on its way to the program, which keeps store forwarding effective.
pub fn stat_of(server: &Server, caller: &Calling<'_>, attributes: &Attributes) -> [u64; STAT_WORDS] {
    let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (uid, gid) = caller.credentials.numbers_of((attributes.uid, attributes.gid));
    let [accessed, modified, changed] =
        [attributes.accessed_ns, attributes.modified_ns, attributes.changed_ns].map(seconds);
    [
        server.device,
        attributes.number,
        u64::from(attributes.links),
        halves(attributes.mode, uid),
        u64::from(gid),
        u64::from(attributes.device),
        attributes.size_bytes,
        pmem::BLOCK_BYTES,
        attributes.blocks * SECTORS_PER_BLOCK,
        accessed.0 as u64,
        accessed.1 as u64,
        modified.0 as u64,
        modified.1 as u64,
        changed.0 as u64,
        changed.1 as u64,
        0,
        0,
        0,
    ]
}

/// The flags of files that statx reports; STATX_ATTR_* has the values of FS_*_FL.
const FLAGS: u64 = (libc::STATX_ATTR_IMMUTABLE | libc::STATX_ATTR_APPEND | libc::STATX_ATTR_NODUMP) as u64;
const _: () = {
    let flags = FileFlags::IMMUTABLE.with(FileFlags::APPEND_ONLY).with(FileFlags::NO_DUMP);
    assert!(flags.to_linux() as u64 == FLAGS);
};

/// For statx: the fields that are always present, and of those in `wanted` the birth time if
/// `born_ns` is given, and the kind of the mount's id.
pub fn statx_of(
    server: &Server,
    caller: &Calling<'_>,
    attributes: &Attributes,
    wanted: u32,
    born_ns: Option<i64>,
) -> statx {
    /// An id that is never reused; libc has no name for it yet.
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    // SAFETY: integers only, for which zero is valid.
    let mut status: statx = unsafe { core::mem::zeroed() };
    (status.stx_mask, status.stx_mnt_id) = match wanted & STATX_MNT_ID_UNIQUE {
        0 => (libc::STATX_BASIC_STATS | libc::STATX_MNT_ID, MOUNT_ID),
        _ => (libc::STATX_BASIC_STATS | STATX_MNT_ID_UNIQUE, MOUNT_ID_UNIQUE),
    };
    status.stx_attributes_mask = libc::STATX_ATTR_MOUNT_ROOT as u64 | FLAGS;
    let mount_root = if attributes.number == ROOT_INODE { libc::STATX_ATTR_MOUNT_ROOT as u64 } else { 0 };
    status.stx_attributes = u64::from(attributes.flags.to_linux()) & FLAGS | mount_root;
    status.stx_blksize = pmem::BLOCK_BYTES as u32;
    status.stx_nlink = attributes.links;
    (status.stx_uid, status.stx_gid) = caller.credentials.numbers_of((attributes.uid, attributes.gid));
    status.stx_mode = attributes.mode as u16;
    status.stx_ino = attributes.number;
    status.stx_size = attributes.size_bytes;
    status.stx_blocks = attributes.blocks * SECTORS_PER_BLOCK;
    status.stx_atime = statx_time(attributes.accessed_ns);
    status.stx_mtime = statx_time(attributes.modified_ns);
    status.stx_ctime = statx_time(attributes.changed_ns);
    if let Some(born_ns) = born_ns {
        status.stx_mask |= libc::STATX_BTIME;
        status.stx_btime = statx_time(born_ns);
    }
    let device = u64::from(attributes.device);
    (status.stx_rdev_major, status.stx_rdev_minor) = (libc::major(device), libc::minor(device));
    (status.stx_dev_major, status.stx_dev_minor) = (libc::major(server.device), libc::minor(server.device));
    status
}

fn statx_time(ns: i64) -> statx_timestamp {
    let (tv_sec, tv_nsec) = seconds(ns);
    // SAFETY: as above.
    let mut moment: statx_timestamp = unsafe { core::mem::zeroed() };
    (moment.tv_sec, moment.tv_nsec) = (tv_sec, tv_nsec as u32);
    moment
}

/// `struct statfs` of the kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KernelStatfs {
    kind: i64,
    block_bytes: i64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
    id: [i32; 2],
    name_bytes: i64,
    fragment_bytes: i64,
    flags: i64,
    spare: [i64; 4],
}
const _: () = assert!(size_of::<KernelStatfs>() == 120);

/// f_fsid, which events of fanotify hold, too.
pub fn file_system_id(server: &Server) -> [i32; 2] {
    [server.device as i32, MAGIC as i32]
}

/// For statfs and fstatfs.
pub fn statfs_of(server: &Server, status: &FileSystemStatus) -> KernelStatfs {
    /// The flags are valid.
    const ST_VALID: i64 = 0x20;
    const ST_RDONLY: i64 = 1;
    /// In the form in which [`mount_table`](crate::mount_table) writes them.
    const ST_NOSUID: i64 = 2;
    const ST_NODEV: i64 = 4;
    const ST_RELATIME: i64 = 0x1000;
    let read_only = if server.fs.is_read_only() { ST_RDONLY } else { 0 };
    KernelStatfs {
        kind: MAGIC,
        block_bytes: status.block_bytes as i64,
        blocks: status.blocks,
        blocks_free: status.blocks_free,
        blocks_available: status.blocks_available,
        files: status.files,
        files_free: status.files_free,
        id: file_system_id(server),
        name_bytes: status.name_bytes_max as i64,
        fragment_bytes: status.block_bytes as i64,
        flags: ST_VALID | ST_NOSUID | ST_NODEV | ST_RELATIME | read_only,
        spare: [0; 4],
    }
}
