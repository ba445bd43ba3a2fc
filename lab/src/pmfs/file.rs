//! File content. It is written in place: a crash during a write leaves any mixture of old and new
//! bytes in the file, but never bytes of other files.
//!
//! The part of the last block beyond the end of a file has undefined content. An operation that
//! extends the file zeroes it first.

use super::format::Inode;
use super::tree::{Growing, Tree};
use super::{Pmfs, PmfsInfo};
use crate::error::Result;
use crate::physical::{Exclusive, Shared};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, Memory};
use posix::Errno;

impl<M: Memory> Pmfs<M> {
    fn regular(&self, attributes: &engine::Attributes, info: &PmfsInfo) -> Result<&Inode> {
        if attributes.kind != FileKind::Regular {
            return Err(Errno::EINVAL.into());
        }
        self.inode(info.inode)
    }

    /// Reads from a tree of blocks.
    pub(super) fn read_tree(&self, tree: Tree, size_bytes: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let length = (into.len() as u64).min(size_bytes.saturating_sub(offset));
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let (page, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let step = (BLOCK_BYTES - within).min(length - done);
            let part = &mut into[done as usize..(done + step) as usize];
            match self.find_block(tree, page)? {
                0 => part.fill(0),
                block => self.region.read_bytes(block + within, part)?,
            }
            done += step;
        }
        Ok(length as usize)
    }

    pub(super) fn read_file(&self, file: Shared<'_, PmfsInfo>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let attributes = file.attributes.get();
        let inode = self.regular(&attributes, file.info)?;
        self.read_tree(Tree(inode.root.load()), attributes.size_bytes, offset, into)
    }

    /// Zeroes from a file's end to `until`, within the file's last block.
    fn clear_gap(&self, tree: Tree, size_bytes: u64, until: u64) -> Result<Flushed> {
        let end = until.min(size_bytes.next_multiple_of(BLOCK_BYTES));
        match self.find_block(tree, size_bytes / BLOCK_BYTES)? {
            block if block != 0 && size_bytes < end => {
                Ok(self.region.stream_zeros(block + size_bytes % BLOCK_BYTES, end - size_bytes)?)
            }
            _ => Ok(Flushed::nothing()),
        }
    }

    pub(super) fn write_file(
        &self,
        file: &mut Exclusive<'_, PmfsInfo>,
        offset: u64,
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<()> {
        let attributes = file.attributes.get();
        let inode = self.regular(&attributes, file.info)?;
        let mut growing = Growing::new(Tree(inode.root.load()));
        match self.write_growing(inode, &attributes, &mut growing, offset, bytes, now_ns) {
            Ok(()) => {}
            Err(error) => {
                self.roll_back_growth(growing);
                return Err(error);
            }
        }
        let size_bytes = attributes.size_bytes.max(offset + bytes.len() as u64);
        file.attributes.update(|attributes| {
            attributes.size_bytes = size_bytes;
            attributes.blocks += growing.added;
            attributes.modified_ns = now_ns;
            attributes.changed_ns = now_ns;
        });
        Ok(())
    }

    fn write_growing(
        &self,
        inode: &Inode,
        attributes: &engine::Attributes,
        growing: &mut Growing,
        offset: u64,
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let mut blocks = Vec::new();
        let mut flushed = Flushed::nothing();
        for page in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            blocks.push((page, self.grow(growing, page, &mut flushed)?));
        }
        let mut transaction = self.transaction()?;
        transaction.with(flushed);
        if offset > attributes.size_bytes {
            transaction.with(self.clear_gap(Tree(inode.root.load()), attributes.size_bytes, offset)?);
        }
        for (page, (block, fresh)) in blocks {
            let start = page * BLOCK_BYTES;
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            transaction.with(self.region.stream_bytes(block + (from - start), part)?);
            if fresh {
                transaction.with(self.region.stream_zeros(block, from - start)?);
                transaction.with(self.region.stream_zeros(block + (to - start), start + BLOCK_BYTES - to)?);
            }
        }
        // The fence of the log is that of the data.
        transaction.log(self.region.offset_of(inode), 8)?;
        transaction.begin();
        transaction.with(self.set_pointers(growing)?);
        transaction.set(&inode.root, growing.tree.0);
        transaction.set(&inode.blocks, attributes.blocks + growing.added);
        transaction.set(&inode.size_bytes, attributes.size_bytes.max(end));
        transaction.set(&inode.modified_ns, now_ns as u64);
        transaction.set(&inode.changed_ns, now_ns as u64);
        transaction.end();
        Ok(())
    }

    pub(super) fn truncate_file(&self, file: &mut Exclusive<'_, PmfsInfo>, size_bytes: u64, now_ns: i64) -> Result<()> {
        let attributes = file.attributes.get();
        let inode = self.regular(&attributes, file.info)?;
        let tree = Tree(inode.root.load());
        let end_page = size_bytes.div_ceil(BLOCK_BYTES);
        let mut gone = 0;
        if size_bytes < attributes.size_bytes {
            self.visit_tree(tree, &mut |page, _, _| {
                gone += u64::from(page.is_some_and(|page| page >= end_page));
                Ok(())
            })?;
        }
        let blocks = attributes.blocks.saturating_sub(gone);
        let mut transaction = self.transaction()?;
        if size_bytes > attributes.size_bytes {
            transaction.with(self.clear_gap(tree, attributes.size_bytes, size_bytes)?);
        }
        transaction.log(self.region.offset_of(inode), 8)?;
        transaction.begin();
        transaction.set(&inode.size_bytes, size_bytes);
        transaction.set(&inode.blocks, blocks);
        transaction.set(&inode.modified_ns, now_ns as u64);
        transaction.set(&inode.changed_ns, now_ns as u64);
        if size_bytes == 0 {
            transaction.set(&inode.root, 0);
        }
        transaction.end();
        file.attributes.update(|attributes| {
            attributes.size_bytes = size_bytes;
            attributes.blocks = blocks;
            attributes.modified_ns = now_ns;
            attributes.changed_ns = now_ns;
        });
        if size_bytes == 0 {
            return self.free_tree(tree);
        }
        if gone > 0 { self.prune(tree, end_page).map(drop) } else { Ok(()) }
    }

    /// Removes the blocks from a page on from a tree, after the file was shortened. Nodes stay.
    fn prune(&self, tree: Tree, end_page: u64) -> Result<u64> {
        let mut freed = Vec::new();
        let mut flushed = Flushed::nothing();
        self.visit_tree(tree, &mut |page, block, slot| {
            if let (Some(page), Some(slot)) = (page, slot)
                && page >= end_page
            {
                let before = std::mem::replace(&mut flushed, Flushed::nothing());
                flushed = before.and(self.region.flush(self.region.set64(slot, 0)));
                freed.push(block);
            }
            Ok(())
        })?;
        // The pointers are durably cleared before the blocks can be reused.
        self.region.fence(flushed);
        let count = freed.len() as u64;
        freed.into_iter().for_each(|block| self.blocks.free(block / BLOCK_BYTES));
        Ok(count)
    }

    /// Frees all blocks of a tree that is no longer reachable.
    pub(super) fn free_tree(&self, tree: Tree) -> Result<()> {
        let mut all = Vec::new();
        self.visit_tree(tree, &mut |_, block, _| {
            all.push(block);
            Ok(())
        })?;
        all.into_iter().for_each(|block| self.blocks.free(block / BLOCK_BYTES));
        Ok(())
    }
}
