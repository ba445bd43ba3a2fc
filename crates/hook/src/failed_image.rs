//! Calls after the image was truncated under this process, or after the process lost its place in
//! the shared tables. Calls that might concern the mount return EIO, and touch neither the image
//! nor the tables. [`call_table`](crate::call_table) defines what happens to each call.
//!
//! Invariants
//! - The process loses only its files here: it continues, can report the error, close its files and
//!   exit.
//! - No call that might concern the mount goes to the kernel: not by a path, not by a relative name
//!   while the working directory is in the mount, not by a descriptor.

use crate::abi::entry::{DIRECTFS_CWD, FDS_MAX, NATIVE, Verdict, done};
use crate::abi::user_memory;
use crate::call::{Call, Handler, OnFailure};
use crate::descriptors::{fd_numbers, marks};
use crate::routes::{Route, route_of};
use crate::server;
use core::sync::atomic::Ordering::Relaxed;
use posix::{Errno, Result};

/// Serves a call.
pub fn serve(call: &mut Call<'_>, handler: Handler) -> Result<Verdict> {
    let number = call.frame.number as u32;
    let fd = call.frame.rdi as u32;
    // The library opens nothing any more.
    fd_numbers::release_cached();
    let by = |call: &Call<'_>, route| if concerns_directfs(call, route) { Err(Errno::EIO) } else { Ok(NATIVE) };
    match call.table.details(number).on_failure {
        OnFailure::ByRoute => by(call, route_of(&call.table.routes, number.into())),
        OnFailure::By(route) => by(call, route),
        OnFailure::Kernel => Ok(NATIVE),
        OnFailure::Handle => handler(call),
        // The shared tables are not this process's: its children have nothing in them either.
        OnFailure::HandleWithTables if server::is_lost() => Ok(NATIVE),
        OnFailure::HandleWithTables => handler(call),
        OnFailure::Eio => Err(Errno::EIO),
        OnFailure::Close if is_directfs(fd) => {
            fd_numbers::unmark(fd);
            marks::close_placeholder(fd);
            Ok(done(0))
        }
        OnFailure::Close => Ok(NATIVE),
        OnFailure::CloseRange if server::is_lost() => {
            Ok(done(marks::close_in_kernel(fd, call.frame.rsi as u32, call.frame.rdx as u32)))
        }
        OnFailure::CloseRange => handler(call),
    }
}

fn is_directfs(fd: u32) -> bool {
    (fd as usize) < FDS_MAX && marks::is_marked(fd)
}

/// Whether a call concerns a file of the image, by the criteria of a route.
fn concerns_directfs(call: &Call<'_>, route: Route) -> bool {
    let [a, b, c, d, e, _] = call.arguments();
    let path = |address: u64| names_directfs(call, address);
    let at = |fd: u64, address: u64| is_directfs(fd as u32) || path(address);
    match route {
        Route::Native | Route::Mask | Route::Numbers | Route::AnyFd | Route::Message | Route::Always => false,
        Route::Fd | Route::Close | Route::FdNumbers | Route::FdAddress => is_directfs(a as u32),
        Route::Path | Route::PathNumbers => path(a),
        Route::At | Route::AtNumbers => at(a, b),
        Route::Mmap => is_directfs(e as u32),
        Route::FdFd => is_directfs(a as u32) || is_directfs(b as u32),
        Route::PathPath => path(a) || path(b),
        Route::AtAt => at(a, b) || at(c, d),
        Route::PathSecond => path(b),
        Route::AtSecond => at(b, c),
        Route::FdFdThird => is_directfs(a as u32) || is_directfs(c as u32),
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
