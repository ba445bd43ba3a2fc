//! Descriptors that processes send each other (SCM_RIGHTS).
//!
//! A placeholder does not identify the open file description behind it. So a file in memory travels
//! in its stead that holds a token, by which the receiver finds the open file description. The
//! receiver replaces the file with a placeholder under the same number. The table of tokens keeps
//! the description open meanwhile.
//!
//! A receiver without the library gets the file with the token, which is useless to it. A message
//! that is never received keeps its description open until the file system is detached.

use crate::hook::abi::entry::Verdict;
use crate::hook::abi::{sys, user_memory};
use crate::hook::call::{Call, blocking_call, native_with};
use crate::hook::calls::inotify;
use crate::hook::context::{Context, Inside};
use crate::hook::descriptors;
use crate::hook::descriptors::fd_numbers;
use crate::hook::dispatch::{NATIVE, done};
use crate::hook::process::environment;
use crate::hook::process::processes::Session;
use crate::hook::server::Server;
use posix::process::FdToken;
use posix::{Errno, Result};

/// `struct msghdr` of the kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Message {
    name: u64,
    name_bytes: u64,
    vector: u64,
    vector_count: u64,
    control: u64,
    control_bytes: u64,
    flags: u64,
}
/// Size of a message in a list of several.
const LISTED_BYTES: u64 = 64;
/// Size of a control message's header.
const HEAD_BYTES: usize = 16;
/// Maximum number of descriptors in one message, as in the kernel.
const SENT_MAX: usize = 253;
/// Maximum length of a control buffer that is inspected: more than the kernel accepts by default.
const CONTROL_BYTES_MAX: usize = 24 << 10;

/// Content of a travelling file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct FdTokenFile {
    magic: u64,
    index: u64,
    secret: u64,
}
/// In place of a token file: the descriptor travels itself.
const NO_FILE: u32 = u32::MAX;
const MAGIC: u64 = u64::from_le_bytes(*b"DFSTOKEN");

/// Calls `act` for each descriptor in a control buffer, with its place there.
fn each_descriptor(control: &mut [u8], mut act: impl FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
    let mut at = 0;
    while let Some(head) = control.get(at..at + HEAD_BYTES) {
        let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let length = word(0) as usize;
        let is_rights = word(8) as i32 == libc::SOL_SOCKET && word(12) as i32 == libc::SCM_RIGHTS;
        let end = at.saturating_add(length);
        if length < HEAD_BYTES || end > control.len() {
            return Ok(());
        }
        if is_rights {
            for fd in control[at + HEAD_BYTES..end].chunks_exact_mut(4) {
                act(fd)?;
            }
        }
        at = end.next_multiple_of(8);
    }
    Ok(())
}

fn number_of(fd: &[u8]) -> u32 {
    fd.first_chunk().map_or(u32::MAX, |bytes| u32::from_ne_bytes(*bytes))
}

/// sendmsg(fd, message, flags).
pub fn sendmsg(call: &mut Call<'_>) -> Result<Verdict> {
    let [socket, address, flags, ..] = call.arguments();
    match send(call.server, call.context, socket, address, flags)? {
        Some(result) => Ok(done(result)),
        None => Ok(NATIVE),
    }
}

/// sendmmsg(fd, messages, count, flags). Messages with descriptors of the image are sent one at a
/// time; the program sends the rest again, as the call permits.
pub fn sendmmsg(call: &mut Call<'_>) -> Result<Verdict> {
    let [socket, address, count, flags, ..] = call.arguments();
    for index in 0..(count as u32).min(1024) {
        let listed = address + u64::from(index) * LISTED_BYTES;
        let message: Message = user_memory::read(listed)?;
        let (mut room, mut found) = ([0u8; 512], false);
        let bytes = (message.control_bytes as usize).min(room.len());
        // SAFETY: used for this call only.
        room[..bytes].copy_from_slice(unsafe { user_memory::bytes(message.control, bytes as u64)? });
        let session = call.begin()?.session;
        each_descriptor(&mut room[..bytes], |fd| {
            found |= travels(&session, number_of(fd)).is_some();
            Ok(())
        })?;
        if !found {
            continue;
        }
        if index > 0 {
            let mut arguments = call.arguments();
            arguments[2] = u64::from(index);
            return Ok(native_with(call.frame, arguments));
        }
        let Some(result) = send(call.server, call.context, socket, listed, flags)? else { return Ok(NATIVE) };
        if result >= 0 {
            user_memory::write(listed + size_of::<Message>() as u64, &(result as u32))?;
        }
        return Ok(done(result.min(1)));
    }
    Ok(NATIVE)
}

