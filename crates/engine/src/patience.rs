//! Backoff: waiting for a state that other threads will end, where there is no lock to wait for.
//! Attempts are counted, and dead threads are reaped in between, so no loop waits for ever for
//! something that only a dead thread could end.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::sync::{AtomicU32, spin_loop};
use pmem::Memory;

/// Consecutive attempts before a waiting thread sleeps between them.
pub(crate) const SPINS: u32 = 2000;
/// Sleeps between two checks for dead threads.
const SLEEPS: u32 = 4;

/// Waiting for a state that a live thread will end.
pub(crate) struct Patience {
    looks: u32,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { looks: 0 }
    }

    /// A backoff that sleeps from the first attempt on.
    pub(crate) fn worn() -> Patience {
        Patience { looks: SPINS }
    }

    /// One failed attempt. Out of line: every call could fail here, but hardly any does.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose<M: Memory>(&mut self, fs: &Fs<M>) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks < SPINS {
            spin_loop();
            return Ok(());
        }
        self.look(fs)
    }

    /// One failed attempt of a pinned thread: `Busy` when it is time to sleep. The thread that
    /// could end the awaited state may itself be waiting until all pinned threads have left.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose_inside(&mut self) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks >= SPINS {
            return Err(Error::Busy);
        }
        spin_loop();
        Ok(())
    }

    fn look<M: Memory>(&mut self, fs: &Fs<M>) -> Result<()> {
        if self.looks >= SPINS + SLEEPS {
            self.looks = SPINS;
            fs.reap_dead()?;
        }
        fs.platform.wait(&AtomicU32::new(0), 0, 1);
        Ok(())
    }
}
