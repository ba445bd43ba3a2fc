//! Descriptors: numbers are the kernel's, what is behind them is ours.
//!
//! Behind every descriptor of ours the kernel has a placeholder, a duplicate of one that all processes inherit (see `contract`): so numbers, duplication, inheritance,
//! close-on-exec and polling are the kernel's own. What the table of this process says of a number ([`posix::process`]) is served here.
//!
//! Invariants
//! - The byte of a number is set before a program can know that it is ours, and cleared before the kernel may give the number to something else. It may be set without
//!   need (see `processes`): then the table decides.
//! - An entry leaves the table before its placeholder is closed, and enters it after its placeholder was made.

use super::call::{Call, native_with};
use super::dispatch::{NATIVE, done};
use super::entry::{DIRECTFS_FD_COUNT, DIRECTFS_FDS, FDS_MAX, Frame, Next, Verdict};
use super::processes::{self, Who};
use super::server::Server;
use super::{environment, paths, sys};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use posix::{Errno, Result};

/// A descriptor of an open file.
const OURS: u8 = 1;
/// One that this library needs, and that the program does not know of.
const PROTECTED: u8 = 2;

/// One of the kernel's that is a directory above the mount: relative paths may lead from there into it.
const ABOVE: u8 = 4;

/// Whether a descriptor is a directory of the kernel's above the mount.
pub fn is_above(fd: u32) -> bool {
    DIRECTFS_FDS.0.get(fd as usize).is_some_and(|byte| byte.load(Relaxed) == ABOVE)
}

/// Notes whether a descriptor that the kernel has just made is a directory above the mount.
pub fn note_above(server: &Server, fd: i64) {
    let Ok(fd) = u32::try_from(fd) else { return };
    if processes::is_above_mount(server, |into| paths::directory_path(paths::Directory::Descriptor(fd), into))
        && let Some(byte) = DIRECTFS_FDS.0.get(fd as usize)
    {
        byte.store(ABOVE, Release);
    }
}

/// Whether a descriptor may be ours.
pub fn is_marked(fd: u32) -> bool {
    DIRECTFS_FDS.0.get(fd as usize).is_some_and(|byte| byte.load(Relaxed) == OURS)
}

/// Notes that a descriptor may be ours.
pub fn mark(fd: u32) {
    if let Some(byte) = DIRECTFS_FDS.0.get(fd as usize)
        && byte.swap(OURS, AcqRel) != OURS
    {
        DIRECTFS_FD_COUNT.fetch_add(1, Release);
    }
}

/// Notes that a descriptor is not ours any more.
pub fn unmark(fd: u32) {
    if let Some(byte) = DIRECTFS_FDS.0.get(fd as usize)
        && byte.load(Relaxed) != PROTECTED
        && byte.swap(0, AcqRel) == OURS
    {
        DIRECTFS_FD_COUNT.fetch_sub(1, Release);
    }
}

/// Keeps a descriptor from the program.
pub fn protect(fd: i32) {
    if let Some(byte) = DIRECTFS_FDS.0.get(fd as usize) {
        byte.store(PROTECTED, Release);
    }
}

/// Gives a number to the program that was kept from it.
pub fn unprotect(fd: i32) {
    if let Some(byte) = DIRECTFS_FDS.0.get(fd as usize) {
        byte.store(0, Release);
    }
}

/// Whether a descriptor is one that the program does not know of.
pub fn is_protected(fd: u64) -> bool {
    DIRECTFS_FDS.0.get(fd as u32 as usize).is_some_and(|byte| byte.load(Relaxed) == PROTECTED)
}

fn kernel(number: i64, a: u64, b: u64, c: u64) -> i64 {
    // SAFETY: calls of this module by descriptors: they change the kernel's table, and no memory.
    unsafe { sys::call(number, [a, b, c, 0, 0, 0]) }
}

/// A new placeholder: the lowest free number.
pub fn reserve(cloexec: bool) -> Result<u32> {
    let Some(contract) = environment::contract() else { return Err(Errno::EBADF) };
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    placed(kernel(libc::SYS_fcntl, contract.placeholder as u64, command as u64, 0))
}

/// A descriptor from the kernel, if it is one that we can keep in mind.
fn placed(result: i64) -> Result<u32> {
    match u32::try_from(result) {
        Ok(fd) if (fd as usize) < FDS_MAX => Ok(fd),
        Ok(fd) => {
            close_placeholder(fd);
            Err(Errno(libc::EMFILE))
        }
        Err(_) => Err(Errno(-result as i32)),
    }
}

/// Gives a number back to the kernel.
pub fn close_placeholder(fd: u32) {
    kernel(libc::SYS_close, u64::from(fd), 0, 0);
}

