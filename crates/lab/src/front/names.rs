//! How a front finds names: what tells the three fronts apart.

use super::icache::Finding;
use super::{Front, FrontOptions};
use crate::error::Result;
use crate::multicore::places::Place;
use crate::physical::{Index, PhysicalFs, Shared};

/// A file that somebody holds: its slot in the inode cache, and where the front has names in memory, the name by which it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    pub(super) inode: u32,
    pub(super) name: u32,
}

/// A file that nobody holds: it may be gone, which the stamp tells.
#[derive(Debug, Clone, Copy)]
pub struct Peek {
    pub(super) inode: u32,
    pub(super) name: u32,
    pub(super) stamp: u32,
}

/// What a look without locks found.
pub enum Peeked {
    /// A file.
    Found(Peek),
    /// The name is known not to exist.
    Absent,
    /// Ask with locks.
    Unsure,
}

/// A name that was found under its directory's lock.
pub struct Known {
    /// The file, with a reference.
    pub(super) at: At,
    /// Where its entry lies, if the front knows.
    pub(super) entry: Option<u64>,
}

/// A name that was made on the image, for the caches.
pub struct Making<'a, I> {
    pub(super) directory: At,
    /// Held exclusively.
    pub(super) locked: Shared<'a, I>,
    pub(super) name: &'a [u8],
    /// Slot of the file that the name leads to, whose reference is taken over.
    pub(super) inode: u32,
    pub(super) entry: u64,
    /// It is a new directory, hence without names.
    pub(super) fresh: bool,
}

/// A rename that has happened on the image, for the caches.
pub struct Moved<'a> {
    pub(super) from: At,
    pub(super) from_name: &'a [u8],
    pub(super) to: At,
    pub(super) to_name: &'a [u8],
    /// What moved.
    pub(super) file: At,
    /// What was replaced, or swapped.
    pub(super) other: Option<At>,
    pub(super) exchange: bool,
    /// Where the entries of the old and the new name were.
    pub(super) entries: [Option<u64>; 2],
    pub(super) renamed: crate::physical::Renamed,
}

/// A way to find names.
///
/// References: whatever returns an [`At`] returns it with a reference, which `release` gives back; `At`s that are passed in stay the caller's.
pub trait Names<P: PhysicalFs>: Send + Sync + Sized + 'static {
    /// How inodes are found in memory.
    const FINDING: Finding;
    /// Who has the index of names.
    const INDEX: Index;
    /// Whether looking without locks is worth trying.
    const PEEKS: bool;

    /// Empty.
    fn new(options: &FrontOptions) -> Result<Self>;
    /// Takes over the reference to the root's slot.
    fn adopt_root(&self, inode: u32) -> Result<At>;
    /// See [`Front::touch`].
    fn touch(&self, names: u32);

    /// See [`PhysicalFs::places`].
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }

    /// One more reference.
    fn retain(front: &Front<P, Self>, at: At);
    /// One less.
    fn release(front: &Front<P, Self>, at: At) -> Result<()>;

    /// Begins a walk without references.
    fn peek_at(front: &Front<P, Self>, at: At) -> Peek;
    /// Goes one name on. What comes is of a moment at which `from` was valid.
    fn peek(front: &Front<P, Self>, from: Peek, name: &[u8]) -> Peeked;
    /// Whether what was read of a file that was peeked at was of that file.
    fn is_valid(front: &Front<P, Self>, peek: Peek) -> bool;
    /// A reference to what was peeked at, if it is still there.
    fn grab(front: &Front<P, Self>, peek: Peek) -> Result<Option<At>>;

    /// The file of a name, taking the directory's lock as needed. The directory is one.
    fn step(front: &Front<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>>;
    /// The same with the directory's lock held exclusively.
    fn find_locked(
        front: &Front<P, Self>,
        directory: At,
        locked: Shared<'_, P::Info>,
        name: &[u8],
    ) -> Result<Option<Known>>;
    /// The directory that a directory lies in.
    fn parent(front: &Front<P, Self>, directory: At) -> Result<At>;

    /// A name was made.
    fn made(front: &Front<P, Self>, made: Making<'_, P::Info>) -> Result<At>;
    /// A name was removed; its entry was there.
    fn removed(front: &Front<P, Self>, directory: At, name: &[u8], file: At, entry: Option<u64>) -> Result<()>;
    /// A rename has happened.
    fn moved(front: &Front<P, Self>, moved: &Moved<'_>) -> Result<()>;

    /// The name of a directory in its parent, from memory. None: it has to be searched.
    fn own_name(front: &Front<P, Self>, directory: At) -> Option<Vec<u8>>;

    /// Forgets up to so many names that nobody uses.
    fn shrink(front: &Front<P, Self>, count: u32, everything: bool) -> Result<u32>;
}

/// A hash of a name. Two parents never have the same hash for one name: whoever finds the hash and the name equal has found the parent, too.
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
    // Bijections from here on.
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(B);
    mixed ^ (mixed >> 29)
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    wide as u64 ^ (wide >> 64) as u64
}
