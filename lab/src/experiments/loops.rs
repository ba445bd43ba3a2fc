//! The measured loops and their parts, shared by all experiments.

use super::findings::Measure;
use super::machine::{Machine, Result, Subject};
use super::memory::{Counts, take_counts};
use crate::calls::Calls;
use std::collections::BTreeMap;
use std::time::Instant;

/// The processor time of a thread that does not wait. Other work on the machine affects it only by
/// evicting cache lines.
pub struct Watch(u64);

impl Watch {
    /// Starts.
    pub fn start() -> Watch {
        Watch(processor_ns())
    }

    /// Nanoseconds since the start.
    pub fn ns(&self) -> f64 {
        processor_ns().saturating_sub(self.0) as f64
    }
}

fn processor_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the given time; every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time by the clock of a thread that may wait for others, without the time that it waited for
/// a processor.
pub struct Clock {
    start: Instant,
    delayed_ns: u64,
}

impl Clock {
    /// Starts, in the thread that is timed.
    pub fn start() -> Clock {
        Clock { delayed_ns: delayed_ns(), start: Instant::now() }
    }

    /// Nanoseconds since the start, by the clock.
    pub fn wall_ns(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64
    }

    /// Nanoseconds for which the thread has waited for a processor.
    pub fn delayed_ns(&self) -> f64 {
        delayed_ns().saturating_sub(self.delayed_ns) as f64
    }

    /// Nanoseconds since the start for which the thread had a processor or waited for others.
    pub fn ns(&self) -> f64 {
        let wall_ns = self.wall_ns();
        (wall_ns - self.delayed_ns()).max(0.0)
    }
}

/// How long the calling thread has waited for a processor; zero where the kernel does not say.
fn delayed_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Nanoseconds per call over `count` calls.
pub fn per_call(count: u64, mut call: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let watch = Watch::start();
    (0..count).try_for_each(&mut call)?;
    Ok(watch.ns() / count.max(1) as f64)
}

/// The numbers below `count` in a fixed pseudo-random order.
pub fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for index in (1..count).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(index as usize, ((state >> 33) % (index + 1)) as usize);
    }
    order
}

/// A fixed pseudo-random sequence.
pub struct Random(pub u64);

impl Random {
    /// The next number, below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound.max(1)
    }

    /// A number above 0 and up to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A gamma distributed number of a mean, with filebench's shape 1.5: an exponentially
    /// distributed one, and half the square of a normally distributed one.
    pub fn gamma(&mut self, mean: f64) -> f64 {
        let (one, two, angle) = (self.fraction(), self.fraction(), self.fraction());
        let half_square = -two.ln() * (std::f64::consts::TAU * angle).cos().powi(2);
        (half_square - one.ln()) * mean / 1.5
    }
}

/// Minimum nanoseconds per call, by row.
pub type Times = BTreeMap<&'static str, f64>;

/// Keeps the smaller of a row's times.
pub fn keep_least(times: &mut Times, row: &'static str, ns: f64) {
    let least = times.entry(row).or_insert(ns);
    *least = least.min(ns);
}

/// An operation on one path.
pub type Act = fn(&dyn Calls, &[u8]) -> posix::Result<()>;

pub fn stat(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.stat(path).map(drop)
}
pub fn access(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.access(path, 4)
}
pub fn create(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.create(path, 0o644)
}
pub fn unlink(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.unlink(path)
}
pub fn mkdir(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.mkdir(path, 0o755)
}
pub fn rmdir(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.rmdir(path)
}

/// Time of an operation on each path, in the given order or in a pseudo-random one.
pub fn time(machine: &dyn Machine, paths: &[Vec<u8>], order: Option<&[u64]>, act: Act) -> Result<f64> {
    let mut ns = 0.0;
    machine.with(&mut |calls| {
        ns = per_call(paths.len() as u64, |index| {
            let at = order.map_or(index, |order| order[index as usize]);
            Ok(act(calls, &paths[at as usize])?)
        })?;
        Ok(())
    })?;
    Ok(ns)
}

