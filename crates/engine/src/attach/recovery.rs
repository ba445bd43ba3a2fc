//! Recovery after a crash: journals are replayed, then the image is scanned, and the maps of free
//! space are built from the result.
//!
//! The scan has three phases. Any number of threads share each phase by claiming units from a
//! counter in the DRAM region, and all wait for its end:
//! - *Directories*, by segment of the inode table: every log is walked and names are counted for
//!   their inodes. Slots of unfinished creates and removed names are dropped. The directory's times
//!   and links are brought up to date from its dentries.
//! - *Inodes*, by segment: those without a name are erased; the link counts and bodies of the
//!   others are recovered and marked in use.
//! - *Slabs*, by ranges of blocks: lines that no name uses become free, and can never pass for
//!   dentries again.
//!
//! For structures that do not verify see `damage`; `replay` repeats the rename journal.
//! [`Fs::attach_first`](crate::Fs::attach_first) decides whether a scan is needed, and
//! [`Recovery::work`](super::Recovery::work) runs it. Steps: docs/architecture.md, "The life of a
//! crash".
//!
//! Invariants
//! - Every step may be repeated: a crash during recovery leaves less to do.
//! - A directory's property entry is durable before the dead dentries that supplied its times are
//!   dropped.
//! - Nothing found on the image is followed unchecked. Every loop is bounded by the size of the
//!   image. Damage is counted, left for fsck, and does not affect other structures.
//! - While the scan runs, `SlabState::free_lines` holds the lines in *use*: zero, as in a fresh
//!   region, means "no slab". The last phase inverts it.

use super::RecoveryReport;
use super::damage::LogEntry;
use crate::alloc::{BlockRun, SLAB_FULL, SLAB_LISTED, line_mask};
use crate::components::ImageRecovery;
use crate::dram::GROUP_BLOCKS;
use crate::error::{Corruption, Error, Result};
use crate::file::Blocks;
use crate::format::{
    Dentry, DentryFacts, FileKind, INODES_PER_SEGMENT, Inode, LogPage, ParentWord, Property, ROOT_INODE, Valid,
    dentry_lines, slot_address,
};
use crate::property::{DurableProperty, write_attributes};
use crate::sync::{AtomicU32, AtomicU64, spin_loop};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Commit64, LINE_BYTES, Memory, Pm};

/// Indexes of `DramHeader::recovery_counts`.
const NAMES: usize = 0;
const INODES: usize = 1;
pub(super) const ORPHANS: usize = 2;
pub(super) const DAMAGED: usize = 3;
/// Not a count: 1 if the image was left clean.
pub(super) const LEFT_CLEANLY: usize = 4;
pub(super) const FLIPPED: usize = 5;
/// Not a count: nonzero if there was no memory for the region.
const NO_MEMORY: usize = 6;

/// Groups of blocks in a unit of the last phase.
const GROUPS_PER_UNIT: u64 = 16;
/// How many slots ahead of the walk dentries are prefetched, and the inodes that they name.
const AHEAD_DENTRIES: usize = 16;
const AHEAD_INODES: usize = 8;

/// Results of the walk over a directory's log.
#[derive(Default)]
struct Walk {
    pages: u64,
    names: u64,
    subdirectories: u32,
    /// The newest time that a dentry records, and what that one names.
    newest: (u64, u64),
    garbage: bool,
}

