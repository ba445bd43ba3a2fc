//! Images on a disk under `run`: each way to make a file durable. A copy of the image's file, which
//! is another image to this machine, stands for what a power failure leaves.

use super::committing::{child_named, signal, wait_for};
use crate::support::{directfs, stderr, stdout, unmount};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A scratch directory on a disk, if there is one: TMPDIR may be in memory.
pub fn on_disk() -> Option<tempfile::TempDir> {
    let is_on_disk =
        |directory: &tempfile::TempDir| rustix::fs::statfs(directory.path()).unwrap().f_type as u64 != 0x0102_1994;
    let directories = [tempfile::tempdir(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))].map(Result::unwrap);
    let directory = directories.into_iter().find(is_on_disk);
    if directory.is_none() {
        eprintln!("\n*** SKIPPED: neither TMPDIR nor the build directory is on a disk ***\n");
    }
    directory
}

pub fn image_on(directory: &Path) -> String {
    let image = directory.join("image").to_str().unwrap().to_owned();
    let made = directfs(&["mkfs", &image, "--size", "16M", "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

pub fn read(image: &str, name: &str) -> Option<String> {
    let output = directfs(&["run", "--image", image, "-C", "/mnt/directfs", "--", "cat", name]);
    output.status.success().then(|| stdout(&output).trim_end_matches('\0').to_owned())
}

#[test]
fn each_kind_of_sync_puts_a_file_on_the_disk() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let copies = directory.path().join("copies");
    fs::create_dir(&copies).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/syncs.py");
    let (script, into) = (script.to_str().unwrap(), copies.to_str().unwrap());
    let run = directfs(&[
        "run",
        "--image",
        &image,
        "--commit-interval",
        "0",
        "-C",
        "/mnt/directfs",
        "--",
        "python3",
        script,
        &image,
        into,
    ]);
    assert!(run.status.success(), "{}{}", stdout(&run), stderr(&run));
    let mut ways = 0;
    for copy in fs::read_dir(&copies).unwrap().map(|entry| entry.unwrap()) {
        let (path, way) = (copy.path(), copy.file_name().into_string().unwrap());
        let path = path.to_str().unwrap();
        if way == "nothing" {
            assert_eq!(read(path, "never-synced-before-the-first"), None, "no call has asked for a commit");
            continue;
        }
        let checked = directfs(&["fsck", "-n", "--json", path]);
        assert!(checked.status.success(), "{way}: {}", stdout(&checked));
        let report: serde_json::Value = serde_json::from_str(&stdout(&checked)).unwrap();
        assert!(report["pending"]["commits"].as_u64() > Some(0), "{report}");
        assert_eq!(read(path, &way), Some(way.clone()), "after {way}");
        ways += 1;
    }
    assert_eq!(ways, 16);
    assert_eq!(read(&image, "never-synced").as_deref(), Some("never-synced"), "the end of a run commits all");
}

/// Writes to a file so that the content is on the disk when this returns.
fn write_durably(file: &Path, way: &str) {
    let flags = match way {
        "O_SYNC" => libc::O_SYNC,
        "O_DSYNC" => libc::O_DSYNC,
        _ => 0,
    };
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(file).unwrap();
    if way == "RWF_DSYNC" {
        let part = libc::iovec { iov_base: way.as_ptr().cast_mut().cast(), iov_len: way.len() };
        // SAFETY: an open file, and one buffer, which the call reads.
        let written = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, 0, libc::RWF_DSYNC) };
        assert_eq!(written, way.len() as isize);
        return;
    }
    (&file).write_all(way.as_bytes()).unwrap();
    match way {
        "fsync" => file.sync_all().unwrap(),
        "fdatasync" => file.sync_data().unwrap(),
        _ => {}
    }
}

