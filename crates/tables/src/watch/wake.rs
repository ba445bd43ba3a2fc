//! The *wake file* of a group: the kernel's descriptor of the group watches it, so an event on it
//! makes the descriptor readable.

use crate::child_numbers;
use core::ffi::CStr;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, openat, utimensat};

/// The terminated name of a group's wake file from a lock directory (see `host`): both lie in the
/// meeting directory.
pub fn wake_name(group: u32) -> [u8; 18] {
    let mut name = *b"../watch-00000000\0";
    for (place, digit) in name[9..17].iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(group >> (4 * place) & 15) as usize];
    }
    name
}

/// Makes the kernel's descriptor of a group readable by a touch of the wake file; for a descriptor
/// that is not notified of attributes, `opens` it instead. Returns whether that succeeded.
pub(super) fn wake(lock_directory: i32, group: u32, opens: bool) -> bool {
    let name = wake_name(group);
    let Ok(name) = CStr::from_bytes_with_nul(&name) else { return false };
    if lock_directory < 0 {
        return false;
    }
    // SAFETY: the process's descriptor of the lock directory is open while it uses the region.
    let lock_directory = unsafe { BorrowedFd::borrow_raw(child_numbers::own(lock_directory)) };
    if opens {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        return openat(lock_directory, name, flags, Mode::empty()).is_ok();
    }
    let now = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    utimensat(lock_directory, name, &times, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