/// close(fd).
pub fn close(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    if is_protected(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    let is_child = call.context.is_child();
    let who = call.begin()?.who;
    if !who.process.remove(who.caller.thread, fd) {
        if !is_child {
            unmark(fd);
        }
        return Ok(NATIVE);
    }
    if !is_child {
        unmark(fd);
    }
    Ok(done(kernel(libc::SYS_close, u64::from(fd), 0, 0)))
}

fn is_ours(who: &Who<'_>, fd: u32) -> bool {
    who.process.descriptor(fd).is_some()
}

/// Puts what `from` is behind `to`, which the kernel has just made a duplicate of it.
fn duplicate(who: &Who<'_>, from: u32, to: i64, cloexec: bool) -> Result<Verdict> {
    let to = placed(to)?;
    if let Err(error) = who.process.duplicate(who.caller.thread, from, to, cloexec) {
        close_placeholder(to);
        return Err(error);
    }
    mark(to);
    Ok(done(i64::from(to)))
}

/// dup(fd).
pub fn dup(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    if is_protected(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    let (frame, server) = (call.frame, call.server);
    let who = call.begin()?.who;
    if !is_ours(&who, fd) {
        return Ok(theirs_duplicated(server, frame, fd));
    }
    duplicate(&who, fd, kernel(libc::SYS_dup, u64::from(fd), 0, 0), false)
}

/// Has the kernel duplicate a descriptor of its own, and keeps directories above the mount in mind.
fn theirs_duplicated(server: &Server, frame: &Frame, from: u32) -> Verdict {
    if !is_above(from) {
        return NATIVE;
    }
    let verdict = native_with(frame, frame.arguments());
    note_above(server, verdict.result);
    verdict
}

/// dup2(from, to).
pub fn dup2(call: &mut Call<'_>) -> Result<Verdict> {
    let (from, to) = (call.frame.rdi as u32, call.frame.rsi as u32);
    if from == to && !is_protected(call.frame.rdi) {
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
    if is_protected(u64::from(from)) {
        return Err(Errno::EBADF);
    }
    let is_child = call.context.is_child();
    if is_protected(u64::from(to)) {
        // What moves in a child that runs in our memory does not move for us.
        if is_child {
            return Err(Errno(libc::EBUSY));
        }
        environment::move_descriptor(to as i32)?;
    }
    let (frame, server) = (call.frame, call.server);
    let who = call.begin()?.who;
    if is_ours(&who, from) {
        if to as usize >= FDS_MAX {
            return Err(Errno::EBADF);
        }
        let flags = if cloexec { libc::O_CLOEXEC as u64 } else { 0 };
        return duplicate(&who, from, kernel(libc::SYS_dup3, u64::from(from), u64::from(to), flags), cloexec);
    }
    let verdict = native_with(frame, frame.arguments());
    if verdict.result >= 0 && verdict.next == Next::Done {
        who.process.remove(who.caller.thread, to);
        if !is_child {
            unmark(to);
        }
        if is_above(from) {
            note_above(server, verdict.result);
        }
    }
    Ok(verdict)
}

/// The part of fcntl that is about numbers; none if the command is about the file.
pub fn fcntl_number(call: &mut Call<'_>) -> Result<Option<Verdict>> {
    let (fd, command, argument) = (call.frame.rdi as u32, call.frame.rsi as i32, call.frame.rdx);
    let (frame, server) = (call.frame, call.server);
    let who = call.begin()?.who;
    if !is_ours(&who, fd) {
        let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
        return Ok(Some(if duplicates { theirs_duplicated(server, frame, fd) } else { NATIVE }));
    }
    Ok(Some(match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let made = kernel(libc::SYS_fcntl, u64::from(fd), command as u64, argument);
            duplicate(&who, fd, made, command == libc::F_DUPFD_CLOEXEC)?
        }
        libc::F_GETFD => NATIVE,
        libc::F_SETFD => {
            who.process.set_cloexec(fd, argument as i32 & libc::FD_CLOEXEC != 0);
            NATIVE
        }
        _ => return Ok(None),
    }))
}

/// Sets or clears close-on-exec, as ioctl does.
pub fn set_cloexec(who: &Who<'_>, fd: u32, cloexec: bool) -> Result<i64> {
    who.process.set_cloexec(fd, cloexec);
    Ok(kernel(libc::SYS_fcntl, u64::from(fd), libc::F_SETFD as u64, u64::from(cloexec)))
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
    let is_child = call.context.is_child();
    let who = call.begin()?.who;
    if !only_mark && !is_child {
        let end = (last as usize).min(FDS_MAX - 1) as u32;
        (first..=end).for_each(unmark);
    }
    who.process.close_range(who.caller.thread, first, last, only_mark)?;
    // Around those that the program does not know of.
    let mut kept = environment::descriptors();
    kept.sort_unstable();
    let mut next = first;
    let close = |from: u32, to: u32| kernel(libc::SYS_close_range, u64::from(from), u64::from(to), u64::from(flags));
    for fd in kept.into_iter().map(|fd| fd as u32).filter(|fd| (first..=last).contains(fd)) {
        if fd > next {
            close(next, fd - 1);
        }
        next = fd + 1;
    }
    Ok(done(if next <= last { close(next, last) } else { 0 }))
}