/// The measurements of one subject with one memory.
#[derive(Clone, Default)]
pub struct Measured {
    /// Minimum times.
    pub times: Times,
    /// Accesses to the image and number of calls, by row; empty if the memory has no delay.
    lines: BTreeMap<&'static str, (Counts, f64)>,
    /// Number of calls of the last row.
    calls: f64,
}

/// Measures the rows of a round of calls.
pub trait Meter {
    /// The next row begins right after mounting.
    fn remounted(&mut self) {}
    /// Measures an operation on each path, like [`time`].
    fn act(
        &mut self,
        row: &'static str,
        machine: &dyn Machine,
        paths: &[Vec<u8>],
        order: Option<&[u64]>,
        act: Act,
    ) -> Result<()>;
    /// Assigns this thread's accesses to the image since the last count to a row.
    fn count(&mut self, row: &'static str);
}

impl Meter for Measured {
    fn act(
        &mut self,
        row: &'static str,
        machine: &dyn Machine,
        paths: &[Vec<u8>],
        order: Option<&[u64]>,
        act: Act,
    ) -> Result<()> {
        take_counts();
        keep_least(&mut self.times, row, time(machine, paths, order, act)?);
        self.calls = paths.len() as f64;
        self.count(row);
        Ok(())
    }

    fn count(&mut self, row: &'static str) {
        self.lines.insert(row, (take_counts(), self.calls));
    }
}

impl Measured {
    fn lines_of(&self, row: &str) -> Option<String> {
        let (Counts { read, flushed, streamed, fences }, calls) = *self.lines.get(row)?;
        let each = |count: u64| count as f64 / calls;
        let streamed = if streamed > 0 { format!(", {:.1} streamed", each(streamed)) } else { String::new() };
        let (read, flushed, fences) = (each(read), each(flushed), each(fences));
        Some(format!("{read:.1} read, {flushed:.1} flushed{streamed}, {fences:.1} fences"))
    }
}

/// Rows for all subjects, in microseconds.
pub fn measures(
    measured: &[Vec<Measured>],
    subjects: &[Subject],
    rows: &[&'static str],
    paper: &dyn Fn(&str, Subject) -> Option<f64>,
) -> Vec<Measure> {
    let mut measures = Vec::new();
    for row in rows {
        for (index, subject) in subjects.iter().enumerate() {
            let here = measured.iter().map(|memory| memory[index].times.get(row).map(|ns| ns / 1000.0)).collect();
            let paper = paper(row, *subject);
            measures.push(Measure { row: (*row).to_owned(), subject: subject.name().to_owned(), paper, here });
        }
    }
    measures
}

/// Accesses to the image per call for some subjects, one sentence per row. They explain the cost of
/// slower memory.
pub fn lines_notes(measured: &[Vec<Measured>], subjects: &[Subject], shown: &[Subject], rows: &[&str]) -> Vec<String> {
    // Lines are counted only if they are delayed.
    let Some(slowest) = measured.last() else { return Vec::new() };
    let note = |row: &&str| {
        let of = |(measured, subject): (&Measured, &Subject)| {
            let is_shown = shown.contains(subject);
            is_shown.then(|| measured.lines_of(row)).flatten().map(|lines| format!("{} {lines}", subject.name()))
        };
        let each: Vec<String> = slowest.iter().zip(subjects).filter_map(of).collect();
        (!each.is_empty()).then(|| format!("Lines of the image per call, {row}: {}.", each.join("; ")))
    };
    rows.iter().filter_map(note).collect()
}

const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

/// Creates a file with content.
pub fn write_file(calls: &dyn Calls, path: &[u8], bytes: &[u8], sync: bool) -> Result<()> {
    let file = calls.open(path, NEW, 0o644)?;
    calls.write(file, 0, bytes)?;
    if sync {
        calls.sync_file(file)?;
    }
    Ok(calls.close(file)?)
}

/// Reads a file with a single read call.
pub fn read_once(calls: &dyn Calls, path: &[u8], into: &mut [u8]) -> Result<()> {
    let file = calls.open(path, libc::O_RDONLY, 0)?;
    calls.read(file, 0, into)?;
    Ok(calls.close(file)?)
}
