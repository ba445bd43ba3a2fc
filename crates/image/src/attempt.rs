//! One attempt to attach an image: as the first process, as a further one, or for reading.
//!
//! Invariants
//! - Nothing is written before the superblock is checked, but for the recovery of a journal, whose
//!   commits are part of the image.
//! - An attempt that fails leaves no lock, and no runtime directory of its own.

use super::extents::for_each_hole;
use super::locks::{self, Byte, Lock, LockGuard, try_set};
use super::regions::{MappedCopy, dram_region, map_working_copy, recover, slots_max};
use super::resize::is_reserved;
use super::runtime::{self, Found, HoldsCopy, RuntimeDirectory, cannot_share};
use super::unfinished::remove_all_unfinished;
use super::working::{Base, Pending, RecoveredJournal, WorkingCopy, copy_newest};
use super::working_file;
use super::{
    CommitPolicy, Committer, DramBacking, Image, ImageError, ImageMemory, OpenImage, identity_of, lock_error,
    name_runtime_directory,
};
use engine::format::Superblock;
use engine::{AttachOptions, Error, Fs, ImageIdentity, Liveness, RecoveryReport};
use pmem::{Access, Mapping, Memory, Region};
use posix::commits::{Commits, ImageFile, working_bytes};
use rustix::fd::AsRawFd;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tables::host::PLATFORM;

/// Parameters of one attempt to attach.
pub(super) struct Attempt<'a, M> {
    pub path: &'a Path,
    /// The image's file.
    pub pm: &'a Arc<Mapping>,
    pub file: &'a Arc<File>,
    pub options: &'a OpenImage,
    pub memory: &'a dyn Fn() -> M,
}

