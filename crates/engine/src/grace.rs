//! Grace periods: nobody who was inside when a thing was removed may still be looking at it when it is used again (RCU by epochs).
//!
//! Invariants
//! - While a slot is pinned in epoch `e`, the global epoch is at most `e + 1`.
//! - What was retired by a thread pinned in `e` was out of everybody's reach while the global epoch was at most `e + 1`. Whoever still looks at it
//!   was thus pinned in `e + 1` or before, and has left once the global epoch is `e + 3` ([`GRACE_EPOCHS`]). Stamping with the own
//!   pin and waiting one epoch longer spares removal a full fence and a look at the shared counter.

use crate::error::Result;
use crate::fs::{Fs, Thread};
use crate::step::dead;
use crate::sync::{AtomicU32, spin_loop};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{compiler_fence, fence};
use pmem::Memory;

/// How far the global epoch must be beyond the stamp of a retired thing.
pub(crate) const GRACE_EPOCHS: u64 = 3;
/// The first epoch: zero means "not pinned".
pub(crate) const FIRST_EPOCH: u64 = 1;
/// Looks before the first sleep.
const SPINS: u32 = 200;

/// While it lives, nothing that the thread can reach is used for something else.
pub(crate) struct Pin<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
}

impl<M: Memory> Drop for Pin<'_, '_, M> {
    #[inline]
    fn drop(&mut self) {
        if dead() {
            return;
        }
        let slot = self.thread.slot;
        let pins = slot.pins.load(Relaxed) - 1;
        slot.pins.store(pins, Relaxed);
        if pins == 0 {
            slot.pinned.store(0, Release);
        }
    }
}

impl<M: Memory> Fs<M> {
    /// The global epoch after an attempt to advance it: it moves on when all who are inside have seen the present one.
    pub(crate) fn advance_grace(&self, reap_dead: bool) -> Result<u64> {
        let header = self.header()?;
        let epoch = header.grace.load(SeqCst);
        fence(SeqCst);
        for index in 0..header.slots_high.load(Acquire) as u32 {
            let pinned = self.dram.slot(index)?.pinned.load(Acquire);
            if pinned == 0 || pinned == epoch {
                continue;
            }
            if !reap_dead || !self.reap_if_dead(index)? {
                return Ok(epoch);
            }
        }
        // A failure means that somebody else advanced it.
        Ok(match header.grace.compare_exchange(epoch, epoch + 1, AcqRel, Acquire) {
            Ok(_) => epoch + 1,
            Err(now) => now,
        })
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Enters; nests.
    #[inline]
    pub(crate) fn pin(&self) -> Pin<'_, 'f, M> {
        let pins = self.slot.pins.load(Relaxed);
        if pins == 0 {
            // A region without a header cannot be attached to; epoch 1 would hold back everybody, which is safe.
            let epoch = self.fs.header().map_or(FIRST_EPOCH, |header| header.grace.load(Relaxed));
            // A full fence, in the cheapest form that x86 has: what is read from here on was reachable after the pin was visible.
            self.slot.pinned.swap(epoch, SeqCst);
            compiler_fence(SeqCst);
        }
        self.slot.pins.store(pins + 1, Relaxed);
        Pin { thread: self }
    }

    /// Whether the thread is inside.
    #[inline]
    pub(crate) fn pinned(&self) -> bool {
        self.slot.pins.load(Relaxed) != 0
    }

    /// Waits until everybody who is inside now has left (for eviction and compaction). The caller must not be pinned.
    pub(crate) fn wait_for_grace(&self) -> Result<()> {
        debug_assert!(!self.pinned(), "waits for itself");
        // What the caller took out of reach is visible to all who enter from here on.
        fence(SeqCst);
        let end = self.fs.header()?.grace.load(SeqCst) + 2;
        self.wait_for_epoch(end)
    }

    /// Waits until the global epoch is at least `end`.
    pub(crate) fn wait_for_epoch(&self, end: u64) -> Result<()> {
        debug_assert!(!self.pinned(), "waits for itself");
        let nobody_wakes = AtomicU32::new(0);
        let mut looks = 0u32;
        while self.fs.advance_grace(looks > SPINS)? < end {
            looks = looks.saturating_add(1);
            if looks <= SPINS {
                spin_loop();
            } else {
                self.fs.platform.wait(&nobody_wakes, 0, 1);
            }
        }
        Ok(())
    }
}
