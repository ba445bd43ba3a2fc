//! Inodes and their property entries.
//!
//! An inode is four cache lines: identity, two property entries, and an inline area. All attributes
//! that change together are in one property entry, which certifies itself; the newer valid one of
//! the two counts. So chmod, chown, utimes, truncate or the commit of a write is one line, flushed
//! once, atomic at any crash. (The paper logs property entries in a 4 KiB log per inode. For a file
//! that is chmodded once in its life this costs a page and three lines. The mechanism is the same
//! with the log folded into the inode: two slots, used alternately.)
//!
//! Invariants
//! - In a free inode `log`, `xattrs`, `inline` and `accessed_ns` are durably zero. Its identity and
//!   property entries may be those of the last life: nothing names that generation any more.
//! - An entry counts only if its seal verifies against the inode's number and generation, so an
//!   earlier life's entry never does.
//! - Entry `i` holds sequences of parity `i`.
//!
//! Decision: docs/decisions/files.md, "Attributes are two property entries in the inode".

use super::Dentry;
use super::assert_layout;
use pmem::{Cell32, Cell64, Checksummed, Commit64, Layout, Recomputed, crc32c_words};

/// Bytes of an inode.
pub const INODE_BYTES: u64 = 256;
/// Inodes in a segment, the unit in which the inode table grows.
pub const INODES_PER_SEGMENT: u64 = 256;
/// Blocks of a segment.
pub const SEGMENT_BLOCKS: u64 = INODES_PER_SEGMENT * INODE_BYTES / pmem::BLOCK_BYTES;
/// The number of the root directory. Number 0 is never used.
pub const ROOT_INODE: u64 = 1;
/// The generation of an inode number's first life.
pub const FIRST_GENERATION: u32 = 1;
/// Bytes that the inline area holds.
pub const INLINE_BYTES_MAX: usize = 48;

/// The longest regular file: what the highest tree of a block map holds.
pub const FILE_BYTES_MAX: u64 = 1 << 48;
/// The longest target of a symbolic link.
pub const TARGET_BYTES_MAX: u64 = pmem::BLOCK_BYTES - 1;
/// No owner or group has this number: to chown(2) it means "no change".
pub const NO_ID: u32 = u32::MAX;

/// Property flag: the body is in the inode's inline area (short symlinks).
pub const PROPERTY_INLINE: u32 = 1;
/// Property flag: the extended attributes may hold an access control list. Not for symbolic links.
pub const PROPERTY_ACCESS_LIST: u32 = 2;
/// Property flag: the file cannot be changed.
pub const PROPERTY_IMMUTABLE: u32 = 4;
/// Property flag: the file only grows, a directory only gets more names.
pub const PROPERTY_APPEND_ONLY: u32 = 8;
/// Property flag: backups leave the file out.
pub const PROPERTY_NO_DUMP: u32 = 16;
/// Property flag: reads leave the access time as it is.
pub const PROPERTY_NO_ACCESS_TIME: u32 = 32;
/// The property flags of regular files and directories that programs set; they need
/// [`FEATURE_FILE_FLAGS`](super::FEATURE_FILE_FLAGS).
pub const PROPERTY_FILE_FLAGS: u32 =
    PROPERTY_IMMUTABLE | PROPERTY_APPEND_ONLY | PROPERTY_NO_DUMP | PROPERTY_NO_ACCESS_TIME;

/// The kind of file of an inode; the values are `S_IFMT >> 12` and `d_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    Character = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    Block = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A bound socket.
    Socket = 12,
}

impl FileKind {
    /// From the value on the image or the top bits of a mode.
    pub const fn from_bits(bits: u32) -> Option<FileKind> {
        Some(match bits {
            1 => FileKind::Fifo,
            2 => FileKind::Character,
            4 => FileKind::Directory,
            6 => FileKind::Block,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => return None,
        })
    }

    /// From a full `st_mode`.
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        Self::from_bits((mode >> 12) & 0xf)
    }

    /// The `S_IFMT` bits of a mode.
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

/// In the low half of an nv pointer: it was cleared. The bits below count such pointers, so that no
/// word comes back.
pub const POINTER_CLEARED: u32 = 1 << 31;

