//! System calls as programs make them: through libc, whose calls `directfs run` serves, without
//! other layers.
//!
//! Names are relative to the workload's directory, which is the current one. Every error names the
//! failed call, its name and the cause.

use super::calls::Directory;
use crate::bench::task::Outcome;
use anyhow::{Result, ensure};
use std::ffi::CStr;
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;

/// Flags for creating a file.
pub const NEW: libc::c_int = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;

/// An open file. It must be closed by [`File::close`], whose result counts; dropping it closes it
/// after an error.
pub struct File(libc::c_int);

impl File {
    /// Opens a file.
    #[inline]
    pub fn open(name: &CStr, flags: libc::c_int) -> Result<File> {
        // SAFETY: the name ends in a zero.
        let fd = unsafe { libc::open(name.as_ptr(), flags | libc::O_CLOEXEC, 0o644 as libc::mode_t) };
        if fd < 0 {
            return Err(failed(if flags & libc::O_CREAT != 0 { "creation" } else { "open" }, name));
        }
        Ok(File(fd))
    }

    /// Writes all data, in one call if the file system takes it whole.
    #[inline]
    pub fn write(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            // SAFETY: the buffer and its length.
            let length = unsafe { libc::write(self.0, data.as_ptr().cast(), data.len()) };
            match length {
                length if length <= 0 => return Err(failed("write", c"a file")),
                length => data = &data[length as usize..],
            }
        }
        Ok(())
    }

    /// Reads once; returns the number of bytes, zero at the end.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the buffer and its length.
        let length = unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) };
        if length < 0 { Err(failed("read", c"a file")) } else { Ok(length as usize) }
    }

    /// Reads to the end in pieces of the buffer's size; returns the number of bytes.
    #[inline]
    pub fn read_to_end(&self, buffer: &mut [u8]) -> Result<u64> {
        let mut total = 0;
        loop {
            match self.read(buffer)? {
                0 => return Ok(total),
                length => total += length as u64,
            }
        }
    }

    /// Writes a piece at an offset.
    #[inline]
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        // SAFETY: the buffer and its length.
        let length = unsafe { libc::pwrite(self.0, data.as_ptr().cast(), data.len(), offset as libc::off_t) };
        whole(length, data.len(), "pwrite")
    }

    /// Reads a piece at an offset.
    #[inline]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        // SAFETY: the buffer and its length.
        let length = unsafe { libc::pread(self.0, buffer.as_mut_ptr().cast(), buffer.len(), offset as libc::off_t) };
        whole(length, buffer.len(), "pread")
    }

    /// Makes written content persistent.
    #[inline]
    pub fn sync(&self) -> Result<()> {
        // SAFETY: an open descriptor.
        checked(unsafe { libc::fsync(self.0) }, "fsync", c"a file")
    }

    /// Makes written content persistent, and of the attributes only what its reading needs.
    #[inline]
    pub fn sync_data(&self) -> Result<()> {
        // SAFETY: an open descriptor.
        checked(unsafe { libc::fdatasync(self.0) }, "fdatasync", c"a file")
    }

    /// Asks the kernel to drop the cached pages of the file that are on disk.
    pub fn forget_pages(&self) {
        // SAFETY: advice on an open descriptor, which may be ignored.
        unsafe { libc::posix_fadvise(self.0, 0, 0, libc::POSIX_FADV_DONTNEED) };
    }

    /// Closes the file.
    #[inline]
    pub fn close(self) -> Result<()> {
        let fd = self.0;
        std::mem::forget(self);
        // SAFETY: the descriptor has no other owner.
        checked(unsafe { libc::close(fd) }, "close", c"a file")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor has no other owner; the failed call before has already been
        // reported.
        unsafe { libc::close(self.0) };
    }
}

fn whole(length: isize, wanted: usize, call: &str) -> Result<()> {
    if length < 0 {
        return Err(failed(call, c"a file"));
    }
    ensure!(length as usize == wanted, "{call} moved {length} of {wanted} bytes");
    Ok(())
}

/// An error if the result of a system call is one.
#[inline]
fn checked(result: libc::c_int, call: &str, name: &CStr) -> Result<()> {
    if result < 0 {
        return Err(failed(call, name));
    }
    Ok(())
}

#[cold]
fn failed(call: &str, name: &CStr) -> anyhow::Error {
    let error = io::Error::last_os_error();
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "; make room or measure fewer files (--sizes, --quick)",
        Some(libc::EMLINK) => "; this file system limits directories or links: measure fewer files (--sizes)",
        Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    let (call, name) = (call.to_owned(), name.to_string_lossy().into_owned());
    anyhow::Error::new(error).context(format!("{call} of {name} failed{remedy}"))
}

