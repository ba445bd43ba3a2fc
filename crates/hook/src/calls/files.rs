//! Calls by descriptor.
//!
//! Invariant: a descriptor that is not in this process's table goes to the kernel, which knows its
//! true state.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::Call;
use crate::calls::open::LARGE_FILE;
use crate::calls::parent_listing::RECORD_BYTES_MAX;
use crate::calls::{attributes, copy_calls, kernel_objects, locks, parent_listing};
use crate::context::{COPY_BYTES, Inside};
use crate::descriptors::marks::{self, host_verdict};
use crate::descriptors::{self, fd_numbers};
use crate::extensions;
use crate::process::image_sync::{finish_write, sync as sync_image};
use crate::process::limits;
use crate::process::session::{Calling, Session};
use crate::signals::faults;
use crate::{mount_table, status};
use engine::format::FileKind;
use engine::{FileFlags, Node};
use pmem::{UserBytes, UserBytesMut};
use posix::{Append, Errno, ExtendedFlags, OpenFile, Result, Scope, Whence};

/// Maximum length of one read or write, as in the kernel.
pub const LENGTH_MAX: u64 = 0x7fff_f000;

/// Acts on the open file description of the first argument.
#[inline]
fn with_file(call: &mut Call<'_>, act: impl FnOnce(&Calling<'_>, &OpenFile) -> Result<i64>) -> Result<Verdict> {
    with_file_or(call, act, |call| host_verdict(call.frame.rdi as u32))
}

