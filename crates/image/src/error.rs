//! Errors of making and opening images. Each message names cause, effect and remedy.

use engine::format::SuperblockError;
use journal::{DiskError, JournalError};
use pmem::{Loss, MapError};
use std::io;
use std::path::PathBuf;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file cannot be opened or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The content is not a usable image.
    #[error("{}: {cause}", path.display())]
    NotUsable {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        cause: SuperblockError,
    },
    /// Another process uses the image and does not share it.
    #[error(
        "{} is in use by a process that does not share it (a mount with its own cache, a run with --read-only or --discard, mkfs or fsck): end that process first (unmount it; \
         `fuser -v {}` names it), or mount with -o cache=0, which shares",
        path.display(), path.display()
    )]
    InUse {
        /// The image.
        path: PathBuf,
    },
    /// A copy of the image was requested, and processes write it meanwhile.
    #[error(
        "{} is being written by other processes, and a run that is discarded needs a state at rest: end them first (`fuser -v {}` lists \
         them), or run on a copy (`directfs snapshot`)",
        path.display(), path.display()
    )]
    Written {
        /// The image.
        path: PathBuf,
    },
    /// The last use left changes in memory, and the disk has no space for them.
    #[error(
        "the disk of {} is full, and the last use left changes in memory that must be written there first: free space on the disk \
         and try again; until then the image can be read (`run --read-only`), and `directfs ps --left` can give the changes up",
        path.display()
    )]
    DiskFull {
        /// The image.
        path: PathBuf,
    },
    /// A snapshot stood still while programs filled the journal.
    #[error(
        "the snapshot of {} was stopped, or very slow, while programs wrote more than the journal holds, which then went to \
         the image; nothing was copied: take it again",
        path.display()
    )]
    Overtaken {
        /// The image.
        path: PathBuf,
    },
    /// Another process copies the image, and makes no progress.
    #[error(
        "another process takes a snapshot of {}, which has stood still for 5 s: end it first (`fuser -v {}` lists it)",
        path.display(), path.display()
    )]
    CopyStopped {
        /// The image.
        path: PathBuf,
    },
    /// Exclusive use was requested, and other processes use the image.
    #[error(
        "{} is in use by other processes, and exclusive use was requested: end them first (`fuser -v {}` lists them), or share it \
         (mount with -o cache=0)",
        path.display(), path.display()
    )]
    NotExclusive {
        /// The image.
        path: PathBuf,
    },
    /// Another process attaches, recovers, copies or detaches, for longer than the timeout.
    #[error("another process attaches, recovers, copies or detaches {} and takes long: try again", path.display())]
    Changing {
        /// The image.
        path: PathBuf,
    },
    /// The image is in use, and the shared memory of its users cannot be reached.
    #[error(
        "{} is in use by processes whose shared memory ({}) cannot be reached: {reason}; end them first, or run in their \
         container and as a user with permission to write the image",
        path.display(), dram.display()
    )]
    CannotShare {
        /// The image.
        path: PathBuf,
        /// The DRAM region's file.
        dram: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file that an earlier process left behind is in the way.
    #[error(
        "{} was left behind by a process that ended, and cannot be removed: {source}; have its owner remove it",
        path.display()
    )]
    Stale {
        /// The DRAM region's file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The DRAM region's file cannot be created.
    #[error(
        "cannot create {}: {source}; the users of an image share memory there, so each of them needs permission to create files in that directory (/dev/shm \
         usually has mode 1777)",
        path.display()
    )]
    NoShared {
        /// The DRAM region's file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The limit on open files leaves none for the image's lock or the DRAM region.
    #[error(
        "{}: {source}; a process may have only {limit} open files here: raise that limit (ulimit -n 1024)",
        path.display()
    )]
    NoDescriptors {
        /// The image, or the DRAM region's file.
        path: PathBuf,
        /// Descriptors that the process may have.
        limit: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// Too little space for the DRAM region.
    #[error(
        "{} is too full: it has {available} bytes free, and the image needs more shared memory there; free space, enlarge \
         it (mount -o remount,size=...; with containers --shm-size), or open the image exclusively",
        path.display()
    )]
    NoDram {
        /// The directory.
        path: PathBuf,
        /// Free bytes.
        available: u64,
    },
    /// Too little memory for the working copy of an image on a disk.
    #[error(
        "{} is on a disk, so its processes work on a copy: in {}, which has {available} bytes free and needs about {needed}; or beside \
         the image, where it cannot be made ({source}). Enlarge the first (mount -o remount,size=...; with containers --shm-size), \
         let this user write the image's directory, or use the image in place with --no-commit, where a power failure may destroy it",
        path.display(), directory.display()
    )]
    NoWorkingCopy {
        /// The image.
        path: PathBuf,
        /// The directory of the copy.
        directory: PathBuf,
        /// Free bytes.
        available: u64,
        /// Bytes needed at least.
        needed: u64,
        /// Why there is none beside the image.
        source: io::Error,
    },
    /// Too little space on the image's disk for a working copy beside it.
    #[error(
        "the disk of {} has no space for the copy on which programs work, about {needed} bytes: free some, let the copy take more \
         memory (--memory), or use the image in place with --no-commit, where a power failure may destroy it",
        path.display()
    )]
    NoScratch {
        /// The image.
        path: PathBuf,
        /// Bytes needed at least.
        needed: u64,
    },
    /// The journal of an image on a disk cannot be used.
    #[error("the journal of {}: {}", path.display(), super::working::describe(cause))]
    Journal {
        /// The image.
        path: PathBuf,
        /// Why.
        cause: JournalError,
    },
    /// The operation needs commits, which the image does not have.
    #[error(
        "{} has no commits, because it is not on a disk or is used with --no-commit: its changes cannot be held back",
        path.display()
    )]
    NoCommits {
        /// The image.
        path: PathBuf,
    },
    /// The file cannot have holes.
    #[error(
        "{} cannot give space back: it is a device, or on a file system that cannot free parts of files; copy it to another file \
         (`directfs snapshot`), which takes only what is used",
        path.display()
    )]
    NoHoles {
        /// The image.
        path: PathBuf,
    },
    /// A block device is mounted, or in exclusive use in another way.
    #[error(
        "{} is used by the kernel or by a program that shares it with nobody (a mounted file system, LVM, RAID, swap): end that use \
         first (`lsblk {}` shows it)",
        path.display(), path.display()
    )]
    Claimed {
        /// The device.
        path: PathBuf,
    },
    /// A block device is too small for an image of that size and its journal.
    #[error(
        "{} has room for an image of {most} bytes, and {wanted} were requested: commits need as much again behind the image; choose at \
         most that, or make the device larger first (lvextend, or what manages it)",
        path.display()
    )]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// Bytes that were requested.
        wanted: u64,
        /// The most bytes of an image there.
        most: u64,
    },
    /// A device has its own size.
    #[error("{} is a device, which has its own size: make a new image there (`directfs mkfs --force`) after its size changed", path.display())]
    DeviceSize {
        /// The image.
        path: PathBuf,
    },
    /// Files of the image have blocks behind the wanted end.
    #[error(
        "{} cannot have {wanted} bytes: what it holds, where it lies now, needs {least}; choose at least that, or make a smaller image and \
         copy the files to it (`directfs export` and `import`)",
        path.display()
    )]
    DoesNotFit {
        /// The image.
        path: PathBuf,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that are possible.
        least: u64,
    },
    /// An image is used in a way in which its size cannot change.
    #[error(
        "{} is in use on a device, or in place on a disk (--no-commit), or as a whole (--atomic), and its size cannot change \
         meanwhile: end its processes first (`fuser -v {}` lists them; directfs umount DIR)",
        path.display(), path.display()
    )]
    GrowsUnused {
        /// The image.
        path: PathBuf,
    },
    /// An image in use cannot shrink.
    #[error(
        "{} is in use and can only grow meanwhile: end its processes first (`fuser -v {}` lists them; directfs umount DIR)",
        path.display(), path.display()
    )]
    ShrinksUnused {
        /// The image.
        path: PathBuf,
    },
    /// An image in use has no addresses for the wanted size.
    #[error(
        "{} can have at most {most} bytes while it is in use, because {reason}: choose at most that, or end its processes first \
         (`fuser -v {}` lists them)",
        path.display(), path.display()
    )]
    BeyondCapacity {
        /// The image.
        path: PathBuf,
        /// Bytes that it can get.
        most: u64,
        /// Why.
        reason: &'static str,
    },
    /// The growth is less than what its bookkeeping needs.
    #[error("{} has {now} bytes, and the wanted size gives files no block more: choose a larger one", path.display())]
    GrowthTooSmall {
        /// The image.
        path: PathBuf,
        /// Its bytes.
        now: u64,
    },
    /// Root would have most of the image.
    #[error("{} cannot reserve so much for root: choose at most {most} bytes, half of what files can have", path.display())]
    ReserveTooLarge {
        /// The image.
        path: PathBuf,
        /// Bytes that are possible.
        most: u64,
    },
    /// An image on a disk is used in place.
    #[error(
        "{} is used in place (--no-commit), so its file cannot be trimmed safely now: trim it when no process uses it",
        path.display()
    )]
    TrimInPlace {
        /// The image.
        path: PathBuf,
    },
    /// The lock request failed.
    #[error("cannot lock {}: {source}; use a file system that supports locks (some network file systems do not)", path.display())]
    Lock {
        /// The image.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file exists and is not empty.
    #[error("{} holds {what}: choose another name, or overwrite it with --force", path.display())]
    WouldOverwrite {
        /// The file.
        path: PathBuf,
        /// Its content.
        what: String,
    },
    /// Too little space for the image.
    #[error(
        "{} needs {needed} bytes and {available} are free: free space or make a smaller image; --sparse allocates blocks only as \
         they are used",
        path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Free bytes.
        available: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The watch function stopped the operation.
    #[error("{} was not made, because the operation was stopped: run it again", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// A size below the minimum.
    #[error("an image of {length} bytes is too small: the minimum is {least} bytes; choose a larger size")]
    Size {
        /// Requested bytes.
        length: u64,
        /// The minimum.
        least: u64,
    },
    /// A label that is too long.
    #[error("the label has {length} bytes, and the limit is 64: choose a shorter one")]
    Label {
        /// Its bytes.
        length: usize,
    },
    /// An operation on the file failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file was truncated while in use.
    #[error(
        "{} was truncated while in use, or its device was removed: the data behind its new end is lost, and the image is not clean; \
         restore a whole copy, or enable the device, and do not truncate images that are in use",
        path.display()
    )]
    Truncated {
        /// The image.
        path: PathBuf,
    },
    /// The memory of the image has an error.
    #[error("{} {}: the image is not clean; {}", path.display(), Loss::MemoryError.description(), Loss::MemoryError.remedy())]
    MemoryError {
        /// The image.
        path: PathBuf,
    },
    /// A part of the image cannot be copied, because its memory has an error.
    #[error(
        "cannot copy {}: it has a memory error (bad blocks: `ndctl list -M`); remove the files that `directfs fsck -n` lists and \
         clear the bad blocks (`ndctl clear-errors`), or use `directfs export`, which goes on with all other files",
        path.display()
    )]
    LostContent {
        /// The image.
        path: PathBuf,
    },
    /// The engine's error.
    #[error("{}: {source}", path.display())]
    Engine {
        /// The image.
        path: PathBuf,
        /// Why.
        source: engine::Error,
    },
}

