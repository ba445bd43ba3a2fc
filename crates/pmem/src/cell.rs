//! Cells and typed offsets: how a structure in a region is declared.
//!
//! Invariant: a structure in a region consists of cells only. A shared reference to it is therefore
//! sound for any bytes and with any concurrent writers.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A structure that may overlay any bytes of a region.
///
/// # Safety
/// The type is `repr(C)` without padding. It consists of [`Cell32`], [`Cell64`], [`Commit64`],
/// atomics of 4 or 8 bytes, and arrays of these. Any bit pattern is a value of it.
pub unsafe trait Layout: Sized {}

// SAFETY: single cells are the base case of the trait's contract.
unsafe impl Layout for Cell32 {}
// SAFETY: as above.
unsafe impl Layout for Cell64 {}
// SAFETY: as above.
unsafe impl Layout for Commit64 {}
// SAFETY: an atomic of 4 bytes; any bit pattern is a value.
unsafe impl Layout for AtomicU32 {}
// SAFETY: an atomic of 8 bytes; any bit pattern is a value.
unsafe impl Layout for AtomicU64 {}
// SAFETY: an array of layouts has no padding between its elements, since the size of each is a
// multiple of its alignment.
unsafe impl<T: Layout, const N: usize> Layout for [T; N] {}

macro_rules! cell {
    ($name:ident, $atomic:ty, $int:ty, $doc:literal) => {
        #[doc = $doc]
        #[repr(transparent)]
        pub struct $name(pub(crate) $atomic);

        impl $name {
            /// The value, unordered with other loads.
            #[inline(always)]
            pub fn load(&self) -> $int {
                self.0.load(Ordering::Relaxed)
            }

            /// The value. Stores made before its publication are visible after this load.
            #[inline(always)]
            pub fn load_acquire(&self) -> $int {
                self.0.load(Ordering::Acquire)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.load())
            }
        }
    };
}

cell!(Cell32, AtomicU32, u32, "Four bytes in a region; written with [`Region::set32`](crate::Region::set32).");
cell!(Cell64, AtomicU64, u64, "Eight bytes in a region; written with [`Region::set64`](crate::Region::set64).");
cell!(
    Commit64,
    AtomicU64,
    u64,
    "Eight bytes that make other bytes valid after a crash; written with [`Region::commit`](crate::Region::commit) only."
);

/// The offset of a `T` in a region. Zero means none: the superblock is at offset zero.
pub struct Pm<T> {
    offset: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Pm<T> {
    /// The offset `offset`, unchecked; [`Region::get`](crate::Region::get) checks it.
    #[inline(always)]
    pub const fn new(offset: u64) -> Self {
        Pm { offset, of: PhantomData }
    }

    /// No structure.
    pub const NONE: Self = Pm::new(0);

    /// Bytes from the start of the region.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Whether this is [`Pm::NONE`].
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.offset == 0
    }
}

impl<T> Clone for Pm<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Pm<T> {}
impl<T> PartialEq for Pm<T> {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset
    }
}
impl<T> Eq for Pm<T> {}
impl<T> fmt::Debug for Pm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.offset)
    }
}
