//! What makes this process's image safe, by the descriptors of its handoff.

use crate::abi::sys;
use crate::process::environment::handoff;
use crate::process::session::Calling;
use posix::commits::{Commits, ImageFile};
use posix::{OpenFile, Result, Scope, Storage};

/// Where the image is made safe.
fn storage(thread: &engine::Thread<'_>) -> Storage {
    let Some(handoff) = handoff() else { return Storage::Memory };
    match thread.fs().pm().tracking() {
        Some(tracking) if handoff.journal != 0 => {
            Storage::Committed(Commits::new(ImageFile::new(handoff.journal), *tracking))
        }
        _ if handoff.in_place => Storage::InPlace(ImageFile::new(handoff.image)),
        _ => Storage::Memory,
    }
}

/// [`Storage::sync`] as a call that returns 0.
pub fn sync(thread: &engine::Thread<'_>, scope: Scope) -> Result<i64> {
    storage(thread).sync(thread, scope).map(|()| 0)
}

/// Completes a write of `count` bytes: a synchronous one returns when it is safe. `must_sync`: the
/// call asks for it itself.
#[inline]
pub fn finish_write(caller: &Calling<'_>, file: &OpenFile, count: u64, must_sync: bool) -> Result<()> {
    if (must_sync || file.is_synchronous()) && count > 0 {
        sync(caller.thread, Scope::Calls)?;
    }
    Ok(())
}

/// Whether the image lies on a DAX device.
#[cold]
pub fn is_on_device() -> bool {
    let status = handoff().and_then(|handoff| sys::status(handoff.image).ok());
    status.is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFCHR)
}
