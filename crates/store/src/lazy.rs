//! A state of a store that is read before it was fetched: the blocks of a sparse file of the cache
//! come when they are first used.
//!
//! ```text
//! read --> are the blocks verified? --yes--> the file
//!            | no
//!            +--> does the file have them, by their checksums? --no--> one GET of their frames
//! ```
//!
//! [`Part`] is what a run learns from the head; [`Lazy`] serves it, in a helper process.
//!
//! Invariants
//! - A block is returned only after this value has compared it with its checksum in an index. The
//!   head, through a SHA-256, vouches for the index.
//! - Which blocks the file has is recorded nowhere. A bit in memory means "verified by this value".
//!   What earlier processes left, whole or half written by a kill or a power failure, counts when
//!   its checksum matches. *Rejected:* a map of present blocks beside the file, which would have to
//!   be flushed after the blocks at each fetch, and then is believed.
//! - A read ends: after [`Limits`] without an answer it fails, and so do the others soon. The next
//!   one asks the store again, so it goes on when the network is back.
//! - The file stays within the limit of the cache: what was fetched first is given back first, and
//!   its bits are cleared before.
//! - A process that has the file holds its lock ([`Cache::part`]).
//!
//! A state that was read nearly whole is completed, and becomes a file of the cache like a fetched
//! one. The indexes come first: 16 bytes for each block of 4 KiB, 0.4 % of the content. Then come
//! the layers of metadata; both side by side.

use crate::cache::Cache;
use crate::error::StoreError;
use crate::head::{Head, Layer, State};
use crate::layer::{BLOCK, FRAME_BLOCKS, Index};
use crate::location::Location;
use crate::objects::{Event, Objects, Watch};
use crate::session::{Ending, runtime};
use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Requests at once before the state is served.
const PREFETCHERS: usize = 8;
/// Frames that a sequential reader gets by one request: 4 MiB of an image.
const WINDOW_MAX: usize = 16;
/// Rounds of a read whose blocks are given back while it fetches others.
const ROUNDS: usize = 16;
/// Frames that are fetched at the end if nothing else is missing: an eighth, but 1 to 64 MiB.
const COMPLETED: std::ops::RangeInclusive<usize> = 4..=256;
/// After so many fetched bytes the size of the cache is looked at.
const LOOK: u64 = 32 << 20;

/// A state of a store: what a reader must know of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    url: String,
    identity: String,
    size: u64,
    layers: Vec<Layer>,
}

impl Part {
    pub(crate) fn new(url: &str, head: &Head, state: &State) -> Part {
        let (identity, layers) = (head.identity_of(state), head.layers_of(state));
        Part { url: url.to_owned(), identity, size: state.size, layers }
    }

    /// Names the content: 64 hexadecimal digits.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Bytes of the image.
    pub fn size(&self) -> u64 {
        self.size
    }
}

/// How long a read waits for a store, and how much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Seconds while the store answered last time.
    pub first: u64,
    /// Seconds while it did not.
    pub later: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { first: 60, later: 5, cache_bytes: Cache::limit() }
    }
}

/// Seconds without an answer that are reported.
const SILENCE_SECONDS: u64 = 5;

/// A read that failed. What is wrong was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread;

/// Receives messages for the user.
pub type Say = dyn Fn(&str) + Send + Sync;

/// Blocks that follow each other in a layer and are not in a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    first: u64,
    count: u64,
    layer: usize,
    place: usize,
}

/// A layer, and what is verified of it.
struct Source {
    layer: Layer,
    index: Index,
    /// [`Index::content_runs`].
    runs: Vec<(u64, u64, usize)>,
    /// A word for each frame: a bit for each block that the file has.
    verified: Vec<AtomicU64>,
    /// The frame behind the last fetched one, and how many were fetched then.
    sequence: Mutex<(usize, usize)>,
}

