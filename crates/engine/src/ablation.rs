//! Ablations, for measurements in the lab (paper, V-C): no inode quick path ("nqp"), another
//! structure than the hash table as the mindex ("_r", "_b"), a lock on directory logs ("nocon"),
//! and the paper's own order of steps where the engine has another one ("as printed").
//!
//! Ablations act only on instrumented memory ([`Memory::WATCHED`]) and otherwise compile out. They
//! meet the rest of the engine through one type, [`Ablated`], in three places: here for targets of
//! entries, in `mindex::placement` for buckets and their locks, and in `reap::intents`, which
//! frames each operation, for locks of logs. What is printed has branches in `create`, `lookup`,
//! `attributes`, `remove` and `recycle`.
//!
//! Invariants
//! - Another structure decides only which bucket holds the names of a hash; buckets, their chains
//!   and versions are those of the hash table. Once a hash has a bucket, it keeps it: a miss in it
//!   is an answer.
//! - A lock may then guard several buckets. It is the lock of a bucket, too, whose entries stay
//!   unused.
//! - Locks of logs precede all others.
//! - Threads must not die: a reaper knows only the hash table. It marks the image unclean for
//!   anything that a dead thread left in another structure, as for all damage.
//!
//! *Reason:* the paper measures the gain of single parts (Fig. 7), and the product must not carry
//! what only that needs. *Rejected:* a fork of the engine (it drifts); a runtime switch in hot
//! code.

use crate::ablation_options::{Ablated, Ablation, Tree};
use crate::attributes::Changes;
use crate::components::NameIndex;
use crate::dram::{Cachelet, FLAG_READABLE, IntentKind, RETIRED_MAX, References};
use crate::error::{Error, Result};
use crate::format::LOG_SLOTS;
use crate::fs::{Fs, Node, Thread};
use crate::lock::LockGuard;
use crate::mindex::{NameHash, Target, names_no_cachelet};
use crate::property::write_attributes;
use crate::sync::spin_loop;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use pmem::{Durable, Flushed, Memory};

/// Attempts to take a guard before the thread sleeps: about ten microseconds. A guard protects many
/// names and is held for most of a call, so waits are more frequent and longer than for a bucket's
/// lock. The cost of a missed wake must not enter the measurement.
const SPINS: u32 = 300;

impl<M: Memory> Fs<M> {
    /// The target in the value of an entry.
    #[inline(always)]
    pub(crate) fn target_of(&self, value: u64) -> Target {
        if self.ablation.uses_targets() { Target::from_value(value) } else { Target::UNKNOWN }
    }

    /// The target of a name that is being indexed.
    pub(crate) fn target_of_inode(&self, number: u64) -> Target {
        match self.ablation.uses_targets().then(|| self.inode_offset(number)) {
            Some(Ok(offset)) => Target::Inode(offset),
            // The lookup will report what is wrong with the inode.
            Some(Err(_)) | None => Target::UNKNOWN,
        }
    }

    /// The cachelet that an entry probably names, before its name was compared.
    #[inline(always)]
    pub(crate) fn likely_cachelet(&self, value: u64) -> Option<u32> {
        self.ablation.uses_targets().then_some(value as u32)
    }

    /// Whether the cachelet of an entry must be found through its inode.
    #[inline(always)]
    pub(crate) fn is_indirect(&self, value: u64) -> bool {
        self.ablation.uses_targets() && names_no_cachelet(value)
    }

    /// The cachelet of an entry that is not indirect, for an inode.
    #[inline(always)]
    pub(crate) fn cachelet_of_entry(&self, value: u64, number: u64) -> Option<u32> {
        if self.ablation.uses_targets() { Some(value as u32) } else { self.cachelet_by_number(number) }
    }

    /// The cachelet of an inode whose name was removed from the index, where it had this target.
    pub(crate) fn cachelet_of_removed(&self, target: Option<Target>, number: u64) -> Option<u32> {
        match target {
            _ if !self.ablation.uses_targets() => self.cachelet_by_number(number),
            Some(Target::Cachelet(index)) => Some(index),
            Some(Target::Inode(_)) | None => None,
        }
    }

    /// Whether a lookup passes over a file with this state word: it is being created (III-E).
    #[inline(always)]
    pub(crate) fn is_unreadable(&self, references: u64) -> bool {
        self.ablation.is_as_printed() && references & References::flag(FLAG_READABLE) == 0
    }

    /// Applies ablations to a file system that has not been used yet.
    pub(crate) fn ablate(&mut self, ablation: Ablation) -> Result<()> {
        self.ablation = Ablated::by(ablation);
        let Some(tree) = self.ablation.tree() else { return Ok(()) };
        let end = tree.begin();
        if end > self.dram.layout.buckets_max {
            return Err(Error::NoMemory);
        }
        // The hash table enters its area as it grows.
        self.enter_buckets(end);
        Ok(())
    }
}

