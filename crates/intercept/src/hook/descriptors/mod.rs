//! Descriptors: the kernel assigns the numbers, the image serves the files.
//!
//! Behind every descriptor of the image the kernel has a placeholder, a duplicate of one that all
//! processes inherit (see `handoff`). So numbers, duplication, inheritance, close-on-exec and
//! polling are the kernel's own. This module serves the entries of the process's descriptor table
//! ([`posix::process`]).
//!
//! [`fd_numbers`] describes which number a descriptor gets, and the life of its placeholder.
//!
//! Invariants
//! - The byte of a number is set before a program can use it as a descriptor of the image. It is
//!   cleared before the kernel may assign the number to something else. A byte may be set without
//!   need (see `processes`): then the table decides.
//! - An entry enters the table after its placeholder was created. It leaves the table before its
//!   placeholder is closed or cached.

pub mod fd_numbers;
pub mod fd_passing;

use crate::hook::abi::entry::{DIRECTFS_FDS, FDS_MAX, Frame, NATIVE, Next, Verdict, done};
use crate::hook::abi::sys;
use crate::hook::call::{Call, native_with};
use crate::hook::process::session::Session;
use crate::hook::process::{environment, working_directory};
use crate::hook::server::Server;
use crate::hook::{mount_table, paths};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};
use posix::{Errno, Result};

/// A descriptor of an open file.
pub const DIRECTFS: u8 = 1;
/// A descriptor that this library needs and hides from the program.
const PROTECTED: u8 = 2;

/// A descriptor of the host for a directory above the mount: relative paths may lead from there
/// into the mount.
const ABOVE: u8 = 4;

/// A cached placeholder, whose number is free for the program: see [`fd_numbers`].
pub const CACHED: u8 = 8;
/// The same, if exec would close the placeholder.
pub const CACHED_CLOEXEC: u8 = 9;

/// A descriptor that is known to be the host's. Only its close reaches the dispatcher: see
/// [`fd_numbers`].
pub const HOST: u8 = 16;
/// A descriptor that may be a table of mounts: see [`mount_table`].
pub const TABLE: u8 = 32;
/// A ring: see [`io_uring`](crate::hook::calls::io_uring).
pub const RING: u8 = 64;
/// Bits of the descriptors whose calls reach the dispatcher.
pub const SERVED: u8 = DIRECTFS | PROTECTED | ABOVE | CACHED | TABLE | RING;
const _: () = assert!(SERVED & HOST == 0 && SERVED & CACHED_CLOEXEC == CACHED_CLOEXEC);

/// Whether a descriptor is a directory of the host above the mount.
pub fn is_above(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == ABOVE)
}

/// Records whether a descriptor that the kernel has just created is a directory above the mount.
pub fn record_above(server: &Server, fd: i64) {
    let Ok(fd) = u32::try_from(fd) else { return };
    if working_directory::is_above_mount(server, |into| {
        paths::host_directory_path(paths::Directory::Descriptor(fd), into)
    }) && let Some(byte) = DIRECTFS_FDS.byte(fd)
    {
        byte.store(ABOVE, Release);
    }
}

/// Marks a duplicate of a host's descriptor that has a mark of its own.
fn record_duplicate(server: &Server, from: u32, to: i64) {
    if is_above(from) {
        record_above(server, to);
    } else if mount_table::is_marked(from) {
        mount_table::record(to);
    }
}

/// Whether a descriptor may be the image's.
pub fn is_marked(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == DIRECTFS)
}

/// Whether calls by a descriptor are the library's: it may be the image's, or a table of mounts.
pub fn is_served(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| matches!(byte.load(Relaxed), DIRECTFS | TABLE))
}

/// Whether a descriptor is a ring that this process made, or one whose copy it is.
pub fn is_ring(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == RING)
}

/// Records that a descriptor that the kernel has just created is a ring.
pub fn mark_ring(fd: u32) {
    if let Some(byte) = DIRECTFS_FDS.byte(fd) {
        byte.store(RING, Release);
    }
}