/// stat, with any result.
#[inline]
fn stat(name: &CStr) -> libc::c_int {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the name ends in a zero, and there is room for the result.
    let result = unsafe { libc::stat(name.as_ptr(), status.as_mut_ptr()) };
    black_box(&status);
    result
}

/// A directory, by system calls on names in it.
pub struct SystemDirectory {
    /// Its own name, for reading it.
    name: &'static CStr,
}

impl SystemDirectory {
    /// The current one.
    pub const CURRENT: SystemDirectory = SystemDirectory { name: c"." };

    /// The one with this name. It is used to the end of the process, so its name may be leaked.
    pub fn named(name: &str) -> Result<SystemDirectory> {
        let name = std::ffi::CString::new(name)?;
        Ok(SystemDirectory { name: Box::leak(name.into_boxed_c_str()) })
    }
}

impl Directory for SystemDirectory {
    #[inline]
    fn create(&self, name: &CStr) -> Result<()> {
        File::open(name, NEW)?.close()
    }

    #[inline]
    fn stat(&self, name: &CStr) -> Result<()> {
        checked(stat(name), "stat", name)
    }

    #[inline]
    fn stat_missing(&self, name: &CStr) -> Result<()> {
        ensure!(stat(name) < 0, "stat found the missing name {name:?}: this is a defect of the file system");
        let error = io::Error::last_os_error();
        ensure!(error.raw_os_error() == Some(libc::ENOENT), "stat of the missing name {name:?} failed: {error}");
        Ok(())
    }

    #[inline]
    fn access(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends in a zero.
        checked(unsafe { libc::access(name.as_ptr(), libc::R_OK) }, "access", name)
    }

    #[inline]
    fn open(&self, name: &CStr) -> Result<()> {
        File::open(name, libc::O_RDONLY)?.close()
    }

    #[inline]
    fn unlink(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends in a zero.
        checked(unsafe { libc::unlink(name.as_ptr()) }, "unlink", name)
    }

    #[inline]
    fn mkdir(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends in a zero.
        checked(unsafe { libc::mkdir(name.as_ptr(), 0o755) }, "mkdir", name)
    }

    #[inline]
    fn rmdir(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends in a zero.
        checked(unsafe { libc::rmdir(name.as_ptr()) }, "rmdir", name)
    }

    #[inline]
    fn link(&self, name: &CStr, other: &CStr) -> Result<()> {
        // SAFETY: both names end in a zero.
        checked(unsafe { libc::link(name.as_ptr(), other.as_ptr()) }, "link", name)
    }

    #[inline]
    fn rename(&self, name: &CStr, other: &CStr) -> Result<()> {
        // SAFETY: both names end in a zero.
        checked(unsafe { libc::rename(name.as_ptr(), other.as_ptr()) }, "rename", name)
    }

    fn read(&self) -> Result<u64> {
        // SAFETY: the name ends in a zero.
        let stream = unsafe { libc::opendir(self.name.as_ptr()) };
        if stream.is_null() {
            return Err(failed("opendir", self.name));
        }
        let mut count = 0;
        let result = loop {
            // SAFETY: only this thread's errno, which distinguishes an error from the end.
            unsafe { *libc::__errno_location() = 0 };
            // SAFETY: the stream was opened above and has no other user; an entry is valid until
            // the next call.
            let entry = unsafe { libc::readdir64(stream) };
            if entry.is_null() {
                break match io::Error::last_os_error().raw_os_error() {
                    Some(0) | None => Ok(count),
                    _ => Err(failed("readdir", self.name)),
                };
            }
            // SAFETY: as above; the name ends in a zero.
            let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) };
            count += u64::from(name != c"." && name != c"..");
        };
        // SAFETY: opened above.
        unsafe { libc::closedir(stream) };
        result
    }
}

/// The result of a workload by system calls.
pub type Outcomes = Result<Vec<Outcome>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_call_and_the_file() {
        let error = SystemDirectory::CURRENT.stat(c"no/such/name").unwrap_err();
        assert!(format!("{error:#}").starts_with("stat of no/such/name failed: No such file"), "{error:#}");
        let error = SystemDirectory::CURRENT.stat_missing(c"/").unwrap_err();
        assert!(error.to_string().contains("defect"), "{error:#}");
    }
}
