//! The DRAM region: everything that can be rebuilt from the image. Its layout is computed from the
//! image's geometry and a budget. Its addresses are reserved whole. Its memory comes in chunks,
//! each provided before it is touched for the first time ([`crate::provide`]).
//!
//! Invariants
//! - Nothing in it is needed to recover the image.
//! - All links are indexes (cachelets, buckets, slots, blocks). Index 0 of cachelets and overflow
//!   buckets is never allocated and means "none".
//! - A fresh region is all zero, and zero is the initial state of everything except some header
//!   fields, which the first attach sets.
//!
//! Decision: docs/decisions/foundations.md, "Two regions, linked by offsets".
mod bucket;
mod cachelet;
mod header;
mod name_changes;
mod slot;
mod slot_map;

pub use bucket::{BUCKET_ENTRIES, Bucket, BucketEntry};
pub use cachelet::{
    Cachelet, CountedChange, DIRECTORY_LINKS, DIRTY, DirectoryState, DirectoryView, FLAG_DEAD, FLAG_DELETED,
    FLAG_EVICTED, FLAG_HELD, FLAG_READABLE, FLAG_RENAMING, FLAG_UNNAMED, FileView, FreeView, LogCounts, MAPPED,
    MAPPED_KEPT, MAPPED_STORES, MAPPED_TIMES_SET, PLAIN, References,
};
pub use header::{
    DRAM_MAGIC, DRAM_VERSION, DramHeader, INODE_MAP_PARTS, InodeMapPart, JournalPair, Phase, SHARED_JOURNAL_PAIRS,
};
pub use name_changes::{CountChange, LogBatch, NameChanges, PendingChange, SeenTotals};
pub use slot::{
    HELD_MAX, InFlight, Intent, IntentKind, MAGAZINE_INODES, MOVES_MAX, Owner, RECYCLE_BATCH, REDO_MAX, REFERENCES_MAX,
    RETIRED_MAX, Redo, Retired, RetiredKind, STEP_BEGUN, STEP_DONE, STEP_RETIRING, ThreadSlot,
};
pub use slot_map::SlotMap;

use crate::error::Result;
use crate::format::{Geometry, INODES_PER_SEGMENT};
use crate::sync::{AtomicU32, AtomicU64};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Acquire;
use pmem::{BLOCK_BYTES, BadOffset, Direct, Layout, Pm, Region, Sleeping, Tracking};

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Blocks in a group, which a shard claims at a time: 2 MiB.
pub const GROUP_BLOCKS: u64 = 512;
/// Buckets of a new mindex. It grows from here one bucket at a time.
pub const BUCKETS_MIN: u64 = 1024;
/// The most thread slots of a region: as many threads can be inside the engine at once. The ticket
/// of a slot, its index plus one, has 16 bits in a dead cachelet.
pub const SLOTS_MAX: u64 = (1 << 16) - 64;
const _: () = assert!(SLOTS_MAX < 1 << 16 && SLOTS_MAX.is_multiple_of(64));
/// Cachelets beyond the files, for those that shards keep ready.
const CACHELETS_READY: u64 = 2048;
/// The memory of a region is provided in chunks of this length.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Bytes of the area for the layers above, without their per-file records. Sparse, like all areas.
pub const UPPER_BYTES: u64 = 832 << 20;
/// Bytes at the start of that area that attach provides.
pub const UPPER_START_BYTES: u64 = 16 << 10;
/// Bytes of the layers above per cachelet.
pub const UPPER_FILE_BYTES: u64 = 32;

/// For so many of the first cachelets these lie in one chunk with the first of the cachelets.
pub const FIRST_CACHELETS: u64 = CHUNK_BYTES / 4 / UPPER_FILE_BYTES;
const _: () = assert!(FIRST_CACHELETS <= CACHELETS_READY);

/// Bytes of them for so many cachelets: rounded up, so that the first ones lie at the start of a
/// huge page.
const fn upper_files_bytes(cachelets: u64) -> u64 {
    (cachelets * UPPER_FILE_BYTES).next_multiple_of(HUGE_PAGE_BYTES) + FIRST_CACHELETS * UPPER_FILE_BYTES
}

