//! Output of all commands. The macros of this module replace those of the standard library, which
//! panic if the output cannot be written.
//!
//! The first failure is kept, and nothing is printed after it. [`finish`] reports it when the
//! command has done its work. What cannot be written to standard error is dropped.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Prints a line to standard output; without styles where they are not supported.
#[macro_export]
macro_rules! println {
    () => { $crate::output::out(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints to standard output.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::output::out(format_args!($($text)*)) };
}

/// Prints a line to standard error.
#[macro_export]
macro_rules! eprintln {
    () => { $crate::output::err(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::err(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints to standard error.
#[macro_export]
macro_rules! eprint {
    ($($text:tt)*) => { $crate::output::err(format_args!($($text)*)) };
}

static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Standard output could not be written.
#[derive(Debug)]
pub struct OutputFailed {
    /// The program that read it has ended, as in `| head`.
    pub is_reader_gone: bool,
}

impl std::fmt::Display for OutputFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the output above is not complete: standard output cannot be written")?;
        FAILURE.get().map_or(Ok(()), |error| write!(f, " ({error})"))?;
        f.write_str("; what the command had to do apart from it is done")
    }
}

impl std::error::Error for OutputFailed {}

/// Writes text to standard output.
pub fn out(text: Arguments<'_>) {
    keep(|| anstream::stdout().lock().write_fmt(text));
}

/// Writes bytes to standard output.
pub fn write(bytes: &[u8]) {
    keep(|| io::stdout().lock().write_all(bytes));
}

/// Writes text to standard error.
pub fn err(text: Arguments<'_>) {
    let _ = anstream::stderr().lock().write_fmt(text);
}

/// Passes on what is buffered.
pub fn flush() {
    keep(|| io::stdout().lock().flush());
}

fn keep(write: impl FnOnce() -> io::Result<()>) {
    if FAILURE.get().is_some() {
        return;
    }
    if let Err(error) = write() {
        // Set at most once; the first failure counts.
        let _ = FAILURE.set(error);
    }
}

/// Fails if something could not be written, also of what was buffered.
pub fn finish() -> Result<(), OutputFailed> {
    flush();
    match FAILURE.get() {
        None => Ok(()),
        Some(error) => Err(OutputFailed { is_reader_gone: error.kind() == io::ErrorKind::BrokenPipe }),
    }
}
