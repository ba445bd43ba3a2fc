//! The *runtime directory*: what the processes of an image share while they use it.
//!
//! ```text
//!  /dev/shm/directfs-0123456789abcdef/        random name, stored in the superblock while the
//!    |                                        image is in use. Owner, group and classes are those
//!    |                                        of the image that may write it; groups and others
//!    |                                        can enter it, and cannot list it
//!    +-- region                               the DRAM region, for users with write access
//!    +-- working                              the working copy of an image on a disk, for the same
//!    |                                        users, or a link to it (`working_file`)
//!    +-- image                                a symbolic link to "DEVICE:INODE:PATH" of that image
//!    +-- left                                 made when the working copy is first seen unused
//!    +-- 00112233445566778899aabbccddeeff/    the meeting directory: random name, stored in the
//!          |                                  region. Mode 0777
//!          +-- lock-00 ...                  directories with the liveness locks (`tables::host`)
//!          +-- fifo-...                       the kernel's objects behind those of the image
//!          +-- watch-...                      files that wake groups of watches
//! ```
//!
//! Invariants
//! - Names are random, and creation fails on an existing name. So no user can predict a name or
//!   create it first.
//! - Only processes that can map the region, or that inherit the descriptor, reach the meeting
//!   directory: its name is secret, and the directory above cannot be entered by others.
//! - Every open by name is relative to a descriptor and follows no links. The owner is checked on
//!   the new descriptor.
//! - A meeting directory is a leftover if no process holds a liveness lock in it or has locked it
//!   (flock) to create or enter it. Its owner's next attach removes it with the runtime directory,
//!   unless that holds a working copy that may not be on the disk (`left`). The maker has locked
//!   the runtime directory, too: it is no leftover while it has no meeting directory yet.
//!
//! Decision: docs/decisions/images.md, "A runtime directory with a random name".

use super::regions::working_capacity;
use super::working_file::{self, Needs, WORKING};
use super::{ImageError, left, permissions};
use engine::Platform;
use pmem::{Access, MapError, Mapping};
use posix::commits::{capacity_within, working_bytes};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tables::host::{PLATFORM, is_any_liveness_held, open_description, reopen_directory};

/// Free bytes required beyond what a working copy holds at once.
const ROOM_BYTES: u64 = 16 << 20;
const PREFIX: &str = "directfs-";
const REGION: &str = "region";
const IMAGE: &str = "image";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A runtime directory that this process uses.
pub(super) struct RuntimeDirectory {
    /// The directory above.
    parent: PathBuf,
    name: u64,
    directory: OwnedFd,
    secret: [u64; 2],
    meeting: OwnedFd,
    /// The description that carries this process's liveness lock.
    description: OwnedFd,
    /// A second description of the meeting directory, locked (flock, shared) while this value
    /// exists.
    in_use: OwnedFd,
}

/// Whether a runtime directory is to hold a working copy. Its name says so, for the time when the
/// directory is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldsCopy(pub bool);

/// The bit of a name that says so.
const HOLDS_COPY: u64 = 1;

/// What the name of a runtime directory leads to when no process uses it.
pub(super) enum LeftDirectory {
    /// A directory of a user of the image.
    Found(Found),
    /// A directory of this user, that may not write the image.
    Foreign(PathBuf, u32),
    /// Nothing, or a directory without a working copy of a user that may not write the image.
    Gone(HoldsCopy),
}

/// A runtime directory whose region is not mapped yet.
pub(super) struct Found {
    parent: PathBuf,
    name: u64,
    directory: OwnedFd,
}

pub(super) fn outer_name(name: u64) -> String {
    format!("{PREFIX}{name:016x}")
}

fn meeting_name(secret: [u64; 2]) -> String {
    format!("{:016x}{:016x}", secret[0], secret[1])
}

fn open_directory(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
}

