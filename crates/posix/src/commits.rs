//! Commits of an image that lies on a disk: what its syncs ([`crate::Storage`]) wait for.
//!
//! ```text
//!  working copy (a file in memory, mapped by all processes)   image's file, on the disk
//!  +----------------------+---------------------------+       +---------+--------------------+
//!  | image: latest state  | tracking area: marks, the | ----> | image   | journal (`journal`)|
//!  |                      | flag, state of the journal|       |         |                    |
//!  +----------------------+---------------------------+       +---------+--------------------+
//! ```
//!
//! A *service* commits at intervals and does the work that no call should wait for: see
//! `image::service`. Under `directfs run` it is a process of its own, the *committer*, and calls
//! let it commit (`requests`). Elsewhere any thread of any process commits: the one that needs it.
//! The thread that commits holds the lock of commits ([`engine::CommitGuard`]), and one commit
//! serves all threads that wait for it.
//!
//! The journal follows the image in its file, so it moves when the image grows. The image has the
//! new size once its description on the disk says so. Until the working copy has adopted that, a
//! word of the tracking area says that the image *grows*.
//!
//! Invariants
//! - A thread that takes the lock of commits here, and finds that the image grows, completes or
//!   forgets that first ([`Commits::lock`]). So no commit goes to a place where recovery does not
//!   look for it.
//! - A call that needs a commit is served only by one that began after the call.
//! - The state of the journal is stored in two copies with a word that selects one. So a process
//!   that dies while it stores leaves the old state.
//!
//! The commit itself is `journal::Journal::commit`. All steps: docs/architecture.md, "The life of a
//! commit". Decision: docs/decisions/images.md, "Committed states on a disk".

mod pin;
mod requests;
mod stopped;

#[cfg(feature = "std")]
pub use requests::ServiceKind;

use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use engine::format::Superblock;
use engine::{CommitGuard, DESCRIPTION_BYTES, ImageIdentity, Platform, Thread};
use journal::{CHUNK_BYTES_MAX, Disk, DiskError, Journal, JournalError, State, StateStore};
use pmem::{BLOCK_BYTES, Memory, ReadAt, Region, Residency, Tracking, TrackingHeader, WAIT_CLASSES};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, StatxFlags, fstat, statx};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;
use tables::host::PLATFORM;
use tables::{Errno, Result, child_numbers};

/// What the processes of an image share of its commits: [`TrackingHeader::words`].
#[repr(C)]
struct SharedState {
    /// Which state of the journal counts. 2: the second one; otherwise the first.
    selector: AtomicU64,
    journal_states: [[AtomicU64; State::WORDS]; 2],
    /// Bytes of the log.
    log_bytes: AtomicU64,
    /// Commits started so far.
    started: AtomicU64,
    /// Number of the last one that is on the disk.
    finished: AtomicU64,
    /// Number of the last one that failed.
    failed: AtomicU64,
    /// The error of that one.
    error: AtomicU64,
    /// When the last commit on the disk began: ns since 1970.
    committed_ns: AtomicU64,
    /// Process number of the service, and its kind: [`COMMITTER`], [`STARTER`] or neither; zero:
    /// none.
    service: AtomicU64,
    /// [`READY`] once the working copy holds the whole image.
    readiness: AtomicU64,
    /// The image file: device, inode, boot.
    identity: [AtomicU64; 3],
    /// The image's UUID.
    uuid: [AtomicU64; 2],
    /// 1: commits are held back, and are made only by [`Commits::commit_held`] or after
    /// [`Commits::set_held`].
    held: AtomicU64,
    /// A snapshot that keeps checkpoints away: its process number, and a random half; zero: none.
    pinned: AtomicU64,
    /// Residency mode. Zero: the working copy holds every page. Otherwise a set of [`PARTLY`] and
    /// [`KEEPS_READS`].
    resident: AtomicU64,
    /// Bytes of the image, behind which its journal is: see [`Commits::image_bytes`].
    image_bytes: AtomicU64,
}
const WORDS: usize = 32;
const _: () = assert!(size_of::<SharedState>() == size_of::<[AtomicU64; WORDS]>());

