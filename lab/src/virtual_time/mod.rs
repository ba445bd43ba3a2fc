//! Virtual time: the duration of recorded calls on a named machine, the same in every run and on
//! every machine that runs this program.
//!
//! ```text
//!   record      (multicore) runs a call as a copy that writes down each instruction and registers
//!   operations  what each instruction reads, writes and depends on; code of shared libraries at
//!               fixed prices
//!   clock       the reference processor: instructions at one rate, lines, flushes and fences at
//!               the latencies of a memory
//!   memories    the named memories
//!   kernel      what a call costs in a kernel beside that
//!   allocator   heap objects in lines of their own while calls are recorded
//!   held        a clock that stands still, and fixed random numbers
//! ```
//!
//! A number depends on nothing but the program:
//!
//! - The clock of the machine is held, and random seeds are constants ([`held`]).
//! - No address counts, only which accesses share a line. Mappings begin at pages, and each object
//!   of the heap has its own lines ([`allocator`]). The stack is in the nearest cache.
//! - Code of shared libraries differs between machines, so each of its calls has a price.
//! - Times are integers.
//!
//! Decision: docs/decisions/lab.md, "Virtual time decides".

pub mod allocator;
pub mod clock;
pub mod held;
pub mod kernel;
pub mod memories;
pub mod operations;
mod recorder;

pub use recorder::{Before, Recorded, Recorder};
