//! A short part of what `torture races` runs for hours.

use std::time::Duration;
use torture::races::{Races, races};

/// A single test, because the racing threads need the processors for themselves.
#[test]
fn results_of_racing_threads_are_linearizable() {
    for (threads, seed) in [(2, 1), (4, 1_000_000)] {
        let plan = Races { duration: Duration::from_secs(60), histories_max: 6000, seed, threads };
        let outcome = races(&plan, &mut |_| {}).unwrap();
        assert!(outcome.violations.is_empty(), "{}", outcome.violations.join("\n"));
        assert!(outcome.images >= 1);
        // The amount of overlap depends on the machine.
        println!("seed {seed}: of {} histories {} had overlapping calls", outcome.histories, outcome.overlapping);
    }
}