/// More of it: [`TrackingHeader::more_words`].
#[repr(C)]
struct MoreState {
    /// The size that the image gets; zero: it does not grow.
    grown_bytes: AtomicU64,
    /// When the snapshot last made progress, ns of the monotonic clock.
    pin_beat_ns: AtomicU64,
    /// The last committer: its process number (low half) and its process id.
    committer: AtomicU64,
    /// The PID namespace of that id: an inode number; zero: unknown.
    committer_namespace: AtomicU64,
}
const _: () = assert!(size_of::<MoreState>() == size_of::<[AtomicU64; 4]>());

/// The service is a committer.
const COMMITTER: u64 = 1 << 32;
/// The service starts a committer on request.
const STARTER: u64 = 1 << 33;
/// Pages whose bits are set are in the working copy; the image's file has the others.
const PARTLY: u64 = 1;
/// Pages that are read become resident.
const KEEPS_READS: u64 = 2;

/// `DFSWORK2` as a little-endian word.
const READY: u64 = u64::from_le_bytes(*b"DFSWORK2");
/// `DFSWORK1`: a working copy without bits of its pages, which is whole.
const READY_WHOLE: u64 = u64::from_le_bytes(*b"DFSWORK1");
/// A number of bytes that no log has: a state that says more is not trusted.
const LOG_BYTES_MAX: u64 = 1 << 48;
/// A request to the service, in the word that it sleeps on: commit.
pub const WANTS_COMMIT: u32 = 1;
/// A request to the service, in the word that it sleeps on: a checkpoint, which writes what is
/// committed to its place.
pub const WANTS_CHECKPOINT: u32 = 2;

/// The file of an image, with its journal, by a descriptor that stays open.
#[derive(Debug, Clone, Copy)]
pub struct ImageFile {
    fd: i32,
}

impl ImageFile {
    /// The file behind a descriptor. It stays open for as long as the value is used.
    pub const fn new(fd: i32) -> ImageFile {
        ImageFile { fd }
    }

    /// Returns when its pages are on the disk, with those that were changed through mappings.
    pub(crate) fn sync(&self) -> Result<()> {
        self.flush().map_err(|DiskError(errno)| Errno(errno))
    }

    /// Asked without times: a file whose times were read gets a new one with its next write, and a
    /// file system without a journal, as ext4 may be, writes that with each flush.
    fn mode_and_size(&self) -> rustix::io::Result<(u32, u64)> {
        match statx(self.fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::SIZE) {
            Ok(status) => Ok((status.stx_mode.into(), status.stx_size)),
            // A filter of system calls may permit only the older one.
            Err(_) => fstat(self.fd()).map(|status| (status.st_mode, status.st_size as u64)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the creator keeps it open.
        unsafe { BorrowedFd::borrow_raw(child_numbers::own(self.fd)) }
    }
}

fn disk_error(errno: rustix::io::Errno) -> DiskError {
    DiskError(disk_errno(errno))
}

/// The errno of a failed access to an image's file. One that a process serves by FUSE has others
/// when that process has ended; programs know EIO.
fn disk_errno(errno: rustix::io::Errno) -> i32 {
    match errno {
        rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => libc::EIO,
        errno => errno.raw_os_error(),
    }
}

impl Disk for ImageFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> core::result::Result<usize, DiskError> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(self.fd(), &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(disk_error(errno)),
            }
        }
        Ok(done)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> core::result::Result<(), DiskError> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(self.fd(), &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(DiskError(libc::EIO)),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(disk_error(errno)),
            }
        }
        Ok(())
    }

    fn flush(&self) -> core::result::Result<(), DiskError> {
        rustix::fs::fdatasync(self.fd()).map_err(disk_error)
    }

    fn shorten(&self, length: u64) {
        let _ = rustix::fs::ftruncate(self.fd(), length);
    }
}

/// Reads bytes of an image's file that its working copy does not have: see [`pmem::ReadAt`].
fn read_at(fd: i32, offset: u64, into: NonNull<u8>, length: usize) -> core::result::Result<usize, i32> {
    // SAFETY: the caller owns that memory, or, in a working copy, no thread reads it through the
    // region before the bytes are there. The kernel writes it, and checks that it can.
    let into = unsafe { core::slice::from_raw_parts_mut(into.as_ptr(), length) };
    loop {
        match rustix::io::pread(ImageFile::new(fd).fd(), &mut *into, offset) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(disk_errno),
        }
    }
}

