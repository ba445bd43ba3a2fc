//! Errors of the disk below an image, at each write and each flush of commits and checkpoints: a
//! sync reports them, reading goes on, the next sync works, and a power failure at any of these
//! moments costs nothing that was acknowledged. The same of a growth of the image in use.

#[path = "../../posix/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "another test uses the rest")]
#[path = "../../cli/tests/power/store.rs"]
mod store;

use common::{IMAGE_BYTES, ROOT, Session, options_in};
use image::{Closed, CommitPolicy, Image, MakeOptions, OpenImage, make};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use store::{Fault, Random, Store, enter_private_mounts};

const PIECE_BYTES: usize = 512;
const ERRORS: [i32; 2] = [libc::EIO, libc::ENOSPC];

/// An image on a disk that fails on request.
struct Disk {
    /// Unmounted before the directory is removed.
    store: Store,
    directory: tempfile::TempDir,
    path: PathBuf,
    options: OpenImage,
    random: Random,
}

impl Disk {
    /// `None`: the tests cannot mount here.
    fn new() -> Option<Disk> {
        let is_possible = enter_private_mounts();
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let (made, path) = (directory.path().join("made"), directory.path().join("image"));
        let store = is_possible.then(|| Store::serve(&path, 0, 2 * IMAGE_BYTES as usize)).flatten();
        let Some(store) = store else {
            eprintln!("\n*** SKIPPED: errors of disks: this needs root and FUSE ***\n");
            return None;
        };
        make(&made, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
        let mut file = File::options().write(true).open(&path).unwrap();
        std::io::copy(&mut File::open(&made).unwrap(), &mut file).unwrap();
        let options = OpenImage { commits: CommitPolicy::WhenSynced, ..options_in(&directory) };
        let disk = Disk { store, directory, path, options, random: Random(1) };
        assert!(disk.open().storage().is_disk());
        Some(disk)
    }

    fn open(&self) -> Image {
        Image::open(&self.path, &self.options).unwrap()
    }

    /// What a power failure would leave now.
    fn after_power_failure(&mut self) -> Image {
        let copy = self.directory.path().join("copy");
        let survivor = self.store.survivor(&mut self.random, PIECE_BYTES);
        let file = File::create(&copy).unwrap();
        file.set_len(survivor.len() as u64).unwrap();
        for (index, block) in survivor.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|&byte| byte != 0))
        {
            file.write_all_at(block, index as u64 * 4096).unwrap();
        }
        Image::open(&copy, &self.options).unwrap()
    }
}

fn in_root<T>(image: &Image, call: impl FnOnce(&Session<'_, '_>) -> T) -> T {
    let thread = image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    let result = call(&Session::new(&thread, root, ROOT));
    thread.release(root, 1);
    result
}

/// The content of a file follows from its number.
fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(number);
    (0..bytes / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

fn write(image: &Image, number: u64, bytes: usize) {
    in_root(image, |session| {
        let file = session.open(&format!("f{number}"), libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY).unwrap();
        assert_eq!(session.caller.data().write_at(&file, 0, &content(number, bytes)), Ok(bytes));
        session.caller.opens().close(&file);
    });
}

#[track_caller]
fn assert_holds(image: &Image, numbers: std::ops::RangeInclusive<u64>, bytes: usize) {
    in_root(image, |session| {
        for number in numbers {
            let file = session.open(&format!("f{number}"), libc::O_RDONLY).unwrap();
            let mut found = vec![0; bytes + 8];
            assert_eq!(session.caller.data().read(&file, &mut found), Ok(bytes), "f{number}");
            assert!(found.starts_with(&content(number, bytes)), "f{number} has other content");
            session.caller.opens().close(&file);
        }
    });
}

/// Fails a request of a sync, with the power going off after that, and tries again. Returns whether
/// the sync has such a request.
fn fail_a_request_of_a_sync(disk: &mut Disk, image: &Image, fault: Fault, (file, bytes): (u64, usize)) -> bool {
    write(image, file, bytes);
    disk.store.fail(fault);
    let synced = image.sync();
    if !disk.store.end_fault() {
        synced.unwrap();
        return false;
    }
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(fault.errno), "{fault:?}");
    let before = file.saturating_sub(2).max(1)..=file - 1;
    assert_holds(image, before.clone(), bytes);
    assert_holds(image, file..=file, bytes);
    assert_holds(&disk.after_power_failure(), before.clone(), bytes);
    image.sync().unwrap();
    assert_holds(&disk.after_power_failure(), *before.start()..=file, bytes);
    true
}

#[test]
fn each_error_of_a_commit_is_reported_and_hurts_nothing() {
    for errno in ERRORS {
        let Some(mut disk) = Disk::new() else { return };
        let image = disk.open();
        for number in [1, 2] {
            let fault = Fault { number, errno };
            assert!(fail_a_request_of_a_sync(&mut disk, &image, fault, (number, 20_000)), "one write, one flush");
        }
        assert!(!fail_a_request_of_a_sync(&mut disk, &image, Fault { number: 3, errno }, (3, 20_000)));
        assert_eq!(image.close().unwrap(), Closed::Last);
    }
}

