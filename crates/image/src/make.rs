//! Making images. Blocks are reserved in steps, so that progress can be reported and the operation
//! stopped. Failure removes a file that the call created.
//!
//! An image in memory is reserved by huge pages where the kernel has them; `--sparse` reserves
//! nothing. *Reason:* fileserver rose from 278,000 (229–303) to 321,000 (318–334) operations a
//! second; `cp -r` takes 6.3 to 9.0 s into untouched blocks, 1.8 to 2.1 s into used ones. `mkfs
//! --size 4G` waits 0.3 to 0.7 s, up to 10 s where the host must provide memory.

use super::copying::Watch;
use super::device;
use super::journal_room::image_bytes_within;
use super::locks::{Byte, Lock, LockGuard};
use super::snapshot::NewFile;
use super::{CommitPolicy, Image, ImageError, MEMORY_NAME, OpenImage, lock_error};
use engine::dram::HUGE_PAGE_BYTES;
use engine::format::{Geometry, MAGIC};
use engine::{MkfsOptions, Platform};
use pmem::{Access, Backing, Direct, MapError, Mapping, Region};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tables::host::{PLATFORM, collapse, now_ns};

/// Blocks reserved per step: small enough for several progress reports a second.
const RESERVED_AT_ONCE_BYTES: u64 = 64 << 20;

/// Bytes at both ends of a block device that must be zero without `force`: the mark of btrfs lies
/// 64 KiB behind the start.
const MARKS_BYTES: usize = 128 << 10;
/// How long a process that leaves may keep its claim of a block device.
const CLAIMED: Duration = Duration::from_secs(1);

/// Parameters of a new image.
#[derive(Debug, Clone)]
pub struct MakeOptions {
    /// Size in bytes; ignored for a DAX device, which has its own size. On a block device 0 stands
    /// for as much as it can take.
    pub length: u64,
    /// Label: at most 64 bytes.
    pub label: String,
    /// UUID; random if absent.
    pub uuid: Option<[u8; 16]>,
    /// Number of inodes; 0: in proportion to the size.
    pub inodes_max: u64,
    /// Overwrite existing content.
    pub force: bool,
    /// Do not reserve blocks in advance. If the underlying file system runs out of them, calls that
    /// need new ones return ENOSPC.
    pub sparse: bool,
    /// Permission bits of a new image file. A user with access to the file can read and write
    /// everything in the image.
    pub mode: u32,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
    /// Permission bits of the root directory.
    pub permissions: u32,
}

impl Default for MakeOptions {
    fn default() -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        MakeOptions {
            length: 0,
            label: String::new(),
            uuid: None,
            inodes_max: 0,
            force: false,
            sparse: false,
            mode: 0o600,
            owner,
            permissions: 0o755,
        }
    }
}

/// Properties of a new image.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes.
    pub length: u64,
    /// The kind of storage behind it.
    pub backing: Backing,
    /// Whether its blocks are reserved.
    pub reserved: bool,
}

/// Makes an image in a new file, in an empty one, or (with `force`) in place of what is there.
pub fn make(path: impl AsRef<Path>, options: &MakeOptions) -> Result<Made, ImageError> {
    make_watched(path, options, &mut |_, _| true)
}

