//! A ring of the library's own in a thread, whose messages put files into the tables of the
//! program's rings and completions into their queues.
//!
//! It has no descriptor: the kernel keeps it with the thread (IORING_SETUP_REGISTERED_FD_ONLY),
//! and ends it with the thread or at an exec. Its memory is the library's.
//!
//! Invariants
//! - Only the thread in `owner` uses the ring. A child has a copy of this record, or uses its
//!   parent's memory; in both cases `owner` is not its own.
//! - One message is in flight at a time.
//!
//! The kernel alone knows which index of a table is free, and which selected buffer is next. A
//! message puts a placeholder into the table, and completes with the index. For IOSQE_BUFFER_SELECT
//! the content goes to a memfd, from which the kernel reads. That takes three calls per open, 0.3
//! ms once per thread, and seven calls per selected read of at most 64 MiB. Behind entries that the
//! kernel may take later it is EOPNOTSUPP.
//!
//! *Rejected:* modelling the choice (it depends on a hint, a range and concurrent completions);
//! fdinfo (it lists the table, not what is free next).

use crate::abi::sys;
use crate::extensions::rings::ring_parameters::{Parameters, setup_flag};
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};
use posix::{Errno, Result};

/// In place of an index: the kernel chooses one that is free.
pub const ANY_INDEX: u32 = u32::MAX;

const PAGE_BYTES: usize = 4096;
/// The queues, and behind them the entries.
const MEMORY_BYTES: usize = 2 * PAGE_BYTES;
const ENTRIES: u32 = 2;

/// A thread's ring. All zero: it has none.
pub struct MessageRing {
    /// Process and thread.
    owner: u64,
    memory: usize,
    /// The number under which the kernel keeps it.
    number: u32,
    submission_tail: u32,
    completion_head: u32,
    completion_tail: u32,
    completions: u32,
}

/// What a message does in the ring that it goes to.
#[derive(Clone, Copy)]
pub enum Message {
    /// Puts a descriptor's file into the table, at an index or at [`ANY_INDEX`].
    File {
        /// The descriptor.
        fd: i32,
        /// The index, plus one.
        index: u32,
    },
    /// A completion.
    Completion {
        /// The program's data.
        data: u64,
        /// The result.
        result: i32,
    },
}

fn caller() -> u64 {
    (sys::process_id() as u64) << 32 | u64::from(sys::thread_id() as u32)
}

fn checked(result: i64) -> Result<i64> {
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result) }
}

impl MessageRing {
    /// Sends a message to the ring of a descriptor; returns its result: for a file at any index
    /// this index.
    pub fn send(&mut self, to: u32, message: Message) -> Result<u32> {
        const OPERATION: u64 = 40;
        const FILE: u64 = 1;
        const NO_COMPLETION: u64 = 1;
        if self.owner != caller() {
            self.make()?;
        }
        let mut entry = [0u64; 8];
        entry[0] = OPERATION | u64::from(to) << 32;
        match message {
            Message::File { fd, index } => {
                self.hold(fd)?;
                entry[2] = FILE;
                entry[3] = NO_COMPLETION << 32;
                entry[5] = u64::from(index) << 32;
            }
            Message::Completion { data, result } => {
                entry[1] = data;
                entry[3] = u64::from(result as u32);
            }
        }
        let result = self.perform(&entry);
        if let Message::File { .. } = message {
            self.hold(-1)?;
        }
        Ok(checked(result?)? as u32)
    }

    /// The thread ends, or another takes over its record.
    pub fn leave(&mut self) {
        // Otherwise the memory is a copy, or the parent's.
        if self.owner == 0 || self.owner >> 32 != sys::process_id() as u64 {
            return;
        }
        if self.owner == caller() {
            self.close();
        }
        self.forget();
    }

    fn forget(&mut self) {
        // SAFETY: the library's mapping of this size, which nothing uses any more.
        unsafe { sys::unmap(self.memory as *mut u8, MEMORY_BYTES) };
        self.owner = 0;
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel said where in the mapping the word lies; checked in `make`.
        unsafe { &*((self.memory + offset as usize) as *const AtomicU32) }
    }

