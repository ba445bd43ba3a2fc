//! The undo journal for changes of several inodes (NOVA's "lite journal"). It records the old
//! values of words. Recovery restores them from every journal that was active at a crash.

use super::Nova;
use super::format::{JOURNAL_WORDS, JOURNALS, JOURNALS_BLOCK, Journal};
use crate::error::{Error, Result};
use crate::locks;
use crate::substrate::shard;
use pmem::{BLOCK_BYTES, Commit64, Flushed, Memory, Pm};

/// A word and its new value.
pub(super) type Change<'a> = (&'a Commit64, u64);

impl<M: Memory> Nova<M> {
    fn journal(&self, index: u64) -> Result<&Journal> {
        Ok(self.region.get(Pm::new((JOURNALS_BLOCK + index) * BLOCK_BYTES))?)
    }

    /// Changes several words atomically with respect to crashes. `prepared` holds the flushed but
    /// not yet fenced data that the words make valid; it shares the journal's first fence. `after`
    /// may flush data that must follow, under the last fence.
    pub(super) fn transact(
        &self,
        prepared: Flushed,
        changes: &[Change<'_>],
        after: impl FnOnce() -> Result<Option<Flushed>>,
    ) -> Result<()> {
        if let [(word, value)] = changes {
            // One word needs no journal.
            let durable = self.region.fence(prepared);
            let flushed = self.region.flush(self.region.commit(word, *value, durable));
            self.region.fence(flushed);
            if let Some(flushed) = after()? {
                self.region.fence(flushed);
            }
            return Ok(());
        }
        debug_assert!(changes.len() <= JOURNAL_WORDS);
        let index = shard(self.shards.min(JOURNALS as usize));
        let _held = locks::lock(&self.journals[index]);
        let journal = self.journal(index as u64)?;
        for (slot, (word, _)) in journal.words.iter().zip(changes) {
            self.region.set64(&slot.offset, self.region.offset_of(*word)).unflushed();
            self.region.set64(&slot.old, word.load()).unflushed();
        }
        let noted = self.region.flush_range(self.region.offset_of(&journal.words), changes.len() as u64 * 16);
        let durable = self.region.fence(prepared.and(noted));
        let active = self.region.commit(&journal.active, changes.len() as u64, durable);
        // From here on, recovery restores the old values …
        let durable = self.region.persist(active);
        let mut flushed = Flushed::nothing();
        for (word, value) in changes {
            flushed = flushed.and(self.region.flush(self.region.commit(word, *value, durable)));
        }
        self.region.fence(flushed);
        // … until here.
        let idle = self.region.flush(self.region.retract(&journal.active, 0));
        let flushed = after()?.unwrap_or(Flushed::nothing());
        self.region.fence(idle.and(flushed));
        Ok(())
    }

    /// Rolls back the transactions that were active at the crash.
    pub(super) fn undo_journals(&self) -> Result<()> {
        for index in 0..JOURNALS {
            let journal = self.journal(index)?;
            let active = journal.active.load();
            if active == 0 {
                continue;
            }
            if active > JOURNAL_WORDS as u64 {
                return Err(Error::damaged("a journal's word count is too large", self.region.offset_of(journal)));
            }
            let mut flushed = Flushed::nothing();
            for slot in &journal.words[..active as usize] {
                let word: &Commit64 = self.region.get(Pm::new(slot.offset.load()))?;
                flushed = flushed.and(self.region.flush(self.region.retract(word, slot.old.load())));
            }
            self.region.fence(flushed);
            let idle = self.region.retract(&journal.active, 0);
            self.region.persist(idle);
        }
        Ok(())
    }
}
