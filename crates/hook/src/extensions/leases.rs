//! Leases (fcntl F_SETLEASE), and the signal that announces a break (F_SETSIG, F_SETOWN).
//!
//! The kernel keeps them, on lease files: see `tables::process`. A descriptor with a lease has one
//! of the lease file as its placeholder, so that the kernel reports its number (`si_fd`), and
//! copies, forks, execs and closes do to the lease what they do elsewhere.

use crate::abi::entry::{FDS_MAX, NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call};
use crate::calls::kernel_objects::meeting;
use crate::calls::names::{by_node, path};
use crate::calls::open::Placeholder;
use crate::descriptors::marks::{host_verdict, kernel};
use crate::extensions::Extension;
use crate::process::session::Session;
use engine::format::FileKind;
use libc::{F_GETLEASE, F_RDLCK, F_SETLEASE, F_UNLCK, F_WRLCK};
use posix::path::LastLink;
use posix::{Capabilities, Errno, OpenFile, Result};
use tables::process::{LeaseFileName, LockKind};

const F_SETSIG: i32 = 10;
/// Signals have the numbers up to this one.
const SIGNALS: u64 = 64;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

/// The extension.
pub const EXTENSION: Extension = Extension {
    fcntl: |call| is_command(call.frame.rsi as i32).then(|| fcntl(call)),
    complete_open: |session, fd, file| Some(complete_open(session, fd, file)),
    truncate: |call, length| Some(truncate(call, length)),
    ..Extension::NONE
};

/// Whether a command of fcntl is served here.
fn is_command(command: i32) -> bool {
    let owners = [libc::F_SETOWN, libc::F_GETOWN, F_SETOWN_EX, F_GETOWN_EX, F_SETSIG, F_GETSIG];
    matches!(command, F_SETLEASE | F_GETLEASE) || owners.contains(&command)
}

/// The commands of fcntl that concern leases and their signal.
fn fcntl(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, command, argument) = (call.frame.rdi as u32, call.frame.rsi as i32, call.frame.rdx);
    let session = call.begin()?.session;
    let Some(file) = session.process.file(session.caller.thread, fd) else { return host_verdict(fd) };
    if file.is_path() {
        return Err(Errno::EBADF);
    }
    let is_set = matches!(command, libc::F_SETOWN | F_SETOWN_EX | F_SETSIG);
    match command {
        F_SETLEASE => set_lease(&session, fd, &file, argument as i32).map(done),
        F_SETSIG if argument > SIGNALS => Err(Errno::EINVAL),
        // Only leases send signals, so of other files the receiver does not matter.
        _ if is_set && file.kind() != FileKind::Regular => Ok(done(0)),
        _ if is_set => attach(&session, fd, &file).map(|()| NATIVE),
        _ if is_attached(&session, fd) => Ok(NATIVE),
        F_GETLEASE => Ok(done(F_UNLCK.into())),
        F_GETOWN_EX => {
            const PROCESS: i32 = 1;
            user_memory::write(argument, &[PROCESS, 0]).map(|()| done(0))
        }
        _ => Ok(done(0)),
    }
}

/// Whether a descriptor's placeholder is a descriptor of the lease file. Of an attached description
/// that another process had before, or that was received, it is not.
fn is_attached(session: &Session<'_>, fd: u32) -> bool {
    let is_regular = |status: libc::stat| status.st_mode & libc::S_IFMT == libc::S_IFREG;
    session.process.descriptor(fd).is_some_and(|descriptor| session.process.is_attached(&descriptor))
        && sys::status(fd as i32).is_ok_and(is_regular)
}

/// Makes the placeholders of a description in this process descriptors of the lease file.
fn attach(session: &Session<'_>, fd: u32, file: &OpenFile) -> Result<()> {
    if is_attached(session, fd) {
        return Ok(());
    }
    let attributes = session.caller.stat(file.node())?;
    let (owner, _) = session.caller.credentials.numbers_of((attributes.uid, attributes.gid));
    let replace = &mut |lease_file: i32, number: u32, cloexec: bool| {
        // One that a ring has registered has no number in the kernel.
        if number as usize >= FDS_MAX {
            return Ok(());
        }
        let flags = if cloexec { libc::O_CLOEXEC as u64 } else { 0 };
        match kernel(libc::SYS_dup3, lease_file as u64, number.into(), flags) {
            made @ ..0 => Err(Errno(-made as i32)),
            _ => Ok(()),
        }
    };
    session.process.attach_lease_file(session.caller.thread, fd, owner, replace)
}

