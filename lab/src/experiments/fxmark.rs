//! FxMark's calls with as many threads as the machine has processors: each in a place of its own
//! (L), all in one directory (M), or all at one file (H).
//!
//! FxMark (Min et al., ATC 2016) is what later file systems for persistent memory are compared
//! with. None of the three papers has these numbers in its text, so there are no claims.

use super::findings::{Findings, MEASURED, Plot, Range};
use super::loops::{Random, write_file};
use super::machine::{Machine, Plan, Result, Subject, machine_for};
use super::threads::{seconds, timed};
use super::{Experiment, MEMORIES, Size, memory_name};
use crate::ablation::Variant;
use crate::calls::Calls;
use crate::physical::MountOptions;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const SUBJECTS: [Subject; 4] = [Subject::Nova, Subject::ByVfs, Subject::Ablated(Variant::AsPrinted), Subject::DirectFs];
const BLOCK: usize = 4096;
/// Blocks of a file that is truncated block by block.
const BLOCKS: u64 = 64;
/// Names of a directory that is listed.
const LISTED: u64 = 64;

/// Where threads meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Each has a directory of its own.
    Low,
    /// All work in one directory.
    Medium,
    /// All work at one file.
    High,
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Truncate,
    Resolve,
    List,
    Create,
    Unlink,
    Rename,
    ReadBlock,
    Append,
}

/// FxMark's names.
const WORKLOADS: [(&str, Act, Sharing); 14] = [
    ("DWTL", Act::Truncate, Sharing::Low),
    ("MRPL", Act::Resolve, Sharing::Low),
    ("MRPM", Act::Resolve, Sharing::Medium),
    ("MRPH", Act::Resolve, Sharing::High),
    ("MRDL", Act::List, Sharing::Low),
    ("MRDM", Act::List, Sharing::Medium),
    ("MWCL", Act::Create, Sharing::Low),
    ("MWCM", Act::Create, Sharing::Medium),
    ("MWUL", Act::Unlink, Sharing::Low),
    ("MWUM", Act::Unlink, Sharing::Medium),
    ("MWRL", Act::Rename, Sharing::Low),
    ("MWRM", Act::Rename, Sharing::Medium),
    ("DRBL", Act::ReadBlock, Sharing::Low),
    ("DWAL", Act::Append, Sharing::Low),
];

impl Act {
    /// Calls of a thread for each of `count` of a cheap one.
    const fn calls(self, count: u64) -> u64 {
        match self {
            Act::List => count.div_ceil(LISTED),
            Act::Truncate => count.div_ceil(BLOCKS) * BLOCKS,
            _ => count,
        }
    }
}

/// Calls of a thread.
const fn calls(size: Size) -> u64 {
    size.pick(16, 512, 20_000)
}

/// Counts of threads: one, powers of two, and as many as there are processors.
pub(super) fn thread_counts() -> Vec<u64> {
    let most = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut counts: Vec<u64> = (0..).map(|power| 1 << power).take_while(|count| *count < most).collect();
    counts.push(most);
    counts
}

fn plan(size: Size) -> Plan {
    let threads = thread_counts().last().copied().unwrap_or(1);
    let files = threads * (calls(size) * 2 + LISTED) + 1000;
    Plan { content_bytes: threads * (calls(size) + BLOCKS) * BLOCK as u64 * 2, ..Plan::of_busy_names(files) }
}

/// The directory of a thread.
fn directory(sharing: Sharing, thread: u64) -> String {
    if sharing == Sharing::Low { format!("/own{thread}") } else { "/shared".to_owned() }
}

/// A file of a thread.
fn path(sharing: Sharing, letter: char, thread: u64, index: u64) -> Vec<u8> {
    let (thread_of_name, index) = if sharing == Sharing::High { (0, 0) } else { (thread, index) };
    format!("{}/{letter}{thread_of_name}-{index:07}", directory(sharing, thread)).into_bytes()
}

/// A workload with some threads.
#[derive(Clone, Copy)]
struct Crowd {
    act: Act,
    sharing: Sharing,
    threads: u64,
    calls: u64,
}

impl Crowd {
    /// Files that a thread needs before it starts, with content.
    fn needed(&self, thread: u64) -> Vec<(Vec<u8>, u64)> {
        let path = |index| path(self.sharing, 'a', thread, index);
        match self.act {
            Act::Truncate => (0..self.calls / BLOCKS).map(|index| (path(index), BLOCKS)).collect(),
            Act::Resolve | Act::Unlink | Act::Rename => (0..self.calls).map(|index| (path(index), 0)).collect(),
            Act::List => (0..LISTED).map(|index| (path(index), 0)).collect(),
            Act::ReadBlock => vec![(path(0), BLOCKS)],
            Act::Append => vec![(path(0), 0)],
            Act::Create => Vec::new(),
        }
    }

