//! Failures: errno, and a text for the thread.

use directfs::Error;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a function failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Library(Error),
    /// An errno, and why.
    Here(i32, &'static str),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    fn errno(&self) -> i32 {
        match self {
            Failure::Library(error) => error.errno(),
            Failure::Here(errno, _) => *errno,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Library(error) => error.fmt(f),
            Failure::Here(_, why) => f.write_str(why),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.downcast::<Error>() {
            Ok(error) => Failure::Library(error),
            Err(other) => Failure::Here(other.raw_os_error().unwrap_or(libc::EIO), "the call failed"),
        }
    }
}

/// The last failure of a thread. The text is made when it is asked for.
struct Last {
    failure: Option<Failure>,
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { failure: None, text: None }) };
}

/// Runs the work of a function. After a failure it returns `failed`.
pub(crate) fn call<T>(failed: T, work: impl FnOnce() -> Result<T>) -> T {
    // Whatever a panic left half done belongs to the call alone: the tables change as a whole.
    let done = catch_unwind(AssertUnwindSafe(work));
    let failure = match done {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Here(libc::EIO, "a fault in DirectFS: please report what it wrote to standard error"),
    };
    let errno = failure.errno();
    // A thread that ends may have lost its variables already.
    let _ = LAST.try_with(|last| last.borrow_mut().failure = Some(failure));
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    failed
}

/// What went wrong in the last failed call of this thread, and what to do about it: one line. Empty
/// if none failed. The text is valid until this thread's next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_message() -> *const c_char {
    let text = LAST.try_with(|last| {
        let last = &mut *last.borrow_mut();
        if let Some(failure) = last.failure.take() {
            last.text = CString::new(failure.to_string().replace('\0', "?")).ok();
        }
        last.text.as_ref().map_or(c"".as_ptr(), |text| text.as_ptr())
    });
    text.unwrap_or(c"".as_ptr())
}

/// The version of the library, for example "0.2.0".
#[unsafe(no_mangle)]
pub extern "C" fn directfs_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
