//! Checks of bodies: block maps of files, and extended attributes.
//!
//! Invariant: every node of the image is walked at most once, because its block can be claimed
//! once. The walk is therefore linear in the size of the image for any content.

use crate::check::{Checker, FindingLocation, INLINE};
use crate::finding::{FindingKind, Repair};
use crate::report::Phase;
use crate::usage::BlockUse;
use engine::format::{FileKind, INODES_PER_SEGMENT, Inode};
use engine::{BLOCK_SHARED, BLOCK_UNWRITTEN, inline_extent_of_root};
use pmem::{BLOCK_BYTES, Cell64, Memory, Pm, crc32c, flipped_bit};

/// Words of a node.
const NODE_WORDS: u64 = BLOCK_BYTES / 8;
/// The maximum height of a tree.
const HEIGHT_MAX: u32 = 4;
/// Position of the block flags in a root of height 0.
const ROOT_FLAGS_SHIFT: u32 = 4;

/// Bytes before the first extended attribute.
const XATTR_HEADER_BYTES: usize = 64;
/// The maximum length of a body of extended attributes.
const XATTR_BYTES_MAX: u64 = 1 << 20;
/// The maximum length of an attribute's value.
const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// A body during its walk.
struct Body {
    number: u64,
    /// Blocks within the file's length.
    blocks_visible: u64,
    /// Data blocks and nodes found.
    blocks: u64,
    /// Written blocks beyond the end, and the offset of the first.
    beyond: (u64, u64),
    /// Data blocks whose memory has errors, and the first of them, by its number in the file.
    lost: (u64, u64),
    /// The walk met an invalid pointer, so the counts mean nothing.
    damaged: bool,
    /// The repair for damage.
    repair: Repair,
}

