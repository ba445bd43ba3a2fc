//! Attributes of files: what stat shows and what chmod and its kin change.

use crate::error::Result;
use crate::format::FileKind;
use crate::fs::{Node, Thread};
use pmem::Memory;

/// What stat shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: u64,
    /// Generation: number and generation together never name another file.
    pub generation: u32,
    /// Kind of file.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Names; for a directory 2 + its subdirectories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number (Linux encoding).
    pub device: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Blocks of 4 KiB in use.
    pub blocks: u64,
    /// Last access, ns since 1970.
    pub accessed_ns: i64,
    /// Last change of content.
    pub modified_ns: i64,
    /// Last change of attributes.
    pub changed_ns: i64,
    /// Birth.
    pub born_ns: i64,
}

/// What to change; `None` leaves a thing as it is. The change time becomes now in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Permission bits (07777).
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub accessed_ns: Option<i64>,
    /// Modification time.
    pub modified_ns: Option<i64>,
}

/// What statfs shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceReport {
    /// Blocks of 4 KiB that hold files or could.
    pub blocks: u64,
    /// Blocks not in use.
    pub blocks_free: u64,
    /// Inodes that the image may have.
    pub inodes: u64,
    /// Inodes not in use.
    pub inodes_free: u64,
    /// Names in the mindex.
    pub names_cached: u64,
    /// Cachelets in use.
    pub files_cached: u64,
}

impl<M: Memory> Thread<'_, M> {
    /// The attributes of a file.
    pub fn stat(&self, _node: Node) -> Result<Attributes> {
        todo!()
    }

    /// Changes attributes, if `permit` (which sees the present ones, under the file's lock) lets it; it may also amend the changes.
    /// Persistent and atomic when it returns.
    pub fn change(&self, _node: Node, _permit: impl FnOnce(&Attributes) -> Result<Changes>) -> Result<Attributes> {
        todo!()
    }

    /// Notes that a file was read at `moment_ns`. Lazy: it reaches the image with a later change, sync or detach.
    pub fn touch_accessed(&self, _node: Node, _moment_ns: i64) -> Result<()> {
        todo!()
    }

    /// Figures of the whole file system.
    pub fn space(&self) -> Result<SpaceReport> {
        todo!()
    }
}
