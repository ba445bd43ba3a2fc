//! Watches: processes that are notified of changes of files (inotify, fanotify).
//!
//! A *group* belongs to one descriptor. It has watches, each on an inode number, and a queue of
//! events. fanotify's watches are called *marks*. All of it is in the DRAM region, so that a change
//! in one process reaches the queues of all others. The engine reports the end of an inode
//! ([`engine::Platform::inode_ended`]), crate `posix` all other changes ([`Reports`]).
//!
//! Invariants
//! - While no watch exists, [`engine::Fs::is_watched`] is false, and a change pays for that load
//!   only.
//! - A call that changes a file waits for nothing here. It reads the table without a lock, and
//!   loses events, announced by IN_Q_OVERFLOW, rather than wait for room or for another process.
//! - The table changes under `lock`, by single stores: a death in the middle leaves it consistent.
//!   A watch that ends on its own (IN_ONESHOT, the end of its file) is only marked; the next holder
//!   of the lock removes it.
//! - A group is named by a random key. It is released with the descriptor's description, by
//!   whichever process drops the last reference or reaps the dead one that did.
//!
//! Decision: docs/decisions/run-rings.md, "Watches lie in the DRAM region".

mod changes;
mod layout;
mod marked_changes;
mod marks;
mod names;
mod queue;
mod table;
#[cfg(test)]
mod tests;
mod wake;

pub use changes::Reports;
pub(crate) use layout::WATCHES_AT;
pub use marks::{FileId, METADATA_BYTES, MarkEvent, MarkFlags, NewMark, group_flag};
pub use queue::{EVENT_BYTES, Taken, WatchEvent};
pub use table::NewWatch;
pub use wake::wake_name;

use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use engine::format::FileKind;
use engine::{Error, LockGuard, Reporter, Result, Thread};
use layout::{Queue, WatchTables};
use marks::MarkChange;
use marks::group_flag::{HANDLES, MARKS};
use names::NameHint;
use pmem::{Memory, Pm};

/// Bit of the header's word: a watch of inotify exists.
const WATCHED: u64 = 1;
/// `WATCHED` for a mark of fanotify.
const MARKED: u64 = 2;

/// Events of a file or directory, with the kernel's numbers.
pub mod event {
    /// It was read.
    pub const ACCESS: u32 = 1;
    /// Its content changed.
    pub const MODIFY: u32 = 2;
    /// Its attributes changed.
    pub const ATTRIB: u32 = 4;
    /// A description open for writing ended.
    pub const CLOSE_WRITE: u32 = 8;
    /// Another description ended.
    pub const CLOSE_NOWRITE: u32 = 0x10;
    /// It was opened.
    pub const OPEN: u32 = 0x20;
    /// In the directory: a name moved away.
    pub const MOVED_FROM: u32 = 0x40;
    /// In the directory: a name moved here.
    pub const MOVED_TO: u32 = 0x80;
    /// In the directory: a new name.
    pub const CREATE: u32 = 0x100;
    /// In the directory: a removed name.
    pub const DELETE: u32 = 0x200;
    /// It ended.
    pub const DELETE_SELF: u32 = 0x400;
    /// It has another name.
    pub const MOVE_SELF: u32 = 0x800;
    /// All of the above.
    pub const ALL: u32 = 0xfff;
    /// fanotify: it was opened to be run.
    pub const OPEN_EXEC: u32 = 0x1000;
    /// fanotify: a name moved, with both places.
    pub const RENAME: u32 = 0x1000_0000;
    /// fanotify: events about names in a directory.
    pub const OF_NAMES: u32 = CREATE | DELETE | MOVED_FROM | MOVED_TO | RENAME;
    /// For a mark: also events of the directory's files.
    pub const ON_CHILD: u32 = 0x0800_0000;
    /// Bits of a mark's mask that are no events.
    pub const NO_EVENTS: u32 = IS_DIRECTORY | ON_CHILD;
    /// Linux's: each watch has it, whatever was asked for.
    pub const UNMOUNT: u32 = 0x2000;
    /// Events were lost.
    pub const Q_OVERFLOW: u32 = 0x4000;
    /// The watch ended.
    pub const IGNORED: u32 = 0x8000;
    /// For a watch: no events of files without names.
    pub const EXCL_UNLINK: u32 = 0x0400_0000;
    /// For a request: the watch must be new.
    pub const MASK_CREATE: u32 = 0x1000_0000;
    /// For a request: the events are added to those of the watch.
    pub const MASK_ADD: u32 = 0x2000_0000;
    /// For an event: the file is a directory.
    pub const IS_DIRECTORY: u32 = 0x4000_0000;
    /// For a watch: it ends with the first event.
    pub const ONESHOT: u32 = 0x8000_0000;
}

