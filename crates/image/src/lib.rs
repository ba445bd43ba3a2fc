//! Opening an image for shared use by the processes of this machine, and making new images.
//!
//! The first process builds the DRAM region in a directory of /dev/shm, where others find it
//! (`runtime`). The last one marks the image clean and removes that directory. No process serves
//! another: locks on the image (`locks`) show which processes use it, and end with their owners. A
//! region without a user is left over from a crash; the next attach builds a new one and recovers
//! the image.
//!
//! A region belongs to one image *file*: a copy of an image has the same UUID but another inode.
//! Each attach checks both directions: the superblock names the region's directory, and the region
//! names the device and inode of the image.
//!
//! The processes of an image on a disk work on a copy of it in memory, and commit it: see `working`
//! and [`posix::commits`].
//!
//! A process can also attach by descriptors that another one hands to it (`handoff`), as programs
//! do that know no path of the image.

mod attempt;
mod committer;
mod copying;
mod device;
mod error;
mod exclusive;
mod extents;
mod fill;
mod growth;
mod growth_on_disk;
mod handoff;
mod head;
mod journal_room;
mod left;
mod locks;
mod make;
mod permissions;
mod regions;
mod resize;
mod runtime;
mod served;
mod service;
mod snapshot;
mod trim;
mod uncommitted;
mod unfinished;
mod users;
mod working;
mod working_file;

pub use committer::{Committer, CommitterCommand, commit_for_others};
pub use copying::Watch;
pub use error::ImageError;
pub use exclusive::ExclusiveImage;
pub use extents::next_extent;
pub use growth::NO_ROOM;
pub use handoff::{HandedOff, Handoff, HandoffId};
pub use head::uuid_of;
pub use left::{KEPT_DAYS, LeftCopy, left_copies, remove_left_copy};
pub use make::{Made, MakeOptions, make, make_filled, make_watched, receive};
pub use resize::{Reserve, Resized, Tune, random_uuid, resize, tune};
pub use runtime::own_description;
pub use served::{SERVED_ATTRIBUTE, Served};
pub use snapshot::{NewIdentity, copy_state, open_copy, snapshot, snapshot_by, unnamed_copy};
pub use trim::{Trimmed, trim};
pub use unfinished::{remove_tree, remove_unfinished, unfinished_name};
pub use users::{Users, users};
pub use working::{Pending, image_length, map_described, map_newest, metadata_blocks};
pub use working_file::memory_available_bytes;

use attempt::Attempt;
use engine::format::{Superblock, SuperblockError};
use engine::{Fs, ImageIdentity, RecoveryReport};
use locks::{Byte, Lock, LockGuard, retry_until, try_set};
use pmem::{Access, Backing, Direct, Loss, MapError, Mapping, Memory, Persistence, Region, length_bytes};
use posix::commits::{CommitStatus, Commits, ImageFile};
use posix::{Scope, Storage};
use runtime::RuntimeDirectory;
use rustix::fd::{AsRawFd, OwnedFd};
use service::{CommitService, Service};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tables::host::PLATFORM;

/// When the changes of an image on a disk are committed to it. The first process that opens it
/// decides whether they are; images in memory and on DAX need no commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitPolicy {
    /// At each sync, and at this interval.
    Every(Duration),
    /// At each sync.
    WhenSynced,
    /// Never: the image is used in place, and a power failure may destroy it.
    Never,
}

impl Default for CommitPolicy {
    fn default() -> CommitPolicy {
        CommitPolicy::Every(Duration::from_secs(5))
    }
}

