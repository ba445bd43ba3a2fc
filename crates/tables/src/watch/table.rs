//! Groups and their watches: chains of watches by inode number.

use super::layout::{BUCKETS, ENDED, FREE, GROUPS_MAX, LIVE, NAMES, NameEntry, WATCHES_MAX, Watch};
use super::marks::OBJECT;
use super::queue::{Ring, WatchEvent};
use super::{Change, MARKED, WATCHED, WATCHES_AT, WatchTables, Watches, event, group_flag};
use core::mem::offset_of;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use engine::dram::Dram;
use engine::{Error, Result, Thread};
use pmem::Memory;

/// Watches that one look at a chain collects.
const AT_ONCE: usize = 64;
/// Looks at a chain that changes meanwhile. Then the result counts: its changer is stopped.
const LOOKS: u32 = 100;
/// Numbers of watches: above those of the kernel, which begin at one; then a generation and the
/// entry.
const WATCH_BASE: u32 = 1 << 30;
const INDEX_BITS: u32 = WATCHES_MAX.trailing_zeros();
const GENERATIONS: u32 = 1 << (30 - INDEX_BITS);

/// Arguments of [`Watches::add_watch`].
#[derive(Debug, Clone, Copy)]
pub struct NewWatch {
    /// The group, by index and key.
    pub group: (u32, u64),
    /// The inode; the caller has a reference to it.
    pub number: u64,
    /// Bits of [`event`].
    pub mask: u32,
    /// The most watches of the group's user.
    pub limit: u32,
}

pub(super) fn bucket_of(number: u64) -> usize {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % BUCKETS
}

/// More entries than a chain has.
pub(super) fn entries_max() -> u32 {
    WATCHES_MAX
}

fn watch_number(index: u32, watch: &Watch) -> i32 {
    (WATCH_BASE | (watch.generation.load(Relaxed) % GENERATIONS) << INDEX_BITS | index) as i32
}

impl WatchTables {
    /// Collects the living watches on an inode that want any event of `mask`, after the first
    /// `skipped` ones. Returns their number.
    fn collect(&self, number: u64, mask: u32, skipped: usize, into: &mut [u32; AT_ONCE]) -> usize {
        let mut count = 0;
        self.stable(|| {
            let (mut next, mut found) = (self.buckets[bucket_of(number)].load(Acquire), 0usize);
            // Entries that are reused meanwhile could lead round.
            for _ in 0..WATCHES_MAX {
                let Some(watch) = next.checked_sub(1).and_then(|index| self.watches.get(index as usize)) else { break };
                let lives = watch.state.load(Acquire) == LIVE && watch.kind.load(Relaxed) == 0;
                let wants = lives && watch.mask.load(Relaxed) & mask != 0;
                if watch.number.load(Relaxed) == number && wants {
                    if let Some(place) = found.checked_sub(skipped).and_then(|at| into.get_mut(at)) {
                        *place = next - 1;
                    }
                    found += 1;
                }
                next = watch.next.load(Acquire);
            }
            count = found.saturating_sub(skipped).min(AT_ONCE);
        });
        count
    }

    /// Runs `look` at the chains, again if they change meanwhile.
    pub(super) fn stable(&self, mut look: impl FnMut()) {
        for _ in 0..LOOKS {
            let before = self.changes.load(SeqCst);
            look();
            if before & 1 == 0 && self.changes.load(SeqCst) == before {
                break;
            }
        }
    }

    /// The entry of a watch of a group, if the watch lives. `object`: see `marks`.
    pub(super) fn find(&self, key: u64, number: u64, object: u32) -> Option<u32> {
        let mut next = self.buckets[bucket_of(number)].load(Acquire);
        for _ in 0..WATCHES_MAX {
            let index = next.checked_sub(1)?;
            let watch = self.watches.get(index as usize)?;
            let is_it = watch.number.load(Relaxed) == number && watch.key.load(Relaxed) == key;
            if is_it && watch.kind.load(Relaxed) & OBJECT == object && watch.state.load(Acquire) == LIVE {
                return Some(index);
            }
            next = watch.next.load(Acquire);
        }
        None
    }

