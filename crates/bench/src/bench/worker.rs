//! The measured program: `directfs bench-worker`, started directly for the machine's file systems,
//! and under `directfs run` for DirectFS.
//!
//! It reads requests from standard input, one per line, and replies on standard output. A workload
//! runs in an empty current directory, whose content is removed whether it succeeds or not. If the
//! benchmark ends without a final request (it was killed), the worker stops and removes the
//! benchmark's files.

use super::measure::timer_ns;
use super::task::{Outcome, Reply, Request, Task, Work};
use super::workloads;
use crate::arguments::BenchWorker;
use crate::worker::reply;
use crate::{interrupt, mounted};
use anyhow::{Context, Result, bail};
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// Runs until the last request.
pub fn run(arguments: &BenchWorker) -> Result<()> {
    interrupt::catch_each()?;
    let worker = Worker { root: arguments.directory.clone(), timer_ns: timer_ns() };
    let ended = worker.serve();
    if !matches!(ended, Ok(Ended::Asked)) {
        let _ = std::env::set_current_dir("/");
        mounted::remove_orphaned(&arguments.owned);
        bail!("the benchmark ended before its worker");
    }
    Ok(())
}

struct Worker {
    root: PathBuf,
    timer_ns: u64,
}

enum Ended {
    Asked,
    Alone,
}

impl Worker {
    fn serve(&self) -> Result<Ended> {
        reply(&Reply::Ready { timer_ns: self.timer_ns })?;
        for line in std::io::stdin().lock().lines() {
            match serde_json::from_str(&line?).context("a request of another version of directfs")? {
                Request::End => return Ok(Ended::Asked),
                Request::Run(task) => reply(&match self.perform(&task) {
                    Ok(outcomes) => Reply::Done(outcomes),
                    Err(error) => Reply::Failed(format!("{error:#}")),
                })?,
            }
        }
        Ok(Ended::Alone)
    }

    fn perform(&self, task: &Task) -> Result<Vec<Outcome>> {
        // Prepared files are found by the next process.
        let (name, stays) = match task.work {
            Work::Prepare { .. } => ("prepared", true),
            Work::Cold { .. } => ("prepared", false),
            _ => ("work", false),
        };
        let directory = self.root.join(name);
        if !matches!(task.work, Work::Cold { .. }) {
            std::fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let result = enter(&directory).and_then(|()| workloads::run(task, self.timer_ns));
        enter(&self.root)?;
        if stays && result.is_ok() {
            return result;
        }
        // An error of the workload takes precedence over one of the cleanup.
        let removed = std::fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}; remove it manually", directory.display()));
        let outcomes = result?;
        removed?;
        Ok(outcomes)
    }
}

fn enter(directory: &Path) -> Result<()> {
    std::env::set_current_dir(directory).with_context(|| format!("cannot enter {}", directory.display()))
}
