//! What a dead process was at: put in order by whoever takes its slot over.
//!
//! The steps and what they promise are those of [`super::actor`]: here the one that was under way is put back to its beginning, and the operation then undone (while
//! nothing refers to what was taken) or gone on with.

use super::actor::{Actor, BUSY, Place, Step};
use super::areas::Kind;
use super::{life, lists, locks};
use crate::errno::Result;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::Memory;

impl<M: Memory> Actor<'_, '_, M> {
    /// Of a process that is gone: puts in order what its threads were at, and frees their slots.
    pub fn recover_members(&self) -> Result<()> {
        for word in &self.slot.members {
            let Some(index) = word.load(Acquire).checked_sub(1) else { continue };
            let slot = self.areas().slot(index)?;
            self.as_member(index, slot).recover()?;
            // In this order: a slot that is in the list is this process's.
            word.store(0, Release);
            life::free_slot(slot);
        }
        Ok(())
    }

    /// Puts in order what the slot's process was at when it ended: finished or undone, no lock held but the table's.
    pub fn recover(&self) -> Result<()> {
        let step = self.present_step();
        self.free_locks(step)?;
        match step {
            Step::Claim | Step::TakeRecord | Step::TakeUsers => {
                self.undo_claims()?;
                if let Some(word) = self.place_word(Place::from_word(self.intent().place.load(Relaxed)))? {
                    let _ = word.compare_exchange(BUSY, 0, Release, Relaxed);
                }
                self.step(Step::None);
            }
            _ => {}
        }
        let done = self.go_on();
        self.step(Step::None);
        let tokens_lock = &self.areas().header().tokens_lock;
        if tokens_lock.load(Acquire) == self.ticket() {
            tokens_lock.store(0, Release);
        }
        done
    }

    /// Gives up the locks that the intent names, putting back a count that was perhaps changed.
    fn free_locks(&self, step: Step) -> Result<()> {
        let intent = self.intent();
        let counting = intent.counting.load(Acquire) != 0;
        if let Some(index) = intent.file.load(Acquire).checked_sub(1) {
            let file = self.areas().file(index)?;
            if file.lock.load(Acquire) == self.ticket() {
                if counting && matches!(step, Step::TakeUsers | Step::DropUsers) {
                    file.users.store(intent.before.load(Relaxed) as u32, Release);
                }
                file.lock.store(0, Release);
            }
        }
        let cachelet = intent.record.load(Acquire);
        let record = self.areas().record(cachelet)?;
        if cachelet != 0 && record.lock.load(Acquire) == self.ticket() {
            let before = intent.before.load(Relaxed);
            if counting && matches!(step, Step::TakeRecord | Step::DropRecord) {
                record.counts.store(before, Release);
            }
            // What is given is given once more, marks included; what was taken is undone here.
            if counting && step == Step::TakeRecord {
                self.mark(cachelet, before.wrapping_add(intent.change.load(Relaxed)), before)?;
            }
            if matches!(step, Step::Locks | Step::DropLocks) {
                self.undo_claims()?;
                if let Some(node) = intent.unlinked.load(Relaxed).checked_sub(1) {
                    lists::free_if_unlinked(self, node)?;
                    intent.unlinked.store(0, Release);
                }
                locks::tell_waiters(self.all, record);
            }
            self.unlock_record(record);
        }
        Ok(())
    }

    /// Frees what was claimed and is not used.
    pub fn undo_claims(&self) -> Result<()> {
        let intent = self.intent();
        let Some(kind) = Kind::from_number(intent.claimed_kind.load(Relaxed)) else { return Ok(()) };
        for claim in &intent.claims {
            let Some(index) = claim.load(Relaxed).checked_sub(1) else { continue };
            match kind {
                Kind::Lock => lists::free_if_unlinked(self, index)?,
                Kind::Page => {
                    let Place::Descriptor(slot, fd) = Place::from_word(intent.place.load(Relaxed)) else { continue };
                    if self.areas().page_link(slot, fd)?.load(Acquire) != index + 1 {
                        self.unclaim(Kind::Page, index)?;
                    }
                }
                Kind::Token if self.areas().token(index)?.file.load(Acquire) != 0 => {}
                Kind::File => {
                    let file = self.areas().file(index)?;
                    if file.claimed.load(Acquire) == self.ticket() {
                        file.users.store(0, Release);
                        self.unclaim(Kind::File, index)?;
                    }
                }
                Kind::Mapping | Kind::Token => self.unclaim(kind, index)?,
            }
            claim.store(0, Release);
        }
        Ok(())
    }
}
