//! Threads under a scheduler that decides every step, in pairs of conflicting operations. The
//! results and the final tree must be those of some order of the operations. That order must
//! respect which of them had ended before another began. Then the image is left, and checked.
//!
//! Schedules are drawn at random, and by PCT (few switches, at random places). `SCHEDULES=n` draws
//! n of each, `SCHEDULES_ONLY=name` selects one contest, `SCHEDULES_SEED=n` sets the seed. A
//! failing schedule is printed; `SCHEDULES_REPLAY` replays it, with `SCHEDULES_ONLY`, and with
//! `SCHEDULES_SHARED=1` if the directories were shared.
//!
//! The scheduler knows one order of all accesses: weaker memory orders are not tried here.

mod contests;
mod operations;

use crate::attach::AttachOptions;
use crate::error::Result;
use crate::format::FileKind;
use crate::fs::{Fs, Node, Thread};
use crate::reap_tests::{check_cachelets, room};
use crate::testing::schedule::{self, On, Race, Scheduled};
use crate::testing::{Memory, PLATFORM, new_image};
use crate::{RenameFlags, ValidationStamp};
use contests::{CONTESTS, a_log_with_a_hole};
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use operations::{compact, directory, rename, summary, unlink};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// A thread, and directories that it need not look up: a path walk consists of several operations.
struct ScheduledThread<'f> {
    thread: Thread<'f, Scheduled>,
    held: &'f BTreeMap<String, Node>,
    /// The stamps of a path to a directory that it has used before.
    stamps: Cell<Option<[ValidationStamp; 2]>>,
}

impl<'f> core::ops::Deref for ScheduledThread<'f> {
    type Target = Thread<'f, Scheduled>;
    fn deref(&self) -> &Thread<'f, Scheduled> {
        &self.thread
    }
}

/// The next operation of a thread. Returns a description of the result.
type Operation = fn(&ScheduledThread<'_>) -> String;

/// Threads with conflicting operations.
struct Contest {
    name: &'static str,
    /// Preparation, by another thread.
    prepare: fn(&ScheduledThread<'_>) -> Result<()>,
    /// Directories that are open meanwhile.
    held: &'static [&'static str],
    threads: &'static [&'static [Operation]],
}

/// Outcome of a contest: the results of the operations of each thread, and the final tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    results: Vec<Vec<String>>,
    tree: BTreeMap<String, String>,
}

/// Begin and end of each operation.
type CallTimes = Vec<Vec<(u64, u64)>>;

const IMAGE_BYTES: u64 = 1 << 20;

/// An image with its memories, attached.
struct World {
    image: Memory,
    fs: Option<Fs<Scheduled>>,
    _dram: Memory,
}

impl World {
    fn new(bytes: &[u8]) -> World {
        let image = Memory::new(IMAGE_BYTES);
        let _ = image.region().write_bytes(0, bytes).expect("the same length");
        let options = AttachOptions::default();
        let dram = Memory::new(Fs::dram_layout(&image.region(), &options).expect("a layout").length);
        let recovery =
            Fs::attach_first(image.region_in(Scheduled), dram.region(), &PLATFORM, crate::Liveness::alone(), &options)
                .expect("attaches");
        let fs = recovery.finish().expect("ready").0;
        World { image, fs: Some(fs), _dram: dram }
    }

    fn fs(&self) -> &Fs<Scheduled> {
        self.fs.as_ref().expect("attached")
    }

    fn thread<'f>(&'f self, held: &'f BTreeMap<String, Node>) -> ScheduledThread<'f> {
        ScheduledThread { thread: self.fs().enter().expect("a slot"), held, stamps: Cell::new(None) }
    }

    /// Prepares a contest; returns the directories that are held for it.
    fn prepare(&self, contest: &Contest) -> BTreeMap<String, Node> {
        let nothing = BTreeMap::new();
        let thread = self.thread(&nothing);
        (contest.prepare)(&thread).expect("prepared");
        thread.recycler().drain().expect("drains");
        contest.held.iter().map(|path| (path.to_string(), directory(&thread, path).expect("a directory"))).collect()
    }