/// Like [`with_file`]; `otherwise` serves descriptors that are not the image's.
#[inline]
fn with_file_or(
    call: &mut Call<'_>,
    act: impl FnOnce(&Calling<'_>, &OpenFile) -> Result<i64>,
    otherwise: impl FnOnce(&mut Call<'_>) -> Result<Verdict>,
) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    let session = call.begin()?.session;
    if let Some(file) = session.process.file(session.caller.thread, fd) {
        return act(&session.caller, &file).map(done);
    }
    otherwise(call)
}

/// [`with_file`] for operations that O_PATH descriptors do not support.
pub(crate) fn with_open_file(
    call: &mut Call<'_>,
    act: impl FnOnce(&Calling<'_>, &OpenFile) -> Result<i64>,
) -> Result<Verdict> {
    with_file(call, |caller, file| if file.is_path() { Err(Errno::EBADF) } else { act(caller, file) })
}

/// Acts on the file of the first argument, for calls that concern attributes: also on an open FIFO,
/// whose description is the kernel's.
fn with_node(
    call: &mut Call<'_>,
    allows_path: bool,
    act: impl FnOnce(&Calling<'_>, Node) -> Result<i64>,
) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    let session = call.begin()?.session;
    match session.process.file(session.caller.thread, fd) {
        Some(file) if file.is_path() && !allows_path => Err(Errno::EBADF),
        Some(file) => act(&session.caller, file.node()).map(done),
        None => match kernel_objects::file_of_fifo(&session.caller, fd) {
            Some(file) => act(&session.caller, file.node()).map(done),
            None => host_verdict(fd),
        },
    }
}

// Content.

/// Reads into the program's buffer, at the position if there is no offset. Errors of the file come
/// before those of an invalid buffer.
fn read_into(caller: &Calling<'_>, file: &OpenFile, offset: Option<i64>, buffer: u64, length: u64) -> Result<usize> {
    let before = file.position();
    let length = length.min(LENGTH_MAX);
    let read = |into: UserBytesMut<'_>| match offset {
        Some(offset) => caller.data().read_at(file, offset, into),
        None => caller.data().read(file, into),
    };
    let count = match user_memory::to_fill(buffer, length) {
        Ok(into) => read(into)?,
        Err(refused) => {
            return caller.data().read_at(file, offset.unwrap_or(before as i64), &mut [0]).and(Err(refused));
        }
    };
    if !faults::take() {
        return Ok(count);
    }
    if offset.is_none() {
        file.set_position(before);
    }
    // Up to the end of the accessible buffer.
    let count = read(user_memory::writable_part(buffer, length)?)?;
    if !faults::take() {
        return Ok(count);
    }
    // Another thread unmaps it meanwhile.
    if offset.is_none() {
        file.set_position(before);
    }
    Err(user_memory::EFAULT)
}

/// Writes from the program's buffer, at the position if there is no offset. Other errors come
/// before those of the buffer.
fn write_from(caller: &Calling<'_>, file: &OpenFile, offset: Option<i64>, buffer: u64, length: u64) -> Result<usize> {
    let length = limits::writable(caller, file, offset, length)?;
    let count = match (user_memory::readable_part(buffer, length.min(LENGTH_MAX)), offset) {
        (Ok(from), Some(offset)) => caller.data().write_at(file, offset, from)?,
        (Ok(from), None) => caller.data().write(file, from)?,
        (Err(refused), _) => return caller.data().write_at(file, offset.unwrap_or(0), &[]).and(Err(refused)),
    };
    finish_write(caller, file, count as u64, false)?;
    Ok(count)
}

/// read(fd, buffer, length).
pub fn read(call: &mut Call<'_>) -> Result<Verdict> {
    let (buffer, length) = (call.frame.rsi, call.frame.rdx);
    let verdict = with_file_or(
        call,
        |caller, file| read_into(caller, file, None, buffer, length).map(|count| count as i64),
        |call| mount_table::read(call, None, [Ok((buffer, length))].into_iter()),
    )?;
    extensions::or_ask(call, verdict, |call| extensions::read(call, (buffer, length)))
}

/// write(fd, buffer, length).
pub fn write(call: &mut Call<'_>) -> Result<Verdict> {
    let (buffer, length) = (call.frame.rsi, call.frame.rdx);
    with_file(call, |caller, file| write_from(caller, file, None, buffer, length).map(|count| count as i64))
}

/// pread64(fd, buffer, length, offset).
pub fn pread(call: &mut Call<'_>) -> Result<Verdict> {
    let (buffer, length, offset) = (call.frame.rsi, call.frame.rdx, call.frame.r10 as i64);
    with_file_or(
        call,
        |caller, file| read_into(caller, file, Some(offset), buffer, length).map(|count| count as i64),
        |call| mount_table::read(call, Some(offset), [Ok((buffer, length))].into_iter()),
    )
}

/// pwrite64(fd, buffer, length, offset).
pub fn pwrite(call: &mut Call<'_>) -> Result<Verdict> {
    let (buffer, length, offset) = (call.frame.rsi, call.frame.rdx, call.frame.r10 as i64);
    with_file(call, |caller, file| write_from(caller, file, Some(offset), buffer, length).map(|count| count as i64))
}

/// A list of buffers, as passed to readv and writev.
#[derive(Clone, Copy)]
struct Vector {
    address: u64,
    count: u64,
}

impl Vector {
    fn new(address: u64, count: u64) -> Result<Vector> {
        let vector = Vector { address, count };
        if count > libc::UIO_MAXIOV as u64 {
            return Err(Errno::EINVAL);
        }
        let mut sum = 0u64;
        for index in 0..count {
            let (_, length) = vector.part(index)?;
            sum = sum.checked_add(length).filter(|&sum| sum <= i64::MAX as u64).ok_or(Errno::EINVAL)?;
        }
        Ok(vector)
    }

    fn part(&self, index: u64) -> Result<(u64, u64)> {
        let [address, length]: [u64; 2] = user_memory::read(self.address + 16 * index)?;
        Ok((address, length))
    }

    fn total(&self) -> Result<u64> {
        (0..self.count).try_fold(0, |sum, index| Ok(sum + self.part(index)?.1))
    }

    /// Passes each part to `act`, until one is not done completely.
    fn each(&self, mut act: impl FnMut(u64, u64, u64) -> Result<u64>) -> Result<i64> {
        let mut sum = 0;
        for index in 0..self.count {
            let (address, length) = self.part(index)?;
            let length = length.min(LENGTH_MAX - sum);
            match act(address, length, sum) {
                Ok(count) => {
                    sum += count;
                    if count < length {
                        break;
                    }
                }
                // The bytes done count; the next call reports the error.
                Err(_) if sum > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sum as i64)
    }
}

fn read_vector(call: &mut Call<'_>, offset: Option<i64>) -> Result<Verdict> {
    let (address, count) = (call.frame.rsi, call.frame.rdx);
    let of_file = |caller: &Calling<'_>, file: &OpenFile| {
        Vector::new(address, count)?.each(|address, length, done| {
            let offset = offset.map(|offset| offset.saturating_add(done as i64));
            read_into(caller, file, offset, address, length).map(|count| count as u64)
        })
    };
    with_file_or(call, of_file, |call| {
        let vector = Vector { address, count };
        mount_table::read(call, offset, (0..count).map(|index| vector.part(index)))
    })
}

/// Lists up to this size are written in one piece.
const GATHERED_BYTES_MAX: u64 = 64 << 20;

fn write_vector(call: &mut Call<'_>, offset: Option<i64>, append: Append, must_sync: bool) -> Result<Verdict> {
    let (fd, address, count) = (call.frame.rdi as u32, call.frame.rsi, call.frame.rdx);
    let Inside { session, copy, .. } = call.begin()?;
    let Some(file) = session.process.file(session.caller.thread, fd) else { return host_verdict(fd) };
    let written = write_pieces(&session.caller, &file, Vector::new(address, count)?, copy, (offset, append))?;
    finish_write(&session.caller, &file, written as u64, must_sync)?;
    Ok(done(written))
}

/// Writes the buffers of a list, of a moderate size in one piece.
fn write_pieces(
    caller: &Calling<'_>,
    file: &OpenFile,
    vector: Vector,
    copy: &mut [u8; COPY_BYTES],
    (offset, append): (Option<i64>, Append),
) -> Result<i64> {
    let write = |from: UserBytes<'_>, done: u64| -> Result<u64> {
        let place = offset.map(|offset| offset.saturating_add(done as i64));
        let from = from.part(0..limits::writable(caller, file, place, from.len() as u64)? as usize);
        let count = match offset {
            Some(offset) => caller.data().write_at_as(file, offset.saturating_add(done as i64), from, append)?,
            None => caller.data().write_as(file, from, append)?,
        };
        Ok(count as u64)
    };
    let (count, total) = (vector.count, vector.total()?);
    // In one piece: no other call sees a part of it, and no other append comes between the parts.
    let gather = |room: &mut [u8]| -> Result<i64> {
        let mut length = 0;
        vector.each(|address, bytes, _| {
            // Another thread may have changed the list since its lengths were added.
            let into = room.get_mut(length..length + bytes as usize).ok_or(Errno::EINVAL)?;
            let from = user_memory::readable_part(address, bytes)?;
            from.copy_to(&mut into[..from.len()]);
            length += from.len();
            Ok(from.len() as u64)
        })?;
        Ok(write((&room[..length]).into(), 0)? as i64)
    };
    if count > 1 && total <= COPY_BYTES as u64 {
        return gather(&mut copy[..]);
    }
    if count > 1 && total <= GATHERED_BYTES_MAX {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let room = sys::map(total as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
            .map_err(|error| Errno(-error as i32))?;
        // SAFETY: new memory of this size without other references; it is unmapped after the
        // reference has ended.
        return unsafe {
            let result = gather(core::slice::from_raw_parts_mut(room, total as usize));
            sys::unmap(room, total as usize);
            result
        };
    }
    vector.each(|address, length, done| write(user_memory::readable_part(address, length)?, done))
}

/// readv(fd, vector, count).
pub fn readv(call: &mut Call<'_>) -> Result<Verdict> {
    let verdict = read_vector(call, None)?;
    extensions::or_ask(call, verdict, |call| {
        let vector = Vector::new(call.frame.rsi, call.frame.rdx)?;
        if vector.count == 0 {
            return Ok(NATIVE);
        }
        // A short read, as in the kernel: events are read into one buffer.
        let buffer = vector.part(0)?;
        extensions::read(call, buffer)
    })
}

/// writev(fd, vector, count).
pub fn writev(call: &mut Call<'_>) -> Result<Verdict> {
    write_vector(call, None, Append::AsOpened, false)
}

/// preadv(fd, vector, count, offset).
pub fn preadv(call: &mut Call<'_>) -> Result<Verdict> {
    let offset = call.frame.r10 as i64;
    read_vector(call, Some(offset))
}

/// pwritev(fd, vector, count, offset).
pub fn pwritev(call: &mut Call<'_>) -> Result<Verdict> {
    let offset = call.frame.r10 as i64;
    write_vector(call, Some(offset), Append::AsOpened, false)
}

/// Flags of preadv2 and pwritev2.
mod flag {
    pub const HIPRI: i32 = 1;
    pub const DSYNC: i32 = 2;
    pub const SYNC: i32 = 4;
    pub const NOWAIT: i32 = 8;
    pub const APPEND: i32 = 16;
    pub const NOAPPEND: i32 = 32;
    pub const NOSIGNAL: i32 = 256;
    /// Flags that request nothing beyond the default behaviour: writes are persistent, nothing
    /// waits, and no file of the image is a pipe. Of the others, ATOMIC would require a promise in
    /// statx, and file systems in memory refuse DONTCACHE.
    pub const KNOWN: i32 = HIPRI | DSYNC | SYNC | NOWAIT | APPEND | NOAPPEND | NOSIGNAL;
}

/// The offset and flags of preadv2 and pwritev2.
fn vector2(call: &Call<'_>) -> Result<(Option<i64>, i32)> {
    let (offset, flags) = (call.frame.r10 as i64, call.frame.r9 as i32);
    if flags & !flag::KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & (flag::APPEND | flag::NOAPPEND) == flag::APPEND | flag::NOAPPEND {
        return Err(Errno::EINVAL);
    }
    Ok((Some(offset).filter(|&offset| offset != -1), flags))
}

/// preadv2(fd, vector, count, offset, 0, flags).
pub fn preadv2(call: &mut Call<'_>) -> Result<Verdict> {
    match vector2(call) {
        Ok((offset, _)) => read_vector(call, offset),
        // The kernel reports it for its own files.
        Err(error) => with_file(call, |_, _| Err(error)),
    }
}

/// pwritev2(fd, vector, count, offset, 0, flags).
pub fn pwritev2(call: &mut Call<'_>) -> Result<Verdict> {
    let (offset, flags) = match vector2(call) {
        Ok(known) => known,
        Err(error) => return with_file(call, |_, _| Err(error)),
    };
    let append = match flags & (flag::APPEND | flag::NOAPPEND) {
        flag::APPEND => Append::Always,
        flag::NOAPPEND => Append::Never,
        _ => Append::AsOpened,
    };
    write_vector(call, offset, append, flags & (flag::DSYNC | flag::SYNC) != 0)
}

/// lseek(fd, offset, whence).
pub fn lseek(call: &mut Call<'_>) -> Result<Verdict> {
    let (offset, whence) = (call.frame.rsi as i64, call.frame.rdx as i32);
    with_file(call, |caller, file| {
        caller.data().seek(file, offset, Whence::from_raw(whence)?).map(|position| position as i64)
    })
}

/// ftruncate(fd, length).
pub fn ftruncate(call: &mut Call<'_>) -> Result<Verdict> {
    let length = call.frame.rsi as i64;
    with_file(call, |caller, file| {
        limits::permit_growth(caller, file.node(), length)?;
        caller.data().truncate_open(file, length).map(|()| 0)
    })
}

/// fallocate(fd, mode, offset, length).
pub fn fallocate(call: &mut Call<'_>) -> Result<Verdict> {
    let (mode, offset, length) = (call.frame.rsi as i32, call.frame.rdx as i64, call.frame.r10 as i64);
    with_file(call, |caller, file| {
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            limits::permit_growth(caller, file.node(), offset.saturating_add(length))?;
        }
        caller.data().allocate(file, mode, offset, length).map(|()| 0)
    })
}

