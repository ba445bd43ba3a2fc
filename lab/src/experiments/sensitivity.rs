//! Where each idea pays: gains by the memory's latency and the processor's speed, in virtual time.

use super::findings::{Findings, HeatMap, Measure, less};
use super::loops::{Measured, Meter, create, shuffled, stat, unlink};
use super::machine::{Machine, Plan, Result, Subject, machine};
use super::recorded::{VirtualMeter, VirtualTimes, names_recorded};
use super::{Bench, Experiment, Size};
use crate::virtual_time::memories::{DRAM, EPYC, Memory, Processor};
use pmem::Delays;

/// Reads of the image in nanoseconds: near DRAM, DRAM of the reference processor, Optane and the
/// nearest CXL cards, the farthest ones.
const READS: [(u64, &str); 5] = [(85, "85 ns"), (150, "150 ns"), (300, "300 ns"), (600, "600 ns"), (1000, "1000 ns")];
/// Picoseconds of an instruction: twice the reference processor's speed, its own, the Xeons', half
/// of that.
const INSTRUCTIONS: [(u64, &str); 4] = [(35, "35 ps"), (70, "70 ps"), (135, "135 ps"), (270, "270 ps")];
const MACHINES: usize = READS.len() * INSTRUCTIONS.len();

const fn with(read: (u64, &'static str), instruction_ps: u64) -> Memory {
    let processor = Processor { name: "varied", instruction_ps, memory_ps: 85_000, ..EPYC };
    Memory { name: read.1, source: "varied", processor, read_ps: read.0 * 1000, ..DRAM }
}

/// All pairs: the memories of the first processor, then those of the next.
const GRID: [Memory; MACHINES] = {
    let mut grid = [DRAM; MACHINES];
    let mut index = 0;
    while index < MACHINES {
        grid[index] = with(READS[index % READS.len()], INSTRUCTIONS[index / READS.len()].0);
        index += 1;
    }
    grid
};

const COLD_STAT: &str = "cold stat";
const CREATE: &str = "create";
const UNLINK: &str = "unlink";
const SUBJECTS: [Subject; 5] =
    [Subject::Nova, Subject::ByVfs, Subject::CacheletNova, Subject::SoupFs, Subject::DirectFs];
/// The ideas: a subject and a row in which it gains over NOVA.
const IDEAS: [(Subject, &str, &str); 6] = [
    (Subject::ByVfs, COLD_STAT, "ByVFS: no dentry cache"),
    (Subject::CacheletNova, COLD_STAT, "NOVA_N: the global index alone"),
    (Subject::DirectFs, COLD_STAT, "DirectFS: index and extended dentries"),
    (Subject::DirectFs, CREATE, "DirectFS: a log of dentries"),
    (Subject::SoupFs, CREATE, "SoupFS: persisters flush later"),
    (Subject::SoupFs, UNLINK, "SoupFS: persisters flush later"),
];

fn plan(size: Size) -> Plan {
    Plan::of_files(names_recorded(size) * 4 + 100)
}

/// A subject's times on all machines.
fn times(bench: &Bench<'_>, subject: Subject) -> Result<VirtualTimes> {
    let count = names_recorded(bench.size);
    let named = |letter: char| (0..count).map(|index| format!("/directory/{letter}{index}").into_bytes()).collect();
    let (old, new): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (named('o'), named('n'));
    let mut meter = VirtualMeter::new(bench.size, &GRID, count)?;
    let mut machine = machine(subject, plan(bench.size))?;
    machine.with(&mut |calls| {
        calls.mkdir(b"/directory", 0o755)?;
        old.iter().try_for_each(|path| calls.create(path, 0o644))?;
        Ok(calls.sync()?)
    })?;
    machine.remount(Delays::default())?;
    meter.remounted();
    meter.act(COLD_STAT, &*machine, &old, Some(&shuffled(count)), stat)?;
    // The first round fills caches and free lists.
    warm(&*machine, &new, &mut Measured::default())?;
    warm(&*machine, &new, &mut meter)?;
    Ok(meter.times())
}

fn warm(machine: &dyn Machine, paths: &[Vec<u8>], meter: &mut dyn Meter) -> Result<()> {
    for (row, act) in [(CREATE, create as super::loops::Act), (UNLINK, unlink)] {
        meter.act(row, machine, paths, None, act)?;
        machine.with(&mut |calls| Ok(calls.sync()?))?;
    }
    Ok(())
}

/// The gains of an idea over NOVA in per cent, by machine.
fn gains(all: &[VirtualTimes], subject: Subject, row: &str) -> Vec<Option<f64>> {
    let of = |wanted: Subject, machine: usize| {
        let index = SUBJECTS.iter().position(|subject| *subject == wanted)?;
        all.get(index)?.microseconds(row, machine)
    };
    let gain = |machine| Some(less(of(subject, machine)?, of(Subject::Nova, machine)?));
    (0..MACHINES).map(gain).collect()
}

/// The maps.
pub const SENSITIVITY: Experiment = Experiment {
    name: "sensitivity",
    question: "On which machines does each idea pay?",
    source: "In no paper: their claims are of one machine each",
    method: "Recorded calls replayed on 20 machines, which differ in the latency of the image's memory and in the time of an instruction; the rest is the reference processor's, with ordinary memory of 85 ns. Optane is at 300 ns and 135 ps, the reference processor's DRAM at 150 ns and 70 ps, CXL cards from 300 to 750 ns and 70 ps. Virtual time only, also with --clock. Names in one directory, at most 500.",
    is_alone: false,
    needs_bytes: |size| SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let mut all = Vec::new();
        for subject in SUBJECTS {
            bench.step(subject.name())?;
            all.push(times(bench, subject)?);
        }
        let columns: [Memory; READS.len()] = std::array::from_fn(|index| GRID[index]);
        let mut findings = Findings::new("µs per call", &[]).with_virtual(&columns, &columns[2]);
        for row in [COLD_STAT, CREATE, UNLINK] {
            for (index, (_, instruction)) in INSTRUCTIONS.iter().enumerate() {
                let machines = index * READS.len()..(index + 1) * READS.len();
                findings.measures.extend(SUBJECTS.iter().zip(&all).map(|(subject, times)| Measure {
                    row: format!("{row}, {instruction}"),
                    subject: subject.name().to_owned(),
                    paper: None,
                    here: machines.clone().map(|machine| times.microseconds(row, machine)).collect(),
                }));
            }
        }
        for (subject, row, idea) in IDEAS {
            let values = gains(&all, subject, row);
            let rows = INSTRUCTIONS.iter().zip(values.chunks(READS.len()));
            findings.maps.push(HeatMap {
                title: format!("{idea}; {row}, % less time than NOVA"),
                axes: ["a read of the image".to_owned(), "an instruction".to_owned()],
                columns: READS.map(|(_, label)| label.to_owned()).to_vec(),
                rows: rows.map(|((_, label), here)| ((*label).to_owned(), here.to_vec())).collect(),
            });
        }
        Ok(findings)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_of_a_map_are_all_pairs_and_a_row_has_one_processor() {
        for (row, machines) in GRID.chunks(READS.len()).enumerate() {
            assert!(machines.iter().all(|machine| machine.processor.instruction_ps == INSTRUCTIONS[row].0));
            let reads: Vec<u64> = machines.iter().map(|machine| machine.read_ps / 1000).collect();
            assert_eq!(reads, READS.map(|(ns, _)| ns));
        }
    }
}
