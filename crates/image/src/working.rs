//! Images on disks: recovery of what the disk holds, and the working copy in memory on which the
//! processes of an image work.
//!
//! The working copy lies in the runtime directory. It begins as a copy of the image on the disk. If
//! all processes end without closing the image, it stays: newer than the disk, and found through
//! the superblock by the next process that opens the image, which commits it first.
//!
//! Invariants
//! - Nothing in the image's file is believed before the journal is recovered, except for magic and
//!   UUID, which never change, and the length, which changes while the journal is empty.
//! - A working copy counts only if it names the image file (device, inode, boot), is whole, and
//!   continues the state that the disk holds: its state of the journal is that of the disk, or one
//!   step of the journal behind it ([`Journal::is_where_left`]). A file that was restored from a
//!   backup, or changed by others, differs in it. Then the disk counts alone, and the copy is *set
//!   aside*: it stays in its runtime directory, which the image no longer names.
//! - So whatever changes the disk's journal also stores its state in the copy, in that order:
//!   recovery takes over the copy's state before it writes.
//! - A copy whose changes are all on the disk says so before the image forgets its name
//!   ([`Commits::set_saved`]). All others are kept (`left`).

use super::copying::{
    Watch, content_bytes, copy_content, copy_pages, copy_partly_resident, copy_watched, read_for_copy,
};
use super::device;
use super::fill::{self, Fill, Filled};
use super::head::Head;
use super::journal_room::log_bytes;
use super::left::Use;
use super::locks::{Byte, is_held_by_others};
use super::regions::{MappedCopy, map_working_copy, slots_max, tracking_of};
use super::runtime::{Found, HoldsCopy, LeftDirectory};
use super::working_file::{self, Needs};
use super::{ImageError, OpenImage, identity_of, left};
use engine::format::{Geometry, Superblock, SuperblockError};
use engine::{AttachOptions, DESCRIPTION_BYTES, DescriptionChange, ImageIdentity, RecoveryReport, superblock_with};
use journal::{Disk, DiskError, HeaderError, Journal, JournalError, State};
use pmem::{Access, BLOCK_BYTES, Backing, Direct, Mapping, Region, Tracking};
use posix::commits::{
    ChunkBuffer, Commits, ImageFile, capacity_within, errno_of, tracking_at, working_bytes, working_bytes_before,
};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The file of an image, opened for reading and writing.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub file: &'a File,
    pub path: &'a Path,
    /// Where runtime directories are.
    pub runtime_parent: &'a Path,
}

/// The journal of an image, after recovery.
pub(super) struct RecoveredJournal {
    pub head: Head,
    journal: Option<(Journal<ImageFile>, State)>,
}

/// Bytes of a file's beginning that are the image: the rest is its journal, or the room for it on a
/// block device.
pub(super) fn image_bytes(file: &File) -> io::Result<u64> {
    let Some(head) = Head::read(file)? else { return Ok(u64::MAX) };
    let journal = Journal::open(ImageFile::new(file.as_raw_fd()), head.uuid, head.image_bytes);
    let is_absent = matches!(journal, Err(JournalError::Header(HeaderError::Absent))) && !device::is_block(file);
    Ok(if is_absent { u64::MAX } else { head.image_bytes })
}

/// What was committed to an image, or done in its working copy, and is not in its place yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// Nothing.
    Nothing,
    /// Commits in the journal: so many.
    Commits(u64),
    /// A working copy in memory that its processes left when they ended.
    WorkingCopy,
}

impl<'a> Base<'a> {
    fn disk(&self) -> ImageFile {
        ImageFile::new(self.file.as_raw_fd())
    }

    fn journal_error(&self, cause: JournalError) -> ImageError {
        ImageError::Journal { path: self.path.to_owned(), cause }
    }

    fn file_error(&self, action: &'static str) -> impl FnOnce(io::Error) -> ImageError {
        let path = self.path.to_owned();
        move |source| ImageError::File { action, path, source }
    }

