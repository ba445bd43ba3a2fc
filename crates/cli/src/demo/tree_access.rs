//! Two kinds of file systems for the demonstration: a directory that the kernel serves, and an
//! image that this process has attached. Both offer the same calls, with paths relative to their
//! root.

use anyhow::{Context, Result, bail};
use engine::format::FileKind;
use pmem::Memory;
use posix::path::{LastLink, Outcome, PathBuffer, WalkStart as Root};
use posix::{Caller, Errno, OpenFile};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The kind of a name's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    Special,
}

/// The attributes that du needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes that it uses.
    pub used_bytes: u64,
}

/// A file system's calls, by relative path.
pub trait TreeAccess {
    /// An open file.
    type File;
    /// Creates a file and opens it for writing.
    fn create(&self, path: &Path, permissions: u32) -> Result<Self::File>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Self::File>;
    /// Appends all bytes to the previous ones.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> Result<()>;
    /// Reads the next bytes; returns their number, zero at the end.
    fn read(&self, file: &mut Self::File, into: &mut [u8]) -> Result<usize>;
    /// Closes.
    fn close(&self, file: Self::File) -> Result<()>;
    /// Creates a directory.
    fn mkdir(&self, path: &Path, permissions: u32) -> Result<()>;
    /// Creates a symbolic link.
    fn symlink(&self, target: &OsStr, path: &Path) -> Result<()>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &Path) -> Result<OsString>;
    /// Reads attributes; links are not followed.
    fn stat(&self, path: &Path) -> Result<Status>;
    /// The names of a directory.
    fn names(&self, path: &Path) -> Result<Vec<(OsString, EntryKind)>>;
    /// Removes a file.
    fn unlink(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &Path) -> Result<()>;
}

/// A directory that the kernel serves.
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// The directory with this path.
    pub fn new(root: impl Into<PathBuf>) -> Directory {
        Directory { root: root.into() }
    }
}

impl TreeAccess for Directory {
    type File = File;

    fn create(&self, path: &Path, permissions: u32) -> Result<File> {
        Ok(File::options().write(true).create_new(true).mode(permissions).open(self.root.join(path))?)
    }

    fn open(&self, path: &Path) -> Result<File> {
        Ok(File::open(self.root.join(path))?)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> Result<()> {
        Ok(file.write_all(bytes)?)
    }

    fn read(&self, file: &mut File, into: &mut [u8]) -> Result<usize> {
        Ok(file.read(into)?)
    }

    fn close(&self, file: File) -> Result<()> {
        drop(file);
        Ok(())
    }

    fn mkdir(&self, path: &Path, permissions: u32) -> Result<()> {
        let path = self.root.join(path);
        Ok(std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), permissions).create(path)?)
    }

    fn symlink(&self, target: &OsStr, path: &Path) -> Result<()> {
        Ok(std::os::unix::fs::symlink(target, self.root.join(path))?)
    }

    fn read_link(&self, path: &Path) -> Result<OsString> {
        Ok(fs::read_link(self.root.join(path))?.into_os_string())
    }

    fn stat(&self, path: &Path) -> Result<Status> {
        let metadata = fs::symlink_metadata(self.root.join(path))?;
        Ok(Status { size_bytes: metadata.len(), used_bytes: metadata.blocks() * 512 })
    }

    fn names(&self, path: &Path) -> Result<Vec<(OsString, EntryKind)>> {
        fs::read_dir(self.root.join(path))?
            .map(|entry| {
                let entry = entry?;
                let kind = match entry.file_type()? {
                    kind if kind.is_dir() => EntryKind::Directory,
                    kind if kind.is_symlink() => EntryKind::Symlink,
                    kind if kind.is_file() => EntryKind::File,
                    _ => EntryKind::Special,
                };
                Ok((entry.file_name(), kind))
            })
            .collect()
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        Ok(fs::remove_file(self.root.join(path))?)
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        Ok(fs::remove_dir(self.root.join(path))?)
    }
}

/// An image that this process has attached.
pub struct Attached<'t, 'f, M: Memory> {
    caller: Caller<'t, 'f, M>,
    root: Root,
    buffer: RefCell<Box<PathBuffer>>,
}