/// How to open an image.
#[derive(Debug, Clone)]
pub struct OpenImage {
    /// Refuse all changes by this process. Other processes may write the image meanwhile if they
    /// attached first.
    pub read_only: bool,
    /// Keep all other processes out; with `read_only`, only writers. The DRAM region is private
    /// memory then.
    pub exclusive: bool,
    /// With `read_only`: the image is to be handed off ([`Image::hand_off`]), so its DRAM region is
    /// not private memory. Without it every image that is not exclusive can be.
    pub hands_off: bool,
    /// Maximal number of cached files; 0: as many as the image has inodes.
    pub cached_files_max: u64,
    /// Number of recovery threads; 0: one per processor.
    pub recovery_threads: usize,
    /// Directory of the DRAM region's file.
    pub dram_directory: PathBuf,
    /// How long to wait for other processes to detach.
    pub timeout: Duration,
    /// Flush lines even where flushes add no safety, so that calls cost as much as on persistent
    /// memory.
    pub always_flush: bool,
    /// When changes of an image on a disk are committed to it.
    pub commits: CommitPolicy,
    /// Which process commits them.
    pub committer: Committer,
    /// The most memory that the working copy of an image on a disk may take, if this process makes
    /// it; none: half of what is available. A larger image has it in a hidden file beside it.
    pub memory_bytes_max: Option<u64>,
    /// An image on a disk whose content has at most so many bytes is copied to the working copy
    /// whole. Of a larger one that was left clean, data of files stay on the disk until they are
    /// used.
    pub whole_bytes_max: u64,
    /// Called while a working copy is made, with the bytes so far and those of the image.
    pub copied: fn(u64, u64),
}

impl Default for OpenImage {
    fn default() -> Self {
        OpenImage {
            read_only: false,
            exclusive: false,
            hands_off: false,
            cached_files_max: 0,
            recovery_threads: 0,
            dram_directory: PathBuf::from(RUNTIME_PARENT),
            timeout: Duration::from_secs(5),
            always_flush: false,
            commits: CommitPolicy::default(),
            committer: Committer::default(),
            memory_bytes_max: None,
            whole_bytes_max: WHOLE_BYTES_MAX,
            copied: |_, _| {},
        }
    }
}

/// The memory that an image is in, as its processes work on it.
#[derive(Clone)]
struct ImageMemory {
    mapping: Arc<Mapping>,
    /// Bytes of the image when it was mapped.
    image_bytes: u64,
    /// Bytes that it can get in this mapping; zero: it cannot grow.
    reach: u64,
    /// If the memory is the working copy of an image on a disk.
    commits: Option<Commits>,
}

impl ImageMemory {
    fn in_place(mapping: &Arc<Mapping>) -> ImageMemory {
        ImageMemory { mapping: Arc::clone(mapping), image_bytes: mapping.length(), reach: 0, commits: None }
    }

    /// A region that flushes, unless the storage behind its mapping needs no flushes.
    fn region<M: Memory>(&self, memory: M, always_flush: bool) -> Region<M> {
        // SAFETY: mapped as far as that. The owner of this region (`Image`, or an attempt) keeps
        // the mapping at least as long. A read-only mapping is attached read-only, so nothing is
        // stored.
        let region = unsafe { Region::new(self.mapping.address(), self.image_bytes, memory).reaching(self.reach) };
        match &self.commits {
            Some(commits) => commits.tracked(region),
            None if always_flush || self.mapping.backing().needs_flushes() => region,
            None => region.without_flushes(),
        }
    }
}

/// Where runtime directories are, unless the user chooses another directory.
pub const RUNTIME_PARENT: &str = "/dev/shm";
/// Times that an image may grow between the mapping of its file and a look at its description.
const GROWTHS_MAX: u32 = 8;
/// Copying so much takes some milliseconds.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// Stands for the path in messages about an image without one.
const MEMORY_NAME: &str = "the image in memory";

/// An image in use by this process. Dropping it detaches like [`Image::close`], but ignores errors.
pub struct Image<M: Memory = Direct> {
    /// Commits at intervals; ends before the rest.
    service: Option<CommitService>,
    committer: Committer,
    /// Gives back the memory of freed blocks; ends before the rest.
    trims: Option<Service>,
    /// Present until detach.
    fs: Option<Arc<Fs<M>>>,
    /// Mappings of the two regions. `fs` works on them, so they outlive it.
    memory: ImageMemory,
    dram: Arc<Mapping>,
    backing_of_dram: DramBacking,
    /// The image's file, with this process's locks.
    file: Arc<File>,
    /// What the file is on.
    backing: Backing,
    /// Keeps mounts and other exclusive users away from a block device.
    claim: Option<device::Claim>,
    path: PathBuf,
    report: Option<RecoveryReport>,
    /// The image was not left cleanly and is read only: this is a copy, in which it was recovered.
    is_recovered_copy: bool,
    /// Whether this process is one of those that write the image's file, or keep its state for
    /// them.
    is_writing: bool,
}

