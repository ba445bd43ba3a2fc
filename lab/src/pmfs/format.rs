//! The structures of a PMFS-like image.
//!
//! ```text
//! block 0   superblock
//! block 1   number of initialised inodes
//! blocks 2… journals, one block each
//! …         the inode table, contiguous: an inode is found by its number
//! the rest  blocks of directories and files, nodes of their trees
//! ```
//!
//! Everything is changed in place, under the undo journal. Invariants:
//!
//! - Numbers are little-endian; links are byte offsets, and zero is no link.
//! - An inode with mode zero is free.
//! - The entries of a directory's block fill it without gaps.

use crate::substrate::NvPointer;
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout};

/// Block of the file system's global words.
pub(super) const FIXED_BLOCK: u64 = 1;
/// First block of the journals.
pub(super) const JOURNALS_BLOCK: u64 = 2;
/// Number of journals. A mount uses as many as it has shards.
pub(super) const JOURNALS: u64 = 16;
/// First block of the inode table.
pub(super) const TABLE_BLOCK: u64 = JOURNALS_BLOCK + JOURNALS;
/// Bytes of an inode.
pub(super) const INODE_BYTES: u64 = 128;
/// The root's number.
pub(super) const ROOT: u64 = 1;
/// Bytes of image per inode.
pub(super) const BYTES_PER_INODE: u64 = 2048;

/// The file system's global words.
#[repr(C, align(64))]
pub(super) struct Fixed {
    /// Number of initialised inodes: each is zero or in use.
    pub inodes_high: Commit64,
    pub reserved: [Cell64; 7],
}
// SAFETY: `repr(C)`; eight-byte cells fill 64 bytes; every bit pattern is valid.
unsafe impl Layout for Fixed {}

/// An inode. Most changes touch only its first line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Inode {
    /// Mode in the high half, links in the low half. Zero: free.
    pub mode_links: Cell64,
    /// User in the high half, group in the low half.
    pub owner: Cell64,
    pub size_bytes: Cell64,
    pub modified_ns: Cell64,
    pub changed_ns: Cell64,
    /// The tree of blocks: its root, and its height in the low 12 bits.
    pub root: Cell64,
    pub blocks: Cell64,
    /// A directory's parent number.
    pub parent: Cell64,
    pub accessed_ns: Cell64,
    /// Generation in the high half, device in the low half.
    pub generation_device: Cell64,
    pub nv_pointer: NvPointer,
    pub reserved: [Cell64; 4],
}
const _: () = assert!(size_of::<Inode>() as u64 == INODE_BYTES);
// SAFETY: `repr(C)`; eight-byte cells (two in the nv pointer) fill 128 bytes without padding
// (asserted); every bit pattern is valid.
unsafe impl Layout for Inode {}

/// A name of a directory. Its bytes follow, then free space up to the next entry.
#[repr(C)]
pub(super) struct Dentry {
    /// Inode number. Zero: a free entry without a name.
    pub number: Cell64,
    /// Bytes to the next entry (bits 0…15), length of the name (16…23), file type (24…31).
    pub header: Cell64,
}
// SAFETY: two cells of eight bytes.
unsafe impl Layout for Dentry {}
pub(super) const DENTRY_BYTES: u64 = 16;

/// Bytes of an entry with a name of this length.
pub(super) const fn dentry_bytes(name_length: u64) -> u64 {
    DENTRY_BYTES + name_length.next_multiple_of(8)
}

/// Words that an undo entry holds.
pub(super) const UNDO_WORDS: usize = 5;
/// Undo entries of a journal.
pub(super) const UNDO_ENTRIES: usize = 63;

/// An undo entry: one line.
#[repr(C, align(64))]
pub(super) struct Undo {
    pub offset: Cell64,
    /// The number of the transaction.
    pub generation: Cell64,
    /// Number of valid words (bits 0…31), CRC-32C over everything but this word (32…63).
    pub count_checksum: Cell64,
    pub old: [Cell64; UNDO_WORDS],
}
// SAFETY: `repr(C)`; eight-byte cells fill 64 bytes; every bit pattern is valid.
unsafe impl Layout for Undo {}

/// A journal. Valid entries have the number of the transaction after `finished`.
#[repr(C, align(64))]
pub(super) struct Journal {
    pub finished: Commit64,
    pub reserved: [Cell64; 7],
    pub entries: [Undo; UNDO_ENTRIES],
}
// SAFETY: `repr(C)`, a line of cells and 63 lines of undo entries, no padding.
unsafe impl Layout for Journal {}
const _: () = assert!(size_of::<Journal>() as u64 == BLOCK_BYTES);

/// Pointers of a node of a tree.
pub(super) const FANOUT: u64 = BLOCK_BYTES / 8;
/// The maximum height: 512^4 blocks are 256 TiB.
pub(super) const HEIGHT_MAX: u64 = 4;
