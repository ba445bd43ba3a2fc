//! Operations on a file system by path: the few that the workloads and the oracle need.

use crate::machine::Watched;
use engine::format::FileKind;
use engine::{Attributes, Error, Fs, NewNode, Node, RenameFlags, Result, Thread};
use pmem::Memory;
use std::cell::RefCell;

/// A thread inside the file system, and the files that it keeps open.
pub struct TestThread<'f, M: Memory = Watched> {
    /// The thread.
    pub thread: Thread<'f, M>,
    open: RefCell<Vec<Node>>,
}

/// Bytes until the content of files repeats itself.
const PERIOD_BYTES: usize = 7 * 255;

/// Two periods: those of each seed begin at another place of the first.
static PATTERN: [u8; 2 * PERIOD_BYTES] = {
    let mut pattern = [0; 2 * PERIOD_BYTES];
    let mut at = 0;
    while at < pattern.len() {
        pattern[at] = ((at / 7 + at * 13) % 255) as u8 + 1;
        at += 1;
    }
    pattern
};

/// Bytes to write: no zeros, and different for every seed up to 255. They are copied, which takes
/// few instructions where each one is traced.
pub fn bytes(length: u64, seed: u64) -> Vec<u8> {
    let start = (seed % 255 * 148 % 255 * 7) as usize;
    let period = &PATTERN[start..start + PERIOD_BYTES];
    let mut bytes = Vec::with_capacity(length as usize);
    while bytes.len() < length as usize {
        bytes.extend_from_slice(&period[..PERIOD_BYTES.min(length as usize - bytes.len())]);
    }
    bytes
}

/// Create arguments with the same attributes everywhere.
pub fn new_node(kind: FileKind) -> NewNode<'static> {
    let permissions = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    NewNode { kind, permissions, uid: 7, gid: 8, device: 0, target: b"", extended: &[], flags: engine::FileFlags::NONE }
}

fn permit(_: &Attributes) -> Result<()> {
    Ok(())
}

impl<'f, M: Memory> TestThread<'f, M> {
    /// Enters the file system.
    pub fn new(fs: &'f Fs<M>) -> Result<TestThread<'f, M>> {
        Ok(TestThread { thread: fs.enter()?, open: RefCell::default() })
    }

    /// The file at a path, with a reference.
    pub fn walk(&self, path: &str) -> Result<Node> {
        let mut node = self.thread.root()?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let next = self.thread.lookup(node, name.as_bytes());
            self.thread.release(node, 1);
            node = next?;
        }
        Ok(node)
    }

    /// Calls `act` with the file at a path.
    pub fn with<R>(&self, path: &str, act: impl FnOnce(Node) -> Result<R>) -> Result<R> {
        let node = self.walk(path)?;
        let result = act(node);
        self.thread.release(node, 1);
        result
    }

    /// Calls `act` with the directory and the last name of a path.
    pub fn at<R>(&self, path: &str, act: impl FnOnce(Node, &[u8]) -> Result<R>) -> Result<R> {
        let (directory, name) = path.rsplit_once('/').ok_or(Error::Invalid)?;
        self.with(directory, |node| act(node, name.as_bytes()))
    }

    /// Opens a file and keeps it open.
    pub fn keep(&self, path: &str) -> Result<()> {
        self.open.borrow_mut().push(self.walk(path)?);
        Ok(())
    }

    /// Creates a file of any kind.
    pub fn make(&self, path: &str, new: &NewNode<'_>) -> Result<()> {
        self.at(path, |directory, name| {
            let node = self.thread.create(directory, name, new)?;
            self.thread.release(node, 1);
            Ok(())
        })
    }

    /// Creates an empty file.
    pub fn create(&self, path: &str) -> Result<()> {
        self.make(path, &new_node(FileKind::Regular))
    }

    /// Creates a directory.
    pub fn mkdir(&self, path: &str) -> Result<()> {
        self.make(path, &new_node(FileKind::Directory))
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, path: &str, target: &[u8]) -> Result<()> {
        self.make(path, &NewNode { target, ..new_node(FileKind::Symlink) })
    }

    /// Creates a file with content.
    pub fn create_with(&self, path: &str, length: u64, seed: u64) -> Result<()> {
        self.create(path)?;
        self.write(path, 0, length, seed)
    }

    /// Creates a file without a name, writes to it, then gives it a name.
    pub fn tmpfile(&self, path: &str, length: u64) -> Result<()> {
        self.at(path, |directory, name| {
            let node = self.thread.create_unnamed(directory, &new_node(FileKind::Regular))?;
            let written = self.thread.files().write(node, 0, &bytes(length, 5));
            let linked = written.and_then(|_| self.thread.link(node, directory, name));
            self.thread.release(node, 1);
            linked
        })
    }

    /// Writes to a file.
    pub fn write(&self, path: &str, offset: u64, length: u64, seed: u64) -> Result<()> {
        self.with(path, |node| self.thread.files().write(node, offset, &bytes(length, seed)).map(drop))
    }

    /// Appends to a file.
    pub fn append(&self, path: &str, length: u64, seed: u64) -> Result<()> {
        self.with(path, |node| self.thread.files().append(node, &bytes(length, seed)).map(drop))
    }

    /// Sets a file's length.
    pub fn truncate(&self, path: &str, length: u64) -> Result<()> {
        self.with(path, |node| self.thread.files().truncate(node, length))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, path: &str, name: &str, length: u64) -> Result<()> {
        self.with(path, |node| self.thread.files().set_xattr(node, name.as_bytes(), &bytes(length, 4), false, false))
    }

    /// Adds a name to a file.
    pub fn link(&self, old: &str, new: &str) -> Result<()> {
        self.with(old, |node| self.at(new, |directory, name| self.thread.link(node, directory, name)))
    }

    /// Removes a name.
    pub fn unlink(&self, path: &str) -> Result<()> {
        self.at(path, |directory, name| self.thread.unlink(directory, name, permit))
    }

    /// Removes a directory.
    pub fn rmdir(&self, path: &str) -> Result<()> {
        self.at(path, |directory, name| self.thread.remove_directory(directory, name, permit))
    }

    /// Renames a file.
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        self.rename_with(old, new, RenameFlags::default())
    }

    /// Renames a file, with flags.
    pub fn rename_with(&self, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
        self.at(old, |from, name| {
            self.at(new, |to, new_name| self.thread.rename((from, name), (to, new_name), flags, |_, _| Ok(())))
        })
    }
}
