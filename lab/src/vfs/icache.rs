//! The inode cache: files in memory, like a kernel's inodes.
//!
//! A file in memory is a slot: a head of plain atomics (attributes, references, number), which
//! readers access without a lock, and separately the file's lock with the physical file system's
//! own state.
//!
//! Invariants:
//!
//! - `refs` counts holders. With `DYING` or above the file is being evicted and no reference may be
//!   taken. Only the thread that changed `refs` from zero to `DYING` evicts.
//! - A file is in memory at most once: loading and evicting hold the lock of the number's bucket
//!   and check again under it.
//! - `generation` changes with every eviction: slot and generation identify one residency of one
//!   file.

use super::arena::{Arena, Array};
use crate::error::{Error, Result};
use crate::inode::AttributeCell;
use crate::locks;
use crate::multicore::named_memory::NamedMemory;
use crate::physical::{Exclusive, Loaded, PhysicalFs, Shared};
use pmem::Layout;
use posix::Errno;
use std::mem::offset_of;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

const DYING: u32 = 1 << 30;
/// Number of locks for buckets of numbers.
const BUCKETS: usize = 1 << 14;
/// Number of files whose lock and state are allocated together.
const CHUNK: u32 = 1 << 10;

/// The part of a file in memory that is read without a lock.
#[repr(C, align(64))]
pub(super) struct Head {
    /// Attributes.
    pub attributes: Cell,
    number: AtomicU64,
    place: AtomicU64,
    refs: AtomicU32,
    generation: AtomicU32,
    /// Next slot of the same bucket, if files are found by number.
    next: AtomicU32,
    /// `INDEXED` and `REFERENCED`.
    flags: AtomicU32,
    reserved: [AtomicU64; 2],
}

/// An [`AttributeCell`] as a field of an array element.
#[repr(transparent)]
pub(super) struct Cell(AttributeCell);

impl std::ops::Deref for Cell {
    type Target = AttributeCell;
    fn deref(&self) -> &AttributeCell {
        &self.0
    }
}

// SAFETY: `repr(C)`; the attribute cell is `repr(C)` of atomics of 4 and 8 bytes without padding
// (asserted there), the rest are atomics; together they fill 128 bytes (asserted below); every bit
// pattern is valid.
unsafe impl Layout for Head {}
const _: () = assert!(size_of::<Head>() == 128);

/// All names of this directory are in the VFS layer's index.
pub(super) const INDEXED: u32 = 1;
/// Used since the clock hand passed.
const REFERENCED: u32 = 2;

type State<I> = RwLock<Option<I>>;

/// How a file is found in memory by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// By a hash of numbers.
    Hash,
    /// By the nv pointer in its inode.
    Pointer,
}

/// All files in memory.
pub(super) struct InodeCache<I> {
    heads: Arena<Head>,
    states: Vec<OnceLock<Box<[State<I>]>>>,
    // Locks of buckets; `firsts` holds the first slots, in a larger table.
    buckets: Vec<Mutex<()>>,
    firsts: Array<AtomicU32>,
    finding: Finding,
    used: AtomicU32,
    hand: Mutex<u32>,
}

impl<I> InodeCache<I> {
    pub(super) fn new(files_max: u32, finding: Finding) -> Result<InodeCache<I>> {
        let heads = Arena::new(files_max)?;
        let chunks = files_max.max(CHUNK).div_ceil(CHUNK) + 2;
        let firsts = if finding == Finding::Hash { files_max.max(BUCKETS as u32).next_power_of_two() } else { 1 };
        Ok(InodeCache {
            heads,
            states: (0..chunks).map(|_| OnceLock::new()).collect(),
            buckets: (0..BUCKETS).map(|_| Mutex::new(())).collect(),
            firsts: Array::new(firsts)?,
            finding,
            used: AtomicU32::new(0),
            hand: Mutex::new(1),
        })
    }

    #[inline(always)]
    pub(super) fn head(&self, slot: u32) -> &Head {
        self.heads.at(slot)
    }

    pub(super) fn touch(&self, files: u32) {
        self.heads.touch(files);
        for chunk in 0..files.div_ceil(CHUNK) {
            self.state(chunk * CHUNK);
        }
    }

