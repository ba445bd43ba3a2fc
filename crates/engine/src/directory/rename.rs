//! Rename (paper III.E and III.F): a journal record that names every step, then the steps.
//!
//! One fence. Before it: the new dentries, the changed attributes, and the record, which certifies
//! itself. After it the rename is durable, because recovery repeats all steps: the log slots that
//! name the new dentries, the valid words of the old ones, the new `..`. The steps themselves are
//! stores that are not even flushed; the journal module defines when they become durable.
//!
//! A name that exists before and after (a replaced one, both of an exchange, that of a whiteout)
//! keeps its place in the log: the slot that named the old dentry names the new one, which has the
//! same cookie. Nothing on the image names the old dentry then, so it is retired at once.
//!
//! In DRAM the renaming flag is set on the moved files only while the mindex has both names or
//! neither; lookups wait until it is cleared.
//!
//! *Rejected* for such names: overwriting the old dentry (several words that readers see change, in
//! steps that cannot be repeated); a mark in the old dentry that leads to the new one (compaction
//! would have to follow it); a new slot (the name moves in listings, and the log grows).

use super::create::{NameTarget, PreparedName};
use super::moves::{DirectoryMove, MoveGuard};
use super::remove::{CountWaits, check_directory_links, link_count};
use super::{NewNode, RenameFlags, check_name};
use crate::attributes::Attributes;
use crate::backoff::Backoff;
use crate::components::Renames;
use crate::death::may_die_here;
use crate::dram::{Cachelet, DirectoryState, FLAG_DEAD, FLAG_RENAMING, IntentKind, References, RetiredKind};
use crate::epoch::Pin;
use crate::error::{Error, Result};
use crate::format::{Dentry, FileKind, JournalRecord, Move, SlotTag, dentry_lines, slot_word};
use crate::fs::{Node, Thread};
use crate::lock::LockGuard;
use crate::mindex::{HeldName, Hit, NameHash, NameKey, Target};
use crate::times::NameTime;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use pmem::{Durable, Flushed, Memory, Pm};

/// One side of a rename: a name in an indexed directory.
#[derive(Clone, Copy)]
struct RenameSide<'f, 'n> {
    directory: &'f Cachelet,
    index: u32,
    number: u64,
    name: &'n [u8],
    hash: NameHash,
}

impl<'n> RenameSide<'_, 'n> {
    fn key(&self) -> NameKey<'n> {
        NameKey { parent: self.number, name: self.name, hash: self.hash }
    }
}

/// Fails if a name that is held now is not that of the file that was found before.
fn check_unchanged<M: Memory>(held: &HeldName<'_, M>, found: Option<&SideTarget<'_>>) -> Result<()> {
    let now = held.found().map(|hit| hit.dentry_offset);
    if now == found.map(|found| found.dentry_offset) { Ok(()) } else { Err(Error::Busy) }
}

/// The file of a side's name. No reference is taken: eviction spares files that are being renamed.
#[derive(Clone, Copy)]
struct SideTarget<'f> {
    dentry_offset: u64,
    hit: Hit<'f>,
    inode: u64,
    index: u32,
    cachelet: &'f Cachelet,
    kind: FileKind,
}

impl SideTarget<'_> {
    fn named(&self) -> NameTarget {
        NameTarget::of(self.cachelet, self.kind)
    }
}

