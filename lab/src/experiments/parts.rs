//! Where the time of programs goes: ByVFS Fig. 1 and Table 1, DirectFS Fig. 1 and 10. The programs
//! are in [`super::programs`].

use super::findings::{Claim, Findings, MEASURED, Measure, Plot, Range, Series};
use super::loops::{Clock, Watch, per_call, read_once, write_file};
use super::machine::{Failure, Machine, Result, Slow, Subject, VfsMachine, machine};
use super::programs::{BYVFS_STEPS, CONTENT, Program, Step, Tree, directories, plan, time};
use super::timed::{ClockCost, OperationTimes, Timed, take_times};
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::calls::Calls;
use crate::nova::Nova;
use crate::pmfs::Pmfs;
use crate::vfs::{DentryCache, VfsOptions};
use pmem::Delays;
use std::time::{Duration, Instant};

/// The parts of a program's time.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    total_ns: f64,
    /// Finding names and inodes in the VFS's caches.
    vfs_lookup_ns: f64,
    notes: OperationTimes,
    /// Calls by path.
    calls: u64,
    /// The first lookup in each directory, if measured separately: mostly the time to build the
    /// index of its names.
    index_ns: f64,
    /// How long the program waited for a processor.
    delayed_ns: f64,
}

impl Parts {
    /// Time to create, keep and remove the VFS's in-memory state.
    fn vfs_metadata_ns(&self) -> f64 {
        let noted = self.notes.lookup_ns + self.notes.metadata_ns + self.notes.data_ns;
        (self.total_ns - noted - self.vfs_lookup_ns).max(0.0)
    }

    fn percent(&self, ns: f64) -> f64 {
        if self.total_ns > 0.0 { 100.0 * ns / self.total_ns } else { 0.0 }
    }

    /// The share of names found in the VFS's caches, in per cent.
    fn hits(&self) -> f64 {
        100.0 * (1.0 - self.notes.names as f64 / self.calls.max(1) as f64).max(0.0)
    }
}

/// Runs work by path and separates its time. `warm_ns` is the cost of one call by path with
/// everything in memory.
fn parts(
    machine: &dyn Machine,
    cost: ClockCost,
    warm_ns: f64,
    work: &dyn Fn(&dyn Calls) -> Result<u64>,
) -> Result<Parts> {
    let mut parts = Parts::default();
    machine.with(&mut |calls| {
        take_times(cost);
        let clock = Clock::start();
        parts.calls = work(calls)?;
        let ns = clock.wall_ns();
        parts.delayed_ns = clock.delayed_ns();
        parts.notes = take_times(cost);
        parts.total_ns = (ns - parts.notes.operations as f64 * cost.whole_ns).max(0.0);
        parts.vfs_lookup_ns = (parts.calls as f64 * warm_ns).min(parts.total_ns);
        Ok(())
    })?;
    Ok(parts)
}

fn timed_nova(size: Size) -> Result<Box<dyn Machine>> {
    Ok(Box::new(VfsMachine::<Timed<Nova<Slow>>, DentryCache>::new(plan(size), VfsOptions::default())?))
}

fn timed_pmfs(size: Size) -> Result<Box<dyn Machine>> {
    Ok(Box::new(VfsMachine::<Timed<Pmfs<Slow>>, DentryCache>::new(plan(size), VfsOptions::default())?))
}

/// Nanoseconds of one stat of a file of the tree with all names in memory.
fn warm_stat_ns(machine: &dyn Machine, tree: &Tree) -> Result<f64> {
    let mut least = f64::MAX;
    machine.with(&mut |calls| {
        for _ in 0..3 {
            let ns = per_call(tree.files.len() as u64, |index| {
                Ok(calls.stat_link(&tree.files[index as usize].0).map(drop)?)
            })?;
            least = least.min(ns);
        }
        Ok(())
    })?;
    Ok(least)
}