    /// Makes what the threads need.
    fn prepare(&self, calls: &dyn Calls) -> Result<()> {
        for thread in 0..self.threads {
            let made = calls.mkdir(directory(self.sharing, thread).as_bytes(), 0o755);
            if made != Err(posix::Errno::EEXIST) {
                made?;
            }
            for (path, blocks) in self.needed(thread) {
                match blocks {
                    // Of threads at one file, the first makes it.
                    0 if calls.stat(&path).is_ok() => {}
                    0 => calls.create(&path, 0o644)?,
                    blocks => write_file(calls, &path, &vec![7; BLOCK * blocks as usize], false)?,
                }
            }
        }
        Ok(())
    }

    /// Removes everything.
    fn clear(&self, calls: &dyn Calls) -> Result<()> {
        for thread in 0..self.threads {
            let directory = directory(self.sharing, thread);
            let mut names = Vec::new();
            match calls.read_directory(directory.as_bytes(), &mut |name, _| names.push(name.to_vec())) {
                // An earlier thread's was the same.
                Err(posix::Errno::ENOENT) => continue,
                listed => listed?,
            }
            for name in names {
                calls.unlink(&[directory.as_bytes(), b"/", &name].concat())?;
            }
            calls.rmdir(directory.as_bytes())?;
        }
        Ok(())
    }

    /// A thread's calls.
    fn work(&self, calls: &dyn Calls, thread: u64) -> Result<()> {
        let at = |letter, index| path(self.sharing, letter, thread, index);
        let (mut random, mut buffer) = (Random(thread), vec![0; BLOCK]);
        match self.act {
            Act::Create => (0..self.calls).try_for_each(|index| Ok(calls.create(&at('b', index), 0o644)?)),
            Act::Unlink => (0..self.calls).try_for_each(|index| Ok(calls.unlink(&at('a', index))?)),
            Act::Rename => {
                (0..self.calls).try_for_each(|index| Ok(calls.rename(&at('a', index), &at('b', index), 0)?))
            }
            Act::Resolve => (0..self.calls).try_for_each(|_| {
                // In a shared directory also the files of others.
                let owner = if self.sharing == Sharing::Low { thread } else { random.below(self.threads) };
                let path = path(self.sharing, 'a', owner, random.below(self.calls));
                Ok(calls.stat(&path).map(drop)?)
            }),
            Act::List => (0..self.calls).try_for_each(|_| {
                let mut names = 0;
                calls.read_directory(directory(self.sharing, thread).as_bytes(), &mut |_, _| names += 1)?;
                std::hint::black_box(names);
                Ok(())
            }),
            Act::Truncate => (0..self.calls / BLOCKS).try_for_each(|index| {
                let file = calls.open(&at('a', index), libc::O_RDWR, 0)?;
                let lengths = (0..BLOCKS).rev().map(|blocks| blocks * BLOCK as u64);
                lengths.into_iter().try_for_each(|length| calls.truncate(file, length))?;
                Ok(calls.close(file)?)
            }),
            Act::ReadBlock => {
                let file = calls.open(&at('a', 0), libc::O_RDONLY, 0)?;
                for _ in 0..self.calls {
                    calls.read(file, random.below(BLOCKS) * BLOCK as u64, &mut buffer)?;
                }
                Ok(calls.close(file)?)
            }
            Act::Append => {
                let file = calls.open(&at('a', 0), libc::O_WRONLY | libc::O_APPEND, 0)?;
                (0..self.calls).try_for_each(|_| calls.append(file, &buffer).map(drop))?;
                Ok(calls.close(file)?)
            }
        }
    }

    /// Millions of calls per second of all threads together, from the first start to the last end.
    fn rate(&self, machine: &dyn Machine) -> Result<f64> {
        let arrived = AtomicU64::new(0);
        let timed = |thread: u64| timed(machine, (&arrived, self.threads), |_| (), |calls| self.work(calls, thread));
        let spans: Vec<Result<[Instant; 2]>> = std::thread::scope(|scope| {
            let timed = &timed;
            let running: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || timed(thread))).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or(Err(posix::Errno::EIO.into()))).collect()
        });
        let seconds = seconds(&spans.into_iter().collect::<Result<Vec<_>>>()?);
        Ok((self.calls * self.threads) as f64 / seconds.max(1e-9) / 1e6)
    }
}

