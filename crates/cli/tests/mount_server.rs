//! The server of a mount as others meet it: stopped, of a stranger, with a starter that has ended,
//! and as the one that copies an image which it has alone.

mod support;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::{can_mount, directfs, image_in, scratch, stderr, stdout, unmount};

/// A bound for what hangs forever if it is wrong.
const BOUND: &str = "600";

/// An image and a mount point, which is always unmounted at the end.
struct Stage {
    directory: tempfile::TempDir,
    image: PathBuf,
    point: PathBuf,
}

impl Stage {
    fn new() -> Stage {
        Stage::within(scratch())
    }

    fn on_disk() -> Stage {
        Stage::within(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn within(directory: tempfile::TempDir) -> Stage {
        let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
        fs::create_dir(&point).unwrap();
        Stage { directory, image, point }
    }

    fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn mount(&self, options: &[&str]) {
        let mounted = directfs(&[&["mount", self.image(), self.point.to_str().unwrap()], options].concat());
        assert!(mounted.status.success(), "{}", stderr(&mounted));
    }

    /// The process that serves the mount.
    fn server(&self) -> String {
        let info = directfs(&["info", self.image(), "--json"]);
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        let users = info["used_by"].as_array().unwrap().iter();
        let servers: Vec<_> = users.filter(|user| user["serves_mount"] == true).collect();
        assert_eq!(servers.len(), 1, "{info}");
        servers[0]["pid"].to_string()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let point = CString::new(self.point.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends in zero.
        unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Stops a process until this value ends.
struct Stopped(String);

impl Stopped {
    fn new(process: String) -> Stopped {
        signal("-STOP", &process);
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}

/// Runs the program, which is killed if it hangs.
fn within_bound(arguments: &[&str]) -> Output {
    let mut bounded = Command::new("timeout");
    let output = bounded.args(["-s", "KILL", BOUND, env!("CARGO_BIN_EXE_directfs")]).args(arguments).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code != 137), "{arguments:?} hangs");
    output
}

fn is_root(test: &str) -> bool {
    // SAFETY: asks only.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("\n*** SKIPPED: {test}: needs root ***\n");
    }
    is_root
}

#[test]
fn a_stopped_server_delays_no_observer_for_ever_and_is_named() {
    if !can_mount("a_stopped_server_delays_no_observer_for_ever_and_is_named") {
        return;
    }
    for options in [&[][..], &["-o", "cache=0"]] {
        let stage = Stage::new();
        stage.mount(options);
        let stopped = Stopped::new(stage.server());
        let names_it = |arguments: &[&str]| {
            let output = within_bound(arguments);
            let said = stdout(&output) + &stderr(&output);
            assert!(said.contains("does not answer") && said.contains(&stopped.0), "{options:?} {arguments:?}: {said}");
            output.status.code()
        };
        assert_eq!(names_it(&["info", stage.image()]), Some(0));
        assert_eq!(names_it(&["stats", stage.image()]), Some(0));
        assert_eq!(names_it(&["resize", stage.image(), "20M"]), Some(1));
        assert_eq!(within_bound(&["ps", stage.image()]).status.code(), Some(0));
        if options.is_empty() {
            assert_eq!(names_it(&["snapshot", stage.image(), &stage.path("copy")]), Some(1));
            assert_eq!(names_it(&["trim", stage.image()]), Some(1));
        }
        let again = within_bound(&["mount", stage.image(), stage.point.to_str().unwrap()]);
        assert!(stderr(&again).contains("does not answer"), "{}", stderr(&again));
        assert_eq!(names_it(&["umount", stage.point.to_str().unwrap()]), Some(1));
        let detached = within_bound(&["umount", "--lazy", stage.point.to_str().unwrap()]);
        assert_eq!(detached.status.code(), Some(0), "{}", stderr(&detached));
        drop(stopped);
        assert_eq!(stage.names(), ["image", "mount"]);
    }
}

#[test]
fn an_unmount_whose_last_commit_failed_is_a_failure() {
    if !can_mount("an_unmount_whose_last_commit_failed_is_a_failure") {
        return;
    }
    for (stage, options) in [(Stage::new(), &[][..]), (Stage::on_disk(), &["-o", "commit=0"])] {
        stage.mount(options);
        fs::write(stage.point.join("file"), "bytes").unwrap();
        File::options().write(true).open(&stage.image).unwrap().set_len(1 << 20).unwrap();
        let ended = within_bound(&["umount", stage.point.to_str().unwrap()]);
        assert_eq!(ended.status.code(), Some(1), "{options:?}");
        assert!(stderr(&ended).contains(stage.image()), "{}", stderr(&ended));
    }
}

/// Mounts something that is never served, as another user would with fuse's helper.
fn mount_of_a_stranger(stage: &Stage) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=65534,group_id=65534,allow_other", device.as_raw_fd());
    let [source, point, data] =
        [stage.image(), stage.point.to_str().unwrap(), data.as_str()].map(|text| CString::new(text).unwrap());
    let kind = c"fuse.directfs";
    // SAFETY: strings that end in zero and outlive the call.
    let mounted = unsafe { libc::mount(source.as_ptr(), point.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast()) };
    assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
    device
}

#[test]
fn a_mount_of_another_user_is_not_believed() {
    let test = "a_mount_of_another_user_is_not_believed";
    if !can_mount(test) || !is_root(test) {
        return;
    }
    let stage = Stage::new();
    let _never_served = mount_of_a_stranger(&stage);
    let info = within_bound(&["info", stage.image()]);
    assert_eq!(info.status.code(), Some(0), "{}", stderr(&info));
    assert!(!stdout(&info).contains("mounted on"), "{}", stdout(&info));
    assert_eq!(within_bound(&["stats", stage.image()]).status.code(), Some(0));
    assert_eq!(within_bound(&["ps", stage.image()]).status.code(), Some(0));
    let resized = within_bound(&["resize", stage.image(), "64M"]);
    assert_eq!(resized.status.code(), Some(0), "{}", stderr(&resized));
    assert_eq!(fs::metadata(&stage.image).unwrap().len(), 64 << 20, "the image itself is larger");
}

#[test]
fn a_server_keeps_nothing_of_its_starter() {
    if !can_mount("a_server_keeps_nothing_of_its_starter") {
        return;
    }
    for options in [&[][..], &["-o", "keep"]] {
        let stage = Stage::new();
        let lock = File::create(stage.path("lock")).unwrap();
        let mut mount = Command::new(env!("CARGO_BIN_EXE_directfs"));
        mount.args(["mount", "image", "mount"]).args(options).current_dir(stage.directory.path());
        let fd = lock.as_raw_fd();
        // SAFETY: plain system calls between fork and exec.
        unsafe {
            mount.pre_exec(move || {
                libc::fcntl(fd, libc::F_SETFD, 0);
                match libc::flock(fd, libc::LOCK_EX) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let mounted = mount.output().unwrap();
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        drop(lock);
        let again = File::open(stage.path("lock")).unwrap();
        // A child that another test starts has the descriptor between fork and exec.
        let end = Instant::now() + Duration::from_secs(60);
        // SAFETY: an open descriptor.
        let is_free = || unsafe { libc::flock(again.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        while !is_free() && Instant::now() < end {
            sleep(Duration::from_millis(10));
        }
        assert!(is_free(), "{options:?}: the server holds the starter's lock");
        let directory = fs::read_link(format!("/proc/{}/cwd", stage.server())).unwrap();
        assert_eq!(directory, Path::new("/"), "{options:?}");
        unmount(&stage.point);
    }
}

/// A copy has the file, and fsck finds nothing.
fn has_file(copy: &str, content: &str) {
    let check = directfs(&["fsck", "-n", copy]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
    let read = directfs(&["run", "--image", copy, "--", "sh", "-c", "cat $DIRECTFS_MOUNT/file"]);
    assert_eq!((stdout(&read).as_str(), stderr(&read).as_str()), (content, ""));
}

/// The content of `file` in an archive.
fn file_in(archive: &Output) -> String {
    let mut tar = Command::new("tar");
    tar.args(["-xO", "--wildcards", "*file"]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut tar = tar.spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&archive.stdout).unwrap();
    stdout(&tar.wait_with_output().unwrap())
}

#[test]
fn an_image_that_a_mount_has_alone_is_copied_exported_and_trimmed_by_its_server() {
    if !can_mount("an_image_that_a_mount_has_alone_is_copied") {
        return;
    }
    for stage in [Stage::new(), Stage::on_disk()] {
        stage.mount(&[]);
        fs::write(stage.point.join("file"), "content").unwrap();
        fs::write(stage.point.join("large"), vec![7; 4 << 20]).unwrap();
        let done = |arguments: &[&str]| {
            let output = within_bound(arguments);
            assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
            output
        };
        let (snapshot, clone) = (stage.path("snapshot"), stage.path("clone"));
        done(&["snapshot", stage.image(), &snapshot]);
        done(&["clone", stage.image(), &clone, "--label", "other"]);
        assert_eq!(file_in(&done(&["export", stage.image()])), "content");
        fs::remove_file(stage.point.join("large")).unwrap();
        let trimmed: serde_json::Value =
            serde_json::from_slice(&done(&["trim", stage.image(), "--json"]).stdout).unwrap();
        assert!(trimmed["freed_bytes"].as_u64().unwrap() >= 4 << 20, "{trimmed}");
        assert_eq!(fs::read_to_string(stage.point.join("file")).unwrap(), "content");
        let below = stage.point.join("copy");
        let refused = within_bound(&["snapshot", stage.image(), below.to_str().unwrap()]);
        assert!(stderr(&refused).contains("on the image itself"), "{}", stderr(&refused));
        unmount(&stage.point);
        has_file(&snapshot, "content");
        has_file(&clone, "content");
        let info = stdout(&directfs(&["info", &clone]));
        assert!(info.contains("other"), "{info}");
        assert_eq!(stage.names(), ["clone", "image", "mount", "snapshot"]);
    }
}

#[test]
fn a_mount_is_that_of_the_image_that_its_server_has_whatever_the_names() {
    if !can_mount("a_mount_is_that_of_the_image_that_its_server_has") {
        return;
    }
    let stage = Stage::on_disk();
    let done = |arguments: &[&str]| {
        let output = within_bound(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output
    };
    let (copy, moved, link) = (stage.path("copy"), stage.path("moved"), stage.path("link"));
    fs::hard_link(&stage.image, &link).unwrap();
    stage.mount(&["-o", "fsname=a name"]);
    fs::write(stage.point.join("file"), "mounted").unwrap();
    for name in [stage.image(), &link] {
        done(&["snapshot", name, &copy]);
        has_file(&copy, "mounted");
        fs::remove_file(&copy).unwrap();
        assert_eq!(file_in(&done(&["export", name])), "mounted");
        done(&["trim", name]);
    }
    // Another image takes its name.
    let server = stage.server();
    fs::rename(&stage.image, &moved).unwrap();
    let script = "echo -n other >$DIRECTFS_MOUNT/file";
    done(&["mkfs", stage.image(), "--size", "16M"]);
    done(&["run", "--image", stage.image(), "--", "sh", "-c", script]);
    assert_eq!(file_in(&done(&["export", stage.image()])), "other");
    assert_eq!(file_in(&done(&["export", &moved])), "mounted");
    done(&["snapshot", stage.image(), &copy]);
    has_file(&copy, "other");
    done(&["resize", stage.image(), "+4M"]);
    assert_eq!(file_in(&done(&["export", &moved])), "mounted");
    done(&["umount", stage.point.to_str().unwrap()]);
    // A process that only has to be waited for has no program.
    let program = fs::read_link(format!("/proc/{server}/exe"));
    assert!(program.is_err(), "the server has ended, and closed its image: {program:?}");
    has_file(&moved, "mounted");
    has_file(stage.image(), "other");
}

#[test]
fn a_change_of_a_name_on_a_synchronous_mount_is_on_the_disk_when_it_returns() {
    if !can_mount("a_change_of_a_name_on_a_synchronous_mount") {
        return;
    }
    for options in ["dirsync", "sync", "sync,cache=0", "dirsync,keep"] {
        let stage = Stage::on_disk();
        stage.mount(&["-o", "commit=0", "-o", options]);
        let at = |name: &str| stage.point.join(name);
        // The file alone: without what is in memory.
        let is_on_disk = |name: &str| {
            let copy = stage.path("copy");
            fs::copy(&stage.image, &copy).unwrap();
            let archive = within_bound(&["export", &copy, name]);
            archive.status.success()
        };
        fs::create_dir(at("made")).unwrap();
        assert!(is_on_disk("made"), "{options}");
        fs::rename(at("made"), at("renamed")).unwrap();
        assert!(is_on_disk("renamed"), "{options}");
        File::create(at("file")).unwrap();
        assert!(is_on_disk("file"), "{options}");
        fs::remove_file(at("file")).unwrap();
        assert!(is_on_disk("renamed") && !is_on_disk("file"), "{options}");
        unmount(&stage.point);
    }
}

#[test]
fn umount_waits_for_no_server_of_another_mount_whatever_their_sources() {
    if !can_mount("umount_waits_for_no_server_of_another_mount") {
        return;
    }
    let stage = Stage::new();
    stage.mount(&["-o", "cache=0,fsname=a name"]);
    let other = stage.path("other");
    fs::create_dir(&other).unwrap();
    assert!(directfs(&["mount", stage.image(), &other, "-o", "cache=0"]).status.success());
    let unmounted = within_bound(&["umount", stage.point.to_str().unwrap()]);
    unmount(Path::new(&other));
    assert!(unmounted.status.success(), "{}", stderr(&unmounted));
}

#[test]
fn a_change_that_cannot_be_committed_is_the_same_for_the_kernel_and_the_image() {
    if !can_mount("a_change_that_cannot_be_committed") {
        return;
    }
    let stage = Stage::on_disk();
    let log = stage.path("log");
    stage.mount(&["-o", "commit=0,sync", "-o", &format!("log={log}")]);
    let at = |name: &str| stage.point.join(name);
    ["removed", "moved", "changed"].into_iter().for_each(|name| fs::write(at(name), "content").unwrap());
    // The server can write its log, and nothing of the journal.
    let limit = Command::new("prlimit").args(["--fsize=4096:", "--pid", &stage.server()]).status().unwrap();
    assert!(limit.success());
    fs::remove_file(at("removed")).unwrap();
    fs::rename(at("moved"), at("renamed")).unwrap();
    fs::create_dir(at("made")).unwrap();
    fs::set_permissions(at("changed"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut names: Vec<_> = fs::read_dir(&stage.point).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["changed", "made", "renamed"]);
    let is_known = |name: &str| at(name).exists();
    assert_eq!(["removed", "moved", "renamed", "made"].map(is_known), [false, false, true, true]);
    assert_eq!(fs::metadata(at("changed")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(File::open(at("changed")).unwrap().sync_all().is_err(), "a sync says that nothing is on the disk");
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("in memory only").count(), 1, "{said}");
    let unlimited = Command::new("prlimit").args(["--fsize=unlimited:", "--pid", &stage.server()]).status().unwrap();
    assert!(unlimited.success());
    File::open(at("changed")).unwrap().sync_all().unwrap();
    unmount(&stage.point);
}

#[test]
fn the_server_copies_for_root_and_the_owner_only() {
    let test = "the_server_copies_for_root_and_the_owner_only";
    if !can_mount(test) || !is_root(test) {
        return;
    }
    let stage = Stage::new();
    fs::set_permissions(stage.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&stage.image, fs::Permissions::from_mode(0o644)).unwrap();
    let program = stage.path("directfs");
    assert!(support::copy_program(env!("CARGO_BIN_EXE_directfs"), Path::new(&program)));
    stage.mount(&[]);
    let snapshot_as = |user: u32, name: &str| {
        let mut command = Command::new(&program);
        command.args(["snapshot", stage.image(), &stage.path(name)]).uid(user).gid(user).output().unwrap()
    };
    let refused = snapshot_as(65534, "stolen");
    assert!(stderr(&refused).contains("only root, the image's owner"), "{}", stderr(&refused));
    std::os::unix::fs::chown(&stage.image, Some(65534), Some(65534)).unwrap();
    let made = snapshot_as(65534, "copy");
    assert!(made.status.success(), "{}", stderr(&made));
    assert_eq!(fs::metadata(stage.path("copy")).unwrap().uid(), 65534);
    assert_eq!(stage.names(), ["copy", "directfs", "image", "mount"]);
    unmount(&stage.point);
}

#[test]
fn a_requester_that_is_killed_and_a_server_that_is_killed_leave_nothing() {
    if !can_mount("a_requester_that_is_killed_and_a_server_that_is_killed_leave_nothing") {
        return;
    }
    let stage = Stage::on_disk();
    stage.mount(&[]);
    fs::write(stage.point.join("file"), "content").unwrap();
    let start = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command
            .args(["snapshot", stage.image(), &stage.path(name)])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    for round in 0..8 {
        let mut requester = start("killed");
        std::thread::sleep(std::time::Duration::from_millis(round * 5));
        requester.kill().unwrap();
        requester.wait().unwrap();
        let _ = fs::remove_file(stage.path("killed"));
        assert_eq!(stage.names(), ["image", "mount"]);
    }
    // The server is free again for the next one, once it has seen the death.
    let refused = loop {
        let again = directfs(&["snapshot", stage.image(), &stage.path("copy")]);
        if !stderr(&again).contains("for another process") {
            break again;
        }
    };
    assert!(refused.status.success(), "{}", stderr(&refused));
    let mut requester = start("late");
    signal("-KILL", &stage.server());
    let is_made = requester.wait().unwrap().success();
    assert_eq!(stage.names().contains(&"late".to_owned()), is_made, "whole, or not there");
    drop(stage);
}

#[test]
fn a_mount_is_ended_by_a_link_to_it() {
    if !can_mount("a_mount_is_ended_by_a_link_to_it") {
        return;
    }
    let stage = Stage::new();
    stage.mount(&[]);
    let links = [stage.path("link"), stage.path("second")];
    symlink("mount", &links[0]).unwrap();
    symlink(&links[0], &links[1]).unwrap();
    unmount(Path::new(&links[1]));
    fs::remove_dir(&stage.point).expect("nothing is mounted there");
}

/// In a mount namespace of its own: other tests read the table of mounts as text.
#[test]
fn an_image_and_a_mount_point_have_names_that_are_not_text() {
    let test = "an_image_and_a_mount_point_have_names_that_are_not_text";
    if !can_mount(test) || !is_root(test) {
        return;
    }
    const SCRIPT: &str = r#"
        set -e; "$1" mount "$2" "$3"; echo content >"$3/file"
        "$1" info "$2" | grep -c "mounted on"; "$1" snapshot "$2" "$2.copy" >/dev/null
        "$1" umount "$3"; "$1" fsck -n "$2" | grep -c "left cleanly;"; ! "$1" umount "$3""#;
    let stage = Stage::new();
    let name = |bytes: &[u8]| stage.directory.path().join(std::ffi::OsString::from_vec(bytes.to_vec()));
    let (image, point) = (name(b"i\xff, \\.img"), name(b"m\xff,\n \\t"));
    fs::rename(&stage.image, &image).unwrap();
    fs::create_dir(&point).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", SCRIPT, "sh", env!("CARGO_BIN_EXE_directfs")]);
    let output = command.args([image, point]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "1\n1\n"), "{}", stderr(&output));
}

/// The flags of the mount at a stage.
fn flags(stage: &Stage) -> Vec<String> {
    let mounts = fs::read("/proc/self/mounts").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let line = mounts.lines().rfind(|line| line.split(' ').nth(1) == stage.point.to_str()).unwrap();
    line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect()
}

#[test]
fn a_remount_without_the_helper_gives_an_image_of_others_no_privileges() {
    let test = "a_remount_without_the_helper_gives_an_image_of_others_no_privileges";
    if !can_mount(test) || !is_root(test) {
        return;
    }
    let stage = Stage::new();
    fs::set_permissions(&stage.image, fs::Permissions::from_mode(0o666)).unwrap();
    stage.mount(&[]);
    let has = |flag: &str| flags(&stage).iter().any(|shown| shown == flag);
    assert!(has("nosuid") && has("nodev"));
    // As mount(8) does it for `mount -o remount,noatime IMAGE DIR`.
    let remount = || {
        let point = CString::new(stage.point.as_os_str().as_bytes()).unwrap();
        let (none, flags) = (std::ptr::null(), libc::MS_REMOUNT | libc::MS_NOATIME);
        // SAFETY: a string that ends in zero and outlives the call.
        assert_eq!(unsafe { libc::mount(none, point.as_ptr(), none, flags, none.cast()) }, 0);
        assert!(has("noatime"));
    };
    let until = |flag: &str| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(600);
        while !has(flag) {
            assert!(std::time::Instant::now() < end, "{:?}", flags(&stage));
            std::thread::yield_now();
        }
    };
    remount();
    until("nosuid");
    assert!(has("nodev") && has("noatime"), "{:?}", flags(&stage));
    // What an option of the helper names is the administrator's word.
    let named = directfs(&["mount", stage.image(), stage.point.to_str().unwrap(), "-o", "remount,suid"]);
    assert!(named.status.success(), "{}", stderr(&named));
    assert!(!has("nosuid") && has("nodev"), "{:?}", flags(&stage));
    remount();
    until("nodev");
    assert!(!has("nosuid"), "both would come back at once");
    unmount(&stage.point);
}
