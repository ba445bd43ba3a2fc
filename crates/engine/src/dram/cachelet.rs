//! Cachelets (paper III.B): the fields of a file that most calls read, in two cache lines.
//!
//! Invariants
//! - A cachelet stands for one inode in one generation from the store of `number` to its recycling;
//!   the inode's nv pointer leads to it.
//! - `references` counts users (open files, walks, lookups of a kernel). It shares one word with
//!   links and flags, so that the release of the last reference sees all three.
//! - Attributes change under `lock`, between two increments of `version`; a reader that sees an odd
//!   or changed version reads again. A directory's times are the exception: they only grow, by
//!   fetch_max.

use crate::sync::{AtomicI64, AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use pmem::Layout;

/// Flag of the state word: the cachelet describes a file (paper III.E). A create sets it before its
/// fence: until then no lookup finds the name.
pub const FLAG_READABLE: u8 = 1;
/// Flag of the state word: a deletion has begun and will succeed; no other thread deletes it.
pub const FLAG_DELETED: u8 = 2;
/// Flag of the state word: a rename is changing its names; lookups wait.
pub const FLAG_RENAMING: u8 = 4;
/// Flag of the state word: no links, no references; the inode is being recycled and cannot be
/// referenced again.
pub const FLAG_DEAD: u8 = 8;

/// Flag of the state word: made without a name (O_TMPFILE). It may get its first name, unlike a
/// file that lost its last.
pub const FLAG_UNNAMED: u8 = 16;

/// Flag of the state word, with [`FLAG_DEAD`]: only the cachelet was freed, the file still exists.
pub const FLAG_EVICTED: u8 = 32;

/// Flag of the state word: the tables of the layer above hold the file (open files, working
/// directories, mappings), which counts as one reference however many entries there are. A mark,
/// not a count: a reaper of a dead process may set or clear it once more.
pub const FLAG_HELD: u8 = 64;

/// Bit of [`Cachelet::mapped`] of a file: programs have it mapped.
pub const MAPPED: u32 = 1;

/// Bit of [`Cachelet::mapped`] of a file: blocks behind its end stay in place for the sake of
/// mappings, and are freed with the last of them.
pub const MAPPED_KEPT: u32 = 2;

/// Bit of [`Cachelet::mapped`] of a file: its modification time was set since it was mapped, so
/// that earlier stores do not count.
pub const MAPPED_TIMES_SET: u32 = 4;

/// Bit of [`Cachelet::mapped`] of a file: a program may have stored into it through a mapping.
pub const MAPPED_STORES: u32 = 8;

/// Links of a directory without subdirectories.
pub const DIRECTORY_LINKS: u32 = 2;

/// In [`Cachelet::entries`] of a directory: the names are below this bit.
const HOLES_SHIFT: u32 = 34;
/// One hole.
const ONE_HOLE: u64 = 1 << HOLES_SHIFT;
/// Counting of holes stops here, so that they never reach the bit above them.
const HOLES_MAX: u64 = 1 << 28;
/// Bit of [`Cachelet::entries`]: the directory is removed; nothing can be made in it.
const ENTRIES_DEAD: u64 = 1 << 63;

/// Bit of [`Cachelet::dirty`]: links, or a directory's times, are newer than the inode's property
/// entry.
pub const DIRTY: u32 = 1;

/// Bit of [`Cachelet::dirty`]: on the image the inode has neither log nor extended attributes,
/// access time or inline body. Unset: not known.
pub const PLAIN: u32 = 2;

/// How far a directory's names are in the mindex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DirectoryState {
    /// Not at all; the next access indexes it.
    Absent = 0,
    /// Being indexed.
    Indexing = 1,
    /// All of them: the mindex answers "no such name" with authority.
    Indexed = 2,
    /// Being evicted; wait, then index again.
    Evicting = 3,
    /// Needs recount: a thread died while it changed the directory. Operations in progress
    /// continue; later ones index it anew, since its counts are unreliable.
    NeedsRecount = 4,
}

/// References, links and flags in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct References {
    /// Users.
    pub references: u32,
    /// Names (24 bits).
    pub links: u32,
    /// `FLAG_*`.
    pub flags: u8,
}

impl References {
    /// The word.
    #[inline]
    pub fn word(self) -> u64 {
        self.references as u64 | (self.links as u64 & 0xff_ffff) << 32 | (self.flags as u64) << 56
    }

