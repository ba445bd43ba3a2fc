//! The benchmark's side of a worker: tasks and their outcomes.

use super::task::{Outcome, Reply, Request, Task};
use crate::worker::Worker;
use anyhow::{Result, bail};
use std::process::Command;

/// What helps a worker that runs out of memory.
const REMEDY: &str = "measure fewer files (--sizes)";

/// A running worker.
pub struct Session {
    worker: Worker,
    /// The cost of reading the clock in the worker.
    pub timer_ns: u64,
}

impl Session {
    /// Starts a worker.
    pub fn start(command: Command, tick: &mut dyn FnMut()) -> Result<Session> {
        let mut worker = Worker::start(command, &Request::End, REMEDY)?;
        match worker.receive(tick)? {
            Reply::Ready { timer_ns } => Ok(Session { worker, timer_ns }),
            other => bail!("a worker's first reply was {other:?}"),
        }
    }

    /// Runs a task in the worker; `tick` is called meanwhile.
    pub fn perform(&mut self, task: &Task, tick: &mut dyn FnMut()) -> Result<Vec<Outcome>> {
        self.worker.send(&Request::Run(task.clone()))?;
        match self.worker.receive(tick)? {
            Reply::Done(outcomes) => Ok(outcomes),
            Reply::Failed(said) => bail!(said),
            other => bail!("a worker replied {other:?}"),
        }
    }

    /// Ends the worker cleanly.
    pub fn end(self) -> Result<()> {
        self.worker.end()
    }
}
