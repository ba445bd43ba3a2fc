//! The mount in the tables of mounts, and the tools that look for it there.

use crate::support::{directfs, image_in, scratch, stderr, stdout};
use std::fs;
use std::process::{Command, Output};

/// Runs a script with an image at a directory with a blank in its name.
fn run(script: &str) -> (Output, String, String) {
    let directory = scratch();
    let named = directory.path().join("an image#1");
    fs::rename(image_in(directory.path()), &named).unwrap();
    let mount = format!("{}/the mount", directory.path().display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--image"]).arg(&named).args(["--at", &mount, "-C", &mount, "--", "bash", "-c", script]);
    let output = command.output().unwrap();
    assert_eq!(stderr(&output), "");
    let escaped = |path: &str| path.replace(' ', "\\040");
    (output, escaped(named.to_str().unwrap()), escaped(&mount))
}

/// Whether a program is on this machine; if not, prints that its part is skipped.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !found {
        eprintln!("\n*** SKIPPED: {program} is not on this machine ***\n");
    }
    found
}

/// Also at a descriptor that a program inherits, and in the shell's own process.
#[test]
fn each_table_ends_with_one_line_for_the_mount() {
    let script = r#"
        for table in /proc/self/mounts /proc/mounts /proc/$$/mounts /proc/$$/task/$$/mounts /etc/mtab; do
            [ ! -L /etc/mtab ] && [ $table = /etc/mtab ] && table=/proc/mounts
            tail -n 1 $table; grep -c ' directfs ' $table
        done
        tail -n 1 </proc/self/mounts
        while read -r line; do last=$line; done </proc/self/mounts; echo "$last"
        exec 7</proc/self/mounts; exec 8<&7; tail -n 1 <&8
        tail -n 1 /proc/self/mountstats"#;
    let (output, image, mount) = run(script);
    let image = image.replace('#', "\\043");
    let line = format!("{image} {mount} directfs rw,nosuid,nodev,relatime 0 0\n");
    let statistics = format!("device {image} mounted on {mount} with fstype directfs\n");
    assert_eq!(stdout(&output), format!("{line}1\n").repeat(5) + &line.repeat(3) + &statistics);
}

#[test]
fn mountinfo_agrees_with_stat_and_with_the_parent_mount() {
    let script = r#"
        tail -n 1 /proc/self/mountinfo; stat -c %d . >device; d=$(cat device)
        echo $(( (d >> 8 & 0xfff) | (d >> 32 & ~0xfff) )):$(( (d & 0xff) | (d >> 12 & ~0xff) ))
        stat -c %m .; mountpoint -q . && echo mountpoint
        cat /proc/self/mountinfo"#;
    let (output, image, mount) = run(script);
    let text = stdout(&output);
    let mut lines = text.lines();
    let fields: Vec<_> = lines.next().unwrap().split(' ').collect();
    assert_eq!(fields[2], lines.next().unwrap());
    let image = image.replace('#', "\\043");
    let rest = ["/", &mount, "rw,nosuid,nodev,relatime", "-", "directfs", &image, "rw"];
    assert_eq!(fields[3..], rest);
    assert_eq!((lines.next().unwrap(), lines.next().unwrap()), (&*mount.replace("\\040", " "), "mountpoint"));
    let table: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    assert_eq!(table.iter().filter(|other| other[0] == fields[0]).count(), 1, "the id is unique");
    let parent = table.iter().find(|other| other[0] == fields[1]).expect("the parent's id is in the table");
    assert_eq!(parent[4], "/dev/shm");
}

/// Positions, pieces of any size, lists of buffers and sendfile.
#[test]
fn a_table_is_one_text_for_all_calls() {
    if !has("python3") {
        return;
    }
    let script = r#"python3 - <<'END'
import os, select
f = os.open("/proc/self/mountinfo", os.O_RDONLY)
text = b""
while piece := os.read(f, 37): text += piece
end = os.lseek(f, 0, os.SEEK_CUR)
line = text.splitlines(True)[-1]
print(end == len(text), line == os.pread(f, 9999, end - len(line)), b" - directfs " in line)
print(os.pread(f, 5, end - 5) == line[-5:], os.pread(f, 5, end), os.pread(f, 5, end + 7))
a, b = bytearray(3), bytearray(9)
print(os.preadv(f, [a, b], end - 8), bytes(a + b[:5]) == line[-8:])
os.lseek(f, end - 30, os.SEEK_SET)
g = os.dup(f)
print(os.read(g, 10) + os.read(f, 99) == line[-30:], os.readv(g, [a]))
os.lseek(f, 0, os.SEEK_SET)
r, w = os.pipe()
sent = b""
while (count := os.sendfile(w, f, None, 1000)) > 0: sent += os.read(r, count)
print(sent == text)
e = select.epoll(); e.register(f, select.EPOLLPRI); print(e.poll(0))
child = os.fork()
if child == 0:
    os.lseek(f, end - 8, os.SEEK_SET)
    os._exit(os.read(f, 3) != line[-8:-5])
print(os.waitpid(child, 0)[1], os.read(f, 99) == line[-5:])
END"#;
    let (output, ..) = run(script);
    assert_eq!(stdout(&output), "True True True\nTrue b'' b''\n8 True\nTrue 0\nTrue\n[]\n0 True\n");
}