/// What holds the DRAM region.
enum DramBacking {
    /// A file that other processes find through the superblock.
    NamedFile(RuntimeDirectory),
    /// A file without a name, for processes that inherit its descriptor. They share the directory.
    Inheritable(RuntimeDirectory),
    /// Private memory of this process. The directory holds the working copy, if there is one.
    Private(Option<RuntimeDirectory>),
    /// Handed off by another process, which also closes the image. The description of the meeting
    /// directory belongs to this process.
    HandedOff(OwnedFd),
}

/// State of the image after a detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// This process was the last one: the image is clean.
    Last,
    /// Other processes still use it.
    OthersRemain,
    /// The image was not written.
    ReadOnly,
}

impl DramBacking {
    fn runtime(&self) -> Option<&RuntimeDirectory> {
        match self {
            DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) => Some(runtime),
            DramBacking::Private(runtime) => runtime.as_ref(),
            DramBacking::HandedOff(_) => None,
        }
    }
}

impl Image<Direct> {
    /// Opens an image.
    pub fn open(path: impl AsRef<Path>, options: &OpenImage) -> Result<Image, ImageError> {
        Image::open_with(path, options, || Direct)
    }

    /// Makes an image in memory, and opens it. It is freed with the last process that has it: this
    /// one, or one that received it by handoff.
    pub fn in_memory(make: &MakeOptions, options: &OpenImage) -> Result<Image, ImageError> {
        let path = Path::new(MEMORY_NAME);
        let file = make::make_in_memory(make)?;
        let locked = Arc::new(file.try_clone().map_err(|source| lock_error(path, source))?);
        let pm = Arc::new(Mapping::from_file(file, path, Access::ReadWrite)?);
        let attempt = Attempt { path, pm: &pm, file: &locked, options, memory: &|| Direct };
        attempt.set(Byte::Attached, Lock::Shared)?;
        attempt.set(Byte::Writing, Lock::Shared)?;
        let runtime = RuntimeDirectory::create_anywhere(&options.dram_directory);
        let runtime = runtime.map_err(|source| ImageError::no_shared(&options.dram_directory, source))?;
        let mut image = attempt.attach_first(DramBacking::Inheritable(runtime), ImageMemory::in_place(&pm))?;
        image.start_trims();
        Ok(image)
    }
}