    /// Runs a change of the chains, of which readers look again.
    fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        // A death in between has left an odd number.
        self.changes.store(self.changes.load(Relaxed) | 1, SeqCst);
        let result = change();
        self.changes.store(self.changes.load(Relaxed).wrapping_add(1), SeqCst);
        result
    }

    /// Removes a watch from its chain and frees its entry. Under the lock.
    pub(super) fn remove(&self, index: u32) {
        let Some(watch) = self.watches.get(index as usize) else { return };
        self.change(|| {
            let mut link = &self.buckets[bucket_of(watch.number.load(Relaxed))];
            for _ in 0..WATCHES_MAX {
                let next = link.load(Relaxed);
                if next == index + 1 {
                    link.store(watch.next.load(Relaxed), Release);
                    break;
                }
                let Some(other) = next.checked_sub(1).and_then(|other| self.watches.get(other as usize)) else { break };
                link = &other.next;
            }
        });
        if let Some(queue) = self.queues.get(watch.group.load(Relaxed) as usize) {
            queue.watches.store(queue.watches.load(Relaxed).saturating_sub(1), Relaxed);
        }
        watch.state.store(FREE, Release);
        let chained = self.chained_of(watch);
        chained.store(chained.load(Relaxed).saturating_sub(1), Relaxed);
        self.cursor.store(self.cursor.load(Relaxed).min(index), Relaxed);
    }

    /// Removes all watches for which `ends` is true, and counts the others. Under the lock.
    pub(super) fn sweep(&self, ends: impl Fn(&Watch) -> bool) {
        self.has_ended.store(0, SeqCst);
        let mut kept = [0; 2];
        for index in 0..self.end.load(Relaxed).min(WATCHES_MAX) {
            let watch = &self.watches[index as usize];
            match watch.state.load(Acquire) {
                FREE => {}
                LIVE if !ends(watch) => kept[usize::from(watch.kind.load(Relaxed) != 0)] += 1,
                _ => self.remove(index),
            }
        }
        // Exact even if a process died between a change and its count.
        self.chained.store(kept[0], Relaxed);
        self.chained_marks.store(kept[1], Relaxed);
    }

    fn chained_of(&self, watch: &Watch) -> &AtomicU32 {
        if watch.kind.load(Relaxed) == 0 { &self.chained } else { &self.chained_marks }
    }

    /// Takes a free entry. Under the lock.
    fn take_entry(&self, provide: impl Fn(&Watch) -> Result<()>) -> Result<Option<u32>> {
        let end = self.end.load(Relaxed);
        let is_free = |&index: &u32| self.watches[index as usize].state.load(Relaxed) == FREE;
        let index = (self.cursor.load(Relaxed)..end).find(is_free).unwrap_or(end);
        if index == end {
            if end >= WATCHES_MAX {
                return Ok(None);
            }
            provide(&self.watches[end as usize])?;
            self.end.store(end + 1, Relaxed);
        }
        self.cursor.store(index + 1, Relaxed);
        Ok(Some(index))
    }

    fn group_of(&self, key: u64) -> Option<u32> {
        let index = self.keys.iter().position(|of| of.load(SeqCst) == key)?;
        Some(index as u32).filter(|_| key != 0)
    }

    /// The watches or marks of all groups of a user that count.
    pub(super) fn watches_of(&self, uid: u32, are_marks: bool) -> u32 {
        let counts = |queue: &super::Queue| match queue.flags.load(Relaxed) {
            0 => !are_marks,
            flags => are_marks && flags & group_flag::UNLIMITED_MARKS == 0,
        };
        let groups = self.keys.iter().zip(&self.queues).filter(|(key, queue)| key.load(Relaxed) != 0 && counts(queue));
        groups.filter(|(_, queue)| queue.uid.load(Relaxed) == uid).map(|(_, queue)| queue.watches.load(Relaxed)).sum()
    }

    /// Removes watches that have ended, and updates the word that changes look at. Under the lock.
    pub(super) fn settle(&self, dram: &Dram) {
        if self.has_ended.load(SeqCst) != 0 {
            self.sweep(|_| false);
        }
        if let Ok(header) = dram.header() {
            let watched = if self.chained.load(Relaxed) != 0 { WATCHED } else { 0 };
            let marked = if self.chained_marks.load(Relaxed) != 0 { MARKED } else { 0 };
            header.watched.store(watched | marked, SeqCst);
        }
    }
}

