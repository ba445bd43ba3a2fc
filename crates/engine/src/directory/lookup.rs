//! Lookup (paper III.D, III.E): the mindex, then the cachelet, without a lock.

use super::check_name;
use crate::attributes::{Attributes, Protection};
use crate::dram::{
    Cachelet, DirectoryState, FLAG_DEAD, FLAG_DELETED, FLAG_EVICTED, FLAG_HELD, FLAG_RENAMING, References,
};
use crate::error::{Error, Result};
use crate::format::NAME_BYTES_MAX;
use crate::fs::{Fs, Node, Thread};
use crate::grace::Pin;
use crate::mindex::{NameHash, Near};
use crate::patience::Patience;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use pmem::Memory;

/// A thread on its way along a path: nothing that it has seen is used for something else until this ends. So no file on the way needs a reference.
///
/// Meanwhile the thread must not begin anything that changes names, or waits.
pub struct Visit<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
    _pin: Pin<'t, 'f, M>,
}

/// A file that a visit has come to. It may have lost its name since.
#[derive(Clone, Copy)]
pub struct Seen<'f> {
    cachelet: &'f Cachelet,
    node: Node,
}

/// A name in a directory, whether it is there or not: for who has several questions about it. Made by [`Thread::place_of`]; the directory must stay
/// referenced meanwhile.
#[derive(Clone, Copy)]
pub struct NamePlace<'n> {
    pub(super) directory: Node,
    pub(super) name: &'n [u8],
    /// What the two hash to.
    pub(super) hash: NameHash,
}

impl<'n> NamePlace<'n> {
    /// The directory.
    #[inline]
    pub fn directory(&self) -> Node {
        self.directory
    }

    /// The name, which may be none that a file can have.
    #[inline]
    pub fn name(&self) -> &'n [u8] {
        self.name
    }
}

/// What a directory on a way was like. While it is like that, it has the name that it had, and who may search it has not changed. Of use for as long as the
/// image is inside.
///
/// A rename marks the directory, then counts the move, and takes the mark away when it has taken effect; a change of permissions changes the version, and so
/// does another life of the cachelet. So a directory that has no mark, and after that the version and moves of before, had its name when the mark was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footing {
    cachelet: u32,
    version: u32,
    moves: u64,
}

impl Footing {
    /// One that never stands: no cachelet that is in use has version zero. All zero.
    pub const NONE: Footing = Footing { cachelet: 0, version: 0, moves: 0 };

    /// Whether it is on this directory, or one that had its cachelet.
    #[inline]
    pub fn is_on(&self, directory: Node) -> bool {
        self.cachelet == directory.cachelet
    }

    /// As a directory is now, whose cachelet has that index; none while its name goes, or its permissions change.
    #[inline]
    fn of(directory: &Cachelet, index: u32) -> Option<Footing> {
        let leaving = References::flag(FLAG_RENAMING | FLAG_DELETED | FLAG_DEAD | FLAG_EVICTED);
        if directory.references.load(Acquire) & leaving != 0 {
            return None;
        }
        let version = directory.version.load(Acquire);
        (version & 1 == 0).then(|| Footing { cachelet: index, version, moves: directory.moves() })
    }
}

impl<'t, 'f, M: Memory> Visit<'t, 'f, M> {
    /// How a directory stands now. What is true of it and its name afterwards is true for as long as it stands so.
    #[inline]
    pub fn footing(&self, directory: Seen<'f>) -> Option<Footing> {
        Footing::of(directory.cachelet, directory.node.cachelet)
    }

