//! Latency of metadata calls with increasingly slow writes: SoupFS Fig. 2 and 3.

use super::findings::{Claim, Findings, Plot, Sense, Series, Unit};
use super::loops::{Act, Measured, Meter, create, lines_notes, measures, mkdir, rmdir, unlink};
use super::machine::{Machine, Plan, Result, Subject, machine};
use super::recorded::{VirtualTimes, add_columns, virtual_times};
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::virtual_time::memories::{self, Memory, NVDIMM};
use pmem::Delays;

const SUBJECTS: [Subject; 4] = [Subject::Nova, Subject::Pmfs, Subject::SquirrelFs, Subject::SoupFs];
/// Rows, operations, and the rows of the deferred work.
const CALLS: [(&str, Act, &str); 4] = [
    ("create", create, "create, later"),
    ("unlink", unlink, "unlink, later"),
    ("mkdir", mkdir, "mkdir, later"),
    ("rmdir", rmdir, "rmdir, later"),
];
const ROWS: [&str; 4] = [CALLS[0].0, CALLS[1].0, CALLS[2].0, CALLS[3].0];

/// Number of names: few, since PMFS searches a directory linearly and the papers' latencies are not
/// those of long searches.
const fn names(size: Size) -> u64 {
    size.pick(20, 200, 1000)
}

const fn plan(size: Size) -> Plan {
    Plan::of_files(names(size) * 2 + 100)
}

/// A round of the four calls. Deferred work runs between the timed sections.
fn round(machine: &dyn Machine, paths: &[Vec<u8>], measured: &mut dyn Meter) -> Result<()> {
    for (row, act, later) in CALLS {
        measured.act(row, machine, paths, None, act)?;
        machine.with(&mut |calls| Ok(calls.sync()?))?;
        measured.count(later);
    }
    Ok(())
}

fn paths(size: Size) -> Vec<Vec<u8>> {
    (0..names(size)).map(|index| format!("/directory/name{index}").into_bytes()).collect()
}

fn made(subject: Subject, size: Size) -> Result<Box<dyn Machine>> {
    let machine = machine(subject, plan(size))?;
    machine.with(&mut |calls| Ok(calls.mkdir(b"/directory", 0o755)?))?;
    Ok(machine)
}

/// The calls in virtual time, by subject.
fn measure_virtual(bench: &Bench<'_>, memories: &'static [Memory]) -> Result<Vec<VirtualTimes>> {
    let paths = paths(bench.size);
    virtual_times(bench, memories, &SUBJECTS, paths.len() as u64, &|subject, meter| {
        let machine = made(subject, bench.size)?;
        // As by the clock, the first round fills caches and free lists.
        round(&*machine, &paths, &mut Measured::default())?;
        round(&*machine, &paths, meter)
    })
}

fn measure(bench: &Bench<'_>, memories: &[Delays]) -> Result<Vec<Vec<Measured>>> {
    if !bench.is_clocked() {
        return Ok(vec![vec![Measured::default(); SUBJECTS.len()]; memories.len()]);
    }
    let paths = paths(bench.size);
    let mut machines = SUBJECTS.iter().map(|subject| made(*subject, bench.size)).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for delays in memories {
        bench.step(&memory_name(*delays))?;
        let mut measured = vec![Measured::default(); SUBJECTS.len()];
        for machine in &mut machines {
            machine.remount(*delays)?;
        }
        // The first round fills caches and free lists.
        for number in 0..=3 * bench.rounds() {
            for (machine, measured) in machines.iter().zip(&mut measured) {
                let mut ignored = Measured::default();
                round(&**machine, &paths, if number == 0 { &mut ignored } else { measured })?;
                bench.check_stop()?;
            }
        }
        all.push(measured);
    }
    Ok(all)
}

/// Latencies.
pub const FIGURE_2: Experiment = Experiment {
    name: "soupfs-fig2",
    question: "How long do calls that change metadata take if a persister flushes for them later?",
    source: "SoupFS, Fig. 2 and section 3: NVDIMM as fast as DRAM",
    method: "create (open and close), unlink, mkdir and rmdir in one directory, warm, under the conventional layer. SoupFS's persister runs between the timed sections.",
    is_alone: false,
    needs_bytes: |size| SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let mut findings = Findings::new("µs per call", &MEMORIES)
            .with_virtual(bench.virtual_memories(&memories::MEMORIES), &NVDIMM)
            .with_kernel();
        let measured = measure(bench, &MEMORIES)?;
        let times = measure_virtual(bench, &memories::MEMORIES)?;
        findings.measures = measures(&measured, &SUBJECTS, &ROWS, &|_, _| None);
        add_columns(&mut findings, &times, &SUBJECTS);
        findings.notes.extend(lines_notes(&measured, &SUBJECTS, &SUBJECTS, &ROWS));
        findings.notes.extend(lines_notes(&measured, &SUBJECTS, &[Subject::SoupFs], &CALLS.map(|(_, _, later)| later)));
        let claims = [
            ("SoupFS reduces the latency of NOVA, at least by", "NOVA", 30.0, false),
            ("SoupFS reduces the latency of NOVA, at best by", "NOVA", 80.0, true),
            ("SoupFS reduces the latency of PMFS, at least by", "PMFS", 74.0, false),
            ("SoupFS reduces the latency of PMFS, at best by", "PMFS", 94.0, true),
        ];
        for (what, base, paper, best) in claims {
            let each = ROWS.map(|row| findings.reductions(row, "SoupFS", base));
            let of = |memory: usize| {
                let values = each.iter().filter_map(|row| row.get(memory).copied());
                values.reduce(if best { f64::max } else { f64::min }).unwrap_or(f64::NAN)
            };
            let here = (0..findings.memories.len()).map(of).collect();
            let reason = findings.mean_of(&ROWS, "SoupFS", base);
            findings.claims.push(Claim::gain(what.to_owned(), paper, here, reason));
        }
        findings.plots.push(findings.relative_plot(
            "Time per call, NOVA = 100 %",
            &ROWS,
            &["NOVA", "PMFS", "SquirrelFS", "SoupFS"],
            "NOVA",
        ));
        Ok(findings)
    },
};

