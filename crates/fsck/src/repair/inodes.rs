//! Repair of segments, identities and attributes.

use super::Done;
use super::edit::Repairer;
use crate::image::Name;
use crate::inodes::possible_flags;
use crate::usage::BlockUse;
use engine::format::{
    FILE_BYTES_MAX, FIRST_GENERATION, FileKind, INLINE_BYTES_MAX, INODE_BYTES, INODES_PER_BLOCK, INODES_PER_SEGMENT,
    Inode, LogPage, NO_ID, PROPERTY_ACCESS_LIST, PROPERTY_INLINE, Property, ROOT_INODE, SEGMENT_BLOCKS, Segment,
    TARGET_BYTES_MAX,
};
use pmem::{BLOCK_BYTES, Memory, Pm};
use std::mem::offset_of;

const DIRECTORY_BITS: u32 = 0o755;
/// For a file whose permissions are lost.
const PRIVATE_BITS: u32 = 0o600;
/// Owner and group of a file whose own cannot be.
const NOBODY: u32 = 65_534;

impl<M: Memory> Repairer<'_, M> {
    /// Finds the inodes of a segment by their own numbers, or gives the segment new ones.
    pub fn find_segment(&mut self, segment: u64) -> Done {
        let entry = self.check.image.segment_entry(segment);
        let present = self.blocks_of_segment(segment);
        if present.iter().any(Option::is_some) {
            let found = match self.contiguous_start(&present) {
                Some(first) => {
                    let found = Segment::contiguous(first * BLOCK_BYTES);
                    found.blocks().for_each(|block| self.claim(block));
                    found
                }
                None => {
                    present.iter().flatten().for_each(|block| self.claim(*block));
                    self.list_segment(segment, &present)?
                }
            };
            self.set(entry, found.entry().word());
            return Ok(());
        }
        let follows = (segment + 1..self.check.image.geometry.segments_max)
            .any(|later| self.get(self.check.image.segment_entry(later)) != 0);
        // The last entry of the table may be cleared; before other entries there must not be a gap.
        let word = if follows { self.take_segment(segment)?.entry().word() } else { 0 };
        self.set(entry, word);
        Ok(())
    }

    fn claim(&mut self, block: u64) {
        let _ = self.check.usage.claim(block, BlockUse::Segment);
    }

    /// The blocks of a segment, in the order of their inodes. A block belongs to it if one of its
    /// inodes says so and the block has no other use.
    fn blocks_of_segment(&self, segment: u64) -> [Option<u64>; SEGMENT_BLOCKS as usize] {
        let mut present = [None; SEGMENT_BLOCKS as usize];
        for block in self.check.image.geometry.data_block..self.check.image.geometry.data_end() {
            if self.check.usage.of(block) != BlockUse::Free {
                continue;
            }
            for index in 0..INODES_PER_BLOCK {
                let offset = block * BLOCK_BYTES + index * INODE_BYTES;
                let Ok(inode) = self.region().get(Pm::<Inode>::new(offset)) else { continue };
                let number = inode.number.load();
                let belongs = number / INODES_PER_SEGMENT == segment && number % INODES_PER_BLOCK == index;
                let lives = || inode.generation(number).is_some_and(|life| inode.property(number, life).is_some());
                if belongs && lives() {
                    present[(number % INODES_PER_SEGMENT / INODES_PER_BLOCK) as usize] = Some(block);
                    break;
                }
            }
        }
        present
    }

    /// The first block of a segment, if its present blocks are consecutive and the missing ones
    /// would lie in free blocks.
    fn contiguous_start(&self, present: &[Option<u64>]) -> Option<u64> {
        let (index, block) = present.iter().enumerate().find_map(|(index, block)| Some((index as u64, (*block)?)))?;
        let first = block.checked_sub(index)?;
        let fits = |(block, present): (u64, &Option<u64>)| {
            self.check.image.is_data(block)
                && self.check.usage.of(block) == BlockUse::Free
                && present.is_none_or(|at| at == block)
        };
        (first..).zip(present).all(fits).then_some(first)
    }

    /// Frees an inode with all its content.
    pub fn free_inode(&mut self, number: u64) -> Done {
        let (inode, offset) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        self.set(offset, inode.next_generation() as u64);
        for word in (offset_of!(Inode, parent)..offset_of!(Inode, properties)).step_by(8) {
            self.set(offset + word as u64, 0);
        }
        for word in (offset_of!(Inode, accessed_ns)..INODE_BYTES as usize).step_by(8) {
            self.set(offset + word as u64, 0);
        }
        self.mark_inode(number, false);
        Ok(())
    }

    /// Sets an inode's bit in the inode map, which distinguishes a file that lost its name from a
    /// removed one.
    pub fn mark_inode(&self, number: u64, used: bool) {
        let offset = self.check.image.geometry.inode_map_block * BLOCK_BYTES + number / 64 * 8;
        let bit = 1 << (number % 64);
        let word = self.get(offset);
        self.set(offset, if used { word | bit } else { word & !bit });
    }

    /// Rebuilds identity or attributes from the other.
    pub fn repair_inode(&mut self, number: u64) -> Done {
        let (inode, _) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let generation = inode.birth.load() as u32;
        let said = FileKind::from_bits(inode.kind.load());
        match inode.property(number, generation) {
            Some((property, sequence)) => {
                let kind = property.kind().or(said).unwrap_or(FileKind::Regular);
                let fresh = generation.max(FIRST_GENERATION);
                if fresh != generation {
                    // An entry is valid for one generation only; this makes it valid for the new
                    // identity.
                    self.write_property(number, fresh, &property, sequence.wrapping_add(1))?;
                }
                self.write_identity(number, kind, fresh)
            }
            None if number == ROOT_INODE => {
                self.write_first_property(number, FileKind::Directory, generation.max(FIRST_GENERATION))?;
                self.write_root()
            }
            None => {
                let kind = said.ok_or("neither its identity nor its attributes can be read")?;
                self.write_first_property(number, kind, generation)
            }
        }
    }

    /// Writes the identity of an inode; the word with the seal comes last.
    fn write_identity(&self, number: u64, kind: FileKind, generation: u32) -> Done {
        let (inode, offset) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let is_device = matches!(kind, FileKind::Character | FileKind::Block);
        let device = if is_device { inode.device.load() } else { 0 };
        self.set(offset + offset_of!(Inode, number) as u64, number);
        self.set(offset + offset_of!(Inode, kind) as u64, kind as u64 | (device as u64) << 32);
        self.set(offset, Inode::birth_word(number, kind as u32, device, inode.born_ns.load(), generation));
        Ok(())
    }

    /// Writes the root directory, with its log if that is intact.
    fn write_root(&mut self) -> Done {
        let (inode, offset) =
            self.check.image.inode(ROOT_INODE).ok_or("the image has no room for the root directory")?;
        let log = self.region().get(Pm::<LogPage>::new(inode.log.load()));
        if !log.is_ok_and(|page| page.belongs_to(ROOT_INODE)) {
            self.set(offset + offset_of!(Inode, log) as u64, 0);
        }
        self.set(offset + offset_of!(Inode, parent) as u64, ROOT_INODE);
        let generation = (inode.birth.load() as u32).max(FIRST_GENERATION);
        self.write_identity(ROOT_INODE, FileKind::Directory, generation)
    }

    /// Writes attributes for an inode that lost both entries. The owner is the root's, without
    /// access for others. The body is that of one of the lost entries, if it is valid.
    fn write_first_property(&mut self, number: u64, kind: FileKind, generation: u32) -> Done {
        let (inode, _) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let owner = self.property(ROOT_INODE).map(|(root, _)| (root.uid, root.gid)).unwrap_or_default();
        let bits = match kind {
            FileKind::Directory if number == ROOT_INODE => DIRECTORY_BITS,
            FileKind::Directory => PRIVATE_BITS | 0o100,
            _ => PRIVATE_BITS,
        };
        let mut property = Property {
            mode: kind.mode_bits() | bits,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: owner.0,
            gid: owner.1,
            modified_ns: self.now_ns,
            changed_ns: self.now_ns,
            ..Property::default()
        };
        if inode.xattrs.load() != 0 && kind != FileKind::Symlink {
            property.flags = PROPERTY_ACCESS_LIST;
        }
        let target = inline_length(inode);
        if kind == FileKind::Symlink && target > 0 {
            (property.flags, property.size_bytes) = (PROPERTY_INLINE, target);
        } else if matches!(kind, FileKind::Regular | FileKind::Symlink) {
            let lost = inode
                .properties
                .iter()
                .map(|entry| Property::from_words(&std::array::from_fn(|index| entry.words[index].load())));
            for entry in lost.collect::<Vec<_>>() {
                if let Some((blocks, end)) = self.unclaimed_body(entry.root) {
                    let fits = entry.size_bytes.div_ceil(BLOCK_BYTES) >= end && entry.size_bytes <= FILE_BYTES_MAX;
                    property.size_bytes = if fits { entry.size_bytes } else { end * BLOCK_BYTES };
                    (property.root, property.blocks) = (entry.root, blocks);
                    break;
                }
            }
            if kind == FileKind::Symlink {
                property.size_bytes = property.size_bytes.clamp(1, TARGET_BYTES_MAX);
            }
        }
        self.write_property(number, generation, &property, 0)
    }

    /// Corrects attributes to fit the file kind, of which there are three witnesses: identity,
    /// attributes, and the name.
    pub fn repair_property(&mut self, number: u64) -> Done {
        let (property, _) = self.property(number)?;
        let (inode, _) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let generation = inode.generation(number).ok_or("its identity is damaged")?;
        let mut kind = FileKind::from_bits(inode.kind.load()).ok_or("its kind is damaged")?;
        let named = self.check.state(number).map_or(0, |state| state.dentry);
        let named = self.check.image.verified(named, &mut Name::default()).map(|(_, facts)| facts.kind);
        if let Some(said) = property.kind()
            && said != kind
            && named == Some(said)
        {
            self.write_identity(number, said, generation)?;
            kind = said;
        }
        let target = inline_length(inode);
        let flags = possible_flags(kind, self.check.image.has_file_flags());
        self.change_property(number, |property| fit(property, kind, flags, target))
    }
}

