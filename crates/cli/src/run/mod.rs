//! `directfs run`: runs a program with an image that is served inside it and all its children.
//!
//! ```text
//!  launcher (this process)                          program and its children
//!  +---------------------------------+   fork,     +----------------------------------+
//!  | opens the image, hands it off   | --exec----> | the preload library finds the    |
//!  | waits for the program           |             | image in inherited descriptors   |
//!  | program ended:                  |             +----------------------------------+
//!  |   no process has the image:     |
//!  |     closes it                   |
//!  |   some do: a detach helper      | --fork----> waits for the last one, closes it
//!  +---------------------------------+
//! ```
//!
//! Invariants:
//!
//! - A program sees the image at the mount directory, or does not start and a message gives the
//!   reason.
//! - When this command returns, the image is clean, unless background processes of the program
//!   still use it; then a helper process closes it after the last of them.
//! - To its caller this command behaves as the program itself would: exit status, death by a
//!   signal, stopping and continuing.
//!
//! Decision: docs/decisions/run-start.md, "The launcher is the command's parent".

mod child;
mod committer;
mod detach_helper;
mod directory;
mod from_store;
mod fuse_program;
mod image;
mod lazy;
mod namespace;
mod profile;

pub use committer::serve as commit_service;
pub use fuse_program::run as run_static;
pub use lazy::{LazyFile, serve as store_service};

use crate::arguments::{self, Run};
use crate::file_size_limit::Lifted;
use ::image::Handoff;
use anyhow::{Context, Result};
use detach_helper::End;
pub use detach_helper::open_descriptors;
use directory::MountDirectory;
use engine::format::MAGIC;
pub use from_store::Fetched;
use hook::handoff::HandoffRecord;
use hook::loading::armed_threads;
use hook::process::apparmor;
use image::Changes;
use launcher::launch::{self, LaunchError, Serving};
use profile::Recording;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit code if this command failed, as in env(1) and timeout(1).
pub const EXIT_FAILED: u8 = 125;
/// Exit code if the program was found but cannot be executed.
const EXIT_NOT_RUN: u8 = 126;
/// Exit code if the program was not found.
const EXIT_NOT_FOUND: u8 = 127;

/// Why a program was not started, with an exit code.
#[derive(Debug)]
pub struct Failure {
    /// For the caller's shell.
    pub exit_code: u8,
    /// For the user.
    pub error: anyhow::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure { exit_code: EXIT_FAILED, error }
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Failure {
        let exit_code = match error {
            LaunchError::NotFound(_) => EXIT_NOT_FOUND,
            LaunchError::NoCache(_) | LaunchError::NoName(_) => EXIT_FAILED,
            _ => EXIT_NOT_RUN,
        };
        Failure { exit_code, error: error.into() }
    }
}

/// Runs a program to its end, reports on its calls, and ends as it did.
pub fn profile(arguments: &arguments::Profile) -> Result<std::convert::Infallible, Failure> {
    run(&arguments.run, Some(Recording::new(arguments)?))
}

/// Runs a program to its end, and ends as it did.
pub fn run(arguments: &Run, recording: Option<Recording<'_>>) -> Result<std::convert::Infallible, Failure> {
    image::refuse_nesting()?;
    // The limit is the program's: this process fetches an image, and writes its journal.
    let lifted = Lifted::new();
    // It may take long: signals end this process until they are blocked.
    let fetched = image::fetch(arguments)?;
    let foreign = detach_helper::open_descriptors();
    refuse_two_users()?;
    // Before the image's threads: see `placeholder`.
    let placeholder = launch::placeholder().context("cannot hand the image to programs")?;
    let signals = child::Signals::block();
    let mount = MountDirectory::parse(&arguments.at)?;
    let start = Start::choose(arguments, &mount)?;
    let program = Program::choose(&arguments.command, &mount, &start)?;
    let say = |text: &str| eprintln!("directfs: {text}");
    let messages = fetched.as_ref().and_then(|fetched| fetched.show_messages(say));
    let (image, changes) = image::open(arguments, fetched.as_ref())?;
    if let Some(inside) = start.inside() {
        image::check_directory(&image, inside, &mount)?;
    }
    let handoff = image.hand_off().context("cannot hand the image to programs")?;
    let serving = Descriptors::of(&handoff, image.fs().is_read_only(), placeholder)
        .context("cannot hand the image to programs")?;
    let (mut command, is_served) = program.command(&mount, &start)?;
    start.apply(&mut command);
    if is_served {
        if let Some(recording) = &recording {
            command.env(launch::PROFILE_VARIABLE, recording.path());
        }
        serving.apply(&mut command, mount.path(), start.inside());
    }
    let parents = mount.make_parents();
    if arguments.command.is_empty() {
        image::announce(&image, changes, mount.path());
    }
    let started = child::Child::start(command, &signals, lifted.before());
    drop(serving);
    let handoff_id = handoff.into_id();
    let ended = started.map_err(|error| program.not_started(error)).map(|child| child.wait(&signals));
    drop(parents);
    let has_succeeded = matches!(ended, Ok(child::Ended::Exit(0)));
    let end = match changes {
        Changes::Kept | Changes::Refused | Changes::Pushed => End::Close,
        Changes::InMemory | Changes::Discarded => End::Discard,
        Changes::Atomic if has_succeeded => End::Commit,
        Changes::Atomic => End::Discard,
    };
    let state = match &fetched {
        Some(Fetched::Working(working)) if has_succeeded => Some(working.state(&image)),
        _ => None,
    };
    // A thread does not go along into a helper.
    drop(messages);
    let left = detach_helper::leave(image, end, handoff_id, &foreign);
    if let (Some(Fetched::Working(working)), Some(state)) = (fetched, state) {
        working.push(state)?;
    }
    left?;
    if let (Some(path), Some(done)) = (&arguments.image, outcome(changes, has_succeeded)) {
        eprintln!("directfs: {}: {done}", path.display());
    }
    let ended = ended?;
    if let Some(recording) = recording {
        recording.report()?;
    }
    ended.repeat(&signals)
}

