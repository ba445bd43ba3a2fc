//! The layout of an image: maps each line to its kind of structure, so that defects can be injected
//! by kind.

use engine::format::{
    INODE_BYTES, LogPage, LogPageKind, SEGMENT_BLOCKS, SegmentEntry, SegmentList, dentry_lines, slot_address,
};
use std::collections::HashSet;
use std::mem::offset_of;

const BLOCK_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
const LEVELS_MAX: u64 = 4;

/// A kind of line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    /// Superblock, maps, segment table.
    Fixed,
    /// Journal slots.
    Journal,
    /// First lines of inodes.
    Identity,
    /// Property entries.
    Property,
    /// Last lines of inodes: access time and short targets.
    Inline,
    /// Lists of the blocks of segments.
    SegmentList,
    /// First lines of log pages.
    PageHeader,
    /// Log slots.
    Slot,
    /// Dentries.
    Dentry,
    /// Block map nodes.
    Node,
    /// Content, and extended attributes.
    Data,
}

/// The layout of an image, as it was before a workload and as it is after it.
pub struct Map {
    journal: std::ops::Range<u64>,
    data: u64,
    segments: HashSet<u64>,
    lists: HashSet<u64>,
    pages: HashSet<u64>,
    dentries: HashSet<u64>,
    nodes: HashSet<u64>,
    /// Lines of dentries that the first image has.
    old: HashSet<u64>,
}

fn word(image: &[u8], offset: u64) -> u64 {
    let bytes = image.get(offset as usize..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Map {
    /// The layout of images of one file system, oldest first.
    pub fn new(images: &[&[u8]]) -> Map {
        let geometry: [u64; 6] = std::array::from_fn(|index| word(images[0], 136 + index as u64 * 8) * BLOCK_BYTES);
        let mut map = Map {
            journal: geometry[1]..geometry[2],
            data: word(images[0], 184) * BLOCK_BYTES,
            segments: HashSet::new(),
            lists: HashSet::new(),
            pages: HashSet::new(),
            dentries: HashSet::new(),
            nodes: HashSet::new(),
            old: HashSet::new(),
        };
        for image in images {
            map.find_inodes(image, geometry[2]);
            map.find_names(image);
            if map.old.is_empty() {
                map.old.clone_from(&map.dentries);
            }
        }
        map
    }

    fn find_inodes(&mut self, image: &[u8], table: u64) {
        for segment in (0..8).filter_map(|index| SegmentEntry::from_word(word(image, table + index * 8))) {
            let blocks: [u64; SEGMENT_BLOCKS as usize] = match segment {
                SegmentEntry::Contiguous(first) => std::array::from_fn(|index| first + index as u64 * BLOCK_BYTES),
                SegmentEntry::List(list) => {
                    self.lists.insert(list / BLOCK_BYTES);
                    std::array::from_fn(|index| {
                        word(image, list + (offset_of!(SegmentList, blocks) + index * 8) as u64)
                    })
                }
            };
            self.segments.extend(blocks.map(|block| block / BLOCK_BYTES));
            for inode in blocks.iter().flat_map(|block| (*block..block + BLOCK_BYTES).step_by(INODE_BYTES as usize)) {
                for root in [48, 120, 184].map(|at| word(image, inode + at)) {
                    self.find_nodes(image, root & !(BLOCK_BYTES - 1), root & 0xf);
                }
            }
        }
    }

    fn find_nodes(&mut self, image: &[u8], node: u64, height: u64) {
        if node == 0 || height == 0 || height > LEVELS_MAX || node + BLOCK_BYTES > image.len() as u64 {
            return;
        }
        if self.nodes.insert(node / BLOCK_BYTES) && height > 1 {
            (0..512).for_each(|index| self.find_nodes(image, word(image, node + index * 8), height - 1));
        }
    }

    fn find_names(&mut self, image: &[u8]) {
        let kinds = [LogPageKind::Append, LogPageKind::Compacted];
        for page in (self.data..image.len() as u64).step_by(BLOCK_BYTES as usize) {
            let seal = |kind| LogPage::seal_word(word(image, page + 8), word(image, page + 16), kind);
            if self.segments.contains(&(page / BLOCK_BYTES)) || !kinds.map(seal).contains(&word(image, page)) {
                continue;
            }
            self.pages.insert(page / BLOCK_BYTES);
            for slot in (page + LINE_BYTES..page + BLOCK_BYTES).step_by(8) {
                let dentry = slot_address(word(image, slot));
                let length = word(image, dentry + 8) as u8;
                if dentry != 0 {
                    let lines = 0..dentry_lines(length as usize);
                    self.dentries.extend(lines.map(|line| dentry / LINE_BYTES + line));
                }
            }
        }
    }

    /// The kind of the line at an offset.
    pub fn kind(&self, offset: u64) -> LineKind {
        let block = offset / BLOCK_BYTES;
        match () {
            () if self.journal.contains(&offset) => LineKind::Journal,
            () if offset < self.data => LineKind::Fixed,
            () if self.segments.contains(&block) => match offset % INODE_BYTES / LINE_BYTES {
                0 => LineKind::Identity,
                3 => LineKind::Inline,
                _ => LineKind::Property,
            },
            () if self.lists.contains(&block) => LineKind::SegmentList,
            () if self.pages.contains(&block) && offset % BLOCK_BYTES < LINE_BYTES => LineKind::PageHeader,
            () if self.pages.contains(&block) => LineKind::Slot,
            () if self.dentries.contains(&(offset / LINE_BYTES)) => LineKind::Dentry,
            () if self.nodes.contains(&block) => LineKind::Node,
            () => LineKind::Data,
        }
    }

    /// Whether the structure existed before: a dentry of the first image, or anything else.
    pub fn is_old(&self, offset: u64) -> bool {
        self.kind(offset) != LineKind::Dentry || self.old.contains(&(offset / LINE_BYTES))
    }
}
