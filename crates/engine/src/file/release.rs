//! Allocating blocks and giving them back.
//!
//! Blocks that lost their last pointer are free at once, without a grace period, although readers
//! take no lock. This is sound because a reader's result counts only if the file's version has not
//! changed (see [`super::read`]), and because a walk checks every word that it follows. A grace
//! period would sometimes have to be waited for under the file's lock, for which pinned threads may
//! wait.
//!
//! Invariants
//! - Blocks are freed only after a fence that follows the store which removed their last pointer,
//!   and after the file's version has advanced since that store (or where no reader's length
//!   reaches them).
//! - Before the last pointer to a block is removed, the block is marked as the inode's. So a reaper
//!   finds it if this thread dies before it is free.
//! - A shared block loses one reference; only the last one frees it. If its thread dies between the
//!   store and the count, the count is too high and the block is lost until the next scan.
//!   Therefore the last process to leave does not leave the image clean.

use super::map::{BLOCK_UNWRITTEN, BLOCKS_MAX, Map, Tree, slots_of, span};
use crate::alloc::BlockRun;
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::Result;
use crate::slot_owner::SlotOwner;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, Release};
use pmem::{BLOCK_BYTES, Commit64, Dirty, Memory};

/// Pieces that are freed in one step, after one fence.
const PIECES: usize = 32;

/// Whether removing a pointer frees its block; if the block is shared, one reference is dropped.
fn drop_reference<M: Memory>(owner: &SlotOwner<'_, M>, tree: Tree) -> Result<bool> {
    if tree.level > 0 || !tree.is_shared() {
        return Ok(true);
    }
    owner.fs.block_map().unshare_block(tree.block())
}

/// Before its pointer is removed: records the owner of a block or node. A shared block has
/// none.
pub(super) fn mark_tree<M: Memory>(owner: &SlotOwner<'_, M>, tree: Tree) -> Result<()> {
    if tree.level == 0 && tree.is_shared() {
        return Ok(());
    }
    owner.fs.block_map().mark_owner(BlockRun { first: tree.block(), count: 1 }, owner.block_owner())
}

/// Frees blocks at once, contiguous ones together.
pub(super) struct BlockFreer<'t, 'f, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
    run: BlockRun,
}

impl<'t, 'f, M: Memory> BlockFreer<'t, 'f, M> {
    pub fn new(owner: &'t SlotOwner<'f, M>) -> Self {
        BlockFreer { owner, run: BlockRun { first: 0, count: 0 } }
    }

    /// One data block or node (not what is below it).
    pub fn tree(&mut self, tree: Tree) -> Result<()> {
        if !drop_reference(self.owner, tree)? {
            return Ok(());
        }
        if self.run.count > 0 && tree.block() == self.run.first + self.run.count {
            self.run.count += 1;
            return Ok(());
        }
        let run = core::mem::replace(&mut self.run, BlockRun { first: tree.block(), count: 1 });
        if run.count > 0 { self.owner.allocator().free_blocks(run) } else { Ok(()) }
    }

    /// Frees the pending run.
    pub fn finish(self) -> Result<()> {
        if self.run.count > 0 { self.owner.allocator().free_blocks(self.run) } else { Ok(()) }
    }
}

impl<M: Memory> Files<'_, '_, M> {
    /// Before a change: records the owner of what the tree `old` has and `new` has not.
    pub(super) fn mark_difference(self, at: (u32, u64), range: &Range<u64>, old: Tree, new: Tree) -> Result<()> {
        self.owner.fs.map().difference(at, range, (old, new), &mut |tree| mark_tree(self.owner, tree))
    }

    /// Frees what the tree `old` has and `new` has not. The change is durable and published. An
    /// error here means a damaged image; the blocks are then lost until the next scan, but the
    /// change stands.
    pub(super) fn free_difference(self, at: (u32, u64), range: &Range<u64>, old: Tree, new: Tree) -> Result<()> {
        let mut freed = BlockFreer::new(self.owner);
        self.owner.fs.map().difference(at, range, (old, new), &mut |tree| freed.tree(tree))?;
        freed.finish()
    }
}

