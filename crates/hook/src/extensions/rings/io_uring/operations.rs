//! The calls that entries of a ring stand for.

use super::buffers;
use super::files::{self, List, Place};
use crate::abi::user_memory;
use crate::descriptors::fd_numbers;
use crate::descriptors::marks::{self, kernel};
use crate::extensions::rings::ring_files;
use posix::Errno;

/// Size of an entry.
pub const ENTRY_BYTES: u64 = 64;

/// Flags of entries.
pub mod flag {
    pub const FIXED_FILE: u8 = 1;
    pub const DRAIN: u8 = 2;
    pub const LINK: u8 = 4;
    pub const HARD_LINK: u8 = 8;
    pub const ASYNC: u8 = 16;
    pub const BUFFER_SELECT: u8 = 32;
    pub const SKIP_SUCCESS: u8 = 64;
}

/// Operations, by the kernel's names.
mod operation {
    pub const NOP: u8 = 0;
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const FSYNC: u8 = 3;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const POLL_ADD: u8 = 6;
    pub const SYNC_FILE_RANGE: u8 = 8;
    pub const SENDMSG: u8 = 9;
    pub const RECVMSG: u8 = 10;
    pub const ACCEPT: u8 = 13;
    pub const LINK_TIMEOUT: u8 = 15;
    pub const CONNECT: u8 = 16;
    pub const FALLOCATE: u8 = 17;
    pub const OPENAT: u8 = 18;
    pub const CLOSE: u8 = 19;
    pub const FILES_UPDATE: u8 = 20;
    pub const STATX: u8 = 21;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const FADVISE: u8 = 24;
    pub const MADVISE: u8 = 25;
    pub const SEND: u8 = 26;
    pub const RECV: u8 = 27;
    pub const OPENAT2: u8 = 28;
    pub const EPOLL_CTL: u8 = 29;
    pub const SPLICE: u8 = 30;
    pub const PROVIDE_BUFFERS: u8 = 31;
    pub const REMOVE_BUFFERS: u8 = 32;
    pub const TEE: u8 = 33;
    pub const SHUTDOWN: u8 = 34;
    pub const RENAMEAT: u8 = 35;
    pub const UNLINKAT: u8 = 36;
    pub const MKDIRAT: u8 = 37;
    pub const SYMLINKAT: u8 = 38;
    pub const LINKAT: u8 = 39;
    pub const MSG_RING: u8 = 40;
    pub const FSETXATTR: u8 = 41;
    pub const SETXATTR: u8 = 42;
    pub const FGETXATTR: u8 = 43;
    pub const GETXATTR: u8 = 44;
    pub const SOCKET: u8 = 45;
    pub const URING_CMD: u8 = 46;
    pub const SEND_ZC: u8 = 47;
    pub const SENDMSG_ZC: u8 = 48;
    pub const READ_MULTISHOT: u8 = 49;
    pub const FIXED_FD_INSTALL: u8 = 54;
    pub const FTRUNCATE: u8 = 55;
    pub const BIND: u8 = 56;
    pub const LISTEN: u8 = 57;
    pub const RECV_ZC: u8 = 58;
    pub const READV_FIXED: u8 = 60;
    pub const WRITEV_FIXED: u8 = 61;
    /// The last one that this library knows.
    pub const PIPE: u8 = 62;
}
use operation::*;

/// The words of an entry that change: operation, offset, length.
pub type Words = [u64; 3];
/// Their offsets.
pub const CHANGING: [u64; 3] = [0, 8, 24];

/// MSG_RING: sends a registered file, and not a number.
const SEND_FD: u64 = 1;

/// An entry of a submission queue, read once.
#[derive(Clone, Copy)]
pub struct Entry {
    words: [u64; 8],
    /// The first word, if `words` has the number of a registered file of the image in its place.
    index: Option<u64>,
    ring: u32,
}

