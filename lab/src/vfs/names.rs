//! How a VFS layer finds names: the difference between the three layers.

use super::icache::Finding;
use super::{Vfs, VfsOptions};
use crate::error::Result;
use crate::multicore::named_memory::NamedMemory;
use crate::physical::{Index, PhysicalFs, Shared};

/// A referenced file: its slot in the inode cache and, if names are cached, the name by which it
/// was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    pub(super) inode: u32,
    pub(super) name: u32,
}

/// An unreferenced file. It may be gone; the stamp reveals that.
#[derive(Debug, Clone, Copy)]
pub struct Peek {
    pub(super) inode: u32,
    pub(super) name: u32,
    pub(super) stamp: u32,
}

/// The result of a lookup without locks.
pub enum Peeked {
    /// A file.
    Found(Peek),
    /// The name certainly does not exist.
    Absent,
    /// Repeat the lookup with locks.
    Unsure,
}

/// A name found under its directory's lock.
pub struct Known {
    /// The file, with a reference.
    pub(super) at: At,
    /// Offset of its entry, if the VFS layer knows it.
    pub(super) entry: Option<u64>,
}

/// A name created on the image, to be cached.
pub struct MadeName<'a, I> {
    pub(super) directory: At,
    /// The directory, locked exclusively.
    pub(super) locked: Shared<'a, I>,
    pub(super) name: &'a [u8],
    /// Slot of the named file. Its reference is taken over.
    pub(super) inode: u32,
    pub(super) entry: u64,
    /// Whether it is a new directory, hence without names.
    pub(super) fresh: bool,
}

/// A rename completed on the image, to be cached.
pub struct Moved<'a> {
    pub(super) from: At,
    pub(super) from_name: &'a [u8],
    pub(super) to: At,
    pub(super) to_name: &'a [u8],
    /// The moved file.
    pub(super) file: At,
    /// The replaced or swapped file.
    pub(super) other: Option<At>,
    pub(super) exchange: bool,
    /// The previous entries of the old and the new name.
    pub(super) entries: [Option<u64>; 2],
    pub(super) renamed: crate::physical::Renamed,
}

/// A way to find names.
///
/// References: a returned [`At`] has a reference, which `release` returns. An `At` passed in stays
/// the caller's.
pub trait Names<P: PhysicalFs>: Send + Sync + Sized + 'static {
    /// How inodes are found in memory.
    const FINDING: Finding;
    /// Which layer has the index of names.
    const INDEX: Index;
    /// Whether lookups without locks are worth trying.
    const PEEKS: bool;

    /// Creates an empty cache.
    fn new(options: &VfsOptions) -> Result<Self>;
    /// Takes over the reference to the root's slot.
    fn adopt_root(&self, inode: u32) -> Result<At>;
    /// See [`Vfs::touch`].
    fn touch(&self, names: u32);

    /// See [`PhysicalFs::named_memory`].
    fn named_memory(&self) -> Vec<NamedMemory> {
        Vec::new()
    }

    /// Adds a reference.
    fn retain(vfs: &Vfs<P, Self>, at: At);
    /// Returns a reference.
    fn release(vfs: &Vfs<P, Self>, at: At) -> Result<()>;

    /// Begins a walk without references.
    fn peek_at(vfs: &Vfs<P, Self>, at: At) -> Peek;
    /// Looks up one name. The result was true at a time when `from` was valid.
    fn peek(vfs: &Vfs<P, Self>, from: Peek, name: &[u8]) -> Peeked;
    /// Whether the data read so far belonged to the file of `peek`.
    fn is_valid(vfs: &Vfs<P, Self>, peek: Peek) -> bool;
    /// Turns `peek` into a reference, if the file is still there.
    fn grab(vfs: &Vfs<P, Self>, peek: Peek) -> Result<Option<At>>;

    /// The file of a name. Takes the directory's lock as needed. `directory` must be a directory.
    fn step(vfs: &Vfs<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>>;
    /// Like `step`, with the directory's lock held exclusively.
    fn find_locked(
        vfs: &Vfs<P, Self>,
        directory: At,
        locked: Shared<'_, P::Info>,
        name: &[u8],
    ) -> Result<Option<Known>>;
    /// The parent of a directory.
    fn parent(vfs: &Vfs<P, Self>, directory: At) -> Result<At>;

    /// Records a new name.
    fn made(vfs: &Vfs<P, Self>, made: MadeName<'_, P::Info>) -> Result<At>;
    /// Records the removal of a name with its entry.
    fn removed(vfs: &Vfs<P, Self>, directory: At, name: &[u8], file: At, entry: Option<u64>) -> Result<()>;
    /// Records a rename.
    fn moved(vfs: &Vfs<P, Self>, moved: &Moved<'_>) -> Result<()>;

    /// The name of a directory in its parent, if cached; otherwise the parent must be searched.
    fn own_name(vfs: &Vfs<P, Self>, directory: At) -> Option<Vec<u8>>;

    /// Drops up to `count` unused names.
    fn shrink(vfs: &Vfs<P, Self>, count: u32, everything: bool) -> Result<u32>;
}

/// Hashes a name. Two parents never have the same hash for one name, so equal hash and name imply
/// an equal parent.
#[inline]
pub(super) fn hash_name(parent: u64, name: &[u8]) -> u64 {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xd6e8_feb8_6659_fd93;
    let mut state = A.wrapping_add(name.len() as u64);
    let (words, rest) = name.as_chunks::<8>();
    for chunk in words {
        state = fold(state ^ u64::from_le_bytes(*chunk), B);
    }
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    state = fold(state ^ u64::from_le_bytes(last), A);
    let mixed = state.wrapping_add(parent.wrapping_mul(A));
    // From here on, bijections of `parent`.
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(B);
    mixed ^ (mixed >> 29)
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    wide as u64 ^ (wide >> 64) as u64
}
