//! The tests of mounts whose server is this process.
//!
//! One program is built in a fraction of the time of many.

mod common;
mod direct;
mod handles;
mod listings;
mod locks;
mod mount;
mod one_file;
mod threads;