/// The parts of programs over the conventional layer, cold: `[memory][program]`.
fn programs_apart(bench: &Bench<'_>, steps: &[Step]) -> Result<Vec<Vec<Parts>>> {
    let (tree, cost) = (Tree::new("/linux", directories(bench.size)), ClockCost::measure());
    let mut machine = timed_nova(bench.size)?;
    let mut all = Vec::new();
    for delays in MEMORIES {
        bench.step(&memory_name(delays))?;
        machine.remount(delays)?;
        time(&*machine, Program::Tar, &tree)?;
        let warm_ns = warm_stat_ns(&*machine, &tree)?;
        time(&*machine, Program::Rm, &tree)?;
        let mut of_programs = Vec::new();
        for (_, program, _) in steps {
            machine.remount(delays)?;
            of_programs.push(parts(&*machine, cost, warm_ns, &|calls| program.run(calls, &tree))?);
            bench.check_stop()?;
        }
        all.push(of_programs);
    }
    Ok(all)
}

fn add_shares(findings: &mut Findings, all: &[Vec<Parts>], steps: &[Step], part: &str, of: &dyn Fn(&Parts) -> f64) {
    for (index, (row, _, _)) in steps.iter().enumerate() {
        let here = all.iter().map(|memory| Some(of(&memory[index]))).collect();
        findings.measures.push(Measure { row: (*row).to_owned(), subject: part.to_owned(), paper: None, here });
    }
}

fn shares(findings: &Findings, title: &str, rows: &[&str], subjects: &[&str]) -> Plot {
    let series = |subject: &&str| findings.series(rows, subject, 0);
    Plot {
        title: title.to_owned(),
        unit: findings.unit.to_owned(),
        x_labels: rows.iter().map(|row| (*row).to_owned()).collect(),
        lines: false,
        basis: MEASURED.to_owned(),
        here: subjects.iter().map(series).collect(),
        paper: Vec::new(),
    }
}

/// The share of path lookup.
pub const BYVFS_FIGURE_1: Experiment = Experiment {
    name: "byvfs-fig1",
    question: "How much of a program's time is path lookup, in the VFS and below it?",
    source: "ByVFS, Fig. 1: NOVA and ext4, cold caches; a drawing, whose text compares the two",
    method: "Programs as in byvfs-fig4 over the NOVA-like file system under the conventional layer, each of whose operations is timed (the cost of the clock is subtracted). FS: looking up names and loading inodes below the VFS. VFS: the cost of a call by path with all names in memory, times the number of calls. The programs' own time, which the paper's totals include, is missing. The lab has no ext4.",
    is_alone: true,
    needs_bytes: |size| plan(size).image_bytes(),
    run: |bench| {
        let all = programs_apart(bench, &BYVFS_STEPS)?;
        let mut findings = Findings::new("% of the time", &MEMORIES);
        add_shares(&mut findings, &all, &BYVFS_STEPS, "VFS lookup", &|parts| parts.percent(parts.vfs_lookup_ns));
        add_shares(&mut findings, &all, &BYVFS_STEPS, "FS lookup", &|parts| parts.percent(parts.notes.lookup_ns));
        findings.notes.push("The paper's text says only how these shares differ between NOVA and ext4 (VFS: 16.5 to 459.6 % more on NOVA), so there is nothing to compare with.".to_owned());
        let rows = BYVFS_STEPS.map(|(row, _, _)| row);
        findings.plots.push(shares(&findings, "Path lookup's share", &rows, &["VFS lookup", "FS lookup"]));
        Ok(findings)
    },
};

/// ByVFS, Table 1: per cent.
const HITS_PAPER: [(&str, f64); 5] = [("du", 14.1), ("find", 69.1), ("ls", 95.8), ("rm", 55.5), ("cp", 95.3)];

