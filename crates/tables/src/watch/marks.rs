//! Marks: the watches of fanotify, and which of a group's marks make an event of a change.
//!
//! Linux makes one event for all marks of a group that see a change (on the file, its directory,
//! the mount or the file system). So a change first adds up the masks of each group's marks, and
//! then builds one event per group, from what the group's flags ask for.
//!
//! Decision: docs/decisions/run-rings.md, "fanotify's marks lie in the tables of watches".

use super::layout::{ENDED, GROUPS_MAX, LIVE, Queue, Watch};
use super::queue::{Merge, RECORD_WORDS, Record, Ring, Taken, name_bytes, name_words};
use super::table::{bucket_of, entries_max};
use super::{WatchTables, Watches, event};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use engine::{Error, Result, Thread};
use pmem::Memory;

/// Flags of a group: those of fanotify_init, with the kernel's numbers, and two of ours.
pub mod group_flag {
    /// It is fanotify's.
    pub const MARKS: u32 = 1 << 31;
    /// Its maker has no privileges.
    pub const UNPRIVILEGED: u32 = 1 << 30;
    /// Its user's limit does not apply.
    pub const UNLIMITED_MARKS: u32 = 0x20;
    /// Events hold a descriptor of the process.
    pub const REPORT_PIDFD: u32 = 0x80;
    /// Events name the thread.
    pub const REPORT_TID: u32 = 0x100;
    /// Events hold the file's handle.
    pub const REPORT_FID: u32 = 0x200;
    /// Events hold the directory's handle.
    pub const REPORT_DIR_FID: u32 = 0x400;
    /// Events hold the name.
    pub const REPORT_NAME: u32 = 0x800;
    /// Events about a name hold the handle of its file as well.
    pub const REPORT_TARGET_FID: u32 = 0x1000;
    /// Events report why there is no descriptor.
    pub const REPORT_FD_ERROR: u32 = 0x2000;
    /// With any of these, events hold handles, not descriptors.
    pub const HANDLES: u32 = REPORT_FID | REPORT_DIR_FID | REPORT_NAME | REPORT_TARGET_FID;
}
use group_flag::{
    HANDLES, MARKS, REPORT_DIR_FID, REPORT_FID, REPORT_NAME, REPORT_TARGET_FID, REPORT_TID, UNLIMITED_MARKS,
    UNPRIVILEGED,
};

/// Bytes of `struct fanotify_event_metadata`.
pub const METADATA_BYTES: usize = 24;

/// What a mark is on (low bits of its kind).
pub(super) const OBJECT: u32 = 3;
const INODE: u32 = 1;
const MOUNT: u32 = 2;
const FILE_SYSTEM: u32 = 3;
/// The inode number of marks on the mount and the file system.
const EVERYTHING: u64 = 0;
/// Further bits of a mark's kind: FAN_MARK_IGNORED_SURV_MODIFY, _EVICTABLE and _IGNORE.
const SURVIVES_MODIFY: u32 = 0x40;
const EVICTABLE: u32 = 0x200;
const IGNORE: u32 = 0x400;
/// Only in requests: FAN_MARK_IGNORED_MASK.
const IGNORED_MASK: u32 = 0x20;

/// A file, as handles name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileId {
    /// Inode number; zero: none.
    pub number: u64,
    /// Generation.
    pub generation: u32,
}

/// Flags of fanotify_mark that the table heeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkFlags(pub u32);

impl MarkFlags {
    fn object(self) -> u32 {
        match self.0 & 0x110 {
            0x10 => MOUNT,
            0x100 => FILE_SYSTEM,
            _ => INODE,
        }
    }

    fn is_of_ignore_mask(self) -> bool {
        self.0 & (IGNORED_MASK | IGNORE) != 0
    }
}

