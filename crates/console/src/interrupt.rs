//! Interrupts set a flag. Long work checks the flag and stops cleanly, so that its files are
//! removed.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The work was interrupted and has cleaned up.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The work was interrupted; the text says what that means for the image.
#[derive(Debug)]
pub struct Stopped(pub &'static str);

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Stopped {}

/// After this call, SIGINT, SIGTERM and SIGHUP set the flag instead of ending the process. A second
/// signal ends it.
pub fn catch() -> Result<()> {
    let flag = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: the shutdown checks the flag before the next line's action sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("cannot catch interrupts")?;
    }
    Ok(())
}

/// `catch` for a process that its parent kills if necessary: none of these signals ends it, however
/// many arrive.
pub fn catch_each() -> Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot catch interrupts")?;
    }
    Ok(())
}

/// An error if a signal has arrived.
#[inline]
pub fn check() -> Result<()> {
    match FLAG.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(Interrupted.into()),
        _ => Ok(()),
    }
}
