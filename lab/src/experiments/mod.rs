//! Reproductions of the papers' experiments: each is a workload over some subjects, with the
//! paper's numbers next to those measured here.
//!
//! ```text
//!   CATALOGUE   the experiments and their source in the papers
//!   machine     the subjects: systems with an image in memory, behind the calls of `calls::Calls`
//!   calls, soupfs, squirrelfs, threads, fxmark, files, trees, index: one module per workload;
//!               bare, timed, loops, programs and parts serve them
//!   filebench   the applications of `files`, `applications` and of `lab workload`
//!   applications  these and YCSB under `directfs run`, beside tmpfs and ext4
//!   cached      memory for a cached file
//!   kernel      the running kernel beside the lab's VFS layer
//!   sensitivity gains on machines between the papers'
//!   recorded    the same calls in virtual time, as further columns
//!   multicore   a model of threads on more processors than the machine has
//!   modelled    applications with more threads than the machine has processors
//!   findings    the result of an experiment: measurements next to the paper's, and claims
//!   chart       plots of both
//!   report      everything as text and as one HTML file
//! ```
//!
//! Rules:
//!
//! - Every subject runs the same calls in this process, so no system pays for a system call and all
//!   costs are comparable.
//! - Subjects take turns. Single-threaded work is timed in processor time; work where threads meet
//!   or wait, and parts of operations, by the clock.
//! - The minimum over several rounds counts, since interference only adds time.
//! - No number is adjusted. If a paper gives only a drawing, the report quotes its text and does
//!   not guess values.

pub mod applications;
pub mod bare;
pub mod cached;
pub mod calls;
pub mod chart;
mod clock;
pub mod filebench;
pub mod files;
pub mod findings;
pub mod fxmark;
pub mod index;
pub mod kernel;
mod loops;
pub mod machine;
pub mod memory;
mod modelled;
pub mod multicore;
pub mod parts;
mod programs;
pub mod recorded;
mod recorded_calls;
pub mod report;
pub mod sensitivity;
pub mod soupfs;
pub mod squirrelfs;
pub mod threads;
pub mod timed;
pub mod trees;

pub use findings::{Claim, Findings, Measure, Medium, Sense, Series};
pub use loops::{Clock, Random, Watch};
pub use machine::{Failure, Machine, Plan, Result, Subject, machine};

use crate::virtual_time::memories::Memory;
use pmem::Delays;

/// The emulated memories of every experiment: without delay, and the papers' assumptions for
/// non-volatile memory.
pub const MEMORIES: [Delays; 3] = [
    Delays { read_ns: 0, write_ns: 0 },
    Delays { read_ns: 100, write_ns: 200 },
    Delays { read_ns: 300, write_ns: 600 },
];

/// Name of a memory in reports.
pub fn memory_name(delays: Delays) -> String {
    match (delays.read_ns, delays.write_ns) {
        (0, 0) => "no delay".to_owned(),
        (read, write) => format!("+{read}/{write} ns"),
    }
}

/// The size of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// For tests of function only.
    Tiny,
    /// For a first impression.
    Quick,
    /// The papers' sizes, as far as memory and two processors allow.
    Full,
}

impl Size {
    /// Selects one of three numbers by size.
    pub const fn pick(self, tiny: u64, quick: u64, full: u64) -> u64 {
        match self {
            Size::Tiny => tiny,
            Size::Quick => quick,
            Size::Full => full,
        }
    }
}

/// Kinds of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// By the clock, and virtual.
    Both,
    /// By the clock only.
    Clock,
    /// Virtual only: the same in every run.
    Virtual,
}

/// The environment of an experiment.
pub struct Bench<'b> {
    /// The size.
    pub size: Size,
    /// Which times to take where an experiment has both.
    pub times: Times,
    /// Whether the experiment is to end early.
    pub stop: &'b dyn Fn() -> bool,
    /// Reports progress.
    pub progress: &'b dyn Fn(&str),
}

impl Bench<'_> {
    /// Reports the next step, or ends the experiment.
    pub fn step(&self, what: &str) -> Result<()> {
        (self.progress)(what);
        self.check_stop()
    }

    /// Ends the experiment if `stop` requests it.
    pub fn check_stop(&self) -> Result<()> {
        if (self.stop)() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Whether to measure by the clock where there is virtual time.
    pub fn is_clocked(&self) -> bool {
        self.times != Times::Virtual
    }

    /// The memories for virtual time; none if it is not wanted.
    pub fn virtual_memories(&self, memories: &'static [Memory]) -> &'static [Memory] {
        if self.times == Times::Clock { &[] } else { memories }
    }

    /// Number of rounds, of which the minimum time counts.
    pub fn rounds(&self) -> usize {
        self.size.pick(1, 2, 5) as usize
    }
}

/// An experiment.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Its source in the papers.
    pub source: &'static str,
    /// The method and its differences from the paper.
    pub method: &'static str,
    /// Whether it times by the clock what other work would delay, so that it never runs beside
    /// another one.
    pub is_alone: bool,
    /// Memory needed in bytes.
    pub needs_bytes: fn(Size) -> u64,
    /// Runs it.
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
    squirrelfs::CALLS,
    fxmark::FXMARK,
    applications::APPLICATIONS,
    cached::CACHED_FILE,
    kernel::KERNEL_CALLS,
    sensitivity::SENSITIVITY,
];

/// Finds an experiment by name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    CATALOGUE.iter().find(|experiment| experiment.name == name)
}

impl Experiment {
    /// Fails unless there is enough memory for the experiment.
    pub fn check_memory(&self, size: Size) -> Result<()> {
        let needed = (self.needs_bytes)(size);
        match available_bytes() {
            Some(available) if available < needed => Err(Failure::Memory { experiment: self.name, needed, available }),
            _ => Ok(()),
        }
    }

    /// Runs the experiment if there is enough memory.
    pub fn carry_out(&self, bench: &Bench<'_>) -> Result<Findings> {
        self.check_memory(bench.size)?;
        (self.run)(bench)
    }
}

/// Available memory, as the kernel estimates it.
fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