    fn open_journal(&self, head: &Head) -> Result<Option<(Journal<ImageFile>, State)>, ImageError> {
        match Journal::open(self.disk(), head.uuid, head.image_bytes) {
            Ok(opened) => Ok(Some(opened)),
            Err(JournalError::Header(HeaderError::Absent)) => Ok(None),
            Err(error) => Err(self.journal_error(error)),
        }
    }

    /// What recovery would do. Changes nothing.
    pub fn pending(&self) -> Result<Pending, ImageError> {
        let Some(head) = Head::read(self.file).map_err(self.file_error("read"))? else { return Ok(Pending::Nothing) };
        if let Left::Continues(..) = self.left_for_reading(&head)? {
            return Ok(Pending::WorkingCopy);
        }
        let Some((journal, state)) = self.open_journal(&head)? else { return Ok(Pending::Nothing) };
        let found = self.find_end(&journal, &Cell::new(state))?;
        Ok(if found == 0 { Pending::Nothing } else { Pending::Commits(found) })
    }

    fn find_end(&self, journal: &Journal<ImageFile>, state: &Cell<State>) -> Result<u64, ImageError> {
        let mut buffer = ChunkBuffer::new().map_err(|_| self.no_memory())?;
        journal.find_end(state, buffer.bytes()).map(|found| found.commits).map_err(|error| self.journal_error(error))
    }

    fn no_memory(&self) -> ImageError {
        self.file_error("allocate memory for")(Errno::NOMEM.into())
    }

    /// Puts all that was committed in its place, and what a working copy holds beyond that. The
    /// caller excludes all other processes. `None`: not an image, or without a journal for ever.
    pub fn recover(&self) -> Result<Option<RecoveredJournal>, ImageError> {
        let Some(head) = Head::read(self.file).map_err(self.file_error("read"))? else { return Ok(None) };
        let left = self.left_working_copy(&head)?;
        let Some((journal, state)) = self.open_journal(&head)? else {
            self.set_aside(head.runtime_directory, &left);
            return Ok(Some(RecoveredJournal { head, journal: None }));
        };
        // A process may have been killed between a write and its flush. What is found here must not
        // vanish after something was written on top of it.
        self.disk().flush().map_err(|error| self.journal_error(error.into()))?;
        let state = Cell::new(state);
        match left {
            Left::Continues(left, commits) => self.commit_left(&head, (&journal, &state), (left, &commits))?,
            left => {
                self.set_aside(head.runtime_directory, &left);
                let mut buffer = ChunkBuffer::new().map_err(|_| self.no_memory())?;
                journal.recover(&state, buffer.bytes()).map_err(|error| self.journal_error(error))?;
                working_file::remove_leftover(self.file, self.path, head.runtime_directory, self.runtime_parent);
                self.name_runtime_directory(0)?;
            }
        }
        Ok(Some(RecoveredJournal { head, journal: Some((journal, state.get())) }))
    }

    /// Commits what a working copy holds beyond the disk, and removes it.
    fn commit_left(
        &self,
        head: &Head,
        (journal, state): (&Journal<ImageFile>, &Cell<State>),
        (left, commits): (FoundCopy, &Commits),
    ) -> Result<(), ImageError> {
        self.find_end(journal, state)?;
        if commits.image_bytes() != head.image_bytes {
            // The journal is new, so the image's file is complete.
            self.adopt_size(&left.mapping, head)?;
        }
        // Its process may have died inside a commit, so only the disk shows where the log ends.
        commits.begin(journal, &state.get(), head.uuid, &identity_of(self.file, self.path)?);
        let put = commit_all(commits, &left.mapping, head.image_bytes);
        put.map_err(|errno| match errno {
            posix::Errno::ENOSPC => ImageError::DiskFull { path: self.path.to_owned() },
            errno => self.file_error("write the newest changes to")(io::Error::from_raw_os_error(errno.0)),
        })?;
        state.set(journal::StateStore::load(commits));
        commits.set_saved();
        self.name_runtime_directory(0)?;
        left.found.remove();
        Ok(())
    }

