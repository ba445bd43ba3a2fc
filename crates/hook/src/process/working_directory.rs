//! The working directory, and the paths of files as the program sees them.

use crate::abi::entry::{DIRECTFS_CWD, NATIVE, Next, Verdict, done};
use crate::abi::user_memory;
use crate::call::{Call, native_with};
use crate::calls::kernel_objects;
use crate::context::Context;
use crate::descriptors::marks;
use crate::paths::{self, ABOVE, is_above_mount};
use crate::process::session::{Calling, shares_directory};
use crate::server::{self, Server};
use core::sync::atomic::Ordering::Relaxed;
use engine::Node;
use engine::format::FileKind;
use posix::{Errno, OpenFile, Result};

/// Sets for the filter which relative paths to forward.
pub fn record_directory(server: &Server, is_inside: bool) {
    let above =
        !is_inside && is_above_mount(server, |into| paths::host_directory_path(paths::Directory::Working, into));
    ABOVE.store(above, Relaxed);
    DIRECTFS_CWD.store(u8::from(is_inside || above), Relaxed);
}

/// After a chdir: `target` is a directory of the image with a reference that this function takes.
/// Without a target the kernel's directory counts, if the call succeeded.
pub fn change_directory(call: &mut Call<'_>, verdict: Verdict, target: Option<Node>) -> Result<Verdict> {
    let (frame, server) = (call.frame, call.server);
    if shares_directory() {
        let session = call.begin()?.session;
        if target.is_some() || session.process.directory().is_some() {
            target.inspect(|node| session.caller.thread.release(*node, 1));
            return Err(Errno::EOPNOTSUPP);
        }
    }
    let verdict = match (target, verdict.next) {
        (None, Next::Native) => native_with(frame, frame.arguments()),
        _ => verdict,
    };
    let is_child = call.context.is_child();
    let session = call.begin()?.session;
    if target.is_none() && verdict.result < 0 {
        return Ok(verdict);
    }
    let left = match session.process.directory() {
        // The host's directory has been left before.
        Some(_) => Ok(()),
        None => target.map_or(Ok(()), |_| kernel_objects::leave_host_directory()),
    };
    let set = left.and_then(|()| session.process.set_directory(session.caller.thread, target));
    if let Some(node) = target {
        session.caller.thread.release(node, 1);
    }
    set?;
    if is_child {
        // The parent's paths reach the dispatcher, too.
        DIRECTFS_CWD.store(1, Relaxed);
        ABOVE.store(true, Relaxed);
    } else {
        record_directory(server, target.is_some());
    }
    Ok(verdict)
}

/// fchdir(fd).
pub fn fchdir(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    change_to(call, fd)
}

/// Changes the working directory to that of a descriptor.
pub fn change_to(call: &mut Call<'_>, fd: u32) -> Result<Verdict> {
    let session = call.begin()?.session;
    let target = match session.process.file(session.caller.thread, fd) {
        Some(file) => {
            session.caller.paths().check_enter(file.node())?;
            session.caller.thread.retain(file.node())?;
            Some(file.node())
        }
        None if marks::is_hidden(u64::from(fd)) => return Err(Errno::EBADF),
        None => None,
    };
    let verdict = if target.is_some() { done(0) } else { NATIVE };
    change_directory(call, verdict, target)
}

/// getcwd(buffer, room).
pub fn getcwd(call: &mut Call<'_>) -> Result<Verdict> {
    let (into, room) = (call.frame.rdi, call.frame.rsi);
    let server = call.server;
    let inside = call.begin()?;
    let Some(directory) = inside.session.process.directory() else { return Ok(NATIVE) };
    let start = path_of(server, &inside.session.caller, directory, inside.path)?;
    let length = inside.path.len() - start;
    // As the kernel, which has a page for the path. The C library then finds the path by itself.
    if length > libc::PATH_MAX as usize {
        return Err(Errno::ENAMETOOLONG);
    }
    if length as u64 > room {
        return Err(Errno::ERANGE);
    }
    user_memory::fill(into, &inside.path[start..])?;
    Ok(done(length as i64))
}

