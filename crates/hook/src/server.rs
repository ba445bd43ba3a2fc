//! The file system in this process: the two regions, and the mount.
//!
//! A program that has nothing of the image when it starts attaches at its first call that may
//! concern the file system: see [`is_pending`].
//!
//! Invariants
//! - Set up by the constructor, before other threads and hooked calls, or by the first call that
//!   needs it, for which calls of other threads wait; later only read.
//! - A process that should serve and cannot attach never leaves a call to the kernel that may
//!   concern the mount: the constructor ends the program, a later call is an error, as all
//!   that follow.

use crate::abi::entry::DIRECTFS_PREFIX;
use crate::abi::sys::{self, Place};
use crate::handoff::{self, HandoffRecord};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, Range};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8};
use engine::format::Superblock;
use engine::{AttachOptions, Fs, ImageIdentity, ImageSize, Liveness, Node};
use pmem::{Direct, Loss, Region, Tracking};
use posix::commits::{Commits, ImageFile, area_bytes, tracking_at};
use tables::host::PLATFORM;
use tables::process::Processes;

/// The state that serves calls. Its other half is there once the process has attached.
pub struct Server {
    /// The mount directory.
    mount: &'static [u8],
    attached: UnsafeCell<MaybeUninit<Attached>>,
}

/// The attached image. Its first fields, which each call reads, begin a line of the cache.
#[repr(align(64))]
pub struct Attached {
    /// The file system.
    pub fs: Fs<Direct>,
    /// The root directory. The reference is never released: the root always stays.
    pub root: Node,
    /// Value of `st_dev`.
    pub device: u64,
    /// Base of the image in this process.
    pub image_base: usize,
    /// Base of the DRAM region.
    pub region_base: usize,
    /// Bytes of addresses that the two regions have.
    lengths: [usize; 2],
}

struct ServerCell(UnsafeCell<MaybeUninit<Server>>);
// SAFETY: see the module's invariant.
unsafe impl Sync for ServerCell {}

static SERVER: ServerCell = ServerCell(UnsafeCell::new(MaybeUninit::uninit()));
static STATE: AtomicU8 = AtomicU8::new(NONE);
/// Whether a memory error is why the file system failed.
static HAS_MEMORY_ERROR: AtomicBool = AtomicBool::new(false);
/// Whether there was an attempt to attach that succeeded.
static HAS_ATTACHED: AtomicBool = AtomicBool::new(false);

const NONE: u8 = 0;
const PENDING: u8 = 1;
const SERVING: u8 = 2;
const FAILED: u8 = 3;
const LOST: u8 = 4;

/// The server, if there is a file system.
#[inline]
pub fn get() -> Option<&'static Server> {
    if STATE.load(Relaxed) == NONE {
        return None;
    }
    // SAFETY: initialised before the state was set, by the constructor; only read since.
    Some(unsafe { (*SERVER.0.get()).assume_init_ref() })
}

/// The server, if the process has attached.
pub fn attached() -> Option<&'static Server> {
    get().filter(|_| HAS_ATTACHED.load(Relaxed))
}

/// Whether the process has not attached yet. It has then created no thread and no child by a call
/// that reached the dispatcher, and its slot in the shared tables names no descriptor, directory or
/// mapping.
#[inline]
pub fn is_pending() -> bool {
    STATE.load(Acquire) == PENDING
}

/// Whether the image has lost pages, or this process lost its place. Then no data of it is
/// reliable.
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
pub fn fail(loss: Loss) {
    HAS_MEMORY_ERROR.store(loss == Loss::MemoryError, Relaxed);
    STATE.store(FAILED, Relaxed);
}

/// Records that memory of the image has errors. `is_lost`: content of a file is lost. The first
/// time, this is reported.
pub fn expect_memory_errors(is_lost: bool) {
    static HAS_REPORTED: AtomicBool = AtomicBool::new(false);
    pmem::expect_memory_errors();
    if is_lost && !HAS_REPORTED.swap(true, Relaxed) {
        sys::print(&[b"the image ", pmem::CONTENT_LOST.as_bytes()]);
    }
}

