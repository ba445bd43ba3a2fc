//! Calls that move data between two descriptors: copies in memory, blocks that files share, and
//! transfers to and from pipes and files of the host.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call};
use crate::calls::files::LENGTH_MAX;
use crate::context::Inside;
use crate::descriptors::marks::{host_verdict, kernel};
use crate::process::image_sync::finish_write;
use crate::process::limits;
use crate::process::session::Calling;
use crate::{descriptors, mount_table};
use engine::format::FileKind;
use posix::{Errno, OpenFile, Result};

/// One end of a copy.
enum End<'a> {
    Directfs(&'a OpenFile),
    /// A descriptor of the host.
    Host(u32),
}

/// Reads the offset at the program's address, if there is one.
fn offset_at(address: u64) -> Result<Option<i64>> {
    if address == 0 { Ok(None) } else { user_memory::read(address).map(Some) }
}

fn read_end(caller: &Calling<'_>, end: &End<'_>, offset: Option<i64>, into: &mut [u8]) -> Result<usize> {
    match (end, offset) {
        (End::Directfs(file), Some(offset)) => caller.data().read_at(file, offset, into),
        (End::Directfs(file), None) => caller.data().read(file, into),
        (End::Host(fd), offset) => {
            match kernel_copy(libc::SYS_read, libc::SYS_pread64, *fd, offset, into.as_ptr(), into.len())? {
                0 => mount_table::continue_read(*fd, offset, into),
                count => Ok(count),
            }
        }
    }
}

fn write_end(caller: &Calling<'_>, end: &End<'_>, offset: Option<i64>, from: &[u8]) -> Result<usize> {
    let from = match end {
        End::Directfs(file) => &from[..limits::writable(caller, file, offset, from.len() as u64)? as usize],
        End::Host(_) => from,
    };
    let (file, count) = match (end, offset) {
        (End::Directfs(file), Some(offset)) => (file, caller.data().write_at(file, offset, from)?),
        (End::Directfs(file), None) => (file, caller.data().write(file, from)?),
        (End::Host(fd), offset) => {
            return kernel_copy(libc::SYS_write, libc::SYS_pwrite64, *fd, offset, from.as_ptr(), from.len());
        }
    };
    finish_write(caller, file, count as u64, false)?;
    Ok(count)
}

fn kernel_copy(
    plain: i64,
    placed: i64,
    fd: u32,
    offset: Option<i64>,
    bytes: *const u8,
    length: usize,
) -> Result<usize> {
    let number = if offset.is_some() { placed } else { plain };
    let arguments = [u64::from(fd), bytes as u64, length as u64, offset.unwrap_or(0) as u64, 0, 0];
    // SAFETY: the kernel reads or writes a buffer of the caller's.
    let result = unsafe { blocking_call(number, arguments) };
    usize::try_from(result).map_err(|_| Errno(-result as i32))
}

