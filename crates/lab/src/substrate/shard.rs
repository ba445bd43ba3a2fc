//! Chooses a thread's list of free blocks and its journal.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// This thread's number, below `shards`. Threads are numbered in order of first use, like
/// processors.
#[inline]
pub fn shard(shards: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let mut mine = MINE.get();
    if mine == usize::MAX {
        mine = NEXT.fetch_add(1, Relaxed);
        MINE.set(mine);
    }
    mine % shards.max(1)
}
