//! `lab`: runs the papers' experiments, and creates and mounts images of their systems.

fn main() -> std::process::ExitCode {
    lab::main()
}
