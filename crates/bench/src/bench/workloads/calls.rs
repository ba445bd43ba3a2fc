//! The single calls, and one round of all of them with a number of files in one directory.
//!
//! The round uses a [`Directory`], which is implemented by system calls and by the engine in this
//! process.

use super::names::Names;
use crate::bench::measure::Stopwatch;
use crate::bench::task::PhaseName;
use crate::bench::workers::{Member, PhaseResult};
use crate::interrupt;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;

/// Number of names in the hot set.
pub const HOT_FILES: u64 = 16;
/// Maximum number of calls on the hot set in a round.
const HOT_CALLS_MAX: u64 = 200_000;
/// Calls between two checks of the interrupt flag: rare enough to cost nothing, frequent enough to
/// react within milliseconds.
const BATCH: usize = 1024;

/// One directory to work in. Each call does only what a program would wait for.
pub trait Directory {
    /// Creates an empty file and closes it.
    fn create(&self, name: &CStr) -> Result<()>;
    /// Reads a file's attributes.
    fn stat(&self, name: &CStr) -> Result<()>;
    /// Reads the attributes of a missing file.
    fn stat_missing(&self, name: &CStr) -> Result<()>;
    /// Checks whether a file may be read.
    fn access(&self, name: &CStr) -> Result<()>;
    /// Opens a file and closes it.
    fn open(&self, name: &CStr) -> Result<()>;
    /// Removes a file.
    fn unlink(&self, name: &CStr) -> Result<()>;
    /// Creates a directory.
    fn mkdir(&self, name: &CStr) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, name: &CStr) -> Result<()>;
    /// Adds a name to a file.
    fn link(&self, name: &CStr, other: &CStr) -> Result<()>;
    /// Renames.
    fn rename(&self, name: &CStr, other: &CStr) -> Result<()>;
    /// Reads the whole directory; returns the number of names without `.` and `..`.
    fn read(&self) -> Result<u64>;
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Create empty files and close them.
    Create,
    /// stat over all files, in random order.
    Stat,
    /// stat of missing names.
    StatMissing,
    /// access over all files, in random order.
    Access,
    /// stat of sixteen files, repeatedly.
    StatHot,
    /// access of sixteen files, repeatedly.
    AccessHot,
    /// Open files and close them, in random order.
    Open,
    /// Reading the directory, per name.
    Readdir,
    /// Renames within the directory, in random order.
    Rename,
    /// Add second names.
    Link,
    /// Remove files, in random order.
    Unlink,
    /// Create directories.
    Mkdir,
    /// Remove empty directories, in random order.
    Rmdir,
}

impl Call {
    /// For display.
    pub fn label(self) -> &'static str {
        match self {
            Call::Create => "create+close",
            Call::Stat => "stat",
            Call::StatMissing => "stat, no such name",
            Call::Access => "access",
            Call::StatHot => "stat, 16 hot files",
            Call::AccessHot => "access, 16 hot files",
            Call::Open => "open+close",
            Call::Readdir => "readdir, per name",
            Call::Rename => "rename",
            Call::Link => "link",
            Call::Unlink => "unlink",
            Call::Mkdir => "mkdir",
            Call::Rmdir => "rmdir",
        }
    }

    /// The project's goal as a multiple of tmpfs, for one thread and for several in one directory.
    pub fn times_wanted(self, members: u32) -> f64 {
        let (one, several) = match self {
            Call::StatHot | Call::AccessHot => (6.0, 6.0),
            Call::Stat | Call::StatMissing | Call::Access | Call::Open => (4.0, 5.0),
            Call::Create | Call::Rename => (5.0, 10.0),
            Call::Unlink | Call::Link => (5.0, 7.0),
            Call::Mkdir => (4.0, 9.0),
            Call::Rmdir => (5.0, 7.0),
            Call::Readdir => (8.0, 8.0),
        };
        if members > 1 { several } else { one }
    }
}

/// All names that a round needs, prepared in advance.
pub struct Round {
    ascending: Names,
    shuffled: Names,
    others: Names,
    others_ascending: Names,
    missing: Names,
}

impl Round {
    /// For files with these numbers. The names begin with `prefix`: a directory and a slash, or
    /// nothing.
    pub fn new(prefix: &str, numbers: std::ops::Range<u64>) -> Round {
        let [file, other, missing] = ["f", "g", "x"].map(|letter| format!("{prefix}{letter}"));
        Round {
            ascending: Names::ascending(&file, numbers.clone()),
            shuffled: Names::shuffled(&file, numbers.clone()),
            others: Names::shuffled(&other, numbers.clone()),
            others_ascending: Names::ascending(&other, numbers.clone()),
            missing: Names::shuffled(&missing, numbers),
        }
    }

    /// The number of files.
    pub fn files(&self) -> u64 {
        self.ascending.count()
    }

    /// Creates the files.
    pub fn fill(&self, directory: &impl Directory, watch: &mut Stopwatch) -> Result<PhaseResult> {
        over(&self.ascending, watch, |name| directory.create(name))
    }

