//! Reruns the saved fuzzing inputs (`fuzz/corpus`): inputs with unique coverage, and all that ever
//! failed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use torture::hostile::Arena;
use torture::model::{World, decode};

/// The inputs of a fuzz target, sorted by name.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus")).join(target);
    let entries = fs::read_dir(&directory).expect("a corpus").map(|entry| entry.expect("an entry").path());
    let mut inputs: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).expect("an input"))).collect();
    inputs.sort();
    inputs
}

/// Runs every input; a hang ends the process with the input's name.
fn run(target: &str, mut each: impl FnMut(&[u8])) {
    let inputs = corpus(target);
    assert!(inputs.len() > 50, "{} inputs", inputs.len());
    let at = Arc::new(AtomicUsize::new(0));
    let (names, seen) = (inputs.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(), Arc::clone(&at));
    std::thread::spawn(move || {
        loop {
            let before = seen.load(Relaxed);
            std::thread::sleep(Duration::from_secs(1200));
            if before < names.len() && seen.load(Relaxed) == before {
                eprintln!("{} hangs", names[before].display());
                std::process::abort();
            }
        }
    });
    for (index, (path, data)) in inputs.iter().enumerate() {
        at.store(index, Relaxed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| each(data))) {
            eprintln!("{}", path.display());
            std::panic::resume_unwind(panic);
        }
    }
    at.store(inputs.len(), Relaxed);
}

#[test]
fn hostile_images_that_fuzzing_found_end_in_errors() {
    let mut arena = Arena::default();
    run("hostile", |data| arena.run(data));
    println!("{:?}", arena.counts);
}

#[test]
fn calls_found_by_fuzzing_agree_with_the_model() {
    let mut world = World::default();
    run("calls", |data| {
        let ops = decode(data);
        if let Err((at, what)) = world.run(&ops) {
            panic!("{:?}\n{what}", &ops[..=at.min(ops.len() - 1)]);
        }
    });
}
