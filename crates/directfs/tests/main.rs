//! The tests of the library in one process.
//!
//! One program is built in a fraction of the time of many.

mod against_std;
mod errors;
mod examples;
mod files;
mod support;
