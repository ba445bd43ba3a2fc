//! Runs histories: threads wait for each other, then make their calls concurrently.

use super::check::{CALLS_MAX, Call, is_linearizable};
use super::model::{Action, Answer, Model, NAMES, NameRef, RenameMode, SECOND_AT};
use crate::random::Random;
use engine::format::FileKind;
use engine::{AttachOptions, DirectoryHint, Error, Fs, MkfsOptions, NewNode, Node, RenameFlags, Result, Thread, mkfs};
use pmem::{Direct, Mapping, Region};
use std::cell::RefCell;
use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tables::host::PLATFORM;

const IMAGE_BYTES: u64 = 64 << 20;
/// Histories on one image before it is detached, checked and replaced.
const HISTORIES_PER_IMAGE: u64 = 4000;
/// Histories in one directory: enough for its log to be compacted during use.
const HISTORIES_PER_DIRECTORY: u64 = 500;
/// Calls of a thread in a history.
const CALLS_PER_THREAD: u64 = 5;
/// Length of the open file: several blocks, so that a full write changes more than one word.
const FILE_BYTES: usize = 9000;
/// Directories that only the crowd uses, and files in each: together with the rest more than fit
/// into memory.
const CROWDS: u64 = 40;
const CROWD_FILES: u64 = 120;
/// The engine's minimum, so that the crowd evicts unused files.
const CACHED_FILES_MAX: u64 = 1;
/// Names; the last one needs several lines.
const NAME: [&[u8]; NAMES] = [b"a", b"another name of some length", b"second"];

/// The parameters of races.
#[derive(Debug, Clone, Copy)]
pub struct Races {
    /// Maximum duration.
    pub duration: Duration,
    /// Maximum number of histories; 0: no limit.
    pub histories_max: u64,
    /// Random seed.
    pub seed: u64,
    /// Threads of a history: 2 to 6.
    pub threads: usize,
}

/// The results.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Histories.
    pub histories: u64,
    /// Histories in which calls of several threads overlapped.
    pub overlapping: u64,
    /// Calls in them.
    pub calls: u64,
    /// Images that were checked afterwards.
    pub images: u64,
    /// The violations, as text.
    pub violations: Vec<String>,
}

impl Random {
    fn name_ref(&mut self) -> NameRef {
        (usize::from(self.below(3) == 0), self.below(NAMES as u64) as usize)
    }

    fn call(&mut self) -> Action {
        let at = self.name_ref();
        match self.below(20) {
            0..=2 => Action::Make(at, FileKind::Regular),
            3 => Action::Make(at, FileKind::Directory),
            4..=5 => Action::Link(at),
            6..=7 => Action::Unlink(at),
            8..=9 => Action::Rmdir(at),
            10..=13 => {
                let how = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange]
                    [self.below(4) as usize];
                Action::Rename(at, self.name_ref(), how)
            }
            14..=16 => Action::Lookup(at),
            17..=18 => [Action::Write(self.below(200) as u8 + 1), Action::Read][self.below(2) as usize],
            _ => [Action::Crowd(self.below(CROWDS)), Action::Lookup(at)][usize::from(self.below(4) != 0)],
        }
    }
}

