//! The threads that handle requests, and what one of them has done before it answers that the image
//! is full.
//!
//! A removed file keeps its space until the kernel's FORGET is handled, and before that RELEASE if
//! the file was open. The kernel queues FORGET before the removal, or the reply to RELEASE,
//! returns. But it may be in the queue still, or a thread has taken it and not run since. So a
//! request that finds the image full calls [`Workers::settle`], and is tried once more:
//!
//! 1. It handles what the queue has, by a device that does not block. Requests that find the image
//!    full as well are put off until the end.
//! 2. It waits for the other threads that handle such a message, or that may have taken one: those
//!    that have no message by their [`Place`], and do not sleep either.
//! 3. If space was freed, it starts again, since the end of a RELEASE may have queued a FORGET.
//!
//! Invariant: a thread that handles a message which frees space waits for no other one. So threads
//! that settle do not wait for each other.
//!
//! *Limit:* a mount that outlives servers has its messages on one device, which all threads read
//! and wait for. A thread that settles leaves what is queued to others, if they are not all busy.
//!
//! *Rejected:* sleeping 10 ms up to three times (each write to a full image took 30 ms); workers
//! that wait in epoll, so that a message in a worker's hands is known to be there (a system call
//! more for each request); on io_uring, a worker of FORGET without a pause (a wake per removed
//! file).

use crate::messages::warn;
use crate::protocol::{Header, Reply, opcode};
use crate::session::{Channel, Handled, Handler, REQUEST_BYTES, Received};
use posix::Errno;
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long the thread beside rings waits after it has learned of forgotten files.
const FORGET_INTERVAL: Duration = Duration::from_millis(5);
/// Requests that a thread puts off while it looks for space. One may hold 1 MiB.
const PUT_OFF_MAX: usize = 16;
/// The longest that a request waits for others before it is ENOSPC.
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// The longest that it waits for other threads to take what is queued.
const QUEUE_MAX: Duration = Duration::from_millis(50);
/// Looks at another thread without a pause.
const YIELDS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_micros(200);
/// Searches for space that was freed meanwhile.
const ROUNDS_MAX: u32 = 8;

/// What a thread does, in the low bits of a place; above them is a count of changes.
const DOING: u32 = 3;
/// It waits for a message, or has just taken one.
const WAITS: u32 = 0;
/// It handles a message that frees no space.
const HANDLES: u32 = 1;
/// It handles one that may free space.
const FREES: u32 = 2;

/// Whether a message of this kind may free space.
fn frees_space(opcode: u32) -> bool {
    matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::RELEASE | opcode::RELEASEDIR)
}

/// The place of a thread that handles messages.
#[derive(Default)]
pub(crate) struct Place {
    state: AtomicU32,
    /// The thread's id; zero: it does not run.
    thread: AtomicU32,
}

impl Place {
    /// Notes what the thread does now.
    fn change(&self, doing: u32) {
        let count = (self.state.load(Relaxed) & !DOING).wrapping_add(DOING + 1);
        self.state.store(count | doing, SeqCst);
    }

    fn frees(&self) -> bool {
        self.state.load(SeqCst) & DOING == FREES
    }

