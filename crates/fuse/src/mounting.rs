//! Mounting and unmounting by system calls. Root needs no helper then, and mount(8) shows the file
//! system's type.

use crate::error::MountError;
use crate::helper;
use crate::messages::warn;
use crate::options::MountOptions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;

/// The type that mount(8) and /proc/mounts show.
const TYPE: &std::ffi::CStr = c"fuse.directfs";

/// Checks a mount point; returns its path without symbolic links.
pub(crate) fn check_mount_point(path: &Path) -> Result<PathBuf, MountError> {
    let error = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOTCONN) => MountError::Dead { path: path.to_owned() },
        _ => MountError::MountPoint { path: path.to_owned(), source },
    };
    let real = path.canonicalize().map_err(error)?;
    let metadata = real.metadata().map_err(error)?;
    if metadata.is_dir() { Ok(real) } else { Err(MountError::NotADirectory { path: path.to_owned() }) }
}

/// A mount that was made, and the device that delivers the kernel's requests.
pub(crate) struct Mounted {
    pub path: PathBuf,
    pub device: OwnedFd,
    /// Mounted by fusermount3 for a user.
    pub by_helper: bool,
}

impl Mounted {
    /// Unmounts, unless the mount has ended.
    pub(crate) fn end(&self) -> Result<(), MountError> {
        let path = &self.path;
        match self.by_helper {
            _ if !is_mounted(&self.device) => Ok(()),
            true => helper::unmount(path).map_err(|source| MountError::Unmount { path: path.clone(), source }),
            false => unmount(path),
        }
    }

    /// Unmounts an image, and says so if the mount is in use.
    pub(crate) fn stop(&self) -> Result<(), MountError> {
        self.end()?;
        if is_mounted(&self.device) {
            warn(format_args!(
                "the mount on {} is in use: it is hidden now, and ends when the last program on it closes its files and leaves \
                 its directories; a second signal ends it at once, and the next use recovers the image",
                self.path.display()
            ));
        }
        Ok(())
    }
}

/// Mounts, by system calls or by the helper.
pub(crate) fn mount(source: &OsStr, path: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let path = path.to_owned();
    if let Some(device) = mount_directly(source, &path, options)? {
        return Ok(Mounted { path, device, by_helper: false });
    }
    match helper::mount(source, &path, options) {
        Ok(device) => Ok(Mounted { path, device, by_helper: true }),
        Err(source) => Err(MountError::Refused { path, source }),
    }
}

/// Mounts by system calls; returns the device that delivers the kernel's requests. `None` if this
/// is not permitted, so that a helper has to mount.
pub(crate) fn mount_directly(
    source: &OsStr,
    target: &Path,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, MountError> {
    let device = match open_device() {
        Ok(device) => device,
        Err(MountError::Device { source }) if source.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error),
    };
    match mount_device(&device, source, target, options) {
        Ok(()) => Ok(Some(device)),
        Err(MountError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a device for a future mount. The mount must be made in the same user namespace.
pub fn open_device() -> Result<OwnedFd, MountError> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map(OwnedFd::from).map_err(|source| MountError::Device { source })
}

/// Mounts the file system that is served on a device, now or later: accesses wait until it is.
pub fn mount_device(device: &OwnedFd, source: &OsStr, target: &Path, options: &MountOptions) -> Result<(), MountError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut data =
        format!("fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions", device.as_fd().as_raw_fd());
    if options.allow_other.unwrap_or(uid == 0) {
        data.push_str(",allow_other");
    }
    let flags = options.kernel_flags | if options.read_only { libc::MS_RDONLY } else { 0 };
    let refused = |source| MountError::Refused { path: target.to_owned(), source };
    let invalid = |_| refused(io::ErrorKind::InvalidInput.into());
    let source = CString::new(source.as_bytes()).map_err(invalid)?;
    let path = CString::new(target.as_os_str().as_bytes()).map_err(invalid)?;
    let data = CString::new(data).map_err(invalid)?;
    // SAFETY: four strings that end in zero and outlive the call, which only reads them.
    let result = unsafe {
        libc::mount(source.as_ptr(), path.as_ptr(), TYPE.as_ptr(), flags, data.as_ptr().cast::<libc::c_void>())
    };
    if result == 0 { Ok(()) } else { Err(refused(io::Error::last_os_error())) }
}

/// Changes the flags of an existing mount, including read-only. `nosuid` and `nodev` stay unless
/// the options name these flags: the mount may have them because others can write the image.
/// `present`: those that it has. The server's own options stay: a server started read-only still
/// refuses changes.
pub fn remount(path: &Path, options: &MountOptions, present: libc::c_ulong) -> Result<(), MountError> {
    let refused = |source| MountError::Refused { path: path.to_owned(), source };
    let place = CString::new(path.as_os_str().as_bytes()).map_err(|_| refused(io::ErrorKind::InvalidInput.into()))?;
    let read_only = if options.read_only { libc::MS_RDONLY } else { 0 };
    let flags = libc::MS_REMOUNT | options.kernel_flags | read_only | present & !options.named_flags;
    // SAFETY: strings that end in zero and outlive the call; no data.
    let result = unsafe { libc::mount(ptr::null(), place.as_ptr(), ptr::null(), flags, ptr::null()) };
    if result == 0 { Ok(()) } else { Err(refused(io::Error::last_os_error())) }
}

/// Whether users other than root and this process's own can write the image: they decide what is in
/// it. An image that cannot be examined counts as such.
pub(crate) fn is_writable_by_others(image: &Path) -> bool {
    let Ok(metadata) = image.metadata() else { return true };
    let is_trusted_owner = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    !is_trusted_owner || metadata.mode() & 0o022 != 0
}

/// Whether the mount of a device still exists. If not, the mount at its path belongs to another
/// server.
pub(crate) fn is_mounted(device: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&device, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut asked, Some(&now)) {
        Ok(_) => !asked[0].revents().contains(PollFlags::ERR),
        Err(_) => true,
    }
}

/// Unmounts. A mount in use is hidden immediately and ends with its last user.
pub(crate) fn unmount(target: &Path) -> Result<(), MountError> {
    let error = |source| MountError::Unmount { path: target.to_owned(), source };
    let path = CString::new(target.as_os_str().as_bytes()).map_err(|_| error(io::ErrorKind::InvalidInput.into()))?;
    for flags in [0, libc::MNT_DETACH] {
        // SAFETY: a string that ends in zero.
        if unsafe { libc::umount2(path.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } == 0 {
            return Ok(());
        }
        let cause = io::Error::last_os_error();
        if cause.raw_os_error() != Some(libc::EBUSY) {
            return Err(error(cause));
        }
    }
    Err(error(io::Error::from_raw_os_error(libc::EBUSY)))
}
