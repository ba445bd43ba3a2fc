//! A kill storm over the library, for seconds. (`torture --only kills` storms mounts and `directfs run`, too, and as long as one likes.)

use std::time::Duration;
use torture::storm::{Front, Plan, run, take_part};

/// What the storm's crew and workers run: this program once more.
#[test]
#[ignore = "what those inside a storm run"]
fn inside() {
    take_part();
}

#[test]
fn of_processes_that_are_killed_in_the_middle_of_calls_nothing_that_had_returned_is_lost() {
    let plan = Plan {
        duration: Duration::ZERO,
        rounds_min: 2,
        kills: 60,
        seed: 1,
        workers: 4,
        fronts: vec![Front::Library],
        directfs: None,
        arguments: "--exact inside --ignored --nocapture".to_owned(),
    };
    let outcome = run(&plan, &mut |_| {}, &|_| {}).expect("a storm");
    println!("seed {}: {:?}", plan.seed, outcome.lines);
    assert_eq!(outcome.violations, [""; 0]);
    assert!(outcome.total().kills >= 120);
}
