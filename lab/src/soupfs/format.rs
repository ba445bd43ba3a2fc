//! The bytes of a SoupFS image. All numbers are little-endian; the unit of structures is the cache
//! line of 64 bytes.
//!
//! ```text
//! page 0     superblock (substrate), parameters: pages, first page behind the table, root inode,
//!            seed of the name hash
//! page 1 ..  allocation table: a word per page; bit i: line i of the page is in use; a page of
//!            data or pointers has all bits set
//! the rest   pages, each either whole (data, pointers, buckets) or 64 lines of inodes, entries and
//!            link targets
//! ```
//!
//! # Invariants of the consistent view
//!
//! These hold at every instant for the content of the medium, whatever lines the cache writes back
//! on its own:
//!
//! - A consistent link leads to an entry, a bucket or a block that was durable before the link was
//!   stored.
//! - A word of the allocation table has the bits of everything reachable; it may have more (leaks).
//! - An inode's link count is not below the number of its names.
//! - A directory has one valid name: the one that its inode's `size_or_name` refers to.
//! - Latest links have no meaning after a crash: they carry the number of the mount that wrote
//!   them.

use crate::error::{Error, Result};
use crate::substrate::NvPointer;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Cell64, Commit64, LINE_BYTES, Layout};

/// Start of the allocation table.
pub const TABLE: u64 = BLOCK_BYTES;
/// Lines of a page, bits of a word of the allocation table.
pub const PAGE_LINES: u64 = BLOCK_BYTES / LINE_BYTES;
/// Words of a page of pointers or buckets.
pub const PAGE_WORDS: u64 = BLOCK_BYTES / 8;
/// Buckets in a directory's own line.
pub const INLINE_BUCKETS: u32 = 4;
/// Base-2 logarithm of a directory's maximum number of buckets.
pub const LEVEL_MAX: u32 = 27;
/// Maximum length of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a link target that fit in the inode.
pub const INLINE_TARGET_BYTES: usize = 48;
/// Maximum length of a link target.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Maximum number of pointer levels above a block; with zero levels the root is the block.
pub const HEIGHT_MAX: u32 = 4;
/// Maximum length of a file.
pub const SIZE_BYTES_MAX: u64 = BLOCK_BYTES << (9 * HEIGHT_MAX);

/// Marks an inode, to detect stray links.
const INODE_TAG: u64 = 0x50f5;

/// An entry of a directory: a name of an inode. It occupies one line, or more for a long name. Both
/// views share it and follow different links. Its lines hold nothing else, so flushing an entry
/// never persists part of another change.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct EntryHead {
    /// Offset of the inode, with its type in the low six bits. Zero: a dead entry, which lookups
    /// ignore.
    pub inode: Cell64,
    /// The next entry in the consistent view. Only persisters store it.
    pub consistent_next: Commit64,
    /// The next entry in the latest view, if it holds the number of the present mount; otherwise
    /// the consistent link applies.
    pub latest_next: Cell64,
    /// Hash of the name (32 bits), length (8), tie (8). The tie, from one, distinguishes entries
    /// with the same hash.
    pub tag: Cell64,
    /// Offset of the directory's inode. It ties a directory's name and parent together, so that a
    /// rename changes both at once.
    pub directory: Cell64,
}
const _: () = assert!(size_of::<EntryHead>() == 40);
// SAFETY: `repr(C)`; eight-byte cells only.
unsafe impl Layout for EntryHead {}

/// An inode's first two lines. A directory has its bucket line behind them.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct InodeLines {
    /// Link count (32 bits), mode (16), inode tag (16). A directory has two links plus one for each
    /// subdirectory.
    pub identity: Cell64,
    /// Owner in the high half, group in the low half.
    pub owner: Cell64,
    /// Length of a file or link target. For a directory: the offset of the entry that names it, or
    /// zero for the root.
    pub size_or_name: Commit64,
    /// For a file: the root of its block pointers, with their height and the root page's lines with
    /// content in the low bits. For a link: the offset of the target, zero if inline.
    pub root: Commit64,
    /// Last change of content, ns since 1970.
    pub modified_ns: Cell64,
    /// Last change of attributes.
    pub changed_ns: Cell64,
    /// Last access.
    pub accessed_ns: Cell64,
    /// Device number in the high half, generation in the low half.
    pub device: Cell64,
    /// For the VFS layer. Never flushed; it has no meaning after a crash.
    pub nv_pointer: NvPointer,
    /// A short link target.
    pub inline: [Cell64; INLINE_TARGET_BYTES / 8],
}
const _: () = assert!(size_of::<InodeLines>() == 128);
// SAFETY: `repr(C)`; eight-byte cells only (the nv pointer is two of them).
unsafe impl Layout for InodeLines {}

/// The third line of a directory: its hash table.
///
/// The table is an index into one list of all entries, ordered by reversed hash (a split-ordered
/// list). A bucket word is a position of that list. It holds the link to its successor, or zero:
/// then the bucket is not in the list, and the bucket that it will be split from serves. A table
/// therefore grows without moving anything.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct BucketLine {
    /// Base-2 logarithm of the approximate number of buckets: where a search begins. Every value is
    /// correct; some are slow.
    pub level: Cell64,
    /// The pages of buckets 4 to 511, then (two page levels) to 2^18, then (three) to 2^27. Zero:
    /// not allocated.
    pub pages: [Commit64; 3],
    /// Buckets 0 to 3.
    pub first: [Commit64; INLINE_BUCKETS as usize],
}
const _: () = assert!(size_of::<BucketLine>() == 64);
// SAFETY: `repr(C)`; eight-byte cells only.
unsafe impl Layout for BucketLine {}

