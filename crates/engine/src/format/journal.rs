//! The rename journal (paper III.F): one record per slot, naming every step of a rename, so that
//! recovery can repeat all of them.
//!
//! A rename is durable once its record is: the steps themselves may still be in the cache. Its
//! thread makes them durable with its next rename, under that one's fence, and overwrites the
//! record with the one after that.
//!
//! Invariants
//! - A record counts only if its seal verifies: it certifies itself and is durable, with the new
//!   dentries, before the first step.
//! - Every step is idempotent, and stays so until one of the named dentries is recycled; before
//!   that the steps are durable and the record is durably cleared.
//! - The number of slots does not depend on the machine.

use super::assert_layout;
use pmem::{Cell64, Checksummed, Commit64, Layout, crc32c_words};

/// Journal slots of an image: two for each thread slot of a DRAM region, used alternately, so that
/// no rename ever waits for one.
pub const JOURNAL_SLOTS: u64 = 2048;

/// Bytes of a journal slot.
pub const JOURNAL_SLOT_BYTES: u64 = 128;

/// The operation that the record repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum JournalKind {
    /// One name moves and may replace another. With a second new dentry, the old place gets a name,
    /// too (exchange, whiteout).
    Rename = 1,
}

/// A new name: the log slot that is to name a dentry, and the moved inode's new `..` if it is a
/// directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Move {
    /// The log slot (offset of the word), or zero: no such step.
    pub slot: u64,
    /// The dentry that the slot is to name.
    pub dentry: u64,
    /// Offset of the moved directory's inode whose `parent` changes, or zero.
    pub directory: u64,
    /// Its new parent's inode number.
    pub parent: u64,
}

/// All steps of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalRecord {
    /// Names that appear.
    pub moves: [Move; 2],
    /// Dentries that become invalid: the old name, and the replaced one. Zero: none.
    pub invalidated: [u64; 2],
    /// Timestamp for the words <valid, mtime>, in ns since 1970.
    pub timestamp_ns: u64,
    /// Counts the renames of a thread slot in one DRAM region; distinguishes finished records from
    /// one that is being written.
    pub sequence: u64,
}

/// A journal slot: two lines.
#[repr(C, align(128))]
pub struct JournalSlot {
    /// CRC-32C (high half) of the words and the kind; [`JournalKind`] (low half). Zero: empty.
    pub seal: Commit64,
    /// The record, in the order of [`JournalRecord::words`].
    pub words: [Cell64; 12],
    /// Zero.
    pub reserved: [Cell64; 3],
}
assert_layout!(JournalSlot, 128, seal @ 0, words @ 8, reserved @ 104);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for JournalSlot {}

/// The word is the checksum itself. Recovery replays only what [`JournalSlot::record`] returns.
impl Checksummed for JournalSlot {
    #[inline(always)]
    fn commit_word(&self) -> &Commit64 {
        &self.seal
    }
}

impl JournalRecord {
    /// The record's words.
    pub fn words(&self) -> [u64; 12] {
        let [a, b] = self.moves;
        [
            a.slot,
            a.dentry,
            a.directory,
            a.parent,
            self.invalidated[0],
            self.invalidated[1],
            self.timestamp_ns,
            b.slot,
            b.dentry,
            b.directory,
            b.parent,
            self.sequence,
        ]
    }

    /// Decodes the words of a record.
    pub fn from_words(words: &[u64; 12]) -> JournalRecord {
        JournalRecord {
            moves: [
                Move { slot: words[0], dentry: words[1], directory: words[2], parent: words[3] },
                Move { slot: words[7], dentry: words[8], directory: words[9], parent: words[10] },
            ],
            invalidated: [words[4], words[5]],
            timestamp_ns: words[6],
            sequence: words[11],
        }
    }

    /// The seal of these words.
    pub fn seal(words: &[u64; 12]) -> u64 {
        let kind = JournalKind::Rename as u32;
        (crc32c_words(words, Some(kind)) as u64) << 32 | kind as u64
    }
}

impl JournalSlot {
    /// The record, if there is a whole one.
    pub fn record(&self) -> Option<JournalRecord> {
        let seal = self.seal.load_acquire();
        if seal == 0 {
            return None;
        }
        let words: [u64; 12] = core::array::from_fn(|index| self.words[index].load());
        (seal == JournalRecord::seal(&words)).then(|| JournalRecord::from_words(&words))
    }
}
