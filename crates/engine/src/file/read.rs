//! Reading.

use super::{Extent, SeekWhat};
use crate::error::Result;
use crate::fs::{Node, Thread};
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// Reads into `into`; how many bytes there were. A read sees each write wholly or not at all.
    pub fn read(&self, _node: Node, _offset: u64, _into: &mut [u8]) -> Result<usize> {
        todo!()
    }

    /// The piece of the file at `offset` (which must be below its length).
    pub fn extent(&self, _node: Node, _offset: u64) -> Result<Extent> {
        todo!()
    }

    /// The next data or hole at or after `offset`; `NoSuchExtent` at or beyond the end.
    pub fn seek(&self, _node: Node, _offset: u64, _what: SeekWhat) -> Result<u64> {
        todo!()
    }
}
