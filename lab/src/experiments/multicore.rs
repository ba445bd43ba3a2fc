//! DirectFS Fig. 3 and Fig. 7 on up to 64 processors, in the model of [`crate::multicore`].
//!
//! One thread per processor opens a session, and each records its own calls in turn, alone. So
//! shared and private locks, lists and lines have the same or different addresses, as in a real
//! run. The measured time of one processor determines the time of an instruction; all results for
//! two and more processors are the model's.

use super::findings::{Claim, Findings, Measure, Plot, Sense, Series, Unit};
use super::loops::shuffled;
use super::machine::{Plan, Result, Subject, machine_for};
use super::threads::{Site, ThreadGroup, ThreadOperation, files, path};
use super::{Bench, Experiment, Failure, MEMORIES, Size};
use crate::calls::Calls;
use crate::multicore::calibrate::{self, Content, Distance};
use crate::multicore::coherence::{Costs, Outcome, PROCESSORS_MAX, Program, replay};
use crate::multicore::events::{Code, Event, EventKind, LockMode, bring_own, events, keep_shared};
use crate::multicore::named_memory::{NamedMemory, describe};
use crate::multicore::record::record;
use crate::virtual_time::held::HeldTime;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

const SUBJECTS: [Subject; 3] = [Subject::Nova, Subject::ByVfs, Subject::DirectFs];
const PROCESSORS: [usize; 10] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64];
/// The processor count of the papers' machines, at which claims are judged.
const JUDGED: usize = 24;
/// In recording order: each leaves the files that the next one needs.
const RECORDED: [ThreadOperation; 5] = [
    ThreadOperation::StatCold,
    ThreadOperation::Stat,
    ThreadOperation::Rename,
    ThreadOperation::Remove,
    ThreadOperation::Create,
];
const SHOWN: [ThreadOperation; 6] = [
    ThreadOperation::Create,
    ThreadOperation::Stat,
    ThreadOperation::StatCold,
    ThreadOperation::Remove,
    ThreadOperation::Rename,
    ThreadOperation::StatRenaming,
];
/// Printed where a claim does not hold.
const BOTTLENECKS: &str = "The notes name the words whose lines the processors wait for.";
const DIRECTORY_WORDS: &str = "Threads that meet in a directory pass on changes of its count of names 32 at a time, and claim 16 slots of its log at a time; then the line with both moves to their processor. Other lines that move have the epochs of reclamation, and buckets of names with neighbouring hashes. The notes give the resulting call rates next to NOVA's.";
/// Calls that append to the directory's log, which a lock would affect.
const LOCKED: [ThreadOperation; 2] = [ThreadOperation::Create, ThreadOperation::Rename];
/// Name of the word from which slots of a directory's log are claimed.
const LOG_TAIL: &str = "tail of the log";
/// More instructions than any call has that does not build an index or rewrite a directory's log.
const STEPS_MAX: usize = 60_000;
/// Minimum speedup per processor that counts as scaling, and maximum that counts as not scaling.
const SCALES: f64 = 1.0 / 2.0;
const STOPS: f64 = 1.0 / 6.0;
/// Maximum difference between model and measurement that counts as agreement, in per cent.
const AGREES: f64 = 15.0;
/// Maximum ratio of two transfer times that counts as unchanged.
const STEADY: f64 = 1.3;

fn processors(size: Size) -> usize {
    size.pick(4, 8, PROCESSORS_MAX as u64) as usize
}

/// Recorded calls of each kind per thread: more than one, so that the private lines of a call
/// differ from those of its thread.
fn calls_recorded(size: Size) -> u64 {
    size.pick(2, 2, 4)
}

/// Calls of a processor in a replay.
fn calls_replayed(size: Size) -> f64 {
    size.pick(20, 40, 400) as f64
}

/// An order to a thread.
#[derive(Clone, Copy)]
struct Order {
    deed: ThreadOperation,
    /// The file's number.
    file: u64,
    recorded: bool,
}

fn act(calls: &dyn Calls, operation: ThreadOperation, one: &[u8], two: &[u8]) -> posix::Result<()> {
    match operation {
        ThreadOperation::Create => calls.create(one, 0o644),
        ThreadOperation::Stat | ThreadOperation::StatCold | ThreadOperation::StatRenaming => calls.stat(one).map(drop),
        // Removes the renamed file.
        ThreadOperation::Remove => calls.unlink(two),
        ThreadOperation::Rename => calls.rename(one, two, 0),
    }
}

