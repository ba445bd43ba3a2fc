//! Checks of the segment table and of single inodes: identity, property entries, and the fields
//! that must be zero in a free inode.

use crate::check::{Checker, DAMAGED, ENDED, FindingLocation, INLINE, InodeState, REACHED, at};
use crate::finding::{FindingKind, Repair};
use crate::report::Phase;
use crate::usage::BlockUse;
use engine::format::{
    FileKind, Flip, INODES_PER_SEGMENT, Inode, NO_ID, PROPERTY_ACCESS_LIST, PROPERTY_FILE_FLAGS, PROPERTY_INLINE,
    Property, PropertyEntry, ROOT_INODE, Segment, SegmentFault,
};
use pmem::{BLOCK_BYTES, Memory};

impl<M: Memory> Checker<'_, M> {
    /// Finds the usable segments.
    pub fn check_segments(&mut self) {
        let mut gap = false;
        for segment in 0..self.image.geometry.segments_max {
            let entry = self.image.segment_entry(segment);
            let offset = self.image.word(entry);
            if offset == 0 {
                gap = true;
                continue;
            }
            let repair = Repair::FindSegment { segment };
            if std::mem::take(&mut gap) {
                let sentence = format_args!("segment {segment} of the inode table follows an empty entry");
                let repair = Repair::FindSegment { segment: segment - 1 };
                self.report(FindingKind::SegmentGap, at(entry), repair, sentence);
            }
            match self.image.segment(segment, offset) {
                Ok(found) if self.claim_segment(&found) => self.image.segments.add(segment, found),
                Ok(_) => {
                    let sentence = format_args!("segment {segment} of the inode table overlaps another one");
                    self.report(FindingKind::SegmentOverlap, at(entry), repair, sentence);
                }
                Err(SegmentFault::Offset) => {
                    let sentence = format_args!(
                        "segment {segment} of the inode table is at offset {offset:#x}, where no segment can be"
                    );
                    self.report(FindingKind::SegmentOffset, at(entry), repair, sentence);
                }
                Err(SegmentFault::List) => {
                    let sentence = format_args!("the list of the blocks of segment {segment} does not verify");
                    self.report(FindingKind::SegmentList, at(offset / BLOCK_BYTES * BLOCK_BYTES), repair, sentence);
                }
            }
        }
    }

    fn claim_segment(&mut self, segment: &Segment) -> bool {
        if segment.blocks().any(|block| self.usage.of(block) != BlockUse::Free) {
            return false;
        }
        segment.blocks().all(|block| self.usage.claim(block, BlockUse::Segment).is_ok())
    }

    /// Checks every inode of every segment.
    pub fn check_inodes(&mut self) {
        let count = self.image.segments.inodes();
        for index in 0..count {
            if index % INODES_PER_SEGMENT as usize == 0 {
                self.step(Phase::Inodes, index as u64, count as u64);
            }
            self.inodes[index] = self.check_inode(index);
        }
        self.step(Phase::Inodes, count as u64, count as u64);
    }

    fn check_inode(&mut self, place: usize) -> InodeState {
        let (inode, offset) = self.image.inode_at(place);
        let number = self.image.segments.number(place);
        let on = FindingLocation::inode(number).at(offset);
        if inode.birth.load() >> 32 == 0 {
            self.check_free_inode(inode, on, offset);
            // The next creation does not write them.
            self.check_reserved(on, self.image.region.offset_of(&inode.reserved), 1, "the inode");
            return InodeState::default();
        }
        let damaged = InodeState { flags: DAMAGED, ..InodeState::default() };
        let Some(generation) = inode.generation(number) else {
            self.report_identity(inode, number, on, offset);
            return damaged;
        };
        if number == 0 {
            let repair = Repair::FreeInode { number };
            self.report(FindingKind::InodeZero, on, repair, format_args!("inode number zero is in use"));
            return damaged;
        }
        let repair = Repair::RepairInode { number };
        let Some(kind) = FileKind::from_bits(inode.kind.load()) else {
            let sentence = format_args!("its kind {} is unknown", inode.kind.load());
            self.report(FindingKind::InodeKind, on, repair, sentence);
            return damaged;
        };
        if generation == 0 {
            self.report(FindingKind::InodeGeneration, on, repair, format_args!("it is in use with generation zero"));
        }
        let Some((property, _)) = inode.property(number, generation) else {
            let flipped =
                (0..2).find_map(|index| self.set_flipped(offset, inode.flip_in_property(index, number, generation)));
            let repair = if self.clean { flipped.unwrap_or(repair) } else { Repair::Recover };
            self.report(FindingKind::NoProperty, on, repair, format_args!("none of its two property entries verifies"));
            return damaged;
        };
        self.check_identity(inode, number, kind, on);
        self.check_sequences(inode, number, generation, on);
        self.check_property(&property, kind, number, on);
        let inline = if property.flags & PROPERTY_INLINE != 0 { INLINE } else { 0 };
        let ended = if self.clean && self.is_ended(number) { ENDED } else { 0 };
        let flags = inline | ended;
        InodeState { links: property.links, generation, kind: kind as u8, flags, ..InodeState::default() }
    }

    /// Discards the state of free inodes, and checks that nothing is left in them. An inode with a
    /// name is in use whatever the inode map says: after a repair, or a detach without room for the
    /// other maps, no checksum covers that map.
    pub fn forget_freed(&mut self) {
        for place in 0..self.inodes.len() {
            let state = self.inodes[place];
            if state.flags & (ENDED | REACHED) == ENDED && state.names == 0 {
                let (inode, offset) = self.image.inode_at(place);
                let on = FindingLocation::inode(self.image.segments.number(place)).at(offset);
                self.check_free_inode(inode, on, offset);
                self.inodes[place] = InodeState::default();
            }
        }
    }

    /// Whether the inode map of a clean image marks a number as free.
    fn is_ended(&self, number: u64) -> bool {
        let word = self.image.geometry.inode_map_block * BLOCK_BYTES + number / 64 * 8;
        self.image.word(word) >> (number % 64) & 1 == 0
    }

    fn check_free_inode(&mut self, inode: &Inode, on: FindingLocation, offset: u64) {
        // Number zero is never used, and recovery does not read it.
        let is_zero = self.image.inode(0).is_some_and(|(zero, _)| std::ptr::eq(zero, inode));
        let kind = if is_zero { FindingKind::InodeZero } else { FindingKind::FreeInodeNotZero };
        let accessed = inode.accessed_ns.load() != 0;
        if accessed || inode.inline.iter().any(|word| word.load() != 0) {
            let first = offset + std::mem::offset_of!(Inode, accessed_ns) as u64;
            let what = if accessed { "an access time" } else { "an inline body" };
            let repair = Repair::Zero { offset: first, length: 64 };
            self.report(kind, on, repair, format_args!("it is free but has {what}"));
        }
        if inode.log.load() != 0 || inode.xattrs.load() != 0 {
            let first = offset + std::mem::offset_of!(Inode, log) as u64;
            let repair = Repair::Zero { offset: first, length: 16 };
            let sentence = format_args!("it is free but has a log or extended attributes");
            self.report(kind, on, repair, sentence);
        }
    }

    /// Reports an identity that does not verify: another inode's, or damaged.
    fn report_identity(&mut self, inode: &Inode, number: u64, on: FindingLocation, offset: u64) {
        let property = inode.property(number, inode.birth.load() as u32);
        let mendable = property.is_some() || number == ROOT_INODE;
        let repair = if mendable { Repair::RepairInode { number } } else { Repair::FreeInode { number } };
        let repair = self.set_flipped(offset, inode.flip_in_identity(number)).unwrap_or(repair);
        let other = inode.number.load();
        if other != number && inode.generation(other).is_some() {
            let sentence = format_args!("it has the number of inode {other}");
            return self.report(FindingKind::InodeNumber, on, repair, sentence);
        }
        let sentence = format_args!("its identity does not match its checksum");
        // A creation writes no number but the inode's own: recovery keeps such an inode as damaged.
        if !self.clean && other != number && other != 0 {
            return self.report(FindingKind::InodeDamaged, on, repair, sentence);
        }
        match property {
            // A generation's first entry is written with its identity, the second by a later
            // change.
            Some((_, sequence)) if sequence > 0 && !self.clean => {
                self.report(FindingKind::InodeDamaged, on, repair, sentence)
            }
            _ => {
                let repair = if self.clean { repair } else { Repair::Recover };
                self.report(FindingKind::InodeChecksum, on, repair, sentence);
            }
        }
    }

    /// The repair that undoes a bit flip in the structure at an offset.
    pub(crate) fn set_flipped(&self, offset: u64, flip: Option<Flip>) -> Option<Repair> {
        let Flip { offset: within, mask } = flip?;
        let offset = offset + within;
        Some(Repair::SetWord { offset, word: self.image.word(offset) ^ mask })
    }

    /// Fields that belong to the identity but are not covered by its checksum.
    fn check_identity(&mut self, inode: &Inode, number: u64, kind: FileKind, on: FindingLocation) {
        let pointer = inode.nv_pointer.load();
        let epoch =
            self.image.region.first::<engine::format::Superblock>().map_or(0, |superblock| superblock.state().epoch);
        let ahead = ((pointer >> 32) as u32).wrapping_sub(epoch) as i32;
        if pointer != 0 && ahead > 0 {
            let offset = self.image.region.offset_of(&inode.nv_pointer);
            let sentence =
                format_args!("its pointer into memory has epoch {}, but the image is at {epoch}", pointer >> 32);
            self.report(FindingKind::PointerEpoch, on, Repair::Zero { offset, length: 8 }, sentence);
        }
        let device = inode.device.load();
        if device != 0 && !matches!(kind, FileKind::Character | FileKind::Block) {
            self.report(
                FindingKind::InodeDevice,
                on,
                Repair::RepairInode { number },
                format_args!("it is not a device but has device number {device:#x}"),
            );
        }
        if kind != FileKind::Directory && (inode.parent.load() != 0 || inode.log.load() != 0) {
            let offset = self.image.region.offset_of(&inode.parent);
            let sentence = format_args!("it is not a directory but has a parent or a log");
            self.report(FindingKind::DirectoryFields, on, Repair::Zero { offset, length: 16 }, sentence);
        }
        if number == ROOT_INODE && kind == FileKind::Directory && inode.parent.load() != ROOT_INODE {
            let repair = Repair::SetParent { number, parent: ROOT_INODE };
            let sentence = format_args!("the root's `..` is inode {}, not itself", inode.parent.load());
            self.report(FindingKind::DirectoryParent, on, repair, sentence);
        }
        let offset = self.image.region.offset_of(&inode.reserved);
        self.check_reserved(on, offset, 1, "the inode");
    }

    /// The two entries of one generation are one change apart: each change goes to the older one.
    fn check_sequences(&mut self, inode: &Inode, number: u64, generation: u32, on: FindingLocation) {
        let [even, odd] = &inode.properties;
        let (even, odd) = (sequence(even, 0, number, generation), sequence(odd, 1, number, generation));
        let (Some(even), Some(odd)) = (even, odd) else {
            // The first change of a generation goes to the second entry, which may therefore still
            // belong to an earlier generation. The first entry never does.
            if even != Some(0) {
                let sentence = format_args!("one of its property entries is torn; the other one is used");
                self.report(FindingKind::PropertyTorn, on, Repair::None, sentence);
            }
            return;
        };
        if !matches!(even.wrapping_sub(odd) as i32, 1 | -1) {
            let sentence = format_args!("its property entries have sequences {even} and {odd}, which are not adjacent");
            self.report(FindingKind::PropertySequence, on, Repair::RepairProperty { number }, sentence);
        }
    }

    fn check_property(&mut self, property: &Property, kind: FileKind, number: u64, on: FindingLocation) {
        let repair = Repair::RepairProperty { number };
        if property.kind() != Some(kind) {
            let sentence = format_args!("its mode is {:#o}, but its kind is {kind:?}", property.mode);
            return self.report(FindingKind::PropertyKind, on, repair, sentence);
        }
        let inline = property.flags & PROPERTY_INLINE != 0;
        let with_file_flags = property.flags & PROPERTY_FILE_FLAGS != 0 && self.image.has_file_flags();
        let possible = possible_flags(kind, with_file_flags);
        if property.flags & !possible != 0 {
            let sentence = format_args!("its property flags {:#x} are invalid for a {kind:?}", property.flags);
            return self.report(FindingKind::PropertyFlags, on, repair, sentence);
        }
        if !property.owners_fit() {
            let sentence = format_args!("its owner or group is {NO_ID}, which no file has");
            self.report(FindingKind::PropertyOwner, on, repair, sentence);
        }
        let size = property.size_bytes;
        if !property.size_fits(kind) {
            self.report(FindingKind::PropertySize, on, repair, format_args!("a {kind:?} cannot have {size} bytes"));
        }
        let has_body = matches!(kind, FileKind::Regular | FileKind::Symlink) && !inline;
        if !has_body && (property.root != 0 || property.blocks != 0) {
            let sentence =
                format_args!("a {kind:?} {}has a body of blocks", if inline { "with an inline body " } else { "" });
            self.report(FindingKind::PropertyRoot, on, repair, sentence);
        }
    }
}

/// The property flags that a file of this kind may have. `with_file_flags`: the image has the
/// feature for those that programs set.
pub(crate) fn possible_flags(kind: FileKind, with_file_flags: bool) -> u32 {
    match kind {
        FileKind::Symlink => PROPERTY_INLINE,
        FileKind::Regular | FileKind::Directory if with_file_flags => PROPERTY_ACCESS_LIST | PROPERTY_FILE_FLAGS,
        _ => PROPERTY_ACCESS_LIST,
    }
}

/// The sequence of a property entry, if it verifies.
pub(crate) fn sequence(entry: &PropertyEntry, parity: u32, number: u64, generation: u32) -> Option<u32> {
    let seal = entry.seal.load();
    let words: [u64; 7] = std::array::from_fn(|index| entry.words[index].load());
    let sequence = seal as u32;
    (sequence & 1 == parity && seal == Property::seal(&words, sequence, number, generation)).then_some(sequence)
}
