//! Files that programs map into their memory.
//!
//! Invariants
//! - While a file is marked as mapped, none of its blocks is freed, moved or replaced: writes go in
//!   place, and what is cut off or punched is filled with zeros and stays. So a mapping always
//!   shows this file, never another one.
//! - Blocks that were cut off stay behind the end as unwritten ones. They are freed when the mark
//!   is removed. If the machine crashes before, they are space that the file has reserved.
//! - A block that a program may store into is a written one, because such stores cannot be
//!   detected. When a mapped file grows again, unwritten blocks that become visible are made
//!   written, as zeros.
//!
//! Decision: docs/decisions/files.md, "A mapped file keeps its blocks".

use super::Extent;
use super::edit::{Edit, EditKind};
use super::map::Run;
use super::release::{ClearMode, from_block};
use crate::components::Files;
use crate::dram::{Cachelet, MAPPED, MAPPED_KEPT, MAPPED_STORES, MAPPED_TIMES_SET};
use crate::error::{Error, Result};
use crate::format::{FileKind, Property};
use crate::fs::Node;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use pmem::{BLOCK_BYTES, Memory};

/// Blocks that are materialised in one step.
const PIECE_BLOCKS: u64 = 512;

/// What becomes of the blocks of a range that is mapped: see [`Files::map_extents`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapMode {
    /// Programs only load: holes and unwritten pieces stay.
    Loads,
    /// Programs may store into written blocks: holes and unwritten pieces stay.
    Written,
    /// Programs may store into the whole range: holes and unwritten pieces become written blocks.
    Stores,
}

/// Which blocks [`Files::make_fit`] materialises.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MappingNeed {
    /// All blocks that programs could not store into.
    Stores,
    /// Blocks that are shared with other files.
    Loads,
}

/// Whether programs have the file mapped.
pub(super) fn is_mapped(cachelet: &Cachelet) -> bool {
    cachelet.as_file().mapped().load(Acquire) & MAPPED != 0
}

/// The word has another meaning for directories.
fn is_regular(cachelet: &Cachelet) -> bool {
    FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Regular)
}

