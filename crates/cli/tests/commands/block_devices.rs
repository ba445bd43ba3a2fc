//! Images on block devices: loop devices over files in memory. Power cuts of such an image are in
//! `devices`.

use crate::support::{can_mount, copy_program, directfs, mount, scratch, stderr, stdout, unmount};
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A block device whose bytes are a file; it goes with this value.
struct Device {
    directory: tempfile::TempDir,
    node: String,
}

impl Device {
    /// `None`: this user or machine has none, which is printed.
    fn attach(test: &str, bytes: u64) -> Option<Device> {
        let directory = scratch();
        let file = directory.path().join("disk");
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().expect("losetup starts");
        let node = stdout(&output).trim().to_owned();
        if node.is_empty() {
            eprintln!("\n*** SKIPPED: {test}: no loop device: {} ***\n", stderr(&output).trim());
            return None;
        }
        Some(Device { directory, node })
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    fn place(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn grow(&self, bytes: u64) {
        File::options().write(true).open(self.file()).unwrap().set_len(bytes).unwrap();
        assert!(Command::new("losetup").args(["-c", &self.node]).status().unwrap().success());
    }

    /// Runs a script of a shell, and returns what it prints.
    fn run(&self, options: &[&str], script: &str) -> String {
        let words =
            [&["run", "--image", &self.node], options, &["-C", "/mnt/directfs", "--", "sh", "-ec", script]].concat();
        accepted(&words)
    }

    fn check(&self) {
        let found: Value = serde_json::from_str(&accepted(&["fsck", "-n", "--json", &self.node])).unwrap();
        assert_eq!((&found["errors"], &found["warnings"]), (&0.into(), &0.into()), "{found}");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.node]).status();
    }
}

fn accepted(words: &[&str]) -> String {
    let output = directfs(words);
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    stdout(&output)
}

fn assert_refused(words: &[&str], reason: &str) {
    let output = directfs(words);
    assert!(!output.status.success(), "{words:?} succeeds: {}", stdout(&output));
    assert!(stderr(&output).contains(reason), "{words:?}: {}", stderr(&output));
}

/// Takes a device for itself, as a mount does.
fn claim(node: &str) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_EXCL).open(node)
}