/// Copies through a buffer, until the length, the end of the source, or an error after the first
/// piece. Data that was read and could not be written is put back if the source is a file.
fn transfer(
    caller: &Calling<'_>,
    (source, mut source_offset): (&End<'_>, Option<i64>),
    (target, mut target_offset): (&End<'_>, Option<i64>),
    length: u64,
    buffer: &mut [u8],
) -> Result<(u64, Option<i64>, Option<i64>)> {
    let mut sum = 0u64;
    while sum < length {
        let step = (length - sum).min(buffer.len() as u64) as usize;
        let read = match read_end(caller, source, source_offset, &mut buffer[..step]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if sum > 0 => break,
            Err(error) => return Err(error),
        };
        let written = write_end(caller, target, target_offset, &buffer[..read]);
        let count = *written.as_ref().unwrap_or(&0);
        if count < read && source_offset.is_none() {
            put_back(source, read - count);
        }
        source_offset = source_offset.map(|offset| offset + count as i64);
        target_offset = target_offset.map(|offset| offset + count as i64);
        sum += count as u64;
        match written {
            Ok(count) if count == read => {}
            Ok(_) => break,
            Err(_) if sum > 0 => break,
            Err(error) => return Err(error),
        }
        // A pipe returns what it holds; more may never arrive.
        if is_pipe(source) {
            break;
        }
    }
    Ok((sum, source_offset, target_offset))
}

/// Moves the source's position back over data that was not written, if it has a position.
fn put_back(source: &End<'_>, count: usize) {
    match source {
        End::Directfs(file) => file.set_position(file.position() - count as u64),
        End::Host(fd) => {
            let back = [u64::from(*fd), (count as u64).wrapping_neg(), libc::SEEK_CUR as u64, 0, 0, 0];
            // SAFETY: lseek touches no memory. Without a position it fails and changes nothing.
            unsafe { sys::call(libc::SYS_lseek, back) };
        }
    }
}

/// The kernel's status of the host's end of a copy; EBADF for numbers that the program does not
/// have.
fn status_of(fd: u64) -> Result<libc::stat> {
    host_verdict(fd as u32)?;
    sys::status(fd as u32 as i32).map_err(|error| Errno(-error as i32))
}

/// The error for sharing blocks between a file of the image and this descriptor: at EXDEV programs
/// fall back to reading and writing.
fn between(other: u64) -> Errno {
    status_of(other).map_or_else(|error| error, |_| Errno::EXDEV)
}

/// copy_file_range(source, its offset, target, its offset, length, flags).
pub fn copy_file_range(call: &mut Call<'_>) -> Result<Verdict> {
    let [source, source_offset, target, target_offset, length, flags] = call.arguments();
    let Inside { session, copy, .. } = call.begin()?;
    let thread = session.caller.thread;
    let (from, to) = (session.process.file(thread, source as u32), session.process.file(thread, target as u32));
    if from.is_none() && to.is_none() {
        return host_verdict(source as u32);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let places = (offset_at(source_offset)?, offset_at(target_offset)?);
    let (Some(from), Some(to)) = (&from, &to) else {
        let source = (end_of(from.as_deref(), source), source_offset, places.0);
        let target = (end_of(to.as_deref(), target), target_offset, places.1);
        return copy_across(&session.caller, source, target, length, &mut copy[..]);
    };
    let both = [End::Directfs(from), End::Directfs(to)];
    both.iter().try_for_each(|end| flags_of(end).map(|_| ()))?;
    both.iter().try_for_each(|end| check_kind(&session.caller, end))?;
    let at = |given: Option<i64>, file: &OpenFile| match given {
        Some(offset) if (offset as u64).checked_add(length).is_none() => Err(Errno::EOVERFLOW),
        Some(offset) => u64::try_from(offset).map_err(|_| Errno::EINVAL),
        None => Ok(file.position()),
    };
    let (source_start, target_start) = (at(places.0, from)?, at(places.1, to)?);
    let length = limits::writable(&session.caller, to, Some(target_start as i64), length.min(LENGTH_MAX))?;
    let copied = session.caller.data().copy_range((from, source_start), (to, target_start), length, &mut copy[..])?;
    move_on(source_offset, from, source_start + copied)?;
    move_on(target_offset, to, target_start + copied)?;
    finish_write(&session.caller, to, copied, false)?;
    Ok(done(copied as i64))
}

/// One end of a copy between a file of the image and one of the host: the end, the address of the
/// program's offset, and the offset.
type CopySide<'a> = (End<'a>, u64, Option<i64>);

/// copy_file_range between a file of the image and one of the host. It copies a limited piece,
/// because signals wait meanwhile; programs request the rest.
fn copy_across(
    caller: &Calling<'_>,
    (source, source_address, mut source_offset): CopySide<'_>,
    (target, target_address, mut target_offset): CopySide<'_>,
    length: u64,
    buffer: &mut [u8],
) -> Result<Verdict> {
    const BYTES_MAX: u64 = 8 << 20;
    [&source, &target].into_iter().try_for_each(|end| flags_of(end).map(|_| ()))?;
    [&source, &target].into_iter().try_for_each(|end| check_kind(caller, end))?;
    if is_appended_to(&target) {
        return Err(Errno::EBADF);
    }
    if [source_offset, target_offset].iter().flatten().any(|offset| offset.checked_add_unsigned(length).is_none()) {
        return Err(Errno::EOVERFLOW);
    }
    let length = length.min(BYTES_MAX);
    let mut sum = 0;
    while sum < length {
        let piece = (length - sum).min(buffer.len() as u64);
        let copied = transfer(caller, (&source, source_offset), (&target, target_offset), piece, buffer);
        let count;
        (count, source_offset, target_offset) = match copied {
            Err(_) if sum > 0 => break,
            copied => copied?,
        };
        sum += count;
        // Usually the end of a file. If not, the program calls again.
        if count < piece {
            break;
        }
    }
    for (address, end) in [(source_address, source_offset), (target_address, target_offset)] {
        if let (true, Some(end)) = (sum > 0, end) {
            user_memory::write(address, &end)?;
        }
    }
    Ok(done(sum as i64))
}

/// Rejects everything but regular files.
fn check_kind(caller: &Calling<'_>, end: &End<'_>) -> Result<()> {
    let mode = match end {
        End::Directfs(file) => caller.stat(file.node())?.mode,
        End::Host(fd) => status_of(u64::from(*fd))?.st_mode,
    };
    match mode & libc::S_IFMT {
        libc::S_IFREG => Ok(()),
        libc::S_IFDIR => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}

fn is_appended_to(end: &End<'_>) -> bool {
    let flags = match end {
        End::Directfs(file) => file.flags(),
        // SAFETY: it only reads.
        End::Host(fd) => unsafe {
            sys::call(libc::SYS_fcntl, [u64::from(*fd), libc::F_GETFL as u64, 0, 0, 0, 0]) as i32
        },
    };
    flags & libc::O_APPEND != 0
}

/// Stores the position at which a copy ended: at the program's address, or in the open file
/// description.
fn move_on(address: u64, file: &OpenFile, position: u64) -> Result<()> {
    match address {
        0 => file.set_position(position),
        address => user_memory::write(address, &position)?,
    }
    Ok(())
}

fn end_of<'a>(file: Option<&'a OpenFile>, fd: u64) -> End<'a> {
    file.map_or(End::Host(fd as u32), End::Directfs)
}

/// Flags of an end's open file description; EBADF if it cannot be read or written at all.
fn flags_of(end: &End<'_>) -> Result<i32> {
    let flags = match end {
        End::Directfs(file) if file.is_path() => libc::O_PATH,
        End::Directfs(file) => file.flags(),
        End::Host(fd) => {
            host_verdict(*fd)?;
            // SAFETY: it only reads.
            let flags = unsafe { sys::call(libc::SYS_fcntl, [u64::from(*fd), libc::F_GETFL as u64, 0, 0, 0, 0]) };
            i32::try_from(flags).ok().filter(|flags| *flags >= 0).ok_or(Errno::EBADF)?
        }
    };
    if flags & libc::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(flags) }
}

