//! The numbers of descriptors: the next one is always the lowest that is free, and mostly the kernel need not be asked which one that is.
//!
//! The placeholder of a descriptor of ours that was closed stays open in the kernel: it is *parked*. For the program its number is free, and the next descriptor of
//! ours that is to get this number finds the placeholder there. So a program that opens and closes files of ours makes no calls to the kernel for that.
//!
//! Invariants
//! - All numbers below the floor are in use. Whatever frees a number lowers the floor to it: closing what is ours here, closing what is the kernel's in
//!   [`super::descriptors`], to which the filter sends whoever closes a number that is known to be the kernel's ([`HOST`]). There are no others below the floor.
//! - Below the floor no byte is zero. Above it a byte that says nothing (zero) is always right; one that says that the number is the kernel's may be late by a close that was on its way when it
//!   was set. So whoever asks the kernel for a number asks for the lowest from the floor on, and believes it.
//! - A parked number is not below the floor; the filter's byte says what it is, and whoever uses the number gets EBADF.
//! - Whoever changes the byte of a parked number to [`DIRECTFS`], beside others by compare-and-swap, has got the number. So threads need no lock: the bytes are
//!   all that they share, and the floor, which is only raised when the kernel had to be asked, or when it is well below what is free.
//! - Whatever makes a descriptor of the kernel's, or could tell that there are parked ones, gives them back first ([`release_cached`]): the filter sends it to the
//!   dispatcher while there may be any. Calls that the filter does not see may get a number above a parked one.
//! - The state is this process's and its memory's. A child that runs in its parent's memory has a table of its own in the kernel, so nothing is parked when it is made and
//!   while it runs, and it asks the kernel. Where two memories share one table, nothing is ever parked.
//! - Who parks and who gives back, or lends, each stores and then looks (all of these are full fences, unless there is one thread): one of the two sees the other.

use super::descriptors::{CACHED, CACHED_CLOEXEC, DIRECTFS, HOST, close_placeholder, kernel, mark, placed};
use super::entry::{DIRECTFS_FD_COUNT, DIRECTFS_FDS, DIRECTFS_PARKED, FDS_MAX};
use super::environment;
use super::processes::{self, Session};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use pmem::prefetch_for_write;
use posix::process::Process;
use posix::{Errno, Result};

/// Numbers from here on are not parked: whoever gives parked ones back looks at all below.
const CACHED_BELOW: u32 = 256;
/// How far what is free must be from the floor for that to be raised.
const RAISE_BY: u32 = 8;
/// Numbers of the kernel's that one question makes known at most: each is looked at once more.
const KNOWN_AT_ONCE: u32 = 64;

/// Numbers below its lower half are in use.
static LOW_WATER_MARK: AtomicU64 = AtomicU64::new(0);
/// No number from here on is known to be the kernel's.
static KNOWN_END: AtomicU32 = AtomicU32::new(0);
/// In the floor's word: it was lowered, or something below what others have looked at was freed.
const ONE_FREED: u64 = 1 << 32;

/// A child has run in our memory: bytes may be set for what was its own.
static MEMORY_WAS_SHARED: AtomicBool = AtomicBool::new(false);
/// Children that run in our memory, or may.
static MEMORY_SHARERS: AtomicU32 = AtomicU32::new(0);
/// In `MEMORY_SHARERS`: for ever.
const ALWAYS: u32 = 1 << 31;

fn byte(fd: u32) -> Option<&'static AtomicU8> {
    DIRECTFS_FDS.byte(fd)
}

fn state(fd: u32) -> u8 {
    byte(fd).map_or(0, |byte| byte.load(Relaxed))
}

/// What the filter has to know of: what is ours, and what is parked.
fn is_counted(state: u8) -> bool {
    matches!(state, DIRECTFS | CACHED | CACHED_CLOEXEC)
}

fn count(before: u8, now: u8) {
    match (is_counted(before), is_counted(now)) {
        (false, true) => drop(DIRECTFS_FD_COUNT.fetch_add(1, AcqRel)),
        (true, false) => drop(DIRECTFS_FD_COUNT.fetch_sub(1, AcqRel)),
        _ => {}
    }
}

/// Whether nobody else changes bytes meanwhile: neither another thread nor a child in our memory. (Handlers of signals come when the call is done, or while the kernel
/// does a part of it.) Then a load and a store do, which cost a fraction of what is atomic towards others.
fn is_alone() -> bool {
    !processes::has_threads() && MEMORY_SHARERS.load(Relaxed) == 0
}

/// What a number is from now on.
pub fn set_state(fd: u32, now: u8) {
    let Some(byte) = byte(fd) else { return };
    let before = match is_alone() {
        true => {
            let before = byte.load(Relaxed);
            byte.store(now, Relaxed);
            before
        }
        false => byte.swap(now, SeqCst),
    };
    count(before, now);
}

