//! fanotify's notifications: one descriptor for marks on files of the kernel and of the mount.
//!
//! It works as `inotify` does, with the same invariants: the descriptor is the kernel's, marks on
//! files of the mount and their events are in the DRAM region (`tables::watch`), and the kernel's
//! descriptor has a mark on a wake file. Which flags and masks are valid the kernel decides.

use super::{EventBuffer, EventKind, WakeFile, describe, limit_of, read_group};
use crate::abi::entry::{FDS_MAX, NATIVE, Verdict};
use crate::abi::user_memory::UserSlice;
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use crate::calls::names::{at, by_node, on_directory};
use crate::calls::open;
use crate::descriptors::{self, fd_numbers, marks};
use crate::paths::Directory;
use crate::process::session::{Calling, Session};
use crate::{server, status};
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use engine::format::FileKind;
use engine::{Node, Thread};
use posix::path::LastLink;
use posix::{Capabilities, Errno, Result, Want};
use tables::MarkGroupFlags;
use tables::watch::group_flag::{
    HANDLES, REPORT_DIR_FID, REPORT_FD_ERROR, REPORT_FID, REPORT_NAME, REPORT_PIDFD, REPORT_TARGET_FID, UNPRIVILEGED,
};
use tables::watch::{FileId, METADATA_BYTES, MarkEvent, MarkFlags, NewMark, Taken, Watches, event};

/// More than an event of the kernel has: two names, their handles, and a pidfd.
const KERNEL_EVENT_BYTES_MAX: usize = 1024;
const FAN_CLOEXEC: u32 = 1;

const MARK_ADD: u32 = 1;
const MARK_DONT_FOLLOW: u32 = 4;
const MARK_ONLYDIR: u32 = 8;
const MARK_IGNORED_MASK: u32 = 0x20;
const MARK_IGNORED_SURV_MODIFY: u32 = 0x40;
const MARK_FLUSH: u32 = 0x80;
/// FAN_MARK_MOUNT and FAN_MARK_FILESYSTEM.
const MARK_ALL: u32 = 0x110;
const MARK_IGNORE: u32 = 0x400;

/// Events that wait for an answer.
const PERMISSION: u32 = 0x17_0000;
const METADATA_VERSION: u8 = 3;
/// No descriptor; no process; a process without one.
const NONE: i32 = -1;
const NO_PIDFD: i32 = -2;
/// More than an event with two names has.
const EVENT_BYTES_MAX: usize = 768;
/// Types of further information.
const INFO_FID: u8 = 1;
const INFO_DFID_NAME: u8 = 2;
const INFO_DFID: u8 = 3;
const INFO_PIDFD: u8 = 4;
const INFO_OLD_DFID_NAME: u8 = 10;
const INFO_NEW_DFID_NAME: u8 = 12;
/// Head and file system's id of such information.
const INFO_HEAD_BYTES: usize = 12;

/// fanotify_init(flags, flags of descriptors in events).
pub fn init(call: &mut Call<'_>) -> Result<Verdict> {
    let (flags, event_flags) = (call.frame.rdi as u32, call.frame.rsi as u32);
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    let Some(fd) = u32::try_from(verdict.result).ok().filter(|&fd| (fd as usize) < FDS_MAX) else { return Ok(verdict) };
    // Without a description it serves the kernel's paths only.
    let Ok(inside) = call.begin() else { return Ok(verdict) };
    let session = inside.session;
    let is_privileged = session.caller.credentials.has(Capabilities::SYS_ADMIN);
    let group = flags | if is_privileged { 0 } else { UNPRIVILEGED };
    let flags = MarkGroupFlags { group, event: event_flags };
    describe(&session, fd, Some(flags), group & FAN_CLOEXEC != 0);
    Ok(verdict)
}

