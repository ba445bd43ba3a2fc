//! The crash explorer. It runs a workload on recorded memory, simulates a power failure at every
//! fence and at the end in every way that the model of `pmem::CrashImage` allows, lets the engine
//! recover, and checks the result.
//!
//! A state passes if
//! 1. it is attached without an error and without damage,
//! 2. the tree is the one before the operation in flight or the one after it, and completed
//!    operations are there ([`History`]),
//! 3. the file system can be used: in every directory a file is created, written, read, renamed and
//!    removed, a directory is created and removed, and all else stays as it is,
//! 4. it can be cleanly detached, and then no invariant of the image is violated,
//! 5. (sampled) the next attach finds the same tree without a scan,
//! 6. (sampled) a crash during the recovery, and one during that one's recovery, lead to the same
//!    tree.

use crate::dump::{Tree, dump};
use crate::injected::Defect;
use crate::instructions;
use crate::machine::{Clock, Machine, Watched};
use crate::oracle::{CrashPoint, same_but_directory_times};
use crate::recording::{self, Recording, Source, failed};
use crate::stepper::Stepper;
use crate::test_thread::{TestThread, bytes};
use crate::workload::Workload;
use engine::format::FileKind;
use engine::{AttachOptions, Fs};
use pmem::{CrashImage, CrashState, Event, Grain, Recorded, StateId, StateIdError};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Depth of crashes within recoveries.
const DEPTH: usize = 3;
/// Bytes written into each directory by the use of a file system.
const USE_BYTES: u64 = 5000;

/// The number of states to check.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// With up to this many lines in flight, all subsets are checked.
    pub lines_max: u32,
    /// Beyond that, the number of sampled states.
    pub line_sample: u64,
    /// Sampled states with lines that were evicted early.
    pub instant_sample: u64,
    /// Sampled states with torn lines.
    pub word_sample: u64,
    /// One of this many states is crashed again during its recovery.
    pub again_every: u64,
}

impl Effort {
    /// For runs of hours.
    pub const FULL: Effort =
        Effort { lines_max: 10, line_sample: 48, instant_sample: 16, word_sample: 32, again_every: 64 };
    /// For tests.
    pub const QUICK: Effort =
        Effort { lines_max: 4, line_sample: 8, instant_sample: 4, word_sample: 8, again_every: 40 };
    /// In recoveries.
    const AGAIN: Effort = Effort { lines_max: 3, line_sample: 6, instant_sample: 2, word_sample: 4, again_every: 16 };

    fn grains(&self) -> [(Grain, u32, u64); 3] {
        [
            (Grain::Line, self.lines_max, self.line_sample),
            (Grain::Instant, 4, self.instant_sample),
            (Grain::Word, 4, self.word_sample),
        ]
    }
}

/// Counts of what was explored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Workloads.
    pub workloads: u64,
    /// Points at which the power was cut.
    pub fences: u64,
    /// Different states recovered at these points.
    pub states: u64,
    /// States of crashes during recovery.
    pub states_in_recovery: u64,
    /// Instructions that were traced.
    pub instructions: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.workloads += other.workloads;
        self.fences += other.fences;
        self.states += other.states;
        self.states_in_recovery += other.states_in_recovery;
        self.instructions += other.instructions;
    }
}

/// A state that does not pass.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Reproduces it: `torture replay ID`.
    pub id: String,
    /// The failure.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}", self.id, self.what)
    }
}

/// The reason why a replayed state does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPassed {
    /// The state violates a guarantee.
    Violation(String),
    /// The state does not exist.
    Unknown(String),
}

thread_local! {
    static CURRENT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The id of the state that this thread checks, for reports of panics.
pub fn current() -> String {
    CURRENT.with_borrow(String::clone)
}

/// Sets the id of what this thread checks.
pub fn set_current(what: &str) {
    CURRENT.with_borrow_mut(|current| what.clone_into(current));
}

/// Explores workloads one after the other.
pub struct Explorer {
    clock: &'static Clock,
    /// The number of states to check.
    pub effort: Effort,
    /// Random seed.
    pub seed: u64,
    /// Counts so far.
    pub counts: Counts,
    // Of workloads. The events of recoveries are always recorded.
    source: Source,
    stepper: Stepper,
    // By length of the image, and by depth.
    machines: HashMap<u64, Vec<Machine>>,
}

type StateCheck<'j> = &'j dyn Fn(&Tree, CrashPoint) -> Result<(), String>;

/// A recording whose crash states are explored.
struct Scene<'s> {
    initial: Vec<u8>,
    log: &'s [Recorded],
    /// Operations that must have returned. Earlier crash points belong to other workloads.
    from: usize,
    id: String,
    depth: usize,
    effort: Effort,
    check: StateCheck<'s>,
}

