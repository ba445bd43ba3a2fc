//! Power cuts in random runs.

use super::explore::{Effort, record};
use super::model::{Drawer, Operation};

/// Names and files to begin with, durable.
pub fn setup() -> Vec<Operation> {
    let path = |path: &str| path.as_bytes().to_vec();
    vec![
        Operation::Mkdir(path("/a")),
        Operation::Mkdir(path("/b")),
        Operation::Mkdir(path("/a/a")),
        Operation::Create(path("/a/b")),
        Operation::Write(path("/a/b"), 0, 6000, 0x11),
        Operation::Create(path("/c")),
        Operation::Write(path("/c"), 0, 700, 0x22),
        Operation::Link(path("/c"), path("/b/c")),
        Operation::Symlink(vec![b't'; 70], path("/d")),
    ]
}

/// How many runs; more by `SOUPFS_CRASH_RUNS`.
fn runs() -> u64 {
    std::env::var("SOUPFS_CRASH_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(60)
}

#[test]
fn any_crash_leaves_what_soft_updates_promise() {
    let effort = Effort { lines_max: 5, sample: 24, use_every: 6 };
    let mut states = 0;
    for seed in 0..runs() {
        let mut drawer = Drawer::new(0x50f5 ^ seed << 8);
        let length = 6 + drawer.random.below(18) as usize;
        let recording = record(&setup(), &mut |tree, index| match index {
            _ if index < length => Some(drawer.draw(tree)),
            _ if index == length => Some(Operation::Sync),
            _ => None,
        });
        match recording.explore(effort, seed) {
            Ok(count) => states += count,
            Err(violation) => {
                let operations: Vec<_> = recording.operations.iter().map(short).collect();
                panic!("seed {seed}: {violation:?}\n{}", operations.join("\n"));
            }
        }
    }
    println!("{} runs, {states} states", runs());
}

fn short(operation: &Operation) -> String {
    format!("{operation:?}").replace("108, ", "").replace("109, ", "")
}
