//! The process that commits the image of a run or a mount.

use crate::arguments::CommitService;
use anyhow::Result;
use posix::image::{CommitPolicy, commit_for_others};
use std::time::Duration;

/// Is that process, as `posix::image::Committer` starts it.
pub fn serve(arguments: &CommitService) -> Result<()> {
    let interval = arguments.interval_ms.map(Duration::from_millis);
    Ok(commit_for_others(interval.map_or(CommitPolicy::WhenSynced, CommitPolicy::Every))?)
}
