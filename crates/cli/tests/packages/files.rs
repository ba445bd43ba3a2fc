//! The files of a package: complete, and as the README describes them.

use crate::{built, install, run, skipped, sources, text};
use std::path::Path;
use std::process::Command;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

#[test]
fn everything_is_installed_and_works_from_there() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written");
    let root = directory.path().join("root");
    install(&root);
    for path in [
        "usr/bin/directfs",
        "usr/include/directfs.h",
        "usr/lib/x86_64-linux-gnu/libdirectfs.a",
        "usr/lib/systemd/system/directfs@.service",
        "usr/lib/systemd/system/directfs-replicate@.service",
        "usr/lib/systemd/system/directfs-stats@.service",
        "usr/lib/systemd/system/directfs-stats@.timer",
        "usr/share/doc/directfs/examples/alerts.yml",
        "usr/share/doc/directfs/examples/board.json",
        "usr/share/man/man3/directfs.3.gz",
        "usr/share/man/man8/directfs.8.gz",
        "usr/share/man/man8/directfs-mount.8.gz",
        "usr/share/bash-completion/completions/directfs",
        "usr/share/zsh/vendor-completions/_directfs",
        "usr/share/fish/vendor_completions.d/directfs.fish",
        "usr/share/doc/directfs/LICENSE-MIT",
        "usr/share/man/man8/mount.directfs.8.gz",
        "usr/share/doc/directfs/examples/example.conf",
        "usr/share/doc/directfs/docs/guide.md",
        "usr/share/doc/directfs/THIRD-PARTY-NOTICES",
        "usr/lib/modprobe.d/directfs.conf",
        "usr/lib/systemd/system-generators/directfs-generator",
    ] {
        assert!(root.join(path).metadata().is_ok_and(|found| found.is_file() && found.len() > 100), "{path}");
    }
    for (link, target) in [
        ("usr/sbin/mount.directfs".to_owned(), "../bin/directfs"),
        ("usr/sbin/mount.fuse.directfs".to_owned(), "../bin/directfs"),
        (format!("{LIBRARIES}/libdirectfs.so"), "libdirectfs.so.0"),
        (format!("{LIBRARIES}/libdirectfs.so.0"), concat!("libdirectfs.so.", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(root.join(&link).read_link().expect("a link"), Path::new(target), "{link}");
    }
    // mount(8) starts the program by the link.
    let help = run(Command::new(root.join("usr/sbin/mount.directfs")).arg("--help")).expect("the mount helper");
    assert!(text(&help.stdout).contains("as mount(8) asks for it"), "{}", text(&help.stdout));
    compile_against(&root, directory.path());
}

/// A C program finds header and library by pkg-config.
fn compile_against(root: &Path, scratch: &Path) {
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "directfs"]).env("PKG_CONFIG_SYSROOT_DIR", root);
    let answer = match run(ask.env("PKG_CONFIG_PATH", root.join(LIBRARIES).join("pkgconfig"))) {
        Ok(answer) => text(&answer.stdout),
        Err(why) => return skipped("the package's C library", &why),
    };
    let program = scratch.join("spool");
    let source = root.join("usr/share/doc/directfs/examples/spool.c");
    run(Command::new("cc").arg(source).args(answer.split_whitespace()).arg("-o").arg(&program)).expect("cc");
    let spool = run(Command::new(&program).arg(scratch.join("mail.img")).env("LD_LIBRARY_PATH", root.join(LIBRARIES)));
    assert_eq!(text(&spool.expect("the example runs").stdout), "100 messages, 2300 bytes\n");
}

/// The newest version of glibc whose symbols a file needs.
fn glibc_of(file: &Path) -> Result<(u32, u32), String> {
    let symbols = run(Command::new("objdump").arg("-T").arg(file))?;
    let symbols = text(&symbols.stdout);
    let versions = symbols.match_indices("GLIBC_").filter_map(|(at, _)| {
        let (major, minor) = symbols[at + "GLIBC_".len()..].split([')', ' ', '\n']).next()?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max().ok_or_else(|| format!("{} needs no glibc", file.display()))
}

#[test]
fn the_required_glibc_is_the_documented_one() {
    let needed = match glibc_of(&built().join("directfs")) {
        Ok(needed) => needed,
        Err(why) => return skipped("the required glibc", &why),
    };
    let documented = (2, 34);
    assert!(needed <= documented, "the program needs glibc {needed:?}");
    for document in ["README.md", "docs/guide.md"] {
        let text = std::fs::read_to_string(sources().join(document)).expect(document);
        assert!(text.contains("glibc 2.34"), "{document} does not name glibc 2.34");
    }
}

/// `.ci/release` builds the library with it.
#[test]
fn the_oldest_rust_is_named_where_readers_look() {
    let oldest = concat!("Rust ", env!("CARGO_PKG_RUST_VERSION"));
    for document in ["docs/guide.md", "crates/directfs/src/lib.rs"] {
        let text = std::fs::read_to_string(sources().join(document)).expect(document);
        assert!(text.contains(oldest), "{document} does not name {oldest}");
    }
}
