//! Cachelets: making, finding, referencing and freeing them; and the property entries that persist
//! them.
//!
//! Invariants
//! - At most one cachelet stands for an inode: the one that its nv pointer names in this epoch
//!   (paper III.D). A thread that makes one publishes it by CAS there.
//! - A pointer that is cleared gets a word that it never had before. A thread that was about to
//!   make a cachelet may have read the inode before the life that has ended, and must not publish
//!   that.
//! - A name can lead to a cachelet of an earlier life: that of an evicted file with two names. The
//!   next life may be of that inode again, and may never be published. So a cachelet is filled with
//!   [`FLAG_EVICTED`] set, and the first thread that finds it published clears the flag.
//! - A cachelet is freed only after its state word became dead, by CAS from "no references"; a
//!   thread that finds a dead one starts again from the inode.
//! - A cachelet's content is on the image, except where `dirty` shows otherwise (links and times
//!   that are recovered from dentries).
//!
//! Decision: docs/decisions/files.md, "Access times and directories' counts are lazy".

use crate::backoff::Backoff;
use crate::components::Cachelets;
use crate::death::may_die_here;
use crate::dram::{
    Cachelet, DIRECTORY_LINKS, DIRTY, FLAG_DEAD, FLAG_DELETED, FLAG_EVICTED, FLAG_HELD, FLAG_READABLE, FLAG_RENAMING,
    PLAIN, References, RetiredKind,
};
use crate::error::{Corruption, Error, Result};
use crate::format::{FileKind, INODE_BYTES, INODES_PER_SEGMENT, Inode, POINTER_CLEARED, Property, ROOT_INODE};
use crate::fs::{Fs, Node, Thread};
use crate::property::load_property;
use crate::slot_owner::SlotOwner;
use crate::statistics::Event;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;
use pmem::{Flushed, LINE_BYTES, Memory};

/// Attempts of a loop that only another thread's death could make longer.
const TRIES_MAX: usize = 1 << 20;
/// Times that an operation goes on because single files were evicted: these may be the files that
/// it has loaded itself, and then it would never end.
const REFILLS_MAX: u32 = 4;

impl<M: Memory> Fs<M> {
    /// The cachelet that an inode's nv pointer names, if it is of this epoch and still that
    /// inode's.
    fn cachelet_by_pointer(&self, inode: &Inode, number: u64) -> Result<Option<u32>> {
        let index = match self.untouched {
            // Nothing is written to the image, so the pointers are kept in the DRAM region.
            true => self.dram.inode_links(number)?.load(Acquire),
            false => {
                let pointer = inode.nv_pointer.load_acquire();
                if (pointer >> 32) as u32 != self.epoch {
                    return Ok(None);
                }
                pointer as u32
            }
        };
        if index == 0 || index & POINTER_CLEARED != 0 {
            return Ok(None);
        }
        let cachelet = self.dram.cachelet(index)?;
        let is_it = cachelet.number.load(Acquire) == number && self.is_ready_when_published(cachelet);
        Ok(is_it.then_some(index))
    }

    /// Whether a cachelet that an nv pointer names stands for its inode. If the thread that
    /// published it has not come to say so, this one does. Pinned since before it read the pointer.
    fn is_ready_when_published(&self, cachelet: &Cachelet) -> bool {
        let mut word = cachelet.references.load(Acquire);
        if References::from_word(word).is_unpublished() {
            let ready = word & !References::flag(FLAG_EVICTED);
            // It fails if another thread has done so; by now the file may even be evicted.
            word = match cachelet.references.compare_exchange(word, ready, AcqRel, Acquire) {
                Ok(_) => ready,
                Err(now) => now,
            };
        }
        word & References::flag(FLAG_EVICTED) == 0
    }

