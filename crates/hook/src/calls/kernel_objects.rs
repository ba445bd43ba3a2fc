//! FIFOs and sockets with names in the mount. The kernel carries their data, so each has a kernel
//! object behind it, in the meeting directory (`image`).
//!
//! Invariants
//! - Only processes of the image reach an object: its path starts at the descriptor of the meeting
//!   directory, whose own name is a secret. The kernel follows no link on the way.
//! - It has the owner and the mode of the file that it represents, as far as its creator may set
//!   them. Otherwise processes of the image may use it, and the file in the mount decides which do.
//! - Calls that read or change attributes by a descriptor of a FIFO concern the file: the name of
//!   the object leads to it. After a program is replaced (exec) they concern the object.
//! - Inode number and generation name it. The two never name another file, so an object that
//!   outlives its file is never found again. It is removed with the meeting directory.

use crate::abi::entry::{Verdict, done};
use crate::abi::sys;
use crate::call::blocking_call;
use crate::descriptors::{fd_numbers, marks};
use crate::handoff::{write_hexadecimal, write_number};
use crate::proc_links;
use crate::process::environment;
use crate::process::session::Calling;
use crate::server;
use engine::format::FileKind;
use engine::{FileFlags, Protection};
use posix::{Credentials, Errno, NodeRef, Result};

/// Size of an object's name, with its zero byte.
const NAME_BYTES: usize = 40;
/// Maximum length of a socket's path, which is an address.
pub const PATH_BYTES: usize = 64;
/// Maximum length of a path in the address of a socket.
pub const SOCKET_NAME_BYTES: usize = 108;
const MODE_BITS: u32 = 0o777;
const FOR_ALL: u32 = 0o666;

/// The name of an object in the meeting directory, relative to the lock directory in it that each
/// process has open.
struct Name {
    bytes: [u8; NAME_BYTES],
    length: usize,
}

impl Name {
    fn new(kind: &[u8], number: u64, generation: u64) -> Name {
        let mut digits = [[0u8; 16]; 2];
        write_hexadecimal(number, &mut digits[0]);
        write_hexadecimal(generation, &mut digits[1]);
        let mut name = Name { bytes: [0; NAME_BYTES], length: 0 };
        for part in [b"../", kind, b"-", &digits[0], b"-", &digits[1][8..]] {
            name.bytes[name.length..name.length + part.len()].copy_from_slice(part);
            name.length += part.len();
        }
        name
    }

    fn of(kind: &[u8], file: &Protection) -> Name {
        Name::new(kind, file.number, u64::from(file.generation))
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

/// The descriptor of the meeting directory.
pub fn meeting() -> Result<u64> {
    environment::handoff().map(|handoff| handoff.meeting as u64).ok_or(Errno::ENXIO)
}

/// The process number, for names of this thread's own: process ids of several namespaces can be
/// equal.
fn own_number() -> Result<u64> {
    Ok(server::get().ok_or(Errno::EIO)?.fs.processes().process_number()?.into())
}

/// Performs a call on an object by its name.
fn call(number: i64, arguments: [u64; 6]) -> i64 {
    // SAFETY: the callers pass terminated names that outlive the call; the calls change no memory.
    unsafe { sys::call(number, arguments) }
}

/// Opens a file that is not a regular file, directory or link.
pub fn open(credentials: &Credentials<'_>, file: &Protection, flags: i32) -> Result<Verdict> {
    match FileKind::from_mode(file.mode) {
        Some(FileKind::Fifo) => open_fifo(credentials, file, flags),
        Some(FileKind::Socket) => Err(Errno::ENXIO),
        // As in a file system that is mounted with nodev. Programs that install a system try it.
        _ => {
            if let Some(server) = server::get().filter(|_| flags & libc::O_ACCMODE != libc::O_RDONLY) {
                server.advise_to_mount(b"writing to a device in");
            }
            Err(Errno::EACCES)
        }
    }
}

fn open_fifo(credentials: &Credentials<'_>, file: &Protection, flags: i32) -> Result<Verdict> {
    let (meeting, name) = (meeting()?, Name::of(b"fifo", file));
    fd_numbers::release_cached();
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL) | libc::O_NOFOLLOW;
    // SAFETY: a terminated name; the call changes no memory.
    let open = || unsafe { blocking_call(libc::SYS_openat, [meeting, name.address(), flags as u64, 0, 0, 0]) };
    let mut opened = open();
    if opened == -i64::from(libc::ENOENT) {
        make_fifo(credentials, meeting, &name, file)?;
        opened = open();
    }
    if opened == -i64::from(libc::EACCES) && give_rights(credentials, meeting, name.address(), file) {
        // The file in the mount has changed its mode or owner since.
        opened = open();
    }
    if let Ok(fd) = u32::try_from(opened) {
        marks::mark_fifo(fd);
    }
    Ok(done(opened))
}

/// The file of an open FIFO. `None`: the descriptor is another file's, or the file has no name any
/// more.
pub fn file_of_fifo<'c>(caller: &Calling<'c>, fd: u32) -> Option<NodeRef<'c, 'static>> {
    /// Room for the path of an object.
    const PATH_ROOM: usize = 512;
    if !marks::is_fifo(fd) {
        return None;
    }
    let mut target = [0u8; PATH_ROOM];
    let length = sys::read_link(&proc_links::descriptor_path(fd), &mut target).ok()?;
    let (number, generation) = fifo_of_path(target.get(..length)?)?;
    let node = caller.thread.node(number, Some(generation)).ok()?;
    Some(NodeRef::owned(caller.thread, node))
}

