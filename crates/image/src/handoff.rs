//! Handoff of an image to processes that inherit its descriptors over fork and exec.
//!
//! Invariants:
//!
//! - A handed-off image and its region have their own locks. They last until the last process that
//!   has their descriptors or their mappings has ended, in whatever way. So no process takes the
//!   image for unused meanwhile, even if the lender has died.
//! - A lock on the image says whether borrowers remain. It ends together with their other locks:
//!   a lender that saw it end before these would not leave the image clean. An image that may only
//!   be read cannot be locked exclusively. There the lock is on the region, and nothing is left
//!   clean.
//! - The lender closes the image, not the borrowers. If the lender dies first, the next attach
//!   recovers the image.

use super::attempt::working_memory;
use super::growth::{join_growth, memory_of};
use super::locks::{Byte, Lock, try_set, wait_and_set};
use super::regions::dram_region;
use super::{
    Committer, DramBacking, Image, ImageError, MEMORY_NAME, OpenImage, PLATFORM, identity_of, lock_error, runtime,
};
use engine::{AttachOptions, Fs, Liveness};
use pmem::{Access, Direct, Mapping, Memory};
use posix::Storage;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
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
    /// The image's file, if `image` is its working copy.
    journal: Option<File>,
    region: File,
    region_bytes: u64,
    meeting: OwnedFd,
    flushes: bool,
    in_place: bool,
    /// Number of the lending process. It selects the lock byte that borrowers hold.
    owner: u32,
}

impl Handoff {
    /// Descriptor of the memory that holds the image, and the image's bytes.
    pub fn image(&self) -> (BorrowedFd<'_>, u64) {
        (self.image.as_fd(), self.image_bytes)
    }

    /// Descriptor of the image's file with its journal, if the image is a working copy of it.
    pub fn journal(&self) -> Option<BorrowedFd<'_>> {
        self.journal.as_ref().map(AsFd::as_fd)
    }

    /// Descriptor of the DRAM region, and the number of mapped bytes.
    pub fn region(&self) -> (BorrowedFd<'_>, u64) {
        (self.region.as_fd(), self.region_bytes)
    }

    /// Descriptor of a directory below the meeting directory. A borrower opens its own description
    /// through it.
    pub fn meeting(&self) -> BorrowedFd<'_> {
        self.meeting.as_fd()
    }

    /// Whether the image can only be read by its descriptor.
    pub fn is_image_read_only(&self) -> bool {
        access_of(&self.image) == Access::ReadOnly
    }

    /// Whether lines of the image must be flushed.
    pub fn flushes(&self) -> bool {
        self.flushes
    }

    /// Whether the image lies on a disk and is used in place ([`posix::Storage::InPlace`]).
    pub fn in_place(&self) -> bool {
        self.in_place
    }

    /// Closes the lender's copies of the descriptors, so that only borrowers hold them.
    pub fn into_id(self) -> HandoffId {
        HandoffId { owner: self.owner }
    }
}

