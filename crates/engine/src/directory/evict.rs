//! Eviction from the mindex (paper III.G): when the DRAM region is full, unreferenced directories
//! leave it, first in first out, with a second chance for those used since the last pass. The queue
//! is the order of cachelets, visited by a clock hand. There is no list to maintain, so calls pay
//! nothing for it. If all directories are in use and cachelets are short, single files without
//! references leave; their names stay.
//!
//! Invariants
//! - A directory is evicted only while no other thread references it, and after all threads that
//!   relied on its names being indexed have left.
//! - A file's cachelet is freed only under its lock and from "no references" by CAS, after its
//!   lazily kept attributes were written back. From then on it is marked evicted, and a thread that
//!   meets it or gets its lock starts again from the inode. (A thread that removes one of several
//!   names, or indexes a directory, has the lock but may have no reference.)
//!
//! *Rejected:* the paper's recycle queue, which calls would maintain.

use crate::components::Maintenance;
use crate::death::may_die_here;
use crate::dram::{
    Cachelet, DIRTY, DirectoryState, FLAG_DEAD, FLAG_EVICTED, FLAG_HELD, FLAG_RENAMING, RETIRED_MAX, References,
    RetiredKind,
};
use crate::error::Result;
use crate::format::{FileKind, NAME_BYTES_MAX, Valid};
use crate::fs::Node;
use crate::lock::Patience;
use crate::statistics::Event;
use crate::times::NameTime;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::Memory;

/// How long to sleep until another thread has evicted a directory.
const EVICTION_WAIT_MS: u32 = 2;
/// Maximum number of directories that one call evicts.
const DIRECTORIES_PER_CALL: usize = 8;

/// Maximum number of single files that one call evicts: their records fit into the queue.
const FILES_PER_CALL: usize = 32;

/// Totals of a directory's log.
#[derive(Default)]
pub(super) struct Logged {
    /// Subdirectories.
    subdirectories: u32,
    /// The newest time that a dentry records.
    recorded_ns: u64,
    /// What that dentry named.
    newest: u64,
}

