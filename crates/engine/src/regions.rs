//! The two regions of a file system: their content by number and offset, and the memory of areas.

use crate::alloc::BlockRun;
use crate::dram::{Dram, DramHeader, GROUP_BLOCKS, HUGE_PAGE_BYTES};
use crate::error::{Corruption, Result};
use crate::format::{INODE_BYTES, INODES_PER_SEGMENT, Inode, Segment, Superblock, listed_inode_offset};
use crate::platform::Platform;
use crate::size::Areas;
use core::ops::Range;
use pmem::{BLOCK_BYTES, Commit64, Direct, Memory, Pm, Region};

/// The regions, and what provides their memory. The file system claims slots, and judges threads
/// and processes.
pub struct Regions<M: Memory = Direct> {
    pub(crate) pm: Region<M>,
    pub(crate) dram: Dram,
    pub(crate) geometry: Areas,
    pub(crate) platform: &'static dyn Platform,
}

impl<M: Memory> Regions<M> {
    /// The PM region.
    pub fn pm(&self) -> &Region<M> {
        &self.pm
    }

    /// The DRAM region.
    pub fn dram(&self) -> &Dram {
        &self.dram
    }

    /// Services of the operating system.
    pub fn platform(&self) -> &'static dyn Platform {
        self.platform
    }

    /// An allocator that fills an area of the DRAM region upwards takes `bytes` of it, counted from
    /// the start of the area, which is aligned to huge pages. On reaching another huge page,
    /// provides that page as a whole. This costs less than single pages, and lookups miss the TLB
    /// less often. The first page is provided only together with the second: small file systems
    /// take little memory.
    #[inline]
    pub(crate) fn enter_area(&self, area: u64, bytes: Range<u64>, area_bytes: u64) {
        let page = (bytes.end - 1) / HUGE_PAGE_BYTES;
        // True for the caller that takes the first byte of the page. If that byte is in the middle
        // of `bytes`, the caller was in the page before.
        if page > 0 && bytes.start <= page * HUGE_PAGE_BYTES && (page + 1) * HUGE_PAGE_BYTES <= area_bytes {
            let first = if page == 1 { 0 } else { page };
            provide_huge(
                self.platform,
                self.dram.region(),
                area + first * HUGE_PAGE_BYTES..area + (page + 1) * HUGE_PAGE_BYTES,
            );
        }
    }

    /// Provides huge pages for groups of blocks; returns whether they have them.
    #[cold]
    pub(crate) fn provide_groups(&self, groups: Range<u64>) -> bool {
        const { assert!(GROUP_BLOCKS * BLOCK_BYTES == HUGE_PAGE_BYTES) };
        provide_huge(self.platform, &self.pm, groups.start * HUGE_PAGE_BYTES..groups.end * HUGE_PAGE_BYTES)
    }

    pub(crate) fn header(&self) -> Result<&DramHeader> {
        self.dram.header()
    }

    pub(crate) fn superblock(&self) -> Result<&Superblock> {
        Ok(self.pm.first()?)
    }

    /// The offset of an inode by its number, through the segment table.
    pub(crate) fn inode_offset(&self, number: u64) -> Result<u64> {
        if number == 0 || number >= self.geometry.inodes_max() {
            return Err(Corruption::Inode(number).into());
        }
        self.inode_offset_in(self.segment_entry(number / INODES_PER_SEGMENT)?.load_acquire(), number)
    }

    /// `inode_offset` for a known segment word.
    #[inline]
    pub(crate) fn inode_offset_in(&self, segment_word: u64, number: u64) -> Result<u64> {
        let index = number % INODES_PER_SEGMENT;
        if segment_word != 0 && segment_word.is_multiple_of(BLOCK_BYTES) {
            return Ok(segment_word + index * INODE_BYTES);
        }
        listed_inode_offset(&self.pm, segment_word, index).ok_or(Corruption::Inode(number).into())
    }

    /// The entry of the segment table for a segment. `alloc::inodes` writes it.
    pub(crate) fn segment_entry(&self, segment: u64) -> Result<&Commit64> {
        if segment >= self.geometry.segments_max {
            return Err(Corruption::Inode(segment * INODES_PER_SEGMENT).into());
        }
        Ok(self.pm.get(Pm::new(self.geometry.segment_table_block * BLOCK_BYTES + segment * 8))?)
    }

    /// The inodes of a segment, if the entry of the table is plausible.
    pub(crate) fn segment(&self, segment: u64) -> Option<Segment> {
        let word = self.segment_entry(segment).ok()?.load_acquire();
        Segment::read(&self.pm, segment, word, |block| self.block_map().is_data(BlockRun { first: block, count: 1 }))
            .ok()
    }

    /// The inode at an offset from `inode_offset` or a cachelet.
    pub(crate) fn inode_at(&self, offset: u64) -> Result<&Inode> {
        Ok(self.pm.get(Pm::new(offset))?)
    }

    /// The inode with a number.
    pub(crate) fn inode(&self, number: u64) -> Result<&Inode> {
        self.inode_at(self.inode_offset(number)?)
    }

    /// The time for timestamps, in ns since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.platform.now_ns()
    }
}

#[cold]
fn provide_huge<R: Memory>(platform: &dyn Platform, region: &Region<R>, range: Range<u64>) -> bool {
    let length = range.end - range.start;
    region.address(range.start, length).is_ok_and(|address| {
        (address as u64).is_multiple_of(HUGE_PAGE_BYTES) && platform.provide_huge(address, length as usize)
    })
}
