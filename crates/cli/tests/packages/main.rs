//! What is delivered: packages are built, checked, installed, used and removed, and work with
//! programs of others.
//!
//! Packages are made of what this test's profile builds. `DIRECTFS_DIST` names a directory of
//! `packaging/release` instead, whose packages are then examined at more length (`.ci/release`).

mod debian;
mod files;
mod manual;
mod others;
mod python;
mod static_file;
#[path = "../support/mod.rs"]
mod support;
mod surroundings;
mod workflows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The root of the sources.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root").to_owned()
}

/// The directory of what cargo builds for this test; its parent is the target directory.
fn built() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_directfs")).parent().expect("a directory")
}

/// Runs a program that must succeed; otherwise returns what it wrote.
fn run(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_owned();
    let output = command.output().map_err(|error| format!("{name:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(format!("{name:?}: {}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn skipped(test: &str, why: &str) {
    eprintln!("\n*** SKIPPED: {test}: {why} ***\n");
}

fn has(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds all libraries, also those that no Rust program links. With the whole workspace, and a
/// test beside them, they have the features that `cargo test --workspace` gives them: hardly
/// anything is built again.
const BUILD_LIBRARIES: [&str; 6] = ["build", "--locked", "--workspace", "--lib", "--test", "delay"];

fn build_library() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(BUILD_LIBRARIES).args(["--quiet", "--target-dir"]);
    cargo.arg(built().parent().expect("the target directory")).current_dir(sources());
    run(without_package(&mut cargo)).expect("cargo builds the libraries");
}

/// Takes away the variables that cargo sets for this test: with them cargo builds much again.
fn without_package(command: &mut Command) -> &mut Command {
    let is_set = |name: &OsString| {
        ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix))
    };
    std::env::vars_os().map(|(name, _)| name).filter(is_set).fold(command, Command::env_remove)
}

/// The packages of a release, if they are what to examine.
fn release() -> Option<PathBuf> {
    std::env::var_os("DIRECTFS_DIST").map(PathBuf::from)
}

/// Makes packages of what this test's profile builds, or copies those of a release.
fn pack(kind: &str, out: &Path) {
    if let Some(release) = release() {
        let kind = if kind == "tar" { "tar.gz" } else { kind };
        let mut copy = Command::new("sh");
        copy.args(["-c", "cp \"$0\"/*.\"$1\" \"$2\""]).arg(release).arg(kind).arg(out);
        run(&mut copy).unwrap_or_else(|why| panic!("{why}"));
        return;
    }
    build_library();
    let mut pack = Command::new(sources().join("packaging/pack"));
    pack.arg(kind).args([built(), built()]).arg(out);
    // Programs of tests are five times as large as delivered ones.
    pack.env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
    run(&mut pack).unwrap_or_else(|why| panic!("{why}"));
}

/// Lays out below `root` what packages hold, from what this test's profile builds.
fn install(root: &Path) {
    build_library();
    let mut install = Command::new(sources().join("packaging/install"));
    run(install.arg(root).arg(built()).arg(built())).expect("packaging/install");
}