    /// Reports what was done and does not count any more. The image forgets the name.
    fn set_aside(&self, name: u64, left: &Left) {
        self.report(name, left, Use::Writes);
    }

    fn report(&self, name: u64, left: &Left, used: Use) {
        match left {
            Left::Nothing | Left::Continues(..) => {}
            Left::Differs(copy) => left::report_set_aside((self.path, name), copy),
            Left::Foreign(copy, user) => left::report_foreign((self.path, name), (copy, *user), used),
            Left::Gone => left::report_gone((self.path, name)),
        }
    }

    /// [`Base::left_working_copy`] for a use that leaves the image as it is, with or without locks.
    /// It reports a copy that does not count, and the image keeps the name.
    fn left_for_reading(&self, head: &Head) -> Result<Left, ImageError> {
        let left = self.left_working_copy(head)?;
        if matches!(left, Left::Differs(_) | Left::Foreign(..) | Left::Gone) && !self.is_in_use()? {
            // The last process of an image makes it forget the name before the directory goes.
            let now = Head::read(self.file).map_err(self.file_error("read"))?;
            if now.is_some_and(|now| now.runtime_directory == head.runtime_directory) {
                self.report(head.runtime_directory, &left, Use::Reads);
            }
        }
        Ok(left)
    }

    /// The working copy that the processes of an image left when they ended.
    fn left_working_copy(&self, head: &Head) -> Result<Left, ImageError> {
        if head.runtime_directory == 0 {
            return Ok(Left::Nothing);
        }
        let parent = self.runtime_parent;
        let found = match Found::find_left(parent, head.runtime_directory, self.file, self.path)? {
            LeftDirectory::Found(found) => found,
            LeftDirectory::Foreign(copy, user) => return Ok(Left::Foreign(copy, user)),
            LeftDirectory::Gone(HoldsCopy(true)) => return Ok(Left::Gone),
            LeftDirectory::Gone(HoldsCopy(false)) => return Ok(Left::Nothing),
        };
        let Some(file) = found.open_working(self.file, self.path)? else { return Ok(Left::Nothing) };
        let length = file.metadata().map_err(self.file_error("examine"))?.len();
        let is_of_earlier_version = length == working_bytes_before(head.image_bytes);
        let capacity_bytes = if is_of_earlier_version { head.image_bytes } else { capacity_within(length) };
        let is_working_copy = is_of_earlier_version || length == working_bytes(capacity_bytes);
        if !is_working_copy || head.image_bytes > capacity_bytes {
            let is_unsaved = Commits::is_unsaved(&file);
            return Ok(if is_unsaved { Left::Differs(found.path()) } else { Left::Nothing });
        }
        let MappedCopy { mapping, tracking, .. } =
            map_working_copy(file, self.path, (head.image_bytes, capacity_bytes))?;
        let commits = Commits::new(self.disk(), tracking);
        // Otherwise this file is a copy of the image whose processes left it.
        if !commits.is_ready_for(&identity_of(self.file, self.path)?) {
            return Ok(Left::Nothing);
        }
        let continues = self.is_in_use()? || self.is_where_left(head, &commits)?;
        Ok(match continues {
            true => Left::Continues(FoundCopy { found, mapping }, commits),
            false => Left::Differs(found.path()),
        })
    }

    /// Whether other processes may write the image: then it is their working copy.
    fn is_in_use(&self) -> Result<bool, ImageError> {
        is_held_by_others(self.file, Byte::Writing).map_err(self.file_error("query the locks on"))
    }

