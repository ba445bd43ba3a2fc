//! Getting blocks and giving them back: runs for new content, immediate freeing, and retirement of what lock-free readers may still look at.
//!
//! Invariants
//! - Blocks are retired only after a fence behind the store that took the last pointer to them away.
//! - Retiring happens in small steps with [`Thread::make_room`] between them, and never under a pin: a full queue waits for readers to leave.
//!   Whoever reads gives up its pin before it waits for a file's lock, so this always ends.
//! - A shared block loses one reference; only the last one frees it.

use super::map::{BLOCK_UNWRITTEN, BLOCKS_MAX, Map, Tree, slots_of, span};
use crate::alloc::BlockRun;
use crate::dram::RetiredKind;
use crate::error::Result;
use crate::fs::Thread;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use pmem::{BLOCK_BYTES, Commit64, Dirty, Flushed, Memory};

/// Records that are retired in one step: below what the queue guarantees to a single operation.
const RECORDS: usize = 32;

/// Whether a block is to be freed by whoever drops a pointer to it; takes one reference away if it is shared.
fn drop_reference<M: Memory>(thread: &Thread<'_, M>, tree: Tree) -> Result<bool> {
    if tree.level > 0 || !tree.is_shared() {
        return Ok(true);
    }
    let shares = thread.fs.dram.block_shares(tree.block())?;
    Ok(shares.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1)).is_err())
}

/// Frees blocks at once, neighbours together.
pub(super) struct Freed<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
    run: BlockRun,
}

impl<'t, 'f, M: Memory> Freed<'t, 'f, M> {
    pub fn new(thread: &'t Thread<'f, M>) -> Self {
        Freed { thread, run: BlockRun { first: 0, count: 0 } }
    }

    /// One data block or node (not what is below it).
    pub fn tree(&mut self, tree: Tree) -> Result<()> {
        if !drop_reference(self.thread, tree)? {
            return Ok(());
        }
        if self.run.count > 0 && tree.block() == self.run.first + self.run.count {
            self.run.count += 1;
            return Ok(());
        }
        let run = core::mem::replace(&mut self.run, BlockRun { first: tree.block(), count: 1 });
        if run.count > 0 { self.thread.free_blocks(run) } else { Ok(()) }
    }

    /// The rest.
    pub fn finish(self) -> Result<()> {
        if self.run.count > 0 { self.thread.free_blocks(self.run) } else { Ok(()) }
    }
}

/// What waits in a [`Released`].
#[derive(Clone, Copy)]
enum Record {
    Blocks(BlockRun),
    Body(u64),
}

/// Collects what lost its last pointer, and retires it after a fence.
pub(super) struct Released<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
    records: [Record; RECORDS],
    count: usize,
}

impl<'t, 'f, M: Memory> Released<'t, 'f, M> {
    pub fn new(thread: &'t Thread<'f, M>) -> Self {
        Released { thread, records: [Record::Body(0); RECORDS], count: 0 }
    }

    /// Whether the next record needs a [`Released::settle`] first.
    pub fn is_full(&self) -> bool {
        self.count == RECORDS
    }

    /// One data block or node (not what is below it). There is room.
    pub fn tree(&mut self, tree: Tree) -> Result<()> {
        if !drop_reference(self.thread, tree)? {
            return Ok(());
        }
        if let Some(Record::Blocks(run)) = self.records[..self.count].last_mut()
            && run.first + run.count == tree.block()
        {
            run.count += 1;
            return Ok(());
        }
        self.add(Record::Blocks(BlockRun { first: tree.block(), count: 1 }));
        Ok(())
    }

    /// A tree with all that is below it. There is room.
    pub fn body(&mut self, tree: Tree) {
        self.add(Record::Body(tree.to_root()));
    }

    fn add(&mut self, record: Record) {
        debug_assert!(!self.is_full(), "settle first");
        self.records[self.count] = record;
        self.count += 1;
    }

    /// Fences, so that the pointers are durably gone, and retires what was collected.
    pub fn settle(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        self.thread.fs.pm.fence(Flushed::nothing());
        self.thread.make_room()?;
        for record in &self.records[..self.count] {
            match *record {
                Record::Blocks(run) => self.thread.retire(RetiredKind::Blocks, run.first, run.count),
                Record::Body(root) => self.thread.retire(RetiredKind::Body, root, 0),
            }
        }
        self.count = 0;
        Ok(())
    }
}

impl<M: Memory> Thread<'_, M> {
    /// Retires what the tree `old` has and `new` has not, after a fence that made the change durable. An error here means a damaged image; the
    /// blocks are then lost until the next recovery, but the change stands.
    pub(super) fn retire_difference(&self, at: (u32, u64), range: &Range<u64>, old: Tree, new: Tree) -> Result<()> {
        let mut released = Released::new(self);
        self.fs.map().difference(at, range, (old, new), &mut |tree| {
            if released.is_full() {
                released.settle()?;
            }
            released.tree(tree)
        })?;
        released.settle()
    }
}

