//! The command line: commands, options, help and examples.

mod images;
mod running;
mod stores;

pub use images::{
    CloneImage, Dump, Export, Fsck, Import, Info, Mkfs, NewUuid, Order, Ps, Resize, Snapshot, Stats, Top, Trim, Tune,
};
pub use running::{CommitOptions, CommitService, MOUNT_OPTIONS, Mount, MountHelper, Profile, Run, RunInside, Umount};
pub use stores::{Pull, Push, Replicate, StoreCommand, StoreGc, StoreList, Stores};

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// The example of a command that the program may be without.
const DEMO: &str = if cfg!(feature = "bench") {
    "  directfs demo                            a tour on a real tree, compared with tmpfs\n"
} else {
    ""
};

/// A persistent-memory file system in user space.
#[derive(Debug, Parser)]
#[command(name = "directfs", version, about, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = format!("\
Examples:
  directfs run                             a shell in a new file system in memory
{DEMO}  directfs mkfs /dev/shm/work.img --size 4G
  directfs mount /dev/shm/work.img /mnt/work
  directfs umount /mnt/work

In /etc/fstab (with mount.directfs in /sbin, a link to this program):
  /dev/shm/work.img  /mnt/work  directfs  defaults,noauto  0  0
or, where /sbin/mount.fuse is installed and this program is in /usr/local/bin or /usr/bin:
  /dev/shm/work.img  /mnt/work  fuse.directfs  defaults,noauto  0  0

