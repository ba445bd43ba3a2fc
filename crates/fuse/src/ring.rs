//! Requests through io_uring (Linux 6.14 and later, `fuse.enable_uring`): the kernel has a queue
//! for each processor, and a thread on that processor answers a request and waits for the next one
//! in one system call.
//!
//! The kernel keeps FORGET, INTERRUPT and notifications on /dev/fuse.
//!
//! Invariants
//! - A ring is used by one thread: the one that enables it.
//! - The kernel learns that its requests may come through rings when all of them are enabled. It
//!   then lets programs wait until each queue has an entry, so a ring that is missing would be the
//!   end of the mount.
//! - An entry belongs either to the kernel or to the thread. The kernel has it from the submission
//!   of its command to the completion, and the thread from there to the next submission.
//!
//! *Reason:* with /dev/fuse a request takes 9 to 13 µs if server and requester share a processor,
//! and 85 to 95 µs otherwise; the scheduler decides. Through a ring it always takes 11 to 17 µs.
//! *Rejected:* workers fixed to processors (the kernel wakes the one that waited longest); a thread
//! for several rings (slower); a wrong command that makes the kernel give rings up (it relies on
//! the kernel's errors).
//!
//! *Limits:* requests with `cache=0` stay on /dev/fuse, because a wait would stop all programs of
//! the ring's processor; those with `keep`, because the kernel does not send them again. The worker
//! of FORGET pauses 5 ms after one, so that removals do not wake it each time.

use crate::protocol::{Header, Reply};
use crate::session::{Channel, Handled, Handler};
use crate::workers::{WhenFull, Workers};
use posix::Errno;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// The beginning of the names of threads that serve rings.
pub const THREAD: &str = "directfs-on-";

/// Entries of a queue: requests that its thread receives at once.
const QUEUE_ENTRIES: usize = 4;

/// Layout of the memory of an entry: the kernel's header; then, directly in front of the payload,
/// the place where a message is put together.
const HEADER_PLACE_BYTES: usize = 4096;
const PAYLOAD_AT: usize = HEADER_PLACE_BYTES * 2;

/// `struct fuse_uring_req_header`: header of the message, first argument, and what the kernel and
/// the server say about the entry.
const ARGUMENT_AT: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_BYTES_AT: usize = 272;
const HEADER_BYTES: usize = 288;
/// Bytes of the headers of a request and of a reply.
const REQUEST_HEADER_BYTES: usize = 40;
const REPLY_HEADER_BYTES: usize = 16;

/// Commands (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Constants of io_uring.
const OPERATION_URING_CMD: u8 = 46;
const SETUP_R_DISABLED: u32 = 1 << 6;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const ENTER_GETEVENTS: u32 = 1;
const REGISTER_ENABLE_RINGS: u32 = 12;
const OFFSET_RINGS: libc::off_t = 0;
const OFFSET_SUBMISSIONS: libc::off_t = 0x1000_0000;
const SUBMISSION_BYTES: usize = 128;
const COMPLETION_BYTES: usize = 16;

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    unused: [u32; 3],
    workers: u32,
    reserved: [u32; 3],
    submission: Offsets,
    completion: Offsets,
}

/// `struct io_sqring_offsets` and `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// Flags of submissions; overflow of completions.
    fifth: u32,
    /// Dropped submissions; the place of completions.
    sixth: u32,
    rest: [u32; 2],
    address: u64,
}

/// A command for the kernel, `struct io_uring_sqe` with 128 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Submission {
    operation: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    command: u32,
    padding: u32,
    address: u64,
    length: u32,
    command_flags: u32,
    user_data: u64,
    unused: u64,
    /// `struct fuse_uring_cmd_req`.
    request_flags: u64,
    commit_id: u64,
    queue: u16,
    request_padding: [u8; 62],
}

const _: () = assert!(size_of::<Submission>() == SUBMISSION_BYTES && size_of::<Parameters>() == 120);

