//! `--json`: keys are those that help names, examples find them, and a failure is an object, too.

use super::json;
use crate::support::{can_mount, copy_into, directfs, image_in, scratch, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Command;

/// The keys that the help of a command names.
fn named(command: &[&str]) -> BTreeSet<String> {
    let help = stdout(&directfs(&[command, &["--help"]].concat()));
    let list = help.split_once("Keys of --json: ").unwrap_or_else(|| panic!("{command:?}: {help}")).1;
    let mut depth = 0;
    let mut outside = String::new();
    for letter in list.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            '.' if depth == 0 => break,
            letter if depth == 0 => outside.push(letter),
            _ => {}
        }
    }
    // Keys have no spaces: what stands in front of them in a sentence is cut off.
    let words = outside.split([',', ':']).filter_map(|part| part.split_whitespace().next_back());
    words.map(str::to_owned).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap_or_else(|| panic!("{value}")).keys().cloned().collect()
}

#[test]
fn help_names_exactly_the_keys_that_are_printed() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (image, new, url) = (place("image"), place("new"), format!("file://{}", place("store")));
    let (copy, clone, pulled) = (place("copy"), place("clone"), place("pulled"));
    image_in(directory.path());
    for (command, arguments) in [
        (&["mkfs"][..], &[&new, "--size", "16M", "--from", tree.to_str().unwrap()][..]),
        (&["info"], &[&image]),
        (&["ps"], &[&image]),
        (&["stats"], &[&image]),
        (&["top"], &[&image, "--interval", "0.05", "--count", "1"]),
        (&["trim"], &[&image]),
        (&["resize"], &[&image, "20M"]),
        (&["tune"], &[&image, "--label", "x"]),
        (&["snapshot"], &[&image, &copy]),
        (&["clone"], &[&image, &clone]),
        (&["push"], &[&image, &url]),
        (&["pull"], &[&url, &pulled]),
        (&["store", "list"], &[&url]),
        (&["store", "gc"], &[&url]),
        (&["fsck"], &["-n", &image]),
    ] {
        let printed = json(&[command, arguments, &["--json"]].concat());
        assert_eq!(keys(&printed), named(command), "{command:?}");
    }
    let archive = place("archive");
    fs::write(&archive, [0; 1024]).unwrap();
    let mut import = Command::new(env!("CARGO_BIN_EXE_directfs"));
    let imported = import.args(["import", &image, "--json"]).stdin(File::open(&archive).unwrap()).output().unwrap();
    assert_eq!(keys(&serde_json::from_slice(&imported.stdout).unwrap()), named(&["import"]));
    assert!(copy_into(&image, &tree).status.success());
    let report = place("report");
    let profiled = directfs(&["profile", "--json", "--output", &report, "--image", &image, "--", "true"]);
    assert!(profiled.status.success(), "{}", stderr(&profiled));
    assert_eq!(keys(&serde_json::from_slice(&fs::read(&report).unwrap()).unwrap()), named(&["profile"]));
}

#[test]
fn mounts_name_their_keys_too() {
    if !can_mount("keys of mounts") {
        return;
    }
    let directory = scratch();
    let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
    fs::create_dir(&point).unwrap();
    let (image, point) = (image.to_str().unwrap(), point.to_str().unwrap());
    assert_eq!(keys(&json(&["mount", image, point, "--json"])), named(&["mount"]));
    assert_eq!(keys(&json(&["umount", "--lazy", point, "--json"])), named(&["umount"]));
    // The cause, which the server of the mount finds.
    let failed = directfs(&["mount", image, "/nowhere", "--json"]);
    let value: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert!(value["error"].as_str().is_some_and(|error| error.contains("create the directory first")), "{value}");
}

