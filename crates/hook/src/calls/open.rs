//! open and similar calls.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::user_memory;
use crate::call::{Call, native_with};
use crate::calls::names::{PathArguments, at, by_path, native_by, path};
use crate::calls::{handles, kernel_objects};
use crate::context::{Inside, PATH_ROOM_BYTES};
use crate::descriptors::{self, fd_numbers, marks};
use crate::extensions;
use crate::paths::{self, Directory, PathOwner};
use crate::process::other_processes::another_process;
use crate::process::session::{Calling, Session};
use crate::{mount_table, proc_links};
use engine::format::FileKind;
use engine::{Node, Protection};
use libc::{O_CLOEXEC, O_CREAT, O_NOFOLLOW, O_PATH, O_TMPFILE, O_TRUNC, O_WRONLY};
use posix::path::{Exit, LINKS_FOLLOWED_MAX, LastLink, Outcome, PathBuffer, WalkStart};
use posix::{Capabilities, Errno, OpenFile, Result};
use tables::process::ObservedDescriptor;

/// Arguments of an open.
#[derive(Debug, Clone, Copy)]
struct Request {
    flags: i32,
    mode: u32,
    resolve: u64,
}

/// open(path, flags, mode).
pub fn open(call: &mut Call<'_>) -> Result<Verdict> {
    let request = Request { flags: call.frame.rsi as i32, mode: call.frame.rdx as u32, resolve: 0 };
    open_by(call, path(0), request)
}

/// creat(path, mode).
pub fn creat(call: &mut Call<'_>) -> Result<Verdict> {
    let request = Request { flags: O_CREAT | O_WRONLY | O_TRUNC, mode: call.frame.rsi as u32, resolve: 0 };
    open_by(call, path(0), request)
}

/// openat(directory, path, flags, mode).
pub fn openat(call: &mut Call<'_>) -> Result<Verdict> {
    let request = Request { flags: call.frame.rdx as i32, mode: call.frame.r10 as u32, resolve: 0 };
    open_by(call, at(0), request)
}

/// open_by_handle_at(mount, handle, flags): the mount is a descriptor of any file in it, or the
/// working directory.
pub fn open_by_handle_at(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, handle, flags) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32 & KNOWN & !O_CREAT);
    fd_numbers::release_cached();
    let Inside { session, .. } = call.begin()?;
    let caller = &session.caller;
    match Directory::from_raw(fd) {
        Directory::Working if session.directory().is_none() => return Ok(NATIVE),
        Directory::Working => {}
        Directory::Descriptor(fd) => match session.process.file(caller.thread, fd) {
            Some(file) if file.is_path() => return Err(Errno::EBADF),
            Some(_) => {}
            None => return marks::host_verdict(fd),
        },
    }
    // A handle leads to a file whose directories the caller might not enter.
    if !caller.credentials.has(Capabilities::DAC_READ_SEARCH) {
        return Err(Errno::EPERM);
    }
    let file = handles::file_of(caller, handle)?;
    let opened = caller.opens().open_node(file.node(), flags)?;
    match special(caller, &opened, flags)? {
        None => install(&session, &opened, None, flags & O_CLOEXEC != 0),
        Some(file) => kernel_objects::open(&caller.credentials, &file, flags),
    }
}

/// All flags that open knows. open ignores others; openat2 rejects them.
const KNOWN: i32 = libc::O_ACCMODE
    | O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | LARGE_FILE
    | libc::O_DIRECTORY
    | O_NOFOLLOW
    | libc::O_NOATIME
    | O_CLOEXEC
    | O_PATH
    | O_TMPFILE;
/// O_LARGEFILE in the kernel's value.
pub const LARGE_FILE: i32 = 0o100000;

const NO_XDEV: u64 = 1;
const NO_MAGICLINKS: u64 = 2;
const NO_SYMLINKS: u64 = 4;
const BENEATH: u64 = 8;
const IN_ROOT: u64 = 16;
const CACHED: u64 = 32;

