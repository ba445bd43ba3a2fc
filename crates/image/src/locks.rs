//! Locks on the image file: which processes use it, and which attach or detach.
//!
//! The locks belong to the open file description, not to the process. So they end with it, however
//! the process ends.
//!
//! | byte | shared | exclusive |
//! | --- | --- | --- |
//! | 0 | uses the image | uses it exclusively |
//! | 1 | attaches or detaches without effect on others | attaches or detaches |
//! | 2 | may write the image, or reads it together with writers | never |
//! | 2^40 + process number; on the region if the image is only read | has the image by handoff from that process | that process, to wait for the end of all its borrowers |

use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::time::{Duration, Instant};

/// A byte that is locked, as in the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Byte {
    Attached,
    Attaching,
    Writing,
    /// Held by the borrowers of the process with this number.
    HandedOff(u32),
}

impl Byte {
    fn offset(self) -> libc::off_t {
        match self {
            Byte::Attached => 0,
            Byte::Attaching => 1,
            Byte::Writing => 2,
            Byte::HandedOff(number) => (1 << 40) + libc::off_t::from(number),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    Shared,
    Exclusive,
    None,
}

fn description(byte: Byte, lock: Lock) -> libc::flock {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte.offset(),
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes, changes or releases a lock without waiting. `false`: another process has it.
pub(super) fn try_set(file: impl AsFd, byte: Byte, lock: Lock) -> io::Result<bool> {
    let wanted = description(byte, lock);
    // SAFETY: an open descriptor, and a complete description that the call only reads.
    if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Takes a lock, and sleeps until it is free.
pub(super) fn wait_and_set(file: impl AsFd, byte: Byte, lock: Lock) -> io::Result<()> {
    let wanted = description(byte, lock);
    loop {
        // SAFETY: as in `try_set`.
        if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLKW, &raw const wanted) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether another open file description has any lock on the byte.
pub(super) fn is_held_by_others(file: impl AsFd, byte: Byte) -> io::Result<bool> {
    let mut asked = description(byte, Lock::Exclusive);
    // SAFETY: an open descriptor, and a complete description that the call may overwrite.
    if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(asked.l_type != libc::F_UNLCK as libc::c_short)
}

/// Calls `attempt` until it returns a value or an error, or the timeout has passed.
pub(super) fn retry_until<T, E>(
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let end = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(result) = attempt()? {
            return Ok(Some(result));
        }
        let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A lock that is released on drop.
pub(super) struct LockGuard<F: AsFd> {
    file: F,
    byte: Byte,
}

impl<F: AsFd> LockGuard<F> {
    /// Takes a lock; `None` if another process has it.
    pub(super) fn take(file: F, byte: Byte, lock: Lock) -> io::Result<Option<LockGuard<F>>> {
        Ok(try_set(&file, byte, lock)?.then(|| LockGuard { file, byte }))
    }
}

impl<F: AsFd> Drop for LockGuard<F> {
    fn drop(&mut self) {
        // A release fails only for lack of kernel memory; then the lock ends with the descriptor.
        let _ = try_set(&self.file, self.byte, Lock::None);
    }
}
