//! File content: 4 KiB blocks under a tree of pointer pages, as in PMFS. A root word holds the
//! tree's height.
//!
//! A pointer page is used line by line from its start. The word that leads to it counts the lines
//! with content, so a file of some blocks costs one line and not a page of zeros. Further lines are
//! durable before that word counts them.
//!
//! A write stores directly to the image: in place over existing blocks, into new blocks otherwise.
//! Overwriting is not atomic, as in every file system without copy-on-write: each unsynced word may
//! or may not reach the medium. Block pointers have two views, like names. New blocks and truncated
//! ranges are an overlay in memory until a persister moves them to the pointer pages. Bytes of a
//! block beyond the file's size have undefined content; an operation that extends the file zeroes
//! them.
//!
//! Content is written past the cache, as in PMFS, and is durable when the call returns. So the
//! persister finds it durable when it makes it reachable. The persister also decides when truncated
//! pages are free ([`persist`]).

mod persist;

use super::format::{HEIGHT_MAX, PAGE_LINES, PAGE_WORDS, SIZE_BYTES_MAX};
use super::inode::{Change, FileState, Info, Inode, Node, Overlay, Planned};
use super::volume::Volume;
use crate::error::{Error, Result};
use crate::locks;
use crate::physical::{Exclusive, Shared};
use crate::substrate::BlockRange;
use pmem::{BLOCK_BYTES, Commit64, Flushed, LINE_BYTES, Memory};
use posix::Errno;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

/// Base-2 logarithm of the pointers of a page.
const FAN_BITS: u32 = PAGE_WORDS.ilog2();
/// The bits of a root word that hold the height.
const HEIGHT_MASK: u64 = 7;
/// Position of the number of lines in a word that leads to a pointer page.
const LINES_SHIFT: u32 = 3;
/// Pointers of a line.
const LINE_WORDS: u64 = LINE_BYTES / 8;

/// A word that leads to a page: a block of data, or a pointer page and its lines with content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Child {
    page: u64,
    lines: u64,
}

impl Child {
    fn block(page: u64) -> Child {
        Child { page, lines: 0 }
    }

    fn from_word(word: u64) -> Result<Child> {
        let child = Child { page: word & !(BLOCK_BYTES - 1), lines: (word & (BLOCK_BYTES - 1)) >> LINES_SHIFT };
        if child.lines > PAGE_LINES || child.page == 0 && child.lines > 0 {
            return Err(Error::damaged("a word that leads to a pointer page is invalid", word));
        }
        Ok(child)
    }

    fn word(self) -> u64 {
        self.page | self.lines << LINES_SHIFT
    }

    /// Number of pointers with content.
    fn words(self) -> usize {
        (self.lines * LINE_WORDS) as usize
    }
}

/// A tree of block pointers: its root page (or block) and height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tree {
    root: Child,
    height: u32,
}

impl Tree {
    fn from_word(word: u64) -> Result<Tree> {
        let tree = Tree { root: Child::from_word(word & !HEIGHT_MASK)?, height: (word & HEIGHT_MASK) as u32 };
        if tree.height > HEIGHT_MAX || (tree.height == 0) != (tree.root.lines == 0) {
            return Err(Error::damaged("a file's root word is invalid", word));
        }
        Ok(tree)
    }

    fn word(self) -> u64 {
        self.root.word() | self.height as u64
    }

    fn covers(self, block: u64) -> bool {
        self.root.page != 0 && block >> (FAN_BITS * self.height) == 0
    }
}

/// The height at which a tree covers a block.
fn height_for(block: u64) -> u32 {
    (u64::BITS - block.leading_zeros()).div_ceil(FAN_BITS)
}

/// The lines of a pointer page at a level that a block needs.
fn lines_for(block: u64, level: u32) -> u64 {
    slot(block, level) as u64 / LINE_WORDS + 1
}

fn slot(block: u64, level: u32) -> usize {
    (block >> (FAN_BITS * (level - 1)) & (PAGE_WORDS - 1)) as usize
}

impl Inode {
    fn content(&self) -> RwLockReadGuard<'_, FileState> {
        locks::read(&self.file)
    }

    /// The content state, for changes.
    pub fn content_mut(&self) -> RwLockWriteGuard<'_, FileState> {
        locks::write(&self.file)
    }
}

/// Consecutive blocks of a file in consecutive pages, or in none (zero).
#[derive(Debug, Clone, Copy)]
struct Piece {
    block: u64,
    page: u64,
    count: u64,
}

/// The pieces of a range of blocks.
type Pieces = SmallVec<[Piece; 4]>;

