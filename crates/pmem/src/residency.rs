//! Which pages of a region are in its memory. The others are on a disk, where they were when the
//! region was made.
//!
//! Invariants
//! - A page becomes resident once and stays so. Nothing is stored to a page before it is resident.
//! - The bytes on the disk of a page that is not resident do not change while its block is in use:
//!   only what was stored to is ever written there.
//! - A page is loaded only by a thread that keeps others from storing to it until it is resident:
//!   a load writes the old bytes to the memory, at any time before it sets the bit. Two threads may
//!   load the same bytes at once.
//! - A process that dies in the middle of a load leaves the page as not resident.
//!
//! Decision: docs/decisions/images.md, "Data of files stay on the disk until they are used".

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU64};

use crate::BLOCK_BYTES;
use crate::region::BadOffset;

/// Reads from a file at an offset into memory: the bytes read, zero at the end of the file, or an
/// errno. EFAULT: the memory cannot be written.
pub type ReadAt = fn(fd: i32, offset: u64, into: NonNull<u8>, length: usize) -> Result<usize, i32>;

/// EFAULT and EIO on Linux: this crate has no libc.
pub(crate) const EFAULT: i32 = 14;
const EIO: i32 = 5;

/// Why bytes of pages that are not resident are not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadError {
    /// The range lies outside of the region.
    Offset(BadOffset),
    /// There is no room for the pages in the region's memory.
    NoRoom,
    /// The disk failed, with an errno; EIO also if its file is too short.
    Disk(i32),
    /// The memory has an error there.
    Lost,
}

impl From<BadOffset> for LoadError {
    fn from(bad: BadOffset) -> LoadError {
        LoadError::Offset(bad)
    }
}

/// The pages of a region, as this process sees them: a bit per page in memory that all processes of
/// the region share, and the file with the pages that are not resident.
#[derive(Debug)]
pub struct Residency {
    bits: NonNull<AtomicU64>,
    region_bytes: u64,
    fd: AtomicI32,
    read: ReadAt,
    keeps_reads: bool,
}

// SAFETY: all memory behind the pointer is accessed as atomics.
unsafe impl Send for Residency {}
// SAFETY: as above.
unsafe impl Sync for Residency {}

impl Residency {
    /// Bytes of the bits for a region.
    pub const fn area_bytes(region_bytes: u64) -> u64 {
        (region_bytes.div_ceil(BLOCK_BYTES).div_ceil(64) * 8).next_multiple_of(BLOCK_BYTES)
    }

    /// The view of an area of bits. `fd`: the file of the other pages, which stays open.
    /// `keeps_reads`: pages that are read become resident.
    ///
    /// # Safety
    /// [`Residency::area_bytes`] bytes at `bits`, which is aligned to a page, are mapped, readable
    /// and writable for as long as the view and every region with it live. `read` writes nothing
    /// but the bytes that it reports.
    pub unsafe fn new(bits: NonNull<u8>, region_bytes: u64, (fd, read): (i32, ReadAt), keeps_reads: bool) -> Residency {
        Residency { bits: bits.cast(), region_bytes, fd: AtomicI32::new(fd), read, keeps_reads }
    }

    /// Another descriptor of the file, before the old one may become that of another file.
    pub fn move_file(&self, fd: i32) {
        self.fd.store(fd, SeqCst);
    }

    /// Whether pages that are read become resident.
    pub fn keeps_reads(&self) -> bool {
        self.keeps_reads
    }

    /// Fails unless there are bits for a region that reaches so far.
    pub(crate) fn covers(&self, region_bytes: u64) -> Result<(), BadOffset> {
        if self.region_bytes >= region_bytes { Ok(()) } else { Err(BadOffset { offset: 0, length: region_bytes }) }
    }

    #[inline(always)]
    fn word(&self, index: u64) -> &AtomicU64 {
        debug_assert!(index * 8 < Residency::area_bytes(self.region_bytes));
        // SAFETY: callers derive the index from an offset within the region.
        unsafe { self.bits.add(index as usize).as_ref() }
    }

    /// The pages that a range touches.
    #[inline(always)]
    fn pages(offset: u64, length: u64) -> Range<u64> {
        offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES)
    }

    /// The first page from `page` on that is resident, or is not; `end` if there is none before.
    fn find(&self, page: u64, end: u64, resident: bool) -> u64 {
        let mut at = page;
        while at < end {
            let word = self.word(at / 64).load(Acquire);
            let left = (if resident { word } else { !word }) >> (at % 64);
            if left != 0 {
                return (at + left.trailing_zeros() as u64).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Whether all pages of a range within the region are resident.
    #[inline]
    pub fn is_resident(&self, offset: u64, length: u64) -> bool {
        let Range { start, end } = Residency::pages(offset, length);
        self.find(start, end, false) == end
    }

    /// Declares the pages of a range within the region resident. Their bytes mean nothing yet, or
    /// are right as they are.
    pub fn set_resident(&self, offset: u64, length: u64) {
        let Range { start, end } = Residency::pages(offset, length);
        let mut at = start;
        while at < end {
            let stop = end.min((at / 64 + 1) * 64);
            let bits = u64::MAX >> (64 - (stop - at)) << (at % 64);
            let word = self.word(at / 64);
            if word.load(Acquire) & bits != bits {
                word.fetch_or(bits, Release);
            }
            at = stop;
        }
    }

    /// Passes the ranges of pages in a range within the region that are not resident, in bytes.
    pub fn for_each_absent<E>(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Range { start, end } = Residency::pages(range.start, range.end - range.start);
        let mut at = self.find(start, end, false);
        while at < end {
            let stop = self.find(at, end, true);
            each(at * BLOCK_BYTES..(stop * BLOCK_BYTES).min(self.region_bytes))?;
            at = self.find(stop, end, false);
        }
        Ok(())
    }

    /// Loads the pages of a range within the region that are not resident. `base`: the region's
    /// memory.
    pub(crate) fn load(&self, base: NonNull<u8>, range: Range<u64>) -> Result<(), LoadError> {
        self.for_each_absent(range, |absent| {
            let length = absent.end - absent.start;
            // SAFETY: within the region.
            let into = unsafe { base.add(absent.start as usize) };
            self.read_disk(absent.start, into, length as usize).map_err(|errno| match errno {
                EFAULT => LoadError::NoRoom,
                errno => LoadError::Disk(errno),
            })?;
            self.set_resident(absent.start, length);
            Ok(())
        })
    }

    /// Passes the parts of a range within the region to `each`, with whether it is resident.
    pub(crate) fn split(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>, bool) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let mut at = range.start;
        while at < range.end {
            let page = at / BLOCK_BYTES;
            let end = range.end.div_ceil(BLOCK_BYTES);
            let is_resident = self.find(page, page + 1, true) == page;
            let stop = (self.find(page, end, !is_resident) * BLOCK_BYTES).min(range.end);
            each(at..stop, is_resident)?;
            at = stop;
        }
        Ok(())
    }

    /// Reads bytes from the file, all or an errno.
    pub(crate) fn read_disk(&self, offset: u64, into: NonNull<u8>, length: usize) -> Result<(), i32> {
        let mut done = 0;
        while done < length {
            // SAFETY: within the memory that the caller passes.
            let rest = unsafe { into.add(done) };
            let fd = self.fd.load(SeqCst);
            let result = (self.read)(fd, offset + done as u64, rest, length - done);
            if self.fd.load(SeqCst) != fd {
                // It may have been another file's already.
                continue;
            }
            match result? {
                0 => return Err(EIO),
                count => done += count,
            }
        }
        Ok(())
    }
}
