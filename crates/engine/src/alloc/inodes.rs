//! Inode numbers.

use crate::error::Result;
use crate::fs::Thread;
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// A free inode number. Its inode's birth word is durably zero, and so are its inline area and access time.
    pub(crate) fn allocate_inode(&self) -> Result<u64> {
        todo!()
    }

    /// Gives a number back at once; the caller made the inode durably free.
    pub(crate) fn free_inode(&self, _number: u64) -> Result<()> {
        todo!()
    }
}
