//! Giving the memory, or disk space, of freed blocks back to the system, by holes in the file.
//!
//! A punched block is one that the engine calls free, under the lock of its group: see the engine's
//! `alloc::trim`. Its content means nothing, so the content may be lost at any instant.
//!
//! - Images in memory, and working copies of images on a disk: a service of each process that
//!   opened the image punches when much was freed. It is not started for a file whose space is
//!   reserved as a whole: that was asked for, and a hole would end it.
//! - The file of an image on a disk: on request, while no process uses it. Then every removal is
//!   committed, and no journal or crash leads back to a state in which the block was in use.
//! - A working copy loses nothing by a hole: the disk has the committed content, and no line of a
//!   free block needs to reach the disk.

use super::copying::Watch;
use super::device;
use super::locks::{Byte, is_held_by_others};
use super::service::Service;
use super::working::map_base;
use super::{CommitPolicy, Image, ImageError, OpenImage, lock_error, open_file};
use engine::{Fs, Thread};
use pmem::{Backing, Mapping, Memory};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// How often the service looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Less than this is not given back by itself: it will be used again.
const WORTH_BYTES: u64 = 64 << 20;
/// Shorter runs of free blocks are left alone by the service.
const RUN_BLOCKS: u64 = 16;

/// What a trim did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes that the file took before.
    pub before_bytes: u64,
    /// Bytes that it takes now.
    pub after_bytes: u64,
    /// Whether this concerns the working copy, and not the file on the disk.
    pub is_working_copy: bool,
}

/// Gives back what an image does not use. An image on a disk that is in use gives back memory; its
/// file is trimmed when no process uses it.
pub fn trim(path: impl AsRef<Path>, options: &OpenImage, watch: Watch<'_>) -> Result<Trimmed, ImageError> {
    let path = path.as_ref();
    let (file, access) = open_file(path, false)?;
    let failed = |source| lock_error(path, source);
    let backing = map_base(file.try_clone().map_err(failed)?, path, access)?.backing();
    if backing.is_device() {
        return Err(ImageError::NoHoles { path: path.to_owned() });
    }
    let is_on_disk = backing.is_disk();
    if is_on_disk && !is_held_by_others(&file, Byte::Attached).map_err(failed)? {
        return trim_unused(path, &file, options, watch);
    }
    let image = Image::open(path, &OpenImage { commits: CommitPolicy::WhenSynced, ..options.clone() })?;
    let trimmed = image.trim(watch)?;
    image.close()?;
    Ok(trimmed)
}

impl Image {
    /// Gives back what the image, which this process has open, does not use.
    pub fn trim(&self, watch: Watch<'_>) -> Result<Trimmed, ImageError> {
        if self.backing().is_disk() && self.memory.commits.is_none() {
            return Err(ImageError::TrimInPlace { path: self.path().to_owned() });
        }
        trim_in_use(self, watch)
    }
}

fn trim_in_use(image: &Image, watch: Watch<'_>) -> Result<Trimmed, ImageError> {
    let path = image.path();
    let file = image.memory.mapping.file().ok_or_else(|| ImageError::NoHoles { path: path.to_owned() })?;
    let engine_error = |source| ImageError::Engine { path: path.to_owned(), source };
    let before_bytes = taken_bytes(file);
    let thread = image.fs().enter().map_err(engine_error)?;
    thread.recycle_idle_shards().map_err(engine_error)?;
    let holes = Holes::of(file, image.length());
    holes.punch_free(&thread, watch).map_err(|errno| hole_error(path, errno))?;
    Ok(Trimmed { before_bytes, after_bytes: taken_bytes(file), is_working_copy: image.memory.commits.is_some() })
}

/// The file of an image on a disk.
fn trim_unused(path: &Path, file: &File, options: &OpenImage, watch: Watch<'_>) -> Result<Trimmed, ImageError> {
    let before_bytes = taken_bytes(file);
    let reading = OpenImage { read_only: true, exclusive: true, ..options.clone() };
    let is_clean = |image: &Image| {
        let superblock = image.fs().pm().first::<engine::format::Superblock>();
        superblock.is_ok_and(|superblock| superblock.state().clean)
    };
    // Neither a journal nor a crash may lead back to a state that uses what is free now.
    let image = match Image::open(path, &reading) {
        Ok(image) if is_clean(&image) && !image.is_recovered_copy => image,
        Ok(image) => {
            drop(image);
            Image::open(path, &OpenImage { exclusive: true, ..options.clone() })?.close()?;
            Image::open(path, &reading)?
        }
        Err(error) => return Err(error),
    };
    let engine_error = |source| ImageError::Engine { path: path.to_owned(), source };
    let mut kept = BTreeSet::new();
    image.fs().each_snapshot_page(&mut |offset| kept.extend([offset])).map_err(engine_error)?;
    let thread = image.fs().enter().map_err(engine_error)?;
    let holes = Holes { kept, ..Holes::of(file, image.length()) };
    holes.punch_free(&thread, watch).map_err(|errno| hole_error(path, errno))?;
    if device::is_block(file) {
        // Only the device knows what it takes.
        let before_bytes = image.length();
        return Ok(Trimmed {
            before_bytes,
            after_bytes: before_bytes.saturating_sub(holes.freed_bytes.get()),
            is_working_copy: false,
        });
    }
    Ok(Trimmed { before_bytes, after_bytes: taken_bytes(file), is_working_copy: false })
}

fn hole_error(path: &Path, errno: Errno) -> ImageError {
    match errno {
        Errno::OPNOTSUPP => ImageError::NoHoles { path: path.to_owned() },
        Errno::INTR => ImageError::Stopped { path: path.to_owned() },
        errno => ImageError::File { action: "free parts of", path: path.to_owned(), source: errno.into() },
    }
}

