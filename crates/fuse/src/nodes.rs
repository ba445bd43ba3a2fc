//! Which files the kernel knows, and how often it was told of each.
//!
//! A file that the kernel knows keeps one reference in the engine, however often it was looked up: so it stays itself until the kernel
//! forgets it, even without a name.

use engine::{Node, Thread};
use pmem::Direct;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A power of two; more than threads, so that they seldom meet.
const SHARDS: usize = 64;

#[derive(Clone, Copy)]
struct Known {
    node: Node,
    lookups: u64,
}

/// The files that the kernel knows, by inode number.
pub(crate) struct Nodes {
    root: Node,
    shards: [Mutex<HashMap<u64, Known>>; SHARDS],
}

impl Nodes {
    /// The kernel knows the root from the start, and never forgets it. The caller keeps its reference.
    pub(crate) fn new(root: Node) -> Nodes {
        Nodes { root, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Known>> {
        // A panic elsewhere leaves the map whole: no operation on it stops halfway.
        self.shards[number as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node of a number that the kernel was told.
    pub(crate) fn get(&self, number: u64) -> Option<Node> {
        if number == self.root.number {
            return Some(self.root);
        }
        self.shard(number).get(&number).map(|known| known.node)
    }

    /// The kernel is told of a file once more. Takes over the reference that comes with `node`.
    pub(crate) fn tell(&self, thread: &Thread<'_, Direct>, node: Node) {
        let spare = node.number == self.root.number || {
            match self.shard(node.number).entry(node.number) {
                Entry::Occupied(mut known) => {
                    known.get_mut().lookups += 1;
                    true
                }
                Entry::Vacant(place) => {
                    place.insert(Known { node, lookups: 1 });
                    false
                }
            }
        };
        if spare {
            thread.release(node, 1);
        }
    }

    /// The kernel forgets `count` of the times that it was told. What it has forgotten wholly is given back.
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

    /// The mount is gone: the kernel knows nothing any more.
    pub(crate) fn forget_all(&self, thread: &Thread<'_, Direct>) {
        for shard in &self.shards {
            let known = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            known.into_values().for_each(|known| thread.release(known.node, 1));
        }
    }
}
