//! Pages of a mapped image that are lost: how the kernel reports them (SIGBUS), and what takes
//! their place.
//!
//! - **Nothing is behind the page** (truncation, a full disk, a removed device): no byte of the
//!   image is reliable, so all accesses fail from then on.
//! - **The memory has an error** (bad blocks). Content of a file: the read ends with
//!   [`LoadError::Lost`](crate::LoadError::Lost), and everything else goes on. Once the process
//!   knows of errors, stores to content are preceded by a load of the page, and free blocks with
//!   errors are not allocated. Metadata: as above, because an image without it is damaged.

use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// Whether this process knows of memory errors.
static EXPECTS_ERRORS: AtomicBool = AtomicBool::new(false);

/// Records that memory of this process's images has errors: the kernel lists bad blocks, or an
/// access met one.
pub fn expect_memory_errors() {
    EXPECTS_ERRORS.store(true, Relaxed);
}

/// Whether memory of this process's images is known to have errors.
#[inline(always)]
pub fn expects_memory_errors() -> bool {
    EXPECTS_ERRORS.load(Relaxed)
}

/// Why pages of a mapped image cannot be accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// There is nothing behind them any more, or no room for them.
    Gone,
    /// The memory has an error there, and its bytes, of metadata, are lost.
    MemoryError,
}

impl Loss {
    /// By the code (`si_code`) of the signal.
    pub fn of_code(code: i32) -> Loss {
        Loss::of(code, expects_memory_errors())
    }

    fn of(code: i32, expects_errors: bool) -> Loss {
        /// A thread accessed the lost bytes, or the kernel found them earlier.
        const MEMORY_ERRORS: [i32; 2] = [4, 5];
        /// There is no page. Kernels before 6.6 may report listed bad blocks so.
        const NO_PAGE: i32 = 2;
        let is_error = MEMORY_ERRORS.contains(&code) || expects_errors && code == NO_PAGE;
        if is_error { Loss::MemoryError } else { Loss::Gone }
    }

    /// What is wrong with the image, for messages: the rest of a sentence about it.
    pub fn description(self) -> &'static str {
        match self {
            Loss::Gone => "was truncated, its disk is full, or its device was removed",
            Loss::MemoryError => "has lost metadata to a memory error (bad blocks: `ndctl list -M`)",
        }
    }

    /// What an administrator does about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Loss::Gone => "restore the image, free space or enable the device, and check it with `directfs fsck`",
            Loss::MemoryError => {
                "copy what can be read, clear the bad blocks (`ndctl clear-errors`), and restore the image"
            }
        }
    }
}

/// What is wrong if contents of files are lost, and what to do: the rest of a sentence about the
/// image.
pub const CONTENT_LOST: &str = "has a memory error (bad blocks: `ndctl list -M`): files with bad blocks return EIO, all others \
     can be used; `directfs fsck` lists them; clear the bad blocks (`ndctl clear-errors`), and restore these files \
     from a snapshot";

/// The units around an address, within a mapping, in which that may be replaced: a page, or where
/// the kernel refuses it (EINVAL) the larger pages of a DAX device, of which its mapping consists.
pub fn dax_units_around(address: usize, mapping: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    /// Possible alignments of DAX devices.
    const UNITS_BYTES: [usize; 3] = [4 << 10, 2 << 20, 1 << 30];
    let units = UNITS_BYTES.into_iter().map(move |bytes| {
        let start = address & !(bytes - 1);
        start..start.saturating_add(bytes)
    });
    units.filter(move |unit| mapping.start <= unit.start && unit.end <= mapping.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_around_an_address_stay_within_their_mapping() {
        const MIB: usize = 1 << 20;
        let units: Vec<_> = dax_units_around(5 * MIB + 5000, 4 * MIB..8 * MIB).collect();
        assert_eq!(units, [5 * MIB + 4096..5 * MIB + 8192, 4 * MIB..6 * MIB]);
        let mut units = dax_units_around(5 * MIB, 5 * MIB..6 * MIB);
        assert_eq!(units.next(), Some(5 * MIB..5 * MIB + 4096));
        assert_eq!(units.next(), None, "what is not a whole unit belongs to others");
    }

    #[test]
    fn a_memory_error_is_not_taken_for_a_truncation() {
        let of = |code| Loss::of(code, false);
        assert_eq!([2, 4, 5].map(of), [Loss::Gone, Loss::MemoryError, Loss::MemoryError]);
        assert_eq!([Loss::of(2, true), Loss::of(3, true)], [Loss::MemoryError, Loss::Gone], "of an old kernel");
    }
}
