//! `directfs bench`: the project's benchmark.
//!
//! ```text
//!  bench (this process)                        worker, one for each subject
//!  +-------------------------------+  tasks,   +---------------------------------------------+
//!  | plan: sections, tasks         | --JSON--> | workloads: real system calls in a fresh     |
//!  | subjects: scratch directories |           | directory; threads and processes: crew      |
//!  | report: table, JSON, HTML     | <-JSON--- | measure: the clock, single calls, quantiles |
//!  +-------------------------------+ outcomes  +---------------------------------------------+
//! ```
//!
//! The worker is this program again ([`worker`]): started directly for directories of the kernel's
//! file systems, and under `directfs run` for DirectFS. Every subject therefore runs the same
//! machine code. Subjects take turns within each repeat, so that other load on the machine affects
//! all of them. [`engine`] measures the engine in this process, without a worker.
//!
//! Invariants:
//!
//! - Impossible requests (no room, not writable, not empty) are refused before anything is
//!   measured.
//! - However the benchmark ends, its files are removed: by this process, or by the workers if this
//!   one was killed.

mod against;
mod engine;
mod measure;
mod mounts;
mod plan;
mod report;
mod scratch;
mod session;
mod statistics;
mod store;
mod subject;
mod task;
mod threads;
mod worker;
mod workers;
mod workloads;

pub use worker::run as work;

use crate::arguments::{Bench, BenchSubject};
use crate::interrupt;
use crate::terminal::{Of, Progress};
use anyhow::{Context, Result, ensure};
use image::Image;
use plan::{Plan, Section, Set};
use report::{EngineReport, Machine, Report, SectionReport, SubjectReport};
use statistics::TaskRepeats;
use std::path::Path;
use std::time::{Duration, Instant};
use subject::Subject;
use task::Task;
use workloads::durable;

/// Runs the benchmark.
pub fn run(arguments: &Bench) -> Result<()> {
    if let Some(kept) = &arguments.draw {
        return draw(kept);
    }
    if let Some(other) = &arguments.against {
        return against::run(arguments, other);
    }
    interrupt::catch()?;
    let plan = Plan::make(arguments)?;
    if let Some(page) = &arguments.html {
        require_writable(page)?;
    }
    let report = measure(arguments, &plan)?;
    if let Some(page) = &arguments.html {
        let written = std::fs::write(page, report::page(&report));
        written.with_context(|| format!("cannot write {}", page.display()))?;
    }
    crate::terminal::end_with_reader();
    match arguments.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => report::print(&report),
    }
    Ok(())
}

/// Prints the picture of a report that was kept.
fn draw(kept: &Path) -> Result<()> {
    let text = std::fs::read(kept).with_context(|| format!("cannot read {}", kept.display()))?;
    let report = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a report of `directfs bench --json`", kept.display()))?;
    crate::terminal::end_with_reader();
    print!("{}", report::picture(&report).with_context(|| kept.display().to_string())?);
    Ok(())
}

/// Measures everything requested. All files are removed on return.
fn measure(arguments: &Bench, plan: &Plan) -> Result<Report> {
    let started = Instant::now();
    let (mut sets, mut absent) = all_subjects(arguments, plan)?;
    let machine = Machine::look();
    let floor = engine::persist_cost::measure()?;
    let members = plan.members_max().min(machine.processors);
    let scaling = if members > 1 { threads::measure(members) } else { None };
    let timer_ns = measure::timer_ns();
    let steps: u64 = sets.iter().map(|(set, subjects)| plan.steps(*set, subjects.len())).sum();
    let mut meter = Meter::start(steps + plan.store.as_ref().map_or(0, |section| section.repeats.into()));
    let mut sections = Vec::new();
    for (set, subjects) in &mut sets {
        for section in plan.sections(*set) {
            sections.push(match set {
                Set::Usual => measure_section(section, subjects, &mut meter)?,
                Set::Durable => measure_durable(section, subjects, &mut meter)?,
                Set::Mount => {
                    meter.describe("preparing a tree, an archive and a repository");
                    let section = mounts::prepare(section, subjects[0].directory())?;
                    measure_section(&section, subjects, &mut meter)?
                }
            });
        }
    }
    if let Some(section) = &plan.store {
        let (report, without) = store::measure(section, &arguments.image_in, &mut meter)?;
        sections.push(report);
        absent.extend(without);
    }
    drop(meter);
    let mut subjects: Vec<Subject> = sets.into_iter().flat_map(|(_, subjects)| subjects).collect();
    subjects.iter_mut().try_for_each(Subject::end)?;
    let engine = match plan.engine_sizes.is_empty() {
        true => None,
        false => Some(engine::measure(&plan.engine_sizes, |files| plan.repeats(files), timer_ns)?),
    };
    interrupt::check()?;
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        date: crate::units::local_time(crate::units::now_ns()),
        machine,
        floor,
        scaling,
        timer_ns,
        subjects: subjects.iter().map(SubjectReport::of).collect(),
        absent,
        sections,
        engine: engine.map(|measured| EngineReport::new(measured, floor)),
        load_after: report::load(),
        took_s: started.elapsed().as_secs_f64(),
    })
}

