//! Leases in the mount: grants, refusals, breaks and ends, as on tmpfs.

use crate::kit::compiled;
use crate::support::{directfs, scratch, stderr, stdout};
use std::fs;
use std::process::Command;

const MOUNT: &str = "/mnt/leased";

/// Runs the program of the kit in a directory of tmpfs and in the mount, and compares its outputs.
fn compare(arguments: &[&str]) -> Option<String> {
    let directory = scratch();
    let program = compiled("leases", directory.path())?;
    let plain = directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let wanted = Command::new(&program).arg(&plain).args(arguments).output().unwrap();
    let program = program.to_str().unwrap();
    let found = directfs(&[&["run", "--at", MOUNT, "--", program, MOUNT], arguments].concat());
    assert_eq!(stderr(&found), stderr(&wanted));
    let (wanted, found) = (stdout(&wanted), stdout(&found));
    for (at, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, wanted, "line {}", at + 1);
    }
    assert_eq!(found, wanted);
    Some(found)
}

#[test]
fn leases_are_granted_broken_and_ended_as_on_tmpfs() {
    if let Some(steps) = compare(&[]) {
        assert!(steps.lines().count() > 200, "{steps}");
    }
}

#[test]
fn no_open_passes_a_lease_that_is_granted_meanwhile() {
    if let Some(result) = compare(&["2000"]) {
        assert!(result.contains("granted: 1, opened: 1, bad: 0"), "{result}");
    }
}
