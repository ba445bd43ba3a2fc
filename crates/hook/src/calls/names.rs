//! Calls by path.
//!
//! Invariant: errors that the kernel reports before it reads a path are left to the kernel if the
//! path is the host's. So flags are checked only once the path is known to be the image's.
//!
//! Decision: docs/decisions/run-calls.md, "Root directories and mounts in the image are refused".

use crate::abi::entry::{Frame, NATIVE, Next, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use crate::calls::kernel_objects;
use crate::context::Inside;
use crate::descriptors::marks::{self, host_verdict};
use crate::paths::{self, Directory, PathOwner};
use crate::process::identity::RealIds;
use crate::process::other_processes::directory_of_another;
use crate::process::session::Calling;
use crate::process::working_directory;
use crate::server::Server;
use crate::{proc_links, status};
use engine::format::FileKind;
use engine::{Attributes, Node, Protection};
use libc::{AT_EACCESS, AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_NOFOLLOW};
use posix::path::{LINKS_FOLLOWED_MAX, LastLink, Outcome, PathBuffer, WalkStart};
use posix::{Caller, Capabilities, Errno, FileQuery, Result, Want};

/// A walk and the action at its end.
pub type PathAction<'a> = &'a mut dyn FnMut(&Calling<'_>, &WalkStart, &[u8], &mut PathBuffer) -> Result<Outcome<i64>>;
/// An action on a file.
pub type NodeAction<'a> = &'a mut dyn FnMut(&Calling<'_>, Node) -> Result<i64>;

/// The arguments that name a file.
#[derive(Debug, Clone, Copy)]
pub struct PathArguments {
    /// Index of the argument with the directory, if there is one.
    pub directory: Option<usize>,
    /// Index of the argument with the path.
    pub path: usize,
}

/// A path relative to the working directory.
pub const fn path(path: usize) -> PathArguments {
    PathArguments { directory: None, path }
}

/// A path after its directory.
pub const fn at(directory: usize) -> PathArguments {
    PathArguments { directory: Some(directory), path: directory + 1 }
}

impl PathArguments {
    /// The start of the path.
    pub fn directory(&self, arguments: &[u64; 6]) -> Directory {
        self.directory.map_or(Directory::Working, |index| Directory::from_raw(arguments[index]))
    }
}

/// Performs a kernel call by a rewritten path, which is absolute and ends with a zero byte.
pub fn native_by(frame: &Frame, by: PathArguments, path: &[u8]) -> Verdict {
    let mut arguments = frame.arguments();
    arguments[by.path] = path.as_ptr() as u64;
    if let Some(directory) = by.directory {
        arguments[directory] = libc::AT_FDCWD as u64;
    }
    native_with(frame, arguments)
}

/// Follows a path to its end, on either side.
pub fn by_path(call: &mut Call<'_>, by: PathArguments, act: PathAction<'_>) -> Result<Verdict> {
    let Call { frame, server, context, .. } = call;
    let arguments = frame.arguments();
    let inside = context.begin(server)?;
    let length = user_memory::copy_string(arguments[by.path], &mut inside.path[..user_memory::PATH_BYTES_MAX])?;
    let mut host = |path: Option<&[u8]>| path.map_or(NATIVE, |path| native_by(frame, by, path));
    walk_inside(server, inside, by.directory(&arguments), length, &mut host, act)
}

/// `by_path` for the path in the thread's buffer. `host` does the call if the path is the host's;
/// it receives the path, with a zero byte, if it was rewritten.
pub fn walk_path(
    call: &mut Call<'_>,
    directory: Directory,
    length: usize,
    host: &mut dyn FnMut(Option<&[u8]>) -> Verdict,
    act: PathAction<'_>,
) -> Result<Verdict> {
    let Call { server, context, .. } = call;
    walk_inside(server, context.begin(server)?, directory, length, host, act)
}

#[inline(always)]
fn walk_inside(
    server: &'static Server,
    inside: Inside<'_>,
    mut directory: Directory,
    mut length: usize,
    theirs: &mut dyn FnMut(Option<&[u8]>) -> Verdict,
    act: PathAction<'_>,
) -> Result<Verdict> {
    let Inside { session, walk, path, host, .. } = inside;
    let mut rewritten = false;
    for _ in 0..=LINKS_FOLLOWED_MAX {
        let owner = paths::locate(server, &session, directory, path, length, host)?;
        let PathOwner::Directfs { walk_start, offset, end, retained } = owner else {
            return Ok(theirs(rewritten.then_some(&path[..=length])));
        };
        let outcome = act(&session.caller, &walk_start, &path[offset..end], walk);
        if let Some(node) = retained {
            session.caller.thread.release(node, 1);
        }
        match outcome? {
            Outcome::Inside(value) => return Ok(done(value)),
            Outcome::Left(exit) => length = paths::resume_walk(server, exit, walk.rest(), path)?,
        }
        (directory, rewritten) = (Directory::Working, true);
    }
    Err(Errno::ELOOP)
}

/// Whether a call refers to the descriptor itself, by an empty path.
pub(crate) fn is_empty(flags: i32, address: u64) -> Result<bool> {
    Ok(flags & AT_EMPTY_PATH != 0 && user_memory::read::<u8>(address)? == 0)
}

/// `is_empty` for calls that accept a null path in place of an empty one.
pub(crate) fn is_empty_or_none(flags: i32, address: u64) -> Result<bool> {
    if flags & AT_EMPTY_PATH != 0 && address == 0 { Ok(true) } else { is_empty(flags, address) }
}

/// Acts on the file at a path; with AT_EMPTY_PATH and an empty path, on that of the descriptor.
pub(crate) fn by_node(
    call: &mut Call<'_>,
    by: PathArguments,
    flags: i32,
    last_link: LastLink,
    act: NodeAction<'_>,
) -> Result<Verdict> {
    let arguments = call.arguments();
    if is_empty(flags, arguments[by.path])? {
        return on_directory(call, by.directory(&arguments), act);
    }
    if let Some(descriptor) = descriptor_behind(call, by, last_link)? {
        return on_directory(call, descriptor, act);
    }
    by_path(call, by, &mut |caller, walk_start, path, walk| {
        caller.at_path(walk_start, path, last_link, walk, |node| act(caller, node))
    })
}

/// Acts on a descriptor, or the working directory.
pub(crate) fn on_directory(call: &mut Call<'_>, directory: Directory, act: NodeAction<'_>) -> Result<Verdict> {
    let Inside { session, .. } = call.begin()?;
    match directory {
        Directory::Working => match session.process.directory() {
            Some(node) => act(&session.caller, node).map(done),
            None => Ok(NATIVE),
        },
        Directory::Descriptor(fd) => match session.process.file(session.caller.thread, fd) {
            Some(file) => act(&session.caller, file.node()).map(done),
            None => match kernel_objects::file_of_fifo(&session.caller, fd) {
                Some(file) => act(&session.caller, file.node()).map(done),
                None => host_verdict(fd),
            },
        },
    }
}

/// A descriptor of the image to which a call's path leads by a link in /proc or /dev that the call
/// follows. The kernel would find the placeholder.
fn descriptor_behind(call: &mut Call<'_>, by: PathArguments, last_link: LastLink) -> Result<Option<Directory>> {
    let address = call.arguments()[by.path];
    let begins = |offset: u64| user_memory::read::<u8>(address.wrapping_add(offset));
    // A first check, because hardly any path needs this.
    if last_link != LastLink::Follow || begins(0) != Ok(b'/') {
        return Ok(None);
    }
    let may_be = matches!(begins(1), Ok(b'p' | b'd'));
    let Some(fd) = may_be.then(|| descriptor_by_name(address)).flatten() else { return Ok(None) };
    let Inside { session, .. } = call.begin()?;
    let is_file = marks::is_fifo(fd) || session.process.file(session.caller.thread, fd).is_some();
    Ok(is_file.then_some(Directory::Descriptor(fd)))
}

/// The descriptor that a path in /proc or /dev names.
pub fn descriptor_by_name(address: u64) -> Option<u32> {
    let mut text = [0u8; 48];
    let length = user_memory::copy_string(address, &mut text).ok()?;
    crate::proc_links::descriptor_of(&text[..length])
}

pub(crate) fn follow(flags: i32, if_set: i32, then: LastLink) -> LastLink {
    let otherwise = if then == LastLink::Stay { LastLink::Follow } else { LastLink::Stay };
    if flags & if_set != 0 { then } else { otherwise }
}

pub(crate) fn check_flags(flags: i32, known: i32) -> Result<()> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

// Attributes.

/// The ids with which a call acts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    Effective,
    Real,
}

/// The caller, with its real ids if they are given.
fn with_ids<'c>(caller: &Calling<'c>, real: Option<RealIds>) -> Calling<'c> {
    let credentials = real.map_or(caller.credentials, |real| real.of(caller.credentials));
    Caller { credentials, ..*caller }
}

