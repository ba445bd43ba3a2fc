//! Snapshots: a consistent copy of an image, also while programs use it.
//!
//! An image in use is not stopped. One in memory or on DAX is copied whole, and then what changed
//! meanwhile until little is left, which is copied at a cut. For one on a disk the snapshot
//! keeps checkpoints away, commits, and then copies the image's file, which only checkpoints change
//! (`commits::pin`). At the end it applies the journal of that moment to the copy. So it is the
//! state of a commit that begins after the call.
//!
//! One snapshot of an image is taken at a time. Another one waits; for an image on a disk only
//! while the first one makes progress.
//!
//! Invariant: the new file gets its name when it is whole and on its disk.
//!
//! Marks of a copy in memory or on DAX are made only while a word in the header of the tracking
//! area says so. A snapshot sets the word, and waits until every processor has passed a memory
//! barrier (membarrier), because a thread that loads the old word marks nothing. Each flush and
//! fence in memory loads that word of a quiet line. A file that changes through a mapping may be a
//! mixture. *Rejected:* fences that wait while all is copied; marks at all times (each flush would
//! pay).

use super::copying::{Watch, read_for_copy};
use super::extents::for_each_extent;
use super::locks::{Byte, Lock, LockGuard, retry_until};
use super::working::{Base, copy_file, copy_newest, image_length};
use super::working_file;
use super::{
    CommitPolicy, Image, ImageError, OpenImage, RUNTIME_PARENT, lock_error, make, open_file, permissions, users,
};
use engine::Platform;
use pmem::{Access, BLOCK_BYTES, Direct, MapError, Mapping, Region, Tracking};
use posix::Errno;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tables::host::{PLATFORM, pass_barrier_everywhere};

/// The identity of a copy that is to be used beside its original.
#[derive(Debug, Clone, Default)]
pub struct NewIdentity {
    /// Label: at most 64 bytes; absent: as the original has it.
    pub label: Option<String>,
}

/// Copies an image to a new file. `identity`: give it a UUID of its own.
pub fn snapshot(
    image: impl AsRef<Path>,
    target: impl AsRef<Path>,
    identity: Option<&NewIdentity>,
    options: &OpenImage,
    watch: Watch<'_>,
) -> Result<(), ImageError> {
    let path = image.as_ref();
    snapshot_by(path, target, identity, |file| copy_state(path, file, options, watch))
}

/// Makes a new file that `copy` fills with the content of an image.
pub fn snapshot_by<E: From<ImageError>>(
    image: impl AsRef<Path>,
    target: impl AsRef<Path>,
    identity: Option<&NewIdentity>,
    copy: impl FnOnce(&File) -> Result<(), E>,
) -> Result<(), E> {
    let (file, _) = open_file(image.as_ref(), true)?;
    let new = NewFile::create(target.as_ref(), &file)?;
    copy(&new.file)?;
    Ok(new.finish(identity)?)
}

/// Makes a file without a name that `copy` fills with the content of an image. It is in memory if
/// it fits there, otherwise beside the image.
pub fn unnamed_copy<E: From<ImageError>>(
    image: impl AsRef<Path>,
    identity: Option<&NewIdentity>,
    copy: impl FnOnce(&File) -> Result<(), E>,
) -> Result<File, E> {
    let path = image.as_ref();
    let file = working_file::create_unnamed(image_length(path)?, None, path);
    let file = file.map_err(|source| ImageError::File { action: "copy", path: path.to_owned(), source })?;
    copy(&file)?;
    make_unused(&file, path, identity)?;
    Ok(file)
}

/// Opens a copy of an image that `copy` fills. It has no name.
pub fn open_copy<E: From<ImageError>>(
    image: impl AsRef<Path>,
    copy: impl FnOnce(&File) -> Result<(), E>,
) -> Result<Image, E> {
    let file = unnamed_copy(&image, None, copy)?;
    let place = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(Image::open(place, &OpenImage { exclusive: true, commits: CommitPolicy::Never, ..OpenImage::default() })?)
}

