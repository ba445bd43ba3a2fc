//! Cachelets (paper III.B): the fields of a file that most calls read, in two cache lines.
//!
//! Invariants
//! - A cachelet has the number of one inode in one generation from the store of `number` to its
//!   recycling, which follows a grace period. It stands for the inode while the inode's nv pointer
//!   leads to it and it lacks [`FLAG_EVICTED`].
//! - `references` counts users (open files, walks, lookups of a kernel). It shares one word with
//!   links and flags, so that the release of the last reference sees all three.
//! - Five words mean one thing for files, another for directories, and a third for free cachelets.
//!   Only the views read and write them: [`Cachelet::as_file`], [`Cachelet::as_directory`],
//!   [`Cachelet::as_free`].
//! - Attributes change under `lock`, between two increments of `version`; a reader that sees an odd
//!   or changed version reads again. A directory's times are the exception: they only grow, by
//!   fetch_max.
//!
//! Decision: docs/decisions/hot-paths.md, "Fields lie in lines by what writes them".

mod directory;
mod file;

pub use directory::{CountedChange, DirectoryState, DirectoryView, LogCounts};
pub use file::{FileView, MAPPED, MAPPED_KEPT, MAPPED_STORES, MAPPED_TIMES_SET};

use crate::sync::{AtomicI64, AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::Acquire;
use pmem::Layout;

/// Flag of the state word: the cachelet describes a file (paper III.E). A create sets it before its
/// fence: until then no lookup finds the name.
pub const FLAG_READABLE: u8 = 1;
/// Flag of the state word: a deletion has started and will succeed; no other thread deletes it.
pub const FLAG_DELETED: u8 = 2;
/// Flag of the state word: a rename is changing its names; lookups wait.
pub const FLAG_RENAMING: u8 = 4;
/// Flag of the state word: no links, no references; the inode is being recycled and cannot be
/// referenced again.
pub const FLAG_DEAD: u8 = 8;

/// Flag of the state word: made without a name (O_TMPFILE). It may get its first name, unlike a
/// file that lost its last.
pub const FLAG_UNNAMED: u8 = 16;

/// Flag of the state word: the cachelet does not stand for its inode. With [`FLAG_DEAD`] it was
/// freed, and the file still exists; alone, a thread has filled it and has not published it yet.
pub const FLAG_EVICTED: u8 = 32;

/// Flag of the state word: the tables of the layer above hold the file (open files, working
/// directories, mappings), which counts as one reference however many entries there are. A mark,
/// not a count: a reaper of a dead process may set or clear it once more.
pub const FLAG_HELD: u8 = 64;

/// Links of a directory without subdirectories.
pub const DIRECTORY_LINKS: u32 = 2;

/// Bit of [`Cachelet::dirty`]: links, or a directory's times, are newer than the inode's property
/// entry.
pub const DIRTY: u32 = 1;

/// Bit of [`Cachelet::dirty`]: on the image the inode has neither log nor extended attributes,
/// access time or inline body. Unset: not known.
pub const PLAIN: u32 = 2;

/// References, links and flags in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct References {
    /// Users.
    pub references: u32,
    /// Names (24 bits).
    pub links: u32,
    /// `FLAG_*`.
    pub flags: u8,
}

impl References {
    /// The word.
    #[inline]
    pub fn word(self) -> u64 {
        self.references as u64 | (self.links as u64 & 0xff_ffff) << 32 | (self.flags as u64) << 56
    }

    /// Decodes a word.
    #[inline]
    pub fn from_word(word: u64) -> References {
        References { references: word as u32, links: (word >> 32) as u32 & 0xff_ffff, flags: (word >> 56) as u8 }
    }

    /// Whether the cachelet was filled from an inode and is not known to be published.
    #[inline]
    pub const fn is_unpublished(self) -> bool {
        self.flags & (FLAG_DEAD | FLAG_EVICTED) == FLAG_EVICTED
    }

    /// Whether the file is referenced by anything except its names.
    #[inline]
    pub fn is_used(self) -> bool {
        self.references != 0 || self.flags & FLAG_HELD != 0
    }

    /// What one more reference adds to the word.
    pub const ONE_REFERENCE: u64 = 1;
    /// The references field of a dead cachelet: the slot that reclaims it. Late lookups add and
    /// subtract one in the low bits.
    #[inline]
    pub const fn reclaimed_by(ticket: u32) -> u32 {
        ticket << 16
    }

    /// The slot that reclaims a dead cachelet.
    #[inline]
    pub const fn reclaimer(self) -> u32 {
        self.references >> 16
    }

