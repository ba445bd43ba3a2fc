//! Compares every call and flag of docs/posix.md, made by a real process on tmpfs, on ext4, on a
//! mount with and without the kernel's cache, and under `directfs run`. All must give the same
//! answers and leave the same tree, except for the differences listed in the table of calls.
//!
//! The calls are in `calls.txt`; `calls.c` makes them and documents their syntax. Each section of
//! the table has the name of a row in part 1 of docs/posix.md, and each row has a section, so that
//! both are complete.
//!
//! Differences follow `||`: `|| tmpfs: EOPNOTSUPP; mount: ENOSYS` lists the systems with another
//! answer than the common one. A listed difference that does not occur is a failure, as is one that
//! is not listed. `mount` means both mounts; `mount0` (which shares its image) and `mount1` are
//! single ones. If `run` answers differently from a mount, the section is also a row in part 4 of
//! docs/posix.md.

#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{can_mount, directfs, stderr, stdout};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/posix");
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/posix.md");

/// The answers of a system, by line of the table. A section's first line holds its tree.
type Answers = BTreeMap<usize, Vec<String>>;

/// A line of the table.
struct Line<'t> {
    section: &'t str,
    text: &'t str,
    /// The answers of single systems.
    differences: Vec<(&'t str, &'t str)>,
}

/// The table, by line numbers.
struct Table<'t> {
    lines: BTreeMap<usize, Line<'t>>,
    sections: Vec<&'t str>,
}

impl<'t> Table<'t> {
    fn read(text: &'t str) -> Table<'t> {
        let mut table = Table { lines: BTreeMap::new(), sections: Vec::new() };
        let mut section = "";
        for (index, text) in text.lines().enumerate() {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (text, rest) = text.split_once("||").unwrap_or((text, ""));
            if let Some(title) = text.strip_prefix("== ") {
                section = title.trim();
                table.sections.push(section);
            }
            let differences = rest.split(';').filter(|part| !part.trim().is_empty()).map(|part| {
                let (system, answer) = part.split_once(':').expect("a difference names its system");
                (system.trim(), answer.trim())
            });
            let line = Line { section, text: text.trim(), differences: differences.collect() };
            table.lines.insert(index + 1, line);
        }
        table
    }
}

/// The first cells of the tables in a part of docs/posix.md whose first column has one of these
/// names.
fn rows<'d>(document: &'d str, from: &str, to: &str, columns: &[&str]) -> BTreeSet<&'d str> {
    let start = document.find(from).expect("the document has that part");
    let end = document[start..].find(to).map_or(document.len(), |end| start + end);
    let mut is_wanted = false;
    let mut rows = BTreeSet::new();
    for line in document[start..end].lines() {
        let Some((cell, _)) = line.strip_prefix("| ").and_then(|row| row.split_once(" |")) else {
            is_wanted = false;
            continue;
        };
        if !is_wanted {
            is_wanted = columns.contains(&cell);
        } else if !cell.starts_with("---") {
            assert!(rows.insert(cell), "{cell} occurs twice");
        }
    }
    rows
}

/// The program that performs the calls; none without a compiler.
fn caller(scratch: &Path) -> Option<PathBuf> {
    let binary = scratch.join("calls");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&binary).arg(Path::new(DIRECTORY).join("calls.c"));
    let status = compiler.status().ok()?;
    assert!(status.success(), "calls.c does not compile");
    Some(binary)
}

fn answers(system: &str, output: &Output) -> Answers {
    assert!(output.status.success(), "on {system}: {:?}: {}", output.status, stderr(output));
    let mut answers = Answers::new();
    for line in stdout(output).lines() {
        let (number, answer) = line.split_once('\t').unwrap_or_else(|| panic!("on {system}: {line}"));
        answers.entry(number.parse().unwrap()).or_default().push(answer.to_owned());
    }
    answers
}

/// The scratch directory and the program for the calls.
struct Scene {
    scratch: tempfile::TempDir,
    calls: PathBuf,
    table: PathBuf,
}