/// openat2(directory, path, how, size).
pub fn openat2(call: &mut Call<'_>) -> Result<Verdict> {
    let (how, size) = (call.frame.rdx, call.frame.r10);
    let checked = how_of(how, size);
    let Ok(request) = checked else {
        // Only errors of a path in the image are returned here; the kernel returns its own.
        return by_path(call, at(0), &mut |_, _, _, _| Err(checked.err().unwrap_or(Errno::EINVAL)));
    };
    open_by(call, at(0), request)
}

fn how_of(how: u64, size: u64) -> Result<Request> {
    const BYTES: u64 = 24;
    if size < BYTES {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    for more in BYTES..size {
        if user_memory::read::<u8>(how + more)? != 0 {
            return Err(Errno::E2BIG);
        }
    }
    let [flags, mode, resolve]: [u64; 3] = user_memory::read(how)?;
    let known_resolve = NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH | IN_ROOT | CACHED;
    let makes = flags as i32 & O_CREAT != 0 || flags as i32 & O_TMPFILE == O_TMPFILE;
    let wrong_mode = if makes { mode & !0o7777 != 0 } else { mode != 0 };
    let of_place = (O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | O_CLOEXEC) as u64;
    if flags & !(KNOWN as u64) != 0
        || flags & O_PATH as u64 != 0 && flags & !of_place != 0
        || resolve & !known_resolve != 0
        || resolve & (BENEATH | IN_ROOT) == BENEATH | IN_ROOT
        || wrong_mode
    {
        return Err(Errno::EINVAL);
    }
    // RESOLVE_CACHED does not permit changes.
    let changes = (O_CREAT | libc::O_TRUNC | O_TMPFILE & !libc::O_DIRECTORY) as u64;
    if resolve & CACHED != 0 && flags & changes != 0 {
        return Err(Errno::EAGAIN);
    }
    Ok(Request { flags: flags as i32, mode: mode as u32, resolve })
}

fn open_by(call: &mut Call<'_>, by: PathArguments, request: Request) -> Result<Verdict> {
    let arguments = call.arguments();
    let Call { frame, server, context, .. } = call;
    let Inside { session, walk, path, host, .. } = context.begin(server)?;
    let mut length = user_memory::copy_string(arguments[by.path], &mut path[..user_memory::PATH_BYTES_MAX])?;
    if let Some(verdict) = reopen(&session, &path[..length], request)? {
        return Ok(verdict);
    }
    let mut directory = by.directory(&arguments);
    let (mut rewritten, mut in_root) = (false, None);
    if request.resolve & IN_ROOT != 0 && path[0] == b'/' {
        length = relative(path, length);
    }
    for _ in 0..=LINKS_FOLLOWED_MAX {
        let enters = request.resolve & NO_XDEV != 0 && !begins_inside(&session, directory, path[0]);
        let PathOwner::Directfs { mut walk_start, offset, end, retained } =
            paths::locate(server, &session, in_root.unwrap_or(directory), path, length, host)?
        else {
            fd_numbers::release_cached();
            let (may_be_above, may_be_table) =
                (paths::may_be_above(server, directory, &path[..length]), mount_table::is_candidate(&path[..length]));
            let verdict = match rewritten {
                false if !may_be_above && !may_be_table => return Ok(NATIVE),
                false => native_with(frame, arguments),
                true => native_by(frame, by, path),
            };
            if may_be_table {
                mount_table::record(verdict.result);
            }
            if may_be_above {
                descriptors::record_above(server, verdict.result);
            }
            return Ok(verdict);
        };
        let is_confined = request.resolve & (BENEATH | IN_ROOT) != 0;
        if is_confined {
            walk_start.root = walk_start.start;
        }
        let outcome = if enters || is_confined && path[0] == b'/' {
            Err(Errno::EXDEV)
        } else {
            open_at(&session, &walk_start, &path[offset..end], request, walk)
        };
        if let Some(node) = retained {
            session.caller.thread.release(node, 1);
        }
        match outcome? {
            Outcome::Inside(verdict) => return Ok(verdict),
            Outcome::Left(Exit::Absolute) if request.resolve & IN_ROOT != 0 => {
                // The link leads to the directory that serves as the root: the same walk again,
                // from there.
                length = paths::resume_walk(server, Exit::Absolute, walk.rest(), path)?;
                length = relative(path, length);
                in_root = Some(directory);
            }
            Outcome::Left(_) if request.resolve & (BENEATH | NO_XDEV) != 0 => return Err(Errno::EXDEV),
            Outcome::Left(exit) => {
                length = paths::resume_walk(server, exit, walk.rest(), path)?;
                (directory, rewritten) = (Directory::Working, true);
            }
        }
    }
    Err(Errno::ELOOP)
}

/// Whether a path begins in the image; if not, it can only enter the mount from the machine's
/// directories.
fn begins_inside(session: &Session<'_>, directory: Directory, first: u8) -> bool {
    let starts_there = match directory {
        Directory::Working => session.directory().is_some(),
        Directory::Descriptor(fd) => session.process.file(session.caller.thread, fd).is_some(),
    };
    first != b'/' && starts_there
}

/// Makes an absolute path relative, for walks in which a directory serves as the root; returns the
/// new length.
fn relative(path: &mut [u8; PATH_ROOM_BYTES], length: usize) -> usize {
    path.copy_within(..=length, 1);
    path[0] = b'.';
    length + 1
}

fn open_at(
    session: &Session<'_>,
    walk_start: &WalkStart,
    path: &[u8],
    request: Request,
    walk: &mut PathBuffer,
) -> Result<Outcome<Verdict>> {
    let caller = &session.caller;
    let Request { flags, mode, resolve } = request;
    let flags = flags & KNOWN;
    let walk_start = WalkStart { can_leave: resolve & IN_ROOT == 0, ..*walk_start };
    if resolve & NO_SYMLINKS != 0 {
        refuse_links(caller, &walk_start, path, flags)?;
    }
    let makes = flags & O_CREAT != 0 || flags & O_TMPFILE == O_TMPFILE;
    let cloexec = flags & O_CLOEXEC != 0;
    let ahead = if flags & O_CREAT != 0 { caller.opens().prefetch_name_of(&walk_start, path) } else { None };
    // A number must be available before a file is created: creation cannot be rolled back
    // afterwards.
    let early = if makes { Some(Placeholder::new(session, cloexec)?) } else { None };
    let umask = if makes { session.umask() } else { 0 };
    let opened = match ahead {
        Some(ahead) => caller.opens().open_prefetched(&ahead, flags, (mode, umask))?,
        None => None,
    };
    let opened = match opened {
        Some(opened) => opened,
        None => match caller.opens().open_path(&walk_start, path, flags, (mode, umask), walk)? {
            Outcome::Inside(opened) => opened,
            Outcome::Left(exit) => return Ok(Outcome::Left(exit)),
        },
    };
    match special(caller, &opened.file, flags)? {
        None => install(session, &opened.file, early, cloexec).map(Outcome::Inside),
        Some(file) => {
            drop(early);
            kernel_objects::open(&caller.credentials, &file, flags).map(Outcome::Inside)
        }
    }
}

/// The kernel serves pipes, sockets and devices, unless they are opened with O_PATH: this closes
/// the description that was opened, and returns the file's kind.
#[inline]
fn special(caller: &Calling<'_>, file: &OpenFile, flags: i32) -> Result<Option<Protection>> {
    let kind = file.kind();
    if flags & O_PATH != 0 || matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
        return Ok(None);
    }
    let attributes = caller.stat(file.node());
    caller.opens().close(file);
    Ok(Some(attributes?.protection()))
}

