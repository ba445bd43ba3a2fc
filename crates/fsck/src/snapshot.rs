//! Checks of the free-space maps that a clean detach saved: they must be complete and match the
//! findings of the walk.

use crate::check::{Checker, FindingLocation, at};
use crate::finding::{FindingKind, Repair};
use crate::report::Phase;
use crate::usage::{BlockUse, CHUNK_BLOCKS};
use engine::format::{LIST_PAGE_ENTRIES, ListPage, Snapshot, Superblock};
use pmem::{BLOCK_BYTES, Memory, Pm, crc32c};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Blocks in a word of the block map.
const BLOCKS_PER_WORD: u64 = 32;
/// Words read at a time.
const CHUNK_WORDS: u64 = BLOCK_BYTES / 8;

/// Words of a saved map. Chunks of zeros, nearly all of a large image's, have no memory.
#[derive(Default)]
pub(crate) struct MapWords(Vec<Option<Box<[u64; CHUNK_WORDS as usize]>>>);

impl MapWords {
    pub fn get(&self, index: u64) -> u64 {
        match self.0.get((index / CHUNK_WORDS) as usize) {
            Some(Some(chunk)) => chunk[(index % CHUNK_WORDS) as usize],
            _ => 0,
        }
    }

    /// The code of a block, if these are the words of the block map.
    pub fn code(&self, block: u64) -> u64 {
        self.get(block / BLOCKS_PER_WORD) >> (block % BLOCKS_PER_WORD * 2) & 3
    }

    fn is_zero(&self, chunk: u64) -> bool {
        self.0.get(chunk as usize).is_none_or(Option::is_none)
    }

    fn ones(&self) -> u64 {
        self.0.iter().flatten().flat_map(|chunk| chunk.iter()).map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The content of the saved maps.
#[derive(Default)]
struct Maps {
    /// Two bits per block.
    blocks: MapWords,
    /// A bit per inode.
    inodes: MapWords,
    /// Free lines of dentry blocks.
    lines: HashMap<u64, u64>,
    /// Additional pointers of shared blocks.
    shares: HashMap<u64, u64>,
}

/// Codes of the block map for blocks in the list.
const CODE_LINES: u64 = 2;
const CODE_SHARED: u64 = 3;

impl Maps {
    fn code(&self, block: u64) -> u64 {
        self.blocks.code(block)
    }

    fn inode(&self, number: u64) -> bool {
        self.inodes.get(number / 64) >> (number % 64) & 1 == 1
    }
}

impl<M: Memory> Checker<'_, M> {
    /// Compares the snapshot with the result of the walk.
    pub fn check_snapshot(&mut self, superblock: &Superblock) {
        self.step(Phase::Snapshot, 0, 1);
        let figures = Snapshot::from_words(&std::array::from_fn(|index| superblock.snapshot[index].load()));
        let on = at(self.image.region.offset_of(&superblock.snapshot));
        let geometry = self.image.geometry;
        if figures == Snapshot::default() {
            let sentence = format_args!(
                "there are no free-space maps (a repair discarded them, or the list of shared blocks had no room): the next use rebuilds them"
            );
            return self.report(FindingKind::SnapshotDropped, on, Repair::None, sentence);
        }
        let mut crc = 0;
        let mut maps = Maps {
            blocks: self.read_words(geometry.block_map_block, geometry.blocks.div_ceil(BLOCKS_PER_WORD), &mut crc),
            inodes: self.read_words(geometry.inode_map_block, geometry.inodes_max() / 64, &mut crc),
            ..Maps::default()
        };
        if let Err(what) = self.read_list(&figures, &mut maps, &mut crc) {
            let sentence = format_args!("the list of free lines and shared blocks is broken: {what}");
            return self.report(FindingKind::SnapshotSlabs, on, Repair::DropSnapshot, sentence);
        }
        if figures.checksum(crc, superblock.state().epoch) != figures.checksum {
            let sentence = format_args!(
                "the image is marked as left cleanly, but its free-space maps do not match their checksum"
            );
            return self.report(FindingKind::SnapshotChecksum, on, Repair::DropSnapshot, sentence);
        }
        self.compare_figures(&figures, &maps, on);
        self.compare_blocks(&maps);
        self.compare_inodes(&maps);
        self.compare_lines(&figures, &maps);
        self.step(Phase::Snapshot, 1, 1);
    }

    pub(crate) fn read_words(&self, block: u64, words: u64, crc: &mut u32) -> MapWords {
        let mut chunk = [0u8; BLOCK_BYTES as usize];
        let mut all = Vec::with_capacity(words.div_ceil(CHUNK_WORDS) as usize);
        for done in (0..words).step_by(CHUNK_WORDS as usize) {
            let bytes = &mut chunk[..(words - done).min(CHUNK_WORDS) as usize * 8];
            // The geometry was checked, so the areas lie inside the image. A failed read leaves
            // zeros, which do not match the checksum.
            bytes.fill(0);
            let _ = self.image.region.read_bytes(block * BLOCK_BYTES + done * 8, bytes);
            *crc = crc32c(*crc, bytes);
            let mut kept = [0; CHUNK_WORDS as usize];
            let mut any = 0;
            for (word, bytes) in kept.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
                any |= *word;
            }
            all.push((any != 0).then(|| Box::new(kept)));
        }
        MapWords(all)
    }

