//! A single flipped bit in a sealed structure: the checksum identifies it.
//!
//! CRC-32C distinguishes any single-bit flip from every other one in records of this length. So a
//! rotten bit can be repaired with the same certainty with which a seal is trusted at all.

use super::dentry::REUSE_GENERATIONS;
use super::{DENTRY_HEADER_BYTES, FileKind};
use super::{Dentry, Inode, LogPage, LogPageKind, NAME_BYTES_MAX, Property, dentry_lines};
use core::mem::offset_of;
use pmem::{BLOCK_BYTES, LINE_BYTES, Memory, Region, crc32c, flipped_bit};

/// The change of a word that makes a structure whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flip {
    /// Offset of the word in bytes from the start of the structure.
    pub offset: u64,
    /// The bit that flipped.
    pub mask: u64,
}

/// The flip in a structure with this seal at `seal_offset` that explains why `message` does not
/// match. `place` returns the word (by its offset) that holds a bit of the message, and the bit's
/// position in that word.
fn find(seal: u64, seal_offset: u64, message: &[u8], place: impl Fn(usize) -> Option<(usize, usize)>) -> Option<Flip> {
    let difference = (seal >> 32) as u32 ^ crc32c(0, message);
    if difference.is_power_of_two() {
        return Some(Flip { offset: seal_offset, mask: (difference as u64) << 32 });
    }
    let (offset, bit) = place(flipped_bit(message.len(), difference)?)?;
    Some(Flip { offset: offset as u64, mask: 1 << bit })
}

impl Inode {
    /// The flipped bit that keeps the identity from verifying for `number`, if there is one.
    pub fn flip_in_identity(&self, number: u64) -> Option<Flip> {
        let birth = self.birth.load();
        if birth >> 32 == 0 || self.generation(number).is_some() {
            return None;
        }
        let mut message = [0u8; 28];
        message[0..8].copy_from_slice(&self.number.load().to_le_bytes());
        message[8..12].copy_from_slice(&self.kind.load().to_le_bytes());
        message[12..16].copy_from_slice(&self.device.load().to_le_bytes());
        message[16..24].copy_from_slice(&self.born_ns.load().to_le_bytes());
        message[24..28].copy_from_slice(&(birth as u32).to_le_bytes());
        let flip = find(birth, 0, &message, |bit| match bit {
            // Number, kind and device, and birth time lie in the order of the checksum, behind the
            // seal, which ends with the generation.
            0..192 => Some((8 + bit / 64 * 8, bit % 64)),
            _ => Some((0, bit - 192)),
        })?;
        // The identity of another inode is not this one's with a flip.
        let becomes = if flip.offset == 8 { self.number.load() ^ flip.mask } else { self.number.load() };
        (becomes == number).then_some(flip)
    }

