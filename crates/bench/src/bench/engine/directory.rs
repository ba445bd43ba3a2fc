//! A directory of the engine in this process. It is used as a path walk and an open file use it: by
//! directory and name.

use crate::bench::workloads::calls::Directory;
use anyhow::{Result, bail};
use engine::format::FileKind;
use engine::{DirectoryHint, NewNode, Node, RenameFlags, Thread};
use pmem::Memory;
use std::ffi::CStr;
use std::hint::black_box;

/// A directory of an attached image, as one thread uses it.
pub struct EngineDirectory<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
    directory: Node,
}

impl<'t, 'f, M: Memory> EngineDirectory<'t, 'f, M> {
    /// The directory with this name in the root; created if missing.
    pub fn open(thread: &'t Thread<'f, M>, name: &CStr) -> Result<Self> {
        let root = thread.root()?;
        let directory = match thread.lookup(root, name.to_bytes()) {
            Err(engine::Error::NotFound) => thread.create(root, name.to_bytes(), &new(FileKind::Directory))?,
            found => found?,
        };
        Ok(EngineDirectory { thread, directory })
    }
}

impl<M: Memory> Drop for EngineDirectory<'_, '_, M> {
    fn drop(&mut self) {
        self.thread.release(self.directory, 1);
    }
}

fn new(kind: FileKind) -> NewNode<'static> {
    let permissions = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    NewNode { kind, permissions, uid: 0, gid: 0, device: 0, target: b"", extended: &[], flags: engine::FileFlags::NONE }
}

impl<M: Memory> Directory for EngineDirectory<'_, '_, M> {
    fn create(&self, name: &CStr) -> Result<()> {
        let node = self.thread.create(self.directory, name.to_bytes(), &new(FileKind::Regular))?;
        self.thread.release(node, 1);
        Ok(())
    }

    fn stat(&self, name: &CStr) -> Result<()> {
        black_box(self.thread.stat_name(self.directory, name.to_bytes())?);
        Ok(())
    }

    fn stat_missing(&self, name: &CStr) -> Result<()> {
        match self.thread.stat_name(self.directory, name.to_bytes()) {
            Err(engine::Error::NotFound) => Ok(()),
            found => bail!("stat of {name:?}, a missing name, returned {found:?}: this is a defect of the engine"),
        }
    }

    fn access(&self, name: &CStr) -> Result<()> {
        // The POSIX layer checks permissions with the same attributes.
        self.stat(name)
    }

    fn open(&self, name: &CStr) -> Result<()> {
        let node = self.thread.lookup(self.directory, name.to_bytes())?;
        self.thread.release(node, 1);
        Ok(())
    }

    fn unlink(&self, name: &CStr) -> Result<()> {
        Ok(self.thread.unlink(self.directory, name.to_bytes(), |_| Ok(()))?)
    }

    fn mkdir(&self, name: &CStr) -> Result<()> {
        let node = self.thread.create(self.directory, name.to_bytes(), &new(FileKind::Directory))?;
        self.thread.release(node, 1);
        Ok(())
    }

    fn rmdir(&self, name: &CStr) -> Result<()> {
        Ok(self.thread.remove_directory(self.directory, name.to_bytes(), |_| Ok(()))?)
    }

    fn link(&self, name: &CStr, other: &CStr) -> Result<()> {
        // By name, as link(2) takes it.
        let node = self.thread.lookup(self.directory, name.to_bytes())?;
        let linked = self.thread.link(node, self.directory, other.to_bytes());
        self.thread.release(node, 1);
        Ok(linked?)
    }

    fn rename(&self, name: &CStr, other: &CStr) -> Result<()> {
        let (from, to) = ((self.directory, name.to_bytes()), (self.directory, other.to_bytes()));
        Ok(self.thread.rename(from, to, RenameFlags::default(), |_, _| Ok(()))?)
    }

    fn read(&self) -> Result<u64> {
        let mut count = 0;
        let mut hint = DirectoryHint::default();
        self.thread.read_directory(self.directory, 0, &mut hint, &mut |entry| {
            black_box(entry.name);
            count += 1;
            true
        })?;
        Ok(count)
    }
}
