//! A copy under `run` that is killed in the middle, and what follows.

use super::report::Crash;
use super::subject::Subject;
use super::worker::{Reply, Request, Step};
use crate::terminal::{Of, Progress};
use anyhow::{Context, Result, bail, ensure};
use std::time::Instant;

/// Kills a copy, recovers the image, compares the finished entries, and uses the image further.
/// The image is empty at the start, and has the whole tree at the end.
pub fn crash(run: &mut Subject, entries: u64) -> Result<Crash> {
    let mut progress = Progress::start("killing a copy under run, and recovering the image", Of::Steps(5));
    progress.label("copying until the kill");
    let started = Instant::now();
    let completed = killed_copy(run, entries)?;
    let kill_ns = since(started);

    progress.at(1);
    let started = Instant::now();
    run.start_worker().context("the image could not be recovered: this is a defect of DirectFS")?;
    let recovery_ns = since(started);

    progress.label("comparing what was copied");
    progress.at(2);
    let compared = run
        .perform(&Request::CompareFirst(completed), &mut || progress.at(2))
        .context("after the crash, finished entries are lost or wrong")?;
    // The copy may have finished one entry, or have started it, without a report.
    ensure!(
        (completed..=completed + 1).contains(&compared.count),
        "after the crash {} names exist although {completed} were copied: this is a defect of DirectFS",
        compared.count
    );

    progress.label("using the image further");
    let mut reuse_ns = 0;
    for (at, step) in (3..).zip([Step::Remove, Step::Copy, Step::Compare]) {
        let done = run
            .perform(&Request::Step(step), &mut || progress.at(at))
            .with_context(|| format!("after the crash, in step \"{}\"", step.name()))?;
        ensure!(
            step != Step::Compare || done.count == entries,
            "after the crash {} names exist although {entries} were copied again: this is a defect of DirectFS",
            done.count
        );
        reuse_ns += done.ns;
    }
    Ok(Crash { entries, completed, kill_ns, recovery_ns, compare_ns: compared.ns, reuse_ns })
}

/// Kills a copy at a random point between a third and two thirds of it; returns the number of its
/// finished entries.
fn killed_copy(run: &mut Subject, entries: u64) -> Result<u64> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .context("cannot get a random number")?;
    let third = (entries / 3).max(1);
    let kill_at = third + u64::from_ne_bytes(random) % third;
    run.send(&Request::CopyReporting)?;
    loop {
        match run.receive(&mut || ())? {
            Reply::Copied(count) if count < kill_at.min(entries) => {}
            Reply::Copied(_) => break,
            Reply::Failed(said) => bail!("{}: {said}", run.name),
            other => bail!("a worker replied {other:?}"),
        }
    }
    // Entries reported before the kill count, although the reports are read later.
    let reports = String::from_utf8(run.kill()?).context("a worker's replies are text")?;
    let copied = reports.lines().rev().find_map(|line| match serde_json::from_str(line) {
        Ok(Reply::Copied(count)) => Some(count),
        _ => None,
    });
    Ok(copied.unwrap_or(kill_at.min(entries)))
}

fn since(started: Instant) -> u64 {
    started.elapsed().as_nanos() as u64
}
