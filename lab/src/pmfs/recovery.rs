//! Mounting rolls the journals back, then scans all inodes for blocks in use. PMFS saves its free
//! list at a clean unmount and then skips the scan; this system always scans.

use super::Pmfs;
use super::format::{INODE_BYTES, TABLE_BLOCK};
use super::tree::Tree;
use crate::error::{Error, Result};
use crate::substrate::{BlockRange, FreeBlocks};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, Memory};

impl<M: Memory> Pmfs<M> {
    pub(super) fn recover(&mut self, blocks: BlockRange) -> Result<()> {
        self.undo_journals()?;
        let high = self.inodes_high()?.load();
        if high > self.inodes_max {
            return Err(Error::damaged("more inodes are initialised than the table holds", TABLE_BLOCK * BLOCK_BYTES));
        }
        let mut used = vec![0u64; (blocks.start + blocks.count).div_ceil(64) as usize];
        let mut free = Vec::new();
        for number in 1..=high {
            if !self.recover_inode(number, &mut |offset| mark(&mut used, blocks, offset))? {
                free.push(number);
            }
        }
        self.region.fence(Flushed::nothing());
        free.reverse();
        self.inodes.found(high, free);
        let is_used = |block: u64| used[(block / 64) as usize] & 1 << (block % 64) != 0;
        // One list for all threads, as in PMFS.
        self.blocks = FreeBlocks::with_used(blocks, 1, is_used);
        Ok(())
    }

    fn recover_inode(&self, number: u64, mark: &mut dyn FnMut(u64) -> Result<()>) -> Result<bool> {
        let offset = self.inode_offset(number)?;
        let inode = self.inode(offset)?;
        self.region.report_read(offset, INODE_BYTES);
        let mode_links = inode.mode_links.load();
        if mode_links == 0 {
            return Ok(false);
        }
        let kind = FileKind::from_mode((mode_links >> 32) as u32)
            .ok_or_else(|| Error::damaged("an inode has an invalid file type", offset))?;
        if mode_links as u32 == 0 {
            // Unlinked while open.
            self.region.flush(self.region.set64(&inode.mode_links, 0)).unfenced();
            return Ok(false);
        }
        let end_page = inode.size_bytes.load().div_ceil(BLOCK_BYTES);
        let mut blocks = 0;
        self.visit_tree(Tree(inode.root.load()), &mut |page, block, slot| {
            match (page, slot) {
                // A write or a truncation was interrupted.
                (Some(page), Some(slot)) if page >= end_page && kind == FileKind::Regular => {
                    self.region.flush(self.region.set64(slot, 0)).unfenced();
                    return Ok(());
                }
                (Some(_), _) => blocks += 1,
                _ => {}
            }
            mark(block)
        })?;
        if blocks != inode.blocks.load() {
            self.region.flush(self.region.set64(&inode.blocks, blocks)).unfenced();
        }
        Ok(true)
    }
}

fn mark(used: &mut [u64], blocks: BlockRange, offset: u64) -> Result<()> {
    let block = offset / BLOCK_BYTES;
    if block < blocks.start || block >= blocks.start + blocks.count {
        return Err(Error::damaged("a block in use lies outside the image", offset));
    }
    let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
    if used[word] & bit != 0 {
        return Err(Error::damaged("a block is in use twice", offset));
    }
    used[word] |= bit;
    Ok(())
}
