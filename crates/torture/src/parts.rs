//! The parts of a run. Each runs for its share of the time, and reports its results as JSON and as
//! text.

use crate::Run;
use crate::live::Live;
use anyhow::{Result, bail, ensure};
use journal::explorer;
use serde_json::{Map, Value, json, to_value};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use torture::campaign::{self, Plan, Progress};
use torture::explore::{self, Effort};
use torture::hostile::{self, Arena};
use torture::model::{self, World};
use torture::races::{Races, races};
use torture::recording::Source;
use torture::stepper::Stepper;
use torture::storm::{self, AccessMethod};
use torture::workload::Group;

/// Calls drawn for a sequence that is compared with the model; calls without an object are skipped.
const DRAWN: usize = 100_000;
/// Concurrent workers of a kill storm, and kills in a round.
const WORKERS: usize = 6;
const KILLS: u64 = 200;
/// Default number of threads in a race.
pub const RACERS: usize = 3;
/// A hostile image that takes longer is considered to hang.
const PATIENCE: Duration = Duration::from_secs(300);

/// A part that can be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Crashes: all, or a group.
    Crashes(Option<Group>),
    /// Crashes, with the events of the executed instructions.
    Instructions,
    /// Processes that are killed.
    Kills,
    /// Concurrent threads.
    Races,
    /// Random calls.
    Model,
    /// Changed images.
    Hostile,
    /// Crashes of the disk under a journal.
    Journal,
}

impl Part {
    /// All parts, each with its tenths of a run's time.
    pub const ALL: [(Part, u32); 7] = [
        (Part::Crashes(None), 3),
        (Part::Instructions, 1),
        (Part::Kills, 2),
        (Part::Races, 1),
        (Part::Model, 1),
        (Part::Hostile, 1),
        (Part::Journal, 1),
    ];