/// A spinning barrier: the threads start at the same time.
struct SpinBarrier {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl SpinBarrier {
    fn meet(&self) {
        let round = self.round.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.threads {
            self.arrived.store(0, Relaxed);
            self.round.store(round + 1, Release);
            return;
        }
        let mut spins = 0u32;
        while self.round.load(Acquire) == round {
            spins += 1;
            if spins.is_multiple_of(2000) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// The state that all threads of a history share.
#[derive(Debug, Clone, Copy)]
struct Scene {
    directories: [Node; 2],
    file: Node,
    seed: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_node(kind: FileKind) -> NewNode<'static> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"",
        extended: &[],
        flags: engine::FileFlags::NONE,
    }
}

/// A thread in a history.
struct RaceThread<'t, 'f> {
    thread: &'t Thread<'f>,
    scene: Scene,
    /// The files that it created, open to the end, so that no number is reused.
    made: RefCell<Vec<Node>>,
}

impl RaceThread<'_, '_> {
    fn at(&self, name: NameRef) -> (Node, &'static [u8]) {
        (self.scene.directories[name.0], NAME[name.1])
    }

    fn act(&self, what: Action) -> Answer {
        self.try_act(what).unwrap_or_else(Answer::Refused)
    }

    fn try_act(&self, what: Action) -> Result<Answer> {
        let thread = self.thread;
        let (directory, name) = match what {
            Action::Make(at, _)
            | Action::Link(at)
            | Action::Unlink(at)
            | Action::Rmdir(at)
            | Action::Rename(at, ..)
            | Action::Lookup(at) => self.at(at),
            _ => self.at((0, 0)),
        };
        match what {
            Action::Make(_, kind) => {
                let node = thread.create(directory, name, &new_node(kind))?;
                self.made.borrow_mut().push(node);
                return Ok(Answer::File(node.number, kind));
            }
            Action::Link(_) => thread.link(self.scene.file, directory, name)?,
            Action::Unlink(_) => thread.unlink(directory, name, |_| Ok(()))?,
            Action::Rmdir(_) => thread.remove_directory(directory, name, |_| Ok(()))?,
            Action::Rename(_, to, how) => {
                let flags = RenameFlags {
                    no_replace: how == RenameMode::Keep,
                    exchange: how == RenameMode::Exchange,
                    ..RenameFlags::default()
                };
                thread.rename((directory, name), self.at(to), flags, |_, _| Ok(()))?;
            }
            Action::Lookup(_) => {
                let node = thread.lookup(directory, name)?;
                let kind = thread.stat(node).map(|attributes| attributes.kind);
                thread.release(node, 1);
                return Ok(Answer::File(node.number, kind?));
            }
            Action::Links => return Ok(Answer::Links(thread.stat(self.scene.file)?.links)),
            Action::Write(byte) => drop(thread.files().write(self.scene.file, 0, &[byte; FILE_BYTES])?),
            Action::Read => {
                let mut bytes = [0; FILE_BYTES];
                let length = thread.files().read(self.scene.file, 0, &mut bytes)?;
                let whole = length == FILE_BYTES && bytes.iter().all(|byte| *byte == bytes[0]);
                return Ok(Answer::Bytes(whole.then_some(bytes[0])));
            }
            Action::Crowd(index) => {
                let root = thread.root()?;
                let crowd = thread.lookup(root, crowd_name(index).as_bytes());
                thread.release(root, 1);
                let crowd = crowd?;
                let used: Result<()> = (0..CROWD_FILES).try_for_each(|file| {
                    thread.release(thread.lookup(crowd, file.to_string().as_bytes())?, 1);
                    Ok(())
                });
                thread.release(crowd, 1);
                used?;
            }
        }
        Ok(Answer::Done)
    }

    /// Makes this thread's calls of a history.
    fn play(&self, index: usize, clock: &AtomicU64) -> Vec<Call> {
        let mut random = Random::new(self.scene.seed * 31 + index as u64);
        let calls = (0..1 + random.below(CALLS_PER_THREAD)).map(|_| {
            let what = random.call();
            // A counter instead of a clock: its order is the real order of events.
            let began = clock.fetch_add(1, SeqCst);
            let answer = self.act(what);
            Call { thread: index, what, answer, began, ended: clock.fetch_add(1, SeqCst) }
        });
        calls.collect()
    }
}

/// One image and the histories on it.
struct Stage<'f> {
    fs: &'f Fs,
    plan: Races,
    meeting: SpinBarrier,
    clock: AtomicU64,
    ended: AtomicBool,
    scene: Mutex<Option<Scene>>,
    calls: Mutex<Vec<Call>>,
    made: Mutex<Vec<Node>>,
}

/// Runs histories until the time is up or a violation is found. `report` receives the progress.
pub fn races(plan: &Races, report: &mut dyn FnMut(&Outcome)) -> Result<Outcome> {
    let begun = Instant::now();
    let threads = plan.threads.clamp(2, CALLS_MAX / CALLS_PER_THREAD as usize);
    let mut outcome = Outcome::default();
    let is_over = |outcome: &Outcome| {
        begun.elapsed() >= plan.duration
            || !outcome.violations.is_empty()
            || (plan.histories_max != 0 && outcome.histories >= plan.histories_max)
    };
    while outcome.images == 0 || !is_over(&outcome) {
        on_an_image(&Races { threads, ..*plan }, &mut outcome, &is_over, report)?;
    }
    Ok(outcome)
}

fn on_an_image(
    plan: &Races,
    outcome: &mut Outcome,
    is_over: &dyn Fn(&Outcome) -> bool,
    tell: &mut dyn FnMut(&Outcome),
) -> Result<()> {
    let image = Mapping::anonymous(IMAGE_BYTES).map_err(|_| Error::NoMemory)?;
    // SAFETY: the mapping outlives all regions, which end with this function; nothing else knows
    // it.
    let region = || unsafe { Region::new(image.address(), image.length(), Direct) };
    mkfs(&region(), &make_options())?;
    let options = AttachOptions { cached_files_max: CACHED_FILES_MAX, ..AttachOptions::default() };
    let layout = Fs::<Direct>::dram_layout(&region(), &options)?;
    let dram = Mapping::anonymous(layout.length).map_err(|_| Error::NoMemory)?;
    // SAFETY: as above.
    let dram = unsafe { Region::new(dram.address(), dram.length(), Direct) };
    let (fs, _) = Fs::attach_first(region(), dram, &PLATFORM, engine::Liveness::alone(), &options)?.finish()?;
    make_crowd(&fs)?;
    let stage = Stage {
        fs: &fs,
        plan: *plan,
        meeting: SpinBarrier { threads: plan.threads, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0) },
        clock: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        scene: Mutex::new(None),
        calls: Mutex::default(),
        made: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for index in 1..plan.threads {
            let stage = &stage;
            scope.spawn(move || stage.follow(index));
        }
        stage.lead(outcome, is_over, tell)
    })?;
    fs.detach_last()?;
    let report = fsck::check(
        &region(),
        &fsck::Options { findings_max: 20, clean: Some(true), ..fsck::Options::default() },
        &mut |_| {},
    );
    outcome.images += 1;
    for finding in &report.findings {
        outcome.violations.push(format!("fsck afterwards: {finding:?}"));
    }
    Ok(())
}

