//! The engine in this process: the time of its calls without paths, permissions and descriptors,
//! their writes, and the costs of many files.
//!
//! It runs the round of [`calls`](super::workloads::calls) on one thread, on an image in memory
//! that ends with the process.

mod counting;
mod directory;
mod memory;
pub mod persist_cost;
mod scale;

pub use counting::Written;
pub use scale::Scale;

use super::statistics::Repeats;
use super::task::Outcome;
use super::workers;
use super::workloads::calls::{Call, Round};
use crate::interrupt;
use crate::terminal::{Of, Progress};
use anyhow::{Context, Result};
use counting::{Counting, CountingProbe};
use directory::EngineDirectory;
use memory::MemoryImage;
use pmem::Direct;
use std::sync::Arc;

/// Files for counting lines: the figures are averages of a mechanism, not of time.
const COUNTED_FILES: u64 = 4096;

/// The results.
pub struct Measured {
    /// For each number of files, the repeats of each call.
    pub calls: Vec<(u64, Vec<Repeats>)>,
    /// The writes of each call.
    pub written: Vec<(Call, Written)>,
    /// Footprints and recovery with the largest number of files.
    pub scale: Option<Scale>,
}

/// Length of an image with room for twice this many files with second names, because items that
/// wait for recycling need room too.
pub fn image_bytes(files: u64) -> u64 {
    (files * 2048).max(64 << 20).next_multiple_of(2 << 20)
}

fn inodes(files: u64) -> u64 {
    files * 3 + 4096
}

/// Measures with each of these numbers of files; `repeats` is the number of repeats for each.
pub fn measure(sizes: &[u64], repeats: impl Fn(u64) -> u32, timer_ns: u64) -> Result<Measured> {
    let written = count_lines(timer_ns)?;
    let calls = sizes.iter().map(|&files| Ok((files, measure_calls(files, repeats(files), timer_ns)?)));
    let calls = calls.collect::<Result<_>>()?;
    let scale = sizes.last().map(|&files| scale::measure(&Round::new("", 0..files), image_bytes(files)));
    Ok(Measured { calls, written, scale: scale.transpose()? })
}

fn measure_calls(files: u64, repeats: u32, timer_ns: u64) -> Result<Vec<Repeats>> {
    let what = format!("engine, {} files", crate::units::count(files));
    let mut progress = Progress::start(&what, Of::Steps(repeats as u64 + 1));
    let image = MemoryImage::make(image_bytes(files), inodes(files))?;
    let attached = image.attach(Direct, 1)?;
    let thread = attached.fs().enter()?;
    let directory = EngineDirectory::open(&thread, c"bench")?;
    let round = Round::new("", 0..files);
    let mut one_round = |done: u32| -> Result<Vec<Outcome>> {
        interrupt::check()?;
        progress.at(done as u64);
        workers::open_exclusive(timer_ns, None, |member| round.run(member, &directory, files))
            .with_context(|| what.clone())
    };
    // The first round touches the memory that later rounds use again.
    let mut measured: Vec<Repeats> = one_round(0)?.into_iter().map(|outcome| Repeats::new(outcome.what)).collect();
    for done in 0..repeats {
        for (repeats, outcome) in measured.iter_mut().zip(one_round(done + 1)?) {
            repeats.add(&outcome);
        }
    }
    Ok(measured)
}

/// Counts the writes of each call, in a separate run because counting costs time.
fn count_lines(timer_ns: u64) -> Result<Vec<(Call, Written)>> {
    let memory = Arc::new(Counting::default());
    let image = MemoryImage::make(image_bytes(COUNTED_FILES), inodes(COUNTED_FILES))?;
    let attached = image.attach(Arc::clone(&memory), 1)?;
    let thread = attached.fs().enter()?;
    let directory = EngineDirectory::open(&thread, c"bench")?;
    let round = Round::new("", 0..COUNTED_FILES);
    let probe = CountingProbe::new(memory);
    // The first round clears new inode segments, which happens once in an image's life; the second
    // one counts.
    for _ in 0..2 {
        workers::open_exclusive(timer_ns, Some(&probe), |member| round.run(member, &directory, COUNTED_FILES))?;
    }
    Ok(probe.written())
}

/// The design's goal in multiples of the floor: for 10,000 files, and twice that where the names no
/// longer fit into the caches.
pub fn target_multiple(call: Call, files: u64) -> Option<f64> {
    let over_few = match call {
        Call::Stat => 1.5,
        Call::StatHot => 0.5,
        Call::Create | Call::Link => 4.0,
        Call::Unlink => 2.5,
        Call::Mkdir => 5.0,
        Call::Rmdir => 3.0,
        Call::Rename => 6.0,
        _ => return None,
    };
    Some(if files > 100_000 { over_few * 2.0 } else { over_few })
}

/// The maximum number of lines that a call may write.
pub fn lines_target(call: Call) -> Option<f64> {
    match call {
        Call::Unlink => Some(1.0),
        Call::Create => Some(4.0),
        Call::Mkdir => Some(5.0),
        Call::Rename => Some(8.0),
        _ => None,
    }
}
