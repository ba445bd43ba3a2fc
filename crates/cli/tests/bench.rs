//! Output and cleanup of `directfs bench`. Durations are never asserted.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{can_mount, directfs, scratch, stderr, stdout};

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

/// The legends of a page: each name with its colour.
fn legend(page: &str) -> Vec<(&str, &str)> {
    let entry = |text| {
        let (mark, name): (&str, &str) = str::split_once(text, "</svg>")?;
        let colour = mark.split_once("fill=\"")?.1.split('"').next()?;
        Some((name.split("</span>").next()?, colour))
    };
    page.split("<div class=legend>").flat_map(|part| part.split("<span>").skip(1).filter_map(entry)).collect()
}

/// The seconds of a program by system, in the page on performance.
fn seconds_of_the_page(program: &str) -> Option<Vec<String>> {
    let page = document("docs/performance.md");
    let section = page.split_once("\n### Work\n").expect("the heading").1.split("\n#").next()?.to_owned();
    section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")).find_map(|row| {
        let mut cells = row.split(" | ").map(|cell| cell.split("; ").collect::<Vec<_>>());
        let at = cells.next()?.iter().position(|name| *name == program)?;
        cells.map(|cell| cell.get(at).map(|text| (*text).to_owned())).collect()
    })
}

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_chart_of_the_readme_is_drawn_from_kept_figures_and_the_page_on_performance_has_them() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/work.json");
    let drawn = directfs(&["bench", "--draw", kept.to_str().unwrap()]);
    assert!(drawn.status.success(), "{}", stderr(&drawn));
    let picture = stdout(&drawn);
    let message = "docs/work.svg is old: `directfs bench --draw docs/work.json >docs/work.svg` makes it again";
    assert!(picture == document("docs/work.svg"), "{message}");
    assert!(document("README.md").contains("docs/work.svg"), "README.md does not show the chart");
    let report: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    for row in report["sections"][0]["rows"].as_array().unwrap() {
        let program = row["what"].as_str().unwrap();
        assert!(picture.contains(program), "{program}: {picture}");
        let shown = seconds_of_the_page(program).unwrap_or_else(|| panic!("docs/performance.md lacks {program}"));
        for (cell, text) in row["cells"].as_array().unwrap().iter().zip(shown) {
            let places = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            let seconds = format!("{:.places$}", cell["median_ns"].as_f64().unwrap() / 1e9);
            assert_eq!(seconds, text, "{program} in docs/performance.md");
            assert!(picture.contains(&format!("{text} s")), "{program}: {picture}");
        }
    }
    // It is read on light and dark screens: the paper has a colour of its own.
    let dark = picture.split_once("<style>").and_then(|(_, rest)| rest.split("</style>").next()).expect("a style");
    assert!(dark.contains("svg [fill=\"#FFFFFF\"]{fill:#181818}svg [stroke=\"#FFFFFF\"]"), "{dark}");
    assert!(dark.contains("svg [fill=\"#222222\"]{fill:#dddddd}"), "{dark}");
}

#[test]
fn a_disk_is_known_by_its_syncs_and_measured_without_them_where_eatmydata_is_installed() {
    let arguments = ["bench", "--quick", "--only", "small", "--beside", "disk,eatmydata", "--sizes", "32"];
    let report = json(&directfs(&[&arguments[..], &["--threads", "1", "--repeat", "1", "--json"]].concat()));
    let subjects = report["subjects"].as_array().unwrap();
    assert!(subjects[0]["sync_ns"].as_f64().unwrap() > 0.0, "{report}");
    assert!(subjects[0]["place"].as_str().unwrap().contains("to write and sync 4 KiB takes"), "{report}");
    let has_it = Command::new("eatmydata").arg("true").output().is_ok();
    if has_it {
        assert!(subjects[1]["name"].as_str().unwrap().ends_with(" with eatmydata"), "{report}");
        assert!(subjects[1]["sync_ns"].is_null(), "{report}");
    } else {
        assert!(report["absent"][0].as_str().unwrap().contains("there is no program eatmydata"), "{report}");
    }
}

