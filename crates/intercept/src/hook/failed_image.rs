//! Calls after the image was truncated under this process, or after the process lost its place in
//! the shared tables. Calls that might concern the mount return EIO, and touch neither the image
//! nor the tables.
//!
//! Invariants
//! - The process loses only its files here: it continues, can report the error, close its files and
//!   exit.
//! - No call that might concern the mount goes to the kernel: not by a path, not by a relative name
//!   while the working directory is in the mount, not by a descriptor.

// The kernel's names, in patterns.
#![allow(non_upper_case_globals)]

use super::call::{Call, Handler};
use super::dispatch::{NATIVE, done};
use super::entry::{DIRECTFS_CWD, FDS_MAX, Verdict};
use super::{descriptors, fd_numbers, server, user_memory};
use crate::routes::{self, Route};
use core::sync::atomic::Ordering::Relaxed;
use libc::{
    SYS_bind, SYS_capset, SYS_clone, SYS_clone3, SYS_close, SYS_close_range, SYS_connect, SYS_execve, SYS_execveat,
    SYS_exit, SYS_exit_group, SYS_fork, SYS_io_setup, SYS_io_uring_setup, SYS_recvmmsg, SYS_recvmsg, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setns, SYS_setregid, SYS_setresgid,
    SYS_setresuid, SYS_setreuid, SYS_setuid, SYS_umask, SYS_unshare, SYS_vfork,
};
use posix::{Errno, Result};

/// Serves a call.
pub fn serve(call: &mut Call<'_>, handler: Handler) -> Result<Verdict> {
    let number = call.frame.number as u32;
    let fd = call.frame.rdi as u32;
    // The library opens nothing any more.
    fd_numbers::release_cached();
    if server::is_lost() {
        match i64::from(number) {
            // The shared tables are not this process's: its children have nothing in them either.
            SYS_fork | SYS_vfork | SYS_clone | SYS_clone3 | SYS_umask => return Ok(NATIVE),
            SYS_close_range => {
                return Ok(done(descriptors::close_in_kernel(fd, call.frame.rsi as u32, call.frame.rdx as u32)));
            }
            _ => {}
        }
    }
    match i64::from(number) {
        // The process that finds this one dead releases what these calls would release, if anything
        // is left.
        SYS_exit | SYS_exit_group | SYS_recvmsg | SYS_recvmmsg | SYS_bind | SYS_connect => Ok(NATIVE),
        SYS_close if is_directfs(fd) => {
            descriptors::unmark(fd);
            descriptors::close_placeholder(fd);
            Ok(done(0))
        }
        // These concern the process, not files.
        SYS_rt_sigaction | SYS_rt_sigprocmask | SYS_umask | SYS_fork | SYS_vfork | SYS_clone | SYS_clone3
        | SYS_close_range | SYS_io_setup | SYS_io_uring_setup | SYS_setuid | SYS_setgid | SYS_setreuid
        | SYS_setregid | SYS_setresuid | SYS_setresgid | SYS_setfsuid | SYS_setfsgid | SYS_setgroups | SYS_capset
        | SYS_setns | SYS_unshare => handler(call),
        SYS_execve | SYS_execveat => Err(Errno::EIO),
        _ if concerns_directfs(call, number) => Err(Errno::EIO),
        _ => Ok(NATIVE),
    }
}

fn is_directfs(fd: u32) -> bool {
    (fd as usize) < FDS_MAX && descriptors::is_marked(fd)
}

/// Whether a call concerns a file of the image, by the filter's criteria.
fn concerns_directfs(call: &Call<'_>, number: u32) -> bool {
    let [a, b, c, d, e, _] = call.arguments();
    let path = |address: u64| names_directfs(call, address);
    let at = |fd: u64, address: u64| is_directfs(fd as u32) || path(address);
    match routes::of(u64::from(number)) {
        Route::Native | Route::Mask | Route::Numbers => false,
        Route::Fd | Route::Close | Route::FdNumbers => is_directfs(a as u32),
        Route::Path | Route::PathNumbers => path(a),
        Route::At | Route::AtNumbers => at(a, b),
        Route::Mmap => is_directfs(e as u32),
        Route::FdFd => is_directfs(a as u32) || is_directfs(b as u32),
        Route::PathPath => path(a) || path(b),
        Route::AtAt => at(a, b) || at(c, d),
        Route::PathSecond => path(b),
        Route::AtSecond => at(b, c),
        Route::FdFdThird => is_directfs(a as u32) || is_directfs(c as u32),
        Route::AnyFd => false,
        // chdir and fchdir; getcwd is the kernel's again.
        Route::Always if i64::from(number) == libc::SYS_openat2 => at(a, b),
        Route::Always => path(a),
    }
}

fn names_directfs(call: &Call<'_>, address: u64) -> bool {
    let mut text = [0u8; user_memory::PATH_BYTES_MAX];
    let Ok(length) = user_memory::copy_string(address, &mut text) else { return false };
    match text[0] {
        b'/' => text[..length].starts_with(call.server.mount()),
        _ => DIRECTFS_CWD.load(Relaxed) != 0,
    }
}