    /// Returns when a message that the thread had in state `first`, and that may free space, is
    /// handled.
    fn wait(&self, first: u32, until: Instant) {
        // What it takes after that message is another's concern.
        let changes_of_it = if first & DOING == WAITS { 2 } else { 1 };
        for look in 0.. {
            let state = self.state.load(SeqCst);
            let changes = (state & !DOING).wrapping_sub(first & !DOING) / (DOING + 1);
            let is_done = changes >= changes_of_it || changes > 0 && state & DOING != FREES;
            if is_done || self.has_none(state) || Instant::now() >= until {
                return;
            }
            if look < YIELDS_MAX { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
    }

    /// Whether the thread has no message that may free space.
    fn has_none(&self, state: u32) -> bool {
        match state & DOING {
            HANDLES => true,
            // A thread with a message is awake until it says so. If it sleeps, and has said nothing
            // since, it has none.
            WAITS => !self.has_thread() || self.sleeps() && self.state.load(SeqCst) == state,
            _ => !self.has_thread(),
        }
    }

    fn has_thread(&self) -> bool {
        self.thread.load(SeqCst) != 0
    }

    /// Whether the thread sleeps in the kernel. Also if that cannot be found out.
    fn sleeps(&self) -> bool {
        let thread = self.thread.load(SeqCst);
        let state = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        state.ok().and_then(|text| text.rsplit_once(") ").map(|(_, rest)| rest.starts_with('S'))).unwrap_or(true)
    }
}

/// The place of the calling thread, until this is dropped.
pub(crate) struct Taken<'a>(&'a Place);

impl Taken<'_> {
    fn of(place: &Place) -> Taken<'_> {
        place.thread.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), SeqCst);
        Taken(place)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, SeqCst);
    }
}

/// The threads of a mount.
pub(crate) struct Workers {
    /// The device of the mount.
    device: Channel,
    /// A device that does not block, with the messages of all devices of the mount. It is `device`
    /// beside rings, where the kernel keeps FORGET and INTERRUPT on it, and if one thread serves a
    /// mount that outlives servers. `None`: messages are to stay with the device that all read.
    spare: Option<Channel>,
    /// A message from there is read and handled under this lock. So what the kernel had queued
    /// before it was taken is handled after it.
    buffers: Mutex<(Vec<u8>, Reply)>,
    places: Vec<Place>,
    /// Counts the messages that may have freed space.
    freed: AtomicU64,
    /// Counts the answered requests, where a keeper looks at them.
    answered: Option<&'static AtomicU64>,
}

/// What [`Workers::drain`] met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// Nothing more to read; `forgot`: a file was forgotten.
    Idle { forgot: bool },
    /// The end of the mount.
    Ended,
}

impl Workers {
    pub(crate) fn new(
        device: Channel,
        spare: Option<Channel>,
        threads: usize,
        answered: Option<&'static AtomicU64>,
    ) -> Workers {
        let places = (0..threads).map(|_| Place::default()).collect();
        let buffers = Mutex::new((vec![0; REQUEST_BYTES], Reply::new()));
        Workers { device, spare, buffers, places, freed: AtomicU64::new(0), answered }
    }

    /// The device of the mount.
    pub(crate) fn device(&self) -> &Channel {
        &self.device
    }

