//! Cachelets.
//!
//! A shard keeps a list of free ones and a range of unused ones. When its list grows long, a part
//! goes to the shared list, batch by batch: a shard that only closes files feeds one that only
//! opens them.
//!
//! Invariants
//! - A free cachelet has the number zero, and is linked by `next`. The shared list is one of
//!   batches: the first cachelet of each has the first of the next batch, and the batch's length
//!   ([`crate::dram::FreeView`]). The shared list and the bump have no lock.
//! - Index 0 is never handed out and ends every list.

use crate::attributes::CacheReport;
use crate::components::Allocator;
use crate::death::may_die_here;
use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::format::POINTER_CLEARED;
use crate::free_list::FreeList;
use crate::fs::Fs;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::Memory;

/// Cachelets that a shard takes at a time from the unused ones.
const RANGE: u64 = 64;
/// Maximum length of a shard's list.
const LIST_MAX: u32 = 512;
/// Cachelets that move to the shared list at a time.
const BATCH: u32 = 256;

/// Batches of the shared list that are counted.
const BATCHES_MAX: u32 = 1 << 16;

impl<M: Memory> Fs<M> {
    /// Counts what is in the DRAM region.
    pub fn cached(&self) -> Result<CacheReport> {
        let header = self.header()?;
        // One has the index 0.
        let (mut names, mut free) = (header.names.load(Relaxed), 1);
        for index in 0..header.slots_high.load(Acquire) as u32 {
            let slot = self.dram.slot(index)?;
            names = names.wrapping_add(slot.names_delta.load(Relaxed));
            let range = slot.cachelet_end.load(Relaxed).saturating_sub(slot.cachelet_next.load(Relaxed));
            free += u64::from(slot.cachelets_count.load(Relaxed)) + u64::from(range);
        }
        let mut batch = header.cachelets_free.load(Acquire) as u32;
        for _ in 0..BATCHES_MAX {
            if batch == 0 {
                break;
            }
            let first = self.dram.cachelet(batch)?.as_free();
            free += u64::from(first.batch_length().load(Relaxed).min(LIST_MAX));
            batch = first.next_batch().load(Relaxed);
        }
        let used = header.cachelets_next.load(Acquire).saturating_sub(free);
        Ok(CacheReport { names: (names as i64).max(0) as u64, files: used })
    }
}

impl<M: Memory> Allocator<'_, '_, M> {
    /// The index of a free cachelet, recorded as an in-flight allocation. Its fields are undefined
    /// except `number`, which is zero. `NoMemory` if there is none: the caller is pinned, so
    /// eviction is left to the operation around it.
    pub(crate) fn allocate_cachelet(self) -> Result<u32> {
        if let Some(index) = self.cachelet_of_shard()? {
            return Ok(index);
        }
        if self.take_batch()? || self.take_range()? || self.adopt_cachelets()? {
            return self.cachelet_of_shard()?.ok_or(Error::NoMemory);
        }
        Err(Error::NoMemory)
    }

    /// The cachelet that the next file made by this thread gets, if nothing intervenes; lets
    /// callers prefetch what belongs to it. `None`: not known yet.
    #[inline]
    pub fn next_cachelet(self) -> Option<u32> {
        match self.owner.slot.cachelet_list.load(Relaxed) {
            0 => {
                let next = self.owner.slot.cachelet_next.load(Relaxed);
                (next < self.owner.slot.cachelet_end.load(Relaxed)).then_some(next)
            }
            first => Some(first),
        }
    }

    /// Frees a cachelet at once.
    pub(crate) fn free_cachelet(self, index: u32) -> Result<()> {
        self.list_cachelet(index)?;
        if self.owner.slot.in_flight.cachelet.load(Relaxed) == index {
            self.owner.slot.in_flight.cachelet.store(0, Release);
        }
        self.trim_cachelets()
    }

    /// Puts a cachelet on the shard's list.
    pub(crate) fn list_cachelet(self, index: u32) -> Result<()> {
        let cachelet = self.owner.fs.dram.cachelet(index)?;
        cachelet.number.store(0, Release);
        cachelet.next.store(self.owner.slot.cachelet_list.load(Relaxed), Relaxed);
        may_die_here();
        self.owner.slot.cachelet_list.store(index, Release);
        may_die_here();
        self.owner.slot.cachelets_count.store(self.owner.slot.cachelets_count.load(Relaxed) + 1, Relaxed);
        Ok(())
    }

    /// Moves a part of the list to the shared one if it is long.
    pub(crate) fn trim_cachelets(self) -> Result<()> {
        if self.owner.slot.cachelets_count.load(Relaxed) > LIST_MAX { self.give_batch(BATCH) } else { Ok(()) }
    }

    fn cachelet_of_shard(self) -> Result<Option<u32>> {
        let first = self.owner.slot.cachelet_list.load(Relaxed);
        if first != 0 {
            let rest = self.owner.fs.dram.cachelet(first)?.next.load(Relaxed);
            self.owner.slot.in_flight.cachelet.store(first, Relaxed);
            may_die_here();
            self.owner.slot.cachelet_list.store(rest, Release);
            may_die_here();
            // The next file will get that one.
            self.owner.fs.dram.prefetch_cachelet(rest);
            self.owner
                .slot
                .cachelets_count
                .store(self.owner.slot.cachelets_count.load(Relaxed).saturating_sub(1), Relaxed);
            return Ok(Some(first));
        }
        let next = self.owner.slot.cachelet_next.load(Relaxed);
        if next < self.owner.slot.cachelet_end.load(Relaxed) {
            self.owner.slot.in_flight.cachelet.store(next, Relaxed);
            may_die_here();
            self.owner.slot.cachelet_next.store(next + 1, Release);
            may_die_here();
            return Ok(Some(next));
        }
        Ok(None)
    }

