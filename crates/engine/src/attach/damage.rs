//! Structures that do not verify after a crash: half-made ones are dropped, damaged ones are kept.
//!
//! A structure that does not verify is one of two things. After a crash it may be *half-made*: a
//! create that had not returned left parts of identity, property entry, dentry and log slot. Then
//! it is dropped. Everything else is *damage*: it stays, is counted, and fsck reports it.
//! - On an image that was left clean (whose free maps alone are invalid) nothing is half-made, and
//!   nothing is dropped or erased.
//! - In a compacted page nothing is half-made: only names whose create had returned are copied
//!   there.
//! - An identity that does not verify is not half-made if a name has its generation, and a property
//!   entry of that generation verifies that a create does not write.
//! - Where one flipped bit explains why a seal does not verify, the bit is repaired. Either the bit
//!   rotted, or one word of a create that had not returned was lost; in that case the create is
//!   completed.
//!
//! Decision: docs/decisions/recovery.md, "What does not verify is half-made or damaged".

use super::recovery::{DAMAGED, FLIPPED, LEFT_CLEANLY};
use crate::alloc::{BlockRun, line_mask};
use crate::components::ImageRecovery;
use crate::dram::GROUP_BLOCKS;
use crate::error::Result;
use crate::format::{
    Dentry, DentryFacts, FileKind, Flip, INODES_PER_SEGMENT, Inode, LogPage, LogPageKind, Property, dentry_lines,
    short_generation, slot_address, slot_tag,
};
use crate::property::DurableProperty;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use pmem::{BLOCK_BYTES, Cell64, Commit64, LINE_BYTES, Memory, Pm};

/// The target of a log slot.
#[derive(Clone, Copy)]
pub(super) enum LogEntry {
    /// Nothing.
    Hole,
    /// A create that had not returned; it does not count.
    Unfinished,
    /// A name that was removed at `timestamp_ns`.
    Dead { inode: u64, timestamp_ns: u64 },
    /// A name.
    Name { facts: DentryFacts, offset: u64, timestamp_ns: u64 },
    /// A target that this program cannot read; it is left alone. `number` is the inode that it
    /// names, or zero if unknown.
    Damaged { number: u64 },
}

impl<'f, M: Memory> ImageRecovery<'f, M> {
    pub(super) fn was_left_cleanly(self) -> bool {
        self.header().is_ok_and(|header| header.recovery_counts[LEFT_CLEANLY].load(Relaxed) != 0)
    }

    /// Whether damage was found so far on an image that was left clean, where damage is the only
    /// possible defect.
    pub(super) fn has_damage(self) -> bool {
        let damaged = self.header().is_ok_and(|header| header.recovery_counts[DAMAGED].load(Acquire) > 0);
        damaged && self.was_left_cleanly()
    }

    /// Repairs a flipped bit in the structure at `start`, durably before the phase ends.
    pub(super) fn repair_flip(self, start: u64, flip: Flip) -> Result<()> {
        let offset = start + flip.offset;
        let word = self.pm.get(Pm::<Cell64>::new(offset))?.load() ^ flip.mask;
        self.pm.flush(self.pm.write_bytes(offset, &word.to_le_bytes())?).unfenced();
        self.count(FLIPPED, 1);
        Ok(())
    }

    /// The generation of an inode and its valid attributes, if both are whole, or are so except for
    /// one flipped bit.
    pub(super) fn whole_inode(self, inode: &Inode, number: u64) -> Option<(u32, DurableProperty, u32)> {
        let offset = self.pm.offset_of(inode);
        let generation = match inode.generation(number) {
            Some(generation) => generation,
            None => {
                let flip = inode.flip_in_identity(number)?;
                let generation = (inode.birth.load() ^ if flip.offset == 0 { flip.mask } else { 0 }) as u32;
                // Without attributes the identity is not worth repairing.
                inode.property(number, generation)?;
                self.repair_flip(offset, flip).ok()?;
                inode.generation(number)?
            }
        };
        if inode.property(number, generation).is_none() {
            let flip = (0..2).find_map(|index| inode.flip_in_property(index, number, generation))?;
            self.repair_flip(offset, flip).ok()?;
        }
        let (property, sequence) = DurableProperty::on_image(inode, number, generation)?;
        Some((generation, property, sequence))
    }

    /// Whether the inode that a name leads to does not verify but once did: see the rules at the
    /// top.
    pub(super) fn is_damaged(self, facts: &DentryFacts) -> bool {
        let number = facts.inode;
        let Ok(inode) = self.inode(number) else { return false };
        let generation = inode.birth.load() as u32;
        let changed = inode.property(number, generation).is_some_and(|(_, sequence)| sequence > 0);
        inode.generation(number).is_none() && changed && short_generation(generation) == facts.generation
    }

    /// Whether an inode that is not whole is damaged, whatever leads to it. A create writes no
    /// number but the inode's own.
    pub(super) fn was_whole(self, inode: &Inode, number: u64) -> bool {
        let said = inode.number.load();
        inode.birth.load() >> 32 != 0 && (self.was_left_cleanly() || (said != number && said != 0))
    }

    /// Whether the last clean detach recorded an inode number as in use, with no attach since.
    pub(super) fn was_left_in_use(self, number: u64) -> bool {
        let offset = self.geometry.inode_map_block * BLOCK_BYTES + number / 64 * 8;
        let word = self.pm.get(Pm::<Cell64>::new(offset)).map_or(0, Cell64::load);
        self.was_left_cleanly() && word >> (number % 64) & 1 == 1
    }

