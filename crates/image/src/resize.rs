//! Changes of an image that no process uses: its size, its label, its UUID. An image in use only
//! grows, see `growth`.
//!
//! The description of the image is replaced by one write within a sector, after all that it relies
//! on is durable. So a crash at any instant leaves the image as it was, or as it is to be. Nothing
//! that a file uses is moved.
//!
//! The place of all areas follows from the length, and a longer image has a longer block map, where
//! files lie. So a resized image has its block map at the end; a word keeps the number of blocks
//! that mkfs made, and an incompatible feature keeps older programs away. The map's old place stays
//! unused (a block per 64 MiB). *Rejected:* a new image into which all is copied (it needs the
//! space twice and changes inode numbers); moving what lies in the way (many small steps to
//! recover).

use super::device;
use super::exclusive::ExclusiveImage;
use super::journal_room::image_bytes_within;
use super::{Image, ImageError, OpenImage, make};
use engine::format::{Geometry, Superblock};
use engine::{DESCRIPTION_BYTES, DescriptionChange, SNAPSHOT_FIGURES, changed_superblock};
use pmem::{BLOCK_BYTES, Direct, Memory};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Blocks in a word of the block map.
const BLOCKS_PER_WORD: u64 = 32;

/// What a resize did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resized {
    /// Bytes of the image before.
    pub before_bytes: u64,
    /// Bytes now.
    pub after_bytes: u64,
}

/// Changes the size of an image. Files are not moved: an image can shrink only as far as blocks at
/// its end are free, and when no process uses it.
pub fn resize(path: impl AsRef<Path>, length: u64, options: &OpenImage) -> Result<Resized, ImageError> {
    let path = path.as_ref();
    let length = length / BLOCK_BYTES * BLOCK_BYTES;
    let alone = match open_clean(path, options) {
        Err(ImageError::NotExclusive { .. } | ImageError::InUse { .. } | ImageError::Changing { .. }) => {
            return super::growth::grow(path, length, options);
        }
        alone => alone?,
    };
    if alone.mapping().backing().is_device() {
        return Err(ImageError::DeviceSize { path: path.to_owned() });
    }
    let (is_on_disk, before_bytes) = Resize { path, alone: &alone }.perform(length)?;
    drop(alone);
    if !is_on_disk && before_bytes != length {
        // Otherwise the next use makes the maps of free space.
        Image::open(path, &OpenImage { exclusive: true, ..options.clone() })?.close()?;
    }
    Ok(Resized { before_bytes, after_bytes: length })
}

/// Opens an image that no process uses and that needs no recovery. It has its maps.
fn open_clean(path: &Path, options: &OpenImage) -> Result<ExclusiveImage, ImageError> {
    let not_usable = |cause| ImageError::NotUsable { path: path.to_owned(), cause };
    let is_clean = |alone: &ExclusiveImage| -> Result<bool, ImageError> {
        let region = alone.mapping().region(Direct)?;
        Superblock::check(&region, true).map_err(not_usable)?;
        // A resize of an image on a disk leaves no snapshot.
        let mut figures = [0; SNAPSHOT_FIGURES.1];
        let has_snapshot =
            region.read_bytes(SNAPSHOT_FIGURES.0, &mut figures).is_ok() && figures.iter().any(|&byte| byte != 0);
        Ok(has_snapshot && region.first::<Superblock>().is_ok_and(|superblock| superblock.state().clean))
    };
    let alone = ExclusiveImage::open(path)?;
    if is_clean(&alone)? {
        return Ok(alone);
    }
    drop(alone);
    Image::open(path, &OpenImage { exclusive: true, ..options.clone() })?.close()?;
    ExclusiveImage::open(path)
}

struct Resize<'a> {
    path: &'a Path,
    alone: &'a ExclusiveImage,
}

impl Resize<'_> {
    fn file(&self) -> Result<ResizedFile<'_>, ImageError> {
        let unsupported = || file_error("resize", self.path)(io::ErrorKind::Unsupported.into());
        Ok(ResizedFile { path: self.path, file: self.alone.mapping().file().ok_or_else(unsupported)? })
    }

    /// Returns whether the image is on a disk, and its old length.
    fn perform(&self, length: u64) -> Result<(bool, u64), ImageError> {
        let reading = self.alone.attach_for_reading(self.path)?;
        let fs = reading.fs();
        let before = fs.geometry();
        let (file, before_bytes) = (self.file()?, before.blocks * BLOCK_BYTES);
        let is_on_disk = self.alone.mapping().backing().is_disk();
        if length == before_bytes {
            return Ok((is_on_disk, before_bytes));
        }
        let last_used = fs.last_used_block().map_err(|source| self.engine_error(source))?;
        let geometry = before.with_length(length).filter(|geometry| geometry.data_end() > last_used);
        let Some(geometry) = geometry else {
            let least = least_bytes(&before, last_used);
            return Err(ImageError::DoesNotFit { path: self.path.to_owned(), wanted: length, least });
        };
        let region = self.alone.mapping().region(Direct)?;
        let change = DescriptionChange { geometry: Some(geometry), ..DescriptionChange::default() };
        let superblock = changed_superblock(&region, &change).map_err(|source| self.engine_error(source))?;
        file.make_room(before_bytes, length, is_reserved(file.file, before_bytes))?;
        // Crash points: until the description is written, the image has its old length.
        file.drop_snapshot()?;
        file.clear_behind(length, before_bytes)?;
        file.write(&superblock, length - BLOCK_BYTES)?;
        file.write(&superblock[..DESCRIPTION_BYTES], 0)?;
        // The new length counts from here on. A block device holds anything behind the old end.
        let zero_from = if device::is_block(file.file) { u64::MAX } else { before_bytes };
        file.write_block_map(fs, (&before, &geometry), zero_from)?;
        if length < before_bytes && !device::is_block(file.file) {
            file.file.set_len(length).map_err(file_error("shorten", self.path))?;
        }
        file.file.sync_all().map_err(file_error("sync", self.path))?;
        Ok((is_on_disk, before_bytes))
    }

    fn engine_error(&self, source: engine::Error) -> ImageError {
        ImageError::Engine { path: self.path.to_owned(), source }
    }
}