/// State of a block that holds dentries. Changes under its lock.
#[repr(C, align(32))]
pub struct SlabState {
    /// Free lines (bit per line) while no shard owns the slab; an owning shard keeps them in its
    /// slot.
    pub free_lines: AtomicU64,
    /// Next slab of the list that this one is on; see `alloc::lines`.
    pub next: AtomicU32,
    /// 0: no slab; 1: full, on no list; 2: on a list; 3: owned by a shard.
    pub state: AtomicU32,
    /// Slot + 1 of the thread that changes it.
    pub lock: AtomicU32,
    /// Waiters on `lock`.
    pub waiters: AtomicU32,
    /// Zero.
    pub reserved: AtomicU64,
}
// SAFETY: repr(C), 8 + 4 * 4 + 8 bytes without padding, atomics only.
unsafe impl Layout for SlabState {}

/// State of a group of blocks. The bits of its blocks, `free` and `provided` change under its lock.
#[repr(C, align(32))]
pub struct Group {
    /// Slot + 1 of the thread that changes it.
    pub lock: AtomicU32,
    /// Waiters on `lock`.
    pub waiters: AtomicU32,
    /// Slot + 1 of the shard that allocates here, or zero.
    pub owner: AtomicU32,
    /// Free blocks.
    pub free: AtomicU32,
    /// A bit for each [`CHUNK_BYTES`] of the group's blocks whose memory was provided since the
    /// region was built.
    pub provided: AtomicU32,
    /// 1: the state of each of its blocks was provided.
    pub has_states: AtomicU32,
    /// Zero.
    pub reserved: [AtomicU32; 2],
}
const _: () = assert!(GROUP_BLOCKS * BLOCK_BYTES == CHUNK_BYTES * u32::BITS as u64);
// SAFETY: repr(C), 8 * 4 bytes without padding, atomics only.
unsafe impl Layout for Group {}

/// Offsets of the areas of a DRAM region: a pure function of geometry, capacity, budget and slots.
/// An area with something per block has room for the blocks that the image may get while it is in
/// use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DramLayout {
    /// A bit per thread slot: see [`SlotMap`].
    pub slot_map: u64,
    /// The header of the image's tracking area.
    pub tracking_header: u64,
    /// Area for the layers above (open files, processes, locks, watches). It begins in the first
    /// chunk: each page fault of a start maps what lies close together.
    pub upper: u64,
    /// A bit per block, set: in use.
    pub block_bits: u64,
    /// A [`Group`] per group: see `alloc::blocks`.
    pub groups: u64,
    /// Number of groups that there is room for.
    pub groups_max: u64,
    /// A [`SlabState`] per block.
    pub slabs: u64,
    /// A bit per inode number, set: in use.
    pub inode_bits: u64,
    /// A counter (u32) per inode number: references found by recovery.
    pub inode_links: u64,
    /// A counter (u32) per block: references beyond the first, of shared blocks.
    pub block_shares: u64,
    /// A word per block: its owner, where that must be known. See `alloc::blocks`.
    pub block_owners: u64,
    /// Buckets.
    pub buckets: u64,
    /// Maximum number of buckets.
    pub buckets_max: u64,
    /// Overflow buckets.
    pub overflow: u64,
    /// Number of overflow buckets.
    pub overflow_max: u64,
    /// Records of the layers above, [`UPPER_FILE_BYTES`] for each cachelet. The first cachelet's
    /// record is the last: see [`DramLayout::upper_file`].
    pub upper_files: u64,
    /// Cachelets. The first ones share a chunk with what the layers above have for them.
    pub cachelets: u64,
    /// Number of cachelets.
    pub cachelets_max: u64,
    /// Thread slots.
    pub slots: u64,
    /// Number of thread slots.
    pub slots_max: u64,
    /// A bit per [`CHUNK_BYTES`] of the region before this area, set: its memory was provided.
    pub provided: u64,
    /// The [`Tracking`] area of the image without its header, in use while a snapshot is taken of
    /// an image that is not committed to a disk.
    pub tracking: u64,
    /// Bytes of the region.
    pub length: u64,
}