/// Delays of each flushed line.
const FLUSH_DELAYS: [Delays; 5] = [
    Delays { read_ns: 0, write_ns: 0 },
    Delays { read_ns: 0, write_ns: 200 },
    Delays { read_ns: 0, write_ns: 400 },
    Delays { read_ns: 0, write_ns: 600 },
    Delays { read_ns: 0, write_ns: 800 },
];

/// The paper's memory with the same delays.
const SLOWER: [Memory; 5] = [
    slower("+0 ns", 0),
    slower("+200 ns", 200),
    slower("+400 ns", 400),
    slower("+600 ns", 600),
    slower("+800 ns", 800),
];

const fn slower(name: &'static str, delay_ns: u64) -> Memory {
    Memory { name, flush_ps: NVDIMM.flush_ps + delay_ns * 1000, ..NVDIMM }
}

/// With delays.
pub const FIGURE_3: Experiment = Experiment {
    name: "soupfs-fig3",
    question: "How do these calls slow down with the memory?",
    source: "SoupFS, Fig. 3 and section 3: a delay after each clflush",
    method: "As soupfs-fig2, with 0 to 800 ns for each flushed line. The delay applies at the fence, for all lines flushed since the last one.",
    is_alone: false,
    needs_bytes: |size| SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let mut findings =
            Findings::new("µs per call", &FLUSH_DELAYS).with_virtual(bench.virtual_memories(&SLOWER), &NVDIMM);
        findings.measures = measures(&measure(bench, &FLUSH_DELAYS)?, &SUBJECTS, &ROWS, &|_, _| None);
        add_columns(&mut findings, &measure_virtual(bench, &SLOWER)?, &SUBJECTS);
        // In virtual time, if it is there.
        let delays = findings.memories.len() - FLUSH_DELAYS.len();
        let growth = |findings: &Findings, subject: &str| {
            let of = |memory| findings.here("unlink", subject, memory).unwrap_or(f64::NAN);
            of(findings.memories.len() - 1) / of(delays)
        };
        for (what, subject, paper, sense) in [
            ("SoupFS's unlink takes as long with 800 ns as without delay: times", "SoupFS", 1.0, Sense::About),
            ("NOVA's unlink takes longer with 800 ns: times (18 µs against 6 µs)", "NOVA", 3.0, Sense::AtLeast(1.0)),
            ("PMFS's unlink takes longer with 800 ns: times (18 µs against 6 µs)", "PMFS", 3.0, Sense::AtLeast(1.0)),
        ] {
            let here = vec![growth(&findings, subject)];
            let reason = "The first and the last column of unlink are compared.".to_owned();
            findings.claims.push(Claim { what: what.to_owned(), unit: Unit::Times, paper, here, sense, reason });
        }
        let first = if bench.is_clocked() { 0 } else { delays };
        let series = |subject: &Subject| {
            let columns = first..first + FLUSH_DELAYS.len();
            Series::new(subject.name(), columns.map(|memory| findings.here("unlink", subject.name(), memory)).collect())
        };
        // The paper's text gives the ends of the lines of NOVA and PMFS.
        let plot = Plot {
            title: "unlink by delay of a flushed line in ns".to_owned(),
            unit: "µs".to_owned(),
            x_labels: FLUSH_DELAYS.iter().map(|delays| format!("{} ns", delays.write_ns)).collect(),
            lines: true,
            basis: if bench.is_clocked() { "measured here" } else { "virtual time" }.to_owned(),
            here: SUBJECTS.iter().map(series).collect(),
            paper: ["NOVA", "PMFS"]
                .map(|name| Series::new(name, vec![Some(6.0), None, None, None, Some(18.0)]))
                .to_vec(),
        };
        findings.plots.push(plot);
        Ok(findings)
    },
};
