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
use super::names::{At, Known, MadeName, Moved, Names, Peek, Peeked, hash_name};
use super::{Vfs, VfsOptions};
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
struct IndexEntry {
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
const _: () = assert!(size_of::<IndexEntry>() == 64);
// SAFETY: `repr(C)`; atomics of 4 and 8 bytes fill 64 bytes without padding (asserted); every bit
// pattern is valid.
unsafe impl Layout for IndexEntry {}

/// The index.
pub struct Mindex {
    entries: Arena<IndexEntry>,
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
    fn search(&self, bucket: &Bucket, hash: u64, is_it: impl Fn(&IndexEntry) -> bool) -> Option<Hit> {
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
    fn link<P: PhysicalFs>(vfs: &Vfs<P, Mindex>, index: u32, hash: u64, place: u64, number: u64, slot: Option<u32>) {
        let entry = vfs.names.entries.at(index);
        let (inode, cached) = match slot {
            Some(slot) if vfs.names.quick => (vfs.inodes.place(slot), vfs.cached_word(slot)),
            _ => (0, 0),
        };
        entry.hash.store(hash, Relaxed);
        entry.place.store(place, Relaxed);
        entry.number.store(number, Relaxed);
        entry.inode.store(inode, Relaxed);
        entry.cached.store(cached, Relaxed);
        let changing = vfs.names.chains.lock(hash);
        entry.next.store(changing.bucket.first.load(Relaxed), Relaxed);
        changing.bucket.first.store(index, Release);
    }

    fn insert<P: PhysicalFs>(
        vfs: &Vfs<P, Mindex>,
        hash: u64,
        place: u64,
        number: u64,
        slot: Option<u32>,
    ) -> Result<()> {
        let index = vfs.names.entries.take().ok_or(Error::Errno(Errno::ENOMEM))?;
        Mindex::link(vfs, index, hash, place, number, slot);
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

impl<P: PhysicalFs> Vfs<P, Mindex> {
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
    const INDEX: Index = Index::Vfs;
    const PEEKS: bool = true;

    fn new(options: &VfsOptions) -> Result<Mindex> {
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
    fn retain(vfs: &Vfs<P, Self>, at: At) {
        vfs.inodes.retain(at.inode);
    }

    #[inline]
    fn release(vfs: &Vfs<P, Self>, at: At) -> Result<()> {
        vfs.inodes.release(&vfs.fs, at.inode)
    }

    #[inline]
    fn peek_at(vfs: &Vfs<P, Self>, at: At) -> Peek {
        Peek { inode: at.inode, name: 0, stamp: vfs.inodes.generation(at.inode) }
    }

    #[inline]
    fn peek(vfs: &Vfs<P, Self>, from: Peek, name: &[u8]) -> Peeked {
        // Read before the search: a directory that becomes indexed later only gains entries.
        let complete = vfs.inodes.flag(from.inode, INDEXED);
        let hash = hash_name(vfs.inodes.number(from.inode), name);
        let Some(hit) = vfs.names.look(&vfs.fs, hash, name) else { return Peeked::Unsure };
        let found = match hit {
            Some(hit) => vfs.peek_hit(&hit).map_or(Peeked::Unsure, Peeked::Found),
            None if complete && vfs.inodes.flag(from.inode, INDEXED) => Peeked::Absent,
            None => Peeked::Unsure,
        };
        if Self::is_valid(vfs, from) { found } else { Peeked::Unsure }
    }

    #[inline]
    fn is_valid(vfs: &Vfs<P, Self>, peek: Peek) -> bool {
        fence(Acquire);
        vfs.inodes.is_still(peek.inode, peek.stamp)
    }

    fn grab(vfs: &Vfs<P, Self>, peek: Peek) -> Result<Option<At>> {
        let held = vfs.inodes.try_retain_stay(&vfs.fs, peek.inode, peek.stamp)?;
        Ok(held.then_some(At { inode: peek.inode, name: 0 }))
    }

    fn step(vfs: &Vfs<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>> {
        if !vfs.is_indexed(directory) {
            let locked = vfs.inodes.write(directory.inode);
            if !vfs.is_indexed(directory) {
                vfs.index(directory, locked.shared()?)?;
            }
        }
        let locked = vfs.inodes.read(directory.inode);
        Ok(Self::find_locked(vfs, directory, locked.shared()?, name)?.map(|known| known.at))
    }

    fn find_locked(
        vfs: &Vfs<P, Self>,
        directory: At,
        locked: Shared<'_, P::Info>,
        name: &[u8],
    ) -> Result<Option<Known>> {
        let hash = hash_name(locked.number, name);
        if !vfs.is_indexed(directory) {
            vfs.index(directory, locked)?;
        }
        let hit = match vfs.names.look(&vfs.fs, hash, name) {
            Some(hit) => hit,
            None => {
                let changing = vfs.names.chains.lock(hash);
                vfs.names.search(changing.bucket, hash, |entry| vfs.fs.entry_is_named(entry.place.load(Relaxed), name))
            }
        };
        let Some(hit) = hit else { return Ok(None) };
        let at = vfs.load_hit(&hit)?;
        Ok(Some(Known { at, entry: Some(hit.place) }))
    }

    fn parent(vfs: &Vfs<P, Self>, directory: At) -> Result<At> {
        parent_by_dots(vfs, directory)
    }

    fn made(vfs: &Vfs<P, Self>, made: MadeName<'_, P::Info>) -> Result<At> {
        let MadeName { directory, locked, name, inode, entry, fresh } = made;
        if fresh {
            vfs.inodes.set_flag(inode, INDEXED, true);
        }
        let number = vfs.inodes.number(inode);
        if Mindex::insert(vfs, hash_name(locked.number, name), entry, number, Some(inode)).is_err() {
            // The name exists but does not fit, so the directory must not claim to be fully
            // indexed.
            vfs.drop_index(directory.inode, locked)?;
        }
        Ok(At { inode, name: 0 })
    }

    fn removed(vfs: &Vfs<P, Self>, directory: At, name: &[u8], _: At, entry: Option<u64>) -> Result<()> {
        let hash = hash_name(vfs.inodes.number(directory.inode), name);
        vfs.names.remove(hash, entry.unwrap_or(0));
        Ok(())
    }

    fn moved(vfs: &Vfs<P, Self>, moved: &Moved<'_>) -> Result<()> {
        let number = |at: At| vfs.inodes.number(at.inode);
        let from = hash_name(number(moved.from), moved.from_name);
        let to = hash_name(number(moved.to), moved.to_name);
        let [from_entry, to_entry] = moved.entries;
        // The slots move to the new names, so nothing can fail for lack of space.
        let (Some(first), second) = (
            vfs.names.unlink(from, from_entry.unwrap_or(0)),
            moved.other.and_then(|_| vfs.names.unlink(to, to_entry.unwrap_or(0))),
        ) else {
            return Err(Errno::EIO.into());
        };
        Mindex::link(vfs, first, to, moved.renamed.to_entry, number(moved.file), Some(moved.file.inode));
        match (second, moved.other, moved.renamed.from_entry) {
            (Some(second), Some(other), Some(entry)) if moved.exchange => {
                Mindex::link(vfs, second, from, entry, number(other), Some(other.inode));
            }
            (Some(second), ..) => vfs.names.entries.give(second),
            _ => {}
        }
        Ok(())
    }

    fn own_name(_: &Vfs<P, Self>, _: At) -> Option<Vec<u8>> {
        None
    }

    /// Drops whole directories. Skips locked ones, because the caller may hold another directory's
    /// lock.
    fn shrink(vfs: &Vfs<P, Self>, count: u32, _: bool) -> Result<u32> {
        let mut gone = 0;
        for slot in 1..vfs.inodes.high() {
            if gone >= count {
                break;
            }
            if vfs.inodes.flag(slot, INDEXED) && vfs.inodes.is_unused(slot) {
                let stamp = vfs.inodes.generation(slot);
                if vfs.inodes.try_retain_stay(&vfs.fs, slot, stamp)? {
                    let dropped = vfs
                        .inodes
                        .try_write(slot)
                        .map_or(Ok(0), |locked| locked.shared().and_then(|locked| vfs.drop_index(slot, locked)));
                    vfs.inodes.release(&vfs.fs, slot)?;
                    gone += dropped?;
                }
            }
        }
        Ok(gone)
    }
}
