//! A disk with a cache, under any file system: a file that this process serves through FUSE, for a
//! loop device or as an image. It keeps writes in a cache until a flush (FSYNC). At a power failure
//! a random subset of the cached pieces survives, and later requests fail.
//!
//! - Reads and writes pass by the kernel's page cache (`FOPEN_DIRECT_IO`): a write that returned
//!   has arrived here, and nothing but FSYNC makes it safe.
//! - The thread that serves never calls anything that can wait for the file.

use std::ffi::CString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// The node of the file: the root of the mount.
const FILE_MODE: u32 = libc::S_IFREG | 0o644;
const HEADER_BYTES: usize = 40;
const CONTENT_BYTES_MAX: usize = 1 << 20;
/// FUSE_ASYNC_READ, FUSE_BIG_WRITES, FUSE_ASYNC_DIO, FUSE_MAX_PAGES, FUSE_INIT_EXT.
const CAPABILITIES: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22 | 1 << 30;
/// FUSE_DIRECT_IO_ALLOW_MMAP: an image is mapped for a check.
const CAPABILITIES_HIGH: u32 = 1 << 4;
const DIRECT_IO: u32 = 1;

mod opcode {
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}

/// A generator of reproducible numbers (splitmix).
#[derive(Clone, Copy)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// mount(2).
pub fn mount(source: &str, point: &str, kind: &str, flags: libc::c_ulong, data: &str) -> bool {
    let [source, point, kind, data] = [source, point, kind, data].map(|text| CString::new(text).unwrap());
    // SAFETY: four strings.
    unsafe { libc::mount(source.as_ptr(), point.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) == 0 }
}

/// Gives this thread, and the processes that it starts, mounts of its own,
/// with an empty /dev/shm. `false`: this user may not.
pub fn enter_private_mounts() -> bool {
    // SAFETY: concerns this thread alone.
    let own = unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } == 0;
    own && mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "") && mount("tmpfs", "/dev/shm", "tmpfs", 0, "")
}

/// Requests to fail: the one with that number among the writes and flushes from now on, and all
/// later ones.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub number: u64,
    pub errno: i32,
}

/// What a power failure did to the cache.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lost {
    pub pieces: u64,
    pub kept_pieces: u64,
}

struct Cached {
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Content {
    /// What a power failure leaves for certain.
    flushed: Vec<u8>,
    /// What reads return.
    newest: Vec<u8>,
    length: usize,
    /// What was written since the last flush, in order.
    cache: Vec<Cached>,
    is_off: bool,
    /// The next flush finds the power gone: the draws, and the size of a piece.
    off_at_flush: Option<(Random, usize)>,
    lost: Lost,
    opened: u64,
    flushes: u64,
    /// Writes and flushes.
    requests: u64,
    fault: Option<Fault>,
}

impl Content {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), i32> {
        let end = at.checked_add(bytes.len()).filter(|&end| end <= self.newest.len()).ok_or(libc::ENOSPC)?;
        self.newest[at..end].copy_from_slice(bytes);
        self.length = self.length.max(end);
        self.cache.push(Cached { at, bytes: bytes.to_vec() });
        Ok(())
    }

    fn flush(&mut self) {
        for cached in self.cache.drain(..) {
            self.flushed[cached.at..][..cached.bytes.len()].copy_from_slice(&cached.bytes);
        }
        self.flushes += 1;
    }

    /// Puts a random subset of the cached pieces into what is flushed.
    fn keep(&self, flushed: &mut [u8], random: &mut Random, piece_bytes: usize) -> Lost {
        let mut lost = Lost::default();
        let kept_of_8 = random.below(9);
        for cached in &self.cache {
            let piece_bytes = if random.below(3) == 0 { cached.bytes.len() } else { piece_bytes };
            for (index, piece) in cached.bytes.chunks(piece_bytes).enumerate() {
                lost.pieces += 1;
                if random.below(8) < kept_of_8 {
                    lost.kept_pieces += 1;
                    flushed[cached.at + index * piece_bytes..][..piece.len()].copy_from_slice(piece);
                }
            }
        }
        lost
    }

    /// A power failure.
    fn fail(&mut self, mut random: Random, piece_bytes: usize) {
        self.is_off = true;
        let mut flushed = std::mem::take(&mut self.flushed);
        self.lost = self.keep(&mut flushed, &mut random, piece_bytes);
        self.flushed = flushed;
        // The two differ nowhere else.
        for cached in self.cache.drain(..) {
            let place = cached.at..cached.at + cached.bytes.len();
            self.newest[place.clone()].copy_from_slice(&self.flushed[place]);
        }
    }

