//! Copy-on-write changes of a range of a body. They build new blocks and, where more than one
//! pointer changes, a new subtree, which one store makes visible.
//!
//! Invariants
//! - Nothing visible changes before the one commit store: a word in a map node (one pointer, or a
//!   whole subtree), or the property entry (when the root or the length changes too).
//! - If building fails, everything that was built is freed at once, since it was invisible.
//! - An unwritten block is filled in place: until its pointer says "written", it reads as zeros
//!   whatever it holds.

use super::map::{BLOCK_UNWRITTEN, Map, NODE_WORDS, Tree, height_for, slot_of, slots_of, span};
use super::release::{BlockFreer, Supply};
use crate::alloc::BlockRun;
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Corruption, Result};
use crate::format::Property;
use crate::slot_owner::SlotOwner;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::fence;
use pmem::{BLOCK_BYTES, Commit64, Durable, Flushed, Memory, UserBytes};

/// What happens to a range of bytes.
#[derive(Clone, Copy)]
pub(super) enum EditKind<'a> {
    /// It holds these bytes.
    Write(UserBytes<'a>),
    /// It reads as zeros and has blocks.
    Zero,
    /// It reads as before and has blocks.
    Allocate,
    /// It reads as before and has written blocks that belong to this file alone.
    Materialise,
    /// It shares the blocks of another range, all of which are marked as shared there.
    Share(Shared),
}

/// The source of the blocks that an edit shares.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    /// The source body.
    pub body: Tree,
    /// Its block that becomes the first one of the edit.
    pub first: u64,
}

/// A change of the bytes `from..to` of a body of `size_bytes`.
#[derive(Clone, Copy)]
pub(super) struct Edit<'a> {
    pub change: EditKind<'a>,
    pub from: u64,
    pub to: u64,
    /// Bytes of the old body that count; later bytes of its last block are taken as zeros.
    pub size_bytes: u64,
}

impl Edit<'_> {
    /// The blocks that the edit touches.
    pub fn blocks(&self) -> Range<u64> {
        self.from / BLOCK_BYTES..self.to.div_ceil(BLOCK_BYTES)
    }

    /// The bytes of block `index` that change, from the block's start.
    fn within(&self, index: u64) -> Range<u64> {
        let start = index * BLOCK_BYTES;
        let inside = |at: u64| at.clamp(start, start + BLOCK_BYTES) - start;
        inside(self.from)..inside(self.to)
    }

    /// Bytes of block `index` that are within the old length.
    fn visible(&self, index: u64) -> u64 {
        self.size_bytes.saturating_sub(index * BLOCK_BYTES).min(BLOCK_BYTES)
    }
}

/// Builds the new blocks and nodes of an edit.
struct Builder<'t, 'f, 'a, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
    map: Map<'t, M>,
    edit: Edit<'a>,
    supply: Supply,
    /// Numbers of blocks and nodes that were allocated, and of those that they replace.
    added: u64,
    removed: u64,
    flushed: Flushed,
    /// Whole blocks of the write that were placed and are yet to be copied.
    placed: PlacedRun,
}

/// Contiguous blocks on the image that become the body's blocks from `index` on.
#[derive(Clone, Copy)]
struct PlacedRun {
    index: u64,
    run: BlockRun,
}

impl PlacedRun {
    const NONE: PlacedRun = PlacedRun { index: 0, run: BlockRun { first: 0, count: 0 } };
}

