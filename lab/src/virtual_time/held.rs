//! Time and random numbers of the systems. While calls are recorded, time stands still and random
//! numbers are constants.
//!
//! A recorded call takes milliseconds. The clock for a directory's times ticks a few hundred times
//! a second, so it would tick in every recorded call, and every call would change the directory's
//! times. Without recording, thousands of calls run between two ticks.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU32};
use std::sync::{Mutex, PoisonError};
use tables::host;

/// Held for all file systems in this process.
static HELD_NS: AtomicI64 = AtomicI64::new(0);
/// Changed together with the time.
static HOLDERS: Mutex<u32> = Mutex::new(0);
static FIXED: AtomicU32 = AtomicU32::new(0);

/// The clock is held while this exists.
pub struct HeldTime(());

impl HeldTime {
    /// Holds it at the present time.
    pub fn new() -> HeldTime {
        HeldTime::at(host::now_ns())
    }

    fn at(now_ns: i64) -> HeldTime {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if *holders == 0 {
            HELD_NS.store(now_ns, Relaxed);
        }
        *holders += 1;
        HeldTime(())
    }
}

impl Default for HeldTime {
    fn default() -> HeldTime {
        HeldTime::new()
    }
}

impl Drop for HeldTime {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        *holders -= 1;
        if *holders == 0 {
            HELD_NS.store(0, Relaxed);
        }
    }
}

/// Time is held at a constant, and random numbers are a constant, while this exists.
pub(super) struct FixedWorld(HeldTime);

impl FixedWorld {
    pub(super) fn new() -> FixedWorld {
        const SOME_TIME_NS: i64 = 1_700_000_000_000_000_000;
        FIXED.fetch_add(1, AcqRel);
        crate::substrate::pin_shard();
        FixedWorld(HeldTime::at(SOME_TIME_NS))
    }
}

impl Drop for FixedWorld {
    fn drop(&mut self) {
        FIXED.fetch_sub(1, AcqRel);
    }
}

/// The time for the systems.
pub fn now_ns() -> i64 {
    // The host's clock is read in any case, so that a recorded call does the same work as others.
    let now_ns = host::now_ns();
    match HELD_NS.load(Relaxed) {
        0 => now_ns,
        held_ns => held_ns,
    }
}

/// Whether random numbers and numbers of threads are to be the same in every run.
pub fn is_fixed() -> bool {
    FIXED.load(Relaxed) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_while_held() {
        let first = HeldTime::new();
        let second = HeldTime::new();
        let held_ns = now_ns();
        // Wait until the coarse clock has ticked.
        while host::now_ns() == held_ns {
            std::hint::spin_loop();
        }
        drop(first);
        assert_eq!(now_ns(), held_ns);
        drop(second);
        // Another test may hold it, too, at a time that has passed.
        while now_ns() <= held_ns {
            std::thread::yield_now();
        }
    }
}
