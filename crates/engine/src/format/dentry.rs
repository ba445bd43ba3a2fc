//! Extended dentries (paper III.F): a name, what it names, and in one word whether it counts and when its directory last changed by it.
//!
//! Invariants
//! - Everything but `valid` is immutable from publication to recycling, and certified by `seal`.
//! - The space of a dentry is used again only after its log slot and its `seal` are durably zero: what lies there from before
//!   never verifies.

use super::FileKind;
use super::assert_layout;
use pmem::{BLOCK_BYTES, Cell64, Commit64, LINE_BYTES, Layout, Memory, Region, crc32c};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes before the name.
pub const DENTRY_HEADER_BYTES: u64 = 40;

/// Lines of a dentry whose name has `name_length` bytes: 1 to 5.
#[inline]
pub const fn dentry_lines(name_length: usize) -> u64 {
    (DENTRY_HEADER_BYTES + name_length as u64).div_ceil(64)
}

/// The first line of a dentry; longer names continue in the following lines.
#[repr(C, align(64))]
pub struct Dentry {
    /// <valid, mtime>: see [`Valid`].
    pub valid: Commit64,
    /// CRC-32C (high half) of inode, parent, cookie, kind, length and name; name length (bits 0..8), kind (8..16), lines
    /// (16..24), zero (24..32). Zero: not a dentry.
    pub seal: Cell64,
    /// The inode that the name stands for.
    pub inode: Cell64,
    /// The directory that the name stands in.
    pub parent: Cell64,
    /// Position in the directory for readdir: ascending along the log, never reused in a directory, unchanged by compaction.
    pub cookie: Cell64,
    /// The name's first bytes; what follows the name is undefined.
    pub name: [Cell64; 3],
}
assert_layout!(Dentry, 64, valid @ 0, seal @ 8, inode @ 16, parent @ 24, cookie @ 32, name @ 40);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for Dentry {}

/// What the seal certifies, without the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DentryFacts {
    /// The inode that the name stands for.
    pub inode: u64,
    /// The directory.
    pub parent: u64,
    /// Position for readdir.
    pub cookie: u64,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Bytes of the name: 1 to 255.
    pub name_length: u8,
}

impl DentryFacts {
    /// The seal of a dentry with these facts and this name.
    pub fn seal(&self, name: &[u8]) -> u64 {
        let low = self.name_length as u32 | (self.kind as u32) << 8 | (dentry_lines(name.len()) as u32) << 16;
        let mut bytes = [0u8; 28];
        bytes[0..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.parent.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cookie.to_le_bytes());
        bytes[24..28].copy_from_slice(&low.to_le_bytes());
        (crc32c(crc32c(0, &bytes), name) as u64) << 32 | low as u64
    }
}

impl Dentry {
    /// Name length, kind and lines as the seal's low half says; none if they contradict each other. The checksum is not verified:
    /// for a dentry that the mindex names, it was when the entry was made.
    #[inline]
    pub fn facts(&self) -> Option<DentryFacts> {
        let seal = self.seal.load();
        let name_length = seal as u8;
        let kind = FileKind::from_bits((seal >> 8) as u8 as u32)?;
        let lines = (seal >> 16) & 0xffff;
        if name_length == 0 || lines != dentry_lines(name_length as usize) {
            return None;
        }
        Some(DentryFacts {
            inode: self.inode.load(),
            parent: self.parent.load(),
            cookie: self.cookie.load(),
            kind,
            name_length,
        })
    }

    /// What the seal certifies, if all of it verifies, the name included, and the dentry lies within one block.
    pub fn verified<M: Memory>(&self, pm: &Region<M>) -> Option<DentryFacts> {
        let facts = self.facts()?;
        let offset = pm.offset_of(self);
        if offset % BLOCK_BYTES + dentry_lines(facts.name_length as usize) * LINE_BYTES > BLOCK_BYTES {
            return None;
        }
        let mut name = [0u8; NAME_BYTES_MAX];
        let name = &mut name[..facts.name_length as usize];
        pm.read_bytes(offset + DENTRY_HEADER_BYTES, name).ok()?;
        (self.seal.load() == facts.seal(name)).then_some(facts)
    }
}

/// The word <valid, mtime>: one atomic store makes or unmakes a name and records when its directory changed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Valid {
    /// Whether the name counts.
    pub valid: bool,
    /// When it was made or unmade: ns since 1970, at most [`MOMENT_NS_MAX`].
    pub moment_ns: u64,
}

/// The latest moment that the word holds (year 2116).
pub const MOMENT_NS_MAX: u64 = (1 << 62) - 1;

impl Valid {
    /// The word.
    #[inline]
    pub fn word(self) -> u64 {
        self.moment_ns.min(MOMENT_NS_MAX) << 2 | self.valid as u64
    }

    /// What a word says; bit 1 is reserved and ignored.
    #[inline]
    pub fn from_word(word: u64) -> Valid {
        Valid { valid: word & 1 == 1, moment_ns: word >> 2 }
    }
}