/// Blocks allocated ahead, contiguous where possible.
pub(super) struct Supply {
    run: BlockRun,
}

impl Supply {
    pub const EMPTY: Supply = Supply { run: BlockRun { first: 0, count: 0 } };

    /// Between one and `count` contiguous blocks, of the `wanted` that the operation may still
    /// need.
    pub fn take<M: Memory>(&mut self, owner: &SlotOwner<'_, M>, count: u64, wanted: u64) -> Result<BlockRun> {
        if self.run.count == 0 {
            self.run = owner.allocator().allocate_blocks(wanted.max(count))?;
        }
        let count = count.min(self.run.count);
        let run = BlockRun { first: self.run.first, count };
        self.run = BlockRun { first: run.first + count, count: self.run.count - count };
        Ok(run)
    }

    /// The block that is taken next, of the `wanted` that the operation may still need.
    pub fn next<M: Memory>(&mut self, owner: &SlotOwner<'_, M>, wanted: u64) -> Result<u64> {
        if self.run.count == 0 {
            self.run = owner.allocator().allocate_blocks(wanted)?;
        }
        Ok(self.run.first)
    }

    /// Gives back unused blocks.
    pub fn give_back<M: Memory>(&mut self, owner: &SlotOwner<'_, M>) -> Result<()> {
        let run = core::mem::replace(&mut self.run, BlockRun { first: 0, count: 0 });
        if run.count > 0 { owner.allocator().free_blocks(run) } else { Ok(()) }
    }
}

/// What [`Clearing`] does with data pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClearMode {
    /// Removes all.
    All,
    /// Removes written ones. Unwritten ones are space that fallocate reserved behind the end, and
    /// stay.
    Written,
    /// Keeps the blocks where programs have mapped them: they are filled with zeros, and marked
    /// unwritten where they are behind the end.
    Mapped {
        /// Mark them unwritten.
        behind_end: bool,
    },
}

/// Clears the pointers to a range of blocks in place, and frees the blocks below. A cleared pointer
/// reads as a hole at once, so a crash in between leaves part of the range cleared.
pub(super) struct Clearing<'t, 'f, M: Memory> {
    map: Map<'t, M>,
    range: Range<u64>,
    mode: ClearMode,
    /// A node that stays, even if it is empty: something else names it, too.
    kept_node: Tree,
    owner: &'t SlotOwner<'f, M>,
    cachelet: &'t Cachelet,
    /// Trees that lost their pointer, subtrees as a whole, and are not freed yet.
    cut: [Tree; PIECES],
    cut_count: usize,
    /// Cleared words that are not flushed yet: neighbours in one node.
    pending: Option<Dirty>,
    /// Blocks and nodes released.
    removed: u64,
}

impl<'t, 'f, M: Memory> Clearing<'t, 'f, M> {
    pub fn new(owner: &'t SlotOwner<'f, M>, cachelet: &'t Cachelet, range: Range<u64>, mode: ClearMode) -> Self {
        let (map, cut) = (owner.fs.map(), [Tree::EMPTY; PIECES]);
        Clearing {
            map,
            range,
            mode,
            kept_node: Tree::EMPTY,
            owner,
            cachelet,
            cut,
            cut_count: 0,
            pending: None,
            removed: 0,
        }
    }

    /// Clears as before, except that one node is kept.
    pub fn keeping(self, kept: Tree) -> Self {
        Clearing { kept_node: kept, ..self }
    }

    /// Clears below the node `root`, which itself stays. Returns the number of blocks and nodes
    /// released, and whether the node is empty now.
    pub fn run(mut self, root: Tree) -> Result<(u64, bool)> {
        let empty = self.node(root, 0)?;
        self.free_cut()?;
        Ok((self.removed, empty))
    }

