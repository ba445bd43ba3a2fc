//! Chooses a thread's list of free blocks and its journal.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Gives this thread a number that does not depend on the threads before it.
pub fn pin_shard() {
    MINE.set(0);
}

/// This thread's number, below `shards`. Threads are numbered in order of first use, like
/// processors.
#[inline]
pub fn shard(shards: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut mine = MINE.get();
    if mine == usize::MAX {
        mine = NEXT.fetch_add(1, Relaxed);
        MINE.set(mine);
    }
    mine % shards.max(1)
}
