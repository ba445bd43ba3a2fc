//! The structures of a NOVA-like image.
//!
//! ```text
//! block 0   superblock
//! block 1   heads of the inode tables
//! blocks 2… journals, one block each
//! the rest  inode segments, log pages, data, as allocated
//! ```
//!
//! Invariants: numbers are little-endian; links are byte offsets, and zero is no link. A log
//! extends from `log_head` to `log_tail`; bytes beyond the tail have no meaning.

use crate::substrate::NvPointer;
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout};

/// Number of inode tables: the processor count of the paper's machines, so that chains of segments
/// are as short as there.
pub(super) const TABLES: u64 = 16;
/// Block of the heads of the tables.
pub(super) const TABLES_BLOCK: u64 = 1;
/// First block of the journals.
pub(super) const JOURNALS_BLOCK: u64 = 2;
/// Number of journals. A mount uses as many as it has shards.
pub(super) const JOURNALS: u64 = 16;
/// First block that can be allocated.
pub(super) const FIRST_BLOCK: u64 = JOURNALS_BLOCK + JOURNALS;
/// Bytes of an inode.
pub(super) const INODE_BYTES: u64 = 128;
/// The root's number.
pub(super) const ROOT: u64 = 1;

/// Inode state: free.
pub(super) const FREE: u64 = 0;
/// Inode state: the file has names.
pub(super) const USED: u64 = 1;
/// Inode state: the file has no names and is open, or was open at a crash.
pub(super) const ORPHAN: u64 = 2;

/// An inode. Its attributes are those at creation; the log holds later changes.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Inode {
    pub state: Commit64,
    /// Mode in the high half, links in the low half.
    pub mode_links: Cell64,
    /// User in the high half, group in the low half.
    pub owner: Cell64,
    /// Generation in the high half, device in the low half.
    pub generation_device: Cell64,
    pub size_bytes: Cell64,
    pub born_ns: Cell64,
    pub log_head: Commit64,
    pub log_tail: Commit64,
    /// A directory's parent number, or the block of a symbolic link's target.
    pub parent_or_target: Commit64,
    /// Set by a rename, which changes no other attribute of the file. The change time is the later
    /// of this and the log's.
    pub changed_ns: Commit64,
    pub nv_pointer: NvPointer,
    pub reserved: [Cell64; 4],
}
const _: () = assert!(size_of::<Inode>() as u64 == INODE_BYTES);
// SAFETY: `repr(C)`; eight-byte cells (two in the nv pointer) fill 128 bytes without padding
// (asserted); every bit pattern is valid.
unsafe impl Layout for Inode {}

/// The header of a segment of inodes.
#[repr(C, align(64))]
pub(super) struct SegmentHeader {
    pub next: Commit64,
    pub reserved: [Cell64; 15],
}
const _: () = assert!(size_of::<SegmentHeader>() as u64 == INODE_BYTES);
// SAFETY: as above.
unsafe impl Layout for SegmentHeader {}

/// Bytes of a log page for entries. The link to the next page follows them.
pub(super) const PAGE_BODY: u64 = BLOCK_BYTES - 16;
/// The end of a log page.
#[repr(C)]
pub(super) struct PageTail {
    pub next: Cell64,
    pub reserved: Cell64,
}
// SAFETY: two cells of eight bytes.
unsafe impl Layout for PageTail {}

/// Entry type, in the lowest byte of the first word: a name.
pub(super) const ADD: u64 = 1;
/// Entry type: removal of a name.
pub(super) const REMOVE: u64 = 2;
/// Entry type: all attributes.
pub(super) const ATTRIBUTES: u64 = 3;
/// Entry type: blocks of a file.
pub(super) const WRITE: u64 = 4;
/// Entry type: the log continues in the next page.
pub(super) const NEXT: u64 = 5;
/// Entry type: `.` or `..` of a new directory. Laid out as a name; nothing reads it, since the
/// inode has both numbers.
pub(super) const OWN_NAME: u64 = 6;
/// Bit of an `ADD`: the name is removed. The removal's last fence flushes it; every recovery sets
/// it again.
pub(super) const REMOVED: u64 = 1 << 8;

/// A name. Its bytes follow, padded with zeros to a multiple of eight.
///
/// First word: entry type, `REMOVED`, length of the name (bits 16…23), file type (24…31), links of
/// the directory (32…).
#[repr(C)]
pub(super) struct AddEntry {
    pub header: Cell64,
    pub number: Cell64,
    /// The directory's modification and change time.
    pub timestamp_ns: Cell64,
}
// SAFETY: three cells of eight bytes.
unsafe impl Layout for AddEntry {}
pub(super) const ADD_BYTES: u64 = 24;

/// Removal of a name. First word: entry type, links of the directory (bits 32…).
#[repr(C)]
pub(super) struct RemoveEntry {
    pub header: Cell64,
    /// Offset of the removed entry.
    pub removed: Cell64,
    pub timestamp_ns: Cell64,
}
// SAFETY: as above.
unsafe impl Layout for RemoveEntry {}
pub(super) const REMOVE_BYTES: u64 = 24;

/// All attributes that can change.
#[repr(C)]
pub(super) struct AttributesEntry {
    pub header: Cell64,
    pub mode_links: Cell64,
    pub owner: Cell64,
    pub size_bytes: Cell64,
    pub accessed_ns: Cell64,
    pub modified_ns: Cell64,
    pub changed_ns: Cell64,
}
// SAFETY: seven cells of eight bytes.
unsafe impl Layout for AttributesEntry {}
pub(super) const ATTRIBUTES_BYTES: u64 = 56;

/// Blocks of a file. First word: entry type, number of blocks (bits 32…).
#[repr(C)]
pub(super) struct WriteEntry {
    pub header: Cell64,
    pub page: Cell64,
    pub block: Cell64,
    /// The file's length after this write.
    pub size_bytes: Cell64,
    pub timestamp_ns: Cell64,
}
// SAFETY: five cells of eight bytes.
unsafe impl Layout for WriteEntry {}
pub(super) const WRITE_BYTES: u64 = 40;

/// Words that a journal can hold.
pub(super) const JOURNAL_WORDS: usize = 12;

/// An undo journal: the old values of the words that a multi-inode change replaces.
#[repr(C, align(64))]
pub(super) struct Journal {
    /// Number of valid words; zero if no change is in progress.
    pub active: Commit64,
    pub reserved: [Cell64; 7],
    pub words: [JournalWord; JOURNAL_WORDS],
}
// SAFETY: cells of eight bytes throughout, 64 + 12 · 16 bytes, a multiple of the alignment.
unsafe impl Layout for Journal {}
const _: () = assert!(size_of::<Journal>() == 256);

#[repr(C)]
pub(super) struct JournalWord {
    pub offset: Cell64,
    pub old: Cell64,
}
// SAFETY: two cells of eight bytes.
unsafe impl Layout for JournalWord {}

/// Bytes of an `ADD` entry with a name of this length.
pub(super) const fn add_bytes(name_length: u64) -> u64 {
    ADD_BYTES + name_length.next_multiple_of(8)
}
