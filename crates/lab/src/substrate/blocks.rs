//! Free blocks, in memory: per shard an ordered tree of ranges, as NOVA keeps one per processor. What is free is not on the image; recovery finds what is in
//! use.

use super::shard;
use crate::error::Result;
use crate::locks;
use crate::multicore::places::Place;
use posix::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Blocks in a row, by number (offset / 4096).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// The first.
    pub start: u64,
    /// How many; at least one.
    pub count: u64,
}

/// Lists of free blocks. Any thread may allocate and free; with as many shards as threads they do not meet unless memory runs short.
#[derive(Debug)]
pub struct FreeBlocks {
    // By start of the range: its length. Neighbours are merged.
    shards: Vec<Mutex<BTreeMap<u64, u64>>>,
    free: AtomicU64,
    blocks: BlockRange,
}

impl FreeBlocks {
    /// All of `blocks` free, divided evenly among `shards`.
    pub fn new(blocks: BlockRange, shards: usize) -> FreeBlocks {
        FreeBlocks::with_used(blocks, shards, |_| false)
    }

    /// Those of `blocks` free that are not in use.
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

    /// What lies where, for people.
    pub fn places(&self) -> Vec<Place> {
        let size = size_of::<Mutex<BTreeMap<u64, u64>>>() as u64;
        let lists = Place::at("list of free blocks", self.shards.as_ptr() as u64, self.shards.len() as u64 * size);
        vec![lists.each(size), Place::of("count of free blocks", &self.free)]
    }

    /// Whose a block is: it goes back to the list that it came from, so that ranges heal.
    fn home(&self, block: u64) -> usize {
        let per_shard = self.blocks.count.div_ceil(self.shards.len() as u64).max(1);
        (((block - self.blocks.start) / per_shard) as usize).min(self.shards.len() - 1)
    }

    fn list(&self, shard: usize) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        locks::lock(&self.shards[shard])
    }

    /// One block.
    pub fn allocate(&self) -> Result<u64> {
        self.allocate_up_to(1).map(|range| range.start)
    }

    /// Up to `count` blocks in a row, at least one. ENOSPC if there is none.
    pub fn allocate_up_to(&self, count: u64) -> Result<BlockRange> {
        let mine = shard(self.shards.len());
        let found = (0..self.shards.len()).find_map(|step| self.take((mine + step) % self.shards.len(), count));
        found.ok_or(Errno::ENOSPC.into())
    }

    fn take(&self, shard: usize, count: u64) -> Option<BlockRange> {
        let mut list = self.list(shard);
        // The first range that is long enough among the next few, else the first: neither a long search nor needless pieces.
        let fits = list.iter().take(8).find(|(_, length)| **length >= count).map(|(start, _)| *start);
        let start = fits.or_else(|| list.keys().next().copied())?;
        let length = list.get_mut(&start)?;
        let taken = count.min(*length);
        // From its end: the tree keeps its keys.
        *length -= taken;
        let range = BlockRange { start: start + *length, count: taken };
        if *length == 0 {
            list.remove(&start);
        }
        self.free.fetch_sub(taken, Relaxed);
        Some(range)
    }

    /// Gives one back.
    pub fn free(&self, block: u64) {
        self.free_range(BlockRange { start: block, count: 1 });
    }

    /// Gives some back. Blocks outside of what this manages are ignored: only a damaged image names them.
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

    /// Blocks that are free.
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
        // Three shards: three whole ranges.
        assert_eq!((0..3).map(|shard| lists.list(shard).len()).sum::<usize>(), 3);
    }
}
