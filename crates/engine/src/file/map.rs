//! Stub.

use crate::error::Result;
use crate::format::{Inode, Property};
use crate::fs::{Fs, Thread};
use pmem::{Flushed, Memory};

/// Frees the data blocks and map nodes of a body at once.
pub(crate) fn free_body<M: Memory>(_thread: &Thread<'_, M>, _root: u64) -> Result<()> {
    Ok(())
}

pub(crate) fn write_new_body<M: Memory>(_thread: &Thread<'_, M>, _bytes: &[u8]) -> Result<(u64, u64, Flushed)> {
    todo!()
}

/// Gives the blocks of a body to `mark`, and clears pointers beyond the end of the file; how many blocks the body has.
pub(crate) fn recover_body<M: Memory>(
    _fs: &Fs<M>,
    _inode: &Inode,
    property: &Property,
    _mark: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<u64> {
    Ok(property.blocks)
}

/// Gives the blocks of the body that holds the extended attributes to `mark`.
pub(crate) fn recover_xattrs<M: Memory>(
    _fs: &Fs<M>,
    _inode: &Inode,
    _mark: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    Ok(())
}
