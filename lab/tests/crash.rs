//! The systems survive power failures at every instant of every operation.

use lab::crash::{Effort, Promise, WORKLOADS, Watched, Workload, explore};
use lab::nova::Nova;
use lab::physical::PhysicalFs;
use lab::pmfs::Pmfs;
use lab::squirrelfs::SquirrelFs;

const IMAGE_BYTES: u64 = 2 << 20;

fn survives<P: PhysicalFs<Memory = Watched>>(promise: Promise) {
    survives_all_but::<P>(promise, &|_| false);
}

fn survives_all_but<P: PhysicalFs<Memory = Watched>>(promise: Promise, is_refused: &dyn Fn(&Workload) -> bool) {
    // LAB_CRASH=full selects a longer exploration; a number is the seed.
    let effort = match std::env::var("LAB_CRASH").ok().as_deref() {
        Some("full") => Effort::FULL,
        Some(seed) => Effort { seed: seed.parse().expect("a number"), ..Effort::QUICK },
        None => Effort::QUICK,
    };
    let mut violations = Vec::new();
    let mut total = (0, 0, 0);
    for workload in WORKLOADS.iter().filter(|workload| !is_refused(workload)) {
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
    survives::<Nova<Watched>>(Promise { durable_on_return: true, atomic_data: true, atomic_times: true });
}

#[test]
fn pmfs_is_as_before_or_as_after_each_operation_but_for_data_in_place() {
    survives::<Pmfs<Watched>>(Promise { durable_on_return: true, atomic_data: false, atomic_times: true });
}

/// Soft updates keep no old values: a call's times are durable before its other effects. Exchanges
/// and names of more than 110 bytes are refused, as published.
#[test]
fn squirrelfs_is_as_before_or_as_after_each_operation_but_for_times_and_data_in_place() {
    let promise = Promise { durable_on_return: true, atomic_data: false, atomic_times: false };
    survives_all_but::<SquirrelFs<Watched>>(promise, &|workload| workload.needs_long_names() || workload.exchanges());
}
