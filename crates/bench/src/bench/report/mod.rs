//! The results of the benchmark: one [`Report`], shown as tables ([`table`]), as JSON (its
//! serialisation) and as a page with plots ([`html`]). A kept one is drawn as a picture
//! ([`picture`]).

mod html;
mod picture;
mod table;

pub use html::page;
pub use picture::picture;
pub use table::print;

use super::engine::{self, Scale, Written};
use super::plan::{Section, share_wanted, times_wanted};
use super::statistics::{Figure, Repeats, Summary, TaskRepeats};
use super::subject::Subject;
use super::task::{PhaseName, WorkerKind, Workers};
use super::threads::Scaling;
use super::workloads::calls::Call;
use super::workloads::data;
use crate::arguments::BenchGroup;
use crate::units::{counted, duration, size};
use serde::Serialize;
use std::collections::BTreeSet;

/// Load above which a run is reported as disturbed.
pub const LOAD_QUIET: f64 = 0.5;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Date and time of the run, in the machine's time zone.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// The floor P: one store, flush and fence.
    pub floor: Summary,
    /// The speedup of independent threads, if several threads are measured: at most as many as
    /// processors.
    pub scaling: Option<Scaling>,
    /// The cost of reading the clock twice in this process; already subtracted.
    pub timer_ns: u64,
    /// The measured systems.
    pub subjects: Vec<SubjectReport>,
    /// Systems that could not be measured, with reasons.
    pub absent: Vec<String>,
    /// The tables.
    pub sections: Vec<SectionReport>,
    /// The engine in this process.
    pub engine: Option<EngineReport>,
    /// The load after the run, including this benchmark's own.
    pub load_after: Option<f64>,
    /// Duration in seconds.
    pub took_s: f64,
}

impl Report {
    /// The speedup of independent threads, as text.
    fn scaling_description(&self) -> Option<String> {
        let Scaling { threads, median, least, most } = self.scaling?;
        Some(format!(
            "{threads} independent threads do {median:.2} times as much as one ({least:.2} to {most:.2}): the machine's own scaling"
        ))
    }
}

/// The machine, as context for figures.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// The number of processors.
    pub processors: u32,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// The kernel's version.
    pub kernel: String,
    /// Average load of the last minute before the run: other programs make figures worse.
    pub load_before: Option<f64>,
}

/// A measured file system.
#[derive(Debug, Serialize)]
pub struct SubjectReport {
    /// Its name in tables.
    pub name: String,
    /// Its type and location.
    pub place: String,
    /// The meaning of a cold state there.
    pub cold: &'static str,
    /// The cost of reading the clock in its worker; already subtracted.
    pub timer_ns: u64,
    /// The median time that a disk takes to write and sync 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_ns: Option<f64>,
}

/// A table.
#[derive(Debug, Serialize)]
pub struct SectionReport {
    /// Its group.
    pub group: BenchGroup,
    /// Its heading.
    pub title: String,
    /// An explanation for the reader.
    pub note: Option<String>,
    /// Files in the directory, where that distinguishes the section.
    pub files: Option<u64>,
    /// Number of repeats, of which the median is shown.
    pub repeats: u32,
    /// Whether rows of several members are compared with those of one.
    #[serde(skip)]
    pub scaling: bool,
    /// The names of its subjects, in the order of the cells.
    pub subjects: Vec<String>,
    /// A row for each phase.
    pub rows: Vec<Row>,
    /// Missing measurements.
    pub left_out: BTreeSet<LeftOut>,
}

/// A measurement that a subject lacks, in whole or in part.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOut {
    /// The subject.
    pub subject: String,
    /// The reason.
    pub reason: String,
}

/// One phase on all subjects.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub what: String,
    /// The call, if it is one.
    pub call: Option<Call>,
    /// The unit of its figures.
    pub unit: Unit,
    /// Concurrent members.
    pub members: u32,
    /// As threads or processes.
    pub kind: WorkerKind,
    /// Each in its own directory.
    pub private: bool,
    /// In the order of the subjects.
    pub cells: Vec<Cell>,
    /// DirectFS's speed as a multiple of tmpfs's.
    pub times_tmpfs: Option<f64>,
    /// For an image on the disk: its speed as a multiple of the disk's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_disk: Option<f64>,
    /// As `times_tmpfs`, by medians of single calls, which other programs hardly affect.
    pub times_tmpfs_p50: Option<f64>,
    /// DirectFS's bandwidth as a fraction of memcpy's in the same direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_memcpy: Option<f64>,
    /// The multiple without the program's own time, which is its time outside the kernel on tmpfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_beyond_own: Option<f64>,
    /// The project's goal for the multiple.
    pub times_wanted: Option<f64>,
    /// On mounts: the time of each subject in multiples of tmpfs's, in the order of the subjects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares_of_tmpfs: Vec<Option<f64>>,
    /// The project's goal for the multiple of the mount that has its image alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_wanted: Option<f64>,
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Time per call.
    Call,
    /// Duration.
    Duration,
    /// Operations per second.
    Rate,
    /// Bytes per second.
    Bandwidth,
}

