//! A committer that is stopped or frozen, with the launcher that would replace it: in a paused
//! container, or by SIGSTOP to both.
//!
//! A thread that waits for a commit ends it then, if the kernel permits: one of a process of the
//! same user in the same PID namespace, or of root. What follows is the death of a committing
//! process, which `requests` describes. A process that is continued later finds a dead child, and
//! starts another.
//!
//! Invariant: a signal goes only to the process that has the committer's process number. Its id is
//! stored with that number and its PID namespace, and the number's liveness lock is held after the
//! descriptor of the process was opened. So the id is still that process's.

use super::{COMMITTER, Commits};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Acquire;
#[cfg(feature = "std")]
use core::sync::atomic::Ordering::{Relaxed, Release};
use engine::dram::Owner;
use engine::{Platform, Thread};
use pmem::Memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tables::host::{self, PLATFORM};

/// Between the two looks at a process: one that a tracer attaches to stops for less.
const LOOKS_MS: u32 = 50;
/// The kernel ends a killed process once a write that is under way has ended.
const END: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

impl Commits {
    /// Stores which process is the committer with that number.
    #[cfg(feature = "std")]
    pub(super) fn name_committer(&self, number: u32) {
        let more = self.more();
        let committer = u64::from(number) | u64::from(PLATFORM.process_id()) << 32;
        if more.committer.load(Relaxed) != committer {
            // A reader that finds the new namespace does not find the id before.
            more.committer.store(0, Relaxed);
            more.committer_namespace.store(host::pid_namespace(), Release);
            more.committer.store(committer, Release);
        }
    }

    /// The process id of the committer with that number, if it is visible here.
    fn committer_id(&self, number: u32) -> Option<u32> {
        let more = self.more();
        let committer = more.committer.load(Acquire);
        let namespace = more.committer_namespace.load(Acquire);
        let is_visible = committer as u32 == number
            && more.committer.load(Acquire) == committer
            && namespace != 0
            && namespace == host::pid_namespace();
        is_visible.then_some((committer >> 32) as u32)
    }

    /// Ends the committer if it is stopped; returns whether this process did.
    pub fn end_stopped_committer<M: Memory>(&self, thread: &Thread<'_, M>) -> bool {
        let service = self.shared().service.load(Acquire);
        let number = service as u32;
        let is_alive = || thread.fs().processes().is_process_alive(number);
        if service & COMMITTER == 0 || !is_alive() {
            return false;
        }
        let Some(id) = self.committer_id(number) else { return false };
        let Some(process) = Pid::from_raw(id as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return false;
        };
        if !host::is_stopped(id) || !is_alive() {
            return false;
        }
        PLATFORM.wait(&AtomicU32::new(0), 0, LOOKS_MS);
        host::is_stopped(id)
            && pidfd_send_signal(&process, Signal::KILL).is_ok()
            && poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&END)).is_ok_and(|ended| ended > 0)
    }

    /// Reports that the calling thread waits for the service.
    pub(super) fn report_silent_service(&self) {
        let number = self.shared().service.load(Acquire) as u32;
        // Thread 0 is none: the process is not visible here.
        let owner = Owner { process: number, thread: self.committer_id(number).unwrap_or(0) };
        PLATFORM.report_wait(Some(owner), "commits the image for all");
    }
}
