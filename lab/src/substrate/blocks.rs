//! Free blocks, in memory: one ordered tree of ranges per shard, as NOVA keeps one per processor.
//! The image does not record free blocks; recovery finds those in use.

use super::shard;
use crate::error::Result;
use crate::locks;
use crate::multicore::named_memory::NamedMemory;
use posix::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Consecutive blocks, by number (offset / 4096).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub start: u64,
    /// Number of blocks; at least one.
    pub count: u64,
}

/// Lists of free blocks. Any thread may allocate and free. With as many shards as threads, threads
/// share a list only when their own runs empty.
#[derive(Debug)]
pub struct FreeBlocks {
    // Range length by range start. Adjacent ranges are merged.
    shards: Vec<Mutex<BTreeMap<u64, u64>>>,
    free: AtomicU64,
    blocks: BlockRange,
}

impl FreeBlocks {
    /// Marks all of `blocks` free and divides them evenly among `shards`.
    pub fn new(blocks: BlockRange, shards: usize) -> FreeBlocks {
        FreeBlocks::with_used(blocks, shards, |_| false)
    }

    /// Marks the blocks of `blocks` free that are not in use.
    pub fn with_used(blocks: BlockRange, shards: usize, is_used: impl Fn(u64) -> bool) -> FreeBlocks {
        let shards = shards.max(1);
        let lists =
            FreeBlocks { shards: (0..shards).map(|_| Mutex::default()).collect(), free: AtomicU64::new(0), blocks };
        let mut run: Option<BlockRange> = None;
        for block in blocks.start..blocks.start + blocks.count {
            let boundary = run.is_some_and(|run| lists.home(run.start) != lists.home(block));
            if is_used(block) || boundary {
                run.take().into_iter().for_each(|run| lists.insert(run));
            }
            if !is_used(block) {
                let run = run.get_or_insert(BlockRange { start: block, count: 0 });
                run.count += 1;
            }
        }
        run.into_iter().for_each(|run| lists.insert(run));
        lists
    }

    /// The memory areas of this structure, for reports.
    pub fn named_memory(&self) -> Vec<NamedMemory> {
        let size = size_of::<Mutex<BTreeMap<u64, u64>>>() as u64;
        let lists =
            NamedMemory::at("list of free blocks", self.shards.as_ptr() as u64, self.shards.len() as u64 * size);
        vec![lists.each(size), NamedMemory::of("count of free blocks", &self.free)]
    }

    /// The shard that owns a block. A freed block returns to its list, so that ranges merge again.
    fn home(&self, block: u64) -> usize {
        let per_shard = self.blocks.count.div_ceil(self.shards.len() as u64).max(1);
        (((block - self.blocks.start) / per_shard) as usize).min(self.shards.len() - 1)
    }

