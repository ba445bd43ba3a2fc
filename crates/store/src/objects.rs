//! The objects of one prefix: requests with retries, and what their answers must be.
//!
//! Every request is repeated after a failure that may pass, with growing pauses, and after an
//! answer that is too short or fails its checksum. A store without progress is given up after
//! [`SILENCE`]; how long a request takes as a whole is not limited. The client below repeats
//! requests, too,
//! so a replacement of the head may be performed although its answer is a refusal: then the head
//! carries this writer's nonce.

use crate::defects::{Defect, has};
use crate::directory::NoObject;
use crate::error::StoreError;
use crate::head::{HEAD_BYTES_MAX, Head, HeadError, Layer, hex, is_id, random_hex};
use crate::layer::{Index, LayerError};
use crate::location::{Location, shown};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use ring::digest::{SHA256, digest};
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Attempts of a request.
const ATTEMPTS: u32 = 6;
/// The pause before the second attempt; it doubles, unless the answer was there and damaged.
const PAUSE: Duration = Duration::from_millis(200);
/// An attempt without progress fails after this time: another connection may have an answer.
const ATTEMPT_SILENCE: Duration = Duration::from_secs(60);
/// No further attempt begins when there was no progress for this time.
const SILENCE: Duration = Duration::from_secs(120);
/// The client does not show the progress of what is sent: so many bytes are expected a second.
const RATE_MIN: u64 = 64 << 10;
/// Most characters of an error of the client that are shown.
const SHOWN_MAX: usize = 500;
/// Bytes of an answer that count as progress.
const PROGRESS_BYTES_MIN: u64 = 16 << 10;
/// How often the caller is notified that a request has no answer yet.
const TICK: Duration = Duration::from_millis(250);

/// What the caller learns while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Bytes of the image that are done, and all of them (0: unknown).
    Done {
        /// Done.
        bytes: u64,
        /// All.
        of: u64,
    },
    /// A request has had no answer yet, or a failed one. Follows every quarter of a second.
    Waiting {
        /// Seconds without progress.
        seconds: u64,
        /// The store refused the last attempt.
        is_failing: bool,
    },
    /// The store names an older state than this user has seen there.
    Older {
        /// Generation that was seen.
        seen: u64,
        /// Generation that the store names.
        found: u64,
    },
}

/// Receives events; `false` stops the work where it leaves a whole state.
pub type Watch = dyn Fn(Event) -> bool + Send + Sync;

/// A head that was read, and what its replacement must name.
#[derive(Debug, Clone)]
pub struct Found {
    /// The head.
    pub head: Head,
    version: UpdateVersion,
}

/// The end of a replacement of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replaced {
    /// The new head counts.
    Done,
    /// Another writer has replaced it.
    Lost,
}

/// The objects of one prefix.
#[derive(Clone)]
pub struct Objects {
    location: Location,
    watch: std::sync::Arc<Watch>,
}

/// The progress of a request.
#[derive(Default)]
struct Progress {
    /// Parts of answers so far.
    parts: AtomicU64,
    /// The most that an attempt has received.
    most: AtomicU64,
    /// Time for what is to be sent.
    sending: Duration,
}

impl Progress {
    /// The progress of a request that sends so many bytes.
    fn of_sending(bytes: usize) -> Progress {
        Progress { sending: Duration::from_secs(bytes as u64 / RATE_MIN), ..Progress::default() }
    }

    /// An attempt has received so many bytes, of which it has counted some. A few are no progress:
    /// else a store that sends a byte a second would never be given up.
    fn receives(&self, counted: &mut u64, received: u64) {
        if received - *counted >= PROGRESS_BYTES_MIN {
            *counted = received;
            self.reaches(received);
        }
    }

    /// An attempt has come so far.
    fn reaches(&self, received: u64) {
        self.parts.fetch_add(1, Relaxed);
        self.most.fetch_max(received, Relaxed);
    }

    fn now(&self) -> (u64, u64) {
        (self.parts.load(Relaxed), self.most.load(Relaxed))
    }
}

/// Why an attempt failed.
enum Failure {
    /// Another attempt may succeed.
    Passing(StoreError),
    /// No attempt will.
    Lasting(StoreError),
}

impl Objects {
    /// The objects at a location.
    pub fn new(location: Location, watch: std::sync::Arc<Watch>) -> Objects {
        Objects { location, watch }
    }

