//! Descriptors that processes send each other (SCM_RIGHTS).
//!
//! A placeholder does not identify the open file description behind it. So a file in memory travels
//! in its stead that holds a token, by which the receiver finds the open file description. The
//! receiver replaces the file with a placeholder under the same number. The table of tokens keeps
//! the description open meanwhile.
//!
//! A receiver without the library could not use the file with the token: a message to a process
//! outside of the image fails. Where the receiver is not known, as in the queue of a socket that is
//! itself sent, the file travels as a descriptor with O_PATH: to read it outside is EBADF, instead
//! of a token in place of content. A message that is never received keeps its description open
//! until the file system is detached.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::user_memory::UserSlice;
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call, native_with};
use crate::calls::sockets::{self, Address};
use crate::context::{Context, Inside};
use crate::descriptors::{self, fd_numbers, marks};
use crate::extensions;
use crate::proc_links::descriptor_path;
use crate::process::environment;
use crate::process::other_processes::status_of;
use crate::process::session::Session;
use crate::server::Server;
use posix::{Errno, Result};
use tables::process::FdToken;
use tables::watch::Watches;

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
    let message: Message = user_memory::read(address)?;
    marks::host_verdict(socket as u32)?;
    let to = sockets::destination(call, message.name, message.name_bytes)?;
    match send(call.server, call.context, (socket, flags), message, to.as_ref())? {
        Some(result) => Ok(done(result)),
        None => Ok(NATIVE),
    }
}

/// sendmmsg(fd, messages, count, flags). Messages with descriptors of the image, or to a socket
/// there, are sent one at a time; the program sends the rest again, as the call permits.
pub fn sendmmsg(call: &mut Call<'_>) -> Result<Verdict> {
    let [socket, address, count, flags, ..] = call.arguments();
    for index in 0..(count as u32).min(1024) {
        let listed = address + u64::from(index) * LISTED_BYTES;
        let message: Message = user_memory::read(listed)?;
        let to = sockets::destination(call, message.name, message.name_bytes)?;
        let (mut room, mut found) = ([0u8; 512], to.is_some());
        let bytes = (message.control_bytes as usize).min(room.len());
        UserSlice::new(message.control, bytes)?.copy_to(0, &mut room[..bytes])?;
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
        let sent = send(call.server, call.context, (socket, flags), message, to.as_ref())?;
        let Some(result) = sent else { return Ok(NATIVE) };
        if result >= 0 {
            user_memory::write(listed + size_of::<Message>() as u64, &(result as u32))?;
        }
        return Ok(done(result.min(1)));
    }
    Ok(NATIVE)
}

/// Sends a message, with token files in place of the image's descriptors, and to another address
/// than the program's if `to` is given. `None`: nothing is to be changed.
fn send(
    server: &'static Server,
    context: &mut Context,
    (socket, flags): (u64, u64),
    mut message: Message,
    to: Option<&Address>,
) -> Result<Option<i64>> {
    if let Some(to) = to {
        (message.name, message.name_bytes) = (to.pointer(), to.length as u64);
    }
    let send_as_is = |message: &Message| {
        let arguments = [socket, &raw const *message as u64, flags, 0, 0, 0];
        // SAFETY: the message is the program's, except for the address.
        to.map(|_| unsafe { blocking_call(libc::SYS_sendmsg, arguments) })
    };
    let bytes = message.control_bytes as usize;
    if message.control == 0 || !(HEAD_BYTES + 4..=CONTROL_BYTES_MAX).contains(&bytes) {
        return Ok(send_as_is(&message));
    }
    // The kernel must refuse them.
    fd_numbers::release_cached();
    let Inside { session, copy, .. } = context.begin(server)?;
    let control = &mut copy[..bytes];
    UserSlice::new(message.control, bytes)?.copy_to(0, control)?;
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
        return replaced.map(|()| send_as_is(&message));
    }
    message.control = control.as_ptr() as u64;
    let has_files = token_files[..count].iter().any(|(token_file, _)| *token_file != NO_FILE);
    let result = match replaced {
        // A file that its receiver finds empty would be worse than none.
        Ok(()) if has_files && leads_outside(&session, socket) => Err(Errno::EOPNOTSUPP),
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
            marks::close_placeholder(*token_file);
        }
        if !matches!(result, Ok(0..)) {
            take_back(&session, *token);
        }
    }
    result.map(Some)
}

/// Whether the other end of a socket belongs to a process outside of the image, which could not use
/// a descriptor: the process that listened there, or that made the pair. No, if it is not known.
fn leads_outside(session: &Session<'_>, socket: u64) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as u32;
    let (level, name) = (libc::SOL_SOCKET as u64, libc::SO_PEERCRED as u64);
    let arguments = [socket, level, name, &raw mut peer as u64, &raw mut bytes as u64, 0];
    // SAFETY: the kernel fills a structure of integers.
    let found = unsafe { sys::call(libc::SYS_getsockopt, arguments) };
    let Some(handoff) = environment::handoff() else { return false };
    if found < 0 || peer.pid <= 0 || peer.pid == sys::process_id() {
        return false;
    }
    // Each process of the image has the DRAM region open, usually under the same number.
    let is_other = match (status_of(peer.pid, b"/fd/", Some(handoff.region)), sys::status(handoff.region)) {
        (Ok(other), Ok(own)) => (own.st_dev, own.st_ino) != (other.st_dev, other.st_ino),
        (Err(error), _) => error == ABSENT && is_running(peer.pid),
        _ => false,
    };
    let mut is_known = false;
    let processes = session.process.processes();
    let _ = processes.each_process(&mut |process| is_known |= process.process_id == peer.pid as u32);
    is_other && !is_known
}