/// fanotify_mark(group, flags, mask, directory, path).
pub fn mark(call: &mut Call<'_>) -> Result<Verdict> {
    let [fd, flags, _, directory, path, _] = call.arguments();
    let flags = flags as u32;
    if marks::is_hidden(fd) {
        return Err(Errno::EBADF);
    }
    if flags & MARK_FLUSH != 0 {
        return flush(call, flags);
    }
    descriptors::kernel_verdict(call, fd)?;
    fd_numbers::release_cached();
    let arguments = call.arguments();
    let session = call.begin()?.session;
    let group = Group::of(&session, fd as u32);
    let act: &mut dyn FnMut(&Calling<'_>, Node) -> Result<i64> =
        &mut |caller, node| mark_node(caller, node, group, (fd as u32, flags, arguments[2]));
    match (path, Directory::from_raw(directory)) {
        // The kernel wants a descriptor then.
        (0, Directory::Working) => Ok(NATIVE),
        (0, directory) => on_directory(call, directory, act),
        _ => {
            let last_link = if flags & MARK_DONT_FOLLOW != 0 { LastLink::Stay } else { LastLink::Follow };
            by_node(call, at(3), 0, last_link, act)
        }
    }
}

/// The key of a descriptor's group, and its flags.
#[derive(Clone, Copy)]
struct Group {
    key: u64,
    flags: MarkGroupFlags,
}

impl Group {
    fn of(session: &Session<'_>, fd: u32) -> Option<Group> {
        let flags = session.process.mark_group_flags(fd)?;
        Some(Group { key: session.process.watch_key(fd)?, flags })
    }
}

fn kernels_mark(fd: u32, flags: u32, mask: u64, directory: u64, path: &[u8]) -> i64 {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: a terminated path that outlives the call, which changes no memory.
    unsafe { sys::call(libc::SYS_fanotify_mark, [fd.into(), flags.into(), mask, directory, path.as_ptr() as u64, 0]) }
}

/// The kernel's errors that do not depend on the file: it checks them before the path, which no
/// file has.
fn check_by_kernel(fd: u32, flags: u32, mask: u64) -> Result<()> {
    match Errno(-kernels_mark(fd, flags, mask, libc::AT_FDCWD as u64, b"\0") as i32) {
        Errno::ENOENT => Ok(()),
        other => Err(other),
    }
}

fn mark_node(
    caller: &Calling<'_>,
    node: Node,
    group: Option<Group>,
    (fd, flags, mask): (u32, u32, u64),
) -> Result<i64> {
    check_by_kernel(fd, flags, mask)?;
    let group = group.ok_or(Errno::EOPNOTSUPP)?;
    let (adds, is_inode) = (flags & MARK_ADD != 0, flags & MARK_ALL == 0);
    let ignore = flags & (MARK_IGNORED_MASK | MARK_IGNORE);
    let is_directory = caller.stat(node)?.kind == FileKind::Directory;
    let mut mask = mask as u32;
    if adds && mask & PERMISSION != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & MARK_ONLYDIR != 0 && !is_directory {
        return Err(Errno::ENOTDIR);
    }
    let is_old_form = ignore == MARK_IGNORED_MASK;
    if is_old_form {
        mask &= !event::NO_EVENTS;
    }
    let is_strict = group.flags.group & REPORT_TARGET_FID != 0 || mask & event::RENAME != 0 || flags & MARK_IGNORE != 0;
    if adds && is_strict && is_inode && !is_directory && mask & (event::OF_NAMES | event::NO_EVENTS) != 0 {
        return Err(Errno::ENOTDIR);
    }
    caller.access(node, Want::READ)?;
    let outlives = flags & MARK_IGNORED_SURV_MODIFY != 0;
    if adds && ignore == MARK_IGNORE && !outlives && (!is_inode || is_directory) {
        return Err(if is_inode { Errno::EISDIR } else { Errno::EINVAL });
    }
    let mut kept = if is_old_form { event::NO_EVENTS } else { 0 };
    if !is_inode || !is_directory {
        mask &= !event::ON_CHILD;
        kept = event::ON_CHILD;
        if group.flags.group & REPORT_DIR_FID != 0 && adds && ignore == 0 {
            mask |= event::ON_CHILD;
        }
    }
    let watches = Watches::of(caller.thread);
    let index = match watches.watch_group(group.key) {
        Some(index) if watches.wake_watch(index) != 0 => index,
        None if !adds => return Err(Errno::ENOENT),
        _ => make_group(caller.thread, fd, group)?,
    };
    let (number, flags) = (node.number, MarkFlags(flags));
    let mark = NewMark { group: (index, group.key), number, mask, kept, flags, limit: limit() };
    if adds {
        Watches::add_mark(caller.thread, &mark)?
    } else {
        Watches::remove_mark(caller.thread, &mark)?
    }
    Ok(0)
}

/// The most marks of a user.
fn limit() -> u32 {
    static LIMIT: AtomicU32 = AtomicU32::new(0);
    limit_of(&LIMIT, b"/proc/sys/fs/fanotify/max_user_marks\0")
}

/// Makes the group of a descriptor, and has the kernel's descriptor watch its wake file. Threads
/// that do so at a time do the same.
fn make_group(thread: &Thread<'static>, fd: u32, group: Group) -> Result<u32> {
    let MarkGroupFlags { group: flags, event } = group.flags;
    let index = Watches::make_mark_group(thread, (group.key, sys::effective_user()), (flags, event))?;
    let file = WakeFile::make(index)?;
    mark_wake_file(fd, flags, &file)?;
    let seen = file.status();
    let known = match flags & HANDLES {
        0 => [seen.st_ino, seen.st_dev],
        _ => [handle_of(&file, file.name()), handle_of(&file, b"..\0")],
    };
    Watches::of(thread).set_wake_handles(index, known);
    Watches::of(thread).set_wake_watch(index, 1, seen.st_ino);
    Ok(index)
}

fn mark_wake_file(fd: u32, flags: u32, file: &WakeFile) -> Result<()> {
    let mask = if flags & HANDLES == 0 { event::OPEN } else { event::ATTRIB };
    match kernels_mark(fd, MARK_ADD, mask.into(), file.meeting, file.name()) {
        0 => Ok(()),
        error => Err(Errno(-error as i32)),
    }
}

/// The checksum of the kernel's handle of a file beside the meeting directory.
fn handle_of(file: &WakeFile, name: &[u8]) -> u64 {
    const ROOM: usize = 128;
    let mut handle = [0u8; 8 + ROOM];
    handle[..4].copy_from_slice(&(ROOM as u32).to_ne_bytes());
    let (mut mount, at) = (0i32, handle.as_mut_ptr() as u64);
    let (name, mount) = (name.as_ptr() as u64, &raw mut mount as u64);
    // SAFETY: the kernel fills the handle and the number; the name is terminated.
    let result = unsafe { sys::call(libc::SYS_name_to_handle_at, [file.meeting, name, at, mount, 0, 0]) };
    if result == 0 { checksum(&handle) } else { 0 }
}

/// The checksum of the handle at the start of `bytes`. Zero, which no handle has: there is none.
fn checksum(bytes: &[u8]) -> u64 {
    let length = bytes.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length)) as usize;
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.get(..8 + length.min(128)).map_or(0, |handle| handle.iter().fold(0xcbf2_9ce4_8422_2325, mix) | 1)
}

