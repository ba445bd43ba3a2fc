//! A layer: blocks of an image that changed between two states, in one object that never changes.
//!
//! ```text
//! header 16 | frames: up to 64 blocks each, zstd | index, zstd | trailer 32
//! ```
//!
//! The index has a checksum of each block. The head has one of index and trailer, so everything
//! that a reader uses is verified from the head on. The format is in docs/format.md.
//!
//! Invariant: nothing that an object claims (counts, lengths, block numbers) is used unchecked.

use crate::head::hex;
use ring::digest::{SHA256, digest};
use std::io;
use std::ops::Range;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Blocks of a frame at most.
pub const FRAME_BLOCKS: usize = 64;
/// The beginning of a layer.
const MAGIC: [u8; 8] = *b"DFSLAYER";
const VERSION: u32 = 1;
const HEADER: usize = 16;
/// The end of a layer.
const END_MAGIC: [u8; 8] = *b"DFSLYEND";
const TRAILER: usize = 32;
/// Bytes of an index at most, compressed or not.
pub const INDEX_BYTES_MAX: u64 = 1 << 28;
/// Block numbers lie below this.
const BLOCKS_MAX: u64 = 1 << 44;
/// Fast, and within a tenth of what higher levels reach on such small frames.
const LEVEL: i32 = 3;

/// The checksum of a block: half a SHA-256. Equal checksums count as equal blocks.
pub type Sum = [u8; 16];

/// The checksum of a block.
pub fn sum(block: &[u8]) -> Sum {
    let mut sum = [0; 16];
    sum.copy_from_slice(&digest(&SHA256, block).as_ref()[..16]);
    sum
}

/// Why bytes are no layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerError {
    /// They are not what was written.
    Damaged(&'static str),
    /// A later program wrote them.
    Version(u64),
}

use LayerError::Damaged;

/// Consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
}

impl Run {
    fn end(self) -> u64 {
        self.first + self.count
    }
}

/// Adds a block behind the others of a list.
fn push_block(runs: &mut Vec<Run>, block: u64) {
    match runs.last_mut() {
        Some(run) if run.end() == block => run.count += 1,
        _ => runs.push(Run { first: block, count: 1 }),
    }
}

/// What a layer has, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Blocks with content, ascending.
    runs: Vec<Run>,
    /// Blocks that are zero, ascending.
    zeros: Vec<Run>,
    /// Bytes of each frame.
    frames: Vec<u32>,
    /// Checksums of the blocks with content.
    sums: Vec<Sum>,
}

/// What a layer says of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// It is zero.
    Zero,
    /// It has this checksum.
    Sum(Sum),
}

