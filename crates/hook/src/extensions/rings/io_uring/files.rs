//! Lists of files that a program registers with a ring: see
//! [`ring_files`](crate::extensions::rings::ring_files).

use crate::abi::user_memory;
use crate::call::Call;
use crate::descriptors::marks::{self, kernel};
use crate::extensions::rings::message_ring::{ANY_INDEX, Message};
use crate::extensions::rings::ring_files;
use crate::process::session::Session;
use posix::{Errno, Result};

/// The longest list that the kernel accepts.
pub const LIST_MAX: u32 = 1 << 20;

/// io_uring_register: ends a table.
pub const UNREGISTER: u32 = 3;

/// In a list of an update: the index keeps its file.
const SKIP: i32 = -2;

/// Where a file goes in a ring's table.
#[derive(Clone, Copy)]
pub enum Place {
    At(u32),
    /// At an index that the kernel chooses.
    Any,
}

impl Place {
    /// By the field of an entry. `None`: no place.
    pub fn of(field: u32) -> Option<Place> {
        match field {
            0 => None,
            ANY_INDEX => Some(Place::Any),
            index => Some(Place::At(index - 1)),
        }
    }

    fn field(self) -> u32 {
        match self {
            Place::At(index) => index.wrapping_add(1),
            Place::Any => ANY_INDEX,
        }
    }
}

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
                remove_in_kernel(ring, at);
            }
            return Err(error);
        }
    }
    Ok(result)
}

fn remove_in_kernel(ring: u32, index: u32) {
    let nothing = -1i32;
    update_in_kernel(ring, index, &raw const nothing as u64, 1);
}

/// Puts a descriptor's file into a ring's table by a message; returns the message's result, which
/// is the index if the kernel chose one.
pub fn send(call: &mut Call<'_>, ring: u32, place: Place, fd: u32) -> Result<u32> {
    let number = fd as i32;
    let session = call.begin()?.session;
    if session.is_child {
        return Err(Errno::EOPNOTSUPP);
    }
    List { address: &raw const number as u64, count: 1 }.check(&session)?;
    let result =
        call.context.of_extensions().message_ring.send(ring, Message::File { fd: number, index: place.field() })?;
    let at = match place {
        Place::At(index) => index,
        Place::Any => result,
    };
    let session = call.begin()?.session;
    ring_files::release(&session, ring, at);
    if session.process.descriptor(fd).is_some() {
        ring_files::keep(&session, ring, at, fd).inspect_err(|_| remove_in_kernel(ring, at))?;
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
    unsafe { crate::abi::sys::call(libc::SYS_io_uring_register, arguments) }
}

/// Puts a list of files into a ring's table: from an index on, or each at one that the kernel
/// chooses and the list then holds. Returns how many.
pub fn update(call: &mut Call<'_>, ring: u32, place: Place, list: List) -> Result<i64> {
    let Place::At(first) = place else { return put_anywhere(call, ring, list) };
    put(call, ring, (first, list, false), || update_in_kernel(ring, first, list.address, list.count))
}

fn put_anywhere(call: &mut Call<'_>, ring: u32, list: List) -> Result<i64> {
    let mut put_next = |index: u32| {
        let address = list.address.wrapping_add(4 * u64::from(index));
        let at = send(call, ring, Place::Any, user_memory::read(address)?)?;
        user_memory::write(address, &at).inspect_err(|_| {
            remove_in_kernel(ring, at);
            if let Ok(inside) = call.begin() {
                ring_files::release(&inside.session, ring, at);
            }
        })
    };
    for index in 0..list.count {
        match put_next(index) {
            Ok(()) => {}
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index.into()),
        }
    }
    Ok(list.count.into())
}

/// Puts a descriptor that was just opened into a ring's table; returns the result of the open.
pub fn put_opened(call: &mut Call<'_>, ring: u32, place: Place, fd: u32) -> Result<i64> {
    let number = fd as i32;
    let list = List { address: &raw const number as u64, count: 1 };
    match place {
        Place::Any => send(call, ring, place, fd).map(i64::from),
        Place::At(_) => update(call, ring, place, list).map(|result| result.min(0)),
    }
}