/// A thread's recorded events; none if it was not asked to record, or if the call is too long.
type Answer = Option<Vec<Event>>;

/// A thread's loop: executes orders, and answers with the recorded events.
fn serve(calls: &dyn Calls, orders: &Receiver<Order>, answers: &Sender<Result<Answer>>) -> Result<()> {
    let mut code = Code::new()?;
    for Order { deed: operation, file, recorded } in orders {
        let (one, two) = (path('a', file), path('b', file));
        let mut answer = || {
            if !recorded {
                act(calls, operation, &one, &two)?;
                return Ok(None);
            }
            let (steps, done) = record(STEPS_MAX, || act(calls, operation, &one, &two))?;
            done?;
            Ok(steps.map(|steps| events(&steps, &mut code)).transpose()?)
        };
        // Without a receiver the experiment is ending.
        let _ = answers.send(answer());
    }
    Ok(())
}

/// The programs of all threads by operation, and the memory areas.
struct Recording {
    programs: HashMap<ThreadOperation, Vec<Program>>,
    named_memory: Vec<NamedMemory>,
}

fn record_all(bench: &Bench<'_>, subject: Subject) -> Result<Recording> {
    let (threads, calls) = (processors(bench.size), calls_recorded(bench.size));
    let count = threads as u64 * calls;
    let mut machine = machine_for(subject, Plan::of_files(files_needed(bench.size)), threads)?;
    machine.with(&mut |with| {
        with.mkdir(b"/shared", 0o755)?;
        (0..FILES_BESIDE).try_for_each(|file| with.create(&path('c', file), 0o644))?;
        Ok((0..count).try_for_each(|file| with.create(&path('a', file), 0o644))?)
    })?;
    machine.remount(MEMORIES[0])?;
    let machine = &*machine;
    let mut programs = HashMap::new();
    std::thread::scope(|scope| -> Result<()> {
        let (answer, answers) = channel();
        let mut orders = Vec::new();
        for _ in 0..threads {
            let (order, received) = channel();
            let answer = answer.clone();
            scope.spawn(move || {
                let served = machine.with(&mut |calls| serve(calls, &received, &answer));
                if let Err(failure) = served {
                    let _ = answer.send(Err(failure));
                }
            });
            orders.push(order);
        }
        let result = |thread: usize, order: Order| -> Result<Answer> {
            let lost = || Failure::Call(posix::Errno::EIO);
            orders[thread].send(order).map_err(|_| lost())?;
            answers.recv().map_err(|_| lost())?
        };
        let _held = HeldTime::new();
        warm_up(threads, count, &result)?;
        for operation in RECORDED {
            let mut of_threads = vec![Program::new(); threads];
            // Threads take turns, as calls of running threads interleave: their appends alternate.
            for call in 0..calls {
                for (thread, program) in of_threads.iter_mut().enumerate() {
                    let what = format!("{}, {}, call {} of {calls}", subject.name(), operation.name(), call + 1);
                    bench.step(&format!("{what}, thread {} of {threads}", thread + 1))?;
                    program.extend(result(
                        thread,
                        Order { deed: operation, file: thread as u64 * calls + call, recorded: true },
                    )?);
                }
            }
            if of_threads.iter().any(Program::is_empty) {
                let what = format!("all calls of {} take more than {STEPS_MAX} instructions", operation.name());
                return Err(std::io::Error::other(what).into());
            }
            programs.insert(operation, of_threads);
        }
        Ok(())
    })?;
    programs.values_mut().for_each(|programs| bring_own(programs));
    let stats = programs[&ThreadOperation::Stat].iter().skip(1).cloned();
    let beside_a_rename = programs[&ThreadOperation::Rename].iter().take(1).cloned().chain(stats).collect();
    programs.insert(ThreadOperation::StatRenaming, beside_a_rename);
    programs.values_mut().for_each(|programs| keep_shared(programs));
    Ok(Recording { programs, named_memory: machine.named_memory() })
}

/// Files that the directory has beside those of the threads, so that its log is not rewritten while
/// calls are recorded: after that all threads would claim places in it again.
const FILES_BESIDE: u64 = 5000;