/// The kernel asks the loader of a program whose effective user or group is not its real one to
/// ignore the preload library (AT_SECURE): the program would work on the machine's own files.
fn refuse_two_users() -> Result<()> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    anyhow::ensure!(
        geteuid() == getuid() && getegid() == getgid(),
        "the effective user or group of this process is not its real one, so programs would not see the image; start \
         directfs with one user and group, for example by `setpriv --reuid USER --regid GROUP --clear-groups`"
    );
    Ok(())
}

/// What was done with the changes of a run, if that is not as usual.
fn outcome(changes: Changes, has_succeeded: bool) -> Option<&'static str> {
    match changes {
        Changes::Kept | Changes::Refused | Changes::InMemory => None,
        Changes::Discarded => Some("unchanged, all changes of the run are discarded"),
        Changes::Atomic if has_succeeded => Some("all changes of the run are committed"),
        Changes::Pushed if has_succeeded => None,
        Changes::Atomic | Changes::Pushed => {
            Some("unchanged, the command did not succeed and its changes are discarded")
        }
    }
}

/// The directory in which the program starts.
#[derive(Debug)]
enum Start {
    /// The directory in which this command was started.
    Here,
    /// A directory of the host.
    Outside(PathBuf),
    /// A directory of the mount, as a path below it with a leading slash.
    Inside(PathBuf),
}

impl Start {
    fn choose(arguments: &Run, mount: &MountDirectory) -> Result<Start> {
        // Without PWD the directory was removed, and relative paths are invalid.
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        match &arguments.chdir {
            Some(wanted) => {
                if let Some(inside) = mount.inside(&directory::normal(&here.join(wanted))) {
                    return Ok(Start::Inside(inside));
                }
                let metadata =
                    std::fs::metadata(wanted).with_context(|| format!("cannot start in {}", wanted.display()))?;
                anyhow::ensure!(metadata.is_dir(), "cannot start in {}: not a directory", wanted.display());
                Ok(Start::Outside(here.join(wanted)))
            }
            None if arguments.command.is_empty() => Ok(Start::Inside(PathBuf::from("/"))),
            None => {
                anyhow::ensure!(
                    mount.inside(&here).is_none(),
                    "the current directory is below {}, which would hide it: change to another one, or name one with -C",
                    mount.path().display()
                );
                Ok(Start::Here)
            }
        }
    }

    fn inside(&self) -> Option<&Path> {
        match self {
            Start::Inside(path) => Some(path),
            _ => None,
        }
    }

    fn apply(&self, command: &mut Command) {
        match self {
            Start::Outside(path) => {
                command.current_dir(path);
            }
            // The preload library changes the directory.
            Start::Here | Start::Inside(_) => {}
        }
    }
}

/// The program to run.
struct Program {
    name: OsString,
    arguments: Vec<OsString>,
    /// Its file is in the mount, so only a program with the library finds it.
    is_inside: bool,
}

/// Whether a file begins like an image.
fn is_image(path: &Path) -> bool {
    let mut start = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == MAGIC.to_le_bytes()
}

impl Program {
    fn choose(words: &[OsString], mount: &MountDirectory, start: &Start) -> Result<Program> {
        let Some((name, arguments)) = words.split_first() else {
            return Ok(Program { name: shell(), arguments: Vec::new(), is_inside: false });
        };
        let is_inside = mount.has_program(name, start.inside().is_some());
        Ok(Program { name: name.clone(), arguments: arguments.to_vec(), is_inside })
    }

