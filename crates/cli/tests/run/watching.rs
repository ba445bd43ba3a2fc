//! inotify and fanotify in the mount: events, and the ways in which programs wait for them, as on
//! tmpfs.

use crate::kit::compiled;
use crate::support::{directfs, scratch, stderr, stdout};
use std::fs;
use std::process::Command;

const MOUNT: &str = "/mnt/watched";

/// Runs a program of the kit in a directory of tmpfs and in the mount, and compares its outputs.
fn compare(name: &str) -> Option<String> {
    let directory = scratch();
    let program = compiled(name, directory.path())?;
    let (plain, host) = (directory.path().join("plain"), directory.path().join("host"));
    fs::create_dir(&plain).unwrap();
    fs::create_dir(&host).unwrap();
    let wanted = Command::new(&program).arg(&plain).arg(&host).env("LC_ALL", "C").output().unwrap();
    fs::remove_dir_all(&host).unwrap();
    fs::create_dir(&host).unwrap();
    let [program, host] = [&program, &host].map(|path| path.to_str().unwrap());
    let found = directfs(&["run", "--at", MOUNT, "--", program, MOUNT, host]);
    assert_eq!(stderr(&found), stderr(&wanted));
    let (wanted, found) = (stdout(&wanted), stdout(&found));
    for (at, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, wanted, "line {} of {name}", at + 1);
    }
    assert_eq!(found, wanted);
    Some(found)
}

#[test]
fn each_change_raises_the_events_that_it_raises_on_tmpfs() {
    if let Some(events) = compare("watch_calls") {
        assert!(events.lines().count() > 200, "{events}");
    }
}

#[test]
fn each_change_makes_the_events_of_fanotify_that_it_makes_on_tmpfs() {
    if let Some(events) = compare("mark_calls") {
        assert!(events.lines().count() > 600, "{events}");
    }
}

#[test]
fn descriptors_poll_fork_exec_and_overflow_as_on_tmpfs() {
    compare("watch_ways");
}

#[test]
fn fanotify_descriptors_poll_fork_pass_and_overflow_as_on_tmpfs() {
    if let Some(steps) = compare("mark_ways") {
        assert!(steps.contains("overflow: 0x4000"), "{steps}");
    }
}