/// Hits.
pub const BYVFS_TABLE_1: Experiment = Experiment {
    name: "byvfs-table1",
    question: "How often does the VFS find a name in its caches?",
    source: "ByVFS, Table 1: programs in Linux's sources, cold caches",
    method: "Programs as in byvfs-fig4. A hit is a call by path that does not ask the file system below. Names of directories on the path count only if they miss.",
    is_alone: false,
    needs_bytes: |size| plan(size).image_bytes(),
    run: |bench| {
        let all = programs_apart(bench, &BYVFS_STEPS)?;
        let mut findings = Findings::new("% of calls by path", &MEMORIES);
        add_shares(&mut findings, &all, &BYVFS_STEPS, "NOVA", &Parts::hits);
        for measure in &mut findings.measures {
            measure.paper = HITS_PAPER.iter().find(|(row, _)| *row == measure.row).map(|(_, hits)| *hits);
        }
        for (row, paper) in HITS_PAPER {
            let here = (0..MEMORIES.len()).filter_map(|memory| findings.here(row, "NOVA", memory)).collect();
            let reason = "The paper does not say what it counts. Programs of its time asked more often for the same name than the calls here, and each component of a path may count.";
            findings.claims.push(Claim::share(format!("hits of {row}"), paper, here, reason.to_owned()));
        }
        let rows = HITS_PAPER.map(|(row, _)| row);
        let mut plot = shares(&findings, "Names found in the VFS's caches", &rows, &["NOVA"]);
        plot.paper = vec![Series::new("NOVA", HITS_PAPER.map(|(_, hits)| Some(hits)).to_vec())];
        findings.plots.push(plot);
        Ok(findings)
    },
};

/// Sizes of files read and written whole, in bytes.
const FILE_BYTES: [usize; 3] = [1 << 10, 8 << 10, 32 << 10];

fn small_files(size: Size) -> u64 {
    size.pick(20, 100, 3000)
}

/// Rows of DirectFS's Fig. 1 and 10.
fn figure_1_rows() -> Vec<String> {
    let of = |bytes: &usize| [format!("{}KB_r", bytes >> 10), format!("{}KB_w", bytes >> 10)];
    FILE_BYTES.iter().flat_map(of).chain(["du".to_owned(), "rm".to_owned()]).collect()
}

/// A program that waited for a processor for more than this share of its time says nothing: the
/// parts are timed by the clock.
const DELAYED_MAX: f64 = 0.02;
/// Rounds, at least, until a busy machine is refused, and how long they go on. Each program needs
/// one in which nothing interrupts it.
const TRIES: usize = 12;
const TRIED: Duration = Duration::from_secs(10);

/// The parts of a row in several rounds, the fastest first.
type Rounds = Vec<Parts>;

/// The parts of all rows of Fig. 1 on one machine, in row order, of the rounds in which the program
/// did not wait for a processor. Fails if there are none.
fn figure_1_parts(bench: &Bench<'_>, machine: &mut dyn Machine, delays: Delays) -> Result<Vec<Rounds>> {
    let mut all: Vec<Rounds> = Vec::new();
    let rounds = bench.rounds().min(3);
    let begun = Instant::now();
    for round in (0..).take_while(|round| *round < TRIES || begun.elapsed() < TRIED) {
        let parts = figure_1_round(bench, machine, delays)?;
        all.resize_with(parts.len(), Vec::new);
        for (rounds, parts) in all.iter_mut().zip(parts) {
            // Sizes for tests of function are not measured.
            if bench.size == Size::Tiny || parts.delayed_ns <= DELAYED_MAX * parts.total_ns {
                rounds.push(parts);
                rounds.sort_by(|one, other| one.total_ns.total_cmp(&other.total_ns));
            }
        }
        if round + 1 >= rounds && all.iter().all(|rounds| !rounds.is_empty()) {
            return Ok(all);
        }
    }
    Err(Failure::Busy)
}

