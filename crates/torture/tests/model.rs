//! Random calls do what a small model of POSIX says, with detaches and crashes between.

use torture::model::{World, run};

/// Calls of each sequence; a hundred thousand in all.
const CALLS: usize = 25_000;

#[test]
fn random_calls_do_what_the_model_says() {
    let mut world = World::default();
    for seed in 1..=4 {
        let counts = run(&mut world, seed, CALLS).unwrap_or_else(|failure| panic!("{failure}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.crashes > 10 && counts.detaches > 10 && counts.refused > 1000, "{counts:?}");
    }
}
