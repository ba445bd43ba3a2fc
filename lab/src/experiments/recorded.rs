//! The second column of experiments: calls in virtual time ([`crate::virtual_time`]).
//!
//! The experiment runs once more, on a machine of its own. Some calls of each row are recorded, the
//! others run as usual.
//!
//! - **Cold** rows begin right after mounting, with all caches empty. The first call, which may
//!   build an index, is recorded and counted once. Some calls follow that only fill the caches, and
//!   then those that count for all others.
//! - **Warm** rows repeat calls, or reverse them. All lines are in the last-level cache at first,
//!   if those of all calls fit there, else in memory. After calls that do not count, the nearer
//!   caches have what all calls share.

use super::findings::{Findings, Medium};
use super::loops::{Act, Meter, per_call};
use super::machine::{Machine, Result, Subject};
use super::{Bench, Size};
use crate::virtual_time::clock::Content;
use crate::virtual_time::kernel::KERNEL;
use crate::virtual_time::memories::Memory;
use crate::virtual_time::{Before, Recorder};
use std::collections::BTreeMap;
use std::ops::Range;

/// Calls that only fill the caches, and the most that count.
const fn calls_recorded(size: Size) -> (u64, u64) {
    match size {
        Size::Tiny => (0, 1),
        Size::Quick | Size::Full => (4, 32),
    }
}

/// Names of a directory. An index that is built at the first call costs the same for each of them.
pub const fn names_recorded(size: Size) -> u64 {
    size.pick(8, 500, 500)
}

/// A row ends early after this many instructions, which linear searches take.
const fn instructions_max(size: Size) -> u64 {
    size.pick(10_000, 500_000, 500_000)
}

/// Calls that count even so.
const fn calls_min(size: Size) -> u64 {
    size.pick(1, 4, 4)
}
/// Longest path of an experiment.
const PATH_MAX: usize = 64;

/// What calls do in all, in each memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of calls.
    pub calls: u64,
    /// Their counts, one for each memory.
    pub each: Vec<Content>,
}

/// A count per call, and what one costs.
pub struct Priced {
    /// What is counted.
    pub what: &'static str,
    /// How many per call.
    pub count: f64,
    /// Picoseconds of one that nothing hides.
    ps: u64,
}

impl Priced {
    /// Nanoseconds of all, one after the other.
    pub fn ns(&self) -> f64 {
        self.count * self.ps as f64 / 1e3
    }
}

/// A count with a useful number of digits.
pub fn digits(count: f64) -> String {
    if count >= 100.0 || count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.1}") }
}

impl Work {
    /// What a call does, at the prices of the memory with this index.
    pub fn priced(&self, index: usize, memory: &Memory) -> [Priced; 7] {
        let counts = self.each.get(index).copied().unwrap_or_default().counts();
        let processor = &memory.processor;
        let prices = [
            ("instructions", processor.instruction_ps),
            ("lines of the image", memory.read_ps),
            ("other lines", processor.memory_ps),
            ("locked instructions", processor.exchange_ps),
            ("flushed lines", memory.flush_ps),
            ("streamed lines", memory.stream_ps),
            ("fences", memory.fence_ps),
        ];
        let of = |index: usize| {
            let (what, ps) = prices[index];
            Priced { what, count: counts[index] as f64 / self.calls.max(1) as f64, ps }
        };
        std::array::from_fn(of)
    }
}

/// Picoseconds per call by row, one for each memory, and what the calls do.
#[derive(Debug, Clone, Default)]
pub struct VirtualTimes {
    rows: BTreeMap<&'static str, (Vec<f64>, Work)>,
}

impl VirtualTimes {
    /// Microseconds per call of a row.
    pub fn microseconds(&self, row: &str, memory: usize) -> Option<f64> {
        self.rows.get(row)?.0.get(memory).map(|ps| ps / 1e6)
    }
}

/// The times of each subject in these memories, if virtual time was asked for. `work` sets a
/// machine up, and runs a round of an experiment with `calls` calls of each row.
pub fn virtual_times(
    bench: &Bench<'_>,
    memories: &'static [Memory],
    subjects: &[Subject],
    calls: u64,
    work: &dyn Fn(Subject, &mut VirtualMeter) -> Result<()>,
) -> Result<Vec<VirtualTimes>> {
    let memories = bench.virtual_memories(memories);
    let subjects = if memories.is_empty() { &[] } else { subjects };
    let of = |subject: &Subject| {
        bench.step(&format!("{}, virtual time", subject.name()))?;
        let mut meter = VirtualMeter::new(bench.size, memories, calls)?;
        work(*subject, &mut meter)?;
        Ok(meter.times())
    };
    subjects.iter().map(of).collect()
}

/// Meters a round of an experiment in virtual time.
pub struct VirtualMeter {
    recorder: Recorder,
    size: Size,
    /// Calls of a row in the experiment, of which fewer are made here.
    calls: u64,
    is_cold: bool,
    times: VirtualTimes,
}

/// The address range of a machine's image.
pub fn image_of(machine: &dyn Machine) -> Range<u64> {
    let memory = machine.named_memory();
    memory.iter().find(|memory| memory.name.starts_with("the image")).map_or(0..0, |image| image.range.clone())
}

impl VirtualMeter {
    /// Starts; everything is to be set up after this.
    pub fn new(size: Size, memories: &[Memory], calls: u64) -> Result<VirtualMeter> {
        let recorder = Recorder::new(memories)?;
        Ok(VirtualMeter { recorder, size, calls, is_cold: false, times: VirtualTimes::default() })
    }

    /// The results.
    pub fn times(self) -> VirtualTimes {
        self.times
    }

