//! The processes that use an image, as far as /proc shows them.

use crate::asking;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// A process that has an image open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageUser {
    /// Its id.
    pub pid: i32,
    /// Its name.
    pub command: String,
    /// It serves a mount: it also has /dev/fuse open.
    pub serves_mount: bool,
    /// For a mount's server: how the kernel's requests reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_through: Option<Transport>,
}

/// The way of a mount's requests to its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Transport {
    /// By reads and writes of the device.
    #[serde(rename = "/dev/fuse")]
    Device,
    /// By rings in memory, one for each processor.
    #[serde(rename = "io_uring")]
    IoUring,
}

impl Transport {
    /// The transport that a server uses: only one with rings has threads for them.
    fn of_server(pid: i32) -> Transport {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        match names.any(|name| name.starts_with(fuse::RING_THREAD)) {
            true => Transport::IoUring,
            false => Transport::Device,
        }
    }

    /// A description, with the reason of this machine against io_uring, if there is one.
    pub fn description(self) -> String {
        let parameter = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        let limited = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let is_limited = limited.is_ok_and(|value| value.trim() != "0");
        let reason = match (self, parameter.as_deref().map(str::trim)) {
            (Transport::IoUring, _) => return "io_uring".to_owned(),
            (_, Err(_)) => " (io_uring needs Linux 6.14 or later)",
            (_, Ok("N")) => " (the kernel's parameter fuse.enable_uring is off)",
            (_, Ok(_)) if is_limited => " (the setting kernel.io_uring_disabled limits io_uring)",
            (_, Ok(_)) => "",
        };
        format!("/dev/fuse{reason}")
    }
}

/// The device number of /dev/fuse.
const FUSE_DEVICE: u64 = 10 << 8 | 229;

/// Device and inode number.
pub fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The processes other than this one that have the file open, by device and inode number. Only root
/// sees those of other users.
pub fn users_of(image: (u64, u64)) -> Vec<ImageUser> {
    let own = std::process::id() as i32;
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).filter(|&pid| pid != own);
    pids.filter_map(|pid| user(pid, image)).collect()
}

fn user(pid: i32, image: (u64, u64)) -> Option<ImageUser> {
    let (mut has_image, mut serves_mount) = (false, false);
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        // Without asking a server: one that is stopped would not answer.
        let flags = AtFlags::STATX_DONT_SYNC;
        let Ok(found) = statx(CWD, descriptor.path(), flags, StatxFlags::BASIC_STATS) else { continue };
        let device = makedev(found.stx_dev_major, found.stx_dev_minor);
        has_image |= (device, found.stx_ino) == image;
        serves_mount |= makedev(found.stx_rdev_major, found.stx_rdev_minor) == FUSE_DEVICE;
    }
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    let requests_through = serves_mount.then(|| Transport::of_server(pid));
    has_image.then_some(ImageUser { pid, command, serves_mount, requests_through })
}

/// Names the servers of an image that has not answered, and the remedy.
pub fn silent_servers(image: &Path, point: &Path) -> String {
    let found = asking::identity(image).map_or_else(|_| Vec::new(), users_of);
    let servers: Vec<_> = found.into_iter().filter(|user| user.serves_mount).collect();
    silence(&servers, point)
}

/// Names the servers of a mount that has not answered, and the remedy.
pub fn silence(servers: &[ImageUser], point: &Path) -> String {
    let who = match servers.is_empty() {
        true => "its server is a process of another user".to_owned(),
        false => servers.iter().map(|server| named(server.pid)).collect::<Vec<_>>().join("; "),
    };
    let waited = asking::PATIENCE.as_secs();
    format!("the mount on {} does not answer within {waited} s ({who})", point.display())
}

/// A process, and how it is continued if it is stopped.
pub fn named(pid: i32) -> String {
    match is_stopped(pid) {
        true => format!("process {pid}, which is stopped: `kill -CONT {pid}` continues it"),
        false => format!("process {pid}"),
    }
}

/// Whether a process is stopped.
pub fn is_stopped(pid: i32) -> bool {
    matches!(state(pid), Some('T' | 't'))
}

/// The state of a process: a letter as in ps(1).
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Waits until a process has exited or a timeout; returns whether it has exited.
pub fn wait_for_end(pid: i32, patience: Duration) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return true };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let mut waiting = [PollFd::new(&handle, PollFlags::IN)];
    matches!(poll(&mut waiting, Some(&timeout)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_the_file_open_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        // A process that another test starts meanwhile has this test's file until its exec.
        let until_users_are = |expected: &[(i32, bool)]| {
            let found = || {
                users_of(identity(&metadata)).into_iter().map(|user| (user.pid, user.serves_mount)).collect::<Vec<_>>()
            };
            let end = std::time::Instant::now() + Duration::from_secs(600);
            while found() != expected {
                assert!(std::time::Instant::now() < end, "{:?}", found());
            }
        };
        until_users_are(&[]);
        let stdin = std::process::Stdio::from(file.reopen().unwrap());
        let mut child = std::process::Command::new("sleep").arg("1000").stdin(stdin).spawn().unwrap();
        let pid = child.id() as i32;
        // Until the exec, its name is this program's.
        until_users_are(&[(pid, false)]);
        assert!(!wait_for_end(pid, Duration::from_millis(1)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wait_for_end(pid, Duration::from_secs(600)));
    }
}
