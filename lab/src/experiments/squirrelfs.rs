//! Latency of calls under synchronous soft updates, beside the published figures of other systems.

use super::findings::{Claim, Findings, Measure, Plot, less};
use super::loops::{Act, Measured, Meter, create, lines_notes, measures, mkdir, rmdir, stat, unlink};
use super::machine::{Machine, Plan, Result, Subject, machine};
use super::recorded::{VirtualTimes, add_columns, virtual_times};
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::calls::Calls;
use crate::virtual_time::memories::{self, Memory, OPTANE};
use pmem::Delays;

const SUBJECTS: [Subject; 4] = [Subject::Nova, Subject::Pmfs, Subject::SquirrelFs, Subject::DirectFs];
/// Systems with published figures only.
const PUBLISHED: [&str; 2] = ["WineFS", "ArckFS"];

/// Microseconds per call of NOVA, SquirrelFS, WineFS and ArckFS: means over the ten runs of 1,000
/// calls (ArckFS: 100,000) that SquirrelFS's artifact records in evaluation/osdi_output. The row
/// "rename" has none: the artifact's measure_rename moves empty directories, this one files.
const PAPER: [(&str, [f64; 4]); 5] = [
    ("mkdir", [7.71, 5.48, 4.81, 24.55]),
    ("creat", [5.33, 5.17, 4.11, 0.92]),
    ("append 1 KiB", [6.55, 2.04, 2.67, 84.89]),
    ("append 16 KiB", [11.71, 12.39, 11.55, 83.79]),
    ("unlink", [6.07, 7.09, 6.97, 4.96]),
];
const ROWS: [&str; 8] = ["mkdir", "creat", "stat, cold", "stat", "append 1 KiB", "append 16 KiB", "rename", "unlink"];

fn paper(row: &str, subject: &str) -> Option<f64> {
    let column = ["NOVA", "SquirrelFS", "WineFS", "ArckFS"].iter().position(|name| *name == subject)?;
    PAPER.iter().find(|(name, _)| *name == row).map(|(_, values)| values[column])
}

const FROM: &str = "/directory";
const TO: &str = "/other";
const APPENDED: [u8; 16 << 10] = [7; 16 << 10];

fn append(calls: &dyn Calls, path: &[u8], bytes: usize) -> posix::Result<()> {
    let file = calls.open(path, libc::O_WRONLY | libc::O_APPEND, 0)?;
    calls.append(file, &APPENDED[..bytes])?;
    calls.close(file)
}

fn append_1(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    append(calls, path, 1 << 10)
}

fn append_16(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    append(calls, path, 16 << 10)
}

fn empty(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    let file = calls.open(path, libc::O_WRONLY, 0)?;
    calls.truncate(file, 0)?;
    calls.close(file)
}

/// The path of the same name in the other directory.
fn with_other<T>(path: &[u8], use_it: impl FnOnce(&[u8]) -> T) -> T {
    let name = &path[FROM.len()..];
    let mut other = [0u8; 64];
    let length = TO.len() + name.len();
    other[..TO.len()].copy_from_slice(TO.as_bytes());
    other[TO.len()..length].copy_from_slice(name);
    use_it(&other[..length])
}

fn rename(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    with_other(path, |other| calls.rename(path, other, 0))
}

fn rename_back(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    with_other(path, |other| calls.rename(other, path, 0))
}

const fn names(size: Size) -> u64 {
    size.pick(20, 200, 1000)
}

const fn plan(size: Size) -> Plan {
    Plan { content_bytes: names(size) * (20 << 10) * 2, ..Plan::of_files(names(size) * 2 + 100) }
}

fn paths(size: Size) -> Vec<Vec<u8>> {
    (0..names(size)).map(|index| format!("{FROM}/file{index}").into_bytes()).collect()
}

fn made(subject: Subject, size: Size) -> Result<Box<dyn Machine>> {
    let machine = machine(subject, plan(size))?;
    machine.with(&mut |calls| Ok([FROM, TO].iter().try_for_each(|path| calls.mkdir(path.as_bytes(), 0o755))?))?;
    Ok(machine)
}

/// The life of some directories, and of some files.
fn round(machine: &mut dyn Machine, delays: Delays, paths: &[Vec<u8>], meter: &mut dyn Meter) -> Result<()> {
    let all = |machine: &dyn Machine, act: Act| {
        machine.with(&mut |calls| Ok(paths.iter().try_for_each(|path| act(calls, path))?))
    };
    meter.act("mkdir", machine, paths, None, mkdir)?;
    all(machine, rmdir)?;
    meter.act("creat", machine, paths, None, create)?;
    machine.remount(delays)?;
    meter.remounted();
    meter.act("stat, cold", machine, paths, None, stat)?;
    meter.act("stat", machine, paths, None, stat)?;
    meter.act("append 1 KiB", machine, paths, None, append_1)?;
    all(machine, empty)?;
    meter.act("append 16 KiB", machine, paths, None, append_16)?;
    meter.act("rename", machine, paths, None, rename)?;
    all(machine, rename_back)?;
    meter.act("unlink", machine, paths, None, unlink)
}