impl<'t, 'f, M: Memory> Attached<'t, 'f, M> {
    /// The caller's view of the image.
    pub fn new(caller: Caller<'t, 'f, M>) -> Result<Self> {
        let root = caller.thread.root()?;
        let root = Root { root, start: root, can_leave: false };
        Ok(Attached { caller, root, buffer: RefCell::default() })
    }

    fn open_with(&self, path: &Path, flags: i32, permissions: u32) -> Result<OpenFile> {
        let path = bytes(path);
        let opened = self.caller.open_path(&self.root, path, flags, (permissions, 0), &mut self.buffer.borrow_mut());
        Ok(inside(opened)?.file)
    }
}

impl<M: Memory> Drop for Attached<'_, '_, M> {
    fn drop(&mut self) {
        self.caller.thread.release(self.root.root, 1);
    }
}

/// The root has no name, and an empty path is invalid.
fn bytes(path: &Path) -> &[u8] {
    if path.as_os_str().is_empty() { b"." } else { path.as_os_str().as_bytes() }
}

fn inside<T>(outcome: Result<Outcome<T>, Errno>) -> Result<T> {
    match outcome? {
        Outcome::Inside(found) => Ok(found),
        Outcome::Left(_) => bail!("a symbolic link points outside the image"),
    }
}

impl<M: Memory> TreeAccess for Attached<'_, '_, M> {
    type File = OpenFile;

    fn create(&self, path: &Path, permissions: u32) -> Result<OpenFile> {
        self.open_with(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, permissions)
    }

    fn open(&self, path: &Path) -> Result<OpenFile> {
        self.open_with(path, libc::O_RDONLY, 0)
    }

    fn write(&self, file: &mut OpenFile, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.caller.write(file, rest)?..];
        }
        Ok(())
    }

    fn read(&self, file: &mut OpenFile, into: &mut [u8]) -> Result<usize> {
        Ok(self.caller.read(file, into)?)
    }

    fn close(&self, file: OpenFile) -> Result<()> {
        self.caller.close(&file);
        Ok(())
    }

    fn mkdir(&self, path: &Path, permissions: u32) -> Result<()> {
        inside(self.caller.mkdir_path(&self.root, bytes(path), permissions, 0, &mut self.buffer.borrow_mut()))
    }

    fn symlink(&self, target: &OsStr, path: &Path) -> Result<()> {
        let target = target.as_bytes();
        inside(self.caller.symlink_path(target, &self.root, bytes(path), &mut self.buffer.borrow_mut()))
    }

    fn read_link(&self, path: &Path) -> Result<OsString> {
        let mut target = vec![0; posix::path::PATH_BYTES_MAX];
        let (buffer, path) = (&mut self.buffer.borrow_mut(), bytes(path));
        let call = |node| self.caller.readlink(node, &mut target);
        let length = inside(self.caller.at_path(&self.root, path, LastLink::Stay, buffer, call))?;
        target.truncate(length);
        Ok(OsString::from_vec(target))
    }

    fn stat(&self, path: &Path) -> Result<Status> {
        let (buffer, path) = (&mut self.buffer.borrow_mut(), bytes(path));
        let call = |node| self.caller.stat(node);
        let found = inside(self.caller.at_path(&self.root, path, LastLink::Stay, buffer, call))?;
        Ok(Status { size_bytes: found.size_bytes, used_bytes: found.blocks * 4096 })
    }

    fn names(&self, path: &Path) -> Result<Vec<(OsString, EntryKind)>> {
        let file = self.open_with(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let mut names = Vec::new();
        let read = self.caller.read_directory(&file, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push((OsString::from_vec(entry.name.to_vec()), kind(entry.kind)));
            }
            true
        });
        self.close(file)?;
        read.context("cannot read the directory")?;
        Ok(names)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        inside(self.caller.unlink_path(&self.root, bytes(path), &mut self.buffer.borrow_mut()))
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        inside(self.caller.rmdir_path(&self.root, bytes(path), &mut self.buffer.borrow_mut()))
    }
}

fn kind(kind: FileKind) -> EntryKind {
    match kind {
        FileKind::Directory => EntryKind::Directory,
        FileKind::Regular => EntryKind::File,
        FileKind::Symlink => EntryKind::Symlink,
        _ => EntryKind::Special,
    }
}