impl RuntimeDirectory {
    /// Creates one in `parent`, after removal of this user's leftovers there.
    pub(super) fn create(parent: &Path, copy: HoldsCopy) -> io::Result<RuntimeDirectory> {
        let above = open_parent(parent)?;
        remove_leftovers(&above);
        loop {
            let name = PLATFORM.random() & !HOLDS_COPY | if copy.0 { HOLDS_COPY } else { 0 };
            match rustix::fs::mkdirat(&above, outer_name(name), Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let secret = [PLATFORM.random(), PLATFORM.random()];
            let made = open_directory(&above, &outer_name(name)).and_then(|directory| {
                let found = Found { parent: parent.to_owned(), name, directory };
                // From here on another attach does not take it for a leftover without content.
                rustix::fs::flock(&found.directory, FlockOperation::LockShared)?;
                if rustix::fs::fstat(&found.directory)?.st_nlink == 0 {
                    return Err(Errno::NOENT);
                }
                // Not by the mode of mkdir, which the umask restricts.
                rustix::fs::fchmod(&found.directory, Mode::RWXU)?;
                make_meeting(&found.directory, secret)?;
                found.meet(secret)
            });
            match made {
                // Another attach removed it as a leftover before it was locked.
                Err(Errno::NOENT) => continue,
                made => return Ok(made?),
            }
        }
    }

    /// Creates one for processes that inherit its descriptor, in any directory that permits it.
    pub(super) fn create_anywhere(preferred: &Path) -> io::Result<RuntimeDirectory> {
        let create = |parent: &Path| RuntimeDirectory::create(parent, HoldsCopy(false));
        let first = create(preferred);
        let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let others = run.into_iter().chain([std::env::temp_dir()]);
        first.or_else(|error| others.map(|parent| create(&parent)).find_map(Result::ok).ok_or(error))
    }

    /// The name's number, as stored in the superblock.
    pub(super) fn name(&self) -> u64 {
        self.name
    }

    /// The secret name of the meeting directory, as stored in the region.
    pub(super) fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// A lock directory, just below the meeting directory. The description belongs to this process
    /// and carries its liveness lock.
    pub(super) fn description(&self) -> BorrowedFd<'_> {
        self.description.as_fd()
    }

    pub(super) fn descriptors(&self) -> [i32; 4] {
        [&self.directory, &self.meeting, &self.description, &self.in_use].map(AsRawFd::as_raw_fd)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(outer_name(self.name))
    }

    /// Creates the region's file, accessible exactly to users with write access to the image. It
    /// has no memory yet.
    pub(super) fn create_region(&self, image: &File, path: &Path, length: u64) -> Result<Mapping, ImageError> {
        self.create_shared(REGION, image, path, length)
    }

    /// Creates the file of a working copy: in memory if it fits there and takes at most
    /// `limit_bytes`, otherwise beside the image.
    pub(super) fn create_working(
        &self,
        image: &File,
        path: &Path,
        needs: Needs,
        limit_bytes: Option<u64>,
    ) -> Result<Mapping, ImageError> {
        self.name_image(image, path)?;
        let (least, most) = (working_bytes(needs.image_bytes), working_bytes(working_capacity(needs.image_bytes)));
        let room = working_file::room_in_memory(limit_bytes).min(working_file::room_in_directory(&self.directory));
        if least <= room {
            let length = working_bytes(capacity_within(room)).clamp(least, most);
            return self.create_shared(WORKING, image, path, length);
        }
        let owner = permissions::of(image, path)?;
        let made = working_file::create_hidden(&self.directory, self.name, (image, path)).and_then(|file| {
            file.set_len(most)?;
            adopt_owner(&self.directory, &owner, ENTER);
            adopt_owner(&file, &owner, READ_AND_WRITE);
            Ok(file)
        });
        match made {
            Ok(file) => Ok(Mapping::from_file(file, path, Access::ReadWrite)?),
            // A directory that this user may not write, for example.
            Err(source) => {
                working_file::remove(&self.directory, self.name);
                match self.lacking(needs.filled + ROOM_BYTES) {
                    None => self.create_shared(WORKING, image, path, least),
                    Some((available, needed)) => Err(ImageError::NoWorkingCopy {
                        path: path.to_owned(),
                        directory: self.parent.clone(),
                        available,
                        needed,
                        source,
                    }),
                }
            }
        }
    }