    /// Decodes a word.
    #[inline]
    pub fn from_word(word: u64) -> References {
        References { references: word as u32, links: (word >> 32) as u32 & 0xff_ffff, flags: (word >> 56) as u8 }
    }

    /// Whether the file is referenced by anything except its names.
    #[inline]
    pub fn is_used(self) -> bool {
        self.references != 0 || self.flags & FLAG_HELD != 0
    }

    /// What one more reference adds to the word.
    pub const ONE_REFERENCE: u64 = 1;
    /// The references field of a dead cachelet: the slot that reclaims it. Late lookups add and
    /// subtract one in the low bits.
    #[inline]
    pub const fn reclaimed_by(ticket: u32) -> u32 {
        ticket << 16
    }

    /// The slot that reclaims a dead cachelet.
    #[inline]
    pub const fn reclaimer(self) -> u32 {
        self.references >> 16
    }

    /// A flag's bit in the word.
    #[inline]
    pub const fn flag(flag: u8) -> u64 {
        (flag as u64) << 56
    }
}

/// A cachelet: 128 bytes. The first line holds what is read of a directory to use a name in it or
/// to pass through it; the second line holds what changes with each name.
#[repr(C, align(128))]
pub struct Cachelet {
    /// Odd while attributes change.
    pub version: AtomicU32,
    /// Type and permissions, as `st_mode`.
    pub mode: AtomicU32,
    /// Owner.
    pub uid: AtomicU32,
    /// Group.
    pub gid: AtomicU32,
    /// Files: length in bytes. Directories: the number of renames of it that began; see
    /// [`Cachelet::rename_count`].
    pub size_bytes: AtomicU64,
    /// Inode number; zero: free.
    pub number: AtomicU64,
    /// [`References`].
    pub references: AtomicU64,
    /// Time of the last change of attributes. Of a directory: odd if that was no change of its
    /// names; see `Thread::directory_timestamp`.
    pub changed_ns: AtomicI64,
    /// Generation of the inode.
    pub generation: AtomicU32,
    /// Property flags, as on the image.
    pub flags: AtomicU32,
    /// Directories: [`DirectoryState`] (low 8 bits), and the version of its log above.
    pub directory: AtomicU32,
    /// Files: [`MAPPED`] (then writes go in place), [`MAPPED_KEPT`],
    /// [`MAPPED_TIMES_SET`], [`MAPPED_STORES`].
    /// Directories: bit 1, used since the eviction hand passed; bit 2, its log seems worth a
    /// compaction; from bit 8 on, slot + 1 of the thread that compacts or evicts it; see
    /// [`Cachelet::maintain`].
    pub mapped: AtomicU32,

    /// Slot + 1 of the thread that may change the file; a futex.
    pub lock: AtomicU32,
    /// Waiters on `lock`.
    pub waiters: AtomicU32,
    /// Files: root of the block map, as in the property entry. Directories: the tail of the log:
    /// page offset / 4096 (high 54 bits), next slot (low 10 bits); zero: unknown or no page yet.
    pub root: AtomicU64,
    /// Files: blocks of the body. Directories: the number of names, above it the log slots that
    /// became holes since the last compaction, and whether it is removed; see
    /// [`Cachelet::log_counts`].
    pub entries: AtomicU64,
    /// Time of the last change of content.
    pub modified_ns: AtomicI64,
    /// Offset of the inode on the image: the inode quick path.
    pub inode: AtomicU64,
    /// Time of the last access.
    pub accessed_ns: AtomicI64,
    /// Sequence of the newest property entry.
    pub sequence: AtomicU32,
    /// [`DIRTY`], [`PLAIN`].
    pub dirty: AtomicU32,
    /// Device number; zero if it is not a device. Directories: the number of subdirectories; see
    /// [`Cachelet::links`].
    pub device: AtomicU32,
    /// Next in the free list that this cachelet is on.
    pub next: AtomicU32,
}
/// Bit of a directory's `mapped` word: used since the eviction hand passed.
const USED: u32 = 2;
/// Bit of a directory's `mapped` word: its log seems worth a compaction.
const HOLEY: u32 = 4;
/// Shift of the maintaining slot in a directory's `mapped` word.
const MAINTAINER_SHIFT: u32 = 8;

/// Totals of a directory's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogCounts {
    /// Names, including those that are being made.
    pub names: u64,
    /// Holes since the last compaction.
    pub holes: u64,
}