/// Copies the state of one moment into an empty file, as it is: a copy of an image in use looks
/// like one after a crash.
pub fn copy_state(path: &Path, into: &File, options: &OpenImage, watch: Watch<'_>) -> Result<(), ImageError> {
    let (file, _) = open_file(path, true)?;
    let base = Base { file: &file, path, runtime_parent: &options.dram_directory };
    let failed = |source| lock_error(path, source);
    let guard =
        retry_until(options.timeout, || LockGuard::take(&file, Byte::Attaching, Lock::Shared)).map_err(failed)?;
    let Some(attaching) = guard else { return Err(ImageError::Changing { path: path.to_owned() }) };
    if users(&file).map_err(failed)?.writing {
        drop(attaching);
        let options = OpenImage { commits: CommitPolicy::WhenSynced, ..options.clone() };
        return Image::open(path, &options)?.copy_into(into, watch);
    }
    // No process can begin to write it before the guard is dropped.
    copy_newest(&base, into, watch)
}

impl Image {
    /// Copies the image, which this process has open, into an empty file.
    pub fn copy_into(&self, into: &File, watch: Watch<'_>) -> Result<(), ImageError> {
        let base = Base { file: &self.file, path: &self.path, runtime_parent: Path::new(RUNTIME_PARENT) };
        let Some(commits) = self.memory.commits else { return copy_live(&base, self, into, watch) };
        let failed = |errno: Errno| ImageError::File {
            action: "commit",
            path: self.path.clone(),
            source: io::Error::from_raw_os_error(errno.0),
        };
        let thread = self.fs().enter().map_err(|error| failed(error.into()))?;
        let number = self.fs().processes().process_number().map_err(|error| failed(error.into()))?;
        let pinned = loop {
            match commits.keep_checkpoints_away(&thread, number) {
                Err(Errno::EBUSY) if commits.is_pin_silent() => {
                    return Err(ImageError::CopyStopped { path: self.path.clone() });
                }
                // One snapshot at a time.
                Err(Errno::EBUSY) if watch(0, self.length()) => std::thread::sleep(TURN),
                Err(Errno::EBUSY) => return Err(base.copy_error(io::ErrorKind::Interrupted.into())),
                pinned => break pinned.map_err(failed)?,
            }
        };
        // It begins after a checkpoint that still runs.
        commits.commit(&thread).map_err(failed)?;
        let copied = copy_file(&base, into, &mut |bytes, of| pinned.is_held() && watch(bytes, of));
        if !pinned.is_held() {
            return Err(ImageError::Overtaken { path: self.path.clone() });
        }
        copied
    }

    /// The owner of the image's file; `None`: it cannot be examined.
    pub fn owner(&self) -> Option<u32> {
        rustix::fs::fstat(&*self.file).ok().map(|found| found.st_uid)
    }
}

/// Copies an image in memory or on DAX while programs change it. Lines that are flushed from the
/// beginning on are marked, and copied again, the last ones at a cut (see [`pmem::Tracking`]).
fn copy_live(base: &Base<'_>, image: &Image, into: &File, watch: Watch<'_>) -> Result<(), ImageError> {
    let failed = |source| ImageError::File { action: "copy", path: base.path.to_owned(), source };
    let errno = |errno: Errno| failed(io::Error::from_raw_os_error(errno.0));
    let Some(tracking) = image.fs().pm().tracking_area().copied() else {
        return Err(ImageError::NoCommits { path: base.path.to_owned() });
    };
    let thread = image.fs().enter().map_err(|error| errno(error.into()))?;
    // One snapshot at a time.
    let _held = thread.lock_commits().map_err(|error| errno(error.into()))?;
    let _marking = Marking::begin(&image.dram, tracking, image.length()).map_err(failed)?;
    let mut copy = LiveCopy { region: image.fs().pm(), tracking, file: into };
    into.set_len(image.length()).map_err(failed)?;
    copy.copy_all(image, watch).and_then(|()| copy.copy_changes()).map_err(|error| base.copy_error(error))
}

/// Marks are made while it exists.
struct Marking(Tracking);

impl Marking {
    fn begin(dram: &Mapping, tracking: Tracking, image_bytes: u64) -> io::Result<Marking> {
        if let Some(file) = dram.file() {
            // Programs mark without a test whether there is room. The image does not grow now.
            for (address, length) in tracking.memory_for(image_bytes) {
                let at = (address.addr() - dram.address().addr()) as u64;
                rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, length as u64)?;
            }
        }
        tracking.clear();
        tracking.set_active(true);
        pass_barrier_everywhere();
        Ok(Marking(tracking))
    }
}

impl Drop for Marking {
    fn drop(&mut self) {
        self.0.set_active(false);
        self.0.clear();
    }
}

