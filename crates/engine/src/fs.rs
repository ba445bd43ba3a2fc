//! A process's view of a file system ([`Fs`]) and a thread in it ([`Thread`]).

use crate::ablation_options::Ablated;
use crate::death::{dead, may_die_here};
use crate::dram::{Owner, SLOTS_MAX, ThreadSlot};
use crate::error::{Error, Result};
use crate::liveness::Liveness;
use crate::regions::Regions;
use crate::slot_owner::SlotOwner;
use core::ops::Deref;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{Direct, Memory};

/// A file system as this process sees it: two base addresses and constants. `attach` makes it.
pub struct Fs<M: Memory = Direct> {
    pub(crate) regions: Regions<M>,
    pub(crate) liveness: Liveness,
    pub(crate) epoch: u32,
    pub(crate) hash_seed: u64,
    pub(crate) read_only: bool,
    /// Nothing is written to the image, because a process that may only read built the DRAM region.
    /// A reader in a region that writers use takes part in their internal writes.
    pub(crate) untouched: bool,
    /// Blocks that are left to root: see [`SlotOwner::set_leaves_reserve`].
    pub(crate) reserved_blocks: u64,
    /// Blocks that are left to changes which take no space for long: see
    /// [`SlotOwner::leaving_spare`].
    pub(crate) spare_blocks: u64,
    /// The parts that the lab has removed.
    pub(crate) ablation: Ablated<M>,
}

/// With fewer slots in use `enter` does not look for dead owners.
const SLOTS_UNCHECKED: u64 = 16;
/// Stands for the thread of a slot that was reserved for a child.
const UNBORN: u32 = 0;

/// A file with a counted reference: it stays valid until [`Thread::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    /// Index of its cachelet.
    pub cachelet: u32,
    /// Its inode number.
    pub number: u64,
}

/// A thread inside the file system. It owns a slot of the DRAM region until it is dropped. It may
/// move between threads of the process, but only one of them uses it at a time.
pub struct Thread<'f, M: Memory = Direct> {
    owner: SlotOwner<'f, M>,
}

impl<'f, M: Memory> Deref for Thread<'f, M> {
    type Target = SlotOwner<'f, M>;

    #[inline(always)]
    fn deref(&self) -> &SlotOwner<'f, M> {
        &self.owner
    }
}

impl<M: Memory> Deref for Fs<M> {
    type Target = Regions<M>;

    #[inline(always)]
    fn deref(&self) -> &Regions<M> {
        &self.regions
    }
}