/// [`flags_of`] for the source and the target of a transfer.
fn flags_of_both(source: &End<'_>, target: &End<'_>) -> Result<[i32; 2]> {
    let [read, written] = [flags_of(source)?, flags_of(target)?];
    let can_read = read & libc::O_ACCMODE != libc::O_WRONLY;
    let can_write = written & libc::O_ACCMODE != libc::O_RDONLY;
    if can_read && can_write { Ok([read, written]) } else { Err(Errno::EBADF) }
}

/// EINVAL for a directory of the image: it has no content to transfer.
fn check_source(source: &End<'_>) -> Result<()> {
    match source {
        End::Directfs(file) if file.kind() == FileKind::Directory => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Whether a file has a position, which sendfile requires of its source.
fn has_position(end: &End<'_>) -> bool {
    match end {
        End::Directfs(_) => true,
        End::Host(fd) => kernel(libc::SYS_lseek, u64::from(*fd), 0, libc::SEEK_CUR as u64) >= 0,
    }
}

fn is_pipe(end: &End<'_>) -> bool {
    match end {
        End::Directfs(_) => false,
        End::Host(fd) => sys::status(*fd as i32).is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFIFO),
    }
}

/// sendfile(target, source, its offset, length).
pub fn sendfile(call: &mut Call<'_>) -> Result<Verdict> {
    let [target, source, offset_address, length, ..] = call.arguments();
    let Inside { session, copy, .. } = call.begin()?;
    let thread = session.caller.thread;
    let (from, to) = (session.process.file(thread, source as u32), session.process.file(thread, target as u32));
    if from.is_none() && to.is_none() && !mount_table::is_marked(source as u32) {
        return host_verdict(source as u32);
    }
    let offset = offset_at(offset_address)?;
    let source = end_of(from.as_deref(), source);
    let target = end_of(to.as_deref(), target);
    if flags_of(&source)? & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(Errno::EBADF);
    }
    if offset.is_some_and(|offset| offset < 0) || length > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let [_, written] = flags_of_both(&source, &target)?;
    if written & libc::O_APPEND != 0 && !is_pipe(&target) {
        return Err(Errno::EINVAL);
    }
    if !has_position(&source) {
        return Err(Errno::EINVAL);
    }
    if length > 0 {
        check_source(&source)?;
    }
    let (sum, offset, _) =
        transfer(&session.caller, (&source, offset), (&target, None), length.min(LENGTH_MAX), &mut copy[..])?;
    if let Some(offset) = offset {
        user_memory::write(offset_address, &offset)?;
    }
    Ok(done(sum as i64))
}