/// How often a snapshot looks whether another one has ended.
const TURN: Duration = Duration::from_millis(10);
/// Bytes copied at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Rounds of copying what changed meanwhile, at most, and bytes of changes that end them.
const ROUNDS: u32 = 16;
const FEW_BYTES: u64 = 256 << 10;
/// Cuts that programs may cancel, because they waited too long, before the snapshot gives up.
const CUTS: u32 = 50;

/// A copy of a region that changes.
struct LiveCopy<'c> {
    region: &'c Region<Direct>,
    tracking: Tracking,
    file: &'c File,
}

impl LiveCopy<'_> {
    /// Copies the whole region, but for holes.
    fn copy_all(&mut self, image: &Image, watch: Watch<'_>) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES as usize];
        let mut copy = |start: u64, end: u64| {
            for at in (start..end).step_by(PIECE_BYTES as usize) {
                let piece = &mut buffer[..PIECE_BYTES.min(end - at) as usize];
                read_for_copy(self.region, at, piece)?;
                self.file.write_all_at(piece, at)?;
                if !watch(at, image.length()) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            Ok(())
        };
        match image.mapping().file().filter(|_| !image.backing().is_device()) {
            Some(file) => for_each_extent(file, image.length(), &mut copy),
            None => copy(0, image.length()),
        }
    }

    /// Copies what changed since marks are made, and ends at a cut.
    fn copy_changes(&mut self) -> io::Result<()> {
        for _ in 0..ROUNDS {
            if self.tracking.marked_bytes() < FEW_BYTES {
                break;
            }
            self.copy_marked()?;
        }
        for _ in 0..CUTS {
            self.copy_marked()?;
            let raised = self.tracking.raise_cut();
            // Programs wait: nothing is written to the disk until the flag falls.
            let mut pages = Vec::new();
            let read = self.read_marked(&mut |offset, page| pages.push((offset, *page)));
            let is_whole = self.tracking.lower_cut(raised);
            read?;
            for (offset, page) in &pages {
                self.file.write_all_at(page, *offset)?;
            }
            if is_whole {
                return Ok(());
            }
        }
        Err(io::Error::other("programs change it faster than it can be copied; try again when they do less"))
    }

    fn copy_marked(&mut self) -> io::Result<()> {
        let mut written = Ok(());
        self.read_marked(&mut |offset, page| {
            if written.is_ok() {
                written = self.file.write_all_at(page, offset);
            }
        })?;
        written
    }

    /// Passes the pages with marks to `each`, and clears the marks.
    fn read_marked(&self, each: &mut dyn FnMut(u64, &[u8; BLOCK_BYTES as usize])) -> io::Result<()> {
        let mut page = [0; BLOCK_BYTES as usize];
        let mut read = Ok(());
        let _ = self.tracking.drain(&mut |marked| {
            read = read_for_copy(self.region, marked.offset, &mut page);
            if read.is_err() {
                return ControlFlow::Break(());
            }
            each(marked.offset, &page);
            ControlFlow::Continue(())
        });
        self.tracking.clear_pending();
        read
    }
}

/// Makes a copy an image that is not in use.
fn make_unused(file: &File, path: &Path, identity: Option<&NewIdentity>) -> Result<(), ImageError> {
    let failed = |action| move |source| ImageError::File { action, path: path.to_owned(), source };
    let mapping = Arc::new(Mapping::from_file(file.try_clone().map_err(failed("open"))?, path, Access::ReadWrite)?);
    let region = mapping.region(Direct)?;
    let label = identity.and_then(|identity| identity.label.as_deref()).map(make::label_bytes).transpose()?;
    let uuid = identity.map(|_| make::random_uuid());
    engine::set_identity(&region, &engine::DescriptionChange { uuid, label, ..Default::default() })
        .map_err(|source| ImageError::Engine { path: path.to_owned(), source })?;
    mapping.sync(0..mapping.length()).map_err(failed("write"))
}

/// A file without a name, that gets one when it is complete.
pub(super) struct NewFile {
    pub file: File,
    path: PathBuf,
    /// Its name until then, where the file system has no unnamed files.
    temporary: Option<PathBuf>,
}

impl NewFile {
    /// Creates it beside its final place, where nothing is yet, with the permissions of `like`.
    fn create(path: &Path, like: &File) -> Result<NewFile, ImageError> {
        if path.symlink_metadata().is_ok() {
            return Err(MapError::Exists { path: path.to_owned() }.into());
        }
        NewFile::like(path, like)
    }

