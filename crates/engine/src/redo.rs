//! Changes of several words of the DRAM region as one: if a thread dies in between, its reaper
//! stores the rest.
//!
//! Invariants
//! - All the words are protected by locks that the thread holds, or belong to its own slot, until
//!   the record is cleared.
//! - Storing them again changes nothing.

use crate::death::may_die_here;
use crate::dram::REDO_MAX;
use crate::error::Result;
use crate::fs::Fs;
use crate::slot_owner::SlotOwner;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{Memory, Pm};

/// A word and its new value.
#[derive(Clone, Copy)]
pub(crate) enum WordChange<'a> {
    /// No change: fills an array.
    Nothing,
    /// Eight bytes.
    Wide(&'a AtomicU64, u64),
    /// Four bytes.
    Narrow(&'a AtomicU32, u32),
}

const NARROW: u64 = 1;

impl<M: Memory> SlotOwner<'_, M> {
    /// Stores all of `changes`, in their order. If this thread dies, its reaper does so.
    pub(crate) fn change_together<const N: usize>(&self, changes: [WordChange<'_>; N]) {
        const { assert!(N <= REDO_MAX) };
        let region = self.fs.dram.region();
        let mut count = 0;
        for change in &changes {
            let (target, value) = match *change {
                WordChange::Nothing => continue,
                WordChange::Wide(word, value) => (region.offset_of(word), value),
                WordChange::Narrow(word, value) => (region.offset_of(word) | NARROW, value as u64),
            };
            let record = &self.slot.redo[count];
            record.target.store(target, Relaxed);
            record.value.store(value, Relaxed);
            count += 1;
        }
        may_die_here();
        self.slot.redo_count.store(count as u32, Release);
        may_die_here();
        for change in &changes {
            match *change {
                WordChange::Nothing => {}
                WordChange::Wide(word, value) => word.store(value, Release),
                WordChange::Narrow(word, value) => word.store(value, Release),
            }
            may_die_here();
        }
        self.slot.redo_count.store(0, Release);
        may_die_here();
    }

    /// As the reaper of this slot: completes the change that its owner began.
    pub(crate) fn redo(&self) -> Result<()> {
        let count = self.slot.redo_count.load(Acquire) as usize;
        for record in self.slot.redo.iter().take(count) {
            let (target, value) = (record.target.load(Relaxed), record.value.load(Relaxed));
            let region = self.fs.dram.region();
            if target & NARROW == 0 {
                region.get(Pm::<AtomicU64>::new(target))?.store(value, Release);
            } else {
                region.get(Pm::<AtomicU32>::new(target & !NARROW))?.store(value as u32, Release);
            }
            may_die_here();
        }
        self.slot.redo_count.store(0, Release);
        Ok(())
    }
}

impl<M: Memory> Fs<M> {
    /// The word of four bytes at an offset of the DRAM region.
    pub(crate) fn dram_word(&self, offset: u64) -> Result<&AtomicU32> {
        Ok(self.dram.region().get(Pm::new(offset))?)
    }
}
