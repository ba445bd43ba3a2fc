//! Growth of an image on a disk while processes use it: under the lock of commits.
//!
//! The image's file and the working copy change in this order:
//!
//! 1. All that was done is committed, and written to its place: the log is empty.
//! 2. The tracking area says that the image *grows*.
//! 3. The file becomes longer. It gets the block map and the copy of the superblock at the new end,
//!    and an empty journal behind it. So does the working copy, but for the journal. Flush.
//! 4. The description, as one write. Flush: **the image has the new size.**
//! 5. The working copy adopts it (`Thread::adopt_size` of the engine), and the state of the journal
//!    is that of the new one. The image no longer grows.
//!
//! Steps 4, from the flush on, and 5 are [`Commits::settle_growth`], which any thread repeats after
//! a death. If all processes end meanwhile, the next one repeats them for the working copy that is
//! left. A power failure leaves a description with its journal, and every commit in the image.
//!
//! Invariant: nothing is written to the headers of the old journal. What is written to its log,
//! where the image grows by less than that, is no chunk.
//!
//! The working copy's file has the length of the capacity from the start, so it never moves.
//! Refused are growth by too little for a journal (12 KiB), images in use in place (`--no-commit`),
//! and `run --atomic`. A snapshot delays growth by seconds.

use super::growth::TIMEOUT;
use super::journal_room::{file_bytes, log_bytes};
use super::locks::retry_until;
use super::resize::{Resized, ResizedFile, file_error, lengthen};
use super::{Image, ImageError, fill};
use engine::format::Geometry;
use engine::{CommitGuard, DESCRIPTION_BYTES, GrowthRefusal, Thread};
use journal::{DiskError, Journal, JournalError};
use pmem::{BLOCK_BYTES, Backing, Memory};
use posix::Errno;
use posix::commits::{Commits, ImageFile, area_bytes};
use rustix::fd::AsRawFd;
use rustix::fs::FallocateFlags;
use rustix::process::Resource;
use std::io;
use std::os::unix::fs::FileExt;

impl<M: Memory> Image<M> {
    pub(super) fn grow_on_disk(&self, commits: &Commits, resized: Resized) -> Result<(), ImageError> {
        let thread = self.fs().enter().map_err(|source| self.engine_error(source))?;
        // A snapshot that is being copied keeps the image's file as it is.
        let held = retry_until(TIMEOUT, || {
            let held = commits.lock(&thread).map_err(|errno| self.errno_error("commit the changes of", errno))?;
            Ok::<_, ImageError>((!commits.is_pinned(&thread)).then_some(held))
        })?;
        let Some(held) = held else { return Err(ImageError::Changing { path: self.path.clone() }) };
        let length = resized.after_bytes;
        let geometry = thread.prepare_growth(&held, length).map_err(|refusal| self.refused(refusal))?;
        if geometry.block_map_block * BLOCK_BYTES < resized.before_bytes + Journal::<ImageFile>::area_bytes(0) {
            return Err(self.refused(GrowthRefusal::TooSmall { now_bytes: resized.before_bytes }));
        }
        self.check_file_limit(file_bytes(length))?;
        let committed = commits.commit_now(self.fs().pm()).and_then(|()| commits.checkpoint_now());
        committed.map_err(|errno| self.errno_error("commit the changes of", errno))?;
        commits.set_growing(length);
        let superblock = self.prepare_file(commits, (&thread, &held), resized, &geometry).map_err(|error| {
            commits.forget_growth();
            let file = ResizedFile { path: &self.path, file: &self.file };
            file.without_space(error, file_bytes(length) - resized.before_bytes)
        })?;
        let written = self.file.write_all_at(&superblock[..DESCRIPTION_BYTES], 0);
        let settled = commits.settle_growth(&thread, &held);
        written.map_err(file_error("write to", &self.path))?;
        settled.map_err(|errno| self.errno_error("enlarge", errno))
    }

