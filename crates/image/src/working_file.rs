//! The file of a working copy: in the runtime directory, which is in memory, or on the image's
//! disk.
//!
//! An image that can outgrow the memory that it may use has its working copy in a hidden file
//! beside it, or in `/var/tmp` if the image is on a block device. The kernel keeps of that file in
//! memory what is used, and writes the rest to the disk. It is scratch: a power failure makes it
//! worthless, and nothing waits for its pages.
//!
//! ```text
//!  /dev/shm/directfs-0123456789abcdef/working       the file itself, or a symbolic link to
//!  DIRECTORY OF THE IMAGE/.directfs-0123456789abcdef
//! ```
//!
//! Invariants
//! - The hidden file has the name of the runtime directory, so it is found without the link, and
//!   can be distinguished from a leftover. An attribute of the image's file names its path, for the
//!   time when no runtime directory does.
//! - A link is followed only to a regular file of that name.
//!
//! The image's length decides where the copy lies, so that an image that fits never runs out of
//! memory later. Pages of zeros that a copy leaves out are provided at open.
//!
//! *Rejected:* loading blocks and giving clean ones back (every access looks at a bit map, and
//! mappings pin blocks); sharing blocks with the image by FICLONE (a store to a shared block needs
//! space, and raised SIGBUS on a full disk). *Limits:* changes are written three times. Where the
//! user cannot write the directory, the copy is in memory if its content fits.

use super::runtime::outer_name;
use posix::commits::Commits;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The name of the file, or of the link to it, in the runtime directory.
pub(super) const WORKING: &str = "working";
/// The attribute of an image's file with the path of its hidden file.
const HIDDEN: &str = "user.directfs.hidden";
const PATH_BYTES_MAX: usize = 4096;
/// Stands for the directory of an image on a block device.
const BESIDE_DEVICES: &str = "/var/tmp";
/// Memory that a working copy leaves to others in the runtime directory's file system.
const ROOM_BYTES: u64 = 16 << 20;

/// What a working copy needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the file that are used at once.
    pub filled: u64,
}

/// Memory that this process may take at most; none: unknown.
pub fn memory_available_bytes() -> Option<u64> {
    [memory_available().or_else(memory_free), memory_left_to_group()].into_iter().flatten().min()
}

/// What is free now, without what the kernel could give up: for a /proc without meminfo
/// (`subset=pid`), or none.
fn memory_free() -> Option<u64> {
    // SAFETY: all zero is a valid `sysinfo`, which the kernel fills.
    let info = unsafe {
        let mut info: libc::sysinfo = core::mem::zeroed();
        if libc::sysinfo(&raw mut info) != 0 {
            return None;
        }
        info
    };
    (info.freeram + info.bufferram).checked_mul(u64::from(info.mem_unit))
}

