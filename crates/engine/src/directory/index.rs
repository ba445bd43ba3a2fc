//! Indexing a directory on first access (paper III.C): all its names enter the mindex, after which
//! a miss there is an answer.
//!
//! Invariants
//! - The state goes Absent → Indexing → Indexed → Evicting → Absent; each change but the last is
//!   made under the directory's cachelet lock.
//! - A pinned thread that sees Indexed may rely on it until it unpins: eviction waits for a grace
//!   period after it has announced itself.
//!
//! Indexing has 16 names in flight, with dentry and bucket prefetched. One huge directory does not
//! spread over threads.

use super::log::Tail;
use super::read::LINE_SLOTS;
use crate::death::may_die_here;
use crate::dram::{Cachelet, DirectoryState};
use crate::epoch::Pin;
use crate::error::{Corruption, Error, Result};
use crate::format::{
    DENTRY_HEADER_BYTES, Dentry, DentryFacts, FIRST_COOKIE, FileKind, LOG_SLOTS, LogPage, LogPageKind, NAME_BYTES_MAX,
    Valid, is_possible_name, slot_address, slot_tag,
};
use crate::fs::{Fs, Node, Thread};
use crate::mindex::NameHash;
use crate::statistics::Event;
use core::mem::offset_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use pmem::{Memory, Pm};

/// How many names ahead of the insertion names are hashed and their buckets prefetched.
const AHEAD: usize = 16;

/// How long to sleep at a time while a directory is being evicted.
const EVICTION_WAIT_MS: u32 = 10;

/// A name on its way into the mindex.
#[derive(Clone, Copy, Default)]
struct Pending {
    hash: Option<NameHash>,
    dentry: u64,
    inode: u64,
}

/// Totals of a directory's log.
#[derive(Default)]
struct LogTotals {
    names: u64,
    holes: u64,
    subdirectories: u32,
}

impl DirectoryState {
    pub(crate) fn of(directory: &Cachelet) -> DirectoryState {
        match directory.as_directory().state().load(Acquire) & 0xff {
            0 => DirectoryState::Absent,
            1 => DirectoryState::Indexing,
            2 => DirectoryState::Indexed,
            3 => DirectoryState::Evicting,
            _ => DirectoryState::NeedsRecount,
        }
    }

    /// Sets the state. The log version in the bits above stays; indexing and compaction advance it
    /// when log positions may have changed.
    pub(super) fn set(directory: &Cachelet, state: DirectoryState) {
        let changed = |word: u32| Some(word & !0xff | state as u32);
        let _ = directory.as_directory().state().fetch_update(AcqRel, Relaxed, changed);
    }

    /// For a reaper: marks names and counts as unreliable for later operations. The directory then
    /// needs a recount.
    pub(crate) fn mark_needs_recount(directory: &Cachelet) {
        let changed = |word: u32| match word & 0xff {
            0 => None,
            _ => Some(word & !0xff | DirectoryState::NeedsRecount as u32),
        };
        let _ = directory.as_directory().state().fetch_update(AcqRel, Relaxed, changed);
    }
}

impl<M: Memory> Fs<M> {
    /// The dentry that a log slot names, if it belongs to directory `owner` and looks whole.
    pub(crate) fn dentry_of_slot(&self, word: u64, owner: u64) -> Result<Option<(&Dentry, u64, DentryFacts)>> {
        if word == 0 || slot_tag(word).is_none() {
            return Ok(None);
        }
        let offset = slot_address(word);
        let corrupt = Error::Corrupt(Corruption::Dentry(offset));
        let dentry = self.pm.get(Pm::<Dentry>::new(offset)).map_err(|_| corrupt)?;
        let Some(facts) = dentry.facts() else {
            // A create is still writing it, or never finished.
            return Ok(None);
        };
        let whole = facts.parent == owner && self.pm.contains(offset, DENTRY_HEADER_BYTES + facts.name_length as u64);
        Ok(whole.then_some((dentry, offset, facts)))
    }

