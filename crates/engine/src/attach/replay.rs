//! The rename journal after a crash: every rename whose record is whole is repeated. This precedes
//! the scan (`recovery`). Commits of an image on a disk are replayed before any attach, by
//! `journal::Journal::recover`.
//!
//! Invariants
//! - Repeating a record changes nothing that its rename, or a later operation, has already done.
//! - If several renames gave one name to files, the last one's dentry is in the log at the end, in
//!   whatever order their records lie.

use crate::components::ImageRecovery;
use crate::error::{Corruption, Result};
use crate::format::{
    Dentry, DentryFacts, FileKind, JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, JournalRecord, JournalSlot, LOG_SLOTS, Move,
    SlotTag, Valid, short_generation, slot_address, slot_tag, slot_word,
};
use pmem::{BLOCK_BYTES, Commit64, Memory, Pm};

impl<'f, M: Memory> ImageRecovery<'f, M> {
    /// Repeats every rename that has a whole record. Returns how many of them had been incomplete.
    pub(super) fn replay_journals(self) -> Result<u64> {
        let start = self.geometry.journal_block * BLOCK_BYTES;
        let slots = self.pm.slice(Pm::<JournalSlot>::new(start), JOURNAL_SLOTS)?;
        let mut completed = [0u64; JOURNAL_SLOTS as usize / 64];
        // If two renames gave one name to files, the later one expects the dentry in the log that
        // the earlier one put there. So repeated rounds apply records in the right order, whatever
        // their position. A round without a change is the last one.
        for _ in 0..JOURNAL_SLOTS {
            let mut changed = false;
            for (index, slot) in slots.iter().enumerate() {
                if let Some(record) = slot.record()
                    && self.replay(&record).unwrap_or(false)
                {
                    completed[index / 64] |= 1 << (index % 64);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        // The steps are durable before the records that repeat them are cleared.
        self.pm.fence_unfenced();
        // Crash point: all steps are repeated, and the records would repeat them again.
        for slot in slots.iter().filter(|slot| slot.seal.load() != 0) {
            self.pm.flush(self.pm.retract(&slot.seal, 0)).unfenced();
        }
        self.pm.fence_unfenced();
        debug_assert!(JOURNAL_SLOT_BYTES == size_of::<JournalSlot>() as u64);
        Ok(completed.iter().map(|word| word.count_ones() as u64).sum())
    }

    /// Repeats the steps of a record; returns whether any of them was still to do. All or nothing:
    /// if a dentry of a record does not verify, a crash stopped its rename before the first step.
    pub(crate) fn replay(self, record: &JournalRecord) -> Result<bool> {
        for step in record.moves.iter().filter(|step| step.dentry != 0) {
            self.check_move(step)?;
            if !self.valid_word_was_written(step)? {
                return Ok(false);
            }
        }
        for offset in record.invalidated.into_iter().filter(|offset| *offset != 0) {
            self.verified_dentry(offset)?;
        }
        let pm = &self.pm;
        // Everything that the steps name was durable before the crash, or it would not verify.
        let durable = pm.fence_nothing_new();
        let mut changed = false;
        for step in record.moves.iter().filter(|step| step.dentry != 0) {
            let (slot, facts) = self.check_move(step)?;
            let word = slot_word(step.dentry, SlotTag::Dentry);
            // Any other value belongs to another rename of the name, which came later (or before
            // one that is repeated after this one).
            if slot.load() == 0 || record.invalidated.contains(&slot_address(slot.load())) {
                pm.flush(pm.commit(slot, word, durable)).unfenced();
                changed = true;
            }
            // If the name is gone again, a later operation has decided about the directory.
            let counts = Valid::from_word(pm.get(Pm::<Dentry>::new(step.dentry))?.valid.load()).valid;
            if step.directory != 0 && counts {
                let inode = self.inode(facts.inode)?;
                changed |= inode.parent.load() != step.parent;
                pm.flush(pm.commit(&inode.parent, step.parent, durable)).unfenced();
            }
        }
        for offset in record.invalidated.into_iter().filter(|offset| *offset != 0) {
            let dentry = pm.get(Pm::<Dentry>::new(offset))?;
            if Valid::from_word(dentry.valid.load()).valid {
                pm.flush(pm.retract(&dentry.valid, dentry.invalid_word(record.timestamp_ns))).unfenced();
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Whether a new name's valid word was written: the seal does not cover it, and the previous
    /// content has another reuse generation. If it was not, the rename was stopped before its first
    /// step, and the old name counts. A later operation may have written it since; the steps are
    /// due all the same.
    fn valid_word_was_written(self, step: &Move) -> Result<bool> {
        let facts = self.verified_dentry(step.dentry)?;
        Ok(self.pm.get(Pm::<Dentry>::new(step.dentry))?.valid_word(&facts).is_some())
    }

    fn verified_dentry(self, offset: u64) -> Result<DentryFacts> {
        let bad = Corruption::Dentry(offset);
        if !self.lines_fit(offset, 1) {
            return Err(bad.into());
        }
        let dentry = self.pm.get(Pm::<Dentry>::new(offset))?;
        Ok(dentry.verified(&self.pm).ok_or(bad)?)
    }

    /// Whether a log slot is empty, or names this dentry, or names another one with the same
    /// cookie, which this one replaces or which has replaced it.
    fn is_place_of(self, word: u64, facts: &DentryFacts, dentry: u64) -> bool {
        let same_place = |other: DentryFacts| other.parent == facts.parent && other.cookie == facts.cookie;
        word == 0
            || word == slot_word(dentry, SlotTag::Dentry)
            || slot_tag(word).is_some() && self.verified_dentry(slot_address(word)).is_ok_and(same_place)
    }

    /// The log slot of a move and the facts of its dentry, if all of it is consistent.
    fn check_move(self, step: &Move) -> Result<(&'f Commit64, DentryFacts)> {
        let facts = self.verified_dentry(step.dentry)?;
        let bad = Corruption::LogPage(step.slot);
        let page_offset = step.slot / BLOCK_BYTES * BLOCK_BYTES;
        let index = (step.slot % BLOCK_BYTES / 8).checked_sub(BLOCK_BYTES / 8 - LOG_SLOTS).ok_or(bad)?;
        let page = self.log_page_of(page_offset, facts.parent).ok_or(bad)?;
        let slot = &page.slots[index as usize];
        if !step.slot.is_multiple_of(8) || !self.is_place_of(slot.load(), &facts, step.dentry) {
            return Err(bad.into());
        }
        if step.directory != 0 {
            let inode = self.inode(facts.inode)?;
            let fits = self.inode_offset(facts.inode)? == step.directory
                && inode.generation(facts.inode).map(short_generation) == Some(facts.generation)
                && inode.kind.load() == FileKind::Directory as u32
                && step.parent == facts.parent;
            if !fits {
                return Err(Corruption::Inode(facts.inode).into());
            }
        }
        Ok((slot, facts))
    }
}
