//! The engine's platform in experiments: the host's, with a clock and random numbers that can be
//! held while calls are recorded.

use crate::virtual_time::held;
use engine::Platform;
use std::sync::atomic::AtomicU32;
use tables::host;

pub(super) struct LabPlatform;

/// The platform of this process.
pub(super) static PLATFORM: LabPlatform = LabPlatform;

impl Platform for LabPlatform {
    fn now_ns(&self) -> i64 {
        held::now_ns()
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
        const SOME_NUMBER: u64 = 0x2545_f491_4f6c_dd1d;
        if held::is_fixed() { SOME_NUMBER } else { host::PLATFORM.random() }
    }

    fn provide_huge(&self, address: *mut u8, length: usize) -> bool {
        host::PLATFORM.provide_huge(address, length)
    }
}
