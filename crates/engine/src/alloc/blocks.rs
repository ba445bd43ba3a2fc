//! Blocks.

use crate::error::Result;
use crate::fs::Thread;
use pmem::Memory;

/// Blocks in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRun {
    /// Number of the first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl<M: Memory> Thread<'_, M> {
    /// Between one and `wanted` blocks in a row, as many as can be had in one piece nearby. What they hold is undefined.
    pub(crate) fn allocate_blocks(&self, _wanted: u64) -> Result<BlockRun> {
        todo!()
    }

    /// Exactly `count` blocks in a row, or `NoSpace`.
    pub(crate) fn allocate_contiguous(&self, _count: u64) -> Result<BlockRun> {
        todo!()
    }

    /// Gives blocks back at once: nobody can be looking at them. (`retire` is for the others.)
    pub(crate) fn free_blocks(&self, _run: BlockRun) -> Result<()> {
        todo!()
    }
}
