//! `lab`: runs the papers' experiments, and creates and mounts images of their systems.

mod cli;

use clap::Parser;
use cli::arguments::Arguments;
use cli::interrupt::Interrupted;
use std::process::ExitCode;

/// Interrupted: the exit status that shells use for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    // If an image in use is truncated, its users must get an error instead of dying.
    pmem::survive_truncations();
    match cli::run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("interrupted; finished experiments stay in the report, and --resume continues it");
            ExitCode::from(EXIT_INTERRUPTED)
        }
        Err(error) => {
            console::terminal::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
