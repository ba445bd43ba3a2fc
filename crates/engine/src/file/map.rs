//! Block maps: which block of the image holds which block of a body. A radix tree of 512-word
//! nodes, as high as the body needs.
//!
//! The root word (in a property entry, or in [`Inode::xattrs`]) is zero for an empty body.
//! Otherwise it combines the block offset and the height (bits 0..3). At height 0 the root is the
//! only data block, and bits 4..6 hold its flags. A word of a node of level 1 is a data pointer:
//! block offset and flags (bits 0..2). A word of a higher node is the offset of a node one level
//! lower. Zero is a hole, at any level.
//!
//! The root may also be an *inline extent*: the body's first blocks, all written, are contiguous.
//! The root holds their start, their number (bit 3, and bits 52..62), and whether other pointers
//! may name them (bit 5). An inline extent stands for the node of level 1 that would lead to its
//! blocks, so a file that was written from beginning to end needs no node. That node replaces it
//! before any single pointer changes.
//!
//! Invariants
//! - A level is reached only through words of the level above, and levels strictly decrease: no
//!   walk can loop.
//! - A node's content is durable before anything on the image links to it.
//! - A data pointer within the length of a file is stored only once its block's content is durable.
//!   Behind the length it may be stored earlier: recovery clears written pointers there. Pointers
//!   there that stay are unwritten ones (space that fallocate reserved).
//! - The content of the last block behind the length is undefined on the image; an operation that
//!   lengthens the file zeroes it first.
//!
//! The root is a word of the property entry, so root, size and times change together. A write of
//! one block changes one word; one of several copies the smallest subtree that holds them and swaps
//! one pointer. *Rejected:* extents in a B+tree. They have fewer words for large files, but one
//! overwritten block splits an extent, and the tree would have to survive a power cut at any word.
//!
//! *Reason* for inline extents: a file of 8 KiB took 3.5 µs, and takes 2.3 to 3.0; varmail rose
//! from 594,000 to 710,000 operations a second. In /usr/include 4,300 of 4,309 files of several
//! blocks have one.

use crate::alloc::BlockRun;
use crate::error::{Corruption, Error, Result};
use crate::format::{Geometry, PROPERTY_INLINE, Property, assert_layout};
use crate::regions::Regions;
use crate::slot_owner::SlotOwner;
use core::ops::Range;
use pmem::{BLOCK_BYTES, Commit64, Dirty, Flushed, Layout, Memory, Pm, Region};

use super::release::{BlockFreer, mark_tree};

/// Words of a node.
pub(super) const NODE_WORDS: u64 = 512;
/// Words of a node that share a cache line.
const WORDS_PER_LINE: usize = 8;
/// The highest tree: 2^36 blocks, 256 TiB.
pub(super) const HEIGHT_MAX: u32 = 4;
/// Maximum number of blocks of a body.
pub(super) const BLOCKS_MAX: u64 = span(HEIGHT_MAX);
/// Maximum file length in bytes.
pub(super) const SIZE_BYTES_MAX: u64 = crate::format::FILE_BYTES_MAX;
const _: () = assert!(SIZE_BYTES_MAX == BLOCKS_MAX * BLOCK_BYTES);
/// Flag of a data pointer: allocated but never written, reads as zeros.
pub const BLOCK_UNWRITTEN: u64 = 1;
/// Flag of a data pointer: other pointers may name the block too; it is never written in place.
pub const BLOCK_SHARED: u64 = 2;
/// The bits of a word that are not the offset.
const LOW_BITS: u64 = BLOCK_BYTES - 1;
/// The bits of a word that are the offset.
const OFFSET_BITS: u64 = (1 << EXTENT_COUNT_SHIFT) - BLOCK_BYTES;
/// Shift of the block's flags in a root of height 0.
const ROOT_FLAGS_SHIFT: u32 = 4;
/// Flag of a root: an inline extent instead of a node.
const INLINE_EXTENT: u64 = 8;
/// Shift of the number of blocks in an inline extent.
const EXTENT_COUNT_SHIFT: u32 = 52;
/// Maximum number of blocks of an inline extent.
pub(super) const EXTENT_BLOCKS_MAX: u64 = NODE_WORDS;

/// Blocks below a pointer of a level.
pub(super) const fn span(level: u32) -> u64 {
    1 << (9 * level)
}

/// The lowest height of a tree that has block `index`.
pub(super) fn height_for(index: u64) -> u32 {
    (0..HEIGHT_MAX).find(|height| index < span(*height)).unwrap_or(HEIGHT_MAX)
}

