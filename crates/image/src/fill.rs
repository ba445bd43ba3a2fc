//! Filling a working copy with a part of its image: all but the data of files, which are read from
//! the image's file until they are loaded or replaced ([`pmem::Residency`]). So an image is opened
//! in a time that depends on the number of its files, and not on their content.
//!
//! Only the maps of a clean image show what is data. One that was not left clean is recovered
//! first, in the working copy, on memory that loads each page when recovery reaches it
//! ([`Loading`]).

use super::extents::for_each_hole;
use super::regions::{dram_region, recover, tracking_of};
use engine::{AttachOptions, BlockUses, Error, Fs, Liveness, RecoveryReport};
use pmem::{BLOCK_BYTES, Direct, LoadError, Mapping, Memory, Region, Residency, Tracking, UserBytes};
use posix::commits::{Commits, tracking_at};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use tables::host::PLATFORM;

/// Pages that are loaded although nothing needs them, to load those on both sides at once.
const GAP_PAGES: u64 = 8;

/// A working copy that is to be filled.
pub(super) struct Fill<'a> {
    /// The image's file.
    pub file: &'a File,
    pub mapping: &'a Arc<Mapping>,
    pub image_bytes: u64,
    /// Bytes that the image can get.
    pub capacity_bytes: u64,
    pub commits: &'a Commits,
    /// Whether pages that are read take memory of their own.
    pub keeps_reads: bool,
    /// For recovery, and the number of its threads; 0: one per processor.
    pub attach: &'a AttachOptions,
    pub threads: usize,
}

/// What a working copy has after it was filled.
pub(super) enum Filled {
    /// Metadata; with the report if the image had to be recovered.
    Metadata(Option<RecoveryReport>),
    /// Nothing: the image is damaged, and is to be copied whole.
    Nothing,
}

impl Fill<'_> {
    /// Loads all but the data of files.
    pub fn metadata(&self) -> io::Result<Filled> {
        // In a file on a disk the kernel would read the holes around each page.
        self.advise(Advice::Random);
        let filled = self.fill();
        self.advise(Advice::Normal);
        filled
    }

    fn advise(&self, advice: Advice) {
        let length = self.image_bytes as usize;
        // SAFETY: the mapping is longer; advice changes no memory. It may be ignored.
        let _ = unsafe { rustix::mm::madvise(self.mapping.address().cast(), length, advice) };
    }

    fn fill(&self) -> io::Result<Filled> {
        provide_bits(self.mapping, (self.image_bytes, self.capacity_bytes))?;
        let is_in_memory = !self.mapping.backing().is_disk();
        self.commits.set_partly_resident(Some(is_in_memory && self.keeps_reads));
        // The working copy is zero there already.
        let region = self.region(Direct)?;
        let found = for_each_hole(self.file, self.image_bytes, &mut |hole| {
            let (start, end) = (hole.start.next_multiple_of(BLOCK_BYTES), hole.end / BLOCK_BYTES * BLOCK_BYTES);
            region.set_resident(start, end.saturating_sub(start));
            Ok(())
        });
        found.map_err(engine_error)?;
        match self.load_clean(&region) {
            Ok(true) => return Ok(Filled::Metadata(None)),
            Err(error @ (Error::NoSpace | Error::Disk(_))) => return Err(engine_error(error)),
            Ok(false) | Err(_) => {}
        }
        match self.recover().and_then(|report| Ok((report, self.load_clean(&region)?))) {
            Ok((report, true)) => Ok(Filled::Metadata(Some(report))),
            Err(error @ (Error::NoSpace | Error::Disk(_))) => Err(engine_error(error)),
            Ok((_, false)) | Err(_) => self.empty().map(|()| Filled::Nothing),
        }
    }

    fn region<M: Memory>(&self, memory: M) -> io::Result<Region<M>> {
        // SAFETY: mapped for writing, longer than the image, and the mapping outlives the region.
        let region = unsafe { Region::new(self.mapping.address(), self.image_bytes, memory) }.without_flushes();
        self.commits.with_residency(region).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Loads the metadata of a clean image. `false`: it is not clean.
    fn load_clean(&self, region: &Region<Direct>) -> engine::Result<bool> {
        let mut blocks = Blocks::of(self.image_bytes);
        if !engine::load_metadata(region, &mut blocks)? {
            return Ok(false);
        }
        let bytes = |run: Range<u64>| run.start * BLOCK_BYTES..(run.end * BLOCK_BYTES).min(self.image_bytes);
        // A disk, or a process that fetches, gets many requests at once.
        blocks.for_each_run(&mut |run| {
            let bytes = bytes(run);
            let length = std::num::NonZero::new(bytes.end.saturating_sub(bytes.start));
            let _ = rustix::fs::fadvise(self.file, bytes.start, length, rustix::fs::Advice::WillNeed);
            Ok(())
        })?;
        blocks.for_each_run(&mut |run| {
            let bytes = bytes(run);
            Ok(region.load(bytes.start, bytes.end.saturating_sub(bytes.start))?)
        })?;
        Ok(true)
    }

    /// Recovers the image in the working copy, and leaves it clean there.
    fn recover(&self) -> engine::Result<RecoveryReport> {
        let failure = Arc::new(AtomicI32::new(0));
        let failed = |_| Error::Invalid;
        let region = || -> io::Result<Region<Loading>> {
            let loaded = self.region(Direct)?;
            self.region(Loading { region: loaded, loads: Mutex::new(()), failure: Arc::clone(&failure) })
        };
        let region = region().map_err(failed)?.tracked(tracking_of(self.mapping, self.capacity_bytes))?;
        let layout = Fs::dram_layout(&region, self.attach)?;
        let dram = Arc::new(Mapping::anonymous(layout.length).map_err(|_| Error::NoMemory)?);
        let recovered = || -> engine::Result<RecoveryReport> {
            let recovery = Fs::attach_first(region, dram_region(&dram), &PLATFORM, Liveness::alone(), self.attach)?;
            recover(&recovery, self.threads)?;
            let (fs, report) = recovery.finish()?;
            for_each_hole(self.file, self.image_bytes, &mut |hole| fs.provider().provide_allocated(hole))?;
            fs.detach_last()?;
            Ok(report)
        };
        let recovered = recovered();
        match failure.load(Relaxed) {
            0 => recovered,
            libc::ENOSPC => Err(Error::NoSpace),
            errno => Err(Error::Disk(errno)),
        }
    }

    /// Makes the working copy as it was: zero, without marks.
    fn empty(&self) -> io::Result<()> {
        self.commits.set_partly_resident(None);
        tracking_of(self.mapping, self.capacity_bytes).clear();
        let Some(file) = self.mapping.file() else { return Err(io::ErrorKind::Unsupported.into()) };
        Ok(rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, self.image_bytes)?)
    }
}

