//! Recovery of dead threads: a reaper takes over the slot of a thread that died inside, completes
//! or rolls back its operation, and frees the slot.
//!
//! The slot names all that its owner had: locks, in-flight allocations, the operation, and the
//! words that change together. The image decides how far the operation came, as in recovery after a
//! crash. A name in the mindex exists; a rename with a whole journal record has happened; of a file
//! the newest property entry counts. Everything else is rolled back.
//!
//! Invariants
//! - A reaper owns the slot while it works, so another reaper takes over if it dies. Every step may
//!   be repeated.
//! - A reaper waits only for locks of allocators, which are held for short times, and takes no
//!   others. So a waiter may call it while it holds any locks. What needs other locks is left to a
//!   later access: a directory with doubtful counts is indexed again
//!   ([`crate::dram::DirectoryState::NeedsRecount`]).
//! - The pin of the dead thread stays until all is done: what its slot names is not reused.
//! - No loop waits without bound for what only a dead thread could end: locks reap their owners,
//!   and tries are counted ([`crate::backoff`]).
//!
//! Decision: docs/decisions/recovery.md, "A slot names what its thread holds".

mod intents;
mod names;
mod objects;
mod renames;

use crate::backoff::SPINS;
use crate::components::Reaper;
use crate::death::may_die_here;
use crate::dram::{Cachelet, GROUP_BLOCKS, Group, IntentKind, SlabState};
use crate::error::Result;
use crate::fs::Fs;
use crate::sync::{AtomicU32, AtomicU64, spin_loop};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::Memory;

/// The longest wait for another reaper, which may be stopped.
const RECOVERING_WAIT_MS: u32 = 1000;

impl<M: Memory> Fs<M> {
    /// Recovers the slots of all threads that died inside; returns their number. Called after a
    /// process death, before the references of dead processes are released.
    pub fn reap_dead_threads(&self) -> Result<u64> {
        let mut reaped = 0;
        // Process number of the last owner that lived.
        let mut alive = 0;
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            let Some(owner) = self.slot_owner(index)? else { continue };
            let is_foreign = owner.process != self.liveness.number();
            if is_foreign && owner.process == alive {
                continue;
            }
            match self.reap_if_dead(index)? {
                true => reaped += 1,
                false if is_foreign => alive = owner.process,
                false => {}
            }
        }
        Ok(reaped)
    }

    /// Does what [`Fs::reap_dead_threads`] does, and waits for reapers that are at work. Called
    /// after the end of a process was observed: afterwards each of its operations has happened or
    /// never will. The caller is not pinned and holds no locks.
    pub fn recover_dead_threads(&self) -> Result<()> {
        for index in self.taken_slots()? {
            // An owner between two operations, living or dead, has left nothing to complete. Others
            // free its slot when they need one.
            if self.dram.slot(index)?.is_at_work() {
                self.reap_if_dead(index)?;
                self.wait_until_recovered(index)?;
            }
        }
        Ok(())
    }

    fn wait_until_recovered(&self, index: u32) -> Result<()> {
        let slot = self.dram.slot(index)?;
        for look in 0..SPINS + RECOVERING_WAIT_MS {
            // Without an owner the word is a leftover of a reaper that lost the race.
            if slot.recovering.load(Acquire) == 0 || slot.owner.load(Acquire) == 0 {
                return Ok(());
            }
            match look {
                ..SPINS => spin_loop(),
                _ => self.platform.wait(&AtomicU32::new(0), 0, 1),
            }
            // The other reaper may have died, too.
            self.reap_if_dead(index)?;
        }
        // No reaper takes that long: it is stopped, or it lost the race and the slot has a living
        // owner. One wait of this length is enough.
        slot.recovering.store(0, Release);
        Ok(())
    }

    /// Recovers the slots of all owners. No thread is inside, so the remaining owners are dead.
    pub(crate) fn reap_all(&self) -> Result<()> {
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            if let Some(owner) = self.slot_owner(index)? {
                self.claim_slot(index, owner.word())?;
                self.reap(index)?;
            }
        }
        Ok(())
    }

    /// Reaps one slot. Returns whether the slot has no living owner any more.
    pub(crate) fn reap_if_dead(&self, index: u32) -> Result<bool> {
        let slot = self.dram.slot(index)?;
        let Some(owner) = self.slot_owner(index)? else { return Ok(true) };
        let word = owner.word();
        if self.processes().is_alive(owner) || slot.owner.load(Acquire) != word {
            return Ok(false);
        }
        // Set before the claim, so that no thread mistakes an unrecovered slot for that of a living
        // thread.
        slot.recovering.store(word, Release);
        if !self.claim_slot(index, word)? {
            return Ok(false);
        }
        self.reap(index)?;
        Ok(true)
    }

    /// Recovers a slot that the calling thread has claimed, and frees it.
    fn reap(&self, index: u32) -> Result<()> {
        let thread = self.as_thread(index)?;
        if thread.reaper().may_have_shared()? {
            // A pointer to a shared block may be added or removed without being counted: the next
            // attach recounts.
            thread.recycler().mark_unclean();
        }
        may_die_here();
        if self.untouched {
            thread.release_all();
        } else if thread.reaper().recover_slot().is_err() {
            // The slot contradicts the image, which is left to fsck. No thread waits for it.
            thread.recycler().mark_unclean();
        }
        thread.reaper().clear_slot();
        self.header()?.reaped.fetch_add(1, Relaxed);
        drop(thread);
        Ok(())
    }
}

