//! The global index of the cachelet layer: from (directory, name) to the entry on the image and the
//! file in memory, for the whole file system. The physical file system is mounted without its own
//! index, so nothing is indexed twice.
//!
//! The engine's index of the same kind (`engine::mindex`) cannot serve here: it compares names in
//! the engine's dentries, and its buckets belong to the engine's thread slots and DRAM region. This
//! index holds only offsets and asks the physical file system whether an entry has a name. It is a
//! chained hash as in the paper ([`chains`](super::chains)). Like the engine's, it is read without
//! locks, under a version per bucket.
//!
//! The file in memory (the paper's cachelet) is in the inode cache: 128 bytes, with attributes that
//! are read without a lock. With the inode quick path an index entry holds the cache slot and the
//! inode's offset. Without it, an entry holds the inode's number, and the inode is searched by
//! number, as the paper measures ("nqp").
//!
//! Invariants:
//!
//! - A bucket's version is odd while its chain changes. Bit 0 is the bucket's lock.
//! - A directory with the flag `INDEXED` has all its names in the index; any other has none.
//! - The flag changes only under the directory's exclusive lock. Only a directory without the flag
//!   leaves memory, except for a removed one, which has no names.

use super::arena::Arena;
use super::byvfs::parent_by_dots;
use super::chains::{Bucket, Chains};
use super::icache::{Finding, INDEXED};
use super::names::{At, Known, Making, Moved, Names, Peek, Peeked, hash_name};
use super::{Front, FrontOptions};
use crate::error::{Error, Result};
use crate::physical::{Index, PhysicalFs, Shared};
use pmem::Layout;
use posix::Errno;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Chains are shorter. A reader misled by reused slots stops here.
const CHAIN_MAX: usize = 1 << 12;
/// Attempts to read a changing bucket before taking locks.
const ATTEMPTS_MAX: usize = 16;

#[repr(C, align(64))]
struct Entry {
    hash: AtomicU64,
    place: AtomicU64,
    number: AtomicU64,
    /// Offset of the inode; zero without the quick path.
    inode: AtomicU64,
    /// Slot in the inode cache and its generation; zero if unknown.
    cached: AtomicU64,
    next: AtomicU32,
    reserved: [AtomicU32; 5],
}
const _: () = assert!(size_of::<Entry>() == 64);
// SAFETY: `repr(C)`; atomics of 4 and 8 bytes fill 64 bytes without padding (asserted); every bit
// pattern is valid.
unsafe impl Layout for Entry {}

/// The index.
pub struct Mindex {
    entries: Arena<Entry>,
    chains: Chains,
    quick: bool,
}

/// The content of an entry.
#[derive(Clone, Copy)]
struct Hit {
    entry: u32,
    place: u64,
    number: u64,
    inode: u64,
    cached: u64,
}

impl Mindex {
    /// Searches a chain for an entry with the hash that satisfies `is_it`.
    #[inline]
    fn search(&self, bucket: &Bucket, hash: u64, is_it: impl Fn(&Entry) -> bool) -> Option<Hit> {
        let mut index = bucket.first.load(Acquire);
        for _ in 0..CHAIN_MAX {
            if index == 0 {
                break;
            }
            let entry = self.entries.at(index);
            if entry.hash.load(Relaxed) == hash && is_it(entry) {
                return Some(Hit {
                    entry: index,
                    place: entry.place.load(Relaxed),
                    number: entry.number.load(Relaxed),
                    inode: entry.inode.load(Relaxed),
                    cached: entry.cached.load(Relaxed),
                });
            }
            index = entry.next.load(Acquire);
        }
        None
    }

    /// A lookup without locks. The outer option is none if the bucket changes too often.
    #[inline]
    fn look<P: PhysicalFs>(&self, fs: &P, hash: u64, name: &[u8]) -> Option<Option<Hit>> {
        for _ in 0..ATTEMPTS_MAX {
            let bucket = self.chains.of(hash);
            let version = bucket.version.load(Acquire);
            if version & 1 == 0 {
                let hit = self.search(bucket, hash, |entry| fs.entry_is_named(entry.place.load(Relaxed), name));
                fence(Acquire);
                if bucket.version.load(Relaxed) == version {
                    return Some(hit);
                }
            }
            spin_loop();
        }
        None
    }

