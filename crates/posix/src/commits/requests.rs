//! Commits are made by the thread that needs one, or by a process that does nothing else.
//!
//! A thread that commits may be stopped at any instruction: by SIGSTOP, by Ctrl-Z, by the freezer
//! of control groups. If another one took over the lock of commits then, the first would go on
//! later with its next instruction. That may be a write to a place of the log or the image that
//! holds newer bytes by then, or a store to the state of the journal or to the marks. No check
//! closes the gap between itself and the write. So **the lock is never taken from a process that
//! lives.**
//!
//! Instead it belongs to a process that can be ended: the *committer*. It runs no program's code,
//! has no terminal and no part in the program's process group. So what stops programs does not stop
//! it, and nothing is lost with it. The process that started it ends it by SIGKILL if it is stopped
//! all the same; where that one is stopped, too, others do so (`stopped`). A killed process
//! executes no further instruction, and a write that the kernel has started for it ends before its
//! locks are released. What follows is the death of a committing process at any instruction: a
//! waiter recovers the lock, the next commit restores the pending marks (`pmem::Tracking`) and
//! appends behind the last state that was stored (`journal`).
//!
//! Calls send it a request and wait, holding nothing:
//!
//! 1. The call reads the number of commits started, sets a bit in the service word, and wakes the
//!    committer.
//! 2. The committer takes the bits, takes the lock, counts the commit, and makes it.
//! 3. It stores the commit's number as finished or failed, raises the count of *wakes*, and wakes
//!    the threads that sleep on it.
//! 4. The call returns if a commit that began after step 1 has finished. It repeats the request
//!    after a while, since the committer may have died in between. Where no committer is left, it
//!    commits itself.
//!
//! A committer is started at the first request, or when something has changed for a second. So the
//! launcher is the service before, as a *starter*. A call waits some seconds for it.
//!
//! Invariant: while a committer lives, no other process takes the lock of commits, but to make the
//! image larger, to add a feature to its description, and to close it.

#[cfg(feature = "std")]
use super::STARTER;
use super::{COMMITTER, Commits, WANTS_COMMIT};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use engine::{Platform, Thread};
use pmem::Memory;
use tables::host::PLATFORM;
use tables::{Errno, Result};

/// After so long a call repeats its request.
const SLEEP_MS: u32 = 100;
/// Sleeps without a commit after which a call looks whether the committer is stopped, and again.
const LOOK_SLEEPS: u32 = 10;
/// Sleeps without a commit after which a call reports that it waits. A slow disk may take long.
const REPORT_SLEEPS: u32 = 300;
/// Sleeps until a call does not expect a service any more: another one takes the place of one that
/// ended within a second.
const SERVICE_SLEEPS: u32 = 30;

impl Commits {
    /// Whether a process lives that commits for all and does nothing else.
    #[cfg(feature = "std")]
    pub fn has_committer<M: Memory>(&self, thread: &Thread<'_, M>) -> bool {
        self.has_service_of(COMMITTER, thread)
    }

    /// Whether the service lives and is of one of these kinds.
    pub(super) fn has_service_of<M: Memory>(&self, kinds: u64, thread: &Thread<'_, M>) -> bool {
        let service = self.shared().service.load(Acquire);
        service & kinds != 0 && thread.fs().processes().is_process_alive(service as u32)
    }

