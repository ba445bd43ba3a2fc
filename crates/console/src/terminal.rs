//! Output for users: styles, tables, progress. Colours appear only on a terminal and without
//! NO_COLOR. Progress goes to standard error, so that programs can read standard output.

use crate::units;
use anstream::stream::IsTerminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
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

/// How much work there is; 0 where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Bytes, shown with their rate.
    Bytes(u64),
    /// Equal steps.
    Steps(u64),
}

impl Of {
    fn with_total(self, total: u64) -> Of {
        match self {
            Of::Bytes(_) => Of::Bytes(total),
            Of::Steps(_) => Of::Steps(total),
        }
    }
}

/// Progress of one piece of work: a bar on a terminal, otherwise a line at the start.
pub struct Progress {
    bar: ProgressBar,
    of: Of,
    files: Arc<AtomicU64>,
    /// Shows the bar after a while, also if the work reports no step: ended by the end of the
    /// channel.
    shower: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts work. Where there is no terminal, a line names it.
    pub fn start(what: &str, of: Of) -> Progress {
        if !std::io::stderr().is_terminal() {
            eprintln!("{what} ...");
        }
        Progress::quiet(what, of)
    }

    /// `start` without a line where there is no terminal.
    pub fn quiet(what: &str, of: Of) -> Progress {
        let (Of::Bytes(total) | Of::Steps(total)) = of;
        let bar = ProgressBar::with_draw_target((total > 0).then_some(total), ProgressDrawTarget::hidden());
        let files = Arc::new(AtomicU64::new(0));
        bar.set_style(style(of, &files));
        bar.set_message(what.to_owned());
        let shower = std::io::stderr().is_terminal().then(|| show_later(bar.clone()));
        Progress { bar, of, files, shower }
    }

    /// Whether there is a terminal.
    pub fn is_shown(&self) -> bool {
        self.shower.is_some()
    }

    /// Sets how much work there is, if that becomes known on the way.
    pub fn total(&mut self, total: u64) {
        let of = self.of.with_total(total);
        if total > 0 && of != self.of {
            self.of = of;
            self.bar.set_length(total);
            self.bar.set_style(style(of, &self.files));
        }
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

    /// Sets the number of completed bytes or steps.
    pub fn at(&mut self, position: u64) {
        self.bar.set_position(position);
    }

    /// Sets the number of completed files.
    pub fn files(&mut self, count: u64) {
        self.files.store(count, Ordering::Relaxed);
    }
}

/// A bar where the total is known, with figures behind it.
fn style(of: Of, files: &Arc<AtomicU64>) -> ProgressStyle {
    let template = match of {
        Of::Bytes(0) | Of::Steps(0) => "{spinner} {msg}  {figures}",
        _ => "{msg}  {wide_bar:.dim}  {figures}",
    };
    let files = Arc::clone(files);
    let figures = move |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        let figures = Figures {
            of,
            files: files.load(Ordering::Relaxed),
            done: state.pos(),
            per_second: state.per_sec(),
            left: state.eta(),
            elapsed: state.elapsed(),
        };
        let _ = text.write_str(&figures.text());
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("figures", figures)
}

/// What is shown beside a bar.
struct Figures {
    of: Of,
    files: u64,
    done: u64,
    per_second: f64,
    left: Duration,
    elapsed: Duration,
}

impl Figures {
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if self.files > 0 {
            parts.push(units::counted(self.files, "file"));
        }
        let (Of::Bytes(total) | Of::Steps(total)) = self.of;
        let number = |number| match self.of {
            Of::Bytes(_) => units::size(number),
            Of::Steps(_) => units::count(number),
        };
        if total > 0 {
            parts.push(format!("{} of {}", number(self.done), number(total)));
        } else if self.done > 0 {
            parts.push(number(self.done));
        }
        if matches!(self.of, Of::Bytes(_)) && self.done > 0 {
            parts.push(format!("{}/s", units::size(self.per_second as u64)));
        }
        parts.push(match total > 0 && self.done > 0 {
            true => format!("{} left", units::clock(self.left)),
            false => units::clock(self.elapsed),
        });
        parts.join(", ")
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

/// Shows how far a working copy is. See [`Copying`].
pub fn show_copied(bytes: u64, of_bytes: u64) {
    let mut copying = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
    copying.get_or_insert_with(|| Progress::quiet("copying the image", Of::Bytes(of_bytes))).at(bytes);
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

    #[test]
    fn progress_has_files_bytes_rate_and_the_time_that_is_left_where_the_total_is_known() {
        let second = Duration::from_secs(1);
        let figures = |of, files, done| {
            Figures { of, files, done, per_second: 3.0 * 1048576.0, left: second * 90, elapsed: second * 7 }.text()
        };
        assert_eq!(figures(Of::Bytes(1 << 30), 0, 3 << 20), "3 MiB of 1 GiB, 3 MiB/s, 1 min 30 s left");
        assert_eq!(figures(Of::Bytes(0), 1200, 3 << 20), "1,200 files, 3 MiB, 3 MiB/s, 7 s");
        assert_eq!(figures(Of::Steps(60), 0, 12), "12 of 60, 1 min 30 s left");
        assert_eq!(figures(Of::Steps(0), 0, 0), "7 s", "nothing is known but that it goes on");
        assert_eq!(figures(Of::Bytes(1 << 20), 0, 0), "0 B of 1 MiB, 7 s", "no rate yet, so no rest");
    }
}