impl FileState {
    /// What the overlays hold for a block and those behind it: pages, a hole (zero), or nothing;
    /// and for how many of at most `limit` blocks that is so.
    fn overlaid(&self, block: u64, mut limit: u64) -> (Option<u64>, u64) {
        for overlay in [&self.now, &self.moving] {
            if !overlay.blocks.is_empty() {
                if let Some(run) = overlay.blocks.find(block) {
                    return (Some(run.start * BLOCK_BYTES), run.count.min(limit));
                }
                limit = overlay.blocks.hole(block, limit);
            }
            if let Some(bytes) = overlay.cut_bytes {
                let end = bytes.div_ceil(BLOCK_BYTES);
                if block >= end {
                    return (Some(0), limit);
                }
                limit = limit.min(end - block);
            }
        }
        (None, limit)
    }

    /// Whether a persister removes pointers, or will.
    fn is_cut(&self) -> bool {
        self.now.cut_bytes.is_some() || self.moving.cut_bytes.is_some()
    }
}

impl<M: Memory> Volume<M> {
    /// The page of a block in the consistent view, zero for a hole, and how many blocks (at most
    /// `limit`) follow each other there.
    fn consistent_run(&self, tree: Tree, block: u64, limit: u64) -> Result<(u64, u64)> {
        if !tree.covers(block) {
            return Ok((0, limit));
        }
        let mut at = tree.root;
        for level in (2..=tree.height).rev() {
            let index = slot(block, level);
            if index >= at.words() {
                return Ok((0, 1));
            }
            let word = &self.word_page(at.page)?[index];
            self.region.report_read(self.region.offset_of(word), 8);
            at = Child::from_word(word.load_acquire())?;
            if at.page == 0 {
                return Ok((0, 1));
            }
        }
        if tree.height == 0 {
            return Ok((at.page, 1));
        }
        let words = &self.word_page(at.page)?[..at.words()];
        let Some(words) = words.get(slot(block, 1)..) else { return Ok((0, 1)) };
        let Some(first) = words.first() else { return Ok((0, 1)) };
        let page = Child::from_word(first.load_acquire())?.page;
        let step = if page == 0 { 0 } else { BLOCK_BYTES };
        let follows = |(index, word): (usize, &Commit64)| word.load_acquire() == page + index as u64 * step;
        let count = words.iter().enumerate().take(limit as usize).take_while(|at| follows(*at)).count() as u64;
        self.region.report_read(self.region.offset_of(first), count * 8);
        Ok((page, count.max(1)))
    }

    /// The pages of the blocks of a range, in both views.
    fn pieces(&self, content: &FileState, tree: Tree, blocks: Range<u64>) -> Result<Pieces> {
        let mut pieces = Pieces::new();
        let mut block = blocks.start;
        while block < blocks.end {
            let (page, count) = match content.overlaid(block, blocks.end - block) {
                (Some(page), count) => (page, count),
                (None, limit) => self.consistent_run(tree, block, limit)?,
            };
            pieces.push(Piece { block, page, count });
            block += count;
        }
        Ok(pieces)
    }

