//! Memory of the caller.

use crate::error::{Failure, Result};
use directfs::{UserBytes, UserBytesMut};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most bytes of one read or write, as in Linux.
const BYTES_MAX: usize = 0x7fff_f000;

const NULL: Failure = Failure::Here(libc::EFAULT, "a pointer is NULL: pass the address of what the function needs");

/// # Safety
/// NULL, or a string that stays as it is during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a OsStr> {
    if text.is_null() {
        return Err(NULL);
    }
    // SAFETY: the caller's promise.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// # Safety
/// As of [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    unsafe { text(path) }.map(Path::new)
}

/// Bytes to read, at most as many as one call transfers.
///
/// # Safety
/// NULL, or so many bytes during the call.
pub(crate) unsafe fn bytes<'a>(address: *const c_void, length: usize) -> Result<UserBytes<'a>> {
    if address.is_null() && length > 0 {
        return Err(NULL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { UserBytes::new(address.cast(), length.min(BYTES_MAX)) })
}

/// Bytes to fill, at most as many as one call transfers.
///
/// # Safety
/// NULL, or so many bytes during the call.
pub(crate) unsafe fn room<'a>(address: *mut c_void, length: usize) -> Result<UserBytesMut<'a>> {
    if address.is_null() && length > 0 {
        return Err(NULL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { UserBytesMut::new(address.cast(), length.min(BYTES_MAX)) })
}

/// An argument that may be NULL.
///
/// # Safety
/// NULL, or an initialised value that no thread changes during the call.
pub(crate) unsafe fn optional<'a, T>(value: *const T) -> Option<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { value.as_ref() }
}

/// # Safety
/// NULL, or a place for the value.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(NULL);
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// # Safety
/// NULL, or an initialised value that no other thread uses during the call.
pub(crate) unsafe fn required<'a, T>(value: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { value.as_mut() }.ok_or(NULL)
}