    fn tree(&self) -> BTreeMap<String, String> {
        let (mut tree, nothing) = (BTreeMap::new(), BTreeMap::new());
        let thread = self.thread(&nothing);
        let root = thread.root().expect("a root");
        dump(&thread, root, String::new(), &mut tree);
        thread.release(root, 1);
        tree
    }

    /// Releases the held directories, detaches, and checks everything. Returns the tree.
    fn end(mut self, held: BTreeMap<String, Node>) -> BTreeMap<String, String> {
        let fs = self.fs();
        {
            let thread = fs.enter().expect("a slot");
            held.values().for_each(|node| thread.release(*node, 1));
        }
        let tree = self.tree();
        for index in 0..fs.header().expect("a header").slots_high.load(Relaxed) as u32 {
            let idle = fs.enter_slot(index).expect("a slot").expect("the slot is free");
            idle.recycler().drain().expect("drains");
        }
        check_cachelets(fs);
        crate::mindex::check_names(fs);
        let lived = room(fs);
        self.fs.take().expect("attached").detach_last().expect("leaves");
        let report = fsck::check(&self.image.region(), &fsck::Options::default(), &mut |_| {});
        let findings: String = report.findings.iter().map(|finding| format!("\n{finding}")).collect();
        assert!(report.clean && report.errors + report.warnings == 0, "{findings}");
        let again = World::new(&self.image.bytes());
        assert_eq!(room(again.fs()).1, lived.1, "inodes in use");
        assert_eq!(again.tree(), tree, "after the next attach");
        tree
    }
}

fn dump(thread: &ScheduledThread<'_>, node: Node, path: String, tree: &mut BTreeMap<String, String>) {
    let stat = thread.stat(node).expect("stats");
    let content = match stat.kind {
        FileKind::Regular => {
            let mut bytes = std::vec![0; stat.size_bytes as usize];
            let count = thread.files().read(node, 0, &mut bytes).expect("reads");
            assert_eq!(count as u64, stat.size_bytes);
            summary(&bytes)
        }
        _ => String::new(),
    };
    tree.insert(path.clone(), format!("{:?} {} {content}", stat.kind, stat.links));
    if stat.kind != FileKind::Directory {
        return;
    }
    let mut names = Vec::new();
    thread
        .read_directory(node, 0, &mut Default::default(), &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .expect("lists");
    thread.check_totals(node, names.len() as u64);
    for name in names {
        let child = thread.lookup(node, &name).expect("finds what it lists");
        let below = format!("{path}/{}", String::from_utf8_lossy(&name));
        assert!(!tree.contains_key(&below), "{below} is listed twice");
        dump(thread, child, below, tree);
        thread.release(child, 1);
    }
}

/// All interleavings of the operations that keep each thread's order, as sequences of thread
/// indexes.
fn orders(left: &mut [usize], order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if left.iter().all(|count| *count == 0) {
        all.push(order.clone());
    }
    for thread in 0..left.len() {
        if left[thread] > 0 {
            left[thread] -= 1;
            order.push(thread);
            orders(left, order, all);
            order.pop();
            left[thread] += 1;
        }
    }
}

/// The outcome of the operations in this serial order.
fn one_after_the_other(contest: &Contest, bytes: &[u8], order: &[usize]) -> Outcome {
    let world = World::new(bytes);
    let held = world.prepare(contest);
    let mut results: Vec<Vec<String>> = contest.threads.iter().map(|_| Vec::new()).collect();
    {
        let hands: Vec<_> = contest.threads.iter().map(|_| world.thread(&held)).collect();
        for thread in order {
            let operation = contest.threads[*thread][results[*thread].len()];
            results[*thread].push(operation(&hands[*thread]));
        }
    }
    Outcome { results, tree: world.end(held) }
}

/// Whether an order contradicts the known begins and ends.
fn contradicts(order: &[usize], times: &CallTimes) -> bool {
    let mut next: Vec<usize> = times.iter().map(|_| 0).collect();
    let mut latest_begin = 0;
    order.iter().any(|thread| {
        let (begin, end) = times[*thread][next[*thread]];
        next[*thread] += 1;
        // An operation that comes before it in this order began only after its end.
        let late = latest_begin > end;
        latest_begin = latest_begin.max(begin);
        late
    })
}

/// Runs a contest once, under the scheduler.
fn at_once(contest: &'static Contest, bytes: &[u8], race: Option<Race>, shared: bool) -> (Outcome, CallTimes) {
    let world = World::new(bytes);
    let held = world.prepare(contest);
    if shared {
        let thread = world.thread(&held);
        held.values().for_each(|node| thread.share(*node));
    }
    let clock = Cell::new(0);
    let results: Mutex<Vec<_>> = Mutex::new(contest.threads.iter().map(|_| Vec::new()).collect());
    {
        let _on = On::new(race);
        let (world, held, results, clock) = (&world, &held, &results, Alone(&clock));
        shuttle::thread::scope(|scope| {
            for (thread, operations) in contest.threads.iter().enumerate() {
                scope.spawn(move || {
                    let hand = world.thread(held);
                    for operation in *operations {
                        let begin = clock.tick();
                        let told = operation(&hand);
                        results.lock().expect("no panic")[thread].push((told, (begin, clock.tick())));
                    }
                });
            }
        });
    }
    let (told, times) =
        results.into_inner().expect("no panic").into_iter().map(|each| each.into_iter().unzip()).unzip();
    (Outcome { results: told, tree: world.end(held) }, times)
}

/// A counter of the threads of a schedule, which are coroutines of one thread.
#[derive(Clone, Copy)]
struct Alone<'c>(&'c Cell<u64>);
// SAFETY: all users are coroutines of one thread, which do not switch within its methods.
unsafe impl Send for Alone<'_> {}

