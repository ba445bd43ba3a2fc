//! The commands in normal use.

#[path = "commands/block_devices.rs"]
mod block_devices;
#[path = "commands/documents.rs"]
mod documents;
#[path = "commands/keys.rs"]
mod keys;
#[path = "commands/lazy_runs.rs"]
mod lazy_runs;
#[path = "commands/low_memory.rs"]
mod low_memory;
#[path = "commands/machines.rs"]
mod machines;
#[path = "commands/replicas.rs"]
mod replicas;
#[path = "commands/store_faults.rs"]
mod store_faults;
#[path = "commands/store_runs.rs"]
mod store_runs;
#[path = "commands/stores.rs"]
mod stores;
mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::terminal::Terminal;
use support::{can_mount, copy_into, directfs, image_in, scratch, stderr, stdout};

fn json(arguments: &[&str]) -> Value {
    let output = directfs(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", stdout(&output)))
}

#[test]
fn info_reports_what_mkfs_made() {
    let directory = scratch();
    let image = image_in(directory.path());
    let before = fs::read(&image).unwrap();
    let info = json(&["info", image.to_str().unwrap(), "--json"]);
    assert_eq!((&info["label"], &info["clean"], &info["in_use"]), (&"tests".into(), &true.into(), &false.into()));
    assert_eq!((&info["length"], &info["epoch"]), (&(16 << 20).into(), &0.into()));
    assert_eq!(info["usage"]["inodes_used"], 1);
    assert_eq!(info["footprint"]["inode_bytes"], 256);
    assert!(info["persistence"].as_str().unwrap().contains("not a power failure"));
    assert!(fs::read(&image).unwrap() == before, "looking changed the image");
}

#[test]
fn a_copy_is_found_by_fsck_and_dump() {
    let directory = scratch();
    let image = image_in(directory.path());
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/hello"), "world").unwrap();
    std::os::unix::fs::symlink("hello", tree.join("sub/link")).unwrap();
    let image = image.to_str().unwrap();
    let copy = copy_into(image, &tree);
    assert!(copy.status.success(), "{}", stderr(&copy));
    let check = json(&["fsck", "-n", "--json", image]);
    assert_eq!((&check["names"], &check["errors"], &check["clean"]), (&3.into(), &0.into(), &true.into()));
    assert!(check["pending"].is_null());
    for what in ["/sub/hello", "1", "superblock", "journal", "@0"] {
        let dump = directfs(&["dump", image, what]);
        assert!(dump.status.success() && !dump.stdout.is_empty(), "{what}: {}", stderr(&dump));
    }
    let missing = directfs(&["dump", image, "/sub/none"]);
    assert!(!missing.status.success() && stderr(&missing).contains("check the path"), "{}", stderr(&missing));
}

#[test]
fn fsck_has_the_exit_codes_of_fsck() {
    let directory = scratch();
    let image = image_in(directory.path());
    let image = image.to_str().unwrap();
    assert_eq!(directfs(&["fsck", "-n", image]).status.code(), Some(0));
    assert_eq!(directfs(&["fsck", "-n"]).status.code(), Some(16));
    assert_eq!(directfs(&["fsck", "-n", "-y", image]).status.code(), Some(16));
    assert_eq!(directfs(&["fsck", "--help"]).status.code(), Some(0));
    for repair in ["-y", "-p", "-a"] {
        let nothing = directfs(&["fsck", repair, image]);
        assert_eq!(nothing.status.code(), Some(0), "{}", stderr(&nothing));
        assert!(stdout(&nothing).ends_with("0 errors, 0 warnings, 0 notes\n"), "{}", stdout(&nothing));
    }
}

#[test]
fn a_long_command_shows_on_a_terminal_what_it_does_and_is_silent_elsewhere() {
    let directory = scratch();
    let image = image_in(directory.path());
    let archive = directory.path().join("archive");
    assert!(Command::new("mkfifo").arg(&archive).status().unwrap().success());
    let import = format!("{} import {} < {}", env!("CARGO_BIN_EXE_directfs"), image.display(), archive.display());
    let silent = Command::new("sh").args(["-c", &import]).stderr(Stdio::piped()).spawn().unwrap();
    fs::write(&archive, [0; 1024]).unwrap();
    assert_eq!(stderr(&silent.wait_with_output().unwrap()), "");
    let mut command = Command::new("sh");
    let mut terminal = Terminal::start(command.args(["-c", &import]), 90, 10);
    // The archive does not end before its progress is shown.
    let mut sent = File::options().write(true).open(&archive).unwrap();
    let mut header = [0; 512];
    header[..4].copy_from_slice(b"file");
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(b"00000000000");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    sent.write_all(&header).unwrap();
    terminal.wait_for("its progress", |terminal| {
        let line = terminal.lines().join(" ");
        line.contains("importing") && ["B, ", "/s, ", " s"].iter().all(|part| line.contains(part))
    });
    sent.write_all(&[0; 1024]).unwrap();
    drop(sent);
    assert!(terminal.end().success(), "{:#?}", terminal.lines());
    assert_eq!(terminal.lines(), ["imported 1 file, 0 B"], "the progress is cleared");
}

#[test]
fn a_snapshot_goes_down_a_pipe_as_a_whole_image() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![7; 300_000]).unwrap();
    let image = image_in(directory.path());
    let path = image.to_str().unwrap();
    assert!(copy_into(path, &tree).status.success());
    for command in ["snapshot", "clone"] {
        let sent = directfs(&[command, path, "-"]);
        assert!(sent.status.success(), "{}", stderr(&sent));
        let copy = directory.path().join(command);
        fs::write(&copy, &sent.stdout).unwrap();
        assert_eq!(sent.stdout.len(), 16 << 20, "holes are zeros");
        let copy = copy.to_str().unwrap();
        assert_eq!(directfs(&["fsck", "-n", copy]).status.code(), Some(0));
        let uuid = |image| json(&["info", image, "--json"])["uuid"].clone();
        assert_eq!(uuid(copy) == uuid(path), command == "snapshot");
        let read = directfs(&["run", "--image", copy, "--", "cat", "/mnt/directfs/file"]);
        assert!(read.stdout == vec![7; 300_000], "{}", stderr(&read));
    }
    // A reader that goes away is no reason to complain.
    let (reader, output) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_directfs")).args(["snapshot", path, "-"]).stdout(output).output();
    assert_eq!(stderr(&ended.unwrap()), "");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let failed = Command::new(env!("CARGO_BIN_EXE_directfs")).args(["snapshot", path, "-"]).stdout(full).output();
    assert!(stderr(&failed.unwrap()).contains("the copy is not complete"));
    let refused = directfs(&["snapshot", path, "-", "--json"]);
    assert!(stderr(&refused).contains("leave out --json"), "{}", stderr(&refused));
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    let mut terminal = Terminal::start(command.args(["snapshot", path, "-"]), 90, 10);
    assert_eq!(terminal.end().code(), Some(1));
    assert!(terminal.lines().concat().contains("which is a terminal"), "{:#?}", terminal.lines());
    assert!(!Path::new("-").exists());
}

