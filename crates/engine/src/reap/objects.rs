//! Reaping what a slot names: in-flight allocations, objects being reclaimed, files whose locks
//! were held, blocks, references.

use crate::alloc::{BlockRun, owned_by_slot};
use crate::components::Reaper;
use crate::death::may_die_here;
use crate::dram::{
    Cachelet, DIRTY, DirectoryState, FLAG_DEAD, FLAG_DELETED, FLAG_EVICTED, FLAG_HELD, FLAG_READABLE, FLAG_UNNAMED,
    References, RetiredKind,
};
use crate::error::{Corruption, Result};
use crate::format::{FileKind, LogPage, PROPERTY_INLINE, SlotTag, slot_word};
use crate::property::DurableProperty;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;
use pmem::{BLOCK_BYTES, Commit64, Memory, Pm};

impl<'f, M: Memory> Reaper<'_, 'f, M> {
    /// Rolls back the in-flight allocations of an operation that did not take effect, or of none.
    pub(super) fn recover_in_flight(self) -> Result<()> {
        let hand = &self.thread.slot.in_flight;
        for index in 0..2 {
            self.roll_back_name(index)?;
        }
        let (number, cachelet) = (hand.number.load(Relaxed), hand.cachelet.load(Relaxed));
        if number != 0 {
            self.roll_back_inode(number, cachelet)?;
        } else if cachelet != 0 && !self.thread.allocator().is_listed(cachelet)? {
            self.roll_back_unpublished(cachelet)?;
        }
        self.thread.clear_in_flight();
        self.thread.own_linked_page()
    }

    /// Rolls back a dentry that is not published: recycles its lines, and turns the slot that names
    /// it into a hole.
    fn roll_back_name(self, index: usize) -> Result<()> {
        let hand = &self.thread.slot.in_flight;
        let (offset, lines) = (self.in_flight_dentry(index), hand.dentries[index].load(Relaxed) & 63);
        if offset == 0 || self.thread.allocator().are_in_mask(offset, lines) {
            return Ok(());
        }
        let pm = &self.thread.fs.pm;
        if let slot @ 1.. = hand.slots[index].load(Relaxed) {
            let slot = pm.get(Pm::<Commit64>::new(slot))?;
            if slot.load() == slot_word(offset, SlotTag::Dentry) {
                pm.persist(pm.retract(slot, 0));
            }
        }
        if !self.thread.recycler().is_queued(RetiredKind::Dentry, offset) {
            self.thread.recycler().retire_unpublished(offset, lines);
        }
        may_die_here();
        hand.dentries[index].store(0, Release);
        hand.slots[index].store(0, Release);
        Ok(())
    }

    /// Rolls back an inode without a name. If lookups by number can have found it, the release of
    /// the last reference frees it; otherwise it is free at once.
    fn roll_back_inode(self, number: u64, index: u32) -> Result<()> {
        if self.thread.allocator().is_in_magazine(number) {
            return Ok(());
        }
        let inode = self.thread.fs.inode(number)?;
        if index != 0 && !self.thread.allocator().is_listed(index)? {
            let cachelet = self.thread.fs.dram.cachelet(index)?;
            if cachelet.number.load(Acquire) == number {
                return self.roll_back_cachelet(index, cachelet);
            }
            self.thread.fs.pm.fence(self.thread.fs.erase_inode(inode, inode.free_word()));
            self.thread.allocator().list_cachelet(index)?;
        } else {
            self.thread.fs.pm.fence(self.thread.fs.erase_inode(inode, inode.free_word()));
        }
        self.thread.allocator().sweep_blocks(number)?;
        self.thread.allocator().put_back_inode(number)
    }

    fn roll_back_cachelet(self, index: u32, cachelet: &'f Cachelet) -> Result<()> {
        let unnamed = |word: u64| {
            let state = References::from_word(word);
            let nameless = state.links == 0 && state.flags & (FLAG_DELETED | FLAG_UNNAMED) == FLAG_DELETED;
            let references = state.references.saturating_sub(1);
            let flags = FLAG_READABLE | FLAG_DELETED | state.flags & FLAG_HELD;
            (!nameless).then(|| References { references, links: 0, flags }.word())
        };
        let _ = cachelet.references.fetch_update(AcqRel, Acquire, unnamed);
        may_die_here();
        self.thread.slot.intent.victim.store(index, Release);
        may_die_here();
        self.thread.clear_in_flight();
        Ok(())
    }

    /// Frees a cachelet that no inode leads to. If it has a number, pinned threads may look at it.
    fn roll_back_unpublished(self, index: u32) -> Result<()> {
        if self.thread.fs.dram.cachelet(index)?.number.load(Acquire) == 0 {
            return self.thread.allocator().list_cachelet(index);
        }
        if !self.thread.recycler().is_queued(RetiredKind::Cachelet, index as u64) {
            self.thread.recycler().retire(RetiredKind::Cachelet, index as u64, 0);
        }
        Ok(())
    }

    /// Reclaims the object that was being removed, evicted, or released, if that is due and no
    /// other slot does it.
    pub(super) fn recover_victim(self) -> Result<()> {
        let index = self.thread.slot.intent.victim.load(Relaxed);
        let cachelet = self.thread.fs.dram.cachelet(index)?;
        let number = cachelet.number.load(Acquire);
        if index == 0 || number == 0 {
            return Ok(());
        }
        self.thread.cachelets().retire_if_unused(index, cachelet);
        let state = References::from_word(cachelet.references.load(Acquire));
        if state.flags & FLAG_DEAD == 0 || state.reclaimer() != self.thread.ticket() {
            return Ok(());
        }
        if state.flags & FLAG_EVICTED != 0 {
            self.thread.cachelets().clear_pointer(cachelet, index)?;
            if !self.thread.recycler().is_queued(RetiredKind::Cachelet, index as u64) {
                self.thread.recycler().retire(RetiredKind::Cachelet, index as u64, 0);
            }
        } else if !self.thread.recycler().is_queued(RetiredKind::Inode, number) {
            self.thread.recycler().retire(RetiredKind::Inode, number, index as u64);
        }
        Ok(())
    }

    /// Makes a cachelet whose lock is held and its inode consistent with each other and with the
    /// image.
    pub(super) fn recover_cachelet(self, cachelet: &'f Cachelet) -> Result<()> {
        if cachelet.references.load(Acquire) & References::flag(FLAG_EVICTED) != 0 {
            // It was consistent before it was evicted, and by now another cachelet may stand for
            // the inode.
            return Ok(());
        }
        let number = cachelet.number.load(Acquire);
        let inode = self.thread.fs.inode_at(cachelet.inode.load(Relaxed))?;
        let generation = cachelet.generation.load(Relaxed);
        let (property, sequence) =
            DurableProperty::on_image(inode, number, generation).ok_or(Corruption::Inode(number))?;
        // The dead thread's stores are in the cache, but possibly not fenced.
        self.thread.fs.pm.fence(self.thread.fs.pm.flush_all(inode));
        cachelet.sequence.store(sequence, Relaxed);
        let version = cachelet.version.load(Acquire);
        cachelet.version.store(version.wrapping_add(version & 1), Release);
        // Any entry that is whole fits the map: what an earlier entry names is freed only after a
        // later one was published.
        self.thread.cachelets().publish_property(cachelet, &property);
        match property.kind() {
            Some(FileKind::Directory) => self.recover_directory(cachelet, number)?,
            _ => {
                let has_body = matches!(property.kind(), Some(FileKind::Regular | FileKind::Symlink));
                let mut after = property;
                let links = References::from_word(cachelet.references.load(Acquire)).links;
                after.change(|after| after.links = links);
                if has_body && property.flags & PROPERTY_INLINE == 0 {
                    let mut mark = |blocks| self.thread.fs.block_map().mark_body_reached(blocks, number);
                    let blocks =
                        crate::file::recover_body(self.thread.fs, &property, !self.thread.fs.untouched, &mut mark)?;
                    after.change(|after| after.blocks = blocks);
                }
                if after != property {
                    let flushed = self.thread.cachelets().commit_attributes(cachelet, &after)?;
                    self.thread.fs.pm.fence(flushed);
                    self.thread.cachelets().publish_property(cachelet, &after);
                }
            }
        }
        let mut mark = |blocks| self.thread.fs.block_map().mark_body_reached(blocks, number);
        crate::file::mark_body(self.thread.fs, inode.xattrs.load_acquire(), &mut mark)?;
        self.thread.allocator().sweep_blocks(number)
    }

    /// Recovers a directory's state and pages.
    fn recover_directory(self, directory: &'f Cachelet, number: u64) -> Result<()> {
        let inode = self.thread.fs.inode_at(directory.inode.load(Relaxed))?;
        // Times and links that were about to be written.
        directory.dirty.fetch_or(DIRTY, AcqRel);
        if DirectoryState::of(directory) == DirectoryState::Indexing {
            DirectoryState::mark_needs_recount(directory);
        }
        let mut offset = inode.log.load_acquire();
        for _ in 0..self.thread.fs.blocks() {
            if offset == 0 {
                break;
            }
            let run = BlockRun { first: offset / BLOCK_BYTES, count: 1 };
            self.thread.fs.block_map().mark_reached(run, number)?;
            offset = self.thread.fs.pm.get(Pm::<LogPage>::new(offset))?.next.load_acquire();
        }
        Ok(())
    }

    /// Frees the blocks that the slot held in transit.
    pub(super) fn recover_blocks(self) -> Result<()> {
        let owner = owned_by_slot(self.thread.ticket());
        self.thread.recycler().mark_queued(owner)?;
        self.thread.allocator().sweep_blocks(owner)
    }

    /// Whether the dead thread may have been adding or removing a pointer to a shared block: with a
    /// file locked, or while recycling a removed file's body.
    pub(super) fn may_have_shared(self) -> Result<bool> {
        let recycles =
            self.thread.slot.recycling.load(Acquire) != 0 && self.thread.slot.recycling_marked.load(Acquire) != 0;
        let holds = self.thread.slot.held.iter().any(|record| record.load(Acquire) != 0);
        Ok((recycles || holds) && self.thread.fs.header()?.blocks_shared.load(Acquire) != 0)
    }

    /// Releases the references that the dead thread had recorded.
    pub(super) fn recover_references(self) -> Result<()> {
        for word in &self.thread.slot.references {
            let index = word.load(Relaxed);
            if index == 0 {
                continue;
            }
            let cachelet = self.thread.fs.dram.cachelet(index)?;
            self.thread.slot.intent.victim.store(index, Release);
            may_die_here();
            // Nothing in between: see `release_from`.
            word.store(0, Release);
            cachelet.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
            fence(AcqRel);
            may_die_here();
            self.recover_victim()?;
        }
        Ok(())
    }
}
