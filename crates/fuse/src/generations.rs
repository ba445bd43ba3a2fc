//! The generation of each file that the servers of a kept mount reported to the kernel, by inode
//! number.
//!
//! A request names a file by its number alone. A file that was removed while open ends with the
//! server, and its number may be given to another file. The generation distinguishes them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Set in the word of a number that was reported.
const IS_KNOWN: u64 = 1 << 32;

/// The memory of the table, which the servers inherit from the keeper.
pub(crate) fn create() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("directfs-generations", rustix::fs::MemfdFlags::CLOEXEC)?)
}

/// The table, mapped by a server until its process ends.
pub(crate) struct Generations(&'static [AtomicU64]);

impl Generations {
    /// Maps the table for numbers up to `number_max`. Only the pages of numbers that were reported
    /// take memory.
    pub(crate) fn map(memory: &OwnedFd, number_max: u64) -> io::Result<Generations> {
        let words = number_max as usize + 1;
        let bytes = words * size_of::<AtomicU64>();
        rustix::fs::ftruncate(memory, bytes as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, of an open descriptor.
        let place = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is aligned to a page, `bytes` long, and never unmapped; the memory is
        // not shrunk, since every server sets the same length. All values are valid, and atomic.
        Ok(Generations(unsafe { std::slice::from_raw_parts(place.cast(), words) }))
    }

    /// Records a file before it is reported.
    pub(crate) fn record(&self, number: u64, generation: u32) {
        if let Some(word) = self.0.get(number as usize) {
            word.store(IS_KNOWN | u64::from(generation), Relaxed);
        }
    }

    /// The generation of the file that the kernel knows by this number.
    pub(crate) fn get(&self, number: u64) -> Option<u32> {
        let word = self.0.get(number as usize)?.load(Relaxed);
        (word & IS_KNOWN != 0).then_some(word as u32)
    }
}
