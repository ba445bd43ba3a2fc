//! Push: the blocks that changed since the newest state become layers, then a head that names them.
//!
//! Order: all layers are in the store before the head is replaced. Killed anywhere, a push leaves
//! the old head and objects that no head names, which the next push uses and a sweep removes.

use crate::cache::{Cache, Pending};
use crate::defects::{Defect, has};
use crate::error::StoreError;
use crate::head::{Head, Layer, SPARED, State, Term, random_hex};
use crate::image::Source;
use crate::layer::{BLOCK, Builder, Built, Content, Index, Stack, Sum, sum};
use crate::objects::{Event, Found, Objects, Replaced};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::HashSet;
use tokio::task::{JoinError, JoinSet};

/// Requests at once.
pub const PARALLEL: usize = 4;
/// How often a push begins again after a sweep or a merge came between.
const ROUNDS: u32 = 8;
/// A push of so many blocks is one layer; of more, metadata has layers of its own, which a reader
/// fetches first and side by side.
const FEW: usize = 256;
/// Blocks of a layer of metadata at most: 16 MiB.
const METADATA_BLOCKS_MAX: usize = 4 << 10;
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// When a push may replace the head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// No other writer has come since the push began.
    #[default]
    Found,
    /// The prefix is in this term still.
    Term(Term),
    /// This state is still the newest one.
    State {
        /// The prefix's lineage.
        lineage: String,
        /// The state.
        generation: u64,
    },
}

/// What a push is to do.
#[derive(Debug, Clone, Default)]
pub struct PushOptions {
    /// A name that keeps this state.
    pub tag: Option<String>,
    /// How long states are kept besides the newest one; absent: as before.
    pub keep_seconds: Option<u64>,
    /// When the push may count.
    pub condition: Condition,
    /// Looks, by one more request, whether the newest state's layers are there, and replaces those
    /// that are not.
    pub looks_for_layers: bool,
    /// Blocks of a layer at most; zero: chosen by the size of the image.
    pub layer_blocks: usize,
    /// Names the writer in messages.
    pub writer: String,
    /// Seconds since 1970.
    pub now: u64,
}

/// What a push has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The state that counts now.
    pub generation: u64,
    /// Whether it is another one than before.
    pub is_new: bool,
    /// Blocks that were sent, and their bytes in the store.
    pub blocks: u64,
    /// Bytes that were sent.
    pub bytes: u64,
}

/// Pushes a state of an image.
pub async fn push(
    objects: &Objects,
    cache: &Cache,
    source: &Source,
    options: &PushOptions,
) -> Result<Pushed, StoreError> {
    let begun = tokio::time::Instant::now();
    let mut first: Option<Found> = None;
    let mut sweeps = None;
    for round in 0..ROUNDS {
        let mut found = objects.head().await?;
        check_writer(objects, first.as_ref(), found.as_ref(), source, options, round)?;
        if let Some(swept) = found.as_ref().filter(|found| sweeps.is_some_and(|before| before != found.head.sweeps)) {
            let mut head = swept.head.clone();
            head.spared_until = options.now + begun.elapsed().as_secs() + SPARED;
            objects.replace_head(Some(swept), &mut head).await?;
            found = objects.head().await?;
            check_writer(objects, first.as_ref(), found.as_ref(), source, options, round)?;
        }
        sweeps = found.as_ref().map(|found| found.head.sweeps);
        match &found {
            None if round == 0 => objects.check_conditions().await?,
            Some(found) if round == 0 => notice_older(objects, cache, &found.head)?,
            _ => {}
        }
        let mut attempt = Attempt::new(objects, cache, source, options, found.as_ref()).await?;
        if let Some(unchanged) = attempt.send_changes().await? {
            return Ok(unchanged);
        }
        if let Some(pushed) = attempt.commit().await? {
            return Ok(pushed);
        }
        first = first.or(found);
    }
    Err(StoreError::Busy { shown: objects.shown().to_owned(), rounds: ROUNDS })
}

/// Notifies the caller of a head that is older than one that was there.
pub fn notice_older(objects: &Objects, cache: &Cache, head: &Head) -> Result<(), StoreError> {
    let Some(found) = head.newest().map(|state| state.generation) else { return Ok(()) };
    match cache.note(objects.shown(), &head.lineage, found) {
        Some(seen) => objects.notify(Event::Older { seen, found }),
        None => Ok(()),
    }
}

