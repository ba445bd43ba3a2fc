//! `directfs replicate`: follows an image, and pushes what changed.
//!
//! At each interval the image's stamp is looked at, which costs a few system calls. Only if it
//! differs is a state copied, compared and pushed. Copy and comparison read the whole image, so
//! they may take a fifth of the time: after a round that took 1 s the next one waits 4 s.
//!
//! Invariants
//! - Each push belongs to a term (`store::Replica`): after another writer's takeover none counts.
//! - A store that does not answer is waited for, without a copy of the image. What has changed
//!   meanwhile is in the next state.
//! - After the first signal one more state is pushed, and a store that is silent for [`LAST`] is
//!   not waited for. A second signal ends the process at once, which loses nothing in the store.

use super::stores::{explained, state_of};
use crate::arguments::Replicate;
use crate::statistics::{remove_unfinished, replace_file};
use crate::{interrupt, units};
use anyhow::{Context, Error, Result};
use image::ImageError;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use store::{Cache, Event, Follower, PushOptions, Pushed, Replica, Seen, Store, StoreError, seconds_now, this_writer};

/// A store without an answer is reported after this time, and again when the time has doubled.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a request is waited for after a signal.
const LAST: u64 = 10;
/// How long an image that cannot be copied is tried again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether the store answers again.
const PROBE: Duration = Duration::from_secs(1);
/// How often a signal is looked for.
const TICK: Duration = Duration::from_millis(50);
/// A round is followed by a pause of so many times its length.
const REST: u32 = 4;
/// How often objects are removed that no kept state needs, and how long they were not needed.
const SWEEP: Duration = Duration::from_secs(300);
const GRACE_SECONDS: u64 = 900;
/// How often text reports on pushes.
const SUMMARY: Duration = Duration::from_secs(60);

/// Follows an image until a signal.
pub fn run(arguments: &Replicate) -> Result<()> {
    interrupt::catch()?;
    let silence = Arc::new(Mutex::new(Silence { failed: None, reported: Duration::ZERO, is_json: arguments.json }));
    let watched = Arc::clone(&silence);
    let watch = move |event| {
        let Event::Waiting { seconds, .. } = event else { return true };
        lock(&watched).goes_on(Duration::from_secs(seconds), None);
        !(is_interrupted() && seconds >= LAST)
    };
    let store = Store::open(&arguments.url, Cache::of_user(), Arc::new(watch)).map_err(explained)?;
    let figures = [Cache::of_user().replica_figures(&arguments.image), arguments.prometheus.clone()];
    figures.iter().flatten().for_each(|path| remove_unfinished(path));
    let mut work = Work::new(arguments, store, silence);
    loop {
        let (is_last, begun) = (is_interrupted(), Instant::now());
        work.round(is_last)?;
        work.write_figures()?;
        if is_last {
            work.report_end();
            work.forget_figures();
            return Ok(());
        }
        wait_until(begun + arguments.interval.max(begun.elapsed() * REST));
    }
}

fn is_interrupted() -> bool {
    interrupt::check().is_err()
}

/// Waits; a signal ends it.
fn wait_until(end: Instant) {
    while !is_interrupted() && Instant::now() < end {
        sleep(TICK.min(end.saturating_duration_since(Instant::now())));
    }
}

fn lock(silence: &Mutex<Silence>) -> std::sync::MutexGuard<'_, Silence> {
    silence.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the store has not answered.
struct Silence {
    /// Since when requests fail.
    failed: Option<Instant>,
    /// The length that was reported.
    reported: Duration,
    is_json: bool,
}

impl Silence {
    /// There is still no answer to a request that is this old.
    fn goes_on(&mut self, request: Duration, reason: Option<&StoreError>) {
        let length = self.failed.map_or(request, |since| since.elapsed().max(request));
        if length < SILENCE || length < self.reported * 2 {
            return;
        }
        self.reported = length;
        let seconds = length.as_secs();
        if self.is_json {
            say(&json!({ "event": "waiting", "seconds": seconds, "error": reason.map(ToString::to_string) }));
        } else {
            let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
            eprintln!("the store has not answered for {seconds} s{reason}; still trying");
        }
    }

    /// A request has succeeded.
    fn ends(&mut self) {
        if !self.reported.is_zero() {
            if self.is_json {
                say(&json!({ "event": "answered" }));
            } else {
                eprintln!("the store answers again");
            }
        }
        (self.failed, self.reported) = (None, Duration::ZERO);
    }
}

/// Prints a line of JSON. A reader that has ended is no reason to stop.
fn say(value: &Value) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{value}");
}