/// The errno of a failed commit.
pub fn errno_of(error: JournalError) -> Errno {
    match error {
        JournalError::Disk(DiskError(errno)) => Errno(errno),
        JournalError::Starved => Errno::EAGAIN,
        _ => Errno::EIO,
    }
}

/// Memory for chunks, for one commit or checkpoint. Pages that are not used cost nothing.
pub struct ChunkBuffer(NonNull<u8>);

/// A buffer of this process that was used and is free, so that a small commit touches no new pages.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// After a longer commit the memory goes back to the system.
const SPARE_BYTES_MAX: u64 = 64 << 10;

impl ChunkBuffer {
    /// A spare buffer, or memory from the system: no heap is used. ENOMEM if there is none.
    pub fn new() -> Result<ChunkBuffer> {
        if let Some(spare) = NonNull::new(SPARE.swap(core::ptr::null_mut(), AcqRel)) {
            return Ok(ChunkBuffer(spare));
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                CHUNK_BYTES_MAX,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = NonNull::new(address.map_err(|_| Errno::ENOMEM)?.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        // SAFETY: the new mapping. A kernel that does not know the advice dumps it.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), CHUNK_BYTES_MAX, Advice::LinuxDontDump) };
        Ok(ChunkBuffer(start))
    }

    /// Keeps the buffer for the next commit if little of it was used and there is no other one.
    pub fn keep(self, used_bytes: u64) {
        if used_bytes <= SPARE_BYTES_MAX
            && SPARE.compare_exchange(core::ptr::null_mut(), self.0.as_ptr(), AcqRel, Relaxed).is_ok()
        {
            core::mem::forget(self);
        }
    }

    /// The whole buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the whole mapping, which only this value uses.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), CHUNK_BYTES_MAX) }
    }
}

impl Drop for ChunkBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer used.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), CHUNK_BYTES_MAX) };
    }
}

/// What is on the disk, and what is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitStatus {
    /// Bytes of lines that changed since the last commit.
    pub changed_bytes: u64,
    /// Bytes of the journal's log in use.
    pub used_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Commits that are on the disk, since the image was opened.
    pub commits: u64,
    /// When the last of them began, ns since 1970; zero: none yet.
    pub committed_ns: u64,
    /// The error of the last commit, if it failed.
    pub error: Option<Errno>,
    /// How long threads waited while a commit made its cut.
    pub waits: CutWaits,
}

/// Waits of threads at cuts, by their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutWaits {
    /// Element n: waits of less than 2^n ns that no lower element counts; the last one: all longer
    /// ones.
    pub counts: [u64; WAIT_CLASSES],
}

impl CutWaits {
    /// Their number.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A time in ns below which so many of a thousand waits were; zero without waits.
    pub fn below_ns(&self, of_thousand: u64) -> u64 {
        let needed = (self.total() * of_thousand).div_ceil(1000);
        let mut found = 0;
        let class = self.counts.iter().position(|count| {
            found += count;
            found >= needed
        });
        if needed == 0 { 0 } else { 1 << class.unwrap_or(WAIT_CLASSES) }
    }
}

/// The commits of an image, as one process makes them.
#[derive(Debug, Clone, Copy)]
pub struct Commits {
    file: ImageFile,
    tracking: Tracking,
}

impl StateStore for Commits {
    fn load(&self) -> State {
        let shared = self.shared();
        let words = &shared.journal_states[usize::from(shared.selector.load(Acquire) == 2)];
        let state = State::from_words(&core::array::from_fn(|index| words[index].load(Relaxed)));
        State { used_bytes: state.used_bytes.min(LOG_BYTES_MAX), ..state }
    }

    fn store(&self, state: &State) {
        let shared = self.shared();
        let next = if shared.selector.load(Relaxed) == 1 { 2 } else { 1 };
        for (word, value) in shared.journal_states[next - 1].iter().zip(state.words()) {
            word.store(value, Relaxed);
        }
        shared.selector.store(next as u64, Release);
    }
}

impl Commits {
    /// The commits of an image whose journal another process has opened.
    pub const fn new(file: ImageFile, tracking: Tracking) -> Commits {
        Commits { file, tracking }
    }

    /// Where changes are marked.
    #[cfg(feature = "std")]
    pub fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    fn header(&self) -> &TrackingHeader {
        self.tracking.header()
    }

    fn shared(&self) -> &SharedState {
        // SAFETY: as many atomics, in the order of `repr(C)`.
        unsafe { &*(&raw const self.header().words).cast() }
    }