impl<'f> Watches<'f> {
    /// Notifies all watches on an inode of a change.
    #[cold]
    pub(super) fn notify_watches(self, change: &Change<'_>) {
        let Ok(tables) = self.tables() else { return };
        let (mut found, mut skipped) = ([0; AT_ONCE], 0);
        loop {
            let count = tables.collect(change.number, change.mask & event::ALL, skipped, &mut found);
            for &index in &found[..count] {
                self.notify_watch(tables, index, change);
            }
            if count < AT_ONCE {
                return;
            }
            skipped += count;
        }
    }

    fn notify_watch(self, tables: &WatchTables, index: u32, change: &Change<'_>) {
        let watch = &tables.watches[index as usize];
        let (group, key, mask) = (watch.group.load(Relaxed), watch.key.load(Relaxed), watch.mask.load(Relaxed));
        let number = watch_number(index, watch);
        if change.unlinked && mask & event::EXCL_UNLINK != 0 {
            return;
        }
        let is_last = mask & event::ONESHOT != 0;
        if is_last && !self.end_watch(tables, watch) {
            return;
        }
        let Some(ring) = Ring::new(tables, group, key) else { return };
        let last = is_last.then(|| WatchEvent::new(number, event::IGNORED, 0, b""));
        let event = WatchEvent::new(number, change.mask, change.cookie, change.name);
        self.add_events(group, &ring, [Some(event), last]);
    }

    /// Ends a watch without the lock; false if it had ended.
    fn end_watch(self, tables: &WatchTables, watch: &Watch) -> bool {
        let ended = watch.state.compare_exchange(LIVE, ENDED, AcqRel, Relaxed).is_ok();
        if ended {
            tables.has_ended.store(1, SeqCst);
        }
        ended
    }

    /// Whether any watch on an inode wants any event of `mask`.
    pub(super) fn is_wanted(self, number: u64, mask: u32) -> bool {
        self.tables().is_ok_and(|tables| tables.collect(number, mask & event::ALL, 0, &mut [0; AT_ONCE]) != 0)
    }

    /// A file has ended: ends its watches.
    #[cold]
    pub(super) fn end_watches(self, number: u64) {
        let Ok(tables) = self.tables() else { return };
        let mut found = [0; AT_ONCE];
        loop {
            let count = tables.collect(number, u32::MAX, 0, &mut found);
            for &index in &found[..count] {
                let watch = &tables.watches[index as usize];
                let (group, key, mask) = (watch.group.load(Relaxed), watch.key.load(Relaxed), watch.mask.load(Relaxed));
                let number = watch_number(index, watch);
                if !self.end_watch(tables, watch) {
                    continue;
                }
                let Some(ring) = Ring::new(tables, group, key) else { continue };
                let is_wanted = mask & event::DELETE_SELF != 0;
                let deleted = is_wanted.then(|| WatchEvent::new(number, event::DELETE_SELF, 0, b""));
                let last = WatchEvent::new(number, event::IGNORED, 0, b"");
                self.add_events(group, &ring, [deleted, Some(last)]);
            }
            if count < AT_ONCE {
                return;
            }
        }
    }

    /// The group with a key.
    pub fn watch_group(self, key: u64) -> Option<u32> {
        self.tables().ok()?.group_of(key)
    }

    /// Provides the memory of all but the entries and queues.
    fn provide_tables<M: Memory>(thread: &Thread<'f, M>) -> Result<()> {
        let (watches, names) = (offset_of!(WatchTables, watches), offset_of!(WatchTables, names));
        let provide =
            |at: usize, bytes: usize| thread.fs().provider().provide_upper((WATCHES_AT + at as u64, bytes as u64));
        provide(names, size_of::<[NameEntry; NAMES]>())?;
        // The start last: with it the tables are in use.
        provide(4096, watches - 4096)?;
        provide(0, 4096)
    }