    fn list(&self, shard: usize) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        locks::lock(&self.shards[shard])
    }

    /// Allocates one block.
    pub fn allocate(&self) -> Result<u64> {
        self.allocate_up_to(1).map(|range| range.start)
    }

    /// Allocates up to `count` consecutive blocks, at least one. Fails with ENOSPC if none is free.
    pub fn allocate_up_to(&self, count: u64) -> Result<BlockRange> {
        let mine = shard(self.shards.len());
        let found = (0..self.shards.len()).find_map(|step| self.take((mine + step) % self.shards.len(), count));
        found.ok_or(Errno::ENOSPC.into())
    }

    /// Allocates exactly `count` consecutive blocks, from whichever list has them. Fails with
    /// ENOSPC if none has.
    pub fn allocate_run(&self, count: u64) -> Result<u64> {
        let mine = shard(self.shards.len());
        let take = |step: usize| {
            let mut list = self.list((mine + step) % self.shards.len());
            let (start, length) = list.iter_mut().find(|(_, length)| **length >= count)?;
            let (start, left) = (*start, *length - count);
            *length = left;
            if left == 0 {
                list.remove(&start);
            }
            self.free.fetch_sub(count, Relaxed);
            Some(start + left)
        };
        (0..self.shards.len()).find_map(take).ok_or(Errno::ENOSPC.into())
    }

    fn take(&self, shard: usize, count: u64) -> Option<BlockRange> {
        let mut list = self.list(shard);
        // Takes the first of the next few ranges that is long enough, else the first. This bounds
        // the search and limits fragmentation.
        let fits = list.iter().take(8).find(|(_, length)| **length >= count).map(|(start, _)| *start);
        let start = fits.or_else(|| list.keys().next().copied())?;
        let length = list.get_mut(&start)?;
        let taken = count.min(*length);
        // Taking from the end keeps the tree's keys.
        *length -= taken;
        let range = BlockRange { start: start + *length, count: taken };
        if *length == 0 {
            list.remove(&start);
        }
        self.free.fetch_sub(taken, Relaxed);
        Some(range)
    }

    /// Frees one block.
    pub fn free(&self, block: u64) {
        self.free_range(BlockRange { start: block, count: 1 });
    }

    /// Frees a range. Blocks outside the managed range are ignored: only a damaged image refers to
    /// them.
    pub fn free_range(&self, range: BlockRange) {
        let end = self.blocks.start + self.blocks.count;
        if range.start < self.blocks.start || range.start >= end || range.count > end - range.start {
            debug_assert!(false, "{range:?} is not in {:?}", self.blocks);
            return;
        }
        let mut range = range;
        while range.count > 0 {
            let home = self.home(range.start);
            let mut part = 1;
            while part < range.count && self.home(range.start + part) == home {
                part += 1;
            }
            self.insert(BlockRange { start: range.start, count: part });
            range = BlockRange { start: range.start + part, count: range.count - part };
        }
    }

    fn insert(&self, range: BlockRange) {
        let mut list = self.list(self.home(range.start));
        let BlockRange { mut start, mut count } = range;
        if let Some((&before, &length)) = list.range(..start).next_back()
            && before + length == start
        {
            (start, count) = (before, length + count);
        }
        if let Some(length) = list.remove(&(range.start + range.count)) {
            count += length;
        }
        list.insert(start, count);
        self.free.fetch_add(range.count, Relaxed);
    }

    /// Number of free blocks.
    pub fn count(&self) -> u64 {
        self.free.load(Relaxed)
    }

    /// All blocks, free or not.
    pub fn all(&self) -> BlockRange {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first list of a busy thread has single blocks only. With many processors each list is
    /// short, and image sizes do not grow with them.
    #[test]
    fn a_run_is_found_in_any_list_however_many_there_are() {
        for shards in [1, 2, 16, 64] {
            let all = BlockRange { start: 0, count: 64 * 64 };
            let mine = shard(shards) as u64;
            let per_shard = all.count / shards as u64;
            let lists = FreeBlocks::with_used(all, shards, |block| {
                shards > 1 && block / per_shard == mine && block.is_multiple_of(2)
            });
            let free = lists.count();
            let start = lists.allocate_run(32).expect("another list has it");
            assert_eq!(lists.count(), free - 32, "{shards} shards");
            lists.free_range(BlockRange { start, count: 32 });
            assert_eq!(lists.count(), free);
            assert!(lists.allocate_run(64 * 64 + 1).is_err());
        }
    }

    #[test]
    fn what_is_taken_is_taken_once_and_what_comes_back_heals() {
        let lists = FreeBlocks::with_used(BlockRange { start: 10, count: 100 }, 3, |block| block % 7 == 0);
        let used = (10..110).filter(|block| block % 7 == 0).count() as u64;
        assert_eq!(lists.count(), 100 - used);
        let mut taken = Vec::new();
        while let Ok(range) = lists.allocate_up_to(4) {
            taken.extend(range.start..range.start + range.count);
        }
        assert_eq!(taken.len() as u64, 100 - used);
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len() as u64, 100 - used);
        assert!(taken.iter().all(|block| block % 7 != 0));
        taken.iter().for_each(|block| lists.free(*block));
        (10..110).filter(|block| block % 7 == 0).for_each(|block| lists.free(block));
        assert_eq!(lists.count(), 100);
        // Three shards hold one whole range each.
        assert_eq!((0..3).map(|shard| lists.list(shard).len()).sum::<usize>(), 3);
    }
}
