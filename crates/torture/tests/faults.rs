//! Faults of the environment: an image without write permission, a clock that goes backwards, and
//! processes that start, exit and are killed concurrently.

use engine::{AttachOptions, Error};
use image::{Closed, Image, MakeOptions, OpenImage, make};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use torture::catalogue::{OPERATIONS, Operation, set_up};
use torture::dump::dump;
use torture::machine::{Clock, Machine};
use torture::test_thread::TestThread;

const IMAGE_BYTES: u64 = 1 << 20;

fn machine(clock: &'static Clock) -> Machine {
    Machine::new(IMAGE_BYTES, AttachOptions::default(), clock)
}

/// A prepared image, cleanly detached.
fn set_up_image(machine: &Machine) -> Vec<u8> {
    let (fs, _) = machine.attach().expect("a fresh image");
    set_up(&TestThread::new(&fs).expect("a slot")).expect("prepared");
    fs.detach_last().expect("left");
    machine.bytes()
}

fn operations() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().filter(|operation| operation.act.is_some() && !operation.name.starts_with("p-"))
}

/// Runs `work` in a child process without privileges; returns whether it returned true.
fn as_nobody(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses inherited state in its only thread, and exits without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: plain system calls of a single-threaded process. They fail only where the process
        // is already unprivileged.
        unsafe {
            libc::setgroups(0, std::ptr::null());
            libc::setresgid(65534, 65534, 65534);
            libc::setresuid(65534, 65534, 65534);
        }
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: exits this process immediately.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just forked.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status == 0
}

#[test]
fn an_image_that_may_only_be_read_serves_every_read_and_refuses_every_change() {
    use std::os::unix::fs::PermissionsExt;
    let machine = machine(Clock::leaked());
    let bytes = set_up_image(&machine);
    let expected = {
        let (fs, _) = machine.attach().expect("attaches");
        dump(&TestThread::new(&fs).expect("a slot")).expect("readable")
    };
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("permissions");
    let path = directory.path().join("image");
    std::fs::write(&path, &bytes).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).expect("permissions");
    let reads = || {
        assert!(std::fs::File::options().write(true).open(&path).is_err(), "this process may not write the image");
        let options = OpenImage { dram_directory: directory.path().to_owned(), ..OpenImage::default() };
        assert!(Image::open(&path, &options).is_err(), "nor attach it to write");
        let reading = OpenImage { read_only: true, recovery_threads: 1, ..options };
        let image = Image::open_with(&path, &reading, || Arc::clone(&machine.watch)).expect("attaches to read");
        {
            let thread = TestThread::new(image.fs()).expect("a slot");
            for operation in operations() {
                match operation.act.expect("an operation").run(&thread) {
                    Err(Error::ReadOnly) => {}
                    // Operations that change nothing, or that are refused anyway.
                    other => assert!(
                        ["recycle", "sync", "rename-to-its-link"].contains(&operation.name) || other.is_err(),
                        "{}: {other:?}",
                        operation.name
                    ),
                }
                let found = dump(&thread).expect("readable");
                assert!(found == expected, "after {}", operation.name);
            }
        }
        image.close().expect("left") == Closed::ReadOnly
    };
    assert!(as_nobody(reads));
    assert!(std::fs::read(&path).expect("read") == bytes, "no byte changed");
}

#[test]
fn a_clock_that_goes_backwards_or_is_far_off_loses_nothing() {
    let clock = Clock::leaked();
    let machine = machine(clock);
    let bytes = set_up_image(&machine);
    let day_ns = 86_400_000_000_000;
    let clocks = [
        ("backwards", 1_700_000_000_000_000_000, -1000),
        ("back by days", 1_700_000_000_000_000_000, -day_ns),
        ("standing", 1_700_000_000_000_000_000, 0),
        ("at the epoch", 0, 0),
        ("before 1970", -1_000_000_000_000_000_000, -1),
        ("in 2200", 7_258_118_400_000_000_000, 1),
        ("at its end", i64::MAX - 5000, 1),
        ("at its beginning", i64::MIN, 1),
    ];
    for (name, now_ns, tick_ns) in clocks {
        for operation in operations() {
            let act = operation.act.expect("an operation");
            machine.load(&bytes);
            clock.set(now_ns, tick_ns);
            let (fs, _) = machine.attach().expect("attaches");
            let thread = TestThread::new(&fs).expect("a slot");
            let result = act.run(&thread);
            clock.rewind();
            // A crash would lose lazily persisted changes.
            thread.thread.sync_all().expect("written back");
            let before = dump(&thread).expect("readable");
            drop(thread);
            drop(fs);
            // A crash loses the DRAM region. The clock jumps at the same time.
            let (fs, report) = machine.attach().expect("recovers");
            assert_eq!(report.damaged, 0, "{name}, {}", operation.name);
            let after = dump(&TestThread::new(&fs).expect("a slot")).expect("readable");
            let differs = |path: &&String| before.0.get(*path) != after.0.get(*path);
            let differing: Vec<_> = before.0.keys().chain(after.0.keys()).filter(differs).collect();
            assert!(differing.is_empty(), "{name}, {}: {differing:?} differ after a crash", operation.name);
            clock.set(now_ns, tick_ns);
            let again = act.run(&TestThread::new(&fs).expect("a slot"));
            assert!(result.is_ok() || again == result, "{name}, {}: {result:?}, then {again:?}", operation.name);
            fs.detach_last().expect("left");
            let report = machine.check(Some(true));
            let finding = report.findings.first();
            assert!(report.errors + report.warnings == 0, "{name}, {}: {finding:?}", operation.name);
        }
    }
}

