//! Removing names (paper III.E and III.F): one atomic store of <invalid, mtime> into the dentry,
//! one line flushed, one fence.
//!
//! The inode is recycled after its last user has released it; the dentry and its log slot when the
//! directory's log is compacted.
//!
//! After a crash the parent's modification time is the newest timestamp among its dentries that is
//! later than its property entry. So a dead dentry stays readable until that entry has its time;
//! compaction waits for it. Whether the call drops the last name, whether the file is open, and
//! which thread recycles it is decided by one compare-and-swap on the cachelet's reference word.
//!
//! *Reason:* with the directory's times changed once per tick, unlink fell from 3.9 to 2.9 times a
//! store that is flushed and fenced.

use super::{DIRECTORY_LINKS_MAX, check_name};
use crate::attributes::Attributes;
use crate::backoff::Backoff;
use crate::death::may_die_here;
use crate::dram::{
    Cachelet, CountChange, DirectoryState, FLAG_DEAD, FLAG_DELETED, IntentKind, References, RetiredKind,
};
use crate::error::{Error, Result};
use crate::format::{Dentry, FileKind};
use crate::fs::{Node, Thread};
use crate::mindex::{NameHash, NameKey};
use crate::sync::{AtomicU32, spin_loop};
use crate::times::NameTime;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use pmem::{Flushed, Memory};

/// Checks of a directory that seems to have names before the thread reaps the dead and sleeps.
const SPINS: u32 = 100;
/// Maximum number of checks.
const TRIES_MAX: u32 = 200;

/// How often a call has waited for a directory's count.
#[derive(Default)]
pub(super) struct CountWaits(u32);

/// Number of links of a file.
pub(super) fn link_count(cachelet: &Cachelet) -> u32 {
    References::from_word(cachelet.references.load(Acquire)).links
}

