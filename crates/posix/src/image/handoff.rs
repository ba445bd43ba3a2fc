//! Handoff of an image to processes that inherit its descriptors over fork and exec.
//!
//! Invariants:
//!
//! - A handed-off image has its own locks. They last until the last process that has its descriptor
//!   or its mapping has ended, in whatever way. So no process takes the image for unused meanwhile,
//!   even if the lender has died.
//! - The lender closes the image, not the borrowers. If the lender dies first, the next attach
//!   recovers the image.

use super::locks::{Byte, Lock, try_set, wait_and_set};
use super::{
    DramBacking, Image, ImageError, MEMORY_NAME, OpenImage, PLATFORM, dram_region, flushing_where_needed, identity_of,
    lock_error, runtime,
};
use engine::{AttachOptions, Fs, Liveness};
use pmem::{Access, Direct, Mapping, Memory, Region};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A handed-off image: descriptors to inherit. They are close-on-exec until the caller changes
/// that.
#[derive(Debug)]
pub struct Handoff {
    image: File,
    image_bytes: u64,
    region: File,
    region_bytes: u64,
    meeting: OwnedFd,
    flushes: bool,
    /// Number of the lending process. It selects the lock byte that borrowers hold.
    owner: u32,
}

impl Handoff {
    /// Descriptor of the image, and the number of mapped bytes.
    pub fn image(&self) -> (BorrowedFd<'_>, u64) {
        (self.image.as_fd(), self.image_bytes)
    }

    /// Descriptor of the DRAM region, and the number of mapped bytes.
    pub fn region(&self) -> (BorrowedFd<'_>, u64) {
        (self.region.as_fd(), self.region_bytes)
    }

    /// Descriptor of the meeting directory. A borrower opens its own description through it.
    pub fn meeting(&self) -> BorrowedFd<'_> {
        self.meeting.as_fd()
    }

    /// Whether lines of the image must be flushed.
    pub fn flushes(&self) -> bool {
        self.flushes
    }

    /// Closes the lender's copies of the descriptors, so that only borrowers hold them.
    pub fn into_id(self) -> HandoffId {
        HandoffId { owner: self.owner }
    }
}

/// Identifies a handoff after the lender has closed its descriptors.
#[derive(Debug, Clone, Copy)]
pub struct HandoffId {
    owner: u32,
}

impl<M: Memory> Image<M> {
    /// Hands off the image, once per process.
    pub fn hand_off(&self) -> Result<Handoff, ImageError> {
        let error = |source| lock_error(&self.path, source);
        let file = self.pm.file().ok_or_else(|| error(io::ErrorKind::Unsupported.into()))?;
        let region = self.dram.file().ok_or_else(|| error(io::ErrorKind::Unsupported.into()))?;
        // A separate open file description. Not by path: the image may have none, or have been
        // renamed.
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let image = File::options().read(true).write(true).open(again).map_err(error)?;
        let owner = self.fs().process_number().map_err(|source| self.engine_error(source))?;
        for byte in [Byte::Attached, Byte::Writing, Byte::HandedOff(owner)] {
            if !try_set(&image, byte, Lock::Shared).map_err(error)? {
                return Err(ImageError::InUse { path: self.path.clone() });
            }
        }
        let region = region.try_clone().map_err(error)?;
        let meeting = self.meeting().ok_or_else(|| error(io::ErrorKind::Unsupported.into()))?;
        let meeting = runtime::own_description(meeting).map_err(error)?;
        let (image_bytes, region_bytes) = (self.pm.length(), self.dram.length());
        Ok(Handoff { image, image_bytes, region, region_bytes, meeting, flushes: self.fs().pm().flushes(), owner })
    }

    fn meeting(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing_of_dram {
            DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) => Some(runtime.meeting()),
            DramBacking::HandedOff(meeting) => Some(meeting.as_fd()),
            DramBacking::Private => None,
        }
    }

    fn engine_error(&self, source: engine::Error) -> ImageError {
        ImageError::Engine { path: self.path.clone(), source }
    }

    /// Whether all borrowers of the image have ended.
    pub fn is_handoff_over(&self, handoff_id: HandoffId) -> Result<bool, ImageError> {
        self.after_handoff(handoff_id, |file, byte| try_set(file, byte, Lock::Exclusive))
    }

    /// Sleeps until all borrowers of the image have ended.
    pub fn wait_for_handoff(&self, handoff_id: HandoffId) -> Result<(), ImageError> {
        self.after_handoff(handoff_id, |file, byte| wait_and_set(file, byte, Lock::Exclusive))
    }

    fn after_handoff<T>(
        &self,
        handoff_id: HandoffId,
        probe: impl FnOnce(&File, Byte) -> io::Result<T>,
    ) -> Result<T, ImageError> {
        let error = |source| lock_error(&self.path, source);
        let file = self.pm.file().ok_or_else(|| error(io::ErrorKind::Unsupported.into()))?;
        let byte = Byte::HandedOff(handoff_id.owner);
        let answer = probe(file, byte).map_err(error)?;
        try_set(file, byte, Lock::None).map_err(error)?;
        Ok(answer)
    }
}

impl Image<Direct> {
    /// Opens an image by handed-off descriptors. Dropping it does nothing more. The open file
    /// description of `meeting` belongs to this process alone: see [`own_description`].
    ///
    /// [`own_description`]: super::own_description
    pub fn open_handed_off(
        image: File,
        region: File,
        meeting: OwnedFd,
        options: &OpenImage,
    ) -> Result<Image, ImageError> {
        let path = Path::new(MEMORY_NAME);
        let identity = identity_of(&image, path)?;
        let pm = Arc::new(Mapping::from_file(image, path, Access::ReadWrite)?);
        let dram = Arc::new(Mapping::from_file(region, path, Access::ReadWrite)?);
        let attach =
            AttachOptions { read_only: options.read_only, cached_files_max: options.cached_files_max, image: identity };
        let liveness = Liveness::shared(meeting.as_raw_fd());
        // SAFETY: mapped readable and writable; the `Image` that owns this region outlives it with
        // the mapping.
        let pm_region = unsafe { Region::new(pm.address(), pm.length(), Direct) };
        let pm_region = flushing_where_needed(pm_region, &pm, options);
        let fs = Fs::attach_shared(pm_region, dram_region(&dram), &PLATFORM, liveness, &attach)
            .map_err(|source| ImageError::Engine { path: path.to_owned(), source })?;
        Ok(Image {
            fs: Some(fs),
            pm,
            dram,
            backing_of_dram: DramBacking::HandedOff(meeting),
            path: path.to_owned(),
            report: None,
        })
    }
}
