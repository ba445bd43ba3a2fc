//! The commands of a document, performed as they are written: on this machine, or in the root of
//! another one.
//!
//! A block of the kind `console` holds commands behind `$ ` (a longer one goes on behind `> `) and
//! what they print, on standard output or error; `...` stands for any text. Below a heading,
//! commands run in order, in one shell and an empty directory on a disk. Each must succeed; what
//! prints nothing in the block may print anything. `<!-- needs: bwrap /dev/fuse -->` names programs
//! and devices without which the commands below a heading are skipped.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Ends the status of a command among its output.
const MARK: char = '\u{1e}';

/// A command of a document.
#[derive(Default)]
pub struct Step {
    line: usize,
    command: String,
    shown: String,
}

/// What one heading has.
#[derive(Default)]
pub struct Section {
    title: String,
    needs: Vec<String>,
    pub steps: Vec<Step>,
}

/// Where commands are performed.
pub enum Place<'a> {
    /// On this machine, with the programs that cargo has built.
    Here,
    /// In the root of another machine, with the programs that are installed there.
    Root(&'a Path),
}

/// Makes `$0` the root of a namespace of mounts, and starts a command there in a directory.
const ENTER: &str = "set -e
mount --bind \"$0\" \"$0\"
cd \"$0\"
mount -t proc proc proc
mkdir -p dev/shm
mount -t tmpfs tmpfs dev/shm
[ -e dev/fuse ] || mknod -m 666 dev/fuse c 10 229
pivot_root . .
umount -l .
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C sh -c 'cd \"$0\" && exec \"$@\"' \"$@\"";

impl Place<'_> {
    /// A directory on a disk, and its name as commands see it.
    fn directory(&self) -> (tempfile::TempDir, PathBuf) {
        let parent = match self {
            Place::Here => PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
            Place::Root(root) => root.join("var/tmp"),
        };
        let directory = tempfile::tempdir_in(parent).unwrap();
        let seen = match self {
            Place::Here => directory.path().to_owned(),
            Place::Root(root) => Path::new("/").join(directory.path().strip_prefix(root).unwrap()),
        };
        (directory, seen)
    }

    /// A command that starts its arguments in a directory. It ends within nine minutes.
    pub fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "540"]).stdin(Stdio::null());
        match self {
            Place::Here => {
                let programs = Path::new(env!("CARGO_BIN_EXE_directfs")).parent().unwrap();
                let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
                command.current_dir(directory).env("PATH", path).env("LC_ALL", "C");
            }
            Place::Root(root) => {
                command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]);
                command.arg(root).arg(directory);
            }
        }
        command
    }
}

/// The sections of a document that have commands.
pub fn sections(text: &str) -> Vec<Section> {
    let mut sections = vec![Section::default()];
    let (mut is_fenced, mut is_console) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let section = sections.last_mut().unwrap();
        if let Some(kind) = line.strip_prefix("```") {
            (is_fenced, is_console) = (!is_fenced, !is_fenced && kind == "console");
        } else if is_console {
            if let Some(command) = line.strip_prefix("$ ") {
                section.steps.push(Step { line: number + 1, command: command.to_owned(), shown: String::new() });
                continue;
            }
            let step = section.steps.last_mut().unwrap_or_else(|| panic!("line {}: no command before it", number + 1));
            let more = line.strip_prefix("> ").filter(|_| step.shown.is_empty());
            let (into, line) = more.map_or((&mut step.shown, line), |more| (&mut step.command, more));
            let separator = if into.is_empty() { "" } else { "\n" };
            write!(into, "{separator}{line}").unwrap();
        } else if !is_fenced && line.starts_with('#') {
            sections.push(Section { title: line.trim_start_matches(['#', ' ']).to_owned(), ..Section::default() });
        } else if let Some(needs) = line.strip_prefix("<!-- needs: ") {
            section.needs.extend(needs.trim_end_matches(" -->").split(' ').map(str::to_owned));
        }
    }
    sections.retain(|section| !section.steps.is_empty());
    sections
}

/// Whether a text is the one shown, in which `...` stands for any text.
fn is_shown(text: &str, shown: &str) -> bool {
    let Some((first, last)) = shown.split_once("...") else { return text == shown };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let (pieces, last) = last.rsplit_once("...").unwrap_or(("", last));
    for piece in pieces.split("...") {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// What is missing for a section.
pub fn missing(section: &Section, place: &Place) -> Option<String> {
    let succeeds =
        |words: &[&str]| place.command(Path::new("/")).args(words).output().is_ok_and(|output| output.status.success());
    let is_here = |need: &str| match need {
        "root" => rustix::process::geteuid().is_root(),
        device if device.starts_with("/dev/") => succeeds(&["sh", "-c", &format!(": <>{device}")]),
        // A namespace of users may be forbidden where its program exists.
        "bwrap" => succeeds(&["bwrap", "--bind", "/", "/", "true"]),
        program => succeeds(&["which", program]),
    };
    section.needs.iter().find(|need| !is_here(need)).map(|need| match need.as_str() {
        "bwrap" => "`bwrap --bind / / true` does not work here".to_owned(),
        need => format!("there is no usable {need} on this machine"),
    })
}

/// Unmounts what a failed section left mounted below its directory.
fn unmount_all(below: &Path) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for point in table.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(point).starts_with(below) {
            let _ = Command::new(env!("CARGO_BIN_EXE_directfs")).args(["umount", "--lazy", point]).output();
        }
    }
}

/// Performs the commands of a section; returns what each printed and its status.
fn perform(section: &Section, place: &Place) -> Vec<(String, String)> {
    let (disk, seen) = place.directory();
    fs::create_dir(disk.path().join("empty")).unwrap();
    // What commands keep for their user, for example a cache, goes with the directory.
    let mut text = format!("exec 2>&1\nexport HOME='{}'\n", seen.display());
    for step in &section.steps {
        writeln!(text, "{}\nprintf '{MARK}%d{MARK}' $?", step.command).unwrap();
    }
    fs::write(disk.path().join("script"), text).unwrap();
    let printed = File::create(disk.path().join("printed")).unwrap();
    let mut shell = place.command(&seen.join("empty"));
    shell.arg("bash").arg(seen.join("script")).stdout(printed);
    let status = shell.status().expect("timeout(1) and bash start");
    unmount_all(disk.path());
    let printed = fs::read(disk.path().join("printed")).unwrap();
    let printed = String::from_utf8_lossy(&printed);
    let mut parts = printed.split(MARK).map(str::to_owned);
    let mut performed = Vec::new();
    while let Some(text) = parts.next() {
        performed.push((text, parts.next().unwrap_or_else(|| format!("the shell's end, {status}"))));
    }
    performed
}

/// What is wrong in a document: by line, a command that fails or prints something else.
pub fn faults(name: &str, text: &str, place: &Place) -> Vec<String> {
    let mut faults = Vec::new();
    for section in sections(text) {
        if let Some(missing) = missing(&section, place) {
            eprintln!("\n*** SKIPPED: {name}, {:?}: {missing} ***\n", section.title);
            continue;
        }
        for (step, (printed, status)) in section.steps.iter().zip(perform(&section, place)) {
            let printed = printed.trim_end();
            let at = format!("{name}:{}: `{}`", step.line, step.command);
            if status != "0" {
                faults.push(format!("{at} ends with {status}, after\n{printed}"));
                break;
            }
            if !step.shown.is_empty() && !is_shown(printed, step.shown.trim_end()) {
                faults.push(format!("{at} prints\n{printed}\nand not\n{}", step.shown));
            }
        }
    }
    faults
}
