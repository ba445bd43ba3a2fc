//! Gives the shared library its name and version: programs ask for `libdirectfs.so.0`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdirectfs.so.0");
}
