//! The systems survive power failures at every instant of every operation.

use lab::crash::{Effort, Promise, WORKLOADS, Watched, explore};
use lab::nova::Nova;
use lab::physical::PhysicalFs;
use lab::pmfs::Pmfs;

const IMAGE_BYTES: u64 = 2 << 20;

fn survives<P: PhysicalFs<Memory = Watched>>(promise: Promise) {
    // LAB_CRASH=full selects a longer exploration; a number is the seed.
    let effort = match std::env::var("LAB_CRASH").ok().as_deref() {
        Some("full") => Effort::FULL,
        Some(seed) => Effort { seed: seed.parse().expect("a number"), ..Effort::QUICK },
        None => Effort::QUICK,
    };
    let mut violations = Vec::new();
    let mut total = (0, 0, 0);
    for workload in WORKLOADS {
        match explore::<P>(workload, promise, effort, IMAGE_BYTES) {
            Ok(counts) => {
                total.0 += counts.fences;
                total.1 += counts.states;
                total.2 += counts.states_in_recovery;
            }
            Err(violation) => violations.push(violation.to_string()),
        }
    }
    println!("{}: {} fences, {} states, {} in recovery", P::NAME, total.0, total.1, total.2);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn nova_is_as_before_or_as_after_each_operation() {
    survives::<Nova<Watched>>(Promise { durable_on_return: true, atomic_data: true });
}

#[test]
fn pmfs_is_as_before_or_as_after_each_operation_but_for_data_in_place() {
    survives::<Pmfs<Watched>>(Promise { durable_on_return: true, atomic_data: false });
}
