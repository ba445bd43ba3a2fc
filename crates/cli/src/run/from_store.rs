//! `run --image URL`: a state of a store as a file, and the push of a run that succeeded.
//!
//! A run that changes nothing, or whose changes are discarded, uses the file of the cache, or one
//! that is fetched while it is used (`lazy`). One with `--atomic` gets a file of its own in
//! `~/.local/state/directfs`. Its end:
//!
//! ```text
//! command fails      the file is removed
//! command succeeds   its state is pushed if the state that was opened is still the newest one:
//!                    it counts, and the file is removed; otherwise the file is kept
//! ```
//!
//! Killed anywhere, the store has the old state or the new one. A hidden file that a killed run
//! left is removed by a later one after a day.

use super::child;
use super::lazy::{LazyFile, Shown};
use crate::commands::stores;
use ::image::{Image, OpenImage, snapshot, users};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::{Condition, Opened, PushOptions, Source, seconds_now, this_writer};

/// What a killed run left is removed after this time.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// The file of a run.
pub enum Fetched {
    /// A file of the cache.
    Cached(PathBuf),
    /// A file whose blocks are fetched when they are used.
    Lazy(LazyFile, String),
    /// The run's own.
    Working(WorkingImage),
}

impl Fetched {
    pub fn path(&self) -> &Path {
        match self {
            Fetched::Cached(path) => path,
            Fetched::Lazy(file, _) => file.path(),
            Fetched::Working(working) => &working.path,
        }
    }

    /// The newest state, fetched now or while it is used.
    pub fn to_read(url: &str) -> Result<Fetched> {
        let part = match stores::open_newest(url)? {
            Opened::Whole(path) => return Ok(Fetched::Cached(path)),
            Opened::Part(part) => part,
        };
        match LazyFile::open(&part) {
            Ok(file) => Ok(Fetched::Lazy(file, url.to_owned())),
            Err(error) => {
                eprintln!(
                    "directfs: {url}: cannot fetch the image while it is used, so it is fetched whole first: {error:#}"
                );
                Ok(Fetched::Cached(stores::fetch(url)?.path))
            }
        }
    }

    /// Passes on messages about what is fetched.
    pub fn show_messages(&self, say: impl Fn(&str) + Send + 'static) -> Option<Shown> {
        match self {
            Fetched::Lazy(file, url) => file.show_messages(url, say),
            Fetched::Cached(_) | Fetched::Working(_) => None,
        }
    }
}

/// An image with a state of a store, for one run.
pub struct WorkingImage {
    path: PathBuf,
    url: String,
    opened: Condition,
    /// The file stays.
    is_kept: bool,
}

impl Drop for WorkingImage {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl WorkingImage {
    /// Makes it from the newest state.
    pub fn make(url: &str) -> Result<WorkingImage> {
        let url = url.trim_end_matches('/');
        let cached = stores::fetch(url)?;
        let directory = directory()?;
        remove_left(&directory);
        let path = directory.join(format!(".{}.img", name_for(url)));
        let copied = snapshot(&cached.path, &path, None, &OpenImage::default(), &mut |_, _| true);
        copied.with_context(|| format!("{url}: cannot make a working image"))?;
        Ok(WorkingImage { path, url: url.to_owned(), opened: cached.state, is_kept: false })
    }

    /// The state of this moment, which is to be pushed.
    pub fn state(&self, image: &Image) -> Result<Source> {
        let copy = |into: &File| Ok(image.copy_into(into, &mut |_, _| true)?);
        Source::of_image(&self.path, &mut |_, _| true, copy)
    }

    /// Pushes the state of a run that succeeded, or keeps the file.
    pub fn push(mut self, state: Result<Source>) -> Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().trim_start_matches('.').to_owned();
        let kept = self.path.with_file_name(name);
        // Killed from here on, the image is found by its name.
        if std::fs::rename(&self.path, &kept).is_ok() {
            self.path = kept;
        }
        match state.and_then(|state| self.send(&state)) {
            Ok(generation) => {
                eprintln!("directfs: {}: all changes of the run are in generation {generation}", self.url);
                Ok(())
            }
            Err(error) => {
                self.is_kept = true;
                Err(error.context(format!(
                    "{url}: the changes of the run are not pushed, and kept in {path}: \
                     `directfs push {path} {url}-other` brings them to a prefix of their own, and with {url} they \
                     replace what is there",
                    url = self.url,
                    path = self.path.display()
                )))
            }
        }
    }

    fn send(&self, state: &Source) -> Result<u64> {
        let store = stores::connect(&self.url, "pushing, MiB", child::is_to_end)?;
        let options = PushOptions {
            condition: self.opened.clone(),
            writer: this_writer(),
            now: seconds_now(),
            ..PushOptions::default()
        };
        Ok(store.push(state, &options).map_err(stores::explained_push)?.generation)
    }
}

/// Where working images are.
fn directory() -> Result<PathBuf> {
    let given = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME").filter(|home| !home.is_empty())?).join(".local/state"));
    let base = given.or_else(home);
    ensure!(base.is_some(), "no directory for a working image: set HOME or XDG_STATE_HOME to one on a disk");
    let directory = base.unwrap_or_default().join("directfs");
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// A name that shows where a working image is from.
fn name_for(url: &str) -> String {
    let last = url.rsplit('/').next().unwrap_or_default();
    let plain: String = last.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).take(40).collect();
    let number = u64::from_le_bytes(::image::random_uuid()[..8].try_into().unwrap_or_default());
    format!("{plain}-{number:016x}")
}

/// Removes hidden files that killed runs left.
fn remove_left(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let age = entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
        let is_left = name.starts_with(b".") && name.ends_with(b".img") && age.is_some_and(|age| age > LEFT);
        if is_left && File::open(entry.path()).and_then(users).is_ok_and(|users| users.none()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
