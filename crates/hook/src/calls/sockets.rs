//! Sockets with names in the mount, which the kernel cannot find there.
//!
//! Behind such a name is a socket file of the image; the kernel's socket is bound to a path in the
//! meeting directory ([`kernel_objects`]). A connect or a datagram to the path in the mount finds
//! the file, checks its permissions, and goes to that path. Where the kernel reports the path, the
//! program gets the name that the socket was bound by.
//!
//! bind makes a symbolic link beside the kernel's object, with the program's path; calls that
//! report addresses use it. *Rejected:* an attribute of the file (it outlives the socket); a
//! further shared table.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::user_memory::UserSlice;
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call, native_with};
use crate::calls::kernel_objects;
use crate::calls::names::walk_path;
use crate::context::Inside;
use crate::descriptors::{self, fd_numbers, marks};
use crate::paths::Directory;
use engine::Protection;
use engine::format::FileKind;
use posix::path::{LastLink, Outcome};
use posix::{Errno, Result, Want};

/// Number of bytes before the path.
const FAMILY_BYTES: usize = 2;
/// Maximum length of a path in an address.
const PATH_BYTES: usize = 108;

/// An address for the kernel.
pub struct Address {
    bytes: [u8; FAMILY_BYTES + PATH_BYTES],
    /// Bytes in use.
    pub length: usize,
}

impl Address {
    fn new(parts: &[&[u8]]) -> Result<Address> {
        let mut address = Address { bytes: [0; FAMILY_BYTES + PATH_BYTES], length: FAMILY_BYTES };
        address.bytes[..FAMILY_BYTES].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        for part in parts {
            let room = address.bytes.get_mut(address.length..address.length + part.len()).ok_or(Errno::EINVAL)?;
            room.copy_from_slice(part);
            address.length += part.len();
        }
        Ok(address)
    }

    /// The kernel's name of a socket of the image.
    fn of(file: &Protection) -> Result<Address> {
        let mut path = [0; kernel_objects::PATH_BYTES];
        let length = kernel_objects::socket_path(file, &mut path)?;
        Address::new(&[&path[..length], b"\0"])
    }

    /// Where it lies.
    pub fn pointer(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// bind or connect, with this address instead of the program's.
    fn call(&self, number: i64, fd: u64) -> i64 {
        // SAFETY: the kernel reads the address.
        unsafe { blocking_call(number, [fd, self.pointer(), self.length as u64, 0, 0, 0]) }
    }
}

/// Copies the path of an address to the thread's buffer; returns its length. `None`: the address
/// has no path.
fn path_of(call: &mut Call<'_>, address: u64, length: u64) -> Result<Option<usize>> {
    let length = length as u32 as usize;
    if address == 0 || !(FAMILY_BYTES + 1..=FAMILY_BYTES + PATH_BYTES).contains(&length) {
        return Ok(None);
    }
    let mut given = [0u8; FAMILY_BYTES + PATH_BYTES];
    UserSlice::new(address, length)?.copy_to(0, &mut given[..length])?;
    let (family, path) = given[..length].split_at(FAMILY_BYTES);
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    if family != (libc::AF_UNIX as u16).to_ne_bytes() || path.is_empty() {
        return Ok(None);
    }
    let Inside { path: buffer, .. } = call.begin()?;
    buffer[..path.len()].copy_from_slice(path);
    buffer[path.len()] = 0;
    Ok(Some(path.len()))
}

/// The address for the kernel of what a program sends to or connects to. `None`: the program's own.
pub fn destination(call: &mut Call<'_>, address: u64, length: u64) -> Result<Option<Address>> {
    let Some(length) = path_of(call, address, length)? else { return Ok(None) };
    let (mut rewritten, mut found) = (None, None);
    walk_path(
        call,
        Directory::Working,
        length,
        &mut |path| {
            rewritten = path.map(|path| Address::new(&[path]));
            NATIVE
        },
        &mut |caller, walk_start, path, walk| {
            Ok(match caller.stat_path(walk_start, path, LastLink::Follow, walk)? {
                Outcome::Left(exit) => Outcome::Left(exit),
                Outcome::Inside(file) => {
                    caller.access_of(&file.protection(), Want::WRITE)?;
                    if file.kind != FileKind::Socket {
                        return Err(Errno(libc::ECONNREFUSED));
                    }
                    found = Some(Address::of(&file.protection())?);
                    Outcome::Inside(0)
                }
            })
        },
    )?;
    rewritten.transpose().map(|rewritten| rewritten.or(found))
}

/// The kernel performs the call with the program's address, or with the rewritten path.
fn host_verdict(number: i64, fd: u64) -> impl FnMut(Option<&[u8]>) -> Verdict {
    move |path| match path {
        None => NATIVE,
        Some(path) => match Address::new(&[path]) {
            Ok(address) => done(address.call(number, fd)),
            Err(Errno(errno)) => done(-i64::from(errno)),
        },
    }
}

/// Whether a socket's address may be a path. ENOTSOCK or EBADF for a descriptor that is no socket:
/// the kernel looks at it before the address.
fn has_paths(call: &mut Call<'_>) -> Result<bool> {
    let fd = call.frame.rdi;
    marks::host_verdict(fd as u32)?;
    let session = call.begin()?.session;
    if let Some(file) = session.process.file(session.caller.thread, fd as u32) {
        return Err(Errno(if file.is_path() { libc::EBADF } else { libc::ENOTSOCK }));
    }
    let (mut domain, mut bytes) = (0i32, size_of::<i32>() as u32);
    let (found, length) = (&raw mut domain as u64, &raw mut bytes as u64);
    let arguments = [fd, libc::SOL_SOCKET as u64, libc::SO_DOMAIN as u64, found, length, 0];
    // SAFETY: the kernel writes two numbers.
    let result = unsafe { sys::call(libc::SYS_getsockopt, arguments) };
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(domain == libc::AF_UNIX) }
}