// The rest of recovery. Each method runs as the owner of a dead thread's slot.
impl<'f, M: Memory> Reaper<'_, 'f, M> {
    fn recover_slot(self) -> Result<()> {
        self.thread.redo()?;
        self.release_allocators()?;
        self.thread.allocator().recount_cachelets()?;
        self.thread.allocator().repair_segments()?;
        self.repair_buckets()?;
        // An error in one step must not prevent the others.
        let changes = self.thread.recover_changes();
        let intent = self.recover_intent();
        let in_flight = self.recover_in_flight();
        let files = self.for_locked_cachelets(|cachelet| self.recover_cachelet(cachelet));
        self.thread.release_all();
        let lines = self.thread.recycler().finish_lines();
        let batch = self.thread.recycler().finish_batch();
        let victim = self.recover_victim();
        let blocks = self.recover_blocks();
        // The steps from here on record victims of their own: another reaper must not take them for
        // the operation's.
        may_die_here();
        self.thread.slot.intent.kind.store(IntentKind::None as u32, Release);
        may_die_here();
        let references = self.recover_references();
        changes.and(intent).and(in_flight).and(files).and(lines).and(batch).and(victim).and(blocks).and(references)
    }

    /// Clears all of the slot that does not serve its next owner.
    fn clear_slot(self) {
        self.thread.release_all();
        self.thread.end_intent();
        self.thread.renames().end_moves_of_dead();
        self.thread.slot.in_flight.lines[1].store(0, Relaxed);
        self.thread.slot.in_flight_page.link.store(0, Relaxed);
        self.thread.slot.pins.store(0, Relaxed);
        may_die_here();
        self.thread.slot.pinned.store(0, Release);
        self.thread.slot.recovering.store(0, Release);
    }

    /// For an array of elements with a lock: the index of the element whose lock a record of `held`
    /// names, if the slot holds it.
    fn locked_element(
        self,
        record: &AtomicU64,
        (start, count, size, lock): (u64, u64, u64, u64),
    ) -> Result<Option<u64>> {
        let offset = record.load(Relaxed);
        if offset < start || offset >= start + count * size || (offset - start) % size != lock {
            return Ok(None);
        }
        Ok(self.thread.holds(self.thread.fs.dram_word(offset)?).then_some((offset - start) / size))
    }

    /// Releases the locks of allocators. `redo` has made consistent what they protect, except the
    /// counts of groups, which come first because later steps take the locks.
    fn release_allocators(self) -> Result<()> {
        let (layout, header) = (&self.thread.fs.dram.layout, self.thread.fs.header()?);
        let groups = (layout.groups, layout.groups_max, size_of::<Group>() as u64, 0);
        let lock = core::mem::offset_of!(SlabState, lock) as u64;
        let slabs = (layout.slabs, layout.groups_max * GROUP_BLOCKS, size_of::<SlabState>() as u64, lock);
        for record in &self.thread.slot.held {
            let group = self.locked_element(record, groups)?;
            if let Some(index) = group {
                self.thread.fs.block_map().recount_group(index)?;
            }
            let offset = record.load(Relaxed);
            let is_map =
                header.inode_map.iter().any(|part| self.thread.fs.dram.region().offset_of(&part.lock) == offset);
            if group.is_some() || is_map || self.locked_element(record, slabs)?.is_some() {
                self.thread.release_one(record);
            }
        }
        Ok(())
    }

    fn for_locked_cachelets(self, mut each: impl FnMut(&'f Cachelet) -> Result<()>) -> Result<()> {
        let layout = &self.thread.fs.dram.layout;
        let lock = core::mem::offset_of!(Cachelet, lock) as u64;
        let place = (layout.cachelets, layout.cachelets_max, size_of::<Cachelet>() as u64, lock);
        let mut result = Ok(());
        for record in &self.thread.slot.held {
            if let Some(index) = self.locked_element(record, place)? {
                result = result.and(each(self.thread.fs.dram.cachelet(index as u32)?));
            }
        }
        result
    }
}