/// Files that the images have room for. The warm-up makes and removes some, whose space a system
/// may not reuse.
fn files_needed(size: Size) -> u64 {
    processors(size) as u64 * (calls_recorded(size) * 4 + 4 * TURNS as u64) + 4000 + FILES_BESIDE
}

/// Turns of the warm-up, of which each thread takes at least the second number.
const TURNS: usize = 128;
const TURNS_MIN: usize = 67;

/// Lets each thread create, rename and remove a different number of names, so that events that
/// occur only every n-th call fall on different threads. All of them take turns in the end, call by
/// call, so what a system does for threads that meet has started, and each recycles.
fn warm_up(threads: usize, first: u64, result: &dyn Fn(usize, Order) -> Result<Answer>) -> Result<()> {
    for turn in 0..TURNS {
        for operation in [ThreadOperation::Create, ThreadOperation::Rename, ThreadOperation::Remove] {
            for thread in (0..threads).filter(|thread| turn + TURNS_MIN + thread * 7 % (TURNS - TURNS_MIN) >= TURNS) {
                result(thread, Order { deed: operation, file: first + thread as u64, recorded: false })?;
            }
        }
    }
    Ok(())
}

/// Measures one and two real threads. Adds the distance between processors in each round to
/// `distances`.
fn measure(
    bench: &Bench<'_>,
    subject: Subject,
    distances: &mut Vec<Distance>,
) -> Result<HashMap<ThreadOperation, Round>> {
    let count = files(bench.size);
    let named = |letter| (0..count).map(|index| path(letter, index)).collect::<Vec<_>>();
    let (one, two, order) = (named('a'), named('b'), shuffled(count));
    let mut site = Site::new(subject, count)?;
    let mut measured = HashMap::new();
    for operation in RECORDED {
        bench.step(&format!("{}, {}, one and two threads measured", subject.name(), operation.name()))?;
        let mut rate = |threads| {
            let crowd = ThreadGroup { deed: operation, threads, one: &one, two: &two, order: &order };
            site.measure(bench, &crowd, MEMORIES[0], 1).map(|range| range.most)
        };
        let mut rounds = Vec::new();
        for _ in 0..bench.size.pick(1, 2, 15) {
            let (one, before) = (rate(1)?, Distance::measure());
            let (two, after) = (rate(2)?, Distance::measure());
            distances.extend([before, after]);
            rounds.push(Round { one, two, before, after });
        }
        measured.insert(operation, typical(rounds).ok_or(Failure::Call(posix::Errno::EIO))?);
    }
    Ok(measured)
}

/// A measurement of real threads. Both parts run in succession, because a machine's speed varies.
#[derive(Clone, Copy)]
struct Round {
    /// Millions of calls per second of one thread, and of two.
    one: f64,
    two: f64,
    /// Distance between the processors before and after the two threads ran.
    before: Distance,
    after: Distance,
}

impl Round {
    /// Whether the processors stayed where they were, in different cores.
    fn is_steady(&self) -> bool {
        let (one, other) = (self.before.transfer_ns, self.after.transfer_ns);
        let is_within_core = self.before.is_within_core() || self.after.is_within_core();
        !is_within_core && one.max(other) <= one.min(other) * STEADY
    }

    fn distance(&self) -> Distance {
        self.before.mean(&self.after)
    }
}

/// The median of the steady rounds, by the gain of a second thread; of all rounds, if none is
/// steady.
fn typical(rounds: Vec<Round>) -> Option<Round> {
    let is_any_steady = rounds.iter().any(Round::is_steady);
    let mut counted = rounds;
    counted.retain(|round| !is_any_steady || round.is_steady());
    counted.sort_by(|a, b| (a.two / a.one).total_cmp(&(b.two / b.one)));
    counted.get(counted.len() / 2).copied()
}

/// The content of a call as a sentence.
fn content_sentence(content: &Content, subject: Subject, operation: ThreadOperation, costs: &Costs) -> String {
    format!(
        "{}, {}: {:.0} instructions per call ({:.2} ns each), {:.1} lines from memory ({:.0} ns each), {:.1} locked instructions, {:.1} flushes, {:.1} fences.",
        operation.name(),
        subject.name(),
        content.instructions,
        costs.instruction_ns,
        content.brought,
        costs.memory_ns,
        content.exchanges,
        content.flushes,
        content.fences
    )
}

