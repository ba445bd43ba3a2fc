//! Making names (DirectFS paper III.E and III.F, algorithm 1): create, link, files without a name.
//!
//! A create persists four lines: the inode's identity, its first property entry, the dentry, and
//! the log slot. Each certifies itself, so they share one fence. A crash before the fence leaves
//! any subset of them. Recovery follows a slot only where dentry, identity and property entry all
//! verify, and otherwise drops the slot; the call had not yet reported success.
//!
//! *Reason:* if the name had to follow the inode, a create would need two fences, and a fence costs
//! as much as the rest of the call. Releases of locks between flush and fence are plain stores,
//! since a locked instruction would wait for flushes in flight.
//!
//! Steps, from [`Thread::create`] on: docs/architecture.md, "The life of a create".

use super::log::ClaimedSlot;
use super::{DIRECTORY_LINKS_MAX, LINKS_MAX, NameLocation, NewNode, check_name};
use crate::death::may_die_here;
use crate::dram::{Cachelet, CountChange, FLAG_DELETED, FLAG_READABLE, FLAG_UNNAMED, IntentKind, PLAIN, References};
use crate::error::{Error, Result};
use crate::file::write_new_body;
use crate::format::{
    Dentry, DentryFacts, FileKind, INLINE_BYTES_MAX, Inode, PROPERTY_INLINE, ParentWord, Property, SlotTag,
    TARGET_BYTES_MAX, Valid, dentry_lines, is_possible_target, next_reuse_generation, slot_word,
};
use crate::fs::{Node, Thread};
use crate::mindex::{NameHash, NameKey, Target};
use crate::property::{DurableProperty, write_attributes};
use crate::times::NameTime;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{Flushed, FlushedRecord, Memory, Pm, Sealed};

/// A prepared name: the space for its dentry and its log slot are claimed.
pub(super) struct PreparedName<'f> {
    pub directory: &'f Cachelet,
    pub parent: u64,
    pub dentry_offset: u64,
    pub slot: ClaimedSlot<'f>,
    /// Whether the name is counted as the hole that it leaves elsewhere in the directory's log; see
    /// [`CountChange::MOVE`].
    pub moves: bool,
    lines: u64,
}

/// The file that a name stands for.
#[derive(Clone, Copy)]
pub(super) struct NameTarget {
    number: u64,
    generation: u32,
    kind: FileKind,
}

impl NameTarget {
    /// The file of a cachelet.
    pub(super) fn of(cachelet: &Cachelet, kind: FileKind) -> NameTarget {
        NameTarget { number: cachelet.number.load(Relaxed), generation: cachelet.generation.load(Relaxed), kind }
    }
}

