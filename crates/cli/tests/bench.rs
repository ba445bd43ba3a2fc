//! Output and cleanup of `directfs bench`. Durations are never asserted.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use support::{directfs, scratch, stderr, stdout};

/// A tree for the programs.
fn make_tree(root: &Path) {
    for sub in 0..4 {
        fs::create_dir_all(root.join(format!("d{sub}"))).unwrap();
        (0..5).for_each(|file| fs::write(root.join(format!("d{sub}/{file}.h")), vec![7; file * 331]).unwrap());
    }
    std::os::unix::fs::symlink("d1/1.h", root.join("link")).unwrap();
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stdout(output)))
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().count() == 0
}

/// Files in memory of the benchmark with this process id, and the images' regions, which no other
/// test uses at the same time.
fn left_behind(pid: u32) -> Vec<String> {
    let names = fs::read_dir("/dev/shm").unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("directfs-bench.{pid}."))).collect()
}

/// The groups of a report, in order.
const GROUPS: [&str; 13] = [
    "calls",
    "threads",
    "processes",
    "depth",
    "small",
    "cold",
    "mdtest",
    "varmail",
    "fileserver",
    "postmark",
    "tree",
    "data",
    "durable",
];

/// The rows of the group `calls`, in order.
const CALLS: [&str; 13] = [
    "create",
    "stat",
    "stat-missing",
    "access",
    "stat-hot",
    "access-hot",
    "open",
    "readdir",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
];

