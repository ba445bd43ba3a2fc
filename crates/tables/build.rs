//! Lets the build of the preload library (crate `launcher`) find these sources.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=sources={}", std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
}
