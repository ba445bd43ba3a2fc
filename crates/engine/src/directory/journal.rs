//! The rename journal at work: writes records, and makes those of finished renames superfluous.
//!
//! Invariants
//! - Thread slot `i` writes journal slots `2i` and `2i + 1` alternately. When it writes the record
//!   of turn `t`, the steps of turn `t - 1` are flushed before the fence that makes the new record
//!   durable. So the record of turn `t - 2`, which `t` overwrites, is superfluous.
//! - A thread slot's count of renames advances after the steps of a rename are stored. A record of
//!   a turn below the count is finished.
//! - An image has journal slots for 1,024 thread slots. The last 64 pairs belong to none: threads
//!   in higher slots borrow one for a rename, under its lock. The count of renames is then the
//!   pair's.
//!
//! *Reason:* two fences take 1,020 ns, one fence 750 to 890 (Xeon 2.8 GHz). No locked instruction
//! stands between the first flush and the fence, because it would wait for the flushes: a rename
//! took 8.6 times a store that is flushed and fenced, and takes 6.6 times. *Rejected:* record,
//! changes and commit under several fences, as in the paper.

use crate::dram::SHARED_JOURNAL_PAIRS;
use crate::error::{Error, Result};
use crate::format::{Dentry, JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, JournalRecord, JournalSlot};
use crate::fs::{Fs, Thread};
use crate::lock::LockGuard;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Flushed, Memory, Pm};

/// Thread slots with a pair of journal slots of their own.
const OWN_PAIRS: u64 = JOURNAL_SLOTS / 2 - SHARED_JOURNAL_PAIRS as u64;

/// Pairs whose records are cleared together, under one fence: a bound for the stack.
const CLEARED_PAIRS: usize = 64;
const _: () = assert!(SHARED_JOURNAL_PAIRS <= CLEARED_PAIRS);

impl<M: Memory> Fs<M> {
    fn journal_slot(&self, pair: u64, sequence: u64) -> Result<&JournalSlot> {
        let index = (pair * 2 + sequence % 2) % JOURNAL_SLOTS;
        Ok(self.pm.get(Pm::new(self.geometry.journal_block * BLOCK_BYTES + index * JOURNAL_SLOT_BYTES))?)
    }

    /// Flushes all words that the steps of a finished record stored.
    fn flush_steps(&self, record: &JournalRecord) -> Flushed {
        let mut flushed = Flushed::nothing();
        let words = record.moves.iter().flat_map(|step| [step.slot, step.directory]).chain(record.invalidated);
        for offset in words.filter(|offset| *offset != 0 && self.pm.contains(*offset, 64)) {
            // A log slot, the first line of an inode (its `..`) or of a dentry (its valid word):
            // one line each.
            flushed = flushed.and(self.pm.flush_range(offset, 8));
        }
        flushed
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Before a rename writes its record: borrows a pair of journal slots for a thread slot without
    /// one. The guard lives until the rename is counted.
    pub(super) fn borrow_journal(&self) -> Result<Option<LockGuard<'f>>> {
        if u64::from(self.index) < OWN_PAIRS {
            return Ok(None);
        }
        let pairs = &self.fs.header()?.journal_pairs;
        // Any free pair will do, so that a stopped thread makes no other wait.
        let first = self.index as usize % SHARED_JOURNAL_PAIRS;
        let mut all = pairs[first..].iter().chain(&pairs[..first]);
        match all.find_map(|pair| self.try_lock(&pair.lock, &pair.waiters)) {
            Some(held) => Ok(Some(held)),
            None => self.lock(&pairs[first].lock, &pairs[first].waiters).map(Some),
        }
    }

    /// The pair of journal slots that this thread slot writes, and its count of renames. `None`: it
    /// has borrowed none.
    fn journal_pair(&self) -> Result<Option<(u64, &'f AtomicU64)>> {
        if u64::from(self.index) < OWN_PAIRS {
            return Ok(Some((u64::from(self.index), &self.slot.renames)));
        }
        let pairs = (OWN_PAIRS..).zip(&self.fs.header()?.journal_pairs);
        Ok(pairs.into_iter().find(|(_, pair)| self.holds(&pair.lock)).map(|(index, pair)| (index, &pair.renames)))
    }

    /// Writes and flushes this thread's next record, and flushes the steps of the previous rename:
    /// the same fence makes both durable.
    pub(super) fn write_journal(&self, record: &JournalRecord) -> Result<Flushed> {
        let pm = &self.fs.pm;
        let (pair, renames) = self.journal_pair()?.ok_or(Error::Busy)?;
        let sequence = renames.load(Relaxed);
        let steps = match sequence.checked_sub(1) {
            Some(last) => self.fs.journal_slot(pair, last)?.record(),
            None => None,
        };
        let steps = steps.map_or(Flushed::nothing(), |record| self.fs.flush_steps(&record));
        let slot = self.fs.journal_slot(pair, sequence)?;
        let words = JournalRecord { sequence, ..*record }.words();
        debug_assert!(self.fs.names_verify(record), "recovery repeats a record only if all its dentries verify");
        for (cell, word) in slot.words.iter().zip(words) {
            // Flushed with the whole slot below.
            pm.set64(cell, word).unflushed();
        }
        pm.commit_record(slot, JournalRecord::seal(&words)).unflushed();
        debug_assert_eq!(slot.record(), Some(JournalRecord { sequence, ..*record }), "recovery reads what was written");
        Ok(pm.flush_all(slot).and(steps))
    }