    fn node(&mut self, tree: Tree, base: u64) -> Result<bool> {
        let node = self.map.node(tree)?;
        for slot in slots_of(&self.range, tree.level, base) {
            let cell = &node.words[slot];
            let child = self.map.tree(cell.load_acquire(), tree.level - 1)?;
            if child.is_empty() {
                continue;
            }
            match child.level {
                0 => self.leaf(cell, child)?,
                _ => self.subtree(cell, child, base + slot as u64 * span(child.level))?,
            }
        }
        self.flush();
        Ok(node.words.iter().all(|word| word.load() == 0))
    }

    fn leaf(&mut self, cell: &Commit64, leaf: Tree) -> Result<()> {
        let pm = self.map.pm;
        match self.mode {
            ClearMode::Written if !leaf.is_written() => Ok(()),
            ClearMode::Mapped { behind_end } if !leaf.is_shared() => {
                if leaf.is_written() {
                    // What no program has mapped may be elsewhere; hidden, it need not be zeros.
                    if !behind_end || pm.is_resident(leaf.offset(), BLOCK_BYTES) {
                        self.owner.fs.provider().load(leaf.offset(), BLOCK_BYTES)?;
                        pm.stream_zeros(leaf.offset(), BLOCK_BYTES)?.unfenced();
                    }
                    if behind_end {
                        // It names the same block and hides its content.
                        let dirty = pm.retract(cell, leaf.word | BLOCK_UNWRITTEN);
                        self.add_dirty(dirty);
                    }
                }
                Ok(())
            }
            _ => {
                mark_tree(self.owner, leaf)?;
                let dirty = pm.retract(cell, 0);
                self.add_dirty(dirty);
                self.removed += 1;
                self.cut_off(leaf)
            }
        }
    }

    fn subtree(&mut self, cell: &Commit64, child: Tree, base: u64) -> Result<()> {
        let covered = self.range.start <= base && base + span(child.level) <= self.range.end;
        if covered && self.mode == ClearMode::All {
            let mut removed = 0;
            self.map.walk(child, &mut |part| {
                removed += 1;
                mark_tree(self.owner, part.tree)
            })?;
            self.removed += removed;
            let dirty = self.map.pm.retract(cell, 0);
            self.add_dirty(dirty);
            return self.cut_off(child);
        }
        // The words cleared so far are in another node: not neighbours.
        self.flush();
        if self.node(child, base)? && child != self.kept_node {
            mark_tree(self.owner, child)?;
            let dirty = self.map.pm.retract(cell, 0);
            self.add_dirty(dirty);
            self.removed += 1;
            self.cut_off(child)?;
        }
        Ok(())
    }

    fn cut_off(&mut self, tree: Tree) -> Result<()> {
        self.cut[self.cut_count] = tree;
        self.cut_count += 1;
        if self.cut_count == PIECES { self.free_cut() } else { Ok(()) }
    }

    /// Makes the cleared words durable and frees the trees below them.
    fn free_cut(&mut self) -> Result<()> {
        self.flush();
        self.map.pm.fence_unfenced();
        // A reader that still follows a removed pointer reads again.
        let version = self.cachelet.version.load(Relaxed);
        self.cachelet.version.store(version.wrapping_add(2), Release);
        let mut freed = BlockFreer::new(self.owner);
        for tree in &self.cut[..core::mem::take(&mut self.cut_count)] {
            self.map.walk(*tree, &mut |part| freed.tree(part.tree))?;
        }
        freed.finish()
    }

    fn add_dirty(&mut self, dirty: Dirty) {
        self.pending = Some(match self.pending.take() {
            None => dirty,
            Some(before) => before.and(dirty),
        });
    }

    fn flush(&mut self) {
        if let Some(dirty) = self.pending.take() {
            // Fenced before anything is freed.
            self.map.pm.flush(dirty).unfenced();
        }
    }
}

/// Everything from block `first` on.
pub(super) fn from_block(first: u64) -> Range<u64> {
    first..BLOCKS_MAX
}
