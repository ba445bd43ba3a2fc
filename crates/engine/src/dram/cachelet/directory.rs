//! The words of a cachelet that mean something else for files, as a directory's.
//!
//! Decision: docs/decisions/names.md, "Directory times change once per tick".

use super::Cachelet;
use crate::dram::CountChange;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// In the word of [`DirectoryView::log_counts`]: the names are below this bit.
const HOLES_SHIFT: u32 = 34;
/// One hole.
const ONE_HOLE: u64 = 1 << HOLES_SHIFT;
/// Counting of holes stops here, so that they never reach the bit above them.
const HOLES_MAX: u64 = 1 << 28;
/// Bit of the same word: the directory is removed; nothing can be made in it.
const ENTRIES_DEAD: u64 = 1 << 63;

/// Bit of the marks: used since the eviction hand passed.
const USED: u32 = 2;
/// Bit of the marks: its log seems worth a compaction.
const HOLEY: u32 = 4;
/// Bit of the marks: several threads change it at once, and collect changes of its totals in their
/// slots.
const SHARED: u32 = 8;
/// Bit of the marks: it was shared since it was indexed, so slots may hold changes of its totals.
const WAS_SHARED: u32 = 16;
/// Bit of the marks: a thread is about to remove it, so it does not become shared.
const CLOSING: u32 = 32;
/// Bit of the marks: its modification time may be older than its change time; see `crate::times`.
const APART: u32 = 64;
/// Shift of the maintaining slot in the marks.
const MAINTAINER_SHIFT: u32 = 8;

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
    /// continue; later ones index it again, since its counts are unreliable.
    NeedsRecount = 4,
}

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
        let names = entries & (ONE_HOLE - 1);
        // While threads hold changes of a shared directory back, removals may outnumber the names.
        // The difference is borrowed from the holes.
        let names = if names < ONE_HOLE / 2 { names } else { 0 };
        LogCounts { names, holes: (entries & !ENTRIES_DEAD) >> HOLES_SHIFT }
    }
}

impl CountChange {
    /// What it adds to the word with the totals.
    #[inline]
    const fn delta(self) -> u64 {
        (self.names as i64 as u64).wrapping_add((self.holes as u64) << HOLES_SHIFT)
    }
}

/// The word with a directory's totals before and after a change.
#[derive(Debug, Clone, Copy)]
pub struct CountedChange {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

impl CountedChange {
    /// The new totals.
    #[inline]
    pub fn totals(self) -> LogCounts {
        LogCounts::from_word(self.after)
    }
}

/// A cachelet of a directory.
#[derive(Clone, Copy)]
pub struct DirectoryView<'c>(pub(super) &'c Cachelet);

impl<'c> DirectoryView<'c> {
    /// Offset in a cachelet of [`DirectoryView::log_tail`].
    pub const LOG_TAIL_OFFSET: usize = core::mem::offset_of!(Cachelet, root_or_tail);
    /// Offset in a cachelet of [`DirectoryView::log_counts`].
    pub const LOG_COUNTS_OFFSET: usize = core::mem::offset_of!(Cachelet, blocks_or_counts);

