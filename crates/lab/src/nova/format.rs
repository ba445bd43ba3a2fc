//! What a NOVA-like image consists of.
//!
//! ```text
//! block 0   superblock
//! block 1   heads of the inode tables
//! blocks 2… journals, one block each
//! the rest  inode segments, log pages, data, as allocated
//! ```
//!
//! Invariants: numbers are little-endian, links are byte offsets, zero links to nothing. A log is what lies between `log_head` and `log_tail`; what
//! lies beyond the tail is garbage.

use crate::substrate::NvPointer;
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout};

/// Inode tables: as many as a machine of the paper's time had processors, so that the chains of segments are as short as there.
pub(super) const TABLES: u64 = 16;
/// Block of the tables' heads.
pub(super) const TABLES_BLOCK: u64 = 1;
/// First block of the journals.
pub(super) const JOURNALS_BLOCK: u64 = 2;
/// Journals, of which a mount uses as many as it has shards.
pub(super) const JOURNALS: u64 = 16;
/// First block that is allocated.
pub(super) const FIRST_BLOCK: u64 = JOURNALS_BLOCK + JOURNALS;
/// Bytes of an inode.
pub(super) const INODE_BYTES: u64 = 128;
/// The root's number.
pub(super) const ROOT: u64 = 1;

/// States of an inode.
pub(super) const FREE: u64 = 0;
/// It has names.
pub(super) const USED: u64 = 1;
/// It has none any more; somebody has it open, or had when the power failed.
pub(super) const ORPHAN: u64 = 2;

/// An inode. What it says of attributes is how it was made; the log says what became of them.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Inode {
    pub state: Commit64,
    /// Mode above, links below.
    pub mode_links: Cell64,
    /// User above, group below.
    pub owner: Cell64,
    /// Generation above, device below.
    pub generation_device: Cell64,
    pub size_bytes: Cell64,
    pub born_ns: Cell64,
    pub log_head: Commit64,
    pub log_tail: Commit64,
    /// Of a directory the parent's number; of a symbolic link its target's block.
    pub parent_or_target: Commit64,
    /// Of a rename, which changes nothing else of a file; later than what the log says, or the log's is.
    pub changed_ns: Commit64,
    pub nv_pointer: NvPointer,
    pub reserved: [Cell64; 4],
}
const _: () = assert!(size_of::<Inode>() as u64 == INODE_BYTES);
// SAFETY: `repr(C)`, cells of eight bytes (two in the nv pointer) that fill 128 bytes without padding (asserted), any bits are a value.
unsafe impl Layout for Inode {}

/// The first bytes of a segment of inodes.
#[repr(C, align(64))]
pub(super) struct SegmentHeader {
    pub next: Commit64,
    pub reserved: [Cell64; 15],
}
const _: () = assert!(size_of::<SegmentHeader>() as u64 == INODE_BYTES);
// SAFETY: as above.
unsafe impl Layout for SegmentHeader {}

/// Bytes of a log page that hold entries; behind them the link to the next page.
pub(super) const PAGE_BODY: u64 = BLOCK_BYTES - 16;
/// The rest of a page.
#[repr(C)]
pub(super) struct PageTail {
    pub next: Cell64,
    pub reserved: Cell64,
}
// SAFETY: two cells of eight bytes.
unsafe impl Layout for PageTail {}

/// Kinds of entries: the lowest byte of their first word.
pub(super) const ADD: u64 = 1;
/// A name is gone.
pub(super) const REMOVE: u64 = 2;
/// All attributes.
pub(super) const ATTRIBUTES: u64 = 3;
/// Blocks of a file were written.
pub(super) const WRITE: u64 = 4;
/// The log goes on in the next page.
pub(super) const NEXT: u64 = 5;
/// Bit of an `ADD`: removed. Flushed with the removal's last fence, and set anew by every recovery.
pub(super) const REMOVED: u64 = 1 << 8;

/// A name. Its bytes follow, and zeros to a multiple of eight.
///
/// First word: kind of entry, `REMOVED`, length of the name (16…23), kind of file (24…31), links of the directory (32…).
#[repr(C)]
pub(super) struct AddEntry {
    pub header: Cell64,
    pub number: Cell64,
    /// The directory's time of change.
    pub moment_ns: Cell64,
}
// SAFETY: three cells of eight bytes.
unsafe impl Layout for AddEntry {}
pub(super) const ADD_BYTES: u64 = 24;

/// A name is gone. First word: kind of entry, links of the directory (32…).
#[repr(C)]
pub(super) struct RemoveEntry {
    pub header: Cell64,
    /// The entry that is removed.
    pub removed: Cell64,
    pub moment_ns: Cell64,
}
// SAFETY: as above.
unsafe impl Layout for RemoveEntry {}
pub(super) const REMOVE_BYTES: u64 = 24;

/// All attributes that change.
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

/// Blocks of a file. First word: kind of entry, number of blocks (32…).
#[repr(C)]
pub(super) struct WriteEntry {
    pub header: Cell64,
    pub page: Cell64,
    pub block: Cell64,
    /// The file's length from here on.
    pub size_bytes: Cell64,
    pub moment_ns: Cell64,
}
// SAFETY: five cells of eight bytes.
unsafe impl Layout for WriteEntry {}
pub(super) const WRITE_BYTES: u64 = 40;

/// Words that a journal can hold back.
pub(super) const JOURNAL_WORDS: usize = 12;

/// A journal: the words that a change of several inodes replaces, as they were.
#[repr(C, align(64))]
pub(super) struct Journal {
    /// How many words count; zero: nothing is going on.
    pub active: Commit64,
    pub reserved: [Cell64; 7],
    pub words: [JournalWord; JOURNAL_WORDS],
}
// SAFETY: cells of eight bytes throughout, 64 + 12 · 16 bytes, a multiple of the alignment.
unsafe impl Layout for Journal {}
const _: () = assert!(size_of::<Journal>() == 256);

#[repr(C)]
pub(super) struct JournalWord {
    pub place: Cell64,
    pub old: Cell64,
}
// SAFETY: two cells of eight bytes.
unsafe impl Layout for JournalWord {}

/// Bytes of an `ADD` with a name of that length.
pub(super) const fn add_bytes(name_length: u64) -> u64 {
    ADD_BYTES + name_length.next_multiple_of(8)
}
