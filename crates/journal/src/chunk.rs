//! Chunks: the records of the log.
//!
//! ```text
//!  | header: 64 bytes | lines: 64 bytes each | runs: 8 bytes each | zeros to a whole block |
//! ```
//!
//! A run is a word: the number of its first line in the image (high 48 bits) and its count of lines
//! (low 16 bits). The lines of all runs follow each other.

use pmem::{BLOCK_BYTES, LINE_BYTES, crc32c};

/// The longest chunk.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// The shortest buffer for chunks: room for a page of single lines.
pub const CHUNK_BYTES_MIN: usize = 16 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"DFSC");
const LAST: u32 = 1;
const HEADER_BYTES: usize = 64;
const LINE: usize = LINE_BYTES as usize;
/// Offset of the checksum: that of the header before it and of all that follows the header.
const CHECKSUM_AT: usize = 60;
const COUNT_MAX: u64 = u16::MAX as u64;

/// The header of a chunk: magic, flags, sequence, bytes, runs, lines, chain, zeros, checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    /// Whether the commit ends with this chunk.
    pub is_last: bool,
    /// Number of the commit.
    pub sequence: u64,
    /// Bytes of the chunk: whole blocks.
    pub bytes: u32,
    pub runs: u32,
    pub lines: u32,
    /// Checksum of the chunk before this one in the log.
    pub chain: u32,
    pub checksum: u32,
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn checksum(chunk: &[u8]) -> u32 {
    crc32c(crc32c(0, &chunk[..CHECKSUM_AT]), &chunk[HEADER_BYTES..])
}

impl ChunkHeader {
    /// Decodes a header; its checksum is not checked. `None`: not one of a chunk.
    pub fn decode(bytes: &[u8]) -> Option<ChunkHeader> {
        let header = ChunkHeader {
            is_last: half(bytes, 4) & LAST != 0,
            sequence: word(bytes, 8),
            bytes: half(bytes, 16),
            runs: half(bytes, 20),
            lines: half(bytes, 24),
            chain: half(bytes, 28),
            checksum: half(bytes, CHECKSUM_AT),
        };
        let content = HEADER_BYTES as u64 + header.lines as u64 * LINE_BYTES + header.runs as u64 * 8;
        let fits = bytes.len() >= HEADER_BYTES
            && half(bytes, 0) == MAGIC
            && (header.bytes as u64).is_multiple_of(BLOCK_BYTES)
            && content <= header.bytes as u64
            && header.bytes as usize <= CHUNK_BYTES_MAX;
        fits.then_some(header)
    }

    /// Whether the checksum of the whole chunk verifies.
    pub fn verifies(&self, chunk: &[u8]) -> bool {
        chunk.len() == self.bytes as usize && checksum(chunk) == self.checksum
    }

    /// Passes each run of a chunk that verifies: the offset in the image, and the bytes. `None`:
    /// the runs do not fit the lines, or the image.
    pub fn runs<E>(
        &self,
        chunk: &[u8],
        image_bytes: u64,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let runs_at = HEADER_BYTES + self.lines as usize * LINE;
        let mut at = HEADER_BYTES;
        for index in 0..self.runs as usize {
            let run = word(chunk, runs_at + index * 8);
            let (offset, bytes) = ((run >> 16).checked_mul(LINE_BYTES)?, (run & COUNT_MAX) as usize * LINE);
            let is_within = at + bytes <= runs_at && offset.checked_add(bytes as u64)? <= image_bytes;
            if !is_within {
                return None;
            }
            if let Err(error) = each(offset, &chunk[at..at + bytes]) {
                return Some(Err(error));
            }
            at += bytes;
        }
        Some(Ok(()))
    }
}

/// A chunk that is being filled. Lines grow from the start of the buffer, runs from its end.
pub(crate) struct ChunkBuilder<'b> {
    buffer: &'b mut [u8],
    lines: usize,
    runs: usize,
}

impl<'b> ChunkBuilder<'b> {
    pub fn new(buffer: &'b mut [u8]) -> ChunkBuilder<'b> {
        let bytes = buffer.len().min(CHUNK_BYTES_MAX) / BLOCK_BYTES as usize * BLOCK_BYTES as usize;
        ChunkBuilder { buffer: &mut buffer[..bytes], lines: 0, runs: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Whether the chunk is fuller than half.
    pub fn is_half_full(&self) -> bool {
        (self.lines * LINE + self.runs * 8) * 2 > self.buffer.len()
    }

    /// Room for the lines of a run, or `None` if the chunk is full. `line`: the number of the first
    /// one in the image.
    pub fn add(&mut self, line: u64, count: usize) -> Option<&mut [u8]> {
        let last_at = self.buffer.len() - self.runs * 8;
        let last = if self.runs > 0 { word(self.buffer, last_at) } else { 0 };
        let (last_line, last_count) = (last >> 16, last & COUNT_MAX);
        let continues = self.runs > 0 && last_line + last_count == line && last_count + count as u64 <= COUNT_MAX;
        let runs = self.runs + usize::from(!continues);
        // Twice: the runs move behind the lines, and the two places must not overlap.
        let end = HEADER_BYTES + (self.lines + count) * LINE;
        if end + 2 * runs * 8 > self.buffer.len() {
            return None;
        }
        let run_at = self.buffer.len() - runs * 8;
        let run = if continues { last + count as u64 } else { line << 16 | count as u64 };
        self.buffer[run_at..run_at + 8].copy_from_slice(&run.to_le_bytes());
        self.runs = runs;
        self.lines += count;
        Some(&mut self.buffer[end - count * LINE..end])
    }

    /// Completes the chunk and empties the builder: the bytes to write, and the checksum.
    pub fn complete(&mut self, sequence: u64, chain: u32, is_last: bool) -> (&[u8], u32) {
        let runs_at = HEADER_BYTES + self.lines * LINE;
        for index in 0..self.runs {
            let from = self.buffer.len() - (index + 1) * 8;
            self.buffer.copy_within(from..from + 8, runs_at + index * 8);
        }
        let content = runs_at + self.runs * 8;
        let bytes = content.next_multiple_of(BLOCK_BYTES as usize);
        let (runs, lines) = (self.runs as u32, self.lines as u32);
        (self.lines, self.runs) = (0, 0);
        let chunk = &mut self.buffer[..bytes];
        chunk[content..].fill(0);
        chunk[..HEADER_BYTES].fill(0);
        chunk[8..16].copy_from_slice(&sequence.to_le_bytes());
        let halves = [(0, MAGIC), (4, u32::from(is_last)), (16, bytes as u32), (20, runs), (24, lines), (28, chain)];
        for (at, value) in halves {
            chunk[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let checksum = checksum(chunk);
        chunk[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        (chunk, checksum)
    }
}
