//! The mount in the kernel's tables of mounts: `mounts`, `mountinfo` and `mountstats` of the
//! processes in /proc, and /etc/mtab where that is a link to one of them.
//!
//! The kernel does not know the mount. The program gets the kernel's file, so it can poll for
//! changes of the machine's mounts. Where the file ends, reads continue with one more line.
//!
//! Invariants
//! - The kernel's position is the program's, also behind the kernel's text: these files can be
//!   positioned behind their end. So nothing of an open table needs to be kept here, and
//!   duplicates and children agree about it.
//! - A mark at a descriptor ([`TABLE`]) only sends its calls here. The file's name decides whether
//!   it is a table, at the end of the kernel's text.
//! - A new program does not know the marks. It inherits the text up to then, in memory
//!   ([`hand_over`]).
//!
//! The directories with the process's own descriptors have the mark, too: their listings leave out
//! what is hidden from the program ([`list`]).
//!
//! *Rejected:* a copy in memory at each open (epoll refuses it, so monitors of mounts fail).
//!
//! A real mount was rejected as well, because it takes privileges. Tables opened relative to a
//! descriptor lack the line. statfs has FUSE's type, a known name that promises no durability; with
//! that of tmpfs programs would skip what makes data durable.

use crate::abi::entry::{DIRECTFS_FDS, NATIVE, Verdict, done};
use crate::abi::user_memory::UserSlice;
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call};
use crate::descriptors::marks::{self, TABLE, is_hidden, kernel};
use crate::handoff::{number, write_number};
use crate::proc_links::{self, descriptor_path};
use crate::process::environment;
use crate::server::{self, Server};
use crate::status;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use posix::{Errno, Result};

/// Text of a line at most: two paths, each byte of which may become four, and the rest.
const LINE_BYTES_MAX: usize = 2 * 4 * user_memory::PATH_BYTES_MAX + 256;
/// Size of the buffer for one table's line, and for pieces of the kernel's text.
const BUFFER_BYTES: usize = 64 << 10;
/// More than the digits of a descriptor have.
const NAME_ROOM_BYTES: usize = 32;
const _: () = assert!(LINE_BYTES_MAX <= BUFFER_BYTES);

/// The name of the file system's kind in the tables.
const KIND: &[u8] = b"directfs";
/// Options that hold for every mount: set-id bits of programs have no effect, devices cannot be
/// opened.
const OPTIONS: &[u8] = b",nosuid,nodev,relatime";

/// One more than the highest number that has ever had a mark; zero if there is none.
static MARKED_END: AtomicU32 = AtomicU32::new(0);

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Mounts,
    Info,
    Statistics,
}

impl Table {
    /// The table of a file in /proc, by its last component.
    fn of(path: &[u8]) -> Option<Table> {
        match last_component(path) {
            b"mounts" => Some(Table::Mounts),
            b"mountinfo" => Some(Table::Info),
            b"mountstats" => Some(Table::Statistics),
            _ => None,
        }
    }
}

