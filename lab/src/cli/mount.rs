//! `lab mount`, in the foreground and in the background.
//!
//! In the background mode this program starts itself again with `--foreground --announce`, waits
//! for one byte on the server's standard output, and exits.

use super::arguments::Mount;
use anyhow::{Context, Result, bail, ensure};
use fuse::MountOptions;
use lab::mount::{SystemKind, VfsKind, kind_of};
use lab::physical::SyncFile;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Mounts; returns the server's exit code.
pub fn run(arguments: &Mount) -> Result<ExitCode> {
    let image = arguments
        .image
        .canonicalize()
        .with_context(|| format!("cannot find the image {}; check the path", arguments.image.display()))?;
    let mut kind = kind_of(&image).with_context(|| {
        let image = image.display();
        format!("{image} is not an image of the lab; check the path, or create one with `lab mkfs`")
    })?;
    let (mut options, mut sync_file) = (MountOptions::default(), SyncFile::default());
    for list in &arguments.options {
        options.apply(&take_own_options(list, &mut kind.vfs, &mut sync_file)?)?;
    }
    if options.remount {
        // The flags of such a mount are those that its options name.
        fuse::remount(&arguments.directory, &options, 0)?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!options.read_only, "a {} image cannot be mounted read-only: remove the option ro", kind.system.name());
    if arguments.foreground {
        return serve(&image, kind, sync_file, arguments, &options).map(|()| ExitCode::SUCCESS);
    }
    in_background(&image, arguments)
}

/// Removes `vfs=` and `fsync=` from a list of options.
fn take_own_options(list: &str, vfs: &mut VfsKind, sync_file: &mut SyncFile) -> Result<String> {
    let mut rest = Vec::new();
    for option in list.split(',') {
        match option.split_once('=') {
            Some(("vfs", name)) => {
                *vfs = VfsKind::parse(name)
                    .with_context(|| format!("unknown VFS layer {name}: expected conventional, byvfs or cachelet"))?;
            }
            Some(("fsync", "own")) => *sync_file = SyncFile::Own,
            Some(("fsync", "names")) => *sync_file = SyncFile::Names,
            Some(("fsync", what)) => bail!("unknown value {what} of the option fsync: expected own or names"),
            _ => rest.push(option),
        }
    }
    Ok(rest.join(","))
}

/// Serves until the mount ends.
fn serve(image: &Path, kind: SystemKind, sync_file: SyncFile, arguments: &Mount, options: &MountOptions) -> Result<()> {
    if arguments.announce {
        // A separate session: the server must not receive the terminal's signals.
        rustix::process::setsid().context("cannot start a session")?;
    }
    let ready = |path: &Path| {
        if !arguments.announce {
            return eprintln!("{} ({}) is mounted on {}", image.display(), kind.system.name(), path.display());
        }
        // The starter may have exited meanwhile; the mount stays.
        let _ = std::io::stdout().write_all(b"+").and_then(|()| std::io::stdout().flush());
        detach_output();
    };
    Ok(lab::mount::serve(image, kind, sync_file, &arguments.directory, options, ready)?)
}

/// Releases the starter's terminal or pipes: a shell that waits for their end would wait for the
/// mount's end.
fn detach_output() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Starts the server and waits until the mount answers. Its errors go to standard error.
fn in_background(image: &Path, arguments: &Mount) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot start the server; is /proc mounted?")?;
    let mut command = Command::new(program);
    command.args(["mount", "--foreground", "--announce"]);
    for list in &arguments.options {
        command.arg("-o").arg(list);
    }
    command.arg("--").arg(image).arg(&arguments.directory).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = command.spawn().context("cannot start the server")?;
    let mut announced = [0];
    let read = server.stdout.take().map(|mut output| output.read_exact(&mut announced));
    if matches!(read, Some(Ok(()))) {
        return Ok(ExitCode::SUCCESS);
    }
    let status = server.wait().context("cannot wait for the server")?;
    match status.code() {
        // The server has printed the cause.
        Some(code) => Ok(ExitCode::from(code.clamp(1, 255) as u8)),
        None => bail!("the server was killed by signal {}", status.signal().unwrap_or(0)),
    }
}