impl<M: Memory> Thread<'_, M> {
    /// If logs are locked, locks those in which an operation makes names, until
    /// [`Thread::unlock_logs`]: from before the slots are claimed until the last fence. No other
    /// lock is held yet. (The name that a whiteout leaves behind is appended without a lock.)
    #[inline(always)]
    pub(crate) fn lock_logs(&self, kind: IntentKind, directories: [u32; 2]) {
        if let Some(logs) = self.fs.ablation.logs() {
            let [first, second] = directories
                .map(|index| self.fs.dram.cachelet(index).map_or(0, |directory| directory.number.load(Relaxed)));
            match kind {
                IntentKind::Create | IntentKind::Link => logs.lock([first; 2]),
                IntentKind::Rename => logs.lock([second; 2]),
                IntentKind::Exchange => logs.lock([first, second]),
                _ => {}
            }
        }
    }

    /// Releases the locks of logs, if any.
    #[inline(always)]
    pub(crate) fn unlock_logs(&self) {
        if let Some(logs) = self.fs.ablation.logs() {
            logs.unlock();
        }
    }

    /// Line 10 of Algorithm 1: persists the tail of a directory's log, with what was flushed
    /// before. The engine's format has no tail; a word of the directory's inode that recovery does
    /// not read stands for it.
    pub(crate) fn persist_tail(&self, directory: &Cachelet, flushed: Flushed) -> Result<Durable> {
        let inode = self.fs.inode_at(directory.inode.load(Relaxed))?;
        let tail = self.fs.pm.set64(&inode.reserved, directory.as_directory().log_tail().load(Relaxed));
        Ok(self.fence_names(flushed.and(self.fs.pm.flush(tail))))
    }

    /// Lines 1 and 15 of Algorithm 1: whether lookups find a file that is being created.
    pub(crate) fn set_readable(&self, cachelet: &Cachelet, is_readable: bool) {
        let flag = References::flag(FLAG_READABLE);
        if is_readable {
            cachelet.references.fetch_or(flag, Release);
        } else {
            // No other thread has the cachelet yet.
            cachelet.references.store(cachelet.references.load(Relaxed) & !flag, Relaxed);
        }
    }

    /// chmod as in III-E and III-F: a property entry is persisted, its address is logged (in a word
    /// of the inode that recovery does not read) and persisted, then mode and time in the cachelet
    /// change by a store each. Of several writers at once, any may be the last.
    pub(crate) fn change_mode_as_printed(&self, cachelet: &Cachelet, changes: &Changes) -> Result<()> {
        let inode = self.fs.inode_at(cachelet.inode.load(Relaxed))?;
        let changed_ns = self.cachelets().stamp(cachelet);
        let mut property = self.cachelets().property_now(cachelet);
        property.change(|property| changes.apply(property, changed_ns));
        let sequence = cachelet.sequence.fetch_add(1, AcqRel).wrapping_add(1);
        let (number, generation) = (cachelet.number.load(Relaxed), cachelet.generation.load(Relaxed));
        let pm = &self.fs.pm;
        pm.fence(write_attributes(self.fs, inode, &property, sequence, number, generation));
        let entry = pm.offset_of(&inode.properties[(sequence & 1) as usize]);
        pm.persist(pm.set64(&inode.reserved, entry));
        cachelet.mode.store(property.mode, Release);
        cachelet.changed_ns.store(changed_ns, Release);
        Ok(())
    }

    /// A turn of the paper's collecting thread (III-G), for what this thread removed: a directory's
    /// log is compacted once its invalid entries fill a page, and everything whose grace period is
    /// over becomes free. Not pinned.
    pub fn collect_garbage(&self, directory: Node) -> Result<()> {
        if !self.fs.ablation.is_as_printed() {
            // The engine collects by itself.
            return Ok(());
        }
        if self.cachelet(directory)?.as_directory().log_counts().holes >= LOG_SLOTS {
            self.maintenance().compact(directory)?;
        }
        self.recycler().recycle(RETIRED_MAX).map(drop)
    }
}

