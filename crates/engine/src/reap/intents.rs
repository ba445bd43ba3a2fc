//! Intents: a thread records in its slot what it is about to do, before and while it changes names,
//! so that its reaper knows.

use crate::death::may_die_here;
use crate::dram::{Cachelet, IntentKind, STEP_BEGUN, STEP_DONE};
use crate::fs::Thread;
use crate::mindex::NameHash;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{Durable, Flushed, Memory};

impl<'f, M: Memory> Thread<'f, M> {
    /// Announces an operation. The other fields that its kind needs were recorded before.
    pub(crate) fn intend(&self, kind: IntentKind, directories: [u32; 2], hashes: [NameHash; 2]) {
        self.lock_logs(kind, directories);
        let intent = &self.slot.intent;
        for index in 0..2 {
            intent.directories[index].store(directories[index], Relaxed);
            intent.hashes[index].store(hashes[index].word(), Relaxed);
        }
        intent.step.store(STEP_BEGUN, Relaxed);
        may_die_here();
        intent.kind.store(kind as u32, Release);
        may_die_here();
    }

    /// Records what an operation removes or replaces.
    pub(crate) fn intend_victim(&self, index: u32, victim: &Cachelet) {
        let intent = &self.slot.intent;
        intent.victim_before.store((victim.references.load(Acquire) >> 32) as u32, Relaxed);
        intent.victim.store(index, Release);
    }

    /// Announces the compaction or eviction of a directory.
    pub(crate) fn intend_maintenance(&self, index: u32) {
        let intent = &self.slot.intent;
        intent.directories[0].store(index, Relaxed);
        intent.directories[1].store(0, Relaxed);
        intent.step.store(STEP_BEGUN, Relaxed);
        may_die_here();
        intent.kind.store(IntentKind::Directory as u32, Release);
        may_die_here();
    }

    /// The last fence of an operation that makes names.
    #[inline(always)]
    pub(crate) fn fence_names(&self, flushed: Flushed) -> Durable {
        let durable = self.fs.pm.fence(flushed);
        self.unlock_logs();
        durable
    }

    /// Marks the operation as having taken effect: later operations see it.
    #[inline]
    pub(crate) fn take_effect(&self) {
        may_die_here();
        self.slot.intent.step.store(STEP_DONE, Release);
        may_die_here();
    }

    /// Ends the operation.
    #[inline]
    pub(crate) fn end_intent(&self) {
        self.clear_in_flight_except_cachelet();
        self.unlock_logs();
        // No point of death from here on: the result of a call belongs to its caller as soon as the
        // intent is gone.
        self.slot.intent.kind.store(IntentKind::None as u32, Release);
        self.slot.intent.victim.store(0, Release);
        self.slot.in_flight.cachelet.store(0, Release);
    }

    /// Records the log slot that is to name a dentry in flight.
    pub(crate) fn record_log_slot(&self, dentry: u64, slot: u64) {
        let hand = &self.slot.in_flight;
        if let Some(index) = hand.dentries.iter().position(|word| word.load(Relaxed) == dentry) {
            hand.slots[index].store(slot, Relaxed);
        }
        may_die_here();
    }
}