fn last_component(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Whether a path of the host may lead to a table.
pub fn is_candidate(path: &[u8]) -> bool {
    let directory = path.strip_suffix(b"/").unwrap_or(path);
    let is_listing = matches!(last_component(directory), b"fd" | b"fdinfo");
    is_listing || Table::of(path).is_some() || last_component(path) == b"mtab"
}

/// Whether a descriptor may be a table's.
pub fn is_marked(fd: u32) -> bool {
    DIRECTFS_FDS.byte(fd).is_some_and(|byte| byte.load(Relaxed) == TABLE)
}

/// Marks a descriptor that the kernel has just created, if it is a table of this process's mount
/// namespace.
pub fn record(fd: i64) {
    let Ok(fd) = u32::try_from(fd) else { return };
    let mut path = [0u8; user_memory::PATH_BYTES_MAX];
    if is_own_listing(fd, &mut path) {
        marks::record(fd, TABLE);
        return;
    }
    let Some(length) = table_path(fd, &mut path) else { return };
    let directory = length - last_component(&path[..length]).len();
    if is_own_namespace(&mut path, directory) {
        marks::record(fd, TABLE);
        MARKED_END.fetch_max(fd + 1, Relaxed);
    }
}

/// Whether a descriptor is a directory of /proc with this process's descriptors.
fn is_own_listing(fd: u32, path: &mut [u8]) -> bool {
    sys::is_of_proc(fd as i32)
        && sys::read_link(&descriptor_path(fd), path).is_ok_and(|length| proc_links::is_listing(&path[..length]))
}

/// getdents and getdents64 by a marked descriptor: without the names of hidden descriptors.
pub fn list(call: &mut Call<'_>) -> Result<Verdict> {
    let [fd, buffer, ..] = call.arguments();
    let mut path = [0u8; user_memory::PATH_BYTES_MAX];
    if !is_own_listing(fd as u32, &mut path) {
        return Ok(NATIVE);
    }
    let call_number = i64::from(call.frame.number as u32);
    loop {
        // SAFETY: the program's own call.
        let listed = unsafe { blocking_call(call_number, call.arguments()) };
        if listed <= 0 {
            return Ok(done(listed));
        }
        let records = UserSlice::new(buffer, listed as usize)?;
        let left = without_hidden(records, call_number == libc::SYS_getdents)?;
        if left > 0 {
            return Ok(done(left as i64));
        }
    }
}

/// Removes the records of hidden descriptors; returns the bytes of the others.
fn without_hidden(records: UserSlice, is_old: bool) -> Result<usize> {
    // The old form has the type behind the name.
    let name_at = if is_old { 18 } else { 19 };
    let (mut at, mut left) = (0, 0);
    let mut name = [0u8; NAME_ROOM_BYTES];
    while at + 18 <= records.bytes() {
        let end = at + usize::from(records.read::<u16>(at + 16)?).max(name_at);
        if end > records.bytes() {
            break;
        }
        let name = &mut name[..(end - at - name_at).min(NAME_ROOM_BYTES)];
        records.copy_to(at + name_at, name)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        if !number(name).is_some_and(is_hidden) {
            records.move_down(at..end, left)?;
            left += end - at;
        }
        at = end;
    }
    Ok(left)
}

/// The path of an open table, without a zero byte. `None`: it is another file.
fn table_path(fd: u32, into: &mut [u8]) -> Option<usize> {
    if !sys::is_of_proc(fd as i32) {
        return None;
    }
    let length = sys::read_link(&descriptor_path(fd), into).ok()?;
    Table::of(&into[..length]).map(|_| length)
}

/// Whether a process, whose directory in /proc is `path[..length]`, sees the mounts of this one.
fn is_own_namespace(path: &mut [u8], length: usize) -> bool {
    let name = b"ns/mnt\0";
    let Some(room) = path.get_mut(length..length + name.len()) else { return false };
    room.copy_from_slice(name);
    let (mut own, mut other) = ([0u8; 64], [0u8; 64]);
    let own_bytes = sys::read_link(b"/proc/self/ns/mnt\0", &mut own);
    let other_bytes = sys::read_link(path, &mut other);
    own_bytes.is_ok() && own_bytes == other_bytes && own == other
}

/// read, readv and the like by a descriptor that is not the image's. `offset`: of a call with one.
pub fn read(
    call: &mut Call<'_>,
    offset: Option<i64>,
    buffers: impl Iterator<Item = Result<(u64, u64)>>,
) -> Result<Verdict> {
    let fd = call.frame.rdi as u32;
    if is_hidden(fd.into()) {
        return Err(Errno::EBADF);
    }
    if !is_marked(fd) {
        return Ok(NATIVE);
    }
    let number = i64::from(call.frame.number as u32);
    // SAFETY: the program's own call.
    let result = unsafe { blocking_call(number, call.arguments()) };
    if result != 0 {
        return Ok(done(result));
    }
    with_rest(call.server, fd, offset, |mut rest| {
        let mut sum = 0;
        for buffer in buffers {
            let (address, bytes) = buffer?;
            let (now, later) = rest.split_at(rest.len().min(bytes as usize));
            if now.is_empty() && rest.is_empty() {
                break;
            }
            if let Err(error) = user_memory::fill(address, now) {
                if sum == 0 {
                    return Err(error);
                }
                break;
            }
            sum += now.len();
            rest = later;
        }
        Ok(sum)
    })
    .map(|sum| done(sum as i64))
}

/// Continues a read at the end of the kernel's text; returns the number of bytes. Zero: it is no
/// table, or its end.
pub fn continue_read(fd: u32, offset: Option<i64>, into: &mut [u8]) -> Result<usize> {
    let Some(server) = server::attached().filter(|_| is_marked(fd)) else { return Ok(0) };
    with_rest(server, fd, offset, |rest| {
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    })
}

/// Passes what follows an offset (without one: the position) behind the kernel's text to `copy`,
/// which returns the number of bytes copied, and moves the position.
fn with_rest(
    server: &Server,
    fd: u32,
    offset: Option<i64>,
    copy: impl FnOnce(&[u8]) -> Result<usize>,
) -> Result<usize> {
    let mut path = [0u8; user_memory::PATH_BYTES_MAX];
    let Some(table) = table_path(fd, &mut path).and_then(|length| Table::of(&path[..length])) else { return Ok(0) };
    let position = offset.unwrap_or_else(|| kernel(libc::SYS_lseek, fd.into(), 0, libc::SEEK_CUR as u64));
    with_buffer(|buffer| {
        let end = text_length(fd, buffer)?;
        let Some(start) = u64::try_from(position).ok().and_then(|position| position.checked_sub(end)) else {
            return Ok(0);
        };
        let length = line(server, table, buffer);
        let count = copy(buffer[..length].get(start as usize..).unwrap_or_default())?;
        if offset.is_none() && count > 0 {
            kernel(libc::SYS_lseek, fd.into(), position as u64 + count as u64, libc::SEEK_SET as u64);
        }
        Ok(count)
    })
}

/// Length of the kernel's text.
fn text_length(fd: u32, buffer: &mut [u8]) -> Result<u64> {
    each_piece(fd, buffer, |_| Ok(()))
}

/// Passes the kernel's text to `act`, piece by piece; returns its length. The position stays.
fn each_piece(fd: u32, buffer: &mut [u8], mut act: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let mut end = 0;
    loop {
        let arguments = [fd.into(), buffer.as_mut_ptr() as u64, buffer.len() as u64, end, 0, 0];
        // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
        let count = unsafe { sys::call(libc::SYS_pread64, arguments) };
        match usize::try_from(count) {
            Ok(0) => return Ok(end),
            Ok(count) => {
                act(&buffer[..count])?;
                end += count as u64;
            }
            Err(_) => return Err(Errno(-count as i32)),
        }
    }
}

/// Calls `work` with memory that is mapped meanwhile.
fn with_buffer<R>(work: impl FnOnce(&mut [u8]) -> Result<R>) -> Result<R> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start =
        sys::map(BUFFER_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1).map_err(|error| Errno(-error as i32))?;
    // SAFETY: new memory without other users, until the end of the reference.
    let result = work(unsafe { core::slice::from_raw_parts_mut(start, BUFFER_BYTES) });
    // SAFETY: the reference has ended.
    unsafe { sys::unmap(start, BUFFER_BYTES) };
    result
}