impl LogCounts {
    fn from_word(entries: u64) -> LogCounts {
        LogCounts { names: entries & (ONE_HOLE - 1), holes: (entries & !ENTRIES_DEAD) >> HOLES_SHIFT }
    }
}

impl Cachelet {
    /// The number of links, as in stat and the property entry. The state word of a directory has
    /// two, its name and its `.`, until it is removed; its subdirectories are counted beside its
    /// names. So a new subdirectory changes one line of its parent, which no lookup reads.
    #[inline]
    pub fn links(&self, is_directory: bool) -> u32 {
        let links = References::from_word(self.references.load(Acquire)).links;
        // A death can leave a count of subdirectories below zero until the recount. There is no
        // branch, for which the compiler would duplicate the code of every stat.
        links.wrapping_add(self.device.load(Acquire).wrapping_mul(u32::from(is_directory & (links != 0))))
    }

    /// Directories: records that it was used.
    #[inline]
    pub fn mark_used(&self) {
        if self.mapped.load(Relaxed) & USED == 0 {
            self.mapped.fetch_or(USED, Relaxed);
        }
    }

    /// Directories: clears the record of use and returns whether it was set.
    pub fn clear_used(&self) -> bool {
        self.mapped.fetch_and(!USED, AcqRel) & USED != 0
    }

    /// Directories: records that its log seems worth a compaction. The mark is in this line because
    /// the calls that may compact read it anyway and need not load the counts again.
    pub fn mark_holey(&self) {
        if !self.is_holey() {
            self.mapped.fetch_or(HOLEY, Relaxed);
        }
    }

    /// Directories: whether its log seems worth a compaction.
    #[inline]
    pub fn is_holey(&self) -> bool {
        self.mapped.load(Relaxed) & HOLEY != 0
    }

    /// Directories: counts a rename of it, which is marked and has not taken effect.
    pub fn count_rename(&self) {
        self.size_bytes.fetch_add(1, AcqRel);
    }

    /// Directories: a number that each rename changes. Meaningful only together with the version,
    /// which differs in every other life of this cachelet.
    #[inline]
    pub fn rename_count(&self) -> u64 {
        self.size_bytes.load(Acquire)
    }

    /// Directories: begins to compact or evict it, unless another slot does. If its log stays as it
    /// is, the next removal sets the compaction mark again.
    pub fn maintain(&self, ticket: u32) -> bool {
        let begin = |word: u32| (word >> MAINTAINER_SHIFT == 0).then_some(word & !HOLEY | ticket << MAINTAINER_SHIFT);
        self.mapped.fetch_update(AcqRel, Relaxed, begin).is_ok()
    }

    /// Directories: whether any thread compacts or evicts it.
    #[inline]
    pub fn is_maintained(&self) -> bool {
        self.mapped.load(SeqCst) >> MAINTAINER_SHIFT != 0
    }

    /// Directories: whether a slot compacts or evicts it.
    pub fn is_maintained_by(&self, ticket: u32) -> bool {
        self.mapped.load(Relaxed) >> MAINTAINER_SHIFT == ticket
    }

    /// Directories: ends compacting or evicting it, if this slot began it.
    pub fn end_maintaining(&self, ticket: u32) {
        let end = |word: u32| (word >> MAINTAINER_SHIFT == ticket).then_some(word & ((1 << MAINTAINER_SHIFT) - 1));
        let _ = self.mapped.fetch_update(AcqRel, Relaxed, end);
    }

    /// Directories: totals of its log.
    #[inline]
    pub fn log_counts(&self) -> LogCounts {
        LogCounts::from_word(self.entries.load(Acquire))
    }