    /// Whether a node of a tree exists.
    fn has_node(&self, tree: Tree, level: u32, index: u64) -> Result<bool> {
        let block = index << (FAN_BITS * level);
        if level > tree.height || !tree.covers(block) {
            return Ok(false);
        }
        let mut at = tree.root;
        for above in (level + 1..=tree.height).rev() {
            let index = slot(block, above);
            if index >= at.words() {
                return Ok(false);
            }
            at = Child::from_word(self.word_page(at.page)?[index].load_acquire())?;
            if at.page == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn tree(&self, inode: u64) -> Result<Tree> {
        Tree::from_word(self.inode_lines(inode)?.root.load_acquire())
    }

    /// Number of data blocks in a tree.
    pub fn count_blocks(&self, root: u64) -> Result<u64> {
        let mut count = 0;
        self.visit_tree(root, &mut |_, is_pointers| count += u64::from(!is_pointers))?;
        Ok(count)
    }

    /// Calls `visit` for every page of a tree, with whether it holds pointers.
    pub fn visit_tree(&self, root: u64, visit: &mut dyn FnMut(u64, bool)) -> Result<()> {
        let tree = Tree::from_word(root)?;
        if tree.root.page == 0 { Ok(()) } else { self.visit_below(tree.root, tree.height, visit) }
    }

    fn visit_below(&self, at: Child, height: u32, visit: &mut dyn FnMut(u64, bool)) -> Result<()> {
        let words = self.word_page(at.page)?;
        visit(at.page, height > 0);
        if height == 0 {
            return Ok(());
        }
        self.region.report_read(at.page, at.lines * LINE_BYTES);
        for word in &words[..at.words()] {
            let child = Child::from_word(word.load_acquire())?;
            if child.page != 0 {
                self.visit_below(child, height - 1, visit)?;
            }
        }
        Ok(())
    }

    /// Reads content.
    pub fn read(&self, file: &Shared<'_, Info>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let size = file.attributes.get().size_bytes;
        let length = (into.len() as u64).min(size.saturating_sub(offset));
        let content = file.info.inode.content();
        let tree = self.tree(file.info.inode.offset)?;
        let mut done = 0;
        if length == 0 {
            return Ok(0);
        }
        let blocks = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        for piece in self.pieces(&content, tree, blocks)? {
            let within = (offset + done) % BLOCK_BYTES;
            let step = (piece.count * BLOCK_BYTES - within).min(length - done);
            let part = &mut into[done as usize..(done + step) as usize];
            match piece.page {
                0 => part.fill(0),
                page => self.region.read_bytes(page + within, part)?,
            }
            done += step;
        }
        Ok(length as usize)
    }

    /// Writes content: all of it, or nothing if space runs out.
    pub fn write(&self, file: &mut Exclusive<'_, Info>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()> {
        let length = bytes.len() as u64;
        let end = offset.checked_add(length).filter(|end| *end <= SIZE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        if length == 0 {
            return Ok(());
        }
        self.throttle()?;
        let inode = &file.info.inode;
        let old_size = file.attributes.get().size_bytes;
        let (mut pieces, planned) = {
            let content = inode.content();
            let tree = self.tree(inode.offset)?;
            let pieces = self.pieces(&content, tree, offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES))?;
            let planned = self.plan(&content, tree, &pieces)?;
            (pieces, planned)
        };
        let new: u64 = pieces.iter().filter(|piece| piece.page == 0).map(|piece| piece.count).sum();
        let mut pages = self.take_pages(new + planned.len() as u64)?;
        let spare = pages.split_off(new as usize);
        // From here on only a damaged image causes an error.
        if offset > old_size {
            self.zero_tail(inode, old_size, offset)?;
        }
        let mut added = Pieces::new();
        if new > 0 {
            pieces = fill_holes(&pieces, &pages, &mut added);
        }
        self.store(offset, bytes, old_size, &pieces, &added)?;
        {
            let mut content = inode.content_mut();
            for piece in &added {
                let run = BlockRange { start: piece.page / BLOCK_BYTES, count: piece.count };
                content.now.blocks.insert(piece.block, run);
            }
            content.size_bytes = old_size.max(end);
            content.spare.extend(spare);
            content.planned.extend(planned);
        }
        let attributes = file.attributes.update(|attributes| {
            attributes.size_bytes = attributes.size_bytes.max(end);
            attributes.blocks += new;
            (attributes.modified_ns, attributes.changed_ns) = (now_ns, now_ns);
        });
        let node = Node { sequence: self.next_sequence(), change: Change::SizeChanged };
        self.record(inode, &attributes, Some(node));
        Ok(())
    }

    /// The nodes of the pointer tree that new blocks need and that have no page yet. Their pages
    /// stay with the file until a persister uses them.
    fn plan(&self, content: &FileState, tree: Tree, pieces: &[Piece]) -> Result<Planned> {
        let mut planned = Planned::new();
        let mut missing = pieces.iter().filter(|piece| piece.page == 0);
        let Some(first) = missing.next() else { return Ok(planned) };
        let last = missing.next_back().unwrap_or(first);
        let (first, last) = (first.block, last.block + last.count - 1);
        for level in 1..=height_for(last) {
            let below = first >> (FAN_BITS * level)..=last >> (FAN_BITS * level);
            // Above the old root, where the tree grows, the first node is new, too.
            for index in [0].into_iter().chain(below) {
                let node = (level, index);
                let is_there = !content.is_cut() && self.has_node(tree, level, index)?;
                if !is_there && !planned.contains(&node) && !content.planned.contains(&node) {
                    planned.push(node);
                }
            }
        }
        Ok(planned)
    }

    /// Streams content to its pages, and zeros to the rest of new ones that was a hole of the file.
    fn store(&self, offset: u64, bytes: &[u8], old_size: u64, pieces: &[Piece], added: &[Piece]) -> Result<()> {
        let mut flushed = Flushed::nothing();
        let mut done = 0;
        let mut new = added.iter().peekable();
        for piece in pieces {
            let within = (offset + done) % BLOCK_BYTES;
            let step = (piece.count * BLOCK_BYTES - within).min(bytes.len() as u64 - done);
            if new.next_if(|new| new.block == piece.block).is_some() {
                let (start, stop) = (piece.block * BLOCK_BYTES, within + step);
                let end = (piece.count * BLOCK_BYTES).min(old_size.saturating_sub(start));
                flushed =
                    flushed.and(self.zero(piece.page, 0..within)?).and(self.zero(piece.page, stop..end.max(stop))?);
            }
            flushed = flushed
                .and(self.region.stream_bytes(piece.page + within, &bytes[done as usize..(done + step) as usize])?);
            done += step;
        }
        self.region.fence(flushed);
        Ok(())
    }

    /// Writes zeros to a part of a page.
    fn zero(&self, page: u64, range: Range<u64>) -> Result<Flushed> {
        if range.is_empty() {
            return Ok(Flushed::nothing());
        }
        Ok(self.region.stream_zeros(page + range.start, range.end - range.start)?)
    }

    /// Zeroes the last block behind the end of the file, before the file grows beyond it.
    fn zero_tail(&self, inode: &Inode, size: u64, new_size: u64) -> Result<()> {
        let within = size % BLOCK_BYTES;
        if within == 0 {
            return Ok(());
        }
        let block = size / BLOCK_BYTES;
        let page = {
            let content = inode.content();
            self.pieces(&content, self.tree(inode.offset)?, block..block + 1)?.first().map_or(0, |piece| piece.page)
        };
        if page == 0 {
            return Ok(());
        }
        let until = (within + (new_size - size)).min(BLOCK_BYTES);
        let flushed = self.zero(page, within..until)?;
        self.region.fence(flushed);
        Ok(())
    }

    /// Sets the length of a file.
    pub fn truncate(&self, file: &mut Exclusive<'_, Info>, size_bytes: u64, now_ns: i64) -> Result<()> {
        if size_bytes > SIZE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        self.throttle()?;
        let inode = Arc::clone(&file.info.inode);
        let old = file.attributes.get();
        let mut cut = 0;
        if size_bytes > old.size_bytes {
            self.zero_tail(&inode, old.size_bytes, size_bytes)?;
            inode.content_mut().size_bytes = size_bytes;
        } else if size_bytes < old.size_bytes {
            cut = self.cut(&inode, size_bytes)?;
        }
        let attributes = file.attributes.update(|attributes| {
            attributes.size_bytes = size_bytes;
            attributes.blocks = attributes.blocks.saturating_sub(cut);
            (attributes.modified_ns, attributes.changed_ns) = (now_ns, now_ns);
        });
        let node = Node { sequence: self.next_sequence(), change: Change::SizeChanged };
        self.record(&inode, &attributes, Some(node));
        Ok(())
    }

    /// Cuts blocks off in the latest view. Returns their number.
    fn cut(&self, inode: &Inode, size_bytes: u64) -> Result<u64> {
        let first = size_bytes.div_ceil(BLOCK_BYTES);
        let mut content = inode.content_mut();
        let below = self.blocks_below(&content, self.tree(inode.offset)?, first)?;
        // A block is in one of them only: a write to one that exists goes to its page.
        let mut cut = below.len() as u64;
        // No persister has seen these pages.
        content.now.blocks.remove(first, u64::MAX, &mut |run| {
            cut += run.count;
            self.space.give_back_pages(run);
        });
        let before = content.now.cut_bytes.unwrap_or(u64::MAX);
        content.now.cut_bytes = Some(before.min(size_bytes));
        content.size_bytes = size_bytes;
        Ok(cut)
    }

    /// The blocks from `first` on that exist below the newest overlay.
    fn blocks_below(&self, content: &FileState, tree: Tree, first: u64) -> Result<Vec<u64>> {
        let limit = |overlay: &Overlay| overlay.cut_bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(BLOCK_BYTES));
        let visible = first..limit(&content.now).max(first);
        let moving = content.moving.blocks.runs();
        let mut found: Vec<u64> =
            moving.flat_map(|(block, run)| block.max(visible.start)..(block + run.count).min(visible.end)).collect();
        // Beyond the range that is being cut, a persister frees the pages that the walk would read.
        let below = first..limit(&content.moving).min(visible.end);
        if tree.root.page != 0 {
            self.blocks_in(tree.root, tree.height, 0, &below, &mut found)?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Finds the blocks of a range in the consistent view.
    fn blocks_in(&self, at: Child, height: u32, base: u64, range: &Range<u64>, found: &mut Vec<u64>) -> Result<()> {
        if height == 0 {
            if range.contains(&base) {
                found.push(base);
            }
            return Ok(());
        }
        let span = 1u64 << (FAN_BITS * (height - 1));
        let skip = (range.start.saturating_sub(base) / span).min(PAGE_WORDS);
        for (index, word) in self.word_page(at.page)?[..at.words()].iter().enumerate().skip(skip as usize) {
            let start = base + index as u64 * span;
            if start >= range.end {
                break;
            }
            let child = Child::from_word(word.load_acquire())?;
            if child.page != 0 {
                self.blocks_in(child, height - 1, start, range, found)?;
            }
        }
        Ok(())
    }

    /// Frees all pages of a file that is no longer reachable.
    pub fn free_content(&self, inode: &Inode) -> Result<()> {
        let content = std::mem::take(&mut *inode.content_mut());
        let tree = self.tree(inode.offset)?;
        let mut pages = content.spare;
        self.visit_tree(tree.word(), &mut |page, _| pages.push(page))?;
        for (_, run) in content.now.blocks.runs().chain(content.moving.blocks.runs()) {
            pages.extend((run.start..run.start + run.count).map(|block| block * BLOCK_BYTES));
        }
        // Some pages of the overlays may be in the tree. In order they are taken in order again.
        pages.sort_unstable();
        pages.dedup();
        self.space.free_all_pages(&pages);
        Ok(())
    }
}

/// The pieces of a range whose holes get pages: as many as there are blocks in holes. The new ones
/// are also added to `added`.
fn fill_holes(pieces: &[Piece], pages: &[u64], added: &mut Pieces) -> Pieces {
    let mut pages = pages.iter().copied().peekable();
    let mut filled = Pieces::new();
    for piece in pieces {
        if piece.page != 0 {
            filled.push(*piece);
            continue;
        }
        let mut done = 0;
        while let Some(page) = pages.next_if(|_| done < piece.count) {
            let mut count = 1;
            while done + count < piece.count && pages.next_if_eq(&(page + count * BLOCK_BYTES)).is_some() {
                count += 1;
            }
            let new = Piece { block: piece.block + done, page, count };
            filled.push(new);
            added.push(new);
            done += count;
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pieces: &[Piece]) -> Vec<(u64, u64, u64)> {
        pieces.iter().map(|piece| (piece.block, piece.page / BLOCK_BYTES, piece.count)).collect()
    }

    #[test]
    fn holes_get_pages_in_pieces_that_follow_each_other() {
        let piece = |block, page, count| Piece { block, page: page * BLOCK_BYTES, count };
        let pieces = [piece(0, 0, 3), piece(3, 90, 2), piece(5, 0, 2)];
        let pages = [10, 11, 13, 14, 20].map(|page| page * BLOCK_BYTES);
        let mut added = Pieces::new();
        let filled = fill_holes(&pieces, &pages, &mut added);
        assert_eq!(numbers(&filled), [(0, 10, 2), (2, 13, 1), (3, 90, 2), (5, 14, 1), (6, 20, 1)]);
        assert_eq!(numbers(&added), [(0, 10, 2), (2, 13, 1), (5, 14, 1), (6, 20, 1)]);
    }

    #[test]
    fn the_newer_overlay_hides_the_older_one_and_a_cut_hides_what_is_below() {
        let mut content = FileState::default();
        content.moving.blocks.insert(2, BlockRange { start: 50, count: 6 });
        content.now.blocks.insert(4, BlockRange { start: 70, count: 1 });
        let page = |block| Some(block * BLOCK_BYTES);
        for (block, seen) in
            [(0, (None, 2)), (2, (page(50), 2)), (4, (page(70), 1)), (5, (page(53), 3)), (8, (None, 9))]
        {
            let (found, count) = content.overlaid(block, 9);
            // The older run goes on behind the newer block, but is found again from there.
            assert_eq!((found, count), seen, "block {block}");
        }
        content.now.cut_bytes = Some(6 * BLOCK_BYTES - 1);
        assert_eq!(content.overlaid(5, 9), (page(53), 1));
        assert_eq!(content.overlaid(6, 9), (Some(0), 9), "a hole, whatever is below");
    }

    #[test]
    fn a_tree_is_as_high_as_its_last_block_needs() {
        for (block, height) in [(0, 0), (1, 1), (511, 1), (512, 2), (1 << 18, 3), ((1 << 27) - 1, 3), (1 << 27, 4)] {
            assert_eq!(height_for(block), height, "block {block}");
            assert!(Tree { root: Child::block(BLOCK_BYTES), height }.covers(block));
        }
    }
}
