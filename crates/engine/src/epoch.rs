//! Grace periods: a removed object is reused only after all threads that were pinned at its removal
//! have left (RCU by epochs).
//!
//! Invariants
//! - While a slot is pinned in epoch `e`, the global epoch is at most `e + 1`.
//! - An object retired by a thread pinned in `e` became unreachable while the global epoch was at
//!   most `e + 1`. So a thread that still uses it was pinned in `e + 1` or before, and has left
//!   once the global epoch is `e + 3` ([`GRACE_PERIOD_EPOCHS`]). Stamping with the thread's own pin
//!   and waiting one epoch longer saves each removal a full fence and a load of the shared counter.

use crate::death::dead;
use crate::dram::Owner;
use crate::error::Result;
use crate::fs::Fs;
use crate::slot_owner::SlotOwner;
use crate::sync::{AtomicU32, spin_loop};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{compiler_fence, fence};
use pmem::Memory;

/// How far the global epoch must be beyond the stamp of a retired object.
pub(crate) const GRACE_PERIOD_EPOCHS: u64 = 3;
/// The first epoch: zero means "not pinned".
pub(crate) const FIRST_EPOCH: u64 = 1;
/// Attempts before the first sleep.
const SPINS: u32 = 200;
/// The longest wait for an epoch to pass, in sleeps of 1 ms, of a thread that can go on without it.
/// No call stays pinned for that long unless its thread is stopped or gets no processor.
const STALL_SLEEPS: u32 = 4;
/// `STALL_SLEEPS` for a thread whose other way is an error: about a second.
const LONG_SLEEPS: u32 = 1000;
/// Sleeps of a thread that has no other way, until it reports the wait: about 5 s.
const REPORT_SLEEPS: u32 = 5000;

/// While it lives, nothing that the thread can reach is reused.
pub(crate) struct Pin<'t, 'f, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
}

impl<M: Memory> Drop for Pin<'_, '_, M> {
    #[inline]
    fn drop(&mut self) {
        if dead() {
            return;
        }
        let slot = self.owner.slot;
        let pins = slot.pins.load(Relaxed) - 1;
        slot.pins.store(pins, Relaxed);
        if pins == 0 {
            slot.pinned.store(0, Release);
        }
    }
}

impl<M: Memory> Fs<M> {
    /// Tries to advance the global epoch and returns it: it advances when all pinned threads are
    /// pinned in the present epoch. `reap_dead_threads`: reaps dead threads that hold it back.
    pub(crate) fn advance_epoch(&self, reap_dead: bool) -> Result<u64> {
        let header = self.header()?;
        let epoch = header.global_epoch.load(SeqCst);
        fence(SeqCst);
        for index in self.taken_slots()? {
            let pinned = self.dram.slot(index)?.pinned.load(Acquire);
            if pinned == 0 || pinned == epoch {
                continue;
            }
            if !reap_dead || !self.reap_if_dead(index)? {
                return Ok(epoch);
            }
        }
        // On failure another thread has advanced it.
        Ok(match header.global_epoch.compare_exchange(epoch, epoch + 1, AcqRel, Acquire) {
            Ok(_) => epoch + 1,
            Err(now) => now,
        })
    }

    /// The owner of the slot that was pinned in the earliest epoch, if any is.
    fn oldest_pinned(&self) -> Result<Option<Owner>> {
        let mut oldest = (u64::MAX, None);
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            let pinned = self.dram.slot(index)?.pinned.load(Acquire);
            if pinned != 0 && pinned < oldest.0 {
                oldest = (pinned, self.slot_owner(index)?);
            }
        }
        Ok(oldest.1)
    }
}

