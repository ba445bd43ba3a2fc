//! The interface between a VFS layer and a physical file system: operations by inode, as a kernel's
//! VFS calls them.
//!
//! # Locking rules
//!
//! The VFS layer locks as Linux does. A physical file system may rely on these rules only:
//!
//! - An operation gets each file that it reads as [`Shared`] (others may read it concurrently, none
//!   changes it) and each that it changes as [`Exclusive`] (no other operation uses it). This is
//!   `i_rwsem`. `lookup`, `read_directory` and `read` are shared. Every change of a directory, or
//!   of a file's attributes, links or content, is exclusive for all files that it changes:
//!   directories, the file that gains or loses a name, the file that a rename replaces.
//! - A rename between directories excludes all other such renames. No directory becomes its own
//!   ancestor.
//! - The VFS layer has looked names up under the same lock: a name to be created does not exist, a
//!   name to be removed does, and `rmdir` and a replacing rename get directories where they need
//!   them. Names have 1 to [`NAME_MAX`](PhysicalFs::NAME_MAX) bytes without `/` and zero, and are
//!   never `.` or `..`. The VFS layer checks permissions. The physical file system checks that a
//!   directory is empty ([`Errno::ENOTEMPTY`](posix::Errno::ENOTEMPTY)).
//! - Operations on different files run concurrently. The physical file system protects its own
//!   allocators, journals and inode tables.
//!
//! # Attributes and private state
//!
//! For each file in use the VFS layer keeps an [`AttributeCell`] and the physical file system's own
//! [`Info`](PhysicalFs::Info): an index of names, a log's tail, whatever a kernel file system
//! embeds in its inode. Every operation that changes attributes updates the cells of the directory
//! (times, links, size), the new file and the removed file. A crash loses both.
//!
//! # Life of an inode
//!
//! [`load`](PhysicalFs::load) brings a file into memory. It is not called again for that file until
//! [`forget`](PhysicalFs::forget) (the file has names) or [`evict`](PhysicalFs::evict) (it has none
//! and is not open: free it). A crash may come between the last `unlink` and `evict`; recovery
//! frees such files.
//!
//! # Offsets
//!
//! Operations report the image offsets of a name ([`Found::entry`]) and an inode
//! ([`Loaded::inode`]). A VFS layer with its own index passes the entry back ([`Name::entry`]), so
//! that the name is not searched for twice. When mounted for such a layer ([`Index::Vfs`]), a
//! physical file system needs no index of names. The inode's offset leads to its [`NvPointer`].

use crate::error::Result;
use crate::inode::AttributeCell;
use crate::multicore::named_memory::NamedMemory;
use crate::substrate::NvPointer;
use engine::format::FileKind;
use engine::{Attributes, Changes};
use pmem::{MappedRegion, Memory};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A file whose lock the caller holds shared.
#[derive(Debug)]
pub struct Shared<'a, I> {
    /// Its inode number.
    pub number: u64,
    /// Its attributes.
    pub attributes: &'a AttributeCell,
    /// The physical file system's state for it.
    pub info: &'a I,
}

// A derived `Clone` would require `I: Clone`.
impl<I> Clone for Shared<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I> Copy for Shared<'_, I> {}

/// A file whose lock the caller holds exclusively.
#[derive(Debug)]
pub struct Exclusive<'a, I> {
    /// Its inode number.
    pub number: u64,
    /// Its attributes.
    pub attributes: &'a AttributeCell,
    /// The physical file system's state for it.
    pub info: &'a mut I,
}

impl<I> Exclusive<'_, I> {
    /// A shared view.
    pub fn shared(&self) -> Shared<'_, I> {
        Shared { number: self.number, attributes: self.attributes, info: self.info }
    }
}

/// A name of a directory, as passed to operations.
#[derive(Debug, Clone, Copy)]
pub struct Name<'n> {
    /// 1 to [`PhysicalFs::NAME_MAX`] bytes.
    pub bytes: &'n [u8],
    /// Image offset of its entry, if the VFS layer knows it. Always set when the name exists and
    /// the mount uses [`Index::Vfs`].
    pub entry: Option<u64>,
}

