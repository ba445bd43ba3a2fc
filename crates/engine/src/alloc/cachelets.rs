//! Cachelets.

use crate::error::Result;
use crate::fs::Thread;
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// The index of a free cachelet, its fields undefined but `number`, which is zero. Evicts directories when there is none; `NoMemory` if that does
    /// not help.
    pub(crate) fn allocate_cachelet(&self) -> Result<u32> {
        todo!()
    }

    /// Gives a cachelet back at once.
    pub(crate) fn free_cachelet(&self, _index: u32) -> Result<()> {
        todo!()
    }
}