#[test]
fn every_workload_runs_on_every_subject_and_the_report_has_them_all() {
    let (images, elsewhere) = (scratch(), scratch());
    let (tree, page) = (elsewhere.path().join("tree"), elsewhere.path().join("page.html"));
    make_tree(&tree);
    let arguments = [
        "bench",
        "--quick",
        "--always-flush",
        "--sizes",
        "64",
        "--threads",
        "1,2",
        "--repeat",
        "1",
        "--json",
        "--image-in",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(arguments).arg(images.path()).arg("--tree").arg(&tree).arg("--html").arg(&page);
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = bench.id();
    let output = bench.wait_with_output().unwrap();
    let report = json(&output);

    let subjects: Vec<&str> =
        report["subjects"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap()).collect();
    assert_eq!(subjects[..2], ["directfs", "tmpfs"], "{subjects:?}");
    assert!(report["subjects"][0]["place"].as_str().unwrap().contains("changes are flushed"), "{}", report["subjects"]);
    assert!(report["floor"]["median_ns"].as_f64().unwrap() > 0.0);
    let processors = report["machine"]["processors"].as_u64().unwrap();
    assert_eq!(report["scaling"]["threads"].as_u64().unwrap_or(1), processors.min(2));
    let sections = report["sections"].as_array().unwrap();
    let mut groups: Vec<&str> = sections.iter().map(|section| section["group"].as_str().unwrap()).collect();
    groups.dedup();
    assert_eq!(groups, GROUPS);
    for section in sections {
        for row in section["rows"].as_array().unwrap() {
            let cells = row["cells"].as_array().unwrap();
            assert_eq!(cells.len(), section["subjects"].as_array().unwrap().len());
            for cell in cells {
                // The difference of a level may be zero or negative.
                let is_difference = row["what"] == "each further level";
                assert!(is_difference || cell["median_ns"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let calls = sections[0]["rows"].as_array().unwrap();
    let names: Vec<&str> = calls.iter().map(|row| row["call"].as_str().unwrap()).collect();
    assert_eq!(names, CALLS);
    let hot = calls.iter().find(|row| row["call"] == "stat-hot").unwrap();
    assert_eq!(hot["cells"][0]["latency"]["batch"], 16, "the report marks calls too short for the clock");
    assert!(calls.iter().all(|row| row["times_wanted"].as_f64().unwrap() >= 4.0));
    let shared = &sections[1]["rows"].as_array().unwrap()[1];
    assert_eq!((&shared["members"], &shared["what"]), (&2.into(), &"create+close".into()));
    assert!(shared["cells"][0]["scaling"].as_f64().unwrap() > 0.0);
    assert_eq!(report["engine"]["directories"][0]["calls"].as_array().unwrap().len(), CALLS.len());
    assert_eq!(report["engine"]["scale"]["files"], 64);

    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.contains("id=report"), "plots, and the figures for programs");
    let links = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("http"), "the page is self-contained");
    assert!(is_empty(images.path()) && left_behind(pid).is_empty(), "it cleans up after itself");
}

#[test]
fn a_directory_alone_gets_a_table_and_is_left_as_it_was() {
    let directory = scratch();
    let path = directory.path().to_str().unwrap();
    let words = [
        "bench",
        path,
        "--beside",
        "none",
        "--only",
        "calls,processes",
        "--sizes",
        "100",
        "--threads",
        "2",
        "--repeat",
        "1",
    ];
    let output = directfs(&words);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    for part in [
        "100 files in one directory, 1 thread",
        "create+close",
        "stat, 16 hot files",
        "2 processes",
        "999 of 1000",
        "~",
        "floor P",
    ] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    assert!(!said.contains("x tmpfs"), "there is nothing to compare with: {said}");
    assert!(is_empty(directory.path()));
}

#[test]
fn the_engine_needs_no_directory_and_reports_what_it_writes() {
    let report = json(&directfs(&["bench", "--only", "engine", "--sizes", "1000", "--repeat", "1", "--json"]));
    assert!(report["subjects"].as_array().unwrap().is_empty());
    let calls = report["engine"]["directories"][0]["calls"].as_array().unwrap();
    let lines =
        |name: &str| calls.iter().find(|call| call["call"] == name).unwrap()["written"]["lines"].as_f64().unwrap();
    assert!(lines("create") >= 1.0 && lines("unlink") > 0.0, "names are written");
    assert_eq!(lines("stat"), 0.0, "stat writes nothing");
}

/// Starts a benchmark that is longer than the test, and waits until it works in the directory.
fn start_long(arguments: &[&str], at_work: impl Fn() -> bool) -> Child {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_directfs"))
        .arg("bench")
        .args(arguments)
        .args(["--only", "calls", "--repeat", "1000", "--sizes", "5000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !at_work() {
        assert!(bench.try_wait().unwrap().is_none(), "it ended before it began to work");
        std::thread::yield_now();
    }
    bench
}

/// Whether a worker has created files in this scratch directory.
fn has_files(scratch: &Path) -> bool {
    fs::read_dir(scratch.join(".directfs-bench/work")).is_ok_and(|mut names| names.next().is_some())
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn an_interrupt_leaves_a_directory_as_it_was() {
    for signal in [Signal::INT, Signal::TERM] {
        let directory = scratch();
        let path = directory.path().to_str().unwrap();
        let bench = start_long(&[path, "--beside", "none"], || has_files(directory.path()));
        send(&bench, signal);
        let output = bench.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(is_empty(directory.path()));
    }
}

#[test]
fn an_interrupt_while_directfs_runs_takes_the_image_away() {
    let images = scratch();
    let path = images.path().to_str().unwrap();
    let is_at_work = || fs::read_dir(images.path()).is_ok_and(|mut names| names.next().is_some());
    let bench = start_long(&["--beside", "directfs", "--image-in", path], is_at_work);
    send(&bench, Signal::INT);
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(is_empty(images.path()));
}

/// The children of a process.
fn children(pid: u32) -> Vec<i32> {
    let said = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    said.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_killed_worker_is_reported_and_cleaned_up() {
    let directory = scratch();
    let path = directory.path().to_str().unwrap();
    let bench = start_long(&[path, "--beside", "none"], || has_files(directory.path()));
    let [worker] = children(bench.id())[..] else { panic!("one worker") };
    kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("killed by signal 9"), "{}", stderr(&output));
    assert!(is_empty(directory.path()));
}

#[test]
fn when_the_benchmark_itself_is_killed_its_worker_cleans_up() {
    let directory = scratch();
    let path = directory.path().to_str().unwrap();
    let mut bench = start_long(&[path, "--beside", "none"], || has_files(directory.path()));
    send(&bench, Signal::KILL);
    bench.wait().unwrap();
    while !is_empty(directory.path()) {
        std::thread::yield_now();
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_made() {
    let (full, empty) = (scratch(), scratch());
    fs::write(full.path().join("precious"), "data").unwrap();
    let (full_path, empty_path) = (full.path().to_str().unwrap(), empty.path().to_str().unwrap());
    let file = full.path().join("precious");
    let page = full.path().join("no/page.html");
    for (arguments, said) in [
        (vec![full_path], ["not empty", "mkdir"]),
        (vec!["/nowhere/at/all"], ["cannot read", "existing directory"]),
        (vec![file.to_str().unwrap()], ["cannot read", "existing directory"]),
        (vec![empty_path, "--only", "calls", "--sizes", "50000000"], ["needs about", "--sizes"]),
        (vec![empty_path, "--html", page.to_str().unwrap()], ["cannot write", "may write"]),
        (vec![empty_path, "--html", full_path], ["is a directory", "specify a file"]),
        (vec![empty_path, "--tree", "/nowhere/at/all"], ["cannot find the tree", "--tree"]),
        (vec!["--beside", "none"], ["nothing to measure", "--beside"]),
        (vec![empty_path, "--only", "engine"], ["in this process", "leave"]),
        (vec!["--only", "threads", "--sizes", "16", "--threads", "2"], ["too few", "--sizes"]),
        (vec!["--beside", "directfs", "--image-in", "/nowhere/at/all"], ["cannot find", "/nowhere"]),
    ] {
        let output = directfs(&[&["bench"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        let error = stderr(&output);
        assert!(said.iter().all(|part| error.contains(part)), "{arguments:?}: {error}");
        assert!(!error.contains("..."), "nothing was measured: {error}");
        assert!(is_empty(empty.path()));
        assert_eq!(fs::read_dir(full.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_benchmark_inside_a_run_is_refused() {
    let binary = env!("CARGO_BIN_EXE_directfs");
    let output = directfs(&["run", "--", binary, "bench", "--quick", "--only", "calls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("start it outside"), "{}", stderr(&output));
}