impl Index {
    /// The layer's blocks with content: their numbers, in the order of their places.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|run| run.first..run.end())
    }

    /// The layer's blocks that are zero. Their number is bounded by nothing: a few bytes can name
    /// 2^44 of them.
    pub fn zero_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.zeros.iter().flat_map(|run| run.first..run.end())
    }

    /// Number of blocks that are zero.
    pub fn zero_count(&self) -> u64 {
        self.zeros.iter().fold(0, |sum, run| sum.saturating_add(run.count))
    }

    /// Whether the layer says that a block is zero.
    pub fn is_zero(&self, block: u64) -> bool {
        let behind = self.zeros.partition_point(|run| run.end() <= block);
        self.zeros.get(behind).is_some_and(|run| run.first <= block)
    }

    /// Without the blocks that have content.
    pub fn into_zeros(self) -> Index {
        Index { zeros: self.zeros, ..Index::default() }
    }

    /// Number of blocks with content.
    pub fn count(&self) -> usize {
        self.sums.len()
    }

    fn encode(&self) -> Vec<u8> {
        let counts = [self.runs.len(), self.zeros.len(), self.frames.len(), self.sums.len()];
        let mut raw = Vec::new();
        counts.iter().for_each(|&count| raw.extend((count as u64).to_le_bytes()));
        for run in self.runs.iter().chain(&self.zeros) {
            raw.extend(run.first.to_le_bytes());
            raw.extend(run.count.to_le_bytes());
        }
        self.frames.iter().for_each(|bytes| raw.extend(bytes.to_le_bytes()));
        self.sums.iter().for_each(|sum| raw.extend(sum));
        raw
    }

    /// Reads index and trailer: the last bytes of a layer of `layer_bytes`.
    pub fn decode(tail: &[u8], layer_bytes: u64) -> Result<Index, LayerError> {
        let trailer = tail.len().checked_sub(TRAILER).ok_or(Damaged("it is too short"))?;
        let (stored, trailer) = tail.split_at(trailer);
        if trailer[24..] != END_MAGIC {
            return Err(Damaged("its end is not that of a layer"));
        }
        let mut numbers = Numbers(trailer);
        let (raw_bytes, stored_bytes, version) = (numbers.u64()?, numbers.u64()?, numbers.u64()?);
        if version != u64::from(VERSION) {
            return Err(LayerError::Version(version));
        }
        if stored_bytes != stored.len() as u64 || raw_bytes > INDEX_BYTES_MAX {
            return Err(Damaged("the size of its index is impossible"));
        }
        let raw = zstd::bulk::decompress(stored, raw_bytes as usize)
            .map_err(|_| Damaged("its index cannot be decompressed"))?;
        let index = Index::parse(&raw)?;
        let frames: u64 = index.frames.iter().map(|&bytes| u64::from(bytes)).sum();
        if layer_bytes != HEADER as u64 + frames + tail.len() as u64 {
            return Err(Damaged("its length is not that of its parts"));
        }
        Ok(index)
    }

    fn parse(raw: &[u8]) -> Result<Index, LayerError> {
        let mut numbers = Numbers(raw);
        let counts = [numbers.u64()?, numbers.u64()?, numbers.u64()?, numbers.u64()?];
        let needed = counts
            .iter()
            .zip([16u64, 16, 4, 16])
            .try_fold(32u64, |sum, (&count, bytes)| count.checked_mul(bytes).and_then(|bytes| sum.checked_add(bytes)));
        if needed != Some(raw.len() as u64) {
            return Err(Damaged("the counts of its index are impossible"));
        }
        let [run_count, zero_count, frame_count, sum_count] = counts;
        let runs = numbers.runs(run_count)?;
        let zeros = numbers.runs(zero_count)?;
        let frames = (0..frame_count).map(|_| numbers.u32()).collect::<Result<Vec<_>, _>>()?;
        let sums = numbers.0.as_chunks::<16>().0.to_vec();
        let blocks: u64 = runs.iter().map(|run| run.count).sum();
        if blocks != sum_count || frame_count != sum_count.div_ceil(FRAME_BLOCKS as u64) {
            return Err(Damaged("its index has another number of blocks than of checksums"));
        }
        Ok(Index { runs, zeros, frames, sums })
    }

    /// Passes the blocks of a whole layer that `is_wanted` names (by place) to `each` (by number),
    /// after a look at their checksums.
    pub fn read(
        &self,
        layer: &[u8],
        is_wanted: &mut dyn FnMut(usize) -> bool,
        each: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<io::Result<()>, LayerError> {
        check_header(layer)?;
        let numbers: Vec<u64> = self.blocks().collect();
        let mut at = HEADER;
        for (frame, &bytes) in self.frames.iter().enumerate() {
            let stored = layer.get(at..at + bytes as usize).ok_or(Damaged("it is too short"))?;
            at += bytes as usize;
            let places = self.places(frame);
            let wanted: Vec<bool> = places.clone().map(&mut *is_wanted).collect();
            if wanted.contains(&true) {
                let mut chosen = |place: usize, block: &[u8]| match wanted[place - places.start] {
                    true => each(numbers[place], block),
                    false => Ok(()),
                };
                let read = self.read_frames(frame..frame + 1, stored, &mut chosen)?;
                if read.is_err() {
                    return Ok(read);
                }
            }
        }
        Ok(Ok(()))
    }

    /// Passes all blocks of frames that follow each other to `each`, by place, after a look at
    /// their checksums. `stored`: the object's bytes at [`Index::frame_bytes`].
    pub fn read_frames(
        &self,
        frames: Range<usize>,
        mut stored: &[u8],
        each: &mut dyn FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> Result<io::Result<()>, LayerError> {
        for frame in frames {
            let places = self.places(frame);
            let bytes = self.frames.get(frame).map_or(0, |&bytes| bytes as usize);
            let (compressed, rest) = stored.split_at_checked(bytes).ok_or(Damaged("it is too short"))?;
            stored = rest;
            let raw = zstd::bulk::decompress(compressed, places.len() * BLOCK)
                .map_err(|_| Damaged("a frame cannot be decompressed"))?;
            if raw.len() != places.len() * BLOCK {
                return Err(Damaged("a frame has another length"));
            }
            for (place, block) in places.zip(raw.chunks(BLOCK)) {
                if sum(block) != self.sums[place] {
                    return Err(Damaged("the checksum of a block does not match"));
                }
                if let Err(error) = each(place, block) {
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Number of frames.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// The places of a frame's blocks.
    pub fn places(&self, frame: usize) -> Range<usize> {
        let first = (frame * FRAME_BLOCKS).min(self.count());
        first..(first + FRAME_BLOCKS).min(self.count())
    }

    /// Where frames that follow each other are in the object.
    pub fn frame_bytes(&self, frames: Range<usize>) -> Range<u64> {
        let sum = |frames: &[u32]| frames.iter().map(|&bytes| u64::from(bytes)).sum::<u64>();
        let start = HEADER as u64 + sum(&self.frames[..frames.start]);
        start..start + sum(&self.frames[frames])
    }

    /// The checksum of the block at a place.
    pub fn sum_at(&self, place: usize) -> Sum {
        self.sums[place]
    }

    /// Runs of blocks with content: the first block, their number, and the place of the first one.
    pub fn content_runs(&self) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
        let mut place = 0;
        self.runs.iter().map(move |run| {
            place += run.count as usize;
            (run.first, run.count, place - run.count as usize)
        })
    }

    /// Runs of blocks that are zero: the first block, and their number.
    pub fn zero_runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.zeros.iter().map(|run| (run.first, run.count))
    }
}

fn check_header(layer: &[u8]) -> Result<(), LayerError> {
    let header = layer.get(..HEADER).ok_or(Damaged("it is too short"))?;
    if header[..8] != MAGIC {
        return Err(Damaged("its beginning is not that of a layer"));
    }
    // No checksum covers the header. The trailer, which one covers, has this version.
    if Numbers(&header[8..]).u64()? != u64::from(VERSION) {
        return Err(Damaged("its version is not that of its end"));
    }
    Ok(())
}

/// Little-endian numbers.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], LayerError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Damaged("its index is too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u64(&mut self) -> Result<u64, LayerError> {
        self.array().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, LayerError> {
        self.array().map(u32::from_le_bytes)
    }

    fn runs(&mut self, count: u64) -> Result<Vec<Run>, LayerError> {
        let mut runs: Vec<Run> = Vec::new();
        for _ in 0..count {
            let run = Run { first: self.u64()?, count: self.u64()? };
            let behind = runs.last().map_or(0, |run| run.end());
            let is_sound = run.first >= behind && run.count > 0 && run.first < BLOCKS_MAX && run.count < BLOCKS_MAX;
            if !is_sound {
                return Err(Damaged("the blocks of its index are not in order"));
            }
            runs.push(run);
        }
        Ok(runs)
    }
}

/// A layer that is complete.
#[derive(Debug, Clone)]
pub struct Built {
    /// The object.
    pub bytes: Vec<u8>,
    /// Bytes of index and trailer.
    pub index_bytes: u64,
    /// Their SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// The index.
    pub index: Index,
    /// Every open reads some of its blocks.
    pub is_metadata: bool,
}

impl Built {
    /// Index and trailer.
    pub fn tail(&self) -> &[u8] {
        &self.bytes[self.bytes.len() - self.index_bytes as usize..]
    }
}

/// A layer that grows by blocks in ascending order.
#[derive(Debug, Default)]
pub struct Builder {
    bytes: Vec<u8>,
    frame: Vec<u8>,
    index: Index,
    is_metadata: bool,
}

impl Builder {
    /// For a layer of blocks that every open reads, or of others.
    pub fn new(is_metadata: bool) -> Builder {
        Builder { is_metadata, ..Builder::default() }
    }

    /// Whether every open reads blocks of the layer.
    pub fn has_metadata(&self) -> bool {
        self.is_metadata
    }

    /// Notes that every open reads blocks of the layer.
    pub fn set_metadata(&mut self) {
        self.is_metadata = true;
    }

    /// Number of blocks so far.
    pub fn blocks(&self) -> usize {
        self.index.count()
    }

    /// Whether the layer has nothing.
    pub fn is_empty(&self) -> bool {
        self.index.sums.is_empty() && self.index.zeros.is_empty()
    }

    /// Adds a block with content.
    pub fn add(&mut self, number: u64, block: &[u8], sum: Sum) -> io::Result<()> {
        push_block(&mut self.index.runs, number);
        self.index.sums.push(sum);
        self.frame.extend_from_slice(block);
        if self.frame.len() == FRAME_BLOCKS * BLOCK { self.end_frame() } else { Ok(()) }
    }

    /// Adds zero blocks.
    #[cfg(test)]
    pub fn add_zeros(&mut self, first: u64, count: u64) {
        self.index.zeros.push(Run { first, count });
    }

    /// Adds a block that is zero.
    pub fn add_zero(&mut self, number: u64) {
        push_block(&mut self.index.zeros, number);
    }

    fn end_frame(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        if self.bytes.is_empty() {
            self.begin();
        }
        let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
        compressor.include_checksum(true)?;
        let stored = compressor.compress(&self.frame)?;
        self.index.frames.push(stored.len() as u32);
        self.bytes.extend_from_slice(&stored);
        self.frame.clear();
        Ok(())
    }

    fn begin(&mut self) {
        self.bytes.extend_from_slice(&MAGIC);
        self.bytes.extend_from_slice(&u64::from(VERSION).to_le_bytes());
    }

    /// Completes the layer.
    pub fn finish(mut self) -> io::Result<Built> {
        self.end_frame()?;
        if self.bytes.is_empty() {
            self.begin();
        }
        let raw = self.index.encode();
        let stored = zstd::bulk::compress(&raw, LEVEL)?;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&stored);
        for number in [raw.len() as u64, stored.len() as u64, u64::from(VERSION)] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&END_MAGIC);
        let tail = &self.bytes[start..];
        let (index_bytes, sha256) = (tail.len() as u64, hex(digest(&SHA256, tail).as_ref()));
        Ok(Built { bytes: self.bytes, index_bytes, sha256, index: self.index, is_metadata: self.is_metadata })
    }
}

