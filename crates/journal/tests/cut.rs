//! Commits of a file system in use: what a power failure leaves after any commit is an image that
//! recovers, in which fsck finds nothing, and which holds every call that returned before it.

#[path = "../../engine/tests/support/mod.rs"]
mod support;

use journal::{CHUNK_BYTES_MAX, Disk, DiskError, Journal};
use pmem::{Direct, Mapping, Region, Sleeping, Tracking};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use support::{Image, PLATFORM, new_file};

const IMAGE_BYTES: u64 = 64 << 20;
const LOG_BYTES: u64 = 4 << 20;
const UUID: [u8; 16] = *b"test image uuid.";
const WORKERS: usize = 3;
static SLEEPING: Sleeping = Sleeping {
    wait: |_, _, ms| std::thread::sleep(std::time::Duration::from_millis(ms.into())),
    wake: |_| {},
    now_ns: || 0,
};

/// A disk in memory that loses nothing: the crash states of the disk are explored elsewhere.
struct MemoryDisk(Mutex<Vec<u8>>);

impl Disk for MemoryDisk {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        let bytes = self.0.lock().expect("no panic");
        let start = (offset as usize).min(bytes.len());
        let length = into.len().min(bytes.len() - start);
        into[..length].copy_from_slice(&bytes[start..start + length]);
        Ok(length)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut content = self.0.lock().expect("no panic");
        let end = offset as usize + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

fn tracked(mapping: &Arc<Mapping>, area: &Arc<Mapping>) -> Region<Direct> {
    // SAFETY: both mappings live until the end of the test; the area is zero and long enough.
    unsafe {
        let tracking = Tracking::new(NonNull::new(area.address()).expect("mapped"), IMAGE_BYTES, &SLEEPING);
        Region::new(mapping.address(), IMAGE_BYTES, Direct).without_flushes().tracked(tracking).expect("fits")
    }
}

/// Numbered files come and go in the directory of a worker. `done`: the calls that returned.
fn work(thread: &engine::Thread<'_>, directory: engine::Node, done: &AtomicU64, stop: &AtomicBool) {
    for number in 1.. {
        if stop.load(Acquire) {
            return;
        }
        let name = number.to_string();
        let file = with_space(|| thread.create(directory, name.as_bytes(), &new_file()));
        with_space(|| thread.files().write(file, 0, name.repeat(1 + number as usize % 900).as_bytes()));
        thread.release(file, 1);
        if number > 20 {
            let old = (number - 20u64).to_string();
            thread.unlink(directory, old.as_bytes(), |_| Ok(())).expect("removes");
        }
        done.fetch_max(number, AcqRel);
    }
}

/// What was removed becomes free when no thread can see it any more, and on a busy machine a thread
/// may get no processor for a while.
fn with_space<T>(mut call: impl FnMut() -> engine::Result<T>) -> T {
    loop {
        match call() {
            Err(engine::Error::NoSpace) => std::thread::yield_now(),
            result => return result.expect("works"),
        }
    }
}

/// Recovers a copy of what the disk holds, checks it, and returns for each worker the highest of
/// the numbers that a file has.
fn highest_after_power_failure(disk: &MemoryDisk, numbers: &[RangeInclusive<u64>; WORKERS]) -> [Option<u64>; WORKERS] {
    let copy = MemoryDisk(Mutex::new(disk.0.lock().expect("no panic").clone()));
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    let (journal, state) = Journal::open(&copy, UUID, IMAGE_BYTES).expect("opens");
    journal.recover(&Cell::new(state), &mut buffer).expect("recovers");
    let image = Image { mapping: Arc::new(Mapping::anonymous(IMAGE_BYTES).expect("memory")) };
    let region = image.region(Direct);
    let bytes = copy.0.lock().expect("no panic");
    let _ = region.stream_bytes(0, &bytes[..IMAGE_BYTES as usize]).expect("inside");
    let attached = image.attach();
    let highest = {
        let thread = attached.enter();
        let root = thread.root().expect("root");
        core::array::from_fn(|worker| {
            let directory = thread.lookup(root, format!("w{worker}").as_bytes()).expect("finds the directory");
            let highest = numbers[worker].clone().rev().find(|number| {
                let file = thread.lookup(directory, number.to_string().as_bytes());
                file.inspect(|&file| thread.release(file, 1)).is_ok()
            });
            thread.release(directory, 1);
            highest
        })
    };
    attached.detach();
    let report = fsck::check(&image.region(Direct), &fsck::Options::default(), &mut |_| {});
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    highest
}

#[test]
fn every_commit_of_a_file_system_in_use_is_a_crash_state() {
    let image = Image::new(IMAGE_BYTES);
    let area = Arc::new(Mapping::anonymous(Tracking::area_bytes(IMAGE_BYTES)).expect("memory"));
    let mut base = vec![0; IMAGE_BYTES as usize];
    image.region(Direct).read_bytes(0, &mut base).expect("inside");
    let disk = MemoryDisk(Mutex::new(base));
    let (journal, state) = Journal::create(&disk, UUID, IMAGE_BYTES, LOG_BYTES).expect("creates");
    let state = Cell::new(state);
    let region = tracked(&image.mapping, &area);
    let options = engine::AttachOptions::default();
    let layout = engine::Fs::<Direct>::dram_layout(&region, &options).expect("an image");
    let dram = Arc::new(Mapping::anonymous(layout.length).expect("memory"));
    // SAFETY: the mapping lives until the end of the test.
    let dram_region = unsafe { Region::new(dram.address(), dram.length(), Direct) };
    let recovery = engine::Fs::attach_first(
        tracked(&image.mapping, &area),
        dram_region,
        &PLATFORM,
        engine::Liveness::alone(),
        &options,
    )
    .expect("attaches");
    recovery.work().expect("recovers");
    let (fs, _) = recovery.finish().expect("finishes");
    let (done, stop): ([AtomicU64; WORKERS], _) = (Default::default(), AtomicBool::new(false));
    let directories = {
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("root");
        let node = engine::NewNode { kind: engine::format::FileKind::Directory, permissions: 0o755, ..new_file() };
        [0, 1, 2].map(|worker| thread.create(root, format!("w{worker}").as_bytes(), &node).expect("makes"))
    };
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    journal.commit(&state, &region, &mut buffer).expect("commits");
    let mut lines = 0;
    std::thread::scope(|scope| {
        for (directory, done) in directories.into_iter().zip(&done) {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || work(&fs.enter().expect("enters"), directory, done, stop));
        }
        for round in 0..12 {
            let before = done.each_ref().map(|done| done.load(Relaxed));
            lines += journal.commit(&state, &region, &mut buffer).expect("commits").lines;
            // A worker makes the next file before it counts it.
            let numbers = core::array::from_fn(|worker| before[worker]..=done[worker].load(Relaxed) + 1);
            let found = highest_after_power_failure(&disk, &numbers);
            let lost = before.iter().zip(&found).any(|(&before, found)| before > 0 && found.is_none());
            if lost {
                stop.store(true, Relaxed);
            }
            assert!(!lost, "round {round}: returned before the commit {before:?}, found {found:?}");
            if state.get().used_bytes > LOG_BYTES / 2 {
                journal.checkpoint(&state, &mut buffer).expect("writes");
            }
        }
        stop.store(true, Relaxed);
    });
    assert!(lines > 1000, "the workers hardly ran: {lines} lines");
}