/// Blocks allocated ahead, in a row where that can be had.
pub(super) struct Supply {
    run: BlockRun,
}

impl Supply {
    pub const EMPTY: Supply = Supply { run: BlockRun { first: 0, count: 0 } };

    /// Between one and `count` blocks in a row, of the `wanted` that the operation may still need.
    pub fn take<M: Memory>(&mut self, thread: &Thread<'_, M>, count: u64, wanted: u64) -> Result<BlockRun> {
        if self.run.count == 0 {
            self.run = thread.allocate_blocks(wanted.max(count))?;
        }
        let count = count.min(self.run.count);
        let run = BlockRun { first: self.run.first, count };
        self.run = BlockRun { first: run.first + count, count: self.run.count - count };
        Ok(run)
    }

    /// Gives back what was not used.
    pub fn give_back<M: Memory>(&mut self, thread: &Thread<'_, M>) -> Result<()> {
        let run = core::mem::replace(&mut self.run, BlockRun { first: 0, count: 0 });
        if run.count > 0 { thread.free_blocks(run) } else { Ok(()) }
    }
}

/// What [`Clearing`] does with data pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClearMode {
    /// All go.
    All,
    /// Written ones go; unwritten ones are room that fallocate reserved behind the end, and stay.
    Written,
    /// Blocks stay where programs have mapped them: filled with zeros, and marked unwritten where they are behind the end.
    Mapped {
        /// Mark them unwritten.
        behind_end: bool,
    },
}

/// Clears the pointers to a range of blocks in place, and releases what they led to. At every moment a cleared pointer reads as a hole, so a
/// crash in between leaves part of the range cleared.
pub(super) struct Clearing<'t, 'f, M: Memory> {
    map: Map<'t, M>,
    range: Range<u64>,
    mode: ClearMode,
    released: Released<'t, 'f, M>,
    /// Cleared words that are not flushed yet: neighbours in one node.
    pending: Option<Dirty>,
    /// Blocks and nodes released.
    removed: u64,
}

impl<'t, 'f, M: Memory> Clearing<'t, 'f, M> {
    pub fn new(thread: &'t Thread<'f, M>, range: Range<u64>, mode: ClearMode) -> Self {
        Clearing { map: thread.fs.map(), range, mode, released: Released::new(thread), pending: None, removed: 0 }
    }

    /// Clears below the node `root`, which itself stays; how many blocks and nodes were released, and whether the node is empty now.
    pub fn run(mut self, root: Tree) -> Result<(u64, bool)> {
        let empty = self.node(root, 0)?;
        self.flush();
        self.released.settle()?;
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
            if self.released.is_full() {
                self.flush();
                self.released.settle()?;
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
                    let zeros = pm.stream_zeros(leaf.offset(), BLOCK_BYTES)?;
                    if behind_end {
                        // Names the block that it named: nothing that would have to be durable becomes visible.
                        let dirty = pm.commit(cell, leaf.word | BLOCK_UNWRITTEN, zeros.sealed());
                        self.note(dirty);
                    }
                }
                Ok(())
            }
            _ => {
                let dirty = pm.retract(cell, 0);
                self.note(dirty);
                self.removed += 1;
                self.released.tree(leaf)
            }
        }
    }

    fn subtree(&mut self, cell: &Commit64, child: Tree, base: u64) -> Result<()> {
        let covered = self.range.start <= base && base + span(child.level) <= self.range.end;
        if covered && self.mode == ClearMode::All {
            self.removed += self.map.count(child)?;
            let dirty = self.map.pm.retract(cell, 0);
            self.note(dirty);
            self.released.body(child);
            return Ok(());
        }
        // The words cleared so far are in another node: not neighbours.
        self.flush();
        if self.node(child, base)? {
            if self.released.is_full() {
                self.released.settle()?;
            }
            let dirty = self.map.pm.retract(cell, 0);
            self.note(dirty);
            self.removed += 1;
            self.released.tree(child)?;
        }
        Ok(())
    }

    fn note(&mut self, dirty: Dirty) {
        self.pending = Some(match self.pending.take() {
            None => dirty,
            Some(before) => before.and(dirty),
        });
    }

    fn flush(&mut self) {
        if let Some(dirty) = self.pending.take() {
            // Fenced by the settling.
            self.map.pm.flush(dirty).unfenced();
        }
    }
}

/// Everything from block `first` on.
pub(super) fn from_block(first: u64) -> Range<u64> {
    first..BLOCKS_MAX
}