/// Fails if a directory has the maximum number of subdirectories.
pub(super) fn check_directory_links(directory: &Cachelet) -> Result<()> {
    if directory.links(true) < DIRECTORY_LINKS_MAX { Ok(()) } else { Err(Error::TooManyLinks) }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Removes a name of a file that is not a directory, durably. `permit` sees the file's
    /// attributes and can refuse.
    pub fn unlink(&self, directory: Node, name: &[u8], permit: impl Fn(&Attributes) -> Result<()>) -> Result<()> {
        self.fs.writable()?;
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket_for_write(hash);
        self.recycler().make_room()?;
        let mut backoff = Backoff::new();
        loop {
            let result = self.retry_when_dram_full(|| {
                let (_pin, parent) = self.pin_indexed(directory)?;
                self.unlink_pinned(parent, directory, name, hash, &permit)
            });
            match result {
                // The cachelet was evicted meanwhile.
                Err(Error::Busy) => {
                    self.wait_for_files_of(&mut backoff, &[(directory, name, hash)])?;
                    continue;
                }
                result => result?,
            }
            return self.after_removal(directory);
        }
    }

    fn unlink_pinned(
        &self,
        parent: &'f Cachelet,
        directory: Node,
        name: &[u8],
        hash: NameHash,
        permit: &impl Fn(&Attributes) -> Result<()>,
    ) -> Result<()> {
        let key = NameKey { parent: directory.number, name, hash };
        let held = self.names().hold_existing(&key)?.ok_or(Error::NotFound)?;
        let hit = held.found().ok_or(Error::NotFound)?;
        let index = self.cachelet_of_target(&hit)?;
        let cachelet = self.fs.dram.cachelet(index)?;
        let attributes = self.attributes(cachelet)?;
        if attributes.kind == FileKind::Directory {
            return Err(Error::IsADirectory);
        }
        permit(&attributes)?;
        let time = self.cachelets().name_time(parent);
        // One of several links is dropped under the file's lock. The lock also keeps the cachelet
        // from being evicted with another name.
        let several = link_count(cachelet) > 1;
        let file = if several { Some(self.lock(&cachelet.lock, &cachelet.waiters)?) } else { None };
        if file.is_some() && cachelet.references.load(Acquire) & References::flag(FLAG_DEAD) != 0 {
            return Err(Error::Busy);
        }
        let others = file.is_some() && link_count(cachelet) > 1;
        self.intend_removal(IntentKind::Unlink, (directory, hash), hit.dentry_offset, index, cachelet);
        let dropped = if others { Ok(false) } else { self.drop_last_link(cachelet) };
        if dropped.is_err() {
            self.end_intent();
        }
        let dead = dropped?;
        // From here to the fence: plain stores and flushes only.
        let attributes = self.stamp_unlinked(cachelet, others, time.shown_ns)?;
        let flushed = self.invalidate(hit.dentry, time);
        // Crash point before this fence: the word in the dentry's line decides whether the name
        // exists.
        self.fs.pm.fence(flushed.and(attributes));
        self.names().remove_entry(&held);
        if others {
            may_die_here();
            self.drop_counted_link(cachelet);
        }
        self.take_effect();
        drop(file);
        self.names().release_removed(held);
        if dead {
            self.reclaim_file(cachelet, index);
        }
        self.count_removal(parent, true, time);
        self.end_intent();
        Ok(())
    }

    /// Drops the only link of a file whose name's bucket is held, and decides in the same step
    /// whether this thread reclaims the file: it does if the file is unused. Returns that decision.
    /// Lookups that meet the dead cachelet wait until its name has left the mindex. `Busy` if the
    /// file has other links, or was evicted.
    fn drop_last_link(&self, cachelet: &Cachelet) -> Result<bool> {
        loop {
            let word = cachelet.references.load(Acquire);
            let mut state = References::from_word(word);
            if state.flags & FLAG_DEAD != 0 || state.links > 1 {
                return Err(Error::Busy);
            }
            state.links = 0;
            self.mark_deleted(&mut state);
            if cachelet.references.compare_exchange(word, state.word(), AcqRel, Acquire).is_ok() {
                return Ok(state.flags & FLAG_DEAD != 0);
            }
        }
    }

    /// Drops one link of a file whose lock is held, after its name has gone for good. The order
    /// matters: a thread that sees a single link left drops that one without the lock. Returns
    /// whether it was the last link and this thread reclaims the file.
    pub(crate) fn drop_counted_link(&self, cachelet: &Cachelet) -> bool {
        loop {
            let word = cachelet.references.load(Acquire);
            let mut state = References::from_word(word);
            state.links = state.links.saturating_sub(1);
            if state.links == 0 {
                self.mark_deleted(&mut state);
            }
            if cachelet.references.compare_exchange(word, state.word(), AcqRel, Acquire).is_ok() {
                return state.links == 0 && state.flags & FLAG_DEAD != 0;
            }
        }
    }

    /// The state of a file that has lost its last name; if it is unused, this thread reclaims it.
    fn mark_deleted(&self, state: &mut References) {
        state.flags |= FLAG_DELETED;
        if !state.is_used() {
            state.flags |= FLAG_DEAD;
            state.references = References::reclaimed_by(self.ticket());
        }
    }

    /// Writes the new number of links and the timestamp of a file with other names to the image,
    /// under the same fence as the name. Flushed. The file's lock is held if it has others; the
    /// count in DRAM follows later.
    pub(super) fn stamp_unlinked(&self, cachelet: &Cachelet, others: bool, timestamp_ns: i64) -> Result<Flushed> {
        if !others {
            cachelet.changed_ns.store(timestamp_ns, Relaxed);
            return Ok(Flushed::nothing());
        }
        let mut property = self.cachelets().property_now(cachelet);
        property.change(|property| {
            property.changed_ns = timestamp_ns;
            property.links = property.links.saturating_sub(1);
        });
        let flushed = self.cachelets().commit_attributes(cachelet, &property)?;
        self.cachelets().publish_property(cachelet, &property);
        Ok(flushed)
    }

    /// Retires a file that lost its last link while it was unused. Otherwise the release of the
    /// last reference does.
    pub(super) fn reclaim_file(&self, cachelet: &Cachelet, index: u32) {
        self.recycler().retire(RetiredKind::Inode, cachelet.number.load(Relaxed), index as u64);
    }

    /// Makes a dentry invalid from `time` on: one store, one line.
    pub(super) fn invalidate(&self, dentry: &Dentry, time: NameTime) -> Flushed {
        self.fs.pm.flush(self.fs.pm.retract(&dentry.valid, dentry.invalid_word(time.recorded())))
    }

    /// Counts a removed name, and a hole in the log unless another name has taken the slot.
    pub(super) fn count_removal(&self, directory: &Cachelet, leaves_hole: bool, time: NameTime) {
        match leaves_hole {
            true => {
                self.count_names(directory, CountChange::NAME_TO_HOLE);
            }
            false => self.uncount_name(directory),
        }
        may_die_here();
        self.cachelets().touch_directory(directory, time);
    }

    /// Work after a removal, not pinned: compaction and recycling.
    pub(super) fn after_removal(&self, directory: Node) -> Result<()> {
        self.names().flush_name_count()?;
        if self.fs.ablation.is_as_printed() {
            return Ok(());
        }
        self.maintenance().compact_if_worth_it(directory)?;
        self.recycler().recycle_some();
        Ok(())
    }

    /// Removes an empty directory, durably, if `permit` allows it.
    pub fn remove_directory(
        &self,
        directory: Node,
        name: &[u8],
        permit: impl Fn(&Attributes) -> Result<()>,
    ) -> Result<()> {
        self.fs.writable()?;
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket_for_write(hash);
        self.recycler().make_room()?;
        let mut waits = CountWaits::default();
        let mut backoff = Backoff::after_spinning();
        loop {
            let (pin, parent) = self.pin_indexed(directory)?;
            let (index, victim, number) = match self.find_cachelet(directory.number, name, hash, |_| {}) {
                Err(Error::Busy) => {
                    drop(pin);
                    self.wait_for_files_of(&mut backoff, &[(directory, name, hash)])?;
                    continue;
                }
                found => found?,
            };
            if self.fs.kind(victim)? != FileKind::Directory {
                return Err(Error::NotADirectory);
            }
            if DirectoryState::of(victim) == DirectoryState::Indexed {
                match self.remove_directory_pinned(parent, directory, name, hash, index, &permit) {
                    // Another file has the name now.
                    Err(Error::Busy) => continue,
                    Err(Error::NotEmpty) if !self.has_names(index, victim)? => {
                        drop(pin);
                        self.wait_for_counts(&mut waits)?;
                        continue;
                    }
                    result => result?,
                }
                break;
            }
            // Only an indexed directory is known to be empty, and indexing must not happen while a
            // bucket is held.
            if !self.cachelets().reference(victim) {
                continue;
            }
            let node = Node { cachelet: index, number };
            self.record_reference(node);
            drop(pin);
            let indexed = self.pin_indexed(node).map(|_| ());
            self.release_recorded(node);
            indexed?;
        }
        self.after_removal(directory)
    }

    /// Waits for threads that have counted a name in a directory that cannot be found yet, or no
    /// longer. Dead ones are reaped, after which the directory needs a recount. If a live thread
    /// makes no progress, its count stands and the directory is not empty. Not pinned.
    pub(super) fn wait_for_counts(&self, waits: &mut CountWaits) -> Result<()> {
        waits.0 += 1;
        match waits.0 {
            ..SPINS => spin_loop(),
            SPINS => drop(self.fs.reap_dead_threads()?),
            waits if waits < TRIES_MAX => self.fs.platform.wait(&AtomicU32::new(0), 0, 1),
            _ => return Err(Error::NotEmpty),
        }
        Ok(())
    }

    fn remove_directory_pinned(
        &self,
        parent: &'f Cachelet,
        directory: Node,
        name: &[u8],
        hash: NameHash,
        index: u32,
        permit: &impl Fn(&Attributes) -> Result<()>,
    ) -> Result<()> {
        let key = NameKey { parent: directory.number, name, hash };
        let held = self.names().hold_existing(&key)?.ok_or(Error::NotFound)?;
        let hit = held.found().ok_or(Error::NotFound)?;
        if self.cachelet_of_target(&hit)? != index {
            return Err(Error::Busy);
        }
        let victim = self.fs.dram.cachelet(index)?;
        permit(&self.attributes(victim)?)?;
        self.intend_removal(IntentKind::RemoveDirectory, (directory, hash), hit.dentry_offset, index, victim);
        // From here on no name can be made in it.
        if !self.forbid_names(victim) {
            self.end_intent();
            return Err(Error::NotEmpty);
        }
        may_die_here();
        let time = self.cachelets().name_time(parent);
        let flushed = self.invalidate(hit.dentry, time);
        // Crash point before this fence: the name exists or does not.
        self.fs.pm.fence(flushed);
        self.mark_removed(victim);
        self.names().remove_entry(&held);
        self.take_effect();
        self.names().release_removed(held);
        self.reclaim_directory(victim, index);
        self.uncount_subdirectory(parent);
        self.count_removal(parent, true, time);
        self.end_intent();
        Ok(())
    }

    /// Invalidates all validation stamps of a directory whose removal can no longer fail. This
    /// precedes the removal of its name: once a thread has seen the name gone, no stamp of the
    /// directory matches. (Of a replaced directory no stamp matches since the rename counted its
    /// move.) A reaper may repeat it.
    pub(crate) fn mark_removed(&self, victim: &Cachelet) {
        victim.references.fetch_or(References::flag(FLAG_DELETED), AcqRel);
        may_die_here();
    }

    /// Drops the links of a removed directory. The release of its last reference frees its inode. A
    /// reaper may repeat it.
    pub(crate) fn reclaim_directory(&self, victim: &Cachelet, index: u32) {
        loop {
            let word = victim.references.load(Acquire);
            let mut state = References::from_word(word);
            if state.flags & FLAG_DEAD != 0 {
                return;
            }
            state.links = 0;
            self.mark_deleted(&mut state);
            if victim.references.compare_exchange(word, state.word(), AcqRel, Acquire).is_ok() {
                may_die_here();
                if state.flags & FLAG_DEAD != 0 {
                    self.recycler().retire(RetiredKind::Inode, victim.number.load(Relaxed), index as u64);
                }
                return;
            }
        }
    }

    fn intend_removal(
        &self,
        kind: IntentKind,
        (directory, hash): (Node, NameHash),
        dentry_offset: u64,
        index: u32,
        victim: &Cachelet,
    ) {
        self.intend_victim(index, victim);
        self.slot.intent.old[0].store(dentry_offset, Relaxed);
        self.intend(kind, [directory.cachelet, 0], [hash, hash]);
    }
}
