//! The snapshot that a clean detach leaves so that the next attach need not scan: block map, inode
//! map, slabs with free lines, and shared blocks.
//!
//! - Block map: two bits per block. 0: free; 1: in use; 2: a slab whose free lines are listed; 3: a
//!   block whose further pointers are counted in the list.
//! - Inode map: a bit per number, set: in use.
//! - The list: a chain of [`ListPage`]s in blocks that the map calls free. The next attach for
//!   writing reads them, after which they are free. If no blocks are left for the list, the slabs
//!   count as full: their free lines are lost until the next scan. With shared blocks there is then
//!   no snapshot.
//!
//! Invariants
//! - All of it is durable before the clean flag is. None of it is trusted unless the checksum
//!   matches and every number in it fits. Otherwise the image is scanned, as one without half-made
//!   structures.

use super::lines::SLAB_LISTED;
use crate::dram::GROUP_BLOCKS;
use crate::error::Result;
use crate::format::{
    Geometry, INODES_PER_SEGMENT, LIST_PAGE_ENTRIES, ListPage, SEGMENT_BLOCKS, Segment, SegmentEntry, Snapshot, State,
    Superblock,
};
use crate::fs::Fs;
use crate::regions::Regions;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Commit64, Flushed, Memory, Pm, Region, crc32c};

/// Words that are written or read at a time.
const CHUNK_WORDS: u64 = BLOCK_BYTES / 8;
/// Blocks in a word of the map.
const BLOCKS_PER_WORD: u64 = 32;

/// Moves 32 bits to the even positions of 64.
fn spread(bits: u32) -> u64 {
    let mut word = bits as u64;
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        word = (word | word << shift) & mask;
    }
    word
}

/// The inverse of [`spread`], of the even positions.
fn gather(word: u64) -> u32 {
    let mut bits = word & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

fn block_map_words(geometry: &Geometry) -> u64 {
    geometry.blocks.div_ceil(BLOCKS_PER_WORD)
}

fn inode_map_words(geometry: &Geometry) -> u64 {
    geometry.segments_max * INODES_PER_SEGMENT / 64
}

/// Continues the checksum over `words` words, and passes them in chunks to `each`: the offset of a
/// chunk in the map, and its bytes.
fn each_chunk(
    words: u64,
    crc: &mut u32,
    mut word: impl FnMut(u64) -> Result<u64>,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut chunk = [0u8; BLOCK_BYTES as usize];
    let mut done = 0;
    while done < words {
        let count = (words - done).min(CHUNK_WORDS);
        let bytes = &mut chunk[..count as usize * 8];
        for (index, cell) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *cell = word(done + index as u64)?.to_le_bytes();
        }
        *crc = crc32c(*crc, bytes);
        each(done * 8, bytes)?;
        done += count;
    }
    Ok(())
}

/// Writes `words` words from `block` on and continues the checksum over them.
fn write_words<M: Memory>(
    pm: &Region<M>,
    block: u64,
    words: u64,
    crc: &mut u32,
    word: impl FnMut(u64) -> Result<u64>,
) -> Result<Flushed> {
    let mut flushed = Flushed::nothing();
    each_chunk(words, crc, word, |at, bytes| {
        let before = core::mem::replace(&mut flushed, Flushed::nothing());
        flushed = before.and(pm.stream_bytes(block * BLOCK_BYTES + at, bytes)?);
        Ok(())
    })?;
    Ok(flushed)
}

/// Reads `words` words from `block` on, continues the checksum over them, and passes them to
/// `each`.
fn read_words<M: Memory>(
    pm: &Region<M>,
    block: u64,
    words: u64,
    crc: &mut u32,
    mut each: impl FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let mut chunk = [0u8; BLOCK_BYTES as usize];
    let mut done = 0;
    while done < words {
        let count = (words - done).min(CHUNK_WORDS);
        let bytes = &mut chunk[..count as usize * 8];
        pm.read_bytes(block * BLOCK_BYTES + done * 8, bytes)?;
        *crc = crc32c(*crc, bytes);
        for (index, cell) in bytes.as_chunks::<8>().0.iter().enumerate() {
            each(done + index as u64, u64::from_le_bytes(*cell))?;
        }
        done += count;
    }
    Ok(())
}