    /// Records which image a working copy belongs to.
    fn name_image(&self, image: &File, path: &Path) -> Result<(), ImageError> {
        let owner = permissions::of(image, path)?;
        let shown = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let shown = [format!("{}:{}:", owner.st_dev, owner.st_ino).as_bytes(), shown.as_os_str().as_bytes()].concat();
        // Without it lists of left working copies do not name their image.
        let _ = rustix::fs::symlinkat(OsStr::from_bytes(&shown), &self.directory, IMAGE);
        Ok(())
    }

    /// Free bytes and needed bytes, if the first are fewer.
    fn lacking(&self, needed: u64) -> Option<(u64, u64)> {
        let space = rustix::fs::fstatvfs(&self.directory).ok()?;
        let available = space.f_bavail * space.f_frsize;
        (available < needed).then_some((available, needed))
    }

    fn create_shared(&self, name: &str, image: &File, path: &Path, length: u64) -> Result<Mapping, ImageError> {
        let shown = self.path().join(name);
        let owner = permissions::of(image, path)?;
        let failed = |source: io::Error| ImageError::no_shared(&shown, source);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|errno| failed(errno.into()))?);
        file.set_len(length).map_err(failed)?;
        // The group shows other members of the image's group that one of them created it. The links
        // in the directory are paths, which other users may not see.
        adopt_owner(&self.directory, &owner, ENTER);
        adopt_owner(&file, &owner, READ_AND_WRITE);
        Ok(Mapping::from_file(file, &shown, Access::ReadWrite)?)
    }

    /// The error for a region without room for what attach fills.
    pub(super) fn no_room(&self) -> ImageError {
        let available = rustix::fs::fstatvfs(&self.directory).map_or(0, |space| space.f_bavail * space.f_frsize);
        ImageError::NoDram { path: self.parent.clone(), available }
    }

    /// Removes the directory with its content, when the image is no longer in use.
    pub(super) fn remove(&self) {
        // Anything that cannot be removed here is a leftover for the next attach of its owner.
        let Ok(above) = open_parent(&self.parent) else {
            return;
        };
        empty(&self.directory, self.name, &self.meeting, &meeting_name(self.secret));
        let _ = rustix::fs::unlinkat(&above, outer_name(self.name), AtFlags::REMOVEDIR);
    }
}

impl Found {
    /// Finds the directory that the superblock of an image in use names.
    pub(super) fn find(parent: &Path, name: u64, image: &File, path: &Path) -> Result<Found, ImageError> {
        let outer = parent.join(outer_name(name));
        let failed = |reason: String| cannot_share(path, &outer, reason);
        if name == 0 {
            return Err(failed(
                "the process that uses it does not share it (as `run --atomic` does), or is of another version"
                    .to_owned(),
            ));
        }
        let above = open_parent(parent);
        // Other users have search permission only.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = above.and_then(|above| rustix::fs::openat(above, outer_name(name), flags, Mode::empty()));
        let directory = directory.map_err(|errno| failed(io::Error::from(errno).to_string()))?;
        let made = rustix::fs::fstat(&directory).map_err(|errno| failed(io::Error::from(errno).to_string()))?;
        if !is_trusted(&made, &permissions::of(image, path)?) {
            return Err(failed(format!("user {} created it, without permission to write the image", made.st_uid)));
        }
        Ok(Found { parent: parent.to_owned(), name, directory })
    }

    /// Finds the directory that the superblock of an image names that is not in use.
    pub(super) fn find_left(parent: &Path, name: u64, image: &File, path: &Path) -> Result<LeftDirectory, ImageError> {
        let outer = parent.join(outer_name(name));
        match rustix::fs::lstat(&outer) {
            Ok(made) if is_trusted(&made, &permissions::of(image, path)?) => {
                Found::find(parent, name, image, path).map(LeftDirectory::Found)
            }
            Ok(made) if name & HOLDS_COPY != 0 => Ok(LeftDirectory::Foreign(outer, made.st_uid)),
            _ => Ok(LeftDirectory::Gone(HoldsCopy(name & HOLDS_COPY != 0))),
        }
    }

