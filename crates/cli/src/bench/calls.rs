//! The calls that are measured, and one round of all of them over a number of files in one directory.

use super::names::Names;
use super::statistics::{Rounds, Summary};
use super::subject::Subject;
use crate::interrupt;
use crate::terminal::Progress;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::ffi::CStr;
use std::time::Instant;

/// Names of the hot set.
const HOT_FILES: usize = 16;
/// Calls between two looks at the interrupt flag: rare enough to cost nothing, often enough to react within a millisecond or so.
const BATCH: usize = 1024;

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// stat over all files, in random order.
    Stat,
    /// stat of sixteen files, again and again.
    StatHot,
    /// Make empty files.
    Create,
    /// Remove files, in random order.
    Unlink,
    /// Make directories.
    Mkdir,
    /// Remove empty directories, in random order.
    Rmdir,
    /// Second names.
    Link,
    /// Renames within the directory, in random order.
    Rename,
    /// Reading the directory, per name.
    Readdir,
}

impl Call {
    /// All, in the order of the report.
    pub const ALL: [Call; 9] = [
        Call::Stat,
        Call::StatHot,
        Call::Create,
        Call::Unlink,
        Call::Mkdir,
        Call::Rmdir,
        Call::Link,
        Call::Rename,
        Call::Readdir,
    ];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Call::Stat => "stat",
            Call::StatHot => "stat, 16 hot files",
            Call::Create => "create",
            Call::Unlink => "unlink",
            Call::Mkdir => "mkdir",
            Call::Rmdir => "rmdir",
            Call::Link => "link",
            Call::Rename => "rename",
            Call::Readdir => "readdir, per name",
        }
    }

    /// What the design aims at over 10,000 files, in multiples of the floor; twice that over a million.
    pub fn target(self) -> Option<f64> {
        match self {
            Call::Stat => Some(1.5),
            Call::StatHot => Some(0.5),
            Call::Create | Call::Link => Some(4.0),
            Call::Unlink => Some(2.5),
            Call::Mkdir => Some(5.0),
            Call::Rmdir => Some(3.0),
            Call::Rename => Some(6.0),
            Call::Readdir => None,
        }
    }
}

/// All names that a round needs, made once.
pub struct Workload {
    ascending: Names,
    shuffled: Names,
    others: Names,
    others_ascending: Names,
}

impl Workload {
    /// For `files` files.
    pub fn new(files: u64) -> Workload {
        Workload {
            ascending: Names::ascending(b'f', files),
            shuffled: Names::shuffled(b'f', files),
            others: Names::shuffled(b'g', files),
            others_ascending: Names::ascending(b'g', files),
        }
    }

    /// How many files.
    pub fn files(&self) -> u64 {
        self.ascending.count()
    }

    /// Makes the files and leaves them there.
    pub fn fill(&self, subject: &mut impl Subject) -> Result<f64> {
        over(&self.ascending, |name| subject.create(name))
    }
}

/// Who is told when a call's phase begins and ends: times are kept, lines counted, and later latencies sorted, by different observers.
pub trait Observer {
    /// The calls of a phase begin.
    fn begin(&mut self, call: Call);
    /// They have ended, and took so many nanoseconds each.
    fn end(&mut self, call: Call, ns: f64);
}

/// The figures of each call, round by round.
#[derive(Default)]
pub struct Measured([Rounds; Call::ALL.len()]);

impl Observer for Measured {
    fn begin(&mut self, _: Call) {}
    fn end(&mut self, call: Call, ns: f64) {
        self.0[call as usize].add(ns);
    }
}

impl Measured {
    /// What is said of a call.
    pub fn summary(&self, call: Call) -> Option<Summary> {
        self.0[call as usize].summary()
    }
}

/// Runs `rounds` rounds after one that only warms up: it touches the memory that later rounds use again.
pub fn measure(subject: &mut impl Subject, workload: &Workload, rounds: u32) -> Result<Measured> {
    let what = format!("{} files", crate::units::count(workload.files()));
    let mut progress = Progress::start(&format!("measuring over {what}"), rounds as u64 + 1);
    round(subject, workload, &mut Measured::default()).with_context(|| format!("the first round over {what}"))?;
    let mut measured = Measured::default();
    for done in 0..rounds {
        progress.at(done as u64 + 1);
        round(subject, workload, &mut measured).with_context(|| format!("round {} over {what}", done + 1))?;
    }
    Ok(measured)
}

/// One round of all calls. The directory is empty before and after.
pub fn round(subject: &mut impl Subject, workload: &Workload, observer: &mut impl Observer) -> Result<()> {
    let Workload { ascending, shuffled, others, others_ascending } = workload;
    let mut phase = |call: Call, run: &mut dyn FnMut() -> Result<f64>| -> Result<()> {
        observer.begin(call);
        let ns = run().with_context(|| format!("while measuring {}", call.words()))?;
        observer.end(call, ns);
        Ok(())
    };
    phase(Call::Create, &mut || workload.fill(subject))?;
    phase(Call::Stat, &mut || over(shuffled, |name| subject.stat(name)))?;
    phase(Call::StatHot, &mut || stat_hot(subject, workload))?;
    phase(Call::Readdir, &mut || read_directory(subject, workload.files()))?;
    phase(Call::Rename, &mut || pairs(shuffled, others, |name, other| subject.rename(name, other)))?;
    // Back, so that names and files lie in the same order again; not counted.
    pairs(others, shuffled, |name, other| subject.rename(name, other))?;
    phase(Call::Link, &mut || pairs(ascending, others_ascending, |name, other| subject.link(name, other)))?;
    // These are not the last names: another, cheaper thing than removing a file.
    over(others_ascending, |name| subject.unlink(name))?;
    phase(Call::Unlink, &mut || over(shuffled, |name| subject.unlink(name)))?;
    phase(Call::Mkdir, &mut || over(ascending, |name| subject.mkdir(name)))?;
    phase(Call::Rmdir, &mut || over(shuffled, |name| subject.rmdir(name)))
}

/// Runs `call` on all names; nanoseconds for each.
fn over(names: &Names, mut call: impl FnMut(&CStr) -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    for (index, name) in names.iter().enumerate() {
        if index % BATCH == 0 {
            interrupt::check()?;
        }
        call(name)?;
    }
    Ok(started.elapsed().as_nanos() as f64 / names.count().max(1) as f64)
}

/// Runs `call` on names two by two.
fn pairs(names: &Names, others: &Names, mut call: impl FnMut(&CStr, &CStr) -> Result<()>) -> Result<f64> {
    let mut other = others.iter();
    over(names, |name| call(name, other.next().context("as many names as others")?))
}

fn stat_hot(subject: &mut impl Subject, workload: &Workload) -> Result<f64> {
    let hot: Vec<&CStr> = workload.ascending.iter().take(HOT_FILES).collect();
    let repeats = 200_000 / hot.len();
    let started = Instant::now();
    for repeat in 0..repeats {
        if repeat % BATCH == 0 {
            interrupt::check()?;
        }
        for name in &hot {
            subject.stat(name)?;
        }
    }
    Ok(started.elapsed().as_nanos() as f64 / (repeats * hot.len()) as f64)
}

fn read_directory(subject: &mut impl Subject, files: u64) -> Result<f64> {
    let started = Instant::now();
    let found = subject.read_directory()?;
    let ns = started.elapsed().as_nanos() as f64 / files as f64;
    ensure!(
        found == files,
        "the directory has {files} names and reading it gave {found}: this is a defect of the file system"
    );
    interrupt::check()?;
    Ok(ns)
}
