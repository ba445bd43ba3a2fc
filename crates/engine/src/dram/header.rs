//! The header of a DRAM region: its image, its phase, and the counters that all processes share.

use crate::attach::ImageIdentity;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::Relaxed;
use pmem::Layout;

/// `DFSDRAM` and a zero.
pub const DRAM_MAGIC: u64 = u64::from_le_bytes(*b"DFSDRAM\0");
/// Raised when anything in the DRAM region changes its meaning: programs of different versions do
/// not share a region.
pub const DRAM_VERSION: u64 = 34;

/// The phase of a DRAM region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Zeroed memory, or being filled by the process that holds the attach lock.
    Empty = 0,
    /// In use.
    Ready = 1,
    /// The last process has left, or an error made the region unusable.
    Closed = 2,
}

/// Parts of the map of inode numbers with locks of their own: while the owner of one is stopped,
/// threads take numbers from others.
pub const INODE_MAP_PARTS: usize = 16;

/// A part of the map of inode numbers.
#[repr(C)]
pub struct InodeMapPart {
    /// Owner slot + 1 of the thread that changes the part.
    pub lock: AtomicU32,
    /// Waiters on `lock`.
    pub waiters: AtomicU32,
    /// Inode numbers in use or in the magazine of a shard; only the sum of all parts is a count.
    pub used: AtomicU64,
}
// SAFETY: repr(C), atomics only, 4 + 4 + 8 bytes without padding.
unsafe impl Layout for InodeMapPart {}

/// Pairs of journal slots that threads borrow for one rename.
pub const SHARED_JOURNAL_PAIRS: usize = 64;

/// A pair of journal slots without a thread slot of its own.
#[repr(C)]
pub struct JournalPair {
    /// Owner slot + 1 of the thread that renames with it.
    pub lock: AtomicU32,
    /// Waiters on `lock`.
    pub waiters: AtomicU32,
    /// Completed renames: the sequence number of the next one.
    pub renames: AtomicU64,
}
// SAFETY: repr(C), 2 * 4 + 8 bytes without padding, atomics only.
unsafe impl Layout for JournalPair {}

/// The first page of the DRAM region.
#[repr(C, align(4096))]
pub struct DramHeader {
    /// [`DRAM_MAGIC`].
    pub magic: AtomicU64,
    /// [`DRAM_VERSION`].
    pub version: AtomicU64,
    /// The image's UUID.
    pub uuid: [AtomicU64; 2],
    /// The image's epoch since this region was built.
    pub epoch: AtomicU64,
    /// The budget that the layout was computed with.
    pub cached_files_max: AtomicU64,
    /// [`Phase`].
    pub phase: AtomicU32,
    /// 1: the image is attached read-only.
    pub read_only: AtomicU32,
    /// Seed of the name hash; random for each region.
    pub hash_seed: AtomicU64,

    /// Buckets in use. Every lookup reads it, so nothing on its line changes more often.
    pub buckets: AtomicU64,
    /// Thread slots that were ever used.
    pub slots_high: AtomicU64,
    /// Nonzero: the layer above wants to know what changes ([`crate::Fs::is_watched`]). Its bits
    /// are that layer's.
    pub watched: AtomicU64,
    /// Thread slots of this region.
    pub slots_max: AtomicU64,
    /// Zero.
    pub reserved0: [AtomicU64; 4],

    /// The global epoch of reclamation (not the image's); on a line of its own.
    pub global_epoch: AtomicU64,
    /// Zero.
    pub reserved1: [AtomicU64; 7],

    /// Overflow buckets allocated so far (bump); those freed since are on the list.
    pub overflow_next: AtomicU64,
    /// First of the list of freed overflow buckets: a [`crate::free_list::FreeList`].
    pub overflow_free: AtomicU64,
    /// Free blocks of an image with a reserve: exact after a count, and then only wrong by what
    /// dead threads had in hand.
    pub blocks_counted: AtomicU64,
    /// Owner slot + 1 of the thread that may grow the mindex.
    pub grow_lock: AtomicU32,
    /// Owner slot + 1 of the thread that moves a directory to another parent.
    pub directory_move_lock: AtomicU32,
    /// Owner slot + 1 of the thread that evicts.
    pub evict_lock: AtomicU32,
    /// Waiters on any of the three locks above.
    pub rare_waiters: AtomicU32,
    /// Owner slot + 1 of the thread that commits the image to its disk.
    pub commit_lock: AtomicU32,
    /// Waiters on `commit_lock`.
    pub commit_waiters: AtomicU32,
    /// Zero.
    pub reserved2: [AtomicU64; 2],