impl<'n> Name<'n> {
    /// A name whose offset is unknown.
    pub const fn new(bytes: &'n [u8]) -> Name<'n> {
        Name { bytes, entry: None }
    }
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Inode number.
    pub number: u64,
    /// Image offset of the entry, for [`Name::entry`]. Never zero.
    pub entry: u64,
}

/// A file to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewFile<'a> {
    /// File type.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device, otherwise zero.
    pub device: u32,
    /// Target of a symbolic link, otherwise empty.
    pub target: &'a [u8],
}

impl NewFile<'_> {
    /// The attributes of the file. No block counts, not even that of a target.
    #[inline]
    pub(crate) fn attributes(&self, number: u64, generation: u32, now_ns: i64) -> Attributes {
        Attributes {
            number,
            generation,
            kind: self.kind,
            mode: self.kind.mode_bits() | self.permissions & 0o7777,
            links: if self.kind == FileKind::Directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size_bytes: self.target.len() as u64,
            blocks: 0,
            accessed_ns: now_ns,
            modified_ns: now_ns,
            changed_ns: now_ns,
            flags: engine::FileFlags::NONE,
        }
    }
}

/// A file in memory, which the VFS layer keeps.
#[derive(Debug)]
pub struct Loaded<I> {
    /// Its attributes, with its number.
    pub attributes: Attributes,
    /// The physical file system's state for it.
    pub info: I,
    /// Image offset of its inode, for [`PhysicalFs::nv_pointer`].
    pub inode: u64,
}

/// A new file and its entry.
#[derive(Debug)]
pub struct Made<I> {
    /// The file.
    pub file: Loaded<I>,
    /// Image offset of its entry.
    pub entry: u64,
}

/// A name of a directory, never `.` or `..`.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'n> {
    /// The name.
    pub name: &'n [u8],
    /// Inode number.
    pub number: u64,
    /// File type.
    pub kind: FileKind,
    /// Position behind this entry, to continue from.
    pub cookie: u64,
    /// Image offset of the entry.
    pub entry: u64,
}

/// A rename. The VFS layer has looked up its names and files.
#[derive(Debug)]
pub struct Renaming<'a, 'i, I> {
    /// Directory of the old name.
    pub from: &'a mut Exclusive<'i, I>,
    /// The old name.
    pub from_name: Name<'a>,
    /// Directory of the new name, if it is another one.
    pub to: Option<&'a mut Exclusive<'i, I>>,
    /// The new name.
    pub to_name: Name<'a>,
    /// The file.
    pub file: &'a mut Exclusive<'i, I>,
    /// The file of the new name, if it exists: replaced, or swapped if `exchange`. Never the same
    /// file as `file`.
    pub other: Option<&'a mut Exclusive<'i, I>>,
    /// Whether to swap the two files.
    pub exchange: bool,
    /// The time.
    pub now_ns: i64,
}

/// Image offsets of the entries after a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renamed {
    /// Entry of the new name.
    pub to_entry: u64,
    /// Entry of the old name, after an exchange.
    pub from_entry: Option<u64>,
}

/// Total and free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Blocks of 4 KiB for files and names.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Maximum number of files.
    pub inodes: u64,
    /// Number of files that can still be created.
    pub inodes_free: u64,
}

/// Options of mkfs.
#[derive(Debug, Clone, Copy)]
pub struct MkfsOptions {
    /// Owner and group of the root.
    pub owner: (u32, u32),
    /// Permissions of the root.
    pub permissions: u32,
    /// Birth time of the root.
    pub now_ns: i64,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions { owner: (0, 0), permissions: 0o755, now_ns: crate::virtual_time::held::now_ns() }
    }
}