impl<M: Memory> Builder<'_, '_, '_, M> {
    /// Builds everything that an edit changes below a target.
    fn build_all(&mut self, target: &Target<'_>) -> Result<Tree> {
        let built = self.build(target.level, target.base, target.tree)?;
        if let Err(error) = self.copy_placed() {
            self.discard(target.level, target.base, target.tree, built)?;
            return Err(error);
        }
        Ok(built)
    }

    fn add_flushed(&mut self, flushed: Flushed) {
        self.flushed = core::mem::replace(&mut self.flushed, Flushed::nothing()).and(flushed);
    }

    /// The tree that replaces `old`, which begins with block `base` and is seen as a tree of
    /// `level`.
    fn build(&mut self, level: u32, base: u64, old: Tree) -> Result<Tree> {
        let blocks = self.edit.blocks();
        let touched = base < blocks.end && blocks.start < base + span(level);
        if !touched && (old.is_empty() || (old.level == level && !old.is_inline_extent())) {
            return Ok(old);
        }
        match level {
            0 => self.leaf(base, old),
            _ => self.node(level, base, old),
        }
    }

    fn node(&mut self, level: u32, base: u64, old: Tree) -> Result<Tree> {
        let word = self.owner.allocator().allocate_blocks(1)?.first * BLOCK_BYTES;
        let new = Tree { word, level };
        self.added += 1;
        let map = self.map;
        let below = span(level - 1);
        let touched = slots_of(&self.edit.blocks(), level, base);
        let is_node = !old.is_empty() && old.level == level && !old.is_inline_extent();
        self.removed += is_node as u64;
        let old_node = if is_node { Some(map.node(old)?) } else { None };
        let (flushed, failure) = map.write_node(word, NODE_WORDS as usize, &mut |slot| {
            if let (Some(node), false) = (old_node, touched.contains(&slot)) {
                return Ok(node.words[slot].load());
            }
            let child = map.child(old, level, slot)?;
            Ok(self.build(level - 1, base + slot as u64 * below, child)?.word)
        })?;
        self.add_flushed(flushed);
        match failure {
            None => Ok(new),
            Some(error) => {
                self.discard(level, base, old, new)?;
                Err(error)
            }
        }
    }

    /// Frees what was built.
    fn discard(&self, level: u32, base: u64, old: Tree, new: Tree) -> Result<()> {
        let mut freed = BlockFreer::new(self.owner);
        self.map.difference((level, base), &self.edit.blocks(), (new, old), &mut |tree| freed.tree(tree))?;
        freed.finish()
    }

    /// Frees a block that was taken, if an error (of the disk) keeps it from being filled.
    fn or_free<T>(&self, block: u64, result: Result<T>) -> Result<T> {
        if result.is_err() {
            let mut freed = BlockFreer::new(self.owner);
            freed.tree(Tree { word: block, level: 0 })?;
            freed.finish()?;
        }
        result
    }

    fn take_block(&mut self, index: u64) -> Result<u64> {
        let block = self.supply.take(self.owner, 1, self.edit.blocks().end - index)?.first;
        self.added += 1;
        Ok(block * BLOCK_BYTES)
    }

    fn leaf(&mut self, index: u64, old: Tree) -> Result<Tree> {
        let reusable = !old.is_empty() && !old.is_shared();
        let within = self.edit.within(index);
        // Blocks that a dead writer left behind the end were never counted.
        let counted = !old.is_empty() && (!old.is_written() || self.edit.visible(index) > 0);
        let whole = within.start == 0 && within.end >= self.edit.visible(index);
        let word = match self.edit.change {
            EditKind::Share(from) => {
                let taken = self.share(from, index, old)?;
                self.removed += (counted && taken.offset() != old.offset()) as u64;
                taken.word
            }
            EditKind::Allocate if !old.is_empty() => old.word,
            EditKind::Zero if !old.is_empty() && !old.is_written() => old.word,
            EditKind::Zero if whole && reusable => old.word | BLOCK_UNWRITTEN,
            EditKind::Allocate => self.take_block(index)? | BLOCK_UNWRITTEN,
            EditKind::Zero if whole || old.is_empty() => {
                self.removed += counted as u64;
                self.take_block(index)? | BLOCK_UNWRITTEN
            }
            EditKind::Materialise if reusable && old.is_written() => old.word,
            EditKind::Materialise if reusable => {
                self.owner.fs.provider().load(old.offset(), BLOCK_BYTES)?;
                self.keep(index, old, old.offset(), 0..BLOCK_BYTES)?;
                old.offset()
            }
            EditKind::Materialise => {
                let block = self.take_block(index)?;
                self.removed += counted as u64;
                let kept = self.keep(index, old, block, 0..BLOCK_BYTES);
                self.or_free(block, kept)?;
                block
            }
            EditKind::Write(_) if reusable && !old.is_written() => {
                self.owner.fs.provider().load(old.offset(), BLOCK_BYTES)?;
                self.fill(index, old, old.offset())?
            }
            EditKind::Write(_) | EditKind::Zero => {
                let block = self.take_block(index)?;
                self.removed += counted as u64;
                let filled = self.fill(index, old, block);
                self.or_free(block, filled)?
            }
        };
        Ok(Tree { word, level: 0 })
    }

    /// The block that replaces `old`; a hole where the other range has nothing written.
    fn share(&mut self, from: Shared, index: u64, old: Tree) -> Result<Tree> {
        let leaf = self.map.leaf(from.body, index - self.edit.blocks().start + from.first)?;
        if !leaf.is_written() {
            return Ok(Tree::EMPTY);
        }
        if !leaf.is_shared() {
            return Err(Corruption::BlockMap(leaf.word).into());
        }
        if leaf.offset() != old.offset() {
            self.owner.fs.block_map().share_block(leaf.block())?;
            self.added += 1;
        }
        Ok(leaf)
    }

    /// Fills the block at `to` with the new content of block `index`. Returns its word.
    fn fill(&mut self, index: u64, old: Tree, to: u64) -> Result<u64> {
        let within = self.edit.within(index);
        if let EditKind::Write(_) = self.edit.change
            && within.end - within.start == BLOCK_BYTES
        {
            self.place_block(index, to / BLOCK_BYTES)?;
            return Ok(to);
        }
        self.keep(index, old, to, 0..within.start)?;
        let length = within.end - within.start;
        let flushed = match self.edit.change {
            EditKind::Write(bytes) => {
                let start = (index * BLOCK_BYTES + within.start - self.edit.from) as usize;
                self.map.pm.stream_bytes(to + within.start, bytes.part(start..start + length as usize))?
            }
            EditKind::Zero | EditKind::Allocate | EditKind::Materialise | EditKind::Share(_) => {
                self.map.pm.stream_zeros(to + within.start, length)?
            }
        };
        self.add_flushed(flushed);
        self.keep(index, old, to, within.end..BLOCK_BYTES)?;
        Ok(to)
    }

    /// Batches a block that the write fills entirely with its neighbours, to copy them together:
    /// code after a copy waits for its stores.
    fn place_block(&mut self, index: u64, block: u64) -> Result<()> {
        let run = self.placed.run;
        if run.count == 0 || block != run.first + run.count {
            self.copy_placed()?;
            self.placed = PlacedRun { index, run: BlockRun { first: block, count: 0 } };
        }
        // Every whole block of a write comes here, in order.
        debug_assert_eq!(index, self.placed.index + self.placed.run.count);
        self.placed.run.count += 1;
        Ok(())
    }

    fn copy_placed(&mut self) -> Result<()> {
        let PlacedRun { index, run } = core::mem::replace(&mut self.placed, PlacedRun::NONE);
        if let (EditKind::Write(bytes), true) = (self.edit.change, run.count > 0) {
            let start = (index * BLOCK_BYTES - self.edit.from) as usize;
            let bytes = bytes.part(start..start + (run.count * BLOCK_BYTES) as usize);
            let flushed = self.map.pm.stream_bytes(run.first * BLOCK_BYTES, bytes)?;
            self.add_flushed(flushed);
        }
        Ok(())
    }

    /// Copies the part of block `index` that stays; what was never written, or lies behind the old
    /// length, becomes zeros.
    fn keep(&mut self, index: u64, old: Tree, to: u64, part: Range<u64>) -> Result<()> {
        let visible = if old.is_written() { self.edit.visible(index) } else { 0 };
        let copied = visible.clamp(part.start, part.end);
        if copied > part.start {
            let from = old.offset() + part.start;
            let flushed = self.map.pm.stream_through(from, to + part.start, copied - part.start)?;
            self.add_flushed(flushed);
        }
        if part.end > copied {
            let flushed = self.map.pm.stream_zeros(to + copied, part.end - copied)?;
            self.add_flushed(flushed);
        }
        Ok(())
    }
}

