//! Pipes with names, which are the kernel's business: each has a pipe of the kernel's in a directory of its own.
//!
//! The directory lies beside the DRAM region's file, goes with it, and belongs to whoever made it first. It is found by the image's UUID, a pipe in it by inode and generation; the
//! permissions of the file in the mount were checked before. What fstat says of an opened pipe is what the kernel says of its own.

use super::call::waiting;
use super::dispatch::done;
use super::entry::Verdict;
use super::server::{self, Server};
use super::{numbers, sys};
use engine::format::{FileKind, Superblock};
use posix::{Errno, Result};

/// Opens a file that is neither regular nor a directory nor a link.
pub fn open(kind: FileKind, number: u64, generation: u32, flags: i32) -> Result<Verdict> {
    match kind {
        FileKind::Fifo => open_fifo(number, generation, flags),
        FileKind::Socket => Err(Errno::ENXIO),
        // As in a file system that was mounted with nodev.
        _ => Err(Errno::EACCES),
    }
}

fn open_fifo(number: u64, generation: u32, flags: i32) -> Result<Verdict> {
    const DIRECTORY_MODE: u64 = 0o1777;
    const MODE: u64 = libc::S_IFIFO as u64 | 0o666;
    let (path, directory_bytes) = path_of(number, generation)?;
    let mut directory = [0u8; 64];
    directory[..directory_bytes].copy_from_slice(&path[..directory_bytes]);
    numbers::give_back();
    let here = libc::AT_FDCWD as u64;
    // SAFETY: terminated paths; these calls change no memory.
    unsafe {
        // The umask of whoever comes first must not keep others out; whether they may, the file in the mount has said.
        if sys::call(libc::SYS_mkdirat, [here, directory.as_ptr() as u64, DIRECTORY_MODE, 0, 0, 0]) == 0 {
            sys::call(libc::SYS_fchmodat, [here, directory.as_ptr() as u64, DIRECTORY_MODE, 0, 0, 0]);
        }
        let made = sys::call(libc::SYS_mknodat, [here, path.as_ptr() as u64, MODE, 0, 0, 0]);
        if made == 0 {
            sys::call(libc::SYS_fchmodat, [here, path.as_ptr() as u64, 0o666, 0, 0, 0]);
        } else if made == -i64::from(libc::ENOENT) {
            // The directory could not be made either.
            return Err(Errno::EACCES);
        }
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL);
        Ok(done(waiting(libc::SYS_openat, [here, path.as_ptr() as u64, flags as u64, 0, 0, 0])))
    }
}

/// The image's UUID.
pub fn uuid(server: &Server) -> [u64; 2] {
    server.fs.pm().first::<Superblock>().map_or([0, 0], |found| [found.uuid[0].load(), found.uuid[1].load()])
}

/// The pipe's path, and how many bytes of it are its directory's.
fn path_of(number: u64, generation: u32) -> Result<([u8; 96], usize)> {
    let server = server::get().ok_or(Errno::ENXIO)?;
    let uuid = uuid(server);
    let mut path = [0u8; 96];
    let mut length = 0;
    let mut push = |part: &[u8]| {
        path[length..length + part.len()].copy_from_slice(part);
        length += part.len();
        length
    };
    // As `posix::image` names what belongs to an image.
    push(b"/dev/shm/directfs-");
    let mut digits = [0u8; 16];
    for (half, word) in uuid.into_iter().enumerate() {
        write_hexadecimal(word.swap_bytes(), &mut digits);
        for (index, part) in digits.chunks_exact(4).enumerate() {
            if matches!(4 * half + index, 2..=5) {
                push(b"-");
            }
            push(part);
        }
    }
    let directory_bytes = push(b".pipes");
    push(b"/");
    write_hexadecimal(number, &mut digits);
    push(&digits);
    write_hexadecimal(u64::from(generation), &mut digits);
    push(&digits[8..]);
    Ok((path, directory_bytes))
}

/// Sixteen digits.
pub fn write_hexadecimal(number: u64, into: &mut [u8; 16]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (index, digit) in into.iter_mut().enumerate() {
        *digit = DIGITS[(number >> (60 - 4 * index) & 15) as usize];
    }
}