/// The state of the work.
struct Work<'a> {
    arguments: &'a Replicate,
    store: Store,
    silence: Arc<Mutex<Silence>>,
    replica: Replica,
    follower: Follower,
    /// Since when a change is known that is not in the store.
    changed: Option<Instant>,
    /// Since when the image cannot be copied.
    failing: Option<Instant>,
    /// The newest state in the store, and when it was taken.
    newest: Option<(u64, u64)>,
    swept: Instant,
    summary: Summary,
}

/// What text reports from time to time.
struct Summary {
    since: Instant,
    pushes: u64,
    bytes: u64,
    lag: Duration,
}

impl Summary {
    fn new() -> Summary {
        Summary { since: Instant::now(), pushes: 0, bytes: 0, lag: Duration::ZERO }
    }
}

impl<'a> Work<'a> {
    fn new(arguments: &'a Replicate, store: Store, silence: Arc<Mutex<Silence>>) -> Work<'a> {
        Work {
            arguments,
            store,
            silence,
            replica: Replica::default(),
            follower: Follower::default(),
            changed: None,
            failing: None,
            newest: None,
            swept: Instant::now(),
            summary: Summary::new(),
        }
    }

    /// Looks at the image, and brings its state to the store if it has changed.
    fn round(&mut self, is_last: bool) -> Result<()> {
        let seen = match self.follower.look(&self.arguments.image) {
            Ok(seen) => seen,
            Err(error) => return self.local_failure(error.into(), is_last),
        };
        // At the end, what a process has not committed yet counts, too.
        if !(seen.is_changed || is_last && seen.is_written) {
            self.changed = None;
            return self.sweep();
        }
        let (begun, now) = (Instant::now(), seconds_now());
        self.changed.get_or_insert(begun);
        let source = match state_of(&self.arguments.image, || false) {
            Ok(source) => source,
            Err(error) => return self.local_failure(error, is_last),
        };
        self.failing = None;
        let options = PushOptions {
            keep_seconds: self.arguments.keep.map(|keep| keep.as_secs()),
            writer: this_writer(),
            now,
            ..PushOptions::default()
        };
        match self.store.replicate(&mut self.replica, &source, &options) {
            Ok(pushed) => {
                lock(&self.silence).ends();
                self.pushed(seen, &pushed, (begun, now));
                self.sweep()
            }
            Err(error) if is_last => Err(self.unfinished(error)),
            Err(
                error @ (StoreError::Request { .. }
                | StoreError::Full { .. }
                | StoreError::Overtaken { .. }
                | StoreError::Busy { .. }),
            ) => {
                drop(source);
                self.wait_for_store(&error)
            }
            // Only a signal stops it: the next round is the last one.
            Err(StoreError::Stopped) => Ok(()),
            Err(error) => Err(explained(error)),
        }
    }

    fn pushed(&mut self, seen: Seen, pushed: &Pushed, (begun, now): (Instant, u64)) {
        self.follower.took(seen);
        let lag = self.changed.take().map_or(Duration::ZERO, |since| since.elapsed());
        let is_first = self.newest.is_none();
        if pushed.is_new || is_first {
            self.newest = Some((pushed.generation, now));
            self.report_push(pushed, begun, lag, is_first);
        }
    }

    /// The image cannot be copied. A process may have it alone, which passes; what else may pass is
    /// tried again for a while, but for the first round and the last one.
    fn local_failure(&mut self, error: Error, is_last: bool) -> Result<()> {
        let is_first = self.failing.is_none();
        let since = *self.failing.get_or_insert_with(Instant::now);
        let is_taken = matches!(
            error.downcast_ref(),
            Some(
                ImageError::InUse { .. }
                    | ImageError::CannotShare { .. }
                    | ImageError::NotExclusive { .. }
                    | ImageError::Changing { .. }
                    | ImageError::Overtaken { .. }
            )
        );
        if is_last || (!is_taken && (self.newest.is_none() || since.elapsed() >= PATIENCE)) {
            return Err(error);
        }
        if is_first && self.arguments.json {
            say(&json!({ "event": "failed", "error": format!("{error:#}") }));
        } else if is_first {
            eprintln!("cannot copy the image yet, and still trying: {error:#}");
        }
        Ok(())
    }

    /// Returns when the store answers, or a signal has come.
    fn wait_for_store(&mut self, error: &StoreError) -> Result<()> {
        let fail = |error: &StoreError| {
            let mut silence = lock(&self.silence);
            silence.failed.get_or_insert_with(Instant::now);
            silence.goes_on(Duration::ZERO, Some(error));
        };
        fail(error);
        while !is_interrupted() {
            self.write_figures()?;
            wait_until(Instant::now() + PROBE);
            match self.store.check(&self.replica) {
                Ok(()) => {
                    lock(&self.silence).ends();
                    return Ok(());
                }
                Err(
                    error @ (StoreError::Request { .. }
                    | StoreError::Full { .. }
                    | StoreError::Overtaken { .. }
                    | StoreError::Busy { .. }),
                ) => fail(&error),
                Err(StoreError::Stopped) => return Ok(()),
                Err(error) => return Err(explained(error)),
            }
        }
        Ok(())
    }

    /// Removes from time to time what no kept state needs.
    fn sweep(&mut self) -> Result<()> {
        if self.swept.elapsed() < SWEEP || self.newest.is_none() {
            return Ok(());
        }
        self.swept = Instant::now();
        // What fails here and concerns states fails in a push, too, which reports it.
        let _ = self.store.sweep(GRACE_SECONDS);
        Ok(())
    }

    /// Why the last state is not in the store.
    fn unfinished(&self, error: StoreError) -> Error {
        let what = match self.newest {
            Some((generation, _)) => format!("the newest state in the store is generation {generation}"),
            None => "this writer has brought no state to the store".to_owned(),
        };
        match error {
            StoreError::Stopped => anyhow::anyhow!(
                "the store does not answer; {what}: start `directfs replicate` again when it answers, or push by hand"
            ),
            error => explained(error).context(format!("the last push failed; {what}")),
        }
    }

    fn report_push(&mut self, pushed: &Pushed, begun: Instant, lag: Duration, is_first: bool) {
        let summary = &mut self.summary;
        summary.pushes += 1;
        summary.bytes += pushed.bytes;
        summary.lag = summary.lag.max(lag);
        if self.arguments.json {
            say(&json!({
                "event": "pushed",
                "generation": pushed.generation,
                "time": self.newest.map(|(_, time)| time),
                "blocks": pushed.blocks,
                "sent_bytes": pushed.bytes,
                "lag_seconds": lag.as_secs_f64(),
                "duration_ns": begun.elapsed().as_nanos() as u64,
            }));
        } else if is_first || summary.since.elapsed() >= SUMMARY {
            let (sent, lag) = (units::size(summary.bytes), units::duration(summary.lag.as_nanos() as f64));
            let pushes = match summary.pushes {
                1 => "1 push".to_owned(),
                count => format!("{count} pushes"),
            };
            let (url, generation) = (self.store.shown(), pushed.generation);
            println!("{url} has generation {generation}: {pushes}, {sent} sent, at most {lag} behind");
            self.summary = Summary::new();
        }
    }

    fn report_end(&self) {
        let Some((generation, _)) = self.newest else { return };
        if self.arguments.json {
            say(&json!({ "event": "ended", "generation": generation }));
        } else {
            println!("ended; {} has generation {generation}", self.store.shown());
        }
    }

    /// Writes the figures for Prometheus.
    fn write_figures(&self) -> Result<()> {
        let (image, url) = (label(&self.arguments.image), crate::statistics::label(self.store.shown()));
        let labels = format!("{{image=\"{image}\",url=\"{url}\"}}");
        let mut text = String::new();
        let mut family = |name: &str, help: &str, value: f64| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}");
        };
        let (generation, time) = self.newest.unwrap_or_default();
        family(
            "directfs_replica_generation",
            "Newest state that this writer has brought to the store.",
            generation as f64,
        );
        family("directfs_replica_state_timestamp_seconds", "When that state was taken.", time as f64);
        let lag = self.changed.map_or(0.0, |since| since.elapsed().as_secs_f64());
        family("directfs_replica_lag_seconds", "Age of the oldest known change that is not in the store.", lag);
        family("directfs_replica_checked_timestamp_seconds", "When this file was written.", seconds_now() as f64);
        if let Some(path) = Cache::of_user().replica_figures(&self.arguments.image) {
            // `stats` lacks them then.
            let _ = replace_file(&path, &text);
        }
        let Some(path) = &self.arguments.prometheus else { return Ok(()) };
        replace_file(path, &text).with_context(|| format!("cannot write figures to {}", path.display()))
    }

    /// `stats` shows nothing of a replication that a signal has ended.
    fn forget_figures(&self) {
        if let Some(path) = Cache::of_user().replica_figures(&self.arguments.image) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The path of an image, as the value of a label.
fn label(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    crate::statistics::label(&path.to_string_lossy())
}
