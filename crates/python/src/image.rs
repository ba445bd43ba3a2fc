//! Images.

use crate::convert::{call, duration, image_call};
use crate::files::Files;
use directfs::{Closed, Durability};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An image that this process has open.
#[pyclass(frozen, module = "directfs._native")]
pub struct Image(Mutex<Option<directfs::Image>>);

impl Image {
    fn new(image: directfs::Image) -> Image {
        Image(Mutex::new(Some(image)))
    }

    fn held(&self) -> MutexGuard<'_, Option<directfs::Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&directfs::Image) -> directfs::Result<T>) -> Option<directfs::Result<T>> {
        self.held().as_ref().map(work)
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&directfs::Image) -> directfs::Result<T> + Send,
    ) -> PyResult<T> {
        let found = call(py, || self.with(work).transpose())?;
        found.ok_or_else(is_closed)
    }
}

fn is_closed() -> PyErr {
    PyValueError::new_err("the image is closed")
}

#[pymethods]
impl Image {
    #[staticmethod]
    #[pyo3(signature = (path, *, read_only, exclusive, timeout, commit_interval, no_commit, memory, cached_files,
                        shared_memory_directory))]
    #[allow(clippy::too_many_arguments, reason = "each is an option with a name")]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        read_only: bool,
        exclusive: bool,
        timeout: Option<f64>,
        commit_interval: Option<f64>,
        no_commit: bool,
        memory: Option<u64>,
        cached_files: u64,
        shared_memory_directory: Option<PathBuf>,
    ) -> PyResult<Image> {
        let mut options = directfs::Image::options().read_only(read_only).exclusive(exclusive);
        options = options.cached_files(cached_files);
        if let Some(seconds) = timeout {
            options = options.timeout(duration(seconds)?);
        }
        if let Some(seconds) = commit_interval {
            options = options.commit_interval(duration(seconds)?);
        }
        if no_commit {
            options = options.no_commit();
        }
        if let Some(bytes) = memory {
            options = options.memory(bytes);
        }
        if let Some(directory) = shared_memory_directory {
            options = options.shared_memory_directory(directory);
        }
        image_call(py, &path, || options.open(&path)).map(Image::new)
    }

    #[staticmethod]
    #[pyo3(signature = (path, *, size, label, files, overwrite, sparse, mode, root_mode, root_owner))]
    #[allow(clippy::too_many_arguments, reason = "each is an option with a name")]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        size: u64,
        label: String,
        files: u64,
        overwrite: bool,
        sparse: bool,
        mode: u32,
        root_mode: u32,
        root_owner: Option<(u32, u32)>,
    ) -> PyResult<Image> {
        let mut create = directfs::Image::create(&path).size(size).label(label).files(files);
        create = create.overwrite(overwrite).sparse(sparse).mode(mode).root_mode(root_mode);
        if let Some((uid, gid)) = root_owner {
            create = create.root_owner(uid, gid);
        }
        image_call(py, &path, || create.create()).map(Image::new)
    }

    #[staticmethod]
    fn in_memory(py: Python<'_>, size: u64) -> PyResult<Image> {
        call(py, || directfs::Image::in_memory(size)).map(Image::new)
    }

    fn files(&self, py: Python<'_>) -> PyResult<Files> {
        self.call(py, |image| Ok(image.file_system())).map(Files)
    }

    fn durability(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.call(py, |image| {
            Ok(match image.durability() {
                Durability::PowerFailure => "power-failure",
                Durability::ProcessDeath => "process-death",
                Durability::Committed => "committed",
                Durability::CleanClose => "clean-close",
                _ => "nothing",
            })
        })
    }

    fn was_recovered(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |image| Ok(image.was_recovered()))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, directfs::Image::sync)
    }

    fn snapshot(&self, py: Python<'_>, file: PathBuf) -> PyResult<()> {
        image_call(py, &file, || self.with(|image| image.snapshot(&file)).transpose())?.ok_or_else(is_closed)
    }

    /// `None` if it was closed before. As `mmap`, it is not closed while its memory is in use.
    fn close(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        if self.held().as_ref().is_some_and(|image| image.views() > 0) {
            return Err(PyBufferError::new_err("views of files of the image are in use: release them first"));
        }
        let closed = call(py, || {
            let image = self.held().take();
            image.map(directfs::Image::close).transpose()
        })?;
        Ok(closed.map(|closed| match closed {
            Closed::Clean => "clean",
            Closed::OthersRemain => "others-remain",
            Closed::ReadOnly => "read-only",
        }))
    }
}
