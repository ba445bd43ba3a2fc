//! What a worker is asked to do and what it answers: the language between the benchmark and its measured programs, a line of JSON each.

use super::measure::Latencies;
use super::workloads::calls::Call;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One workload with all that it depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// What is done.
    pub work: Work,
    /// By whom.
    pub crew: Crew,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Each call over so many files.
    Calls { files: u64 },
    /// stat of files that lie so many directories deep, 1 to `depth`.
    Depth { depth: u32, files: u64 },
    /// Files that are created, written, closed, opened, read and closed.
    SmallFiles { bytes: u64, files: u64 },
    /// Makes what [`Work::Cold`] finds, in another life of the program.
    Prepare { files: u64 },
    /// The first calls of a program on files that it has not made.
    Cold { files: u64 },
    /// mdtest's phases: each member works on what its neighbour made.
    Mdtest { files: u64 },
    /// A mail server.
    Varmail { files: u64, run_ms: u64 },
    /// A file server.
    Fileserver { files: u64, run_ms: u64 },
    /// A mail and news server of many short-lived files.
    Postmark { files: u64, transactions: u64 },
    /// Large files, beside memcpy.
    Data { bytes: u64 },
    /// Programs on a real tree.
    Tree { source: PathBuf },
}

/// Who does it: so many threads or processes, in one directory or each in its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crew {
    /// How many.
    pub members: u32,
    /// As what.
    pub kind: CrewKind,
    /// Each in a directory of its own.
    pub private: bool,
}

/// What the members of a crew are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrewKind {
    /// Threads of one process.
    Threads,
    /// Processes.
    Processes,
}

impl Crew {
    /// One thread alone.
    pub const ONE: Crew = Crew { members: 1, kind: CrewKind::Threads, private: false };

    /// Threads in one directory.
    pub fn threads(members: u32) -> Crew {
        Crew { members, ..Crew::ONE }
    }
}

/// What a phase measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Which phase.
    pub what: What,
    /// Calls of all members.
    pub calls: u64,
    /// From the first member's start to the last one's end.
    pub elapsed_ns: f64,
    /// Members that worked at the same time.
    pub members: u32,
    /// Single calls, or batches.
    pub latencies: Latencies,
    /// Calls in each of these: more than one where a call is too short to be timed by itself.
    pub batch: u64,
    /// Of a program: the processor time that it spent outside the kernel.
    pub user_ns: Option<f64>,
    /// This file system has no such call; the reason.
    pub refused: Option<String>,
}

/// A phase's name, and how it is expressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A call: time per call.
    Call(Call),
    /// Something that is like a call: time for each.
    Each(String),
    /// Work that is done once: its duration.
    Once(String),
    /// Operations of a mix: how many in a second.
    Rate(String),
    /// Bytes that were moved, as `calls`: how many in a second.
    Bandwidth(String),
}

impl What {
    /// In words.
    pub fn words(&self) -> &str {
        match self {
            What::Call(call) => call.words(),
            What::Each(words) | What::Once(words) | What::Rate(words) | What::Bandwidth(words) => words,
        }
    }
}

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Do that.
    Run(Task),
    /// There is nothing more to do. Without this a worker that is left alone removes what it had been given to work in.
    End,
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It stands in its directory; reading the clock costs so much there.
    Ready { timer_ns: u64 },
    /// It is done.
    Done(Vec<Outcome>),
    /// It could not be done; everything that was made for it is removed.
    Failed(String),
}