/// Returns what `report` reads of a path's file, if the path is the image's and leads to its end
/// without links. `None`: it does not, and nothing was done.
///
/// Everything happens in one visit, so not even the working directory needs a reference; `report`
/// only reads.
#[inline]
pub(crate) fn query_fast<A: FileQuery>(
    call: &mut Call<'_>,
    by: PathArguments,
    last_link: LastLink,
    ids: Ids,
    report: impl FnOnce(&Calling<'_>, Node, &A) -> Result<i64>,
) -> Result<Option<Verdict>> {
    let Call { frame, server, context, .. } = call;
    let arguments = frame.arguments();
    let Inside { session, path, .. } = context.begin(server)?;
    let length = user_memory::copy_string(arguments[by.path], &mut path[..user_memory::PATH_BYTES_MAX])?;
    let thread = session.caller.thread;
    let _visit = thread.visit();
    let mut file = None;
    let at_descriptor = |fd| {
        file = session.process.file(thread, fd);
        file.as_ref().map(|file| file.node())
    };
    let begin = paths::begin(server, &session, by.directory(&arguments), at_descriptor, &path[..length]);
    let Some((walk_start, offset)) = begin else { return Ok(None) };
    let real = (ids == Ids::Real).then(|| session.identity.real());
    let caller = with_ids(&session.caller, real);
    let report = |node: Node, known: &A| report(&caller, node, known);
    match caller.paths().query_fast(&walk_start, &path[offset..length], last_link, report) {
        Some(Ok(Outcome::Inside(value))) => Ok(Some(done(value))),
        Some(Err(error)) => Err(error),
        _ => Ok(None),
    }
}

fn stat_by(call: &mut Call<'_>, by: PathArguments, into: u64, last_link: LastLink) -> Result<Verdict> {
    let server = call.server;
    let report = |caller: &Calling<'_>, attributes: &Attributes| {
        user_memory::write_words(into, &status::stat_of(server, caller, attributes)).map(|()| 0)
    };
    let report_fast = |caller: &Calling<'_>, _, attributes: &Attributes| report(caller, attributes);
    if let Some(verdict) = query_fast(call, by, last_link, Ids::Effective, report_fast)? {
        return Ok(verdict);
    }
    if let Some(descriptor) = descriptor_behind(call, by, last_link)? {
        return on_directory(call, descriptor, &mut |caller, node| {
            user_memory::write_words(into, &status::stat_of(server, caller, &caller.stat(node)?)).map(|()| 0)
        });
    }
    by_path(call, by, &mut |caller, walk_start, path, walk| {
        caller.query_path(walk_start, path, last_link, walk, |attributes| report(caller, attributes))
    })
}

