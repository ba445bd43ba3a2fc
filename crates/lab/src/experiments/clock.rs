//! The engine's platform in experiments: the host's, with a clock that can be held.
//!
//! A recorded call takes milliseconds. The clock for a directory's times ticks a few hundred times
//! a second, so it would tick in every recorded call, and every call would change the directory's
//! times. Without recording, thousands of calls run between two ticks. So the clock is held while
//! calls are recorded.

use engine::Platform;
use posix::host;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU32};

/// A recording holds the clock for all file systems in memory.
static HELD_NS: AtomicI64 = AtomicI64::new(0);
static HOLDERS: AtomicU32 = AtomicU32::new(0);

/// The clock is held while this exists.
pub(super) struct HeldTime(());

impl HeldTime {
    pub(super) fn new() -> HeldTime {
        if HOLDERS.fetch_add(1, AcqRel) == 0 {
            HELD_NS.store(host::now_ns(), Relaxed);
        }
        HeldTime(())
    }
}

impl Drop for HeldTime {
    fn drop(&mut self) {
        if HOLDERS.fetch_sub(1, AcqRel) == 1 {
            HELD_NS.store(0, Relaxed);
        }
    }
}

pub(super) struct LabPlatform;

/// The platform of this process.
pub(super) static PLATFORM: LabPlatform = LabPlatform;

impl Platform for LabPlatform {
    fn now_ns(&self) -> i64 {
        // The host's clock is read in any case, so that a recorded call does the same work as
        // others.
        let now_ns = host::now_ns();
        match HELD_NS.load(Relaxed) {
            0 => now_ns,
            held_ns => held_ns,
        }
    }

    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) {
        host::PLATFORM.wait(word, expected, timeout_ms);
    }

    fn wake(&self, word: &AtomicU32) {
        host::PLATFORM.wake(word);
    }

    fn process_id(&self) -> u32 {
        host::PLATFORM.process_id()
    }

    fn thread_id(&self) -> u32 {
        host::PLATFORM.thread_id()
    }

    fn is_thread_alive(&self, process_id: u32, thread_id: u32) -> bool {
        host::PLATFORM.is_thread_alive(process_id, thread_id)
    }

    fn random(&self) -> u64 {
        host::PLATFORM.random()
    }

    fn provide_huge(&self, address: *mut u8, length: usize) {
        host::PLATFORM.provide_huge(address, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_while_held() {
        let first = HeldTime::new();
        let second = HeldTime::new();
        let held_ns = PLATFORM.now_ns();
        // Wait until the coarse clock has ticked.
        while host::now_ns() == held_ns {
            std::hint::spin_loop();
        }
        drop(first);
        assert_eq!(PLATFORM.now_ns(), held_ns);
        drop(second);
        assert!(PLATFORM.now_ns() > held_ns);
    }
}
