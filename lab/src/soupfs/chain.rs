//! The list of a directory's entries, and walks along it in either view.
//!
//! A directory has one list, sorted by reversed hash. Its positions are entries and buckets. The
//! links of a position are words in the entry or bucket, one for each view. Every change of names
//! is a change of one link: inserting an entry, removing one, replacing one, splitting a bucket. A
//! link always leads to a greater key, so there are no loops, and a walk that meets a smaller key
//! has found damage.
//!
//! # The two views
//!
//! System calls change latest links. Persisters change consistent links, by replaying the same
//! changes in the same order. An unset latest link means that the consistent one applies. This is
//! sound because **a persister changes the consistent link of a position only if its latest link is
//! set, or the position is no longer in the latest list**. The replayed change was made in the
//! latest view at that position, or at one that was between then and for which the position's
//! latest link was set. So the holder of a directory's lock sees a stable list while persisters
//! work on the consistent one.

use super::format::{
    BucketLine, EntryHead, INLINE_BUCKETS, LEVEL_MAX, Latest, Link, PAGE_WORDS, PREPARED, Tag, WordPage, bucket_key,
    parent_bucket,
};
use super::list::{Buckets, ChainPosition, Directory, Gap, View};
use super::volume::Volume;
use crate::error::{Error, Result};
use pmem::{Commit64, LINE_BYTES, Memory, Pm};

/// An insertion that passes more positions makes the table grow.
const STEPS_MAX: u32 = 8;

impl<M: Memory> Volume<M> {
    /// A directory's bucket line.
    pub fn bucket_line(&self, directory: Directory) -> Result<&BucketLine> {
        self.region.report_read(directory.line().offset(), LINE_BYTES);
        Ok(self.region.get(directory.line())?)
    }

    /// The word of a bucket, if its page exists.
    pub fn bucket_word(&self, directory: Directory, index: u32) -> Result<Option<&Commit64>> {
        let line = self.bucket_line(directory)?;
        if index < INLINE_BUCKETS {
            return Ok(Some(&line.first[index as usize]));
        }
        let (top, depth) = bucket_path(index);
        let mut page = line.pages[top].load_acquire();
        for step in (0..depth).rev() {
            if page == 0 {
                return Ok(None);
            }
            let word = &self.word_page(page)?[(index as u64 >> (9 * step) & (PAGE_WORDS - 1)) as usize];
            self.region.report_read(self.region.offset_of(word), 8);
            if step == 0 {
                return Ok(Some(word));
            }
            page = word.load_acquire();
        }
        Ok(None)
    }

    /// A page of words.
    pub fn word_page(&self, offset: u64) -> Result<&WordPage> {
        if !offset.is_multiple_of(pmem::BLOCK_BYTES) {
            return Err(Error::damaged("a page is not aligned to its size", offset));
        }
        Ok(self.region.get(Pm::new(offset))?)
    }

    /// An entry's first line.
    pub fn entry(&self, offset: u64) -> Result<&EntryHead> {
        if !offset.is_multiple_of(LINE_BYTES) {
            return Err(Error::damaged("an entry is not aligned to a line", offset));
        }
        self.region.report_read(offset, LINE_BYTES);
        Ok(self.region.get(Pm::new(offset))?)
    }

    /// The successor of a position in a view; none for a bucket that is not in the list.
    pub fn link(&self, directory: Directory, view: View<'_>, position: ChainPosition) -> Result<Option<Link>> {
        match position {
            ChainPosition::Bucket(index) => {
                if let View::Latest(buckets) = view
                    && let Some(&word) = buckets.heads.get(index as usize)
                    && word != 0
                {
                    return Link::from_word(word, directory.inode);
                }
                let Some(word) = self.bucket_word(directory, index)? else { return Ok(None) };
                Link::from_word(word.load_acquire(), self.region.offset_of(word))
            }
            ChainPosition::Entry(offset) => {
                let entry = self.entry(offset)?;
                if let View::Latest(_) = view
                    && let Some(latest) = self.latest(entry)?
                {
                    return Ok(Some(latest.link));
                }
                Link::from_word(entry.consistent_next.load_acquire(), offset)
            }
        }
    }

    /// An entry's latest link, if it was set in this mount.
    pub fn latest(&self, entry: &EntryHead) -> Result<Option<Latest>> {
        Latest::from_word(entry.latest_next.load_acquire(), self.mounts, self.region.offset_of(entry))
    }

    /// The bucket at which a walk for a hash begins: the hash's own, or the nearest ancestor that
    /// is in the list.
    fn start(&self, directory: Directory, view: View<'_>, hash: u32) -> Result<u32> {
        let level = match view {
            View::Latest(buckets) => buckets.level,
            View::Consistent => self.consistent_level(directory)?,
        };
        let mut index = hash & ((1 << level) - 1);
        while index != 0 && !self.is_in_list(directory, view, index)? {
            index = parent_bucket(index);
        }
        Ok(index)
    }

    /// Whether a walk may begin at a bucket.
    pub fn is_in_list(&self, directory: Directory, view: View<'_>, index: u32) -> Result<bool> {
        if let View::Latest(buckets) = view
            && buckets.heads.get(index as usize).is_some_and(|word| *word != 0)
        {
            return Ok(true);
        }
        let word = self.bucket_word(directory, index)?.map_or(0, |word| word.load_acquire());
        Ok(word != 0 && word & PREPARED == 0)
    }

    /// The level stored on the image.
    pub fn consistent_level(&self, directory: Directory) -> Result<u32> {
        let level = self.bucket_line(directory)?.level.load();
        Ok(level.min(LEVEL_MAX as u64) as u32)
    }

