//! Gives the linker the order of functions and tables.

use std::path::Path;

fn main() {
    let order = Path::new(env!("CARGO_MANIFEST_DIR")).join("order.ld");
    println!("cargo:rerun-if-changed={}", order.display());
    println!("cargo:rustc-link-arg-cdylib=-Wl,-T,{}", order.display());
}
