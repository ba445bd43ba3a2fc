//! File content. It is written in place: a crash during a write leaves any mixture of old and new
//! bytes in the file, but never bytes of other files.
//!
//! The part of the last page beyond the end of a file has undefined content. An operation that
//! extends the file zeroes it first.

use super::format::{Inode, PAGE_OF_DATA};
use super::typestate::{Clean, Dealloc, DecSize, Mapped, Page, Pages, Typed, Unmaps};
use super::{Index, SquirrelFs, SquirrelInfo};
use crate::error::Result;
use crate::physical::{Exclusive, Shared};
use crate::substrate::{BlockRange, Extents};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, Memory};
use posix::Errno;
use smallvec::SmallVec;

impl SquirrelInfo {
    pub(super) fn extents(&self) -> Result<&Extents> {
        match &self.index {
            Index::Pages(extents) => Ok(extents),
            Index::Names(_) => Err(Errno::EISDIR.into()),
        }
    }

    fn extents_mut(&mut self) -> Result<&mut Extents> {
        match &mut self.index {
            Index::Pages(extents) => Ok(extents),
            Index::Names(_) => Err(Errno::EISDIR.into()),
        }
    }
}

/// Every page of some runs.
pub(super) fn pages_of(runs: impl Iterator<Item = (u64, BlockRange)>) -> SmallVec<[Page; 4]> {
    runs.flat_map(|(page, run)| (0..run.count).map(move |step| Page { block: run.start + step, page: page + step }))
        .collect()
}

impl<M: Memory> SquirrelFs<M> {
    pub(super) fn read_pages(
        &self,
        file: Shared<'_, SquirrelInfo>,
        size_bytes: u64,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let extents = file.info.extents()?;
        let length = (into.len() as u64).min(size_bytes.saturating_sub(offset));
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let (page, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let step;
            match extents.find(page) {
                Some(run) => {
                    step = (run.count * BLOCK_BYTES - within).min(length - done);
                    let part = &mut into[done as usize..(done + step) as usize];
                    self.region.read_bytes(run.start * BLOCK_BYTES + within, part)?;
                }
                None => {
                    step = (BLOCK_BYTES - within).min(length - done);
                    into[done as usize..(done + step) as usize].fill(0);
                }
            }
            done += step;
        }
        Ok(length as usize)
    }

    fn check_regular(&self, attributes: &engine::Attributes) -> Result<()> {
        if attributes.kind == FileKind::Regular { Ok(()) } else { Err(Errno::EINVAL.into()) }
    }

    /// Zeroes from a file's end to `until`, within the file's last page.
    fn clear_gap(&self, extents: &Extents, size_bytes: u64, until: u64) -> Result<Flushed> {
        let end = until.min(size_bytes.next_multiple_of(BLOCK_BYTES));
        match extents.find(size_bytes / BLOCK_BYTES) {
            Some(run) if size_bytes < end => {
                let start = run.start * BLOCK_BYTES + size_bytes % BLOCK_BYTES;
                Ok(self.region.stream_zeros(start, end - size_bytes)?)
            }
            _ => Ok(Flushed::nothing()),
        }
    }

    /// Takes blocks for the pages of a range that have none; gives them back if space runs out.
    fn take_blocks(&self, extents: &Extents, first: u64, end: u64) -> Result<SmallVec<[(u64, BlockRange); 2]>> {
        let mut fresh = SmallVec::<[(u64, BlockRange); 2]>::new();
        let mut page = first;
        while page < end {
            if let Some(run) = extents.find(page) {
                page += run.count;
                continue;
            }
            match self.blocks.allocate_up_to(extents.hole(page, end - page)) {
                Ok(run) => {
                    fresh.push((page, run));
                    page += run.count;
                }
                Err(error) => {
                    fresh.iter().for_each(|(_, run)| self.blocks.free_range(*run));
                    return Err(error);
                }
            }
        }
        Ok(fresh)
    }

    /// Attaches blocks to a file: two fences, and one for those of a hole, which are zeroed first.
    fn attach(
        &self,
        info: &SquirrelInfo,
        fresh: &[(u64, BlockRange)],
        size_bytes: u64,
    ) -> Result<Pages<Clean, Mapped>> {
        let owner = Typed::start(self.inode(info.inode)?);
        let pages = Pages::free(pages_of(fresh.iter().copied())).alloc(self, PAGE_OF_DATA)?.fence(self);
        // The size covers pages in a hole already; they may not show what was in their blocks.
        let is_hole = fresh.iter().any(|(page, _)| page * BLOCK_BYTES < size_bytes);
        let pages = if is_hole { pages.zero(self)? } else { pages };
        Ok(pages.set_owner(self, &owner)?.fence(self))
    }

