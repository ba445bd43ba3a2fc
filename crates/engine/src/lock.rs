//! Locks in the DRAM region: a word with the ticket of the owner's slot, so that a waiter knows the
//! owner.
//!
//! Invariants
//! - The word is zero (free) or the ticket of a slot; only a CAS takes it. The slot names the word
//!   from before the CAS until after the release.
//! - A waiter reaps a dead owner (`crate::reap`), which recovers what the lock protects and
//!   releases it. A reaper waits only for locks that are held for short times by threads that do
//!   not wait. So it may be called with locks held.
//! - A release is a plain store, not a locked instruction, because flushes may be in flight when a
//!   lock is released. In consequence the releaser may read `waiters` before its store is visible,
//!   and a sleeper misses its wake. So a sleep is always bounded ([`SLEEP_MS`]), and the sleeper
//!   checks again.
//!
//! Decision: docs/decisions/recovery.md, "Allocators go around locks that a stopped thread holds".

use crate::death::{dead, may_die_here};
use crate::dram::{Bucket, Cachelet, DramHeader, Group, Owner, SlabState};
use crate::error::{Error, Result};
use crate::fs::{Fs, Thread};
use crate::platform::Platform;
use crate::slot_owner::SlotOwner;
use crate::sync::{AtomicU32, AtomicU64, spin_loop};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use pmem::Memory;

/// Tries before sleeping: about 1 µs, longer than most locks are held.
const SPINS: u32 = 100;
/// The longest sleep: the delay until a missed wake or the death of an owner is noticed.
const SLEEP_MS: u32 = 4;

/// How long a thread waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For one sleep: the thread can go another way at once.
    Brief,
    /// For about a second: the other way is an error.
    Long,
    /// Until it has the lock, or a signal arrives after [`INTERRUPTIBLE_SLEEPS`].
    Interruptible,
    /// Until it has the lock.
    Endless,
}

impl Patience {
    fn sleeps(self) -> u32 {
        match self {
            Patience::Brief => 1,
            Patience::Long => 1000 / SLEEP_MS,
            Patience::Interruptible | Patience::Endless => u32::MAX,
        }
    }
}

/// In `waiters`: a thread sleeps until the lock is free.
const WAITING: u32 = 1;
/// In `waiters`: a thread has found that the owner makes no progress. The release clears it.
const STALLED: u32 = 2;
/// In `waiters` of a bucket: a thread sleeps until a name in it is released.
pub(crate) const NAME_WAITING: u32 = 4;
/// Sleeps after which a signal ends a wait that it may end: about 1 s. Calls on files of other file
/// systems do not fail because of a timer, so ordinary waits go on.
pub(crate) const INTERRUPTIBLE_SLEEPS: u32 = 1000 / SLEEP_MS;
/// Sleeps after which a waiter reports for which thread it waits: about 5 s.
const REPORT_SLEEPS: u32 = 5000 / SLEEP_MS;

impl<M: Memory> Fs<M> {
    /// What the owner of a lock is doing, for messages.
    #[cold]
    fn lock_reason(&self, word: &AtomicU32) -> &'static str {
        self.lock_reason_at(self.dram.region().offset_of(word)).unwrap_or("holds a lock")
    }

    /// The owner of a lock, and what it is doing, given the word of the DRAM region on which a
    /// thread sleeps. `None`: it is not the word of a lock, or no thread owns it now.
    pub fn awaited_lock(&self, offset: u64) -> Option<(Owner, &'static str)> {
        let reason = self.lock_reason_at(offset)?;
        let ticket = self.dram_word(offset).ok()?.load(Relaxed);
        let owner = self.slot_owner(ticket.checked_sub(1)?).ok()??;
        Some((owner, reason))
    }

    /// `None`: it is not the word of a lock.
    fn lock_reason_at(&self, offset: u64) -> Option<&'static str> {
        let layout = &self.dram.layout;
        if (layout.upper..layout.block_bits).contains(&offset) {
            return self.platform.upper_lock_reason(offset - layout.upper);
        }
        if (layout.upper_files..layout.cachelets).contains(&offset) || offset >= layout.slots {
            return None;
        }
        let is_in = |area: u64, count: u64, size: usize| (area..area + count * size as u64).contains(&offset);
        let named = [
            (
                is_in(layout.cachelets, layout.cachelets_max, size_of::<Cachelet>()),
                "is changing this file or directory",
            ),
            (is_in(layout.buckets, layout.buckets_max, size_of::<Bucket>()), "is making or removing this name"),
            (is_in(layout.overflow, layout.overflow_max, size_of::<Bucket>()), "is making or removing this name"),
            (is_in(layout.groups, layout.groups_max, size_of::<Group>()), "is allocating blocks"),
            (is_in(layout.slabs, self.blocks(), size_of::<SlabState>()), "is allocating directory entries"),
            (offset == core::mem::offset_of!(DramHeader, directory_move_lock) as u64, "is moving a directory"),
            (offset == core::mem::offset_of!(DramHeader, evict_lock) as u64, "is evicting directories from memory"),
            (
                offset == core::mem::offset_of!(DramHeader, commit_lock) as u64,
                "is writing a commit to the disk, or making the image larger",
            ),
        ];
        named.into_iter().find_map(|(is, reason)| is.then_some(reason)).or(Some("is allocating inodes"))
    }
}

