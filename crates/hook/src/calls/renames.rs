//! Calls by two paths: renames and links. Each path may be the image's or the host's.

use crate::abi::entry::{Frame, NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use crate::calls::names::{PathArguments, at, check_flags, descriptor_by_name, follow, is_empty, path};
use crate::context::{Inside, PATH_ROOM_BYTES};
use crate::paths::{self, Directory, PathOwner};
use crate::process::session::Session;
use crate::server::Server;
use libc::{AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW};
use pmem::Direct;
use posix::path::{LINKS_FOLLOWED_MAX, LastLink, Outcome, Parent, PathBuffer, WalkStart};
use posix::{Errno, NodeRef, Result};

/// Result of resolving one of two paths.
enum Side<T> {
    Directfs(T),
    /// The host's; true: its path was rewritten.
    Host(bool),
}

/// Walks one of two paths.
#[allow(clippy::too_many_arguments)]
fn side<T>(
    server: &'static Server,
    session: &Session<'_>,
    mut directory: Directory,
    address: u64,
    path: &mut [u8; PATH_ROOM_BYTES],
    host: &mut [u8; PATH_ROOM_BYTES],
    walk: &mut PathBuffer,
    mut act: impl FnMut(&WalkStart, &[u8], &mut PathBuffer) -> Result<Outcome<T>>,
) -> Result<Side<T>> {
    let mut length = user_memory::copy_string(address, &mut path[..user_memory::PATH_BYTES_MAX])?;
    let mut rewritten = false;
    for _ in 0..=LINKS_FOLLOWED_MAX {
        let PathOwner::Directfs { walk_start, offset, end, retained } =
            paths::locate(server, session, directory, path, length, host)?
        else {
            return Ok(Side::Host(rewritten));
        };
        let outcome = act(&walk_start, &path[offset..end], walk);
        if let Some(node) = retained {
            session.caller.thread.release(node, 1);
        }
        match outcome? {
            Outcome::Inside(found) => return Ok(Side::Directfs(found)),
            Outcome::Left(exit) => length = paths::resume_walk(server, exit, walk.rest(), path)?,
        }
        (directory, rewritten) = (Directory::Working, true);
    }
    Err(Errno::ELOOP)
}

/// Has the kernel perform a call by two paths, some of which may have been rewritten.
fn native_by_two(
    frame: &Frame,
    (from, from_path): (PathArguments, Option<&[u8]>),
    (to, to_path): (PathArguments, Option<&[u8]>),
) -> Verdict {
    let mut arguments = frame.arguments();
    for (by, path) in [(from, from_path), (to, to_path)] {
        let Some(path) = path else { continue };
        arguments[by.path] = path.as_ptr() as u64;
        if let Some(directory) = by.directory {
            arguments[directory] = libc::AT_FDCWD as u64;
        }
    }
    native_with(frame, arguments)
}

/// EXDEV, unless the kernel's ENOENT takes precedence.
fn across(by: PathArguments, arguments: &[u64; 6], rewritten: Option<&[u8]>) -> Errno {
    let directory = match (rewritten, by.directory) {
        (None, Some(index)) => arguments[index],
        _ => libc::AT_FDCWD as u64,
    };
    let path = rewritten.map_or(arguments[by.path], |path| path.as_ptr() as u64);
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    let flags = AT_SYMLINK_NOFOLLOW as u64;
    // SAFETY: the kernel writes a status, for which there is room; the path is the program's or
    // ends with a zero byte.
    let result = unsafe { sys::call(libc::SYS_newfstatat, [directory, path, status.as_mut_ptr() as u64, flags, 0, 0]) };
    if result < 0 { Errno(-result as i32) } else { Errno::EXDEV }
}

/// The error for a new name on the host's side of a file of the image: EXDEV, unless an error of
/// its directory takes precedence.
fn host_target_error(by: PathArguments, arguments: &[u64; 6], rewritten: Option<&[u8]>) -> Errno {
    let mut text = [0u8; user_memory::PATH_BYTES_MAX];
    let length = match rewritten {
        Some(path) => user_memory::copy_string(path.as_ptr() as u64, &mut text),
        None => user_memory::copy_string(arguments[by.path], &mut text),
    };
    let length = match length {
        Ok(0) => return Errno::ENOENT,
        Ok(length) => length,
        Err(error) => return error,
    };
    let name_end = length - text[..length].iter().rev().take_while(|&&byte| byte == b'/').count();
    // The slash before the name stays: the part before it must be a directory.
    match text[..name_end].iter().rposition(|&byte| byte == b'/') {
        Some(slash) => text[slash + 1] = 0,
        None => text[..2].copy_from_slice(b".\0"),
    }
    match rewritten {
        Some(_) => across(path(0), &[text.as_ptr() as u64, 0, 0, 0, 0, 0], None),
        None => {
            let mut parent = *arguments;
            parent[by.path] = text.as_ptr() as u64;
            across(by, &parent, None)
        }
    }
}

/// The start of a path, and the rest to walk from there.
type Way<'w> = (&'w WalkStart, &'w [u8]);

/// Runs `call` if both paths are the image's. `None`: they are not, or `call` reports that they do
/// not lead to their ends without links; nothing was done then.
fn both_fast(
    server: &'static Server,
    session: &Session<'_>,
    (from, to): (PathArguments, PathArguments),
    arguments: &[u64; 6],
    (path, second): (&mut [u8; PATH_ROOM_BYTES], &mut [u8; PATH_ROOM_BYTES]),
    host: &mut [u8; PATH_ROOM_BYTES],
    call: impl FnOnce(Way<'_>, Way<'_>) -> Option<Result<()>>,
) -> Result<Option<Result<()>>> {
    let mut spots = [None, None];
    for (index, (by, buffer)) in [(from, &mut *path), (to, &mut *second)].into_iter().enumerate() {
        let length = user_memory::copy_string(arguments[by.path], &mut buffer[..user_memory::PATH_BYTES_MAX])?;
        if let Ok(PathOwner::Directfs { walk_start, offset, end, retained }) =
            paths::locate(server, session, by.directory(arguments), buffer, length, host)
        {
            spots[index] = Some((walk_start, offset..end, retained));
        }
    }
    let done = match &spots {
        [Some((from_place, from, _)), Some((to_place, to, _))] => {
            call((from_place, &path[from.clone()]), (to_place, &second[to.clone()]))
        }
        _ => None,
    };
    for (_, _, retained) in spots.into_iter().flatten() {
        if let Some(node) = retained {
            session.caller.thread.release(node, 1);
        }
    }
    Ok(done)
}

fn rename_by(call: &mut Call<'_>, from: PathArguments, to: PathArguments, flags: u32) -> Result<Verdict> {
    let arguments = call.arguments();
    let Call { frame, server, context, .. } = call;
    let Inside { session, walk, path, second, host, .. } = context.begin(server)?;
    let caller = session.caller;
    let short = |from: Way<'_>, to: Way<'_>| caller.rename_fast(from, to, flags);
    if let Some(renamed) = both_fast(server, &session, (from, to), &arguments, (path, second), host, short)? {
        return renamed.map(|()| done(0));
    }
    let old: Side<Parent<'_, 'static, Direct>> = side(
        server,
        &session,
        from.directory(&arguments),
        arguments[from.path],
        path,
        host,
        walk,
        |walk_start, path, walk| caller.paths().resolve_parent(walk_start, path, walk),
    )?;
    let new = side(
        server,
        &session,
        to.directory(&arguments),
        arguments[to.path],
        second,
        host,
        walk,
        |walk_start, path, walk| caller.paths().resolve_parent(walk_start, path, walk),
    )?;
    match (old, new) {
        (Side::Directfs(old), Side::Directfs(new)) => caller.rename_resolved(&old, &new, flags).map(|()| done(0)),
        (Side::Host(false), Side::Host(false)) => Ok(NATIVE),
        (Side::Host(old), Side::Host(new)) => {
            let from = (from, old.then_some(&path[..]));
            Ok(native_by_two(frame, from, (to, new.then_some(&second[..]))))
        }
        (Side::Host(rewritten), Side::Directfs(_)) => Err(across(from, &arguments, rewritten.then_some(&path[..]))),
        (Side::Directfs(_), Side::Host(rewritten)) => {
            Err(host_target_error(to, &arguments, rewritten.then_some(&second[..])))
        }
    }
}

/// rename(old, new).
pub fn rename(call: &mut Call<'_>) -> Result<Verdict> {
    rename_by(call, path(0), path(1), 0)
}

/// renameat(old directory, old, new directory, new).
pub fn renameat(call: &mut Call<'_>) -> Result<Verdict> {
    rename_by(call, at(0), at(2), 0)
}

/// renameat2(old directory, old, new directory, new, flags).
pub fn renameat2(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.r8 as u32;
    rename_by(call, at(0), at(2), flags)
}

/// A file to link, and whether a file without names may get one.
type LinkSource<'c> = (NodeRef<'c, 'static>, bool);

/// The file that a link names by a descriptor: with an empty path, or by a link in /proc. `None`:
/// the path decides.
fn link_source<'c>(
    session: &Session<'c>,
    from: PathArguments,
    arguments: &[u64; 6],
    flags: i32,
    last_link: LastLink,
) -> Result<Option<Side<LinkSource<'c>>>> {
    let thread = session.caller.thread;
    let opened = |fd: u32| match session.process.file(thread, fd) {
        Some(file) => {
            thread.retain(file.node())?;
            Ok(Some(Side::Directfs((NodeRef::owned(thread, file.node()), file.is_linkable()))))
        }
        None => Ok(None),
    };
    if is_empty(flags, arguments[from.path])? {
        let source = match from.directory(arguments) {
            Directory::Descriptor(fd) => opened(fd)?,
            Directory::Working => {
                session.process.directory().map(|node| Side::Directfs((NodeRef::borrowed(thread, node), false)))
            }
        };
        return Ok(Some(source.unwrap_or(Side::Host(false))));
    }
    if last_link == LastLink::Follow
        && from.directory.is_some()
        && let Some(fd) = descriptor_by_name(arguments[from.path])
    {
        return opened(fd);
    }
    Ok(None)
}

