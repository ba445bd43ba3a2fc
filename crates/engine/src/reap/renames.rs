//! Reaping renames: a rename has happened if its journal record is whole.

use crate::components::Reaper;
use crate::death::may_die_here;
use crate::dram::{FLAG_RENAMING, References, RetiredKind, STEP_DONE};
use crate::error::Result;
use crate::format::{FileKind, JournalRecord};
use crate::mindex::SECOND;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use pmem::{BLOCK_BYTES, LINE_BYTES, Memory};

impl<'f, M: Memory> Reaper<'_, 'f, M> {
    pub(super) fn recover_rename(self, done: bool, exchanged: bool) -> Result<()> {
        let intent = &self.thread.slot.intent;
        let record = match self.in_flight_dentry(0) {
            0 => None,
            dentry => self.thread.rename_record(dentry)?,
        };
        match record {
            Some(record) => self.finish_rename(&record, done, exchanged)?,
            // The record of a finished rename may be gone, or an earlier reaper got this far.
            None if done => {}
            None => {
                self.thread.discard_record()?;
                self.roll_back_rename()?;
            }
        }
        if record.is_some() || done {
            self.finish_replaced(exchanged)?;
        }
        for index in [intent.file.load(Relaxed), intent.victim.load(Relaxed)] {
            self.end_marking(index)?;
        }
        Ok(())
    }

    /// Clears the rename flag of a file whose lock is held, or of a directory whose names are. A
    /// directory's change time may have been set without its dirty mark, so the mark is set here.
    fn end_marking(self, index: u32) -> Result<()> {
        let cachelet = self.thread.fs.dram.cachelet(index)?;
        let is_directory = FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Directory);
        let names = self.held_name(0)?.is_some() && self.held_name(SECOND)?.is_some();
        if index != 0 && (self.thread.holds(&cachelet.lock) || (is_directory && names)) {
            if is_directory {
                self.thread.cachelets().mark_dirty(cachelet);
            }
            cachelet.references.fetch_and(!References::flag(FLAG_RENAMING), AcqRel);
        }
        Ok(())
    }

    /// Completes a rename whose journal record is whole.
    fn finish_rename(self, record: &JournalRecord, done: bool, exchanged: bool) -> Result<()> {
        let pm = &self.thread.fs.pm;
        for offset in record.moves.iter().map(|step| step.dentry).filter(|offset| *offset != 0) {
            pm.flush_range(offset, (5 * LINE_BYTES).min(BLOCK_BYTES - offset % BLOCK_BYTES)).unfenced();
        }
        pm.fence_unfenced();
        self.thread.fs.recovery().replay(record)?;
        pm.fence_unfenced();
        if !exchanged {
            self.drop_replaced(self.thread.slot.intent.victim.load(Relaxed))?;
        }
        may_die_here();
        if !done {
            self.rename_names(record)?;
        }
        for (offset, lines) in self.thread.renames().reused_slots(record)?.into_iter().flatten() {
            if !self.thread.recycler().is_queued(RetiredKind::Dentry, offset) {
                self.thread.recycler().retire(RetiredKind::Dentry, offset, lines);
            }
        }
        may_die_here();
        self.thread.end_journal_of(record.sequence)
    }

    /// Drops one link of a replaced file. (A replaced directory is reclaimed at the end.)
    fn drop_replaced(self, victim: u32) -> Result<()> {
        let mode = self.thread.fs.dram.cachelet(victim)?.mode.load(Relaxed);
        if FileKind::from_mode(mode) != Some(FileKind::Directory) { self.drop_link_once(victim) } else { Ok(()) }
    }

    /// Reclaims a replaced directory, and drops the reference to the whiteout in the old place.
    fn finish_replaced(self, exchanged: bool) -> Result<()> {
        let victim = self.thread.slot.intent.victim.load(Relaxed);
        if victim != 0 && !exchanged {
            let replaced = self.thread.fs.dram.cachelet(victim)?;
            if FileKind::from_mode(replaced.mode.load(Relaxed)) == Some(FileKind::Directory) {
                self.thread.reclaim_directory(replaced, victim);
            }
        }
        let whiteout = self.thread.slot.in_flight.cachelet.load(Relaxed);
        self.thread.clear_in_flight();
        if whiteout != 0 {
            self.thread.fs.dram.cachelet(whiteout)?.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
        }
        Ok(())
    }

    /// Repairs the mindex after a rename, where the names are still held.
    fn rename_names(self, record: &JournalRecord) -> Result<()> {
        let [arrival, old_place] = record.moves.map(|step| Some(step.dentry).filter(|dentry| *dentry != 0));
        for (tag, dentry) in [(0, old_place), (SECOND, arrival)] {
            if let Some(held) = self.held_name(tag)? {
                held.set(dentry);
            }
        }
        self.thread.slot.intent.step.store(STEP_DONE, Release);
        Ok(())
    }

    /// Rolls back a rename that did not happen.
    fn roll_back_rename(self) -> Result<()> {
        let intent = &self.thread.slot.intent;
        let victim = intent.victim.load(Relaxed);
        if victim == 0 {
            return Ok(());
        }
        let cachelet = self.thread.fs.dram.cachelet(victim)?;
        let is_directory = FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Directory);
        if is_directory && self.held_name(SECOND)?.is_some() {
            cachelet.as_directory().allow_names();
        }
        Ok(())
    }
}