    /// Fills an unlinked slot and links it into a chain.
    fn link<P: PhysicalFs>(
        front: &Front<P, Mindex>,
        index: u32,
        hash: u64,
        place: u64,
        number: u64,
        slot: Option<u32>,
    ) {
        let entry = front.names.entries.at(index);
        let (inode, cached) = match slot {
            Some(slot) if front.names.quick => (front.inodes.place(slot), front.cached_word(slot)),
            _ => (0, 0),
        };
        entry.hash.store(hash, Relaxed);
        entry.place.store(place, Relaxed);
        entry.number.store(number, Relaxed);
        entry.inode.store(inode, Relaxed);
        entry.cached.store(cached, Relaxed);
        let changing = front.names.chains.lock(hash);
        entry.next.store(changing.bucket.first.load(Relaxed), Relaxed);
        changing.bucket.first.store(index, Release);
    }

    fn insert<P: PhysicalFs>(
        front: &Front<P, Mindex>,
        hash: u64,
        place: u64,
        number: u64,
        slot: Option<u32>,
    ) -> Result<()> {
        let index = front.names.entries.take().ok_or(Error::Errno(Errno::ENOMEM))?;
        Mindex::link(front, index, hash, place, number, slot);
        Ok(())
    }

    /// Unlinks the entry with an offset from its chain. Returns its slot, for reuse or freeing.
    fn unlink(&self, hash: u64, place: u64) -> Option<u32> {
        let changing = self.chains.lock(hash);
        let mut link = &changing.bucket.first;
        loop {
            let index = link.load(Relaxed);
            if index == 0 {
                return None;
            }
            let entry = self.entries.at(index);
            if entry.hash.load(Relaxed) == hash && entry.place.load(Relaxed) == place {
                link.store(entry.next.load(Relaxed), Release);
                return Some(index);
            }
            link = &entry.next;
        }
    }

    fn remove(&self, hash: u64, place: u64) {
        if let Some(index) = self.unlink(hash, place) {
            self.entries.give(index);
        }
    }
}

impl<P: PhysicalFs> Front<P, Mindex> {
    fn cached_word(&self, slot: u32) -> u64 {
        (slot as u64) << 32 | self.inodes.generation(slot) as u64
    }

    /// The file of a hit, if it is in memory; without a reference.
    #[inline]
    fn peek_hit(&self, hit: &Hit) -> Option<Peek> {
        if self.names.quick {
            let (slot, stamp) = ((hit.cached >> 32) as u32, hit.cached as u32);
            return (slot != 0 && self.inodes.is_still(slot, stamp)).then_some(Peek { inode: slot, name: 0, stamp });
        }
        // Without the quick path: finds the inode by number and follows its nv pointer.
        let place = self.fs.inode_place(hit.number).ok()?;
        let slot = self.fs.nv_pointer(place).ok()?.get(self.fs.region(), self.fs.mounts())? as u32;
        let stamp = self.inodes.generation(slot);
        (self.inodes.number(slot) == hit.number).then_some(Peek { inode: slot, name: 0, stamp })
    }

    /// The file of a hit, loaded if necessary; with a reference. The directory is locked.
    fn load_hit(&self, hit: &Hit) -> Result<At> {
        if let Some(peek) = self.peek_hit(hit)
            && self.inodes.try_retain_stay(&self.fs, peek.inode, peek.stamp)?
        {
            return Ok(At { inode: peek.inode, name: 0 });
        }
        let slot = self.inodes.get(&self.fs, hit.number, (hit.inode != 0).then_some(hit.inode))?;
        if self.names.quick {
            // The entry keeps its name while the directory is locked. A reader sees the old word or
            // the new one.
            let entry = self.names.entries.at(hit.entry);
            entry.inode.store(self.inodes.place(slot), Relaxed);
            entry.cached.store(self.cached_word(slot), Release);
        }
        Ok(At { inode: slot, name: 0 })
    }