impl Source {
    fn new(layer: Layer, index: Index) -> Source {
        let verified = (0..index.frame_count()).map(|_| AtomicU64::new(0)).collect();
        Source { layer, runs: index.content_runs().collect(), index, verified, sequence: Mutex::new((0, 0)) }
    }

    /// The number of the block at a place.
    fn number(&self, place: usize) -> u64 {
        let run = self.runs.partition_point(|run| run.2 <= place).saturating_sub(1);
        self.runs.get(run).map_or(0, |&(first, _, start)| first + (place - start) as u64)
    }

    fn is_verified(&self, place: usize) -> bool {
        self.verified[place / FRAME_BLOCKS].load(SeqCst) & 1 << (place % FRAME_BLOCKS) != 0
    }
}

/// How reading stands with the store.
struct Contact {
    limits: Limits,
    say: Box<Say>,
    /// The last read was given up.
    is_lost: AtomicBool,
    /// The silence was reported.
    is_reported: AtomicBool,
    /// The last message.
    said: Mutex<String>,
}

impl Contact {
    /// Whether to go on waiting.
    fn wait(&self, seconds: u64, shown: &str) -> bool {
        let limit = if self.is_lost.load(SeqCst) { self.limits.later } else { self.limits.first };
        if seconds >= SILENCE_SECONDS.min(limit) && !self.is_reported.swap(true, SeqCst) {
            self.say(format!("{shown}: the store has not answered for {seconds} s; reads wait for up to {limit} s"));
        }
        seconds < limit
    }

    /// Passes a message on, once.
    fn say(&self, message: String) {
        let mut said = locked(&self.said);
        if *said != message {
            (self.say)(&message);
            *said = message;
        }
    }

    fn answered(&self) {
        self.is_reported.store(false, SeqCst);
        if self.is_lost.swap(false, SeqCst) {
            locked(&self.said).clear();
        }
    }
}

/// A state that can be read.
pub struct Lazy {
    part: Part,
    objects: Objects,
    cache: Cache,
    runtime: Ending,
    contact: Arc<Contact>,
    file: File,
    sources: Vec<Source>,
    /// Ascending; between them the image is zero.
    extents: Vec<Extent>,
    /// Frames that are being fetched.
    fetching: Mutex<HashSet<(usize, usize)>>,
    fetched: Condvar,
    /// Held while blocks are read, written or marked, and exclusively while they are given back.
    gate: RwLock<()>,
    kept: Mutex<Kept>,
}

/// What was fetched.
#[derive(Default)]
struct Kept {
    /// Oldest first.
    frames: VecDeque<(usize, usize)>,
    /// Bytes since the last look at the cache.
    since: u64,
}

impl Lazy {
    /// Opens a state, and fetches what the cache has not of its indexes. `file`: [`Cache::part`].
    pub fn open(part: Part, cache: Cache, file: File, limits: Limits, say: Box<Say>) -> Result<Lazy, StoreError> {
        let location = Location::parse(&part.url)?;
        Lazy::over(location, part, cache, file, limits, say)
    }

    pub(crate) fn over(
        location: Location,
        part: Part,
        cache: Cache,
        file: File,
        limits: Limits,
        say: Box<Say>,
    ) -> Result<Lazy, StoreError> {
        let contact = Contact {
            limits,
            say,
            is_lost: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
            said: Mutex::default(),
        };
        let contact = Arc::new(contact);
        let (watching, shown) = (Arc::clone(&contact), location.shown.clone());
        let watch: Arc<Watch> = Arc::new(move |event| match event {
            Event::Waiting { seconds, .. } => watching.wait(seconds, &shown),
            Event::Done { .. } | Event::Older { .. } => true,
        });
        let objects = Objects::new(location, watch);
        let runtime = runtime(objects.shown())?;
        let sources = runtime.block_on(indexes(&objects, &cache, &part.layers))?;
        let extents = extents(&sources, part.size);
        let local = |source| StoreError::Local { action: "extend", path: "the file of the cache".into(), source };
        // What another state of this identity left has this size already.
        if file.metadata().map_err(local)?.blocks() * 512 > limits.cache_bytes {
            file.set_len(0).map_err(local)?;
        }
        file.set_len(part.size).map_err(local)?;
        let kept = Mutex::default();
        let (fetching, fetched, gate) = (Mutex::default(), Condvar::new(), RwLock::new(()));
        let lazy =
            Lazy { part, objects, cache, runtime, contact, file, sources, extents, fetching, fetched, gate, kept };
        lazy.fetch_metadata();
        Ok(lazy)
    }

