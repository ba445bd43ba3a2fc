//! What fsync and its kin wait for: the image's disk.

use crate::abi::sys;
use crate::process::environment::handoff;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use posix::commits::{Commits, ImageFile};
use posix::{Errno, Result};

/// Whether the image needs more than a fence to be safe; zero: unknown.
static ON_DISK: AtomicU8 = AtomicU8::new(0);
const NOT_ON_DISK: u8 = 1;
const IS_ON_DISK: u8 = 2;

/// Returns when what was done before is on the image's disk, if it lies on one.
pub fn sync_image(thread: &engine::Thread<'_>) -> Result<i64> {
    if let Some(commits) = commits(thread) {
        return commits.commit(thread).map(|()| 0);
    }
    // SAFETY: changes no memory.
    sync_file(|image| unsafe { sys::call(libc::SYS_fdatasync, [image, 0, 0, 0, 0, 0]) })
}

/// Has what was done before begin to go to the image's disk, if it lies on one, and waits for
/// nothing.
pub fn start_image_sync(thread: &engine::Thread<'_>) -> Result<i64> {
    if let Some(commits) = commits(thread) {
        commits.start();
        return Ok(0);
    }
    let whole = |image| [image, 0, 0, libc::SYNC_FILE_RANGE_WRITE.into(), 0, 0];
    // SAFETY: changes no memory.
    sync_file(|image| unsafe { sys::call(libc::SYS_sync_file_range, whole(image)) })
}

/// The commits of an image on a disk with a working copy.
fn commits(thread: &engine::Thread<'_>) -> Option<Commits> {
    let journal = handoff().map(|handoff| handoff.journal).filter(|journal| *journal != 0)?;
    let tracking = *thread.fs().pm().tracking()?;
    Some(Commits::new(ImageFile::new(journal), tracking))
}

/// Lets the kernel sync the image's file, if it is on a disk. `call` returns the kernel's answer.
fn sync_file(call: impl FnOnce(u64) -> i64) -> Result<i64> {
    let Some(handoff) = handoff() else { return Ok(0) };
    if ON_DISK.load(Relaxed) == 0 {
        ON_DISK.store(if sys::is_on_disk(handoff.image) { IS_ON_DISK } else { NOT_ON_DISK }, Relaxed);
    }
    if ON_DISK.load(Relaxed) == NOT_ON_DISK {
        return Ok(0);
    }
    let result = call(handoff.image as u64);
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(0) }
}

/// Whether the image lies on a DAX device.
#[cold]
pub fn is_on_device() -> bool {
    let status = handoff().and_then(|handoff| sys::status(handoff.image).ok());
    status.is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFCHR)
}
