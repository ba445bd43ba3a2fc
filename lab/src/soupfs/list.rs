//! Positions of a directory's list, and the views of it: see [`chain`](super::chain).

use super::format::{BucketLine, Link};
use pmem::{LINE_BYTES, Pm};

/// A position of the list: it has a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainPosition {
    /// A bucket.
    Bucket(u32),
    /// The entry at an offset.
    Entry(u64),
}

/// Which links a walk follows.
#[derive(Debug, Clone, Copy)]
pub enum View<'b> {
    /// The content of the medium.
    Consistent,
    /// What programs see.
    Latest(&'b Buckets),
}

/// The latest buckets of a directory: list heads in memory. They are empty until the directory
/// changes.
#[derive(Debug, Default)]
pub struct Buckets {
    /// Link words; zero: the consistent link applies.
    pub heads: Vec<u64>,
    /// Base-2 logarithm of the number of buckets.
    pub level: u32,
    /// Number of names, if it was ever counted.
    pub names: Option<u64>,
}

impl Buckets {
    /// The buckets of a new directory.
    pub fn empty(level: u32) -> Buckets {
        Buckets { heads: Vec::new(), level, names: Some(0) }
    }

    /// Whether no list head is in memory. If one is, entries' latest links may lead to buckets that
    /// exist only here.
    pub fn are_unused(&self) -> bool {
        self.heads.is_empty()
    }
}

/// A directory on the image.
#[derive(Debug, Clone, Copy)]
pub struct Directory {
    /// Offset of its inode.
    pub inode: u64,
}

impl Directory {
    /// Its line with buckets.
    pub fn line(self) -> Pm<BucketLine> {
        Pm::new(self.inode + 2 * LINE_BYTES)
    }
}

/// The position of an entry in a list, or the position where it would be.
#[derive(Debug, Clone, Copy)]
pub struct Gap {
    /// The preceding position.
    pub before: ChainPosition,
    /// The successor of that position.
    pub next: Link,
    /// Number of positions passed on the way.
    pub steps: u32,
}
