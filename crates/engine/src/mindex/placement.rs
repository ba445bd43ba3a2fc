//! Which bucket has the names of a hash, and what guards their changes: the hash table and the
//! buckets' locks or, on instrumented memory, a structure in place of the hash table
//! ([`crate::ablation`]). The rest of the mindex is the same for both.

use super::NameHash;
use crate::components::NameIndex;
use crate::dram::{Bucket, DramHeader};
use crate::error::Result;
use crate::fs::Fs;
use crate::lock::{LockGuard, Patience};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use pmem::Memory;

/// In a tree: what guards a held name beyond its entry.
pub(super) struct NameGuard<'f> {
    /// Its drop unlocks.
    _lock: Option<LockGuard<'f>>,
}

impl NameGuard<'_> {
    /// None.
    pub(super) const NONE: Self = NameGuard { _lock: None };
}

/// A bucket that may be changed: locked itself or, in a tree, by the guard of the name.
pub(super) struct ChangeableBucket<'f> {
    /// Its drop unlocks.
    _lock: Option<LockGuard<'f>>,
}

impl<M: Memory> Fs<M> {
    /// The bucket of a hash, for reads.
    #[inline(always)]
    pub(crate) fn bucket_of(&self, hash: NameHash, header: &DramHeader) -> u64 {
        match self.ablation.tree() {
            None => hash.bucket(header.buckets.load(Acquire)),
            Some(tree) => tree.bucket(hash.word()),
        }
    }

    /// The bucket of a hash, for changes.
    #[inline(always)]
    pub(super) fn bucket_to_change(&self, hash: NameHash, header: &DramHeader) -> u64 {
        match self.ablation.tree() {
            None => hash.bucket(header.buckets.load(Acquire)),
            Some(tree) => tree.make(hash.word()),
        }
    }

    /// Whether a name that was not found in a bucket would have been there. In a tree names do not
    /// move, so a miss in its bucket is valid.
    #[inline(always)]
    pub(super) fn is_still_bucket(&self, hash: NameHash, header: &DramHeader, index: u64) -> bool {
        self.ablation.tree().is_some() || hash.bucket(header.buckets.load(Acquire)) == index
    }

    /// Offset of the bucket of a hash; none in a tree, whose walk is a chain of dependent reads
    /// that should happen only once.
    #[inline]
    pub(super) fn bucket_offset(&self, hash: NameHash) -> Option<u64> {
        if self.ablation.tree().is_some() {
            return None;
        }
        let index = hash.bucket(self.header().ok()?.buckets.load(Relaxed));
        Some(self.dram.layout.buckets + index * size_of::<Bucket>() as u64)
    }

    /// Whether buckets are split, and chains trimmed. A tree keeps both.
    #[inline(always)]
    pub(super) fn has_growing_table(&self) -> bool {
        self.ablation.tree().is_none()
    }

    /// [`Fs::is_absent`] for a caller that is not pinned: a hint. A tree may be walked only while
    /// pinned.
    #[inline]
    pub(crate) fn seems_absent(&self, hash: NameHash) -> bool {
        self.ablation.tree().is_none() && self.is_absent(hash)
    }
}

impl<'f, M: Memory> NameIndex<'_, 'f, M> {
    /// What guards these names, before either is held.
    #[inline(always)]
    pub(super) fn guard_names(self, hashes: [NameHash; 2]) -> Result<[NameGuard<'f>; 2]> {
        let Some(tree) = self.owner.fs.ablation.tree() else { return Ok([NameGuard::NONE, NameGuard::NONE]) };
        let (first, second) = self.lock_guards(tree, hashes)?;
        Ok([NameGuard { _lock: Some(first) }, NameGuard { _lock: second }])
    }

    /// What guards a name, before it is held.
    #[inline(always)]
    pub(super) fn guard_name(self, hash: NameHash) -> Result<NameGuard<'f>> {
        let [guard, _] = self.guard_names([hash; 2])?;
        Ok(guard)
    }

    /// Locks the bucket of a guarded name. `None`: interrupted by a split.
    #[inline(always)]
    pub(super) fn lock_bucket(self, main: &'f Bucket) -> Result<Option<ChangeableBucket<'f>>> {
        if self.owner.fs.ablation.tree().is_some() {
            return Ok(Some(ChangeableBucket { _lock: None }));
        }
        let locked = self.owner.lock_with(Patience::Interruptible, &main.lock, &main.waiters)?;
        Ok(locked.map(|lock| ChangeableBucket { _lock: Some(lock) }))
    }

    /// Locks the bucket of a name that is not guarded, unless another thread has it.
    #[inline(always)]
    pub(super) fn try_lock_bucket(self, main: &'f Bucket, hash: NameHash) -> Result<Option<ChangeableBucket<'f>>> {
        let locked = match self.owner.fs.ablation.tree() {
            None => self.owner.try_lock(&main.lock, &main.waiters),
            Some(tree) => self.try_lock_guard(tree, hash)?,
        };
        Ok(locked.map(|lock| ChangeableBucket { _lock: Some(lock) }))
    }
}
