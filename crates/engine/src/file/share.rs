//! Sharing: a range of a file gets the blocks of a range of another file (FICLONE, FICLONERANGE).
//! Nothing is copied; a later write gets a block of its own.
//!
//! Invariants
//! - Pointers to a shared block all carry the mark, durably, before there is a second one.
//! - Both files are locked, the one with the lower inode number first. No other operation holds two
//!   files.
//! - A file that programs have mapped shares nothing: stores into its blocks would show in the
//!   other file.
//!
//! A block is free when its last pointer goes. The DRAM region counts further pointers. Recovery
//! counts them by finding a block twice; a clean detach leaves them beside the map of free blocks.
//! A write to a marked block takes another block even if the other file is gone. *Rejected:* counts
//! on the image, one more line per block that is shared or freed, and an order between count and
//! pointer.

use super::edit::{Edit, EditKind, Shared};
use super::map::{BLOCK_SHARED, Map, SIZE_BYTES_MAX, Tree, slots_of, span};
use super::mapping::is_mapped;
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::format::{FileKind, Property};
use crate::fs::Node;
use core::ops::Range;
use pmem::{BLOCK_BYTES, Durable, Memory};

/// A range of one file and its position in another.
struct SharedRange {
    from: u64,
    to: u64,
    bytes: u64,
    /// The length of the target afterwards.
    size_after: u64,
}

impl SharedRange {
    /// Checks the positions against each other and against the files' lengths, as FICLONERANGE
    /// does. `None` if there is nothing to do.
    fn new(from: u64, to: u64, length: Option<u64>, sizes: (u64, u64), same: bool) -> Result<Option<SharedRange>> {
        let (source_bytes, target_bytes) = sizes;
        if !(from | to).is_multiple_of(BLOCK_BYTES) || from > source_bytes {
            return Err(Error::Invalid);
        }
        let bytes = length.unwrap_or(source_bytes - from);
        let (Some(from_end), Some(to_end)) = (from.checked_add(bytes), to.checked_add(bytes)) else {
            return Err(Error::Invalid);
        };
        // A partial block only where nothing follows it, on both sides.
        let whole = bytes.is_multiple_of(BLOCK_BYTES);
        if from_end > source_bytes || !whole && (from_end < source_bytes || to_end < target_bytes) {
            return Err(Error::Invalid);
        }
        if to_end > SIZE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        if same && from.abs_diff(to) < bytes.next_multiple_of(BLOCK_BYTES) {
            return Err(Error::Invalid);
        }
        Ok((bytes > 0).then_some(SharedRange { from, to, bytes, size_after: target_bytes.max(to_end) }))
    }

    /// The blocks of the source.
    fn blocks(&self) -> Range<u64> {
        self.from / BLOCK_BYTES..(self.from + self.bytes).div_ceil(BLOCK_BYTES)
    }
}

impl<'f, M: Memory> Files<'_, 'f, M> {
    /// Gives the range of `to.0` at offset `to.1` the blocks of `from.0` at offset `from.1`:
    /// `length` bytes, or all up to the end of the source. Returns the number of bytes. Atomic, and
    /// persistent when the call returns.
    ///
    /// Offsets and length are multiples of the block size, except that a length may end with the
    /// source if nothing follows in the target; otherwise `Invalid`. `Busy` if one of the files is
    /// mapped: its blocks cannot be shared. A hole in the source becomes a hole in the target.
    pub fn share_range(self, from: (Node, u64), to: (Node, u64), length: Option<u64>) -> Result<u64> {
        self.owner.fs.writable()?;
        let ((source, from), (target, to)) = (from, to);
        let pair = (self.owner.cachelet(source)?, self.owner.cachelet(target)?);
        let same = source.number == target.number;
        let share = || {
            let (first, second) = if source.number < target.number { pair } else { (pair.1, pair.0) };
            let _first = self.owner.lock(&first.lock, &first.waiters)?;
            let _second = if same { None } else { Some(self.owner.lock(&second.lock, &second.waiters)?) };
            let (body, property) = (self.regular(pair.0)?, self.regular(pair.1)?);
            let sizes = (body.size_bytes, property.size_bytes);
            let Some(copied) = SharedRange::new(from, to, length, sizes, same)? else { return Ok(0) };
            if is_mapped(pair.0) || is_mapped(pair.1) {
                return Err(Error::Busy);
            }
            if copied.to > property.size_bytes {
                self.owner.as_owner(target.number, || self.clear_behind_end(pair.1, &property))?;
            }
            self.owner.as_owner(source.number, || self.mark_shared(pair.0, &copied.blocks()))?;
            self.owner.as_owner(target.number, || self.take_shared(pair, &copied))?;
            Ok(copied.bytes)
        };
        self.owner.leaving_spare(|| self.owner.retry_after_recycling(share))
    }

    fn regular(self, cachelet: &Cachelet) -> Result<Property> {
        let property = self.body_property(cachelet)?;
        if property.kind() == Some(FileKind::Regular) { Ok(property) } else { Err(Error::Invalid) }
    }

    /// Marks the written blocks of a range as shared, in each pointer. A crash in between leaves
    /// superfluous marks, whose only cost is that a later write allocates a new block.
    fn mark_shared(self, source: &Cachelet, blocks: &Range<u64>) -> Result<()> {
        let property = self.body_property(source)?;
        let root = self.owner.fs.map().root(property.root)?;
        // The marked pointers lead to the same blocks as before.
        let proof = self.nothing_new();
        if root.level == 0 || root.is_inline_extent() {
            // An inline extent is marked as a whole, whichever of its blocks are shared, so that it
            // stays one.
            let count = if root.is_inline_extent() { root.extent_blocks() } else { 1 };
            if root.is_written() && !root.is_shared() && blocks.start < count {
                let marked = Tree { word: root.word | BLOCK_SHARED, ..root };
                return self.finish_change(source, &Property { root: marked.to_root(), ..property }, proof);
            }
            return Ok(());
        }
        self.mark_below(self.owner.fs.map(), root, 0, blocks, proof)?;
        self.owner.fs.pm.fence_unfenced();
        Ok(())
    }

    /// Marks below the node `tree`, which begins with block `base`; flushed, for the caller's
    /// fence.
    fn mark_below(self, map: Map<'_, M>, tree: Tree, base: u64, blocks: &Range<u64>, proof: Durable) -> Result<()> {
        let node = map.node(tree)?;
        for slot in slots_of(blocks, tree.level, base) {
            let cell = &node.words[slot];
            let child = map.tree(cell.load_acquire(), tree.level - 1)?;
            if child.level > 0 && !child.is_empty() {
                self.mark_below(map, child, base + slot as u64 * span(child.level), blocks, proof)?;
            } else if child.is_written() && !child.is_shared() {
                let dirty = map.pm.commit(cell, child.word | BLOCK_SHARED, proof);
                map.pm.flush(dirty).unfenced();
            }
        }
        Ok(())
    }

    /// With both files locked: the range of the target becomes the source's blocks.
    fn take_shared(self, (source, target): (&Cachelet, &Cachelet), copied: &SharedRange) -> Result<()> {
        let map = self.owner.fs.map();
        let property = self.body_property(target)?;
        let body = map.root(self.body_property(source)?.root)?;
        let change = EditKind::Share(Shared { body, first: copied.from / BLOCK_BYTES });
        let edit = Edit { change, from: copied.to, to: copied.to + copied.bytes, size_bytes: property.size_bytes };
        self.replace(target, &property, edit, copied.size_after).map(drop)
    }
}