impl<'f, M: Memory> ImageRecovery<'f, M> {
    /// Before the scan, by one thread: replays the journals and marks the segments. Returns the
    /// number of completed renames. `clean`: the image was left clean.
    pub(super) fn prepare_scan(self, clean: bool) -> Result<u64> {
        let header = self.header()?;
        header.recovery_counts[LEFT_CLEANLY].store(clean as u64, Relaxed);
        let used = (0..self.geometry.segments_max)
            .rev()
            .find(|segment| self.segment_entry(*segment).is_ok_and(|entry| entry.load() != 0));
        let segments = used.map_or(0, |last| last + 1);
        for segment in 0..segments {
            self.provider().provide_segment(segment)?;
            let mut damaged = false;
            if let Some(found) = self.segment(segment) {
                for block in found.blocks() {
                    damaged |= self.block_map().mark_blocks(BlockRun { first: block, count: 1 })? != 0;
                }
            } else {
                // Its numbers are never handed out.
                for word in segment * INODES_PER_SEGMENT / 64..(segment + 1) * INODES_PER_SEGMENT / 64 {
                    self.dram.inode_word(word)?.store(u64::MAX, Relaxed);
                }
                self.count(INODES, INODES_PER_SEGMENT);
                damaged = true;
            }
            if damaged {
                self.count(DAMAGED, 1);
            }
        }
        self.dram.inode_word(0)?.fetch_or(1, Relaxed);
        header.segments.store(segments, Release);
        self.replay_journals()
    }

    /// The scan, shared by all threads that call it.
    pub(super) fn scan(self) -> Result<()> {
        let segments = self.header()?.segments.load(Acquire);
        self.phase(0, segments, |segment| self.recover_directories(segment))?;
        self.phase(1, segments, |segment| self.recover_inodes(segment))?;
        let units = self.groups().div_ceil(GROUPS_PER_UNIT);
        self.phase(2, units, |unit| self.sweep_slabs(unit))
    }

    /// Records why a part of the scan failed. Without memory the scan fails as a whole: names that
    /// it did not see must not count as missing.
    fn count_failure(self, error: Error) {
        self.count(if error == Error::NoMemory { NO_MEMORY } else { DAMAGED }, 1);
    }

    /// After the scan, by one thread.
    pub(super) fn end_scan(self) -> Result<RecoveryReport> {
        let header = self.header()?;
        let counts = &header.recovery_counts;
        if self.has_damage() {
            // Data hidden by damage must not be overwritten before fsck has examined it.
            crate::alloc::snapshot::mark_as_left(self.0)?;
        }
        header.inode_map[0].used.store(counts[INODES].load(Acquire), Relaxed);
        header.recovery[1].store(counts[NAMES].load(Acquire), Relaxed);
        header.recovery[2].store(counts[INODES].load(Acquire), Relaxed);
        Ok(RecoveryReport {
            scanned: true,
            orphans: counts[ORPHANS].load(Acquire),
            damaged: counts[DAMAGED].load(Acquire),
            flipped: counts[FLIPPED].load(Acquire),
            ..RecoveryReport::default()
        })
    }

    pub(super) fn count(self, what: usize, by: u64) {
        if let Ok(header) = self.header() {
            header.recovery_counts[what].fetch_add(by, Relaxed);
        }
    }

    /// Takes part in a phase until all of its units are done, by any thread.
    fn phase(self, index: usize, units: u64, work: impl Fn(u64) -> Result<()>) -> Result<()> {
        let header = self.header()?;
        let (claimed, done): (&AtomicU64, &AtomicU64) = (&header.recovery_claimed[index], &header.recovery_done[index]);
        loop {
            let unit = claimed.fetch_add(1, AcqRel);
            if unit >= units {
                break;
            }
            // An error means damage; the other units do not depend on this one.
            if let Err(error) = work(unit) {
                self.count_failure(error);
            }
            // The next phase relies on the flushes of this unit, in whichever thread.
            self.pm.fence_unfenced();
            done.fetch_add(1, AcqRel);
        }
        let nobody_wakes = AtomicU32::new(0);
        let mut looks = 0u32;
        while done.load(Acquire) < units {
            looks += 1;
            if looks.is_multiple_of(10_000) {
                self.platform.wait(&nobody_wakes, 0, 1);
            }
            spin_loop();
        }
        // No phase erases anything on the word of an incomplete one.
        if header.recovery_counts[NO_MEMORY].load(Acquire) == 0 { Ok(()) } else { Err(Error::NoMemory) }
    }