/// fsync(fd), fdatasync(fd).
pub fn fsync(call: &mut Call<'_>) -> Result<Verdict> {
    with_open_file(call, |caller, file| sync_image(caller.thread, Scope::File(file.node())))
}

/// sync_file_range(fd, offset, length, flags): a commit, if the call waits; otherwise the beginning
/// of one.
pub fn sync_file_range(call: &mut Call<'_>) -> Result<Verdict> {
    let (offset, length, flags) = (call.frame.rsi as i64, call.frame.rdx as i64, call.frame.r10);
    with_open_file(call, |caller, _| {
        if offset < 0 || length < 0 || offset.checked_add(length).is_none() || flags & !7 != 0 {
            return Err(Errno::EINVAL);
        }
        const WAITS: u64 = (libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER) as u64;
        const WRITES: u64 = libc::SYNC_FILE_RANGE_WRITE as u64;
        match flags {
            _ if flags & WAITS != 0 => sync_image(caller.thread, Scope::Calls),
            WRITES => sync_image(caller.thread, Scope::Start),
            _ => Ok(0),
        }
    })
}

/// syncfs(fd).
pub fn syncfs(call: &mut Call<'_>) -> Result<Verdict> {
    with_open_file(call, |caller, _| sync_image(caller.thread, Scope::All))
}

