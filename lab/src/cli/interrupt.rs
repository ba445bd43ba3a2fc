//! Interrupts set a flag. Experiments check the flag and stop cleanly, so that their files are
//! removed.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The work was interrupted and has cleaned up.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Whether a signal has arrived.
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// After this call, SIGINT, SIGTERM and SIGHUP set the flag instead of ending the process. A
    /// second signal ends it.
    pub fn catch() -> Result<Flag> {
        let flag: Arc<AtomicBool> = Arc::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The order matters: the shutdown checks the flag before the next line's action sets
            // it.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("cannot catch interrupts")?;
        }
        Ok(Flag(flag))
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