/// One phase on one subject.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The subject.
    pub subject: String,
    /// The measurements.
    #[serde(flatten)]
    pub figure: Option<Figure>,
    /// Calls per second of all members, as a multiple of one member's.
    pub scaling: Option<f64>,
}

impl SubjectReport {
    /// The report of a subject.
    pub fn of(subject: &Subject) -> SubjectReport {
        let (name, mut place, sync_ns) = (subject.name.clone(), subject.place.clone(), subject.sync_ns());
        if let Some(ns) = sync_ns {
            place += &format!("; to write and sync 4 KiB takes {}", duration(ns));
        }
        SubjectReport { name, place, cold: subject.cold, timer_ns: subject.timer_ns(), sync_ns }
    }
}

impl Machine {
    /// The present machine.
    pub fn look() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        Machine {
            processor: model.map_or("unknown processor", |(_, name)| name).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
            memory_bytes: total.and_then(|kib| kib.parse::<u64>().ok()).map(|kib| kib << 10),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load_before: load(),
        }
    }

    /// On one line.
    pub fn description(&self) -> String {
        let memory = self.memory_bytes.map_or_else(String::new, |bytes| format!("{} of memory, ", size(bytes)));
        let processors = counted(self.processors.into(), "processor");
        format!("{}, {processors}, {memory}Linux {}", self.processor, self.kernel)
    }
}

/// The average load of the last minute.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

impl SectionReport {
    /// From the measurements: by task and subject, the repeats of each phase.
    pub fn new(section: &Section, subjects: &[Subject], measured: &[Vec<TaskRepeats>]) -> SectionReport {
        let find = |wanted: &dyn Fn(&Subject) -> bool| subjects.iter().position(wanted);
        let waits_for_disk = section.group == BenchGroup::Durable;
        let peer = |subject: &Subject| if waits_for_disk { subject.is_disk() } else { subject.name == "tmpfs" };
        let pair = find(&Subject::is_directfs).zip(find(&peer));
        let (mut rows, mut left_out) = (Vec::new(), BTreeSet::new());
        for (task, measured) in section.tasks.iter().zip(measured) {
            for (subject, task) in subjects.iter().zip(measured) {
                let reasons = task.phases().iter().filter_map(Repeats::refused).chain(task.left_out());
                let tell = |reason: &str| LeftOut { subject: subject.name.clone(), reason: reason.to_owned() };
                left_out.extend(reasons.map(tell));
            }
            let phases = measured.iter().map(TaskRepeats::phases).max_by_key(|phases| phases.len()).unwrap_or_default();
            for (index, phase) in phases.iter().enumerate() {
                let cells = subjects.iter().zip(measured).map(|(subject, task)| Cell::new(subject, task, index));
                let mut row = Row::new(&phase.what, task.crew, cells.collect());
                row.times_wanted = times_wanted(section.group, &phase.what, task.crew);
                if section.group == BenchGroup::Mount {
                    row.share_wanted = share_wanted(section.group, &phase.what);
                    row.shares_of_tmpfs = find(&peer).map_or_else(Vec::new, |peer| row.shares(peer));
                }
                match waits_for_disk {
                    true => row.times_disk = row.speedup(pair),
                    false => row.compare(pair),
                }
                rows.push(row);
            }
        }
        if section.scaling {
            scale(&mut rows);
        }
        if let (BenchGroup::Data, Some(directfs)) = (section.group, find(&Subject::is_directfs)) {
            compare_with_memcpy(&mut rows, directfs);
        }
        if section.group == BenchGroup::Depth {
            rows.extend(growth(&rows));
        }
        SectionReport {
            group: section.group,
            title: section.title.clone(),
            note: section.note.clone(),
            files: section.files,
            repeats: section.repeats,
            scaling: section.scaling,
            subjects: subjects.iter().map(|subject| subject.name.clone()).collect(),
            rows,
            left_out,
        }
    }
}