    fn more(&self) -> &MoreState {
        // SAFETY: as above.
        unsafe { &*(&raw const self.header().more_words).cast() }
    }

    /// Records an opened journal, and the image that the working copy belongs to.
    pub fn begin(&self, journal: &Journal<ImageFile>, state: &State, uuid: [u8; 16], image: &ImageIdentity) {
        self.set_journal(journal, state);
        self.set_image(&uuid, image);
    }

    fn set_image(&self, uuid: &[u8; 16], image: &ImageIdentity) {
        let shared = self.shared();
        for (word, value) in shared.identity.iter().zip([image.device, image.inode, image.boot]) {
            word.store(value, Relaxed);
        }
        for (word, half) in shared.uuid.iter().zip(uuid.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*half), Relaxed);
        }
    }

    /// [`Commits::begin`] of a working copy that is never committed: its image's file stays as it
    /// is, and its journal is not opened.
    #[cfg(feature = "std")]
    pub fn begin_held(&self, uuid: &[u8; 16], image_bytes: u64, image: &ImageIdentity) {
        self.set_held(true);
        self.set_image(uuid, image);
        self.shared().image_bytes.store(image_bytes, Release);
    }

    fn set_journal(&self, journal: &Journal<ImageFile>, state: &State) {
        let shared = self.shared();
        self.store(state);
        shared.log_bytes.store(journal.log_bytes(), Relaxed);
        shared.image_bytes.store(journal.image_bytes(), Release);
    }

    /// Bytes of the image, behind which its journal is in the file.
    pub fn image_bytes(&self) -> u64 {
        match self.shared().image_bytes.load(Acquire) {
            // An earlier version left the working copy: it has no room for more.
            0 => self.tracking.region_bytes(),
            bytes => bytes.min(self.tracking.region_bytes()),
        }
    }

    /// Declares the working copy whole: from now on it counts, and not the image on the disk.
    pub fn set_ready(&self) {
        self.shared().readiness.store(READY, Release);
    }

    /// Declares that the disk holds all of the working copy, which is not used any more.
    #[cfg(feature = "std")]
    pub fn set_saved(&self) {
        self.shared().readiness.store(0, Release);
    }

    /// Whether the file of a working copy, which is not in use, may hold what is on no disk. One of
    /// unknown length may.
    #[cfg(feature = "std")]
    pub fn is_unsaved(file: &std::fs::File) -> bool {
        words_in(file).is_none_or(|words| [READY, READY_WHOLE].contains(&words[offset_of!(SharedState, readiness) / 8]))
    }

    /// Whether the file of a working copy, which is not in use, names an image file.
    #[cfg(feature = "std")]
    pub fn is_made_for(file: &std::fs::File, image: &ImageIdentity) -> bool {
        let at = offset_of!(SharedState, identity) / 8;
        words_in(file).is_some_and(|words| words[at..at + 2] == [image.device, image.inode])
    }

    /// Whether the working copy is whole and belongs to an image file.
    pub fn is_ready_for(&self, image: &ImageIdentity) -> bool {
        let shared = self.shared();
        let [device, inode, boot] = shared.identity.each_ref().map(|word| word.load(Relaxed));
        [READY, READY_WHOLE].contains(&shared.readiness.load(Acquire))
            && ImageIdentity { device, inode, boot } == *image
    }

    /// The region of the working copy, whose flushed lines are marked for commits. Its lines need
    /// no flushes: they are in memory.
    pub fn tracked<M: Memory>(&self, region: Region<M>) -> Region<M> {
        let tracked = region.without_flushes().tracked(self.tracking);
        match tracked.and_then(|region| self.with_residency(region)) {
            Ok(region) => region,
            Err(_) => unreachable!("the tracking area is that of the region's capacity"),
        }
    }

    /// The region, with the pages that it has if these are not all.
    pub fn with_residency<M: Memory>(&self, region: Region<M>) -> core::result::Result<Region<M>, pmem::BadOffset> {
        match self.residency() {
            Some(residency) => region.partly_resident(residency),
            None => Ok(region),
        }
    }

    /// Which pages the working copy has, if not all.
    pub fn residency(&self) -> Option<Residency> {
        let state = self.shared().resident.load(Relaxed);
        let (area, bytes) = self.tracking.memory();
        let bits = NonNull::new(area.wrapping_add(bytes)).filter(|_| state & PARTLY != 0)?;
        let file = (self.file.fd, read_at as ReadAt);
        // SAFETY: the bits follow the tracking area in the working copy's file, which is mapped as
        // long as that is. `read_at` is `pread`.
        Some(unsafe { Residency::new(bits, self.tracking.region_bytes(), file, state & KEEPS_READS != 0) })
    }

    /// Declares that the working copy has only the pages whose bits are set, and whether it gets
    /// those that are read; or that it has all pages.
    #[cfg(feature = "std")]
    pub fn set_partly_resident(&self, keeps_reads: Option<bool>) {
        let state = match keeps_reads {
            None => 0,
            Some(false) => PARTLY,
            Some(true) => PARTLY | KEEPS_READS,
        };
        self.shared().resident.store(state, Relaxed);
    }

    /// The image's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        for (half, word) in uuid.as_chunks_mut::<8>().0.iter_mut().zip(&self.shared().uuid) {
            *half = word.load(Relaxed).to_le_bytes();
        }
        uuid
    }

    fn journal(&self) -> Journal<ImageFile> {
        let (shared, uuid) = (self.shared(), self.uuid());
        let log_bytes = shared.log_bytes.load(Relaxed).min(LOG_BYTES_MAX);
        Journal::opened(self.file, uuid, self.image_bytes(), log_bytes)
    }

    /// Holds commits back: a sync returns at once. Or no longer.
    #[cfg(feature = "std")]
    pub fn set_held(&self, held: bool) {
        self.shared().held.store(held.into(), Release);
    }

    /// Whether commits are held back.
    pub fn is_held(&self) -> bool {
        self.shared().held.load(Acquire) != 0
    }

    /// A commit and checkpoint of what was held back.
    #[cfg(feature = "std")]
    pub fn commit_held<M: Memory>(&self, thread: &Thread<'_, M>) -> Result<()> {
        let _held = self.lock(thread)?;
        self.commit_now(thread.fs().pm())?;
        self.checkpoint_now()
    }

    /// Has a service begin to commit what was flushed before the call, and waits for nothing.
    pub fn start(&self) {
        if !self.is_held() && self.tracking.has_marks() {
            self.ask_service(WANTS_COMMIT);
        }
    }

    /// Whether all that was flushed before the call is on the disk already, and no checkpoint that
    /// a sync must make is left to do. A commit counts itself before it takes marks, and as
    /// finished once what it took is there. So the marks are read first.
    fn is_settled(&self) -> bool {
        let (shared, is_unmarked) = (self.shared(), !self.tracking.has_marks());
        let started = shared.started.load(SeqCst);
        is_unmarked
            && shared.finished.load(Acquire) == started
            && self.load().used_bytes <= shared.log_bytes.load(Relaxed)
            && self.check_whole().is_ok()
    }

    /// Returns when all that was flushed before the call is on the disk. If commits are held back
    /// it does nothing.
    pub fn commit<M: Memory>(&self, thread: &Thread<'_, M>) -> Result<()> {
        if self.is_held() || self.is_settled() {
            return Ok(());
        }
        if self.has_service_of(COMMITTER | STARTER, thread) || self.is_file_size_limited() {
            return self.commit_by_service(thread);
        }
        self.commit_here(thread)
    }

    /// [`Commits::commit`] by this process in any case.
    pub fn commit_here<M: Memory>(&self, thread: &Thread<'_, M>) -> Result<()> {
        let shared = self.shared();
        let needed = shared.started.load(SeqCst) + 1;
        let _held = self.lock(thread)?;
        if shared.finished.load(Acquire) >= needed {
            return Ok(());
        }
        self.commit_now(thread.fs().pm())?;
        if self.is_log_half_full() {
            self.ask_service(WANTS_CHECKPOINT);
            if self.load().used_bytes > shared.log_bytes.load(Relaxed) && !self.is_pinned(thread) {
                return self.checkpoint_now();
            }
        }
        Ok(())
    }

    /// Commits; the caller excludes all others.
    pub fn commit_now<M: Memory>(&self, region: &Region<M>) -> Result<()> {
        let shared = self.shared();
        let number = shared.started.fetch_add(1, SeqCst) + 1;
        let began_ns = PLATFORM.now_ns();
        let committed = self.check_whole().and_then(|()| {
            let mut buffer = ChunkBuffer::new()?;
            let report = self.journal().commit(self, region, buffer.bytes()).map_err(errno_of)?;
            buffer.keep(report.bytes);
            Ok(report)
        });
        match committed {
            Ok(_) => {
                shared.committed_ns.store(began_ns as u64, Relaxed);
                shared.finished.store(number, Release);
            }
            Err(errno) => {
                shared.error.store(errno.0 as u64, Relaxed);
                shared.failed.store(number, Release);
            }
        }
        self.wake_waiters();
        committed.map(drop)
    }

    /// A file that lost its end holds no image any more: nothing is reported as safe in it. A block
    /// device has no size here; writes behind its end fail.
    fn check_whole(&self) -> Result<()> {
        let (mode, bytes) = self.file.mode_and_size().map_err(|errno| Errno(errno.raw_os_error()))?;
        let is_device = FileType::from_raw_mode(mode).is_block_device();
        if !is_device && bytes < self.image_bytes() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Writes the commits of the log to their places in the image.
    pub fn checkpoint<M: Memory>(&self, thread: &Thread<'_, M>) -> Result<()> {
        let _held = self.lock(thread)?;
        if self.is_pinned(thread) { Ok(()) } else { self.checkpoint_now() }
    }

    /// Like [`Commits::checkpoint`]; the caller excludes all others.
    pub fn checkpoint_now(&self) -> Result<()> {
        let mut buffer = ChunkBuffer::new()?;
        self.journal().checkpoint(self, buffer.bytes()).map_err(errno_of)
    }

    /// Whether a checkpoint is due.
    pub fn is_log_half_full(&self) -> bool {
        self.load().used_bytes > self.shared().log_bytes.load(Relaxed) / 2
    }

    /// Whether this process must not write all of the journal, however long a commit is.
    pub fn is_file_size_limited(&self) -> bool {
        let limit = rustix::process::getrlimit(Resource::Fsize).current;
        let log_bytes = self.shared().log_bytes.load(Relaxed).min(LOG_BYTES_MAX);
        limit.is_some_and(|limit| limit < 3 * self.image_bytes() + Journal::<ImageFile>::area_bytes(log_bytes))
    }

    /// What is on the disk.
    pub fn status(&self) -> CommitStatus {
        let shared = self.shared();
        let (finished, failed) = (shared.finished.load(Relaxed), shared.failed.load(Relaxed));
        CommitStatus {
            changed_bytes: self.tracking.marked_bytes(),
            used_bytes: self.load().used_bytes,
            log_bytes: shared.log_bytes.load(Relaxed),
            commits: finished,
            committed_ns: shared.committed_ns.load(Relaxed),
            error: (failed > finished).then(|| Errno(shared.error.load(Relaxed) as i32)),
            waits: CutWaits { counts: self.tracking.waits() },
        }
    }
}

