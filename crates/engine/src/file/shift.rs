//! Collapsing and inserting ranges: the same blocks at other positions. Builds a new tree of nodes
//! over them, which one property entry makes visible.
//!
//! Invariants
//! - Nodes that lead only to blocks before the cut are kept; all others are new, so that nothing
//!   visible changes while building.
//! - No data is copied. If building fails, the new nodes are freed and nothing has changed.

use super::map::{BLOCKS_MAX, Map, NODE_WORDS, SIZE_BYTES_MAX, Tree, height_for, span};
use super::mapping::is_mapped;
use super::release::{BlockFreer, mark_tree};
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::format::Property;
use crate::slot_owner::SlotOwner;
use core::ops::Range;
use pmem::{BLOCK_BYTES, Memory};

/// The new position of each block: up to `cut` as before; from `begin` on those that were at `from`
/// and after; a hole between them.
#[derive(Clone, Copy)]
struct BlockShift {
    cut: u64,
    begin: u64,
    from: u64,
}

impl BlockShift {
    /// The previous position of block `index`.
    fn source(&self, index: u64) -> Option<u64> {
        match index {
            _ if index < self.cut => Some(index),
            _ if index < self.begin => None,
            _ => Some(index - self.begin + self.from),
        }
    }

    /// The previous positions of blocks `range`, as two ranges.
    fn sources(&self, range: &Range<u64>) -> [Range<u64>; 2] {
        let moved = |at: u64| (at.max(self.begin) - self.begin + self.from).min(BLOCKS_MAX);
        [range.start.min(self.cut)..range.end.min(self.cut), moved(range.start)..moved(range.end)]
    }
}

struct Builder<'t, 'f, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
    map: Map<'t, M>,
    old: Tree,
    moves: BlockShift,
    added: u64,
}

impl<M: Memory> Builder<'_, '_, M> {
    /// The new tree of `level` that begins with block `base`. `same`: what the old tree has there.
    fn build(&mut self, level: u32, base: u64, same: Tree) -> Result<Tree> {
        let end = base + span(level);
        if end <= self.moves.cut && (same.is_empty() || (same.level == level && !same.is_inline_extent())) {
            return Ok(same);
        }
        if level == 0 {
            return match self.moves.source(base) {
                Some(source) if source < BLOCKS_MAX => self.map.leaf(self.old, source),
                _ => Ok(Tree::EMPTY),
            };
        }
        let mut empty = true;
        for sources in self.moves.sources(&(base..end)) {
            empty = empty && self.map.next_mapped(self.old, sources)?.is_none();
        }
        if empty && !self.keeps_nodes(level, base, same)? { Ok(Tree::EMPTY) } else { self.node(level, base, same) }
    }