// Processes that start and exit. Each visitor is this program again with its role in an environment
// variable.

const VISIT: &str = "TORTURE_VISIT";
const VISITED_BYTES: u64 = 8 << 20;
const VISITORS: usize = 5;
const ROUNDS: u64 = 30;
/// Maximum number of files that a visitor creates.
const FILES: u64 = 12;

/// A small deterministic generator (splitmix).
fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn options(path: &Path) -> OpenImage {
    let dram_directory = path.parent().expect("a directory").to_owned();
    OpenImage { dram_directory, recovery_threads: 1, timeout: Duration::from_secs(600), ..OpenImage::default() }
}

/// A visitor: attaches, creates files and reports them, removes some, and detaches or exits without
/// detaching.
#[test]
#[ignore = "run by the visitors of another test"]
fn visitor() {
    let Ok(result) = std::env::var(VISIT) else { return };
    let (path, seed) = result.rsplit_once(' ').expect("path and seed");
    let seed: u64 = seed.parse().expect("a seed");
    let path = Path::new(path);
    let machine = Machine::new(VISITED_BYTES, AttachOptions::default(), Clock::leaked());
    let image = Image::open_with(path, &options(path), || Arc::clone(&machine.watch)).expect("attaches");
    let report = |what: &str, name: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{what} {name}").and_then(|()| out.flush()).expect("the output is read");
    };
    {
        let thread = TestThread::new(image.fs()).expect("a slot");
        for index in 0..mix(seed) % FILES {
            let name = format!("/{seed}-{index}");
            thread.create_with(&name, 3000, seed).expect("creates");
            report("made", &name);
            match mix(seed + index) % 3 {
                0 => {
                    report("removes", &name);
                    thread.unlink(&name).expect("removes");
                }
                1 => {
                    report("removes", &name);
                    // A name that all visitors rename to.
                    thread.rename(&name, "/wanted").expect("renames");
                }
                _ => {}
            }
        }
        if mix(seed) % 4 == 1 {
            // SAFETY: exits this process immediately, without a detach.
            unsafe { libc::_exit(0) };
        }
    }
    image.close().expect("detaches");
}

fn come(path: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "visitor", "--ignored", "--nocapture"])
        .env(VISIT, format!("{} {seed}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// Reads a visitor's output, and kills it after `patience` lines. Returns the files that it created
/// and did not begin to remove, and whether it was killed.
fn attend(mut visitor: Child, limit: u64) -> (BTreeSet<String>, bool) {
    let mut made = BTreeSet::new();
    let mut killed = false;
    let out = visitor.stdout.take().expect("a pipe");
    for (count, line) in BufReader::new(out).lines().map_while(Result::ok).enumerate() {
        match line.split_once(' ') {
            Some(("made", name)) => drop(made.insert(name.to_owned())),
            Some(("removes", name)) => drop(made.remove(name)),
            _ => {}
        }
        if count as u64 == limit && !killed {
            killed = true;
            visitor.kill().expect("is ours to kill");
        }
    }
    let status = visitor.wait().expect("ends");
    assert!(killed || status.success(), "a visitor fails");
    (made, killed)
}

#[test]
fn processes_that_come_and_go_and_are_killed_at_once_leave_a_clean_image() {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let path = directory.path().join("image");
    make(&path, &MakeOptions { length: VISITED_BYTES, ..MakeOptions::default() }).expect("an image");
    let (mut made, mut kills) = (BTreeSet::new(), 0);
    for round in 0..ROUNDS {
        let ended = std::thread::scope(|scope| {
            let path = &path;
            let visits: Vec<_> = (0..VISITORS as u64)
                .map(|index| {
                    let seed = 1 + round * 100 + index;
                    // About half of them are killed.
                    scope.spawn(move || attend(come(path, seed), mix(seed ^ 77) % 60))
                })
                .collect();
            visits.into_iter().map(|visit| visit.join().expect("the visitor's thread ends")).collect::<Vec<_>>()
        });
        for (files, killed) in ended {
            made.extend(files);
            kills += usize::from(killed);
        }
    }
    println!("{} visitors, {kills} of them killed; {} files remain", ROUNDS as usize * VISITORS, made.len());
    assert!(kills > 3);
    let machine = Machine::new(VISITED_BYTES, AttachOptions::default(), Clock::leaked());
    let image = Image::open_with(&path, &options(&path), || Arc::clone(&machine.watch)).expect("attaches");
    {
        let thread = TestThread::new(image.fs()).expect("a slot");
        let tree = dump(&thread).expect("readable");
        let lost: Vec<_> = made.iter().filter(|name| !tree.0.contains_key(*name)).collect();
        assert!(lost.is_empty() && !made.is_empty(), "of {} files {lost:?} are lost", made.len());
    }
    assert_eq!(image.close().expect("detaches"), Closed::Last);
    let alone = image::ExclusiveImage::open(&path).expect("exclusive use");
    let mapping = alone.mapping();
    // SAFETY: the mapping outlives the region, and nothing else uses it.
    let region = unsafe { pmem::Region::new(mapping.address(), mapping.length(), pmem::Direct) };
    let report = fsck::check(&region, &fsck::Options::default(), &mut |_| {});
    let findings: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
    assert!(report.clean && report.errors + report.warnings == 0, "{findings:#?}");
}