/// The same, if it is `before` still.
fn change(fd: u32, before: u8, now: u8) -> bool {
    let Some(byte) = byte(fd) else { return false };
    let changed = match is_alone() {
        true => {
            let is_before = byte.load(Relaxed) == before;
            if is_before {
                byte.store(now, Relaxed);
            }
            is_before
        }
        false => byte.compare_exchange(before, now, SeqCst, Relaxed).is_ok(),
    };
    if changed {
        count(before, now);
    }
    changed
}

fn is_cached(state: u8) -> bool {
    matches!(state, CACHED | CACHED_CLOEXEC)
}

/// The first parked number of a range, which is the caller's from now on, and whether exec closes its placeholder.
fn take_first_cached(from: u32, to: u32) -> Option<(u32, bool)> {
    if DIRECTFS_PARKED.load(SeqCst) == 0 {
        return None;
    }
    (from..to.min(CACHED_BELOW)).find_map(|fd| take_cached(fd).map(|cloexec| (fd, cloexec)))
}

/// Takes a number out of the parked ones, if it is one; whether exec closes its placeholder.
fn take_cached(fd: u32) -> Option<bool> {
    let now = state(fd);
    (is_cached(now) && change(fd, now, DIRECTFS)).then_some(now == CACHED_CLOEXEC)
}

/// A number for a descriptor of ours: the lowest free one from `min` on, with a placeholder behind it and its byte set.
pub fn reserve(session: &Session<'_>, min: u32, cloexec: bool) -> Result<u32> {
    if session.is_child || MEMORY_SHARERS.load(Relaxed) & ALWAYS != 0 {
        return allocate(min, cloexec).inspect(|&fd| mark(fd));
    }
    let seen = LOW_WATER_MARK.load(Acquire);
    let floor = seen as u32;
    let lowest = floor.max(min);
    let mut next = lowest;
    // Mostly one of the bytes of its line is going to change, which other threads change, too.
    if let Some(byte) = byte(lowest) {
        prefetch_for_write(byte);
    }
    let (fd, was_cloexec, in_use) = loop {
        if let Some(was_cloexec) = take_cached(next) {
            // Not for each number: threads that open and close would raise it and lower it all the time.
            break (next, was_cloexec, if next >= floor + RAISE_BY { next } else { floor });
        }
        match state(next) {
            // Another thread was faster.
            CACHED | CACHED_CLOEXEC => {}
            // Of what a child has left behind the kernel knows.
            DIRECTFS if !MEMORY_WAS_SHARED.load(Relaxed) || session.process.descriptor(next).is_some() => next += 1,
            // Farther up nothing is parked, so that the kernel is asked in any case.
            HOST if next < CACHED_BELOW => next += 1,
            // What is the kernel's has to be asked for once.
            _ => {
                let (fd, was_cloexec) = allocate_or_take(lowest, min, cloexec)?;
                break (fd, was_cloexec, record_host_numbers(lowest, fd));
            }
        }
    };
    if min <= floor && in_use > floor {
        raise(seen, in_use);
    }
    if was_cloexec != cloexec {
        kernel(libc::SYS_fcntl, u64::from(fd), libc::F_SETFD as u64, u64::from(cloexec));
    }
    Ok(fd)
}

/// The kernel has said that all numbers from `from` to `to` are in use: makes known which of them are its own. The first one of which it cannot be said, or `to`.
fn record_host_numbers(from: u32, to: u32) -> u32 {
    let mut count = 0;
    for fd in from..to {
        if state(fd) != 0 {
            continue;
        }
        if count == KNOWN_AT_ONCE {
            return fd;
        }
        count += 1;
        KNOWN_END.fetch_max(fd + 1, AcqRel);
        // Who closes it from here on comes to us; but it may have been closed before.
        if change(fd, 0, HOST) && kernel(libc::SYS_fcntl, u64::from(fd), libc::F_GETFD as u64, 0) < 0 {
            change(fd, HOST, 0);
            record_free(fd);
        }
    }
    to
}

/// Whether a number is known to be the kernel's.
pub fn is_host(fd: u32) -> bool {
    state(fd) == HOST
}

/// The numbers `first..=last` were closed: nothing is known of those that were the kernel's.
pub fn forget_host_numbers(first: u32, last: u32) {
    let end = KNOWN_END.load(Acquire);
    for fd in (first..end).take_while(|&fd| fd <= last) {
        change(fd, HOST, 0);
    }
}

/// Raises the floor, unless the kernel freed something meanwhile: it may have been behind where the caller looked.
#[cold]
fn raise(seen: u64, to: u32) {
    let floor = seen as u32;
    let raised = seen - u64::from(floor) + u64::from(to);
    if LOW_WATER_MARK.compare_exchange(seen, raised, SeqCst, Relaxed).is_ok()
        && let Some(cached) = (floor..to).find(|&fd| is_cached(state(fd)))
    {
        // Whoever parked it may have seen the floor of before.
        lower(cached, false);
    }
}