/// They find the file system of a file, its sizes and the name of its type.
#[test]
fn tools_find_the_mount() {
    if !has("findmnt") {
        return;
    }
    let script = r#"
        echo >f; findmnt -n -o TARGET,FSTYPE -T f; findmnt -n -o FSTYPE "$DIRECTFS_MOUNT"
        df --output=target,fstype f | tail -n 1; df --output=fstype 2>/dev/null | grep -c '^directfs$'; stat -f -c %T ."#;
    let (output, _, mount) = run(script);
    let mount = mount.replace("\\040", " ");
    assert_eq!(stdout(&output), format!("{mount} directfs\ndirectfs\n{mount} directfs\n1\nfuseblk\n"));
}

/// A change of the machine's mounts is an event at the descriptor.
#[test]
fn monitors_of_mounts_see_changes_of_the_machine() {
    if !has("python3") {
        return;
    }
    let script = r#"
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None): print("forbidden"); raise SystemExit
f = os.open("/proc/self/mountinfo", os.O_RDONLY)
before = len(os.read(f, 1 << 20).splitlines())
g = open("/proc/self/mountinfo")
p = select.poll(); p.register(f, select.POLLPRI)
e = select.epoll(); e.register(g, select.EPOLLPRI)
print(p.poll(0), e.poll(0))
libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)
print([event & select.POLLPRI > 0 for _, event in p.poll(0)], len(e.poll(0)))
os.lseek(f, 0, 0)
text = b""
while piece := os.read(f, 1 << 16): text += piece
print(len(text.splitlines()) - before, b" - directfs " in text.splitlines()[-1])
"#;
    let output = directfs(&["run", "--at", "/dev/shm/calls-monitor", "--", "python3", "-c", script]);
    assert_eq!(stderr(&output), "");
    if stdout(&output) == "forbidden\n" {
        eprintln!("\n*** SKIPPED: this user cannot mount ***\n");
        return;
    }
    assert_eq!(stdout(&output), "[] []\n[True] 1\n2 True\n");
}

/// Processes of other mount namespaces do not see the mount.
#[test]
fn tables_of_other_namespaces_stay_as_they_are() {
    let script = r#"exec 3< <(unshare -m sh -c 'echo $$; read -r _ </dev/tty; sleep 60' 2>/dev/null || echo none)
        read -r process <&3; [ "$process" = none ] && { echo none; exit; }
        grep -c ' directfs ' /proc/$process/mounts; grep -c ' directfs ' /proc/self/mounts; kill $process"#;
    let (output, ..) = run(script);
    if stdout(&output) == "none\n" {
        eprintln!("\n*** SKIPPED: this user cannot create mount namespaces ***\n");
        return;
    }
    assert_eq!(stdout(&output), "0\n1\n");
}

/// By its path, from below, and where a listing stops and continues.
#[test]
fn the_directory_above_lists_a_mount_directory_that_the_machine_lacks() {
    let directory = scratch();
    fs::write(directory.path().join("other"), "").unwrap();
    let list = |mount: &str| {
        let mount = directory.path().join(mount);
        let script = "dirname=$(dirname $DIRECTFS_MOUNT); ls $dirname; cd $DIRECTFS_MOUNT; ls ..; ls -d ../mount/.. | wc -l; \
            find $dirname -maxdepth 1 -type d -name mount | wc -l; find $dirname/other | wc -l";
        let output = directfs(&["run", "--at", mount.to_str().unwrap(), "--", "sh", "-c", script]);
        assert_eq!(stderr(&output), "");
        stdout(&output)
    };
    assert_eq!(list("mount"), "mount\nother\nmount\nother\n1\n1\n1\n");
    fs::create_dir(directory.path().join("mount")).unwrap();
    assert_eq!(list("mount"), "mount\nother\nmount\nother\n1\n1\n1\n", "not twice");
}

/// One file gets as many blocks as are available, and no more fit.
#[test]
fn what_statfs_calls_available_can_be_allocated() {
    if !has("python3") {
        return;
    }
    let script = "import os; s = os.statvfs('/mnt/directfs'); f = os.open('/mnt/directfs/f', os.O_CREAT | os.O_RDWR)
os.posix_fallocate(f, 0, s.f_bavail * s.f_frsize); print(s.f_bfree - s.f_bavail < 5 + s.f_bfree // 500)";
    for size in ["16M", "300M", "2G"] {
        let directory = scratch();
        let image = directory.path().join("image");
        let image = image.to_str().unwrap();
        let made = directfs(&["mkfs", image, "--size", size, "--sparse"]);
        assert!(made.status.success(), "{}", stderr(&made));
        let output = directfs(&["run", "--image", image, "--", "python3", "-c", script]);
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("True\n", ""), "{size}");
    }
}