/// stat(path, status).
pub fn stat(call: &mut Call<'_>) -> Result<Verdict> {
    let into = call.frame.rsi;
    stat_by(call, path(0), into, LastLink::Follow)
}

/// lstat(path, status).
pub fn lstat(call: &mut Call<'_>) -> Result<Verdict> {
    let into = call.frame.rsi;
    stat_by(call, path(0), into, LastLink::Stay)
}

/// Flags of statx and similar calls that control how fresh the answer must be: here it always is.
const FRESHNESS: i32 = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;

/// newfstatat(directory, path, status, flags).
pub fn fstatat(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, into, flags) = (call.frame.rsi, call.frame.rdx, call.frame.r10 as i32);
    let check = || check_flags(flags, AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | AT_EMPTY_PATH | FRESHNESS);
    let server = call.server;
    if is_empty_or_none(flags, address)? {
        return on_directory(call, Directory::from_raw(call.frame.rdi), &mut |caller, node| {
            check()?;
            user_memory::write_words(into, &status::stat_of(server, caller, &caller.stat(node)?)).map(|()| 0)
        });
    }
    if check().is_err() {
        return by_path(call, at(0), &mut |_, _, _, _| Err(Errno::EINVAL));
    }
    stat_by(call, at(0), into, follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay))
}

