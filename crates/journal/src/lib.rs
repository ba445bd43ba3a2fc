//! Committed states of a region on a disk.
//!
//! ```text
//!  file:   | image: the last checkpoint's state | header A | header B | log: chunk, chunk, ... |
//!  memory: | region: the latest state, with marks of what changed since the last commit        |
//! ```
//!
//! A *commit* appends the lines that changed, at a cut of the region ([`pmem::Tracking`]), as one
//! or more chunks, and flushes the file once. A *checkpoint* writes the lines of all commits to
//! their places in the image, flushes, and trims the log by a new header. *Recovery* after a power
//! failure is a checkpoint of what the log holds. It is physical redo, which may run any number of
//! times.
//!
//! The crate works on a [`Disk`]: positioned reads and writes, and a flush. It needs neither std
//! nor a heap, since every process of an image commits, also inside of programs.
//!
//! Invariants
//! - A chunk counts only if its checksum verifies and it carries the checksum of the chunk before
//!   it. A commit counts only if its last chunk does. So nothing of an earlier attempt or lap, and
//!   nothing torn, is ever applied.
//! - A commit is reported as durable only after a flush that follows its last write.
//! - The log is overwritten only after a flushed header says that its commits are not needed. Until
//!   then the image holds them, flushed, as well.
//! - After a failure nothing that a flush covered is written again in another place; the next
//!   commit repeats the failed one.
#![cfg_attr(not(any(test, feature = "explorer")), no_std)]

mod chunk;
mod commit;
mod disk;
#[cfg(any(test, feature = "explorer"))]
pub mod explorer;
#[cfg(test)]
mod golden_tests;
mod header;
#[cfg(test)]
mod injected;
mod log;
#[cfg(test)]
mod tests;

pub use chunk::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
pub use commit::Committed;
pub use disk::{Disk, DiskError};
pub use header::{FORMAT_VERSION, HeaderError};
pub use log::{Journal, JournalError, Recovered, State, StateStore};

/// Whether a test injected this defect.
#[cfg(not(test))]
macro_rules! is_injected {
    ($defect:ident) => {
        false
    };
}
#[cfg(test)]
macro_rules! is_injected {
    ($defect:ident) => {
        crate::injected::is_injected(crate::injected::Defect::$defect)
    };
}
pub(crate) use is_injected;
