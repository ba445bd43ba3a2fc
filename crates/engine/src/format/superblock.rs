//! The superblock, its copy, and the geometry that both describe.
//!
//! Invariants
//! - Magic, UUID and label are at fixed offsets in every version of the format.
//! - The description has a checksum. The last block holds a copy of it. While the image is in use
//!   it changes only under the lock of commits: it gets [`FEATURE_FILE_FLAGS`], or another length.
//! - All else that changes and matters after a crash (epoch, clean flag) is one word on a line of
//!   its own.

use super::assert_layout;
use super::{INODES_PER_SEGMENT, JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, SEGMENT_BLOCKS};
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout, Memory, Pm, Region, crc32c};

/// `DIRECTFS` read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DIRECTFS");
/// The version of the format. Where possible an incompatible change gets a feature bit, not a new
/// version.
pub const FORMAT_VERSION: u64 = 1;
/// Feature of an image with blocks that are reserved for root: see [`Superblock::reserved_blocks`].
/// A program that does not know it gives them to any user.
pub const FEATURE_RESERVE: u64 = 1;
/// Features that a program may ignore.
pub const FEATURES_COMPAT: u64 = FEATURE_RESERVE;
/// Feature of an image whose files may have `PROPERTY_FILE_FLAGS`: a writer that does not know them
/// would change immutable files. Set with the first flag, and never removed.
pub const FEATURE_FILE_FLAGS: u64 = 1;
/// Feature of an image whose log pages have bounds of used slots: a writer that does not raise them
/// would hide names. mkfs sets it. Images of earlier programs never get it.
pub const FEATURE_USED_SLOTS: u64 = 2;
/// Features that a program must know to write.
pub const FEATURES_RO_COMPAT: u64 = FEATURE_FILE_FLAGS | FEATURE_USED_SLOTS;
/// Feature of an image that was resized: its block map lies at the end, see
/// [`Geometry::resized`].
pub const FEATURE_RESIZED: u64 = 1;
/// Features that a program must know to read.
pub const FEATURES_INCOMPAT: u64 = FEATURE_RESIZED;

/// The superblock: the first block of the image.
#[repr(C, align(4096))]
pub struct Superblock {
    /// [`MAGIC`]. Written last by mkfs.
    pub magic: Commit64,
    /// UUID, as its 16 bytes.
    pub uuid: [Cell64; 2],
    /// Label: UTF-8, padded with zeros.
    pub label: [Cell64; 8],
    /// [`FORMAT_VERSION`].
    pub version: Cell64,
    /// Features that may be ignored.
    pub features_compat: Cell64,
    /// Features that must be known to write.
    pub features_ro_compat: Cell64,
    /// Features that must be known to read.
    pub features_incompat: Cell64,
    /// When mkfs ran, ns since 1970.
    pub created_ns: Cell64,
    /// Bytes of the image.
    pub length: Cell64,
    /// [`Geometry`] in words.
    pub geometry: [Cell64; 8],
    /// CRC-32C of all fields above except the magic.
    pub checksum: Cell64,
    /// With [`FEATURE_RESERVE`]: CRC-32C of the low half (high half), blocks reserved for root (low
    /// half). Not part of the checksum, so that programs that do not know it can verify that.
    pub reserve: Cell64,
    /// Zero.
    pub reserved: [Cell64; 5],
    /// The random number in the name of the runtime directory, where the processes that use the
    /// image find each other; bit 0: it holds a working copy. It means nothing while the image is
    /// not in use; a clean detach zeroes it. No crash state depends on it.
    pub runtime_directory: Cell64,
    /// Zero to the line of the state.
    pub reserved_before_state: [Cell64; 31],
    /// [`State`]: the only word that changes after mkfs and matters after a crash.
    pub state: Commit64,
    /// Zero to the end of the line.
    pub reserved_state: [Cell64; 7],
    /// Written by a clean detach: see the engine's `alloc::snapshot`. Valid only while the state is
    /// clean.
    pub snapshot: [Cell64; 8],
    /// Zero.
    pub reserved_end: [Cell64; 432],
}
assert_layout!(Superblock, 4096, magic @ 0, uuid @ 8, label @ 24, version @ 88, features_compat @ 96, features_ro_compat @ 104,
    features_incompat @ 112, created_ns @ 120, length @ 128, geometry @ 136, checksum @ 200, reserve @ 208, reserved @ 216,
    runtime_directory @ 256, reserved_before_state @ 264, state @ 512, reserved_state @ 520, snapshot @ 576, reserved_end @ 640);
