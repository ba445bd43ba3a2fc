//! Campaigns: exploration by several threads within a given time, and its results.

use crate::explore::{Counts, Effort, Explorer, Violation};
use crate::injected::DEFECTS;
use crate::recording::Source;
use crate::workload::{Group, Workload};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of violations kept.
const VIOLATIONS_MAX: usize = 200;

/// The parameters of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Maximum duration.
    pub duration: Duration,
    /// Random seed; each round adds one.
    pub seed: u64,
    /// Number of worker threads.
    pub threads: usize,
    /// Effort per workload.
    pub effort: Effort,
    /// How the events of workloads are seen.
    pub source: Source,
    /// Only the workloads of this group.
    pub group: Option<Group>,
    /// Index of the first workload; after the last one the round continues with those before it.
    pub first: usize,
}

/// The results of a group of workloads.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct GroupResult {
    /// What was explored.
    pub counts: Counts,
    /// Workloads with a violation.
    pub violations: u64,
    /// Time of all workers.
    pub seconds: f64,
}

/// The results of a campaign.
#[derive(Debug, Default)]
pub struct Outcome {
    /// By group.
    pub lines: BTreeMap<Group, GroupResult>,
    /// The violations, smallest workloads first.
    pub violations: Vec<Violation>,
    /// Rounds over all workloads; the last one may be incomplete.
    pub rounds: u64,
}

impl Outcome {
    /// The sum of all lines.
    pub fn total(&self) -> GroupResult {
        let mut total = GroupResult::default();
        for line in self.lines.values() {
            total.counts += line.counts;
            total.violations += line.violations;
            total.seconds += line.seconds;
        }
        total
    }

    /// A table for display.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:<20} {:>9} {:>9} {:>11} {:>14} {:>10} {:>9}",
            "", "workloads", "power cuts", "states", "in recovery", "violations", "time, s"
        );
        let total = self.total();
        let named = self.lines.iter().map(|(group, line)| (group.name(), line)).chain([("all", &total)]);
        for (name, line) in named {
            let Counts { workloads, fences, states, states_in_recovery, .. } = line.counts;
            let (violations, seconds) = (line.violations, line.seconds);
            let _ = writeln!(
                text,
                "{name:<20} {workloads:>9} {fences:>10} {states:>11} {states_in_recovery:>14} {violations:>10} {seconds:>9.1}"
            );
        }
        text
    }
}

/// The progress of a campaign.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// The current round, from one.
    pub round: u64,
    /// Workloads started in this round, and their total.
    pub workload: (usize, usize),
    /// States checked, including those in recovery.
    pub states: u64,
    /// Violations so far.
    pub violations: u64,
    /// A workload that is being explored.
    pub at: String,
}

struct Shared {
    workloads: Vec<(Group, Workload)>,
    next: AtomicUsize,
    states: AtomicU64,
    ended: AtomicBool,
    at: Mutex<String>,
    outcome: Mutex<Outcome>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All workloads that a source can see, or those of a group, smallest first.
pub fn workloads(source: Source, group: Option<Group>) -> Vec<(Group, Workload)> {
    let groups = Group::ALL.into_iter().filter(|each| group.is_none_or(|only| only == *each));
    let all = groups.flat_map(|group| group.workloads().into_iter().map(move |workload| (group, workload)));
    all.filter(|(_, workload)| source == Source::Recorder || !workload.other_thread).collect()
}

/// Explores until the time is up, and calls `report` a few times a second. `found` is called
/// immediately for each violation.
pub fn run(plan: &Plan, report: &mut dyn FnMut(&Progress), found: &(dyn Fn(&Violation) + Sync)) -> Outcome {
    let begun = Instant::now();
    let mut workloads = workloads(plan.source, plan.group);
    workloads.rotate_left(plan.first);
    let shared = Shared {
        workloads,
        next: AtomicUsize::new(0),
        states: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        at: Mutex::default(),
        outcome: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..plan.threads.max(1)).map(|_| scope.spawn(|| work(plan, begun, &shared, found))).collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
            report(&progress(&shared, begun));
        }
    });
    let mut outcome = shared.outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.rounds = (shared.next.load(Relaxed) / shared.workloads.len().max(1)) as u64 + 1;
    outcome
}

fn progress(shared: &Shared, begun: Instant) -> Progress {
    let (next, all) = (shared.next.load(Relaxed), shared.workloads.len());
    Progress {
        elapsed: begun.elapsed(),
        round: (next / all) as u64 + 1,
        workload: (next % all, all),
        states: shared.states.load(Relaxed),
        violations: locked(&shared.outcome).total().violations,
        at: locked(&shared.at).clone(),
    }
}

fn work(plan: &Plan, begun: Instant, shared: &Shared, found: &(dyn Fn(&Violation) + Sync)) {
    let mut explorer = Explorer::new(plan.effort, plan.seed).with_source(plan.source);
    while begun.elapsed() < plan.duration && !shared.ended.load(Relaxed) {
        let index = shared.next.fetch_add(1, Relaxed);
        let (group, workload) = &shared.workloads[index % shared.workloads.len()];
        *locked(&shared.at) = workload.to_string();
        explorer.seed = plan.seed + (index / shared.workloads.len()) as u64;
        explorer.counts = Counts::default();
        let start = Instant::now();
        let result = explorer.explore(workload);
        let counts = explorer.counts;
        shared.states.fetch_add(counts.states + counts.states_in_recovery, Relaxed);
        let mut outcome = locked(&shared.outcome);
        let line = outcome.lines.entry(*group).or_default();
        line.counts += counts;
        line.seconds += start.elapsed().as_secs_f64();
        if let Err(violation) = result {
            line.violations += 1;
            found(&violation);
            outcome.violations.push(violation);
            shared.ended.fetch_or(outcome.violations.len() >= VIOLATIONS_MAX, Relaxed);
        }
    }
}

/// Explores every injected defect; returns its name and the violation found, if there is one.
pub fn injected(source: Source, effort: Effort, seed: u64) -> Vec<(&'static str, Option<Violation>)> {
    let mut explorer = Explorer::new(effort, seed).with_source(source);
    let mut look = |defect: &'static crate::injected::Defect| {
        let workload = defect.workload.parse().expect("a defect's workload exists");
        let violation = explorer.explore_injected(&workload, Some(defect)).err();
        // Without a state, the defect could not be injected.
        (defect.name, violation.filter(|violation| violation.id.contains('@')))
    };
    DEFECTS.iter().filter(|defect| defect.is_visible(source)).map(&mut look).collect()
}
