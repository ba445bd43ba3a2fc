//! Workloads and their names: a setup and one or two operations, for example
//! `base:rename-over,create`. A second operation with an exclamation mark runs in another thread.

use crate::catalogue::{OPERATIONS, Operation, SETUPS, Setup};
use std::fmt;
use std::str::FromStr;

/// A setup, and the operations on it that are recorded.
#[derive(Clone)]
pub struct Workload {
    /// The file system before.
    pub setup: &'static Setup,
    /// One or two operations.
    pub operations: Vec<&'static Operation>,
    /// Whether the second one runs in another thread, whose fences make nothing durable that the
    /// first thread left in flight.
    pub other_thread: bool,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.setup.name, self.operations[0].name)?;
        match self.operations.get(1) {
            Some(second) => write!(f, ",{}{}", if self.other_thread { "!" } else { "" }, second.name),
            None => Ok(()),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let wrong = || format!("`{text}` is not a workload: expected for example base:rename-over,create");
        let (setup, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (first, second) = rest.split_once(',').map_or((rest, None), |(first, second)| (first, Some(second)));
        let other_thread = second.is_some_and(|name| name.starts_with('!'));
        let find = |name: &str| OPERATIONS.iter().find(|operation| operation.name == name).ok_or_else(wrong);
        let mut operations = vec![find(first)?];
        if let Some(second) = second {
            operations.push(find(second.trim_start_matches('!'))?);
        }
        let setup = SETUPS.iter().find(|known| known.name == setup).ok_or_else(wrong)?;
        Ok(Workload { setup, operations, other_thread })
    }
}

/// The first setup with directories of many pages.
const PAGES: usize = 7;

/// The groups of workloads, smallest first, so that the first failure is a small one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// One operation on the base setup.
    Singles,
    /// One operation on another setup.
    Setups,
    /// Log pages and compaction.
    Pages,
    /// Two operations of one thread.
    Pairs,
    /// Two operations of two threads, one after the other.
    Threads,
}

impl Group {
    /// All, in order.
    pub const ALL: [Group; 5] = [Group::Singles, Group::Setups, Group::Pages, Group::Pairs, Group::Threads];

    /// For display.
    pub fn name(self) -> &'static str {
        match self {
            Group::Singles => "single operations",
            Group::Setups => "reused, scattered",
            Group::Pages => "pages, compaction",
            Group::Pairs => "pairs",
            Group::Threads => "pairs of threads",
        }
    }

    /// Its workloads.
    pub fn workloads(self) -> Vec<Workload> {
        let setups = |from: usize, to: usize| &SETUPS[from..to];
        let on_pages = |operation: &&Operation| operation.name.starts_with("p-");
        let others = || OPERATIONS.iter().filter(move |operation| !on_pages(operation));
        let one = |setup, operation| Workload { setup, operations: vec![operation], other_thread: false };
        match self {
            Group::Singles => others().map(|operation| one(&SETUPS[0], operation)).collect(),
            Group::Setups => setups(1, PAGES).iter().flat_map(|setup| others().map(move |op| one(setup, op))).collect(),
            Group::Pages => page_workloads(),
            Group::Pairs => pairs(false),
            Group::Threads => pairs(true),
        }
    }
}

fn pairs(other_thread: bool) -> Vec<Workload> {
    let paired = || OPERATIONS.iter().filter(|operation| operation.paired);
    let pair = |first, second| Workload { setup: &SETUPS[0], operations: vec![first, second], other_thread };
    let mut all: Vec<_> = paired().flat_map(|first| paired().map(move |second| pair(first, second))).collect();
    let detach = OPERATIONS.iter().filter(|operation| operation.act.is_none());
    all.extend(detach.filter(|_| !other_thread).flat_map(|detach| paired().map(move |first| pair(first, detach))));
    all
}

/// One operation on every directory with pages, and two where a compaction is due.
fn page_workloads() -> Vec<Workload> {
    let on_pages = || OPERATIONS.iter().filter(|operation| operation.name.starts_with("p-"));
    let mut all = Vec::new();
    for setup in &SETUPS[PAGES..] {
        all.extend(on_pages().map(|operation| Workload { setup, operations: vec![operation], other_thread: false }));
        let extra = OPERATIONS.iter().filter(|operation| ["recycle", "detach", "p-create"].contains(&operation.name));
        for second in extra {
            for other_thread in [false, true] {
                if !(other_thread && second.act.is_none()) {
                    all.extend(on_pages().map(|first| Workload {
                        setup,
                        operations: vec![first, second],
                        other_thread,
                    }));
                }
            }
        }
    }
    all
}
