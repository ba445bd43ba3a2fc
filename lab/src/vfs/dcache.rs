//! The dentry cache of the conventional layer: names in memory, existing or not, as in Linux.
//!
//! A dentry is a slot that is never unmapped. A walk without locks (RCU walk) goes from dentry to
//! dentry by a hash of (parent, name). It checks each dentry's sequence count before it uses what
//! it read. If anything is missing or changes, the walk is repeated with references and locks.
//!
//! Invariants:
//!
//! - `sequence` is odd while parent, name or inode of a dentry change. It changes when the slot is
//!   reused.
//! - `refs` counts holders: children, open files, walks with references. With `FROZEN` or above, a
//!   thread changes or frees the dentry, and no reference may be taken. A dentry without references
//!   stays cached while it is hashed.
//! - A dentry holds a reference to its parent and is in the parent's list of children. A positive
//!   dentry also holds a reference to its inode's slot.
//! - Dentries of a directory are inserted under its lock, held at least shared. They change under
//!   it, held exclusively. The shrinker frees them at any time by way of `FROZEN`. A chain changes
//!   under its bucket's bit.

use super::arena::{Arena, Array};
use super::icache::Finding;
use super::names::{At, Known, MadeName, Moved, Names, Peek, Peeked, hash_name};
use super::{Vfs, VfsOptions};
use crate::error::{Error, Result};
use crate::locks;
use crate::multicore::named_memory::NamedMemory;
use crate::physical::{Index, PhysicalFs, Shared};
use pmem::Layout;
use posix::Errno;
use std::hint::spin_loop;
use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

const FROZEN: u32 = 1 << 30;
const LOCKED: u32 = 1 << 31;
/// Chains are shorter. A reader misled by reused slots stops here.
const CHAIN_MAX: usize = 1 << 12;
const NAME_WORDS: usize = 9;
const INLINE_BYTES: usize = NAME_WORDS * 8;

const HASHED: u32 = 1;
const REFERENCED: u32 = 2;

#[repr(C, align(64))]
struct Dentry {
    sequence: AtomicU32,
    refs: AtomicU32,
    next: AtomicU32,
    parent: AtomicU32,
    /// Zero: the name does not exist.
    inode: AtomicU32,
    flags: AtomicU32,
    length: AtomicU32,
    /// Slot of a long name's bytes.
    long: AtomicU32,
    /// List of children, unordered, under the bit in `family`.
    first_child: AtomicU32,
    next_sibling: AtomicU32,
    previous_sibling: AtomicU32,
    family: AtomicU32,
    hash: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}
const _: () = assert!(size_of::<Dentry>() == 128);
// SAFETY: `repr(C)`; atomics of 4 and 8 bytes fill 128 bytes without padding (asserted); every bit
// pattern is valid.
unsafe impl Layout for Dentry {}

/// The bytes of a name that does not fit in its dentry.
type LongName = [AtomicU64; 32];

/// All dentries.
pub struct DentryCache {
    dentries: Arena<Dentry>,
    long_names: Arena<LongName>,
    buckets: Array<AtomicU32>,
    hand: Mutex<u32>,
}

/// A locked chain.
struct Chain<'c> {
    bucket: &'c AtomicU32,
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.bucket.fetch_and(!LOCKED, Release);
    }
}

impl Chain<'_> {
    fn first(&self) -> u32 {
        self.bucket.load(Relaxed) & !LOCKED
    }

    fn set_first(&self, dentry: u32) {
        self.bucket.store(dentry | LOCKED, Release);
    }
}

/// The locked list of a dentry's children.
struct ChildList<'c>(&'c AtomicU32);

impl Drop for ChildList<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

fn spin(attempt: &mut u32) {
    *attempt += 1;
    if attempt.is_multiple_of(128) { std::thread::yield_now() } else { spin_loop() }
}

fn store_name(words: &[AtomicU64], name: &[u8]) {
    for (cell, chunk) in words.iter().zip(name.chunks(8)) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        cell.store(u64::from_le_bytes(word), Relaxed);
    }
}