    /// Removes a directory whose content no process needs.
    pub(super) fn remove(&self) {
        let Ok(above) = open_parent(&self.parent) else {
            return;
        };
        // Found without permission to list it.
        let Ok(directory) = open_directory(&above, &outer_name(self.name)) else { return };
        remove_if_unused(&above, &outer_name(self.name), &directory, true);
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(outer_name(self.name))
    }

    /// Opens the region that another process created.
    pub(super) fn open_region(&self, image: &File, path: &Path) -> Result<Mapping, ImageError> {
        let region = self.path().join(REGION);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.directory, REGION, flags, Mode::empty());
        let opened = self.check_shared(file, &region, image, path)?;
        let opened = opened.ok_or_else(|| cannot_share(path, &region, io::Error::from(Errno::NOENT).to_string()))?;
        Ok(Mapping::from_file(opened, &region, Access::ReadWrite)?)
    }

    /// Opens the working copy; `None`: the processes of the image work on its file.
    pub(super) fn open_working(&self, image: &File, path: &Path) -> Result<Option<File>, ImageError> {
        let file = working_file::open(&self.directory, self.name, path);
        self.check_shared(file, &self.path().join(WORKING), image, path)
    }

    /// Checks a file of the directory that was opened; none if it does not exist.
    fn check_shared(
        &self,
        file: Result<OwnedFd, Errno>,
        region: &Path,
        image: &File,
        path: &Path,
    ) -> Result<Option<File>, ImageError> {
        let failed = |reason: String| cannot_share(path, region, reason);
        if matches!(file, Err(Errno::NOENT)) {
            return Ok(None);
        }
        let file = File::from(file.map_err(|errno| failed(io::Error::from(errno).to_string()))?);
        let made = permissions::stat(&file, region)?;
        if !is_trusted(&made, &permissions::of(image, path)?)
            || FileType::from_raw_mode(made.st_mode) != FileType::RegularFile
        {
            return Err(failed(format!("user {} created it, without permission to write the image", made.st_uid)));
        }
        Ok(Some(file))
    }

    /// Enters the meeting directory, whose name is stored in the region.
    pub(super) fn enter(self, secret: [u64; 2], image: &Path) -> Result<RuntimeDirectory, ImageError> {
        let path = self.path();
        self.meet(secret).map_err(|errno| cannot_share(image, &path, io::Error::from(errno).to_string()))
    }

    fn meet(self, secret: [u64; 2]) -> Result<RuntimeDirectory, Errno> {
        let meeting = open_directory(&self.directory, &meeting_name(secret))?;
        let in_use = reopen_directory(meeting.as_fd())?;
        rustix::fs::flock(&in_use, FlockOperation::LockShared)?;
        // Another attach may have removed it as a leftover before it was locked.
        if rustix::fs::fstat(&in_use)?.st_nlink == 0 {
            return Err(Errno::NOENT);
        }
        let description = open_description(meeting.as_fd())?;
        let Found { parent, name, directory } = self;
        Ok(RuntimeDirectory { parent, name, directory, secret, meeting, description, in_use })
    }
}

/// Opens a separate description of a handed-off lock directory for the calling process.
pub fn own_description(meeting: impl AsFd) -> io::Result<OwnedFd> {
    Ok(reopen_directory(meeting.as_fd())?)
}

/// Creates a region's file without a name, for processes that receive its descriptor.
pub(super) fn create_unnamed_region(length: u64) -> Result<Mapping, ImageError> {
    let name = Path::new("the image's shared memory");
    let error = |source: io::Error| MapError::Create { path: name.to_owned(), length, source };
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("directfs-dram", flags).map_err(|errno| error(errno.into()))?;
    let file = File::from(file);
    file.set_len(length).map_err(error)?;
    Ok(Mapping::from_file(file, name, Access::ReadWrite)?)
}