    /// Whether a working copy continues the state that the disk holds.
    fn is_where_left(&self, head: &Head, commits: &Commits) -> Result<bool, ImageError> {
        let Some((journal, opened)) = self.open_journal(head)? else { return Ok(false) };
        let mut buffer = ChunkBuffer::new().map_err(|_| self.no_memory())?;
        let stored = journal::StateStore::load(commits);
        // Its processes may have ended while the image grew. It has the size that the disk says,
        // and then its journal has no commit yet.
        let has_grown =
            commits.grown_bytes() == head.image_bytes && journal.is_new(&opened, buffer.bytes()) == Ok(true);
        let is_of_size = commits.image_bytes() == head.image_bytes;
        let is_where_left = has_grown
            || is_of_size
                && journal
                    .is_where_left(&opened, &stored, buffer.bytes())
                    .map_err(|error| self.journal_error(error))?;
        Ok(is_where_left)
    }

    /// Gives a working copy the size that its image has on the disk: its processes ended before
    /// they did. The block map of that size is in it.
    fn adopt_size(&self, mapping: &Arc<Mapping>, head: &Head) -> Result<(), ImageError> {
        let file = self.file.try_clone().map_err(self.file_error("open"))?;
        // The journal is recovered.
        let base = Arc::new(Mapping::of_beginning(file, self.path, Access::ReadWrite, head.image_bytes)?);
        let not_usable = |cause| ImageError::NotUsable { path: self.path.to_owned(), cause };
        let geometry = Superblock::check(&*base.region(Direct)?, true).map_err(not_usable)?;
        let damaged = || self.file_error("read")(io::ErrorKind::InvalidData.into());
        // SAFETY: a working copy is mapped readable and writable, as far as that. The mapping
        // outlives the region.
        let region = unsafe { Region::new(mapping.address(), head.image_bytes, Direct) };
        let change = DescriptionChange { geometry: Some(geometry), ..DescriptionChange::default() };
        let superblock = superblock_with(&region, &change).map_err(|_| damaged())?;
        let written = region.write_bytes(0, &superblock[..DESCRIPTION_BYTES]);
        let copied = region.write_bytes(geometry.copy_block() * BLOCK_BYTES, &superblock);
        written.and(copied).map(drop).map_err(|_| damaged())
    }

    /// Stores the name of the runtime directory where other processes of this machine look for it.
    pub fn name_runtime_directory(&self, name: u64) -> Result<(), ImageError> {
        let at = offset_of!(Superblock, runtime_directory) as u64;
        self.file.write_all_at(&name.to_le_bytes(), at).map_err(self.file_error("write to"))
    }

    /// Makes the working copy of a recovered image, and its journal if it has none. `create` makes
    /// the file.
    pub fn make_working_copy(
        &self,
        recovered: RecoveredJournal,
        options: &OpenImage,
        create: impl FnOnce(Needs) -> Result<Mapping, ImageError>,
    ) -> Result<WorkingCopy, ImageError> {
        let RecoveredJournal { head, journal } = recovered;
        let (journal, state) = match journal {
            Some(opened) => opened,
            None => Journal::create(self.disk(), head.uuid, head.image_bytes, log_bytes(head.image_bytes))
                .map_err(|error| self.journal_error(error))?,
        };
        let content = content_bytes(self.file, head.image_bytes).map_err(self.file_error("read"))?;
        let started = self.start_copy(&head, content, create)?;
        let made = started.provide(&head).and_then(|()| {
            // First: a file that is left is known by its image.
            started.commits.begin(&journal, &state, head.uuid, &started.identity);
            if content > options.whole_bytes_max
                && let Filled::Metadata(report) = self.fill_metadata(&started, &head, options)?
            {
                return Ok(report);
            }
            copy_content(self.file, &started.mapping, head.image_bytes, options.copied).map(|()| None)
        });
        let report = made.map_err(|error| self.no_scratch(error, &started))?;
        Ok(started.into_working_copy(report))
    }