    /// Names in the mindex; a line with the other statistics. Approximate while operations run.
    pub names: AtomicU64,
    /// Cachelets allocated so far (bump).
    pub cachelets_next: AtomicU64,
    /// First batch of freed cachelets that shards returned: a [`crate::free_list::FreeList`].
    pub cachelets_free: AtomicU64,
    /// Segments of the inode table in use (nonzero entries of the segment table).
    pub segments: AtomicU64,
    /// Blocks that were free when the region was built; the groups hold today's number, see
    /// `alloc::blocks`.
    pub blocks_free: AtomicU64,
    /// Zero.
    pub reserved7: AtomicU64,
    /// Start of the next search for a group.
    pub group_cursor: AtomicU64,
    /// Start of the next search for free inode numbers (segment).
    pub segment_cursor: AtomicU64,

    /// Position of the clock hand of eviction (cachelet index); protected by `evict_lock`.
    pub evict_head: AtomicU32,
    /// Counts the pointers to evicted cachelets that were cleared; wraps.
    pub pointers_cleared: AtomicU32,
    /// Zero.
    pub reserved9: AtomicU64,
    /// Report of recovery for `info`: duration in ns, names, inodes, 1 if it scanned.
    pub recovery: [AtomicU64; 4],
    /// Owner slot + 1 of the thread that adds a segment of inodes.
    pub segment_lock: AtomicU32,
    /// Waiters on `segment_lock`.
    pub segment_waiters: AtomicU32,
    /// Owners that died inside an operation which could not be decided. Not all that they held is
    /// accounted for, so the image is not marked clean.
    pub unclean_marks: AtomicU64,
    /// Units of each phase of recovery that workers have claimed.
    pub recovery_claimed: [AtomicU64; 4],
    /// Units of each phase of recovery that are done.
    pub recovery_done: [AtomicU64; 4],
    /// Counters of a running recovery: see `attach::recovery`.
    pub recovery_counts: [AtomicU64; 8],
    /// Zero.
    pub reserved8: [AtomicU64; 2],
    /// Slots reaped so far.
    pub reaped: AtomicU64,
    /// 1 once a block had several pointers. Their count may be wrong after a death.
    pub blocks_shared: AtomicU64,
    /// The process number that was assigned last.
    pub process_numbers: AtomicU32,
    /// Zero.
    pub reserved5: AtomicU32,
    /// The image file that the region belongs to: see [`crate::ImageIdentity`].
    pub image: [AtomicU64; 3],
    /// The secret part of the name of the directory with the processes' lock file. Only processes
    /// that may map the region know it.
    pub directory_secret: [AtomicU64; 2],
    /// The global epoch that a thread has waited for to pass, in vain: a pinned thread is stopped.
    pub stalled_epoch: AtomicU64,
    /// The parts of the map of inode numbers: segment `n` belongs to part `n % INODE_MAP_PARTS`.
    pub inode_map: [InodeMapPart; INODE_MAP_PARTS],
    /// When a thread claims a slot with this index or a higher one, dead threads are reaped first.
    pub reap_at: AtomicU64,
    /// For threads whose slots have no journal slots of their own: see `directory::journal`.
    pub journal_pairs: [JournalPair; SHARED_JOURNAL_PAIRS],
    /// Blocks that the layout has room for.
    pub capacity_blocks: AtomicU64,
    /// The present size: see [`crate::size`].
    pub image_size: AtomicU64,
    /// Bytes that each process of the region can map.
    pub image_bytes_max: AtomicU64,
    /// The size that the image gets: see `attach::growth`. Zero: it does not grow now.
    pub image_size_wanted: AtomicU64,
    /// The bits of all blocks before this one are right. It lags behind the size while an image
    /// grows.
    pub data_opened: AtomicU64,
    /// 1: the space of the image's file was reserved as a whole when the region was built.
    pub is_reserved: AtomicU64,
    /// Zero to the end of the page.
    pub reserved3: [AtomicU64; 430 - 2 * INODE_MAP_PARTS - 2 * SHARED_JOURNAL_PAIRS],
}
impl DramHeader {
    /// Inode numbers in use or in the magazine of a shard.
    pub fn inodes_used(&self) -> u64 {
        self.inode_map.iter().fold(0, |sum, part| sum.wrapping_add(part.used.load(Relaxed)))
    }

    /// The image file that the region belongs to.
    pub fn image_identity(&self) -> ImageIdentity {
        let [device, inode, boot] = self.image.each_ref().map(|word| word.load(Relaxed));
        ImageIdentity { device, inode, boot }
    }
}
const _: () = assert!(size_of::<DramHeader>() == 4096);
const _: () = assert!(core::mem::offset_of!(DramHeader, buckets) == 64);
const _: () = assert!(core::mem::offset_of!(DramHeader, global_epoch) == 128);
const _: () = assert!(core::mem::offset_of!(DramHeader, overflow_next) == 192);
const _: () = assert!(core::mem::offset_of!(DramHeader, names) == 256);
// SAFETY: repr(C), atomics only, no padding: the fields sum up to the asserted size.
unsafe impl Layout for DramHeader {}
