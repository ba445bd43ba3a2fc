//! Extended attributes.

use crate::error::{Failure, Result, call};
use crate::handles::{self, directfs_image, file};
use crate::pointers::{self, bytes, room, text};
use directfs::{SetXattr, UserBytes};
use std::ffi::{OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

/// Copies a result. With no room it only returns the length.
///
/// # Safety
/// As of [`room`].
unsafe fn give(result: &[u8], buffer: *mut c_void, size: usize) -> Result<libc::ssize_t> {
    if size > 0 {
        // SAFETY: the caller's promise.
        let room = unsafe { room(buffer, size) }?;
        if room.len() < result.len() {
            return Err(Failure::Here(libc::ERANGE, "the buffer is too short: ask for the length with size 0"));
        }
        room.part(0..result.len()).copy_from(result);
    }
    Ok(result.len() as libc::ssize_t)
}

const ABSENT: Failure = Failure::Here(libc::ENODATA, "the file has no such attribute");

fn which(flags: c_int) -> Result<SetXattr> {
    match flags {
        0 => Ok(SetXattr::Any),
        libc::XATTR_CREATE => Ok(SetXattr::New),
        libc::XATTR_REPLACE => Ok(SetXattr::Existing),
        _ => Err(Failure::Here(libc::EINVAL, "unknown flags: use 0, XATTR_CREATE or XATTR_REPLACE")),
    }
}

/// A copy of a value. A value that is too long has no use, so its copy is one byte too long.
///
/// # Safety
/// As of [`bytes`].
unsafe fn copied(value: *const c_void, size: usize) -> Result<Vec<u8>> {
    const VALUE_BYTES_MAX: usize = 65_536;
    // SAFETY: the caller's promise.
    unsafe { bytes(value, size.min(VALUE_BYTES_MAX + 1)) }.map(UserBytes::to_vec)
}

/// Names, each with a zero byte behind it.
fn joined(names: &[OsString]) -> Vec<u8> {
    names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect()
}

/// The value of an extended attribute, as getxattr(2): with size 0 only its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_getxattr(
    image: *mut directfs_image,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let found = handles::image(image)?.fs.xattr(pointers::path(path)?, text(name)?)?;
        give(&found.ok_or(ABSENT)?, value, size)
    })
}

/// The value of an extended attribute of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_fgetxattr(
    fd: c_int,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { give(&file(fd)?.file.xattr(text(name)?)?.ok_or(ABSENT)?, value, size) })
}

/// Sets an extended attribute: `flags` 0, XATTR_CREATE (1) or XATTR_REPLACE (2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_setxattr(
    image: *mut directfs_image,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.set_xattr_with(
            pointers::path(path)?,
            text(name)?,
            copied(value, size)?,
            which(flags)?,
        )?;
        Ok(0)
    })
}

/// Sets an extended attribute of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_fsetxattr(
    fd: c_int,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        file(fd)?.file.set_xattr(text(name)?, copied(value, size)?, which(flags)?)?;
        Ok(0)
    })
}

/// Removes an extended attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_removexattr(
    image: *mut directfs_image,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.remove_xattr(pointers::path(path)?, text(name)?)?;
        Ok(0)
    })
}

/// Removes an extended attribute of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_fremovexattr(fd: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        file(fd)?.file.remove_xattr(text(name)?)?;
        Ok(0)
    })
}

/// The names of a file's extended attributes, as listxattr(2): each with a zero byte behind it;
/// with size 0 only their length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_listxattr(
    image: *mut directfs_image,
    path: *const c_char,
    list: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { give(&joined(&handles::image(image)?.fs.xattrs(pointers::path(path)?)?), list.cast(), size) })
}

/// The names of an open file's extended attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_flistxattr(fd: c_int, list: *mut c_char, size: usize) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { give(&joined(&file(fd)?.file.xattrs()?), list.cast(), size) })
}
