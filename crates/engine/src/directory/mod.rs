//! Names: lookup, creation, removal, links, renames, and reading directories. All by (directory, name); no operation locks a directory.

use crate::attributes::Attributes;
use crate::error::Result;
use crate::format::FileKind;
use crate::fs::{Node, Thread};
use pmem::Memory;

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

impl<M: Memory> Thread<'_, M> {
    /// The root directory, with a reference.
    pub fn root(&self) -> Result<Node> {
        todo!()
    }

    /// The file of an inode number, with a reference; with a generation, only if it is of that one.
    pub fn node(&self, _number: u64, _generation: Option<u32>) -> Result<Node> {
        todo!()
    }

    /// One more reference to a node that the caller has one to.
    pub fn retain(&self, _node: Node) -> Result<()> {
        todo!()
    }

    /// Gives `count` references back. The last one of a file without names frees it.
    pub fn release(&self, _node: Node, _count: u32) {
        todo!()
    }

    /// The file of a name, with a reference.
    pub fn lookup(&self, _directory: Node, _name: &[u8]) -> Result<Node> {
        todo!()
    }

    /// Attributes by name, without taking a reference: what stat needs.
    pub fn stat_name(&self, _directory: Node, _name: &[u8]) -> Result<Attributes> {
        todo!()
    }

    /// Makes a file, directory, symbolic link or special file; `Exists` if the name is taken. With a reference.
    pub fn create(&self, _directory: Node, _name: &[u8], _new: &NewNode<'_>) -> Result<Node> {
        todo!()
    }

    /// Makes a file without a name (O_TMPFILE), with a reference. It can be given a name by `link`.
    pub fn create_unnamed(&self, _new: &NewNode<'_>) -> Result<Node> {
        todo!()
    }

    /// Gives a file another name. `permit` sees the file's attributes.
    pub fn link(&self, _node: Node, _directory: Node, _name: &[u8]) -> Result<()> {
        todo!()
    }

    /// Removes a name of a file that is no directory, if `permit` lets it after seeing the file's attributes.
    pub fn unlink(
        &self,
        _directory: Node,
        _name: &[u8],
        _permit: impl FnOnce(&Attributes) -> Result<()>,
    ) -> Result<()> {
        todo!()
    }

    /// Removes an empty directory, if `permit` lets it.
    pub fn remove_directory(
        &self,
        _directory: Node,
        _name: &[u8],
        _permit: impl FnOnce(&Attributes) -> Result<()>,
    ) -> Result<()> {
        todo!()
    }

    /// Renames. `permit` sees what moves and what is replaced or exchanged.
    pub fn rename(
        &self,
        _from: (Node, &[u8]),
        _to: (Node, &[u8]),
        _flags: RenameFlags,
        _permit: impl Fn(&Attributes, Option<&Attributes>) -> Result<()>,
    ) -> Result<()> {
        todo!()
    }

    /// The inode number of a directory's `..`.
    pub fn parent(&self, _directory: Node) -> Result<u64> {
        todo!()
    }

    /// The name of inode `child` in `directory`, copied into `name`; its length. For getcwd by `..`.
    pub fn name_of(&self, _directory: Node, _child: u64, _name: &mut [u8; 255]) -> Result<usize> {
        todo!()
    }

    /// Gives the names after `cookie` to `entry` in the order of cookies until it returns `false` or there are no more. A name that exists
    /// during a whole scan is given exactly once, whatever happens meanwhile.
    pub fn read_directory(
        &self,
        _directory: Node,
        _cookie: u64,
        _hint: &mut DirectoryHint,
        _entry: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        todo!()
    }

    /// The target of a symbolic link, copied into `target`; its length (`TooSmall` never: it is cut).
    pub fn read_link(&self, _node: Node, _target: &mut [u8]) -> Result<usize> {
        todo!()
    }
}
