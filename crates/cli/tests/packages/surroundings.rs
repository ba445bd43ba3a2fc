//! Programs of others work with a mount: servers that export it, copies of it, layers over it, and
//! the services of the packages.
//!
//! A test is a script in the directory of this file's name. `# needs:` names its programs. It runs
//! as root in namespaces of its own: its servers have ports of their own and end with it, and
//! directories of the machine in which they keep their state are empty. `$MOUNT` is a fresh image
//! that is mounted, `$WORK` a directory on a disk. A script passes if its last line says so. The
//! image must then be sound.

use crate::support::{can_mount, directfs, mount, stderr, stdout, unmount};
use crate::{has, skipped};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const PASSED: &str = "all as it should be\n";
/// What a script finds.
const ENTER: &str = "set -e
for place in /run /var/lib/glusterd /var/log/glusterfs; do
    [ ! -d $place ] || mount -t tmpfs tmpfs $place
done
ip link set lo up
exec bash -euo pipefail -c 'trap \"echo failed in line \\$LINENO: \\$BASH_COMMAND\" ERR; source \"$0\"' \"$0\"";

/// Why a script cannot run on this machine.
fn obstacle(script: &str) -> Option<String> {
    let needs = script.lines().find_map(|line| line.strip_prefix("# needs: ")).expect("a line of needed programs");
    if let Some(program) = needs.split(' ').find(|program| !has("which", &[program])) {
        return Some(format!("{program} is not on this machine"));
    }
    let is_permitted = has("unshare", &["--mount", "--net", "--pid", "--fork", "true"]);
    (!is_permitted).then(|| "unshare is not permitted here".to_owned())
}

fn perform(name: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages/surroundings").join(format!("{name}.sh"));
    if let Some(obstacle) = obstacle(&fs::read_to_string(&script).unwrap()) {
        return skipped(name, &obstacle);
    }
    if !can_mount(name) {
        return;
    }
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [image, point, work] = ["image", "mnt", "work"].map(|part| place.path().join(part));
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "256M", "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    fs::create_dir(&point).unwrap();
    fs::create_dir(&work).unwrap();
    mount(&image, &point, "rw");
    let mut inside = Command::new("timeout");
    inside.args(["--kill-after=10", "540", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]);
    inside.args(["--mount-proc", "sh", "-c", ENTER]).arg(&script).current_dir(&work).stdin(Stdio::null());
    inside.env("MOUNT", &point).env("WORK", &work).env("HOME", &work).env("LC_ALL", "C.UTF-8");
    inside.env("DIRECTFS", env!("CARGO_BIN_EXE_directfs"));
    let output = inside.output().expect("timeout(1) starts");
    unmount(&point);
    let report = format!("{}{}", stderr(&output), stdout(&output));
    assert!(output.status.success() && report.ends_with(PASSED), "{}\n{report}", output.status);
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stdout(&check));
}

#[test]
fn glusterfs_heals_a_brick_on_a_mount_that_was_killed() {
    perform("glusterfs");
}

#[test]
fn nfs_ganesha_serves_a_mount() {
    perform("nfs_ganesha");
}

#[test]
fn samba_serves_a_mount_with_streams_and_access_lists() {
    perform("samba");
}

#[test]
fn overlayfs_keeps_its_upper_layer_on_a_mount() {
    perform("overlayfs");
}

#[test]
fn restic_finds_the_files_of_a_mount_unchanged_and_restores_them() {
    perform("restic");
}

#[test]
fn borg_finds_the_files_of_a_mount_unchanged_and_restores_them() {
    perform("borg");
}