    /// Without the inode quick path: the cachelet named by the nv pointer of the inode with this
    /// number.
    pub(crate) fn cachelet_by_number(&self, number: u64) -> Option<u32> {
        let inode = self.inode(number).ok()?;
        let index = self.cachelet_by_pointer(inode, number).ok()??;
        self.record_found_by_number(inode, number).ok()?;
        Some(index)
    }

    /// Reports the reads of a lookup by inode number: the segment table and the inode's first line.
    /// (Without a cachelet the whole inode is read and reported.) With the quick path such lookups
    /// are rare, and their lines are counted elsewhere.
    #[inline(always)]
    fn record_found_by_number(&self, inode: &Inode, number: u64) -> Result<()> {
        if !self.ablation.uses_targets() {
            self.pm.report_read(self.pm.offset_of(self.segment_entry(number / INODES_PER_SEGMENT)?), 8);
            self.pm.report_read(self.pm.offset_of(inode), LINE_BYTES);
        }
        Ok(())
    }

    /// Whether a cachelet is that of an inode, and still in use.
    pub(crate) fn is_cachelet_of(&self, index: u32, number: u64) -> Result<bool> {
        if index == 0 {
            return Ok(false);
        }
        let cachelet = self.dram.cachelet(index)?;
        // In this order: the state is set before the number, and this life does not end meanwhile.
        let has_number = cachelet.number.load(Acquire) == number;
        Ok(has_number && cachelet.references.load(Acquire) & References::flag(FLAG_EVICTED) == 0)
    }

    /// The word of an nv pointer.
    pub(crate) fn nv_pointer(&self, index: u32) -> u64 {
        index as u64 | (self.epoch as u64) << 32
    }

    /// The kind of file that a cachelet stands for.
    pub(crate) fn kind(&self, cachelet: &Cachelet) -> Result<FileKind> {
        FileKind::from_mode(cachelet.mode.load(Relaxed))
            .ok_or_else(|| Corruption::Inode(cachelet.number.load(Relaxed)).into())
    }
}

