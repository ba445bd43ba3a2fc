//! The tests of the checker and of its repairs, in one program.
//!
//! One program is built in a fraction of the time of many.

mod crash;
mod dump;
mod hostile;
mod injected;
mod refused;
mod repair;
mod rot;
mod sound;
mod support;