/// Result of a call for a file that does not exist.
const ABSENT: i64 = -(libc::ENOENT as i64);

/// Whether a process exists and has not ended: one for which its parent has not waited yet has an
/// entry in /proc, but no program.
fn is_running(process: i32) -> bool {
    !matches!(status_of(process, b"/exe", None), Err(ABSENT))
}

/// Whether a descriptor needs a token on its way, and if so, whether a token file replaces it. An
/// inotify descriptor travels itself, and the receiver finds its token by the key of its group. One
/// without watches in the mount is only the kernel's.
fn travels(session: &Session<'_>, fd: u32) -> Option<bool> {
    session.process.descriptor(fd)?;
    match session.process.watch_key(fd) {
        Some(key) => Watches::of(session.caller.thread).watch_group(key).map(|_| false),
        None => Some(true),
    }
}

/// Creates a sealed file that holds a token; returns a descriptor with O_PATH.
fn write_fd_token(token: &FdToken) -> Result<u32> {
    let token_file = FdTokenFile { magic: MAGIC, index: u64::from(token.index), secret: token.secret };
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let seals = (libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) as u64;
    // SAFETY: a terminated name and a token of this function's; the descriptor is new.
    let fd = unsafe {
        let fd = sys::call(libc::SYS_memfd_create, [c"directfs-token".as_ptr() as u64, flags, 0, 0, 0, 0]);
        if fd < 0 {
            return Err(Errno(-fd as i32));
        }
        let bytes = size_of::<FdTokenFile>() as u64;
        sys::call(libc::SYS_write, [fd as u64, &raw const token_file as u64, bytes, 0, 0, 0]);
        sys::call(libc::SYS_fcntl, [fd as u64, libc::F_ADD_SEALS as u64, seals, 0, 0, 0]);
        fd as u32
    };
    let by_path = reopen(fd, libc::O_PATH);
    marks::close_placeholder(fd);
    by_path.map(|by_path| by_path.into_raw() as u32)
}

/// Opens the file of a descriptor again.
fn reopen(fd: u32, flags: i32) -> Result<sys::Fd> {
    sys::open(&descriptor_path(fd), flags).map_err(|error| Errno(-error as i32))
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
    let has_control = before.control != 0 && before.control_bytes >= HEAD_BYTES as u64;
    if !has_control && (before.name == 0 || before.name_bytes == 0) {
        return Ok(NATIVE);
    }
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result >= 0 {
        received(call, address, before.name_bytes as u32, flags)?;
    }
    Ok(verdict)
}

/// recvmmsg(fd, messages, count, flags, timeout).
pub fn recvmmsg(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, flags) = (call.frame.rsi, call.frame.r10 as i32);
    let mut rooms = [0u32; 64];
    for (index, room) in rooms.iter_mut().enumerate().take(call.frame.rdx as u32 as usize) {
        let message = user_memory::read::<Message>(address + index as u64 * LISTED_BYTES);
        *room = message.map_or(0, |message| message.name_bytes as u32);
    }
    fd_numbers::release_cached();
    let verdict = native_with(call.frame, call.arguments());
    for index in 0..verdict.result.max(0) as u64 {
        let room = rooms.get(index as usize).copied().unwrap_or(0);
        received(call, address + index * LISTED_BYTES, room, flags)?;
    }
    Ok(verdict)
}

/// Replaces the token files of a received message with placeholders of their descriptions, and the
/// sender's name with the one that it was bound by. `room`: what the program has for the name.
fn received(call: &mut Call<'_>, address: u64, room: u32, flags: i32) -> Result<()> {
    let mut message: Message = user_memory::read(address)?;
    if let Some(bytes) = sockets::restore_name(message.name, message.name_bytes as u32, room)? {
        message.name_bytes = bytes.into();
        user_memory::write(address, &message)?;
    }
    if message.control == 0 || message.control_bytes < HEAD_BYTES as u64 {
        return Ok(());
    }
    let Inside { session, copy, .. } = call.begin()?;
    let (control, copy) = copy.split_at_mut(CONTROL_BYTES_MAX);
    let bytes = control.len().min(message.control_bytes as usize);
    let control = &mut control[..bytes];
    UserSlice::new(message.control, bytes)?.copy_to(0, control)?;
    each_descriptor(control, |fd| {
        let fd = number_of(fd);
        if let Some(token) = read_fd_token(fd) {
            open_fd_token(&session, fd, token, flags)?;
        } else if let Some(key) = extensions::received_key(session.caller.thread, fd, &mut copy[..])
            && let Some(token) = session.process.find_watcher_token(session.caller.thread, key)
        {
            let (cloexec, last) = (flags & libc::MSG_CMSG_CLOEXEC != 0, flags & libc::MSG_PEEK == 0);
            if session.process.import(session.caller.thread, token, fd, cloexec, last).is_ok() {
                fd_numbers::mark(fd);
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
    let mut token_file = [0; size_of::<FdTokenFile>()];
    let count = reopen(fd, libc::O_RDONLY).ok()?.read_at(0, &mut token_file).ok()?;
    let mut words = token_file.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let (magic, index, secret) = (words.next()?, words.next()?, words.next()?);
    let index = u32::try_from(index).ok()?;
    (count == bytes && magic == MAGIC).then_some(FdToken { index, secret })
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
        fd_numbers::mark(fd);
        if session.process.descriptor(fd).is_some_and(|descriptor| session.process.is_path(&descriptor)) {
            fd_numbers::record_path_descriptor();
        }
    }
    Ok(())
}