/// FAN_MARK_FLUSH: the kernel removes its marks, also that of the wake file.
fn flush(call: &mut Call<'_>, flags: u32) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result != 0 {
        return Ok(verdict);
    }
    let session = call.begin()?.session;
    let Some(group) = Group::of(&session, fd) else { return Ok(verdict) };
    let thread = session.caller.thread;
    let watches = Watches::of(thread);
    let Some(index) = watches.watch_group(group.key) else { return Ok(verdict) };
    Watches::flush_marks(thread, group.key, MarkFlags(flags))?;
    mark_wake_file(fd, group.flags.group, &WakeFile::make(index)?)?;
    // A touch in between was lost.
    watches.disarm_group(index, group.key)?;
    watches.rearm_group(index, group.key)?;
    Ok(verdict)
}

/// read, of a fanotify descriptor.
#[cold]
pub fn read(call: &mut Call<'_>, buffer: (u64, u64)) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    // Events hold new descriptors.
    fd_numbers::release_cached();
    let Some(group) = Group::of(&call.begin()?.session, fd) else { return Ok(NATIVE) };
    read_group(call, group.key, buffer, &Marks(group))
}

/// Events of marks.
struct Marks(Group);

impl EventKind for Marks {
    const BYTES: usize = METADATA_BYTES;

