//! Errors, by cause. Programs see [`Error::errno`]; users see the text.

use crate::format::SuperblockError;
use core::fmt;
use pmem::{BadOffset, LoadError};

/// The engine's results.
pub type Result<T> = core::result::Result<T, Error>;

/// Damage that was found in an image or a DRAM region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corruption {
    /// An offset leads outside or is misaligned.
    Offset(BadOffset),
    /// An inode's identity or both of its property entries do not verify.
    Inode(u64),
    /// A dentry is inconsistent.
    Dentry(u64),
    /// A log page does not belong to the directory that links to it, or the chain does not end.
    LogPage(u64),
    /// A block map leads outside, or has an impossible height.
    BlockMap(u64),
    /// An extended attribute body does not parse.
    Xattrs(u64),
    /// A directory's parents do not lead to the root.
    Parents(u64),
}

/// Why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// No such name, or the inode is gone.
    NotFound,
    /// The name is taken.
    Exists,
    /// Not a directory.
    NotADirectory,
    /// A directory where none is allowed.
    IsADirectory,
    /// The directory has names in it.
    NotEmpty,
    /// The name is longer than 255 bytes.
    NameTooLong,
    /// The name is empty, or contains a slash or a zero byte; or another argument is invalid.
    Invalid,
    /// No blocks left.
    NoSpace,
    /// No inodes left.
    NoInodes,
    /// The DRAM region is full and nothing can be evicted.
    NoMemory,
    /// All thread slots are taken.
    TooManyThreads,
    /// The DRAM region belongs to another file: a copy of the image, or an earlier file at its
    /// path.
    OtherImage,
    /// The kernel refused the descriptor or the lock by which other processes know that this one
    /// lives.
    Liveness,
    /// More links than an inode may have.
    TooManyLinks,
    /// A directory would become its own ancestor.
    Loop,
    /// The file would exceed the maximum length.
    TooLarge,
    /// The image is attached read-only.
    ReadOnly,
    /// No such extended attribute.
    NoAttribute,
    /// The buffer is too small; the value is the number of bytes needed.
    TooSmall(usize),
    /// The value exceeds the maximum length of an extended attribute's value.
    TooBig,
    /// Not supported for this kind of file, or not at all.
    NotSupported,
    /// The memory that has the content of the file has an error there.
    ContentLost,
    /// The disk with the image's file failed, with an errno.
    Disk(i32),
    /// The caller's check refused, with an errno.
    Refused(i32),
    /// Another operation holds the object for longer than this operation may wait.
    Busy,
    /// A signal ended the wait for another operation. Nothing has changed.
    Interrupted,
    /// No data or hole at or after the offset.
    NoSuchExtent,
    /// The image is damaged; see `directfs fsck`.
    Corrupt(Corruption),
    /// The image was not left clean, and a read-only attach cannot recover it.
    NeedsRecovery,
    /// The image cannot be used at all.
    Superblock(SuperblockError),
}

impl From<BadOffset> for Error {
    #[cold]
    fn from(bad: BadOffset) -> Error {
        Error::Corrupt(Corruption::Offset(bad))
    }
}

impl From<LoadError> for Error {
    #[cold]
    fn from(error: LoadError) -> Error {
        match error {
            LoadError::Offset(bad) => bad.into(),
            LoadError::NoRoom => Error::NoSpace,
            LoadError::Disk(errno) => Error::Disk(errno),
            LoadError::Lost => Error::ContentLost,
        }
    }
}

impl From<Corruption> for Error {
    #[cold]
    fn from(corruption: Corruption) -> Error {
        Error::Corrupt(corruption)
    }
}

impl Error {
    /// The errno for programs (Linux, x86-64).
    pub fn errno(self) -> i32 {
        match self {
            Error::NotFound => 2,
            Error::Exists => 17,
            Error::NotADirectory => 20,
            Error::IsADirectory => 21,
            Error::NotEmpty => 39,
            Error::NameTooLong => 36,
            Error::Invalid => 22,
            Error::NoSpace | Error::NoInodes => 28,
            Error::NoMemory => 12,
            Error::TooManyThreads => 11,
            Error::TooManyLinks => 31,
            Error::Loop => 22,
            Error::TooLarge => 27,
            Error::ReadOnly | Error::NeedsRecovery => 30,
            Error::NoAttribute => 61,
            Error::TooSmall(_) => 34,
            Error::TooBig => 7,
            Error::NotSupported => 95,
            Error::Refused(errno) | Error::Disk(errno) => errno,
            Error::ContentLost => 5,
            Error::Busy => 16,
            Error::Interrupted => 4,
            Error::NoSuchExtent => 6,
            Error::Liveness => 37,
            Error::OtherImage => 116,
            Error::Corrupt(_) => 117,
            Error::Superblock(_) => 22,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound => write!(f, "no such file or directory"),
            Error::Exists => write!(f, "the name exists"),
            Error::NotADirectory => write!(f, "not a directory"),
            Error::IsADirectory => write!(f, "is a directory"),
            Error::NotEmpty => write!(f, "the directory is not empty"),
            Error::NameTooLong => write!(f, "the name is longer than 255 bytes; choose a shorter one"),
            Error::Invalid => write!(f, "invalid argument"),
            Error::NoSpace => write!(f, "no space left on the image; remove files or make a larger image"),
            Error::NoInodes => {
                write!(f, "no inodes left on the image; remove files or make an image with more (mkfs --inodes)")
            }
            Error::NoMemory => write!(f, "the DRAM region is full; attach with a larger one"),
            Error::TooManyThreads => write!(f, "too many threads use the file system at once; retry later"),
            Error::Liveness => write!(
                f,
                "the kernel refused the descriptor or the lock by which other processes know that this one lives: raise the \
                 limit on open files (ulimit -n) or on locks"
            ),
            Error::OtherImage => write!(f, "the shared memory belongs to another image file"),
            Error::TooManyLinks => write!(f, "too many links"),
            Error::Loop => write!(f, "a directory cannot be moved into itself"),
            Error::TooLarge => write!(f, "the file would exceed the maximum length"),
            Error::ReadOnly => write!(f, "the image is attached read-only"),
            Error::NoAttribute => write!(f, "no such extended attribute"),
            Error::TooSmall(needed) => write!(f, "the buffer is too small, {needed} bytes are needed"),
            Error::TooBig => write!(f, "the value of an extended attribute may have at most 64 KiB"),
            Error::NotSupported => write!(f, "not supported"),
            Error::Refused(errno) => write!(f, "refused (errno {errno})"),
            Error::ContentLost => {
                write!(
                    f,
                    "the memory has an error there (bad blocks); `directfs fsck` lists the files with lost content"
                )
            }
            Error::Disk(errno) => write!(f, "the disk with the image's file failed (errno {errno}); check the disk"),
            Error::Busy => write!(f, "busy; retry later"),
            Error::Interrupted => write!(f, "interrupted by a signal while waiting for another operation"),
            Error::NoSuchExtent => write!(f, "no data or hole there"),
            Error::Corrupt(what) => write!(f, "the image is damaged ({what:?}); check it with `directfs fsck`"),
            Error::NeedsRecovery => {
                write!(
                    f,
                    "the image was not left cleanly; attach it read-write once to recover it, or check it with `directfs fsck -n`"
                )
            }
            Error::Superblock(why) => write!(f, "{why}"),
        }
    }
}

impl core::error::Error for Error {}
