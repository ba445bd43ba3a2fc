//! Bodies of files: block maps, reading, copy-on-write writing, truncation, holes, and extended
//! attributes.
//!
//! Invariants
//! - A body changes under its cachelet's lock; it is read without a lock.
//! - The changes of a call become visible, and survive a crash, as a whole; each module names the
//!   store that decides. Exceptions, as in POSIX: punching many blocks, and writing to a file that
//!   programs have mapped or that is on a full image.
//! - No block of a body is reused while a reader may still rely on it.

mod edit;
#[cfg(test)]
mod full_tests;
mod in_place;
mod map;
mod mapping;
mod read;
mod release;
mod resize;
mod share;
#[cfg(test)]
mod share_tests;
mod shift;
#[cfg(test)]
mod tests;
mod write;
mod xattr;

pub use map::{BLOCK_SHARED, BLOCK_UNWRITTEN, BodyPart, inline_extent_of_root, visit_body};
pub(crate) use map::{Blocks, free_body, mark_body, mark_body_of, recover_body, visit_data};
pub use mapping::MapMode;
pub(crate) use xattr::{recover_xattrs, write_new_body};

/// Operations of fallocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Gives the range blocks that read as zeros; grows the file unless `keep_size`.
    Allocate {
        /// Leave the length unchanged.
        keep_size: bool,
    },
    /// Frees the range, which then reads as zeros.
    PunchHole,
    /// Makes the range read as zeros and have blocks.
    ZeroRange {
        /// Leave the length unchanged.
        keep_size: bool,
    },
    /// Removes the range (of whole blocks) and closes the gap.
    CollapseRange,
    /// Inserts a hole (of whole blocks).
    InsertRange,
}

/// Targets of lseek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte that is in a hole; the end of the file counts as one.
    Hole,
}

/// A piece of a file that is contiguous on the image, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Offset on the image; none for a hole.
    pub address: Option<u64>,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
}