impl Explorer {
    /// Creates an explorer with its own clock.
    pub fn new(effort: Effort, seed: u64) -> Explorer {
        Explorer {
            clock: Clock::leaked(),
            effort,
            seed,
            source: Source::default(),
            counts: Counts::default(),
            stepper: Stepper::default(),
            machines: HashMap::new(),
        }
    }

    /// This explorer, which sees the events of workloads in another way.
    pub fn with_source(self, source: Source) -> Explorer {
        Explorer { source, ..self }
    }

    fn machine(&mut self, length: u64, depth: usize) -> &Machine {
        let clock = self.clock;
        let options = AttachOptions::default();
        let made = || (0..DEPTH + 1).map(|_| Machine::new(length, options, clock)).collect();
        &self.machines.entry(length).or_insert_with(made)[depth]
    }

    /// Runs a workload and records everything. An error if the engine reports its own work as
    /// damaged, or if what it executes is not what it reports.
    pub fn record(&mut self, workload: &Workload) -> Result<Recording, String> {
        CURRENT.set(self.id(workload));
        let (clock, source) = (self.clock, self.source);
        clock.rewind();
        // A fresh file system; the machine of this depth is used for nothing else.
        let fresh = Machine::new(workload.setup.image_bytes, AttachOptions::default(), clock);
        let live = self.machine(workload.setup.image_bytes, DEPTH);
        live.load(&fresh.bytes());
        let recorded = recording::run(live, workload)?;
        match source {
            Source::Recorder => Ok(recorded),
            Source::Instructions => {
                clock.rewind();
                instructions::record(&mut self.stepper, &fresh, workload, recorded)
            }
        }
    }

    fn id(&self, workload: &Workload) -> String {
        format!("{}{workload}", self.source.prefix())
    }

    /// Explores a workload; returns the first state that does not pass.
    pub fn explore(&mut self, workload: &Workload) -> Result<(), Violation> {
        self.explore_injected(workload, None)
    }

    /// Explores a workload with a defect injected into its log.
    pub fn explore_injected(&mut self, workload: &Workload, defect: Option<&Defect>) -> Result<(), Violation> {
        let id = self.id(workload);
        let mut recording = self.record(workload).map_err(|what| Violation { id: id.clone(), what })?;
        if let Some(defect) = defect {
            recording.log = defect.inject(&recording).map_err(|what| Violation { id: id.clone(), what })?;
        }
        self.counts.workloads += 1;
        self.counts.instructions += recording.instructions;
        let Recording { initial, log, history, .. } = &recording;
        // A crash during the first of two operations leaves the same states as a workload with one.
        let from = if defect.is_some() { 0 } else { history.slacks.len() - 1 };
        let check_tree = |tree: &Tree, point: CrashPoint| history.check(tree, point);
        let effort = self.effort;
        self.explore_crashes(Scene { initial: initial.clone(), log, from, id, depth: 0, effort, check: &check_tree })
    }

    /// Checks the states of all crash points of a scene.
    fn explore_crashes(&mut self, scene: Scene<'_>) -> Result<(), Violation> {
        let (length, depth) = (scene.initial.len() as u64, scene.depth);
        let mut crash = CrashImage::new(scene.initial.clone(), scene.log);
        loop {
            let point = crash_point_of(&crash);
            if point.returned >= scene.from {
                if depth == 0 {
                    self.counts.fences += 1;
                }
                self.machine(length, depth).load(crash.durable());
                let mut seen = HashSet::new();
                for (grain, lines_max, sample) in scene.effort.grains() {
                    for state in crash.states(grain, lines_max, sample, self.seed) {
                        if seen.insert(hash(&state)) {
                            self.check_state(&scene, &crash, &state, point)?;
                        }
                    }
                }
            }
            if !crash.advance() {
                return Ok(());
            }
        }
    }