/// bind(fd, address, length).
pub fn bind(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi;
    if !has_paths(call)? {
        return Ok(NATIVE);
    }
    let Some(length) = path_of(call, call.frame.rsi, call.frame.rdx)? else { return Ok(NATIVE) };
    let mut name = [0u8; kernel_objects::SOCKET_NAME_BYTES];
    let Inside { session, path, .. } = call.begin()?;
    name[..length].copy_from_slice(&path[..length]);
    let umask = session.umask();
    let mode = libc::S_IFSOCK | 0o777;
    walk_path(
        call,
        Directory::Working,
        length,
        &mut host_verdict(libc::SYS_bind, fd),
        &mut |caller, walk_start, path, walk| {
            let made = caller.mknod_path(walk_start, path, (mode, umask), 0, walk).map_err(|error| match error {
                Errno::EEXIST => Errno(libc::EADDRINUSE),
                other => other,
            })?;
            if let Outcome::Left(exit) = made {
                return Ok(Outcome::Left(exit));
            }
            let Outcome::Inside(file) = caller.stat_path(walk_start, path, LastLink::Stay, walk)? else {
                return Err(Errno::ENOENT);
            };
            let result = Address::of(&file.protection())?.call(libc::SYS_bind, fd);
            if result < 0 {
                caller.unlink_path(walk_start, path, walk)?;
            } else {
                kernel_objects::give_socket_rights(&caller.credentials, &file.protection())?;
                // Without it the program sees the kernel's name.
                let _ = kernel_objects::record_socket_name(&file.protection(), &name[..length]);
            }
            Ok(Outcome::Inside(result))
        },
    )
}

/// connect(fd, address, length).
pub fn connect(call: &mut Call<'_>) -> Result<Verdict> {
    if !has_paths(call)? {
        return Ok(NATIVE);
    }
    let [fd, address, length, ..] = call.arguments();
    Ok(match destination(call, address, length)? {
        Some(address) => done(address.call(libc::SYS_connect, fd)),
        None => NATIVE,
    })
}

/// sendto(fd, bytes, count, flags, address, length).
pub fn sendto(call: &mut Call<'_>) -> Result<Verdict> {
    let [fd, bytes, count, flags, address, length] = call.arguments();
    descriptors::kernel_verdict(call, fd)?;
    let Some(address) = destination(call, address, length)? else { return Ok(NATIVE) };
    let arguments = [fd, bytes, count, flags, address.pointer(), address.length as u64];
    // SAFETY: the kernel reads the program's bytes, and the address.
    Ok(done(unsafe { blocking_call(libc::SYS_sendto, arguments) }))
}

/// recvfrom(fd, bytes, count, flags, address, length).
pub fn recvfrom(call: &mut Call<'_>) -> Result<Verdict> {
    descriptors::kernel_verdict(call, call.frame.rdi)?;
    with_name(call, 4)
}

/// getsockname(fd, address, length), getpeername(fd, address, length).
pub fn name(call: &mut Call<'_>) -> Result<Verdict> {
    descriptors::kernel_verdict(call, call.frame.rdi)?;
    with_name(call, 1)
}

/// accept(fd, address, length), accept4(fd, address, length, flags).
pub fn accept(call: &mut Call<'_>) -> Result<Verdict> {
    fd_numbers::release_cached();
    descriptors::kernel_verdict(call, call.frame.rdi)?;
    with_name(call, 1)
}

/// Performs a call that reports an address in the argument `at`, with its length behind the next.
fn with_name(call: &mut Call<'_>, at: usize) -> Result<Verdict> {
    let (address, length) = (call.arguments()[at], call.arguments()[at + 1]);
    let Ok(room) = user_memory::read::<u32>(length) else { return Ok(NATIVE) };
    if address == 0 {
        return Ok(NATIVE);
    }
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result >= 0
        && let Some(bytes) = restore_name(address, user_memory::read(length)?, room)?
    {
        user_memory::write(length, &bytes)?;
    }
    Ok(verdict)
}

/// Puts the name of a socket in the mount in place of the one that the kernel reported, with this
/// length, into `room` bytes; returns the name's length, or none for another socket.
pub fn restore_name(address: u64, length: u32, room: u32) -> Result<Option<u32>> {
    let reported = length.min(room) as usize;
    if address == 0 || !(FAMILY_BYTES + 1..=FAMILY_BYTES + PATH_BYTES).contains(&reported) {
        return Ok(None);
    }
    let mut given = [0u8; FAMILY_BYTES + PATH_BYTES];
    UserSlice::new(address, reported)?.copy_to(0, &mut given[..reported])?;
    let (family, path) = given[..reported].split_at(FAMILY_BYTES);
    if family != (libc::AF_UNIX as u16).to_ne_bytes() {
        return Ok(None);
    }
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut name = [0u8; kernel_objects::SOCKET_NAME_BYTES];
    let Some(name) = kernel_objects::socket_name(path, &mut name) else { return Ok(None) };
    let restored = Address::new(&[name, b"\0"]).or_else(|_| Address::new(&[name]))?;
    user_memory::fill(address, &restored.bytes[..restored.length.min(room as usize)])?;
    Ok(Some(restored.length as u32))
}
