//! The mount directory in the listing of the directory above it, where the machine has no such
//! name.
//!
//! Programs that walk upwards look for the directory that they came from, and `ls` shows what can
//! be entered. The entry is added behind the first entries that the kernel returns from the start
//! of the directory. Its cookie is that of the entry before it, so a listing that continues there
//! misses nothing and repeats nothing.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call};
use crate::descriptors::marks::{self, host_verdict, kernel};
use crate::mount_table;
use crate::paths::{self, Directory};
use crate::server::Server;
use engine::format::ROOT_INODE;
use posix::Result;

/// Bytes of a record before its name in either form, and the maximum after it.
const HEAD_BYTES: usize = 19;
pub(crate) const RECORD_BYTES_MAX: usize = (HEAD_BYTES + 256 + 1).next_multiple_of(8);

/// getdents and getdents64 by a descriptor that is not the image's.
pub fn list(call: &mut Call<'_>) -> Result<Verdict> {
    let [fd, buffer, room, ..] = call.arguments();
    let verdict = host_verdict(fd as u32)?;
    if mount_table::is_marked(fd as u32) {
        return mount_table::list(call);
    }
    let room = room as u32 as usize;
    let mut record = [0u8; RECORD_BYTES_MAX];
    let is_old = call.frame.number as u32 == libc::SYS_getdents as u32;
    let is_start = || kernel(libc::SYS_lseek, fd as u32 as u64, 0, libc::SEEK_CUR as u64) == 0;
    let Some(bytes) = write_record(call.server, is_old, &mut record).filter(|bytes| *bytes < room) else {
        return Ok(verdict);
    };
    if !marks::is_above(fd as u32) || !is_start() || !is_missing_in(call.server, fd as u32) {
        return Ok(verdict);
    }
    let number = i64::from(call.frame.number as u32);
    // SAFETY: the program's own call, with less room.
    let listed = unsafe { blocking_call(number, [fd, buffer, (room - bytes) as u64, 0, 0, 0]) };
    if listed <= 0 {
        // Without the entry there may be room.
        return Ok(if listed == -i64::from(libc::EINVAL) { NATIVE } else { done(listed) });
    }
    record[8..16].copy_from_slice(&last_cookie(buffer, listed as u64)?.to_ne_bytes());
    user_memory::fill(buffer + listed as u64, &record[..bytes])?;
    Ok(done(listed + bytes as i64))
}

/// Whether a directory is the one above the mount, and the machine has no name for the mount there.
fn is_missing_in(server: &Server, fd: u32) -> bool {
    let mut path = [0u8; user_memory::PATH_BYTES_MAX + 1];
    let above = server.above().strip_suffix(b"/").unwrap_or(server.above());
    let found = paths::host_directory_path(Directory::Descriptor(fd), &mut path[..user_memory::PATH_BYTES_MAX]);
    if found.is_none_or(|length| path[..length] != *above) {
        return false;
    }
    let mount = server.mount();
    path[..mount.len()].copy_from_slice(mount);
    path[mount.len()] = 0;
    sys::open(&path[..=mount.len()], libc::O_PATH | libc::O_NOFOLLOW).is_err()
}

/// Writes the entry, without its cookie; returns its bytes.
fn write_record(server: &Server, is_old: bool, record: &mut [u8; RECORD_BYTES_MAX]) -> Option<usize> {
    let mount = server.mount();
    let name = &mount[mount.iter().rposition(|&byte| byte == b'/')? + 1..];
    // The old form has the type behind the name.
    let start = if is_old { HEAD_BYTES - 1 } else { HEAD_BYTES };
    let bytes = (start + name.len() + if is_old { 2 } else { 1 }).next_multiple_of(8);
    record.get_mut(start..start + name.len())?.copy_from_slice(name);
    record[..8].copy_from_slice(&ROOT_INODE.to_ne_bytes());
    record[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
    record[if is_old { bytes - 1 } else { HEAD_BYTES - 1 }] = libc::DT_DIR;
    Some(bytes)
}

/// The cookie of the last of the records in the program's buffer.
fn last_cookie(buffer: u64, bytes: u64) -> Result<u64> {
    let (mut at, mut cookie) = (0, 0);
    while at < bytes {
        cookie = user_memory::read(buffer + at + 8)?;
        at += u64::from(user_memory::read::<u16>(buffer + at + 16)?).max(8);
    }
    Ok(cookie)
}
