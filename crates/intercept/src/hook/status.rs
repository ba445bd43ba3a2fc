//! What stat, statx and statfs tell, in the kernel's layouts.

use super::server::Server;
use engine::Attributes;
use engine::format::ROOT_INODE;
use libc::{stat, statx, statx_timestamp};
use posix::FileSystemStatus;

/// Bytes that st_blocks counts in.
const SECTORS_PER_BLOCK: u64 = 8;
/// "DFS1": no other file system's.
pub const MAGIC: i64 = 0x4446_5331;
/// Ids of the mount, which no table of mounts has: the kernel's count from 0, and those that it uses once from 2^31; it comes to neither.
const MOUNT_ID: u64 = MAGIC as u64;
const MOUNT_ID_UNIQUE: u64 = (MAGIC as u64) << 32;

fn seconds(ns: i64) -> (i64, i64) {
    const SECOND_NS: u64 = 1_000_000_000;
    match u64::try_from(ns) {
        // Nearly always, and with a few instructions less.
        Ok(ns) => ((ns / SECOND_NS) as i64, (ns % SECOND_NS) as i64),
        Err(_) => (ns.div_euclid(SECOND_NS as i64), ns.rem_euclid(SECOND_NS as i64)),
    }
}

/// For stat and its kin.
pub fn stat_of(server: &Server, attributes: &Attributes) -> stat {
    // SAFETY: integers only, for which zero is a value.
    let mut status: stat = unsafe { core::mem::zeroed() };
    status.st_dev = server.device;
    status.st_ino = attributes.number;
    status.st_nlink = u64::from(attributes.links);
    status.st_mode = attributes.mode;
    status.st_uid = attributes.uid;
    status.st_gid = attributes.gid;
    status.st_rdev = u64::from(attributes.device);
    status.st_size = attributes.size_bytes as i64;
    status.st_blksize = pmem::BLOCK_BYTES as i64;
    status.st_blocks = (attributes.blocks * SECTORS_PER_BLOCK) as i64;
    (status.st_atime, status.st_atime_nsec) = seconds(attributes.accessed_ns);
    (status.st_mtime, status.st_mtime_nsec) = seconds(attributes.modified_ns);
    (status.st_ctime, status.st_ctime_nsec) = seconds(attributes.changed_ns);
    status
}

/// For statx: with what is there always, and of what the caller's `wanted` asks for, the birth time if it is given, and the kind of the mount's id.
pub fn statx_of(server: &Server, attributes: &Attributes, wanted: u32, born_ns: Option<i64>) -> statx {
    /// No name in libc yet: an id that is not used again.
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    // SAFETY: as above.
    let mut status: statx = unsafe { core::mem::zeroed() };
    (status.stx_mask, status.stx_mnt_id) = match wanted & STATX_MNT_ID_UNIQUE {
        0 => (libc::STATX_BASIC_STATS | libc::STATX_MNT_ID, MOUNT_ID),
        _ => (libc::STATX_BASIC_STATS | STATX_MNT_ID_UNIQUE, MOUNT_ID_UNIQUE),
    };
    status.stx_attributes_mask = libc::STATX_ATTR_MOUNT_ROOT as u64;
    if attributes.number == ROOT_INODE {
        status.stx_attributes = libc::STATX_ATTR_MOUNT_ROOT as u64;
    }
    status.stx_blksize = pmem::BLOCK_BYTES as u32;
    status.stx_nlink = attributes.links;
    status.stx_uid = attributes.uid;
    status.stx_gid = attributes.gid;
    status.stx_mode = attributes.mode as u16;
    status.stx_ino = attributes.number;
    status.stx_size = attributes.size_bytes;
    status.stx_blocks = attributes.blocks * SECTORS_PER_BLOCK;
    status.stx_atime = moment(attributes.accessed_ns);
    status.stx_mtime = moment(attributes.modified_ns);
    status.stx_ctime = moment(attributes.changed_ns);
    if let Some(born_ns) = born_ns {
        status.stx_mask |= libc::STATX_BTIME;
        status.stx_btime = moment(born_ns);
    }
    let device = u64::from(attributes.device);
    (status.stx_rdev_major, status.stx_rdev_minor) = (libc::major(device), libc::minor(device));
    (status.stx_dev_major, status.stx_dev_minor) = (libc::major(server.device), libc::minor(server.device));
    status
}

fn moment(ns: i64) -> statx_timestamp {
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

/// For statfs and fstatfs.
pub fn statfs_of(server: &Server, status: &FileSystemStatus) -> KernelStatfs {
    /// The flags are valid.
    const ST_VALID: i64 = 0x20;
    const ST_RDONLY: i64 = 1;
    const ST_RELATIME: i64 = 0x1000;
    let read_only = if server.fs.is_read_only() { ST_RDONLY } else { 0 };
    KernelStatfs {
        kind: MAGIC,
        block_bytes: status.block_bytes as i64,
        blocks: status.blocks,
        blocks_free: status.blocks_free,
        blocks_available: status.blocks_free,
        files: status.files,
        files_free: status.files_free,
        id: [server.device as i32, MAGIC as i32],
        name_bytes: status.name_bytes_max as i64,
        fragment_bytes: status.block_bytes as i64,
        flags: ST_VALID | ST_RELATIME | read_only,
        spare: [0; 4],
    }
}
