//! Mapping of images: regular files, files in memory, block devices, DAX files and devices,
//! anonymous memory.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};

use crate::backing::{Backing, Medium};
use crate::dax::{self, attributes_of_device};
use crate::guarded::{Addresses, map_guarded};
use crate::loss::Loss;
use crate::memory::Memory;
use crate::region::Region;
use crate::truncation::GuardSlot;

/// The unit of mapping.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// The unit of huge pages.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// 64 TiB: half of a process's address space. Several images and the rest of the process still fit.
pub(crate) const LENGTH_BYTES_MAX: u64 = 1 << 46;

/// Permitted accesses to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store is a fault.
    ReadOnly,
    /// Loads and stores, shared with every other mapping of the same object.
    ReadWrite,
}

impl Access {
    fn description(self) -> &'static str {
        match self {
            Access::ReadOnly => "reading",
            Access::ReadWrite => "reading and writing",
        }
    }

    fn protection(self) -> ProtFlags {
        match self {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Why a mapping failed, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The path does not exist.
    #[error("{} does not exist: check the path, or create an image there first (directfs mkfs)", path.display())]
    Missing {
        /// The requested path.
        path: PathBuf,
    },
    /// The path of the new file exists already.
    #[error("{} already exists: choose another name, or remove it first", path.display())]
    Exists {
        /// The requested path.
        path: PathBuf,
    },
    /// The permissions of the file or file system forbid the access.
    #[error(
        "no permission to open {} for {}: ask its owner for permission (chmod, chown), use a writable file system, or open it \
         read-only",
        path.display(), access.description()
    )]
    Permission {
        /// The requested path.
        path: PathBuf,
        /// The requested access.
        access: Access,
    },
    /// Opening failed for another reason.
    #[error("cannot open {} for {}: {source}; fix the cause and try again", path.display(), access.description())]
    Open {
        /// The requested path.
        path: PathBuf,
        /// The requested access.
        access: Access,
        /// The kernel's error.
        source: io::Error,
    },
    /// A directory, a pipe ...
    #[error("{} is {kind}, not a regular file, a block device or a /dev/dax* device: use one of these", path.display())]
    NotMappable {
        /// The requested path.
        path: PathBuf,
        /// The kind of object, with an article.
        kind: &'static str,
    },
    /// The file is smaller than one page.
    #[error(
        "{} has {length} bytes, less than one page of 4096: set its size first (for example truncate -s 1G)",
        path.display()
    )]
    Empty {
        /// The requested path.
        path: PathBuf,
        /// Its length.
        length: u64,
    },
    /// The object is larger than a process can map.
    #[error("{} has {length} bytes, more than the {LENGTH_BYTES_MAX} that can be mapped: make it smaller", name(path))]
    TooLarge {
        /// The requested path; none for anonymous memory.
        path: Option<PathBuf>,
        /// Its length.
        length: u64,
    },
    /// The system does not report the size of the device.
    #[error(
        "cannot read the size of the DAX device {} from {}: {source}; check that /sys is mounted and that the device is enabled \
         (daxctl list)",
        path.display(), attribute.display()
    )]
    DaxSize {
        /// The device.
        path: PathBuf,
        /// The attribute file with the size.
        attribute: PathBuf,
        /// The error while reading it.
        source: io::Error,
    },
    /// The device is smaller than the alignment that it requires of mappings.
    #[error(
        "the DAX device {} has {length} bytes, less than its alignment of {align}: make it larger, or give its namespace a \
         smaller alignment (ndctl create-namespace --align)",
        path.display()
    )]
    DaxAlignment {
        /// The device.
        path: PathBuf,
        /// Its length.
        length: u64,
        /// The required alignment of its mappings.
        align: u64,
    },
    /// A new file could not be created.
    #[error("cannot create {} with {length} bytes: {source}; choose a writable directory with enough free space", path.display())]
    Create {
        /// The requested path.
        path: PathBuf,
        /// The requested size.
        length: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused the mapping.
    #[error(
        "cannot map {} ({length} bytes): {source}; check the limits of memory and address space (ulimit -v, \
         vm.max_map_count, vm.overcommit_memory), and that the file system supports shared mappings",
        name(path)
    )]
    Mmap {
        /// The requested path; none for anonymous memory.
        path: Option<PathBuf>,
        /// The length of the mapping.
        length: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A region for stores was requested on a read-only mapping.
    #[error("the mapping is read-only: map it for reading and writing")]
    ReadOnly,
}