/// The sets that have sections, each with its subjects.
type Sets = Vec<(Set, Vec<Subject>)>;

/// The subjects of each set that has sections, ready to be measured; and the reasons for those that
/// the machine does not have.
fn all_subjects(arguments: &Bench, plan: &Plan) -> Result<(Sets, Vec<String>)> {
    let (mut sets, mut absent) = (Vec::new(), Vec::new());
    let has_sections = |set| plan.sections(set).next().is_some();
    for set in Set::ALL.into_iter().filter(|&set| has_sections(set)) {
        let (subjects, without) = match set {
            Set::Usual => subjects(arguments)?,
            Set::Durable => durable_subjects(arguments)?,
            Set::Mount => mounts::subjects(arguments, has_sections(Set::Usual))?,
        };
        absent.extend(without);
        if !subjects.is_empty() {
            sets.push((set, subjects));
        }
    }
    for (set, subjects) in &mut sets {
        let needs = plan.needs(*set)?;
        subject::require_room(subjects, &needs)?;
        subjects.iter_mut().try_for_each(|subject| subject.prepare(&needs))?;
    }
    Ok((sets, absent))
}

/// The available subjects, and the reasons for those that the machine does not have.
fn subjects(arguments: &Bench) -> Result<(Vec<Subject>, Vec<String>)> {
    let mut wanted = arguments.beside.clone();
    if wanted.is_empty() {
        wanted = vec![BenchSubject::Directfs, BenchSubject::Tmpfs];
        if arguments.directories.is_empty() {
            wanted.push(BenchSubject::Disk);
        }
    }
    let (mut subjects, mut absent) = (Vec::new(), Vec::new());
    let journaled = || Subject::journaled(arguments.always_flush);
    // Subjects whose refusal the user can fix come first.
    let named = arguments.directories.iter().map(|path| Subject::named(path)).collect::<Result<Vec<_>>>()?;
    if wanted.contains(&BenchSubject::Directfs) {
        subjects.push(Subject::directfs("directfs", &arguments.image_in, arguments.always_flush)?);
    }
    for (kind, found, what) in [
        (
            BenchSubject::Tmpfs,
            &Subject::tmpfs as &dyn Fn() -> Option<Result<Subject>>,
            "tmpfs: no writable tmpfs was found",
        ),
        (BenchSubject::Disk, &Subject::disk, "the disk: no writable directory on a disk was found"),
        (BenchSubject::Journaled, &journaled, "an image on the disk: no writable directory on a disk was found"),
        (
            BenchSubject::Eatmydata,
            &Subject::disk_without_syncs,
            "the disk under eatmydata: there is no program eatmydata, or no writable directory on a disk",
        ),
    ] {
        if wanted.contains(&kind) {
            match found() {
                Some(subject) => subjects.push(subject?),
                None => absent.push(what.to_owned()),
            }
        }
    }
    subjects.extend(named);
    ensure!(!subjects.is_empty(), "there is nothing to measure: specify a directory or --beside");
    Ok((subjects, absent))
}

/// The subjects of what waits for the disk, and the reason if there is no disk.
fn durable_subjects(arguments: &Bench) -> Result<(Vec<Subject>, Vec<String>)> {
    let always_flush = arguments.always_flush;
    let Some((disk, on_disk)) = Subject::disk().zip(Subject::journaled(always_flush)) else {
        return Ok((Vec::new(), vec!["what waits for the disk: no writable directory on a disk was found".to_owned()]));
    };
    let in_memory = Subject::directfs("directfs, in memory", &arguments.image_in, always_flush)?;
    Ok((vec![on_disk?, disk?, in_memory], Vec::new()))
}

