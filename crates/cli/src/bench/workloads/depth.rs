//! What a path costs by its length: stat of the same number of files, so many directories deep.

use super::calls::{Directory, over};
use super::names::Names;
use super::system::{Outcomes, SystemDirectory};
use crate::bench::crew::{self, Member};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{Crew, What};
use anyhow::Context;

/// Measures depths 1 (in the current directory) to `depth`.
pub fn run(depth: u32, files: u64, crew: Crew, timer_ns: u64) -> Outcomes {
    let places: Vec<String> = (0..depth).map(|level| "directory/".repeat(level as usize)).collect();
    for place in &places {
        std::fs::create_dir_all(format!("./{place}")).context("cannot make directories")?;
        over(&Names::ascending(&format!("{place}f"), 0..files), &mut Stopwatch::new(0), |name| {
            SystemDirectory::CURRENT.create(name)
        })?;
    }
    crew::run(crew, timer_ns, &|member: &mut Member| {
        for (level, place) in places.iter().enumerate() {
            let names = Names::shuffled(&format!("{place}f"), member.share(files));
            let stat_all = |watch: &mut Stopwatch| over(&names, watch, |name| SystemDirectory::CURRENT.stat(name));
            // Every depth finds its names as warm as the others do.
            stat_all(&mut Stopwatch::new(0))?;
            member.phase(What::Each(words(level as u32 + 1)), stat_all)?;
        }
        Ok(())
    })
}

/// A depth in words.
fn words(depth: u32) -> String {
    format!("stat, depth {depth}")
}
