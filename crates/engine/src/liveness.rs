//! How the processes that share a region detect each other's death.
//!
//! A process gets a *process number* from the region's header and locks the byte of that number in
//! a file that all of them have open. This is its *liveness lock*. The lock belongs to an open file
//! description of that process alone. The kernel drops it when the last descriptor of the
//! description closes, at the latest when the process ends.
//!
//! Invariants
//! - A process number is never used twice in a region. So a number without a lock is dead forever,
//!   and no owner word of a dead process equals that of a living one.
//! - A process number means the same in every namespace. Process and thread ids are used only for
//!   threads of the same process.
//! - In doubt a process counts as living: reaping a slot late costs a slot, reaping that of a
//!   living process costs data.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// No lock file: only this process uses the region.
pub(crate) const NO_FILE: i32 = -1;
/// The most children in this process's memory (vfork) that have numbers of their own at a time.
const CHILDREN: usize = 16;

/// The state of this process in a region.
#[derive(Debug)]
pub struct Liveness {
    /// The description of the lock file, or [`NO_FILE`].
    pub(crate) description: AtomicI32,
    /// The process number; zero: none yet.
    pub(crate) number: AtomicU32,
    /// The process that has the number.
    pub(crate) process_id: AtomicU32,
    /// 1: other processes may have the same number, because they got no description of their own.
    pub(crate) shared: AtomicU32,
    /// Children that run in this process's memory: number (low half) and process id (high half).
    pub(crate) children: [AtomicU64; CHILDREN],
    /// A child of a fork takes a number when it first needs one. Otherwise the caller sets it with
    /// [`crate::Fs::set_process_number`].
    pub(crate) follows_forks: bool,
}

impl Liveness {
    /// For a region that no other process uses.
    pub const fn alone() -> Liveness {
        Liveness::new(NO_FILE, true)
    }

    /// For a region that other processes use. `description`: a descriptor of the lock file that is
    /// this process's alone; it stays open while the file system is in use.
    pub const fn shared(description: i32) -> Liveness {
        Liveness::new(description, true)
    }

    /// The same where the caller sees every fork, and calls [`crate::Fs::set_process_number`] after
    /// it.
    pub const fn supervised(description: i32) -> Liveness {
        Liveness::new(description, false)
    }

    const fn new(description: i32, follows_forks: bool) -> Liveness {
        Liveness {
            description: AtomicI32::new(description),
            number: AtomicU32::new(0),
            process_id: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            children: [const { AtomicU64::new(0) }; CHILDREN],
            follows_forks,
        }
    }
}
