//! Mounting rolls journals back, then scans all logs for inodes and blocks in use. NOVA saves its
//! free lists at a clean unmount and then skips the scan; this system always scans.

use super::format::{FIRST_BLOCK, FREE, INODE_BYTES, ORPHAN, TABLES, USED};
use super::log::LogEntry;
use super::table::number_of;
use super::{Body, Nova, NovaInfo};
use crate::error::{Error, Result};
use crate::substrate::{BlockRange, FreeBlocks};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, Memory};
use std::collections::HashSet;

/// The blocks in use.
struct Used {
    bits: Vec<u64>,
    first: u64,
    end: u64,
}

impl Used {
    fn mark(&mut self, range: BlockRange) -> Result<()> {
        for block in range.start..range.start.saturating_add(range.count) {
            if block < self.first || block >= self.end {
                return Err(Error::damaged("a block in use lies outside the image", block.saturating_mul(BLOCK_BYTES)));
            }
            let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
            if self.bits[word] & bit != 0 {
                return Err(Error::damaged("a block is in use twice", block * BLOCK_BYTES));
            }
            self.bits[word] |= bit;
        }
        Ok(())
    }
}

impl<M: Memory> Nova<M> {
    /// Finds the inodes and blocks in use, frees orphans and completes the lazy marks of removals.
    pub(super) fn recover(&mut self, blocks: BlockRange) -> Result<()> {
        self.undo_journals()?;
        let end = blocks.start + blocks.count;
        let mut used = Used { bits: vec![0; end.div_ceil(64) as usize], first: FIRST_BLOCK, end };
        for table in 0..TABLES {
            self.recover_table(table, &mut used)?;
        }
        self.region.fence(Flushed::nothing());
        let is_used = |block: u64| used.bits[(block / 64) as usize] & 1 << (block % 64) != 0;
        self.blocks = FreeBlocks::with_used(blocks, self.shards, is_used);
        Ok(())
    }

    fn recover_table(&self, table: u64, used: &mut Used) -> Result<()> {
        let mut at = self.table_head(table)?.load();
        let mut free = Vec::new();
        let mut index = 0;
        while at != 0 {
            let segment = self.segment(at)?;
            // A cyclic chain fails here, too: its first segment is in use already.
            used.mark(BlockRange { start: at / BLOCK_BYTES, count: self.segment_blocks })?;
            for _ in 0..self.per_segment() {
                let offset = at + (index % self.per_segment() + 1) * INODE_BYTES;
                let number = number_of(table, index);
                if self.recover_inode(offset, number, used)? {
                    self.inodes.count_used();
                } else {
                    free.push(number);
                }
                index += 1;
            }
            at = segment.next.load();
        }
        self.inodes.found(table, index, free);
        Ok(())
    }

    /// Recovers one inode. Returns whether it is in use.
    fn recover_inode(&self, offset: u64, number: u64, used: &mut Used) -> Result<bool> {
        let inode = self.inode(offset)?;
        match inode.state.load() {
            FREE => return Ok(false),
            USED => {}
            ORPHAN => {
                let freed = self.region.flush(self.region.retract(&inode.state, FREE));
                freed.unfenced();
                return Ok(false);
            }
            _ => return Err(Error::damaged("an inode's state is invalid", offset)),
        }
        let mut pages = Vec::new();
        let (attributes, info) = self.load_inode(offset, number, &mut |page| pages.push(page))?;
        for page in pages {
            used.mark(BlockRange { start: page / BLOCK_BYTES, count: 1 })?;
        }
        match &info.body {
            Body::Regular(extents) => extents.runs().try_for_each(|(_, run)| used.mark(run))?,
            Body::Directory(_) => self.finish_removals(offset)?,
            Body::Other if attributes.kind == FileKind::Symlink => {
                used.mark(BlockRange { start: inode.parent_or_target.load() / BLOCK_BYTES, count: 1 })?;
            }
            Body::Other => {}
        }
        Ok(true)
    }

    /// Sets the marks of removed names as the log says. A crash can lose a mark, or leave the mark
    /// of a removal that was rolled back.
    fn finish_removals(&self, offset: u64) -> Result<()> {
        let inode = self.inode(offset)?;
        let mut gone = HashSet::new();
        self.scan_log(inode, &mut |_| {}, &mut |_, entry| {
            if let LogEntry::Remove { removed, .. } = entry {
                gone.insert(removed);
            }
            Ok(())
        })?;
        self.scan_log(inode, &mut |_| {}, &mut |at, entry| {
            if let LogEntry::Add { removed, .. } = entry
                && removed != gone.contains(&at)
            {
                self.mark(at, !removed)?.unfenced();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Reads an inode and its log.
    pub(super) fn load_inode(
        &self,
        offset: u64,
        number: u64,
        page: &mut dyn FnMut(u64),
    ) -> Result<(engine::Attributes, NovaInfo)> {
        let inode = self.inode(offset)?;
        self.region.report_read(offset, INODE_BYTES);
        let mut attributes = self.made_attributes(inode, number)?;
        let mut body = match attributes.kind {
            FileKind::Directory => Body::Directory(Default::default()),
            FileKind::Regular => Body::Regular(Default::default()),
            _ => Body::Other,
        };
        let log = self.scan_log(inode, page, &mut |at, entry| {
            match &entry {
                LogEntry::Add { links, timestamp_ns, .. } | LogEntry::Remove { links, timestamp_ns, .. } => {
                    attributes.links = *links;
                    (attributes.modified_ns, attributes.changed_ns) = (*timestamp_ns, *timestamp_ns);
                }
                LogEntry::Write { size_bytes, timestamp_ns, .. } => {
                    attributes.size_bytes = *size_bytes;
                    (attributes.modified_ns, attributes.changed_ns) = (*timestamp_ns, *timestamp_ns);
                }
                LogEntry::OwnName { .. } => {}
                LogEntry::Attributes(now) => {
                    if now.kind != attributes.kind {
                        return Err(Error::damaged("a log changes a file's type", at));
                    }
                    let engine::Attributes { generation, device, .. } = attributes;
                    attributes = engine::Attributes { number, generation, device, ..*now };
                }
            }
            match &mut body {
                Body::Directory(names) => self.load_name(names, at, &entry),
                Body::Regular(extents) => {
                    extents.replay(&entry, &mut |_| {});
                    Ok(())
                }
                Body::Other => Ok(()),
            }
        })?;
        attributes.changed_ns = attributes.changed_ns.max(inode.changed_ns.load() as i64);
        attributes.blocks = match &body {
            Body::Regular(extents) => extents.blocks(),
            _ => log.pages,
        };
        Ok((attributes, NovaInfo { inode: offset, log, body }))
    }
}