    #[cold]
    fn make(&mut self) -> Result<()> {
        // The place is that of a thread that has ended, or a copy. It may also be the parent's.
        self.leave();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = sys::map(MEMORY_BYTES, protection, flags, -1).map_err(|error| Errno(-error as i32))?;
        sys::leave_out_of_core_dumps(start, MEMORY_BYTES);
        let memory = start as u64;
        let flags = setup_flag::NO_MMAP | setup_flag::REGISTERED_FD_ONLY | setup_flag::NO_ARRAY;
        let mut made = Parameters { flags, ..Parameters::default() };
        made.completion.address = memory;
        made.submission.address = memory + PAGE_BYTES as u64;
        let parameters = &raw mut made as u64;
        // SAFETY: the kernel writes the parameters, and from now on the mapping, which is new.
        let number = unsafe { sys::call(libc::SYS_io_uring_setup, [ENTRIES.into(), parameters, 0, 0, 0, 0]) };
        let Parameters { submission, completion, .. } = made;
        let offsets = [submission.tail, completion.head, completion.tail, completion.entries];
        let is_within = offsets.iter().all(|at| at.is_multiple_of(4) && *at as usize <= PAGE_BYTES - 4 * 16);
        self.memory = memory as usize;
        if number < 0 || !is_within {
            self.forget();
            return Err(if number < 0 { Errno(-number as i32) } else { Errno(libc::ENOSYS) });
        }
        (self.owner, self.number) = (caller(), number as u32);
        [self.submission_tail, self.completion_head, self.completion_tail, self.completions] = offsets;
        const FILES: u32 = 2;
        let none = -1i32;
        match checked(self.register(FILES, &raw const none as u64, 1)) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    fn register(&self, operation: u32, argument: u64, count: u32) -> i64 {
        const BY_NUMBER: u32 = 1 << 31;
        let arguments = [self.number.into(), (operation | BY_NUMBER).into(), argument, count.into(), 0, 0];
        // SAFETY: the library's ring, and a structure of the caller.
        unsafe { sys::call(libc::SYS_io_uring_register, arguments) }
    }

    fn close(&self) {
        const UNREGISTER_RING: u32 = 21;
        // `struct io_uring_rsrc_update`: number, reserved, data.
        let update = [u64::from(self.number), 0];
        self.register(UNREGISTER_RING, update.as_ptr() as u64, 1);
    }

    /// Registers a descriptor's file in this ring, for the next message; -1: none.
    fn hold(&self, fd: i32) -> Result<()> {
        const FILES_UPDATE: u32 = 6;
        // `struct io_uring_files_update`: the first index, reserved, the list.
        let update = [0, &raw const fd as u64];
        checked(self.register(FILES_UPDATE, update.as_ptr() as u64, 1)).map(drop)
    }

    /// Has the kernel perform an entry; returns its result.
    fn perform(&self, entry: &[u64; 8]) -> Result<i64> {
        const GET_EVENTS: u64 = 1;
        const BY_NUMBER: u64 = 1 << 4;
        let tail = self.word(self.submission_tail);
        let position = tail.load(Acquire);
        let slot = self.memory + PAGE_BYTES + size_of::<[u64; 8]>() * (position % ENTRIES) as usize;
        // SAFETY: within the mapping; the kernel has taken what was there, and reads it only when
        // the tail has moved.
        unsafe { ptr::copy_nonoverlapping(entry.as_ptr(), slot as *mut u64, entry.len()) };
        tail.store(position.wrapping_add(1), Release);
        let (head, end) = (self.word(self.completion_head), self.word(self.completion_tail));
        let mut count = 1;
        while head.load(Acquire) == end.load(Acquire) {
            let arguments = [self.number.into(), count, 1, GET_EVENTS | BY_NUMBER, 0, 0];
            // SAFETY: the library's ring. A message writes neither this program's memory nor its
            // descriptors.
            match unsafe { sys::call(libc::SYS_io_uring_enter, arguments) } {
                result @ ..0 if count == 0 && -result == i64::from(libc::EINTR) => {}
                result @ ..0 => {
                    tail.store(position, Release);
                    return Err(Errno(-result as i32));
                }
                _ => count = 0,
            }
        }
        // `struct io_uring_cqe`: data, result, flags.
        let found = self.completions + 16 * (head.load(Acquire) % (2 * ENTRIES));
        let result = self.word(found + 8).load(Acquire) as i32;
        head.store(head.load(Acquire).wrapping_add(1), Release);
        Ok(result.into())
    }
}