#[test]
fn each_kind_of_sync_on_a_mount_puts_a_file_on_the_disk() {
    if !crate::support::can_mount("each_kind_of_sync_on_a_mount_puts_a_file_on_the_disk") {
        return;
    }
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let (point, copy) = (directory.path().join("point"), directory.path().join("copy"));
    fs::create_dir(&point).unwrap();
    for options in ["commit=0", "commit=0,cache=0"] {
        let mounted = directfs(&["mount", &image, point.to_str().unwrap(), "-o", options]);
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        for way in ["fsync", "fdatasync", "O_SYNC", "O_DSYNC", "RWF_DSYNC"] {
            write_durably(&point.join(way), way);
            fs::write(point.join("later"), "later").unwrap();
            fs::copy(&image, &copy).unwrap();
            let copy = copy.to_str().unwrap();
            assert_eq!(read(copy, way).as_deref(), Some(way), "{way} on a mount with {options}");
            assert_eq!(read(copy, "later"), None);
            fs::remove_file(point.join("later")).unwrap();
        }
        fs::write(point.join("later"), "later").unwrap();
        unmount(&point);
        assert_eq!(read(&image, "later").as_deref(), Some("later"));
        run(&image, &[], "rm *");
    }
}

#[test]
fn a_limit_of_file_sizes_is_that_of_files_in_the_image() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let copy = directory.path().join("copy");
    let script = format!("ulimit -f 1; echo synced >a && sync a && exec cat {image} >/dev/null");
    let run = directfs(&["run", "--image", &image, "-C", "/mnt/directfs", "--", "bash", "-c", &script]);
    assert!(run.status.success(), "{} {}", run.status, stderr(&run));
    fs::copy(&image, &copy).unwrap();
    assert_eq!(read(copy.to_str().unwrap(), "a").as_deref(), Some("synced\n"));
}

fn run(image: &str, options: &[&str], script: &str) -> std::process::Output {
    let before = ["run", "--image", image, "-C", "/mnt/directfs"];
    directfs(&[&before[..], options, &["--", "bash", "-c", script]].concat())
}

fn names(image: &str) -> String {
    stdout(&run(image, &[], "ls"))
}

#[test]
fn an_image_larger_than_its_memory_is_used_by_runs_and_mounts() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let script = format!("echo one >one; sync one; {} info {image}", env!("CARGO_BIN_EXE_directfs"));
    let output = run(&image, &["--memory", "1M"], &script);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("a copy in a hidden file beside the image"), "{}", stdout(&output));
    let left = || fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left(), 1, "only the image is left");
    if crate::support::can_mount("an image larger than its memory") {
        let point = directory.path().join("point");
        fs::create_dir(&point).unwrap();
        let mounted = directfs(&["mount", "-o", "memory=1M", &image, point.to_str().unwrap()]);
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        assert_eq!(left(), 3);
        assert_eq!(fs::read_to_string(point.join("one")).unwrap(), "one\n");
        unmount(&point);
        fs::remove_dir(&point).unwrap();
    }
    assert_eq!((names(&image).as_str(), left()), ("one\n", 1));
}