    /// Makes a working copy of an image whose journal is empty, which is never committed: it takes
    /// pages of the image's file as they are used. `None`: the image is so small, or so damaged,
    /// that it is to be copied whole.
    pub fn make_scratch_copy(
        &self,
        options: &OpenImage,
        create: impl FnOnce(Needs) -> Result<Mapping, ImageError>,
    ) -> Result<Option<WorkingCopy>, ImageError> {
        let Some(head) = Head::read(self.file).map_err(self.file_error("read"))? else { return Ok(None) };
        let content = content_bytes(self.file, head.image_bytes).map_err(self.file_error("read"))?;
        if content <= options.whole_bytes_max {
            return Ok(None);
        }
        let started = self.start_copy(&head, content, create)?;
        let made = started.provide(&head).and_then(|()| {
            started.commits.begin_held(&head.uuid, head.image_bytes, &started.identity);
            self.fill_metadata(&started, &head, options)
        });
        match made.map_err(|error| self.no_scratch(error, &started))? {
            Filled::Metadata(report) => Ok(Some(started.into_working_copy(report))),
            Filled::Nothing => Ok(None),
        }
    }

    /// Makes the file of a working copy. `content`: bytes of the image's file that are not holes.
    fn start_copy(
        &self,
        head: &Head,
        content: u64,
        create: impl FnOnce(Needs) -> Result<Mapping, ImageError>,
    ) -> Result<StartedCopy, ImageError> {
        let image_bytes = head.image_bytes;
        let filled = content + Tracking::area_bytes(image_bytes) / 64;
        let mapping = Arc::new(create(Needs { image_bytes, filled })?);
        let capacity_bytes = capacity_within(mapping.length());
        let tracking = tracking_of(&mapping, capacity_bytes);
        let commits = Commits::new(self.disk(), tracking);
        let identity = identity_of(self.file, self.path)?;
        Ok(StartedCopy { mapping, capacity_bytes, tracking, commits, identity, filled })
    }

    fn fill_metadata(&self, started: &StartedCopy, head: &Head, options: &OpenImage) -> io::Result<Filled> {
        let attach = AttachOptions {
            read_only: false,
            cached_files_max: options.cached_files_max,
            image: started.identity,
            slots_max: slots_max(),
            ..AttachOptions::default()
        };
        let fill = Fill {
            file: self.file,
            mapping: &started.mapping,
            image_bytes: head.image_bytes,
            capacity_bytes: started.capacity_bytes,
            commits: &started.commits,
            // Without changes nothing is gained by copies of what the kernel caches.
            keeps_reads: !options.read_only,
            attach: &attach,
            threads: options.recovery_threads,
        };
        fill.metadata()
    }