/// The place where an edit becomes visible.
struct Target<'m> {
    /// The word; none: the root, in the property entry.
    slot: Option<&'m Commit64>,
    level: u32,
    /// First block of what the word leads to.
    base: u64,
    tree: Tree,
}

impl<'m, M: Memory> Map<'m, M> {
    /// The lowest word above all of `blocks`; the root if `through_root`, or if the tree must grow.
    fn target(&self, root: Tree, blocks: &Range<u64>, through_root: bool) -> Result<Target<'m>> {
        let last = blocks.end - 1;
        let level = height_for(last).max(if root.is_empty() { 0 } else { root.level });
        let mut target = Target { slot: None, level, base: 0, tree: root };
        if through_root || root.is_empty() || level > root.level {
            return Ok(target);
        }
        while target.level > 0 && !target.tree.is_empty() && !target.tree.is_inline_extent() {
            let slot = slot_of(blocks.start, target.level);
            if slot != slot_of(last, target.level) {
                break;
            }
            let cell = &self.node(target.tree)?.words[slot];
            target.level -= 1;
            target.base += slot as u64 * span(target.level);
            target.tree = self.tree(cell.load_acquire(), target.level)?;
            target.slot = Some(cell);
        }
        Ok(target)
    }
}

impl<M: Memory> Files<'_, '_, M> {
    /// Under the cachelet's lock: makes `property` durable and visible. `proof` covers everything
    /// that its root and length show.
    pub(super) fn finish_change(self, cachelet: &Cachelet, property: &Property, proof: Durable) -> Result<()> {
        let flushed = self.owner.cachelets().commit_property(cachelet, property, proof)?;
        self.owner.fs.pm.fence(flushed);
        self.owner.cachelets().publish_property(cachelet, property);
        Ok(())
    }