    pub(super) fn named_memory(&self) -> Vec<NamedMemory> {
        let fields = [
            (0, "attributes"),
            (offset_of!(Head, number), "number"),
            (offset_of!(Head, refs), "references"),
            (offset_of!(Head, generation), "generation, chain, flags"),
        ];
        let mut places = self.heads.named_memory("inode in memory", &fields);
        let size = size_of::<State<I>>() as u64;
        for (chunk, states) in self.states.iter().enumerate() {
            if let Some(states) = states.get() {
                let name = format!("read-write lock of inode in memory {} +", chunk as u32 * CHUNK);
                places.push(NamedMemory::at(name, states.as_ptr() as u64, states.len() as u64 * size).each(size));
            }
        }
        let locks = self.buckets.as_ptr() as u64;
        let size = size_of::<Mutex<()>>() as u64;
        places.push(NamedMemory::at("lock of inode hash chains", locks, self.buckets.len() as u64 * size).each(size));
        places.push(self.firsts.place("inode hash chain"));
        places.push(NamedMemory::of("count of inodes in memory", &self.used));
        places
    }

    #[inline]
    fn state(&self, slot: u32) -> &State<I> {
        let chunk = self.states[(slot / CHUNK) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| RwLock::new(None)).collect::<Vec<_>>().into_boxed_slice());
        &chunk[(slot % CHUNK) as usize]
    }

    /// One past the highest slot ever used.
    pub(super) fn high(&self) -> u32 {
        self.heads.high()
    }

    /// Whether a slot holds a file without references.
    pub(super) fn is_unused(&self, slot: u32) -> bool {
        let head = self.head(slot);
        head.number.load(Relaxed) != 0 && head.refs.load(Relaxed) == 0
    }

    /// Files in memory.
    pub(super) fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Whether a slot still holds the file of a generation.
    #[inline]
    pub(super) fn is_still(&self, slot: u32, generation: u32) -> bool {
        self.head(slot).generation.load(Acquire) == generation
    }

    #[inline]
    pub(super) fn generation(&self, slot: u32) -> u32 {
        self.head(slot).generation.load(Acquire)
    }

    pub(super) fn number(&self, slot: u32) -> u64 {
        self.head(slot).number.load(Relaxed)
    }

    pub(super) fn place(&self, slot: u32) -> u64 {
        self.head(slot).place.load(Relaxed)
    }

    pub(super) fn flag(&self, slot: u32, flag: u32) -> bool {
        self.head(slot).flags.load(Acquire) & flag != 0
    }

    pub(super) fn set_flag(&self, slot: u32, flag: u32, on: bool) {
        let flags = &self.head(slot).flags;
        if on {
            flags.fetch_or(flag, AcqRel)
        } else {
            flags.fetch_and(!flag, AcqRel)
        };
    }

    /// Adds a reference for a holder of one.
    #[inline]
    pub(super) fn retain(&self, slot: u32) {
        self.head(slot).refs.fetch_add(1, Relaxed);
    }

    /// Takes a reference, unless the file is being evicted. The caller must then check which file
    /// it is.
    #[inline]
    fn try_retain(&self, slot: u32) -> bool {
        let refs = &self.head(slot).refs;
        let mut now = refs.load(Relaxed);
        while now < DYING {
            match refs.compare_exchange_weak(now, now + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Takes a reference to the file of a generation.
    pub(super) fn try_retain_stay<P: PhysicalFs<Info = I>>(&self, fs: &P, slot: u32, generation: u32) -> Result<bool> {
        if !self.try_retain(slot) {
            return Ok(false);
        }
        if self.is_still(slot, generation) {
            return Ok(true);
        }
        // The slot holds another file now, and this may be its last reference.
        self.release(fs, slot)?;
        Ok(false)
    }

    fn bucket(&self, number: u64) -> MutexGuard<'_, ()> {
        // It takes the low bits as in `first`: one lock covers whole chains.
        let index = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % BUCKETS;
        locks::lock(&self.buckets[index])
    }

    fn first(&self, number: u64) -> &AtomicU32 {
        let index = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 & (self.firsts.length() - 1);
        self.firsts.at(index)
    }

    /// Locks the file shared.
    #[inline]
    pub(super) fn read(&self, slot: u32) -> ReadLocked<'_, I> {
        let guard = locks::read(self.state(slot));
        ReadLocked { head: self.head(slot), guard }
    }

    /// Locks the file exclusively.
    #[inline]
    pub(super) fn write(&self, slot: u32) -> WriteLocked<'_, I> {
        let guard = locks::write(self.state(slot));
        WriteLocked { head: self.head(slot), guard }
    }

    /// Locks the file exclusively if it is not locked.
    pub(super) fn try_write(&self, slot: u32) -> Option<WriteLocked<'_, I>> {
        let guard = self.state(slot).try_write().ok()?;
        Some(WriteLocked { head: self.head(slot), guard })
    }

    /// Puts an unpublished file into a slot. Requires the bucket's lock.
    fn fill(&self, loaded: Loaded<I>) -> Result<u32> {
        let slot = self.heads.take().ok_or(Error::Errno(Errno::ENOMEM))?;
        let head = self.head(slot);
        let number = loaded.attributes.number;
        head.attributes.set(&loaded.attributes);
        head.number.store(number, Relaxed);
        head.place.store(loaded.inode, Relaxed);
        head.flags.store(REFERENCED, Relaxed);
        *locks::write(self.state(slot)) = Some(loaded.info);
        if self.finding == Finding::Hash {
            let first = self.first(number);
            head.next.store(first.load(Relaxed), Relaxed);
            first.store(slot, Release);
        }
        head.refs.store(1, Release);
        self.used.fetch_add(1, Relaxed);
        Ok(slot)
    }

    /// The slot of a number, with a reference. Requires the bucket's lock.
    fn find(&self, number: u64) -> Option<u32> {
        let mut slot = self.first(number).load(Acquire);
        while slot != 0 {
            let head = self.head(slot);
            if head.number.load(Relaxed) == number && self.try_retain(slot) {
                return Some(slot);
            }
            slot = head.next.load(Relaxed);
        }
        None
    }

    fn unhash(&self, slot: u32) {
        let mut link = self.first(self.number(slot));
        loop {
            let at = link.load(Relaxed);
            let next = &self.head(at).next;
            if at == slot {
                return link.store(next.load(Relaxed), Relaxed);
            }
            if at == 0 {
                return;
            }
            link = next;
        }
    }

    /// Follows an nv pointer, if it is live. Returns the slot with a reference. A reference to a
    /// wrong file is left in `stray`, to be returned when no bucket is locked.
    #[inline]
    fn follow<P: PhysicalFs<Info = I>>(
        &self,
        fs: &P,
        number: u64,
        place: u64,
        stray: &mut Option<u32>,
    ) -> Result<Option<u32>> {
        let Some(slot) = fs.nv_pointer(place)?.get(fs.region(), fs.mounts()) else { return Ok(None) };
        if slot == 0 || slot >= self.heads.high() as u64 {
            return Ok(None);
        }
        let slot = slot as u32;
        let is_it = || self.number(slot) == number && self.place(slot) == place;
        if !is_it() || !self.try_retain(slot) {
            return Ok(None);
        }
        if is_it() {
            return Ok(Some(slot));
        }
        *stray = Some(slot);
        Ok(None)
    }

    /// The file of a number, loaded if necessary; with a reference. The caller must prevent the
    /// file from being freed, for example by a lock on the directory that names it. `place` is the
    /// offset of the inode, if known.
    pub(super) fn get<P: PhysicalFs<Info = I>>(&self, fs: &P, number: u64, place: Option<u64>) -> Result<u32> {
        let place = match (self.finding, place) {
            (Finding::Hash, _) => None,
            (Finding::Pointer, Some(place)) => Some(place),
            (Finding::Pointer, None) => Some(fs.inode_place(number)?),
        };
        let mut stray = None;
        if let Some(place) = place {
            let found = self.follow(fs, number, place, &mut stray)?;
            if let Some(slot) = stray.take() {
                self.release(fs, slot)?;
            }
            if let Some(slot) = found {
                self.mark_referenced(slot);
                return Ok(slot);
            }
        }
        let got = self.get_in_bucket(fs, number, place, &mut stray);
        if let Some(slot) = stray {
            self.release(fs, slot)?;
        }
        got
    }

    fn get_in_bucket<P: PhysicalFs<Info = I>>(
        &self,
        fs: &P,
        number: u64,
        place: Option<u64>,
        stray: &mut Option<u32>,
    ) -> Result<u32> {
        let _bucket = self.bucket(number);
        let found = match place {
            Some(place) => self.follow(fs, number, place, stray)?,
            None => self.find(number),
        };
        if let Some(slot) = found {
            self.mark_referenced(slot);
            return Ok(slot);
        }
        let loaded = fs.load(number)?;
        self.enter(fs, loaded)
    }

    fn enter<P: PhysicalFs<Info = I>>(&self, fs: &P, loaded: Loaded<I>) -> Result<u32> {
        let place = loaded.inode;
        let slot = self.fill(loaded)?;
        if self.finding == Finding::Pointer {
            fs.nv_pointer(place)?.set(fs.region(), fs.mounts(), slot as u64);
        }
        Ok(slot)
    }

    /// Adds a new file, with a reference.
    pub(super) fn insert<P: PhysicalFs<Info = I>>(&self, fs: &P, made: Loaded<I>) -> Result<u32> {
        let _bucket = self.bucket(made.attributes.number);
        self.enter(fs, made)
    }

    #[inline]
    fn mark_referenced(&self, slot: u32) {
        let flags = &self.head(slot).flags;
        if flags.load(Relaxed) & REFERENCED == 0 {
            flags.fetch_or(REFERENCED, Relaxed);
        }
    }

    /// Returns a reference. The last one of a file without names frees the file.
    pub(super) fn release<P: PhysicalFs<Info = I>>(&self, fs: &P, slot: u32) -> Result<()> {
        let head = self.head(slot);
        if head.refs.fetch_sub(1, AcqRel) == 1 && head.attributes.get().links == 0 {
            self.evict(fs, slot)?;
        }
        Ok(())
    }

    /// Evicts a file without references. Returns whether it was evicted.
    fn evict<P: PhysicalFs<Info = I>>(&self, fs: &P, slot: u32) -> Result<bool> {
        let head = self.head(slot);
        let number = self.number(slot);
        let _bucket = self.bucket(number);
        // The slot may have been freed and reused before the bucket was locked.
        if head.number.load(Relaxed) != number || head.refs.compare_exchange(0, DYING, AcqRel, Relaxed).is_err() {
            return Ok(false);
        }
        let info = locks::write(self.state(slot)).take();
        match self.finding {
            Finding::Hash => self.unhash(slot),
            Finding::Pointer => clear_pointer(fs, self.place(slot))?,
        }
        head.generation.fetch_add(1, AcqRel);
        let attributes = head.attributes.get();
        let done = match info {
            Some(info) if attributes.links == 0 => fs.evict(number, &attributes, info),
            Some(info) => fs.forget(number, info),
            None => Ok(()),
        };
        head.number.store(0, Relaxed);
        self.used.fetch_sub(1, Relaxed);
        self.heads.give(slot);
        done.map(|()| true)
    }

    /// Evicts up to `count` unreferenced files that were not used since the clock hand passed, or
    /// regardless of use if `everything`. `spare` selects files to keep.
    pub(super) fn shrink<P: PhysicalFs<Info = I>>(
        &self,
        fs: &P,
        count: u32,
        everything: bool,
        spare: &dyn Fn(u32) -> bool,
    ) -> Result<u32> {
        let mut hand = locks::lock(&self.hand);
        let high = self.heads.high().max(2);
        let mut gone = 0;
        for _ in 0..high * if everything { 1 } else { 2 } {
            if gone >= count {
                break;
            }
            let slot = *hand;
            *hand = if slot + 1 >= high { 1 } else { slot + 1 };
            let head = self.head(slot);
            if head.number.load(Relaxed) == 0 || head.refs.load(Relaxed) != 0 || spare(slot) {
                continue;
            }
            if !everything && head.flags.fetch_and(!REFERENCED, Relaxed) & REFERENCED != 0 {
                continue;
            }
            gone += u32::from(self.evict(fs, slot)?);
        }
        Ok(gone)
    }
}

