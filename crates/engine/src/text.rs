//! Searching bytes in short texts (names, paths), eight at a time: most names are too short to gain
//! from wider registers.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = ONES << 7;

/// Up to seven bytes as a word, the first one lowest, zeros behind them.
#[inline(always)]
fn short_word(text: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        // The last four bytes may overlap the first four; the overlap lands in the same place.
        let behind = text.len() - 4;
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * behind);
    }
    text.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// The high bit of each byte of a word that is `byte`.
#[inline(always)]
fn matches(word: u64, byte: u8) -> u64 {
    let differs = word ^ (ONES * u64::from(byte));
    // No carries between bytes: a match is found at any position.
    !((differs & !HIGH).wrapping_add(!HIGH) | differs) & HIGH
}

/// Not zero if a byte of a word is `byte`. Its lowest set bit is the high bit of the first match;
/// what lies above it means nothing.
#[inline(always)]
fn first_match(word: u64, byte: u8) -> u64 {
    let differs = word ^ (ONES * u64::from(byte));
    differs.wrapping_sub(ONES) & !differs & HIGH
}

/// The bits of a word that hold the first `length` bytes, at most seven.
#[inline(always)]
fn within(length: usize) -> u64 {
    (1 << (8 * length)) - 1
}

/// Whether a text contains either of two bytes.
#[inline]
pub fn has_either(text: &[u8], one: u8, other: u8) -> bool {
    let found = |word| first_match(word, one) | first_match(word, other);
    let Some(last) = text.last_chunk::<8>() else {
        return found(short_word(text)) & within(text.len()) != 0;
    };
    let (words, _) = text.as_chunks::<8>();
    let in_words = words.iter().fold(0, |all, bytes| all | found(u64::from_le_bytes(*bytes)));
    in_words | found(u64::from_le_bytes(*last)) != 0
}

/// Position of the last occurrence of a byte in a text.
#[inline]
pub fn last_position(text: &[u8], byte: u8) -> Option<usize> {
    let highest = |found: u64| (found != 0).then(|| 7 - found.leading_zeros() as usize / 8);
    let Some(first) = text.first_chunk::<8>() else {
        return highest(matches(short_word(text), byte) & within(text.len()));
    };
    let (rest, words) = text.as_rchunks::<8>();
    for (index, bytes) in words.iter().enumerate().rev() {
        if let Some(at) = highest(matches(u64::from_le_bytes(*bytes), byte)) {
            return Some(rest.len() + index * 8 + at);
        }
    }
    highest(matches(u64::from_le_bytes(*first), byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// All texts of a length that consist of these bytes, among them the neighbours of a slash and
    /// of zero.
    fn texts(length: usize) -> impl Iterator<Item = Vec<u8>> {
        const BYTES: [u8; 4] = [b'/', 0, 0x80, b'.'];
        (0..4usize.pow(length as u32)).map(move |number| (0..length).map(|at| BYTES[number >> (2 * at) & 3]).collect())
    }

    #[test]
    fn short_texts_are_searched_as_byte_by_byte() {
        for text in (0..=7).flat_map(texts) {
            check(&text);
        }
    }

    #[test]
    fn a_byte_is_found_wherever_it_lies() {
        for length in 0..40usize {
            for (at, other) in (0..length).flat_map(|at| (0..=255u8).map(move |other| (at, other))) {
                let mut text: Vec<u8> = (0..length).map(|index| b'a' + (index % 26) as u8).collect();
                text[at] = other;
                check(&text);
            }
        }
    }

    fn check(text: &[u8]) {
        for byte in [b'/', 0, 1, 0x80] {
            assert_eq!(last_position(text, byte), text.iter().rposition(|&is| is == byte), "{byte} in {text:?}");
        }
        assert_eq!(has_either(text, b'/', 0), text.iter().any(|&is| is == b'/' || is == 0), "{text:?}");
    }
}
