//! Calls by path: the interface of experiments, so that one experiment runs over every system.

use engine::Attributes;
use posix::Result;

/// An open file, valid in the session that opened it.
pub type Handle = u32;

/// A mounted file system. Threads use it concurrently, each through its own session.
pub trait System: Sync {
    /// A thread's session.
    type Session<'s>: Calls
    where
        Self: 's;

    /// Opens a session for the calling thread.
    fn session(&self) -> Result<Self::Session<'_>>;
}

/// The calls of a program, by path, in this process. Paths begin with `/` at the root of the file
/// system. The caller is root unless the implementation says otherwise.
pub trait Calls {
    /// Opens a file, with the flags of open(2).
    fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<Handle>;
    /// Closes a file.
    fn close(&self, file: Handle) -> Result<()>;
    /// Reads at an offset.
    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Writes at an offset.
    fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<usize>;
    /// Appends.
    fn append(&self, file: Handle, bytes: &[u8]) -> Result<usize>;
    /// Sets the length.
    fn truncate(&self, file: Handle, length: u64) -> Result<()>;
    /// Makes a file's changes durable.
    fn sync_file(&self, file: Handle) -> Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// Attributes of a file; symbolic links are followed.
    fn stat(&self, path: &[u8]) -> Result<Attributes>;
    /// Attributes of a file; a final symbolic link is not followed.
    fn stat_link(&self, path: &[u8]) -> Result<Attributes>;
    /// Checks access by the bits of access(2).
    fn access(&self, path: &[u8], mode: u32) -> Result<()>;
    /// Creates a directory.
    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()>;
    /// Removes a file's name.
    fn unlink(&self, path: &[u8]) -> Result<()>;
    /// Removes a directory.
    fn rmdir(&self, path: &[u8]) -> Result<()>;
    /// Renames, with the flags of renameat2(2).
    fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()>;
    /// Creates a hard link; a final symbolic link is not followed.
    fn link(&self, from: &[u8], to: &[u8]) -> Result<()>;
    /// Creates a symbolic link.
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()>;
    /// Reads the target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Changes permissions.
    fn chmod(&self, path: &[u8], mode: u32) -> Result<()>;
    /// Visits the names of a directory with their inode numbers, without `.` and `..`.
    fn read_directory(&self, path: &[u8], visit: &mut dyn FnMut(&[u8], u64)) -> Result<()>;
    /// The path of a directory, found as getcwd finds it.
    fn path_of(&self, directory: &[u8]) -> Result<Vec<u8>>;
    /// Drops all cached names and attributes that are not in use, as before a cold start.
    fn drop_caches(&self) -> Result<()>;

    /// Creates an empty file that must not exist, like `open` with O_CREAT and O_EXCL followed by
    /// `close`.
    fn create(&self, path: &[u8], mode: u32) -> Result<()> {
        let file = self.open(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, mode)?;
        self.close(file)
    }
}

/// The VFS layers keep no per-thread state: the layer itself is every thread's session.
impl<C: Calls + ?Sized> Calls for &C {
    fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<Handle> {
        (**self).open(path, flags, mode)
    }
    fn close(&self, file: Handle) -> Result<()> {
        (**self).close(file)
    }
    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        (**self).read(file, offset, into)
    }
    fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        (**self).write(file, offset, bytes)
    }
    fn append(&self, file: Handle, bytes: &[u8]) -> Result<usize> {
        (**self).append(file, bytes)
    }
    fn truncate(&self, file: Handle, length: u64) -> Result<()> {
        (**self).truncate(file, length)
    }
    fn sync_file(&self, file: Handle) -> Result<()> {
        (**self).sync_file(file)
    }
    fn sync(&self) -> Result<()> {
        (**self).sync()
    }
    fn stat(&self, path: &[u8]) -> Result<Attributes> {
        (**self).stat(path)
    }
    fn stat_link(&self, path: &[u8]) -> Result<Attributes> {
        (**self).stat_link(path)
    }
    fn access(&self, path: &[u8], mode: u32) -> Result<()> {
        (**self).access(path, mode)
    }
    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        (**self).mkdir(path, mode)
    }
    fn unlink(&self, path: &[u8]) -> Result<()> {
        (**self).unlink(path)
    }
    fn rmdir(&self, path: &[u8]) -> Result<()> {
        (**self).rmdir(path)
    }
    fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        (**self).rename(from, to, flags)
    }
    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        (**self).link(from, to)
    }
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        (**self).symlink(target, path)
    }
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        (**self).read_link(path)
    }
    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        (**self).chmod(path, mode)
    }
    fn read_directory(&self, path: &[u8], visit: &mut dyn FnMut(&[u8], u64)) -> Result<()> {
        (**self).read_directory(path, visit)
    }
    fn path_of(&self, directory: &[u8]) -> Result<Vec<u8>> {
        (**self).path_of(directory)
    }
    fn drop_caches(&self) -> Result<()> {
        (**self).drop_caches()
    }
}
