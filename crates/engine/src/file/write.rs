//! Writing, in one of three ways.
//!
//! - Bytes behind the end go in place: into the rest of the last block, and into blocks whose
//!   pointers are invisible until the length commits ([`Extension`]). An append never copies
//!   existing data.
//! - Everything else is copied on write ([`super::edit`]).
//! - A file that programs have mapped shared is written in place where it has blocks, since those
//!   must stay where they are; and so is any file if no space is left ([`super::in_place`]).
//!
//! Decision: docs/decisions/hot-paths.md, "Accepted costs".

use super::edit::{Edit, EditKind};
use super::map::{
    BLOCK_UNWRITTEN, EXTENT_BLOCKS_MAX, Map, MapNode, NODE_WORDS, SIZE_BYTES_MAX, Tree, height_for, slot_of,
};
use super::mapping::is_mapped;
use super::release::{BlockFreer, ClearMode, Clearing, Supply, from_block};
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Corruption, Error, Result};
use crate::format::{FileKind, Property};
use crate::fs::Node;
use crate::slot_owner::SlotOwner;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;
use pmem::{BLOCK_BYTES, Commit64, Flushed, Memory, Recomputed, Unreachable, UserBytes};

impl<'f, M: Memory> Files<'_, 'f, M> {
    /// Writes all of `from` at `offset`: atomic, and persistent when the call returns. Returns the
    /// number of bytes, which is all; on an error nothing has changed.
    ///
    /// A file that is mapped shared is written in place instead, piece by piece. So is any file if
    /// no space is left, and the write needs none.
    #[inline]
    pub fn write<'a>(self, node: Node, offset: u64, from: impl Into<UserBytes<'a>>) -> Result<usize> {
        self.write_user(node, offset, from.into())
    }

    fn write_user(self, node: Node, offset: u64, from: UserBytes<'_>) -> Result<usize> {
        match self.change_file(node, |cachelet, property| self.write_locked(cachelet, property, offset, from)) {
            Err(Error::NoSpace) => self.write_to_full_image(node, offset, from)?,
            result => result?,
        }
        Ok(from.len())
    }

    #[cold]
    #[inline(never)]
    fn write_to_full_image(self, node: Node, offset: u64, from: UserBytes<'_>) -> Result<()> {
        self.change_file(node, |cachelet, property| self.write_without_space(cachelet, property, offset, from))
    }

    /// Writes at the end, atomically with finding it, and persistently. Returns the offset of the
    /// bytes.
    #[inline]
    pub fn append<'a>(self, node: Node, from: impl Into<UserBytes<'a>>) -> Result<u64> {
        self.append_user(node, from.into())
    }

    fn append_user(self, node: Node, from: UserBytes<'_>) -> Result<u64> {
        self.change_file(node, |cachelet, property| {
            self.write_locked(cachelet, property, property.size_bytes, from)?;
            Ok(property.size_bytes)
        })
    }

    /// Runs a change of a regular file under its lock, and once more if it found no space but
    /// recycling freed some.
    pub(super) fn change_file<T>(self, node: Node, change: impl Fn(&'f Cachelet, &Property) -> Result<T>) -> Result<T> {
        self.owner.leaving_spare(|| self.change_file_with_spare(node, change))
    }

    /// [`Files::change_file`] for a change that takes no space for long.
    pub(super) fn change_file_with_spare<T>(
        self,
        node: Node,
        change: impl Fn(&'f Cachelet, &Property) -> Result<T>,
    ) -> Result<T> {
        self.owner.fs.writable()?;
        let cachelet = self.owner.cachelet(node)?;
        let result = self.owner.retry_after_recycling(|| {
            let _held = self.owner.lock_file(cachelet)?;
            let property = self.body_property(cachelet)?;
            if property.kind() != Some(FileKind::Regular) {
                return Err(Error::Invalid);
            }
            self.owner.as_owner(node.number, || {
                let result = change(cachelet, &property)?;
                if is_mapped(cachelet) && cachelet.as_file().size_bytes().load(Relaxed) > property.size_bytes {
                    self.complete_growth(cachelet, property.size_bytes)?;
                }
                Ok(result)
            })
        });
        self.owner.recycler().recycle_some();
        result
    }

    fn write_locked(self, cachelet: &Cachelet, property: &Property, offset: u64, from: UserBytes<'_>) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(from.len() as u64).ok_or(Error::TooLarge)?;
        if end > SIZE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        if is_mapped(cachelet) && offset < property.size_bytes {
            return self.write_mapped(cachelet, property, offset, from);
        }
        self.write_whole(cachelet, property, offset, from)
    }

    /// One atomic write.
    pub(super) fn write_whole(
        self,
        cachelet: &Cachelet,
        property: &Property,
        offset: u64,
        from: UserBytes<'_>,
    ) -> Result<()> {
        let size_bytes = property.size_bytes;
        let end = offset + from.len() as u64;
        let edit = Edit { change: EditKind::Write(from), from: offset, to: end, size_bytes };
        if offset < size_bytes {
            return self.replace(cachelet, property, edit, size_bytes.max(end)).map(drop);
        }
        let map = self.owner.fs.map();
        let root = map.root(property.root)?;
        let last_block_begun =
            !size_bytes.is_multiple_of(BLOCK_BYTES) && offset / BLOCK_BYTES == size_bytes / BLOCK_BYTES;
        if last_block_begun {
            let tail = map.leaf(root, size_bytes / BLOCK_BYTES)?;
            if !tail.is_written() || tail.is_shared() {
                return self.replace(cachelet, property, edit, end).map(drop);
            }
            return self.extend(cachelet, property, root, Some(tail), offset, from);
        }
        // A gap: the bytes behind the old end become visible as zeros.
        if offset > size_bytes {
            let property = self.clear_behind_end(cachelet, property)?;
            return self.extend(cachelet, &property, map.root(property.root)?, None, offset, from);
        }
        self.extend(cachelet, property, root, None, offset, from)
    }

    /// Before a file grows over a gap: durably zeroes the part of the last block behind its end,
    /// and clears what an interrupted operation may have left behind the end. Returns the new
    /// property.
    pub(super) fn clear_behind_end(self, cachelet: &Cachelet, property: &Property) -> Result<Property> {
        let map = self.owner.fs.map();
        let size_bytes = property.size_bytes;
        let mut property = *property;
        let root = map.root(property.root)?;
        // No operation leaves an inline extent that reaches behind the end, but a damaged image
        // may.
        let root = match root.is_inline_extent() && root.extent_blocks() > size_bytes.div_ceil(BLOCK_BYTES) {
            true => {
                property = self.with_nodes(cachelet, &property)?;
                map.root(property.root)?
            }
            false => root,
        };
        if root.level > 0 && !root.is_inline_extent() {
            let behind = from_block(size_bytes.div_ceil(BLOCK_BYTES));
            let (removed, _) = Clearing::new(self.owner, cachelet, behind, ClearMode::Written).run(root)?;
            if removed > 0 {
                property = self.recount_blocks(cachelet, &property)?;
            }
        }
        let used = size_bytes % BLOCK_BYTES;
        let tail = if used == 0 { Tree::EMPTY } else { map.leaf(root, size_bytes / BLOCK_BYTES)? };
        if !tail.is_written() {
            return Ok(property);
        }
        if tail.is_shared() {
            let to = size_bytes.next_multiple_of(BLOCK_BYTES);
            let edit = Edit { change: EditKind::Zero, from: size_bytes, to, size_bytes };
            return self.replace(cachelet, &property, edit, size_bytes);
        }
        self.owner.fs.provider().load(tail.offset(), BLOCK_BYTES)?;
        let flushed = self.owner.fs.pm.stream_zeros(tail.offset() + used, BLOCK_BYTES - used)?;
        self.owner.fs.pm.fence(flushed);
        Ok(property)
    }

    /// Replaces an inline extent by a node; only the count of blocks shows it. Returns the
    /// resulting property, published.
    pub(super) fn with_nodes(self, cachelet: &Cachelet, property: &Property) -> Result<Property> {
        let map = self.owner.fs.map();
        let extent = map.root(property.root)?;
        if !extent.is_inline_extent() {
            return Ok(*property);
        }
        let (node, flushed) = self.node_of_extent(extent)?;
        let after = Property { root: node.to_root(), blocks: property.blocks + 1, ..*property };
        let durable = self.owner.fs.pm.fence(flushed);
        self.finish_change(cachelet, &after, durable)?;
        Ok(after)
    }

    /// The node that an inline extent stands for. Not durable before the next fence.
    fn node_of_extent(self, extent: Tree) -> Result<(Tree, Flushed)> {
        let word = self.owner.allocator().allocate_blocks(1)?.first * BLOCK_BYTES;
        let blocks = extent.extent_blocks() as usize;
        let (flushed, _) =
            self.owner.fs.map().write_node(word, blocks, &mut |slot| Ok(extent.extent_block(slot as u64).word))?;
        Ok((Tree { word, level: 1 }, flushed))
    }

    /// Recounts the body's blocks after pointers behind the end were cleared. Data blocks that an
    /// interrupted operation left there were never counted, but an empty node may have been:
    /// sharing makes one where a range without blocks is shared.
    fn recount_blocks(self, cachelet: &Cachelet, property: &Property) -> Result<Property> {
        let map = self.owner.fs.map();
        let mut blocks = 0;
        map.walk(map.root(property.root)?, &mut |_| {
            blocks += 1;
            Ok(())
        })?;
        let after = Property { blocks, ..*property };
        if blocks != property.blocks {
            self.finish_change(cachelet, &after, self.nothing_new())?;
        }
        Ok(after)
    }

    /// Writes at or behind the end. `tail`: the last block, if the write begins in it.
    ///
    /// Until the second fence recovery sees the old length: bytes behind it do not count, and
    /// written pointers behind it are cleared. The first fence makes everything durable that the
    /// new length shows; the second commits the new length.
    fn extend(
        self,
        cachelet: &Cachelet,
        property: &Property,
        root: Tree,
        tail: Option<Tree>,
        offset: u64,
        from: UserBytes<'_>,
    ) -> Result<()> {
        let map = self.owner.fs.map();
        let mut extension = Extension {
            owner: self.owner,
            map,
            offset,
            from,
            root,
            behind: BehindEnd::of(property),
            supply: Supply::EMPTY,
            added: 0,
            flushed: Flushed::nothing(),
        };
        let end = offset + from.len() as u64;
        let mut first = offset / BLOCK_BYTES;
        if let Some(tail) = tail {
            extension.fill_tail(tail, property.size_bytes)?;
            first += 1;
        }
        let last = (end - 1) / BLOCK_BYTES;
        if first <= last
            && let Err(error) = extension.place_all(first..=last)
        {
            extension.undo(cachelet, root, first)?;
            self.recount_blocks(cachelet, property)?;
            return Err(error);
        }
        let Extension { root, mut supply, added, flushed, .. } = extension;
        let durable = self.owner.fs.pm.fence(flushed);
        let mut after = self.changed_now(property);
        after.size_bytes = end;
        after.root = root.to_root();
        after.blocks += added;
        self.finish_change(cachelet, &after, durable)?;
        supply.give_back(self.owner)
    }
}

/// The end of a file as the property entry in force says it.
#[derive(Clone, Copy)]
struct BehindEnd {
    /// The first block that no byte of the file lies in.
    first: u64,
}

impl BehindEnd {
    #[inline(always)]
    fn of(property: &Property) -> BehindEnd {
        BehindEnd { first: property.size_bytes.div_ceil(BLOCK_BYTES) }
    }

    /// The pointer to block `index` of the file.
    #[inline(always)]
    fn pointer(self, cell: &Commit64, index: u64) -> PointerBehindEnd<'_> {
        debug_assert!(index >= self.first, "a block within the file");
        PointerBehindEnd(cell)
    }
}

