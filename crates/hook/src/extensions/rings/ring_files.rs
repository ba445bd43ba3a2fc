//! Files of the image in a ring's table of registered files.
//!
//! The kernel's table has a placeholder in their place. The description is kept by an entry of the
//! process's descriptor table, under a number that the kernel never assigns. So calls by that
//! number act on the file, also after the program has closed the descriptor that it registered.
//!
//! Invariants
//! - The word of a slot names ring and index. Its number is [`FIRST`] and the slot's position.
//! - exec ends the entries, as it ends rings: both are close-on-exec.
//!
//! At most 16,384 per process. A child in its parent's memory cannot register files of the image.
//! inotify descriptors and tables of mounts cannot be registered. *Rejected:* references of a new
//! kind (recovery, fork, exec and `ps` would have to know them); hidden descriptors of the kernel
//! (programs may take their numbers).

use crate::abi::entry::FDS_MAX;
use crate::large_table::LargeTable;
use crate::process::session::Session;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use posix::{Errno, Result};

/// The first number: none of the program's own descriptors of the image has it.
const FIRST: u32 = FDS_MAX as u32;
/// Files that the rings of a process may have registered at a time.
const FILES_MAX: usize = 16384;

/// A slot that was in use: searches go on behind it.
const LEFT: u64 = 1 << 63;
/// A slot that a thread is changing.
const BUSY: u64 = 1 << 62;

static FILES: LargeTable<AtomicU64, FILES_MAX> = LargeTable::unmapped();
/// Slots with files.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn key(ring: u32, index: u32) -> u64 {
    u64::from(ring + 1) << 32 | u64::from(index)
}

/// The slots in which a file may be, in the order of the search.
fn slots(key: u64) -> impl Iterator<Item = usize> {
    let first = (key ^ key >> 29) as usize;
    (0..FILES_MAX).map(move |step| first.wrapping_add(step) % FILES_MAX)
}

fn find(ring: u32, index: u32) -> Option<usize> {
    let (key, files) = (key(ring, index), FILES.entries());
    if files.is_empty() || COUNT.load(Relaxed) == 0 {
        return None;
    }
    let words = slots(key).map(|slot| (slot, files[slot].load(Acquire)));
    words.take_while(|(_, word)| *word != 0).find(|(_, word)| *word == key).map(|(slot, _)| slot)
}

/// The number in the descriptor table of the file of the image with this index in a ring's table.
pub fn number(ring: u32, index: u32) -> Option<u32> {
    find(ring, index).map(|slot| FIRST + slot as u32)
}

fn release_slot(session: &Session<'_>, slot: usize, word: u64) {
    let files = FILES.entries();
    if files[slot].compare_exchange(word, BUSY, AcqRel, Relaxed).is_ok() {
        session.process.drop_entry(session.caller.thread, FIRST + slot as u32);
        let is_last = files[(slot + 1) % FILES_MAX].load(Relaxed) == 0;
        files[slot].store(if is_last { 0 } else { LEFT }, Release);
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// An index of a ring's table gets no file of the image, or none any more.
pub fn release(session: &Session<'_>, ring: u32, index: u32) {
    if let Some(slot) = find(ring, index) {
        release_slot(session, slot, key(ring, index));
    }
}

/// Releases all files of a ring.
pub fn release_all(session: &Session<'_>, ring: u32) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    for (slot, word) in FILES.entries().iter().enumerate() {
        let word = word.load(Acquire);
        if word >> 32 == u64::from(ring + 1) {
            release_slot(session, slot, word);
        }
    }
}

/// Keeps the description of a descriptor as the file with an index of a ring's table.
pub fn keep(session: &Session<'_>, ring: u32, index: u32, fd: u32) -> Result<()> {
    let (key, files) = (key(ring, index), FILES.entries_for_change());
    let claim = |slot: &usize| {
        let word = files[*slot].load(Relaxed);
        matches!(word, 0 | LEFT) && files[*slot].compare_exchange(word, BUSY, AcqRel, Relaxed).is_ok()
    };
    if files.is_empty() {
        return Err(Errno(libc::ENOMEM));
    }
    let slot = slots(key).find(claim).ok_or(Errno(libc::ENFILE))?;
    let kept = session.process.duplicate(session.caller.thread, fd, FIRST + slot as u32, true);
    files[slot].store(if kept.is_ok() { key } else { LEFT }, Release);
    if kept.is_ok() {
        COUNT.fetch_add(1, Relaxed);
    }
    kept
}