    /// The part with a name.
    pub fn parse(name: &str) -> Result<Part, String> {
        if let Some((part, _)) = Part::ALL.into_iter().find(|(part, _)| part.name() == name) {
            return Ok(part);
        }
        let known = Group::ALL.into_iter().find(|group| format!("{group:?}").eq_ignore_ascii_case(name));
        known.map(|group| Part::Crashes(Some(group))).ok_or_else(|| {
            "the parts are crashes (or of these singles, setups, pages, pairs or threads), instructions, kills, races, model, hostile and journal".to_owned()
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Crashes(_) => "crashes",
            Part::Instructions => "instructions",
            Part::Kills => "kills",
            Part::Races => "races",
            Part::Model => "model",
            Part::Hostile => "hostile",
            Part::Journal => "journal",
        }
    }

    /// Runs the part.
    pub fn run(self, run: &Run, duration: Duration, live: &mut Live) -> Result<PartReport> {
        let mut report = |what: &str| live.print(self.name(), what);
        match self {
            Part::Crashes(group) => crashes(run, Source::Recorder, group, duration, &mut report),
            Part::Instructions => {
                Stepper::default().check_permitted().map_err(anyhow::Error::msg)?;
                crashes(run, Source::Instructions, None, duration, &mut report)
            }
            Part::Kills => kills(run, duration, &mut report),
            Part::Races => race(duration, run.seed, RACERS, &mut report),
            Part::Model => compare_with_model(run.seed, duration, &mut report),
            Part::Hostile => hostile_images(run.seed, duration, &mut report),
            Part::Journal => explore_journal(run.seed, duration, &mut report),
        }
    }
}

/// The results of a part.
pub struct PartReport {
    /// For programs.
    pub json: Value,
    /// For display: a table or a line.
    pub text: String,
    /// The number of violations. Each was also reported immediately.
    pub violations: usize,
}

type Report<'s> = &'s mut dyn FnMut(&str);

fn violation(what: &dyn std::fmt::Display) {
    eprintln!("\nVIOLATION {what}");
}

fn crashes(
    run: &Run,
    source: Source,
    group: Option<Group>,
    duration: Duration,
    report: Report<'_>,
) -> Result<PartReport> {
    // A second thread is not traced: its workload runs in one.
    let from = run.from.clone().map(|name| if source == Source::Instructions { name.replace('!', "") } else { name });
    let first = match from {
        None => 0,
        Some(name) => {
            match campaign::workloads(source, group).iter().position(|(_, workload)| workload.to_string() == name) {
                None => bail!("--from {name}: unknown workload in this part; `torture list` lists all"),
                Some(first) => first,
            }
        }
    };
    let threads = run.threads.unwrap_or(1);
    let plan = Plan { duration, seed: run.seed, threads, effort: Effort::FULL, source, group, first };
    let outcome = campaign::run(&plan, &mut |progress| report(&how_far(progress)), &|what| violation(what));
    let lines = outcome.lines.iter().map(|(group, line)| Ok((group.name().to_owned(), to_value(line)?)));
    let groups: Map<_, _> = lines.collect::<Result<_>>()?;
    let violations: Vec<_> =
        outcome.violations.iter().map(|each| json!({ "id": each.id, "what": each.what })).collect();
    let json = json!({
        "threads": threads, "rounds": outcome.rounds, "groups": groups, "total": outcome.total(), "violations": violations,
    });
    let mut text = outcome.table();
    if source == Source::Instructions {
        text += &format!("{} instructions traced\n", outcome.total().counts.instructions);
    }
    Ok(PartReport { json, text, violations: outcome.violations.len() })
}

fn how_far(progress: &Progress) -> String {
    let Progress { elapsed, round, workload: (at, all), states, violations, at: name } = progress;
    let rate = *states as f64 / elapsed.as_secs_f64();
    format!("round {round}  workload {at}/{all}  {states} states ({rate:.0}/s)  {violations} violations  {name:.40}")
}

fn kills(run: &Run, duration: Duration, report: Report<'_>) -> Result<PartReport> {
    let (access_methods, directfs) = access_methods(run)?;
    let (seed, workers) = (run.seed, WORKERS);
    let plan = storm::Plan {
        duration,
        rounds_min: 1,
        kills: KILLS,
        seed,
        workers,
        access_methods,
        directfs,
        arguments: String::new(),
    };
    let mut tell = |outcome: &storm::Outcome| {
        let storm::Counts { rounds, kills, servers, calls, violations, .. } = outcome.total();
        report(&format!(
            "{rounds} rounds  {kills} workers and {servers} servers killed  {calls} calls  {violations} violations"
        ));
    };
    let outcome = storm::run(&plan, &mut tell, &|what| violation(&what))?;
    let lines = outcome.lines.iter().map(|(access, line)| Ok((access.name().to_owned(), to_value(line)?)));
    let access_methods: Map<_, _> = lines.collect::<Result<_>>()?;
    let json = json!({ "fronts": access_methods, "total": outcome.total(), "violations": outcome.violations });
    Ok(PartReport { json, text: outcome.table(), violations: outcome.violations.len() })
}

/// The fronts that can be tested on this machine, and the program that they need. Missing ones are
/// reported.
fn access_methods(run: &Run) -> Result<(Vec<AccessMethod>, Option<PathBuf>)> {
    if let Some(program) = &run.directfs {
        ensure!(program.is_file(), "--directfs {}: the file does not exist", program.display());
    }
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("directfs"));
    let directfs = run.directfs.clone().or(beside).filter(|program| program.is_file());
    if directfs.is_none() {
        eprintln!(
            "There is no directfs next to this program: only the library is tested. Build it (`cargo build --release -p directfs-cli`) or specify it with --directfs."
        );
        return Ok((vec![AccessMethod::Library], None));
    }
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("/dev/fuse cannot be opened: mounts are not tested. Load the module (modprobe fuse).");
        return Ok((vec![AccessMethod::Library, AccessMethod::Run], directfs));
    }
    Ok((AccessMethod::ALL.to_vec(), directfs))
}

/// Races threads.
pub fn race(duration: Duration, seed: u64, threads: usize, report: Report<'_>) -> Result<PartReport> {
    let plan = Races { duration, histories_max: 0, seed, threads };
    let outcome = races(&plan, &mut |outcome| {
        report(&format!("{} histories  {} violations", outcome.histories, outcome.violations.len()))
    })?;
    outcome.violations.iter().for_each(|what| violation(what));
    let torture::races::Outcome { histories, overlapping, calls, images, violations } = &outcome;
    let count = violations.len();
    let text = format!(
        "{histories} histories of {threads} threads, {overlapping} of them with overlapping calls; {calls} calls; {images} images checked afterwards; {count} violations\n"
    );
    let json = json!({
        "threads": threads, "histories": histories, "overlapping": overlapping, "calls": calls, "images": images, "violations": violations,
    });
    Ok(PartReport { json, text, violations: count })
}

