//! Handles of files: inode number and generation, which never name another file.
//!
//! They are in the form that tmpfs uses. A handle from a mount of the image has another form, and
//! is of no use here.

use crate::abi::entry::{NATIVE, Verdict};
use crate::abi::user_memory;
use crate::call::Call;
use crate::calls::names::{at, by_node, follow};
use crate::process::session::Calling;
use crate::status;
use libc::{AT_EMPTY_PATH, AT_SYMLINK_FOLLOW};
use posix::path::LastLink;
use posix::{Errno, NodeRef, Result};

/// Linux 6.12: the mount's id that is never reused, in eight bytes.
const AT_HANDLE_MNT_ID_UNIQUE: i32 = 1;
/// Linux 6.5: a handle that only serves to compare files.
const AT_HANDLE_FID: i32 = 0x200;
/// Number and generation.
pub const KIND: i32 = 1;
/// Generation, low and high half of the number.
pub const HANDLE_BYTES: u32 = 12;
/// Maximum length of any handle.
const HANDLE_BYTES_MAX: u32 = 128;
/// Length and kind come before the handle.
const HEAD_BYTES: u64 = 8;

/// name_to_handle_at(directory, path, handle, mount id, flags).
pub fn name_to_handle_at(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, handle, mount, flags, _] = call.arguments();
    let flags = flags as i32;
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH | AT_HANDLE_FID | AT_HANDLE_MNT_ID_UNIQUE) != 0 {
        return Ok(NATIVE);
    }
    by_node(call, at(0), flags, follow(flags, AT_SYMLINK_FOLLOW, LastLink::Follow), &mut |caller, node| {
        let room: u32 = user_memory::read(handle)?;
        if room > HANDLE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let file = caller.thread.protection(node)?;
        if flags & AT_HANDLE_MNT_ID_UNIQUE == 0 {
            user_memory::write(mount, &(status::MOUNT_ID as u32))?;
        } else {
            user_memory::write(mount, &status::MOUNT_ID_UNIQUE)?;
        }
        if room < HANDLE_BYTES {
            user_memory::write(handle, &HANDLE_BYTES)?;
            return Err(Errno::EOVERFLOW);
        }
        user_memory::write(handle, &[HANDLE_BYTES, KIND as u32])?;
        let words = [file.generation, file.number as u32, (file.number >> 32) as u32];
        user_memory::write(handle + HEAD_BYTES, &words).map(|()| 0)
    })
}

/// The file of a handle in the program's memory. ESTALE: it is gone, or the handle is another file
/// system's.
pub fn file_of<'c>(caller: &Calling<'c>, handle: u64) -> Result<NodeRef<'c, 'static>> {
    const STALE: Errno = Errno(libc::ESTALE);
    let [bytes, kind]: [u32; 2] = user_memory::read(handle)?;
    if bytes == 0 || bytes > HANDLE_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    if bytes != HANDLE_BYTES || kind as i32 != KIND {
        return Err(STALE);
    }
    let [generation, low, high]: [u32; 3] = user_memory::read(handle + HEAD_BYTES)?;
    let found = caller.thread.node(u64::from(low) | u64::from(high) << 32, Some(generation));
    found.map(|node| NodeRef::owned(caller.thread, node)).map_err(|error| match error {
        engine::Error::NotFound => STALE,
        other => match Errno::from(other) {
            Errno::ENOENT | Errno::EIO | Errno::EINVAL => STALE,
            other => other,
        },
    })
}
