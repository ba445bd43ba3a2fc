//! Bodies: block maps of files, and extended attributes.
//!
//! Every node is entered once over the whole image, because its block can be claimed once. So the walk is linear in the image whatever
//! the nodes lead to.

use crate::check::{Checker, INLINE, Place};
use crate::finding::{FindingKind, Repair};
use crate::report::Phase;
use crate::usage::Use;
use engine::format::{FileKind, INODES_PER_SEGMENT, Inode};
use pmem::{BLOCK_BYTES, Cell64, Memory, Pm};

/// Words of a node.
const NODE_WORDS: u64 = BLOCK_BYTES / 8;
/// The highest tree.
const HEIGHT_MAX: u32 = 4;
/// The longest file.
pub(crate) const SIZE_BYTES_MAX: u64 = (1 << (9 * HEIGHT_MAX)) * BLOCK_BYTES;
/// Flag of a data pointer: allocated but never written.
const UNWRITTEN: u64 = 1;
/// Flag of a data pointer: others may name the block too.
const SHARED: u64 = 2;
/// Where a root of height 0 keeps its block's flags.
const ROOT_FLAGS_SHIFT: u32 = 4;

/// A body that is being walked.
struct Body {
    number: u64,
    /// Blocks that the length makes visible.
    blocks_visible: u64,
    /// Blocks and nodes met.
    blocks: u64,
    /// Written blocks behind the end, and the first one's pointer.
    beyond: (u64, u64),
    /// What the walk met cannot be: what was counted means nothing.
    damaged: bool,
}

impl<M: Memory> Checker<'_, M> {
    /// Walks the bodies of all files that have names; on a clean image, of all.
    pub fn check_bodies(&mut self) {
        let places = self.inodes.len();
        for place in 0..places {
            if place % INODES_PER_SEGMENT as usize == 0 {
                self.step(Phase::Bodies, place as u64, places as u64);
            }
            let state = self.inodes[place];
            // After a crash, what has no name is to be freed, and what it claims does not matter.
            let counts = state.kind != 0 && (self.clean || state.names > 0 || state.is_directory());
            if !counts {
                continue;
            }
            let number = self.image.segments.number(place);
            let (inode, _) = self.image.inode_at(place);
            let has_body = matches!(state.file_kind(), Some(FileKind::Regular | FileKind::Symlink));
            if has_body && state.flags & INLINE == 0 {
                self.check_body(number, inode);
            }
            if inode.xattrs.load() != 0 {
                self.check_xattrs(number, inode);
            }
        }
        self.step(Phase::Bodies, places as u64, places as u64);
    }

    fn check_body(&mut self, number: u64, inode: &Inode) {
        let Some((property, _)) = inode.generation(number).and_then(|generation| inode.property(number, generation))
        else {
            return;
        };
        let blocks_visible = property.size_bytes.div_ceil(BLOCK_BYTES);
        let body = self.walk_body(number, property.root, blocks_visible);
        let on = Place::inode(number);
        if body.beyond.0 > 0 {
            let (count, first) = body.beyond;
            let repair = if self.clean { Repair::MendProperty { number } } else { Repair::Recover };
            let sentence = format_args!("{count} written blocks lie behind its end");
            self.found(FindingKind::BeyondEnd, on.at(first), repair, sentence);
        }
        if !body.damaged && body.blocks != property.blocks {
            let (said, blocks) = (property.blocks, body.blocks);
            let sentence = format_args!("it says that it has {said} blocks, and it has {blocks}");
            self.found(FindingKind::BlocksWrong, on, Repair::SetBlocks { number, blocks }, sentence);
        }
    }

    fn walk_body(&mut self, number: u64, root: u64, blocks_visible: u64) -> Body {
        let mut body = Body { number, blocks_visible, blocks: 0, beyond: (0, 0), damaged: false };
        if root == 0 {
            return body;
        }
        let height = (root & 0xf) as u32;
        let flags = root % BLOCK_BYTES >> ROOT_FLAGS_SHIFT;
        if height > HEIGHT_MAX || (height > 0 && flags != 0) {
            self.report_shape(&mut body, root, "its root");
        } else {
            let word = root & !(BLOCK_BYTES - 1) | flags;
            self.walk_pointer(&mut body, word, height, 0);
        }
        body
    }

    fn report_shape(&mut self, body: &mut Body, word: u64, what: &str) {
        body.damaged = true;
        let number = body.number;
        let sentence = format_args!("{what} in the block map is {word:#x}, which cannot be");
        self.found(FindingKind::MapShape, Place::inode(number), Repair::CopyBody { number }, sentence);
    }

    /// Follows a pointer of `level` to what holds block `index` first. Recursion is as deep as the tree is high: four.
    fn walk_pointer(&mut self, body: &mut Body, word: u64, level: u32, index: u64) {
        if word == 0 {
            return;
        }
        let known = if level == 0 { UNWRITTEN | SHARED } else { 0 };
        if word % BLOCK_BYTES & !known != 0 {
            return self.report_shape(body, word, "a pointer");
        }
        let (block, number) = (word / BLOCK_BYTES, body.number);
        if !self.image.is_data(block) {
            body.damaged = true;
            let on = Place::inode(number);
            let sentence = format_args!("its block {index} is block {block} of the image, where no contents can be");
            return self.found(FindingKind::BlockOutside, on, Repair::CopyBody { number }, sentence);
        }
        let wanted = match (level, word & SHARED != 0) {
            (0, true) => Use::Shared,
            (0, false) => Use::Data,
            _ => Use::Node,
        };
        if !self.claim(number, block, wanted, Repair::CopyBody { number }) {
            body.damaged = true;
            return;
        }
        body.blocks += 1;
        if level > 0 {
            self.walk_node(body, block, level, index);
        } else if index >= body.blocks_visible && word & UNWRITTEN == 0 {
            body.beyond = (body.beyond.0 + 1, if body.beyond.0 == 0 { block * BLOCK_BYTES } else { body.beyond.1 });
        }
    }

    fn walk_node(&mut self, body: &mut Body, block: u64, level: u32, index: u64) {
        let Ok(words) = self.image.region.slice(Pm::<Cell64>::new(block * BLOCK_BYTES), NODE_WORDS) else { return };
        for (slot, word) in words.iter().enumerate() {
            let first = index + ((slot as u64) << (9 * (level - 1)));
            self.walk_pointer(body, word.load(), level - 1, first);
        }
    }

    fn check_xattrs(&mut self, number: u64, inode: &Inode) {
        let body = self.walk_body(number, inode.xattrs.load(), u64::MAX);
        let _ = body.damaged;
    }
}
