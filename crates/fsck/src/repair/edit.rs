//! Writes to an image, and allocation of free space on it.

use super::Done;
use crate::check::{Checker, DAMAGED, REACHED};
use crate::image::Name;
use crate::snapshot::MapWords;
use crate::usage::{BlockUse, line_mask};
use engine::format::{
    Dentry, INODES_PER_SEGMENT, Inode, JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, JournalRecord, JournalSlot, Property,
    SEGMENT_BLOCKS, Segment, SlotTag, Snapshot, State, Superblock, Valid, short_generation, slot_word,
};
use pmem::{BLOCK_BYTES, LINE_BYTES, Memory, Pm, Region, crc32c};
use std::mem::offset_of;

/// Bytes of the superblock that do not change while the image is in use.
const DESCRIPTION_BYTES: u64 = 216;

/// A check that continues with repairs.
pub(crate) struct Repairer<'c, M: Memory> {
    pub check: Checker<'c, M>,
    /// The block map that the last detach saved, if its checksum matches.
    marked: Option<&'c MapWords>,
    /// Where the search for free blocks continues.
    next_block: u64,
    /// The timestamp for written structures.
    pub now_ns: i64,
}

/// The words of the block map of a clean image, if they match their checksum.
pub(crate) fn marked_blocks<M: Memory>(checker: &Checker<'_, M>) -> Option<MapWords> {
    let superblock = checker.image.region.first::<Superblock>().ok()?;
    let figures = Snapshot::from_words(&std::array::from_fn(|index| superblock.snapshot[index].load()));
    if !checker.clean || figures == Snapshot::default() {
        return None;
    }
    checker.maps_verify(&figures, superblock.state().epoch)
}

