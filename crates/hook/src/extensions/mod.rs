//! Extensions: calls that few programs make, with what they add to calls that all make.
//!
//! An extension is a module that defines an [`Extension`]: its calls, and what it does at calls of
//! the core. [`EXTENSIONS`] lists them. The core asks the list where few calls come by, behind a
//! test of its own (a mark of the descriptor, a flag of the file), and names no extension. Without
//! the feature `extensions` the list is empty.
//!
//! Invariants
//! - The core builds, and is right, without any extension. Calls of an extension that is absent
//!   are refused, also for files of the host: see [`refused`].
//! - Beyond its calls an extension has no work at the end of a process, at fork or at exec: its
//!   descriptors have descriptions in the shared tables, or are the kernel's.
//! - The list is a constant, and all functions in it are known to the compiler. So asking it is no
//!   indirect call, and needs no relocation at the start of a program.

#[cfg(feature = "extensions")]
mod leases;
#[cfg(feature = "extensions")]
mod rings;
pub mod thread_state;
#[cfg(feature = "extensions")]
mod watches;

use crate::abi::entry::{NATIVE, Next, Verdict};
use crate::call::{Call, Entry};
use crate::descriptors::marks;
use crate::process::session::Session;
use engine::Thread;
use posix::{Errno, OpenFile, Result};

/// All extensions.
pub const EXTENSIONS: &[&Extension] = &[
    #[cfg(feature = "extensions")]
    &rings::EXTENSION,
    #[cfg(feature = "extensions")]
    &watches::EXTENSION,
    #[cfg(feature = "extensions")]
    &leases::EXTENSION,
];

/// What an extension does.
pub struct Extension {
    /// Calls that it serves. The core refuses each of them by an entry of its own.
    pub calls: &'static [Entry],
    /// read(fd, buffer, length) of a descriptor that has no file of the image. [`NATIVE`]: the
    /// descriptor is not the extension's.
    pub read: fn(&mut Call<'_>, (u64, u64)) -> Result<Verdict>,
    /// ioctl(fd, FIONREAD, address), likewise.
    pub bytes_to_read: fn(&mut Call<'_>, u64) -> Result<Verdict>,
    /// fcntl(fd, command, argument). `None`: the command is not the extension's.
    pub fcntl: fn(&mut Call<'_>) -> Option<Result<Verdict>>,
    /// A descriptor that has the mark of a ring is about to be closed.
    pub close: fn(&Session<'_>, u32),
    /// mmap of such a descriptor, which the kernel serves; returns the call's verdict.
    pub map: fn(&mut Call<'_>, Verdict) -> Verdict,
    /// Breaks leases on a file that was opened as a descriptor, waits for their holders, and
    /// truncates the file if that is still to be done. On an error the descriptor is empty again;
    /// its number is the caller's.
    pub complete_open: fn(&Session<'_>, u32, &OpenFile) -> Option<Result<()>>,
    /// truncate(path, length), of a file on which leases may exist.
    pub truncate: fn(&mut Call<'_>, i64) -> Option<Result<Verdict>>,
    /// The key of the group of watches behind a descriptor that came from another process. The
    /// bytes are room to read in.
    pub received_key: fn(&Thread<'static>, u32, &mut [u8]) -> Option<u64>,
}

impl Extension {
    /// Does nothing.
    pub const NONE: Extension = Extension {
        calls: &[],
        read: |_, _| Ok(NATIVE),
        bytes_to_read: |_, _| Ok(NATIVE),
        fcntl: |_| None,
        close: |_, _| {},
        map: |_, verdict| verdict,
        complete_open: |_, _, _| None,
        truncate: |_, _| None,
        received_key: |_, _, _| None,
    };
}

/// The handler of a call whose extension is absent. The error is that of a kernel without the call.
/// Left to the kernel, a ring would act on placeholders of files of the image, and a watch on a
/// path of the mount would watch what the host has there.
pub fn refused(_: &mut Call<'_>) -> Result<Verdict> {
    Err(Errno(libc::ENOSYS))
}

/// The result of a call by descriptor. If that is left to the kernel, extensions are asked.
#[inline]
pub fn or_ask(
    call: &mut Call<'_>,
    verdict: Verdict,
    ask: impl FnOnce(&mut Call<'_>) -> Result<Verdict>,
) -> Result<Verdict> {
    if verdict.next == Next::Native { ask(call) } else { Ok(verdict) }
}

/// The first verdict that does not leave a call to the kernel.
fn first(mut each: impl FnMut(&Extension) -> Result<Verdict>) -> Result<Verdict> {
    for extension in EXTENSIONS {
        let verdict = each(extension)?;
        if verdict.next != Next::Native {
            return Ok(verdict);
        }
    }
    Ok(NATIVE)
}

/// See [`Extension::read`].
#[cold]
pub fn read(call: &mut Call<'_>, buffer: (u64, u64)) -> Result<Verdict> {
    first(|extension| (extension.read)(call, buffer))
}

/// See [`Extension::bytes_to_read`].
#[cold]
pub fn bytes_to_read(call: &mut Call<'_>, address: u64) -> Result<Verdict> {
    first(|extension| (extension.bytes_to_read)(call, address))
}

/// See [`Extension::fcntl`].
pub fn fcntl(call: &mut Call<'_>) -> Option<Result<Verdict>> {
    EXTENSIONS.iter().find_map(|extension| (extension.fcntl)(call))
}

/// A descriptor is about to be closed.
#[inline]
pub fn close(session: &Session<'_>, fd: u32) {
    if marks::is_ring(fd) {
        EXTENSIONS.iter().for_each(|extension| (extension.close)(session, fd));
    }
}

/// See [`Extension::map`].
#[cold]
pub fn map(call: &mut Call<'_>, verdict: Verdict) -> Verdict {
    EXTENSIONS.iter().fold(verdict, |verdict, extension| (extension.map)(call, verdict))
}

/// See [`Extension::complete_open`]. Leases that no extension here can break are held by a process
/// with another build of this library: then the open fails, as one that may not wait.
#[cold]
pub fn complete_open(session: &Session<'_>, fd: u32, file: &OpenFile) -> Result<()> {
    if file.is_path() {
        return Ok(());
    }
    let completed = EXTENSIONS.iter().find_map(|extension| (extension.complete_open)(session, fd, file));
    completed.unwrap_or_else(|| {
        session.process.remove(session.caller.thread, fd);
        Err(Errno::EAGAIN)
    })
}

/// See [`Extension::truncate`] and [`complete_open`].
#[cold]
pub fn truncate(call: &mut Call<'_>, length: i64) -> Result<Verdict> {
    EXTENSIONS.iter().find_map(|extension| (extension.truncate)(call, length)).unwrap_or(Err(Errno::EAGAIN))
}

/// See [`Extension::received_key`].
pub fn received_key(thread: &Thread<'static>, fd: u32, room: &mut [u8]) -> Option<u64> {
    EXTENSIONS.iter().find_map(|extension| (extension.received_key)(thread, fd, room))
}