/// Whether the space of an image's file is reserved as a whole, as far as that can be seen: it may
/// also be full.
pub(super) fn is_reserved(file: &File, image_bytes: u64) -> bool {
    device::is_block(file) || file.metadata().is_ok_and(|metadata| metadata.blocks() * 512 >= image_bytes)
}

pub(super) fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::File { action, path, source }
}

/// Makes a file longer. `reserved_from`: from there on its space is reserved.
pub(super) fn lengthen(file: &File, length: u64, reserved_from: Option<u64>) -> io::Result<()> {
    let reserved = match reserved_from {
        Some(from) => rustix::fs::fallocate(file, FallocateFlags::empty(), from, length - from),
        None => Err(rustix::io::Errno::OPNOTSUPP),
    };
    match reserved {
        // Not reserved before, or the file system cannot.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(length),
        reserved => Ok(reserved?),
    }
}

/// The file of an image whose size or description changes.
pub(super) struct ResizedFile<'a> {
    pub path: &'a Path,
    pub file: &'a File,
}

impl ResizedFile<'_> {
    /// Removes the empty journal behind the image, and lengthens the file. `is_reserved`: so is the
    /// new space.
    pub fn make_room(&self, before_bytes: u64, length: u64, is_reserved: bool) -> Result<(), ImageError> {
        let file = self.file;
        if device::is_block(file) {
            let bytes = pmem::length_bytes(file).map_err(file_error("examine", self.path))?;
            let most = image_bytes_within(bytes);
            if length > most.max(before_bytes) {
                return Err(ImageError::DeviceTooSmall { path: self.path.to_owned(), wanted: length, most });
            }
            self.remove_journal(length.max(before_bytes))?;
            return self.remove_journal(before_bytes);
        }
        self.remove_journal(before_bytes)?;
        if length <= before_bytes {
            return Ok(());
        }
        let added = length - before_bytes;
        lengthen(file, length, is_reserved.then_some(before_bytes)).map_err(|source| {
            let _ = file.set_len(before_bytes);
            self.without_space(file_error("lengthen", self.path)(source), added)
        })
    }

    /// Removes the empty journal behind an image.
    fn remove_journal(&self, image_bytes: u64) -> Result<(), ImageError> {
        let removed = match device::is_block(self.file) {
            true => device::erase_journal(self.file, image_bytes),
            false => self.file.set_len(image_bytes),
        };
        removed.map_err(file_error("remove the journal of", self.path))
    }

    /// The error that names what is free, if that was the reason.
    pub fn without_space(&self, error: ImageError, needed: u64) -> ImageError {
        match error {
            ImageError::File { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => {
                let available = rustix::fs::fstatvfs(self.file).map_or(0, |space| space.f_bavail * space.f_frsize);
                ImageError::NoSpace { path: self.path.to_owned(), available, needed }
            }
            error => error,
        }
    }

    /// The snapshot describes the old geometry. Without one, the next use finds out what is free.
    fn drop_snapshot(&self) -> Result<(), ImageError> {
        let (at, bytes) = SNAPSHOT_FIGURES;
        self.write(&vec![0; bytes], at)
    }

    /// What lies behind a shrunk image until the file is shortened must not look like a journal. It
    /// belongs to the old image, and is free or the old copy of the superblock.
    fn clear_behind(&self, length: u64, before_bytes: u64) -> Result<(), ImageError> {
        let end = (length + 2 * BLOCK_BYTES).min(before_bytes.saturating_sub(BLOCK_BYTES));
        match end.checked_sub(length) {
            Some(bytes @ 1..) => self.write(&vec![0; bytes as usize], length),
            _ => Ok(()),
        }
    }

    pub fn write(&self, bytes: &[u8], at: u64) -> Result<(), ImageError> {
        let written = self.file.write_all_at(bytes, at).and_then(|()| self.file.sync_data());
        written.map_err(file_error("write to", self.path))
    }

    /// The block map without a snapshot: it keeps the blocks of damaged files from being reused.
    /// Writes the block map of a new geometry. `before` is the image's in use: blocks behind it are
    /// free up to the new areas. From `zero_from` on the file is zero, so zeros are left out there.
    pub fn write_block_map<M: Memory>(
        &self,
        fs: &engine::Fs<M>,
        (before, geometry): (&Geometry, &Geometry),
        zero_from: u64,
    ) -> Result<(), ImageError> {
        const BLOCKS_PER_PAGE: u64 = BLOCK_BYTES / 8 * BLOCKS_PER_WORD;
        for first in (0..geometry.blocks).step_by(BLOCKS_PER_PAGE as usize) {
            let at = geometry.block_map_block * BLOCK_BYTES + first / BLOCKS_PER_WORD * 8;
            let end = (first + BLOCKS_PER_PAGE).min(geometry.blocks);
            if at >= zero_from && first >= before.blocks && end <= geometry.data_end() {
                continue;
            }
            let mut page = Vec::with_capacity(BLOCK_BYTES as usize);
            for word in (first..end).step_by(BLOCKS_PER_WORD as usize) {
                let used = (word..end.min(word + BLOCKS_PER_WORD))
                    .filter(|number| fs.is_used_with(geometry, *number))
                    .fold(0u64, |bits, number| bits | 1 << ((number - word) * 2));
                page.extend_from_slice(&used.to_le_bytes());
            }
            self.file.write_all_at(&page, at).map_err(file_error("write to", self.path))?;
        }
        Ok(())
    }
}