    /// Calls `each` for the inodes of a segment.
    fn for_inodes(self, segment: u64, mut each: impl FnMut(u64, &Inode) -> Result<()>) -> Result<()> {
        let Some(located) = self.segment(segment) else { return Ok(()) };
        for index in 0..INODES_PER_SEGMENT {
            let ahead = located.inode_offset((index + 8).min(INODES_PER_SEGMENT - 1));
            self.pm.prefetch(ahead);
            self.pm.prefetch(ahead + LINE_BYTES);
            let number = segment * INODES_PER_SEGMENT + index;
            if number != 0
                && let Err(error) = each(number, self.inode_at(located.inode_offset(index))?)
            {
                self.count_failure(error);
            }
        }
        Ok(())
    }
}

// Directories.
impl<'f, M: Memory> ImageRecovery<'f, M> {
    fn recover_directories(self, segment: u64) -> Result<()> {
        self.for_inodes(segment, |number, inode| {
            if inode.kind.load() != FileKind::Directory as u32 {
                return Ok(());
            }
            match self.whole_inode(inode, number) {
                Some((generation, property, sequence)) => {
                    self.recover_directory(inode, number, generation, property, sequence)
                }
                None => Ok(()),
            }
        })
    }

    fn recover_directory(
        self,
        inode: &Inode,
        number: u64,
        generation: u32,
        mut property: DurableProperty,
        sequence: u32,
    ) -> Result<()> {
        let walk = self.walk_log(inode, number)?;
        self.count(NAMES, walk.names);
        let links = 2 + walk.subdirectories;
        let named_ns = self.recovered_ns(walk.newest.0, walk.newest.1, property.changed_ns);
        let is_newer =
            named_ns.is_some_and(|named_ns| (named_ns, named_ns) != (property.modified_ns, property.changed_ns));
        if property.links != links || is_newer {
            property.change(|property| {
                property.links = links;
                if let Some(named_ns) = named_ns {
                    (property.modified_ns, property.changed_ns) = (named_ns, named_ns);
                }
            });
            let next = sequence.wrapping_add(1);
            // Crash point: the earlier entry counts, or this one; the dentries give the same result
            // again.
            self.pm.fence(write_attributes(self.0, inode, &property, next, number, generation));
        }
        if walk.garbage {
            self.drop_garbage(inode, number, walk.pages)?;
        }
        Ok(())
    }

    /// First pass over a directory's log: marks pages and lines, and counts names for their inodes.
    fn walk_log(self, inode: &Inode, number: u64) -> Result<Walk> {
        let mut walk = Walk::default();
        let mut offset = inode.log.load_acquire();
        // Every round marks a new block, so a chain that loops ends there.
        while offset != 0 {
            let Some(page) = self.log_page_of(offset, number) else {
                self.count(DAMAGED, 1);
                break;
            };
            if self.block_map().mark_blocks(BlockRun { first: offset / BLOCK_BYTES, count: 1 })? != 0 {
                self.count(DAMAGED, 1);
                break;
            }
            walk.pages += 1;
            self.walk_page(page, number, &mut walk)?;
            offset = page.next.load_acquire();
        }
        Ok(walk)
    }

    fn walk_page(self, page: &LogPage, number: u64, walk: &mut Walk) -> Result<()> {
        self.pm.report_read(self.pm.offset_of(page), BLOCK_BYTES);
        self.recover_used_slots(page, number)?;
        for (index, slot) in page.slots.iter().enumerate() {
            self.prefetch_ahead(page, index);
            match self.log_entry(slot.load_acquire(), number, page) {
                LogEntry::Hole => {}
                LogEntry::Unfinished => walk.garbage = true,
                LogEntry::Damaged { number } => {
                    self.count(DAMAGED, 1);
                    if number != 0 {
                        self.dram.inode_links(number)?.fetch_add(1, AcqRel);
                    }
                }
                LogEntry::Dead { inode, timestamp_ns } => {
                    walk.newest = walk.newest.max((timestamp_ns, inode));
                    walk.garbage = true;
                }
                LogEntry::Name { facts, offset, timestamp_ns } => {
                    walk.newest = walk.newest.max((timestamp_ns, facts.inode));
                    self.count_name(slot, &facts, offset, walk)?;
                }
            }
        }
        Ok(())
    }