impl<M: Memory> Fs<M> {
    /// Whether the layer above wants to know what changes. Each change reads it. Of the end of
    /// inodes the engine notifies it: [`Platform::inode_ended`].
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.header().is_ok_and(|header| header.watched.load(Relaxed) != 0)
    }

    /// The image's epoch: counts the attaches that built a DRAM region.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Marks the image unclean: the last process to leave does not mark it clean, so the next
    /// attach recovers it.
    pub fn mark_unclean(&self) {
        if let Ok(header) = self.header() {
            header.unclean_marks.fetch_add(1, AcqRel);
        }
    }

    /// Claims a slot for the calling thread.
    pub fn enter(&self) -> Result<Thread<'_, M>> {
        self.as_thread(self.claim_free_slot(self.processes().identity()?)?)
    }

    /// Claims a slot for the first thread of a child that does not exist yet, and that has this
    /// process number. `TooManyThreads` or `NoMemory` if there is none.
    pub fn reserve_slot(&self, number: u32) -> Result<u32> {
        self.claim_free_slot(Owner { process: number, thread: UNBORN })
    }

    /// In a child: enters the slot that its parent reserved, or another one if it was reaped.
    pub fn enter_reserved(&self, index: u32, number: u32) -> Result<Thread<'_, M>> {
        let unborn = Owner { process: number, thread: UNBORN }.word();
        // The page is read before it is written: a read's fault maps the slot's other pages, too.
        if self.dram.slot(index)?.owner.load(Relaxed) == unborn && self.claim_slot(index, unborn)? {
            return self.as_thread(index);
        }
        self.enter()
    }

    /// In the parent: frees the slot of a child that did not come to be.
    pub fn release_reserved(&self, index: u32, number: u32) {
        let unborn = Owner { process: number, thread: UNBORN }.word();
        if self.claim_slot(index, unborn).unwrap_or(false)
            && let Ok(slot) = self.dram.slot(index)
        {
            self.free_slot(index, slot);
        }
    }

    /// The slots with owners.
    pub(crate) fn taken_slots(&self) -> Result<impl Iterator<Item = u32>> {
        Ok(self.dram.slot_map().taken(self.header()?.slots_high.load(Acquire)))
    }

    /// Whether another thread could enter.
    pub fn has_room_for_thread(&self) -> Result<bool> {
        let has_room = || self.dram.slot_map().first_free(0).is_some_and(|index| index < self.dram.layout.slots_max);
        Ok(has_room() || self.reap_dead_threads()? > 0 && has_room())
    }

    /// Claims the first free slot: slots used before have full magazines and cached lines.
    fn claim_free_slot(&self, owner: Owner) -> Result<u32> {
        let map = self.dram.slot_map();
        let (mut from, mut may_reap) = (0, true);
        loop {
            let found = map.first_free(from).filter(|index| *index < self.dram.layout.slots_max);
            let crowded =
                found.is_none_or(|index| index >= self.header().map_or(0, |header| header.reap_at.load(Relaxed)));
            if crowded && may_reap && found.is_none_or(|index| index >= SLOTS_UNCHECKED) {
                may_reap = false;
                if self.reap_crowd()? {
                    from = 0;
                    continue;
                }
            }
            let index = found.ok_or(Error::TooManyThreads)?;
            // Each slot below the mark was provided by the thread that found it free first.
            if index >= self.header()?.slots_high.load(Acquire)
                && let Err(full) = self.provider().provide_slot(index)
            {
                // The slot of a dead thread has memory.
                if may_reap && self.reap_crowd()? {
                    (from, may_reap) = (0, false);
                    continue;
                }
                return Err(full);
            }
            let slot = self.dram.slot(index as u32)?;
            if slot.owner.load(Relaxed) == 0 && self.claim_slot_as(index as u32, 0, owner)? {
                slot.pins.store(0, Relaxed);
                self.header()?.slots_high.fetch_max(index + 1, AcqRel);
                return Ok(index as u32);
            }
            from = index + 1;
        }
    }

    /// Reaps dead threads; returns whether there were any. The next time is when twice as many
    /// slots are in use as now, so that each claim pays for a constant number of looks.
    #[cold]
    fn reap_crowd(&self) -> Result<bool> {
        let reaped = self.reap_dead_threads()?;
        self.header()?.reap_at.store(2 * self.dram.slot_map().count(SLOTS_MAX), Relaxed);
        Ok(reaped > 0)
    }

    /// Claims slot `index`, which was used before, for the calling thread, unless it has an owner.
    pub(crate) fn enter_slot(&self, index: u32) -> Result<Option<Thread<'_, M>>> {
        let slot = self.dram.slot(index)?;
        if slot.owner.load(Relaxed) != 0 || !self.claim_slot(index, 0)? {
            return Ok(None);
        }
        slot.pins.store(0, Relaxed);
        Ok(Some(self.as_thread(index)?))
    }

    /// Makes the calling thread the owner of a slot whose owner word is `before`; returns whether
    /// it succeeded.
    pub(crate) fn claim_slot(&self, index: u32, before: u64) -> Result<bool> {
        self.claim_slot_as(index, before, self.processes().identity()?)
    }

    fn claim_slot_as(&self, index: u32, before: u64, owner: Owner) -> Result<bool> {
        let slot = self.dram.slot(index)?;
        let claimed = slot.owner.compare_exchange(before, owner.word(), AcqRel, Relaxed).is_ok();
        if claimed {
            self.dram.slot_map().set(index as u64);
        }
        may_die_here();
        Ok(claimed)
    }

    /// Frees a slot that the caller owns and that names nothing.
    fn free_slot(&self, index: u32, slot: &ThreadSlot) {
        self.dram.slot_map().clear(index as u64);
        slot.owner.store(0, Release);
    }

    /// The calling thread as owner of slot `index`.
    pub(crate) fn as_thread(&self, index: u32) -> Result<Thread<'_, M>> {
        Ok(Thread { owner: SlotOwner::new(self, index)? })
    }

    /// The owner of a slot, if any.
    pub fn slot_owner(&self, index: u32) -> Result<Option<Owner>> {
        Ok(Owner::from_word(self.dram.slot(index)?.owner.load(Acquire)))
    }

    /// Fails if the file system is read-only.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

impl<M: Memory> Drop for Thread<'_, M> {
    fn drop(&mut self) {
        // The fence completes this thread's last flushes: the slot's next owner cannot issue a
        // fence for them.
        if dead() {
            return;
        }
        self.fs.pm.fence_unfenced();
        for word in &self.slot.references {
            word.store(0, Relaxed);
        }
        self.slot.pinned.store(0, Release);
        self.fs.free_slot(self.index, self.slot);
    }
}

#[cfg(test)]
mod tests {
    use crate::dram::SLOTS_MAX;
    use crate::error::Error;
    use crate::testing::{Attached, TestPlatform, new_image};
    use core::sync::atomic::Ordering::SeqCst;
    use std::vec::Vec;

    #[test]
    fn the_slot_of_a_thread_that_ended_without_leaving_is_used_when_there_is_no_other() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                core::mem::forget(fs.enter().expect("enters"));
                MORTAL.kill();
            });
        });
        let threads: Vec<_> = (0..SLOTS_MAX).map(|_| fs.enter().expect("enters")).collect();
        assert_eq!(fs.enter().err(), Some(Error::TooManyThreads));
        drop(threads);
    }

    #[test]
    fn the_slot_of_a_dead_thread_is_used_when_there_is_no_memory_for_another() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                core::mem::forget(fs.enter().expect("enters"));
                MORTAL.kill();
            });
        });
        let _first = fs.enter().expect("enters");
        MORTAL.is_full.store(true, SeqCst);
        let mut threads: Vec<_> = core::iter::from_fn(|| fs.enter().ok()).collect();
        assert!(threads.iter().any(|thread| thread.index == 0), "that of the dead thread");
        assert_eq!(fs.enter().err(), Some(Error::NoMemory));
        threads.pop();
        threads.push(fs.enter().expect("enters where another one left"));
    }

    #[test]
    fn the_slot_of_a_thread_that_died_inside_is_recovered_and_reused() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                core::mem::forget(thread.pin());
                core::mem::forget(thread);
                MORTAL.kill();
            });
        });
        let threads: Vec<_> = (0..SLOTS_MAX).map(|_| fs.enter().expect("enters")).collect();
        assert_eq!(fs.enter().err(), Some(Error::TooManyThreads));
        drop(threads);
    }
}
