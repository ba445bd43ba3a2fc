//! Large tables that few programs need, in memory that is mapped when one is needed.
//!
//! As a static such a table would be part of the library's mapping, and that must stay shorter than
//! a huge page: processes share no patched code otherwise (see [`shared_text`]).
//!
//! Invariant: a table never moves and is never unmapped. A child of a fork has a copy.
//!
//! [`shared_text`]: crate::loading::shared_text

use crate::abi::sys;
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

/// What a table may hold.
///
/// # Safety
/// All bytes zero are a valid value, which threads can share, and which needs no drop.
pub unsafe trait Entry: Sync + 'static {}

// SAFETY: zero is a value of an atomic integer.
unsafe impl Entry for core::sync::atomic::AtomicU64 {}

/// A table of `N` entries, which are zero at first.
pub struct LargeTable<T, const N: usize>(AtomicPtr<[T; N]>);

impl<T: Entry, const N: usize> LargeTable<T, N> {
    /// A table without memory.
    pub const fn unmapped() -> Self {
        LargeTable(AtomicPtr::new(ptr::null_mut()))
    }

    /// The entries; none before the first [`entries_for_change`](Self::entries_for_change).
    pub fn entries(&self) -> &'static [T] {
        // SAFETY: null, or a mapping that holds the table for ever.
        unsafe { self.0.load(Acquire).as_ref() }.map_or(&[], |table| table)
    }

    /// The entries; none if the program may map no more memory.
    pub fn entries_for_change(&self) -> &'static [T] {
        if self.entries().is_empty() {
            self.map();
        }
        self.entries()
    }

    #[cold]
    fn map(&self) {
        let bytes = size_of::<[T; N]>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let Ok(start) = sys::map(bytes, protection, flags, -1) else { return };
        sys::leave_out_of_core_dumps(start, bytes);
        if self.0.compare_exchange(ptr::null_mut(), start.cast(), AcqRel, Acquire).is_err() {
            // SAFETY: another thread's mapping became the table, and none knows this one.
            unsafe { sys::unmap(start, bytes) };
        }
    }
}