/// What an entry requests.
pub enum Request {
    /// The kernel alone decides.
    Kernel,
    /// The kernel alone decides; nothing waits for it.
    KernelAtOnce,
    /// An error.
    Refused(Errno),
    /// EINVAL, before the entry or its chain starts.
    Invalid,
    /// A call. `is_own`: it certainly concerns the library.
    Call { number: i64, arguments: [u64; 6], buffer: Buffer, is_own: bool },
    /// An open into the ring's table.
    OpenInto { number: i64, arguments: [u64; 6], place: Place },
    /// A change of the ring's table.
    Update { place: Place, list: List },
    /// A registered file of the image for the table of another ring.
    Send { number: u32, ring: u32, place: Place, data: u64, is_shown: bool },
    /// A read into a buffer that the kernel selects, up to a length; zero: the buffer's.
    Selected { fd: u32, offset: u64, length: u32, flags: u32 },
}

impl Request {
    /// Whether the library performs it in its place of a chain.
    pub fn is_own(&self) -> bool {
        match self {
            Request::Call { is_own, .. } => *is_own,
            Request::OpenInto { .. } | Request::Update { .. } | Request::Send { .. } | Request::Selected { .. } => true,
            Request::Kernel | Request::KernelAtOnce | Request::Refused(_) | Request::Invalid => false,
        }
    }
}

/// What a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    None,
    /// The address and length are the second and third argument; the call takes a list of one.
    Single,
    /// A list.
    Vector,
    /// The second and fourth argument are addresses of offsets, unless the offset is none; then the
    /// address is zero.
    Offsets,
}

/// In place of an offset: the position of the file.
pub const NO_OFFSET: u64 = u64::MAX;

impl Entry {
    /// Reads an entry of a ring.
    pub fn read(address: u64, ring: u32) -> posix::Result<Entry> {
        let mut entry = Entry { words: user_memory::read(address)?, index: None, ring };
        if !entry.has_fd()
            && entry.uses_file()
            && let Some(number) = ring_files::number(ring, entry.fd())
        {
            let first = entry.words[0];
            let flags = entry.flags() & !flag::FIXED_FILE;
            entry.words[0] = first & 0xffff_00ff | u64::from(flags) << 8 | u64::from(number) << 32;
            entry.index = Some(first);
        }
        Ok(entry)
    }

    /// The indexes of the ring's table that an operation of the kernel fills or empties: the first
    /// and their number.
    pub fn replaced(&self) -> Option<(u32, u32)> {
        let count = match self.code() {
            CLOSE | ACCEPT | SOCKET => 1,
            PIPE => 2,
            // All ones: indexes that are free.
            FILES_UPDATE if self.words[1] as u32 == u32::MAX => return None,
            FILES_UPDATE => return Some((self.words[1] as u32, self.length().min(files::LIST_MAX))),
            _ => return None,
        };
        (1..u32::MAX).contains(&self.file_index()).then(|| (self.file_index() - 1, count))
    }

    fn code(&self) -> u8 {
        self.words[0] as u8
    }

    /// Its flags.
    pub fn flags(&self) -> u8 {
        (self.words[0] >> 8) as u8
    }

    fn fd(&self) -> u32 {
        (self.words[0] >> 32) as u32
    }

    fn length(&self) -> u32 {
        self.words[3] as u32
    }

    fn operation_flags(&self) -> u32 {
        (self.words[3] >> 32) as u32
    }

    fn personality(&self) -> u16 {
        (self.words[5] >> 16) as u16
    }

    fn file_index(&self) -> u32 {
        (self.words[5] >> 32) as u32
    }

    /// The words that change, as they are.
    pub fn changing_words(&self) -> Words {
        [self.index.unwrap_or(self.words[0]), self.words[1], self.words[3]]
    }