impl<M: Memory> Checker<'_, M> {
    /// Checks the bodies of all files with names; on a clean image, of all files.
    pub fn check_bodies(&mut self) {
        let count = self.inodes.len();
        for index in 0..count {
            if index % INODES_PER_SEGMENT as usize == 0 {
                self.step(Phase::Bodies, index as u64, count as u64);
            }
            let state = self.inodes[index];
            // After a crash, files without names will be freed, so their claims do not matter.
            let counts = state.kind != 0 && (self.clean || state.names > 0 || state.is_directory());
            if !counts {
                continue;
            }
            let number = self.image.segments.number(index);
            let (inode, _) = self.image.inode_at(index);
            let has_body = matches!(state.file_kind(), Some(FileKind::Regular | FileKind::Symlink));
            let is_whole = !has_body || state.flags & INLINE != 0 || self.check_body(number, inode);
            if is_whole && state.file_kind() == Some(FileKind::Symlink) {
                self.check_target_bytes(number, inode);
            }
            if inode.xattrs.load() != 0 {
                self.check_xattrs(number, inode);
            }
        }
        self.step(Phase::Bodies, count as u64, count as u64);
    }

    /// Checks the body of a file; returns whether its block map is valid.
    fn check_body(&mut self, number: u64, inode: &Inode) -> bool {
        let Some((property, _)) = inode.generation(number).and_then(|generation| inode.property(number, generation))
        else {
            return false;
        };
        let blocks_visible = property.size_bytes.div_ceil(BLOCK_BYTES);
        let body = self.walk_body(number, property.root, blocks_visible, Repair::CopyBody { number });
        let on = FindingLocation::inode(number);
        if body.beyond.0 > 0 {
            let (count, first) = body.beyond;
            let repair = if self.clean { Repair::CopyBody { number } } else { Repair::Recover };
            let sentence = format_args!("{count} written blocks lie beyond the end of the file");
            self.report(FindingKind::BeyondEnd, on.at(first), repair, sentence);
        }
        if body.lost.0 > 0 {
            let (count, first) = (body.lost.0, body.lost.1 * BLOCK_BYTES);
            let sentence =
                format_args!("{count} of its blocks have memory errors, the first at byte {first} of the file");
            self.report(FindingKind::ContentLost, on, Repair::None, sentence);
        }
        if !body.damaged && body.blocks != property.blocks {
            let (said, blocks) = (property.blocks, body.blocks);
            let sentence = format_args!("its block count is {said}, but its body has {blocks}");
            self.report(FindingKind::BlocksWrong, on, Repair::SetBlocks { number, blocks }, sentence);
        }
        !body.damaged
    }

    fn walk_body(&mut self, number: u64, root: u64, blocks_visible: u64, repair: Repair) -> Body {
        let mut body = Body { number, blocks_visible, blocks: 0, beyond: (0, 0), lost: (0, 0), damaged: false, repair };
        if root == 0 {
            return body;
        }
        if let Some((first, count)) = inline_extent_of_root(root) {
            for index in 0..count {
                self.walk_pointer(&mut body, first + index * BLOCK_BYTES, 0, index);
            }
            return body;
        }
        let height = (root & 0xf) as u32;
        let flags = (root % BLOCK_BYTES) >> ROOT_FLAGS_SHIFT;
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
        let sentence = format_args!("{what} in the block map is {word:#x}, which is invalid");
        self.report(FindingKind::MapShape, FindingLocation::inode(number), body.repair, sentence);
    }

    /// Follows a pointer of `level`; `index` is the first block of the file below it. The recursion
    /// depth is the tree's height, at most four.
    fn walk_pointer(&mut self, body: &mut Body, word: u64, level: u32, index: u64) {
        if word == 0 {
            return;
        }
        let known = if level == 0 { BLOCK_UNWRITTEN | BLOCK_SHARED } else { 0 };
        if (word % BLOCK_BYTES) & !known != 0 {
            return self.report_shape(body, word, "a pointer");
        }
        let (block, number) = (word / BLOCK_BYTES, body.number);
        if !self.image.is_data(block) {
            body.damaged = true;
            let on = FindingLocation::inode(number);
            let sentence = format_args!("its block {index} is at block {block} of the image, outside the data area");
            return self.report(FindingKind::BlockOutside, on, body.repair, sentence);
        }
        let wanted = match (level, word & BLOCK_SHARED != 0) {
            (0, true) => BlockUse::Shared,
            (0, false) => BlockUse::Data,
            _ => BlockUse::Node,
        };
        if !self.claim(number, block, wanted, body.repair) {
            body.damaged = true;
            return;
        }
        body.blocks += 1;
        if level == 0 && self.is_lost(block) {
            body.lost = (body.lost.0 + 1, if body.lost.0 == 0 { index } else { body.lost.1.min(index) });
        }
        if level > 0 {
            self.walk_node(body, block, level, index);
        } else if index >= body.blocks_visible && word & BLOCK_UNWRITTEN == 0 {
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
        let root = inode.xattrs.load();
        let repair = Repair::DropXattrs { number };
        let body = self.walk_body(number, root, u64::MAX, repair);
        if body.damaged {
            return;
        }
        if let Err((what, flipped)) = self.parse_xattrs(root, body.blocks) {
            let sentence = format_args!("its extended attributes are damaged: {what}");
            let on = FindingLocation::inode(number).at(root & !(BLOCK_BYTES - 1));
            self.report(FindingKind::XattrBody, on, flipped.unwrap_or(repair), sentence);
        }
    }

    /// Reads and parses the body with the extended attributes. Returns what is wrong and the
    /// repair, if there is one.
    fn parse_xattrs(&self, root: u64, blocks: u64) -> Result<(), (&'static str, Option<Repair>)> {
        if blocks > XATTR_BYTES_MAX / BLOCK_BYTES + 1 {
            return Err(("their body is too large", None));
        }
        let (offsets, bytes) = self.read_xattr_blocks(root).map_err(|what| (what, None))?;
        let end = header_of_xattrs(&bytes).map_err(|what| (what, None))?;
        let stored = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
        let difference = stored ^ crc32c(0, &bytes[XATTR_HEADER_BYTES..end]) as u64;
        if difference != 0 {
            let bit = match difference.is_power_of_two() {
                true => Some(difference.trailing_zeros() as usize),
                false => u32::try_from(difference)
                    .ok()
                    .and_then(|difference| flipped_bit(end - XATTR_HEADER_BYTES, difference))
                    .map(|bit| XATTR_HEADER_BYTES * 8 + bit),
            };
            let flipped = bit.map(|bit| {
                let at = bit / 64 * 8;
                let offset = offsets[at / BLOCK_BYTES as usize] + at as u64 % BLOCK_BYTES;
                Repair::SetWord { offset, word: self.image.word(offset) ^ 1 << (bit % 64) }
            });
            return Err(("they do not match their checksum", flipped));
        }
        count_xattrs(&bytes[..end]).map_err(|what| (what, None))
    }

    /// Offsets and bytes of the blocks of a body with at most one lowest-level node. A walk has
    /// found its pointers to be valid.
    fn read_xattr_blocks(&self, root: u64) -> Result<(Vec<u64>, Vec<u8>), &'static str> {
        let offset = root & !(BLOCK_BYTES - 1);
        let offsets: Vec<u64> = match (root & 0xf, inline_extent_of_root(root)) {
            (_, Some((first, count))) => (0..count).map(|index| first + index * BLOCK_BYTES).collect(),
            (0, _) => vec![offset],
            (1, _) => {
                let words = self.image.region.slice(Pm::<Cell64>::new(offset), NODE_WORDS);
                let words = words.map_err(|_| "they lie outside the image")?.iter().map(|word| word.load());
                let pointers = words.take_while(|word| *word != 0).take((XATTR_BYTES_MAX / BLOCK_BYTES) as usize);
                pointers.map(|pointer| pointer & !(BLOCK_BYTES - 1)).collect()
            }
            _ => return Err("their block map is too high"),
        };
        if offsets.is_empty() {
            return Err("they have no blocks");
        }
        let mut bytes = vec![0; offsets.len() * BLOCK_BYTES as usize];
        for (offset, block) in offsets.iter().zip(bytes.chunks_exact_mut(BLOCK_BYTES as usize)) {
            self.image.region.read_bytes(*offset, block).map_err(|_| "they lie outside the image")?;
        }
        Ok((offsets, bytes))
    }
}

