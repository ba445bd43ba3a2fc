//! Numbers of descriptors: the next one is always the lowest free number, and usually the kernel
//! need not be asked for it.
//!
//! When a descriptor of the image is closed, its placeholder stays open in the kernel: it is
//! *cached*. Its number is free for the program, and the next descriptor of the image with this
//! number finds the placeholder there. So a program that opens and closes files of the image needs
//! no kernel calls for that.
//!
//! Invariants
//! - All numbers below the low-water mark are in use. Whatever frees a number lowers the mark to
//!   it: closes of the image's descriptors here, closes of the host's in [`descriptors`](super), to
//!   which the filter sends closes of numbers known to be the host's ([`HOST`]). There are no
//!   others below the mark.
//! - Below the mark no byte is zero. Above it a byte of zero is always right; one that marks the
//!   number as the host's may miss a concurrent close. So a request to the kernel for a number asks
//!   for the lowest from the mark on, and the kernel's answer counts.
//! - A cached number is not below the mark. The filter's byte identifies it, and calls that use the
//!   number get EBADF.
//! - The thread that changes the byte of a cached number to [`DIRECTFS`] owns the number; with
//!   other threads it uses compare-and-swap. So threads need no lock: they share only the bytes and
//!   the mark. The mark rises only after a question to the kernel, or when it is well below the
//!   free number.
//! - Calls that create a descriptor of the host, or could reveal cached ones, first return those to
//!   the kernel ([`release_cached`]): the filter sends such calls to the dispatcher while cached
//!   ones may exist. Calls that the filter does not see may get a number above a cached one.
//! - The state belongs to this process and its memory. A child in its parent's memory has its own
//!   table in the kernel. So nothing is cached when it is created and while it runs, and it asks
//!   the kernel. Where two memories share one table, nothing is ever cached.
//! - Caching a number, and releasing cached ones or sharing memory, each store first and then load
//!   (all of these are full fences, unless there is one thread): one of the two sees the other.
//!
//! Decision: docs/decisions/run-calls.md, "Descriptor numbers are the kernel's".

use crate::abi::entry::{DIRECTFS_FD_COUNT, DIRECTFS_FDS, DIRECTFS_PARKED, FDS_MAX};
use crate::descriptors::marks::{CACHED, CACHED_CLOEXEC, DIRECTFS, HOST, PROTECTED, close_placeholder, kernel, placed};
use crate::process::session::{self, Session};
use crate::process::{environment, limits};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use pmem::prefetch_for_write;
use posix::{Errno, Result};
use tables::child_numbers::is_hidden_here;
use tables::process::Process;

/// Numbers from here on are not cached: a release inspects all numbers below.
const CACHED_BELOW: u32 = 256;
/// The minimum distance of a free number from the low-water mark for the mark to rise.
const RAISE_BY: u32 = 8;
/// Maximum number of the host's descriptors that one question records: each costs one more check.
const KNOWN_AT_ONCE: u32 = 64;

/// Numbers below its lower half are in use.
static LOW_WATER_MARK: AtomicU64 = AtomicU64::new(0);
/// No number from here on is known to be the host's.
static KNOWN_END: AtomicU32 = AtomicU32::new(0);
/// In `DIRECTFS_PARKED`: cached numbers may exist.
const MAY_BE_CACHED: u32 = 1;
/// In `DIRECTFS_PARKED`, for good: a descriptor was opened with O_PATH.
const MAY_BE_PATHS: u32 = 2;
/// In the mark's word: the mark was lowered, or something below what other threads inspected was
/// freed.
const ONE_FREED: u64 = 1 << 32;

/// A child has run in this memory: bytes may be set for the child's own descriptors.
static MEMORY_WAS_SHARED: AtomicBool = AtomicBool::new(false);
/// Number of children that run in this memory, or may.
static MEMORY_SHARERS: AtomicU32 = AtomicU32::new(0);
/// In `MEMORY_SHARERS`: permanently shared.
const ALWAYS: u32 = 1 << 31;

fn byte(fd: u32) -> Option<&'static AtomicU8> {
    DIRECTFS_FDS.byte(fd)
}

fn state(fd: u32) -> u8 {
    byte(fd).map_or(0, |byte| byte.load(Relaxed))
}

/// What the filter counts: the image's descriptors and cached placeholders.
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

/// Whether nothing else changes bytes meanwhile: neither another thread nor a child in this memory.
/// (Signal handlers run after the call, or while the kernel performs a part of it.) Then a load and
/// a store suffice, which cost a fraction of an atomic operation.
fn is_alone() -> bool {
    !session::has_threads() && MEMORY_SHARERS.load(Relaxed) == 0
}

/// Sets a number's state.
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

