//! Direct writes to files of which the kernel has pages, for mappings.
//!
//! On a shared mount reads and writes bypass the kernel's cache, but mappings have their pages
//! there. Before a direct write the kernel drops the pages of its range. A program that touches
//! such a page before the server has performed the write brings the old bytes back. They would
//! stay, and if the program stores beside them, the kernel writes the whole page back, and with it
//! the old bytes over the new ones.
//!
//! So the kernel drops the pages once more after the write and before its answer, if it may have
//! read any meanwhile; and until then a page that is written back leaves out the bytes of the
//! write.
//!
//! Invariants
//! - A page comes into the kernel's cache by a request, which is recorded before its content is
//!   read. A write is recorded before it acts. So one of both sees the other.
//! - Pages are written back under the lock of the records.
//! - What a page has that was read after a write is newer: it is written back.
//!
//! A mount alone on its image does not enable FUSE_ASYNC_DIO instead, because a cached read between
//! left old content for ever (xfstests 451); a direct transfer of more than 1 MiB takes its
//! requests in turn. *Reason:* a program that writes beside stores in the same pages lost a write
//! after 16 to 779 of them.
//!
//! *Rejected:* for asynchronous writes, dropping pages after the reply (the program learns of its
//! write before) or in the worker before it (a read that waits for the server may lock the page);
//! refusing shared mappings (SQLite's WAL, LMDB and linkers need them); the kernel's cache for
//! calls (each read would ask for changes); comparing with copies of pages (what is evicted is
//! lost).

use posix::Result;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: u64 = 4096;
const SHARDS: usize = 16;

/// What is known of the pages of all files.
#[derive(Default)]
pub(crate) struct MappedPages {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    /// By inode number: pages that the kernel may have.
    held: HashMap<u64, Ranges>,
    /// Direct writes that are not answered yet.
    writes: Vec<DirectWrite>,
    last: u64,
}

struct DirectWrite {
    id: u64,
    number: u64,
    has_acted: bool,
    /// Bytes that older pages lack.
    bytes: Ranges,
}

/// A direct write that is not answered yet.
pub(crate) struct Writing {
    id: u64,
    number: u64,
    range: Range<u64>,
}

impl Writing {
    /// The pages that the kernel drops.
    pub(crate) fn pages(&self) -> Pages {
        let Range { start, end } = whole_pages(&self.range);
        Pages { number: self.number, start, bytes: end - start }
    }
}

/// Pages of a file.
pub(crate) struct Pages {
    /// The file's inode number.
    pub number: u64,
    /// The first byte.
    pub start: u64,
    pub bytes: u64,
}

/// Pages that the kernel shall drop, and what is to be done then.
pub(crate) struct DroppedPages {
    pub pages: Pages,
    pub then: Box<dyn FnOnce() + Send>,
}

/// Has the kernel drop pages, in a thread that serves no requests.
pub(crate) type DropPages = Box<dyn Fn(DroppedPages) + Send + Sync>;

