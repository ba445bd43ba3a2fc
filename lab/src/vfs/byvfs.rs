//! ByVFS: no names in memory. Each path component is looked up in the physical file system, with
//! the directory's lock held shared, since physical file systems rely on that. The nv pointer of an
//! inode on the image leads to the inode in memory.
//!
//! Costs compared with Linux: a walk takes each directory's lock, and `getcwd` reads the parents'
//! names, as the paper says.

use super::icache::Finding;
use super::names::{At, Known, MadeName, Moved, Names, Peek, Peeked};
use super::{Vfs, VfsOptions};
use crate::error::Result;
use crate::physical::{Index, PhysicalFs, Shared};

/// No state.
pub struct ByVfsNames;

impl<P: PhysicalFs> Names<P> for ByVfsNames {
    const FINDING: Finding = Finding::Pointer;
    const INDEX: Index = Index::Own;
    const PEEKS: bool = false;

    fn new(_: &VfsOptions) -> Result<ByVfsNames> {
        Ok(ByVfsNames)
    }

    fn adopt_root(&self, inode: u32) -> Result<At> {
        Ok(At { inode, name: 0 })
    }

    fn touch(&self, _: u32) {}

    #[inline]
    fn retain(vfs: &Vfs<P, Self>, at: At) {
        vfs.inodes.retain(at.inode);
    }

    #[inline]
    fn release(vfs: &Vfs<P, Self>, at: At) -> Result<()> {
        vfs.inodes.release(&vfs.fs, at.inode)
    }

    fn peek_at(_: &Vfs<P, Self>, at: At) -> Peek {
        Peek { inode: at.inode, name: 0, stamp: 0 }
    }

    fn peek(_: &Vfs<P, Self>, _: Peek, _: &[u8]) -> Peeked {
        Peeked::Unsure
    }

    fn is_valid(_: &Vfs<P, Self>, _: Peek) -> bool {
        false
    }

    fn grab(_: &Vfs<P, Self>, _: Peek) -> Result<Option<At>> {
        Ok(None)
    }

    fn step(vfs: &Vfs<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>> {
        let locked = vfs.inodes.read(directory.inode);
        Ok(Self::find_locked(vfs, directory, locked.shared()?, name)?.map(|known| known.at))
    }

    fn find_locked(vfs: &Vfs<P, Self>, _: At, locked: Shared<'_, P::Info>, name: &[u8]) -> Result<Option<Known>> {
        let Some(found) = vfs.fs.lookup(locked, name)? else { return Ok(None) };
        let inode = vfs.inodes.get(&vfs.fs, found.number, None)?;
        Ok(Some(Known { at: At { inode, name: 0 }, entry: Some(found.entry) }))
    }

    fn parent(vfs: &Vfs<P, Self>, directory: At) -> Result<At> {
        parent_by_dots(vfs, directory)
    }

    fn made(_: &Vfs<P, Self>, made: MadeName<'_, P::Info>) -> Result<At> {
        Ok(At { inode: made.inode, name: 0 })
    }

    fn removed(_: &Vfs<P, Self>, _: At, _: &[u8], _: At, _: Option<u64>) -> Result<()> {
        Ok(())
    }

    fn moved(_: &Vfs<P, Self>, _: &Moved<'_>) -> Result<()> {
        Ok(())
    }

    fn own_name(_: &Vfs<P, Self>, _: At) -> Option<Vec<u8>> {
        None
    }

    fn shrink(_: &Vfs<P, Self>, _: u32, _: bool) -> Result<u32> {
        Ok(0)
    }
}

/// The parent directory, from the image.
pub(super) fn parent_by_dots<P: PhysicalFs, N: Names<P>>(vfs: &Vfs<P, N>, directory: At) -> Result<At> {
    let locked = vfs.inodes.read(directory.inode);
    // The parent cannot be freed while the directory is locked: it contains the directory's name,
    // or the directory is removed and its parent is never asked for.
    let number = vfs.fs.parent(locked.shared()?)?;
    let inode = vfs.inodes.get(&vfs.fs, number, None)?;
    Ok(At { inode, name: 0 })
}
