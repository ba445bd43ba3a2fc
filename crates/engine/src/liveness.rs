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
//! - A number is published only when its lock is held, and the description that holds it is closed
//!   only by a process that gives the number up. Of threads that take a number for their process
//!   at the same time one wins, and only the description of that one takes the usual descriptor.
//! - In doubt a process counts as living: reaping a slot late costs a slot, reaping that of a
//!   living process costs data.
//!
//! Decision: docs/decisions/tables.md, "A process lives while its kernel lock is held".

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
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
    /// The process number (low half; zero: none yet) and the id of the process that has it (high
    /// half). In one word: no thread sees the number of one process with the id of another.
    identity: AtomicU64,
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

    /// A shared image where the caller sees every fork, and calls [`crate::Fs::set_process_number`]
    /// after it.
    pub const fn supervised(description: i32) -> Liveness {
        Liveness::new(description, false)
    }

    const fn new(description: i32, follows_forks: bool) -> Liveness {
        Liveness {
            description: AtomicI32::new(description),
            identity: AtomicU64::new(0),
            shared: AtomicU32::new(0),
            children: [const { AtomicU64::new(0) }; CHILDREN],
            follows_forks,
        }
    }

    /// The process number, and the id of the process that took it; zeros: none yet.
    pub(crate) fn identity(&self) -> (u32, u32) {
        let word = self.identity.load(Acquire);
        (word as u32, (word >> 32) as u32)
    }

    /// The process number; zero: none yet.
    pub(crate) fn number(&self) -> u32 {
        self.identity().0
    }

    /// Sets the process number, whose liveness lock is held.
    pub(crate) fn set_identity(&self, number: u32, process_id: u32) {
        self.identity.store(word_of((number, process_id)), Release);
    }

    /// `set_identity`, unless another thread did so. Returns whether this one did.
    pub(crate) fn replace_identity(&self, before: (u32, u32), (number, process_id): (u32, u32)) -> bool {
        let (before, after) = (word_of(before), word_of((number, process_id)));
        self.identity.compare_exchange(before, after, AcqRel, Acquire).is_ok()
    }
}

fn word_of((number, process_id): (u32, u32)) -> u64 {
    u64::from(number) | u64::from(process_id) << 32
}
