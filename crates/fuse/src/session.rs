//! The connection with the kernel: the first exchange, and the workers that read requests.
//!
//! Invariants
//! - The kernel expects a reply on the device through which the request was read. A [`Channel`] is
//!   such a device.
//! - A request that a server read and did not answer stays with its device. It ends with
//!   ECONNABORTED when the last descriptor of that device is closed. If the device survives the
//!   server (see `keeper`), the next server has the kernel send it again.

use crate::protocol::{
    Arguments, Header, Reply, VERSION_MAJOR, VERSION_MINOR, VERSION_MINOR_LEAST, capability, notification, opcode,
};
use crate::ring::{self, Ring};
use posix::{Errno, Result};
use rustix::fd::{AsRawFd, OwnedFd};
use std::fs::OpenOptions;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bytes of content in one request: the kernel's usual limit of 256 pages.
const CONTENT_BYTES_MAX: usize = 1 << 20;
const PAGES_MAX: u16 = 256;
/// The kernel requires room for a write of that size with its headers.
const REQUEST_BYTES: usize = CONTENT_BYTES_MAX + 4096;
/// Requests without a waiting program (readahead, direct I/O) under way at once.
const BACKGROUND_MAX: u16 = 64;
/// How long a worker beside rings waits between two messages of forgotten files.
pub(crate) const FORGET_INTERVAL: Duration = Duration::from_millis(5);
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
        if unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const source) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Channel(Arc::new(device.into())))
    }

    /// Reads the next request. `None`: the mount has ended.
    fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&*self.0, &mut *into) {
                Ok(length) => return Ok(Some(length)),
                // The request was interrupted before it was read.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                // A worker that is just receiving a request at the end of the mount gets
                // ECONNABORTED: the last close of a file sends a request without a waiter.
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
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
    rings: Vec<Ring>,
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
            let agreed = introduce(arguments, handler, may_use_rings.then_some(&mut rings), &mut reply)?;
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

    /// Serves requests with `threads` workers until the mount has ended. `clones`: each worker has
    /// its own device, which spares them contention.
    pub(crate) fn serve(self, threads: usize, clones: Clones, handler: &impl Handler) -> io::Result<()> {
        let Connection { channel, answered, rings, .. } = self;
        // The kernel keeps a few kinds of requests on /dev/fuse.
        let (threads, pause) = if rings.is_empty() { (threads, None) } else { (1, Some(FORGET_INTERVAL)) };
        let channels = (0..threads).map(|index| match clones {
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
        let (channel, count) = (&channel, &count);
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for ring in rings {
                let name = ring.name();
                let serve = move || ring.serve(channel, handler, count);
                workers.push(std::thread::Builder::new().name(name).spawn_scoped(scope, serve)?);
            }
            for (index, channel) in channels.iter().enumerate() {
                let name = format!("directfs-{index}");
                let work = move || work(channel, handler, count, pause);
                workers.push(std::thread::Builder::new().name(name).spawn_scoped(scope, work)?);
            }
            let panicked = |_| Err(io::Error::other("a worker panicked"));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).fold(Ok(()), io::Result::and)
        })
    }
}

/// Serves the requests of one device. `answered` is called after each.
///
/// `pause`: most requests go elsewhere. The worker then waits so long after a file was forgotten,
/// because a program that removes files would wake it up after each one. Meanwhile the kernel
/// gathers what it forgets, and sends it in one message.
fn work(channel: &Channel, handler: &impl Handler, answered: impl Fn(), pause: Option<Duration>) -> io::Result<()> {
    let (mut request, mut reply) = (vec![0; REQUEST_BYTES], Reply::new());
    while let Some(length) = channel.receive(&mut request)? {
        let Some((header, arguments)) = Header::parse(&request[..length]) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request with a wrong length"));
        };
        reply.clear();
        let code = match handler.handle(&header, arguments, &mut reply, channel) {
            Ok(Handled::Silent) => {
                let forgets = matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET);
                if let Some(pause) = pause.filter(|_| forgets) {
                    std::thread::sleep(pause);
                }
                continue;
            }
            Ok(Handled::Reply) => 0,
            Err(Errno(number)) => -number,
        };
        channel.answer(&mut reply, header.unique, code);
        answered();
    }
    Ok(())
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
/// `rings` is where the rings go, if they may be used.
fn introduce(
    mut arguments: Arguments<'_>,
    handler: &impl Handler,
    rings: Option<&mut Vec<Ring>>,
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
    if let Some(rings) = rings.filter(|_| offered & capability::OVER_IO_URING != 0)
        && let Ok(made) = ring::create(CONTENT_BYTES_MAX)
    {
        enabled |= capability::OVER_IO_URING;
        *rings = made;
    }
    reply.u32(VERSION_MAJOR).u32(VERSION_MINOR.min(minor)).u32(readahead).u32(enabled as u32);
    reply.u16(BACKGROUND_MAX).u16(BACKGROUND_MAX / 4 * 3).u32(CONTENT_BYTES_MAX as u32);
    // Times have the unit 1 ns.
    reply.u32(1).u16(PAGES_MAX).u16(0).u32((enabled >> 32) as u32).zeros(28);
    Ok(Some(enabled))
}