/// Makes sure that this writer may replace the head.
fn check_writer(
    objects: &Objects,
    first: Option<&Found>,
    found: Option<&Found>,
    source: &Source,
    options: &PushOptions,
    round: u32,
) -> Result<(), StoreError> {
    let (shown, head) = (objects.shown(), found.map(|found| &found.head));
    if let Some(head) = head {
        head.check_image(shown, source.uuid())?;
    }
    match &options.condition {
        // A single push gives way to another writer, not to a sweep or a merge.
        Condition::Found => {
            let is_overtaken = round > 0 && first.map(|first| first.head.term()) != head.map(Head::term);
            if is_overtaken { Err(StoreError::Overtaken { shown: shown.to_owned() }) } else { Ok(()) }
        }
        Condition::Term(term) => term.check(shown, head),
        Condition::State { lineage, generation } => {
            let Some(head) = head else { return Err(StoreError::NoImage { shown: shown.to_owned() }) };
            let newest = head.newest().map(|state| state.generation);
            if (&head.lineage, newest) == (lineage, Some(*generation)) || has(Defect::StateIgnored) {
                return Ok(());
            }
            Err(StoreError::Changed { shown: shown.to_owned(), writer: head.writer.clone(), opened: *generation })
        }
    }
}

/// One attempt to bring a prefix from the head that was found to a new one.
struct Attempt<'a> {
    objects: &'a Objects,
    cache: &'a Cache,
    source: &'a Source,
    options: &'a PushOptions,
    found: Option<&'a Found>,
    /// Layers of the newest state, and those that an interrupted push left.
    base: Vec<(Layer, Index)>,
    /// Number of layers that no head names.
    left: usize,
    /// Layers of the newest state that are not in the store.
    missing: Vec<Layer>,
    pending: Pending,
    sent: Pushed,
}

