//! The connection with the kernel: the first exchange, and the workers that read requests.
//!
//! Invariants
//! - The kernel expects a reply on the device through which the request was read. A [`Channel`] is
//!   such a device.
//! - A request that a server read and did not answer stays with its device. It ends with
//!   ECONNABORTED when the last descriptor of that device is closed. If the device survives the
//!   server (see `keeper`), the next server has the kernel send it again.
//!
//! A removed file keeps its space until its FORGET is handled, up to 5 ms later, because a worker
//! pauses after one. The kernel queues FORGET before the removal returns. So a request that finds
//! the image full takes the lock of the device, handles all messages there, and tries once more.
//! *Rejected:* sleeping 10 ms up to three times (each write to a full image took 30 ms); a worker
//! without a pause (a wake per removed file).

use crate::mapped_pages::{DropPages, DroppedPages};
use crate::messages::{inform, warn};
use crate::protocol::{
    Arguments, Header, Reply, VERSION_MAJOR, VERSION_MINOR, VERSION_MINOR_LEAST, capability, notification, opcode,
};
use crate::ring::{self, Prepared};
use posix::{Errno, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes of content in one request: the kernel's usual limit of 256 pages.
const CONTENT_BYTES_MAX: usize = 1 << 20;
const PAGES_MAX: u16 = 256;
/// The kernel requires room for a write of that size with its headers.
const REQUEST_BYTES: usize = CONTENT_BYTES_MAX + 4096;
/// Requests without a waiting program (readahead, direct I/O) under way at once.
const BACKGROUND_MAX: u16 = 64;
/// How long the worker beside rings waits after it has learned of forgotten files.
const FORGET_INTERVAL: Duration = Duration::from_millis(5);
/// Messages that are read from the device beside rings at a time. One has room for 65,000 forgotten
/// files.
const DRAINED_MAX: usize = 64;
/// Directories that wait for a notification.
const LISTED_ANEW_MAX: usize = 256;
/// `FUSE_DEV_IOC_CLONE`: connects a new descriptor of /dev/fuse with the mount of another one.
const CLONE: libc::c_ulong = 0x8004_e500;

/// A device through which requests are read and answered.
#[derive(Clone)]
pub(crate) struct Channel(Arc<OwnedFd>);

impl Channel {
    /// Answers a request. `code`: zero or a negative errno.
    pub(crate) fn answer(&self, reply: &mut Reply, unique: u64, code: i32) {
        // The kernel refuses the reply with ENOENT if the request was aborted meanwhile; nothing
        // waits for it then. The end of the mount is seen by the next read.
        let _ = rustix::io::write(&*self.0, reply.finish(unique, code));
    }

    /// The number of the descriptor.
    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// A second device of the same mount, with requests of its own.
    fn clone_device(&self) -> io::Result<Channel> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let source = self.0.as_raw_fd() as u32;
        // SAFETY: a request on an open descriptor, which reads one number.
        if unsafe { libc::ioctl(device.as_raw_fd(), CLONE as _, &raw const source) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Channel(Arc::new(device.into())))
    }

    /// Reads the next request. `None`: the mount has ended.
    fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.receive_now(into)? {
                Received::Request(length) => return Ok(Some(length)),
                Received::Ended => return Ok(None),
                Received::Nothing => {}
            }
        }
    }

    /// Reads a request if there is one; waits for one if the device is blocking.
    fn receive_now(&self, into: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&*self.0, &mut *into) {
                Ok(length) => return Ok(Received::Request(length)),
                // The request was interrupted before it was read.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(Received::Nothing),
                // A worker that is just receiving a request at the end of the mount gets
                // ECONNABORTED: the last close of a file sends a request without a waiter.
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What a device has.
enum Received {
    Request(usize),
    Nothing,
    /// The mount has ended.
    Ended,
}

/// How a request was handled.
pub(crate) enum Handled {
    /// The reply is filled.
    Reply,
    /// There is none, or it is sent later through the channel.
    Silent,
}

/// The server's part of a session.
pub(crate) trait Handler: Sync {
    /// The capabilities to enable, of those that the kernel offers.
    fn capabilities(&self, offered: u64) -> u64;
    /// Handles a request.
    fn handle(
        &self,
        header: &Header,
        arguments: Arguments<'_>,
        reply: &mut Reply,
        channel: &Channel,
    ) -> Result<Handled>;
}

/// A connection that is established.
pub(crate) struct Connection {
    channel: Channel,
    /// The enabled capabilities.
    pub(crate) capabilities: u64,
    /// Counts the answered requests, where a keeper looks at them.
    pub(crate) answered: Option<&'static AtomicU64>,
    /// The rings through which the kernel sends requests; empty: it sends them through /dev/fuse.
    rings: Vec<Prepared>,
}

impl Connection {
    /// Performs the first exchange on the device of a new mount. `may_use_rings`: through io_uring
    /// if the kernel offers it.
    pub(crate) fn establish(device: OwnedFd, handler: &impl Handler, may_use_rings: bool) -> io::Result<Connection> {
        let channel = Channel(Arc::new(device));
        let (mut request, mut reply) = (vec![0; REQUEST_BYTES], Reply::new());
        loop {
            let ended = || io::Error::new(io::ErrorKind::NotConnected, "the mount ended before its first request");
            let length = channel.receive(&mut request)?.ok_or_else(ended)?;
            let message = Header::parse(&request[..length]).filter(|(header, _)| header.opcode == opcode::INIT);
            let Some((header, arguments)) = message else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's first request is not FUSE_INIT"));
            };
            reply.clear();
            let mut rings = Vec::new();
            let prepare = || if may_use_rings { rings_for(&channel) } else { Vec::new() };
            let agreed = introduce(arguments, handler, prepare, &mut rings, &mut reply)?;
            channel.answer(&mut reply, header.unique, 0);
            if let Some(capabilities) = agreed {
                return Ok(Connection { channel, capabilities, answered: None, rings });
            }
        }
    }

    /// Continues a session that an earlier server established.
    pub(crate) fn resume(device: OwnedFd, capabilities: u64) -> Connection {
        Connection { channel: Channel(Arc::new(device)), capabilities, answered: None, rings: Vec::new() }
    }

    /// Whether the kernel can send requests of a dead server again.
    pub(crate) fn can_resend(&self) -> bool {
        self.capabilities & capability::HAS_RESEND != 0
    }

    /// Lets the kernel send the requests again that an earlier server read and did not answer.
    pub(crate) fn resend(&self) -> io::Result<()> {
        notify(&self.channel, notification::RESEND, |_| {})
    }

    /// A function that invalidates the kernel's cached attributes of a file; it leaves the content
    /// alone.
    pub(crate) fn invalidator(&self) -> impl Fn(u64) + Send + Sync + 'static {
        let channel = self.channel.clone();
        move |number| {
            // ENOENT: the kernel has no such file in its cache.
            let _ = notify(&channel, notification::INVALIDATE_INODE, |reply| {
                reply.u64(number).i64(-1).i64(0);
            });
        }
    }

    /// A function that has the kernel drop pages. The thread starts with the first call.
    ///
    /// The notification waits for pages that other requests are about, so no thread that answers
    /// those may send it.
    pub(crate) fn page_dropper(&self) -> DropPages {
        let (channel, queue) = (self.channel.clone(), OnceLock::new());
        Box::new(move |dropped: DroppedPages| {
            let sent = match queue.get_or_init(|| start_dropping(channel.clone())) {
                Some(queue) => queue.send(dropped),
                None => Err(mpsc::SendError(dropped)),
            };
            if let Err(mpsc::SendError(unsent)) = sent {
                (unsent.then)();
            }
        })
    }

    /// What has the kernel list directories again.
    pub(crate) fn lister(&self) -> Lister {
        Lister(self.channel.clone())
    }

    /// Serves requests with `threads` workers until the mount has ended. `clones`: each worker has
    /// its own device, which spares them contention.
    pub(crate) fn serve<H: Handler + Send + 'static>(
        self,
        threads: usize,
        clones: Clones,
        handler: &Arc<H>,
    ) -> io::Result<()> {
        let Connection { channel, answered, rings, .. } = self;
        if !rings.is_empty() {
            return serve_rings(channel, rings, handler);
        }
        let channels = (0..threads.max(1)).map(|index| match clones {
            Clones::None => Ok(channel.clone()),
            Clones::AllButFirst if index == 0 => Ok(channel.clone()),
            Clones::AllButFirst | Clones::All => channel.clone_device(),
        });
        let channels: Vec<Channel> = channels.collect::<io::Result<_>>()?;
        let count = || {
            if let Some(answered) = answered {
                answered.fetch_add(1, Relaxed);
            }
        };
        serve_devices(&channels, &**handler, &count)
    }
}