/// The kernel is about to close a descriptor of the host.
pub fn forget(fd: u32) {
    if !fd_numbers::is_host(fd) {
        unmark(fd);
    }
    fd_numbers::forget_host_numbers(fd, fd);
    fd_numbers::record_free(fd);
}

/// Records that a descriptor may be the image's.
pub fn mark(fd: u32) {
    if DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) != DIRECTFS) {
        fd_numbers::set_state(fd, DIRECTFS);
    }
}

/// Records that a descriptor is no longer the image's, and that nothing else is known about it.
pub fn unmark(fd: u32) {
    if DIRECTFS_FDS.byte(fd).is_some_and(|byte| !matches!(byte.load(Relaxed), 0 | PROTECTED)) {
        fd_numbers::set_state(fd, 0);
        // If the kernel has something there, its close no longer reaches the dispatcher.
        fd_numbers::record_free(fd);
    }
}

/// Hides a descriptor from the program.
pub fn protect(fd: i32) {
    if let Some(byte) = DIRECTFS_FDS.byte(fd as u32) {
        byte.store(PROTECTED, Release);
        PROTECTED_HIGH.fetch_max(fd as u32, Relaxed);
    }
}

/// No descriptor above this one is hidden from the program.
static PROTECTED_HIGH: AtomicU32 = AtomicU32::new(0);

/// Stops hiding a number from the program.
pub fn unprotect(fd: i32) {
    if let Some(byte) = DIRECTFS_FDS.byte(fd as u32) {
        byte.store(0, Release);
        fd_numbers::record_free(fd as u32);
    }
}

fn is_protected(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == PROTECTED)
}

/// Whether a descriptor is hidden from the program: calls by it return EBADF, whatever the kernel
/// has there.
pub fn is_hidden(fd: u64) -> bool {
    let is = |byte: u8| matches!(byte, PROTECTED | CACHED | CACHED_CLOEXEC);
    DIRECTFS_FDS.byte(fd as u32).is_some_and(|byte| is(byte.load(Relaxed)))
}

/// The verdict for a descriptor that is not the image's.
pub fn host_verdict(fd: u32) -> Result<Verdict> {
    if is_hidden(u64::from(fd)) { Err(Errno::EBADF) } else { Ok(NATIVE) }
}

/// A call by a descriptor that the kernel serves in any case.
pub fn of_the_kernel(call: &mut Call<'_>) -> Result<Verdict> {
    kernel_verdict(call, call.frame.rdi)
}

/// The same by one of its descriptors. With O_PATH it is EBADF, and the kernel would take a
/// placeholder for an open file.
pub fn kernel_verdict(call: &mut Call<'_>, fd: u64) -> Result<Verdict> {
    let fd = fd as u32;
    if is_marked(fd) {
        let session = call.begin()?.session;
        if session.process.file(session.caller.thread, fd).is_some_and(|file| file.is_path()) {
            return Err(Errno::EBADF);
        }
    }
    host_verdict(fd)
}

/// epoll_ctl(epoll, operation, fd, event).
pub fn epoll_ctl(call: &mut Call<'_>) -> Result<Verdict> {
    let [epoll, _, fd, ..] = call.arguments();
    kernel_verdict(call, epoll).and_then(|_| kernel_verdict(call, fd))
}

/// epoll_wait, epoll_pwait and epoll_pwait2(epoll, ...).
pub fn epoll_wait(call: &mut Call<'_>) -> Result<Verdict> {
    let epoll = call.frame.rdi as u32;
    host_verdict(epoll)?;
    let session = call.begin()?.session;
    match session.process.file(session.caller.thread, epoll) {
        Some(file) => Err(if file.is_path() { Errno::EBADF } else { Errno::EINVAL }),
        None => Ok(NATIVE),
    }
}

