//! Trees of blocks: nodes of 512 pointers, with a height that follows the file's length. A file of
//! one block has no node.
//!
//! A pointer in a node is set once its target is durable. It needs no undo entry: data is written
//! in place, and blocks beyond the end of a file belong to no file. The root is in the inode and
//! changes with it.

use super::Pmfs;
use super::format::{FANOUT, HEIGHT_MAX};
use crate::error::{Error, Result};
use pmem::{BLOCK_BYTES, Cell64, Flushed, Memory, Pm};
use posix::Errno;
use std::collections::BTreeMap;

/// Called with a node (no page) or data block: its page, its offset, and the pointer in a node that
/// leads to it.
type Visit<'v> = dyn FnMut(Option<u64>, u64, Option<&Cell64>) -> Result<()> + 'v;

/// The root of a tree: block and height in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tree(pub u64);

impl Tree {
    pub(super) fn block(self) -> u64 {
        self.0 & !0xfff
    }

    fn height(self) -> u64 {
        self.0 & 0xfff
    }

    fn is_empty(self) -> bool {
        self.block() == 0
    }

    /// Pages that a tree of this height can hold.
    fn reach(height: u64) -> u64 {
        FANOUT.pow(height as u32)
    }
}

/// A growing tree: pointers to set once everything else is durable.
#[derive(Debug)]
pub(super) struct Growing {
    pub tree: Tree,
    /// Pointers in nodes that are already in the file's tree.
    pending: BTreeMap<u64, u64>,
    /// Allocated blocks, to be freed on failure.
    taken: Vec<u64>,
    /// Number of data blocks added.
    pub added: u64,
}

impl Growing {
    pub(super) fn new(tree: Tree) -> Growing {
        Growing { tree, pending: BTreeMap::new(), taken: Vec::new(), added: 0 }
    }
}

impl<M: Memory> Pmfs<M> {
    fn slot(&self, node: u64, index: u64) -> Result<&Cell64> {
        Ok(self.region.get(Pm::new(node + index * 8))?)
    }

    fn check_tree(&self, tree: Tree) -> Result<()> {
        let fine = tree.height() <= HEIGHT_MAX && self.region.contains(tree.block(), BLOCK_BYTES);
        if fine { Ok(()) } else { Err(Error::damaged("the root of a block tree is invalid", tree.0)) }
    }

    fn check_block(&self, block: u64) -> Result<u64> {
        if block.is_multiple_of(BLOCK_BYTES) && self.region.contains(block, BLOCK_BYTES) {
            Ok(block)
        } else {
            Err(Error::damaged("a block pointer is invalid", block))
        }
    }

    /// The block of a page, or zero if there is none.
    pub(super) fn find_block(&self, tree: Tree, page: u64) -> Result<u64> {
        if tree.is_empty() || page >= Tree::reach(tree.height().min(HEIGHT_MAX)) {
            return Ok(0);
        }
        self.check_tree(tree)?;
        let mut at = tree.block();
        for level in (0..tree.height()).rev() {
            let slot = self.slot(at, page / Tree::reach(level) % FANOUT)?;
            self.region.report_read(self.region.offset_of(slot), 8);
            at = self.check_block(slot.load_acquire())?;
            if at == 0 {
                break;
            }
        }
        Ok(at)
    }

    fn take_block(&self, growing: &mut Growing) -> Result<u64> {
        let block = self.blocks.allocate()? * BLOCK_BYTES;
        growing.taken.push(block);
        Ok(block)
    }

    /// Allocates a node of zeros.
    fn take_node(&self, growing: &mut Growing) -> Result<(u64, Flushed)> {
        let node = self.take_block(growing)?;
        Ok((node, self.region.stream_zeros(node, BLOCK_BYTES)?))
    }

