//! Segments of inodes.
//!
//! A segment is 256 inodes in 16 blocks. The segment table has a word for each: the position of its
//! contiguous blocks, or of a list of its blocks if no 16 contiguous blocks were free when it was
//! added. Without lists, an image whose free blocks are all scattered could get no inodes.
//!
//! Invariants
//! - Inodes and list are durable before the table leads to them, and never move.
//! - The blocks of a segment, and the block that holds its list, are distinct.

use super::{INODE_BYTES, INODES_PER_SEGMENT, SEGMENT_BLOCKS, assert_layout};
use pmem::{BLOCK_BYTES, Cell64, Layout, Memory, Pm, Region, crc32c};

/// Inodes in a block.
pub const INODES_PER_BLOCK: u64 = BLOCK_BYTES / INODE_BYTES;
/// Blocks of a segment, for arrays.
const BLOCKS: usize = SEGMENT_BLOCKS as usize;
/// In a word of the table, beside an offset: the offset is that of a list, not of inodes.
const LISTED: u64 = 1;
/// The low half of a list's seal.
const KIND: u64 = 1;

/// The list of a segment's scattered blocks: the beginning of a block, whose rest is undefined.
#[repr(C, align(64))]
pub struct SegmentList {
    /// CRC-32C (high half) of the words behind the reserved ones, and the segment; 1 (low half).
    pub seal: Cell64,
    /// The segment's place in the table.
    pub segment: Cell64,
    /// Zero.
    pub reserved: [Cell64; 6],
    /// Offsets of the blocks, in the order of their inodes.
    pub blocks: [Cell64; BLOCKS],
}
assert_layout!(SegmentList, 192, seal @ 0, segment @ 8, reserved @ 16, blocks @ 64);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for SegmentList {}

/// The position of a segment's inodes as a word of the table gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentEntry {
    /// Contiguous from this offset on.
    Contiguous(u64),
    /// In the blocks of the list at this offset.
    List(u64),
}

impl SegmentEntry {
    /// Decodes a word of the table; none for zero and for impossible words.
    #[inline]
    pub fn from_word(word: u64) -> Option<SegmentEntry> {
        match word % BLOCK_BYTES {
            _ if word < BLOCK_BYTES => None,
            0 => Some(SegmentEntry::Contiguous(word)),
            LISTED => Some(SegmentEntry::List(word - LISTED)),
            _ => None,
        }
    }

    /// The word.
    pub fn word(self) -> u64 {
        match self {
            SegmentEntry::Contiguous(offset) => offset,
            SegmentEntry::List(offset) => offset | LISTED,
        }
    }
}

/// Why a segment is not where the table places it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentFault {
    /// The offset is impossible.
    Offset,
    /// The list does not verify, or names blocks that cannot be those of a segment.
    List,
}

/// The position of the inodes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offsets of its blocks.
    blocks: [u64; BLOCKS],
    /// Offset of the list, or zero.
    list: u64,
}

impl Segment {
    /// A segment with contiguous blocks.
    pub fn contiguous(first: u64) -> Segment {
        Segment { blocks: core::array::from_fn(|index| first + index as u64 * BLOCK_BYTES), list: 0 }
    }

    /// A segment with a list.
    pub fn listed(list: u64, blocks: [u64; BLOCKS]) -> Segment {
        Segment { blocks, list }
    }

    /// The segment at place `segment` of the table, where the word is `word`. `is_data`: whether a
    /// block lies in the data area.
    pub fn read<M: Memory>(
        region: &Region<M>,
        segment: u64,
        word: u64,
        is_data: impl Fn(u64) -> bool,
    ) -> Result<Segment, SegmentFault> {
        let is_block = |offset: &u64| offset.is_multiple_of(BLOCK_BYTES) && is_data(offset / BLOCK_BYTES);
        match SegmentEntry::from_word(word).ok_or(SegmentFault::Offset)? {
            SegmentEntry::Contiguous(first) => {
                let last = first.checked_add((SEGMENT_BLOCKS - 1) * BLOCK_BYTES).ok_or(SegmentFault::Offset)?;
                let fits = is_block(&first) && is_block(&last);
                fits.then(|| Segment::contiguous(first)).ok_or(SegmentFault::Offset)
            }
            SegmentEntry::List(at) if is_block(&at) => {
                let list = region.get(Pm::<SegmentList>::new(at)).map_err(|_| SegmentFault::Offset)?;
                let found = Segment::listed(at, core::array::from_fn(|index| list.blocks[index].load()));
                let whole = list.seal.load() == found.seal(segment)
                    && list.segment.load() == segment
                    && found.blocks.iter().all(is_block)
                    && found.is_distinct();
                whole.then_some(found).ok_or(SegmentFault::List)
            }
            SegmentEntry::List(_) => Err(SegmentFault::Offset),
        }
    }

    /// Whether all blocks are different.
    fn is_distinct(&self) -> bool {
        let mut blocks = [self.list; BLOCKS + 1];
        blocks[1..].copy_from_slice(&self.blocks);
        blocks.sort_unstable();
        blocks.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// The table entry that leads to the segment.
    pub fn entry(&self) -> SegmentEntry {
        if self.list == 0 { SegmentEntry::Contiguous(self.blocks[0]) } else { SegmentEntry::List(self.list) }
    }

    /// The offset of the inode at an index in the segment.
    pub fn inode_offset(&self, index: u64) -> u64 {
        self.blocks[(index / INODES_PER_BLOCK) as usize % BLOCKS] + index % INODES_PER_BLOCK * INODE_BYTES
    }

    /// The numbers of the blocks that hold inodes.
    pub fn inode_blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.into_iter().map(|offset| offset / BLOCK_BYTES)
    }

    /// The numbers of all its blocks, including that of the list.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.inode_blocks().chain((self.list != 0).then_some(self.list / BLOCK_BYTES))
    }

    fn seal(&self, segment: u64) -> u64 {
        let mut crc = crc32c(0, &segment.to_le_bytes());
        for offset in self.blocks {
            crc = crc32c(crc, &offset.to_le_bytes());
        }
        (crc as u64) << 32 | KIND
    }

    /// The content of the list, for the segment at a place in the table.
    pub fn list_bytes(&self, segment: u64) -> [u8; size_of::<SegmentList>()] {
        let mut bytes = [0; size_of::<SegmentList>()];
        bytes[..8].copy_from_slice(&self.seal(segment).to_le_bytes());
        bytes[8..16].copy_from_slice(&segment.to_le_bytes());
        for (located, offset) in bytes[64..].chunks_exact_mut(8).zip(self.blocks) {
            located.copy_from_slice(&offset.to_le_bytes());
        }
        bytes
    }
}

/// The offset of an inode in the segment that a word of the table leads to: `index` is below
/// [`INODES_PER_SEGMENT`]. Verifies only that a block can be there.
#[cold]
pub(crate) fn listed_inode_offset<M: Memory>(region: &Region<M>, word: u64, index: u64) -> Option<u64> {
    let Some(SegmentEntry::List(at)) = SegmentEntry::from_word(word) else { return None };
    let list = region.get(Pm::<SegmentList>::new(at)).ok()?;
    let block = list.blocks[(index / INODES_PER_BLOCK) as usize % BLOCKS].load();
    let possible = block != 0 && block.is_multiple_of(BLOCK_BYTES);
    possible.then_some(block + index % INODES_PER_BLOCK * INODE_BYTES)
}

const _: () = assert!(INODES_PER_SEGMENT == INODES_PER_BLOCK * SEGMENT_BLOCKS);