fn start_dropping(channel: Channel) -> Option<mpsc::Sender<DroppedPages>> {
    let (queue, requests) = mpsc::channel::<DroppedPages>();
    let run = move || {
        for DroppedPages { pages, then } in requests {
            // ENOENT: the kernel has no such file in its cache.
            let _ = notify(&channel, notification::INVALIDATE_INODE, |reply| {
                reply.u64(pages.number).i64(pages.start.cast_signed()).i64(pages.bytes.cast_signed());
            });
            then();
        }
    };
    let started = std::thread::Builder::new().name("directfs-pages".to_owned()).spawn(run);
    if let Err(error) = &started {
        warn(format_args!(
            "no thread for notifications ({error}): a mapping may show old content after a write beside it; raise the limit of \
             processes (`ulimit -u`, pids.max) and mount again"
        ));
    }
    started.is_ok().then_some(queue)
}

/// Has the kernel list directories again.
///
/// The notification waits for pages of the cached listing. A program may have such a page and wait
/// for another request meanwhile, if it lists into memory that is a file of this mount. So no
/// thread that answers requests may send it.
pub(crate) struct Lister(Channel);

impl Lister {
    /// Returns a function that takes a directory. With the first one it starts the thread that
    /// notifies the kernel. The directory is a hint, which has no effect without that thread, or if
    /// too many directories wait.
    pub(crate) fn lists(self) -> impl Fn(u64) + Send + Sync + 'static {
        let queue = OnceLock::new();
        move |directory| {
            if let Some(queue) = queue.get_or_init(|| self.start()) {
                let _ = queue.try_send(directory);
            }
        }
    }

    fn start(&self) -> Option<SyncSender<u64>> {
        let (channel, (queue, directories)) = (self.0.clone(), mpsc::sync_channel(LISTED_ANEW_MAX));
        let run = move || {
            for directory in directories {
                // ENOENT: the kernel has no such directory in its cache.
                let _ = notify(&channel, notification::INVALIDATE_INODE, |reply| {
                    reply.u64(directory).i64(0).i64(0);
                });
            }
        };
        let started = std::thread::Builder::new().name("directfs-lists".to_owned()).spawn(run);
        if let Err(error) = &started {
            inform(format_args!("no thread for notifications ({error}): programs like `du` take more requests"));
        }
        started.is_ok().then_some(queue)
    }
}