/// Arguments of [`Watches::add_mark`] and [`Watches::remove_mark`].
#[derive(Debug, Clone, Copy)]
pub struct NewMark {
    /// The group, by index and key.
    pub group: (u32, u64),
    /// The inode; the caller has a reference to it.
    pub number: u64,
    /// Bits of [`event`].
    pub mask: u32,
    /// Bits that the program cannot remove.
    pub kept: u32,
    /// What is marked, and how.
    pub flags: MarkFlags,
    /// The most marks of the group's user.
    pub limit: u32,
}

/// A change, as marks are notified of it.
#[derive(Debug, Clone, Copy)]
pub struct MarkChange<'n> {
    /// Bits of [`event`].
    pub mask: u32,
    /// The file that it is about.
    pub file: FileId,
    /// The directory that knows the file by `name`, if the change concerns it.
    pub directory: FileId,
    /// See `directory`.
    pub name: &'n [u8],
    /// For a rename: the new directory and name.
    pub moved_to: Option<(FileId, &'n [u8])>,
    /// The inode of whose own marks it is.
    pub on: u64,
    /// The directory of which it is an event on a child; zero: none.
    pub parent: u64,
    /// It happened by a path or descriptor, so a mount and not only the file system sees it.
    pub has_path: bool,
    /// A descriptor of the file can be in the event.
    pub can_open: bool,
}

/// An event of fanotify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkEvent {
    /// Bits of [`event`].
    pub mask: u32,
    /// The process or thread that made the change; zero: unknown.
    pub process: u32,
    /// The file to be reported; of a group without handles that to be opened.
    pub object: FileId,
    /// The directory.
    pub directory: FileId,
    /// The new directory of a rename.
    pub moved_to: FileId,
    /// Bytes of the names.
    pub name_lengths: [usize; 2],
    names: [[u64; 32]; 2],
}

impl MarkChange<'static> {
    /// A change of a file, with nothing else known about it.
    pub fn of_file(mask: u32, file: FileId) -> Self {
        let (directory, on) = (FileId::default(), file.number);
        let (moved_to, has_path, can_open) = (None, false, false);
        MarkChange { mask, file, directory, name: b"", moved_to, on, parent: 0, has_path, can_open }
    }
}

impl MarkEvent {
    /// An event to be filled.
    pub fn none() -> MarkEvent {
        MarkEvent {
            mask: 0,
            process: 0,
            object: FileId::default(),
            directory: FileId::default(),
            moved_to: FileId::default(),
            name_lengths: [0; 2],
            names: [[0; 32]; 2],
        }
    }

    /// The name in a directory, or with 1 the new one of a rename, followed by zeros.
    pub fn name(&self, which: usize) -> [u8; 256] {
        name_bytes(&self.names[which])
    }

    fn set_name(&mut self, which: usize, name: &[u8]) {
        (self.name_lengths[which], self.names[which]) = name_words(name);
    }

    fn record(&self) -> Record {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [first, second] = self.name_lengths;
        let lengths = first as u32 | (second as u32) << 16;
        let mut words = [0; RECORD_WORDS];
        words[0] = self.object.number;
        words[1] = pair(self.object.generation, self.process);
        words[2] = self.directory.number;
        words[3] = pair(self.directory.generation, lengths);
        let end = 4 + first.div_ceil(8);
        words[4..end].copy_from_slice(&self.names[0][..first.div_ceil(8)]);
        words[end] = self.moved_to.number;
        words[end + 1] = self.moved_to.generation.into();
        words[end + 2..end + 2 + second.div_ceil(8)].copy_from_slice(&self.names[1][..second.div_ceil(8)]);
        Record::new(self.mask, &words)
    }

