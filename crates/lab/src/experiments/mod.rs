//! The papers' experiments again: each a workload over some subjects, with the paper's own numbers beside what is measured here.
//!
//! ```text
//!   catalogue   which experiments there are, where they stand in which paper
//!   machine     what they are run on: systems with an image in memory, behind the calls of `calls::Calls`
//!   one module per workload: calls, soupfs, threads, files, trees, index; bare, timed and loops serve them
//!   multicore   what threads would do on more processors than there are
//!   findings    what an experiment returns: measurements beside the paper's, claims and whether they hold
//!   chart       a plot of both, as SVG
//!   report      all of it as text and as one HTML file
//! ```
//!
//! Rules: every subject runs the same calls in this process, so no system pays for a system call and all pay alike. Subjects take turns, what one thread does is timed in its
//! own processor time (where threads meet or wait, and where parts of operations are timed, by the clock), and of several
//! rounds the least time counts: what else the machine does can only add. No number is adjusted. What a paper gives only as a drawing is not guessed: the report
//! quotes what its text says.

pub mod bare;
pub mod calls;
pub mod chart;
mod clock;
pub mod files;
pub mod findings;
pub mod index;
mod loops;
pub mod machine;
pub mod memory;
pub mod multicore;
pub mod parts;
mod programs;
pub mod report;
pub mod soupfs;
pub mod threads;
pub mod timed;
pub mod trees;

pub use findings::{Claim, Findings, Measure, Sense, Series};
pub use machine::{Failure, Machine, Plan, Result, Subject, machine};

use pmem::Delays;

/// The emulated memories that every experiment is run with: none slowed, and what the papers assume of non-volatile memory.
pub const MEMORIES: [Delays; 3] = [
    Delays { read_ns: 0, write_ns: 0 },
    Delays { read_ns: 100, write_ns: 200 },
    Delays { read_ns: 300, write_ns: 600 },
];

/// What people call a memory.
pub fn memory_name(delays: Delays) -> String {
    match (delays.read_ns, delays.write_ns) {
        (0, 0) => "no delay".to_owned(),
        (read, write) => format!("+{read}/{write} ns"),
    }
}

/// How large an experiment is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// For tests: whether it works at all.
    Tiny,
    /// To see how it comes out.
    Quick,
    /// The papers' sizes, as far as memory and two processors allow.
    Full,
}

impl Size {
    /// One of three numbers.
    pub const fn pick(self, tiny: u64, quick: u64, full: u64) -> u64 {
        match self {
            Size::Tiny => tiny,
            Size::Quick => quick,
            Size::Full => full,
        }
    }
}

/// What an experiment is run under.
pub struct Bench<'b> {
    /// How large.
    pub size: Size,
    /// Whether it is to end early.
    pub stop: &'b dyn Fn() -> bool,
    /// Told what is being done.
    pub progress: &'b dyn Fn(&str),
}

impl Bench<'_> {
    /// Tells what comes, or ends the experiment.
    pub fn step(&self, what: &str) -> Result<()> {
        (self.progress)(what);
        self.go_on()
    }

    /// Ends the experiment if somebody wants that.
    pub fn go_on(&self) -> Result<()> {
        if (self.stop)() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Rounds of which the least time counts.
    pub fn rounds(&self) -> usize {
        self.size.pick(1, 2, 5) as usize
    }
}

/// An experiment.
pub struct Experiment {
    /// What the command line calls it.
    pub name: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// Where it stands.
    pub source: &'static str,
    /// What is done, and in what it differs from the paper.
    pub method: &'static str,
    /// Bytes of memory that it needs.
    pub needs_bytes: fn(Size) -> u64,
    /// Carries it out.
    pub run: fn(&Bench<'_>) -> Result<Findings>,
}

/// All experiments.
pub const CATALOGUE: &[Experiment] = &[
    parts::DIRECTFS_FIGURE_1,
    calls::DIRECTFS_FIGURE_2,
    threads::DIRECTFS_FIGURE_3,
    calls::TABLE_2,
    trees::TABLE_3,
    threads::DIRECTFS_FIGURE_7,
    multicore::MULTICORE,
    files::DIRECTFS_FIGURE_8,
    files::DIRECTFS_FIGURE_9,
    parts::DIRECTFS_FIGURE_10,
    index::REBUILD,
    index::RECOVERY,
    parts::BYVFS_FIGURE_1,
    calls::BYVFS_FIGURE_3,
    trees::BYVFS_FIGURE_4,
    parts::BYVFS_TABLE_1,
    soupfs::FIGURE_2,
    soupfs::FIGURE_3,
    files::SOUPFS_FIGURE_4,
    files::SOUPFS_FIGURE_5,
];

/// The experiment of a name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    CATALOGUE.iter().find(|experiment| experiment.name == name)
}

impl Experiment {
    /// Carries it out if there is memory for it.
    pub fn carry_out(&self, bench: &Bench<'_>) -> Result<Findings> {
        let needed = (self.needs_bytes)(bench.size);
        if let Some(available) = available_bytes()
            && available < needed
        {
            return Err(Failure::Memory { experiment: self.name, needed, available });
        }
        (self.run)(bench)
    }
}

/// Memory that could be used now, as the kernel reckons.
fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
