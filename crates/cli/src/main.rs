//! `directfs`: images, mounts, checks and measurements on the command line.

#[macro_use]
extern crate console;

mod arguments;
mod commands;
mod file_size_limit;
mod orders;
mod out_of_memory;
mod processes;
mod ps;
mod remedies;
mod run;
mod statistics;

use arguments::{Cli, Command, MountHelper};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use console::{asking, interrupt, mounts, output, terminal, units};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Interrupted: the exit status that shells use for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;
/// The reader of the output has ended: the exit status that shells use for SIGPIPE.
const EXIT_READER_GONE: u8 = 141;
/// Another writer has taken a prefix of a store over. A service is not to start again.
const EXIT_TAKEN_OVER: u8 = 3;
/// The stack that all commands do with. With less a command would end by an overflow.
const STACK_BYTES: u64 = 384 << 10;
/// mount(8): the mount failed.
const EXIT_MOUNT_FAILED: u8 = 32;

fn main() -> ExitCode {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    match limit.filter(|bytes| *bytes < STACK_BYTES) {
        None => run_command(),
        Some(bytes) => {
            terminal::print_error(&anyhow::anyhow!(
                "the limit of the stack is {}, and directfs needs {}: raise it (`ulimit -s`)",
                units::size(bytes),
                units::size(STACK_BYTES)
            ));
            let runs = std::env::args_os().nth(1).is_some_and(|word| word == "run" || word == "profile");
            ExitCode::from(if runs { run::EXIT_FAILED } else { 1 })
        }
    }
}

/// Not inlined: the check before it must not need the stack of what it calls.
#[inline(never)]
fn run_command() -> ExitCode {
    // If an image in use is truncated, its users must get an error instead of dying.
    pmem::survive_truncations();
    let words: Vec<OsString> = std::env::args_os().collect();
    if is_mount_helper(&words) {
        out_of_memory::end_with(EXIT_MOUNT_FAILED);
        let arguments = MountHelper::parse_from(&words);
        return finish(commands::mount::help_mount(&arguments), false, EXIT_MOUNT_FAILED);
    }
    let command = parse(with_implied_mount(words)).command;
    out_of_memory::end_with(if matches!(command, Command::Fsck(_)) { commands::fsck::EXIT_OPERATIONAL } else { 1 });
    if !matches!(command, Command::Run(_) | Command::Profile(_) | Command::RunInside(_) | Command::RunStatic(_)) {
        file_size_limit::report_as_error();
    }
    if !command.cleans_up() {
        terminal::end_with_reader();
    }
    let json = command.is_json();
    // fsck(8) has its own exit codes.
    if let Command::Fsck(arguments) = &command {
        let checked = commands::fsck::run(arguments).and_then(check_whole);
        return match checked.and_then(|code| Ok(output::finish().map(|()| code)?)) {
            Ok(code) => ExitCode::from(code),
            Err(error) => finish(Err(error), json, commands::fsck::EXIT_OPERATIONAL),
        };
    }
    if let Some(failure) = run_program(&command) {
        terminal::print_error(&remedies::explain(failure.error));
        return ExitCode::from(failure.exit_code);
    }
    finish(run(&command).and_then(check_whole), json, 1)
}

/// Results count only if the image was whole until the end.
fn check_whole<T>(result: T) -> anyhow::Result<T> {
    match pmem::any_loss() {
        None => Ok(result),
        Some(loss) => {
            anyhow::bail!("the image {}: the output above is not reliable; {}", loss.description(), loss.remedy())
        }
    }
}