/// Which word of a node of `level` leads to block `index`.
pub(super) fn slot_of(index: u64, level: u32) -> usize {
    (index / span(level - 1) % NODE_WORDS) as usize
}

/// Which words of a node of `level` whose first block is `base` lead to blocks of `range`.
pub(super) fn slots_of(range: &Range<u64>, level: u32, base: u64) -> Range<usize> {
    let step = span(level - 1);
    let from = range.start.saturating_sub(base) / step;
    let to = range.end.saturating_sub(base).div_ceil(step);
    from.min(NODE_WORDS) as usize..to.min(NODE_WORDS) as usize
}

/// A map node: one block.
#[repr(C, align(4096))]
pub(super) struct MapNode {
    /// Links, in the order of the blocks below them.
    pub words: [Commit64; NODE_WORDS as usize],
}
assert_layout!(MapNode, 4096, words @ 0);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for MapNode {}

/// A tree: a word, and the level of what it leads to (0: a data block).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tree {
    /// The word, in the form that it has in a node; zero: an empty tree, whose level means nothing.
    pub word: u64,
    /// Level of what the word leads to.
    pub level: u32,
}

impl Tree {
    /// The empty tree.
    pub const EMPTY: Tree = Tree { word: 0, level: 0 };

    /// The tree of a root word.
    pub fn from_root(root: u64) -> Result<Tree> {
        let level = (root & (INLINE_EXTENT - 1)) as u32;
        let flags = (root & LOW_BITS) >> ROOT_FLAGS_SHIFT;
        let is_row = root & INLINE_EXTENT != 0;
        let possible = match is_row {
            true => {
                level == 1
                    && flags & !BLOCK_SHARED == 0
                    && (2..=EXTENT_BLOCKS_MAX).contains(&(root >> EXTENT_COUNT_SHIFT))
            }
            false => level == 0 || (level <= HEIGHT_MAX && flags == 0),
        };
        if root != 0 && !possible {
            return Err(Corruption::BlockMap(root).into());
        }
        Ok(Tree { word: root & !LOW_BITS | flags | root & INLINE_EXTENT, level })
    }

    /// An inline extent of `count` blocks (at least one); `word`, as a data pointer, leads to the
    /// first.
    pub fn inline_extent(word: u64, count: u64) -> Tree {
        match count {
            1 => Tree { word, level: 0 },
            _ => Tree { word: word | INLINE_EXTENT | count << EXTENT_COUNT_SHIFT, level: 1 },
        }
    }

    /// Whether this is a root that is an inline extent.
    #[inline]
    pub fn is_inline_extent(self) -> bool {
        self.level == 1 && self.word & INLINE_EXTENT != 0
    }

    /// Blocks of an inline extent.
    pub fn extent_blocks(self) -> u64 {
        self.word >> EXTENT_COUNT_SHIFT
    }

    /// A block of an inline extent; empty behind its end.
    pub fn extent_block(self, index: u64) -> Tree {
        match index < self.extent_blocks() {
            true => Tree { word: (self.offset() | self.word & BLOCK_SHARED) + index * BLOCK_BYTES, level: 0 },
            false => Tree::EMPTY,
        }
    }

    /// The root word of a tree.
    pub fn to_root(self) -> u64 {
        match (self.word, self.level) {
            (0, _) => 0,
            (word, 0) => word & !LOW_BITS | (word & LOW_BITS) << ROOT_FLAGS_SHIFT,
            (word, 1) if self.is_inline_extent() => {
                word & !BLOCK_SHARED | (word & BLOCK_SHARED) << ROOT_FLAGS_SHIFT | 1
            }
            (word, level) => word | level as u64,
        }
    }

    /// Whether the tree is empty.
    pub fn is_empty(self) -> bool {
        self.word == 0
    }

    /// Offset on the image of the block or node.
    pub fn offset(self) -> u64 {
        self.word & OFFSET_BITS
    }

    /// Number of the block or node.
    pub fn block(self) -> u64 {
        self.offset() / BLOCK_BYTES
    }

    /// Whether this is a data block whose content counts.
    pub fn is_written(self) -> bool {
        self.word != 0 && self.word & BLOCK_UNWRITTEN == 0
    }

    /// Whether other pointers may name the data block.
    pub fn is_shared(self) -> bool {
        self.word & BLOCK_SHARED != 0
    }
}

