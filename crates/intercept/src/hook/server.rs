//! The file system in this process: the two regions, and the mount.
//!
//! Invariant: set up by the constructor, before other threads and hooked calls; later only read.

use crate::handoff::{self, HandoffRecord};
use crate::hook::abi::entry::{DIRECTFS_PREFIX, PREFIX_BYTES_MAX};
use crate::hook::abi::sys;
use crate::hook::process::{environment, processes};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use engine::format::Superblock;
use engine::{AttachOptions, Fs, ImageIdentity, Liveness, Node};
use pmem::{Direct, Region};
use posix::host::PLATFORM;

/// The state that serves calls.
pub struct Server {
    /// The file system.
    pub fs: Fs<Direct>,
    /// The root directory. The reference is never released: the root always stays.
    pub root: Node,
    /// The mount directory.
    mount: [u8; PREFIX_BYTES_MAX],
    mount_bytes: usize,
    /// Value of `st_dev`.
    pub device: u64,
    /// Base of the image in this process.
    pub image_base: usize,
    /// Base of the DRAM region.
    pub region_base: usize,
    /// Sizes of the two regions.
    lengths: [usize; 2],
}

struct ServerCell(UnsafeCell<MaybeUninit<Server>>);
// SAFETY: see the module's invariant.
unsafe impl Sync for ServerCell {}

static SERVER: ServerCell = ServerCell(UnsafeCell::new(MaybeUninit::uninit()));
static STATE: AtomicU8 = AtomicU8::new(NONE);

const NONE: u8 = 0;
const SERVING: u8 = 1;
const FAILED: u8 = 2;
const LOST: u8 = 3;

/// The server, if there is a file system.
#[inline]
pub fn get() -> Option<&'static Server> {
    if STATE.load(Relaxed) == NONE {
        return None;
    }
    // SAFETY: initialised before the state was set, by the constructor; only read since.
    Some(unsafe { (*SERVER.0.get()).assume_init_ref() })
}

/// Whether the image was truncated, or this process lost its place: then no data of it is reliable.
#[inline]
pub fn has_failed() -> bool {
    STATE.load(Relaxed) >= FAILED
}

/// Whether this process lost its place: the shared tables hold another process under its number.
pub fn is_lost() -> bool {
    STATE.load(Relaxed) == LOST
}

/// Records that this process lost its place.
pub fn lose() {
    STATE.store(LOST, Relaxed);
}

/// Marks the file system as failed.
pub fn fail() {
    STATE.store(FAILED, Relaxed);
}

impl Server {
    /// The mount directory, in normal form.
    pub fn mount(&self) -> &[u8] {
        &self.mount[..self.mount_bytes]
    }

    /// Where the two regions are mapped.
    pub fn regions(&self) -> [Range<usize>; 2] {
        let [image, region] = self.lengths;
        [self.image_base..self.image_base + image, self.region_base..self.region_base + region]
    }

    /// The directory that contains, or would contain, the mount directory.
    pub fn above(&self) -> &[u8] {
        let mount = self.mount();
        match mount.iter().rposition(|&byte| byte == b'/') {
            Some(slash) if slash > 0 => &mount[..slash],
            _ => b"/",
        }
    }
}

