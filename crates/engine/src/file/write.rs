//! Writing.

use crate::error::Result;
use crate::fs::{Node, Thread};
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// Writes all of `from` at `offset`: atomic, and persistent when it returns. How many bytes (all, or an error and nothing changed).
    pub fn write(&self, _node: Node, _offset: u64, _from: &[u8]) -> Result<usize> {
        todo!()
    }

    /// Writes at the end, atomically with finding it; the offset that the bytes got.
    pub fn append(&self, _node: Node, _from: &[u8]) -> Result<u64> {
        todo!()
    }
}
