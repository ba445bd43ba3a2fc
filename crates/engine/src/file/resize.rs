//! Truncation and fallocate.
//!
//! A shorter length commits first; the blocks behind it are cleared afterwards, or by recovery if a
//! crash comes in between. A longer length commits last, once what it will show is durably zero.

use super::AllocateMode;
use super::edit::{Edit, EditKind};
use super::map::{BLOCK_UNWRITTEN, BLOCKS_MAX, SIZE_BYTES_MAX, Tree, free_body, mark_body_of};
use super::mapping::is_mapped;
use super::release::{BlockFreer, ClearMode, Clearing, from_block, mark_tree};
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::format::Property;
use crate::fs::Node;
use core::ops::Range;
use pmem::{BLOCK_BYTES, Durable, Memory};

impl<M: Memory> Files<'_, '_, M> {
    /// Sets the length, durably. Bytes that are cut off are lost; added bytes read as zeros.
    pub fn truncate(self, node: Node, size_bytes: u64) -> Result<()> {
        if size_bytes > SIZE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        self.change_file_with_spare(node, |cachelet, property| self.set_length(cachelet, property, size_bytes))
    }

    /// [`Files::truncate`], unless `permits`, called under the file's lock, returns false; then
    /// returns false. A thread that makes it return false and then calls [`Files::wait_for_change`]
    /// knows that no such truncation happens afterwards.
    pub fn truncate_if(self, node: Node, size_bytes: u64, permits: impl Fn() -> bool) -> Result<bool> {
        if size_bytes > SIZE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        self.change_file_with_spare(node, |cachelet, property| {
            if !permits() {
                return Ok(false);
            }
            self.set_length(cachelet, property, size_bytes).map(|()| true)
        })
    }

    /// Waits for the end of a change of the file that is under way.
    pub fn wait_for_change(self, node: Node) -> Result<()> {
        self.change_file(node, |_, _| Ok(()))
    }

    /// Sets the length, under the file's lock.
    fn set_length(self, cachelet: &Cachelet, property: &Property, size_bytes: u64) -> Result<()> {
        let mapped = is_mapped(cachelet);
        if size_bytes > property.size_bytes {
            let property = self.clear_behind_end(cachelet, property)?;
            let after = Property { size_bytes, ..self.changed_now(&property) };
            return self.finish_change(cachelet, &after, self.nothing_new());
        }
        if size_bytes == 0 && !mapped {
            return self.empty(cachelet, property);
        }
        self.shorten(cachelet, property, size_bytes, mapped)
    }

    /// The proof for a change that shows nothing that is not durable already.
    pub(super) fn nothing_new(self) -> Durable {
        self.owner.fs.pm.fence_nothing_new()
    }

    /// Cuts everything off: one property entry, and the old body is freed as a whole.
    fn empty(self, cachelet: &Cachelet, property: &Property) -> Result<()> {
        self.drop_body(cachelet, &Property { size_bytes: 0, ..self.changed_now(property) })
    }

    /// Makes a property entry durable and visible without the body that it names, which is freed as
    /// a whole.
    fn drop_body(self, cachelet: &Cachelet, property: &Property) -> Result<()> {
        mark_body_of(self.owner, property.root)?;
        self.finish_change(cachelet, &Property { root: 0, blocks: 0, ..*property }, self.nothing_new())?;
        free_body(self.owner, property.root)
    }

    fn shorten(self, cachelet: &Cachelet, property: &Property, size_bytes: u64, mapped: bool) -> Result<()> {
        let map = self.owner.fs.map();
        let root = map.root(property.root)?;
        if root.is_inline_extent() && !mapped {
            let after = Property { size_bytes, ..self.changed_now(property) };
            return self.shorten_extent(cachelet, &after, root, size_bytes.div_ceil(BLOCK_BYTES));
        }
        let property = &self.with_nodes(cachelet, property)?;
        let root = map.root(property.root)?;
        let mut after = Property { size_bytes, ..self.changed_now(property) };
        let only_block_stays_mapped = size_bytes == 0 && root.level == 0 && root.is_written();
        if only_block_stays_mapped {
            after.root = Tree { word: root.word | BLOCK_UNWRITTEN, level: 0 }.to_root();
        }
        // What may fail comes before the change: the last block is cleared after it.
        if mapped {
            let last = map.leaf(root, size_bytes / BLOCK_BYTES)?;
            if last.is_written() && !last.is_shared() {
                self.owner.fs.provider().load(last.offset(), BLOCK_BYTES)?;
            }
        }
        // From this fence on the rest is cut off; recovery clears pointers that still exist.
        self.finish_change(cachelet, &after, self.nothing_new())?;
        if only_block_stays_mapped {
            let flushed = self.owner.fs.pm.stream_zeros(root.offset(), BLOCK_BYTES)?;
            self.owner.fs.pm.fence(flushed);
        }
        if mapped {
            self.mark_blocks_kept(cachelet);
            self.clear_last_block(&after)?;
        }
        let mode = if mapped { ClearMode::Mapped { behind_end: true } } else { ClearMode::All };
        self.clear_blocks(cachelet, &after, from_block(size_bytes.div_ceil(BLOCK_BYTES)), mode)
    }