/// The figures in the superblock.
pub(crate) fn figures_of(superblock: &Superblock) -> Snapshot {
    Snapshot::from_words(&core::array::from_fn(|index| superblock.snapshot[index].load()))
}

fn set_figures<M: Memory>(pm: &Region<M>, superblock: &Superblock, snapshot: &Snapshot) -> Flushed {
    for (cell, word) in superblock.snapshot.iter().zip(snapshot.words()) {
        let _ = pm.set64(cell, word);
    }
    pm.flush_all(&superblock.snapshot[0]).and(pm.flush_all(&superblock.snapshot[7]))
}

/// The maps of an empty image: the fixed areas, the first segment and the root are in use.
struct FirstMaps<'g>(&'g Geometry);

impl FirstMaps<'_> {
    /// The end of what is in use, but for the copy of the superblock.
    fn behind(&self) -> u64 {
        self.0.data_block + SEGMENT_BLOCKS
    }

    fn block_word(&self, index: u64) -> u64 {
        let first = index * BLOCKS_PER_WORD;
        let below = self.behind().saturating_sub(first).min(BLOCKS_PER_WORD);
        let copy = self.0.copy_block().checked_sub(first).filter(|bit| *bit < BLOCKS_PER_WORD);
        let used = (1u64 << below) - 1;
        spread((used | copy.map_or(0, |bit| 1 << bit)) as u32)
    }

    fn inode_word(index: u64) -> u64 {
        // Number 0, which is never used, and the root.
        if index == 0 { 0b11 } else { 0 }
    }

    /// The words of the block map that are not zero.
    fn used_block_words(&self) -> impl Iterator<Item = u64> + use<> {
        let copy = self.0.copy_block() / BLOCKS_PER_WORD;
        let below = self.behind().div_ceil(BLOCKS_PER_WORD);
        (0..below).chain((copy >= below).then_some(copy))
    }

    /// Passes the blocks that the maps take to `each`: offset in the image, and content. Returns
    /// the figures.
    fn visit(&self, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<Snapshot> {
        let (geometry, mut crc) = (self.0, 0);
        let (blocks, inodes) = (geometry.block_map_block * BLOCK_BYTES, geometry.inode_map_block * BLOCK_BYTES);
        let block_word = |index| Ok(self.block_word(index));
        let inode_word = |index| Ok(Self::inode_word(index));
        each_chunk(block_map_words(geometry), &mut crc, block_word, |at, bytes| each(blocks + at, bytes))?;
        each_chunk(inode_map_words(geometry), &mut crc, inode_word, |at, bytes| each(inodes + at, bytes))?;
        let blocks_free = geometry.copy_block() - self.behind();
        let mut figures = Snapshot { blocks_free, inodes_used: 1, segments: 1, ..Snapshot::default() };
        figures.checksum = figures.checksum(crc, 0);
        Ok(figures)
    }
}

/// Writes the snapshot of an empty image, for mkfs. `has_holes`: the memory is zero, and only the
/// rest is written.
pub(crate) fn write_first<M: Memory>(
    pm: &Region<M>,
    superblock: &Superblock,
    geometry: &Geometry,
    has_holes: bool,
) -> Result<Flushed> {
    let mut flushed = Flushed::nothing();
    let figures = FirstMaps(geometry).visit(|at, bytes| {
        if !has_holes || bytes.iter().any(|byte| *byte != 0) {
            let before = core::mem::replace(&mut flushed, Flushed::nothing());
            flushed = before.and(pm.stream_bytes(at, bytes)?);
        }
        Ok(())
    })?;
    Ok(flushed.and(set_figures(pm, superblock, &figures)))
}