    /// Corrects the bound of used slots of a page: a crash may have left it too low.
    fn recover_used_slots(self, page: &LogPage, number: u64) -> Result<()> {
        let used = page.slots.iter().rposition(|slot| slot.load() != 0).map_or(0, |last| last as u64 + 1);
        let is_right = page.used_bound().is_some_and(|bound| bound >= used);
        if !is_right && self.superblock()?.has_used_slots() {
            let word = LogPage::used_word(number, page.first_cookie.load(), LogPage::used_for(used));
            self.pm.persist(self.pm.set64(&page.used, word));
        }
        Ok(())
    }

    /// Prefetches the dentries and inodes that the walk reaches soon.
    #[inline]
    fn prefetch_ahead(self, page: &LogPage, index: usize) {
        if let Some(slot) = page.slots.get(index + AHEAD_DENTRIES) {
            self.pm.prefetch(slot_address(slot.load()));
        }
        let Some(slot) = page.slots.get(index + AHEAD_INODES) else { return };
        if let Ok(dentry) = self.pm.get(Pm::<Dentry>::new(slot_address(slot.load())))
            && let Ok(inode) = self.inode_offset(dentry.number())
        {
            (0..3).for_each(|line| self.pm.prefetch(inode + line * LINE_BYTES));
        }
    }

    /// Marks the lines of a name's dentry and counts the name for its inode.
    fn count_name(self, slot: &Commit64, facts: &DentryFacts, offset: u64, walk: &mut Walk) -> Result<()> {
        let block = offset / BLOCK_BYTES;
        let mask = line_mask(offset % BLOCK_BYTES / LINE_BYTES, dentry_lines(facts.name_length as usize));
        self.provider().provide_group(block / GROUP_BLOCKS)?;
        let slab = self.dram.slab(block)?;
        let before = slab.free_lines.fetch_or(mask, AcqRel);
        if before & mask != 0 {
            // Two slots name one dentry: the other slot keeps the name, nothing is lost.
            self.count(DAMAGED, 1);
            if !self.was_left_cleanly() {
                self.pm.flush(self.pm.retract(slot, 0)).unfenced();
            }
            return Ok(());
        }
        if before == 0 && self.block_map().mark_blocks(BlockRun { first: block, count: 1 })? != 0 {
            // The block is also a log page or part of the inode table. Whichever is wrong, the name
            // stays as it is.
            self.count(DAMAGED, 1);
        }
        self.dram.inode_links(facts.inode)?.fetch_add(1, AcqRel);
        walk.names += 1;
        if facts.kind == FileKind::Directory {
            walk.subdirectories += 1;
            self.recover_parent(facts, offset)?;
        }
        Ok(())
    }

    /// Sets a directory's `..` to the directory of its name, whose dentry at `offset` has verified.
    /// A torn mkdir may have left it out, since the birth word does not certify it.
    fn recover_parent(self, facts: &DentryFacts, offset: u64) -> Result<()> {
        let inode = self.inode(facts.inode)?;
        if inode.parent.load() != facts.parent {
            let parent = ParentWord::of_name(inode, self.pm.get(Pm::<Dentry>::new(offset))?);
            let dirty = self.pm.commit_recomputed(&parent, facts.parent);
            self.pm.flush(dirty).unfenced();
        }
        Ok(())
    }

    /// Second pass: drops the slots that name nothing valid. No name uses their lines, so the last
    /// phase frees them.
    fn drop_garbage(self, inode: &Inode, number: u64, pages: u64) -> Result<()> {
        let mut offset = inode.log.load_acquire();
        for _ in 0..pages {
            let Some(page) = self.log_page_of(offset, number) else { break };
            for slot in &page.slots {
                if matches!(self.log_entry(slot.load(), number, page), LogEntry::Unfinished | LogEntry::Dead { .. }) {
                    self.pm.flush(self.pm.retract(slot, 0)).unfenced();
                }
            }
            offset = page.next.load_acquire();
        }
        Ok(())
    }
}