fn figure_1_round(bench: &Bench<'_>, machine: &mut dyn Machine, delays: Delays) -> Result<Vec<Parts>> {
    let (tree, cost) = (Tree::new("/linux", directories(bench.size)), ClockCost::measure());
    machine.remount(delays)?;
    time(machine, Program::Tar, &tree)?;
    let warm_ns = warm_stat_ns(machine, &tree)?;
    let mut all = Vec::new();
    for bytes in FILE_BYTES {
        let paths: Vec<Vec<u8>> =
            (0..small_files(bench.size)).map(|index| format!("/small{index:05}").into_bytes()).collect();
        let write = |calls: &dyn Calls| {
            paths.iter().try_for_each(|path| write_file(calls, path, &CONTENT[..bytes], false))?;
            Ok(paths.len() as u64)
        };
        let read = |calls: &dyn Calls| {
            let mut buffer = vec![0; bytes];
            paths.iter().try_for_each(|path| read_once(calls, path, &mut buffer))?;
            Ok(paths.len() as u64)
        };
        machine.remount(delays)?;
        let written = parts(machine, cost, warm_ns, &write)?;
        machine.remount(delays)?;
        let read = parts(machine, cost, warm_ns, &read)?;
        all.push(Parts { index_ns: first_look_ns(machine, delays, &[Vec::new()])?.min(read.total_ns), ..read });
        all.push(written);
        machine.with(&mut |calls| Ok(paths.iter().try_for_each(|path| calls.unlink(path))?))?;
        bench.check_stop()?;
    }
    let index_ns = first_look_ns(machine, delays, &tree.directories)?;
    for program in [Program::Du, Program::Rm] {
        machine.remount(delays)?;
        let parts = parts(machine, cost, warm_ns, &|calls| program.run(calls, &tree))?;
        all.push(Parts { index_ns: index_ns.min(parts.total_ns), ..parts });
    }
    Ok(all)
}

/// Nanoseconds of the first lookup in each of some directories after a mount, in excess of a second
/// one.
fn first_look_ns(machine: &mut dyn Machine, delays: Delays, directories: &[Vec<u8>]) -> Result<f64> {
    machine.remount(delays)?;
    let mut ns = [0.0; 2];
    machine.with(&mut |calls| {
        for ns in &mut ns {
            let watch = Watch::start();
            for directory in directories {
                // The name does not exist; the system must know all names to see that.
                let _ = calls.stat_link(&[directory.as_slice(), b"/nothing"].concat());
            }
            *ns = watch.ns();
        }
        Ok(())
    })?;
    Ok((ns[0] - ns[1]).max(0.0))
}

/// A quantity of a row's rounds with each memory: that of the fastest, and the range of all.
fn of_rounds<'p, P: 'p>(
    memories: impl Iterator<Item = &'p Vec<Vec<P>>>,
    row: usize,
    of: &dyn Fn(&P) -> f64,
) -> Vec<(f64, Range)> {
    let each = memories.map(|rows| &rows[row]);
    each.map(|rounds| (of(&rounds[0]), Range::of(rounds.iter().map(of)))).collect()
}

/// The share of metadata.
pub const DIRECTFS_FIGURE_1: Experiment = Experiment {
    name: "directfs-fig1",
    question: "How much of the time does metadata take?",
    source: "DirectFS, Fig. 1 and section II-C: ext4-dax, NOVA and PMFS, cold caches",
    method: "Files of 1, 8 and 32 KiB, newly written (w) and read right after mounting (r); du and rm on a tree. Metadata is everything but reading and writing content, as timed at the file system below the conventional layer (the cost of the clock is subtracted). The lab has no ext4.",
    is_alone: true,
    needs_bytes: |size| 2 * plan(size).image_bytes(),
    run: |bench| {
        let mut machines = [("NOVA", timed_nova(bench.size)?), ("PMFS", timed_pmfs(bench.size)?)];
        let rows = figure_1_rows();
        let mut findings = Findings::new("% of the time", &MEMORIES);
        for (name, machine) in &mut machines {
            let mut all = Vec::new();
            for delays in MEMORIES {
                bench.step(&format!("{name}, {}", memory_name(delays)))?;
                all.push(figure_1_parts(bench, &mut **machine, delays)?);
            }
            for (index, row) in rows.iter().enumerate() {
                let metadata = |parts: &Parts| parts.percent(parts.total_ns - parts.notes.data_ns);
                findings.add_rounds(row, name, of_rounds(all.iter(), index, &metadata));
            }
        }
        let mean = |rows: &[&str]| -> Vec<f64> {
            let of = |memory| {
                let values: Vec<f64> = rows
                    .iter()
                    .flat_map(|row| ["NOVA", "PMFS"].map(|subject| findings.here(row, subject, memory)))
                    .flatten()
                    .collect();
                values.iter().sum::<f64>() / values.len().max(1) as f64
            };
            (0..MEMORIES.len()).map(of).collect()
        };
        let own = "The paper's totals include the programs' own time and the system calls, which do not exist in one process.";
        let claims = [
            ("metadata's share of reading and writing 1 KiB", &["1KB_r", "1KB_w"][..], 63.5),
            ("metadata's share of reading 32 KiB", &["32KB_r"][..], 33.3),
            ("metadata's share of du and rm", &["du", "rm"][..], 86.5),
        ];
        let claims = claims.map(|(what, rows, paper)| Claim::share(what.to_owned(), paper, mean(rows), own.to_owned()));
        findings.claims.extend(claims);
        let names: Vec<&str> = rows.iter().map(String::as_str).collect();
        findings.plots.push(shares(&findings, "Metadata's share", &names, &["NOVA", "PMFS"]));
        Ok(findings)
    },
};

