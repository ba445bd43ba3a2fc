//! What the processes of one image share: open files, locks and mappings ([`process`]), watches
//! ([`watch`]), and how threads and processes wait, and see whether others live ([`host`]).
//!
//! The tables lie in the DRAM region, beside the engine's. The crate knows inode numbers, but
//! neither paths nor permissions: those are of crate `posix`, on top of it.
//!
//! Without the feature `std` the crate needs no heap, so that it can run inside a signal handler or
//! an intercepted `malloc`.
#![cfg_attr(not(feature = "std"), no_std)]

pub mod child_numbers;
mod errno;
pub mod host;
mod huge_pages;
mod open_file;
pub mod process;
pub mod watch;

pub use errno::{Errno, Result};
pub use open_file::{CREATED, INTERNAL_FLAGS, MarkGroupFlags, OpenFile};