/// A number from the kernel that is released if nothing is put behind it.
pub struct Placeholder<'w> {
    session: &'w Session<'w>,
    fd: u32,
    cloexec: bool,
}

impl<'w> Placeholder<'w> {
    /// The lowest number that is free.
    pub fn new(session: &'w Session<'w>, cloexec: bool) -> Result<Placeholder<'w>> {
        fd_numbers::reserve(session, 0, cloexec).map(|fd| Placeholder { session, fd, cloexec })
    }

    /// The number.
    pub fn number(&self) -> u32 {
        self.fd
    }
}

impl Drop for Placeholder<'_> {
    fn drop(&mut self) {
        descriptors::give_up(self.session, self.fd, self.cloexec);
    }
}

/// Puts a description behind a number.
// By reference: each move reads just-stored data in other pieces, which defeats store forwarding.
#[inline]
pub fn install<'w>(
    session: &'w Session<'w>,
    file: &OpenFile,
    early: Option<Placeholder<'w>>,
    cloexec: bool,
) -> Result<Verdict> {
    let placeholder = match early {
        Some(early) => early,
        None => Placeholder::new(session, cloexec).inspect_err(|_| session.caller.opens().close(file))?,
    };
    let fd = placeholder.fd;
    let may_be_leased = session.process.install(session.caller.thread, fd, file, cloexec)?;
    if may_be_leased || file.truncates_late() {
        extensions::complete_open(session, fd, file)?;
    }
    if file.is_path() {
        fd_numbers::record_path_descriptor();
    }
    core::mem::forget(placeholder);
    Ok(done(i64::from(fd)))
}

