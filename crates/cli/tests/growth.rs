//! `directfs resize` of images in use.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::killing::{for_each_call, killed_at};
use support::program::{Program, has_python};
use support::{can_mount, directfs, image_in, mount, scratch, stderr, stdout, unmount};

const MIB: u64 = 1 << 20;

/// Four threads write files until each has met a full image, and go on until each has written as
/// much again behind that. Then all is compared. It prints the size of the file system, and of the
/// image in MiB, before and after.
const WRITERS: &str = r#"
import os, threading
me = os.getpid()
def mebibytes():
    found = os.statvfs('.')
    return found.f_blocks * found.f_frsize >> 20
print('ready', flush=True)
print(mebibytes(), flush=True)
full = threading.Barrier(5)
problems = []
def write(thread):
    made, more, met = 0, 0, False
    while more < 40:
        try:
            with open(f'{me}.{thread}.{made}', 'wb', buffering=0) as file:
                file.write(bytes([thread]) * 65536)
            made, more = made + 1, more + met
        except OSError as error:
            if error.errno != 28:
                problems.append(repr(error))
                return
            if not met:
                met = True
                full.wait()
            os.sched_yield()
    for number in range(made):
        with open(f'{me}.{thread}.{number}', 'rb') as file:
            if file.read() != bytes([thread]) * 65536:
                problems.append(f'content of {thread}.{number}')
threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
[thread.start() for thread in threads]
full.wait()
print('full', flush=True)
[thread.join() for thread in threads]
print(mebibytes(), *problems, flush=True)
import sys; sys.stdin.readline()
"#;

/// A program that uses the image at each line that it reads, and prints what it finds.
const USER: &str = r#"
import os, sys
print('ready', flush=True)
for line in sys.stdin:
    os.mkdir('made')
    with open('made/file', 'wb') as file:
        file.write(b'x' * 100000)
    os.rename('made/file', 'file')
    os.rmdir('made')
    found = os.statvfs('.')
    print(os.stat('file').st_size, found.f_blocks * found.f_frsize >> 20, flush=True)
"#;

fn resize(image: &Path, size: &str) {
    let output = directfs(&["resize", image.to_str().unwrap(), size]);
    assert!(output.status.success(), "{size}: {}", stderr(&output));
}

fn refused(image: &Path, size: &str) -> String {
    let output = directfs(&["resize", image.to_str().unwrap(), size]);
    assert_eq!(output.status.code(), Some(1), "{size}: {}{}", stdout(&output), stderr(&output));
    stderr(&output)
}

fn is_sound(image: &Path) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

