//! Watches: processes that are notified of changes of files (inotify, fanotify).
//!
//! A *group* belongs to one descriptor. It has watches, each on an inode number, and a queue of
//! events. fanotify's watches are called *marks*. All of it is in the DRAM region, so that a change
//! in one process reaches the queues of all others.
//!
//! Invariants
//! - While no watch exists, [`Fs::is_watched`] is false, and a change pays for that load only.
//! - A call that changes a file waits for nothing here. It reads the table without a lock, and
//!   loses events, announced by IN_Q_OVERFLOW, rather than wait for room or for another process.
//! - The table changes under `lock`, by single stores: a death in the middle leaves it consistent.
//!   A watch that ends on its own (IN_ONESHOT, the end of its file) is only marked; the next holder
//!   of the lock removes it.
//! - A group is named by a random key. It is released with the descriptor's description, by
//!   whichever process drops the last reference or reaps the dead one that did.
//!
//! Decision: docs/decisions/run-rings.md, "Watches lie in the DRAM region".

pub(crate) mod layout;
mod marks;
mod names;
mod queue;
mod table;
#[cfg(test)]
mod tests;

pub use layout::GROUPS_MAX;
pub(crate) use layout::WatchTables;
pub use marks::{FileId, METADATA_BYTES, MarkChange, MarkEvent, MarkFlags, NewMark, group_flag};
pub use names::NameHint;
pub use queue::{EVENT_BYTES, Taken, WatchEvent};
pub use table::NewWatch;

use crate::components::Watches;
use crate::error::{Error, Result};
use crate::fs::Fs;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use layout::Queue;
use marks::group_flag::{HANDLES, MARKS};
use pmem::{Memory, Pm};

/// Bit of the header's mark: a watch of inotify exists.
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
pub struct Change<'n> {
    /// The watched inode.
    pub number: u64,
    /// Bits of [`event`].
    pub mask: u32,
    /// Pairs the two events of a move.
    pub cookie: u32,
    /// For a watch on a directory: the name in it.
    pub name: &'n [u8],
    /// The file has lost its last name.
    pub unlinked: bool,
}

impl<M: Memory> Fs<M> {
    /// Whether any watch exists.
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.dram().header().is_ok_and(|header| header.watched.load(Relaxed) != 0)
    }

    /// Whether any watch of inotify exists.
    pub fn has_watches(&self) -> bool {
        self.dram().header().is_ok_and(|header| header.watched.load(Relaxed) & WATCHED != 0)
    }

    /// Whether any mark of fanotify exists.
    pub fn has_marks(&self) -> bool {
        self.dram().header().is_ok_and(|header| header.watched.load(Relaxed) & MARKED != 0)
    }

    /// Makes the kernel's descriptor of a group readable. `opens`: it is notified of opens, else of
    /// changed attributes.
    fn signal_watchers(&self, group: u32, opens: bool) -> bool {
        self.platform.signal_watchers(self.liveness.description.load(Relaxed), group, opens)
    }

    /// `NotFound`: there never was a group, and the area has no memory.
    fn watch_tables(&self) -> Result<&WatchTables> {
        if !self.provider().is_provided(self.dram().layout.watches)? {
            return Err(Error::NotFound);
        }
        Ok(self.dram().region().get(Pm::new(self.dram().layout.watches))?)
    }
}

impl<'f, M: Memory> Watches<'_, 'f, M> {
    fn watch_tables(self) -> Result<&'f WatchTables> {
        self.owner.fs.watch_tables()
    }

    /// A number for the two events of a move.
    pub fn next_move_cookie(self) -> u32 {
        // Zero means "none".
        self.watch_tables().map_or(1, |tables| tables.cookie.fetch_add(1, AcqRel).wrapping_add(1).max(1))
    }

    /// Makes the kernel's descriptor of a group readable, unless it is.
    fn wake_group(self, group: u32, queue: &Queue) {
        let armed = queue.armed.load(SeqCst);
        // In this order: a death in between leaves one wake-up too many.
        let opens = queue.flags.load(Relaxed) & (MARKS | HANDLES) == MARKS;
        if armed & 1 == 0 && self.owner.fs.signal_watchers(group, opens) {
            let _ = queue.armed.compare_exchange(armed, armed + 1, SeqCst, Relaxed);
        }
    }
}
