//! A file to which a thread keeps a reference beyond its calls, so that calls which use it need not count themselves.
//!
//! Invariants
//! - The reference is noted ([`Thread::record_reference`]) for as long as it is kept: if the thread dies, whoever puts its work in order gives it back.
//! - Only the thread that keeps it changes what is kept, and not while a call uses it without a reference of its own.
//! - All zero is a valid value: nothing is kept.

use core::cell::Cell;
use engine::{Node, Thread};
use pmem::Memory;

/// What a thread keeps. See the head of this file.
pub struct CachedReference {
    cachelet: Cell<u32>,
    number: Cell<u64>,
}

impl CachedReference {
    /// Nothing yet.
    pub const fn new() -> CachedReference {
        CachedReference { cachelet: Cell::new(0), number: Cell::new(0) }
    }

    /// What is kept.
    #[inline]
    pub fn node(&self) -> Option<Node> {
        let node = Node { cachelet: self.cachelet.get(), number: self.number.get() };
        (node.cachelet != 0).then_some(node)
    }

    /// Takes charge of a reference that is noted, and gives the former one back.
    pub fn replace<M: Memory>(&self, thread: &Thread<'_, M>, node: Node) {
        self.release(thread);
        self.cachelet.set(node.cachelet);
        self.number.set(node.number);
    }

    /// Gives the reference back.
    pub fn release<M: Memory>(&self, thread: &Thread<'_, M>) {
        if let Some(before) = self.node() {
            self.discard();
            thread.release_recorded(before);
        }
    }

    /// Gives the reference to a directory back that has been removed: it takes room for as long as somebody has one.
    pub(crate) fn release_removed<M: Memory>(&self, thread: &Thread<'_, M>) {
        if self.node().is_some_and(|node| thread.is_removed(node)) {
            self.release(thread);
        }
    }

    /// It is another thread's: this is a copy that a fork made, or that thread has gone.
    pub fn discard(&self) {
        self.cachelet.set(0);
    }
}

impl Default for CachedReference {
    fn default() -> Self {
        CachedReference::new()
    }
}
