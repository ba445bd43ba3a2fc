//! The results of the demonstration. The help of `demo` documents the keys.

use crate::terminal::{Table, bold, dim, print_fact};
use crate::units::{count, counted, duration, size};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// All results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The tree.
    pub tree: PathBuf,
    /// Files, directories and links that were copied.
    pub entries: u64,
    /// Bytes of the files.
    pub size_bytes: u64,
    /// Only the first part of the tree was copied.
    pub is_subset: bool,
    /// Entries left out: special and unreadable files.
    pub left_out: u64,
    /// Length of an image.
    pub image_bytes: u64,
    /// The backing of the images.
    pub backing: String,
    /// The persistence guarantee of the backing.
    pub persistence: &'static str,
    /// The file system beside.
    pub peer: String,
    /// Rounds of `run` and its peer; the mount performs each step once.
    pub rounds: u32,
    /// The reason why no mount was measured.
    pub mount_absent: Option<String>,
    /// The times of the steps.
    pub steps: Vec<StepTimes>,
    /// The crash.
    pub crash: Crash,
    /// The check at the end.
    pub check: Check,
    /// The whole demonstration.
    pub duration_ns: u64,
}

/// A step with its median times.
#[derive(Debug, Serialize)]
pub struct StepTimes {
    /// Its name.
    pub name: &'static str,
    /// Under `run`.
    pub run_ns: u64,
    /// On the file system beside.
    pub peer_ns: u64,
    /// On a mount.
    pub mount_ns: Option<u64>,
}

/// A crash and what followed.
#[derive(Debug, Serialize)]
pub struct Crash {
    /// Entries of the tree.
    pub entries: u64,
    /// Entries whose copy had returned before the kill: all are intact.
    pub completed: u64,
    /// From the start of the copy to the death of all its processes.
    pub kill_ns: u64,
    /// From the start of the next `run` to its program's first answer.
    pub recovery_ns: u64,
    /// Comparing the finished entries.
    pub compare_ns: u64,
    /// Removing everything, copying again and comparing.
    pub reuse_ns: u64,
}

/// The check of every invariant: what the report of fsck has of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Check {
    /// Names checked.
    pub names: u64,
    /// Errors.
    pub errors: u64,
    /// Warnings.
    pub warnings: u64,
    /// Duration.
    pub duration_ns: u64,
}

impl Report {
    /// Prints the report as text.
    pub fn print(&self) {
        let part = if self.is_subset { "the first " } else { "" };
        let left_out = match self.left_out {
            0 => String::new(),
            left_out => format!("; {} left out: special or unreadable", count(left_out)),
        };
        println!(
            "{}: {part}{}, {}{left_out}",
            bold(format!("DirectFS with {}", self.tree.display())),
            counted(self.entries, "entry"),
            size(self.size_bytes)
        );
        print_fact("image", format_args!("{}, {}, allocated in advance by mkfs", size(self.image_bytes), self.backing));
        print_fact("persistence", self.persistence);
        println!();
        self.print_table();
        self.print_notes();
        self.crash.print();
        let Check { names, errors, warnings, duration_ns } = self.check;
        print_fact(
            "checked",
            format_args!(
                "fsck of {}: {errors} errors, {warnings} warnings ({})",
                counted(names, "name"),
                duration(duration_ns as f64)
            ),
        );
        println!("\ndone in {:.1} s; all files of this run are removed", self.duration_ns as f64 / 1e9);
    }

    fn print_table(&self) {
        let ratio = format!("run : {}", self.peer);
        let mut headings = vec!["", "run", &self.peer, &ratio];
        if self.mount_absent.is_none() {
            headings.push("mount");
        }
        let mut table = Table::new(&headings);
        for &StepTimes { name, run_ns, peer_ns, mount_ns } in &self.steps {
            let (run, peer) = (run_ns as f64, peer_ns as f64);
            let mut row = vec![name.to_owned(), duration(run), duration(peer), format!("{:.2} x", run / peer)];
            row.extend(mount_ns.map(|ns| duration(ns as f64)));
            table.row(row);
        }
        table.print();
    }

    fn print_notes(&self) {
        let times = match self.rounds {
            1 => "one round, walks the median of 3 times".to_owned(),
            rounds => format!("medians of {rounds} rounds"),
        };
        let note = |note: &str| println!("{}", dim(note));
        note(&format!("times inside the program, {times}; below 1 x run is faster than {}", self.peer));
        match &self.mount_absent {
            None => note(
                "mount, the road for reach: it serves programs and users that run cannot; each call goes to a server; measured once",
            ),
            Some(reason) => note(&format!("mount: not measured: {reason}")),
        }
        println!();
    }
}

impl Crash {
    fn print(&self) {
        let Crash { entries, completed, kill_ns, recovery_ns, compare_ns, reuse_ns } = self;
        let took = |ns: &u64| duration(*ns as f64);
        print_fact(
            "killed",
            format_args!(
                "SIGKILL to run and its program in a copy: {} of {} entries were finished ({})",
                count(*completed),
                count(*entries),
                took(kill_ns)
            ),
        );
        print_fact("recovered", format_args!("the next run has the image in use again ({})", took(recovery_ns)));
        print_fact(
            "compared",
            format_args!("all {} finished entries are intact, byte for byte ({})", count(*completed), took(compare_ns)),
        );
        print_fact(
            "used further",
            format_args!("removed everything, copied the tree again, compared it ({})", took(reuse_ns)),
        );
    }
}