// SAFETY: repr(C), cells only, no padding by the assertions above.
unsafe impl Layout for Superblock {}

/// The positions of all areas: fixed by mkfs, and by a change of the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the image.
    pub blocks: u64,
    /// First block of the journal slots.
    pub journal_block: u64,
    /// First block of the segment table: a word per segment, the offset of its first inode or zero.
    pub segment_table_block: u64,
    /// Entries of the segment table.
    pub segments_max: u64,
    /// First block of the block map that a clean detach leaves: two bits per block.
    pub block_map_block: u64,
    /// First block of the inode map that a clean detach leaves: one bit per inode.
    pub inode_map_block: u64,
    /// First block that is allocated to files.
    pub data_block: u64,
    /// For an image that was resized: the blocks that mkfs made. Otherwise zero.
    pub mkfs_blocks: u64,
}

impl Geometry {
    /// The smallest image, in bytes: in smaller ones the fixed areas leave too little room.
    pub const LENGTH_MIN: u64 = 1 << 20;
    /// More blocks than any image has.
    pub(crate) const BLOCKS_MAX: u64 = 1 << 50;

    /// The geometry of an image of `length` bytes with room for `inodes_max` inodes (rounded up to
    /// segments).
    pub fn new(length: u64, inodes_max: u64) -> Geometry {
        let blocks = length / BLOCK_BYTES;
        let segments_max = inodes_max.div_ceil(INODES_PER_SEGMENT).max(1);
        let journal_block = 1;
        let segment_table_block = journal_block + (JOURNAL_SLOTS * JOURNAL_SLOT_BYTES).div_ceil(BLOCK_BYTES);
        let block_map_block = segment_table_block + (segments_max * 8).div_ceil(BLOCK_BYTES);
        let inode_map_block = block_map_block + blocks.div_ceil(4).div_ceil(BLOCK_BYTES);
        let data_block = inode_map_block + (segments_max * INODES_PER_SEGMENT / 8).div_ceil(BLOCK_BYTES);
        Geometry {
            blocks,
            journal_block,
            segment_table_block,
            segments_max,
            block_map_block,
            inode_map_block,
            data_block,
            mkfs_blocks: 0,
        }
    }

    /// The geometry of an image that mkfs made with `mkfs_blocks` blocks and that has `length`
    /// bytes now. All areas stay where mkfs placed them, but for the block map, whose length
    /// depends on that of the image: it lies before the copy. `None`: they do not fit.
    pub fn resized(length: u64, segments_max: u64, mkfs_blocks: u64) -> Option<Geometry> {
        let plausible = length >= Self::LENGTH_MIN
            && (1..=length / BLOCK_BYTES).contains(&segments_max)
            && (Self::LENGTH_MIN / BLOCK_BYTES..=Self::BLOCKS_MAX).contains(&mkfs_blocks);
        if !plausible {
            return None;
        }
        let made = Geometry::new(mkfs_blocks * BLOCK_BYTES, segments_max * INODES_PER_SEGMENT);
        let blocks = length / BLOCK_BYTES;
        let block_map_block = (blocks - 1).checked_sub(blocks.div_ceil(4).div_ceil(BLOCK_BYTES))?;
        let geometry = Geometry { blocks, block_map_block, mkfs_blocks, ..made };
        (geometry.data_block + SEGMENT_BLOCKS < geometry.data_end()).then_some(geometry)
    }

    /// The geometry of this image with another length.
    pub fn with_length(&self, length: u64) -> Option<Geometry> {
        let mkfs_blocks = if self.mkfs_blocks == 0 { self.blocks } else { self.mkfs_blocks };
        Geometry::resized(length, self.segments_max, mkfs_blocks)
    }

    /// The features that an image with this geometry needs.
    pub fn features(&self) -> u64 {
        if self.mkfs_blocks == 0 { 0 } else { FEATURE_RESIZED }
    }

    /// The default number of inodes: one per 2 KiB.
    pub fn default_inodes(length: u64) -> u64 {
        length / 2048
    }

    /// The block of the superblock's copy: the last one.
    pub fn copy_block(&self) -> u64 {
        self.blocks - 1
    }

    /// The block behind the last one that is allocated to files.
    pub fn data_end(&self) -> u64 {
        if self.mkfs_blocks == 0 { self.copy_block() } else { self.block_map_block }
    }

