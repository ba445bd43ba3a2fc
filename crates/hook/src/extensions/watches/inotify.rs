//! inotify: one descriptor for watches on paths of the kernel and of the mount.
//!
//! The descriptor is the kernel's, so poll, epoll, dup, fork and signals are, too. Watches on files
//! of the mount and their events are in the DRAM region (`tables::watch`). With the first of them
//! the kernel's descriptor gets a watch on a *wake file* in the meeting directory, which is
//! touched when such an event arrives. A read removes the events of that watch and adds those of
//! the region.
//!
//! Invariants
//! - Each inotify descriptor has a description in the shared tables, from its creation on: so every
//!   process that inherits it knows the key of its group.
//! - A read empties the kernel's descriptor, then disarms the group, then empties its queue, until
//!   both are empty. What is left arms it again: so the descriptor is readable while events are
//!   left, and then only.
//! - The numbers of watches in the mount are above all that the kernel assigns.

use super::{EventBuffer, EventKind, WakeFile, describe, fanotify, limit_of, read_group};
use crate::abi::entry::{FDS_MAX, NATIVE, Verdict, done};
use crate::abi::user_memory::UserSlice;
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use crate::calls::names::{by_node, path};
use crate::descriptors::marks::{self, host_verdict};
use crate::descriptors::{self, fd_numbers};
use crate::process::session::{Calling, Session};
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use engine::format::FileKind;
use engine::{Node, Thread};
use posix::path::LastLink;
use posix::{Errno, Result, Want};
use tables::watch::{EVENT_BYTES, NewWatch, Taken, WatchEvent, Watches, event};

/// Bits of a mask, of which a request needs one.
const MASK_BITS: u32 = event::ALL
    | event::UNMOUNT
    | event::Q_OVERFLOW
    | event::IGNORED
    | libc::IN_ONLYDIR
    | libc::IN_DONT_FOLLOW
    | event::EXCL_UNLINK
    | event::MASK_CREATE
    | event::MASK_ADD
    | event::IS_DIRECTORY
    | event::ONESHOT;

/// inotify_init().
pub fn init(call: &mut Call<'_>) -> Result<Verdict> {
    make(call, 0)
}

/// inotify_init1(flags).
pub fn init1(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.rdi as i32;
    make(call, flags)
}

fn make(call: &mut Call<'_>, flags: i32) -> Result<Verdict> {
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    let Some(fd) = u32::try_from(verdict.result).ok().filter(|&fd| (fd as usize) < FDS_MAX) else { return Ok(verdict) };
    // Without a description it serves the kernel's paths only.
    let Ok(inside) = call.begin() else { return Ok(verdict) };
    describe(&inside.session, fd, None, flags & libc::IN_CLOEXEC != 0);
    Ok(verdict)
}

/// inotify_add_watch(fd, path, mask).
pub fn add_watch(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, mask) = (call.frame.rdi as u32, call.frame.rdx as u32);
    if mask & MASK_BITS == 0 {
        return Err(Errno::EINVAL);
    }
    if marks::is_hidden(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    descriptors::kernel_verdict(call, call.frame.rdi)?;
    fd_numbers::release_cached();
    let last_link = if mask & libc::IN_DONT_FOLLOW != 0 { LastLink::Stay } else { LastLink::Follow };
    let session = call.begin()?.session;
    // The kernel refuses a fanotify descriptor.
    let key = session.process.watch_key(fd).filter(|_| session.process.mark_group_flags(fd).is_none());
    by_node(call, path(1), 0, last_link, &mut |caller, node| watch(caller, node, (fd, key), mask))
}

fn watch(caller: &Calling<'_>, node: Node, (fd, key): (u32, Option<u64>), mask: u32) -> Result<i64> {
    let both = event::MASK_ADD | event::MASK_CREATE;
    let key = key.ok_or_else(|| refusal(fd, mask))?;
    if mask & both == both {
        return Err(Errno::EINVAL);
    }
    let file = caller.stat(node)?;
    if mask & libc::IN_ONLYDIR != 0 && file.kind != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    caller.access(node, Want::READ)?;
    let thread = caller.thread;
    let group = match Watches::of(thread).watch_group(key) {
        Some(group) if Watches::of(thread).wake_watch(group) != 0 => group,
        _ => make_group(thread, fd, key)?,
    };
    let new = NewWatch { group: (group, key), number: node.number, mask, limit: limit() };
    Ok(i64::from(Watches::add_watch(thread, &new)?))
}

/// The error of a descriptor without a description: the kernel knows whether it is open, and
/// inotify's.
fn refusal(fd: u32, mask: u32) -> Errno {
    // SAFETY: a terminated path, which no file has.
    let result =
        unsafe { sys::call(libc::SYS_inotify_add_watch, [fd.into(), c"".as_ptr() as u64, mask.into(), 0, 0, 0]) };
    match Errno(-result as i32) {
        Errno::ENOENT => Errno::EOPNOTSUPP,
        other => other,
    }
}

/// Makes the group of a descriptor, and has the kernel's descriptor watch its wake file. Threads
/// that do so at a time do the same.
fn make_group(thread: &Thread<'static>, fd: u32, key: u64) -> Result<u32> {
    let group = Watches::make_watch_group(thread, (key, sys::effective_user()))?;
    let file = WakeFile::make(group)?;
    let mask = libc::IN_ATTRIB.into();
    // SAFETY: a terminated path that outlives the call, which changes no memory.
    let watch =
        unsafe { sys::call(libc::SYS_inotify_add_watch, [fd.into(), file.text.as_ptr() as u64, mask, 0, 0, 0]) };
    if watch < 0 {
        return Err(Errno(-watch as i32));
    }
    Watches::of(thread).set_wake_watch(group, watch as i32, file.status().st_ino);
    Ok(group)
}

