//! Addresses for images that grow while they are in use, and the growth.
//!
//! An image in memory or on DAX, and the working copy of one on a disk, is mapped with addresses
//! behind it, so that nothing is mapped again when it grows: see the engine's `attach::growth`. The
//! first process chooses how many, the *capacity*. Images that are used in place on a disk, devices
//! and images without a name have no more than they need.
//!
//! How an image on a disk grows is in `growth_on_disk`.
//!
//! Invariant: a process with fewer addresses than the capacity keeps the image from growing beyond
//! them ([`Fs::limit_growth`]).

use super::attempt::Attempt;
use super::locks::{Byte, Lock, LockGuard, retry_until};
use super::regions::{capacity_bytes, dram_region, has_address_limit};
use super::resize::{Resized, ResizedFile};
use super::{CommitPolicy, Image, ImageError, ImageMemory, OpenImage, lock_error};
use engine::{DESCRIPTION_BYTES, Fs, GrowthRefusal};
use pmem::{Access, BLOCK_BYTES, Backing, Mapping, Memory};
use posix::commits::Commits;
use std::cmp::Ordering;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Why an image in use does not get larger than its capacity.
pub const NO_ROOM: &str = "its processes have no addresses, or its working copy no memory (--memory), for more";
/// How long a growth waits for a process that attaches or detaches.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Maps the memory of an image: its present bytes, and the addresses for its capacity where they
/// can be had. A limit of this process's address space (`ulimit -v`) is left to the program.
pub(super) fn memory_of(
    file: File,
    path: &Path,
    access: Access,
    (bytes, capacity_bytes): (u64, u64),
) -> Result<ImageMemory, ImageError> {
    if capacity_bytes > bytes && !has_address_limit() {
        let again = file.try_clone().map_err(|source| lock_error(path, source))?;
        if let Ok(mapping) = Mapping::reserving(again, path, access, (bytes, capacity_bytes)) {
            let reach = mapping.reach();
            return Ok(ImageMemory { mapping: Arc::new(mapping), image_bytes: bytes, reach, commits: None });
        }
    }
    Ok(ImageMemory::in_place(&Arc::new(Mapping::of_beginning(file, path, access, bytes)?)))
}

/// Keeps the image from growing beyond what this process has mapped.
pub(super) fn join_growth<M: Memory>(fs: &Fs<M>, path: &Path) -> Result<(), ImageError> {
    match fs.limit_growth() {
        Ok(true) => Ok(()),
        // It grew after it was mapped. The next attempt maps more.
        Ok(false) => Err(ImageError::Changing { path: path.to_owned() }),
        Err(source) => Err(ImageError::Engine { path: path.to_owned(), source }),
    }
}

/// Completes or forgets the growth of a process that has died.
pub(super) fn settle<M: Memory>(fs: &Fs<M>, commits: Option<&Commits>) -> engine::Result<()> {
    if let Some(commits) = commits.filter(|commits| commits.is_growing()) {
        let thread = fs.enter()?;
        let settled = commits.lock(&thread);
        return settled.map(drop).map_err(|errno| engine::Error::Disk(errno.0));
    }
    fs.recover_growth()
}

impl<M: Memory> Attempt<'_, M> {
    fn again(&self) -> Result<File, ImageError> {
        self.file.try_clone().map_err(|source| lock_error(self.path, source))
    }

    /// The memory of an image for its first process.
    pub fn growing_memory(&self) -> Result<ImageMemory, ImageError> {
        let region = ImageMemory::in_place(self.pm).region((self.memory)(), false);
        let geometry = engine::format::Superblock::check(&region, true);
        match (self.pm.backing(), geometry) {
            (Backing::Tmpfs | Backing::Dax { .. }, Ok(geometry)) => {
                let bytes = geometry.blocks * BLOCK_BYTES;
                memory_of(self.again()?, self.path, self.pm.access(), (bytes, capacity_bytes(bytes)))
            }
            _ => Ok(ImageMemory::in_place(self.pm)),
        }
    }

    /// The memory of an image in use, as its processes have it.
    pub fn shared_memory(&self, dram: &Arc<Mapping>) -> Result<ImageMemory, ImageError> {
        match engine::image_size(&dram_region(dram)) {
            Ok(size) if size.capacity_bytes > size.bytes => {
                memory_of(self.again()?, self.path, self.pm.access(), (size.bytes, size.capacity_bytes))
            }
            // The attach reports another version.
            _ => Ok(ImageMemory::in_place(self.pm)),
        }
    }

    /// See [`join_growth`] and [`settle`].
    pub fn join_growth(&self, fs: &Fs<M>, commits: Option<Commits>) -> Result<(), ImageError> {
        settle(fs, commits.as_ref()).map_err(|error| self.engine_error(error))?;
        join_growth(fs, self.path)
    }
}

