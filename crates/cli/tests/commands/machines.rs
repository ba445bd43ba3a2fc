//! Two machines that share a file system whose locks both see, as NFSv4 and CephFS have them. Here
//! it is an image that is mounted twice without caches; one machine has its own /dev/shm.

use crate::stores::Place;
use crate::support::program::Program;
use crate::support::{can_mount, directfs, mount, stderr, stdout, unmount};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The shared file system, as each machine sees it.
struct Shared {
    _place: Place,
    points: [PathBuf; 2],
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.points.iter().for_each(|point| unmount(point));
    }
}

impl Shared {
    fn new() -> Shared {
        let place = Place::on_disk();
        let outer = place.path("outer");
        let made = directfs(&["mkfs", &outer, "--size", "128M", "--sparse"]);
        assert!(made.status.success(), "{}", stderr(&made));
        let points = ["first", "second"].map(|name| place.directory.path().join(name));
        for point in &points {
            fs::create_dir(point).unwrap();
            mount(Path::new(&outer), point, "cache=0");
        }
        let shared = Shared { _place: place, points };
        let made = directfs(&["mkfs", &shared.image(0), "--size", "16M"]);
        assert!(made.status.success(), "{}", stderr(&made));
        shared
    }

    fn image(&self, machine: usize) -> String {
        self.points[machine].join("image").to_str().unwrap().to_owned()
    }

    /// A command on one of the machines.
    fn command(&self, machine: usize, words: &[&str]) -> Command {
        const ALONE: &str = "mount -t tmpfs none /dev/shm || exit 77; exec \"$@\"";
        let program = env!("CARGO_BIN_EXE_directfs");
        let mut command = Command::new(if machine == 0 { program } else { "unshare" });
        if machine == 1 {
            command.args(["-m", "sh", "-c", ALONE, "sh", program]);
        }
        command.args(words);
        command
    }

    fn run(&self, machine: usize, script: &str) -> Command {
        let image = self.image(machine);
        self.command(machine, &["run", "--image", &image, "-C", "/mnt/directfs", "--", "sh", "-c", script])
    }

    fn second(&self, words: &[&str]) -> Output {
        self.command(1, words).output().unwrap()
    }
}

#[test]
fn writers_on_two_machines_are_held_apart_by_locks_that_both_see() {
    if !can_mount("writers on two machines") {
        return;
    }
    let shared = Shared::new();
    if shared.second(&["--version"]).status.code() == Some(77) {
        eprintln!("\n*** SKIPPED: writers on two machines: no mounts in a namespace here ***\n");
        return;
    }
    let writer = Program::start(&mut shared.run(0, "echo ready; read line; echo one >file; sync file"));
    let image = shared.image(1);
    for words in [
        &["run", "--image", &image, "--", "true"][..],
        &["run", "--image", &image, "--discard", "--", "true"],
        &["run", "--image", &image, "--atomic", "--", "true"],
        &["fsck", "-y", &image],
        &["resize", &image, "20M"],
        &["mkfs", &image, "--force"],
    ] {
        let output = shared.second(words);
        assert!(!output.status.success(), "{words:?} succeeds: {}", stdout(&output));
        let said = stderr(&output);
        assert!(said.contains("in use") || said.contains("being written"), "{words:?}: {said}");
    }
    writer.end();
    let read = shared.run(1, "cat file; echo two >>file; sync file").output().unwrap();
    assert_eq!(stdout(&read), "one\n", "{}", stderr(&read));

    // A machine that dies leaves what it synced, and its locks end.
    let script = "echo three >>file; sync file; echo ready; read line";
    let dead = Program::start(shared.run(0, script).process_group(0));
    let group = Pid::from_child(&dead.child);
    kill_process_group(group, Signal::KILL).unwrap();
    let mut child = dead.child;
    child.wait().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let read = loop {
        let read = shared.run(1, "cat file").output().unwrap();
        if read.status.success() || std::time::Instant::now() > end {
            break read;
        }
    };
    assert_eq!(stdout(&read), "one\ntwo\nthree\n", "{}", stderr(&read));
    let check = shared.second(&["fsck", "-n", &image]);
    assert!(check.status.success(), "{}{}", stdout(&check), stderr(&check));
}