    /// A flag's bit in the word.
    #[inline]
    pub const fn flag(flag: u8) -> u64 {
        (flag as u64) << 56
    }
}

/// A cachelet: 128 bytes. The first line holds what is read of a directory to use a name in it or
/// to pass through it; the second line holds what changes with each name.
#[repr(C, align(128))]
pub struct Cachelet {
    /// Odd while attributes change.
    pub version: AtomicU32,
    /// Type and permissions, as `st_mode`.
    pub mode: AtomicU32,
    /// Owner.
    pub uid: AtomicU32,
    /// Group.
    pub gid: AtomicU32,
    /// [`FileView::size_bytes`], [`DirectoryView::rename_count`].
    size_or_renames: AtomicU64,
    /// Inode number; zero: free.
    pub number: AtomicU64,
    /// [`References`].
    pub references: AtomicU64,
    /// Time of the last change of attributes.
    pub changed_ns: AtomicI64,
    /// Generation of the inode.
    pub generation: AtomicU32,
    /// Property flags, as on the image.
    pub flags: AtomicU32,
    /// [`DirectoryView::state`].
    directory: AtomicU32,
    /// [`FileView::mapped`], [`FreeView::next_batch`]. Directories: bit 1, used since the eviction
    /// hand passed; bit 2, its log seems worth a compaction; bits 3 to 5,
    /// whether threads share it; bit 6, its times are apart; from bit 8 on, slot + 1 of the thread
    /// that compacts or evicts it; see [`DirectoryView::maintain`].
    marks: AtomicU32,

    /// Slot + 1 of the thread that may change the file; a futex.
    pub lock: AtomicU32,
    /// Waiters on `lock`.
    pub waiters: AtomicU32,
    /// [`FileView::root`], [`DirectoryView::log_tail`].
    root_or_tail: AtomicU64,
    /// [`FileView::blocks`]. Directories: the number of names, above it the log slots that became
    /// holes since the last compaction, and whether it is removed; see
    /// [`DirectoryView::log_counts`].
    blocks_or_counts: AtomicU64,
    /// Time of the last change of content.
    pub modified_ns: AtomicI64,
    /// Offset of the inode on the image: the inode quick path.
    pub inode: AtomicU64,
    /// Time of the last access.
    pub accessed_ns: AtomicI64,
    /// Sequence of the newest property entry.
    pub sequence: AtomicU32,
    /// [`DIRTY`], [`PLAIN`].
    pub dirty: AtomicU32,
    /// [`FileView::device`], [`DirectoryView::subdirectories`], [`FreeView::batch_length`].
    device_or_count: AtomicU32,
    /// Next in the free list that this cachelet is on.
    pub next: AtomicU32,
}

/// The words of a free cachelet that is the first of a batch in the shared list.
#[derive(Clone, Copy)]
pub struct FreeView<'c>(&'c Cachelet);

impl<'c> FreeView<'c> {
    /// First cachelet of the next batch.
    #[inline(always)]
    pub fn next_batch(self) -> &'c AtomicU32 {
        &self.0.marks
    }

    /// Cachelets in this batch.
    #[inline(always)]
    pub fn batch_length(self) -> &'c AtomicU32 {
        &self.0.device_or_count
    }
}

impl Cachelet {
    /// As anything but a directory.
    #[inline(always)]
    pub fn as_file(&self) -> FileView<'_> {
        FileView(self)
    }

    /// As a directory.
    #[inline(always)]
    pub fn as_directory(&self) -> DirectoryView<'_> {
        DirectoryView(self)
    }

    /// As the first of a batch of free ones.
    #[inline(always)]
    pub fn as_free(&self) -> FreeView<'_> {
        FreeView(self)
    }

    /// The number of links, as in stat and the property entry. The state word of a directory has
    /// two, its name and its `.`, until it is removed; its subdirectories are counted beside its
    /// names. So a new subdirectory changes one line of its parent, which no lookup reads.
    #[inline]
    pub fn links(&self, is_directory: bool) -> u32 {
        let links = References::from_word(self.references.load(Acquire)).links;
        // A death can leave a count of subdirectories below zero until the recount. There is no
        // branch, for which the compiler would duplicate the code of every stat.
        links.wrapping_add(self.device_or_count.load(Acquire).wrapping_mul(u32::from(is_directory & (links != 0))))
    }
}
const _: () = assert!(size_of::<Cachelet>() == 128);
const _: () = assert!(core::mem::offset_of!(Cachelet, lock) == 64);
// SAFETY: repr(C), no padding (the fields sum up to 128 bytes, each aligned to its size), atomics
// only; AtomicI64 is 8 bytes of which any pattern is a value.
unsafe impl Layout for Cachelet {}