#[test]
fn programs_use_data_that_an_open_left_on_the_disk() {
    const PROGRAM: &str = "import mmap, sys\n\
        with open('data', 'r+b') as file, open('../model', 'r+b') as model:\n\
        \u{20}   one, other = mmap.mmap(file.fileno(), 0), mmap.mmap(model.fileno(), 0)\n\
        \u{20}   assert one[:] == other[:]\n\
        \u{20}   for at in range(5000, 20_000_000, 1_234_567):\n\
        \u{20}       one[at:at + 10] = other[at:at + 10] = b'through it'\n\
        \u{20}   one.flush(); other.flush()\n";
    let Some(directory) = on_disk() else { return };
    let image = directory.path().join("image").to_str().unwrap().to_owned();
    let point = directory.path().join("point").to_str().unwrap().to_owned();
    assert!(directfs(&["mkfs", &image, "--size", "64M", "--sparse"]).status.success());
    let has_python = Command::new("python3").arg("-c").arg("").status().is_ok_and(|status| status.success());
    let run = |memory: &str, script: &str| {
        let script = format!("set -e; {script}");
        let output = directfs(&[
            "run", "--image", &image, "--at", &point, "-C", &point, "--memory", memory, "--", "bash", "-c", &script,
        ]);
        assert!(output.status.success(), "{memory}: {script}: {}{}", stdout(&output), stderr(&output));
        stdout(&output)
    };
    // The model is on the host.
    run("1G", "head -c 20000000 /dev/urandom >../model; cp ../model data; cp /bin/cat program; ln -s program link");
    for memory in ["1G", "1M"] {
        let run = |script: &str| run(memory, script);
        run("cmp data ../model; ./link data | cmp - ../model; cmp program /bin/cat");
        run("for file in data ../model; do printf x | dd of=$file bs=1 seek=12345678 conv=notrunc status=none; done");
        run("for file in data ../model; do echo more >>$file; truncate -s -3 $file; done; cmp data ../model");
        run("cp --reflink=always data clone; echo x >>clone; cmp -n 20000000 clone ../model; rm clone");
        if has_python {
            run(&"python3 -c \"$0\"; cmp data ../model".replace("$0", PROGRAM));
            run("cmp data ../model");
        }
        // The program takes the descriptors' numbers for itself.
        run(
            "for fd in $(ls /proc/self/fd) 1000 1001 1002 1003 1004 1005; do [ $fd -gt 2 ] && eval \"exec $fd</dev/zero\"; \
             done; cmp data ../model",
        );
    }
    if !has_python {
        eprintln!("\n*** SKIPPED: stores through mappings: there is no python3 ***\n");
    }
    let checked = directfs(&["fsck", "-n", &image]);
    assert!(checked.status.success(), "{}", stdout(&checked));
}

#[test]
fn a_snapshot_of_an_image_in_memory_is_taken_while_programs_use_it() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = image_on(directory.path());
    let copy = directory.path().join("copy").to_str().unwrap().to_owned();
    let program = env!("CARGO_BIN_EXE_directfs");
    // The loop ends when the snapshot has been taken. Both of its files always have a line more, or
    // as many.
    let script = format!(
        "({program} snapshot {image} {copy} >/dev/null; echo $? >status) & n=0; until [ -e status ]; do \
         n=$((n+1)); echo $n >>one; echo $n >>other; mv one moved; mv moved one; done; wait; cat status"
    );
    let output = run(&image, &[], &script);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("0\n", Some(0)), "{}", stderr(&output));
    let checked = directfs(&["fsck", "-p", &copy]);
    assert!(checked.status.success(), "{}", stdout(&checked));
    let script = "cat one moved 2>/dev/null | wc -l; wc -l <other; echo used >new; rm one moved other 2>/dev/null; ls";
    let counted = stdout(&run(&copy, &[], script));
    let lines: Vec<&str> = counted.split_whitespace().collect();
    let [one, other] = [0, 1].map(|index| lines[index].parse::<u64>().unwrap());
    assert!(one == other || one == other + 1, "{counted}");
    assert_eq!(lines[2..], ["new"]);
}

/// A run in a container: with mounts and a /dev/shm of its own. `None`: there are none here.
fn run_in_container(image: &str, script: &str) -> Option<std::process::Output> {
    let inside = format!(
        "mount -t tmpfs tmpfs /dev/shm && exec {} run --image {image} -C /mnt/directfs -- bash -c '{script}'",
        env!("CARGO_BIN_EXE_directfs")
    );
    let container = |script: &str| {
        Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", script]).output().unwrap()
    };
    if !container("mount -t tmpfs tmpfs /dev/shm").status.success() {
        eprintln!("\n*** SKIPPED: mount namespaces cannot be made here ***\n");
        return None;
    }
    Some(container(&inside))
}

