//! Stub.
use crate::error::Result;
use crate::fs::Thread;
use pmem::{Flushed, Memory};
pub(crate) fn free_body<M: Memory>(_thread: &Thread<'_, M>, _root: u64) -> Result<()> { todo!() }
pub(crate) fn write_new_body<M: Memory>(_thread: &Thread<'_, M>, _bytes: &[u8]) -> Result<(u64, u64, Flushed)> { todo!() }
