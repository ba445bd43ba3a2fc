//! Mounts in the background, by directfs and by mount(8).

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{can_mount, directfs, image_in, scratch, stderr, stdout};

/// An image and a mount point, which is always unmounted at the end.
struct Stage {
    directory: tempfile::TempDir,
    image: PathBuf,
    point: PathBuf,
}

impl Stage {
    fn new() -> Stage {
        let directory = scratch();
        let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
        fs::create_dir(&point).unwrap();
        Stage { directory, image, point }
    }

    fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn point(&self) -> &str {
        self.point.to_str().unwrap()
    }

    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(self.point()))
    }

    fn umount(&self) {
        let output = directfs(&["umount", self.point()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!self.is_mounted());
        // The image is clean when the command returns.
        let check = directfs(&["fsck", "-n", self.image()]);
        assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
        assert!(stdout(&check).contains("left cleanly;"), "{}", stdout(&check));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = directfs(&["umount", "--lazy", self.point()]);
        }
    }
}

#[test]
fn a_mount_whose_server_was_killed_comes_back() {
    if !can_mount("a mount whose server was killed") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point()]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    fs::write(stage.point.join("file"), "content").unwrap();
    kill_server(&stage);
    let dead = fs::read(stage.point.join("file")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    let again = directfs(&["mount", stage.image(), stage.point()]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(stderr(&again).contains("whose server had exited"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(stage.point.join("file")).unwrap(), "content");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert_eq!(mounts.lines().filter(|line| line.contains(stage.point())).count(), 1, "one mount, not two");
    // `umount` removes a dead mount, too.
    kill_server(&stage);
    let removed = directfs(&["umount", stage.point()]);
    assert!(removed.status.success(), "{}", stderr(&removed));
    assert!(!stage.is_mounted());
}

/// Kills the server of a mount, and returns when it has exited.
fn kill_server(stage: &Stage) {
    let found = Command::new("pgrep").args(["-f", &format!("mount --foreground {}", stage.image())]).output().unwrap();
    for server in stdout(&found).split_whitespace() {
        Command::new("kill").args(["-KILL", server]).status().unwrap();
        while Path::new(&format!("/proc/{server}")).exists() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_image_that_others_can_write_is_mounted_without_their_privileges() {
    // SAFETY: asks only.
    if !can_mount("an image that others can write") || unsafe { libc::geteuid() } != 0 {
        eprintln!("\n*** SKIPPED: an image that others can write: needs root ***\n");
        return;
    }
    let options_of = |mode: u32, options: &[&str]| {
        let stage = Stage::new();
        fs::set_permissions(&stage.image, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let mounted = directfs(&[&["mount", stage.image(), stage.point()], options].concat());
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(stage.point())).unwrap().to_owned();
        stage.umount();
        let has = |option: &str| line.split([' ', ',']).any(|part| part == option);
        (has("nosuid"), has("nodev"))
    };
    assert_eq!(options_of(0o600, &[]), (false, false), "root's own image");
    assert_eq!(options_of(0o660, &[]), (true, true), "a group writes it");
    assert_eq!(options_of(0o666, &[]), (true, true), "all users write it");
    assert_eq!(options_of(0o666, &["-o", "suid,dev"]), (false, false), "named options decide");
}

fn called_as(name: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_directfs")).arg0(name).args(arguments).output().unwrap()
}

#[test]
fn a_mount_stands_when_the_command_returns_and_is_clean_after_umount() {
    if !can_mount("mount and umount") {
        return;
    }
    let stage = Stage::new();
    let output = directfs(&["mount", stage.image(), stage.point()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stage.is_mounted());
    fs::write(stage.point.join("file"), "content").unwrap();
    let info = directfs(&["info", stage.image()]);
    assert!(stdout(&info).contains(stage.point()), "{}", stdout(&info));
    stage.umount();

    assert!(directfs(&["mount", stage.image(), stage.point(), "--read-only"]).status.success());
    assert_eq!(fs::read_to_string(stage.point.join("file")).unwrap(), "content");
    let refused = fs::write(stage.point.join("other"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    stage.umount();
}

#[test]
fn mount_8_finds_its_helper_and_mount_fuse_its_type() {
    if !can_mount("the helper of mount(8)") {
        return;
    }
    let stage = Stage::new();
    let options = "rw,nosuid,nodev,noauto,user=root";
    for (name, arguments) in [
        ("/sbin/mount.directfs", &[stage.image(), stage.point(), "-o", options][..]),
        (
            "mount.fuse.directfs",
            &[stage.image(), stage.point(), "-n", "-s", "-v", "-o", "rw,unheard_of", "-t", "fuse.directfs"],
        ),
        ("directfs", &[stage.image(), stage.point(), "-o", "rw,nosuid"]),
    ] {
        let output = called_as(name, arguments);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert!(stage.is_mounted(), "{name}");
        stage.umount();
    }
    let fake = called_as("mount.directfs", &[stage.image(), stage.point(), "-f"]);
    assert!(fake.status.success() && !stage.is_mounted());
}

#[test]
fn a_failing_mount_reports_the_reason_to_its_caller() {
    let stage = Stage::new();
    let nowhere = stage.directory.path().join("nowhere");
    let output = directfs(&["mount", stage.image(), nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("create the directory first"), "{}", stderr(&output));
    let output = called_as("mount.directfs", &[stage.image(), nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(32), "as mount(8) has it");
    let output = called_as("mount.directfs", &[stage.image(), stage.point(), "-o", "nosuit"]);
    assert_eq!(output.status.code(), Some(32));
    assert!(stderr(&output).contains("nosuit"), "{}", stderr(&output));
    assert!(!stage.is_mounted());
}

#[test]
fn a_mount_in_use_is_not_taken_away() {
    if !can_mount("umount of a mount in use") {
        return;
    }
    let stage = Stage::new();
    assert!(directfs(&["mount", stage.image(), stage.point()]).status.success());
    let file = fs::File::create(stage.point.join("open")).unwrap();
    let refused = directfs(&["umount", stage.point()]);
    assert!(!refused.status.success() && stderr(&refused).contains("in use"), "{}", stderr(&refused));
    assert!(stage.is_mounted());
    drop(file);
    stage.umount();
    assert!(Path::new(stage.image()).exists());
}