/// sync(): this file system and all others.
pub fn sync(call: &mut Call<'_>) -> Result<Verdict> {
    let session = call.begin()?.session;
    // The call cannot report a failure.
    let _ = sync_image(session.caller.thread, Scope::All);
    Ok(NATIVE)
}

/// fadvise64(fd, offset, length, advice): all content is in memory already.
pub fn advise(call: &mut Call<'_>) -> Result<Verdict> {
    let (length, advice) = (call.frame.rdx as i64, call.frame.r10 as i32);
    let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
    with_open_file(call, |_, file| match file.kind() {
        FileKind::Fifo => Err(Errno::ESPIPE),
        _ if length < 0 || !known => Err(Errno::EINVAL),
        _ => Ok(0),
    })
}

/// readahead(fd, offset, length).
pub fn readahead(call: &mut Call<'_>) -> Result<Verdict> {
    with_file(call, |_, file| match file.kind() {
        _ if !file.reads() => Err(Errno::EBADF),
        FileKind::Regular => Ok(0),
        _ => Err(Errno::EINVAL),
    })
}

// Attributes.

/// fstat(fd, status).
pub fn fstat(call: &mut Call<'_>) -> Result<Verdict> {
    let (into, server) = (call.frame.rsi, call.server);
    with_node(call, true, |caller, node| {
        user_memory::write_words(into, &status::stat_of(server, caller, &caller.stat(node)?)).map(|()| 0)
    })
}