/// The least length of an image in which a block is the last one in use.
fn least_bytes(geometry: &Geometry, last_used: u64) -> u64 {
    let fits = |blocks: &u64| {
        geometry.with_length(blocks * BLOCK_BYTES).is_some_and(|geometry| geometry.data_end() > last_used)
    };
    let from = (last_used + 2).max(Geometry::LENGTH_MIN / BLOCK_BYTES);
    // The map of that many blocks takes less than a thousandth of them.
    let found = (from..=from + from / 1000 + 1024).find(fits);
    found.map_or(geometry.blocks * BLOCK_BYTES, |blocks| blocks * BLOCK_BYTES)
}

/// What to change in an image's description; absent: as it is.
#[derive(Debug, Clone, Default)]
pub struct Tune {
    /// Label: at most 64 bytes.
    pub label: Option<String>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// Space that only root may take.
    pub reserve: Option<Reserve>,
}

/// A part of an image that is reserved for root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reserve {
    /// So many bytes, rounded up to blocks.
    Bytes(u64),
    /// So many of a hundred blocks.
    Percent(f64),
}

impl Reserve {
    /// In blocks; at most half of those that files can have.
    fn blocks(self, path: &Path, geometry: &Geometry) -> Result<u32, ImageError> {
        let all = geometry.data_end() - geometry.data_block;
        let most = (all / 2).min(u32::MAX.into());
        let blocks = match self {
            Reserve::Bytes(bytes) => bytes.div_ceil(BLOCK_BYTES),
            Reserve::Percent(percent) => (all as f64 * percent / 100.0).ceil() as u64,
        };
        let too_large = || ImageError::ReserveTooLarge { path: path.to_owned(), most: most * BLOCK_BYTES };
        u32::try_from(blocks).ok().filter(|_| blocks <= most).ok_or_else(too_large)
    }
}

/// Changes the description of an image that no process uses. Returns the bytes that are reserved
/// for root, if that was a change.
pub fn tune(path: impl AsRef<Path>, tune: &Tune, options: &OpenImage) -> Result<Option<u64>, ImageError> {
    let path = path.as_ref();
    let label = tune.label.as_deref().map(make::label_bytes).transpose()?;
    let alone = open_clean(path, options)?;
    let region = alone.mapping().region(Direct)?;
    let engine_error = |source| ImageError::Engine { path: path.to_owned(), source };
    let geometry =
        Superblock::check(&region, true).map_err(|cause| ImageError::NotUsable { path: path.to_owned(), cause })?;
    let reserved_blocks = tune.reserve.map(|reserve| reserve.blocks(path, &geometry)).transpose()?;
    let change = DescriptionChange { uuid: tune.uuid, label, geometry: None, reserved_blocks };
    let reserved_bytes = reserved_blocks.map(|blocks| u64::from(blocks) * BLOCK_BYTES);
    if alone.mapping().backing().is_device() {
        // It can only be mapped.
        engine::set_identity(&region, &change).map_err(engine_error)?;
        return Ok(reserved_bytes);
    }
    let superblock = changed_superblock(&region, &change).map_err(engine_error)?;
    let resize = Resize { path, alone: &alone };
    let file = resize.file()?;
    if tune.uuid.is_some() {
        // The journal of an image on a disk carries the UUID. It is empty.
        file.remove_journal(geometry.blocks * BLOCK_BYTES)?;
    }
    file.write(&superblock, geometry.copy_block() * BLOCK_BYTES)?;
    file.write(&superblock[..DESCRIPTION_BYTES], 0)?;
    Ok(reserved_bytes)
}

/// A random UUID (version 4).
pub fn random_uuid() -> [u8; 16] {
    make::random_uuid()
}