    fn of_record(record: &Record) -> MarkEvent {
        let words = record.words();
        let lengths = (words[3] >> 32) as u32;
        let name_lengths = [lengths & 0xffff, lengths >> 16].map(|length| (length as usize).min(255));
        let id = |number: u64, generation: u64| FileId { number, generation: generation as u32 };
        let end = 4 + name_lengths[0].div_ceil(8);
        let mut event = MarkEvent {
            mask: record.mask,
            process: (words[1] >> 32) as u32,
            object: id(words[0], words[1]),
            directory: id(words[2], words[3]),
            moved_to: id(words[end], words[end + 1]),
            name_lengths,
            ..MarkEvent::none()
        };
        for (which, from) in [(0, 4), (1, end + 2)] {
            let used = name_lengths[which].div_ceil(8);
            event.names[which][..used].copy_from_slice(&words[from..from + used]);
        }
        event
    }

    /// That of a group that lost events.
    fn overflow() -> MarkEvent {
        MarkEvent { mask: event::Q_OVERFLOW, ..MarkEvent::none() }
    }
}

/// How a mark came to see a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// It is on everything.
    Everything = 1,
    /// It is on the inode; of a rename on the old directory.
    Own = 2,
    /// It is on the directory of the file.
    Parent = 4,
    /// It is on the new directory of a rename.
    Target = 8,
}

/// The marks of a group that see a change.
#[derive(Debug, Clone, Copy)]
struct Sum {
    wanted: u32,
    ignored: u32,
    /// Bits of [`Sight`].
    sights: u32,
}

fn applies(mask: u32, is_directory: bool, sight: Sight) -> bool {
    (!is_directory || mask & event::IS_DIRECTORY != 0) && (sight != Sight::Parent || mask & event::ON_CHILD != 0)
}

/// The events that a mark has its group ignore.
fn ignored_by(mark: &Watch, is_directory: bool, sight: Sight) -> u32 {
    let ignored = mark.ignored.load(Relaxed);
    if ignored == 0 || (!is_directory && sight != Sight::Parent) {
        return ignored & !event::NO_EVENTS;
    }
    // The older form ignores events of directories, and of children that the mark watches.
    let flags = match mark.kind.load(Relaxed) & IGNORE {
        0 => event::IS_DIRECTORY | mark.mask.load(Relaxed) & event::ON_CHILD,
        _ => ignored,
    };
    if applies(flags, is_directory, sight) { ignored & !event::NO_EVENTS } else { 0 }
}

impl WatchTables {
    /// Calls `see` for the marks on an inode. A chain that changes meanwhile is walked again: `see`
    /// may get a mark twice.
    fn each_mark(&self, number: u64, mut see: impl FnMut(&Watch)) {
        self.stable(|| {
            let mut next = self.buckets[bucket_of(number)].load(Acquire);
            for _ in 0..entries_max() {
                let Some(watch) = next.checked_sub(1).and_then(|index| self.watches.get(index as usize)) else { break };
                let lives = watch.state.load(Acquire) == LIVE && watch.kind.load(Relaxed) != 0;
                if lives && watch.number.load(Relaxed) == number {
                    see(watch);
                }
                next = watch.next.load(Acquire);
            }
        });
    }

    fn add_up(&self, sums: &mut [Sum; GROUPS_MAX as usize], change: &MarkChange<'_>, number: u64, sight: Sight) {
        let is_directory = change.mask & event::IS_DIRECTORY != 0;
        self.each_mark(number, |mark| {
            let kind = mark.kind.load(Relaxed);
            if kind & OBJECT == MOUNT && !change.has_path {
                return;
            }
            let Some(sum) = sums.get_mut(mark.group.load(Relaxed) as usize) else { return };
            if change.mask & event::MODIFY != 0 && kind & SURVIVES_MODIFY == 0 {
                mark.ignored.store(0, Relaxed);
            }
            sum.ignored |= ignored_by(mark, is_directory, sight);
            let mask = mark.mask.load(Relaxed);
            if applies(mask, is_directory, sight) {
                sum.wanted |= mask;
                sum.sights |= if kind & OBJECT == MOUNT { 0 } else { sight as u32 };
            }
        });
    }
}