/// Memory that is mapped until it is dropped.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn of_ring(descriptor: &OwnedFd, length: usize, offset: libc::off_t) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Mapping::make(length, flags, descriptor.as_raw_fd(), offset)
    }

    fn anonymous(length: usize) -> io::Result<Mapping> {
        Mapping::make(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn make(length: usize, flags: i32, descriptor: i32, offset: libc::off_t) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, descriptor, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length })
    }

    /// The word at an offset of the kernel.
    fn word(&self, offset: u32) -> io::Result<&AtomicU32> {
        let offset = offset as usize;
        if !offset.is_multiple_of(align_of::<AtomicU32>()) || offset + size_of::<AtomicU32>() > self.length {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: inside the mapping, aligned, and only accessed atomically.
        Ok(unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU32>() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `make`, and nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A ring. It does nothing until a thread enables it.
pub(crate) struct Ring {
    descriptor: OwnedFd,
    rings: Mapping,
    submissions: Mapping,
    parameters: Parameters,
    /// Submissions since the last entry into the kernel.
    pushed: u32,
    /// The processor of its thread.
    processor: usize,
    // Dropped after the descriptor: the kernel is done with the memory when the ring is closed.
    entries: Vec<Entry>,
}

// SAFETY: the mappings belong to the ring, and it is moved to its thread before it is used.
unsafe impl Send for Ring {}

/// The memory of one request.
struct Entry {
    memory: Mapping,
    /// The segments that the kernel reads when the entry is registered.
    segments: Box<[libc::iovec; 2]>,
    queue: u16,
}

/// What the thread of a ring does when the kernel has agreed.
type Work = Box<dyn FnOnce(Ring) -> io::Result<()> + Send>;

/// An enabled ring, whose thread waits for its work.
pub(crate) struct Prepared {
    work: Sender<Work>,
    thread: JoinHandle<io::Result<()>>,
}

impl Prepared {
    fn new(ring: Ring) -> io::Result<Prepared> {
        let (work, given) = mpsc::channel::<Work>();
        let (report, enabled) = mpsc::channel();
        let name = format!("{THREAD}{}", ring.processor);
        let run = move || {
            stay_on(ring.processor);
            let result = ring.enable();
            let is_enabled = result.is_ok();
            // The other thread waits for this.
            let _ = report.send(result);
            match given.recv() {
                Ok(work) if is_enabled => work(ring),
                // The rings are not used.
                _ => Ok(()),
            }
        };
        let prepared = Prepared { work, thread: std::thread::Builder::new().name(name).spawn(run)? };
        match enabled.recv().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                prepared.discard();
                Err(error)
            }
        }
    }

    /// Gives the thread its work. Returns the thread.
    pub(crate) fn begin(self, work: Work) -> JoinHandle<io::Result<()>> {
        // The thread ends only without work, or with a panic, which its join reports.
        let _ = self.work.send(work);
        self.thread
    }

    /// Ends the thread.
    fn discard(self) {
        drop(self.work);
        let _ = self.thread.join();
    }
}

/// Enabled rings for all queues of the kernel.
pub(crate) fn prepare(payload_bytes: usize) -> io::Result<Vec<Prepared>> {
    prepare_each(create(payload_bytes)?, Prepared::new)
}

/// All rings or none.
fn prepare_each(rings: Vec<Ring>, prepare: impl FnMut(Ring) -> io::Result<Prepared>) -> io::Result<Vec<Prepared>> {
    let mut prepared = Vec::new();
    for ring in rings.into_iter().map(prepare) {
        match ring {
            Ok(ring) => prepared.push(ring),
            Err(error) => {
                prepared.into_iter().for_each(Prepared::discard);
                return Err(error);
            }
        }
    }
    Ok(prepared)
}

/// One ring for each processor that this process may use. The queues of all others are spread over
/// them.
fn create(payload_bytes: usize) -> io::Result<Vec<Ring>> {
    let queues = queue_count()?;
    let usable = usable_processors(queues);
    if usable.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut served: Vec<(usize, Vec<u16>)> = usable.iter().map(|&processor| (processor, Vec::new())).collect();
    for queue in 0..queues {
        let index = usable.iter().position(|&processor| processor == queue).unwrap_or(queue % usable.len());
        served[index].1.push(u16::try_from(queue).map_err(|_| io::ErrorKind::Unsupported)?);
    }
    served.into_iter().map(|(processor, queues)| Ring::new(processor, &queues, payload_bytes)).collect()
}

/// The kernel has a queue for each processor that the machine may ever have.
fn queue_count() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The processors that this process may use.
fn usable_processors(count: usize) -> Vec<usize> {
    // SAFETY: a set of bits, for which zero is a value, filled by the call.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: a number below the size of the set.
    (0..count.min(libc::CPU_SETSIZE as usize))
        .filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) })
        .collect()
}