fn kernel_lease(fd: u32, command: i32, argument: i32) -> i64 {
    kernel(libc::SYS_fcntl, fd.into(), command as u64, argument as u64)
}

fn set_lease(session: &Session<'_>, fd: u32, file: &OpenFile, argument: i32) -> Result<i64> {
    let kind = match argument {
        F_RDLCK => Some(LockKind::Shared),
        F_WRLCK => Some(LockKind::Exclusive),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let (caller, thread) = (&session.caller, session.caller.thread);
    let owner = caller.stat(file.node())?.uid;
    if caller.credentials.uid != owner && !caller.credentials.has(Capabilities::LEASE) {
        return Err(Errno::EACCES);
    }
    if file.kind() != FileKind::Regular {
        return Err(Errno::EINVAL);
    }
    let Some(kind) = kind else {
        return if is_attached(session, fd) { Ok(kernel_lease(fd, F_SETLEASE, F_UNLCK)) } else { Err(Errno::EAGAIN) };
    };
    // An open that found no lease must not be overlooked, so the search comes after the grant. The
    // one before spares others a lease that does not last.
    if session.process.has_lease_conflict(thread, fd, kind)? {
        return Err(Errno::EAGAIN);
    }
    attach(session, fd, file)?;
    let before = kernel_lease(fd, F_GETLEASE, 0) as i32;
    let granted = kernel_lease(fd, F_SETLEASE, argument);
    if granted == 0 && session.process.has_lease_conflict(thread, fd, kind)? {
        kernel_lease(fd, F_SETLEASE, before);
        return Err(Errno::EAGAIN);
    }
    Ok(granted)
}

/// Breaks leases on a file that was opened as `fd`, waits for their holders, and truncates it if
/// that is still to be done. On an error the descriptor is empty again; its number is the caller's.
fn complete_open(session: &Session<'_>, fd: u32, file: &OpenFile) -> Result<()> {
    let truncate = || if file.truncates_late() { session.caller.opens().truncate_late(file) } else { Ok(()) };
    let completed = break_leases(file).and_then(|()| truncate());
    if completed.is_err() {
        session.process.remove(session.caller.thread, fd);
    }
    completed
}

/// Opens the lease file, for as long as it takes to break the leases. Signal handlers run
/// meanwhile: this process may be the one that holds the lease.
fn break_leases(file: &OpenFile) -> Result<()> {
    let name = LeaseFileName::new(file.node().number);
    let flags = file.flags() & (libc::O_ACCMODE | libc::O_NONBLOCK) | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let arguments = [meeting()?, name.text().as_ptr() as u64, flags as u64, 0, 0, 0];
    // SAFETY: a terminated name that outlives the call, which changes no memory.
    match unsafe { blocking_call(libc::SYS_openat, arguments) } {
        opened @ 0.. => {
            kernel(libc::SYS_close, opened as u64, 0, 0);
            Ok(())
        }
        // The last holder has closed it.
        missing if missing == -i64::from(libc::ENOENT) => Ok(()),
        error => Err(Errno(-error as i32)),
    }
}

/// truncate(path, length), of a file on which leases may exist: as an open for writing, so that a
/// grant finds it.
fn truncate(call: &mut Call<'_>, length: i64) -> Result<Verdict> {
    let mut opened = None;
    let verdict = by_node(call, path(0), 0, LastLink::Follow, &mut |caller, node| {
        opened = Some(caller.opens().open_node(node, libc::O_WRONLY)?);
        Ok(0)
    })?;
    let Some(file) = opened else { return Ok(verdict) };
    let session = call.begin()?.session;
    let placeholder = match Placeholder::new(&session, true) {
        Ok(placeholder) => placeholder,
        Err(error) => {
            session.caller.opens().close(&file);
            return Err(error);
        }
    };
    let (thread, fd) = (session.caller.thread, placeholder.number());
    session.process.install(thread, fd, &file, true)?;
    complete_open(&session, fd, &file)?;
    let truncated = session.caller.data().truncate_open(&file, length);
    session.process.remove(thread, fd);
    truncated.map(|()| done(0))
}
