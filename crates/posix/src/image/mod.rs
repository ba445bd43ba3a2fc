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
//! A process can also attach by descriptors that another one hands to it (`handoff`), as programs
//! do that know no path of the image.

mod error;
mod exclusive;
mod handoff;
mod locks;
mod make;
mod runtime;
mod users;

pub use error::ImageError;
pub use exclusive::ExclusiveImage;
pub use handoff::{Handoff, HandoffId};
pub use make::{Made, MakeOptions, Watch, make, make_watched};
pub use runtime::own_description;
pub use users::{Users, users};

use crate::host::PLATFORM;
use engine::format::Superblock;
use engine::{AttachOptions, Error, Fs, ImageIdentity, Liveness, Recovery, RecoveryReport};
use locks::{Byte, Lock, LockGuard, retry_until, try_set};
use pmem::{Access, Backing, Direct, MapError, Mapping, Memory, Region};
use runtime::{Found, RuntimeDirectory, cannot_share};
use rustix::fd::{AsRawFd, OwnedFd};
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZero;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How to open an image.
#[derive(Debug, Clone)]
pub struct OpenImage {
    /// Refuse all changes by this process. Other processes may write the image meanwhile if they
    /// attached first.
    pub read_only: bool,
    /// Keep all other processes out; with `read_only`, only writers. The DRAM region is private
    /// memory then.
    pub exclusive: bool,
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
}

impl Default for OpenImage {
    fn default() -> Self {
        OpenImage {
            read_only: false,
            exclusive: false,
            cached_files_max: 0,
            recovery_threads: 0,
            dram_directory: PathBuf::from("/dev/shm"),
            timeout: Duration::from_secs(5),
            always_flush: false,
        }
    }
}

/// A region that flushes, unless the storage behind its mapping needs no flushes.
fn flushing_where_needed<M: Memory>(region: Region<M>, mapping: &Mapping, options: &OpenImage) -> Region<M> {
    if options.always_flush || mapping.backing().needs_flushes() { region } else { region.without_flushes() }
}

/// Stands for the path in messages about an image without one.
const MEMORY_NAME: &str = "the image in memory";

/// An image in use by this process. Dropping it detaches like [`Image::close`], but ignores errors.
pub struct Image<M: Memory = Direct> {
    /// Present until detach.
    fs: Option<Fs<M>>,
    /// Mappings of the two regions. `fs` works on them, so they outlive it.
    pm: Arc<Mapping>,
    dram: Arc<Mapping>,
    backing_of_dram: DramBacking,
    path: PathBuf,
    report: Option<RecoveryReport>,
}

/// What holds the DRAM region.
enum DramBacking {
    /// A file that other processes find through the superblock.
    NamedFile(RuntimeDirectory),
    /// A file without a name, for processes that inherit its descriptor. They share the directory.
    Inheritable(RuntimeDirectory),
    /// Private memory of this process.
    Private,
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
        let locked = file.try_clone().map_err(|source| lock_error(path, source))?;
        let pm = Arc::new(Mapping::from_file(file, path, Access::ReadWrite)?);
        let attempt = Attempt { path, pm: &pm, file: &locked, options, memory: &|| Direct };
        attempt.set(Byte::Attached, Lock::Shared)?;
        attempt.set(Byte::Writing, Lock::Shared)?;
        let runtime = RuntimeDirectory::create_anywhere(&options.dram_directory);
        let runtime =
            runtime.map_err(|source| ImageError::NoShared { path: options.dram_directory.clone(), source })?;
        attempt.attach_first(DramBacking::Inheritable(runtime))
    }
}

/// Parameters of one attempt to attach.
struct Attempt<'a, M> {
    path: &'a Path,
    pm: &'a Arc<Mapping>,
    file: &'a File,
    options: &'a OpenImage,
    memory: &'a dyn Fn() -> M,
}