/// Serves a device with each worker. The first is this thread, so that there is always one.
fn serve_devices(channels: &[Channel], handler: &impl Handler, answered: &(impl Fn() + Sync)) -> io::Result<()> {
    let Some((first, others)) = channels.split_first() else { return Ok(()) };
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (index, channel) in others.iter().enumerate() {
            let name = format!("directfs-{}", index + 1);
            let work = move || work(channel, handler, answered);
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
        let served = work(first, handler, answered);
        let panicked = |_| Err(io::Error::other("a worker panicked"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).fold(served, io::Result::and)
    })
}

/// Serves rings, and with this thread the device beside them.
///
/// The requests are not counted for a keeper: a mount that has one is served without rings.
fn serve_rings<H: Handler + Send + 'static>(
    channel: Channel,
    rings: Vec<Prepared>,
    handler: &Arc<H>,
) -> io::Result<()> {
    let beside = Arc::new(Beside::new(channel));
    let begin = |ring: Prepared| {
        let (handler, beside) = (Arc::clone(handler), Arc::clone(&beside));
        ring.begin(Box::new(move |ring| ring.serve(&beside, &*handler)))
    };
    let threads: Vec<_> = rings.into_iter().map(begin).collect();
    let served = beside.serve(&**handler);
    let panicked = |_| Err(io::Error::other("a worker panicked"));
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).fold(served, io::Result::and)
}