/// Inode number and generation of the FIFO whose object has this path.
fn fifo_of_path(path: &[u8]) -> Option<(u64, u32)> {
    let name = path.rsplit(|&byte| byte == b'/').next()?.strip_prefix(b"fifo-")?;
    let (number, generation) = name.split_at_checked(16)?;
    let hexadecimal = |digits: &[u8], count: usize| {
        let text = core::str::from_utf8(digits).ok().filter(|_| digits.len() == count)?;
        u64::from_str_radix(text, 16).ok()
    };
    let generation = hexadecimal(generation.strip_prefix(b"-")?, 8)?;
    Some((hexadecimal(number, 16)?, u32::try_from(generation).ok()?))
}

/// Gives the object of a FIFO or a socket, if it has one, the rights that its file has got.
pub fn follow_rights(caller: &Calling<'_>, file: &Protection) {
    let kind: &[u8] = match FileKind::from_mode(file.mode) {
        Some(FileKind::Fifo) => b"fifo",
        Some(FileKind::Socket) => b"socket",
        _ => return,
    };
    if let Ok(meeting) = meeting() {
        give_rights(&caller.credentials, meeting, Name::of(kind, file).address(), file);
    }
}

/// Creates the object of a FIFO. It gets its final name together with its rights: until then its
/// name holds the id of the creating thread.
fn make_fifo(credentials: &Credentials<'_>, meeting: u64, name: &Name, file: &Protection) -> Result<()> {
    let own = Name::new(b"new", own_number()?, sys::thread_id() as u64);
    let mode = u64::from(libc::S_IFIFO);
    // A thread with the same id that died has left one.
    call(libc::SYS_unlinkat, [meeting, own.address(), 0, 0, 0, 0]);
    let made = call(libc::SYS_mknodat, [meeting, own.address(), mode, 0, 0, 0]);
    if made < 0 {
        return Err(Errno(-made as i32));
    }
    give_rights(credentials, meeting, own.address(), file);
    let linked = call(libc::SYS_linkat, [meeting, own.address(), meeting, name.address(), 0, 0]);
    call(libc::SYS_unlinkat, [meeting, own.address(), 0, 0, 0, 0]);
    // Another process may have been faster.
    if linked < 0 && linked != -i64::from(libc::EEXIST) { Err(Errno(-linked as i32)) } else { Ok(()) }
}

/// Sets an object's owner and mode to those of its file; returns whether that succeeded.
fn give_rights(credentials: &Credentials<'_>, meeting: u64, name: u64, file: &Protection) -> bool {
    let (uid, gid) = credentials.numbers_of((file.uid, file.gid));
    let owner = call(libc::SYS_fchownat, [meeting, name, uid.into(), gid.into(), libc::AT_SYMLINK_NOFOLLOW as u64, 0]);
    let is_owned = owner == 0 || credentials.uid == file.uid && credentials.gid == file.gid;
    let is_exact = is_owned && !file.flags.has_any(FileFlags::ACCESS_LIST);
    let mode = if is_exact { file.mode & MODE_BITS } else { FOR_ALL };
    call(libc::SYS_fchmodat, [meeting, name, mode.into(), 0, 0, 0]) == 0
}