    /// The command, and whether it has the preload library, or else a private mount.
    fn command(&self, mount: &MountDirectory, start: &Start) -> Result<(Command, bool), Failure> {
        if self.is_inside {
            return Ok((self.inside_command()?, true));
        }
        let mut command = match launch::command(&self.name, None) {
            // As when another program starts it: it has nothing of the image.
            Err(LaunchError::Privileged(_)) if !self.mentions(mount.path(), start) => {
                let mut command = Command::new(launch::find(&self.name)?);
                command.arg0(&self.name).args(&self.arguments);
                return Ok((command, false));
            }
            Err(LaunchError::Static(_) | LaunchError::OtherLibrary(_) | LaunchError::Own(_)) => {
                if armed_threads::is_supported() {
                    return Ok((self.inside_command()?, true));
                }
                self.fuse_command()?
            }
            Err(LaunchError::NotProgram(path)) if is_image(&path) => {
                let path = path.display();
                let error = anyhow::anyhow!(
                    "{path}: a DirectFS image, not a command; give it as an option: \
                     directfs run --image {path} -- COMMAND"
                );
                return Err(Failure { exit_code: EXIT_NOT_RUN, error });
            }
            command => command?,
        };
        command.args(&self.arguments);
        Ok((command, true))
    }

    /// The command for a program that only a program with the library can find or load.
    fn inside_command(&self) -> Result<Command, Failure> {
        // Runs this program again, with the library.
        let own = own_file()?;
        let mut command = launch::command(own.as_os_str(), None)?;
        command.arg0("directfs").arg("run-inside").arg("--").arg(&self.name).args(&self.arguments);
        Ok(command)
    }

    /// Whether anything that the program is given leads into the mount.
    fn mentions(&self, mount: &Path, start: &Start) -> bool {
        let mount = mount.as_os_str().as_bytes();
        let names = |text: &OsStr| text.as_bytes().windows(mount.len()).any(|part| part == mount);
        let mut environment = std::env::vars_os().filter(|(name, _)| name != "OLDPWD");
        start.inside().is_some()
            || self.arguments.iter().any(|argument| names(argument))
            || environment.any(|(_, value)| names(&value))
    }

    /// The command for a program that cannot load the library.
    fn fuse_command(&self) -> Result<Command, Failure> {
        let mut command = Command::new(own_file()?);
        command.arg0("directfs").args(["run-static", "--"]).arg(launch::find(&self.name)?).arg(&self.name);
        Ok(command)
    }

    fn not_started(&self, error: std::io::Error) -> Failure {
        let exit_code = if error.kind() == std::io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUN };
        let error = anyhow::Error::from(error).context(format!("cannot run {}", Path::new(&self.name).display()));
        Failure { exit_code, error }
    }
}

fn own_file() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file; is /proc mounted?")
}

/// The user's shell.
fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

/// Executes a program that only a program with the library can find.
pub fn run_inside(words: &[OsString]) -> Failure {
    let Some((name, arguments)) = words.split_first() else {
        return Failure { exit_code: EXIT_FAILED, error: anyhow::anyhow!("no program is named") };
    };
    let mut command = Command::new(name);
    command.args(arguments);
    fuse_program::keep_signal_mask(&mut command);
    child::keep_closed(&mut command);
    let error = command.exec();
    Program { name: name.clone(), arguments: Vec::new(), is_inside: true }.not_started(error)
}

/// The descriptors that programs inherit.
struct Descriptors {
    image: (OwnedFd, u64),
    journal: Option<OwnedFd>,
    region: (OwnedFd, u64),
    placeholder: OwnedFd,
    meeting: OwnedFd,
    read_only: bool,
    image_read_only: bool,
    flushes: bool,
    in_place: bool,
}

impl Descriptors {
    fn of(handoff: &Handoff, read_only: bool, placeholder: OwnedFd) -> std::io::Result<Descriptors> {
        let (image, image_bytes) = handoff.image();
        let (region, region_bytes) = handoff.region();
        Ok(Descriptors {
            image: (launch::high_duplicate(&image)?, image_bytes),
            journal: handoff.journal().map(|journal| launch::high_duplicate(&journal)).transpose()?,
            region: (launch::high_duplicate(&region)?, region_bytes),
            placeholder,
            meeting: launch::high_duplicate(&handoff.meeting())?,
            read_only,
            image_read_only: handoff.is_image_read_only(),
            flushes: handoff.flushes(),
            in_place: handoff.in_place(),
        })
    }

    fn apply(&self, command: &mut Command, mount: &Path, start: Option<&Path>) {
        let handoff = HandoffRecord {
            image: self.image.0.as_raw_fd(),
            image_bytes: self.image.1,
            region: self.region.0.as_raw_fd(),
            region_bytes: self.region.1,
            placeholder: self.placeholder.as_raw_fd(),
            meeting: self.meeting.as_raw_fd(),
            cached_files_max: 0,
            read_only: self.read_only,
            image_read_only: self.image_read_only,
            flushes: self.flushes,
            in_place: self.in_place,
            memory_errors: pmem::expects_memory_errors(),
            journal: self.journal.as_ref().map_or(0, AsRawFd::as_raw_fd),
            processor: pmem::features(),
            apparmor: apparmor::is_enabled(),
        };
        Serving { handoff, mount, start, binary: std::env::current_exe().ok().as_deref() }.apply(command);
    }
}