/// Replays groups of `count` programs, all groups in turn. Returns the mean rate, and the outcome
/// of the last group.
pub(super) fn scale(
    programs: &[Program],
    count: usize,
    costs: &Costs,
    duration_ns: f64,
    first: usize,
) -> (f64, Outcome) {
    let mut rates = Vec::new();
    let mut last = None;
    // If `first` is 1, a renaming processor runs with each group; the others follow it.
    for group in programs[first..].chunks_exact(count) {
        let together: Vec<Program> = programs[..first].iter().chain(group).cloned().collect();
        let outcome = replay(&together, costs, duration_ns);
        rates.push(outcome.rate(first..first + count));
        last = Some(outcome);
    }
    let empty = Outcome { ns: duration_ns, done: Vec::new(), waits: Vec::new() };
    (rates.iter().sum::<f64>() / rates.len().max(1) as f64, last.unwrap_or(empty))
}

fn row(operation: ThreadOperation, processors: usize) -> String {
    format!("{}, {processors}", operation.name())
}

fn measured_row(operation: ThreadOperation) -> String {
    format!("{}, 2 (measured)", operation.name())
}

/// The model with the distance at the time of the measurement.
fn beside_row(operation: ThreadOperation) -> String {
    format!("{}, 2 (model, same distance)", operation.name())
}

/// The model with the short distance.
fn near_row(operation: ThreadOperation, processors: usize) -> String {
    format!("{}, {processors} (short distance)", operation.name())
}

/// The words that the processors wait for most, as a sentence.
fn bottleneck(
    subject: &str,
    operation: ThreadOperation,
    count: usize,
    outcome: &Outcome,
    named_memory: &[NamedMemory],
) -> String {
    let all: f64 = outcome.waits.iter().map(|(_, ns)| ns).sum();
    let share = 100.0 * all / (outcome.ns * count as f64);
    let mut by_name: Vec<(String, f64)> = Vec::new();
    for (word, ns) in &outcome.waits {
        let name = describe(named_memory, *word);
        match by_name.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += ns,
            None => by_name.push((name, *ns)),
        }
    }
    by_name.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named: Vec<String> =
        by_name.iter().take(3).map(|(name, ns)| format!("{name} ({:.0} %)", 100.0 * ns / all)).collect();
    let what = format!("{}, {subject}, {count} processors", operation.name());
    match named.is_empty() {
        true => format!("{what}: no waiting."),
        false => format!("{what}: {share:.0} % of their time they wait for each other; at {}.", named.join(", ")),
    }
}

/// DirectFS without its scalable consistency (the paper's section V-C, "nocon"), in the model only.
/// The slot in a directory's log is claimed under a lock instead of by an exchange. The lock is
/// released after the call's last fence.
const LOCKED_LOG: &str = "DirectFS, locked log";

fn lock_log(operation: &[Event], named_memory: &[NamedMemory]) -> Vec<Event> {
    let is_claim = |event: &Event| {
        event.kind == EventKind::Exchange && describe(named_memory, event.address).starts_with(LOG_TAIL)
    };
    let Some(claimed) = operation.iter().position(is_claim) else { return operation.to_vec() };
    let left =
        operation.iter().rposition(|event| event.kind == EventKind::Fence).map_or(operation.len(), |last| last + 1);
    let mut locked = operation.to_vec();
    let address = locked[claimed].address;
    locked[claimed].kind = EventKind::Acquire(LockMode::Exclusive);
    let release = Event { kind: EventKind::Release(LockMode::Exclusive, false), address, count: 0 };
    locked.insert(left.max(claimed + 1), release);
    locked
}

/// DirectFS with the paper's renaming flag (III-E), in the model only: while a rename changes the
/// state of its files, from its last fence on, no other rename of the directory does.
const RENAME_FLAG: &str = "DirectFS, flag on the directory";
/// The flag's word. No recorded call touches it, and it has a line for itself.
const FLAG_WORD: u64 = 4 * crate::multicore::events::LINE_BYTES;

