//! Targets of symbolic links. Invariant: a target has no zero byte, since programs could not pass
//! on what follows it.

use crate::check::{Checker, FindingLocation};
use crate::finding::{FindingKind, Repair};
use crate::image::Image;
use engine::format::{FileKind, Inode, PROPERTY_INLINE, Property, is_possible_target};
use engine::{BLOCK_SHARED, BLOCK_UNWRITTEN, inline_extent_of_root};
use pmem::{BLOCK_BYTES, Memory};

/// The target of a link as readers see it.
pub(crate) struct Target {
    pub bytes: Vec<u8>,
    /// The offset of the bytes, if they are on the image and no other file's.
    pub offset: Option<u64>,
}

impl<M: Memory> Image<'_, M> {
    /// The target of a link with a possible size and a valid block map.
    pub fn target(&self, inode: &Inode, property: &Property) -> Target {
        let mut bytes = vec![0; property.size_bytes as usize];
        let word = match property.flags & PROPERTY_INLINE {
            0 => self.first_pointer(property.root),
            _ => self.region.offset_of(&inode.inline),
        };
        let in_body = property.flags & PROPERTY_INLINE == 0;
        if in_body && (word == 0 || word & BLOCK_UNWRITTEN != 0) {
            return Target { bytes, offset: None };
        }
        let is_shared = in_body && word & BLOCK_SHARED != 0;
        let offset = if in_body { word & !(BLOCK_BYTES - 1) } else { word };
        let is_read = self.region.read_bytes(offset, &mut bytes).is_ok();
        Target { bytes, offset: Some(offset).filter(|_| is_read && !is_shared) }
    }

    /// The pointer to the first block of a body.
    fn first_pointer(&self, root: u64) -> u64 {
        if let Some((first, _)) = inline_extent_of_root(root) {
            return first;
        }
        match root & 0xf {
            0 => root & !(BLOCK_BYTES - 1) | (root % BLOCK_BYTES) >> 4,
            height => (0..height).fold(root, |word, _| self.word(word & !(BLOCK_BYTES - 1))),
        }
    }
}

impl<M: Memory> Checker<'_, M> {
    /// Checks the target of a link whose block map is valid.
    pub fn check_target_bytes(&mut self, number: u64, inode: &Inode) {
        let property = inode.generation(number).and_then(|generation| inode.property(number, generation));
        let Some((property, _)) = property.filter(|(property, _)| property.size_fits(FileKind::Symlink)) else {
            return;
        };
        let target = self.image.target(inode, &property);
        if !is_possible_target(&target.bytes) {
            let on = FindingLocation::inode(number);
            let on = target.offset.map_or(on, |offset| on.at(offset));
            let what = if target.offset.is_some() { "has a zero byte in it" } else { "is not on the image" };
            self.report(
                FindingKind::LinkTarget,
                on,
                Repair::SpellTarget { number },
                format_args!("the target of the symbolic link {what}"),
            );
        }
    }
}
