//! Ablations of DirectFS: parts disabled or replaced, as measured in the paper's section V-C. This
//! is the lab's side of the engine's hooks ([`engine::Ablation`]).
//!
//! - *nqp*: no inode quick path.
//! - *_r*: a radix tree as global index, with six bits of the hash per level. Lookups take no lock;
//!   changes of a name lock a first-level subtree.
//! - *_b*: a B-tree as global index under a read-write lock; changes of a name lock the whole
//!   index. Keys are never removed, so readers are excluded only while a key is inserted.
//! - *nocon*: appends to a directory's log lock the log, from before the slot is claimed until the
//!   call's last fence.
//! - *_paper*: the paper's steps where the engine has its own. A create follows Algorithm 1 (name
//!   in the index but unreadable, two fences, persisted tail of the log). chmod takes no lock. A
//!   session keeps no parent. A collecting thread reclaims from 100 removed names on; it runs in
//!   the caller's turn, outside of recordings. Renames, data and recovery are the engine's.
//!
//! Trees have the buckets of the engine's hash table, and use as many bits of the hash as give the
//! same load. So only the way to a bucket and the locks differ.

use crate::locks;
use engine::{Ablation, LogLocks, Tree};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, RwLock};

/// A variant of DirectFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// The unmodified engine.
    Whole,
    /// DirectFS_nqp.
    NoQuickPath,
    /// DirectFS_r.
    Radix,
    /// DirectFS_b.
    BTree,
    /// DirectFS_nocon.
    LockedLog,
    /// DirectFS_paper.
    AsPrinted,
}

/// Names per bucket, about as in the engine's hash table.
const NAMES_PER_BUCKET: u64 = 2;
/// Bits per level of the radix tree.
const LEVEL_BITS: u32 = 6;
const FAN: usize = 1 << LEVEL_BITS;
/// Buckets up to this one hold no names: zero stays empty, the locks of the others guard trees.
const RESERVED: u32 = FAN as u32;

impl Variant {
    /// All variants except the unmodified engine.
    pub const OTHERS: [Variant; 5] =
        [Variant::NoQuickPath, Variant::Radix, Variant::BTree, Variant::LockedLog, Variant::AsPrinted];

    /// The engine's ablation for about this many names. A tree serves one file system, which may be
    /// in use until the process ends, so it is never freed.
    pub fn ablation(self, names: u64) -> Ablation {
        let bits = (names / NAMES_PER_BUCKET).max(1).next_power_of_two().ilog2();
        match self {
            Variant::Whole => Ablation::default(),
            Variant::NoQuickPath => Ablation { without_quick_path: true, ..Ablation::default() },
            Variant::Radix => Ablation { tree: Some(Box::leak(Box::new(Radix::new(bits)))), ..Ablation::default() },
            Variant::BTree => Ablation { tree: Some(Box::leak(Box::new(Balanced::new(bits)))), ..Ablation::default() },
            Variant::LockedLog => Ablation { logs: Some(&Locked), ..Ablation::default() },
            Variant::AsPrinted => Ablation { as_printed: true, ..Ablation::default() },
        }
    }
}

/// The end of the bucket numbers if each value of `bits` bits gets a bucket.
fn end_of_buckets(bits: u32) -> u64 {
    RESERVED as u64 + 1 + (1 << bits)
}

// --- Radix tree -------------------------------------------------------------------------------

/// A radix tree in one array. Nodes are contiguous, with the root first. A word holds the start of
/// the child, or the bucket in the last level; zero is empty.
///
/// A word changes once, from zero, under the guard of its subtree.
struct Radix {
    bits: u32,
    words: Box<[AtomicU32]>,
    nodes_end: AtomicU32,
    buckets_end: AtomicU32,
}

impl Radix {
    fn new(bits: u32) -> Radix {
        let levels = (0..bits.max(1)).step_by(LEVEL_BITS as usize);
        // A level has a word for each value of the bits down to it.
        let words = levels.map(|above| 1usize << (above + LEVEL_BITS).min(bits)).sum();
        Radix {
            bits,
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            nodes_end: AtomicU32::new(0),
            buckets_end: AtomicU32::new(0),
        }
    }

    /// Words of a node with `left` bits remaining.
    fn fan(left: u32) -> u32 {
        1 << left.min(LEVEL_BITS)
    }

    fn part(hash: u64, left: u32) -> usize {
        hash as usize & (Self::fan(left) as usize - 1)
    }
}

impl Tree for Radix {
    fn begin(&self) -> u64 {
        self.words.iter().for_each(|word| word.store(0, Relaxed));
        self.nodes_end.store(Self::fan(self.bits), Relaxed);
        self.buckets_end.store(RESERVED + 1, Relaxed);
        end_of_buckets(self.bits)
    }

    #[inline]
    fn bucket(&self, hash: u64) -> u64 {
        let (mut hash, mut left, mut node) = (hash, self.bits, 0);
        loop {
            let child = self.words[node + Self::part(hash, left)].load(Acquire);
            if left <= LEVEL_BITS || child == 0 {
                return child as u64;
            }
            (hash, left, node) = (hash >> LEVEL_BITS, left - LEVEL_BITS, child as usize);
        }
    }

    fn guard(&self, hash: u64) -> u64 {
        1 + Self::part(hash, self.bits) as u64
    }