/// The lowest number from `lowest` on that is free in the kernel, or parked; all that is between `min` and `lowest` is in use.
fn allocate_or_take(lowest: u32, min: u32, cloexec: bool) -> Result<(u32, bool)> {
    let asked = allocate(lowest, cloexec);
    let end = *asked.as_ref().unwrap_or(&u32::MAX);
    if let Some(cached) = take_first_cached(lowest, end) {
        if end != u32::MAX {
            close(end, cloexec);
        }
        return Ok(cached);
    }
    let fd = match asked {
        // What is wrong depends on where the kernel is asked to begin.
        Err(_) if lowest > min => allocate(min, cloexec)?,
        asked => asked?,
    };
    set_state(fd, DIRECTFS);
    Ok((fd, cloexec))
}

/// A new placeholder from the kernel.
fn allocate(min: u32, cloexec: bool) -> Result<u32> {
    let Some(handoff) = environment::handoff() else { return Err(Errno::EBADF) };
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    placed(kernel(libc::SYS_fcntl, handoff.placeholder as u64, command as u64, u64::from(min)))
}

/// A number of ours is free again: its placeholder is parked, or closed.
pub fn close(fd: u32, cloexec: bool) {
    let cached = cache_placeholder(fd, cloexec);
    if !cached {
        // The kernel's from the moment on at which it is closed.
        set_state(fd, 0);
        close_placeholder(fd);
    }
    lower(fd, !cached);
}

/// Parks a number, if it may be.
fn cache_placeholder(fd: u32, cloexec: bool) -> bool {
    if fd >= CACHED_BELOW || MEMORY_SHARERS.load(Relaxed) != 0 {
        return false;
    }
    let cached = if cloexec { CACHED_CLOEXEC } else { CACHED };
    set_state(fd, cached);
    if DIRECTFS_PARKED.load(SeqCst) == 0 {
        DIRECTFS_PARKED.store(1, SeqCst);
    }
    // A child is about to run in our memory: it is not for whoever lends to close what he did not see.
    MEMORY_SHARERS.load(SeqCst) == 0 || !change(fd, cached, DIRECTFS)
}

/// Sees to it that the floor is not above a free number. With `unseen` others may have looked at it, and found it in use, without having been told.
fn lower(fd: u32, unseen: bool) {
    let lowered = |word: u64| match u64::from(fd) < word & (ONE_FREED - 1) {
        true => Some((word & !(ONE_FREED - 1)).wrapping_add(ONE_FREED) | u64::from(fd)),
        false => unseen.then(|| word.wrapping_add(ONE_FREED)),
    };
    let _ = LOW_WATER_MARK.fetch_update(SeqCst, SeqCst, lowered);
}

/// The kernel has freed a number, and perhaps some behind it.
pub fn record_free(fd: u32) {
    lower(fd, true);
}

/// The program is about to have the kernel put something else at a number; whether it was parked. If nothing comes there after all, it is to be closed
/// by [`close`].
pub fn claim(fd: u32) -> Option<bool> {
    if DIRECTFS_PARKED.load(Relaxed) == 0 {
        return None;
    }
    take_cached(fd)
}

/// Gives all parked numbers back to the kernel.
#[inline]
pub fn release_cached() {
    if DIRECTFS_PARKED.load(Acquire) != 0 {
        release_all_cached();
    }
}

#[cold]
fn release_all_cached() {
    DIRECTFS_PARKED.swap(0, SeqCst);
    for fd in 0..CACHED_BELOW {
        if take_cached(fd).is_some() {
            set_state(fd, 0);
            close_placeholder(fd);
        }
    }
}

/// A child is about to be made that runs in our memory: nothing is parked until
/// [`end_memory_sharing`].
pub fn begin_memory_sharing() {
    MEMORY_WAS_SHARED.store(true, Relaxed);
    MEMORY_SHARERS.fetch_add(1, SeqCst);
    release_all_cached();
}

/// The child has gone, or was never made.
pub fn end_memory_sharing() {
    MEMORY_SHARERS.fetch_sub(1, AcqRel);
}

/// Another process is about to share the kernel's table: from now on only the kernel knows what is free.
pub fn stop() {
    MEMORY_SHARERS.fetch_or(ALWAYS, SeqCst);
    release_all_cached();
}

/// In the child of a fork, which has one thread and a copy of the table: others are not here any more, and what they were at ends here.
pub fn begin_anew(process: &Process<'_>, had_threads: bool) {
    MEMORY_SHARERS.fetch_and(ALWAYS, Relaxed);
    if !had_threads || MEMORY_WAS_SHARED.load(Relaxed) {
        return;
    }
    for fd in (0..FDS_MAX as u32).filter(|&fd| state(fd) == DIRECTFS && process.descriptor(fd).is_none()) {
        set_state(fd, 0);
        close_placeholder(fd);
        record_free(fd);
    }
}