/// Looks blocks up in a layer, in ascending order.
#[derive(Debug)]
struct Cursor<'i> {
    index: &'i Index,
    run: usize,
    /// Place of the first block of the run.
    place: usize,
    zero: usize,
}

impl Cursor<'_> {
    /// What the layer says of a block, and the next block of which it says anything.
    fn find(&mut self, block: u64) -> (Option<Content>, Option<u64>) {
        while self.index.runs.get(self.run).is_some_and(|run| run.end() <= block) {
            self.place += self.index.runs[self.run].count as usize;
            self.run += 1;
        }
        while self.index.zeros.get(self.zero).is_some_and(|run| run.end() <= block) {
            self.zero += 1;
        }
        let (run, zero) = (self.index.runs.get(self.run), self.index.zeros.get(self.zero));
        let found = match (run, zero) {
            (Some(run), _) if run.first <= block => {
                Some(Content::Sum(self.index.sums[self.place + (block - run.first) as usize]))
            }
            (_, Some(zero)) if zero.first <= block => Some(Content::Zero),
            _ => None,
        };
        let next = [run, zero].into_iter().flatten().map(|run| run.first.max(block)).min();
        (found, next)
    }
}

/// Layers on top of each other, looked up in ascending order of blocks.
#[derive(Debug)]
pub struct Stack<'i>(Vec<Cursor<'i>>);

impl<'i> Stack<'i> {
    /// A stack of layers, oldest first.
    pub fn new(oldest_first: impl DoubleEndedIterator<Item = &'i Index>) -> Stack<'i> {
        Stack(oldest_first.rev().map(|index| Cursor { index, run: 0, place: 0, zero: 0 }).collect())
    }

    /// What a block is: that of the newest layer that has it, zero if none has.
    pub fn find(&mut self, block: u64) -> Content {
        self.0.iter_mut().find_map(|cursor| cursor.find(block).0).unwrap_or(Content::Zero)
    }

    /// The end of the blocks from this one on of which each layer says the same as of this one,
    /// which [`Stack::next`] has returned.
    pub fn end_of_run(&self, block: u64) -> u64 {
        let runs =
            self.0.iter().flat_map(|cursor| [cursor.index.runs.get(cursor.run), cursor.index.zeros.get(cursor.zero)]);
        let ends = runs.flatten().map(|run| if run.first <= block { run.end() } else { run.first });
        ends.min().unwrap_or(u64::MAX)
    }

    /// The first block from this one on of which any layer says anything.
    pub fn next(&mut self, block: u64) -> Option<u64> {
        self.0.iter_mut().filter_map(|cursor| cursor.find(block).1).min()
    }
}