impl SectionReport {
    /// From the measurements of systems that send trees to a store.
    pub fn of_store(section: &Section, systems: &[String], measured: &[TaskRepeats]) -> SectionReport {
        let phases = measured.first().map(TaskRepeats::phases).unwrap_or_default();
        let rows = phases.iter().enumerate().map(|(index, phase)| {
            let cell = |(system, task): (&String, &TaskRepeats)| {
                let figure = task.phases().get(index).and_then(Repeats::figure);
                Cell { subject: system.clone(), figure, scaling: None }
            };
            Row::new(&phase.what, Workers::ONE, systems.iter().zip(measured).map(cell).collect())
        });
        let reasons = systems.iter().zip(measured).flat_map(|(system, task)| {
            let refused = task.phases().iter().filter_map(Repeats::refused);
            refused.map(|reason| LeftOut { subject: system.clone(), reason: reason.to_owned() })
        });
        SectionReport {
            group: section.group,
            title: section.title.clone(),
            note: section.note.clone(),
            files: section.files,
            repeats: section.repeats,
            scaling: false,
            subjects: systems.to_vec(),
            rows: rows.collect(),
            left_out: reasons.collect(),
        }
    }
}

impl Row {
    fn new(what: &PhaseName, workers: Workers, cells: Vec<Cell>) -> Row {
        let (call, unit) = match what {
            PhaseName::Call(call) => (Some(*call), Unit::Call),
            PhaseName::Each(_) => (None, Unit::Call),
            PhaseName::Once(_) => (None, Unit::Duration),
            PhaseName::Rate(_) => (None, Unit::Rate),
            PhaseName::Bandwidth(_) => (None, Unit::Bandwidth),
        };
        Row {
            what: what.label().to_owned(),
            call,
            unit,
            members: workers.members,
            kind: workers.kind,
            private: workers.private,
            cells,
            times_tmpfs: None,
            times_disk: None,
            times_tmpfs_p50: None,
            share_of_memcpy: None,
            times_beyond_own: None,
            times_wanted: None,
            shares_of_tmpfs: Vec::new(),
            share_wanted: None,
        }
    }

    /// The first one's speed as a multiple of the second one's.
    fn speedup(&self, pair: Option<(usize, usize)>) -> Option<f64> {
        let median = |at: usize| Some(self.cells.get(at)?.figure.as_ref()?.time.median_ns);
        let (directfs, peer) = pair?;
        Some(median(peer)? / median(directfs)?)
    }

    /// The time of each subject in multiples of one's.
    fn shares(&self, peer: usize) -> Vec<Option<f64>> {
        let median = |cell: &Cell| cell.figure.as_ref().map(|figure| figure.time.median_ns);
        let of = self.cells.get(peer).and_then(median);
        self.cells.iter().map(|cell| Some(median(cell)? / of?)).collect()
    }

    /// Compares DirectFS with tmpfs.
    fn compare(&mut self, pair: Option<(usize, usize)>) {
        let figure = |at: usize| self.cells.get(at)?.figure.as_ref();
        let Some((directfs, peer)) = pair.and_then(|(directfs, peer)| figure(directfs).zip(figure(peer))) else {
            return;
        };
        let (our_ns, their_ns) = (directfs.time.median_ns, peer.time.median_ns);
        self.times_tmpfs = Some(their_ns / our_ns);
        let median = |figure: &Figure| figure.latency?.p50_ns.filter(|&ns| ns > 0.0);
        self.times_tmpfs_p50 = median(peer).zip(median(directfs)).map(|(peer, directfs)| peer / directfs);
        // If hardly any time is left, the quotient is meaningless.
        let beyond = peer.user_ns.map(|own| (their_ns - own, our_ns - own));
        self.times_beyond_own = beyond
            .filter(|(peer, directfs)| peer.min(*directfs) > their_ns / 50.0)
            .map(|(peer, directfs)| peer / directfs);
    }

    /// The name in a table with rows of different crews.
    pub fn label(&self) -> String {
        let kind = if self.kind == WorkerKind::Threads { "thread" } else { "process" };
        match (self.members, self.kind) {
            (1, WorkerKind::Threads) => self.what.clone(),
            (members, WorkerKind::Processes) if members > 1 => format!("{}, {members} processes", self.what),
            (members, _) => format!("{}, {}", self.what, counted(members.into(), kind)),
        }
    }
}

impl Cell {
    fn new(subject: &Subject, task: &TaskRepeats, phase: usize) -> Cell {
        let figure = task.phases().get(phase).and_then(Repeats::figure);
        Cell { subject: subject.name.clone(), figure, scaling: None }
    }
}

