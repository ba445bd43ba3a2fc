//! `directfs resize` of images in use.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::killing::killed_at;
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

fn make(directory: &Path, options: &[&str]) -> PathBuf {
    let image = directory.join("image");
    let made = directfs(&[&["mkfs", image.to_str().unwrap(), "--size", "16M"], options].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

#[test]
fn programs_that_found_an_image_full_go_on_when_it_has_grown() {
    if !has_python() {
        return;
    }
    for options in [&["--sparse"][..], &[]] {
        let directory = scratch();
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
        let taken = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&image).unwrap()) * 512;
        assert_eq!(taken >= 48 * MIB, options.is_empty(), "reserved as before: {taken}");
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
    for options in ["", "cache=0"] {
        let directory = scratch();
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
    let directory = scratch();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (image, point) = (image_in(directory.path()), directory.path().join("point"));
    fs::create_dir(&point).unwrap();
    mount(&image, &point, "rw");
    let script = "import os, sys
try: os.setxattr(sys.argv[1], 'system.directfs.size', b'67108864')
except OSError as error: print(error.errno)
else: print('grown')";
    let grow_as = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "/usr/bin/env", "python3", "-c", script]);
        stdout(&command.arg(&point).output().unwrap())
    };
    assert_eq!((grow_as("1234"), length(&image)), (format!("{}\n", libc::EPERM), 16 * MIB));
    assert_eq!((grow_as("0"), length(&image)), ("grown\n".to_owned(), 64 * MIB));
    unmount(&point);
    is_sound(&image);
}

#[test]
fn a_growth_that_is_killed_leaves_the_old_or_the_new_size_to_programs_that_run_on() {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let (mut sizes, mut killed) = (Vec::new(), true);
    while killed {
        let image = make(directory.path(), &["--sparse"]);
        let mut user = Program::under_run(&image, USER);
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["resize", image.to_str().unwrap(), "40M"]).stdout(Stdio::null());
        killed = killed_at(&mut command, sizes.len() + 1);
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
        if sizes.len() % 2 == 0 {
            resize(&image, "40M");
            used(&[39]);
        }
        user.end();
        is_sound(&image);
        sizes.push(size);
        fs::remove_file(&image).unwrap();
    }
    assert!(sizes.len() > 5 && sizes.is_sorted(), "{sizes:?}");
    assert!(sizes[0] == 16 * MIB && sizes.last() == Some(&(40 * MIB)), "{sizes:?}");
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
    // A program with a limit of its address space has no addresses to spare.
    let mut limited = Command::new("sh");
    let arguments = "ulimit -v 16000000; exec \"$0\" run --image \"$1\" --at /mnt/ps -C /mnt/ps -- python3 -c \"$2\"";
    limited.args(["-c", arguments, env!("CARGO_BIN_EXE_directfs")]).arg(&image).arg(USER);
    let limited = Program::start(&mut limited);
    let message = refused(&image, "24M");
    assert!(message.contains("at most 20971520 bytes") && message.contains("ulimit -v"), "{message}");
    limited.end();
    user.end();
    is_sound(&image);
    resize(&image, "2G");
    is_sound(&image);

    // On a disk the image must not be in use.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = make(disk.path(), &["--sparse"]);
    let user = Program::under_run(&image, USER);
    let message = refused(&image, "32M");
    assert!(message.contains("is on a disk and in use") && message.contains("is in use by process"), "{message}");
    user.end();
    resize(&image, "32M");
    is_sound(&image);
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
    assert!((5000..5120).contains(&blocks.parse().unwrap()), "{blocks}");
}
