//! Counting the names and holes of directories.
//!
//! A directory that one thread changes has its totals in a word of its cachelet. If several threads
//! change it at once, the line with that word would move between processors in each call. Such a
//! directory is marked as shared: each thread collects its changes in its slot, and passes on many
//! at a time.
//!
//! Invariants
//! - The word never shows fewer names than the directory has, if no slot holds changes. While
//!   changes move from a slot to the word, they are counted twice rather than not at all, where
//!   that adds names. So a thread that closes the directory, collects, and then finds no name has
//!   found it empty.
//! - A thread that changed its slot looks at the mark again. If the mark is gone, it takes the
//!   change back, or another thread has collected it. So a slot keeps changes only of directories
//!   whose mark a later collector removes before it looks at the slot.
//! - A slot names the directory whose changes its owner moves. If the owner dies, the directory
//!   needs a recount, which drops all changes.
//! - A thread moves changes only of directories that it saw indexed since it pinned. So none moves
//!   while a directory is indexed or evicted.
//!
//! A directory becomes shared when more than one change in nine meets another thread's. *Reason:*
//! in the model of 64 processors, calls waited 4.5 µs for the count and 7 µs for the tail of the
//! log, and for little else. Removal is now 50, create 54 and rename 49 times one processor's rate
//! (if a line takes 74 ns to another processor), with 4 before. Two threads need 10 to 13 % less
//! time for a create or unlink, one thread 1.5 to 4 % more. A name may get a lower cookie than
//! existing ones, and up to 15 slots per thread stay empty.
//!
//! *Rejected:* counts per processor (64 lines per directory); no count (rmdir would keep creates
//! out while it reads up to 500 slots); batches of log slots in all directories (two threads gained
//! nothing); letting threads that wait for the epoch recycle at once (7.9 instead of 41.6 times
//! one's removals).

use super::compact::is_worth_it;
use crate::death::may_die_here;
use crate::dram::{Cachelet, CountChange, CountedChange, DirectoryState, PendingChange};
use crate::error::Result;
use crate::fs::{Fs, Thread};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use pmem::Memory;

/// What a change counts that comes after one of another thread. Each other change takes one off.
const MEETING: u32 = 8;
/// Count from which on a directory is shared. (Calls in tests are few.)
const MEETINGS: u32 = if cfg!(test) { MEETING } else { 4 * MEETING };
/// Successive times that a thread passes changes on without those of others in between, after which
/// a directory is not shared any more.
const CALM: u32 = 2;

impl<'f, M: Memory> Thread<'f, M> {
    /// Counts a change of a directory's names. False, and nothing is counted, if the directory is
    /// removed. Pinned since before the directory was seen indexed.
    #[inline(always)]
    pub(super) fn count_names(&self, directory: &Cachelet, change: CountChange) -> bool {
        match directory.as_directory().is_shared() {
            true => self.count_shared(directory, change),
            false => self.count_directly(directory, change),
        }
    }

    #[inline(never)]
    fn count_shared(&self, directory: &Cachelet, change: CountChange) -> bool {
        let index = self.fs.dram.index_of(directory);
        self.count_apart(directory, index, change).unwrap_or_else(|| self.count_directly(directory, change))
    }

    /// Counts a change in the directory, and records whether others had changed it.
    #[inline(always)]
    fn count_directly(&self, directory: &Cachelet, change: CountChange) -> bool {
        let Some(counted) = directory.as_directory().count(change) else { return false };
        let seen = self.slot.names.seen(directory);
        let met = seen.word.load(Relaxed) != counted.before;
        seen.word.store(counted.after, Relaxed);
        let meetings = seen.meetings.load(Relaxed);
        if met {
            self.meet_others(directory);
        } else if meetings != 0 {
            seen.meetings.store(meetings - 1, Relaxed);
        }
        if change.holes > 0 && is_worth_it(counted.totals()) {
            directory.as_directory().mark_holey();
        }
        true
    }

    /// Uncounts a name that leaves no hole.
    pub(super) fn uncount_name(&self, directory: &Cachelet) {
        self.count_names(directory, CountChange::NO_NAME);
    }

