//! What becomes of a thread's work when it dies inside: another one takes its slot, finishes or undoes what it was at, and frees the slot.
//!
//! A slot says all that its owner had: the locks, what was out of the allocators, the operation, and the words that were to change together. What the
//! operation had come to is decided by looking at the image, as recovery would after a crash: a name that entered the mindex exists, a rename
//! whose journal record is whole has happened, of a file the newest property entry counts. Everything else is undone.
//!
//! Invariants
//! - A reaper is the slot's owner while it works, so that another takes over if it dies in turn. Every step may be repeated.
//! - It waits for nothing but for locks that are held for moments (of allocators), and takes no others: so whoever waits for a dead owner may
//!   call it, with whatever locks. What would need others is left to whoever comes next: a directory of which the counts are in doubt is
//!   indexed anew ([`crate::dram::DirectoryState::NeedsRecount`]).
//! - The pin of the dead stays until all is done: what its slot names is not used for something else.
//! - No loop waits for ever for what only a dead thread could end: locks reap their owners, and looks are counted ([`crate::backoff`]).

mod intents;
mod names;
mod objects;
mod renames;

use crate::backoff::SPINS;
use crate::dram::{Cachelet, Group, IntentKind, SlabState};
use crate::error::Result;
use crate::fs::{Fs, Thread};
use crate::step::step;
use crate::sync::{AtomicU32, AtomicU64, spin_loop};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::Memory;

/// How long to wait for another one who puts a dead thread's work in order: he may have been stopped.
const RECOVERING_WAIT_MS: u32 = 1000;

impl<M: Memory> Fs<M> {
    /// Puts the work of all threads in order that died inside; how many there were. For whoever learns of a death, and before references of dead
    /// processes are given back.
    pub fn reap_dead_threads(&self) -> Result<u64> {
        let mut reaped = 0;
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            reaped += u64::from(self.reap_if_dead(index)?);
        }
        Ok(reaped)
    }

    /// As [`Fs::reap_dead_threads`], and waits for those who are at it already. For whoever has seen a process end: what that was doing has happened now, or has
    /// not and never will. Not pinned, and without locks.
    pub fn recover_dead_threads(&self) -> Result<()> {
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            self.reap_if_dead(index)?;
            self.wait_until_recovered(index)?;
        }
        Ok(())
    }

    fn wait_until_recovered(&self, index: u32) -> Result<()> {
        let slot = self.dram.slot(index)?;
        for look in 0..SPINS + RECOVERING_WAIT_MS {
            // Without an owner it is only what somebody wrote who came too late.
            if slot.recovering.load(Acquire) == 0 || slot.owner.load(Acquire) == 0 {
                return Ok(());
            }
            match look {
                ..SPINS => spin_loop(),
                _ => self.platform.wait(&AtomicU32::new(0), 0, 1),
            }
            // The other one may have died, too.
            self.reap_if_dead(index)?;
        }
        // So long it takes nobody: he has been stopped, or came too late, and the slot has an owner who lives. Once is enough.
        slot.recovering.store(0, Release);
        Ok(())
    }

    /// Puts the slots of all owners in order: nobody is inside, so those that are left died without a word.
    pub(crate) fn reap_all(&self) -> Result<()> {
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            if let Some(owner) = self.slot_owner(index)? {
                self.claim_slot(index, owner.word())?;
                self.reap(index)?;
            }
        }
        Ok(())
    }

    /// The same for one slot. Whether it has no owner that lives any more.
    pub(crate) fn reap_if_dead(&self, index: u32) -> Result<bool> {
        let slot = self.dram.slot(index)?;
        let Some(owner) = self.slot_owner(index)? else { return Ok(true) };
        let word = owner.word();
        if self.is_alive(owner) || slot.owner.load(Acquire) != word {
            return Ok(false);
        }
        // From before the claim on, so that nobody takes what is not in order yet for a living thread's.
        slot.recovering.store(word, Release);
        if !self.claim_slot(index, word)? {
            return Ok(false);
        }
        self.reap(index)?;
        Ok(true)
    }

    /// Puts the work of a slot in order that the calling thread has claimed, and frees it.
    fn reap(&self, index: u32) -> Result<()> {
        let thread = self.as_thread(index)?;
        if thread.may_have_shared()? {
            // A pointer to a shared block may be gone or made, and not counted: the next attach counts anew.
            thread.mark_unclean();
        }
        step();
        if self.untouched {
            thread.release_all();
        } else if thread.recover_slot().is_err() {
            // Something does not fit: fsck's business. Nobody waits for it.
            thread.mark_unclean();
        }
        thread.clear_slot();
        self.header()?.reaped.fetch_add(1, Relaxed);
        drop(thread);
        Ok(())
    }
}

