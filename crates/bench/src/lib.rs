//! The commands `directfs bench` and `directfs demo`: measurements of DirectFS beside other file
//! systems, by the program itself under `directfs run`, through a mount, and in plain directories.
//!
//! Nothing of the product uses this crate but the command line, which passes the arguments on. The
//! measured program is the running one, with a hidden command for its worker.

#[macro_use]
extern crate console;

pub mod arguments;
mod bench;
mod demo;
mod mounted;
mod worker;

pub use bench::{run as bench, work as bench_worker};
pub use demo::{run as demo, work as demo_worker};

use console::{interrupt, mounts, terminal, units};
