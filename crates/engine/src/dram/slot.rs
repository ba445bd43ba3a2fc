//! Thread slots. Each thread inside the engine owns one. A slot is also a shard of the allocators:
//! it holds pre-allocated inodes, dentry lines, blocks and cachelets, and the queue of removed
//! things that are not reusable yet. The next owner inherits them.
//!
//! Invariants
//! - Only the owner writes a slot, except `owner`, which the next owner or a reaper claims by CAS.
//!   A reaper becomes the owner, and is replaced in the same way if it dies.
//! - The slot names what the owner holds, from before it is taken until after it is released: locks
//!   in `held`, in-flight allocations in `in_flight`, the operation in `intent`, and what waits to
//!   be free in `retired`.

use super::NameChanges;
use crate::statistics::{CallCounts, CallStatistics};
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::Acquire;
use pmem::Layout;

/// Inode numbers that a slot holds in reserve.
pub const MAGAZINE_INODES: usize = 62;
/// Removed things that a slot holds until no thread can see them.
pub const RETIRED_MAX: usize = 1024;

/// The thread that owns a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Process number: never used twice in a region (`crate::liveness`). Not zero.
    pub process: u32,
    /// The thread's id in the namespace of its process.
    pub thread: u32,
}

impl Owner {
    /// The owner as a word: process number (low half) and thread id (high half).
    pub fn word(self) -> u64 {
        self.process as u64 | (self.thread as u64) << 32
    }

    /// The owner that a word names; zero: none.
    pub fn from_word(word: u64) -> Option<Owner> {
        (word != 0).then_some(Owner { process: word as u32, thread: (word >> 32) as u32 })
    }
}

/// What an operation is about to do, so that a reaper can complete it or roll it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum IntentKind {
    /// No operation is in flight, or none that locks and in-flight allocations do not describe.
    None = 0,
    /// A new name for a new inode: one name.
    Create = 1,
    /// A new name for an inode that has or may have others: one name, `file`.
    Link = 2,
    /// Removal of a file's name: `old[0]`, `file`.
    Unlink = 3,
    /// Removal of a directory: `old[0]`, `victim`.
    RemoveDirectory = 4,
    /// rename: one or two names, `old`, `file` (which moves), `victim`. The journal holds the rest.
    Rename = 5,
    /// Indexing, eviction or compaction of `directories[0]`. For a compaction `old` holds the old
    /// log and the page behind it.
    Directory = 6,
    /// rename that exchanges two names: as `Rename`; `victim` is the other file.
    Exchange = 7,
}

/// `Intent::step`: nothing visible is done yet.
pub const STEP_BEGUN: u32 = 0;
/// `Intent::step`: the operation has taken effect.
pub const STEP_DONE: u32 = 1;
/// `Intent::step` of a compaction: the head of the log changes, then the old log is retired.
pub const STEP_RETIRING: u32 = 2;

/// The intent of the operation in flight. Only its slot's owner writes it: plain stores, before the
/// steps that it announces.
#[repr(C, align(64))]
pub struct Intent {
    /// [`IntentKind`]; written after the fields that it needs.
    pub kind: AtomicU32,
    /// `STEP_*`.
    pub step: AtomicU32,
    /// Cachelet index of the file that gains or loses a name, or moves.
    pub file: AtomicU32,
    /// Links and flags of `file` before (the high half of its state word).
    pub file_before: AtomicU32,
    /// Cachelet index of the file that is removed, replaced or evicted.
    pub victim: AtomicU32,
    /// Links and flags of `victim` before.
    pub victim_before: AtomicU32,
    /// Cachelet indexes of the directories whose counts change.
    pub directories: [AtomicU32; 2],
    /// Hashes of the names in them.
    pub hashes: [AtomicU64; 2],
    /// Offsets of the dentries that become invalid.
    pub old: [AtomicU64; 2],
}
// SAFETY: repr(C), 64 bytes without padding, atomics only.
unsafe impl Layout for Intent {}
const _: () = assert!(size_of::<Intent>() == 64);

