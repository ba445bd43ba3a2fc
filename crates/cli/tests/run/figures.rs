//! Durations of calls under `directfs run` and on tmpfs: the same compiled program, in one test.
//! Nothing is asserted, because a busy machine distorts durations.

use crate::support::{directfs, scratch, stderr, stdout};
use std::path::Path;
use std::process::Command;

const FILES: &str = "10000";
const ROUNDS: &str = "9";

#[test]
#[ignore = "a measurement: run it with --ignored --nocapture on a quiet machine, with a release build"]
fn calls_compared_with_tmpfs() {
    let directory = scratch();
    let binary = directory.path().join("calls");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/calls.c");
    assert!(Command::new("cc").args(["-O2", "-o"]).arg(&binary).arg(source).status().unwrap().success());
    let plain = directory.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    let plain = Command::new(&binary).args([FILES, ROUNDS]).current_dir(&plain).output().unwrap();
    let run = ["run", "-C", "/mnt/directfs", "--", binary.to_str().unwrap(), FILES, ROUNDS];
    let inside = directfs(&run);
    assert!(plain.status.success() && inside.status.success(), "{}{}", stderr(&plain), stderr(&inside));
    println!("{:14}{:>10}{:>10}{:>8}", "call", "tmpfs ns", "run ns", "times");
    for (one, other) in stdout(&plain).lines().zip(stdout(&inside).lines()) {
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        let name = one.split(' ').next().unwrap();
        println!("{name:14}{:>10}{:>10}{:>8.1}", value(one), value(other), value(one) / value(other));
    }
}