fn make_options() -> MkfsOptions {
    MkfsOptions {
        uuid: *b"racing threads'.",
        label: [0; 64],
        inodes_max: 0,
        owner: (0, 0),
        permissions: 0o755,
        now_ns: tables::host::now_ns(),
        zeroed: true,
    }
}

fn crowd_name(index: u64) -> String {
    format!("crowd {index}")
}

/// Creates directories full of files that are unrelated to the histories.
fn make_crowd(fs: &Fs) -> Result<()> {
    let thread = fs.enter()?;
    let root = thread.root()?;
    for index in 0..CROWDS {
        let directory = thread.create(root, crowd_name(index).as_bytes(), &new_node(FileKind::Directory))?;
        for file in 0..CROWD_FILES {
            let file = thread.create(directory, format!("{file}").as_bytes(), &new_node(FileKind::Regular))?;
            thread.release(file, 1);
        }
        thread.release(directory, 1);
    }
    thread.release(root, 1);
    Ok(())
}

impl<'f> Stage<'f> {
    fn race_thread<'t>(&'t self, thread: &'t Thread<'f>, scene: Scene) -> RaceThread<'t, 'f> {
        RaceThread { thread, scene, made: RefCell::default() }
    }

    /// Makes the calls of one thread in one history.
    fn take_part(&self, index: usize, thread: &Thread<'f>, scene: Scene) {
        let race_thread = self.race_thread(thread, scene);
        self.meeting.meet();
        let calls = race_thread.play(index, &self.clock);
        locked(&self.calls).extend(calls);
        locked(&self.made).extend(race_thread.made.into_inner());
        self.meeting.meet();
    }

    /// A thread that takes part in each history.
    fn follow(&self, index: usize) {
        let Ok(thread) = self.fs.enter() else { std::process::abort() };
        loop {
            self.meeting.meet();
            if self.ended.load(Acquire) {
                return;
            }
            let Some(scene) = *locked(&self.scene) else { return };
            self.take_part(index, &thread, scene);
        }
    }

    /// The thread that sets up the histories, takes part, and checks the results.
    fn lead(
        &self,
        outcome: &mut Outcome,
        is_over: &dyn Fn(&Outcome) -> bool,
        report: &mut dyn FnMut(&Outcome),
    ) -> Result<()> {
        let led = self.lead_all(outcome, is_over, report);
        self.ended.store(true, Release);
        self.meeting.meet();
        led
    }

    fn lead_all(
        &self,
        outcome: &mut Outcome,
        is_over: &dyn Fn(&Outcome) -> bool,
        report: &mut dyn FnMut(&Outcome),
    ) -> Result<()> {
        let thread = self.fs.enter()?;
        let root = thread.root()?;
        for directory in 0..HISTORIES_PER_IMAGE / HISTORIES_PER_DIRECTORY {
            let name = format!("histories {directory}");
            let first = thread.create(root, name.as_bytes(), &new_node(FileKind::Directory))?;
            for _ in 0..HISTORIES_PER_DIRECTORY {
                self.history(&thread, first, outcome)?;
                if is_over(outcome) {
                    break;
                }
            }
            report(outcome);
            if is_over(outcome) {
                thread.release(first, 1);
                break;
            }
            thread.remove_directory(root, name.as_bytes(), |_| Ok(()))?;
            thread.release(first, 1);
        }
        thread.release(root, 1);
        Ok(())
    }

    fn history(&self, thread: &Thread<'f>, first: Node, outcome: &mut Outcome) -> Result<()> {
        let file = thread.create(first, NAME[0], &new_node(FileKind::Regular))?;
        let second = thread.create(first, NAME[SECOND_AT], &new_node(FileKind::Directory))?;
        thread.files().write(file, 0, &[0; FILE_BYTES])?;
        let seed = self.plan.seed + outcome.histories;
        let scene = Scene { directories: [first, second], file, seed };
        *locked(&self.scene) = Some(scene);
        self.meeting.meet();
        self.take_part(0, thread, scene);
        let calls = std::mem::take(&mut *locked(&self.calls));
        outcome.histories += 1;
        outcome.calls += calls.len() as u64;
        outcome.overlapping += u64::from(overlaps(&calls));
        let found = self.race_thread(thread, scene).look(&calls);
        if let Err(what) = found {
            outcome.violations.push(describe(seed, &what, &calls));
        }
        if outcome.violations.is_empty() {
            let cleaned = clean(thread, &scene);
            if let Err(error) = cleaned {
                outcome.violations.push(describe(seed, &format!("cleaning up fails: {error:?}"), &calls));
            }
        }
        let made = std::mem::take(&mut *locked(&self.made));
        made.into_iter().chain([file, second]).for_each(|node| thread.release(node, 1));
        Ok(())
    }
}

