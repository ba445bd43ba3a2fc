//! Images and views of them.

use crate::error::{Failure, Result, call};
use crate::handles::{self, directfs_image, image, lock, pointer, remove_image, tables};
use crate::pointers::{bytes, optional, path, store, text};
use directfs::{Closed, Credentials, Durability, FileSystem, Image};
use std::ffi::{c_char, c_int};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Refuse all changes by this process (EROFS).
pub const DIRECTFS_READ_ONLY: u32 = 1;
/// Keep other processes out; with DIRECTFS_READ_ONLY only those that write.
pub const DIRECTFS_EXCLUSIVE: u32 = 2;
/// Commit an image on a disk only at a sync.
pub const DIRECTFS_COMMIT_WHEN_SYNCED: u32 = 4;
/// Use an image on a disk in place. A power failure may destroy it: for scratch work.
pub const DIRECTFS_NO_COMMIT: u32 = 8;

/// How to open an image. Zero everywhere means the defaults.
#[repr(C)]
pub struct directfs_open_options {
    /// DIRECTFS_READ_ONLY and others, added up.
    pub flags: u32,
    /// How long to wait for a process that excludes this one, in ms; 0: 5 seconds.
    pub timeout_ms: u32,
    /// How often an image on a disk is committed without a sync, in ms; 0: 5 seconds.
    pub commit_interval_ms: u64,
    /// The most memory for the working copy of an image on a disk; 0: half of what is available.
    pub memory_bytes: u64,
    /// Files cached in memory at most; 0: as many as the image holds.
    pub cached_files: u64,
    /// Where the processes of the image share memory; NULL: /dev/shm.
    pub shared_memory_directory: *const c_char,
    /// Zero.
    pub reserved: [u64; 4],
}

/// Take blocks of the underlying file system only as the image fills.
pub const DIRECTFS_SPARSE: u32 = 1;
/// Overwrite what the file holds, also another image.
pub const DIRECTFS_OVERWRITE: u32 = 2;
/// The root directory gets the owner in `root_uid` and `root_gid`, not that of this process.
pub const DIRECTFS_ROOT_OWNER: u32 = 4;

/// A new image. Zero everywhere means the defaults, but for the size.
#[repr(C)]
pub struct directfs_create_options {
    /// Bytes; ignored for a /dev/dax* device, which has its own size.
    pub size_bytes: u64,
    /// Number of files that the image can hold; 0: one per 2 KiB.
    pub files: u64,
    /// At most 64 bytes of UTF-8; NULL: none.
    pub label: *const c_char,
    /// DIRECTFS_SPARSE and others, added up.
    pub flags: u32,
    /// Permission bits of the image file, which the umask reduces; 0: 0600.
    pub mode: u32,
    /// Permission bits of the root directory; 0: 0755.
    pub root_mode: u32,
    /// Owner of the root directory, with DIRECTFS_ROOT_OWNER.
    pub root_uid: u32,
    /// Its group.
    pub root_gid: u32,
    /// Zero.
    pub reserved_word: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What the effect of a returned call survives. See directfs(3).
#[repr(C)]
pub enum directfs_durability {
    /// The death of every process, and a power failure.
    DIRECTFS_POWER_FAILURE = 0,
    /// The death of every process.
    DIRECTFS_PROCESS_DEATH = 1,
    /// The death of every process; a power failure if it was synced or is older than the interval.
    DIRECTFS_COMMITTED = 2,
    /// The death of every process. A power failure may destroy the image while it is open.
    DIRECTFS_CLEAN_CLOSE = 3,
    /// Nothing survives the process.
    DIRECTFS_NOTHING = 4,
}

/// State of an image after directfs_image_close.
#[repr(C)]
pub enum directfs_closed {
    /// No process uses it. It is clean, and on a disk written back.
    DIRECTFS_CLEAN = 0,
    /// Other processes still use it.
    DIRECTFS_OTHERS_REMAIN = 1,
    /// It was open for reading only.
    DIRECTFS_WAS_READ_ONLY = 2,
}

const UNKNOWN: Failure =
    Failure::Here(libc::EINVAL, "a flag or reserved field is unknown to this version: set unused fields to zero");

fn add(fs: FileSystem, image: Option<Image>, device: u64) -> Result<*mut directfs_image> {
    let handle = tables().images.insert(Arc::new(directfs_image { fs, image: Mutex::new(image), device }))?;
    Ok(pointer(handle))
}

fn add_image(image: Image) -> Result<*mut directfs_image> {
    static DEVICES: AtomicU32 = AtomicU32::new(1);
    // Major number 0 is that of file systems without a device.
    let device = libc::makedev(0, DEVICES.fetch_add(1, Relaxed) & 0xf_ffff);
    add(image.file_system(), Some(image), device)
}

unsafe fn open_options(options: *const directfs_open_options) -> Result<directfs::ImageOptions> {
    let mut open = Image::options();
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { optional(options) }) else { return Ok(open) };
    let known = DIRECTFS_READ_ONLY | DIRECTFS_EXCLUSIVE | DIRECTFS_COMMIT_WHEN_SYNCED | DIRECTFS_NO_COMMIT;
    if given.flags & !known != 0 || given.reserved != [0; 4] {
        return Err(UNKNOWN);
    }
    let has = |flag| given.flags & flag != 0;
    open = open.read_only(has(DIRECTFS_READ_ONLY)).exclusive(has(DIRECTFS_EXCLUSIVE)).cached_files(given.cached_files);
    if given.timeout_ms != 0 {
        open = open.timeout(Duration::from_millis(given.timeout_ms.into()));
    }
    if given.commit_interval_ms != 0 {
        open = open.commit_interval(Duration::from_millis(given.commit_interval_ms));
    }
    if has(DIRECTFS_COMMIT_WHEN_SYNCED) {
        open = open.commit_interval(Duration::ZERO);
    }
    if has(DIRECTFS_NO_COMMIT) {
        open = open.no_commit();
    }
    if given.memory_bytes != 0 {
        open = open.memory(given.memory_bytes);
    }
    if !given.shared_memory_directory.is_null() {
        // SAFETY: the caller's promise.
        open = open.shared_memory_directory(unsafe { path(given.shared_memory_directory) }?);
    }
    Ok(open)
}

