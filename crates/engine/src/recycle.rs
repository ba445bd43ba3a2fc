//! Asynchronous recycling: what was removed waits in its shard's queue for a grace period, then becomes free.

use crate::dram::RetiredKind;
use crate::error::Result;
use crate::fs::Thread;
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// Queues something for recycling. Recycles some of the queue when it is long; waits for others to leave when it is full.
    pub(crate) fn retire(&self, _kind: RetiredKind, _a: u64, _b: u64) {
        todo!()
    }

    /// Stub.
    pub(crate) fn make_room(&self) -> Result<()> {
        todo!()
    }

    /// Stub.
    pub(crate) fn recycle_some(&self) {
        todo!()
    }

    /// Stub.
    pub(crate) fn reclaim(&self) -> Result<bool> {
        todo!()
    }

    /// Recycles what can be, at most `limit` things; how many. Must not be called pinned.
    pub fn recycle(&self, _limit: usize) -> Result<usize> {
        todo!()
    }
}