    /// Runs all calls. The directory has none of these files before and after; `in_directory` is
    /// its number of names including those of all members.
    pub fn run(&self, member: &mut Member, directory: &impl Directory, in_directory: u64) -> Result<()> {
        let Round { ascending, shuffled, others, others_ascending, missing } = self;
        member.phase(PhaseName::Call(Call::Create), |watch| self.fill(directory, watch))?;
        member.phase(PhaseName::Call(Call::Stat), |watch| over(shuffled, watch, |name| directory.stat(name)))?;
        member.phase(PhaseName::Call(Call::StatMissing), |watch| {
            over(missing, watch, |name| directory.stat_missing(name))
        })?;
        member.phase(PhaseName::Call(Call::Access), |watch| over(shuffled, watch, |name| directory.access(name)))?;
        member.phase(PhaseName::Call(Call::StatHot), |watch| self.over_hot(watch, |name| directory.stat(name)))?;
        member.phase(PhaseName::Call(Call::AccessHot), |watch| self.over_hot(watch, |name| directory.access(name)))?;
        member.phase(PhaseName::Call(Call::Open), |watch| over(shuffled, watch, |name| directory.open(name)))?;
        member.phase(PhaseName::Call(Call::Readdir), |_| read(directory, in_directory))?;
        member.phase(PhaseName::Call(Call::Rename), |watch| {
            pairs(shuffled, others, watch, |name, other| directory.rename(name, other))
        })?;
        // Renames back, so that names and files are in the same order again; not counted.
        pairs(others, shuffled, &mut Stopwatch::new(0), |name, other| directory.rename(name, other))?;
        self.link(member, directory, ascending, others_ascending)?;
        member.phase(PhaseName::Call(Call::Unlink), |watch| over(shuffled, watch, |name| directory.unlink(name)))?;
        member.phase(PhaseName::Call(Call::Mkdir), |watch| over(ascending, watch, |name| directory.mkdir(name)))?;
        member.phase(PhaseName::Call(Call::Rmdir), |watch| over(shuffled, watch, |name| directory.rmdir(name)))
    }

    /// Adds second names and removes them. Some file systems do not support them.
    fn link(&self, member: &mut Member, directory: &impl Directory, names: &Names, others: &Names) -> Result<()> {
        let mut linked = true;
        member.phase(PhaseName::Call(Call::Link), |watch| {
            if let Err(error) = directory.link(names.get(0), others.get(0)) {
                linked = false;
                return refusal(error);
            }
            directory.unlink(others.get(0))?;
            pairs(names, others, watch, |name, other| directory.link(name, other))
        })?;
        if linked {
            // The files have another name, so removing this one is cheaper than removing a file.
            over(others, &mut Stopwatch::new(0), |name| directory.unlink(name))?;
        }
        Ok(())
    }

    fn over_hot(&self, watch: &mut Stopwatch, mut call: impl FnMut(&CStr) -> Result<()>) -> Result<PhaseResult> {
        let hot: Vec<&CStr> = self.ascending.iter().take(HOT_FILES as usize).collect();
        let rounds = (self.files() * 4).clamp(HOT_FILES, HOT_CALLS_MAX) / HOT_FILES;
        for round in 0..rounds {
            if (round as usize).is_multiple_of(BATCH) {
                interrupt::check()?;
            }
            // Too short to be timed one by one.
            watch.call(|| hot.iter().try_for_each(|name| call(name)))?;
        }
        Ok(PhaseResult { calls: rounds * hot.len() as u64, batch: hot.len() as u64, ..PhaseResult::default() })
    }
}

/// Runs `call` on all names.
pub fn over(names: &Names, watch: &mut Stopwatch, mut call: impl FnMut(&CStr) -> Result<()>) -> Result<PhaseResult> {
    for (index, name) in names.iter().enumerate() {
        if index.is_multiple_of(BATCH) {
            interrupt::check()?;
        }
        watch.call(|| call(name))?;
    }
    Ok(PhaseResult::calls(names.count()))
}

/// Runs `call` on pairs of names.
fn pairs(
    names: &Names,
    others: &Names,
    watch: &mut Stopwatch,
    mut call: impl FnMut(&CStr, &CStr) -> Result<()>,
) -> Result<PhaseResult> {
    let mut other = others.iter();
    over(names, watch, |name| call(name, other.next().context("as many names as others")?))
}

/// Reads the directory and requires this number of names.
pub fn read(directory: &impl Directory, files: u64) -> Result<PhaseResult> {
    let found = directory.read()?;
    ensure!(
        found == files,
        "the directory has {files} names but reading it returned {found}: this is a defect of the file system"
    );
    interrupt::check()?;
    Ok(PhaseResult::calls(files))
}

/// An error that means that the file system does not have this call is not a failure of the
/// benchmark.
fn refusal(error: anyhow::Error) -> Result<PhaseResult> {
    let refused = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    match refused {
        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK) => {
            Ok(PhaseResult { refused: Some("no hard links on this file system".into()), ..PhaseResult::default() })
        }
        _ => Err(error),
    }
}
