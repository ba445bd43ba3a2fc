//! Processes and threads that come and go: none that lives is taken for dead, and no lock of a
//! living one is released. Real processes, threads and kernel locks.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::Scratch;
use image::{Image, OpenImage};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads of a process that enter at the same time.
const THREADS: usize = 4;
const ROUNDS: usize = 50;

/// Held by each test: the children of another one would inherit its descriptors, and with them the
/// locks.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a function in new threads of this process, all at the same time.
fn together<T: Send>(run: impl Fn() -> T + Sync) -> Vec<T> {
    let all = Barrier::new(THREADS);
    let (all, run) = (&all, &run);
    std::thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| {
            scope.spawn(move || {
                all.wait();
                run()
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The process numbers that threads get which enter an image at the same time.
fn numbers_of_threads(image: &Image) -> Vec<u32> {
    together(|| {
        let _inside = image.fs().enter().unwrap();
        image.fs().processes().process_number().unwrap()
    })
}

/// Starts a child with a copy of this memory, which ends without any cleanup.
fn fork(run: impl FnOnce()) -> i32 {
    // SAFETY: the child does not return into the test.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(failed.into()) };
    }
    child
}

/// Waits for a child, and returns its status.
fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process, and a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_process_whose_first_threads_enter_at_the_same_time_lives() {
    let _alone = alone();
    let scratch = Scratch::new();
    let judge = scratch.image.fs();
    judge.processes().process_number().unwrap();
    for round in 0..ROUNDS {
        // As another process would: with its own number and description.
        let image = Image::open(&scratch.path, &scratch.options).unwrap();
        let numbers = numbers_of_threads(&image);
        assert!(numbers.iter().all(|number| *number == numbers[0]), "round {round}: {numbers:?}");
        assert!(judge.processes().is_process_alive(numbers[0]), "round {round}");
        image.close().unwrap();
        assert!(!judge.processes().is_process_alive(numbers[0]), "round {round}: a description is left open");
    }
}

/// The threads of a child enter. It reports their numbers, and lives until `end` has a byte.
fn report_and_wait(image: &Image, mut report: PipeWriter, mut end: PipeReader) {
    for number in numbers_of_threads(image) {
        report.write_all(&number.to_ne_bytes()).unwrap();
    }
    end.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_child_whose_first_threads_enter_at_the_same_time_lives_with_a_number_of_its_own() {
    let _alone = alone();
    let scratch = Scratch::new();
    let judge = scratch.image.fs();
    let image = Image::open(&scratch.path, &scratch.options).unwrap();
    let own = image.fs().processes().process_number().unwrap();
    for round in 0..ROUNDS {
        let ((mut reports, report), (end, mut ending)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let child = fork(|| report_and_wait(&image, report.try_clone().unwrap(), end.try_clone().unwrap()));
        drop((report, end));
        let mut bytes = [0; 4 * THREADS];
        reports.read_exact(&mut bytes).unwrap();
        let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect::<Vec<_>>();
        assert!(numbers.iter().all(|number| *number == numbers[0] && *number != own), "round {round}: {numbers:?}");
        assert!(judge.processes().is_process_alive(numbers[0]), "round {round}");
        ending.write_all(&[1]).unwrap();
        assert_eq!(wait(child), 0);
        assert!(!judge.processes().is_process_alive(numbers[0]), "round {round}: the parent holds the child's lock");
    }
}

/// What all processes of a test see.
#[derive(Default)]
struct Meeting {
    /// The thread that holds the lock of commits.
    inside: AtomicU32,
    /// How often a second one got it.
    overlaps: AtomicU32,
    turns: AtomicU32,
}

impl Meeting {
    /// In memory that children share. It stays for the rest of the test.
    fn shared() -> &'static Meeting {
        const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const KIND: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Meeting>(), ACCESS, KIND, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        // SAFETY: zeroed, aligned to a page, large enough, never unmapped; atomics only.
        unsafe { &*page.cast::<Meeting>() }
    }

    /// Enters, takes the lock of commits for a moment, and leaves.
    fn take_turn(&self, image: &Image) {
        let thread = image.fs().enter().unwrap();
        let held = thread.lock_commits().unwrap();
        // SAFETY: asks only.
        let me = unsafe { libc::gettid() } as u32;
        if self.inside.swap(me, AcqRel) != 0 {
            self.overlaps.fetch_add(1, Relaxed);
        }
        std::thread::yield_now();
        if self.inside.compare_exchange(me, 0, AcqRel, Acquire).is_err() {
            self.overlaps.fetch_add(1, Relaxed);
        }
        self.turns.fetch_add(1, Relaxed);
        drop(held);
    }

    /// Ends the process while a thread of it holds the lock.
    fn die_with_lock(&self, image: &Image) {
        let thread = image.fs().enter().unwrap();
        let _held = thread.lock_commits().unwrap();
        // SAFETY: ends this process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

#[test]
fn one_thread_at_a_time_commits_while_processes_and_threads_come_and_go() {
    const CHILDREN: usize = 150;
    const AT_A_TIME: usize = 6;
    const TURNS: usize = 10;
    let _alone = alone();
    let scratch = Scratch::new();
    // Each opens the image for itself, one after another.
    let options = OpenImage { timeout: Duration::from_secs(600), ..scratch.options.clone() };
    let (image, meeting, stop) = (&scratch.image, Meeting::shared(), AtomicBool::new(false));
    let run = |number: usize| {
        let opened = number.is_multiple_of(2).then(|| Image::open(&scratch.path, &options).unwrap());
        let own = opened.as_ref().unwrap_or(image);
        together(|| (0..TURNS).for_each(|_| meeting.take_turn(own)));
        if number.is_multiple_of(3) {
            meeting.die_with_lock(own);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Acquire) {
                meeting.take_turn(image);
            }
        });
        let mut children = std::collections::VecDeque::new();
        for number in 0..CHILDREN {
            if children.len() == AT_A_TIME {
                check_end(children.pop_front());
            }
            children.push_back((number, fork(|| run(number))));
        }
        children.into_iter().for_each(|child| check_end(Some(child)));
        stop.store(true, Release);
    });
    assert_eq!(meeting.overlaps.load(Relaxed), 0);
    assert!(meeting.turns.load(Relaxed) as usize >= CHILDREN * THREADS * TURNS);
}

/// A child ended as it should: by its own signal, or without an error.
fn check_end(child: Option<(usize, i32)>) {
    let Some((number, child)) = child else { return };
    let status = wait(child);
    let expected = if number.is_multiple_of(3) { libc::SIGKILL } else { 0 };
    assert_eq!(status, expected, "child {number}");
}
