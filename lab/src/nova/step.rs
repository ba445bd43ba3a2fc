//! Changes of several logs that become valid together.

use super::Nova;
use super::format::{Inode, JOURNAL_WORDS};
use super::log::{Appending, Log};
use crate::error::Result;
use pmem::{Commit64, Flushed, Memory};
use smallvec::SmallVec;

/// Logs that an operation appends to, at most: two directories and a replaced file. They and the
/// words below stay on the stack, as in the kernel.
const STEP_LOGS: usize = 3;

/// Log entries for several inodes. One transaction makes them valid together.
pub(super) struct Step<'n, 'w> {
    flushed: Flushed,
    changes: SmallVec<[(&'w Commit64, u64); JOURNAL_WORDS]>,
    pub(super) appendings: SmallVec<[Appending<'n>; STEP_LOGS]>,
    pub(super) removed: SmallVec<[u64; 2]>,
}

/// The new state of each log of a step.
pub(super) type Logs = SmallVec<[Log; STEP_LOGS]>;

impl<'n, 'w> Step<'n, 'w> {
    pub(super) fn new() -> Self {
        Step {
            flushed: Flushed::nothing(),
            changes: SmallVec::new(),
            appendings: SmallVec::new(),
            removed: SmallVec::new(),
        }
    }

    /// Adds the entries and the new tail of an inode's log. Returns the log's index in the result
    /// of `Nova::finish`.
    pub(super) fn log(&mut self, inode: &'w Inode, mut appending: Appending<'n>) -> usize {
        self.with(appending.take_flushed());
        self.changes.push((&inode.log_tail, appending.log.tail));
        self.appendings.push(appending);
        self.appendings.len() - 1
    }

    pub(super) fn with(&mut self, flushed: Flushed) {
        let before = std::mem::replace(&mut self.flushed, Flushed::nothing());
        self.flushed = before.and(flushed);
    }

    pub(super) fn change(&mut self, word: &'w Commit64, value: u64) {
        self.changes.push((word, value));
    }
}

impl<M: Memory> Nova<M> {
    /// Commits a step. Returns the new state of each of its logs.
    pub(super) fn finish(&self, step: Step<'_, '_>) -> Result<Logs> {
        let Step { flushed, changes, appendings, removed } = step;
        self.transact(flushed, &changes, || {
            let mut marked = None::<Flushed>;
            for entry in removed {
                let flushed = self.mark(entry, true)?;
                marked = Some(match marked {
                    Some(before) => before.and(flushed),
                    None => flushed,
                });
            }
            Ok(marked)
        })?;
        Ok(appendings.into_iter().map(Appending::done).collect())
    }
}