    /// Makes a property entry durable and visible that names fewer blocks of its inline extent, all
    /// at once; at least one is kept.
    fn shorten_extent(self, cachelet: &Cachelet, property: &Property, extent: Tree, kept: u64) -> Result<()> {
        let kept = kept.clamp(1, extent.extent_blocks());
        let gone = || (kept..extent.extent_blocks()).map(|index| extent.extent_block(index));
        let root = Tree::inline_extent(extent.extent_block(0).word, kept).to_root();
        let blocks = property.blocks.saturating_sub(extent.extent_blocks() - kept);
        gone().try_for_each(|block| mark_tree(self.owner, block))?;
        self.finish_change(cachelet, &Property { root, blocks, ..*property }, self.nothing_new())?;
        let mut freed = BlockFreer::new(self.owner);
        gone().try_for_each(|block| freed.tree(block))?;
        freed.finish()
    }

    /// Clears the pointers to a range of blocks and updates the body's count of blocks.
    pub(super) fn clear_blocks(
        self,
        cachelet: &Cachelet,
        property: &Property,
        range: Range<u64>,
        mode: ClearMode,
    ) -> Result<()> {
        let root = self.owner.fs.map().root(property.root)?;
        if root.is_empty() || range.is_empty() {
            return Ok(());
        }
        if root.is_inline_extent() && mode == ClearMode::All && range.end >= root.extent_blocks() {
            // The end of an inline extent is removed without a node, so that it works when no space
            // is left.
            return match range.start {
                0 => self.drop_body(cachelet, property),
                start => self.shorten_extent(cachelet, property, root, start),
            };
        }
        let property = &self.with_nodes(cachelet, property)?;
        let root = self.owner.fs.map().root(property.root)?;
        if root.level == 0 {
            if range.start > 0 || mode != ClearMode::All {
                return Ok(());
            }
            return self.drop_body(cachelet, property);
        }
        let (removed, empty) = Clearing::new(self.owner, cachelet, range, mode).run(root)?;
        if removed == 0 && !empty {
            return Ok(());
        }
        let mut after = Property { blocks: property.blocks.saturating_sub(removed), ..*property };
        if empty {
            mark_tree(self.owner, root)?;
            (after.root, after.blocks) = (0, 0);
        }
        self.finish_change(cachelet, &after, self.nothing_new())?;
        if empty {
            let mut freed = BlockFreer::new(self.owner);
            freed.tree(root)?;
            freed.finish()?;
        }
        Ok(())
    }