impl Alone<'_> {
    fn tick(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(contest: &'static Contest, schedules: usize, race: Option<Race>) -> usize {
    // An earlier schedule that failed never switched scheduling off.
    schedule::switch_off();
    let bytes = Arc::new(new_image(IMAGE_BYTES, 0).bytes());
    let mut all = Vec::new();
    orders(&mut contest.threads.iter().map(|each| each.len()).collect::<Vec<_>>(), &mut Vec::new(), &mut all);
    let serial: Arc<Vec<_>> =
        Arc::new(all.into_iter().map(|order| (one_after_the_other(contest, &bytes, &order), order)).collect());
    // In directories that are shared from the start, and in others.
    let body = |shared| {
        let (bytes, serial) = (Arc::clone(&bytes), Arc::clone(&serial));
        move || {
            let (outcome, times) = at_once(contest, &bytes, race, shared);
            let explained = serial.iter().any(|(expected, order)| *expected == outcome && !contradicts(order, &times));
            assert!(explained, "{}, shared {shared}: no order gives {outcome:#?} {times:?}", contest.name);
        }
    };
    if let Some(shared) = number("SCHEDULES_SHARED") {
        return explore(schedules, body(shared != 0));
    }
    let count = schedules.div_ceil(2);
    explore(count, body(false)) + explore(count, body(true))
}

/// Runs `body` in `schedules` schedules of each kind; returns the number of runs.
fn explore(schedules: usize, body: impl Fn() + Clone + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(2_000_000);
    config.silence_warnings = true;
    let run_with = |scheduler: Box<dyn Scheduler + Send>| Runner::new(scheduler, config.clone()).run(body.clone());
    if let Ok(schedule) = std::env::var("SCHEDULES_REPLAY") {
        return run_with(Box::new(ReplayScheduler::new_from_encoded(&schedule)));
    }
    let seed = number("SCHEDULES_SEED").unwrap_or(1);
    run_with(Box::new(RandomScheduler::new_from_seed(seed, schedules)))
        + run_with(Box::new(PctScheduler::new_from_seed(seed, 3, schedules)))
}

/// Removes a name from a directory while another thread compacts the log, and cuts the power right
/// after. The directory must have the time of the removal.
fn cut_after_a_removal(bytes: &[u8], remove: fn(&ScheduledThread<'_>) -> Result<()>) {
    let world = World::new(bytes);
    let nothing = BTreeMap::new();
    {
        let thread = world.thread(&nothing);
        a_log_with_a_hole(&thread).expect("prepared");
        thread.recycler().drain().expect("drains");
    }
    let cut = Mutex::new(None);
    {
        let _on = On::new(None);
        let (world, nothing, cut) = (&world, &nothing, &cut);
        shuttle::thread::scope(|scope| {
            scope.spawn(move || compact(&world.thread(nothing), "/d").expect("compacts"));
            scope.spawn(move || {
                let thread = world.thread(nothing);
                let directory = directory(&thread, "/d").expect("a directory");
                remove(&thread).expect("removes");
                let modified_ns = thread.stat(directory).expect("stats").modified_ns;
                *cut.lock().expect("no panic") = Some((world.image.bytes(), modified_ns));
                thread.release(directory, 1);
            });
        });
    }
    let (left, modified_ns) = cut.into_inner().expect("no panic").expect("the removal was done");
    let after = World::new(&left);
    let thread = after.thread(&nothing);
    let directory = directory(&thread, "/d").expect("a directory");
    assert_eq!(thread.stat(directory).expect("stats").modified_ns, modified_ns);
}

#[test]
fn a_removal_during_a_compaction_is_in_its_directorys_times_after_a_crash() {
    if std::env::var("SCHEDULES_ONLY").is_ok() {
        std::eprintln!("skipped: SCHEDULES_ONLY selects a contest, to which the schedule to replay belongs");
        return;
    }
    schedule::switch_off();
    let bytes = Arc::new(new_image(IMAGE_BYTES, 0).bytes());
    let removals: [fn(&ScheduledThread<'_>) -> Result<()>; 2] =
        [|thread| unlink(thread, "/d/1"), |thread| rename(thread, "/d/1", "/elsewhere", RenameFlags::default())];
    for remove in removals {
        let bytes = Arc::clone(&bytes);
        explore(number("SCHEDULES").unwrap_or(300) as usize, move || cut_after_a_removal(&bytes, remove));
    }
}

#[test]
fn results_are_linearizable_in_every_schedule() {
    let schedules = number("SCHEDULES").unwrap_or(50) as usize;
    let only = std::env::var("SCHEDULES_ONLY").ok();
    let mut failed = Vec::new();
    for contest in CONTESTS.iter().filter(|contest| only.as_ref().is_none_or(|only| only == contest.name)) {
        let begun = std::time::Instant::now();
        match std::panic::catch_unwind(|| run(contest, schedules, None)) {
            Ok(count) => std::eprintln!("{}: {count} schedules in {:?}", contest.name, begun.elapsed()),
            Err(_) => failed.push(contest.name.to_string()),
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn an_injected_race_is_found() {
    for (race, name) in [(Race::TornExchange, "create-create"), (Race::HiddenPins, "compaction-append")] {
        let contest = CONTESTS.iter().find(|contest| contest.name == name).expect("a contest");
        let Err(cause) = std::panic::catch_unwind(|| run(contest, 2000, Some(race))) else {
            panic!("{race:?} is not found");
        };
        let what = match cause.downcast_ref::<&str>() {
            Some(text) => text.to_string(),
            None => cause.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        assert!(!what.contains("ExecutionState"), "{what}");
        std::eprintln!("found {race:?}: {what}");
    }
}
