//! The command line: each command turns arguments into library calls and prints the result.

pub mod arguments;
mod experiments;
pub mod interrupt;
mod mkfs;
mod mount;
pub mod terminal;

use anyhow::{Result, bail, ensure};
use arguments::{Arguments, Command};
use std::process::ExitCode;

/// Runs the command; returns the exit code of success.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let code = match (&arguments.command, &arguments.experiments) {
        (Some(Command::Mkfs(arguments)), _) => mkfs::run(arguments).map(|()| ExitCode::SUCCESS)?,
        (Some(Command::Mount(arguments)), _) => mount::run(arguments)?,
        (None, Some(arguments)) => experiments::run(arguments).map(|()| ExitCode::SUCCESS)?,
        (None, None) => bail!("no experiment is given; `lab list` shows all"),
    };
    ensure!(
        !pmem::any_truncated(),
        "the image was truncated while in use, or its disk is full; restore the image or free space, and try again"
    );
    Ok(code)
}