impl MapError {
    /// About an object of a kind that cannot be mapped.
    pub fn not_mappable(path: &Path, kind: std::fs::FileType) -> MapError {
        MapError::NotMappable { path: path.to_owned(), kind: file_type_name(kind) }
    }
}

/// Bytes of a regular file or a block device, whose metadata has no length.
pub fn length_bytes(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    match metadata.file_type().is_block_device() {
        true => Ok(rustix::fs::seek(file, SeekFrom::End(0))?),
        false => Ok(metadata.len()),
    }
}

fn name(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(|| "anonymous memory".to_owned(), |path| path.display().to_string())
}

/// Mapped memory, shared with every process that maps the same object, and the open file behind it.
///
/// The length is the file's, rounded down to whole pages (for a DAX device, to its alignment). It
/// does not follow when the file grows; a mapping that [reserves](Mapping::reserving) addresses has
/// the new bytes behind it then. The file stays open so that locks can be taken on it.
///
/// Truncating a mapped file removes its pages: the next access raises SIGBUS. A program that called
/// [`survive_truncations`](crate::survive_truncations) reads zeros there instead, and
/// [`is_truncated`](Mapping::is_truncated) reports it.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: u64,
    /// Bytes of addresses, of which the file may have fewer.
    reach: u64,
    access: Access,
    backing: Backing,
    file: Option<File>,
    guarded: Option<GuardSlot>,
    _addresses: Addresses,
}