impl<M: Memory> Attempt<'_, M> {
    pub fn set(&self, byte: Byte, lock: Lock) -> Result<bool, ImageError> {
        try_set(self.file, byte, lock).map_err(|source| lock_error(self.path, source))
    }

    fn is_written_by_others(&self) -> Result<bool, ImageError> {
        locks::is_held_by_others(self.file, Byte::Writing).map_err(|source| lock_error(self.path, source))
    }

    /// Becomes one more process of an image in use. `false`: its processes do not share it; those
    /// that only read have nothing to share.
    fn joins_writers(&self) -> Result<bool, ImageError> {
        Ok(self.is_written_by_others()? && self.set(Byte::Attached, Lock::Shared)?)
    }

    pub fn attaching(&self, lock: Lock) -> Result<LockGuard<&File>, ImageError> {
        LockGuard::take(&**self.file, Byte::Attaching, lock)
            .map_err(|source| lock_error(self.path, source))?
            .ok_or_else(|| ImageError::Changing { path: self.path.to_owned() })
    }

    /// Attaches to read and write. On failure no lock remains.
    pub fn writing(&self) -> Result<Image<M>, ImageError> {
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
        if !first && !self.joins_writers()? {
            return Err(ImageError::InUse { path: self.path.to_owned() });
        }
        self.set(Byte::Writing, Lock::Shared)?;
        let recovered = if first { self.base().recover()? } else { None };
        let name = self.check_superblock(true)?;
        if !first {
            return self.attach_shared(name);
        }
        let is_on_disk = self.pm.backing().is_disk();
        let recovered = recovered.filter(|_| is_on_disk && self.options.commits != CommitPolicy::Never);
        let holds_copy = HoldsCopy(recovered.is_some());
        let create = || {
            let parent = &self.options.dram_directory;
            RuntimeDirectory::create(parent, holds_copy).map_err(|source| ImageError::no_shared(parent, source))
        };
        let place = match self.options.exclusive {
            true => DramBacking::Private(recovered.is_some().then(create).transpose()?),
            false => DramBacking::NamedFile(create()?),
        };
        let image = match recovered {
            Some(journal) => self.attach_working_copy(place, journal)?,
            None => self.attach_first(place, self.growing_memory()?)?,
        };
        if self.options.exclusive {
            return Ok(image);
        }
        // From exclusive to shared: this never waits.
        self.set(Byte::Attached, Lock::Shared)?;
        Ok(image)
    }

    /// Attaches read-only: with a private DRAM region, without any change; or, if the image is
    /// being written, with the region of the writers.
    pub fn read_only(&self) -> Result<Image<M>, ImageError> {
        let _attaching = self.attaching(Lock::Shared)?;
        if !self.set(Byte::Attached, Lock::Shared)? {
            return Err(ImageError::InUse { path: self.path.to_owned() });
        }
        let result = self.read_only_locked();
        // A copy does not keep writers away.
        if result.as_ref().map_or(true, |image| image.is_recovered_copy) {
            self.set(Byte::Attached, Lock::None)?;
        }
        result
    }

    fn read_only_locked(&self) -> Result<Image<M>, ImageError> {
        let written = self.is_written_by_others()?;
        let name = self.check_superblock(false)?;
        if !written {
            if self.base().pending()? == Pending::Nothing {
                match self.attach_first(self.place_of_reader()?, ImageMemory::in_place(self.pm)) {
                    Err(ImageError::Engine { source: Error::NeedsRecovery, .. }) => {}
                    attached => return attached,
                }
            }
            return self.recovered_copy();
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
        match self.attach_shared(name) {
            Ok(mut image) => {
                image.is_writing = true;
                Ok(image)
            }
            Err(error) => {
                self.set(Byte::Writing, Lock::None)?;
                Err(error)
            }
        }
    }

    fn place_of_reader(&self) -> Result<DramBacking, ImageError> {
        if self.options.hands_off { self.unnamed_place() } else { Ok(DramBacking::Private(None)) }
    }

    /// A DRAM region without a name, for processes that inherit it.
    pub fn unnamed_place(&self) -> Result<DramBacking, ImageError> {
        let parent = &self.options.dram_directory;
        let runtime = RuntimeDirectory::create_anywhere(parent);
        let runtime = runtime.map_err(|source| ImageError::no_shared(parent, source))?;
        Ok(DramBacking::Inheritable(runtime))
    }

    /// Attaches read-only a copy of the newest state, recovered in memory without a name. The image
    /// stays as it is, for the next process that may write it.
    fn recovered_copy(&self) -> Result<Image<M>, ImageError> {
        let failed = |source| ImageError::File { action: "copy", path: self.path.to_owned(), source };
        let (length, limit_bytes) = (self.pm.length(), self.options.memory_bytes_max);
        let file = working_file::create_unnamed(length, limit_bytes, self.path).map_err(failed)?;
        copy_newest(&self.base(), &file, &mut |bytes, of| {
            (self.options.copied)(bytes, of);
            true
        })?;
        let held = Arc::new(file.try_clone().map_err(failed)?);
        let copy = Arc::new(Mapping::from_file(file, self.path, Access::ReadWrite)?);
        let options = OpenImage { read_only: false, ..self.options.clone() };
        let recovering = Attempt { pm: &copy, file: &held, options: &options, ..*self };
        let (fs, dram, report) = recovering.build_in(&DramBacking::Private(None), &ImageMemory::in_place(&copy))?;
        fs.detach_last().map_err(|error| self.engine_error(error))?;
        drop(dram);
        let copied = Attempt { pm: &copy, file: &held, ..*self };
        copied.set(Byte::Attached, Lock::Shared)?;
        let mut image = copied.attach_first(self.place_of_reader()?, ImageMemory::in_place(&copy))?;
        image.report = Some(report);
        image.is_recovered_copy = true;
        Ok(image)
    }

    /// Checks the superblock; nothing is written before. Returns the name of the runtime directory,
    /// which is valid only while the image is in use.
    pub fn check_superblock(&self, writing: bool) -> Result<u64, ImageError> {
        let region = ImageMemory::in_place(self.pm).region((self.memory)(), false);
        let not_usable = |cause| ImageError::NotUsable { path: self.path.to_owned(), cause };
        Superblock::check(&region, writing).map_err(not_usable)?;
        let superblock = region.first::<Superblock>().map_err(|bad| self.engine_error(bad.into()))?;
        Ok(superblock.runtime_directory.load())
    }

    pub fn engine_error(&self, source: Error) -> ImageError {
        match source {
            Error::Superblock(cause) => ImageError::NotUsable { path: self.path.to_owned(), cause },
            source => ImageError::Engine { path: self.path.to_owned(), source },
        }
    }

    fn region(&self, memory: &ImageMemory) -> Region<M> {
        memory.region((self.memory)(), self.options.always_flush)
    }

    /// The image's file, for recovery and working copies.
    pub fn base(&self) -> Base<'_> {
        Base { file: self.file, path: self.path, runtime_parent: &self.options.dram_directory }
    }

    /// Makes a working copy, and builds the DRAM region for it.
    fn attach_working_copy(&self, place: DramBacking, journal: RecoveredJournal) -> Result<Image<M>, ImageError> {
        let base = self.base();
        let Some(runtime) = place.runtime() else { return self.attach_first(place, ImageMemory::in_place(self.pm)) };
        let image_bytes = journal.head.image_bytes;
        let limit_bytes = self.options.memory_bytes_max;
        let create = |needs| runtime.create_working(self.file, self.path, needs, limit_bytes);
        let made = base.make_working_copy(journal, self.options, create).inspect_err(|_| runtime.remove());
        let WorkingCopy { mapping, capacity_bytes, commits, report } = made?;
        let memory = ImageMemory { image_bytes, reach: capacity_bytes, mapping, commits: Some(commits) };
        let name = runtime.name();
        let mut image = self.attach_first(place, memory)?;
        image.report = report.or(image.report);
        name_runtime_directory(image.fs(), name);
        base.name_runtime_directory(name)?;
        // Last: a copy that is ready is kept until it is on the disk, or the image names it.
        commits.set_ready();
        Ok(image)
    }

    fn attach_options(&self) -> Result<AttachOptions, ImageError> {
        Ok(AttachOptions {
            read_only: self.options.read_only,
            cached_files_max: self.options.cached_files_max,
            image: identity_of(self.file, self.path)?,
            slots_max: slots_max(),
            ..AttachOptions::default()
        })
    }

    /// Builds the DRAM region.
    pub fn attach_first(&self, place: DramBacking, memory: ImageMemory) -> Result<Image<M>, ImageError> {
        let built = self.build_in(&place, &memory);
        if built.is_err()
            && let Some(runtime) = place.runtime()
        {
            runtime.remove();
        }
        let (fs, dram, report) = built?;
        if report.scanned && !self.options.read_only {
            remove_all_unfinished(&fs);
        }
        Ok(self.image(fs, memory, dram, place, Some(report)))
    }

    fn build_in(
        &self,
        place: &DramBacking,
        memory: &ImageMemory,
    ) -> Result<(Fs<M>, Arc<Mapping>, RecoveryReport), ImageError> {
        let (capacity_bytes, is_reserved) = (memory.reach, is_reserved(self.file, memory.image_bytes));
        let options = AttachOptions { capacity_bytes, is_reserved, ..self.attach_options()? };
        let region = || self.region(memory);
        let layout = Fs::<M>::dram_layout(&region(), &options).map_err(|error| self.engine_error(error))?;
        let dram = Arc::new(match place {
            DramBacking::NamedFile(runtime) => runtime.create_region(self.file, self.path, layout.length)?,
            DramBacking::Inheritable(_) => runtime::create_unnamed_region(layout.length)?,
            DramBacking::Private(_) | DramBacking::HandedOff(_) => Mapping::anonymous(layout.length)?,
        });
        let runtime = match place {
            DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) => Some(runtime),
            DramBacking::Private(_) | DramBacking::HandedOff(_) => None,
        };
        let liveness = runtime.map_or(Liveness::alone(), |runtime| Liveness::shared(runtime.description().as_raw_fd()));
        let (fs, report) = self.build(region(), &dram, liveness, &options).map_err(|error| match (error, place) {
            (Error::NoMemory, DramBacking::NamedFile(runtime)) => runtime.no_room(),
            (error, _) => self.engine_error(error),
        })?;
        self.provide_allocated(&fs, memory).map_err(|error| match (error, memory.commits) {
            (Error::NoSpace, Some(_)) => {
                ImageError::NoScratch { path: self.path.to_owned(), needed: memory.image_bytes }
            }
            (error, _) => self.engine_error(error),
        })?;
        if let Some(runtime) = runtime {
            fs.set_directory_secret(runtime.secret()).map_err(|error| self.engine_error(error))?;
        }
        if let DramBacking::NamedFile(runtime) = place {
            name_runtime_directory(&fs, runtime.name());
        }
        Ok((fs, dram, report))
    }

    /// Provides what the image has in use and its file does not hold, since it is zero.
    fn provide_allocated(&self, fs: &Fs<M>, memory: &ImageMemory) -> engine::Result<()> {
        let backing = memory.mapping.backing();
        // What is not resident gets its space when it is loaded, and the rest of the file's content
        // has it.
        let is_partly = memory.commits.is_some_and(|commits| commits.residency().is_some());
        let file = if is_partly { Some(&**self.file) } else { memory.mapping.file() };
        match file.filter(|_| !self.options.read_only && !backing.is_device()) {
            Some(file) => for_each_hole(file, memory.image_bytes, &mut |hole| fs.provider().provide_allocated(hole)),
            None => Ok(()),
        }
    }

    fn build(
        &self,
        region: Region<M>,
        dram: &Arc<Mapping>,
        liveness: Liveness,
        options: &AttachOptions,
    ) -> engine::Result<(Fs<M>, RecoveryReport)> {
        let recovery = Fs::attach_first(region, dram_region(dram), &PLATFORM, liveness, options)?;
        recover(&recovery, self.options.recovery_threads)?;
        recovery.finish()
    }

    fn attach_shared(&self, name: u64) -> Result<Image<M>, ImageError> {
        let found = Found::find(&self.options.dram_directory, name, self.file, self.path)?;
        let dram = Arc::new(found.open_region(self.file, self.path)?);
        let options = self.attach_options()?;
        let shared_path = found.path();
        let refused = |reason: &str| cannot_share(self.path, &shared_path, reason.to_owned());
        let other_version = "it was made by another version of this program, or is not ready";
        // Before anything else is read from it, which checks the version.
        let secret = engine::directory_secret(&dram_region(&dram)).map_err(|_| refused(other_version))?;
        let memory = match found.open_working(self.file, self.path)? {
            Some(working) => self.working_memory(working, &dram, &options.image, &shared_path)?,
            None => self.shared_memory(&dram)?,
        };
        let runtime = found.enter(secret, self.path)?;
        let liveness = Liveness::shared(runtime.description().as_raw_fd());
        let fs = Fs::attach_shared(self.region(&memory), dram_region(&dram), &PLATFORM, liveness, &options);
        let fs = fs.map_err(|error| match error {
            Error::Busy | Error::Invalid | Error::ReadOnly => refused(other_version),
            Error::OtherImage => refused(
                "it belongs to another image file with the same UUID; change this one's UUID when it is not in use",
            ),
            other => self.engine_error(other),
        })?;
        self.join_growth(&fs, memory.commits)?;
        Ok(self.image(fs, memory, dram, DramBacking::NamedFile(runtime), None))
    }

    /// The working copy that another process made.
    fn working_memory(
        &self,
        working: File,
        dram: &Arc<Mapping>,
        identity: &ImageIdentity,
        shared_path: &Path,
    ) -> Result<ImageMemory, ImageError> {
        let memory = working_memory(working, dram, self.path, self.file)?
            .filter(|memory| memory.commits.is_some_and(|commits| commits.is_ready_for(identity)));
        memory.ok_or_else(|| {
            cannot_share(
                self.path,
                shared_path,
                "its working copy belongs to another image, or is not ready".to_owned(),
            )
        })
    }

    fn image(
        &self,
        fs: Fs<M>,
        memory: ImageMemory,
        dram: Arc<Mapping>,
        place: DramBacking,
        report: Option<RecoveryReport>,
    ) -> Image<M> {
        Image {
            service: None,
            committer: Committer::default(),
            trims: None,
            fs: Some(Arc::new(fs)),
            memory,
            dram,
            backing_of_dram: place,
            file: Arc::clone(self.file),
            backing: self.pm.backing(),
            claim: None,
            path: self.path.to_owned(),
            report,
            is_recovered_copy: false,
            is_writing: !self.options.read_only,
        }
    }
}

/// A working copy with its commits, of the size that the DRAM region says; `None`: the file has
/// another length, or the region is of another version.
pub(super) fn working_memory(
    working: File,
    dram: &Arc<Mapping>,
    path: &Path,
    file: &File,
) -> Result<Option<ImageMemory>, ImageError> {
    let length = working.metadata().map_err(|source| lock_error(path, source))?.len();
    let size = engine::image_size(&dram_region(dram)).ok();
    let Some(size) = size.filter(|size| length == working_bytes(size.capacity_bytes)) else { return Ok(None) };
    let MappedCopy { mapping, tracking, reach } = map_working_copy(working, path, (size.bytes, size.capacity_bytes))?;
    let commits = Commits::new(ImageFile::new(file.as_raw_fd()), tracking);
    Ok(Some(ImageMemory { mapping, image_bytes: size.bytes, reach, commits: Some(commits) }))
}
