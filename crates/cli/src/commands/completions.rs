//! `directfs completions`, made from the declaration of the arguments.
//!
//! The generated scripts know neither programs behind `--` nor the options of `-o`. What is added
//! for bash and fish completes these; zsh learns of programs by a hint in the declaration.

use crate::arguments::{Cli, Completions};
use crate::output;
use clap::CommandFactory;
use clap_complete::Shell;

/// Added for bash.
const BASH: &str = include_str!("completions.bash");

/// Added for fish.
const FISH: &str = include_str!("completions.fish");

/// Prints completions for a shell.
pub fn run(arguments: &Completions) {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "directfs", &mut script);
    output::write(&script);
    match arguments.shell {
        Shell::Bash => output::write(BASH.replace("MOUNT_OPTIONS", &mount_options()).as_bytes()),
        Shell::Fish => output::write(FISH.as_bytes()),
        _ => {}
    }
}

/// The options of `-o`; those with a value end with `=`.
fn mount_options() -> String {
    let names = fuse::OPTION_DESCRIPTIONS.iter().flat_map(|(names, _)| names.split(", "));
    let names = names.filter(|name| !name.ends_with('*'));
    let words = names.map(|name| name.split_inclusive('=').next().unwrap_or(name));
    words.collect::<Vec<_>>().join(" ")
}
