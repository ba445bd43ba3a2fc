//! Images whose changes do not reach their file as they happen: a run that is discarded, and one
//! that counts as a whole or not at all.
//!
//! Both work in memory without a name, which ends with the last process that has it. The superblock
//! of the image names no runtime directory meanwhile. So whatever happens, no later process finds a
//! newer state than that of the file.

use super::attempt::Attempt;
use super::device;
use super::locks::{Byte, Lock, LockGuard, is_held_by_others, retry_until};
use super::working::{Pending, WorkingCopy, copy_newest, map_base};
use super::working_file::{self, Needs};
use super::{Closed, Image, ImageError, ImageMemory, MEMORY_NAME, OpenImage, lock_error, open_file};
use pmem::{Access, Direct, Mapping};
use posix::commits::working_bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;

impl Image<Direct> {
    /// Opens an image for changes that end with the last process that has it. Its file stays as it
    /// is, and need only be readable. Any number of processes may do so at once.
    ///
    /// A small image, one on a device, and one with commits in its journal is copied to memory, and
    /// the file is free for others once this returns. Any other image's pages are read from the
    /// file when they are used, and no process can open it for writing meanwhile.
    ///
    /// With `read_only` all changes are refused. In contrast to [`Image::open`], metadata is in
    /// memory when this returns, and data of files is read by calls: a file whose storage fails
    /// gives EIO for what it has lost, and everything else goes on.
    pub fn open_discarding(path: impl AsRef<Path>, options: &OpenImage) -> Result<Image, ImageError> {
        let path = path.as_ref();
        let (file, _) = open_file(path, true)?;
        let failed = |source| lock_error(path, source);
        // No process may write the image while it is copied.
        let locked = retry_until(options.timeout, || -> Result<_, ImageError> {
            let guard = LockGuard::take(&file, Byte::Attaching, Lock::Shared).map_err(failed)?;
            Ok(guard.filter(|_| !is_held_by_others(&file, Byte::Writing).unwrap_or(true)))
        })?;
        let Some(_attaching) = locked else { return Err(ImageError::Written { path: path.to_owned() }) };
        let pm = Arc::new(map_base(file.try_clone().map_err(failed)?, path, Access::ReadOnly)?);
        let shared = Arc::new(file.try_clone().map_err(failed)?);
        let attempt = Attempt { path, pm: &pm, file: &shared, options, memory: &|| Direct };
        let mut image = match attempt.over_file()? {
            Some(image) => image,
            None => attempt.copied()?,
        };
        image.start_trims();
        Ok(image)
    }

    /// Opens an image so that nothing reaches its file before [`Image::commit_atomic`] or
    /// [`Image::close_atomic`]; otherwise all changes are discarded with the value. No other
    /// process can open it meanwhile.
    pub fn open_atomic(path: impl AsRef<Path>, options: &OpenImage) -> Result<Image, ImageError> {
        let path = path.as_ref();
        let (file, access) = open_file(path, false)?;
        let locked = Arc::new(file.try_clone().map_err(|source| lock_error(path, source))?);
        let pm = Arc::new(map_base(file, path, access)?);
        if !pm.backing().is_disk() {
            return Err(ImageError::NoCommits { path: path.to_owned() });
        }
        let attempt = Attempt { path, pm: &pm, file: &locked, options, memory: &|| Direct };
        let opened = retry_until(options.timeout, || match attempt.atomic() {
            Ok(image) => Ok(Some(image)),
            Err(error) if error.may_pass() => Ok(None),
            Err(error) => Err(error),
        })?;
        let mut image = opened.ok_or_else(|| ImageError::NotExclusive { path: path.to_owned() })?;
        image.claim = device::Claim::take(&image.file, path, options.timeout)?;
        Ok(image)
    }

    /// Commits all changes as one to an image that was opened by [`Image::open_atomic`], and closes
    /// it. No other process may use it.
    pub fn close_atomic(mut self) -> Result<Closed, ImageError> {
        if let Some(commits) = &self.memory.commits {
            commits.set_held(false);
        }
        self.leave()
    }

    /// [`Image::close_atomic`] while programs use the image. The next use recovers it. What the
    /// programs change from now on is lost.
    pub fn commit_atomic(&self) -> Result<(), ImageError> {
        let Some(commits) = self.memory.commits else { return Ok(()) };
        let committed = self.fs().enter().map_err(posix::Errno::from).and_then(|thread| commits.commit_held(&thread));
        committed.map_err(|errno| ImageError::File {
            action: "commit the changes of",
            path: self.path.clone(),
            source: io::Error::from_raw_os_error(errno.0),
        })
    }
}