/// Attaches the image that the launcher handed over. On failure it ends the program, which must not
/// work on another file system.
///
/// `hint`: where the regions are to be mapped, the second one far below the first; zero: anywhere.
/// `slot`: the index of the process's slot, if it has one already.
///
/// # Safety
/// Called once, by the constructor.
pub unsafe fn start(handoff: &HandoffRecord, mount: &[u8], hint: usize, slot: Option<u32>) {
    if !handoff::is_mount_directory(mount) {
        sys::refuse(&[b"the mount directory is not an absolute path in normal form: ", mount]);
    }
    let protection = |read_only| if read_only { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    let image = map(hint, handoff.image, handoff.image_bytes, protection(handoff.image_read_only), b"image");
    let region =
        map(hint.saturating_sub(hint >> 3), handoff.region, handoff.region_bytes, protection(false), b"shared memory");
    let options = AttachOptions {
        read_only: handoff.read_only,
        cached_files_max: handoff.cached_files_max,
        image: identity_of(handoff.image),
    };
    // SAFETY: both are completely mapped for the life of the process, and only regions access them;
    // a read-only mapping is attached read-only, so nothing is stored.
    let attached = unsafe {
        let pm = Region::new(image, handoff.image_bytes, Direct);
        let pm = if handoff.flushes { pm } else { pm.without_flushes() };
        let region = Region::new(region, handoff.region_bytes, Direct);
        Fs::attach_shared(pm, region, &PLATFORM, Liveness::supervised(handoff.meeting), &options)
    };
    let Ok(fs) = attached else {
        sys::refuse(&[b"cannot attach to the file system: it was closed, or another version of directfs opened it"]);
    };
    if processes::take_up_number(&fs, slot).is_err() {
        sys::refuse(&[b"the kernel refused this process's liveness lock, so it cannot join the file system"]);
    }
    let root = match fs.enter().and_then(|thread| thread.root()) {
        Ok(root) => root,
        Err(engine::Error::TooManyThreads) => {
            sys::refuse(&[b"too many threads use the file system; end some of them"]);
        }
        Err(_) => sys::refuse(&[b"the file system is damaged; check it with `directfs fsck`"]),
    };
    let mut copy = [0; PREFIX_BYTES_MAX];
    copy[..mount.len()].copy_from_slice(mount);
    let device = device(&fs);
    let (image_base, region_base) = (image as usize, region as usize);
    let lengths = [handoff.image_bytes as usize, handoff.region_bytes as usize];
    let server = Server { fs, root, mount: copy, mount_bytes: mount.len(), device, image_base, region_base, lengths };
    // SAFETY: nothing else runs yet (the caller's promise).
    unsafe {
        (*SERVER.0.get()).write(server);
        let prefix = &mut *DIRECTFS_PREFIX.0.get();
        prefix.fill(0);
        prefix[..mount.len() - 1].copy_from_slice(&mount[1..]);
    }
    STATE.store(SERVING, Relaxed);
}

/// Identity of the image's file, as far as it is known without /proc.
fn identity_of(image: i32) -> ImageIdentity {
    match sys::status(image) {
        Ok(status) => ImageIdentity { device: status.st_dev, inode: status.st_ino, boot: 0 },
        Err(_) => ImageIdentity::default(),
    }
}

/// A device number that no kernel file system has: those in memory count from one; this one is far
/// above, derived from the image's UUID.
fn device(fs: &Fs<Direct>) -> u64 {
    const MINOR_MIN: u64 = 0x8_0000;
    let mixed = fs.pm().first::<Superblock>().map_or(0, |found| found.uuid[0].load() ^ found.uuid[1].load());
    let minor = MINOR_MIN | (mixed ^ mixed >> 20 ^ mixed >> 40) & 0x7_ffff;
    libc::makedev(0, minor as u32)
}

fn map(hint: usize, fd: i32, bytes: u64, protection: i32, what: &[u8]) -> *mut u8 {
    let fits = sys::status(fd).is_ok_and(|status| {
        let is_device = status.st_mode & libc::S_IFMT == libc::S_IFCHR;
        is_device || status.st_size as u64 >= bytes
    });
    if !fits {
        let run = environment::run_entry().unwrap_or_default();
        sys::refuse(&[b"this program did not inherit the descriptor of the ", what, b" (", run, b")"]);
    }
    match sys::map_huge(hint, bytes as usize, protection, libc::MAP_SHARED, fd) {
        Ok(start) => start,
        Err(_) => sys::refuse(&[b"cannot map the ", what, b": not enough address space; raise the limit (ulimit -v)"]),
    }
}