    /// The location, for messages.
    pub fn shown(&self) -> &str {
        &self.location.shown
    }

    /// Notifies the caller.
    pub fn notify(&self, event: Event) -> Result<(), StoreError> {
        if (self.watch)(event) { Ok(()) } else { Err(StoreError::Stopped) }
    }

    fn head_path(&self) -> Path {
        self.location.prefix.clone().join("head")
    }

    fn layers_path(&self) -> Path {
        self.location.prefix.clone().join("layers")
    }

    /// The path of a layer.
    pub fn layer_path(&self, id: &str) -> Path {
        self.layers_path().join(id)
    }

    fn shown_object(&self, path: &Path) -> String {
        let name = path.as_ref().strip_prefix(self.location.prefix.as_ref()).unwrap_or(path.as_ref());
        format!("{}/{}", self.location.shown, name.trim_start_matches('/'))
    }

    /// Performs a request until it succeeds, or fails for good.
    async fn perform<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        action: &'static str,
        path: &Path,
        progress: &Progress,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        // The last progress.
        let mut last = Instant::now();
        let (mut attempt, mut is_failing) = (1, false);
        loop {
            let answer = self.wait(progress, (&mut last, is_failing), request()).await?;
            let silent = last.elapsed();
            let error = match answer {
                Some(Ok(value)) => return Ok(value),
                Some(Err(Failure::Lasting(error))) => return Err(error),
                Some(Err(Failure::Passing(error))) => {
                    is_failing = true;
                    error
                }
                None => {
                    let reason = format!(
                        "the store has not answered for {} s; check the network and the store's address",
                        silent.as_secs()
                    );
                    StoreError::Request { action, object: self.shown_object(path), reason }
                }
            };
            if attempt == ATTEMPTS || silent >= SILENCE {
                return Err(error);
            }
            let is_damaged = matches!(error, StoreError::Damaged { .. });
            let pause = if is_damaged { PAUSE } else { PAUSE * (1 << attempt) };
            self.wait(progress, (&mut last, is_failing), tokio::time::sleep(pause)).await?;
            attempt += 1;
        }
    }

    /// Waits for an answer, with notices about the time without progress. `None`: there is none.
    async fn wait<T>(
        &self,
        progress: &Progress,
        (last, is_failing): (&mut Instant, bool),
        request: impl Future<Output = T>,
    ) -> Result<Option<T>, StoreError> {
        let mut request = std::pin::pin!(request);
        let (mut seen, mut last_part) = (progress.now(), Instant::now());
        loop {
            let answer = tokio::time::timeout(TICK, &mut request).await;
            let before = std::mem::replace(&mut seen, progress.now());
            if before.0 != seen.0 {
                last_part = Instant::now();
            }
            // An attempt that begins again repeats what another one has received.
            if before.1 != seen.1 {
                *last = Instant::now();
            }
            if let Ok(answer) = answer {
                return Ok(Some(answer));
            }
            self.notify(Event::Waiting { seconds: last.elapsed().as_secs(), is_failing })?;
            if last_part.elapsed() >= ATTEMPT_SILENCE + progress.sending {
                return Ok(None);
            }
        }
    }

    /// Reads an answer of at most so many bytes, part by part.
    async fn body(&self, answer: GetResult, bytes_max: u64, progress: &Progress) -> object_store::Result<Vec<u8>> {
        let mut parts = answer.into_stream();
        let (mut body, mut counted) = (Vec::new(), 0);
        while let Some(part) = parts.next().await {
            body.extend_from_slice(&part?);
            progress.receives(&mut counted, body.len() as u64);
            if body.len() as u64 > bytes_max {
                break;
            }
        }
        Ok(body)
    }

    /// Sorts the errors of the client.
    fn failure(&self, action: &'static str, path: &Path, error: Error) -> Failure {
        let object = self.shown_object(path);
        let reason = reason(&error);
        match error {
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Failure::Lasting(StoreError::Denied { action, object, reason })
            }
            Error::NotImplemented { .. } | Error::NotSupported { .. } => {
                Failure::Lasting(StoreError::NoConditions { shown: self.location.shown.clone() })
            }
            // What is written need not be there, but its bucket.
            Error::NotFound { .. } if matches!(action, "create" | "replace" | "write") => {
                Failure::Lasting(StoreError::NoBucket { action, object })
            }
            Error::NotFound { .. } => {
                Failure::Lasting(StoreError::Damaged { object, reason: "it is not there".into() })
            }
            Error::Generic { source, .. } if source.is::<NoObject>() => {
                Failure::Lasting(StoreError::Damaged { object, reason: source.to_string() })
            }
            Error::Generic { source, .. } if is_full(&*source) => Failure::Lasting(StoreError::Full { action, object }),
            Error::UnknownConfigurationKey { .. } | Error::InvalidPath { .. } => {
                Failure::Lasting(StoreError::Request { action, object, reason })
            }
            _ => Failure::Passing(StoreError::Request { action, object, reason }),
        }
    }

    /// Reads the head; `None`: there is none.
    pub async fn head(&self) -> Result<Option<Found>, StoreError> {
        const ACTION: &str = "read";
        let (path, progress) = (self.head_path(), Progress::default());
        let request = async || {
            let answer = match self.location.store.get(&path).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                answer => answer.map_err(|error| self.failure(ACTION, &path, error))?,
            };
            let damaged = |reason| Failure::Passing(StoreError::Damaged { object: self.shown_object(&path), reason });
            if answer.meta.size > HEAD_BYTES_MAX as u64 {
                return Err(damaged("it is too long".to_owned()));
            }
            let version = UpdateVersion { e_tag: answer.meta.e_tag.clone(), version: answer.meta.version.clone() };
            let bytes = self.body(answer, HEAD_BYTES_MAX as u64, &progress).await;
            let bytes = bytes.map_err(|error| self.failure(ACTION, &path, error))?;
            match Head::decode(&bytes) {
                Ok(head) => Ok(Some(Found { head, version })),
                Err(HeadError::Damaged(reason)) => Err(damaged(reason)),
                Err(HeadError::Version(version)) => {
                    Err(Failure::Lasting(StoreError::Version { object: self.shown_object(&path), version }))
                }
            }
        };
        self.perform(ACTION, &path, &progress, request).await
    }

    /// Reads the head of a prefix that must have one.
    pub async fn existing_head(&self) -> Result<Found, StoreError> {
        self.head().await?.ok_or_else(|| StoreError::NoImage { shown: self.location.shown.clone() })
    }

    /// Replaces the head that was read (`None`: there was none) if it is still there.
    pub async fn replace_head(&self, over: Option<&Found>, head: &mut Head) -> Result<Replaced, StoreError> {
        head.nonce = random_hex();
        let path = self.head_path();
        // Counters of a forged head may be at their end.
        head.check().map_err(|reason| StoreError::Damaged {
            object: self.shown_object(&path),
            reason: format!("what follows it cannot be written: {reason}"),
        })?;
        let payload = PutPayload::from(head.encode());
        let progress = Progress::of_sending(payload.content_length());
        let mode = match over {
            _ if has(Defect::Unconditional) => PutMode::Overwrite,
            Some(found) => PutMode::Update(found.version.clone()),
            None => PutMode::Create,
        };
        let request = async || {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            match self.location.store.put_opts(&path, payload.clone(), options).await {
                Ok(_) => Ok(Replaced::Done),
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {
                    Ok(Replaced::Lost)
                }
                Err(error) => Err(self.failure("replace", &path, error)),
            }
        };
        match self.perform("replace", &path, &progress, request).await? {
            Replaced::Done => Ok(Replaced::Done),
            // An earlier attempt may have been performed, and its answer lost.
            Replaced::Lost => match self.head().await? {
                Some(found) if found.head.nonce == head.nonce => Ok(Replaced::Done),
                _ => Ok(Replaced::Lost),
            },
        }
    }

    /// Makes sure that the store heeds conditions, on an object of its own.
    pub async fn check_conditions(&self) -> Result<(), StoreError> {
        let path = self.location.prefix.clone().join(format!("probe-{}", random_hex()));
        let put = async |mode: PutMode| {
            let request = async || {
                let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
                match self.location.store.put_opts(&path, PutPayload::from_static(b"probe"), options).await {
                    Ok(_) => Ok(true),
                    Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => Ok(false),
                    Err(error) => Err(self.failure("create", &path, error)),
                }
            };
            self.perform("create", &path, &Progress::default(), request).await
        };
        put(PutMode::Create).await?;
        let other = UpdateVersion { e_tag: Some("\"0123456789abcdef0123456789abcdef\"".into()), version: None };
        let other = UpdateVersion { version: Some("1".into()), ..other };
        let ignored = put(PutMode::Create).await? || put(PutMode::Update(other)).await?;
        self.remove(vec![path]).await?;
        match ignored {
            true => Err(StoreError::NoConditions { shown: self.location.shown.clone() }),
            false => Ok(()),
        }
    }

    /// Writes a layer.
    pub async fn put_layer(&self, id: &str, bytes: Bytes) -> Result<(), StoreError> {
        let (path, progress) = (self.layer_path(id), Progress::of_sending(bytes.len()));
        let request = async || {
            let put = self.location.store.put(&path, PutPayload::from(bytes.clone())).await;
            put.map(drop).map_err(|error| self.failure("write", &path, error))
        };
        self.perform("write", &path, &progress, request).await
    }

    /// Reads a range of a layer, and examines it.
    async fn read<T>(
        &self,
        layer: &Layer,
        range: Range<u64>,
        examine: impl Fn(Bytes) -> Result<T, LayerError>,
    ) -> Result<T, StoreError> {
        let (path, progress) = (self.layer_path(&layer.id), Progress::default());
        let wanted = range.end - range.start;
        let request = async || {
            let object = || self.shown_object(&path);
            let damaged = |reason: &str| StoreError::Damaged { object: object(), reason: reason.to_owned() };
            let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
            let answered = async {
                let answer = self.location.store.get_opts(&path, options).await?;
                self.body(answer, wanted, &progress).await
            };
            let bytes = answered.await.map_err(|error| self.failure("read", &path, error))?;
            if bytes.len() as u64 != wanted {
                return Err(Failure::Passing(damaged("it has another length")));
            }
            examine(bytes.into()).map_err(|error| match error {
                LayerError::Damaged(reason) => Failure::Passing(damaged(reason)),
                LayerError::Version(version) => Failure::Lasting(StoreError::Version { object: object(), version }),
            })
        };
        self.perform("read", &path, &progress, request).await
    }

    /// Reads the index of a layer, with its bytes.
    pub async fn index(&self, layer: &Layer) -> Result<(Index, Bytes), StoreError> {
        self.read(layer, layer.bytes - layer.index_bytes..layer.bytes, |tail| Ok((check_tail(layer, &tail)?, tail)))
            .await
    }

    /// Reads frames of a layer that follow each other: the content of all their blocks.
    pub async fn frames(&self, layer: &Layer, index: &Index, frames: Range<usize>) -> Result<Vec<u8>, StoreError> {
        self.read(layer, index.frame_bytes(frames.clone()), |stored| {
            let mut content = Vec::new();
            let read = index.read_frames(frames.clone(), &stored, &mut |_, block| {
                content.extend_from_slice(block);
                Ok(())
            })?;
            read.map(|()| content).map_err(|_| LayerError::Damaged("it cannot be read"))
        })
        .await
    }

    /// Reads a whole layer.
    pub async fn layer(&self, layer: &Layer) -> Result<(Index, Bytes), StoreError> {
        self.read(layer, 0..layer.bytes, |bytes| {
            let index = check_tail(layer, &bytes[(layer.bytes - layer.index_bytes) as usize..])?;
            // All blocks are examined here, so that damage leads to another attempt.
            let examined = index.read(&bytes, &mut |_| true, &mut |_, _| Ok(()))?;
            examined.map_err(|_| LayerError::Damaged("it cannot be read"))?;
            Ok((index, bytes))
        })
        .await
    }

    /// The layers that are there: names, bytes, and when they were written (seconds since 1970).
    pub async fn list(&self) -> Result<Vec<(String, u64, u64)>, StoreError> {
        let path = self.layers_path();
        let request = async || {
            // All objects are directly below the prefix.
            let listed = match self.location.store.list_with_delimiter(Some(&path)).await {
                Err(Error::NotFound { .. }) => Vec::new(),
                listed => listed.map_err(|error| self.failure("list", &path, error))?.objects,
            };
            Ok(listed
                .into_iter()
                .filter_map(|meta| {
                    // What has no such name is not ours, and is not removed.
                    let name = meta.location.filename().filter(|name| is_id(name))?.to_owned();
                    Some((name, meta.size, u64::try_from(meta.last_modified.timestamp()).unwrap_or(0)))
                })
                .collect())
        };
        self.perform("list", &path, &Progress::default(), request).await
    }

    /// Removes objects, some of which may be gone already.
    pub async fn remove(&self, paths: Vec<Path>) -> Result<(), StoreError> {
        let Some(first) = paths.first().cloned() else { return Ok(()) };
        let progress = Progress::default();
        let request = async || {
            let wanted = stream::iter(paths.clone().into_iter().map(Ok)).boxed();
            let mut removed = self.location.store.delete_stream(wanted);
            let mut count = 0;
            while let Some(result) = removed.next().await {
                count += 1;
                progress.reaches(count);
                match result {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(self.failure("remove", &first, error)),
                }
            }
            Ok(())
        };
        self.perform("remove", &first, &progress, request).await
    }
}

