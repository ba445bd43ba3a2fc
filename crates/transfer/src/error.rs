//! Errors: what failed, where, and what helps.

use posix::Errno;
use std::io;
use std::path::PathBuf;

/// Why a transfer failed. Unless stated otherwise it left nothing behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The image.
    #[error("cannot {action} {path} in the image: {source}{}", remedy(source))]
    Image {
        /// What was tried.
        action: &'static str,
        /// Path from the root of the image.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file of the host.
    #[error("cannot {action} {}: {source}", path.display())]
    Host {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The archive cannot be read.
    #[error("cannot read the archive: {0}")]
    Input(io::Error),
    /// The archive cannot be written.
    #[error("cannot write the archive: {0}")]
    Output(io::Error),
    /// The archive is damaged, or of a kind that is not supported.
    #[error("the archive is not usable at byte {at}: {reason}")]
    Archive {
        /// Where.
        at: u64,
        /// Why, and what helps.
        reason: String,
    },
    /// An entry of the archive is refused.
    #[error("the archive's entry {entry:?} is refused: {reason}")]
    Entry {
        /// Its path.
        entry: String,
        /// Why, and what helps.
        reason: String,
    },
    /// The watch function stopped the transfer.
    #[error("interrupted")]
    Stopped,
}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOSPC) => {
            "; make a larger image, or one for more files (`directfs mkfs --size`, `--inodes`; `directfs resize`)"
        }
        Some(libc::EAGAIN) => "; too many threads use the image: try again later",
        _ => "",
    }
}

impl TransferError {
    pub(crate) fn image(action: &'static str, path: &[u8], error: impl Into<Errno>) -> TransferError {
        let path = String::from_utf8_lossy(path).into_owned();
        TransferError::Image { action, path, source: io::Error::from_raw_os_error(error.into().0) }
    }

    pub(crate) fn entry(path: &[u8], reason: impl Into<String>) -> TransferError {
        TransferError::Entry { entry: String::from_utf8_lossy(path).into_owned(), reason: reason.into() }
    }
}