    /// Records the first calls of a row.
    fn record(
        &mut self,
        row: &'static str,
        calls: u64,
        call: &mut dyn FnMut(&mut Recorder, u64) -> Result<()>,
    ) -> Result<u64> {
        let memories = self.recorder.memories().to_vec();
        let (filling, counted) = calls_recorded(self.size);
        let mut next = 0;
        let mut first = vec![0; memories.len()];
        if self.is_cold && calls > 0 {
            call(&mut self.recorder, next)?;
            next += 1;
            first = self.recorder.take().spent(calls, &memories).iter().map(|(ps, _)| *ps).collect();
        }
        let counts_from = if calls > next + filling { next + filling } else { next };
        let (mut instructions, mut after) = (0, 0);
        while next < calls
            && after < counted
            && (instructions < instructions_max(self.size) || after < calls_min(self.size))
        {
            if next == counts_from {
                self.recorder.take();
            }
            call(&mut self.recorder, next)?;
            after += u64::from(next >= counts_from);
            instructions += self.recorder.last_steps() as u64;
            next += 1;
        }
        let recorded = self.recorder.take();
        let rest = (calls - u64::from(self.is_cold)) as f64 / recorded.calls.max(1) as f64;
        let of = |(first, each): (&u64, &u64)| (*first as f64 + *each as f64 * rest) / calls.max(1) as f64;
        let (spent, each): (Vec<u64>, Vec<Content>) = recorded.spent(self.calls, &memories).into_iter().unzip();
        let ps = first.iter().zip(&spent).map(of).collect();
        self.times.rows.insert(row, (ps, Work { calls: recorded.calls, each }));
        Ok(next)
    }
}

impl Meter for VirtualMeter {
    fn remounted(&mut self) {
        self.is_cold = true;
    }

    fn act(
        &mut self,
        row: &'static str,
        machine: &dyn Machine,
        paths: &[Vec<u8>],
        order: Option<&[u64]>,
        act: Act,
    ) -> Result<()> {
        let calls = paths.len() as u64;
        let path = |index: u64| &paths[order.map_or(index, |order| order[index as usize]) as usize][..];
        let is_known = self.times.rows.contains_key(row);
        let before = if self.is_cold { Before::Mount } else { Before::Same };
        self.recorder.set_up(&image_of(machine), before);
        machine.with(&mut |with| {
            let mut next = 0;
            if !is_known {
                next = self.record(row, calls, &mut |recorder, index| {
                    let (path, mut near) = (path(index), [0; PATH_MAX]);
                    near[..path.len()].copy_from_slice(path);
                    let near = &near[..path.len()];
                    Ok(recorder.call(&[near.as_ptr_range()], || act(with, near))??)
                })?;
            }
            per_call(calls - next, |index| Ok(act(with, path(next + index))?)).map(drop)
        })?;
        self.is_cold = false;
        Ok(())
    }

    fn count(&mut self, _: &'static str) {}
}

/// Adds the virtual columns to measures whose other columns are complete, and what calls do. Each
/// row is one call.
pub fn add_columns(findings: &mut Findings, times: &[VirtualTimes], subjects: &[Subject]) {
    let is_recorded = |medium: &&Medium| matches!(medium, Medium::Home(_) | Medium::Virtual(_));
    let memories = findings.memories.iter().filter(is_recorded).count();
    let kernel = findings.memories.iter().any(|medium| matches!(medium, Medium::Kernel(_)));
    let home = findings.home().map(|(index, memory)| (index, *memory)).filter(|_| kernel);
    for measure in &mut findings.measures {
        let of = subjects.iter().position(|subject| subject.name() == measure.subject);
        let times = of.and_then(|index| times.get(index));
        let value = |memory| times.and_then(|times| times.microseconds(&measure.row, memory));
        measure.here.extend((0..memories).map(value));
        measure.here.extend(home.map(|(index, memory)| {
            let has_vfs = of.is_some_and(|index| subjects[index].has_vfs());
            Some(value(index)? + KERNEL.call_ps(&memory.processor, has_vfs) as f64 / 1e6)
        }));
        if let Some((_, work)) = times.and_then(|times| times.rows.get(&measure.row[..])) {
            findings.work.insert((measure.row.clone(), measure.subject.clone()), work.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Measure;
    use super::*;
    use crate::virtual_time::memories::{DRAM, OPTANE};

    #[test]
    fn a_kernel_adds_its_cost_on_the_papers_machine_and_its_lookup_where_the_vfs_walks() {
        let subjects = [Subject::Nova, Subject::CacheletNova, Subject::DirectFs];
        let mut findings = Findings::new("µs", &[]).with_virtual(&[DRAM, OPTANE], &OPTANE).with_kernel();
        for subject in subjects {
            let measure =
                |row: &str| Measure { row: row.into(), subject: subject.name().into(), paper: None, here: vec![] };
            findings.measures.extend(["stat", "not recorded"].map(measure));
        }
        let times = VirtualTimes { rows: BTreeMap::from([("stat", (vec![3e6, 5e6], Work::default()))]) };
        add_columns(&mut findings, &vec![times; subjects.len()], &subjects);
        for (subject, has_vfs) in subjects.into_iter().zip([true, false, false]) {
            let at = |memory| findings.here("stat", subject.name(), memory).expect("it was recorded");
            assert_eq!([at(0), at(1)], [3.0, 5.0]);
            let added_ps = ((at(2) - 5.0) * 1e6).round() as u64;
            assert_eq!(added_ps, KERNEL.call_ps(&OPTANE.processor, has_vfs), "{}", subject.name());
        }
        let unknown = findings.measures.iter().filter(|measure| measure.row == "not recorded");
        assert!(unknown.flat_map(|measure| &measure.here).all(Option::is_none));
    }
}