/// Writes the snapshot of a file system that no thread is inside, up to the fence. All shards have
/// given back what they held. `None`: a full disk has no room for the maps. What they held before
/// is wrong, so the image must not be marked as clean: fsck reads the inode map of a clean image.
pub(crate) fn write<M: Memory>(fs: &Fs<M>) -> Result<Option<Flushed>> {
    let (pm, geometry) = (&fs.pm, &fs.geometry());
    let header = fs.header()?;
    let block_map_blocks = (block_map_words(geometry) * 8).div_ceil(BLOCK_BYTES);
    let maps = [
        (geometry.block_map_block, block_map_blocks),
        (geometry.inode_map_block, geometry.data_block - geometry.inode_map_block),
    ];
    if maps.iter().any(|(block, count)| fs.provider().provide_image(block * BLOCK_BYTES, count * BLOCK_BYTES).is_err())
    {
        return Ok(None);
    }
    let (entries, any_shared) = count_entries(fs)?;
    let mut pages = FreeBlocks { fs, next: geometry.data_block, end: geometry.data_end() };
    let wanted = entries.div_ceil(LIST_PAGE_ENTRIES as u64);
    let listed = FreeBlocks { fs, next: geometry.data_block, end: geometry.data_end() }
        .take(wanted as usize)
        .take_while(|block| fs.provider().provide_image(block * BLOCK_BYTES, BLOCK_BYTES).is_ok())
        .count() as u64
        == wanted;
    let mut crc = 0;
    let mut flushed = write_words(pm, geometry.block_map_block, block_map_words(geometry), &mut crc, |index| {
        block_codes(fs, index, listed)
    })?;
    flushed = flushed.and(write_words(pm, geometry.inode_map_block, inode_map_words(geometry), &mut crc, |index| {
        let at = fs.dram.layout.inode_bits + index * 8;
        if fs.dram.is_provided(at)? { Ok(fs.dram.inode_word(index)?.load(Acquire)) } else { Ok(0) }
    })?);
    if any_shared && !listed {
        return Ok(Some(flushed.and(set_figures(pm, fs.superblock()?, &Snapshot::default()))));
    }
    let mut figures = Snapshot {
        blocks_free: fs.block_map().blocks_free()?,
        inodes_used: fs.inodes_used()?,
        segments: header.segments.load(Acquire),
        ..Snapshot::default()
    };
    if listed && wanted > 0 {
        figures.list_pages = wanted;
        figures.list_page = pages.next().unwrap_or(0) * BLOCK_BYTES;
        flushed = flushed.and(write_list(fs, (&figures, entries), &mut pages, &mut crc)?);
    }
    figures.checksum = figures.checksum(crc, fs.epoch);
    Ok(Some(flushed.and(set_figures(pm, fs.superblock()?, &figures))))
}

/// Ascending numbers of free blocks.
struct FreeBlocks<'f, M: Memory> {
    fs: &'f Fs<M>,
    next: u64,
    end: u64,
}

impl<M: Memory> Iterator for FreeBlocks<'_, M> {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        while self.next < self.end {
            let word = !self.fs.dram.block_word(self.next / 64).ok()?.load(Relaxed) >> (self.next % 64);
            if word != 0 {
                let found = self.next + word.trailing_zeros() as u64;
                self.next = found + 1;
                return (found < self.end).then_some(found);
            }
            self.next = (self.next / 64 + 1) * 64;
        }
        None
    }
}

/// Codes of the block map for blocks that the list has.
const CODE_SLAB: u64 = 2;
const CODE_SHARED: u64 = 3;

/// The list's entry for a block that is in use: its code in the block map, and its word.
fn list_entry<M: Memory>(fs: &Fs<M>, block: u64) -> Result<Option<(u64, u64)>> {
    let slab = fs.dram.slab(block)?;
    let free = slab.free_lines.load(Acquire);
    if slab.state.load(Acquire) != 0 {
        return Ok((free != 0).then_some((CODE_SLAB, free)));
    }
    let shares = fs.dram.block_shares(block)?.load(Acquire);
    Ok((shares != 0).then_some((CODE_SHARED, shares as u64)))
}

/// Calls `each` with every block that has a list entry, ascending: number, code and word.
fn for_entries<M: Memory>(fs: &Fs<M>, mut each: impl FnMut(u64, u64, u64) -> Result<()>) -> Result<()> {
    let blocks = fs.blocks();
    for index in 0..blocks.div_ceil(64) {
        let mut used = fs.dram.block_word(index)?.load(Acquire);
        while used != 0 {
            let block = index * 64 + used.trailing_zeros() as u64;
            used &= used - 1;
            if block < blocks
                && let Some((code, word)) = list_entry(fs, block)?
            {
                each(block, code, word)?;
            }
        }
    }
    Ok(())
}

