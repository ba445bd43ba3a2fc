//! Threads in one directory: DirectFS Fig. 3 and Fig. 7.
//!
//! The machine has few processors, so two threads are compared with one.

use super::findings::{Claim, Findings, MEASURED, Measure, Plot, Range, Sense, Unit, less};
use super::loops::shuffled;
use super::machine::{Machine, Plan, Result, Subject, directfs, machine};
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::ablation::Variant;
use crate::calls::Calls;
use pmem::Delays;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// An operation of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ThreadOperation {
    /// Each thread creates files.
    Create,
    /// Each stats its part of the files, with names in memory.
    Stat,
    /// `Stat` right after mounting.
    StatCold,
    /// Each removes its part of the files.
    Remove,
    /// Each renames its part of the files.
    Rename,
    /// Like `Stat`, while another thread renames a file in the same directory.
    StatRenaming,
}

impl ThreadOperation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            ThreadOperation::Create => "create",
            ThreadOperation::Stat => "stat",
            ThreadOperation::StatCold => "stat_cold",
            ThreadOperation::Remove => "remove",
            ThreadOperation::Rename => "rename",
            ThreadOperation::StatRenaming => "stat with rename",
        }
    }

    const fn needs_files(self) -> bool {
        !matches!(self, ThreadOperation::Create)
    }

    /// Whether a subject runs it. Ablations are measured where the paper measures them.
    fn is_done_by(self, subject: Subject) -> bool {
        match subject {
            Subject::Ablated(Variant::Radix | Variant::BTree) => {
                matches!(self, ThreadOperation::Stat | ThreadOperation::Remove)
            }
            Subject::Ablated(Variant::LockedLog) => self == ThreadOperation::Rename,
            _ => true,
        }
    }

    /// Whether it leaves everything unchanged, so that it can be repeated at once.
    const fn changes_nothing(self) -> bool {
        matches!(self, ThreadOperation::Stat | ThreadOperation::StatRenaming)
    }
}

/// Minimum number of calls in a timed section of a repeatable operation: a few hundred would end
/// before the second thread wakes up.
const CALLS_MIN: u64 = 40_000;

const THREADS: [u64; 2] = [1, 2];

pub(super) fn files(size: Size) -> u64 {
    size.pick(40, 1000, 100_000)
}

pub(super) fn path(letter: char, index: u64) -> Vec<u8> {
    format!("/shared/{letter}{index:07}").into_bytes()
}

pub(super) struct ThreadGroup<'c> {
    pub(super) deed: ThreadOperation,
    pub(super) threads: u64,
    pub(super) one: &'c [Vec<u8>],
    pub(super) two: &'c [Vec<u8>],
    pub(super) order: &'c [u64],
}