    /// The bound of inode numbers, exclusive.
    pub fn inodes_max(&self) -> u64 {
        self.segments_max * INODES_PER_SEGMENT
    }

    /// The words on the image.
    pub fn words(&self) -> [u64; 8] {
        [
            self.blocks,
            self.journal_block,
            self.segment_table_block,
            self.segments_max,
            self.block_map_block,
            self.inode_map_block,
            self.data_block,
            self.mkfs_blocks,
        ]
    }

    /// The geometry in these words, if it equals the one that mkfs or a resize makes for an image
    /// of this length. No word is trusted.
    pub fn from_words(words: &[u64; 8], length: u64) -> Option<Geometry> {
        let segments_max = words[3];
        if words[7] != 0 {
            return Geometry::resized(length, segments_max, words[7]).filter(|geometry| geometry.words() == *words);
        }
        let plausible = length >= Self::LENGTH_MIN && segments_max >= 1 && segments_max <= length / BLOCK_BYTES;
        if !plausible {
            return None;
        }
        let expected = Geometry::new(length, segments_max * INODES_PER_SEGMENT);
        let fits = expected.data_block + SEGMENT_BLOCKS + 2 <= expected.blocks;
        (fits && expected.words() == *words).then_some(expected)
    }
}

/// The word that changes: epoch and clean flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Counts the attaches that built a DRAM region. Nv pointers of other epochs are invalid.
    pub epoch: u32,
    /// The last detach was clean: recovery need not scan.
    pub clean: bool,
}

impl State {
    /// The word.
    pub fn word(self) -> u64 {
        self.epoch as u64 | (self.clean as u64) << 32
    }

    /// Decodes a word.
    pub fn from_word(word: u64) -> State {
        State { epoch: word as u32, clean: word >> 32 & 1 == 1 }
    }
}

/// The word of the superblock that reserves blocks.
pub fn reserve_word(blocks: u32) -> u64 {
    u64::from(crc32c(0, &blocks.to_le_bytes())) << 32 | u64::from(blocks)
}

/// Why an image is rejected. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockError {
    /// Shorter than any image.
    TooShort {
        /// The actual length in bytes.
        length: u64,
    },
    /// The magic is missing: not an image, or mkfs was interrupted.
    NotAnImage,
    /// Another version of the format.
    Version {
        /// The version found.
        found: u64,
    },
    /// Feature bits that this program does not support.
    Features {
        /// The unknown bits that forbid reading.
        incompat: u64,
        /// The unknown bits that forbid writing.
        ro_compat: u64,
    },
    /// The checksum does not match: torn or damaged. `copy_is_good`: the copy in the last block
    /// verifies.
    Checksum {
        /// Whether the copy verifies.
        copy_is_good: bool,
    },
    /// The file is shorter than the image in it.
    Truncated {
        /// The length of the image in bytes.
        expected: u64,
        /// The length of the file in bytes.
        length: u64,
    },
    /// The checksum matches, but the areas are not where mkfs places them.
    Geometry,
}

impl core::fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            SuperblockError::TooShort { length } => write!(
                f,
                "{length} bytes are too few for a DirectFS image (at least {}); make one with `directfs mkfs`",
                Geometry::LENGTH_MIN
            ),
            SuperblockError::NotAnImage => {
                write!(f, "not a DirectFS image (no magic at its start); make one with `directfs mkfs`")
            }
            SuperblockError::Version { found } => write!(
                f,
                "the image has format version {found}, this program supports version {FORMAT_VERSION}; use a program of that version"
            ),
            SuperblockError::Features { incompat, ro_compat } => write!(
                f,
                "the image uses features that this program does not support (incompat {incompat:#x}, ro-compat {ro_compat:#x}); use a newer program"
            ),
            SuperblockError::Checksum { copy_is_good: true } => write!(
                f,
                "the superblock is damaged (its checksum does not match), its copy in the last block is intact; restore it with `directfs fsck -y`"
            ),
            SuperblockError::Checksum { copy_is_good: false } => write!(
                f,
                "the superblock is damaged (its checksum does not match) and so is its copy; restore the image from a backup"
            ),
            SuperblockError::Truncated { expected, length } => write!(
                f,
                "the image has {expected} bytes but its file has {length}: the file was truncated; restore it from a backup"
            ),
            SuperblockError::Geometry => {
                write!(f, "the superblock describes areas that do not fit the image; restore the image from a backup")
            }
        }
    }
}