/// statx(directory, path, flags, mask, status).
pub fn statx(call: &mut Call<'_>) -> Result<Verdict> {
    let (flags, mask, into) = (call.frame.rdx as i32, call.frame.r10 as u32, call.frame.r8);
    let server = call.server;
    let check = || {
        let known = AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | AT_EMPTY_PATH | FRESHNESS;
        let contradicts = flags & FRESHNESS == FRESHNESS || mask & libc::STATX__RESERVED as u32 != 0;
        if contradicts { Err(Errno::EINVAL) } else { check_flags(flags, known) }
    };
    let report = |caller: &Calling<'_>, node, attributes: &Attributes| {
        let wanted = mask & libc::STATX_BTIME != 0;
        let born_ns = if wanted { Some(caller.thread.born_ns(node)?) } else { None };
        user_memory::write(into, &status::statx_of(server, caller, attributes, mask, born_ns)).map(|()| 0)
    };
    let mut describe = |caller: &Calling<'_>, node| {
        check()?;
        report(caller, node, &caller.stat(node)?)
    };
    if is_empty_or_none(flags, call.frame.rsi)? {
        let directory = at(0).directory(&call.arguments());
        return on_directory(call, directory, &mut describe);
    }
    if let Err(error) = check() {
        return by_path(call, at(0), &mut |_, _, _, _| Err(error));
    }
    let last_link = follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay);
    match query_fast(call, at(0), last_link, Ids::Effective, report)? {
        Some(verdict) => Ok(verdict),
        None => by_node(call, at(0), flags, last_link, &mut describe),
    }
}

fn access_by(call: &mut Call<'_>, by: PathArguments, mode: i32, flags: i32) -> Result<Verdict> {
    let ids = if flags & AT_EACCESS != 0 { Ids::Effective } else { Ids::Real };
    let last_link = follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay);
    let known = AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH;
    let is_valid = mode & !7 == 0 && flags & !known == 0;
    let want = Want(mode as u32);
    let mut decided = true;
    let by_mode = |caller: &Calling<'_>, _, file: &Protection| {
        decided = caller.access_by_mode(file, want)?.is_some();
        Ok(0)
    };
    if is_valid
        && let Some(verdict) = query_fast(call, by, last_link, ids, by_mode)?
        && decided
    {
        return Ok(verdict);
    }
    let real = if ids == Ids::Real { Some(call.begin()?.session.identity.real()) } else { None };
    let check = || if is_valid { Ok(real) } else { Err(Errno::EINVAL) };
    if is_empty(flags, call.arguments()[by.path])? || descriptor_behind(call, by, last_link)?.is_some() {
        return by_node(call, by, flags, last_link, &mut |caller, node| {
            with_ids(caller, check()?).access(node, want).map(|()| 0)
        });
    }
    by_path(call, by, &mut |caller, walk_start, path, walk| {
        let caller = with_ids(caller, check()?);
        Ok(match caller.access_path(walk_start, path, last_link, want, walk)? {
            Outcome::Inside(()) => Outcome::Inside(0),
            Outcome::Left(exit) => Outcome::Left(exit),
        })
    })
}

/// access(path, mode).
pub fn access(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rsi as i32;
    access_by(call, path(0), mode, 0)
}

/// faccessat(directory, path, mode).
pub fn faccessat(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rdx as i32;
    access_by(call, at(0), mode, 0)
}

/// faccessat2(directory, path, mode, flags).
pub fn faccessat2(call: &mut Call<'_>) -> Result<Verdict> {
    let (mode, flags) = (call.frame.rdx as i32, call.frame.r10 as i32);
    access_by(call, at(0), mode, flags)
}

fn readlink_by(call: &mut Call<'_>, by: PathArguments, into: u64, room: u64) -> Result<Verdict> {
    let room = room as i32;
    let empty = match by.directory {
        Some(_) => user_memory::read::<u8>(call.arguments()[by.path])? == 0,
        None => false,
    };
    let mut read = |caller: &Calling<'_>, node| {
        if room <= 0 {
            return Err(Errno::EINVAL);
        }
        let mut target = [0u8; user_memory::PATH_BYTES_MAX];
        let room = target.len().min(room as usize);
        let length = caller.readlink(node, &mut target[..room])?;
        user_memory::fill(into, &target[..length]).map(|()| length as i64)
    };
    if empty {
        let directory = by.directory(&call.arguments());
        // An empty path refers to a descriptor of a symbolic link; it can refer to no other file.
        return on_directory(call, directory, &mut |caller, node| {
            read(caller, node).map_err(|error| if error == Errno::EINVAL { Errno::ENOENT } else { error })
        });
    }
    if let Some(verdict) = readlink_of_directfs(call, call.arguments()[by.path], into, room)? {
        return Ok(verdict);
    }
    by_node(call, by, 0, LastLink::Stay, &mut read)
}

