//! The tests of calls on one image in one process.
//!
//! One program is built in a fraction of the time of many.

mod cached_reference;
mod common;
mod files;
mod names;
mod path_cache;
mod permissions;
mod walk;