/// An inode: 256 bytes, four lines.
#[repr(C, align(256))]
pub struct Inode {
    /// Generation (low half) and CRC-32C of number, kind, device, birth time and generation (high
    /// half; one where it computes to zero). High half zero: free, and the low half is the last
    /// life's generation.
    pub birth: Commit64,
    /// The inode's own number, which reveals a wrong offset.
    pub number: Cell64,
    /// [`FileKind`]; never changes in a life.
    pub kind: Cell32,
    /// Device number of a device node (Linux encoding), else zero.
    pub device: Cell32,
    /// Birth time in ns since 1970 (two's complement).
    pub born_ns: Cell64,
    /// Directories: the inode number of `..`; itself for the root.
    pub parent: Commit64,
    /// Directories: the first log page.
    pub log: Commit64,
    /// The body that holds the extended attributes: a block map root as in [`Property::root`], with
    /// its length in the body.
    pub xattrs: Commit64,
    /// Cachelet index (low half) and epoch (high half); valid only while the epoch is the current
    /// one (paper III.D: the nv pointer; ByVFS's version number). With [`POINTER_CLEARED`] it names
    /// no cachelet. Never flushed on purpose.
    pub nv_pointer: Cell64,
    /// Attributes; the newer valid entry counts.
    pub properties: [PropertyEntry; 2],
    /// Access time in ns; zero: never read, take the birth time. Updated in place, independently.
    pub accessed_ns: Cell64,
    /// Zero.
    pub reserved: Cell64,
    /// A short symlink's target.
    pub inline: [Cell64; INLINE_BYTES_MAX / 8],
}
assert_layout!(Inode, 256, birth @ 0, number @ 8, kind @ 16, device @ 20, born_ns @ 24, parent @ 32, log @ 40, xattrs @ 48,
    nv_pointer @ 56, properties @ 64, accessed_ns @ 192, reserved @ 200, inline @ 208);
// SAFETY: repr(C), cells only, no padding by the assertions above.
unsafe impl Layout for Inode {}

/// The word holds the checksum of the identity. Recovery erases an inode whose
/// [`Inode::generation`] does not verify. What the checksum does not cover (`..`, log, extended
/// attributes, inline area) is zero, recomputed, or durable before.
impl Checksummed for Inode {
    #[inline(always)]
    fn commit_word(&self) -> &Commit64 {
        &self.birth
    }
}

/// The `..` of a directory. Recovery takes it from the dentry of the directory's only name
/// (`attach::recovery`); a directory without a name is erased.
pub(crate) struct ParentWord<'i>(&'i Commit64);

impl<'i> ParentWord<'i> {
    /// The word of `inode`, which `_name` names or will name.
    #[inline(always)]
    pub fn of_name(inode: &'i Inode, _name: &Dentry) -> ParentWord<'i> {
        ParentWord(&inode.parent)
    }
}

impl Recomputed for ParentWord<'_> {
    #[inline(always)]
    fn word(&self) -> &Commit64 {
        self.0
    }
}

impl Inode {
    /// The generation of the present life, or none if the inode is free or its identity does not
    /// verify.
    pub fn generation(&self, number: u64) -> Option<u32> {
        let birth = self.birth.load_acquire();
        let generation = birth as u32;
        let whole = birth >> 32 != 0
            && self.number.load() == number
            && birth == Self::birth_word(number, self.kind.load(), self.device.load(), self.born_ns.load(), generation);
        whole.then_some(generation)
    }

    /// The birth word of an identity.
    pub fn birth_word(number: u64, kind: u32, device: u32, born_ns: u64, generation: u32) -> u64 {
        let kind_and_device = kind as u64 | (device as u64) << 32;
        let crc = crc32c_words(&[number, kind_and_device, born_ns], Some(generation));
        (crc.max(1) as u64) << 32 | generation as u64
    }

    /// Whether the last line, inline area and access time, is zero.
    pub fn tail_is_zero(&self) -> bool {
        self.accessed_ns.load() == 0 && self.inline.iter().all(|word| word.load() == 0)
    }

    /// Whether all fields are zero that the next life would inherit because its birth word does not
    /// certify them. `..` is excepted: recovery takes it from the name.
    pub fn is_plain(&self) -> bool {
        self.log.load() == 0 && self.xattrs.load() == 0 && self.tail_is_zero()
    }

    /// The birth word of this inode once it is free.
    pub fn free_word(&self) -> u64 {
        self.birth.load() & 0xffff_ffff
    }

    /// The generation of the next life of a free inode.
    pub fn next_generation(&self) -> u32 {
        (self.birth.load() as u32).wrapping_add(1).max(FIRST_GENERATION)
    }