/// What happens to the old name.
enum OldName<'f> {
    /// It is removed.
    Vacated,
    /// The other file gets it.
    Exchanged(PreparedName<'f>),
    /// A whiteout gets it: its prepared name and its node.
    Whiteout(PreparedName<'f>, Node),
}

/// All that a rename changes, once nothing can fail any more.
struct RenameChange<'c, 'f> {
    source: &'c SideTarget<'f>,
    /// The previous holder of the new name.
    victim: Option<&'c SideTarget<'f>>,
    /// For a replaced file: whether it has other names.
    others: Option<bool>,
    /// The new name.
    arrival: &'c PreparedName<'f>,
    old_name: &'c OldName<'f>,
    time: NameTime,
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Renames, durably. `permit` sees the attributes of the moved file and of the file that is
    /// replaced or exchanged, and can refuse.
    pub fn rename(
        &self,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        flags: RenameFlags,
        permit: impl Fn(&Attributes, Option<&Attributes>) -> Result<()>,
    ) -> Result<()> {
        self.fs.writable()?;
        check_name(from.1)?;
        check_name(to.1)?;
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(Error::Invalid);
        }
        let hashes = [from, to].map(|(directory, name)| self.fs.hash_name(directory.number, name));
        hashes.into_iter().for_each(|hash| self.fs.prefetch_bucket_for_write(hash));
        let attempt = || {
            let mut backoff = Backoff::new();
            let mut waits = CountWaits::default();
            loop {
                match self.renames().rename_once(from, to, hashes, flags, &permit) {
                    // The names changed while they were read without their buckets.
                    Err(Error::Busy) => {
                        let names = [(from.0, from.1, hashes[0]), (to.0, to.1, hashes[1])];
                        self.wait_for_files_of(&mut backoff, &names)?;
                    }
                    Err(Error::NotEmpty) if !self.renames().is_full(to)? => self.wait_for_counts(&mut waits)?,
                    result => return result,
                }
            }
        };
        match self.retry_when_full(attempt) {
            Err(Error::NoSpace) => self.maintenance().retry_compacted([from.0, to.0], attempt)?,
            result => result?,
        }
        self.after_removal(from.0)?;
        if to.0 != from.0 { self.after_removal(to.0) } else { Ok(()) }
    }
}