/// Keeps this thread on a processor, if that is permitted.
fn stay_on(processor: usize) {
    // SAFETY: a set of bits, for which zero is a value, and a number below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

impl Ring {
    fn new(processor: usize, queues: &[u16], payload_bytes: usize) -> io::Result<Ring> {
        let count = (queues.len() * QUEUE_ENTRIES).next_power_of_two();
        let mut parameters = Parameters {
            flags: SETUP_R_DISABLED | SETUP_SQE128 | SETUP_SINGLE_ISSUER | SETUP_DEFER_TASKRUN | SETUP_NO_SQARRAY,
            ..Parameters::default()
        };
        // SAFETY: a number and a place for the parameters.
        let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, count as libc::c_uint, &raw mut parameters) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(made as i32) };
        let rings_bytes = parameters.completion.sixth as usize + parameters.completions as usize * COMPLETION_BYTES;
        let rings = Mapping::of_ring(&descriptor, rings_bytes, OFFSET_RINGS)?;
        let submissions_bytes = parameters.submissions as usize * SUBMISSION_BYTES;
        let submissions = Mapping::of_ring(&descriptor, submissions_bytes, OFFSET_SUBMISSIONS)?;
        for offset in [parameters.submission.tail, parameters.completion.head, parameters.completion.tail] {
            rings.word(offset)?;
        }
        let entries = queues.iter().flat_map(|&queue| std::iter::repeat_n(queue, QUEUE_ENTRIES));
        let entries = entries.map(|queue| Entry::new(queue, payload_bytes)).collect::<io::Result<_>>()?;
        Ok(Ring { descriptor, rings, submissions, parameters, pushed: 0, processor, entries })
    }

    /// Makes this thread the one that uses the ring.
    fn enable(&self) -> io::Result<()> {
        // SAFETY: a request without arguments on an open descriptor.
        let enabled = unsafe {
            let (none, ring) = (ptr::null::<libc::c_void>(), self.descriptor.as_raw_fd());
            libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_ENABLE_RINGS, none, 0)
        };
        if enabled < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Serves the queues until the mount has ended. Returns at once if the kernel refuses them; it
    /// then sends the requests through /dev/fuse.
    pub(crate) fn serve(mut self, workers: &Workers, number: usize, handler: &impl Handler) -> io::Result<()> {
        let channel = workers.device();
        let _taken = workers.join(number);
        for index in 0..self.entries.len() {
            self.push(index, REGISTER, 0, channel);
        }
        let (mut left, mut reply) = (self.entries.len(), Reply::new());
        while left > 0 {
            self.submit(1)?;
            while let Some((index, result)) = self.complete()? {
                if result < 0 {
                    left -= 1;
                    continue;
                }
                let Some(entry) = self.entries.get_mut(index) else { continue };
                let commit_id = match entry.handle((workers, number), handler, &mut reply, WhenFull::PutOff)? {
                    Some(commit_id) => Some(commit_id),
                    None => {
                        // The kernel forgets a file when it has the answer to its release.
                        self.submit(0)?;
                        workers.settle(number, handler);
                        self.entries[index].handle((workers, number), handler, &mut reply, WhenFull::Answer)?
                    }
                };
                self.push(index, COMMIT_AND_FETCH, commit_id.unwrap_or(0), channel);
                if workers.frees(number) {
                    self.submit(0)?;
                }
            }
            workers.end(number);
        }
        Ok(())
    }

    /// Writes a command for an entry, which the next entry into the kernel submits.
    fn push(&mut self, index: usize, command: u32, commit_id: u64, channel: &Channel) {
        let entry = &self.entries[index];
        let submission = Submission {
            operation: OPERATION_URING_CMD,
            flags: 0,
            priority: 0,
            descriptor: channel.raw(),
            command,
            padding: 0,
            address: if command == REGISTER { entry.segments.as_ptr() as u64 } else { 0 },
            length: if command == REGISTER { entry.segments.len() as u32 } else { 0 },
            command_flags: 0,
            user_data: index as u64,
            unused: 0,
            request_flags: 0,
            commit_id,
            queue: entry.queue,
            request_padding: [0; 62],
        };
        let Ok(tail) = self.rings.word(self.parameters.submission.tail) else { return };
        let at = tail.load(Relaxed);
        let slot = (at & (self.parameters.submissions - 1)) as usize * SUBMISSION_BYTES;
        // SAFETY: a slot inside the mapping. There is one for each entry, and an entry has at most
        // one command under way, so the kernel has consumed what was in it.
        unsafe { self.submissions.start.as_ptr().add(slot).cast::<Submission>().write(submission) };
        tail.store(at.wrapping_add(1), Release);
        self.pushed += 1;
    }

    /// Submits, and waits for so many completions.
    fn submit(&mut self, completions: u32) -> io::Result<()> {
        loop {
            // SAFETY: numbers only; the submissions name memory of the entries, which lives as long
            // as the ring.
            let submitted = unsafe {
                let (ring, none) = (self.descriptor.as_raw_fd(), ptr::null::<libc::c_void>());
                libc::syscall(libc::SYS_io_uring_enter, ring, self.pushed, completions, ENTER_GETEVENTS, none, 0)
            };
            if submitted >= 0 {
                self.pushed -= (submitted as u32).min(self.pushed);
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) {
                return Err(error);
            }
        }
    }

    /// Takes a completion: the entry and the result.
    fn complete(&mut self) -> io::Result<Option<(usize, i32)>> {
        let head = self.rings.word(self.parameters.completion.head)?;
        let at = head.load(Relaxed);
        if at == self.rings.word(self.parameters.completion.tail)?.load(Acquire) {
            return Ok(None);
        }
        let slot = (at & (self.parameters.completions - 1)) as usize * COMPLETION_BYTES;
        // SAFETY: inside the mapping, whose length was computed from the same numbers. The kernel
        // has filled the slot before it moved the tail.
        let (index, result) = unsafe {
            let slot = self.rings.start.as_ptr().add(self.parameters.completion.sixth as usize + slot);
            (slot.cast::<u64>().read_unaligned(), slot.add(8).cast::<i32>().read_unaligned())
        };
        head.store(at.wrapping_add(1), Release);
        Ok(Some((index as usize, result)))
    }
}

