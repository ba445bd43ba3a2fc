//! Functions by the number of an open file.

use crate::error::{Failure, Result, call};
use crate::handles::{OpenFile, add_file, file, remove_file};
use crate::pointers::{bytes, room};
use std::ffi::{c_int, c_void};
use std::io::{Seek, SeekFrom};

/// Closes a file. Its lock ends with the last number of the open file.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_close(fd: c_int) -> c_int {
    call(-1, || remove_file(fd).map(|_| 0))
}

/// Another number of the same open file: they share position and locks.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_dup(fd: c_int) -> c_int {
    call(-1, || {
        let held = file(fd)?;
        add_file(held.file.try_clone()?, held.device)
    })
}

/// Reads at the position, which advances.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_read(fd: c_int, buffer: *mut c_void, count: usize) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { Ok(file(fd)?.file.read_user(room(buffer, count)?)? as libc::ssize_t) })
}

/// Writes at the position, which advances. A write is atomic, and durable when it returns, as
/// directfs_image_durability says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_write(fd: c_int, buffer: *const c_void, count: usize) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { Ok(file(fd)?.file.write_user(bytes(buffer, count)?)? as libc::ssize_t) })
}

/// Reads at an offset. The position does not change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_pread(
    fd: c_int,
    buffer: *mut c_void,
    count: usize,
    offset: libc::off_t,
) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { Ok(file(fd)?.file.read_user_at(room(buffer, count)?, offset as u64)? as libc::ssize_t) })
}

/// Writes at an offset. The position does not change. A file that was opened with O_APPEND is
/// written at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_pwrite(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    offset: libc::off_t,
) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { Ok(file(fd)?.file.write_user_at(bytes(buffer, count)?, offset as u64)? as libc::ssize_t) })
}

/// Sets and returns the position: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_lseek(fd: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t {
    call(-1, || {
        let held = file(fd)?;
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset as u64),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            libc::SEEK_DATA | libc::SEEK_HOLE => SeekFrom::Start(extent(&held, offset, whence)?),
            _ => return Err(Failure::Here(libc::EINVAL, "unknown whence: use SEEK_SET and the like")),
        };
        Ok((&held.file).seek(to)? as libc::off_t)
    })
}

fn extent(held: &OpenFile, offset: libc::off_t, whence: c_int) -> Result<u64> {
    const NONE: Failure = Failure::Here(libc::ENXIO, "nothing of this kind at or after the offset");
    let at = u64::try_from(offset).map_err(|_| NONE)?;
    let found = if whence == libc::SEEK_DATA { held.file.next_data(at)? } else { held.file.next_hole(at)? };
    found.ok_or(NONE)
}

/// Sets the length of a file that is open for writing.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    call(-1, || {
        file(fd)?.file.set_len(length as u64)?;
        Ok(0)
    })
}

/// Reserves, frees or moves space: modes as of fallocate(2).
#[unsafe(no_mangle)]
pub extern "C" fn directfs_fallocate(fd: c_int, mode: c_int, offset: libc::off_t, length: libc::off_t) -> c_int {
    call(-1, || {
        file(fd)?.file.allocate(mode, offset as u64, length as u64)?;
        Ok(0)
    })
}

/// Commits the image to its disk: every call that returned before, on this file and all others,
/// survives a power failure.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_fsync(fd: c_int) -> c_int {
    call(-1, || {
        file(fd)?.file.sync_all()?;
        Ok(0)
    })
}

/// Does what `directfs_fsync` does.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_fdatasync(fd: c_int) -> c_int {
    directfs_fsync(fd)
}
