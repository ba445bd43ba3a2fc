//! What a front asks of a physical file system: operations by inode, as a kernel's VFS calls them.
//!
//! # Who locks what
//!
//! The front locks as Linux does, and a physical file system may rely on this and on no more:
//!
//! - An operation gets each file that it reads as [`Shared`] (others may read it, too, nobody changes it) and each that it changes as
//!   [`Exclusive`] (nobody else is at it). This is `i_rwsem`: `lookup`, `read_directory`, `read` are shared; everything that changes
//!   a directory, a file's attributes, links or content is exclusive, for all files that it changes: directories, the file that gains or loses
//!   a name, the file that a rename replaces.
//! - A rename between directories happens alone among such renames, and no directory becomes its own ancestor.
//! - The front has looked names up under the same lock: what is created does not exist, what is removed does, `rmdir` and a replacing rename
//!   get directories where they need them. Names are 1 to 255 bytes without `/` and zero, never `.` or `..`. Permissions are the front's matter. Whether a
//!   directory is empty is the physical file system's ([`Errno::ENOTEMPTY`](posix::Errno::ENOTEMPTY)).
//! - Operations on different files run at the same time. Allocators, journals, inode tables are the physical file system's to protect.
//!
//! # Attributes and private state
//!
//! For each file in use the front keeps an [`AttributeCell`] and the physical file system's own [`Info`](PhysicalFs::Info) (an
//! index of names, a log's tail, what a kernel file system embeds in its inode). Every operation that changes attributes changes the cells:
//! of the directory (times, links, size), the new file, the removed one. A crash forgets both.
//!
//! # Lives of inodes
//!
//! [`load`](PhysicalFs::load) brings a file into memory, once until it is given back by [`forget`](PhysicalFs::forget) (it has names) or
//! [`evict`](PhysicalFs::evict) (it has none and nobody has it open: free it). A crash may come between a last `unlink` and `evict`: recovery frees
//! such files.
//!
//! # Places
//!
//! Operations tell where on the image a name ([`Found::entry`]) and an inode ([`Found::inode`]) lie. A front that has an index of its own hands the
//! entry back ([`Name::entry`]) so that nobody searches twice; mounted for such a front ([`Index::Front`]) a physical file system builds
//! no index of names. The inode's place leads to its [`NvPointer`].

use crate::error::Result;
use crate::inode::AttributeCell;
use crate::multicore::places::Place;
use crate::substrate::NvPointer;
use engine::format::FileKind;
use engine::{Attributes, Changes};
use pmem::{MappedRegion, Memory};

/// A file that the caller holds shared.
#[derive(Debug)]
pub struct Shared<'a, I> {
    /// Its inode number.
    pub number: u64,
    /// Its attributes.
    pub attributes: &'a AttributeCell,
    /// What the physical file system keeps for it.
    pub info: &'a I,
}

// By hand: a derived one would want the state to be copied.
impl<I> Clone for Shared<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I> Copy for Shared<'_, I> {}

/// A file that the caller holds exclusively.
#[derive(Debug)]
pub struct Exclusive<'a, I> {
    /// Its inode number.
    pub number: u64,
    /// Its attributes.
    pub attributes: &'a AttributeCell,
    /// What the physical file system keeps for it.
    pub info: &'a mut I,
}

impl<I> Exclusive<'_, I> {
    /// The same, to look at only.
    pub fn shared(&self) -> Shared<'_, I> {
        Shared { number: self.number, attributes: self.attributes, info: self.info }
    }
}

/// A name of a directory, as operations get it.
#[derive(Debug, Clone, Copy)]
pub struct Name<'n> {
    /// 1 to 255 bytes.
    pub bytes: &'n [u8],
    /// Where its entry lies on the image, if the front knows: always when mounted with [`Index::Front`] and the name exists.
    pub entry: Option<u64>,
}

impl<'n> Name<'n> {
    /// A name whose place is not known.
    pub const fn new(bytes: &'n [u8]) -> Name<'n> {
        Name { bytes, entry: None }
    }
}

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Inode number.
    pub number: u64,
    /// Where the entry lies on the image: what [`Name::entry`] takes. Never zero.
    pub entry: u64,
}

/// A file to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewFile<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device, else zero.
    pub device: u32,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
}

/// A file in memory, for the front to keep.
#[derive(Debug)]
pub struct Loaded<I> {
    /// Its attributes, with its number.
    pub attributes: Attributes,
    /// What the physical file system keeps for it.
    pub info: I,
    /// Where its inode lies on the image: what [`PhysicalFs::nv_pointer`] takes.
    pub inode: u64,
}

/// A file that was just made, and its entry.
#[derive(Debug)]
pub struct Made<I> {
    /// The file.
    pub file: Loaded<I>,
    /// Where its name lies.
    pub entry: u64,
}

/// One name of a directory; `.` and `..` are not among them.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'n> {
    /// The name.
    pub name: &'n [u8],
    /// Inode number.
    pub number: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// Pass this to go on after this entry.
    pub cookie: u64,
    /// Where it lies on the image.
    pub entry: u64,
}

/// A rename whose names and files the front has looked up.
#[derive(Debug)]
pub struct Renaming<'a, 'i, I> {
    /// Directory of the old name.
    pub from: &'a mut Exclusive<'i, I>,
    /// The old name.
    pub from_name: Name<'a>,
    /// Directory of the new name, if another one.
    pub to: Option<&'a mut Exclusive<'i, I>>,
    /// The new name.
    pub to_name: Name<'a>,
    /// The file.
    pub file: &'a mut Exclusive<'i, I>,
    /// The file that the new name means now: it is replaced, or swapped if `exchange`. Never the same file as `file`.
    pub other: Option<&'a mut Exclusive<'i, I>>,
    /// Swap the two.
    pub exchange: bool,
    /// The time.
    pub now_ns: i64,
}