impl DramLayout {
    /// The layout for an image with at most `cached_files_max` cached files (0: as many as the
    /// image holds), `capacity_blocks` blocks, and `slots_max` thread slots (0: [`SLOTS_MAX`]).
    pub fn new(geometry: &Geometry, capacity_blocks: u64, cached_files_max: u64, slots_max: u64) -> DramLayout {
        let slots_max = if slots_max == 0 { SLOTS_MAX } else { slots_max.min(SLOTS_MAX) };
        let files = match cached_files_max {
            0 => geometry.inodes_max(),
            limit => limit.clamp(1024, geometry.inodes_max().max(1024)),
        };
        let blocks = capacity_blocks.max(geometry.blocks);
        let groups_max = blocks.div_ceil(GROUP_BLOCKS);
        let inodes_max = geometry.segments_max * INODES_PER_SEGMENT;
        let cachelets_max = files + CACHELETS_READY;
        let buckets_max = files.next_power_of_two().max(BUCKETS_MIN);
        let overflow_max = buckets_max;
        let mut at = size_of::<DramHeader>() as u64;
        let mut reserve = |bytes: u64, align: u64| {
            let start = at.next_multiple_of(align);
            at = start + bytes.next_multiple_of(4096);
            start
        };
        let mut layout = DramLayout {
            slot_map: reserve(SLOTS_MAX / 8, 4096),
            tracking_header: reserve(BLOCK_BYTES, 4096),
            upper: reserve(UPPER_BYTES, 4096),
            block_bits: reserve(groups_max * GROUP_BLOCKS / 8, 4096),
            groups: reserve(groups_max * size_of::<Group>() as u64, 4096),
            groups_max,
            slabs: reserve(blocks * size_of::<SlabState>() as u64, 4096),
            inode_bits: reserve(inodes_max / 8, 4096),
            inode_links: reserve(inodes_max * 4, 4096),
            block_shares: reserve(blocks * 4, 4096),
            // Areas with random access begin at a huge page, so that they can have huge pages of
            // their own.
            block_owners: reserve(groups_max * GROUP_BLOCKS * 8, HUGE_PAGE_BYTES),
            buckets: reserve(buckets_max * size_of::<Bucket>() as u64, HUGE_PAGE_BYTES),
            buckets_max,
            overflow: reserve(overflow_max * size_of::<Bucket>() as u64, HUGE_PAGE_BYTES),
            overflow_max,
            upper_files: reserve(upper_files_bytes(cachelets_max), HUGE_PAGE_BYTES),
            cachelets: reserve(cachelets_max * size_of::<Cachelet>() as u64, 4096),
            cachelets_max,
            slots: reserve(slots_max * size_of::<ThreadSlot>() as u64, CHUNK_BYTES),
            slots_max,
            provided: 0,
            tracking: 0,
            length: 0,
        };
        layout.provided = at;
        layout.tracking = (at + layout.provided_words() * 8).next_multiple_of(4096);
        layout.length = layout.tracking + Tracking::area_bytes(blocks * BLOCK_BYTES);
        layout
    }

    /// Where the [`UPPER_FILE_BYTES`] of the layers above for a cachelet are. The further the
    /// cachelet is from the start of its area, the further these are from the end of theirs.
    #[inline(always)]
    pub fn upper_file(&self, cachelet: u64) -> u64 {
        self.cachelets.wrapping_sub((cachelet + 1) * UPPER_FILE_BYTES)
    }

    /// The cachelet for which the layers above have the byte at an offset.
    pub fn cachelet_of_upper_file(&self, offset: u64) -> Option<u64> {
        let is_inside = (self.upper_files..self.cachelets).contains(&offset);
        let cachelet = (self.cachelets - 1).checked_sub(offset)? / UPPER_FILE_BYTES;
        (is_inside && cachelet < self.cachelets_max).then_some(cachelet)
    }

    /// Words of the bits in `provided`.
    pub fn provided_words(&self) -> u64 {
        self.provided.div_ceil(CHUNK_BYTES * 64)
    }
}