impl<M: Memory + 'static> Image<M> {
    /// Opens an image over instrumented or slowed memory.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &OpenImage,
        memory: impl Fn() -> M,
    ) -> Result<Image<M>, ImageError> {
        let path = path.as_ref();
        Self::open_opened(path, open_file(path, options.read_only)?, options, &memory)
    }

    fn open_opened(
        path: &Path,
        (mut file, mut access): (File, Access),
        options: &OpenImage,
        memory: &dyn Fn() -> M,
    ) -> Result<Image<M>, ImageError> {
        let mut growths_left = GROWTHS_MAX;
        loop {
            let locked = Arc::new(file.try_clone().map_err(|source| lock_error(path, source))?);
            let again = file.try_clone().map_err(|source| lock_error(path, source))?;
            let pm = Arc::new(working::map_base(again, path, access)?);
            let attempt = Attempt { path, pm: &pm, file: &locked, options, memory };
            match Self::open_mapped(&attempt) {
                // A process began to write it after this one had opened it for reading only.
                Err(error @ ImageError::CannotShare { .. }) if access == Access::ReadOnly => {
                    (file, access) = (open_for(path, Access::ReadWrite).map_err(|_| error)?, Access::ReadWrite);
                }
                // It has grown since it was mapped.
                Err(ImageError::NotUsable { cause: SuperblockError::Truncated { expected, .. }, .. })
                    if growths_left > 0
                        && pm.length() < expected
                        && length_bytes(&file).is_ok_and(|bytes| bytes >= expected) =>
                {
                    growths_left -= 1;
                }
                opened => return opened,
            }
        }
    }

    fn open_mapped(attempt: &Attempt<'_, M>) -> Result<Image<M>, ImageError> {
        let (path, options) = (attempt.path, attempt.options);
        let mut last_error = None;
        let attached = retry_until(options.timeout, || {
            let result = if options.read_only { attempt.read_only() } else { attempt.writing() };
            match result {
                Ok(image) => Ok(Some(image)),
                // The process in the way may be about to detach.
                Err(error) if error.may_pass() => {
                    last_error = Some(error);
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        })?;
        let mut image = attached.ok_or_else(|| last_error.unwrap_or(ImageError::Changing { path: path.to_owned() }))?;
        if image.is_writing && image.report.is_some() {
            image.claim = device::Claim::take(&image.file, path, options.timeout)?;
        }
        image.committer = options.committer;
        image.start_commits(options.commits);
        image.start_trims();
        Ok(image)
    }

    /// Starts the service that commits at intervals, where there are commits.
    fn start_commits(&mut self, policy: CommitPolicy) {
        if let (Some(fs), Some(commits)) = (&self.fs, self.memory.commits)
            && !fs.is_read_only()
        {
            let (fs, file) = (Arc::clone(fs), Arc::clone(&self.file));
            self.service = CommitService::start(fs, file, commits, (policy, self.committer));
        }
    }

    /// Starts the service that gives back memory, where there is memory to give back.
    fn start_trims(&mut self) {
        if let Some(fs) = &self.fs
            && !fs.is_read_only()
        {
            self.trims = trim::start(Arc::clone(fs), &self.memory.mapping);
        }
    }

    /// Ends the services before the process forks: a thread does not go along.
    pub fn pause_services(&mut self) -> PausedServices {
        let had_trims = self.trims.take().is_some();
        PausedServices { commits: self.service.take().map(|service| service.stop()), had_trims }
    }

    /// Starts the services again, in this process or a child.
    pub fn resume_services(&mut self, paused: PausedServices) {
        if let Some(policy) = paused.commits {
            self.start_commits(policy);
        }
        if paused.had_trims {
            self.start_trims();
        }
    }
}

/// How the services were paused.
#[derive(Debug, Clone, Copy)]
pub struct PausedServices {
    commits: Option<CommitPolicy>,
    had_trims: bool,
}

impl<M: Memory> Image<M> {
    /// The file system.
    pub fn fs(&self) -> &Fs<M> {
        self.fs.as_ref().expect("present until close, which consumes the image")
    }

    /// The report of recovery, if this process attached first.
    pub fn report(&self) -> Option<&RecoveryReport> {
        self.report.as_ref()
    }

    /// Bytes of the image now.
    pub fn length(&self) -> u64 {
        self.fs().image_bytes()
    }

    /// All descriptors that this image has, for a child of a fork, which is to close them.
    pub fn descriptors(&self) -> Vec<i32> {
        let runtime = self.backing_of_dram.runtime().map(RuntimeDirectory::descriptors);
        let handed_off = match &self.backing_of_dram {
            DramBacking::HandedOff(meeting) => Some(meeting.as_raw_fd()),
            _ => None,
        };
        let mapped = [self.memory.mapping.file(), self.dram.file()].into_iter().flatten();
        let files = std::iter::once(&*self.file).chain(mapped).map(AsRawFd::as_raw_fd);
        let claim = self.claim.as_ref().map(AsRawFd::as_raw_fd);
        files.chain(claim).chain(handed_off).chain(runtime.into_iter().flatten()).collect()
    }

    /// The mapping that the file system works on: that of the image's file, or of the working copy.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.memory.mapping
    }

    /// The mapping of the memory that the processes of the image share.
    pub fn shared_memory(&self) -> &Arc<Mapping> {
        &self.dram
    }

    /// The kind of storage behind the image.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Which failures completed calls survive.
    pub fn persistence(&self) -> Persistence {
        match self.backing {
            backing if backing.is_disk() && self.memory.commits.is_none() => Persistence::CleanClose,
            backing => backing.persistence(),
        }
    }

    /// Where the image is made safe: see [`Storage::sync`].
    pub fn storage(&self) -> Storage {
        let mapping = &self.memory.mapping;
        match self.memory.commits {
            Some(commits) => Storage::Committed(commits),
            None if mapping.backing().is_disk() && mapping.access() == Access::ReadWrite => {
                Storage::InPlace(ImageFile::new(self.file.as_raw_fd()))
            }
            None => Storage::Memory,
        }
    }

    /// Whether the working copy lies on the disk, because it would not fit in memory.
    pub fn works_on_disk(&self) -> bool {
        self.memory.commits.is_some() && self.memory.mapping.backing().is_disk()
    }

    /// What is on the disk, if the image is committed to one.
    pub fn commit_status(&self) -> Option<CommitStatus> {
        self.memory.commits.map(|commits| commits.status())
    }

    /// Whether users other than root and this process's own can write the image's file: they
    /// decide what is in it.
    pub fn is_writable_by_others(&self) -> bool {
        let Ok(stat) = rustix::fs::fstat(&*self.file) else { return false };
        let is_trusted_owner = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
        !is_trusted_owner || stat.st_mode & 0o022 != 0
    }

    /// The image's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether other processes can attach as well.
    pub fn is_shared(&self) -> bool {
        matches!(self.backing_of_dram, DramBacking::NamedFile(_) | DramBacking::Inheritable(_))
    }

    /// Whether the image's file or the shared memory was truncated while in use.
    pub fn is_truncated(&self) -> bool {
        let is_short = |commits: Commits| length_bytes(&self.file).is_ok_and(|bytes| bytes < commits.image_bytes());
        self.memory.mapping.is_truncated() || self.dram.has_lost_pages() || self.memory.commits.is_some_and(is_short)
    }

    fn loss_error(&self, path: PathBuf) -> ImageError {
        match self.memory.mapping.loss() {
            Some(Loss::MemoryError) => ImageError::MemoryError { path },
            _ => ImageError::Truncated { path },
        }
    }

    /// [`Storage::sync`] of all calls, by a thread that this call makes.
    pub fn sync(&self) -> io::Result<()> {
        let synced = self.fs().enter().map_err(posix::Errno::from);
        let synced = synced.and_then(|thread| self.storage().sync(&thread, Scope::Calls));
        synced.map_err(|errno| io::Error::from_raw_os_error(errno.0))
    }

    /// Detaches. The last process to detach writes back deferred state and marks the image clean.
    /// No thread may be inside a call.
    pub fn close(mut self) -> Result<Closed, ImageError> {
        self.leave()
    }

    /// Gives up an image in memory that no other process uses. Nothing is written back: the memory
    /// goes with this value.
    pub fn discard(mut self) {
        self.service = None;
        self.trims = None;
        self.fs = None;
        self.remove_runtime_directory();
    }

    fn leave(&mut self) -> Result<Closed, ImageError> {
        let Some(fs) = self.fs.take() else { return Ok(Closed::ReadOnly) };
        self.service = None;
        self.trims = None;
        if !self.is_writing {
            self.remove_runtime_directory();
            return Ok(Closed::ReadOnly);
        }
        if matches!(self.backing_of_dram, DramBacking::HandedOff(_)) {
            return Ok(Closed::OthersRemain);
        }
        let path = self.path.clone();
        let file = &*self.file;
        let Some(_attaching) = self.exclude_all(&fs, file)? else { return Ok(Closed::OthersRemain) };
        if self.memory.commits.is_some_and(|commits| commits.is_held()) {
            // Nothing of it was to reach the image.
            self.remove_runtime_directory();
            self.unlock(file);
            return Ok(Closed::ReadOnly);
        }
        if self.is_truncated() {
            // The rest of a truncated image is not read again, and not marked clean.
            self.remove_runtime_directory();
            self.unlock(file);
            return Err(self.loss_error(path));
        }
        if let Some(commits) = &self.memory.commits {
            let settled = growth::settle(&fs, Some(commits));
            if let Err(source) = settled {
                // What the next process finds is whole.
                self.unlock(file);
                return Err(ImageError::Engine { path, source });
            }
        }
        if self.backing_of_dram.runtime().is_some() {
            name_runtime_directory(&fs, 0);
        }
        // The service has ended, and nothing else keeps a reference.
        let detached = match Arc::into_inner(fs) {
            Some(fs) => fs.detach_last().map_err(|source| ImageError::Engine { path: path.clone(), source }),
            None => Ok(()),
        };
        let synced = match &self.memory.commits {
            Some(commits) => working::commit_all(commits, &self.memory.mapping, commits.image_bytes())
                .map_err(|errno| io::Error::from_raw_os_error(errno.0)),
            None => self.memory.mapping.sync(0..self.memory.mapping.length()),
        };
        // A working copy that is not on the disk waits for the next process, if that can find it.
        let is_unnamed = matches!(self.backing_of_dram, DramBacking::Inheritable(_));
        if let (Ok(()), Some(commits)) = (&synced, &self.memory.commits) {
            commits.set_saved();
        }
        if synced.is_ok() || self.memory.commits.is_none() || is_unnamed {
            self.remove_runtime_directory();
        }
        self.unlock(file);
        if self.is_truncated() {
            return Err(self.loss_error(path));
        }
        detached?;
        synced.map_err(|source| ImageError::File { action: "sync", path, source })?;
        Ok(Closed::Last)
    }

    fn remove_runtime_directory(&self) {
        if let Some(runtime) = self.backing_of_dram.runtime() {
            // A working copy without a name ends by itself.
            if self.works_on_disk() && !matches!(self.backing_of_dram, DramBacking::Inheritable(_)) {
                working_file::remove_hidden(&self.file, &self.path, runtime.name());
            }
            runtime.remove();
        }
    }

    /// Excludes all processes, for the last one of them. If others remain, the changes of this one
    /// are committed, its locks are released, and there is no guard: the others keep the DRAM
    /// region.
    fn exclude_all<'f>(&self, fs: &Fs<M>, file: &'f File) -> Result<Option<LockGuard<&'f File>>, ImageError> {
        let failed = |source| lock_error(&self.path, source);
        // A recovery by another process can take long, but does not depend on this one: so wait for
        // it.
        let timeout = Duration::from_secs(600);
        let take = || LockGuard::take(file, Byte::Attaching, Lock::Exclusive).map_err(failed);
        let mut committed = None;
        loop {
            // Before the lock: a commit may wait for a process that attaches to make it.
            if committed.is_none() && locks::is_held_by_others(file, Byte::Attached).map_err(failed)? {
                // What an observer has seen is not its own to wait for.
                committed = Some(if fs.is_read_only() { Ok(()) } else { self.commit_before_leaving(fs) });
            }
            let Some(attaching) = retry_until(timeout, take)? else {
                return Err(ImageError::Changing { path: self.path.clone() });
            };
            if try_set(file, Byte::Attached, Lock::Exclusive).map_err(failed)? {
                return Ok(Some(attaching));
            }
            if let Some(committed) = committed {
                self.unlock(file);
                return committed.map(|()| None);
            }
        }
    }

    /// Other processes will commit what they do, and may not have a service.
    fn commit_before_leaving(&self, fs: &Fs<M>) -> Result<(), ImageError> {
        let Some(commits) = &self.memory.commits else { return Ok(()) };
        let committed = fs.enter().map_err(posix::Errno::from).and_then(|thread| commits.commit(&thread));
        committed.map_err(|errno| ImageError::File {
            action: "commit the changes of",
            path: self.path.clone(),
            source: io::Error::from_raw_os_error(errno.0),
        })
    }

    /// Locks end with the open file description, but a forked child may still hold that.
    fn unlock(&self, file: &File) {
        for byte in [Byte::Writing, Byte::Attached] {
            let _ = try_set(file, byte, Lock::None);
        }
    }
}