impl Entry {
    fn new(queue: u16, payload_bytes: usize) -> io::Result<Entry> {
        let memory = Mapping::anonymous(PAYLOAD_AT + payload_bytes)?;
        let start = memory.start.as_ptr();
        let segment = |at: usize, bytes| libc::iovec { iov_base: start.wrapping_add(at).cast(), iov_len: bytes };
        let segments = Box::new([segment(0, HEADER_BYTES), segment(PAYLOAD_AT, payload_bytes)]);
        Ok(Entry { memory, segments, queue })
    }

    /// Handles the request in this entry, and leaves the reply in it. Returns the number by which
    /// the kernel knows the request; `None`: it found the image full, and is to be handled again.
    fn handle(
        &mut self,
        (workers, number): (&Workers, usize),
        handler: &impl Handler,
        reply: &mut Reply,
        when_full: WhenFull,
    ) -> io::Result<Option<u64>> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request with a wrong length");
        // SAFETY: the kernel has given the entry to this thread, and `self` is borrowed for as long
        // as the slice.
        let memory = unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.length) };
        let commit_id = u64_at(memory, COMMIT_ID_AT);
        let payload_bytes = u32_at(memory, PAYLOAD_BYTES_AT) as usize;
        let message_bytes = u32_at(memory, 0) as usize;
        // What is neither header nor payload is the first argument.
        let argument_bytes =
            message_bytes.checked_sub(REQUEST_HEADER_BYTES + payload_bytes).filter(|&bytes| bytes <= ARGUMENT_AT);
        let argument_bytes = argument_bytes.ok_or_else(wrong)?;
        let start = PAYLOAD_AT - argument_bytes - REQUEST_HEADER_BYTES;
        memory.copy_within(..REQUEST_HEADER_BYTES, start);
        memory.copy_within(ARGUMENT_AT..ARGUMENT_AT + argument_bytes, PAYLOAD_AT - argument_bytes);
        let message = memory.get(start..PAYLOAD_AT + payload_bytes).ok_or_else(wrong)?;
        let (header, arguments) = Header::parse(message).ok_or_else(wrong)?;
        reply.clear();
        workers.begin(number, header.opcode);
        let handled = handler.handle(&header, arguments, reply, workers.device());
        if matches!(handled, Err(Errno::ENOSPC)) && when_full.puts_off(header.opcode) {
            return Ok(None);
        }
        let code = match handled {
            Ok(Handled::Reply) => 0,
            // The server is alone on the image, so nothing waits for a lock here.
            Ok(Handled::Silent) => -libc::ENOSYS,
            Ok(Handled::Refused(Errno(number))) | Err(Errno(number)) => -number,
        };
        let (head, body) = reply.finish(header.unique, code).split_at(REPLY_HEADER_BYTES);
        memory[..REPLY_HEADER_BYTES].copy_from_slice(head);
        let place = memory.get_mut(PAYLOAD_AT..PAYLOAD_AT + body.len());
        place.ok_or_else(wrong)?.copy_from_slice(body);
        memory[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&(body.len() as u32).to_ne_bytes());
        Ok(Some(commit_id))
    }
}