// Reaping. All of it as the owner of a dead thread's slot.
impl<'f, M: Memory> Thread<'f, M> {
    fn recover_slot(&self) -> Result<()> {
        self.redo()?;
        self.release_allocators()?;
        self.recount_cachelets()?;
        self.repair_segments()?;
        self.repair_buckets()?;
        // One error must not keep the rest from being put in order.
        let intent = self.recover_intent();
        let in_flight = self.recover_in_flight();
        let files = self.for_locked_cachelets(|cachelet| self.recover_cachelet(cachelet));
        self.release_all();
        let lines = self.finish_lines();
        let batch = self.finish_batch();
        let victim = self.recover_victim();
        let blocks = self.recover_blocks();
        // What comes now notes other victims than the operation's: another reaper must not take them for its.
        step();
        self.slot.intent.kind.store(IntentKind::None as u32, Release);
        step();
        let references = self.recover_references();
        intent.and(in_flight).and(files).and(lines).and(batch).and(victim).and(blocks).and(references)
    }

    /// Nothing of the dead is left in the slot but what serves its next owner.
    fn clear_slot(&self) {
        self.release_all();
        self.end_intent();
        self.slot.in_flight.lines[1].store(0, Relaxed);
        self.slot.pins.store(0, Relaxed);
        step();
        self.slot.pinned.store(0, Release);
        self.slot.recovering.store(0, Release);
    }

    /// Of an array of elements with a lock: which one's lock a record of `held` names, if it is held.
    fn locked_element(
        &self,
        record: &AtomicU64,
        (start, count, size, lock): (u64, u64, u64, u64),
    ) -> Result<Option<u64>> {
        let offset = record.load(Relaxed);
        if offset < start || offset >= start + count * size || (offset - start) % size != lock {
            return Ok(None);
        }
        Ok(self.holds(self.fs.dram_word(offset)?).then_some((offset - start) / size))
    }

    /// What the locks of allocators protect is in order, since `redo`, but for the counts of groups. They come first, for the rest takes them.
    fn release_allocators(&self) -> Result<()> {
        let (layout, header) = (&self.fs.dram.layout, self.fs.header()?);
        let groups = (layout.groups, layout.groups_count, size_of::<Group>() as u64, 0);
        let lock = core::mem::offset_of!(SlabState, lock) as u64;
        let slabs = (layout.slabs, self.fs.geometry.blocks, size_of::<SlabState>() as u64, lock);
        let single = [&header.inodes_lock, &header.cachelets_lock, &header.overflow_lock];
        for record in &self.slot.held {
            let group = self.locked_element(record, groups)?;
            if let Some(index) = group {
                self.fs.recount_group(index)?;
            }
            let offset = record.load(Relaxed);
            let is_single = single.iter().any(|word| self.fs.dram.region().offset_of(*word) == offset);
            if group.is_some() || is_single || self.locked_element(record, slabs)?.is_some() {
                self.release_one(record);
            }
        }
        Ok(())
    }

    fn for_locked_cachelets(&self, mut each: impl FnMut(&'f Cachelet) -> Result<()>) -> Result<()> {
        let layout = &self.fs.dram.layout;
        let lock = core::mem::offset_of!(Cachelet, lock) as u64;
        let place = (layout.cachelets, layout.cachelets_max, size_of::<Cachelet>() as u64, lock);
        let mut result = Ok(());
        for record in &self.slot.held {
            if let Some(index) = self.locked_element(record, place)? {
                result = result.and(each(self.fs.dram.cachelet(index as u32)?));
            }
        }
        result
    }
}