// SAFETY: the mapping is not tied to a thread; its bytes are accessible only by raw address or
// through regions.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the mapping itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the file or DAX device at `path`.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Mapping, MapError> {
        let path = path.as_ref();
        let mode = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        // Non-blocking: opening a pipe would otherwise block before its kind is known.
        let flags = mode | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| open_error(path, access, errno))?;
        Mapping::from_file(File::from(file), path, access)
    }

    /// Maps an open file (received from another process, or at a descriptor of the caller's
    /// choice). `path` is for messages only.
    pub fn from_file(file: File, path: impl AsRef<Path>, access: Access) -> Result<Mapping, MapError> {
        Mapping::of_beginning(file, path, access, u64::MAX)
    }

    /// [`Mapping::from_file`], but maps at most the first `length_max` bytes of a regular file or
    /// block device.
    pub fn of_beginning(
        file: File,
        path: impl AsRef<Path>,
        access: Access,
        length_max: u64,
    ) -> Result<Mapping, MapError> {
        let path = path.as_ref();
        let metadata = file.metadata().map_err(|source| MapError::Open { path: path.to_owned(), access, source })?;
        let kind = metadata.file_type();
        if kind.is_char_device() {
            return Mapping::of_dax_device(file, path, access, &attributes_of_device("char", metadata.rdev()));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(MapError::not_mappable(path, kind));
        }
        let length = length_bytes(&file).map_err(|source| MapError::Open { path: path.to_owned(), access, source })?;
        Mapping::of_regular_file(file, path, access, (length.min(length_max), 0))
    }

    /// Maps the first `length` bytes of a regular file that is at least as long, and the addresses
    /// up to `reach` bytes. Until the file becomes longer, an access there raises SIGBUS.
    pub fn reserving(
        file: File,
        path: impl AsRef<Path>,
        access: Access,
        (length, reach): (u64, u64),
    ) -> Result<Mapping, MapError> {
        Mapping::of_regular_file(file, path.as_ref(), access, (length, reach))
    }

    /// Maps the first `beginning` bytes of a regular file and, behind them, what it has from `end`
    /// on: for a process without addresses for what lies between. Both are whole pages.
    pub fn of_both_ends(
        file: File,
        path: impl AsRef<Path>,
        access: Access,
        (beginning, end): (u64, u64),
    ) -> Result<Mapping, MapError> {
        let path = path.as_ref();
        let metadata = file.metadata().map_err(|source| MapError::Open { path: path.to_owned(), access, source })?;
        let end_bytes = metadata.len().checked_sub(end).filter(|bytes| *bytes > 0 && beginning <= end);
        let Some(end_bytes) = end_bytes else {
            return Err(MapError::Empty { path: path.to_owned(), length: metadata.len() });
        };
        let (from, again) = (end, file.try_clone());
        let again = again.map_err(|source| MapError::Open { path: path.to_owned(), access, source })?;
        let mapping = Mapping::of_regular_file(file, path, access, (beginning + end_bytes, 0))?;
        let at = mapping.address().wrapping_add(beginning as usize).cast();
        let protection = access.protection();
        // SAFETY: replaces whole pages of the new mapping, which nothing uses yet.
        let mapped = unsafe {
            rustix::mm::mmap(at, end_bytes as usize, protection, MapFlags::SHARED | MapFlags::FIXED, again, from)
        };
        mapped.map_err(|errno| mmap_error(path, access, end_bytes, errno))?;
        Ok(mapping)
    }

    /// Creates a sparse file of `length` bytes (rounded up to whole pages) with exactly the
    /// permissions `mode`, and maps it. On file systems with unnamed files (all relevant ones have
    /// them) the file gets its name only with its final size and permissions.
    pub fn create(path: impl AsRef<Path>, length: u64, mode: u32) -> Result<Mapping, MapError> {
        let path = path.as_ref();
        if length > LENGTH_BYTES_MAX {
            return Err(MapError::TooLarge { path: Some(path.to_owned()), length });
        }
        let length = length.next_multiple_of(PAGE_BYTES);
        let file = create_file(path, length, Mode::from_raw_mode(mode)).map_err(|errno| match errno {
            Errno::EXIST => MapError::Exists { path: path.to_owned() },
            _ => MapError::Create { path: path.to_owned(), length, source: errno.into() },
        })?;
        Mapping::of_regular_file(file, path, Access::ReadWrite, (length, 0))
    }

    /// Maps `length` bytes (rounded up to whole pages) of zeros without a file. Children that are
    /// forked later share them.
    pub fn anonymous(length: u64) -> Result<Mapping, MapError> {
        if length > LENGTH_BYTES_MAX {
            return Err(MapError::TooLarge { path: None, length });
        }
        let length = length.max(1).next_multiple_of(PAGE_BYTES);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = map_guarded(length, |at, place| {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | place;
            // SAFETY: `map_guarded` gives addresses that nothing else uses, or leaves the choice to
            // the kernel.
            unsafe { rustix::mm::mmap_anonymous(at, length as usize, protection, flags) }
        });
        let mapped = match mapped {
            // With vm.overcommit_memory=2 all of it counts, used or not; of a file, what is used.
            Err(Errno::NOMEM) => map_memory_file(length),
            mapped => mapped,
        };
        let mapped = mapped.map_err(|errno| MapError::Mmap { path: None, length, source: errno.into() })?;
        Ok(Mapping::new(mapped, (length, length), Access::ReadWrite, Backing::Anonymous, None))
    }

    fn of_regular_file(
        file: File,
        path: &Path,
        access: Access,
        (length, reach): (u64, u64),
    ) -> Result<Mapping, MapError> {
        if length.max(reach) > LENGTH_BYTES_MAX {
            return Err(MapError::TooLarge { path: Some(path.to_owned()), length });
        }
        let mapped_bytes = length / PAGE_BYTES * PAGE_BYTES;
        if mapped_bytes == 0 {
            return Err(MapError::Empty { path: path.to_owned(), length });
        }
        let reach = mapped_bytes.max(reach.next_multiple_of(PAGE_BYTES));
        let refused = |errno| mmap_error(path, access, reach, errno);
        let (backing, flags) = match is_dax(&file, access).map_err(refused)? {
            true => (Backing::Dax { medium: dax::medium_of_file(&file) }, SYNCHRONOUS),
            false => (Backing::of_file(&file), MapFlags::SHARED),
        };
        let mapped = map_file(&file, reach, access, flags).map_err(refused)?;
        if let Backing::Dax { .. } = backing {
            dax::expect_listed_errors(&file);
        }
        Ok(Mapping::new(mapped, (mapped_bytes, reach), access, backing, Some(file)))
    }

    fn of_dax_device(file: File, path: &Path, access: Access, attributes: &Path) -> Result<Mapping, MapError> {
        let length = dax::length_bytes(path, attributes)?;
        // The kernel chooses the address, because it knows the alignment that the device needs. It
        // maps at a wish exactly, or refuses that with EINVAL.
        let address = map_file_at(ptr::null_mut(), &file, length, access, MapFlags::SHARED)
            .map_err(|errno| mmap_error(path, access, length, errno))?;
        let backing = Backing::DaxDevice { medium: Medium::of_device(attributes) };
        dax::expect_listed_errors(&file);
        let mapped = (address, Addresses::of(address, length));
        Ok(Mapping::new(mapped, (length, length), access, backing, Some(file)))
    }

    fn new(
        (address, addresses): (*mut c_void, Addresses),
        (length, reach): (u64, u64),
        access: Access,
        backing: Backing,
        file: Option<File>,
    ) -> Mapping {
        let address: NonNull<u8> =
            NonNull::new(address.cast()).expect("the kernel maps nothing at address zero without MAP_FIXED");
        // A core dump of the program holds the program. SAFETY: changes no memory.
        let _ =
            unsafe { rustix::mm::madvise(address.as_ptr().cast(), reach as usize, rustix::mm::Advice::LinuxDontDump) };
        let guarded = file.is_some().then(|| GuardSlot::claim(address.as_ptr() as usize, reach as usize));
        Mapping { address, length, reach, access, backing, file, guarded, _addresses: addresses }
    }

    /// Length of the mapping in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of addresses: see [`Mapping::reserving`].
    pub fn reach(&self) -> u64 {
        self.reach
    }

    /// Leaves the mapping out of later children of a fork. One that has it keeps the file's
    /// description, and with it the locks of a parent that has died. The child is to call
    /// [`forget_kept_mappings`](crate::forget_kept_mappings).
    pub fn keep_from_children(&self) {
        // SAFETY: the addresses are those of this mapping, and their content stays.
        let _ = unsafe { rustix::mm::madvise(self.address().cast(), self.reach as usize, Advice::LinuxDontFork) };
        if let Some(guarded) = &self.guarded {
            guarded.keep();
        }
    }

    /// The address of the first byte; never make a reference of it.
    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Permitted accesses.
    pub fn access(&self) -> Access {
        self.access
    }

    /// What backs the mapping.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The open file, to take locks on; none for anonymous memory.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// The ranges whose memory has errors, as the kernel lists them now, in whole pages.
    pub fn bad_ranges(&self) -> Vec<Range<u64>> {
        match (self.backing, &self.file) {
            (Backing::Dax { .. } | Backing::DaxDevice { .. }, Some(file)) => dax::bad_ranges(file, self.length),
            _ => Vec::new(),
        }
    }

    /// Whether the file is shorter than its mapping: loads may return zeros that were never stored,
    /// and stores may be lost. Detected by a failed access (in a program that called
    /// [`survive_truncations`](crate::survive_truncations)) or by the file's length.
    pub fn is_truncated(&self) -> bool {
        let is_shorter = |file: &File| {
            !self.backing.is_device()
                && length_bytes(file).is_ok_and(|bytes| bytes / PAGE_BYTES * PAGE_BYTES < self.length)
        };
        self.has_lost_pages() || self.file.as_ref().is_some_and(is_shorter)
    }

    /// [`is_truncated`](Mapping::is_truncated) without reading the file's length: one load.
    pub fn has_lost_pages(&self) -> bool {
        self.loss().is_some()
    }

    /// What was wrong at the last access that failed.
    pub fn loss(&self) -> Option<Loss> {
        self.guarded.as_ref().and_then(GuardSlot::loss)
    }

    /// A region over the whole mapping, which it keeps mapped.
    pub fn region<M: Memory>(self: &Arc<Self>, memory: M) -> Result<MappedRegion<M>, MapError> {
        if self.access == Access::ReadOnly {
            return Err(MapError::ReadOnly);
        }
        // SAFETY: the mapping is writable, and all stores go through regions.
        Ok(unsafe { self.region_for_reading(memory) })
    }

    /// A region over the whole mapping, which may be read-only.
    ///
    /// # Safety
    /// If the mapping is read-only, nothing is stored through the region: a store is a fault that
    /// ends the process.
    pub unsafe fn region_for_reading<M: Memory>(self: &Arc<Self>, memory: M) -> MappedRegion<M> {
        // SAFETY: mapped and page-aligned for as long as the mapping lives, which the returned
        // value keeps alive; readable, and writable or not written by this function's contract.
        // This type hands out only a raw address and regions, no references.
        let region = unsafe { Region::new(self.address(), self.length, memory) };
        MappedRegion { region, mapping: Arc::clone(self) }
    }

    /// Writes a range back and waits for it, on backings where the kernel holds changes back
    /// ([`Backing::File`]). Does nothing if a fence suffices or the mapping is read-only.
    pub fn sync(&self, range: Range<u64>) -> io::Result<()> {
        let pages = self.pages_around(range)?;
        if !self.backing.is_disk() || self.access == Access::ReadOnly || pages.is_empty() {
            return Ok(());
        }
        let (address, length) = self.page_address(&pages);
        // SAFETY: whole pages of this mapping; msync changes no bytes.
        Ok(unsafe { rustix::mm::msync(address, length, MsyncFlags::SYNC) }?)
    }

    /// Requests huge pages for a range immediately; returns whether all of it got them. Best
    /// effort: kernels before 6.1, file systems without huge pages and fragmented memory return
    /// false, without other effects. Untouched pages are filled.
    pub fn collapse_huge(&self, range: Range<u64>) -> bool {
        let Ok(pages) = self.pages_around(range) else { return false };
        let (address, length) = self.page_address(&pages);
        // SAFETY: whole pages of this mapping; collapsing moves bytes to other memory at the same
        // addresses, under the kernel's locks.
        unsafe { libc::madvise(address, length, crate::MADV_COLLAPSE) == 0 }
    }

    /// [`populate_write`](Mapping::populate_write), with huge pages where possible: an untouched
    /// huge page is then huge from the start.
    pub fn populate_huge(&self, range: Range<u64>) -> io::Result<()> {
        let whole = range.start.next_multiple_of(HUGE_PAGE_BYTES)..range.end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if !whole.is_empty() {
            // The kernel makes a huge page only where a page exists.
            for page in whole.clone().step_by(HUGE_PAGE_BYTES as usize) {
                self.populate_write(page..page + 1)?;
            }
            let _ = self.collapse_huge(whole);
        }
        self.populate_write(range)
    }

    /// Makes the kernel provide memory for a range and prepare it for stores, so that later first
    /// accesses cost nothing. An error means that memory or file system space is exhausted (a store
    /// would fault there), or a kernel before 5.14.
    pub fn populate_write(&self, range: Range<u64>) -> io::Result<()> {
        let pages = self.pages_around(range)?;
        let (address, length) = self.page_address(&pages);
        // SAFETY: whole pages of this mapping; populating changes no bytes.
        Ok(unsafe { rustix::mm::madvise(address, length, Advice::LinuxPopulateWrite) }?)
    }

    /// Returns the memory or disk blocks of a range to the system. All mappings then read zeros
    /// there. The range must consist of whole pages, because bytes outside it must stay.
    pub fn discard(&self, range: Range<u64>) -> io::Result<()> {
        if !range.start.is_multiple_of(PAGE_BYTES) || !range.end.is_multiple_of(PAGE_BYTES) {
            return Err(Errno::INVAL.into());
        }
        let pages = self.pages_around(range)?;
        let (address, length) = self.page_address(&pages);
        // SAFETY: whole pages of this mapping. The zeroing is equivalent to a store by another
        // process, which regions allow.
        Ok(unsafe { rustix::mm::madvise(address, length, Advice::LinuxRemove) }?)
    }

    /// The whole pages that contain `range`, or an error if it is not inside the mapping.
    fn pages_around(&self, range: Range<u64>) -> io::Result<Range<u64>> {
        if range.start > range.end || range.end > self.length {
            return Err(Errno::INVAL.into());
        }
        Ok(range.start / PAGE_BYTES * PAGE_BYTES..range.end.next_multiple_of(PAGE_BYTES))
    }

    fn page_address(&self, pages: &Range<u64>) -> (*mut c_void, usize) {
        (self.address().wrapping_add(pages.start as usize).cast(), (pages.end - pages.start) as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(guarded) = &self.guarded {
            guarded.release();
        }
        // Regions over the mapping hold an `Arc` of it, so none is left when its addresses go.
    }
}

