//! What the demonstration says.

use super::session::Front;
use crate::terminal::{Table, bold, print_fact};
use crate::units::{count, counted, duration, size};
use serde::Serialize;
use std::path::PathBuf;

/// Everything that was shown.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The tree.
    pub tree: PathBuf,
    /// Files, directories and links in it.
    pub entries: u64,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Entries left out: special files, and what could not be read.
    pub skipped: u64,
    /// Which way calls went.
    pub front: Front,
    /// The file system beside which it was set.
    pub peer: String,
    /// What was behind the image.
    pub backing: String,
    /// What persistence means there.
    pub persistence: &'static str,
    /// Each step's time.
    pub steps: Vec<Step>,
    /// The crash.
    pub crash: Crash,
    /// The check at the end.
    pub check: Check,
}

/// A step, here and there.
#[derive(Debug, Serialize)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// How long it took here.
    pub directfs_ns: u64,
    /// How long it took there.
    pub peer_ns: u64,
}

/// A crash, and what was left.
#[derive(Debug, Serialize)]
pub struct Crash {
    /// Who was killed.
    pub killed: &'static str,
    /// Entries whose copy had returned by then: all are there, and whole.
    pub completed: u64,
    /// Entries of the tree.
    pub entries: u64,
    /// Names that recovery found, where it says so.
    pub names_recovered: Option<u64>,
    /// From the kill to the first answer.
    pub recovery_ns: u64,
}

/// The check of every invariant.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Names checked.
    pub names: u64,
    /// Errors.
    pub errors: u64,
    /// Warnings.
    pub warnings: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// What is behind the image.
    #[serde(skip)]
    pub backing: String,
    /// What persistence means there.
    #[serde(skip)]
    pub persistence: &'static str,
}

impl Report {
    /// Prints it for people.
    pub fn print(&self) {
        let skipped = if self.skipped > 0 {
            format!(" ({} left out: special or not readable)", count(self.skipped))
        } else {
            String::new()
        };
        anstream::println!("{}  {}", bold(format!("DirectFS, {}", self.front.words())), self.tree.display());
        print_fact("tree", format_args!("{}, {}{skipped}", counted(self.entries, "entry"), size(self.size_bytes)));
        print_fact("image", &self.backing);
        print_fact("persistence", self.persistence);
        anstream::println!();
        let mut table = Table::new(&["", "DirectFS", &self.peer, "ours / theirs"]);
        for Step { name, directfs_ns, peer_ns } in &self.steps {
            let (ours, theirs) = (*directfs_ns as f64, *peer_ns as f64);
            table.row(vec![(*name).to_owned(), duration(ours), duration(theirs), format!("{:.2} x", ours / theirs)]);
        }
        table.print();
        self.crash.print();
        let Check { names, duration_ns, .. } = self.check;
        let (names, took) = (counted(names, "name"), duration(duration_ns as f64));
        anstream::println!(
            "{} {names} and all that belongs to them, no error and no warning, in {took}",
            bold("checked:")
        );
    }
}

impl Crash {
    fn print(&self) {
        let Crash { killed, completed, entries, names_recovered, recovery_ns } = self;
        let found = names_recovered.map_or(String::new(), |names| format!(", {} found", counted(names, "name")));
        anstream::println!(
            "\n{} {killed} (SIGKILL) in the middle of a copy: {} of {} entries had been copied",
            bold("killed:"),
            count(*completed),
            count(*entries)
        );
        anstream::println!(
            "{} in use again after {}{found}; all of them are there, byte for byte",
            bold("recovered:"),
            duration(*recovery_ns as f64)
        );
        anstream::println!(
            "{} removed all, copied the tree again, compared it, left the image clean",
            bold("used again:")
        );
    }
}