/// splice(source, its offset, target, its offset, length, flags): one of them is a pipe, which is
/// the host's.
pub fn splice(call: &mut Call<'_>) -> Result<Verdict> {
    let [source, source_address, target, target_address, length, flags] = call.arguments();
    let Inside { session, copy, .. } = call.begin()?;
    let caller = &session.caller;
    let (from, to) =
        (session.process.file(caller.thread, source as u32), session.process.file(caller.thread, target as u32));
    if from.is_none() && to.is_none() {
        return host_verdict(source as u32).and_then(|_| host_verdict(target as u32));
    }
    if length == 0 {
        return Ok(done(0));
    }
    if flags as u32 & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (source, target) = (end_of(from.as_deref(), source), end_of(to.as_deref(), target));
    flags_of(&source).and_then(|_| flags_of(&target))?;
    let (from_pipe, to_pipe) = (is_pipe(&source), is_pipe(&target));
    if from_pipe && source_address != 0 || to_pipe && target_address != 0 {
        return Err(Errno::ESPIPE);
    }
    let mut places = [offset_at(source_address)?, offset_at(target_address)?];
    let [read, written] = flags_of_both(&source, &target)?;
    let is_appended = from_pipe && written & libc::O_APPEND != 0;
    let is_negative = places.iter().flatten().any(|offset| *offset < 0);
    if !from_pipe && !to_pipe || is_appended || is_negative {
        return Err(Errno::EINVAL);
    }
    check_source(&source)?;
    let pipe_flags = if from_pipe { read } else { written };
    let may_wait = flags as u32 & libc::SPLICE_F_NONBLOCK == 0 && pipe_flags & libc::O_NONBLOCK == 0;
    let sum = match (&source, &target) {
        (End::Host(pipe), file) => fill_from_pipe(caller, *pipe, (file, &mut places[1]), length, may_wait, copy)?,
        (file, End::Host(pipe)) => fill_pipe(caller, (file, &mut places[0]), *pipe, length, may_wait, copy)?,
        _ => return Err(Errno::EINVAL),
    };
    for (address, end) in [source_address, target_address].into_iter().zip(places) {
        if let (true, Some(end)) = (address != 0, end) {
            user_memory::write(address, &end)?;
        }
    }
    Ok(done(sum as i64))
}

