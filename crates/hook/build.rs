//! Lets the build of the preload library (crate `launcher`) find these sources, and build them with
//! the same extensions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=sources={}", std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::metadata=extensions={}", std::env::var_os("CARGO_FEATURE_EXTENSIONS").is_some());
}