impl MappedPages {
    fn shard(&self, number: u64) -> MutexGuard<'_, Shard> {
        self.shards[number as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel reads pages for its cache.
    pub(crate) fn record_read(&self, number: u64, offset: u64, length: u64) {
        let pages = whole_pages(&(offset..offset.saturating_add(length)));
        let mut shard = self.shard(number);
        for write in shard.writes.iter_mut().filter(|write| write.number == number && write.has_acted) {
            write.bytes.remove(&pages);
        }
        shard.held.entry(number).or_default().add(pages);
    }

    /// A direct write begins.
    pub(crate) fn begin_write(&self, number: u64, offset: u64, length: u64) -> Writing {
        let range = offset..offset.saturating_add(length);
        let mut shard = self.shard(number);
        shard.last += 1;
        let id = shard.last;
        let mut bytes = Ranges::default();
        bytes.add(range.clone());
        shard.writes.push(DirectWrite { id, number, has_acted: false, bytes });
        Writing { id, number, range }
    }

    /// The write has acted. True: before its answer the kernel must drop the pages.
    pub(crate) fn has_acted(&self, writing: &Writing) -> bool {
        let mut shard = self.shard(writing.number);
        shard.writes.iter_mut().filter(|write| write.id == writing.id).for_each(|write| write.has_acted = true);
        let pages = whole_pages(&writing.range);
        let Some(held) = shard.held.get_mut(&writing.number) else { return false };
        let is_held = held.overlaps(&pages);
        held.remove(&pages);
        is_held
    }

    /// The write is about to be answered.
    pub(crate) fn end_write(&self, writing: &Writing) {
        self.shard(writing.number).writes.retain(|write| write.id != writing.id);
    }

    /// The kernel writes pages back: passes on what direct writes did not write since the pages
    /// were read. Returns the bytes that are settled: all, unless `write` wrote less than it got.
    pub(crate) fn write_back(
        &self,
        number: u64,
        offset: u64,
        content: &[u8],
        mut write: impl FnMut(u64, &[u8]) -> Result<usize>,
    ) -> Result<usize> {
        let shard = self.shard(number);
        let mut rest = Ranges::default();
        rest.add(offset..offset.saturating_add(content.len() as u64));
        for newer in shard.writes.iter().filter(|write| write.number == number) {
            newer.bytes.iter().for_each(|bytes| rest.remove(&bytes));
        }
        for Range { start, end } in rest.iter() {
            let part = &content[(start - offset) as usize..(end - offset) as usize];
            let count = write(start, part)?;
            if count < part.len() {
                return Ok((start - offset) as usize + count);
            }
        }
        Ok(content.len())
    }

    /// The kernel has forgotten a file, and its pages.
    pub(crate) fn forget(&self, number: u64) {
        self.shard(number).held.remove(&number);
    }
}

fn whole_pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES * PAGE_BYTES..range.end.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

/// Ranges that neither overlap nor touch: their ends, by their starts.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    fn add(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.0.range(..=range.end).next_back().filter(|(_, end)| **end >= range.start)
        {
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
    }

    fn remove(&mut self, range: &Range<u64>) {
        while let Some((&start, &end)) = self.0.range(..range.end).next_back().filter(|(_, end)| **end > range.start) {
            self.0.remove(&start);
            let parts = [start..range.start, range.end..end];
            parts.into_iter().filter(|part| !part.is_empty()).for_each(|part| {
                self.0.insert(part.start, part.end);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[Range<u64>]) -> Ranges {
        let mut ranges = Ranges::default();
        of.iter().for_each(|range| ranges.add(range.clone()));
        ranges
    }

    fn pairs(of: &Ranges) -> Vec<(u64, u64)> {
        of.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn ranges_join_and_are_cut() {
        let mut of = ranges(&[0..10, 20..30, 10..12]);
        assert_eq!(pairs(&of), [(0, 12), (20, 30)]);
        assert!(of.overlaps(&(11..20)) && !of.overlaps(&(12..20)));
        of.remove(&(5..25));
        assert_eq!(pairs(&of), [(0, 5), (25, 30)]);
        of.add(0..40);
        assert_eq!(pairs(&of), [(0, 40)]);
    }

    fn written_back(pages: &MappedPages, offset: u64, length: usize) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let written = pages.write_back(7, offset, &vec![0; length], |start, part| {
            parts.push((start, start + part.len() as u64));
            Ok(part.len())
        });
        assert_eq!(written, Ok(length));
        parts
    }

    #[test]
    fn a_page_from_before_a_write_leaves_its_bytes_out() {
        let pages = MappedPages::default();
        let writing = pages.begin_write(7, 100, 50);
        pages.record_read(7, 0, 4096);
        assert_eq!(written_back(&pages, 0, 4096), [(0, 100), (150, 4096)]);
        assert!(pages.has_acted(&writing), "the kernel may have the page");
        assert_eq!(written_back(&pages, 0, 4096), [(0, 100), (150, 4096)], "until the page is dropped");
        pages.end_write(&writing);
        assert_eq!(written_back(&pages, 0, 4096), [(0, 4096)]);
        let writing = pages.begin_write(7, 4000, 10);
        assert!(!pages.has_acted(&writing), "the kernel has dropped the page");
    }

    #[test]
    fn what_was_not_written_back_is_not_reported() {
        let pages = MappedPages::default();
        let _writing = pages.begin_write(7, 0, 100);
        assert_eq!(pages.write_back(7, 0, &[0; 4096], |_, _| Ok(50)), Ok(150));
    }

    #[test]
    fn a_page_from_after_a_write_is_written_back_whole() {
        let pages = MappedPages::default();
        let writing = pages.begin_write(7, 0, 10_000);
        pages.has_acted(&writing);
        pages.record_read(7, 4096, 4096);
        assert_eq!(written_back(&pages, 0, 12_288), [(4096, 8192), (10_000, 12_288)]);
    }
}