impl<'f, M: Memory> SlotOwner<'f, M> {
    /// Pins the thread; nests.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_, 'f, M> {
        let pins = self.slot.pins.load(Relaxed);
        if pins == 0 {
            // A region without a header cannot be attached; epoch 1 would hold back all
            // reclamation, which is safe.
            let epoch = self.fs.header().map_or(FIRST_EPOCH, |header| header.global_epoch.load(Relaxed));
            // A full fence, in the cheapest form that x86 has: everything read from here on was
            // reachable after the pin was visible.
            self.slot.pinned.swap(epoch, SeqCst);
            compiler_fence(SeqCst);
        }
        self.slot.pins.store(pins + 1, Relaxed);
        Pin { owner: self }
    }

    /// Whether the thread is pinned.
    #[inline]
    pub fn pinned(&self) -> bool {
        self.slot.pins.load(Relaxed) != 0
    }

    /// Waits until all threads that are pinned now have left (for eviction and compaction). The
    /// caller must not be pinned.
    pub(crate) fn wait_for_grace_period(&self) -> Result<()> {
        debug_assert!(!self.pinned(), "a pinned thread would wait for itself");
        // Makes the caller's removals visible to all threads that pin from here on.
        fence(SeqCst);
        let end = self.fs.header()?.global_epoch.load(SeqCst) + 2;
        self.wait_for_epoch(end)
    }

    /// [`Thread::wait_for_grace_period`] for a caller that can go on without it. `false`: a pinned
    /// thread makes no progress.
    pub(crate) fn wait_briefly_for_grace_period(&self) -> Result<bool> {
        fence(SeqCst);
        let end = self.fs.header()?.global_epoch.load(SeqCst) + 2;
        self.wait_briefly_for_epoch(end)
    }

    /// [`Thread::wait_for_epoch`] for a caller that can go on without it. `false`: a pinned thread
    /// makes no progress.
    pub(crate) fn wait_briefly_for_epoch(&self, end: u64) -> Result<bool> {
        debug_assert!(!self.pinned(), "a pinned thread would wait for itself");
        let stalled = &self.fs.header()?.stalled_epoch;
        let nobody_wakes = AtomicU32::new(0);
        let (mut looks, mut epoch) = (0u32, 0);
        loop {
            let known = stalled.load(Relaxed);
            let now = self.fs.advance_epoch(looks > SPINS || known == self.fs.header()?.global_epoch.load(Relaxed))?;
            if now >= end {
                return Ok(true);
            }
            // One thread waits for an epoch, not each.
            if known == now {
                return Ok(false);
            }
            looks = if now == epoch { looks + 1 } else { 0 };
            epoch = now;
            match looks {
                ..=SPINS => spin_loop(),
                looks if looks <= SPINS + STALL_SLEEPS => self.fs.platform.wait(&nobody_wakes, 0, 1),
                _ => stalled.store(now, Relaxed),
            }
        }
    }

    /// [`Thread::wait_briefly_for_epoch`] for a caller whose other way is an error: `false` after
    /// about a second.
    pub(crate) fn wait_long_for_epoch(&self, end: u64) -> Result<bool> {
        let nobody_wakes = AtomicU32::new(0);
        for _ in 0..LONG_SLEEPS {
            if self.wait_briefly_for_epoch(end)? {
                return Ok(true);
            }
            self.fs.platform.wait(&nobody_wakes, 0, 1);
        }
        Ok(false)
    }

    /// Whether a thread that is pinned in an earlier epoch is known to make no progress.
    pub(crate) fn is_epoch_stalled(&self) -> Result<bool> {
        let header = self.fs.header()?;
        let known = header.stalled_epoch.load(Relaxed);
        Ok(known != 0 && known == header.global_epoch.load(Relaxed) && self.fs.advance_epoch(true)? == known)
    }

    /// Waits until the global epoch is at least `end`.
    pub(crate) fn wait_for_epoch(&self, end: u64) -> Result<()> {
        debug_assert!(!self.pinned(), "a pinned thread would wait for itself");
        let nobody_wakes = AtomicU32::new(0);
        let mut looks = 0u32;
        while self.fs.advance_epoch(looks > SPINS)? < end {
            looks = looks.saturating_add(1);
            if looks <= SPINS {
                spin_loop();
            } else {
                self.fs.platform.wait(&nobody_wakes, 0, 1);
            }
            if looks == SPINS + REPORT_SLEEPS {
                self.fs.platform.report_wait(self.fs.oldest_pinned()?, "is inside a call");
            }
        }
        Ok(())
    }
}
