//! Recovery of a dead process's transaction, by the process that reaps its slot.
//!
//! The steps and their guarantees are those of [`super::table_transaction`]. Recovery rolls the
//! interrupted step back to its beginning. Then it rolls the transaction back, while nothing refers
//! to what was taken, or completes it.

use super::shared_tables::TableKind;
use super::table_transaction::{BUSY, TableSlot, TableTransaction, TransactionStep};
use super::{life, lists, locks};
use crate::errno::Result;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::Memory;

impl<M: Memory> TableTransaction<'_, '_, M> {
    /// For a dead process: recovers the transactions of its threads, and frees their slots.
    pub fn recover_members(&self) -> Result<()> {
        for word in &self.slot.members {
            let Some(index) = word.load(Acquire).checked_sub(1) else { continue };
            let slot = self.tables().slot(index)?;
            self.as_member(index, slot).recover()?;
            // In this order: a slot in the list belongs to this process.
            word.store(0, Release);
            life::free_slot(self.processes, index)?;
        }
        Ok(())
    }

    /// Recovers the transaction that the slot's process was in when it ended: completed or rolled
    /// back, with no lock held except the table's.
    pub fn recover(&self) -> Result<()> {
        let step = self.present_step();
        self.free_locks(step)?;
        match step {
            TransactionStep::Claim | TransactionStep::TakeRecord | TransactionStep::TakeReferences => {
                self.undo_claims()?;
                if let Some(word) = self.slot_word(TableSlot::from_word(self.intent().place.load(Relaxed)))? {
                    let _ = word.compare_exchange(BUSY, 0, Release, Relaxed);
                }
                self.step(TransactionStep::None);
            }
            _ => {}
        }
        let done = self.resume();
        self.step(TransactionStep::None);
        let tokens_lock = &self.tables().header().tokens_lock;
        if tokens_lock.load(Acquire) == self.ticket() {
            tokens_lock.store(0, Release);
        }
        done
    }

    /// Releases the locks that the intent names, and restores a count that may have changed.
    fn free_locks(&self, step: TransactionStep) -> Result<()> {
        let intent = self.intent();
        let counting = intent.counting.load(Acquire) != 0;
        if let Some(index) = intent.file.load(Acquire).checked_sub(1) {
            let file = self.tables().file(index)?;
            if file.lock.load(Acquire) == self.ticket() {
                if counting && matches!(step, TransactionStep::TakeReferences | TransactionStep::DropReferences) {
                    file.users.store(intent.before.load(Relaxed) as u32, Release);
                }
                file.lock.store(0, Release);
            }
        }
        let cachelet = intent.record.load(Acquire);
        let record = self.tables().record(cachelet)?;
        if cachelet != 0 && record.lock.load(Acquire) == self.ticket() {
            let before = intent.before.load(Relaxed);
            if counting && matches!(step, TransactionStep::TakeRecord | TransactionStep::DropRecord) {
                record.counts.store(before, Release);
            }
            // Releases are repeated, marks included; acquisitions are undone here.
            if counting && step == TransactionStep::TakeRecord {
                self.mark(cachelet, before.wrapping_add(intent.change.load(Relaxed)), before)?;
            }
            if matches!(step, TransactionStep::Locks | TransactionStep::DropLocks) {
                self.undo_claims()?;
                if let Some(node) = intent.unlinked.load(Relaxed).checked_sub(1) {
                    lists::free_if_unlinked(self, node)?;
                    intent.unlinked.store(0, Release);
                }
                locks::wake_waiters(self.processes, record);
            }
            self.unlock_record(record);
        }
        Ok(())
    }

    /// Frees entries that were claimed and not used.
    pub fn undo_claims(&self) -> Result<()> {
        let intent = self.intent();
        let Some(kind) = TableKind::from_number(intent.claimed_table.load(Relaxed)) else { return Ok(()) };
        for claim in &intent.claims {
            let Some(index) = claim.load(Relaxed).checked_sub(1) else { continue };
            match kind {
                TableKind::Lock => lists::free_if_unlinked(self, index)?,
                TableKind::Page => {
                    let TableSlot::Descriptor(slot, fd) = TableSlot::from_word(intent.place.load(Relaxed)) else {
                        continue;
                    };
                    if self.tables().page_link(slot, fd)?.load(Acquire) != index + 1 {
                        self.unclaim(TableKind::Page, index)?;
                    }
                }
                TableKind::FdToken if self.tables().token(index)?.file.load(Acquire) != 0 => {}
                TableKind::File => {
                    let file = self.tables().file(index)?;
                    if file.claimed.load(Acquire) == self.ticket() {
                        file.users.store(0, Release);
                        self.unclaim(TableKind::File, index)?;
                    }
                }
                TableKind::Mapping | TableKind::FdToken => self.unclaim(kind, index)?,
            }
            claim.store(0, Release);
        }
        Ok(())
    }
}