/// The parts of metadata's time.
pub const DIRECTFS_FIGURE_10: Experiment = Experiment {
    name: "directfs-fig10",
    question: "Which part of the metadata time does DirectFS save?",
    source: "DirectFS, Fig. 10 and section V-E: parts of the metadata time with cold caches; a drawing without numbers",
    method: "As directfs-fig1. Lookup: finding names and inodes; for DirectFS, which has no layers to time, the cost of a call by path with all names in memory, times the number of calls. PFS metadata: for NOVA the rest below the VFS, for DirectFS and NOVA the index of names, measured as the first lookup in each directory. VFS metadata: for NOVA creating and dropping the content of the VFS's caches. \"DirectFS other\": its cachelets and its log, which a clock cannot separate. DirectFS's time is its total time minus that of reading or writing the same bytes in an open file, and at least that of its lookups.",
    is_alone: true,
    needs_bytes: |size| 2 * plan(size).image_bytes(),
    run: |bench| {
        let mut nova = timed_nova(bench.size)?;
        let mut own = machine(Subject::DirectFs, plan(bench.size))?;
        let rows = figure_1_rows();
        let mut findings = Findings::new("ms", &MEMORIES);
        let (mut below, mut ours) = (Vec::new(), Vec::new());
        for delays in MEMORIES {
            bench.step(&memory_name(delays))?;
            below.push(figure_1_parts(bench, &mut *nova, delays)?);
            let content_ns = content_ns(bench, &mut *own, delays)?;
            let parts = figure_1_parts(bench, &mut *own, delays)?;
            let content_ns = content_ns.into_iter().chain(std::iter::repeat(0.0));
            let own = |(rounds, ns): (&Rounds, f64)| rounds.iter().map(|parts| MetadataTime::new(parts, ns)).collect();
            ours.push(parts.iter().zip(content_ns).map(own).collect::<Vec<Vec<_>>>());
        }
        for (index, row) in rows.iter().enumerate() {
            let ms = |of: &dyn Fn(&Parts) -> f64| of_rounds(below.iter(), index, &|parts| of(parts) / 1e6);
            let mut add = |subject: &str, rounds| findings.add_rounds(row, subject, rounds);
            let lookup = |parts: &Parts| parts.vfs_lookup_ns + parts.notes.lookup_ns;
            let rebuilt = |parts: &Parts| parts.index_ns.min(parts.notes.lookup_ns);
            add("NOVA lookup", ms(&|parts| lookup(parts) - rebuilt(parts)));
            add("NOVA VFS metadata", ms(&Parts::vfs_metadata_ns));
            add("NOVA PFS metadata", ms(&|parts| parts.notes.metadata_ns + rebuilt(parts)));
            add("NOVA", ms(&|parts| parts.total_ns - parts.notes.data_ns));
            let own = |of: &dyn Fn(&MetadataTime) -> f64| of_rounds(ours.iter(), index, &|own| of(own) / 1e6);
            add("DirectFS lookup", own(&|own| own.lookup_ns));
            add("DirectFS PFS metadata (index)", own(&|own| own.index_ns));
            add("DirectFS other", own(&|own| own.total_ns - own.lookup_ns - own.index_ns));
            add("DirectFS", own(&|own| own.total_ns));
        }
        for row in &rows {
            let what = format!(
                "DirectFS needs less time for metadata than NOVA: {row} (the drawing has no numbers; any gain counts)"
            );
            let reason = parts_reason(&findings, row);
            findings.claims.push(Claim::any_gain(what, findings.reductions(row, "DirectFS", "NOVA"), reason));
        }
        let names: Vec<&str> = rows.iter().map(String::as_str).collect();
        let subjects = [
            "NOVA lookup",
            "NOVA VFS metadata",
            "NOVA PFS metadata",
            "DirectFS lookup",
            "DirectFS PFS metadata (index)",
            "DirectFS other",
        ];
        findings.plots.push(shares(&findings, "Time for metadata, by part", &names, &subjects));
        Ok(findings)
    },
};

