//! The cost of a path by its depth: stat of the same number of files at each depth.

use super::calls::{Directory, over};
use super::names::Names;
use super::system::{Outcomes, SystemDirectory};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member};
use anyhow::Context;

/// Measures depths 1 (in the current directory) to `depth`.
pub fn run(depth: u32, files: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    let places: Vec<String> = (0..depth).map(|level| "directory/".repeat(level as usize)).collect();
    for place in &places {
        std::fs::create_dir_all(format!("./{place}")).context("cannot create directories")?;
        over(&Names::ascending(&format!("{place}f"), 0..files), &mut Stopwatch::new(0), |name| {
            SystemDirectory::CURRENT.create(name)
        })?;
    }
    workers::run(workers, timer_ns, &|member: &mut Member| {
        for (level, place) in places.iter().enumerate() {
            let names = Names::shuffled(&format!("{place}f"), member.share(files));
            let stat_all = |watch: &mut Stopwatch| over(&names, watch, |name| SystemDirectory::CURRENT.stat(name));
            // A warm-up, so that each depth finds its names equally warm.
            stat_all(&mut Stopwatch::new(0))?;
            member.phase(PhaseName::Each(words(level as u32 + 1)), stat_all)?;
        }
        Ok(())
    })
}

/// The label of a depth.
fn words(depth: u32) -> String {
    format!("stat, depth {depth}")
}
