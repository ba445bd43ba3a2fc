//! Descriptors of inotify and fanotify: their descriptions in the shared tables, and the wake files
//! by which changes in the mount make them readable. A read returns events of both sides.

mod fanotify;
mod inotify;

use crate::abi::entry::{Verdict, done};
use crate::abi::sys;
use crate::call::OnFailure::Kernel;
use crate::call::{Call, blocking_call, call};
use crate::calls::kernel_objects::meeting;
use crate::descriptors::fd_numbers;
use crate::extensions::Extension;
use crate::handoff::write_number;
use crate::proc_links::{descriptor_path, information_path};
use crate::process::session::Session;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use engine::Thread;
use libc::*;
use posix::{OpenFile, Result};
use tables::MarkGroupFlags;
use tables::watch::{Watches, wake_name};

/// The extension.
pub const EXTENSION: Extension = Extension {
    calls: &[
        call!(SYS_inotify_init, Always, Other, inotify::init, Kernel),
        call!(SYS_inotify_init1, Always, Other, inotify::init1, Kernel),
        call!(SYS_inotify_add_watch, PathSecond, Other, inotify::add_watch),
        call!(SYS_inotify_rm_watch, Fd, Other, inotify::rm_watch),
        call!(SYS_fanotify_init, Always, Other, fanotify::init, Kernel),
        call!(SYS_fanotify_mark, Always, Other, fanotify::mark, Kernel),
    ],
    read: inotify::read,
    bytes_to_read: inotify::bytes_to_read,
    received_key,
    ..Extension::NONE
};

/// The limit of watches if the kernel does not show it.
const WATCHES_DEFAULT: u32 = 8192;
/// A path of a wake file: `/proc/self/fd/DESCRIPTOR/../watch-GROUP`.
const PATH_BYTES: usize = 64;

/// Gives a new descriptor a description with a key. `flags`: those of fanotify.
pub fn describe(session: &Session<'_>, fd: u32, flags: Option<MarkGroupFlags>, cloexec: bool) {
    let thread = session.caller.thread;
    let Ok(root) = thread.root() else { return };
    thread.record_reference(root);
    // Zero is no key.
    let file = OpenFile::watcher(root, thread.fs().platform().random() | 1, flags);
    if session.process.install(thread, fd, &file, cloexec).is_ok() {
        fd_numbers::mark(fd);
    }
}

/// The file that wakes a group.
pub struct WakeFile {
    /// The descriptor of the meeting directory.
    pub meeting: u64,
    /// Its terminated path.
    pub text: [u8; PATH_BYTES],
    /// Where the path from the meeting directory begins in `text`.
    name: usize,
}

