//! Recovery of the buckets that a dead thread held. A reaper completes their changes, and removes
//! or inserts names according to the outcome of the interrupted operation.

use super::{LOW_40, NameHash, Target};
use crate::dram::Bucket;
use crate::error::Result;
use crate::fs::Thread;
use crate::step::step;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::fence;
use pmem::Memory;

impl<'f, M: Memory> Thread<'f, M> {
    /// As the reaper of this slot: completes the change of every bucket that its owner held.
    pub(crate) fn repair_buckets(&self) -> Result<()> {
        self.fs.check_reapable()?;
        let header = self.fs.header()?;
        let fresh_index = header.buckets.load(Acquire);
        let splitting = self.holds(&header.grow_lock);
        for record in &self.slot.held {
            let Some(bucket) = self.held_bucket_at(record.load(Relaxed))? else { continue };
            let version = bucket.version.load(Relaxed);
            if version & 1 == 0 {
                continue;
            }
            let source = fresh_index - (1 << fresh_index.ilog2());
            if splitting && core::ptr::eq(bucket, self.fs.dram.bucket(source)?) {
                self.move_entries(bucket, self.fs.dram.bucket(fresh_index)?, fresh_index)?;
                header.buckets.store(fresh_index + 1, Release);
                step();
            }
            bucket.version.store(version.wrapping_add(1), Release);
        }
        Ok(())
    }

    /// The main bucket whose lock is the word at an offset of the region, if this slot holds it.
    fn held_bucket_at(&self, offset: u64) -> Result<Option<&'f Bucket>> {
        let layout = &self.fs.dram.layout;
        if offset < layout.buckets || offset >= layout.buckets + layout.buckets_max * size_of::<Bucket>() as u64 {
            return Ok(None);
        }
        let bucket = self.fs.dram.bucket((offset - layout.buckets) / size_of::<Bucket>() as u64)?;
        Ok(self.holds(&bucket.lock).then_some(bucket))
    }

    /// As the reaper of this slot: the bucket of a name if its owner held it.
    pub(crate) fn bucket_held_for(&self, hash: NameHash) -> Result<Option<&'f Bucket>> {
        self.fs.check_reapable()?;
        let bucket = self.fs.dram.bucket(hash.bucket(self.fs.header()?.buckets.load(Acquire)))?;
        Ok(self.holds(&bucket.lock).then_some(bucket))
    }

    /// Whether a bucket that a reaper holds has an entry of this dentry.
    pub(crate) fn is_in_bucket(&self, bucket: &'f Bucket, hash: NameHash, dentry_offset: u64) -> Result<bool> {
        let mut found = false;
        let key = dentry_offset >> 6 | hash.key_bits();
        self.each_of_chain(bucket, |entry| found |= entry.key.load(Relaxed) == key)?;
        Ok(found)
    }

    /// In a bucket that a reaper holds: removes the entries of `gone`, and inserts one for `come`.
    pub(crate) fn repair_names(
        &self,
        bucket: &'f Bucket,
        hash: NameHash,
        gone: &[u64],
        come: Option<(u64, Target)>,
    ) -> Result<()> {
        let version = bucket.version.load(Relaxed) | 1;
        bucket.version.store(version, Relaxed);
        fence(Release);
        self.each_of_chain(bucket, |entry| {
            let dentry = (entry.key.load(Relaxed) & LOW_40) << 6;
            if dentry != 0 && gone.contains(&dentry) {
                entry.key.store(0, Relaxed);
                step();
                entry.value.store(0, Relaxed);
            }
        })?;
        let placed = match come {
            None => Ok(()),
            Some((dentry, target)) => {
                self.place_entry(bucket, dentry >> 6 | hash.key_bits(), target.bits() | hash.value_bits())
            }
        };
        step();
        bucket.version.store(version.wrapping_add(1), Release);
        placed
    }
}