/// A pipe holds at least this much after it was reported as ready for writing.
const PIPE_PIECE_BYTES: usize = 4096;

/// Reads or writes a pipe, by the numbers of the call without and with flags. If it may not wait:
/// EAGAIN. Kernels that cannot do that for this pipe are asked whether it is ready.
fn pipe_copy([plain, with_flags]: [i64; 2], pipe: u32, may_wait: bool, bytes: &[u8]) -> Result<usize> {
    if may_wait {
        return kernel_copy(plain, plain, pipe, None, bytes.as_ptr(), bytes.len());
    }
    let vector = [bytes.as_ptr() as u64, bytes.len() as u64];
    let nowait = libc::RWF_NOWAIT as u64;
    let arguments = [pipe.into(), vector.as_ptr() as u64, 1, u64::MAX, 0, nowait];
    // SAFETY: the kernel reads or writes a buffer of the caller's.
    let result = unsafe { blocking_call(with_flags, arguments) };
    if result != -i64::from(libc::EOPNOTSUPP) {
        return usize::try_from(result).map_err(|_| Errno(-result as i32));
    }
    let events = if plain == libc::SYS_read { libc::POLLIN } else { libc::POLLOUT };
    let mut poll = libc::pollfd { fd: pipe as i32, events, revents: 0 };
    // SAFETY: the kernel writes the structure.
    if unsafe { sys::call(libc::SYS_poll, [&raw mut poll as u64, 1, 0, 0, 0, 0]) } != 1 {
        return Err(Errno::EAGAIN);
    }
    let length = if plain == libc::SYS_read { bytes.len() } else { bytes.len().min(PIPE_PIECE_BYTES) };
    kernel_copy(plain, plain, pipe, None, bytes.as_ptr(), length)
}

/// A file of a splice, and the offset that the program gave.
type SpliceFile<'a> = (&'a End<'a>, &'a mut Option<i64>);

/// Moves what a pipe holds to a file, up to a length. Only for the first bytes it may wait.
fn fill_from_pipe(
    caller: &Calling<'_>,
    pipe: u32,
    (file, offset): SpliceFile<'_>,
    length: u64,
    may_wait: bool,
    buffer: &mut [u8],
) -> Result<u64> {
    let mut sum = 0;
    while sum < length {
        let step = (length - sum).min(buffer.len() as u64);
        // What a pipe has given cannot be put back.
        let step = match file {
            End::Directfs(file) => limits::writable(caller, file, *offset, step),
            End::Host(_) => Ok(step),
        };
        let piece = match step {
            Ok(step) => &buffer[..step as usize],
            Err(_) if sum > 0 => break,
            Err(error) => return Err(error),
        };
        let count = match pipe_copy([libc::SYS_read, libc::SYS_preadv2], pipe, may_wait && sum == 0, piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) if sum > 0 => break,
            Err(error) => return Err(error),
        };
        let written = match write_end(caller, file, *offset, &buffer[..count]) {
            Err(error) if sum == 0 => return Err(error),
            written => written.unwrap_or(0),
        };
        *offset = offset.map(|offset| offset + written as i64);
        sum += written as u64;
        if written < count {
            break;
        }
    }
    Ok(sum)
}