/// Why the file system failed.
pub fn loss() -> Loss {
    if HAS_MEMORY_ERROR.load(Relaxed) { Loss::MemoryError } else { Loss::Gone }
}

impl Server {
    /// The mount directory, in normal form.
    pub fn mount(&self) -> &[u8] {
        self.mount
    }

    /// Reports the remedy, once in a process, for what only the kernel can do with files of a
    /// mount. `what` comes before the path of the mount.
    #[cold]
    pub fn advise_to_mount(&self, what: &[u8]) {
        static HAS_REPORTED: AtomicBool = AtomicBool::new(false);
        if !HAS_REPORTED.swap(true, Relaxed) {
            sys::print(&[what, b" ", self.mount, b" is not possible under `directfs run`: use `directfs mount`"]);
        }
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

impl Deref for Server {
    type Target = Attached;

    #[inline(always)]
    fn deref(&self) -> &Attached {
        // SAFETY: calls reach handlers that use it, and threads and children exist, only after the
        // process has attached (see `dispatch`); it does not change since.
        unsafe { (*self.attached.get()).assume_init_ref() }
    }
}

impl Attached {
    /// Where the two regions are mapped.
    pub fn regions(&self) -> [Range<usize>; 2] {
        let [image, region] = self.lengths;
        [self.image_base..self.image_base + image, self.region_base..self.region_base + region]
    }
}

/// Sets the mount directory: from now on the filter forwards calls.
///
/// # Safety
/// Called once, by the constructor.
pub unsafe fn prepare(mount: &'static [u8]) -> &'static Server {
    if !handoff::is_mount_directory(mount) {
        sys::refuse(&[b"the mount directory is not an absolute path in normal form: ", mount]);
    }
    // SAFETY: nothing else runs yet (the caller's promise). The prefix ends with zeros.
    unsafe {
        (&raw mut (*(*SERVER.0.get()).as_mut_ptr()).mount).write(mount);
        (&mut *DIRECTFS_PREFIX.0.get())[..mount.len() - 1].copy_from_slice(&mount[1..]);
        STATE.store(PENDING, Relaxed);
        (*SERVER.0.get()).assume_init_ref()
    }
}

/// Attaches the image that the launcher handed over. An error is a reason.
///
/// `hint`: where the regions are to be mapped, the second one far below the first; zero: anywhere.
/// `slot`: the index of the process's slot, if it has one already.
///
/// # Safety
/// Called once, after [`prepare`], while no other thread serves calls.
pub unsafe fn attach(handoff: &HandoffRecord, hint: usize, slot: Option<u32>) -> Result<(), &'static [u8]> {
    let protection = |read_only| if read_only { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    let place = match hint {
        0 => Place::Below(sys::below_libraries()),
        hint => Place::Near(hint - (hint >> 3)),
    };
    let region_bytes = handoff.region_bytes;
    let region = map(place, handoff.region, (region_bytes, 0), protection(false), &REGION_REASONS)?;
    let region_base = region as usize;
    // SAFETY: completely mapped for the life of the process, and only regions access it.
    let region = unsafe { Region::new(region, region_bytes, Direct) };
    let place = if hint == 0 { Place::Below(region_base) } else { Place::Near(hint) };
    let size = engine::image_size(&region).map_err(|_| OTHER_VERSION)?;
    let MappedImage { image, bytes, reach, area_at, mapped } =
        map_image(place, handoff, size, protection(handoff.image_read_only))?;
    let status = sys::status(handoff.image_file()).map_err(|_| IMAGE_REASONS[0])?;
    if handoff.memory_errors {
        pmem::expect_memory_errors();
    }
    let options = AttachOptions {
        read_only: handoff.read_only,
        cached_files_max: handoff.cached_files_max,
        image: ImageIdentity { device: status.st_dev, inode: status.st_ino, boot: 0 },
        ..AttachOptions::default()
    };
    // SAFETY: mapped as far as that for the life of the process, and only regions access it; a
    // read-only mapping is attached read-only, so nothing is stored.
    let attached = unsafe {
        let pm = Region::new(image, bytes, Direct).reaching(reach);
        let tracking = area_at.and_then(|at| NonNull::new(image.wrapping_add(at as usize)));
        let pm = match tracking.map(|area| Tracking::new(area, size.capacity_bytes, &tables::host::SLEEPING)) {
            Some(tracking) => Commits::new(ImageFile::new(handoff.journal), tracking).tracked(pm),
            None if handoff.flushes => pm,
            None => pm.without_flushes(),
        };
        Fs::attach_shared(pm, region, &PLATFORM, Liveness::supervised(handoff.meeting), &options)
    };
    let Ok(fs) = attached else {
        return Err(OTHER_VERSION);
    };
    if take_up_number(&fs, slot).is_err() {
        return Err(b"the kernel refused this process's liveness lock, so it cannot join the file system");
    }
    if !fs.limit_growth().unwrap_or(false) {
        return Err(b"the file system grew while this program started; start it again");
    }
    let root = match fs.enter().and_then(|thread| thread.root()) {
        Ok(root) => root,
        Err(engine::Error::TooManyThreads) => {
            return Err(b"too many threads use the file system; end some of them");
        }
        Err(_) => return Err(b"the file system is damaged; check it with `directfs fsck`"),
    };
    let device = device(&fs);
    let image_base = image as usize;
    let lengths = [mapped as usize, region_bytes as usize];
    let attached = Attached { fs, root, device, image_base, region_base, lengths };
    // SAFETY: no other thread serves calls, and nothing has read it yet (the caller's promise).
    unsafe { (*(*SERVER.0.get()).assume_init_ref().attached.get()).write(attached) };
    HAS_ATTACHED.store(true, Relaxed);
    Ok(())
}

/// For the constructor, before it enters: continues with the process number of the process's
/// existing slot. It gives up a number that it shared with others. A new process takes a number,
/// with its own description in place of the one that it inherited.
fn take_up_number(fs: &Fs<Direct>, slot: Option<u32>) -> posix::Result<()> {
    let processes = Processes::new(fs)?;
    let Some((index, (number, shared))) = slot.and_then(|index| Some((index, processes.number_of(index)?))) else {
        if !renew_number(fs)? {
            fs.processes().share_process_number();
        }
        return Ok(());
    };
    if shared && renew_number(fs)? {
        processes.change_number(index, number)?;
    } else {
        fs.processes().set_process_number(number, shared);
    }
    Ok(())
}

/// Takes an own number, if the limit on descriptors lets the process hold its lock at the usual
/// descriptor. Elsewhere the lock would take a number of the program's.
fn renew_number(fs: &Fs<Direct>) -> posix::Result<bool> {
    let usual = fs.processes().liveness_description();
    if usual.is_some_and(|usual| !tables::host::is_within_hard_limit(usual)) {
        return Ok(false);
    }
    Ok(fs.processes().renew_process_number()?)
}

/// The process has attached and has its slot: from now on every thread serves calls. A failure
/// meanwhile stays.
pub fn serve() {
    let _ = STATE.compare_exchange(PENDING, SERVING, Release, Relaxed);
}

/// A device number that no kernel file system has: those in memory count from one; this one is far
/// above, derived from the image's UUID.
fn device(fs: &Fs<Direct>) -> u64 {
    const MINOR_MIN: u64 = 0x8_0000;
    let mixed = fs.pm().first::<Superblock>().map_or(0, |found| found.uuid[0].load() ^ found.uuid[1].load());
    let minor = MINOR_MIN | (mixed ^ mixed >> 20 ^ mixed >> 40) & 0x7_ffff;
    libc::makedev(0, minor as u32)
}

const OTHER_VERSION: &[u8] =
    b"cannot attach to the file system: it was closed, or another version of directfs opened it";

/// Why a region is not mapped: its descriptor is not there, or there is no room.
type Reasons = [&'static [u8]; 2];
const IMAGE_REASONS: Reasons = [
    b"this program did not inherit the descriptor of the image",
    b"cannot map the image: not enough address space; raise the limit (ulimit -v)",
];
const REGION_REASONS: Reasons = [
    b"this program did not inherit the descriptor of the shared memory",
    b"cannot map the shared memory: not enough address space; raise the limit (ulimit -v)",
];

/// What holds the image, as this process maps it.
struct MappedImage {
    image: *mut u8,
    /// Bytes of the image.
    bytes: u64,
    /// Bytes that it can get here.
    reach: u64,
    /// Where the tracking area of a working copy is, from the image on.
    area_at: Option<u64>,
    /// Bytes of addresses in all.
    mapped: u64,
}

/// Whether this process's limit of its address space (`ulimit -v`) permits to attach.
pub fn has_room(handoff: &HandoffRecord) -> bool {
    /// Each region begins at a multiple of a huge page's size, between guard pages.
    const ALIGNED_BYTES: u64 = 4 << 20;
    let area_bytes = if handoff.journal != 0 { area_bytes(handoff.image_bytes) } else { 0 };
    !has_address_limit() || sys::has_addresses(handoff.region_bytes + handoff.image_bytes + area_bytes + ALIGNED_BYTES)
}

fn has_address_limit() -> bool {
    sys::limit(libc::RLIMIT_AS as _).is_none_or(|[limit, _]| limit != libc::RLIM_INFINITY)
}

/// Maps what holds the image, with addresses behind it if there are any. They are left to a program
/// with a limit. `size`: of the header of the DRAM region, since the image may have grown.
fn map_image(
    place: Place,
    handoff: &HandoffRecord,
    ImageSize { bytes, capacity_bytes }: ImageSize,
    protection: i32,
) -> Result<MappedImage, &'static [u8]> {
    let has_copy = handoff.journal != 0;
    let area_bytes = if has_copy { area_bytes(capacity_bytes) } else { 0 };
    if capacity_bytes > bytes && !has_address_limit() || has_copy && capacity_bytes == bytes {
        let mapped = capacity_bytes + area_bytes;
        // The file of a working copy is as long.
        let present = if has_copy { mapped } else { bytes };
        match map(place, handoff.image, (present, mapped), protection, &IMAGE_REASONS) {
            Ok(image) => {
                let area_at = has_copy.then_some(capacity_bytes);
                return Ok(MappedImage { image, bytes, reach: capacity_bytes, area_at, mapped });
            }
            Err(reason) if capacity_bytes == bytes => return Err(reason),
            Err(_) => {}
        }
    }
    let mapped = bytes + area_bytes;
    let image = map(place, handoff.image, (bytes, mapped), protection, &IMAGE_REASONS)?;
    if has_copy {
        let area = (handoff.image, tracking_at(capacity_bytes));
        // SAFETY: a part of the new mapping.
        let over = unsafe { sys::map_over(image.wrapping_add(bytes as usize), area_bytes as usize, protection, area) };
        over.map_err(|_| IMAGE_REASONS[1])?;
    }
    Ok(MappedImage { image, bytes, reach: bytes, area_at: has_copy.then_some(bytes), mapped })
}

/// Maps a region of that many bytes, and addresses for more; returns its address.
fn map(
    place: Place,
    fd: i32,
    (bytes, reach): (u64, u64),
    protection: i32,
    reasons: &Reasons,
) -> Result<*mut u8, &'static [u8]> {
    let status = sys::status(fd).map_err(|_| reasons[0])?;
    let mapped = bytes.max(reach) as usize;
    let address = match status.st_mode & libc::S_IFMT {
        libc::S_IFCHR => sys::map_huge(place, mapped, protection, fd),
        // A block device has no size here.
        libc::S_IFREG if (status.st_size as u64) < bytes => return Err(reasons[0]),
        _ => sys::map_guarded(place, mapped, protection, fd),
    };
    let address = address.map_err(|_| reasons[1])?;
    sys::leave_out_of_core_dumps(address, mapped);
    Ok(address)
}
