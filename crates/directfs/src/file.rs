//! Open files.

use crate::attributes::{SetXattr, list_attributes, read_attribute};
use crate::classes::class_of;
use crate::error::{Error, Result};
use crate::metadata::system_time;
use crate::session::{Inside, OpenNumber};
use crate::view::View;
use crate::{Credentials, FileTimes, Metadata, Permissions, UserBytes, UserBytesMut};
use engine::statistics::CallClass;
use engine::{Node, SeekWhat};
use posix::{Caller, Errno, Scope, TimeToSet, Whence};
use std::ffi::{OsStr, OsString};
use std::fs::TryLockError;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Bound, RangeBounds};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tables::process::{Blocked, InFlightFile, LockKind, LockRange, Locked};

/// How to open a file. The methods mean the same as those of [`std::fs::OpenOptions`].
///
/// # Errors
/// Opening fails with EINVAL for combinations that the standard library rejects, too: no access at
/// all, `truncate` or `create` without write access, `truncate` with `append`.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: Option<u32>,
}

impl OpenOptions {
    /// No access.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Read access.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Write access.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Write access, and every write goes to the end of the file, also of those that other
    /// processes extend at the same time.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Empty an existing file.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Create the file if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Create the file; EEXIST if the name is taken, also by a symbolic link. `create` and
    /// `truncate` then have no effect.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a created file, which the umask reduces: 0o666 by default.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = Some(mode);
        self
    }

    pub(crate) fn mode_bits(&self) -> u32 {
        self.mode.unwrap_or(0o666) & 0o7777
    }

    pub(crate) fn flags(&self) -> posix::Result<i32> {
        let writes = self.write || self.append;
        let access = match (self.read, writes) {
            (true, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (true, true) => libc::O_RDWR,
            (false, false) => return Err(Errno::EINVAL),
        };
        let changes = self.truncate || self.create || self.create_new;
        if changes && !writes || self.append && self.truncate && !self.create_new {
            return Err(Errno::EINVAL);
        }
        let creation = match (self.create, self.truncate, self.create_new) {
            (_, _, true) => libc::O_CREAT | libc::O_EXCL,
            (create, truncate, false) => {
                (if create { libc::O_CREAT } else { 0 }) | if truncate { libc::O_TRUNC } else { 0 }
            }
        };
        Ok(access | creation | if self.append { libc::O_APPEND } else { 0 })
    }
}

/// An open file. Dropping it closes it, and releases its lock.
///
/// Threads may use one file at the same time. [`Read`], [`Write`] and [`Seek`], also of `&File`,
/// work at a position that all of them share, and that a clone shares, too.
///
/// # Durability
/// A write of any length is atomic, and durable when it returns, as [`Durability`] says. So is
/// [`set_len`](File::set_len). Nothing is buffered in the process, and [`Write::flush`] does
/// nothing. (A file that a program under `directfs run` maps as shared is changed in place, without
/// atomicity.)
///
/// [`Durability`]: crate::Durability
pub struct File {
    number: OpenNumber,
    path: Box<Path>,
    credentials: Credentials,
}

/// What is locked.
#[derive(Clone, Copy)]
enum LockOf {
    File,
    Range(LockRange),
}

fn kind_of(exclusive: bool) -> LockKind {
    if exclusive { LockKind::Exclusive } else { LockKind::Shared }
}

/// A lock of a range of bytes, of [`File::range_conflict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedRange {
    /// The first byte.
    pub start: u64,
    /// The byte after the last one; `None` if it covers all that the file will have.
    pub end: Option<u64>,
    /// Whether it excludes all other locks.
    pub exclusive: bool,
}

/// EINVAL for an offset above 2^63 - 1.
pub(crate) fn offset(offset: u64) -> posix::Result<i64> {
    i64::try_from(offset).map_err(|_| Errno::EINVAL)
}