    /// As the reaper of this slot: whether a cachelet is on its list or in its range.
    pub(crate) fn is_listed(self, index: u32) -> Result<bool> {
        if (self.owner.slot.cachelet_next.load(Relaxed)..self.owner.slot.cachelet_end.load(Relaxed)).contains(&index) {
            return Ok(true);
        }
        let mut at = self.owner.slot.cachelet_list.load(Relaxed);
        for _ in 0..2 * LIST_MAX {
            if at == 0 || at == index {
                break;
            }
            at = self.owner.fs.dram.cachelet(at)?.next.load(Relaxed);
        }
        Ok(at == index)
    }

    /// As the reaper of this slot: counts its list.
    pub(crate) fn recount_cachelets(self) -> Result<()> {
        let mut at = self.owner.slot.cachelet_list.load(Relaxed);
        let mut count = 0;
        while at != 0 && count < 2 * LIST_MAX {
            count += 1;
            at = self.owner.fs.dram.cachelet(at)?.next.load(Relaxed);
        }
        self.owner.slot.cachelets_count.store(count, Relaxed);
        Ok(())
    }

    /// Moves the first `count` cachelets of the shard's list to the shared one.
    fn give_batch(self, count: u32) -> Result<()> {
        let first = self.owner.slot.cachelet_list.load(Relaxed);
        let mut last = self.owner.fs.dram.cachelet(first)?;
        for _ in 1..count {
            last = self.owner.fs.dram.cachelet(last.next.load(Relaxed))?;
        }
        let rest = last.next.load(Relaxed);
        let head = self.owner.fs.dram.cachelet(first)?;
        let left = self.owner.slot.cachelets_count.load(Relaxed) - count;
        let shared = FreeList(&self.owner.fs.header()?.cachelets_free);
        may_die_here();
        // Not a point of death: see `FreeList`.
        self.owner.slot.cachelet_list.store(rest, Release);
        self.owner.slot.cachelets_count.store(left, Relaxed);
        last.next.store(0, Relaxed);
        head.as_free().batch_length().store(count, Relaxed);
        shared.push(first, head.as_free().next_batch());
        may_die_here();
        Ok(())
    }

    /// Takes a batch of the shared list. Returns whether there was one. The shard's list is empty.
    pub(crate) fn take_batch(self) -> Result<bool> {
        let shared = FreeList(&self.owner.fs.header()?.cachelets_free);
        // Not a point of death: see `FreeList`.
        let Some(first) = shared.pop(|index| Ok(self.owner.fs.dram.cachelet(index)?.as_free().next_batch()))? else {
            return Ok(false);
        };
        let count = self.owner.fs.dram.cachelet(first)?.as_free().batch_length().load(Relaxed);
        self.owner.slot.cachelets_count.store(count, Relaxed);
        self.owner.slot.cachelet_list.store(first, Release);
        may_die_here();
        Ok(true)
    }

    /// Takes a range of unused cachelets. Returns whether there was one, and memory for it.
    fn take_range(self) -> Result<bool> {
        let header = self.owner.fs.header()?;
        let layout = &self.owner.fs.dram.layout;
        let max = layout.cachelets_max.min(POINTER_CLEARED as u64);
        may_die_here();
        // Not a point of death: a thread that dies exactly here loses the range until detach.
        let (first, end) = loop {
            let first = header.cachelets_next.load(Acquire);
            if first >= max {
                return Ok(false);
            }
            // Many threads must not keep all of them ready.
            let share = (max - first) / (2 * header.slots_high.load(Relaxed).max(1));
            let end = (first + share.clamp(1, RANGE)).min(max);
            // Before other threads count the range as in use.
            if self.owner.fs.provider().provide_cachelets(first..end).is_err() {
                return Ok(false);
            }
            if header.cachelets_next.compare_exchange(first, end, AcqRel, Acquire).is_ok() {
                break (first, end);
            }
        };
        // The range is empty after either store, in this order.
        self.owner.slot.cachelet_end.store(0, Release);
        self.owner.slot.cachelet_next.store(first as u32, Release);
        self.owner.slot.cachelet_end.store(end as u32, Release);
        may_die_here();
        let bytes = size_of::<Cachelet>() as u64;
        self.owner.fs.enter_area(layout.cachelets, first * bytes..end * bytes, max * bytes);
        Ok(true)
    }

    /// Moves the cachelets of shards without a thread to the shared list and takes a batch of it.
    /// Returns whether there was one.
    fn adopt_cachelets(self) -> Result<bool> {
        let mut found = false;
        self.owner.recycler().for_idle_shards(|idle| {
            while let Some(index) = idle.allocator().unused_of_range()? {
                idle.allocator().free_cachelet(index)?;
            }
            let count = idle.slot.cachelets_count.load(Relaxed);
            if count > 0 {
                idle.allocator().give_batch(count)?;
                found = true;
            }
            Ok(())
        })?;
        if found { self.take_batch() } else { Ok(false) }
    }

    fn unused_of_range(self) -> Result<Option<u32>> {
        let next = self.owner.slot.cachelet_next.load(Relaxed);
        if next >= self.owner.slot.cachelet_end.load(Relaxed) {
            return Ok(None);
        }
        self.owner.slot.in_flight.cachelet.store(next, Relaxed);
        may_die_here();
        self.owner.slot.cachelet_next.store(next + 1, Release);
        Ok(Some(next))
    }
}