/// Writes the path of a descriptor's directory, or of the working directory, and returns its
/// length; `None` if that lies outside of the image, or the path has no room.
pub fn copy_path(context: &mut Context, fd: Option<u32>, into: &mut [u8]) -> Option<usize> {
    let server = server::get().filter(|_| !server::is_pending())?;
    let inside = context.begin(server).ok()?;
    let (process, caller) = (&inside.session.process, &inside.session.caller);
    let start = match fd {
        Some(fd) => {
            let file = process.file(caller.thread, fd)?;
            path_of(server, caller, file.node(), inside.path)
        }
        None => path_of(server, caller, process.directory()?, inside.path),
    };
    let start = start.ok()?;
    let path = &inside.path[start..inside.path.len() - 1];
    into.get_mut(..path.len())?.copy_from_slice(path);
    Some(path.len())
}

/// Writes the path of a directory with a zero byte to the end of `into`; returns where it begins.
/// ENOENT if the directory was removed.
pub fn path_of(server: &Server, caller: &Calling<'_>, directory: Node, into: &mut [u8]) -> Result<usize> {
    let mut start = into.len() - 1;
    into[start] = 0;
    let mut current = directory;
    let mut held = None;
    let mut name = [0u8; 255];
    while current.number != server.root.number {
        if caller.stat(current)?.links == 0 {
            return Err(Errno::ENOENT);
        }
        let number = caller.thread.parent(current)?;
        let parent = caller.thread.node(number, None)?;
        let parent = posix::NodeRef::owned(caller.thread, parent);
        // A rename happened between the two: the next round finds the new place.
        let Ok(length) = caller.thread.name_of(parent.node(), current.number, &mut name) else {
            if caller.thread.parent(current)? == number {
                return Err(Errno::ENOENT);
            }
            continue;
        };
        start = start.checked_sub(length + 1).ok_or(Errno::ENAMETOOLONG)?;
        into[start] = b'/';
        into[start + 1..start + 1 + length].copy_from_slice(&name[..length]);
        current = parent.node();
        held = Some(parent);
    }
    drop(held);
    let mount = server.mount();
    start = start.checked_sub(mount.len()).ok_or(Errno::ENAMETOOLONG)?;
    into[start..start + mount.len()].copy_from_slice(mount);
    Ok(start)
}

/// The name of a directory as links in /proc show it: its path, or that of a removed file.
pub fn shown_path_of(server: &Server, caller: &Calling<'_>, directory: Node, into: &mut [u8]) -> Result<usize> {
    match path_of(server, caller, directory, into) {
        Err(Errno::ENOENT) => Ok(path_of_removed(server, directory, into)),
        path => path,
    }
}

/// The name of an open file: its path, as far as known; otherwise that of a removed file.
pub fn path_of_file(server: &Server, caller: &Calling<'_>, file: &OpenFile, into: &mut [u8]) -> Result<usize> {
    if file.kind() == FileKind::Directory {
        return shown_path_of(server, caller, file.node(), into);
    }
    let mut name = [0u8; 255];
    if let Ok(directory) = caller.thread.node(file.found_in(), None) {
        let directory = posix::NodeRef::owned(caller.thread, directory);
        if let Ok(length) = caller.thread.name_of(directory.node(), file.node().number, &mut name) {
            let room = into.len() - 1 - length;
            let start = path_of(server, caller, directory.node(), &mut into[..room])?;
            into[room - 1] = b'/';
            into[room..room + length].copy_from_slice(&name[..length]);
            into[room + length] = 0;
            return Ok(start);
        }
    }
    Ok(path_of_removed(server, file.node(), into))
}

/// The name of a removed file: the mount and the inode number, since its own is gone.
fn path_of_removed(server: &Server, node: Node, into: &mut [u8]) -> usize {
    const DELETED: &[u8] = b" (deleted)";
    let mut digits = [0u8; 20];
    let count = crate::handoff::write_number(node.number, &mut digits);
    let mut start = into.len() - 1;
    into[start] = 0;
    for part in [DELETED, &digits[..count], b"/#", server.mount()] {
        start -= part.len();
        into[start..start + part.len()].copy_from_slice(part);
    }
    start
}
