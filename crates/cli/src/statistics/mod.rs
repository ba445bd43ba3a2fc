//! `directfs stats` and `directfs top`: what the processes of an image call, how long it takes, and
//! what they wait for.

mod prometheus;
mod reading;
mod report;
mod top;

pub use prometheus::label;
pub use top::top;

use crate::arguments::Stats;
use crate::output;
use anyhow::Result;
use reading::Reading;
use report::Totals;
use std::io::IsTerminal;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Clears a terminal.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Prints the statistics of an image.
pub fn stats(arguments: &Stats) -> Result<()> {
    let first = Reading::take(&arguments.image)?;
    if arguments.prometheus {
        // A replication of this user keeps its figures there; a dead one shows by their age.
        let figures = store::Cache::of_user().replica_figures(&arguments.image);
        let replica = figures.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        print!("{}{replica}", prometheus::text(&first));
        return Ok(());
    }
    if !arguments.watch {
        return show(&Totals::since_beginning(&first), arguments.json, false);
    }
    let clears = !arguments.json && std::io::stdout().is_terminal();
    each_interval(first, arguments.interval, arguments.count, |before, now| {
        show(&Totals::between(before, now), arguments.json, clears)
    })
}

fn show(totals: &Totals, json: bool, clears: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(totals)?);
    } else {
        if clears {
            output::write(CLEAR);
        }
        totals.print();
    }
    Ok(())
}

/// Reads at equal distances, and passes each reading with the one before. The image is attached
/// only while it is read, so that others can check or change it meanwhile.
fn each_interval(
    first: Reading,
    length: Duration,
    count: Option<u64>,
    mut each: impl FnMut(&Reading, &Reading) -> Result<()>,
) -> Result<()> {
    let mut before = first;
    let mut next = Instant::now();
    for _ in 0..count.unwrap_or(u64::MAX) {
        next += length;
        sleep(next.saturating_duration_since(Instant::now()));
        let now = Reading::take(&before.image)?;
        each(&before, &now)?;
        output::finish()?;
        before = now;
    }
    Ok(())
}