    /// `property` with the present time as the times of a content change.
    pub(super) fn changed_now(self, property: &Property) -> Property {
        let now = self.owner.fs.now_ns();
        Property { modified_ns: now, changed_ns: now, ..*property }
    }

    /// Under the cachelet's lock: applies an edit as a whole and sets the length. Returns the new
    /// property, published.
    ///
    /// Before the second fence recovery sees the old body, since nothing names what was built;
    /// after it, the new one. A crash may tear the two stores before the second fence. Then the
    /// body is new or old, and the times are new or old, each as a whole.
    pub(super) fn replace(
        self,
        cachelet: &Cachelet,
        property: &Property,
        edit: Edit<'_>,
        size_after: u64,
    ) -> Result<Property> {
        let map = self.owner.fs.map();
        let blocks = edit.blocks();
        let target = map.target(map.root(property.root)?, &blocks, size_after != property.size_bytes)?;
        let (supply, flushed) = (Supply::EMPTY, Flushed::nothing());
        let placed = PlacedRun::NONE;
        let mut builder = Builder { owner: self.owner, map, edit, supply, added: 0, removed: 0, flushed, placed };
        let built = builder.build_all(&target);
        let Builder { mut supply, added, removed, flushed, edit, .. } = builder;
        let new = match built {
            Ok(new) => new,
            Err(error) => {
                supply.give_back(self.owner)?;
                return Err(error);
            }
        };
        let durable = self.owner.fs.pm.fence(flushed);
        self.mark_difference((target.level, target.base), &blocks, target.tree, new)?;
        let mut after = match edit.change {
            // A mapping needs blocks that read as before: no visible change.
            EditKind::Materialise => *property,
            _ => self.changed_now(property),
        };
        after.size_bytes = size_after;
        after.blocks = (property.blocks + added).saturating_sub(removed);
        match target.slot {
            None => {
                after.root = new.to_root();
                self.finish_change(cachelet, &after, durable)?;
            }
            Some(slot) => self.swap(cachelet, slot, new, &after, durable, blocks.end - blocks.start > 1)?,
        }
        supply.give_back(self.owner)?;
        self.free_difference((target.level, target.base), &blocks, target.tree, new)?;
        Ok(after)
    }

    /// Commits `new` in a word of the map, and the property with it.
    fn swap(
        self,
        cachelet: &Cachelet,
        slot: &Commit64,
        new: Tree,
        after: &Property,
        durable: Durable,
        several: bool,
    ) -> Result<()> {
        // A reader of several pieces could take some before this store and others after it; the
        // version shows that. A single block is taken in one piece.
        let version = cachelet.version.load(Relaxed);
        if several {
            cachelet.version.store(version.wrapping_add(1), Relaxed);
            fence(Release);
        }
        debug_assert!(
            new.is_empty() || self.owner.fs.block_map().is_used(new.block()),
            "a pointer leads to a block that is taken"
        );
        let dirty = self.owner.fs.pm.commit(slot, new.word, durable);
        let swapped = self.owner.fs.pm.flush(dirty);
        let committed = self.owner.cachelets().commit_property(cachelet, after, durable).map(|flushed| {
            self.owner.fs.pm.fence(swapped.and(flushed));
        });
        if several {
            cachelet.version.store(version.wrapping_add(2), Release);
        }
        committed?;
        self.owner.cachelets().publish_property(cachelet, after);
        Ok(())
    }
}