    /// The calling thread has this number until the result is dropped.
    pub(crate) fn join(&self, number: usize) -> Taken<'_> {
        Taken::of(&self.places[number])
    }

    /// The thread has taken a message.
    pub(crate) fn begin(&self, number: usize, opcode: u32) {
        self.change(number, if frees_space(opcode) { FREES } else { HANDLES });
    }

    /// The thread has handled what it had.
    pub(crate) fn end(&self, number: usize) {
        self.change(number, WAITS);
    }

    /// Whether that thread handles a message that may free space.
    pub(crate) fn frees(&self, number: usize) -> bool {
        self.places[number].frees()
    }

    fn change(&self, number: usize, doing: u32) {
        let place = &self.places[number];
        // Before a thread that waits for this one can see that it has finished.
        if place.frees() {
            self.freed.fetch_add(1, SeqCst);
        }
        place.change(doing);
    }

    /// Serves a device with each thread. The first is this one, so that there is always one.
    pub(crate) fn serve(&self, channels: &[Channel], handler: &impl Handler) -> io::Result<()> {
        let Some((first, others)) = channels.split_first() else { return Ok(()) };
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (index, channel) in others.iter().enumerate() {
                let name = format!("directfs-{}", index + 1);
                let work = move || self.work(index + 1, channel, handler);
                match std::thread::Builder::new().name(name).spawn_scoped(scope, work) {
                    Ok(worker) => workers.push(worker),
                    // The requests of all devices of a mount are in one queue, so every worker gets
                    // all kinds.
                    Err(error) => {
                        let (threads, wanted) = (index + 1, channels.len());
                        warn(format_args!(
                            "the mount has {threads} threads instead of {wanted} ({error}): raise the limit of processes (`ulimit -u`, \
                             pids.max) and mount again"
                        ));
                        break;
                    }
                }
            }
            let served = self.work(0, first, handler);
            result_of(served, workers.into_iter().map(ScopedJoinHandle::join))
        })
    }

    /// Serves the requests of one device.
    fn work(&self, number: usize, channel: &Channel, handler: &impl Handler) -> io::Result<()> {
        let (mut request, mut reply) = (vec![0; REQUEST_BYTES], Reply::new());
        let _taken = self.join(number);
        while let Some(length) = channel.receive(&mut request)? {
            let message = &request[..length];
            let opcode = Header::parse(message).map_or(0, |(header, _)| header.opcode);
            self.begin(number, opcode);
            if self.handle(channel, handler, message, &mut reply, WhenFull::PutOff)? == Done::PutOff {
                self.settle(number, handler);
                self.handle(channel, handler, message, &mut reply, WhenFull::Answer)?;
            }
            self.end(number);
        }
        Ok(())
    }

    /// Serves the device beside rings until the mount has ended.
    ///
    /// It waits a little after a file was forgotten, because a program that removes files would
    /// wake it up after each one. Meanwhile the kernel gathers what it forgets, and sends it in one
    /// message.
    pub(crate) fn serve_beside_rings(&self, handler: &impl Handler) -> io::Result<()> {
        loop {
            self.device.wait()?;
            // The device has other requests only if the kernel refuses the rings.
            let mut put_off = Vec::new();
            let drained = self.drain(handler, &mut put_off, None)?;
            self.answer(handler, put_off);
            match drained {
                Drained::Ended => return Ok(()),
                Drained::Idle { forgot: true } => std::thread::sleep(FORGET_INTERVAL),
                Drained::Idle { forgot: false } => {}
            }
        }
    }

    /// Returns when the messages are handled that the kernel had queued before the call and that
    /// may free space; at the latest once a request has ended that is handled after a second.
    /// `number`: of the calling thread.
    pub(crate) fn settle(&self, number: usize, handler: &impl Handler) {
        let until = Instant::now() + SETTLE_MAX;
        let mut put_off = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let freed = self.freed.load(SeqCst);
            // Errors are left to the threads that wait for messages, which meet them too.
            let _ = self.drain(handler, &mut put_off, Some(until));
            self.wait_for_queue(number);
            let first: Vec<u32> = self.places.iter().map(|place| place.state.load(SeqCst)).collect();
            let others = self.places.iter().zip(first).enumerate().filter(|(other, _)| *other != number);
            others.for_each(|(_, (place, first))| place.wait(first, until));
            if self.freed.load(SeqCst) == freed || Instant::now() >= until {
                break;
            }
        }
        self.answer(handler, put_off);
    }

    /// Handles requests that were put off.
    fn answer(&self, handler: &impl Handler, put_off: Vec<Vec<u8>>) {
        let (Some(spare), mut reply) = (&self.spare, Reply::new()) else { return };
        for message in put_off {
            let _ = self.handle(spare, handler, &message, &mut reply, WhenFull::Answer);
        }
    }

    /// Handles what the spare device has, until a time; what finds the image full goes to
    /// `put_off`.
    fn drain(&self, handler: &impl Handler, put_off: &mut Vec<Vec<u8>>, until: Option<Instant>) -> io::Result<Drained> {
        let mut forgot = false;
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        let (Some(spare), Some(mut buffers)) = (&self.spare, self.buffers(is_late)) else {
            return Ok(Drained::Idle { forgot });
        };
        let (request, reply) = &mut *buffers;
        while put_off.len() < PUT_OFF_MAX && !is_late() {
            let length = match spare.receive_now(request)? {
                Received::Ended => return Ok(Drained::Ended),
                Received::Nothing => break,
                Received::Request(length) => length,
            };
            match self.handle(spare, handler, &request[..length], reply, WhenFull::PutOff)? {
                Done::PutOff => put_off.push(request[..length].to_vec()),
                Done::Forgotten => {
                    forgot = true;
                    self.freed.fetch_add(1, SeqCst);
                }
                Done::Answered | Done::Silent => {}
            }
        }
        Ok(Drained::Idle { forgot })
    }

    /// The lock of the spare device. `None`: another thread has it until it is late.
    fn buffers(&self, is_late: impl Fn() -> bool) -> Option<MutexGuard<'_, (Vec<u8>, Reply)>> {
        loop {
            match self.buffers.try_lock() {
                Ok(buffers) => return Some(buffers),
                // Each request overwrites them, whatever a panic has left there.
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if is_late() => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Where only other threads may take what is queued, waits a little until they have, if not all
    /// are busy.
    fn wait_for_queue(&self, number: usize) {
        let until = Instant::now() + QUEUE_MAX;
        let may_take = |(other, place): (usize, &Place)| {
            other != number && place.has_thread() && place.state.load(SeqCst) & DOING != HANDLES
        };
        while self.spare.is_none()
            && self.device.has_request()
            && self.places.iter().enumerate().any(may_take)
            && Instant::now() < until
        {
            std::thread::sleep(PAUSE);
        }
    }

    /// Handles a request that was read from a device.
    fn handle(
        &self,
        channel: &Channel,
        handler: &impl Handler,
        message: &[u8],
        reply: &mut Reply,
        when_full: WhenFull,
    ) -> io::Result<Done> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request with a wrong length");
        let (header, arguments) = Header::parse(message).ok_or_else(wrong)?;
        reply.clear();
        let handled = handler.handle(&header, arguments, reply, channel);
        if matches!(handled, Err(Errno::ENOSPC)) && when_full.puts_off(header.opcode) {
            return Ok(Done::PutOff);
        }
        let code = match handled {
            Ok(Handled::Silent) if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) => {
                return Ok(Done::Forgotten);
            }
            Ok(Handled::Silent) => return Ok(Done::Silent),
            Ok(Handled::Reply) => 0,
            Ok(Handled::Refused(Errno(number))) | Err(Errno(number)) => -number,
        };
        channel.answer(reply, header.unique, code);
        if let Some(answered) = self.answered {
            answered.fetch_add(1, Relaxed);
        }
        Ok(Done::Answered)
    }
}

