//! Waiting for a state that others will end, where there is no lock to wait for. Looks are counted, and whoever has died is reaped in between: no loop
//! waits for ever for what only a dead thread could end.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::sync::{AtomicU32, spin_loop};
use pmem::Memory;

/// Looks in a row before a thread that waits begins to sleep between them.
pub(crate) const SPINS: u32 = 2000;
/// Sleeps between two looks whether somebody has died.
const SLEEPS: u32 = 4;

/// Waiting for a state that somebody else will end, unless he is dead.
pub(crate) struct Patience {
    looks: u32,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { looks: 0 }
    }

    /// Of who has looked often enough to sleep from now on.
    pub(crate) fn worn() -> Patience {
        Patience { looks: SPINS }
    }

    /// One look in vain. Out of line: looks are on the way of every call, and in vain they hardly ever are.
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

    /// One look in vain by who is pinned: `Busy` when it is time to sleep. Whoever could end what is waited for may be waiting until all have left.
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