/// The event of a group, if it gets one.
fn event_for(flags: u32, sum: &Sum, change: &MarkChange<'_>) -> Option<MarkEvent> {
    let is_directory = change.mask & event::IS_DIRECTORY != 0;
    let has_directory = change.directory.number != 0;
    let wanted = change.mask & sum.wanted & !sum.ignored;
    if wanted & !event::NO_EVENTS == 0 {
        return None;
    }
    let mut event = MarkEvent { mask: wanted, object: change.file, ..MarkEvent::none() };
    if flags & HANDLES == 0 {
        event.mask &= !event::NO_EVENTS;
        return Some(event).filter(|_| change.has_path && change.can_open);
    }
    if flags & REPORT_FID == 0 && !has_directory && !is_directory {
        return None;
    }
    let of_names = wanted & event::OF_NAMES != 0;
    if of_names && flags & REPORT_TARGET_FID == 0 {
        event.object = change.directory;
    }
    let directory = if is_directory && !of_names { change.file } else { change.directory };
    if flags & REPORT_DIR_FID == 0 || directory.number == 0 {
        return Some(event);
    }
    let reports_file = match of_names {
        true => flags & REPORT_TARGET_FID != 0,
        false => flags & REPORT_FID != 0 && wanted & event::IS_DIRECTORY == 0,
    };
    let child = Some(event.object).filter(|&file| reports_file && file != directory).unwrap_or_default();
    let has_name = flags & REPORT_NAME != 0 && (of_names || wanted & event::IS_DIRECTORY == 0);
    if !has_name && child.number == 0 {
        return Some(MarkEvent { object: directory, ..event });
    }
    (event.object, event.directory) = (child, directory);
    if has_name {
        event.set_name(0, change.name);
    }
    if let Some((target, name)) = change.moved_to.filter(|_| wanted & event::RENAME != 0) {
        let sees = |sight: Sight| sum.sights & (Sight::Everything as u32 | sight as u32) != 0;
        if !sees(Sight::Own) {
            event.directory = FileId::default();
            event.set_name(0, b"");
        }
        if sees(Sight::Target) {
            event.moved_to = target;
            event.set_name(1, name);
        }
    }
    Some(event)
}

impl<'f> Watches<'f> {
    /// Notifies all marks of a change.
    #[cold]
    pub(super) fn notify_marks(self, change: &MarkChange<'_>) {
        let Ok(tables) = self.tables() else { return };
        let mut sums = [Sum { wanted: 0, ignored: 0, sights: 0 }; GROUPS_MAX as usize];
        tables.add_up(&mut sums, change, EVERYTHING, Sight::Everything);
        tables.add_up(&mut sums, change, change.on, Sight::Own);
        if change.parent != 0 {
            tables.add_up(&mut sums, change, change.parent, Sight::Parent);
        }
        if let Some((target, _)) = change.moved_to {
            tables.add_up(&mut sums, change, target.number, Sight::Target);
        }
        for (group, sum) in sums.iter().enumerate().filter(|(_, sum)| sum.wanted & change.mask & !event::NO_EVENTS != 0)
        {
            let (flags, key) = (tables.queues[group].flags.load(Relaxed), tables.keys[group].load(SeqCst));
            let Some(mut event) = event_for(flags, sum, change) else { continue };
            let Some(ring) = Ring::new(tables, group as u32, key).filter(|_| key != 0) else { continue };
            let (platform, wants_thread) = (self.by.platform, flags & REPORT_TID != 0);
            event.process = match self.by.requester {
                0 if wants_thread => platform.thread_id(),
                0 => platform.process_id(),
                requester if wants_thread => requester,
                requester => platform.process_of(requester),
            };
            self.add_records(group as u32, &ring, core::iter::once((event.record(), Merge::Masks)));
        }
    }

