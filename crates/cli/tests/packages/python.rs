//! The Python package: its wheel is built, checked, installed in an environment of its own, and
//! tested there by the Python programs in tests.

use crate::{BUILD_LIBRARIES, built, release, run, skipped, sources, text, without_package};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the wheel is tested and checked with.
const TOOLS: [&str; 7] = [
    "fsspec==2026.9.0",
    "pytest==9.2.0",
    "zarr==3.1.6",
    "twine==7.0.0",
    "auditwheel==6.8.2",
    "mypy==2.4.1",
    "pyright[nodejs]==1.1.414",
];

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

/// What maturin calls as cargo. maturin builds its package alone, and so with other features than
/// the tests have; this builds all libraries, which is quick, and reports the same one among them.
/// The variables with which maturin would have the library built again change nothing in it.
const CARGO_FOR_MATURIN: &str = r#"#!/bin/sh
export CARGO="$REAL_CARGO" PATH="$REAL_PATH"
[ "$1" = rustc ] || exec "$REAL_CARGO" "$@"
unset PYO3_PYTHON PYTHON_SYS_EXECUTABLE PYO3_NO_PYTHON PYO3_BUILD_EXTENSION_MODULE PYO3_ENVIRONMENT_SIGNATURE
exec "$REAL_CARGO" $BUILD_LIBRARIES --message-format json-render-diagnostics
"#;

/// The wheel of a release, or one with the profile of the tests.
fn build_wheel() -> PathBuf {
    let wheels = release().unwrap_or_else(|| {
        let wheels = target_directory().join("wheels");
        let _ = std::fs::remove_dir_all(&wheels);
        let mut wheel = Command::new(sources().join("packaging/wheel"));
        wheel.arg("dev").arg(&wheels).arg(built().join("directfs"));
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let cargo = scratch.path().join("cargo");
        std::fs::write(&cargo, CARGO_FOR_MATURIN).expect("a script");
        std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o755)).expect("a program");
        wheel.env("REAL_PATH", std::env::var_os("PATH").expect("a path"));
        wheel.env("CARGO", &cargo).env("REAL_CARGO", env!("CARGO")).env("BUILD_LIBRARIES", BUILD_LIBRARIES.join(" "));
        run(without_package(&mut wheel).env("CARGO_TARGET_DIR", target_directory())).expect("packaging/wheel");
        wheels
    });
    let mut found = std::fs::read_dir(&wheels).expect("the wheel").map(|entry| entry.expect("an entry").path());
    found.find(|file| file.extension().is_some_and(|extension| extension == "whl")).expect("a wheel")
}

/// What a registry and pip ask of a wheel: its description, and the glibc that it promises to need.
fn check_wheel(environment: &Path, wheel: &Path) {
    let name = wheel.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(
        name.starts_with(concat!("directfs-", env!("CARGO_PKG_VERSION"), "-cp39-abi3-"))
            && name.ends_with("x86_64.whl"),
        "{name}"
    );
    run(Command::new(environment.join("bin/twine")).args(["check", "--strict"]).arg(wheel)).expect("twine");
    let shown = run(Command::new(environment.join("bin/auditwheel")).arg("show").arg(wheel)).expect("auditwheel");
    let shown = text(&shown.stdout).replace('\n', " ");
    let (_, tag) = shown.split_once("consistent with the following platform tag: \"").expect(&shown);
    let tag = tag.split('"').next().expect("a tag");
    assert!(name.contains(tag), "{name}: {tag}");
    let minor = tag.strip_prefix("manylinux_2_").and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
    let is_old_enough = minor.is_some_and(|minor| minor <= 28);
    assert!(release().is_none() || is_old_enough, "systems with an older glibc cannot use it: {tag}");
}

/// Types of the package, of its tests' program with types, and of the README's example.
fn check_types(environment: &Path, scratch: &Path) {
    let python = sources().join("crates/python");
    let typed = python.join("tests/typed.py");
    let mut mypy = Command::new(environment.join("bin/mypy"));
    mypy.arg("--config-file").arg(python.join("pyproject.toml")).arg("--cache-dir").arg(scratch);
    run(mypy.args(["--package", "directfs"]).current_dir(scratch)).expect("mypy on the package");
    let mut mypy = Command::new(environment.join("bin/mypy"));
    mypy.args(["--strict", "--cache-dir"]).arg(scratch).arg(&typed).current_dir(scratch);
    run(&mut mypy).expect("mypy on a program");
    let mut pyright = Command::new(environment.join("bin/pyright"));
    pyright.arg("--pythonpath").arg(environment.join("bin/python")).arg(&typed).current_dir(scratch);
    run(&mut pyright).expect("pyright");
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
    let wheel = build_wheel();
    check_wheel(&environment, &wheel);
    let python = environment.join("bin/python");
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--force-reinstall"];
    run(Command::new(&python).args(pip).arg(&wheel)).expect("pip installs the wheel");
    let version = run(Command::new(environment.join("bin/directfs")).arg("--version")).expect("the wheel's program");
    assert_eq!(text(&version.stdout), format!("directfs {}\n", env!("CARGO_PKG_VERSION")));
    check_types(&environment, tempfile::tempdir().expect("a scratch directory").path());
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
