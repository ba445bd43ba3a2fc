//! Functions by path.

use crate::convert::{call, status, times};
use crate::entry::{DirEntry, type_bits};
use crate::file::File;
use directfs::{Credentials, FileSystem, FileTimes, SetXattr};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The files of an image, as seen by a user from a root.
#[pyclass(frozen, module = "directfs._native")]
pub struct Files(pub FileSystem);

/// setxattr's flags: 0, XATTR_CREATE or XATTR_REPLACE.
pub fn which(flags: i32) -> PyResult<SetXattr> {
    match flags {
        0 => Ok(SetXattr::Any),
        libc::XATTR_CREATE => Ok(SetXattr::New),
        libc::XATTR_REPLACE => Ok(SetXattr::Existing),
        _ => Err(pyo3::exceptions::PyValueError::new_err("flags are 0, os.XATTR_CREATE or os.XATTR_REPLACE")),
    }
}

impl Files {
    fn found(&self, path: &Path, follow: bool) -> directfs::Result<directfs::Metadata> {
        if follow { self.0.metadata(path) } else { self.0.symlink_metadata(path) }
    }
}

#[pymethods]
impl Files {
    fn as_user(&self, uid: u32, gid: u32, groups: Vec<u32>, umask: u32) -> Files {
        Files(self.0.with_credentials(Credentials::new(uid, gid, &groups).umask(umask)))
    }

    fn subtree(&self, py: Python<'_>, path: PathBuf) -> PyResult<Files> {
        call(py, || self.0.root_at(path)).map(Files)
    }

    fn open(&self, py: Python<'_>, path: PathBuf, flags: i32, mode: u32) -> PyResult<File> {
        call(py, || self.0.open_flags(path, flags, mode)).map(File::new)
    }

    pub fn stat<'py>(&self, py: Python<'py>, path: PathBuf, follow: bool) -> PyResult<Bound<'py, PyAny>> {
        status(py, &call(py, || self.found(&path, follow))?)
    }

    /// The mode of a file; 0 for a path that leads to none, as `os.path.exists` judges.
    pub fn mode(&self, py: Python<'_>, path: PathBuf, follow: bool) -> PyResult<u32> {
        const NONE: [i32; 5] = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EACCES, libc::ENAMETOOLONG];
        call(py, || match self.found(&path, follow) {
            Err(error) if NONE.contains(&error.errno()) => Ok(0),
            found => Ok(found?.mode()),
        })
    }

    fn access(&self, py: Python<'_>, path: PathBuf, rights: u32) -> PyResult<()> {
        call(py, || self.0.access(path, rights))
    }

    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        call(py, || self.0.read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name().to_owned())).collect())
    }

    /// The entries of a directory, whose paths begin with `directory`.
    fn scandir<'py>(slf: &Bound<'py, Files>, directory: Bound<'py, PyString>) -> PyResult<Vec<DirEntry>> {
        let (py, path) = (slf.py(), directory.extract::<PathBuf>()?);
        let files = slf.get();
        let list: Vec<directfs::DirEntry> = call(py, || files.0.read_dir(path)?.collect())?;
        let entry = |entry: directfs::DirEntry| {
            let name = entry.file_name().into_pyobject(py)?.unbind();
            let (files, directory) = (slf.clone().unbind(), directory.clone().unbind());
            Ok(DirEntry { files, directory, name, inode: entry.ino(), kind: type_bits(entry.file_type()) })
        };
        list.into_iter().map(entry).collect()
    }

    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        call(py, || self.0.create_dir_with_mode(path, mode))
    }

    fn mkdirs(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        call(py, || self.0.create_dir_all(path))
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        call(py, || self.0.remove_dir(path))
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        call(py, || self.0.remove_file(path))
    }

    fn remove_tree(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        call(py, || self.0.remove_dir_all(path))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        call(py, || self.0.rename(from, to))
    }

    fn rename_new(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        call(py, || self.0.rename_new(from, to))
    }

    fn exchange(&self, py: Python<'_>, one: PathBuf, other: PathBuf) -> PyResult<()> {
        call(py, || self.0.exchange(one, other))
    }

    fn link(&self, py: Python<'_>, original: PathBuf, link: PathBuf) -> PyResult<()> {
        call(py, || self.0.hard_link(original, link))
    }

    fn symlink(&self, py: Python<'_>, target: PathBuf, link: PathBuf) -> PyResult<()> {
        call(py, || self.0.symlink(target, link))
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        call(py, || self.0.read_link(path)).map(PathBuf::into_os_string)
    }

    fn copy(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<u64> {
        call(py, || self.0.copy(from, to))
    }

    fn read<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &call(py, || self.0.read(path))?))
    }

    fn write(&self, py: Python<'_>, path: PathBuf, content: &[u8]) -> PyResult<()> {
        call(py, || self.0.write(path, content))
    }

    fn truncate(&self, py: Python<'_>, path: PathBuf, length: i64) -> PyResult<()> {
        call(py, || self.0.set_len(path, length as u64))
    }

    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        call(py, || self.0.set_permissions(path, mode))
    }

    fn chown(&self, py: Python<'_>, path: PathBuf, uid: Option<u32>, gid: Option<u32>, follow: bool) -> PyResult<()> {
        call(py, || if follow { self.0.set_owner(path, uid, gid) } else { self.0.set_symlink_owner(path, uid, gid) })
    }

    /// `at`: times of last access and modification, in ns; none for the present.
    fn utime(&self, py: Python<'_>, path: PathBuf, at: Option<(i64, i64)>, follow: bool) -> PyResult<()> {
        call(py, || match at {
            None if follow => self.0.touch(path),
            None => {
                let now = std::time::SystemTime::now();
                self.0.set_symlink_times(path, FileTimes::new().set_accessed(now).set_modified(now))
            }
            Some((accessed, modified)) if follow => self.0.set_times(path, times(accessed, modified)),
            Some((accessed, modified)) => self.0.set_symlink_times(path, times(accessed, modified)),
        })
    }

    fn getxattr<'py>(&self, py: Python<'py>, path: PathBuf, name: OsString) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(call(py, || self.0.xattr(path, name))?.map(|value| PyBytes::new(py, &value)))
    }

    fn setxattr(&self, py: Python<'_>, path: PathBuf, name: OsString, value: &[u8], flags: i32) -> PyResult<()> {
        let which = which(flags)?;
        call(py, || self.0.set_xattr_with(path, name, value, which))
    }

    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        call(py, || self.0.remove_xattr(path, name))
    }

    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        call(py, || self.0.xattrs(path))
    }

    /// Total and free bytes, files, and free files.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let space = call(py, || self.0.space())?;
        Ok((space.total_bytes, space.free_bytes, space.files, space.files_free))
    }
}