impl File {
    pub(crate) fn new(number: OpenNumber, path: &Path, credentials: Credentials) -> File {
        File { number, path: path.into(), credentials }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.number()
    }

    fn call<T>(
        &self,
        operation: &'static str,
        mut call: impl FnMut(&Caller<'_, 'static>, &InFlightFile<'_, 'static>) -> posix::Result<T>,
    ) -> Result<T> {
        let result = self.number.shared().call(class_of(operation), |inside| {
            let file = inside.file(self.number())?;
            call(&inside.caller(self.credentials.as_posix()), &file)
        });
        result.map_err(|errno| self.error(operation, errno))
    }

    /// A write; to a file that was opened with O_SYNC or O_DSYNC, it returns when it is safe.
    fn write_by(
        &self,
        mut write: impl FnMut(&Caller<'_, 'static>, &InFlightFile<'_, 'static>) -> posix::Result<usize>,
    ) -> Result<usize> {
        let (count, must_sync) = self.call("write", |caller, file| {
            let count = write(caller, file)?;
            Ok((count, count > 0 && file.is_synchronous()))
        })?;
        if must_sync {
            // A call of its own: one that finds no space is repeated, which a write must not be.
            self.sync(|_| Scope::Calls)?;
        }
        Ok(count)
    }

    fn sync(&self, scope: impl Fn(Node) -> Scope) -> Result<()> {
        let synced = self.number.shared().call(CallClass::Sync, |inside| {
            let scope = scope(inside.file(self.number())?.node());
            inside.sync(scope)
        });
        synced.map_err(|errno| self.error("sync", errno))
    }

    fn error(&self, operation: &'static str, errno: Errno) -> Error {
        Error::call(operation, &self.path, errno)
    }