impl<M: Memory> Image<M> {
    /// Opens an image over instrumented or slowed memory.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &OpenImage,
        memory: impl Fn() -> M,
    ) -> Result<Image<M>, ImageError> {
        let path = path.as_ref();
        let (file, access) = open_file(path, options.read_only)?;
        let locked = file.try_clone().map_err(|source| lock_error(path, source))?;
        let pm = Arc::new(Mapping::from_file(file, path, access)?);
        let attempt = Attempt { path, pm: &pm, file: &locked, options, memory: &memory };
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
        attached.ok_or_else(|| last_error.unwrap_or(ImageError::Changing { path: path.to_owned() }))
    }

    /// The file system.
    pub fn fs(&self) -> &Fs<M> {
        self.fs.as_ref().expect("present until close, which consumes the image")
    }

    /// The report of recovery, if this process attached first.
    pub fn report(&self) -> Option<&RecoveryReport> {
        self.report.as_ref()
    }

    /// The mapping of the image.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.pm
    }

    /// The kind of storage behind the image.
    pub fn backing(&self) -> Backing {
        self.pm.backing()
    }

    /// Whether users other than root and this process's own can write the image's file: they
    /// decide what is in it.
    pub fn is_writable_by_others(&self) -> bool {
        let Some(Ok(stat)) = self.pm.file().map(rustix::fs::fstat) else { return false };
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
        self.pm.is_truncated() || self.dram.has_lost_pages()
    }

    /// Makes all changes as durable as the storage allows: writes them to disk where there is one.
    pub fn sync(&self) -> io::Result<()> {
        self.pm.sync(0..self.pm.length())
    }

    /// Detaches. The last process to detach writes back deferred state and marks the image clean.
    /// No thread may be inside a call.
    pub fn close(mut self) -> Result<Closed, ImageError> {
        self.leave()
    }

    /// Gives up an image in memory that no other process uses. Nothing is written back: the memory
    /// goes with this value.
    pub fn discard(mut self) {
        self.fs = None;
        self.remove_runtime_directory();
    }

    fn leave(&mut self) -> Result<Closed, ImageError> {
        let Some(fs) = self.fs.take() else { return Ok(Closed::ReadOnly) };
        if !fs.is_written() {
            return Ok(Closed::ReadOnly);
        }
        if matches!(self.backing_of_dram, DramBacking::HandedOff(_)) {
            return Ok(Closed::OthersRemain);
        }
        let path = self.path.clone();
        let file = self.pm.file().ok_or_else(|| lock_error(&path, io::ErrorKind::Unsupported.into()))?;
        // A recovery by another process can take long, but does not depend on this one: so wait for
        // it.
        let timeout = Duration::from_secs(600);
        let take =
            || LockGuard::take(file, Byte::Attaching, Lock::Exclusive).map_err(|source| lock_error(&path, source));
        let Some(_attaching) = retry_until(timeout, take)? else { return Err(ImageError::Changing { path }) };
        if !try_set(file, Byte::Attached, Lock::Exclusive).map_err(|source| lock_error(&path, source))? {
            // The other processes keep the DRAM region; only the locks of this one are released.
            self.unlock(file);
            return Ok(Closed::OthersRemain);
        }
        if self.is_truncated() {
            // The rest of a truncated image is not read again, and not marked clean.
            self.remove_runtime_directory();
            self.unlock(file);
            return Err(ImageError::Truncated { path });
        }
        if matches!(self.backing_of_dram, DramBacking::NamedFile(_)) {
            name_runtime_directory(&fs, 0);
        }
        let detached = fs.detach_last().map_err(|source| ImageError::Engine { path: path.clone(), source });
        let synced = self.pm.sync(0..self.pm.length());
        self.remove_runtime_directory();
        self.unlock(file);
        if self.is_truncated() {
            return Err(ImageError::Truncated { path });
        }
        detached?;
        synced.map_err(|source| ImageError::File { action: "sync", path, source })?;
        Ok(Closed::Last)
    }

    fn remove_runtime_directory(&self) {
        if let DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) = &self.backing_of_dram {
            runtime.remove();
        }
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
    let open = |write: bool| {
        // Nonblocking: opening a FIFO would block for ever.
        let flags = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)
    };
    let describe = |source: io::Error, access| -> ImageError {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT) => MapError::Missing { path }.into(),
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => MapError::Permission { path, access }.into(),
            Some(libc::EISDIR) => MapError::NotMappable { path, kind: "a directory" }.into(),
            _ => MapError::Open { path, access, source }.into(),
        }
    };
    match open(true) {
        Ok(file) => Ok((file, Access::ReadWrite)),
        Err(source) if read_only && matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)) => {
            let file = open(false).map_err(|source| describe(source, Access::ReadOnly))?;
            Ok((file, Access::ReadOnly))
        }
        Err(source) => Err(describe(source, Access::ReadWrite)),
    }
}

fn lock_error(path: &Path, source: io::Error) -> ImageError {
    ImageError::Lock { path: path.to_owned(), source }
}

impl ImageError {
    /// Whether a retry may succeed.
    fn may_pass(&self) -> bool {
        matches!(self, ImageError::InUse { .. } | ImageError::NotExclusive { .. } | ImageError::Changing { .. })
    }
}