impl<M: Memory> Drop for Image<M> {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

/// Stores the name of the runtime directory in the superblock; zero: none.
fn name_runtime_directory<M: Memory>(fs: &Fs<M>, name: u64) {
    if let Ok(superblock) = fs.pm().first::<Superblock>() {
        fs.pm().persist(fs.pm().set64(&superblock.runtime_directory, name));
    }
}

/// Identity of the image file that this process has open.
fn identity_of(file: &File, path: &Path) -> Result<ImageIdentity, ImageError> {
    let stat = rustix::fs::fstat(file).map_err(|errno| lock_error(path, errno.into()))?;
    Ok(ImageIdentity { device: stat.st_dev, inode: stat.st_ino, boot: boot_number() })
}

/// A number of this boot; zero if the kernel does not provide it.
fn boot_number() -> u64 {
    let digits = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().replace('-', "");
    digits.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Opens the file for writing if possible: even readers take locks that need a writable descriptor.
fn open_file(path: &Path, read_only: bool) -> Result<(File, Access), ImageError> {
    if read_only && let Some(opened) = open_in_layers(path) {
        return Ok(opened);
    }
    let is_refusal = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS));
    match open_for(path, Access::ReadWrite) {
        Ok(file) => Ok((file, Access::ReadWrite)),
        Err(source) if read_only && is_refusal(&source) => open_file_for_reading(path),
        Err(source) => Err(open_error(path, Access::ReadWrite, source)),
    }
}

