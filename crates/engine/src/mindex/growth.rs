//! Growth of the mindex: one main bucket at a time, and chains of overflow buckets behind them. The
//! invariants are those of [`super`].
//!
//! This is linear hashing: one bucket splits at a time; there are two buckets for three names.
//! *Rejected:* a table of fixed size, as in the paper (10,000 names would touch up to 10,000 pages
//! instead of about 80); a rehash into a larger table, for which all calls wait.

use super::hold::HELD;
use super::{BUCKETS_PER_NAMES, CHAIN_MAX, NameHash};
use crate::components::NameIndex;
use crate::death::may_die_here;
use crate::dram::{BUCKET_ENTRIES, Bucket, BucketEntry};
use crate::error::{Error, Result};
use crate::free_list::FreeList;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::Memory;

/// Main buckets for each overflow bucket whose memory is provided ahead: more than are needed at
/// the density at which the table grows.
const BUCKETS_PER_OVERFLOW: u64 = 8;

impl<'f, M: Memory> NameIndex<'_, 'f, M> {
    /// Grows the table for a total of `names`, as far as the layout allows.
    pub(crate) fn grow(self, names: u64) -> Result<()> {
        let header = self.owner.fs.header()?;
        let wanted = (names.saturating_mul(BUCKETS_PER_NAMES.0) / BUCKETS_PER_NAMES.1)
            .min(self.owner.fs.dram.layout.buckets_max);
        if names >= 1 << 62 || header.buckets.load(Relaxed) >= wanted || !self.owner.fs.has_growing_table() {
            return Ok(());
        }
        let Some(_growing) = self.owner.try_lock(&header.grow_lock, &header.rare_waiters) else { return Ok(()) };
        let (layout, bytes) = (&self.owner.fs.dram.layout, size_of::<Bucket>() as u64);
        while header.buckets.load(Relaxed) < wanted {
            // Without memory the chains grow instead. Overflow buckets for the expected chains come
            // first: they are needed when nothing else can be evicted.
            let buckets = header.buckets.load(Relaxed);
            let overflow = (buckets / BUCKETS_PER_OVERFLOW).min(layout.overflow_max - 1);
            let provided = self.owner.fs.provider().provide(layout.overflow + overflow * bytes, bytes);
            if provided
                .and_then(|()| self.owner.fs.provider().provide(layout.buckets + buckets * bytes, bytes))
                .is_err()
            {
                break;
            }
            if !self.split_next()? {
                break;
            }
        }
        Ok(())
    }

    /// Brings one more bucket into use, unless a stopped thread has locked the one to split, or a
    /// name that is to move is held. Under the grow lock.
    fn split_next(self) -> Result<bool> {
        let header = self.owner.fs.header()?;
        let fresh_index = header.buckets.load(Acquire);
        let (layout, bytes) = (&self.owner.fs.dram.layout, size_of::<Bucket>() as u64);
        let fresh_bytes = fresh_index * bytes..(fresh_index + 1) * bytes;
        self.owner.fs.enter_area(layout.buckets, fresh_bytes, layout.buckets_max * bytes);
        let level = 1u64 << fresh_index.ilog2();
        let source = self.owner.fs.dram.bucket(fresh_index - level)?;
        let fresh = self.owner.fs.dram.bucket(fresh_index)?;
        let Some(_locked) = self.owner.lock_briefly(&source.lock, &source.waiters)? else { return Ok(false) };
        // Room first: once entries move, nothing may fail.
        let Some(moving) = self.count_moving(source, fresh_index)? else { return Ok(false) };
        self.provide_chain(fresh, moving)?;
        source.change(|| -> Result<bool> {
            self.move_entries(source, fresh, fresh_index)?;
            // Published inside the change: a reader that misses here sees the version change or the
            // new number.
            header.buckets.store(fresh_index + 1, Release);
            Ok(true)
        })
    }

    /// The number of entries that belong to the fresh bucket. `None`: one is held, so it stays.
    fn count_moving(self, source: &'f Bucket, fresh_index: u64) -> Result<Option<usize>> {
        let (mut count, mut held) = (0, false);
        self.each_of_chain(source, |entry| {
            let (key, value) = (entry.key.load(Relaxed), entry.value.load(Relaxed));
            let moves = key != 0 && NameHash::of_entry(key, value).bucket(fresh_index + 1) == fresh_index;
            count += usize::from(moves);
            held |= moves && value & HELD != 0;
        })?;
        Ok((!held).then_some(count))
    }

    /// Gives a bucket that is not in use yet a chain with room for `count` names.
    fn provide_chain(self, fresh: &'f Bucket, count: usize) -> Result<()> {
        let mut bucket = fresh;
        let mut room = BUCKET_ENTRIES;
        while room < count {
            bucket = match bucket.overflow.load(Relaxed) {
                0 => self.extend_chain(bucket)?,
                index => self.owner.fs.dram.overflow(index)?,
            };
            room += BUCKET_ENTRIES;
        }
        Ok(())
    }

    /// Moves the entries that belong to the fresh bucket. Each is copied before it is removed, so a
    /// reaper can repeat all of it.
    pub(super) fn move_entries(self, source: &'f Bucket, fresh: &'f Bucket, fresh_index: u64) -> Result<()> {
        let mut failed = None;
        self.each_of_chain(source, |entry| {
            let (key, value) = (entry.key.load(Relaxed), entry.value.load(Relaxed));
            if key == 0 || NameHash::of_entry(key, value).bucket(fresh_index + 1) != fresh_index || failed.is_some() {
                return;
            }
            if let Err(error) = self.place_entry(fresh, key, value) {
                failed = Some(error);
                return;
            }
            may_die_here();
            entry.key.store(0, Relaxed);
            may_die_here();
            entry.value.store(0, Relaxed);
        })?;
        match failed {
            Some(error) => Err(error),
            None => self.trim_chain(source),
        }
    }

    /// Puts an entry into a chain that has room for it, unless it is there already.
    pub(super) fn place_entry(self, main: &'f Bucket, key: u64, value: u64) -> Result<()> {
        let (mut same, mut free) = (None, None);
        self.each_of_chain(main, |entry| match entry.key.load(Relaxed) {
            found if found == key => same = Some(entry),
            0 if free.is_none() => free = Some(entry),
            _ => {}
        })?;
        let entry = match same.or(free) {
            Some(entry) => entry,
            None => self.reserve_in(main)?,
        };
        entry.value.store(value, Relaxed);
        may_die_here();
        entry.key.store(key, Release);
        Ok(())
    }

    pub(super) fn each_of_chain(self, main: &'f Bucket, mut visit: impl FnMut(&'f BucketEntry)) -> Result<()> {
        let mut bucket = main;
        for _ in 0..CHAIN_MAX {
            bucket.entries.iter().for_each(&mut visit);
            let next = bucket.overflow.load(Relaxed);
            if next == 0 {
                return Ok(());
            }
            bucket = self.owner.fs.dram.overflow(next)?;
        }
        Err(Error::Busy)
    }

    /// Frees overflow buckets that became empty. Only inside a change: readers on them read again.
    pub(super) fn trim_chain(self, main: &Bucket) -> Result<()> {
        let mut bucket = main;
        for _ in 0..CHAIN_MAX {
            let next = bucket.overflow.load(Relaxed);
            if next == 0 {
                return Ok(());
            }
            let following = self.owner.fs.dram.overflow(next)?;
            if following.entries.iter().all(|entry| entry.key.load(Relaxed) == 0) {
                self.free_overflow(bucket, next)?;
            } else {
                bucket = following;
            }
        }
        Ok(())
    }

    /// Links an empty overflow bucket to the end of a chain. One word: a reader sees the chain with
    /// or without it.
    pub(super) fn extend_chain(self, last: &'f Bucket) -> Result<&'f Bucket> {
        let header = self.owner.fs.header()?;
        let link = |index: u32| Ok(&self.owner.fs.dram.overflow(index)?.overflow);
        may_die_here();
        // Not a point of death: see `FreeList`.
        if let Some(index) = FreeList(&header.overflow_free).pop(link)? {
            let bucket = self.owner.fs.dram.overflow(index)?;
            bucket.overflow.store(0, Release);
            last.overflow.store(index, Release);
            may_die_here();
            return Ok(bucket);
        }
        let (layout, bytes) = (&self.owner.fs.dram.layout, size_of::<Bucket>() as u64);
        let index = loop {
            let index = header.overflow_next.load(Acquire);
            if index >= layout.overflow_max {
                return Err(Error::NoMemory);
            }
            self.owner.fs.provider().provide(layout.overflow + index * bytes, bytes)?;
            if header.overflow_next.compare_exchange(index, index + 1, AcqRel, Acquire).is_ok() {
                break index;
            }
        };
        last.overflow.store(index as u32, Release);
        may_die_here();
        self.owner.fs.enter_area(layout.overflow, index * bytes..(index + 1) * bytes, layout.overflow_max * bytes);
        self.owner.fs.dram.overflow(index as u32)
    }

    /// Frees the empty bucket `index` that follows `bucket` in a chain.
    fn free_overflow(self, bucket: &Bucket, index: u32) -> Result<()> {
        let header = self.owner.fs.header()?;
        let freed = self.owner.fs.dram.overflow(index)?;
        may_die_here();
        // Not a point of death: see `FreeList`.
        bucket.overflow.store(freed.overflow.load(Relaxed), Release);
        FreeList(&header.overflow_free).push(index, &freed.overflow);
        may_die_here();
        Ok(())
    }
}