impl<M: Memory> Attempt<'_, M> {
    fn set(&self, byte: Byte, lock: Lock) -> Result<bool, ImageError> {
        try_set(self.file, byte, lock).map_err(|source| lock_error(self.path, source))
    }

    fn attaching(&self, lock: Lock) -> Result<LockGuard<&File>, ImageError> {
        LockGuard::take(self.file, Byte::Attaching, lock)
            .map_err(|source| lock_error(self.path, source))?
            .ok_or_else(|| ImageError::Changing { path: self.path.to_owned() })
    }

    /// Attaches to read and write. On failure no lock remains.
    fn writing(&self) -> Result<Image<M>, ImageError> {
        let _attaching = self.attaching(Lock::Exclusive)?;
        let result = self.writing_locked();
        if result.is_err() {
            self.set(Byte::Writing, Lock::None)?;
            self.set(Byte::Attached, Lock::None)?;
        }
        result
    }

    fn writing_locked(&self) -> Result<Image<M>, ImageError> {
        let first = self.set(Byte::Attached, Lock::Exclusive)?;
        if !first && self.options.exclusive {
            return Err(ImageError::NotExclusive { path: self.path.to_owned() });
        }
        if !first && !self.set(Byte::Attached, Lock::Shared)? {
            return Err(ImageError::InUse { path: self.path.to_owned() });
        }
        self.set(Byte::Writing, Lock::Shared)?;
        let name = self.check_superblock(true)?;
        if !first {
            return self.attach_shared(name);
        }
        if self.options.exclusive {
            let image = self.attach_first(DramBacking::Private)?;
            return Ok(image);
        }
        let parent = &self.options.dram_directory;
        let runtime =
            RuntimeDirectory::create(parent).map_err(|source| ImageError::NoShared { path: parent.clone(), source })?;
        let image = self.attach_first(DramBacking::NamedFile(runtime))?;
        // From exclusive to shared: this never waits.
        self.set(Byte::Attached, Lock::Shared)?;
        Ok(image)
    }

    /// Attaches read-only: with a private DRAM region, without any change; or, if the image is
    /// being written, with the region of the writers.
    fn read_only(&self) -> Result<Image<M>, ImageError> {
        let _attaching = self.attaching(Lock::Shared)?;
        if !self.set(Byte::Attached, Lock::Shared)? {
            return Err(ImageError::InUse { path: self.path.to_owned() });
        }
        let result = self.read_only_locked();
        if result.is_err() {
            self.set(Byte::Attached, Lock::None)?;
        }
        result
    }

    fn read_only_locked(&self) -> Result<Image<M>, ImageError> {
        let written =
            locks::is_held_by_others(self.file, Byte::Writing).map_err(|source| lock_error(self.path, source))?;
        let name = self.check_superblock(false)?;
        if !written {
            return self.attach_first(DramBacking::Private);
        }
        if self.options.exclusive {
            return Err(ImageError::NotExclusive { path: self.path.to_owned() });
        }
        if self.pm.access() == Access::ReadOnly {
            let reason = "it is being written, and this user may only read it".to_owned();
            return Err(cannot_share(self.path, &self.options.dram_directory, reason));
        }
        // A reader then takes part in the writers' shared state, and the last process of all marks
        // the image clean.
        self.set(Byte::Writing, Lock::Shared)?;
        let image = self.attach_shared(name);
        if image.is_err() {
            self.set(Byte::Writing, Lock::None)?;
        }
        image
    }

    /// Checks the superblock; nothing is written before. Returns the name of the runtime directory,
    /// which is valid only while the image is in use.
    fn check_superblock(&self, writing: bool) -> Result<u64, ImageError> {
        let region = self.pm_region();
        let not_usable = |cause| ImageError::NotUsable { path: self.path.to_owned(), cause };
        Superblock::check(&region, writing).map_err(not_usable)?;
        let superblock = region.first::<Superblock>().map_err(|bad| self.engine_error(bad.into()))?;
        Ok(superblock.runtime_directory.load())
    }

    fn engine_error(&self, source: Error) -> ImageError {
        match source {
            Error::Superblock(cause) => ImageError::NotUsable { path: self.path.to_owned(), cause },
            source => ImageError::Engine { path: self.path.to_owned(), source },
        }
    }

    fn pm_region(&self) -> Region<M> {
        // SAFETY: the owner of this region (`Image`, or this attempt) keeps the mapping at least as
        // long. A read-only mapping is attached read-only, so nothing is stored.
        let region = unsafe { Region::new(self.pm.address(), self.pm.length(), (self.memory)()) };
        flushing_where_needed(region, self.pm, self.options)
    }

    fn attach_options(&self) -> Result<AttachOptions, ImageError> {
        Ok(AttachOptions {
            read_only: self.options.read_only,
            cached_files_max: self.options.cached_files_max,
            image: identity_of(self.file, self.path)?,
        })
    }

    /// Builds the DRAM region.
    fn attach_first(&self, place: DramBacking) -> Result<Image<M>, ImageError> {
        let built = self.build_in(&place);
        if built.is_err()
            && let DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) = &place
        {
            runtime.remove();
        }
        let (fs, dram, report) = built?;
        Ok(self.image(fs, dram, place, Some(report)))
    }

    fn build_in(&self, place: &DramBacking) -> Result<(Fs<M>, Arc<Mapping>, RecoveryReport), ImageError> {
        let options = self.attach_options()?;
        let layout = Fs::<M>::dram_layout(&self.pm_region(), &options).map_err(|error| self.engine_error(error))?;
        let dram = Arc::new(match place {
            // The maps lie before the cachelets, and recovery fills them at once.
            DramBacking::NamedFile(runtime) => {
                runtime.create_region(self.file, self.path, layout.length, layout.cachelets)?
            }
            DramBacking::Inheritable(_) => runtime::create_unnamed_region(layout.length)?,
            DramBacking::Private | DramBacking::HandedOff(_) => Mapping::anonymous(layout.length)?,
        });
        let runtime = match place {
            DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) => Some(runtime),
            DramBacking::Private | DramBacking::HandedOff(_) => None,
        };
        let liveness = runtime.map_or(Liveness::alone(), |runtime| Liveness::shared(runtime.meeting().as_raw_fd()));
        let (fs, report) = self.build(&dram, liveness, &options).map_err(|error| self.engine_error(error))?;
        if let Some(runtime) = runtime {
            fs.set_directory_secret(runtime.secret()).map_err(|error| self.engine_error(error))?;
        }
        if let DramBacking::NamedFile(runtime) = place {
            name_runtime_directory(&fs, runtime.name());
        }
        Ok((fs, dram, report))
    }

    fn build(
        &self,
        dram: &Arc<Mapping>,
        liveness: Liveness,
        options: &AttachOptions,
    ) -> engine::Result<(Fs<M>, RecoveryReport)> {
        let recovery = Fs::attach_first(self.pm_region(), dram_region(dram), &PLATFORM, liveness, options)?;
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = if self.options.recovery_threads == 0 { processors } else { self.options.recovery_threads };
        recover(&recovery, threads)?;
        recovery.finish()
    }

    fn attach_shared(&self, name: u64) -> Result<Image<M>, ImageError> {
        let found = Found::find(&self.options.dram_directory, name, self.file, self.path)?;
        let dram = Arc::new(found.open_region(self.file, self.path)?);
        let options = self.attach_options()?;
        let shared_path = found.path();
        let refused = |reason: &str| cannot_share(self.path, &shared_path, reason.to_owned());
        let other_version = "it was made by another version of this program, or is not ready";
        let secret = engine::directory_secret(&dram_region(&dram)).map_err(|_| refused(other_version))?;
        let runtime = found.enter(secret, self.path)?;
        let liveness = Liveness::shared(runtime.meeting().as_raw_fd());
        let fs = Fs::attach_shared(self.pm_region(), dram_region(&dram), &PLATFORM, liveness, &options);
        let fs = fs.map_err(|error| match error {
            Error::Busy | Error::Invalid | Error::ReadOnly => refused(other_version),
            Error::OtherImage => refused(
                "it belongs to another image file with the same UUID; change this one's UUID when it is not in use",
            ),
            other => self.engine_error(other),
        })?;
        Ok(self.image(fs, dram, DramBacking::NamedFile(runtime), None))
    }

    fn image(&self, fs: Fs<M>, dram: Arc<Mapping>, place: DramBacking, report: Option<RecoveryReport>) -> Image<M> {
        Image {
            fs: Some(fs),
            pm: Arc::clone(self.pm),
            dram,
            backing_of_dram: place,
            path: self.path.to_owned(),
            report,
        }
    }
}

fn dram_region(dram: &Arc<Mapping>) -> Region<Direct> {
    // SAFETY: mapped readable and writable; `Image` keeps the mapping next to the `Fs` that owns
    // this region, and drops it later.
    unsafe { Region::new(dram.address(), dram.length(), Direct) }
}

/// Recovers with several threads and returns the first error.
fn recover<M: Memory>(recovery: &Recovery<M>, threads: usize) -> engine::Result<()> {
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.max(1))
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, || recovery.work()).ok())
            .collect();
        let mut result = recovery.work();
        for helper in helpers {
            // Propagate the panic.
            let helped = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(helped);
        }
        result
    })
}