/// Bytes of the inline area before the first zero.
fn inline_length(inode: &Inode) -> u64 {
    let bytes = inode.inline.iter().flat_map(|word| word.load().to_le_bytes());
    bytes.take_while(|byte| *byte != 0).count().min(INLINE_BYTES_MAX) as u64
}

/// Corrects size, flags and body for a file of this kind, which may have `flags`.
fn fit(property: &mut Property, kind: FileKind, flags: u32, inline: u64) {
    property.mode = property.mode & 0o7777 | kind.mode_bits();
    let is_inline = kind == FileKind::Symlink && property.flags & PROPERTY_INLINE != 0;
    property.flags &= flags;
    let size = property.size_bytes;
    property.size_bytes = match kind {
        FileKind::Regular => size.min(FILE_BYTES_MAX),
        FileKind::Symlink if is_inline && (1..=INLINE_BYTES_MAX as u64).contains(&size) => size,
        FileKind::Symlink if is_inline => inline.max(1),
        FileKind::Symlink => size.clamp(1, TARGET_BYTES_MAX),
        _ => 0,
    };
    if !property.owners_fit() {
        // A program must not run with the rights of an owner that the file never had.
        property.mode &= !0o6000;
        property.uid = if property.uid == NO_ID { NOBODY } else { property.uid };
        property.gid = if property.gid == NO_ID { NOBODY } else { property.gid };
    }
    if is_inline || !matches!(kind, FileKind::Regular | FileKind::Symlink) {
        (property.root, property.blocks) = (0, 0);
    }
}
