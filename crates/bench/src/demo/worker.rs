//! The measured program: `directfs demo-worker`, started directly for directories of the kernel,
//! and under `directfs run` for an image.
//!
//! It works in its current directory with plain calls of the C library, and takes the times itself:
//! the start of a process does not count. If the demonstration ends without a last request (it was
//! killed), the worker removes the demonstration's files.

use super::tree::{self, Tree};
use crate::arguments::DemoWorker;
use crate::worker::reply;
use crate::{interrupt, mounted};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::time::Instant;

/// A measured step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Copies the tree into the empty directory.
    Copy,
    /// Compares every byte, and the number of names.
    Compare,
    /// Reads all attributes.
    Attributes,
    /// Reads all names.
    Names,
    /// Removes everything.
    Remove,
}

/// Sent to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Performs a step.
    Step(Step),
    /// Copies the tree and reports each finished entry.
    CopyReporting,
    /// Compares the first entries.
    CompareFirst(u64),
    /// There are no more requests.
    End,
}

/// Sent by a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The worker is in its directory.
    Ready,
    /// A request is done.
    Done(Done),
    /// So many entries are copied.
    Copied(u64),
    /// The request failed.
    Failed(String),
}

/// The result of a request.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Done {
    /// Its time.
    pub ns: u64,
    /// What it counted.
    pub count: u64,
}

impl Step {
    /// All steps in their order.
    pub const ALL: [Step; 5] = [Step::Copy, Step::Compare, Step::Attributes, Step::Names, Step::Remove];

    /// For display.
    pub fn name(self) -> &'static str {
        match self {
            Step::Copy => "copy the tree in",
            Step::Compare => "read it back, compare every byte",
            Step::Attributes => "walk as du: all attributes",
            Step::Names => "walk as find: all names",
            Step::Remove => "remove it, as rm -rf",
        }
    }

    /// How often it is done in a round: short steps several times.
    pub fn repeats(self) -> u32 {
        match self {
            Step::Attributes | Step::Names => 3,
            _ => 1,
        }
    }
}

/// Runs until the last request.
pub fn work(arguments: &DemoWorker) -> Result<()> {
    interrupt::catch_each()?;
    let ended = serve(arguments);
    if !matches!(ended, Ok(true)) {
        let _ = std::env::set_current_dir("/");
        mounted::remove_orphaned(&arguments.owned);
        bail!("the demonstration ended before its worker");
    }
    Ok(())
}

/// Returns whether the last request arrived.
fn serve(arguments: &DemoWorker) -> Result<bool> {
    let directory = &arguments.directory;
    std::env::set_current_dir(directory).with_context(|| format!("cannot enter {}", directory.display()))?;
    let tree = Tree::load(&arguments.tree, &arguments.list)?;
    reply(&Reply::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("a request of another version of directfs")?;
        if matches!(request, Request::End) {
            return Ok(true);
        }
        let started = Instant::now();
        let result = perform(&request, &tree);
        let ns = started.elapsed().as_nanos() as u64;
        reply(&match result {
            Ok(count) => Reply::Done(Done { ns, count }),
            Err(error) => Reply::Failed(format!("{error:#}")),
        })?;
    }
    Ok(false)
}

fn perform(request: &Request, tree: &Tree) -> Result<u64> {
    let entries = tree.entries.len() as u64;
    match request {
        Request::Step(Step::Copy) => tree.copy(|_| Ok(())).map(|()| entries),
        Request::Step(Step::Compare) => tree.compare(entries),
        Request::Step(Step::Attributes) => tree::sum_up(),
        Request::Step(Step::Names) => tree::find_headers(),
        Request::Step(Step::Remove) => tree::remove(),
        Request::CopyReporting => tree.copy(|done| reply(&Reply::Copied(done))).map(|()| entries),
        Request::CompareFirst(entries) => tree.compare(*entries),
        Request::End => Ok(0),
    }
}
