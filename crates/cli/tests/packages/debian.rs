//! The .deb: built by cargo-deb, then installed, used and removed in a fresh Debian.

use crate::{built, install, run, skipped, sources, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn has(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds the package from what this test's profile builds.
fn build_package(directory: &Path) -> PathBuf {
    let staged = built().join("package");
    let _ = std::fs::remove_dir_all(&staged);
    install(&staged);
    let package = directory.join("directfs.deb");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["deb", "--no-build", "--no-strip", "--fast", "--profile", "dev", "--package", "directfs-cli"]);
    cargo.arg("--output").arg(&package).current_dir(sources());
    run(cargo.env("CARGO_TARGET_DIR", built().parent().expect("the target directory"))).expect("cargo deb");
    package
}

#[test]
fn the_package_has_everything_and_no_more() {
    if !has("cargo", &["deb", "--version"]) || !has("dpkg-deb", &["--version"]) {
        return skipped("the .deb", "it needs dpkg-deb and `cargo install cargo-deb`");
    }
    let directory = tempfile::tempdir().expect("a scratch directory");
    let package = build_package(directory.path());
    let field = |name: &str| {
        let shown = run(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name)).expect("dpkg-deb");
        text(&shown.stdout).trim().to_owned()
    };
    assert_eq!(["Package", "Architecture", "Recommends"].map(field), ["directfs", "amd64", "fuse3"]);
    let unpacked = directory.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&unpacked)).expect("dpkg-deb");
    let listed = |root: &Path| {
        let mut find = Command::new("find");
        let found = run(find.args(["-not", "-type", "d", "-printf", "%P %y %l\n"]).current_dir(root)).expect("find");
        let mut lines: Vec<String> = text(&found.stdout).lines().map(str::to_owned).collect();
        // Debian's own place of the licences.
        lines.retain(|line| !line.starts_with("usr/share/doc/directfs/copyright "));
        lines.sort();
        lines
    };
    assert_eq!(listed(&unpacked), listed(&built().join("package")));
    in_a_fresh_debian(&package, directory.path());
}

/// A Debian without anything else: made once, and kept beside what cargo builds.
fn fresh_debian() -> Result<PathBuf, String> {
    let tree = match std::env::var_os("DIRECTFS_DEBIAN_TREE") {
        Some(tree) => PathBuf::from(tree),
        None => built().parent().expect("the target directory").join("debian-tree"),
    };
    if !tree.join("usr/bin/dpkg").exists() {
        let _ = std::fs::remove_dir_all(&tree);
        run(Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&tree))?;
    }
    Ok(tree)
}

/// What is done in the fresh Debian. Files that dpkg and ldconfig keep for themselves may remain.
const STORY: &str = r#"
set -eux
files() { find / -xdev -not -type d -not -path '/var/*' -not -path '/proc/*' -not -path '/etc/ld.so.cache' | sort; }
files >/var/before
dpkg --install /var/directfs.deb
directfs --version
ldconfig -p | grep 'libdirectfs.so.0 '
cd /root
directfs mkfs image --size 16M
directfs run --image image -- sh -c 'cp -r /usr/share/doc/directfs $DIRECTFS_MOUNT && ls -l $DIRECTFS_MOUNT/directfs'
directfs run --image image -- diff -r /usr/share/doc/directfs /mnt/directfs/directfs
directfs fsck -n image
. /usr/share/bash-completion/completions/directfs
zcat /usr/share/man/man3/directfs.3.gz | grep -q directfs_image_open
rm image
dpkg --purge directfs
files >/var/after
diff /var/before /var/after
echo removed without a trace
"#;

fn in_a_fresh_debian(package: &Path, scratch: &Path) {
    const TEST: &str = "the .deb in a fresh Debian";
    let pristine = match fresh_debian() {
        Ok(tree) => tree,
        Err(why) => return skipped(TEST, &why),
    };
    let tree = scratch.join("tree");
    run(Command::new("cp").arg("-a").arg(&pristine).arg(&tree)).expect("cp");
    std::fs::copy(package, tree.join("var/directfs.deb")).expect("copies the package");
    // Mounts that end with the processes.
    let enter = "set -e; mount -t proc proc \"$0/proc\"; mkdir -p \"$0/dev/shm\"; mount -t tmpfs tmpfs \"$0/dev/shm\"; \
                 exec chroot \"$0\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -c \"$1\"";
    let mut inside = Command::new("timeout");
    inside.args(["1200", "unshare", "--mount", "--pid", "--fork", "sh", "-c"]);
    if !has("unshare", &["--mount", "--pid", "--fork", "true"]) {
        return skipped(TEST, "unshare is not permitted here");
    }
    let output = run(inside.arg(enter).arg(&tree).arg(STORY)).unwrap_or_else(|why| panic!("{why}"));
    assert!(text(&output.stdout).ends_with("removed without a trace\n"), "{}", text(&output.stderr));
}