/// [`measure_section`] for what waits for the disk: the note says how long threads waited for the
/// cuts of commits, and how near a durable file is to the least that the disk does.
fn measure_durable(section: &Section, subjects: &mut [Subject], meter: &mut Meter) -> Result<SectionReport> {
    let image = subjects[0].open_image()?;
    let mut report = measure_section(section, subjects, meter)?;
    let mut note = report.note.take().unwrap_or_default();
    let median = |what: &str, subject: usize| {
        let row = report.rows.iter().find(|row| row.what == what)?;
        Some(row.cells.get(subject)?.figure.as_ref()?.time.median_ns)
    };
    if let Some((created_ns, least_ns)) = median(durable::CREATE, 0).zip(median(durable::OVERWRITE, 1)) {
        note += &format!("; a durable file takes {:.2} times the disk's pwrite (aim: 1.4)", created_ns / least_ns);
    }
    if let Some(waits) = image.as_ref().and_then(Image::commit_status).map(|status| status.waits) {
        let below = crate::units::duration(waits.below_ns(999) as f64);
        let waits = crate::units::counted(waits.total(), "wait");
        note += &format!("; {waits} for cuts of commits, 999 of 1,000 below {below} (aim: 1 ms)");
    }
    report.note = Some(note);
    subjects[0].end()?;
    image.map_or(Ok(()), |image| image.close().map(drop))?;
    Ok(report)
}

/// Runs the tasks of a section on all subjects in turn, for the requested number of repeats.
fn measure_section(section: &Section, subjects: &mut [Subject], meter: &mut Meter) -> Result<SectionReport> {
    meter.describe(&section.title);
    let mut measured = Vec::new();
    for task in &section.tasks {
        // A new worker for each task: a worker that has had threads stays slower.
        subjects.iter_mut().try_for_each(Subject::end)?;
        measured.push(measure_task(section, task, subjects, meter)?);
    }
    Ok(SectionReport::new(section, subjects, &measured))
}

/// Runs a task on all subjects in turn; returns the repeats of each.
fn measure_task(
    section: &Section,
    task: &Task,
    subjects: &mut [Subject],
    meter: &mut Meter,
) -> Result<Vec<TaskRepeats>> {
    let mut measured: Vec<TaskRepeats> = subjects.iter().map(|_| TaskRepeats::default()).collect();
    for repeat in 0..section.repeats + u32::from(section.warm_up) {
        let warms_up = section.warm_up && repeat == 0;
        for (subject, measured) in subjects.iter_mut().zip(&mut measured) {
            let too_long = |subject: &Subject| subject.expected(task).filter(|&expected| expected > section.timeout);
            if let Some(expected) = too_long(subject) {
                measured.leave_out(too_slow(expected, section.timeout));
            } else {
                let outcomes = subject.perform(task, &mut || meter.tick());
                let outcomes = outcomes.with_context(|| format!("{}, on {}", section.title, subject.name))?;
                // Where a round takes too long, the warm-up is the only result.
                if !warms_up || too_long(subject).is_some() {
                    measured.add(&outcomes);
                }
            }
            meter.step();
        }
    }
    Ok(measured)
}

fn too_slow(expected: Duration, timeout: Duration) -> String {
    let result = |time: Duration| crate::units::duration(time.as_nanos() as f64);
    format!("a round takes about {}; rounds above {} are not repeated", result(expected), result(timeout))
}

/// The progress of the measurements.
struct Meter {
    progress: Progress,
    done: u64,
}

impl Meter {
    fn start(steps: u64) -> Meter {
        Meter { progress: Progress::quiet("measuring", Of::Steps(steps.max(1))), done: 0 }
    }

    fn describe(&mut self, what: &str) {
        self.progress.describe(what);
    }

    fn tick(&mut self) {
        self.progress.at(self.done);
    }

    fn step(&mut self) {
        self.done += 1;
        self.tick();
    }
}

/// An error unless a file can be written there; checked before measuring.
fn require_writable(file: &Path) -> Result<()> {
    let shown = file.display();
    ensure!(!file.is_dir(), "{shown} is a directory; specify a file for the page");
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let place = if file.exists() { file } else { directory };
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK)
        .with_context(|| format!("cannot write {shown}; specify a file in a directory that you may write"))
}