/// A DRAM region with its layout.
pub struct Dram {
    slots: &'static [ThreadSlot],
    slot_map: &'static [AtomicU64],
    provided: &'static [AtomicU64],
    cachelets: &'static [Cachelet],
    buckets: &'static [Bucket],
    overflow: &'static [Bucket],
    slabs: &'static [SlabState],
    block_words: &'static [AtomicU64],
    groups: &'static [Group],
    inode_words: &'static [AtomicU64],
    inode_links: &'static [AtomicU32],
    block_shares: &'static [AtomicU32],
    block_owners: &'static [AtomicU64],
    /// Offsets of the areas.
    pub layout: DramLayout,
    /// The memory. It never leaves this struct, because the tables borrow from it.
    region: Region<Direct>,
}

/// The element of a table, or an error if the index is out of bounds.
#[inline(always)]
fn element<T>(table: &[T], index: u64) -> Result<&T> {
    table.get(index as usize).ok_or_else(|| BadOffset { offset: index, length: table.len() as u64 }.into())
}

/// `count` structures from an offset on, after one bounds check for all of them.
///
/// # Safety
/// The result must be used only while the region is mapped.
unsafe fn table<T: Layout>(region: &Region<Direct>, at: u64, count: u64) -> Result<&'static [T]> {
    let table: *const [T] = region.slice(Pm::new(at), count)?;
    // SAFETY: a slice of the region, which is mapped by the function's contract.
    Ok(unsafe { &*table })
}

impl Dram {
    /// A region of that layout; fails if the region is too short.
    pub fn new(region: Region<Direct>, layout: DramLayout) -> Result<Dram> {
        let blocks = layout.groups_max * GROUP_BLOCKS;
        let inode_words = (layout.inode_links - layout.inode_bits) / 8;
        let inode_links = (layout.block_shares - layout.inode_links) / 4;
        let block_shares = (layout.block_owners - layout.block_shares) / 4;
        // SAFETY: the tables and the region are private to the value made here, which keeps the
        // region. Its methods lend them out only while it is borrowed.
        unsafe {
            Ok(Dram {
                slots: table(&region, layout.slots, layout.slots_max)?,
                slot_map: table(&region, layout.slot_map, SLOTS_MAX / 64)?,
                provided: table(&region, layout.provided, layout.provided_words())?,
                cachelets: table(&region, layout.cachelets, layout.cachelets_max)?,
                buckets: table(&region, layout.buckets, layout.buckets_max)?,
                overflow: table(&region, layout.overflow, layout.overflow_max)?,
                slabs: table(&region, layout.slabs, blocks)?,
                block_words: table(&region, layout.block_bits, blocks / 64)?,
                groups: table(&region, layout.groups, layout.groups_max)?,
                inode_words: table(&region, layout.inode_bits, inode_words)?,
                inode_links: table(&region, layout.inode_links, inode_links)?,
                block_shares: table(&region, layout.block_shares, block_shares)?,
                block_owners: table(&region, layout.block_owners, blocks)?,
                layout,
                region,
            })
        }
    }

    /// The tracking area of an image that reaches so far.
    pub(crate) fn tracking(&self, image_bytes: u64, sleeping: &'static Sleeping) -> Result<Tracking> {
        let area = self.region.address(self.layout.tracking, Tracking::area_bytes(image_bytes))?;
        let area = NonNull::new(area).ok_or(BadOffset { offset: self.layout.tracking, length: 0 })?;
        let header = self.region.address(self.layout.tracking_header, BLOCK_BYTES)?;
        let header = NonNull::new(header).ok_or(BadOffset { offset: self.layout.tracking_header, length: 0 })?;
        // SAFETY: both ranges lie in the region, which is mapped as long as the image is used. Only
        // tracking areas access them.
        Ok(unsafe { Tracking::new(area, image_bytes, sleeping).with_header(header) })
    }

