//! Helpers of the command line tests.
#![allow(dead_code)]

pub mod documents;
pub mod killing;
pub mod program;
pub mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs the program with these arguments.
pub fn directfs<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_directfs")).args(arguments).output().expect("the program starts")
}

/// Its standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Its standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A scratch directory in memory.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written")
}

/// A small image in a directory.
pub fn image_in(directory: &Path) -> PathBuf {
    let image = directory.join("image");
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "16M", "--label", "tests", "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

/// Copies the content of a tree into an image, with cp under `run`.
pub fn copy_into(image: &str, tree: &Path) -> Output {
    let content = tree.join(".");
    directfs(&["run", "--image", image, "--at", "/mnt/copy", "--", "cp", "-r", content.to_str().unwrap(), "/mnt/copy"])
}

/// A command of a shell that prints an entry of its environment that the library hides from it.
pub fn say_hidden(name: &str) -> String {
    format!(r"tr '\0' '\n' </proc/$$/environ | sed -n 's/^{name}=//p'")
}

/// Whether mounts are possible; if not, prints that the test is skipped.
pub fn can_mount(test: &str) -> bool {
    let works = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !works {
        eprintln!("\n*** SKIPPED: {test}: /dev/fuse cannot be opened here ***\n");
    }
    works
}

/// A command that runs its arguments where these files of the machine cannot be used, by a mount
/// namespace; prints where that is not possible.
pub fn without_files(hidden: &[String]) -> Command {
    const HIDE: &str = "for file in $HIDDEN; do [ ! -e $file ] || mount --bind /dev/null $file || exit 77; done; unset HIDDEN; exec \"$@\"";
    let hides = Command::new("unshare").args(["-m", "mount", "--bind", "/dev/null", "/dev/zero"]).output();
    if hidden.is_empty() || !hides.is_ok_and(|output| output.status.success()) {
        if !hidden.is_empty() {
            eprintln!("\n*** SKIPPED: {} cannot be hidden here ***\n", hidden.join(", "));
        }
        return Command::new("env");
    }
    let mut command = Command::new("env");
    command.arg(format!("HIDDEN={}", hidden.join(" "))).args(["unshare", "-m", "sh", "-c", HIDE, "sh"]);
    command
}

/// Copies a program to be executed; false if there is none. Another process copies it: a process
/// that another test starts meanwhile inherits this test's descriptors until its exec, and a
/// program that is open for writing cannot be executed ("text file busy").
pub fn copy_program(program: impl AsRef<std::ffi::OsStr>, place: &Path) -> bool {
    Command::new("cp").arg(program).arg(place).status().expect("cp starts").success()
}

/// Mounts an image with these options.
pub fn mount(image: &Path, point: &Path, options: &str) {
    let mounted = directfs(&["mount", image.to_str().unwrap(), point.to_str().unwrap(), "-o", options]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
}

/// Ends a mount that no program uses. Processes that other tests start have this test's files until
/// their exec, so the mount may be in use for a moment.
pub fn unmount(point: &Path) {
    let end = Instant::now() + Duration::from_secs(600);
    let unmounted = loop {
        let unmounted = directfs(&["umount", point.to_str().unwrap()]);
        if !stderr(&unmounted).contains("is in use") || Instant::now() > end {
            break unmounted;
        }
    };
    assert!(unmounted.status.success(), "{}", stderr(&unmounted));
}
