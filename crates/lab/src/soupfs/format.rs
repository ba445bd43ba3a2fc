//! The bytes of a SoupFS image. All numbers are little-endian; the unit of structures is the cache line of 64 bytes.
//!
//! ```text
//! page 0          superblock (substrate), parameters: pages, first page behind the table, root inode, seed of the name hash
//! page 1 ..       allocation table: a word per page, bit i: its line i is in use; a page of data or pointers has all bits set
//! behind it       pages, each either whole (data, pointers, buckets) or 64 lines of inodes, entries and link targets
//! ```
//!
//! # Invariants of the consistent view
//!
//! These hold at every instant for what has reached the medium, whatever lines the cache wrote back by itself.
//!
//! - A consistent link leads to an entry, a bucket or a block that was durable before the link was stored.
//! - A word of the allocation table has the bits of all that is reachable; it may have more (leaks).
//! - An inode's link count is not below the number of its names.
//! - A directory has one name that counts: the one that its inode's `size_or_name` leads to.
//! - What latest links hold means nothing after a crash: they carry the number of the mount that wrote them.

use super::chain::Link;
use crate::error::{Error, Result};
use crate::substrate::NvPointer;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Cell64, Commit64, LINE_BYTES, Layout};

/// Where the allocation table begins.
pub const TABLE: u64 = BLOCK_BYTES;
/// Lines of a page, bits of a word of the allocation table.
pub const PAGE_LINES: u64 = BLOCK_BYTES / LINE_BYTES;
/// Words of a page of pointers or buckets.
pub const PAGE_WORDS: u64 = BLOCK_BYTES / 8;
/// Buckets that lie in a directory's own line.
pub const INLINE_BUCKETS: u32 = 4;
/// A directory has at most two to this power of buckets.
pub const LEVEL_MAX: u32 = 27;
/// Bytes of a name in an entry's first line; the rest follows in the next lines.
pub const NAME_IN_FIRST_LINE: u64 = LINE_BYTES - size_of::<EntryHead>() as u64;
/// Longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a link target that lie in the inode.
pub const INLINE_TARGET_BYTES: usize = 48;
/// Longest link target.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Pointers of so many levels lead to a block; zero: the root leads to it.
pub const HEIGHT_MAX: u32 = 4;
/// Longest file.
pub const SIZE_BYTES_MAX: u64 = BLOCK_BYTES << (9 * HEIGHT_MAX);

/// What marks an inode, to tell a stray link.
const INODE_TAG: u64 = 0x50f5;

/// An entry of a directory: the name of an inode. One line, and more for a name that does not fit. Both views share it; they differ in
/// the link that they follow. Nobody else's words are on its lines, so flushing it persists nobody else's half-done change.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct EntryHead {
    /// Offset of the inode, and its kind in the low six bits. Zero: a dead entry, of which nobody sees anything.
    pub inode: Cell64,
    /// The next of the list in the consistent view. Stored by persisters only.
    pub consistent_next: Commit64,
    /// The next of the list in the latest view, if the mount's number in it is the present one; else the consistent one is followed.
    pub latest_next: Cell64,
    /// Hash of the name (32 bits), length (8), tie (8): what tells apart entries of one hash, from one.
    pub tag: Cell64,
    /// Offset of the directory's inode. It makes a directory's name and parent one thing, so that a rename changes both at once.
    pub directory: Cell64,
}
const _: () = assert!(size_of::<EntryHead>() == 40);
// SAFETY: `repr(C)`, cells of eight bytes only.
unsafe impl Layout for EntryHead {}

/// An inode's first two lines. Of a directory the bucket line follows.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct InodeLines {
    /// Link count (32 bits), mode (16), the tag of inodes (16). A directory has two links and one for each subdirectory.
    pub identity: Cell64,
    /// Owner (high half), group.
    pub owner: Cell64,
    /// Length of a file or link target. Of a directory, the offset of the entry that is its name; zero for the root.
    pub size_or_name: Commit64,
    /// Of a file, the root of its block pointers and their height in the low bits. Of a link, the offset of the target, zero if inline.
    pub root: Commit64,
    /// Last change of content, ns since 1970.
    pub modified_ns: Cell64,
    /// Last change of attributes.
    pub changed_ns: Cell64,
    /// Last access.
    pub accessed_ns: Cell64,
    /// Device number (high half), generation.
    pub device: Cell64,
    /// The front's; means nothing after a crash. Never flushed.
    pub nv_pointer: NvPointer,
    /// A short link target.
    pub inline: [Cell64; INLINE_TARGET_BYTES / 8],
}
const _: () = assert!(size_of::<InodeLines>() == 128);
// SAFETY: `repr(C)`, cells of eight bytes only (the nv pointer is two of them).
unsafe impl Layout for InodeLines {}

