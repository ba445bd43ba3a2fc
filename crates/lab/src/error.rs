//! Errors of the lab's file systems.

use pmem::BadOffset;
use posix::Errno;

/// The results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// What a program sees as an errno.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// The image contradicts itself. A program sees EUCLEAN.
    #[error("the image is damaged: {what} at {offset:#x}; restore it from a copy, or make a new one")]
    Damaged {
        /// What is wrong.
        what: &'static str,
        /// Bytes from the start of the image.
        offset: u64,
    },
    /// The image is of another system, or of none.
    #[error("this image holds {found}, not {wanted}: choose the system that made it")]
    OtherSystem {
        /// The system that was to be mounted.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// The image was made by another version of this program.
    #[error(
        "the image has format version {found}, this program knows version {known}: mount it with the program that made it"
    )]
    OtherVersion {
        /// What the image says.
        found: u64,
        /// What is understood.
        known: u64,
    },
    /// The image is shorter than the file system in it, or than any could be.
    #[error("the image has {length} bytes, {needed} are needed: make it longer")]
    TooSmall {
        /// What there is.
        length: u64,
        /// What is needed.
        needed: u64,
    },
}

impl Error {
    /// A contradiction in the image.
    #[cold]
    pub fn damaged(what: &'static str, offset: u64) -> Error {
        Error::Damaged { what, offset }
    }

    /// As programs see it.
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
        Error::damaged("a link leads out of the image", bad.offset)
    }
}
