//! The program in one file that needs no libraries: used here, and in trees of other systems.

use crate::{built, run, skipped, sources, text, without_package};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-musl";
/// Root directories of other systems to try it in, separated by colons (made by debootstrap).
const TREES: &str = "DIRECTFS_TREES";

/// What is done with it.
const STORY: &str = r#"
set -eu
directfs --version
cd "$(mktemp -d)"
directfs mkfs image --size 16M >/dev/null
directfs run --image image -- sh -c 'mkdir $DIRECTFS_MOUNT/doc
echo text >$DIRECTFS_MOUNT/doc/file; cat $DIRECTFS_MOUNT/doc/file; ls $DIRECTFS_MOUNT'
directfs run --image image -- perl -e 'print -s "/mnt/directfs/doc/file", "\n"'
directfs fsck -n image | tail -n 1
"#;
const TOLD: &str = "text\ndoc\n5\n0 errors, 0 warnings, 0 notes\n";

/// Builds it as this test's profile says, but does not optimise it: nothing of it can be shared
/// with other builds, and it is used for a second.
fn build() -> PathBuf {
    let target = built().parent().expect("the target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--quiet", "--package", "directfs-cli", "--target", TARGET, "--target-dir"]);
    cargo.arg(target).current_dir(sources()).env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    run(without_package(&mut cargo)).expect("cargo builds the program");
    target.join(TARGET).join("debug/directfs")
}

fn is_installed() -> bool {
    let library = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    library.is_ok_and(|library| Path::new(text(&library.stdout).trim()).exists())
}

fn check(output: &str) {
    let (version, rest) = output.split_once('\n').expect("lines");
    assert_eq!((version.starts_with("directfs "), rest), (true, TOLD));
}

#[test]
fn one_file_works_on_every_system() {
    if !is_installed() {
        return skipped("the static program", &format!("it needs `rustup target add {TARGET}`"));
    }
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return skipped("the static program", "no program for musl can be compiled here without musl-gcc");
    }
    let program = build();
    let description = run(Command::new("readelf").arg("--dynamic").arg(&program)).expect("readelf");
    assert!(!text(&description.stdout).contains("NEEDED"), "it needs libraries");
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.parent().expect("a directory").display());
    check(&text(&run(Command::new("sh").args(["-c", STORY]).env("PATH", path)).expect("here").stdout));
    let Some(trees) = std::env::var_os(TREES) else {
        return skipped("the static program on other systems", &format!("{TREES} names none"));
    };
    for tree in std::env::split_paths(&trees) {
        std::fs::copy(&program, tree.join("usr/bin/directfs")).expect("copies the program");
        let enter = "set -e; mount -t proc proc \"$0/proc\"; mkdir -p \"$0/dev/shm\"; mount --rbind /dev \"$0/dev\"; \
                     exec chroot \"$0\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c \"$1\"";
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--pid", "--fork", "sh", "-c", enter]).arg(&tree).arg(STORY);
        check(&text(&run(&mut inside).unwrap_or_else(|why| panic!("{}: {why}", tree.display())).stdout));
    }
}