/// Whether two descriptors refer to the same open file description, if either is the image's; the
/// kernel cannot tell their placeholders apart. `None` if neither is.
pub fn are_same(call: &mut Call<'_>, fds: [u64; 2]) -> Result<Option<bool>> {
    if fds.into_iter().any(is_hidden) {
        return Err(Errno::EBADF);
    }
    let session = call.begin()?.session;
    let [one, other] = fds.map(|fd| session.process.file(session.caller.thread, fd as u32));
    Ok(match (&one, &other) {
        (None, None) => None,
        (Some(one), Some(other)) => Some(one.index() == other.index()),
        _ => Some(false),
    })
}

/// kcmp(process, process, kind, index, index), for descriptors of this process. Different
/// descriptions are ordered by descriptor number.
pub fn kcmp(call: &mut Call<'_>) -> Result<Verdict> {
    const KCMP_FILE: u64 = 0;
    let [one, other, what, first, second, _] = call.arguments();
    let own = sys::process_id() as u64;
    if what as u32 as u64 != KCMP_FILE || one as u32 as u64 != own || other as u32 as u64 != own {
        return Ok(NATIVE);
    }
    match are_same(call, [first, second])? {
        // The kernel reports a descriptor that is not open.
        Some(false) if is_marked(first as u32) && is_marked(second as u32) => {
            Ok(done(if first < second { 1 } else { 2 }))
        }
        Some(true) => Ok(done(0)),
        _ => Ok(NATIVE),
    }
}

/// A call that creates a descriptor of the host, or inspects which exist.
pub fn with_numbers(_: &mut Call<'_>) -> Result<Verdict> {
    fd_numbers::release_cached();
    Ok(NATIVE)
}

/// The same as [`with_numbers`], for a call by a descriptor.
pub fn by_descriptor_with_numbers(call: &mut Call<'_>) -> Result<Verdict> {
    fd_numbers::release_cached();
    kernel_verdict(call, call.frame.rdi)
}

pub(in crate::hook) fn kernel(number: i64, a: u64, b: u64, c: u64) -> i64 {
    // SAFETY: calls of this module by descriptors: they change the kernel's table, and no memory.
    unsafe { sys::call(number, [a, b, c, 0, 0, 0]) }
}

/// A descriptor from the kernel, if the tables can hold its number.
pub(in crate::hook) fn placed(result: i64) -> Result<u32> {
    match u32::try_from(result) {
        Ok(fd) if (fd as usize) < FDS_MAX => Ok(fd),
        Ok(fd) => {
            close_placeholder(fd);
            Err(Errno(libc::EMFILE))
        }
        Err(_) => Err(Errno(-result as i32)),
    }
}

/// Returns a number to the kernel.
pub fn close_placeholder(fd: u32) {
    kernel(libc::SYS_close, u64::from(fd), 0, 0);
}

