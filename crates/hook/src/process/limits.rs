//! Limits of the process that the kernel cannot enforce on files of the image.
//!
//! - Descriptors: the library's own are above the limit, where programs cannot have any.
//! - Lengths of files: writes and truncations look here.
//!
//! Limits are read at the start and when the program changes them; a change by another process is
//! not seen.
//!
//! *Reason:* the library has five descriptors. At numbers from 1000, a program with the usual limit
//! of 1024 got EMFILE early and saw a hole. The launcher raises the soft limit for a moment and
//! puts them above it; above 4096 they stay at 1000, since a fork copies the table up to the
//! highest. If the hard limit equals the soft one, they lie below.

use crate::abi::entry::{NATIVE, Verdict};
use crate::abi::sys;
use crate::call::{Call, native_with};
use crate::descriptors::{fd_numbers, hidden_numbers};
use crate::process::session::Calling;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use engine::Node;
use posix::{Errno, OpenFile, Result};

/// The limit on lengths of files, inverted: zero is none.
static FILE_BYTES: AtomicU64 = AtomicU64::new(0);

/// The limits on the number of descriptors, inverted.
static DESCRIPTORS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The limit, and what it can be raised to.
fn get(kind: u32) -> [u64; 2] {
    sys::limit(kind).unwrap_or([u64::MAX; 2])
}

/// Whether this process may put something of its own at a number, now or after it has raised the
/// limit.
pub fn permits(fd: i32) -> bool {
    let [limit, highest] = DESCRIPTORS.each_ref().map(|limit| !limit.load(Relaxed));
    limit > fd as u64 || highest > fd as u64 && !tables::host::expects_filter()
}

/// The program's numbers are below this one.
#[inline]
pub fn descriptors() -> u32 {
    (!DESCRIPTORS[0].load(Relaxed)).min(u32::MAX.into()) as u32
}

/// For the start, and after a change: reads the limits.
pub fn read() {
    let [limit, highest] = get(libc::RLIMIT_NOFILE as _);
    DESCRIPTORS[0].store(!limit, Relaxed);
    DESCRIPTORS[1].store(!highest, Relaxed);
    FILE_BYTES.store(!get(libc::RLIMIT_FSIZE as _)[0], Relaxed);
}

/// setrlimit(kind, limit), prlimit64(process, kind, limit, old). The program's limit on descriptors
/// counts cached placeholders, too.
pub fn change(call: &mut Call<'_>) -> Result<Verdict> {
    if i64::from(call.frame.number as u32) == libc::SYS_prlimit64 && call.frame.rdx == 0 {
        return Ok(NATIVE);
    }
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    read();
    if !call.context.is_child() {
        hidden_numbers::move_above_limit();
    }
    Ok(verdict)
}

/// How much of a write at an offset (or at the position) the limit permits. EFBIG, with the signal:
/// nothing.
#[inline]
pub fn writable(caller: &Calling<'_>, file: &OpenFile, offset: Option<i64>, length: u64) -> Result<u64> {
    let limit = !FILE_BYTES.load(Relaxed);
    if limit == u64::MAX || !file.writes() { Ok(length) } else { bounded(caller, file, (offset, length), limit) }
}

#[cold]
fn bounded(caller: &Calling<'_>, file: &OpenFile, (offset, length): (Option<i64>, u64), limit: u64) -> Result<u64> {
    let start = match offset {
        _ if file.flags() & libc::O_APPEND != 0 => caller.stat(file.node())?.size_bytes,
        Some(offset) => offset.max(0) as u64,
        None => file.position(),
    };
    if length > 0 && start >= limit {
        return Err(exceeded());
    }
    Ok(length.min(limit.saturating_sub(start)))
}

/// EFBIG, with the signal, if a file would grow beyond the limit.
pub fn permit_growth(caller: &Calling<'_>, node: Node, length: i64) -> Result<()> {
    let limit = !FILE_BYTES.load(Relaxed);
    if limit == u64::MAX || length < 0 || length as u64 <= limit || length as u64 <= caller.stat(node)?.size_bytes {
        return Ok(());
    }
    Err(exceeded())
}

#[cold]
fn exceeded() -> Errno {
    let arguments = [sys::process_id() as u64, sys::thread_id() as u64, libc::SIGXFSZ as u64, 0, 0, 0];
    // SAFETY: a signal of this thread; with a handler it waits until the call is done.
    unsafe { sys::call(libc::SYS_tgkill, arguments) };
    Errno(libc::EFBIG)
}