impl<'c, M: Memory> Repairer<'c, M> {
    pub fn new(check: Checker<'c, M>, marked: Option<&'c MapWords>, now_ns: i64) -> Repairer<'c, M> {
        let next_block = check.image.geometry.data_block;
        Repairer { check, marked, next_block, now_ns }
    }

    pub fn region(&self) -> &'c Region<M> {
        self.check.image.region
    }

    pub fn get(&self, offset: u64) -> u64 {
        self.check.image.word(offset)
    }

    /// Stores a word durably.
    pub fn set(&self, offset: u64, word: u64) {
        self.set_bytes(offset, &word.to_le_bytes());
    }

    /// Stores bytes durably.
    pub fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        // Offsets of repairs come from findings about reached structures, so they lie inside.
        if let Ok(dirty) = self.region().write_bytes(offset, bytes) {
            self.region().persist(dirty);
        }
    }

    /// Copies the constant part of the superblock. The magic comes first and is written last.
    pub fn copy_description(&self, from: u64, to: u64) {
        let mut bytes = [0u8; DESCRIPTION_BYTES as usize];
        if self.region().read_bytes(from, &mut bytes).is_ok() {
            self.set_bytes(to + 8, &bytes[8..]);
            self.set_bytes(to, &bytes[..8]);
        }
    }

    /// Discards the image's free-space maps and marks it as cleanly detached, so that no structure
    /// counts as incomplete. Returns whether it was not clean before.
    pub fn begin(&mut self) -> bool {
        let Ok(superblock) = self.region().first::<Superblock>() else { return false };
        if !self.check.clean {
            self.end_journal();
            self.write_inode_map();
        }
        let offset = offset_of!(Superblock, snapshot) as u64;
        (0..8).filter(|word| self.get(offset + word * 8) != 0).for_each(|word| self.set(offset + word * 8, 0));
        if self.check.clean {
            return false;
        }
        let state = State { clean: true, ..superblock.state() };
        self.set(offset_of!(Superblock, state) as u64, state.word());
        true
    }

    /// Writes the map of inodes in use. With it, a clean image distinguishes files that lost their
    /// names from removed files. An inode with a name, even one that no slot refers to, is in use:
    /// a removal invalidates the name first.
    fn write_inode_map(&self) {
        let segments = &self.check.image.segments;
        let mut lives: Vec<bool> =
            self.check.inodes.iter().map(|state| state.names > 0 || state.flags & (DAMAGED | REACHED) != 0).collect();
        let geometry = self.check.image.geometry;
        for block in geometry.data_block..geometry.data_end() {
            if !matches!(self.check.usage.of(block), BlockUse::Free | BlockUse::Dentries) {
                continue;
            }
            for offset in (block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES).step_by(LINE_BYTES as usize) {
                if let Some(place) = self.check.lost_name(offset).and_then(|number| segments.index_of(number)) {
                    lives[place] = true;
                }
            }
        }
        for (words, first) in lives.chunks(INODES_PER_SEGMENT as usize).zip(&segments.used) {
            for (index, word) in words.chunks(64).enumerate() {
                let bits = word.iter().enumerate().fold(0, |bits, (bit, lives)| bits | (*lives as u64) << bit);
                let number_zero = (first.0 == 0 && index == 0) as u64;
                self.set(geometry.inode_map_block * BLOCK_BYTES + first.0 / 8 + index as u64 * 8, bits | number_zero);
            }
        }
    }

    /// Completes all renames and ends their records.
    fn end_journal(&self) {
        let overlay = &self.check.overlay;
        overlay.slots.iter().for_each(|(offset, word)| self.set(*offset, *word));
        overlay.parents.iter().for_each(|(inode, parent)| self.set(inode + offset_of!(Inode, parent) as u64, *parent));
        overlay.valid.iter().for_each(|(dentry, word)| self.set(*dentry, *word));
        for index in 0..JOURNAL_SLOTS {
            let offset = self.check.image.geometry.journal_block * BLOCK_BYTES + index * JOURNAL_SLOT_BYTES;
            if self.get(offset) != 0 {
                self.set(offset, 0);
            }
        }
    }

    /// Completes a rename that the check found possible, and ends its record.
    pub fn complete_rename(&mut self, slot: u64) -> Done {
        let journal = self.region().get(Pm::<JournalSlot>::new(slot)).map_err(|_| "there is no journal slot")?;
        let record: JournalRecord = journal.record().ok_or("its record no longer verifies")?;
        for step in record.moves.iter().filter(|step| step.slot != 0) {
            if crate::journal::is_due(self.get(step.slot), &record) {
                self.set(step.slot, slot_word(step.dentry, SlotTag::Dentry));
            }
            if step.directory != 0 && Valid::from_word(self.get(step.dentry)).valid {
                self.set(step.directory + offset_of!(Inode, parent) as u64, step.parent);
            }
        }
        record
            .invalidated
            .into_iter()
            .filter(|dentry| *dentry != 0)
            .for_each(|dentry| self.invalidate_at(dentry, record.timestamp_ns));
        self.set(slot, 0);
        Ok(())
    }

    /// The current attributes and their sequence.
    pub fn property(&self, number: u64) -> Result<(Property, u32), &'static str> {
        let (inode, _) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let generation = inode.generation(number).ok_or("its identity is damaged")?;
        inode.property(number, generation).ok_or("its attributes are damaged")
    }

    /// Writes the next property entry: one line, which takes effect wholly or not at all.
    pub fn change_property(&self, number: u64, change: impl FnOnce(&mut Property)) -> Done {
        let (mut property, sequence) = self.property(number)?;
        change(&mut property);
        let (inode, _) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let generation = inode.generation(number).ok_or("its identity is damaged")?;
        self.write_property(number, generation, &property, sequence.wrapping_add(1))
    }

    /// Writes a property entry with a sequence.
    pub fn write_property(&self, number: u64, generation: u32, property: &Property, sequence: u32) -> Done {
        let offset = self.check.inode_offset(number)? + offset_of!(Inode, properties) as u64;
        let words = property.words();
        let seal = Property::seal(&words, sequence, number, generation);
        let mut line = [0u8; LINE_BYTES as usize];
        for (bytes, word) in line.as_chunks_mut::<8>().0.iter_mut().zip([&[seal], &words[..]].concat()) {
            *bytes = word.to_le_bytes();
        }
        self.set_bytes(offset + (sequence as u64 & 1) * LINE_BYTES, &line);
        Ok(())
    }

    /// Whether a block may be allocated.
    fn is_free(&self, block: u64) -> bool {
        let marked = self.marked.is_some_and(|words| words.code(block) != 0);
        !marked && self.check.usage.of(block) == BlockUse::Free
    }

    /// Allocates consecutive free blocks and zeroes them; returns the offset of the first.
    pub fn take_blocks(&mut self, count: u64, wanted: BlockUse) -> Result<u64, &'static str> {
        let end = self.check.image.geometry.data_end();
        let first = (self.next_block..end.saturating_sub(count - 1))
            .find(|first| (*first..first + count).all(|block| self.is_free(block)))
            .ok_or("there are not enough free blocks for it")?;
        // Where a long run is not available, single blocks may still be.
        self.next_block = if count == 1 { first + 1 } else { self.next_block };
        for block in first..first + count {
            let _ = self.check.usage.claim(block, wanted);
        }
        let zeroed = self.region().stream_zeros(first * BLOCK_BYTES, count * BLOCK_BYTES);
        self.region().fence(zeroed.map_err(|_| "a block lies outside the image")?);
        Ok(first * BLOCK_BYTES)
    }

    /// Allocates the blocks of a segment, consecutive ones if possible.
    pub fn take_segment(&mut self, segment: u64) -> Result<Segment, &'static str> {
        match self.take_blocks(SEGMENT_BLOCKS, BlockUse::Segment) {
            Ok(first) => Ok(Segment::contiguous(first)),
            Err(_) => self.list_segment(segment, &[None; SEGMENT_BLOCKS as usize]),
        }
    }

    /// Makes a segment of the present blocks and of new ones for those that are missing, and writes
    /// its list.
    pub fn list_segment(&mut self, segment: u64, present: &[Option<u64>]) -> Result<Segment, &'static str> {
        let mut blocks = [0; SEGMENT_BLOCKS as usize];
        for (offset, block) in blocks.iter_mut().zip(present) {
            *offset = match block {
                Some(block) => block * BLOCK_BYTES,
                None => self.take_blocks(1, BlockUse::Segment)?,
            };
        }
        let list = self.take_blocks(1, BlockUse::Segment)?;
        let listed = Segment::listed(list, blocks);
        self.set_bytes(list, &listed.list_bytes(segment));
        Ok(listed)
    }

    /// Allocates lines for a dentry: in a dentry block with room, or in a new one.
    pub fn take_lines(&mut self, lines: u64) -> Result<u64, &'static str> {
        let mut blocks: Vec<u64> = self.check.usage.dentry_blocks().collect();
        blocks.sort_unstable();
        let in_block = |block: u64| {
            let used = self.check.usage.lines(block);
            let first = block * BLOCK_BYTES;
            let mut offsets = (0..=64 - lines).map(|line| first + line * LINE_BYTES);
            // A line may hold a name that lost its slot to damage.
            offsets.find(|offset| used & line_mask(*offset, lines) == 0 && !self.has_name(*offset, lines))
        };
        let offset = match blocks.into_iter().find_map(in_block) {
            Some(offset) => offset,
            None => self.take_blocks(1, BlockUse::Dentries)?,
        };
        self.check.usage.claim_lines(offset, lines);
        Ok(offset)
    }

    /// Whether a valid name begins in some lines.
    fn has_name(&self, offset: u64, lines: u64) -> bool {
        (0..lines).any(|line| self.check.lost_name(offset + line * LINE_BYTES).is_some())
    }

    /// Removes a name.
    pub fn invalidate(&self, dentry: u64) {
        self.invalidate_at(dentry, self.now_ns.max(0) as u64);
    }

    fn invalidate_at(&self, offset: u64, timestamp_ns: u64) {
        if let Some(dentry) = self.check.image.dentry(offset) {
            self.set(offset, dentry.invalid_word(timestamp_ns));
        }
    }

    /// The facts of a dentry, if it verifies.
    pub fn dentry(&self, offset: u64) -> Result<(engine::format::DentryFacts, Name), &'static str> {
        let mut name = Name::default();
        let (_, facts) = self.check.image.verified(offset, &mut name).ok_or("the name is damaged")?;
        Ok((facts, name))
    }
}

