//! The two headers of a journal: which image it belongs to, and where its valid part begins.
//!
//! Invariant: a header is written to the block that does not hold the newest one. So one of the two
//! is whole at any time.

use pmem::{BLOCK_BYTES, crc32c};

/// `DFSJRNL1` read as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"DFSJRNL1");
/// The version of the journal's format.
pub const FORMAT_VERSION: u32 = 1;
/// Features that a program must know to apply a journal: none yet.
const FEATURES: u32 = 0;
/// Bytes of a header's fields; the rest of its block is zero.
const FIELDS_BYTES: usize = 68;

/// A header. All numbers are little-endian, in this order behind magic, version and features; a
/// CRC-32C of what precedes it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// UUID of the image.
    pub uuid: [u8; 16],
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Counts headers: the higher one is the newer one.
    pub generation: u64,
    /// Number of the first commit in the log.
    pub sequence: u64,
    /// The checksum that its first chunk carries as that of the chunk before.
    pub chain: u32,
}

/// Why a journal is not used. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// There is no journal.
    Absent,
    /// A header is there, and neither is whole.
    Damaged,
    /// Another version of the format, or unknown features.
    Version {
        /// The version found.
        found: u32,
        /// The unknown feature bits.
        features: u32,
    },
    /// It belongs to an image with another UUID or length.
    Foreign,
}

impl Header {
    pub fn encode(&self) -> [u8; BLOCK_BYTES as usize] {
        let mut block = [0; BLOCK_BYTES as usize];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&FORMAT_VERSION.to_le_bytes());
        put(&FEATURES.to_le_bytes());
        put(&self.uuid);
        for word in [self.image_bytes, self.log_bytes, self.generation, self.sequence] {
            put(&word.to_le_bytes());
        }
        put(&self.chain.to_le_bytes());
        let checksum = crc32c(0, &block[..FIELDS_BYTES]);
        block[FIELDS_BYTES..FIELDS_BYTES + 4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    pub fn decode(block: &[u8]) -> Result<Header, HeaderError> {
        let part = |at: usize, bytes: usize| block.get(at..at + bytes).ok_or(HeaderError::Absent);
        let half = |at| part(at, 4).map(|bytes| bytes.try_into().map_or(0, u32::from_le_bytes));
        let word = |at| part(at, 8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
        if word(0)? != MAGIC {
            return Err(HeaderError::Absent);
        }
        let (version, features) = (half(8)?, half(12)? & !FEATURES);
        // Before the checksum: other versions may place it differently.
        if version != FORMAT_VERSION || features != 0 {
            return Err(HeaderError::Version { found: version, features });
        }
        if half(FIELDS_BYTES)? != crc32c(0, &block[..FIELDS_BYTES]) {
            return Err(HeaderError::Damaged);
        }
        Ok(Header {
            uuid: part(16, 16)?.try_into().map_err(|_| HeaderError::Absent)?,
            image_bytes: word(32)?,
            log_bytes: word(40)?,
            generation: word(48)?,
            sequence: word(56)?,
            chain: half(64)?,
        })
    }
}
