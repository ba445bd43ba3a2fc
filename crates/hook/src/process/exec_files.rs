//! The files of programs that are to be started: those of the host, and those of the image, which
//! are copied to memory.
//!
//! The kernel cannot execute a file that it does not know. *Rejected:* a FUSE mount for every exec.

use crate::abi::sys::{self, Fd};
use crate::abi::user_memory;
use crate::context::PATH_ROOM_BYTES;
use crate::loading::{early, elf_dependencies};
use crate::paths::{self, Directory, PathOwner};
use crate::proc_links;
use crate::proc_links::descriptor_path;
use crate::process::exec_start::{LeadingArguments, Target};
use crate::process::session::{Calling, Session};
use crate::process::{apparmor, environment, working_directory};
use crate::server::Server;
use core::mem::MaybeUninit;
use core::ops::Range;
use engine::Node;
use engine::format::FileKind;
use libc::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use posix::path::Outcome;
use posix::{Errno, Result, Want};
use tables::process::Processes;

/// Reads the first bytes of an executable file of the image.
pub fn read_head(caller: &Calling<'_>, node: Node, head: &mut [u8]) -> Result<usize> {
    let file = caller.stat(node)?;
    match file.kind {
        FileKind::Regular => {}
        FileKind::Symlink => return Err(Errno::ELOOP),
        _ => return Err(Errno::EACCES),
    }
    caller.access(node, Want::EXECUTE)?;
    if Processes::new(caller.thread.fs())?.is_written(caller.thread, file.number)? {
        return Err(Errno::ETXTBSY);
    }
    Ok(caller.thread.files().read(node, 0, head)?)
}

/// Directory, path and flags by which a call names its program.
pub fn named_by(target: &Target) -> (u64, u64, u64) {
    let arguments = &target.arguments;
    match target.lists {
        1 => (libc::AT_FDCWD as u64, arguments[0], 0),
        _ => (arguments[0], arguments[1], arguments[4]),
    }
}

/// A file of the host that is to be run, open for reading.
pub struct HostFile {
    fd: u64,
    is_new: bool,
}

impl HostFile {
    /// Opens it. `None`: it cannot be read, which does not mean that it cannot be run.
    pub fn new(target: &Target) -> Option<HostFile> {
        let (directory, path, flags) = named_by(target);
        let is_empty = flags & AT_EMPTY_PATH as u64 != 0 && user_memory::read::<u8>(path).ok()? == 0;
        if is_empty {
            return Some(HostFile { fd: directory, is_new: false });
        }
        let open_flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) as u64;
        // SAFETY: the path is the program's or ends with a zero byte; opening changes no memory.
        let fd = unsafe { sys::call(libc::SYS_openat, [directory, path, open_flags, 0, 0, 0]) };
        u64::try_from(fd).ok().map(|fd| HostFile { fd, is_new: true })
    }

    /// A descriptor of its own. `None`: there is no free one.
    pub fn into_descriptor(self) -> Option<i32> {
        let lowest = [self.fd, libc::F_DUPFD_CLOEXEC as u64, 3, 0, 0, 0];
        // SAFETY: creates a descriptor, and changes nothing else.
        i32::try_from(unsafe { sys::call(libc::SYS_fcntl, lowest) }).ok().filter(|fd| *fd >= 0)
    }

    /// Reads at an offset; returns the number of bytes.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
        let bytes = unsafe {
            sys::call(libc::SYS_pread64, [self.fd, into.as_mut_ptr() as u64, into.len() as u64, offset, 0, 0])
        };
        usize::try_from(bytes).unwrap_or(0)
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        if self.is_new {
            // SAFETY: a descriptor created for this value, without other users.
            unsafe { sys::call(libc::SYS_close, [self.fd, 0, 0, 0, 0, 0]) };
        }
    }
}

/// The AppArmor profile that keeps the library out of a program of the host. `loads`: the program
/// would run in the loader's place, outside of any profile.
#[cold]
#[inline(never)]
pub fn find_obstacle(target: &Target, loads: bool) -> Option<apparmor::ProfileName> {
    let (mut program, mut library) = ([0u8; PATH_ROOM_BYTES], [0u8; PATH_ROOM_BYTES]);
    let program_bytes = resolved_path(target, &mut program)?;
    let opened = sys::open(environment::string(environment::RUN)?, libc::O_PATH).ok()?;
    let library_bytes = apparmor::path_of(&opened, &mut library)?;
    apparmor::POLICY.find_obstacle(&program[..program_bytes], (!loads).then_some(&library[..library_bytes]))
}

