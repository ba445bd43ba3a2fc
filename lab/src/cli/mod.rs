//! The command line: each command turns arguments into library calls and prints the result.

mod arguments;
mod experiments;
mod interrupt;
mod mkfs;
mod mount;
mod workload;

use anyhow::{Result, bail};
use arguments::{Arguments, Command};
use clap::Parser;
use interrupt::Interrupted;
use std::process::ExitCode;

/// Interrupted: the exit status that shells use for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs the command that the program's arguments give.
pub fn main() -> ExitCode {
    // If an image in use is truncated, its users must get an error instead of dying.
    pmem::survive_truncations();
    match run(&Arguments::parse()) {
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

/// Returns the exit code of success.
fn run(arguments: &Arguments) -> Result<ExitCode> {
    let code = match (&arguments.command, &arguments.experiments) {
        (Some(Command::Mkfs(arguments)), _) => mkfs::run(arguments).map(|()| ExitCode::SUCCESS)?,
        (Some(Command::Workload(arguments)), _) => workload::run(arguments).map(|()| ExitCode::SUCCESS)?,
        (Some(Command::Mount(arguments)), _) => mount::run(arguments)?,
        (None, Some(arguments)) => experiments::run(arguments).map(|()| ExitCode::SUCCESS)?,
        (None, None) => bail!("no experiment is given; `lab list` shows all"),
    };
    match pmem::any_loss() {
        None => Ok(code),
        Some(loss) => bail!("the image {}; {}", loss.description(), loss.remedy()),
    }
}
