//! Values of Python: errors, times, attributes.

use directfs::{Error, Metadata, Result};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn os_error(error: &Error) -> PyErr {
    PyOSError::new_err((error.errno(), error.to_string()))
}

/// Runs a call without the interpreter's lock.
pub fn call<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| os_error(&error))
}

/// `call` for calls of `std::io`.
pub fn io_call<T: Send>(py: Python<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(io_error)
}

fn io_error(error: io::Error) -> PyErr {
    match error.downcast::<Error>() {
        Ok(error) => os_error(&error),
        Err(other) => PyOSError::new_err((other.raw_os_error().unwrap_or(libc::EIO), other.to_string())),
    }
}

/// A time of Python; ValueError if it is none.
pub fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

pub fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// A time from ns since 1970.
pub fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

fn ns(time: SystemTime) -> i64 {
    let ns = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    time.duration_since(UNIX_EPOCH).map_or_else(|before| -ns(before.duration()), ns)
}

/// mode, ino, nlink, uid, gid, size, atime, mtime, ctime (ns), rdev, bytes of blocks.
pub type Status = (u32, u64, u64, u32, u32, u64, i64, i64, i64, u64, u64);

pub fn status(found: &Metadata) -> Status {
    let times = [found.accessed(), found.modified(), found.changed()].map(ns);
    let [accessed, modified, changed] = times;
    let (owner, group) = (found.uid(), found.gid());
    let (rdev, blocks) = (found.rdev(), found.allocated_bytes());
    (found.mode(), found.ino(), found.nlink(), owner, group, found.len(), accessed, modified, changed, rdev, blocks)
}
