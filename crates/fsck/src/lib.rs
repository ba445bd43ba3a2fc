//! Checks and repairs of DirectFS images, with every invariant of the format as a named
//! [`Finding`], and a human-readable [`dump`] of structures.
//!
//! [`check`] reads a region and changes nothing. It trusts no byte of the image: it terminates on
//! any content, without panic, in time and memory proportional to the image's metadata.
//!
//! A crash leaves traces that the next attach recovers: incomplete names, files without names, a
//! rename to be completed. On an image that was not cleanly detached these are notes; on a clean
//! image they are errors. After recovery and a clean detach a sound image has neither.

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
mod targets;
mod tree;
mod usage;

pub use check::check;
pub use finding::{Finding, FindingKind, Repair, Severity};
pub use repair::{Repaired, repair};
pub use report::{
    Counts, EXIT_CLEAN, EXIT_CORRECTED, EXIT_ERRORS_LEFT, EXIT_OPERATIONAL, EXIT_USAGE, Options, Phase, Progress,
    Report,
};