impl<'f, M: Memory> Files<'_, 'f, M> {
    /// Marks a file as mapped by programs, or removes the mark; idempotent. The caller counts the
    /// mappings. It sets the mark before the first mapping is made and removes it after the last
    /// one is gone.
    pub fn set_mapped(self, node: Node, mapped: bool) -> Result<()> {
        let cachelet = self.owner.cachelet(node)?;
        if mapped {
            // Under the lock: a change in flight could still move blocks.
            let _held = self.owner.lock(&cachelet.lock, &cachelet.waiters)?;
            self.body_property(cachelet)?;
            cachelet.as_file().mapped().fetch_or(MAPPED, AcqRel);
            return Ok(());
        }
        if cachelet.as_file().mapped().load(Acquire) & (MAPPED | MAPPED_KEPT) == 0 {
            return Ok(());
        }
        let _held = self.owner.lock(&cachelet.lock, &cachelet.waiters)?;
        // Stores of programs make no marks of their own. A file that cannot be read is not written.
        if self.owner.fs.pm.tracking().is_some() && self.has_stores(cachelet) {
            let _ = self.flush_blocks(cachelet, 0, u64::MAX);
        }
        let mark = cachelet.as_file().mapped().fetch_and(!(MAPPED | MAPPED_TIMES_SET | MAPPED_STORES), AcqRel);
        if mark & MAPPED_KEPT != 0 {
            let property = self.body_property(cachelet)?;
            let behind = from_block(property.size_bytes.div_ceil(BLOCK_BYTES));
            self.owner.as_owner(node.number, || self.clear_blocks(cachelet, &property, behind, ClearMode::All))?;
            // Last: a reaper that finishes for a thread that died here clears once more.
            cachelet.as_file().mapped().fetch_and(!MAPPED_KEPT, AcqRel);
        }
        Ok(())
    }

    /// Passes the blocks of a range of a file that is marked as mapped to `visit`, in order, up to
    /// the end of its last block, whose bytes behind the end become zeros. The pieces stay where
    /// they are for as long as the mark is set.
    ///
    /// Blocks that are shared with other files are copied first, since a write replaces a shared
    /// block. `mode` decides on holes and unwritten pieces. `visit` must not call the engine.
    pub fn map_extents(
        self,
        node: Node,
        offset: u64,
        length: u64,
        mode: MapMode,
        visit: &mut dyn FnMut(Extent),
    ) -> Result<()> {
        let first = offset / BLOCK_BYTES;
        let end = offset.saturating_add(length).div_ceil(BLOCK_BYTES);
        if !self.owner.fs.is_read_only() {
            let needs = if mode == MapMode::Stores { MappingNeed::Stores } else { MappingNeed::Loads };
            self.change_file(node, |cachelet, property| self.make_fit(cachelet, property, first..end, needs))?;
        }
        let cachelet = self.owner.cachelet(node)?;
        let _held = self.owner.lock(&cachelet.lock, &cachelet.waiters)?;
        if !is_mapped(cachelet) {
            return Err(Error::Invalid);
        }
        let property = self.body_property(cachelet)?;
        if mode != MapMode::Loads {
            // Stores are to come.
            cachelet.as_file().mapped().fetch_and(!MAPPED_TIMES_SET, Relaxed);
        }
        if !self.owner.fs.is_read_only() {
            self.clear_last_block(&property)?;
        }
        let map = self.owner.fs.map();
        let root = map.root(property.root)?;
        let end = end.min(property.size_bytes.div_ceil(BLOCK_BYTES));
        let mut index = first;
        while index < end {
            let Run { first: block, count } = map.run(root, index, end - index)?;
            let address = (!block.is_empty()).then_some(block.offset());
            let unwritten = !block.is_empty() && !block.is_written();
            if block.is_written() {
                // Programs reach it without the engine.
                self.owner.fs.provider().load(block.offset(), count * BLOCK_BYTES)?;
            }
            visit(Extent { offset: index * BLOCK_BYTES, length: count * BLOCK_BYTES, address, unwritten });
            index += count;
        }
        Ok(())
    }

    /// Makes the stores of programs into a range of a mapped file durable (msync), as far as the
    /// memory behind the image allows.
    pub fn flush_mapped(self, node: Node, offset: u64, length: u64) -> Result<()> {
        let cachelet = self.owner.cachelet(node)?;
        let _held = self.owner.lock(&cachelet.lock, &cachelet.waiters)?;
        self.flush_blocks(cachelet, offset, length)
    }

    /// Under the lock: the work of [`Files::flush_mapped`].
    pub(crate) fn flush_blocks(self, cachelet: &Cachelet, offset: u64, length: u64) -> Result<()> {
        let property = self.body_property(cachelet)?;
        let map = self.owner.fs.map();
        let root = map.root(property.root)?;
        let end = offset.saturating_add(length).min(property.size_bytes).div_ceil(BLOCK_BYTES);
        let mut index = offset / BLOCK_BYTES;
        while index < end {
            let run = map.run(root, index, end - index)?;
            if run.first.is_written() {
                self.owner.fs.pm.flush_resident(run.first.offset(), run.count * BLOCK_BYTES).unfenced();
            }
            index += run.count;
        }
        self.owner.fs.pm.fence_unfenced();
        Ok(())
    }

    /// Notes, before a program may store into a mapping of a file, that it may.
    pub fn note_stores(self, node: Node) -> Result<()> {
        self.owner.cachelet(node)?.as_file().mapped().fetch_or(MAPPED_STORES, AcqRel);
        Ok(())
    }

    /// Whether programs may have stored into a file through mappings, beside the region's view.
    pub(crate) fn has_stores(self, cachelet: &Cachelet) -> bool {
        is_regular(cachelet) && cachelet.as_file().mapped().load(Acquire) & MAPPED_STORES != 0
    }

    /// Records that a program may have stored into a mapped file: sets its times to those of a
    /// content change now, unless its modification time was set explicitly since it was mapped.
    pub fn record_stores(self, node: Node) -> Result<()> {
        self.change_file(node, |cachelet, property| {
            if cachelet.as_file().mapped().load(Relaxed) & MAPPED_TIMES_SET != 0 {
                return Ok(());
            }
            self.finish_change(cachelet, &self.changed_now(property), self.nothing_new())
        })
    }

    /// Under the lock, after the modification time was set explicitly: earlier stores no longer
    /// count as changes.
    pub(crate) fn mark_times_set(self, cachelet: &Cachelet) {
        if is_regular(cachelet) && is_mapped(cachelet) {
            cachelet.as_file().mapped().fetch_or(MAPPED_TIMES_SET, Relaxed);
        }
    }

    /// Under the lock: replaces blocks within the length by written blocks of the file's own, as
    /// `needs` requires.
    fn make_fit(
        self,
        cachelet: &Cachelet,
        property: &Property,
        range: core::ops::Range<u64>,
        needs: MappingNeed,
    ) -> Result<()> {
        if !is_mapped(cachelet) {
            return Err(Error::Invalid);
        }
        let map = self.owner.fs.map();
        let mut property = *property;
        let end = range.end.min(property.size_bytes.div_ceil(BLOCK_BYTES));
        let mut index = range.start;
        while index < end {
            let run = map.run(map.root(property.root)?, index, (end - index).min(PIECE_BLOCKS))?;
            if run.first.is_shared() || needs == MappingNeed::Stores && !run.first.is_written() {
                property = self.materialise(cachelet, &property, index..index + run.count)?;
            }
            index += run.count;
        }
        Ok(())
    }

    /// Makes a range of blocks written and the file's own; they read as before.
    fn materialise(self, cachelet: &Cachelet, property: &Property, range: core::ops::Range<u64>) -> Result<Property> {
        let (from, to) = (range.start * BLOCK_BYTES, range.end * BLOCK_BYTES);
        let size_bytes = property.size_bytes;
        self.replace_within(cachelet, property, Edit { change: EditKind::Materialise, from, to, size_bytes })
    }

    /// Under the lock, after a mapped file grew from `size_before`: newly visible unwritten blocks
    /// become written zeros.
    pub(super) fn complete_growth(self, cachelet: &Cachelet, size_before: u64) -> Result<()> {
        let mut property = self.body_property(cachelet)?;
        let map = self.owner.fs.map();
        let end = property.size_bytes.div_ceil(BLOCK_BYTES);
        let mut index = size_before.div_ceil(BLOCK_BYTES);
        while index < end {
            let run = map.run(map.root(property.root)?, index, (end - index).min(PIECE_BLOCKS))?;
            if !run.first.is_empty() && !run.first.is_written() {
                property = self.materialise(cachelet, &property, index..index + run.count)?;
            }
            index += run.count;
        }
        Ok(())
    }

    /// Records that blocks stay behind the end for the sake of mappings.
    pub(super) fn mark_blocks_kept(self, cachelet: &Cachelet) {
        cachelet.as_file().mapped().fetch_or(MAPPED_KEPT, Relaxed);
    }

    /// A program sees all of the last block, so the bytes behind the end must be zeros.
    pub(super) fn clear_last_block(self, property: &Property) -> Result<()> {
        let used = property.size_bytes % BLOCK_BYTES;
        let map = self.owner.fs.map();
        if used == 0 {
            return Ok(());
        }
        let last = map.leaf(map.root(property.root)?, property.size_bytes / BLOCK_BYTES)?;
        if last.is_written() && !last.is_shared() {
            self.owner.fs.provider().load(last.offset(), BLOCK_BYTES)?;
            let flushed = self.owner.fs.pm.stream_zeros(last.offset() + used, BLOCK_BYTES - used)?;
            self.owner.fs.pm.fence(flushed);
        }
        Ok(())
    }
}
