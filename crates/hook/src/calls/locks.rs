//! flock and the locks of fcntl.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::user_memory;
use crate::call::Call;
use crate::process::session::Session;
use crate::signals;
use libc::{
    F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLKW, F_UNLCK, F_WRLCK, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN,
};
use posix::{Errno, Result};
use tables::process::{Conflict, LockKind, LockRange, Locked};

/// flock(fd, operation).
pub fn flock(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, operation) = (call.frame.rdi as u32, call.frame.rsi as i32);
    let session = call.begin()?.session;
    let Some(file) = session.process.file(session.caller.thread, fd) else { return Ok(NATIVE) };
    // A description of access mode 3.
    let has_no_access = !file.reads() && !file.writes();
    drop(file);
    // Linux no longer knows such locks, and permits what they asked for.
    const LOCK_MAND: i32 = 32;
    if operation & LOCK_MAND != 0 {
        return Ok(done(0));
    }
    let kind = match operation & !LOCK_NB {
        LOCK_SH => Some(LockKind::Shared),
        LOCK_EX => Some(LockKind::Exclusive),
        LOCK_UN => None,
        _ => return Err(Errno::EINVAL),
    };
    if has_no_access && kind.is_some() {
        return Err(Errno::EBADF);
    }
    attempt(&session, operation & LOCK_NB == 0, || session.process.flock(session.caller.thread, fd, kind))
}

/// Retries until it has the lock, or a signal is pending.
fn attempt(session: &Session<'_>, waits: bool, mut lock: impl FnMut() -> Result<Locked>) -> Result<Verdict> {
    let mut waited = false;
    let result = loop {
        match lock() {
            Ok(Locked::Done) => break Ok(done(0)),
            Ok(Locked::Blocked(blocked)) if !waits => {
                if !session.process.reap_blocker(session.caller.thread, &blocked) {
                    break Err(Errno::EAGAIN);
                }
            }
            Ok(Locked::Blocked(blocked)) => {
                waited = true;
                session.process.wait_for_lock(session.caller.thread, &blocked);
                if let Some(interrupted) = signals::interruption() {
                    break interrupted;
                }
            }
            Err(error) => break Err(error),
        }
    };
    if waited {
        session.process.end_wait();
    }
    result
}

/// F_GETLK, F_SETLK, F_SETLKW and the variants for open file descriptions.
pub fn fcntl(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, command, address) = (call.frame.rdi as u32, call.frame.rsi as i32, call.frame.rdx);
    let session = call.begin()?.session;
    let mut asked: libc::flock = user_memory::read(address)?;
    let of_description = matches!(command, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
    if of_description && asked.l_pid != 0 {
        return Err(Errno::EINVAL);
    }
    let kind = match i32::from(asked.l_type) {
        F_RDLCK => Some(LockKind::Shared),
        F_WRLCK => Some(LockKind::Exclusive),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let range = {
        let Some(file) = session.process.file(session.caller.thread, fd) else { return Ok(NATIVE) };
        if file.is_path() {
            return Err(Errno::EBADF);
        }
        let base = match i32::from(asked.l_whence) {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => file.position(),
            libc::SEEK_END => session.caller.stat(file.node())?.size_bytes,
            _ => return Err(Errno::EINVAL),
        };
        LockRange::new(base, asked.l_start, asked.l_len)?
    };
    if matches!(command, libc::F_GETLK | F_OFD_GETLK) {
        let conflict = session.process.conflict(session.caller.thread, fd, range, kind, of_description)?;
        fill_flock(&mut asked, conflict);
        return user_memory::write(address, &asked).map(|()| done(0));
    }
    let waits = matches!(command, F_SETLKW | F_OFD_SETLKW);
    attempt(&session, waits, || {
        session.process.lock_range(session.caller.thread, fd, range, kind, of_description, waits)
    })
}

fn fill_flock(asked: &mut libc::flock, conflict: Option<Conflict>) {
    let Some(conflict) = conflict else {
        asked.l_type = F_UNLCK as i16;
        return;
    };
    asked.l_type = match conflict.kind {
        LockKind::Shared => F_RDLCK as i16,
        LockKind::Exclusive => F_WRLCK as i16,
    };
    asked.l_whence = libc::SEEK_SET as i16;
    asked.l_start = conflict.range.start as i64;
    asked.l_len = match conflict.range.last {
        last if last >= i64::MAX as u64 => 0,
        last => (last - conflict.range.start + 1) as i64,
    };
    asked.l_pid = conflict.pid;
}
