//! Inodes: found along chains of segments, allocated and freed in memory.

use super::Nova;
use super::format::{FREE, INODE_BYTES, Inode, SegmentHeader, TABLES, TABLES_BLOCK};
use crate::error::{Error, Result};
use crate::locks;
use crate::multicore::named_memory::NamedMemory;
use crate::substrate::{BlockRange, shard};
use pmem::{BLOCK_BYTES, Commit64, Durable, Memory, Pm};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Numbers that a thread takes from one table before it continues with the next.
const BATCH: u64 = 64;

/// The free inodes, in memory.
#[derive(Debug)]
pub(super) struct Inodes {
    /// Per table: number of inodes ever used. Held while a segment is added.
    tables: [Mutex<u64>; TABLES as usize],
    /// Per shard: free numbers.
    free: Vec<Mutex<Vec<u64>>>,
    next_table: AtomicU64,
    used: AtomicU64,
}

impl Inodes {
    pub(super) fn new(shards: usize) -> Inodes {
        Inodes {
            tables: Default::default(),
            free: (0..shards.max(1)).map(|_| Mutex::default()).collect(),
            next_table: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }

    pub(super) fn named_memory(&self) -> Vec<NamedMemory> {
        let size = size_of::<Mutex<Vec<u64>>>() as u64;
        let lists = NamedMemory::at("list of free inodes", self.free.as_ptr() as u64, self.free.len() as u64 * size);
        vec![
            lists.each(size),
            NamedMemory::of("lock of inode table", &self.tables).each(size_of::<Mutex<u64>>() as u64),
            NamedMemory::of("next inode table", &self.next_table),
            NamedMemory::of("count of inodes", &self.used),
        ]
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn list(&self, shard: usize) -> MutexGuard<'_, Vec<u64>> {
        locks::lock(&self.free[shard])
    }

    pub(super) fn count_used(&self) {
        self.used.fetch_add(1, Relaxed);
    }

    /// Called by recovery: `used` inodes of this table exist, and the numbers in `free` are free.
    pub(super) fn found(&self, table: u64, used: u64, free: Vec<u64>) {
        *locks::lock(&self.tables[table as usize]) = used;
        self.list(table as usize % self.free.len()).extend(free.into_iter().rev());
    }

    pub(super) fn give(&self, number: u64) {
        self.list(shard(self.free.len())).push(number);
        self.used.fetch_sub(1, Relaxed);
    }
}

/// Number of the inode at an index of a table.
pub(super) const fn number_of(table: u64, index: u64) -> u64 {
    index * TABLES + table + 1
}

impl<M: Memory> Nova<M> {
    pub(super) fn per_segment(&self) -> u64 {
        self.segment_blocks * BLOCK_BYTES / INODE_BYTES - 1
    }

    /// The word that links to the first segment of a table.
    pub(super) fn table_head(&self, table: u64) -> Result<&Commit64> {
        Ok(self.region.get(Pm::new(TABLES_BLOCK * BLOCK_BYTES + table * 8))?)
    }

    pub(super) fn segment(&self, at: u64) -> Result<&SegmentHeader> {
        if at == 0 || !self.region.contains(at, self.segment_blocks * BLOCK_BYTES) {
            return Err(Error::damaged("an inode segment lies outside the image", at));
        }
        Ok(self.region.get(Pm::new(at))?)
    }

    /// Finds an inode's offset along its table's chain.
    pub(super) fn find_inode(&self, number: u64) -> Result<u64> {
        let none = || Error::damaged("an entry refers to an invalid inode number", number);
        let position = number.checked_sub(1).ok_or_else(none)?;
        let (table, index) = (position % TABLES, position / TABLES);
        let mut at = self.table_head(table)?.load_acquire();
        for _ in 0..index / self.per_segment() {
            let segment = self.segment(at)?;
            self.region.report_read(at, 8);
            at = segment.next.load_acquire();
        }
        if at == 0 {
            return Err(none());
        }
        Ok(at + (index % self.per_segment() + 1) * INODE_BYTES)
    }

    pub(super) fn inode(&self, offset: u64) -> Result<&Inode> {
        Ok(self.region.get(Pm::new(offset))?)
    }

    /// Allocates an inode. Returns its number and offset.
    pub(super) fn take_inode(&self) -> Result<(u64, u64)> {
        let mine = shard(self.inodes.free.len());
        let taken = self.inodes.list(mine).pop();
        let number = match taken {
            Some(number) => number,
            None => match self.take_batch(mine) {
                Ok(number) => number,
                Err(error) => {
                    let others = 0..self.inodes.free.len();
                    others.into_iter().find_map(|shard| self.inodes.list(shard).pop()).ok_or(error)?
                }
            },
        };
        self.inodes.count_used();
        Ok((number, self.find_inode(number)?))
    }

    fn take_batch(&self, mine: usize) -> Result<u64> {
        let table = self.inodes.next_table.fetch_add(1, Relaxed) % TABLES;
        let mut used = locks::lock(&self.inodes.tables[table as usize]);
        let per_segment = self.per_segment();
        if used.is_multiple_of(per_segment) {
            self.add_segment(table, *used / per_segment)?;
        }
        let first = *used;
        // A batch ends with the segment.
        *used = (first + BATCH).min((first / per_segment + 1) * per_segment);
        let mut list = self.inodes.list(mine);
        list.extend((first + 1..*used).rev().map(|index| number_of(table, index)));
        Ok(number_of(table, first))
    }

    /// Adds segment number `count` to a table's chain.
    fn add_segment(&self, table: u64, count: u64) -> Result<()> {
        let range = BlockRange { start: self.blocks.allocate_run(self.segment_blocks)?, count: self.segment_blocks };
        let mut link = self.table_head(table)?;
        for _ in 0..count {
            link = &self.segment(link.load())?.next;
        }
        self.link_segment(link, range)?;
        Ok(())
    }

    pub(super) fn link_segment(&self, link: &Commit64, range: BlockRange) -> Result<Durable> {
        let at = range.start * BLOCK_BYTES;
        // Zeros make every inode of the segment free.
        let durable = self.region.fence(self.region.stream_zeros(at, range.count * BLOCK_BYTES)?);
        debug_assert_eq!(FREE, 0);
        let linked = self.region.commit(link, at, durable);
        Ok(self.region.persist(linked))
    }
}
