//! Truncation and fallocate.

use super::AllocateMode;
use crate::error::Result;
use crate::fs::{Node, Thread};
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// Sets the length. What is cut off is gone, what is added reads as zeros.
    pub fn truncate(&self, _node: Node, _size_bytes: u64) -> Result<()> {
        todo!()
    }

    /// fallocate(2).
    pub fn allocate(&self, _node: Node, _mode: AllocateMode, _offset: u64, _length: u64) -> Result<()> {
        todo!()
    }
}
