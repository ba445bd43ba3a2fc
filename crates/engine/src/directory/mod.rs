//! Names: lookup, creation, removal, links, renames, and reading directories. All operations take
//! (directory, name); none locks a directory.
//!
//! Exclusion is per name (its bucket in the mindex) or per inode (its cachelet's lock). The lock
//! order that prevents deadlock: a directory's cachelet lock, then buckets, then a file's cachelet
//! lock.
//!
//! Every change of names runs in the same order: allocate; hold the bucket; check; write the
//! records and flush them; one fence; publish in DRAM by plain stores; release the bucket. No
//! thread can act on a name that is not durable, because the mindex gets the name after the fence.

mod compact;
mod create;
mod evict;
mod index;
#[cfg(test)]
mod interleaving_tests;
mod journal;
mod log;
mod lookup;
mod moves;
mod read;
mod remove;
mod rename;
#[cfg(test)]
mod tests;
mod totals;
mod undurable;

pub use lookup::{NameLocation, ValidationStamp, Visit, VisitedFile};

use crate::error::{Error, Result};
use crate::file_flags::FileFlags;
use crate::format::{FileKind, NAME_BYTES_MAX, is_possible_name};

/// Arguments of a create.
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits (07777), with umask and inheritance applied.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub device: u32,
    /// Target, for symbolic links: 1 to 4095 bytes.
    pub target: &'a [u8],
    /// Initial extended attributes, by name; not for symbolic links. They cost two more fences.
    pub extended: &'a [(&'a [u8], &'a [u8])],
    /// Initial flags: [`FileFlags::ACCESS_LIST`] if a list is among the attributes, and of
    /// [`FileFlags::SETTABLE`] only those of a directory of the image.
    pub flags: FileFlags,
}

/// How a rename treats the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// Fail with `Exists` if the new name is taken.
    pub no_replace: bool,
    /// Swap the two names, which must both exist.
    pub exchange: bool,
    /// Leave a character device 0:0 (an overlay's whiteout) at the old name, with this owner and
    /// group.
    pub whiteout: Option<(u32, u32)>,
}

/// One name of a directory. `.` and `..` are not listed; see
/// [`Thread::parent`](crate::Thread::parent).
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// Where to continue after this entry: at least [`FIRST_COOKIE`](crate::format::FIRST_COOKIE),
    /// ascending.
    pub cookie: u64,
    /// Inode number.
    pub number: u64,
    /// Kind.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

/// Position of a scan, to continue without a search. Zero-initialised for a new scan; any value is
/// safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryHint {
    /// Offset of the log page.
    pub page: u64,
    /// Version of the directory's log that the hint belongs to.
    pub log_version: u32,
}

/// Maximum number of links of a file that is not a directory.
pub const LINKS_MAX: u32 = 65_000;
/// A directory with this many links accepts no more subdirectories. The headroom above it covers
/// calls that checked before the last subdirectory was counted.
const DIRECTORY_LINKS_MAX: u32 = 16_000_000;

/// Rejects byte strings that cannot be a name.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if is_possible_name(name) { Ok(()) } else { Err(Error::Invalid) }
}