    /// The changed words of an operation without effect that completes with a result. `is_shown`:
    /// whether it has a completion, if its flags do not decide that.
    pub fn completion(&self, result: i32, is_shown: Option<bool>) -> Words {
        const INJECT_RESULT: u64 = 1;
        let mut flags = self.flags() & !(flag::FIXED_FILE | flag::BUFFER_SELECT);
        match is_shown {
            Some(true) => flags &= !flag::SKIP_SUCCESS,
            Some(false) => flags |= flag::SKIP_SUCCESS,
            None => {}
        }
        [
            u64::from(NOP) | u64::from(flags) << 8 | u64::from(u32::MAX) << 32,
            self.words[1],
            u64::from(result as u32) | INJECT_RESULT << 32,
        ]
    }

    /// The changed words of an operation that the kernel refuses with EINVAL, or with EOPNOTSUPP if
    /// it selects a buffer and has none.
    pub fn refusal(&self) -> Words {
        const UNKNOWN_FLAG: u64 = 1 << 31;
        let [operation, offset, result] = self.completion(0, None);
        match self.selects() && !matches!(self.code(), READ | READV) {
            true => [operation | u64::from(flag::BUFFER_SELECT) << 8, offset, result],
            false => [operation, offset, result | UNKNOWN_FLAG << 32],
        }
    }

    /// The changed words of a read of another descriptor from its position on, into a buffer that
    /// the kernel selects.
    pub fn selection(&self, fd: i32, length: u32) -> Words {
        let flags = self.flags() & !(flag::FIXED_FILE | flag::ASYNC);
        [u64::from(READ) | u64::from(flags) << 8 | u64::from(fd as u32) << 32, u64::MAX, length.into()]
    }

    /// Whether it waits for all entries before it.
    pub fn drains(&self) -> bool {
        self.flags() & flag::DRAIN != 0
    }

    /// Whether a success has no completion.
    pub fn skips_success(&self) -> bool {
        self.flags() & flag::SKIP_SUCCESS != 0
    }

    /// Whether the next entry starts after this one.
    pub fn is_linked(&self) -> bool {
        self.flags() & (flag::LINK | flag::HARD_LINK) != 0
    }

    /// Whether the chain goes on if this entry fails.
    pub fn is_hard_linked(&self) -> bool {
        self.flags() & flag::HARD_LINK != 0
    }

    /// Whether its descriptor is the number of one of this process.
    fn has_fd(&self) -> bool {
        self.flags() & flag::FIXED_FILE == 0
    }

    /// Whether its descriptor is one whose calls the library serves.
    fn is_served(&self) -> bool {
        self.index.is_some() || self.has_fd() && marks::is_served(self.fd())
    }

    /// The result of a complete read or write; `None`: any that is not negative.
    pub fn whole(&self, buffer: Buffer) -> Option<u64> {
        match buffer {
            Buffer::None | Buffer::Offsets => None,
            Buffer::Single => Some(u64::from(self.length())),
            Buffer::Vector => (0..u64::from(self.length()))
                .map(|index| user_memory::read::<u64>(self.words[2].wrapping_add(16 * index + 8)).ok())
                .try_fold(0u64, |sum, length| Some(sum.saturating_add(length?))),
        }
    }

