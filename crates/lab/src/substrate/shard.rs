//! Which list of free blocks, which journal a thread uses.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A number of this thread's own, from zero, below `shards`: threads get them in turn, as processors would be numbered.
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