/// The descriptors of a handed-off image, as a borrower has them.
#[derive(Debug)]
pub struct HandedOff {
    /// The memory that holds the image.
    pub image: File,
    /// The image's file, if `image` is a working copy of it.
    pub journal: Option<File>,
    /// The DRAM region.
    pub region: File,
    /// The meeting directory: an open file description of this process alone, see
    /// [`own_description`](super::own_description).
    pub meeting: OwnedFd,
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
        let region = self.open_again(self.region_file()?)?;
        let image = self.open_again(&self.file)?;
        let owner = self.fs().processes().process_number().map_err(|source| self.engine_error(source))?;
        let borrowed = if self.is_writing { &image } else { &region };
        let writing = self.is_writing.then_some((&image, Byte::Writing));
        let locks = [(&image, Byte::Attached), (borrowed, Byte::HandedOff(owner))];
        for (file, byte) in locks.into_iter().chain(writing) {
            if !try_set(file, byte, Lock::Shared).map_err(error)? {
                return Err(ImageError::InUse { path: self.path.clone() });
            }
        }
        let meeting = self.meeting().ok_or_else(|| error(io::ErrorKind::Unsupported.into()))?;
        let meeting = runtime::own_description(meeting).map_err(error)?;
        let (image, journal) = match (&self.memory.commits, self.memory.mapping.file()) {
            (Some(_), Some(working)) => (working.try_clone().map_err(error)?, Some(image)),
            _ => (image, None),
        };
        Ok(Handoff {
            image,
            image_bytes: self.length(),
            journal,
            region,
            region_bytes: self.dram.length(),
            meeting,
            flushes: self.fs().pm().flushes(),
            in_place: matches!(self.storage(), Storage::InPlace(_)),
            owner,
        })
    }

    /// A separate open file description. Not by path: the file may have none, or have been renamed.
    fn open_again(&self, file: &File) -> Result<File, ImageError> {
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_writable = access_of(file) == Access::ReadWrite;
        File::options().read(true).write(is_writable).open(again).map_err(|source| ImageError::File {
            action: "open again (by /proc/self/fd, so /proc must be mounted)",
            path: self.path.clone(),
            source,
        })
    }

    fn region_file(&self) -> Result<&File, ImageError> {
        self.dram.file().ok_or_else(|| lock_error(&self.path, io::ErrorKind::Unsupported.into()))
    }

    fn meeting(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing_of_dram {
            DramBacking::NamedFile(runtime) | DramBacking::Inheritable(runtime) => Some(runtime.description()),
            DramBacking::HandedOff(meeting) => Some(meeting.as_fd()),
            DramBacking::Private(_) => None,
        }
    }

    pub(super) fn engine_error(&self, source: engine::Error) -> ImageError {
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
        let file = if self.is_writing { &self.file } else { self.region_file()? };
        let byte = Byte::HandedOff(handoff_id.owner);
        let answer = probe(file, byte).map_err(error)?;
        try_set(file, byte, Lock::None).map_err(error)?;
        Ok(answer)
    }
}

impl Image<Direct> {
    /// Opens an image by handed-off descriptors. Dropping it does nothing more.
    pub fn open_handed_off(handed_off: HandedOff, options: &OpenImage) -> Result<Image, ImageError> {
        let HandedOff { image, journal, region, meeting } = handed_off;
        let path = Path::new(MEMORY_NAME);
        let unsupported = || lock_error(path, io::ErrorKind::Unsupported.into());
        let file = match &journal {
            Some(journal) => journal.try_clone(),
            None => image.try_clone(),
        };
        let file = Arc::new(file.map_err(|source| lock_error(path, source))?);
        let identity = identity_of(&file, path)?;
        let dram = Arc::new(Mapping::from_file(region, path, Access::ReadWrite)?);
        let (memory, backing) = if journal.is_some() {
            let backing = pmem::Backing::of_file(&*file);
            (working_memory(image, &dram, path, &file)?.ok_or_else(unsupported)?, backing)
        } else {
            let size = engine::image_size(&dram_region(&dram));
            let size = size.map_err(|source| ImageError::Engine { path: path.to_owned(), source })?;
            let access = access_of(&image);
            let memory = memory_of(image, path, access, (size.bytes, size.capacity_bytes))?;
            let backing = memory.mapping.backing();
            (memory, backing)
        };
        let attach = AttachOptions {
            read_only: options.read_only,
            cached_files_max: options.cached_files_max,
            image: identity,
            ..AttachOptions::default()
        };
        let liveness = Liveness::shared(meeting.as_raw_fd());
        let region = memory.region(Direct, options.always_flush);
        let fs = Fs::attach_shared(region, dram_region(&dram), &PLATFORM, liveness, &attach)
            .map_err(|source| ImageError::Engine { path: path.to_owned(), source })?;
        join_growth(&fs, path)?;
        Ok(Image {
            service: None,
            committer: Committer::default(),
            trims: None,
            fs: Some(Arc::new(fs)),
            memory,
            dram,
            backing_of_dram: DramBacking::HandedOff(meeting),
            file,
            backing,
            claim: None,
            path: path.to_owned(),
            report: None,
            is_recovered_copy: false,
            is_writing: !options.read_only,
        })
    }
}

/// What a descriptor permits.
fn access_of(file: &File) -> Access {
    let is_writable = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    if is_writable { Access::ReadWrite } else { Access::ReadOnly }
}