    /// What the entry requests.
    pub fn request(&self) -> Request {
        if self.code() > PIPE {
            return Request::Invalid;
        }
        if self.uses_file() && self.has_fd() && marks::is_hidden(self.fd().into()) {
            return Request::Refused(Errno::EBADF);
        }
        match self.code() {
            NOP | LINK_TIMEOUT | PROVIDE_BUFFERS | REMOVE_BUFFERS => Request::KernelAtOnce,
            READ | READV if self.selects() => self.selected(),
            // The operations that select no buffer.
            _ if self.selects() && self.is_served() && self.code() != READ_MULTISHOT => Request::Invalid,
            READV | WRITEV | READ | WRITE | READ_FIXED | WRITE_FIXED | READV_FIXED | WRITEV_FIXED => self.transfer(),
            FSYNC | SYNC_FILE_RANGE | FALLOCATE | FADVISE | FTRUNCATE | FSETXATTR | FGETXATTR => {
                if self.is_served() && self.has_excess() { Request::Invalid } else { self.by_file() }
            }
            CLOSE if self.file_index() != 0 => Request::Kernel,
            // The kernel does not close a ring so.
            CLOSE if marks::is_ring(self.fd()) => Request::Refused(Errno::EBADF),
            CLOSE if !self.is_served() && !marks::is_hidden(self.fd().into()) => {
                fd_numbers::forget(self.fd());
                Request::Kernel
            }
            OPENAT | OPENAT2 if self.file_index() != 0 => self.open_into(),
            OPENAT | OPENAT2 | CLOSE | STATX | RENAMEAT | UNLINKAT | MKDIRAT | SYMLINKAT | LINKAT | SETXATTR
            | GETXATTR | MADVISE | EPOLL_CTL | CONNECT | BIND => {
                if self.has_excess() {
                    Request::Invalid
                } else {
                    self.by_name()
                }
            }
            SPLICE | TEE => self.splice(),
            SENDMSG | RECVMSG | SENDMSG_ZC | SEND | SEND_ZC => self.message(),
            FILES_UPDATE => self.update(),
            FIXED_FD_INSTALL if self.index.is_some() => self.install(),
            MSG_RING if self.words[2] == SEND_FD => match ring_files::number(self.ring, self.words[6] as u32) {
                Some(number) => self.send(number),
                None => Request::Kernel,
            },
            READ_MULTISHOT if self.is_served() => Request::Refused(Errno(libc::EBADFD)),
            URING_CMD if self.is_served() => Request::Refused(Errno::EOPNOTSUPP),
            _ => Request::Kernel,
        }
    }

    /// Whether a field is in use that the operation does not have.
    fn has_excess(&self) -> bool {
        const OFFSET: u8 = 1;
        const ADDRESS: u8 = 2;
        const LENGTH: u8 = 4;
        const FLAGS: u8 = 8;
        const BUFFER: u8 = 16;
        const FILE: u8 = 32;
        let without = match self.code() {
            FTRUNCATE => ADDRESS | LENGTH | FLAGS | BUFFER | FILE,
            FSYNC | SYNC_FILE_RANGE => ADDRESS | BUFFER | FILE,
            FALLOCATE => FLAGS | BUFFER | FILE,
            UNLINKAT => OFFSET | LENGTH | BUFFER | FILE,
            MKDIRAT => OFFSET | FLAGS | BUFFER | FILE,
            SYMLINKAT => LENGTH | FLAGS | BUFFER | FILE,
            CLOSE => OFFSET | ADDRESS | LENGTH | FLAGS | BUFFER,
            OPENAT | OPENAT2 => BUFFER,
            FADVISE | MADVISE | STATX | RENAMEAT | LINKAT => BUFFER | FILE,
            _ => 0,
        };
        let fields = [
            (OFFSET, self.words[1]),
            (ADDRESS, self.words[2]),
            (LENGTH, self.length().into()),
            (FLAGS, self.operation_flags().into()),
            (BUFFER, u64::from(self.words[5] as u16)),
            (FILE, self.file_index().into()),
        ];
        fields.into_iter().any(|(field, value)| without & field != 0 && value != 0)
    }

    /// Whether the operation is on a file of a descriptor.
    fn uses_file(&self) -> bool {
        matches!(
            self.code(),
            READV..=POLL_ADD
                | SYNC_FILE_RANGE..=RECVMSG
                | ACCEPT
                | CONNECT
                | FALLOCATE
                | READ..=FADVISE
                | SEND
                | RECV
                | SPLICE
                | TEE
                | SHUTDOWN
                | MSG_RING
                | FSETXATTR
                | FGETXATTR
                | URING_CMD..=READ_MULTISHOT
                | FIXED_FD_INSTALL..=LISTEN
                | RECV_ZC..=WRITEV_FIXED
        )
    }

