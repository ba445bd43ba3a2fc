//! Values of Python: errors, times, attributes.

use directfs::{Error, FileTimes, Metadata, Result};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The exception of a failed call, as `os` raises it: errno, the C library's text, and the paths.
/// A remedy is a note (PEP 678), which a traceback shows from Python 3.11 on.
fn os_error(py: Python<'_>, error: &Error) -> PyErr {
    let text = strerror(error.errno());
    let path = |path: Option<&Path>| path.map(|path| path.as_os_str().to_owned());
    let (first, second) = (path(error.path()), path(error.second_path()));
    let note = error.path().map_or_else(|| in_python(&error.to_string()), |_| error.remedy().to_owned());
    // Made at once: what is made later needs an interpreter that is not ending.
    let raised = py.get_type::<PyOSError>().call1((error.errno(), text, first, None::<i32>, second));
    raised.map_or_else(|failed| failed, |raised| with_note(py, PyErr::from_value(raised), &note))
}

/// The names of options that a message for users of the commands has.
fn in_python(message: &str) -> String {
    let options = ["--force", "--no-commit", "--memory", "--sparse"];
    let names = ["overwrite=True", "no_commit=True", "memory", "sparse=True"];
    options.iter().zip(names).fold(message.to_owned(), |text, (option, name)| text.replace(option, name))
}

fn with_note(py: Python<'_>, raised: PyErr, note: &str) -> PyErr {
    if !note.is_empty() {
        let value = raised.value(py);
        // Without `add_note` (before 3.11) the attribute has the name that libraries print.
        let noted = value.call_method1("add_note", (note,)).map(drop);
        let _ = noted.or_else(|_| value.setattr("__notes__", vec![note]));
    }
    raised
}

/// The text of the C library.
fn strerror(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text).to_owned()
}

/// Opens or makes an image at a path of the machine, which its exception has as `filename`.
pub fn image_call<T: Send>(py: Python<'_>, path: &Path, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    call(py, work).inspect_err(|raised| {
        // An exception without the name still has errno and note.
        let _ = raised.value(py).setattr("filename", path.as_os_str());
    })
}

/// Runs a call without the interpreter's lock.
pub fn call<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| os_error(py, &error))
}

/// Runs a call of `std::io` without the interpreter's lock.
pub fn io_call<T: Send>(py: Python<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| match error.downcast::<Error>() {
        Ok(error) => os_error(py, &error),
        Err(other) => {
            let errno = other.raw_os_error().unwrap_or(libc::EIO);
            let raised = py.get_type::<PyOSError>().call1((errno, strerror(errno)));
            raised.map_or_else(|failed| failed, PyErr::from_value)
        }
    })
}

/// A time of Python; ValueError if it is none.
pub fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

pub fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// Times to set from ns since 1970.
pub fn times(accessed: i64, modified: i64) -> FileTimes {
    FileTimes::new().set_accessed(time(accessed)).set_modified(time(modified))
}

/// A time from ns since 1970.
fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

fn ns(time: SystemTime) -> i64 {
    let ns = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    time.duration_since(UNIX_EPOCH).map_or_else(|before| -ns(before.duration()), ns)
}

/// An `os.stat_result` from its fields in order: ten, times in seconds and ns, the rest.
pub fn status<'py>(py: Python<'py>, found: &Metadata) -> PyResult<Bound<'py, PyAny>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    const SECOND_NS: i64 = 1_000_000_000;
    const BLOCK_BYTES: u64 = 4096;
    let times = [found.accessed(), found.modified(), found.changed()].map(ns);
    let [a, m, c] = times.map(|ns| ns.div_euclid(SECOND_NS));
    let [accessed, modified, changed] = times.map(|ns| ns as f64 / SECOND_NS as f64);
    let [a_ns, m_ns, c_ns] = times;
    let first = (found.mode(), found.ino(), 0, found.nlink(), found.uid(), found.gid(), found.len(), a, m, c);
    let rest =
        (accessed, modified, changed, a_ns, m_ns, c_ns, BLOCK_BYTES, found.allocated_bytes() / 512, found.rdev());
    let fields = first.into_pyobject(py)?.as_sequence().concat(rest.into_pyobject(py)?.as_sequence())?;
    TYPE.import(py, "os", "stat_result")?.call1((fields,))
}