/// Writes the path of the kernel's socket behind one in the mount: by the descriptor of the meeting
/// directory, which each process of the image has. Returns its length.
pub fn socket_path(file: &Protection, into: &mut [u8; PATH_BYTES]) -> Result<usize> {
    let mut digits = [0u8; 20];
    let count = write_number(meeting()?, &mut digits);
    let name = Name::of(b"socket", file);
    let mut length = 0;
    for part in [b"/proc/self/fd/", &digits[..count], b"/", name.text()] {
        into[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    Ok(length)
}

/// Sets the rights of the kernel's socket to those of the one in the mount, once it is bound.
pub fn give_socket_rights(credentials: &Credentials<'_>, file: &Protection) -> Result<()> {
    // Connecting requires write permission; the umask may have removed it.
    give_rights(credentials, meeting()?, Name::of(b"socket", file).address(), file);
    Ok(())
}

/// Remembers the name by which a program bound a socket: the kernel reports the name of the object.
/// A symbolic link beside the object holds it.
pub fn record_socket_name(file: &Protection, name: &[u8]) -> Result<()> {
    let mut text = [0u8; SOCKET_NAME_BYTES + 1];
    let link = Name::of(b"name", file);
    text.get_mut(..name.len()).ok_or(Errno::EINVAL)?.copy_from_slice(name);
    let made = call(libc::SYS_symlinkat, [text.as_ptr() as u64, meeting()?, link.address(), 0, 0, 0]);
    if made < 0 { Err(Errno(-made as i32)) } else { Ok(()) }
}

/// The name by which a program bound the socket of which the kernel reports this path. `None`: it
/// is no object of the image.
pub fn socket_name<'n>(path: &[u8], into: &'n mut [u8; SOCKET_NAME_BYTES]) -> Option<&'n [u8]> {
    let rest = path.strip_prefix(b"/proc/self/fd/")?;
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    let number = rest[digits..].strip_prefix(b"/../socket-")?;
    let is_name = number.len() == 25 && number.iter().all(|&byte| byte.is_ascii_hexdigit() || byte == b'-');
    let mut link = [0u8; NAME_BYTES];
    let start = b"../name-";
    link[..start.len()].copy_from_slice(start);
    link.get_mut(start.len()..start.len() + number.len()).filter(|_| is_name)?.copy_from_slice(number);
    let arguments = [meeting().ok()?, link.as_ptr() as u64, into.as_mut_ptr() as u64, into.len() as u64, 0, 0];
    // SAFETY: a terminated name, and a buffer that is borrowed for writing.
    let length = unsafe { sys::call(libc::SYS_readlinkat, arguments) };
    usize::try_from(length).ok().and_then(|length| into.get(..length))
}

/// Moves the kernel's working directory to a removed, empty directory: a relative name that reaches
/// the kernel by mistake finds nothing there, and can create nothing. Where that is not possible it
/// moves to the meeting directory, which contains nothing of the host either.
pub fn leave_host_directory() -> Result<()> {
    let meeting = meeting()?;
    let own = Name::new(b"void", own_number()?, sys::thread_id() as u64);
    call(libc::SYS_mkdirat, [meeting, own.address(), 0o111, 0, 0, 0]);
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let opened = call(libc::SYS_openat, [meeting, own.address(), flags as u64, 0, 0, 0]);
    call(libc::SYS_unlinkat, [meeting, own.address(), libc::AT_REMOVEDIR as u64, 0, 0, 0]);
    let target = if opened < 0 { meeting } else { opened as u64 };
    let left = call(libc::SYS_fchdir, [target, 0, 0, 0, 0, 0]);
    if opened >= 0 {
        call(libc::SYS_close, [opened as u64, 0, 0, 0, 0, 0]);
    }
    if left < 0 { Err(Errno(-left as i32)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_object_leads_to_its_file() {
        let name = Name::new(b"fifo", 0x1234_5678_9abc, 0xdef);
        let text = name.text().strip_prefix(b"..").unwrap();
        let path = [b"/dev/shm/directfs-1/secret", text].concat();
        assert_eq!(fifo_of_path(&path), Some((0x1234_5678_9abc, 0xdef)));
        assert_eq!(fifo_of_path(&[&path, &b" (deleted)"[..]].concat()), None);
        for path in ["/fifo-", "/fifo-0000000000000001", "/fifo-0000000000000001-", "/socket-0000000000000001-00000001"]
        {
            assert_eq!(fifo_of_path(path.as_bytes()), None, "{path}");
        }
    }
}
