//! The native part of the Python package `directfs`: one call for each function of the library.
//! What users see is in `directfs/*.py`.
//!
//! Invariants
//! - Every call that may wait or enters the image runs without the interpreter's lock.
//! - Errors are `OSError` with the errno, and so `FileNotFoundError` and its kin.
//!
//! Decision: docs/decisions/interfaces.md, "Packages, and a wheel for all Pythons".

mod convert;
mod entry;
mod file;
mod files;
mod image;

use pyo3::prelude::*;

/// The module `directfs._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<image::Image>()?;
    module.add_class::<files::Files>()?;
    module.add_class::<file::File>()?;
    module.add_class::<entry::DirEntry>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
