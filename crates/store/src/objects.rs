//! The objects of one prefix: requests with retries, and what their answers must be.
//!
//! Every request is repeated after a failure that may pass, with growing pauses, and after an
//! answer that is too short or fails its checksum. The client below repeats requests, too,
//! so a replacement of the head may be performed although its answer is a refusal: then the head
//! carries this writer's nonce.

use crate::defects::{Defect, has};
use crate::directory::NoObject;
use crate::error::StoreError;
use crate::head::{HEAD_BYTES_MAX, Head, HeadError, Layer, hex, is_id, random_hex};
use crate::layer::{Index, LayerError};
use crate::location::Location;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use ring::digest::{SHA256, digest};
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

/// Attempts of a request.
const ATTEMPTS: u32 = 6;
/// The pause before the second attempt; it doubles, unless the answer was there and damaged.
const PAUSE: Duration = Duration::from_millis(200);
/// A request without an answer counts as failed after this time.
const ANSWER: Duration = Duration::from_secs(900);
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
        /// Seconds since the request began.
        seconds: u64,
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
        request: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let begun = tokio::time::Instant::now();
        let mut attempt = 1;
        loop {
            let answer = self.wait(begun, request()).await?;
            let error = match answer {
                Some(Ok(value)) => return Ok(value),
                Some(Err(Failure::Lasting(error))) => return Err(error),
                Some(Err(Failure::Passing(error))) => error,
                None => self.failed(action, path, "no answer".to_owned()),
            };
            if attempt == ATTEMPTS {
                return Err(error);
            }
            let is_damaged = matches!(error, StoreError::Damaged { .. });
            let pause = if is_damaged { PAUSE } else { PAUSE * (1 << attempt) };
            self.wait(begun, tokio::time::sleep(pause)).await?;
            attempt += 1;
        }
    }

    /// Waits for an answer, with notices about the time that it takes. `None`: there is none.
    async fn wait<T>(
        &self,
        begun: tokio::time::Instant,
        request: impl Future<Output = T>,
    ) -> Result<Option<T>, StoreError> {
        let mut request = std::pin::pin!(request);
        let sent = tokio::time::Instant::now();
        while sent.elapsed() < ANSWER {
            if let Ok(answer) = tokio::time::timeout(TICK, &mut request).await {
                return Ok(Some(answer));
            }
            self.notify(Event::Waiting { seconds: begun.elapsed().as_secs() })?;
        }
        Ok(None)
    }

    fn failed(&self, action: &'static str, path: &Path, reason: String) -> StoreError {
        StoreError::Request { action, object: self.shown_object(path), reason }
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
            Error::UnknownConfigurationKey { .. } | Error::InvalidPath { .. } => {
                Failure::Lasting(StoreError::Request { action, object, reason })
            }
            _ => Failure::Passing(StoreError::Request { action, object, reason }),
        }
    }

    /// Reads the head; `None`: there is none.
    pub async fn head(&self) -> Result<Option<Found>, StoreError> {
        const ACTION: &str = "read";
        let path = self.head_path();
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
            let bytes = answer.bytes().await.map_err(|error| self.failure(ACTION, &path, error))?;
            match Head::decode(&bytes) {
                Ok(head) => Ok(Some(Found { head, version })),
                Err(HeadError::Damaged(reason)) => Err(damaged(reason)),
                Err(HeadError::Version(version)) => {
                    Err(Failure::Lasting(StoreError::Version { object: self.shown_object(&path), version }))
                }
            }
        };
        self.perform(ACTION, &path, request).await
    }

    /// Reads the head of a prefix that must have one.
    pub async fn existing_head(&self) -> Result<Found, StoreError> {
        self.head().await?.ok_or_else(|| StoreError::NoImage { shown: self.location.shown.clone() })
    }

    /// Replaces the head that was read (`None`: there was none) if it is still there.
    pub async fn replace_head(&self, over: Option<&Found>, head: &mut Head) -> Result<Replaced, StoreError> {
        head.nonce = random_hex();
        let path = self.head_path();
        let payload = PutPayload::from(head.encode());
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
        match self.perform("replace", &path, request).await? {
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
            self.perform("create", &path, request).await
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
        let path = self.layer_path(id);
        let request = async || {
            let put = self.location.store.put(&path, PutPayload::from(bytes.clone())).await;
            put.map(drop).map_err(|error| self.failure("write", &path, error))
        };
        self.perform("write", &path, request).await
    }

    /// Reads a range of a layer, and examines it.
    async fn read<T>(
        &self,
        layer: &Layer,
        range: Range<u64>,
        examine: impl Fn(Bytes) -> Result<T, LayerError>,
    ) -> Result<T, StoreError> {
        let path = self.layer_path(&layer.id);
        let request = async || {
            let object = || self.shown_object(&path);
            let damaged = |reason: &str| StoreError::Damaged { object: object(), reason: reason.to_owned() };
            let bytes = self.location.store.get_range(&path, range.clone()).await;
            let bytes = bytes.map_err(|error| self.failure("read", &path, error))?;
            if bytes.len() as u64 != range.end - range.start {
                return Err(Failure::Passing(damaged("it is too short")));
            }
            examine(bytes).map_err(|error| match error {
                LayerError::Damaged(reason) => Failure::Passing(damaged(reason)),
                LayerError::Version(version) => Failure::Lasting(StoreError::Version { object: object(), version }),
            })
        };
        self.perform("read", &path, request).await
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
        self.perform("list", &path, request).await
    }

    /// Removes objects, some of which may be gone already.
    pub async fn remove(&self, paths: Vec<Path>) -> Result<(), StoreError> {
        let Some(first) = paths.first().cloned() else { return Ok(()) };
        let request = async || {
            let wanted = stream::iter(paths.clone().into_iter().map(Ok)).boxed();
            let mut removed = self.location.store.delete_stream(wanted);
            while let Some(result) = removed.next().await {
                match result {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(self.failure("remove", &first, error)),
                }
            }
            Ok(())
        };
        self.perform("remove", &first, request).await
    }
}

/// Reads an index that must be the one which the head names.
pub fn check_tail(layer: &Layer, tail: &[u8]) -> Result<Index, LayerError> {
    if hex(digest(&SHA256, tail).as_ref()) != layer.sha256 {
        return Err(LayerError::Damaged("it is another object, or its checksum does not match"));
    }
    Index::decode(tail, layer.bytes)
}

/// The text of an error in one line. What follows a question mark in a URL may be a signature.
fn reason(error: &Error) -> String {
    let text = error.to_string();
    let words = text.split_whitespace().map(|word| match word.split_once('?') {
        Some((url, _)) if url.contains("://") => url,
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}