    /// The newer valid property entry with its sequence, or none: the inode never came to life, or
    /// is damaged.
    pub fn property(&self, number: u64, generation: u32) -> Option<(Property, u32)> {
        let even = self.properties[0].verified(0, number, generation);
        let odd = self.properties[1].verified(1, number, generation);
        match (even, odd) {
            // Sequences wrap; the two differ by one when both are of this life.
            (Some(a), Some(b)) => Some(if (a.1.wrapping_sub(b.1) as i32) > 0 { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

/// The attributes of a file that change together.
// Fields that share a word of an entry are in another order here. So no two fields that were stored
// separately are loaded as one word, which would stall until the earlier stores reach the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Property {
    /// `PROPERTY_*`: 16 bits.
    pub flags: u32,
    /// Type and permission bits, as `st_mode`: 16 bits.
    pub mode: u32,
    /// Group.
    pub gid: u32,
    /// Names of the inode; for a directory 2 + its subdirectories. Exact after a clean detach;
    /// recounted from the dentries after a crash.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Length in bytes; for a directory zero.
    pub size_bytes: u64,
    /// Blocks of the body: data and map nodes.
    pub blocks: u64,
    /// Time of the last change of content, ns since 1970.
    pub modified_ns: i64,
    /// Time of the last change of attributes, ns since 1970.
    pub changed_ns: i64,
    /// Root of the body's block map: see the engine's `file::map`.
    pub root: u64,
}

/// A property entry on the image: one line.
#[repr(C, align(64))]
pub struct PropertyEntry {
    /// Sequence (low half) and CRC-32C (high half) of the words below, the sequence, the inode's
    /// number and generation.
    pub seal: Commit64,
    /// The attributes, in the order of [`Property::words`].
    pub words: [Cell64; 7],
}
assert_layout!(PropertyEntry, 64, seal @ 0, words @ 8);
// SAFETY: repr(C), cells only, no padding by the assertion above.
unsafe impl Layout for PropertyEntry {}

/// The word is the checksum itself. Recovery takes the newer entry that [`Inode::property`]
/// verifies. The body that root and length show is durable before: see the engine's `property`.
impl Checksummed for PropertyEntry {
    #[inline(always)]
    fn commit_word(&self) -> &Commit64 {
        &self.seal
    }
}

impl PropertyEntry {
    fn verified(&self, parity: u32, number: u64, generation: u32) -> Option<(Property, u32)> {
        let seal = self.seal.load_acquire();
        let sequence = seal as u32;
        let words: [u64; 7] = core::array::from_fn(|index| self.words[index].load());
        let whole = sequence & 1 == parity && seal == Property::seal(&words, sequence, number, generation);
        whole.then(|| (Property::from_words(&words), sequence))
    }
}

impl Property {
    /// The seven words of an entry.
    pub fn words(&self) -> [u64; 7] {
        [
            self.mode as u16 as u64 | (self.flags as u16 as u64) << 16 | (self.links as u64) << 32,
            self.uid as u64 | (self.gid as u64) << 32,
            self.size_bytes,
            self.blocks,
            self.modified_ns as u64,
            self.changed_ns as u64,
            self.root,
        ]
    }

    /// Decodes the words of an entry.
    pub fn from_words(words: &[u64; 7]) -> Property {
        Property {
            mode: words[0] as u16 as u32,
            flags: (words[0] >> 16) as u16 as u32,
            links: (words[0] >> 32) as u32,
            uid: words[1] as u32,
            gid: (words[1] >> 32) as u32,
            size_bytes: words[2],
            blocks: words[3],
            modified_ns: words[4] as i64,
            changed_ns: words[5] as i64,
            root: words[6],
        }
    }

    /// The seal of an entry with these words.
    pub fn seal(words: &[u64; 7], sequence: u32, number: u64, generation: u32) -> u64 {
        let [a, b, c, d, e, f, g] = *words;
        let life = generation as u64 | (sequence as u64) << 32;
        (crc32c_words(&[a, b, c, d, e, f, g, number, life], None) as u64) << 32 | sequence as u64
    }

    /// Whether a file of this kind can have this size.
    pub fn size_fits(&self, kind: FileKind) -> bool {
        match kind {
            FileKind::Regular => self.size_bytes <= FILE_BYTES_MAX,
            FileKind::Symlink if self.flags & PROPERTY_INLINE != 0 => {
                (1..=INLINE_BYTES_MAX as u64).contains(&self.size_bytes)
            }
            FileKind::Symlink => (1..=TARGET_BYTES_MAX).contains(&self.size_bytes),
            _ => self.size_bytes == 0,
        }
    }

    /// Whether owner and group are numbers that a file can have. To a program that copies the file
    /// [`NO_ID`] would mean that it stays the program's own.
    pub fn owners_fit(&self) -> bool {
        self.uid != NO_ID && self.gid != NO_ID
    }

    /// The kind of file in the mode.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
}

/// Whether a symbolic link can have this target, or one that begins like this. A program could not
/// pass on a zero byte in it.
#[inline]
pub fn is_possible_target(target: &[u8]) -> bool {
    !target.is_empty() && !target.contains(&0)
}
