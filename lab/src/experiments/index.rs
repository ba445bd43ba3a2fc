//! Time until names can be found: rebuilding the index of a large directory, and mounting after a
//! crash.

use super::findings::{Claim, Findings, MEASURED, Measure, Plot, Range, Series};
use super::fxmark::thread_counts;
use super::loops::Watch;
use super::machine::{Machine, Plan, Recovered, Subject, machine};
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::experiments::Result;
use pmem::Delays;

const MILLION: f64 = 1e6;
const SUBJECTS: [Subject; 4] = [Subject::DirectFs, Subject::Nova, Subject::CacheletNova, Subject::SoupFs];

fn names(size: Size) -> u64 {
    size.pick(100, 20_000, 1_000_000)
}

/// Names of a typical length.
fn path(index: u64) -> Vec<u8> {
    format!("/directory/file{index:07}").into_bytes()
}

/// Milliseconds per million.
fn per_million(ns: f64, count: u64) -> f64 {
    ns / 1e6 * MILLION / count as f64
}

/// A measurement in nanoseconds on a machine with a large directory, which it leaves unchanged.
type Probe = fn(&mut dyn Machine, Delays) -> Result<f64>;

/// The first lookup in the directory after a mount.
fn first_look(machine: &mut dyn Machine, delays: Delays) -> Result<f64> {
    machine.remount(delays)?;
    let mut ns = 0.0;
    machine.with(&mut |calls| {
        let watch = Watch::start();
        calls.stat(&path(0))?;
        ns = watch.ns();
        Ok(())
    })?;
    Ok(ns)
}

/// A mount after a crash.
fn recovery(machine: &mut dyn Machine, delays: Delays) -> Result<f64> {
    Ok(recovered(machine, delays, most_threads())?.mount_ns as f64)
}

fn most_threads() -> usize {
    thread_counts().last().map_or(1, |threads| *threads as usize)
}

fn recovered(machine: &mut dyn Machine, delays: Delays, threads: usize) -> Result<Recovered> {
    machine.remount(Delays::default())?;
    // Recovery needs some activity before the crash.
    machine.with(&mut |calls| {
        calls.create(b"/directory/last", 0o644)?;
        Ok(calls.sync()?)
    })?;
    let recovered = machine.crash(delays, threads)?;
    machine.with(&mut |calls| Ok(calls.unlink(b"/directory/last")?))?;
    Ok(recovered)
}

/// A subject with a large directory.
fn filled(bench: &Bench<'_>, subject: Subject, count: u64) -> Result<Box<dyn Machine>> {
    bench.step(&format!("{count} names in {}", subject.name()))?;
    let machine = machine(subject, Plan::of_names(count))?;
    machine.with(&mut |calls| {
        calls.mkdir(b"/directory", 0o755)?;
        (0..count).try_for_each(|index| calls.create(&path(index), 0o644))?;
        Ok(calls.sync()?)
    })?;
    Ok(machine)
}

/// Some rounds with each memory, in milliseconds per million names.
fn measure(bench: &Bench<'_>, subject: Subject, count: u64, probe: Probe) -> Result<Vec<Range>> {
    let mut machine = filled(bench, subject, count)?;
    let mut all = Vec::new();
    for delays in MEMORIES {
        let mut rounds = Vec::new();
        for _ in 0..bench.rounds().min(3) {
            bench.step(&format!("{}, {}", subject.name(), memory_name(delays)))?;
            rounds.push(per_million(probe(&mut *machine, delays)?, count));
        }
        all.push(Range::of(rounds));
    }
    Ok(all)
}

fn needs(size: Size) -> u64 {
    // Subjects run one after another; caches and indexes need the same amount again.
    Plan::of_names(names(size)).image_bytes() * 2
}

fn plot(findings: &Findings, title: &str, row: &str) -> Plot {
    let subjects: Vec<&str> = SUBJECTS.iter().map(|subject| subject.name()).collect();
    let series = |memory: usize| {
        let each = subjects.iter().map(|subject| findings.series(&[row], subject, memory));
        let (values, ranges) = each.map(|one| (one.values[0], one.ranges[0])).unzip();
        Series { ranges, ..Series::new(&memory_name(MEMORIES[memory]), values) }
    };
    Plot {
        title: title.to_owned(),
        unit: "ms per million names".to_owned(),
        x_labels: subjects.iter().map(|name| (*name).to_owned()).collect(),
        lines: false,
        basis: "measured here".to_owned(),
        here: (0..MEMORIES.len()).map(series).collect(),
        paper: Vec::new(),
    }
}