With --json, a command that fails prints {{\"error\": ..., \"causes\": [...], \"exit_code\": N}} on standard
output, and the message as usual.

Exit codes: 0 success, 1 failure (see the message), 2 usage error, 130 interrupted; fsck and run
have their own."))]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create an image.
    Mkfs(Mkfs),
    /// Mount an image.
    Mount(Mount),
    /// Run a program and its children with an image served inside them: no mount, no privileges.
    Run(Run),
    /// Run a program as `run` does, and report the calls that it made on the image, their duration,
    /// and their paths.
    Profile(Profile),
    /// Unmount, and wait until the image is closed cleanly.
    Umount(Umount),
    /// Show an image's properties, usage and persistence guarantee. Changes nothing.
    Info(Info),
    /// List the processes attached to an image: what each has open and locked, and waits for.
    Ps(Ps),
    /// Show what the processes of an image call: how often, how long, and what they wait for.
    Stats(Stats),
    /// Show which processes use an image most; refreshed each second.
    Top(Top),
    /// Give the memory or disk space of freed blocks back to the system.
    Trim(Trim),
    /// Change the size of an image, which may grow while it is in use.
    Resize(Resize),
    /// Change the label, the UUID or root's reserve of an image that is not in use.
    Tune(Tune),
    /// Copy an image to a new file, also while programs use it. The copy is whole or absent.
    Snapshot(Snapshot),
    /// Copy an image as `snapshot` does; the copy has a UUID of its own, so both can be used.
    Clone(CloneImage),
    /// Send an image to an object store; later only what changed since.
    Push(Push),
    /// Follow an image, and send what changes to an object store.
    Replicate(Replicate),
    /// Fetch an image from an object store.
    Pull(Pull),
    /// List and clean up what an object store holds.
    Store(Stores),
    /// Write a tree of an image to standard output, as a tar archive.
    Export(Export),
    /// Read a tar archive from standard input into an image.
    Import(Import),
    /// Check every invariant of an image, and repair it.
    Fsck(Fsck),
    /// Print an image's structures in readable form: a file's names, inode, properties and log.
    Dump(Dump),
    /// The commands of `bench`.
    #[cfg(feature = "bench")]
    #[command(flatten)]
    Measure(bench::arguments::Command),
    /// Print completions for a shell.
    Completions(Completions),
    /// Print manual pages.
    Man(Man),
    /// Commit the image behind standard input for other processes; started by `run`.
    #[command(hide = true)]
    CommitService(CommitService),
    /// Serve the state of a store that standard input names, as a file; started by `run`.
    #[command(hide = true)]
    StoreService,
    /// Run a program whose file is in the mount; started by `run`, with the library loaded.
    #[command(hide = true)]
    RunInside(RunInside),
    /// Run a program into which no library can be loaded, with a private mount; started by `run`
    /// and by the library.
    #[command(hide = true)]
    RunStatic(RunInside),
}

impl Command {
    /// Whether the result, and so an error, is to be JSON.
    pub fn is_json(&self) -> bool {
        match self {
            Command::Mkfs(arguments) => arguments.json,
            Command::Mount(arguments) => arguments.json,
            Command::Info(arguments) => arguments.json,
            Command::Ps(arguments) => arguments.json,
            Command::Stats(arguments) => arguments.json,
            Command::Top(arguments) => arguments.json,
            Command::Trim(arguments) => arguments.json,
            Command::Resize(arguments) => arguments.json,
            Command::Tune(arguments) => arguments.json,
            Command::Snapshot(arguments) => arguments.json,
            Command::Clone(arguments) => arguments.copy.json,
            Command::Push(arguments) => arguments.json,
            Command::Replicate(arguments) => arguments.json,
            Command::Pull(arguments) => arguments.json,
            Command::Store(arguments) => match &arguments.command {
                StoreCommand::List(arguments) => arguments.json,
                StoreCommand::Gc(arguments) => arguments.json,
            },
            Command::Import(arguments) => arguments.json,
            Command::Fsck(arguments) => arguments.json,
            Command::Umount(arguments) => arguments.json,
            #[cfg(feature = "bench")]
            Command::Measure(command) => command.is_json(),
            // The standard output of a profile is that of the program.
            Command::CommitService(_)
            | Command::Completions(_)
            | Command::Dump(_)
            | Command::Export(_)
            | Command::Man(_)
            | Command::Profile(_)
            | Command::Run(_)
            | Command::RunInside(_)
            | Command::RunStatic(_)
            | Command::StoreService => false,
        }
    }

    /// Whether the command runs long or serves a mount, and so must not die without cleanup when
    /// its output is closed.
    pub fn cleans_up(&self) -> bool {
        match self {
            #[cfg(feature = "bench")]
            Command::Measure(_) => true,
            Command::Run(_)
            | Command::Profile(_)
            | Command::Mount(_)
            | Command::Replicate(_)
            | Command::Export(_)
            | Command::Import(_) => true,
            _ => false,
        }
    }
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  directfs completions bash > /etc/bash_completion.d/directfs")]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs man | man -l -
  directfs man --to /usr/share/man/man8")]
pub struct Man {
    /// Write a page for each command into this directory, instead of one page to standard output.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
        MountHelper::command().debug_assert();
    }

    /// The help pages of all commands, with their names.
    fn help_pages() -> impl Iterator<Item = clap::Command> {
        let mut program = Cli::command();
        program.build();
        let commands: Vec<_> = program.get_subcommands().cloned().collect();
        commands.into_iter().chain([program, MountHelper::command()])
    }

    #[test]
    fn no_line_of_help_has_more_than_100_columns() {
        let too_long = |line: &str| line.chars().count() > 100;
        for mut command in help_pages() {
            // What is laid out by hand must not be wrapped, which would break its columns.
            let by_hand = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let pages = [command.render_help().to_string(), command.render_long_help().to_string(), by_hand];
            let found: Vec<_> = pages.iter().flat_map(|page| page.lines()).filter(|line| too_long(line)).collect();
            assert!(found.is_empty(), "{}: {found:#?}", command.get_name());
        }
    }

    #[test]
    fn every_command_with_json_names_its_keys() {
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            let has_json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let names = ["Keys of --json: ", "With --json each event"].iter().any(|text| help.contains(text));
            assert_eq!(names, has_json, "{}", command.get_name());
        }
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