/// close(fd).
pub fn close(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    if is_hidden(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    let frame = call.frame;
    let session = call.begin()?.session;
    let Some(descriptor) = session.process.descriptor(fd) else { return Ok(close_host(&session, frame, fd)) };
    let is_watcher = session.process.is_watcher(&descriptor);
    // Of several concurrent closes exactly one succeeds.
    if !session.process.remove(session.caller.thread, fd) {
        return Err(Errno::EBADF);
    }
    if session.is_child {
        return Ok(done(kernel(libc::SYS_close, u64::from(fd), 0, 0)));
    }
    match is_watcher {
        true => fd_numbers::close_in_kernel(fd),
        false => fd_numbers::close(fd, descriptor.cloexec),
    }
    Ok(done(0))
}

fn close_host(session: &Session<'_>, frame: &Frame, fd: u32) -> Verdict {
    if session.is_child {
        return NATIVE;
    }
    if !fd_numbers::is_host(fd) {
        unmark(fd);
    }
    let verdict = native_with(frame, frame.arguments());
    // Whatever else the kernel returns, the number is free.
    if verdict.result != -i64::from(libc::EBADF) {
        fd_numbers::forget_host_numbers(fd, fd);
        fd_numbers::record_free(fd);
    }
    verdict
}

fn is_directfs(session: &Session<'_>, fd: u32) -> bool {
    session.process.descriptor(fd).is_some()
}

/// Puts the description of `from` behind `to`, which the kernel has just created as its duplicate.
fn duplicate(session: &Session<'_>, from: u32, to: i64, cloexec: bool) -> Result<Verdict> {
    let to = placed(to)?;
    if let Err(error) = session.process.duplicate(session.caller.thread, from, to, cloexec) {
        match session.process.watch_key(from) {
            Some(_) => close_placeholder(to),
            None => give_up(session, to, cloexec),
        }
        return Err(error);
    }
    mark(to);
    Ok(done(i64::from(to)))
}

/// dup(fd).
pub fn dup(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    if is_hidden(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    let (frame, server) = (call.frame, call.server);
    let session = call.begin()?.session;
    if !is_directfs(&session, fd) {
        return Ok(duplicate_host(server, frame, fd));
    }
    duplicate_from(&session, fd, 0, false)
}

/// Duplicates a descriptor of the image to the lowest free number from `min` on. All placeholders
/// are alike, except those of inotify descriptors.
fn duplicate_from(session: &Session<'_>, fd: u32, min: u32, cloexec: bool) -> Result<Verdict> {
    if session.process.watch_key(fd).is_some() {
        fd_numbers::release_cached();
        let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        let made = kernel(libc::SYS_fcntl, u64::from(fd), command as u64, u64::from(min));
        return duplicate(session, fd, made, cloexec);
    }
    let to = fd_numbers::reserve(session, min, cloexec)?;
    if let Err(error) = session.process.duplicate(session.caller.thread, fd, to, cloexec) {
        give_up(session, to, cloexec);
        return Err(error);
    }
    Ok(done(i64::from(to)))
}

/// Releases a number that was reserved and not used.
pub fn give_up(session: &Session<'_>, fd: u32, cloexec: bool) {
    if session.is_child { close_placeholder(fd) } else { fd_numbers::close(fd, cloexec) }
}

/// Has the kernel duplicate a descriptor of the host, and records directories above the mount.
fn duplicate_host(server: &Server, frame: &Frame, from: u32) -> Verdict {
    fd_numbers::release_cached();
    if !is_above(from) && !mount_table::is_marked(from) {
        return NATIVE;
    }
    let verdict = native_with(frame, frame.arguments());
    record_duplicate(server, from, verdict.result);
    verdict
}

/// dup2(from, to).
pub fn dup2(call: &mut Call<'_>) -> Result<Verdict> {
    let (from, to) = (call.frame.rdi as u32, call.frame.rsi as u32);
    if from == to && !is_hidden(call.frame.rdi) {
        return Ok(NATIVE);
    }
    dup_to(call, from, to, false)
}

/// dup3(from, to, flags).
pub fn dup3(call: &mut Call<'_>) -> Result<Verdict> {
    let (from, to, flags) = (call.frame.rdi as u32, call.frame.rsi as u32, call.frame.rdx as i32);
    if flags & !libc::O_CLOEXEC != 0 || from == to {
        return Err(Errno::EINVAL);
    }
    dup_to(call, from, to, flags != 0)
}

fn dup_to(call: &mut Call<'_>, from: u32, to: u32, cloexec: bool) -> Result<Verdict> {
    if is_hidden(u64::from(from)) {
        return Err(Errno::EBADF);
    }
    if is_protected(to) {
        // A descriptor that moves in a child in shared memory does not move for its parent.
        if call.context.is_child() {
            return Err(Errno(libc::EBUSY));
        }
        environment::move_descriptor(to as i32)?;
    }
    let (frame, server) = (call.frame, call.server);
    let session = call.begin()?.session;
    if is_directfs(&session, from) {
        if to as usize >= FDS_MAX {
            return Err(Errno::EBADF);
        }
        let flags = if cloexec { libc::O_CLOEXEC as u64 } else { 0 };
        let cached = claim(&session, to);
        let made = kernel(libc::SYS_dup3, u64::from(from), u64::from(to), flags);
        unclaim(to, cached, made);
        return duplicate(&session, from, made, cloexec);
    }
    let cached = claim(&session, to);
    let verdict = native_with(frame, frame.arguments());
    unclaim(to, cached, verdict.result);
    if verdict.result >= 0 && verdict.next == Next::Done {
        session.process.remove(session.caller.thread, to);
        if !session.is_child {
            unmark(to);
        }
        record_duplicate(server, from, verdict.result);
    }
    Ok(verdict)
}

/// Claims a cached number at which the kernel is about to put something. Returns whether exec would
/// close the cached placeholder, if there was one.
fn claim(session: &Session<'_>, to: u32) -> Option<bool> {
    if session.is_child { None } else { fd_numbers::claim(to) }
}

fn unclaim(to: u32, cached: Option<bool>, result: i64) {
    if let Some(cloexec) = cached.filter(|_| result < 0) {
        fd_numbers::close(to, cloexec);
    }
}

/// The commands of fcntl that concern the number; `None` if the command concerns the file.
pub fn fcntl_number(call: &mut Call<'_>) -> Result<Option<Verdict>> {
    let (fd, command, argument) = (call.frame.rdi as u32, call.frame.rsi as i32, call.frame.rdx);
    let (frame, server) = (call.frame, call.server);
    let session = call.begin()?.session;
    if !is_directfs(&session, fd) {
        let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
        return Ok(Some(if duplicates { duplicate_host(server, frame, fd) } else { NATIVE }));
    }
    Ok(Some(match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            // The kernel reads the lower half, and rejects numbers at or above the limit.
            let min = u32::try_from(argument as i32).map_err(|_| Errno::EINVAL)?;
            duplicate_from(&session, fd, min, command == libc::F_DUPFD_CLOEXEC)?
        }
        libc::F_GETFD => NATIVE,
        libc::F_SETFD => {
            session.process.set_cloexec(fd, argument as i32 & libc::FD_CLOEXEC != 0);
            NATIVE
        }
        _ => return Ok(None),
    }))
}