/// A change, as watches are notified of it.
#[derive(Debug, Clone, Copy)]
struct Change<'n> {
    /// The watched inode.
    number: u64,
    /// Bits of [`event`].
    mask: u32,
    /// Pairs the two events of a move.
    cookie: u32,
    /// For a watch on a directory: the name in it.
    name: &'n [u8],
    /// The file has lost its last name.
    unlinked: bool,
}

/// The watches of an image, for changes that a thread makes.
#[derive(Clone, Copy)]
pub struct Watches<'f> {
    by: Reporter<'f>,
}

impl<'f> Watches<'f> {
    /// For a thread.
    pub fn of<M: Memory>(thread: &Thread<'f, M>) -> Watches<'f> {
        Watches { by: thread.reporter() }
    }

    /// Whether any watch of inotify exists.
    pub(crate) fn has_watches(self) -> bool {
        self.has(WATCHED)
    }

    /// Whether any mark of fanotify exists.
    pub(crate) fn has_marks(self) -> bool {
        self.has(MARKED)
    }

    fn has(self, bit: u64) -> bool {
        self.by.dram.header().is_ok_and(|header| header.watched.load(Relaxed) & bit != 0)
    }

    /// `NotFound`: there never was a group, and the tables have no memory.
    fn tables(self) -> Result<&'f WatchTables> {
        if !self.by.dram.is_upper_provided(WATCHES_AT) {
            return Err(Error::NotFound);
        }
        Ok(self.by.dram.region().get(Pm::new(self.by.dram.layout.upper + WATCHES_AT))?)
    }

    /// The tables, for a change by this thread alone.
    fn lock<M: Memory>(thread: &Thread<'f, M>) -> Result<(&'f WatchTables, LockGuard<'f>)> {
        let tables = Self::of(thread).tables()?;
        Ok((tables, thread.lock(&tables.lock, &tables.waiters)?))
    }

    /// An inode has ended ([`engine::Platform::inode_ended`]). Marks were notified of a directory's
    /// end when its name was removed.
    #[cold]
    pub(crate) fn inode_ended(by: Reporter<'f>, file: FileId, kind: Option<FileKind>) {
        let watches = Watches { by };
        watches.end_watches(file.number);
        if watches.has_marks() && kind != Some(FileKind::Directory) {
            watches.end_marks(file, false);
        }
    }

    /// A number for the two events of a move.
    pub(crate) fn next_move_cookie(self) -> u32 {
        // Zero means "none".
        self.tables().map_or(1, |tables| tables.cookie.fetch_add(1, AcqRel).wrapping_add(1).max(1))
    }

    /// Makes the kernel's descriptor of a group readable, unless it is.
    fn wake_group(self, group: u32, queue: &Queue) {
        let armed = queue.armed.load(SeqCst);
        // In this order: a death in between leaves one wake-up too many.
        let opens = queue.flags.load(Relaxed) & (MARKS | HANDLES) == MARKS;
        if armed & 1 == 0 && wake::wake(self.by.lock_file, group, opens) {
            let _ = queue.armed.compare_exchange(armed, armed + 1, SeqCst, Relaxed);
        }
    }
}