/// In-flight allocations: taken from the allocators and not yet named by anything else. Each is
/// recorded before it is taken.
#[repr(C, align(64))]
pub struct InFlight {
    /// Dentries: offset, and number of lines in the low bits.
    pub dentries: [AtomicU64; 2],
    /// The log slots (offsets) that will name them.
    pub slots: [AtomicU64; 2],
    /// Inode number.
    pub number: AtomicU64,
    /// Cachelet index.
    pub cachelet: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Lines of a dead dentry that is being freed with its directory: block, and mask.
    pub lines: [AtomicU64; 2],
}
// SAFETY: repr(C), 64 bytes without padding, atomics only.
unsafe impl Layout for InFlight {}
const _: () = assert!(size_of::<InFlight>() == 64);

/// A log page that the owner is about to link: it then belongs to the directory.
#[repr(C)]
pub struct InFlightPage {
    /// Offset of the word that will name it; zero: there is none.
    pub link: AtomicU64,
    /// Offset of the page.
    pub page: AtomicU64,
    /// Inode number of the directory.
    pub owner: AtomicU64,
}
// SAFETY: repr(C), three atomics of 8 bytes.
unsafe impl Layout for InFlightPage {}

/// A word of the DRAM region that changes together with others.
#[repr(C)]
pub struct Redo {
    /// Offset of the word in the region; bit 0: it has 4 bytes, not 8.
    pub target: AtomicU64,
    /// The new value.
    pub value: AtomicU64,
}
// SAFETY: repr(C), two atomics of 8 bytes.
unsafe impl Layout for Redo {}

/// Locks that a slot may hold at a time.
pub const HELD_MAX: usize = 8;
/// Directories that one rename may move to other parents.
pub const MOVES_MAX: usize = 2;
/// Words that may change together.
pub const REDO_MAX: usize = 12;
/// Retired things that are recycled together, under one fence.
pub const RECYCLE_BATCH: usize = 64;
/// References that a slot may record.
pub const REFERENCES_MAX: usize = 16;

/// The kind of a retired thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum RetiredKind {
    /// An inode without names and references: `a` is its number, `b` its cachelet index.
    Inode = 1,
    /// Blocks, marked as this slot's: `a` is the first, `b` the count.
    Blocks = 2,
    /// A cachelet whose inode stays: `a` is its index.
    Cachelet = 3,
    /// A dentry that nothing on the image names any more: `a` is its offset, `b` its lines.
    Dentry = 4,
    /// A whole body, data and map nodes, marked as this slot's: `a` is its root word.
    Body = 5,
    /// The part of a directory's log that a compaction replaced, its pages marked as this slot's:
    /// `a` is the first page, `b` the page behind the last. Slots for which
    /// [`crate::format::is_gone`] holds name dentries that are freed with it.
    Log = 6,
    /// Inode numbers whose part of the map a stopped thread holds: `a` is a word of the map, `b`
    /// its bits.
    Numbers = 7,
    /// Lines of a slab whose lock a stopped thread holds: `a` is the block, `b` the lines.
    Lines = 8,
}

/// One retired thing.
#[repr(C)]
pub struct Retired {
    /// [`RetiredKind`] (low 8 bits) and the epoch of reclamation at retirement (above).
    pub kind: AtomicU64,
    /// Depends on the kind.
    pub a: AtomicU64,
    /// Depends on the kind.
    pub b: AtomicU64,
}
// SAFETY: repr(C), three atomics of 8 bytes.
unsafe impl Layout for Retired {}

/// A thread's slot.
#[repr(C, align(4096))]
pub struct ThreadSlot {
    /// [`Owner`] as a word; zero: free. Claimed by CAS.
    pub owner: AtomicU64,
    /// Zero.
    pub reserved0: AtomicU64,
    /// The epoch of reclamation in which the owner entered; zero while it is outside.
    pub pinned: AtomicU64,
    /// Nesting of pins.
    pub pins: AtomicU32,
    /// Words of `redo` that remain to be stored; zero: none.
    pub redo_count: AtomicU32,
    /// Records at the head of `retired` that are being recycled.
    pub recycling: AtomicU64,
    /// Bits of those inodes, one for each that is free already.
    pub recycled: AtomicU64,
    /// Bits of those inodes, one for each inode whose blocks are all marked as its own.
    pub recycling_marked: AtomicU64,
    /// Bits of those inodes, one for each inode whose `recycling_bodies` are written.
    pub recycling_recorded: AtomicU64,

    /// Locks that the owner waits for or holds: offsets of their words in the region.
    pub held: [AtomicU64; HELD_MAX],
    /// The operation in flight.
    pub intent: Intent,
    /// The in-flight allocations of the owner.
    pub in_flight: InFlight,
    /// Changes of several words at once: see `redo`.
    pub redo: [Redo; REDO_MAX],