/// Opens a file of overlayfs for reading, so that its kernel does not copy the whole image from a
/// layer below. `None`: it is elsewhere, or a process writes it, and a reader may share it then.
fn open_in_layers(path: &Path) -> Option<(File, Access)> {
    const OVERLAYFS: u64 = 0x794c_7630;
    if rustix::fs::statfs(path).ok()?.f_type as u64 != OVERLAYFS {
        return None;
    }
    let file = open_for(path, Access::ReadOnly).ok()?;
    let is_written = locks::is_held_by_others(&file, Byte::Writing).unwrap_or(true);
    (!is_written).then_some((file, Access::ReadOnly))
}

fn open_file_for_reading(path: &Path) -> Result<(File, Access), ImageError> {
    match open_for(path, Access::ReadOnly) {
        Ok(file) => Ok((file, Access::ReadOnly)),
        Err(source) => Err(open_error(path, Access::ReadOnly, source)),
    }
}

fn open_for(path: &Path, access: Access) -> io::Result<File> {
    // Nonblocking: opening a FIFO would block for ever.
    let flags = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let is_writable = access == Access::ReadWrite;
    device::with_locks(OpenOptions::new().read(true).write(is_writable).custom_flags(flags).open(path)?, is_writable)
}

fn open_error(path: &Path, access: Access, source: io::Error) -> ImageError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOENT) => MapError::Missing { path }.into(),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => MapError::Permission { path, access }.into(),
        Some(libc::EISDIR) => MapError::NotMappable { path, kind: "a directory" }.into(),
        _ => MapError::Open { path, access, source }.into(),
    }
}

fn lock_error(path: &Path, source: io::Error) -> ImageError {
    ImageError::without_descriptors(path, source)
        .unwrap_or_else(|source| ImageError::Lock { path: path.to_owned(), source })
}

impl ImageError {
    /// Whether a retry may succeed.
    fn may_pass(&self) -> bool {
        matches!(self, ImageError::InUse { .. } | ImageError::NotExclusive { .. } | ImageError::Changing { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_opened_the_file_before_a_writer_came_joins_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        make(&path, &MakeOptions { length: 4 << 20, ..MakeOptions::default() }).unwrap();
        let writing = OpenImage { dram_directory: directory.path().to_owned(), ..OpenImage::default() };
        let opened = (open_for(&path, Access::ReadOnly).unwrap(), Access::ReadOnly);
        let writer = Image::open(&path, &writing).unwrap();
        let reading = OpenImage { read_only: true, ..writing };
        let reader = Image::<Direct>::open_opened(&path, opened, &reading, &|| Direct).unwrap();
        assert!(reader.is_shared());
        assert_eq!(writer.close().unwrap(), Closed::OthersRemain);
        assert_eq!(reader.close().unwrap(), Closed::Last);
    }
}