impl Scene {
    fn on(&self, system: &str, directory: &Path) -> Answers {
        let mut command = Command::new(&self.calls);
        let output = command.arg(&self.table).arg(directory).stdin(Stdio::null()).output().unwrap();
        answers(system, &output)
    }

    /// The answers on a directory of the host; none if its file system has another type.
    fn on_machine(&self, system: &str, parent: &Path, magic: u64) -> Option<Answers> {
        let found = rustix::fs::statfs(parent).unwrap().f_type as u64;
        if found != magic {
            eprintln!("\n*** NOT COMPARED with {system}: {} is on another file system ***\n", parent.display());
            return None;
        }
        let directory = tempfile::tempdir_in(parent).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(self.on(system, directory.path()))
    }

    fn image(&self, name: &str) -> PathBuf {
        let image = self.scratch.path().join(name);
        let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "256M", "--sparse"]);
        assert!(made.status.success(), "{}", stderr(&made));
        image
    }

    fn check(&self, image: &Path) {
        let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
        assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
        assert!(stdout(&check).contains("left cleanly;"), "{}", stdout(&check));
    }

    fn on_mount(&self, system: &str, cache: &str) -> Answers {
        let (image, at) = (self.image(system), self.scratch.path().join(format!("{system}-at")));
        fs::create_dir(&at).unwrap();
        let options = ["mount", image.to_str().unwrap(), at.to_str().unwrap(), "-o", cache];
        let mounted = directfs(&options);
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        let answers = std::panic::catch_unwind(|| self.on(system, &at));
        support::unmount(&at);
        let answers = answers.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.check(&image);
        answers
    }

    fn under_run(&self) -> Answers {
        let image = self.image("run");
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image"]).arg(&image).arg("--").arg(&self.calls).arg(&self.table).arg("/mnt/directfs");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let answers = answers("run", &output);
        self.check(&image);
        answers
    }
}

/// The expected answer of a system: its own where the line lists one, else the common one.
fn wanted<'a>(line: &Line<'a>, system: &str, common: &'a str) -> &'a str {
    let own =
        line.differences.iter().find(|(user, _)| *user == system || system.strip_suffix(['0', '1']) == Some(user));
    own.map_or(common, |(_, answer)| answer)
}

/// The answer of the systems that the line does not list.
fn common<'a>(line: &Line<'_>, all: &'a [(&str, Answers)], number: usize) -> Option<&'a Vec<String>> {
    let listed = |system: &str| wanted(line, system, "\0") != "\0";
    all.iter().find(|(system, _)| !listed(system)).and_then(|(_, answers)| answers.get(&number))
}

fn compare(table: &Table<'_>, all: &[(&str, Answers)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, line) in &table.lines {
        let nothing = Vec::new();
        let common = common(line, all, *number).unwrap_or(&nothing);
        for (system, answers) in all {
            let found = answers.get(number).unwrap_or(&nothing);
            if line.text.starts_with("==") {
                wrong.extend(
                    tree_differences(common, found).map(|words| format!("{}: tree on {system}: {words}", line.section)),
                );
                continue;
            }
            let (found, common) = (found.join("; "), common.join("; "));
            let expected = wanted(line, system, &common);
            if found != expected {
                wrong.push(format!("{number}: {}\n    {system} answers {found:?}, expected {expected:?}", line.text));
            } else if expected == common && wanted(line, system, "\0") != "\0" {
                wrong.push(format!(
                    "{number}: {}\n    {system} answers {found:?} like all others: the listed difference does not occur",
                    line.text
                ));
            }
        }
    }
    wrong
}

fn tree_differences<'a>(wanted: &'a [String], found: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let missing = wanted.iter().filter(|line| !found.contains(line)).map(|line| format!("missing: {line}"));
    missing.chain(found.iter().filter(|line| !wanted.contains(line)).map(|line| format!("unexpected: {line}")))
}

fn texts() -> (String, String) {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    (read(Path::new(DIRECTORY).join("calls.txt")), read(DOCUMENT.into()))
}