/// A region and its mapping, which stays mapped at least as long.
pub struct MappedRegion<M: Memory> {
    region: Region<M>,
    mapping: Arc<Mapping>,
}

impl<M: Memory> MappedRegion<M> {
    /// The mapping behind the region.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl<M: Memory> Deref for MappedRegion<M> {
    type Target = Region<M>;

    #[inline(always)]
    fn deref(&self) -> &Region<M> {
        &self.region
    }
}

fn open_error(path: &Path, access: Access, errno: Errno) -> MapError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT => MapError::Missing { path },
        Errno::ACCESS | Errno::PERM | Errno::ROFS => MapError::Permission { path, access },
        Errno::ISDIR => MapError::NotMappable { path, kind: "a directory" },
        Errno::NXIO => MapError::NotMappable { path, kind: "a socket, a pipe or a device without a driver" },
        _ => MapError::Open { path, access, source: errno.into() },
    }
}

fn mmap_error(path: &Path, access: Access, length: u64, errno: Errno) -> MapError {
    let path = path.to_owned();
    match errno {
        // The descriptor was opened without the requested access.
        Errno::ACCESS | Errno::PERM => MapError::Permission { path, access },
        _ => MapError::Mmap { path: Some(path), length, source: errno.into() },
    }
}

fn file_type_name(kind: std::fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "of another kind"
    }
}

