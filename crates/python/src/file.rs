//! Open files.

use crate::convert::{call, closed, duration, io_call, status, times};
use crate::files::which;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::fs::TryLockError;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Bound as End;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of one read, as in Linux.
const READ_BYTES_MAX: u64 = 0x7fff_f000;

/// An open file, until it is closed. A call in progress keeps it open.
#[pyclass(frozen, module = "directfs._native")]
pub struct File(Mutex<Option<Arc<directfs::File>>>);

impl File {
    pub fn new(file: directfs::File) -> File {
        File(Mutex::new(Some(Arc::new(file))))
    }

    fn held(&self) -> PyResult<Arc<directfs::File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }
}

/// A view of a file. What is made of its address must keep the object.
#[pyclass(frozen, module = "directfs._native")]
pub struct View(directfs::View);

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

/// Room for a read, which need not be longer than the rest of the file.
fn room(file: &directfs::File, count: u64, at: u64) -> directfs::Result<Vec<u8>> {
    const SMALL: u64 = 64 << 10;
    let count = count.min(READ_BYTES_MAX);
    let wanted = if count <= SMALL { count } else { count.min(file.metadata()?.len().saturating_sub(at)) };
    Ok(vec![0; wanted as usize])
}

/// Whether a lock was taken at once.
fn at_once(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Attempts for some seconds, each with the time that it may wait; none: it may not wait.
fn wait(
    py: Python<'_>,
    timeout: Option<f64>,
    attempt: impl Fn(Option<Duration>) -> io::Result<bool> + Sync,
) -> PyResult<bool> {
    const STEP: Duration = Duration::from_millis(50);
    let timeout = timeout.map(duration).transpose()?;
    let start = Instant::now();
    if io_call(py, || attempt(None))? {
        return Ok(true);
    }
    while timeout.is_none_or(|timeout| start.elapsed() < timeout) {
        if io_call(py, || attempt(Some(STEP)))? {
            return Ok(true);
        }
        py.check_signals()?;
    }
    Ok(false)
}

type Range = (End<u64>, End<u64>);

fn range(start: u64, end: Option<u64>) -> Range {
    (End::Included(start), end.map_or(End::Unbounded, End::Excluded))
}

#[pymethods]
impl File {
    fn close(&self) {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(file);
    }

    fn dup(&self, py: Python<'_>) -> PyResult<File> {
        let file = self.held()?;
        call(py, || file.try_clone()).map(File::new)
    }

    /// Reads at the position.
    fn read<'py>(&self, py: Python<'py>, count: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.held()?;
        let read = io_call(py, || {
            let at = if count > 64 << 10 { (&*file).stream_position()? } else { 0 };
            let mut bytes = room(&file, count, at)?;
            let length = (&*file).read(&mut bytes)?;
            bytes.truncate(length);
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &read))
    }

    fn pread<'py>(&self, py: Python<'py>, count: u64, at: i64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.held()?;
        let read = call(py, || {
            let at = at as u64; // Above the largest offset if it is negative: EINVAL.
            let mut bytes = room(&file, count, at)?;
            let length = file.read_at(&mut bytes, at)?;
            bytes.truncate(length);
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &read))
    }

    fn write(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<usize> {
        let file = self.held()?;
        io_call(py, || (&*file).write(bytes))
    }

    fn pwrite(&self, py: Python<'_>, bytes: &[u8], at: i64) -> PyResult<usize> {
        let file = self.held()?;
        call(py, || file.write_at(bytes, at as u64))
    }

    /// `whence`: 0 from the start, 1 from the position, 2 from the end, 3 data, 4 a hole.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let file = self.held()?;
        let extent = |found: Option<u64>| {
            let none = || io::Error::from_raw_os_error(libc::ENXIO);
            found.map(SeekFrom::Start).ok_or_else(none)
        };
        if !(libc::SEEK_SET..=libc::SEEK_HOLE).contains(&whence) {
            return Err(PyValueError::new_err("whence is 0 to 4"));
        }
        io_call(py, || {
            let to = match whence {
                libc::SEEK_SET => SeekFrom::Start(offset as u64),
                libc::SEEK_CUR => SeekFrom::Current(offset),
                libc::SEEK_END => SeekFrom::End(offset),
                libc::SEEK_DATA => extent(file.next_data(offset as u64)?)?,
                _ => extent(file.next_hole(offset as u64)?)?,
            };
            (&*file).seek(to)
        })
    }

    fn truncate(&self, py: Python<'_>, length: i64) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.set_len(length as u64))
    }

    fn allocate(&self, py: Python<'_>, mode: i32, at: i64, bytes: i64) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.allocate(mode, at as u64, bytes as u64))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.sync_all())
    }

    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let file = self.held()?;
        status(py, &call(py, || file.metadata())?)
    }

    fn is_directory(&self, py: Python<'_>) -> PyResult<bool> {
        let file = self.held()?;
        Ok(call(py, || file.metadata())?.is_dir())
    }

    /// Reads from the position to the end.
    fn read_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.held()?;
        let read = io_call(py, || {
            let start = (&*file).stream_position()?;
            let mut bytes = Vec::new();
            let count = file.read_to_end_at(start, &mut bytes)?;
            (&*file).seek(SeekFrom::Start(start + count as u64))?;
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &read))
    }

    fn view(&self, py: Python<'_>) -> PyResult<View> {
        let file = self.held()?;
        call(py, || file.view()).map(View)
    }

    fn chmod(&self, py: Python<'_>, mode: u32) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.set_permissions(mode))
    }

    fn chown(&self, py: Python<'_>, uid: Option<u32>, gid: Option<u32>) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.set_owner(uid, gid))
    }

    fn utime(&self, py: Python<'_>, at: Option<(i64, i64)>) -> PyResult<()> {
        let file = self.held()?;
        call(py, || match at {
            None => file.touch(),
            Some((accessed, modified)) => file.set_times(times(accessed, modified)),
        })
    }

    /// Whether the lock was taken within so many seconds; none: it waits until then. A signal whose
    /// handler raises an exception ends the wait.
    fn lock(&self, py: Python<'_>, exclusive: bool, timeout: Option<f64>) -> PyResult<bool> {
        let file = self.held()?;
        wait(py, timeout, |step| match (step, exclusive) {
            (None, true) => at_once(file.try_lock()),
            (None, false) => at_once(file.try_lock_shared()),
            (Some(step), _) => Ok(file.lock_timeout(exclusive, step)?),
        })
    }

    fn unlock(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.unlock())
    }

    fn lock_range(
        &self,
        py: Python<'_>,
        start: u64,
        end: Option<u64>,
        exclusive: bool,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let (file, range) = (self.held()?, range(start, end));
        wait(py, timeout, |step| match step {
            None => at_once(file.try_lock_range(range, exclusive)),
            Some(step) => Ok(file.lock_range_timeout(range, exclusive, step)?),
        })
    }

    fn unlock_range(&self, py: Python<'_>, start: u64, end: Option<u64>) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.unlock_range(range(start, end)))
    }

    fn getxattr<'py>(&self, py: Python<'py>, name: OsString) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let file = self.held()?;
        Ok(call(py, || file.xattr(name))?.map(|value| PyBytes::new(py, &value)))
    }

    fn setxattr(&self, py: Python<'_>, name: OsString, value: &[u8], flags: i32) -> PyResult<()> {
        let (file, which) = (self.held()?, which(flags)?);
        call(py, || file.set_xattr(name, value, which))
    }

    fn removexattr(&self, py: Python<'_>, name: OsString) -> PyResult<()> {
        let file = self.held()?;
        call(py, || file.remove_xattr(name))
    }

    fn listxattr(&self, py: Python<'_>) -> PyResult<Vec<OsString>> {
        let file = self.held()?;
        call(py, || file.xattrs())
    }
}