impl ImageError {
    /// Why the disk refuses the journal. `None` for other errors, and if the journal is at fault.
    pub fn errno_of_disk(&self) -> Option<i32> {
        match self {
            ImageError::Journal { cause: JournalError::Disk(DiskError(errno)), .. } => Some(*errno),
            _ => None,
        }
    }

    /// The DRAM region's file, or its directory, cannot be created.
    pub(super) fn no_shared(path: &std::path::Path, source: io::Error) -> ImageError {
        ImageError::without_descriptors(path, source)
            .unwrap_or_else(|source| ImageError::NoShared { path: path.to_owned(), source })
    }

    /// The error if the limit on open files is its reason.
    pub(super) fn without_descriptors(path: &std::path::Path, source: io::Error) -> Result<ImageError, io::Error> {
        if source.raw_os_error() != Some(libc::EMFILE) {
            return Err(source);
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(ImageError::NoDescriptors { path: path.to_owned(), limit, source })
    }

    /// This error about another path: of a file that has no name yet.
    pub(super) fn with_path(self, unnamed: &std::path::Path, named: &std::path::Path) -> ImageError {
        match self {
            ImageError::NoSpace { path, available, needed } if path == unnamed => {
                ImageError::NoSpace { path: named.to_owned(), available, needed }
            }
            ImageError::Stopped { path } if path == unnamed => ImageError::Stopped { path: named.to_owned() },
            ImageError::File { action, path, source } if path == unnamed => {
                ImageError::File { action, path: named.to_owned(), source }
            }
            ImageError::Engine { path, source } if path == unnamed => {
                ImageError::Engine { path: named.to_owned(), source }
            }
            other => other,
        }
    }
}