    /// Counts a write or a flush, and says whether it fails.
    fn count(&mut self) -> Result<(), i32> {
        self.requests += 1;
        match self.fault {
            Some(fault) if fault.number <= self.requests => Err(fault.errno),
            _ => Ok(()),
        }
    }
}

#[derive(Default)]
struct Shared {
    content: Mutex<Content>,
    changed: Condvar,
}

impl Shared {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Content>, until: impl Fn(&Content) -> bool) -> MutexGuard<'a, Content> {
        let time = Duration::from_secs(600);
        let (guard, timed_out) = self.changed.wait_timeout_while(guard, time, |content| !until(content)).unwrap();
        assert!(!timed_out.timed_out(), "the disk is still in use, or not used at all");
        guard
    }
}

/// A disk with a cache.
pub struct Store {
    shared: Arc<Shared>,
    path: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Store {
    /// Serves a file of that length, which can grow to `bytes_max`, at a path. `None`: there is no
    /// FUSE here.
    pub fn serve(path: &Path, length: usize, bytes_max: usize) -> Option<Store> {
        File::create(path).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let options = format!("fd={},rootmode={FILE_MODE:o},user_id=0,group_id=0,allow_other", device.as_raw_fd());
        if !mount("disk", path.to_str().unwrap(), "fuse", libc::MS_NODEV | libc::MS_NOSUID, &options) {
            return None;
        }
        let content = Content { flushed: vec![0; bytes_max], newest: vec![0; bytes_max], length, ..Content::default() };
        let shared = Arc::new(Shared { content: Mutex::new(content), ..Shared::default() });
        let of_server = shared.clone();
        let server = std::thread::spawn(move || serve(device, &of_server));
        Some(Store { shared, path: path.to_owned(), server: Some(server) })
    }

    /// The power fails: now, or at the next flush, which is not performed.
    pub fn cut(&self, random: &mut Random, piece_bytes: usize) {
        let mut content = self.shared.content();
        let at_flush = random.below(2) == 0;
        let random = Random(random.next());
        if at_flush {
            content.off_at_flush = Some((random, piece_bytes));
            drop(self.shared.wait(content, |content| content.is_off));
        } else {
            content.fail(random, piece_bytes);
        }
    }

    /// The power is back. All must have closed the file.
    pub fn power_on(&self) -> Lost {
        let mut content = self.shared.wait(self.shared.content(), |content| content.opened == 0);
        content.is_off = false;
        content.lost
    }

    /// Makes requests fail.
    pub fn fail(&self, fault: Fault) {
        let mut content = self.shared.content();
        (content.requests, content.fault) = (0, Some(fault));
    }

    /// Makes no request fail from now on. Returns whether one did.
    pub fn end_fault(&self) -> bool {
        let mut content = self.shared.content();
        content.fault.take().is_some_and(|fault| content.requests >= fault.number)
    }

    /// What a power failure would leave now.
    pub fn survivor(&self, random: &mut Random, piece_bytes: usize) -> Vec<u8> {
        let content = self.shared.content();
        let mut flushed = content.flushed.clone();
        content.keep(&mut flushed, random, piece_bytes);
        flushed.truncate(content.length);
        flushed
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u64 {
        self.shared.content().flushes
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let path = CString::new(self.path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        if let Some(server) = self.server.take().filter(|_| !std::thread::panicking()) {
            server.join().unwrap();
        }
    }
}

/// Answers the kernel's requests until the mount ends.
fn serve(mut device: File, shared: &Shared) {
    let mut message = vec![0; CONTENT_BYTES_MAX + 4096];
    loop {
        let length = match device.read(&mut message) {
            Ok(length) => length,
            // The mount has ended.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED)) => return,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Interrupted) => continue,
            Err(error) => panic!("{error}"),
        };
        let (head, body) = message[..length].split_at(HEADER_BYTES);
        let opcode = number(head, 4, 4) as u32;
        if matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
            continue;
        }
        let answered = answer(shared, opcode, body);
        shared.changed.notify_all();
        let (errno, answer) = match answered {
            Ok(answer) => (0, answer),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut reply = ((16 + answer.len()) as u32).to_ne_bytes().to_vec();
        reply.extend(errno.to_ne_bytes());
        reply.extend(&head[8..16]);
        reply.extend(answer);
        // A request that was interrupted has no reader.
        let _ = device.write(&reply);
    }
}

/// A number of a message.
fn number(message: &[u8], at: usize, bytes: usize) -> u64 {
    let mut number = [0; 8];
    number[..bytes].copy_from_slice(&message[at..at + bytes]);
    u64::from_ne_bytes(number)
}

fn answer(shared: &Shared, opcode: u32, body: &[u8]) -> Result<Vec<u8>, i32> {
    let mut content = shared.content();
    if opcode == opcode::FSYNC
        && let Some((random, piece_bytes)) = content.off_at_flush.take()
    {
        content.fail(random, piece_bytes);
    }
    let needs_power = matches!(opcode, opcode::READ | opcode::WRITE | opcode::FSYNC | opcode::FALLOCATE);
    if content.is_off && needs_power {
        return Err(libc::EIO);
    }
    let (at, length) = match opcode {
        opcode::READ | opcode::WRITE => (number(body, 8, 8) as usize, number(body, 16, 4) as usize),
        opcode::FALLOCATE => (number(body, 8, 8) as usize, number(body, 16, 8) as usize),
        _ => (0, 0),
    };
    match opcode {
        opcode::INIT => Ok(introduction()),
        opcode::GETATTR => Ok(attributes(content.length)),
        opcode::SETATTR => {
            const SIZE: u64 = 1 << 3;
            if number(body, 0, 4) & SIZE != 0 {
                let length = number(body, 16, 8) as usize;
                content.resize(length)?;
            }
            Ok(attributes(content.length))
        }
        opcode::OPEN => {
            content.opened += 1;
            Ok(words(&[0, u64::from(DIRECT_IO)]))
        }
        opcode::RELEASE => {
            content.opened -= 1;
            Ok(Vec::new())
        }
        opcode::READ => {
            let end = (at + length).min(content.length);
            Ok(content.newest[at.min(end)..end].to_vec())
        }
        opcode::WRITE => {
            content.count()?;
            content.write(at, &body[40..][..length])?;
            Ok(words(&[length as u64]))
        }
        opcode::FALLOCATE => {
            let mode = number(body, 24, 4) as i32;
            let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
            if mode & zeroes == 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let end = (at + length).min(content.length);
            content.write(at.min(end), &vec![0; end.saturating_sub(at)])?;
            Ok(Vec::new())
        }
        opcode::FSYNC => {
            content.count()?;
            content.flush();
            Ok(Vec::new())
        }
        // The figures are those of a file system without limits of interest.
        opcode::STATFS => {
            Ok([words(&[1 << 20, 1 << 20, 1 << 20, 1, 1]), words(&[255 << 32 | 4096, 4096]), vec![0; 24]].concat())
        }
        _ => Err(libc::ENOSYS),
    }
}

impl Content {
    /// The length is safe at once: file systems on the disk never change it.
    fn resize(&mut self, length: usize) -> Result<(), i32> {
        if length > self.newest.len() {
            return Err(libc::ENOSPC);
        }
        if length < self.length {
            self.newest[length..].fill(0);
            self.flushed[length..].fill(0);
            self.cache.retain_mut(|cached| {
                cached.bytes.truncate(length.saturating_sub(cached.at));
                !cached.bytes.is_empty()
            });
        }
        self.length = length;
        Ok(())
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The reply to INIT (`struct fuse_init_out`), of 64 bytes.
fn introduction() -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let halves = |halves: [u16; 2]| halves.map(u16::to_ne_bytes).concat();
    let mut reply = words(&[7, 36, 1 << 17, CAPABILITIES]);
    reply.extend(halves([64, 48]));
    reply.extend(words(&[CONTENT_BYTES_MAX as u32, 1]));
    reply.extend(halves([(CONTENT_BYTES_MAX / 4096) as u16, 0]));
    reply.extend(words(&[CAPABILITIES_HIGH]));
    reply.resize(64, 0);
    reply
}

/// The reply to GETATTR and SETATTR (`struct fuse_attr_out`), never to be cached.
fn attributes(length: usize) -> Vec<u8> {
    let mut reply = words(&[0, 0, 1, length as u64, length as u64 / 512, 0, 0, 0]);
    // Nanoseconds, mode, links, owner, device, size of a block, flags.
    let rest = [0, 0, 0, FILE_MODE, 1, 0, 0, 0, 4096, 0];
    reply.extend(rest.iter().flat_map(|word: &u32| word.to_ne_bytes()));
    reply
}
