//! The Python package: its wheel is built, installed in an environment of its own, and tested there
//! by the Python programs in tests.

use crate::{built, run, skipped, sources, text, without_package};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the wheel is built and tested with.
const TOOLS: [&str; 4] = ["maturin==1.16.0", "fsspec==2026.9.0", "pytest==9.2.0", "zarr==3.1.6"];

fn target_directory() -> &'static Path {
    built().parent().expect("the target directory")
}

/// An environment with the tools, which stays for the next run.
fn environment() -> Result<PathBuf, String> {
    let place = target_directory().join("python-environment");
    let python = place.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    }
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet"];
    run(Command::new(&python).args(pip).args(TOOLS))?;
    Ok(place)
}

/// Builds the wheel as `maturin build` does, but with the profile of the tests.
fn build_wheel(environment: &Path) -> PathBuf {
    let wheels = target_directory().join("wheels");
    let _ = std::fs::remove_dir_all(&wheels);
    let mut maturin = Command::new(environment.join("bin/maturin"));
    maturin
        .args(["build", "--profile", "dev", "--locked", "--quiet", "--out"])
        .arg(&wheels)
        .current_dir(sources().join("crates/python"));
    run(without_package(&mut maturin).env("CARGO_TARGET_DIR", target_directory())).expect("maturin builds the wheel");
    let mut found = std::fs::read_dir(&wheels).expect("the wheel").map(|entry| entry.expect("an entry").path());
    found.next().expect("a wheel")
}

/// The tests of `fsspec` for file systems. They need pytest, and warn of what is not ours.
fn run_the_suite_of_fsspec(python: &Path) {
    let mut suite = Command::new("timeout");
    suite.arg("1200").arg(python).args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    suite.env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/");
    let output = run(suite.arg(sources().join("crates/python/tests/suite_fsspec.py"))).expect("the suite passes");
    let report = text(&output.stdout);
    eprintln!("{report}");
    assert!(report.contains(" passed") && !report.contains("skipped"), "{report}");
}

#[test]
fn the_wheel_is_installed_and_used() {
    let environment = match environment() {
        Ok(environment) => environment,
        Err(why) => return skipped("the Python package", &why),
    };
    let wheel = build_wheel(&environment);
    let name = wheel.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("directfs-0.1.0-cp39-abi3-") && name.ends_with("x86_64.whl"), "{name}");
    let python = environment.join("bin/python");
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--force-reinstall"];
    run(Command::new(&python).args(pip).arg(&wheel)).expect("pip installs the wheel");
    let mut tests = Command::new("timeout");
    tests.arg("1200").arg(&python).args([
        "-X",
        "dev",
        "-W",
        "error",
        "-m",
        "unittest",
        "discover",
        "--start-directory",
    ]);
    // No files beside the sources.
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = run(tests.arg(sources().join("crates/python/tests")).current_dir("/")).expect("the tests pass");
    let report = text(&output.stderr);
    eprintln!("{report}");
    // No test was left out but those that need root.
    assert!(report.contains("\nRan ") && !report.contains("fsspec is not installed"), "{report}");
    run_the_suite_of_fsspec(&python);
}
