//! Thread slots: whoever is inside the engine owns one. A slot is also a shard: it holds pre-allocated inodes, dentry lines, blocks and
//! cachelets, and the queue of what it removed and nobody may use yet. A slot that changes hands keeps them.
//!
//! Invariants
//! - Only the owner writes a slot, but for `owner`, which the next owner or a reaper claims by CAS.
//! - An owner that dies while it is pinned, or with an intent, is counted as abandoned: others go on, and the next attach scans. Only recycling writes
//!   an intent yet; that of names and files, with which another thread could finish a dead one's operation at once, is reserved.

use core::sync::atomic::{AtomicU32, AtomicU64};
use pmem::Layout;

/// Inode numbers that a slot keeps ready.
pub const MAGAZINE_INODES: usize = 62;
/// Removed things that a slot holds until nobody can be looking at them.
pub const RETIRED_MAX: usize = 1024;

/// Who a thread is: survives the reuse of pids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// When the process started, in the kernel's clock ticks.
    pub started: u64,
}

/// What an operation is about to do, so that another can finish or undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum IntentKind {
    /// Nothing is in flight.
    None = 0,
    /// create, mkdir, symlink, mknod: `dentry`, `inode`, `directory`, `slot`.
    Create = 1,
    /// link: as create, with an inode that others use.
    Link = 2,
    /// unlink, rmdir: `dentry`, `inode`, `directory`.
    Remove = 3,
    /// rename: the journal slot says the rest.
    Rename = 4,
    /// Change of a file's body or attributes: `inode`.
    Change = 5,
    /// Recycling of retired things.
    Recycle = 6,
    /// Indexing, eviction or compaction of `directory`.
    Directory = 7,
}

/// The intent of the operation in flight.
#[repr(C)]
pub struct Intent {
    /// [`IntentKind`].
    pub kind: AtomicU32,
    /// How far: meaning by kind.
    pub step: AtomicU32,
    /// Offset of the dentry.
    pub dentry: AtomicU64,
    /// Offset of the inode.
    pub inode: AtomicU64,
    /// Cachelet index of the directory.
    pub directory: AtomicU64,
    /// Offset of the log slot.
    pub slot: AtomicU64,
    /// Cachelet index of the file.
    pub cachelet: AtomicU64,
    /// By kind.
    pub more: [AtomicU64; 2],
}
// SAFETY: repr(C), 64 bytes without padding, atomics only.
unsafe impl Layout for Intent {}

/// What is retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum RetiredKind {
    /// An inode without names and users: `a` its number, `b` its cachelet index.
    Inode = 1,
    /// Blocks: `a` the first, `b` how many.
    Blocks = 2,
    /// A cachelet whose inode lives on: `a` its index.
    Cachelet = 3,
    /// A dentry that nothing on the image names any more: `a` its offset.
    Dentry = 4,
    /// A whole body, data and map nodes: `a` its root word.
    Body = 5,
}

/// One retired thing.
#[repr(C)]
pub struct Retired {
    /// [`RetiredKind`] (low 8 bits) and the grace epoch at retirement (above).
    pub kind: AtomicU64,
    /// By kind.
    pub a: AtomicU64,
    /// By kind.
    pub b: AtomicU64,
}
// SAFETY: repr(C), three atomics of 8 bytes.
unsafe impl Layout for Retired {}

/// A thread's slot.
#[repr(C, align(4096))]
pub struct ThreadSlot {
    /// pid (low half) and tid (high half); zero: free. Claimed by CAS.
    pub owner: AtomicU64,
    /// When the process started.
    pub started: AtomicU64,
    /// The grace epoch that the owner entered in, or zero while it is outside.
    pub pinned: AtomicU64,
    /// Nesting of pins.
    pub pins: AtomicU32,
    /// Cachelet lock that the owner waits for or holds beside the intent's (index), for the reaper.
    pub held: AtomicU32,
    /// Zero.
    pub reserved0: [AtomicU64; 4],

    /// The operation in flight.
    pub intent: Intent,

    /// Group of blocks that this shard allocates from, plus one; zero: none.
    pub group: AtomicU64,
    /// The block that was allocated last: the next search begins behind it, so that files stay in one piece.
    pub block_hint: AtomicU64,
    /// Slab (block) whose lines this shard hands out; zero: none.
    pub slab: AtomicU64,
    /// Its free lines.
    pub slab_lines: AtomicU64,
    /// First of this shard's list of slabs with free lines.
    pub slab_list: AtomicU32,
    /// Cachelets in `cachelet_list`.
    pub cachelets_count: AtomicU32,
    /// First of this shard's list of free cachelets.
    pub cachelet_list: AtomicU32,
    /// Cachelets that this shard took from the bump but has not used: first, and behind the last.
    pub cachelet_next: AtomicU32,
    /// See above.
    pub cachelet_end: AtomicU32,
    /// Inode numbers in `inodes`.
    pub inodes_count: AtomicU32,
    /// Last of this shard's list of slabs; means nothing while the list is empty.
    pub slab_tail: AtomicU32,
    /// Slabs in the list.
    pub slab_count: AtomicU32,
    /// Statistics: names made less names removed by this shard (wraps).
    pub names_delta: AtomicU64,

    /// Inode numbers ready for use.
    pub inodes: [AtomicU64; MAGAZINE_INODES],

    /// First and behind the last of `retired` (counters; the ring's index is the remainder).
    pub retired_first: AtomicU64,
    /// See above.
    pub retired_end: AtomicU64,
    /// What waits to be recycled.
    pub retired: [Retired; RETIRED_MAX],
    /// Renames that are over: the turn of the next one.
    pub renames: AtomicU64,
    /// Wholly free groups of blocks that this shard claimed after one that it had filled.
    pub groups_filled: AtomicU64,
    /// Zero to the end of the page.
    pub reserved1: [AtomicU64; 421],
}
const _: () = assert!(size_of::<ThreadSlot>() == 7 * 4096);
// SAFETY: repr(C), no padding (the fields sum up to the asserted size), atomics only.
unsafe impl Layout for ThreadSlot {}
