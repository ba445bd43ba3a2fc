//! Images with changed words and matching checksums: there is no panic and no hang, and an image
//! that a repair made sound is readable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use torture::hostile::{Arena, case};

const SEED: u64 = 11;
const CASES: u64 = 400;

/// Ends the process with the number of the case if one hangs.
fn watch(at: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        loop {
            let before = at.load(Relaxed);
            std::thread::sleep(Duration::from_secs(300));
            if at.load(Relaxed) == before {
                eprintln!("case {before} of seed {SEED} hangs");
                std::process::abort();
            }
        }
    });
}

#[test]
fn hostile_images_end_in_errors_and_never_in_a_panic() {
    let at = Arc::new(AtomicU64::new(0));
    watch(Arc::clone(&at));
    let mut arena = Arena::default();
    for index in 0..CASES {
        at.store(index, Relaxed);
        let data = case(SEED, index);
        let run = std::panic::AssertUnwindSafe(|| arena.run(&data));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("case {index} of seed {SEED}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{:?}", arena.counts);
    assert!(arena.counts.attached > CASES / 3 && arena.counts.mended > 0);
}