/// The file of the image behind a descriptor of another process: the kernel would open the
/// placeholder.
fn file_of_another(session: &Session<'_>, path: &[u8]) -> Option<Node> {
    let (process_id, fd) = proc_links::descriptor_of_another(path)?;
    let table = another_process(session, process_id, path)?.table;
    let processes = session.process.processes();
    let mut node = None;
    let each = &mut |found: ObservedDescriptor<'_>| {
        if found.fd == fd && !found.file.is_watcher() {
            node = Some(found.file.node());
        }
    };
    processes.each_descriptor(table, each).ok()?;
    node
}

/// Reopens a descriptor of the image, by a path that names it.
fn reopen(session: &Session<'_>, path: &[u8], request: Request) -> Result<Option<Verdict>> {
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return Ok(None);
    }
    let own = proc_links::descriptor_of(path).and_then(|fd| session.process.file(session.caller.thread, fd));
    let Some(node) = own.as_ref().map(|file| file.node()).or_else(|| file_of_another(session, path)) else {
        return Ok(None);
    };
    let Request { flags, resolve, .. } = request;
    if flags & O_NOFOLLOW != 0 || resolve != 0 {
        return Err(Errno::ELOOP);
    }
    if flags & (O_CREAT | libc::O_EXCL) == O_CREAT | libc::O_EXCL {
        return Err(Errno::EEXIST);
    }
    let flags = flags & KNOWN;
    let opened = session.caller.opens().open_node(node, flags & !O_CREAT)?;
    match special(&session.caller, &opened, flags)? {
        None => install(session, &opened, None, flags & O_CLOEXEC != 0).map(Some),
        Some(file) => kernel_objects::open(&session.caller.credentials, &file, flags).map(Some),
    }
}

/// ELOOP if a symbolic link is on the way. Another thread may create one between this check and the
/// walk: it is followed then, but only within the limits of the other flags.
fn refuse_links(caller: &Calling<'_>, walk_start: &WalkStart, path: &[u8], flags: i32) -> Result<()> {
    let mut end = 0;
    let mut walk = PathBuffer::new();
    while end < path.len() {
        let begin = end + path[end..].iter().take_while(|&&byte| byte == b'/').count();
        end = begin + path[begin..].iter().take_while(|&&byte| byte != b'/').count();
        let is_last = path[end..].iter().all(|&byte| byte == b'/');
        if begin == end || (is_last && flags & O_NOFOLLOW != 0 && flags & O_PATH != 0) {
            return Ok(());
        }
        match caller.stat_path(walk_start, &path[..end], LastLink::Stay, &mut walk) {
            Ok(Outcome::Inside(file)) if file.kind == FileKind::Symlink => return Err(Errno::ELOOP),
            Ok(_) => {}
            // The walk itself will report it, or create the file.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}