/// A page of links or pointers.
pub type WordPage = [Commit64; PAGE_WORDS as usize];

/// Lines of an entry with a name of this length.
pub const fn entry_lines(name_bytes: usize) -> u64 {
    (size_of::<EntryHead>() as u64 + name_bytes as u64).div_ceil(LINE_BYTES)
}

/// Lines of an inode.
pub const fn inode_lines(kind: FileKind) -> u64 {
    if matches!(kind, FileKind::Directory) { 3 } else { 2 }
}

/// Lines of a link target outside its inode.
pub const fn target_lines(bytes: usize) -> u64 {
    if bytes > INLINE_TARGET_BYTES { (bytes as u64).div_ceil(LINE_BYTES) } else { 0 }
}

/// The first word of an inode.
pub const fn identity_word(mode: u32, links: u32) -> u64 {
    INODE_TAG << 48 | (mode as u64 & 0xffff) << 32 | links as u64
}

/// Decodes type, mode and links from the first word of an inode.
pub fn identity(word: u64, offset: u64) -> Result<(FileKind, u32, u32)> {
    let mode = (word >> 32) as u32 & 0xffff;
    match FileKind::from_mode(mode) {
        Some(kind) if word >> 48 == INODE_TAG => Ok((kind, mode, word as u32)),
        _ => Err(Error::damaged("a name refers to an offset without an inode", offset)),
    }
}

/// The word of an entry that refers to an inode.
pub const fn target_word(inode: u64, kind: FileKind) -> u64 {
    inode | kind as u64
}

/// The inode and file type that an entry refers to; none if it is dead.
pub fn target(word: u64, entry: u64) -> Result<Option<(u64, FileKind)>> {
    if word == 0 {
        return Ok(None);
    }
    let kind = FileKind::from_bits((word & 0x3f) as u32);
    let kind = kind.ok_or_else(|| Error::damaged("an entry has an invalid file type", entry))?;
    Ok(Some((word & !0x3f, kind)))
}

/// Hash, length and tie of a name as stored in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Hash of the name.
    pub hash: u32,
    /// Length of the name in bytes.
    pub length: u8,
    /// From one; zero sorts before all entries with the hash.
    pub tie: u8,
}

impl Tag {
    /// The stored word.
    pub const fn word(self) -> u64 {
        self.hash as u64 | (self.length as u64) << 32 | (self.tie as u64) << 40
    }

    /// Decodes a stored word.
    pub const fn from_word(word: u64) -> Tag {
        Tag { hash: word as u32, length: (word >> 32) as u8, tie: (word >> 40) as u8 }
    }

    /// The sort key in the list.
    pub const fn key(self) -> u64 {
        (self.hash.reverse_bits() as u64) << 8 | self.tie as u64
    }
}

/// A bucket's sort key: before all entries that belong to it.
pub const fn bucket_key(index: u32) -> u64 {
    (index.reverse_bits() as u64) << 8
}

/// The bucket that a bucket is split from.
pub const fn parent_bucket(index: u32) -> u32 {
    if index == 0 { 0 } else { index & !(1 << index.ilog2()) }
}

const EPOCH_SHIFT: u32 = 44;
const FRESH: u64 = 1 << 43;
/// Number of mounts after which the mount numbers in latest links repeat. A mount then clears all
/// latest links.
pub const EPOCHS: u64 = 1 << (64 - EPOCH_SHIFT);

/// A decoded latest link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latest {
    /// The successor.
    pub link: Link,
    /// Whether the entry was created in this mount.
    pub fresh: bool,
}

impl Latest {
    /// The stored word for a mount.
    pub fn word(self, mounts: u64) -> u64 {
        let link = self.link.word();
        // Offsets are multiples of 64; only two of the bits below are used.
        let packed = (link >> 6) << 2 | (link & 3);
        (mounts % EPOCHS) << EPOCH_SHIFT | if self.fresh { FRESH } else { 0 } | packed
    }

    /// Decodes a stored word, if this mount wrote it.
    pub fn from_word(word: u64, mounts: u64, at: u64) -> Result<Option<Latest>> {
        let packed = word & (FRESH - 1);
        if word >> EPOCH_SHIFT != mounts % EPOCHS || packed == 0 {
            return Ok(None);
        }
        let link = Link::from_word((packed >> 2) << 6 | (packed & 3), at)?;
        Ok(link.map(|link| Latest { link, fresh: word & FRESH != 0 }))
    }
}

/// The successor of a list position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// End of the list.
    End,
    /// The entry at an offset.
    Entry(u64),
    /// A bucket of the same directory, by number; the list continues there.
    Bucket(u32),
}

/// Bit of a bucket's word: the bucket may not be in the list yet, so no walk may begin there. A
/// bucket enters the list in three steps, each durable before the next: its word with this bit, the
/// link that leads to it, its word without the bit. Between the last two steps it is in the list
/// but walks do not begin there.
pub const PREPARED: u64 = 0x20;

impl Link {
    /// The stored word; never zero.
    pub const fn word(self) -> u64 {
        match self {
            Link::Entry(offset) => offset,
            Link::End => 1,
            Link::Bucket(index) => (index as u64) << 6 | 2,
        }
    }

    /// Decodes a stored word; zero is no link.
    pub fn from_word(word: u64, at: u64) -> Result<Option<Link>> {
        let word = word & !PREPARED;
        match word & 0x3f {
            _ if word == 0 => Ok(None),
            0 => Ok(Some(Link::Entry(word))),
            1 if word == 1 => Ok(Some(Link::End)),
            2 if word >> 6 < 1 << LEVEL_MAX => Ok(Some(Link::Bucket((word >> 6) as u32))),
            _ => Err(Error::damaged("a link of a directory is invalid", at)),
        }
    }
}
