//! The protocol between the benchmark and its workers: requests and replies, one line of JSON each.

use super::measure::Latencies;
use super::workloads::calls::Call;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One workload with all its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The work.
    pub work: Work,
    /// The members that do it.
    pub crew: Workers,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Each call with this many files.
    Calls { files: u64 },
    /// stat of files at each depth from 1 to `depth`.
    Depth { depth: u32, files: u64 },
    /// Files that are created, written, closed, opened, read and closed.
    SmallFiles { bytes: u64, files: u64 },
    /// Creates the files for [`Work::Cold`], in another process.
    Prepare { files: u64 },
    /// The first calls of a process on files of another one.
    Cold { files: u64 },
    /// The phases of mdtest: each member works on its neighbour's files.
    Mdtest { files: u64 },
    /// A mail server.
    Varmail { files: u64, run_ms: u64 },
    /// A file server.
    Fileserver { files: u64, run_ms: u64 },
    /// A mail and news server with many short-lived files.
    Postmark { files: u64, transactions: u64 },
    /// Large files, compared with memcpy.
    Data { bytes: u64 },
    /// Programs on a real tree.
    Tree { source: PathBuf },
    /// Files that are made durable one by one.
    Syncs { files: u64 },
    /// Durable transactions of SQLite.
    Sqlite { transactions: u64 },
    /// An archive of a tree that is unpacked and then made durable.
    Untar { source: PathBuf },
    /// Scripts, builds and other work of people, with a tree and this amount of generated work.
    Programs { source: PathBuf, rounds: u64 },
    /// Programs on a real tree, on mounts.
    Mounted { materials: Materials },
}

/// What programs on mounts use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Materials {
    /// The tree to copy; empty until one is generated.
    pub source: PathBuf,
    /// Its files and directories.
    pub names: u64,
    /// An archive of it.
    pub archive: PathBuf,
    /// A repository with it, if git is installed.
    pub repository: Option<PathBuf>,
}

/// The members: threads or processes, in one directory or each in its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// Their number.
    pub members: u32,
    /// Their kind.
    pub kind: WorkerKind,
    /// Each in its own directory.
    pub private: bool,
}

/// The kind of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerKind {
    /// Threads of one process.
    Threads,
    /// Processes.
    Processes,
}

impl Workers {
    /// A single thread.
    pub const ONE: Workers = Workers { members: 1, kind: WorkerKind::Threads, private: false };

    /// Threads in one directory.
    pub fn threads(members: u32) -> Workers {
        Workers { members, ..Workers::ONE }
    }
}

/// The measurements of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The phase.
    pub what: PhaseName,
    /// Calls of all members.
    pub calls: u64,
    /// From the first member's start to the last one's end.
    pub elapsed_ns: f64,
    /// Concurrent members.
    pub members: u32,
    /// Single calls, or batches.
    pub latencies: Latencies,
    /// Calls in each sample: more than one where a call is too short to be timed by itself.
    pub batch: u64,
    /// For a program: its processor time outside the kernel.
    pub user_ns: Option<f64>,
    /// For a program: its processor time in the kernel.
    pub system_ns: Option<f64>,
    /// For a mount: requests to the server, for each file of the tree.
    pub requests: Option<f64>,
    /// The reason why this file system does not have the call.
    pub refused: Option<String>,
}

/// A phase's name, and the unit of its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseName {
    /// A call: time per call.
    Call(Call),
    /// Something like a call: time for each.
    Each(String),
    /// Work that is done once: its duration.
    Once(String),
    /// Operations of a mix: number per second.
    Rate(String),
    /// Bytes moved, counted as `calls`: number per second.
    Bandwidth(String),
}

impl PhaseName {
    /// For display.
    pub fn label(&self) -> &str {
        match self {
            PhaseName::Call(call) => call.label(),
            PhaseName::Each(words) | PhaseName::Once(words) | PhaseName::Rate(words) | PhaseName::Bandwidth(words) => {
                words
            }
        }
    }
}

/// Sent to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Runs a task.
    Run(Task),
    /// There are no more tasks. An input that ends without this request means that the worker is
    /// orphaned; it then removes its working directory.
    End,
}

/// Sent by a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The worker is in its directory; the cost of reading the clock there.
    Ready { timer_ns: u64 },
    /// The task is done.
    Done(Vec<Outcome>),
    /// The task failed; all its files are removed.
    Failed(String),
}
