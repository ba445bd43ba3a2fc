//! Fronts: what a VFS does over a physical file system. Path walk, caches of names and inodes, locks, permissions, open files.
//!
//! One [`Front`] with three ways to find names ([`names::Names`]):
//!
//! - [`Conventional`]: a dentry cache with negative entries over a hash-indexed inode cache, path walk without locks where everything is cached; misses
//!   ask the physical file system under the directory's lock. What Linux does.
//! - [`ByVfs`]: no dentry cache. Every component is looked up in the physical file system; the inode cache is reached through the nv pointer
//!   in the inode.
//! - [`Cachelet`]: one global index from (directory, name) to the entry on the image and the inode in memory, which is the physical file system's index, too;
//!   with or without the place of the inode in it (inode quick path).
//!
//! All three share everything else, so what experiments compare is how names are found.
//!
//! Locks, in this order: the rename lock; directories from the root down; other files by their slot; buckets. A directory's lock is taken shared for looking and
//! exclusively for changing it, as `i_rwsem` is. Mounts do not note access times (`noatime`).

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
pub use operations::Wish;

use crate::error::Result;
use crate::locks;
use crate::multicore::places::Place;
use crate::physical::{MountOptions, PhysicalFs};
use files::OpenFiles;
use icache::{INDEXED, InodeCache};
use names::At;
use posix::Credentials;
use std::mem::ManuallyDrop;
use std::sync::Mutex;

/// A dentry cache and an inode cache, as Linux has them.
pub type Conventional<P> = Front<P, DentryCache>;
/// No dentry cache.
pub type ByVfs<P> = Front<P, ByVfsNames>;
/// A global index to cachelets.
pub type Cachelet<P> = Front<P, Mindex>;

/// How large a front may become.
#[derive(Debug, Clone, Copy)]
pub struct FrontOptions {
    /// Files in memory. Address space is reserved for so many, memory is used for those that are there.
    pub files_max: u32,
    /// Names in memory.
    pub names_max: u32,
    /// `Cachelet` only: whether the index leads to inodes directly.
    pub inode_quick_path: bool,
    /// On whose behalf calls by path are made.
    pub credentials: Credentials<'static>,
    /// For the physical file system. Who has the index is decided by the front.
    pub mount: MountOptions,
}

impl Default for FrontOptions {
    fn default() -> FrontOptions {
        FrontOptions {
            files_max: 1 << 22,
            names_max: 1 << 22,
            inode_quick_path: true,
            credentials: Credentials::user(0, 0, &[]),
            mount: MountOptions::default(),
        }
    }
}

/// A mounted file system.
pub struct Front<P: PhysicalFs, N> {
    fs: P,
    inodes: InodeCache<P::Info>,
    names: N,
    files: OpenFiles,
    rename_lock: Mutex<()>,
    options: FrontOptions,
    root: At,
}

/// A file that cannot leave memory while this lives.
pub struct Held<'f, P: PhysicalFs, N: Names<P>> {
    front: &'f Front<P, N>,
    at: At,
}

/// A file with a reference that its owner must give back, by [`Front::take_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept(At);

impl<'f, P: PhysicalFs, N: Names<P>> Held<'f, P, N> {
    fn into_at(self) -> At {
        ManuallyDrop::new(self).at
    }

    /// For tables that cannot borrow from the front.
    pub fn keep(self) -> Kept {
        Kept(self.into_at())
    }
}

impl<P: PhysicalFs, N: Names<P>> Clone for Held<'_, P, N> {
    fn clone(&self) -> Self {
        N::retain(self.front, self.at);
        Held { front: self.front, at: self.at }
    }
}

impl<P: PhysicalFs, N: Names<P>> Drop for Held<'_, P, N> {
    fn drop(&mut self) {
        // The file's space is not reusable then, until recovery finds it; there is nobody to tell.
        let _ = N::release(self.front, self.at);
    }
}

impl<P: PhysicalFs, N: Names<P>> Front<P, N> {
    /// Mounts.
    pub fn mount(region: pmem::MappedRegion<P::Memory>, options: FrontOptions) -> Result<Self> {
        let mount = MountOptions { index: N::INDEX, ..options.mount };
        let fs = P::mount(region, &mount)?;
        let inodes = InodeCache::new(options.files_max, N::FINDING)?;
        let root = inodes.get(&fs, fs.root(), None)?;
        let names = N::new(&options)?;
        let root = names.adopt_root(root)?;
        Ok(Front {
            fs,
            inodes,
            names,
            files: OpenFiles::new(options.files_max)?,
            rename_lock: Mutex::new(()),
            options,
            root,
        })
    }

    /// Leaves the file system in order. Files that are still open lose what has no name.
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
    pub fn root(&self) -> Held<'_, P, N> {
        N::retain(self, self.root);
        Held { front: self, at: self.root }
    }

    /// A further reference to a file that somebody keeps.
    pub fn hold(&self, kept: &Kept) -> Held<'_, P, N> {
        N::retain(self, kept.0);
        Held { front: self, at: kept.0 }
    }

    /// The reference itself.
    pub fn take_back(&self, kept: Kept) -> Held<'_, P, N> {
        Held { front: self, at: kept.0 }
    }

    /// See [`PhysicalFs::places`].
    pub fn places(&self) -> Vec<Place> {
        let mut places = self.inodes.places();
        places.extend(self.names.places());
        places.extend(self.fs.places());
        places.push(Place::of("lock for renames", &self.rename_lock));
        places.push(Place::of("table of open files", &self.files));
        places
    }

    /// Files in memory.
    pub fn files_cached(&self) -> u32 {
        self.inodes.used()
    }

    /// Touches the memory for so many files and names, as the memory of a kernel's caches needs no page faults.
    pub fn touch(&self, files: u32) {
        self.inodes.touch(files.min(self.options.files_max));
        self.names.touch(files.min(self.options.names_max));
    }

    /// Forgets what nobody uses.
    pub fn shrink_all(&self) -> Result<()> {
        N::shrink(self, u32::MAX, true)?;
        self.inodes.shrink(&self.fs, u32::MAX, true, &|slot| self.inodes.flag(slot, INDEXED))?;
        Ok(())
    }

    /// Makes room in memory before a file or name comes.
    fn make_room(&self) -> Result<()> {
        if self.inodes.used().saturating_add(64) >= self.options.files_max {
            N::shrink(self, 128, false)?;
            self.inodes.shrink(&self.fs, 128, false, &|slot| self.inodes.flag(slot, INDEXED))?;
        }
        Ok(())
    }

    fn held(&self, at: At) -> Held<'_, P, N> {
        Held { front: self, at }
    }

    fn lock_renames(&self) -> std::sync::MutexGuard<'_, ()> {
        locks::lock(&self.rename_lock)
    }
}