/// Writes the path of the program's file, without symbolic links; returns its length.
fn resolved_path(target: &Target, into: &mut [u8]) -> Option<usize> {
    let (directory, path, flags) = named_by(target);
    let is_empty = flags & AT_EMPTY_PATH as u64 != 0 && user_memory::read::<u8>(path) == Ok(0);
    if is_empty {
        let length = sys::read_link(&descriptor_path(directory as u32), into).ok()?;
        return (length < into.len()).then_some(length);
    }
    let open_flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    // SAFETY: the path is the program's or ends with a zero byte; opening changes no memory.
    let fd = unsafe { sys::call(libc::SYS_openat, [directory, path, open_flags, 0, 0, 0]) };
    // SAFETY: a new descriptor without other owners.
    let file = unsafe { Fd::from_raw(i32::try_from(fd).ok().filter(|fd| *fd >= 0)?) };
    apparmor::path_of(&file, into)
}

/// Whether this process may execute a file of the host.
pub fn is_executable(target: &Target) -> bool {
    let (directory, path, flags) = named_by(target);
    let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) as u64 | libc::AT_EACCESS as u64;
    // SAFETY: the path is the program's or ends with a zero byte; only queries.
    unsafe { sys::call(libc::SYS_faccessat2, [directory, path, libc::X_OK as u64, flags, 0, 0]) == 0 }
}

/// The status of the program's file.
fn status(target: &Target) -> Result<libc::stat> {
    let (directory, path, flags) = named_by(target);
    let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) as u64;
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path is the program's or ends with a zero byte; the kernel fills the structure,
    // for which all zero is valid.
    let (result, status) = unsafe {
        let result = sys::call(libc::SYS_newfstatat, [directory, path, status.as_mut_ptr() as u64, flags, 0, 0]);
        (result, status.assume_init())
    };
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(status) }
}

/// Why the program's file cannot be found, as execve returns it. `None`: it is there.
pub fn missing(target: &Target) -> Option<Errno> {
    status(target).err()
}

/// Whether the kernel gives the program other rights than this process has, or may. Then the loader
/// does not load the library, and nothing of the library may reach the program.
///
/// The kernel ignores these bits and capabilities in some cases (`nosuid`, `no_new_privs`, owners
/// without a number in the user namespace): they are not distinguished here.
pub fn is_privileged(target: &Target) -> bool {
    const RUNS_AS_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    let Ok(status) = status(target) else { return false };
    let user = sys::effective_user();
    // SAFETY: only a query.
    let group = unsafe { sys::call(libc::SYS_getegid, [0; 6]) } as u32;
    let changes_user = status.st_mode & libc::S_ISUID != 0 && status.st_uid != user;
    let changes_group = status.st_mode & RUNS_AS_GROUP == RUNS_AS_GROUP && status.st_gid != group;
    changes_user || changes_group || user != 0 && has_capabilities(target)
}

/// Whether the program's file has capabilities, or may have.
fn has_capabilities(target: &Target) -> bool {
    let find = |path: u64| {
        let name = c"security.capability".as_ptr() as u64;
        // SAFETY: the path is the program's or ends with a zero byte; only a query.
        unsafe { sys::call(libc::SYS_getxattr, [path, name, 0, 0, 0, 0]) }
    };
    let (directory, path, flags) = named_by(target);
    if directory as i32 == libc::AT_FDCWD && flags & AT_EMPTY_PATH as u64 == 0 {
        return find(path) > 0;
    }
    let open_flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    let is_empty = flags & AT_EMPTY_PATH as u64 != 0 && user_memory::read::<u8>(path) == Ok(0);
    let opened = match is_empty {
        true => -1,
        // SAFETY: the path is the program's or ends with a zero byte; opening changes no memory.
        false => unsafe { sys::call(libc::SYS_openat, [directory, path, open_flags, 0, 0, 0]) },
    };
    let by = if opened >= 0 { opened as u64 } else { directory };
    let found = find(descriptor_path(by as u32).as_ptr() as u64);
    if opened >= 0 {
        // SAFETY: created above, without other users.
        unsafe { sys::call(libc::SYS_close, [by, 0, 0, 0, 0, 0]) };
    }
    // Without /proc it is not known.
    found > 0 || found == -i64::from(libc::ENOENT)
}

/// Whether the kernel asks the loader of a program that is started now to ignore the environment
/// (AT_SECURE), because of this process's ids.
pub fn starts_securely() -> bool {
    // SAFETY: only queries.
    let id = |number| unsafe { sys::call(number, [0; 6]) };
    id(libc::SYS_geteuid) != id(libc::SYS_getuid) || id(libc::SYS_getegid) != id(libc::SYS_getgid)
}

