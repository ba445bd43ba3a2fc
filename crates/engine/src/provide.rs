//! Provides the memory of the DRAM region and of the image before it is touched for the first time.
//!
//! Both may be sparse files on a file system that fills up. A store to a hole then raises SIGBUS.
//! So the memory is requested in chunks by a call that can fail, and the operation fails with it.
//!
//! Invariants
//! - Nothing of the region is accessed before its chunk is provided. Allocators provide what they
//!   hand out; attach provides what the image has in use.
//! - A bit says that a chunk was provided. It is set afterwards. If the thread dies in between, the
//!   chunk is provided again, which changes nothing.
//!
//! *Rejected:* asking for all memory at attach (an image of 1 GiB would be refused in a container
//! with 64 MiB; so it starts with 2 MiB of shared memory, one of 15 TiB with 749 MiB); handling
//! SIGBUS (the store cannot fail, so the process loses the image); growing the file in segments
//! (each access compares with a length that changes); fallocate (programs under `run` would need
//! the descriptor).
//!
//! *Limits:* before Linux 5.14 a full `/dev/shm` still raises SIGBUS. A program that installs a
//! filter of system calls touches memory without the question, because the filter may end it for a
//! call that it does not make itself.
//!
//! When chunks become huge pages: `crates/tables/src/huge_pages.rs`.

use crate::components::Provider;
use crate::dram::{
    BUCKETS_MIN, Bucket, CHUNK_BYTES, Cachelet, DramHeader, FIRST_CACHELETS, GROUP_BLOCKS, Group, SLOTS_MAX, SlabState,
    ThreadSlot, UPPER_FILE_BYTES, UPPER_START_BYTES,
};
use crate::error::{Error, Result};
use crate::format::INODES_PER_SEGMENT;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Memory, Region};