/// Links in /proc that lead to files of the image: the kernel would return a placeholder's name.
fn readlink_of_directfs(call: &mut Call<'_>, address: u64, into: u64, room: i32) -> Result<Option<Verdict>> {
    let mut text = [0u8; 64];
    let Ok(length) = user_memory::copy_string(address, &mut text) else { return Ok(None) };
    let text = &text[..length];
    if !text.starts_with(b"/proc/") && !text.starts_with(b"/dev/") {
        return Ok(None);
    }
    if proc_links::is_own_program(text) {
        let program = crate::process::environment::program();
        return program.map(|program| fill_link(program, into, room)).transpose();
    }
    let server = call.server;
    let Inside { session, path, .. } = call.begin()?;
    let caller = &session.caller;
    let start = match text {
        text if let Some(owner) = proc_links::owner_of_directory(text) => {
            let of_another = owner.and_then(|process_id| directory_of_another(&session, process_id, text));
            let own = session.process.directory().filter(|_| owner.is_none());
            match own.or_else(|| of_another.as_ref().map(|directory| directory.node())) {
                Some(node) => working_directory::shown_path_of(server, caller, node, &mut path[..])?,
                None => return Ok(None),
            }
        }
        text if proc_links::is_program(text) => match program_of_another(address, server.mount(), path) {
            Some(start) => start,
            None => return Ok(None),
        },
        _ => match crate::proc_links::descriptor_of(text).and_then(|fd| session.process.file(caller.thread, fd)) {
            Some(file) => working_directory::path_of_file(server, caller, &file, &mut path[..])?,
            None => return Ok(None),
        },
    };
    fill_link(&path[start..path.len() - 1], into, room).map(Some)
}

/// Passes what a link contains to the program.
fn fill_link(target: &[u8], into: u64, room: i32) -> Result<Verdict> {
    if room <= 0 {
        return Err(Errno::EINVAL);
    }
    let length = target.len().min(room as usize);
    user_memory::fill(into, &target[..length])?;
    Ok(done(length as i64))
}

/// Writes the path of a program of the mount that another process runs, by the name of its copy, to
/// the end of `into`, with a zero byte; returns where it starts. `link`: the path of its link.
fn program_of_another(link: u64, mount: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut target = [0u8; 512];
    let arguments = [libc::AT_FDCWD as u64, link, target.as_mut_ptr() as u64, target.len() as u64, 0, 0];
    // SAFETY: a path of the program's; the kernel writes into the buffer.
    let length = usize::try_from(unsafe { sys::call(libc::SYS_readlinkat, arguments) }).ok()?;
    let path = target.get(..length)?.strip_prefix(b"/memfd:")?.strip_suffix(b" (deleted)")?;
    path.strip_prefix(mount).filter(|rest| rest.starts_with(b"/"))?;
    let start = into.len().checked_sub(path.len() + 1)?;
    into[start..start + path.len()].copy_from_slice(path);
    into[start + path.len()] = 0;
    Some(start)
}

/// readlink(path, target, room).
pub fn readlink(call: &mut Call<'_>) -> Result<Verdict> {
    let (into, room) = (call.frame.rsi, call.frame.rdx);
    readlink_by(call, path(0), into, room)
}

/// readlinkat(directory, path, target, room).
pub fn readlinkat(call: &mut Call<'_>) -> Result<Verdict> {
    let (into, room) = (call.frame.rdx, call.frame.r10);
    readlink_by(call, at(0), into, room)
}

/// statfs(path, status).
pub fn statfs(call: &mut Call<'_>) -> Result<Verdict> {
    let (into, server) = (call.frame.rsi, call.server);
    by_node(call, path(0), 0, LastLink::Follow, &mut |caller, _| {
        user_memory::write(into, &status::statfs_of(server, &caller.statfs()?)).map(|()| 0)
    })
}