impl ThreadGroup<'_> {
    /// Repetitions of a thread's part in a timed section.
    fn turns(&self) -> u64 {
        if self.deed.changes_nothing() { CALLS_MIN.div_ceil(self.one.len() as u64) } else { 1 }
    }

    /// A thread's work.
    fn work(&self, calls: &dyn Calls, thread: u64) -> Result<()> {
        (0..self.turns()).try_for_each(|_| self.one_turn(calls, thread))
    }

    fn one_turn(&self, calls: &dyn Calls, thread: u64) -> Result<()> {
        for file in self.part_of(thread) {
            match self.deed {
                ThreadOperation::Create => calls.create(&self.one[file], 0o644)?,
                ThreadOperation::Remove => calls.unlink(&self.one[file])?,
                ThreadOperation::Rename => calls.rename(&self.one[file], &self.two[file], 0)?,
                ThreadOperation::Stat | ThreadOperation::StatCold | ThreadOperation::StatRenaming => {
                    calls.stat(&self.one[file])?;
                }
            }
        }
        Ok(())
    }

    /// The files of a thread, in processing order.
    fn part_of(&self, thread: u64) -> impl Iterator<Item = usize> {
        let count = self.one.len() as u64;
        let looks =
            matches!(self.deed, ThreadOperation::Stat | ThreadOperation::StatCold | ThreadOperation::StatRenaming);
        let file = move |step: u64| if looks { self.order[step as usize] } else { step };
        (thread * count / self.threads..(thread + 1) * count / self.threads).map(move |step| file(step) as usize)
    }

    /// Stats a thread's files before the timed section, except for cold caches. Then names are in
    /// memory, including missing ones, and no thread starts with the cache content of another
    /// thread's processor.
    fn warm_up(&self, calls: &dyn Calls, thread: u64) {
        if self.deed != ThreadOperation::StatCold {
            self.part_of(thread).for_each(|file| {
                let _ = calls.stat(&self.one[file]);
            });
        }
    }

    /// Millions of calls per second of all threads together, from the first thread's start to the
    /// last one's end, by their own clocks. The starting thread itself may be delayed.
    pub(super) fn rate(&self, machine: &dyn Machine) -> Result<f64> {
        let (arrived, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let renames = self.deed == ThreadOperation::StatRenaming;
        let mut seconds = 0.0;
        std::thread::scope(|scope| -> Result<()> {
            let renamer = renames.then(|| scope.spawn(|| rename_back_and_forth(machine, &over)));
            let mut running = Vec::new();
            for thread in 0..self.threads {
                let arrived = &arrived;
                running.push(scope.spawn(move || {
                    let prepare = |calls: &dyn Calls| self.warm_up(calls, thread);
                    timed(machine, (arrived, self.threads), prepare, |calls| self.work(calls, thread))
                }));
            }
            let spans: Vec<Result<[Instant; 2]>> =
                running.into_iter().map(|thread| thread.join().unwrap_or(Err(posix::Errno::EIO.into()))).collect();
            over.store(true, Release);
            let renamed = renamer.map_or(Ok(()), |thread| thread.join().unwrap_or(Err(posix::Errno::EIO.into())));
            seconds = self::seconds(&spans.into_iter().collect::<Result<Vec<_>>>()?);
            renamed
        })?;
        Ok((self.one.len() as u64 * self.turns()) as f64 / seconds / 1e6)
    }
}

/// The start and end of a thread's work, which begins once `threads` threads have prepared theirs.
pub(super) fn timed(
    machine: &dyn Machine,
    (arrived, threads): (&AtomicU64, u64),
    prepare: impl Fn(&dyn Calls),
    work: impl Fn(&dyn Calls) -> Result<()>,
) -> Result<[Instant; 2]> {
    let mut span = [Instant::now(); 2];
    let mut has_met = false;
    let done = machine.with(&mut |calls| {
        prepare(calls);
        meet(arrived, threads);
        has_met = true;
        span[0] = Instant::now();
        work(calls)?;
        span[1] = Instant::now();
        Ok(())
    });
    if !has_met {
        // The other threads wait for it.
        arrived.fetch_add(1, AcqRel);
    }
    done.map(|()| span)
}

/// Seconds from the first start to the last end.
pub(super) fn seconds(spans: &[[Instant; 2]]) -> f64 {
    let (first, last) = (spans.iter().map(|span| span[0]).min(), spans.iter().map(|span| span[1]).max());
    first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64())
}

/// Waits until `threads` threads have arrived. Waiters spin, because a thread that must be woken
/// starts much later than the others.
fn meet(arrived: &AtomicU64, threads: u64) {
    const SPINS: u32 = 10_000;
    arrived.fetch_add(1, AcqRel);
    let mut looks = 0u32;
    while arrived.load(Acquire) < threads {
        looks = looks.wrapping_add(1);
        // The other threads may have no processor.
        if looks.is_multiple_of(SPINS) { std::thread::yield_now() } else { spin_loop() }
    }
}

