//! A mount with one file that cannot be written, whose bytes come from anywhere, and one with
//! messages about it.
//!
//! It lasts as long as a process has one of the files open or mapped. The kernel decides: an
//! unmount of a mount in use fails, so no process loses a file that it has just opened. The kernel
//! caches what was read.

use crate::error::MountError;
use crate::options::MountOptions;
use crate::{helper, mounting, other};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, Request,
};
use std::ffi::{CString, OsStr};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// The name of the file.
pub const FILE: &str = "image";
/// The name of the file with messages: lines that are appended.
pub const MESSAGES: &str = "messages";
/// Nothing changes.
const VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Reads that may wait at once.
const THREADS: usize = 32;
/// The process that starts the server opens a file within this time.
const FIRST_USE: Duration = Duration::from_secs(60);
/// The kernel may still be closing a file.
const AGAIN: Duration = Duration::from_millis(50);

/// What is behind the file.
pub trait Content: Send + Sync + 'static {
    /// Bytes of the file.
    fn size(&self) -> u64;
    /// Bytes of it that are no holes.
    fn content_bytes(&self) -> u64;
    /// Distinguishes the file from others: its inode number.
    fn number(&self) -> u64;
    /// Reads bytes within the file; `false`: they are not to be had, EIO.
    fn read(&self, offset: u64, into: &mut [u8]) -> bool;
    /// The next range, from `at` on, that is no hole.
    fn next_content(&self, at: u64) -> Option<Range<u64>>;
    /// All messages so far.
    fn messages(&self) -> Vec<u8>;
}

/// Open files of all processes.
#[derive(Default)]
struct Users {
    /// Open files, and whether there ever was one.
    open: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Users {
    fn locked(&self) -> MutexGuard<'_, (u64, bool)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) {
        let mut open = self.locked();
        *open = (open.0 + 1, true);
    }

    fn closed(&self) {
        self.locked().0 -= 1;
        self.changed.notify_all();
    }

    /// Waits until nothing is open, but for a first user only so long.
    fn wait_for_end(&self) {
        let first = self.changed.wait_timeout_while(self.locked(), FIRST_USE, |open| open.0 > 0 || !open.1);
        let open = first.unwrap_or_else(PoisonError::into_inner).0;
        drop(self.changed.wait_while(open, |open| open.0 > 0));
    }
}

struct OneFile<C> {
    content: Arc<C>,
    users: Arc<Users>,
}

impl<C: Content> OneFile<C> {
    fn number(&self) -> INodeNo {
        // With this bit it is no number of the directory or of the messages.
        INodeNo(self.content.number() | 1 << 62)
    }

    fn messages() -> INodeNo {
        INodeNo(INodeNo::ROOT.0 + 1)
    }

    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (kind, perm, size, bytes) = match number {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0, 0),
            // Programs of root may change their user, and open what they have again.
            number if number == self.number() => {
                (FileType::RegularFile, 0o444, self.content.size(), self.content.content_bytes())
            }
            number if number == OneFile::<C>::messages() => (FileType::RegularFile, 0o400, 0, 0),
            _ => return None,
        };
        let time = UNIX_EPOCH;
        Some(FileAttr {
            ino: number,
            size,
            blocks: bytes.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        let at = u64::try_from(offset).ok().filter(|&at| at < self.content.size()).ok_or(Errno::ENXIO)?;
        let next = self.content.next_content(at);
        match whence {
            libc::SEEK_DATA => next.map(|range| range.start).ok_or(Errno::ENXIO),
            libc::SEEK_HOLE => Ok(next.filter(|range| range.start == at).map_or(at, |range| range.end)),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl<C: Content> Filesystem for OneFile<C> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel has an upper limit of its own.
        let _ = config.set_max_background(THREADS as u16);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = match name.to_str() {
            Some(FILE) if parent == INodeNo::ROOT => Some(self.number()),
            Some(MESSAGES) if parent == INodeNo::ROOT => Some(OneFile::<C>::messages()),
            _ => None,
        };
        match number.and_then(|number| self.attributes(number)) {
            Some(attributes) => reply.entry(&VALIDITY, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&VALIDITY, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.users.opened();
        let is_content = number == self.number();
        let flags = if is_content { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::FOPEN_DIRECT_IO };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if number != self.number() {
            let messages = self.content.messages();
            let from = messages.get(offset.min(messages.len() as u64) as usize..).unwrap_or_default();
            return reply.data(&from[..from.len().min(size as usize)]);
        }
        let left = self.content.size().saturating_sub(offset);
        let mut bytes = vec![0; left.min(size.into()) as usize];
        match self.content.read(offset, &mut bytes) {
            true => reply.data(&bytes),
            false => reply.error(Errno::EIO),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.users.closed();
        reply.ok();
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.seek(offset, whence) {
            Ok(at) => reply.offset(at as i64),
            Err(errno) => reply.error(errno),
        }
    }
}

/// Serves a file in a directory until no process has it, or until SIGINT, SIGTERM or SIGHUP. What a
/// dead server left at the directory is unmounted first. `ready` is called once the file can be
/// opened. Call this before other threads are started that signals could end.
pub fn serve_file(
    content: Arc<impl Content>,
    source: &str,
    mount_point: &Path,
    ready: impl FnOnce(),
) -> Result<(), MountError> {
    remove_dead(mount_point)?;
    let users = Arc::new(Users::default());
    let options = MountOptions { read_only: true, threads: THREADS, ..MountOptions::default() };
    let ended = Arc::clone(&users);
    other::serve_other(OneFile { content, users }, source, mount_point, &options, |path| {
        let path = path.to_owned();
        let end = move || {
            ended.wait_for_end();
            while !unmount_unused(&path) {
                std::thread::sleep(AGAIN);
                ended.wait_for_end();
            }
        };
        // Without it the mount lasts until a signal.
        let _ = std::thread::Builder::new().name("directfs-end".to_owned()).spawn(end);
        ready();
    })
}

/// Unmounts what a dead server left. Files that are open stay as they are: dead.
pub fn remove_dead(path: &Path) -> Result<(), MountError> {
    // The kernel answers other calls from its caches.
    let opened = |path: &Path| std::fs::File::open(path.join(FILE));
    let is_dead = |path: &Path| opened(path).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    while is_dead(path) {
        if mounting::unmount(path).is_err() {
            helper::unmount(path).map_err(|source| MountError::Unmount { path: path.to_owned(), source })?;
        }
    }
    Ok(())
}

/// Unmounts, unless a process uses the mount.
fn unmount_unused(path: &Path) -> bool {
    let Ok(place) = CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: a string that ends in zero.
    let result = unsafe { libc::umount2(place.as_ptr(), libc::UMOUNT_NOFOLLOW) };
    match io::Error::last_os_error().raw_os_error() {
        _ if result == 0 => true,
        Some(libc::EPERM) => helper::unmount_unused(path).is_ok(),
        // Another process has unmounted it.
        Some(libc::EINVAL | libc::ENOENT) => true,
        _ => false,
    }
}
