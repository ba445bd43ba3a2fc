//! Pseudorandom numbers, the same for the same seed (xorshift).

/// A small generator.
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The sequence from a state that is not zero.
    pub fn from_state(state: u64) -> Random {
        Random(state)
    }

    /// The next number; its low bits are the weakest.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.word() >> 11) % limit
    }
}