fn length(image: &Path) -> u64 {
    let output = directfs(&["info", image.to_str().unwrap(), "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    value["length"].as_u64().unwrap()
}

/// A scratch directory on a disk.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn make(directory: &Path, options: &[&str]) -> PathBuf {
    let image = directory.join("image");
    let made = directfs(&[&["mkfs", image.to_str().unwrap(), "--size", "16M"], options].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

/// A sparse image in a directory of its own.
fn make_in(directory: &Path, nth: usize) -> PathBuf {
    let own = directory.join(nth.to_string());
    fs::create_dir(&own).unwrap();
    make(&own, &["--sparse"])
}

#[test]
fn programs_that_found_an_image_full_go_on_when_it_has_grown() {
    if !has_python() {
        return;
    }
    for (options, directory) in
        [(&["--sparse"][..], scratch()), (&[], scratch()), (&["--sparse"], on_disk()), (&[], on_disk())]
    {
        let image = make(directory.path(), options);
        let mut programs = [Program::under_run(&image, WRITERS), Program::under_run(&image, WRITERS)];
        for program in &mut programs {
            assert_eq!(program.line(), "15\n");
        }
        programs.iter_mut().for_each(|program| assert_eq!(program.line(), "full\n"));
        resize(&image, "48M");
        assert_eq!(length(&image), 48 * MIB);
        for program in &mut programs {
            assert_eq!(program.line(), "47\n");
        }
        let file = fs::metadata(&image).unwrap();
        let taken = std::os::unix::fs::MetadataExt::blocks(&file) * 512;
        // If the image is on a disk, the journal takes some of it.
        let is_reserved = if options.is_empty() { taken >= 48 * MIB } else { taken >= file.len() };
        assert_eq!(is_reserved, options.is_empty(), "reserved as before: {taken} of {}", file.len());
        // A copy that is made meanwhile has all of it.
        let copy = directory.path().join("copy");
        let copied = directfs(&["snapshot", image.to_str().unwrap(), copy.to_str().unwrap()]);
        assert!(copied.status.success(), "{}", stderr(&copied));
        is_sound(&copy);
        assert_eq!(length(&copy), 48 * MIB);
        // Again, and beside a program that comes later.
        resize(&image, "+16M");
        let late = Program::under_run(&image, USER);
        programs.into_iter().for_each(Program::end);
        late.end();
        is_sound(&image);
        assert_eq!(length(&image), 64 * MIB);
        // And without processes, in both directions.
        resize(&image, "100M");
        is_sound(&image);
        resize(&image, "60M");
        is_sound(&image);
    }
}

#[test]
fn a_mounted_image_grows_alone_and_beside_programs() {
    if !can_mount("growth of a mounted image") {
        return;
    }
    for (options, directory) in [("", scratch()), ("cache=0", scratch()), ("", on_disk()), ("cache=0", on_disk())] {
        let (image, point) = (image_in(directory.path()), directory.path().join("point"));
        fs::create_dir(&point).unwrap();
        match options {
            "" => mount(&image, &point, "rw"),
            options => mount(&image, &point, options),
        }
        let size = || rustix::fs::statvfs(&point).map(|found| found.f_blocks * found.f_frsize / MIB).unwrap();
        let script = "echo ready; read line; head -c 10M /dev/zero > beside && stat -f -c '%b %S' .";
        let beside = (options == "cache=0").then(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
            let image = image.to_str().unwrap();
            command.args(["run", "--image", image, "--at", "/mnt/ps", "-C", "/mnt/ps", "--", "sh", "-c", script]);
            Program::start(&mut command)
        });
        assert_eq!(size(), 15);
        let file = point.join("file");
        assert_eq!(fs::write(&file, vec![7; 20 << 20]).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert!(refused(&image, "8M").contains("only grow"), "{}", refused(&image, "8M"));
        assert!(refused(&image, "2G").contains("at most 1073741824 bytes"), "{}", refused(&image, "2G"));
        resize(&image, "64M");
        assert_eq!(size(), 63);
        fs::write(&file, vec![7; 40 << 20]).unwrap();
        if let Some(mut beside) = beside {
            drop(beside.child.stdin.take());
            assert!(beside.line().ends_with(" 4096\n"));
            beside.end();
        }
        assert!(fs::read(&file).unwrap() == vec![7; 40 << 20]);
        unmount(&point);
        is_sound(&image);
        assert_eq!(length(&image), 64 * MIB);
    }
}

#[test]
fn other_users_do_not_make_a_mounted_image_larger() {
    if !has_python() || !can_mount("growth by another user") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: growth by another user: only root can become one ***\n");
        return;
    }
    for directory in [scratch(), on_disk()] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        only_root_grows_the_mount_of(&image_in(directory.path()), &directory.path().join("point"));
    }
}

fn only_root_grows_the_mount_of(image: &Path, point: &Path) {
    fs::create_dir(point).unwrap();
    mount(image, point, "rw");
    let script = "import os, sys
try: os.setxattr(sys.argv[1], 'system.directfs.size', b'67108864')
except OSError as error: print(error.errno)
else: print('grown')";
    let grow_as = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "/usr/bin/env", "python3", "-c", script]);
        stdout(&command.arg(point).output().unwrap())
    };
    // An image on a disk has its journal behind it.
    let before = length(image);
    assert_eq!((grow_as("1234"), length(image)), (format!("{}\n", libc::EPERM), before));
    assert_eq!(grow_as("0"), "grown\n");
    assert!(length(image) >= before + 48 * MIB);
    unmount(point);
    is_sound(image);
}

#[test]
fn a_growth_that_is_killed_leaves_the_old_or_the_new_size_to_programs_that_run_on() {
    if !has_python() {
        return;
    }
    for directory in [scratch(), on_disk()] {
        kill_growths(directory.path());
    }
}

