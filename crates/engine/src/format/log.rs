//! Directory logs (paper III.F): 4 KiB pages of 8-byte slots, each naming an extended dentry.
//!
//! Invariants
//! - A page is wholly zero behind its header, durably, before anything links to it.
//! - A slot is zero, or the offset of a dentry with a tag in its low six bits. A zero slot may be
//!   followed by used ones (its claimer has not filled it yet, died, or the entry was recycled).
//! - Cookies ascend along the chain of pages; those of a page are at least its `first_cookie`.
//! - A slot is filled after the page's bound of used slots covers it. Stores of the bound are
//!   flushed when the directory leaves the mindex and at the last detach, so the bound of a crashed
//!   image may be too low: recovery, which reads whole pages, corrects it.
//!
//! *Reason* for the bound: a small directory's names fill one or two lines, but its first access,
//! listing, eviction and recycling would read 64. `find` with cold caches was 19 to 112 % slower
//! than NOVA's in virtual time, and is 14 % faster on DRAM and 6 % slower on Optane. A writer that
//! raises no bounds would hide names, so they are a read-only compatible feature.
//!
//! *Rejected:* a bound flushed when it is raised (six flushes in the first 504 creates, and other
//! creates would rely on a bound that a stopped thread has not flushed); one that counts in its
//! epoch only (cold pages would have none); pages of 512 bytes (only space would be won).

use super::assert_layout;
use pmem::{Cell64, Commit64, Layout, crc32c_words};

/// Slots of a page.
pub const LOG_SLOTS: u64 = 504;
/// The bound of a directory's first page: one line of slots.
pub const USED_SLOTS_MIN: u64 = 8;
/// The first cookie of a directory; smaller ones are for `.` and `..`.
pub const FIRST_COOKIE: u64 = 16;

/// How the slots of a page relate to cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LogPageKind {
    /// Slot `i` belongs to cookie `first_cookie + i`. The last page of a log is of this kind.
    Append = 1,
    /// The slots' dentries hold their cookies, which ascend from `first_cookie`.
    Compacted = 2,
}

/// A log page.
#[repr(C, align(4096))]
pub struct LogPage {
    /// CRC-32C (high half) of owner, first cookie and kind; [`LogPageKind`] (low half).
    pub seal: Cell64,
    /// The inode number of the directory.
    pub owner: Cell64,
    /// The smallest cookie that the page may hold.
    pub first_cookie: Cell64,
    /// The next page.
    pub next: Commit64,
    /// CRC-32C (high half) of owner, first cookie and bound; bound of used slots (low half); zero:
    /// unknown. See [`LogPage::used_slots`].
    pub used: Cell64,
    /// Zero.
    pub reserved: [Cell64; 3],
    /// The slots.
    pub slots: [Commit64; LOG_SLOTS as usize],
}
assert_layout!(LogPage, 4096, seal @ 0, owner @ 8, first_cookie @ 16, next @ 24, used @ 32, reserved @ 40, slots @ 64);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for LogPage {}

impl LogPage {
    /// The seal of a page of directory `owner`.
    pub fn seal_word(owner: u64, first_cookie: u64, kind: LogPageKind) -> u64 {
        (crc32c_words(&[owner, first_cookie], Some(kind as u32)) as u64) << 32 | kind as u64
    }

    /// Whether this is a log page of directory `owner`.
    pub fn belongs_to(&self, owner: u64) -> bool {
        self.kind(owner).is_some()
    }

    /// The kind of page, if it belongs to directory `owner`.
    pub fn kind(&self, owner: u64) -> Option<LogPageKind> {
        let seal = self.seal.load();
        let kind = if seal as u32 == LogPageKind::Append as u32 { LogPageKind::Append } else { LogPageKind::Compacted };
        let whole = self.owner.load() == owner && seal == Self::seal_word(owner, self.first_cookie.load(), kind);
        whole.then_some(kind)
    }

    /// The word of a bound of used slots in a page of directory `owner`.
    pub fn used_word(owner: u64, first_cookie: u64, used: u64) -> u64 {
        (crc32c_words(&[owner, first_cookie, used], None) as u64) << 32 | used
    }

    /// The bound of used slots: all slots from there on are zero. `None`: unknown, since nothing
    /// has stored it or it is damaged.
    pub fn used_bound(&self) -> Option<u64> {
        let word = self.used.load_acquire();
        let used = word as u32 as u64;
        let verifies = used <= LOG_SLOTS && word == Self::used_word(self.owner.load(), self.first_cookie.load(), used);
        (word != 0 && verifies).then_some(used)
    }

    /// The slots that may be used: up to the bound; all if it is unknown.
    pub fn used_slots(&self) -> &[Commit64] {
        let used = self.used_bound().unwrap_or(LOG_SLOTS);
        self.slots.get(..used as usize).unwrap_or(&self.slots)
    }

    /// The bound that a page gets when `slots` of its slots are to be covered. Doubling keeps the
    /// stores rare.
    pub const fn used_for(slots: u64) -> u64 {
        let doubled = slots.next_power_of_two();
        if doubled < USED_SLOTS_MIN {
            USED_SLOTS_MIN
        } else if doubled > LOG_SLOTS {
            LOG_SLOTS
        } else {
            doubled
        }
    }
}

/// The type of structure that a slot names.
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

/// Tag of a slot in a page that a compaction has replaced. Nothing on the image leads to the page
/// any more, and the dentry is recycled with it.
const TAG_GONE: u64 = 2;

/// Converts the word of a dentry's slot to that of a slot whose dentry is recycled with its page.
pub const fn gone_word(word: u64) -> u64 {
    slot_address(word) | TAG_GONE
}

/// Whether the word is one from [`gone_word`].
#[inline]
pub const fn is_gone(word: u64) -> bool {
    word & 63 == TAG_GONE
}

/// The type of structure that a slot names; none for a tag of a later format.
#[inline]
pub const fn slot_tag(word: u64) -> Option<SlotTag> {
    match word & 63 {
        1 => Some(SlotTag::Dentry),
        _ => None,
    }
}