    fn without_wake_events(&self, session: &Session<'_>, into: &EventBuffer, bytes: Range<usize>) -> Result<usize> {
        Reader { session, group: self.0, into }.without_wake_events(bytes.start, bytes.len())
    }

    fn add_events(&self, session: &Session<'_>, into: &EventBuffer, total: usize) -> Result<usize> {
        Reader { session, group: self.0, into }.add_events(total)
    }
}

/// A read into the program's buffer.
struct Reader<'s> {
    session: &'s Session<'s>,
    group: Group,
    into: &'s EventBuffer,
}

impl Reader<'_> {
    fn has_handles(&self) -> bool {
        self.group.flags.group & HANDLES != 0
    }

    /// Removes the wake file's events from those that the kernel has put into the program's buffer
    /// after the first `start` bytes; returns how many bytes the buffer has.
    fn without_wake_events(&self, start: usize, length: usize) -> Result<usize> {
        if length == 0 {
            return Ok(start);
        }
        let events = UserSlice::new(self.into.address + start as u64, length)?;
        let mut event = [0u8; KERNEL_EVENT_BYTES_MAX];
        let known = Watches::of(self.session.caller.thread).wake_handles(self.into.group.0);
        let (mut from, mut to) = (0, 0);
        while from + METADATA_BYTES <= length {
            let bytes = events.read::<u32>(from)? as usize;
            let end = from + bytes.clamp(METADATA_BYTES, length - from);
            let event = &mut event[..(end - from).min(KERNEL_EVENT_BYTES_MAX)];
            events.copy_to(from, event)?;
            if !self.is_wake_event(event, known) {
                events.move_down(from..end, to)?;
                to += end - from;
            }
            from = end;
        }
        Ok(start + to)
    }

    /// Whether an event of the kernel is of the wake file, or its directory. Then it closes the
    /// descriptors in it.
    fn is_wake_event(&self, event: &[u8], known: [u64; 2]) -> bool {
        let number = |at: usize| event.get(at..).and_then(|rest| rest.first_chunk().copied()).map(i32::from_ne_bytes);
        let fd = number(16).unwrap_or(NONE);
        let (mut at, mut is_it, mut pidfd) = (METADATA_BYTES, false, NONE);
        if !self.has_handles() {
            let seen = if fd >= 0 { sys::status(fd).ok() } else { None };
            is_it = seen.is_some_and(|seen| [seen.st_ino, seen.st_dev] == known);
        }
        while let Some([kind, _, low, high]) = event.get(at..).and_then(|rest| rest.first_chunk().copied()) {
            match kind {
                INFO_PIDFD => pidfd = number(at + 4).unwrap_or(NONE),
                INFO_FID | INFO_DFID_NAME | INFO_DFID | INFO_OLD_DFID_NAME | INFO_NEW_DFID_NAME => {
                    let sum = event.get(at + INFO_HEAD_BYTES..).map_or(0, checksum);
                    is_it |= self.has_handles() && sum != 0 && known.contains(&sum);
                }
                _ => {}
            }
            at += usize::from(u16::from_ne_bytes([low, high])).max(4);
        }
        if is_it {
            close(fd);
            close(pidfd);
        }
        is_it
    }

    /// Adds events of the region to the program's buffer; returns how many bytes it has. EINVAL:
    /// not even one event has room.
    fn add_events(&self, mut total: usize) -> Result<usize> {
        let (thread, group) = (self.session.caller.thread, self.into.group);
        let mut event = MarkEvent::none();
        let result = loop {
            let room = self.into.length - total;
            let taken = Watches::of(thread).take_mark_event(group, |event| self.bytes_of(event) <= room, &mut event)?;
            match taken {
                Taken::Empty => break Ok(total),
                Taken::TooLong if total == 0 => break Err(Errno::EINVAL),
                Taken::TooLong => break Ok(total),
                Taken::Event => {}
            }
            match self.put(&event, self.into.address + total as u64) {
                Ok(bytes) => total += bytes,
                Err(_) if total != 0 => break Ok(total),
                Err(error) => break Err(error),
            }
        };
        Watches::of(thread).rearm_group(group.0, group.1)?;
        result
    }

    fn bytes_of(&self, event: &MarkEvent) -> usize {
        let mut text = Text::new();
        self.write(event, [NONE; 2], &mut text);
        text.length
    }

    /// Puts an event into the program's buffer; returns its length. It has no descriptor if its
    /// file has ended.
    fn put(&self, event: &MarkEvent, at: u64) -> Result<usize> {
        let flags = self.group.flags.group;
        let mut fd = NONE;
        if !self.has_handles() && event.mask & event::Q_OVERFLOW == 0 {
            fd = match self.open(event.object) {
                Ok(fd) => fd,
                Err(_) if flags & REPORT_FD_ERROR != 0 => -libc::ENOENT,
                Err(Errno::ENOENT) => NONE,
                Err(error) => return Err(error),
            };
        }
        let pidfd = if flags & REPORT_PIDFD == 0 { NONE } else { process_descriptor(event.process) };
        let mut text = Text::new();
        self.write(event, [fd, pidfd], &mut text);
        match user_memory::fill(at, &text.bytes[..text.length]) {
            Ok(()) => Ok(text.length),
            Err(error) => {
                let cloexec = self.group.flags.event as i32 & libc::O_CLOEXEC != 0;
                if fd >= 0 && self.session.process.remove(self.session.caller.thread, fd as u32) {
                    descriptors::give_up(self.session, fd as u32, cloexec);
                }
                close(pidfd);
                Err(error)
            }
        }
    }

    /// Opens the file of an event. ENOENT: it has ended.
    fn open(&self, file: FileId) -> Result<i32> {
        let (session, flags) = (self.session, self.group.flags.event as i32);
        let thread = session.caller.thread;
        let node = thread.node(file.number, Some(file.generation)).map_err(|_| Errno::ENOENT)?;
        let opened = session.caller.opens().open_silently(node, flags);
        thread.release(node, 1);
        let verdict = open::install(session, &opened?, None, flags & libc::O_CLOEXEC != 0)?;
        Ok(verdict.result as i32)
    }

    /// Writes an event as a program reads it.
    fn write(&self, event: &MarkEvent, [fd, pidfd]: [i32; 2], text: &mut Text) {
        text.put(&[0; 4]);
        text.put(&[METADATA_VERSION, 0]);
        text.put(&(METADATA_BYTES as u16).to_ne_bytes());
        text.put(&u64::from(event.mask).to_ne_bytes());
        text.put(&fd.to_ne_bytes());
        text.put(&event.process.to_ne_bytes());
        if self.has_handles() && event.mask & event::Q_OVERFLOW == 0 {
            self.write_handles(event, text);
        }
        if self.group.flags.group & REPORT_PIDFD != 0 {
            text.put(&[INFO_PIDFD, 0, 8, 0]);
            text.put(&pidfd.to_ne_bytes());
        }
        let length = (text.length as u32).to_ne_bytes();
        text.bytes[..4].copy_from_slice(&length);
    }

    /// The files of an event: directory and name, those of a rename's target, and the file.
    fn write_handles(&self, event: &MarkEvent, text: &mut Text) {
        let is_rename = event.mask & event::RENAME != 0;
        let [old, new] = [0, 1].map(|which| event.name(which));
        let [old, new] = [&old[..event.name_lengths[0]], &new[..event.name_lengths[1]]];
        let mut is_first = true;
        if event.directory.number != 0 {
            let kind = match old.is_empty() {
                _ if is_rename => INFO_OLD_DFID_NAME,
                true => INFO_DFID,
                false => INFO_DFID_NAME,
            };
            self.write_handle(kind, event.directory, old, text);
            is_first = false;
        }
        if event.moved_to.number != 0 {
            self.write_handle(INFO_NEW_DFID_NAME, event.moved_to, new, text);
            is_first = false;
        }
        if event.object.number == 0 {
            return;
        }
        let of_directory = event.mask & event::IS_DIRECTORY != 0;
        let flags = self.group.flags.group & HANDLES;
        let (kind, name): (u8, &[u8]) = match () {
            () if flags == REPORT_FID || !is_first => (INFO_FID, b""),
            () if flags & REPORT_NAME != 0 && of_directory => (INFO_DFID_NAME, b"."),
            () if event.mask & event::OF_NAMES != 0 || of_directory => (INFO_DFID, b""),
            () => (INFO_FID, b""),
        };
        self.write_handle(kind, event.object, name, text);
    }

    fn write_handle(&self, kind: u8, file: FileId, name: &[u8], text: &mut Text) {
        use crate::calls::handles::{HANDLE_BYTES, KIND};
        let start = text.length;
        text.put(&[kind, 0, 0, 0]);
        for word in server::get().map_or([0; 2], status::file_system_id) {
            text.put(&word.to_ne_bytes());
        }
        let words = [HANDLE_BYTES, KIND as u32, file.generation, file.number as u32, (file.number >> 32) as u32];
        for word in words {
            text.put(&word.to_ne_bytes());
        }
        text.put(name);
        let padding = if name.is_empty() { 0 } else { 4 - name.len() % 4 };
        text.put(&[0; 4][..padding]);
        let length = ((text.length - start) as u16).to_ne_bytes();
        text.bytes[start + 2..start + 4].copy_from_slice(&length);
    }
}

/// An event in the making.
struct Text {
    bytes: [u8; EVENT_BYTES_MAX],
    length: usize,
}

impl Text {
    fn new() -> Text {
        Text { bytes: [0; EVENT_BYTES_MAX], length: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.length..self.length + bytes.len()) {
            room.copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }
}

fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: a descriptor that the kernel has just made for an event that no program sees.
        unsafe { sys::call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]) };
    }
}

/// A descriptor of a process, or why there is none, as events report it.
fn process_descriptor(process: u32) -> i32 {
    if process == 0 {
        return NONE;
    }
    // SAFETY: the call changes no memory.
    match unsafe { sys::call(libc::SYS_pidfd_open, [process.into(), 0, 0, 0, 0, 0]) } {
        fd @ 0.. => fd as i32,
        missing if missing == -i64::from(libc::ESRCH) => NONE,
        _ => NO_PIDFD,
    }
}

/// ioctl(fd, FIONREAD, address), of a fanotify descriptor.
pub fn bytes_in_queue(thread: &Thread<'static>, group: (u32, u64)) -> Result<(usize, bool, usize)> {
    let (bytes, has_wake_event) = Watches::of(thread).mark_events_bytes(group)?;
    Ok((bytes, has_wake_event, METADATA_BYTES))
}
