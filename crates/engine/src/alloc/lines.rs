//! Lines of slabs, for dentries.

use crate::error::Result;
use crate::fs::Thread;
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// The offset of `lines` (1 to 5) free cache lines in a row within one block. Their `seal` words never verify.
    pub(crate) fn allocate_lines(&self, _lines: u64) -> Result<u64> {
        todo!()
    }

    /// Gives lines back at once; the caller made the dentry's seal durably zero.
    pub(crate) fn free_lines(&self, _offset: u64, _lines: u64) -> Result<()> {
        todo!()
    }
}