fn engine_error(error: Error) -> io::Error {
    match error {
        Error::NoSpace => Errno::NOSPC.into(),
        Error::Disk(errno) => io::Error::from_raw_os_error(errno),
        _ => io::ErrorKind::InvalidData.into(),
    }
}

/// Memory of which each page is loaded when it is first reached: for the threads of one recovery.
///
/// Invariant: one thread at a time loads, and only pages that are not resident; nothing is stored
/// to these.
struct Loading {
    region: Region<Direct>,
    loads: Mutex<()>,
    /// An errno: the recovery is worthless.
    failure: Arc<AtomicI32>,
}

impl Loading {
    fn load(&self, offset: u64, length: u64) {
        if self.region.is_resident(offset, length) {
            return;
        }
        let _alone = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = self.region.load(offset, length) else { return };
        self.failure.store(errno_of_load(error), Relaxed);
        // The thread goes on. Its next access must find memory, whatever is in it.
        let page = offset / BLOCK_BYTES * BLOCK_BYTES;
        let bytes = (offset + length).next_multiple_of(BLOCK_BYTES) - page;
        if let Ok(address) = self.region.address(page, bytes) {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: replaces whole pages of the working copy's mapping, which nothing uses after
            // a failure but this recovery.
            let _ = unsafe { rustix::mm::mmap_anonymous(address.cast(), bytes as usize, protection, flags) };
        }
    }
}

impl Memory for Loading {
    const WATCHED: bool = true;
    fn stored(&self, _: u64, _: &[u8]) {}
    fn streamed(&self, _: u64, _: UserBytes<'_>) {}
    fn flushed(&self, _: u64, _: u64) {}
    fn fenced(&self) {}
    fn read(&self, offset: u64, length: u64) {
        self.load(offset, length);
    }
    fn reached(&self, offset: u64) {
        self.load(offset, 1);
    }
}

fn errno_of_load(error: LoadError) -> i32 {
    match error {
        LoadError::NoRoom => libc::ENOSPC,
        LoadError::Disk(errno) => errno,
        LoadError::Offset(_) | LoadError::Lost => libc::EIO,
    }
}

/// Provides a range of a working copy: a store to a hole raises SIGBUS where there is no space.
pub(super) fn provide(mapping: &Mapping, at: u64, bytes: u64) -> io::Result<()> {
    let Some(file) = mapping.file() else { return Ok(()) };
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, bytes) {
        // The file system cannot do that.
        Err(Errno::OPNOTSUPP) => Ok(()),
        provided => Ok(provided?),
    }
}