    /// Group of blocks that this shard allocates from, plus one; zero: none.
    pub group: AtomicU64,
    /// The block that was allocated last. The next search begins behind it, which keeps files
    /// contiguous.
    pub block_hint: AtomicU64,
    /// Slab (block) whose lines this shard hands out; zero: none.
    pub slab: AtomicU64,
    /// Free lines of the slab.
    pub slab_lines: AtomicU64,
    /// First of this shard's list of slabs with free lines.
    pub slab_list: AtomicU32,
    /// Cachelets in `cachelet_list`.
    pub cachelets_count: AtomicU32,
    /// First of this shard's list of free cachelets.
    pub cachelet_list: AtomicU32,
    /// Cachelets that this shard took from the bump but has not used: first, and behind the last.
    pub cachelet_next: AtomicU32,
    /// Behind the last; see `cachelet_next`.
    pub cachelet_end: AtomicU32,
    /// Inode numbers in `inodes`: behind the last.
    pub inodes_count: AtomicU32,
    /// Last of this shard's list of slabs; means nothing while the list is empty.
    pub slab_tail: AtomicU32,
    /// Slabs in the list.
    pub slab_count: AtomicU32,
    /// Statistics: names created less names removed by this shard (wraps).
    pub names_delta: AtomicU64,
    /// Completed renames: the sequence number of the next one.
    pub renames: AtomicU64,
    /// First of `inodes` that is not handed out yet.
    pub inodes_next: AtomicU32,
    /// Blocks known to wait in `retired`; zero again when the queue is empty.
    pub retired_blocks: AtomicU32,

    /// Inode numbers ready for use.
    pub inodes: [AtomicU64; MAGAZINE_INODES],
    /// The owner word of a dead owner while a reaper recovers its slot.
    pub recovering: AtomicU64,

    /// Cachelet indexes of references that the owner recorded; a reaper releases them.
    pub references: [AtomicU32; REFERENCES_MAX],

    /// For recycled inodes that have any: first log page and xattr body, which the erased inode
    /// does not name any more. For old logs: the progress, see `recycle`.
    pub recycling_bodies: [[AtomicU64; 2]; RECYCLE_BATCH],

    /// First of `retired`, a counter; the index in the ring is its remainder.
    pub retired_first: AtomicU64,
    /// Behind the last of `retired`, a counter in the same way.
    pub retired_end: AtomicU64,
    /// What waits to be recycled.
    pub retired: [Retired; RETIRED_MAX],
    /// Wholly free groups of blocks that this shard claimed after one that it had filled.
    pub groups_filled: AtomicU64,
    /// Offset of the newest spill page (`crate::spill`), or zero.
    pub spilled: AtomicU64,
    /// Directories that the operation moves to other parents: their inode numbers and those of the
    /// new parents; zero: none.
    pub moves: [[AtomicU64; 2]; MOVES_MAX],
    /// The log page that the operation adds.
    pub in_flight_page: InFlightPage,
    /// What the owners of the slot did.
    pub statistics: CallStatistics,
    /// Zero.
    pub reserved1: [AtomicU64; SLOT_REST],
    /// Changes of directories that others change, too; to the end of the page.
    pub names: NameChanges,

    /// Calls of the owners of the slot, by number.
    pub calls: CallCounts,
}
const SLOT_REST: usize = 235 - size_of::<CallStatistics>() / 8 - size_of::<NameChanges>() / 8;
const _: () = assert!(size_of::<ThreadSlot>() == 8 * 4096);
// SAFETY: repr(C), no padding (the fields sum up to the asserted size), atomics only.
unsafe impl Layout for ThreadSlot {}

impl ThreadSlot {
    /// Whether the owner was inside an operation when this was read.
    pub(crate) fn is_at_work(&self) -> bool {
        let in_flight = &self.in_flight;
        let wide = [&self.pinned, &self.recycling, &self.recovering, &in_flight.number];
        let narrow = [&self.redo_count, &self.intent.kind, &in_flight.cachelet];
        let pairs = [&in_flight.dentries, &in_flight.slots, &in_flight.lines];
        wide.into_iter().chain(pairs.into_iter().flatten()).chain(&self.held).any(|word| word.load(Acquire) != 0)
            || narrow.into_iter().any(|word| word.load(Acquire) != 0)
    }
}
