//! Lookup (paper III.D, III.E): the mindex, then the cachelet, without a lock.
//!
//! Decision: docs/decisions/hot-paths.md, "Lines are requested before the call needs them".

use super::check_name;
use crate::attributes::{Attributes, Protection};
use crate::backoff::Backoff;
use crate::dram::{
    Cachelet, DirectoryState, FLAG_DEAD, FLAG_DELETED, FLAG_EVICTED, FLAG_HELD, FLAG_RENAMING, References,
};
use crate::epoch::Pin;
use crate::error::{Corruption, Error, Result};
use crate::format::{FileKind, NAME_BYTES_MAX};
use crate::fs::{Fs, Node, Thread};
use crate::mindex::{Hit, MainBucketLookup, NameHash, NameKey, Target};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use pmem::Memory;

/// A pinned walk along a path. Until it ends, nothing that the thread has seen is reused, so the
/// files on the way need no references.
///
/// Meanwhile the thread must not start an operation that changes names or waits.
pub struct Visit<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
    _pin: Pin<'t, 'f, M>,
}

/// A file that a visit has reached. It may have lost its name since.
#[derive(Clone, Copy)]
pub struct VisitedFile<'f> {
    cachelet: &'f Cachelet,
    node: Node,
}

/// A name in a directory, whether or not it exists; lets several calls share its hash. Made by
/// [`Thread::name_location`]. The directory must stay referenced meanwhile.
#[derive(Clone, Copy)]
pub struct NameLocation<'n> {
    pub(super) directory: Node,
    pub(super) name: &'n [u8],
    /// Hash of directory and name.
    pub(super) hash: NameHash,
}

impl<'n> NameLocation<'n> {
    /// The directory.
    #[inline]
    pub fn directory(&self) -> Node {
        self.directory
    }

    /// The name. It may be one that no file can have.
    #[inline]
    pub fn name(&self) -> &'n [u8] {
        self.name
    }
}

/// Validation stamp: the state of a directory on a path. While it matches, the directory has the
/// name that it had, and the permission to search it has not changed. Valid only while the image
/// stays attached.
///
/// A rename marks the directory, then counts the move, and clears the mark once it has taken
/// effect. A change of permissions changes the version, as does reuse of the cachelet. So if a
/// directory has no mark, and then has the version and moves of before, it had its name when the
/// mark was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidationStamp {
    cachelet: u32,
    version: u32,
    rename_count: u64,
}

impl ValidationStamp {
    /// A stamp that never matches: no cachelet in use has version zero. All bytes are zero.
    pub const NONE: ValidationStamp = ValidationStamp { cachelet: 0, version: 0, rename_count: 0 };

    /// Whether the stamp is of this directory, or of an earlier one in the same cachelet.
    #[inline]
    pub fn is_for(&self, directory: Node) -> bool {
        self.cachelet == directory.cachelet
    }

    /// The stamp of a directory in its present state; `index` is its cachelet's. `None` while its
    /// name is being removed or moved, or its permissions change.
    #[inline]
    fn of(directory: &Cachelet, index: u32) -> Option<ValidationStamp> {
        let leaving = References::flag(FLAG_RENAMING | FLAG_DELETED | FLAG_DEAD | FLAG_EVICTED);
        if directory.references.load(Acquire) & leaving != 0 {
            return None;
        }
        let version = directory.version.load(Acquire);
        (version & 1 == 0).then(|| ValidationStamp {
            cachelet: index,
            version,
            rename_count: directory.as_directory().rename_count(),
        })
    }
}

impl<'t, 'f, M: Memory> Visit<'t, 'f, M> {
    /// The present stamp of a directory. Facts read about it and its name afterwards hold for as
    /// long as the stamp matches.
    #[inline]
    pub fn validation_stamp(&self, directory: VisitedFile<'f>) -> Option<ValidationStamp> {
        ValidationStamp::of(directory.cachelet, directory.node.cachelet)
    }

