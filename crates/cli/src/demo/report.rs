//! The results of the demonstration.

use super::session::AccessMethod;
use crate::terminal::{Table, bold, print_fact};
use crate::units::{count, counted, duration, size};
use serde::Serialize;
use std::path::PathBuf;

/// All results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The tree.
    pub tree: PathBuf,
    /// Files, directories and links in it.
    pub entries: u64,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Entries left out: special and unreadable files.
    pub skipped: u64,
    /// How calls reach the image.
    pub front: AccessMethod,
    /// The file system that it was compared with.
    pub peer: String,
    /// The backing of the image.
    pub backing: String,
    /// The persistence guarantee of the backing.
    pub persistence: &'static str,
    /// The times of the steps.
    pub steps: Vec<Step>,
    /// The crash.
    pub crash: Crash,
    /// The check at the end.
    pub check: Check,
}

/// A step on both file systems.
#[derive(Debug, Serialize)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Time on DirectFS.
    pub directfs_ns: u64,
    /// Time on the peer.
    pub peer_ns: u64,
}

/// A crash and its result.
#[derive(Debug, Serialize)]
pub struct Crash {
    /// What was killed.
    pub killed: &'static str,
    /// Entries whose copy had returned before the kill: all are intact.
    pub completed: u64,
    /// Entries of the tree.
    pub entries: u64,
    /// Names that recovery found, if it reports them.
    pub names_recovered: Option<u64>,
    /// Time from the kill to the first answer.
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
    /// Duration.
    pub duration_ns: u64,
    /// The backing of the image.
    #[serde(skip)]
    pub backing: String,
    /// The persistence guarantee of the backing.
    #[serde(skip)]
    pub persistence: &'static str,
}

impl Report {
    /// Prints the report as text.
    pub fn print(&self) {
        let skipped = if self.skipped > 0 {
            format!(" ({} left out: special or unreadable)", count(self.skipped))
        } else {
            String::new()
        };
        anstream::println!("{}  {}", bold(format!("DirectFS, {}", self.front.description())), self.tree.display());
        print_fact("tree", format_args!("{}, {}{skipped}", counted(self.entries, "entry"), size(self.size_bytes)));
        print_fact("image", &self.backing);
        print_fact("persistence", self.persistence);
        anstream::println!();
        let mut table = Table::new(&["", "DirectFS", &self.peer, "ratio"]);
        for Step { name, directfs_ns, peer_ns } in &self.steps {
            let (directfs, peer) = (*directfs_ns as f64, *peer_ns as f64);
            table.row(vec![
                (*name).to_owned(),
                duration(directfs),
                duration(peer),
                format!("{:.2} x", directfs / peer),
            ]);
        }
        table.print();
        self.crash.print();
        let Check { names, duration_ns, .. } = self.check;
        let (names, took) = (counted(names, "name"), duration(duration_ns as f64));
        anstream::println!("{} {names} with their files, no errors, no warnings, in {took}", bold("checked:"));
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
            "{} in use again after {}{found}; all copied entries are intact",
            bold("recovered:"),
            duration(*recovery_ns as f64)
        );
        anstream::println!(
            "{} removed everything, copied the tree again, compared it, closed the image cleanly",
            bold("used again:")
        );
    }
}