    /// Directories: whether it is removed.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.entries.load(Acquire) & ENTRIES_DEAD != 0
    }

    /// Directories: sets the totals of its log. The removed bit is kept.
    pub fn set_names(&self, names: u64, holes: u64) {
        let dead = self.entries.load(Relaxed) & ENTRIES_DEAD;
        self.entries.store(names | (holes.min(HOLES_MAX) << HOLES_SHIFT) | dead, Release);
    }

    /// Directories: counts one more name; false if the directory is removed.
    #[inline]
    pub fn add_name(&self) -> bool {
        let alive = self.entries.fetch_add(1, AcqRel) & ENTRIES_DEAD == 0;
        if !alive {
            self.uncount_name();
        }
        alive
    }

    /// Directories: uncounts a name that has no slot in the log.
    #[inline]
    pub fn uncount_name(&self) {
        self.entries.fetch_sub(1, AcqRel);
    }

    /// Directories: turns a counted name into a hole and returns the new totals. One atomic step
    /// for both counts: they share a word so that concurrent updates cannot start or repeat a
    /// compaction by missing each other.
    #[inline]
    pub fn turn_name_into_hole(&self) -> LogCounts {
        // Without a load before it, which would transfer the line between processors twice.
        let change = ONE_HOLE - 1;
        let counts = LogCounts::from_word(self.entries.fetch_add(change, AcqRel).wrapping_add(change));
        self.limit_holes(counts);
        counts
    }

    /// Directories: a name of it is about to get another slot of its log; returns the new totals,
    /// or none if the directory is removed. One of the two slots will be a hole, even if the rename
    /// fails, and the number of names stays the same, so all is counted at once.
    #[inline]
    pub fn move_name(&self) -> Option<LogCounts> {
        let before = self.entries.fetch_add(ONE_HOLE, AcqRel);
        if before & ENTRIES_DEAD != 0 {
            self.entries.fetch_sub(ONE_HOLE, AcqRel);
            return None;
        }
        let counts = LogCounts::from_word(before + ONE_HOLE);
        self.limit_holes(counts);
        Some(counts)
    }

    #[inline]
    fn limit_holes(&self, counts: LogCounts) {
        if counts.holes > HOLES_MAX {
            self.entries.fetch_sub(ONE_HOLE, AcqRel);
        }
    }

    /// Directories: subtracts the holes that a compaction found.
    pub fn uncount_holes(&self, found: u64) {
        let fewer = |word: u64| {
            let holes = (word & !ENTRIES_DEAD) >> HOLES_SHIFT;
            Some(word - (holes.min(found) << HOLES_SHIFT))
        };
        let _ = self.entries.fetch_update(AcqRel, Relaxed, fewer);
    }

    /// Directories: forbids new names, if it has no names and is not removed already. Returns
    /// whether it did.
    pub fn forbid_names(&self) -> bool {
        let empty = |word: u64| (word & ((ONE_HOLE - 1) | ENTRIES_DEAD) == 0).then_some(word | ENTRIES_DEAD);
        self.entries.fetch_update(AcqRel, Acquire, empty).is_ok()
    }

    /// Directories: undoes [`Cachelet::forbid_names`].
    pub fn allow_names(&self) {
        self.entries.fetch_and(!ENTRIES_DEAD, AcqRel);
    }
}
const _: () = assert!(size_of::<Cachelet>() == 128);
const _: () = assert!(core::mem::offset_of!(Cachelet, lock) == 64);
// SAFETY: repr(C), no padding (the fields sum up to 128 bytes, each aligned to its size), atomics
// only; AtomicI64 is 8 bytes of which any pattern is a value.
unsafe impl Layout for Cachelet {}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> std::boxed::Box<Cachelet> {
        // SAFETY: atomics only, of which zero is a value.
        std::boxed::Box::new(unsafe { core::mem::zeroed() })
    }

    fn log(names: u64, holes: u64) -> LogCounts {
        LogCounts { names, holes }
    }

    #[test]
    fn names_and_holes_of_many_threads_are_all_counted() {
        let directory = empty();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        assert!(directory.add_name());
                        assert!(directory.add_name());
                        directory.turn_name_into_hole();
                    }
                });
            }
        });
        assert_eq!(directory.log_counts(), log(40_000, 40_000));
        directory.uncount_holes(30_000);
        assert_eq!(directory.log_counts(), log(40_000, 10_000));
        directory.uncount_holes(20_000);
        assert_eq!(directory.log_counts(), log(40_000, 0), "no fewer than none");
    }

    #[test]
    fn a_directory_is_removed_only_without_names_whatever_its_holes() {
        let directory = empty();
        assert!(directory.add_name());
        assert!(!directory.forbid_names());
        directory.turn_name_into_hole();
        assert!(directory.forbid_names() && !directory.forbid_names());
        assert!(directory.is_removed() && !directory.add_name());
        assert_eq!(directory.log_counts(), log(0, 1));
        directory.allow_names();
        assert!(directory.add_name());
    }

    #[test]
    fn holes_beyond_all_counting_reach_nothing_else() {
        let directory = empty();
        directory.set_names(3, u64::MAX);
        let holes = directory.log_counts().holes;
        directory.turn_name_into_hole();
        assert_eq!((directory.log_counts(), directory.is_removed()), (log(2, holes), false));
    }
}