/// The end of the extended attributes in these bytes, if their header is valid.
fn header_of_xattrs(bytes: &[u8]) -> Result<usize, &'static str> {
    let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap_or_default());
    let end = usize::try_from(length).unwrap_or(usize::MAX);
    if end < XATTR_HEADER_BYTES || length > XATTR_BYTES_MAX || end > bytes.len() {
        return Err("their length is invalid");
    }
    if bytes[24..XATTR_HEADER_BYTES].iter().any(|byte| *byte != 0) {
        return Err("reserved bytes of their header are not zero");
    }
    Ok(end)
}

/// Parses a whole body: the attributes must fill it exactly and match its count.
fn count_xattrs(bytes: &[u8]) -> Result<(), &'static str> {
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap_or_default());
    let mut rest = &bytes[XATTR_HEADER_BYTES..];
    let mut found = 0;
    while let [name_length, a, b, c, d, behind @ ..] = rest {
        let value_length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let whole = *name_length > 0 && value_length <= XATTR_VALUE_BYTES_MAX;
        let next = behind.get(*name_length as usize + value_length..);
        rest = next.filter(|_| whole).ok_or("an attribute extends beyond the end")?;
        if behind[..*name_length as usize].contains(&0) {
            return Err("the name of an attribute has a zero byte in it");
        }
        found += 1;
    }
    match (rest.is_empty(), found == count) {
        (false, _) => Err("an attribute extends beyond the end"),
        (_, false) => Err("their count is wrong"),
        _ => Ok(()),
    }
}
