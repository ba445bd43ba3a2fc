//! Names, packed in the order of their use. Real programs have their names in the cache, so reading
//! them must not cause cache misses that would count as the file system's.

use std::ffi::CStr;
use std::ops::Range;

/// Digits of the number in a name.
const DIGITS: usize = 8;

/// Bytes of a name without its prefix and zero: the length for which the cost of a file without its
/// name is computed.
pub const NAME_BYTES: u64 = DIGITS as u64 + 1;

/// Names of one kind in one order.
#[derive(Clone)]
pub struct Names {
    packed: Vec<u8>,
    stride: usize,
}

impl Names {
    /// Names consisting of `prefix` and a number of the range, in ascending order.
    pub fn ascending(prefix: &str, numbers: Range<u64>) -> Names {
        Names::pack(prefix, numbers)
    }

    /// The names in an order that is random, and equal in every run.
    pub fn shuffled(prefix: &str, numbers: Range<u64>) -> Names {
        let mut order: Vec<u64> = numbers.collect();
        Random::new(order.len() as u64).shuffle(&mut order);
        Names::pack(prefix, order.into_iter())
    }

    fn pack(prefix: &str, order: impl Iterator<Item = u64>) -> Names {
        let mut packed = Vec::new();
        for number in order {
            packed.extend_from_slice(format!("{prefix}{number:0DIGITS$}\0").as_bytes());
        }
        Names { packed, stride: prefix.len() + DIGITS + 1 }
    }

    /// The number of names.
    pub fn count(&self) -> u64 {
        (self.packed.len() / self.stride) as u64
    }

    /// The name with an index.
    pub fn get(&self, index: u64) -> &CStr {
        self.name(&self.packed[index as usize * self.stride..][..self.stride])
    }

    /// All names.
    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.packed.chunks_exact(self.stride).map(|name| self.name(name))
    }

    fn name<'n>(&self, name: &'n [u8]) -> &'n CStr {
        CStr::from_bytes_with_nul(name).expect("packed with one zero, at the end")
    }
}

/// Pseudorandom numbers, the same in every run (xorshift): fast and repeatable.
pub struct Random(u64);

impl Random {
    /// A sequence for a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number, below `limit`.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    /// Shuffles `things`.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for index in (1..things.len()).rev() {
            things.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn shuffled_names_are_the_same_names() {
        let (ascending, shuffled) = (Names::ascending("f", 0..1000), Names::shuffled("f", 0..1000));
        assert_eq!(ascending.get(0).to_bytes(), b"f00000000");
        assert_ne!(ascending.packed, shuffled.packed);
        assert_eq!(ascending.iter().collect::<BTreeSet<_>>(), shuffled.iter().collect::<BTreeSet<_>>());
        assert_eq!(shuffled.count(), 1000);
    }

    #[test]
    fn names_in_a_directory_have_it_before_them() {
        let names = Names::ascending("t3/f", 7..9);
        assert_eq!(names.iter().map(CStr::to_bytes).collect::<Vec<_>>(), [b"t3/f00000007", b"t3/f00000008"]);
    }
}