/// For a call that starts a program: puts a copy of each table in the place of its descriptor, at
/// the same position. A program whose start fails continues with the copies.
pub fn hand_over() {
    let Some(server) = server::attached() else { return };
    for fd in (0..MARKED_END.load(Relaxed)).filter(|fd| is_marked(*fd)) {
        // Of these one closes itself, and another may be a different file by now.
        if kernel(libc::SYS_fcntl, fd.into(), libc::F_GETFD as u64, 0) == 0 {
            // Without memory for it the program gets the kernel's table.
            let _ = put_copy(server, fd);
        }
    }
}

fn put_copy(server: &Server, fd: u32) -> Result<()> {
    let mut path = [0u8; user_memory::PATH_BYTES_MAX];
    let Some(table) = table_path(fd, &mut path).and_then(|length| Table::of(&path[..length])) else { return Ok(()) };
    let created = kernel(libc::SYS_memfd_create, c"mounts".as_ptr() as u64, libc::MFD_CLOEXEC.into(), 0);
    let copy = u32::try_from(created).map_err(|_| Errno(-created as i32))?;
    let write_all = |mut bytes: &[u8]| {
        while !bytes.is_empty() {
            let written = kernel(libc::SYS_write, copy.into(), bytes.as_ptr() as u64, bytes.len() as u64);
            if written <= 0 {
                return Err(Errno(-written as i32));
            }
            bytes = &bytes[written as usize..];
        }
        Ok(())
    };
    let written = with_buffer(|buffer| {
        each_piece(fd, buffer, write_all)?;
        let length = line(server, table, buffer);
        write_all(&buffer[..length])
    });
    if written.is_ok() {
        let position = kernel(libc::SYS_lseek, fd.into(), 0, libc::SEEK_CUR as u64);
        kernel(libc::SYS_lseek, copy.into(), position as u64, libc::SEEK_SET as u64);
        kernel(libc::SYS_dup3, copy.into(), fd.into(), 0);
    }
    kernel(libc::SYS_close, copy.into(), 0, 0);
    written
}

