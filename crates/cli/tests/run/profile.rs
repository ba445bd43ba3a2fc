//! `directfs profile` reports the calls of a program and of those that it starts, and behaves as
//! `run` otherwise.

use crate::support::{directfs, scratch, stderr, stdout};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Held by tests that look for files that others make.
static ALONE: Mutex<()> = Mutex::new(());

/// Files of recordings in memory.
fn recordings() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("directfs-profile-")).collect()
}

/// Waits until no recording of now is left. Those of programs beside the tests end with the
/// programs.
fn assert_recordings_end() {
    let (mut left, end) = (recordings(), Instant::now() + Duration::from_secs(600));
    while !left.is_empty() {
        assert!(Instant::now() < end, "{left:?}");
        left = &left & &recordings();
    }
}

#[test]
fn calls_are_counted_by_name_and_by_path() {
    let _alone = ALONE.lock();
    let directory = scratch();
    let report = directory.path().join("report");
    let script = "mkdir d; for n in 1 2 3; do echo $n >d/file; done; sh -c 'cat d/file d/file'; (cd d; cat ./file ../d/file); rmdir absent 2>&-; exit 7";
    let options = ["profile", "--json", "--output", report.to_str().unwrap(), "-C", "/mnt/directfs", "--"];
    let output = directfs(&[&options[..], &["sh", "-c", script]].concat());
    assert_eq!(
        (output.status.code(), stdout(&output).as_str(), stderr(&output).as_str()),
        (Some(7), "3\n3\n3\n3\n", "")
    );
    let text = std::fs::read_to_string(report).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = |list: &str, key: &str, name: &str| {
        let found = report[list].as_array().unwrap().iter().find(|one| one[key] == name).cloned();
        found.unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    assert_eq!(of("calls", "name", "mkdir")["count"], 1);
    assert_eq!(of("calls", "name", "rmdir")["count"], 1);
    assert_eq!(of("paths", "path", "/mnt/directfs/d")["count"], 1);
    // Three by the shell, four by cat: a file has one path, whatever directory it is named from.
    assert_eq!(of("paths", "path", "/mnt/directfs/d/file")["count"], 7);
    assert_eq!(of("calls", "name", "openat")["count"], 7);
    let (time, wall) =
        (of("calls", "name", "openat")["total_ns"].as_u64().unwrap(), report["wall_ns"].as_u64().unwrap());
    assert!(time > 0 && time < wall, "{text}");
    // The two shells, mkdir, rmdir and cat twice.
    assert!(report["programs"].as_u64().unwrap() >= 5, "{text}");
    assert_eq!(report["paths_not_counted"], 0);
    assert_recordings_end();
}

#[test]
fn the_table_follows_the_output_of_the_program() {
    let _alone = ALONE.lock();
    let output = directfs(&["profile", "--", "sh", "-c", "echo text >/mnt/directfs/file; echo done"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "done\n"));
    let table = stderr(&output);
    assert!(table.starts_with("profile of sh -c") && table.contains("  write\n"), "{table}");
    assert!(table.contains("  /mnt/directfs/file\n"), "{table}");
}

#[test]
fn what_cannot_be_reported_is_said_before_the_program_runs() {
    let _alone = ALONE.lock();
    let output = directfs(&["profile", "--output", "/absent/report", "--", "echo", "ran"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""));
    assert!(stderr(&output).contains("/absent/report"), "{}", stderr(&output));
    let output = directfs(&["profile", "--", "/absent"]);
    assert_eq!(output.status.code(), Some(127), "{}", stderr(&output));
    assert_recordings_end();
}