impl<'f, M: Memory> Provider<'f, M> {
    /// Provides `bytes` bytes of the DRAM region from `at` on. `NoMemory` if there is no room.
    #[inline]
    pub fn provide(self, at: u64, bytes: u64) -> Result<()> {
        for chunk in at / CHUNK_BYTES..(at + bytes).div_ceil(CHUNK_BYTES) {
            let (word, bit) = self.dram.provided(chunk)?;
            if word.load(Acquire) & bit == 0 {
                self.provide_chunk(chunk)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn provide_chunk(self, chunk: u64) -> Result<()> {
        let end = ((chunk + 1) * CHUNK_BYTES).min(self.dram.layout.tracking);
        self.request(self.dram.region(), chunk * CHUNK_BYTES..end).map_err(|_| Error::NoMemory)?;
        let (word, bit) = self.dram.provided(chunk)?;
        word.fetch_or(bit, Release);
        Ok(())
    }

    /// Asks the platform for the memory of a range, and of its marks if it is tracked. `NoSpace` if
    /// there is no room.
    fn request<R: Memory>(self, region: &Region<R>, range: Range<u64>) -> Result<()> {
        let length = range.end - range.start;
        let has_room = |address: *mut u8, length: usize| {
            if self.platform.provide(address, length) { Ok(()) } else { Err(Error::NoSpace) }
        };
        has_room(region.address(range.start, length)?, length as usize)?;
        let Some(tracking) = region.tracking() else { return Ok(()) };
        for (address, length) in tracking.marks_of(range.start, length) {
            // Whole pages, of which an area consists.
            let before = address.addr() % BLOCK_BYTES as usize;
            has_room(address.wrapping_sub(before), (before + length).next_multiple_of(BLOCK_BYTES as usize))?;
        }
        Ok(())
    }

    /// Provides bytes of the area for the layers above, counted from its start.
    #[inline]
    pub fn provide_upper(self, (at, bytes): (u64, u64)) -> Result<()> {
        self.provide(self.dram.layout.upper + at, bytes)
    }

    /// In a fresh region: provides what has no allocator.
    pub(crate) fn provide_fixed(self) -> Result<()> {
        let layout = &self.dram.layout;
        // Its own bits are in none of the chunks that it describes.
        self.request(self.dram.region(), layout.provided..layout.tracking).map_err(|_| Error::NoMemory)?;
        self.provide(0, size_of::<DramHeader>() as u64)?;
        self.provide(layout.slot_map, SLOTS_MAX / 8)?;
        self.provide(layout.tracking_header, BLOCK_BYTES)?;
        // Of groups that the image may get, the memory comes when it grows.
        let groups = self.geometry.attached().blocks.div_ceil(GROUP_BLOCKS);
        self.provide(layout.block_bits, groups * GROUP_BLOCKS / 8)?;
        self.provide(layout.groups, groups * size_of::<Group>() as u64)?;
        self.provide(layout.buckets, BUCKETS_MIN * size_of::<Bucket>() as u64)?;
        self.provide(layout.overflow, size_of::<Bucket>() as u64)?;
        self.provide(layout.upper, UPPER_START_BYTES)?;
        self.provide_cachelets(0..FIRST_CACHELETS)?;
        self.provide_segment(0)
    }

    /// Provides the state of a group's blocks.
    #[inline]
    pub(crate) fn provide_group(self, index: u64) -> Result<()> {
        if self.is_group_provided(index)? { Ok(()) } else { self.provide_states(index) }
    }

    #[cold]
    fn provide_states(self, index: u64) -> Result<()> {
        let (layout, first) = (&self.dram.layout, index * GROUP_BLOCKS);
        let slab = size_of::<SlabState>() as u64;
        for (area, bytes) in [(layout.slabs, slab), (layout.block_shares, 4), (layout.block_owners, 8)] {
            self.provide(area + first * bytes, GROUP_BLOCKS * bytes)?;
        }
        self.dram.group(index)?.has_states.store(1, Release);
        Ok(())
    }

    /// Whether the state of a group's blocks is provided.
    #[inline]
    pub(crate) fn is_group_provided(self, index: u64) -> Result<bool> {
        Ok(self.dram.group(index)?.has_states.load(Acquire) != 0)
    }

    /// Provides the memory of blocks of a group, whose lock the caller holds. `NoSpace` if the
    /// storage is full.
    #[inline]
    pub(crate) fn provide_blocks(self, state: &Group, (first, count): (u64, u64)) -> Result<()> {
        const CHUNK_BLOCKS: u64 = CHUNK_BYTES / BLOCK_BYTES;
        let group = first / GROUP_BLOCKS * GROUP_BLOCKS;
        let (start, end) = ((first - group) / CHUNK_BLOCKS, (first - group + count).div_ceil(CHUNK_BLOCKS));
        let wanted = (u64::MAX >> (64 - (end - start))) << start;
        if u64::from(state.provided.load(Relaxed)) & wanted == wanted {
            return Ok(());
        }
        self.request_blocks(state, group, start..end)
    }

    /// Records that blocks of a group, whose lock the caller holds, may be holes from now on. The
    /// first one counts from the group's start.
    pub(crate) fn forget_provided(self, state: &Group, (first, count): (u64, u64)) {
        const CHUNK_BLOCKS: u64 = CHUNK_BYTES / BLOCK_BYTES;
        let (start, end) = (first / CHUNK_BLOCKS, (first + count).div_ceil(CHUNK_BLOCKS));
        let holes = (u64::MAX >> (64 - (end - start))) << start;
        let provided = state.provided.load(Relaxed);
        state.provided.store(provided & !(holes as u32), Release);
    }

    #[cold]
    fn request_blocks(self, state: &Group, group: u64, chunks: Range<u64>) -> Result<()> {
        for chunk in chunks {
            let provided = state.provided.load(Relaxed);
            if provided >> chunk & 1 == 0 {
                let at = group * BLOCK_BYTES + chunk * CHUNK_BYTES;
                self.request(&self.pm, at..(at + CHUNK_BYTES).min(self.image_bytes()))?;
                state.provided.store(provided | 1 << chunk, Relaxed);
            }
        }
        Ok(())
    }

    /// Provides bytes of the image that belong to no allocated block. `NoSpace` if the storage is
    /// full.
    pub(crate) fn provide_image(self, at: u64, bytes: u64) -> Result<()> {
        let (start, end) = (at / BLOCK_BYTES, (at + bytes).div_ceil(BLOCK_BYTES));
        self.request(&self.pm, start * BLOCK_BYTES..end * BLOCK_BYTES)?;
        // The fixed areas are resident anyway, and a page of the list is written whole.
        self.pm.set_resident(at, bytes);
        Ok(())
    }

    /// Loads what is not resident of a range of blocks, before a store to a part of them. The
    /// caller holds the lock of the file that they belong to, and no other file shares them.
    /// `NoSpace` if the storage is full; `ContentLost` if the memory there has a known error.
    #[inline(always)]
    pub(crate) fn load(self, at: u64, bytes: u64) -> Result<()> {
        if self.pm.residency().is_none() { Ok(self.pm.check_memory(at, bytes)?) } else { self.load_absent(at, bytes) }
    }

    #[inline(never)]
    fn load_absent(self, at: u64, bytes: u64) -> Result<()> {
        if bytes == 0 || self.pm.is_resident(at, bytes) {
            return Ok(());
        }
        let (start, end) = (at / BLOCK_BYTES * BLOCK_BYTES, (at + bytes).next_multiple_of(BLOCK_BYTES));
        self.request(&self.pm, start..end.min(self.image_bytes()))?;
        Ok(self.pm.load(at, bytes)?)
    }

    /// Provides the allocated blocks in a range of the image that may be holes: a copy leaves out
    /// what is zero. Before other threads enter. `NoSpace` if the storage is full.
    pub fn provide_allocated(self, range: Range<u64>) -> Result<()> {
        let end = (range.end / BLOCK_BYTES).min(self.blocks());
        let mut at = (range.start / BLOCK_BYTES).max(self.geometry.data_block);
        while at < end {
            let (group, first) = (at / GROUP_BLOCKS, at / GROUP_BLOCKS * GROUP_BLOCKS);
            if u64::from(self.dram.group(group)?.free.load(Relaxed)) == GROUP_BLOCKS {
                at = first + GROUP_BLOCKS;
                continue;
            }
            let map = self.block_map().free_map(group)?;
            let used = first + map.next(at - first, false);
            let free = first + map.next(used - first, true);
            let (used, free) = (used.min(end), free.min(end));
            if used < free {
                self.request(&self.pm, used * BLOCK_BYTES..free * BLOCK_BYTES)?;
            }
            at = free.max(at + 1);
        }
        Ok(())
    }

    /// Provides the bits of a segment's inode numbers, and their links.
    pub(crate) fn provide_segment(self, segment: u64) -> Result<()> {
        let (layout, first) = (&self.dram.layout, segment * INODES_PER_SEGMENT);
        self.provide(layout.inode_bits + first / 8, INODES_PER_SEGMENT / 8)?;
        self.provide(layout.inode_links + first * 4, INODES_PER_SEGMENT * 4)
    }

    /// Provides cachelets with what the layers above keep for each.
    pub(crate) fn provide_cachelets(self, indexes: Range<u64>) -> Result<()> {
        let (layout, bytes) = (&self.dram.layout, size_of::<Cachelet>() as u64);
        let Some(last) = indexes.end.checked_sub(1) else { return Ok(()) };
        let count = indexes.end - indexes.start;
        self.provide(layout.cachelets + indexes.start * bytes, count * bytes)?;
        self.provide(layout.upper_file(last), count * UPPER_FILE_BYTES)
    }

    /// Provides a thread slot.
    pub(crate) fn provide_slot(self, index: u64) -> Result<()> {
        let bytes = size_of::<ThreadSlot>() as u64;
        self.provide(self.dram.layout.slots + index * bytes, bytes)
    }
}