    fn no_scratch(&self, error: io::Error, started: &StartedCopy) -> ImageError {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => {
                ImageError::NoScratch { path: self.path.to_owned(), needed: started.filled }
            }
            _ => self.file_error("copy")(error),
        }
    }

    /// The newest state of an image, for reading: its working copy, or the state that recovery
    /// would leave. The image stays as it is.
    pub fn newest(&self) -> Result<Newest, ImageError> {
        let in_place = || -> Result<Arc<Mapping>, ImageError> {
            let file = self.file.try_clone().map_err(self.file_error("open"))?;
            Ok(Arc::new(map_base(file, self.path, Access::ReadOnly)?))
        };
        let newest = |mapping, pending| Newest { mapping, pending, left: None };
        let Some(head) = Head::read(self.file).map_err(self.file_error("read"))? else {
            return Ok(newest(in_place()?, Pending::Nothing));
        };
        if let Left::Continues(left, commits) = self.left_for_reading(&head)?
            && let Some(file) = left.mapping.file()
        {
            let file = file.try_clone().map_err(self.file_error("open"))?;
            let mapping = Mapping::of_beginning(file, self.path, Access::ReadOnly, head.image_bytes)?;
            let left = Some((left, commits));
            return Ok(Newest { mapping: Arc::new(mapping), pending: Pending::WorkingCopy, left });
        }
        match self.pending()? {
            Pending::Commits(count) => Ok(newest(self.recovered_copy(&head)?, Pending::Commits(count))),
            pending => Ok(newest(in_place()?, pending)),
        }
    }

    /// The state that the commits of the journal leave, in memory of this process.
    fn recovered_copy(&self, head: &Head) -> Result<Arc<Mapping>, ImageError> {
        let copy = Arc::new(Mapping::anonymous(head.image_bytes)?);
        copy_content(self.file, &copy, head.image_bytes, |_, _| {}).map_err(self.file_error("read"))?;
        self.apply_journal(head, &copy)?;
        Ok(copy)
    }

    /// Applies the commits of the journal to a copy of the image.
    fn apply_journal(&self, head: &Head, copy: &Arc<Mapping>) -> Result<(), ImageError> {
        let region = copy.region(Direct)?;
        let overlay = Overlay { file: self.disk(), copy: &region };
        let (journal, state) =
            Journal::open(overlay, head.uuid, head.image_bytes).map_err(|error| self.journal_error(error))?;
        let mut buffer = ChunkBuffer::new().map_err(|_| self.no_memory())?;
        let recovered = journal.recover(&Cell::new(state), buffer.bytes());
        recovered.map(drop).map_err(|error| self.journal_error(error))
    }

    /// Maps an empty file that is to hold a copy.
    fn map_copy(&self, into: &File, length: u64) -> Result<Arc<Mapping>, ImageError> {
        into.set_len(length).map_err(self.file_error("copy"))?;
        let file = into.try_clone().map_err(self.file_error("copy"))?;
        Ok(Arc::new(Mapping::from_file(file, self.path, Access::ReadWrite)?))
    }

    pub(super) fn copy_error(&self, source: io::Error) -> ImageError {
        let path = || self.path.to_owned();
        match (source.kind(), source.raw_os_error()) {
            (io::ErrorKind::Interrupted, _) => ImageError::Stopped { path: path() },
            (_, Some(libc::EHWPOISON)) => ImageError::LostContent { path: path() },
            // How the kernel reports bad blocks to a read of a DAX file.
            (_, Some(libc::EIO)) if pmem::expects_memory_errors() => ImageError::LostContent { path: path() },
            _ => self.file_error("copy")(source),
        }
    }
}

/// A working copy that was made.
pub(super) struct WorkingCopy {
    pub mapping: Arc<Mapping>,
    /// Bytes that the image can get in it.
    pub capacity_bytes: u64,
    pub commits: Commits,
    /// Of recovery, if the image was recovered in it.
    pub report: Option<RecoveryReport>,
}

/// A working copy without processes.
struct FoundCopy {
    found: Found,
    mapping: Arc<Mapping>,
}

/// What the name of the runtime directory in an image leads to.
enum Left {
    /// No working copy of this file.
    Nothing,
    /// One that continues the state that the disk holds, or that is in use.
    Continues(FoundCopy, Commits),
    /// One in this directory that continues another state.
    Differs(PathBuf),
    /// One in this directory of this user, that may not write the image any more.
    Foreign(PathBuf, u32),
    /// One was there. It is not in this machine's memory, or in that of this container.
    Gone,
}

/// The newest state of an image, for reading.
pub(super) struct Newest {
    /// Its memory. In a working copy the data of files may be missing.
    mapping: Arc<Mapping>,
    pending: Pending,
    /// The working copy, if that is what is mapped.
    left: Option<(FoundCopy, Commits)>,
}

/// The file of a working copy that is to be filled.
struct StartedCopy {
    mapping: Arc<Mapping>,
    capacity_bytes: u64,
    tracking: Tracking,
    commits: Commits,
    identity: ImageIdentity,
    /// Bytes of it that are used at once.
    filled: u64,
}

impl StartedCopy {
    fn provide(&self, head: &Head) -> io::Result<()> {
        provide_tracking(&self.mapping, &self.tracking, head.image_bytes)
    }

    fn into_working_copy(self, report: Option<RecoveryReport>) -> WorkingCopy {
        let StartedCopy { mapping, capacity_bytes, commits, .. } = self;
        WorkingCopy { mapping, capacity_bytes, commits, report }
    }
}

