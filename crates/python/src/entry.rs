//! Entries of directories.

use crate::files::Files;
use directfs::FileType;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::path::PathBuf;

/// An entry of a directory, as of `os.scandir`.
#[pyclass(frozen, module = "directfs")]
pub struct DirEntry {
    pub files: Py<Files>,
    pub directory: Py<PyString>,
    #[pyo3(get)]
    pub name: Py<PyString>,
    pub inode: u64,
    /// The type as bits of a mode.
    pub kind: u32,
}

pub fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::File => libc::S_IFREG,
        FileType::Directory => libc::S_IFDIR,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Fifo => libc::S_IFIFO,
        FileType::Socket => libc::S_IFSOCK,
        FileType::CharacterDevice => libc::S_IFCHR,
        FileType::BlockDevice => libc::S_IFBLK,
        _ => 0,
    }
}

impl DirEntry {
    fn place(&self, py: Python<'_>) -> PyResult<PathBuf> {
        Ok(self.directory.extract::<PathBuf>(py)?.join(self.name.extract::<PathBuf>(py)?))
    }

    /// Whether it has a type; a symbolic link that leads to no file has none.
    fn has_type(&self, py: Python<'_>, kind: u32, follow: bool) -> PyResult<bool> {
        if !(follow && self.is_symlink()) {
            return Ok(self.kind == kind);
        }
        let found = self.files.get().mode(py, self.place(py)?, true)?;
        Ok(found & libc::S_IFMT == kind)
    }
}

#[pymethods]
impl DirEntry {
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<std::ffi::OsString> {
        Ok(self.place(py)?.into_os_string())
    }

    fn inode(&self) -> u64 {
        self.inode
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn stat<'py>(&self, py: Python<'py>, follow_symlinks: bool) -> PyResult<Bound<'py, PyAny>> {
        self.files.get().stat(py, self.place(py)?, follow_symlinks)
    }

    fn is_symlink(&self) -> bool {
        self.kind == libc::S_IFLNK
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.has_type(py, libc::S_IFDIR, follow_symlinks)
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.has_type(py, libc::S_IFREG, follow_symlinks)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<DirEntry {}>", self.name.bind(py).repr()?))
    }
}
