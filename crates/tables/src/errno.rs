//! Errors of this crate and of those above: an errno, as programs see it.

use core::fmt;

/// Result with an errno.
pub type Result<T> = core::result::Result<T, Errno>;

/// A Linux errno.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident $text:literal),* $(,)?) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno(libc::$name);)*
        }

        fn describe(errno: i32) -> Option<(&'static str, &'static str)> {
            match errno {
                $(libc::$name => Some((stringify!($name), $text)),)*
                _ => None,
            }
        }
    };
}

errnos! {
    EPERM "Operation not permitted.",
    ENOENT "No such file or directory.",
    EIO "Input/output error.",
    ENXIO "No such device or address.",
    E2BIG "Value too long.",
    EBADF "Bad file descriptor.",
    EAGAIN "Try again.",
    ENOMEM "Out of memory.",
    EACCES "Permission denied.",
    EBUSY "Resource busy.",
    EEXIST "File exists.",
    EXDEV "Cross-device link.",
    ENODEV "No such device.",
    ENOTDIR "Not a directory.",
    EISDIR "Is a directory.",
    EINVAL "Invalid argument.",
    ENOTTY "Inappropriate ioctl for device.",
    ETXTBSY "Text file busy.",
    EFBIG "File too large.",
    ENOSPC "No space left on device.",
    ESPIPE "Illegal seek.",
    EROFS "Read-only file system.",
    EMLINK "Too many links.",
    ERANGE "Result too large.",
    ENAMETOOLONG "File name too long.",
    ENOTEMPTY "Directory not empty.",
    ELOOP "Too many levels of symbolic links.",
    ENODATA "No data available.",
    EOVERFLOW "Value too large for its type.",
    EOPNOTSUPP "Operation not supported.",
    ESRCH "No such process.",
    ENFILE "Too many open files in system.",
    EDEADLK "Resource deadlock avoided.",
    ENOLCK "No locks available.",
    ETOOMANYREFS "Too many references.",
    EUCLEAN "Structure needs cleaning.",
    ENOSYS "Function not implemented.",
}

impl From<engine::Error> for Errno {
    fn from(error: engine::Error) -> Errno {
        Errno(error.errno())
    }
}

impl Errno {
    /// As the error of a callback from the engine.
    pub fn refusal(self) -> engine::Error {
        engine::Error::Refused(self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match describe(self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match describe(self.0) {
            Some((_, text)) => f.write_str(text.trim_end_matches('.')),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl core::error::Error for Errno {}