/// Copies the newest state of an image into an empty file. No process may change it meanwhile.
pub(super) fn copy_newest(base: &Base<'_>, into: &File, watch: Watch<'_>) -> Result<(), ImageError> {
    let Newest { mapping: newest, left, .. } = base.newest()?;
    let length = newest.length();
    let copy = base.map_copy(into, length)?;
    if let Some(residency) = left.as_ref().and_then(|(_, commits)| commits.residency()) {
        let copied = copy_partly_resident(base.file, &newest, &residency, (&copy, length), watch);
        return copied.map_err(|error| base.copy_error(error));
    }
    let copied = match newest.file().filter(|_| !newest.backing().is_device()) {
        Some(file) => copy_watched(file, &copy, length, watch),
        // A copy in memory, or a device that can only be mapped.
        None => {
            // SAFETY: mapped for reading, and nothing is stored through this region.
            let region = unsafe { newest.region_for_reading(Direct) };
            copy_pages(&copy, 0..length, &mut |offset, page| {
                read_for_copy(&region, offset, page)?;
                if watch(offset, length) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
            })
        }
    };
    copied.map_err(|error| base.copy_error(error))
}

/// Copies the image in a file, and the commits in its journal, while checkpoints are kept away.
pub(super) fn copy_file(base: &Base<'_>, into: &File, watch: Watch<'_>) -> Result<(), ImageError> {
    let not_image = || base.file_error("read")(io::ErrorKind::InvalidData.into());
    let head = Head::read(base.file).map_err(base.file_error("read"))?.ok_or_else(not_image)?;
    let copy = base.map_copy(into, head.image_bytes)?;
    copy_watched(base.file, &copy, head.image_bytes, watch).map_err(|error| base.copy_error(error))?;
    base.apply_journal(&head, &copy)
}

/// Reads the image's file, and writes to a copy of the image in memory.
struct Overlay<'c> {
    file: ImageFile,
    copy: &'c Region<Direct>,
}

