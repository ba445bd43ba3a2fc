//! Locks in the DRAM region: a word with the ticket of the owner's slot, so that whoever waits knows for whom.
//!
//! Invariants
//! - The word is zero (free) or the ticket of a slot; only a CAS takes it.
//! - A release is a plain store: no locked instruction, since flushes may be in flight when a lock is released. The price: the releaser's look at
//!   `waiters` may come before its store is visible, so that a sleeper misses its wake. A sleep is therefore always bounded
//!   ([`SLEEP_MS`]) and looks again.

use crate::error::{Error, Result};
use crate::fs::{Fs, Thread};
use crate::platform::Platform;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::Memory;

/// Looks at a taken lock before sleeping: about a microsecond, longer than most locks are held.
const SPINS: u32 = 100;
/// The longest sleep: how late a missed wake or the death of an owner is noticed.
const SLEEP_MS: u32 = 10;

/// A held lock; dropping it releases with a plain release store (and a wake only if somebody sleeps).
pub(crate) struct Held<'f> {
    word: &'f AtomicU32,
    waiters: &'f AtomicU32,
    platform: &'static dyn Platform,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.word.store(0, Release);
        if self.waiters.load(Relaxed) != 0 {
            self.waiters.store(0, Relaxed);
            self.platform.wake(self.word);
        }
    }
}

impl<M: Memory> Fs<M> {
    /// Whether the owner of slot `index` still exists. A slot without an owner has none that could finish anything.
    pub(crate) fn slot_is_alive(&self, index: u32) -> Result<bool> {
        Ok(match self.slot_owner(index)? {
            Some(owner) => self.platform.is_alive(owner),
            None => false,
        })
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Takes a lock: spins briefly, then sleeps; `Busy` only if its owner died and cannot be helped.
    pub(crate) fn lock(&self, word: &'f AtomicU32, waiters: &'f AtomicU32) -> Result<Held<'f>> {
        for _ in 0..SPINS {
            if let Some(held) = self.try_lock(word, waiters) {
                return Ok(held);
            }
            core::hint::spin_loop();
        }
        self.lock_slowly(word, waiters)
    }

    /// Takes a lock if nobody has it.
    pub(crate) fn try_lock(&self, word: &'f AtomicU32, waiters: &'f AtomicU32) -> Option<Held<'f>> {
        let free = word.load(Relaxed) == 0 && word.compare_exchange(0, self.ticket(), Acquire, Relaxed).is_ok();
        // Not `then_some`: a `Held` that was made in vain would release the owner's lock when it is dropped.
        free.then(|| Held { word, waiters, platform: self.fs.platform })
    }

    #[cold]
    fn lock_slowly(&self, word: &'f AtomicU32, waiters: &'f AtomicU32) -> Result<Held<'f>> {
        loop {
            let owner = word.load(Relaxed);
            debug_assert!(owner != self.ticket(), "taken twice by one thread");
            if owner != 0 {
                waiters.store(1, Release);
                self.fs.platform.wait(word, owner, SLEEP_MS);
                if word.load(Relaxed) == owner && self.take_from_dead(word, owner)? {
                    return Ok(Held { word, waiters, platform: self.fs.platform });
                }
            }
            if let Some(held) = self.try_lock(word, waiters) {
                // Others may sleep still, and the releaser that woke us has taken their mark away.
                waiters.store(1, Relaxed);
                return Ok(held);
            }
        }
    }

    /// Takes over the lock of an owner that died; whether it did.
    fn take_from_dead(&self, word: &AtomicU32, owner: u32) -> Result<bool> {
        let index = owner - 1;
        if self.fs.slot_is_alive(index).map_err(|_| Error::Busy)? {
            return Ok(false);
        }
        self.fs.reap(index)?;
        Ok(word.compare_exchange(owner, self.ticket(), AcqRel, Relaxed).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use crate::dram::RetiredKind;
    use crate::testing::{Attached, TestPlatform, new_image};
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
    use std::sync::Barrier;
    use std::time::Duration;

    #[test]
    fn of_many_threads_one_is_inside_at_a_time() {
        let image = new_image(4 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let (word, waiters, inside, sum) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
        let all = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let thread = fs.enter().expect("enters");
                    all.wait();
                    for round in 0..2000 {
                        let _held = thread.lock(&word, &waiters).expect("takes the lock");
                        assert_eq!(inside.fetch_add(1, Relaxed), 0, "alone");
                        // Not atomic as a whole: lost if two are inside.
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
        let (word, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        let held = first.try_lock(&word, &waiters).expect("nobody has it");
        assert!(second.try_lock(&word, &waiters).is_none());
        assert_eq!(word.load(Relaxed), first.ticket());
        drop(held);
        assert!(second.try_lock(&word, &waiters).is_some());
    }

    #[test]
    fn the_lock_and_the_pin_of_a_dead_thread_hold_nobody_up() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        let (word, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                let held = thread.lock(&word, &waiters).expect("takes the lock");
                core::mem::forget(thread.pin());
                core::mem::forget(held);
                core::mem::forget(thread);
                MORTAL.kill();
            });
        });
        let thread = fs.enter().expect("enters");
        assert!(thread.lock(&word, &waiters).is_ok());
        thread.retire(RetiredKind::Blocks, thread.allocate_blocks(1).expect("a block").first, 1);
        assert_eq!(thread.drain(), Ok(1), "the dead one is not waited for");
        drop(thread);
        fs.detach().expect("detaches");
        let fs = Attached::new(&image).expect("attaches");
        assert!(fs.report.scanned, "what the dead one held is found by a scan");
    }
}