fn run(bench: &Bench<'_>, probe: Probe, row: &str, paper: f64) -> Result<Findings> {
    let count = names(bench.size);
    let mut findings = Findings::new("ms per million names", &MEMORIES);
    for subject in SUBJECTS {
        let ranges = measure(bench, subject, count, probe)?;
        let here = ranges.iter().map(|range| Some(range.least)).collect();
        let paper = (subject == Subject::DirectFs).then_some(paper);
        let (row, subject) = (row.to_owned(), subject.name().to_owned());
        findings.ranges.insert((row.clone(), subject.clone()), ranges);
        findings.measures.push(Measure { row, subject, paper, here });
    }
    findings.plots.push(plot(&findings, row, row));
    Ok(findings)
}

/// Rebuilding the index.
pub const REBUILD: Experiment = Experiment {
    name: "directfs-rebuild",
    question: "How long does the first lookup in a large directory take?",
    source: "DirectFS, section III-C: 1 million files in one directory, 113 ms with one thread, 16 ms with 24",
    method: "The directory is filled; the file system is unmounted and mounted. Timed is the first stat in the directory. SoupFS has its index on the image and rebuilds nothing.",
    is_alone: false,
    needs_bytes: needs,
    run: |bench| {
        let row = "first stat after a mount";
        let mut findings = run(bench, first_look, row, 113.0)?;
        let here = (0..MEMORIES.len()).filter_map(|memory| findings.here(row, "DirectFS", memory)).collect();
        findings.claims.push(Claim::within_ms(
            "DirectFS indexes a million names in".to_owned(),
            113.0,
            here,
            "Every name costs a random memory line for its entry and one for its slot in the index. At the full size both miss the processor's caches and its page tables.".to_owned(),
        ));
        Ok(findings)
    },
};

fn row_of_scan(threads: u64) -> String {
    format!("scan alone, {threads} threads")
}

/// The part of DirectFS's recovery that threads share, with one thread and more.
fn add_scans(bench: &Bench<'_>, findings: &mut Findings) -> Result<()> {
    let count = names(bench.size);
    let mut machine = filled(bench, Subject::DirectFs, count)?;
    let counts = thread_counts();
    for &threads in &counts {
        let mut ranges = Vec::new();
        for delays in MEMORIES {
            bench.step(&format!("scan, {threads} threads, {}", memory_name(delays)))?;
            let round = |_| {
                let scanned = recovered(&mut *machine, delays, threads as usize)?.scan_ns;
                Ok(per_million(scanned.unwrap_or_default() as f64, count))
            };
            ranges.push(Range::of((0..bench.rounds().min(3)).map(round).collect::<Result<Vec<f64>>>()?));
        }
        let (row, subject) = (row_of_scan(threads), Subject::DirectFs.name().to_owned());
        let here = ranges.iter().map(|range| Some(range.least)).collect();
        findings.ranges.insert((row.clone(), subject.clone()), ranges);
        findings.measures.push(Measure { row, subject, paper: None, here });
    }
    let rows: Vec<String> = counts.iter().map(|threads| row_of_scan(*threads)).collect();
    findings.plots.push(Plot {
        title: "DirectFS's scan alone, by threads".to_owned(),
        unit: findings.unit.to_owned(),
        x_labels: counts.iter().map(u64::to_string).collect(),
        lines: true,
        basis: MEASURED.to_owned(),
        here: vec![findings.series(&rows, Subject::DirectFs.name(), 0)],
        paper: Vec::new(),
    });
    Ok(())
}

/// After a crash.
pub const RECOVERY: Experiment = Experiment {
    name: "directfs-recovery",
    question: "How long does a mount take after a crash?",
    source: "DirectFS, section III-H: all entries of 10 million files identified in 10 ms by 24 threads",
    method: "The directory is filled; the file system is mounted, one name is created, and the process ends without unmounting. Timed is the next mount, with a thread for each processor in DirectFS, and the part of it in which these threads scan the image, with one thread and more. SoupFS needs no recovery.",
    is_alone: true,
    needs_bytes: needs,
    run: |bench| {
        let row = "mount after a crash";
        let mut findings = run(bench, recovery, row, 1.0)?;
        add_scans(bench, &mut findings)?;
        let most = most_threads();
        let scan = row_of_scan(most as u64);
        let of_24 = |ms: f64| ms * most as f64 / 24.0;
        let here =
            (0..MEMORIES.len()).filter_map(|memory| findings.here(&scan, "DirectFS", memory)).map(of_24).collect();
        findings.claims.push(Claim::within_ms(
            format!("DirectFS identifies the entries of a million files with 24 threads (here: the scan with {most}, as if it scaled) in"),
            1.0,
            here,
            "The paper times the identification of allocated entries alone. This scan reads every entry and every inode, and verifies checksums, link counts and orphans. One directory has all names, and one thread walks its log.".to_owned(),
        ));
        Ok(findings)
    },
};
