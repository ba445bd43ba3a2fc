//! The workloads. Each is written once and runs on the file system of the current directory; only
//! [`calls`] also runs on the engine in this process, through its trait.
//!
//! A workload starts in an empty directory, whose content the worker removes afterwards.

pub mod calls;
pub mod names;
pub mod system;

mod cold;
pub mod data;
mod depth;
pub mod durable;
pub mod filebench;
mod mdtest;
pub mod mounted;
pub mod postmark;
mod programs;
mod small_files;
pub mod tree;

use super::task::{Task, Work, Workers};
use super::workers::{self, Member};
use anyhow::{Context, Result};
use calls::Round;
use system::{Outcomes, SystemDirectory};

/// Runs a workload in the current directory.
pub fn run(task: &Task, timer_ns: u64) -> Outcomes {
    let Task { work, crew: workers } = task;
    let workers = *workers;
    match work {
        Work::Calls { files } => run_calls(*files, workers, timer_ns),
        Work::Depth { depth, files } => depth::run(*depth, *files, workers, timer_ns),
        Work::SmallFiles { bytes, files } => small_files::run(*bytes, *files, workers, timer_ns),
        Work::Prepare { files } => cold::prepare(*files),
        Work::Cold { files } => cold::run(*files, timer_ns),
        Work::Mdtest { files } => mdtest::run(*files, workers, timer_ns),
        Work::Varmail { files, run_ms } => filebench::run_varmail(*files, *run_ms, workers, timer_ns),
        Work::Fileserver { files, run_ms } => filebench::run_fileserver(*files, *run_ms, workers, timer_ns),
        Work::Postmark { files, transactions } => postmark::run(*files, *transactions, workers, timer_ns),
        Work::Data { bytes } => data::run(*bytes, timer_ns),
        Work::Tree { source } => tree::run(source, timer_ns),
        Work::Syncs { files } => durable::run_syncs(*files, timer_ns),
        Work::Sqlite { transactions } => durable::run_sqlite(*transactions, timer_ns),
        Work::Untar { source } => durable::run_untar(source, timer_ns),
        Work::Programs { source, rounds } => programs::run(source, *rounds, timer_ns),
        Work::Mounted { materials } => mounted::run(materials, timer_ns),
    }
}

fn run_calls(files: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    make_private_directories(workers)?;
    workers::run(workers, timer_ns, &|member: &mut Member| {
        let numbers = member.share(files);
        let (round, directory, in_directory) = match workers.private {
            true => {
                let count = numbers.end - numbers.start;
                let prefix = private_directory(member.index);
                (Round::new(&format!("{prefix}/"), numbers), SystemDirectory::named(&prefix)?, count)
            }
            false => (Round::new("", numbers), SystemDirectory::CURRENT, files),
        };
        round.run(member, &directory, in_directory)
    })
}

fn private_directory(member: u32) -> String {
    format!("t{member}")
}

fn make_private_directories(workers: Workers) -> Result<()> {
    for member in (0..workers.members).filter(|_| workers.private) {
        std::fs::create_dir(private_directory(member)).context("cannot create a directory for a worker")?;
    }
    Ok(())
}