/// Calls `each` with every slab that has free lines, ascending.
pub(crate) fn for_slabs<M: Memory>(fs: &Fs<M>, mut each: impl FnMut(u64) -> Result<()>) -> Result<()> {
    for_entries(fs, |block, code, _| if code == CODE_SLAB { each(block) } else { Ok(()) })
}

/// Number of entries that the list needs, and whether any is of a shared block.
fn count_entries<M: Memory>(fs: &Fs<M>) -> Result<(u64, bool)> {
    let (mut entries, mut any_shared) = (0, false);
    for_entries(fs, |_, code, _| {
        entries += 1;
        any_shared |= code == CODE_SHARED;
        Ok(())
    })?;
    Ok((entries, any_shared))
}

/// Word `index` of the block map.
fn block_codes<M: Memory>(fs: &Fs<M>, index: u64, listed: bool) -> Result<u64> {
    let first = index * BLOCKS_PER_WORD;
    let mut used = (fs.dram.block_word(first / 64)?.load(Acquire) >> (first % 64)) as u32;
    let beyond = fs.blocks() - first;
    if beyond < BLOCKS_PER_WORD {
        used &= (1 << beyond) - 1;
    }
    let mut codes = spread(used);
    let mut rest = if listed { used } else { 0 };
    while rest != 0 {
        let bit = rest.trailing_zeros();
        rest &= rest - 1;
        if let Some((code, _)) = list_entry(fs, first + bit as u64)? {
            codes = codes & !(3 << (bit * 2)) | code << (bit * 2);
        }
    }
    Ok(codes)
}

/// Writes the list, whose number of entries is known; `pages` supplies the blocks behind the first
/// one.
fn write_list<M: Memory>(
    fs: &Fs<M>,
    (figures, mut left): (&Snapshot, u64),
    pages: &mut FreeBlocks<'_, M>,
    crc: &mut u32,
) -> Result<Flushed> {
    let mut page = [0u8; BLOCK_BYTES as usize];
    let mut at = figures.list_page;
    let mut count = 0usize;
    let mut flushed = Flushed::nothing();
    for_entries(fs, |block, _, word| {
        page[16 + count * 16..][..8].copy_from_slice(&block.to_le_bytes());
        page[24 + count * 16..][..8].copy_from_slice(&word.to_le_bytes());
        count += 1;
        left -= 1;
        if count < LIST_PAGE_ENTRIES && left > 0 {
            return Ok(());
        }
        let next = if left > 0 { pages.next().unwrap_or(0) * BLOCK_BYTES } else { 0 };
        page[..8].copy_from_slice(&next.to_le_bytes());
        page[8..16].copy_from_slice(&(count as u64).to_le_bytes());
        *crc = crc32c(*crc, &page);
        let before = core::mem::replace(&mut flushed, Flushed::nothing());
        flushed = before.and(fs.pm.stream_bytes(at, &page)?);
        page.fill(0);
        (at, count) = (next, 0);
        Ok(())
    })?;
    Ok(flushed)
}

/// The inodes of a segment, if the entry of the table is plausible. Loads the list of its blocks.
pub(crate) fn segment_at<M: Memory>(pm: &Region<M>, geometry: &Geometry, segment: u64) -> Result<Option<Segment>> {
    let is_data = |block: u64| (geometry.data_block..geometry.data_end()).contains(&block);
    let word = segment_word(pm, geometry, segment)?;
    if let Some(SegmentEntry::List(at)) = SegmentEntry::from_word(word)
        && is_data(at / BLOCK_BYTES)
    {
        pm.load(at, BLOCK_BYTES)?;
    }
    Ok(Segment::read(pm, segment, word, is_data).ok())
}

fn segment_word<M: Memory>(pm: &Region<M>, geometry: &Geometry, segment: u64) -> Result<u64> {
    Ok(pm.get(Pm::<Commit64>::new(geometry.segment_table_block * BLOCK_BYTES + segment * 8))?.load_acquire())
}

