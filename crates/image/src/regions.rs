//! Views of the memory of an image, their addresses, and recovery in it.

use engine::Recovery;
use pmem::{Access, Direct, MapError, Mapping, Memory, Region, Tracking};
use posix::commits::tracking_at;
use rustix::process::Resource;
use std::fs::File;
use std::num::NonZero;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use tables::host::SLEEPING;

/// The least capacity.
const CAPACITY_BYTES_MIN: u64 = 1 << 30;
/// The capacity in sizes of the image.
const CAPACITY_TIMES: u64 = 4;
/// Half of the addresses that a mapping may have.
const CAPACITY_BYTES_MAX: u64 = 1 << 45;

/// Thread slots of a region that a process with a limit of its address space builds: 128 MiB of
/// addresses instead of 2 GiB.
const SLOTS_MAX_LIMITED: u64 = 4096;

/// The thread slots of a region that this process builds; 0: as many as there can be.
pub(super) fn slots_max() -> u64 {
    if has_address_limit() { SLOTS_MAX_LIMITED } else { 0 }
}

/// The capacity of an image of that size.
pub(super) fn capacity_bytes(image_bytes: u64) -> u64 {
    let wanted = image_bytes.saturating_mul(CAPACITY_TIMES).clamp(CAPACITY_BYTES_MIN, CAPACITY_BYTES_MAX);
    wanted.max(image_bytes)
}

/// The capacity of a working copy's image, unless there is less room in memory. A process with
/// limits makes one without room for more.
pub(super) fn working_capacity(image_bytes: u64) -> u64 {
    let is_limited = has_address_limit() || rustix::process::getrlimit(Resource::Fsize).current.is_some();
    if is_limited { image_bytes } else { capacity_bytes(image_bytes) }
}

/// Whether this process has a limit of its address space.
pub(super) fn has_address_limit() -> bool {
    rustix::process::getrlimit(Resource::As).current.is_some()
}

/// The tracking area in the mapping of a whole working copy.
pub(super) fn tracking_of(mapping: &Arc<Mapping>, capacity_bytes: u64) -> Tracking {
    tracking_in(mapping, tracking_at(capacity_bytes), capacity_bytes)
}

/// The tracking area at that place of the mapping.
fn tracking_in(mapping: &Arc<Mapping>, at: u64, capacity_bytes: u64) -> Tracking {
    debug_assert!(mapping.length() >= at + Tracking::area_bytes(capacity_bytes));
    let at = mapping.address().wrapping_add(at as usize);
    let at = NonNull::new(at).unwrap_or(NonNull::dangling());
    // SAFETY: inside the mapping, whose length the callers check. The `Image` that uses the view
    // keeps the mapping.
    unsafe { Tracking::new(at, capacity_bytes, &SLEEPING) }
}

/// A working copy that another process made, as this process maps it.
pub(super) struct MappedCopy {
    pub mapping: Arc<Mapping>,
    pub tracking: Tracking,
    /// Bytes that its image can get in this mapping.
    pub reach: u64,
}

/// Maps the file of a working copy whose image has `bytes` bytes and can get `capacity_bytes`. A
/// process with a limit of its address space has no addresses for more than there is.
pub(super) fn map_working_copy(
    file: File,
    path: &Path,
    (bytes, capacity_bytes): (u64, u64),
) -> Result<MappedCopy, MapError> {
    if bytes < capacity_bytes && has_address_limit() {
        let mapping = Mapping::of_both_ends(file, path, Access::ReadWrite, (bytes, tracking_at(capacity_bytes)))?;
        let mapping = Arc::new(mapping);
        let tracking = tracking_in(&mapping, bytes, capacity_bytes);
        return Ok(MappedCopy { mapping, tracking, reach: bytes });
    }
    let mapping = Arc::new(Mapping::from_file(file, path, Access::ReadWrite)?);
    let tracking = tracking_of(&mapping, capacity_bytes);
    Ok(MappedCopy { mapping, tracking, reach: capacity_bytes })
}

/// The DRAM region in its mapping.
pub(super) fn dram_region(dram: &Arc<Mapping>) -> Region<Direct> {
    // SAFETY: mapped readable and writable; `Image` keeps the mapping next to the `Fs` that owns
    // this region, and drops it later.
    unsafe { Region::new(dram.address(), dram.length(), Direct) }
}

/// Scans the image, if that is needed, with so many threads; 0: one per processor. Returns the
/// first error.
pub(super) fn recover<M: Memory>(recovery: &Recovery<M>, threads: usize) -> engine::Result<()> {
    if !recovery.scans() {
        return Ok(());
    }
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads)
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
