//! A kill storm over the library, for a second or two. (`torture --only kills` storms mounts and `directfs run`, too.)

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
        round: Duration::from_millis(1500),
        seed: 1,
        workers: 4,
        fronts: vec![Front::Library],
        directfs: None,
        arguments: "--exact inside --ignored --nocapture".to_owned(),
    };
    let lines = run(&plan, &mut |_, _| {}).expect("no violation");
    println!("seed {}: {lines:?}", plan.seed);
    assert!(lines[0].1.kills > 4 && lines[0].1.calls > 10);
}
