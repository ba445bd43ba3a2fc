//! One order of times: a change that begins after another has returned is not older.
//!
//! Invariants
//! - Every change shows the time of the coarse clock, unrounded, as the kernel's file systems do.
//!   So it is neither older than what was written elsewhere before, nor newer than what follows.
//!   Only if the clock goes backwards, a directory stays at its last change.
//! - Changes of names within one clock tick share a time. Most of them find that the directory
//!   shows it already, and store nothing: the change time lies in the cachelet's first line.
//!   A directory whose modification time may be older than its change time is *apart* (a mark in
//!   the same line), and then each change of a name stores both.
//! - A dentry has room for even times only, so it records a time rounded up ([`rounded_ns`]).
//! - Recovery applies the newest recorded time if it is later than the change time in the
//!   directory's property entry. A name that changes after that entry within the same tick records
//!   a time two later, which recovery takes for the entry's own. So an entry with a modification
//!   time that was set after such a name has a change time of two more, too, and none of the
//!   directory's later entries has an earlier one. What the directory shows stays the tick's time.
//!
//! *Rejected:* even times for names and later odd ones for other changes: a file was up to 1 ns
//! older than what was written before it, so `make` rebuilt it. All times even, or a finer clock:
//! older or newer than files of the kernel that were written before or after. A new layout of the
//! dentry: older programs could not use the image. To wait for the next tick before a time is set:
//! dpkg, which sets the times of a directory again and again, took six times as long.
//!
//! *Limits:* recovery finds the lost bit in the inode that the newest name stands for; after
//! the removal of a file or the rename of a directory it may show 1 ns more. A directory whose
//! names changed between two settings of its time within one tick may show 2 ns more for each such
//! change, and 1 for the rounding, after it was read from the image again. The kernel takes a
//! finer time for a file that was changed again after a look at it (since Linux 6.13): files of the
//! image may be older than that within a tick, as on FUSE and NFS.

use crate::attributes::Changes;
use crate::components::Cachelets;
use crate::death::may_die_here;
use crate::dram::{Cachelet, DIRTY};
use crate::error::Result;
use crate::format::{FileKind, Inode, Property, rounded_ns};
use crate::regions::Regions;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use pmem::Memory;

/// What a name records more than the property entry before it, if both are of one tick.
const AFTER_ENTRY_NS: i64 = 2;

/// The time of a change of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameTime {
    /// What the directory and the file show.
    pub shown_ns: i64,
    /// What the dentry records.
    pub recorded_ns: i64,
}

impl NameTime {
    /// The later of both, of a change in two directories.
    pub fn max(self, other: NameTime) -> NameTime {
        NameTime { shown_ns: self.shown_ns.max(other.shown_ns), recorded_ns: self.recorded_ns.max(other.recorded_ns) }
    }

    /// The recorded time for a valid word.
    #[inline(always)]
    pub fn recorded(self) -> u64 {
        self.recorded_ns.max(0) as u64
    }
}

impl<M: Memory> Cachelets<'_, '_, M> {
    /// Time of a change of a file's attributes, or of a directory's that is none of its names.
    pub(crate) fn stamp(self, cachelet: &Cachelet) -> i64 {
        let now = self.owner.fs.now_ns();
        match FileKind::from_mode(cachelet.mode.load(Relaxed)) {
            Some(FileKind::Directory) => now.max(cachelet.changed_ns.load(Relaxed)),
            _ => now,
        }
    }