/// A pointer to a block behind the end of its file. Recovery clears written ones
/// ([`super::map::recover_body`]), so until a longer length commits they mean nothing.
struct PointerBehindEnd<'n>(&'n Commit64);

impl Recomputed for PointerBehindEnd<'_> {
    #[inline(always)]
    fn word(&self) -> &Commit64 {
        self.0
    }
}

/// A write behind the end. Its stores are invisible before the length commits.
struct Extension<'t, 'f, 'a, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
    map: Map<'t, M>,
    offset: u64,
    from: UserBytes<'a>,
    /// The root that the length will commit with.
    root: Tree,
    /// The end before the write.
    behind: BehindEnd,
    supply: Supply,
    added: u64,
    flushed: Flushed,
}

impl<'t, 'f, M: Memory> Extension<'t, 'f, '_, M> {
    fn add_flushed(&mut self, flushed: Flushed) {
        self.flushed = core::mem::replace(&mut self.flushed, Flushed::nothing()).and(flushed);
    }

    /// Fills the rest of the last block, in place; the gap between the old end and the write
    /// becomes zeros.
    fn fill_tail(&mut self, tail: Tree, size_bytes: u64) -> Result<()> {
        let (gap, start) = (size_bytes % BLOCK_BYTES, self.offset % BLOCK_BYTES);
        let count = (self.from.len() as u64).min(BLOCK_BYTES - start);
        self.owner.fs.provider().load(tail.offset(), BLOCK_BYTES)?;
        let zeros = self.map.pm.stream_zeros(tail.offset() + gap, start - gap)?;
        let bytes = self.map.pm.stream_bytes(tail.offset() + start, self.from.part(0..count as usize))?;
        self.add_flushed(zeros.and(bytes));
        Ok(())
    }

    /// Gives blocks with their content to all of `range`.
    fn place_all(&mut self, range: RangeInclusive<u64>) -> Result<()> {
        let (first, last) = range.into_inner();
        if !self.root.is_empty() && height_for(last) == 0 && self.root.level == 0 {
            // A block that fallocate reserved: the root in the property entry will mark it as
            // written.
            self.usable(self.root)?;
            self.fill(0, self.root.offset(), 1)?;
            self.root.word &= !BLOCK_UNWRITTEN;
            return Ok(());
        }
        let first = self.place_in_extent(first, last)?;
        if first > last {
            return Ok(());
        }
        if self.root.is_inline_extent() {
            let (node, flushed) = self.owner.files().node_of_extent(self.root)?;
            self.added += 1;
            self.add_flushed(flushed);
            self.root = node;
        }
        self.grow(height_for(last))?;
        // All steps that can fail for lack of space come first; until then every written pointer
        // behind the end belongs to this operation.
        if self.each_node(first, last, Self::place_missing)? {
            self.each_node(first, last, Self::convert_reserved)?;
        }
        Ok(())
    }

    /// Places blocks for as long as they continue the inline extent or begin one. Returns the first
    /// block that does not.
    fn place_in_extent(&mut self, first: u64, last: u64) -> Result<u64> {
        let count = match self.root {
            root if root.is_empty() => 0,
            root if root.is_inline_extent() && !root.is_shared() => root.extent_blocks(),
            root if root.level == 0 && root.is_written() && !root.is_shared() => 1,
            _ => return Ok(first),
        };
        if first != count {
            return Ok(first);
        }
        let stop = last.min(EXTENT_BLOCKS_MAX - 1);
        let mut index = first;
        while index <= stop {
            let (next, wanted) = (self.supply.next(self.owner, last - index + 1)?, stop - index + 1);
            let begin = if index == 0 { next * BLOCK_BYTES } else { self.root.offset() };
            if next * BLOCK_BYTES != begin + index * BLOCK_BYTES {
                break;
            }
            let (block, count) = self.take(wanted, wanted)?;
            self.root = Tree::inline_extent(begin, index + count);
            self.fill(index, block, count)?;
            index += count;
        }
        Ok(index)
    }

    /// Applies `step` to those words of each lowest node that lead to blocks of the range, and
    /// flushes them. Returns whether any step returned true.
    fn each_node(
        &mut self,
        first: u64,
        last: u64,
        step: fn(&mut Self, &MapNode, RangeInclusive<u64>, u64) -> Result<bool>,
    ) -> Result<bool> {
        let mut said = false;
        let mut index = first;
        while index <= last {
            let stop = last.min(index | (NODE_WORDS - 1));
            let node = self.leaf_node(index)?;
            said |= step(self, node, index..=stop, last)?;
            let words = self.map.pm.offset_of(&node.words[slot_of(index, 1)]);
            let flushed = self.map.pm.flush_range(words, (stop - index + 1) * 8);
            self.add_flushed(flushed);
            index = stop + 1;
        }
        Ok(said)
    }

    /// Allocates the missing blocks. Returns whether there are reserved ones.
    fn place_missing(&mut self, node: &MapNode, range: RangeInclusive<u64>, last: u64) -> Result<bool> {
        let (mut index, stop) = range.into_inner();
        let mut reserved = false;
        while index <= stop {
            let cells = &node.words[slot_of(index, 1)..=slot_of(stop, 1)];
            let missing = cells.iter().take_while(|cell| cell.load() == 0).count() as u64;
            if missing == 0 {
                reserved |= self.placed_before(&cells[0], index)?;
                index += 1;
                continue;
            }
            let (block, count) = self.take(missing, last - index + 1)?;
            self.fill(index, block, count)?;
            for (at, cell) in cells[..count as usize].iter().enumerate() {
                let pointer = self.behind.pointer(cell, index + at as u64);
                // The caller flushes all of the node's words.
                let _ = self.map.pm.commit_recomputed(&pointer, block + at as u64 * BLOCK_BYTES);
            }
            index += count;
        }
        Ok(reserved)
    }

    /// Handles a block that exists already. Returns whether it is a reserved one, to be converted
    /// later. A written one was left by a thread that died: it is invisible and serves as a new
    /// block.
    fn placed_before(&mut self, cell: &Commit64, index: u64) -> Result<bool> {
        let leaf = self.map.tree(cell.load(), 0)?;
        self.usable(leaf)?;
        if leaf.is_written() {
            self.added += 1;
            self.fill(index, leaf.offset(), 1)?;
        }
        Ok(!leaf.is_written())
    }

    /// Fills reserved blocks in place and marks them written. Needs no space.
    fn convert_reserved(&mut self, node: &MapNode, range: RangeInclusive<u64>, _last: u64) -> Result<bool> {
        for index in range {
            let cell = &node.words[slot_of(index, 1)];
            let leaf = self.map.tree(cell.load(), 0)?;
            if leaf.is_written() {
                continue;
            }
            self.fill(index, leaf.offset(), 1)?;
            // The caller flushes.
            let _ = self.map.pm.commit_recomputed(&self.behind.pointer(cell, index), leaf.offset());
        }
        Ok(true)
    }

    /// Rejects a shared block behind the end: no operation makes one.
    fn usable(&self, leaf: Tree) -> Result<()> {
        if leaf.is_shared() { Err(Corruption::BlockMap(leaf.word).into()) } else { Ok(()) }
    }

    /// Up to `count` contiguous blocks: offset of the first, and their number.
    fn take(&mut self, count: u64, wanted: u64) -> Result<(u64, u64)> {
        let run = self.supply.take(self.owner, count, wanted)?;
        self.added += run.count;
        Ok((run.first * BLOCK_BYTES, run.count))
    }

    /// Fills `count` blocks at `to` with the content of block `index` and its successors: the bytes
    /// to write, with zeros around them.
    fn fill(&mut self, index: u64, to: u64, count: u64) -> Result<()> {
        let start = index * BLOCK_BYTES;
        let length = count * BLOCK_BYTES;
        let end = self.offset + self.from.len() as u64;
        let low = self.offset.saturating_sub(start).min(length);
        let high = end.saturating_sub(start).clamp(low, length);
        let pm = self.map.pm;
        // Of new blocks this concerns none: reserved ones may be elsewhere.
        self.owner.fs.provider().load(to, length)?;
        let bytes = self.from.part((start + low - self.offset) as usize..(start + high - self.offset) as usize);
        let head = pm.stream_zeros(to, low)?;
        let body = pm.stream_bytes(to + low, bytes)?;
        let tail = pm.stream_zeros(to + high, length - high)?;
        self.add_flushed(head.and(body).and(tail));
        Ok(())
    }

    /// A node without links. Not durable before the next fence.
    fn empty_node(&mut self) -> Result<Unreachable<'f, MapNode>> {
        let node = self.owner.allocator().allocate_unreachable::<MapNode>()?;
        let word = self.map.pm.offset_of(&*node);
        self.added += 1;
        let flushed = self.map.pm.stream_zeros(word, BLOCK_BYTES)?;
        self.add_flushed(flushed);
        Ok(node)
    }

    /// The tree below a node, to which something is about to lead.
    fn tree_of(&self, node: Unreachable<'f, MapNode>, level: u32) -> Tree {
        Tree { word: self.map.pm.offset_of(node.linked()), level }
    }

    /// Puts nodes above the root until the tree has this height. They are invisible until the
    /// property entry commits.
    fn grow(&mut self, height: u32) -> Result<()> {
        if self.root.is_empty() {
            let node = self.empty_node()?;
            self.root = self.tree_of(node, height);
        }
        while self.root.level < height {
            let node = self.empty_node()?;
            let dirty = self.map.pm.commit_unreachable(&node, |node| &node.words[0], self.root.word);
            let flushed = self.map.pm.flush(dirty);
            self.add_flushed(flushed);
            self.root = self.tree_of(node, self.root.level + 1);
        }
        Ok(())
    }

    /// The node that holds the pointer to block `index`; missing nodes are made.
    fn leaf_node(&mut self, index: u64) -> Result<&'t MapNode> {
        let mut tree = self.root;
        while tree.level > 1 {
            let cell = &self.map.node(tree)?.words[slot_of(index, tree.level)];
            let child = self.map.tree(cell.load(), tree.level - 1)?;
            tree = match child.is_empty() {
                false => child,
                true => {
                    let node = self.empty_node()?;
                    let fresh = self.tree_of(node, tree.level - 1);
                    // Recovery follows links behind the end too, to find reserved blocks: no link
                    // without a durable node.
                    let durable = self.map.pm.fence_unfenced();
                    let dirty = self.map.pm.commit(cell, fresh.word, durable);
                    let flushed = self.map.pm.flush(dirty);
                    self.add_flushed(flushed);
                    fresh
                }
            };
        }
        self.map.node(tree)
    }

    /// Rolls back everything that was placed from block `first` on. `old`: the root before.
    fn undo(mut self, cachelet: &Cachelet, old: Tree, first: u64) -> Result<()> {
        self.supply.give_back(self.owner)?;
        if self.root == old && (old.is_inline_extent() || old.level == 0) {
            return Ok(());
        }
        if self.root.is_inline_extent() || self.root.level == 0 {
            let mut freed = BlockFreer::new(self.owner);
            self.map.walk(self.root, &mut |part| if part.index < first { Ok(()) } else { freed.tree(part.tree) })?;
            return freed.finish();
        }
        // The property entry still names the old root, whatever is below it now.
        Clearing::new(self.owner, cachelet, from_block(first), ClearMode::Written).keeping(old).run(self.root)?;
        let mut freed = BlockFreer::new(self.owner);
        let mut top = self.root;
        while top != old && top.level > 0 && !top.is_empty() {
            let below = self.map.child(top, top.level, 0)?;
            freed.tree(top)?;
            top = below;
        }
        freed.finish()
    }
}
