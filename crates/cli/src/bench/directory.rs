//! A directory of any file system as a subject, by system calls without libc's buffers: what a program pays there at least.

use super::subject::Subject;
use anyhow::{Context, Result};
use std::ffi::CStr;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

/// The directory that is made inside the one that was named.
const INNER: &str = ".directfs-bench";

/// A scratch directory, removed with all that is in it when dropped.
pub struct SystemDirectory {
    path: PathBuf,
    file: File,
}

impl SystemDirectory {
    /// Makes a scratch directory inside `parent`, which must be an empty, writable directory.
    pub fn make(parent: &Path) -> Result<SystemDirectory> {
        let shown = parent.display();
        let mut names = std::fs::read_dir(parent)
            .with_context(|| format!("cannot read {shown}; name an existing directory that you may read and write"))?;
        if let Some(name) = names.next() {
            let name = name.with_context(|| format!("cannot read {shown}"))?.file_name();
            anyhow::bail!(
                "{shown} is not empty (it holds {name:?}); name an empty directory, for example a new one made with mkdir"
            );
        }
        let path = parent.join(INNER);
        std::fs::create_dir(&path).with_context(|| {
            format!(
                "cannot write to {shown}; name a directory that you may write, on a file system that is not read-only"
            )
        })?;
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(SystemDirectory { path, file })
    }

    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for SystemDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("warning: cannot remove {} ({error}); remove it by hand", self.path.display());
        }
    }
}

/// The result of a system call whose success is zero or more.
fn checked(result: libc::c_int, call: &str, name: &CStr) -> Result<libc::c_int> {
    if result < 0 {
        return Err(failed(call, name));
    }
    Ok(result)
}

#[cold]
fn failed(call: &str, name: &CStr) -> anyhow::Error {
    let error = io::Error::last_os_error();
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "; make room or measure fewer files (--files)",
        Some(libc::EMLINK) => "; this file system limits directories or links: measure fewer files (--files)",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("{call} of {name:?} failed{remedy}"))
}

impl Subject for SystemDirectory {
    fn create(&mut self, name: &CStr) -> Result<()> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
        // SAFETY: the name ends with a zero.
        let fd = checked(unsafe { libc::openat(self.fd(), name.as_ptr(), flags, 0o644) }, "creation", name)?;
        // SAFETY: just opened, and nobody else has it.
        checked(unsafe { libc::close(fd) }, "close", name).map(drop)
    }

    fn stat(&mut self, name: &CStr) -> Result<()> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the name ends with a zero, and there is room for the answer.
        let result = unsafe { libc::fstatat(self.fd(), name.as_ptr(), status.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
        black_box(&status);
        checked(result, "stat", name).map(drop)
    }

    fn unlink(&mut self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends with a zero.
        checked(unsafe { libc::unlinkat(self.fd(), name.as_ptr(), 0) }, "unlink", name).map(drop)
    }

    fn mkdir(&mut self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends with a zero.
        checked(unsafe { libc::mkdirat(self.fd(), name.as_ptr(), 0o755) }, "mkdir", name).map(drop)
    }

    fn rmdir(&mut self, name: &CStr) -> Result<()> {
        // SAFETY: the name ends with a zero.
        checked(unsafe { libc::unlinkat(self.fd(), name.as_ptr(), libc::AT_REMOVEDIR) }, "rmdir", name).map(drop)
    }

    fn link(&mut self, name: &CStr, other: &CStr) -> Result<()> {
        // SAFETY: both names end with a zero.
        let result = unsafe { libc::linkat(self.fd(), name.as_ptr(), self.fd(), other.as_ptr(), 0) };
        checked(result, "link", name).map(drop)
    }

    fn rename(&mut self, name: &CStr, other: &CStr) -> Result<()> {
        // SAFETY: both names end with a zero.
        let result = unsafe { libc::renameat(self.fd(), name.as_ptr(), self.fd(), other.as_ptr()) };
        checked(result, "rename", name).map(drop)
    }

    fn read_directory(&mut self) -> Result<u64> {
        let mut buffer = [0u64; 4096];
        let mut count = 0;
        // SAFETY: seeking changes no memory.
        checked(unsafe { libc::lseek(self.fd(), 0, libc::SEEK_SET) } as libc::c_int, "lseek", c".")?;
        loop {
            let room = size_of_val(&buffer);
            // SAFETY: the kernel writes at most `room` bytes to the buffer.
            let length = unsafe { libc::syscall(libc::SYS_getdents64, self.fd(), buffer.as_mut_ptr(), room) };
            match length {
                0 => return Ok(count),
                length if length < 0 => return Err(failed("readdir", c".")),
                length => count += names_in(&buffer, length as usize),
            }
        }
    }
}

/// Counts the names in what getdents64 gave, `.` and `..` left out.
fn names_in(buffer: &[u64], length: usize) -> u64 {
    let byte = |at: usize| buffer[at / 8].to_ne_bytes()[at % 8];
    let (mut at, mut count) = (0, 0);
    while at < length {
        // Two bytes of record length follow 16 of inode and offset; the name begins at 19.
        let record = u16::from_ne_bytes([byte(at + 16), byte(at + 17)]) as usize;
        let dots = byte(at + 19) == b'.' && (byte(at + 20) == 0 || (byte(at + 20) == b'.' && byte(at + 21) == 0));
        count += !dots as u64;
        at += record.max(24);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::calls::{Workload, measure};
    use super::*;

    #[test]
    fn a_round_leaves_nothing_behind() {
        let parent = tempfile::tempdir().unwrap();
        let mut directory = SystemDirectory::make(parent.path()).unwrap();
        measure(&mut directory, &Workload::new(100), 1).unwrap();
        assert_eq!(directory.read_directory().unwrap(), 0);
        drop(directory);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_in_use_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("precious"), "data").unwrap();
        let error = SystemDirectory::make(parent.path()).err().unwrap().to_string();
        assert!(error.contains("not empty") && error.contains("precious"), "{error}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