    fn check_state(
        &mut self,
        scene: &Scene<'_>,
        crash: &CrashImage<'_>,
        state: &CrashState,
        point: CrashPoint,
    ) -> Result<(), Violation> {
        let id = format!("{}@{}", scene.id, state.id());
        CURRENT.with_borrow_mut(|current| current.clone_from(&id));
        if scene.depth == 0 {
            self.counts.states += 1;
        } else {
            self.counts.states_in_recovery += 1;
        }
        let draw = splitmix(self.seed ^ hash(state) ^ crash.fences());
        let again = draw.is_multiple_of(scene.effort.again_every) && scene.depth + 1 < DEPTH;
        let machine = self.machine(crash.durable().len() as u64, scene.depth);
        machine.apply(state);
        let initial = if again { machine.bytes() } else { Vec::new() };
        let (checked, log) = check(machine, again, draw, &|tree| (scene.check)(tree, point));
        machine.restore(crash.durable());
        checked.map_err(|what| Violation { id: id.clone(), what })?;
        if !again {
            return Ok(());
        }
        // The result of the first recovery was not observed, so a second one may decide differently
        // about the operation in flight: words that recovery writes over a torn property entry can
        // complete it.
        let check_tree = |found: &Tree, _: CrashPoint| (scene.check)(found, point);
        let depth = scene.depth + 1;
        self.explore_crashes(Scene {
            initial,
            log: &log,
            from: 0,
            id,
            depth,
            effort: Effort::AGAIN,
            check: &check_tree,
        })
    }

    /// Checks a state again by its id; `report` receives the steps.
    pub fn replay(
        &mut self,
        id: &str,
        defect: Option<&Defect>,
        report: &mut dyn FnMut(String),
    ) -> Result<(), NotPassed> {
        let (source, rest) = Source::split(id);
        self.source = source;
        let mut parts = rest.split('@');
        let workload: Workload = parts.next().unwrap_or_default().parse().map_err(NotPassed::Unknown)?;
        let states: Vec<StateId> = parts
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|error: StateIdError| NotPassed::Unknown(error.to_string()))?;
        let mut recording = self.record(&workload).map_err(NotPassed::Violation)?;
        if let Some(defect) = defect {
            recording.log = defect.inject(&recording).map_err(NotPassed::Unknown)?;
        }
        for (operation, result) in workload.operations.iter().zip(&recording.results) {
            match result {
                Ok(()) => report(format!("{} succeeds", operation.name)),
                Err(error) => report(format!("{} fails with {error:?}", operation.name)),
            }
        }
        let (mut initial, mut log) = (recording.initial.clone(), recording.log.clone());
        let mut first = None;
        for (depth, state) in states.iter().enumerate() {
            let mut crash = CrashImage::new(initial, &log);
            let missing = || NotPassed::Unknown(format!("this run has no state {state}: {}", last_fence(&log)));
            if !crash.advance_to(state.fence()) {
                return Err(missing());
            }
            let point = crash_point_of(&crash);
            let state = crash.state(*state).ok_or_else(missing)?;
            let when = if depth == 0 { point.describe() } else { "in its recovery".to_owned() };
            let count = state.changes().len();
            report(format!("crash {}, {when}: {count} words in flight have persisted", depth + 1));
            for change in state.changes().iter().take(64) {
                let [before, after] = [change.before, change.after].map(u64::from_le_bytes);
                report(format!("  {:#8x}: {before:#018x} -> {after:#018x}", change.offset));
            }
            let machine = self.machine(crash.durable().len() as u64, 0);
            machine.load(crash.durable());
            machine.apply(&state);
            report(format!("fsck reports:\n{}", machine.check(None)));
            let next = machine.bytes();
            let history = &recording.history;
            let first = *first.get_or_insert(point);
            let (checked, recovery) = check(machine, true, 0, &|tree| history.check(tree, first));
            checked.map_err(NotPassed::Violation)?;
            (initial, log) = (next, recovery);
        }
        Ok(())
    }
}

/// The range of fences, for messages about an unknown state.
fn last_fence(log: &[Recorded]) -> String {
    let fences = log.iter().filter(|recorded| matches!(recorded.event, Event::Fence)).count();
    format!("the crash points are f0 to f{fences}, with the lines in flight there")
}

fn hash(state: &CrashState) -> u64 {
    let mut hasher = DefaultHasher::new();
    for change in state.changes() {
        (change.offset, change.after).hash(&mut hasher);
    }
    hasher.finish()
}

fn splitmix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Marks are twice the index of the operation, plus one when it has returned.
fn crash_point_of(crash: &CrashImage<'_>) -> CrashPoint {
    match crash.marks().last() {
        None => CrashPoint { returned: 0, begun: false },
        Some((_, mark)) => CrashPoint { returned: mark.div_ceil(2) as usize, begun: mark % 2 == 0 },
    }
}

