//! The undo journal. Each entry is one line with its own checksum. Once the entries are durable,
//! everything is changed in place.
//!
//! A transaction costs a fence for each structure that it logs, as in PMFS, one for what the
//! changes make visible if that was flushed later, one for the changes, and one for the end.

use super::Pmfs;
use super::format::{JOURNALS, JOURNALS_BLOCK, Journal, UNDO_WORDS, Undo};
use crate::error::{Error, Result};
use crate::locks;
use crate::substrate::shard;
use pmem::{BLOCK_BYTES, Cell64, Durable, Flushed, Layout, Memory, Pm, crc32c};
use posix::Errno;
use std::sync::MutexGuard;

/// A transaction. All words to be changed are logged first; [`begin`](Transaction::begin) makes the
/// log durable; then changes may follow. Dropping a transaction before its end rolls it back.
pub(super) struct Transaction<'p, M: Memory> {
    pmfs: &'p Pmfs<M>,
    journal: &'p Journal,
    generation: u64,
    count: usize,
    flushed: Flushed,
    /// Whether there were flushes since the last fence.
    is_pending: bool,
    begun: bool,
    ended: bool,
    _held: MutexGuard<'p, ()>,
}

fn checksum(offset: u64, generation: u64, count: u64, old: &[u64; UNDO_WORDS]) -> u32 {
    let head = [offset, generation, count].iter().fold(0, |crc, word| crc32c(crc, &word.to_le_bytes()));
    old.iter().fold(head, |crc, word| crc32c(crc, &word.to_le_bytes()))
}

impl<M: Memory> Pmfs<M> {
    fn journal(&self, index: u64) -> Result<&Journal> {
        Ok(self.region.get(Pm::new((JOURNALS_BLOCK + index) * BLOCK_BYTES))?)
    }

    pub(super) fn transaction(&self) -> Result<Transaction<'_, M>> {
        let index = shard(self.shards.min(JOURNALS as usize));
        let held = locks::lock(&self.journals[index]);
        let journal = self.journal(index as u64)?;
        Ok(Transaction {
            pmfs: self,
            journal,
            generation: journal.finished.load() + 1,
            count: 0,
            flushed: Flushed::nothing(),
            is_pending: false,
            begun: false,
            ended: false,
            _held: held,
        })
    }

    /// Rolls back the transactions that were active at the crash.
    pub(super) fn undo_journals(&self) -> Result<()> {
        for index in 0..JOURNALS {
            let journal = self.journal(index)?;
            let generation = journal.finished.load().wrapping_add(1);
            if self.undo(journal, generation)? {
                self.retire(journal, generation);
            }
        }
        Ok(())
    }

    fn retire(&self, journal: &Journal, generation: u64) {
        self.region.persist(self.region.retract(&journal.finished, generation));
    }

    /// Rolls back a transaction, last entry first. Returns whether it had any entry.
    fn undo(&self, journal: &Journal, generation: u64) -> Result<bool> {
        let mut flushed = None::<Flushed>;
        for entry in journal.entries.iter().rev() {
            let old: [u64; UNDO_WORDS] = std::array::from_fn(|index| entry.old[index].load());
            let (offset, count_checksum) = (entry.offset.load(), entry.count_checksum.load());
            let count = count_checksum & 0xffff_ffff;
            let is_valid = entry.generation.load() == generation
                && count <= UNDO_WORDS as u64
                && count_checksum >> 32 == checksum(offset, generation, count, &old) as u64;
            if !is_valid {
                continue;
            }
            for (index, value) in old[..count as usize].iter().enumerate() {
                let cell: &Cell64 = self.region.get(Pm::new(offset + index as u64 * 8))?;
                let back = self.region.flush(self.region.set64(cell, *value));
                flushed = Some(match flushed {
                    Some(before) => before.and(back),
                    None => back,
                });
            }
        }
        let any = flushed.is_some();
        self.region.fence(flushed.unwrap_or(Flushed::nothing()));
        Ok(any)
    }
}

impl<'p, M: Memory> Transaction<'p, M> {
    /// Logs the current values of words, before they change, and makes the log durable.
    pub(super) fn log(&mut self, offset: u64, words: u64) -> Result<()> {
        debug_assert!(!self.begun);
        let mut done = 0;
        while done < words {
            let count = (words - done).min(UNDO_WORDS as u64);
            let entry: &Undo = self.journal.entries.get(self.count).ok_or(Error::Errno(Errno::EIO))?;
            let at = offset + done * 8;
            let mut old = [0; UNDO_WORDS];
            for (index, word) in old.iter_mut().take(count as usize).enumerate() {
                *word = self.pmfs.region.get::<Cell64>(Pm::new(at + index as u64 * 8))?.load();
            }
            let region = &self.pmfs.region;
            region.set64(&entry.offset, at).unflushed();
            region.set64(&entry.generation, self.generation).unflushed();
            let sum = checksum(at, self.generation, count, &old) as u64;
            region.set64(&entry.count_checksum, count | sum << 32).unflushed();
            entry.old.iter().zip(old).for_each(|(cell, word)| region.set64(cell, word).unflushed());
            let flushed = region.flush_all(entry);
            self.with(flushed);
            self.count += 1;
            done += count;
        }
        self.fence();
        Ok(())
    }

    /// Logs a whole structure.
    pub(super) fn log_all<T: Layout>(&mut self, thing: &T) -> Result<()> {
        self.log(self.pmfs.region.offset_of(thing), size_of::<T>() as u64 / 8)
    }

    /// Logs one word.
    pub(super) fn log_word(&mut self, cell: &Cell64) -> Result<()> {
        self.log(self.pmfs.region.offset_of(cell), 1)
    }

    /// Adds flushed data for the next fence.
    pub(super) fn with(&mut self, flushed: Flushed) {
        let before = std::mem::replace(&mut self.flushed, Flushed::nothing());
        self.flushed = before.and(flushed);
        self.is_pending = true;
    }

    fn fence(&mut self) -> Durable {
        self.is_pending = false;
        self.pmfs.region.fence(std::mem::replace(&mut self.flushed, Flushed::nothing()))
    }

    /// Makes durable everything that the changes make visible. The log is durable.
    pub(super) fn begin(&mut self) {
        self.begun = true;
        if self.is_pending {
            self.fence();
        }
    }

    /// Changes a word in place.
    pub(super) fn set(&mut self, cell: &Cell64, value: u64) {
        debug_assert!(self.begun);
        let flushed = self.pmfs.region.flush(self.pmfs.region.set64(cell, value));
        self.with(flushed);
    }

    /// Makes the changes durable, then commits them.
    pub(super) fn end(mut self) {
        let durable = self.fence();
        let region = &self.pmfs.region;
        region.persist(region.commit(&self.journal.finished, self.generation, durable));
        self.ended = true;
    }
}

impl<M: Memory> Drop for Transaction<'_, M> {
    fn drop(&mut self) {
        if self.ended || self.count == 0 {
            return;
        }
        // The entries must not be valid when the next transaction reuses the number and writes
        // fewer entries.
        if !self.begun || self.pmfs.undo(self.journal, self.generation).is_ok() {
            self.pmfs.retire(self.journal, self.generation);
        }
    }
}