fn name_equals(words: &[AtomicU64], name: &[u8]) -> bool {
    let (whole, rest) = name.as_chunks::<8>();
    if whole.len() + usize::from(!rest.is_empty()) > words.len() {
        return false;
    }
    let same = whole.iter().zip(words).all(|(chunk, cell)| cell.load(Relaxed) == u64::from_le_bytes(*chunk));
    if !same || rest.is_empty() {
        return same;
    }
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    words[whole.len()].load(Relaxed) == u64::from_le_bytes(last)
}

impl DentryCache {
    fn bucket(&self, hash: u64) -> &AtomicU32 {
        self.buckets.at(hash as u32 & (self.buckets.length() - 1))
    }

    fn lock(&self, hash: u64) -> Chain<'_> {
        let bucket = self.bucket(hash);
        let mut attempt = 0;
        loop {
            let now = bucket.load(Relaxed);
            if now & LOCKED == 0 && bucket.compare_exchange_weak(now, now | LOCKED, Acquire, Relaxed).is_ok() {
                return Chain { bucket };
            }
            spin(&mut attempt);
        }
    }

    fn family(&self, parent: u32) -> ChildList<'_> {
        let word = &self.dentries.at(parent).family;
        let mut attempt = 0;
        while word.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            spin(&mut attempt);
        }
        ChildList(word)
    }

    /// Inserts a dentry into its parent's list. The caller holds a reference to the parent.
    fn adopt(&self, parent: u32, index: u32) {
        let _family = self.family(parent);
        let (above, dentry) = (self.dentries.at(parent), self.dentries.at(index));
        let first = above.first_child.load(Relaxed);
        dentry.next_sibling.store(first, Relaxed);
        dentry.previous_sibling.store(0, Relaxed);
        if first != 0 {
            self.dentries.at(first).previous_sibling.store(index, Relaxed);
        }
        above.first_child.store(index, Relaxed);
    }

    /// Removes a dentry from its parent's list.
    fn disown(&self, parent: u32, index: u32) {
        let _family = self.family(parent);
        let dentry = self.dentries.at(index);
        let (previous, next) = (dentry.previous_sibling.load(Relaxed), dentry.next_sibling.load(Relaxed));
        if previous != 0 {
            self.dentries.at(previous).next_sibling.store(next, Relaxed);
        } else {
            self.dentries.at(parent).first_child.store(next, Relaxed);
        }
        if next != 0 {
            self.dentries.at(next).previous_sibling.store(previous, Relaxed);
        }
    }

    /// Finds a cached child without references and freezes it.
    fn freeze_child(&self, parent: u32) -> Option<u32> {
        let _family = self.family(parent);
        let mut index = self.dentries.at(parent).first_child.load(Relaxed);
        while index != 0 {
            let dentry = self.dentries.at(index);
            let cached = dentry.flags.load(Relaxed) & HASHED != 0;
            if cached && dentry.refs.compare_exchange(0, FROZEN, AcqRel, Relaxed).is_ok() {
                return Some(index);
            }
            index = dentry.next_sibling.load(Relaxed);
        }
        None
    }

    fn has_name(&self, dentry: &Dentry, name: &[u8]) -> bool {
        if dentry.length.load(Relaxed) as usize != name.len() {
            return false;
        }
        if name.len() <= INLINE_BYTES {
            return name_equals(&dentry.name, name);
        }
        let long = dentry.long.load(Relaxed);
        long != 0 && name_equals(self.long_names.at(long), name)
    }

    fn name_of(&self, dentry: &Dentry) -> Vec<u8> {
        let length = (dentry.length.load(Relaxed) as usize).min(255);
        let words: &[AtomicU64] =
            if length <= INLINE_BYTES { &dentry.name } else { self.long_names.at(dentry.long.load(Relaxed).max(1)) };
        let mut name: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        name.truncate(length);
        name
    }

    /// A lookup without locks: the dentry and the sequence count at which it was valid. None: not
    /// found, or changing.
    #[inline]
    fn peek(&self, parent: u32, hash: u64, name: &[u8]) -> Option<(u32, u32)> {
        let mut index = self.bucket(hash).load(Acquire) & !LOCKED;
        for _ in 0..CHAIN_MAX {
            if index == 0 {
                return None;
            }
            let dentry = self.dentries.at(index);
            let sequence = dentry.sequence.load(Acquire);
            if dentry.hash.load(Relaxed) == hash
                && dentry.parent.load(Relaxed) == parent
                && dentry.flags.load(Relaxed) & HASHED != 0
                && self.has_name(dentry, name)
            {
                fence(Acquire);
                let stable = sequence & 1 == 0 && dentry.sequence.load(Relaxed) == sequence;
                return stable.then_some((index, sequence));
            }
            index = dentry.next.load(Acquire);
        }
        None
    }

    fn try_retain(&self, index: u32) -> bool {
        let refs = &self.dentries.at(index).refs;
        let mut now = refs.load(Relaxed);
        while now < FROZEN {
            match refs.compare_exchange_weak(now, now + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// The dentry of a name in a locked chain, with a reference.
    fn find(&self, chain: &Chain<'_>, parent: u32, hash: u64, name: &[u8]) -> Option<u32> {
        let mut index = chain.first();
        while index != 0 {
            let dentry = self.dentries.at(index);
            if dentry.hash.load(Relaxed) == hash
                && dentry.parent.load(Relaxed) == parent
                && self.has_name(dentry, name)
                && self.try_retain(index)
            {
                return Some(index);
            }
            index = dentry.next.load(Relaxed);
        }
        None
    }

    fn push(&self, chain: &Chain<'_>, index: u32) {
        let dentry = self.dentries.at(index);
        dentry.next.store(chain.first(), Relaxed);
        dentry.flags.fetch_or(HASHED, Relaxed);
        chain.set_first(index);
    }

    /// Removes a dentry from its chain.
    fn unhash(&self, index: u32) {
        let dentry = self.dentries.at(index);
        let chain = self.lock(dentry.hash.load(Relaxed));
        let next = dentry.next.load(Relaxed);
        dentry.flags.fetch_and(!HASHED, AcqRel);
        let mut at = chain.first();
        if at == index {
            return chain.set_first(next);
        }
        while at != 0 {
            let link = &self.dentries.at(at).next;
            at = link.load(Relaxed);
            if at == index {
                return link.store(next, Release);
            }
        }
    }

    /// Runs `change` while readers retry.
    fn change(dentry: &Dentry, change: impl FnOnce()) {
        let sequence = dentry.sequence.load(Relaxed);
        dentry.sequence.store(sequence.wrapping_add(1), Relaxed);
        fence(Release);
        change();
        dentry.sequence.store(sequence.wrapping_add(2), Release);
    }

    fn set_name(&self, dentry: &Dentry, hash: u64, name: &[u8]) -> Result<()> {
        let old_long = dentry.long.load(Relaxed);
        let long = if name.len() > INLINE_BYTES { self.long_names.take().ok_or(Errno::ENOMEM)? } else { 0 };
        Self::change(dentry, || {
            dentry.hash.store(hash, Relaxed);
            dentry.length.store(name.len() as u32, Relaxed);
            dentry.long.store(long, Relaxed);
            let words: &[AtomicU64] = if long == 0 { &dentry.name } else { self.long_names.at(long) };
            store_name(words, name);
        });
        if old_long != 0 {
            self.long_names.give(old_long);
        }
        Ok(())
    }

    fn note_use(&self, index: u32) {
        let flags = &self.dentries.at(index).flags;
        if flags.load(Relaxed) & REFERENCED == 0 {
            flags.fetch_or(REFERENCED, Relaxed);
        }
    }
}

impl<P: PhysicalFs> Vfs<P, DentryCache> {
    fn dentry(&self, index: u32) -> &Dentry {
        self.names.dentries.at(index)
    }

    fn at_dentry(&self, index: u32) -> At {
        At { inode: self.dentry(index).inode.load(Relaxed), name: index }
    }

    /// Allocates a dentry slot; shrinks the cache if none is free.
    fn take_dentry(&self) -> Result<u32> {
        for _ in 0..4 {
            if let Some(index) = self.names.dentries.take() {
                return Ok(index);
            }
            DentryCache::shrink(self, 128, false)?;
        }
        Err(Errno::ENOMEM.into())
    }

    /// Creates a dentry with one reference. It takes over the inode's reference and holds the
    /// parent. It is not hashed yet.
    fn new_dentry(&self, parent: u32, hash: u64, name: &[u8], inode: u32) -> Result<u32> {
        let index = self.take_dentry()?;
        let dentry = self.dentry(index);
        if let Err(error) = self.names.set_name(dentry, hash, name) {
            self.names.dentries.give(index);
            return Err(error);
        }
        DentryCache::change(dentry, || {
            dentry.parent.store(parent, Relaxed);
            dentry.inode.store(inode, Relaxed);
            dentry.flags.store(REFERENCED, Relaxed);
        });
        self.dentry(parent).refs.fetch_add(1, Relaxed);
        self.names.adopt(parent, index);
        dentry.refs.store(1, Release);
        Ok(index)
    }

    /// Caches the result of a lookup (slot zero: no such name), unless another thread did so
    /// meanwhile. The directory is locked. Takes over the inode's reference and returns a dentry
    /// reference.
    fn cache(&self, parent: u32, hash: u64, name: &[u8], inode: u32) -> Result<u32> {
        let fresh = match self.new_dentry(parent, hash, name, inode) {
            Ok(fresh) => fresh,
            Err(error) => {
                if inode != 0 {
                    self.inodes.release(&self.fs, inode)?;
                }
                return Err(error);
            }
        };
        let other = {
            let chain = self.names.lock(hash);
            let other = self.names.find(&chain, parent, hash, name);
            if other.is_none() {
                self.names.push(&chain, fresh);
            }
            other
        };
        match other {
            None => Ok(fresh),
            Some(other) => {
                self.put_dentry(fresh)?;
                Ok(other)
            }
        }
    }

    /// Returns a reference. Frees the dentry if it is neither cached nor referenced, then possibly
    /// its parent, and so on.
    fn put_dentry(&self, index: u32) -> Result<()> {
        let mut next = Some(index);
        while let Some(index) = next.take() {
            let dentry = self.dentry(index);
            if dentry.refs.fetch_sub(1, AcqRel) != 1 || dentry.flags.load(Acquire) & HASHED != 0 {
                continue;
            }
            if dentry.refs.compare_exchange(0, FROZEN, AcqRel, Relaxed).is_ok() {
                next = self.free_dentry(index)?;
            }
        }
        Ok(())
    }

    /// Frees a frozen dentry that is in no chain. Returns its parent, whose reference the caller
    /// must return.
    fn free_dentry(&self, index: u32) -> Result<Option<u32>> {
        let dentry = self.dentry(index);
        let (parent, inode) = (dentry.parent.load(Relaxed), dentry.inode.load(Relaxed));
        let long = dentry.long.load(Relaxed);
        let parent = if parent == index { 0 } else { parent };
        if parent != 0 {
            self.names.disown(parent, index);
        }
        DentryCache::change(dentry, || {
            dentry.parent.store(0, Relaxed);
            dentry.inode.store(0, Relaxed);
            dentry.long.store(0, Relaxed);
            dentry.length.store(0, Relaxed);
        });
        if long != 0 {
            self.names.long_names.give(long);
        }
        self.names.dentries.give(index);
        if inode != 0 {
            self.inodes.release(&self.fs, inode)?;
        }
        Ok((parent != 0).then_some(parent))
    }

    /// Drops the unused children of a directory. Those of a removed directory are negative entries.
    fn shrink_children(&self, index: u32) -> Result<()> {
        while let Some(child) = self.names.freeze_child(index) {
            self.names.unhash(child);
            if let Some(parent) = self.free_dentry(child)? {
                self.put_dentry(parent)?;
            }
        }
        Ok(())
    }

    /// The cached dentry of a name, positive or negative, with a reference.
    fn cached(&self, parent: u32, hash: u64, name: &[u8]) -> Option<u32> {
        if let Some((index, sequence)) = self.names.peek(parent, hash, name)
            && self.names.try_retain(index)
        {
            fence(Acquire);
            if self.dentry(index).sequence.load(Relaxed) == sequence {
                return Some(index);
            }
            // The dentry moved and may have another name now, so the reference is returned. An
            // error is ignored: the lookup continues under the chain's lock.
            let _ = self.put_dentry(index);
        }
        let chain = self.names.lock(hash);
        self.names.find(&chain, parent, hash, name)
    }

    /// Converts a found dentry to the result of a lookup.
    fn answer(&self, index: u32) -> Result<Option<At>> {
        self.names.note_use(index);
        let at = self.at_dentry(index);
        if at.inode != 0 {
            return Ok(Some(at));
        }
        self.put_dentry(index)?;
        Ok(None)
    }

    /// Removes a dentry from the cache; holders keep it. The directory is locked exclusively.
    fn forget_name(&self, index: u32) {
        let dentry = self.dentry(index);
        if dentry.flags.load(Relaxed) & HASHED != 0 {
            DentryCache::change(dentry, || {});
            self.names.unhash(index);
        }
    }

    /// Renames a dentry and caches it under the new name.
    fn rename_dentry(&self, index: u32, parent: u32, name: &[u8]) -> Result<()> {
        let dentry = self.dentry(index);
        self.forget_name(index);
        let old_parent = dentry.parent.load(Relaxed);
        let hash = hash_name(parent as u64, name);
        // Without memory the dentry stays out of the cache; a lookup creates another one.
        self.names.set_name(dentry, hash, name)?;
        if old_parent != parent {
            self.dentry(parent).refs.fetch_add(1, Relaxed);
            self.names.disown(old_parent, index);
            DentryCache::change(dentry, || dentry.parent.store(parent, Relaxed));
            self.names.adopt(parent, index);
        }
        let chain = self.names.lock(hash);
        self.names.push(&chain, index);
        drop(chain);
        if old_parent != parent { self.put_dentry(old_parent) } else { Ok(()) }
    }
}

impl<P: PhysicalFs> Names<P> for DentryCache {
    const FINDING: Finding = Finding::Hash;
    const INDEX: Index = Index::Own;
    const PEEKS: bool = true;

    fn new(options: &VfsOptions) -> Result<DentryCache> {
        let names = options.names_max;
        Ok(DentryCache {
            dentries: Arena::new(names)?,
            long_names: Arena::new(names / 8 + 1024)?,
            buckets: Array::new(names.max(1024).next_power_of_two())?,
            hand: Mutex::new(1),
        })
    }

    fn named_memory(&self) -> Vec<NamedMemory> {
        let fields = [
            (0, "sequence"),
            (offset_of!(Dentry, refs), "references"),
            (offset_of!(Dentry, next), "chain, parent, inode, flags"),
            (offset_of!(Dentry, first_child), "list of children"),
            (offset_of!(Dentry, next_sibling), "position among siblings"),
            (offset_of!(Dentry, family), "lock of the list of children"),
            (offset_of!(Dentry, hash), "name"),
        ];
        let mut places = self.dentries.named_memory("dentry", &fields);
        places.extend(self.long_names.named_memory("long name", &[]));
        places.push(self.buckets.place("dentry hash chain"));
        places
    }

    fn adopt_root(&self, inode: u32) -> Result<At> {
        let index = self.dentries.take().ok_or(Error::Errno(Errno::ENOMEM))?;
        let dentry = self.dentries.at(index);
        // The root is its own parent and has no name.
        dentry.parent.store(index, Relaxed);
        dentry.inode.store(inode, Relaxed);
        dentry.refs.store(1, Release);
        Ok(At { inode, name: index })
    }

    fn touch(&self, names: u32) {
        self.dentries.touch(names);
        self.buckets.touch(self.buckets.length());
    }

    #[inline]
    fn retain(vfs: &Vfs<P, Self>, at: At) {
        vfs.dentry(at.name).refs.fetch_add(1, Relaxed);
    }

    #[inline]
    fn release(vfs: &Vfs<P, Self>, at: At) -> Result<()> {
        vfs.put_dentry(at.name)
    }

    #[inline]
    fn peek_at(vfs: &Vfs<P, Self>, at: At) -> Peek {
        let dentry = vfs.dentry(at.name);
        let stamp = dentry.sequence.load(Acquire);
        Peek { inode: at.inode, name: at.name, stamp }
    }

    #[inline]
    fn peek(vfs: &Vfs<P, Self>, from: Peek, name: &[u8]) -> Peeked {
        let hash = hash_name(from.name as u64, name);
        let Some((index, stamp)) = vfs.names.peek(from.name, hash, name) else { return Peeked::Unsure };
        let inode = vfs.dentry(index).inode.load(Relaxed);
        let found = Peek { inode, name: index, stamp };
        if !Self::is_valid(vfs, found) || !Self::is_valid(vfs, from) {
            return Peeked::Unsure;
        }
        if inode == 0 { Peeked::Absent } else { Peeked::Found(found) }
    }

    #[inline]
    fn is_valid(vfs: &Vfs<P, Self>, peek: Peek) -> bool {
        fence(Acquire);
        peek.stamp & 1 == 0 && vfs.dentry(peek.name).sequence.load(Relaxed) == peek.stamp
    }

    fn grab(vfs: &Vfs<P, Self>, peek: Peek) -> Result<Option<At>> {
        if !vfs.names.try_retain(peek.name) {
            return Ok(None);
        }
        if Self::is_valid(vfs, peek) {
            return Ok(Some(At { inode: peek.inode, name: peek.name }));
        }
        vfs.put_dentry(peek.name)?;
        Ok(None)
    }

    fn step(vfs: &Vfs<P, Self>, directory: At, name: &[u8]) -> Result<Option<At>> {
        let hash = hash_name(directory.name as u64, name);
        if let Some(index) = vfs.cached(directory.name, hash, name) {
            return vfs.answer(index);
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
        let hash = hash_name(directory.name as u64, name);
        let known = |at: Option<At>| Ok(at.map(|at| Known { at, entry: None }));
        if let Some(index) = vfs.cached(directory.name, hash, name) {
            return known(vfs.answer(index)?);
        }
        // Nothing is cached below a removed directory: lookups could not find it again.
        if locked.attributes.get().links == 0 {
            return Ok(None);
        }
        let inode = match vfs.fs.lookup(locked, name)? {
            Some(found) => vfs.inodes.get(&vfs.fs, found.number, None)?,
            None => 0,
        };
        let index = vfs.cache(directory.name, hash, name, inode)?;
        known(vfs.answer(index)?)
    }

    fn parent(vfs: &Vfs<P, Self>, directory: At) -> Result<At> {
        loop {
            let dentry = vfs.dentry(directory.name);
            let sequence = dentry.sequence.load(Acquire);
            let parent = dentry.parent.load(Relaxed);
            // A dentry keeps its parent, so this fails only while it moves.
            if sequence & 1 == 0 && vfs.names.try_retain(parent) {
                fence(Acquire);
                if dentry.sequence.load(Relaxed) == sequence {
                    return Ok(vfs.at_dentry(parent));
                }
                vfs.put_dentry(parent)?;
            }
            spin_loop();
        }
    }

    fn made(vfs: &Vfs<P, Self>, made: MadeName<'_, P::Info>) -> Result<At> {
        let MadeName { directory, name, inode, .. } = made;
        let hash = hash_name(directory.name as u64, name);
        let negative = {
            let chain = vfs.names.lock(hash);
            vfs.names.find(&chain, directory.name, hash, name)
        };
        let Some(index) = negative else {
            let index = vfs.cache(directory.name, hash, name, inode)?;
            return Ok(vfs.at_dentry(index));
        };
        let dentry = vfs.dentry(index);
        DentryCache::change(dentry, || dentry.inode.store(inode, Release));
        Ok(At { inode, name: index })
    }

    fn removed(vfs: &Vfs<P, Self>, _: At, _: &[u8], file: At, _: Option<u64>) -> Result<()> {
        let dentry = vfs.dentry(file.name);
        vfs.shrink_children(file.name)?;
        // With the only reference, the dentry becomes a negative entry.
        if dentry.refs.compare_exchange(1, FROZEN, AcqRel, Relaxed).is_ok() {
            DentryCache::change(dentry, || dentry.inode.store(0, Release));
            dentry.refs.store(1, Release);
            return vfs.inodes.release(&vfs.fs, file.inode);
        }
        vfs.forget_name(file.name);
        Ok(())
    }

    fn moved(vfs: &Vfs<P, Self>, moved: &Moved<'_>) -> Result<()> {
        // A dentry cached at the new name (the replaced file or a negative entry) is stale.
        let hash = hash_name(moved.to.name as u64, moved.to_name);
        let stale = {
            let chain = vfs.names.lock(hash);
            vfs.names.find(&chain, moved.to.name, hash, moved.to_name)
        };
        if let Some(index) = stale {
            vfs.forget_name(index);
            vfs.put_dentry(index)?;
        }
        match moved.other {
            Some(other) if moved.exchange => {
                vfs.forget_name(moved.file.name);
                vfs.rename_dentry(other.name, moved.from.name, moved.from_name)?;
            }
            Some(other) => vfs.shrink_children(other.name)?,
            None => {}
        }
        vfs.rename_dentry(moved.file.name, moved.to.name, moved.to_name)
    }

    fn own_name(vfs: &Vfs<P, Self>, directory: At) -> Option<Vec<u8>> {
        let dentry = vfs.dentry(directory.name);
        loop {
            let sequence = dentry.sequence.load(Acquire);
            let name = vfs.names.name_of(dentry);
            fence(Acquire);
            if sequence & 1 == 0 && dentry.sequence.load(Relaxed) == sequence {
                return Some(name);
            }
            spin_loop();
        }
    }

    fn shrink(vfs: &Vfs<P, Self>, count: u32, everything: bool) -> Result<u32> {
        let names = &vfs.names;
        let mut gone = 0;
        loop {
            let before = gone;
            let high = names.dentries.high().max(2);
            for _ in 0..high as u64 * if everything { 1 } else { 2 } {
                if gone >= count {
                    return Ok(gone);
                }
                let index = {
                    let mut hand = locks::lock(&names.hand);
                    let index = if *hand >= high { 1 } else { *hand };
                    *hand = index + 1;
                    index
                };
                let dentry = vfs.dentry(index);
                let flags = dentry.flags.load(Relaxed);
                if flags & HASHED == 0 || dentry.refs.load(Relaxed) != 0 {
                    continue;
                }
                if !everything && flags & REFERENCED != 0 {
                    dentry.flags.fetch_and(!REFERENCED, Relaxed);
                    continue;
                }
                if dentry.refs.compare_exchange(0, FROZEN, AcqRel, Relaxed).is_err() {
                    continue;
                }
                gone += 1;
                // If the slot was reused meanwhile and is not hashed yet, it has a reference. So
                // this dentry is hashed.
                names.unhash(index);
                if let Some(parent) = vfs.free_dentry(index)? {
                    vfs.put_dentry(parent)?;
                }
            }
            // Parents become unused when their last child is freed.
            if !everything || gone == before {
                return Ok(gone);
            }
        }
    }
}