/// Recovers the machine's image and checks it. Returns the tree if it passes, and the recovery's
/// events if `record` is set.
fn check(
    machine: &Machine,
    record: bool,
    draw: u64,
    check_tree: &dyn Fn(&Tree) -> Result<(), String>,
) -> (Result<Tree, String>, Vec<Recorded>) {
    if (draw >> 32).is_multiple_of(8) {
        let report = machine.check(None);
        if !report.is_sound() {
            return (Err(format!("before recovery: {}", complaints(&report))), Vec::new());
        }
    }
    if record {
        machine.watch.recorder.start();
    }
    let attached = machine.attach();
    machine.watch.recorder.stop();
    let log = machine.watch.recorder.take();
    let checked = match attached {
        Err(error) => Err(format!("recovery fails with {error:?}")),
        Ok((_, report)) if report.damaged != 0 => Err(format!("recovery finds damage: {report:?}")),
        Ok((fs, _)) => inspect(machine, fs, draw, check_tree),
    };
    (checked, log)
}

fn complaints(report: &fsck::Report) -> String {
    let notable = report.findings.iter().filter(|finding| finding.severity != fsck::Severity::Note);
    notable.map(|finding| finding.to_string()).collect::<Vec<_>>().join("; ")
}

fn inspect(
    machine: &Machine,
    fs: Fs<Watched>,
    draw: u64,
    check_tree: &dyn Fn(&Tree) -> Result<(), String>,
) -> Result<Tree, String> {
    let tree = {
        let thread = TestThread::new(&fs).map_err(failed("entering"))?;
        let tree = dump(&thread).map_err(|error| error.to_string())?;
        check_tree(&tree)?;
        exercise(&thread, &tree)?;
        tree
    };
    fs.detach_last().map_err(failed("the clean detach"))?;
    let report = machine.check(None);
    if !report.is_sound() || !report.clean {
        return Err(format!("after use: {}", complaints(&report)));
    }
    if (draw >> 40).is_multiple_of(4) {
        let (fs, report) = machine.attach().map_err(failed("the next attach"))?;
        if report.scanned {
            return Err("a cleanly detached image is scanned".to_owned());
        }
        let thread = TestThread::new(&fs).map_err(failed("entering"))?;
        let found = dump(&thread).map_err(|error| error.to_string())?;
        same_but_directory_times(&found, &tree).map_err(|what| format!("after a detach and an attach: {what}"))?;
    }
    Ok(tree)
}

/// Uses every directory, and checks that nothing else changes.
fn exercise(thread: &TestThread<'_>, tree: &Tree) -> Result<(), String> {
    let is_directory = |entry: &&crate::dump::TreeEntry| entry.stat.kind == FileKind::Directory;
    let directories = || tree.0.iter().filter(|(_, entry)| is_directory(entry)).map(|(path, _)| path);
    for (seed, path) in directories().enumerate() {
        thread.create_with(&format!("{path}/~new"), USE_BYTES, seed as u64).map_err(failed("creating a file"))?;
        thread.rename(&format!("{path}/~new"), &format!("{path}/~used")).map_err(failed("renaming a file"))?;
    }
    for (seed, path) in directories().enumerate() {
        let used = format!("{path}/~used");
        let mut content = vec![0; USE_BYTES as usize + 1];
        let count =
            thread.with(&used, |node| thread.thread.files().read(node, 0, &mut content)).map_err(failed("reading"))?;
        if content[..count] != bytes(USE_BYTES, seed as u64) {
            return Err(format!("{used}: content written after recovery is read differently"));
        }
    }
    let mut found = dump(thread).map_err(|error| format!("in use: {error}"))?;
    found.0.retain(|path, _| !path.ends_with("/~used"));
    same_but_directory_times(&found, tree).map_err(|what| format!("use changes other files: {what}"))?;
    for path in directories() {
        thread.unlink(&format!("{path}/~used")).map_err(failed("removing a file"))?;
        thread.mkdir(&format!("{path}/~new")).map_err(failed("creating a directory"))?;
        thread.rmdir(&format!("{path}/~new")).map_err(failed("removing a directory"))?;
    }
    thread.thread.recycler().recycle(usize::MAX).map_err(failed("recycling"))?;
    Ok(())
}