impl Superblock {
    /// The checksum of the description.
    pub fn description_checksum(&self) -> u64 {
        self.checksum_with(self.features_ro_compat.load())
    }

    /// Whether the checksum matches. A crash may leave [`FEATURE_FILE_FLAGS`] with the checksum of
    /// the description without it: the feature counts, see `Fs::set_feature_of_flags`.
    pub fn description_verifies(&self) -> bool {
        let (stored, features) = (self.checksum.load(), self.features_ro_compat.load());
        stored == self.checksum_with(features) || stored == self.checksum_with(features & !FEATURE_FILE_FLAGS)
    }

    /// Whether files of the image may have the flags of [`FEATURE_FILE_FLAGS`].
    pub fn has_file_flags(&self) -> bool {
        self.features_ro_compat.load() & FEATURE_FILE_FLAGS != 0
    }

    /// Blocks that only root may take. At most as many as the word can hold; none if its checksum
    /// does not match.
    pub fn reserved_blocks(&self) -> u64 {
        let word = self.reserve.load();
        let has_any = self.features_compat.load() & FEATURE_RESERVE != 0 && reserve_word(word as u32) == word;
        if has_any { u64::from(word as u32) } else { 0 }
    }

    /// Whether the image's log pages have bounds of used slots.
    pub fn has_used_slots(&self) -> bool {
        self.features_ro_compat.load() & FEATURE_USED_SLOTS != 0
    }

    fn checksum_with(&self, features_ro_compat: u64) -> u64 {
        let mut crc = 0;
        let mut add = |word: u64| crc = crc32c(crc, &word.to_le_bytes());
        self.uuid.iter().chain(&self.label).for_each(|cell| add(cell.load()));
        [&self.version, &self.features_compat].into_iter().for_each(|cell| add(cell.load()));
        add(features_ro_compat);
        [&self.features_incompat, &self.created_ns, &self.length].into_iter().for_each(|cell| add(cell.load()));
        self.geometry.iter().for_each(|cell| add(cell.load()));
        crc as u64
    }

    /// Checks magic, version, features, checksum, length and geometry. `writing`: ro-compat
    /// features matter.
    pub fn check<M: Memory>(pm: &Region<M>, writing: bool) -> Result<Geometry, SuperblockError> {
        Self::check_within(pm, writing, pm.length())
    }

    /// `check` for a region that begins an image of at most `length` bytes.
    pub(crate) fn check_within<M: Memory>(
        pm: &Region<M>,
        writing: bool,
        length: u64,
    ) -> Result<Geometry, SuperblockError> {
        let too_short = SuperblockError::TooShort { length: pm.length() };
        let superblock = pm.first::<Superblock>().map_err(|_| too_short)?;
        if superblock.magic.load() != MAGIC {
            return Err(SuperblockError::NotAnImage);
        }
        // The version comes before the checksum: other versions may compute it differently.
        let version = superblock.version.load();
        if version != FORMAT_VERSION {
            return Err(SuperblockError::Version { found: version });
        }
        if !superblock.description_verifies() {
            return Err(SuperblockError::Checksum { copy_is_good: Self::copy_verifies(pm) });
        }
        let incompat = superblock.features_incompat.load() & !FEATURES_INCOMPAT;
        let ro_compat = superblock.features_ro_compat.load() & !FEATURES_RO_COMPAT;
        if incompat != 0 || (writing && ro_compat != 0) {
            return Err(SuperblockError::Features { incompat, ro_compat });
        }
        let expected = superblock.length.load();
        if expected > length {
            return Err(SuperblockError::Truncated { expected, length });
        }
        let words: [u64; 8] = core::array::from_fn(|index| superblock.geometry[index].load());
        let geometry = Geometry::from_words(&words, expected).ok_or(SuperblockError::Geometry)?;
        let is_consistent = superblock.features_incompat.load() == geometry.features();
        is_consistent.then_some(geometry).ok_or(SuperblockError::Geometry)
    }

    /// Whether the last block of the region holds a whole copy.
    pub fn copy_verifies<M: Memory>(pm: &Region<M>) -> bool {
        let last = (pm.length() / BLOCK_BYTES).saturating_sub(1) * BLOCK_BYTES;
        match pm.get(Pm::<Superblock>::new(last)) {
            Ok(copy) => copy.magic.load() == MAGIC && copy.description_verifies(),
            Err(_) => false,
        }
    }

    /// The current state.
    pub fn state(&self) -> State {
        State::from_word(self.state.load_acquire())
    }
}
