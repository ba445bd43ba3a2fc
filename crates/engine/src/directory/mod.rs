//! Names: lookup, creation, removal, links, renames, and reading directories. All by (directory, name); no operation locks a directory.
//!
//! Where exclusion is needed it is per name (its bucket in the mindex) or per inode (its cachelet's lock). Order of locks, to be free of
//! deadlock: a directory's cachelet lock, then buckets, then a file's cachelet lock.
//!
//! Every change of names goes the same way: allocate; hold the bucket; check; write the records and flush them; one fence; show it in DRAM by
//! plain stores; let go. Nobody can act on a name that is not durable, because the mindex gets it after the fence.

mod compact;
mod create;
mod evict;
mod index;
mod journal;
mod log;
mod lookup;
mod read;
mod remove;
mod rename;
#[cfg(test)]
mod tests;
mod young;

pub use lookup::{Footing, NamePlace, Seen, Visit};

use crate::error::{Error, Result};
use crate::format::{FileKind, NAME_BYTES_MAX};
use crate::text::has_either;

/// What to make.
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits (07777), umask and inheritance applied.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub device: u32,
    /// Target, for symbolic links: 1 to 4095 bytes.
    pub target: &'a [u8],
    /// Extended attributes that it is born with, by name; not for symbolic links. They cost two fences more.
    pub extended: &'a [(&'a [u8], &'a [u8])],
    /// Whether an access control list is among them: see [`Attributes::access_list`](crate::Attributes::access_list).
    pub access_list: bool,
}

/// How a rename treats the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// Fail with `Exists` if the new name is taken.
    pub no_replace: bool,
    /// Swap the two, which must both exist.
    pub exchange: bool,
    /// Leave a character device 0:0 (an overlay's whiteout) at the old name.
    pub whiteout: bool,
}

/// One name of a directory. `.` and `..` are not among them; see [`Thread::parent`].
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// Where to go on after this one: at least [`FIRST_COOKIE`](crate::format::FIRST_COOKIE), ascending.
    pub cookie: u64,
    /// Inode number.
    pub number: u64,
    /// Kind.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

/// Where a scan was, to go on without searching. Zero-initialised for a new scan; any value is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryHint {
    /// Offset of the log page.
    pub page: u64,
    /// Which state of the directory's log the hint is of.
    pub log_version: u32,
}

/// The most links of a file that is no directory.
pub const LINKS_MAX: u32 = 65_000;
/// From so many links on a directory takes no more directories. There is room for the calls that looked before the last one was counted.
const DIRECTORY_LINKS_MAX: u32 = 16_000_000;

/// Refuses what cannot be a name.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    let valid = !matches!(name, b"" | b"." | b"..") && !has_either(name, b'/', 0);
    if valid { Ok(()) } else { Err(Error::Invalid) }
}