    /// The path by which it was opened. The file may have another name meanwhile.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads at an offset in bytes; returns the number of bytes, fewer only at the end of the file.
    /// The position does not change.
    ///
    /// # Errors
    /// EBADF: not opened for reading; EISDIR; EINVAL: the offset is above 2^63 - 1.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<usize> {
        self.read_user_at(bytes.into(), at)
    }

    /// [`File::read_at`] into a buffer that other threads may use.
    #[doc(hidden)]
    pub fn read_user_at(&self, bytes: UserBytesMut<'_>, at: u64) -> Result<usize> {
        self.call("read", |caller, file| caller.data().read_at(file, offset(at)?, bytes))
    }

    /// [`Read::read`] into a buffer that other threads may use.
    #[doc(hidden)]
    pub fn read_user(&self, bytes: UserBytesMut<'_>) -> Result<usize> {
        self.call("read", |caller, file| caller.data().read(file, bytes))
    }

    /// Reads from an offset to the end, and appends it to `bytes`; returns the number of bytes.
    ///
    /// # Errors
    /// Like [`read_at`](File::read_at); ENOMEM: the rest of the file does not fit in memory.
    pub fn read_to_end_at(&self, at: u64, bytes: &mut Vec<u8>) -> Result<usize> {
        const STEP_BYTES_MIN: usize = 32;
        let no_memory = |_| self.error("read", Errno::ENOMEM);
        let before = bytes.len();
        // One byte more than the rest, so that the end shows.
        let rest = self.metadata()?.len().saturating_sub(at);
        let mut step = usize::try_from(rest + 1).unwrap_or(usize::MAX);
        loop {
            let begin = bytes.len();
            bytes.try_reserve_exact(step).map_err(no_memory)?;
            bytes.resize(begin + step, 0);
            let read = self.read_at(&mut bytes[begin..], at.saturating_add((begin - before) as u64));
            bytes.truncate(begin + *read.as_ref().unwrap_or(&0));
            if read? < step {
                return Ok(bytes.len() - before);
            }
            // The file grows meanwhile.
            step = bytes.len().max(STEP_BYTES_MIN);
        }
    }

    /// The content as memory, without a copy. It has the length that the file has now, and shows
    /// what is written into its blocks later. What is cut off later reads as zeros, and so do holes
    /// that are filled later. While the view lives, writes to the file are made in place, without
    /// atomicity, and the image cannot be closed: [`Image::close`](crate::Image::close) fails with
    /// EBUSY, and the image is closed when the last view ends.
    ///
    /// If another program truncates the image itself, a read raises SIGBUS, as calls do without
    /// [`survive_truncation`](crate::survive_truncation).
    ///
    /// # Errors
    /// EBADF: not opened for reading; EISDIR; EINVAL: no regular file; EOPNOTSUPP: the image is on
    /// a device whose alignment exceeds 4 KiB; ENOMEM: too little address space.
    pub fn view(&self) -> Result<View> {
        let view = View::new(self.number.shared(), |inside| {
            let (file, caller) = (inside.file(self.number())?, inside.caller(self.credentials.as_posix()));
            caller.data().read_at(&file, 0, &mut [])?;
            let found = caller.stat(file.node())?;
            match found.mode & libc::S_IFMT {
                libc::S_IFREG => Ok((file.node(), found.size_bytes)),
                libc::S_IFDIR => Err(Errno::EISDIR),
                _ => Err(Errno::EINVAL),
            }
        });
        view.map_err(|errno| self.error("view", errno))
    }

    /// Writes at an offset in bytes; returns the number of bytes, fewer only if the image is full.
    /// A gap before the offset reads as zeros. The position does not change. With
    /// [`OpenOptions::append`] it writes at the end, whatever the offset.
    ///
    /// # Errors
    /// EBADF: not opened for writing; ENOSPC; EFBIG: beyond 256 TiB.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        self.write_user_at(bytes.into(), at)
    }

    /// [`File::write_at`] from a buffer that other threads may write.
    #[doc(hidden)]
    pub fn write_user_at(&self, bytes: UserBytes<'_>, at: u64) -> Result<usize> {
        self.write_by(|caller, file| caller.data().write_at(file, offset(at)?, bytes))
    }

    /// [`Write::write`] from a buffer that other threads may write.
    #[doc(hidden)]
    pub fn write_user(&self, bytes: UserBytes<'_>) -> Result<usize> {
        self.write_by(|caller, file| caller.data().write(file, bytes))
    }

    /// Writes all bytes at an offset.
    pub fn write_all_at(&self, mut bytes: &[u8], mut at: u64) -> Result<()> {
        while !bytes.is_empty() {
            let count = self.write_at(bytes, at)?;
            if count == 0 {
                return Err(self.error("write", Errno::EIO));
            }
            (bytes, at) = (&bytes[count..], at + count as u64);
        }
        Ok(())
    }

    /// Sets the length in bytes. What is added reads as zeros and takes no space.
    ///
    /// # Errors
    /// EINVAL: not opened for writing; EFBIG, ENOSPC.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.call("set the length of", |caller, file| caller.data().truncate_open(file, offset(bytes)?))
    }

    /// Commits the image to its disk, if it lies on one, and persists what the file system keeps
    /// for later (access times). When it returns, every call that returned before survives a power
    /// failure, on this file and all others. Elsewhere every write is already as durable as it
    /// gets.
    pub fn sync_all(&self) -> Result<()> {
        self.sync(Scope::File)
    }

    /// Does what [`sync_all`](File::sync_all) does.
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    /// Attributes of the file, also after its last name was removed.
    pub fn metadata(&self) -> Result<Metadata> {
        self.call("read the attributes of", |caller, file| caller.stat(file.node())).map(Metadata::new)
    }

    /// The time at which the file was created.
    pub fn created(&self) -> Result<SystemTime> {
        self.call("read the attributes of", |caller, file| Ok(caller.thread.born_ns(file.node())?)).map(system_time)
    }

    /// Sets the permission bits (0o7777); EPERM if the caller does not own the file.
    pub fn set_permissions(&self, permissions: impl Into<Permissions>) -> Result<()> {
        let mode = permissions.into().mode();
        self.call("set the permissions of", |caller, file| caller.chmod(file.node(), mode).map(drop))
    }

    /// Sets the times of last access and modification, as [`FileSystem::set_times`] does.
    ///
    /// [`FileSystem::set_times`]: crate::FileSystem::set_times
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.call("set the times of", |caller, file| {
            let (accessed, modified) = times.to_set()?;
            caller.set_times(file.node(), accessed, modified).map(drop)
        })
    }

    /// Sets both times to the present, as [`FileSystem::touch`] does.
    ///
    /// [`FileSystem::touch`]: crate::FileSystem::touch
    pub fn touch(&self) -> Result<()> {
        self.call("set the times of", |caller, file| {
            caller.set_times(file.node(), TimeToSet::Now, TimeToSet::Now).map(drop)
        })
    }

    /// Sets owner and group, as [`FileSystem::set_owner`] does.
    ///
    /// [`FileSystem::set_owner`]: crate::FileSystem::set_owner
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.call("set the owner of", |caller, file| caller.chown(file.node(), uid, gid).map(drop))
    }

    /// Reserves, frees or moves space as fallocate(2) with its modes does: 0 reserves bytes.
    ///
    /// # Errors
    /// EBADF: not opened for writing; EOPNOTSUPP: an unknown mode; EINVAL, EFBIG, ENOSPC.
    pub fn allocate(&self, mode: i32, at: u64, bytes: u64) -> Result<()> {
        self.call("allocate space of", |caller, file| caller.data().allocate(file, mode, offset(at)?, offset(bytes)?))
    }

    /// The first byte of data at or after an offset; `None` if a hole follows up to the end, or the
    /// offset is not below the length. The position does not change.
    pub fn next_data(&self, at: u64) -> Result<Option<u64>> {
        self.extent(at, SeekWhat::Data)
    }

    /// The first hole at or after an offset; the end of the file is one. `None`: the offset is not
    /// below the length.
    pub fn next_hole(&self, at: u64) -> Result<Option<u64>> {
        self.extent(at, SeekWhat::Hole)
    }

    fn extent(&self, at: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.call("seek in", |caller, file| match caller.data().seek_extent(file, offset(at)?, what) {
            Err(Errno(libc::ENXIO)) => Ok(None),
            found => found.map(Some),
        })
    }

    /// [`FileSystem::xattr`](crate::FileSystem::xattr) of this file.
    pub fn xattr(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref().as_bytes();
        self.call("read an attribute of", |caller, file| read_attribute(caller, file.node(), name))
    }

    /// [`FileSystem::set_xattr_with`](crate::FileSystem::set_xattr_with) of this file.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>, which: SetXattr) -> Result<()> {
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        self.call("set an attribute of", |caller, file| {
            caller.xattrs().set_attribute(file.node(), name, value, which.flags())
        })
    }

    /// [`FileSystem::remove_xattr`](crate::FileSystem::remove_xattr) of this file.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref().as_bytes();
        self.call("remove an attribute of", |caller, file| caller.xattrs().remove_attribute(file.node(), name))
    }

    /// [`FileSystem::xattrs`](crate::FileSystem::xattrs) of this file.
    pub fn xattrs(&self) -> Result<Vec<OsString>> {
        self.call("list the attributes of", |caller, file| list_attributes(caller, file.node()))
    }

    /// Another handle of the same open file: they share position and lock.
    pub fn try_clone(&self) -> Result<File> {
        let (shared, from) = (self.number.shared(), self.number());
        let opened = shared.open(|inside, number| inside.process.duplicate(inside.thread, from, number, true));
        let number = opened.map_err(|errno| self.error("duplicate", errno))?;
        Ok(File { number, path: self.path.clone(), credentials: self.credentials.clone() })
    }

    /// Takes the exclusive lock of the file; waits while others have a lock.
    ///
    /// Locks are advisory, like flock(2): they exclude other locks, not reads and writes. They hold
    /// among all processes that have the image open, including programs under `directfs run`, and
    /// not between them and a mount. A lock belongs to the open file, so two handles from separate
    /// opens exclude each other also in one thread. It ends by [`unlock`](File::unlock), when the
    /// last clone of the file is closed, or with the process, however that ends.
    ///
    /// # Errors
    /// ENOLCK: too many locks. A shared lock that is to become exclusive is released first, so
    /// others may get the lock in between.
    pub fn lock(&self) -> Result<()> {
        self.wait_for(LockOf::File, LockKind::Exclusive)
    }

    /// Takes a shared lock, which excludes exclusive ones. See [`lock`](File::lock).
    pub fn lock_shared(&self) -> Result<()> {
        self.wait_for(LockOf::File, LockKind::Shared)
    }

    /// Takes the exclusive lock, or returns [`TryLockError::WouldBlock`] if others have a lock.
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        self.try_once(LockOf::File, LockKind::Exclusive)
    }

    /// Takes a shared lock, or returns [`TryLockError::WouldBlock`] if the exclusive one is taken.
    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        self.try_once(LockOf::File, LockKind::Shared)
    }

    /// Like [`lock`](File::lock) or [`lock_shared`](File::lock_shared), for at most about this
    /// time: a tenth of a second more. Returns whether the lock was taken.
    pub fn lock_timeout(&self, exclusive: bool, timeout: Duration) -> Result<bool> {
        self.wait_until(LockOf::File, kind_of(exclusive), Some(timeout))
    }

    /// Releases the lock, if there is one.
    pub fn unlock(&self) -> Result<()> {
        self.change_lock("unlock", LockOf::File, None, |_, _| ()).map(drop)
    }

    /// Locks a range of bytes; waits while others have a lock that conflicts. `exclusive` excludes
    /// all other locks of the range, otherwise only exclusive ones. A range without an end also
    /// covers what is added to the file.
    ///
    /// Such locks are those of `fcntl(F_OFD_SETLKW)`: advisory, of the open file, and shared with
    /// programs as [`lock`](File::lock) says, but independent of it. They also exclude the locks
    /// that programs take with `F_SETLK`. Locking a part of an own lock again changes its kind.
    ///
    /// # Errors
    /// EBADF: not opened for writing (exclusive) or reading; EINVAL: an empty range; ENOLCK.
    pub fn lock_range(&self, range: impl RangeBounds<u64>, exclusive: bool) -> Result<()> {
        let range = self.lock_bytes(range)?;
        self.wait_for(LockOf::Range(range), kind_of(exclusive))
    }

    /// [`lock_range`](File::lock_range) for at most about this time: a tenth of a second more.
    /// Returns whether the range was locked.
    pub fn lock_range_timeout(&self, range: impl RangeBounds<u64>, exclusive: bool, timeout: Duration) -> Result<bool> {
        let range = self.lock_bytes(range)?;
        self.wait_until(LockOf::Range(range), kind_of(exclusive), Some(timeout))
    }

    /// Like [`lock_range`](File::lock_range), or [`TryLockError::WouldBlock`] instead of waiting.
    pub fn try_lock_range(&self, range: impl RangeBounds<u64>, exclusive: bool) -> Result<(), TryLockError> {
        let range = self.lock_bytes(range).map_err(|error| TryLockError::Error(error.into()))?;
        self.try_once(LockOf::Range(range), kind_of(exclusive))
    }

    /// Releases the locks of a range, whole ones or parts.
    pub fn unlock_range(&self, range: impl RangeBounds<u64>) -> Result<()> {
        let range = self.lock_bytes(range)?;
        self.change_lock("unlock", LockOf::Range(range), None, |_, _| ()).map(drop)
    }

    /// The first lock of others that would block [`lock_range`](File::lock_range).
    pub fn range_conflict(&self, range: impl RangeBounds<u64>, exclusive: bool) -> Result<Option<LockedRange>> {
        let range = self.lock_bytes(range)?;
        let found = self.number.shared().call(CallClass::Lock, |inside| {
            inside.process.conflict(inside.thread, self.number(), range, Some(kind_of(exclusive)), true)
        });
        let found = found.map_err(|errno| self.error("read the locks of", errno))?;
        Ok(found.map(|conflict| LockedRange {
            start: conflict.range.start,
            end: (conflict.range.last < i64::MAX as u64).then_some(conflict.range.last + 1),
            exclusive: conflict.kind == LockKind::Exclusive,
        }))
    }

    fn lock_bytes(&self, range: impl RangeBounds<u64>) -> Result<LockRange> {
        let last = i64::MAX as u64;
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let last = match range.end_bound() {
            Bound::Included(&end) => Some(end),
            Bound::Excluded(&end) => end.checked_sub(1),
            Bound::Unbounded => Some(last),
        };
        match (start, last) {
            (Some(start), Some(last)) if start <= last && last <= i64::MAX as u64 => Ok(LockRange { start, last }),
            _ => Err(self.error("lock a range of", Errno::EINVAL)),
        }
    }

    /// One attempt to change a lock. If it is blocked, the result is that of `blocked`, which may
    /// wait for a change, or end the locks of a dead process.
    fn change_lock<T>(
        &self,
        operation: &'static str,
        lock: LockOf,
        kind: Option<LockKind>,
        mut blocked: impl FnMut(&Inside<'_>, &Blocked) -> T,
    ) -> Result<Option<T>> {
        let result = self.number.shared().call(CallClass::Lock, |inside| {
            let (process, thread, number) = (inside.process, inside.thread, self.number());
            let locked = match lock {
                LockOf::File => process.flock(thread, number, kind)?,
                LockOf::Range(range) => process.lock_range(thread, number, range, kind, true, false)?,
            };
            Ok(match locked {
                Locked::Done => None,
                Locked::Blocked(at) => Some(blocked(&inside, &at)),
            })
        });
        result.map_err(|errno| self.error(operation, errno))
    }

    fn wait_for(&self, lock: LockOf, kind: LockKind) -> Result<()> {
        self.wait_until(lock, kind, None).map(drop)
    }

    fn wait_until(&self, lock: LockOf, kind: LockKind, timeout: Option<Duration>) -> Result<bool> {
        let start = Instant::now();
        // Each wait ends after a tenth of a second, so that `Image::close` need not wait for it.
        let wait = |inside: &Inside<'_>, at: &Blocked| inside.process.wait_for_lock(inside.thread, at);
        while self.change_lock("lock", lock, Some(kind), wait)?.is_some() {
            if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn try_once(&self, lock: LockOf, kind: LockKind) -> Result<(), TryLockError> {
        let reap = |inside: &Inside<'_>, at: &Blocked| inside.process.reap_blocker(inside.thread, at);
        loop {
            match self.change_lock("lock", lock, Some(kind), reap) {
                Ok(None) => return Ok(()),
                // A dead process held it.
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Err(TryLockError::WouldBlock),
                Err(error) => return Err(TryLockError::Error(error.into())),
            }
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

/// For generic code. [`File::read_at`] and [`File::write_at`] themselves return [`Error`].
impl FileExt for File {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        Ok(File::read_at(self, bytes, at)?)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        Ok(File::write_at(self, bytes, at)?)
    }
}

impl Read for &File {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_user(bytes.into())?)
    }
}

impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.write_user(bytes.into())?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Ok(self.call("seek in", |caller, file| match to {
            SeekFrom::Start(at) => caller.data().seek(file, offset(at)?, Whence::Set),
            SeekFrom::Current(by) => caller.data().seek(file, by, Whence::Current),
            SeekFrom::End(by) => caller.data().seek(file, by, Whence::End),
        })?)
    }
}

impl Read for File {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self).read(bytes)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