/// Writes the mount's line; returns its length.
fn line(server: &Server, table: Table, buffer: &mut [u8]) -> usize {
    let mut source = [0u8; user_memory::PATH_BYTES_MAX];
    let source_bytes = environment::handoff().and_then(|handoff| image_path(handoff.image_file(), &mut source));
    let facts = Facts {
        directory: server.mount(),
        source: source_bytes.map_or(KIND, |length| &source[..length]),
        device: server.device,
        parent: parent_id(server.above()),
        is_read_only: server.fs.is_read_only(),
    };
    let mut line = Line { bytes: buffer, length: 0 };
    facts.write(table, &mut line);
    line.length
}

/// Path of the image's file; `None` if it has no name.
fn image_path(fd: i32, into: &mut [u8]) -> Option<usize> {
    let has_name = sys::status(fd).is_ok_and(|status| status.st_nlink > 0);
    let length = sys::read_link(&descriptor_path(fd as u32), into).ok()?;
    (has_name && into[0] == b'/').then_some(length)
}

/// The id of the host's mount that holds a directory. Directories above the mount may be missing:
/// then the next one above counts.
fn parent_id(directory: &[u8]) -> u64 {
    let mut path = [0u8; user_memory::PATH_BYTES_MAX];
    let mut length = directory.len();
    loop {
        path[..length].copy_from_slice(&directory[..length]);
        path[length] = 0;
        // SAFETY: integers only, for which zero is valid.
        let mut status: libc::statx = unsafe { core::mem::zeroed() };
        let (path, wanted) = (path.as_ptr() as u64, u64::from(libc::STATX_MNT_ID));
        let arguments = [libc::AT_FDCWD as u64, path, 0, wanted, &raw mut status as u64, 0];
        // SAFETY: the path is terminated; the kernel fills a structure of this layout.
        let found = unsafe { sys::call(libc::SYS_statx, arguments) };
        if found == 0 || length <= 1 {
            return status.stx_mnt_id;
        }
        length = directory[..length].iter().rposition(|&byte| byte == b'/').unwrap_or(0).max(1);
    }
}

/// What a line says.
struct Facts<'a> {
    directory: &'a [u8],
    source: &'a [u8],
    device: u64,
    parent: u64,
    is_read_only: bool,
}

