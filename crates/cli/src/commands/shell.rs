//! `directfs completions` and `directfs man`, generated from the declaration of the arguments.

use crate::arguments::{Cli, Completions, Man};
use crate::output;
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::Path;

/// Prints completions for a shell.
pub fn completions(arguments: &Completions) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "directfs", &mut text);
    output::write(&text);
    Ok(())
}

/// Prints the manual page, or writes one for each command.
pub fn man(arguments: &Man) -> Result<()> {
    let command = Cli::command();
    let Some(directory) = &arguments.to else {
        output::write(&page(&command)?);
        return Ok(());
    };
    let write = |name: &str, page: Vec<u8>| {
        let path = Path::new(directory).join(format!("{name}.8"));
        std::fs::write(&path, page)
            .with_context(|| format!("cannot write {}; use an existing directory that you may write", path.display()))
    };
    write("directfs", page(&command)?)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("directfs-{}", sub.get_name());
        write(&name, page(&sub.clone().name(name.clone()))?)?;
    }
    Ok(())
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).section("8").render(&mut page)?;
    Ok(page)
}
