//! The tests of the systems, of their mount and of the program.
//!
//! One program is built in a fraction of the time of many.

mod ablation;
mod command;
mod common;
mod crash;
mod model;
mod mount;
mod reads;
mod threads;