/// Provides parts of the tracking area of a working copy: addresses and bytes.
pub(super) fn provide_marks(mapping: &Mapping, tracking: &Tracking, parts: &[(*mut u8, usize)]) -> io::Result<()> {
    let (area, _) = tracking.memory();
    for (address, bytes) in parts {
        let within = (address.addr() - area.addr()) as u64;
        provide(mapping, tracking_at(tracking.region_bytes()) + within, *bytes as u64)?;
    }
    Ok(())
}

/// Provides the bits of its pages.
pub(super) fn provide_bits(mapping: &Mapping, (image_bytes, capacity_bytes): (u64, u64)) -> io::Result<()> {
    let at = tracking_at(capacity_bytes) + Tracking::area_bytes(capacity_bytes);
    provide(mapping, at, Residency::area_bytes(image_bytes))
}

/// What the blocks of an image are used for: a bit each.
struct Blocks {
    data: Vec<u64>,
    used: Vec<u64>,
}

/// The blocks of a mapped image that [`Fill::metadata`] loads first, ascending; none if it is not
/// clean.
pub(super) fn metadata_runs(mapping: &Arc<Mapping>) -> io::Result<Vec<Range<u64>>> {
    // SAFETY: nothing is stored through the region.
    let region = unsafe { mapping.region_for_reading(Direct) };
    let mut blocks = Blocks::of(mapping.length());
    let mut found = Vec::new();
    if engine::load_metadata(&region, &mut blocks).unwrap_or(false) {
        let mut keep = |run| {
            found.push(run);
            Ok(())
        };
        blocks.for_each_run(&mut keep).map_err(engine_error)?;
    }
    Ok(found)
}

impl BlockUses for Blocks {
    fn data(&mut self, blocks: Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let stop = blocks.end.min((at / 64 + 1) * 64);
            if let Some(word) = self.data.get_mut((at / 64) as usize) {
                *word |= u64::MAX >> (64 - (stop - at)) << (at % 64);
            }
            at = stop;
        }
    }

    fn in_use(&mut self, first: u64, bits: u32) {
        if let Some(word) = self.used.get_mut((first / 64) as usize) {
            *word |= u64::from(bits) << (first % 64);
        }
    }
}

impl Blocks {
    fn of(image_bytes: u64) -> Blocks {
        let words = image_bytes.div_ceil(BLOCK_BYTES).div_ceil(64) as usize;
        Blocks { data: vec![0; words], used: vec![0; words] }
    }

    /// Passes runs of blocks that are in use and hold no data, with what lies between two that are
    /// near.
    fn for_each_run(&self, each: &mut dyn FnMut(Range<u64>) -> engine::Result<()>) -> engine::Result<()> {
        let mut run = 0..0;
        for (index, (used, data)) in (0..).zip(self.used.iter().zip(&self.data)) {
            let mut needed = used & !data;
            while needed != 0 {
                let first = needed.trailing_zeros() as u64;
                let count = (needed >> first).trailing_ones() as u64;
                needed &= !(u64::MAX >> (64 - count) << first);
                let found = index * 64 + first;
                if found > run.end + GAP_PAGES || run.is_empty() {
                    if !run.is_empty() {
                        each(run)?;
                    }
                    run = found..found;
                }
                run.end = found + count;
            }
        }
        if run.is_empty() { Ok(()) } else { each(run) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_used_and_no_data_and_near_ones_are_joined() {
        let mut blocks = Blocks { data: vec![0; 4], used: vec![0; 4] };
        for (first, bits) in [(0, 0b1011), (32, 0), (64, u32::MAX), (96, u32::MAX), (128, 1), (192, 1 << 31)] {
            blocks.in_use(first, bits);
        }
        blocks.data(66..130);
        let mut runs = Vec::new();
        blocks
            .for_each_run(&mut |run| {
                runs.push(run);
                Ok(())
            })
            .unwrap();
        assert_eq!(runs, [0..4, 64..66, 223..224]);
    }
}