    /// Adds all names of a directory to the index. If space runs out, names of unused directories
    /// are dropped. The directory is locked exclusively.
    fn index(&self, directory: At, locked: Shared<'_, P::Info>) -> Result<()> {
        match self.index_once(directory, locked) {
            Err(Error::Errno(Errno::ENOMEM)) => {
                Mindex::shrink(self, u32::MAX, false)?;
                self.index_once(directory, locked)
            }
            result => result,
        }
    }

    fn index_once(&self, directory: At, locked: Shared<'_, P::Info>) -> Result<()> {
        let number = locked.number;
        let mut failed = None;
        self.fs.read_directory(locked, 0, &mut |entry| {
            let hash = hash_name(number, entry.name);
            failed = Mindex::insert(self, hash, entry.entry, entry.number, None).err();
            failed.is_none()
        })?;
        if let Some(error) = failed {
            self.drop_index(directory.inode, locked)?;
            return Err(error);
        }
        self.inodes.set_flag(directory.inode, INDEXED, true);
        Ok(())
    }

    fn is_indexed(&self, directory: At) -> bool {
        self.inodes.flag(directory.inode, INDEXED)
    }

    /// Removes the names of a directory from the index. The directory is locked exclusively.
    fn drop_index(&self, slot: u32, locked: Shared<'_, P::Info>) -> Result<u32> {
        let number = locked.number;
        let mut gone = 0;
        // Clear the flag first: without it, a lookup does not take a missing entry for a missing
        // name.
        self.inodes.set_flag(slot, INDEXED, false);
        self.fs.read_directory(locked, 0, &mut |entry| {
            self.names.remove(hash_name(number, entry.name), entry.entry);
            gone += 1;
            true
        })?;
        Ok(gone)
    }
}

impl<P: PhysicalFs> Names<P> for Mindex {
    const FINDING: Finding = Finding::Pointer;
    const INDEX: Index = Index::Front;
    const PEEKS: bool = true;

    fn new(options: &FrontOptions) -> Result<Mindex> {
        Ok(Mindex {
            entries: Arena::new(options.names_max)?,
            chains: Chains::new(options.names_max)?,
            quick: options.inode_quick_path,
        })
    }

    fn adopt_root(&self, inode: u32) -> Result<At> {
        Ok(At { inode, name: 0 })
    }

    fn touch(&self, names: u32) {
        self.entries.touch(names);
        self.chains.touch();
    }

    #[inline]
    fn retain(front: &Front<P, Self>, at: At) {
        front.inodes.retain(at.inode);
    }

    #[inline]
    fn release(front: &Front<P, Self>, at: At) -> Result<()> {
        front.inodes.release(&front.fs, at.inode)
    }

    #[inline]
    fn peek_at(front: &Front<P, Self>, at: At) -> Peek {
        Peek { inode: at.inode, name: 0, stamp: front.inodes.generation(at.inode) }
    }

    #[inline]
    fn peek(front: &Front<P, Self>, from: Peek, name: &[u8]) -> Peeked {
        // Read before the search: a directory that becomes indexed later only gains entries.
        let complete = front.inodes.flag(from.inode, INDEXED);
        let hash = hash_name(front.inodes.number(from.inode), name);
        let Some(hit) = front.names.look(&front.fs, hash, name) else { return Peeked::Unsure };
        let found = match hit {
            Some(hit) => front.peek_hit(&hit).map_or(Peeked::Unsure, Peeked::Found),
            None if complete && front.inodes.flag(from.inode, INDEXED) => Peeked::Absent,
            None => Peeked::Unsure,
        };
        if Self::is_valid(front, from) { found } else { Peeked::Unsure }
    }

    #[inline]
    fn is_valid(front: &Front<P, Self>, peek: Peek) -> bool {
        fence(Acquire);
        front.inodes.is_still(peek.inode, peek.stamp)
    }

    fn grab(front: &Front<P, Self>, peek: Peek) -> Result<Option<At>> {
        let held = front.inodes.try_retain_stay(&front.fs, peek.inode, peek.stamp)?;
        Ok(held.then_some(At { inode: peek.inode, name: 0 }))
    }