/// Which layer has the index of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Index {
    /// The physical file system: the VFS layer calls [`PhysicalFs::lookup`].
    #[default]
    Own,
    /// The VFS layer, for all names of a directory in use. `lookup` is never called, and every
    /// existing name comes with its offset. The SquirrelFS-like system keeps its own names all the
    /// same: its mount's scan collects them.
    Vfs,
}

/// Options of a mount.
#[derive(Debug, Clone, Copy)]
pub struct MountOptions {
    /// Which layer has the index of names.
    pub index: Index,
    /// Interval between writes of delayed changes in milliseconds (SoupFS only). With zero, only
    /// `sync` and unmount write.
    pub persist_period_ms: u64,
    /// Number of lists of free blocks and journals: the number of threads that can run without
    /// sharing one.
    pub shards: usize,
    /// What `sync_file` makes durable (SoupFS only).
    pub sync_file: SyncFile,
}

/// What syncing a file makes durable in a system that writes names later (SoupFS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncFile {
    /// The file's own changes, as in the SoupFS paper: content, size and attributes.
    #[default]
    Own,
    /// The names that lead to it, too, as programs rely on with most file systems.
    Names,
}

static ASSUMED: AtomicUsize = AtomicUsize::new(0);

/// Lets systems divide their space for this many processors, not for those of this machine.
pub fn assume_processors(count: usize) {
    ASSUMED.store(count, Relaxed);
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        let shards = match ASSUMED.load(Relaxed) {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            assumed => assumed,
        };
        MountOptions { index: Index::Own, persist_period_ms: 1000, shards, sync_file: SyncFile::Own }
    }
}