    /// fallocate(2), durable.
    pub fn allocate(self, node: Node, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Err(Error::Invalid);
        }
        let end = offset.checked_add(length).filter(|end| *end <= SIZE_BYTES_MAX).ok_or(Error::TooLarge)?;
        let change = |cachelet: &_, property: &Property| match mode {
            AllocateMode::Allocate { keep_size } => {
                self.give_blocks(cachelet, property, EditKind::Allocate, offset..end, keep_size)
            }
            AllocateMode::ZeroRange { keep_size } => {
                let mapped = is_mapped(cachelet);
                if mapped {
                    self.zero_in_place(property, offset..end.min(property.size_bytes))?;
                }
                let change = if mapped { EditKind::Allocate } else { EditKind::Zero };
                self.give_blocks(cachelet, property, change, offset..end, keep_size)
            }
            AllocateMode::PunchHole => self.punch(cachelet, property, offset..end),
            AllocateMode::CollapseRange => self.collapse(cachelet, property, offset, length),
            AllocateMode::InsertRange => self.insert(cachelet, property, offset, length),
        };
        match mode {
            AllocateMode::PunchHole | AllocateMode::CollapseRange => self.change_file_with_spare(node, change),
            _ => self.change_file(node, change),
        }
    }

    fn give_blocks(
        self,
        cachelet: &Cachelet,
        property: &Property,
        change: EditKind<'_>,
        range: Range<u64>,
        keep_size: bool,
    ) -> Result<()> {
        if range.end.div_ceil(BLOCK_BYTES) - range.start / BLOCK_BYTES > self.owner.fs.blocks() {
            return Err(Error::NoSpace);
        }
        let mut property = *property;
        let mut size_after = property.size_bytes;
        if !keep_size && range.end > property.size_bytes {
            property = self.clear_behind_end(cachelet, &property)?;
            size_after = range.end;
        }
        let edit = Edit { change, from: range.start, to: range.end, size_bytes: property.size_bytes };
        self.replace(cachelet, &property, edit, size_after).map(drop)
    }

    /// Fills the written blocks of a range with zeros, in place; all others already read as zeros.
    fn zero_in_place(self, property: &Property, range: Range<u64>) -> Result<()> {
        let map = self.owner.fs.map();
        let root = map.root(property.root)?;
        let mut at = range.start;
        while at < range.end {
            let index = at / BLOCK_BYTES;
            let run = map.run(root, index, range.end.div_ceil(BLOCK_BYTES) - index)?;
            let to = ((index + run.count) * BLOCK_BYTES).min(range.end);
            if run.first.is_written() {
                if run.first.is_shared() {
                    return Err(Error::Busy);
                }
                self.owner.fs.provider().load(run.first.offset() + at % BLOCK_BYTES, to - at)?;
                self.owner.fs.pm.stream_zeros(run.first.offset() + at % BLOCK_BYTES, to - at)?.unfenced();
            }
            at = to;
        }
        self.owner.fs.pm.fence_unfenced();
        Ok(())
    }

    /// Edges first, each atomic by itself; then the whole blocks.
    fn punch(self, cachelet: &Cachelet, property: &Property, range: Range<u64>) -> Result<()> {
        let mut property = *property;
        let mapped = is_mapped(cachelet);
        let size_bytes = property.size_bytes;
        let first = range.start.div_ceil(BLOCK_BYTES);
        // Nothing is visible behind the end: the last block goes as a whole if all its valid bytes
        // go.
        let last = match range.end >= size_bytes {
            true => range.end.div_ceil(BLOCK_BYTES),
            false => range.end / BLOCK_BYTES,
        };
        let head = range.start..range.end.min(first * BLOCK_BYTES);
        // Behind the head: the two may be in one block, or be the same.
        let tail = head.end.max(last * BLOCK_BYTES)..range.end;
        for edge in [head, tail] {
            if edge.start < edge.end.min(size_bytes) {
                property = self.zero_edge(cachelet, &property, edge, mapped)?;
            }
        }
        let after = self.changed_now(&property);
        self.finish_change(cachelet, &after, self.nothing_new())?;
        let mode = if mapped { ClearMode::Mapped { behind_end: false } } else { ClearMode::All };
        let last = if mapped { last.min(size_bytes.div_ceil(BLOCK_BYTES)) } else { last.min(BLOCKS_MAX) };
        let root = self.owner.fs.map().root(after.root)?;
        if mapped && root.level == 0 {
            if first == 0 && last > 0 && root.is_written() {
                self.owner.fs.provider().load(root.offset(), BLOCK_BYTES)?;
                let flushed = self.owner.fs.pm.stream_zeros(root.offset(), BLOCK_BYTES)?;
                self.owner.fs.pm.fence(flushed);
            }
            return Ok(());
        }
        self.clear_blocks(cachelet, &after, first..last, mode)
    }

    /// Zeroes a part of one block, if it holds anything but zeros.
    fn zero_edge(self, cachelet: &Cachelet, property: &Property, edge: Range<u64>, mapped: bool) -> Result<Property> {
        let map = self.owner.fs.map();
        let leaf = map.leaf(map.root(property.root)?, edge.start / BLOCK_BYTES)?;
        if !leaf.is_written() {
            return Ok(*property);
        }
        if mapped && !leaf.is_shared() {
            let at = leaf.offset() + edge.start % BLOCK_BYTES;
            self.owner.fs.provider().load(at, edge.end - edge.start)?;
            let flushed = self.owner.fs.pm.stream_zeros(at, edge.end - edge.start)?;
            self.owner.fs.pm.fence(flushed);
            return Ok(*property);
        }
        let size_bytes = property.size_bytes;
        let edit = Edit { change: EditKind::Zero, from: edge.start, to: edge.end, size_bytes };
        self.replace(cachelet, property, edit, size_bytes)
    }
}
