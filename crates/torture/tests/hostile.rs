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
            std::thread::sleep(Duration::from_secs(1200));
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

/// Seeds and cases of images that a check had called sound, and that were damaged after use.
const DAMAGED_ONCE: &[(u64, u64)] = &[
    (77, 19213),
    (77, 21060),
    (78, 59377),
    (79, 10560),
    (80, 41766),
    (1000, 348_700),
    (2000, 339_092),
    (3000, 835_293),
];

#[test]
fn images_that_use_damaged_before_stay_sound_or_are_found() {
    let mut arena = Arena::default();
    DAMAGED_ONCE.iter().for_each(|(seed, index)| arena.run(&case(*seed, *index)));
}