impl<M: Memory> Checker<'_, M> {
    /// The inode number of the name in a line, if the name is valid, or would be but for a damaged
    /// checksum.
    fn lost_name(&self, offset: u64) -> Option<u64> {
        let dentry: &Dentry = self.image.dentry(offset)?;
        let facts = dentry.facts()?;
        let counts = dentry.valid_word(&facts)?.valid;
        let (inode, _) = self.image.inode(facts.inode)?;
        let generation = inode.generation(facts.inode).unwrap_or(inode.birth.load() as u32);
        (counts && short_generation(generation) == facts.generation).then_some(facts.inode)
    }

    /// The words of the block map, if everything that the detach saved matches its checksum.
    fn maps_verify(&self, figures: &Snapshot, epoch: u32) -> Option<MapWords> {
        let geometry = self.image.geometry;
        let mut crc = 0;
        let blocks = self.read_words(geometry.block_map_block, geometry.blocks.div_ceil(32), &mut crc);
        self.read_words(geometry.inode_map_block, geometry.inodes_max() / 64, &mut crc);
        let mut page = figures.list_page;
        let mut bytes = [0u8; BLOCK_BYTES as usize];
        for _ in 0..figures.list_pages.min(geometry.blocks) {
            self.image.region.read_bytes(page, &mut bytes).ok()?;
            crc = crc32c(crc, &bytes);
            page = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
        }
        (figures.checksum(crc, epoch) == figures.checksum).then_some(blocks)
    }
}