    /// Step 3. Returns the superblock of the image then.
    fn prepare_file(
        &self,
        commits: &Commits,
        (thread, _held): (&Thread<'_, M>, &CommitGuard<'_>),
        Resized { before_bytes, after_bytes: length }: Resized,
        geometry: &Geometry,
    ) -> Result<[u8; BLOCK_BYTES as usize], ImageError> {
        let file = ResizedFile { path: &self.path, file: &self.file };
        let reserved_from = self.fs().is_reserved().then_some(before_bytes);
        // Behind the old journal.
        let zero_from = self.file.metadata().map_err(file_error("examine", &self.path))?.len();
        lengthen(&self.file, file_bytes(length), reserved_from).map_err(file_error("lengthen", &self.path))?;
        let superblock = thread.superblock_of(*geometry).map_err(|source| self.engine_error(source))?;
        self.prepare_copy(commits, geometry, &superblock)?;
        let disk = ImageFile::new(self.file.as_raw_fd());
        Journal::create(disk, commits.uuid(), length, log_bytes(length)).map_err(|cause| match cause {
            JournalError::Disk(DiskError(errno)) => self.errno_error("write the journal of", Errno(errno)),
            cause => self.errno_error("write the journal of", posix::commits::errno_of(cause)),
        })?;
        file.write_block_map(self.fs(), (&self.fs().geometry(), geometry), zero_from)?;
        file.write(&superblock, geometry.copy_block() * BLOCK_BYTES)?;
        Ok(superblock)
    }

    /// Gives the working copy what it has behind the old end.
    fn prepare_copy(&self, commits: &Commits, geometry: &Geometry, superblock: &[u8]) -> Result<(), ImageError> {
        let copy = &self.memory.mapping;
        let failed = || {
            |error: io::Error| match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => self.no_scratch(geometry),
                _ => file_error("enlarge the working copy of", &self.path)(error),
            }
        };
        let Some(file) = copy.file() else { return Err(failed()(io::ErrorKind::Unsupported.into())) };
        let (tracking, length) = (commits.tracking(), geometry.blocks * BLOCK_BYTES);
        let from = geometry.block_map_block * BLOCK_BYTES;
        // In memory the marks of other pages come with these.
        let provided = match copy.backing() {
            Backing::File { .. } => fill::provide_marks(copy, tracking, &tracking.memory_for(length)),
            _ => fill::provide_marks(copy, tracking, &tracking.marks_of(from, length - from)),
        };
        provided.map_err(failed())?;
        if let Some(residency) = commits.residency() {
            fill::provide_bits(copy, (length, tracking.region_bytes())).map_err(failed())?;
            residency.set_resident(from, length - from);
        }
        // An attempt that failed may have left another map.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let is_zero = rustix::fs::fallocate(file, flags, from, length - from).is_ok();
        let zero_from = if is_zero { from } else { u64::MAX };
        let geometries = (&self.fs().geometry(), geometry);
        let mapped = ResizedFile { path: &self.path, file }.write_block_map(self.fs(), geometries, zero_from);
        mapped.map_err(|error| match error {
            ImageError::File { source, .. } => failed()(source),
            error => error,
        })?;
        file.write_all_at(superblock, geometry.copy_block() * BLOCK_BYTES).map_err(failed())
    }

    fn no_scratch(&self, geometry: &Geometry) -> ImageError {
        // The map, the copy of the superblock, and what counts changes.
        let behind = (geometry.blocks - geometry.block_map_block) * BLOCK_BYTES;
        ImageError::NoScratch {
            path: self.path.clone(),
            needed: behind + area_bytes(geometry.blocks * BLOCK_BYTES) / 64,
        }
    }

    /// A process whose files may not have so many bytes would be killed for it.
    fn check_file_limit(&self, bytes: u64) -> Result<(), ImageError> {
        match rustix::process::getrlimit(Resource::Fsize).current {
            Some(limit) if limit < bytes => Err(self.errno_error("lengthen", Errno::EFBIG)),
            _ => Ok(()),
        }
    }

    fn errno_error(&self, action: &'static str, errno: Errno) -> ImageError {
        file_error(action, &self.path)(io::Error::from_raw_os_error(errno.0))
    }
}