/// Consecutive blocks of a body: data blocks (contiguous on the image, with equal flags) or a hole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// The first block; empty for a hole.
    pub first: Tree,
    /// Number of blocks.
    pub count: u64,
}

/// An element of a walk.
pub(super) struct Part<'n> {
    /// The block or node.
    pub tree: Tree,
    /// The first block of the body that it holds.
    pub index: u64,
    /// The word that led to it; none for the root.
    pub slot: Option<&'n Commit64>,
}

/// A part of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyPart {
    /// A map node.
    Node {
        /// Number of its block on the image.
        block: u64,
        /// Level: 1 leads to data.
        height: u32,
    },
    /// A data block.
    Data {
        /// Its index in the body.
        index: u64,
        /// Number of the block on the image.
        block: u64,
        /// `BLOCK_*` flags.
        flags: u64,
    },
}

/// The memory that holds the maps. Needs no file system, so that a checker can use it too.
pub(super) struct Map<'m, M: Memory> {
    pub pm: &'m Region<M>,
    /// Where data and nodes may be.
    data_block: u64,
    data_end: u64,
    /// The file system, whose image may have grown beyond that.
    regions: Option<&'m Regions<M>>,
}

impl<M: Memory> Clone for Map<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory> Copy for Map<'_, M> {}

impl<M: Memory> Regions<M> {
    pub(super) fn map(&self) -> Map<'_, M> {
        Map { pm: &self.pm, data_block: self.geometry.data_block, data_end: self.data_end_known(), regions: Some(self) }
    }
}

impl<'m, M: Memory> Map<'m, M> {
    fn of(pm: &'m Region<M>, geometry: &Geometry) -> Map<'m, M> {
        Map { pm, data_block: geometry.data_block, data_end: geometry.data_end(), regions: None }
    }

    /// No body has more nodes.
    fn nodes_max(&self) -> u64 {
        self.regions.map_or(self.data_end, Regions::blocks)
    }

    #[cold]
    #[inline(never)]
    fn is_in_growth(&self, block: u64) -> bool {
        self.regions.is_some_and(|regions| regions.reaches_after_growth(block + 1))
    }

    /// A word as a tree of `level`, if it leads to where data and nodes may be.
    #[inline]
    pub fn tree(&self, word: u64, level: u32) -> Result<Tree> {
        if word == 0 {
            return Ok(Tree::EMPTY);
        }
        let flags_known = if level == 0 { BLOCK_UNWRITTEN | BLOCK_SHARED } else { 0 };
        let block = word / BLOCK_BYTES;
        let inside = block >= self.data_block && (block < self.data_end || self.is_in_growth(block));
        if !inside || word & LOW_BITS & !flags_known != 0 {
            return Err(Corruption::BlockMap(word).into());
        }
        Ok(Tree { word, level })
    }

    /// The tree of a root word, checked.
    pub fn root(&self, root: u64) -> Result<Tree> {
        let tree = Tree::from_root(root)?;
        if tree.is_inline_extent() {
            // The blocks between these two are then inside, too.
            self.tree(tree.extent_block(0).word, 0)?;
            self.tree(tree.extent_block(tree.extent_blocks() - 1).word, 0)?;
            return Ok(tree);
        }
        self.tree(tree.word, tree.level)
    }

    /// The node of a checked tree of level 1 or more. An inline extent has none.
    #[inline]
    pub fn node(&self, tree: Tree) -> Result<&'m MapNode> {
        if tree.is_inline_extent() {
            return Err(Corruption::BlockMap(tree.word).into());
        }
        Ok(self.pm.get(Pm::new(tree.offset()))?)
    }

    /// The child `slot` of `tree`, seen as a tree of level `level`. A lower tree is its own first
    /// child, at any number of levels.
    #[inline]
    pub fn child(&self, tree: Tree, level: u32, slot: usize) -> Result<Tree> {
        if tree.is_empty() || (tree.level < level && slot != 0) {
            return Ok(Tree::EMPTY);
        }
        if tree.level < level {
            return Ok(tree);
        }
        if tree.is_inline_extent() {
            return Ok(tree.extent_block(slot as u64));
        }
        self.tree(self.node(tree)?.words[slot].load_acquire(), level - 1)
    }

