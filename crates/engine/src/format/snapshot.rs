//! What a clean detach leaves beside the maps: figures in the superblock, and a chain of pages with the free lines of dentry blocks.
//!
//! Invariants
//! - All of it counts only while the image's state is clean, and only if the checksum over maps, pages and figures matches.
//! - The pages lie in blocks that the block map calls free: the attach that reads them is the last that can.

use super::assert_layout;
use pmem::{Cell64, Layout, crc32c};

/// Entries of a page.
pub const SLAB_PAGE_ENTRIES: usize = 255;

/// A block of dentries that has free lines.
#[repr(C)]
pub struct SlabEntry {
    /// Number of the block.
    pub block: Cell64,
    /// A bit per line, set: free.
    pub free_lines: Cell64,
}
assert_layout!(SlabEntry, 16, block @ 0, free_lines @ 8);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for SlabEntry {}

/// A page of the chain.
#[repr(C, align(4096))]
pub struct SlabPage {
    /// Offset of the next page, or zero.
    pub next: Cell64,
    /// Entries in use.
    pub count: Cell64,
    /// The entries.
    pub entries: [SlabEntry; SLAB_PAGE_ENTRIES],
}
assert_layout!(SlabPage, 4096, next @ 0, count @ 8, entries @ 16);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for SlabPage {}

/// The words of [`Superblock::snapshot`](super::Superblock::snapshot).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// CRC-32C of the block map, the inode map, the slab pages, the figures below and the epoch.
    pub checksum: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Segments of the inode table.
    pub segments: u64,
    /// Offset of the first slab page, or zero.
    pub slab_page: u64,
    /// Slab pages in the chain.
    pub slab_pages: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

impl Snapshot {
    /// The words.
    pub fn words(&self) -> [u64; 8] {
        [
            self.checksum,
            self.blocks_free,
            self.inodes_used,
            self.segments,
            self.slab_page,
            self.slab_pages,
            self.reserved[0],
            self.reserved[1],
        ]
    }

    /// What the words say.
    pub fn from_words(words: &[u64; 8]) -> Snapshot {
        let &[checksum, blocks_free, inodes_used, segments, slab_page, slab_pages, a, b] = words;
        Snapshot { checksum, blocks_free, inodes_used, segments, slab_page, slab_pages, reserved: [a, b] }
    }

    /// Continues a checksum over maps and pages by the figures and the epoch that the snapshot belongs to.
    pub fn checksum(&self, maps_and_pages: u32, epoch: u32) -> u64 {
        let mut crc = maps_and_pages;
        for word in &self.words()[1..] {
            crc = crc32c(crc, &word.to_le_bytes());
        }
        crc32c(crc, &epoch.to_le_bytes()) as u64
    }
}