    fn make(&self, hash: u64) -> u64 {
        let (mut hash, mut left, mut node) = (hash, self.bits, 0);
        loop {
            let word = &self.words[node + Self::part(hash, left)];
            let mut child = word.load(Relaxed);
            if child == 0 {
                child = match left <= LEVEL_BITS {
                    true => self.buckets_end.fetch_add(1, Relaxed),
                    false => self.nodes_end.fetch_add(Self::fan(left - LEVEL_BITS), Relaxed),
                };
                word.store(child, Release);
            }
            if left <= LEVEL_BITS {
                return child as u64;
            }
            (hash, left, node) = (hash >> LEVEL_BITS, left - LEVEL_BITS, child as usize);
        }
    }
}

// --- B-tree -----------------------------------------------------------------------------------

/// The standard library's B-tree, from the low bits of the hash to buckets.
struct Balanced {
    bits: u32,
    buckets: RwLock<BTreeMap<u64, u32>>,
}

impl Balanced {
    fn new(bits: u32) -> Balanced {
        Balanced { bits, buckets: RwLock::default() }
    }

    fn key(&self, hash: u64) -> u64 {
        hash & ((1 << self.bits) - 1)
    }
}

impl Tree for Balanced {
    fn begin(&self) -> u64 {
        locks::write(&self.buckets).clear();
        end_of_buckets(self.bits)
    }

    #[inline]
    fn bucket(&self, hash: u64) -> u64 {
        locks::read(&self.buckets).get(&self.key(hash)).copied().unwrap_or(0) as u64
    }

    fn guard(&self, _: u64) -> u64 {
        1
    }

    fn make(&self, hash: u64) -> u64 {
        let known = self.bucket(hash);
        if known != 0 {
            return known;
        }
        let mut buckets = locks::write(&self.buckets);
        let bucket = RESERVED + 1 + buckets.len() as u32;
        buckets.insert(self.key(hash), bucket);
        bucket as u64
    }
}

// --- Locked logs ------------------------------------------------------------------------------

/// A lock on a line of its own.
#[repr(align(64))]
struct LogLock(Mutex<()>);

/// The locks of directories, by number modulo 256. Collisions are rare: an experiment uses few
/// directories at a time.
static LOG_LOCKS: [LogLock; 256] = [const { LogLock(Mutex::new(())) }; 256];

thread_local! {
    /// The locks that the calling thread holds.
    static HELD: RefCell<[Option<MutexGuard<'static, ()>>; 2]> = const { RefCell::new([None, None]) };
}

struct Locked;

impl LogLocks for Locked {
    fn lock(&self, directories: [u64; 2]) {
        let [a, b] = directories.map(|number| number as usize % LOG_LOCKS.len());
        // A global order, and no lock twice.
        let guards = [Some(a.min(b)), (a != b).then_some(a.max(b))];
        HELD.set(guards.map(|index| index.map(|index| locks::lock(&LOG_LOCKS[index].0))));
    }

    fn unlock(&self) {
        HELD.set([None, None]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn trees(bits: u32) -> [Box<dyn Tree>; 2] {
        [Box::new(Radix::new(bits)), Box::new(Balanced::new(bits))]
    }

    #[test]
    fn each_value_of_the_bits_gets_a_bucket_of_its_own_and_keeps_it() {
        for bits in [0, 1, 5, 6, 7, 12, 13] {
            for tree in trees(bits) {
                // State of an earlier region is gone.
                for _ in 0..2 {
                    let end = tree.begin();
                    let hashes = || (0..1u64 << bits).map(|value| value | 0xabc << bits);
                    assert!(hashes().all(|hash| tree.bucket(hash) == 0), "{bits}");
                    let made: BTreeMap<u64, u64> = hashes().map(|hash| (hash, tree.make(hash))).collect();
                    assert_eq!(made.values().collect::<BTreeSet<_>>().len(), 1 << bits);
                    for (hash, bucket) in &made {
                        assert!((RESERVED as u64 + 1..end).contains(bucket), "{bits}: {bucket}");
                        assert_eq!(
                            [tree.bucket(*hash), tree.make(*hash), tree.bucket(*hash ^ 1 << bits)],
                            [*bucket; 3]
                        );
                        assert!((1..=RESERVED as u64).contains(&tree.guard(*hash)));
                    }
                }
            }
        }
    }

    #[test]
    fn what_has_one_bucket_has_one_guard() {
        for tree in trees(8) {
            tree.begin();
            let mut guards = BTreeMap::new();
            for hash in (0..5000u64).map(|number| (number * 0x9e37_79b9) & 0xffff_ffff_ffff) {
                let guard = tree.guard(hash);
                assert_eq!(*guards.entry(tree.make(hash)).or_insert(guard), guard);
            }
        }
    }

    #[test]
    fn a_log_is_locked_once_and_two_are_in_one_order() {
        let holds = |directory: usize| LOG_LOCKS[directory].0.try_lock().is_err();
        let (one, two) = (200, 201);
        for directories in [[two, one], [one, two]] {
            Locked.lock(directories.map(|number| number as u64));
            assert!(holds(one) && holds(two));
            Locked.unlock();
            assert!(!holds(one) && !holds(two));
        }
        Locked.lock([one as u64, one as u64 + LOG_LOCKS.len() as u64]);
        assert!(holds(one) && !holds(two));
        Locked.unlock();
        Locked.unlock();
        assert!(!holds(one));
    }
}