/// The commands that become another program; they return only on failure.
fn run_program(command: &Command) -> Option<run::Failure> {
    match command {
        Command::Run(arguments) => Some(match run::run(arguments, None) {
            Err(failure) => failure,
            Ok(never) => match never {},
        }),
        Command::Profile(arguments) => Some(match run::profile(arguments) {
            Err(failure) => failure,
            Ok(never) => match never {},
        }),
        Command::RunInside(arguments) => Some(run::run_inside(&arguments.command)),
        Command::RunStatic(arguments) => Some(run::run_static(&arguments.command, &arguments.entries)),
        _ => None,
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Mkfs(arguments) => commands::mkfs::run(arguments),
        Command::Mount(arguments) => commands::mount::run(arguments),
        Command::Umount(arguments) => commands::umount::run(arguments),
        Command::Info(arguments) => commands::info::run(arguments),
        Command::Fsck(arguments) => commands::fsck::run(arguments).map(drop),
        Command::Ps(arguments) => ps::run(arguments),
        Command::CommitService(arguments) => run::commit_service(arguments),
        Command::StoreService => run::store_service(),
        Command::Stats(arguments) => statistics::stats(arguments),
        Command::Top(arguments) => statistics::top(arguments),
        Command::Trim(arguments) => commands::trim::run(arguments),
        Command::Resize(arguments) => commands::resize::run(arguments),
        Command::Tune(arguments) => commands::resize::tune(arguments),
        Command::Export(arguments) => commands::transfer::export(arguments),
        Command::Import(arguments) => commands::transfer::import(arguments),
        Command::Snapshot(arguments) => commands::snapshot::run(arguments, None),
        Command::Clone(arguments) => commands::snapshot::clone(arguments),
        Command::Push(arguments) => commands::stores::push(arguments),
        Command::Replicate(arguments) => commands::replicate::run(arguments),
        Command::Pull(arguments) => commands::stores::pull(arguments),
        Command::Store(arguments) => commands::stores::store(arguments),
        Command::Dump(arguments) => commands::dump::run(arguments),
        #[cfg(feature = "bench")]
        Command::Measure(command) => bench::run(command),
        Command::Completions(arguments) => {
            commands::completions::run(arguments);
            Ok(())
        }
        Command::Man(arguments) => commands::manual::run(arguments),
        Command::Run(_) | Command::Profile(_) | Command::RunInside(_) | Command::RunStatic(_) => {
            unreachable!("these were run before")
        }
    }
}

/// Parses the command line. A usage error of fsck exits with fsck's own code, one of run with a
/// code that programs do not use.
fn parse(words: Vec<OsString>) -> Cli {
    let own_code = match words.get(1).and_then(|word| word.to_str()) {
        Some("fsck") => Some(commands::fsck::EXIT_USAGE),
        Some("run" | "profile") => Some(run::EXIT_FAILED),
        _ => None,
    };
    let json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let without = if json { words.get(1).and_then(|word| why_without_json(word.to_str()?)) } else { None };
    Cli::try_parse_from(words).unwrap_or_else(|error| {
        let error = match without {
            Some(why) if error.kind() == ErrorKind::UnknownArgument => Cli::command().error(error.kind(), why),
            _ => error,
        };
        let failure = own_code.map_or(error.exit_code(), i32::from);
        if json && error.use_stderr() {
            let text = error.render().to_string();
            // Its first paragraph; usage follows.
            let lines = text.trim_start_matches("error: ").lines().map(str::trim);
            let text = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
            print!("{}", remedies::as_json(&anyhow::anyhow!(text), failure as u8));
            output::flush();
        }
        match error.print() {
            Err(unwritten) if unwritten.kind() == io::ErrorKind::BrokenPipe => {
                std::process::exit(i32::from(EXIT_READER_GONE))
            }
            Err(unwritten) if !error.use_stderr() => {
                eprintln!("error: the text cannot be written: {unwritten}");
                std::process::exit(own_code.map_or(1, i32::from))
            }
            _ => std::process::exit(if error.use_stderr() { failure } else { 0 }),
        }
    })
}