/// Opens an image for this process, shared with others. `options` may be NULL. NULL if it fails:
/// EBUSY: a process uses the image exclusively; EUCLEAN: the file is no usable image; ENOSPC: too
/// little room in /dev/shm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_image_open(
    file: *const c_char,
    options: *const directfs_open_options,
) -> *mut directfs_image {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(null_mut(), || unsafe { add_image(open_options(options)?.open(path(file)?)?) })
}

/// Makes an image in a new or empty file, and opens it. NULL if it fails: EEXIST: the file is not
/// empty; EINVAL: the size is missing or too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_image_create(
    file: *const c_char,
    options: *const directfs_create_options,
) -> *mut directfs_image {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(null_mut(), || unsafe {
        let mut create = Image::create(path(file)?);
        if let Some(given) = optional(options) {
            let known = DIRECTFS_SPARSE | DIRECTFS_OVERWRITE | DIRECTFS_ROOT_OWNER;
            if given.flags & !known != 0 || given.reserved_word != 0 || given.reserved != [0; 4] {
                return Err(UNKNOWN);
            }
            let has = |flag| given.flags & flag != 0;
            create = create.size(given.size_bytes).files(given.files);
            create = create.sparse(has(DIRECTFS_SPARSE)).overwrite(has(DIRECTFS_OVERWRITE));
            if !given.label.is_null() {
                let label = text(given.label)?.to_str();
                create = create.label(label.ok_or(Failure::Here(libc::EINVAL, "the label is not UTF-8"))?);
            }
            if has(DIRECTFS_ROOT_OWNER) {
                create = create.root_owner(given.root_uid, given.root_gid);
            }
            if given.mode != 0 {
                create = create.mode(given.mode);
            }
            if given.root_mode != 0 {
                create = create.root_mode(given.root_mode);
            }
        }
        add_image(create.create()?)
    })
}

/// A new image in memory, for this process alone. It vanishes when it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_image_in_memory(size_bytes: u64) -> *mut directfs_image {
    call(null_mut(), || add_image(Image::in_memory(size_bytes)?))
}

/// Another handle of the same image, whose calls are made as another user: with a group,
/// `count` supplementary groups, and a umask. Other handles act as the process at their opening.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_image_as_user(
    image: *mut directfs_image,
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: *const libc::gid_t,
    count: usize,
    umask: libc::mode_t,
) -> *mut directfs_image {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(null_mut(), || unsafe {
        let held = handles::image(image)?;
        let length = count.checked_mul(size_of::<libc::gid_t>()).filter(|_| count <= 65_536);
        let length = length.ok_or(Failure::Here(libc::EINVAL, "more than 65536 groups"))?;
        let groups = bytes(groups.cast(), length)?.to_vec();
        let groups: Vec<u32> = groups.as_chunks().0.iter().map(|group| u32::from_ne_bytes(*group)).collect();
        let credentials = Credentials::new(uid, gid, &groups).umask(umask);
        add(held.fs.with_credentials(credentials), None, held.device)
    })
}