/// Kills a growth at each of its calls, with a program that runs on.
fn kill_growths(directory: &Path) {
    let sizes = for_each_call(|nth| {
        let image = make_in(directory, nth);
        let mut user = Program::under_run(&image, USER);
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["resize", image.to_str().unwrap(), "40M"]).stdout(Stdio::null());
        let killed = killed_at(&mut command, nth);
        let size = length(&image);
        let mut used = |expected: &[u64]| {
            std::io::Write::write_all(user.child.stdin.as_mut().unwrap(), b"go\n").unwrap();
            let line = user.line();
            let (bytes, mebibytes) = line.trim().split_once(' ').unwrap();
            assert!(bytes == "100000" && expected.contains(&mebibytes.parse().unwrap()), "{line}");
        };
        used(&[15, 39]);
        // A process that attaches finds what the image says, and those that run learn of it.
        Program::under_run(&image, USER).end();
        used(&[size / MIB - 1]);
        if nth % 2 == 0 {
            resize(&image, "40M");
            used(&[39]);
        }
        user.end();
        is_sound(&image);
        fs::remove_file(&image).unwrap();
        (size, killed)
    });
    assert!(sizes.len() > 5, "{sizes:?}");
    are_old_or_new(&sizes);
}

/// The first call changes nothing, and the last round kills nothing. Between them the number of
/// calls before the size changes differs from round to round.
fn are_old_or_new(sizes: &[u64]) {
    assert!(sizes.iter().all(|size| [16 * MIB, 40 * MIB].contains(size)), "{sizes:?}");
    assert!(sizes[0] == 16 * MIB && sizes.last() == Some(&(40 * MIB)), "{sizes:?}");
}

/// Tries to make an image of 20 MiB larger beside a program with a limit of its address space. It
/// has no addresses to spare.
fn is_refused_beside_a_limited_program(image: &Path) {
    let mut limited = Command::new("sh");
    let arguments = "ulimit -v 16000000; exec \"$0\" run --image \"$1\" --at /mnt/ps -C /mnt/ps -- python3 -c \"$2\"";
    limited.args(["-c", arguments, env!("CARGO_BIN_EXE_directfs")]).arg(image).arg(USER);
    let limited = Program::start(&mut limited);
    let message = refused(image, "24M");
    assert!(message.contains("at most 20971520 bytes") && message.contains("ulimit -v"), "{message}");
    limited.end();
}

#[test]
fn what_an_image_in_use_cannot_become_is_refused_with_the_remedy() {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let image = make(directory.path(), &["--sparse"]);
    let user = Program::under_run(&image, USER);
    let before = fs::metadata(&image).unwrap().len();
    for (size, part) in [
        ("8M", "only grow"),
        ("+4096", "choose a larger one"),
        ("2G", "at most 1073741824 bytes while it is in use"),
        ("8000000T", "at most 1073741824 bytes while it is in use"),
    ] {
        let message = refused(&image, size);
        assert!(message.contains(part), "{size}: {message}");
    }
    assert_eq!((fs::metadata(&image).unwrap().len(), length(&image)), (before, 16 * MIB));
    resize(&image, "16M");
    resize(&image, "20M");
    is_refused_beside_a_limited_program(&image);
    user.end();
    is_sound(&image);
    resize(&image, "2G");
    is_sound(&image);
}

/// Programs under `run` with these options, in the directory of the mount.
fn under_run_with(image: &Path, options: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--at", "/mnt/ps", "-C", "/mnt/ps", "--image"]).arg(image).args(options);
    Program::start(command.args(["--", "python3", "-c", USER]))
}