#[test]
fn an_image_on_the_disk_is_measured_beside_the_disk() {
    let arguments = ["bench", "--quick", "--only", "small", "--beside", "disk,journaled", "--sizes", "32"];
    let report = json(&directfs(&[&arguments[..], &["--threads", "1", "--repeat", "1", "--json"]].concat()));
    let place = |subject: usize| report["subjects"][subject]["place"].as_str().unwrap();
    assert_eq!(report["subjects"][1]["name"], "directfs, journaled");
    let disk = place(0).split(';').next().unwrap();
    assert!(place(1).starts_with(&format!("directfs run, with its image on {disk}, ")), "{report}");
    assert!(report["sections"][0]["rows"][0]["cells"][1]["median_ns"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn what_is_no_report_of_programs_is_not_drawn() {
    let directory = scratch();
    let file = directory.path().join("report.json");
    for (text, why) in [
        ("text", "is not a report of `directfs bench --json`"),
        ("{}", "it has no sections"),
        (r#"{"sections": [{"group": "calls"}]}"#, "bench --only programs --json"),
        (r#"{"sections": [{"group": "programs", "subjects": [], "rows": []}]}"#, "it has none of the programs tar -xf"),
    ] {
        fs::write(&file, text).unwrap();
        let refused = directfs(&["bench", "--draw", file.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(refused.stdout.is_empty() && stderr(&refused).contains(why), "{text}: {}", stderr(&refused));
    }
    // It draws what was measured, and measures nothing.
    assert_eq!(directfs(&["bench", "--draw", file.to_str().unwrap(), "--quick"]).status.code(), Some(2));
}

#[test]
fn two_builds_are_compared_in_turns() {
    let itself = env!("CARGO_BIN_EXE_directfs");
    let arguments = ["bench", "--only", "calls", "--sizes", "16", "--repeat", "1", "--against"];
    let compared = directfs(&[&arguments[..], &[itself]].concat());
    assert!(compared.status.success(), "{}", stderr(&compared));
    let (table, rounds) = (stdout(&compared), stderr(&compared));
    assert!(table.lines().any(|line| line.starts_with("create+close ")), "{table}");
    assert!(table.contains("this / other") && table.contains("in at least 4 of 5 rounds: "), "{table}");
    assert_eq!(rounds.matches(&format!("of 5: {itself}")).count(), 10, "{rounds}");

    for (other, why) in [("/bin/true", "is not directfs"), ("/nowhere", "cannot run /nowhere")] {
        let refused = directfs(&[&arguments[..], &[other]].concat());
        assert_eq!(refused.status.code(), Some(1));
        assert!(refused.stdout.is_empty() && stderr(&refused).contains(why), "{}", stderr(&refused));
    }
    let twice = ["bench", "--json", "--against", itself];
    assert_eq!(directfs(&twice).status.code(), Some(2));
}

/// A page that stands alone, and gives each system one colour in all its legends.
fn check_page(page: &str) {
    assert!(page.contains("<svg") && page.contains("id=report"), "plots, and the figures for programs");
    let links = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("http"), "the page is self-contained");
    let names: Vec<&str> = legend(page).into_iter().map(|(name, _)| name).collect();
    for subject in ["directfs", "tmpfs", "directfs, journaled"] {
        assert!(names.contains(&subject), "{subject} has a chart: {names:?}");
    }
    for (name, colour) in legend(page) {
        let others = legend(page).into_iter().filter(|other| other.0 != name);
        others.for_each(|(other, its)| assert_ne!(its, colour, "{name} and {other} differ on the whole page"));
        let is_one = legend(page).into_iter().all(|other| other.0 != name || other.1 == colour);
        assert!(is_one, "{name} has one colour on the whole page");
    }
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
const GROUPS: [&str; 15] = [
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
    "programs",
    "durable",
    "store",
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
    // The last one has a test of its own, because not every machine can mount.
    assert_eq!(groups.iter().filter(|&&group| group != "mount").collect::<Vec<_>>(), GROUPS.each_ref());
    for section in sections {
        for row in section["rows"].as_array().unwrap() {
            let cells = row["cells"].as_array().unwrap();
            assert_eq!(cells.len(), section["subjects"].as_array().unwrap().len());
            for cell in cells {
                // The difference of a level may be zero or negative.
                let is_difference = row["what"] == "each further level";
                // A program that the machine lacks is left out, and the report says so; and a step
                // for which a system has nothing.
                let may_lack = section["group"] == "programs" || section["group"] == "store";
                let is_left_out = may_lack && cell["median_ns"].is_null();
                let what = row["what"].as_str().unwrap();
                assert!(!is_left_out || section["left_out"].to_string().contains(what), "{section}");
                assert!(is_left_out || is_difference || cell["median_ns"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let programs = sections.iter().find(|section| section["group"] == "programs").unwrap();
    let script = programs["rows"].as_array().unwrap().iter().find(|row| row["what"] == "sh, like configure").unwrap();
    assert!(script["cells"][0]["user_ns"].as_f64().unwrap() + script["cells"][0]["system_ns"].as_f64().unwrap() > 0.0);
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
    check_page(&page);
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
fn programs_run_on_mounts_and_their_requests_are_counted() {
    if !can_mount("programs_run_on_mounts_and_their_requests_are_counted") {
        return;
    }
    let (images, elsewhere, other) = (scratch(), scratch(), scratch());
    let tree = elsewhere.path().join("tree");
    make_tree(&tree);
    let command = |json: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["bench", "--only", "mount", "--repeat", "1", "--image-in"]).arg(images.path());
        command.arg(other.path()).arg("--tree").arg(&tree).args(Some(json).filter(|json| !json.is_empty()));
        command.output().unwrap()
    };
    let report = json(&command("--json"));
    let section = &report["sections"][0];
    let subjects: Vec<&str> =
        section["subjects"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let at = |name: &str| subjects.iter().position(|subject| *subject == name).unwrap();
    let (alone, shared, tmpfs) = (at("mount"), at("mount, cache=0"), at("tmpfs"));
    assert_eq!(subjects.last(), Some(&other.path().to_str().unwrap()), "a directory of the user comes last");
    let row = |what: &str| {
        let rows = section["rows"].as_array().unwrap();
        rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{what} is missing"))
    };
    let requests = |what: &str, subject: usize| row(what)["cells"][subject]["requests_per_file"].as_f64();
    for what in ["cp -r, into it", "diff -r with the original", "du -s", "rm -rf", "tar -xf"] {
        assert_eq!(row(what)["shares_of_tmpfs"][tmpfs], 1.0);
        assert!(row(what)["share_wanted"].as_f64().unwrap() >= 1.5);
        assert!(requests(what, shared) > requests(what, alone), "{what}: a shared image is asked for more");
        assert!(requests(what, tmpfs).is_none(), "tmpfs has no server");
    }
    assert!(requests("cp -r, into it", alone).unwrap() >= 3.0);
    // The kernel has the attributes of files, unless it needed the memory. The listing before has
    // outdated the directories' access times.
    let [kept, asked] = [alone, shared].map(|subject| requests("du -s, again", subject).unwrap());
    assert!(kept < asked / 2.0, "{kept} requests for each file, and {asked} of a shared image");

    let said = stdout(&command(""));
    assert!(
        said.contains("requests per file, mount") && said.contains("(1.00 x)") && said.contains("≤ 2.5 x"),
        "{said}"
    );
    assert!(is_empty(images.path()) && is_empty(other.path()), "it cleans up after itself");
}

#[test]
fn an_interrupted_or_killed_benchmark_leaves_no_mount() {
    if !can_mount("an_interrupted_or_killed_benchmark_leaves_no_mount") {
        return;
    }
    let is_mounted = |images: &Path| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(images.to_str().unwrap())
    };
    for signal in [Signal::INT, Signal::KILL] {
        let (images, elsewhere) = (scratch(), scratch());
        make_tree(elsewhere.path());
        let mut bench = Command::new(env!("CARGO_BIN_EXE_directfs"))
            .args(["bench", "--only", "mount", "--repeat", "1000", "--beside", "tmpfs", "--image-in"])
            .arg(images.path())
            .arg("--tree")
            .arg(elsewhere.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // tmpfs comes last, so each subject has a worker then.
        let tmpfs = format!("directfs-bench.{}.tmpfs", bench.id());
        let works = || {
            let scratches = fs::read_dir("/dev/shm").unwrap().flatten();
            let mut own = scratches.filter(|scratch| scratch.file_name().to_string_lossy().starts_with(&tmpfs));
            own.any(|scratch| scratch.path().join("work/tree").exists())
        };
        let deadline = Instant::now() + Duration::from_secs(600);
        while !works() {
            assert!(bench.try_wait().unwrap().is_none(), "it ended before it began to work");
            assert!(Instant::now() < deadline, "it does not work");
            std::thread::yield_now();
        }
        send(&bench, signal);
        bench.wait().unwrap();
        while is_mounted(images.path()) || !is_empty(images.path()) || !left_behind(bench.id()).is_empty() {
            assert!(Instant::now() < deadline, "{signal:?} leaves {:?}", fs::read_dir(images.path()));
            std::thread::yield_now();
        }
    }
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