    /// The run that begins with block `index`, at most `limit` blocks of it. It may end early where
    /// a node ends.
    pub fn run(&self, tree: Tree, index: u64, limit: u64) -> Result<Run> {
        let hole = |count: u64| Ok(Run { first: Tree::EMPTY, count: count.min(limit) });
        if tree.is_empty() || index >= span(tree.level) {
            return hole(limit);
        }
        if tree.is_inline_extent() {
            let first = tree.extent_block(index);
            let count = if first.is_empty() { limit } else { (tree.extent_blocks() - index).min(limit) };
            return Ok(Run { first, count });
        }
        let mut tree = tree;
        while tree.level > 0 {
            let node = self.node(tree)?;
            let slot = slot_of(index, tree.level);
            self.pm.report_read(tree.offset() + slot as u64 * 8, 8);
            let word = node.words[slot].load_acquire();
            let below = span(tree.level - 1);
            if word == 0 {
                let wanted = (limit.div_ceil(below) + 1).min(NODE_WORDS) as usize;
                let empty = node.words[slot..].iter().take(wanted).take_while(|word| word.load() == 0).count();
                // Other threads may store the word between the two loads.
                return hole(empty.max(1) as u64 * below - index % below);
            }
            tree = self.tree(word, tree.level - 1)?;
            if tree.level == 0 {
                let extent = node.words[slot..].iter().take(limit.min(NODE_WORDS) as usize).enumerate();
                let count =
                    extent.take_while(|(at, other)| other.load_acquire() == word + *at as u64 * BLOCK_BYTES).count();
                // The last block of the run decides whether all of it is inside.
                self.tree(word + (count as u64).saturating_sub(1) * BLOCK_BYTES, 0)?;
                return Ok(Run { first: tree, count: (count as u64).max(1) });
            }
        }
        Ok(Run { first: tree, count: 1 })
    }

    /// The data block at `index`, or empty.
    pub fn leaf(&self, tree: Tree, index: u64) -> Result<Tree> {
        Ok(self.run(tree, index, 1)?.first)
    }

    /// The first block of `range` that is not a hole.
    pub fn next_mapped(&self, tree: Tree, range: Range<u64>) -> Result<Option<u64>> {
        let mut at = range.start;
        while at < range.end {
            let run = self.run(tree, at, range.end - at)?;
            if !run.first.is_empty() {
                return Ok(Some(at));
            }
            at += run.count;
        }
        Ok(None)
    }

