//! What a PMFS-like image consists of.
//!
//! ```text
//! block 0   superblock
//! block 1   how far the inode table is initialised
//! blocks 2… journals, one block each
//! …         the inode table, in a row: an inode is found by its number
//! the rest  blocks of directories and files, nodes of their trees
//! ```
//!
//! Everything is changed in place, under the undo journal. Invariants: numbers are little-endian, links are byte offsets, zero links to nothing; an inode whose
//! mode is zero is free; entries of a directory's block fill it without gaps.

use crate::substrate::NvPointer;
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout};

/// Block of the words that concern the whole.
pub(super) const FIXED_BLOCK: u64 = 1;
/// First block of the journals.
pub(super) const JOURNALS_BLOCK: u64 = 2;
/// Journals, of which a mount uses as many as it has shards.
pub(super) const JOURNALS: u64 = 16;
/// First block of the inode table.
pub(super) const TABLE_BLOCK: u64 = JOURNALS_BLOCK + JOURNALS;
/// Bytes of an inode.
pub(super) const INODE_BYTES: u64 = 128;
/// The root's number.
pub(super) const ROOT: u64 = 1;
/// Bytes of the image for which there is an inode.
pub(super) const BYTES_PER_INODE: u64 = 2048;

/// Words that concern the whole.
#[repr(C, align(64))]
pub(super) struct Fixed {
    /// Inodes that are initialised: zero or in use.
    pub inodes_high: Commit64,
    pub reserved: [Cell64; 7],
}
// SAFETY: `repr(C)`, cells of eight bytes that fill 64 bytes, any bits are a value.
unsafe impl Layout for Fixed {}

/// An inode. Its first line is what most changes change.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Inode {
    /// Mode above, links below. Zero: free.
    pub mode_links: Cell64,
    /// User above, group below.
    pub owner: Cell64,
    pub size_bytes: Cell64,
    pub modified_ns: Cell64,
    pub changed_ns: Cell64,
    /// The tree of blocks: its root, and its height in the low 12 bits.
    pub root: Cell64,
    pub blocks: Cell64,
    /// Of a directory the parent's number.
    pub parent: Cell64,
    pub accessed_ns: Cell64,
    /// Generation above, device below.
    pub generation_device: Cell64,
    pub nv_pointer: NvPointer,
    pub reserved: [Cell64; 4],
}
const _: () = assert!(size_of::<Inode>() as u64 == INODE_BYTES);
// SAFETY: `repr(C)`, cells of eight bytes (two in the nv pointer) that fill 128 bytes without padding (asserted), any bits are a value.
unsafe impl Layout for Inode {}

/// A name of a directory. Its bytes follow, and room to the next entry.
#[repr(C)]
pub(super) struct Dentry {
    /// Inode number; zero: no name, but room.
    pub number: Cell64,
    /// Bytes to the next entry (0…15), length of the name (16…23), kind of file (24…31).
    pub header: Cell64,
}
// SAFETY: two cells of eight bytes.
unsafe impl Layout for Dentry {}
pub(super) const DENTRY_BYTES: u64 = 16;

/// Bytes of an entry with a name of that length.
pub(super) const fn dentry_bytes(name_length: u64) -> u64 {
    DENTRY_BYTES + name_length.next_multiple_of(8)
}

/// Words that an undo entry holds.
pub(super) const UNDO_WORDS: usize = 5;
/// Undo entries of a journal.
pub(super) const UNDO_ENTRIES: usize = 63;

/// One undo entry: a line.
#[repr(C, align(64))]
pub(super) struct Undo {
    pub place: Cell64,
    /// The transaction.
    pub generation: Cell64,
    /// Words that count (0…31), CRC-32C over all but this word (32…63).
    pub count_checksum: Cell64,
    pub old: [Cell64; UNDO_WORDS],
}
// SAFETY: `repr(C)`, cells of eight bytes that fill 64 bytes, any bits are a value.
unsafe impl Layout for Undo {}

/// A journal. Entries of the transaction after the one that is finished are in force.
#[repr(C, align(64))]
pub(super) struct Journal {
    pub finished: Commit64,
    pub reserved: [Cell64; 7],
    pub entries: [Undo; UNDO_ENTRIES],
}
// SAFETY: `repr(C)`, a line of cells and 63 lines of undo entries, no padding.
unsafe impl Layout for Journal {}
const _: () = assert!(size_of::<Journal>() as u64 == BLOCK_BYTES);

/// Pointers of a node of a tree of blocks.
pub(super) const FANOUT: u64 = BLOCK_BYTES / 8;
/// Highest tree: 512^4 blocks are 256 TiB.
pub(super) const HEIGHT_MAX: u64 = 4;