/// Sends a message, with token files in place of the image's descriptors. `None`: it contains none.
fn send(server: &'static Server, context: &mut Context, socket: u64, address: u64, flags: u64) -> Result<Option<i64>> {
    let mut message: Message = user_memory::read(address)?;
    let bytes = message.control_bytes as usize;
    if message.control == 0 || !(HEAD_BYTES + 4..=CONTROL_BYTES_MAX).contains(&bytes) {
        return Ok(None);
    }
    // The kernel must refuse them.
    fd_numbers::release_cached();
    let Inside { session, copy, .. } = context.begin(server)?;
    let control = &mut copy[..bytes];
    // SAFETY: used for this call only.
    control.copy_from_slice(unsafe { user_memory::bytes(message.control, bytes as u64)? });
    let mut token_files = [(0, FdToken { index: 0, secret: 0 }); SENT_MAX];
    let mut count = 0;
    let replaced = each_descriptor(control, |fd| {
        let Some(replaces) = travels(&session, number_of(fd)) else { return Ok(()) };
        let slot = token_files.get_mut(count).ok_or(Errno::EINVAL)?;
        let token = session.process.export(session.caller.thread, number_of(fd))?;
        if !replaces {
            *slot = (NO_FILE, token);
            count += 1;
            return Ok(());
        }
        let token_file = match write_fd_token(&token) {
            Ok(token_file) => token_file,
            Err(error) => {
                take_back(&session, token);
                return Err(error);
            }
        };
        *slot = (token_file, token);
        count += 1;
        fd.copy_from_slice(&token_file.to_ne_bytes());
        Ok(())
    });
    if count == 0 {
        return replaced.map(|()| None);
    }
    message.control = control.as_ptr() as u64;
    let result = match replaced {
        Ok(()) => {
            let arguments = [socket, &raw const message as u64, flags, 0, 0, 0];
            // SAFETY: the message is the program's, except for the control buffer, which is the
            // thread's.
            Ok(unsafe { blocking_call(libc::SYS_sendmsg, arguments) })
        }
        Err(error) => Err(error),
    };
    for (token_file, token) in &token_files[..count] {
        if *token_file != NO_FILE {
            descriptors::close_placeholder(*token_file);
        }
        if !matches!(result, Ok(0..)) {
            take_back(&session, *token);
        }
    }
    result.map(Some)
}

/// Whether a descriptor needs a token on its way, and if so, whether a token file replaces it. An
/// inotify descriptor travels itself, and the receiver finds its token by the key of its group. One
/// without watches in the mount is only the kernel's.
fn travels(session: &Session<'_>, fd: u32) -> Option<bool> {
    session.process.descriptor(fd)?;
    match session.process.watch_key(fd) {
        Some(key) => session.caller.thread.watches().watch_group(key).map(|_| false),
        None => Some(true),
    }
}

/// Creates a sealed file that holds a token.
fn write_fd_token(token: &FdToken) -> Result<u32> {
    let token_file = FdTokenFile { magic: MAGIC, index: u64::from(token.index), secret: token.secret };
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let seals = (libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) as u64;
    // SAFETY: a terminated name and a token of this function's; the descriptor is new.
    unsafe {
        let fd = sys::call(libc::SYS_memfd_create, [c"directfs-token".as_ptr() as u64, flags, 0, 0, 0, 0]);
        if fd < 0 {
            return Err(Errno(-fd as i32));
        }
        let bytes = size_of::<FdTokenFile>() as u64;
        sys::call(libc::SYS_write, [fd as u64, &raw const token_file as u64, bytes, 0, 0, 0]);
        sys::call(libc::SYS_fcntl, [fd as u64, libc::F_ADD_SEALS as u64, seals, 0, 0, 0]);
        Ok(fd as u32)
    }
}

