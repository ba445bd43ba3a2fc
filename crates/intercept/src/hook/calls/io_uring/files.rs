//! Lists of files that a program registers with a ring: see
//! [`ring_files`](crate::hook::descriptors::ring_files).

use crate::hook::abi::user_memory;
use crate::hook::call::Call;
use crate::hook::descriptors::marks::{self, kernel};
use crate::hook::descriptors::ring_files;
use crate::hook::process::session::Session;
use posix::{Errno, Result};

/// The longest list that the kernel accepts.
pub const LIST_MAX: u32 = 1 << 20;

/// io_uring_register: ends a table.
pub const UNREGISTER: u32 = 3;

/// In a list of an update: the index keeps its file.
const SKIP: i32 = -2;

/// A list of descriptors in the program's memory.
#[derive(Clone, Copy)]
pub struct List {
    pub address: u64,
    pub count: u32,
}

impl List {
    fn each(self) -> impl Iterator<Item = (u32, i32)> {
        // Without an address the table is empty.
        let count = if self.address == 0 { 0 } else { self.count.min(LIST_MAX) };
        (0..count).map_while(move |index| {
            let fd = user_memory::read::<i32>(self.address.wrapping_add(4 * u64::from(index)));
            fd.ok().map(|fd| (index, fd))
        })
    }

    /// Whether it names a descriptor whose calls the library serves, or that is hidden.
    pub fn holds_own(self) -> bool {
        self.each().any(|(_, fd)| marks::is_served(fd as u32) || marks::is_hidden(u64::from(fd as u32)))
    }

    /// Checks the descriptors that the kernel cannot check.
    fn check(self, session: &Session<'_>) -> Result<()> {
        for (_, fd) in self.each().filter(|(_, fd)| *fd >= 0) {
            let fd = fd as u32;
            if marks::is_hidden(fd.into()) {
                return Err(Errno::EBADF);
            }
            if !marks::is_served(fd) {
                continue;
            }
            match session.process.file(session.caller.thread, fd) {
                Some(file) if file.is_path() => return Err(Errno::EBADF),
                Some(_) if !session.is_child => {}
                // A table of mounts, or an inotify descriptor: the kernel's content is another. A
                // child in its parent's memory has other descriptors than its parent.
                Some(_) => return Err(Errno::EOPNOTSUPP),
                None if session.process.descriptor(fd).is_some() || !marks::is_marked(fd) => {
                    return Err(Errno::EOPNOTSUPP);
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Has the kernel put the descriptors of a list into a ring's table, from an index on, and keeps
/// those of the image; returns the kernel's result. `is_whole`: the table is new, and all or none
/// are put.
pub fn put(
    call: &mut Call<'_>,
    ring: u32,
    (first, list, is_whole): (u32, List, bool),
    in_kernel: impl FnOnce() -> i64,
) -> Result<i64> {
    let session = call.begin()?.session;
    list.check(&session)?;
    let result = in_kernel();
    if result < 0 {
        return Ok(result);
    }
    let count = if is_whole { list.count } else { result as u32 };
    let put = List { count, ..list };
    for (index, fd) in put.each().filter(|(_, fd)| *fd != SKIP) {
        let at = first.wrapping_add(index);
        ring_files::release(&session, ring, at);
        if fd < 0 || session.process.descriptor(fd as u32).is_none() {
            continue;
        }
        if let Err(error) = ring_files::keep(&session, ring, at, fd as u32) {
            // The kernel's table must not have what this one has not.
            if is_whole {
                ring_files::release_all(&session, ring);
                kernel(libc::SYS_io_uring_register, ring.into(), UNREGISTER.into(), 0);
            } else {
                let nothing = -1i32;
                update_in_kernel(ring, at, &raw const nothing as u64, 1);
            }
            return Err(error);
        }
    }
    Ok(result)
}

/// `struct io_uring_files_update`.
#[repr(C)]
struct Update {
    first: u32,
    reserved: u32,
    list: u64,
}

fn update_in_kernel(ring: u32, first: u32, list: u64, count: u32) -> i64 {
    const FILES_UPDATE: u64 = 6;
    let update = Update { first, reserved: 0, list };
    let arguments = [ring.into(), FILES_UPDATE, &raw const update as u64, count.into(), 0, 0];
    // SAFETY: a structure of this function; the kernel checks the list.
    unsafe { crate::hook::abi::sys::call(libc::SYS_io_uring_register, arguments) }
}

/// Replaces files of a ring's table from an index on; returns how many.
pub fn update(call: &mut Call<'_>, ring: u32, first: u32, list: List) -> Result<i64> {
    put(call, ring, (first, list, false), || update_in_kernel(ring, first, list.address, list.count))
}

/// Moves a descriptor that was just opened into a ring's table.
pub fn move_into(call: &mut Call<'_>, ring: u32, index: u32, fd: u32) -> Result<()> {
    let fd = fd as i32;
    let list = List { address: &raw const fd as u64, count: 1 };
    match update(call, ring, index, list)? {
        error @ ..0 => Err(Errno(-error as i32)),
        _ => Ok(()),
    }
}
