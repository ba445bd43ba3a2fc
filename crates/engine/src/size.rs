//! The size of an image, which may grow while it is in use: see `attach::growth`.
//!
//! Invariants
//! - The word in the header of the DRAM region counts for all its processes. It changes only under
//!   the lock of commits, and the image only grows.
//! - A process remembers the end of the data area. It never remembers more than there is, and looks
//!   at the header when a block lies behind what it remembers.

use crate::dram::GROUP_BLOCKS;
use crate::format::{Geometry, INODES_PER_SEGMENT};
use crate::regions::Regions;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use pmem::{BLOCK_BYTES, Memory};

/// In the word with a size: the image was resized, so its block map lies at its end.
const RESIZED: u64 = 1;

/// The areas of an image that stay where mkfs placed them, and what is known of the others.
pub(crate) struct Areas {
    /// First block of the journal slots.
    pub journal_block: u64,
    /// First block of the segment table.
    pub segment_table_block: u64,
    /// Entries of the segment table.
    pub segments_max: u64,
    /// First block of the inode map.
    pub inode_map_block: u64,
    /// First block that is allocated to files.
    pub data_block: u64,
    /// When this process attached.
    attached: Geometry,
    /// The block behind the last one that is allocated to files, as far as this process knows.
    data_end: AtomicU64,
}

impl Areas {
    pub fn new(geometry: Geometry) -> Areas {
        let Geometry { journal_block, segment_table_block, segments_max, inode_map_block, data_block, .. } = geometry;
        let data_end = AtomicU64::new(geometry.data_end());
        let attached = geometry;
        Areas { journal_block, segment_table_block, segments_max, inode_map_block, data_block, attached, data_end }
    }

    /// The bound of inode numbers, exclusive.
    #[inline(always)]
    pub fn inodes_max(&self) -> u64 {
        self.segments_max * INODES_PER_SEGMENT
    }

    /// When this process attached.
    pub fn attached(&self) -> &Geometry {
        &self.attached
    }
}

/// The word for the size of an image.
pub(crate) fn size_word(geometry: &Geometry) -> u64 {
    let is_resized = geometry.mkfs_blocks != 0;
    geometry.blocks * BLOCK_BYTES + if is_resized { RESIZED } else { 0 }
}

/// Bytes of an image with that size.
pub(crate) fn bytes_of(size_word: u64) -> u64 {
    size_word / BLOCK_BYTES * BLOCK_BYTES
}

/// The geometry of an image with that size. `geometry`: of the same image at any time. `None`: the
/// word is that of no size.
pub(crate) fn geometry_with(geometry: &Geometry, size_word: u64) -> Option<Geometry> {
    let bytes = bytes_of(size_word);
    if size_word & RESIZED != 0 {
        return geometry.with_length(bytes);
    }
    let mkfs_blocks = if geometry.mkfs_blocks == 0 { geometry.blocks } else { geometry.mkfs_blocks };
    let made = Geometry::new(mkfs_blocks * BLOCK_BYTES, geometry.segments_max * INODES_PER_SEGMENT);
    (made.blocks * BLOCK_BYTES == bytes).then_some(made)
}

impl<M: Memory> Regions<M> {
    /// The present positions of the image's areas.
    pub fn geometry(&self) -> Geometry {
        let attached = self.geometry.attached();
        let now = self.header().ok().and_then(|header| geometry_with(attached, header.image_size.load(Acquire)));
        now.unwrap_or(*attached)
    }

    /// Bytes of the image now.
    pub fn image_bytes(&self) -> u64 {
        self.blocks() * BLOCK_BYTES
    }

    /// Whether the space of the image's file was reserved as a whole, when a process used it first.
    pub fn is_reserved(&self) -> bool {
        self.header().is_ok_and(|header| header.is_reserved.load(Relaxed) != 0)
    }

    /// The most bytes that the image can have while the DRAM region lives.
    pub fn image_bytes_max(&self) -> u64 {
        let most = self.header().map_or(0, |header| header.image_bytes_max.load(Acquire));
        most.max(self.image_bytes())
    }

    /// Blocks of the image now.
    pub(crate) fn blocks(&self) -> u64 {
        let now = self.header().map_or(0, |header| header.image_size.load(Acquire) / BLOCK_BYTES);
        now.min(self.dram.layout.groups_max * GROUP_BLOCKS)
    }

    /// Groups of blocks of the image now. The state of others is not in memory.
    pub(crate) fn groups(&self) -> u64 {
        self.blocks().div_ceil(GROUP_BLOCKS)
    }

    /// The end of the data area as far as this process knows.
    #[inline(always)]
    pub(crate) fn data_end_known(&self) -> u64 {
        self.geometry.data_end.load(Relaxed)
    }

    /// Whether `end` is not behind the end of the data area.
    #[inline(always)]
    pub(crate) fn reaches(&self, end: u64) -> bool {
        end <= self.data_end_known() || self.reaches_after_growth(end)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn reaches_after_growth(&self, end: u64) -> bool {
        let now = self.geometry().data_end();
        self.geometry.data_end.fetch_max(now, Relaxed);
        end <= now
    }
}