#[test]
fn containers_without_common_memory_use_an_image_one_after_the_other() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let mut first = Command::new(env!("CARGO_BIN_EXE_directfs"));
    first.args(["run", "--image", &image, "--commit-interval", "0", "-C", "/mnt/directfs", "--", "bash", "-c"]);
    first.arg("echo >synced; sync synced; echo >later; echo ready; read");
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let Some(refused) = run_in_container(&image, "ls") else {
        drop(first.stdin.take());
        first.wait().unwrap();
        return;
    };
    let message = stderr(&refused);
    assert!(!refused.status.success() && message.contains("cannot be reached"), "{message}");
    assert!(message.contains("end them first, or run in their container"), "{message}");
    // What the first one did since its last sync is in memory that the other one never sees, if
    // all of its processes are killed at once.
    let committer = wait_for("a committer", || child_named(first.id(), "directfs-commit"));
    signal(first.id(), libc::SIGSTOP);
    signal(committer, libc::SIGKILL);
    first.kill().unwrap();
    first.wait().unwrap();
    // The shell dies with its launcher, within moments.
    let end = Instant::now() + Duration::from_secs(600);
    let second = loop {
        let second = run_in_container(&image, "ls; echo >second").unwrap();
        if second.status.success() || !stderr(&second).contains("cannot be reached") {
            break second;
        }
        assert!(Instant::now() < end, "{}", stderr(&second));
    };
    assert_eq!(stdout(&second), "synced\n", "{}", stderr(&second));
    assert!(stderr(&second).contains("/dev/shm of another container"), "{}", stderr(&second));
    assert_eq!(names(&image), "second\nsynced\n", "the older copy in memory does not count any more");
}

/// Its owner, group or mode was changed after they were killed.
#[test]
fn what_processes_left_that_may_not_write_the_image_any_more_is_reported() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    assert!(!run(&image, &["--commit-interval", "0"], "echo >file; kill -9 $PPID").status.success());
    let left = wait_for("a left copy", || {
        let listed = stdout(&directfs(&["ps", "--left"]));
        listed.lines().find(|line| line.contains(&image)).map(|line| line.split(' ').next().unwrap().to_owned())
    });
    let memory = Path::new("/dev/shm").join(&left);
    if std::os::unix::fs::chown(&memory, Some(12345), None).is_err() {
        println!("SKIPPED: what_processes_left_that_may_not_write_the_image_any_more_is_reported: needs root");
        return;
    }
    let reader = directfs(&["export", &image]);
    let message = stderr(&reader);
    assert!(reader.status.success() && message.matches(&format!("{left}, of user 12345")).count() == 1, "{message}");
    assert!(message.contains("Give the file back to that user"), "{message}");
    let next = run(&image, &[], "ls");
    std::os::unix::fs::chown(&memory, Some(0), None).unwrap();
    let removed = directfs(&["ps", "--left", "--remove", &left]);
    assert!(removed.status.success(), "{}", stderr(&removed));
    assert_eq!(stdout(&next), "");
    assert!(stderr(&next).contains(&format!("{left}, of user 12345")), "{}", stderr(&next));
    let remedy = format!("`directfs ps --left --remove {left}`, as that user or root");
    assert!(stderr(&next).contains(&remedy), "{}", stderr(&next));
    assert_eq!(stderr(&run(&image, &[], "ls")), "", "once");
}

/// They may go on for days. If the launcher is the first process of a container, they end with it,
/// and so does the memory.
#[test]
fn the_end_of_a_run_commits_beside_programs_in_the_background() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let (copy, end) = (directory.path().join("copy"), directory.path().join("end"));
    let waiting = format!("(until [ -e {} ]; do sleep 0.1; done) >/dev/null 2>&1 &", end.display());
    let ended = run(&image, &["--commit-interval", "0"], &format!("echo done >file; {waiting}"));
    assert!(ended.status.success(), "{}", stderr(&ended));
    fs::copy(&image, &copy).unwrap();
    fs::write(&end, "").unwrap();
    wait_for("the end of the background", || {
        let info: serde_json::Value = serde_json::from_slice(&directfs(&["info", "--json", &image]).stdout).ok()?;
        (info["in_use"] == false).then_some(())
    });
    assert_eq!(read(copy.to_str().unwrap(), "file").as_deref(), Some("done\n"));
}