/// The image grows: see `image::growth`.
impl Commits {
    /// Waits until no other thread commits or makes the image larger. A growth whose thread has
    /// died is completed or forgotten.
    pub fn lock<'f, M: Memory>(&self, thread: &Thread<'f, M>) -> Result<CommitGuard<'f>> {
        let held = thread.lock_commits()?;
        if self.is_growing() {
            self.settle_growth(thread, &held)?;
        }
        Ok(held)
    }

    /// The size that the image gets; zero: it does not grow now.
    pub fn grown_bytes(&self) -> u64 {
        self.more().grown_bytes.load(Acquire)
    }

    /// Whether it grows, or a thread has died that made it grow.
    pub fn is_growing(&self) -> bool {
        self.grown_bytes() != 0
    }

    /// Begins or ends a growth. The caller holds the lock, and the log is empty.
    pub fn set_growing(&self, bytes: u64) {
        self.more().grown_bytes.store(bytes, Release);
    }

    /// Completes a growth if the image on the disk has the new size, and forgets it otherwise.
    ///
    /// The description is written once more, and flushed: the thread that wrote it may have died
    /// before the flush, or that may have failed. Only then a commit may count in the new place.
    pub fn settle_growth<M: Memory>(&self, thread: &Thread<'_, M>, held: &CommitGuard<'_>) -> Result<()> {
        let failed = |error: DiskError| Errno(error.0);
        let bytes = self.grown_bytes();
        let mut description = [0; DESCRIPTION_BYTES];
        if self.file.read(0, &mut description).map_err(failed)? != DESCRIPTION_BYTES {
            return Err(Errno::EIO);
        }
        if length_in(&description) != bytes {
            self.forget_growth();
            return Ok(());
        }
        self.file.write(0, &description).map_err(failed)?;
        self.file.flush().map_err(failed)?;
        thread.adopt_size(held, bytes)?;
        let (journal, state) = Journal::open(self.file, self.uuid(), bytes).map_err(errno_of)?;
        self.set_journal(&journal, &state);
        self.set_growing(0);
        Ok(())
    }

    /// Forgets a growth: the image keeps its size, and its file loses what was to be more.
    pub fn forget_growth(&self) {
        let log_bytes = self.shared().log_bytes.load(Relaxed).min(LOG_BYTES_MAX);
        let image_bytes = self.image_bytes();
        self.file.shorten(image_bytes + Journal::<ImageFile>::area_bytes(log_bytes));
        self.set_growing(0);
    }
}

