//! The packages of Debian: made, checked by lintian, then installed in fresh Debians, where the
//! commands of README, guide and recipes work with them, and purged without a trace.

use crate::support::documents::{Place, faults};
use crate::{built, has, pack, release, run, skipped, sources, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Releases in which packages are tried; of what a test builds, the first one only.
const DEBIANS: [&str; 2] = ["bookworm", "trixie"];
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
    // A package without a named maintainer carries an address that cannot exist.
    let maintainer = std::env::var("DEBEMAIL").ok().filter(|address| !address.is_empty());
    let maintainer = maintainer.unwrap_or_else(|| "nobody@directfs.invalid".to_owned());
    assert!(fields.contains(&format!(" <{maintainer}>\n")), "{fields}");
    check_with_lintian(directory.path());
    let debians = if release().is_some() { &DEBIANS[..] } else { &DEBIANS[..1] };
    debians.iter().for_each(|name| walk(name, directory.path()));
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

/// A Debian: for a release with what the commands of documents need, else with nothing more. Made
/// once, and kept beside what cargo builds.
fn fresh_debian(name: &str) -> Result<PathBuf, String> {
    let trees = match std::env::var_os("DIRECTFS_DEBIAN_TREES") {
        Some(trees) => PathBuf::from(trees),
        None => built().parent().expect("the target directory").join("debian-trees"),
    };
    let needed = "linux-libc-dev,sqlite3,fuse3,bubblewrap,systemd";
    let (tree, include) = match release() {
        Some(_) => (trees.join(format!("{name}-with-systemd")), Some(format!("--include={needed}"))),
        None => (trees.join(name), None),
    };
    if !tree.join("usr/bin/dpkg").exists() {
        let _ = std::fs::remove_dir_all(&tree);
        run(Command::new("debootstrap").arg("--variant=minbase").args(include).arg(name).arg(&tree))?;
    }
    Ok(tree)
}

/// What dpkg and ldconfig keep for themselves may remain.
const LIST: &str = r#"
find / -xdev -not -type d -not -path '/var/lib/*' -not -path '/var/log/*' -not -path '/var/debs/*' \
    -not -path '/dev/*' -not -path '/proc/*' -not -path '/etc/ld.so.cache' -not -path '/var/cache/ldconfig/*' | sort
"#;

const INSTALL_AND_USE: &str = r#"
set -eux
dpkg --install /var/debs/directfs_*.deb /var/debs/libdirectfs0_*.deb
directfs --version
ldconfig -p | grep 'libdirectfs.so.0 '
directfs mkfs image --size 16M
directfs run --image image -- sh -c 'cp -r /usr/share/doc/directfs $DIRECTFS_MOUNT && ls -l $DIRECTFS_MOUNT/directfs'
directfs run --image image -- diff -r /usr/share/doc/directfs /mnt/directfs/directfs
directfs fsck -n image
test "$(ls /var/cache/directfs | wc -l)" -gt 0
. /usr/share/bash-completion/completions/directfs
zcat /usr/share/man/man8/mount.directfs.8.gz | grep -q allow_other
test -s /usr/share/doc/directfs/docs/guide.md -o -s /usr/share/doc/directfs/docs/guide.md.gz
rm image
"#;

const REMOVE: &str = "dpkg --purge directfs libdirectfs0 && test ! -e /var/cache/directfs";

/// Runs a script in a root, and returns what it printed.
fn in_root(root: &Place, script: &str) -> String {
    let output = run(root.command(Path::new("/root")).args(["bash", "-c", script]));
    text(&output.unwrap_or_else(|why| panic!("{why}")).stdout)
}

/// Starts systemd in the root `$0`, in namespaces of its own. It can change no setting of the
/// kernel.
const BOOT: &str = r#"
set -e
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup 2>/dev/null || { mount -t tmpfs tmpfs sys/fs/cgroup; mount -t cgroup2 cgroup2 sys/fs/cgroup; }
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
for device in null zero full random urandom tty fuse; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/shm dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s /proc/self/fd dev/fd
pivot_root . .
umount -l .
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd --system --unit=story.service
"#;

/// Runs the story, and ends systemd with it.
const UNIT: &str = "[Unit]
After=basic.target
Wants=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/bash -eux /var/debs/story
StandardOutput=file:/var/debs/printed
StandardError=inherit
TimeoutStartSec=400
";

/// The services of the packages: a mount, which is there again after its server was killed, its
/// figures, and its replica.
const STORY: &str = r#"
mkdir -p /etc/directfs /srv/mail /var/lib/prometheus/node-exporter
printf 'IMAGE=/var/lib/mail.img\nDIRECTORY=/srv/mail\nREPLICA=file:///var/lib/store\n' >/etc/directfs/mail.conf
directfs mkfs /var/lib/mail.img --size 32M
systemctl daemon-reload
systemctl show --property=RequiresMountsFor directfs@mail | grep /var/lib/mail.img
systemctl start directfs@mail
mountpoint /srv/mail
echo hello >/srv/mail/file
sync /srv/mail/file
systemctl start directfs-stats@mail
grep 'directfs_image_info{image="/var/lib/mail.img"' /var/lib/prometheus/node-exporter/directfs-mail.prom
systemctl start directfs-replicate@mail
until directfs store list file:///var/lib/store | grep -w 1; do sleep 0.2; done
systemctl kill --signal=KILL directfs@mail
until systemctl is-active directfs@mail && grep hello /srv/mail/file; do sleep 0.2; done
systemctl stop directfs-replicate@mail directfs@mail
! mountpoint /srv/mail || exit 1
directfs info /var/lib/mail.img | grep clean
directfs pull file:///var/lib/store /var/lib/pulled.img
directfs run --image /var/lib/pulled.img -- cat /mnt/directfs/file
rm -r /etc/directfs /srv/mail /var/lib/prometheus /var/lib/*.img /var/lib/store
echo the services work
"#;

/// Starts the services of the packages under systemd.
fn boot(tree: &Path, test: &str) {
    let unit = tree.join("etc/systemd/system/story.service");
    std::fs::write(&unit, UNIT).expect("a unit");
    std::fs::write(tree.join("var/debs/story"), STORY).expect("a script");
    let mut inside = Command::new("timeout");
    inside.args(["--kill-after=10", "500", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc"]);
    inside.args(["--net", "--cgroup", "sh", "-c", BOOT]).arg(tree).stdin(Stdio::null());
    let booted = inside.output().expect("timeout(1) starts");
    std::fs::remove_file(&unit).expect("removes the unit");
    match std::fs::read_to_string(tree.join("var/debs/printed")) {
        Ok(printed) => assert!(printed.ends_with("the services work\n"), "{printed}"),
        Err(_) => skipped(test, &format!("systemd does not start here: {}", text(&booted.stderr))),
    }
}

/// Installs packages in a release of Debian, uses and removes them; those of a release of this
/// project also perform the commands of the documents there, and start their services.
fn walk(name: &str, packages: &Path) {
    let test = format!("the packages in a fresh Debian {name}");
    let pristine = match fresh_debian(name) {
        Ok(tree) => tree,
        Err(why) => return skipped(&test, &why),
    };
    if !has("unshare", &["--mount", "--pid", "--fork", "true"]) {
        return skipped(&test, "unshare is not permitted here");
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let tree = scratch.path().join("tree");
    run(Command::new("cp").arg("-a").arg(&pristine).arg(&tree)).expect("cp");
    std::fs::create_dir(tree.join("var/debs")).expect("a directory for the packages");
    for package in PACKAGES {
        let file = file_of(packages, package);
        let copy = tree.join("var/debs").join(file.file_name().expect("a name"));
        std::fs::copy(&file, copy).expect("copies the package");
    }
    let root = Place::Root(&tree);
    let before = in_root(&root, LIST);
    in_root(&root, INSTALL_AND_USE);
    if release().is_some() {
        for document in ["README.md", "docs/guide.md", "docs/recipes.md"] {
            let text = std::fs::read_to_string(sources().join(document)).expect(document);
            let faults = faults(document, &text, &root);
            assert!(faults.is_empty(), "Debian {name}: {}", faults.join("\n\n"));
        }
        boot(&tree, &test);
    }
    in_root(&root, REMOVE);
    // What systemd made for itself when it ran.
    let systemd = |line: &&str| !["/etc/machine-id", "/etc/.updated", "/var/.updated"].contains(line);
    let list = |text: &str| text.lines().filter(systemd).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(list(&in_root(&root, LIST)), list(&before), "the packages leave a trace");
}