/// Passes the numbers of all inodes that the inode map calls used.
pub(crate) fn for_used_inodes<M: Memory>(
    pm: &Region<M>,
    geometry: &Geometry,
    each: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    read_words(pm, geometry.inode_map_block, inode_map_words(geometry), &mut 0, |index, word| {
        let mut used = word;
        while used != 0 {
            each(index * 64 + used.trailing_zeros() as u64)?;
            used &= used - 1;
        }
        Ok(())
    })
}

/// Passes the blocks that the block map calls used: the first of 32 blocks, and their bits.
pub(crate) fn for_used_blocks<M: Memory>(
    pm: &Region<M>,
    geometry: &Geometry,
    each: &mut dyn FnMut(u64, u32),
) -> Result<()> {
    read_words(pm, geometry.block_map_block, block_map_words(geometry), &mut 0, |index, word| {
        each(index * BLOCKS_PER_WORD, gather(word) | gather(word >> 1));
        Ok(())
    })
}

/// Loads the snapshot of a clean image into a fresh region. Returns whether it was valid; if not,
/// the region is unchanged.
pub(crate) fn load<M: Memory>(fs: &Fs<M>, state: State) -> Result<bool> {
    let superblock = fs.superblock()?;
    let figures = figures_of(superblock);
    let geometry = &fs.geometry();
    let first = FirstMaps(geometry);
    // The maps of an image that was never attached or resized are known, and may be holes.
    let is_first = state.epoch == 0 && geometry.mkfs_blocks == 0 && first.visit(|_, _| Ok(()))? == figures;
    let is_sound = match is_first {
        true => verify_segments(&fs.pm, geometry, &figures)?,
        false => verify(&fs.pm, geometry, &figures, state.epoch)?,
    };
    if !is_sound {
        return Ok(false);
    }
    let mark_blocks = |index: u64, word: u64| {
        let used = (gather(word) | gather(word >> 1)) as u64;
        if used != 0 {
            let first = index * BLOCKS_PER_WORD;
            fs.provider().provide_group(first / GROUP_BLOCKS)?;
            fs.dram.block_word(first / 64)?.fetch_or(used << (first % 64), AcqRel);
        }
        Ok(())
    };
    (0..figures.segments).try_for_each(|segment| fs.provider().provide_segment(segment))?;
    if is_first {
        first.used_block_words().try_for_each(|index| mark_blocks(index, first.block_word(index)))?;
        fs.dram.inode_word(0)?.store(FirstMaps::inode_word(0), Relaxed);
    } else {
        let (blocks, inodes) = (geometry.block_map_block, geometry.inode_map_block);
        read_words(&fs.pm, blocks, block_map_words(geometry), &mut 0, mark_blocks)?;
        read_words(&fs.pm, inodes, inode_map_words(geometry), &mut 0, |index, word| {
            if word != 0 {
                fs.dram.inode_word(index)?.store(word, Relaxed);
            }
            Ok(())
        })?;
    }
    load_list(fs, &figures)?;
    let header = fs.header()?;
    header.segments.store(figures.segments, Release);
    header.inode_map[0].used.store(figures.inodes_used, Relaxed);
    header.recovery[2].store(figures.inodes_used, Relaxed);
    Ok(true)
}

/// Marks all blocks that the last maps called used, whether or not they match their checksum: for a
/// damaged image.
pub(crate) fn mark_as_left<M: Memory>(regions: &Regions<M>) -> Result<()> {
    let geometry = &regions.geometry();
    read_words(&regions.pm, geometry.block_map_block, block_map_words(geometry), &mut 0, |index, word| {
        let first = index * BLOCKS_PER_WORD;
        regions.provider().provide_group(first / GROUP_BLOCKS)?;
        let behind = geometry.blocks.saturating_sub(first).min(BLOCKS_PER_WORD);
        let used = (gather(word) | gather(word >> 1)) as u64 & (u64::MAX >> (64 - behind));
        regions.dram.block_word(first / 64)?.fetch_or(used << (first % 64), AcqRel);
        Ok(())
    })
}

