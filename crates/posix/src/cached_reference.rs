//! A reference to a file that a thread keeps beyond its calls, so that calls need not count
//! references.
//!
//! Invariants
//! - The reference is recorded ([`Thread::record_reference`]) as long as it is cached: if the
//!   thread dies, recovery of its slot releases it.
//! - Only the owning thread changes the cached reference, and not while a call uses it without its
//!   own reference.
//! - All zero is a valid value: nothing is cached.
//!
//! It is the last directory that a path of several components led to, and the working directory in
//! a process with several threads. *Reason:* in the model of 64 processors a create has 6 locked
//! instructions instead of 8, a removal 5.1 instead of 7.1, a rename 11 instead of 15. *Rejected:*
//! a stamp checked at each pin. Eviction between two pins would need a restart in the middle of
//! every call.

use core::cell::Cell;
use engine::{Node, Thread};
use pmem::Memory;

/// A thread's cached reference. See the head of this file.
pub struct CachedReference {
    cachelet: Cell<u32>,
    number: Cell<u64>,
}

impl CachedReference {
    /// An empty one.
    pub const fn new() -> CachedReference {
        CachedReference { cachelet: Cell::new(0), number: Cell::new(0) }
    }

    /// The cached node.
    #[inline]
    pub fn node(&self) -> Option<Node> {
        let node = Node { cachelet: self.cachelet.get(), number: self.number.get() };
        (node.cachelet != 0).then_some(node)
    }

    /// Takes over a recorded reference, and releases the previous one.
    pub fn replace<M: Memory>(&self, thread: &Thread<'_, M>, node: Node) {
        self.release(thread);
        self.cachelet.set(node.cachelet);
        self.number.set(node.number);
    }

    /// Releases the reference.
    pub fn release<M: Memory>(&self, thread: &Thread<'_, M>) {
        if let Some(before) = self.node() {
            self.discard();
            thread.release_recorded(before);
        }
    }

    /// Releases the reference to a removed directory, whose space is freed only without references.
    pub(crate) fn release_removed<M: Memory>(&self, thread: &Thread<'_, M>) {
        if self.node().is_some_and(|node| thread.is_removed(node)) {
            self.release(thread);
        }
    }

    /// Forgets the reference without releasing it: it belongs to another thread (this is a copy
    /// made by fork, or that thread has ended).
    pub fn discard(&self) {
        self.cachelet.set(0);
    }
}

impl Default for CachedReference {
    fn default() -> Self {
        CachedReference::new()
    }
}