    /// Records that the totals are not what this thread left.
    #[cold]
    #[inline(never)]
    fn meet_others(&self, directory: &Cachelet) {
        let index = self.fs.dram.index_of(directory);
        let seen = self.slot.names.seen(directory);
        let before = if seen.directory.load(Relaxed) == index { seen.meetings.load(Relaxed) + MEETING } else { 0 };
        seen.directory.store(index, Relaxed);
        let met = before >= MEETINGS;
        seen.meetings.store(if met { 0 } else { before }, Relaxed);
        if met {
            directory.as_directory().share();
        }
    }

    /// [`Thread::count_names`] in this thread's slot. None: must be counted in the directory.
    #[inline(always)]
    fn count_apart(&self, directory: &Cachelet, index: u32, change: CountChange) -> Option<bool> {
        let place = self.slot.names.place(index);
        let (before, after) = loop {
            let word = place.load(Acquire);
            let pending = PendingChange::from_word(word);
            if pending.directory != index && !pending.is_empty() {
                self.pass_on_other(place, pending.directory)?;
                continue;
            }
            let kept = if pending.directory == index { pending.change } else { CountChange::NONE };
            let after = PendingChange { directory: index, change: kept }.and(change);
            if place.compare_exchange(word, after.word(), SeqCst, Relaxed).is_ok() {
                break (word, after);
            }
        };
        may_die_here();
        if !directory.as_directory().is_shared() {
            return self.take_back(directory, (before, after.word()), change);
        }
        if after.is_full() {
            self.pass_on_batch(directory, index);
        }
        Some(true)
    }

    /// Takes back a change that may have come too late for the thread that collects changes.
    #[cold]
    fn take_back(&self, directory: &Cachelet, (before, after): (u64, u64), change: CountChange) -> Option<bool> {
        let index = self.fs.dram.index_of(directory);
        let place = self.slot.names.place(index);
        if place.compare_exchange(after, before, SeqCst, Relaxed).is_ok() {
            may_die_here();
            self.pass_on(place, directory, index);
            return None;
        }
        // It was collected. A directory that was removed before has no names otherwise.
        let view = directory.as_directory();
        if change.names >= 0 && view.is_removed() {
            view.uncount(change);
            return Some(false);
        }
        Some(true)
    }

    /// Frees a place of this thread's slot from the changes of another directory. None if they must
    /// stay: the directory is about to be counted again, or is being evicted.
    #[cold]
    fn pass_on_other(&self, place: &AtomicU64, index: u32) -> Option<()> {
        let other = self.fs.dram.cachelet(index).ok()?;
        if DirectoryState::of(other) != DirectoryState::Indexed {
            return None;
        }
        self.pass_on(place, other, index);
        Some(())
    }

    /// Passes on the changes that this thread has collected of a directory, if there are any.
    pub(super) fn pass_on_batch(&self, directory: &Cachelet, index: u32) {
        let Some(counted) = self.pass_on(self.slot.names.place(index), directory, index) else { return };
        if is_worth_it(counted.totals()) {
            directory.as_directory().mark_holey();
        }
        let seen = self.slot.names.seen(directory);
        let is_calm = seen.word.load(Relaxed) == counted.before && seen.directory.load(Relaxed) == index;
        let calm = if is_calm { seen.calm.load(Relaxed) + 1 } else { 0 };
        seen.word.store(counted.after, Relaxed);
        seen.directory.store(index, Relaxed);
        seen.calm.store(if calm == CALM { 0 } else { calm }, Relaxed);
        if calm == CALM {
            self.begin_passing(index);
            directory.as_directory().unshare();
            self.collect(directory, index);
            self.end_passing();
        }
    }

    /// Moves the changes of a directory that a slot has collected to the directory's totals.
    fn pass_on(&self, place: &AtomicU64, directory: &Cachelet, index: u32) -> Option<CountedChange> {
        self.begin_passing(index);
        let counted = self.take_changes(place, directory, index);
        self.end_passing();
        counted
    }

    fn begin_passing(&self, index: u32) {
        self.slot.names.passing.store(index, Release);
        may_die_here();
    }