    /// Fetches the layers that every open reads, unless they take much of the cache. What fails is
    /// left to the reads.
    fn fetch_metadata(&self) {
        let of_metadata = || (0..).zip(&self.sources).filter(|(_, source)| source.layer.metadata);
        let bytes: u64 = of_metadata().map(|(_, source)| (source.index.count() * BLOCK) as u64).sum();
        if bytes > self.contact.limits.cache_bytes / 2 {
            return;
        }
        let windows = |(number, source): (usize, &Source)| {
            let frames = source.verified.len();
            (0..frames).step_by(WINDOW_MAX).map(move |first| (number, first..frames.min(first + WINDOW_MAX)))
        };
        let windows: Vec<_> = of_metadata().flat_map(windows).collect();
        let next = AtomicUsize::new(0);
        let fetch = || {
            while let Some((source, frames)) = windows.get(next.fetch_add(1, SeqCst)) {
                if self.bring_frames(*source, frames.clone()).is_err() {
                    next.store(windows.len(), SeqCst);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..PREFETCHERS.min(windows.len()) {
                let _ = std::thread::Builder::new().name("directfs-first".to_owned()).spawn_scoped(scope, fetch);
            }
        });
    }

    /// Bytes of the image.
    pub fn size(&self) -> u64 {
        self.part.size
    }

    /// Bytes of the image that are not zero.
    pub fn content_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.count).sum::<u64>().saturating_mul(BLOCK as u64).min(self.part.size)
    }

    /// A number for the content.
    pub fn number(&self) -> u64 {
        u64::from_str_radix(self.part.identity.get(..15).unwrap_or_default(), 16).unwrap_or(0)
    }

    /// The next range, from `at` on, that may hold anything but zeros.
    pub fn next_content(&self, at: u64) -> Option<Range<u64>> {
        const BYTES: u64 = BLOCK as u64;
        let from = self.extents.partition_point(|extent| (extent.first + extent.count) * BYTES <= at);
        let mut rest = self.extents[from..].iter();
        let first = rest.next()?;
        let mut end = first.first + first.count;
        while let Some(extent) = rest.next().filter(|extent| extent.first == end) {
            end += extent.count;
        }
        let range = (first.first * BYTES).max(at)..(end * BYTES).min(self.part.size);
        Some(range).filter(|range| !range.is_empty())
    }

    /// Reads bytes within the image, all of them or none.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Unread> {
        let end = offset.checked_add(into.len() as u64).filter(|&end| end <= self.part.size).ok_or(Unread)?;
        if into.is_empty() {
            return Ok(());
        }
        let blocks = offset / BLOCK as u64..end.div_ceil(BLOCK as u64);
        for _ in 0..ROUNDS {
            let held = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let Some((source, frame)) = self.first_absent(blocks.clone()) else {
                return self.read_file(offset, into);
            };
            drop(held);
            self.bring(source, frame)?;
        }
        self.contact.say(format!("{}: the cache is too small for one read", self.objects.shown()));
        Err(Unread)
    }

    /// The parts of extents in a range of blocks.
    fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
        let from = self.extents.partition_point(|extent| extent.first + extent.count <= blocks.start);
        let Range { start, end } = blocks;
        self.extents[from..].iter().take_while(move |extent| extent.first < end).map(move |extent| {
            let first = extent.first.max(start);
            let count = (extent.first + extent.count).min(end) - first;
            Extent { first, count, place: extent.place + (first - extent.first) as usize, ..*extent }
        })
    }

    /// The first frame that has blocks of a range which are not verified.
    fn first_absent(&self, blocks: Range<u64>) -> Option<(usize, usize)> {
        self.within(blocks).find_map(|extent| {
            let mut places = extent.place..extent.place + extent.count as usize;
            let source = &self.sources[extent.layer];
            places.find(|&place| !source.is_verified(place)).map(|place| (extent.layer, place / FRAME_BLOCKS))
        })
    }

    /// Reads what is verified, and zeros between.
    fn read_file(&self, offset: u64, into: &mut [u8]) -> Result<(), Unread> {
        let end = offset + into.len() as u64;
        into.fill(0);
        for extent in self.within(offset / BLOCK as u64..end.div_ceil(BLOCK as u64)) {
            let start = (extent.first * BLOCK as u64).max(offset);
            let stop = ((extent.first + extent.count) * BLOCK as u64).min(end);
            let piece = &mut into[(start - offset) as usize..(stop - offset) as usize];
            self.file.read_exact_at(piece, start).map_err(|error| self.local(&error))?;
        }
        Ok(())
    }

    fn local(&self, error: &io::Error) -> Unread {
        self.contact.say(format!(
            "{}: a file of the cache cannot be used: {error}; reads fail with EIO: free space for it, or set XDG_CACHE_HOME to a larger disk",
            self.objects.shown()
        ));
        Unread
    }

    /// Brings a frame to the file, or waits for the thread that does.
    fn bring(&self, source: usize, frame: usize) -> Result<(), Unread> {
        let mut fetching = locked(&self.fetching);
        if fetching.contains(&(source, frame)) {
            while fetching.contains(&(source, frame)) {
                fetching = self.fetched.wait(fetching).unwrap_or_else(PoisonError::into_inner);
            }
            // It was given up just now; so many threads as wait for it do not ask one by one.
            return if self.contact.is_lost.load(SeqCst) { Err(Unread) } else { Ok(()) };
        }
        let frames = self.window(source, frame, &fetching);
        fetching.extend(frames.clone().map(|frame| (source, frame)));
        drop(fetching);
        let result = self.bring_frames(source, frames.clone());
        let mut fetching = locked(&self.fetching);
        frames.for_each(|frame| {
            fetching.remove(&(source, frame));
        });
        self.fetched.notify_all();
        result
    }

    /// The frames to fetch with this one: more and more, as long as each follows the one before.
    fn window(&self, source: usize, frame: usize, fetching: &HashSet<(usize, usize)>) -> Range<usize> {
        let state = &self.sources[source];
        let mut sequence = locked(&state.sequence);
        let wanted = if sequence.0 == frame { (2 * sequence.1).clamp(1, WINDOW_MAX) } else { 1 };
        let is_free = |next: &usize| !fetching.contains(&(source, *next)) && state.verified[*next].load(SeqCst) == 0;
        let more = (frame + 1..state.verified.len().min(frame + wanted)).take_while(is_free).count();
        *sequence = (frame + 1 + more, 1 + more);
        frame..frame + 1 + more
    }

    fn bring_frames(&self, source: usize, mut frames: Range<usize>) -> Result<(), Unread> {
        while !frames.is_empty() && self.verify_frame(source, frames.start) {
            frames.start += 1;
        }
        if frames.is_empty() {
            return Ok(());
        }
        let state = &self.sources[source];
        let fetch = |frames| self.runtime.block_on(self.objects.frames(&state.layer, &state.index, frames));
        let mut fetched = fetch(frames.clone());
        // Damage further on is no error of this frame.
        if frames.len() > 1 && matches!(fetched, Err(StoreError::Damaged { .. })) {
            frames.end = frames.start + 1;
            fetched = fetch(frames.clone());
        }
        let content = fetched.map_err(|error| self.lost(&error))?;
        self.contact.answered();
        let first = state.index.places(frames.start).start;
        let held = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        for frame in frames.clone() {
            let places = state.index.places(frame);
            for (places, number) in self.live(source, places) {
                let (start, end) = ((places.start - first) * BLOCK, (places.end - first) * BLOCK);
                let at = number * BLOCK as u64;
                let bytes = content.get(start..end).unwrap_or_default();
                let bytes = &bytes[..bytes.len().min((self.part.size - at) as usize)];
                self.file.write_all_at(bytes, at).map_err(|error| self.local(&error))?;
                self.set_verified(source, places);
            }
        }
        drop(held);
        self.bound(frames.map(|frame| (source, frame)), content.len() as u64);
        Ok(())
    }

    fn lost(&self, error: &StoreError) -> Unread {
        let shown = self.objects.shown();
        let reason = match error {
            StoreError::Stopped => format!("{shown}: the store does not answer"),
            error => error.to_string(),
        };
        // A damaged or absent object is no sign of a dead store.
        self.contact.is_lost.store(matches!(error, StoreError::Stopped | StoreError::Request { .. }), SeqCst);
        self.contact.say(format!(
            "{reason}; reads of blocks that are not in the cache fail with EIO until the store has them: check network and store, and repeat what failed"
        ));
        Unread
    }

    /// The blocks at these places that no newer layer has: places that follow each other, and the
    /// number of the first block.
    fn live(&self, source: usize, places: Range<usize>) -> Vec<(Range<usize>, u64)> {
        let mut found: Vec<(Range<usize>, u64)> = Vec::new();
        for place in places {
            let number = self.sources[source].number(place);
            let is_live = self.within(number..number + 1).any(|extent| (extent.layer, extent.place) == (source, place));
            match found.last_mut() {
                _ if !is_live => {}
                Some((last, first)) if last.end == place && *first + last.len() as u64 == number => last.end += 1,
                _ => found.push((place..place + 1, number)),
            }
        }
        found
    }

    fn set_verified(&self, source: usize, places: Range<usize>) {
        for place in places {
            self.sources[source].verified[place / FRAME_BLOCKS].fetch_or(1 << (place % FRAME_BLOCKS), SeqCst);
        }
    }

    /// Whether the file has all that counts of a frame, left by an earlier process.
    fn verify_frame(&self, source: usize, frame: usize) -> bool {
        let index = &self.sources[source].index;
        let mut block = [0; BLOCK];
        let live = self.live(source, index.places(frame));
        let held = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let is_whole = live.iter().all(|(places, number)| {
            places.clone().zip(*number..).all(|(place, number)| {
                let at = number * BLOCK as u64;
                let length = BLOCK.min((self.part.size - at) as usize);
                block[length..].fill(0);
                self.file.read_exact_at(&mut block[..length], at).is_ok()
                    && crate::layer::sum(&block) == index.sum_at(place)
            })
        });
        if is_whole {
            live.into_iter().for_each(|(places, _)| self.set_verified(source, places));
            drop(held);
            locked(&self.kept).frames.push_back((source, frame));
        }
        is_whole
    }

    /// Keeps the cache within its limit.
    fn bound(&self, frames: impl Iterator<Item = (usize, usize)>, bytes: u64) {
        let mut kept = locked(&self.kept);
        kept.frames.extend(frames);
        kept.since += bytes;
        let limit = self.contact.limits.cache_bytes;
        if kept.since < LOOK.min(limit / 8) {
            return;
        }
        kept.since = 0;
        self.cache.trim();
        let taken = || self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        // The newest frames stay: a read is waiting for them.
        while taken() > limit && kept.frames.len() > 2 * WINDOW_MAX {
            let oldest: Vec<_> = kept.frames.drain(..WINDOW_MAX).collect();
            oldest.into_iter().for_each(|(source, frame)| self.give_back(source, frame));
        }
    }

    fn give_back(&self, source: usize, frame: usize) {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.sources[source].verified[frame].store(0, SeqCst);
        for (places, number) in self.live(source, self.sources[source].index.places(frame)) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.file, flags, number * BLOCK as u64, (places.len() * BLOCK) as u64);
        }
    }

    /// The frames with blocks that are not verified.
    fn absent_frames(&self) -> Vec<(usize, usize)> {
        let frames = |(number, source): (usize, &Source)| (0..source.verified.len()).map(move |frame| (number, frame));
        let is_absent = |&(number, frame): &(usize, usize)| {
            let source = &self.sources[number];
            let live = self.live(number, source.index.places(frame));
            live.iter().any(|(places, _)| places.clone().any(|place| !source.is_verified(place)))
        };
        self.sources.iter().enumerate().flat_map(frames).filter(is_absent).collect()
    }

    /// Ends reading. A state that the file has nearly whole is completed, and stays in the cache.
    pub fn close(self) {
        let absent = self.absent_frames();
        let frames: usize = self.sources.iter().map(|source| source.verified.len()).sum();
        let is_nearly_whole = absent.len() <= (frames / 8).clamp(*COMPLETED.start(), *COMPLETED.end());
        let is_whole = is_nearly_whole && absent.into_iter().all(|(source, frame)| self.bring(source, frame).is_ok());
        // What was fetched last may have taken the place of something else.
        let is_whole = is_whole && self.absent_frames().is_empty();
        let Lazy { file, cache, part, .. } = self;
        if is_whole && file.sync_all().is_ok() {
            cache.keep_whole(&part.identity);
        }
        drop(file);
        cache.trim();
    }
}

