//! The command line: each command turns arguments into library calls and prints the result.

pub mod arguments;
mod experiments;
pub mod interrupt;
mod mkfs;
mod mount;
mod workload;

use anyhow::{Result, bail};
use arguments::{Arguments, Command};
use std::process::ExitCode;

/// Runs the command; returns the exit code of success.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
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