/// Where the entries lie after a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renamed {
    /// Of the new name.
    pub to_entry: u64,
    /// Of the old name, after an exchange.
    pub from_entry: Option<u64>,
}

/// Figures of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Blocks of 4 KiB for files and names.
    pub blocks: u64,
    /// Those not in use.
    pub blocks_free: u64,
    /// Files that there may be.
    pub inodes: u64,
    /// How many more there may be.
    pub inodes_free: u64,
}

/// How to make a file system.
#[derive(Debug, Clone, Copy)]
pub struct MkfsOptions {
    /// Owner and group of the root.
    pub owner: (u32, u32),
    /// Permissions of the root.
    pub permissions: u32,
    /// Birth of the root.
    pub now_ns: i64,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions { owner: (0, 0), permissions: 0o755, now_ns: posix::host::now_ns() }
    }
}

/// Who knows where a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Index {
    /// The physical file system: [`PhysicalFs::lookup`] is called.
    #[default]
    Own,
    /// The front, for all names of a directory whose names it uses: `lookup` is never called, and every name that exists comes with its place.
    Front,
}

/// How to mount.
#[derive(Debug, Clone, Copy)]
pub struct MountOptions {
    /// Who knows where a name is.
    pub index: Index,
    /// How often what is kept back in memory is written, where a system does so (SoupFS); zero: only by `sync` and unmount.
    pub persist_period_ms: u64,
    /// Lists of free blocks and journals, for as many threads that do not disturb each other.
    pub shards: usize,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        let shards = std::thread::available_parallelism().map_or(1, usize::from);
        MountOptions { index: Index::Own, persist_period_ms: 1000, shards }
    }
}

/// A file system on an image. See the module for who locks what.
///
/// A call that returns has done what its system promises (NOVA and PMFS: everything durable; SoupFS: durable by the next period or
/// `sync`), and a crash at any instant leaves each call done or not done (but for what SoupFS says of renames and writes).
pub trait PhysicalFs: Send + Sync + Sized + 'static {
    /// What watches or slows the image's memory.
    type Memory: Memory;
    /// What it keeps in memory for each file in use.
    type Info: Send + Sync + 'static;

    /// What people call it.
    const NAME: &'static str;

    /// Makes an empty file system of a whole image. The image need not be zero.
    fn mkfs(region: &MappedRegion<Self::Memory>, options: &MkfsOptions) -> Result<()>;

    /// Mounts it, recovering first if it was not left in order.
    fn mount(region: MappedRegion<Self::Memory>, options: &MountOptions) -> Result<Self>;

    /// Leaves it in order. The front has forgotten all files; nothing is called afterwards.
    fn unmount(&self) -> Result<()>;

    /// The image.
    fn region(&self) -> &MappedRegion<Self::Memory>;

    /// How often this image has been mounted, this time included: what makes an [`NvPointer`] live.
    fn mounts(&self) -> u64;

    /// Number of the root directory.
    fn root(&self) -> u64;

    /// Where an inode lies on the image. How dear this is, is a matter of the system: a sum in PMFS, a search in NOVA.
    fn inode_place(&self, number: u64) -> Result<u64>;

    /// The nv pointer of the inode at a place: of a word in it that nothing but a front uses.
    fn nv_pointer(&self, inode: u64) -> Result<&NvPointer>;

    /// Brings a file that has names into memory.
    fn load(&self, number: u64) -> Result<Loaded<Self::Info>>;

    /// Lets go of a file that has names. It may be called while the file's changes are not yet written, where a system keeps them back.
    fn forget(&self, number: u64, info: Self::Info) -> Result<()>;

    /// Frees a file that has no names and that nobody has open.
    fn evict(&self, number: u64, attributes: &Attributes, info: Self::Info) -> Result<()>;

    /// The file of a name.
    fn lookup(&self, directory: Shared<'_, Self::Info>, name: &[u8]) -> Result<Option<Found>>;

    /// Whether the entry at a place bears this name, for a front that keeps places and no names. It is asked without a lock: the
    /// entry may just be going, and the place somebody else's. Then any answer will do, but no harm may come of it.
    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool;

    /// The directory that a directory lies in; the root's is itself.
    fn parent(&self, directory: Shared<'_, Self::Info>) -> Result<u64>;

    /// Tells the names after `cookie` (zero: all) until `visit` says that it is enough. A cookie keeps its meaning while names come and go.
    fn read_directory(
        &self,
        directory: Shared<'_, Self::Info>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Makes a file of any kind.
    fn create(
        &self,
        directory: &mut Exclusive<'_, Self::Info>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<Self::Info>>;

    /// Gives a file that is no directory another name; where it lies.
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

    /// Reads content; how many bytes there were.
    fn read(&self, file: Shared<'_, Self::Info>, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes content, all of it or nothing if there is no room.
    fn write(&self, file: &mut Exclusive<'_, Self::Info>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()>;

    /// Makes a file so long.
    fn truncate(&self, file: &mut Exclusive<'_, Self::Info>, size_bytes: u64, now_ns: i64) -> Result<()>;

    /// The target of a symbolic link; how many bytes of it there were and fit.
    fn read_link(&self, link: Shared<'_, Self::Info>, into: &mut [u8]) -> Result<usize>;

    /// Makes all that was done to a file durable.
    fn sync_file(&self, file: &mut Exclusive<'_, Self::Info>) -> Result<()>;

    /// Makes all that was done durable.
    fn sync(&self) -> Result<()>;

    /// Whose what lies in memory is, for people who look at where threads meet.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }
    /// Figures of the whole.
    fn space(&self) -> Result<Space>;
}