impl Attempt<'_, Direct> {
    /// Attaches a copy in memory of the newest state, to be discarded.
    fn copied(&self) -> Result<Image, ImageError> {
        let failed = |source| lock_error(self.path, source);
        let limit_bytes = self.options.memory_bytes_max;
        let copy = working_file::create_unnamed(self.pm.length(), limit_bytes, self.path).map_err(failed)?;
        copy_newest(&self.base(), &copy, &mut |bytes, of| {
            (self.options.copied)(bytes, of);
            true
        })?;
        let path = Path::new(MEMORY_NAME);
        let file = Arc::new(copy.try_clone().map_err(failed)?);
        let pm = Arc::new(Mapping::from_file(copy, path, Access::ReadWrite)?);
        let attempt = Attempt { path, pm: &pm, file: &file, ..*self };
        attempt.set(Byte::Attached, Lock::Shared)?;
        attempt.set(Byte::Writing, Lock::Shared)?;
        attempt.check_superblock(true)?;
        attempt.attach_first(attempt.unnamed_place()?, ImageMemory::in_place(&pm))
    }

    /// Attaches a working copy that is never committed, and has only the pages that were used. The
    /// image's lock keeps writers away as long as a process has it. `None`: the image is to be
    /// copied.
    fn over_file(&self) -> Result<Option<Image>, ImageError> {
        let base = self.base();
        if self.pm.backing().is_device() || base.pending()? != Pending::Nothing {
            return Ok(None);
        }
        if !self.set(Byte::Attached, Lock::Shared)? {
            return Err(ImageError::InUse { path: self.path.to_owned() });
        }
        self.check_superblock(true)?;
        let create = |needs: Needs| self.create_unnamed_working_file(needs);
        let Some(made) = base.make_scratch_copy(self.options, create)? else {
            self.set(Byte::Attached, Lock::None)?;
            return Ok(None);
        };
        let WorkingCopy { mapping, commits, report, .. } = made;
        let image_bytes = commits.image_bytes();
        let memory = ImageMemory { mapping, image_bytes, reach: 0, commits: Some(commits) };
        let mut image = self.attach_first(self.unnamed_place()?, memory)?;
        image.report = report.or(image.report);
        image.is_writing = false;
        Ok(Some(image))
    }

    fn create_unnamed_working_file(&self, needs: Needs) -> Result<Mapping, ImageError> {
        let failed = |source| lock_error(self.path, source);
        let length = working_bytes(needs.image_bytes);
        let file = working_file::create_unnamed(length, self.options.memory_bytes_max, self.path);
        let file = file.map_err(failed)?;
        file.set_len(length).map_err(failed)?;
        Ok(Mapping::from_file(file, self.path, Access::ReadWrite)?)
    }

    fn atomic(&self) -> Result<Image, ImageError> {
        let _attaching = self.attaching(Lock::Exclusive)?;
        let result = self.atomic_locked();
        if result.is_err() {
            self.set(Byte::Writing, Lock::None)?;
            self.set(Byte::Attached, Lock::None)?;
        }
        result
    }

    fn atomic_locked(&self) -> Result<Image, ImageError> {
        if !self.set(Byte::Attached, Lock::Exclusive)? {
            return Err(ImageError::NotExclusive { path: self.path.to_owned() });
        }
        self.set(Byte::Writing, Lock::Shared)?;
        let base = self.base();
        let recovered = base.recover()?;
        self.check_superblock(true)?;
        let Some(recovered) = recovered else { return Err(ImageError::NoCommits { path: self.path.to_owned() }) };
        let image_bytes = recovered.head.image_bytes;
        let create = |needs: Needs| self.create_unnamed_working_file(needs);
        let WorkingCopy { mapping, commits, report, .. } = base.make_working_copy(recovered, self.options, create)?;
        commits.set_held(true);
        let memory = ImageMemory { mapping, image_bytes, reach: 0, commits: Some(commits) };
        let mut image = self.attach_first(self.unnamed_place()?, memory)?;
        image.report = report.or(image.report);
        // From exclusive to shared: programs take it, too. Others find no runtime directory.
        self.set(Byte::Attached, Lock::Shared)?;
        Ok(image)
    }
}
