//! The numbers of descriptors: the next one is always the lowest that is free, and mostly the kernel need not be asked which one that is.
//!
//! The placeholder of a descriptor of ours that was closed stays open in the kernel: it is *parked*. For the program its number is free, and the next descriptor of
//! ours that is to get this number finds the placeholder there. So a program that opens and closes files of ours makes no calls to the kernel for that.
//!
//! Invariants
//! - All numbers below the floor are in use. Whatever frees a number lowers the floor to it: closing what is ours here, closing what is the kernel's in
//!   [`super::descriptors`], to which the filter sends whoever closes a number below the floor.
//! - A parked number is not below the floor; the filter's byte says what it is, and whoever uses the number gets EBADF.
//! - Whatever makes a descriptor of the kernel's, or could tell that there are parked ones, gives them back first ([`give_back`]): the filter sends it to the
//!   dispatcher while there are any. Calls that the filter does not see may get a number above a parked one.
//! - The state is this process's and its memory's. A child that runs in its parent's memory has a table of its own in the kernel, so nothing is parked when it is made and
//!   while it runs, and it asks the kernel. Where two memories share one table, nothing is ever parked.
//! - Changes are made under a lock once there are threads. It is held for one call to the kernel at most; handlers of signals do not run meanwhile.

use super::descriptors::{OURS, PARKED, PARKED_CLOEXEC, close_placeholder, kernel, placed};
use super::entry::{DIRECTFS_FD_COUNT, DIRECTFS_FDS, DIRECTFS_FLOOR, DIRECTFS_PARKED, FDS_MAX};
use super::processes::Who;
use super::{environment, processes, sys};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use posix::{Errno, Result};

/// Parked numbers at a time: they are given back one by one.
const PARKED_MAX: u32 = 64;
/// Looks at the lock before the processor is given to others.
const SPINS: u32 = 200;

static LOCK: AtomicU32 = AtomicU32::new(0);
/// No parked number is at or behind this one.
static END: AtomicU32 = AtomicU32::new(0);
/// Children that run in our memory, or may.
static BORROWERS: AtomicU32 = AtomicU32::new(0);
/// In `BORROWERS`: for ever.
const ALWAYS: u32 = 1 << 31;

/// The lock, while it is held.
struct Held(bool);

fn lock() -> Held {
    if !processes::has_threads() {
        return Held(false);
    }
    let mut looks = 0;
    while LOCK.load(Relaxed) != 0 || LOCK.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        looks += 1;
        if looks < SPINS {
            core::hint::spin_loop();
        } else {
            // SAFETY: gives time to others, and changes nothing.
            unsafe { sys::call(libc::SYS_sched_yield, [0; 6]) };
        }
    }
    Held(true)
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0 {
            LOCK.store(0, Release);
        }
    }
}

fn state(fd: u32) -> u8 {
    DIRECTFS_FDS.0.get(fd as usize).map_or(0, |byte| byte.load(Relaxed))
}

/// What the filter has to know of: what is ours, and what is parked.
fn is_counted(state: u8) -> bool {
    matches!(state, OURS | PARKED | PARKED_CLOEXEC)
}

fn set_state(fd: u32, state: u8) {
    let Some(byte) = DIRECTFS_FDS.0.get(fd as usize) else { return };
    let before = byte.load(Relaxed);
    byte.store(state, Release);
    match (is_counted(before), is_counted(state)) {
        (false, true) => drop(DIRECTFS_FD_COUNT.fetch_add(1, AcqRel)),
        (true, false) => drop(DIRECTFS_FD_COUNT.fetch_sub(1, AcqRel)),
        _ => {}
    }
}

fn is_parked(fd: u32) -> bool {
    matches!(state(fd), PARKED | PARKED_CLOEXEC)
}

/// The first parked number of a range.
fn first_parked(from: u32, to: u32) -> Option<u32> {
    if DIRECTFS_PARKED.load(Relaxed) == 0 {
        return None;
    }
    (from..to.min(END.load(Relaxed))).find(|&fd| is_parked(fd))
}

