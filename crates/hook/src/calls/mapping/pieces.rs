//! How a range of memory is mapped from the blocks of a file.

use crate::abi::sys;
use crate::process::environment;
use core::ops::Range;
use engine::Extent;
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED};
use posix::{Errno, Result};
use tables::process::FileMapping;

/// Size of the processor's pages.
pub const PAGE_BYTES: u64 = 4096;

/// Performs mmap.
pub fn map(address: u64, length: u64, protection: u64, flags: i32, fd: i32, offset: u64) -> Result<u64> {
    let arguments = [address, length, protection, flags as u64, fd as u64, offset];
    // SAFETY: maps at the address that the program requested, or inside a range that was reserved
    // for it.
    let result = unsafe { sys::call(libc::SYS_mmap, arguments) };
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as u64) }
}

/// Maps pieces of a file over a mapping of it.
pub struct Pieces {
    start: u64,
    length: u64,
    offset: u64,
    protection: u64,
    /// Flags for mmap.
    pub flags: i32,
    image: i32,
    /// Bytes from the start that the file has.
    mapped: u64,
    /// Bytes among them that stay missing.
    pub missing: u64,
    error: Option<Errno>,
}

impl Pieces {
    /// For a range within a mapping.
    pub fn of(mapping: &FileMapping, range: Range<u64>) -> Result<Pieces> {
        let Some(handoff) = environment::handoff() else { return Err(Errno::ENODEV) };
        Ok(Pieces {
            start: range.start,
            length: range.end - range.start,
            offset: mapping.offset + (range.start - mapping.address),
            protection: u64::from(mapping.protection),
            flags: if mapping.shared { MAP_SHARED } else { MAP_PRIVATE },
            image: handoff.image,
            mapped: 0,
            missing: 0,
            error: None,
        })
    }

    /// Maps an extent; one without written blocks as zeros, or it stays missing.
    pub fn map(&mut self, extent: &Extent, zeros: bool) {
        let from = extent.offset.max(self.offset) - self.offset;
        let skipped = self.offset.saturating_sub(extent.offset);
        let length = (extent.length - skipped).min(self.length - from);
        let start = self.start + from;
        let mapped = match extent.address.filter(|_| !extent.unwritten) {
            Some(address) => {
                map(start, length, self.protection, self.flags | MAP_FIXED, self.image, address + skipped).map(drop)
            }
            None if zeros => {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
                map(start, length, self.protection, flags, -1, 0).map(drop)
            }
            None => {
                self.missing += length;
                Ok(())
            }
        };
        self.error = self.error.or(mapped.err());
        self.mapped = from + length;
    }

    /// The number of bytes from the start that the file has.
    pub fn finish(self) -> Result<u64> {
        self.error.map_or(Ok(self.mapped), Err)
    }
}
