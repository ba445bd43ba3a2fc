//! `directfs resize` and `directfs tune`.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::killing::killed_at;
use support::{copy_into, directfs, scratch, stderr, stdout};

const MIB: u64 = 1 << 20;

fn make(directory: &Path, size: &str, options: &[&str]) -> PathBuf {
    let image = directory.join("image");
    let made = directfs(&[&["mkfs", image.to_str().unwrap(), "--size", size], options].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    let tree = directory.join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..40u32 {
        fs::write(tree.join(format!("file {number}")), format!("{number}\n").repeat(30000)).unwrap();
    }
    let copied = copy_into(image.to_str().unwrap(), &tree);
    assert!(copied.status.success(), "{}", stderr(&copied));
    image
}

fn resize(image: &Path, size: &str) -> Value {
    let output = directfs(&["resize", image.to_str().unwrap(), size, "--json"]);
    assert!(output.status.success(), "{size}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn info(image: &Path) -> Value {
    let output = directfs(&["info", image.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn run(image: &Path, script: &str) -> std::process::Output {
    let image = image.to_str().unwrap();
    directfs(&["run", "--image", image, "--at", "/mnt/size", "-C", "/mnt/size", "--", "sh", "-c", script])
}

/// The image passes every check, and holds the tree that it was made from.
fn is_whole(image: &Path) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
    let tree = image.with_file_name("tree");
    let same = run(image, &format!("diff -r {} . --exclude 'new*'", tree.display()));
    assert!(same.status.success(), "{}{}", stdout(&same), stderr(&same));
}

#[test]
fn growth_of_an_image_on_a_disk_writes_what_is_in_use_and_not_what_is_free() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = make(directory.path(), "64M", &["--sparse"]);
    let before = fs::metadata(&image).unwrap().blocks() * 512;
    // The map of free space of 4 TiB has 256 MiB.
    resize(&image, "4T");
    assert_eq!(info(&image)["length"], 4u64 << 40);
    let added = (fs::metadata(&image).unwrap().blocks() * 512).saturating_sub(before);
    assert!(added < 32 * MIB, "{added} bytes more");
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

#[test]
fn an_image_grows_and_the_new_space_can_be_used() {
    let directory = scratch();
    let image = make(directory.path(), "16M", &["--sparse"]);
    let full = run(&image, "head -c 20M /dev/zero > new");
    assert!(!full.status.success(), "it has 16 MiB");
    let resized = resize(&image, "100M");
    assert_eq!((&resized["before_bytes"], &resized["after_bytes"]), (&(16 * MIB).into(), &(100 * MIB).into()));
    assert_eq!(info(&image)["length"], 100 * MIB);
    is_whole(&image);
    let fits = run(&image, "head -c 80M /dev/urandom > new && cksum < new > new.sum");
    assert!(fits.status.success(), "{}", stderr(&fits));
    // Once more, and in the other direction as far as the files allow.
    resize(&image, "+60M");
    is_whole(&image);
    assert!(run(&image, "cksum < new | cmp - new.sum").status.success());
    let refused = directfs(&["resize", image.to_str().unwrap(), "50M"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("choose at least"), "{}", stderr(&refused));
    assert!(run(&image, "rm new new.sum").status.success());
    let least = stderr(&directfs(&["resize", image.to_str().unwrap(), "1M"]));
    let least = least.split("needs ").nth(1).and_then(|rest| rest.split(';').next()).unwrap().to_owned();
    resize(&image, &least);
    assert_eq!(fs::metadata(&image).unwrap().len().to_string(), least);
    is_whole(&image);
    resize(&image, "32M");
    is_whole(&image);
}

#[test]
fn a_reserved_image_stays_reserved_and_one_on_a_disk_gets_a_new_journal() {
    let directory = scratch();
    let image = make(directory.path(), "16M", &[]);
    resize(&image, "24M");
    let metadata = fs::metadata(&image).unwrap();
    assert!(metadata.blocks() * 512 >= 24 * MIB, "all of it is reserved");
    is_whole(&image);

    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = make(disk.path(), "16M", &["--sparse"]);
    assert!(fs::metadata(&image).unwrap().len() > 16 * MIB, "its journal is behind it");
    for size in ["64M", "12M", "33M"] {
        resize(&image, size);
        is_whole(&image);
        let used = run(&image, "echo x > new && sync");
        assert!(used.status.success(), "{}", stderr(&used));
    }
}

#[test]
fn a_resize_that_is_killed_at_any_write_leaves_a_sound_image_of_the_old_or_the_new_size() {
    for parent in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let image = make(directory.path(), "16M", &["--sparse"]);
        let kept = directory.path().join("kept");
        for (size, wanted) in [("40M", 40 * MIB), ("12M", 12 * MIB)] {
            fs::copy(&image, &kept).unwrap();
            let mut sizes = Vec::new();
            for nth in 1.. {
                fs::copy(&kept, &image).unwrap();
                let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
                command.args(["resize", image.to_str().unwrap(), size]).stdout(Stdio::null());
                let was_killed = killed_at(&mut command, nth);
                is_whole(&image);
                sizes.push(info(&image)["length"].as_u64().unwrap());
                if !was_killed {
                    break;
                }
            }
            assert!(sizes.len() > 5, "{sizes:?}");
            assert!(sizes.is_sorted_by_key(|size| *size == wanted), "old, then new: {sizes:?}");
            assert_eq!(sizes.last(), Some(&wanted));
            // The next size begins with a resized image.
            fs::copy(&image, &kept).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_resized_is_refused_and_stays_as_it_is() {
    let directory = scratch();
    let image = make(directory.path(), "16M", &["--sparse"]);
    let path = image.to_str().unwrap();
    let mut shell = Command::new(env!("CARGO_BIN_EXE_directfs"))
        .args(["run", "--image", path, "--at", "/mnt/size", "--", "sh", "-c", "echo ready; read line; true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut ready).unwrap();
    // What an image in use can become is in `growth.rs`.
    for arguments in [&["resize", path, "12M"][..], &["tune", path, "--label", "other"]] {
        let refused = directfs(arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&refused).contains("is in use by process"), "{}", stderr(&refused));
    }
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    let before = fs::read(&image).unwrap();
    for (size, part) in [("1M", "choose at least"), ("four", "unit of size"), ("-32M", "cannot have"), ("8E", "")] {
        let refused = directfs(&["resize", path, size]);
        assert!(!refused.status.success(), "{size}");
        assert!(stderr(&refused).contains(part), "{size}: {}", stderr(&refused));
    }
    assert!(fs::read(&image).unwrap() == before, "a refusal changed the image");
    let text = directory.path().join("text");
    fs::write(&text, "no image ".repeat(1000)).unwrap();
    for command in [&["resize", text.to_str().unwrap(), "32M"][..], &["tune", text.to_str().unwrap(), "--label", "x"]] {
        let refused = directfs(command);
        assert!(stderr(&refused).contains("not a DirectFS image"), "{}", stderr(&refused));
    }
    assert_eq!(fs::metadata(&text).unwrap().len(), 9000);
    // A reserved image on a full file system.
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a full file system: only root can mount one ***\n");
        return;
    }
    let script = "mount -t tmpfs -o size=24M none \"$1\" && cd \"$1\" && \"$2\" mkfs image --size 16M > /dev/null \
        && ! \"$2\" resize image 64M 2> error && grep -q 'free space' error && \"$2\" fsck -n image > /dev/null && stat -c %s image";
    let point = directory.path().join("small");
    fs::create_dir(&point).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    let output = command.arg(&point).arg(env!("CARGO_BIN_EXE_directfs")).output().unwrap();
    assert_eq!(stdout(&output), format!("{}\n", 16 * MIB), "{}", stderr(&output));
}

#[test]
fn label_and_uuid_change_and_a_kill_leaves_the_old_or_the_new_ones() {
    for parent in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let image = make(directory.path(), "16M", &["--sparse", "--label", "old"]);
        let path = image.to_str().unwrap();
        let before = info(&image);
        let tuned = directfs(&["tune", path, "--label", "new", "--uuid", "random"]);
        assert!(tuned.status.success(), "{}", stderr(&tuned));
        let after = info(&image);
        assert_eq!(after["label"], "new");
        assert_ne!(after["uuid"], before["uuid"]);
        is_whole(&image);
        let uuid = "123e4567-e89b-42d3-a456-426614174000";
        for nth in 1.. {
            let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
            command.args(["tune", path, "--uuid", uuid, "--label", "killed", "--reserved", "1M"]).stdout(Stdio::null());
            let was_killed = killed_at(&mut command, nth);
            let seen = info(&image);
            let is_new = seen["uuid"] == uuid && seen["label"] == "killed" && seen["blocks_reserved"] == 256;
            let is_old = seen["uuid"] == after["uuid"] && seen["label"] == "new" && seen["blocks_reserved"] == 0;
            assert!(is_new || is_old, "{seen}");
            // The copy of the superblock may be ahead, which a repair mends.
            let check = directfs(&["fsck", "-p", path]);
            assert!(matches!(check.status.code(), Some(0 | 1)), "{}", stdout(&check));
            is_whole(&image);
            if !was_killed {
                assert!(is_new, "{seen}");
                break;
            }
        }
    }
    for arguments in [&["tune", "image"][..], &["tune", "image", "--uuid", "abc"]] {
        assert_eq!(directfs(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let long = "x".repeat(65);
    let directory = scratch();
    let image = make(directory.path(), "16M", &["--sparse"]);
    let refused = directfs(&["tune", image.to_str().unwrap(), "--label", &long]);
    assert!(stderr(&refused).contains("limit is 64"), "{}", stderr(&refused));
}

/// Free blocks, and those for any user.
fn space(image: &Path) -> (u64, u64) {
    let space = stdout(&run(image, "stat -f -c '%f %a' ."));
    let (free, available) = space.trim().split_once(' ').unwrap();
    (free.parse().unwrap(), available.parse().unwrap())
}

#[test]
fn users_leave_the_blocks_that_are_reserved_for_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a reserve: only root can act for another user ***\n");
        return;
    }
    for parent in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let image = make(directory.path(), "32M", &["--sparse"]);
        let path = image.to_str().unwrap();
        let (free, available) = space(&image);
        let tuned = directfs(&["tune", path, "--reserved", "4M"]);
        assert_eq!(stdout(&tuned), "reserved for root 4 MiB\n", "{}", stderr(&tuned));
        assert_eq!(info(&image)["blocks_reserved"], 1024);
        assert!(stdout(&directfs(&["info", path])).contains("features: bounds of used slots, reserve"));
        is_whole(&image);
        let (still_free, fewer) = space(&image);
        assert!(still_free == free && (1020..1028).contains(&(available - fewer)), "{available} and {fewer}");
        // Two users at once, in one piece and in small files, over several groups of blocks. Either
        // may get most of the space, so later both kinds are removed. A refused write may leave its
        // length.
        let script = r#"chmod 777 .; as="setpriv --reuid 1234 --regid 1234 --clear-groups"
            $as sh -c 'cat /dev/zero >new' 2>$errors &
            $as sh -c 'i=0; while echo x >new.$i; do i=$((i + 1)); done' 2>/dev/null
            wait; grep -c "No space" $errors
            free=$(stat -f -c '%f' .); test $free -ge 1000 || echo reserve: $free
            test $(stat -f -c '%a' .) -le 32 && echo full; $as mkdir new.made 2>/dev/null && echo made
            head -c 3M /dev/zero >new.root && echo root
            $as find . -name 'new*' ! -user 0 -delete && sync . && $as sh -c 'head -c 2M /dev/zero >new.later' && echo later"#;
        let script = format!("errors={}/errors; {script}", directory.path().display());
        let filled = run(&image, &script);
        let lines: Vec<_> = stdout(&filled).lines().filter(|line| *line != "made").map(str::to_owned).collect();
        assert_eq!(lines, ["1", "full", "root", "later"], "{}", stderr(&filled));
        is_whole(&image);
        // It stays through a change of size, as a number of blocks.
        resize(&image, "48M");
        assert_eq!(info(&image)["blocks_reserved"], 1024);
        let refused = directfs(&["tune", path, "--reserved", "32M"]);
        assert!(stderr(&refused).contains("choose at most"), "{}", stderr(&refused));
        assert_eq!(directfs(&["tune", path, "--reserved", "51%"]).status.code(), Some(2));
        assert!(directfs(&["tune", path, "--reserved", "10%"]).status.success());
        let seen = info(&image);
        assert!(seen["blocks_reserved"].as_u64().unwrap().abs_diff(seen["blocks"].as_u64().unwrap() / 10) <= 1);
        assert!(directfs(&["tune", path, "--reserved", "0"]).status.success());
        assert_eq!((&info(&image)["blocks_reserved"], &info(&image)["features"]["compat"]), (&0.into(), &0.into()));
        is_whole(&image);
    }
}
