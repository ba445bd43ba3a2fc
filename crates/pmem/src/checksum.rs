//! CRC-32C (Castagnoli), the checksum of every self-certifying record.
//!
//! The code is our own for two reasons. Records of 40 to 300 bytes are summed on the hot path of
//! every call; the `crc32` instruction takes 7 ns, a call through a library with feature detection
//! several times that. And it must work without std.

use crate::processor::{self, CRC32C};

/// The Castagnoli polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 != 0 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

static TABLE: [u32; 256] = table();

/// Continues the CRC-32C `crc` (initially 0) over `bytes`.
#[inline]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    match processor::features() & CRC32C {
        0 => with_table(crc, bytes),
        // SAFETY: this processor has the instruction.
        _ => unsafe { with_instruction(crc, bytes) },
    }
}

/// The CRC-32C of whole words, then optionally half a word, in the image's byte order. It avoids a
/// failed store forwarding: a load that is wider than the stores before it waits until they have
/// reached the cache. Whole words do not wait.
#[inline]
pub fn crc32c_words<const COUNT: usize>(words: &[u64; COUNT], half: Option<u32>) -> u32 {
    match processor::features() & CRC32C {
        0 => words_with_table(words, half),
        // SAFETY: this processor has the instruction.
        _ => unsafe { words_with_instruction(words, half) },
    }
}

/// The index of the one flipped bit (byte times eight plus bit) among `length` summed bytes that
/// explains `difference`, the XOR of the stored and the computed checksum; none if no single bit
/// does. Up to 655 bytes every flip has its own difference.
pub fn flipped_bit(length: usize, difference: u32) -> Option<usize> {
    // The difference by a flip of the last bit. For each bit before, it is one more step of the
    // shift register.
    let mut flip = POLYNOMIAL;
    for bit in (0..length * 8).rev() {
        if flip == difference {
            return Some(bit);
        }
        flip = if flip & 1 != 0 { (flip >> 1) ^ POLYNOMIAL } else { flip >> 1 };
    }
    None
}

#[target_feature(enable = "sse4.2")]
fn with_instruction(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let mut wide = !crc as u64;
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut value = wide as u32;
    let (half, rest) = rest.as_chunks::<4>();
    for half in half {
        value = _mm_crc32_u32(value, u32::from_le_bytes(*half));
    }
    for byte in rest {
        value = _mm_crc32_u8(value, *byte);
    }
    !value
}

#[target_feature(enable = "sse4.2")]
fn words_with_instruction<const COUNT: usize>(words: &[u64; COUNT], half: Option<u32>) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};
    let wide = words.iter().fold(!0u32 as u64, |wide, word| _mm_crc32_u64(wide, *word));
    !half.map_or(wide as u32, |half| _mm_crc32_u32(wide as u32, half))
}

fn words_with_table(words: &[u64], half: Option<u32>) -> u32 {
    let crc = words.iter().fold(0, |crc, word| with_table(crc, &word.to_le_bytes()));
    half.map_or(crc, |half| with_table(crc, &half.to_le_bytes()))
}

fn with_table(crc: u32, bytes: &[u8]) -> u32 {
    let mut value = !crc;
    for byte in bytes {
        value = (value >> 8) ^ TABLE[((value ^ *byte as u32) & 0xff) as usize];
    }
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answer_of_the_castagnoli_polynomial() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn instruction_and_table_agree_at_every_length_and_when_split() {
        let bytes: Vec<u8> = (0..300u32).map(|n| (n * 7 + 3) as u8).collect();
        for length in 0..bytes.len() {
            let whole = crc32c(0, &bytes[..length]);
            assert_eq!(whole, with_table(0, &bytes[..length]));
            let split = length / 3;
            assert_eq!(whole, crc32c(crc32c(0, &bytes[..split]), &bytes[split..length]));
        }
    }

    #[test]
    fn words_are_summed_as_their_bytes() {
        let words = [0x0123_4567_89ab_cdef, 0, u64::MAX, 0xfeed_f00d_dead_beef];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(crc32c_words(&words, None), crc32c(0, &bytes));
        assert_eq!(words_with_table(&words, None), crc32c(0, &bytes));
        let half = 0x89ab_cdef_u32;
        let longer = crc32c(crc32c(0, &bytes), &half.to_le_bytes());
        assert_eq!(crc32c_words(&words, Some(half)), longer);
        assert_eq!(words_with_table(&words, Some(half)), longer);
    }

    #[test]
    fn a_flipped_bit_is_found_from_the_difference_alone() {
        let bytes: Vec<u8> = (0..283u32).map(|index| (index * 37 % 251) as u8).collect();
        let whole = crc32c(0, &bytes);
        // Under Miri each takes a second.
        for bit in (0..bytes.len() * 8).step_by(if cfg!(miri) { 301 } else { 1 }) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(bytes.len(), whole ^ crc32c(0, &flipped)), Some(bit));
            flipped[(bit / 8 + 5) % bytes.len()] ^= 16;
            assert_eq!(flipped_bit(bytes.len(), whole ^ crc32c(0, &flipped)), None);
        }
    }
}
