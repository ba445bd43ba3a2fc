//! Backoff: waiting for a state that other threads will end, where there is no lock to wait for.
//! Attempts are counted, and dead threads are reaped in between, so no loop waits for ever for
//! something that only a dead thread could end.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::sync::{AtomicU32, spin_loop};
use pmem::Memory;

/// Consecutive attempts before a waiting thread sleeps between them.
pub(crate) const SPINS: u32 = 2000;
/// Sleeps after which a wait is reported: about 5 s.
const REPORT_SLEEPS: u32 = 5000;
/// Sleeps after which a signal ends the wait: about 1 s, as for [`crate::lock`].
const INTERRUPTIBLE_SLEEPS: u32 = 1000;
/// Sleeps between two looks for the reason of a wait.
const LONG_SLEEPS: u32 = 8;
/// Sleeps between two checks for dead threads.
const SLEEPS: u32 = 4;

/// Waiting for a state that a live thread will end.
pub(crate) struct Backoff {
    attempts: u32,
    sleeps: u32,
    interrupted: bool,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { attempts: 0, sleeps: 0, interrupted: false }
    }

    /// A backoff that sleeps from the first attempt on.
    pub(crate) fn after_spinning() -> Backoff {
        Backoff { attempts: SPINS, sleeps: 0, interrupted: false }
    }

    /// One failed attempt. Out of line: every call could fail here, but hardly any does.
    #[cold]
    #[inline(never)]
    pub(crate) fn pause<M: Memory>(&mut self, fs: &Fs<M>) -> Result<()> {
        self.attempts = self.attempts.wrapping_add(1);
        if self.attempts < SPINS {
            spin_loop();
            return Ok(());
        }
        self.sleep_or_reap(fs)
    }

    /// Whether it is time to look for the reason of the wait: the first time after some
    /// milliseconds. After [`Backoff::pause`].
    pub(crate) fn is_long(&self) -> bool {
        self.sleeps != 0 && self.sleeps.is_multiple_of(LONG_SLEEPS)
    }

    /// One failed attempt of a pinned thread: `Busy` when it is time to sleep. The thread that
    /// could end the awaited state may itself be waiting until all pinned threads have left.
    #[cold]
    #[inline(never)]
    pub(crate) fn pause_pinned(&mut self) -> Result<()> {
        self.attempts = self.attempts.wrapping_add(1);
        if self.attempts >= SPINS {
            return Err(Error::Busy);
        }
        spin_loop();
        Ok(())
    }

    fn sleep_or_reap<M: Memory>(&mut self, fs: &Fs<M>) -> Result<()> {
        if self.attempts >= SPINS + SLEEPS {
            self.attempts = SPINS;
            fs.reap_dead_threads()?;
        }
        self.interrupted |= fs.platform.wait_interruptibly(&AtomicU32::new(0), 0, 1);
        self.sleeps = self.sleeps.saturating_add(1);
        if self.interrupted && self.sleeps >= INTERRUPTIBLE_SLEEPS {
            return Err(Error::Interrupted);
        }
        if self.sleeps == REPORT_SLEEPS {
            fs.platform.report_wait(None, "is changing this name or file");
        }
        Ok(())
    }
}
