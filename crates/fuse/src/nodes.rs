//! The files that the kernel knows, with their lookup counts.
//!
//! Invariant: a file known to the kernel has exactly one reference in the engine, whatever its
//! lookup count. The file therefore keeps its identity until the kernel forgets it, even without a
//! name.

use engine::{Node, Thread};
use pmem::Direct;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A power of two, larger than the number of threads to avoid contention.
const SHARDS: usize = 64;

#[derive(Clone, Copy)]
struct KnownNode {
    node: Node,
    lookups: u64,
}

/// The files that the kernel knows, by inode number.
pub(crate) struct Nodes {
    root: Node,
    shards: [Mutex<HashMap<u64, KnownNode>>; SHARDS],
}

impl Nodes {
    /// The kernel knows the root from the start and never forgets it. The caller keeps its
    /// reference.
    pub(crate) fn new(root: Node) -> Nodes {
        Nodes { root, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, KnownNode>> {
        // A panic elsewhere leaves the map consistent: no operation on it stops halfway.
        self.shards[number as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node of a number that the kernel knows.
    pub(crate) fn get(&self, number: u64) -> Option<Node> {
        if number == self.root.number {
            return Some(self.root);
        }
        self.shard(number).get(&number).map(|known| known.node)
    }

    /// Adds a file that an earlier server reported to the kernel. Takes over the reference of
    /// `node`; returns the node that is known.
    ///
    /// Its lookups count from zero here. The kernel forgets all lookups of a file at once, so a
    /// larger count than this server's means that it has forgotten the file.
    pub(crate) fn adopt(&self, thread: &Thread<'_, Direct>, node: Node) -> Node {
        let (known, spare) = match self.shard(node.number).entry(node.number) {
            Entry::Occupied(known) => (known.get().node, true),
            Entry::Vacant(place) => {
                place.insert(KnownNode { node, lookups: 0 });
                (node, false)
            }
        };
        if spare {
            thread.release(node, 1);
        }
        known
    }

    /// Counts a lookup of a file. Takes over the reference of `node`.
    pub(crate) fn record_lookup(&self, thread: &Thread<'_, Direct>, node: Node) {
        let spare = node.number == self.root.number || {
            match self.shard(node.number).entry(node.number) {
                Entry::Occupied(mut known) => {
                    known.get_mut().lookups += 1;
                    true
                }
                Entry::Vacant(place) => {
                    place.insert(KnownNode { node, lookups: 1 });
                    false
                }
            }
        };
        if spare {
            thread.release(node, 1);
        }
    }

    /// Subtracts `count` lookups. At zero the reference is released.
    pub(crate) fn forget(&self, thread: &Thread<'_, Direct>, number: u64, count: u64) {
        let forgotten = match self.shard(number).entry(number) {
            Entry::Occupied(mut known) => {
                let left = known.get().lookups.saturating_sub(count);
                known.get_mut().lookups = left;
                (left == 0).then(|| known.remove().node)
            }
            Entry::Vacant(_) => None,
        };
        if let Some(node) = forgotten {
            thread.release(node, 1);
        }
    }

    /// Releases all references after the mount has ended.
    pub(crate) fn forget_all(&self, thread: &Thread<'_, Direct>) {
        for shard in &self.shards {
            let known = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            known.into_values().for_each(|known| thread.release(known.node, 1));
        }
    }
}