    /// The last block that is not a hole, of a tree that begins with block `base`.
    pub fn last_mapped(&self, tree: Tree, base: u64) -> Result<Option<u64>> {
        if tree.is_empty() || tree.level == 0 {
            return Ok((!tree.is_empty()).then_some(base));
        }
        for slot in (0..NODE_WORDS as usize).rev() {
            let child = self.child(tree, tree.level, slot)?;
            let found = self.last_mapped(child, base + slot as u64 * span(tree.level - 1))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Passes every part of a tree to `each`, a node after its children.
    pub fn walk(&self, tree: Tree, each: &mut dyn FnMut(Part<'m>) -> Result<()>) -> Result<()> {
        // A damaged image may lead to one node many times; no body has more nodes than the image
        // has blocks.
        let mut nodes_left = self.nodes_max();
        self.walk_from(Part { tree, index: 0, slot: None }, &mut nodes_left, each)
    }

    fn walk_from(
        &self,
        part: Part<'m>,
        nodes_left: &mut u64,
        each: &mut dyn FnMut(Part<'m>) -> Result<()>,
    ) -> Result<()> {
        let tree = part.tree;
        if tree.is_empty() {
            return Ok(());
        }
        if tree.is_inline_extent() {
            for index in 0..tree.extent_blocks() {
                each(Part { tree: tree.extent_block(index), index: part.index + index, slot: None })?;
            }
            return Ok(());
        }
        if tree.level > 0 {
            *nodes_left = nodes_left.checked_sub(1).ok_or(Corruption::BlockMap(tree.word))?;
            self.pm.report_read(tree.offset(), BLOCK_BYTES);
            for (line, words) in self.node(tree)?.words.chunks(WORDS_PER_LINE).enumerate() {
                // Most nodes are mostly empty.
                if words.iter().fold(0, |all, word| all | word.load()) == 0 {
                    continue;
                }
                for (slot, word) in words.iter().enumerate() {
                    let child = self.tree(word.load_acquire(), tree.level - 1)?;
                    let slot = (line * WORDS_PER_LINE + slot) as u64;
                    let index = part.index + slot * span(tree.level - 1);
                    self.walk_from(Part { tree: child, index, slot: Some(word) }, nodes_left, each)?;
                }
            }
        }
        each(part)
    }

    fn visit_data_from(&self, tree: Tree, nodes_left: &mut u64, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        if tree.is_empty() {
            return Ok(());
        }
        if tree.is_inline_extent() {
            let first = tree.extent_block(0).block();
            each(first..first + tree.extent_blocks());
            return Ok(());
        }
        if tree.level == 0 {
            each(tree.block()..tree.block() + 1);
            return Ok(());
        }
        *nodes_left = nodes_left.checked_sub(1).ok_or(Corruption::BlockMap(tree.word))?;
        self.pm.load(tree.offset(), BLOCK_BYTES)?;
        for word in &self.node(tree)?.words {
            let child = self.tree(word.load_acquire(), tree.level - 1)?;
            self.visit_data_from(child, nodes_left, each)?;
        }
        Ok(())
    }

    /// Passes what `one` has and `other` has not to `each`, a node after its children. Looks at the
    /// blocks of `range` only. Both trees begin with block `base` and are seen as trees of `level`.
    pub fn difference(
        &self,
        at: (u32, u64),
        range: &Range<u64>,
        (one, other): (Tree, Tree),
        each: &mut dyn FnMut(Tree) -> Result<()>,
    ) -> Result<()> {
        let (level, base) = at;
        if one.is_empty() || one == other {
            return Ok(());
        }
        if level == 0 {
            return if one.offset() == other.offset() { Ok(()) } else { each(one) };
        }
        let lifted = one.level < level || (other.level < level && !other.is_empty());
        let slots = if lifted { 0..NODE_WORDS as usize } else { slots_of(range, level, base) };
        for slot in slots {
            let pair = (self.child(one, level, slot)?, self.child(other, level, slot)?);
            self.difference((level - 1, base + slot as u64 * span(level - 1)), range, pair, each)?;
        }
        if one.level == level && !one.is_inline_extent() { each(one) } else { Ok(()) }
    }

    /// Writes a whole node to the block at `offset`: `words` words from `word`, then zeros. From
    /// the first error on the words are zero. The error is returned beside the token, so that the
    /// caller can walk what was built and free it.
    pub fn write_node(
        &self,
        offset: u64,
        words: usize,
        word: &mut dyn FnMut(usize) -> Result<u64>,
    ) -> Result<(Flushed, Option<Error>)> {
        const PIECE_WORDS: usize = 64;
        let mut flushed = Flushed::nothing();
        let mut failure = None;
        let words = words.min(NODE_WORDS as usize);
        let pieces = words.div_ceil(PIECE_WORDS);
        for piece in 0..pieces {
            let mut bytes = [0u8; PIECE_WORDS * 8];
            for (at, into) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let index = piece * PIECE_WORDS + at;
                if failure.is_some() || index >= words {
                    break;
                }
                match word(index) {
                    Ok(word) => *into = word.to_le_bytes(),
                    Err(error) => failure = Some(error),
                }
            }
            flushed = flushed.and(self.pm.stream_bytes(offset + (piece * bytes.len()) as u64, &bytes)?);
        }
        let written = (pieces * PIECE_WORDS * 8) as u64;
        let rest = self.pm.stream_zeros(offset + written, BLOCK_BYTES - written)?;
        Ok((flushed.and(rest), failure))
    }
}

/// Frees all blocks of a body that no reader can reach, at once.
pub(crate) fn free_body<M: Memory>(owner: &SlotOwner<'_, M>, root: u64) -> Result<()> {
    let map = owner.fs.map();
    let mut freed = BlockFreer::new(owner);
    map.walk(map.root(root)?, &mut |part| freed.tree(part.tree))?;
    freed.finish()
}

/// Contiguous blocks or nodes on the image.
pub(crate) struct Blocks {
    /// The run.
    pub run: BlockRun,
    /// Whether other pointers may name them too.
    pub shared: bool,
}

/// Contiguous blocks, collected one by one for callbacks that take runs.
struct RunCollector<'r> {
    blocks: Blocks,
    emit: &'r mut dyn FnMut(Blocks) -> Result<()>,
}

impl RunCollector<'_> {
    fn new(give: &mut dyn FnMut(Blocks) -> Result<()>) -> RunCollector<'_> {
        RunCollector { blocks: Blocks { run: BlockRun { first: 0, count: 0 }, shared: false }, emit: give }
    }