#[test]
fn an_image_on_a_block_device_serves_every_command() {
    let Some(device) = Device::attach("an image on a block device", 96 << 20) else { return };
    let node = device.node.as_str();
    assert!(accepted(&["mkfs", node]).contains("What was synced"));
    assert!(accepted(&["info", node]).contains("a block device"));
    device.run(&[], "echo one >file; sync file; mkdir d; head -c 5M /dev/urandom >d/large");
    device.check();
    assert_eq!(device.run(&["--read-only"], "cat file; ! echo 2>/dev/null >new"), "one\n");
    assert_eq!(device.run(&["--discard"], "rm -r d; ls"), "file\n");
    device.run(&["--atomic"], "cp d/large other");
    device.run(&["--no-commit"], "cmp d/large other");
    let disk = device.place("disk");
    let synced = format!("echo synced in place >marked; sync marked; grep -q 'synced in place' {disk}; rm marked");
    device.run(&["--no-commit"], &synced);
    assert_refused(
        &["run", "--image", node, "--atomic", "--", "sh", "-c", "rm /mnt/directfs/file; exit 1"],
        "discarded",
    );
    // The working copy of a large image lies on a disk, but not beside the device.
    let hidden = device.run(&["--memory", "1M"], "rm other; ls -d /var/tmp/.directfs-*");
    assert!(hidden.lines().all(|file| !Path::new(file).exists()), "{hidden}");
    device.check();

    let (copy, store) = (device.place("copy"), device.place("store"));
    accepted(&["snapshot", node, &copy]);
    accepted(&["fsck", "-n", &copy]);
    fs::create_dir(&store).unwrap();
    let url = format!("file://{store}/image");
    accepted(&["push", node, &url]);
    accepted(&["pull", &url, &device.place("pulled")]);
    accepted(&["fsck", "-n", &device.place("pulled")]);
    accepted(&["tune", node, "--label", "named"]);
    assert!(accepted(&["info", node]).contains("named"));

    // Its free blocks had content before.
    device.run(&[], "rm d/large");
    let taken = device.file().metadata().unwrap().blocks();
    assert!(accepted(&["trim", node]).contains("gave back"));
    assert!(device.file().metadata().unwrap().blocks() + (4 << 11) < taken);
    device.check();
    assert_eq!(device.run(&[], "cat file"), "one\n");
    let tree = device.place("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(Path::new(&tree).join("from"), "a tree").unwrap();
    accepted(&["mkfs", node, "--force", "--from", &tree]);
    assert_eq!(device.run(&[], "cat *"), "a tree");
    device.check();
}

#[test]
fn a_block_device_in_use_has_its_image_alone_and_its_size() {
    let test = "a block device in use";
    let Some(device) = Device::attach(test, 64 << 20).filter(|_| can_mount(test)) else { return };
    let node = device.node.as_str();
    accepted(&["mkfs", node]);
    drop(claim(node).unwrap());
    for options in ["cache=0", "commit=1"] {
        let point = device.place("point");
        fs::create_dir_all(&point).unwrap();
        mount(Path::new(node), Path::new(&point), options);
        fs::write(Path::new(&point).join("file"), options).unwrap();
        // No file system can be mounted from the device.
        assert_eq!(claim(node).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_refused(&["mkfs", "--force", node], "in use");
        if options == "cache=0" {
            assert_refused(&["resize", node, "16M"], "in use on a device");
            assert_eq!(device.run(&[], "cat file"), options);
        }
        unmount(Path::new(&point));
        assert_eq!(device.run(&[], "cat file"), options);
        device.check();
    }
}

#[test]
fn what_a_block_device_holds_is_not_overwritten_by_mistake() {
    const BYTES: u64 = 64 << 20;
    let Some(device) = Device::attach("content of a block device", BYTES) else { return };
    let node = device.node.as_str();
    let disk = File::options().read(true).write(true).open(node).unwrap();
    // ext4, btrfs, and what RAID and GPT have at the end.
    for (at, mark) in [(1080, "\x53\u{ef}"), (65600, "_BHRfS_M"), (BYTES - 65536, "md"), (BYTES - 512, "EFI PART")] {
        disk.write_all_at(mark.as_bytes(), at).unwrap();
        assert_refused(&["mkfs", node], &format!("something at byte {at}"));
        let mut found = vec![0; mark.len()];
        disk.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, mark.as_bytes());
        disk.write_all_at(&vec![0; mark.len()], at).unwrap();
    }
    let claimed = claim(node).unwrap();
    assert_refused(&["mkfs", node, "--force"], "used by the kernel");
    drop(claimed);
    disk.write_all_at(b"EFI PART", BYTES - 512).unwrap();
    assert_refused(&["mkfs", node, "--force", "--size", "60M"], "make the device larger first");
    assert_refused(&["mkfs", node, "--size", "16M"], "something at byte");
    accepted(&["mkfs", node, "--force", "--size", "16M"]);
    let mut end = [1; 512];
    disk.read_exact_at(&mut end, BYTES - 512).unwrap();
    assert_eq!(end, [0; 512], "what is replaced is found no more");
    assert_refused(&["mkfs", node], "a DirectFS image already");
    let claimed = claim(node).unwrap();
    for options in [&[][..], &["--atomic"]] {
        assert_refused(&[&["run", "--image", node], options, &["--", "true"]].concat(), "used by the kernel");
        let info: Value = serde_json::from_str(&accepted(&["info", node, "--json"])).unwrap();
        assert_eq!((&info["clean"], &info["in_use"]), (&true.into(), &false.into()), "{info}");
    }
    assert_refused(&["fsck", "-y", node], "used by the kernel");
    drop(claimed);
    let store = device.place("store");
    fs::create_dir(&store).unwrap();
    let url = format!("file://{store}/image");
    accepted(&["push", node, &url]);
    assert_refused(&["pull", "--force", &url, node], "only a file can be replaced");
    device.check();
}

#[test]
fn an_image_gets_larger_with_its_block_device() {
    let Some(device) = Device::attach("growth on a block device", 64 << 20) else { return };
    let node = device.node.as_str();
    accepted(&["mkfs", node, "--size", "16M"]);
    device.run(&[], "echo first >file; head -c 3M /dev/urandom >large; sync; cksum large >sum");
    let verify = || {
        assert_eq!(device.run(&[], "cksum large | cmp - sum; echo more >>new; sync; cat file"), "first\n");
        device.check();
    };
    // Old journals lie behind the image, and in it.
    for size in ["24M", "16M", "24M", "20M", "30M"] {
        accepted(&["resize", node, size]);
        verify();
    }
    assert_refused(&["resize", node, "60M"], "make the device larger first");
    verify();
    device.grow(160 << 20);
    accepted(&["resize", node, "60M"]);
    verify();
    let info: Value = serde_json::from_str(&accepted(&["info", node, "--json"])).unwrap();
    assert_eq!(info["length"], 60 << 20);
    device.run(&[], "head -c 40M /dev/zero >much; sync");
    device.check();
}

#[test]
fn a_commit_of_all_that_an_image_holds_fits_on_its_block_device() {
    let Some(device) = Device::attach("a long commit on a block device", 64 << 20) else { return };
    accepted(&["mkfs", &device.node]);
    // Nothing is committed before the image is full.
    let script = "head -c 100M /dev/urandom >full 2>/dev/null || :; sync full; cksum <full";
    let sum = device.run(&["--commit-interval", "0"], script);
    assert!(sum.split(' ').nth(1).unwrap().trim().parse::<u64>().unwrap() > 20 << 20, "{sum}");
    assert_eq!(device.run(&[], "cksum <full"), sum);
    device.check();
}

#[test]
fn calls_of_killed_processes_on_a_block_device_are_kept() {
    let Some(device) = Device::attach("killed processes on a block device", 64 << 20) else { return };
    accepted(&["mkfs", &device.node]);
    let script = "cd /mnt/directfs; echo synced >a; sync a; echo later >b; kill -9 0";
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--image", &device.node, "--", "sh", "-c", script]).process_group(0);
    assert!(!command.status().unwrap().success());
    assert_eq!(device.run(&[], "cat a b"), "synced\nlater\n");
    device.check();
}

#[test]
fn a_user_with_rights_on_a_block_device_uses_it_and_others_do_not() {
    const USER: u32 = 65534;
    let Some(device) = Device::attach("a block device of another user", 64 << 20) else { return };
    let (node, place) = (device.node.as_str(), device.directory.path());
    let program = place.join("directfs");
    assert!(copy_program(env!("CARGO_BIN_EXE_directfs"), &program));
    fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let as_user = |user: u32, words: &[&str]| {
        let user = user.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&program).args(words);
        command.env("HOME", "/nonexistent").output().unwrap()
    };
    let succeeds = |words: &[&str]| {
        let output = as_user(USER, words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        stdout(&output)
    };
    let before = fs::metadata(node).unwrap();
    std::os::unix::fs::chown(node, Some(USER), Some(USER)).unwrap();
    succeeds(&["mkfs", node]);
    let run = ["run", "--image", node, "-C", "/mnt/directfs", "--", "sh", "-c"];
    assert_eq!(succeeds(&[&run[..], &["echo one >file; sync file; id -u"]].concat()), format!("{USER}\n"));
    assert_eq!(succeeds(&[&run[..], &["cat file"]].concat()), "one\n");
    succeeds(&["fsck", "-n", node]);
    succeeds(&["resize", node, "16M"]);
    for options in [&[][..], &["--read-only"], &["--discard"]] {
        let words = [&["run", "--image", node], options, &["--", "true"]].concat();
        let refused = as_user(USER - 1, &words);
        assert!(stderr(&refused).contains("no permission"), "{words:?}: {}", stderr(&refused));
    }
    std::os::unix::fs::chown(node, Some(before.uid()), Some(before.gid())).unwrap();
    device.check();
}
