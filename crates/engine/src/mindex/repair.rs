//! Recovery of the buckets and names that a dead thread held. A reaper completes the changes of the
//! buckets, and makes or removes the names according to the outcome of the interrupted operation.

use super::hold::{ABSENT, HELD};
use super::{LOW_40, NameHash, SECOND, Target};
use crate::components::Reaper;
use crate::death::may_die_here;
use crate::dram::{Bucket, BucketEntry};
use crate::error::Result;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{Memory, Pm};

impl<'f, M: Memory> Reaper<'_, 'f, M> {
    /// As the reaper of this slot: completes the change of every bucket that its owner held.
    pub(crate) fn repair_buckets(self) -> Result<()> {
        self.thread.fs.ablation.check_reapable()?;
        let header = self.thread.fs.header()?;
        let fresh_index = header.buckets.load(Acquire);
        let splitting = self.thread.holds(&header.grow_lock);
        for record in &self.thread.slot.held {
            let Some(bucket) = self.held_bucket_at(record.load(Relaxed))? else { continue };
            let version = bucket.version.load(Relaxed);
            if version & 1 == 0 {
                continue;
            }
            let source = fresh_index - (1 << fresh_index.ilog2());
            if splitting && core::ptr::eq(bucket, self.thread.fs.dram.bucket(source)?) {
                self.thread.names().move_entries(bucket, self.thread.fs.dram.bucket(fresh_index)?, fresh_index)?;
                header.buckets.store(fresh_index + 1, Release);
                may_die_here();
            }
            bucket.version.store(version.wrapping_add(1), Release);
        }
        Ok(())
    }

    /// The main bucket whose lock is the word at an offset of the region, if this slot holds it.
    fn held_bucket_at(self, offset: u64) -> Result<Option<&'f Bucket>> {
        let layout = &self.thread.fs.dram.layout;
        if offset < layout.buckets || offset >= layout.buckets + layout.buckets_max * size_of::<Bucket>() as u64 {
            return Ok(None);
        }
        let bucket = self.thread.fs.dram.bucket((offset - layout.buckets) / size_of::<Bucket>() as u64)?;
        Ok(self.thread.holds(&bucket.lock).then_some(bucket))
    }

    /// As the reaper of this slot: the entry of the name of its operation that its owner held, the
    /// first or the second (`tag`).
    pub(crate) fn held_name(self, tag: u64) -> Result<Option<NameToRepair<'f>>> {
        self.thread.fs.ablation.check_reapable()?;
        let records = self.thread.slot.held.iter().map(|record| record.load(Relaxed));
        let mut entries = records.filter(|record| record & SECOND == tag).filter_map(|record| self.entry_at(record));
        Ok(entries.find(|entry| self.is_holder(entry)).map(NameToRepair))
    }

    /// The entry that a record names; none if it names a lock.
    fn entry_at(self, record: u64) -> Option<&'f BucketEntry> {
        let (layout, offset) = (&self.thread.fs.dram.layout, record & !SECOND);
        let (bytes, entries) = (size_of::<Bucket>() as u64, core::mem::offset_of!(Bucket, entries) as u64);
        let areas = [(layout.buckets, layout.buckets_max), (layout.overflow, layout.overflow_max)];
        let (start, _) = areas.into_iter().find(|(start, count)| (*start..start + count * bytes).contains(&offset))?;
        let inside = ((offset - start) % bytes).checked_sub(entries)?;
        let is_entry = inside.is_multiple_of(size_of::<BucketEntry>() as u64);
        self.thread.fs.dram.region().get(Pm::new(offset)).ok().filter(|_| is_entry)
    }

    /// Whether this slot holds the name of an entry.
    fn is_holder(self, entry: &BucketEntry) -> bool {
        let (key, value) = (entry.key.load(Relaxed), entry.value.load(Relaxed));
        key != 0 && value & HELD != 0 && value as u32 == self.thread.ticket()
    }

    /// As the reaper of this slot: releases the name of a record, if its owner held it. `false`: it
    /// is the record of a lock.
    pub(crate) fn release_name(self, record: &AtomicU64) -> bool {
        let Some(entry) = self.entry_at(record.load(Relaxed)) else { return false };
        if self.is_holder(entry) {
            if entry.key.load(Relaxed) & LOW_40 == ABSENT {
                entry.key.store(0, Release);
            } else {
                let hash = NameHash::of_entry(0, entry.value.load(Relaxed));
                entry.value.store(hash.value_bits() | Target::UNKNOWN.bits(), Release);
            }
            if let Ok(word) = self.thread.fs.dram_word(self.thread.fs.dram.region().offset_of(&entry.value)) {
                self.thread.fs.platform.wake(word);
            }
        }
        may_die_here();
        record.store(0, Release);
        true
    }
}

/// A name that a dead thread held.
pub(crate) struct NameToRepair<'f>(&'f BucketEntry);

impl NameToRepair<'_> {
    /// Whether it is the name of this dentry.
    pub(crate) fn is(&self, dentry_offset: u64) -> bool {
        (self.0.key.load(Relaxed) & LOW_40) << 6 == dentry_offset
    }

    /// Makes it the name of this dentry; `None`: there is no such name. May be repeated.
    pub(crate) fn set(&self, dentry_offset: Option<u64>) {
        let hash = self.0.key.load(Relaxed) & !LOW_40;
        self.0.key.store(hash | dentry_offset.map_or(ABSENT, |offset| offset >> 6), Release);
        may_die_here();
    }
}
