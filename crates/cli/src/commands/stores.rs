//! `directfs push`, `pull` and `store`.

use crate::arguments::{Pull, Push, StoreCommand, StoreGc, StoreList, Stores};
use crate::terminal::{Of, Progress, Table};
use crate::{interrupt, orders, units};
use anyhow::{Error, Result, anyhow};
use image::{ImageError, OpenImage, copy_state, image_length};
use pmem::MapError;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use store::{
    At, Cache, Cached, Event, Opened, PushOptions, Source, State, Store, StoreError, seconds_now, this_writer,
};

/// A request without an answer is reported after this time, and again when the time has doubled.
const SILENCE_SECONDS: u64 = 5;

/// What the user sees of work with a store.
struct Shown {
    what: &'static str,
    progress: Option<Progress>,
    /// Seconds of silence that were reported.
    reported: u64,
    url: String,
    /// It was reported that the store has an older state than before.
    is_older: bool,
}

impl Shown {
    fn show(&mut self, event: Event) {
        match event {
            Event::Done { bytes, of } => {
                let progress = self.progress.get_or_insert_with(|| Progress::quiet(self.what, Of::Bytes(of)));
                progress.at(bytes);
                if self.reported > 0 {
                    progress.label(self.what);
                    self.reported = 0;
                }
            }
            Event::Waiting { seconds, is_failing } if std::io::stderr().is_terminal() && seconds >= SILENCE_SECONDS => {
                let progress = self.progress.get_or_insert_with(|| Progress::quiet(self.what, Of::Bytes(0)));
                let what = if is_failing { "requests fail" } else { "no answer" };
                progress.label(&format!("{}: {what} for {seconds} s", self.what));
                self.reported = seconds;
            }
            Event::Waiting { seconds, is_failing } if seconds >= SILENCE_SECONDS.max(2 * self.reported) => {
                match is_failing {
                    true => eprintln!("{}: requests to the store fail for {seconds} s; still trying", self.what),
                    false => eprintln!("{}: the store has not answered for {seconds} s; still waiting", self.what),
                }
                self.reported = seconds;
            }
            Event::Waiting { .. } => {}
            Event::Older { seen, found } if !self.is_older => {
                self.is_older = true;
                eprintln!(
                    "directfs: {}: the newest state there is generation {found}, and this user has seen generation \
                     {seen}: the store was set back, or answers with an old copy",
                    self.url
                );
            }
            Event::Older { .. } => {}
        }
    }
}

/// Opens a store whose work is shown and can be interrupted.
fn open(url: &str, what: &'static str) -> Result<Store> {
    interrupt::catch()?;
    connect(url, what, || interrupt::check().is_err())
}

/// Opens a store whose work is shown, unless it is stopped.
pub fn connect(url: &str, what: &'static str, is_stopped: fn() -> bool) -> Result<Store> {
    let shown = Mutex::new(Shown { what, progress: None, reported: 0, url: url.to_owned(), is_older: false });
    let watch = move |event| {
        shown.lock().unwrap_or_else(PoisonError::into_inner).show(event);
        !is_stopped()
    };
    Store::open(url, Cache::of_user(), Arc::new(watch)).map_err(explained)
}

/// The error of a push, with what the store has after it.
pub fn explained_push(error: StoreError) -> Error {
    match error {
        StoreError::Stopped => interrupt::Stopped(
            "interrupted; the store holds its old state, and a push that is repeated sends what is missing",
        )
        .into(),
        StoreError::Request { .. } => anyhow!("{error}; it holds its old state or the new one, whole"),
        error => explained(error),
    }
}

/// The error as other commands report it.
pub fn explained(error: StoreError) -> Error {
    match error {
        StoreError::Stopped => interrupt::Stopped("interrupted; the store holds every state that it held").into(),
        StoreError::Image(ImageError::Map(MapError::Exists { path })) => {
            anyhow!("{} already exists: choose another name, or replace it with --force", path.display())
        }
        StoreError::Image(error) => error.into(),
        error => error.into(),
    }
}

/// The state of one moment of an image, also of one in use, unless it is stopped.
pub fn state_of(image: &Path, is_stopped: fn() -> bool) -> Result<Source> {
    let mut progress = Progress::quiet("copying", Of::Bytes(image_length(image).unwrap_or(0)));
    let mut copying = |done: u64, _: u64| {
        progress.at(done);
        !is_stopped()
    };
    let mut trimming = |_: u64, _: u64| !is_stopped();
    let source = Source::of_image(image, &mut trimming, |into| match orders::server_of(image)? {
        Some(server) => server.copy(into, &mut copying),
        None => Ok(copy_state(image, into, &OpenImage::default(), &mut copying)?),
    });
    source.map_err(|error: Error| match error.downcast_ref() {
        Some(ImageError::Stopped { .. }) => interrupt::Interrupted.into(),
        _ => error,
    })
}

