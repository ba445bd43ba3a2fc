//! Where the global index finds the chain of a name's hash: in a hash table, or for comparison in a radix tree or a B-tree, as the paper tries.
//!
//! Whatever the structure, a chain begins in a [`Bucket`] whose version tells readers that it changed. A hash that has no bucket of its own lies in one that
//! all such hashes share, so nothing here can fail, and a reader may follow what a writer is just changing: it finds some bucket, and what is not in its chain was
//! not there at that moment.
//!
//! - *Hash table*: a bucket for each value of the low bits; each bucket has its own lock.
//! - *Radix tree*: 24 bits of the hash, six for each level. Lookups take no lock; writers lock the subtree of the first level.
//! - *B-tree*: from the whole hash, under one read-write lock, as trees that are balanced need.

use super::arena::{Arena, Array};
use crate::error::Result;
use crate::locks;
use pmem::Layout;
use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// The structure of the index of [`Cachelet`](super::Cachelet).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexKind {
    /// As the paper's.
    #[default]
    Hash,
    /// The paper's DirectFS_r.
    Radix,
    /// The paper's DirectFS_b.
    BTree,
}

#[repr(C, align(8))]
pub(super) struct Bucket {
    pub(super) version: AtomicU32,
    pub(super) first: AtomicU32,
}
// SAFETY: two atomics of 4 bytes that fill 8 bytes, any bits are a value.
unsafe impl Layout for Bucket {}

/// Bits of a level of the radix tree.
const LEVEL_BITS: u32 = 6;
const FAN: usize = 1 << LEVEL_BITS;
/// Levels of nodes above the leaves.
const LEVELS: u32 = 3;
/// Nodes of all levels together, and leaves; the first of each is nobody's.
const NODES: u32 = 1 + FAN as u32 + (FAN * FAN) as u32;
const LEAVES: u32 = (FAN * FAN * FAN) as u32;

/// Children by number; zero: none.
#[repr(C, align(64))]
struct Node([AtomicU32; FAN]);
// SAFETY: atomics of 4 bytes, any bits are a value.
unsafe impl Layout for Node {}

#[repr(C, align(64))]
struct Leaf([Bucket; FAN]);
// SAFETY: buckets of 8 bytes, any bits are a value.
unsafe impl Layout for Leaf {}

pub(super) struct Radix {
    root: Node,
    nodes: Arena<Node>,
    leaves: Arena<Leaf>,
    subtrees: [Mutex<()>; FAN],
}

pub(super) struct Tree {
    slots: RwLock<BTreeMap<u64, u32>>,
    buckets: Arena<Bucket>,
}

pub(super) enum Chains {
    Hash(Array<Bucket>),
    Radix(Box<Radix>),
    BTree(Box<Tree>),
}

/// What is locked beside the bucket.
enum Held<'c> {
    Nothing,
    Subtree { _guard: MutexGuard<'c, ()> },
    Tree { slots: RwLockWriteGuard<'c, BTreeMap<u64, u32>>, tree: &'c Tree, hash: u64 },
}

/// A bucket that nobody else changes; readers wait or look again.
pub(super) struct Changing<'c> {
    pub(super) bucket: &'c Bucket,
    held: Held<'c>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let is_empty = self.bucket.first.load(Relaxed) == 0;
        let version = self.bucket.version.load(Relaxed);
        self.bucket.version.store(version.wrapping_add(1), Release);
        if let Held::Tree { slots, tree, hash } = &mut self.held
            && is_empty
            && let Some(slot) = slots.remove(hash)
        {
            tree.buckets.give(slot);
        }
    }
}

impl Bucket {
    fn lock<'c>(&'c self, held: Held<'c>) -> Changing<'c> {
        let mut attempt = 0u32;
        loop {
            let now = self.version.load(Relaxed);
            if now & 1 == 0 && self.version.compare_exchange_weak(now, now + 1, Acquire, Relaxed).is_ok() {
                fence(Release);
                return Changing { bucket: self, held };
            }
            attempt += 1;
            if attempt.is_multiple_of(128) { std::thread::yield_now() } else { spin_loop() }
        }
    }
}

fn part(hash: u64, level: u32) -> usize {
    (hash >> (LEVEL_BITS * level)) as usize & (FAN - 1)
}

impl Radix {
    fn new() -> Result<Radix> {
        Ok(Radix {
            root: Node(std::array::from_fn(|_| AtomicU32::new(0))),
            // Whole batches may lie in lists of free slots.
            nodes: Arena::new(NODES + 1024)?,
            leaves: Arena::new(LEAVES + 1024)?,
            subtrees: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Missing nodes have number zero, which is a node without children and a leaf that all share.
    #[inline]
    fn of(&self, hash: u64) -> &Bucket {
        let mut node = &self.root;
        for level in 0..LEVELS - 1 {
            node = self.nodes.at(node.0[part(hash, level)].load(Acquire));
        }
        let leaf = self.leaves.at(node.0[part(hash, LEVELS - 1)].load(Acquire));
        &leaf.0[part(hash, LEVELS)]
    }

    /// Makes the nodes on the way. The subtree is locked.
    fn grow(&self, hash: u64) {
        let mut node = &self.root;
        for level in 0..LEVELS {
            let child = &node.0[part(hash, level)];
            if child.load(Relaxed) == 0 {
                let new = if level == LEVELS - 1 { self.leaves.take() } else { self.nodes.take() };
                let Some(new) = new else { return };
                child.store(new, Release);
            }
            if level < LEVELS - 1 {
                node = self.nodes.at(child.load(Relaxed));
            }
        }
    }
}

impl Chains {
    pub(super) fn new(kind: IndexKind, names_max: u32) -> Result<Chains> {
        Ok(match kind {
            IndexKind::Hash => Chains::Hash(Array::new(names_max.max(1024).next_power_of_two())?),
            IndexKind::Radix => Chains::Radix(Box::new(Radix::new()?)),
            IndexKind::BTree => {
                let buckets = Arena::new(names_max.saturating_add(1024))?;
                Chains::BTree(Box::new(Tree { slots: RwLock::default(), buckets }))
            }
        })
    }

    /// Touches memory that is needed however many names there are.
    pub(super) fn touch(&self) {
        if let Chains::Hash(buckets) = self {
            buckets.touch(buckets.length());
        }
    }

    /// The bucket of a hash.
    #[inline]
    pub(super) fn of(&self, hash: u64) -> &Bucket {
        match self {
            Chains::Hash(buckets) => buckets.at(hash as u32 & (buckets.length() - 1)),
            Chains::Radix(radix) => radix.of(hash),
            Chains::BTree(tree) => {
                let slots = locks::read(&tree.slots);
                tree.buckets.at(slots.get(&hash).copied().unwrap_or(0))
            }
        }
    }

    /// The bucket of a hash, to be changed.
    pub(super) fn lock(&self, hash: u64) -> Changing<'_> {
        match self {
            Chains::Hash(_) => self.of(hash).lock(Held::Nothing),
            Chains::Radix(radix) => {
                let subtree = &radix.subtrees[part(hash, 0)];
                let guard = locks::lock(subtree);
                radix.grow(hash);
                radix.of(hash).lock(Held::Subtree { _guard: guard })
            }
            Chains::BTree(tree) => {
                let mut slots = locks::write(&tree.slots);
                let known = slots.get(&hash).copied();
                let slot = known.or_else(|| tree.buckets.take());
                if let (None, Some(new)) = (known, slot) {
                    slots.insert(hash, new);
                }
                tree.buckets.at(slot.unwrap_or(0)).lock(Held::Tree { slots, tree, hash })
            }
        }
    }
}