/// Withdraws a description from transit whose message was not sent.
fn take_back(session: &Session<'_>, token: FdToken) {
    if let Ok(fd) = fd_numbers::reserve(session, 0, true) {
        let _ = session.process.import(session.caller.thread, token, fd, true, true);
        session.process.remove(session.caller.thread, fd);
        descriptors::give_up(session, fd, true);
    }
}

/// recvmsg(fd, message, flags).
pub fn recvmsg(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, flags) = (call.frame.rsi, call.frame.rdx as i32);
    let before: Message = user_memory::read(address)?;
    if before.control == 0 || before.control_bytes < HEAD_BYTES as u64 {
        return Ok(NATIVE);
    }
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result >= 0 {
        received(call, address, flags)?;
    }
    Ok(verdict)
}

/// recvmmsg(fd, messages, count, flags, timeout).
pub fn recvmmsg(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, flags) = (call.frame.rsi, call.frame.r10 as i32);
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    for index in 0..verdict.result.max(0) as u64 {
        received(call, address + index * LISTED_BYTES, flags)?;
    }
    Ok(verdict)
}

/// Replaces the token files of a received message with placeholders of their descriptions.
fn received(call: &mut Call<'_>, address: u64, flags: i32) -> Result<()> {
    let message: Message = user_memory::read(address)?;
    if message.control == 0 || message.control_bytes < HEAD_BYTES as u64 {
        return Ok(());
    }
    let Inside { session, copy, .. } = call.begin()?;
    // SAFETY: used for this call only.
    let control = unsafe { user_memory::bytes_mut(message.control, message.control_bytes)? };
    each_descriptor(control, |fd| {
        let fd = number_of(fd);
        if let Some(token) = read_fd_token(fd) {
            open_fd_token(&session, fd, token, flags)?;
        } else if let Some(key) = inotify::received_key(session.caller.thread, fd, &mut copy[..])
            && let Some(token) = session.process.find_watcher_token(session.caller.thread, key)
        {
            let (cloexec, last) = (flags & libc::MSG_CMSG_CLOEXEC != 0, flags & libc::MSG_PEEK == 0);
            if session.process.import(session.caller.thread, token, fd, cloexec, last).is_ok() {
                descriptors::mark(fd);
            }
        }
        Ok(())
    })
}

fn read_fd_token(fd: u32) -> Option<FdToken> {
    let bytes = size_of::<FdTokenFile>();
    let status = sys::status(fd as i32).ok()?;
    if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_size != bytes as i64 || status.st_nlink != 0 {
        return None;
    }
    let mut token_file = FdTokenFile { magic: 0, index: 0, secret: 0 };
    // SAFETY: the kernel fills a structure of integers.
    let count =
        unsafe { sys::call(libc::SYS_pread64, [u64::from(fd), &raw mut token_file as u64, bytes as u64, 0, 0, 0]) };
    let index = u32::try_from(token_file.index).ok()?;
    (count == bytes as i64 && token_file.magic == MAGIC).then_some(FdToken { index, secret: token_file.secret })
}

fn open_fd_token(session: &Session<'_>, fd: u32, token: FdToken, flags: i32) -> Result<()> {
    let Some(handoff) = environment::handoff() else { return Ok(()) };
    let cloexec = flags & libc::MSG_CMSG_CLOEXEC != 0;
    let dup_flags = if cloexec { libc::O_CLOEXEC as u64 } else { 0 };
    // SAFETY: replaces a descriptor that the program does not know yet.
    unsafe { sys::call(libc::SYS_dup3, [handoff.placeholder as u64, u64::from(fd), dup_flags, 0, 0, 0]) };
    let last = flags & libc::MSG_PEEK == 0;
    // A token of another file system: a placeholder without function remains.
    if session.process.import(session.caller.thread, token, fd, cloexec, last).is_ok() {
        descriptors::mark(fd);
    }
    Ok(())
}
