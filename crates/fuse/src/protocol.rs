//! The messages of the FUSE protocol, as in `include/uapi/linux/fuse.h`.
//!
//! A request is a header, fields of fixed size, then names or content; [`Arguments`] reads them in
//! order. A [`Reply`] is filled in the same way. All numbers are in the byte order of the machine.
//! Every length from a message is checked against its bytes.

use engine::Attributes;
use posix::{Errno, Result};
use std::time::Duration;

pub(crate) const VERSION_MAJOR: u32 = 7;
/// The newest minor version whose requests this crate knows (statx).
pub(crate) const VERSION_MINOR: u32 = 40;
/// Linux 5.4: the oldest version with zero-message opens of directories, and long enough replies.
pub(crate) const VERSION_MINOR_LEAST: u32 = 29;

const HEADER_BYTES: usize = 40;
const REPLY_HEADER_BYTES: usize = 16;
const ATTRIBUTES_BYTES: usize = 88;
/// Bytes of an entry of a listing in addition to its name, without and with attributes.
pub(crate) const ENTRY_BYTES: usize = 24;
pub(crate) const ENTRY_PLUS_BYTES: usize = 152;
/// The unit of file sizes in stat.
const SECTORS_PER_BLOCK: u64 = 8;

/// Bit of [`Header::unique`]: an earlier server read the request and did not answer it.
const UNIQUE_RESEND: u64 = 1 << 63;

/// Codes of requests.
pub(crate) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Codes of notifications.
pub(crate) mod notification {
    pub const INVALIDATE_INODE: i32 = 2;
    pub const RESEND: i32 = 7;
}

/// Capabilities, as the kernel offers and the server requests them.
pub(crate) mod capability {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags in the reply to an open.
pub(crate) mod open_flag {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// The fields that a setattr changes.
pub(crate) mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    /// The request names an open descriptor.
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// The write is of a page that a shared mapping changed.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// The read is a program's, and not for the kernel's cache.
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;
/// The new access list clears the set-group-id bit: the requester is not in the group.
pub(crate) const SETXATTR_CLEAR_SET_GID: u32 = 1 << 0;
/// The lock is that of flock.
pub(crate) const LOCK_FLOCK: u32 = 1 << 0;
/// The description had a lock of flock.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// The header of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub opcode: u32,
    /// Names the request in its reply.
    pub unique: u64,
    /// The file.
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    /// The process.
    pub pid: u32,
}

impl Header {
    /// Splits a message into header and arguments. `None`: it is too short.
    pub(crate) fn parse(message: &[u8]) -> Option<(Header, Arguments<'_>)> {
        let (head, rest) = message.split_at_checked(HEADER_BYTES)?;
        let mut head = Arguments(head);
        let mut read = || {
            let length = head.u32()?;
            let header = Header {
                opcode: head.u32()?,
                unique: head.u64()?,
                node: head.u64()?,
                uid: head.u32()?,
                gid: head.u32()?,
                pid: head.u32()?,
            };
            Ok::<_, Errno>((length, header))
        };
        let (length, header) = read().ok()?;
        (length as usize == message.len()).then_some((header, Arguments(rest)))
    }

    /// Whether an earlier server may have executed the request.
    pub(crate) fn is_resent(&self) -> bool {
        self.unique & UNIQUE_RESEND != 0
    }

    /// The number of the request, by which earlier servers knew it, too.
    pub(crate) fn number(&self) -> u64 {
        self.unique & !UNIQUE_RESEND
    }
}

/// The unread rest of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'m>(&'m [u8]);

impl<'m> Arguments<'m> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Errno::EIO)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_ne_bytes(self.take()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_ne_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_ne_bytes(self.take()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_ne_bytes(self.take()?))
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.get(bytes..).ok_or(Errno::EIO)?;
        Ok(())
    }

    /// A string that ends in zero.
    pub(crate) fn name(&mut self) -> Result<&'m [u8]> {
        let length = self.0.iter().position(|&byte| byte == 0).ok_or(Errno::EIO)?;
        let (name, rest) = self.0.split_at(length);
        self.0 = &rest[1..];
        Ok(name)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'m [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Errno::EIO)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// The reply to a request, or a notification. Each worker uses one buffer again and again, because
/// allocating one costs more than a request.
pub(crate) struct Reply {
    /// The message, then bytes of earlier ones.
    buffer: Vec<u8>,
    /// Bytes of the message.
    length: usize,
}

impl Reply {
    pub(crate) fn new() -> Reply {
        let mut reply = Reply { buffer: vec![0; 4096], length: 0 };
        reply.clear();
        reply
    }

    /// Begins a new reply.
    pub(crate) fn clear(&mut self) {
        self.length = REPLY_HEADER_BYTES;
    }

