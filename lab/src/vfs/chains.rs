//! The hash table of the global index: a bucket for each value of a hash's low bits.
//!
//! A chain begins in a [`Bucket`]. Its version shows readers changes; bit 0 of the version is the
//! bucket's lock.

use super::arena::Array;
use crate::error::Result;
use pmem::Layout;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};

#[repr(C, align(8))]
pub(super) struct Bucket {
    pub(super) version: AtomicU32,
    pub(super) first: AtomicU32,
}
// SAFETY: two atomics of 4 bytes fill 8 bytes; every bit pattern is valid.
unsafe impl Layout for Bucket {}

pub(super) struct Chains(Array<Bucket>);

/// A locked bucket; readers wait or retry.
pub(super) struct Changing<'c> {
    pub(super) bucket: &'c Bucket,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let version = self.bucket.version.load(Relaxed);
        self.bucket.version.store(version.wrapping_add(1), Release);
    }
}

impl Chains {
    pub(super) fn new(names_max: u32) -> Result<Chains> {
        Ok(Chains(Array::new(names_max.max(1024).next_power_of_two())?))
    }

    /// Touches the table's memory.
    pub(super) fn touch(&self) {
        self.0.touch(self.0.length());
    }

    /// The bucket of a hash.
    #[inline]
    pub(super) fn of(&self, hash: u64) -> &Bucket {
        self.0.at(hash as u32 & (self.0.length() - 1))
    }

    /// Locks the bucket of a hash for a change.
    pub(super) fn lock(&self, hash: u64) -> Changing<'_> {
        let bucket = self.of(hash);
        let mut attempt = 0u32;
        loop {
            let now = bucket.version.load(Relaxed);
            if now & 1 == 0 && bucket.version.compare_exchange_weak(now, now + 1, Acquire, Relaxed).is_ok() {
                fence(Release);
                return Changing { bucket };
            }
            attempt += 1;
            if attempt.is_multiple_of(128) { std::thread::yield_now() } else { spin_loop() }
        }
    }
}