fn link_by(call: &mut Call<'_>, from: PathArguments, to: PathArguments, flags: i32) -> Result<Verdict> {
    let arguments = call.arguments();
    let Call { frame, server, context, .. } = call;
    let Inside { session, walk, path, second, host, .. } = context.begin(server)?;
    let caller = session.caller;
    if flags == 0 {
        let short = |from: Way<'_>, to: Way<'_>| caller.link_fast(from, to);
        if let Some(linked) = both_fast(server, &session, (from, to), &arguments, (path, second), host, short)? {
            return linked.map(|()| done(0));
        }
    }
    let last_link = follow(flags, AT_SYMLINK_FOLLOW, LastLink::Follow);
    let old = match link_source(&session, from, &arguments, flags, last_link)? {
        Some(source) => source,
        None => {
            let directory = from.directory(&arguments);
            side(server, &session, directory, arguments[from.path], path, host, walk, |walk_start, path, walk| {
                Ok(match caller.paths().resolve(walk_start, path, last_link, walk)? {
                    Outcome::Inside(found) => Outcome::Inside((found, false)),
                    Outcome::Left(exit) => Outcome::Left(exit),
                })
            })?
        }
    };
    let node = match &old {
        Side::Directfs((found, unnamed)) => Some((found.node(), *unnamed)),
        Side::Host(_) => None,
    };
    let directory = to.directory(&arguments);
    let new =
        side(
            server,
            &session,
            directory,
            arguments[to.path],
            second,
            host,
            walk,
            |walk_start, path, walk| match node {
                Some((node, unnamed)) => {
                    check_flags(flags, AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)?;
                    caller.link_path(node, unnamed, walk_start, path, walk)
                }
                None => Ok(Outcome::Inside(())),
            },
        )?;
    match (old, new) {
        (Side::Directfs(_), Side::Directfs(())) => Ok(done(0)),
        (Side::Host(false), Side::Host(false)) => Ok(NATIVE),
        (Side::Host(old), Side::Host(new)) => {
            let from = (from, old.then_some(&path[..]));
            Ok(native_by_two(frame, from, (to, new.then_some(&second[..]))))
        }
        (Side::Host(rewritten), Side::Directfs(())) => Err(across(from, &arguments, rewritten.then_some(&path[..]))),
        (Side::Directfs(_), Side::Host(rewritten)) => {
            Err(host_target_error(to, &arguments, rewritten.then_some(&second[..])))
        }
    }
}

/// link(old, new).
pub fn link(call: &mut Call<'_>) -> Result<Verdict> {
    link_by(call, path(0), path(1), 0)
}

/// linkat(old directory, old, new directory, new, flags).
pub fn linkat(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.r8 as i32;
    link_by(call, at(0), at(2), flags)
}
