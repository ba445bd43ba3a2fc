//! Moves of hidden descriptors: a program takes the number of one for itself.
//!
//! In a child in its parent's memory (vfork, posix_spawn) the descriptor moves in the child's table
//! alone ([`tables::child_numbers`]). The byte of the number that it left stays that of a hidden
//! one, because it still is for the parent, and the child's calls by it reach the dispatcher, where
//! [`marks::is_hidden`](super::marks::is_hidden) distinguishes the two. Its new number is one that
//! no process of this memory has: the kernel gives it to none, because it is above the limit, or
//! the highest free one.

use crate::abi::entry::{DIRECTFS_FDS, FDS_MAX};
use crate::abi::sys;
use crate::context::Context;
use crate::descriptors::fd_numbers;
use crate::descriptors::marks::{close_placeholder, kernel, protect};
use crate::handoff;
use crate::process::{environment, limits};
use crate::server;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use posix::{Errno, Result};
use tables::child_numbers;
use tables::process::Process;

/// Where fork need not copy a larger table of the kernel.
const SMALL_TABLE: u32 = 4096;
/// Numbers above the limit that are tried.
const ABOVE_LIMIT: u32 = 64;

/// Held by the thread that moves a descriptor of this memory.
static MOVING: AtomicBool = AtomicBool::new(false);

/// After a change of the limit: moves what lies below it above it, where it takes no number of the
/// program's. What cannot be moved stays.
pub fn move_above_limit() {
    let limit = limits::descriptors();
    let is_below = |fd: &i32| (*fd as u32) < limit;
    if limit > SMALL_TABLE || !environment::descriptors().any(|fd| is_below(&fd)) || MOVING.swap(true, AcqRel) {
        return;
    }
    for fd in environment::descriptors().filter(is_below) {
        let Some(new) = (limit..limit + ABOVE_LIMIT).filter(|new| limits::permits(*new as i32)).find(is_free) else {
            break;
        };
        protect(new as i32);
        let cloexec = libc::O_CLOEXEC as u64;
        let copy = || kernel(libc::SYS_dup3, fd as u64, u64::from(new), cloexec);
        if tables::host::within_limit(new as i32, copy) < 0 {
            fd_numbers::unprotect(new as i32);
            break;
        }
        renumber(fd, new as i32);
        close_placeholder(fd as u32);
        fd_numbers::unprotect(fd);
    }
    MOVING.store(false, Release);
}

/// Frees a number of this memory's hidden descriptors.
pub fn make_way(fd: i32) -> Result<()> {
    if MOVING.swap(true, AcqRel) {
        return Err(Errno(libc::EBUSY));
    }
    let moved = move_it(fd);
    MOVING.store(false, Release);
    moved
}

fn move_it(fd: i32) -> Result<()> {
    let from = handoff::DESCRIPTORS_FROM.min(fd) as u64;
    let result = kernel(libc::SYS_fcntl, fd as u64, libc::F_DUPFD_CLOEXEC as u64, from);
    let new = i32::try_from(result).ok().filter(|new| *new >= 0).ok_or(Errno(-result as i32))?;
    protect(new);
    renumber(fd, new);
    fd_numbers::unprotect(fd);
    Ok(())
}

/// Records in this memory that a hidden descriptor has another number.
fn renumber(from: i32, to: i32) {
    if let Some(handoff) = environment::renumber(from, to)
        && let Some(server) = server::attached()
    {
        server.fs.processes().move_liveness_description(handoff.meeting);
        if let Some(residency) = server.fs.pm().residency() {
            residency.move_file(handoff.journal);
        }
    }
}

/// In a child in its parent's memory: frees a number of its hidden descriptors. EBUSY: the program
/// has all other numbers.
pub fn move_in_child(context: &mut Context, fd: i32) -> Result<()> {
    let busy = Errno(libc::EBUSY);
    context.has_moved(sys::process_id());
    let flags = kernel(libc::SYS_fcntl, fd as u64, libc::F_GETFD as u64, 0);
    if flags < 0 {
        // Of another child: this table does not have it.
        return child_numbers::record(child_numbers::usual(fd), -1).map(drop).ok_or(busy);
    }
    let new = free_number(fd as u32).ok_or(busy)? as i32;
    protect(new);
    let cloexec = libc::O_CLOEXEC as u64;
    let made = tables::host::within_limit(new, || kernel(libc::SYS_dup3, fd as u64, new as u64, cloexec));
    let Some(before) =
        Some(made).filter(|made| *made >= 0).and_then(|_| child_numbers::record(child_numbers::usual(fd), new))
    else {
        close_placeholder(new as u32);
        fd_numbers::unprotect(new);
        return Err(busy);
    };
    close_placeholder(fd as u32);
    if before != child_numbers::usual(new) {
        // It was moved there before, and no other process has it there.
        release(before);
    }
    Ok(())
}

/// A number that no process of this memory has: above the limit if possible, else the highest one.
fn free_number(taken: u32) -> Option<u32> {
    let limit = limits::descriptors();
    let is_permitted = |fd: &u32| limits::permits(*fd as i32);
    let above = (limit <= SMALL_TABLE).then(|| limit..limit + ABOVE_LIMIT).into_iter().flatten();
    let within = |end: u32| (taken + 1..end).rev();
    above
        .filter(is_permitted)
        .find(is_free)
        .or_else(|| within(limit.min(SMALL_TABLE)).find(is_free))
        .or_else(|| within(limit.min(FDS_MAX as u32)).find(is_free))
        .or_else(|| (3..taken.min(limit)).rev().find(is_free))
}

fn is_free(fd: &u32) -> bool {
    DIRECTFS_FDS.byte(*fd).is_some_and(|byte| byte.load(Acquire) == 0)
        && kernel(libc::SYS_fcntl, u64::from(*fd), libc::F_GETFD as u64, 0) < 0
}

/// No hidden descriptor has this number any more.
fn release(fd: i32) {
    if fd >= 0 {
        fd_numbers::unprotect(fd);
    }
}

/// In the parent, which runs again: the moves of the child have ended.
pub fn forget(child: i32, process: &Process<'_>) {
    child_numbers::remove(child, |_, own| {
        release(own);
        // The kernel may have given it to another thread meanwhile.
        if own >= 0 && process.descriptor(own as u32).is_some() {
            fd_numbers::mark(own as u32);
        }
    });
}

/// In a new process with a copy of its parent's memory and table: the moves of the parent, if it
/// had another process's memory, are permanent here. Those of others are not in this table.
pub fn settle(parent: i32) {
    let mut own = [(0, 0); 8];
    let mut count = 0;
    child_numbers::remove(parent, |from, to| {
        if let Some(place) = own.get_mut(count) {
            (*place, count) = ((from, to), count + 1);
        }
    });
    child_numbers::remove_all(|_, own| release(own));
    for (from, to) in own.into_iter().take(count) {
        renumber(from, to);
        fd_numbers::unprotect(from);
    }
}