pub(super) fn cannot_share(image: &Path, dram: &Path, reason: String) -> ImageError {
    ImageError::CannotShare { path: image.to_owned(), dram: dram.to_owned(), reason }
}

fn make_meeting(directory: &OwnedFd, secret: [u64; 2]) -> Result<(), Errno> {
    rustix::fs::mkdirat(directory, meeting_name(secret), Mode::RWXU)?;
    let meeting = open_directory(directory, &meeting_name(secret))?;
    // Not by the mode of mkdir, which the umask restricts. Programs of several users in one `run`
    // share it.
    rustix::fs::fchmod(&meeting, Mode::from_raw_mode(0o777))
}

/// What a class of users gets of a file and of a directory, and what the owner gets.
type Permissions = (u32, u32);
const READ_AND_WRITE: Permissions = (0o6, 0o6);
const ENTER: Permissions = (0o1, 0o7);

/// Copies owner, group and mode of the image, limited to classes with write access. Where the
/// kernel forbids that, fewer users can share: never more.
fn adopt_owner(made: impl AsFd, image: &Stat, (others, owner): Permissions) {
    let class = |shift: u32| if image.st_mode >> shift & 0o6 == 0o6 { others << shift } else { 0 };
    let mut mode = owner << 6 | class(0);
    if rustix::fs::fchown(&made, None, Some(Gid::from_raw(image.st_gid))).is_ok() {
        mode |= class(3);
    }
    if image.st_uid != rustix::process::geteuid().as_raw() {
        let _ = rustix::fs::fchown(&made, Some(Uid::from_raw(image.st_uid)), None);
    }
    let _ = rustix::fs::fchmod(&made, Mode::from_raw_mode(mode));
}

/// Whether the owner of `made` could have written the image itself: root, the image's owner or this
/// user. If the group may write, a user of the group as well: no other user can give a file that
/// group.
fn is_trusted(made: &Stat, image: &Stat) -> bool {
    let by_owner = [0, image.st_uid, rustix::process::geteuid().as_raw()].contains(&made.st_uid);
    let by_group = image.st_mode & 0o020 != 0 && made.st_gid == image.st_gid;
    let by_anyone = image.st_mode & 0o002 != 0;
    by_owner || by_group || by_anyone
}

/// Opens the directory of runtime directories.
pub(super) fn open_parent(parent: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(parent, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())
}

/// Removes unused runtime directories of this user.
fn remove_leftovers(above: &OwnedFd) {
    let own = rustix::process::geteuid();
    for_each_of(above, &|owner| owner == own, &mut |name, directory| {
        remove_if_unused(above, name, directory, false);
    });
}

/// Passes the runtime directories of this user to `each`; for root, those of all users.
pub(super) fn for_each_own(above: &OwnedFd, each: &mut dyn FnMut(&str, &OwnedFd)) {
    let own = rustix::process::geteuid();
    for_each_of(above, &|owner| own.is_root() || owner == own, each);
}

fn for_each_of(above: &OwnedFd, is_meant: &dyn Fn(Uid) -> bool, each: &mut dyn FnMut(&str, &OwnedFd)) {
    for name in names_in(above) {
        if !is_hexadecimal(name.strip_prefix(PREFIX).unwrap_or_default(), 16) {
            continue;
        }
        let Ok(directory) = open_directory(above, &name) else { continue };
        if rustix::fs::fstat(&directory).is_ok_and(|stat| is_meant(Uid::from_raw(stat.st_uid))) {
            each(&name, &directory);
        }
    }
}

/// The number in the name of a runtime directory.
pub(super) fn number_of(name: &str) -> u64 {
    u64::from_str_radix(name.strip_prefix(PREFIX).unwrap_or_default(), 16).unwrap_or_default()
}

/// The meeting directories of a runtime directory that no process uses. No process enters one while
/// this exists.
pub(super) struct Unused(Vec<(String, OwnedFd)>);

