//! Gives the linker the order of functions and tables.

fn main() {
    // By a relative name, since a checkout may be moved together with what was built in it. The
    // linker runs in the directory of this workspace.
    println!("cargo:rerun-if-changed=order.ld");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-T,order.ld");
}