    /// A page of directory `owner`, if there is one at this offset.
    pub(super) fn log_page_of(self, offset: u64, owner: u64) -> Option<&'f LogPage> {
        let is_data = offset.is_multiple_of(BLOCK_BYTES)
            && self.block_map().is_data(BlockRun { first: offset / BLOCK_BYTES, count: 1 });
        let page = if is_data { self.0.pm.get(Pm::<LogPage>::new(offset)).ok()? } else { return None };
        if !page.belongs_to(owner) {
            let flip = page.flip_in_header(owner)?;
            self.repair_flip(offset, flip).ok()?;
        }
        page.belongs_to(owner).then_some(page)
    }

    /// Whether a log slot of directory `owner` leads to a name, as it is now: what a call asserts
    /// before the fence after which its name must survive. Corrects no bits.
    pub(crate) fn follows(self, slot: &Commit64, owner: u64) -> bool {
        let dentry = self.pm.get(Pm::<Dentry>::new(slot_address(slot.load())));
        let page = self.pm.get(Pm::<LogPage>::new(self.pm.offset_of(slot) / BLOCK_BYTES * BLOCK_BYTES));
        dentry.is_ok_and(|dentry| dentry.verified(&self.pm).is_some())
            && page.is_ok_and(|page| matches!(self.log_entry(slot.load(), owner, page), LogEntry::Name { .. }))
    }

    /// The target of a slot of directory `owner`.
    pub(super) fn log_entry(self, word: u64, owner: u64, page: &LogPage) -> LogEntry {
        if word == 0 {
            return LogEntry::Hole;
        }
        let half_made = !self.was_left_cleanly() && page.kind(owner) == Some(LogPageKind::Append);
        let damaged = LogEntry::Damaged { number: 0 };
        let not_whole = if half_made { LogEntry::Unfinished } else { damaged };
        let offset = slot_address(word);
        if slot_tag(word).is_none() || !self.lines_fit(offset, 1) {
            return damaged;
        }
        let Ok(dentry) = self.pm.get(Pm::<Dentry>::new(offset)) else { return damaged };
        // This check lets a create flush dentry, inode and slot under one fence: the slot counts
        // only if all of them verify.
        let verified = dentry.verified(&self.pm).or_else(|| {
            self.repair_flip(offset, dentry.flip(&self.pm)?).ok()?;
            dentry.verified(&self.pm)
        });
        let Some(facts) = verified.filter(|facts| facts.parent == owner) else { return not_whole };
        let Some(valid) = dentry.valid_word(&facts) else { return not_whole };
        if !valid.valid {
            return LogEntry::Dead { inode: facts.inode, timestamp_ns: valid.timestamp_ns };
        }
        match self.verified_kind(&facts) {
            Some(kind) if kind == facts.kind => LogEntry::Name { facts, offset, timestamp_ns: valid.timestamp_ns },
            None if self.is_damaged(&facts) => LogEntry::Damaged { number: facts.inode },
            _ => not_whole,
        }
    }

    /// The kind of the inode that a dentry names, if identity and attributes verify and belong to
    /// the life that the dentry names. (A removed inode is not erased before its number is reused.)
    pub(super) fn verified_kind(self, facts: &DentryFacts) -> Option<FileKind> {
        let number = facts.inode;
        self.segment(number / INODES_PER_SEGMENT)?;
        let inode = self.inode(number).ok()?;
        self.whole_inode(inode, number).filter(|(generation, ..)| short_generation(*generation) == facts.generation)?;
        FileKind::from_bits(inode.kind.load())
    }

    /// Keeps a file whose name was lost to damage; fsck gives it another one.
    pub(super) fn keep_orphan(self, inode: &Inode, number: u64, property: &Property) -> Result<()> {
        self.keep_inode(number)?;
        self.count(DAMAGED, 1);
        self.recover_file(property)?;
        self.recover_attributes(inode)
    }

    /// Keeps lines that may hold damaged names from being erased. All whole names have marked their
    /// lines by now.
    pub(super) fn keep_damaged_lines(self, inode: &Inode, number: u64) -> Result<()> {
        let mut offset = inode.log.load_acquire();
        for _ in 0..self.blocks() {
            let Some(page) = self.log_page_of(offset, number) else { break };
            for slot in &page.slots {
                let word = slot.load();
                let at = slot_address(word);
                if matches!(self.log_entry(word, number, page), LogEntry::Damaged { .. }) && self.lines_fit(at, 1) {
                    let dentry = self.pm.get(Pm::<Dentry>::new(at))?;
                    let lines = dentry.facts().map_or(1, |facts| dentry_lines(facts.name_length as usize));
                    let lines = lines.min((BLOCK_BYTES - at % BLOCK_BYTES) / LINE_BYTES);
                    let block = BlockRun { first: at / BLOCK_BYTES, count: 1 };
                    let mask = line_mask(at % BLOCK_BYTES / LINE_BYTES, lines);
                    self.provider().provide_group(block.first / GROUP_BLOCKS)?;
                    if self.dram.slab(block.first)?.free_lines.fetch_or(mask, AcqRel) == 0 {
                        self.block_map().mark_blocks(block)?;
                    }
                }
            }
            offset = page.next.load_acquire();
        }
        Ok(())
    }
}