/// Like [`make`], with progress reports: large images in memory take seconds. If `watch` stops it,
/// the previous content is lost as well.
pub fn make_watched(path: impl AsRef<Path>, options: &MakeOptions, watch: Watch<'_>) -> Result<Made, ImageError> {
    let path = path.as_ref();
    let label = label_bytes(&options.label)?;
    let uuid = options.uuid.unwrap_or_else(random_uuid);
    let target = Target::open(path, options)?;
    let made = target.make(options, uuid, label, watch);
    if made.is_err() && target.is_new {
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Like [`make_watched`], with content: `fill` adds it. The file gets its name when the image is
/// whole and on its medium. Until then, what is there stays; a failure leaves nothing behind. Only
/// a device is changed in place, and holds no image after a failure.
pub fn make_filled<E: From<ImageError>>(
    path: impl AsRef<Path>,
    options: &MakeOptions,
    watch: Watch<'_>,
    fill: impl FnOnce(&Image) -> Result<(), E>,
) -> Result<Made, E> {
    let path = path.as_ref();
    let open = OpenImage { exclusive: true, commits: CommitPolicy::Never, ..OpenImage::default() };
    let fill_and_close = |path: &Path| -> Result<(), E> {
        let image = Image::open(path, &open)?;
        fill(&image)?;
        image.close()?;
        Ok(())
    };
    let (place, old) = Target::existing(path, options)?;
    if let Some(old) = &old
        && old.is_device
    {
        let made = make_watched(path, options, watch)?;
        return match fill_and_close(path) {
            Ok(()) => Ok(made),
            Err(failure) => {
                old.erase()?;
                Err(failure)
            }
        };
    }
    let locks = old.as_ref().map(Target::lock_alone).transpose()?;
    if let Some(old) = &old
        && !options.force
    {
        old.refuse_overwriting()?;
    }
    let new = Target::replacement(old.as_ref(), &place, options.mode)?;
    let unnamed = PathBuf::from(format!("/proc/self/fd/{}", new.file.as_raw_fd()));
    let named = |failure: ImageError| failure.with_path(&unnamed, path);
    let made = make_watched(&unnamed, &MakeOptions { force: true, ..options.clone() }, watch).map_err(named)?;
    fill_and_close(&unnamed)?;
    match old {
        Some(_) => new.replace()?,
        None => new.give_name()?,
    }
    drop(locks);
    Ok(made)
}

/// Makes a file that `fill` fills with an image from elsewhere. The file gets its name when it is
/// whole and on its disk; a failure leaves nothing behind. With `force` it takes the place and the
/// permissions of a file that is there, unless a process uses that one.
pub fn receive<E: From<ImageError>>(
    path: impl AsRef<Path>,
    force: bool,
    fill: impl FnOnce(&File) -> Result<(), E>,
) -> Result<(), E> {
    let (path, options) = (path.as_ref(), MakeOptions::default());
    if !force && path.symlink_metadata().is_ok() {
        return Err(ImageError::from(MapError::Exists { path: path.to_owned() }).into());
    }
    let (place, old) = Target::existing(path, &options)?;
    if let Some(old) = &old
        && old.is_device
    {
        let refused = "it is a device, and only a file can be replaced; choose the name of a file";
        return Err(old.error("replace")(io::Error::other(refused)).into());
    }
    let locks = old.as_ref().map(Target::lock_alone).transpose()?;
    let new = Target::replacement(old.as_ref(), &place, options.mode)?;
    fill(&new.file)?;
    match old {
        Some(_) => new.replace()?,
        None => new.give_name()?,
    }
    drop(locks);
    Ok(())
}

/// Makes an image in a file without a name that takes memory as it fills. The memory is freed with
/// the last process that has the file open.
pub(super) fn make_in_memory(options: &MakeOptions) -> Result<File, ImageError> {
    let label = label_bytes(&options.label)?;
    let uuid = options.uuid.unwrap_or_else(random_uuid);
    let error = |source| ImageError::File { action: "create", path: MEMORY_NAME.into(), source };
    let target = Target {
        file: unnamed_file().map_err(error)?,
        path: MEMORY_NAME.into(),
        is_new: false,
        is_device: false,
        is_block: false,
        is_in_memory: true,
    };
    target.make(&MakeOptions { sparse: true, ..options.clone() }, uuid, label, &mut |_, _| true)?;
    Ok(target.file)
}

/// An empty file in memory without a name.
fn unnamed_file() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("directfs-image", rustix::fs::MemfdFlags::CLOEXEC)?))
}

