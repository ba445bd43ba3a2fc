//! Trees into and out of images: directories of the host ([`host`]), and tar archives ([`import`],
//! [`export`]).
//!
//! Access is by whole image: a user that may write an image's file may change everything in it, so
//! owners, modes and devices are kept, also by users other than root. Symbolic links are never
//! followed, neither of the host nor of the image.
//!
//! The tar format is written and read here. Of the crates for it none writes sparse files, or reads
//! those of the pax format.

mod acl;
mod error;
mod export;
pub mod host;
mod import;
mod tar;
mod tree;

pub use error::TransferError;
pub use export::{content_bytes, export};
pub use import::import;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, TransferError>;

/// What was transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Files of all kinds, each name of a file with several names included.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Files that the target cannot hold: sockets, in archives.
    pub skipped: u64,
    /// Files of which not all content could be read.
    pub incomplete: u64,
}

/// Receives progress; `false` stops the transfer.
pub type Watch<'w> = &'w mut dyn FnMut(Counts) -> bool;