/// The sync of a commit that is longer than the log, of 2 MiB, writes a checkpoint as well.
#[test]
fn each_error_of_a_checkpoint_is_reported_and_hurts_nothing() {
    const BYTES: usize = 2_200_000;
    for errno in ERRORS {
        let Some(mut disk) = Disk::new() else { return };
        let mut image = disk.open();
        // The service would write a checkpoint, too.
        let _paused = image.pause_services();
        let mut requests = 0;
        while fail_a_request_of_a_sync(&mut disk, &image, Fault { number: requests + 1, errno }, (requests + 1, BYTES))
        {
            requests += 1;
            in_root(&image, |session| session.unlink(&format!("f{}", requests.saturating_sub(2)))).ok();
        }
        assert!(requests >= 8, "chunks, flush, lines in their places, flush, header, flush");
    }
}

#[test]
fn each_error_of_a_close_is_reported_and_the_next_open_finds_everything() {
    const BYTES: usize = 3000;
    for errno in ERRORS {
        let Some(mut disk) = Disk::new() else { return };
        for number in 1.. {
            let image = disk.open();
            write(&image, 2 * number, BYTES);
            image.sync().unwrap();
            write(&image, 2 * number - 1, BYTES);
            disk.store.fail(Fault { number, errno });
            let closed = image.close();
            let was_hit = disk.store.end_fault();
            if !was_hit {
                assert_eq!(closed.unwrap(), Closed::Last);
                assert!(number > 6, "only {number} requests");
                break;
            }
            assert!(closed.is_err(), "request {number}");
            let after = disk.after_power_failure();
            assert_holds(&after, 1..=2 * number - 2, BYTES);
            assert_holds(&after, 2 * number..=2 * number, BYTES);
            drop(after);
            // Without a power failure, what was never synced is there, too.
            assert_holds(&disk.open(), 1..=2 * number, BYTES);
        }
    }
}

const GROWN_BYTES: u64 = IMAGE_BYTES + (8 << 20);

/// Makes an image larger, while a request of that number fails. Returns whether there is one.
fn fail_a_request_of_a_growth(disk: &mut Disk, fault: Fault) -> bool {
    const BYTES: usize = 20_000;
    const OLD_OR_NEW: [u64; 2] = [IMAGE_BYTES, GROWN_BYTES];
    let mut image = disk.open();
    // The service would complete the growth, too.
    let _paused = image.pause_services();
    write(&image, 1, BYTES);
    image.sync().unwrap();
    write(&image, 2, BYTES);
    disk.store.fail(fault);
    let grown = image.grow(GROWN_BYTES).map(|resized| resized.after_bytes);
    let was_hit = disk.store.end_fault();
    assert_eq!(grown.is_err(), was_hit, "{fault:?}: {grown:?}");
    assert_holds(&image, 1..=2, BYTES);
    let after = disk.after_power_failure();
    assert_holds(&after, 1..=1, BYTES);
    assert!(OLD_OR_NEW.contains(&after.length()), "{fault:?}: {}", after.length());
    drop(after);
    // What is synced afterwards is safe, whichever journal has it.
    write(&image, 3, BYTES);
    image.sync().unwrap();
    assert!(OLD_OR_NEW.contains(&image.length()), "{fault:?}: {}", image.length());
    let after = disk.after_power_failure();
    assert_holds(&after, 1..=3, BYTES);
    assert_eq!(after.length(), image.length(), "{fault:?}");
    drop(after);
    image.grow(GROWN_BYTES).unwrap();
    assert_eq!(disk.after_power_failure().length(), GROWN_BYTES, "{fault:?}: the growth itself is synced");
    // In some cases more than the old size holds.
    const LONG: usize = 2 << 20;
    let count = if fault.number % 8 == 1 { IMAGE_BYTES as usize / LONG } else { 0 };
    let files = 4..=4 + count as u64;
    for number in files.clone() {
        write(&image, number, LONG);
        image.sync().unwrap();
    }
    let after = disk.after_power_failure();
    assert_holds(&after, 1..=3, BYTES);
    assert_holds(&after, files, LONG);
    assert_eq!(after.length(), GROWN_BYTES);
    drop(after);
    assert_eq!(image.close().unwrap(), Closed::Last);
    was_hit
}

#[test]
fn each_error_of_a_growth_leaves_one_of_the_two_sizes_and_every_commit() {
    for number in 1.. {
        let Some(mut disk) = Disk::new() else { return };
        let errno = ERRORS[number as usize % 2];
        if !fail_a_request_of_a_growth(&mut disk, Fault { number, errno }) {
            assert!(number > 40, "commit, checkpoint, journal, map, copy, description: {number} requests");
            break;
        }
    }
}
