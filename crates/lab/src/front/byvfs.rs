//! ByVFS: no names in memory. Each path component is looked up in the physical file system, with
//! the directory's lock held shared, since physical file systems rely on that. The nv pointer of an
//! inode on the image leads to the inode in memory.
//!
//! Costs compared with Linux: a walk takes each directory's lock, and `getcwd` reads the parents'
//! names, as the paper says.

use super::icache::Finding;
use super::names::{At, Known, Making, Moved, Names, Peek, Peeked};
use super::{Front, FrontOptions};
use crate::error::Result;
use crate::physical::{Index, PhysicalFs, Shared};

/// No state.
pub struct ByVfsNames;

impl<P: PhysicalFs> Names<P> for ByVfsNames {
    const FINDING: Finding = Finding::Pointer;
    const INDEX: Index = Index::Own;
    const PEEKS: bool = false;

    fn new(_: &FrontOptions) -> Result<ByVfsNames> {
        Ok(ByVfsNames)
    }

    fn adopt_root(&self, inode: u32) -> Result<At> {
        Ok(At { inode, name: 0 })
    }

    fn touch(&self, _: u32) {}

    #[inline]
    fn retain(front: &Front<P, Self>, at: At) {
        front.inodes.retain(at.inode);
    }

    #[inline]
    fn release(front: &Front<P, Self>, at: At) -> Result<()> {
        front.inodes.release(&front.fs, at.inode)
    }

    fn peek_at(_: &Front<P, Self>, at: At) -> Peek {
        Peek { inode: at.inode, name: 0, stamp: 0 }
    }

    fn peek(_: &Front<P, Self>, _: Peek, _: &[u8]) -> Peeked {
        Peeked::Unsure
    }

    fn is_valid(_: &Front<P, Self>, _: Peek) -> bool {
        false
    }

    fn grab(_: &Front<P, Self>, _: Peek) -> Result<Option<At>> {
        Ok(None)
    }

    fn step(front: &Front<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>> {
        let locked = front.inodes.read(directory.inode);
        Ok(Self::find_locked(front, directory, locked.shared()?, name)?.map(|known| known.at))
    }

    fn find_locked(front: &Front<P, Self>, _: At, locked: Shared<'_, P::Info>, name: &[u8]) -> Result<Option<Known>> {
        let Some(found) = front.fs.lookup(locked, name)? else { return Ok(None) };
        let inode = front.inodes.get(&front.fs, found.number, None)?;
        Ok(Some(Known { at: At { inode, name: 0 }, entry: Some(found.entry) }))
    }

    fn parent(front: &Front<P, Self>, directory: At) -> Result<At> {
        parent_by_dots(front, directory)
    }

    fn made(_: &Front<P, Self>, made: Making<'_, P::Info>) -> Result<At> {
        Ok(At { inode: made.inode, name: 0 })
    }

    fn removed(_: &Front<P, Self>, _: At, _: &[u8], _: At, _: Option<u64>) -> Result<()> {
        Ok(())
    }

    fn moved(_: &Front<P, Self>, _: &Moved<'_>) -> Result<()> {
        Ok(())
    }

    fn own_name(_: &Front<P, Self>, _: At) -> Option<Vec<u8>> {
        None
    }

    fn shrink(_: &Front<P, Self>, _: u32, _: bool) -> Result<u32> {
        Ok(0)
    }
}

/// The parent directory, from the image.
pub(super) fn parent_by_dots<P: PhysicalFs, N: Names<P>>(front: &Front<P, N>, directory: At) -> Result<At> {
    let locked = front.inodes.read(directory.inode);
    // The parent cannot be freed while the directory is locked: it contains the directory's name,
    // or the directory is removed and its parent is never asked for.
    let number = front.fs.parent(locked.shared()?)?;
    let inode = front.inodes.get(&front.fs, number, None)?;
    Ok(At { inode, name: 0 })
}