impl<'f, M: Memory> Renames<'_, 'f, M> {
    /// Whether a name is that of a directory in which names can be found.
    fn is_full(self, (directory, name): (Node, &[u8])) -> Result<bool> {
        let (_pin, cachelet) = self.thread.pin_indexed(directory)?;
        let hash = self.thread.fs.hash_name(directory.number, name);
        match self.find_side(&RenameSide {
            directory: cachelet,
            index: directory.cachelet,
            number: directory.number,
            name,
            hash,
        })? {
            Some(found) if found.kind == FileKind::Directory => self.thread.has_names(found.index, found.cachelet),
            _ => Ok(false),
        }
    }

    fn rename_once(
        self,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        hashes: [NameHash; 2],
        flags: RenameFlags,
        permit: &impl Fn(&Attributes, Option<&Attributes>) -> Result<()>,
    ) -> Result<()> {
        // Both directories must be indexed under one pin.
        let (pin, old_directory) = self.thread.pin_indexed(from.0)?;
        let new_directory = self.thread.cachelet(to.0)?;
        if self.thread.fs.kind(new_directory)? != FileKind::Directory {
            return Err(Error::NotADirectory);
        }
        if DirectoryState::of(new_directory) != DirectoryState::Indexed {
            drop(pin);
            return self.thread.pin_indexed(to.0).and(Err(Error::Busy));
        }
        let old = RenameSide {
            directory: old_directory,
            index: from.0.cachelet,
            number: from.0.number,
            name: from.1,
            hash: hashes[0],
        };
        let new = RenameSide {
            directory: new_directory,
            index: to.0.cachelet,
            number: to.0.number,
            name: to.1,
            hash: hashes[1],
        };
        let source = self.find_side(&old)?.ok_or(Error::NotFound)?;
        let victim = self.find_side(&new)?;
        self.rename_found(pin, &old, &new, source, victim, flags, permit)
    }

    #[allow(clippy::too_many_arguments)]
    fn rename_found(
        self,
        pin: Pin<'_, 'f, M>,
        old: &RenameSide<'f, '_>,
        new: &RenameSide<'f, '_>,
        source: SideTarget<'f>,
        victim: Option<SideTarget<'f>>,
        flags: RenameFlags,
        permit: &impl Fn(&Attributes, Option<&Attributes>) -> Result<()>,
    ) -> Result<()> {
        let same = victim.is_some_and(|victim| victim.inode == source.inode);
        let fits = self.check_kinds(&source, victim.as_ref(), flags, (old.number, new.number));
        if same || fits.is_err() {
            self.check_at_once((old, &source), (new, victim.as_ref()))?;
            return fits;
        }
        if let Some(victim) = victim
            && victim.kind == FileKind::Directory
            && !flags.exchange
            && DirectoryState::of(victim.cachelet) != DirectoryState::Indexed
        {
            return self.index_victim(pin, victim);
        }
        let _moving = match self.guard_tree(old, new, &source, victim.as_ref(), flags) {
            Err(error) => {
                return self.check_at_once((old, &source), (new, victim.as_ref())).and(Err(error));
            }
            guarded => guarded?,
        };
        let intent = &self.thread.slot.intent;
        intent.file.store(source.index, Relaxed);
        // Noted once its lock is held: until then other threads may change the links that are noted
        // with it.
        intent.victim.store(0, Relaxed);
        intent.old[0].store(source.dentry_offset, Relaxed);
        intent.old[1].store(victim.map_or(0, |victim| victim.dentry_offset), Relaxed);
        let kind = if flags.exchange { IntentKind::Exchange } else { IntentKind::Rename };
        self.thread.intend(kind, [old.index, new.index], [old.hash, new.hash]);
        let result = self.rename_prepared(old, new, source, victim, flags, permit);
        self.thread.end_intent();
        drop(pin);
        result
    }

    /// Checks that two names, which were read one after the other, existed at the same time, and
    /// that no rename was under way between them; otherwise `Busy`.
    ///
    /// That time is when the flags are read. The thread has been pinned since before the names were
    /// read, so a dentry that is found again afterwards existed throughout. Without a flag, no
    /// rename has added one of the names and still has to remove the other. If the new name was
    /// missing, the time is when it was missing: the old name existed before and still exists.
    fn check_at_once(
        self,
        (old, source): (&RenameSide<'f, '_>, &SideTarget<'f>),
        (new, victim): (&RenameSide<'f, '_>, Option<&SideTarget<'f>>),
    ) -> Result<()> {
        let moving = self.thread.cachelets().is_renaming(source.cachelet)
            || victim.is_some_and(|victim| self.thread.cachelets().is_renaming(victim.cachelet));
        if !moving
            && self.is_unchanged(old, source)?
            && victim.map_or(Ok(true), |victim| self.is_unchanged(new, victim))?
        {
            Ok(())
        } else {
            Err(Error::Busy)
        }
    }

    fn is_unchanged(self, side: &RenameSide<'f, '_>, found: &SideTarget<'f>) -> Result<bool> {
        let again = self.thread.fs.find(side.number, side.name, side.hash)?;
        Ok(again.is_some_and(|hit| hit.dentry_offset == found.dentry_offset))
    }

    fn find_side(self, side: &RenameSide<'f, '_>) -> Result<Option<SideTarget<'f>>> {
        match self.thread.fs.find(side.number, side.name, side.hash)? {
            None => Ok(None),
            Some(hit) => self.resolve(hit).map(Some),
        }
    }

    fn resolve(self, hit: Hit<'f>) -> Result<SideTarget<'f>> {
        let inode = hit.dentry.number();
        let index = self.thread.cachelet_of_target(&hit)?;
        let cachelet = self.thread.fs.dram.cachelet(index)?;
        self.thread.cachelets().prefetch_property(cachelet);
        Ok(SideTarget {
            dentry_offset: hit.dentry_offset,
            hit,
            inode,
            index,
            cachelet,
            kind: self.thread.fs.kind(cachelet)?,
        })
    }

    /// The order of errors is Linux's: ancestry is checked before kinds.
    fn check_kinds(
        self,
        source: &SideTarget<'f>,
        victim: Option<&SideTarget<'f>>,
        flags: RenameFlags,
        (old, new): (u64, u64),
    ) -> Result<()> {
        match victim {
            None if flags.exchange => Err(Error::NotFound),
            Some(_) if flags.no_replace => Err(Error::Exists),
            Some(victim) if !flags.exchange && source.inode != victim.inode => {
                match (source.kind == FileKind::Directory, victim.kind == FileKind::Directory) {
                    (true, false) if self.is_ancestor(source.inode, new)? => Err(Error::Loop),
                    (true, false) => Err(Error::NotADirectory),
                    (false, true) if self.is_ancestor(victim.inode, old)? => Err(Error::NotEmpty),
                    (false, true) => Err(Error::IsADirectory),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Indexes a directory that is about to be replaced, which shows whether it is empty. Then the
    /// rename starts again.
    fn index_victim(self, pin: Pin<'_, 'f, M>, victim: SideTarget<'f>) -> Result<()> {
        if self.thread.cachelets().reference(victim.cachelet) {
            let node = Node { cachelet: victim.index, number: victim.inode };
            self.thread.record_reference(node);
            drop(pin);
            let indexed = self.thread.pin_indexed(node).map(|_| ());
            self.thread.release_recorded(node);
            indexed?;
        }
        Err(Error::Busy)
    }

    /// Ensures that a directory that moves to another parent does not become its own ancestor.
    fn guard_tree(
        self,
        old: &RenameSide<'f, '_>,
        new: &RenameSide<'f, '_>,
        source: &SideTarget<'f>,
        victim: Option<&SideTarget<'f>>,
        flags: RenameFlags,
    ) -> Result<Option<MoveGuard<'f>>> {
        let is_directory = |found: &&SideTarget<'f>| found.kind == FileKind::Directory;
        let moves = Some(source).filter(is_directory);
        let back = victim.filter(is_directory).filter(|_| flags.exchange);
        if old.number == new.number || (moves.is_none() && back.is_none()) {
            return Ok(None);
        }
        let to = |found: &SideTarget<'f>, side: &RenameSide<'f, '_>| DirectoryMove {
            directory: found.inode,
            parent: side.number,
        };
        let guard = match (moves, back) {
            (Some(source), Some(victim)) => self.begin_moves(&[to(source, new), to(victim, old)]),
            (Some(one), None) => self.begin_moves(&[to(one, new)]),
            (None, Some(one)) => self.begin_moves(&[to(one, old)]),
            (None, None) => return Ok(None),
        }?;
        if let Some(replaced) = victim.filter(is_directory).filter(|_| !flags.exchange)
            && self.is_ancestor(replaced.inode, old.number)?
        {
            return Err(Error::NotEmpty);
        }
        if moves.is_some() {
            check_directory_links(new.directory)?;
        }
        if back.is_some() {
            check_directory_links(old.directory)?;
        }
        Ok(Some(guard))
    }

    /// Claims what the new names need, then renames.
    fn rename_prepared(
        self,
        old: &RenameSide<'f, '_>,
        new: &RenameSide<'f, '_>,
        source: SideTarget<'f>,
        victim: Option<SideTarget<'f>>,
        flags: RenameFlags,
        permit: &impl Fn(&Attributes, Option<&Attributes>) -> Result<()>,
    ) -> Result<()> {
        let vacates = !flags.exchange && flags.whiteout.is_none();
        let arrival = match victim {
            None if vacates && old.number == new.number => {
                self.thread.prepare_moving(new.directory, new.number, new.name.len())?
            }
            _ => self.prepare_new_name(new, victim.as_ref())?,
        };
        let old_name = match self.prepare_old_name(old, &source, flags) {
            Ok(old_name) => old_name,
            Err(error) => return Err(self.thread.give_up_name(&arrival, error)),
        };
        let result = self.rename_held(old, new, source, victim, &arrival, &old_name, permit);
        if let Err(error) = result {
            let error = self.thread.give_up_name(&arrival, error);
            return Err(match &old_name {
                OldName::Vacated => error,
                OldName::Exchanged(name) => self.thread.give_up_name(name, error),
                OldName::Whiteout(name, node) => {
                    let error = self.thread.give_up_name(name, error);
                    // Last: it clears the slot's record of in-flight allocations.
                    self.thread.cachelets().discard_unnamed(*node);
                    error
                }
            });
        }
        Ok(())
    }

    /// Claims what a side's name needs, in the place of its present holder.
    fn prepare_new_name(self, side: &RenameSide<'f, '_>, now: Option<&SideTarget<'f>>) -> Result<PreparedName<'f>> {
        match now {
            None => self.thread.prepare_name(side.directory, side.number, side.name.len()),
            Some(now) => {
                let heir_of = (now.hit.dentry, now.dentry_offset);
                self.thread.prepare_replacement(side.directory, side.number, side.name.len(), heir_of)
            }
        }
    }

    fn prepare_old_name(
        self,
        old: &RenameSide<'f, '_>,
        source: &SideTarget<'f>,
        flags: RenameFlags,
    ) -> Result<OldName<'f>> {
        if flags.exchange {
            return Ok(OldName::Exchanged(self.prepare_new_name(old, Some(source))?));
        }
        let Some((uid, gid)) = flags.whiteout else { return Ok(OldName::Vacated) };
        let name = self.prepare_new_name(old, Some(source))?;
        let new = NewNode {
            kind: FileKind::Character,
            permissions: 0,
            uid,
            gid,
            device: 0,
            target: b"",
            extended: &[],
            flags: crate::FileFlags::NONE,
        };
        match self.thread.make_unnamed(old.directory, &new, 1) {
            Ok(node) => Ok(OldName::Whiteout(name, node)),
            Err(error) => Err(self.thread.give_up_name(&name, error)),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn rename_held(
        self,
        old: &RenameSide<'f, '_>,
        new: &RenameSide<'f, '_>,
        source: SideTarget<'f>,
        victim: Option<SideTarget<'f>>,
        arrival: &PreparedName<'f>,
        old_name: &OldName<'f>,
        permit: &impl Fn(&Attributes, Option<&Attributes>) -> Result<()>,
    ) -> Result<()> {
        let (held_old, held_new) = self.thread.names().hold_both(&old.key(), &new.key())?;
        check_unchanged(&held_old, Some(&source))?;
        check_unchanged(&held_new, victim.as_ref())?;
        // In this order: names, journal, files. So no two renames wait for each other.
        let _journal = self.thread.borrow_journal()?;
        let source_attributes = self.thread.attributes(source.cachelet)?;
        match &victim {
            None => permit(&source_attributes, None)?,
            Some(victim) => permit(&source_attributes, Some(&self.thread.attributes(victim.cachelet)?))?,
        }
        let replaced = victim.filter(|_| !matches!(old_name, OldName::Exchanged(_)));
        // Before the flags: of two renames of one file by two of its names, the second waits here.
        let files = self.lock_files(&source, victim.as_ref())?;
        if let Some(victim) = &victim {
            self.thread.intend_victim(victim.index, victim.cachelet);
        }
        self.begin_renaming(&source, victim.as_ref(), replaced.as_ref())?;
        may_die_here();
        let replaced_file = replaced.filter(|replaced| replaced.kind != FileKind::Directory);
        let others = replaced_file.map(|replaced| link_count(replaced.cachelet) > 1);
        let time =
            self.thread.cachelets().name_time(old.directory).max(self.thread.cachelets().name_time(new.directory));
        // From here to the fence: plain stores and flushes only.
        let change = RenameChange { source: &source, victim: victim.as_ref(), others, arrival, old_name, time };
        let persisted = self.rename_persist(old, new, &change);
        let mut dead = false;
        if let Ok(record) = &persisted {
            may_die_here();
            // Not earlier: it may be the last link, and a rename that fails could not restore that.
            dead = replaced_file.is_some_and(|replaced| self.thread.drop_counted_link(replaced.cachelet));
            may_die_here();
            let target = Target::Cachelet(source.index);
            match victim {
                None => self.thread.names().insert_entry(&held_new, arrival.dentry_offset, target),
                Some(_) => self.thread.names().replace_entry(&held_new, arrival.dentry_offset, target),
            }
            self.complete_old_name(&held_old, victim.as_ref(), old_name);
            self.thread.take_effect();
            for (offset, lines) in self.reused_slots(record)?.into_iter().flatten() {
                self.thread.recycler().retire(RetiredKind::Dentry, offset, lines);
            }
            // Not earlier: other threads remove the records of finished renames, and a reaper
            // recognises an unfinished one by its record.
            self.thread.end_journal()?;
        }
        self.end_renaming(&source, victim.as_ref());
        drop(files);
        persisted?;
        drop(held_new);
        self.thread.names().release_removed(held_old);
        self.count_rename(old, new, &change, dead);
        Ok(())
    }

    /// Flags the moved files as being renamed; ensures that a replaced directory is empty and stays
    /// so. These are the last steps that can fail.
    fn begin_renaming(
        self,
        source: &SideTarget<'f>,
        victim: Option<&SideTarget<'f>>,
        replaced: Option<&SideTarget<'f>>,
    ) -> Result<()> {
        for (done, found) in [Some(source), victim].into_iter().flatten().enumerate() {
            let before = found.cachelet.references.fetch_or(References::flag(FLAG_RENAMING), AcqRel);
            if before & References::flag(FLAG_DEAD) != 0 {
                // Evicted meanwhile. No thread waits for a dead cachelet, so its flag may stay; the
                // other file's must not.
                if done == 1 {
                    self.end_renaming(source, None);
                }
                return Err(Error::Busy);
            }
            if found.kind == FileKind::Directory {
                // From here on no validation stamp of a path through the directory matches.
                found.cachelet.as_directory().count_rename();
            }
        }
        if let Some(replaced) = replaced
            && replaced.kind == FileKind::Directory
            && !self.thread.forbid_names(replaced.cachelet)
        {
            self.end_renaming(source, victim);
            return Err(Error::NotEmpty);
        }
        Ok(())
    }

    fn end_renaming(self, source: &SideTarget<'f>, victim: Option<&SideTarget<'f>>) {
        for found in [Some(source), victim].into_iter().flatten() {
            found.cachelet.references.fetch_and(!References::flag(FLAG_RENAMING), AcqRel);
        }
    }

    /// Locks the files that are moved, replaced or exchanged, in the order of their cachelets.
    /// Their flags and the links of the replaced file then belong to this thread, and to the reaper
    /// of this thread. (Directories are protected by their names: a directory's lock precedes
    /// names, which are held.)
    fn lock_files(
        self,
        source: &SideTarget<'f>,
        victim: Option<&SideTarget<'f>>,
    ) -> Result<[Option<LockGuard<'f>>; 2]> {
        let is_file = |found: &&SideTarget<'f>| found.kind != FileKind::Directory;
        let (first, second) = match (Some(source).filter(is_file), victim.filter(is_file)) {
            (Some(a), Some(b)) if b.index < a.index => (Some(b), Some(a)),
            pair => pair,
        };
        let lock = |found: Option<&SideTarget<'f>>| -> Result<Option<LockGuard<'f>>> {
            found.map(|found| self.thread.lock(&found.cachelet.lock, &found.cachelet.waiters)).transpose()
        };
        Ok([lock(first)?, lock(second)?])
    }

    /// The persistent part. Only errors of corrupt offsets can occur, before anything is durable.
    fn rename_persist(
        self,
        old: &RenameSide<'f, '_>,
        new: &RenameSide<'f, '_>,
        change: &RenameChange<'_, 'f>,
    ) -> Result<JournalRecord> {
        let pm = &self.thread.fs.pm;
        let &RenameChange { source, victim, others, arrival, old_name, time } = change;
        let mut record = JournalRecord {
            moves: [self.move_of(arrival, source, new, old), Move::default()],
            invalidated: [source.dentry_offset, victim.map_or(0, |victim| victim.dentry_offset)],
            timestamp_ns: time.recorded(),
            sequence: 0,
        };
        let mut flushed = self.thread.write_dentry_alone(arrival, source.named(), new.name, time)?.flushed();
        match (old_name, victim) {
            (OldName::Exchanged(name), Some(victim)) => {
                record.moves[1] = self.move_of(name, victim, old, new);
                flushed = flushed.and(self.thread.write_dentry_alone(name, victim.named(), old.name, time)?.flushed());
                flushed = flushed.and(self.stamp_renamed(victim, time.shown_ns)?);
            }
            (OldName::Whiteout(name, node), _) => {
                record.moves[1] =
                    Move { slot: pm.offset_of(name.slot.word), dentry: name.dentry_offset, directory: 0, parent: 0 };
                let whiteout = NameTarget::of(self.thread.cachelet(*node)?, FileKind::Character);
                flushed = flushed.and(self.thread.write_dentry_alone(name, whiteout, old.name, time)?.flushed());
            }
            _ => {}
        }
        if let (Some(victim), Some(others)) = (victim, others) {
            flushed = flushed.and(self.thread.stamp_unlinked(victim.cachelet, others, time.shown_ns)?);
        }
        flushed = flushed.and(self.stamp_renamed(source, time.shown_ns)?);
        let recorded = self.thread.write_journal(&record)?;
        // Crash point before this fence: unless the record and its new dentries verify, the rename
        // has not happened. After the fence recovery repeats the steps, whichever of them are
        // durable.
        let durable = self.thread.fence_names(flushed.and(recorded));
        self.rename_steps(change, &record, durable)?;
        Ok(record)
    }

    /// The dentries (offset and lines) whose log slots the new dentries of a record have inherited,
    /// as their equal cookies show.
    pub(crate) fn reused_slots(self, record: &JournalRecord) -> Result<[Option<(u64, u64)>; 2]> {
        let mut all = [None; 2];
        let [arrival, old_place] = record.moves.map(|step| step.dentry);
        let [source, victim] = record.invalidated;
        for (inherited, (new, old)) in all.iter_mut().zip([(arrival, victim), (old_place, source)]) {
            if new == 0 || old == 0 {
                continue;
            }
            let [new, before] =
                [self.thread.fs.pm.get(Pm::<Dentry>::new(new))?, self.thread.fs.pm.get(Pm::<Dentry>::new(old))?];
            if let Some(facts) = before.facts()
                && new.parent.load() == facts.parent
                && new.cookie.load() == facts.cookie
            {
                *inherited = Some((old, dentry_lines(facts.name_length as usize)));
            }
        }
        Ok(all)
    }

    /// The journal's words for a name that appears.
    fn move_of(
        self,
        name: &PreparedName<'f>,
        what: &SideTarget<'f>,
        to: &RenameSide<'f, '_>,
        from: &RenameSide<'f, '_>,
    ) -> Move {
        let moves_directory = what.kind == FileKind::Directory && to.number != from.number;
        Move {
            slot: self.thread.fs.pm.offset_of(name.slot.word),
            dentry: name.dentry_offset,
            directory: if moves_directory { what.cachelet.inode.load(Relaxed) } else { 0 },
            parent: if moves_directory { to.number } else { 0 },
        }
    }

    /// Stores the steps that the journal names. `durable` proves that the record and the dentries
    /// are. The steps need not be flushed: see the journal module.
    fn rename_steps(self, change: &RenameChange<'_, 'f>, record: &JournalRecord, durable: Durable) -> Result<()> {
        let pm = &self.thread.fs.pm;
        let &RenameChange { source, victim, arrival, old_name, time, .. } = change;
        let gone_ns = time.recorded();
        for step in record.moves.iter().filter(|step| step.directory != 0) {
            pm.commit(&self.thread.fs.inode_at(step.directory)?.parent, step.parent, durable).unflushed();
        }
        pm.commit(arrival.slot.word, slot_word(arrival.dentry_offset, SlotTag::Dentry), durable).unflushed();
        if let OldName::Exchanged(name) | OldName::Whiteout(name, _) = old_name {
            pm.commit(name.slot.word, slot_word(name.dentry_offset, SlotTag::Dentry), durable).unflushed();
        }
        // After the slots: a reader that finds the old dentry invalid finds the new one in its
        // place.
        for dentry in [Some(source), victim].into_iter().flatten().map(|found| found.hit.dentry) {
            pm.retract(&dentry.valid, dentry.invalid_word(gone_ns)).unflushed();
        }
        Ok(())
    }

    /// Sets a renamed file's change time; its lock is held. A directory's change time is kept
    /// lazily.
    fn stamp_renamed(self, source: &SideTarget<'f>, changed_ns: i64) -> Result<Flushed> {
        let cachelet = source.cachelet;
        if source.kind == FileKind::Directory {
            self.thread.cachelets().touch_apart(cachelet, changed_ns);
            may_die_here();
            self.thread.cachelets().mark_dirty(cachelet);
            return Ok(Flushed::nothing());
        }
        let mut property = self.thread.cachelets().property_now(cachelet);
        property.change(|property| property.changed_ns = changed_ns);
        let flushed = self.thread.cachelets().commit_attributes(cachelet, &property)?;
        self.thread.cachelets().publish_property(cachelet, &property);
        Ok(flushed)
    }

    /// Updates the mindex at the old name.
    fn complete_old_name(self, held: &HeldName<'f, M>, victim: Option<&SideTarget<'f>>, old_name: &OldName<'f>) {
        match (old_name, victim) {
            (OldName::Exchanged(name), Some(victim)) => {
                self.thread.names().replace_entry(held, name.dentry_offset, Target::Cachelet(victim.index));
            }
            (OldName::Whiteout(name, node), _) => {
                self.thread.names().replace_entry(held, name.dentry_offset, Target::Cachelet(node.cachelet));
            }
            _ => self.thread.names().remove_entry(held),
        }
    }

    /// Updates the directories' counts and retires what was replaced. `dead`: this thread reclaims
    /// the replaced file. (New names are counted when they are prepared.)
    fn count_rename(
        self,
        old: &RenameSide<'f, '_>,
        new: &RenameSide<'f, '_>,
        change: &RenameChange<'_, 'f>,
        dead: bool,
    ) {
        let &RenameChange { source, victim, arrival, old_name, time, .. } = change;
        let moves_link = |kind: FileKind, from: &Cachelet, to: &Cachelet| {
            if kind == FileKind::Directory && old.number != new.number {
                self.thread.uncount_subdirectory(from);
                self.thread.count_subdirectory(to);
            }
        };
        moves_link(source.kind, old.directory, new.directory);
        // The log slot of a replaced name is a hole, unless the new name has inherited it.
        let own_place = |name: &PreparedName<'_>| !name.slot.reused;
        let leaves_hole = match old_name {
            OldName::Vacated => true,
            OldName::Exchanged(name) | OldName::Whiteout(name, _) => own_place(name),
        };
        if !arrival.moves {
            self.thread.count_removal(old.directory, leaves_hole, time);
        }
        match (old_name, victim) {
            (OldName::Exchanged(_), Some(victim)) => {
                moves_link(victim.kind, new.directory, old.directory);
                self.thread.count_removal(new.directory, own_place(arrival), time);
            }
            (_, Some(victim)) => {
                self.thread.count_removal(new.directory, own_place(arrival), time);
                if victim.kind == FileKind::Directory {
                    self.thread.uncount_subdirectory(new.directory);
                    self.thread.reclaim_directory(victim.cachelet, victim.index);
                } else if dead {
                    self.thread.reclaim_file(victim.cachelet, victim.index);
                }
            }
            _ => self.thread.cachelets().touch_directory(new.directory, time),
        }
        if let OldName::Whiteout(_, node) = old_name {
            // Its reference is no longer an in-flight allocation.
            may_die_here();
            self.thread.slot.in_flight.cachelet.store(0, Release);
            self.thread.cachelets().release_pinned(*node);
        }
    }
}