//NAMES
impl<'f, M: Memory> NameIndex<'_, 'f, M> {
    /// The guards of two names in a tree, locked; the second is none if it is the first. A guard
    /// stands for the locks of the buckets below it.
    pub(crate) fn lock_guards(
        self,
        tree: &dyn Tree,
        [a, b]: [NameHash; 2],
    ) -> Result<(LockGuard<'f>, Option<LockGuard<'f>>)> {
        let (guard_a, guard_b) = (tree.guard(a.word()), tree.guard(b.word()));
        let first = self.lock_guard(guard_a.min(guard_b))?;
        let second = if guard_a == guard_b { None } else { Some(self.lock_guard(guard_a.max(guard_b))?) };
        Ok((first, second))
    }

    /// The guard of a name in a tree, unless another thread has locked it.
    pub(crate) fn try_lock_guard(self, tree: &dyn Tree, hash: NameHash) -> Result<Option<LockGuard<'f>>> {
        let guard = self.owner.fs.dram.bucket(tree.guard(hash.word()))?;
        Ok(self.owner.try_lock(&guard.lock, &guard.waiters))
    }

    fn lock_guard(self, guard: u64) -> Result<LockGuard<'f>> {
        let guard = self.owner.fs.dram.bucket(guard)?;
        for _ in 0..SPINS {
            if let Some(held) = self.owner.try_lock(&guard.lock, &guard.waiters) {
                return Ok(held);
            }
            spin_loop();
        }
        self.owner.lock(&guard.lock, &guard.waiters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::AttachOptions;
    use crate::format::ROOT_INODE;
    use crate::mindex::NameKey;
    use crate::testing::{Memory, Mortal, PLATFORM, TestPlatform, new_image};

    /// Eight buckets; the even ones have one guard, the others another one.
    struct Halves {
        buckets: u64,
    }

    impl Tree for Halves {
        fn begin(&self) -> u64 {
            self.buckets
        }
        fn bucket(&self, hash: u64) -> u64 {
            8 + hash % 8
        }
        fn guard(&self, hash: u64) -> u64 {
            1 + hash % 2
        }
        fn make(&self, hash: u64) -> u64 {
            self.bucket(hash)
        }
    }

    fn with_tree(
        tree: &'static dyn Tree,
        platform: &'static TestPlatform,
        test: impl FnOnce(&Fs<Mortal>),
    ) -> Result<()> {
        let (image, options) = (new_image(4 << 20, 0), AttachOptions::default());
        let dram = Memory::new(Fs::dram_layout(&image.region(), &options)?.length);
        let recovery =
            Fs::attach_first(image.region_in(Mortal), dram.region(), platform, crate::Liveness::alone(), &options)?;
        let ablation = Ablation { tree: Some(tree), ..Ablation::default() };
        test(&recovery.ablate(ablation)?.finish()?.0);
        Ok(())
    }

    /// A name of the root directory that lies in a given bucket.
    fn name_in(fs: &Fs<Mortal>, bucket: u64) -> std::string::String {
        let names = (0..).map(|number| std::format!("{number}"));
        let is_in = |name: &std::string::String| fs.hash_name(ROOT_INODE, name.as_bytes()).word() % 8 == bucket;
        names.into_iter().find(is_in).expect("one of eight")
    }

    #[test]
    fn any_two_names_are_held_under_their_guards_and_let_go() {
        with_tree(&Halves { buckets: 16 }, &PLATFORM, |fs| {
            let thread = fs.enter().expect("enters");
            let bucket = |index| fs.dram.bucket(index).expect("a bucket");
            let locked = || (0..16).filter(|index| bucket(*index).lock.load(Relaxed) != 0).count();
            for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))).filter(|(a, b)| a != b) {
                let names = [a, b].map(|bucket| name_in(fs, bucket));
                let keys = [0, 1].map(|index: usize| {
                    let name = names[index].as_bytes();
                    NameKey { parent: ROOT_INODE, name, hash: fs.hash_name(ROOT_INODE, name) }
                });
                let (first, second) = thread.names().hold_both(&keys[0], &keys[1]).expect("no other thread is here");
                assert!(core::ptr::eq(first.bucket(), bucket(8 + a)), "{a} {b}");
                assert!(core::ptr::eq(second.bucket(), bucket(8 + b)), "{a} {b}");
                assert!([a, b].iter().all(|hash| bucket(1 + hash % 2).lock.load(Relaxed) == thread.ticket()));
                drop((first, second));
                assert_eq!(locked(), 0, "{a} {b}");
            }
        })
        .expect("attaches");
    }

    #[test]
    fn a_region_that_has_too_few_buckets_is_refused() {
        let refused = with_tree(&Halves { buckets: 1 << 40 }, &PLATFORM, |_| {});
        assert_eq!(refused, Err(Error::NoMemory));
    }

    #[test]
    fn what_a_dead_thread_leaves_in_a_tree_marks_the_image_unclean() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let done = with_tree(&Halves { buckets: 16 }, &MORTAL, |fs| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let thread = fs.enter().expect("enters");
                    core::mem::forget(thread.names().hold_dentry(NameHash::from_intent(0), 64, true));
                    core::mem::forget(thread);
                    MORTAL.kill();
                });
            });
            let thread = fs.enter().expect("enters");
            assert_eq!(fs.ablation.check_reapable(), Err(Error::NotSupported));
            assert!(thread.names().hold_dentry(NameHash::from_intent(2), 64, true).is_ok());
            assert_eq!(
                fs.header().expect("a header").unclean_marks.load(Relaxed),
                1,
                "the image must not be left clean"
            );
        });
        done.expect("attaches");
    }
}
