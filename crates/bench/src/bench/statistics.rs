//! Statistics of repeats.

use super::measure::Latencies;
use super::task::{Outcome, PhaseName};
use serde::Serialize;

/// One figure for each repeat.
#[derive(Debug, Clone, Default)]
pub struct Rounds {
    values: Vec<f64>,
}

/// Their summary.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The median.
    pub median_ns: f64,
    /// The best one.
    pub min_ns: f64,
    /// The worst one.
    pub max_ns: f64,
}

impl Rounds {
    /// Adds one.
    pub fn add(&mut self, ns: f64) {
        self.values.push(ns);
    }

    /// The summary; none without figures.
    pub fn summary(&self) -> Option<Summary> {
        let [min_ns, median_ns, max_ns] = spread(&self.values)?;
        Some(Summary { median_ns, min_ns, max_ns })
    }
}

/// Minimum, median and maximum of some values.
pub fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some([first, median, last])
}

/// The repeats of one phase on one file system.
#[derive(Debug, Clone)]
pub struct Repeats {
    /// The phase.
    pub what: PhaseName,
    rounds: Rounds,
    latencies: Latencies,
    batch: u64,
    members: u32,
    user: Rounds,
    system: Rounds,
    requests: Rounds,
    refused: Option<String>,
}

/// The repeats of a task's phases on one file system.
#[derive(Debug, Default)]
pub struct TaskRepeats {
    phases: Vec<Repeats>,
    left_out: Option<String>,
}

impl TaskRepeats {
    /// Adds a repeat of all phases.
    pub fn add(&mut self, outcomes: &[Outcome]) {
        if self.phases.is_empty() {
            self.phases = outcomes.iter().map(|outcome| Repeats::new(outcome.what.clone())).collect();
        }
        self.phases.iter_mut().zip(outcomes).for_each(|(repeats, outcome)| repeats.add(outcome));
    }

    /// Records why there are no more repeats.
    pub fn leave_out(&mut self, reason: String) {
        self.left_out = Some(reason);
    }

    /// The phases.
    pub fn phases(&self) -> &[Repeats] {
        &self.phases
    }

    /// The reason for fewer repeats than elsewhere, or none.
    pub fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }
}

/// The statistics of a phase on one file system.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Nanoseconds per call (of a mix: per operation; of bandwidth: per byte) as one member sees
    /// it: whole phases, divided by their calls.
    #[serde(flatten)]
    pub time: Summary,
    /// The distribution of single calls; of batches where calls are too short for the clock.
    pub latency: Option<Latency>,
    /// Calls (operations, bytes) per second of all members.
    pub per_second: f64,
    /// For a program: its processor time outside the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_ns: Option<f64>,
    /// For a program: its processor time in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_ns: Option<f64>,
    /// For a mount: requests to the server, for each file of the tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_file: Option<f64>,
}

/// Quantiles; none if too few calls were timed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// Half of the calls took at most this long.
    pub p50_ns: Option<f64>,
    /// 99 of 100.
    pub p99_ns: Option<f64>,
    /// 999 of 1000.
    pub p999_ns: Option<f64>,
    /// Number of timed samples.
    pub timed: u64,
    /// Calls that were timed together, each counted as their mean: 1 unless a call is too short for
    /// the clock.
    pub batch: u64,
}

impl Repeats {
    /// No repeats of this phase yet.
    pub fn new(what: PhaseName) -> Repeats {
        let (rounds, latencies, user) = (Rounds::default(), Latencies::default(), Rounds::default());
        let (system, requests) = (Rounds::default(), Rounds::default());
        Repeats { what, rounds, latencies, batch: 1, members: 1, user, system, requests, refused: None }
    }

    /// Adds one.
    pub fn add(&mut self, outcome: &Outcome) {
        self.batch = outcome.batch;
        self.members = outcome.members;
        self.latencies.merge(&outcome.latencies);
        if let Some(refused) = &outcome.refused {
            self.refused = Some(refused.clone());
        } else if outcome.calls > 0 {
            self.rounds.add(outcome.elapsed_ns * outcome.members as f64 / outcome.calls as f64);
        }
        if let Some(ns) = outcome.user_ns {
            self.user.add(ns);
        }
        if let Some(ns) = outcome.system_ns {
            self.system.add(ns);
        }
        if let Some(requests) = outcome.requests {
            self.requests.add(requests);
        }
    }

    /// The statistics.
    pub fn figure(&self) -> Option<Figure> {
        let time = self.rounds.summary()?;
        let quantile = |share| self.latencies.quantile(share).map(|ns| ns as f64 / self.batch as f64);
        let latency = (self.latencies.count() > 0).then(|| Latency {
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            timed: self.latencies.count(),
            batch: self.batch,
        });
        let per_second = 1e9 * self.members as f64 / time.median_ns;
        let median = |rounds: &Rounds| rounds.summary().map(|summary| summary.median_ns);
        let (user_ns, system_ns) = (median(&self.user), median(&self.system));
        Some(Figure { time, latency, per_second, user_ns, system_ns, requests_per_file: median(&self.requests) })
    }

    /// The reason why there is no figure.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.summary(), None);
        [9.0, 1.0, 5.0].into_iter().for_each(|ns| rounds.add(ns));
        assert_eq!(rounds.summary(), Some(Summary { median_ns: 5.0, min_ns: 1.0, max_ns: 9.0 }));
        rounds.add(7.0);
        assert_eq!(rounds.summary().map(|summary| summary.median_ns), Some(6.0));
    }

    #[test]
    fn time_is_as_a_member_sees_it_and_the_rate_is_that_of_all() {
        let mut repeats = Repeats::new(PhaseName::Each("x".into()));
        repeats.add(&Outcome {
            what: PhaseName::Each("x".into()),
            calls: 2000,
            elapsed_ns: 1e6,
            members: 2,
            latencies: Latencies::default(),
            batch: 1,
            user_ns: None,
            system_ns: None,
            requests: None,
            refused: None,
        });
        let figure = repeats.figure().unwrap();
        assert_eq!((figure.time.median_ns, figure.per_second), (1000.0, 2e6));
        assert!(figure.latency.is_none());
    }
}
