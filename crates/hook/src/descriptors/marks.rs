//! What is known about each number of a descriptor: one byte, which the filter reads, too.

use crate::abi::entry::{DIRECTFS_FDS, FDS_MAX, NATIVE, Verdict};
use crate::abi::sys;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};
use posix::{Errno, Result};
use tables::child_numbers::is_hidden_here;

/// A descriptor of an open file.
pub const DIRECTFS: u8 = 1;
/// A descriptor that this library needs and hides from the program.
pub const PROTECTED: u8 = 2;

/// A descriptor of the host for a directory above the mount: relative paths may lead from there
/// into the mount.
pub const ABOVE: u8 = 4;

/// A cached placeholder, whose number is free for the program: see [`fd_numbers`].
pub const CACHED: u8 = 8;
/// A cached placeholder that exec would close.
pub const CACHED_CLOEXEC: u8 = 9;

/// A descriptor that is known to be the host's. Only its close reaches the dispatcher: see
/// [`fd_numbers`].
pub const HOST: u8 = 16;
/// A descriptor that may be a table of mounts: see [`mount_table`].
pub const TABLE: u8 = 32;
/// A ring, which an extension serves: see [`Extension`](crate::extensions::Extension).
pub const RING: u8 = 64;
/// A FIFO of the image: see [`kernel_objects`](crate::calls::kernel_objects).
pub const FIFO: u8 = 128;
/// Bits of the descriptors whose calls reach the dispatcher.
pub const SERVED: u8 = DIRECTFS | PROTECTED | ABOVE | CACHED | TABLE | RING | FIFO;
const _: () = assert!(SERVED & HOST == 0 && SERVED & CACHED_CLOEXEC == CACHED_CLOEXEC);

/// Whether a descriptor is a directory of the host above the mount.
pub fn is_above(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == ABOVE)
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

/// Whether a descriptor is a FIFO of the image that this process opened, or a copy of one.
pub fn is_fifo(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == FIFO)
}

/// Records that a descriptor that the kernel has just created is a FIFO of the image.
pub fn mark_fifo(fd: u32) {
    record(fd, FIFO);
}

/// Records that a descriptor that the kernel has just created is a ring.
pub fn mark_ring(fd: u32) {
    record(fd, RING);
}

/// Records what is known about a descriptor that the kernel has just created. At a number that is
/// hidden, a child in its parent's memory has taken it: the byte stays the parent's.
pub fn record(fd: u32, mark: u8) {
    if let Some(byte) = DIRECTFS_FDS.byte(fd)
        && byte.load(Relaxed) != PROTECTED
    {
        byte.store(mark, Release);
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

/// Whether a descriptor is one of the library's own.
pub fn is_protected(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == PROTECTED) && is_hidden_here(fd as i32)
}

/// Whether a descriptor is hidden from the program: calls by it return EBADF, whatever the kernel
/// has there.
pub fn is_hidden(fd: u64) -> bool {
    DIRECTFS_FDS.byte(fd as u32).is_some_and(|byte| match byte.load(Relaxed) {
        PROTECTED => is_hidden_here(fd as i32),
        other => matches!(other, CACHED | CACHED_CLOEXEC),
    })
}

/// The verdict for a descriptor that is not the image's.
pub fn host_verdict(fd: u32) -> Result<Verdict> {
    if is_hidden(u64::from(fd)) { Err(Errno::EBADF) } else { Ok(NATIVE) }
}

pub(crate) fn kernel(number: i64, a: u64, b: u64, c: u64) -> i64 {
    // SAFETY: calls of this module by descriptors: they change the kernel's table, and no memory.
    unsafe { sys::call(number, [a, b, c, 0, 0, 0]) }
}

/// A descriptor from the kernel, if the tables can hold its number.
pub(crate) fn placed(result: i64) -> Result<u32> {
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

/// Sets or clears the kernel's close-on-exec.
pub fn set_kernel_cloexec(fd: u32, cloexec: bool) -> i64 {
    kernel(libc::SYS_fcntl, u64::from(fd), libc::F_SETFD as u64, u64::from(cloexec))
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
