//! VFS layers over a physical file system: path walk, caches of names and inodes, locks,
//! permissions, open files.
//!
//! One [`Vfs`] with three ways to find names ([`names::Names`]):
//!
//! - [`Conventional`]: a dentry cache with negative entries over a hash-indexed inode cache. The
//!   path walk takes no locks while everything is cached. Misses ask the physical file system under
//!   the directory's lock. This is what Linux does.
//! - [`ByVfs`]: no dentry cache. Every component is looked up in the physical file system. The nv
//!   pointer in an inode leads to the inode cache.
//! - [`Cachelet`]: one global index from (directory, name) to the entry on the image and the inode
//!   in memory. It also serves as the physical file system's index. It optionally holds the offset
//!   of the inode (inode quick path).
//!
//! All three share everything else, so experiments compare how names are found.
//!
//! Lock order: the rename lock; directories from the root down; other files by their slot; buckets.
//! A directory's lock is shared for reading and exclusive for changes, like `i_rwsem`. Mounts do
//! not record access times (`noatime`).

mod arena;
mod byvfs;
mod calls;
mod chains;
mod dcache;
mod files;
mod icache;
mod mindex;
mod names;
mod operations;
mod walk;

pub use byvfs::ByVfsNames;
pub use dcache::DentryCache;
pub use mindex::Mindex;
pub use names::Names;
pub use operations::CreateArguments;

use crate::error::Result;
use crate::locks;
use crate::multicore::named_memory::NamedMemory;
use crate::physical::{MountOptions, PhysicalFs};
use files::OpenFiles;
use icache::{INDEXED, InodeCache};
use names::At;
use posix::Credentials;
use std::mem::ManuallyDrop;
use std::sync::Mutex;

/// A dentry cache and an inode cache, as Linux has them.
pub type Conventional<P> = Vfs<P, DentryCache>;
/// No dentry cache.
pub type ByVfs<P> = Vfs<P, ByVfsNames>;
/// A global index to cachelets.
pub type Cachelet<P> = Vfs<P, Mindex>;

/// Limits and options of a VFS layer.
#[derive(Debug, Clone, Copy)]
pub struct VfsOptions {
    /// Maximum number of files in memory. Address space is reserved for all, memory is used on
    /// demand.
    pub files_max: u32,
    /// Maximum number of names in memory.
    pub names_max: u32,
    /// `Cachelet` only: whether the index refers to inodes directly.
    pub inode_quick_path: bool,
    /// Credentials for calls by path.
    pub credentials: Credentials<'static>,
    /// Options of the physical file system. The VFS layer overrides `index`.
    pub mount: MountOptions,
}

impl Default for VfsOptions {
    fn default() -> VfsOptions {
        VfsOptions {
            files_max: 1 << 22,
            names_max: 1 << 22,
            inode_quick_path: true,
            credentials: Credentials::user(0, 0, &[]),
            mount: MountOptions::default(),
        }
    }
}

/// A mounted file system.
pub struct Vfs<P: PhysicalFs, N> {
    fs: P,
    inodes: InodeCache<P::Info>,
    names: N,
    files: OpenFiles,
    rename_lock: Mutex<()>,
    options: VfsOptions,
    root: At,
}

/// A reference to a file: the file stays in memory while this exists.
pub struct FileRef<'f, P: PhysicalFs, N: Names<P>> {
    vfs: &'f Vfs<P, N>,
    at: At,
}

/// A reference to a file that the owner must return with [`Vfs::take_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedFileRef(At);

impl<'f, P: PhysicalFs, N: Names<P>> FileRef<'f, P, N> {
    fn into_at(self) -> At {
        ManuallyDrop::new(self).at
    }

    /// Converts to a reference for tables that cannot borrow from the VFS layer.
    pub fn into_owned(self) -> OwnedFileRef {
        OwnedFileRef(self.into_at())
    }
}