// Creating names.

fn mkdir_by(call: &mut Call<'_>, by: PathArguments, mode: u64) -> Result<Verdict> {
    let umask = call.begin()?.session.umask();
    by_path(call, by, &mut |caller, walk_start, path, walk| {
        unit_result(caller.mkdir_path(walk_start, path, mode as u32, umask, walk)?)
    })
}

fn unit_result(outcome: Outcome<()>) -> Result<Outcome<i64>> {
    Ok(match outcome {
        Outcome::Inside(()) => Outcome::Inside(0),
        Outcome::Left(exit) => Outcome::Left(exit),
    })
}

/// mkdir(path, mode).
pub fn mkdir(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rsi;
    mkdir_by(call, path(0), mode)
}

/// mkdirat(directory, path, mode).
pub fn mkdirat(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rdx;
    mkdir_by(call, at(0), mode)
}

fn mknod_by(call: &mut Call<'_>, by: PathArguments, mode: u64, device: u64) -> Result<Verdict> {
    let umask = call.begin()?.session.umask();
    by_path(call, by, &mut |caller, walk_start, path, walk| {
        unit_result(caller.mknod_path(walk_start, path, (mode as u32, umask), device as u32, walk)?)
    })
}

/// mknod(path, mode, device).
pub fn mknod(call: &mut Call<'_>) -> Result<Verdict> {
    let (mode, device) = (call.frame.rsi, call.frame.rdx);
    mknod_by(call, path(0), mode, device)
}

/// mknodat(directory, path, mode, device).
pub fn mknodat(call: &mut Call<'_>) -> Result<Verdict> {
    let (mode, device) = (call.frame.rdx, call.frame.r10);
    mknod_by(call, at(0), mode, device)
}

fn symlink_by(call: &mut Call<'_>, by: PathArguments) -> Result<Verdict> {
    let mut target = [0u8; user_memory::PATH_BYTES_MAX];
    let length = match user_memory::copy_string(call.frame.rdi, &mut target) {
        // The kernel returns this error too, but only the path decides whether it is asked.
        Err(error) => return by_path(call, by, &mut |_, _, _, _| Err(error)),
        Ok(length) => length,
    };
    by_path(call, by, &mut |caller, walk_start, path, walk| {
        unit_result(caller.symlink_path(&target[..length], walk_start, path, walk)?)
    })
}

/// symlink(target, path).
pub fn symlink(call: &mut Call<'_>) -> Result<Verdict> {
    symlink_by(call, path(1))
}

/// symlinkat(target, directory, path).
pub fn symlinkat(call: &mut Call<'_>) -> Result<Verdict> {
    symlink_by(call, at(1))
}

// Removing names.

/// rmdir(path).
pub fn rmdir(call: &mut Call<'_>) -> Result<Verdict> {
    by_path(call, path(0), &mut |caller, walk_start, path, walk| {
        unit_result(caller.rmdir_path(walk_start, path, walk)?)
    })
}

/// unlink(path).
pub fn unlink(call: &mut Call<'_>) -> Result<Verdict> {
    by_path(call, path(0), &mut |caller, walk_start, path, walk| {
        unit_result(caller.unlink_path(walk_start, path, walk)?)
    })
}

/// unlinkat(directory, path, flags).
pub fn unlinkat(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.rdx as i32;
    by_path(call, at(0), &mut |caller, walk_start, path, walk| {
        check_flags(flags, AT_REMOVEDIR)?;
        unit_result(match flags & AT_REMOVEDIR {
            0 => caller.unlink_path(walk_start, path, walk)?,
            _ => caller.rmdir_path(walk_start, path, walk)?,
        })
    })
}

// Unsupported calls.

/// A call by one path that no file of the image supports: EOPNOTSUPP, if the path is the image's.
fn unsupported(call: &mut Call<'_>, by: PathArguments) -> Result<Verdict> {
    // If the path is the host's, some of them create a descriptor.
    crate::descriptors::fd_numbers::release_cached();
    by_node(call, by, AT_EMPTY_PATH, LastLink::Follow, &mut |_, _| Err(Errno::EOPNOTSUPP))
}

/// As `unsupported`, for calls whose first argument is a path.
pub fn unsupported_path(call: &mut Call<'_>) -> Result<Verdict> {
    unsupported(call, path(0))
}

