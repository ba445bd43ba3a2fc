//! Counts calls that reach the dispatcher, for tests and diagnosis.
//!
//! Invariant: the counters lie in a file that all counting processes map, one 64-bit word for each
//! call number. They are atomics and are never reset here.

use crate::abi::sys;
use crate::routes::NUMBERS;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU64};

/// Size of the file.
pub const BYTES: usize = NUMBERS * 8;

static COUNTERS: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Starts counting in this file, whose path ends with a zero byte. It must exist and be large
/// enough.
pub fn open(path: &[u8]) -> Result<(), i64> {
    let file = sys::open(path, libc::O_RDWR)?;
    if file.status()?.st_size < BYTES as i64 {
        return Err(-i64::from(libc::EINVAL));
    }
    let start = file.map(BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
    COUNTERS.store(start.cast(), Relaxed);
    Ok(())
}

/// Counts a call.
#[inline(always)]
pub fn count(number: usize) {
    let counters = COUNTERS.load(Relaxed);
    if !counters.is_null() {
        add(counters, number);
    }
}

#[cold]
#[inline(never)]
fn add(counters: *mut AtomicU64, number: usize) {
    if number < NUMBERS {
        // SAFETY: the mapping has NUMBERS words, stays mapped, and is accessed by atomics only.
        unsafe { &*counters.add(number) }.fetch_add(1, Relaxed);
    }
}