/// The rings of a mount; none if something is in the way. After the reply to the first request
/// nothing is made any more that could fail: the kernel would wait for it.
fn rings_for(channel: &Channel) -> Vec<Prepared> {
    let flags = rustix::fs::fcntl_getfl(&*channel.0);
    let prepared = ring::prepare(CONTENT_BYTES_MAX).and_then(|rings| {
        rustix::fs::fcntl_setfl(&*channel.0, flags? | OFlags::NONBLOCK)?;
        Ok(rings)
    });
    prepared.unwrap_or_else(|error| {
        inform(format_args!("io_uring cannot be used ({error}): requests come through /dev/fuse"));
        Vec::new()
    })
}

/// The device beside rings, on which the kernel keeps FORGET and INTERRUPT. It does not block.
///
/// Invariant: a request is read and handled under one lock. So all that the kernel had queued
/// before a call of [`Beside::drain`] is done after it.
pub(crate) struct Beside {
    channel: Channel,
    buffers: Mutex<(Vec<u8>, Reply)>,
}

/// What [`Beside::drain`] met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// Nothing more to read; `forgot`: a file was forgotten.
    Idle { forgot: bool },
    /// The end of the mount.
    Ended,
}

impl Beside {
    fn new(channel: Channel) -> Beside {
        Beside { channel, buffers: Mutex::new((vec![0; REQUEST_BYTES], Reply::new())) }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Handles requests until the mount has ended.
    ///
    /// It waits a little after a file was forgotten, because a program that removes files would
    /// wake it up after each one. Meanwhile the kernel gathers what it forgets, and sends it in one
    /// message.
    fn serve(&self, handler: &impl Handler) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&*self.channel.0, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            match self.drain_once(handler)? {
                Drained::Ended => return Ok(()),
                Drained::Idle { forgot: true } => std::thread::sleep(FORGET_INTERVAL),
                Drained::Idle { forgot: false } => {}
            }
        }
    }

    /// Handles what is on the device. Errors are left to the device's own thread, which meets them
    /// too.
    pub(crate) fn drain(&self, handler: &impl Handler) {
        let _ = self.drain_once(handler);
    }

    fn drain_once(&self, handler: &impl Handler) -> io::Result<Drained> {
        // Each request overwrites the buffers, whatever a panic has left in them.
        let (request, reply) = &mut *self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut forgot = false;
        for _ in 0..DRAINED_MAX {
            match self.channel.receive_now(request)? {
                Received::Ended => return Ok(Drained::Ended),
                Received::Nothing => break,
                Received::Request(length) => {
                    let done = handle_message(&self.channel, handler, &request[..length], reply)?;
                    forgot |= done == Done::Forgotten;
                }
            }
        }
        Ok(Drained::Idle { forgot })
    }
}

/// Serves the requests of one device. `answered` is called after each.
fn work(channel: &Channel, handler: &impl Handler, answered: impl Fn()) -> io::Result<()> {
    let (mut request, mut reply) = (vec![0; REQUEST_BYTES], Reply::new());
    while let Some(length) = channel.receive(&mut request)? {
        if handle_message(channel, handler, &request[..length], &mut reply)? == Done::Answered {
            answered();
        }
    }
    Ok(())
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Answered,
    /// It needs no answer: the kernel forgot files.
    Forgotten,
    /// It needs no answer, or gets it later.
    Silent,
}