    fn read_list(&mut self, figures: &Snapshot, maps: &mut Maps, crc: &mut u32) -> Result<(), &'static str> {
        let mut offset = figures.list_page;
        let mut bytes = [0u8; BLOCK_BYTES as usize];
        for _ in 0..figures.list_pages.min(self.image.geometry.blocks) {
            if !self.image.is_data_offset(offset) {
                return Err("it links to an offset where no page can be");
            }
            if self.usage.of(offset / BLOCK_BYTES) != BlockUse::Free {
                return Err("one of its pages has another use");
            }
            let page = self.image.region.get(Pm::<ListPage>::new(offset)).map_err(|_| "it links outside the image")?;
            self.image.region.read_bytes(offset, &mut bytes).map_err(|_| "it links outside the image")?;
            *crc = crc32c(*crc, &bytes);
            let count = page.count.load();
            if count > LIST_PAGE_ENTRIES as u64 {
                return Err("a page has an impossible number of entries");
            }
            for entry in &page.entries[..count as usize] {
                let block = entry.block.load();
                if block >= self.image.geometry.blocks {
                    return Err("it has a block outside the image");
                }
                let list = if maps.code(block) == CODE_SHARED { &mut maps.shares } else { &mut maps.lines };
                if list.insert(block, entry.word.load()).is_some() {
                    return Err("a block is listed twice");
                }
            }
            offset = page.next.load();
        }
        if offset == 0 { Ok(()) } else { Err("it is longer than its saved length") }
    }

    fn compare_figures(&mut self, figures: &Snapshot, maps: &Maps, on: FindingLocation) {
        let geometry = self.image.geometry;
        let blocks_free = chunks(geometry.data_block..geometry.data_end())
            .map(|(chunk, blocks)| match maps.blocks.is_zero(chunk) {
                true => blocks.end - blocks.start,
                false => blocks.filter(|block| maps.code(*block) == 0).count() as u64,
            })
            .sum::<u64>();
        let inodes = maps.inodes.ones();
        let pairs = [
            ("free blocks", figures.blocks_free, blocks_free),
            // Number zero is marked but belongs to no file.
            ("inodes in use", figures.inodes_used, inodes.saturating_sub(maps.inode(0) as u64)),
            ("segments", figures.segments, self.image.segments.used.len() as u64),
        ];
        for (what, said, found) in pairs {
            if said != found {
                let sentence = format_args!("the saved number of {what} is {said}, but there are {found}");
                self.report(FindingKind::SnapshotFigure, on, Repair::DropSnapshot, sentence);
            }
        }
        if figures.reserved != [0; 2] {
            let sentence = format_args!("reserved bytes of the snapshot's figures are not zero");
            self.report(FindingKind::ReservedNotZero, on, Repair::DropSnapshot, sentence);
        }
    }

    fn compare_blocks(&mut self, maps: &Maps) {
        let listed: HashSet<u64> =
            maps.lines.keys().chain(maps.shares.keys()).map(|block| block / CHUNK_BLOCKS).collect();
        for (chunk, blocks) in chunks(0..self.image.geometry.blocks) {
            // Free on both sides: nearly all of a large image.
            if !maps.blocks.is_zero(chunk) || !self.usage.is_unused(chunk) || listed.contains(&chunk) {
                self.compare_chunk(maps, blocks);
            }
        }
    }

    fn compare_chunk(&mut self, maps: &Maps, blocks: Range<u64>) {
        for block in blocks {
            let code = maps.code(block);
            let present = self.usage.of(block);
            let on = at(block * BLOCK_BYTES);
            let listed = maps.lines.contains_key(&block);
            let (said, found) = (maps.shares.get(&block).copied(), self.usage.shares(block));
            if (code == CODE_LINES) != listed || (code == CODE_SHARED) != said.is_some() {
                let sentence = format_args!("block {block} has code {code}, which contradicts the list");
                self.report(FindingKind::SnapshotSlabs, on, Repair::DropSnapshot, sentence);
            } else if said.unwrap_or(0) != found && present == BlockUse::Shared {
                let said = said.unwrap_or(0) + 1;
                let sentence = format_args!("block {block} has {} pointers, but {said} were saved", found + 1);
                self.report(FindingKind::SnapshotShares, on, Repair::DropSnapshot, sentence);
            } else if code == CODE_SHARED && present != BlockUse::Free && present != BlockUse::Shared {
                let sentence = format_args!("block {block} is marked as shared but used for {}", present.name());
                self.report(FindingKind::SnapshotSlabs, on, Repair::DropSnapshot, sentence);
            } else if code == 0 && present != BlockUse::Free {
                let sentence = format_args!("block {block} is marked free but used for {}", present.name());
                self.report(FindingKind::BlockNotMarked, on, Repair::DropSnapshot, sentence);
            } else if code != 0 && present == BlockUse::Free && !listed {
                let sentence = format_args!("block {block} is marked as used but unused");
                self.report(FindingKind::BlockLeaked, on, Repair::DropSnapshot, sentence);
            }
        }
    }

    fn compare_inodes(&mut self, maps: &Maps) {
        for index in 0..self.image.geometry.inodes_max() / 64 {
            // Numbers on neither side: nearly all of a large table.
            if maps.inodes.get(index) == 0 && self.image.segments.index_of(index * 64).is_none() {
                continue;
            }
            for number in index * 64..(index + 1) * 64 {
                self.compare_inode(maps, number);
            }
        }
    }

    fn compare_inode(&mut self, maps: &Maps, number: u64) {
        let state = self.state(number).map(|state| (state.kind, state.flags));
        let used = number == 0 || state.is_some_and(|(kind, flags)| kind != 0 || flags != 0);
        if maps.inode(number) == used {
            return;
        }
        let kind = if used { FindingKind::InodeNotMarked } else { FindingKind::InodeLeaked };
        let what = if used { "in use but marked free" } else { "free but marked as in use" };
        self.report(kind, FindingLocation::inode(number), Repair::DropSnapshot, format_args!("it is {what}"));
    }

    fn compare_lines(&mut self, figures: &Snapshot, maps: &Maps) {
        let mut blocks: Vec<u64> = maps.lines.keys().copied().chain(self.usage.dentry_blocks()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        // If the list had no room, free lines are deliberately unlisted until the next scan.
        let listed = figures.list_pages > 0 || figures.blocks_free > blocks.len() as u64;
        for block in blocks {
            let used = self.usage.lines(block);
            let free = maps.lines.get(&block).copied().unwrap_or(0);
            let on = at(block * BLOCK_BYTES);
            let both = used & free;
            let neither = !used & !free;
            if both != 0 {
                let sentence = format_args!("lines {both:#x} of block {block} hold names but are listed as free");
                self.report(FindingKind::LineNotMarked, on, Repair::DropSnapshot, sentence);
            }
            if neither != 0 && listed {
                let sentence =
                    format_args!("lines {neither:#x} of block {block} hold no names but are not listed as free");
                self.report(FindingKind::LineLeaked, on, Repair::DropSnapshot, sentence);
            }
        }
    }
}

/// The chunks of a range of blocks: their numbers, and the blocks of the range in them.
fn chunks(blocks: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    (blocks.start / CHUNK_BLOCKS..blocks.end.div_ceil(CHUNK_BLOCKS)).map(move |chunk| {
        let first = chunk * CHUNK_BLOCKS;
        (chunk, first.max(blocks.start)..(first + CHUNK_BLOCKS).min(blocks.end))
    })
}

const _: () = assert!(CHUNK_WORDS * BLOCKS_PER_WORD == CHUNK_BLOCKS);
