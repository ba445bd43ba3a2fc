//! The packages of Debian: made, checked by lintian, then installed, used and purged in a fresh
//! Debian.

use crate::{built, has, pack, run, skipped, text};
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: [&str; 3] = ["directfs", "libdirectfs0", "libdirectfs-dev"];

fn file_of(directory: &Path, package: &str) -> PathBuf {
    directory.join(format!("{package}_{}-1_amd64.deb", env!("CARGO_PKG_VERSION")))
}

#[test]
fn the_packages_are_checked_installed_used_and_purged() {
    if !has("sh", &["-c", "command -v dh && command -v dpkg-buildpackage"]) {
        return skipped("the packages of Debian", "it needs debhelper");
    }
    let directory = tempfile::tempdir().expect("a scratch directory");
    pack("deb", directory.path());
    for package in PACKAGES {
        let content = run(Command::new("dpkg-deb").arg("--contents").arg(file_of(directory.path(), package)));
        let content = text(&content.expect("dpkg-deb").stdout);
        // What is linked into each of them has licences that demand their text.
        assert!(content.contains(&format!("/usr/share/doc/{package}/THIRD-PARTY-NOTICES")), "{package}: {content}");
        assert!(content.contains(&format!("/usr/share/doc/{package}/copyright")), "{package}: {content}");
    }
    let shown =
        run(Command::new("dpkg-deb").arg("--field").arg(file_of(directory.path(), "directfs"))).expect("dpkg-deb");
    let fields = text(&shown.stdout);
    assert!(fields.contains("\nDepends: libc6 (>= 2.34)") && fields.contains("\nRecommends: fuse3\n"), "{fields}");
    check_with_lintian(directory.path());
    in_a_fresh_debian(directory.path());
}

fn check_with_lintian(directory: &Path) {
    if !has("lintian", &["--version"]) {
        return skipped("the check of the packages of Debian", "it needs lintian");
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error", "--no-cfg"]).args(PACKAGES.map(|package| file_of(directory, package)));
    let output = lintian.output().expect("lintian starts");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
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
files() { find / -xdev -not -type d -not -path '/var/lib/*' -not -path '/var/log/*' -not -path '/var/debs/*' \
    -not -path '/proc/*' -not -path '/etc/ld.so.cache' -not -path '/var/cache/ldconfig/*' | sort; }
files >/var/debs/before
dpkg --install /var/debs/directfs_*.deb /var/debs/libdirectfs0_*.deb
directfs --version
ldconfig -p | grep 'libdirectfs.so.0 '
cd /root
directfs mkfs image --size 16M
directfs run --image image -- sh -c 'cp -r /usr/share/doc/directfs $DIRECTFS_MOUNT && ls -l $DIRECTFS_MOUNT/directfs'
directfs run --image image -- diff -r /usr/share/doc/directfs /mnt/directfs/directfs
directfs fsck -n image
test "$(ls /var/cache/directfs | wc -l)" -gt 0
. /usr/share/bash-completion/completions/directfs
zcat /usr/share/man/man8/mount.directfs.8.gz | grep -q allow_other
test -s /usr/share/doc/directfs/docs/guide.md -o -s /usr/share/doc/directfs/docs/guide.md.gz
rm image
dpkg --purge directfs libdirectfs0
files >/var/debs/after
diff /var/debs/before /var/debs/after
test ! -e /var/cache/directfs
echo removed without a trace
"#;

fn in_a_fresh_debian(packages: &Path) {
    const TEST: &str = "the packages in a fresh Debian";
    let pristine = match fresh_debian() {
        Ok(tree) => tree,
        Err(why) => return skipped(TEST, &why),
    };
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let tree = scratch.path().join("tree");
    run(Command::new("cp").arg("-a").arg(&pristine).arg(&tree)).expect("cp");
    std::fs::create_dir(tree.join("var/debs")).expect("a directory for the packages");
    for package in PACKAGES {
        let file = file_of(packages, package);
        let copy = tree.join("var/debs").join(file.file_name().expect("a name"));
        std::fs::copy(&file, copy).expect("copies the package");
    }
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