/// quotactl(command, device, id, address): a file of the image is not a block device. Q_SYNC needs
/// none.
pub fn quotactl(call: &mut Call<'_>) -> Result<Verdict> {
    if call.arguments()[1] == 0 {
        return Ok(NATIVE);
    }
    by_node(call, path(1), 0, LastLink::Follow, &mut |_, _| Err(Errno(libc::ENOTBLK)))
}

/// As `unsupported`, for calls with a directory and a path.
pub fn unsupported_at(call: &mut Call<'_>) -> Result<Verdict> {
    unsupported(call, at(0))
}

/// As `unsupported`, for calls that would have the kernel use a directory of the image: as a root
/// directory, or for a mount. Programs report only the errno.
fn unknown_to_kernel(call: &mut Call<'_>, by: PathArguments, what: &[u8]) -> Result<Verdict> {
    let verdict = unsupported(call, by);
    or_advise_to_mount(call, verdict, what)
}

fn or_advise_to_mount(call: &Call<'_>, verdict: Result<Verdict>, what: &[u8]) -> Result<Verdict> {
    if matches!(verdict, Err(Errno::EOPNOTSUPP)) {
        call.server.advise_to_mount(what);
    }
    verdict
}

/// chroot(path).
pub fn chroot(call: &mut Call<'_>) -> Result<Verdict> {
    let verdict = by_node(call, path(0), 0, LastLink::Follow, &mut |caller, node| {
        if caller.stat(node)?.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        caller.access(node, Want::EXECUTE)?;
        Err(if caller.credentials.may(Capabilities::SYS_CHROOT) { Errno::EOPNOTSUPP } else { Errno::EPERM })
    });
    or_advise_to_mount(call, verdict, ROOT_DIRECTORY)
}

const ROOT_DIRECTORY: &[u8] = b"a root directory in";

/// pivot_root(path, path).
pub fn pivot_root(call: &mut Call<'_>) -> Result<Verdict> {
    unknown_to_kernel(call, path(0), ROOT_DIRECTORY)?;
    unknown_to_kernel(call, path(1), ROOT_DIRECTORY)
}

/// open_tree(directory, path, flags) and open_tree_attr: the start of a bind mount.
pub fn open_tree(call: &mut Call<'_>) -> Result<Verdict> {
    unknown_to_kernel(call, at(0), BIND_MOUNT)
}

const BIND_MOUNT: &[u8] = b"a bind mount of";
const MOUNT_OVER: &[u8] = b"a mount in";

/// mount(source, path, type, flags, data). The source is a path only if the flags require one, or
/// if it leads to a file.
pub fn mount(call: &mut Call<'_>) -> Result<Verdict> {
    let [source, _, _, flags, ..] = call.arguments();
    let verdict = unknown_to_kernel(call, path(1), MOUNT_OVER)?;
    if source == 0 {
        return Ok(verdict);
    }
    match unknown_to_kernel(call, path(0), BIND_MOUNT) {
        Err(error) if error == Errno::EOPNOTSUPP || flags & (libc::MS_BIND | libc::MS_MOVE) != 0 => Err(error),
        _ => Ok(verdict),
    }
}

/// move_mount(directory, path, directory, path, flags).
pub fn move_mount(call: &mut Call<'_>) -> Result<Verdict> {
    for by in [at(0), at(2)] {
        if unknown_to_kernel(call, by, MOUNT_OVER)?.next != Next::Native {
            return Err(Errno::EOPNOTSUPP);
        }
    }
    Ok(NATIVE)
}

/// chdir(path).
pub fn chdir(call: &mut Call<'_>) -> Result<Verdict> {
    if let Some(Directory::Descriptor(fd)) = descriptor_behind(call, path(0), LastLink::Follow)? {
        return crate::process::working_directory::change_to(call, fd);
    }
    let mut target = None;
    let verdict = by_path(call, path(0), &mut |caller, walk_start, path, walk| {
        Ok(match caller.paths().resolve(walk_start, path, LastLink::Follow, walk)? {
            Outcome::Inside(found) => {
                caller.paths().check_enter(found.node())?;
                target = Some(found.into_node()?);
                Outcome::Inside(0)
            }
            Outcome::Left(exit) => Outcome::Left(exit),
        })
    })?;
    crate::process::working_directory::change_directory(call, verdict, target)
}