/// The most watches of a user.
fn limit() -> u32 {
    static LIMIT: AtomicU32 = AtomicU32::new(0);
    limit_of(&LIMIT, b"/proc/sys/fs/inotify/max_user_watches\0")
}

/// inotify_rm_watch(fd, watch).
pub fn rm_watch(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, number) = (call.frame.rdi as u32, call.frame.rsi as i32);
    let session = call.begin()?.session;
    let thread = session.caller.thread;
    let Some(key) = session.process.watch_key(fd) else { return host_verdict(fd) };
    if session.process.mark_group_flags(fd).is_some() {
        return Ok(NATIVE);
    }
    let Some(group) = Watches::of(thread).watch_group(key) else { return Ok(NATIVE) };
    if number == Watches::of(thread).wake_watch(group) {
        return Err(Errno::EINVAL);
    }
    if !Watches::is_own_watch(number) {
        return Ok(NATIVE);
    }
    Watches::remove_watch(thread, (group, key), number).map_err(|_| Errno::EINVAL)?;
    Ok(done(0))
}

/// read, of a descriptor that is not of a file of the image.
#[cold]
pub fn read(call: &mut Call<'_>, buffer: (u64, u64)) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    let session = call.begin()?.session;
    let Some(key) = session.process.watch_key(fd) else { return Ok(NATIVE) };
    if session.process.mark_group_flags(fd).is_some() {
        return fanotify::read(call, buffer);
    }
    read_group(call, key, buffer, &Watched)
}

/// Events of watches.
struct Watched;

impl EventKind for Watched {
    const BYTES: usize = EVENT_BYTES;

    fn without_wake_events(&self, session: &Session<'_>, into: &EventBuffer, bytes: Range<usize>) -> Result<usize> {
        let wake_watch = Watches::of(session.caller.thread).wake_watch(into.group.0);
        Ok(bytes.start + without_wake_events(into.address + bytes.start as u64, bytes.len(), wake_watch)?)
    }

    fn add_events(&self, session: &Session<'_>, into: &EventBuffer, total: usize) -> Result<usize> {
        add_events(session.caller.thread, into, total)
    }
}

/// Removes the wake file's events from those that the kernel has put into the program's buffer;
/// returns how many bytes are left.
fn without_wake_events(buffer: u64, length: usize, wake_watch: i32) -> Result<usize> {
    if length == 0 {
        return Ok(0);
    }
    let events = UserSlice::new(buffer, length)?;
    let (mut from, mut to) = (0, 0);
    while from + EVENT_BYTES <= length {
        let [watch, _, _, name_bytes] = events.read::<[u32; 4]>(from)?;
        let end = (from + EVENT_BYTES + name_bytes as usize).min(length);
        if watch as i32 != wake_watch {
            events.move_down(from..end, to)?;
            to += end - from;
        }
        from = end;
    }
    Ok(to)
}

/// Adds events of the region to the program's buffer; returns how many bytes it has. EINVAL: not
/// even one event has room.
fn add_events(thread: &Thread<'static>, into: &EventBuffer, mut total: usize) -> Result<usize> {
    let (group, key) = into.group;
    let mut event = WatchEvent::none();
    let mut has_ended = false;
    let taken = loop {
        let taken = Watches::of(thread).take_watch_event(group, key, into.length.saturating_sub(total), &mut event)?;
        if taken != Taken::Event {
            break taken;
        }
        has_ended |= event.mask & event::IGNORED != 0;
        let head = [event.watch as u32, event.mask, event.cookie, event.name_field_bytes() as u32];
        let address = into.address + total as u64;
        user_memory::write(address, &head)?;
        user_memory::fill(address + EVENT_BYTES as u64, &event.name()[..event.name_field_bytes()])?;
        total += event.bytes();
    };
    Watches::of(thread).rearm_group(group, key)?;
    if has_ended {
        Watches::sweep_watches(thread)?;
    }
    if taken == Taken::TooLong && total == 0 { Err(Errno::EINVAL) } else { Ok(total) }
}

/// ioctl(fd, FIONREAD, address), of a descriptor that is not of a file of the image.
#[cold]
pub fn bytes_to_read(call: &mut Call<'_>, address: u64) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    let session = call.begin()?.session;
    let thread = session.caller.thread;
    let Some(key) = session.process.watch_key(fd) else { return Ok(NATIVE) };
    let Some(group) = Watches::of(thread).watch_group(key) else { return Ok(NATIVE) };
    let mut kernels = 0i32;
    // SAFETY: the kernel fills a number.
    let result = unsafe {
        sys::call(libc::SYS_ioctl, [fd.into(), u64::from(libc::FIONREAD as u32), &raw mut kernels as u64, 0, 0, 0])
    };
    if result < 0 {
        return Ok(done(result));
    }
    let (bytes, has_wake_event, event_bytes) = match session.process.mark_group_flags(fd) {
        Some(_) => fanotify::bytes_in_queue(thread, (group, key))?,
        None => {
            let (bytes, has_wake_event) = Watches::of(thread).watch_events_bytes(group, key)?;
            (bytes, has_wake_event, EVENT_BYTES)
        }
    };
    let extra = if has_wake_event { event_bytes as i32 } else { 0 };
    let sum = (kernels - extra).max(0).saturating_add(i32::try_from(bytes).unwrap_or(i32::MAX));
    user_memory::write(address, &sum)?;
    Ok(done(0))
}
