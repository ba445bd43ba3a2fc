//! The tests of the engine on images in memory, from the outside.
//!
//! One program is built in a fraction of the time of many.

mod bodies;
mod golden;
mod names;
mod support;
mod torn;