#[test]
fn fsck_repairs_what_it_may_and_reports_the_rest() {
    let directory = scratch();
    let image = image_in(directory.path());
    let tree = directory.path().join("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("hello"), "world").unwrap();
    let path = image.to_str().unwrap();
    assert!(copy_into(path, &tree).status.success());
    let mut bytes = fs::read(&image).unwrap();
    let name = bytes.windows(5).position(|bytes| bytes == b"hello").unwrap();
    // A flipped bit in the name, which its checksum locates.
    bytes[name] ^= 4;
    fs::write(&image, &bytes).unwrap();
    let check = directfs(&["fsck", "-n", path]);
    assert_eq!(check.status.code(), Some(4));
    assert!(stdout(&check).contains("fsck -y"), "{}", stdout(&check));
    // Its file has no name now, but will get it back.
    let preened = directfs(&["fsck", "-p", path]);
    assert_eq!(preened.status.code(), Some(1), "{}", stdout(&preened));
    assert_eq!(directfs(&["fsck", "-n", path]).status.code(), Some(0));
    assert!(directfs(&["dump", path, "/hello"]).status.success());
    // More than one bit: the file goes to lost+found.
    let mut bytes = fs::read(&image).unwrap();
    bytes[name..name + 5].copy_from_slice(b"HELLO");
    fs::write(&image, &bytes).unwrap();
    let preened = directfs(&["fsck", "-p", path]);
    assert_eq!(preened.status.code(), Some(4), "{}", stdout(&preened));
    assert!(stdout(&preened).contains("without asking"), "{}", stdout(&preened));
    let output = directfs(&["fsck", "-y", path, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["errors"], &report["clean"]), (&0.into(), &true.into()));
    let orphan = report["mended"].as_array().unwrap().iter().find(|finding| finding["kind"] == "orphan").unwrap();
    let found = format!("/lost+found/#{}", orphan["inode"]);
    assert!(directfs(&["dump", path, &found]).status.success());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_reason_to_complain() {
    let directory = scratch();
    let image = image_in(directory.path());
    // Some commands end by SIGPIPE. Those that have work to do ignore it, and report its number.
    for (arguments, code) in [(&["completions", "bash"][..], None), (&["export", image.to_str().unwrap()], Some(141))] {
        let (reader, output) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        let ended = command.args(arguments).stdout(output).output().unwrap();
        assert_eq!(stderr(&ended), "", "{arguments:?}");
        assert_eq!(ended.status.code(), code, "{arguments:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_not_a_crash() {
    let directory = scratch();
    let image = image_in(directory.path());
    let image = image.to_str().unwrap();
    let tree = directory.path().join("new.img");
    let new = tree.to_str().unwrap();
    for (arguments, code) in [
        (&["info", image][..], 1),
        (&["info", image, "--json"], 1),
        (&["fsck", "-n", image], 8),
        (&["fsck", "-p", image], 8),
        (&["fsck", "-n", image, "--json"], 8),
        (&["mkfs", new, "--size", "16M"], 1),
        (&["ps", image], 1),
        (&["stats", image], 1),
        (&["stats", image, "--watch", "--interval", "0.05"], 1),
        (&["top", image, "--interval", "0.05"], 1),
        (&["dump", image, "superblock"], 1),
        (&["trim", image], 1),
        (&["resize", image, "17M"], 1),
        (&["tune", image, "--label", "x"], 1),
        (&["export", image], 1),
        (&["man"], 1),
        (&["completions", "bash"], 1),
        (&["--help"], 1),
        (&["info", "--help"], 1),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_directfs")).args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("No space left on device"), "{arguments:?}: {}", stderr(&output));
    }
    // What standard error does not take is lost: there is no other place for it.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    let status = command.args(["info", "/nowhere"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn wrong_usage_is_explained() {
    for arguments in [
        &["mkfs"][..],
        &["frobnicate"],
        &["bench", "--sizes", "0"],
        &["bench", "--repeat", "none"],
        &["mount", "image"],
    ] {
        let output = directfs(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    let unknown = directfs(&["mount", "/dev/null", "/mnt", "-o", "nosuit"]);
    assert!(!unknown.status.success() && stderr(&unknown).contains("nosuit"), "{}", stderr(&unknown));
}

#[test]
fn help_has_no_colours_in_a_pipe() {
    for arguments in [&["--help"][..], &["bench", "--help"], &["help", "mount"]] {
        let output = directfs(arguments);
        assert!(output.status.success() && stdout(&output).contains("Examples:"), "{arguments:?}");
        assert!(!output.stdout.contains(&0x1b), "{arguments:?}");
    }
    for arguments in [&["completions", "bash"][..], &["man"]] {
        let output = directfs(arguments);
        assert!(output.status.success() && stdout(&output).contains("mkfs"), "{arguments:?}");
        assert!(!stdout(&output).contains("demo-worker.8"), "{arguments:?}");
    }
}

#[test]
fn names_that_are_not_utf_8_are_text_in_json() {
    let directory = scratch();
    let strange = directory.path().join(OsStr::from_bytes(b"x\xff.img"));
    fs::rename(image_in(directory.path()), &strange).unwrap();
    let strange = strange.as_os_str();
    let last = [OsStr::new("20M")];
    for (command, more) in
        [("info", &[][..]), ("ps", &[]), ("stats", &[]), ("trim", &[]), ("fsck", &[]), ("resize", &last)]
    {
        let mut program = Command::new(env!("CARGO_BIN_EXE_directfs"));
        let output = program.arg(command).arg(strange).args(more).arg("--json").output().unwrap();
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(value["image"].as_str().is_some_and(|image| image.ends_with("x\u{fffd}.img")), "{command}: {value}");
    }
}

#[test]
fn what_copies_prints_what_it_did() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![7; 3000]).unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (image, tree) = (place("it's an image"), tree.to_str().unwrap());
    let made = directfs(&["mkfs", &image, "--size", "16M", "--from", tree]);
    let line = stdout(&made).lines().find(|line| line.starts_with("copied")).unwrap().to_owned();
    assert!(line.contains("1 file, 2.9 KiB in ") && line.ends_with('s'), "{line}");
    // The next step can be pasted into a shell.
    let next = stdout(&made).lines().last().unwrap().split_once("directfs ").unwrap().1.to_owned();
    assert!(next.starts_with("run --image '"), "{next}");
    let step = format!("\"$PROGRAM\" {next} -- cat /mnt/directfs/file | wc -c");
    let ran = Command::new("sh").args(["-c", &step]).env("PROGRAM", env!("CARGO_BIN_EXE_directfs")).output().unwrap();
    assert_eq!(stdout(&ran).trim(), "3000", "{}", stderr(&ran));
    let copied = directfs(&["snapshot", &image, &place("copy")]);
    assert!(stdout(&copied).starts_with("copied to ") && stdout(&copied).contains("16 MiB"), "{}", stdout(&copied));
    let clone = json(&["clone", &image, &place("clone"), "--json"]);
    let info = json(&["info", &place("clone"), "--json"]);
    assert_eq!((&clone["uuid"], &clone["length"]), (&info["uuid"], &(16 << 20).into()));
    let tuned = json(&["tune", &image, "--label", "work", "--json"]);
    assert_eq!((&tuned["label"], &tuned["uuid"]), (&"work".into(), &Value::Null));
}

#[test]
fn counts_of_one_are_singular() {
    let directory = scratch();
    let image = image_in(directory.path());
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "").unwrap();
    assert!(copy_into(image.to_str().unwrap(), &tree).status.success());
    let check = stdout(&directfs(&["fsck", "-n", image.to_str().unwrap()]));
    assert!(check.contains("1 name, 1 directory, 1 file,"), "{check}");
    let unused = stdout(&directfs(&["stats", image.to_str().unwrap()]));
    assert!(unused.contains("0 processes, 0 threads"), "{unused}");
}

/// A tree of 640 entries.
fn demonstration_tree(tree: &Path) {
    for sub in 0..20 {
        fs::create_dir_all(tree.join(format!("d{sub}"))).unwrap();
        (0..30).for_each(|file| fs::write(tree.join(format!("d{sub}/{file}.h")), vec![sub as u8; file * 331]).unwrap());
        std::os::unix::fs::symlink("1.h", tree.join(format!("d{sub}/link"))).unwrap();
    }
}

/// Runs the demonstration, checks its report, and returns the report.
fn demonstrate(more: &[&str]) -> Value {
    let directory = scratch();
    let (tree, place) = (directory.path().join("tree"), directory.path().join("place"));
    demonstration_tree(&tree);
    fs::create_dir(&place).unwrap();
    let mut arguments = vec!["demo", tree.to_str().unwrap(), "--scratch", place.to_str().unwrap(), "--json"];
    arguments.extend(more);
    let report = json(&arguments);
    assert_eq!(
        (&report["entries"], &report["is_subset"], &report["peer"]),
        (&640.into(), &false.into(), &"tmpfs".into())
    );
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 5);
    for key in ["run_ns", "peer_ns"] {
        assert!(steps.iter().all(|step| step[key].as_u64().unwrap() > 0), "{report}");
    }
    let is_mounted = report["mount_absent"].is_null();
    assert!(steps.iter().all(|step| step["mount_ns"].is_u64() == is_mounted), "{report}");
    let crash = &report["crash"];
    assert!((640 / 3..=640).contains(&crash["completed"].as_u64().unwrap()), "{report}");
    for key in ["kill_ns", "recovery_ns", "compare_ns", "reuse_ns"] {
        assert!(crash[key].as_u64().unwrap() > 0, "{report}");
    }
    assert_eq!((&report["check"]["names"], &report["check"]["errors"]), (&640.into(), &0.into()));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "it cleans up after itself");
    report
}

#[test]
fn the_demonstration_runs_beside_tmpfs() {
    let report = demonstrate(&["--without-mount"]);
    assert!(report["mount_absent"].as_str().unwrap().contains("--without-mount"), "{report}");
}

#[test]
fn the_demonstration_measures_a_mount_where_one_is_possible() {
    let is_possible = can_mount("the mount of the demonstration");
    let report = demonstrate(&[]);
    assert_eq!(report["mount_absent"].is_null(), is_possible, "{report}");
}

#[test]
fn the_demonstration_prints_a_table_and_the_crash() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    demonstration_tree(&tree);
    let output = directfs(&["demo", tree.to_str().unwrap(), "--without-mount"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for part in
        ["640 entries", "run : tmpfs", "copy the tree in", "mount: not measured", "killed", "recovered", "0 errors"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn an_interrupted_demonstration_removes_its_files() {
    let directory = scratch();
    for (signal, delay_ms) in [(Signal::INT, 100), (Signal::TERM, 700), (Signal::KILL, 700)] {
        let place = directory.path().join(format!("{signal:?}-{delay_ms}"));
        fs::create_dir(&place).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["demo", "--scratch"]).arg(&place).stdout(Stdio::null()).stderr(Stdio::null());
        let mut demo = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        // On a busy machine it may have made its files, and started none that removes them.
        let children = format!("/proc/{0}/task/{0}/children", demo.id());
        while signal == Signal::KILL
            && fs::read_to_string(&children).is_ok_and(|children| children.is_empty())
            && demo.try_wait().unwrap().is_none()
        {
            std::thread::yield_now();
        }
        let _ = kill_process(Pid::from_child(&demo), signal);
        demo.wait().unwrap();
        // After SIGKILL the orphaned workers remove them.
        let deadline = Instant::now() + Duration::from_secs(600);
        let is_empty = || fs::read_dir(&place).unwrap().count() == 0;
        while signal == Signal::KILL && !is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(is_empty(), "{signal:?} leaves {:?}", fs::read_dir(&place).unwrap().collect::<Vec<_>>());
    }
}