/// Handles a request that was read from a device.
fn handle_message(channel: &Channel, handler: &impl Handler, message: &[u8], reply: &mut Reply) -> io::Result<Done> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request with a wrong length");
    let (header, arguments) = Header::parse(message).ok_or_else(wrong)?;
    reply.clear();
    let code = match handler.handle(&header, arguments, reply, channel) {
        Ok(Handled::Silent) if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) => {
            return Ok(Done::Forgotten);
        }
        Ok(Handled::Silent) => return Ok(Done::Silent),
        Ok(Handled::Reply) => 0,
        Err(Errno(number)) => -number,
    };
    channel.answer(reply, header.unique, code);
    Ok(Done::Answered)
}

/// The workers that have a device of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clones {
    /// None: all requests stay with the device that was mounted.
    None,
    /// All but the first, which reads the device that was mounted.
    AllButFirst,
    /// All: their requests end with the server.
    All,
}

fn notify(channel: &Channel, code: i32, fill: impl FnOnce(&mut Reply)) -> io::Result<()> {
    let mut message = Reply::new();
    fill(&mut message);
    rustix::io::write(&*channel.0, message.finish(0, code))?;
    Ok(())
}

/// Fills the reply to the first request. Returns the capabilities; `None` if the kernel has a newer
/// major version and will send another first request.
///
/// `prepare` makes the rings if the kernel offers to use them; `rings` is where they go.
fn introduce(
    mut arguments: Arguments<'_>,
    handler: &impl Handler,
    prepare: impl FnOnce() -> Vec<Prepared>,
    rings: &mut Vec<Prepared>,
    reply: &mut Reply,
) -> io::Result<Option<u64>> {
    let short = |_| io::Error::new(io::ErrorKind::InvalidData, "the kernel's first request is too short");
    let (major, minor) = (arguments.u32().map_err(short)?, arguments.u32().map_err(short)?);
    if major > VERSION_MAJOR {
        reply.u32(VERSION_MAJOR).u32(VERSION_MINOR).zeros(56);
        return Ok(None);
    }
    if major < VERSION_MAJOR || minor < VERSION_MINOR_LEAST {
        let message = format!("the kernel's FUSE {major}.{minor} is too old: Linux 5.4 or later is needed");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    let (readahead, low) = (arguments.u32().map_err(short)?, arguments.u32().map_err(short)?);
    let high = if u64::from(low) & capability::INIT_EXT != 0 { arguments.u32().map_err(short)? } else { 0 };
    let offered = u64::from(high) << 32 | u64::from(low);
    let always = capability::MAX_PAGES | capability::BIG_WRITES | capability::ASYNC_READ | capability::INIT_EXT;
    let mut enabled = (handler.capabilities(offered) | always) & offered;
    if offered & capability::OVER_IO_URING != 0 {
        *rings = prepare();
        if !rings.is_empty() {
            enabled |= capability::OVER_IO_URING;
        }
    }
    reply.u32(VERSION_MAJOR).u32(VERSION_MINOR.min(minor)).u32(readahead).u32(enabled as u32);
    reply.u16(BACKGROUND_MAX).u16(BACKGROUND_MAX / 4 * 3).u32(CONTENT_BYTES_MAX as u32);
    // Times have the unit 1 ns.
    reply.u32(1).u16(PAGES_MAX).u16(0).u32((enabled >> 32) as u32).zeros(28);
    Ok(Some(enabled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::atomic::AtomicBool;

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

    #[test]
    fn what_the_device_had_before_a_drain_is_handled_after_it() {
        // Like the device, such a socket keeps the bounds of messages.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (kernel, device) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (beside, forgets) = (Beside::new(Channel(Arc::new(device))), Forgets(AtomicU64::new(0)));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| beside.serve(&forgets));
            // Another ring's thread, which meets a full image too.
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    beside.drain(&forgets);
                }
            });
            for sent in 1..=FORGOTTEN {
                rustix::io::write(&kernel, &forget()).unwrap();
                beside.drain(&forgets);
                assert!(forgets.0.load(Relaxed) >= sent, "{sent}");
            }
            done.store(true, Relaxed);
            // The end of the other side is an empty message, which no kernel sends.
            drop(kernel);
            assert!(worker.join().unwrap().is_err());
        });
        assert_eq!(forgets.0.into_inner(), FORGOTTEN);
    }
}
