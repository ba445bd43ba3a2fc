//! A physical file system without a VFS: the PFS of DirectFS's Fig. 2.
//!
//! No names and no file attributes are cached. Directories in use stay in memory with the physical
//! file system's index of their names, because a kernel file system, too, keeps that apart from the
//! VFS's caches.

use super::machine::{Result, Slow};
use crate::inode::AttributeCell;
use crate::physical::{Exclusive, Loaded, MountOptions, Name, NewFile, PhysicalFs, Shared};
use engine::format::FileKind;
use posix::Errno;
use std::collections::HashMap;

/// A mounted file system and its directories in use.
pub struct Bare<P: PhysicalFs<Memory = Slow>> {
    fs: P,
    directories: HashMap<u64, (AttributeCell, P::Info)>,
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

impl<P: PhysicalFs<Memory = Slow>> Bare<P> {
    /// Mounts.
    pub fn mount(region: pmem::MappedRegion<Slow>) -> Result<Bare<P>> {
        let fs = P::mount(region, &MountOptions { persist_period_ms: 0, ..MountOptions::default() })?;
        Ok(Bare { fs, directories: HashMap::new() })
    }

    /// Unmounts.
    pub fn unmount(self) -> Result<()> {
        for (number, (_, info)) in self.directories {
            self.fs.forget(number, info)?;
        }
        Ok(self.fs.unmount()?)
    }

    fn load(&mut self, number: u64) -> Result<()> {
        if !self.directories.contains_key(&number) {
            let Loaded { attributes, info, .. } = self.fs.load(number)?;
            self.directories.insert(number, (AttributeCell::new(&attributes), info));
        }
        Ok(())
    }

    fn find(&mut self, directory: u64, name: &[u8]) -> Result<u64> {
        self.load(directory)?;
        let (attributes, info) = &self.directories[&directory];
        let found = self.fs.lookup(Shared { number: directory, attributes, info }, name)?;
        Ok(found.ok_or(Errno::ENOENT)?.number)
    }

    /// The directory of a path's last component, and that component.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(u64, &'p [u8])> {
        let mut here = self.fs.root();
        let mut rest = names(path).peekable();
        while let Some(name) = rest.next() {
            if rest.peek().is_none() {
                self.load(here)?;
                return Ok((here, name));
            }
            here = self.find(here, name)?;
        }
        Err(Errno::EINVAL.into())
    }

    /// Reads a file's attributes.
    pub fn stat(&mut self, path: &[u8]) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        let number = self.find(directory, name)?;
        let loaded = self.fs.load(number)?;
        std::hint::black_box(&loaded.attributes);
        Ok(self.fs.forget(number, loaded.info)?)
    }

    /// Creates a file or a directory.
    pub fn create(&mut self, path: &[u8], kind: FileKind) -> Result<()> {
        let (number, name) = self.parent(path)?;
        let (attributes, info) = self.directories.get_mut(&number).ok_or(Errno::ENOENT)?;
        let mut directory = Exclusive { number, attributes, info };
        if self.fs.lookup(directory.shared(), name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, target: b"" };
        let made = self.fs.create(&mut directory, Name::new(name), &new, tables::host::now_ns())?;
        Ok(self.fs.forget(made.file.attributes.number, made.file.info)?)
    }

    /// Removes a file.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let (number, name) = self.parent(path)?;
        let (attributes, info) = self.directories.get_mut(&number).ok_or(Errno::ENOENT)?;
        let mut directory = Exclusive { number, attributes, info };
        let found = self.fs.lookup(directory.shared(), name)?.ok_or(Errno::ENOENT)?;
        let mut loaded = self.fs.load(found.number)?;
        let cell = AttributeCell::new(&loaded.attributes);
        let mut file = Exclusive { number: found.number, attributes: &cell, info: &mut loaded.info };
        let name = Name { bytes: name, entry: Some(found.entry) };
        self.fs.unlink(&mut directory, name, &mut file, tables::host::now_ns())?;
        Ok(self.fs.evict(found.number, &cell.get(), loaded.info)?)
    }
}