/// The indexes of layers, from the cache or the store.
async fn indexes(objects: &Objects, cache: &Cache, layers: &[Layer]) -> Result<Vec<Source>, StoreError> {
    let fetch = async |layer: &Layer| -> Result<Source, StoreError> {
        let index = match cache.index(layer) {
            Some(index) => index,
            None => {
                let (index, tail) = objects.index(layer).await?;
                cache.keep_index(layer, &tail);
                index
            }
        };
        Ok(Source::new(layer.clone(), index))
    };
    stream::iter(layers).map(fetch).buffered(PREFETCHERS).try_collect().await
}

/// Where each block is that is not zero: in the newest layer that has it.
fn extents(sources: &[Source], size: u64) -> Vec<Extent> {
    let blocks = size.div_ceil(BLOCK as u64);
    let mut found: BTreeMap<u64, Extent> = BTreeMap::new();
    for (layer, source) in sources.iter().enumerate() {
        for (first, count) in source.index.zero_runs() {
            cut(&mut found, first..first + count);
        }
        for &(first, count, place) in &source.runs {
            // Blocks beyond the end belong to a larger image before a resize.
            let count = count.min(blocks.saturating_sub(first));
            if count > 0 {
                cut(&mut found, first..first + count);
                found.insert(first, Extent { first, count, layer, place });
            }
        }
    }
    found.into_values().collect()
}

/// Takes a range out of extents.
fn cut(found: &mut BTreeMap<u64, Extent>, range: Range<u64>) {
    let before = found.range(..range.start).next_back().map(|(_, extent)| *extent);
    let overlapping = found.range(range.clone()).map(|(_, extent)| *extent);
    let touched: Vec<Extent> = before.into_iter().chain(overlapping).collect();
    for extent in touched {
        let end = extent.first + extent.count;
        if end <= range.start {
            continue;
        }
        found.remove(&extent.first);
        if extent.first < range.start {
            found.insert(extent.first, Extent { count: range.start - extent.first, ..extent });
        }
        if end > range.end {
            let place = extent.place + (range.end - extent.first) as usize;
            found.insert(range.end, Extent { first: range.end, count: end - range.end, place, ..extent });
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