fn clear_pointer<P: PhysicalFs>(fs: &P, place: u64) -> Result<()> {
    fs.nv_pointer(place)?.clear(fs.region());
    Ok(())
}

/// A file locked shared.
pub(super) struct ReadLocked<'f, I> {
    head: &'f Head,
    guard: RwLockReadGuard<'f, Option<I>>,
}

impl<I> ReadLocked<'_, I> {
    /// The view for the physical file system.
    #[inline]
    pub(super) fn shared(&self) -> Result<Shared<'_, I>> {
        let info = self.guard.as_ref().ok_or(Error::Errno(Errno::EIO))?;
        Ok(Shared { number: self.head.number.load(Relaxed), attributes: &self.head.attributes, info })
    }
}

/// A file locked exclusively.
pub(super) struct WriteLocked<'f, I> {
    head: &'f Head,
    guard: RwLockWriteGuard<'f, Option<I>>,
}

impl<I> WriteLocked<'_, I> {
    /// The view for the physical file system.
    #[inline]
    pub(super) fn exclusive(&mut self) -> Result<Exclusive<'_, I>> {
        let info = self.guard.as_mut().ok_or(Error::Errno(Errno::EIO))?;
        Ok(Exclusive { number: self.head.number.load(Relaxed), attributes: &self.head.attributes, info })
    }

    /// A read-only view.
    pub(super) fn shared(&self) -> Result<Shared<'_, I>> {
        let info = self.guard.as_ref().ok_or(Error::Errno(Errno::EIO))?;
        Ok(Shared { number: self.head.number.load(Relaxed), attributes: &self.head.attributes, info })
    }
}
