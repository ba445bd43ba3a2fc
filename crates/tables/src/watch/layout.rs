//! The tables of watches in the DRAM region. Zero is the initial state of everything.

use core::sync::atomic::{AtomicU32, AtomicU64};
use engine::dram::UPPER_BYTES;
use pmem::Layout;

/// Inotify and fanotify descriptors with watches, of all processes.
pub const GROUPS_MAX: u32 = 128;
/// Watches of all groups.
pub(super) const WATCHES_MAX: u32 = 1 << 17;
/// Chains of watches.
pub(super) const BUCKETS: usize = 1 << 15;
/// Hints of names.
pub(super) const NAMES: usize = 4096;
/// Cells of a queue: as many events with names of up to 32 bytes as Linux queues by default.
pub(super) const CELLS: usize = 16384;

/// State of a watch: its entry is free.
pub(super) const FREE: u32 = 0;
/// State of a watch: it gets events.
pub(super) const LIVE: u32 = 1;
/// State of a watch: it has ended, and waits to be removed from its chain.
pub(super) const ENDED: u32 = 2;

/// A watch of a group on an inode.
#[repr(C, align(64))]
pub(super) struct Watch {
    pub state: AtomicU32,
    /// Counts the uses of the entry.
    pub generation: AtomicU32,
    /// The inode.
    pub number: AtomicU64,
    /// Key of its group.
    pub key: AtomicU64,
    pub group: AtomicU32,
    /// Wanted events, EXCL_UNLINK and ONESHOT; of a mark of fanotify its mask.
    pub mask: AtomicU32,
    /// Next of the chain, plus one.
    pub next: AtomicU32,
    /// Zero: a watch of inotify. Else a mark of fanotify: see `marks`.
    pub kind: AtomicU32,
    /// For a mark: its ignore mask.
    pub ignored: AtomicU32,
    pub reserved: [AtomicU32; 3],
}

/// The state of a queue, beside its cells.
#[repr(C, align(128))]
pub(super) struct Queue {
    /// The kernel's number of the watch on the file that wakes the group; zero: none yet.
    pub token: AtomicU32,
    /// The user whose limit its watches count against.
    pub uid: AtomicU32,
    /// Watches.
    pub watches: AtomicU32,
    /// Zero: of an inotify descriptor. Else `group_flag::MARKS`, and the flags of fanotify_init.
    pub flags: AtomicU32,
    /// Flags of the descriptors in fanotify's events.
    pub event_flags: AtomicU32,
    pub reserved0: [AtomicU32; 11],
    /// Position of the next event (high 60 bits), and the cells of the last one.
    pub tail: AtomicU64,
    /// Position of the first event that is not read.
    pub head: AtomicU64,
    /// Position before which events were lost, plus one; zero: none since the last report.
    pub overflow: AtomicU64,
    /// Odd: the kernel's descriptor is readable, or is about to be.
    pub armed: AtomicU64,
    /// Inode number of the file that wakes the group; zero: none yet.
    pub wake_file: AtomicU64,
    /// Threads that add events: each may be about to make the kernel's descriptor readable.
    pub writers: AtomicU64,
    /// For a fanotify descriptor: checksums of the kernel's handles of the wake file and of its
    /// directory.
    pub wake_handles: [AtomicU64; 2],
}

/// A part of an event: see `queue`.
#[repr(C, align(64))]
pub(super) struct Cell {
    /// Twice the position, plus one: the event that begins here is complete; plus two: given up.
    pub sequence: AtomicU64,
    pub words: [AtomicU64; 7],
}

/// Where a file was found: see `names`.
#[repr(C, align(64))]
pub(super) struct NameEntry {
    /// Checksum of the rest.
    pub check: AtomicU64,
    /// The file.
    pub number: AtomicU64,
    /// The directory.
    pub directory: AtomicU64,
    /// Length of the name (low half) and version of the table (high half).
    pub length: AtomicU64,
    pub name: [AtomicU64; 32],
    pub reserved: [AtomicU64; 4],
}

/// The tables, at the end of the engine's area for the layers above.
#[repr(C, align(4096))]
pub(super) struct WatchTables {
    /// Slot + 1 of the thread that changes the table.
    pub(super) lock: AtomicU32,
    pub(super) waiters: AtomicU32,
    /// Odd while the chains change.
    pub(super) changes: AtomicU32,
    /// All used entries are below.
    pub(super) end: AtomicU32,
    /// Start of the next search for a free entry.
    pub(super) cursor: AtomicU32,
    /// Watches of inotify in chains.
    pub(super) chained: AtomicU32,
    /// 1: a watch has ended on its own since the last sweep.
    pub(super) has_ended: AtomicU32,
    /// The cookie of the last move.
    pub(super) cookie: AtomicU32,
    /// Counts new watches: earlier hints of names may miss changes that nothing watched.
    pub(super) names_version: AtomicU32,
    /// Marks in chains.
    pub(super) chained_marks: AtomicU32,
    pub(super) reserved0: [AtomicU32; 6],
    /// Keys of the groups; zero: free.
    pub(super) keys: [AtomicU64; GROUPS_MAX as usize],
    pub(super) reserved1: [AtomicU64; 376],
    pub(super) queues: [Queue; GROUPS_MAX as usize],
    /// First of each chain, plus one.
    pub(super) buckets: [AtomicU32; BUCKETS],
    pub(super) watches: [Watch; WATCHES_MAX as usize],
    pub(super) names: [NameEntry; NAMES],
    pub(super) cells: [[Cell; CELLS]; GROUPS_MAX as usize],
}
/// Their offset in that area.
pub(crate) const WATCHES_AT: u64 = UPPER_BYTES - size_of::<WatchTables>() as u64;
const _: () = assert!(size_of::<Watch>() == 64 && size_of::<Queue>() == 128 && size_of::<Cell>() == 64);
const _: () = assert!(size_of::<NameEntry>() == 320);
const _: () = assert!(
    size_of::<WatchTables>()
        == 4096 + GROUPS_MAX as usize * (128 + CELLS * 64) + BUCKETS * 4 + WATCHES_MAX as usize * 64 + NAMES * 320
);
// SAFETY: repr(C), atomics only, without padding: the sizes of the parts add up to the total, as
// asserted; so do those of the fields of each part.
unsafe impl Layout for WatchTables {}