impl<'f, M: Memory> Maintenance<'_, 'f, M> {
    /// Evicts some directories. Returns whether any was evicted. Not pinned.
    pub(crate) fn evict_some(self) -> Result<bool> {
        self.evict_alone(|| {
            // Two rounds: the first may only clear second chances.
            let evicted = self.go_round(2, DIRECTORIES_PER_CALL, |index| self.evict_directory(index))?;
            self.thread.recycler().recycle(2 * RETIRED_MAX)?;
            Ok(evicted != 0)
        })
    }

    /// Evicts while no other thread does so. Returns what `evict` returns, or `false` if that
    /// cannot be.
    fn evict_alone(self, evict: impl FnOnce() -> Result<bool>) -> Result<bool> {
        // No directory can leave while a stopped thread may rely on its names.
        if self.thread.is_epoch_stalled()? {
            return Ok(false);
        }
        let header = self.thread.fs.header()?;
        // A stopped evictor makes the call fail for want of memory, not wait.
        let evicting = self.thread.lock_with(Patience::Long, &header.evict_lock, &header.rare_waiters)?;
        let Some(_evicting) = evicting else { return Ok(false) };
        evict()
    }

    /// Moves the clock hand until `evict` has evicted `max` cachelets, or `rounds` times round.
    /// Returns how many were evicted.
    fn go_round(self, rounds: u64, max: usize, evict: impl Fn(u32) -> Result<bool>) -> Result<usize> {
        let header = self.thread.fs.header()?;
        let end = header.cachelets_next.load(Acquire).min(self.thread.fs.dram.layout.cachelets_max) as u32;
        let mut evicted = 0;
        let mut cursor = header.evict_head.load(Relaxed);
        for _ in 0..rounds * end as u64 {
            cursor = if cursor + 1 >= end { 1 } else { cursor + 1 };
            evicted += usize::from(evict(cursor)?);
            if evicted == max {
                break;
            }
        }
        header.evict_head.store(cursor, Relaxed);
        Ok(evicted)
    }

    /// Gets free cachelets for this thread if it has none, by evicting files if need be. Returns
    /// whether it got any. Not pinned.
    pub(crate) fn refill_cachelets(self) -> Result<bool> {
        if self.thread.allocator().next_cachelet().is_some() {
            return Ok(false);
        }
        if self.thread.allocator().take_batch()? {
            return Ok(true);
        }
        self.evict_alone(|| {
            self.evict_files()?;
            Ok(self.thread.allocator().next_cachelet().is_some())
        })
    }

    /// Evicts single files, and frees what this thread has evicted or removed. What the slots of
    /// other threads keep free is out of reach: their lists have no lock. Not pinned.
    pub(crate) fn evict_files(self) -> Result<()> {
        self.thread.recycler().make_room()?;
        self.go_round(1, FILES_PER_CALL, |index| {
            let number = self.thread.fs.dram.cachelet(index)?.number.load(Acquire);
            if number == 0 { Ok(false) } else { self.evict_cachelet(index, number) }
        })?;
        self.thread.recycler().drain_for_space().map(drop)
    }

    /// Evicts one directory if it is eligible. Returns whether it was evicted.
    fn evict_directory(self, index: u32) -> Result<bool> {
        let Some(node) = self.take_candidate(index)? else { return Ok(false) };
        let directory = self.thread.cachelet(node)?;
        self.thread.intend_maintenance(index);
        let result = match directory.as_directory().maintain(self.thread.ticket()) {
            true => self.evict_maintained(directory),
            false => Ok(false),
        };
        directory.as_directory().end_maintaining(self.thread.ticket());
        self.thread.end_intent();
        self.thread.release_recorded(node);
        result
    }

    /// An unreferenced directory that has had its second chance, with a recorded reference: until
    /// it is evicted the cachelet must not be reused for another file.
    fn take_candidate(self, index: u32) -> Result<Option<Node>> {
        let directory = self.thread.fs.dram.cachelet(index)?;
        if DirectoryState::of(directory) != DirectoryState::Indexed {
            return Ok(None);
        }
        let _pin = self.thread.pin();
        let number = directory.number.load(Acquire);
        let candidate = number != 0
            && FileKind::from_mode(directory.mode.load(Relaxed)) == Some(FileKind::Directory)
            && DirectoryState::of(directory) == DirectoryState::Indexed
            && self.is_unused(directory);
        if !candidate || directory.as_directory().clear_used() || !self.thread.cachelets().reference(directory) {
            return Ok(None);
        }
        let node = Node { cachelet: index, number };
        self.thread.record_reference(node);
        Ok(Some(node))
    }

    fn is_unused(self, directory: &Cachelet) -> bool {
        let state = References::from_word(directory.references.load(Acquire));
        !state.is_used() && state.flags & (FLAG_DEAD | FLAG_EVICTED) == 0
    }

    fn evict_maintained(self, directory: &'f Cachelet) -> Result<bool> {
        {
            let _held = self.thread.lock(&directory.lock, &directory.waiters)?;
            let state = References::from_word(directory.references.load(Acquire));
            let only_here = state.references == 1 && state.flags & FLAG_HELD == 0;
            if DirectoryState::of(directory) != DirectoryState::Indexed || !only_here {
                return Ok(false);
            }
            DirectoryState::set(directory, DirectoryState::Evicting);
        }
        // The lock is not held meanwhile: see `evict_announced`.
        if !self.thread.wait_briefly_for_grace_period()? {
            // A reaper may have found meanwhile that it needs a recount.
            let evicting = |word: u32| {
                (word & 0xff == DirectoryState::Evicting as u32)
                    .then_some(word & !0xff | DirectoryState::Indexed as u32)
            };
            let _ = directory.as_directory().state().fetch_update(AcqRel, Acquire, evicting);
            self.thread.fs.platform.wake(directory.as_directory().state());
            return Ok(false);
        }
        self.evict_announced(directory)?;
        Ok(true)
    }

    /// Takes the names of a directory that a dead thread left in need of a recount out of the
    /// mindex, so that they are indexed and counted again. Not pinned.
    pub(super) fn evict_for_recount(self, directory: Node) -> Result<()> {
        let cachelet = self.thread.cachelet(directory)?;
        self.thread.intend_maintenance(directory.cachelet);
        let result = match cachelet.as_directory().maintain(self.thread.ticket()) {
            true => self.evict_for_recount_maintained(cachelet),
            false => {
                self.thread.fs.platform.wait(
                    cachelet.as_directory().state(),
                    cachelet.as_directory().state().load(Relaxed),
                    EVICTION_WAIT_MS,
                );
                // The thread that maintains it may have died.
                self.thread.fs.reap_dead_threads().map(drop)
            }
        };
        cachelet.as_directory().end_maintaining(self.thread.ticket());
        self.thread.end_intent();
        result
    }

    fn evict_for_recount_maintained(self, directory: &'f Cachelet) -> Result<()> {
        {
            let _held = self.thread.lock(&directory.lock, &directory.waiters)?;
            if DirectoryState::of(directory) != DirectoryState::NeedsRecount {
                return Ok(());
            }
            DirectoryState::set(directory, DirectoryState::Evicting);
        }
        // The links may already be right, changed by a thread that died before it set the dirty
        // mark.
        directory.dirty.fetch_or(DIRTY, AcqRel);
        self.thread.wait_for_grace_period()?;
        self.evict_announced(directory)
    }

    /// Evicts a directory in state `Evicting`, a grace period after that was set. Threads that saw
    /// it indexed have left; later ones wait for the state to change and index again. The lock is
    /// not held meanwhile: others may wait for it while pinned, and the grace period waits for
    /// them.
    fn evict_announced(self, directory: &'f Cachelet) -> Result<()> {
        // Nothing else leads to the last page later.
        self.thread.fs.pm.fence(self.thread.flush_used_slots(directory)?);
        may_die_here();
        self.thread.fs.discard_changes(directory)?;
        may_die_here();
        let result = self.remove_names(directory);
        // Now, not at the next indexing, which may never happen; the links and times are written
        // back.
        if let Ok(found) = &result {
            self.thread.set_subdirectories(directory, found.subdirectories);
            let shown_ns = directory.changed_ns.load(Relaxed);
            // No error ends this: others wait until the directory is absent.
            let changed_ns = self.thread.cachelets().changed_in_entry(directory, shown_ns).unwrap_or(shown_ns);
            if let Some(shown_ns) = self.thread.fs.recovered_ns(found.recorded_ns, found.newest, changed_ns) {
                self.thread.cachelets().touch_directory(directory, NameTime { shown_ns, recorded_ns: shown_ns });
            }
        }
        may_die_here();
        DirectoryState::set(directory, DirectoryState::Absent);
        self.thread.fs.platform.wake(directory.as_directory().state());
        self.thread.names().flush_name_count()?;
        result.map(drop)
    }

    /// Recounts directories that dead threads left in need of a recount and that have not been used
    /// since. Called by the last process to leave, before links are written back.
    pub(crate) fn recount_directories(self) -> Result<()> {
        let end = self.thread.fs.header()?.cachelets_next.load(Acquire).min(self.thread.fs.dram.layout.cachelets_max);
        for index in 1..end as u32 {
            let directory = self.thread.fs.dram.cachelet(index)?;
            let number = directory.number.load(Acquire);
            if number != 0 && DirectoryState::of(directory) == DirectoryState::NeedsRecount {
                self.evict_for_recount(Node { cachelet: index, number })?;
            }
        }
        Ok(())
    }

    /// Removes all names of a directory from the mindex, and frees the cachelets of unused files
    /// with them, once no thread relies on the names. Returns the totals of the log.
    pub(super) fn remove_names(self, directory: &'f Cachelet) -> Result<Logged> {
        let number = directory.number.load(Relaxed);
        let mut offset = self.thread.fs.inode_at(directory.inode.load(Relaxed))?.log.load_acquire();
        let (mut pages, mut found) = (0, Logged::default());
        let mut buffer = [0u8; NAME_BYTES_MAX + 1];
        while offset != 0 && pages < self.thread.fs.blocks() {
            pages += 1;
            let (page, _) = self.thread.fs.log_page(offset, number)?;
            for (index, slot) in page.used_slots().iter().enumerate() {
                if index % 32 == 0 {
                    self.thread.recycler().make_room()?;
                }
                let Ok(Some((dentry, offset, facts))) = self.thread.fs.dentry_of_slot(slot.load_acquire(), number)
                else {
                    continue;
                };
                let valid = Valid::from_word(dentry.valid.load_acquire());
                found.subdirectories += u32::from(valid.valid && facts.kind == FileKind::Directory);
                if valid.timestamp_ns > found.recorded_ns {
                    (found.recorded_ns, found.newest) = (valid.timestamp_ns, facts.inode);
                }
                let name = crate::mindex::dentry_name(self.thread.fs, offset, facts.name_length, &mut buffer)?;
                let hash = self.thread.fs.hash_name(number, name);
                let target = {
                    let held = self.thread.names().hold_dentry(hash, offset, false)?;
                    let target = held.as_ref().and_then(|held| held.found()).map(|found| found.target);
                    if let Some(held) = held {
                        self.thread.names().remove_entry(&held);
                        self.thread.names().release_removed(held);
                    }
                    target
                };
                if let Some(index) = self.thread.fs.cachelet_of_removed(target, facts.inode) {
                    self.evict_cachelet(index, facts.inode)?;
                }
            }
            offset = page.next.load_acquire();
        }
        Ok(found)
    }

    /// Frees a file's cachelet if it is unused. Returns whether it was.
    fn evict_cachelet(self, index: u32, number: u64) -> Result<bool> {
        let _pin = self.thread.pin();
        let cachelet = self.thread.fs.dram.cachelet(index)?;
        // Nor does it wait for a thread that has the file locked.
        let is_it = cachelet.number.load(Acquire) == number;
        if !is_it || !self.is_unused(cachelet) || cachelet.lock.load(Relaxed) != 0 {
            return Ok(false);
        }
        let flushed = self.thread.cachelets().write_back(cachelet)?;
        self.thread.fs.pm.fence(flushed);
        let Some(_held) = self.thread.try_lock(&cachelet.lock, &cachelet.waiters) else { return Ok(false) };
        let word = cachelet.references.load(Acquire);
        let state = References::from_word(word);
        let changed = cachelet.dirty.load(Acquire) & DIRTY != 0;
        let indexed = cachelet.as_directory().state().load(Acquire) & 0xff != DirectoryState::Absent as u32;
        let leaving = state.flags & (FLAG_DEAD | FLAG_RENAMING) != 0 || state.links == 0;
        if state.is_used() || leaving || changed || indexed {
            return Ok(false);
        }
        let references = References::reclaimed_by(self.thread.ticket());
        let dead = References { references, flags: state.flags | FLAG_DEAD | FLAG_EVICTED, ..state }.word();
        self.thread.slot.intent.victim.store(index, Relaxed);
        may_die_here();
        let evicted = cachelet.references.compare_exchange(word, dead, AcqRel, Acquire).is_ok();
        if evicted {
            may_die_here();
            self.thread.cachelets().clear_pointer(cachelet, index)?;
            may_die_here();
            self.thread.recycler().retire(RetiredKind::Cachelet, index as u64, 0);
            self.thread.count_event(Event::Evicted);
        }
        self.thread.slot.intent.victim.store(0, Release);
        Ok(evicted)
    }
}

#[cfg(test)]
mod tests;
