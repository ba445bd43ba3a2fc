//! File content. Writes go to fresh blocks (copy on write); the log records which.

use super::log::{Appending, LogEntry};
use super::{Body, Nova, NovaInfo};
use crate::error::{Error, Result};
use crate::physical::{Exclusive, Shared};
use crate::substrate::{BlockRange, Extents};
use engine::Attributes;
use pmem::{BLOCK_BYTES, Flushed, Memory};
use posix::Errno;

impl Extents {
    /// Applies a log entry and passes the blocks that it makes obsolete to `freed`.
    pub(super) fn replay(&mut self, entry: &LogEntry, freed: &mut dyn FnMut(BlockRange)) {
        match entry {
            LogEntry::Write { page, block, count, .. } => {
                self.remove(*page, page + count, freed);
                self.insert(*page, BlockRange { start: *block, count: *count });
            }
            LogEntry::Attributes(attributes) => {
                self.remove(attributes.size_bytes.div_ceil(BLOCK_BYTES), u64::MAX, freed);
            }
            _ => {}
        }
    }
}

fn extents(info: &NovaInfo) -> Result<&Extents> {
    match &info.body {
        Body::Regular(extents) => Ok(extents),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn extents_mut(info: &mut NovaInfo) -> Result<&mut Extents> {
    match &mut info.body {
        Body::Regular(extents) => Ok(extents),
        _ => Err(Errno::EINVAL.into()),
    }
}

impl<M: Memory> Nova<M> {
    pub(super) fn read_file(&self, file: Shared<'_, NovaInfo>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let extents = extents(file.info)?;
        let size = file.attributes.get().size_bytes;
        let length = (into.len() as u64).min(size.saturating_sub(offset));
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let (page, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let step = match extents.find(page) {
                Some(run) => {
                    let step = (run.count * BLOCK_BYTES - within).min(length - done);
                    let part = &mut into[done as usize..(done + step) as usize];
                    self.region.read_bytes(run.start * BLOCK_BYTES + within, part)?;
                    step
                }
                None => {
                    let pages = extents.hole(page, (length - done) / BLOCK_BYTES + 1);
                    let step = (pages.max(1) * BLOCK_BYTES - within).min(length - done);
                    into[done as usize..(done + step) as usize].fill(0);
                    step
                }
            };
            done += step;
        }
        Ok(length as usize)
    }

    /// Fills part of a fresh block with the page's old content, or with zeros.
    fn keep(&self, old: Option<BlockRange>, block: u64, within: u64, length: u64) -> Result<Flushed> {
        let to = block * BLOCK_BYTES + within;
        Ok(match old {
            Some(old) => {
                let from = old.start * BLOCK_BYTES + within;
                self.region.report_read(from, length);
                self.region.stream_within(from, to, length)?
            }
            None => self.region.stream_zeros(to, length)?,
        })
    }

    /// Writes bytes into fresh blocks. Copies the rest of the first and the last block from the old
    /// ones.
    fn write_run(
        &self,
        extents: &Extents,
        page: u64,
        run: BlockRange,
        (offset, bytes): (u64, &[u8]),
    ) -> Result<Flushed> {
        let (run_begin, run_end) = (page * BLOCK_BYTES, (page + run.count) * BLOCK_BYTES);
        let (begin, end) = (offset.max(run_begin), (offset + bytes.len() as u64).min(run_end));
        let part = &bytes[(begin - offset) as usize..(end - offset) as usize];
        let base = run.start * BLOCK_BYTES;
        let mut flushed = self.region.stream_bytes(base + (begin - run_begin), part)?;
        if begin > run_begin {
            flushed = flushed.and(self.keep(extents.find(page), run.start, 0, begin - run_begin)?);
        }
        if end < run_end {
            let last = run.start + run.count - 1;
            let old = extents.find(page + run.count - 1);
            flushed = flushed.and(self.keep(old, last, end % BLOCK_BYTES, run_end - end)?);
        }
        Ok(flushed)
    }

    pub(super) fn write_file(
        &self,
        file: &mut Exclusive<'_, NovaInfo>,
        offset: u64,
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<()> {
        let attributes = file.attributes.get();
        let end = offset + bytes.len() as u64;
        let (first, last) = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let size_bytes = attributes.size_bytes.max(end);
        let inode = self.inode(file.info.inode)?;
        let mut appending = self.appending(&file.info.log);
        let mut runs = Vec::new();
        let old = extents(file.info)?;
        let mut page = first;
        while page < last {
            let run = self.blocks.allocate_up_to(last - page)?;
            (run.start..run.start + run.count).for_each(|block| appending.owns(block));
            appending.with(self.write_run(old, page, run, (offset, bytes))?);
            self.append_write(inode, &mut appending, (page, run.start, run.count), (size_bytes, now_ns))?;
            runs.push((page, run));
            page += run.count;
        }
        file.info.log = self.commit_log(inode, appending)?;
        let extents = extents_mut(file.info)?;
        for (page, run) in runs {
            extents.remove(page, page + run.count, &mut |freed| self.blocks.free_range(freed));
            extents.insert(page, run);
        }
        let blocks = extents.blocks();
        file.attributes.update(|attributes| {
            attributes.size_bytes = size_bytes;
            attributes.blocks = blocks;
            attributes.modified_ns = now_ns;
            attributes.changed_ns = now_ns;
        });
        self.compact_file(file)
    }

    pub(super) fn truncate_file(&self, file: &mut Exclusive<'_, NovaInfo>, size_bytes: u64, now_ns: i64) -> Result<()> {
        let attributes = file.attributes.get();
        let inode = self.inode(file.info.inode)?;
        let mut appending = self.appending(&file.info.log);
        let (page, within) = (size_bytes / BLOCK_BYTES, size_bytes % BLOCK_BYTES);
        // The part of a block beyond the end of the file holds zeros, so that a longer file reads
        // zeros there.
        let partial = extents(file.info)?.find(page).filter(|_| within != 0 && size_bytes < attributes.size_bytes);
        let mut fresh = None;
        if let Some(old) = partial {
            let block = self.blocks.allocate()?;
            appending.owns(block);
            appending.with(self.keep(Some(old), block, 0, within)?);
            appending.with(self.region.stream_zeros(block * BLOCK_BYTES + within, BLOCK_BYTES - within)?);
            self.append_write(inode, &mut appending, (page, block, 1), (size_bytes, now_ns))?;
            fresh = Some(BlockRange { start: block, count: 1 });
        }
        let changed = Attributes { size_bytes, modified_ns: now_ns, changed_ns: now_ns, ..attributes };
        self.append_attributes(inode, &mut appending, &changed)?;
        file.info.log = self.commit_log(inode, appending)?;
        let extents = extents_mut(file.info)?;
        let mut free = |freed| self.blocks.free_range(freed);
        if let Some(run) = fresh {
            extents.remove(page, page + 1, &mut free);
            extents.insert(page, run);
        }
        extents.remove(size_bytes.div_ceil(BLOCK_BYTES), u64::MAX, &mut free);
        let blocks = extents.blocks();
        file.attributes.set(&Attributes { blocks, ..changed });
        self.compact_file(file)
    }

    /// Rewrites a file's log when most of it is obsolete: one entry for the attributes, one for
    /// each run.
    pub(super) fn compact_file(&self, file: &mut Exclusive<'_, NovaInfo>) -> Result<()> {
        let Body::Regular(extents) = &file.info.body else { return Ok(()) };
        let needed = (extents.count() as u64 * super::format::WRITE_BYTES).div_ceil(BLOCK_BYTES) + 1;
        if file.info.log.pages < 4 || file.info.log.pages < 3 * needed {
            return Ok(());
        }
        let inode = self.inode(file.info.inode)?;
        let attributes = file.attributes.get();
        let mut appending = self.replacing();
        match self.rewrite_file(inode, &mut appending, extents, &attributes) {
            Ok(()) => file.info.log = self.replace_log(inode, &file.info.log, appending)?,
            // Without free space the old log stays in use.
            Err(Error::Errno(Errno::ENOSPC)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn rewrite_file(
        &self,
        inode: &super::format::Inode,
        appending: &mut Appending<'_>,
        extents: &Extents,
        attributes: &Attributes,
    ) -> Result<()> {
        for (page, run) in extents.runs() {
            let moment = (attributes.size_bytes, attributes.modified_ns);
            self.append_write(inode, appending, (page, run.start, run.count), moment)?;
        }
        self.append_attributes(inode, appending, attributes)
    }
}
