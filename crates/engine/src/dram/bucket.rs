//! A bucket of the mindex: one cache line with a lock, a version for lock-free readers, and three
//! entries.
//!
//! Decision: docs/decisions/names.md, "Names lie in buckets of one line".

use crate::sync::{AtomicU32, AtomicU64};
use pmem::Layout;

/// Entries in a bucket.
pub const BUCKET_ENTRIES: usize = 3;

/// One name. `key` zero: empty.
///
/// - `key`: the dentry's offset / 64 (low 40 bits), 24 bits of the name's hash above.
/// - `value`: a cachelet index, or the inode's offset / 256 if no cachelet was known (the paper's
///   inode quick path); bit 39 distinguishes them (set: inode). Another 24 bits of the hash above;
///   its low bits choose the bucket.
///
/// While a thread makes, removes or moves the name, it holds it: bit 38 of `value` is set, and the
/// low half is its slot + 1. The offset in `key` is all ones while there is no such name.
#[repr(C)]
pub struct BucketEntry {
    /// See above.
    pub key: AtomicU64,
    /// See above.
    pub value: AtomicU64,
}
// SAFETY: repr(C), two atomics of 8 bytes.
unsafe impl Layout for BucketEntry {}

/// A bucket, or the continuation of one.
#[repr(C, align(64))]
pub struct Bucket {
    /// Slot + 1 of the thread that may change this bucket and its continuations, except the entries
    /// of names that others hold; only in main buckets.
    pub lock: AtomicU32,
    /// Odd while entries change; readers retry if it has changed. Only in main buckets.
    pub version: AtomicU32,
    /// Index of the continuation, or zero.
    pub overflow: AtomicU32,
    /// Waiters on `lock` or on held names (futexes): non-zero asks the holder to wake.
    pub waiters: AtomicU32,
    /// The names.
    pub entries: [BucketEntry; BUCKET_ENTRIES],
}
const _: () = assert!(size_of::<Bucket>() == 64);
// SAFETY: repr(C), 16 + 3 * 16 bytes without padding, atomics only.
unsafe impl Layout for Bucket {}