    /// Finds the gap for a key.
    pub fn seek(&self, directory: Directory, view: View<'_>, key: u64) -> Result<Gap> {
        let hash = ((key >> 8) as u32).reverse_bits();
        let start = self.start(directory, view, hash)?;
        self.seek_from(directory, view, start, key)
    }

    /// Like [`seek`](Self::seek), from a bucket that is in the list.
    fn seek_from(&self, directory: Directory, view: View<'_>, start: u32, key: u64) -> Result<Gap> {
        let mut gap = Gap { before: ChainPosition::Bucket(start), next: Link::End, steps: 0 };
        let mut passed = bucket_key(start);
        loop {
            gap.next = self.link(directory, view, gap.before)?.ok_or_else(|| broken(directory))?;
            let (position, at) = match gap.next {
                Link::End => return Ok(gap),
                Link::Bucket(index) => (ChainPosition::Bucket(index), bucket_key(index)),
                Link::Entry(offset) => (ChainPosition::Entry(offset), self.key(offset)?),
            };
            if at <= passed {
                return Err(broken(directory));
            }
            if at >= key {
                return Ok(gap);
            }
            (gap.before, gap.steps, passed) = (position, gap.steps + 1, at);
        }
    }

    /// An entry's key.
    pub fn key(&self, entry: u64) -> Result<u64> {
        Ok(self.tag(entry)?.key())
    }

    /// An entry's tag.
    pub fn tag(&self, entry: u64) -> Result<Tag> {
        Ok(Tag::from_word(self.entry(entry)?.tag.load()))
    }

    /// The next entry behind a link, skipping buckets.
    pub fn next_entry(&self, directory: Directory, view: View<'_>, mut link: Link) -> Result<Option<u64>> {
        let mut passed = None;
        loop {
            match link {
                Link::End => return Ok(None),
                Link::Entry(offset) => return Ok(Some(offset)),
                Link::Bucket(index) => {
                    if passed.is_some_and(|passed| bucket_key(index) <= passed) {
                        return Err(broken(directory));
                    }
                    passed = Some(bucket_key(index));
                    let next = self.link(directory, view, ChainPosition::Bucket(index))?;
                    link = next.ok_or_else(|| broken(directory))?;
                }
            }
        }
    }

    /// Calls `visit` for each entry from a key on, including dead and stale ones, until it returns
    /// false.
    pub fn walk(
        &self,
        directory: Directory,
        view: View<'_>,
        key: u64,
        visit: &mut dyn FnMut(u64, &EntryHead) -> Result<bool>,
    ) -> Result<()> {
        let mut link = self.seek(directory, view, key)?.next;
        let mut passed = None;
        while let Some(offset) = self.next_entry(directory, view, link)? {
            let entry = self.entry(offset)?;
            let key = Tag::from_word(entry.tag.load()).key();
            if passed.is_some_and(|passed| key <= passed) {
                return Err(broken(directory));
            }
            passed = Some(key);
            if !visit(offset, entry)? {
                return Ok(());
            }
            link = self.link(directory, view, ChainPosition::Entry(offset))?.ok_or_else(|| broken(directory))?;
        }
        Ok(())
    }

    /// Sets a position's successor in the latest view.
    pub fn set_latest(&self, buckets: &mut Buckets, position: ChainPosition, link: Link) -> Result<()> {
        match position {
            ChainPosition::Bucket(index) => {
                if buckets.heads.len() <= index as usize {
                    buckets.heads.resize((index as usize + 1).next_power_of_two().max(1 << buckets.level), 0);
                }
                buckets.heads[index as usize] = link.word();
            }
            ChainPosition::Entry(offset) => {
                let entry = self.entry(offset)?;
                let fresh = self.latest(entry)?.is_some_and(|latest| latest.fresh);
                let word = Latest { link, fresh }.word(self.mounts);
                self.region.set64(&entry.latest_next, word).unflushed();
            }
        }
        Ok(())
    }

    /// The bucket of a hash in the latest view. Splits it off now if it is not in the list.
    pub fn latest_bucket(&self, directory: Directory, buckets: &mut Buckets, hash: u32) -> Result<u32> {
        let index = hash & ((1 << buckets.level) - 1);
        self.split_latest(directory, buckets, index)?;
        Ok(index)
    }

    fn split_latest(&self, directory: Directory, buckets: &mut Buckets, index: u32) -> Result<()> {
        if index == 0 || self.is_in_list(directory, View::Latest(buckets), index)? {
            return Ok(());
        }
        let parent = parent_bucket(index);
        self.split_latest(directory, buckets, parent)?;
        let gap = self.seek_from(directory, View::Latest(buckets), parent, bucket_key(index))?;
        if gap.next == Link::Bucket(index) {
            // A crash left the bucket in the list with the `PREPARED` bit.
            let next = self.link(directory, View::Latest(buckets), ChainPosition::Bucket(index))?;
            return self.set_latest(buckets, ChainPosition::Bucket(index), next.ok_or_else(|| broken(directory))?);
        }
        self.set_latest(buckets, ChainPosition::Bucket(index), gap.next)?;
        self.set_latest(buckets, gap.before, Link::Bucket(index))
    }

    /// Grows the table if a walk was long.
    pub fn grow(&self, buckets: &mut Buckets, steps: u32) {
        if steps > STEPS_MAX && buckets.level < LEVEL_MAX {
            buckets.level += 1;
        }
    }
}

/// The index of a bucket's page word, and the number of pages on the way.
pub fn bucket_path(index: u32) -> (usize, u32) {
    match index {
        0..0x200 => (0, 1),
        0x200..0x4_0000 => (1, 2),
        _ => (2, 3),
    }
}

fn broken(directory: Directory) -> Error {
    Error::damaged("a directory's list is out of order or interrupted", directory.inode)
}
