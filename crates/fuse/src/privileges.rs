//! Keeps `nosuid` and `nodev` on the mount of an image that users other than root can write.
//!
//! `mount -o remount,OPTIONS IMAGE DIR` sets the flags by a system call of mount(8), without the
//! helper: flags that it does not name are lost. The server sees the change in the table of mounts
//! and sets them again (Linux 5.12). A helper that was given `suid` or `dev` says so before, by
//! [`ATTRIBUTE`].

use crate::messages::warn;
use rustix::event::{PollFd, PollFlags, poll};
use std::ffi::CString;
use std::fs::File;
use std::io::{PipeWriter, pipe};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

/// The attribute that root sets to `suid`, `dev` or `suid,dev`: the mount may lose these flags.
pub const ATTRIBUTE: &str = "system.directfs.privileges";

const TABLE: &str = "/proc/self/mountinfo";

/// The flags that are kept: as mount(2) and mount_setattr(2) have them, in the table, and the
/// option that permits their loss.
const KEPT: [(libc::c_ulong, u64, &[u8], &str); 2] =
    [(libc::MS_NOSUID, 2, b"nosuid", "suid"), (libc::MS_NODEV, 4, b"nodev", "dev")];

/// The flags whose loss a value of the attribute permits; `None`: it is no such value.
pub(crate) fn permitted_by(value: &[u8]) -> Option<libc::c_ulong> {
    let mut words = value.split(|&byte| byte == b',');
    words.try_fold(0, |flags, word| {
        KEPT.iter().find(|(.., option)| option.as_bytes() == word).map(|(flag, ..)| flags | flag)
    })
}

/// Keeps the flags until it is dropped.
pub(crate) struct Guard {
    end: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Keeps these flags, but for those that are permitted to go. Without a thread they are as safe
    /// as the administrator makes them.
    pub(crate) fn start(point: &Path, flags: libc::c_ulong, permitted: Arc<AtomicU64>) -> Option<Guard> {
        let flags = flags & (libc::MS_NOSUID | libc::MS_NODEV);
        let point = CString::new(point.as_os_str().as_bytes()).ok().filter(|_| flags != 0)?;
        let table = File::open(TABLE).ok()?;
        let (over, end) = pipe().ok()?;
        let keep = move || loop {
            let mut waiting = [PollFd::new(&table, PollFlags::PRI), PollFd::new(&over, PollFlags::IN)];
            match poll(&mut waiting, None) {
                Ok(_) if waiting[1].revents().is_empty() => restore(&point, flags & !permitted.load(Relaxed)),
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        };
        let thread = std::thread::Builder::new().name("directfs-flags".to_owned()).spawn(keep).ok()?;
        Some(Guard { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // The thread does nothing that could panic.
            let _ = thread.join();
        }
    }
}

/// Sets those of the flags that the mount at a point lacks.
fn restore(point: &CString, flags: libc::c_ulong) {
    /// As mount_setattr(2) has it.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let Ok(table) = std::fs::read(TABLE) else { return };
    let Some(shown) = flags_at(&table, &escaped(point.as_bytes())) else { return };
    let missing = KEPT.iter().filter(|(flag, _, name, _)| flags & flag != 0 && !shown.contains(name));
    let set: u64 = missing.map(|(_, attribute, ..)| attribute).sum();
    if set == 0 {
        return;
    }
    let wanted = Attributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: a string that ends in zero and a complete description, which the call only reads.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            point.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            &raw const wanted,
            size_of::<Attributes>(),
        )
    };
    let mount = point.to_string_lossy();
    match result {
        0 => warn(format_args!(
            "a remount dropped nosuid or nodev of {mount}, which it has again: root does not choose its files alone; name \
             suid or dev with -o to do without"
        )),
        _ => warn(format_args!(
            "a remount dropped nosuid or nodev of {mount}, and they cannot be set again ({}): root does not choose its files \
             alone, so remount it with -o nosuid,nodev",
            std::io::Error::last_os_error()
        )),
    }
}

/// The flags of the topmost mount of an image at a point, in the table's words.
fn flags_at<'t>(table: &'t [u8], point: &[u8]) -> Option<Vec<&'t [u8]>> {
    let line =
        table.split(|&byte| byte == b'\n').rfind(|line| line.split(|&byte| byte == b' ').nth(4) == Some(point))?;
    let is_image = line.windows(17).any(|bytes| bytes == b" - fuse.directfs ");
    let flags = line.split(|&byte| byte == b' ').nth(5).filter(|_| is_image)?;
    Some(flags.split(|&byte| byte == b',').collect())
}

/// A path as the table has it.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => text.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => text.push(byte),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_a_point_is_found_by_its_escaped_path() {
        let table = b"1 0 0:1 / /a\\040b rw - tmpfs x rw\n\
            2 0 0:2 / /a\\040b rw,nosuid,noatime shared:1 - fuse.directfs /i.img rw\n\
            3 0 0:3 / /c rw,nodev - ext4 /dev/a rw\n";
        let flags = flags_at(table, &escaped(b"/a b")).unwrap();
        assert_eq!(flags, [&b"rw"[..], b"nosuid", b"noatime"]);
        assert_eq!(flags_at(table, b"/c"), None, "no image");
        assert_eq!(flags_at(table, b"/d"), None);
    }

    #[test]
    fn only_known_privileges_are_permitted() {
        assert_eq!(permitted_by(b"suid,dev"), Some(libc::MS_NOSUID | libc::MS_NODEV));
        assert_eq!(permitted_by(b"dev"), Some(libc::MS_NODEV));
        assert_eq!(permitted_by(b"suid,exec"), None);
        assert_eq!(permitted_by(b""), None);
    }
}