impl Disk for Overlay<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        // What lies behind the image is the journal, which stays as it is.
        if offset < self.copy.length() {
            self.copy.write_bytes(offset, bytes).map(drop).map_err(|_| DiskError(libc::EIO))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

/// Provides the tracking area of a working copy on a disk, and its first page in memory.
fn provide_tracking(mapping: &Mapping, tracking: &Tracking, image_bytes: u64) -> io::Result<()> {
    match mapping.backing() {
        Backing::File { .. } => fill::provide_marks(mapping, tracking, &tracking.memory_for(image_bytes)),
        _ => fill::provide(mapping, tracking_at(tracking.region_bytes()), BLOCK_BYTES),
    }
}

/// The commit and checkpoint of a working copy that no other process uses.
pub(super) fn commit_all(commits: &Commits, mapping: &Arc<Mapping>, image_bytes: u64) -> Result<(), posix::Errno> {
    // SAFETY: a working copy is mapped readable and writable, and longer than the image. The
    // mapping outlives the region.
    let region = unsafe { Region::new(mapping.address(), image_bytes, Direct) };
    commits.commit_now(&commits.tracked(region))?;
    commits.checkpoint_now()
}

/// The errno of a journal's error, for messages.
pub(super) fn describe(error: &JournalError) -> String {
    match error {
        JournalError::Disk(DiskError(libc::ENOSPC | libc::EDQUOT)) => {
            "its disk has no space for it: free some, or use the image in place with --no-commit".to_owned()
        }
        JournalError::Disk(DiskError(libc::EFBIG)) => {
            "it would exceed the limit on file sizes (ulimit -f): raise that, or use the image in place with --no-commit"
                .to_owned()
        }
        JournalError::Disk(DiskError(errno)) => io::Error::from_raw_os_error(*errno).to_string(),
        JournalError::Header(HeaderError::Absent) => "there is none".to_owned(),
        JournalError::Header(HeaderError::Damaged) => {
            "both of its headers are damaged; restore the image from a backup".to_owned()
        }
        JournalError::Header(HeaderError::Version { found, features }) => format!(
            "it has format version {found} (features {features:#x}), which this program does not know; use the program that wrote it"
        ),
        JournalError::Header(HeaderError::Foreign) => {
            "it belongs to another image (its UUID or length differs); restore the file from a backup".to_owned()
        }
        JournalError::Hostile => "it names places outside of the image; restore the image from a backup".to_owned(),
        other => errno_of(*other).to_string(),
    }
}

/// Maps the newest state of an image for reading, also while processes use it, but for the data of
/// files: where a working copy lacks them, they are zero. Nothing is changed, and no lock is taken.
/// The second value: what the file itself does not hold yet.
pub fn map_newest(path: impl AsRef<Path>) -> Result<(Arc<Mapping>, Pending), ImageError> {
    let path = path.as_ref();
    let (file, _) = super::open_file_for_reading(path)?;
    let newest = Base { file: &file, path, runtime_parent: Path::new(super::RUNTIME_PARENT) }.newest()?;
    Ok((newest.mapping, newest.pending))
}

/// `map_newest` with what its description says. Growth replaces the description of an image in use:
/// a reader that meets it half-way looks again.
pub fn map_described(path: impl AsRef<Path>) -> Result<(Arc<Mapping>, Pending, Geometry), ImageError> {
    map_described_after(path.as_ref(), &mut || std::thread::sleep(Duration::from_millis(1)))
}

/// `wait`: what happens before another look.
fn map_described_after(path: &Path, wait: &mut dyn FnMut()) -> Result<(Arc<Mapping>, Pending, Geometry), ImageError> {
    let mut looks = 100;
    loop {
        looks -= 1;
        let (mapping, pending) = map_newest(path)?;
        // SAFETY: nothing is stored through the region.
        let region = unsafe { mapping.region_for_reading(Direct) };
        match Superblock::check(&region, false) {
            Ok(geometry) => return Ok((mapping, pending, geometry)),
            Err(SuperblockError::Checksum { .. } | SuperblockError::Truncated { .. }) if looks > 0 => wait(),
            Err(cause) => return Err(ImageError::NotUsable { path: path.to_owned(), cause }),
        }
    }
}

/// Bytes of the image in a file, without its journal, or on a device.
pub fn image_length(path: impl AsRef<Path>) -> Result<u64, ImageError> {
    let path = path.as_ref();
    let (file, access) = super::open_file_for_reading(path)?;
    Ok(map_base(file, path, access)?.length())
}

/// The blocks of a clean image in a file that every open reads, ascending; none if it is not clean.
pub fn metadata_blocks(file: &File, path: &Path) -> Result<Vec<Range<u64>>, ImageError> {
    let failed = |source| ImageError::File { action: "read", path: path.to_owned(), source };
    let mapping = map_base(file.try_clone().map_err(failed)?, path, Access::ReadOnly)?;
    fill::metadata_runs(&Arc::new(mapping)).map_err(failed)
}

/// Maps a file as far as it is the image.
pub(super) fn map_base(file: File, path: &Path, access: Access) -> Result<Mapping, ImageError> {
    let failed = |source| ImageError::File { action: "read", path: path.to_owned(), source };
    let bytes = image_bytes(&file).map_err(failed)?;
    Ok(Mapping::of_beginning(file, path, access, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_meets_half_a_change_of_the_description_looks_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let options = crate::MakeOptions { length: 4 << 20, ..Default::default() };
        crate::make(&path, &options).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let label = offset_of!(Superblock, label) as u64;
        let whole = map_described(&path).unwrap().2;
        let mut before = [0; 1];
        file.read_exact_at(&mut before, label).unwrap();
        let mut looks = 0;
        file.write_all_at(b"x", label).unwrap();
        let found = map_described_after(&path, &mut || {
            looks += 1;
            if looks == 3 {
                file.write_all_at(&before, label).unwrap();
            }
        });
        assert_eq!((found.unwrap().2, looks), (whole, 3));
        file.write_all_at(b"x", label).unwrap();
        let refused = map_described_after(&path, &mut || {});
        assert!(matches!(refused, Err(ImageError::NotUsable { cause: SuperblockError::Checksum { .. }, .. })));
    }
}