/// Makes an image larger that processes use.
pub(super) fn grow(path: &Path, length: u64, options: &OpenImage) -> Result<Resized, ImageError> {
    let image = Image::open(path, &OpenImage { commits: CommitPolicy::WhenSynced, ..options.clone() })?;
    let resized = image.grow(length);
    image.close()?;
    resized
}

impl<M: Memory> Image<M> {
    /// Makes the image larger, for all processes that use it.
    pub fn grow(&self, length: u64) -> Result<Resized, ImageError> {
        let length = length / BLOCK_BYTES * BLOCK_BYTES;
        let can_grow = match self.memory.commits {
            // What is held back may never reach the image.
            Some(commits) => !commits.is_held() && self.backing != Backing::BlockDevice,
            None => matches!(self.backing, Backing::Tmpfs | Backing::Dax { .. }),
        };
        if !can_grow {
            return Err(ImageError::GrowsUnused { path: self.path.clone() });
        }
        // Processes that attach by the path find one size.
        let take = || LockGuard::take(&*self.file, Byte::Attaching, Lock::Exclusive);
        let attaching = retry_until(TIMEOUT, take).map_err(|source| lock_error(&self.path, source))?;
        let Some(_attaching) = attaching else { return Err(ImageError::Changing { path: self.path.clone() }) };
        settle(self.fs(), self.memory.commits.as_ref()).map_err(|source| self.engine_error(source))?;
        let resized = Resized { before_bytes: self.length(), after_bytes: length };
        match length.cmp(&resized.before_bytes) {
            Ordering::Less => Err(ImageError::ShrinksUnused { path: self.path.clone() }),
            Ordering::Equal => Ok(resized),
            Ordering::Greater => {
                match &self.memory.commits {
                    Some(commits) => self.grow_on_disk(commits, resized)?,
                    None => self.grow_in_place(resized)?,
                }
                match self.length() == length {
                    true => Ok(resized),
                    false => Err(self.engine_error(engine::Error::Busy)),
                }
            }
        }
    }

    fn grow_in_place(&self, Resized { before_bytes, after_bytes: length }: Resized) -> Result<(), ImageError> {
        let engine_error = |source| self.engine_error(source);
        let thread = self.fs().enter().map_err(engine_error)?;
        let growth = thread.begin_growth(length).map_err(|refusal| self.refused(refusal))?;
        let file = ResizedFile { path: &self.path, file: &self.file };
        file.make_room(before_bytes, length, self.fs().is_reserved())?;
        // Crash points: until the description is written, the image has its old length.
        let superblock = growth.superblock().map_err(engine_error)?;
        let geometries = (&self.fs().geometry(), growth.geometry());
        let mapped = file.write_block_map(self.fs(), geometries, before_bytes);
        let prepared = mapped.and_then(|()| file.write(&superblock, length - BLOCK_BYTES));
        if let Err(error) = prepared {
            let _ = self.file.set_len(before_bytes);
            return Err(file.without_space(error, length - before_bytes));
        }
        file.write(&superblock[..DESCRIPTION_BYTES], 0)?;
        // The new length counts from here on. The processes learn of it now.
        drop(growth);
        Ok(())
    }

    pub(super) fn refused(&self, refusal: GrowthRefusal) -> ImageError {
        let path = self.path.clone();
        match refusal {
            GrowthRefusal::BeyondCapacity { most_bytes, is_limited } => {
                let reason = match is_limited {
                    true => "a process that uses it, or did so, has a limit of its address space (ulimit -v)",
                    false => NO_ROOM,
                };
                ImageError::BeyondCapacity { path, most: most_bytes, reason }
            }
            GrowthRefusal::TooSmall { now_bytes } => ImageError::GrowthTooSmall { path, now: now_bytes },
            GrowthRefusal::Failed(source) => ImageError::Engine { path, source },
        }
    }
}