    pub(super) fn write_file(
        &self,
        file: &mut Exclusive<'_, SquirrelInfo>,
        offset: u64,
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<()> {
        let attributes = file.attributes.get();
        self.check_regular(&attributes)?;
        let end = offset + bytes.len() as u64;
        let (first_page, end_page) = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let extents = file.info.extents()?;
        let fresh = self.take_blocks(extents, first_page, end_page)?;
        let content = || self.stream(file.info, attributes.size_bytes, offset, bytes, &fresh);
        let written = if fresh.is_empty() {
            Pages::written_in_place(self, extents, content()?)
        } else {
            let attached = self.attach(file.info, &fresh, attributes.size_bytes)?;
            attached.written(self, content()?)
        };
        let size_bytes = attributes.size_bytes.max(end);
        let inode = Typed::start(self.inode(file.info.inode)?);
        inode.inc_size(&self.region, &written, size_bytes, now_ns).persist(&self.region);
        let extents = file.info.extents_mut()?;
        fresh.iter().for_each(|(page, run)| extents.insert(*page, *run));
        note_content(file, size_bytes, now_ns)
    }

    /// Streams content, and zeros before it in a fresh page. What follows it there is beyond the
    /// end of the file, or was zeroed as a hole.
    fn stream(
        &self,
        info: &SquirrelInfo,
        size_bytes: u64,
        offset: u64,
        bytes: &[u8],
        fresh: &[(u64, BlockRange)],
    ) -> Result<Flushed> {
        let extents = info.extents()?;
        let end = offset + bytes.len() as u64;
        let mut flushed = Flushed::nothing();
        if offset > size_bytes {
            flushed = flushed.and(self.clear_gap(extents, size_bytes, offset)?);
        }
        let mut at = offset;
        while at < end {
            let page = at / BLOCK_BYTES;
            let in_fresh = fresh.iter().find(|(first, run)| (*first..first + run.count).contains(&page));
            let run = match in_fresh {
                Some((first, run)) => BlockRange { start: run.start + page - first, count: run.count - (page - first) },
                None => extents.find(page).ok_or(Errno::EIO)?,
            };
            let start = run.start * BLOCK_BYTES;
            let run_end = (page + run.count) * BLOCK_BYTES;
            let to = end.min(run_end);
            let part = &bytes[(at - offset) as usize..(to - offset) as usize];
            flushed = flushed.and(self.region.stream_bytes(start + at % BLOCK_BYTES, part)?);
            if in_fresh.is_some() {
                flushed = flushed.and(self.region.stream_zeros(start, at % BLOCK_BYTES)?);
            }
            at = to;
        }
        Ok(flushed)
    }

    pub(super) fn truncate_file(
        &self,
        file: &mut Exclusive<'_, SquirrelInfo>,
        size_bytes: u64,
        now_ns: i64,
    ) -> Result<()> {
        let attributes = file.attributes.get();
        self.check_regular(&attributes)?;
        let inode = Typed::start(self.inode(file.info.inode)?);
        if size_bytes > attributes.size_bytes {
            let extents = file.info.extents()?;
            let cleared = self.clear_gap(extents, attributes.size_bytes, size_bytes)?;
            let written = Pages::written_in_place(self, extents, cleared);
            inode.inc_size(&self.region, &written, size_bytes, now_ns).persist(&self.region);
        } else {
            let shortened = inode.dec_size(&self.region, size_bytes, now_ns).persist(&self.region);
            self.cut(file.info, size_bytes.div_ceil(BLOCK_BYTES), &shortened)?;
        }
        note_content(file, size_bytes, now_ns)
    }

    /// Frees the pages from `end_page` on.
    fn cut(&self, info: &mut SquirrelInfo, end_page: u64, gone: &Typed<'_, Inode, Clean, DecSize>) -> Result<()> {
        let mut runs = SmallVec::<[BlockRange; 4]>::new();
        info.extents_mut()?.remove(end_page, u64::MAX, &mut |run| runs.push(run));
        if runs.is_empty() {
            return Ok(());
        }
        self.free_pages(pages_of(runs.into_iter().map(|run| (0, run))), gone)?;
        Ok(())
    }

    /// Frees pages that nothing reaches: two fences, even for none.
    pub(super) fn free_pages(&self, pages: SmallVec<[Page; 4]>, gone: &impl Unmaps) -> Result<Pages<Clean, Dealloc>> {
        let pages = Pages::mapped(pages).unmap(self, gone)?.fence(self).dealloc(self)?.fence(self);
        pages.give_back(self);
        Ok(pages)
    }
}

/// The attributes in memory after a change of content.
fn note_content(file: &Exclusive<'_, SquirrelInfo>, size_bytes: u64, now_ns: i64) -> Result<()> {
    let blocks = file.info.extents()?.blocks();
    file.attributes.update(|attributes| {
        attributes.size_bytes = size_bytes;
        attributes.blocks = blocks;
        attributes.modified_ns = now_ns;
        attributes.changed_ns = now_ns;
    });
    Ok(())
}