    /// As the reaper of this slot: counts the rename of a record, unless it has been counted.
    pub(crate) fn end_journal_of(&self, sequence: u64) -> Result<()> {
        match self.journal_pair()? {
            Some((_, renames)) if renames.load(Relaxed) == sequence => self.end_journal(),
            _ => Ok(()),
        }
    }

    /// As the reaper of this slot: the record of the rename that was to make a name of
    /// `dentry_offset`, if the rename got that far.
    pub(crate) fn rename_record(&self, dentry_offset: u64) -> Result<Option<JournalRecord>> {
        let Some((pair, renames)) = self.journal_pair()? else { return Ok(None) };
        let sequence = renames.load(Relaxed);
        for sequence in [Some(sequence), sequence.checked_sub(1)].into_iter().flatten() {
            let slot = self.fs.journal_slot(pair, sequence)?;
            let record =
                slot.record().filter(|record| record.sequence == sequence && record.moves[0].dentry == dentry_offset);
            if record.is_some() {
                self.fs.pm.flush_all(slot).unfenced();
                return Ok(record);
            }
        }
        Ok(None)
    }

    /// As the reaper of this slot, whose rename did not happen: clears a partly written record that
    /// it had started over an older one.
    pub(crate) fn discard_record(&self) -> Result<()> {
        let pm = &self.fs.pm;
        let Some((pair, renames)) = self.journal_pair()? else { return Ok(()) };
        let slot = self.fs.journal_slot(pair, renames.load(Relaxed))?;
        if slot.seal.load() != 0 && slot.record().is_none() {
            pm.persist(pm.retract(&slot.seal, 0));
        }
        Ok(())
    }

    /// Advances the count of renames: the steps of this thread's rename are stored.
    pub(super) fn end_journal(&self) -> Result<()> {
        let (_, renames) = self.journal_pair()?.ok_or(Error::Busy)?;
        renames.store(renames.load(Relaxed).wrapping_add(1), Release);
        Ok(())
    }
}

impl<M: Memory> Fs<M> {
    /// Whether all dentries verify that a record gives names.
    fn names_verify(&self, record: &JournalRecord) -> bool {
        let mut named = record.moves.iter().map(|moved| moved.dentry).filter(|&offset| offset != 0);
        named.all(|offset| {
            self.pm.get(Pm::<Dentry>::new(offset)).is_ok_and(|dentry| dentry.verified(&self.pm).is_some())
        })
    }

    /// Makes the steps of all finished renames durable and clears their records. Required before
    /// anything that they name is recycled, and before the image is left clean. Returns what is
    /// flushed; the recycler fences before it releases anything.
    pub(crate) fn clear_journal(&self) -> Result<Flushed> {
        let used = self.header()?.slots_high.load(Acquire);
        let shared = if used > OWN_PAIRS { &self.header()?.journal_pairs[..] } else { &[] };
        let own = |pair: u64| Ok(&self.dram.slot(pair as u32)?.renames);
        let mut cleared = Flushed::nothing();
        for first in (0..used.min(OWN_PAIRS)).step_by(CLEARED_PAIRS) {
            let pairs = first..used.min(OWN_PAIRS).min(first + CLEARED_PAIRS as u64);
            cleared = cleared.and(self.clear_pairs(pairs.map(|pair| (pair, own(pair))))?);
        }
        let shared = (OWN_PAIRS..).zip(shared.iter().map(|pair| Ok(&pair.renames)));
        Ok(cleared.and(self.clear_pairs(shared)?))
    }

    /// `clear_journal` for some pairs of journal slots, at most [`CLEARED_PAIRS`], each with its
    /// count of renames.
    fn clear_pairs<'a>(&self, pairs: impl Iterator<Item = (u64, Result<&'a AtomicU64>)>) -> Result<Flushed> {
        let pm = &self.pm;
        let mut steps = Flushed::nothing();
        // The records whose steps are flushed. A rename that ends during the fence keeps its own.
        let mut finished: [Option<(&JournalSlot, u64)>; 2 * CLEARED_PAIRS] = [None; 2 * CLEARED_PAIRS];
        let mut count = 0;
        for (pair, renames) in pairs {
            let renames = renames?.load(Acquire);
            for sequence in renames.saturating_sub(2)..renames {
                let slot = self.journal_slot(pair, sequence)?;
                let record = slot.record().filter(|record| record.sequence < renames);
                if let (Some(record), Some(entry)) = (record, finished.get_mut(count)) {
                    steps = steps.and(self.flush_steps(&record));
                    *entry = Some((slot, JournalRecord::seal(&record.words())));
                    count += 1;
                }
            }
        }
        let mut cleared = Flushed::nothing();
        if count > 0 {
            // Crash point: the steps are durable, and repeating them changes nothing.
            pm.fence(steps);
        }
        for (slot, seal) in finished.into_iter().flatten() {
            // Does nothing if its thread is writing another record there.
            if let Some(dirty) = pm.retract_if(&slot.seal, seal, 0) {
                cleared = cleared.and(pm.flush(dirty));
            }
        }
        Ok(cleared)
    }
}