/// Flags of a mapping of a DAX file: a fence makes stores durable.
const SYNCHRONOUS: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);

/// Whether mappings of a file are synchronous: one of a page is made, and goes. No mapping is tried
/// at reserved addresses, because one that fails may leave a gap there.
fn is_dax(file: &File, access: Access) -> Result<bool, Errno> {
    match map_file_at(ptr::null_mut(), file, PAGE_BYTES, access, SYNCHRONOUS) {
        Ok(page) => {
            drop(Addresses::of(page, PAGE_BYTES));
            Ok(true)
        }
        // The file system does not support DAX, or the kernel does not know `MAP_SYNC`: the page
        // cache is used.
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn map_file(file: &File, length: u64, access: Access, flags: MapFlags) -> Result<(*mut c_void, Addresses), Errno> {
    map_guarded(length, |at, place| map_file_at(at, file, length, access, flags | place))
}

/// Maps a file at a free address, or where `at` is not null and `flags` say so.
fn map_file_at(
    at: *mut c_void,
    file: &File,
    length: u64,
    access: Access,
    flags: MapFlags,
) -> Result<*mut c_void, Errno> {
    // SAFETY: the kernel chooses the address, or `map_guarded` gives addresses that nothing else
    // uses.
    unsafe { rustix::mm::mmap(at, length as usize, access.protection(), flags, file, 0) }
}

/// Maps a sparse file in memory that goes with its mappings.
fn map_memory_file(length: u64) -> Result<(*mut c_void, Addresses), Errno> {
    let file = File::from(rustix::fs::memfd_create("directfs", rustix::fs::MemfdFlags::CLOEXEC)?);
    rustix::fs::ftruncate(&file, length)?;
    map_file(&file, length, Access::ReadWrite, MapFlags::SHARED)
}

/// Creates a file of `length` bytes with the permissions `mode`, independent of the umask. It is
/// built without a name and then linked, so the path names the complete file or nothing. (Tools
/// that list mappings show the creator's as "#number (deleted)", by the unnamed inode; it is the
/// file at the path.)
fn create_file(path: &Path, length: u64, mode: Mode) -> Result<File, Errno> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let prepare = |file: &File| -> Result<(), Errno> {
        rustix::fs::fchmod(file, mode)?;
        rustix::fs::ftruncate(file, length)
    };
    match rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR) {
        Ok(file) => {
            let file = File::from(file);
            prepare(&file)?;
            let unnamed = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
            Ok(file)
        }
        // The file system does not support unnamed files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
            prepare(&file).inspect_err(|_| {
                let _ = rustix::fs::unlink(path);
            })?;
            Ok(file)
        }
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truncation;

    #[test]
    fn refusals_to_open_keep_their_cause_apart() {
        let at = |errno| open_error(Path::new("image"), Access::ReadWrite, errno);
        assert!(matches!(at(Errno::NOENT), MapError::Missing { .. }));
        assert!(matches!(at(Errno::ACCESS), MapError::Permission { .. }));
        assert!(matches!(at(Errno::ROFS), MapError::Permission { .. }));
        assert!(matches!(at(Errno::ISDIR), MapError::NotMappable { .. }));
        assert!(matches!(at(Errno::MFILE), MapError::Open { .. }));
    }

    #[test]
    fn a_child_of_a_fork_guards_only_what_it_got() {
        let directory = tempfile::tempdir().unwrap();
        let [kept, passed_on] = ["kept", "passed on"].map(|name| {
            let path = directory.path().join(name);
            std::fs::write(&path, [0; 8192]).unwrap();
            Mapping::open(&path, Access::ReadWrite).unwrap()
        });
        let address = |mapping: &Mapping| mapping.address() as usize;
        kept.keep_from_children();
        assert!(truncation::is_guarded(address(&kept)) && truncation::is_guarded(address(&passed_on)));
        truncation::forget_kept_mappings();
        assert!(!truncation::is_guarded(address(&kept)) && truncation::is_guarded(address(&passed_on)));
        std::mem::forget(kept);
    }
}