    /// Whether nodes of the old tree lie wholly before the cut, and so stay; there may be nothing
    /// below them.
    fn keeps_nodes(&self, level: u32, base: u64, same: Tree) -> Result<bool> {
        if level <= 1 || same.is_empty() {
            return Ok(false);
        }
        let below = level - 1;
        for slot in 0..NODE_WORDS as usize {
            let base = base + slot as u64 * span(below);
            if base >= self.moves.cut {
                break;
            }
            let child = self.map.child(same, level, slot)?;
            let stays = !child.is_empty() && child.level == below && base + span(below) <= self.moves.cut;
            if stays || self.keeps_nodes(below, base, child)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn node(&mut self, level: u32, base: u64, same: Tree) -> Result<Tree> {
        let word = self.owner.allocator().allocate_blocks(1)?.first * BLOCK_BYTES;
        self.added += 1;
        let map = self.map;
        let (flushed, failure) = map.write_node(word, NODE_WORDS as usize, &mut |slot| {
            let child = map.child(same, level, slot)?;
            Ok(self.build(level - 1, base + slot as u64 * span(level - 1), child)?.word)
        })?;
        // Fenced before the property entry names the root.
        flushed.unfenced();
        match failure {
            None => Ok(Tree { word, level }),
            Some(error) => {
                self.discard(Tree { word, level }, base)?;
                Err(error)
            }
        }
    }

    /// Frees the new nodes of a tree, bottom up.
    fn discard(&self, tree: Tree, base: u64) -> Result<()> {
        // An inline extent has no nodes that could have been kept.
        if tree.level == 0 || (base + span(tree.level) <= self.moves.cut && !self.old.is_inline_extent()) {
            return Ok(());
        }
        for slot in 0..NODE_WORDS as usize {
            let child = self.map.child(tree, tree.level, slot)?;
            if !child.is_empty() {
                self.discard(child, base + slot as u64 * span(tree.level - 1))?;
            }
        }
        let mut freed = BlockFreer::new(self.owner);
        freed.tree(tree)?;
        freed.finish()
    }
}

impl<M: Memory> Files<'_, '_, M> {
    /// Takes `length` bytes at `offset` out of a file.
    pub(super) fn collapse(self, cachelet: &Cachelet, property: &Property, offset: u64, length: u64) -> Result<()> {
        if !(offset | length).is_multiple_of(BLOCK_BYTES) || offset + length >= property.size_bytes {
            return Err(Error::Invalid);
        }
        let (cut, count) = (offset / BLOCK_BYTES, length / BLOCK_BYTES);
        let moves = BlockShift { cut, begin: cut, from: cut + count };
        self.shift(cachelet, property, moves, property.size_bytes - length, cut..cut + count)
    }

    /// Inserts a hole of `length` bytes into a file at `offset`.
    pub(super) fn insert(self, cachelet: &Cachelet, property: &Property, offset: u64, length: u64) -> Result<()> {
        if !(offset | length).is_multiple_of(BLOCK_BYTES) || offset >= property.size_bytes {
            return Err(Error::Invalid);
        }
        if length > SIZE_BYTES_MAX - property.size_bytes {
            return Err(Error::TooLarge);
        }
        let (cut, count) = (offset / BLOCK_BYTES, length / BLOCK_BYTES);
        let moves = BlockShift { cut, begin: cut + count, from: cut };
        self.shift(cachelet, property, moves, property.size_bytes + length, 0..0)
    }

    /// Recovery sees the old tree until the property entry is durable, and the new one from then
    /// on.
    fn shift(
        self,
        cachelet: &Cachelet,
        property: &Property,
        moves: BlockShift,
        size_after: u64,
        dropped: Range<u64>,
    ) -> Result<()> {
        if is_mapped(cachelet) {
            // The mapped blocks must keep their positions.
            return Err(Error::Busy);
        }
        let map = self.owner.fs.map();
        let old = map.root(property.root)?;
        let last = match map.last_mapped(old, 0)? {
            Some(last) if last >= moves.from => last - moves.from + moves.begin,
            Some(last) => last,
            None => 0,
        };
        if last >= BLOCKS_MAX {
            return Err(Error::TooLarge);
        }
        let mut builder = Builder { owner: self.owner, map, old, moves, added: 0 };
        let level = height_for(last).max(if old.is_empty() { 0 } else { old.level });
        let new = builder.build(level, 0, old)?;
        let added = builder.added;
        let durable = self.owner.fs.pm.fence_unfenced();
        let gone = |index: u64, level: u32| match level {
            0 => dropped.contains(&index),
            _ => index + span(level) > moves.cut,
        };
        let mut removed = 0;
        map.walk(old, &mut |part| {
            let gone = gone(part.index, part.tree.level);
            removed += gone as u64;
            if gone { mark_tree(self.owner, part.tree) } else { Ok(()) }
        })?;
        let mut after = self.changed_now(property);
        after.size_bytes = size_after;
        after.root = new.to_root();
        after.blocks = (property.blocks + added).saturating_sub(removed);
        self.finish_change(cachelet, &after, durable)?;
        let mut freed = BlockFreer::new(self.owner);
        map.walk(old, &mut |part| if gone(part.index, part.tree.level) { freed.tree(part.tree) } else { Ok(()) })?;
        freed.finish()
    }
}
