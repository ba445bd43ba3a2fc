//! Snapshots and clones: each is a state of one moment, whole or absent, also of an image in use
//! and beside other snapshots.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::disk::{Disk, has, touch, with_root};
use common::{IMAGE_BYTES, Session, options_in};
use image::{Closed, CommitPolicy, Image, ImageError, MakeOptions, NewIdentity, OpenImage, make, snapshot};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Two numbers, in files at both ends of the used part of an image.
const NUMBERS: [&str; 2] = ["low", "high"];

fn write_number(session: &Session<'_, '_>, name: &str, number: u64) {
    let file = session.open(name, libc::O_WRONLY).unwrap();
    assert_eq!(session.caller.data().write_at(&file, 0, &number.to_le_bytes()).unwrap(), 8);
    session.caller.opens().close(&file);
}

fn numbers(image: &Image) -> [u64; 2] {
    with_root(image, |session| {
        NUMBERS.map(|name| {
            let (file, mut bytes) = (session.open(name, libc::O_RDONLY).unwrap(), [0; 8]);
            session.caller.data().read_at(&file, 0, &mut bytes).unwrap();
            session.caller.opens().close(&file);
            u64::from_le_bytes(bytes)
        })
    })
}

fn make_numbers(image: &Image) {
    with_root(image, |session| {
        for (name, length) in [(NUMBERS[0], 4096), ("between", 8 << 20), (NUMBERS[1], 4096)] {
            let file = session.open(name, libc::O_CREAT | libc::O_WRONLY).unwrap();
            assert_eq!(session.caller.data().write(&file, &vec![0; length]).unwrap(), length);
            session.caller.opens().close(&file);
        }
    });
}

/// Takes snapshots of an image while a thread creates names, one after the other, and counts in
/// both numbers, first in the one that is copied first.
fn take_snapshots(image: &Image, path: &Path, options: &OpenImage) {
    let target = path.with_file_name("snapshot");
    let (stop, created) = (AtomicBool::new(false), AtomicU64::new(0));
    make_numbers(image);
    std::thread::scope(|scope| {
        let (stop, created) = (&stop, &created);
        scope.spawn(move || {
            for number in 0..12_000 {
                touch(image, &format!("n{number}"));
                with_root(image, |session| NUMBERS.map(|name| write_number(session, name, number)));
                created.store(number + 1, Relaxed);
                if number % 16 == 0 {
                    image.sync().unwrap();
                }
                if stop.load(Relaxed) {
                    return;
                }
            }
        });
        for round in 0..5 {
            let before = created.load(Relaxed) as usize;
            let mut reports = 0;
            // While pieces are copied, the image changes.
            let mut watch = |_, _| {
                reports += 1;
                let seen = created.load(Relaxed);
                while created.load(Relaxed) < (seen + 100).min(12_000) {
                    std::thread::yield_now();
                }
                true
            };
            snapshot(path, &target, None, options, &mut watch).unwrap();
            assert!(reports > 1);
            {
                let copy = Image::open(&target, options).unwrap();
                let report = copy.report().unwrap();
                assert_eq!((report.damaged, report.flipped), (0, 0), "round {round}");
                let names = (0..).take_while(|number| has(&copy, &format!("n{number}"))).count();
                assert!(names >= before, "round {round}: {names} of {before}");
                let later = (names + 1..names + 200).find(|number| has(&copy, &format!("n{number}")));
                assert_eq!(later, None, "round {round}: a name without an earlier one");
                let [low, high] = numbers(&copy);
                assert!(high <= low && low <= high + 1, "round {round}: {high} was written after {low}");
                touch(&copy, "used");
            }
            fs::remove_file(&target).unwrap();
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn a_snapshot_of_an_image_in_use_is_a_state_of_one_moment() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    take_snapshots(&image, &disk.path, &disk.options);
    // Checkpoints go on afterwards.
    touch(&image, "after");
    assert_eq!(image.close().unwrap(), Closed::Last);
    assert!(has(&disk.open(), "after"));
}

#[test]
fn an_image_in_memory_is_copied_while_it_is_in_use() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("image");
    make(&path, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
    let options = options_in(&directory);
    let image = Image::open(&path, &options).unwrap();
    take_snapshots(&image, &path, &options);
    assert!(image.fs().pm().tracking().is_none(), "nothing is marked afterwards");
    drop(image);
    let target = directory.path().join("snapshot");
    snapshot(&path, &target, None, &options, &mut |_, _| true).unwrap();
    assert!(has(&Image::open(&target, &options).unwrap(), "n0"));
}

#[test]
fn a_snapshot_is_whole_or_absent() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "one");
    let target = disk.directory.path().join("snapshot");
    let count = || fs::read_dir(disk.directory.path()).unwrap().count();
    let before = count();
    let stopped = snapshot(&disk.path, &target, None, &disk.options, &mut |_, _| false).unwrap_err();
    assert!(matches!(stopped, ImageError::Stopped { .. }), "{stopped}");
    assert_eq!(count(), before, "nothing is left");
    fs::write(&target, "precious").unwrap();
    let refused = snapshot(&disk.path, &target, None, &disk.options, &mut |_, _| true).unwrap_err();
    assert!(refused.to_string().contains("exists"), "{refused}");
    assert_eq!(fs::read(&target).unwrap(), b"precious");
}

#[test]
fn a_clone_is_another_image() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let label = Some("the clone".to_owned());
    let identity = NewIdentity { label };
    let original = disk.open();
    touch(&original, "one");
    let target = disk.directory.path().join("clone");
    snapshot(&disk.path, &target, Some(&identity), &disk.options, &mut |_, _| true).unwrap();
    let clone = Image::open(&target, &disk.options).unwrap();
    assert!(has(&clone, "one"));
    touch(&clone, "in the clone");
    assert!(!has(&original, "in the clone"));
    let words = |image: &Image| {
        let superblock = image.fs().pm().first::<engine::format::Superblock>().unwrap();
        (superblock.uuid.each_ref().map(|word| word.load()), superblock.label[0].load().to_le_bytes())
    };
    assert_ne!(words(&original).0, words(&clone).0);
    assert_eq!(&words(&clone).1, b"the clon");
}

