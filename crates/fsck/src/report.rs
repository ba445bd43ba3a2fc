//! The outcome of a check.

use crate::finding::{Finding, FindingKind, Severity};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Options of a check.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Maximum number of findings kept; further ones are only counted. Damage may produce more than
    /// is useful to read.
    pub findings_max: usize,
    /// Overrides whether the image counts as cleanly detached.
    pub clean: Option<bool>,
    /// Ranges of the image whose memory has errors (bad blocks), in ascending order.
    pub lost: &'a [Range<u64>],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { findings_max: 10_000, clean: None, lost: &[] }
    }
}

/// The current part of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Superblock, journal, segment table; short.
    Fixed,
    /// Inodes.
    Inodes,
    /// Names.
    Directories,
    /// Contents: block maps.
    Bodies,
    /// The directory tree: names, links, reachability.
    Tree,
    /// The maps saved by a clean detach.
    Snapshot,
}

impl Phase {
    /// For display.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Fixed => "superblock and journal",
            Phase::Inodes => "inodes",
            Phase::Directories => "directories",
            Phase::Bodies => "contents",
            Phase::Tree => "tree",
            Phase::Snapshot => "free-space maps",
        }
    }
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Its current part.
    pub phase: Phase,
    /// Units done.
    pub done: u64,
    /// Units of this phase.
    pub total: u64,
}

/// Counts of the checked image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Valid names.
    pub names: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Regular files among them.
    pub files: u64,
    /// Symbolic links among them.
    pub symlinks: u64,
    /// Others among them.
    pub special: u64,
    /// Maximum number of inodes of the image.
    pub inodes_max: u64,
    /// Blocks of 4 KiB in use, including the fixed areas.
    pub blocks_used: u64,
    /// Blocks free.
    pub blocks_free: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The findings, in order of detection.
    pub findings: Vec<Finding>,
    /// The number of findings not kept.
    pub findings_dropped: u64,
    /// Errors among all findings, kept or not.
    pub errors: u64,
    /// Warnings among all findings.
    pub warnings: u64,
    /// Notes among all findings.
    pub notes: u64,
    /// The image is marked as cleanly detached.
    pub clean: bool,
    /// The image could be checked; if not, a finding states the cause.
    pub checked: bool,
    /// The counts.
    pub counts: Counts,
    /// Duration of the check.
    pub duration: Duration,
}

/// fsck(8): no errors.
pub const EXIT_CLEAN: i32 = 0;
/// fsck(8): errors were corrected.
pub const EXIT_CORRECTED: i32 = 1;
/// fsck(8): errors were left uncorrected.
pub const EXIT_ERRORS_LEFT: i32 = 4;
/// fsck(8): operational error.
pub const EXIT_OPERATIONAL: i32 = 8;
/// fsck(8): usage or syntax error.
pub const EXIT_USAGE: i32 = 16;

impl Report {
    /// The exit code as in fsck(8): 0; 4 if an error or a warning remains; 8 if the image could not
    /// be checked. A program that fails to open the image exits with [`EXIT_OPERATIONAL`], a usage
    /// error with [`EXIT_USAGE`].
    pub fn exit_code(&self) -> i32 {
        if !self.checked {
            EXIT_OPERATIONAL
        } else if self.errors + self.warnings > 0 {
            EXIT_ERRORS_LEFT
        } else {
            EXIT_CLEAN
        }
    }

    /// Whether there is neither an error nor a warning, as required after recovery.
    pub fn is_sound(&self) -> bool {
        self.exit_code() == EXIT_CLEAN
    }

    /// The kinds found, without repetition, in order of first detection.
    pub fn kinds(&self) -> Vec<FindingKind> {
        let mut kinds = Vec::new();
        for finding in &self.findings {
            if !kinds.contains(&finding.kind) {
                kinds.push(finding.kind);
            }
        }
        kinds
    }

    pub(crate) fn add(&mut self, finding: Finding, findings_max: usize) {
        match finding.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
            Severity::Note => self.notes += 1,
        }
        if self.findings.len() < findings_max {
            self.findings.push(finding);
        } else {
            self.findings_dropped += 1;
        }
    }
}

/// The ending of a regular noun.
fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        if self.findings_dropped > 0 {
            writeln!(f, "... and {} more findings", self.findings_dropped)?;
        }
        if !self.checked {
            return writeln!(f, "the image could not be checked");
        }
        let Counts { names, directories, files, symlinks, special, blocks_used, blocks_free, .. } = self.counts;
        let state = if self.clean { "left cleanly" } else { "not left cleanly: in use, or after a crash" };
        writeln!(
            f,
            "{state}; {names} name{}, {directories} director{}, {files} file{}, {symlinks} symbolic link{}, {special} other{}",
            plural(names),
            if directories == 1 { "y" } else { "ies" },
            plural(files),
            plural(symlinks),
            plural(special)
        )?;
        writeln!(
            f,
            "{blocks_used} block{} used, {blocks_free} free; checked in {:.3} s",
            plural(blocks_used),
            self.duration.as_secs_f64()
        )?;
        let (errors, warnings, notes) = (self.errors, self.warnings, self.notes);
        let plurals = [errors, warnings, notes].map(plural);
        writeln!(f, "{errors} error{}, {warnings} warning{}, {notes} note{}", plurals[0], plurals[1], plurals[2])
    }
}
