//! Locks of files and of ranges.

use crate::error::{Failure, Result, call};
use crate::handles::file;
use crate::pointers::required;
use directfs::File;
use std::ffi::c_int;
use std::fs::TryLockError;

const BLOCKED: Failure = Failure::Here(libc::EAGAIN, "another open file has the lock");

/// A failure to lock at once. `flock` and `fcntl` use the same errno for a lock that is taken.
fn tried(result: std::result::Result<(), TryLockError>) -> Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(BLOCKED),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Locks a whole file, as flock(2): LOCK_SH, LOCK_EX or LOCK_UN, and LOCK_NB to fail with EAGAIN
/// instead of waiting. The lock belongs to the open file, and holds among all processes that have
/// the image open. Signals do not end the wait.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_flock(fd: c_int, operation: c_int) -> c_int {
    call(-1, || {
        let held = file(fd)?;
        let file = &held.file;
        match (operation & !libc::LOCK_NB, operation & libc::LOCK_NB != 0) {
            (libc::LOCK_SH, false) => file.lock_shared()?,
            (libc::LOCK_EX, false) => file.lock()?,
            (libc::LOCK_SH, true) => tried(file.try_lock_shared())?,
            (libc::LOCK_EX, true) => tried(file.try_lock())?,
            (libc::LOCK_UN, _) => file.unlock()?,
            _ => return Err(Failure::Here(libc::EINVAL, "unknown operation: use LOCK_SH, LOCK_EX or LOCK_UN")),
        }
        Ok(0)
    })
}

/// The bytes of a `struct flock`: first, and the one behind the last, if there is an end.
fn range(file: &File, lock: &libc::flock) -> Result<(u64, Option<u64>)> {
    const INVALID: Failure = Failure::Here(libc::EINVAL, "a range before the start or after the end of all files");
    let base = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_END => i64::try_from(file.metadata()?.len()).map_err(|_| INVALID)?,
        _ => return Err(Failure::Here(libc::EINVAL, "unknown l_whence: use SEEK_SET or SEEK_END")),
    };
    let start = base.checked_add(lock.l_start).ok_or(INVALID)?;
    let (first, end) = match lock.l_len {
        0 => (start, None),
        length => {
            let other = start.checked_add(length).ok_or(INVALID)?;
            (start.min(other), Some(start.max(other) as u64))
        }
    };
    Ok((u64::try_from(first).map_err(|_| INVALID)?, end))
}

/// Locks a range of bytes, as fcntl(2): `command` F_OFD_SETLK, F_OFD_SETLKW or F_OFD_GETLK; `l_pid`
/// is 0, and `l_whence` SEEK_SET or SEEK_END. The lock belongs to the open file, and holds among
/// all processes that have the image open. Signals do not end the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_lock(fd: c_int, command: c_int, lock: *mut libc::flock) -> c_int {
    const KIND: Failure = Failure::Here(libc::EINVAL, "unknown l_type: use F_RDLCK, F_WRLCK or F_UNLCK");
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = file(fd)?;
        let (file, lock) = (&held.file, required(lock)?);
        if lock.l_pid != 0 {
            return Err(Failure::Here(libc::EINVAL, "l_pid is not 0: such locks belong to open files"));
        }
        let exclusive = match i32::from(lock.l_type) {
            libc::F_RDLCK => Some(false),
            libc::F_WRLCK => Some(true),
            libc::F_UNLCK => None,
            _ => return Err(KIND),
        };
        let (start, end) = range(file, lock)?;
        let bytes =
            (std::ops::Bound::Included(start), end.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded));
        match (command, exclusive) {
            (libc::F_OFD_SETLK, Some(exclusive)) => tried(file.try_lock_range(bytes, exclusive))?,
            (libc::F_OFD_SETLKW, Some(exclusive)) => file.lock_range(bytes, exclusive)?,
            (libc::F_OFD_SETLK | libc::F_OFD_SETLKW, None) => file.unlock_range(bytes)?,
            (libc::F_OFD_GETLK, Some(exclusive)) => report(lock, file.range_conflict(bytes, exclusive)?),
            (libc::F_OFD_GETLK, None) => return Err(KIND),
            _ => return Err(Failure::Here(libc::EINVAL, "unknown command: use F_OFD_SETLK and its kin")),
        }
        Ok(0)
    })
}

fn report(lock: &mut libc::flock, found: Option<directfs::LockedRange>) {
    let Some(found) = found else {
        lock.l_type = libc::F_UNLCK as i16;
        return;
    };
    lock.l_type = (if found.exclusive { libc::F_WRLCK } else { libc::F_RDLCK }) as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = found.start as i64;
    lock.l_len = found.end.map_or(0, |end| (end - found.start) as i64);
    lock.l_pid = -1;
}