/// The kernel is about to close a descriptor of the host.
pub fn forget(fd: u32) {
    if !is_host(fd) {
        unmark(fd);
    }
    forget_host_numbers(fd, fd);
    record_free(fd);
}

/// Records that a descriptor may be the image's.
pub fn mark(fd: u32) {
    // At a hidden number, which a child in this memory has taken, the table decides.
    if DIRECTFS_FDS.byte(fd).is_some_and(|byte| !matches!(byte.load(Relaxed), DIRECTFS | PROTECTED)) {
        set_state(fd, DIRECTFS);
    }
}

/// Records that a descriptor is no longer the image's, and that nothing else is known about it.
pub fn unmark(fd: u32) {
    if DIRECTFS_FDS.byte(fd).is_some_and(|byte| !matches!(byte.load(Relaxed), 0 | PROTECTED)) {
        set_state(fd, 0);
        // If the kernel has something there, its close no longer reaches the dispatcher.
        record_free(fd);
    }
}

/// Stops hiding a number from the program.
pub fn unprotect(fd: i32) {
    let is_hidden = |byte: &&AtomicU8| byte.load(Relaxed) == PROTECTED && is_hidden_here(fd);
    // A number that this child took is still its parent's.
    if let Some(byte) = DIRECTFS_FDS.byte(fd as u32).filter(is_hidden) {
        byte.store(0, Release);
        record_free(fd as u32);
    }
}

/// Unprotects a number, if its state is still `before`.
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

/// Takes the first cached number of a range for the caller; returns it, and whether exec closes its
/// placeholder.
fn take_first_cached(from: u32, to: u32) -> Option<(u32, bool)> {
    if DIRECTFS_PARKED.load(SeqCst) & MAY_BE_CACHED == 0 {
        return None;
    }
    (from..to.min(CACHED_BELOW)).find_map(|fd| take_cached(fd).map(|cloexec| (fd, cloexec)))
}

/// Takes a number if it is cached; returns whether exec closes its placeholder.
fn take_cached(fd: u32) -> Option<bool> {
    let now = state(fd);
    (is_cached(now) && change(fd, now, DIRECTFS)).then_some(now == CACHED_CLOEXEC)
}