/// Whether calls of different threads overlapped in time.
fn overlaps(calls: &[Call]) -> bool {
    let at_once = |a: &Call, b: &Call| a.thread != b.thread && a.began < b.ended && b.began < a.ended;
    calls.iter().any(|call| calls.iter().any(|other| at_once(call, other)))
}

impl RaceThread<'_, '_> {
    /// Checks the final state of a history, and whether the calls and this state can be explained.
    fn look(&self, calls: &[Call]) -> std::result::Result<(), String> {
        let mut names = [[None; NAMES]; 2];
        for (directory, names) in names.iter_mut().enumerate() {
            for (name, number) in names.iter_mut().enumerate() {
                *number = match self.act(Action::Lookup((directory, name))) {
                    Answer::File(number, _) => Some(number),
                    Answer::Refused(Error::NotFound) => None,
                    other => return Err(format!("afterwards the lookup of {directory}/{name} returns {other:?}")),
                };
            }
            self.compare_listing(directory, names)?;
        }
        let links = names.iter().flatten().flatten().filter(|number| **number == self.scene.file.number).count();
        let said = self.act(Action::Links);
        if said != Answer::Links(links as u32) {
            return Err(format!("afterwards the file has {links} names, but the link count is {said:?}"));
        }
        let byte = self.act(Action::Read);
        let before = Model::new(self.scene.file.number, self.scene.directories[1].number);
        let is_end = |end: &Model| {
            let numbers = end.names.map(|names| names.map(|entry| entry.map(|entry| entry.number)));
            numbers == names && byte == Answer::Bytes(Some(end.byte))
        };
        match is_linearizable(&before, calls, &is_end) {
            true => Ok(()),
            false => Err(format!("the answers are not linearizable; the final state is {names:?} and {byte:?}")),
        }
    }

    /// Checks that a listing shows the same names as lookups.
    fn compare_listing(&self, directory: usize, names: &[Option<u64>; NAMES]) -> std::result::Result<(), String> {
        let mut listed = [None; NAMES];
        let node = self.scene.directories[directory];
        let read = self.thread.read_directory(node, 0, &mut DirectoryHint::default(), &mut |entry| {
            if let Some(index) = NAME.iter().position(|name| *name == entry.name) {
                listed[index] = Some(entry.number);
            }
            true
        });
        match read {
            // A directory that was removed.
            Err(Error::NotFound) if directory == 1 => Ok(()),
            Err(error) => Err(format!("afterwards directory {directory} cannot be listed: {error:?}")),
            Ok(()) if listed != *names => {
                Err(format!("afterwards directory {directory} lists {listed:?}, but lookups find {names:?}"))
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Removes all names of a history.
fn clean(thread: &Thread<'_>, scene: &Scene) -> Result<()> {
    // The second directory may be anywhere in the first, so its content is removed first.
    for directory in [scene.directories[1], scene.directories[0]] {
        for name in NAME {
            let removed = match thread.stat_name(directory, name) {
                Err(Error::NotFound) => continue,
                Err(error) => Err(error),
                Ok(found) if found.kind == FileKind::Directory => thread.remove_directory(directory, name, |_| Ok(())),
                Ok(_) => thread.unlink(directory, name, |_| Ok(())),
            };
            removed?;
        }
    }
    Ok(())
}

fn describe(seed: u64, what: &str, calls: &[Call]) -> String {
    let mut text = format!("history of seed {seed}: {what}");
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.began);
    for Call { thread, what, answer, began, ended } in calls {
        let _ = write!(text, "\n    thread {thread}  {began:>8} to {ended:>8}  {what:?} -> {answer:?}");
    }
    text
}