    /// Lets the service commit. A process whose files may not grow cannot write the journal: the
    /// kernel would kill it.
    pub(super) fn commit_by_service<M: Memory>(&self, thread: &Thread<'_, M>) -> Result<()> {
        let (shared, wakes) = (self.shared(), &self.header().wakes);
        let needed = shared.started.load(SeqCst) + 1;
        let failed_before = shared.failed.load(Acquire);
        let mut sleeps_left = SERVICE_SLEEPS;
        let mut silent_sleeps = 0;
        self.ask_service(WANTS_COMMIT);
        loop {
            let before = wakes.load(Acquire);
            if shared.finished.load(Acquire) >= needed {
                return Ok(());
            }
            if shared.failed.load(Acquire) > failed_before.max(needed - 1) {
                return Err(Errno(shared.error.load(Relaxed) as i32));
            }
            let is_limited = self.is_file_size_limited();
            let service = shared.service.load(Acquire);
            let is_alive = service != 0 && thread.fs().processes().is_process_alive(service as u32);
            // A starter may be stopped.
            if is_alive && (is_limited || service & COMMITTER != 0) {
                sleeps_left = SERVICE_SLEEPS;
            } else if sleeps_left > 0 && (is_limited || is_alive) {
                sleeps_left -= 1;
            } else if is_limited {
                return Err(Errno::EFBIG);
            } else {
                return self.commit_here(thread);
            }
            PLATFORM.wait(wakes, before, SLEEP_MS);
            if wakes.load(Acquire) == before {
                self.ask_service(WANTS_COMMIT);
                silent_sleeps += 1;
                if silent_sleeps % LOOK_SLEEPS == 0 {
                    self.end_stopped_committer(thread);
                }
                if silent_sleeps == REPORT_SLEEPS {
                    self.report_silent_service();
                }
            } else {
                silent_sleeps = 0;
            }
        }
    }

    /// Wakes the service for `what`, a set of `WANTS_COMMIT` and `WANTS_CHECKPOINT`. Does not wait.
    pub fn ask_service(&self, what: u32) {
        let wanted = &self.header().service;
        if wanted.fetch_or(what, AcqRel) & what == 0 {
            PLATFORM.wake(wanted);
        }
    }

    /// Wakes the calls that wait for the end of a commit.
    pub(super) fn wake_waiters(&self) {
        let wakes = &self.header().wakes;
        wakes.fetch_add(1, Release);
        PLATFORM.wake(wakes);
    }
}

/// What a service does with a request.
#[cfg(feature = "std")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    /// Its thread commits; so do other threads.
    Thread,
    /// It starts a committer.
    Starter,
    /// It commits, and no other process does.
    Committer,
}

/// For the service.
#[cfg(feature = "std")]
impl Commits {
    /// Sleeps until something is wanted, or the time has passed. Returns what is.
    pub fn wait_for_requests(&self, timeout_ms: u32) -> u32 {
        let wanted = &self.header().service;
        PLATFORM.wait(wanted, 0, timeout_ms);
        wanted.swap(0, AcqRel)
    }

    /// Wakes it.
    pub fn wake_service(&self) {
        PLATFORM.wake(&self.header().service);
    }

    /// Makes the process with that number the service, if there is none that lives. A committer
    /// takes the place of any other, and a starter of a service that is neither.
    pub fn take_service<M: Memory>(&self, thread: &Thread<'_, M>, number: u32, kind: ServiceKind) {
        let service = &self.shared().service;
        let before = service.load(Acquire);
        let (kind, replaced) = match kind {
            ServiceKind::Thread => (0, false),
            ServiceKind::Starter => (STARTER, before & (STARTER | COMMITTER) == 0),
            ServiceKind::Committer => (COMMITTER, before & COMMITTER == 0),
        };
        if kind == COMMITTER && before as u32 == number {
            self.name_committer(number);
        }
        if replaced || before == 0 || !thread.fs().processes().is_process_alive(before as u32) {
            let replaced = service.compare_exchange(before, u64::from(number) | kind, AcqRel, Relaxed);
            if kind == COMMITTER && replaced.is_ok() {
                self.name_committer(number);
            }
        }
    }

    /// Ends the service of the process with that number.
    pub fn end_service(&self, number: u32) {
        let service = &self.shared().service;
        let before = service.load(Acquire);
        if before as u32 == number {
            let _ = service.compare_exchange(before, 0, AcqRel, Relaxed);
            // Calls that wait for it commit themselves.
            self.wake_waiters();
        }
    }

    /// Whether the process with that number is the service.
    pub fn is_service(&self, number: u32) -> bool {
        self.shared().service.load(Acquire) as u32 == number
    }

    /// Whether anything changed since the last commit.
    pub fn has_changes(&self) -> bool {
        self.tracking.marked_bytes() > 0
    }

    /// When the last commit began, ns since 1970.
    pub fn committed_ns(&self) -> i64 {
        self.shared().committed_ns.load(Relaxed) as i64
    }
}