/// A held lock. Dropping it releases it with a plain store, and wakes only if a thread sleeps.
pub struct LockGuard<'f> {
    word: &'f AtomicU32,
    waiters: &'f AtomicU32,
    /// The entry of the slot that names the lock.
    record: &'f AtomicU64,
    platform: &'static dyn Platform,
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if dead() {
            return;
        }
        may_die_here();
        self.word.store(0, Release);
        may_die_here();
        self.record.store(0, Release);
        if self.waiters.load(Relaxed) & (WAITING | STALLED) != 0 {
            self.waiters.fetch_and(!(WAITING | STALLED), Relaxed);
            self.platform.wake(self.word);
        }
    }
}

/// The state of a wait for a held name.
#[derive(Default)]
pub(crate) struct NameWait {
    sleeps: u32,
    interrupted: bool,
}

/// The right to commit the image to its disk, or to make it larger, until it is dropped. A commit
/// that dies leaves nothing to repair in the two regions; a growth, see `attach::growth`.
pub struct CommitGuard<'f> {
    _held: LockGuard<'f>,
}

impl<'f, M: Memory> SlotOwner<'f, M> {
    /// Takes a lock, which lies in the DRAM region: spins briefly, then sleeps.
    #[inline]
    pub fn lock(&self, word: &'f AtomicU32, waiters: &'f AtomicU32) -> Result<LockGuard<'f>> {
        loop {
            if let Some(held) = self.lock_with(Patience::Endless, word, waiters)? {
                return Ok(held);
            }
        }
    }

    /// Takes the lock of a file or directory, before anything has changed for the call. After about
    /// 1 s a signal ends the wait with `Interrupted`.
    #[inline]
    pub(crate) fn lock_file(&self, cachelet: &'f Cachelet) -> Result<LockGuard<'f>> {
        loop {
            if let Some(held) = self.lock_with(Patience::Interruptible, &cachelet.lock, &cachelet.waiters)? {
                return Ok(held);
            }
        }
    }

    /// [`SlotOwner::lock`] for a caller that can go another way. `None`: the owner keeps the lock
    /// for longer than a thread does that is not stopped.
    #[inline]
    pub(crate) fn lock_with(
        &self,
        patience: Patience,
        word: &'f AtomicU32,
        waiters: &'f AtomicU32,
    ) -> Result<Option<LockGuard<'f>>> {
        for _ in 0..SPINS {
            if let Some(held) = self.try_lock(word, waiters) {
                return Ok(Some(held));
            }
            spin_loop();
        }
        self.lock_slowly(word, waiters, patience)
    }

    /// [`Thread::lock_with`], with little patience.
    #[inline]
    pub(crate) fn lock_briefly(&self, word: &'f AtomicU32, waiters: &'f AtomicU32) -> Result<Option<LockGuard<'f>>> {
        self.lock_with(Patience::Brief, word, waiters)
    }

    /// A record of this slot that names no lock and no held name.
    #[inline]
    pub(crate) fn free_record(&self) -> Option<&'f AtomicU64> {
        let record = self.slot.held.iter().find(|record| record.load(Relaxed) == 0);
        debug_assert!(record.is_some(), "more locks than a slot can name");
        record
    }

    /// Takes a lock if it is free.
    pub(crate) fn try_lock(&self, word: &'f AtomicU32, waiters: &'f AtomicU32) -> Option<LockGuard<'f>> {
        if word.load(Relaxed) != 0 {
            return None;
        }
        let record = self.free_record()?;
        record.store(self.fs.dram.region().offset_of(word), Relaxed);
        may_die_here();
        if word.compare_exchange(0, self.ticket(), AcqRel, Relaxed).is_err() {
            record.store(0, Release);
            return None;
        }
        may_die_here();
        Some(LockGuard { word, waiters, record, platform: self.fs.platform })
    }

    #[cold]
    fn lock_slowly(
        &self,
        word: &'f AtomicU32,
        waiters: &'f AtomicU32,
        patience: Patience,
    ) -> Result<Option<LockGuard<'f>>> {
        let (mut sleeps, mut interrupted) = (0u32, false);
        loop {
            let owner = word.load(Relaxed);
            debug_assert!(owner != self.ticket(), "taken twice by one thread");
            if owner != 0 {
                let stalled = waiters.load(Relaxed) & STALLED != 0;
                if !stalled {
                    waiters.fetch_or(WAITING, Release);
                }
                // One thread waits for a stopped owner, not each.
                if !(patience == Patience::Brief && stalled) {
                    interrupted |= self.fs.platform.wait_interruptibly(word, owner, SLEEP_MS);
                }
                if word.load(Relaxed) == owner && !self.fs.reap_if_dead(owner - 1)? {
                    sleeps = sleeps.saturating_add(1);
                    if sleeps >= patience.sleeps() {
                        waiters.fetch_or(STALLED, Release);
                        return Ok(None);
                    }
                    if interrupted && patience == Patience::Interruptible && sleeps >= INTERRUPTIBLE_SLEEPS {
                        return Err(Error::Interrupted);
                    }
                    if sleeps == REPORT_SLEEPS {
                        let reason = self.fs.lock_reason(word);
                        self.fs.platform.report_wait(self.fs.slot_owner(owner - 1)?, reason);
                    }
                }
            }
            if let Some(held) = self.try_lock(word, waiters) {
                // Others may still sleep, and the releaser cleared the mark when it woke this
                // thread.
                waiters.fetch_or(WAITING, Relaxed);
                return Ok(Some(held));
            }
        }
    }

    /// One wait until the value of an entry changes: the low half is the ticket of the name's
    /// holder. Spins briefly, then sleeps. After about 1 s a signal ends the wait with
    /// `Interrupted`.
    #[cold]
    pub(crate) fn wait_for_name(
        &self,
        wait: &mut NameWait,
        waiters: &AtomicU32,
        entry: &AtomicU64,
        value: u64,
    ) -> Result<()> {
        for _ in 0..SPINS {
            if entry.load(Relaxed) != value {
                return Ok(());
            }
            spin_loop();
        }
        let holder = value as u32;
        let word = self.fs.dram_word(self.fs.dram.region().offset_of(entry))?;
        waiters.fetch_or(NAME_WAITING, Release);
        if entry.load(Relaxed) == value {
            wait.interrupted |= self.fs.platform.wait_interruptibly(word, holder, SLEEP_MS);
        }
        if entry.load(Relaxed) != value || self.fs.reap_if_dead(holder.wrapping_sub(1))? {
            return Ok(());
        }
        wait.sleeps = wait.sleeps.saturating_add(1);
        if wait.interrupted && wait.sleeps >= INTERRUPTIBLE_SLEEPS {
            return Err(Error::Interrupted);
        }
        if wait.sleeps == REPORT_SLEEPS {
            self.fs.platform.report_wait(self.fs.slot_owner(holder.wrapping_sub(1))?, self.fs.lock_reason(word));
        }
        Ok(())
    }

    /// For the reaper of this slot: whether its owner held this lock.
    pub(crate) fn holds(&self, word: &AtomicU32) -> bool {
        let offset = self.fs.dram.region().offset_of(word);
        word.load(Relaxed) == self.ticket() && self.slot.held.iter().any(|record| record.load(Relaxed) == offset)
    }

    /// For the reaper of this slot: releases the lock that `record` names, if its owner held it.
    pub(crate) fn release_one(&self, record: &AtomicU64) {
        let offset = record.load(Relaxed);
        if offset == 0 {
            return;
        }
        if let Ok(word) = self.fs.dram_word(offset)
            && word.compare_exchange(self.ticket(), 0, AcqRel, Relaxed).is_ok()
        {
            self.fs.platform.wake(word);
        }
        may_die_here();
        record.store(0, Release);
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Waits until no other thread, of any process, commits the image to its disk or makes it
    /// larger. A growth whose thread has died is completed or forgotten.
    pub fn lock_commits(&self) -> Result<CommitGuard<'f>> {
        let header = self.fs.header()?;
        let guard = CommitGuard { _held: self.lock(&header.commit_lock, &header.commit_waiters)? };
        self.allocator().settle_growth()?;
        Ok(guard)
    }

    /// For the reaper of this slot: releases all locks and names that its owner held. What they
    /// protect is consistent.
    pub(crate) fn release_all(&self) {
        for record in &self.slot.held {
            if !self.reaper().release_name(record) {
                self.release_one(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::dram::RetiredKind;
    use crate::sync::{AtomicU32, AtomicU64};
    use crate::testing::{Attached, TestPlatform, new_image};
    use core::sync::atomic::Ordering::Relaxed;
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    #[test]
    fn of_many_threads_one_is_inside_at_a_time() {
        let image = new_image(4 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let header = fs.header().expect("a header");
        let (word, waiters) = (&header.evict_lock, &header.rare_waiters);
        let (inside, sum) = (AtomicU32::new(0), AtomicU64::new(0));
        let all = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let thread = fs.enter().expect("enters");
                    all.wait();
                    for round in 0..2000 {
                        let _held = thread.lock(word, waiters).expect("takes the lock");
                        assert_eq!(inside.fetch_add(1, Relaxed), 0, "alone");
                        // Load and store are not one atomic step: an update is lost if two threads
                        // are inside.
                        sum.store(sum.load(Relaxed) + 1, Relaxed);
                        if round % 200 == 0 {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        inside.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum.load(Relaxed), 8000);
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_try_that_fails_leaves_the_lock_with_its_owner() {
        let image = new_image(4 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let (first, second) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        let header = fs.header().expect("a header");
        let (word, waiters) = (&header.evict_lock, &header.rare_waiters);
        let held = first.try_lock(word, waiters).expect("nobody has it");
        assert!(second.try_lock(word, waiters).is_none());
        assert_eq!(word.load(Relaxed), first.ticket());
        drop(held);
        assert!(second.try_lock(word, waiters).is_some());
    }

    #[test]
    fn the_lock_and_the_pin_of_a_dead_thread_block_no_other_thread() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        let header = fs.header().expect("a header");
        let (word, waiters) = (&header.evict_lock, &header.rare_waiters);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                let held = thread.lock(word, waiters).expect("takes the lock");
                core::mem::forget(thread.pin());
                core::mem::forget(held);
                core::mem::forget(thread);
                MORTAL.kill();
            });
        });
        let thread = fs.enter().expect("enters");
        assert!(thread.lock(word, waiters).is_ok());
        thread.recycler().retire(RetiredKind::Blocks, thread.allocator().allocate_blocks(1).expect("a block").first, 1);
        assert_eq!(thread.recycler().drain(), Ok(1), "the dead one is not waited for");
        drop(thread);
        fs.detach().expect("detaches");
        let fs = Attached::new(&image).expect("attaches");
        assert!(!fs.report.scanned, "all that the dead one held is in order");
    }

    #[test]
    fn long_waits_are_reported_once_with_the_owner_and_what_it_does() {
        static WATCHED: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &WATCHED, &Default::default(), 1).expect("attaches");
        let stopped = fs.enter().expect("enters");
        let reports = || WATCHED.reports.lock().expect("no panic").clone();
        // A report that never comes is missing at the end.
        let wait_for_reports = |count: usize| {
            let end = Instant::now() + Duration::from_secs(600);
            while reports().len() < count && Instant::now() < end {
                std::thread::yield_now();
            }
        };
        let header = fs.header().expect("a header");
        let held = stopped.try_lock(&header.directory_move_lock, &header.rare_waiters).expect("no thread has it");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                drop(thread.lock(&header.directory_move_lock, &header.rare_waiters).expect("takes the lock"));
            });
            wait_for_reports(1);
            drop(held);
        });
        let inside = stopped.pin();
        std::thread::scope(|scope| {
            scope.spawn(|| fs.enter().expect("enters").wait_for_grace_period());
            wait_for_reports(2);
            drop(inside);
        });
        let owner = fs.slot_owner(stopped.index()).expect("a slot");
        let expected =
            ["is moving a directory", "is inside a call"].map(|reason| (owner, std::string::String::from(reason)));
        assert_eq!(reports(), expected);
    }
}