fn assert_same(rows: &BTreeSet<&str>, sections: &BTreeSet<&str>, what: &str) {
    let (without, unknown): (Vec<_>, Vec<_>) =
        (rows.difference(sections).collect(), sections.difference(rows).collect());
    assert!(without.is_empty(), "{what}: rows of docs/posix.md without calls: {without:#?}");
    assert!(unknown.is_empty(), "{what}: sections of calls.txt without rows in docs/posix.md: {unknown:#?}");
}

#[test]
fn each_row_of_the_document_has_its_calls() {
    let (text, document) = texts();
    let table = Table::read(&text);
    let sections: BTreeSet<&str> = table.sections.iter().copied().collect();
    assert_eq!(sections.len(), table.sections.len(), "a section occurs twice");
    assert_same(&rows(&document, "\n## 1.", "\n### Mounting", &["call", "call or flag"]), &sections, "part 1");
}

#[test]
fn what_differs_under_run_is_in_the_document() {
    let (text, document) = texts();
    let table = Table::read(&text);
    let answer = |line: &Line<'_>, system: &str| wanted(line, system, "").to_owned();
    let differs =
        |line: &&Line<'_>| ["mount0", "mount1"].iter().all(|mount| answer(line, "run") != answer(line, mount));
    let sections = table.lines.values().filter(|line| !line.differences.is_empty()).filter(differs);
    let sections: BTreeSet<&str> =
        sections.filter(|line| !answer(line, "run").is_empty()).map(|line| line.section).collect();
    assert_same(&rows(&document, "\n## 4.", "\n## 5.", &["row of part 1"]), &sections, "part 4");
}

/// Only under `run`: on a mount it takes ten minutes.
#[test]
#[ignore = "ten million files: some minutes, and 7 GiB of memory"]
fn a_directory_holds_ten_million_names() {
    let scratch = support::scratch();
    let Some(calls) = caller(scratch.path()) else { return eprintln!("\n*** SKIPPED: there is no C compiler ***\n") };
    let (image, table) = (scratch.path().join("image"), scratch.path().join("table"));
    fs::write(&table, "== ten million\ncrowd 10000000\n").unwrap();
    let options = ["--size", "6G", "--inodes", "10100000", "--sparse"];
    let made = directfs(&[&["mkfs", image.to_str().unwrap()], &options[..]].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--image"]).arg(&image).arg("--").arg(&calls).arg(&table).arg("/mnt/directfs");
    let answers = answers("run", &command.stdin(Stdio::null()).output().unwrap());
    let wanted = "10000000 made, missing 0, twice 0, 0 of 16 cookies wrong, 10000000 found, 10000000 removed, 0 found again, directory removed";
    assert_eq!(answers[&2], [wanted]);
    Scene { scratch, calls, table }.check(&image);
}

#[test]
fn calls_answer_alike_everywhere() {
    let test = "calls_answer_alike_everywhere";
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: {test}: calls are made as several users, which needs root ***\n");
        return;
    }
    let scratch = support::scratch();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let Some(calls) = caller(scratch.path()) else {
        eprintln!("\n*** SKIPPED: {test}: there is no C compiler ***\n");
        return;
    };
    let scene = Scene { scratch, calls, table: Path::new(DIRECTORY).join("calls.txt") };
    const TMPFS: u64 = 0x0102_1994;
    const EXT4: u64 = 0xef53;
    let mut all = vec![("run", scene.under_run())];
    if can_mount(test) {
        all.push(("mount1", scene.on_mount("mount1", "cache=1")));
        all.push(("mount0", scene.on_mount("mount0", "cache=0")));
    }
    let machine = [("tmpfs", Path::new("/dev/shm"), TMPFS), ("ext4", Path::new(env!("CARGO_TARGET_TMPDIR")), EXT4)];
    for (system, parent, magic) in machine {
        all.extend(scene.on_machine(system, parent, magic).map(|answers| (system, answers)));
    }
    // The machine's file systems come first and determine the common answer.
    all.reverse();
    let (text, _) = texts();
    let wrong = compare(&Table::read(&text), &all);
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