/// The result of a mount's first thread and of its others.
pub(crate) fn result_of(
    first: io::Result<()>,
    others: impl Iterator<Item = std::thread::Result<io::Result<()>>>,
) -> io::Result<()> {
    let panicked = |_| Err(io::Error::other("a worker panicked"));
    others.map(|ended| ended.unwrap_or_else(panicked)).fold(first, io::Result::and)
}

/// What to do with a request that finds the image full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Leave it unanswered, to be handled once more.
    PutOff,
    Answer,
}

impl WhenFull {
    /// Whether such a request is put off. Not one that frees space, for which others may wait; and
    /// a sync is not about the space in the image.
    pub(crate) fn puts_off(self, opcode: u32) -> bool {
        let may_gain = !matches!(opcode, opcode::FSYNC | opcode::FSYNCDIR | opcode::FLUSH) && !frees_space(opcode);
        self == WhenFull::PutOff && may_gain
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Answered,
    /// It needs no answer: the kernel forgot files.
    Forgotten,
    /// It needs no answer, or gets it later.
    Silent,
    /// It found the image full, and is to be handled again.
    PutOff,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Arguments;
    use posix::Result;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::sync::{Arc, Condvar};

    const FORGOTTEN: u64 = 2000;

    /// Counts what the kernel forgot.
    struct Forgets(AtomicU64);

    impl Handler for Forgets {
        fn capabilities(&self, _: u64) -> u64 {
            0
        }

        fn handle(&self, header: &Header, _: Arguments<'_>, _: &mut Reply, _: &Channel) -> Result<Handled> {
            assert_eq!(header.opcode, opcode::FORGET);
            // Others may run between the reading and the end of a request.
            std::thread::yield_now();
            self.0.fetch_add(1, Relaxed);
            Ok(Handled::Silent)
        }
    }

    fn forget() -> Vec<u8> {
        let mut message = [48, opcode::FORGET].map(u32::to_ne_bytes).concat();
        message.resize(48, 0);
        message
    }

    /// An image that is full until a FORGET has been handled.
    struct Full {
        /// Whether a request has found it full, and whether it has space.
        state: Mutex<(bool, bool)>,
        changed: Condvar,
        /// The FORGET frees space only after a request has found the image full.
        is_slow: bool,
    }

    impl Handler for Full {
        fn capabilities(&self, _: u64) -> u64 {
            0
        }

        fn handle(&self, header: &Header, _: Arguments<'_>, _: &mut Reply, _: &Channel) -> Result<Handled> {
            let mut state = self.state.lock().unwrap();
            if header.opcode == opcode::FORGET {
                while self.is_slow && !state.0 {
                    state = self.changed.wait(state).unwrap();
                }
                state.1 = true;
                return Ok(Handled::Silent);
            }
            state.0 = true;
            self.changed.notify_all();
            if state.1 { Ok(Handled::Reply) } else { Err(Errno::ENOSPC) }
        }
    }

    fn message(opcode: u32) -> Vec<u8> {
        let mut message = [40, opcode].map(u32::to_ne_bytes).concat();
        message.resize(40, 0);
        message
    }

    /// The codes of the replies when `threads` threads serve requests that the kernel has queued.
    fn codes(opcodes: &[u32], threads: usize, is_slow: bool) -> Vec<i32> {
        // Like the device, such a socket keeps the bounds of messages.
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        opcodes.iter().for_each(|&opcode| assert_eq!(rustix::io::write(&kernel, &message(opcode)).unwrap(), 40));
        let (device, full) =
            (Channel::of(Arc::new(device)), Full { state: Mutex::default(), changed: Condvar::new(), is_slow });
        let spare = (threads == 1).then(|| device.clone());
        spare.iter().for_each(|spare| spare.do_not_block().unwrap());
        let workers = Workers::new(device.clone(), spare, threads, None);
        let requests = opcodes.iter().filter(|opcode| **opcode != opcode::FORGET);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| workers.serve(&vec![device; threads], &full));
            let mut reply = [0; 64];
            let codes = requests.map(|_| {
                rustix::io::read(&kernel, &mut reply).unwrap();
                i32::from_ne_bytes(*reply[4..].first_chunk().unwrap())
            });
            let codes = codes.collect();
            // The end of the other side is an empty message, which no kernel sends.
            drop(kernel);
            assert!(served.join().unwrap().is_err());
            codes
        })
    }

    #[test]
    fn a_request_gets_space_that_the_kernel_has_asked_to_free() {
        assert_eq!(codes(&[opcode::MKNOD, opcode::FORGET], 1, false), [0]);
        assert_eq!(codes(&[opcode::MKNOD, opcode::MKNOD, opcode::FORGET], 1, false), [0, 0]);
    }

    #[test]
    fn a_request_beside_rings_is_answered_too() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (kernel, device) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let device = Channel::of(Arc::new(device));
        let workers = Workers::new(device.clone(), Some(device), 0, None);
        let full = Full { state: Mutex::default(), changed: Condvar::new(), is_slow: false };
        rustix::io::write(&kernel, &message(opcode::MKNOD)).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| workers.serve_beside_rings(&full));
            Channel::of(Arc::new(kernel.try_clone().unwrap())).wait().unwrap();
            let mut reply = [0; 64];
            assert_eq!(rustix::io::read(&kernel, &mut reply).unwrap(), 16);
            assert_eq!(i32::from_ne_bytes(*reply[4..].first_chunk().unwrap()), -libc::ENOSPC);
            drop(kernel);
            assert!(served.join().unwrap().is_err());
        });
    }

    #[test]
    fn a_request_waits_for_space_that_another_thread_is_about_to_free() {
        for _ in 0..100 {
            assert_eq!(codes(&[opcode::FORGET, opcode::MKNOD], 2, true), [0]);
            assert_eq!(codes(&[opcode::FORGET, opcode::MKNOD, opcode::MKNOD], 3, true), [0, 0]);
        }
    }

    #[test]
    fn requests_of_a_full_image_end() {
        for threads in 1..4 {
            assert_eq!(codes(&[opcode::MKNOD; 80], threads, false), [-libc::ENOSPC; 80], "{threads} threads");
        }
    }

    #[test]
    fn what_the_device_had_before_a_request_settles_is_handled_after_it() {
        // Like the device, such a socket keeps the bounds of messages.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (kernel, device) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let device = Channel::of(Arc::new(device));
        let (workers, forgets) = (Workers::new(device.clone(), Some(device), 0, None), Forgets(AtomicU64::new(0)));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| workers.serve_beside_rings(&forgets));
            // Another ring's thread, which meets a full image too.
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    workers.settle(0, &forgets);
                }
            });
            for sent in 1..=FORGOTTEN {
                rustix::io::write(&kernel, &forget()).unwrap();
                workers.settle(0, &forgets);
                assert!(forgets.0.load(Relaxed) >= sent, "{sent}");
            }
            done.store(true, Relaxed);
            // The end of the other side is an empty message, which no kernel sends.
            drop(kernel);
            assert!(worker.join().unwrap().is_err());
        });
        assert_eq!(forgets.0.into_inner(), FORGOTTEN);
    }

    /// Waits for the thread of a place, which frees space at some time after its start.
    fn assert_waits_for(freeing: impl FnOnce(&Place, &dyn Fn()) + Send) {
        let (place, freed, is_busy) = (Place::default(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _taken = Taken::of(&place);
                freeing(&place, &|| {
                    is_busy.store(true, SeqCst);
                    (0..10_000).for_each(|_| std::hint::spin_loop());
                    std::thread::yield_now();
                });
                freed.store(true, SeqCst);
                place.change(WAITS);
            });
            while !is_busy.load(SeqCst) {
                std::thread::yield_now();
            }
            place.wait(place.state.load(SeqCst), Instant::now() + Duration::from_secs(3600));
            assert!(freed.load(SeqCst));
        });
    }

    #[test]
    fn a_thread_that_is_about_to_free_space_is_waited_for() {
        for _ in 0..200 {
            assert_waits_for(|place, go_on| {
                place.change(FREES);
                go_on();
            });
            // It has a message, and has not said so yet.
            assert_waits_for(|place, go_on| {
                go_on();
                place.change(FREES);
            });
        }
    }

    #[test]
    fn a_thread_that_frees_nothing_is_not_waited_for() {
        let (place, (end, ended)) = (&Place::default(), mpsc::channel::<()>());
        let wait = || place.wait(place.state.load(SeqCst), Instant::now() + Duration::from_secs(3600));
        // It has no thread.
        wait();
        std::thread::scope(|scope| {
            let (ready, is_busy) = mpsc::channel();
            scope.spawn(move || {
                let _taken = Taken::of(place);
                for doing in [HANDLES, WAITS] {
                    place.change(doing);
                    ready.send(()).unwrap();
                    ended.recv().unwrap();
                }
                place.change(FREES);
            });
            for _ in 0..2 {
                is_busy.recv().unwrap();
                wait();
                end.send(()).unwrap();
            }
        });
        // It has ended with a message.
        wait();
    }
}
