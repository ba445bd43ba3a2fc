//! What a program sees in its environment: its own, and the mount.

use crate::kit::compile;
use crate::support::{scratch, stderr, stdout};
use std::path::Path;
use std::process::{Command, Output};

/// A run with this environment and no other.
fn run(entries: &[(&str, &str)], words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "-C", "/mnt/directfs", "--"]).args(words);
    command.env_clear().envs(entries.iter().copied()).output().unwrap()
}

fn said(entries: &[(&str, &str)], words: &[&str]) -> String {
    let output = run(entries, words);
    assert_eq!((stderr(&output).as_str(), output.status.code()), ("", Some(0)), "{words:?}");
    stdout(&output)
}

const PATH: (&str, &str) = ("PATH", "/usr/bin:/bin");
const SEEN: &str = "PATH=/usr/bin:/bin\nDIRECTFS_MOUNT=/mnt/directfs\n";

#[test]
fn a_program_sees_its_own_environment_and_the_mount() {
    let sorted = |text: String| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let wanted = sorted(SEEN.into());
    assert_eq!(sorted(said(&[PATH], &["env"])), wanted);
    // A number of entries that is odd where that was even.
    let mut more = wanted.clone();
    more.insert(1, "HOME=/".into());
    assert_eq!(sorted(said(&[PATH, ("HOME", "/")], &["env"])), more);
    // A program that a program starts.
    assert_eq!(sorted(said(&[PATH], &["env", "env"])), wanted);
    assert_eq!(said(&[PATH], &["env", "-i", "env"]), "");
    assert_eq!(said(&[PATH], &["env", "-i", "A=1", "env"]), "A=1\n");
    assert_eq!(said(&[PATH], &["env", "-u", "DIRECTFS_MOUNT", "env"]), "PATH=/usr/bin:/bin\n");
    assert_eq!(said(&[PATH], &["env", "-i", "DIRECTFS_RUN=/nowhere", "B=2", "env"]), "B=2\n");
}

#[test]
fn programs_without_an_environment_see_the_mount() {
    let script =
        "echo text >file; env -i /bin/cat file; env -i /usr/bin/env -i /bin/sh -c '/bin/cat /mnt/directfs/file'";
    assert_eq!(said(&[PATH], &["sh", "-c", script]), "text\ntext\n");
}

#[test]
fn lists_of_libraries_are_the_programs_own() {
    let directory = scratch();
    let library = directory.path().join("own.so");
    let is_compiled = compile("environment", &library, &["-shared", "-fPIC"]);
    if !is_compiled {
        return;
    }
    let own = ("LD_PRELOAD", library.to_str().unwrap());
    let wanted = format!("{}\n", own.1);
    assert_eq!(said(&[PATH, own], &["printenv", "LD_PRELOAD"]), wanted);
    assert_eq!(
        said(
            &[PATH, own],
            &["sh", "-c", "printenv LD_PRELOAD; grep -c own.so /proc/self/maps >/dev/null && printenv LD_PRELOAD"]
        ),
        wanted.repeat(2)
    );
    let script = format!("LD_PRELOAD={} printenv LD_PRELOAD; printenv LD_PRELOAD || echo none", own.1);
    assert_eq!(said(&[PATH], &["sh", "-c", &script]), wanted + "none\n");
}

/// Dynamic and static, with the environment's entries in an even and in an odd number.
#[test]
fn the_auxiliary_vector_is_found_behind_the_environment() {
    let directory = scratch();
    for (name, arguments) in [("dynamic", &[][..]), ("static", &["-static"])] {
        let program = directory.path().join(name);
        if !compile("environment", &program, arguments) {
            return;
        }
        for own in [&[PATH][..], &[PATH, ("A", "1")]] {
            let (text, vector) = seen_by(own, &[&program]);
            assert_eq!((text, vector.as_str()), (own.len() + 1, "right 1, unknown 0"), "{name}");
        }
        for own in [&["A=1"][..], &["A=1", "B=2"], &[]] {
            let words = [&["env", "-i"][..], own, &[program.to_str().unwrap()]].concat();
            let (text, vector) = seen_by(&[PATH], &words);
            assert_eq!((text, vector.as_str()), (own.len(), "right 1, unknown 0"), "{name} {own:?}");
        }
    }
}

/// Number of entries, and the last line, of the kit's `environment`.
fn seen_by<W: AsRef<Path>>(entries: &[(&str, &str)], words: &[W]) -> (usize, String) {
    let words: Vec<_> = words.iter().map(|word| word.as_ref().to_str().unwrap()).collect();
    let text = said(entries, &words);
    let lines: Vec<_> = text.lines().collect();
    (lines.len() - 1, lines[lines.len() - 1].to_owned())
}