fn measure_virtual(bench: &Bench<'_>, memories: &'static [Memory]) -> Result<Vec<VirtualTimes>> {
    let paths = paths(bench.size);
    virtual_times(bench, memories, &SUBJECTS, paths.len() as u64, &|subject, meter| {
        let mut machine = made(subject, bench.size)?;
        // As by the clock, the first round fills caches and free lists.
        round(&mut *machine, Delays::default(), &paths, &mut Measured::default())?;
        round(&mut *machine, Delays::default(), &paths, meter)
    })
}

fn measure(bench: &Bench<'_>) -> Result<Vec<Vec<Measured>>> {
    if !bench.is_clocked() {
        return Ok(vec![vec![Measured::default(); SUBJECTS.len()]; MEMORIES.len()]);
    }
    let paths = paths(bench.size);
    let mut machines = SUBJECTS.iter().map(|subject| made(*subject, bench.size)).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for delays in MEMORIES {
        bench.step(&memory_name(delays))?;
        let mut measured = vec![Measured::default(); SUBJECTS.len()];
        // The first round fills caches and free lists.
        for number in 0..=bench.rounds() {
            for (machine, measured) in machines.iter_mut().zip(&mut measured) {
                let mut ignored = Measured::default();
                round(&mut **machine, delays, &paths, if number == 0 { &mut ignored } else { measured })?;
                bench.check_stop()?;
            }
        }
        all.push(measured);
    }
    Ok(all)
}

/// The published figures of calls on names. ArckFS's appends take 7 to 13 times as long as NOVA's,
/// and bars of that length would hide the others.
fn published(findings: &Findings) -> Plot {
    let rows = ["mkdir", "creat", "unlink"];
    let shown = ["NOVA", "SquirrelFS", PUBLISHED[0], PUBLISHED[1]];
    let plot = findings.relative_plot("Published times per call, NOVA = 100 %", &rows, &shown, "NOVA");
    Plot { basis: "SquirrelFS's artifact".to_owned(), here: plot.paper, paper: Vec::new(), ..plot }
}

/// Latencies.
pub const CALLS: Experiment = Experiment {
    name: "squirrelfs-calls",
    question: "What do calls cost if each orders its stores by fences, without a journal?",
    source: "SquirrelFS (LeBlanc et al., OSDI 2024), latencies of system calls: 1,000 files in one directory, 128 GB of Optane DC memory, a Xeon with clwb; the artifact's recorded runs, which have WineFS and ArckFS, too",
    method: "mkdir, creat (here with close), append to an empty file (here with open and close), rename of a file to another directory, unlink of a file with content, in one directory, under the conventional layer; stat is not in the paper, whose figures of rename are of empty directories and left out. WineFS and ArckFS are not built here: their published figures stand beside those of the others. The machine that decides is the DirectFS paper's, which has the same memory.",
    is_alone: false,
    needs_bytes: |size| SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let mut findings = Findings::new("µs per call", &MEMORIES)
            .with_virtual(bench.virtual_memories(&memories::MEMORIES), &OPTANE)
            .with_kernel();
        let measured = measure(bench)?;
        let times = measure_virtual(bench, &memories::MEMORIES)?;
        findings.measures = measures(&measured, &SUBJECTS, &ROWS, &|row, subject| paper(row, subject.name()));
        add_columns(&mut findings, &times, &SUBJECTS);
        let columns = findings.memories.len();
        for (row, _) in PAPER {
            findings.measures.extend(PUBLISHED.map(|name| Measure {
                row: row.to_owned(),
                subject: name.to_owned(),
                paper: paper(row, name),
                here: vec![None; columns],
            }));
        }
        findings.measures.sort_by_key(|measure| ROWS.iter().position(|row| *row == measure.row));
        findings.notes.extend(lines_notes(&measured, &SUBJECTS, &SUBJECTS, &ROWS));
        for (row, [nova, squirrelfs, ..]) in PAPER {
            let (paper, here) = (less(squirrelfs, nova), findings.reductions(row, "SquirrelFS", "NOVA"));
            let (verb, sign) = if paper < 0.0 { ("more", -1.0) } else { ("less", 1.0) };
            findings.claims.push(Claim::gain(
                format!("SquirrelFS takes {verb} time than NOVA for {row}"),
                sign * paper,
                here.into_iter().map(|value| sign * value).collect(),
                findings.because(row, "SquirrelFS", "NOVA"),
            ));
        }
        let shown = SUBJECTS.map(Subject::name);
        findings.plots.push(findings.relative_plot("Time per call, NOVA = 100 %", &ROWS, &shown, "NOVA"));
        findings.plots.push(published(&findings));
        Ok(findings)
    },
};
