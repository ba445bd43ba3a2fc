//! Hints where a file was last found, for events that begin at an open file: a watch on its
//! directory gets its name.
//!
//! A hint is only that: the caller looks the name up. Entries are overwritten without a lock, so a
//! checksum certifies each.

use super::Watches;
use super::layout::{NAMES, NameEntry};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Where a file was found.
#[derive(Debug, Clone, Copy)]
pub struct NameHint {
    /// The directory.
    pub directory: u64,
    /// Bytes of the name; zero: it is not there, as far as is known.
    pub length: usize,
    /// The name.
    pub name: [u8; 256],
    /// The name was not looked for.
    pub is_unknown: bool,
}

/// In place of a length: only the directory is known.
const UNKNOWN: u64 = 0xffff;

fn checksum(number: u64, directory: u64, length: u64, name: &[u64; 32]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    // Not zero, which free entries have.
    [number, directory, length].into_iter().chain(*name).fold(1, mix) | 1
}

impl<'f> Watches<'f> {
    fn name_entry(self, number: u64) -> Option<(&'f NameEntry, u64)> {
        let tables = self.tables().ok()?;
        let version = u64::from(tables.names_version.load(Acquire)) << 32;
        let index = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize % NAMES;
        Some((&tables.names[index], version))
    }

    /// Records where a file was found; without a name that it is not in the directory.
    pub(super) fn record_name(self, number: u64, directory: u64, name: &[u8]) {
        self.store_name(number, directory, name, name.len() as u64);
    }

    /// Records only the directory.
    pub(super) fn record_directory(self, number: u64, directory: u64) {
        self.store_name(number, directory, b"", UNKNOWN);
    }

    fn store_name(self, number: u64, directory: u64, name: &[u8], length: u64) {
        let Some((entry, version)) = self.name_entry(number) else { return };
        let mut words = [0; 32];
        for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        entry.number.store(number, Relaxed);
        entry.directory.store(directory, Relaxed);
        entry.length.store(version | length, Relaxed);
        for (word, value) in entry.name.iter().zip(words) {
            word.store(value, Relaxed);
        }
        entry.check.store(checksum(number, directory, version | length, &words), Release);
    }

    /// Where a file was found. That it was not in a directory counts only until the next watch.
    pub(super) fn name_hint(self, number: u64) -> Option<NameHint> {
        let (entry, version) = self.name_entry(number)?;
        let check = entry.check.load(Acquire);
        let directory = entry.directory.load(Relaxed);
        let length = entry.length.load(Relaxed);
        let words = entry.name.each_ref().map(|word| word.load(Relaxed));
        if entry.number.load(Relaxed) != number || check != checksum(number, directory, length, &words) {
            return None;
        }
        let mut name = [0; 256];
        for (bytes, word) in name.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let (is_new, length) = (length & !0xffff_ffff == version, length & 0xffff_ffff);
        let is_unknown = length == UNKNOWN || (length == 0 && !is_new);
        let length = if is_unknown { 0 } else { (length as usize).min(255) };
        Some(NameHint { directory, length, name, is_unknown })
    }
}