    /// The least change time of the property entry for these changes. Under the file's lock.
    pub(crate) fn least_in_entry(self, cachelet: &Cachelet, changes: &Changes) -> Result<i64> {
        let is_directory = FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Directory);
        match is_directory && changes.modified_ns.is_some() && cachelet.as_directory().is_apart() {
            true => self.least_after_names(cachelet),
            false => Ok(i64::MIN),
        }
    }

    /// A time that is not earlier than what the directory's dentries record.
    #[cold]
    fn least_after_names(self, directory: &Cachelet) -> Result<i64> {
        let Some(entry) = self.entry_of(directory)? else { return Ok(i64::MIN) };
        let modified_ns = directory.modified_ns.load(Relaxed);
        let no_names = modified_ns == entry.modified_ns && modified_ns < directory.changed_ns.load(Relaxed);
        Ok(if no_names { i64::MIN } else { rounded_ns(entry.changed_ns).saturating_add(AFTER_ENTRY_NS) })
    }

    /// The change time for the next property entry of a directory that shows `changed_ns`.
    pub(crate) fn changed_in_entry(self, directory: &Cachelet, changed_ns: i64) -> Result<i64> {
        if !directory.as_directory().is_apart() {
            return Ok(changed_ns);
        }
        Ok(self.entry_of(directory)?.map_or(changed_ns, |entry| changed_ns.max(entry.changed_ns)))
    }

    /// Time of a change of a directory's names.
    #[inline(always)]
    pub(crate) fn name_time(self, directory: &Cachelet) -> NameTime {
        let shown_ns = self.owner.fs.now_ns().max(directory.changed_ns.load(Relaxed));
        if directory.as_directory().is_apart() {
            return self.name_time_after_entry(directory, shown_ns);
        }
        NameTime { shown_ns, recorded_ns: shown_ns }
    }

    #[cold]
    #[inline(never)]
    fn name_time_after_entry(self, directory: &Cachelet, shown_ns: i64) -> NameTime {
        let entry = self.entry_of(directory).ok().flatten();
        let least = entry.map_or(shown_ns, |entry| rounded_ns(entry.changed_ns).saturating_add(AFTER_ENTRY_NS));
        NameTime { shown_ns, recorded_ns: rounded_ns(shown_ns).max(least) }
    }

    /// The property entry of a directory on the image.
    fn entry_of(self, directory: &Cachelet) -> Result<Option<Property>> {
        let inode = self.owner.fs.inode_at(directory.inode.load(Relaxed))?;
        let (number, generation) = (directory.number.load(Relaxed), directory.generation.load(Relaxed));
        Ok(inode.property(number, generation).map(|(property, _)| property))
    }

    /// Records that a directory's names changed. In DRAM only, since the dentry carries the time.
    pub(crate) fn touch_directory(self, directory: &Cachelet, time: NameTime) {
        // Usually another change within the same clock tick has already done this. The check is
        // cheaper than an atomic maximum, and its cache line changes rarely.
        //
        // That other thread may not have set the dirty mark below yet. The mark follows the times
        // so that a write-back cannot clear it too early. If the thread dies before it sets the
        // mark, the directory is marked as needing a recount.
        let (view, changed_ns) = (directory.as_directory(), directory.changed_ns.load(Relaxed));
        let is_apart = view.is_apart();
        if changed_ns >= time.shown_ns && !is_apart {
            return;
        }
        // Before the times: a change of attributes that comes in between sets it after its times.
        if is_apart && time.shown_ns > changed_ns {
            view.mark_together();
        }
        directory.modified_ns.fetch_max(time.shown_ns, Relaxed);
        directory.changed_ns.fetch_max(time.shown_ns, Release);
        may_die_here();
        self.mark_dirty(directory);
    }

    /// Marks a directory's links or times as newer than those on the image.
    pub(crate) fn mark_dirty(self, directory: &Cachelet) {
        if directory.dirty.load(Relaxed) & DIRTY == 0 {
            directory.dirty.fetch_or(DIRTY, AcqRel);
        }
    }

    /// Records a change time of a directory that is none of its names, in DRAM.
    pub(crate) fn touch_apart(self, directory: &Cachelet, changed_ns: i64) {
        // Before, for the case of a death, and after: see `touch_directory`.
        directory.as_directory().mark_apart();
        directory.changed_ns.fetch_max(changed_ns, Release);
        directory.as_directory().mark_apart();
    }
}

impl<M: Memory> Regions<M> {
    /// The time that the names of a directory give it which was `changed_ns` in its property entry,
    /// or none. `recorded_ns`: the newest time that a dentry records. `inode`: what that one named.
    pub(crate) fn recovered_ns(&self, recorded_ns: u64, inode: u64, changed_ns: i64) -> Option<i64> {
        let (recorded_ns, entry_ns) = (recorded_ns as i64, rounded_ns(changed_ns));
        if recorded_ns <= entry_ns {
            return None;
        }
        if recorded_ns == entry_ns.saturating_add(AFTER_ENTRY_NS) {
            return Some(changed_ns);
        }
        // What was named shows the time before it was rounded. Without it, the time must not be in
        // the future.
        let known = self.inode(inode).ok().and_then(|inode_of| {
            let generation = inode_of.generation(inode)?;
            self.times_of(inode_of, inode, generation).into_iter().find(|time| rounded_ns(*time) == recorded_ns)
        });
        let now = self.now_ns();
        Some(known.unwrap_or(if rounded_ns(now) == recorded_ns { now } else { recorded_ns }))
    }

    fn times_of(&self, inode: &Inode, number: u64, generation: u32) -> [i64; 2] {
        let born_ns = inode.born_ns.load() as i64;
        [born_ns, inode.property(number, generation).map_or(born_ns, |(property, _)| property.changed_ns)]
    }
}

#[cfg(test)]
mod tests;
