//! Random calls do what a small model of POSIX prescribes, with detaches and crashes between.

use torture::model::{Counts, World, run};

/// Total number of calls.
const CALLS: u64 = 100_000;
/// Calls drawn for a sequence: more than half of them have no object (a slot without an open file)
/// and are skipped.
const DRAWN: usize = 25_000;

#[test]
fn random_calls_agree_with_the_model() {
    let mut world = World::default();
    let mut total = Counts::default();
    for seed in 1.. {
        let counts = run(&mut world, seed, DRAWN).unwrap_or_else(|failure| panic!("{failure}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.crashes > 10 && counts.detaches > 10 && counts.refused > 1000, "{counts:?}");
        total += counts;
        if total.calls >= CALLS {
            break;
        }
    }
}
