//! Views of the memory of an image, and recovery in it.

use crate::commits::{SLEEPING, tracking_at, working_bytes_before};
use engine::Recovery;
use pmem::{Direct, Mapping, Memory, Region, Tracking};
use std::ptr::NonNull;
use std::sync::Arc;

/// The tracking area in the mapping of a working copy's file.
pub(super) fn tracking_of(mapping: &Arc<Mapping>, image_bytes: u64) -> Tracking {
    debug_assert!(mapping.length() >= working_bytes_before(image_bytes));
    let at = mapping.address().wrapping_add(tracking_at(image_bytes) as usize);
    let at = NonNull::new(at).unwrap_or(NonNull::dangling());
    // SAFETY: inside the mapping, whose length the callers check. The `Image` that uses the view
    // keeps the mapping.
    unsafe { Tracking::new(at, image_bytes, &SLEEPING) }
}

/// The DRAM region in its mapping.
pub(super) fn dram_region(dram: &Arc<Mapping>) -> Region<Direct> {
    // SAFETY: mapped readable and writable; `Image` keeps the mapping next to the `Fs` that owns
    // this region, and drops it later.
    unsafe { Region::new(dram.address(), dram.length(), Direct) }
}

/// Recovers with several threads and returns the first error.
pub(super) fn recover<M: Memory>(recovery: &Recovery<M>, threads: usize) -> engine::Result<()> {
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.max(1))
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, || recovery.work()).ok())
            .collect();
        let mut result = recovery.work();
        for helper in helpers {
            // Propagate the panic.
            let helped = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(helped);
        }
        result
    })
}