fn flag_rename(operation: &[Event]) -> Vec<Event> {
    let last = operation.iter().rposition(|event| event.kind == EventKind::Fence);
    let Some(last) = last else { return operation.to_vec() };
    let event = |kind| Event { kind, address: FLAG_WORD, count: 0 };
    let (before, after) = operation.split_at(last + 1);
    let taken = [event(EventKind::Acquire(LockMode::Exclusive))];
    let left = [event(EventKind::Release(LockMode::Exclusive, true))];
    [before, &taken, after, &left].concat()
}

/// The common parameters of all replays of one operation.
struct Replays<'r> {
    bench: &'r Bench<'r>,
    deed: ThreadOperation,
    costs: Costs,
    duration_ns: f64,
    named_memory: &'r [NamedMemory],
}

impl Replays<'_> {
    /// Adds the rates for all processor counts to the findings, and the waits to the notes.
    fn scale(&self, name: &str, programs: &[Program], findings: &mut Findings) -> Result<()> {
        // A renaming processor runs along.
        let first = usize::from(self.deed == ThreadOperation::StatRenaming);
        for count in PROCESSORS.into_iter().filter(|count| *count <= programs.len()) {
            self.bench.step(&format!("{name}, {}, {count} processors", self.deed.name()))?;
            // Without the renaming processor, one fewer than `count` may be left.
            let there = count.min(programs.len() - first);
            let (rate, outcome) = scale(programs, there, &self.costs, self.duration_ns, first);
            if count == JUDGED.min(programs.len()) {
                findings.notes.push(bottleneck(name, self.deed, there + first, &outcome, self.named_memory));
            }
            let (row, here) = (row(self.deed, count), vec![Some(rate * count as f64 / there as f64)]);
            findings.measures.push(Measure { row, subject: name.to_owned(), paper: None, here });
        }
        Ok(())
    }
}

/// Adds one subject's numbers to the findings.
fn one_subject(
    bench: &Bench<'_>,
    findings: &mut Findings,
    subject: Subject,
    measured: &HashMap<ThreadOperation, Round>,
    costs: &Costs,
    short: &Distance,
) -> Result<()> {
    let Recording { programs, named_memory } = record_all(bench, subject)?;
    for operation in SHOWN {
        // Stats with a concurrent rename have the content of stats.
        let alone = if operation == ThreadOperation::StatRenaming { ThreadOperation::Stat } else { operation };
        let content = Content::of(&programs[&alone]);
        let real = &measured[&alone];
        let measured_ns = 1e3 / real.one;
        let costs = calibrate::fit(costs, measured_ns, &content);
        let duration_ns = measured_ns * calls_replayed(bench.size);
        let replays = Replays { bench, deed: operation, costs, duration_ns, named_memory: &named_memory };
        replays.scale(subject.name(), &programs[&operation], findings)?;
        if subject == Subject::DirectFs && LOCKED.contains(&operation) {
            let locked = |program: &Program| program.iter().map(|call| lock_log(call, &named_memory)).collect();
            let locked: Vec<Program> = programs[&operation].iter().map(locked).collect();
            replays.scale(LOCKED_LOG, &locked, findings)?;
        }
        if subject == Subject::DirectFs && operation == ThreadOperation::Rename {
            let flagged = |program: &Program| program.iter().map(|call| flag_rename(call)).collect();
            let flagged: Vec<Program> = programs[&operation].iter().map(flagged).collect();
            replays.scale(RENAME_FLAG, &flagged, findings)?;
        }
        if alone == operation {
            let at = |count: usize, distance: &Distance| {
                scale(&programs[&operation], count, &distance.costs(&costs), duration_ns, 0).0
            };
            let judged = JUDGED.min(programs[&operation].len());
            let beside = at(2, &real.distance());
            let rows = [
                (measured_row(operation), real.two),
                (beside_row(operation), beside),
                (near_row(operation, judged), at(judged, short)),
            ];
            for (row, rate) in rows {
                let subject = subject.name().to_owned();
                findings.measures.push(Measure { row, subject, paper: None, here: vec![Some(rate)] });
            }
            findings.notes.push(content_sentence(&content, subject, operation, &costs));
        }
    }
    Ok(())
}

