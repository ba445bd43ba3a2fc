//! The connection with the kernel: the first exchange, and the workers that read requests.
//!
//! Invariants
//! - The kernel expects a reply on the device through which the request was read. A [`Channel`] is
//!   such a device.
//! - A request that a server read and did not answer stays with its device. It ends with
//!   ECONNABORTED when the last descriptor of that device is closed. If the device survives the
//!   server (see `keeper`), the next server has the kernel send it again.

use crate::mapped_pages::{DropPages, DroppedPages};
use crate::messages::{inform, warn};
use crate::protocol::{
    Arguments, Header, Reply, VERSION_MAJOR, VERSION_MINOR, VERSION_MINOR_LEAST, capability, notification, opcode,
};
use crate::ring::{self, Prepared};
use crate::workers::{Workers, result_of};
use posix::{Errno, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Bytes of content in one request: the kernel's usual limit of 256 pages.
const CONTENT_BYTES_MAX: usize = 1 << 20;
const PAGES_MAX: u16 = 256;
/// The kernel requires room for a write of that size with its headers.
pub(crate) const REQUEST_BYTES: usize = CONTENT_BYTES_MAX + 4096;
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

    #[cfg(test)]
    pub(crate) fn of(device: Arc<OwnedFd>) -> Channel {
        Channel(device)
    }

    /// Makes reads return at once, also where the device is known by other descriptors.
    pub(crate) fn do_not_block(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&*self.0)?;
        Ok(rustix::fs::fcntl_setfl(&*self.0, flags | OFlags::NONBLOCK)?)
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

    /// Waits for the next request. `None`: the mount has ended.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.receive_now(into)? {
                Received::Request(length) => return Ok(Some(length)),
                Received::Ended => return Ok(None),
                Received::Nothing => self.wait()?,
            }
        }
    }

    /// Waits for a request, or the end of the mount.
    pub(crate) fn wait(&self) -> io::Result<()> {
        match poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is a request.
    pub(crate) fn has_request(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Reads a request if there is one; waits for one if the device is blocking.
    pub(crate) fn receive_now(&self, into: &mut [u8]) -> io::Result<Received> {
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
pub(crate) enum Received {
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
    /// The reply is this error, and the request must not be repeated: it has done something.
    Refused(Errno),
}

/// The server's part of a session.
pub(crate) trait Handler: Sync {
    /// The capabilities to enable, of those that the kernel offers.
    fn capabilities(&self, offered: u64) -> u64;
    /// Requests without a waiting program (readahead, direct I/O) under way at once.
    fn background_max(&self) -> u16 {
        64
    }
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
        // Without it the mount serves as well, but waits longer before it is full.
        let spare = match clones {
            Clones::None => (channels.len() == 1).then(|| channel.clone()),
            Clones::AllButFirst | Clones::All => channel.clone_device().ok(),
        };
        let spare = spare.filter(|spare| spare.do_not_block().is_ok());
        Workers::new(channel, spare, channels.len(), answered).serve(&channels, &**handler)
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

/// Serves rings, and with this thread the device beside them.
///
/// The requests are not counted for a keeper: a mount that has one is served without rings.
fn serve_rings<H: Handler + Send + 'static>(
    channel: Channel,
    rings: Vec<Prepared>,
    handler: &Arc<H>,
) -> io::Result<()> {
    let workers = Arc::new(Workers::new(channel.clone(), Some(channel), rings.len(), None));
    let begin = |(number, ring): (usize, Prepared)| {
        let (handler, workers) = (Arc::clone(handler), Arc::clone(&workers));
        ring.begin(Box::new(move |ring| ring.serve(&workers, number, &*handler)))
    };
    let threads: Vec<_> = rings.into_iter().enumerate().map(begin).collect();
    let served = workers.serve_beside_rings(&**handler);
    result_of(served, threads.into_iter().map(JoinHandle::join))
}

/// The rings of a mount; none if something is in the way. After the reply to the first request
/// nothing is made any more that could fail: the kernel would wait for it.
fn rings_for(channel: &Channel) -> Vec<Prepared> {
    let prepared = ring::prepare(CONTENT_BYTES_MAX).and_then(|rings| channel.do_not_block().map(|()| rings));
    prepared.unwrap_or_else(|error| {
        inform(format_args!("io_uring cannot be used ({error}): requests come through /dev/fuse"));
        Vec::new()
    })
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
    let background = handler.background_max();
    reply.u16(background).u16(background / 4 * 3).u32(CONTENT_BYTES_MAX as u32);
    // Times have the unit 1 ns.
    reply.u32(1).u16(PAGES_MAX).u16(0).u32((enabled >> 32) as u32).zeros(28);
    Ok(Some(enabled))
}