impl<'f, M: Memory> Cachelets<'_, 'f, M> {
    /// The cachelet of an inode number; made if there is none. No reference is taken: the caller is
    /// pinned.
    pub(crate) fn cachelet_of(self, number: u64) -> Result<u32> {
        let inode = self.owner.fs.inode(number)?;
        for _ in 0..TRIES_MAX {
            if let Some(index) = self.owner.fs.cachelet_by_pointer(inode, number)? {
                self.owner.fs.record_found_by_number(inode, number)?;
                return Ok(index);
            }
            if let Some(index) = self.make_cachelet(inode, number)? {
                return Ok(index);
            }
        }
        Err(Error::Busy)
    }

    /// Builds a cachelet from an inode and publishes it through the nv pointer; none if another
    /// thread was faster.
    fn make_cachelet(self, inode: &Inode, number: u64) -> Result<Option<u32>> {
        self.owner.fs.pm.report_read(self.owner.fs.pm.offset_of(inode), INODE_BYTES);
        let before = match self.owner.fs.untouched {
            true => self.owner.fs.dram.inode_links(number)?.load(Acquire) as u64,
            false => inode.nv_pointer.load_acquire(),
        };
        if self.owner.fs.cachelet_by_pointer(inode, number)?.is_some() {
            return Ok(None);
        }
        let generation = inode.generation(number).ok_or(Corruption::Inode(number))?;
        let (property, sequence) = inode.property(number, generation).ok_or(Corruption::Inode(number))?;
        // Attributes below a right seal may be impossible. Size and owner would mislead programs,
        // the kind also this one.
        let kind = FileKind::from_bits(inode.kind.load()).filter(|kind| property.kind() == Some(*kind));
        if !kind.is_some_and(|kind| property.size_fits(kind) && property.owners_fit()) {
            return Err(Corruption::Inode(number).into());
        }
        let index = self.owner.allocator().allocate_cachelet()?;
        let cachelet = self.owner.fs.dram.cachelet(index)?;
        self.fill_cachelet(cachelet, inode, generation, &property, sequence);
        let accessed = inode.accessed_ns.load();
        let accessed = if accessed == 0 { inode.born_ns.load() } else { accessed };
        cachelet.accessed_ns.store(accessed as i64, Relaxed);
        let is_directory = property.kind() == Some(FileKind::Directory);
        let links = if is_directory { property.links.min(DIRECTORY_LINKS) } else { property.links };
        let references = References { references: 0, links, flags: FLAG_READABLE | FLAG_EVICTED };
        cachelet.references.store(references.word(), Relaxed);
        may_die_here();
        cachelet.number.store(number, Release);
        may_die_here();
        // Not a point of death: a thread that dies exactly here loses the cachelet until detach.
        // With the record, a reaper would free what others may have used and freed meanwhile.
        self.owner.slot.in_flight.cachelet.store(0, Release);
        let published = match self.owner.fs.untouched {
            true => {
                let pointer = self.owner.fs.dram.inode_links(number)?;
                pointer.compare_exchange(before as u32, index, AcqRel, Acquire).is_ok()
            }
            false => self.owner.fs.pm.exchange_volatile(&inode.nv_pointer, before, self.owner.fs.nv_pointer(index)),
        };
        if published {
            may_die_here();
            self.owner.fs.is_ready_when_published(cachelet);
            self.owner.count_event(Event::FileLoaded);
            return Ok(Some(index));
        }
        self.owner.slot.in_flight.cachelet.store(index, Release);
        may_die_here();
        // It has had a number, so pinned threads may be looking at it.
        self.owner.recycler().retire(RetiredKind::Cachelet, index as u64, 0);
        may_die_here();
        self.owner.slot.in_flight.cachelet.store(0, Release);
        Ok(None)
    }

    /// Clears the pointer to a cachelet that is being evicted, unless it already leads elsewhere.
    pub(crate) fn clear_pointer(self, cachelet: &Cachelet, index: u32) -> Result<()> {
        let cleared = POINTER_CLEARED | self.owner.fs.header()?.pointers_cleared.fetch_add(1, Relaxed);
        if self.owner.fs.untouched {
            let pointer = self.owner.fs.dram.inode_links(cachelet.number.load(Relaxed))?;
            let _ = pointer.compare_exchange(index, cleared, AcqRel, Acquire);
        } else {
            let inode = self.owner.fs.inode_at(cachelet.inode.load(Relaxed))?;
            self.owner.fs.pm.exchange_volatile(
                &inode.nv_pointer,
                self.owner.fs.nv_pointer(index),
                self.owner.fs.nv_pointer(cleared),
            );
        }
        Ok(())
    }

    /// Sets all fields of a cachelet that no other thread can see yet, except `references`,
    /// `accessed_ns` and `number`.
    pub(crate) fn fill_cachelet(
        self,
        cachelet: &Cachelet,
        inode: &Inode,
        generation: u32,
        property: &Property,
        sequence: u32,
    ) {
        cachelet.mode.store(property.mode, Relaxed);
        if property.kind() == Some(FileKind::Directory) {
            cachelet.as_directory().fill(property.links.saturating_sub(DIRECTORY_LINKS));
            if property.modified_ns != property.changed_ns {
                cachelet.as_directory().mark_apart();
            }
        } else {
            cachelet.as_file().fill(property.size_bytes, property.root, property.blocks, inode.device.load());
        }
        cachelet.uid.store(property.uid, Relaxed);
        cachelet.gid.store(property.gid, Relaxed);
        cachelet.modified_ns.store(property.modified_ns, Relaxed);
        cachelet.changed_ns.store(property.changed_ns, Relaxed);
        cachelet.lock.store(0, Relaxed);
        cachelet.waiters.store(0, Relaxed);
        cachelet.inode.store(self.owner.fs.pm.offset_of(inode), Relaxed);
        cachelet.sequence.store(sequence, Relaxed);
        cachelet.generation.store(generation, Relaxed);
        cachelet.dirty.store(0, Relaxed);
        cachelet.next.store(0, Relaxed);
        cachelet.flags.store(property.flags, Relaxed);
        // Differs from every version of earlier lives of this cachelet: validation stamps outlive
        // them.
        cachelet.version.store((cachelet.version.load(Relaxed) & !1).wrapping_add(2), Relaxed);
    }

    /// Whether a rename is changing the names of this file (paper III.E: lookups wait it out).
    #[inline]
    pub(crate) fn is_renaming(self, cachelet: &Cachelet) -> bool {
        cachelet.references.load(Acquire) & References::flag(FLAG_RENAMING) != 0
    }

    /// Takes a reference, unless the cachelet is dead.
    #[inline]
    pub(crate) fn reference(self, cachelet: &Cachelet) -> bool {
        let before = cachelet.references.fetch_add(References::ONE_REFERENCE, AcqRel);
        if before & References::flag(FLAG_DEAD) == 0 {
            return true;
        }
        cachelet.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
        false
    }

    #[inline(never)]
    fn node_once(self, number: u64, generation: Option<u32>) -> Result<Node> {
        let _pin = self.owner.pin();
        let inode = self.owner.fs.inode(number).map_err(|_| Error::NotFound)?;
        let mut backoff = Backoff::new();
        for _ in 0..TRIES_MAX {
            // The identity of a free number may be that of its last life. The root's is never free.
            let is_taken = number == ROOT_INODE || self.owner.fs.inode_is_taken(number)?;
            if !is_taken || inode.generation(number).is_none() {
                return Err(Error::NotFound);
            }
            let index = self.cachelet_of(number)?;
            let cachelet = self.owner.fs.dram.cachelet(index)?;
            if generation.is_some_and(|generation| generation != cachelet.generation.load(Relaxed)) {
                return Err(Error::NotFound);
            }
            let state = References::from_word(cachelet.references.load(Acquire));
            let unused = !state.is_used() || state.flags & FLAG_DEAD != 0;
            if state.flags & FLAG_READABLE == 0 || (state.flags & FLAG_DELETED != 0 && unused) {
                return Err(Error::NotFound);
            }
            if self.reference(cachelet) {
                return Ok(Node { cachelet: index, number });
            }
            backoff.pause(self.owner.fs)?;
        }
        Err(Error::Busy)
    }

    /// See [`Thread::release`].
    pub(crate) fn release(self, node: Node, count: u32) {
        self.release_from(node, count, || {});
    }

    /// See [`Thread::release_recorded`].
    pub(crate) fn release_recorded(self, node: Node) {
        self.release_from(node, 1, || self.owner.unrecord_reference(node));
    }

    #[inline]
    fn release_from(self, node: Node, count: u32, unrecord: impl FnOnce()) {
        let Ok(cachelet) = self.owner.cachelet(node) else { return };
        let word = cachelet.references.load(Relaxed);
        if word & References::flag(FLAG_DELETED) != 0 {
            return self.release_last(node, cachelet, count, unrecord);
        }
        // A file with names just has one user less. Not a point of death: a thread that
        // dies exactly here loses the reference until detach.
        unrecord();
        debug_assert!(word as u32 >= count, "more references released than taken");
        let lessened = word.wrapping_sub(count as u64);
        if cachelet.references.compare_exchange(word, lessened, AcqRel, Relaxed).is_err() {
            self.release_last(node, cachelet, count, || {});
        }
    }

    #[cold]
    fn release_last(self, node: Node, cachelet: &'f Cachelet, count: u32, unrecord: impl FnOnce()) {
        let deleted = cachelet.references.load(Relaxed) & References::flag(FLAG_DELETED) != 0;
        if deleted {
            let _ = self.owner.recycler().make_room();
        }
        // Has a reaper check whether this was the last one.
        let intended = self.owner.slot.intent.victim.load(Relaxed);
        self.owner.slot.intent.victim.store(node.cachelet, Relaxed);
        may_die_here();
        let pin = self.owner.pin();
        // Not a point of death: a thread that dies exactly here loses the reference until detach.
        unrecord();
        let before = References::from_word(cachelet.references.fetch_sub(count as u64, AcqRel));
        debug_assert!(before.references >= count, "more references released than taken");
        may_die_here();
        let last = before.references == count && before.flags & FLAG_DELETED != 0;
        if last {
            self.retire_if_unused(node.cachelet, cachelet);
        }
        drop(pin);
        self.owner.slot.intent.victim.store(intended, Release);
        if last {
            self.owner.recycler().recycle_some();
        }
    }

    /// See [`Thread::hold_recorded`].
    pub(crate) fn hold_recorded(self, node: Node) -> Result<()> {
        let cachelet = self.owner.cachelet(node)?;
        // As in `release_from`: not a point of death.
        self.owner.unrecord_reference(node);
        let flag = References::flag(FLAG_HELD);
        let held = |word: u64| Some(word.wrapping_sub(References::ONE_REFERENCE) | flag);
        let _ = cachelet.references.fetch_update(AcqRel, Relaxed, held);
        Ok(())
    }

    /// See [`Thread::set_held`].
    pub(crate) fn set_held(self, node: Node, held: bool) -> Result<()> {
        let cachelet = self.owner.cachelet(node)?;
        let flag = References::flag(FLAG_HELD);
        if held {
            cachelet.references.fetch_or(flag, AcqRel);
            return Ok(());
        }
        let word = cachelet.references.load(Relaxed);
        let has_names = word & References::flag(FLAG_DELETED) == 0;
        if has_names && cachelet.references.compare_exchange(word, word & !flag, AcqRel, Relaxed).is_ok() {
            return Ok(());
        }
        if cachelet.references.load(Relaxed) & References::flag(FLAG_DELETED) != 0 {
            self.owner.recycler().make_room()?;
        }
        // Like `release_from`: has a reaper to check whether this was the last use.
        let intended = self.owner.slot.intent.victim.load(Relaxed);
        self.owner.slot.intent.victim.store(node.cachelet, Relaxed);
        may_die_here();
        let pin = self.owner.pin();
        let before = References::from_word(cachelet.references.fetch_and(!flag, AcqRel));
        may_die_here();
        let last = before.references == 0 && before.flags & FLAG_DELETED != 0;
        if last {
            self.retire_if_unused(node.cachelet, cachelet);
        }
        drop(pin);
        self.owner.slot.intent.victim.store(intended, Release);
        if last {
            self.owner.recycler().recycle_some();
        }
        Ok(())
    }

    /// Discards a file without a name that was made for an operation which failed. The only
    /// reference is the caller's. Pinned.
    pub(crate) fn discard_unnamed(self, node: Node) {
        let Ok(cachelet) = self.owner.cachelet(node) else { return };
        let state = References { references: 0, links: 0, flags: FLAG_READABLE | FLAG_DELETED };
        cachelet.references.store(state.word(), Release);
        self.retire_if_unused(node.cachelet, cachelet);
        self.owner.clear_in_flight();
    }

    /// Releases one reference while pinned.
    pub(crate) fn release_pinned(self, node: Node) {
        let Ok(cachelet) = self.owner.cachelet(node) else { return };
        cachelet.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
        self.retire_if_unused(node.cachelet, cachelet);
    }

    /// Retires the inode of a cachelet that has neither names nor references; one caller wins.
    /// Pinned.
    pub(crate) fn retire_if_unused(self, index: u32, cachelet: &Cachelet) {
        let word = cachelet.references.load(Acquire);
        let state = References::from_word(word);
        if state.is_used() || state.links != 0 || state.flags & FLAG_DEAD != 0 || state.flags & FLAG_DELETED == 0 {
            return;
        }
        // From before the cachelet is dead until it is in the queue, the slot records what it
        // reclaims.
        let intended = self.owner.slot.intent.victim.load(Relaxed);
        self.owner.slot.intent.victim.store(index, Relaxed);
        may_die_here();
        let references = References::reclaimed_by(self.owner.ticket());
        let dead = References { references, flags: state.flags | FLAG_DEAD, ..state }.word();
        if cachelet.references.compare_exchange(word, dead, AcqRel, Acquire).is_ok() {
            may_die_here();
            self.owner.recycler().retire(RetiredKind::Inode, cachelet.number.load(Relaxed), index as u64);
        }
        self.owner.slot.intent.victim.store(intended, Release);
    }

    /// The attributes of a cachelet as one consistent set, without a lock. For a directory `root`
    /// and `blocks` are zero.
    pub(crate) fn property(self, cachelet: &Cachelet) -> Result<Property> {
        let mut backoff = Backoff::new();
        loop {
            let version = cachelet.version.load(Acquire);
            if version & 1 == 1 {
                backoff.pause(self.owner.fs)?;
                continue;
            }
            let property = load_property(cachelet);
            fence(Acquire);
            if cachelet.version.load(Relaxed) == version {
                return Ok(property);
            }
        }
    }

    /// Under the cachelet's lock, after the fence: publishes `property`. Its links are ignored:
    /// they are in the state word.
    pub(crate) fn publish_property(self, cachelet: &Cachelet, property: &Property) {
        let is_directory = property.kind() == Some(FileKind::Directory);
        let version = cachelet.version.load(Relaxed);
        cachelet.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        may_die_here();
        cachelet.mode.store(property.mode, Relaxed);
        cachelet.flags.store(property.flags, Relaxed);
        cachelet.uid.store(property.uid, Relaxed);
        cachelet.gid.store(property.gid, Relaxed);
        if is_directory {
            // Creations and removals advance a directory's times without its lock, and only
            // forward.
            self.touch_apart(cachelet, property.changed_ns);
        } else {
            cachelet.as_file().size_bytes().store(property.size_bytes, Relaxed);
            cachelet.modified_ns.store(property.modified_ns, Relaxed);
            cachelet.changed_ns.store(property.changed_ns, Relaxed);
            cachelet.as_file().blocks().store(property.blocks, Relaxed);
            cachelet.as_file().root().store(property.root, Relaxed);
        }
        cachelet.version.store(version.wrapping_add(2), Release);
    }

    /// Persists the lazily kept attributes of a cachelet: a directory's times and links, an access
    /// time. The caller fences.
    pub(crate) fn write_back(self, cachelet: &'f Cachelet) -> Result<Flushed> {
        let mut flushed = Flushed::nothing();
        if self.owner.fs.untouched || cachelet.number.load(Acquire) == 0 {
            return Ok(flushed);
        }
        if cachelet.dirty.load(Acquire) & DIRTY != 0 {
            let _held = self.owner.lock(&cachelet.lock, &cachelet.waiters)?;
            // Checked again: a cachelet that was evicted meanwhile has nothing to write, and
            // another one stands for the inode.
            if cachelet.dirty.fetch_and(!DIRTY, AcqRel) & DIRTY != 0 {
                may_die_here();
                let property = self.property_now(cachelet);
                flushed = self.commit_attributes(cachelet, &property)?;
            }
        }
        let inode = self.owner.fs.inode_at(cachelet.inode.load(Relaxed))?;
        let accessed = cachelet.accessed_ns.load(Relaxed) as u64;
        let known = inode.accessed_ns.load();
        if accessed != known && !(known == 0 && accessed == inode.born_ns.load()) {
            cachelet.dirty.fetch_and(!PLAIN, AcqRel);
            flushed = flushed.and(self.owner.fs.pm.flush(self.owner.fs.pm.set64(&inode.accessed_ns, accessed)));
        }
        Ok(flushed)
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// The root directory, with a reference.
    pub fn root(&self) -> Result<Node> {
        match self.cachelets().node_once(ROOT_INODE, None) {
            Err(Error::NoMemory) => self.node(ROOT_INODE, None),
            found => found,
        }
    }

    /// The file of an inode number, with a reference. With a generation, only if the inode has that
    /// one.
    pub fn node(&self, number: u64, generation: Option<u32>) -> Result<Node> {
        self.retry_when_dram_full(|| self.cachelets().node_once(number, generation))
    }

    /// Runs an operation again after an eviction if it found the DRAM region full. Not pinned.
    pub(crate) fn retry_when_dram_full<R>(&self, operation: impl Fn() -> Result<R>) -> Result<R> {
        let mut refills_left = REFILLS_MAX;
        loop {
            let result = operation();
            if !matches!(result, Err(Error::NoMemory)) {
                return result;
            }
            if self.maintenance().evict_some()? {
                continue;
            }
            if refills_left == 0 || !self.maintenance().refill_cachelets()? {
                return result;
            }
            refills_left -= 1;
        }
    }

    /// Whether a file that the caller has a reference to has lost its last name.
    #[inline]
    pub fn is_removed(&self, node: Node) -> bool {
        self.cachelet(node)
            .is_ok_and(|cachelet| cachelet.references.load(Acquire) & References::flag(FLAG_DELETED) != 0)
    }

    /// Takes one more reference to a node that the caller already references.
    pub fn retain(&self, node: Node) -> Result<()> {
        self.cachelet(node)?.references.fetch_add(References::ONE_REFERENCE, AcqRel);
        Ok(())
    }

    /// Releases `count` references. The last one of a file without names frees it.
    #[inline(always)]
    pub fn release(&self, node: Node, count: u32) {
        self.cachelets().release(node, count);
    }

    /// Releases a recorded reference.
    #[inline(always)]
    pub fn release_recorded(&self, node: Node) {
        self.cachelets().release_recorded(node);
    }

    /// Turns a recorded reference into the mark of the layer above ([`Thread::set_held`]).
    #[inline(always)]
    pub fn hold_recorded(&self, node: Node) -> Result<()> {
        self.cachelets().hold_recorded(node)
    }

    /// Marks a file as held by the tables of the layer above, or clears the mark; idempotent. The
    /// last user of a file without names frees it. Calls for one file must be serialised; to set
    /// the mark the caller must have a reference.
    #[inline(always)]
    pub fn set_held(&self, node: Node, held: bool) -> Result<()> {
        self.cachelets().set_held(node, held)
    }
}

