//! Loads what an image must have in memory before it is attached: everything but the data of
//! regular files and free blocks. For a region of which only some pages are resident.
//!
//! Invariants
//! - Only a clean image with a whole snapshot is loaded in part: its maps show what is in use, and
//!   its inodes lead to the data. In others an inode may lead to blocks that serve another purpose.
//! - Of what a damaged image calls both data and metadata, inodes and map nodes are loaded. A page
//!   of a directory reads as zeros then, which do not verify.

use crate::alloc::snapshot;
use crate::error::Result;
use crate::file::visit_data;
use crate::format::{FileKind, INODES_PER_SEGMENT, Inode, PROPERTY_INLINE, Superblock};
use core::ops::Range;
use pmem::{BLOCK_BYTES, Memory, Pm, Region};

/// Learns what blocks are used for.
pub trait BlockUses {
    /// Consecutive blocks hold data of a file.
    fn data(&mut self, blocks: Range<u64>);
    /// Of 32 blocks from `first` on, those whose bit is set are in use.
    fn in_use(&mut self, first: u64, bits: u32);
}

/// Loads the fixed areas, inodes and map nodes of an image, and reports what its blocks are used
/// for. The caller then loads those that are in use and hold no data. `false`: the image is to be
/// loaded whole.
pub fn load_metadata<M: Memory>(pm: &Region<M>, uses: &mut dyn BlockUses) -> Result<bool> {
    let load = |blocks: Range<u64>| pm.load(blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
    let blocks = pm.length() / BLOCK_BYTES;
    load(0..1)?;
    load(blocks - 1..blocks)?;
    let Ok(geometry) = Superblock::check(pm, true) else { return Ok(false) };
    if geometry.blocks != blocks {
        return Ok(false);
    }
    load(0..geometry.data_block)?;
    load(geometry.data_end()..blocks)?;
    let superblock = pm.first::<Superblock>()?;
    let state = superblock.state();
    let figures = snapshot::figures_of(superblock);
    if !state.clean || !snapshot::verify(pm, &geometry, &figures, state.epoch)? {
        return Ok(false);
    }
    let mut run = 0..0;
    for index in 0..figures.segments {
        let Some(segment) = snapshot::segment_at(pm, &geometry, index)? else { return Ok(false) };
        for block in segment.inode_blocks() {
            if block != run.end {
                load(core::mem::replace(&mut run, block..block))?;
            }
            run.end = block + 1;
        }
    }
    load(run)?;
    snapshot::for_used_inodes(pm, &geometry, &mut |number| {
        if number / INODES_PER_SEGMENT >= figures.segments {
            return Ok(());
        }
        let Some(segment) = snapshot::segment_at(pm, &geometry, number / INODES_PER_SEGMENT)? else { return Ok(()) };
        let inode = pm.get(Pm::<Inode>::new(segment.inode_offset(number % INODES_PER_SEGMENT)))?;
        let Some(root) = data_root(inode, number) else { return Ok(()) };
        // If the map is damaged, all is loaded that it does not lead to.
        let _ = visit_data(pm, &geometry, root, &mut |blocks| uses.data(blocks));
        Ok(())
    })?;
    snapshot::for_used_blocks(pm, &geometry, &mut |first, bits| uses.in_use(first, bits))?;
    Ok(true)
}

/// The root of the block map of a regular file.
fn data_root(inode: &Inode, number: u64) -> Option<u64> {
    let (property, _) = inode.property(number, inode.generation(number)?)?;
    let is_body = property.kind() == Some(FileKind::Regular) && property.flags & PROPERTY_INLINE == 0;
    is_body.then_some(property.root)
}