    /// The flipped bit that keeps property entry `index` from verifying, if there is one.
    pub fn flip_in_property(&self, index: usize, number: u64, generation: u32) -> Option<Flip> {
        let entry = &self.properties[index];
        let seal = entry.seal.load();
        let words: [u64; 7] = core::array::from_fn(|index| entry.words[index].load());
        if seal == Property::seal(&words, seal as u32, number, generation) {
            return None;
        }
        let mut message = [0u8; 72];
        for (index, word) in words.iter().enumerate() {
            message[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        message[56..64].copy_from_slice(&number.to_le_bytes());
        message[64..68].copy_from_slice(&generation.to_le_bytes());
        message[68..72].copy_from_slice(&(seal as u32).to_le_bytes());
        let flip = find(seal, 0, &message, |bit| match bit {
            0..448 => Some((8 + bit / 64 * 8, bit % 64)),
            // Number and generation are not in the entry.
            448..544 => None,
            _ => Some((0, bit - 544)),
        })?;
        let sequence = if flip.offset == 0 { seal ^ flip.mask } else { seal } as u32;
        let start = offset_of!(Inode, properties) + index * LINE_BYTES as usize;
        (sequence as usize & 1 == index).then_some(Flip { offset: start as u64 + flip.offset, ..flip })
    }
}

impl LogPage {
    /// The flipped bit that keeps the header from verifying for directory `owner`, if there is one.
    pub fn flip_in_header(&self, owner: u64) -> Option<Flip> {
        let seal = self.seal.load();
        if self.belongs_to(owner) {
            return None;
        }
        let mut message = [0u8; 20];
        message[0..8].copy_from_slice(&self.owner.load().to_le_bytes());
        message[8..16].copy_from_slice(&self.first_cookie.load().to_le_bytes());
        message[16..20].copy_from_slice(&(seal as u32).to_le_bytes());
        let flip = find(seal, 0, &message, |bit| match bit {
            0..128 => Some((8 + bit / 64 * 8, bit % 64)),
            _ => Some((0, bit - 128)),
        })?;
        let word = |offset: u64, word: u64| if flip.offset == offset { word ^ flip.mask } else { word };
        let kind = word(0, seal) as u32;
        let known = kind == LogPageKind::Append as u32 || kind == LogPageKind::Compacted as u32;
        (known && word(8, self.owner.load()) == owner).then_some(flip)
    }
}

impl Dentry {
    /// The flipped bit that keeps the dentry from verifying, if there is one.
    pub fn flip<M: Memory>(&self, pm: &Region<M>) -> Option<Flip> {
        let seal = self.seal.load();
        if seal == 0 || self.verified(pm).is_some() {
            return None;
        }
        let seal_at = offset_of!(Dentry, seal) as u64;
        // The low half holds the length of the record, so each of its bits is tried.
        let low = (0..32).map(|bit| 1u64 << bit).find(|mask| self.matches(pm, seal ^ mask) == Some(0));
        if let Some(mask) = low {
            return Some(Flip { offset: seal_at, mask });
        }
        let difference = self.matches(pm, seal)?;
        if difference.is_power_of_two() {
            return Some(Flip { offset: seal_at, mask: (difference as u64) << 32 });
        }
        let bit = flipped_bit(28 + seal as u8 as usize, difference)?;
        let (offset, bit) = match bit {
            0..192 => (offset_of!(Dentry, inode) + bit / 64 * 8, bit % 64),
            192..224 => return None,
            _ => {
                let bit = bit - 224;
                (DENTRY_HEADER_BYTES as usize + bit / 64 * 8, bit % 64)
            }
        };
        Some(Flip { offset: offset as u64, mask: 1 << bit })
    }

    /// Difference between the checksum of this record with another seal and the checksum in that
    /// seal: zero if they match. None if the low half is impossible.
    fn matches<M: Memory>(&self, pm: &Region<M>, seal: u64) -> Option<u32> {
        let offset = pm.offset_of(self);
        let length = seal as u8 as usize;
        let lines = dentry_lines(length);
        let known = FileKind::from_bits((seal >> 8) as u8 as u32).is_some()
            && (1..=REUSE_GENERATIONS).contains(&((seal >> 24) as u8));
        if length == 0
            || (seal >> 16) & 0xff != lines
            || !known
            || offset % BLOCK_BYTES + lines * LINE_BYTES > BLOCK_BYTES
        {
            return None;
        }
        let mut message = [0u8; 28 + NAME_BYTES_MAX];
        message[0..8].copy_from_slice(&self.inode.load().to_le_bytes());
        message[8..16].copy_from_slice(&self.parent.load().to_le_bytes());
        message[16..24].copy_from_slice(&self.cookie.load().to_le_bytes());
        message[24..28].copy_from_slice(&(seal as u32).to_le_bytes());
        pm.read_bytes(offset + DENTRY_HEADER_BYTES, &mut message[28..28 + length]).ok()?;
        Some((seal >> 32) as u32 ^ crc32c(0, &message[..28 + length]))
    }
}