impl<'a> Attempt<'a> {
    async fn new(
        objects: &'a Objects,
        cache: &'a Cache,
        source: &'a Source,
        options: &'a PushOptions,
        found: Option<&'a Found>,
    ) -> Result<Attempt<'a>, StoreError> {
        let newest = found.and_then(|found| Some((&found.head, found.head.newest()?)));
        let mut layers = newest.map_or_else(Vec::new, |(head, state)| head.layers_of(state));
        let mut pending = Pending {
            lineage: found.map(|found| found.head.lineage.clone()),
            sweeps: found.map_or(0, |found| found.head.sweeps),
            layers: Vec::new(),
        };
        let left = cache.pending(objects.shown()).filter(|left| {
            (&left.lineage, left.sweeps) == (&pending.lineage, pending.sweeps) && !left.layers.is_empty()
        });
        let mut missing = Vec::new();
        if left.is_some() || options.looks_for_layers {
            let there: HashSet<_> = objects.list().await?.into_iter().map(|(id, bytes, _)| (id, bytes)).collect();
            let is_there = |layer: &mut Layer| there.contains(&(layer.id.clone(), layer.bytes));
            missing = layers.extract_if(.., |layer| !is_there(layer)).collect();
            pending.layers = left.map_or_else(Vec::new, |left| left.layers);
            pending.layers.retain_mut(is_there);
            pending.layers.retain(|layer| !layers.contains(layer));
        }
        layers.extend_from_slice(&pending.layers);
        let base = indexes(objects, cache, layers).await?;
        let generation = newest.map_or(0, |(_, state)| state.generation);
        let sent = Pushed { generation, is_new: false, blocks: 0, bytes: 0 };
        let left = pending.layers.len();
        Ok(Attempt { objects, cache, source, options, found, base, left, missing, pending, sent })
    }

    /// Whether the head must change although no block has.
    fn changes_head(&self) -> bool {
        let Some(head) = self.found.map(|found| &found.head) else { return true };
        let Some(newest) = head.newest() else { return true };
        newest.size != self.source.size()
            || self.options.tag.as_ref().is_some_and(|tag| newest.tag.as_ref() != Some(tag))
            || self.options.keep_seconds.is_some_and(|keep| keep != head.keep_seconds)
            || self.left > 0
            || !self.missing.is_empty()
    }

    fn blocks_max(&self) -> usize {
        match self.options.layer_blocks {
            // 16 to 128 MiB; up to 64 GiB in 512 layers.
            0 => (self.source.used_bytes() / 512 / BLOCK as u64).clamp(4 << 10, 32 << 10) as usize,
            blocks => blocks,
        }
    }

    /// Compares the image with the base, and sends what changed. Returns the result if nothing did.
    async fn send_changes(&mut self) -> Result<Option<Pushed>, StoreError> {
        let base = std::mem::take(&mut self.base);
        let mut comparison = Comparison {
            source: self.source,
            stack: Stack::new(base.iter().map(|(_, index)| index)),
            builders: Default::default(),
            is_split: false,
            next: 0,
            blocks_max: self.blocks_max(),
        };
        let mut uploads = JoinSet::new();
        let mut reader = self.source.reader();
        while let Some((first, piece)) = reader.next()? {
            for (number, block) in (first..).zip(piece.chunks(BLOCK)) {
                if let Some(built) = comparison.add(number, block).map_err(local)? {
                    self.upload(&mut uploads, built).await?;
                }
            }
            let done = first * BLOCK as u64 + piece.len() as u64;
            self.objects.notify(Event::Done { bytes: done, of: self.source.size() })?;
        }
        for built in comparison.finish().map_err(local)? {
            self.upload(&mut uploads, built).await?;
        }
        let is_unchanged = uploads.is_empty() && self.sent.bytes == 0;
        if is_unchanged && !self.changes_head() {
            return Ok(Some(self.sent.clone()));
        }
        while !uploads.is_empty() {
            self.end_upload(&mut uploads).await?;
        }
        Ok(None)
    }

    /// Begins to upload a layer, once few enough are under way.
    async fn upload(&mut self, uploads: &mut Uploads, built: Built) -> Result<(), StoreError> {
        while uploads.len() >= PARALLEL {
            self.end_upload(uploads).await?;
        }
        self.sent.blocks += built.index.count() as u64;
        uploads.spawn(put(self.objects.clone(), self.sent.generation + 1, built));
        Ok(())
    }

    async fn end_upload(&mut self, uploads: &mut Uploads) -> Result<(), StoreError> {
        let Some(ended) = uploads.join_next().await else { return Ok(()) };
        self.keep(ended)
    }

    /// Notes a layer that is in the store, so that an interrupted push need not send it again.
    fn keep(&mut self, ended: Result<Result<Sent, StoreError>, JoinError>) -> Result<(), StoreError> {
        let (layer, tail) = ended.map_err(|error| local(std::io::Error::other(error)))??;
        self.sent.bytes += layer.bytes;
        self.cache.keep_index(&layer, &tail);
        self.pending.layers.push(layer);
        self.cache.keep_pending(self.objects.shown(), Some(&self.pending));
        Ok(())
    }

    /// Replaces the head. `None`: another head was there.
    async fn commit(&mut self) -> Result<Option<Pushed>, StoreError> {
        let (options, source) = (self.options, self.source);
        let mut head = self.found.map_or_else(|| Head::new(source.uuid(), &options.writer), |found| found.head.clone());
        if self.found.is_some() && !matches!(options.condition, Condition::Term(_)) {
            head.epoch += 1;
            head.writer.clone_from(&options.writer);
        }
        if let Some(keep) = options.keep_seconds {
            head.keep_seconds = keep;
        }
        let mut layers = head.newest().map_or_else(Vec::new, |state| head.layers_of(state));
        layers.retain(|layer| !self.missing.contains(layer));
        layers.extend_from_slice(&self.pending.layers);
        // A state has one name, and keeps it.
        let is_new = !self.pending.layers.is_empty()
            || !self.missing.is_empty()
            || head.newest().is_none_or(|state| {
                let is_named = state.tag.is_some() && options.tag.is_some() && state.tag != options.tag;
                state.size != source.size() || is_named
            });
        if is_new {
            let generation = head.newest().map_or(1, |state| state.generation + 1);
            let layers = head.places_of(&layers);
            head.states.push(State { generation, time: options.now, size: source.size(), tag: None, layers });
        }
        if let Some(tag) = &options.tag {
            // A tag names one state.
            head.states.iter_mut().filter(|state| state.tag.as_ref() == Some(tag)).for_each(|state| state.tag = None);
            head.states.last_mut().into_iter().for_each(|state| state.tag = Some(tag.clone()));
        }
        head.prune(options.now);
        head.spared_until = 0;
        match self.objects.replace_head(self.found, &mut head).await? {
            Replaced::Lost => Ok(None),
            Replaced::Done => {
                self.cache.keep_pending(self.objects.shown(), None);
                let generation = head.newest().map_or(0, |state| state.generation);
                self.cache.note(self.objects.shown(), &head.lineage, generation);
                Ok(Some(Pushed { generation, is_new, ..self.sent.clone() }))
            }
        }
    }
}