/// Sets or clears close-on-exec, as ioctl does.
pub fn set_cloexec(session: &Session<'_>, fd: u32, cloexec: bool) -> Result<i64> {
    session.process.set_cloexec(fd, cloexec);
    Ok(set_kernel_cloexec(fd, cloexec))
}

/// Sets or clears the kernel's close-on-exec.
pub fn set_kernel_cloexec(fd: u32, cloexec: bool) -> i64 {
    kernel(libc::SYS_fcntl, u64::from(fd), libc::F_SETFD as u64, u64::from(cloexec))
}

/// close_range(first, last, flags).
pub fn close_range(call: &mut Call<'_>) -> Result<Verdict> {
    const UNSHARE: u32 = 1 << 1;
    const CLOEXEC: u32 = 1 << 2;
    let (first, last, flags) = (call.frame.rdi as u32, call.frame.rsi as u32, call.frame.rdx as u32);
    if flags & !(UNSHARE | CLOEXEC) != 0 || first > last {
        return Err(Errno::EINVAL);
    }
    let only_mark = flags & CLOEXEC != 0;
    let session = call.begin()?.session;
    fd_numbers::release_cached();
    if !only_mark && !session.is_child {
        let end = (last as usize).min(FDS_MAX - 1) as u32;
        (first..=end).for_each(unmark);
    }
    session.process.close_range(session.caller.thread, first, last, only_mark)?;
    let result = close_in_kernel(first, last, flags);
    if !only_mark && !session.is_child {
        fd_numbers::forget_host_numbers(first, last);
        fd_numbers::record_free(first);
    }
    Ok(done(result))
}

/// Has the kernel close (or mark) a range of descriptors, except those that are hidden from the
/// program.
pub fn close_in_kernel(first: u32, last: u32, flags: u32) -> i64 {
    let mut next = first;
    let close = |from: u32, to: u32| kernel(libc::SYS_close_range, u64::from(from), u64::from(to), u64::from(flags));
    for fd in (first..=last.min(PROTECTED_HIGH.load(Relaxed))).filter(|fd| is_protected(*fd)) {
        if fd > next {
            close(next, fd - 1);
        }
        next = fd + 1;
    }
    if next <= last { close(next, last) } else { 0 }
}