/// The help of each command names its examples; those that read JSON are run as they are printed.
#[test]
fn examples_of_help_that_read_json_find_their_keys() {
    if Command::new("jq").arg("--version").output().is_err() {
        eprintln!("\n*** SKIPPED: examples with jq: there is no jq here ***\n");
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let mut tried = 0;
    for command in
        [&["info"][..], &["ps"], &["stats"], &["trim"], &["snapshot"], &["push"], &["store", "list"], &["replicate"]]
    {
        let help = stdout(&directfs(&[command, &["--help"]].concat()));
        for line in help.lines().filter(|line| line.contains("| jq ")) {
            let mut script = line.to_owned();
            for (name, here) in [
                ("backup/work.img", place("copy").as_str()),
                ("/dev/shm/work.img", "IMAGE"),
                ("/var/lib/mail.img", "IMAGE"),
                (" work.img", " IMAGE"),
                (" mail.img", " IMAGE"),
                ("IMAGE", image.to_str().unwrap()),
                ("file:///srv/images/work", "STORE"),
                ("s3://backup/work", "STORE"),
                ("s3://backup/mail", "STORE"),
                ("STORE", &format!("file://{}", place("store"))),
                ("--interval 10 --count 6", "--interval 0.05 --count 2"),
                // It follows the image until a signal. Not in the foreground `timeout` would send a
                // second one, which ends it at once.
                ("directfs replicate", "timeout --foreground --preserve-status --signal=INT 1 directfs replicate"),
                ("directfs ", "\"$PROGRAM\" "),
            ] {
                script = script.replace(name, here);
            }
            let mut shell = Command::new("bash");
            let output =
                shell.args(["-e", "-o", "pipefail", "-c", &script]).env("PROGRAM", env!("CARGO_BIN_EXE_directfs"));
            let output = output.output().unwrap();
            let printed = stdout(&output);
            // No process uses the image, so `ps` has none to list.
            let is_found = (command == ["ps"] || !printed.is_empty()) && printed.lines().all(|line| line != "null");
            assert!(output.status.success() && is_found, "{line}: {printed}{}", stderr(&output));
            tried += 1;
        }
    }
    assert_eq!(tried, 8);
}

#[test]
fn a_command_without_json_says_why() {
    for (arguments, code, why) in [
        (&["run", "--json", "--", "true"][..], 125, "its standard output is that of the program"),
        (&["export", "work.img", "--json"], 2, "its standard output is the archive"),
        (&["dump", "work.img", "superblock", "--json"], 2, "`info --json`"),
    ] {
        let output = directfs(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
        // Also this failure is an object, as one of a command that has the option.
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(value["error"].as_str().is_some_and(|error| error.contains(why)), "{arguments:?}: {value}");
    }
    // An option of the program is its own.
    assert_eq!(directfs(&["run", "--", "test", "--json"]).status.code(), Some(0));
}

#[test]
fn a_command_with_json_reports_its_failure_in_json_too() {
    let directory = scratch();
    let file = directory.path().join("text");
    fs::write(&file, "no image ".repeat(1000)).unwrap();
    let file = file.to_str().unwrap();
    let copy = directory.path().join("copy");
    for (arguments, code) in [
        (&["info", file][..], 1),
        (&["fsck", "-n", file, "-p"], 16),
        (&["ps", file], 1),
        (&["stats", file], 1),
        (&["trim", file], 1),
        (&["resize", file, "20M"], 1),
        (&["tune", file, "--label", "x"], 1),
        (&["snapshot", file, copy.to_str().unwrap()], 1),
        (&["mkfs", file, "--size", "16M"], 1),
        (&["umount", file], 1),
        (&["push", file, "nonsense"], 1),
        (&["mkfs"], 2),
        (&["tune", file], 2),
        (&["trim", file, "--nonsense"], 2),
    ] {
        let output = directfs(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(value["error"].is_string() && value["causes"].is_array(), "{arguments:?}: {value}");
        assert_eq!(value["exit_code"], code, "{arguments:?}: {value}");
        let is_whole =
            code != 2 || value["error"].as_str().is_some_and(|error| error.contains('<') || error.contains("--"));
        assert!(is_whole, "{arguments:?}: what is missing or wrong is named: {value}");
    }
}