impl Facts<'_> {
    fn write(&self, table: Table, line: &mut Line<'_>) {
        let access: &[u8] = if self.is_read_only { b"ro" } else { b"rw" };
        match table {
            Table::Mounts => {
                line.escaped(self.source, b" \t\n\\#");
                line.plain(&[b" "]);
                line.escaped(self.directory, b" \t\n\\#");
                line.plain(&[b" ", KIND, b" ", access, OPTIONS, b" 0 0\n"]);
            }
            Table::Info => {
                line.numbers(&[status::MOUNT_ID, self.parent], b" ");
                line.plain(&[b" "]);
                let (major, minor) = (libc::major(self.device), libc::minor(self.device));
                line.numbers(&[major.into(), minor.into()], b":");
                line.plain(&[b" / "]);
                line.escaped(self.directory, b" \t\n\\");
                line.plain(&[b" ", access, OPTIONS, b" - ", KIND, b" "]);
                line.escaped(self.source, b" \t\n\\#");
                line.plain(&[b" ", access, b"\n"]);
            }
            Table::Statistics => {
                line.plain(&[b"device "]);
                line.escaped(self.source, b" \t\n\\#");
                line.plain(&[b" mounted on "]);
                line.escaped(self.directory, b" \t\n\\");
                line.plain(&[b" with fstype ", KIND, b"\n"]);
            }
        }
    }
}

/// A line that is being written.
struct Line<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl Line<'_> {
    fn plain(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
            self.length += part.len();
        }
    }

    /// Writes text with three octal digits for each of the `special` bytes, as the kernel does.
    fn escaped(&mut self, text: &[u8], special: &[u8]) {
        for &byte in text {
            if special.contains(&byte) {
                let digit = |shift: u8| b'0' + (byte >> shift & 7);
                self.plain(&[&[b'\\', digit(6), digit(3), digit(0)]]);
            } else {
                self.plain(&[&[byte]]);
            }
        }
    }

    fn numbers(&mut self, numbers: &[u64], between: &[u8]) {
        for (index, number) in numbers.iter().enumerate() {
            if index > 0 {
                self.plain(&[between]);
            }
            self.length += write_number(*number, &mut self.bytes[self.length..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: Table, is_read_only: bool) -> String {
        let facts = Facts {
            directory: b"/m/a b",
            source: b"/i#1\\\n\t",
            device: libc::makedev(0, 300),
            parent: 21,
            is_read_only,
        };
        let mut bytes = vec![0; LINE_BYTES_MAX];
        let mut line = Line { bytes: &mut bytes, length: 0 };
        facts.write(table, &mut line);
        let length = line.length;
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_line_is_in_the_form_of_its_table() {
        let source = r"/i\0431\134\012\011";
        assert_eq!(
            written(Table::Mounts, false),
            format!("{source} /m/a\\040b directfs rw,nosuid,nodev,relatime 0 0\n")
        );
        assert_eq!(
            written(Table::Info, true),
            format!("{} 21 0:300 / /m/a\\040b ro,nosuid,nodev,relatime - directfs {source} ro\n", status::MOUNT_ID)
        );
        assert_eq!(
            written(Table::Statistics, false),
            format!("device {source} mounted on /m/a\\040b with fstype directfs\n")
        );
    }

    #[test]
    fn a_table_is_known_by_its_name() {
        let tables = ["/proc/self/mounts", "/proc/1/task/2/mountinfo", "/proc/mounts", "mountstats", "/etc/mtab"];
        for path in tables.into_iter().chain(["/proc/self/fd", "/proc/self/fdinfo/"]) {
            assert!(is_candidate(path.as_bytes()), "{path}");
        }
        for path in ["/proc/self/mountsx", "/proc/mounts/", "/etc/fstab", ""] {
            assert!(!is_candidate(path.as_bytes()), "{path}");
        }
    }
}
