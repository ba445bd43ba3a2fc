//! Repair of bodies: a file gets a separate body with its readable contents.

use super::Done;
use super::edit::Repairer;
use crate::targets::Target;
use crate::usage::BlockUse;
use engine::format::{INLINE_BYTES_MAX, Inode, PROPERTY_INLINE};
use engine::{BLOCK_SHARED, BLOCK_UNWRITTEN, inline_extent_of_root};
use pmem::{BLOCK_BYTES, Cell64, Memory, Pm};
use std::mem::offset_of;

const NODE_WORDS: u64 = BLOCK_BYTES / 8;
const HEIGHT_MAX: u32 = 4;

/// The data pointers of a body.
#[derive(Default)]
struct Leaves {
    /// Block index in the file, and the pointer to the block.
    pointers: Vec<(u64, u64)>,
    nodes: u64,
    /// Something was left out.
    partial: bool,
    steps: u64,
}

impl<M: Memory> Repairer<'_, M> {
    /// All data pointers below a root that refer to the data area.
    fn leaves(&self, root: u64) -> Leaves {
        let mut leaves = Leaves::default();
        let height = (root & 0xf) as u32;
        let flags = (root % BLOCK_BYTES) >> 4;
        if root == 0 {
            return leaves;
        }
        if let Some((first, count)) = inline_extent_of_root(root) {
            (0..count).for_each(|index| self.collect(&mut leaves, first + index * BLOCK_BYTES, 0, index));
            return leaves;
        }
        if height > HEIGHT_MAX || (height > 0 && flags != 0) {
            leaves.partial = true;
            return leaves;
        }
        self.collect(&mut leaves, root & !(BLOCK_BYTES - 1) | flags, height, 0);
        leaves
    }

    fn collect(&self, leaves: &mut Leaves, word: u64, level: u32, index: u64) {
        if word == 0 {
            return;
        }
        leaves.steps += 1;
        let block = word / BLOCK_BYTES;
        let known = if level == 0 { BLOCK_UNWRITTEN | BLOCK_SHARED } else { 0 };
        let possible = (word % BLOCK_BYTES) & !known == 0 && self.check.image.is_data(block);
        // A body with more blocks than the image has a cycle.
        if !possible || leaves.steps > self.check.image.geometry.blocks {
            leaves.partial = true;
            return;
        }
        if level == 0 {
            leaves.pointers.push((index, word));
            return;
        }
        leaves.nodes += 1;
        let Ok(words) = self.region().slice(Pm::<Cell64>::new(block * BLOCK_BYTES), NODE_WORDS) else { return };
        for (slot, word) in words.iter().enumerate() {
            self.collect(leaves, word.load(), level - 1, index + ((slot as u64) << (9 * (level - 1))));
        }
    }

    /// The number of blocks of the body below a root, and its end in blocks, if none of its blocks
    /// has an owner.
    pub fn unclaimed_body(&self, root: u64) -> Option<(u64, u64)> {
        let leaves = self.leaves(root);
        let free = |word: u64| self.check.usage.of(word / BLOCK_BYTES) == BlockUse::Free;
        let whole = !leaves.partial && leaves.pointers.iter().all(|(_, word)| free(*word));
        let end = leaves.pointers.last().map_or(0, |(index, _)| index + 1);
        let is_node = inline_extent_of_root(root).is_none();
        (whole && root != 0 && (!is_node || free(root))).then_some((leaves.nodes + leaves.pointers.len() as u64, end))
    }

    /// Gives a file a separate body. Contents with several owners are copied; blocks that are not
    /// contents become holes.
    pub fn copy_body(&mut self, number: u64) -> Done {
        let (property, _) = self.property(number)?;
        let visible = property.size_bytes.div_ceil(BLOCK_BYTES);
        let leaves = self.leaves(property.root);
        let mut pointers = Vec::with_capacity(leaves.pointers.len());
        for (index, word) in leaves.pointers {
            let hidden = index >= visible && word & BLOCK_UNWRITTEN == 0;
            if let Some(word) = self.own(word)?.filter(|_| !hidden) {
                pointers.push((index, word));
            }
        }
        pointers.sort_unstable();
        pointers.dedup_by_key(|(index, _)| *index);
        let (root, blocks) = self.build(&pointers)?;
        self.change_property(number, |property| (property.root, property.blocks) = (root, blocks))
    }

    /// A pointer to the same contents in a block that only this file uses; none if the block is not
    /// contents.
    fn own(&mut self, word: u64) -> Result<Option<u64>, &'static str> {
        let block = word / BLOCK_BYTES;
        let shared = word & BLOCK_SHARED != 0;
        match self.check.usage.of(block) {
            BlockUse::Data if !self.check.usage.is_contested(block) => Ok(Some(word)),
            BlockUse::Shared if shared => Ok(Some(word)),
            // The walk may have ended before this block.
            BlockUse::Free if self.check.usage.claim(block, BlockUse::Data).is_ok() => Ok(Some(word)),
            BlockUse::Data | BlockUse::Shared => {
                let copy = self.take_blocks(1, BlockUse::Data)?;
                let copied = self.region().stream_within(block * BLOCK_BYTES, copy, BLOCK_BYTES);
                self.region().fence(copied.map_err(|_| "a block lies outside the image")?);
                Ok(Some(copy | word & BLOCK_UNWRITTEN))
            }
            _ => Ok(None),
        }
    }

    /// Builds the nodes above data pointers; returns the root and the number of blocks.
    fn build(&mut self, pointers: &[(u64, u64)]) -> Result<(u64, u64), &'static str> {
        let Some((last, _)) = pointers.last() else { return Ok((0, 0)) };
        let height = (0..=HEIGHT_MAX).find(|height| last >> (9 * height) == 0).ok_or("the file is too long")?;
        let mut level: Vec<(u64, u64)> = pointers.to_vec();
        let mut blocks = level.len() as u64;
        for _ in 0..height {
            let mut above: Vec<(u64, u64)> = Vec::new();
            for (index, word) in level {
                if above.last().is_none_or(|(node, _)| *node != index / NODE_WORDS) {
                    above.push((index / NODE_WORDS, self.take_blocks(1, BlockUse::Node)?));
                    blocks += 1;
                }
                let node = above.last().map_or(0, |(_, offset)| *offset);
                self.set(node + index % NODE_WORDS * 8, word);
            }
            level = above;
        }
        let (_, word) = level[0];
        let flags = word % BLOCK_BYTES;
        Ok((word & !(BLOCK_BYTES - 1) | flags << 4 | height as u64, blocks))
    }

    /// Puts an underscore in place of each zero byte of a target. A target without bytes of its own
    /// moves into the inode.
    pub fn spell_target(&mut self, number: u64) -> Done {
        let (property, _) = self.property(number)?;
        let (inode, at) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let Target { mut bytes, offset } = self.check.image.target(inode, &property);
        bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'_');
        if let Some(offset) = offset {
            self.set_bytes(offset, &bytes);
            return Ok(());
        }
        bytes.truncate(INLINE_BYTES_MAX);
        self.set_bytes(at + offset_of!(Inode, inline) as u64, &bytes);
        self.change_property(number, |property| {
            property.flags |= PROPERTY_INLINE;
            (property.size_bytes, property.root, property.blocks) = (bytes.len() as u64, 0, 0);
        })
    }
    pub fn drop_xattrs(&mut self, number: u64) -> Done {
        self.set(self.check.inode_offset(number)? + offset_of!(Inode, xattrs) as u64, 0);
        Ok(())
    }
}