/// Whether a directory's file system has no room, or its user may have no more of it.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let kinds = [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded, std::io::ErrorKind::FileTooLarge];
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|cause| kinds.contains(&cause.kind()))
}

/// Reads an index that must be the one which the head names.
pub fn check_tail(layer: &Layer, tail: &[u8]) -> Result<Index, LayerError> {
    if hex(digest(&SHA256, tail).as_ref()) != layer.sha256 {
        return Err(LayerError::Damaged("it is another object, or its checksum does not match"));
    }
    Index::decode(tail, layer.bytes)
}

/// The text of an error in one line, as far as it fits: it contains what the store answered, which
/// can be long, and can repeat what was sent.
fn reason(error: &Error) -> String {
    let is_secret = |name: &str| ["_KEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|part| name.contains(part));
    let secrets = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let is_of_store = ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix));
        (is_of_store && is_secret(&name)).then(|| value.into_string().ok()).flatten()
    });
    without_secrets(&error.to_string(), secrets)
}

/// What may be shown of a text. What follows a question mark in a URL may be a signature.
fn without_secrets(text: &str, secrets: impl Iterator<Item = String>) -> String {
    let words = text.split_whitespace().map(|word| if word.contains("://") { shown(word) } else { word.to_owned() });
    let text = words.take(SHOWN_MAX).collect::<Vec<_>>().join(" ");
    // A value of a few letters is no secret, and part of other words.
    let text = secrets.filter(|secret| secret.len() >= 8).fold(text, |text, secret| text.replace(&secret, "..."));
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_tests::on_virtual_time;
    use std::io::ErrorKind;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot copy")]
    struct CannotCopy(#[source] std::io::Error);

    #[test]
    fn an_error_shows_neither_credentials_nor_all_that_a_store_answers() {
        let shown = |text: &str| without_secrets(text, ["token-of-a-session".to_owned(), "s3".to_owned()].into_iter());
        assert_eq!(shown("GET http://user:pw@host/b?sig=x\n in 1s"), "GET http://host/b in 1s");
        assert_eq!(shown("s3: header token-of-a-session, sent"), "s3: header ..., sent");
        assert_eq!(shown(&"a".repeat(1 << 20)).len(), SHOWN_MAX + 3);
        assert_eq!(shown(&"ä ".repeat(1 << 20)).chars().count(), SHOWN_MAX + 3);
    }

    #[test]
    fn a_store_that_sends_a_few_bytes_a_second_is_given_up_and_a_slow_one_is_not() {
        let location = Location {
            store: std::sync::Arc::new(object_store::memory::InMemory::new()),
            prefix: Path::default(),
            shown: "memory".to_owned(),
        };
        let objects = Objects::new(location, std::sync::Arc::new(|_| true));
        let seconds = |bytes_a_second: u64| {
            let (progress, objects) = (Progress::default(), objects.clone());
            let story = async move {
                let begun = Instant::now();
                let answer = async {
                    let mut counted = 0;
                    for second in 1..=300 {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        progress.receives(&mut counted, second * bytes_a_second);
                    }
                };
                let answer = objects.wait(&progress, (&mut Instant::now(), false), answer).await.unwrap();
                (answer.is_some(), begun.elapsed().as_secs())
            };
            on_virtual_time(story)
        };
        assert_eq!(seconds(32), (false, 60));
        assert_eq!(seconds(1000), (true, 300));
    }

    #[test]
    fn a_full_file_system_is_found_below_an_error_of_the_client() {
        assert!(is_full(&CannotCopy(ErrorKind::StorageFull.into())));
        assert!(!is_full(&CannotCopy(ErrorKind::TimedOut.into())));
    }
}