// Inodes.
impl<'f, M: Memory> ImageRecovery<'f, M> {
    fn recover_inodes(self, segment: u64) -> Result<()> {
        self.for_inodes(segment, |number, inode| {
            match self.whole_inode(inode, number) {
                Some((generation, property, sequence)) => {
                    self.recover_inode(inode, number, generation, property, sequence)
                }
                // Recovery must not discard a root that does not verify.
                None if number == ROOT_INODE => {
                    self.keep_inode(number)?;
                    Err(Corruption::Inode(number).into())
                }
                None if self.dram.inode_links(number)?.load(Acquire) > 0 || self.was_whole(inode, number) => {
                    self.keep_inode(number)?;
                    Err(Corruption::Inode(number).into())
                }
                None => {
                    self.clear_unborn(inode, number);
                    Ok(())
                }
            }
        })
    }

    /// Clears an inode that is free or that a create had started. The fields that the next life
    /// expects to be zero must be zero, and a property entry left by the create must not have the
    /// next life's generation.
    fn clear_unborn(self, inode: &Inode, number: u64) {
        let half_made = inode.property(number, inode.next_generation()).is_some();
        let begun = half_made || inode.birth.load() >> 32 != 0;
        if begun || inode.parent.load() != 0 || !inode.is_plain() {
            self.end_life(inode);
        }
        self.count(ORPHANS, begun as u64);
    }

    /// Erases an inode and skips the next generation, which a create may already have used.
    fn end_life(self, inode: &Inode) {
        self.erase_inode(inode, inode.next_generation() as u64).unfenced();
    }

    pub(super) fn keep_inode(self, number: u64) -> Result<()> {
        self.dram.inode_word(number / 64)?.fetch_or(1 << (number % 64), AcqRel);
        self.count(INODES, 1);
        Ok(())
    }

    fn recover_inode(
        self,
        inode: &Inode,
        number: u64,
        generation: u32,
        property: DurableProperty,
        sequence: u32,
    ) -> Result<()> {
        let links = self.dram.inode_links(number)?.load(Acquire);
        let is_directory = inode.kind.load() == FileKind::Directory as u32;
        if is_directory && self.header()?.recovery_counts[DAMAGED].load(Acquire) > 0 {
            self.keep_damaged_lines(inode, number)?;
        }
        if links == 0 && number != ROOT_INODE && !(is_directory && self.has_names(inode, number)) {
            if self.was_left_in_use(number) {
                return self.keep_orphan(inode, number, &property);
            }
            // Unlinked while open, or never named.
            self.count(ORPHANS, 1);
            if is_directory {
                self.unmark_log(inode, number)?;
            }
            self.end_life(inode);
            return Ok(());
        }
        self.keep_inode(number)?;
        // A directory has one name, the root none.
        if is_directory && (links == 1) != (number != ROOT_INODE) {
            self.count(DAMAGED, 1);
        }
        if number == ROOT_INODE && inode.parent.load() != ROOT_INODE {
            // No name vouches for it.
            self.pm.flush(self.pm.retract(&inode.parent, ROOT_INODE)).unfenced();
        }
        if !is_directory && (inode.parent.load() | inode.log.load()) != 0 {
            // They are of an earlier life: a torn create may have left them, since the birth word
            // does not certify them.
            let cleared = self.pm.retract(&inode.parent, 0).and(self.pm.retract(&inode.log, 0));
            self.pm.flush(cleared).unfenced();
        }
        let mut settled = property;
        if !is_directory {
            let blocks = self.recover_file(&property)?;
            settled.change(|settled| (settled.links, settled.blocks) = (links, blocks));
        }
        if settled != property {
            let next = sequence.wrapping_add(1);
            write_attributes(self.0, inode, &settled, next, number, generation).unfenced();
        }
        self.recover_attributes(inode)
    }

    /// Marks the blocks of a file's body and returns their number.
    pub(super) fn recover_file(self, property: &Property) -> Result<u64> {
        match property.kind() {
            Some(FileKind::Regular | FileKind::Symlink) => {
                crate::file::recover_body(self.0, property, true, &mut |blocks| self.mark_body_part(blocks))
            }
            _ => Ok(property.blocks),
        }
    }