fn row(name: &str, threads: u64) -> String {
    format!("{name}, {threads}")
}

/// FxMark.
pub const FXMARK: Experiment = Experiment {
    name: "fxmark",
    question: "How do FxMark's calls scale with this machine's processors?",
    source: "FxMark (Min et al., ATC 2016), as ArckFS and Odinfs run it; not in the three papers, whose Fig. 7 has three of these calls without numbers",
    method: "Real threads, from one to as many as there are processors. DWTL truncates an own file block by block; MRP resolves paths to own files (L), files of one directory (M), one file (H); MRD lists an own or a shared directory of 64 names for each thread; MWC, MWU, MWR create, unlink and rename in an own or a shared directory; DRBL reads blocks of an own file; DWAL appends blocks to one. The maximum of several rounds, without emulated delay. The model (multicore) has the same calls in one directory for up to 64 processors.",
    is_alone: true,
    needs_bytes: |size| SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let mut findings = Findings::new("million calls/s", &MEMORIES[..1]);
        let counts = thread_counts();
        let shards = MountOptions::default().shards;
        let mut machines = Vec::new();
        for subject in SUBJECTS {
            machines.push(machine_for(subject, plan(bench.size), shards)?);
        }
        for (name, act, sharing) in WORKLOADS {
            for &threads in &counts {
                let crowd = Crowd { act, sharing, threads, calls: act.calls(calls(bench.size)) };
                for (machine, subject) in machines.iter().zip(SUBJECTS) {
                    bench.step(&format!(
                        "{name}, {threads} threads, {}, {}",
                        subject.name(),
                        memory_name(MEMORIES[0])
                    ))?;
                    let mut rates = Vec::new();
                    for _ in 0..bench.rounds() {
                        machine.with(&mut |calls| crowd.prepare(calls))?;
                        rates.push(crowd.rate(&**machine)?);
                        machine.with(&mut |calls| crowd.clear(calls))?;
                    }
                    findings.add_rates(&row(name, threads), subject.name(), vec![Range::of(rates)]);
                }
            }
        }
        for &threads in &counts {
            let rows = WORKLOADS.map(|(name, _, _)| row(name, threads));
            let series = |subject: Subject| findings.series(&rows, subject.name(), 0);
            let plot = Plot {
                title: format!("FxMark's calls, {threads} threads"),
                unit: findings.unit.to_owned(),
                x_labels: WORKLOADS.map(|(name, _, _)| name.to_owned()).to_vec(),
                lines: false,
                basis: MEASURED.to_owned(),
                here: SUBJECTS.map(series).to_vec(),
                paper: Vec::new(),
            };
            findings.plots.push(plot);
        }
        Ok(findings)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_meet_where_the_name_of_the_workload_says() {
        let own = |sharing| [0, 1].map(|thread| path(sharing, 'a', thread, 5));
        let [one, two] = own(Sharing::Low);
        assert!(one.starts_with(b"/own0/") && two.starts_with(b"/own1/"));
        let [one, two] = own(Sharing::Medium);
        assert!(one != two && [one, two].iter().all(|path| path.starts_with(b"/shared/")));
        let [one, two] = own(Sharing::High);
        assert_eq!(one, two);
    }

    #[test]
    fn every_processor_gets_a_thread() {
        let counts = thread_counts();
        assert_eq!(counts[0], 1);
        assert_eq!(counts.last().copied(), std::thread::available_parallelism().ok().map(|count| count.get() as u64));
        assert!(counts.is_sorted());
    }

    #[test]
    fn each_workload_leaves_nothing_and_can_be_repeated() {
        for subject in SUBJECTS {
            let machine = machine_for(subject, plan(Size::Tiny), 2).expect("room");
            for (name, act, sharing) in WORKLOADS {
                let crowd = Crowd { act, sharing, threads: 2, calls: act.calls(calls(Size::Tiny)) };
                for _ in 0..2 {
                    let with = |work: &mut dyn FnMut(&dyn Calls) -> Result<()>| machine.with(work);
                    with(&mut |calls| crowd.prepare(calls)).unwrap_or_else(|why| panic!("{name}: {why}"));
                    assert!(crowd.rate(&*machine).unwrap_or_else(|why| panic!("{name}: {why}")) > 0.0);
                    with(&mut |calls| crowd.clear(calls)).unwrap_or_else(|why| panic!("{name}: {why}"));
                }
                let mut left = 0;
                let listed = machine.with(&mut |calls| Ok(calls.read_directory(b"/", &mut |_, _| left += 1)?));
                assert!(listed.is_ok() && left == 0, "{name} of {} left {left} names", subject.name());
            }
        }
    }
}