    /// Whether a group wants to know in which directory a file is that an event of `mask` concerns.
    pub(super) fn wants_directory(self, number: u64, mask: u32) -> bool {
        let Ok(tables) = self.tables() else { return false };
        let mut wanted = false;
        for number in [EVERYTHING, number] {
            tables.each_mark(number, |mark| {
                let queue = tables.queues.get(mark.group.load(Relaxed) as usize);
                let reports = queue.is_some_and(|queue| queue.flags.load(Relaxed) & REPORT_DIR_FID != 0);
                wanted |= reports && mark.mask.load(Relaxed) & mask & !event::NO_EVENTS != 0;
            });
        }
        wanted
    }

    /// Whether a mark on a directory sees events of `mask` of its files.
    pub(super) fn is_marked_parent(self, number: u64, mask: u32) -> bool {
        let Ok(tables) = self.tables() else { return false };
        let mut wanted = false;
        tables.each_mark(number, |mark| {
            let bits = mark.mask.load(Relaxed) | mark.ignored.load(Relaxed);
            wanted |= bits & event::ON_CHILD != 0 && bits & mask & !event::NO_EVENTS != 0;
        });
        wanted
    }

    /// A file has ended: notifies the marks, and ends those on it.
    #[cold]
    pub(super) fn end_marks(self, file: FileId, is_directory: bool) {
        let Ok(tables) = self.tables() else { return };
        let mask = event::DELETE_SELF | if is_directory { event::IS_DIRECTORY } else { 0 };
        self.notify_marks(&MarkChange::of_file(mask, file));
        tables.each_mark(file.number, |mark| {
            if mark.state.compare_exchange(LIVE, ENDED, AcqRel, Relaxed).is_ok() {
                tables.has_ended.store(1, SeqCst);
            }
        });
    }

    /// Makes the group of a fanotify descriptor, unless it exists. `NoSpace`: there are too many.
    pub fn make_mark_group<M: Memory>(
        thread: &Thread<'f, M>,
        (key, uid): (u64, u32),
        (flags, event_flags): (u32, u32),
    ) -> Result<u32> {
        Self::make_group(thread, (key, uid), (flags | MARKS, event_flags))
    }

    /// The flags of a group, and those of descriptors in its events. Zero: it is inotify's.
    pub fn mark_group_flags(self, group: u32) -> (u32, u32) {
        let flags = |queue: &Queue| (queue.flags.load(Relaxed), queue.event_flags.load(Relaxed));
        self.tables().ok().and_then(|tables| tables.queues.get(group as usize)).map_or((0, 0), flags)
    }

    /// Checksums of the kernel's handles of the file that wakes a group, and of its directory.
    pub fn wake_handles(self, group: u32) -> [u64; 2] {
        let Ok(tables) = self.tables() else { return [0; 2] };
        tables.queues[group as usize].wake_handles.each_ref().map(|sum| sum.load(Relaxed))
    }

    /// Sets what [`Watches::wake_handles`] returns. Must precede [`Watches::set_wake_watch`].
    pub fn set_wake_handles(self, group: u32, handles: [u64; 2]) {
        if let Ok(tables) = self.tables() {
            for (word, sum) in tables.queues[group as usize].wake_handles.iter().zip(handles) {
                word.store(sum, Relaxed);
            }
        }
    }

