//! The image: every structure that persists, declared once. docs/format.md describes the same
//! bytes.
//!
//! Invariants
//! - All numbers are little-endian; all links are byte offsets from the start of the image; zero
//!   links to nothing.
//! - No structure has padding; sizes and offsets are asserted at compile time; reserved bytes are
//!   named and zero.
//! - A field is a [`Commit64`](pmem::Commit64) if a store to it makes something visible, otherwise
//!   a [`Cell64`](pmem::Cell64).

mod dentry;
mod flip;
mod inode;
mod journal;
mod log;
mod segment;
mod snapshot;
mod superblock;

pub use dentry::{
    DENTRY_HEADER_BYTES, Dentry, DentryFacts, NAME_BYTES_MAX, TIMESTAMP_NS_MAX, Valid, dentry_lines, is_possible_name,
    next_reuse_generation, rounded_ns, short_generation,
};
pub use flip::Flip;
pub(crate) use inode::ParentWord;
pub use inode::{
    FILE_BYTES_MAX, FIRST_GENERATION, FileKind, INLINE_BYTES_MAX, INODE_BYTES, INODES_PER_SEGMENT, Inode, NO_ID,
    POINTER_CLEARED, PROPERTY_ACCESS_LIST, PROPERTY_APPEND_ONLY, PROPERTY_FILE_FLAGS, PROPERTY_IMMUTABLE,
    PROPERTY_INLINE, PROPERTY_NO_ACCESS_TIME, PROPERTY_NO_DUMP, Property, PropertyEntry, ROOT_INODE, SEGMENT_BLOCKS,
    TARGET_BYTES_MAX, is_possible_target,
};
pub use journal::{JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, JournalKind, JournalRecord, JournalSlot, Move};
pub use log::{
    FIRST_COOKIE, LOG_SLOTS, LogPage, LogPageKind, SlotTag, USED_SLOTS_MIN, gone_word, is_gone, slot_address, slot_tag,
    slot_word,
};
pub(crate) use segment::listed_inode_offset;
pub use segment::{INODES_PER_BLOCK, Segment, SegmentEntry, SegmentFault, SegmentList};
pub use snapshot::{LIST_PAGE_ENTRIES, ListEntry, ListPage, Snapshot};
pub use superblock::{
    FEATURE_FILE_FLAGS, FEATURE_RESERVE, FEATURE_RESIZED, FEATURE_USED_SLOTS, FEATURES_COMPAT, FEATURES_INCOMPAT,
    FEATURES_RO_COMPAT, FORMAT_VERSION, Geometry, MAGIC, State, Superblock, SuperblockError, reserve_word,
};

/// Asserts a structure's size and the offsets of its fields at compile time.
macro_rules! assert_layout {
    ($type:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $size);
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}
pub(crate) use assert_layout;
