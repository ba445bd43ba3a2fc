//! Descriptors: the kernel assigns the numbers, the image serves the files.
//!
//! Behind every descriptor of the image the kernel has a placeholder, a duplicate of one that all
//! processes inherit (see `handoff`). So numbers, duplication, inheritance, close-on-exec and
//! polling are the kernel's own. This module serves the entries of the process's descriptor table
//! ([`tables::process`]).
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
pub mod hidden_numbers;
pub mod marks;
pub mod polling;

use crate::abi::entry::{FDS_MAX, Frame, NATIVE, Next, Verdict, done};
use crate::abi::sys;
use crate::call::{Call, native_with};
use crate::descriptors::marks::{
    ABOVE, close_in_kernel, close_placeholder, host_verdict, is_above, is_hidden, is_marked, is_protected, kernel,
    placed, set_kernel_cloexec,
};
use crate::extensions;
use crate::process::session::Session;
use crate::server::Server;
use crate::{mount_table, paths};
use posix::{Errno, Result};
use tables::process::Descriptor;

/// Records whether a descriptor that the kernel has just created is a directory above the mount.
pub fn record_above(server: &Server, fd: i64) {
    let Ok(fd) = u32::try_from(fd) else { return };
    if paths::is_above_mount(server, |into| paths::host_directory_path(paths::Directory::Descriptor(fd), into)) {
        marks::record(fd, ABOVE);
    }
}

/// Marks a duplicate of a host's descriptor that has a mark of its own.
fn record_duplicate(server: &Server, from: u32, to: i64) {
    if is_above(from) {
        record_above(server, to);
    } else if mount_table::is_marked(from) {
        mount_table::record(to);
    } else if marks::is_fifo(from)
        && let Ok(to) = u32::try_from(to)
    {
        marks::mark_fifo(to);
    }
}

/// A call by a descriptor that the kernel serves in any case.
pub fn of_the_kernel(call: &mut Call<'_>) -> Result<Verdict> {
    kernel_verdict(call, call.frame.rdi)
}

/// `of_the_kernel` for a call by one descriptor. With O_PATH it is EBADF, and the kernel would take
/// a placeholder for an open file.
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
/// kernel cannot distinguish their placeholders. `None` if neither is.
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

/// close(fd).
pub fn close(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    if is_hidden(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    let frame = call.frame;
    let session = call.begin()?.session;
    let Some(descriptor) = session.process.descriptor(fd) else { return Ok(close_host(&session, frame, fd)) };
    let has_own = has_own_placeholder(&session, &descriptor);
    // Of several concurrent closes exactly one succeeds.
    if !session.process.remove(session.caller.thread, fd) {
        return Err(Errno::EBADF);
    }
    if session.is_child {
        return Ok(done(kernel(libc::SYS_close, u64::from(fd), 0, 0)));
    }
    match has_own {
        true => fd_numbers::close_in_kernel(fd),
        false => fd_numbers::close(fd, descriptor.cloexec),
    }
    Ok(done(0))
}

/// Whether the placeholders of a description are its own: of inotify descriptors, and of files with
/// leases. Then the kernel must see each copy and each close.
fn has_own_placeholder(session: &Session<'_>, descriptor: &Descriptor) -> bool {
    session.process.is_watcher(descriptor) || session.process.is_attached(descriptor)
}

fn is_own_placeholder(session: &Session<'_>, fd: u32) -> bool {
    session.process.descriptor(fd).is_some_and(|descriptor| has_own_placeholder(session, &descriptor))
}

fn close_host(session: &Session<'_>, frame: &Frame, fd: u32) -> Verdict {
    if session.is_child {
        return NATIVE;
    }
    extensions::close(session, fd);
    if !fd_numbers::is_host(fd) {
        fd_numbers::unmark(fd);
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
        match is_own_placeholder(session, from) {
            true => close_placeholder(to),
            false => give_up(session, to, cloexec),
        }
        return Err(error);
    }
    fd_numbers::mark(to);
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
/// are alike, except those that are the description's own.
fn duplicate_from(session: &Session<'_>, fd: u32, min: u32, cloexec: bool) -> Result<Verdict> {
    if is_own_placeholder(session, fd) {
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
    if !is_above(from) && !mount_table::is_marked(from) && !marks::is_fifo(from) {
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
        match call.context.is_child() {
            true => hidden_numbers::move_in_child(call.context, to as i32)?,
            false => hidden_numbers::make_way(to as i32)?,
        }
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
            extensions::close(&session, to);
            fd_numbers::unmark(to);
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
        for fd in first..=end {
            extensions::close(&session, fd);
            fd_numbers::unmark(fd);
        }
    }
    // Behind those are files that rings have registered.
    if let Some(last) = Some(last.min(FDS_MAX as u32 - 1)).filter(|last| first <= *last) {
        session.process.close_range(session.caller.thread, first, last, only_mark)?;
    }
    let result = close_in_kernel(first, last, flags);
    if !only_mark && !session.is_child {
        fd_numbers::forget_host_numbers(first, last);
        fd_numbers::record_free(first);
    }
    Ok(done(result))
}