    fn add(&mut self, tree: Tree) -> Result<()> {
        let shared = tree.level == 0 && tree.is_shared();
        let Blocks { run, shared: before } = &mut self.blocks;
        if run.count > 0 && tree.block() == run.first + run.count && shared == *before {
            run.count += 1;
            return Ok(());
        }
        self.finish()?;
        self.blocks = Blocks { run: BlockRun { first: tree.block(), count: 1 }, shared };
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let empty = Blocks { run: BlockRun { first: 0, count: 0 }, shared: false };
        let blocks = core::mem::replace(&mut self.blocks, empty);
        if blocks.run.count > 0 { (self.emit)(blocks) } else { Ok(()) }
    }
}

/// After a crash: passes the blocks of a body to `mark`, and if `clears`, clears what a write or a
/// truncation left behind the end of the file. Returns the number of blocks of the body.
///
/// Cleared blocks are not marked, so they are free. A crash while clearing leaves less to clear.
pub(crate) fn recover_body<M: Memory>(
    regions: &Regions<M>,
    property: &Property,
    clears: bool,
    mark: &mut dyn FnMut(Blocks) -> Result<()>,
) -> Result<u64> {
    if property.flags & PROPERTY_INLINE != 0 {
        return Ok(0);
    }
    let map = regions.map();
    let blocks_visible = property.size_bytes.div_ceil(BLOCK_BYTES);
    let mut extent = RunCollector::new(mark);
    let mut counted = 0;
    let mut cleared = false;
    map.walk(map.root(property.root)?, &mut |part| {
        let behind = part.index >= blocks_visible;
        let gone = match part.tree.level {
            0 => behind && part.tree.is_written(),
            _ => behind && map.node(part.tree)?.words.iter().all(|word| word.load() == 0),
        };
        if let (true, Some(slot), true) = (gone, part.slot, clears) {
            let dirty: Dirty = regions.pm.retract(slot, 0);
            regions.pm.flush(dirty).unfenced();
            cleared = true;
            return Ok(());
        }
        counted += 1;
        extent.add(part.tree)
    })?;
    extent.finish()?;
    if cleared {
        regions.pm.fence_unfenced();
    }
    Ok(counted)
}

/// The blocks of a root word that is an inline extent: a data pointer to the first (offset and
/// `BLOCK_*` flags), and their number. `None`: the root leads to a block, to nodes, or to nothing.
pub fn inline_extent_of_root(root: u64) -> Option<(u64, u64)> {
    let tree = Tree::from_root(root).ok()?;
    tree.is_inline_extent().then(|| (tree.extent_block(0).word, tree.extent_blocks()))
}

/// Passes every part of a body to `each`, a node after its children. Fails where the map leads
/// outside the data area.
pub fn visit_body<M: Memory>(
    pm: &Region<M>,
    geometry: &Geometry,
    root: u64,
    each: &mut dyn FnMut(BodyPart),
) -> Result<()> {
    let map = Map::of(pm, geometry);
    map.walk(map.root(root)?, &mut |part| {
        each(match part.tree.level {
            0 => BodyPart::Data { index: part.index, block: part.tree.block(), flags: part.tree.word & LOW_BITS },
            height => BodyPart::Node { block: part.tree.block(), height },
        });
        Ok(())
    })
}

/// Loads the nodes of a body, and passes its data blocks to `each`. For a region of which only some
/// pages are resident.
pub(crate) fn visit_data<M: Memory>(
    pm: &Region<M>,
    geometry: &Geometry,
    root: u64,
    each: &mut dyn FnMut(Range<u64>),
) -> Result<()> {
    let map = Map::of(pm, geometry);
    let mut nodes_left = map.nodes_max();
    map.visit_data_from(map.root(root)?, &mut nodes_left, each)
}

/// Records the owner of all blocks of a body that are about to lose their last pointer.
pub(crate) fn mark_body_of<M: Memory>(owner: &SlotOwner<'_, M>, root: u64) -> Result<()> {
    let map = owner.fs.map();
    map.walk(map.root(root)?, &mut |part| mark_tree(owner, part.tree))
}

/// Passes the blocks of a body to `mark`.
pub(crate) fn mark_body<M: Memory>(
    regions: &Regions<M>,
    root: u64,
    mark: &mut dyn FnMut(Blocks) -> Result<()>,
) -> Result<()> {
    let map = regions.map();
    let mut extent = RunCollector::new(mark);
    map.walk(map.root(root)?, &mut |part| extent.add(part.tree))?;
    extent.finish()
}