#[test]
fn what_an_image_on_a_disk_cannot_become_in_use_is_refused_with_the_remedy() {
    if !has_python() {
        return;
    }
    let directory = on_disk();
    let image = make(directory.path(), &["--sparse"]);
    let user = Program::under_run(&image, USER);
    let before = fs::metadata(&image).unwrap().len();
    for (size, part) in [
        ("8M", "only grow"),
        ("+4096", "choose a larger one"),
        ("+12288", "choose a larger one"),
        ("2G", "at most 1073741824 bytes while it is in use"),
    ] {
        let message = refused(&image, size);
        assert!(message.contains(part), "{size}: {message}");
    }
    assert_eq!((fs::metadata(&image).unwrap().len(), length(&image)), (before, 16 * MIB));
    // By less than the journal is long, which the new one then overlaps.
    resize(&image, "+64K");
    resize(&image, "20M");
    is_refused_beside_a_limited_program(&image);
    user.end();
    is_sound(&image);
    // A process whose files may not be so long.
    let user = Program::under_run(&image, USER);
    let script = "ulimit -f 20000; exec \"$0\" resize \"$1\" 24M";
    let limited = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_directfs")]).arg(&image).output().unwrap();
    assert!(limited.status.code() == Some(1) && stderr(&limited).contains("too large"), "{limited:?}");
    user.end();
    is_sound(&image);
    assert_eq!(length(&image), 20 * MIB);
    // In place there is no working copy.
    let user = under_run_with(&image, &["--no-commit"]);
    let message = refused(&image, "32M");
    assert!(message.contains("--no-commit") && message.contains("is in use by process"), "{message}");
    user.end();
    resize(&image, "32M");
    is_sound(&image);
}