impl Unused {
    /// `None`: a process uses it.
    pub fn lock(directory: &OwnedFd) -> Option<Unused> {
        // Its maker has it locked, and may not have made the meeting directory yet.
        rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut meetings = Vec::new();
        for name in names_in(directory).filter(|name| is_hexadecimal(name, 32)) {
            let meeting = open_directory(directory, &name).ok()?;
            let is_locked = rustix::fs::flock(&meeting, FlockOperation::NonBlockingLockExclusive).is_err();
            if is_locked || is_any_liveness_held(meeting.as_fd()) {
                return None;
            }
            meetings.push((name, meeting));
        }
        // A directory that was created and never filled has no meeting directory.
        Some(Unused(meetings))
    }
}

/// Removes a runtime directory that no process uses, unless its working copy is to be kept
/// (`left`). `is_saved`: it is not. Returns whether it is gone.
pub(super) fn remove_if_unused(above: &OwnedFd, name: &str, directory: &OwnedFd, is_saved: bool) -> bool {
    let Some(Unused(meetings)) = Unused::lock(directory) else { return false };
    if !is_saved && left::is_kept(directory, name) {
        // The next use makes the region again.
        let _ = rustix::fs::unlinkat(directory, REGION, AtFlags::empty());
        return false;
    }
    let number = number_of(name);
    for (meeting_name, meeting) in &meetings {
        empty(directory, number, meeting, meeting_name);
    }
    remove_files(directory, number);
    rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR).is_ok()
}

/// Removes the content of a runtime directory. In the meeting directory, which is only reached by
/// its secret name, that is all there is; beside it no foreign files are removed.
fn empty(directory: &OwnedFd, number: u64, meeting: &OwnedFd, name: &str) {
    for object in names_in(meeting) {
        let _ = rustix::fs::unlinkat(meeting, object.as_str(), AtFlags::empty());
        let _ = rustix::fs::unlinkat(meeting, object.as_str(), AtFlags::REMOVEDIR);
    }
    let _ = rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR);
    remove_files(directory, number);
}

fn remove_files(directory: &OwnedFd, number: u64) {
    working_file::remove(directory, number);
    for name in [REGION, IMAGE, left::SEEN] {
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
}

/// The image whose working copy a runtime directory holds, as it was opened: its device and inode,
/// and its path. Only for messages.
pub(super) fn named_image(directory: &OwnedFd) -> Option<([u64; 2], PathBuf)> {
    let link = rustix::fs::readlinkat(directory, IMAGE, Vec::new()).ok()?;
    let mut parts = link.as_bytes().splitn(3, |&byte| byte == b':');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let identity = [number()?, number()?];
    Some((identity, PathBuf::from(OsStr::from_bytes(parts.next()?))))
}

fn names_in(directory: &OwnedFd) -> impl Iterator<Item = String> + use<> {
    // Through a separate description, so that the position of the other one stays.
    let entries = reopen_directory(directory.as_fd()).ok().and_then(|copy| rustix::fs::Dir::new(copy).ok());
    entries.into_iter().flatten().flatten().filter_map(|entry| {
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_str()?;
        (name != "." && name != "..").then(|| name.to_owned())
    })
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_that_is_to_hold_a_copy_is_a_state_of_another_user() {
        let parent = tempfile::tempdir().unwrap();
        let image = tempfile::NamedTempFile::new().unwrap();
        for holds_copy in [false, true] {
            let made = RuntimeDirectory::create(parent.path(), HoldsCopy(holds_copy)).unwrap();
            if std::os::unix::fs::chown(made.path(), Some(12345), None).is_err() {
                println!("SKIPPED: only_a_directory_that_is_to_hold_a_copy_is_a_state_of_another_user: needs root");
                return;
            }
            let found = Found::find_left(parent.path(), made.name(), image.as_file(), image.path()).unwrap();
            assert_eq!(matches!(found, LeftDirectory::Foreign(_, 12345)), holds_copy);
        }
    }
}