/// Whether the checksum matches and every number fits the image.
pub(crate) fn verify<M: Memory>(pm: &Region<M>, geometry: &Geometry, figures: &Snapshot, epoch: u32) -> Result<bool> {
    let mut crc = 0;
    let mut sound = figures.segments >= 1
        && figures.segments <= geometry.segments_max
        && figures.inodes_used < figures.segments * INODES_PER_SEGMENT
        && figures.blocks_free <= geometry.blocks;
    read_words(pm, geometry.block_map_block, block_map_words(geometry), &mut crc, |_, _| Ok(()))?;
    read_words(pm, geometry.inode_map_block, inode_map_words(geometry), &mut crc, |_, _| Ok(()))?;
    sound &= verify_list(pm, geometry, figures, &mut crc);
    if !sound || figures.checksum(crc, epoch) != figures.checksum {
        return Ok(false);
    }
    verify_segments(pm, geometry, figures)
}

/// The checksum does not cover the segment table: it is checked against the figures.
fn verify_segments<M: Memory>(pm: &Region<M>, geometry: &Geometry, figures: &Snapshot) -> Result<bool> {
    for segment in 0..figures.segments {
        if segment_at(pm, geometry, segment)?.is_none() {
            return Ok(false);
        }
    }
    Ok(figures.segments == geometry.segments_max || segment_word(pm, geometry, figures.segments)? == 0)
}

/// Continues the checksum over the list. Returns whether the list has the right length and names
/// blocks of the data area only.
fn verify_list<M: Memory>(pm: &Region<M>, geometry: &Geometry, figures: &Snapshot, crc: &mut u32) -> bool {
    let mut at = figures.list_page;
    let mut bytes = [0u8; BLOCK_BYTES as usize];
    let fits = |block: u64| (geometry.data_block..geometry.data_end()).contains(&block);
    for _ in 0..figures.list_pages.min(geometry.blocks) {
        // The block is free, so it may not be resident before the region is attached.
        if !at.is_multiple_of(BLOCK_BYTES)
            || !fits(at / BLOCK_BYTES)
            || pm.load(at, BLOCK_BYTES).is_err()
            || pm.read_bytes(at, &mut bytes).is_err()
        {
            return false;
        }
        *crc = crc32c(*crc, &bytes);
        let Ok(page) = pm.get(Pm::<ListPage>::new(at)) else { return false };
        let count = page.count.load() as usize;
        let entries = &page.entries[..count.min(LIST_PAGE_ENTRIES)];
        if count > LIST_PAGE_ENTRIES || !entries.iter().all(|entry| fits(entry.block.load())) {
            return false;
        }
        at = page.next.load();
    }
    at == 0 && (figures.list_page != 0) == (figures.list_pages != 0)
}

/// Sets up what the list contains: slabs with free lines, which are on no list until `attach` lists
/// them, and blocks with several pointers.
fn load_list<M: Memory>(fs: &Fs<M>, figures: &Snapshot) -> Result<()> {
    let mut at = figures.list_page;
    for _ in 0..figures.list_pages {
        let page = fs.pm.get(Pm::<ListPage>::new(at))?;
        for entry in &page.entries[..page.count.load().min(LIST_PAGE_ENTRIES as u64) as usize] {
            let (block, word) = (entry.block.load(), entry.word.load());
            if code_of(fs, block)? == CODE_SHARED {
                fs.dram.block_shares(block)?.store(word.min(u32::MAX as u64) as u32, Relaxed);
                fs.header()?.blocks_shared.store(1, Relaxed);
                continue;
            }
            let slab = fs.dram.slab(block)?;
            slab.free_lines.store(word, Relaxed);
            slab.state.store(SLAB_LISTED, Release);
        }
        at = page.next.load();
    }
    Ok(())
}

/// The code of a block in the block map.
fn code_of<M: Memory>(fs: &Fs<M>, block: u64) -> Result<u64> {
    let mut word = [0u8; 8];
    fs.pm.read_bytes(fs.geometry().block_map_block * BLOCK_BYTES + block / BLOCKS_PER_WORD * 8, &mut word)?;
    Ok(u64::from_le_bytes(word) >> (block % BLOCKS_PER_WORD * 2) & 3)
}
