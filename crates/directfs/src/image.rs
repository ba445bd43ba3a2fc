//! Images: creating, opening and closing them.

use crate::descriptors::above_standard;
use crate::error::{Error, FORKED, Result};
use crate::session::Shared;
use crate::{Credentials, FileSystem};
use engine::statistics::CallClass;
use image::{CommitPolicy, MakeOptions, OpenImage};
use pmem::Persistence;
use posix::{Errno, Scope};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An image that this process has open.
///
/// An image is a file, a `/dev/dax*` device, or memory. [`Image::file_system`] gives access to the
/// files in it. [`Image::close`] closes it at a moment of the program's choice and returns errors.
/// Without it, the image is closed when this value and all [`FileSystem`]s, [`File`]s and
/// [`ReadDir`]s of it are dropped. A process that ends otherwise leaves the image as a crash does:
/// the next open recovers it.
///
/// Any number of processes may have an image open at the same time, among them programs under
/// `directfs run`. Each sees the others' changes at once. The processes must run in one PID
/// namespace, share `/dev/shm`, and trust each other: each can change every byte.
///
/// After fork(3), only the parent may use the image. Calls in the child fail with EOWNERDEAD, and
/// dropping values there has no effect; the child may open the image again. (Programs started by
/// [`std::process::Command`] are not concerned.)
///
/// [`File`]: crate::File
/// [`ReadDir`]: crate::ReadDir
pub struct Image {
    shared: Arc<Shared>,
    path: Option<PathBuf>,
    /// How it was opened; a snapshot finds its processes by it.
    options: OpenImage,
    durability: Durability,
    was_recovered: bool,
}

/// What the effect of a returned call survives. It depends on what the image lies in.
///
/// In every case a call is atomic: after a crash, its effect is there as a whole or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// A file on a DAX file system or a `/dev/dax*` device, on persistent memory: the death of
    /// every process, and a power failure.
    PowerFailure,
    /// A file in memory (tmpfs, `/dev/shm`), or on DAX where the kernel does not say that the
    /// memory is persistent: the death of every process. Not a power failure or restart of the
    /// machine.
    ProcessDeath,
    /// A file on a disk: the death of every process. And a power failure, if the call was synced
    /// ([`File::sync_all`](crate::File::sync_all), [`Image::sync`]), or is older than the interval
    /// of commits ([`ImageOptions::commit_interval`]).
    Committed,
    /// A file on a disk that is used in place ([`ImageOptions::no_commit`]): the death of every
    /// process.
    ///
    /// **A power failure may destroy the whole image while it is open,** including files that were
    /// synced before, because the kernel writes dirty pages back in any order. Safe is an image
    /// that was closed cleanly ([`Closed::Clean`]) and not opened since.
    CleanClose,
    /// Memory without a name ([`Image::in_memory`]): nothing survives the process.
    Nothing,
}

/// State of an image after [`Image::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// No process uses the image. It is clean, and on a disk written back.
    Clean,
    /// Other processes still use it. The last of them leaves it clean.
    OthersRemain,
    /// It was open for reading only, and was not changed.
    ReadOnly,
}

impl Image {
    /// Opens an existing image for reading and writing, shared with other processes. It is
    /// recovered first if it was not closed cleanly, which takes seconds per million files.
    ///
    /// [`Image::options`] opens it in other ways.
    ///
    /// # Errors
    /// ENOENT, EACCES; EBUSY: a process uses the image exclusively (a mount with a cache, fsck);
    /// EUCLEAN: the file is no usable image; ENOSPC: too little room in `/dev/shm`; EFBIG: a file
    /// that it needs exceeds the limit on file sizes.
    pub fn open(path: impl AsRef<Path>) -> Result<Image> {
        Image::options().open(path)
    }

    /// Options for opening an image.
    pub fn options() -> ImageOptions {
        ImageOptions(OpenImage::default())
    }

    /// Describes a new image; [`CreateImage::create`] makes it.
    pub fn create(path: impl AsRef<Path>) -> CreateImage {
        CreateImage { path: path.as_ref().to_owned(), options: MakeOptions::default() }
    }

    /// A new image of `size` bytes in memory, for this process alone. It takes memory only as it
    /// fills, and vanishes when it is closed. The root directory belongs to the process's user.
    ///
    /// # Errors
    /// EINVAL: `size` is below the minimum of 1 MiB; ENOSPC, EACCES: too little room in
    /// `/dev/shm`, or no permission to use it.
    pub fn in_memory(size: u64) -> Result<Image> {
        let make = MakeOptions { length: size, ..MakeOptions::default() };
        let options = OpenImage::default();
        Image::share(above_standard(|| image::Image::in_memory(&make, &options))?, false, &options)
    }