fn plot(findings: &Findings, operation: ThreadOperation) -> Plot {
    let at = |name: &str, count: usize| findings.here(&row(operation, count), name, 0);
    let counts: Vec<usize> =
        PROCESSORS.into_iter().filter(|count| at(Subject::DirectFs.name(), *count).is_some()).collect();
    let series = |name: &str| Series {
        is_modelled: true,
        ..Series::new(name, counts.iter().map(|count| at(name, *count)).collect())
    };
    let others = match operation {
        ThreadOperation::Rename => &[LOCKED_LOG, RENAME_FLAG][..],
        ThreadOperation::Create => &[LOCKED_LOG],
        _ => &[],
    };
    let names = SUBJECTS.map(Subject::name).into_iter().chain(others.iter().copied());
    Plot {
        title: format!("{} in one directory, by processors", operation.name()),
        unit: findings.unit.to_owned(),
        x_labels: counts.iter().map(usize::to_string).collect(),
        lines: true,
        basis: "the model; one processor is measured".to_owned(),
        here: names.map(series).collect(),
        paper: Vec::new(),
    }
}

/// The largest judged processor count, and its rate relative to one processor.
fn speedup(findings: &Findings, operation: ThreadOperation, subject: &str) -> Option<(usize, f64)> {
    let at = |count| findings.here(&row(operation, count), subject, 0);
    let most = PROCESSORS.into_iter().rev().filter(|count| *count <= JUDGED).find(|count| at(*count).is_some())?;
    Some((most, at(most)? / at(1)?))
}

fn claim(findings: &mut Findings, operation: ThreadOperation, subject: &str, scales: bool, what: &str) {
    let Some((count, here)) = speedup(findings, operation, subject) else { return };
    let [scaling, stopping] = [SCALES, STOPS].map(|part| part * count as f64);
    let (paper, sense) = if scales { (scaling, Sense::AtLeast(stopping)) } else { (stopping, Sense::AtMost(scaling)) };
    let what = format!("{what}; {count} processors");
    let changes_directory =
        matches!(operation, ThreadOperation::Create | ThreadOperation::Remove | ThreadOperation::Rename);
    let is_own = subject == Subject::DirectFs.name();
    let reason = if is_own && changes_directory { DIRECTORY_WORDS } else { BOTTLENECKS };
    let reason = reason.to_owned();
    findings.claims.push(Claim { what, unit: Unit::Times, paper, here: vec![here], sense, reason });
}

/// What the paper says of renames by more than 24 threads, where the model has so many processors.
fn beyond_a_socket(findings: &mut Findings) {
    let at = |count| findings.here(&row(ThreadOperation::Rename, count), RENAME_FLAG, 0);
    let (Some(at_socket), Some(beyond)) = (at(24), at(32)) else { return };
    findings.claims.push(Claim {
        what: "rename with a flag on the directory stops scaling (Fig. 7 c); times from 24 to 32 processors".to_owned(),
        unit: Unit::Times,
        paper: 1.0,
        here: vec![beyond / at_socket],
        sense: Sense::AtMost(32.0 / 24.0),
        reason: "The flag is held for the few instructions that change names in the index, and lookups do not wait for it here.".to_owned(),
    });
}

/// The total call rates at the judged processor count, DirectFS next to NOVA.
fn rates_note(findings: &Findings) -> Option<String> {
    let (count, _) = speedup(findings, ThreadOperation::Stat, Subject::DirectFs.name())?;
    let of = |operation: ThreadOperation| {
        let at = |subject: Subject| findings.here(&row(operation, count), subject.name(), 0);
        Some(format!("{} {:.1} and {:.1}", operation.name(), at(Subject::DirectFs)?, at(Subject::Nova)?))
    };
    let each: Vec<String> = SHOWN.into_iter().filter_map(of).collect();
    Some(format!("Million calls per second with {count} processors, DirectFS and NOVA: {}.", each.join("; ")))
}

/// Where the model of two processors agrees with two threads.
fn agreement(findings: &Findings) -> String {
    let (mut close, mut apart) = (Vec::new(), Vec::new());
    for operation in RECORDED {
        for subject in SUBJECTS {
            let of = |row: String| findings.here(&row, subject.name(), 0);
            let Some((model, measured)) = of(beside_row(operation)).zip(of(measured_row(operation))) else {
                continue;
            };
            let percent = 100.0 * (model / measured - 1.0);
            let named = format!("{} of {} ({percent:+.0} %)", operation.name(), subject.name());
            if percent.abs() <= AGREES { close.push(named) } else { apart.push(named) }
        }
    }
    let list = |named: Vec<String>| if named.is_empty() { "none".to_owned() } else { named.join(", ") };
    format!(
        "The model's rate of two processors compared with the measured rate of two threads. Within {AGREES} %: {}. Farther apart: {}. Two threads on two processors validate the model only if nothing else runs on them.",
        list(close),
        list(apart)
    )
}

