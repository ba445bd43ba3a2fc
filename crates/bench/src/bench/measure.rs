//! Time measurement: the clock and its cost, samples of single calls, and their distribution.
//!
//! A phase is a run of calls. Its cost per call is the time of the whole phase divided by the
//! number of calls. Only one call in [`EVERY`] is also timed by itself, for the distribution, so
//! that reading the clock does not dominate the measurement. The cost of the readings is measured
//! when a worker starts, and subtracted from both.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// One call in this many is timed by itself. It is a prime, to avoid synchronising with periodic
/// work of a file system.
pub const EVERY: u32 = 5;
/// Latencies above this are not distinguished.
const LONGEST_NS: u64 = 100_000_000_000;
/// Readings for measuring the timer's cost.
const READINGS: usize = 4001;

/// The monotonic clock, which all threads and processes share.
#[inline]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer for the result; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The time between two consecutive readings: the median of many.
pub fn timer_ns() -> u64 {
    let mut pairs: Vec<u64> = (0..READINGS)
        .map(|_| {
            let started = now_ns();
            now_ns() - started
        })
        .collect();
    pairs.sort_unstable();
    pairs[READINGS / 2]
}

/// Times the calls of a phase, one in [`EVERY`] of them by itself.
pub struct Stopwatch {
    timer_ns: u64,
    until_timed: u32,
    latencies: Latencies,
}

impl Stopwatch {
    /// For a clock with this cost.
    pub fn new(timer_ns: u64) -> Stopwatch {
        Stopwatch { timer_ns, until_timed: EVERY, latencies: Latencies::default() }
    }

    /// Makes a call.
    #[inline]
    pub fn call<R>(&mut self, call: impl FnOnce() -> R) -> R {
        self.until_timed -= 1;
        if self.until_timed > 0 {
            return call();
        }
        self.until_timed = EVERY;
        self.timed(call)
    }

    /// Makes a call and times it.
    #[inline]
    pub fn timed<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let started = now_ns();
        let result = call();
        self.latencies.add((now_ns() - started).saturating_sub(self.timer_ns));
        result
    }

    /// The total cost of reading the clock so far.
    pub fn overhead_ns(&self) -> u64 {
        self.latencies.count() * self.timer_ns
    }

    /// The distribution.
    pub fn finish(self) -> Latencies {
        self.latencies
    }
}

/// A distribution of latencies. It is serialised as the list of its values with their counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", from = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds"))
    }
}

impl Latencies {
    fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Adds another distribution.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// The latency that this share of the calls does not exceed; none unless at least two calls lie
    /// beyond it.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let beyond = self.count() as f64 * (1.0 - share);
        (beyond >= 2.0).then(|| self.0.value_at_quantile(share))
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Vec<(u64, u64)> {
        latencies.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(pairs: Vec<(u64, u64)>) -> Latencies {
        let mut latencies = Latencies::default();
        for (value, count) in pairs {
            latencies.0.saturating_record_n(value, count);
        }
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_five_is_timed_and_all_are_made() {
        let mut watch = Stopwatch::new(0);
        let mut made = 0;
        (0..1000).for_each(|_| watch.call(|| made += 1));
        assert_eq!((made, watch.finish().count()), (1000, 200));
    }

    #[test]
    fn a_distribution_survives_its_way_between_processes() {
        let mut latencies = Latencies::default();
        (1..=10_000).for_each(|ns| latencies.add(ns));
        let text = serde_json::to_string(&latencies).unwrap();
        let mut back: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(back.count(), 10_000);
        for share in [0.5, 0.99, 0.999] {
            assert_eq!(back.quantile(share), latencies.quantile(share));
        }
        back.merge(&latencies);
        assert_eq!(back.count(), 20_000);
    }

    #[test]
    fn a_quantile_needs_enough_calls() {
        let mut latencies = Latencies::default();
        (0..100).for_each(|_| latencies.add(200));
        assert!(latencies.quantile(0.5).is_some() && latencies.quantile(0.999).is_none());
    }
}
