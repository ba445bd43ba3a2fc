//! Lists of free things in the DRAM region, without a lock: a stopped thread blocks no other.
//!
//! Invariants
//! - The head is an index (low half) and a tag that every removal advances, so that a removal that
//!   was overtaken fails.
//! - What a thread has taken from a list, or not yet put on one, nothing names for a few
//!   instructions. If the thread dies exactly there, it is lost until detach.

use crate::error::Result;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The head of a list.
pub(crate) struct FreeList<'f>(pub(crate) &'f AtomicU64);

impl FreeList<'_> {
    /// The first index, or zero.
    #[cfg(test)]
    pub(crate) fn first(&self) -> u32 {
        self.0.load(Acquire) as u32
    }

    /// Puts `index`, whose link to the next one is `link`, on the list.
    pub(crate) fn push(&self, index: u32, link: &AtomicU32) {
        let mut head = self.0.load(Relaxed);
        loop {
            link.store(head as u32, Relaxed);
            let changed = head & !u64::from(u32::MAX) | u64::from(index);
            match self.0.compare_exchange(head, changed, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the first index from the list, if it has any. `link` is the link of an index.
    pub(crate) fn pop<'l>(&self, link: impl Fn(u32) -> Result<&'l AtomicU32>) -> Result<Option<u32>> {
        let mut head = self.0.load(Acquire);
        while head as u32 != 0 {
            let next = link(head as u32)?.load(Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match self.0.compare_exchange(head, tag | u64::from(next), AcqRel, Acquire) {
                Ok(_) => return Ok(Some(head as u32)),
                Err(now) => head = now,
            }
        }
        Ok(None)
    }
}
