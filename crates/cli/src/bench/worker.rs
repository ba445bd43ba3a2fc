//! The measured program: `directfs bench-worker`, started as it is for the machine's file systems and under `directfs run` for DirectFS.
//!
//! It takes requests from standard input, a line each, and answers on standard output. A workload finds an empty directory as the current one; what it
//! leaves is removed whether it succeeds or not. When the benchmark ends without a word (it was killed), the worker stops what it does and
//! removes what the benchmark had made.

use super::measure::timer_ns;
use super::task::{Outcome, Reply, Request, Task, Work};
use super::workloads;
use crate::arguments::BenchWorker;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

/// Runs until there is nothing more to do.
pub fn run(arguments: &BenchWorker) -> Result<()> {
    interrupt::catch_each()?;
    let worker = Worker { root: arguments.directory.clone(), timer_ns: timer_ns() };
    let ended = worker.serve();
    if !matches!(ended, Ok(Ended::Asked)) {
        let _ = std::env::set_current_dir("/");
        let _ = std::fs::remove_dir_all(&arguments.owned);
        bail!("the benchmark has ended without its worker");
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
            match serde_json::from_str(&line?).context("a request of another version")? {
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
        // What is prepared is found by the next life of this program.
        let (name, stays) = match task.work {
            Work::Prepare { .. } => ("prepared", true),
            Work::Cold { .. } => ("prepared", false),
            _ => ("work", false),
        };
        let directory = self.root.join(name);
        if !matches!(task.work, Work::Cold { .. }) {
            std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let result = enter(&directory).and_then(|()| workloads::run(task, self.timer_ns));
        enter(&self.root)?;
        if stays && result.is_ok() {
            return result;
        }
        // An error of the workload says more than one of cleaning up behind it.
        let removed = std::fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}; remove it by hand", directory.display()));
        let outcomes = result?;
        removed?;
        Ok(outcomes)
    }
}

fn enter(directory: &Path) -> Result<()> {
    std::env::set_current_dir(directory).with_context(|| format!("cannot enter {}", directory.display()))
}

fn reply(reply: &Reply) -> Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    output.write_all(&line)?;
    Ok(output.flush()?)
}
