//! Read-only access to the structures of an image. Invariant: every offset is checked before use.

use engine::format::{
    DENTRY_HEADER_BYTES, Dentry, DentryFacts, Geometry, INODES_PER_SEGMENT, Inode, NAME_BYTES_MAX, Segment,
    SegmentFault, Superblock, dentry_lines,
};
use pmem::{BLOCK_BYTES, Cell64, LINE_BYTES, Memory, Pm, Region};
use std::fmt::Write;

/// An image with a valid superblock or copy.
pub(crate) struct Image<'r, M: Memory> {
    pub region: &'r Region<M>,
    pub geometry: Geometry,
    pub segments: Segments,
}

impl<M: Memory> Image<'_, M> {
    /// Whether files may have flags, by the superblock, or by its copy if it is damaged.
    pub fn has_file_flags(&self) -> bool {
        let superblock = self.region.first::<Superblock>().ok().filter(|superblock| superblock.description_verifies());
        let description = superblock.or_else(|| whole_copy(self.region, self.geometry.copy_block()));
        description.is_some_and(Superblock::has_file_flags)
    }
}

/// The usable segments of the table.
#[derive(Default)]
pub(crate) struct Segments {
    /// For each entry of the table up to the last used one: its place in `used` plus one, or zero.
    inodes: Vec<u32>,
    /// First inode number and location of each segment, by ascending number.
    pub used: Vec<(u64, Segment)>,
}

impl Segments {
    /// Adds a segment; segments are added in ascending order.
    pub fn add(&mut self, segment: u64, found: Segment) {
        self.used.push((segment * INODES_PER_SEGMENT, found));
        self.inodes.resize(segment as usize, 0);
        self.inodes.push(self.used.len() as u32);
    }

    /// The index of an inode among all inodes of usable segments, without gaps.
    pub fn index_of(&self, number: u64) -> Option<usize> {
        let index = *self.inodes.get((number / INODES_PER_SEGMENT) as usize)?;
        let segment = index.checked_sub(1)?;
        Some((segment as u64 * INODES_PER_SEGMENT + number % INODES_PER_SEGMENT) as usize)
    }

    /// The inode number at an index.
    pub fn number(&self, index: usize) -> u64 {
        self.used[index / INODES_PER_SEGMENT as usize].0 + index as u64 % INODES_PER_SEGMENT
    }

    /// The number of indices.
    pub fn inodes(&self) -> usize {
        self.used.len() * INODES_PER_SEGMENT as usize
    }
}

impl<'r, M: Memory> Image<'r, M> {
    /// Whether a block is in the data area.
    pub fn is_data(&self, block: u64) -> bool {
        block >= self.geometry.data_block && block < self.geometry.data_end()
    }

    /// Whether an offset is that of a block in the data area.
    pub fn is_data_offset(&self, offset: u64) -> bool {
        offset.is_multiple_of(BLOCK_BYTES) && self.is_data(offset / BLOCK_BYTES)
    }

    /// The word at an offset of a fixed area.
    pub fn word(&self, offset: u64) -> u64 {
        self.region.get(Pm::<Cell64>::new(offset)).map_or(0, Cell64::load)
    }

    /// The offset of an entry of the segment table.
    pub fn segment_entry(&self, segment: u64) -> u64 {
        self.geometry.segment_table_block * BLOCK_BYTES + segment * 8
    }

    /// The location of a segment whose entry of the table is `word`.
    pub fn segment(&self, segment: u64, word: u64) -> Result<Segment, SegmentFault> {
        Segment::read(self.region, segment, word, |block| self.is_data(block))
    }

    /// The inode at an index, and its offset.
    pub fn inode_at(&self, index: usize) -> (&'r Inode, u64) {
        let (_, segment) = &self.segments.used[index / INODES_PER_SEGMENT as usize];
        let offset = segment.inode_offset(index as u64 % INODES_PER_SEGMENT);
        (self.region.get(Pm::<Inode>::new(offset)).expect("a usable segment is inside the region"), offset)
    }

    /// The inode of a number, and its offset.
    pub fn inode(&self, number: u64) -> Option<(&'r Inode, u64)> {
        self.segments.index_of(number).map(|index| self.inode_at(index))
    }

    /// The dentry at an offset, if one can be there: at a line of a block in the data area.
    pub fn dentry(&self, offset: u64) -> Option<&'r Dentry> {
        let possible = offset.is_multiple_of(LINE_BYTES) && self.is_data(offset / BLOCK_BYTES);
        if possible { self.region.get(Pm::<Dentry>::new(offset)).ok() } else { None }
    }

    /// The facts of the dentry at an offset, if it verifies.
    pub fn verified(&self, offset: u64, name: &mut Name) -> Option<(&'r Dentry, DentryFacts)> {
        let dentry = self.dentry(offset)?;
        let facts = dentry.facts()?;
        let lines = dentry_lines(facts.name_length as usize);
        if offset % BLOCK_BYTES + lines * LINE_BYTES > BLOCK_BYTES {
            return None;
        }
        name.length = facts.name_length;
        let bytes = &mut name.bytes[..facts.name_length as usize];
        self.region.read_bytes(offset + DENTRY_HEADER_BYTES, bytes).ok()?;
        (dentry.seal.load() == facts.seal(bytes)).then_some((dentry, facts))
    }
}

/// A name read from the image.
#[derive(Clone)]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    length: u8,
}

impl Default for Name {
    fn default() -> Name {
        Name { bytes: [0; NAME_BYTES_MAX], length: 0 }
    }
}

impl Name {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }

    /// For display: non-UTF-8 bytes and control characters are escaped.
    pub fn shown(&self) -> String {
        shown(self.bytes())
    }
}

/// Bytes for display, on one line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The copy of the superblock in a block, if it verifies.
pub(crate) fn whole_copy<M: Memory>(region: &Region<M>, block: u64) -> Option<&Superblock> {
    let copy = region.get(Pm::<Superblock>::new(block.checked_mul(BLOCK_BYTES)?)).ok()?;
    let whole = copy.magic.load() == engine::format::MAGIC && copy.description_verifies();
    whole.then_some(copy)
}

/// The geometry in a superblock, if it is valid.
pub(crate) fn geometry_of(superblock: &Superblock) -> Option<Geometry> {
    let words: [u64; 8] = std::array::from_fn(|index| superblock.geometry[index].load());
    Geometry::from_words(&words, superblock.length.load())
}