/// Why a command has no `--json`: its standard output is something else.
fn why_without_json(command: &str) -> Option<&'static str> {
    match command {
        "run" => Some(
            "`run` has no --json: its standard output is that of the program. Its exit code says how the program ended \
             (125: `run` failed); `directfs profile --json --output FILE` reports the calls",
        ),
        "export" => Some(
            "`export` has no --json: its standard output is the archive. Exit code 0 means that the archive is whole",
        ),
        "dump" => Some(
            "`dump` has no --json: its text follows the bytes of the image format (docs/format.md). For figures use \
             `info --json`, for open files `ps --json`",
        ),
        _ => None,
    }
}

/// Reports a failure; with `json` also as the result on standard output.
fn finish(result: anyhow::Result<()>, json: bool, failure: u8) -> ExitCode {
    let Err(error) = result.and_then(|()| Ok(output::finish()?)) else { return ExitCode::SUCCESS };
    let unwritten = error.downcast_ref::<output::OutputFailed>();
    if unwritten.is_some_and(|failed| failed.is_reader_gone) {
        return ExitCode::from(EXIT_READER_GONE);
    }
    let (json, error) = (json && unwritten.is_none(), remedies::explain(error));
    let code = exit_code(&error, failure);
    if json {
        print!("{}", remedies::as_json(&error, code));
        output::flush();
    }
    if code == EXIT_INTERRUPTED && !error.is::<interrupt::Interrupted>() {
        eprintln!("{error}");
    } else if code == EXIT_INTERRUPTED {
        eprintln!("interrupted; all files of this run are removed");
    } else if !error.is::<console::server::ServerFailed>() {
        // The server of a mount has printed the cause.
        terminal::print_error(&error);
    }
    ExitCode::from(code)
}

/// The exit status for an error. `failure`: that of the command.
fn exit_code(error: &anyhow::Error, failure: u8) -> u8 {
    if error.is::<interrupt::Interrupted>() || error.is::<interrupt::Stopped>() {
        return EXIT_INTERRUPTED;
    }
    if let Some(failed) = error.downcast_ref::<console::server::ServerFailed>() {
        return if failure == 1 { failed.exit_code() } else { failure };
    }
    let is_taken_over = matches!(error.downcast_ref(), Some(store::StoreError::Fenced { .. }));
    if is_taken_over { EXIT_TAKEN_OVER } else { failure }
}

/// Whether mount(8) started this program by its helper's name.
fn is_mount_helper(words: &[OsString]) -> bool {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    name.is_some_and(|name| name == "mount.directfs" || name == "mount.fuse.directfs")
}

/// mount.fuse(8) calls `directfs IMAGE DIR -o OPTIONS` without a command, which means mount.
fn with_implied_mount(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_command =
        |word: &OsString| word == "help" || Cli::command().get_subcommands().any(|command| word == command.get_name());
    let implied = match &words[..] {
        [_, image, directory, ..] => {
            // A word without a slash that names no file is a command with a mistake in it.
            let is_path = image.as_encoded_bytes().contains(&b'/') || Path::new(image).exists();
            let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
            is_path && !is_option(image) && !is_option(directory) && !is_command(image)
        }
        _ => false,
    };
    if implied {
        words.insert(1, "mount".into());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn two_paths_without_a_command_mean_to_mount() {
        let implied = with_implied_mount(words("directfs /tmp/a.img /mnt -o ro"));
        assert_eq!(implied, words("directfs mount /tmp/a.img /mnt -o ro"));
        for line in [
            "directfs mount a b",
            "directfs fsck -n image",
            "directfs info image",
            "directfs help mount",
            "directfs typo",
            "directfs moutn a.img",
            "directfs snapshto a.img b.img",
        ] {
            assert_eq!(with_implied_mount(words(line)), words(line));
        }
    }

    #[test]
    fn the_helper_is_known_by_its_name() {
        assert!(is_mount_helper(&words("/sbin/mount.directfs image dir")));
        assert!(is_mount_helper(&words("mount.fuse.directfs image dir")));
        assert!(!is_mount_helper(&words("/usr/bin/directfs mount")));
    }
}