/// Compares rows of several members with those of one, and orders rows of the same work next to
/// each other.
fn scale(rows: &mut Vec<Row>) {
    let mut ordered: Vec<Row> = Vec::new();
    while !rows.is_empty() {
        let what = rows[0].what.clone();
        let (same, others) = std::mem::take(rows).into_iter().partition(|row| row.what == what);
        ordered.extend::<Vec<Row>>(same);
        *rows = others;
    }
    let rate = |row: &Row, at: usize| row.cells.get(at)?.figure.as_ref().map(|figure| figure.per_second);
    for index in 0..ordered.len() {
        let Some(one) = ordered.iter().find(|row| row.what == ordered[index].what && row.members == 1) else {
            continue;
        };
        let cells = 0..ordered[index].cells.len();
        let quotient = |at| Some(rate(&ordered[index], at)? / rate(one, at)?);
        let scaling: Vec<Option<f64>> = cells.map(quotient).collect();
        if ordered[index].members > 1 {
            ordered[index].cells.iter_mut().zip(scaling).for_each(|(cell, scaling)| cell.scaling = scaling);
        }
    }
    *rows = ordered;
}

/// Compares reads and writes with memcpy, whose own row is not a file system's and is not compared.
fn compare_with_memcpy(rows: &mut [Row], directfs: usize) {
    let rate = |row: &Row| row.cells.get(directfs)?.figure.as_ref().map(|figure| figure.per_second);
    let copied = |rows: &[Row], what: &str| rows.iter().find(|row| row.what == what).and_then(rate);
    let (to, from) = (copied(rows, data::MEMCPY_TO), copied(rows, data::MEMCPY_FROM));
    for row in rows {
        if [data::MEMCPY_TO, data::MEMCPY_FROM].contains(&row.what.as_str()) {
            (row.times_tmpfs, row.times_tmpfs_p50) = (None, None);
        } else {
            let memcpy = if row.what.starts_with("write") { to } else { from };
            row.share_of_memcpy = rate(row).zip(memcpy).map(|(rate, memcpy)| rate / memcpy);
        }
    }
}

/// The average cost of a further level of a path, from the first depth to the last. Uses medians of
/// single calls because the difference is small.
fn growth(rows: &[Row]) -> Option<Row> {
    let (first, last) = (rows.first()?, rows.last()?);
    let levels = rows.len().checked_sub(1).filter(|&levels| levels > 0)? as f64;
    let median = |cell: &Cell| cell.figure.as_ref()?.latency?.p50_ns;
    let cells = first.cells.iter().zip(&last.cells).map(|(first, last)| {
        let added = median(last).zip(median(first)).map(|(last, first)| (last - first) / levels);
        let time = |ns| Summary { median_ns: ns, min_ns: ns, max_ns: ns };
        let figure = added.map(|ns| Figure {
            time: time(ns),
            latency: None,
            per_second: 0.0,
            user_ns: None,
            system_ns: None,
            requests_per_file: None,
        });
        Cell { subject: first.subject.clone(), figure, scaling: None }
    });
    Some(Row::new(&PhaseName::Each("each further level".into()), Workers::ONE, cells.collect()))
}

/// The engine in this process.
#[derive(Debug, Serialize)]
pub struct EngineReport {
    /// For each number of files.
    pub directories: Vec<EngineDirectoryReport>,
    /// Footprints and recovery.
    pub scale: Option<Scale>,
}

/// Calls of the engine with one number of files.
#[derive(Debug, Serialize)]
pub struct EngineDirectoryReport {
    /// Files in the directory.
    pub files: u64,
    /// Each call.
    pub calls: Vec<EngineCall>,
}

/// One call of the engine.
#[derive(Debug, Serialize)]
pub struct EngineCall {
    /// The call.
    pub call: Call,
    /// Its times.
    #[serde(flatten)]
    pub figure: Figure,
    /// The median in multiples of the floor.
    pub floors: f64,
    /// The design's goal in multiples of the floor.
    pub floors_wanted: Option<f64>,
    /// Its writes, including recycling.
    pub written: Option<Written>,
    /// The maximum number of lines that the design allows.
    pub lines_wanted: Option<f64>,
}

impl EngineReport {
    /// From the measurements.
    pub fn new(measured: engine::Measured, floor: Summary) -> EngineReport {
        let written = |call: Call| measured.written.iter().find(|(counted, _)| *counted == call).map(|pair| pair.1);
        let directory = |(files, calls): (u64, Vec<Repeats>)| {
            let calls = calls.iter().filter_map(|repeats| {
                let PhaseName::Call(call) = repeats.what else { return None };
                let figure = repeats.figure()?;
                let floors = figure.time.median_ns / floor.median_ns;
                let floors_wanted = engine::target_multiple(call, files);
                let lines_wanted = engine::lines_target(call);
                Some(EngineCall { call, figure, floors, floors_wanted, written: written(call), lines_wanted })
            });
            EngineDirectoryReport { files, calls: calls.collect() }
        };
        EngineReport { directories: measured.calls.into_iter().map(directory).collect(), scale: measured.scale }
    }
}
