//! Errors of the lab's file systems.

use pmem::BadOffset;
use posix::Errno;

/// The results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An errno for the calling program.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// The image is inconsistent. A program gets EUCLEAN.
    #[error("the image is damaged: {what} at {offset:#x}; restore it from a copy, or make a new one")]
    Damaged {
        /// The inconsistency.
        what: &'static str,
        /// Bytes from the start of the image.
        offset: u64,
    },
    /// The image belongs to another system, or to none.
    #[error("this image holds {found}, not {wanted}: choose the system that made it")]
    OtherSystem {
        /// The system to be mounted.
        wanted: &'static str,
        /// The system found.
        found: &'static str,
    },
    /// Another version of this program made the image.
    #[error(
        "the image has format version {found}, this program supports version {known}: mount it with the program that made it"
    )]
    OtherVersion {
        /// Version in the image.
        found: u64,
        /// Version that this program supports.
        known: u64,
    },
    /// The image is shorter than its file system, or than the minimum.
    #[error("the image has {length} bytes but needs {needed}: extend it")]
    TooSmall {
        /// Length of the image.
        length: u64,
        /// Length needed.
        needed: u64,
    },
}

impl Error {
    /// An inconsistency in the image.
    #[cold]
    pub fn damaged(what: &'static str, offset: u64) -> Error {
        Error::Damaged { what, offset }
    }

    /// The errno that a program gets.
    pub fn errno(self) -> Errno {
        match self {
            Error::Errno(errno) => errno,
            Error::Damaged { .. } => Errno::EUCLEAN,
            Error::OtherSystem { .. } | Error::OtherVersion { .. } | Error::TooSmall { .. } => Errno::EINVAL,
        }
    }
}

impl From<BadOffset> for Error {
    fn from(bad: BadOffset) -> Error {
        Error::damaged("a link points outside the image", bad.offset)
    }
}