    fn share(image: image::Image, has_path: bool, options: &OpenImage) -> Result<Image> {
        let durability = match image.persistence() {
            _ if !has_path => Durability::Nothing,
            Persistence::PowerFailure => Durability::PowerFailure,
            Persistence::PowerFailurePerhaps | Persistence::ProcessDeath => Durability::ProcessDeath,
            Persistence::Committed => Durability::Committed,
            Persistence::CleanClose => Durability::CleanClose,
            Persistence::Nothing => Durability::Nothing,
        };
        let path = has_path.then(|| image.path().to_owned());
        let was_recovered = image.report().is_some_and(|report| report.scanned);
        let options = options.clone();
        Ok(Image { shared: Shared::new(image)?, path, options, durability, was_recovered })
    }

    /// The files of the image, as the user and groups of this process at this moment.
    /// [`FileSystem::with_credentials`] acts for others.
    pub fn file_system(&self) -> FileSystem {
        FileSystem::new(Arc::clone(&self.shared), Credentials::of_process())
    }

    /// The image's path; `None` for one in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What the effect of a returned call survives.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether opening recovered the image, because its last use did not close it cleanly.
    pub fn was_recovered(&self) -> bool {
        self.was_recovered
    }

    /// Commits the image to its disk, as [`File::sync_all`] does. Elsewhere it makes durable what a
    /// call may leave for later (access times), and costs little.
    ///
    /// # Errors
    /// EIO: the disk failed, or the image was truncated. ENOSPC, EFBIG: its file cannot grow.
    /// ENODEV: it is closed.
    ///
    /// [`File::sync_all`]: crate::File::sync_all
    pub fn sync(&self) -> Result<()> {
        let synced = self.shared.call(CallClass::Sync, |inside| inside.sync(Scope::All));
        synced.map_err(|errno| self.error("sync", errno))
    }

    /// Copies the image to a new file while programs use it, as `directfs snapshot` does: the state
    /// of one moment during the call. The file gets its name when it is whole and on its disk.
    /// Its first open recovers it, so it cannot be for reading only.
    ///
    /// # Errors
    /// EEXIST: there is such a file; EOPNOTSUPP: the image is in memory without a name; EBUSY: this
    /// process has it exclusively; ENODEV: it is closed; ENOSPC, EACCES, and other errors of
    /// creating a file.
    pub fn snapshot(&self, file: impl AsRef<Path>) -> Result<()> {
        let Some(path) = self.path() else { return Err(self.error("copy", Errno::EOPNOTSUPP)) };
        self.shared.call(CallClass::Other, |_| Ok(())).map_err(|errno| self.error("copy", errno))?;
        Ok(above_standard(|| image::snapshot(path, file, None, &self.options, &mut |_, _| true))?)
    }

    /// Closes the image: waits for calls in progress, closes all files, and detaches. The last
    /// process to detach leaves the image clean. Later calls on handles of this image fail with
    /// ENODEV.
    ///
    /// # Errors
    /// EIO: the image was truncated while in use, or its disk failed: it is not clean. EBUSY:
    /// another process recovers it for longer than ten minutes, or a [`View`](crate::View) lives.
    pub fn close(self) -> Result<Closed> {
        if self.shared.is_forked() {
            return Err(self.error("close", FORKED));
        }
        let closed = match self.shared.close() {
            Some(closed) => closed?,
            None => return Err(self.error("close", Errno::ENODEV)),
        };
        Ok(match closed {
            image::Closed::Last => Closed::Clean,
            image::Closed::OthersRemain => Closed::OthersRemain,
            image::Closed::ReadOnly => Closed::ReadOnly,
        })
    }

    /// Views of its files that live. They keep the image open.
    pub fn views(&self) -> usize {
        self.shared.views()
    }

    fn error(&self, operation: &'static str, errno: Errno) -> Error {
        Error::call(operation, self.path().unwrap_or(Path::new("the image in memory")), errno)
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("path", &self.path).field("durability", &self.durability).finish_non_exhaustive()
    }
}

/// How to open an image. See [`Image::options`].
#[derive(Debug, Clone)]
pub struct ImageOptions(OpenImage);

impl ImageOptions {
    /// Refuse all changes by this process with EROFS. Needs permission to read the file only,
    /// unless other processes write the image at the same time. An image that was not closed
    /// cleanly is recovered in a copy in memory, and stays as it is.
    pub fn read_only(mut self, read_only: bool) -> ImageOptions {
        self.0.read_only = read_only;
        self
    }