fn u32_at(memory: &[u8], at: usize) -> u32 {
    memory[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes)
}

fn u64_at(memory: &[u8], at: usize) -> u64 {
    memory[at..].first_chunk().copied().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// Held by each test: they count the threads of this process.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Rings for two threads at least; `None`, with a message, if they are not permitted.
    fn rings(test: &str) -> Option<Vec<Ring>> {
        match (create(4096), create(4096)) {
            (Ok(first), Ok(second)) => Some(first.into_iter().chain(second).collect()),
            (first, second) => {
                eprintln!("SKIPPED: {test}: no rings: {:?} {:?}", first.err(), second.err());
                None
            }
        }
    }

    fn ring_threads() -> usize {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.filter(|name| name.starts_with(THREAD)).count()
    }

    #[test]
    fn a_ring_without_a_thread_leaves_none() {
        let Some(rings) = rings("a_ring_without_a_thread_leaves_none") else { return };
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = rings.len();
        let prepared = prepare_each(rings, |ring| {
            left -= 1;
            if left == 0 { Err(io::Error::from_raw_os_error(libc::EAGAIN)) } else { Prepared::new(ring) }
        });
        assert_eq!(prepared.err().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN));
        assert_eq!(ring_threads(), 0);
    }

    #[test]
    fn prepared_rings_do_their_work_or_end() {
        let Some(rings) = rings("prepared_rings_do_their_work_or_end") else { return };
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut prepared = prepare_each(rings, Prepared::new).unwrap();
        assert_eq!(ring_threads(), prepared.len());
        // Another thread cannot enable it, because it belongs to its own.
        let used = prepared.remove(0).begin(Box::new(|ring| {
            assert!(ring.enable().is_err());
            Err(io::Error::from_raw_os_error(libc::ENXIO))
        }));
        assert_eq!(used.join().unwrap().unwrap_err().raw_os_error(), Some(libc::ENXIO));
        prepared.into_iter().for_each(Prepared::discard);
        assert_eq!(ring_threads(), 0);
    }
}
