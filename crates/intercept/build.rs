//! Builds the preload library, so that one binary contains everything.
//!
//! The library has no std and no libc, hence another panic strategy and other linker arguments than
//! the rest. So it is its own package that contains this crate (without the launcher) and a few
//! symbols. Cargo builds it here into its own directory, with the same toolchain. The outer build's
//! flags, wrappers and target directory are not passed on, so that every build produces the same
//! library.

#[allow(dead_code, reason = "only the checksum is used, which must be that of the library")]
#[path = "src/table.rs"]
mod table;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_LAUNCHER").is_none() {
        return;
    }
    let home = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for watched in [
        "src",
        "Cargo.toml",
        "preload/src",
        "preload/Cargo.toml",
        "preload/Cargo.lock",
        "preload/build.rs",
        "preload/order.ld",
    ] {
        println!("cargo:rerun-if-changed={}", home.join(watched).display());
    }
    for linked in ["pmem", "engine", "journal", "posix"] {
        for watched in ["src", "Cargo.toml"] {
            println!("cargo:rerun-if-changed={}", home.join("..").join(linked).join(watched).display());
        }
    }
    let manifest = home.join("preload/Cargo.toml");
    let (library_target, loader_target) = (out.join("preload-target"), out.join("loader-target"));
    let (library, loader) = std::thread::scope(|scope| {
        let loader = scope.spawn(|| build(&manifest, &loader_target, LOADER_ARGUMENTS));
        (build(&manifest, &library_target, &[]), loader.join().expect("the loader is built"))
    });
    let mapped = mapped_bytes(&library);
    assert!(mapped < HUGE_PAGE_BYTES, "processes share no patched code if the library maps {mapped} bytes");
    for (content, name) in [(&library, "libdirectfs_preload.so"), (&loader, "directfs-loader")] {
        let carried = out.join(name);
        std::fs::write(&carried, content).unwrap_or_else(|error| panic!("{}: {error}", carried.display()));
    }
    // The launcher need not compute it at each start.
    let fingerprint = table::fingerprint(&[library, loader].concat());
    println!("cargo:rustc-env=DIRECTFS_LIBRARY_FINGERPRINT={fingerprint:016x}");
}

/// Arguments for the library as a program that loads others.
const LOADER_ARGUMENTS: &[&str] = &["-C", "link-arg=-Wl,-e,directfs_loader"];

/// The kernel places a mapping of this size at random distances from others, and shared code fits
/// one distance only: see src/hook/loading/shared_text.rs.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// How much memory the loader maps for a library in one piece: up to the end of its last segment.
fn mapped_bytes(library: &[u8]) -> u64 {
    const LOAD: u64 = 1;
    let field = |at: usize, bytes: usize| {
        library[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    let (table, entry_bytes, entries) = (field(0x20, 8), field(0x36, 2), field(0x38, 2));
    let segments = (0..entries).map(|index| (table + index * entry_bytes) as usize);
    let loaded = segments.filter(|at| field(*at, 4) == LOAD);
    loaded.map(|at| field(at + 0x10, 8) + field(at + 0x28, 8)).max().expect("the library has segments")
}

fn build(manifest: &Path, target: &Path, loader: &[&str]) -> Vec<u8> {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.args(["rustc", "--release", "--locked", "--quiet", "--manifest-path"]).arg(manifest);
    cargo.arg("--target-dir").arg(target);
    if !loader.is_empty() {
        cargo.args(["--features", "loader"]);
    }
    cargo.args(["--", "-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"]);
    // Its constructor precedes all others, so that their calls are seen.
    cargo.args([
        "-C",
        "link-arg=-Wl,-z,initfirst",
        "-C",
        "link-arg=-Wl,-z,now",
        "-C",
        "link-arg=-Wl,--eh-frame-hdr",
        "-C",
        "link-arg=-Wl,-z,defs",
        // Relocated words begin a page, so that they lie on as few as possible.
        "-C",
        "link-arg=-Wl,-z,separate-loadable-segments",
    ]);
    // Unwinding (thread cancellation) passes through the library's frames.
    cargo.args(["-C", "force-unwind-tables=yes"]);
    cargo.args(loader);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let outer =
            name.starts_with("CARGO_FEATURE_") || name.starts_with("CARGO_CFG_") || name.starts_with("CARGO_PROFILE_");
        if outer || name.starts_with("RUSTC_W") || name.contains("RUSTFLAGS") || name.starts_with("CARGO_BUILD_") {
            cargo.env_remove(name);
        }
    }
    cargo.env_remove("CARGO_TARGET_DIR");
    let status = cargo.status().expect("cargo starts");
    assert!(status.success(), "the build of the preload library failed: {status}");
    let built = target.join("release/libdirectfs_preload.so");
    std::fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()))
}
