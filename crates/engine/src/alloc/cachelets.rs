//! Cachelets.
//!
//! A shard keeps a list of free ones and a range that nobody used yet. When its list grows long, a part goes to the list that all share,
//! batch by batch: a shard that only closes files feeds one that only opens them.
//!
//! Invariants
//! - A free cachelet has the number zero, and is linked by `next`. The first one of a batch on the shared list has the first one of the next batch
//!   in `mapped` and the batch's length in `device`.
//! - Index 0 is never handed out and ends every list.

use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::fs::Thread;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::Memory;

/// Cachelets that a shard takes at a time from those that nobody used yet.
const RANGE: u64 = 64;
/// A shard's list may be as long as this.
const LIST_MAX: u32 = 512;
/// What goes to the shared list at a time.
const BATCH: u32 = 256;

impl<M: Memory> Thread<'_, M> {
    /// The index of a free cachelet, its fields undefined but `number`, which is zero. `NoMemory` if there is none: the caller is pinned, so eviction
    /// is for the operation around it.
    pub(crate) fn allocate_cachelet(&self) -> Result<u32> {
        if let Some(index) = self.cachelet_of_shard()? {
            return Ok(index);
        }
        if self.take_batch()? || self.take_range()? || self.adopt_cachelets()? {
            return self.cachelet_of_shard()?.ok_or(Error::NoMemory);
        }
        Err(Error::NoMemory)
    }

    /// Gives a cachelet back at once.
    pub(crate) fn free_cachelet(&self, index: u32) -> Result<()> {
        let cachelet = self.fs.dram.cachelet(index)?;
        cachelet.number.store(0, Release);
        cachelet.next.store(self.slot.cachelet_list.load(Relaxed), Relaxed);
        self.slot.cachelet_list.store(index, Relaxed);
        let count = self.slot.cachelets_count.load(Relaxed) + 1;
        self.slot.cachelets_count.store(count, Relaxed);
        if count > LIST_MAX {
            self.give_batch(BATCH)?;
        }
        Ok(())
    }

    fn cachelet_of_shard(&self) -> Result<Option<u32>> {
        let first = self.slot.cachelet_list.load(Relaxed);
        if first != 0 {
            let next = self.fs.dram.cachelet(first)?.next.load(Relaxed);
            self.slot.cachelet_list.store(next, Relaxed);
            // The next file will get that one.
            self.fs.dram.prefetch_cachelet(next);
            self.slot.cachelets_count.store(self.slot.cachelets_count.load(Relaxed).saturating_sub(1), Relaxed);
            return Ok(Some(first));
        }
        let next = self.slot.cachelet_next.load(Relaxed);
        if next < self.slot.cachelet_end.load(Relaxed) {
            self.slot.cachelet_next.store(next + 1, Relaxed);
            return Ok(Some(next));
        }
        Ok(None)
    }

    /// Gives the first `count` of the shard's list to the shared one.
    fn give_batch(&self, count: u32) -> Result<()> {
        let first = self.slot.cachelet_list.load(Relaxed);
        let mut last = self.fs.dram.cachelet(first)?;
        for _ in 1..count {
            last = self.fs.dram.cachelet(last.next.load(Relaxed))?;
        }
        self.slot.cachelet_list.store(last.next.load(Relaxed), Relaxed);
        self.slot.cachelets_count.store(self.slot.cachelets_count.load(Relaxed) - count, Relaxed);
        last.next.store(0, Relaxed);
        let head = self.fs.dram.cachelet(first)?;
        head.device.store(count, Relaxed);
        let shared = &self.fs.header()?.cachelets_free;
        let mut seen = shared.load(Relaxed);
        loop {
            head.mapped.store(seen as u32, Relaxed);
            match shared.compare_exchange_weak(seen, next_version(seen, first), AcqRel, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes a batch of the shared list; whether there was one. The shard's list is empty.
    fn take_batch(&self) -> Result<bool> {
        let shared = &self.fs.header()?.cachelets_free;
        let mut seen = shared.load(Acquire);
        loop {
            let first = seen as u32;
            if first == 0 {
                return Ok(false);
            }
            // Somebody may take and use it meanwhile: then the version has changed and what is read here is not used.
            let head = self.fs.dram.cachelet(first)?;
            let rest = head.mapped.load(Relaxed);
            match shared.compare_exchange_weak(seen, next_version(seen, rest), AcqRel, Acquire) {
                Ok(_) => {
                    self.slot.cachelet_list.store(first, Relaxed);
                    self.slot.cachelets_count.store(head.device.load(Relaxed), Relaxed);
                    return Ok(true);
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Takes a range that nobody used yet; whether there was one.
    fn take_range(&self) -> Result<bool> {
        let next = &self.fs.header()?.cachelets_next;
        let layout = &self.fs.dram.layout;
        let max = layout.cachelets_max.min(u32::MAX as u64);
        // Looked at first, so that the counter does not run away when there are none.
        if next.load(Relaxed) >= max {
            return Ok(false);
        }
        let first = next.fetch_add(RANGE, Relaxed);
        if first >= max {
            return Ok(false);
        }
        let bytes = size_of::<Cachelet>() as u64;
        self.fs.enter_area(layout.cachelets, first * bytes..(first + RANGE) * bytes, max * bytes);
        self.slot.cachelet_next.store(first as u32, Relaxed);
        self.slot.cachelet_end.store((first + RANGE).min(max) as u32, Relaxed);
        Ok(true)
    }

    /// Lets shards without a thread give what they hold to the shared list; whether there was anything.
    fn adopt_cachelets(&self) -> Result<bool> {
        let mut found = false;
        self.for_idle_shards(|idle| {
            while let Some(index) = idle.unused_of_range() {
                idle.free_cachelet(index)?;
            }
            let count = idle.slot.cachelets_count.load(Relaxed);
            if count > 0 {
                idle.give_batch(count)?;
                found = true;
            }
            Ok(())
        })?;
        if found { self.take_batch() } else { Ok(false) }
    }

    fn unused_of_range(&self) -> Option<u32> {
        let next = self.slot.cachelet_next.load(Relaxed);
        let unused = next < self.slot.cachelet_end.load(Relaxed);
        unused.then(|| {
            self.slot.cachelet_next.store(next + 1, Relaxed);
            next
        })
    }
}

/// The head of the shared list with another first index: the version goes up, so that a head that was seen before never comes back.
fn next_version(seen: u64, first: u32) -> u64 {
    ((seen >> 32).wrapping_add(1) & u32::MAX as u64) << 32 | first as u64
}
