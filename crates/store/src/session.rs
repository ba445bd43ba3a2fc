//! A store as the commands use it: calls that wait, on a runtime of their own.

use crate::cache::Cache;
use crate::error::StoreError;
use crate::head::{At, Head, State, hex};
use crate::image::Source;
use crate::lazy::Part;
use crate::location::Location;
use crate::objects::{Objects, Watch};
use crate::push::{Condition, PushOptions, Pushed, notice_older, push};
use crate::replica::Replica;
use crate::sweep::{Swept, sweep};
use crate::{merge, pull};
use image::{receive, uuid_of};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

/// Threads that talk to the store.
const THREADS: usize = 2;

/// One prefix of a store.
pub struct Store {
    objects: Objects,
    cache: Cache,
    runtime: Ending,
}

/// A runtime whose end waits for no request that is under way: a read of a dead disk may never end.
pub(crate) struct Ending(Option<Runtime>);

/// A runtime for the requests of one prefix.
pub(crate) fn runtime(shown: &str) -> Result<Ending, StoreError> {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let failed = |error: std::io::Error| StoreError::Setup { shown: shown.to_owned(), reason: error.to_string() };
    runtime.map(|runtime| Ending(Some(runtime))).map_err(failed)
}

impl Ending {
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(runtime) => runtime.block_on(work),
            None => unreachable!("it is taken when it is dropped"),
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store {
    /// A store at a URL. No request is made.
    pub fn open(url: &str, cache: Cache, watch: Arc<Watch>) -> Result<Store, StoreError> {
        let objects = Objects::new(Location::parse(url)?, watch);
        let runtime = runtime(objects.shown())?;
        Ok(Store { objects, cache, runtime })
    }

    /// The URL, for messages.
    pub fn shown(&self) -> &str {
        self.objects.shown()
    }

    /// What the prefix holds.
    pub fn head(&self) -> Result<Head, StoreError> {
        let head = self.runtime.block_on(self.objects.existing_head())?.head;
        notice_older(&self.objects, &self.cache, &head)?;
        Ok(head)
    }

    /// Pushes a state, and merges layers if there are many.
    pub fn push(&self, source: &Source, options: &PushOptions) -> Result<Pushed, StoreError> {
        self.pushed(push(&self.objects, &self.cache, source, options), options)
    }

    /// Pushes a state as a writer that pushes again and again.
    pub fn replicate(
        &self,
        replica: &mut Replica,
        source: &Source,
        options: &PushOptions,
    ) -> Result<Pushed, StoreError> {
        self.pushed(replica.push(&self.objects, &self.cache, source, options), options)
    }

    /// Makes sure that the store answers, and that such a writer may go on.
    pub fn check(&self, replica: &Replica) -> Result<(), StoreError> {
        self.runtime.block_on(replica.check(&self.objects))
    }

    fn pushed(
        &self,
        push: impl Future<Output = Result<Pushed, StoreError>>,
        options: &PushOptions,
    ) -> Result<Pushed, StoreError> {
        self.runtime.block_on(async {
            let pushed = push.await?;
            // The push counts already; the next one merges what this one cannot.
            if pushed.is_new && merge::merge(&self.objects, &self.cache, options.now).await.is_ok() {
                self.cache.trim();
            }
            Ok(pushed)
        })
    }

    /// Writes a state to a file, which has its name when it is whole. `force`: the file may take
    /// the place of one that no process uses.
    pub fn pull(&self, at: &At, target: &Path, force: bool) -> Result<State, StoreError> {
        let mut state = None;
        receive(target, force, |file| {
            let head = self.head()?;
            let uuid = head.uuid.clone();
            state = Some(self.runtime.block_on(pull::pull_of(&self.objects, head, at, file))?);
            self.check_image(file, &uuid)?;
            Ok::<_, StoreError>(())
        })?;
        state.ok_or(StoreError::Stopped)
    }

    /// Makes sure that a file is the image that the head describes.
    fn check_image(&self, file: &File, uuid: &str) -> Result<(), StoreError> {
        let local = |source| StoreError::Local { action: "read", path: "the pulled image".into(), source };
        if uuid_of(file).map_err(local)?.is_some_and(|found| hex(&found) == uuid) {
            return Ok(());
        }
        let object = format!("{}/head", self.shown());
        Err(StoreError::Damaged { object, reason: "its layers are not the image that it describes".to_owned() })
    }

    /// The newest state as a file of the cache. It is fetched unless it is there.
    pub fn cached(&self) -> Result<Cached, StoreError> {
        let mut head = self.head()?;
        for _ in 1..pull::ROUNDS {
            match self.cached_of(&head) {
                // A sweep may have removed the state, and a merge may have given it other layers.
                Err(error @ StoreError::Damaged { .. }) => {
                    let now = self.head()?;
                    if now == head {
                        return Err(error);
                    }
                    head = now;
                }
                result => return result,
            }
        }
        self.cached_of(&head)
    }

    /// The newest state as it is in the cache, or what is needed to read it from the store.
    pub fn open_newest(&self) -> Result<Opened, StoreError> {
        let head = self.head()?;
        let newest = self.newest_of(&head)?;
        let place = self.cache.image(&head.identity_of(newest), newest.size);
        let (path, is_there) = place.ok_or(StoreError::NoCache)?;
        Ok(match is_there {
            true => Opened::Whole(path),
            false => Opened::Part(Part::new(self.shown(), &head, newest)),
        })
    }

    fn newest_of<'h>(&self, head: &'h Head) -> Result<&'h State, StoreError> {
        let missing = || StoreError::NoState { shown: self.shown().to_owned(), wanted: At::Newest.to_string() };
        head.newest().ok_or_else(missing)
    }

    /// The newest state of this head. The file has exactly the layers that the head names: another
    /// head could have any content under its generation.
    fn cached_of(&self, head: &Head) -> Result<Cached, StoreError> {
        let newest = self.newest_of(head)?;
        let place = self.cache.image(&head.identity_of(newest), newest.size);
        let (path, is_there) = place.ok_or(StoreError::NoCache)?;
        if !is_there {
            let fetched = receive(&path, false, |file| {
                self.runtime.block_on(pull::write_layers(&self.objects, newest, head.layers_of(newest), file))
            });
            match fetched {
                // Another process may have fetched it meanwhile.
                Err(error) if !path.exists() => return Err(error),
                _ => self.cache.trim(),
            }
        }
        let state = Condition::State { lineage: head.lineage.clone(), generation: newest.generation };
        Ok(Cached { path, state })
    }

    /// Removes what no kept state needs, after `grace` seconds.
    pub fn sweep(&self, grace: u64) -> Result<Swept, StoreError> {
        self.runtime.block_on(sweep(&self.objects, grace, seconds_now()))
    }
}

/// The newest state of a store.
#[derive(Debug, Clone)]
pub enum Opened {
    /// The cache has it, in this file.
    Whole(PathBuf),
    /// It is to be read from the store.
    Part(Part),
}

/// A state of a store as a file.
#[derive(Debug, Clone)]
pub struct Cached {
    /// The file, which others use, too.
    pub path: PathBuf,
    /// The condition that this state is still the newest one.
    pub state: Condition,
}

/// Seconds since 1970.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// This process, for messages to other writers.
pub fn this_writer() -> String {
    let system = rustix::system::uname();
    let node = system.nodename().to_string_lossy().replace(char::is_control, "?");
    format!("process {} on {node}", std::process::id())
}