impl<P: PhysicalFs, N: Names<P>> Clone for FileRef<'_, P, N> {
    fn clone(&self) -> Self {
        N::retain(self.vfs, self.at);
        FileRef { vfs: self.vfs, at: self.at }
    }
}

impl<P: PhysicalFs, N: Names<P>> Drop for FileRef<'_, P, N> {
    fn drop(&mut self) {
        // On an error the file's space stays unusable until recovery; drop cannot report it.
        let _ = N::release(self.vfs, self.at);
    }
}

impl<P: PhysicalFs, N: Names<P>> Vfs<P, N> {
    /// Mounts.
    pub fn mount(region: pmem::MappedRegion<P::Memory>, options: VfsOptions) -> Result<Self> {
        let mount = MountOptions { index: N::INDEX, ..options.mount };
        let fs = P::mount(region, &mount)?;
        let inodes = InodeCache::new(options.files_max, N::FINDING)?;
        let root = inodes.get(&fs, fs.root(), None)?;
        let names = N::new(&options)?;
        let root = names.adopt_root(root)?;
        Ok(Vfs {
            fs,
            inodes,
            names,
            files: OpenFiles::new(options.files_max)?,
            rename_lock: Mutex::new(()),
            options,
            root,
        })
    }

    /// Closes all files and unmounts. Open files without names are freed.
    pub fn unmount(self) -> Result<()> {
        self.close_all()?;
        N::shrink(&self, u32::MAX, true)?;
        N::release(&self, self.root)?;
        N::shrink(&self, u32::MAX, true)?;
        self.inodes.shrink(&self.fs, u32::MAX, true, &|_| false)?;
        self.fs.unmount()
    }

    /// The physical file system.
    pub fn physical(&self) -> &P {
        &self.fs
    }

    /// The root directory.
    pub fn root(&self) -> FileRef<'_, P, N> {
        N::retain(self, self.root);
        FileRef { vfs: self, at: self.root }
    }

    /// Adds a reference to a kept file.
    pub fn hold(&self, kept: &OwnedFileRef) -> FileRef<'_, P, N> {
        N::retain(self, kept.0);
        FileRef { vfs: self, at: kept.0 }
    }

    /// Takes the kept reference back.
    pub fn take_back(&self, kept: OwnedFileRef) -> FileRef<'_, P, N> {
        FileRef { vfs: self, at: kept.0 }
    }

    /// See [`PhysicalFs::named_memory`].
    pub fn named_memory(&self) -> Vec<NamedMemory> {
        let mut places = self.inodes.named_memory();
        places.extend(self.names.named_memory());
        places.extend(self.fs.named_memory());
        places.push(NamedMemory::of("lock for renames", &self.rename_lock));
        places.push(NamedMemory::of("table of open files", &self.files));
        places
    }

    /// Files in memory.
    pub fn files_cached(&self) -> u32 {
        self.inodes.used()
    }

    /// Touches the memory for this many files and names, because a kernel's caches cause no page
    /// faults.
    pub fn touch(&self, files: u32) {
        self.inodes.touch(files.min(self.options.files_max));
        self.names.touch(files.min(self.options.names_max));
    }

    /// Drops all unused files and names.
    pub fn shrink_all(&self) -> Result<()> {
        N::shrink(self, u32::MAX, true)?;
        self.inodes.shrink(&self.fs, u32::MAX, true, &|slot| self.inodes.flag(slot, INDEXED))?;
        Ok(())
    }

    /// Frees cache memory before a file or name is added.
    fn make_room(&self) -> Result<()> {
        if self.inodes.used().saturating_add(64) >= self.options.files_max {
            N::shrink(self, 128, false)?;
            self.inodes.shrink(&self.fs, 128, false, &|slot| self.inodes.flag(slot, INDEXED))?;
        }
        Ok(())
    }

    fn held(&self, at: At) -> FileRef<'_, P, N> {
        FileRef { vfs: self, at }
    }

    fn lock_renames(&self) -> std::sync::MutexGuard<'_, ()> {
        locks::lock(&self.rename_lock)
    }
}
