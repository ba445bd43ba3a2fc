//! Functions by path that change or read names.

use crate::error::{Failure, call};
use crate::handles::{self, add_file, directfs_image};
use crate::pointers::{self, path, room};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

/// Opens a file: flags and mode as of open(2). Returns a number for the other functions; it is no
/// descriptor of the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_open(
    image: *mut directfs_image,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        add_file(held.fs.open_flags(pointers::path(path)?, flags, mode)?, held.device)
    })
}

/// Whether the caller may use a file: R_OK, W_OK, X_OK added up, or F_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_access(image: *mut directfs_image, path: *const c_char, rights: c_int) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.access(pointers::path(path)?, rights as u32)?;
        Ok(0)
    })
}

/// Creates a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_mkdir(image: *mut directfs_image, path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.create_dir_with_mode(pointers::path(path)?, mode)?;
        Ok(0)
    })
}

/// Creates a directory and all its missing parents. An existing directory is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_mkdirs(image: *mut directfs_image, path: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.create_dir_all(pointers::path(path)?)?;
        Ok(0)
    })
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_rmdir(image: *mut directfs_image, path: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.remove_dir(pointers::path(path)?)?;
        Ok(0)
    })
}

/// Removes a name of a file that is no directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_unlink(image: *mut directfs_image, path: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.remove_file(pointers::path(path)?)?;
        Ok(0)
    })
}

/// Removes a directory and everything in it, or a symbolic link to one. Not atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_remove_tree(image: *mut directfs_image, path: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.remove_dir_all(pointers::path(path)?)?;
        Ok(0)
    })
}

/// Renames a file; an existing `to` is replaced atomically.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_rename(image: *mut directfs_image, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.rename(path(from)?, path(to)?)?;
        Ok(0)
    })
}

/// Renames with a flag of renameat2(2): RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_rename2(
    image: *mut directfs_image,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        let (from, to) = (path(from)?, path(to)?);
        match flags {
            0 => held.fs.rename(from, to)?,
            libc::RENAME_NOREPLACE => held.fs.rename_new(from, to)?,
            libc::RENAME_EXCHANGE => held.fs.exchange(from, to)?,
            _ => return Err(Failure::Here(libc::EINVAL, "unknown flags: use RENAME_NOREPLACE or RENAME_EXCHANGE")),
        }
        Ok(0)
    })
}

/// Gives a file another name. A symbolic link at `original` is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_link(
    image: *mut directfs_image,
    original: *const c_char,
    link: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.hard_link(path(original)?, path(link)?)?;
        Ok(0)
    })
}

/// Creates a symbolic link with the content `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_symlink(
    image: *mut directfs_image,
    target: *const c_char,
    link: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.symlink(path(target)?, path(link)?)?;
        Ok(0)
    })
}

/// Reads a symbolic link, as readlink(2): without a zero byte at the end, and cut to the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_readlink(
    image: *mut directfs_image,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        let path = pointers::path(path)?;
        let room = room(buffer.cast::<c_void>(), size)?;
        if room.is_empty() {
            return Err(Failure::Here(libc::EINVAL, "the buffer has no bytes"));
        }
        let target = held.fs.read_link(path)?;
        let bytes = target.as_os_str().as_bytes();
        let length = bytes.len().min(room.len());
        room.part(0..length).copy_from(&bytes[..length]);
        Ok(length as libc::ssize_t)
    })
}

/// Copies content and permission bits of a regular file; long files share their blocks. Returns the
/// number of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_copy(image: *mut directfs_image, from: *const c_char, to: *const c_char) -> i64 {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe { Ok(handles::image(image)?.fs.copy(path(from)?, path(to)?)? as i64) })
}

/// Sets the length of a file in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_truncate(
    image: *mut directfs_image,
    path: *const c_char,
    length: libc::off_t,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.set_len(pointers::path(path)?, length as u64)?;
        Ok(0)
    })
}
