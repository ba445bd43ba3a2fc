//! Pages of a mapped image that are lost: how the kernel reports them (SIGBUS), and what takes
//! their place.

use core::ops::Range;

/// Why pages of a mapped image cannot be accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// There is nothing behind them any more, or no room for them.
    Gone,
    /// The memory has an error there, and its bytes are lost.
    MemoryError,
}

impl Loss {
    /// By the code (`si_code`) of the signal.
    pub fn of_code(code: i32) -> Loss {
        /// A thread accessed the lost bytes, or the kernel found them earlier.
        const MEMORY_ERRORS: [i32; 2] = [4, 5];
        if MEMORY_ERRORS.contains(&code) { Loss::MemoryError } else { Loss::Gone }
    }

    /// What is wrong with the image, for messages: the rest of a sentence about it.
    pub fn description(self) -> &'static str {
        match self {
            Loss::Gone => "was truncated, its disk is full, or its device was removed",
            Loss::MemoryError => "has a memory error (bad blocks: `ndctl list -M`)",
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
        assert_eq!([2, 4, 5].map(Loss::of_code), [Loss::Gone, Loss::MemoryError, Loss::MemoryError]);
    }
}
