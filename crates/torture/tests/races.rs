//! A minute's part of what `torture races` does for hours.

use std::time::Duration;
use torture::races::{Races, races};

fn run(threads: usize, seed: u64) {
    println!("seed {seed}");
    let plan = Races { duration: Duration::from_secs(60), histories_max: 6000, seed, threads };
    let outcome = races(&plan, &mut |_| {}).unwrap();
    assert!(outcome.violations.is_empty(), "{}", outcome.violations.join("\n"));
    assert!(outcome.images >= 1 && outcome.overlapping > 0, "{outcome:?}");
}

#[test]
fn what_two_threads_are_told_has_an_order() {
    run(2, 1);
}

#[test]
fn what_four_threads_are_told_has_an_order() {
    run(4, 1_000_000);
}
