//! Checks of DirectFS images: every invariant of the format as a named [`Finding`], and a [`dump`] of structures in
//! words.
//!
//! [`check`] reads a region and changes nothing. It trusts nothing either: it ends on any bytes, without panic, in time
//! and memory proportional to the image's metadata.
//!
//! A crash leaves traces that the next attach puts in order: names half-made, files without names, a rename to be
//! completed. On an image that was not left cleanly these are notes; on a clean one, errors. After recovery and a clean
//! detach a sound image has neither.

mod bodies;
mod check;
mod directories;
pub mod dump;
mod finding;
mod image;
mod inodes;
mod journal;
mod repair;
mod report;
mod snapshot;
mod superblock;
mod tree;
mod usage;

pub use check::check;
pub use finding::{Finding, FindingKind, Repair, Severity};
pub use repair::{Repaired, repair};
pub use report::{
    Counts, EXIT_CLEAN, EXIT_CORRECTED, EXIT_ERRORS_LEFT, EXIT_OPERATIONAL, EXIT_USAGE, Options, Phase, Progress,
    Report,
};