    /// Provides the memory of a part of the tables.
    fn provide<M: Memory, T>(thread: &Thread<'f, M>, tables: &WatchTables, part: &T) -> Result<()> {
        let offset = (&raw const *part).addr() - (&raw const *tables).addr();
        thread.fs().provider().provide_upper((WATCHES_AT + offset as u64, size_of::<T>() as u64))
    }

    /// Makes the group with a key for a user, unless it exists. `NoSpace`: there are too many.
    pub fn make_watch_group<M: Memory>(thread: &Thread<'f, M>, (key, uid): (u64, u32)) -> Result<u32> {
        Self::make_group(thread, (key, uid), (0, 0))
    }

    pub(super) fn make_group<M: Memory>(
        thread: &Thread<'f, M>,
        (key, uid): (u64, u32),
        (flags, event_flags): (u32, u32),
    ) -> Result<u32> {
        Self::provide_tables(thread)?;
        let (tables, _held) = Self::lock(thread)?;
        if let Some(group) = tables.group_of(key) {
            return Ok(group);
        }
        let group = (0..GROUPS_MAX).find(|&group| tables.keys[group as usize].load(SeqCst) == 0);
        let group = group.ok_or(Error::NoSpace)?;
        Self::provide(thread, tables, &tables.cells[group as usize])?;
        let queue = &tables.queues[group as usize];
        queue.token.store(0, SeqCst);
        queue.wake_file.store(0, SeqCst);
        queue.uid.store(uid, Relaxed);
        queue.watches.store(0, Relaxed);
        queue.flags.store(flags, Relaxed);
        queue.event_flags.store(event_flags, Relaxed);
        tables.keys[group as usize].store(key, SeqCst);
        if let Some(ring) = Ring::new(tables, group, key) {
            ring.discard();
        }
        Ok(group)
    }

    /// The kernel's number of the watch that wakes a group; zero: none yet.
    pub fn wake_watch(self, group: u32) -> i32 {
        self.tables().map_or(0, |tables| tables.queues[group as usize].token.load(SeqCst) as i32)
    }

    /// Sets the kernel's number of the watch that wakes a group, and the inode number of the file
    /// that it is on.
    pub fn set_wake_watch(self, group: u32, watch: i32, wake_file: u64) {
        if let Ok(tables) = self.tables() {
            tables.queues[group as usize].wake_file.store(wake_file, SeqCst);
            tables.queues[group as usize].token.store(watch as u32, SeqCst);
        }
    }

    /// The key of the group that a file wakes.
    pub fn watch_key_of_wake_file(self, wake_file: u64) -> Option<u64> {
        let tables = self.tables().ok()?;
        let group = tables.queues.iter().position(|queue| queue.wake_file.load(SeqCst) == wake_file)?;
        Some(tables.keys[group].load(SeqCst)).filter(|&key| key != 0 && wake_file != 0)
    }

    /// Removes a group with its watches and events. Its descriptor has ended.
    #[cold]
    pub(crate) fn remove_watch_group<M: Memory>(thread: &Thread<'f, M>, key: u64) -> Result<()> {
        let Some(group) = Self::of(thread).watch_group(key) else { return Ok(()) };
        let (tables, _held) = Self::lock(thread)?;
        tables.sweep(|watch| watch.key.load(Relaxed) == key);
        tables.settle(thread.fs().dram());
        // The last step: until then another process could repeat all of it.
        let _ = tables.keys[group as usize].compare_exchange(key, 0, SeqCst, Relaxed);
        Ok(())
    }