/// The bytes of an image in its description.
fn length_in(description: &[u8; DESCRIPTION_BYTES]) -> u64 {
    let at = offset_of!(Superblock, length);
    description[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Bytes of the file that holds a working copy, with its tracking area and the bits of the pages
/// that it has. `capacity_bytes`: what its image can get. Of a working copy that an earlier version
/// left, that is what its image has.
pub const fn working_bytes(capacity_bytes: u64) -> u64 {
    tracking_at(capacity_bytes) + area_bytes(capacity_bytes)
}

/// Bytes of what follows the image there.
pub const fn area_bytes(capacity_bytes: u64) -> u64 {
    Tracking::area_bytes(capacity_bytes) + Residency::area_bytes(capacity_bytes)
}

/// The capacity of the image in such a file, from the file's length: the most that fits in so many
/// bytes.
#[cfg(feature = "std")]
pub fn capacity_within(working_bytes_max: u64) -> u64 {
    /// More than a process can map.
    const BYTES_MAX: u64 = 1 << 47;
    let working_bytes_max = working_bytes_max.min(BYTES_MAX);
    let (mut fits, mut exceeds) = (0, working_bytes_max / BLOCK_BYTES + 1);
    while fits + 1 < exceeds {
        let middle = fits + (exceeds - fits) / 2;
        if working_bytes(middle * BLOCK_BYTES) <= working_bytes_max { fits = middle } else { exceeds = middle }
    }
    fits * BLOCK_BYTES
}

/// The commits' words in the file of a working copy; `None`: it has another length.
#[cfg(feature = "std")]
fn words_in(file: &std::fs::File) -> Option<[u64; WORDS]> {
    use std::os::unix::fs::FileExt;
    let length = file.metadata().ok()?.len();
    let capacity_bytes = capacity_within(length);
    if working_bytes(capacity_bytes) != length {
        return None;
    }
    let mut bytes = [0; WORDS * 8];
    file.read_exact_at(&mut bytes, tracking_at(capacity_bytes) + offset_of!(TrackingHeader, words) as u64).ok()?;
    let words = bytes.as_chunks::<8>().0;
    Some(core::array::from_fn(|index| u64::from_le_bytes(words[index])))
}

/// [`working_bytes`] of a working copy without such bits, which an earlier version left.
#[cfg(feature = "std")]
pub const fn working_bytes_before(image_bytes: u64) -> u64 {
    tracking_at(image_bytes) + Tracking::area_bytes(image_bytes)
}

/// Where the tracking area begins in that file.
pub const fn tracking_at(capacity_bytes: u64) -> u64 {
    capacity_bytes.next_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_working_copy_shows_its_capacity_and_whether_an_earlier_version_left_it() {
        for blocks in (1..40_000).step_by(7).chain([1 << 20, (1 << 28) + 1, 1 << 33]) {
            let capacity_bytes = blocks * BLOCK_BYTES;
            let length = working_bytes(capacity_bytes);
            assert_eq!(capacity_within(length), capacity_bytes);
            assert_eq!(capacity_within(length - 1), capacity_bytes - BLOCK_BYTES);
            assert!(working_bytes_before(capacity_bytes) < length);
        }
        assert!(capacity_within(u64::MAX) > 1 << 46);
        assert_eq!(capacity_within(0), 0);
    }
}