/// fstatfs(fd, status).
pub fn fstatfs(call: &mut Call<'_>) -> Result<Verdict> {
    let (into, server) = (call.frame.rsi, call.server);
    with_file(call, |caller, _| user_memory::write(into, &status::statfs_of(server, &caller.statfs()?)).map(|()| 0))
}

/// fchmod(fd, mode).
pub fn fchmod(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rsi as u32;
    with_node(call, false, |caller, node| attributes::change_mode(caller, node, mode))
}

/// fchown(fd, user, group).
pub fn fchown(call: &mut Call<'_>) -> Result<Verdict> {
    let (user, group) = (call.frame.rsi, call.frame.rdx);
    with_node(call, false, |caller, node| attributes::change_owner(caller, node, (user, group)))
}

/// fsetxattr(fd, name, value, length, flags).
pub fn fsetxattr(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, name, value, length, flags, _] = call.arguments();
    with_node(call, false, |caller, node| attributes::set_attribute(caller, node, [name, value, length, flags]))
}

/// fgetxattr(fd, name, value, room).
pub fn fgetxattr(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, name, value, room, ..] = call.arguments();
    with_node(call, false, |caller, node| attributes::get_attribute(caller, node, [name, value, room]))
}

/// flistxattr(fd, names, room).
pub fn flistxattr(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, list, room, ..] = call.arguments();
    with_node(call, false, |caller, node| attributes::list_attributes(caller, node, [list, room]))
}

/// fremovexattr(fd, name).
pub fn fremovexattr(call: &mut Call<'_>) -> Result<Verdict> {
    let name = call.frame.rsi;
    with_node(call, false, |caller, node| attributes::remove_attribute(caller, node, name))
}

/// quotactl_fd(fd, ...): as in any file system without quotas.
pub fn quotactl_fd(call: &mut Call<'_>) -> Result<Verdict> {
    with_open_file(call, |_, _| Err(Errno::ENOSYS))
}

/// cachestat(fd, range, statistics, flags) and others that have no meaning here.
pub fn unsupported(call: &mut Call<'_>) -> Result<Verdict> {
    with_open_file(call, |_, _| Err(Errno::EOPNOTSUPP))
}

// Directories.

