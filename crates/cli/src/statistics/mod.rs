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
use anyhow::{Context, Result};
use reading::Reading;
use report::Totals;
use std::fs::Permissions;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Clears a terminal.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Prints the statistics of an image.
pub fn stats(arguments: &Stats) -> Result<()> {
    let first = Reading::take(&arguments.image)?;
    if let Some(file) = &arguments.prometheus {
        // A replication of this user keeps its figures there; a dead one shows by their age.
        let figures = store::Cache::of_user().replica_figures(&arguments.image);
        let replica = figures.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let text = format!("{}{replica}", prometheus::text(&first));
        if file == Path::new("-") {
            print!("{text}");
            return Ok(());
        }
        remove_unfinished(file);
        return replace_file(file, &text).with_context(|| format!("cannot write figures to {}", file.display()));
    }
    if !arguments.watch {
        return show(&Totals::since_beginning(&first), arguments.json, false);
    }
    let clears = !arguments.json && std::io::stdout().is_terminal();
    each_interval(first, arguments.interval, arguments.count, |before, now| {
        show(&Totals::between(before, now), arguments.json, clears)
    })
}

/// Replaces a file that all users may read: they see the old text or the new one. Others may be
/// able to write its directory, so the new file has a name that they cannot foresee.
pub fn replace_file(path: &Path, text: &str) -> std::io::Result<()> {
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        // For example /dev/stdout, which a rename would take from the whole machine.
        return Err(std::io::Error::other("it is no regular file"));
    }
    let readable = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().prefix(UNFINISHED).permissions(readable).tempfile_in(directory_of(path))?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Start of the names of files that [`replace_file`] makes.
const UNFINISHED: &str = ".directfs-figures-";
/// Older ones were left by a process that was killed.
const LEFT: Duration = Duration::from_secs(60);

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes what killed processes of this user left beside a file of [`replace_file`].
pub fn remove_unfinished(path: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(directory_of(path)).into_iter().flatten().flatten() {
        // What the entry itself is: no link is followed.
        let Ok(found) = entry.metadata() else { continue };
        let is_old = found.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= LEFT));
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
        if is_ours && is_old && found.is_file() && found.uid() == user && found.nlink() == 1 {
            let _ = std::fs::remove_file(entry.path());
        }
    }
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