impl WakeFile {
    /// Makes the file of a group, unless it exists.
    pub fn make(group: u32) -> Result<WakeFile> {
        let mut file = WakeFile { meeting: meeting()?, text: [0u8; PATH_BYTES], name: 0 };
        let mut number = [0u8; 20];
        let count = write_number(file.meeting, &mut number);
        let mut length = 0;
        for part in [b"/proc/self/fd/", &number[..count], b"/", &wake_name(group)] {
            file.name = length;
            file.text[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        let (meeting, name) = (file.meeting, file.name().as_ptr() as u64);
        let call = |number: i64, arguments: [u64; 2]| {
            // SAFETY: terminated names that outlive the call, which changes no memory.
            unsafe { sys::call(number, [meeting, name, arguments[0], arguments[1], 0, 0]) }
        };
        call(libc::SYS_mknodat, [u64::from(libc::S_IFREG), 0]);
        // Processes of other users wake the group, too. It may be another process's file.
        call(libc::SYS_fchmodat, [0o666, 0]);
        Ok(file)
    }

    /// Its terminated path from the meeting directory.
    pub fn name(&self) -> &[u8] {
        &self.text[self.name..]
    }

    /// Its attributes; zeros if it is gone.
    pub fn status(&self) -> libc::stat {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        let (name, into) = (self.name().as_ptr() as u64, status.as_mut_ptr() as u64);
        let flags = libc::AT_SYMLINK_NOFOLLOW as u64;
        // SAFETY: the kernel fills the structure, of which zero is a value.
        unsafe {
            sys::call(libc::SYS_newfstatat, [self.meeting, name, into, flags, 0, 0]);
            status.assume_init()
        }
    }
}

/// The key of the group behind a descriptor from another process: of a descriptor that watches the
/// kernel lists what it watches, and so the wake file. `room` is for the list.
fn received_key(thread: &Thread<'static>, fd: u32, room: &mut [u8]) -> Option<u64> {
    let target = sys::read_link(&descriptor_path(fd), room).ok()?;
    if ![&b"anon_inode:inotify"[..], b"anon_inode:[fanotify]"].contains(&&room[..target]) {
        return None;
    }
    let file = sys::open(&information_path(fd), libc::O_RDONLY).ok()?;
    let mut length = 0;
    while let Ok(count @ 1..) = file.read(&mut room[length..]) {
        length += count;
    }
    let mut inodes = room[..length].split(|&byte| byte == b' ').filter_map(|word| word.strip_prefix(b"ino:"));
    inodes.find_map(|digits| Watches::of(thread).watch_key_of_wake_file(hexadecimal(digits)))
}

fn hexadecimal(digits: &[u8]) -> u64 {
    let values = digits.iter().map_while(|&digit| char::from(digit).to_digit(16));
    values.fold(0, |sum, value| sum << 4 | u64::from(value))
}

/// The limit in a file of the kernel, which is read once.
pub fn limit_of(known: &AtomicU32, path: &[u8]) -> u32 {
    let limit = known.load(Relaxed);
    if limit != 0 {
        return limit;
    }
    let mut text = [0u8; 16];
    let length = sys::open(path, libc::O_RDONLY).and_then(|file| file.read(&mut text)).unwrap_or(0);
    let digits = text[..length].iter().take_while(|byte| byte.is_ascii_digit());
    let read = digits.fold(0u32, |sum, digit| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0')));
    let limit = if length == 0 { WATCHES_DEFAULT } else { read };
    known.store(limit, Relaxed);
    limit
}

/// The program's buffer of a read, and the group that it reads.
pub struct EventBuffer {
    /// Index and key of the group.
    pub group: (u32, u64),
    /// Where the buffer begins.
    pub address: u64,
    /// Its length.
    pub length: usize,
}

/// The events of a kind of descriptor, in a program's buffer.
pub trait EventKind {
    /// Bytes of the shortest event.
    const BYTES: usize;

    /// Removes the wake file's events from those that the kernel has put into these bytes of a
    /// buffer, its last ones; returns how many bytes the buffer has then.
    fn without_wake_events(&self, session: &Session<'_>, into: &EventBuffer, bytes: Range<usize>) -> Result<usize>;

    /// Adds events of the region to a buffer that has `total` bytes; returns how many it has then.
    /// EINVAL: not even one event has room.
    fn add_events(&self, session: &Session<'_>, into: &EventBuffer, total: usize) -> Result<usize>;
}

/// read(fd, buffer, length), of a descriptor of a group with this key.
fn read_group(call: &mut Call<'_>, key: u64, (address, length): (u64, u64), kind: &impl EventKind) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    loop {
        let has_events = {
            let watches = Watches::of(call.begin()?.session.caller.thread);
            watches.watch_group(key).is_some_and(|index| watches.rearm_group(index, key) == Ok(false))
        };
        // With events of the region there is nothing to wait for.
        let result = match has_events && !is_readable(fd) {
            true => 0,
            // SAFETY: the kernel checks the program's buffer.
            false => unsafe { blocking_call(libc::SYS_read, [fd.into(), address, length, 0, 0, 0]) },
        };
        if result < 0 && !(has_events && -result == i64::from(libc::EINVAL)) {
            return Ok(done(result));
        }
        let session = call.begin()?.session;
        let watches = Watches::of(session.caller.thread);
        let Some(index) = watches.watch_group(key) else { return Ok(done(result)) };
        let into = EventBuffer { group: (index, key), address, length: length as usize };
        let from_kernel = kind.without_wake_events(&session, &into, 0..result.max(0) as usize)?;
        watches.disarm_group(index, key)?;
        let total = kind.add_events(&session, &into, from_kernel)?;
        if total != 0 {
            return Ok(done(consume_wake_events(&session, &into, fd, kind, total)? as i64));
        }
    }
}

/// Removes the wake file's events of what this read has taken already: a program that polls would
/// read again, and wait. Returns how many bytes the program's buffer has.
fn consume_wake_events<K: EventKind>(
    session: &Session<'_>,
    into: &EventBuffer,
    fd: u32,
    kind: &K,
    mut total: usize,
) -> Result<usize> {
    let (watches, (index, key)) = (Watches::of(session.caller.thread), into.group);
    while into.length - total >= K::BYTES && watches.is_drained(index, key)? && is_readable(fd) {
        let (at, room) = (into.address + total as u64, (into.length - total) as u64);
        // SAFETY: the kernel checks the program's buffer.
        let result = unsafe { sys::call(libc::SYS_read, [fd.into(), at, room, 0, 0, 0]) };
        if result <= 0 {
            break;
        }
        total = kind.without_wake_events(session, into, total..total + result as usize)?;
        watches.disarm_group(index, key)?;
        total = kind.add_events(session, into, total)?;
    }
    Ok(total)
}

/// Whether the kernel has events.
fn is_readable(fd: u32) -> bool {
    let mut polled = libc::pollfd { fd: fd as i32, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which the kernel fills.
    unsafe { sys::call(libc::SYS_poll, [&raw mut polled as u64, 1, 0, 0, 0, 0]) == 1 }
}
