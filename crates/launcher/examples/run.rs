//! Runs a program with the library in it: `run [--counts FILE] PROGRAM ARGUMENTS`. For tests and
//! measurements.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;

fn main() {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let mut counts = None;
    if words.first().is_some_and(|word| word == "--counts") && words.len() > 2 {
        counts = Some(PathBuf::from(words.remove(1)));
        words.remove(0);
    }
    let Some(program) = words.first().cloned() else {
        eprintln!("usage: run [--counts FILE] PROGRAM ARGUMENTS");
        std::process::exit(2);
    };
    let error = match launcher::launch::command(&program, counts.as_deref()) {
        Ok(mut command) => command.args(&words[1..]).exec().to_string(),
        Err(error) => error.to_string(),
    };
    eprintln!("{error}");
    std::process::exit(126);
}