/// Another handle of the same image, whose paths begin at a directory and cannot leave it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_image_subtree(
    image: *mut directfs_image,
    directory: *const c_char,
) -> *mut directfs_image {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(null_mut(), || unsafe {
        let held = handles::image(image)?;
        add(held.fs.root_at(path(directory)?)?, None, held.device)
    })
}

/// Closes an image: waits for calls in progress, closes its files, and detaches. Returns a value of
/// `directfs_closed`. Later calls on its files and other handles fail with ENODEV; they are closed
/// one by one all the same. Of a handle from directfs_image_as_user or directfs_image_subtree it
/// only frees the handle, and returns 0. The handle is closed even if this fails: EIO: the image
/// was truncated, or its disk failed.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_image_close(image: *mut directfs_image) -> c_int {
    call(-1, || {
        let held = remove_image(image)?;
        let Some(image) = lock(&held.image).take() else { return Ok(0) };
        Ok(match image.close()? {
            Closed::Clean => directfs_closed::DIRECTFS_CLEAN,
            Closed::OthersRemain => directfs_closed::DIRECTFS_OTHERS_REMAIN,
            Closed::ReadOnly => directfs_closed::DIRECTFS_WAS_READ_ONLY,
        } as c_int)
    })
}

/// Runs `work` with an image, not a view.
fn of_image<T>(handle: *mut directfs_image, work: impl FnOnce(&Image) -> directfs::Result<T>) -> Result<T> {
    const VIEW: Failure = Failure::Here(libc::EINVAL, "a view of an image: pass the handle of the image itself");
    let held = image(handle)?;
    let image = lock(&held.image);
    Ok(work(image.as_ref().ok_or(VIEW)?)?)
}

/// Commits an image to its disk: every call that returned before survives a power failure. Costs
/// little elsewhere.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_image_sync(image: *mut directfs_image) -> c_int {
    call(-1, || of_image(image, Image::sync).map(|()| 0))
}

/// Copies an image to a new file while programs use it: the state of one moment during the call.
/// The first open of the copy recovers it, so it cannot be for reading only.
/// EEXIST: there is such a file; EOPNOTSUPP: the image is in memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_image_snapshot(image: *mut directfs_image, file: *const c_char) -> c_int {
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let file = path(file)?;
        of_image(image, |image| image.snapshot(file)).map(|()| 0)
    })
}

/// What the effect of a returned call survives: a value of `directfs_durability`.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_image_durability(image: *mut directfs_image) -> c_int {
    call(-1, || {
        of_image(image, |image| {
            Ok(match image.durability() {
                Durability::PowerFailure => directfs_durability::DIRECTFS_POWER_FAILURE,
                Durability::ProcessDeath => directfs_durability::DIRECTFS_PROCESS_DEATH,
                Durability::Committed => directfs_durability::DIRECTFS_COMMITTED,
                Durability::CleanClose => directfs_durability::DIRECTFS_CLEAN_CLOSE,
                _ => directfs_durability::DIRECTFS_NOTHING,
            } as c_int)
        })
    })
}

/// 1 if opening recovered the image, because its last use did not close it; otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_image_was_recovered(image: *mut directfs_image) -> c_int {
    call(-1, || of_image(image, |image| Ok(image.was_recovered().into())))
}

/// Total and free space, as statvfs(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn directfs_statvfs(image: *mut directfs_image, status: *mut libc::statvfs) -> c_int {
    const BLOCK_BYTES: u64 = 4096;
    // SAFETY: the caller keeps the contract that the crate's documentation states.
    call(-1, || unsafe {
        let held = handles::image(image)?;
        let space = held.fs.space()?;
        // SAFETY: integers, for which zero is a value.
        let mut found: libc::statvfs = std::mem::zeroed();
        found.f_bsize = BLOCK_BYTES;
        found.f_frsize = BLOCK_BYTES;
        found.f_blocks = space.total_bytes / BLOCK_BYTES;
        found.f_bfree = space.free_bytes / BLOCK_BYTES;
        found.f_bavail = space.available_bytes / BLOCK_BYTES;
        found.f_files = space.files;
        found.f_ffree = space.files_free;
        found.f_favail = space.files_free;
        found.f_fsid = held.device;
        found.f_namemax = 255;
        store(status, found)?;
        Ok(0)
    })
}

/// Makes this process survive the truncation of an image in use: calls then fail with EIO. It
/// replaces the action for SIGBUS of the whole process: programs call it once at their start,
/// libraries never.
#[unsafe(no_mangle)]
pub extern "C" fn directfs_survive_truncation() {
    call((), || {
        directfs::survive_truncation();
        Ok(())
    });
}