#[test]
fn a_discarded_run_leaves_no_trace() {
    let directory = on_disk().unwrap_or_else(|| tempfile::tempdir().unwrap());
    let image = image_on(directory.path());
    assert!(run(&image, &[], "echo old >file; echo kept >other").status.success());
    let before = fs::read(&image).unwrap();
    let script = "cat file; echo new >file; rm other; sync; cat file; ls; exit 7";
    let outputs = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| run(&image, &["--discard"], script))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
    });
    for output in outputs {
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        assert_eq!(stdout(&output), "old\nnew\nfile\n");
        assert!(stderr(&output).contains("unchanged"), "{}", stderr(&output));
    }
    assert!(before == fs::read(&image).unwrap(), "not a byte of the file changed");
}

#[test]
fn a_discarded_run_sees_what_killed_processes_left() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let script = "echo newest >file; kill -9 $PPID; sleep 60";
    assert!(!run(&image, &["--commit-interval", "0"], script).status.success());
    assert_eq!(stdout(&run(&image, &["--discard"], "cat file; rm file")), "newest\n");
    assert_eq!(read(&image, "file").as_deref(), Some("newest\n"));
}

#[test]
fn an_atomic_run_counts_if_the_command_succeeds() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    assert!(run(&image, &[], "echo old >file").status.success());
    let copy = directory.path().join("copy");
    let copying = format!("echo new >file; touch more; sync; cp {image} {}; ", copy.display());

    let failed = run(&image, &["--atomic"], &(copying.clone() + "cat file; exit 3"));
    assert_eq!((failed.status.code(), stdout(&failed).as_str()), (Some(3), "new\n"), "{}", stderr(&failed));
    assert!(stderr(&failed).contains("discarded"), "{}", stderr(&failed));
    assert_eq!(names(&image), "file\n");
    assert_eq!(names(copy.to_str().unwrap()), "file\n", "a sync inside commits nothing");

    let killed = run(&image, &["--atomic"], "echo new >file; sync; kill -9 $PPID; sleep 60");
    assert!(!killed.status.success());
    assert_eq!(read(&image, "file").as_deref(), Some("old\n"), "nothing in memory is found");

    let succeeded = run(&image, &["--atomic"], &copying);
    assert!(succeeded.status.success() && stderr(&succeeded).contains("committed"), "{}", stderr(&succeeded));
    assert_eq!(names(copy.to_str().unwrap()), "file\n");
    assert_eq!((names(&image).as_str(), read(&image, "file").as_deref()), ("file\nmore\n", Some("new\n")));
    let checked = directfs(&["fsck", "-n", &image]);
    assert!(checked.status.success() && stdout(&checked).contains("left cleanly"), "{}", stdout(&checked));
}

#[test]
fn an_atomic_run_commits_the_state_at_the_commands_end() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let fifo = directory.path().join("fifo");
    let script = format!(
        "mkfifo {0}; echo done >file; (read line <{0}; echo later >file; rm {0}) >/dev/null 2>&1 & exit 0",
        fifo.display()
    );
    let succeeded = run(&image, &["--atomic"], &script);
    assert!(succeeded.status.success(), "{}", stderr(&succeeded));
    assert!(stderr(&succeeded).contains("still work"), "{}", stderr(&succeeded));
    // No other process can open it until the background program has ended.
    let refused = run(&image, &["--discard"], "true");
    assert!(!refused.status.success(), "{}", stderr(&refused));
    fs::write(&fifo, "go on\n").unwrap();
    let opened = (0..1000).any(|_| read(&image, "file").as_deref() == Some("done\n"));
    assert!(opened, "what was changed after the command's end is discarded");
}

#[test]
fn an_atomic_run_needs_an_image_on_a_disk() {
    let directory = crate::support::scratch();
    let image = image_on(directory.path());
    let refused = run(&image, &["--atomic"], "true");
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("is not on a disk"), "{}", stderr(&refused));
    let refused = directfs(&["run", "--discard", "--", "true"]);
    assert!(stderr(&refused).contains("--image"), "{}", stderr(&refused));
}