    /// Adds a watch, or changes that of the same inode; returns its number. `Exists`: with
    /// MASK_CREATE it must be new. `NoSpace`: the limit is reached.
    pub fn add_watch<M: Memory>(thread: &Thread<'f, M>, new: &NewWatch) -> Result<i32> {
        let NewWatch { group: (group, key), number, mask, limit } = *new;
        let (tables, _held) = Self::lock(thread)?;
        tables.settle(thread.fs().dram());
        let kept = mask & (event::ALL | event::EXCL_UNLINK | event::ONESHOT) | event::UNMOUNT;
        if let Some(index) = tables.find(key, number, 0) {
            let watch = &tables.watches[index as usize];
            if mask & event::MASK_CREATE != 0 {
                return Err(Error::Exists);
            }
            let more = if mask & event::MASK_ADD != 0 { watch.mask.load(Relaxed) } else { 0 };
            watch.mask.store(kept | more, SeqCst);
            return Ok(watch_number(index, watch));
        }
        if tables.watches_of(tables.queues[group as usize].uid.load(Relaxed), false) >= limit {
            return Err(Error::NoSpace);
        }
        let index = Self::add_entry(thread, tables, (group, key), number, (kept, 0))?;
        tables.names_version.fetch_add(1, SeqCst);
        tables.settle(thread.fs().dram());
        Ok(watch_number(index, &tables.watches[index as usize]))
    }

    /// Adds an entry to its chain. Under the lock.
    pub(super) fn add_entry<M: Memory>(
        thread: &Thread<'f, M>,
        tables: &WatchTables,
        (group, key): (u32, u64),
        number: u64,
        (mask, kind): (u32, u32),
    ) -> Result<u32> {
        let index = tables.take_entry(|watch| Self::provide(thread, tables, watch))?.ok_or(Error::NoSpace)?;
        let watch = &tables.watches[index as usize];
        watch.generation.store(watch.generation.load(Relaxed).wrapping_add(1), Relaxed);
        watch.number.store(number, Relaxed);
        watch.key.store(key, Relaxed);
        watch.group.store(group, Relaxed);
        watch.mask.store(mask, Relaxed);
        watch.kind.store(kind, Relaxed);
        watch.ignored.store(0, Relaxed);
        let bucket = &tables.buckets[bucket_of(number)];
        tables.change(|| {
            watch.next.store(bucket.load(Relaxed), Relaxed);
            watch.state.store(LIVE, Release);
            bucket.store(index + 1, SeqCst);
        });
        let queue = &tables.queues[group as usize];
        queue.watches.store(queue.watches.load(Relaxed) + 1, Relaxed);
        let chained = tables.chained_of(watch);
        chained.store(chained.load(Relaxed) + 1, Relaxed);
        Ok(index)
    }

    /// Removes a watch by its number; `NotFound`: the group has none with that number.
    pub fn remove_watch<M: Memory>(thread: &Thread<'f, M>, (group, key): (u32, u64), number: i32) -> Result<()> {
        let (tables, _held) = Self::lock(thread)?;
        let index = number as u32 & (WATCHES_MAX - 1);
        let watch = &tables.watches[index as usize];
        let is_it = watch_number(index, watch) == number && watch.key.load(Relaxed) == key;
        let is_it = is_it && watch.kind.load(Relaxed) == 0;
        if !is_it || watch.state.compare_exchange(LIVE, ENDED, AcqRel, Relaxed).is_err() {
            return Err(Error::NotFound);
        }
        if let Some(ring) = Ring::new(tables, group, key) {
            let last = WatchEvent::new(number, event::IGNORED, 0, b"");
            Self::of(thread).add_events(group, &ring, [None, Some(last)]);
        }
        tables.remove(index);
        tables.settle(thread.fs().dram());
        Ok(())
    }

    /// Removes watches that have ended, after a reader was notified of one.
    pub fn sweep_watches<M: Memory>(thread: &Thread<'f, M>) -> Result<()> {
        if Self::of(thread).tables()?.has_ended.load(SeqCst) == 0 {
            return Ok(());
        }
        let (tables, _held) = Self::lock(thread)?;
        tables.settle(thread.fs().dram());
        Ok(())
    }

    /// Whether a number is that of a watch of this table, not of the kernel.
    pub fn is_own_watch(number: i32) -> bool {
        number as u32 & WATCH_BASE != 0 && number > 0
    }
}