    pub(super) fn recover_attributes(self, inode: &Inode) -> Result<()> {
        if inode.xattrs.load_acquire() == 0 {
            return Ok(());
        }
        crate::file::recover_xattrs(self.0, inode, &mut |blocks| self.mark_body_part(blocks))
    }

    /// Marks blocks of a body.
    fn mark_body_part(self, blocks: Blocks) -> Result<()> {
        let run = blocks.run;
        if self.block_map().is_data(run) {
            self.block_map().mark_body(run)
        } else {
            Err(Corruption::BlockMap(run.first).into())
        }
    }

    /// Whether an unnamed directory has names itself: not an orphan, but a directory whose own name
    /// was lost to damage.
    fn has_names(self, inode: &Inode, number: u64) -> bool {
        let mut offset = inode.log.load_acquire();
        for _ in 0..self.blocks() {
            let Some(page) = self.log_page_of(offset, number) else { break };
            if page.slots.iter().any(|slot| matches!(self.log_entry(slot.load(), number, page), LogEntry::Name { .. }))
            {
                return true;
            }
            offset = page.next.load_acquire();
        }
        false
    }

    /// Clears the marks of an orphan's log pages.
    fn unmark_log(self, inode: &Inode, number: u64) -> Result<()> {
        let mut offset = inode.log.load_acquire();
        for _ in 0..self.blocks() {
            if self.log_page_of(offset, number).is_none() {
                break;
            }
            self.block_map().unmark_blocks(BlockRun { first: offset / BLOCK_BYTES, count: 1 })?;
            offset = self.pm.get(Pm::<LogPage>::new(offset))?.next.load_acquire();
        }
        Ok(())
    }
}

// Slabs.
impl<'f, M: Memory> ImageRecovery<'f, M> {
    /// Turns the lines in use of a range of blocks into free lines of slabs.
    fn sweep_slabs(self, unit: u64) -> Result<()> {
        let words = GROUPS_PER_UNIT * GROUP_BLOCKS / 64;
        let end = ((unit + 1) * words).min(self.blocks().div_ceil(64));
        for index in unit * words..end {
            let mut used = self.dram.block_word(index)?.load(Acquire);
            while used != 0 {
                let block = index * 64 + used.trailing_zeros() as u64;
                used &= used - 1;
                if self.reaches(block + 1) {
                    self.sweep_block(block)?;
                }
            }
        }
        Ok(())
    }

    fn sweep_block(self, block: u64) -> Result<()> {
        let slab = self.dram.slab(block)?;
        let used = slab.free_lines.load(Acquire);
        if used == 0 {
            return Ok(());
        }
        let mut free = !used;
        let mut rest = free;
        while rest != 0 {
            let line = rest.trailing_zeros() as u64;
            rest &= rest - 1;
            let dentry = self.pm.get(Pm::<Dentry>::new(block * BLOCK_BYTES + line * LINE_BYTES))?;
            // It is no longer known which free lines began a dentry. An apparent valid word may be
            // part of a name, and an unfinished create may have left a dentry with a valid word.
            if dentry.seal.load() == 0 && dentry.valid.load() == 0 {
                continue;
            }
            let lost = if self.has_damage() { dentry.verified(&self.pm) } else { None };
            match lost.filter(|_| Valid::from_word(dentry.valid.load()).valid) {
                // A valid name that no slot names: fsck may want it.
                Some(facts) => {
                    let mask = line_mask(line, dentry_lines(facts.name_length as usize));
                    (free, rest) = (free & !mask, rest & !mask);
                }
                None => self.pm.flush(self.pm.set64(&dentry.seal, 0).and(self.pm.retract(&dentry.valid, 0))).unfenced(),
            }
        }
        slab.free_lines.store(free, Relaxed);
        slab.state.store(if free == 0 { SLAB_FULL } else { SLAB_LISTED }, Release);
        Ok(())
    }
}