/// A file that the kernel makes when it is read, by as few calls as possible: such files have no
/// size.
fn read_made(path: impl AsRef<Path>) -> Option<String> {
    /// More than most of them have.
    const BYTES: usize = 8 << 10;
    let mut text = String::with_capacity(BYTES);
    // Without `take` the file is asked for its size first.
    File::open(path).ok()?.take(u64::MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn memory_available() -> Option<u64> {
    let text = read_made("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Where control groups are, how a line of /proc/self/cgroup begins there, and the files with the
/// limit and the use: version 2 and version 1.
const GROUPS: [(&str, &str, [&str; 2]); 2] = [
    ("/sys/fs/cgroup", "::/", ["memory.max", "memory.current"]),
    ("/sys/fs/cgroup/memory", ":memory:/", ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
];

/// What this process's control group and those above it may still take.
fn memory_left_to_group() -> Option<u64> {
    let groups = read_made("/proc/self/cgroup")?;
    let left = GROUPS.iter().filter_map(|(root, prefix, names)| {
        let group = groups.lines().find_map(|line| line.split_once(prefix).map(|(_, group)| group))?;
        let root = Path::new(root);
        let directory = root.join(group);
        directory.ancestors().take_while(|path| path.starts_with(root)).filter_map(|path| left_in(path, names)).min()
    });
    left.min()
}

/// What one group may still take. Pages of files that were not used lately can be given back.
fn left_in(group: &Path, [limit, used]: &[&str; 2]) -> Option<u64> {
    /// A higher limit is none: version 1 says so with a number.
    const LIMIT_MAX: u64 = 1 << 62;
    let read = |name: &str| read_made(group.join(name));
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let limit = number(limit).filter(|limit| *limit < LIMIT_MAX)?;
    let statistics = read("memory.stat").unwrap_or_default();
    let idle = statistics.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let idle = idle.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(number(used)?.saturating_sub(idle)))
}

/// Free bytes of a directory's file system.
pub(super) fn free_bytes(directory: impl AsFd) -> u64 {
    rustix::fs::fstatvfs(directory).map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Bytes that a file may take of the memory for as long as it is used, however full the image gets.
/// Without a limit it is half of what is available.
pub(super) fn room_in_memory(limit_bytes: Option<u64>) -> u64 {
    limit_bytes.or_else(|| Some(memory_available_bytes()? / 2)).unwrap_or(u64::MAX)
}

/// `room_in_memory` for the runtime directory.
pub(super) fn room_in_directory(directory: impl AsFd) -> u64 {
    free_bytes(directory).saturating_sub(ROOM_BYTES)
}

/// Creates a file without a name for a copy of an image: in memory, or beside the image.
pub(super) fn create_unnamed(length: u64, limit_bytes: Option<u64>, image: &Path) -> io::Result<File> {
    if length > room_in_memory(limit_bytes) {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(directory_of(image).as_path(), flags, Mode::RUSR | Mode::WUSR) {
            return Ok(File::from(file));
        }
    }
    Ok(File::from(rustix::fs::memfd_create("directfs-image", rustix::fs::MemfdFlags::CLOEXEC)?))
}

/// The hidden file beside an image; where a path leads through a link, beside the image itself.
fn hidden_path(image: &Path, name: u64) -> PathBuf {
    let image = std::fs::canonicalize(image).or_else(|_| std::path::absolute(image));
    image.as_deref().map_or(PathBuf::from("."), directory_of).join(hidden_name(name))
}

/// Where files for an image lie that are too large for the memory: the names of devices are in
/// memory.
fn directory_of(image: &Path) -> PathBuf {
    if image.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        return PathBuf::from(BESIDE_DEVICES);
    }
    image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn hidden_name(name: u64) -> String {
    format!(".{}", outer_name(name))
}

/// Creates the hidden file beside an image, and the link to it. It shares no blocks with the image:
/// a store to a shared block needs space, and a full disk would raise SIGBUS.
pub(super) fn create_hidden(runtime_directory: &OwnedFd, name: u64, (image, path): (&File, &Path)) -> io::Result<File> {
    let hidden = hidden_path(path, name);
    rustix::fs::symlinkat(hidden.as_path(), runtime_directory, WORKING)?;
    // A file system without attributes leaves the path of the image to find it by.
    let named = rustix::fs::fsetxattr(image, HIDDEN, hidden.as_os_str().as_bytes(), XattrFlags::empty());
    if named.is_ok() {
        rustix::fs::fsync(image)?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&hidden, flags, Mode::RUSR | Mode::WUSR)?;
    // Btrfs: stores in place. Others do not know the flag.
    let _ = rustix::fs::ioctl_setflags(&file, IFlags::NOCOW);
    Ok(File::from(file))
}

/// Opens the working copy of a runtime directory for reading, without the image.
pub(super) fn open_left(runtime_directory: BorrowedFd<'_>, name: u64) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(runtime_directory, WORKING, flags, Mode::empty()) {
        Err(Errno::LOOP) => {
            let target = linked(runtime_directory, name).ok_or(Errno::LOOP)?;
            rustix::fs::open(target, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Opens the working copy of a runtime directory. The caller checks its owner.
pub(super) fn open(runtime_directory: impl AsFd, name: u64, image: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(&runtime_directory, WORKING, flags, Mode::empty()) {
        Err(Errno::LOOP) => {}
        opened => return opened,
    }
    // Through the image's own path first: the link's target may have another meaning here.
    let beside = rustix::fs::open(hidden_path(image, name), flags, Mode::empty());
    match (beside, linked(runtime_directory, name)) {
        (Ok(file), _) => Ok(file),
        (Err(_), Some(target)) => rustix::fs::open(target, flags, Mode::empty()),
        (Err(errno), None) => Err(errno),
    }
}

/// The target of the link, if it is the hidden file of that runtime directory.
fn linked(runtime_directory: impl AsFd, name: u64) -> Option<PathBuf> {
    let link = rustix::fs::readlinkat(runtime_directory, WORKING, Vec::new()).ok()?;
    let target = PathBuf::from(OsStr::from_bytes(link.as_bytes()));
    (target.file_name() == Some(OsStr::new(&hidden_name(name)))).then_some(target)
}

/// Removes the working copy of a runtime directory.
pub(super) fn remove(runtime_directory: &OwnedFd, name: u64) {
    if let Some(target) = linked(runtime_directory, name) {
        let _ = rustix::fs::unlinkat(CWD, target, AtFlags::empty());
    }
    let _ = rustix::fs::unlinkat(runtime_directory, WORKING, AtFlags::empty());
}

/// Removes the hidden file of a runtime directory that is gone, since the machine was started
/// again.
pub(super) fn remove_leftover(image: &File, path: &Path, name: u64, runtime_parent: &Path) {
    if name != 0 && runtime_parent.join(outer_name(name)).symlink_metadata().is_err() {
        remove_hidden(image, path, name);
    }
}

/// Removes the hidden file of an image: beside it, or where the image's attribute says. The image
/// may have been opened by another name, or moved since, alone or with its directory.
///
/// The attribute is as trustworthy as the image. So a file is removed only if it has the name that
/// the image gives, and names this image itself.
pub(super) fn remove_hidden(image: &File, path: &Path, name: u64) {
    let Ok(identity) = super::identity_of(image, path) else { return };
    for hidden in [Some(hidden_path(path, name)), named_by(image, name), beside_now(image, name)].into_iter().flatten()
    {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::open(&hidden, flags, Mode::empty()) else { continue };
        if Commits::is_made_for(&File::from(file), &identity) {
            let _ = std::fs::remove_file(hidden);
        }
    }
    let _ = rustix::fs::fremovexattr(image, HIDDEN);
}

/// The hidden file beside the image as it is called now: their directory may have been renamed.
fn beside_now(image: &File, name: u64) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", image.as_raw_fd())).ok()?;
    Some(path.parent()?.join(hidden_name(name)))
}

/// Where the image's attribute says that the hidden file of that runtime directory is.
fn named_by(image: &File, name: u64) -> Option<PathBuf> {
    let mut path = vec![0; PATH_BYTES_MAX];
    let length = rustix::fs::fgetxattr(image, HIDDEN, &mut path[..]).ok()?;
    path.truncate(length);
    let path = PathBuf::from(OsStr::from_bytes(&path));
    (path.is_absolute() && path.file_name() == Some(OsStr::new(&hidden_name(name)))).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_known_without_proc_meminfo() {
        let free_bytes = memory_free().unwrap();
        assert!((1 << 20..1 << 50).contains(&free_bytes), "{free_bytes}");
    }
}
