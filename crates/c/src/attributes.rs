//! stat, and what sets attributes.

use crate::error::{Failure, Result, call};
use crate::handles::{self, directfs_image, file};
use crate::pointers::{self, optional, store};
use directfs::{FileTimes, Metadata};
use std::ffi::{c_char, c_int};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn status_of(metadata: &Metadata, device: u64) -> libc::stat {
    // SAFETY: integers, for which zero is a value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    found.st_dev = device;
    found.st_ino = metadata.ino();
    found.st_nlink = metadata.nlink();
    found.st_mode = metadata.mode();
    found.st_uid = metadata.uid();
    found.st_gid = metadata.gid();
    found.st_rdev = metadata.rdev();
    found.st_size = metadata.len() as i64;
    found.st_blksize = 4096;
    found.st_blocks = (metadata.allocated_bytes() / 512) as i64;
    (found.st_atime, found.st_atime_nsec) = timespec(metadata.accessed());
    (found.st_mtime, found.st_mtime_nsec) = timespec(metadata.modified());
    (found.st_ctime, found.st_ctime_nsec) = timespec(metadata.changed());
    found
}

/// Seconds and ns.
fn timespec(time: SystemTime) -> (i64, i64) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, i64::from(after.subsec_nanos())),
        Err(before) => {
            let before = before.duration();
            match i64::from(before.subsec_nanos()) {
                0 => (-(before.as_secs() as i64), 0),
                ns => (-(before.as_secs() as i64) - 1, 1_000_000_000 - ns),
            }
        }
    }
}

/// Times to set; one of them may stay.
enum Times {
    Now,
    At(FileTimes),
}

/// # Safety
/// NULL, or two times.
unsafe fn times_of(times: *const libc::timespec) -> Result<Times> {
    // SAFETY: the caller's promise.
    let Some([accessed, modified]) = (unsafe { optional(times.cast::<[libc::timespec; 2]>()) }) else {
        return Ok(Times::Now);
    };
    if accessed.tv_nsec == libc::UTIME_NOW && modified.tv_nsec == libc::UTIME_NOW {
        return Ok(Times::Now);
    }
    let mut times = FileTimes::new();
    if let Some(accessed) = time(accessed)? {
        times = times.set_accessed(accessed);
    }
    if let Some(modified) = time(modified)? {
        times = times.set_modified(modified);
    }
    Ok(Times::At(times))
}

fn time(time: &libc::timespec) -> Result<Option<SystemTime>> {
    const INVALID: Failure = Failure::Here(libc::EINVAL, "a time out of range");
    match time.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SystemTime::now())),
        ns @ 0..=999_999_999 => {
            let whole = Duration::from_secs(time.tv_sec.unsigned_abs());
            let base = if time.tv_sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
            let at = base.and_then(|base| base.checked_add(Duration::from_nanos(ns as u64)));
            Ok(Some(at.ok_or(INVALID)?))
        }
        _ => Err(INVALID),
    }
}

/// Attributes of a file, as stat(2). `st_dev` distinguishes images of this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_stat(
    image: *mut directfs_image,
    path: *const c_char,
    status: *mut libc::stat,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        store(status, status_of(&held.fs.metadata(pointers::path(path)?)?, held.device))?;
        Ok(0)
    })
}

/// Attributes of a file, or of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_lstat(
    image: *mut directfs_image,
    path: *const c_char,
    status: *mut libc::stat,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        store(status, status_of(&held.fs.symlink_metadata(pointers::path(path)?)?, held.device))?;
        Ok(0)
    })
}

/// Attributes of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = file(fd)?;
        store(status, status_of(&held.file.metadata()?, held.device))?;
        Ok(0)
    })
}

/// Sets permission bits (07777).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_chmod(image: *mut directfs_image, path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.set_permissions(pointers::path(path)?, mode)?;
        Ok(0)
    })
}

/// Sets permission bits of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_fchmod(fd: c_int, mode: libc::mode_t) -> c_int {
    call(-1, || {
        file(fd)?.file.set_permissions(mode)?;
        Ok(0)
    })
}

/// `None` for -1, which leaves an owner unchanged.
fn owner(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// Sets owner and group; -1 leaves one unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_chown(
    image: *mut directfs_image,
    path: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.set_owner(pointers::path(path)?, owner(uid), owner(gid))?;
        Ok(0)
    })
}

/// Sets owner and group of a file, or of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_lchown(
    image: *mut directfs_image,
    path: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        handles::image(image)?.fs.set_symlink_owner(pointers::path(path)?, owner(uid), owner(gid))?;
        Ok(0)
    })
}

/// Sets owner and group of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_fchown(fd: c_int, uid: libc::uid_t, gid: libc::gid_t) -> c_int {
    call(-1, || {
        file(fd)?.file.set_owner(owner(uid), owner(gid))?;
        Ok(0)
    })
}

/// Sets the times of last access and modification, as utimensat(2): NULL is now for both, `tv_nsec`
/// may be UTIME_NOW or UTIME_OMIT, and `flags` 0 or AT_SYMLINK_NOFOLLOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_utimens(
    image: *mut directfs_image,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        let path = pointers::path(path)?;
        match (times_of(times)?, flags) {
            (Times::Now, 0) => held.fs.touch(path)?,
            (Times::At(times), 0) => held.fs.set_times(path, times)?,
            (Times::Now, libc::AT_SYMLINK_NOFOLLOW) => {
                let now = SystemTime::now();
                held.fs.set_symlink_times(path, FileTimes::new().set_accessed(now).set_modified(now))?;
            }
            (Times::At(times), libc::AT_SYMLINK_NOFOLLOW) => {
                held.fs.set_symlink_times(path, times)?;
            }
            _ => return Err(Failure::Here(libc::EINVAL, "unknown flags: use 0 or AT_SYMLINK_NOFOLLOW")),
        }
        Ok(0)
    })
}

/// Sets the times of an open file, as directfs_utimens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_futimens(fd: c_int, times: *const libc::timespec) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = file(fd)?;
        match times_of(times)? {
            Times::Now => held.file.touch()?,
            Times::At(times) => held.file.set_times(times)?,
        }
        Ok(0)
    })
}
