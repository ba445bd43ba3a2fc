//! Times of rounds, and what is said of them.

use serde::Serialize;

/// Nanoseconds per call, one figure for each round.
#[derive(Debug, Clone, Default)]
pub struct Rounds {
    ns: Vec<f64>,
}

/// What is said of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The median.
    pub median_ns: f64,
    /// The best round.
    pub min_ns: f64,
    /// The worst round.
    pub max_ns: f64,
}

impl Rounds {
    /// Adds a round.
    pub fn add(&mut self, ns: f64) {
        self.ns.push(ns);
    }

    /// The summary, if there was a round.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.ns.clone();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median_ns =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Summary { median_ns, min_ns: first, max_ns: last })
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
}