/// getdents64(fd, buffer, room).
pub fn getdents64(call: &mut Call<'_>) -> Result<Verdict> {
    /// Bytes before a name: inode, cookie, length, type.
    const HEAD: usize = 19;
    list(call, |room, entry| {
        let bytes = (HEAD + entry.name.len() + 1).next_multiple_of(8);
        // The bytes after the name, and some of those before it.
        room[bytes - 8..bytes].copy_from_slice(&[0; 8]);
        room[..8].copy_from_slice(&entry.number.to_ne_bytes());
        room[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
        room[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
        room[18] = type_of(entry.kind);
        room[HEAD..HEAD + entry.name.len()].copy_from_slice(entry.name);
        bytes
    })
}

/// getdents(fd, buffer, room): the type follows the name.
pub fn getdents(call: &mut Call<'_>) -> Result<Verdict> {
    const HEAD: usize = 18;
    list(call, |room, entry| {
        let bytes = (HEAD + entry.name.len() + 2).next_multiple_of(8);
        room[..8].copy_from_slice(&entry.number.to_ne_bytes());
        room[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
        room[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
        room[HEAD..HEAD + entry.name.len()].copy_from_slice(entry.name);
        room[HEAD + entry.name.len()..bytes].fill(0);
        room[bytes - 1] = type_of(entry.kind);
        bytes
    })
}

fn type_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Character => libc::DT_CHR,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Block => libc::DT_BLK,
        FileKind::Regular => libc::DT_REG,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Socket => libc::DT_SOCK,
    }
}

/// Lists a directory. `write` makes the record of a name, and returns its bytes.
fn list(
    call: &mut Call<'_>,
    write: impl Fn(&mut [u8; RECORD_BYTES_MAX], &posix::ListedName<'_>) -> usize,
) -> Result<Verdict> {
    let (buffer, room) = (call.frame.rsi, call.frame.rdx as u32);
    let of_image = |caller: &Calling<'_>, file: &OpenFile| {
        let into = user_memory::writable_part(buffer, u64::from(room)).unwrap_or_default();
        let mut record = [0; RECORD_BYTES_MAX];
        let mut length = 0;
        let mut too_small = false;
        caller.read_directory(file, &mut |entry| {
            let bytes = write(&mut record, &entry);
            let fits = bytes <= into.len() - length;
            if fits {
                into.part(length..length + bytes).copy_from(&record[..bytes]);
                length += bytes;
            } else {
                too_small = length == 0;
            }
            fits
        })?;
        match too_small {
            true if into.len() < room as usize => Err(user_memory::EFAULT),
            true => Err(Errno::EINVAL),
            false => Ok(length as i64),
        }
    };
    with_file_or(call, of_image, parent_listing::list)
}

// Descriptors and open file descriptions.

/// fcntl(fd, command, argument).
pub fn fcntl(call: &mut Call<'_>) -> Result<Verdict> {
    if marks::is_hidden(call.frame.rdi) {
        return Err(Errno::EBADF);
    }
    if let Some(verdict) = descriptors::fcntl_number(call)? {
        return Ok(verdict);
    }
    let (command, argument) = (call.frame.rsi as i32, call.frame.rdx);
    match command {
        libc::F_GETFL => with_file(call, |_, file| Ok(i64::from(reported_flags(file)))),
        libc::F_SETFL => with_open_file(call, |caller, file| {
            let wants_noatime = argument as i32 & libc::O_NOATIME & !file.flags() != 0;
            if wants_noatime && !caller.credentials.owns(caller.stat(file.node())?.uid) {
                return Err(Errno::EPERM);
            }
            let changes_append = (argument as i32 ^ file.flags()) & libc::O_APPEND != 0;
            if changes_append && caller.stat(file.node())?.flags.has_any(FileFlags::APPEND_ONLY) {
                return Err(Errno::EPERM);
            }
            file.set_flags(argument as i32);
            Ok(0)
        }),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            locks::fcntl(call)
        }
        F_DUPFD_QUERY => match descriptors::are_same(call, [call.frame.rdi, argument])? {
            // Not open: the kernel returns EBADF.
            Some(false) if !marks::is_marked(argument as u32) => Ok(NATIVE),
            same => Ok(done(same.unwrap_or(false).into())),
        },
        F_CREATED_QUERY => with_file(call, |_, file| Ok(file.is_created().into())),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => with_file(call, |_, _| Err(Errno::EBADF)),
        // As of a kernel without dnotify, which has nothing to end either.
        F_NOTIFY => with_open_file(call, |_, file| match file.kind() {
            _ if argument as u32 & !DN_MULTISHOT == 0 => Ok(0),
            FileKind::Directory => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTDIR),
        }),
        _ => match extensions::fcntl(call) {
            Some(verdict) => verdict,
            None => with_open_file(call, |_, _| Err(Errno::EINVAL)),
        },
    }
}