/// A file system on an image. See the module for the locking rules.
///
/// A call that returns has the durability that its system promises: NOVA, PMFS and SquirrelFS make
/// everything durable, SoupFS by the next period or `sync`. A crash at any instant leaves each call
/// done or not done, except for SoupFS's renames and writes as documented there.
pub trait PhysicalFs: Send + Sync + Sized + 'static {
    /// Memory type of the image: it can observe or delay accesses.
    type Memory: Memory;
    /// In-memory state for each file in use.
    type Info: Send + Sync + 'static;

    /// Name for reports.
    const NAME: &'static str;

    /// The longest name in bytes.
    const NAME_MAX: usize = 255;

    /// Creates an empty file system on a whole image. The image need not be zeroed.
    fn mkfs(region: &MappedRegion<Self::Memory>, options: &MkfsOptions) -> Result<()>;

    /// Mounts the image; recovers first if it is unclean.
    fn mount(region: MappedRegion<Self::Memory>, options: &MountOptions) -> Result<Self>;

    /// Marks the image clean. The VFS layer has released all files before and calls nothing
    /// afterwards.
    fn unmount(&self) -> Result<()>;

    /// The image.
    fn region(&self) -> &MappedRegion<Self::Memory>;

    /// Number of mounts of this image, including this one. It decides which [`NvPointer`] is live.
    fn mounts(&self) -> u64;

    /// Number of the root directory.
    fn root(&self) -> u64;

    /// Image offset of an inode. The cost depends on the system: arithmetic in PMFS, a search in
    /// NOVA.
    fn inode_place(&self, number: u64) -> Result<u64>;

    /// The nv pointer of the inode at an offset. Only the VFS layer uses it.
    fn nv_pointer(&self, inode: u64) -> Result<&NvPointer>;

    /// Loads a file that has names.
    fn load(&self, number: u64) -> Result<Loaded<Self::Info>>;

    /// Releases a file that has names. A system that delays writes may still have unwritten changes
    /// of it.
    fn forget(&self, number: u64, info: Self::Info) -> Result<()>;

    /// Frees a file that has no names and is not open.
    fn evict(&self, number: u64, attributes: &Attributes, info: Self::Info) -> Result<()>;

    /// Looks up a name.
    fn lookup(&self, directory: Shared<'_, Self::Info>, name: &[u8]) -> Result<Option<Found>>;

    /// Whether the entry at an offset has this name, for a VFS layer that keeps offsets but no
    /// names. Called without a lock: the entry may be in removal and the offset reused. Then any
    /// answer is valid, but the call must be safe.
    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool;

    /// The parent of a directory; the root is its own parent.
    fn parent(&self, directory: Shared<'_, Self::Info>) -> Result<u64>;

    /// Visits the names after `cookie` (zero: all) until `visit` returns false. A cookie stays
    /// valid while names are created and removed.
    fn read_directory(
        &self,
        directory: Shared<'_, Self::Info>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Creates a file of any type.
    fn create(
        &self,
        directory: &mut Exclusive<'_, Self::Info>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<Self::Info>>;

    /// Adds a name to a file that is no directory. Returns its entry's offset.
    fn link(
        &self,
        file: &mut Exclusive<'_, Self::Info>,
        directory: &mut Exclusive<'_, Self::Info>,
        name: Name<'_>,
        now_ns: i64,
    ) -> Result<u64>;

    /// Removes a name of a file that is no directory.
    fn unlink(
        &self,
        directory: &mut Exclusive<'_, Self::Info>,
        name: Name<'_>,
        file: &mut Exclusive<'_, Self::Info>,
        now_ns: i64,
    ) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(
        &self,
        directory: &mut Exclusive<'_, Self::Info>,
        name: Name<'_>,
        removed: &mut Exclusive<'_, Self::Info>,
        now_ns: i64,
    ) -> Result<()>;

    /// Renames, replaces or exchanges.
    fn rename(&self, renaming: Renaming<'_, '_, Self::Info>) -> Result<Renamed>;

    /// Changes attributes; the change time becomes `now_ns`.
    fn change(&self, file: &mut Exclusive<'_, Self::Info>, changes: &Changes, now_ns: i64) -> Result<()>;

    /// Reads content. Returns the number of bytes read.
    fn read(&self, file: Shared<'_, Self::Info>, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes content: all of it, or nothing if space runs out.
    fn write(&self, file: &mut Exclusive<'_, Self::Info>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()>;

    /// Sets the length of a file.
    fn truncate(&self, file: &mut Exclusive<'_, Self::Info>, size_bytes: u64, now_ns: i64) -> Result<()>;

    /// Reads the target of a symbolic link. Returns the number of bytes copied.
    fn read_link(&self, link: Shared<'_, Self::Info>, into: &mut [u8]) -> Result<usize>;

    /// Makes all changes of a file durable.
    fn sync_file(&self, file: &mut Exclusive<'_, Self::Info>) -> Result<()>;

    /// Makes all changes durable.
    fn sync(&self) -> Result<()>;

    /// The memory areas of this file system, for reports of where threads contend.
    fn named_memory(&self) -> Vec<NamedMemory> {
        Vec::new()
    }
    /// Total and free space.
    fn space(&self) -> Result<Space>;
}

/// The methods of [`PhysicalFs`] that are alike in systems whose calls are durable when they
/// return. A system has the fields `region` and `mounts`, the method `inode` and the constant
/// `ROOT`.
macro_rules! durable_calls {
    () => {
        fn unmount(&self) -> $crate::Result<()> {
            // Everything is durable already; the empty fence only yields the `Durable` token.
            let durable = self.region.fence(pmem::Flushed::nothing());
            $crate::substrate::leave(&self.region, durable)
        }

        fn region(&self) -> &pmem::MappedRegion<Self::Memory> {
            &self.region
        }

        fn mounts(&self) -> u64 {
            self.mounts
        }

        fn root(&self) -> u64 {
            ROOT
        }

        fn nv_pointer(&self, inode: u64) -> $crate::Result<&$crate::substrate::NvPointer> {
            Ok(&self.inode(inode)?.nv_pointer)
        }

        fn sync_file(&self, _: &mut $crate::physical::Exclusive<'_, Self::Info>) -> $crate::Result<()> {
            Ok(())
        }

        fn sync(&self) -> $crate::Result<()> {
            Ok(())
        }
    };
}
pub(crate) use durable_calls;