    /// Keep other processes out; with `read_only`, only writers. The image then needs no room in
    /// `/dev/shm`. Opening fails with EBUSY if the image is in use.
    pub fn exclusive(mut self, exclusive: bool) -> ImageOptions {
        self.0.exclusive = exclusive;
        self
    }

    /// How long to wait for a process that excludes this one: 5 seconds by default. Then EBUSY.
    pub fn timeout(mut self, timeout: Duration) -> ImageOptions {
        self.0.timeout = timeout;
        self
    }

    /// Number of files that are cached in memory at most, at 184 bytes each. Zero, the default: as
    /// many as the image holds. The first process that opens the image decides.
    pub fn cached_files(mut self, files: u64) -> ImageOptions {
        self.0.cached_files_max = files;
        self
    }

    /// The directory through which the processes of an image share memory; all must use the same
    /// one. `/dev/shm` by default.
    pub fn shared_memory_directory(mut self, directory: impl AsRef<Path>) -> ImageOptions {
        self.0.dram_directory = directory.as_ref().to_owned();
        self
    }

    /// How often the changes of an image on a disk are committed to it without a sync: every 5
    /// seconds by default. Zero: only at a sync.
    pub fn commit_interval(mut self, interval: Duration) -> ImageOptions {
        let is_never = interval.is_zero();
        self.0.commits = if is_never { CommitPolicy::WhenSynced } else { CommitPolicy::Every(interval) };
        self
    }

    /// Use an image on a disk in place: nothing is committed, and it needs no memory for a copy.
    /// **A power failure may then destroy it.** For scratch work. The first process that opens the
    /// image decides.
    pub fn no_commit(mut self) -> ImageOptions {
        self.0.commits = CommitPolicy::Never;
        self
    }

    /// The most memory that the working copy of an image on a disk may take: half of what is
    /// available by default. A larger image has it in a hidden file beside it. The first process
    /// that opens the image decides.
    pub fn memory(mut self, bytes: u64) -> ImageOptions {
        self.0.memory_bytes_max = Some(bytes);
        self
    }

    /// Opens an image. See [`Image::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Image> {
        let path = path.as_ref();
        // A later change of the working directory does not change what a snapshot copies.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Image::share(above_standard(|| image::Image::open(path, &self.0))?, true, &self.0)
    }
}

/// A new image. See [`Image::create`].
#[derive(Debug, Clone)]
pub struct CreateImage {
    path: PathBuf,
    options: MakeOptions,
}

impl CreateImage {
    /// Size in bytes; `directfs resize` changes it later. Required, except for a `/dev/dax*`
    /// device, which has its own.
    pub fn size(mut self, bytes: u64) -> CreateImage {
        self.options.length = bytes;
        self
    }

    /// A label of at most 64 bytes, which `directfs info` shows.
    pub fn label(mut self, label: impl Into<String>) -> CreateImage {
        self.options.label = label.into();
        self
    }

    /// Number of files that the image can hold, fixed for its life. Zero, the default: one per 2
    /// KiB.
    pub fn files(mut self, files: u64) -> CreateImage {
        self.options.inodes_max = files;
        self
    }

    /// Overwrite what the file holds, also another image. Without it that is EEXIST.
    pub fn overwrite(mut self, overwrite: bool) -> CreateImage {
        self.options.force = overwrite;
        self
    }

    /// Take blocks of the underlying file system only as the image fills. If they run out, calls
    /// that need new ones return ENOSPC.
    pub fn sparse(mut self, sparse: bool) -> CreateImage {
        self.options.sparse = sparse;
        self
    }

    /// Permission bits of the image file, which the umask reduces: 0o600 by default. A user that
    /// may write the file may change everything in the image.
    pub fn mode(mut self, mode: u32) -> CreateImage {
        self.options.mode = mode;
        self
    }

    /// Owner and group of the root directory: those of this process by default.
    pub fn root_owner(mut self, uid: u32, gid: u32) -> CreateImage {
        self.options.owner = (uid, gid);
        self
    }

    /// Permission bits of the root directory: 0o755 by default.
    pub fn root_mode(mut self, mode: u32) -> CreateImage {
        self.options.permissions = mode;
        self
    }

    /// Makes the image in a new or empty file, and opens it for shared use. All blocks are reserved
    /// at once. A failure removes the file if this call created it.
    ///
    /// # Errors
    /// EEXIST: the file is not empty; EINVAL: the size is missing or too small, or the label too
    /// long; ENOSPC; EBUSY: the image is in use; and the errors of creating a file.
    pub fn create(&self) -> Result<Image> {
        above_standard(|| image::make(&self.path, &self.options))?;
        Image::open(&self.path)
    }
}