    fn end_passing(&self) {
        may_die_here();
        self.slot.names.passing.store(0, Release);
    }

    /// See [`Thread::pass_on`]. The slot records the directory.
    fn take_changes(&self, place: &AtomicU64, directory: &Cachelet, index: u32) -> Option<CountedChange> {
        let view = directory.as_directory();
        loop {
            let word = place.load(SeqCst);
            let PendingChange { directory: owner, change } = PendingChange::from_word(word);
            if owner != index || PendingChange::from_word(word).is_empty() {
                return None;
            }
            let take = || place.compare_exchange(word, 0, SeqCst, Relaxed).is_ok();
            // Names are counted before they leave the slot, and removals after.
            if change.names > 0 {
                let counted = view.count_always(change);
                may_die_here();
                if take() {
                    return Some(counted);
                }
                view.uncount(change);
            } else if take() {
                may_die_here();
                return Some(view.count_always(change));
            }
        }
    }

    /// Takes the changes of a directory from all slots.
    fn collect(&self, directory: &Cachelet, index: u32) {
        let high = self.fs.header().map_or(0, |header| header.slots_high.load(SeqCst));
        for slot in 0..high as u32 {
            if let Ok(slot) = self.fs.dram.slot(slot) {
                self.take_changes(slot.names.place(index), directory, index);
            }
        }
    }

    /// Forbids new names in a directory that has none and is not removed already. Returns whether
    /// it did. The caller holds the directory's name, and has seen it indexed since it pinned.
    #[inline]
    pub(super) fn forbid_names(&self, directory: &Cachelet) -> bool {
        match directory.as_directory().forbid_names_unshared() {
            Some(forbidden) => forbidden,
            None => self.forbid_names_collected(directory),
        }
    }

    #[cold]
    fn forbid_names_collected(&self, directory: &Cachelet) -> bool {
        let (view, index) = (directory.as_directory(), self.fs.dram.index_of(directory));
        self.begin_passing(index);
        // No thread keeps changes from here on. Another one may be collecting, so all slots are
        // visited whether the directory is still shared or not.
        view.close();
        may_die_here();
        self.collect(directory, index);
        self.end_passing();
        let forbidden = view.forbid_names();
        if !forbidden {
            view.reopen();
        }
        forbidden
    }

    /// As the reaper of this slot: the totals of a directory whose changes it was moving are not to
    /// be relied on. May be repeated.
    pub(crate) fn recover_changes(&self) -> Result<()> {
        let passing = &self.slot.names.passing;
        if let index @ 1.. = passing.load(Acquire) {
            DirectoryState::mark_needs_recount(self.fs.dram.cachelet(index)?);
        }
        may_die_here();
        passing.store(0, Release);
        Ok(())
    }
}

impl<M: Memory> Fs<M> {
    /// Drops the changes of a directory whose totals will be counted again. No thread changes it.
    pub(crate) fn discard_changes(&self, directory: &Cachelet) -> Result<()> {
        if !directory.as_directory().was_shared() {
            return Ok(());
        }
        let index = self.dram.index_of(directory);
        for slot in 0..self.header()?.slots_high.load(SeqCst) as u32 {
            self.dram.slot(slot)?.names.discard(index);
        }
        may_die_here();
        directory.as_directory().forget_sharing();
        Ok(())
    }
}

#[cfg(test)]
impl<'f, M: Memory> Thread<'f, M> {
    /// Shares a directory, as if threads had met in it.
    pub(crate) fn share(&self, directory: crate::fs::Node) {
        self.cachelet(directory).expect("a cachelet").as_directory().share();
    }

    /// Checks that an indexed directory counts as many names as a listing has. No thread changes
    /// it.
    pub(crate) fn check_totals(&self, directory: crate::fs::Node, listed: u64) {
        let _pin = self.pin();
        let cachelet = self.cachelet(directory).expect("a cachelet");
        if DirectoryState::of(cachelet) == DirectoryState::Indexed {
            self.begin_passing(directory.cachelet);
            self.collect(cachelet, directory.cachelet);
            self.end_passing();
            assert_eq!(cachelet.as_directory().log_counts().names, listed, "names of directory {}", directory.number);
        }
    }
}
