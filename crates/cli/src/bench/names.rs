//! Names to work with, packed in the order in which they are used: a program has its names at hand, so reading them must not cost cache
//! misses that would be counted as the file system's.

use std::ffi::CStr;

/// Bytes of a name, the terminating zero included.
const STRIDE: usize = 10;

/// Bytes of a name without its zero: what a file costs beside its name is said for these.
pub const NAME_BYTES: u64 = STRIDE as u64 - 1;

/// Names of one kind in one order.
pub struct Names {
    packed: Vec<u8>,
}

impl Names {
    /// `count` names that begin with `first`, in ascending order.
    pub fn ascending(first: u8, count: u64) -> Names {
        Names::pack(first, 0..count)
    }

    /// The same names in an order that is random but the same in every run.
    pub fn shuffled(first: u8, count: u64) -> Names {
        let mut order: Vec<u64> = (0..count).collect();
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        for index in (1..order.len()).rev() {
            // xorshift: speed and repeatability are all that is asked for.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(index, (state % (index as u64 + 1)) as usize);
        }
        Names::pack(first, order.into_iter())
    }

    fn pack(first: u8, order: impl Iterator<Item = u64>) -> Names {
        let mut packed = Vec::new();
        for number in order {
            packed.push(first);
            packed.extend_from_slice(format!("{number:08}").as_bytes());
            packed.push(0);
        }
        Names { packed }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        (self.packed.len() / STRIDE) as u64
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.packed
            .chunks_exact(STRIDE)
            .map(|name| CStr::from_bytes_with_nul(name).expect("packed with one zero, at the end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn shuffled_names_are_the_same_names() {
        let (ascending, shuffled) = (Names::ascending(b'f', 1000), Names::shuffled(b'f', 1000));
        assert_eq!(ascending.iter().next().map(CStr::to_bytes), Some(&b"f00000000"[..]));
        assert_ne!(ascending.packed, shuffled.packed);
        assert_eq!(ascending.iter().collect::<BTreeSet<_>>(), shuffled.iter().collect::<BTreeSet<_>>());
        assert_eq!(shuffled.count(), 1000);
    }
}