    /// The block of a page, and whether it is new; a new block has undefined content. `flushed`
    /// collects the writes that a fence must cover.
    pub(super) fn grow(&self, growing: &mut Growing, page: u64, flushed: &mut Flushed) -> Result<(u64, bool)> {
        self.check_tree(growing.tree)?;
        let join = |all: &mut Flushed, more: Flushed| {
            let before = std::mem::replace(all, Flushed::nothing());
            *all = before.and(more);
        };
        let mut height = growing.tree.height();
        while page >= Tree::reach(height) {
            if height == HEIGHT_MAX {
                return Err(Errno::EFBIG.into());
            }
            height += 1;
            let mut root = 0;
            if !growing.tree.is_empty() {
                let (node, zeroed) = self.take_node(growing)?;
                join(flushed, zeroed);
                // The node is not yet reachable.
                join(flushed, self.region.flush(self.region.set64(self.slot(node, 0)?, growing.tree.block())));
                root = node;
            }
            growing.tree = Tree(root | height);
        }
        let mut at = growing.tree.block();
        let mut fresh_above = at == 0;
        if at == 0 {
            at = match height {
                0 => {
                    let block = self.take_block(growing)?;
                    growing.tree = Tree(block);
                    growing.added += 1;
                    return Ok((block, true));
                }
                _ => {
                    let (node, zeroed) = self.take_node(growing)?;
                    join(flushed, zeroed);
                    growing.tree = Tree(node | height);
                    node
                }
            };
        }
        for level in (0..height).rev() {
            let slot = self.slot(at, page / Tree::reach(level) % FANOUT)?;
            let offset = self.region.offset_of(slot);
            let next = match growing.pending.get(&offset) {
                Some(next) => *next,
                None => self.check_block(slot.load())?,
            };
            if next != 0 {
                fresh_above = fresh_above || growing.pending.contains_key(&offset);
                at = next;
                continue;
            }
            let next = if level == 0 {
                growing.added += 1;
                self.take_block(growing)?
            } else {
                let (node, zeroed) = self.take_node(growing)?;
                join(flushed, zeroed);
                node
            };
            if fresh_above {
                join(flushed, self.region.flush(self.region.set64(slot, next)));
            } else {
                growing.pending.insert(offset, next);
            }
            fresh_above = true;
            if level == 0 {
                return Ok((next, true));
            }
            at = next;
        }
        Ok((at, false))
    }

    /// Sets the pointers of a tree that grew. Their targets are durable. The caller sets the root.
    pub(super) fn set_pointers(&self, growing: &Growing) -> Result<Flushed> {
        let mut flushed = Flushed::nothing();
        for (offset, block) in &growing.pending {
            let slot: &Cell64 = self.region.get(Pm::new(*offset))?;
            flushed = flushed.and(self.region.flush(self.region.set64(slot, *block)));
        }
        Ok(flushed)
    }

    /// Frees the blocks of a failed growth.
    pub(super) fn roll_back_growth(&self, growing: Growing) {
        growing.taken.into_iter().for_each(|block| self.blocks.free(block / BLOCK_BYTES));
    }

    /// Visits all nodes (`page` is none) and data blocks of a tree.
    pub(super) fn visit_tree(&self, tree: Tree, visit: &mut Visit<'_>) -> Result<()> {
        if tree.is_empty() {
            return Ok(());
        }
        self.check_tree(tree)?;
        self.visit_node(tree.block(), tree.height(), 0, None, visit)
    }

    fn visit_node(&self, at: u64, height: u64, page: u64, slot: Option<&Cell64>, visit: &mut Visit<'_>) -> Result<()> {
        if height == 0 {
            return visit(Some(page), at, slot);
        }
        visit(None, at, slot)?;
        for index in 0..FANOUT {
            let slot = self.slot(at, index)?;
            let next = self.check_block(slot.load())?;
            if next != 0 {
                let page = page + index * Tree::reach(height - 1);
                self.visit_node(next, height - 1, page, Some(slot), visit)?;
            }
        }
        Ok(())
    }
}
