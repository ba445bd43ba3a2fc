//! Listings of directories.

use crate::error::call;
use crate::handles::{self, directfs_dir, directfs_image, directory, lock, pointer, remove_directory, tables};
use crate::pointers::{self, store};
use directfs::FileType;
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Begins a listing of a directory; NULL if it fails. Threads may share it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_opendir(image: *mut directfs_image, path: *const c_char) -> *mut directfs_dir {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(null_mut(), || unsafe {
        let list = handles::image(image)?.fs.read_dir(pointers::path(path)?)?;
        Ok(pointer(tables().directories.insert(Arc::new(directfs_dir { list: Mutex::new(list) }))?))
    })
}

/// The next entry: returns 1 and fills `entry` (`d_ino`, `d_type`, `d_name`), 0 at the end, and -1
/// if it fails. `.` and `..` are left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_readdir(dir: *mut directfs_dir, entry: *mut libc::dirent) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = directory(dir)?;
        let next = lock(&held.list).next();
        let Some(found) = next.transpose()? else { return Ok(0) };
        // SAFETY: integers, for which zero is a value.
        let mut filled: libc::dirent = std::mem::zeroed();
        filled.d_ino = found.ino();
        filled.d_reclen = size_of::<libc::dirent>() as u16;
        filled.d_type = match found.file_type() {
            FileType::File => libc::DT_REG,
            FileType::Directory => libc::DT_DIR,
            FileType::Symlink => libc::DT_LNK,
            FileType::Fifo => libc::DT_FIFO,
            FileType::Socket => libc::DT_SOCK,
            FileType::CharacterDevice => libc::DT_CHR,
            FileType::BlockDevice => libc::DT_BLK,
            _ => libc::DT_UNKNOWN,
        };
        // A name has at most 255 bytes, so that a zero byte follows it.
        for (place, byte) in filled.d_name[..255].iter_mut().zip(found.file_name().as_bytes()) {
            *place = *byte as c_char;
        }
        store(entry, filled)?;
        Ok(1)
    })
}

/// Begins a listing again.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_rewinddir(dir: *mut directfs_dir) -> c_int {
    call(-1, || {
        lock(&directory(dir)?.list).rewind();
        Ok(0)
    })
}

/// Ends a listing.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_closedir(dir: *mut directfs_dir) -> c_int {
    call(-1, || remove_directory(dir).map(|_| 0))
}