    fn step(front: &Front<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>> {
        if !front.is_indexed(directory) {
            let locked = front.inodes.write(directory.inode);
            if !front.is_indexed(directory) {
                front.index(directory, locked.shared()?)?;
            }
        }
        let locked = front.inodes.read(directory.inode);
        Ok(Self::find_locked(front, directory, locked.shared()?, name)?.map(|known| known.at))
    }

    fn find_locked(
        front: &Front<P, Self>,
        directory: At,
        locked: Shared<'_, P::Info>,
        name: &[u8],
    ) -> Result<Option<Known>> {
        let hash = hash_name(locked.number, name);
        if !front.is_indexed(directory) {
            front.index(directory, locked)?;
        }
        let hit = match front.names.look(&front.fs, hash, name) {
            Some(hit) => hit,
            None => {
                let changing = front.names.chains.lock(hash);
                front
                    .names
                    .search(changing.bucket, hash, |entry| front.fs.entry_is_named(entry.place.load(Relaxed), name))
            }
        };
        let Some(hit) = hit else { return Ok(None) };
        let at = front.load_hit(&hit)?;
        Ok(Some(Known { at, entry: Some(hit.place) }))
    }

    fn parent(front: &Front<P, Self>, directory: At) -> Result<At> {
        parent_by_dots(front, directory)
    }

    fn made(front: &Front<P, Self>, made: Making<'_, P::Info>) -> Result<At> {
        let Making { directory, locked, name, inode, entry, fresh } = made;
        if fresh {
            front.inodes.set_flag(inode, INDEXED, true);
        }
        let number = front.inodes.number(inode);
        if Mindex::insert(front, hash_name(locked.number, name), entry, number, Some(inode)).is_err() {
            // The name exists but does not fit, so the directory must not claim to be fully
            // indexed.
            front.drop_index(directory.inode, locked)?;
        }
        Ok(At { inode, name: 0 })
    }

    fn removed(front: &Front<P, Self>, directory: At, name: &[u8], _: At, entry: Option<u64>) -> Result<()> {
        let hash = hash_name(front.inodes.number(directory.inode), name);
        front.names.remove(hash, entry.unwrap_or(0));
        Ok(())
    }

    fn moved(front: &Front<P, Self>, moved: &Moved<'_>) -> Result<()> {
        let number = |at: At| front.inodes.number(at.inode);
        let from = hash_name(number(moved.from), moved.from_name);
        let to = hash_name(number(moved.to), moved.to_name);
        let [from_entry, to_entry] = moved.entries;
        // The slots move to the new names, so nothing can fail for lack of space.
        let (Some(first), second) = (
            front.names.unlink(from, from_entry.unwrap_or(0)),
            moved.other.and_then(|_| front.names.unlink(to, to_entry.unwrap_or(0))),
        ) else {
            return Err(Errno::EIO.into());
        };
        Mindex::link(front, first, to, moved.renamed.to_entry, number(moved.file), Some(moved.file.inode));
        match (second, moved.other, moved.renamed.from_entry) {
            (Some(second), Some(other), Some(entry)) if moved.exchange => {
                Mindex::link(front, second, from, entry, number(other), Some(other.inode));
            }
            (Some(second), ..) => front.names.entries.give(second),
            _ => {}
        }
        Ok(())
    }

    fn own_name(_: &Front<P, Self>, _: At) -> Option<Vec<u8>> {
        None
    }

    /// Drops whole directories. Skips locked ones, because the caller may hold another directory's
    /// lock.
    fn shrink(front: &Front<P, Self>, count: u32, _: bool) -> Result<u32> {
        let mut gone = 0;
        for slot in 1..front.inodes.high() {
            if gone >= count {
                break;
            }
            if front.inodes.flag(slot, INDEXED) && front.inodes.is_unused(slot) {
                let stamp = front.inodes.generation(slot);
                if front.inodes.try_retain_stay(&front.fs, slot, stamp)? {
                    let dropped = front
                        .inodes
                        .try_write(slot)
                        .map_or(Ok(0), |locked| locked.shared().and_then(|locked| front.drop_index(slot, locked)));
                    front.inodes.release(&front.fs, slot)?;
                    gone += dropped?;
                }
            }
        }
        Ok(gone)
    }
}
