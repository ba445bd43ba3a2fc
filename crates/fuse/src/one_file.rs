//! A mount with one file that cannot be written, whose bytes come from anywhere, and one with
//! messages about it.
//!
//! It lasts as long as a process has one of the files open or mapped. The kernel decides: an
//! unmount of a mount in use fails, so no process loses a file that it has just opened. The kernel
//! caches what was read.

use crate::error::MountError;
use crate::options::MountOptions;
use crate::protocol::{Arguments, Header, Reply, opcode, open_flag};
use crate::session::{Channel, Clones, Connection, Handled, Handler};
use crate::{helper, mounting, other};
use engine::format::FileKind;
use engine::{Attributes, FileFlags};
use posix::{Errno, Result};
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of the file.
pub const FILE: &str = "image";
/// The name of the file with messages: lines that are appended.
pub const MESSAGES: &str = "messages";
/// Numbers of the directory, and of the file with messages.
const ROOT: u64 = 1;
const MESSAGES_NUMBER: u64 = 2;
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
    fn number(&self) -> u64 {
        // With this bit it is no number of the directory or of the messages.
        self.content.number() | 1 << 62
    }

    fn attributes(&self, number: u64) -> Result<Attributes> {
        let (kind, permissions, size_bytes, content_bytes) = match number {
            ROOT => (FileKind::Directory, 0o500, 0, 0),
            // Programs of root may change their user, and open what they have again.
            number if number == self.number() => {
                (FileKind::Regular, 0o444, self.content.size(), self.content.content_bytes())
            }
            MESSAGES_NUMBER => (FileKind::Regular, 0o400, 0, 0),
            _ => return Err(Errno::ENOENT),
        };
        Ok(Attributes {
            number,
            generation: 0,
            kind,
            mode: kind.mode_bits() | permissions,
            links: 1,
            uid: rustix::process::geteuid().as_raw(),
            device: 0,
            gid: rustix::process::getegid().as_raw(),
            size_bytes,
            blocks: content_bytes.div_ceil(pmem::BLOCK_BYTES),
            accessed_ns: 0,
            modified_ns: 0,
            changed_ns: 0,
            flags: FileFlags::default(),
        })
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        match name {
            _ if parent != ROOT => Err(Errno::ENOENT),
            name if name == FILE.as_bytes() => self.attributes(self.number()),
            name if name == MESSAGES.as_bytes() => self.attributes(MESSAGES_NUMBER),
            _ => Err(Errno::ENOENT),
        }
    }

    fn read(&self, number: u64, offset: u64, size: usize, reply: &mut Reply) -> Result<()> {
        if number != self.number() {
            let messages = self.content.messages();
            let from = messages.get(offset.min(messages.len() as u64) as usize..).unwrap_or_default();
            reply.bytes(&from[..from.len().min(size)]);
            return Ok(());
        }
        let left = self.content.size().saturating_sub(offset);
        let read = |into: &mut [u8]| self.content.read(offset, into).then_some(into.len()).ok_or(Errno::EIO);
        reply.fill(left.min(size as u64) as usize, read)
    }

    fn seek(&self, offset: u64, whence: i32) -> Result<u64> {
        // An offset that is negative is beyond each file.
        if offset >= self.content.size() {
            return Err(Errno::ENXIO);
        }
        let next = self.content.next_content(offset);
        match whence {
            libc::SEEK_DATA => next.map(|range| range.start).ok_or(Errno::ENXIO),
            libc::SEEK_HOLE => Ok(next.filter(|range| range.start == offset).map_or(offset, |range| range.end)),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl<C: Content> Handler for OneFile<C> {
    fn capabilities(&self, _: u64) -> u64 {
        0
    }

    fn background_max(&self) -> u16 {
        THREADS as u16
    }

    fn handle(&self, header: &Header, mut arguments: Arguments<'_>, reply: &mut Reply, _: &Channel) -> Result<Handled> {
        let number = header.node;
        match header.opcode {
            opcode::LOOKUP => {
                reply.entry(VALIDITY, &self.lookup(number, arguments.name()?)?);
            }
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return Ok(Handled::Silent),
            opcode::GETATTR => reply.attributes_valid_for(VALIDITY, &self.attributes(number)?),
            opcode::OPEN => {
                self.users.opened();
                reply.opened(0, if number == self.number() { open_flag::KEEP_CACHE } else { open_flag::DIRECT_IO });
            }
            opcode::READ => {
                arguments.skip(8)?;
                self.read(number, arguments.u64()?, arguments.u32()? as usize, reply)?;
            }
            opcode::RELEASE => self.users.closed(),
            opcode::LSEEK => {
                arguments.skip(8)?;
                reply.u64(self.seek(arguments.u64()?, arguments.i32()?)?);
            }
            opcode::OPENDIR => reply.opened(0, 0),
            opcode::RELEASEDIR | opcode::DESTROY => {}
            opcode::STATFS => {
                reply.zeros(40).u32(512).u32(255).zeros(32);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(Handled::Reply)
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
) -> std::result::Result<(), MountError> {
    remove_dead(mount_point)?;
    let users = Arc::new(Users::default());
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let ended = Arc::clone(&users);
    let connect = |device| {
        let file = Arc::new(OneFile { content, users });
        let connection = Connection::establish(device, &*file, false)?;
        // A mount by the helper does not need the right to open the device.
        let clones = if mounting::open_device().is_ok() { Clones::AllButFirst } else { Clones::None };
        Ok(move || connection.serve(THREADS, clones, &file))
    };
    other::serve_other(source.as_ref(), mount_point, &options, connect, |path| {
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
pub fn remove_dead(path: &Path) -> std::result::Result<(), MountError> {
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
