//! The files of programs that are to be started: those of the host, and those of the image, which
//! are copied to memory.
//!
//! Decision: docs/decisions/run-start.md, "Programs in the mount run from copies in memory".

use crate::hook::abi::{sys, user_memory};
use crate::hook::process::exec_start::Target;
use crate::hook::process::session::Calling;
use core::mem::MaybeUninit;
use engine::Node;
use engine::format::FileKind;
use libc::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use posix::process::Processes;
use posix::{Errno, Result, Want};

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

/// Whether this process may execute a file of the host.
pub fn is_executable(target: &Target) -> bool {
    let (directory, path, flags) = named_by(target);
    let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) as u64 | libc::AT_EACCESS as u64;
    // SAFETY: the path is the program's or ends with a zero byte; only queries.
    unsafe { sys::call(libc::SYS_faccessat2, [directory, path, libc::X_OK as u64, flags, 0, 0]) == 0 }
}

/// Whether the program's file is not there: execve returns the reason.
pub fn is_missing(target: &Target) -> bool {
    let (directory, path, flags) = named_by(target);
    let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) as u64;
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path is the program's or ends with a zero byte; the kernel fills the structure.
    unsafe { sys::call(libc::SYS_newfstatat, [directory, path, status.as_mut_ptr() as u64, flags, 0, 0]) < 0 }
}

/// Whether the loader will not load the library because the program gets other rights than this
/// process has.
pub fn is_privileged(target: &Target) -> bool {
    const RUNS_AS_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    let (directory, path, flags) = named_by(target);
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path is the program's or ends with a zero byte; the kernel fills the structure,
    // for which all zero is valid.
    unsafe {
        let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) as u64;
        let result = sys::call(libc::SYS_newfstatat, [directory, path, status.as_mut_ptr() as u64, flags, 0, 0]);
        let status = status.assume_init();
        let user = sys::effective_user();
        let group = sys::call(libc::SYS_getegid, [0; 6]) as u32;
        let changes_user = status.st_mode & libc::S_ISUID != 0 && status.st_uid != user;
        let changes_group = status.st_mode & RUNS_AS_GROUP == RUNS_AS_GROUP && status.st_gid != group;
        let name = c"security.capability".as_ptr() as u64;
        let has_capabilities = user != 0
            && directory == libc::AT_FDCWD as u64
            && sys::call(libc::SYS_getxattr, [path, name, 0, 0, 0, 0]) > 0;
        result == 0 && (changes_user || changes_group || has_capabilities)
    }
}

/// Whether the kernel tells the loader of a program that is started now to ignore the environment
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
    // SAFETY: a terminated name; the new descriptor has no other users until it is returned.
    let fd =
        unsafe { sys::call(libc::SYS_memfd_create, [text.as_ptr() as u64, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0]) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno(-fd as i32))?;
    let copied = copy_to(caller, node, fd, buffer);
    if copied.is_err() {
        // SAFETY: created above.
        unsafe { sys::call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]) };
    }
    caller.opens().tell_run(node);
    copied.map(|()| fd)
}

fn copy_to(caller: &Calling<'_>, node: Node, fd: i32, buffer: &mut [u8]) -> Result<()> {
    let mut offset = 0;
    loop {
        let count = caller.thread.files().read(node, offset, buffer)?;
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
