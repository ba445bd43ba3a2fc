//! The process that commits the image of a run.

use crate::arguments::CommitService;
use anyhow::Result;
use image::{CommitPolicy, commit_for_others};
use std::process::Command;
use std::time::Duration;

/// What starts it: see [`image::CommitterCommand`].
pub fn command(policy: CommitPolicy) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("commit-service");
    if let CommitPolicy::Every(interval) = policy {
        command.arg(format!("--interval-ms={}", interval.as_millis().max(1)));
    }
    command
}

/// Is that process.
pub fn serve(arguments: &CommitService) -> Result<()> {
    let interval = arguments.interval_ms.map(Duration::from_millis);
    Ok(commit_for_others(interval.map_or(CommitPolicy::WhenSynced, CommitPolicy::Every))?)
}