impl<M: Memory> SlotOwner<'_, M> {
    /// Records a reference that the calling thread will release by [`Thread::release_recorded`]; if
    /// it dies first, its reaper releases it. For references that live no longer than a call of the
    /// layer above. If all records are in use, none is made, and a death then loses the reference.
    #[inline]
    pub fn record_reference(&self, node: Node) {
        if let Some(word) = self.slot.references.iter().find(|word| word.load(Relaxed) == 0) {
            word.store(node.cachelet, Release);
        }
    }

    /// Removes the record of a reference, which another owner takes over.
    #[inline]
    pub fn unrecord_reference(&self, node: Node) {
        if let Some(word) = self.slot.references.iter().find(|word| word.load(Relaxed) == node.cachelet) {
            word.store(0, Release);
        }
    }

    /// Clears the record of in-flight allocations, which are owned by something now.
    pub(crate) fn clear_in_flight(&self) {
        self.clear_in_flight_except_cachelet();
        self.slot.in_flight.cachelet.store(0, Release);
    }

    pub(crate) fn clear_in_flight_except_cachelet(&self) {
        let in_flight = &self.slot.in_flight;
        may_die_here();
        in_flight.number.store(0, Release);
        for index in 0..2 {
            in_flight.dentries[index].store(0, Release);
            in_flight.slots[index].store(0, Release);
        }
    }
}
