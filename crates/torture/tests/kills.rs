//! A kill storm on the library for a few seconds. (`torture --only kills` also storms mounts and
//! `directfs run`, for any duration.)

use std::time::Duration;
use torture::storm::{AccessMethod, Plan, run, take_part};

/// Run by the storm's crew and workers, which are this program again.
#[test]
#[ignore = "run by the processes of a storm"]
fn inside() {
    take_part();
}

#[test]
fn completed_calls_of_killed_processes_are_kept() {
    let plan = Plan {
        duration: Duration::ZERO,
        rounds_min: 2,
        kills: 60,
        seed: 1,
        workers: 4,
        access_methods: vec![AccessMethod::Library],
        directfs: None,
        arguments: "--exact inside --ignored --nocapture".to_owned(),
    };
    let outcome = run(&plan, &mut |_| {}, &|_| {}).expect("a storm");
    println!("seed {}: {:?}", plan.seed, outcome.lines);
    assert_eq!(outcome.violations, [""; 0]);
    assert!(outcome.total().kills >= 120);
}
