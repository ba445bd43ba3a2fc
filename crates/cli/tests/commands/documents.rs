//! The commands of the documents, performed as they are written.
//!
//! A block of the kind `console` holds commands behind `$ ` (a longer one goes on behind `> `) and
//! what they print, on standard output or error; `...` stands for any text. Below a heading,
//! commands run in order, in one shell and an empty directory on a disk. Each must succeed; what
//! prints nothing in the block may print anything. `<!-- needs: bwrap /dev/fuse -->` names programs
//! and devices without which the commands below a heading are skipped.
//!
//! Tests that a document names beside its promises exist.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// Ends the status of a command among its output.
const MARK: char = '\u{1e}';

/// A command of a document.
#[derive(Default)]
struct Step {
    line: usize,
    command: String,
    shown: String,
}

/// What one heading has.
#[derive(Default)]
struct Section {
    title: String,
    needs: Vec<String>,
    steps: Vec<Step>,
}

/// The sections of a document that have commands.
fn sections(text: &str) -> Vec<Section> {
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

/// What is missing on this machine for a section.
fn missing(section: &Section) -> Option<String> {
    let is_here = |need: &str| match need {
        "root" => rustix::process::geteuid().is_root(),
        device if device.starts_with("/dev/") => File::options().read(true).write(true).open(device).is_ok(),
        // A namespace of users may be forbidden where its program exists.
        "bwrap" => Command::new("bwrap").args(["--bind", "/", "/", "true"]).output().is_ok_and(|o| o.status.success()),
        program => Command::new("which").arg(program).output().is_ok_and(|output| output.status.success()),
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
fn perform(section: &Section) -> Vec<(String, String)> {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (script, place) = (disk.path().join("script"), disk.path().join("empty"));
    fs::create_dir(&place).unwrap();
    let mut text = String::from("exec 2>&1\n");
    for step in &section.steps {
        writeln!(text, "{}\nprintf '{MARK}%d{MARK}' $?", step.command).unwrap();
    }
    fs::write(&script, text).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_directfs")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let printed = File::create(disk.path().join("printed")).unwrap();
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=10", "540", "bash"]).arg(&script).current_dir(&place);
    shell.env("PATH", path).env("LC_ALL", "C").stdin(Stdio::null()).stdout(printed);
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
fn faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for section in sections(text) {
        if let Some(missing) = missing(&section) {
            eprintln!("\n*** SKIPPED: {name}, {:?}: {missing} ***\n", section.title);
            continue;
        }
        for (step, (printed, status)) in section.steps.iter().zip(perform(&section)) {
            let printed = printed.trim_end();
            let place = format!("{name}:{}: `{}`", step.line, step.command);
            if status != "0" {
                faults.push(format!("{place} ends with {status}, after\n{printed}"));
                break;
            }
            if !step.shown.is_empty() && !is_shown(printed, step.shown.trim_end()) {
                faults.push(format!("{place} prints\n{printed}\nand not\n{}", step.shown));
            }
        }
    }
    faults
}

/// Performs the commands of a document, of which it has at least this number.
fn check(name: &str, commands_min: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(name);
    let text = fs::read_to_string(path).unwrap();
    let commands: usize = sections(&text).iter().map(|section| section.steps.len()).sum();
    assert!(commands >= commands_min, "{name} has {commands} commands");
    let faults = faults(name, &text);
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn the_commands_of_the_readme_work_as_written() {
    check("README.md", 3);
}

#[test]
fn the_commands_of_the_recipes_work_as_written() {
    check("docs/recipes.md", 40);
}

#[test]
fn the_commands_of_the_guide_work_as_written() {
    check("docs/guide.md", 10);
}

#[test]
fn each_block_of_the_recipes_is_performed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/recipes.md");
    let text = fs::read_to_string(path).unwrap();
    assert!(!text.lines().any(|line| line.starts_with("    ")), "a block that is not of the kind console");
    assert!(text.lines().filter(|line| line.starts_with("```")).all(|line| ["```", "```console"].contains(&line)));
}

/// Adds the text of all sources below a directory.
fn add_sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn each_test_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut sources = String::new();
    add_sources(&root.join("crates"), &mut sources);
    let mut named = 0;
    for document in ["docs/threat-model.md", "docs/guide.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let is_test = |name: &&str| {
            name.matches('_').count() > 2
                && !name.contains(|c: char| !c.is_ascii_lowercase() && c != '_' && !c.is_ascii_digit())
        };
        for name in text.split('`').filter(is_test) {
            assert!(sources.contains(&format!("fn {name}(")), "{document} names {name}, which does not exist");
            named += 1;
        }
    }
    assert!(named > 40, "{named} names");
}

#[test]
fn a_document_that_is_wrong_is_found_by_its_line() {
    let wrong = [
        ("```console\n$ true\n$ false\n$ true\n```", "x:3: `false` ends with 1"),
        ("```console\n$ exit 0\n$ true\n```", "x:2: `exit 0` ends with the shell's end"),
        ("```console\n$ echo one\ntwo\n```", "x:2: `echo one` prints\none\nand not\ntwo"),
        ("```console\n$ echo one two\none ... three\n```", "x:2: `echo one two` prints"),
        ("```console\n$ directfs info nowhere.img\n```", "x:2: `directfs info nowhere.img` ends with 1"),
    ];
    for (text, fault) in wrong {
        let faults = faults("x", text);
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{text}: {faults:?}");
    }
    let right = "# One\n```console\n$ x=1; cd /\n$ for a in $x 2; do\n> echo $a >&2\n> done\n1\n2\n$ pwd\n/\n$ echo a b c\na ... c\n```\n\
        ```\n$ false\n```\n    $ false\n";
    assert_eq!(faults("x", right), Vec::<String>::new());
    let needy = "# Two\n<!-- needs: no-such-program-42 -->\n```console\n$ false\n```\n";
    let needy = sections(needy).into_iter().find(|section| !section.steps.is_empty()).unwrap();
    assert!(missing(&needy).is_some(), "it is skipped");
}
