//! Recycling of directories' logs: that of a removed directory, and the old one after a compaction.
//!
//! Invariants
//! - The dentries of a removed directory are erased and freed after its birth is durably zero, and
//!   after all cleared journal records are durably clear.
//! - An old log is freed in the order of its slots. The slot records the progress: first a page and
//!   the slot in it, changed together with the in-flight lines; then, once all dentries are free,
//!   the next page. A page between two steps is found by its owner word.

use super::RetiredItem;
use crate::alloc::{BlockRun, line_mask};
use crate::components::Recycler;
use crate::death::may_die_here;
use crate::error::Result;
use crate::format::{Dentry, LogPage, dentry_lines, is_gone, slot_address, slot_tag};
use crate::redo::WordChange;
use crate::sync::AtomicU64;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, Release};
use pmem::{BLOCK_BYTES, Flushed, LINE_BYTES, Memory, Pm};

impl<'f, M: Memory> Recycler<'_, 'f, M> {
    /// Frees the dentries that the slots of a removed directory's log still name, and marks its
    /// pages as its own.
    pub(super) fn free_log_dentries(self, first: u64, owner: u64) -> Result<()> {
        if first == 0 {
            return Ok(());
        }
        // A rename of any thread may have named one of these dentries: its replay must be
        // impossible before the dentries are reused.
        self.owner.fs.pm.fence(self.owner.fs.clear_journal()?);
        self.for_log_pages(first, owner, |page, run| {
            self.owner.fs.block_map().mark_owner(run, owner)?;
            self.free_dentries(page, owner)
        })
    }

    /// Frees the pages of the log of a removed directory.
    pub(super) fn free_log(self, first: u64, owner: u64) -> Result<()> {
        self.for_log_pages(first, owner, |page, run| {
            // If the chain leads here again, the page no longer belongs to this directory.
            let pm = &self.owner.fs.pm;
            pm.flush(pm.set64(&page.seal, 0)).unfenced();
            self.owner.allocator().free_blocks(run)
        })
    }

    fn for_log_pages(
        self,
        first: u64,
        owner: u64,
        mut each: impl FnMut(&LogPage, BlockRun) -> Result<()>,
    ) -> Result<()> {
        let mut offset = first;
        // A directory has no more pages than the image has blocks; a longer chain is a cycle.
        for _ in 0..self.owner.fs.blocks() {
            if offset == 0 {
                break;
            }
            let run = BlockRun { first: offset / BLOCK_BYTES, count: 1 };
            let page = self.owner.fs.pm.get(Pm::<LogPage>::new(offset))?;
            if !self.owner.fs.block_map().is_data(run) || !page.belongs_to(owner) {
                return Err(crate::error::Corruption::LogPage(offset).into());
            }
            offset = page.next.load_acquire();
            each(page, run)?;
        }
        Ok(())
    }

    /// Frees an old log: first the dentries that are recycled with it, then its pages.
    pub(super) fn free_old_log(self, item: &RetiredItem) -> Result<()> {
        let [position, all_gone] = &self.owner.slot.recycling_bodies[item.index];
        let noted = &self.owner.slot.recycling_recorded;
        if noted.load(Relaxed) & 1 << item.index == 0 {
            position.store(item.a, Relaxed);
            all_gone.store(0, Relaxed);
            may_die_here();
            noted.store(noted.load(Relaxed) | 1 << item.index, Release);
            may_die_here();
        }
        if all_gone.load(Relaxed) == 0 {
            self.for_old_pages(position.load(Relaxed) & !(BLOCK_BYTES - 1), item.b, |page, _| {
                self.free_gone(page, position)
            })?;
            self.owner.change_together([WordChange::Wide(position, item.a), WordChange::Wide(all_gone, 1)]);
        }
        self.for_old_pages(position.load(Relaxed), item.b, |page, run| {
            position.store(page.next.load_acquire(), Release);
            may_die_here();
            self.owner.allocator().free_blocks(run)
        })
    }

    /// Frees the dentries that are recycled with a page of an old log, those of one slab at a time.
    /// `position` holds the first slot.
    fn free_gone(self, page: &LogPage, position: &AtomicU64) -> Result<()> {
        let offset = self.owner.fs.pm.offset_of(page);
        let first = match position.load(Relaxed) {
            before if before & !(BLOCK_BYTES - 1) == offset => before % BLOCK_BYTES,
            _ => 0,
        };
        let (mut begin, mut slab, mut lines) = (first as usize, 0, 0u64);
        for (index, slot) in page.slots.iter().enumerate().skip(begin) {
            let Some((_, at, count)) = self.gone_dentry(slot.load(), page.owner.load()) else { continue };
            if slab != at / BLOCK_BYTES && lines != 0 {
                self.free_gone_lines(page, begin..index, (slab, core::mem::take(&mut lines)), position)?;
                begin = index;
            }
            slab = at / BLOCK_BYTES;
            lines |= line_mask(at % BLOCK_BYTES / LINE_BYTES, count);
        }
        match lines {
            0 => Ok(()),
            lines => self.free_gone_lines(page, begin..page.slots.len(), (slab, lines), position),
        }
    }

    /// Frees lines of one slab that slots of a page name. The lines are recorded as in flight, and
    /// the position is advanced, before anything happens to them.
    fn free_gone_lines(
        self,
        page: &LogPage,
        slots: Range<usize>,
        (slab, lines): (u64, u64),
        position: &AtomicU64,
    ) -> Result<()> {
        let [block, mask] = &self.owner.slot.in_flight.lines;
        let next = self.owner.fs.pm.offset_of(page) | slots.end as u64;
        self.owner.change_together([
            WordChange::Wide(block, slab),
            WordChange::Wide(mask, lines),
            WordChange::Wide(position, next),
        ]);
        for slot in &page.slots[slots] {
            let Some((dentry, at, count)) = self.gone_dentry(slot.load(), page.owner.load()) else { continue };
            let flushed = self.owner.fs.erase_dentry_lines(dentry, at, count);
            if count > 1 {
                // Names of this length are rare.
                self.owner.fs.pm.fence(flushed);
            }
        }
        self.owner.allocator().free_line_mask(slab, lines, WordChange::Wide(mask, 0))
    }

    /// Dentry, offset and lines that a slot of an old log names, if they are recycled with it.
    fn gone_dentry(self, word: u64, owner: u64) -> Option<(&'f Dentry, u64, u64)> {
        if !is_gone(word) {
            return None;
        }
        let offset = slot_address(word);
        let dentry = self.owner.fs.pm.get(Pm::<Dentry>::new(offset)).ok()?;
        let facts = dentry.facts().filter(|facts| facts.parent == owner)?;
        let lines = dentry_lines(facts.name_length as usize);
        (dentry.valid.load() & 1 == 0 && self.owner.fs.lines_fit(offset, lines)).then_some((dentry, offset, lines))
    }

    /// Calls `each` for the pages from `first` up to `end`. A page's link is read before the call.
    pub(super) fn for_old_pages(
        self,
        first: u64,
        end: u64,
        mut each: impl FnMut(&LogPage, BlockRun) -> Result<()>,
    ) -> Result<()> {
        let mut offset = first;
        for _ in 0..self.owner.fs.blocks() {
            if offset == end || offset == 0 {
                break;
            }
            let page = self.owner.fs.pm.get(Pm::<LogPage>::new(offset))?;
            offset = page.next.load_acquire();
            each(page, BlockRun { first: self.owner.fs.pm.offset_of(page) / BLOCK_BYTES, count: 1 })?;
        }
        Ok(())
    }

    /// Erases and frees the dead dentries of a page: those of one slab under each fence. They are
    /// recorded as in flight meanwhile.
    fn free_dentries(self, page: &LogPage, owner: u64) -> Result<()> {
        let mut slab = 0;
        let mut lines = 0u64;
        for slot in page.used_slots() {
            let Some((offset, count)) = self.dead_dentry(slot.load(), owner) else { continue };
            if slab != offset / BLOCK_BYTES && lines != 0 {
                self.erase_and_free(slab, core::mem::take(&mut lines))?;
            }
            slab = offset / BLOCK_BYTES;
            lines |= line_mask(offset % BLOCK_BYTES / LINE_BYTES, count);
        }
        if lines != 0 { self.erase_and_free(slab, lines) } else { Ok(()) }
    }

    /// Erases lines of a slab that hold nothing valid, and frees them.
    fn erase_and_free(self, slab: u64, lines: u64) -> Result<()> {
        let [block, mask] = &self.owner.slot.in_flight.lines;
        block.store(slab, Relaxed);
        may_die_here();
        mask.store(lines, Release);
        may_die_here();
        self.finish_lines()
    }

    /// Erases the in-flight lines and frees them; also for a reaper.
    pub(crate) fn finish_lines(self) -> Result<()> {
        let [block, mask] = &self.owner.slot.in_flight.lines;
        let (block, lines) = (block.load(Relaxed), mask.load(Relaxed));
        if lines == 0 {
            return Ok(());
        }
        let pm = &self.owner.fs.pm;
        let mut flushed = Flushed::nothing();
        let mut rest = lines;
        while rest != 0 {
            let offset = block * BLOCK_BYTES + rest.trailing_zeros() as u64 * LINE_BYTES;
            rest &= rest - 1;
            let line = pm.get(Pm::<Dentry>::new(offset))?;
            flushed = flushed.and(pm.flush(pm.set64(&line.seal, 0).and(pm.retract(&line.valid, 0))));
        }
        pm.fence(flushed);
        self.owner.allocator().free_line_mask(block, lines, WordChange::Wide(mask, 0))
    }

    /// Offset and lines of the dentry that a slot of a removed directory names, if there is one and
    /// it is invalid.
    fn dead_dentry(self, word: u64, owner: u64) -> Option<(u64, u64)> {
        slot_tag(word)?;
        let pm = &self.owner.fs.pm;
        let offset = slot_address(word);
        let dentry = pm.get(Pm::<Dentry>::new(offset)).ok()?;
        let facts = dentry.verified(pm).filter(|facts| facts.parent == owner)?;
        let lines = dentry_lines(facts.name_length as usize);
        (dentry.valid.load() & 1 == 0 && self.owner.fs.lines_fit(offset, lines)).then_some((offset, lines))
    }
}
