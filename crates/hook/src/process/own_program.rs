//! The file of a program that the library loaded, behind /proc/self/exe: the kernel shows the
//! library there.
//!
//! Invariant: a call that follows the link gets the path of the file instead; one that concerns the
//! link itself stays as it is.

use crate::abi::entry::Frame;
use crate::abi::user_memory;
use crate::proc_links;
use crate::process::environment;
use crate::routes::{Route, Routes, route_of};

/// Whether a call reads that link: it needs no image. The C library of a static program does so at
/// its start.
pub fn reads_link(frame: &Frame) -> bool {
    let address = match i64::from(frame.number as u32) {
        libc::SYS_readlink => frame.rdi,
        libc::SYS_readlinkat => frame.rsi,
        _ => return false,
    };
    let mut text = [0u8; 32];
    let length = user_memory::copy_string(address, &mut text);
    environment::program().is_some() && length.is_ok_and(|length| proc_links::is_own_program(&text[..length]))
}

/// A call with the path of the program's file, if it follows the link to it.
pub fn instead_of_link(frame: &Frame, routes: &Routes) -> Option<Frame> {
    let flags = |flags: u64, nofollow: i32| (flags as i32 & nofollow == 0).then_some(());
    let number = i64::from(frame.number as u32);
    let at_directory = match number {
        libc::SYS_readlink | libc::SYS_readlinkat | libc::SYS_lstat => return None,
        libc::SYS_execve => false,
        libc::SYS_execveat | libc::SYS_openat2 => true,
        number => match route_of(routes, number as u64) {
            Route::Path | Route::PathNumbers => false,
            Route::At | Route::AtNumbers => true,
            _ => return None,
        },
    };
    match number {
        libc::SYS_open => flags(frame.rsi, libc::O_NOFOLLOW),
        libc::SYS_openat => flags(frame.rdx, libc::O_NOFOLLOW),
        libc::SYS_newfstatat => flags(frame.r10, libc::AT_SYMLINK_NOFOLLOW),
        libc::SYS_statx => flags(frame.rdx, libc::AT_SYMLINK_NOFOLLOW),
        _ => Some(()),
    }?;
    let address = if at_directory { frame.rsi } else { frame.rdi };
    let mut text = [0u8; 32];
    let length = user_memory::copy_string(address, &mut text).ok()?;
    if !proc_links::is_own_program(&text[..length]) {
        return None;
    }
    let path = environment::program()?.as_ptr() as u64;
    let mut frame = frame.clone();
    *(if at_directory { &mut frame.rsi } else { &mut frame.rdi }) = path;
    Some(frame)
}
