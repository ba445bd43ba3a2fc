//! Directory logs (paper III.F): 4 KiB pages of 8-byte slots, each naming an extended dentry.
//!
//! Invariants
//! - A page is wholly zero behind its header, durably, before anything links to it.
//! - A slot is zero, or the offset of a dentry with a tag in its low six bits. A zero slot may be followed by used ones (its claimer has not
//!   got further, died, or the entry was recycled).
//! - Cookies ascend along the chain of pages; those of a page are at least its `first_cookie`.

use super::assert_layout;
use pmem::{Cell64, Commit64, Layout, crc32c};

/// Slots of a page.
pub const LOG_SLOTS: u64 = 504;
/// The first cookie of a directory; smaller ones are for `.` and `..`.
pub const FIRST_COOKIE: u64 = 16;

/// A log page.
#[repr(C, align(4096))]
pub struct LogPage {
    /// CRC-32C (high half) of owner and first cookie; the kind of page, 1 (low half).
    pub seal: Cell64,
    /// The inode number of the directory.
    pub owner: Cell64,
    /// The cookie of slot 0 when the page was opened for appending; slot `i` then gives cookie `first_cookie + i`. In a compacted page, the cookie of
    /// its first entry.
    pub first_cookie: Cell64,
    /// The next page.
    pub next: Commit64,
    /// Zero.
    pub reserved: [Cell64; 4],
    /// The slots.
    pub slots: [Commit64; LOG_SLOTS as usize],
}
assert_layout!(LogPage, 4096, seal @ 0, owner @ 8, first_cookie @ 16, next @ 24, reserved @ 32, slots @ 64);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for LogPage {}

impl LogPage {
    /// The seal of a page of directory `owner`.
    pub fn seal_word(owner: u64, first_cookie: u64) -> u64 {
        let mut bytes = [0u8; 16];
        bytes[0..8].copy_from_slice(&owner.to_le_bytes());
        bytes[8..16].copy_from_slice(&first_cookie.to_le_bytes());
        (crc32c(0, &bytes) as u64) << 32 | 1
    }

    /// Whether this is a log page of directory `owner`.
    pub fn belongs_to(&self, owner: u64) -> bool {
        self.owner.load() == owner && self.seal.load() == Self::seal_word(owner, self.first_cookie.load())
    }
}

/// What a slot names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum SlotTag {
    /// An extended dentry.
    Dentry = 1,
}

/// The word of a slot.
#[inline]
pub const fn slot_word(address: u64, tag: SlotTag) -> u64 {
    address | tag as u64
}

/// The offset that a slot names.
#[inline]
pub const fn slot_address(word: u64) -> u64 {
    word & !63
}

/// What a slot's word says that it names; none for a tag of a later format.
#[inline]
pub const fn slot_tag(word: u64) -> Option<SlotTag> {
    match word & 63 {
        1 => Some(SlotTag::Dentry),
        _ => None,
    }
}