    /// A read or write.
    fn transfer(&self) -> Request {
        let is_own = self.is_served();
        if !self.has_fd() {
            return Request::Kernel;
        }
        let (number, buffer) = match self.code() {
            READV | READV_FIXED => (libc::SYS_preadv2, Buffer::Vector),
            WRITEV | WRITEV_FIXED => (libc::SYS_pwritev2, Buffer::Vector),
            READ | READ_FIXED => (libc::SYS_preadv2, Buffer::Single),
            _ => (libc::SYS_pwritev2, Buffer::Single),
        };
        // Attributes of a transfer.
        if is_own && self.words[7] as u32 != 0 {
            return Request::Refused(Errno::EINVAL);
        }
        let [_, offset, address, ..] = self.words;
        let is_fixed = matches!(self.code(), READ_FIXED | WRITE_FIXED | READV_FIXED | WRITEV_FIXED);
        if is_own && is_fixed {
            let index = u32::from(self.words[5] as u16);
            let is_list = buffer == Buffer::Vector;
            if let Err(error) = buffers::check(self.ring, index, (address, self.length().into()), is_list) {
                return Request::Refused(error);
            }
        }
        let flags = self.operation_flags().into();
        let arguments = [self.fd().into(), address, self.length().into(), offset, 0, flags];
        self.call(number, arguments, buffer, is_own)
    }

    /// Whether the kernel selects its buffer.
    fn selects(&self) -> bool {
        self.flags() & flag::BUFFER_SELECT != 0
    }

    /// A read into a buffer that the kernel selects.
    fn selected(&self) -> Request {
        let [_, offset, address, ..] = self.words;
        if !self.is_served() {
            return Request::Kernel;
        }
        // Attributes of a transfer, and the credentials of another.
        if self.words[7] as u32 != 0 || self.personality() != 0 {
            return Request::Refused(Errno::EINVAL);
        }
        let length = match self.code() {
            READ => Ok(self.length()),
            _ if self.length() != 1 => return Request::Invalid,
            // The length of the only buffer in the list.
            _ => user_memory::read::<u64>(address.wrapping_add(8)).map(|length| length.min(u32::MAX.into()) as u32),
        };
        match length {
            Ok(length) => Request::Selected { fd: self.fd(), offset, length, flags: self.operation_flags() },
            Err(error) => Request::Refused(error),
        }
    }

    /// Sends a registered file of the image to another ring.
    fn send(&self, number: u32) -> Request {
        const NO_COMPLETION: u32 = 1;
        const FLAGS: u32 = 3;
        let flags = self.operation_flags();
        if self.words[5] as u16 != 0 || self.personality() != 0 || flags & !FLAGS != 0 || self.length() != 0 {
            return Request::Refused(Errno::EINVAL);
        }
        let is_shown = flags & NO_COMPLETION == 0;
        match (self.has_fd() && self.fd() != self.ring, Place::of(self.file_index())) {
            (true, Some(place)) => Request::Send { number, ring: self.fd(), place, data: self.words[1], is_shown },
            _ => Request::Refused(Errno::EINVAL),
        }
    }

    /// An open into the ring's table.
    fn open_into(&self) -> Request {
        let flags = match self.code() {
            OPENAT => self.operation_flags(),
            _ => user_memory::read::<u32>(self.words[1]).unwrap_or_default(),
        };
        if self.has_excess() || flags & libc::O_CLOEXEC as u32 != 0 {
            return Request::Invalid;
        }
        match (self.by_name(), Place::of(self.file_index())) {
            (Request::Call { number, arguments, .. }, Some(place)) => Request::OpenInto { number, arguments, place },
            (other, _) => other,
        }
    }

    /// A change of the ring's table.
    fn update(&self) -> Request {
        let [_, first, address, ..] = self.words;
        let list = List { address, count: self.length() };
        let place = if first as u32 == u32::MAX { Place::Any } else { Place::At(first as u32) };
        if list.holds_own() { Request::Update { place, list } } else { Request::Kernel }
    }