    /// Adds a mark, or bits to that of the same object. `Exists`: it has other flags. `NoSpace`:
    /// the limit is reached.
    pub fn add_mark<M: Memory>(thread: &Thread<'f, M>, new: &NewMark) -> Result<()> {
        let (group, key) = new.group;
        let (object, flags) = (new.flags.object(), new.flags.0);
        let number = if object == INODE { new.number } else { EVERYTHING };
        let (tables, _held) = Self::lock(thread)?;
        tables.settle(thread.fs().dram());
        let index = match tables.find(key, number, object) {
            Some(index) => index,
            None => {
                let queue = &tables.queues[group as usize];
                let is_limited = queue.flags.load(Relaxed) & UNLIMITED_MARKS == 0;
                if is_limited && tables.watches_of(queue.uid.load(Relaxed), true) >= new.limit {
                    return Err(Error::NoSpace);
                }
                Self::add_entry(thread, tables, (group, key), number, (0, object | flags & EVICTABLE))?
            }
        };
        let mark = &tables.watches[index as usize];
        let kind = mark.kind.load(Relaxed);
        let loses_pin = flags & EVICTABLE != 0 && kind & EVICTABLE == 0;
        let loses_form = flags & IGNORED_MASK != 0 && kind & IGNORE != 0;
        let loses_survival = flags & IGNORE != 0 && flags & SURVIVES_MODIFY == 0 && kind & SURVIVES_MODIFY != 0;
        if loses_pin || loses_form || loses_survival {
            return Err(Error::Exists);
        }
        let of_ignore_mask = new.flags.is_of_ignore_mask();
        let gained = if of_ignore_mask { flags & (SURVIVES_MODIFY | IGNORE) } else { 0 };
        let lost = if flags & EVICTABLE == 0 { EVICTABLE } else { 0 };
        mark.kind.store((kind | gained) & !lost, SeqCst);
        match of_ignore_mask {
            true => mark.ignored.fetch_or(new.mask, SeqCst),
            false => mark.mask.fetch_or(new.mask, SeqCst),
        };
        tables.settle(thread.fs().dram());
        Ok(())
    }

    /// Removes bits of a mark, and the mark with the last. `NotFound`: there is none.
    pub fn remove_mark<M: Memory>(thread: &Thread<'f, M>, old: &NewMark) -> Result<()> {
        let object = old.flags.object();
        let number = if object == INODE { old.number } else { EVERYTHING };
        let (tables, _held) = Self::lock(thread)?;
        let index = tables.find(old.group.1, number, object).ok_or(Error::NotFound)?;
        let mark = &tables.watches[index as usize];
        let of_ignore_mask = old.flags.is_of_ignore_mask();
        let word = if of_ignore_mask { &mark.ignored } else { &mark.mask };
        word.fetch_and(!(old.mask & !old.kept), SeqCst);
        if (mark.mask.load(Relaxed) | mark.ignored.load(Relaxed)) & !old.kept == 0 {
            tables.remove(index);
        }
        tables.settle(thread.fs().dram());
        Ok(())
    }

    /// Removes all marks of a group on inodes, the mount, or the file system.
    pub fn flush_marks<M: Memory>(thread: &Thread<'f, M>, key: u64, flags: MarkFlags) -> Result<()> {
        let (tables, _held) = Self::lock(thread)?;
        tables.sweep(|mark| mark.key.load(Relaxed) == key && mark.kind.load(Relaxed) & OBJECT == flags.object());
        tables.settle(thread.fs().dram());
        Ok(())
    }

    /// Takes the first event of a group, if it has at most as many bytes as there is room for.
    pub fn take_mark_event(
        self,
        (group, key): (u32, u64),
        fits: impl Fn(&MarkEvent) -> bool,
        into: &mut MarkEvent,
    ) -> Result<Taken> {
        let mut record = MarkEvent::overflow().record();
        let taken = self.take_record((group, key), |record| fits(&MarkEvent::of_record(record)), &mut record)?;
        *into = MarkEvent::of_record(&record);
        let (flags, _) = self.mark_group_flags(group);
        let own = match flags & REPORT_TID {
            0 => self.by.platform.process_id(),
            _ => self.by.platform.thread_id(),
        };
        if flags & UNPRIVILEGED != 0 && into.process != own {
            into.process = 0;
        }
        Ok(taken)
    }

    /// Like [`Watches::watch_events_bytes`]: Linux counts the heads of fanotify's events.
    pub fn mark_events_bytes(self, group: (u32, u64)) -> Result<(usize, bool)> {
        self.events_bytes(group, METADATA_BYTES, |_| METADATA_BYTES)
    }
}
