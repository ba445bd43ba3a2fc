//! What programs see of changes under `run` and on mounts: the order of times, and full images.

use crate::support::program::has_python;
use crate::support::{can_mount, directfs, mount, scratch, stderr, stdout, unmount};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TIMES: &str = include_str!("kit/times.py");
const FULL: &str = include_str!("kit/full.py");
const SIZES: [&str; 3] = ["1M", "4M", "32M"];

fn image_of(size: &str, directory: &Path) -> PathBuf {
    let image = directory.join("image");
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", size, "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

fn assert_silent(output: &Output, what: &str) {
    assert!(output.status.success() && output.stdout.is_empty(), "{what}: {}{}", stdout(output), stderr(output));
}

fn under_run(image: &Path, script: &str, argument: &str) -> Output {
    let image = image.to_str().unwrap();
    directfs(&[
        "run",
        "--image",
        image,
        "--at",
        "/mnt/changes",
        "--",
        "python3",
        "-c",
        script,
        "/mnt/changes",
        argument,
    ])
}

fn on_mount(image: &Path, options: &str, script: &str, argument: &str) -> Output {
    let directory = scratch();
    let point = directory.path().join("mount");
    std::fs::create_dir(&point).unwrap();
    mount(image, &point, options);
    let output = Command::new("python3").args(["-c", script]).arg(&point).arg(argument).output().unwrap();
    unmount(&point);
    output
}

#[test]
fn no_change_is_older_than_one_before_it_under_run() {
    if !has_python() {
        return;
    }
    let (directory, other) = (scratch(), scratch());
    let said = under_run(&image_of("256M", directory.path()), TIMES, other.path().to_str().unwrap());
    assert_silent(&said, "run");
}

#[test]
fn no_change_is_older_than_one_before_it_on_mounts() {
    if !has_python() || !can_mount("no change is older than one before it on mounts") {
        return;
    }
    for options in ["rw", "cache=0"] {
        let (directory, other) = (scratch(), scratch());
        let said = on_mount(&image_of("256M", directory.path()), options, TIMES, other.path().to_str().unwrap());
        assert_silent(&said, options);
    }
}

fn assert_clean(image: &Path, what: &str) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{what}: {}{}", stdout(&check), stderr(&check));
}

#[test]
fn a_full_image_takes_what_needs_no_space_under_run() {
    if !has_python() {
        return;
    }
    for size in SIZES {
        let directory = scratch();
        let image = image_of(size, directory.path());
        assert_silent(&under_run(&image, FULL, "run"), size);
        assert_clean(&image, size);
    }
}