/// Fills a pipe from a file, up to a length. Only for the first bytes it may wait.
fn fill_pipe(
    caller: &Calling<'_>,
    (file, offset): SpliceFile<'_>,
    pipe: u32,
    length: u64,
    may_wait: bool,
    buffer: &mut [u8],
) -> Result<u64> {
    let mut sum = 0;
    while sum < length {
        let step = (length - sum).min(buffer.len() as u64) as usize;
        let read = match read_end(caller, file, *offset, &mut buffer[..step]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if sum > 0 => break,
            Err(error) => return Err(error),
        };
        let (mut count, mut failed) = (0, None);
        while count < read && failed.is_none() {
            let first = may_wait && sum == 0 && count == 0;
            let end = if first { read.min(PIPE_PIECE_BYTES) } else { read };
            match pipe_copy([libc::SYS_write, libc::SYS_pwritev2], pipe, first, &buffer[count..end]) {
                Ok(written) => count += written,
                Err(error) => failed = Some(error),
            }
        }
        match offset {
            Some(offset) => *offset += count as i64,
            None => put_back(file, read - count),
        }
        sum += count as u64;
        match failed {
            Some(error) if sum == 0 => return Err(error),
            Some(_) => break,
            None => {}
        }
    }
    Ok(sum)
}

/// Flags that splice and the like know.
const SPLICE_FLAGS: u32 = 15;

/// tee(source, target, length, flags): a file of the image is no pipe.
pub fn tee(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, length, flags, ..] = call.arguments();
    if flags as u32 & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if length == 0 {
        return Ok(done(0));
    }
    refuse_files(call, Errno::EINVAL)
}

/// vmsplice(pipe, parts, count, flags), likewise: the kernel reports that it cannot be spliced to
/// as a bad descriptor, after it has looked at the parts.
pub fn vmsplice(call: &mut Call<'_>) -> Result<Verdict> {
    const PARTS_MAX: u64 = 1024;
    let [_, parts, count, flags, ..] = call.arguments();
    if flags as u32 & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    descriptors::kernel_verdict(call, call.frame.rdi)?;
    if count > PARTS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut sum = 0u64;
    for part in 0..count {
        let [_, length] = user_memory::read::<[u64; 2]>(parts.wrapping_add(16 * part))?;
        sum = sum.saturating_add(length);
    }
    if sum == 0 {
        return Ok(done(0));
    }
    refuse_files(call, Errno::EBADF)
}

fn refuse_files(call: &mut Call<'_>, refusal: Errno) -> Result<Verdict> {
    let fds = [call.frame.rdi, call.frame.rsi];
    let count = if call.frame.number as u32 == libc::SYS_tee as u32 { 2 } else { 1 };
    for fd in &fds[..count] {
        host_verdict(*fd as u32)?;
        let session = call.begin()?.session;
        if let Some(file) = session.process.file(session.caller.thread, *fd as u32) {
            return Err(if file.is_path() { Errno::EBADF } else { refusal });
        }
    }
    Ok(NATIVE)
}

/// ioctl: shares the blocks of a whole file.
pub const FICLONE: u32 = 0x4004_9409;
/// ioctl: shares the blocks of a range.
pub const FICLONERANGE: u32 = 0x4020_940d;

/// The argument of FICLONERANGE.
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    length: u64,
    target_offset: u64,
}

/// ioctl(fd, FICLONE, source) and ioctl(fd, FICLONERANGE, range).
pub fn clone_range(call: &mut Call<'_>, target: u32, request: u32, argument: u64) -> Result<Verdict> {
    let Inside { session, copy, .. } = call.begin()?;
    let thread = session.caller.thread;
    let Some(to) = session.process.file(thread, target) else { return host_verdict(target) };
    let range = match request {
        FICLONE => CloneRange { source: argument as i32 as i64, source_offset: 0, length: 0, target_offset: 0 },
        _ => user_memory::read::<CloneRange>(argument)?,
    };
    let source = u32::try_from(range.source).map_err(|_| Errno::EBADF)?;
    let Some(from) = session.process.file(thread, source) else { return Err(between(source.into())) };
    if from.is_path() || to.is_path() {
        return Err(Errno::EBADF);
    }
    let length = (range.length != 0).then_some(range.length);
    let (from, to) = ((&*from, range.source_offset), (&*to, range.target_offset));
    session.caller.data().clone_range(from, to, length, &mut copy[..])?;
    Ok(done(0))
}