/// The parts of both subjects' time in a row, with each memory.
fn parts_reason(findings: &Findings, row: &str) -> String {
    let of = |subject: &str| {
        let each: Vec<String> = (0..MEMORIES.len())
            .filter_map(|memory| findings.here(row, subject, memory))
            .map(|ms| format!("{ms:.2}"))
            .collect();
        format!("{subject} {}", each.join(" / "))
    };
    let subjects = ["NOVA lookup", "DirectFS lookup", "NOVA PFS metadata", "DirectFS PFS metadata (index)"];
    let parts = subjects.into_iter().chain(["NOVA VFS metadata", "DirectFS other"]);
    format!("The parts for {row} in ms: {}.", parts.map(of).collect::<Vec<_>>().join(", "))
}

/// DirectFS's time for metadata.
struct MetadataTime {
    total_ns: f64,
    lookup_ns: f64,
    index_ns: f64,
}

impl MetadataTime {
    fn new(parts: &Parts, content_ns: f64) -> MetadataTime {
        let lookup_ns = parts.vfs_lookup_ns;
        // The content's time was measured in another run.
        let total_ns = (parts.total_ns - content_ns).max(lookup_ns);
        MetadataTime { total_ns, lookup_ns, index_ns: parts.index_ns.min(total_ns - lookup_ns) }
    }
}

/// Nanoseconds of reading and writing the content of Fig. 1's files in open files, the minimum of
/// several rounds, in row order.
fn content_ns(bench: &Bench<'_>, machine: &mut dyn Machine, delays: Delays) -> Result<Vec<f64>> {
    let mut least = content_round_ns(bench, machine, delays)?;
    for _ in 1..bench.rounds().min(3) {
        let round = content_round_ns(bench, machine, delays)?;
        least.iter_mut().zip(round).for_each(|(least, ns)| *least = least.min(ns));
    }
    Ok(least)
}

fn content_round_ns(bench: &Bench<'_>, machine: &mut dyn Machine, delays: Delays) -> Result<Vec<f64>> {
    machine.remount(delays)?;
    let mut all = Vec::new();
    machine.with(&mut |calls| {
        let count = small_files(bench.size);
        for bytes in FILE_BYTES {
            let mut buffer = vec![0; bytes];
            let file = calls.open(b"/content", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
            let at = |index: u64| index * (bytes as u64).next_multiple_of(4096);
            let written = per_call(count, |index| {
                calls.write(file, at(index), &CONTENT[..bytes])?;
                Ok(())
            })?;
            let read = per_call(count, |index| {
                calls.read(file, at(index), &mut buffer)?;
                Ok(())
            })?;
            calls.close(file)?;
            calls.unlink(b"/content")?;
            all.extend([read * count as f64, written * count as f64]);
        }
        Ok(())
    })?;
    Ok(all)
}
