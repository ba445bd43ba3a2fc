//! An interrupt sets a flag; long work looks at it and stops in order, so that what it made is removed again.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The work was interrupted, and has cleaned up.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From here on SIGINT, SIGTERM and SIGHUP set the flag instead of ending the process. A second one ends it.
pub fn catch() -> Result<()> {
    let flag = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Order matters: the shutdown looks at the flag before the next line's action sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("cannot catch interrupts")?;
    }
    Ok(())
}

/// The same for a process that somebody else ends where it does not end itself: no signal of these ends it, however many come.
pub fn catch_each() -> Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot catch interrupts")?;
    }
    Ok(())
}

/// An error if an interrupt came.
#[inline]
pub fn check() -> Result<()> {
    match FLAG.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(Interrupted.into()),
        _ => Ok(()),
    }
}
