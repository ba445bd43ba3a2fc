//! What can go wrong when an image is made or opened: each says what is the matter and what to do.

use engine::format::SuperblockError;
use pmem::MapError;
use std::io;
use std::path::PathBuf;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file cannot be opened or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// What is in it is not a usable image.
    #[error("{}: {cause}", path.display())]
    NotUsable {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        cause: SuperblockError,
    },
    /// Others use it and do not share.
    #[error(
        "{} is in use by a process that does not share it (a mount with its own cache, mkfs or fsck): end that first (unmount it; \
         `fuser -v {}` tells who it is), or mount with -o cache=0, which shares",
        path.display(), path.display()
    )]
    InUse {
        /// The image.
        path: PathBuf,
    },
    /// It was to be used alone, and others use it.
    #[error(
        "{} is in use by other processes and was to be used alone: end them first (`fuser -v {}` tells who they are), or share it \
         (mount with -o cache=0)",
        path.display(), path.display()
    )]
    NotExclusive {
        /// The image.
        path: PathBuf,
    },
    /// Somebody is attaching, recovering or detaching, for longer than one waits.
    #[error("{} is just being attached, recovered or left by another process, which takes long: try again", path.display())]
    Changing {
        /// The image.
        path: PathBuf,
    },
    /// Others use it, and what they share cannot be reached from here.
    #[error(
        "{} is in use by processes whose shared memory ({}) cannot be reached from here: {reason}; end them first, or run in their \
         container and as a user who may write the image",
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
    /// What an earlier process left behind is in the way.
    #[error(
        "{} was left behind by a process that ended, and cannot be removed: {source}; have its owner remove it",
        path.display()
    )]
    Stale {
        /// The DRAM region's file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The DRAM region's file cannot be made.
    #[error(
        "cannot make {}: {source}; what the users of an image share is there, so each of them must be able to make files in that directory (/dev/shm \
         usually has mode 1777)",
        path.display()
    )]
    NoShared {
        /// The DRAM region's file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No room for the DRAM region.
    #[error(
        "{} has {available} bytes free, and the image needs about {needed} bytes of shared memory there: make it larger (mount -o \
         remount,size=...; with containers --shm-size), or use the image alone",
        path.display()
    )]
    NoDram {
        /// The directory.
        path: PathBuf,
        /// What is free.
        available: u64,
        /// What is needed at least.
        needed: u64,
    },
    /// A lock could not be asked for.
    #[error("cannot lock {}: {source}; use a file system that has locks (not every network file system does)", path.display())]
    Lock {
        /// The image.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is there and holds something.
    #[error("{} holds {what}: choose another name, or overwrite it with --force", path.display())]
    WouldOverwrite {
        /// The file.
        path: PathBuf,
        /// What is in it.
        what: String,
    },
    /// The image does not fit where it is to be.
    #[error(
        "there are {available} bytes free for {} and the image needs {needed}: make room or a smaller image; --sparse takes blocks only as \
         they are used, at the price that running out of them ends the programs that use the image",
        path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// What is free.
        available: u64,
        /// What is needed.
        needed: u64,
    },
    /// Whoever wanted it made thought better of it.
    #[error("{} is not made: that was stopped; make it again when it is wanted", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// A size that no image has.
    #[error("an image of {length} bytes is not possible: it has at least {least} bytes; choose a larger size")]
    Size {
        /// What was asked for.
        length: u64,
        /// The least.
        least: u64,
    },
    /// A label that does not fit.
    #[error("the label has {length} bytes, and there is room for 64: choose a shorter one")]
    Label {
        /// Its bytes.
        length: usize,
    },
    /// Something about the file went wrong.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file became shorter.
    #[error(
        "{} became shorter while it was in use: what was behind its new end is lost, and it is not left clean; bring back a whole copy of it, and do not \
         truncate images that are in use",
        path.display()
    )]
    Truncated {
        /// The image.
        path: PathBuf,
    },
    /// The engine refused.
    #[error("{}: {source}", path.display())]
    Engine {
        /// The image.
        path: PathBuf,
        /// Why.
        source: engine::Error,
    },
}
