//! Sockets with names in the mount, which the kernel cannot find there.
//!
//! Behind such a name is a socket file of the image; the kernel's socket is bound to a path in the
//! meeting directory ([`kernel_objects`]). A connect by the path in the mount finds the file,
//! checks its permissions, and connects to that path. Programs that ask the kernel for the name of
//! a socket get that path. Datagrams to a path of the image (sendto) are not delivered: the kernel
//! returns ENOENT.

use crate::hook::abi::entry::Verdict;
use crate::hook::abi::{sys, user_memory};
use crate::hook::call::{Call, blocking_call};
use crate::hook::calls::kernel_objects;
use crate::hook::calls::names::walk_path;
use crate::hook::context::Inside;
use crate::hook::descriptors;
use crate::hook::dispatch::{NATIVE, done};
use crate::hook::paths::Directory;
use engine::Protection;
use engine::format::FileKind;
use posix::path::{LastLink, Outcome};
use posix::{Errno, Result, Want};

/// Number of bytes before the path.
const FAMILY_BYTES: usize = 2;
/// Maximum length of a path in an address.
const PATH_BYTES: usize = 108;

/// An address for the kernel.
struct Address {
    bytes: [u8; FAMILY_BYTES + PATH_BYTES],
    length: usize,
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

    /// bind or connect, with this address instead of the program's.
    fn call(&self, number: i64, fd: u64) -> i64 {
        // SAFETY: the kernel reads the address.
        unsafe { blocking_call(number, [fd, self.bytes.as_ptr() as u64, self.length as u64, 0, 0, 0]) }
    }
}

/// Copies the path of an address to the thread's buffer; returns its length. `None`: the address
/// has no path.
fn path_of(call: &mut Call<'_>) -> Result<Option<usize>> {
    let (address, length) = (call.frame.rsi, call.frame.rdx as u32 as usize);
    if !(FAMILY_BYTES + 1..=FAMILY_BYTES + PATH_BYTES).contains(&length) {
        return Ok(None);
    }
    // SAFETY: used for this call only.
    let given = unsafe { user_memory::bytes(address, length as u64)? };
    let (family, path) = given.split_at(FAMILY_BYTES);
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    if family != (libc::AF_UNIX as u16).to_ne_bytes() || path.is_empty() {
        return Ok(None);
    }
    let Inside { path: buffer, .. } = call.begin()?;
    buffer[..path.len()].copy_from_slice(path);
    buffer[path.len()] = 0;
    Ok(Some(path.len()))
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

/// ENOTSOCK or EBADF for a descriptor that is no socket: the kernel looks at it before the address.
fn check_socket(call: &mut Call<'_>) -> Result<()> {
    let fd = call.frame.rdi;
    descriptors::host_verdict(fd as u32)?;
    let session = call.begin()?.session;
    if let Some(file) = session.process.file(session.caller.thread, fd as u32) {
        return Err(Errno(if file.is_path() { libc::EBADF } else { libc::ENOTSOCK }));
    }
    let (mut kind, mut bytes) = (0i32, size_of::<i32>() as u32);
    let (kind, bytes) = (&raw mut kind as u64, &raw mut bytes as u64);
    let arguments = [fd, libc::SOL_SOCKET as u64, libc::SO_TYPE as u64, kind, bytes, 0];
    // SAFETY: the kernel writes two numbers.
    let result = unsafe { sys::call(libc::SYS_getsockopt, arguments) };
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(()) }
}

/// bind(fd, address, length).
pub fn bind(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi;
    check_socket(call)?;
    let Some(length) = path_of(call)? else { return Ok(NATIVE) };
    let umask = call.begin()?.session.process.umask();
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
            }
            Ok(Outcome::Inside(result))
        },
    )
}

/// connect(fd, address, length).
pub fn connect(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.rdi;
    check_socket(call)?;
    let Some(length) = path_of(call)? else { return Ok(NATIVE) };
    walk_path(
        call,
        Directory::Working,
        length,
        &mut host_verdict(libc::SYS_connect, fd),
        &mut |caller, walk_start, path, walk| {
            Ok(match caller.stat_path(walk_start, path, LastLink::Follow, walk)? {
                Outcome::Left(exit) => Outcome::Left(exit),
                Outcome::Inside(file) => {
                    caller.access_of(&file.protection(), Want::WRITE)?;
                    if file.kind != FileKind::Socket {
                        return Err(Errno(libc::ECONNREFUSED));
                    }
                    Outcome::Inside(Address::of(&file.protection())?.call(libc::SYS_connect, fd))
                }
            })
        },
    )
}
