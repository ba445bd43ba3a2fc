//! A private mount namespace, and in it a directory to mount on where the host has none.
//!
//! Invariant: nothing that is mounted here is visible outside.

use anyhow::{Context, Result, bail};
use rustix::fs::Mode;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Enters a user namespace if this user may not mount. Only the user's own ids are mapped in it.
pub fn enter_user_namespace() -> Result<()> {
    if may_mount() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: this process has one thread and shares nothing that the namespace changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
        .context("a user namespace is refused (kernel.unprivileged_userns_clone, user.max_user_namespaces, or a policy); run as root or use `directfs mount`")?;
    let write = |name: &str, text: String| {
        fs::write(name, text).with_context(|| format!("cannot set up a user namespace by {name}"))
    };
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn may_mount() -> bool {
    const SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> SYS_ADMIN & 1 == 1)
}

/// Enters a mount namespace of this process's own.
pub fn enter_mount_namespace() -> Result<()> {
    // SAFETY: this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.context("a mount namespace is refused")?;
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).context("cannot keep mounts private")
}

/// Ensures that there is a directory to mount on. Returns the list, for [`remove_made`], of
/// directories created on the host.
pub fn make_mount_point(mount: &Path) -> Result<Vec<u8>> {
    let mut made = vec![0];
    if mount.is_dir() {
        return Ok(made);
    }
    let parent = mount.ancestors().find(|path| path.is_dir()).context("the mount directory has no parent")?;
    // A read-only copy of a directory in which all users create files would break programs. The
    // root cannot be covered.
    const STICKY_FOR_ALL: u32 = 0o1002;
    let is_common = fs::metadata(parent)?.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
    if is_common || parent == Path::new("/") {
        let missing: Vec<&Path> = mount.ancestors().take_while(|path| *path != parent).collect();
        for path in missing.into_iter().rev() {
            fs::create_dir(path).with_context(|| {
                format!(
                    "cannot make {}, the mount point of the image; name another directory with --at",
                    path.display()
                )
            })?;
            made.extend(path.as_os_str().as_bytes());
            made.push(0);
        }
        return Ok(made);
    }
    mount_tmpfs_over(parent)
        .with_context(|| format!("cannot add the mount directory to {} in a private namespace", parent.display()))?;
    fs::create_dir_all(mount)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY;
    rustix::mount::mount_remount(parent, flags, "").with_context(|| format!("cannot protect {}", parent.display()))?;
    Ok(made)
}

/// Removes the directories that were created on the host.
pub fn remove_made(made: &[u8]) {
    for path in made.split(|&byte| byte == 0).filter(|path| !path.is_empty()).rev() {
        // A directory that is not empty any more stays.
        let _ = fs::remove_dir(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())));
    }
}

/// Mounts a tmpfs over a directory, with all entries of the directory in it.
fn mount_tmpfs_over(directory: &Path) -> Result<()> {
    const ENTRIES_MAX: usize = 1000;
    let old = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(directory)?;
    let metadata = old.metadata()?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    let entries: Vec<_> = fs::read_dir(&below)?.collect::<Result<_, _>>()?;
    if entries.len() > ENTRIES_MAX {
        bail!("it has more than {ENTRIES_MAX} entries; name another mount directory with --at");
    }
    let mode = format!("mode={:o}", metadata.mode() & 0o7777);
    let mode = std::ffi::CString::new(mode)?;
    rustix::mount::mount("directfs", directory, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, mode.as_c_str())?;
    for entry in entries {
        let (from, to) = (below.join(entry.file_name()), directory.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::DirBuilder::new().mode(0o755).create(&to)?;
        } else {
            let _ = rustix::fs::open(&to, rustix::fs::OFlags::CREATE | rustix::fs::OFlags::CLOEXEC, Mode::RUSR)?;
        }
        rustix::mount::mount_bind_recursive(&from, &to)?;
    }
    Ok(())
}