const F_NOTIFY: i32 = 1026;
const DN_MULTISHOT: u32 = 1 << 31;
/// Linux 6.10.
const F_DUPFD_QUERY: i32 = 1027;
/// Linux 6.12.
const F_CREATED_QUERY: i32 = 1028;

/// The flags as F_GETFL reports them.
fn reported_flags(file: &OpenFile) -> i32 {
    let flags = file.flags() & !tables::INTERNAL_FLAGS;
    if file.is_path() {
        return flags & !libc::O_CLOEXEC;
    }
    flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC) | LARGE_FILE
}

/// ioctl(fd, request, argument).
pub fn ioctl(call: &mut Call<'_>) -> Result<Verdict> {
    const FIOCLEX: u32 = 0x5451;
    const FIONCLEX: u32 = 0x5450;
    const FIONBIO: u32 = 0x5421;
    const FIONREAD: u32 = 0x541b;
    const FIGETBSZ: u32 = 2;
    const FIOQSIZE: u32 = 0x5460;
    const FIDEDUPERANGE: u32 = 0xc018_9436;
    const FS_IOC_FIEMAP: u32 = 0xc020_660b;
    /// Opens the other end of a terminal as a descriptor.
    const TIOCGPTPEER: u32 = 0x5441;
    let (fd, request, argument) = (call.frame.rdi as u32, call.frame.rsi as u32, call.frame.rdx);
    // Many drivers have requests that create a descriptor. Of the frequent requests to terminals
    // only one does.
    if request >> 8 & 0xff != u32::from(b'T') || request == TIOCGPTPEER {
        fd_numbers::release_cached();
    }
    if let copy_calls::FICLONE | copy_calls::FICLONERANGE = request {
        return copy_calls::clone_range(call, fd, request, argument);
    }
    if let FIOCLEX | FIONCLEX = request {
        let session: Session<'_> = call.begin()?.session;
        return match session.process.descriptor(fd) {
            Some(_) => descriptors::set_cloexec(&session, fd, request == FIOCLEX).map(done),
            None => host_verdict(fd),
        };
    }
    let verdict = with_open_file(call, |caller, file| match request {
        FIONBIO => {
            let on = user_memory::read::<i32>(argument)? != 0;
            let flags = file.flags() & !libc::O_NONBLOCK;
            file.set_flags(if on { flags | libc::O_NONBLOCK } else { flags });
            Ok(0)
        }
        FIONREAD if file.kind() == FileKind::Regular => {
            let left = caller.stat(file.node())?.size_bytes.saturating_sub(file.position());
            user_memory::write(argument, &(left.min(i32::MAX as u64) as i32)).map(|()| 0)
        }
        FIOQSIZE if matches!(file.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink) => {
            let size = if file.kind() == FileKind::Directory { 0 } else { caller.stat(file.node())?.size_bytes };
            user_memory::write(argument, &size).map(|()| 0)
        }
        FIGETBSZ => user_memory::write(argument, &(pmem::BLOCK_BYTES as i32)).map(|()| 0),
        posix::FS_IOC_GETFLAGS => user_memory::write(argument, &caller.flag_bits(file.node())?).map(|()| 0),
        posix::FS_IOC_SETFLAGS => caller.set_flag_bits(file.node(), user_memory::read(argument)?).map(|()| 0),
        posix::FS_IOC_FSGETXATTR => {
            user_memory::write(argument, &caller.extended_flags(file.node())?.to_fsxattr()).map(|()| 0)
        }
        posix::FS_IOC_FSSETXATTR => {
            let wanted = ExtendedFlags::from_fsxattr(&user_memory::read(argument)?);
            caller.set_extended_flags(file.node(), &wanted).map(|()| 0)
        }
        FIDEDUPERANGE | FS_IOC_FIEMAP => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::ENOTTY),
    })?;
    match request {
        FIONREAD => extensions::or_ask(call, verdict, |call| extensions::bytes_to_read(call, argument)),
        _ => Ok(verdict),
    }
}