/// A layer that is in the store, and its index.
type Sent = (Layer, Bytes);
/// Layers under way.
type Uploads = JoinSet<Result<Sent, StoreError>>;

/// Uploads a layer under a name that no other has.
pub async fn put(objects: Objects, generation: u64, built: Built) -> Result<Sent, StoreError> {
    let id = format!("{generation:016x}-{}", random_hex());
    let tail = Bytes::copy_from_slice(built.tail());
    let (bytes, metadata) = (built.bytes.len() as u64, built.is_metadata);
    let layer = Layer { id, bytes, index_bytes: built.index_bytes, sha256: built.sha256.clone(), metadata };
    let (id, bytes) = (layer.id.clone(), Bytes::from(built.bytes));
    if has(Defect::HeadFirst) {
        tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            objects.put_layer(&id, bytes).await
        });
    } else {
        objects.put_layer(&id, bytes).await?;
    }
    Ok((layer, tail))
}

/// The indexes of layers, from the cache or the store.
pub async fn indexes(objects: &Objects, cache: &Cache, layers: Vec<Layer>) -> Result<Vec<(Layer, Index)>, StoreError> {
    let fetch = async |layer: Layer| {
        if let Some(index) = cache.index(&layer) {
            return Ok((layer, index));
        }
        let (index, tail) = objects.index(&layer).await?;
        cache.keep_index(&layer, &tail);
        Ok((layer, index))
    };
    stream::iter(layers).map(fetch).buffered(PARALLEL * 2).try_collect().await
}

fn local(source: std::io::Error) -> StoreError {
    StoreError::Local { action: "compress", path: "a layer".into(), source }
}

/// Finds the blocks of an image that differ from the base.
struct Comparison<'i> {
    source: &'i Source,
    stack: Stack<'i>,
    /// Of metadata and the first blocks; of data.
    builders: [Builder; 2],
    /// Data goes to the second one.
    is_split: bool,
    /// The next block that was not compared.
    next: u64,
    blocks_max: usize,
}

impl Comparison<'_> {
    /// Compares a block; the image has a hole before it if blocks are missing. Returns a layer when
    /// it is full.
    fn add(&mut self, number: u64, block: &[u8]) -> std::io::Result<Option<Built>> {
        self.add_hole(number);
        self.next = number + 1;
        let content = if *block == ZEROS { Content::Zero } else { Content::Sum(sum(block)) };
        match content {
            content if self.stack.find(number) == content => Ok(None),
            Content::Zero => {
                self.builders[0].add_zero(number);
                Ok(None)
            }
            Content::Sum(sum) => self.add_content(number, block, sum),
        }
    }

    fn add_content(&mut self, number: u64, block: &[u8], sum: Sum) -> std::io::Result<Option<Built>> {
        let is_metadata = self.source.is_metadata(number);
        let [first, data] = &mut self.builders;
        self.is_split |= first.has_metadata() && first.blocks() >= FEW.min(self.blocks_max / 2);
        let (builder, blocks_max) = match (self.is_split, is_metadata) {
            (true, false) => (data, self.blocks_max),
            (true, true) => (first, self.blocks_max.min(METADATA_BLOCKS_MAX)),
            (false, _) => (first, self.blocks_max),
        };
        if is_metadata {
            builder.set_metadata();
        }
        builder.add(number, block, sum)?;
        if builder.blocks() >= blocks_max { std::mem::take(builder).finish().map(Some) } else { Ok(None) }
    }

    /// Compares a hole that ends before a block.
    fn add_hole(&mut self, end: u64) {
        while let Some(number) = self.stack.next(self.next).filter(|&number| number < end) {
            if self.stack.find(number) == Content::Zero {
                // A store may name any number of zero blocks: they are passed at once.
                self.next = self.stack.end_of_run(number).min(end);
            } else {
                self.builders[0].add_zero(number);
                self.next = number + 1;
            }
        }
    }

    /// Compares what is behind the image's end, and returns the last layers.
    fn finish(&mut self) -> std::io::Result<Vec<Built>> {
        self.add_hole(u64::MAX);
        let builders = std::mem::take(&mut self.builders).into_iter();
        builders.filter(|builder| !builder.is_empty()).map(Builder::finish).collect()
    }
}