    /// [`DirectoryState`] (low 8 bits), and the version of its log above.
    #[inline(always)]
    pub fn state(self) -> &'c AtomicU32 {
        &self.0.directory
    }

    /// The tail of the log: page offset / 4096 (high 54 bits), next slot (low 10 bits); zero:
    /// unknown or no page yet.
    #[inline(always)]
    pub fn log_tail(self) -> &'c AtomicU64 {
        &self.0.root_or_tail
    }

    /// The number of subdirectories; see [`Cachelet::links`].
    #[inline(always)]
    pub fn subdirectories(self) -> &'c AtomicU32 {
        &self.0.device_or_count
    }

    /// Sets all words, of a cachelet that no other thread can see, to those of a directory that is
    /// not indexed.
    #[inline(always)]
    pub fn fill(self, subdirectories: u32) {
        self.0.size_or_renames.store(0, Relaxed);
        self.log_tail().store(0, Relaxed);
        self.0.blocks_or_counts.store(0, Relaxed);
        self.subdirectories().store(subdirectories, Relaxed);
        self.0.marks.store(0, Relaxed);
        self.state().store(DirectoryState::Absent as u32, Relaxed);
    }

    /// Records that it was used.
    #[inline]
    pub fn mark_used(self) {
        if self.0.marks.load(Relaxed) & USED == 0 {
            self.0.marks.fetch_or(USED, Relaxed);
        }
    }

    /// Clears the record of use and returns whether it was set.
    pub fn clear_used(self) -> bool {
        self.0.marks.fetch_and(!USED, AcqRel) & USED != 0
    }

    /// Whether its modification time may be older than its change time.
    #[inline(always)]
    pub fn is_apart(self) -> bool {
        self.0.marks.load(Relaxed) & APART != 0
    }

    /// Records that its modification time may be older than its change time.
    pub fn mark_apart(self) {
        self.0.marks.fetch_or(APART, AcqRel);
    }

    /// Records that both times will be those of a change of its names.
    pub fn mark_together(self) {
        self.0.marks.fetch_and(!APART, AcqRel);
    }

    /// Records that its log seems worth a compaction. The mark is in this line because
    /// the calls that may compact read it anyway and need not load the counts again.
    pub fn mark_holey(self) {
        if !self.is_holey() {
            self.0.marks.fetch_or(HOLEY, Relaxed);
        }
    }

    /// Whether its log seems worth a compaction.
    #[inline]
    pub fn is_holey(self) -> bool {
        self.0.marks.load(Relaxed) & HOLEY != 0
    }

    /// Counts a rename of it, which is marked and has not taken effect.
    pub fn count_rename(self) {
        self.0.size_or_renames.fetch_add(1, AcqRel);
    }

    /// A number that each rename changes. Meaningful only together with the version,
    /// which differs in every other life of this cachelet.
    #[inline]
    pub fn rename_count(self) -> u64 {
        self.0.size_or_renames.load(Acquire)
    }

    /// Begins to compact or evict it, unless another slot does. If its log stays as it
    /// is, the next removal sets the compaction mark again.
    pub fn maintain(self, ticket: u32) -> bool {
        let begin = |word: u32| (word >> MAINTAINER_SHIFT == 0).then_some(word & !HOLEY | ticket << MAINTAINER_SHIFT);
        self.0.marks.fetch_update(AcqRel, Relaxed, begin).is_ok()
    }

    /// Whether any thread compacts or evicts it.
    #[inline]
    pub fn is_maintained(self) -> bool {
        self.0.marks.load(SeqCst) >> MAINTAINER_SHIFT != 0
    }

    /// Whether a slot compacts or evicts it.
    pub fn is_maintained_by(self, ticket: u32) -> bool {
        self.0.marks.load(Relaxed) >> MAINTAINER_SHIFT == ticket
    }

    /// Ends compacting or evicting it, if this slot began it.
    pub fn end_maintaining(self, ticket: u32) {
        let end = |word: u32| (word >> MAINTAINER_SHIFT == ticket).then_some(word & ((1 << MAINTAINER_SHIFT) - 1));
        let _ = self.0.marks.fetch_update(AcqRel, Relaxed, end);
    }

    /// Totals of its log.
    #[inline]
    pub fn log_counts(self) -> LogCounts {
        LogCounts::from_word(self.0.blocks_or_counts.load(Acquire))
    }

    /// Whether it is removed.
    #[inline]
    pub fn is_removed(self) -> bool {
        self.0.blocks_or_counts.load(Acquire) & ENTRIES_DEAD != 0
    }

    /// Sets the totals of its log. The removed bit is kept.
    pub fn set_names(self, names: u64, holes: u64) {
        let dead = self.0.blocks_or_counts.load(Relaxed) & ENTRIES_DEAD;
        self.0.blocks_or_counts.store(names | (holes.min(HOLES_MAX) << HOLES_SHIFT) | dead, Release);
    }

    /// Counts a change. None, and nothing is counted, if the directory is removed, which its names
    /// and moves prevent. One atomic step for names and holes: they share a word so that concurrent
    /// updates cannot start or repeat a compaction by missing each other.
    #[inline]
    pub fn count(self, change: CountChange) -> Option<CountedChange> {
        // Without a load before it, which would transfer the line between processors twice.
        let before = self.0.blocks_or_counts.fetch_add(change.delta(), AcqRel);
        if before & ENTRIES_DEAD != 0 && change.names >= 0 {
            self.uncount(change);
            return None;
        }
        let counted = CountedChange { before, after: before.wrapping_add(change.delta()) };
        if change.holes > 0 && counted.totals().holes > HOLES_MAX {
            self.0.blocks_or_counts.fetch_sub((change.holes as u64) << HOLES_SHIFT, AcqRel);
        }
        Some(counted)
    }

    /// Counts a change that slots had collected.
    pub fn count_always(self, change: CountChange) -> CountedChange {
        let before = self.0.blocks_or_counts.fetch_add(change.delta(), SeqCst);
        CountedChange { before, after: before.wrapping_add(change.delta()) }
    }

    /// Takes a counted change back.
    pub fn uncount(self, change: CountChange) {
        self.0.blocks_or_counts.fetch_sub(change.delta(), AcqRel);
    }

    /// Subtracts the holes that a compaction found. One stays for a directory that was shared:
    /// names may borrow from it.
    pub fn uncount_holes(self, found: u64) {
        let kept = u64::from(self.was_shared());
        let fewer = |word: u64| {
            let holes = ((word & !ENTRIES_DEAD) >> HOLES_SHIFT).saturating_sub(kept);
            Some(word - (holes.min(found) << HOLES_SHIFT))
        };
        let _ = self.0.blocks_or_counts.fetch_update(AcqRel, Relaxed, fewer);
    }

    /// Whether threads collect changes of its totals in their slots.
    #[inline]
    pub fn is_shared(self) -> bool {
        self.0.marks.load(SeqCst) & SHARED != 0
    }

    /// Whether it is shared, and no thread compacts or evicts it.
    #[inline]
    pub fn is_shared_and_unmaintained(self) -> bool {
        let marks = self.0.marks.load(SeqCst);
        marks & SHARED != 0 && marks >> MAINTAINER_SHIFT == 0
    }

    /// Whether slots may hold changes of its totals.
    #[inline]
    pub fn was_shared(self) -> bool {
        self.0.marks.load(SeqCst) & WAS_SHARED != 0
    }

    /// Lets threads collect changes of its totals in their slots.
    pub fn share(self) {
        let share = |word: u32| (word & (SHARED | CLOSING) == 0).then_some(word | SHARED | WAS_SHARED);
        if self.0.marks.load(Relaxed) & CLOSING != 0 {
            return;
        }
        // A hole for names to borrow from, before they can.
        if !self.was_shared() {
            self.0.blocks_or_counts.fetch_add(ONE_HOLE, AcqRel);
        }
        let _ = self.0.marks.fetch_update(SeqCst, Relaxed, share);
    }

    /// Ends sharing. Changes that slots hold must be collected.
    pub fn unshare(self) {
        self.0.marks.fetch_and(!SHARED, SeqCst);
    }

    /// Does what [`DirectoryView::unshare`] does, and no thread shares it until
    /// [`DirectoryView::reopen`].
    pub fn close(self) {
        let _ = self.0.marks.fetch_update(SeqCst, Relaxed, |word| Some(word & !SHARED | CLOSING));
    }

    /// Undoes [`DirectoryView::close`].
    pub fn reopen(self) {
        self.0.marks.fetch_and(!CLOSING, AcqRel);
    }

    /// Records that no slot holds changes of its totals, which will be counted again.
    pub fn forget_sharing(self) {
        self.0.marks.fetch_and(!(SHARED | WAS_SHARED | CLOSING), AcqRel);
    }

    /// Forbids new names, if it has no names and is not removed already. Returns whether it did. If
    /// it was shared, it must be closed, and the changes of all slots collected.
    pub fn forbid_names(self) -> bool {
        self.0.blocks_or_counts.fetch_update(SeqCst, Acquire, DirectoryView::forbidden).is_ok()
    }

    /// Like [`DirectoryView::forbid_names`]; none if slots may hold changes.
    #[inline]
    pub fn forbid_names_unshared(self) -> Option<bool> {
        let mut was_shared = false;
        let forbid = |word: u64| {
            // The word is read first: from then on sharing would add a hole to it.
            was_shared = self.was_shared();
            if was_shared { None } else { DirectoryView::forbidden(word) }
        };
        let forbidden = self.0.blocks_or_counts.fetch_update(SeqCst, Acquire, forbid).is_ok();
        (!was_shared).then_some(forbidden)
    }

    /// The word with the totals, with names forbidden, if it shows no names.
    fn forbidden(word: u64) -> Option<u64> {
        (word & ((ONE_HOLE - 1) | ENTRIES_DEAD) == 0).then_some(word | ENTRIES_DEAD)
    }

    /// Undoes [`DirectoryView::forbid_names`].
    pub fn allow_names(self) {
        self.0.blocks_or_counts.fetch_and(!ENTRIES_DEAD, AcqRel);
    }
}

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
        let cachelet = empty();
        let directory = cachelet.as_directory();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        assert!(directory.count(CountChange::NAME).is_some());
                        assert!(directory.count(CountChange::NAME).is_some());
                        assert!(directory.count(CountChange::NAME_TO_HOLE).is_some());
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
        let cachelet = empty();
        let directory = cachelet.as_directory();
        assert!(directory.count(CountChange::NAME).is_some());
        assert!(!directory.forbid_names());
        assert!(directory.count(CountChange::NAME_TO_HOLE).is_some());
        assert!(directory.forbid_names() && !directory.forbid_names());
        assert!(directory.is_removed() && directory.count(CountChange::NAME).is_none());
        assert_eq!(directory.log_counts(), log(0, 1));
        directory.allow_names();
        assert!(directory.count(CountChange::NAME).is_some());
    }

    #[test]
    fn holes_beyond_all_counting_reach_nothing_else() {
        let cachelet = empty();
        let directory = cachelet.as_directory();
        directory.set_names(3, u64::MAX);
        let holes = directory.log_counts().holes;
        directory.count(CountChange::NAME_TO_HOLE);
        assert_eq!((directory.log_counts(), directory.is_removed()), (log(2, holes), false));
    }
}