/// Bytes that a file takes.
fn taken_bytes(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
}

/// Where holes are made.
struct Holes<'a> {
    file: &'a File,
    image_bytes: u64,
    /// Free blocks that are kept: offsets.
    kept: BTreeSet<u64>,
    /// The shortest run of blocks.
    least: u64,
    /// Bytes that were punched.
    freed_bytes: Cell<u64>,
}

impl<'a> Holes<'a> {
    fn of(file: &'a File, image_bytes: u64) -> Holes<'a> {
        Holes { file, image_bytes, kept: BTreeSet::new(), least: 1, freed_bytes: Cell::new(0) }
    }

    /// Punches all free blocks that have something behind them. EINTR: `watch` stopped it.
    fn punch_free<M: Memory>(&self, thread: &Thread<'_, M>, watch: Watch<'_>) -> Result<(), Errno> {
        let group_bytes = Fs::<M>::group_bytes();
        let mut at = 0;
        while at < self.image_bytes {
            at = match rustix::fs::seek(self.file, SeekFrom::Data(at)) {
                Ok(data) if data < self.image_bytes => data,
                // Nothing but holes up to the end.
                Ok(_) | Err(Errno::NXIO) => break,
                // The file system does not know holes: all of it counts as content.
                Err(_) => at,
            };
            let group = at / group_bytes;
            let mut result = Ok(());
            let visited = thread.visit_free_runs(group, self.least, &mut |offset, length| {
                result = result.and_then(|()| self.punch(offset, length));
            });
            visited.map_err(|_| Errno::IO).and(result)?;
            at = (group + 1) * group_bytes;
            if !watch(at.min(self.image_bytes), self.image_bytes) {
                return Err(Errno::INTR);
            }
        }
        Ok(())
    }

    fn punch(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset + length;
        let mut at = offset;
        for &kept in self.kept.range(offset..end) {
            self.punch_whole(at, kept)?;
            at = kept + pmem::BLOCK_BYTES;
        }
        self.punch_whole(at, end)
    }

    fn punch_whole(&self, start: u64, end: u64) -> Result<(), Errno> {
        if start >= end {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(self.file, flags, start, end - start))?;
        self.freed_bytes.set(self.freed_bytes.get() + end - start);
        Ok(())
    }
}

/// Starts the service of this process, if the memory is a file in memory that is not reserved as a
/// whole. Without a thread the memory is given back at the end only.
pub(super) fn start<M: Memory + 'static>(fs: Arc<Fs<M>>, mapping: &Arc<Mapping>) -> Option<Service> {
    if mapping.backing() != Backing::Tmpfs || fs.is_reserved() {
        return None;
    }
    let mapping = Arc::clone(mapping);
    Service::start("directfs-trim", move |is_ending| {
        // Not a descriptor of its own: see `Image::descriptors`.
        if let Some(file) = mapping.file() {
            serve(&fs, file, is_ending);
        }
    })
}

/// What the service remembers between two looks.
#[derive(Default)]
struct Watched {
    /// The least that was free since the last trim.
    free_min: u64,
    /// What was free at the last look.
    free_before: u64,
    /// What could not be given back by the last trim.
    left: u64,
}

impl Watched {
    /// Whether to trim now: much is to be had, and its blocks are not being used again.
    fn is_worth_it(&mut self, free: u64, unused: u64) -> bool {
        let is_calm = free >= self.free_before;
        self.free_before = free;
        self.free_min = self.free_min.min(free);
        self.left = self.left.min(unused);
        let is_much = unused >= self.left + WORTH_BYTES || free >= self.free_min + WORTH_BYTES;
        is_calm && is_much
    }
}

fn serve<M: Memory>(fs: &Fs<M>, file: &File, is_ending: &AtomicBool) {
    super::service::block_signals();
    let look = || -> Option<(u64, u64)> {
        let free = fs.free_bytes().ok()?;
        Some((free, taken_bytes(file).saturating_sub(fs.image_bytes().saturating_sub(free))))
    };
    let Some((free, _)) = look() else { return };
    let mut watched = Watched { free_min: free, free_before: free, left: 0 };
    loop {
        std::thread::park_timeout(INTERVAL);
        if is_ending.load(Acquire) {
            return;
        }
        let Some((free, unused)) = look() else { return };
        if !watched.is_worth_it(free, unused) {
            continue;
        }
        let trimmed = fs.enter().map_err(|_| Errno::AGAIN).and_then(|thread| {
            // What it does not recycle is recycled by its shard.
            let _ = thread.recycle_idle_shards();
            let image_bytes = fs.image_bytes();
            let holes = Holes { least: RUN_BLOCKS, ..Holes::of(file, image_bytes) };
            holes.punch_free(&thread, &mut |_, _| !is_ending.load(Acquire))
        });
        if trimmed == Err(Errno::OPNOTSUPP) {
            return;
        }
        let Some((free, unused)) = look() else { return };
        watched = Watched { free_min: free, free_before: free, left: unused };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_freeing_has_calmed_down() {
        let mut watched = Watched::default();
        assert!(!watched.is_worth_it(10 << 20, 10 << 20), "too little");
        assert!(watched.is_worth_it(100 << 20, 100 << 20));
        // A program that uses what it freed.
        assert!(!watched.is_worth_it(80 << 20, 100 << 20));
        assert!(watched.is_worth_it(80 << 20, 100 << 20));
    }

    #[test]
    fn what_cannot_be_given_back_is_not_tried_again() {
        let mut watched = Watched { free_min: 1 << 30, free_before: 1 << 30, left: 100 << 20 };
        assert!(!watched.is_worth_it(1 << 30, 120 << 20));
        assert!(watched.is_worth_it(1 << 30, 170 << 20));
    }
}