    /// The memory.
    #[inline]
    pub fn region(&self) -> &Region<Direct> {
        &self.region
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> Result<&DramHeader> {
        Ok(self.region.first::<DramHeader>()?)
    }

    /// Thread slot `index`.
    #[inline]
    pub fn slot(&self, index: u32) -> Result<&ThreadSlot> {
        element(self.slots, index as u64)
    }

    /// The map of thread slots.
    pub fn slot_map(&self) -> SlotMap<'_> {
        SlotMap::new(self.slot_map)
    }

    /// The word of the bits in `provided` for a chunk of the region, and the chunk's bit.
    #[inline(always)]
    pub(crate) fn provided(&self, chunk: u64) -> Result<(&AtomicU64, u64)> {
        Ok((element(self.provided, chunk / 64)?, 1 << (chunk % 64)))
    }

    /// Whether a byte of the region is provided. What is not was never written: it is zero.
    #[inline(always)]
    pub(crate) fn is_provided(&self, at: u64) -> Result<bool> {
        let (word, bit) = self.provided(at / CHUNK_BYTES)?;
        Ok(word.load(Acquire) & bit != 0)
    }

    /// Whether a byte of the area for the layers above is provided, counted from its start.
    #[inline(always)]
    pub fn is_upper_provided(&self, at: u64) -> bool {
        self.is_provided(self.layout.upper + at).unwrap_or(false)
    }

    /// Cachelet `index`.
    #[inline]
    pub fn cachelet(&self, index: u32) -> Result<&Cachelet> {
        element(self.cachelets, index as u64)
    }

    /// The index of a cachelet of this region.
    #[inline]
    pub fn index_of(&self, cachelet: &Cachelet) -> u32 {
        ((self.region.offset_of(cachelet) - self.layout.cachelets) / size_of::<Cachelet>() as u64) as u32
    }

    /// Prefetches both lines of a cachelet.
    #[inline]
    pub fn prefetch_cachelet(&self, index: u32) {
        self.prefetch_cachelet_front(index);
        self.prefetch_cachelet_rest(index);
    }

    /// Prefetches the first line of a cachelet: it identifies the file and decides the access to
    /// it.
    #[inline]
    pub fn prefetch_cachelet_front(&self, index: u32) {
        self.region.prefetch(self.cachelet_offset(index));
    }

    /// Prefetches the second line of a cachelet: times, blocks, and the fields that change the
    /// file.
    #[inline]
    pub fn prefetch_cachelet_rest(&self, index: u32) {
        self.region.prefetch(self.cachelet_offset(index) + 64);
    }

    #[inline]
    fn cachelet_offset(&self, index: u32) -> u64 {
        self.layout.cachelets + index as u64 * size_of::<Cachelet>() as u64
    }

    /// Main bucket `index`.
    #[inline]
    pub fn bucket(&self, index: u64) -> Result<&Bucket> {
        element(self.buckets, index)
    }

    /// Overflow bucket `index`.
    #[inline]
    pub fn overflow(&self, index: u32) -> Result<&Bucket> {
        element(self.overflow, index as u64)
    }

    /// The slab state of a block.
    #[inline]
    pub fn slab(&self, block: u64) -> Result<&SlabState> {
        element(self.slabs, block)
    }

    /// Word `index` of the block bits.
    #[inline]
    pub fn block_word(&self, index: u64) -> Result<&AtomicU64> {
        element(self.block_words, index)
    }

    /// Group `index`.
    #[inline]
    pub fn group(&self, index: u64) -> Result<&Group> {
        element(self.groups, index)
    }

    /// Word `index` of the inode bits.
    #[inline]
    pub fn inode_word(&self, index: u64) -> Result<&AtomicU64> {
        element(self.inode_words, index)
    }

    /// Recovery's count of names of an inode.
    #[inline]
    pub fn inode_links(&self, number: u64) -> Result<&AtomicU32> {
        element(self.inode_links, number)
    }

    /// References to a block beyond the first.
    #[inline]
    pub fn block_shares(&self, block: u64) -> Result<&AtomicU32> {
        element(self.block_shares, block)
    }

    /// The owner of a block.
    #[inline]
    pub fn block_owner(&self, block: u64) -> Result<&AtomicU64> {
        element(self.block_owners, block)
    }
}
