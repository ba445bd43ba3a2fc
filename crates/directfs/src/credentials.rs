//! The identity of a caller.

use std::sync::Arc;

/// The user and groups for which calls are made, and the umask of what they create.
///
/// They decide permissions, and the owner of new files, by the rules of Linux. User 0 may do
/// everything.
///
/// Credentials are no protection against this process itself, which can change every byte of an
/// image that it has opened for writing. To separate users, mount the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    umask: u32,
}

impl Credentials {
    /// A user with a group and supplementary groups. The umask is 0o022.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.into(), umask: 0o022 }
    }

    /// The credentials of this process at this moment: effective user and group, supplementary
    /// groups, and umask.
    pub fn of_process() -> Credentials {
        let groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect();
        Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into(),
            umask: umask_of_process().unwrap_or(0o022),
        }
    }

    /// Sets the umask: the permission bits that new files and directories do not get.
    pub fn umask(self, umask: u32) -> Credentials {
        Credentials { umask: umask & 0o777, ..self }
    }

    pub(crate) fn mask(&self) -> u32 {
        self.umask
    }

    pub(crate) fn as_posix(&self) -> posix::Credentials<'_> {
        posix::Credentials::user(self.uid, self.gid, &self.groups)
    }
}

/// The system call can only change it, which other threads would see.
fn umask_of_process() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(digits.trim(), 8).ok()
}
