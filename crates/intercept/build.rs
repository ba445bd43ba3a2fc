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
    for watched in ["src", "Cargo.toml", "preload/src", "preload/Cargo.toml", "preload/Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", home.join(watched).display());
    }
    for linked in ["pmem", "engine", "journal", "posix"] {
        for watched in ["src", "Cargo.toml"] {
            println!("cargo:rerun-if-changed={}", home.join("..").join(linked).join(watched).display());
        }
    }
    let built = build(&home.join("preload/Cargo.toml"), &out.join("preload-target"));
    let carried = out.join("libdirectfs_preload.so");
    let library = std::fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    std::fs::write(&carried, &library).unwrap_or_else(|error| panic!("{}: {error}", carried.display()));
    // The launcher need not compute it at each start.
    println!("cargo:rustc-env=DIRECTFS_LIBRARY_FINGERPRINT={:016x}", table::fingerprint(&library));
}

fn build(manifest: &Path, target: &Path) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.args(["rustc", "--release", "--locked", "--quiet", "--manifest-path"]).arg(manifest);
    cargo.arg("--target-dir").arg(target);
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
    target.join("release/libdirectfs_preload.so")
}