/// Reserves a number for a descriptor of the image: the lowest free one from `min` on, with a
/// placeholder behind it and its byte set.
pub fn reserve(session: &Session<'_>, min: u32, cloexec: bool) -> Result<u32> {
    if session.is_child || MEMORY_SHARERS.load(Relaxed) & ALWAYS != 0 {
        return allocate(min, cloexec).inspect(|&fd| mark(fd));
    }
    let seen = LOW_WATER_MARK.load(Acquire);
    let floor = seen as u32;
    let lowest = floor.max(min);
    let mut next = lowest;
    // Usually one of the bytes in its line is about to change, and other threads change that line,
    // too.
    if let Some(byte) = byte(lowest) {
        prefetch_for_write(byte);
    }
    let (fd, was_cloexec, in_use) = loop {
        if let Some(was_cloexec) = take_cached(next) {
            // Not for each number: threads that open and close would raise and lower it all the
            // time.
            break (next, was_cloexec, if next >= floor + RAISE_BY { next } else { floor });
        }
        match state(next) {
            // Another thread was faster.
            CACHED | CACHED_CLOEXEC => {}
            // The kernel knows whether a child's number is still in use.
            DIRECTFS if !MEMORY_WAS_SHARED.load(Relaxed) || session.process.descriptor(next).is_some() => next += 1,
            // From there on nothing is cached, so the kernel is asked in any case.
            HOST if next < CACHED_BELOW => next += 1,
            // A number of the host must be asked for once.
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

/// The kernel has reported all numbers from `from` to `to` as in use: records which of them are its
/// own. Returns the first one that remains unknown, or `to`.
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
        // Its close reaches the dispatcher from here on, but an earlier one may have passed.
        if change(fd, 0, HOST) && kernel(libc::SYS_fcntl, u64::from(fd), libc::F_GETFD as u64, 0) < 0 {
            change(fd, HOST, 0);
            record_free(fd);
        }
    }
    to
}

/// Whether a number is known to be the host's.
pub fn is_host(fd: u32) -> bool {
    state(fd) == HOST
}

/// The numbers `first..=last` were closed: forgets which of them were the host's.
pub fn forget_host_numbers(first: u32, last: u32) {
    let end = KNOWN_END.load(Acquire);
    for fd in (first..end).take_while(|&fd| fd <= last) {
        change(fd, HOST, 0);
    }
}

/// Raises the low-water mark, unless the kernel freed a number meanwhile, which may lie below the
/// numbers that the caller inspected.
#[cold]
fn raise(seen: u64, to: u32) {
    let floor = seen as u32;
    let raised = seen - u64::from(floor) + u64::from(to);
    if LOW_WATER_MARK.compare_exchange(seen, raised, SeqCst, Relaxed).is_ok()
        && let Some(cached) = (floor..to).find(|&fd| is_cached(state(fd)))
    {
        // The thread that cached it may have seen the previous mark.
        lower(cached, false);
    }
}

/// The lowest number from `lowest` on that is free in the kernel, or cached; all numbers between
/// `min` and `lowest` are in use.
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
        // The kind of error depends on where the kernel's search begins.
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

/// Releases a number of the image: its placeholder is cached, or closed.
pub fn close(fd: u32, cloexec: bool) {
    let cached = cache_placeholder(fd, cloexec);
    if !cached {
        // The number is the kernel's as soon as it is closed.
        set_state(fd, 0);
        close_placeholder(fd);
    }
    lower(fd, !cached);
}

/// Releases a number behind which the kernel has more than a placeholder.
pub fn close_in_kernel(fd: u32) {
    set_state(fd, 0);
    close_placeholder(fd);
    lower(fd, true);
}

/// Caches a number's placeholder, if permitted.
fn cache_placeholder(fd: u32, cloexec: bool) -> bool {
    // Above the program's limit the kernel would not give the number out again.
    if fd >= CACHED_BELOW || fd >= limits::descriptors() || MEMORY_SHARERS.load(Relaxed) != 0 {
        return false;
    }
    let cached = if cloexec { CACHED_CLOEXEC } else { CACHED };
    set_state(fd, cached);
    if DIRECTFS_PARKED.load(SeqCst) & MAY_BE_CACHED == 0 {
        DIRECTFS_PARKED.fetch_or(MAY_BE_CACHED, SeqCst);
    }
    // A child is about to run in this memory: the thread that shares it cannot close what it did
    // not see.
    MEMORY_SHARERS.load(SeqCst) == 0 || !change(fd, cached, DIRECTFS)
}

/// Lowers the mark to a free number. With `unseen` other threads may have inspected the number and
/// found it in use, without notice of its release.
fn lower(fd: u32, unseen: bool) {
    let lowered = |word: u64| match u64::from(fd) < word & (ONE_FREED - 1) {
        true => Some((word & !(ONE_FREED - 1)).wrapping_add(ONE_FREED) | u64::from(fd)),
        false => unseen.then(|| word.wrapping_add(ONE_FREED)),
    };
    let _ = LOW_WATER_MARK.fetch_update(SeqCst, SeqCst, lowered);
}

/// The kernel has freed a number, and perhaps some after it.
pub fn record_free(fd: u32) {
    lower(fd, true);
}

/// The program is about to have the kernel put something else at a number; returns its
/// close-on-exec state if it was cached. If the kernel puts nothing there after all, [`close`] must
/// release it.
pub fn claim(fd: u32) -> Option<bool> {
    if DIRECTFS_PARKED.load(Relaxed) & MAY_BE_CACHED == 0 {
        return None;
    }
    take_cached(fd)
}

/// Returns all cached numbers to the kernel.
#[inline]
pub fn release_cached() {
    if DIRECTFS_PARKED.load(Acquire) & MAY_BE_CACHED != 0 {
        release_all_cached();
    }
}

#[cold]
fn release_all_cached() {
    DIRECTFS_PARKED.fetch_and(!MAY_BE_CACHED, SeqCst);
    for fd in 0..CACHED_BELOW {
        if take_cached(fd).is_some() {
            set_state(fd, 0);
            close_placeholder(fd);
        }
    }
}

/// A descriptor of this process has a description of O_PATH: from now on the filter shows calls
/// that poll.
#[cold]
pub fn record_path_descriptor() {
    DIRECTFS_PARKED.fetch_or(MAY_BE_PATHS, SeqCst);
}

/// Whether a descriptor with O_PATH may exist.
pub fn may_be_paths() -> bool {
    DIRECTFS_PARKED.load(Relaxed) & MAY_BE_PATHS != 0
}

/// A child that runs in this memory is about to be created: nothing is cached until
/// [`end_memory_sharing`].
pub fn begin_memory_sharing() {
    MEMORY_WAS_SHARED.store(true, Relaxed);
    MEMORY_SHARERS.fetch_add(1, SeqCst);
    release_all_cached();
}

/// The child has ended, or was never created.
pub fn end_memory_sharing() {
    MEMORY_SHARERS.fetch_sub(1, AcqRel);
}

/// Another process is about to share the kernel's table: from now on only the kernel knows what is
/// free.
pub fn stop() {
    MEMORY_SHARERS.fetch_or(ALWAYS, SeqCst);
    release_all_cached();
}

/// In the child of a fork, which has one thread and a copy of the table: other threads are absent,
/// and their unfinished operations end here.
pub fn begin_again(process: &Process<'_>, had_threads: bool) {
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