/// The third line of a directory: its hash table. The table is an index into one list of all entries in the order of their reversed hashes
/// (a split-ordered list): a bucket word is a place of the list, and is either zero (not in the list: the bucket of which it will be split off
/// serves) or the link to what follows. So a table grows without moving anything.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct BucketLine {
    /// The table has about two to this power of buckets: where a search begins. Any value is right, some are slow.
    pub level: Cell64,
    /// The pages of buckets 4 to 511, then (by pages of pages) to 2^18, then to 2^27. Zero: not there yet.
    pub pages: [Commit64; 3],
    /// Buckets 0 to 3.
    pub first: [Commit64; INLINE_BUCKETS as usize],
}
const _: () = assert!(size_of::<BucketLine>() == 64);
// SAFETY: `repr(C)`, cells of eight bytes only.
unsafe impl Layout for BucketLine {}

/// A page of links or pointers.
pub type WordPage = [Commit64; PAGE_WORDS as usize];

/// Lines of an entry with a name of so many bytes.
pub const fn entry_lines(name_bytes: usize) -> u64 {
    (size_of::<EntryHead>() as u64 + name_bytes as u64).div_ceil(LINE_BYTES)
}

/// Lines of an inode.
pub const fn inode_lines(kind: FileKind) -> u64 {
    if matches!(kind, FileKind::Directory) { 3 } else { 2 }
}

/// Lines of a link target outside of its inode.
pub const fn target_lines(bytes: usize) -> u64 {
    if bytes > INLINE_TARGET_BYTES { (bytes as u64).div_ceil(LINE_BYTES) } else { 0 }
}

/// The first word of an inode.
pub const fn identity_word(mode: u32, links: u32) -> u64 {
    INODE_TAG << 48 | (mode as u64 & 0xffff) << 32 | links as u64
}

/// Mode and links from the first word of what should be an inode.
pub fn identity(word: u64, offset: u64) -> Result<(FileKind, u32, u32)> {
    let mode = (word >> 32) as u32 & 0xffff;
    match FileKind::from_mode(mode) {
        Some(kind) if word >> 48 == INODE_TAG => Ok((kind, mode, word as u32)),
        _ => Err(Error::damaged("a name leads to something that is no inode", offset)),
    }
}

/// The word that leads from an entry to an inode.
pub const fn target_word(inode: u64, kind: FileKind) -> u64 {
    inode | kind as u64
}

/// The inode and kind that an entry leads to; none if it is dead.
pub fn target(word: u64, entry: u64) -> Result<Option<(u64, FileKind)>> {
    if word == 0 {
        return Ok(None);
    }
    let kind = FileKind::from_bits((word & 0x3f) as u32);
    let kind = kind.ok_or_else(|| Error::damaged("an entry has an unknown kind", entry))?;
    Ok(Some((word & !0x3f, kind)))
}

/// Hash, length and tie of a name as an entry holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Hash of the name.
    pub hash: u32,
    /// Its bytes.
    pub length: u8,
    /// From one; zero sorts before all entries of the hash.
    pub tie: u8,
}

impl Tag {
    /// As it is stored.
    pub const fn word(self) -> u64 {
        self.hash as u64 | (self.length as u64) << 32 | (self.tie as u64) << 40
    }

    /// As it was stored.
    pub const fn from_word(word: u64) -> Tag {
        Tag { hash: word as u32, length: (word >> 32) as u8, tie: (word >> 40) as u8 }
    }

    /// Its place in the order of the list.
    pub const fn key(self) -> u64 {
        (self.hash.reverse_bits() as u64) << 8 | self.tie as u64
    }
}

/// A bucket's place in the order of the list: before all entries that fall into it.
pub const fn bucket_key(index: u32) -> u64 {
    (index.reverse_bits() as u64) << 8
}

/// The bucket of which a bucket is split off.
pub const fn parent_bucket(index: u32) -> u32 {
    if index == 0 { 0 } else { index & !(1 << index.ilog2()) }
}

const EPOCH_SHIFT: u32 = 44;
const FRESH: u64 = 1 << 43;
/// Mounts after which the numbers in latest links repeat, and all of them are cleared.
pub const EPOCHS: u64 = 1 << (64 - EPOCH_SHIFT);

/// A latest link as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latest {
    /// What follows.
    pub link: Link,
    /// The entry was made in this mount.
    pub fresh: bool,
}

impl Latest {
    /// As it is stored in a mount.
    pub fn word(self, mounts: u64) -> u64 {
        let link = self.link.word();
        // Offsets are multiples of 64, below which only two bits are used.
        let packed = (link >> 6) << 2 | (link & 3);
        (mounts % EPOCHS) << EPOCH_SHIFT | if self.fresh { FRESH } else { 0 } | packed
    }

    /// As it was stored, if in this mount.
    pub fn from_word(word: u64, mounts: u64, at: u64) -> Result<Option<Latest>> {
        let packed = word & (FRESH - 1);
        if word >> EPOCH_SHIFT != mounts % EPOCHS || packed == 0 {
            return Ok(None);
        }
        let link = Link::from_word((packed >> 2) << 6 | (packed & 3), at)?;
        Ok(link.map(|link| Latest { link, fresh: word & FRESH != 0 }))
    }
}
