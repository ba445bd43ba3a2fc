//! What the lab takes away from the engine, or puts in a part's place, to measure what that part gives (paper, V-C): no inode quick path ("nqp"), another structure than the
//! hash table as the mindex ("_r", "_b"), a lock on directory logs ("nocon").
//!
//! Heeded only where memory is watched ([`Memory::WATCHED`]), which the product's is not: there all of it is compiled away.
//!
//! Invariants
//! - Another structure only says in which bucket the names of a hash lie; buckets, their chains and versions are those of the hash table. The bucket of a hash, once there is one, stays
//!   that: a miss in it is an answer.
//! - A lock may guard several buckets then. It is the lock of a bucket, too, whose entries stay unused.
//! - Locks of logs come before all others.
//! - Nobody dies: a reaper that comes to a bucket gets an error where there is another structure.

use crate::error::{Error, Result};
use crate::fs::{Fs, Thread};
use crate::lock::Held;
use crate::mindex::{HeldBucket, NameHash};
use crate::sync::spin_loop;
use pmem::Memory;

/// What is different. Nothing by default.
#[derive(Clone, Copy, Default)]
pub struct Ablation {
    /// What an index entry leads to is not heeded: the inode is found by its number, and the cachelet through the inode.
    pub without_quick_path: bool,
    /// A structure in place of the hash table.
    pub tree: Option<&'static dyn Tree>,
    /// Locks about what is appended to directory logs.
    pub logs: Option<&'static dyn LogLocks>,
}

/// A structure that leads from hashes to buckets.
pub trait Tree: Sync {
    /// A new DRAM region begins, without names. Above the numbers of all buckets that there may be.
    fn begin(&self) -> u64;
    /// For who looks a name up: the bucket of a hash; if there is none, one that has never had an entry.
    fn bucket(&self, hash: u64) -> u64;
    /// For who changes names: the bucket whose lock guards the names of a hash.
    fn guard(&self, hash: u64) -> u64;
    /// The bucket of a hash, made if it is missing. Its guard is held.
    fn make(&self, hash: u64) -> u64;
}

/// Locks of directories' logs.
pub trait LogLocks: Sync {
    /// Takes the locks of these directories (by number; the same one may be there twice) for the calling thread, which holds none.
    fn lock(&self, directories: [u64; 2]);
    /// Gives back all that the calling thread holds, if any.
    fn unlock(&self);
}

/// Looks at a guard before who waits for it sleeps: some ten microseconds. It guards many names and is held for most of a call, so it is waited for more often and for longer than a
/// bucket's lock; and what a missed wake costs is no part of what is measured.
const LOOKS: u32 = 300;

/// Locks on logs, given back at the end at the latest.
pub(crate) struct Logging<'f, M: Memory>(&'f Fs<M>);

impl<M: Memory> Drop for Logging<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.unlock_logs();
    }
}

impl<M: Memory> Fs<M> {
    /// Whether what an index entry leads to is heeded.
    #[inline(always)]
    pub(crate) fn has_quick_path(&self) -> bool {
        !M::WATCHED || !self.ablation.without_quick_path
    }

    /// What there is in place of the hash table.
    #[inline(always)]
    pub(crate) fn tree(&self) -> Option<&'static dyn Tree> {
        if M::WATCHED { self.ablation.tree } else { None }
    }

    /// For reapers, who know the hash table only.
    #[inline(always)]
    pub(crate) fn check_reapable(&self) -> Result<()> {
        if self.tree().is_some() { Err(Error::NotSupported) } else { Ok(()) }
    }

    /// Nothing of this file system has been used yet.
    pub(crate) fn ablate(&mut self, ablation: Ablation) -> Result<()> {
        const { assert!(M::WATCHED, "it would not be heeded") };
        self.ablation = ablation;
        let Some(tree) = ablation.tree else { return Ok(()) };
        let end = tree.begin();
        if end > self.dram.layout.buckets_max {
            return Err(Error::NoMemory);
        }
        // The hash table enters its area as it grows.
        self.enter_buckets(end);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn unlock_logs(&self) {
        if M::WATCHED
            && let Some(logs) = self.ablation.logs
        {
            logs.unlock();
        }
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Where logs are locked, locks those of these directories until [`Fs::unlock_logs`], or until what this returns goes. Nothing else is locked yet.
    #[inline(always)]
    pub(crate) fn lock_logs(&self, directories: [u64; 2]) -> Logging<'f, M> {
        if M::WATCHED
            && let Some(logs) = self.fs.ablation.logs
        {
            logs.lock(directories);
        }
        Logging(self.fs)
    }

    /// Holds the bucket of a name in a tree.
    pub(crate) fn hold_in_tree(&self, tree: &dyn Tree, hash: NameHash) -> Result<HeldBucket<'f>> {
        let held = self.lock_guard(tree.guard(hash.word()))?;
        Ok(HeldBucket::new(self.fs.dram.bucket(tree.make(hash.word()))?, held))
    }

    /// The same of two names; the second is none if it is the first one's.
    pub(crate) fn hold_both_in_tree(
        &self,
        tree: &dyn Tree,
        a: NameHash,
        b: NameHash,
    ) -> Result<(HeldBucket<'f>, Option<HeldBucket<'f>>)> {
        let (guard_a, guard_b) = (tree.guard(a.word()), tree.guard(b.word()));
        let first = self.lock_guard(guard_a.min(guard_b))?;
        let second = if guard_a == guard_b { None } else { Some(self.lock_guard(guard_a.max(guard_b))?) };
        let bucket_a = self.fs.dram.bucket(tree.make(a.word()))?;
        let bucket_b = self.fs.dram.bucket(tree.make(b.word()))?;
        Ok(match second {
            None if core::ptr::eq(bucket_a, bucket_b) => (HeldBucket::new(bucket_a, first), None),
            None => {
                // Nobody else comes to either: the lock that the second one has of its own is always free, and only kept beside it.
                let own = self.lock(&bucket_b.lock, &bucket_b.waiters)?;
                (HeldBucket::new(bucket_a, first), Some(HeldBucket::new(bucket_b, own)))
            }
            Some(second) => {
                let (held_a, held_b) = if guard_a < guard_b { (first, second) } else { (second, first) };
                (HeldBucket::new(bucket_a, held_a), Some(HeldBucket::new(bucket_b, held_b)))
            }
        })
    }

    /// Holds the bucket of a name that is in a tree, unless others change what its guard guards.
    pub(crate) fn try_hold_in_tree(&self, tree: &dyn Tree, hash: NameHash) -> Result<Option<HeldBucket<'f>>> {
        let guard = self.fs.dram.bucket(tree.guard(hash.word()))?;
        let bucket = self.fs.dram.bucket(tree.bucket(hash.word()))?;
        Ok(self.try_lock(&guard.lock, &guard.waiters).map(|held| HeldBucket::new(bucket, held)))
    }

    fn lock_guard(&self, guard: u64) -> Result<Held<'f>> {
        let guard = self.fs.dram.bucket(guard)?;
        for _ in 0..LOOKS {
            if let Some(held) = self.try_lock(&guard.lock, &guard.waiters) {
                return Ok(held);
            }
            spin_loop();
        }
        self.lock(&guard.lock, &guard.waiters)
    }
}
