//! The process number of this process, and the judgement whether other processes and threads live:
//! see [`crate::liveness`].

use crate::dram::{Dram, Owner};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::liveness::{Liveness, NO_FILE};
use crate::platform::Platform;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::Memory;

/// The processes that use the image, by numbers. Of the file system it reaches only what judges
/// them.
#[derive(Clone, Copy)]
pub struct Processes<'f> {
    dram: &'f Dram,
    liveness: &'f Liveness,
    platform: &'static dyn Platform,
}

impl<M: Memory> Fs<M> {
    /// The processes that use the image.
    #[inline(always)]
    pub fn processes(&self) -> Processes<'_> {
        Processes { dram: &self.dram, liveness: &self.liveness, platform: self.platform }
    }
}

impl Processes<'_> {
    /// The process number of the calling process, which takes one if it has none.
    pub fn process_number(self) -> Result<u32> {
        let own = self.liveness;
        let ((number, taker), process_id) = (own.identity(), self.platform.process_id());
        if number != 0 && taker == process_id {
            return Ok(number);
        }
        if number == 0 || own.follows_forks {
            return self.take_number((number, taker));
        }
        let child = own.children.iter().map(|child| child.load(Acquire)).find(|child| child >> 32 == process_id as u64);
        match child {
            Some(child) => Ok(child as u32),
            None if self.shares_process_number() => Ok(number),
            None => Err(Error::Liveness),
        }
    }

    /// For a child that runs in its parent's memory: sets the number that its parent took for it.
    /// `false`: there is no room, and the child uses its parent's number.
    pub fn add_child_number(self, number: u32) -> bool {
        let word = number as u64 | (self.platform.process_id() as u64) << 32;
        self.liveness.children.iter().any(|child| child.compare_exchange(0, word, AcqRel, Relaxed).is_ok())
    }

    /// In the parent, once that child has left its memory.
    pub fn remove_child_number(self, number: u32) {
        for child in &self.liveness.children {
            let word = child.load(Relaxed);
            if word as u32 == number && word != 0 {
                child.store(0, Release);
            }
        }
    }

    /// The calling thread, for owner words.
    pub(crate) fn identity(self) -> Result<Owner> {
        Ok(Owner { process: self.process_number()?, thread: self.platform.thread_id() })
    }

    /// A new number from the region, whose lock is not taken yet.
    pub fn new_process_number(self) -> Result<u32> {
        let next = &self.dram.header()?.process_numbers;
        next.fetch_update(AcqRel, Acquire, |last| last.checked_add(1)).map(|last| last + 1).map_err(|_| Error::Liveness)
    }

    /// In a new or forked process: takes a number in place of `before`. Other threads of the
    /// process may do so at the same time.
    #[cold]
    fn take_number(self, before: (u32, u32)) -> Result<u32> {
        let (own, process_id) = (self.liveness, self.platform.process_id());
        let fresh = self.new_process_number()?;
        let Some(usual) = self.liveness_description() else {
            return Ok(if own.replace_identity(before, (fresh, process_id)) { fresh } else { own.number() });
        };
        match self.platform.take_liveness(usual, fresh) {
            Some(description) if own.replace_identity(before, (fresh, process_id)) => {
                self.platform.replace_description(usual, description);
                Ok(fresh)
            }
            // Another thread was faster. Its description stays: it holds the number's lock.
            Some(description) => {
                self.platform.close_description(description);
                Ok(own.number())
            }
            None if before.0 == 0 => Err(Error::Liveness),
            None => {
                // The description is also the parent's: while either lives, both count as living.
                own.shared.store(1, Release);
                own.replace_identity(before, (before.0, process_id));
                Ok(own.number())
            }
        }
    }

    /// Sets a number that the calling process has already: after an exec, or in a child for which
    /// its parent took the number. `shared`: other processes may have it, too. `false`: the number
    /// is not this process's, and nothing changes.
    pub fn set_process_number(self, number: u32, shared: bool) -> bool {
        let own = self.liveness;
        let description = own.description.load(Acquire);
        if number == 0 || description != NO_FILE && !self.platform.hold_liveness(description, number) {
            return false;
        }
        own.shared.store(u32::from(shared), Release);
        own.children.iter().for_each(|child| child.store(0, Relaxed));
        own.set_identity(number, self.platform.process_id());
        true
    }

    /// Records that other processes have this process's number. Their threads cannot be
    /// distinguished, so none of them counts as dead.
    pub fn share_process_number(self) {
        self.liveness.shared.store(1, Release);
    }

    /// Whether other processes may have this process's number.
    pub fn shares_process_number(self) -> bool {
        self.liveness.shared.load(Acquire) != 0
    }

    /// Whether the process with that number lives; in a region without a lock file all do.
    pub fn is_process_alive(self, number: u32) -> bool {
        let own = self.liveness;
        // The kernel does not report a description's own locks.
        number == own.number()
            || match own.description.load(Acquire) {
                NO_FILE => true,
                description => self.platform.is_liveness_held(description, number),
            }
    }

    /// Whether the thread of an owner word lives. For other processes' threads only the process is
    /// checked: each process recovers its own threads.
    pub(crate) fn is_alive(self, owner: Owner) -> bool {
        let own = self.liveness;
        let (number, process_id) = own.identity();
        if owner.process != number {
            return self.is_process_alive(owner.process);
        }
        own.shared.load(Acquire) != 0 || self.platform.is_thread_alive(process_id, owner.thread)
    }

    /// The descriptor of the lock file's description, if the region is shared.
    pub fn liveness_description(self) -> Option<i32> {
        let description = self.liveness.description.load(Acquire);
        (description != NO_FILE).then_some(description)
    }

    /// Records another descriptor of the lock file's description.
    pub fn move_liveness_description(self, to: i32) {
        self.liveness.description.store(to, Release);
    }

    /// Takes an own process number in place of a shared one; returns whether the process has one
    /// now.
    pub fn renew_process_number(self) -> Result<bool> {
        let own = self.liveness;
        let Some(usual) = self.liveness_description() else { return Ok(false) };
        let fresh = self.new_process_number()?;
        let Some(description) = self.platform.take_liveness(usual, fresh) else { return Ok(false) };
        own.set_identity(fresh, self.platform.process_id());
        own.shared.store(0, Release);
        self.platform.replace_description(usual, description);
        Ok(true)
    }
}
