//! The parts of the snapshot beside the maps: figures in the superblock, and a list of blocks with
//! free lines or several pointers.
//!
//! Invariants
//! - All of it counts only while the image's state is clean, and only if the checksum over maps,
//!   pages and figures matches.
//! - The pages lie in blocks that the block map calls free: the attach that reads them is the last
//!   that can.

use super::assert_layout;
use pmem::{Cell64, Layout, crc32c};

/// Entries of a page.
pub const LIST_PAGE_ENTRIES: usize = 255;

/// A block of dentries that has free lines, or a block of contents that several pointers name; the
/// block map shows which.
#[repr(C)]
pub struct ListEntry {
    /// Number of the block.
    pub block: Cell64,
    /// A bit per line, set: free. Or the number of pointers beyond the first.
    pub word: Cell64,
}
assert_layout!(ListEntry, 16, block @ 0, word @ 8);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for ListEntry {}

/// A page of the list.
#[repr(C, align(4096))]
pub struct ListPage {
    /// Offset of the next page, or zero.
    pub next: Cell64,
    /// Entries in use.
    pub count: Cell64,
    /// The entries.
    pub entries: [ListEntry; LIST_PAGE_ENTRIES],
}
assert_layout!(ListPage, 4096, next @ 0, count @ 8, entries @ 16);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for ListPage {}

/// The words of [`Superblock::snapshot`](super::Superblock::snapshot).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// CRC-32C of the block map, the inode map, the pages, the figures below and the epoch.
    pub checksum: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Segments of the inode table.
    pub segments: u64,
    /// Offset of the first page of the list, or zero.
    pub list_page: u64,
    /// Pages of the list.
    pub list_pages: u64,
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
            self.list_page,
            self.list_pages,
            self.reserved[0],
            self.reserved[1],
        ]
    }

    /// Decodes the words.
    pub fn from_words(words: &[u64; 8]) -> Snapshot {
        let &[checksum, blocks_free, inodes_used, segments, list_page, list_pages, a, b] = words;
        Snapshot { checksum, blocks_free, inodes_used, segments, list_page, list_pages, reserved: [a, b] }
    }

    /// Continues a checksum over maps and pages with the figures and the epoch of the snapshot.
    pub fn checksum(&self, maps_and_pages: u32, epoch: u32) -> u64 {
        let mut crc = maps_and_pages;
        for word in &self.words()[1..] {
            crc = crc32c(crc, &word.to_le_bytes());
        }
        crc32c(crc, &epoch.to_le_bytes()) as u64
    }
}