#[test]
fn a_working_copy_grows_within_its_memory_and_beside_the_image() {
    if !has_python() {
        return;
    }
    // The copy is in memory, where it may take so much; and on the disk, where it takes what it
    // needs.
    for (memory, most) in [("40M", 38 * MIB), ("1M", 1 << 30)] {
        let directory = on_disk();
        let image = make(directory.path(), &["--sparse"]);
        let mut user = under_run_with(&image, &["--memory", memory]);
        let message = refused(&image, "2G");
        let allowed = message.split("at most ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let allowed: u64 = allowed.parse().unwrap();
        assert!((most..=most + 2 * MIB).contains(&allowed), "{message}");
        assert!(message.contains("--memory"), "{message}");
        resize(&image, "38M");
        std::io::Write::write_all(user.child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        assert_eq!(user.line(), "100000 37\n");
        user.end();
        is_sound(&image);
        assert_eq!(length(&image), 38 * MIB);
    }
}

#[test]
fn a_growth_of_an_image_whose_data_are_on_the_disk_leaves_them_there() {
    if !has_python() {
        return;
    }
    const READER: &str = r#"
import hashlib, sys
print('ready', flush=True)
for line in sys.stdin:
    with open('new', 'wb') as file:
        file.write(b'n' * (30 << 20))
    with open('old', 'rb') as file:
        print(hashlib.sha256(file.read()).hexdigest(), flush=True)
"#;
    for memory in [&[][..], &["--memory", "1M"]] {
        let directory = on_disk();
        let image = directory.path().join("image");
        let path = image.to_str().unwrap();
        assert!(directfs(&["mkfs", path, "--size", "48M", "--sparse"]).status.success());
        let run = |script: &str| {
            let output =
                directfs(&["run", "--image", path, "--at", "/mnt/ps", "-C", "/mnt/ps", "--", "sh", "-c", script]);
            assert!(output.status.success(), "{}", stderr(&output));
            stdout(&output)
        };
        let sum = run("head -c 30M /dev/urandom >old; sha256sum <old");
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--at", "/mnt/ps", "-C", "/mnt/ps", "--image", path]).args(memory);
        let mut user = Program::start(command.args(["--", "python3", "-c", READER]));
        resize(&image, "80M");
        let copy = directory.path().join("copy");
        assert!(directfs(&["snapshot", path, copy.to_str().unwrap()]).status.success());
        std::io::Write::write_all(user.child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        assert_eq!(user.line().trim(), sum.split(' ').next().unwrap());
        user.end();
        is_sound(&image);
        is_sound(&copy);
        assert_eq!((length(&copy), run("sha256sum <old; stat -c %s new")), (80 * MIB, format!("{sum}31457280\n")));
    }
}

#[test]
fn a_growth_during_which_all_processes_are_killed_is_recovered_with_all_that_was_done() {
    if !has_python() {
        return;
    }
    let directory = on_disk();
    let sizes = for_each_call(|nth| {
        let image = make_in(directory.path(), nth);
        let mut user = Program::under_run(&image, USER);
        std::io::Write::write_all(user.child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        assert_eq!(user.line(), "100000 15\n");
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["resize", image.to_str().unwrap(), "40M"]).stdout(Stdio::null());
        let killed = killed_at(&mut command, nth);
        // The child is the launcher; its programs die with it. Nothing was synced.
        user.child.kill().unwrap();
        user.child.wait().unwrap();
        assert_eq!(user.line(), "", "the program has ended");
        let found = directfs(&[
            "run",
            "--image",
            image.to_str().unwrap(),
            "--at",
            "/mnt/ps",
            "--",
            "sh",
            "-c",
            "stat -c %s /mnt/ps/file; stat -f -c %b /mnt/ps",
        ]);
        let text = stdout(&found);
        let (bytes, blocks) = text.split_once('\n').unwrap_or_else(|| panic!("{}", stderr(&found)));
        let size = length(&image);
        assert_eq!((bytes, blocks.trim().parse::<u64>().unwrap() * 4096 / MIB), ("100000", size / MIB - 1), "{text}");
        is_sound(&image);
        resize(&image, "48M");
        is_sound(&image);
        fs::remove_file(&image).unwrap();
        (size, killed)
    });
    assert!(sizes.len() > 40, "{sizes:?}");
    are_old_or_new(&sizes);
}

#[test]
fn a_growth_without_space_on_the_host_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a full file system: only root can mount one ***\n");
        return;
    }
    let script = r#"mount -t tmpfs -o size=24M none "$1" && cd "$1" && "$2" mkfs image --size 16M >/dev/null || exit 1
        "$2" run --image image --at /mnt/full -C /mnt/full -- sh -c 'echo before >file
            "$1" resize "$0/image" 64M 2>"$0/error" && exit 1
            grep -q "free space" "$0/error" || exit 2
            "$1" resize "$0/image" 20M >/dev/null || exit 3
            cat file; stat -f -c %b .' "$1" "$2"
        echo $?; "$2" fsck -n image >/dev/null; echo $?; stat -c %s image"#;
    let directory = scratch();
    let point = directory.path().join("small");
    fs::create_dir(&point).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    let output = command.arg(&point).arg(env!("CARGO_BIN_EXE_directfs")).output().unwrap();
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    let [content, blocks, status, check, bytes] = lines[..] else { panic!("{text}{}", stderr(&output)) };
    assert_eq!((content, status, check, bytes), ("before", "0", "0", "20971520"), "{}", stderr(&output));
    // Maps and spare blocks are left out.
    assert!((4950..5120).contains(&blocks.parse().unwrap()), "{blocks}");
}

#[test]
fn a_growth_without_space_on_the_disk_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a full disk: only root can mount one ***\n");
        return;
    }
    let script = r#"truncate -s 128M "$1.disk" && mkfs.ext4 -q "$1.disk" && mount -o loop "$1.disk" "$1" && cd "$1" || exit 1
        "$2" mkfs image --size 16M --sparse >/dev/null || exit 2
        "$2" run --image image $3 --at /mnt/full -C /mnt/full -- sh -c 'echo before >file; sync file
            before=$(stat -c %s "$0/image")
            head -c 200M /dev/zero >"$0/filler" 2>/dev/null
            "$1" resize "$0/image" 256M 2>"$0/../error" && exit 3
            grep -q "space" "$0/../error" || exit 4
            [ $(stat -c %s "$0/image") = $before ] || exit 5
            cat file; echo more >>file; rm "$0/filler"; sync file
            "$1" resize "$0/image" 256M >/dev/null || exit 6
            head -c 18M /dev/zero >large && sync large && cat file; stat -f -c %b .' "$1" "$2"
        echo $?; "$2" fsck -n image >/dev/null; echo $?; cd /; umount "$1""#;
    for memory in ["", "--memory 1M"] {
        let directory = scratch();
        let point = directory.path().join("disk");
        fs::create_dir(&point).unwrap();
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
        let output = command.arg(&point).arg(env!("CARGO_BIN_EXE_directfs")).arg(memory).output().unwrap();
        let text = stdout(&output);
        let lines: Vec<_> = text.lines().collect();
        let [first, again, more, blocks, status, check] = lines[..] else { panic!("{text}{}", stderr(&output)) };
        assert_eq!((first, again, more, status, check), ("before", "before", "more", "0", "0"), "{}", stderr(&output));
        assert!(blocks.parse::<u64>().unwrap() > 60_000, "{blocks}");
    }
}
