//! Changes of the totals of directories that several threads change at once. They are collected in
//! the threads' slots, so that the line with the totals moves between processors once in many
//! changes.
//!
//! Invariants
//! - Only the owner of a slot adds to its pending changes; any thread may take them, by
//!   compare-and-swap from what it read.
//! - A directory with pending changes is marked as shared, or a thread is about to take them (see
//!   `directory::totals`).

use super::Cachelet;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use pmem::Layout;

/// Directories for which a slot has places of their own; the index of the cachelet decides which.
const PLACES: usize = 4;
/// Changes that are passed on together. (Calls in tests are few.)
const CHANGES_MAX: u16 = if cfg!(test) { 2 } else { 32 };

/// A change of a directory's totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountChange {
    /// Names.
    pub names: i16,
    /// Holes.
    pub holes: u16,
}

impl CountChange {
    /// No change.
    pub const NONE: CountChange = CountChange { names: 0, holes: 0 };
    /// One more name.
    pub const NAME: CountChange = CountChange { names: 1, holes: 0 };
    /// A name becomes a hole.
    pub const NAME_TO_HOLE: CountChange = CountChange { names: -1, holes: 1 };
    /// A name gets another slot of the log.
    pub const MOVE: CountChange = CountChange { names: 0, holes: 1 };
    /// One name less, which leaves no hole.
    pub const NO_NAME: CountChange = CountChange { names: -1, holes: 0 };
}

/// The changes of one directory that a slot has collected, as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingChange {
    /// Index of the directory's cachelet.
    pub directory: u32,
    /// The sum of the changes.
    pub change: CountChange,
}

impl PendingChange {
    /// Decodes a word.
    #[inline]
    pub fn from_word(word: u64) -> PendingChange {
        let change = CountChange { names: (word >> 32) as u16 as i16, holes: (word >> 48) as u16 };
        PendingChange { directory: word as u32, change }
    }

    /// The word.
    #[inline]
    pub fn word(self) -> u64 {
        self.directory as u64 | (self.change.names as u16 as u64) << 32 | (self.change.holes as u64) << 48
    }

    /// Whether there is nothing to pass on.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.change.names == 0 && self.change.holes == 0
    }

    /// Whether it is time to pass the changes on.
    #[inline]
    pub fn is_full(self) -> bool {
        self.change.names.unsigned_abs().max(self.change.holes) >= CHANGES_MAX
    }

    /// With one more change.
    #[inline]
    pub fn and(self, more: CountChange) -> PendingChange {
        let names = self.change.names.wrapping_add(more.names);
        PendingChange { change: CountChange { names, holes: self.change.holes.wrapping_add(more.holes) }, ..self }
    }
}

/// What the owner of a slot saw of a directory's totals. Only the owner uses it.
#[repr(C)]
pub struct SeenTotals {
    /// The word with the totals after the owner's last change of it.
    pub word: AtomicU64,
    /// Index of the directory's cachelet.
    pub directory: AtomicU32,
    /// How often others had changed the word before the owner did: see `directory::totals`.
    pub meetings: AtomicU32,
    /// For a shared directory: successive times that no other had.
    pub calm: AtomicU32,
    /// Zero.
    pub reserved: [AtomicU32; 3],
}
// SAFETY: repr(C), 8 + 6 * 4 bytes without padding, atomics only.
unsafe impl Layout for SeenTotals {}

/// Slots of a directory's log that the owner of a thread slot claimed in advance. Only the owner
/// uses it; the next owner inherits it.
#[repr(C)]
pub struct LogBatch {
    /// Inode number of the directory.
    pub number: AtomicU64,
    /// The next log slot to use, as a tail.
    pub next: AtomicU64,
    /// Index of the directory's cachelet.
    pub directory: AtomicU32,
    /// Version of the cachelet.
    pub version: AtomicU32,
    /// The directory's state and the version of its log.
    pub state: AtomicU32,
    /// Index in the page of the slot behind the last; zero: none is claimed.
    pub end: AtomicU32,
}
// SAFETY: repr(C), 2 * 8 + 4 * 4 bytes without padding, atomics only.
unsafe impl Layout for LogBatch {}

/// What a thread slot knows of the directories that its owner changes.
#[repr(C, align(64))]
pub struct NameChanges {
    /// [`PendingChange`], on a line that other threads read only to collect.
    pub pending: [AtomicU64; PLACES],
    /// Index of the directory whose pending changes the owner moves; zero: none.
    pub passing: AtomicU32,
    /// Zero.
    pub reserved0: AtomicU32,
    /// Zero.
    pub reserved1: [AtomicU64; 3],
    /// See [`SeenTotals`].
    pub seen: [SeenTotals; PLACES],
    /// See [`LogBatch`].
    pub batches: [LogBatch; PLACES],
}
// SAFETY: repr(C), no padding (5 lines, as asserted), atomics only.
unsafe impl Layout for NameChanges {}
const _: () = assert!(size_of::<NameChanges>() == 320);

impl NameChanges {
    /// The place for a directory's pending changes.
    #[inline]
    pub fn place(&self, directory: u32) -> &AtomicU64 {
        &self.pending[directory as usize % PLACES]
    }

    /// The place for what was seen of a directory. The owner's next life may find another one.
    #[inline(always)]
    pub fn seen(&self, directory: &Cachelet) -> &SeenTotals {
        let address = core::ptr::from_ref(directory).addr();
        &self.seen[address / size_of::<Cachelet>() % PLACES]
    }

    /// The place for slots of a directory's log.
    #[inline]
    pub fn batch(&self, directory: u32) -> &LogBatch {
        &self.batches[directory as usize % PLACES]
    }

    /// Drops the pending changes of a directory whose totals will be counted again. No thread
    /// changes the directory.
    pub fn discard(&self, directory: u32) {
        let place = self.place(directory);
        loop {
            let word = place.load(Acquire);
            let others = PendingChange::from_word(word).directory != directory;
            if others || place.compare_exchange(word, 0, SeqCst, Relaxed).is_ok() {
                return;
            }
        }
    }
}