pub(super) fn label_bytes(label: &str) -> Result<[u8; 64], ImageError> {
    let mut bytes = [0; 64];
    let room = bytes.get_mut(..label.len()).ok_or(ImageError::Label { length: label.len() })?;
    room.copy_from_slice(label.as_bytes());
    Ok(bytes)
}

/// A random UUID (version 4).
pub(super) fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&PLATFORM.random().to_le_bytes());
    uuid[8..].copy_from_slice(&PLATFORM.random().to_le_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// The file that becomes an image.
struct Target {
    file: File,
    path: PathBuf,
    is_new: bool,
    /// It is changed in place.
    is_device: bool,
    /// It is a device with a journal.
    is_block: bool,
    /// Its data end with the memory.
    is_in_memory: bool,
}

impl Target {
    fn open(path: &Path, options: &MakeOptions) -> Result<Target, ImageError> {
        let flags = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let mut opening = OpenOptions::new();
        opening.read(true).write(true).custom_flags(flags).mode(options.mode);
        let error = |source| ImageError::File { action: "create", path: path.to_owned(), source };
        let (file, is_new) = match opening.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists => {
                let opened = opening.open(path).and_then(|file| device::with_locks(file, true));
                (opened.map_err(error)?, false)
            }
            Err(other) => return Err(error(other)),
        };
        let kind = file.metadata().map_err(error)?.file_type();
        let (is_block, is_device) = (kind.is_block_device(), kind.is_block_device() || kind.is_char_device());
        if !kind.is_file() && !is_device {
            return Err(MapError::not_mappable(path, kind).into());
        }
        Ok(Target { file, path: path.to_owned(), is_new, is_device, is_block, is_in_memory: false })
    }

    /// What has a path, and its own path without links; `None`: the name is free.
    fn existing(path: &Path, options: &MakeOptions) -> Result<(PathBuf, Option<Target>), ImageError> {
        if path.symlink_metadata().is_err() {
            return Ok((path.to_owned(), None));
        }
        let error = |source| ImageError::File { action: "create", path: path.to_owned(), source };
        let place = path.canonicalize().map_err(error)?;
        let target = Target::open(&place, options)?;
        Ok((place, Some(target)))
    }

    /// Keeps all other users away until the locks are dropped.
    fn lock_alone(&self) -> Result<(LockGuard<&File>, LockGuard<&File>), ImageError> {
        Ok((self.lock(Byte::Attaching)?, self.lock(Byte::Attached)?))
    }

    /// The file that takes the place of this one; of none, one with this mode.
    fn replacement(old: Option<&Target>, place: &Path, mode: u32) -> Result<NewFile, ImageError> {
        old.map_or_else(|| NewFile::with_mode(place, mode), |old| NewFile::like(place, &old.file))
    }

    fn error(&self, action: &'static str) -> impl FnOnce(io::Error) -> ImageError {
        let path = self.path.clone();
        move |source| ImageError::File { action, path, source }
    }

    fn make(
        &self,
        options: &MakeOptions,
        uuid: [u8; 16],
        label: [u8; 64],
        watch: Watch<'_>,
    ) -> Result<Made, ImageError> {
        let _locks = self.lock_alone()?;
        let _claim = device::Claim::take(&self.file, &self.path, CLAIMED)?;
        if !options.force {
            self.refuse_overwriting()?;
        }
        let length = match (self.is_block, self.is_device) {
            (true, _) => {
                let length = self.length_on_device(options)?;
                self.erase_marks().map_err(self.error("write to"))?;
                length
            }
            (_, true) => u64::MAX,
            _ => self.size(options)?,
        };
        let file = self.file.try_clone().map_err(self.error("open"))?;
        let mapping = Mapping::of_beginning(file, &self.path, Access::ReadWrite, length)?;
        let reserved = self.is_device || !options.sparse && self.reserve(&mapping, watch)?;
        let mkfs = MkfsOptions {
            uuid,
            label,
            inodes_max: options.inodes_max,
            owner: options.owner,
            permissions: options.permissions,
            now_ns: now_ns(),
            zeroed: !self.is_device,
        };
        // SAFETY: mapped readable and writable for longer than the region lives, which is this
        // function.
        let region = unsafe { Region::new(mapping.address(), mapping.length(), Direct) };
        let make = if self.is_in_memory { engine::mkfs_with_holes } else { engine::mkfs };
        if self.is_block {
            // Before the superblock counts: commits of an earlier image must not reach this one.
            device::erase_journal(&self.file, mapping.length()).map_err(self.error("write to"))?;
        }
        make(&region, &mkfs).map_err(|source| ImageError::Engine { path: self.path.clone(), source })?;
        mapping.sync(0..mapping.length()).map_err(self.error("sync"))?;
        Ok(Made { uuid, length: mapping.length(), backing: mapping.backing(), reserved })
    }

    /// Makes a device hold no image any more.
    fn erase(&self) -> Result<(), ImageError> {
        let file = self.file.try_clone().map_err(self.error("open"))?;
        let mapping = Mapping::from_file(file, &self.path, Access::ReadWrite)?;
        // SAFETY: mapped for longer than the region lives.
        let region = unsafe { Region::new(mapping.address(), mapping.length(), Direct) };
        let failed = |_| self.error("erase")(io::ErrorKind::InvalidData.into());
        let flushed = region.stream_bytes(0, &[0; 64]).map_err(failed)?;
        region.fence(flushed);
        mapping.sync(0..pmem::BLOCK_BYTES).map_err(self.error("sync"))
    }

    fn lock(&self, byte: Byte) -> Result<LockGuard<&File>, ImageError> {
        LockGuard::take(&self.file, byte, Lock::Exclusive)
            .map_err(|source| lock_error(&self.path, source))?
            .ok_or_else(|| ImageError::InUse { path: self.path.clone() })
    }

    fn refuse_overwriting(&self) -> Result<(), ImageError> {
        if self.is_block {
            return self.refuse_what_a_device_holds();
        }
        let length = self.file.metadata().map_err(self.error("examine"))?.len();
        let mut start = [0u8; 4096];
        // A DAX device cannot be read, only mapped.
        let count = if self.is_device {
            let file = self.file.try_clone().map_err(self.error("open"))?;
            let mapping = Mapping::from_file(file, &self.path, Access::ReadWrite)?;
            // SAFETY: mapped for longer than the region lives.
            let region = unsafe { Region::new(mapping.address(), mapping.length(), Direct) };
            region.read_bytes(0, &mut start).map_or(0, |()| start.len())
        } else {
            self.file.read_at(&mut start, 0).map_err(self.error("read"))?
        };
        let what = if start[..8] == MAGIC.to_le_bytes() {
            "a DirectFS image already".to_owned()
        } else if self.is_device && start[..count].iter().any(|&byte| byte != 0) {
            "something that is not a DirectFS image".to_owned()
        } else if !self.is_device && length > 0 {
            format!("{length} bytes already")
        } else {
            return Ok(());
        };
        Err(ImageError::WouldOverwrite { path: self.path.clone(), what })
    }

    /// File systems, partition tables, LVM, RAID and swap have their marks at the start of a
    /// device, and some at its end. Whatever is not zero there is taken for one.
    fn refuse_what_a_device_holds(&self) -> Result<(), ImageError> {
        let length = pmem::length_bytes(&self.file).map_err(self.error("examine"))?;
        let mut marks = vec![0; MARKS_BYTES];
        for at in [0, length.saturating_sub(MARKS_BYTES as u64)] {
            let count = self.file.read_at(&mut marks, at).map_err(self.error("read"))?;
            let what = match marks[..count].iter().position(|&byte| byte != 0) {
                None => continue,
                Some(_) if at == 0 && marks.starts_with(&MAGIC.to_le_bytes()) => "a DirectFS image already".to_owned(),
                Some(found) => format!(
                    "something at byte {}, perhaps a file system or a partition table (`blkid -p {}` names it)",
                    at + found as u64,
                    self.path.display()
                ),
            };
            return Err(ImageError::WouldOverwrite { path: self.path.clone(), what });
        }
        Ok(())
    }

    /// Removes such marks: what looks for them must not take the image for something else.
    fn erase_marks(&self) -> io::Result<()> {
        let length = pmem::length_bytes(&self.file)?;
        self.file.write_all_at(&[0; MARKS_BYTES], 0)?;
        self.file.write_all_at(&[0; MARKS_BYTES], length - MARKS_BYTES as u64)
    }

    /// Bytes of an image on a block device.
    fn length_on_device(&self, options: &MakeOptions) -> Result<u64, ImageError> {
        let most = image_bytes_within(pmem::length_bytes(&self.file).map_err(self.error("examine"))?);
        let wanted = match options.length / pmem::BLOCK_BYTES * pmem::BLOCK_BYTES {
            0 => most.max(Geometry::LENGTH_MIN),
            wanted if wanted < Geometry::LENGTH_MIN => {
                return Err(ImageError::Size { length: options.length, least: Geometry::LENGTH_MIN });
            }
            wanted => wanted,
        };
        if wanted > most {
            return Err(ImageError::DeviceTooSmall { path: self.path.clone(), wanted, most });
        }
        Ok(wanted)
    }

    /// Sets the file's size, and returns it; its content is all zeros.
    fn size(&self, options: &MakeOptions) -> Result<u64, ImageError> {
        let length = options.length / pmem::BLOCK_BYTES * pmem::BLOCK_BYTES;
        if length < Geometry::LENGTH_MIN {
            return Err(ImageError::Size { length: options.length, least: Geometry::LENGTH_MIN });
        }
        if !options.sparse {
            self.check_space(length)?;
        }
        self.file.set_len(0).map_err(self.error("empty"))?;
        self.file.set_len(length).map_err(self.error("size"))?;
        Ok(length)
    }

    /// Reserves the file's blocks, in memory as huge pages where possible. `false`: the file system
    /// cannot reserve.
    fn reserve(&self, mapping: &Mapping, watch: Watch<'_>) -> Result<bool, ImageError> {
        let total = mapping.length();
        let mut done = 0;
        while done < total {
            let bytes = RESERVED_AT_ONCE_BYTES.min(total - done);
            let address = mapping.address().wrapping_add(done as usize);
            if mapping.backing() == Backing::Tmpfs && (address as u64).is_multiple_of(HUGE_PAGE_BYTES) {
                // Best effort: the `fallocate` below repeats the request with small pages.
                let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
                collapse(address, whole as usize);
            }
            match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), done, bytes) {
                Ok(()) => done += bytes,
                Err(rustix::io::Errno::NOSPC) => return Err(self.given_up(self.no_space(total))),
                // The file system cannot reserve blocks.
                Err(rustix::io::Errno::OPNOTSUPP) => return Ok(false),
                // The process handled a signal; `watch` decides whether to stop.
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.given_up(self.error("reserve blocks for")(errno.into()))),
            }
            if !watch(done, total) {
                return Err(self.given_up(ImageError::Stopped { path: self.path.clone() }));
            }
        }
        Ok(true)
    }

    /// Frees the reserved blocks and returns the reason.
    fn given_up(&self, reason: ImageError) -> ImageError {
        let _ = self.file.set_len(0);
        reason
    }

    /// Free bytes, together with those that the file has already.
    fn available(&self) -> u64 {
        let own = self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        rustix::fs::fstatvfs(&self.file).map_or(u64::MAX, |space| space.f_bavail * space.f_frsize + own)
    }

    fn no_space(&self, needed: u64) -> ImageError {
        ImageError::NoSpace { path: self.path.clone(), available: self.available(), needed }
    }

    /// Runs before the old content is discarded.
    fn check_space(&self, length: u64) -> Result<(), ImageError> {
        if self.available() < length { Err(self.no_space(length)) } else { Ok(()) }
    }
}