/// A number for a descriptor of ours: the lowest free one from `min` on, with a placeholder behind it.
pub fn reserve(who: &Who<'_>, min: u32, cloexec: bool) -> Result<u32> {
    if who.is_child || BORROWERS.load(Relaxed) & ALWAYS != 0 {
        return ask(min, cloexec);
    }
    let held = lock();
    let floor = DIRECTFS_FLOOR.load(Relaxed);
    let mut start = floor.max(min);
    // What the table knows is in use. The byte alone may be wrong, but never where it says nothing.
    while state(start) == OURS && who.process.descriptor(start).is_some() {
        start += 1;
    }
    let (fd, was_cloexec) = match is_parked(start) {
        true => (start, take(start, OURS)),
        false => {
            let asked = ask(start, cloexec);
            let end = *asked.as_ref().unwrap_or(&u32::MAX);
            match first_parked(start, end) {
                Some(parked) => {
                    if end != u32::MAX && !put(end, cloexec) {
                        close_placeholder(end);
                    }
                    (parked, take(parked, OURS))
                }
                // What is wrong depends on where the kernel is asked to begin.
                None if start > min && asked.is_err() => (ask(min, cloexec)?, cloexec),
                None => (asked?, cloexec),
            }
        }
    };
    if min <= floor {
        DIRECTFS_FLOOR.store(fd + 1, Relaxed);
    }
    drop(held);
    if was_cloexec != cloexec {
        kernel(libc::SYS_fcntl, u64::from(fd), libc::F_SETFD as u64, u64::from(cloexec));
    }
    Ok(fd)
}

/// A new placeholder from the kernel.
fn ask(min: u32, cloexec: bool) -> Result<u32> {
    let Some(contract) = environment::contract() else { return Err(Errno::EBADF) };
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    placed(kernel(libc::SYS_fcntl, contract.placeholder as u64, command as u64, u64::from(min)))
}

/// Parks a number that is free for the program and open in the kernel; whether there was room. Under the lock.
fn put(fd: u32, cloexec: bool) -> bool {
    let parked = DIRECTFS_PARKED.load(Relaxed);
    if parked >= PARKED_MAX || fd as usize >= FDS_MAX || BORROWERS.load(Acquire) != 0 {
        return false;
    }
    set_state(fd, if cloexec { PARKED_CLOEXEC } else { PARKED });
    END.store(END.load(Relaxed).max(fd + 1), Relaxed);
    DIRECTFS_PARKED.store(parked + 1, Release);
    true
}

/// Takes a number out of the parked ones, to be `what`; whether its placeholder is one that exec closes. Under the lock.
fn take(fd: u32, what: u8) -> bool {
    let cloexec = state(fd) == PARKED_CLOEXEC;
    set_state(fd, what);
    // (A fork may have copied it in the middle of a change by another thread.)
    let parked = DIRECTFS_PARKED.load(Relaxed).saturating_sub(1);
    DIRECTFS_PARKED.store(parked, Release);
    if parked == 0 {
        END.store(0, Relaxed);
    }
    cloexec
}

/// A number of ours is free again: its placeholder is parked, or closed.
pub fn close(fd: u32, cloexec: bool) {
    let _held = lock();
    if !put(fd, cloexec) {
        set_state(fd, 0);
        close_placeholder(fd);
    }
    lower(fd);
}

fn lower(fd: u32) {
    if fd < DIRECTFS_FLOOR.load(Relaxed) {
        DIRECTFS_FLOOR.store(fd, Relaxed);
    }
}

/// The kernel has freed a number, and perhaps some behind it.
pub fn note_free(fd: u32) {
    let _held = lock();
    lower(fd);
}

/// The program is about to have the kernel put something else at a number; whether it was parked. If nothing comes there after all, it is to be closed
/// by [`close`].
pub fn claim(fd: u32) -> Option<bool> {
    if DIRECTFS_PARKED.load(Relaxed) == 0 {
        return None;
    }
    let _held = lock();
    is_parked(fd).then(|| take(fd, 0))
}

/// Gives all parked numbers back to the kernel.
#[inline]
pub fn give_back() {
    if DIRECTFS_PARKED.load(Acquire) != 0 {
        give_back_all();
    }
}

#[cold]
fn give_back_all() {
    let _held = lock();
    while let Some(fd) = first_parked(0, u32::MAX) {
        take(fd, 0);
        close_placeholder(fd);
    }
}

/// A child is about to be made that runs in our memory: nothing is parked until [`end_lending`].
pub fn lend() {
    BORROWERS.fetch_add(1, AcqRel);
    give_back_all();
}

/// The child has gone, or was never made.
pub fn end_lending() {
    BORROWERS.fetch_sub(1, AcqRel);
}

/// Another process is about to share the kernel's table: from now on only the kernel knows what is free.
pub fn stop() {
    BORROWERS.fetch_or(ALWAYS, AcqRel);
    give_back_all();
}

/// In the child of a fork, which has one thread and a copy of the table: others are not here any more.
pub fn begin_anew() {
    LOCK.store(0, Relaxed);
    BORROWERS.fetch_and(ALWAYS, Relaxed);
}
