//! Output for users: styles, tables, progress. Colours appear only on a terminal and without
//! NO_COLOR. Progress goes to standard error, so that programs can read standard output.

use crate::units;
use anstream::stream::IsTerminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// Restores the default action of SIGPIPE, so that this program ends quietly when its reader exits
/// (`| head`). Rust programs ignore that signal by default, and would report an error for each
/// further line.
pub fn end_with_reader() {
    // SAFETY: sets a signal's default action; no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Prints an error and its causes, one per line.
pub fn print_error(error: &anyhow::Error) {
    eprintln!("{RED}{BOLD}error:{RESET} {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Some errors contain their source in their own text.
        if !said.contains(&cause) {
            eprintln!("  cause: {cause}");
        }
        said = cause;
    }
}

/// Minimum duration of work before a bar appears: for shorter work it would only flicker.
const QUIET: Duration = Duration::from_millis(500);

/// How often a bar is drawn again, so that its clock shows that the work goes on.
const TICK: Duration = Duration::from_millis(200);

/// Progress of one piece of work: a bar on a terminal, otherwise a line at the start.
pub struct Progress {
    bar: ProgressBar,
    /// Shows the bar after a while, also if the work reports no step: ended by the end of the
    /// channel.
    shower: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts work of `total` steps; 0 if their number is unknown.
    pub fn start(what: &str, total: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            eprintln!("{what} ...");
        }
        Progress::quiet(what, total)
    }

    /// `start` without a line where there is no terminal.
    pub fn quiet(what: &str, total: u64) -> Progress {
        let bar = ProgressBar::with_draw_target((total > 0).then_some(total), ProgressDrawTarget::hidden());
        let template = match total {
            0 => "{spinner} {msg}  {human_pos}  {elapsed}",
            _ => "{msg:40} {wide_bar:.dim} {human_pos}/{human_len}  {eta:>4}",
        };
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        let shower = std::io::stderr().is_terminal().then(|| show_later(bar.clone()));
        Progress { bar, shower }
    }

    /// Starts another part of the work.
    pub fn describe(&mut self, what: &str) {
        if !std::io::stderr().is_terminal() {
            eprintln!("{what} ...");
        }
        self.bar.set_message(what.to_owned());
    }

    /// Names the current step, on a terminal only.
    pub fn label(&mut self, step: &str) {
        self.bar.set_message(step.to_owned());
    }

    /// Sets the number of completed steps.
    pub fn at(&mut self, position: u64) {
        self.bar.set_position(position);
    }
}

/// Shows a bar if it is still in use after a while.
fn show_later(bar: ProgressBar) -> (Sender<()>, JoinHandle<()>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        if receiver.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    });
    (sender, thread)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.shower.take() {
            drop(sender);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// The progress of a working copy that is being made.
static COPYING: Mutex<Option<Progress>> = Mutex::new(None);

/// Shows how far a working copy is, in MiB. See [`Copying`].
pub fn show_copied(bytes: u64, of_bytes: u64) {
    let mut copying = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
    copying.get_or_insert_with(|| Progress::quiet("copying the image, MiB", of_bytes >> 20)).at(bytes >> 20);
}

/// Ends what [`show_copied`] shows.
pub struct Copying;

impl Drop for Copying {
    fn drop(&mut self) {
        *COPYING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Columns with headings: the first is left-aligned, the others are right-aligned.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        Table { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines of the table.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().enumerate().map(|(index, row)| if index == 0 { dim(line(row)) } else { line(row) }).collect()
    }

    /// Prints the table.
    pub fn print(&self) {
        self.lines().iter().for_each(|line| println!("{line}"));
    }
}

/// Prints `name` and `value` as a line of a list.
pub fn print_fact(name: &str, value: impl std::fmt::Display) {
    println!("{}{value}", dim(format!("{name:<18}")));
}

/// `n of m used`, with the share.
pub fn share(used: u64, total: u64) -> String {
    let percent = if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 };
    format!("{} of {} ({percent:.1} %)", units::count(used), units::count(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_is_in_them() {
        let mut table = Table::new(&["call", "time"]);
        table.row(vec!["stat".into(), "40 ns".into()]);
        table.row(vec!["rename".into(), "1.2 µs".into()]);
        let lines = table.lines();
        assert_eq!(lines[1], "stat     40 ns");
        assert_eq!(lines[2], "rename  1.2 µs");
    }
}