    /// The last directory of a path, if the stamps of all its directories still match.
    #[inline]
    pub fn validated_end(&self, way: &[ValidationStamp]) -> Option<VisitedFile<'f>> {
        let mut last = None;
        for stamp in way {
            let cachelet = self.thread.fs.dram.cachelet(stamp.cachelet).ok()?;
            if ValidationStamp::of(cachelet, stamp.cachelet)? != *stamp {
                return None;
            }
            last = Some((cachelet, stamp.cachelet));
        }
        // The marks show whether it is removed; the counts are not read, because every create in it
        // writes their line.
        let (cachelet, index) = last?;
        Some(VisitedFile { cachelet, node: Node { cachelet: index, number: cachelet.number.load(Relaxed) } })
    }

    /// A file that the caller has a reference to.
    #[inline]
    pub fn begin_at(&self, node: Node) -> Result<VisitedFile<'f>> {
        Ok(VisitedFile { cachelet: self.thread.cachelet(node)?, node })
    }

    /// The file of a name. `None` if the walk cannot decide: the parent is not an indexed
    /// directory, the name is too long, or the cachelet is unavailable.
    #[inline]
    pub fn find(&self, directory: VisitedFile<'f>, name: &[u8]) -> Result<Option<VisitedFile<'f>>> {
        self.find_prefetching(directory, name, |_| {})
    }

    /// Like [`Visit::find`]. `prefetch` receives the index of a cachelet that the name probably
    /// leads to while that cachelet is still being loaded from memory. The layer above can then
    /// prefetch its own record of the file at the same time.
    #[inline]
    pub fn find_prefetching(
        &self,
        directory: VisitedFile<'f>,
        name: &[u8],
        prefetch: impl Fn(u32),
    ) -> Result<Option<VisitedFile<'f>>> {
        let VisitedFile { cachelet, node } = directory;
        if DirectoryState::of(cachelet) != DirectoryState::Indexed || name.len() > NAME_BYTES_MAX {
            return Ok(None);
        }
        cachelet.as_directory().mark_used();
        let hash = self.thread.fs.hash_name(node.number, name);
        match self.thread.find_cachelet(node.number, name, hash, prefetch) {
            Ok((index, cachelet, number)) => Ok(Some(VisitedFile { cachelet, node: Node { cachelet: index, number } })),
            // There is no room for its cachelet, or another thread is working on it. A visit cannot
            // wait.
            Err(Error::NoMemory | Error::Busy) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What decides the access to a file: owner and permissions.
    #[inline]
    pub fn protection(&self, file: VisitedFile<'f>) -> Result<Protection> {
        self.thread.fs.protection_of(file.cachelet)
    }

    /// The attributes of a file.
    #[inline]
    pub fn stat(&self, file: VisitedFile<'f>) -> Result<Attributes> {
        self.thread.attributes(file.cachelet)
    }

    /// Takes a reference to a file; `None` if the file is already gone.
    #[inline]
    pub fn take(&self, file: VisitedFile<'f>) -> Option<Node> {
        self.thread.cachelets().reference(file.cachelet).then_some(file.node)
    }

    /// Marks a file as held by the tables of the layer above, as [`Thread::set_held`] does, but
    /// without a reference. Returns false if the file is already gone.
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

impl VisitedFile<'_> {
    /// Its number and cachelet.
    #[inline]
    pub fn node(&self) -> Node {
        self.node
    }
}

impl<M: Memory> Fs<M> {
    /// Prefetches the part of a cachelet that [`Visit::stat`] and changes of a file need beyond
    /// what a lookup loads. For callers that learn the cachelet during a lookup; see
    /// [`Visit::find_prefetching`].
    #[inline]
    pub fn prefetch_attributes(&self, cachelet: u32) {
        self.dram.prefetch_cachelet_rest(cachelet);
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Begins a walk along a path.
    #[inline]
    pub fn visit(&self) -> Visit<'_, 'f, M> {
        Visit { thread: self, _pin: self.pin() }
    }

    /// The place of a name in a directory, whether or not the name exists.
    #[inline]
    pub fn name_location<'n>(&self, directory: Node, name: &'n [u8]) -> NameLocation<'n> {
        NameLocation { directory, name, hash: self.fs.hash_name(directory.number, name) }
    }

    /// Prefetches the line that decides about a name that is soon to be made, removed or replaced.
    /// Pays off when the caller has other work to do first.
    #[inline]
    pub fn prefetch_name(&self, location: &NameLocation<'_>) {
        self.fs.prefetch_bucket_for_write(location.hash);
    }

    /// Whether a name seems to be absent from a directory. Only a hint, so it costs no pin, and
    /// false where the answer is not immediate. [`Thread::create_at`] decides. No permission is
    /// checked.
    #[inline]
    pub fn seems_absent(&self, location: &NameLocation<'_>) -> bool {
        let Ok(directory) = self.cachelet(location.directory) else { return false };
        DirectoryState::of(directory) == DirectoryState::Indexed && self.fs.seems_absent(location.hash)
    }

    /// The file of a name, with a reference.
    pub fn lookup(&self, directory: Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket(hash);
        self.retry_when_busy((directory, name, hash), || {
            let (_pin, _) = self.pin_indexed(directory)?;
            let mut backoff = Backoff::new();
            loop {
                let (index, cachelet, number) = self.find_cachelet(directory.number, name, hash, |_| {})?;
                if self.cachelets().reference(cachelet) {
                    return Ok(Node { cachelet: index, number });
                }
                backoff.pause_pinned()?;
            }
        })
    }

    /// Attributes by name, without taking a reference: what stat needs.
    pub fn stat_name(&self, directory: Node, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket(hash);
        self.retry_when_busy((directory, name, hash), || {
            let (_pin, _) = self.pin_indexed(directory)?;
            let prefetch = |cachelet| self.fs.prefetch_attributes(cachelet);
            let (_, cachelet, _) = self.find_cachelet(directory.number, name, hash, prefetch)?;
            self.attributes(cachelet)
        })
    }

    /// The cachelet that a name leads to. The caller is pinned. Updates the name's entry in the
    /// mindex.
    pub(crate) fn cachelet_of_hit(&self, hit: &Hit<'_>, hash: NameHash) -> Result<u32> {
        let index = self.cachelet_of_target(hit)?;
        if hit.target != Target::Cachelet(index) {
            self.check_kind(hit)?;
            self.names().refine_entry(hash, hit.dentry_offset, index)?;
        }
        Ok(index)
    }

    /// Checks that a name and its inode have one kind. A listing reports it from the name alone,
    /// and programs do not expect that a directory of a listing is a symbolic link. Neither word
    /// changes while the caller is pinned.
    fn check_kind(&self, hit: &Hit<'_>) -> Result<()> {
        let named = hit.dentry.facts().map(|facts| facts.kind);
        let kind = FileKind::from_bits(self.fs.inode(hit.dentry.number())?.kind.load());
        if named.is_some() && named == kind { Ok(()) } else { Err(Corruption::Dentry(hit.dentry_offset).into()) }
    }

    /// [`Thread::cachelet_of_hit`] for a caller that holds the name's bucket.
    pub(crate) fn cachelet_of_target(&self, hit: &Hit<'_>) -> Result<u32> {
        let number = hit.dentry.number();
        match hit.target {
            Target::Cachelet(index) if self.fs.is_cachelet_of(index, number)? => Ok(index),
            _ => self.cachelets().cachelet_of(number),
        }
    }

    /// Retries an operation: with backoff if another operation holds its name, and after an
    /// eviction if the DRAM region was full. Not pinned: what a dead thread left behind may be
    /// removable only by evicting all names of the directory, and eviction waits until all pinned
    /// threads have left.
    fn retry_when_busy<R>(
        &self,
        (directory, name, hash): (Node, &[u8], NameHash),
        operation: impl Fn() -> Result<R>,
    ) -> Result<R> {
        let mut backoff = Backoff::after_spinning();
        loop {
            match self.retry_when_dram_full(&operation) {
                Err(Error::Busy) => self.wait_for_files_of(&mut backoff, &[(directory, name, hash)])?,
                result => return result,
            }
        }
    }

    /// One more wait for the thread that moves or removes the file of one of these names. `Corrupt`
    /// if there is none, and never will be. Not pinned.
    pub(super) fn wait_for_files_of(&self, backoff: &mut Backoff, names: &[(Node, &[u8], NameHash)]) -> Result<()> {
        backoff.pause(self.fs)?;
        if !backoff.is_long() {
            return Ok(());
        }
        names.iter().try_for_each(|&(directory, name, hash)| self.check_name_of_freed(directory, name, hash))
    }

    /// The inode of a damaged image counts fewer names than there are, and was freed with one of
    /// them. For the others, their files look as if they were being removed. The thread that
    /// removes a file holds its name, so under the hold of this thread there is none.
    #[cold]
    fn check_name_of_freed(&self, directory: Node, name: &[u8], hash: NameHash) -> Result<()> {
        let (_pin, _) = self.pin_indexed(directory)?;
        let Some(held) = self.names().hold_existing(&NameKey { parent: directory.number, name, hash })? else {
            return Ok(());
        };
        let Some(hit) = held.found() else { return Ok(()) };
        let index = match self.cachelet_of_target(&hit) {
            Ok(index) => index,
            Err(Error::Busy) => return Ok(()),
            Err(other) => return Err(other),
        };
        let state = References::from_word(self.fs.dram.cachelet(index)?.references.load(Acquire));
        match state.flags & (FLAG_DEAD | FLAG_EVICTED) {
            FLAG_DEAD => Err(Corruption::Dentry(hit.dentry_offset).into()),
            _ => Ok(()),
        }
    }

    /// The cachelet of a name. Pinned; takes no reference. `Busy` if the file is being moved or
    /// reclaimed and that takes long.
    #[inline(always)]
    pub(super) fn find_cachelet(
        &self,
        parent: u64,
        name: &[u8],
        hash: NameHash,
        prefetch: impl Fn(u32),
    ) -> Result<(u32, &'f Cachelet, u64)> {
        match self.fs.find_in_main_bucket(parent, name, hash, prefetch) {
            MainBucketLookup::Found(index, cachelet, number) => Ok((index, cachelet, number)),
            MainBucketLookup::Absent => Err(Error::NotFound),
            MainBucketLookup::Unclear => self.find_cachelet_anywhere(parent, name, hash),
        }
    }

    #[inline(never)]
    fn find_cachelet_anywhere(&self, parent: u64, name: &[u8], hash: NameHash) -> Result<(u32, &'f Cachelet, u64)> {
        let mut backoff = Backoff::new();
        loop {
            let Some(hit) = self.fs.find(parent, name, hash)? else { return Err(Error::NotFound) };
            let number = hit.dentry.number();
            let index = match self.cachelet_of_hit(&hit, hash) {
                Ok(index) => index,
                // If the name was removed after its entry was read, the next lookup does not find
                // it.
                Err(error) => {
                    if self.is_still_named(parent, name, hash, hit.dentry_offset)? {
                        return Err(error);
                    }
                    continue;
                }
            };
            let cachelet = self.fs.dram.cachelet(index)?;
            // The mover or reclaimer of the file is working on its name.
            let busy = References::flag(FLAG_RENAMING) | References::flag(FLAG_DEAD);
            if cachelet.references.load(Acquire) & busy != 0 {
                backoff.pause_pinned()?;
                continue;
            }
            if self.fs.is_unreadable(cachelet.references.load(Acquire)) {
                return Err(Error::NotFound);
            }
            return Ok((index, cachelet, number));
        }
    }

    fn is_still_named(&self, parent: u64, name: &[u8], hash: NameHash, dentry_offset: u64) -> Result<bool> {
        Ok(self.fs.find(parent, name, hash)?.is_some_and(|hit| hit.dentry_offset == dentry_offset))
    }
}
