//! Exclusive access to the bytes of an image, for programs that change it from outside the file
//! system (fsck). No other process can attach meanwhile.

use super::device;
use super::locks::{Byte, Lock, LockGuard, retry_until};
use super::regions::{dram_region, recover};
use super::working::{Base, map_base};
use super::{ImageError, ImageMemory, RUNTIME_PARENT, lock_error, open_file};
use engine::{AttachOptions, Fs, Liveness};
use pmem::{Direct, Mapping};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tables::host::PLATFORM;

/// How long a process may take to leave. After a death of all programs it is the committer, which
/// puts what they did on the disk.
const LEAVING: Duration = Duration::from_secs(1);

/// An image that only this process reads.
pub(super) struct Reading {
    fs: Fs<Direct>,
    // The file system works on both.
    _dram: Arc<Mapping>,
    _image: Arc<Mapping>,
}

impl Reading {
    pub(super) fn fs(&self) -> &Fs<Direct> {
        &self.fs
    }
}

/// An image that only this process uses. Its content is not checked: it may be damaged, or no image
/// at all. The locks end when this is dropped.
pub struct ExclusiveImage {
    mapping: Arc<Mapping>,
    _claim: Option<device::Claim>,
    // No process is attached, and none can attach.
    _locks: [LockGuard<File>; 2],
}

impl ExclusiveImage {
    /// Locks and maps an image, after recovery of its journal if it has one. Fails if another
    /// process uses it, and does not leave it within [`LEAVING`].
    pub fn open(path: impl AsRef<Path>) -> Result<ExclusiveImage, ImageError> {
        let path = path.as_ref();
        let (file, access) = open_file(path, false)?;
        let failed = |source| lock_error(path, source);
        let take = |byte| -> Result<Option<LockGuard<File>>, ImageError> {
            LockGuard::take(file.try_clone().map_err(failed)?, byte, Lock::Exclusive).map_err(failed)
        };
        let mut refusal = ImageError::Changing { path: path.to_owned() };
        let locks = retry_until(LEAVING, || -> Result<_, ImageError> {
            // Both or none: a process that leaves needs the first one.
            let Some(attaching) = take(Byte::Attaching)? else { return Ok(None) };
            let attached = take(Byte::Attached)?;
            if attached.is_none() {
                refusal = ImageError::NotExclusive { path: path.to_owned() };
            }
            Ok(attached.map(|attached| [attaching, attached]))
        })?;
        let Some(locks) = locks else { return Err(refusal) };
        let claim = device::Claim::take(&file, path, LEAVING)?;
        Base { file: &file, path, runtime_parent: Path::new(RUNTIME_PARENT) }.recover()?;
        let mapping = Arc::new(map_base(file, path, access)?);
        Ok(ExclusiveImage { mapping, _claim: claim, _locks: locks })
    }

    /// Attaches for reading, by itself and without any change. The image must be clean.
    pub(super) fn attach_for_reading(&self, path: &Path) -> Result<Reading, ImageError> {
        let engine_error = |source| ImageError::Engine { path: path.to_owned(), source };
        let options = AttachOptions { read_only: true, ..AttachOptions::default() };
        let memory = ImageMemory::in_place(&self.mapping);
        let region = || memory.region(Direct, false);
        let layout = Fs::<Direct>::dram_layout(&region(), &options).map_err(engine_error)?;
        let dram = Arc::new(Mapping::anonymous(layout.length)?);
        let recovery = Fs::attach_first(region(), dram_region(&dram), &PLATFORM, Liveness::alone(), &options);
        let recovery = recovery.map_err(engine_error)?;
        recover(&recovery, 0).map_err(engine_error)?;
        let (fs, _) = recovery.finish().map_err(engine_error)?;
        Ok(Reading { fs, _dram: dram, _image: Arc::clone(&self.mapping) })
    }

    /// The mapping of the image.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