/// A prepared inode: number and cachelet are allocated, long symlink targets are written.
struct PreparedInode<'f> {
    number: u64,
    cachelet_index: u32,
    cachelet: &'f Cachelet,
    inode: &'f Inode,
    property: DurableProperty,
    /// Root of the initial extended attributes; zero: none.
    xattrs: u64,
    time: NameTime,
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Makes a file, directory, symbolic link or special file and returns it with a reference.
    /// Fails with `Exists` if the name is taken. The name is durable when the call returns.
    pub fn create(&self, directory: Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        let location = self.name_location(directory, name);
        self.prefetch_name(&location);
        self.create_at(&location, false, new)
    }

    /// [`Thread::create`] for callers that have already prefetched or looked up the place.
    ///
    /// `seems_absent` says that a recent lookup did not find the name ([`Thread::seems_absent`]);
    /// then it is looked up again only under its bucket. If it exists after all, a slot of the
    /// directory's log is lost.
    pub fn create_at(&self, location: &NameLocation<'_>, seems_absent: bool, new: &NewNode<'_>) -> Result<Node> {
        self.fs.writable()?;
        check_name(location.name)?;
        let result = self.retry_when_full(|| self.create_once(location, seems_absent, new));
        self.names().flush_name_count()?;
        self.recycler().recycle_some();
        if let Ok(node) = result {
            self.unrecord_reference(node);
        }
        result
    }

    /// Runs an operation, and again if it found no space or memory but recycling or eviction freed
    /// some. Not pinned.
    pub(crate) fn retry_when_full<R>(&self, operation: impl Fn() -> Result<R>) -> Result<R> {
        self.leaving_spare(|| self.retry_with_spare(operation))
    }

    /// [`Thread::retry_when_full`] for an operation that takes no space for long.
    pub(crate) fn retry_with_spare<R>(&self, operation: impl Fn() -> Result<R>) -> Result<R> {
        self.retry_after_recycling(|| self.retry_when_dram_full(&operation))
    }

    fn create_once(&self, location: &NameLocation<'_>, seems_absent: bool, new: &NewNode<'_>) -> Result<Node> {
        let NameLocation { directory, name, hash } = *location;
        let (_pin, parent) = self.pin_indexed(directory)?;
        if !seems_absent && self.fs.has(directory.number, name, hash)? {
            return Err(Error::Exists);
        }
        self.intend(IntentKind::Create, [directory.cachelet, 0], [hash, hash]);
        let result = self.create_intended(parent, directory.number, name, hash, new);
        self.end_intent();
        if let Ok(node) = result {
            self.record_reference(node);
        }
        result
    }

    fn create_intended(
        &self,
        parent: &'f Cachelet,
        parent_number: u64,
        name: &[u8],
        hash: NameHash,
        new: &NewNode<'_>,
    ) -> Result<Node> {
        let prepared = self.prepare_name(parent, parent_number, name.len())?;
        let is_directory = new.kind == FileKind::Directory;
        if is_directory {
            // Directly after the count of names, which shares the cache line.
            self.count_subdirectory(parent);
        }
        self.create_prepared(&prepared, parent, name, hash, new).map_err(|error| {
            if is_directory {
                self.uncount_subdirectory(parent);
            }
            self.give_up_name(&prepared, error)
        })
    }

    #[inline(always)]
    fn create_prepared(
        &self,
        prepared: &PreparedName<'f>,
        parent: &Cachelet,
        name: &[u8],
        hash: NameHash,
        new: &NewNode<'_>,
    ) -> Result<Node> {
        if new.kind == FileKind::Directory && parent.links(true) > DIRECTORY_LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let fresh = self.prepare_inode(new, parent)?;
        let created = self.publish_created(prepared, &fresh, name, hash, new);
        if created.is_err() {
            self.give_up_inode(&fresh)?;
        }
        created
    }

    /// Claims what a new name needs.
    #[inline]
    pub(super) fn prepare_name(&self, directory: &'f Cachelet, parent: u64, length: usize) -> Result<PreparedName<'f>> {
        self.prepare_name_with_slot(directory, parent, length, false, || self.claim_slot(directory))
    }

    /// [`Thread::prepare_name`] for a name that takes the place of another name of the same
    /// directory.
    pub(super) fn prepare_moving(
        &self,
        directory: &'f Cachelet,
        parent: u64,
        length: usize,
    ) -> Result<PreparedName<'f>> {
        self.prepare_name_with_slot(directory, parent, length, true, || self.claim_slot(directory))
    }

    /// [`Thread::prepare_name`] for a dentry that replaces the dentry at an offset under the same
    /// name.
    pub(super) fn prepare_replacement(
        &self,
        directory: &'f Cachelet,
        parent: u64,
        length: usize,
        replaced: (&Dentry, u64),
    ) -> Result<PreparedName<'f>> {
        self.prepare_name_with_slot(directory, parent, length, false, || self.reuse_slot(directory, replaced))
    }

    /// Counts the name before a slot is claimed, which keeps the directory from being removed
    /// meanwhile. Both steps change the same cache line of the directory and run back to back, so
    /// that the line moves between processors once.
    #[inline]
    fn prepare_name_with_slot(
        &self,
        directory: &'f Cachelet,
        parent: u64,
        length: usize,
        moves: bool,
        slot: impl FnOnce() -> Result<ClaimedSlot<'f>>,
    ) -> Result<PreparedName<'f>> {
        let lines = dentry_lines(length);
        let dentry_offset = self.allocator().allocate_lines(lines)?;
        // When a name moves, one of the two slots will be a hole, even if the rename fails, and the
        // number of names stays the same.
        let is_alive = match moves {
            true => self.count_names(directory, CountChange::MOVE),
            false => self.count_names(directory, CountChange::NAME),
        };
        let claimed = match is_alive {
            true if moves => slot().inspect_err(|_| directory.as_directory().uncount_holes(1)),
            true => slot().inspect_err(|_| self.uncount_name(directory)),
            false => Err(Error::NotFound),
        };
        match claimed {
            Ok(slot) => {
                self.record_log_slot(dentry_offset | lines, self.fs.pm.offset_of(slot.word));
                Ok(PreparedName { directory, parent, dentry_offset, slot, moves, lines })
            }
            Err(error) => {
                self.allocator().free_lines(dentry_offset, lines)?;
                Err(error)
            }
        }
    }

    /// Gives back what `prepare_name` claimed; a slot that was not inherited stays a hole. Returns
    /// the error that caused the rollback.
    pub(super) fn give_up_name(&self, prepared: &PreparedName<'f>, error: Error) -> Error {
        if prepared.slot.reused {
            self.uncount_name(prepared.directory);
        } else if !prepared.moves {
            self.count_names(prepared.directory, CountChange::NAME_TO_HOLE);
        }
        match self.allocator().free_lines(prepared.dentry_offset, prepared.lines) {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }

    #[inline(always)]
    fn prepare_inode(&self, new: &NewNode<'_>, parent: &Cachelet) -> Result<PreparedInode<'f>> {
        let number = self.allocator().allocate_inode()?;
        let prepared = self.allocator().allocate_cachelet().and_then(|cachelet_index| {
            let prepared = self.prepare_attributes(new, parent, number, cachelet_index);
            if prepared.is_err() {
                self.allocator().free_cachelet(cachelet_index)?;
            }
            prepared
        });
        if prepared.is_err() {
            self.allocator().put_back_inode(number)?;
        }
        prepared
    }

    #[inline(always)]
    fn prepare_attributes(
        &self,
        new: &NewNode<'_>,
        parent: &Cachelet,
        number: u64,
        cachelet_index: u32,
    ) -> Result<PreparedInode<'f>> {
        let (cachelet, inode) = (self.fs.dram.cachelet(cachelet_index)?, self.fs.inode(number)?);
        let time = self.cachelets().name_time(parent);
        let property = self.as_owner(number, || self.first_property(new, inode, time.shown_ns))?;
        let xattrs = if new.extended.is_empty() { 0 } else { self.prepare_xattrs(new, number, inode, &property)? };
        Ok(PreparedInode { number, cachelet_index, cachelet, inode, property, xattrs, time })
    }

    /// Writes a new inode's extended attributes and commits their root word to the inode, durably:
    /// no checksum of the identity covers that word. A crash from here on leaves it in a free
    /// inode, where recovery clears it. Returns the root word.
    fn prepare_xattrs(&self, new: &NewNode<'_>, number: u64, inode: &Inode, property: &Property) -> Result<u64> {
        let pm = &self.fs.pm;
        let written = match new.kind {
            // A symbolic link may already have a body, which this error path would have to free.
            FileKind::Symlink => Err(Error::NotSupported),
            _ => self.as_owner(number, || self.files().write_new_xattrs(new.extended)),
        };
        let root = match written {
            Ok(root) => root,
            Err(error) => {
                crate::file::free_body(self, property.root)?;
                return Err(error);
            }
        };
        let durable = pm.fence_unfenced();
        pm.persist(pm.commit(&inode.xattrs, root, durable));
        Ok(root)
    }

    /// The first property entry of a new inode.
    fn first_property(&self, new: &NewNode<'_>, inode: &Inode, timestamp_ns: i64) -> Result<DurableProperty> {
        let mut property = Property {
            mode: new.kind.mode_bits() | new.permissions & 0o7777,
            flags: new.flags.of_new(),
            links: if new.kind == FileKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            size_bytes: 0,
            blocks: 0,
            modified_ns: timestamp_ns,
            changed_ns: timestamp_ns,
            root: 0,
        };
        if new.kind != FileKind::Symlink {
            return Ok(DurableProperty::without_body(property));
        }
        match new.target {
            [] => return Err(Error::NotFound),
            long if long.len() as u64 > TARGET_BYTES_MAX => return Err(Error::NameTooLong),
            target if !is_possible_target(target) => return Err(Error::Invalid),
            _ => {}
        }
        property.size_bytes = new.target.len() as u64;
        // No checksum covers the target, so it is durable before any record that names it. A crash
        // from here on leaves an inline one in a free inode, where recovery clears it.
        let pm = &self.fs.pm;
        let durable = if new.target.len() <= INLINE_BYTES_MAX {
            property.flags |= PROPERTY_INLINE;
            pm.persist(pm.write_bytes(pm.offset_of(&inode.inline), new.target)?)
        } else {
            let (root, blocks, flushed) = write_new_body(self, new.target)?;
            (property.root, property.blocks) = (root, blocks);
            pm.fence(flushed)
        };
        Ok(DurableProperty::with_body(property, durable))
    }

    fn give_up_inode(&self, fresh: &PreparedInode<'f>) -> Result<()> {
        crate::file::free_body(self, fresh.property.root)?;
        if fresh.xattrs != 0 {
            // As for the inline area: the number's next life finds zero.
            self.fs.pm.persist(self.fs.pm.retract(&fresh.inode.xattrs, 0));
            crate::file::free_body(self, fresh.xattrs)?;
        }
        if fresh.property.flags & PROPERTY_INLINE != 0 {
            // The number's next life finds zeros.
            let pm = &self.fs.pm;
            pm.persist(pm.write_bytes(pm.offset_of(&fresh.inode.inline), &[0; INLINE_BYTES_MAX])?);
        }
        self.allocator().free_cachelet(fresh.cachelet_index)?;
        self.allocator().put_back_inode(fresh.number)
    }

    fn publish_created(
        &self,
        prepared: &PreparedName<'f>,
        fresh: &PreparedInode<'f>,
        name: &[u8],
        hash: NameHash,
        new: &NewNode<'_>,
    ) -> Result<Node> {
        let held = self.names().hold_name(&NameKey { parent: prepared.parent, name, hash })?;
        if held.found().is_some() {
            return Err(Error::Exists);
        }
        // From here to the fence: plain stores and flushes only.
        let inode = self.write_inode(fresh, new, Some(prepared))?;
        // `write_inode` has just written it.
        let generation = fresh.inode.birth.load() as u32;
        let named = NameTarget { number: fresh.number, generation, kind: new.kind };
        if self.fs.ablation.is_as_printed() {
            // Only in the lab: the order of the paper's algorithm, by its lines. First 1 and 2.
            let dentry = self.write_dentry_alone(prepared, named, name, fresh.time)?;
            self.fill_new_cachelet(fresh);
            self.set_readable(fresh.cachelet, false);
            // Line 3.
            self.names().insert_entry(&held, prepared.dentry_offset, Target::Cachelet(fresh.cachelet_index));
            drop(held);
            // Lines 10 to 12.
            let durable = self.persist_tail(prepared.directory, inode.and(dentry.flushed()))?;
            let word = slot_word(prepared.dentry_offset, SlotTag::Dentry);
            self.fs.pm.persist(self.fs.pm.commit(prepared.slot.word, word, durable));
            // Lines 13 to 15.
            self.cachelets().touch_directory(prepared.directory, fresh.time);
            self.set_readable(fresh.cachelet, true);
            self.take_effect();
            return Ok(Node { cachelet: fresh.cachelet_index, number: fresh.number });
        }
        let dentry = self.write_dentry(prepared, named, name, fresh.time)?;
        self.fill_new_cachelet(fresh);
        // Crash point: any subset of the four lines is durable. Recovery verifies all of them
        // before it follows the slot (attach::damage).
        debug_assert!(self.fs.recovery().follows(prepared.slot.word, prepared.parent), "recovery follows the slot");
        self.fence_names(inode.and(dentry));
        self.names().insert_entry(&held, prepared.dentry_offset, Target::Cachelet(fresh.cachelet_index));
        self.take_effect();
        drop(held);
        self.cachelets().touch_directory(prepared.directory, fresh.time);
        Ok(Node { cachelet: fresh.cachelet_index, number: fresh.number })
    }

    /// Writes and flushes a new inode's identity and first property entry. `name`: the name that
    /// the inode will have.
    fn write_inode(
        &self,
        fresh: &PreparedInode<'f>,
        new: &NewNode<'_>,
        name: Option<&PreparedName<'f>>,
    ) -> Result<Flushed> {
        let pm = &self.fs.pm;
        let inode = fresh.inode;
        let generation = inode.next_generation();
        let kind = new.kind as u32;
        let born = fresh.time.shown_ns as u64;
        let mut dirty = pm
            .set64(&inode.number, fresh.number)
            .and(pm.set32(&inode.kind, kind))
            .and(pm.set32(&inode.device, new.device))
            .and(pm.set64(&inode.born_ns, born))
            .and(pm.retract(&inode.log, 0))
            .and(pm.set64(&inode.nv_pointer, self.fs.nv_pointer(fresh.cachelet_index)));
        if fresh.xattrs == 0 {
            dirty = dirty.and(pm.retract(&inode.xattrs, 0));
        }
        dirty = dirty.and(match name {
            Some(name) if new.kind == FileKind::Directory => {
                let dentry = pm.get(Pm::<Dentry>::new(name.dentry_offset))?;
                pm.commit_recomputed(&ParentWord::of_name(inode, dentry), name.parent)
            }
            _ => pm.retract(&inode.parent, 0),
        });
        let birth = Inode::birth_word(fresh.number, kind, new.device, born, generation);
        let flushed = pm.flush(dirty.and(pm.commit_record(inode, birth)));
        let property = write_attributes(self.fs, inode, &fresh.property, 0, fresh.number, generation);
        Ok(flushed.and(property))
    }

    /// Writes a dentry and the log slot that names it, and flushes both. Recovery verifies the
    /// dentry's seal before it follows the slot.
    pub(super) fn write_dentry(
        &self,
        prepared: &PreparedName<'f>,
        named: NameTarget,
        name: &[u8],
        time: NameTime,
    ) -> Result<Flushed> {
        let dentry = self.write_dentry_alone(prepared, named, name, time)?;
        let word = slot_word(prepared.dentry_offset, SlotTag::Dentry);
        let slot = self.fs.pm.commit(prepared.slot.word, word, Sealed::checksummed(dentry));
        Ok(self.fs.pm.flush(slot))
    }

    /// Writes and flushes a dentry that nothing names yet.
    pub(super) fn write_dentry_alone(
        &self,
        prepared: &PreparedName<'f>,
        named: NameTarget,
        name: &[u8],
        time: NameTime,
    ) -> Result<FlushedRecord<Dentry>> {
        let pm = &self.fs.pm;
        let offset = prepared.dentry_offset;
        let dentry = pm.get(Pm::<Dentry>::new(offset))?;
        let facts = DentryFacts {
            inode: named.number,
            generation: named.generation,
            parent: prepared.parent,
            cookie: prepared.slot.cookie,
            kind: named.kind,
            name_length: name.len() as u8,
            reuse_generation: next_reuse_generation(dentry.valid.load()),
        };
        let valid = Valid { valid: true, timestamp_ns: time.recorded(), reuse_generation: facts.reuse_generation };
        let dirty = pm
            .set64(&dentry.inode, facts.inode_word())
            .and(pm.set64(&dentry.parent, facts.parent))
            .and(pm.set64(&dentry.cookie, facts.cookie))
            .and(pm.write_bytes(offset + crate::format::DENTRY_HEADER_BYTES, name)?)
            .and(pm.commit_record(dentry, valid.word()))
            .and(pm.set64(&dentry.seal, facts.seal(name)));
        Ok(pm.flush_record(dentry, dirty))
    }

    fn fill_new_cachelet(&self, fresh: &PreparedInode<'f>) {
        // `write_inode` has just written it.
        let generation = fresh.inode.birth.load() as u32;
        let cachelet = fresh.cachelet;
        self.cachelets().fill_cachelet(cachelet, fresh.inode, generation, &fresh.property, 0);
        cachelet.accessed_ns.store(fresh.time.shown_ns, Relaxed);
        if fresh.property.flags & PROPERTY_INLINE == 0 && fresh.xattrs == 0 {
            cachelet.dirty.store(PLAIN, Relaxed);
        }
        if fresh.property.kind() == Some(FileKind::Directory) {
            // A new directory is empty: nothing to index.
            cachelet.as_directory().state().store(crate::dram::DirectoryState::Indexed as u32, Relaxed);
        }
        let state = References { references: 1, links: fresh.property.links, flags: FLAG_READABLE };
        cachelet.references.store(state.word(), Relaxed);
        may_die_here();
        cachelet.number.store(fresh.number, Release);
    }

    /// Makes a file without a name (O_TMPFILE) and returns it with a reference. `link` can give it
    /// a name. A crash frees it.
    pub fn create_unnamed(&self, directory: Node, new: &NewNode<'_>) -> Result<Node> {
        self.fs.writable()?;
        if new.kind == FileKind::Directory {
            return Err(Error::Invalid);
        }
        self.retry_when_full(|| {
            let (_pin, parent) = self.pin_indexed(directory)?;
            if parent.as_directory().is_removed() {
                return Err(Error::NotFound);
            }
            self.intend(IntentKind::Create, [0; 2], [self.fs.hash_name(0, b""); 2]);
            let made = self.make_unnamed(parent, new, 0).and_then(|node| {
                let state = References { references: 1, links: 0, flags: FLAG_READABLE | FLAG_DELETED | FLAG_UNNAMED };
                self.cachelet(node)?.references.store(state.word(), Release);
                self.take_effect();
                Ok(node)
            });
            self.end_intent();
            made
        })
    }

    /// Makes an inode, durably, that no dentry names yet; after a crash recovery frees it. Returns
    /// it with a reference. Pinned.
    pub(super) fn make_unnamed(&self, parent: &Cachelet, new: &NewNode<'_>, links: u32) -> Result<Node> {
        let mut fresh = self.prepare_inode(new, parent)?;
        fresh.property.change(|property| property.links = links);
        let flushed = self.write_inode(&fresh, new, None)?;
        self.fill_new_cachelet(&fresh);
        self.fs.pm.fence(flushed);
        Ok(Node { cachelet: fresh.cachelet_index, number: fresh.number })
    }

    /// Gives a file another name, durably.
    pub fn link(&self, node: Node, directory: Node, name: &[u8]) -> Result<()> {
        self.fs.writable()?;
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket_for_write(hash);
        let result = self.retry_when_full(|| self.link_once(node, directory, name, hash));
        self.names().flush_name_count()?;
        self.recycler().recycle_some();
        result
    }

    fn link_once(&self, node: Node, directory: Node, name: &[u8], hash: NameHash) -> Result<()> {
        let (_pin, parent) = self.pin_indexed(directory)?;
        let cachelet = self.cachelet(node)?;
        self.cachelets().prefetch_property(cachelet);
        let kind = self.fs.kind(cachelet)?;
        if kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        if self.fs.has(directory.number, name, hash)? {
            return Err(Error::Exists);
        }
        self.slot.intent.file.store(0, Relaxed);
        self.intend(IntentKind::Link, [directory.cachelet, 0], [hash, hash]);
        let result = self.prepare_name(parent, directory.number, name.len()).and_then(|prepared| {
            self.publish_link(&prepared, node, cachelet, kind, name, hash)
                .map_err(|error| self.give_up_name(&prepared, error))
        });
        self.end_intent();
        result
    }

    fn publish_link(
        &self,
        prepared: &PreparedName<'f>,
        node: Node,
        cachelet: &'f Cachelet,
        kind: FileKind,
        name: &[u8],
        hash: NameHash,
    ) -> Result<()> {
        let held = self.names().hold_name(&NameKey { parent: prepared.parent, name, hash })?;
        if held.found().is_some() {
            return Err(Error::Exists);
        }
        let file = self.lock(&cachelet.lock, &cachelet.waiters)?;
        let before = (cachelet.references.load(Acquire) >> 32) as u32;
        self.slot.intent.file_before.store(before, Relaxed);
        self.slot.intent.file.store(node.cachelet, Release);
        may_die_here();
        self.add_link(cachelet)?;
        let time = self.cachelets().name_time(prepared.directory);
        let mut property = self.cachelets().property_now(cachelet);
        property.change(|property| property.changed_ns = time.shown_ns);
        let attributes = self.cachelets().commit_attributes(cachelet, &property)?;
        let dentry = self.write_dentry(prepared, NameTarget::of(cachelet, kind), name, time)?;
        // Crash point: links are recounted from dentries, and the name exists or does not.
        may_die_here();
        self.fence_names(attributes.and(dentry));
        self.cachelets().publish_property(cachelet, &property);
        self.names().insert_entry(&held, prepared.dentry_offset, Target::Cachelet(node.cachelet));
        self.take_effect();
        // Not earlier: the remover of another name of this file waits for this lock, and must find
        // this name in the mindex when it gets the lock.
        drop(file);
        drop(held);
        self.cachelets().touch_directory(prepared.directory, time);
        Ok(())
    }

    /// Counts one more link. Fails if the last link has gone, or if there are too many; a file made
    /// without a name may get its first link.
    fn add_link(&self, cachelet: &Cachelet) -> Result<()> {
        // The caller's reference keeps the cachelet from eviction.
        loop {
            let word = cachelet.references.load(Acquire);
            let mut state = References::from_word(word);
            if state.links == 0 && state.flags & FLAG_UNNAMED == 0 {
                return Err(Error::NotFound);
            }
            if state.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            state.links += 1;
            state.flags &= !(FLAG_DELETED | FLAG_UNNAMED);
            if cachelet.references.compare_exchange(word, state.word(), AcqRel, Acquire).is_ok() {
                return Ok(());
            }
        }
    }
}