/// Sends a state of an image.
pub fn push(arguments: &Push) -> Result<()> {
    let begun = Instant::now();
    // A mistake in the URL is reported before the image is copied.
    let store = open(&arguments.url, "pushing")?;
    let source = state_of(&arguments.image, || interrupt::check().is_err())?;
    let options = PushOptions {
        tag: arguments.tag.clone(),
        keep_seconds: arguments.keep.map(|keep| keep.as_secs()),
        looks_for_layers: true,
        writer: this_writer(),
        now: seconds_now(),
        ..PushOptions::default()
    };
    let pushed = store.push(&source, &options).map_err(explained_push)?;
    let (url, took_ns) = (store.shown().to_owned(), begun.elapsed().as_nanos() as u64);
    let (sent, took) = (units::size(pushed.bytes), units::duration(took_ns as f64));
    let text = match pushed.is_new {
        true => format!("pushed to {url} in {took}: generation {}, {sent} sent", pushed.generation),
        false => format!("{url} has this state already: generation {}", pushed.generation),
    };
    let value = json!({
        "image": units::path_text(&arguments.image),
        "url": url,
        "generation": pushed.generation,
        "new": pushed.is_new,
        "blocks": pushed.blocks,
        "sent_bytes": pushed.bytes,
        "duration_ns": took_ns,
    });
    report(store, arguments.json.then_some(&value), &text)
}

/// Ends what is shown of work with a store, and prints its result.
fn report(store: Store, json: Option<&Value>, text: &str) -> Result<()> {
    drop(store);
    match json {
        Some(value) => println!("{}", serde_json::to_string_pretty(value)?),
        None => println!("{text}"),
    }
    Ok(())
}

/// Fetches a state of an image.
pub fn pull(arguments: &Pull) -> Result<()> {
    let begun = Instant::now();
    let store = open(&arguments.url, "pulling")?;
    let at = arguments.at.as_ref().unwrap_or(&At::Newest);
    let state = store.pull(at, &arguments.image, arguments.force).map_err(|error| match error {
        StoreError::Stopped => interrupt::Interrupted.into(),
        StoreError::Request { .. } => anyhow!("{error}; {}", left_at(&arguments.image)),
        error => explained(error),
    })?;
    let took_ns = begun.elapsed().as_nanos() as u64;
    let (time, took) = (time_of(state.time), units::duration(took_ns as f64));
    let text = format!("pulled to {} in {took}: generation {}, of {time}", arguments.image.display(), state.generation);
    let value = json!({
        "image": units::path_text(&arguments.image),
        "url": store.shown(),
        "generation": state.generation,
        "time": state.time,
        "tag": state.tag,
        "length": state.size,
        "duration_ns": took_ns,
    });
    report(store, arguments.json.then_some(&value), &text)
}

/// What a pull that failed leaves.
fn left_at(target: &Path) -> String {
    match target.exists() {
        true => format!("{} is as it was", target.display()),
        false => "no file was made".to_owned(),
    }
}

/// Brings the newest state to the cache of this user, unless it is there. An interrupt ends this
/// process, which leaves nothing behind.
pub fn fetch(url: &str) -> Result<Cached> {
    connect(url, "pulling", || false)?.cached().map_err(explained)
}

/// The newest state as it is in the cache, or what is needed to read it from the store.
pub fn open_newest(url: &str) -> Result<Opened> {
    connect(url, "opening", || false)?.open_newest().map_err(explained)
}

/// Lists and cleans up.
pub fn store(arguments: &Stores) -> Result<()> {
    match &arguments.command {
        StoreCommand::List(arguments) => list(arguments),
        StoreCommand::Gc(arguments) => gc(arguments),
    }
}

fn list(arguments: &StoreList) -> Result<()> {
    let store = open(&arguments.url, "listing")?;
    let head = store.head().map_err(explained)?;
    let url = store.shown().to_owned();
    drop(store);
    let stored_bytes = |state: &State| -> u64 { head.layers_of(state).iter().map(|layer| layer.bytes).sum() };
    if arguments.json {
        let state = |state: &State| {
            json!({
                "generation": state.generation,
                "time": state.time,
                "tag": state.tag,
                "length": state.size,
                "stored_bytes": stored_bytes(state),
            })
        };
        let states: Vec<_> = head.states.iter().map(state).collect();
        let value = json!({ "url": url, "uuid": head.uuid(), "writer": head.writer, "keep_seconds": head.keep_seconds,
            "states": states });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let mut table = Table::new(&["generation", "time", "image", "stored", "tag"]);
    for state in &head.states {
        table.row(vec![
            state.generation.to_string(),
            time_of(state.time),
            units::size(state.size),
            units::size(stored_bytes(state)),
            state.tag.clone().unwrap_or_default(),
        ]);
    }
    table.print();
    Ok(())
}

fn gc(arguments: &StoreGc) -> Result<()> {
    let store = open(&arguments.url, "removing")?;
    let swept = store.sweep(arguments.grace.as_secs()).map_err(explained)?;
    let (removed, waiting) = (units::counted(swept.objects, "object"), units::counted(swept.waiting, "object"));
    let text = format!("removed {removed}, {}; {waiting} wait for the end of --grace", units::size(swept.bytes));
    let value = json!({
        "url": store.shown(),
        "removed_objects": swept.objects,
        "removed_bytes": swept.bytes,
        "waiting_objects": swept.waiting,
    });
    report(store, arguments.json.then_some(&value), &text)
}

/// A time of a store, in this machine's time zone.
fn time_of(seconds: u64) -> String {
    units::local_time(seconds.saturating_mul(1_000_000_000))
}
