//! Calls of the running kernel below a directory, so that workloads also run as ordinary programs
//! do: on tmpfs, on a disk's file system, and under `directfs run`.

use crate::calls::{Calls, Handle};
use engine::format::FileKind;
use engine::{Attributes, FileFlags};
use posix::{Errno, Result};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory as the root of paths.
pub struct HostCalls {
    root: PathBuf,
    files: RefCell<Vec<Option<File>>>,
}

impl HostCalls {
    /// Paths begin at this directory.
    pub fn new(root: &Path) -> HostCalls {
        HostCalls { root: root.to_owned(), files: RefCell::default() }
    }

    fn path(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
    }

    fn with<T>(&self, file: Handle, call: impl FnOnce(&mut File) -> io::Result<T>) -> Result<T> {
        let mut files = self.files.borrow_mut();
        call(files.get_mut(file as usize).and_then(Option::as_mut).ok_or(Errno::EBADF)?).map_err(errno)
    }
}

fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// What the workloads need of the attributes.
fn attributes(found: &fs::Metadata) -> Attributes {
    Attributes {
        number: found.ino(),
        kind: if found.is_dir() { FileKind::Directory } else { FileKind::Regular },
        mode: found.mode(),
        links: found.nlink() as u32,
        uid: found.uid(),
        gid: found.gid(),
        device: 0,
        generation: 0,
        size_bytes: found.len(),
        blocks: found.blocks().div_ceil(8),
        accessed_ns: found.atime() * 1_000_000_000 + found.atime_nsec(),
        modified_ns: found.mtime() * 1_000_000_000 + found.mtime_nsec(),
        changed_ns: found.ctime() * 1_000_000_000 + found.ctime_nsec(),
        flags: FileFlags::NONE,
    }
}

impl Calls for HostCalls {
    fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<Handle> {
        let (flags, mode) = (rustix::fs::OFlags::from_bits_retain(flags as u32), rustix::fs::Mode::from_raw_mode(mode));
        let file = rustix::fs::open(self.path(path), flags | rustix::fs::OFlags::CLOEXEC, mode);
        let file = File::from(file.map_err(|error| Errno(error.raw_os_error()))?);
        let mut files = self.files.borrow_mut();
        let free = files.iter().position(Option::is_none).unwrap_or(files.len());
        if free == files.len() {
            files.push(None);
        }
        files[free] = Some(file);
        Ok(free as Handle)
    }

    fn close(&self, file: Handle) -> Result<()> {
        let mut files = self.files.borrow_mut();
        files.get_mut(file as usize).and_then(Option::take).map(drop).ok_or(Errno::EBADF)
    }

    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.with(file, |file| file.read_at(into, offset))
    }

    fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.with(file, |file| file.write_all_at(bytes, offset))?;
        Ok(bytes.len())
    }

    fn append(&self, file: Handle, bytes: &[u8]) -> Result<usize> {
        self.with(file, |file| file.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn truncate(&self, file: Handle, length: u64) -> Result<()> {
        self.with(file, |file| file.set_len(length))
    }

    fn sync_file(&self, file: Handle) -> Result<()> {
        self.with(file, |file| file.sync_all())
    }

    fn sync(&self) -> Result<()> {
        File::open(&self.root).and_then(|root| root.sync_all()).map_err(errno)
    }

    fn stat(&self, path: &[u8]) -> Result<Attributes> {
        fs::metadata(self.path(path)).map(|found| attributes(&found)).map_err(errno)
    }

    fn stat_link(&self, path: &[u8]) -> Result<Attributes> {
        fs::symlink_metadata(self.path(path)).map(|found| attributes(&found)).map_err(errno)
    }

    fn access(&self, path: &[u8], mode: u32) -> Result<()> {
        let mode = rustix::fs::Access::from_bits_retain(mode);
        rustix::fs::access(self.path(path), mode).map_err(|error| Errno(error.raw_os_error()))
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        fs::DirBuilder::new().mode(mode).create(self.path(path)).map_err(errno)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        fs::remove_file(self.path(path)).map_err(errno)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        fs::remove_dir(self.path(path)).map_err(errno)
    }

    fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        fs::rename(self.path(from), self.path(to)).map_err(errno)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        fs::hard_link(self.path(from), self.path(to)).map_err(errno)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        std::os::unix::fs::symlink(OsStr::from_bytes(target), self.path(path)).map_err(errno)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        fs::read_link(self.path(path)).map(|target| target.into_os_string().into_encoded_bytes()).map_err(errno)
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        let mode = rustix::fs::Mode::from_raw_mode(mode);
        rustix::fs::chmod(self.path(path), mode).map_err(|error| Errno(error.raw_os_error()))
    }

    fn read_directory(&self, path: &[u8], visit: &mut dyn FnMut(&[u8], u64)) -> Result<()> {
        for entry in fs::read_dir(self.path(path)).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            visit(entry.file_name().as_bytes(), std::os::unix::fs::DirEntryExt::ino(&entry));
        }
        Ok(())
    }

    fn path_of(&self, directory: &[u8]) -> Result<Vec<u8>> {
        fs::canonicalize(self.path(directory)).map(|path| path.into_os_string().into_encoded_bytes()).map_err(errno)
    }

    /// The kernel's caches are not this program's.
    fn drop_caches(&self) -> Result<()> {
        Err(Errno::ENOSYS)
    }
}