fn compare_with_model(seed: u64, duration: Duration, report: Report<'_>) -> Result<PartReport> {
    let begun = Instant::now();
    let mut world = World::default();
    let (mut total, mut sequences, mut violations) = (model::Counts::default(), 0, Vec::new());
    while (begun.elapsed() < duration || sequences == 0) && violations.is_empty() {
        report(&format!("{sequences} sequences, {} calls passed", total.calls));
        match model::run(&mut world, seed + sequences, DRAWN) {
            Ok(counts) => total += counts,
            Err(failure) => {
                violation(&failure);
                violations.push(failure.to_string());
            }
        }
        sequences += 1;
    }
    let model::Counts { calls, refused, detaches, crashes, comparisons } = total;
    let text = format!(
        "{sequences} sequences, {calls} calls ({refused} refused), {detaches} clean detaches, {crashes} crashes, {comparisons} comparisons of trees; {} violations\n",
        violations.len()
    );
    let json = json!({ "sequences": sequences, "total": total, "violations": violations });
    Ok(PartReport { json, text, violations: violations.len() })
}

/// Each seed is a workload with commits and checkpoints, on a disk whose calls fail or do not.
fn explore_journal(seed: u64, duration: Duration, report: Report<'_>) -> Result<PartReport> {
    let begun = Instant::now();
    let (mut workloads, mut states, mut violations) = (0, 0, Vec::new());
    while begun.elapsed() < duration || workloads == 0 {
        for failures in [false, true] {
            let what = format!("journal seed {}, failing calls: {failures}", seed + workloads);
            explore::set_current(&what);
            let crashes = explorer::examine(seed + workloads, failures);
            let deaths = explorer::examine_deaths(seed + workloads, failures);
            match crashes.zip(deaths).map(|(states, refused)| states + refused) {
                Some(examined) => states += examined,
                None => {
                    violation(&what);
                    violations.push(what);
                }
            }
        }
        workloads += 1;
        report(&format!("{workloads} workloads  {states} states  {} violations", violations.len()));
    }
    let count = violations.len();
    let text = format!("{workloads} workloads, {states} crash states of the disk; {count} violations\n");
    let json = json!({ "workloads": workloads, "states": states, "violations": violations });
    Ok(PartReport { json, text, violations: count })
}

/// Here a panic ends the process, and so does a hang; the case is reported.
fn hostile_images(seed: u64, duration: Duration, report: Report<'_>) -> Result<PartReport> {
    let begun = Instant::now();
    let mut arena = Arena::default();
    let done = Arc::new(AtomicU64::new(0));
    watch(seed, Arc::downgrade(&done));
    while begun.elapsed() < duration || arena.counts.cases == 0 {
        let index = done.load(Relaxed);
        explore::set_current(&format!("hostile case {index} of seed {seed}"));
        arena.run(&hostile::case(seed, index));
        done.store(index + 1, Relaxed);
        report(&format!("{} images", arena.counts.cases));
    }
    let hostile::Counts { cases, attached, worked, refused, mended, unmended } = arena.counts;
    let text = format!(
        "{cases} images, {attached} of them attached; {worked} operations worked, {refused} were refused; {mended} images repaired, {unmended} not; 0 violations\n"
    );
    Ok(PartReport { json: json!({ "total": arena.counts, "violations": [] }), text, violations: 0 })
}

/// Ends the process if a case hangs. The thread ends when the counter is dropped.
fn watch(seed: u64, done: std::sync::Weak<AtomicU64>) {
    std::thread::spawn(move || {
        let mut seen = (0, Instant::now());
        while let Some(done) = done.upgrade() {
            let index = done.load(Relaxed);
            if index != seen.0 {
                seen = (index, Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                violation(&format!("hostile case {index} of seed {seed} hangs"));
                std::process::abort();
            }
            drop(done);
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}