    /// Copies the name of a dentry into `into`; none if the seal does not certify dentry and name.
    pub(super) fn certified_name<'b>(
        &self,
        (dentry, offset, facts): (&Dentry, u64, DentryFacts),
        into: &'b mut [u8; NAME_BYTES_MAX + 1],
    ) -> Result<Option<&'b [u8]>> {
        let name = crate::mindex::dentry_name(self, offset, facts.name_length, into)?;
        Ok(dentry.certifies(offset, &facts, name).then_some(name))
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Pins, with all names of the directory in the mindex: a miss there then means that the name
    /// does not exist.
    pub(crate) fn pin_indexed(&self, node: Node) -> Result<(Pin<'_, 'f, M>, &'f Cachelet)> {
        let directory = self.cachelet(node)?;
        if self.fs.kind(directory)? != FileKind::Directory {
            return Err(Error::NotADirectory);
        }
        loop {
            let pin = self.pin();
            if DirectoryState::of(directory) == DirectoryState::Indexed {
                directory.as_directory().mark_used();
                return Ok((pin, directory));
            }
            drop(pin);
            self.index_directory(node, directory)?;
        }
    }

    /// Brings all names of a directory into the mindex, or waits for the thread that does. Not
    /// pinned.
    fn index_directory(&self, node: Node, directory: &'f Cachelet) -> Result<()> {
        let word = directory.as_directory().state().load(Acquire);
        match DirectoryState::of(directory) {
            DirectoryState::Evicting => {
                self.fs.platform.wait(directory.as_directory().state(), word, EVICTION_WAIT_MS);
                if directory.as_directory().state().load(Acquire) == word {
                    self.fs.reap_dead_threads()?;
                }
                return Ok(());
            }
            DirectoryState::NeedsRecount => return self.maintenance().evict_for_recount(node),
            _ => {}
        }
        let _held = self.lock_file(directory)?;
        if DirectoryState::of(directory) != DirectoryState::Absent {
            return Ok(());
        }
        DirectoryState::set(directory, DirectoryState::Indexing);
        let result = self.index_log(directory);
        match result {
            Ok(()) => {
                // Slots that threads claimed in advance may be claimed again.
                directory.as_directory().state().fetch_add(1 << 8, AcqRel);
                DirectoryState::set(directory, DirectoryState::Indexed);
                self.count_event(Event::DirectoryIndexed);
            }
            Err(_) => {
                let _ = self.maintenance().remove_names(directory);
                DirectoryState::set(directory, DirectoryState::Absent);
            }
        }
        self.names().flush_name_count()?;
        result
    }

    fn index_log(&self, directory: &'f Cachelet) -> Result<()> {
        let number = directory.number.load(Relaxed);
        let mut offset = self.fs.inode_at(directory.inode.load(Relaxed))?.log.load_acquire();
        let mut found = LogTotals::default();
        let mut tail = Tail(0);
        let mut pages = 0;
        let mut pending = [Pending::default(); AHEAD];
        while offset != 0 {
            pages += 1;
            if pages > self.fs.blocks() {
                return Err(Corruption::LogPage(offset).into());
            }
            let (page, kind) = self.fs.log_page(offset, number)?;
            let used_bytes = offset_of!(LogPage, slots) + size_of_val(page.used_slots());
            self.fs.pm.report_read(offset, used_bytes as u64);
            let end = self.index_page(page, number, &mut pending, &mut found)?;
            // In a page that is no longer the last, the slots behind the last used one are never
            // claimed.
            let usable = if kind == LogPageKind::Append { end } else { LOG_SLOTS };
            tail = Tail::new(offset, usable);
            offset = page.next.load_acquire();
        }
        for waiting in &mut pending {
            self.index_pending(waiting)?;
        }
        directory.as_directory().log_tail().store(tail.0, Relaxed);
        directory.as_directory().set_names(found.names, found.holes);
        self.set_subdirectories(directory, found.subdirectories);
        Ok(())
    }

    /// Queues the names of a page. Returns the position behind its last used slot.
    fn index_page(
        &self,
        page: &LogPage,
        owner: u64,
        pending: &mut [Pending; AHEAD],
        found: &mut LogTotals,
    ) -> Result<u64> {
        let mut end = 0;
        let used = page.used_slots();
        // Whether this line and the next one name anything.
        let mut names_any = [self.prefetch_names(used, 0), self.prefetch_names(used, 1)];
        for (line, slots) in used.chunks(LINE_SLOTS).enumerate() {
            let is_empty = !names_any[0];
            names_any = [names_any[1], self.prefetch_names(used, line + 2)];
            if is_empty {
                continue;
            }
            for (index, slot) in slots.iter().enumerate().map(|(index, slot)| (line * LINE_SLOTS + index, slot)) {
                let word = slot.load_acquire();
                if word != 0 {
                    end = index as u64 + 1;
                }
                if let Some(kind) = self.index_slot(word, owner, &mut pending[index % AHEAD])? {
                    found.names += 1;
                    found.subdirectories += u32::from(kind == FileKind::Directory);
                } else if word != 0 {
                    found.holes += 1;
                }
            }
        }
        Ok(end)
    }

    /// Corrects the number of subdirectories of a directory that no other thread changes.
    pub(super) fn set_subdirectories(&self, directory: &Cachelet, subdirectories: u32) {
        if directory.as_directory().subdirectories().swap(subdirectories, AcqRel) != subdirectories {
            self.cachelets().mark_dirty(directory);
        }
    }

    /// Queues the name of a slot if it counts and returns its kind. Inserts the name that was
    /// queued `AHEAD` names earlier.
    fn index_slot(&self, word: u64, owner: u64, pending: &mut Pending) -> Result<Option<FileKind>> {
        if word == 0 {
            return Ok(None);
        }
        // No thread creates names in a directory that is not indexed; recovery and reapers have
        // dropped half-made dentries. So a dentry that is not whole here is damaged. Reporting a
        // miss would claim that the name does not exist.
        let damaged = Corruption::Dentry(slot_address(word));
        let (dentry, offset, facts) = self.fs.dentry_of_slot(word, owner)?.ok_or(damaged)?;
        let mut buffer = [0u8; NAME_BYTES_MAX + 1];
        let name = self.fs.certified_name((dentry, offset, facts), &mut buffer)?.ok_or(damaged)?;
        if !Valid::from_word(dentry.valid.load_acquire()).valid {
            return Ok(None);
        }
        if !is_possible_name(name) {
            return Err(damaged.into());
        }
        debug_assert!(facts.cookie >= FIRST_COOKIE);
        let hash = self.fs.hash_name(owner, name);
        self.fs.prefetch_bucket(hash);
        self.index_pending(pending)?;
        *pending = Pending { hash: Some(hash), dentry: offset, inode: facts.inode };
        Ok(Some(facts.kind))
    }

    fn index_pending(&self, pending: &mut Pending) -> Result<()> {
        let Some(hash) = pending.hash.take() else { return Ok(()) };
        if let Some(held) = self.names().hold_dentry(hash, pending.dentry, true)? {
            if held.found().is_some() {
                // Two slots of the log lead to one dentry.
                return Err(Corruption::Dentry(pending.dentry).into());
            }
            self.names().insert_entry(&held, pending.dentry, self.fs.target_of_inode(pending.inode));
        }
        self.names().flush_name_count()
    }

    /// Counts a subdirectory that was made in this directory or moved into it.
    pub(super) fn count_subdirectory(&self, directory: &Cachelet) {
        directory.as_directory().subdirectories().fetch_add(1, AcqRel);
        may_die_here();
        self.cachelets().mark_dirty(directory);
    }

    /// Counts a subdirectory that was removed from this directory or moved out of it.
    pub(super) fn uncount_subdirectory(&self, directory: &Cachelet) {
        directory.as_directory().subdirectories().fetch_sub(1, AcqRel);
        may_die_here();
        self.cachelets().mark_dirty(directory);
    }
}
