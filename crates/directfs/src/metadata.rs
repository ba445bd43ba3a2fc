//! What the file system knows of a file, and of itself.

use engine::Attributes;
use engine::format::FileKind;
use posix::{FileSystemStatus, TimeToSet};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe, which only programs under `directfs run` and mounts can use.
    Fifo,
    /// A bound socket, as above.
    Socket,
    /// A character device, as above.
    CharacterDevice,
    /// A block device, as above.
    BlockDevice,
}

impl FileType {
    /// Whether it is a regular file.
    pub fn is_file(self) -> bool {
        self == FileType::File
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self == FileType::Directory
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }
}

impl From<FileKind> for FileType {
    fn from(kind: FileKind) -> FileType {
        match kind {
            FileKind::Regular => FileType::File,
            FileKind::Directory => FileType::Directory,
            FileKind::Symlink => FileType::Symlink,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::Character => FileType::CharacterDevice,
            FileKind::Block => FileType::BlockDevice,
        }
    }
}

/// Attributes of a file at one moment.
#[derive(Debug, Clone)]
pub struct Metadata(Attributes);

impl Metadata {
    pub(crate) fn new(attributes: Attributes) -> Metadata {
        Metadata(attributes)
    }

    /// The kind of file.
    pub fn file_type(&self) -> FileType {
        self.0.kind.into()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a symbolic link, which only [`FileSystem::symlink_metadata`] returns.
    ///
    /// [`FileSystem::symlink_metadata`]: crate::FileSystem::symlink_metadata
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Length in bytes; of a symbolic link that of its target's path.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.size_bytes
    }

    /// Type and permission bits, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// The permission bits.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode)
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// The inode number. Another file may get it after this one was removed.
    pub fn ino(&self) -> u64 {
        self.0.number
    }

    /// The device number of a device file (as in `st_rdev`), otherwise zero.
    pub fn rdev(&self) -> u64 {
        u64::from(self.0.device)
    }

    /// Number of names; of a directory 2 plus the number of its subdirectories.
    pub fn nlink(&self) -> u64 {
        u64::from(self.0.links)
    }

    /// Bytes of the image that the content takes: a multiple of 4,096, or zero for a hole.
    pub fn allocated_bytes(&self) -> u64 {
        self.0.blocks * pmem::BLOCK_BYTES
    }

    /// The last read, updated as rarely as with the mount option relatime.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.accessed_ns)
    }

    /// The last change of the content, or of a directory's names. Resolution is the kernel's tick
    /// (1 to 10 ms).
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.modified_ns)
    }

    /// The last change of content or attributes, as above.
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.changed_ns)
    }
}

pub(crate) fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to set; `None` leaves it unchanged. EINVAL outside of the years 1678 to 2262.
fn time_to_set(time: Option<SystemTime>) -> posix::Result<TimeToSet> {
    let Some(time) = time else { return Ok(TimeToSet::Omit) };
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()),
        Err(before) => i64::try_from(before.duration().as_nanos()).map(|ns| -ns),
    };
    ns.map(TimeToSet::At).map_err(|_| posix::Errno::EINVAL)
}

/// Permission bits (0o7777), under the names of [`std::fs::Permissions`], which converts into it.
///
/// ```
/// # use std::os::unix::fs::PermissionsExt;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fs = directfs::Image::in_memory(16 << 20)?.file_system();
/// fs.write("key", "secret")?;
/// fs.set_permissions("key", 0o600)?;
/// fs.set_permissions("key", std::fs::Permissions::from_mode(0o400))?;
/// assert!(fs.metadata("key")?.permissions().readonly());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(u32);

impl Permissions {
    /// Permissions of these bits; others are ignored.
    pub fn from_mode(mode: u32) -> Permissions {
        Permissions(mode & 0o7777)
    }

    /// The bits, without the type of the file, which [`std::fs::Permissions`] includes.
    pub fn mode(self) -> u32 {
        self.0
    }

    /// Sets the bits; others are ignored.
    pub fn set_mode(&mut self, mode: u32) {
        *self = Permissions::from_mode(mode);
    }

    /// Whether the right to write is missing for all.
    pub fn readonly(self) -> bool {
        self.0 & 0o222 == 0
    }

    /// Takes the right to write from all, or gives it to all.
    pub fn set_readonly(&mut self, readonly: bool) {
        self.0 = if readonly { self.0 & !0o222 } else { self.0 | 0o222 };
    }
}

impl From<u32> for Permissions {
    fn from(mode: u32) -> Permissions {
        Permissions::from_mode(mode)
    }
}

impl From<std::fs::Permissions> for Permissions {
    fn from(permissions: std::fs::Permissions) -> Permissions {
        Permissions::from_mode(permissions.mode())
    }
}

/// Times to set, under the names of [`std::fs::FileTimes`]. What is not set stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Sets nothing.
    pub fn new() -> FileTimes {
        FileTimes::default()
    }

    /// The time of the last access.
    pub fn set_accessed(self, accessed: SystemTime) -> FileTimes {
        FileTimes { accessed: Some(accessed), ..self }
    }

    /// The time of the last change of the content.
    pub fn set_modified(self, modified: SystemTime) -> FileTimes {
        FileTimes { modified: Some(modified), ..self }
    }

    /// Access and modification as the file system takes them.
    pub(crate) fn to_set(self) -> posix::Result<(TimeToSet, TimeToSet)> {
        Ok((time_to_set(self.accessed)?, time_to_set(self.modified)?))
    }
}

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Space {
    /// Bytes for content and names.
    pub total_bytes: u64,
    /// Free bytes. Removed files return their space with a delay.
    pub free_bytes: u64,
    /// Free bytes that one new file of any user can hold: without what is reserved for root
    /// (`directfs tune --reserved`).
    pub available_bytes: u64,
    /// Number of files of all kinds that the image can hold.
    pub files: u64,
    /// Number of files that can still be created.
    pub files_free: u64,
}

impl From<FileSystemStatus> for Space {
    fn from(status: FileSystemStatus) -> Space {
        Space {
            total_bytes: status.blocks * status.block_bytes,
            free_bytes: status.blocks_free * status.block_bytes,
            available_bytes: status.blocks_available * status.block_bytes,
            files: status.files,
            files_free: status.files_free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_out_of_range() {
        let early = UNIX_EPOCH - Duration::from_nanos(1_500_000_000);
        assert_eq!(time_to_set(Some(early)), Ok(TimeToSet::At(-1_500_000_000)));
        assert_eq!(system_time(-1_500_000_000), early);
        let late = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(time_to_set(Some(late)), Err(posix::Errno::EINVAL));
    }
}