    /// The last directory of a way, if all of them stand as they did.
    #[inline]
    pub fn stand_at(&self, way: &[Footing]) -> Option<Seen<'f>> {
        let mut last = None;
        for footing in way {
            let cachelet = self.thread.fs.dram.cachelet(footing.cachelet).ok()?;
            if Footing::of(cachelet, footing.cachelet)? != *footing {
                return None;
            }
            last = Some((cachelet, footing.cachelet));
        }
        // Whether it is removed its marks tell; the line of its counts is written by all who make names in it.
        let (cachelet, index) = last?;
        Some(Seen { cachelet, node: Node { cachelet: index, number: cachelet.number.load(Relaxed) } })
    }

    /// A file that the caller has a reference to.
    #[inline]
    pub fn begin_at(&self, node: Node) -> Result<Seen<'f>> {
        Ok(Seen { cachelet: self.thread.cachelet(node)?, node })
    }

    /// The file of a name; none if that cannot be told on the way: what is no directory is none, and the names of one may have to be read first.
    #[inline]
    pub fn find(&self, directory: Seen<'f>, name: &[u8]) -> Result<Option<Seen<'f>>> {
        self.find_asking(directory, name, |_| {})
    }

    /// The same; `ask` is told the index of a cachelet that the name probably leads to while that is on its way from memory, so that what the layer above keeps
    /// of the file can come beside it.
    #[inline]
    pub fn find_asking(&self, directory: Seen<'f>, name: &[u8], ask: impl Fn(u32)) -> Result<Option<Seen<'f>>> {
        let Seen { cachelet, node } = directory;
        if DirectoryState::of(cachelet) != DirectoryState::Indexed || name.len() > NAME_BYTES_MAX {
            return Ok(None);
        }
        cachelet.note_used();
        let hash = self.thread.fs.hash_name(node.number, name);
        match self.thread.find_cachelet(node.number, name, hash, ask) {
            Ok((index, cachelet, number)) => Ok(Some(Seen { cachelet, node: Node { cachelet: index, number } })),
            // There is no room for its cachelet, or another one has it in hand: nobody can wait for others on the way.
            Err(Error::NoMemory | Error::Busy) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What decides who may use a file.
    #[inline]
    pub fn protection(&self, file: Seen<'f>) -> Result<Protection> {
        self.thread.protection_of(file.cachelet)
    }

    /// The attributes of a file.
    #[inline]
    pub fn stat(&self, file: Seen<'f>) -> Result<Attributes> {
        self.thread.attributes(file.cachelet)
    }

    /// A reference to a file, unless it is gone already.
    #[inline]
    pub fn take(&self, file: Seen<'f>) -> Option<Node> {
        self.thread.reference(file.cachelet).then_some(file.node)
    }

    /// Marks a file as held by the tables of the layer above, as [`Thread::set_held`] does, but without a reference; false if the file is gone already.
    #[inline]
    pub fn hold(&self, file: Node) -> Result<bool> {
        let cachelet = self.thread.cachelet(file)?;
        let held = |word: u64| match References::from_word(word).flags & FLAG_DEAD {
            0 => Some(word | References::flag(FLAG_HELD)),
            _ => None,
        };
        Ok(cachelet.references.fetch_update(AcqRel, Acquire, held).is_ok())
    }
}

impl Seen<'_> {
    /// Its number and cachelet.
    #[inline]
    pub fn node(&self) -> Node {
        self.node
    }
}

impl<M: Memory> Fs<M> {
    /// Asks for what [`Visit::stat`] and changes of a file need of its cachelet, beyond what a lookup brings. For who is told the cachelet while a name is
    /// looked for, see [`Visit::find_asking`].
    #[inline]
    pub fn ask_for_attributes(&self, cachelet: u32) {
        self.dram.prefetch_cachelet_rest(cachelet);
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Sets out on a path.
    #[inline]
    pub fn visit(&self) -> Visit<'_, 'f, M> {
        Visit { thread: self, _pin: self.pin() }
    }

    /// A name in a directory, whether it is there or not.
    #[inline]
    pub fn place_of<'n>(&self, directory: Node, name: &'n [u8]) -> NamePlace<'n> {
        NamePlace { directory, name, hash: self.fs.hash_name(directory.number, name) }
    }

    /// Asks for the line that decides about a name which is soon to be made, removed or replaced: for who has something else to do before.
    #[inline]
    pub fn ask_for_name(&self, place: &NamePlace<'_>) {
        self.fs.prefetch_bucket_to_change(place.hash);
    }

    /// Whether a name seems not to be in a directory: a hint, so it costs no pin; no, where it cannot be told at once. Whoever makes the name
    /// ([`Thread::create_at`]) finds out. Says nothing of who may know it.
    #[inline]
    pub fn seems_absent(&self, place: &NamePlace<'_>) -> bool {
        let Ok(directory) = self.cachelet(place.directory) else { return false };
        DirectoryState::of(directory) == DirectoryState::Indexed
            // The way through a tree is not for who is not pinned.
            && self.fs.tree().is_none()
            && self.fs.is_absent(place.hash)
    }

    /// The file of a name, with a reference.
    pub fn lookup(&self, directory: Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket(hash);
        self.retry_when_held_up(|| {
            let (_pin, _) = self.pin_indexed(directory)?;
            let mut patience = Patience::new();
            loop {
                let (index, cachelet, number) = self.find_cachelet(directory.number, name, hash, |_| {})?;
                if self.reference(cachelet) {
                    return Ok(Node { cachelet: index, number });
                }
                patience.lose_inside()?;
            }
        })
    }

    /// Attributes by name, without taking a reference: what stat needs.
    pub fn stat_name(&self, directory: Node, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket(hash);
        self.retry_when_held_up(|| {
            let (_pin, _) = self.pin_indexed(directory)?;
            let ask = |cachelet| self.fs.ask_for_attributes(cachelet);
            let (_, cachelet, _) = self.find_cachelet(directory.number, name, hash, ask)?;
            self.attributes(cachelet)
        })
    }

    /// Runs an operation again that came to a name in other hands, after a while, and after an eviction if it found the DRAM region full. Not pinned:
    /// what the dead left in the way may go only with all names of the directory, and whoever takes those out waits until all have left.
    fn retry_when_held_up<R>(&self, operation: impl Fn() -> Result<R>) -> Result<R> {
        let mut patience = Patience::worn();
        loop {
            match self.retry_when_crowded(&operation) {
                Err(Error::Busy) => patience.lose(self.fs)?,
                result => return result,
            }
        }
    }

    /// The cachelet of a name. Pinned; no reference is taken. `Busy` if the file is being moved or buried, and that takes long.
    #[inline(always)]
    pub(super) fn find_cachelet(
        &self,
        parent: u64,
        name: &[u8],
        hash: NameHash,
        ask: impl Fn(u32),
    ) -> Result<(u32, &'f Cachelet, u64)> {
        match self.fs.find_near(parent, name, hash, ask) {
            Near::Found(index, cachelet, number) => Ok((index, cachelet, number)),
            Near::Absent => Err(Error::NotFound),
            Near::Unclear => self.find_cachelet_anywhere(parent, name, hash),
        }
    }

    #[inline(never)]
    fn find_cachelet_anywhere(&self, parent: u64, name: &[u8], hash: NameHash) -> Result<(u32, &'f Cachelet, u64)> {
        let mut patience = Patience::new();
        loop {
            let Some(hit) = self.fs.find(parent, name, hash)? else { return Err(Error::NotFound) };
            let number = hit.dentry.number();
            let index = match self.cachelet_of_hit(&hit, hash) {
                Ok(index) => index,
                // Removed since the entry was read? Then the name is gone too, and the next look says so.
                Err(error) => {
                    if self.still_there(parent, name, hash, hit.dentry_offset)? {
                        return Err(error);
                    }
                    continue;
                }
            };
            let cachelet = self.fs.dram.cachelet(index)?;
            // Whoever moves or buries it is at its name.
            let busy = References::flag(FLAG_RENAMING) | References::flag(FLAG_DEAD);
            if cachelet.references.load(Acquire) & busy != 0 {
                patience.lose_inside()?;
                continue;
            }
            return Ok((index, cachelet, number));
        }
    }

    fn still_there(&self, parent: u64, name: &[u8], hash: NameHash, dentry_offset: u64) -> Result<bool> {
        Ok(self.fs.find(parent, name, hash)?.is_some_and(|hit| hit.dentry_offset == dentry_offset))
    }
}