    /// Creates it beside its final place, with group and permissions of another file. If the kernel
    /// forbids that group, the file's own group gets none.
    pub fn like(path: &Path, other: &File) -> Result<NewFile, ImageError> {
        let other = permissions::of(other, path)?;
        let mode = other.st_mode & 0o777;
        let new = NewFile::with_mode(path, mode & !0o070)?;
        if mode & 0o070 != 0 && rustix::fs::fchown(&new.file, None, Some(Gid::from_raw(other.st_gid))).is_ok() {
            new.set_mode(mode)?;
        }
        Ok(new)
    }

    fn set_mode(&self, permissions: u32) -> Result<(), ImageError> {
        let failed = |source| ImageError::File { action: "create", path: self.path.clone(), source };
        self.file.set_permissions(PermissionsExt::from_mode(permissions)).map_err(failed)
    }

    /// Creates it beside its final place.
    pub fn with_mode(path: &Path, permissions: u32) -> Result<NewFile, ImageError> {
        let failed = |source| ImageError::File { action: "create", path: path.to_owned(), source };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let unnamed = rustix::fs::open(directory, flags | OFlags::TMPFILE, mode);
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
                let temporary = directory.join(format!(".directfs-{:016x}", PLATFORM.random()));
                let file = rustix::fs::open(&temporary, flags | OFlags::CREATE | OFlags::EXCL, mode);
                (file.map_err(|errno| failed(errno.into()))?, Some(temporary))
            }
            Err(errno) => return Err(failed(errno.into())),
        };
        let new = NewFile { file: File::from(file), path: path.to_owned(), temporary };
        new.set_mode(permissions)?;
        Ok(new)
    }

    /// Makes the copy an image that is not in use, writes it to its disk and gives it its name.
    fn finish(self, identity: Option<&NewIdentity>) -> Result<(), ImageError> {
        make_unused(&self.file, &self.path, identity)?;
        self.give_name()
    }

    /// Writes it to its disk and gives it its name, in place of the file that has it now.
    pub fn replace(mut self) -> Result<(), ImageError> {
        let synced = self.file.sync_all();
        synced.map_err(|source| ImageError::File { action: "write", path: self.path.clone(), source })?;
        let temporary = match self.temporary.take() {
            Some(temporary) => temporary,
            None => {
                let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let temporary =
                    directory.unwrap_or(Path::new(".")).join(format!(".directfs-{:016x}", PLATFORM.random()));
                let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                let linked = rustix::fs::linkat(CWD, from, CWD, &temporary, AtFlags::SYMLINK_FOLLOW);
                linked.map_err(|errno| ImageError::File {
                    action: "name",
                    path: self.path.clone(),
                    source: errno.into(),
                })?;
                temporary
            }
        };
        std::fs::rename(&temporary, &self.path).map_err(|source| {
            let _ = std::fs::remove_file(&temporary);
            ImageError::File { action: "replace", path: self.path.clone(), source }
        })?;
        self.sync_directory();
        Ok(())
    }

    fn sync_directory(&self) {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A directory that cannot be synced (on some network file systems) is as it is.
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
    }

    /// Writes it to its disk and gives it its name, which no other file may have.
    pub fn give_name(mut self) -> Result<(), ImageError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| ImageError::File { action, path, source }
        };
        self.file.sync_all().map_err(failed("write", &self.path))?;
        match self.temporary.take() {
            None => {
                let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, from, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(temporary) => rename_new(&temporary, &self.path).inspect_err(|_| {
                let _ = std::fs::remove_file(&temporary);
            }),
        }
        .map_err(|errno| failed("name", &self.path)(errno.into()))?;
        self.sync_directory();
        Ok(())
    }
}

/// Renames a file to a name that no file has.
fn rename_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // NFS, and many file systems behind FUSE.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => rename_to_taken(from, to),
        renamed => renamed,
    }
}

/// Has an empty file take the name first, where the file system cannot refuse to replace one.
fn rename_to_taken(from: &Path, to: &Path) -> rustix::io::Result<()> {
    drop(rustix::fs::open(to, OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())?);
    rustix::fs::rename(from, to).inspect_err(|_| {
        let _ = std::fs::remove_file(to);
    })
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_replaces_nothing_where_the_file_system_would_replace_it() {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&to, "old").unwrap();
        assert_eq!(rename_to_taken(&from, &to), Err(rustix::io::Errno::EXIST));
        assert_eq!([&from, &to].map(|path| std::fs::read(path).unwrap()), [b"new", b"old"]);
        std::fs::remove_file(&to).unwrap();
        rename_to_taken(&from, &to).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"new");
        assert!(!from.exists());
    }
}
