//! The structures of a SquirrelFS-like image.
//!
//! ```text
//! block 0   superblock
//! blocks 1… the inode table: an inode is found by its number
//! …         the page descriptor table: one descriptor per block of the image
//! the rest  pages of directories and files
//! ```
//!
//! Nothing leads from an inode to its pages or from a directory to its names: descriptors and
//! entries point back, and a mount scans them. Invariants:
//!
//! - Numbers are little-endian.
//! - An inode with mode zero is free. An inode without a name is unreachable; a mount frees it.
//! - A descriptor without an owner is free, whatever else it contains; so is an entry without a
//!   number.

use crate::substrate::NvPointer;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout};

/// First block of the inode table.
pub(super) const TABLE_BLOCK: u64 = 1;
/// Bytes of an inode.
pub(super) const INODE_BYTES: u64 = 128;
/// The root's number.
pub(super) const ROOT: u64 = 1;
/// Bytes of image per inode.
pub(super) const BYTES_PER_INODE: u64 = 2048;
/// Bytes of a page descriptor.
pub(super) const DESCRIPTOR_BYTES: u64 = 32;
/// Bytes of an entry of a directory.
pub(super) const DENTRY_BYTES: u64 = 128;
/// Entries of a page.
pub(super) const DENTRIES: u64 = BLOCK_BYTES / DENTRY_BYTES;
/// The longest name.
pub(super) const NAME_MAX: usize = 110;
/// Words of an entry's name: two bytes of length, then the name.
pub(super) const NAME_WORDS: usize = 14;

/// An inode.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Inode {
    /// Mode in the high half, links in the low half. Zero: free.
    pub mode_links: Cell64,
    /// User in the high half, group in the low half.
    pub owner: Cell64,
    pub size_bytes: Cell64,
    pub accessed_ns: Cell64,
    pub modified_ns: Cell64,
    pub changed_ns: Cell64,
    /// Generation in the high half, device in the low half.
    pub generation_device: Cell64,
    pub number: Cell64,
    pub nv_pointer: NvPointer,
    pub reserved: [Cell64; 6],
}
const _: () = assert!(size_of::<Inode>() as u64 == INODE_BYTES);
// SAFETY: `repr(C)`; eight-byte cells (two in the nv pointer) fill 128 bytes without padding
// (asserted); every bit pattern is valid.
unsafe impl Layout for Inode {}

/// The use of a block.
#[repr(C, align(32))]
#[derive(Debug)]
pub(super) struct Descriptor {
    /// Number of the inode that the page belongs to. Zero: free.
    pub owner: Commit64,
    /// [`PAGE_OF_NAMES`] or [`PAGE_OF_DATA`].
    pub kind: Cell64,
    /// For data: the page of the file.
    pub page: Cell64,
    pub reserved: Cell64,
}
const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_BYTES);
// SAFETY: `repr(C)`; four cells of eight bytes fill 32 bytes.
unsafe impl Layout for Descriptor {}

/// The page has entries of a directory.
pub(super) const PAGE_OF_NAMES: u64 = 1;
/// The page has content of a file.
pub(super) const PAGE_OF_DATA: u64 = 2;

/// An entry of a directory.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Dentry {
    pub name: [Cell64; NAME_WORDS],
    /// Inode number (bits 0…55), file type (56…63). Zero: no name.
    pub number_kind: Commit64,
    /// During a rename to this entry: the offset of the old entry.
    pub rename_pointer: Cell64,
}
const _: () = assert!(size_of::<Dentry>() as u64 == DENTRY_BYTES);
// SAFETY: `repr(C)`; sixteen cells of eight bytes fill 128 bytes.
unsafe impl Layout for Dentry {}

const KIND_SHIFT: u32 = 56;

/// The word of an entry.
pub(super) const fn number_kind(number: u64, kind: FileKind) -> u64 {
    number | (kind as u64) << KIND_SHIFT
}

/// The inode number in the word of an entry.
pub(super) const fn number_of(word: u64) -> u64 {
    word & ((1 << KIND_SHIFT) - 1)
}

/// A name as the words of an entry.
pub(super) fn name_words(name: &[u8]) -> [u64; NAME_WORDS] {
    let mut bytes = [0u8; NAME_WORDS * 8];
    bytes[..2].copy_from_slice(&(name.len() as u16).to_le_bytes());
    bytes[2..2 + name.len()].copy_from_slice(name);
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

/// The bytes of an entry's name.
pub(super) type NameBytes = [u8; NAME_WORDS * 8];

/// The name in the bytes of an entry; none if it is damaged.
pub(super) fn name_in(bytes: &NameBytes) -> Option<&[u8]> {
    let length = u16::from_le_bytes([bytes[0], bytes[1]]) as usize;
    (1..=NAME_MAX).contains(&length).then(|| &bytes[2..2 + length])
}

/// The page of an entry, and its bit among the entries of that page.
pub(super) const fn place(entry: u64) -> (u64, u32) {
    (entry / BLOCK_BYTES * BLOCK_BYTES, 1 << (entry % BLOCK_BYTES / DENTRY_BYTES))
}
