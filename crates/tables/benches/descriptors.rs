//! Benchmark of the process layer, in nanoseconds:
//! `cargo bench -p directfs-tables --bench descriptors`. One compare-and-swap, timed in the
//! same run, is the lower bound; compare ratios.

use engine::format::FileKind;
use image::{Image, MakeOptions, OpenImage, make};
use posix::OpenFile;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tables::process::{Fork, LockKind, LockRange, Processes};

/// Calls per timed batch, and number of batches.
const CALLS: u32 = 1000;
const ROUNDS: usize = 301;

/// Median time of one call.
fn median(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / CALLS as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("shared memory");
    let path = directory.path().join("image");
    make(&path, &MakeOptions { length: 32 << 20, ..MakeOptions::default() }).expect("an image");
    let options = OpenImage { dram_directory: directory.path().to_owned(), ..OpenImage::default() };
    let image = Image::open(&path, &options).expect("opens");
    measure(&image);
}

fn measure(image: &Image) {
    let thread = image.fs().enter().expect("a slot");
    let all = Processes::new(image.fs()).expect("tables");
    let process = all.register(&thread, 0).expect("a slot");
    let root = thread.root().expect("a root");
    let open = || {
        thread.retain(root).expect("a root");
        OpenFile::new(root, FileKind::Directory, libc::O_RDONLY)
    };
    let word = AtomicU32::new(0);
    let floor = median(|| _ = black_box(&word).compare_exchange(0, 0, Ordering::AcqRel, Ordering::Relaxed));
    let show = |what: &str, time: f64| println!("{what:<58} {time:8.1} {:8.1} x", time / floor);
    show("compare-and-swap", floor);
    process.install(&thread, 3, &open(), false).expect("installs");
    process.install(&thread, 900, &open(), false).expect("installs");
    show(
        "look up and use, one thread",
        median(|| _ = black_box(process.file(&thread, black_box(3)).map(|file| file.flags()))),
    );
    show(
        "the same, descriptor 900",
        median(|| _ = black_box(process.file(&thread, black_box(900)).map(|file| file.flags()))),
    );
    show("not of this file system", median(|| assert!(process.file(&thread, black_box(5)).is_none())));
    let duplicated = median(|| {
        process.duplicate(&thread, 3, 7, false).expect("duplicates");
        process.remove(&thread, 7);
    });
    show("duplicate and close", duplicated);
    let installed = median(|| {
        process.install(&thread, 7, &open(), false).expect("installs");
        process.remove(&thread, 7);
    });
    show("open and close (of a file that is open elsewhere)", installed);
    thread.release(root, 1);
    let (range, kind) = (LockRange::ALL, Some(LockKind::Exclusive));
    let locked = median(|| {
        let _ = process.lock_range(&thread, 3, range, kind, false, false);
        let _ = process.lock_range(&thread, 3, range, None, false, false);
    });
    show("lock a range and unlock it", locked);
    for fd in 10..26 {
        process.duplicate(&thread, 3, fd, false).expect("duplicates");
    }
    let forked = median(|| {
        let child = process.prepare_fork(&thread, Fork::default()).expect("prepares");
        process.cancel_fork(&thread, child);
    });
    show("a child with 18 descriptors, made and reaped", forked);
    process.set_threads();
    show(
        "look up and use, several threads",
        median(|| _ = black_box(process.file(&thread, black_box(3)).map(|file| file.flags()))),
    );
    process.close_range(&thread, 0, u32::MAX, false).expect("closes");
    process.exit(&thread);
}