    /// A descriptor of a registered file.
    fn install(&self) -> Request {
        const NO_CLOEXEC: u32 = 1;
        let command = match self.operation_flags() {
            0 => libc::F_DUPFD_CLOEXEC,
            NO_CLOEXEC => libc::F_DUPFD,
            _ => return Request::Invalid,
        };
        self.call(libc::SYS_fcntl, [self.fd().into(), command as u64, 0, 0, 0, 0], Buffer::None, true)
    }

    /// Another operation on a descriptor's file.
    fn by_file(&self) -> Request {
        if !self.has_fd() {
            return Request::Kernel;
        }
        let fd = u64::from(self.fd());
        let (length, flags) = (u64::from(self.length()), u64::from(self.operation_flags()));
        let [_, second, address, ..] = self.words;
        let (number, arguments) = match self.code() {
            FSYNC if flags == 0 => (libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
            FSYNC if flags == 1 => (libc::SYS_fdatasync, [fd, 0, 0, 0, 0, 0]),
            SYNC_FILE_RANGE => (libc::SYS_sync_file_range, [fd, second, length, flags, 0, 0]),
            FALLOCATE => (libc::SYS_fallocate, [fd, length, second, address, 0, 0]),
            FADVISE => {
                let bytes = if address != 0 { address } else { length };
                (libc::SYS_fadvise64, [fd, second, bytes, flags, 0, 0])
            }
            FTRUNCATE => (libc::SYS_ftruncate, [fd, second, 0, 0, 0, 0]),
            FSETXATTR => (libc::SYS_fsetxattr, [fd, address, second, length, flags, 0]),
            FGETXATTR if flags == 0 => (libc::SYS_fgetxattr, [fd, address, second, length, 0, 0]),
            _ if self.is_served() => return Request::Refused(Errno::EINVAL),
            _ => return Request::Kernel,
        };
        self.call(number, arguments, Buffer::None, self.is_served())
    }

    /// An operation by a path, or one that only its handler can judge.
    fn by_name(&self) -> Request {
        let fd = u64::from(self.fd());
        let (length, flags) = (u64::from(self.length()), u64::from(self.operation_flags()));
        let [_, second, address, _, _, _, path, _] = self.words;
        let (number, arguments) = match self.code() {
            OPENAT => (libc::SYS_openat, [fd, address, flags, length, 0, 0]),
            OPENAT2 => (libc::SYS_openat2, [fd, address, second, length, 0, 0]),
            CLOSE => (libc::SYS_close, [fd, 0, 0, 0, 0, 0]),
            STATX => (libc::SYS_statx, [fd, address, flags, length, second, 0]),
            RENAMEAT => (libc::SYS_renameat2, [fd, address, length, second, flags, 0]),
            UNLINKAT => (libc::SYS_unlinkat, [fd, address, flags, 0, 0, 0]),
            MKDIRAT => (libc::SYS_mkdirat, [fd, address, length, 0, 0, 0]),
            SYMLINKAT => (libc::SYS_symlinkat, [address, fd, second, 0, 0, 0]),
            LINKAT => (libc::SYS_linkat, [fd, address, length, second, flags, 0]),
            SETXATTR => (libc::SYS_setxattr, [path, address, second, length, flags, 0]),
            GETXATTR => (libc::SYS_getxattr, [path, address, second, length, 0, 0]),
            MADVISE => {
                let bytes = if second != 0 { second } else { length };
                (libc::SYS_madvise, [address, bytes, flags, 0, 0, 0])
            }
            EPOLL_CTL if [fd, second].into_iter().any(is_own) => {
                (libc::SYS_epoll_ctl, [fd, length, second, address, 0, 0])
            }
            // The socket's name may be in the mount, where the kernel sees none.
            CONNECT if self.has_fd() && is_local(address) => (libc::SYS_connect, [fd, address, second, 0, 0, 0]),
            BIND if self.has_fd() && is_local(address) => (libc::SYS_bind, [fd, address, second, 0, 0, 0]),
            _ => return Request::Kernel,
        };
        self.call(number, arguments, Buffer::None, true)
    }

    fn call(&self, number: i64, arguments: [u64; 6], buffer: Buffer, is_own: bool) -> Request {
        // The credentials of another.
        if is_own && self.personality() != 0 {
            return Request::Refused(Errno::EINVAL);
        }
        Request::Call { number, arguments, buffer, is_own }
    }

    /// Without a thread that waits for the other end: where the kernel's would wait, EAGAIN.
    fn splice(&self) -> Request {
        const IN_FIXED: u32 = 1 << 31;
        const NO_WAIT: u32 = 2;
        let source = self.file_index();
        let is_source = self.operation_flags() & IN_FIXED == 0;
        if is_source && marks::is_hidden(source.into()) {
            return Request::Refused(Errno::EBADF);
        }
        let is_own_source = match is_source {
            true => marks::is_served(source),
            false => ring_files::number(self.ring, source).is_some(),
        };
        if !self.is_served() && !is_own_source {
            return Request::Kernel;
        }
        // A registered file of the kernel on the other side has no number.
        let source = if is_source { Some(source) } else { ring_files::number(self.ring, source) };
        let Some(source) = source.filter(|_| self.code() == SPLICE && self.has_fd()) else {
            return Request::Refused(Errno::EINVAL);
        };
        let [_, to, from, ..] = self.words;
        let flags = u64::from(self.operation_flags() & !IN_FIXED | NO_WAIT);
        let arguments = [source.into(), from, self.fd().into(), to, self.length().into(), flags];
        self.call(libc::SYS_splice, arguments, Buffer::Offsets, true)
    }

    /// A message that could carry descriptors of the image, or go to a socket with a name in the
    /// mount: of a socket of this machine, with control data or an address.
    fn message(&self) -> Request {
        let [_, second, address, ..] = self.words;
        let has_more = match self.code() {
            SEND | SEND_ZC => second != 0,
            code => {
                // Name and its length, list and count, control data and its length.
                let Ok([name, _, _, _, control, _]) = user_memory::read::<[u64; 6]>(address) else {
                    return Request::Kernel;
                };
                control != 0 || name != 0 && code != RECVMSG
            }
        };
        match has_more && self.has_fd() && is_local_socket(self.fd()) {
            true => Request::Refused(Errno::EOPNOTSUPP),
            false => Request::Kernel,
        }
    }
}

/// Whether a descriptor is the image's, or hidden.
fn is_own(fd: u64) -> bool {
    marks::is_served(fd as u32) || marks::is_hidden(fd)
}

/// Whether an address is one of this machine's sockets.
fn is_local(address: u64) -> bool {
    user_memory::read::<u16>(address).is_ok_and(|family| i32::from(family) == libc::AF_UNIX)
}

fn is_local_socket(fd: u32) -> bool {
    let (mut domain, mut bytes) = (0i32, 4u32);
    let arguments =
        [fd.into(), libc::SOL_SOCKET as u64, libc::SO_DOMAIN as u64, &raw mut domain as u64, &raw mut bytes as u64, 0];
    // SAFETY: the kernel stores a number of four bytes and its size.
    let result = unsafe { crate::abi::sys::call(libc::SYS_getsockopt, arguments) };
    result == 0 && domain == libc::AF_UNIX
}

/// Performs in the kernel a call on a file that is not the image's.
pub fn in_kernel(number: i64, arguments: [u64; 6]) -> i64 {
    // SAFETY: a call that the program requests, with its own arguments or a list of one buffer.
    unsafe { crate::call::blocking_call(number, arguments) }
}

/// Whether a descriptor is open.
pub fn is_open(fd: u32) -> bool {
    kernel(libc::SYS_fcntl, fd.into(), libc::F_GETFD as u64, 0) >= 0
}