fn rename_back_and_forth(machine: &dyn Machine, over: &AtomicBool) -> Result<()> {
    machine.with(&mut |calls| {
        while !over.load(Acquire) {
            calls.rename(b"/shared/to", b"/shared/fro", 0)?;
            calls.rename(b"/shared/fro", b"/shared/to", 0)?;
        }
        Ok(())
    })
}

/// The plan for a site with `count` files.
fn site_plan(count: u64) -> Plan {
    Plan::of_busy_names(count * 2 + 1000)
}

/// A subject with its directory, for all operations.
pub(super) struct Site {
    subject: Subject,
    machine: Box<dyn Machine>,
}

impl Site {
    pub(super) fn new(subject: Subject, count: u64) -> Result<Site> {
        let machine = machine(subject, site_plan(count))?;
        machine.with(&mut |calls| {
            calls.mkdir(b"/shared", 0o755)?;
            Ok(calls.create(b"/shared/to", 0o644)?)
        })?;
        Ok(Site { subject, machine })
    }

    /// Restores the initial files of an operation under their first names, or removes them for one
    /// that creates them.
    fn prepare(&mut self, crowd: &ThreadGroup<'_>) -> Result<()> {
        self.machine.slow_down(Delays::default());
        self.machine.with(&mut |calls| {
            for (one, two) in crowd.one.iter().zip(crowd.two) {
                if calls.stat(two).is_ok() {
                    calls.rename(two, one, 0)?;
                }
                match (calls.stat(one).is_ok(), crowd.deed.needs_files()) {
                    (false, true) => calls.create(one, 0o644)?,
                    (true, false) => calls.unlink(one)?,
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// The rates of some rounds.
    pub(super) fn measure(
        &mut self,
        bench: &Bench<'_>,
        crowd: &ThreadGroup<'_>,
        delays: Delays,
        rounds: usize,
    ) -> Result<Range> {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            self.prepare(crowd)?;
            match crowd.deed {
                ThreadOperation::StatCold => self.machine.remount(delays)?,
                _ => self.machine.slow_down(delays),
            }
            // The first lookup builds the directory's index, before the threads start.
            self.machine.with(&mut |calls| {
                let _ = calls.stat(b"/shared/nothing");
                Ok(())
            })?;
            rates.push(crowd.rate(&*self.machine)?);
            bench.check_stop()?;
        }
        Ok(Range::of(rates))
    }
}

fn run(bench: &Bench<'_>, subjects: &[Subject], deeds: &[ThreadOperation]) -> Result<Findings> {
    let mut findings = Findings::new("million calls/s", &MEMORIES);
    let count = files(bench.size);
    let named = |letter| (0..count).map(|index| path(letter, index)).collect::<Vec<_>>();
    let (one, two, order) = (named('a'), named('b'), shuffled(count));
    let mut sites = Vec::new();
    for subject in subjects {
        bench.step(&format!("set-up of {}", subject.name()))?;
        sites.push(Site::new(*subject, count)?);
    }
    for &operation in deeds {
        for threads in THREADS {
            let crowd = ThreadGroup { deed: operation, threads, one: &one, two: &two, order: &order };
            for site in sites.iter_mut().filter(|site| operation.is_done_by(site.subject)) {
                let name = site.subject.name();
                let mut here = Vec::new();
                for delays in MEMORIES {
                    bench.step(&format!("{}, {threads} threads, {name}, {}", operation.name(), memory_name(delays)))?;
                    here.push(site.measure(bench, &crowd, delays, bench.rounds().min(3))?);
                }
                let row = format!("{}, {threads}", operation.name());
                findings.add_rates(&row, name, here);
            }
        }
        findings.plots.push(scaling(&findings, operation, subjects));
    }
    Ok(findings)
}

fn scaling(findings: &Findings, operation: ThreadOperation, subjects: &[Subject]) -> Plot {
    let rows = THREADS.map(|threads| format!("{}, {threads}", operation.name()));
    let series = |subject: &Subject| findings.series(&rows, subject.name(), 0);
    Plot {
        title: format!("{} in one directory, by threads", operation.name()),
        unit: findings.unit.to_owned(),
        x_labels: THREADS.map(|threads| threads.to_string()).to_vec(),
        lines: true,
        basis: MEASURED.to_owned(),
        here: subjects.iter().filter(|subject| operation.is_done_by(**subject)).map(series).collect(),
        paper: Vec::new(),
    }
}

/// The rate of two threads divided by that of one.
fn speedups(findings: &Findings, operation: ThreadOperation, subject: &str) -> Vec<f64> {
    let of = |memory| {
        let at = |threads| findings.here(&format!("{}, {threads}", operation.name()), subject, memory);
        Some(at(2)? / at(1)?)
    };
    (0..findings.memories.len()).filter_map(of).collect()
}

fn scales(findings: &mut Findings, operation: ThreadOperation, subject: &str, paper: (f64, Sense), what: &str) {
    let reason = "Two processors say little about 24: a resource that many processors always wait for, two meet at only now and then. A second thread that shares its processor with other programs says nothing. The model (multicore) shows the further trend.";
    scales_or(findings, operation, subject, paper, what, reason);
}

/// `scales` with a specific reason.
fn scales_or(
    findings: &mut Findings,
    operation: ThreadOperation,
    subject: &str,
    paper: (f64, Sense),
    what: &str,
    reason: &'static str,
) {
    let here = speedups(findings, operation, subject);
    let (what, reason) = (what.to_owned(), reason.to_owned());
    findings.claims.push(Claim { what, unit: Unit::Times, paper: paper.0, here, sense: paper.1, reason });
}

/// Minimum speedup by a second thread that counts as scaling, and the one that refutes it.
const SCALES: (f64, Sense) = (1.5, Sense::AtLeast(1.2));
/// Maximum speedup that counts as not scaling, and the one that refutes it.
const STOPS: (f64, Sense) = (1.2, Sense::AtMost(1.5));

const FIGURE_3_SUBJECTS: [Subject; 1] = [Subject::Nova];

fn needs(size: Size) -> u64 {
    // In addition to the subjects, one whose index evicts names.
    let others = Plan::of_names(files(size) * (OTHERS + 1)).image_bytes();
    site_plan(files(size)).image_bytes() * FIGURE_7_SUBJECTS.len() as u64 + others
}

/// Where conventional systems stop scaling.
pub const DIRECTFS_FIGURE_3: Experiment = Experiment {
    name: "directfs-fig3",
    question: "Do calls in one directory scale under a VFS?",
    source: "DirectFS, Fig. 3 and section II-D: mdtest, 1 to 24 threads; a drawing without numbers",
    method: "All threads in one directory, NOVA under the conventional layer; the index of the directory's names is built before the clock starts. The text's statements about the drawing are tested with two threads: create does not scale, nor does stat with cold caches; stat with warm caches does. \"Scales\" means at least 1.5 times one thread's rate here, \"does not\" at most 1.2 times.",
    is_alone: true,
    needs_bytes: needs,
    run: |bench| {
        let deeds = [ThreadOperation::Create, ThreadOperation::Stat, ThreadOperation::StatCold];
        let mut findings = run(bench, &FIGURE_3_SUBJECTS, &deeds)?;
        scales(&mut findings, ThreadOperation::Create, "NOVA", STOPS, "creating does not scale");
        scales(&mut findings, ThreadOperation::Stat, "NOVA", SCALES, "warm stat scales");
        scales(&mut findings, ThreadOperation::StatCold, "NOVA", STOPS, "cold stat does not scale");
        Ok(findings)
    },
};

const FIGURE_7_SUBJECTS: [Subject; 7] = [
    Subject::Nova,
    Subject::ByVfs,
    Subject::CacheletNova,
    Subject::Ablated(Variant::Radix),
    Subject::Ablated(Variant::BTree),
    Subject::Ablated(Variant::LockedLog),
    Subject::DirectFs,
];

/// Where DirectFS scales.
pub const DIRECTFS_FIGURE_7: Experiment = Experiment {
    name: "directfs-fig7",
    question: "Do calls in one directory scale without a lock on it?",
    source: "DirectFS, Fig. 7 a to d and section V-C: mdtest and FxMark, 1 million files, 1 to 32 threads; drawings without numbers",
    method: "a: stat, b: remove, c: rename, d: stat while another thread renames a file in the same directory. All threads in one directory, names in memory. Tested as in directfs-fig3, with two threads; with the renaming thread there are three on two processors. _r and _b: DirectFS with a radix tree (six bits of a name's hash per level, a lock for each subtree of the first one) or a B-tree (under one read-write lock) in place of its hash table, with equally full buckets. _nocon: with a lock on a directory's log, held from before a slot is claimed until the call's last fence. \"Stat after others\": after ten times as many other files were used, DirectFS with an index that evicts names (its caches hold twice the shared directory) and with one that does not (noGC).",
    is_alone: true,
    needs_bytes: needs,
    run: |bench| {
        let deeds =
            [ThreadOperation::Stat, ThreadOperation::Remove, ThreadOperation::Rename, ThreadOperation::StatRenaming];
        let mut findings = run(bench, &FIGURE_7_SUBJECTS, &deeds)?;
        scales(&mut findings, ThreadOperation::Stat, "DirectFS", SCALES, "DirectFS's stat scales (a)");
        scales(&mut findings, ThreadOperation::Stat, "NOVA", SCALES, "NOVA's warm stat scales (a)");
        radix_is_slower(&mut findings);
        trees_scale(&mut findings);
        garbage(bench, &mut findings)?;
        scales(&mut findings, ThreadOperation::Remove, "DirectFS", SCALES, "DirectFS's remove scales (b)");
        scales(&mut findings, ThreadOperation::Remove, "NOVA", STOPS, "NOVA's remove does not scale (b)");
        scales(&mut findings, ThreadOperation::Rename, "DirectFS", SCALES, "DirectFS's rename scales (c)");
        scales(&mut findings, ThreadOperation::Rename, "NOVA", STOPS, "NOVA's rename does not scale (c)");
        locked_log_scales_less(&mut findings);
        Ok(findings)
    },
};

/// Other files used before, per file of the shared directory.
const OTHERS: u64 = 10;
const OTHERS_PER_DIRECTORY: u64 = 100;
const NO_GC: &str = "DirectFS noGC";
const AFTER_OTHERS: &str = "stat after others, 1";

/// stat in the shared directory after many other files were used: with an index that may evict
/// their names, and with one that keeps all.
fn garbage(bench: &Bench<'_>, findings: &mut Findings) -> Result<()> {
    let count = files(bench.size);
    let names = || (0..count).map(|index| path('a', index)).collect::<Vec<_>>();
    let (one, order) = (names(), shuffled(count));
    let crowd = ThreadGroup { deed: ThreadOperation::Stat, threads: 1, one: &one, two: &[], order: &order };
    for (name, cached_files_max) in [(Subject::DirectFs.name(), count * 2), (NO_GC, 0)] {
        bench.step(&format!("{} other files in {name}", count * OTHERS))?;
        let mut machine = directfs(Plan::of_names(count * (OTHERS + 1) + 1000), cached_files_max)?;
        machine.with(&mut |calls| {
            calls.mkdir(b"/shared", 0o755)?;
            one.iter().try_for_each(|path| calls.create(path, 0o644))?;
            for number in 0..(count * OTHERS).div_ceil(OTHERS_PER_DIRECTORY) {
                let directory = format!("/other{number}");
                calls.mkdir(directory.as_bytes(), 0o755)?;
                let other = |file: u64| format!("{directory}/file{file}").into_bytes();
                (0..OTHERS_PER_DIRECTORY).try_for_each(|file| calls.create(&other(file), 0o644))?;
            }
            Ok(())
        })?;
        let mut here = Vec::new();
        for delays in MEMORIES {
            machine.slow_down(delays);
            let mut most = 0.0f64;
            // The first round loads the names again.
            for _ in 0..=bench.rounds().min(3) {
                most = most.max(crowd.rate(&*machine)?);
                bench.check_stop()?;
            }
            here.push(Some(most));
        }
        let row = AFTER_OTHERS.to_owned();
        findings.measures.push(Measure { row, subject: name.to_owned(), paper: None, here });
    }
    let gain = |memory| {
        let here = |subject| findings.here(AFTER_OTHERS, subject, memory);
        Some(less(here(NO_GC)?, here(Subject::DirectFs.name())?))
    };
    findings.claims.push(Claim::any_gain(
        "stat is slower if the index evicts no names, one thread (a, noGC; no number in the paper)".to_owned(),
        (0..MEMORIES.len()).filter_map(gain).collect(),
        "The paper's index has a fixed number of buckets, whose chains grow with every name that is not evicted. This index grows with its names, so lookups do not slow down, and eviction saves memory only.".to_owned(),
    ));
    Ok(())
}

/// DirectFS with trees as index.
fn trees_scale(findings: &mut Findings) {
    let claims = [
        (
            ThreadOperation::Stat,
            "DirectFS_r",
            SCALES,
            "stat scales with a radix tree as index (a)",
            "A lookup takes no lock and writes nothing that others read, so only the processors limit a second thread; one that shares its processor with other programs says nothing.",
        ),
        (
            ThreadOperation::Stat,
            "DirectFS_b",
            STOPS,
            "stat does not scale with a B-tree as index (a)",
            "On two processors each lookup takes the line with the lock's count from the other one. Threads that share one processor do not meet there, and their rates say nothing.",
        ),
        (
            ThreadOperation::Remove,
            "DirectFS_r",
            STOPS,
            "remove does not scale with a radix tree as index (b)",
            "The paper does not say how large the locked subtree is. Here the tree has 64 of them, chosen by the hash, and two threads seldom need the same one.",
        ),
        (
            ThreadOperation::Remove,
            "DirectFS_b",
            STOPS,
            "remove does not scale with a B-tree as index (b)",
            "The tree is locked while a name is removed, which is a part of the call. Two threads find the path and free the file's space concurrently.",
        ),
    ];
    for (operation, subject, sense, what, reason) in claims {
        scales_or(findings, operation, subject, sense, what, reason);
    }
}

/// The paper's nocon stops scaling after 4 threads. Two threads can only show that the second one
/// gains less with the lock than without; any difference counts.
fn locked_log_scales_less(findings: &mut Findings) {
    let [locked, free] =
        ["DirectFS_nocon", "DirectFS"].map(|subject| speedups(findings, ThreadOperation::Rename, subject));
    findings.claims.push(Claim::any_gain(
        "with a locked log a second thread gains less at rename (c, nocon: it stops after 4 threads)".to_owned(),
        locked.into_iter().zip(free).map(|(locked, free)| less(locked, free)).collect(),
        "The lock is held for most of the call, so two threads on two processors wait for each other. Two threads that share one processor do not, and their rates say nothing.".to_owned(),
    ));
}

/// The paper's text has no number for this: any loss counts.
fn radix_is_slower(findings: &mut Findings) {
    let row = format!("{}, 1", ThreadOperation::Stat.name());
    let of = |memory| {
        let here = |subject| findings.here(&row, subject, memory);
        Some(less(here("DirectFS_r")?, here("DirectFS")?))
    };
    let here = (0..findings.memories.len()).filter_map(of).collect();
    let what =
        "stat is slower with a radix tree than with the hash table, one thread (a; no number in the paper)".to_owned();
    findings.claims.push(Claim::any_gain(
        what,
        here,
        "The tree is shallow: two levels for a thousand names, three for a hundred thousand, and all its nodes are in the processor's caches. Their cost in a lookup is small compared with the variation between two measurements on a busy machine.".to_owned(),
    ));
}