    /// The whole message. `code`: zero, a negative errno, or the code of a notification.
    pub(crate) fn finish(&mut self, unique: u64, code: i32) -> &[u8] {
        if code < 0 {
            self.clear();
        }
        let length = self.length as u32;
        let message = &mut self.buffer[..self.length];
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..8].copy_from_slice(&code.to_ne_bytes());
        message[8..16].copy_from_slice(&unique.to_ne_bytes());
        message
    }

    /// Bytes after the header.
    pub(crate) fn length(&self) -> usize {
        self.length - REPLY_HEADER_BYTES
    }

    /// The next `count` bytes, with arbitrary content.
    fn room(&mut self, count: usize) -> &mut [u8] {
        let end = self.length + count;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.length..end]
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Reply {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Reply {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Reply {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Reply {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Reply {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Reply {
        self.room(count).fill(0);
        self.length += count;
        self
    }

    /// Appends up to `most` bytes that `fill` writes; it returns their number.
    pub(crate) fn fill(&mut self, most: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<()> {
        let count = fill(self.room(most))?;
        self.length += count.min(most);
        Ok(())
    }

    /// The attributes of a file (`struct fuse_attr`).
    fn attributes(&mut self, of: &Attributes) -> &mut Reply {
        let times = [of.accessed_ns, of.modified_ns, of.changed_ns].map(split_time);
        self.u64(of.number).u64(of.size_bytes).u64(of.blocks * SECTORS_PER_BLOCK);
        for (seconds, _) in times {
            self.i64(seconds);
        }
        for (_, nanoseconds) in times {
            self.u32(nanoseconds);
        }
        self.u32(of.mode).u32(of.links).u32(of.uid).u32(of.gid).u32(of.device);
        self.u32(pmem::BLOCK_BYTES as u32).u32(0)
    }

    /// The reply to a getattr.
    pub(crate) fn attributes_valid_for(&mut self, validity: Duration, of: &Attributes) {
        self.u64(validity.as_secs()).u32(validity.subsec_nanos()).u32(0).attributes(of);
    }

    /// The reply to a lookup.
    pub(crate) fn entry(&mut self, validity: Duration, of: &Attributes) -> &mut Reply {
        self.entry_head(of.number, of.generation, validity).attributes(of)
    }

    fn entry_head(&mut self, number: u64, generation: u32, validity: Duration) -> &mut Reply {
        self.u64(number).u64(generation.into());
        self.u64(validity.as_secs()).u64(validity.as_secs());
        self.u32(validity.subsec_nanos()).u32(validity.subsec_nanos())
    }

    /// The reply to a lookup of a missing name, which the kernel may cache: number zero.
    pub(crate) fn no_entry(&mut self, validity: Duration) {
        self.entry_head(0, 0, validity).zeros(ATTRIBUTES_BYTES);
    }

    /// The reply to an open.
    pub(crate) fn opened(&mut self, handle: u64, flags: u32) {
        self.u64(handle).u32(flags).u32(0);
    }

    /// The reply to a statx.
    pub(crate) fn extended_attributes(&mut self, validity: Duration, of: &Attributes, born_ns: i64) {
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        self.u64(validity.as_secs()).u32(validity.subsec_nanos()).u32(0).zeros(16);
        self.u32(mask).u32(pmem::BLOCK_BYTES as u32).u64(0);
        self.u32(of.links).u32(of.uid).u32(of.gid).u16(of.mode as u16).u16(0);
        self.u64(of.number).u64(of.size_bytes).u64(of.blocks * SECTORS_PER_BLOCK).u64(0);
        for time in [of.accessed_ns, born_ns, of.changed_ns, of.modified_ns].map(split_time) {
            self.i64(time.0).u32(time.1).u32(0);
        }
        // Device numbers are in the kernel's encoding: 8 low bits of the minor number, 12 bits of
        // the major number, 12 bits of the minor number.
        let (major, minor) = (of.device >> 8 & 0xfff, of.device & 0xff | of.device >> 12 & 0xf_ff00);
        self.u32(major).u32(minor).zeros(8 + 14 * 8);
    }

    /// An entry of a listing. Returns whether the reply, of `most` bytes, had room.
    pub(crate) fn listed(&mut self, most: usize, number: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        let length = ENTRY_BYTES + name.len();
        let padded = length.next_multiple_of(8);
        if self.length() + padded > most {
            return false;
        }
        self.u64(number).u64(cookie).u32(name.len() as u32).u32(kind).bytes(name).zeros(padded - length);
        true
    }

    /// An entry of a listing with attributes, or without for `.` and `..`. Returns whether the
    /// reply, of `most` bytes, had room.
    pub(crate) fn listed_with(
        &mut self,
        most: usize,
        validity: Duration,
        found: Option<&Attributes>,
        (number, cookie, kind, name): (u64, u64, u32, &[u8]),
    ) -> bool {
        if self.length() + (ENTRY_PLUS_BYTES + name.len()).next_multiple_of(8) > most {
            return false;
        }
        match found {
            Some(found) => {
                self.entry(validity, found);
            }
            // Of `.` and `..` the kernel uses only number and type, and counts no lookup.
            None => self.no_entry(Duration::ZERO),
        }
        self.listed(usize::MAX, number, cookie, kind, name)
    }
}

/// Seconds, and nanoseconds that are never negative.
fn split_time(ns: i64) -> (i64, u32) {
    const NS_PER_S: i64 = 1_000_000_000;
    (ns.div_euclid(NS_PER_S), ns.rem_euclid(NS_PER_S) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_shorter_than_it_says_is_refused() {
        let mut message = [0u8; 48];
        message[..4].copy_from_slice(&48u32.to_ne_bytes());
        message[4..8].copy_from_slice(&opcode::LOOKUP.to_ne_bytes());
        message[40..].copy_from_slice(b"name\0\0\0\0");
        let (header, mut arguments) = Header::parse(&message).unwrap();
        assert_eq!((header.opcode, header.is_resent()), (opcode::LOOKUP, false));
        assert_eq!(arguments.name(), Ok(&b"name"[..]));
        assert_eq!(arguments.u64(), Err(Errno::EIO));
        assert_eq!(Arguments(b"endless").name(), Err(Errno::EIO));
        assert!(Header::parse(&message[..47]).is_none());
        assert!(Header::parse(&message[..39]).is_none());
    }

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        assert_eq!(split_time(-1_500_000_000), (-2, 500_000_000));
        assert_eq!(split_time(1_500_000_000), (1, 500_000_000));
    }

    #[test]
    fn an_error_replaces_what_the_reply_had() {
        let mut reply = Reply::new();
        reply.clear();
        reply.u64(1).u64(2);
        assert_eq!(reply.finish(7, -libc::EIO).len(), REPLY_HEADER_BYTES);
    }
}