#[test]
fn a_snapshot_waits_for_another_one_unless_that_stands_still() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "before");
    for stands_still in [false, true] {
        let [first, second] =
            ["first", "second"].map(|name| disk.directory.path().join(format!("{name} {stands_still}")));
        let mut beside = None;
        let (sender, called) = std::sync::mpsc::channel();
        let mut sender = Some(sender);
        let taken = snapshot(&disk.path, &first, None, &disk.options, &mut |_, _| {
            let beside = beside.get_or_insert_with(|| {
                let (path, options, second) = (disk.path.clone(), disk.options.clone(), second.clone());
                let sender = sender.take().unwrap();
                let take = move || {
                    snapshot(&path, &second, None, &options, &mut |_, _| {
                        let _ = sender.send(());
                        true
                    })
                };
                Some(std::thread::spawn(take))
            });
            // While the second one waits it calls, again and again. If it ends it does not.
            let _ = called.recv();
            if stands_still && let Some(second) = beside.take() {
                let refused = second.join().unwrap().unwrap_err();
                assert!(matches!(refused, ImageError::CopyStopped { .. }), "{refused}");
            }
            true
        });
        taken.unwrap();
        if let Some(Some(second)) = beside {
            second.join().unwrap().unwrap();
        }
        for taken in [first, second].iter().take(if stands_still { 1 } else { 2 }) {
            assert!(has(&Image::open(taken, &disk.options).unwrap(), "before"));
        }
    }
}

#[test]
fn a_snapshot_that_stands_still_does_not_let_the_journal_grow_for_ever() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "before");
    let target = disk.directory.path().join("snapshot");
    let used = || image.commit_status().map(|status| (status.used_bytes, status.log_bytes)).unwrap();
    let mut was_full = false;
    let taken = snapshot(&disk.path, &target, None, &disk.options, &mut |_, _| {
        // As if it were stopped here, until programs have filled the log and emptied it.
        let end = Instant::now() + Duration::from_secs(600);
        while !was_full || used().0 > used().1 {
            assert!(Instant::now() < end, "the log grows");
            with_root(&image, |session| {
                let file = session.open("file", libc::O_CREAT | libc::O_WRONLY).unwrap();
                let bytes = vec![7; 64 << 10];
                assert_eq!(session.caller.data().write_at(&file, 0, &bytes), Ok(bytes.len()));
                session.caller.opens().close(&file);
            });
            image.sync().unwrap();
            was_full |= used().0 > used().1;
        }
        true
    });
    let refused = taken.unwrap_err();
    assert!(matches!(refused, ImageError::Overtaken { .. }), "{refused}");
    assert!(!target.exists());
    // The next one is taken as usual.
    snapshot(&disk.path, &target, None, &disk.options, &mut |_, _| true).unwrap();
    assert!(has(&Image::open(&target, &disk.options).unwrap(), "before"));
}