/// Copies a program to memory; returns the copy's descriptor. Other processes see its path, in the
/// name of the copy.
pub fn copy_to_memfd(caller: &Calling<'_>, node: Node, path: &[u8], buffer: &mut [u8]) -> Result<i32> {
    const NAME_BYTES_MAX: usize = 249;
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let name = if path.len() <= NAME_BYTES_MAX { path } else { &last[..last.len().min(NAME_BYTES_MAX)] };
    let mut text = [0u8; NAME_BYTES_MAX + 1];
    text[..name.len()].copy_from_slice(name);
    let fd = create_memfd(&text)?;
    let copied = copy_to(caller, node, fd, buffer);
    if copied.is_err() {
        // SAFETY: created above.
        unsafe { sys::call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]) };
    }
    caller.opens().notify_run(node);
    copied.map(|()| fd)
}

/// Creates a file in memory that can be executed.
fn create_memfd(name: &[u8]) -> Result<i32> {
    /// Linux 6.3: whatever the setting vm.memfd_noexec makes usual.
    const MFD_EXEC: u32 = 0x10;
    let create = |flags: u32| {
        // SAFETY: a terminated name; the new descriptor has no other users until it is returned.
        unsafe { sys::call(libc::SYS_memfd_create, [name.as_ptr() as u64, u64::from(flags), 0, 0, 0, 0]) }
    };
    let fd = match create(libc::MFD_CLOEXEC | MFD_EXEC) {
        error if error == -i64::from(libc::EINVAL) => create(libc::MFD_CLOEXEC),
        fd => fd,
    };
    if fd == -i64::from(libc::EACCES) {
        sys::print(&[
            b"programs in the image cannot run, because vm.memfd_noexec is 2: set it to 1 (sysctl vm.memfd_noexec=1), or use `directfs mount`",
        ]);
    }
    i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno(-fd as i32))
}

fn copy_to(caller: &Calling<'_>, node: Node, fd: i32, buffer: &mut [u8]) -> Result<()> {
    let mut offset = 0;
    loop {
        let count = caller.thread.files().read(node, offset, &mut *buffer)?;
        if count == 0 {
            return Ok(());
        }
        let mut written = 0;
        while written < count {
            let rest = &buffer[written..count];
            // SAFETY: the kernel reads a buffer of this thread.
            let result =
                unsafe { sys::call(libc::SYS_write, [fd as u64, rest.as_ptr() as u64, rest.len() as u64, 0, 0, 0]) };
            if result <= 0 {
                return Err(Errno(-result as i32));
            }
            written += result as usize;
        }
        offset += count as u64;
    }
}

/// The lists of paths that are built into a program of the mount, with its directory inserted.
#[inline(never)]
pub fn library_paths(
    caller: &Calling<'_>,
    node: Node,
    head: &[u8],
    name: &[u8],
    before: &mut LeadingArguments<'_>,
) -> Result<Option<*const u8>> {
    let directory = &name[..name.iter().rposition(|&byte| byte == b'/').unwrap_or(0)];
    let mut lists = [0u8; early::OWN_PATHS_BYTES_MAX];
    let mut length = 0;
    let mut read = |offset: u64, into: &mut [u8]| caller.thread.files().read(node, offset, into).unwrap_or(0);
    elf_dependencies::any_path(head, &mut read, &mut |list| {
        if let Some(bytes) = lists.get_mut(length + 1..).and_then(|room| early::expand_origin(list, directory, room)) {
            lists[length] = b':';
            length += 1 + bytes;
        }
        false
    });
    if length == 0 { Ok(None) } else { before.keep(&[&lists[1..length]]).map(Some) }
}

/// Writes the path of a program in the mount, as /proc/self/exe shows it, without symbolic links,
/// to the end of `into`. `path` is the path that led to it.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub fn full_path(
    server: &'static Server,
    session: &Session<'_>,
    directory: Directory,
    path: &[u8],
    host: &mut [u8; PATH_ROOM_BYTES],
    walk: &mut posix::path::PathBuffer,
    into: &mut [u8],
) -> Option<Range<usize>> {
    let end = into.len() - 1;
    let by_descriptor = match (path, directory) {
        (b"", Directory::Descriptor(fd)) => Some(fd),
        _ => proc_links::descriptor_of(path),
    };
    if let Some(fd) = by_descriptor {
        let file = session.process.file(session.caller.thread, fd)?;
        return working_directory::path_of_file(server, &session.caller, &file, into).ok().map(|start| start..end);
    }
    let mut text = [0u8; PATH_ROOM_BYTES];
    text[..path.len()].copy_from_slice(path);
    let owner = paths::locate(server, session, directory, &mut text, path.len(), host).ok()?;
    let PathOwner::Directfs { walk_start, offset, end: path_end, retained } = owner else { return None };
    let opened = session.caller.opens().open_path(&walk_start, &text[offset..path_end], libc::O_PATH, (0, 0), walk);
    if let Some(node) = retained {
        session.caller.thread.release(node, 1);
    }
    let Ok(Outcome::Inside(opened)) = opened else { return None };
    let start = working_directory::path_of_file(server, &session.caller, &opened.file, into);
    session.caller.opens().close(&opened.file);
    start.ok().map(|start| start..end)
}
