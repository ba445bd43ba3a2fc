//! The commands `directfs bench` and `directfs demo`: measurements of DirectFS beside other file
//! systems, by the program itself under `directfs run`, through a mount, and in plain directories.
//!
//! Nothing of the product uses this crate but the command line, which passes the arguments on, and
//! can be built without it (feature `bench`). The measured program is the running one, with a
//! hidden command for its worker.

#[macro_use]
extern crate console;

pub mod arguments;
mod bench;
mod demo;
mod mounted;
mod worker;

use arguments::Command;
use console::{interrupt, mounts, terminal, units};

/// Performs a command.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Bench(arguments) => bench::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::BenchWorker(arguments) => bench::work(arguments),
        Command::DemoWorker(arguments) => demo::work(arguments),
    }
}