/// The model.
pub const MULTICORE: Experiment = Experiment {
    name: "multicore",
    question: "How would calls in one directory scale on up to 64 processors?",
    source: "DirectFS, Fig. 3, Fig. 7 a to d, sections II-D and V-C: 1 to 32 threads on 48 processors; drawings without numbers",
    method: "A model, not a measurement. Each of 64 threads (8 in the quick size) records its own calls: every instruction and its memory accesses. Calls of more than 60,000 instructions, which rewrite a directory's log, are left out. The recordings are replayed on 1 to 64 virtual processors in virtual time. Line transfers between processors cost time; locks are granted in order of arrival and handed over; waiters do not sleep. A line that no other recorded call touches comes from memory at the call's first access. Measured on this machine: the time of one processor, a line transfer between two processors and from memory, the handover of a lock, a locked instruction, a flush and a fence. Memory is not slowed. The distance between a virtual machine's processors varies, so it is measured before and after each round of two threads, which directly follows a round of one. Rounds in which it changed, or which ran on one core, do not count. The median of the others, by the gain of the second thread, counts; the model of two processors next to it uses its distance. The curves use the long distance, since many processors do not share one cache. The clock is held while calls are recorded, so that a directory's times, which change with the clock's tick, do not change in every call. \"DirectFS, locked log\" is DirectFS's recording with a lock around each append to the directory's log, held until the call's last fence. \"DirectFS, flag on the directory\": one rename of a directory at a time changes the state of its files, as in the paper (III-E). Not modelled: memory bandwidth, distances between sockets, failed exchanges, repeated reads. Judged at 24 processors, or at the size's maximum: \"scales\" means a speedup of at least half the processor count, \"does not\" at most a sixth.",
    is_alone: true,
    needs_bytes: |size| {
        let image_bytes = Plan::of_files(files_needed(size)).image_bytes();
        calibrate::MEMORY_BYTES.max(image_bytes * 2)
    },
    run: |bench| {
        let mut findings = Findings::new("million calls/s", &MEMORIES[..1]);
        bench.step("costs of memory operations")?;
        let costs = calibrate::measure()?;
        let (mut measured, mut distances) = (HashMap::new(), Vec::new());
        for subject in SUBJECTS {
            measured.insert(subject, measure(bench, subject, &mut distances)?);
        }
        let (short, long) = calibrate::short_and_long(&distances).ok_or(Failure::Call(posix::Errno::EIO))?;
        findings.notes.push(format!(
            "Measured on this machine: a line transfer to another processor {:.0} to {:.0} ns and a lock's handover {:.0} to {:.0} ns, depending on where the processors were; a line from memory at most {:.0} ns, a locked instruction {:.1} ns, a flush {:.1} ns, a fence {:.1} ns.",
            short.transfer_ns, long.transfer_ns, short.handover_ns, long.handover_ns, costs.memory_ns, costs.exchange_ns, costs.flush_ns, costs.fence_ns
        ));
        let costs = long.costs(&costs);
        for subject in SUBJECTS {
            one_subject(bench, &mut findings, subject, &measured[&subject], &costs, &short)?;
        }
        let judged = JUDGED.min(processors(bench.size));
        let beside = |operation| [near_row(operation, judged), measured_row(operation), beside_row(operation)];
        let of = |operation| PROCESSORS.map(|count| row(operation, count)).into_iter().chain(beside(operation));
        let rows: Vec<String> = SHOWN.into_iter().flat_map(of).collect();
        findings.measures.sort_by_key(|measure| rows.iter().position(|row| *row == measure.row));
        for operation in SHOWN {
            let plot = plot(&findings, operation);
            findings.plots.push(plot);
        }
        let (own, nova) = (Subject::DirectFs.name(), Subject::Nova.name());
        let claims = [
            (ThreadOperation::Stat, own, true, "DirectFS's stat scales (Fig. 7 a)"),
            (ThreadOperation::Remove, own, true, "DirectFS's remove scales (Fig. 7 b)"),
            (ThreadOperation::Rename, own, true, "DirectFS's rename scales (Fig. 7 c: to 20 processors)"),
            (ThreadOperation::StatRenaming, own, true, "DirectFS's stat scales with a concurrent rename (Fig. 7 d)"),
            (ThreadOperation::Stat, nova, true, "NOVA's warm stat scales (Fig. 3, Fig. 7 a)"),
            (ThreadOperation::StatRenaming, nova, true, "NOVA's warm stat scales with a concurrent rename (Fig. 7 d)"),
            (ThreadOperation::StatCold, nova, false, "NOVA's cold stat does not scale (Fig. 3)"),
            (ThreadOperation::Create, nova, false, "NOVA's create does not scale (Fig. 3)"),
            (ThreadOperation::Remove, nova, false, "NOVA's remove does not scale (Fig. 7 b)"),
            (ThreadOperation::Rename, nova, false, "NOVA's rename does not scale (Fig. 7 c)"),
            (
                ThreadOperation::Rename,
                LOCKED_LOG,
                false,
                "DirectFS's rename does not scale with a locked log (Fig. 7 c, nocon)",
            ),
        ];
        for (operation, subject, scales, what) in claims {
            claim(&mut findings, operation, subject, scales, what);
        }
        beyond_a_socket(&mut findings);
        let (rates, agreement) = (rates_note(&findings), agreement(&findings));
        findings.notes.extend(rates.into_iter().chain([agreement]));
        Ok(findings)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one_counts_of_the_rounds_in_which_processors_stayed_apart() {
        let way = |transfer_ns: f64| Distance { transfer_ns, handover_ns: 80.0 };
        let round = |two: f64, before: f64, after: f64| Round { one: 1.0, two, before: way(before), after: way(after) };
        let steady = [round(1.7, 70.0, 75.0), round(1.9, 16.0, 17.0), round(1.8, 16.0, 16.0)];
        let moved = [round(3.0, 16.0, 70.0), round(3.0, 70.0, 16.0)];
        let within_core = [round(3.0, 7.0, 7.0), round(3.0, 16.0, 7.0)];
        let chosen = |rounds: &[&[Round]]| typical(rounds.concat()).map(|round| round.two);
        assert_eq!(chosen(&[&moved, &steady, &within_core]), Some(1.8));
        assert_eq!(chosen(&[&moved, &within_core]), Some(3.0), "without steady rounds all count");
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn a_rename_flag_is_held_from_the_last_fence_to_the_end() {
        let event = |kind| Event { kind, address: 1000, count: 0 };
        let call = [EventKind::Fence, EventKind::Exchange, EventKind::Fence, EventKind::Store].map(event);
        let kinds: Vec<EventKind> = flag_rename(&call).iter().map(|event| event.kind).collect();
        let (taken, left) = (EventKind::Acquire(LockMode::Exclusive), EventKind::Release(LockMode::Exclusive, true));
        let [fence, exchange, store] = [EventKind::Fence, EventKind::Exchange, EventKind::Store];
        assert_eq!(kinds, [fence, exchange, fence, taken, store, left]);
        assert_eq!(flag_rename(&call[1..2]), call[1..2]);
    }

    #[test]
    fn a_locked_log_is_held_from_the_claim_of_a_place_to_the_last_fence() {
        let named_memory = [NamedMemory::at("cachelet", 1000, 128).fields(&[(0, "lock"), (80, LOG_TAIL)])];
        let event = |kind, address| Event { kind, address, count: 0 };
        let call = [
            event(EventKind::Exchange, 1000),
            event(EventKind::Fence, 0),
            event(EventKind::Exchange, 1080),
            event(EventKind::Exchange, 1080),
            event(EventKind::Fence, 0),
            event(EventKind::Store, 1000),
        ];
        let locked: Vec<EventKind> = lock_log(&call, &named_memory).iter().map(|event| event.kind).collect();
        let (taken, left) = (EventKind::Acquire(LockMode::Exclusive), EventKind::Release(LockMode::Exclusive, false));
        assert_eq!(
            locked,
            [
                EventKind::Exchange,
                EventKind::Fence,
                taken,
                EventKind::Exchange,
                EventKind::Fence,
                left,
                EventKind::Store
            ]
        );
        assert_eq!(lock_log(&call[..2], &named_memory), call[..2]);
    }
}
