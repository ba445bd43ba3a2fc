//! A thread of a file system that dies at a chosen step.

use super::TestPlatform;
use super::mortality::dies_at;
use crate::fs::{Fs, Thread};
use pmem::Memory;

/// Runs `work` in a new thread of the file system, which dies at step `step`. Returns whether it
/// died.
pub(crate) fn dies_in_thread<M: Memory + Sync>(
    fs: &Fs<M>,
    platform: &TestPlatform,
    step: u64,
    work: impl FnOnce(&Thread<'_, M>) + Send,
) -> bool {
    std::thread::scope(|scope| {
        let mortal = scope.spawn(|| {
            let thread = fs.enter().expect("enters");
            let died = dies_at(step, || work(&thread));
            if died {
                platform.kill();
                core::mem::forget(thread);
            }
            died
        });
        mortal.join().expect("no other panic")
    })
}
