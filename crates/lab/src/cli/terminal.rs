//! Output for users. Colours appear only on a terminal and without NO_COLOR.

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Emphasised text. `anstream` removes the style where it is not supported.
pub fn bold(text: impl std::fmt::Display) -> String {
    format!("{BOLD}{text}{RESET}")
}

/// De-emphasised text.
pub fn dim(text: impl std::fmt::Display) -> String {
    format!("{DIM}{text}{RESET}")
}

/// Prints `name` and `value` as a line of a list.
pub fn print_fact(name: &str, value: impl std::fmt::Display) {
    anstream::println!("{}{value}", dim(format!("{name:<18}")));
}

/// Restores the default action of SIGPIPE, so that this program ends quietly when its reader exits
/// (`| head`).
pub fn end_with_reader() {
    // SAFETY: sets a signal's default action; no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Prints an error and its causes, one per line.
pub fn print_error(error: &anyhow::Error) {
    anstream::eprintln!("{RED}{BOLD}error:{RESET} {error}");
    let mut printed = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Some errors contain their source in their own text.
        if !printed.contains(&cause) {
            anstream::eprintln!("  cause: {cause}");
        }
        printed = cause;
    }
}
