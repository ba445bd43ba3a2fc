//! The process that commits an image on a disk for all others: how it is started, watched and
//! ended, and what it does.
//!
//! ```text
//!  launcher                                   committer (`directfs commit-service`)
//!  +------------------------------+  spawn    +-------------------------------------+
//!  | standard input: image file   | --------> | opens the image as any process does |
//!  | standard output: a pipe      |           | commits at intervals and on request |
//!  | watches it                   |  a byte   |                                     |
//!  | the run ends                 | --------> | detaches, and ends                  |
//!  | is killed                    |  (end)    | detaches when no program needs it   |
//!  +------------------------------+           +-------------------------------------+
//! ```
//!
//! Invariants
//! - It is in a session of its own, so nothing that the terminal or a shell sends reaches it.
//! - It is known by a descriptor of the process (pidfd), not by a number that another process can
//!   get. A signal goes only to the process that was started here.
//! - It may be killed at any time: see `commits::requests`.

use super::locks::{Byte, is_held_by_others};
use super::{CommitPolicy, Image, ImageError, OpenImage, lock_error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The program that becomes a committer with that policy.
pub type CommitterCommand = fn(CommitPolicy) -> Command;

/// The thread or process that commits an image on a disk.
#[derive(Debug, Clone, Copy, Default)]
pub enum Committer {
    /// The threads that need it, and one of this process.
    #[default]
    Threads,
    /// A process that this one starts when there is something to commit.
    Started(CommitterCommand),
    /// This process, which does nothing else.
    This,
}

/// How long a committer may take to end before it is killed.
const END: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// The longest pause of a committer without a launcher between looks for other processes.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// A committer that this process started.
pub(super) struct CommitProcess {
    process: OwnedFd,
    pid: Pid,
    end: PipeWriter,
}

impl CommitProcess {
    /// Starts it for an image. `None`: it has ended already.
    pub fn start(mut command: Command, image: &File) -> io::Result<Option<CommitProcess>> {
        // A separate description: the locks of this one are not handed on.
        let image = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", image.as_raw_fd()))?;
        let (until, end) = io::pipe()?;
        command.stdin(Stdio::from(image)).stdout(Stdio::from(OwnedFd::from(until))).stderr(Stdio::null());
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        // This process may have been stopped meanwhile, and the committer ended. If another thread
        // has waited for it, the number may be that of another process now.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            // The latter two if it is the number of a thread.
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(None),
            process => process?,
        };
        let started = CommitProcess { process, pid, end };
        let is_own = started.state().is_some_and(|(_, parent)| parent == std::process::id());
        Ok(is_own.then_some(started))
    }

    /// State and parent, as /proc shows them while the process lives.
    fn state(&self) -> Option<(char, u32)> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).ok()?;
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
        // It has not ended, so the number was its own.
        (!self.has_ended(&AT_ONCE)).then_some(state)
    }

    fn has_ended(&self, timeout: &Timespec) -> bool {
        poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(timeout)).is_ok_and(|ended| ended > 0)
    }

    /// Whether it lives and is not stopped. One that is stopped is killed.
    pub fn is_at_work(&mut self) -> bool {
        match self.state() {
            Some(('T' | 't', _)) => {
                self.kill();
                false
            }
            state => state.is_some() || !self.has_ended(&AT_ONCE),
        }
    }

    /// Returns when no instruction of it is executed any more, and its locks are free.
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        self.has_ended(&END);
    }

    /// Ends it.
    pub fn end(mut self) {
        let is_stopped = matches!(self.state(), Some(('T' | 't', _)));
        if is_stopped || self.end.write_all(&[1]).is_err() || !self.has_ended(&END) {
            self.kill();
        }
    }
}

impl Image {
    /// Whether another process is the committer. Several may lose their launchers at once: each of
    /// them would wait for the others.
    fn has_other_committer(&self) -> bool {
        let (Some(commits), Ok(number)) = (&self.memory.commits, self.fs().processes().process_number()) else {
            return false;
        };
        let has_one = self.fs().enter().is_ok_and(|thread| commits.has_committer(&thread));
        has_one && !commits.is_service(number)
    }
}

/// Serves as the committer of the image behind standard input, as `CommitProcess::start` starts it.
pub fn commit_for_others(policy: CommitPolicy) -> Result<(), ImageError> {
    let path = Path::new("/proc/self/fd/0");
    // The program that started it may have left descriptors to its children.
    // SAFETY: nothing in this process uses them yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let _ = rustix::thread::set_name(c"directfs-commit");
    super::service::block_signals();
    let options = OpenImage { commits: policy, committer: Committer::This, ..OpenImage::default() };
    let image = Image::open(path, &options)?;
    let failed = |source| lock_error(path, source);
    let mut until = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?);
    let is_asked_to_end = matches!(until.read(&mut [0]), Ok(1));
    // Otherwise the launcher is dead, and programs of it may live.
    let mut pause = Duration::from_millis(2);
    while !is_asked_to_end
        && is_held_by_others(&image.file, Byte::Attached).map_err(failed)?
        && !image.has_other_committer()
    {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE_MAX);
    }
    image.close().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    /// Its starter may be stopped for a while between the start and the first look at it.
    #[test]
    fn a_committer_that_ends_at_once_is_lost_and_can_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let image =
            File::options().read(true).write(true).create_new(true).open(directory.path().join("image")).unwrap();
        for _ in 0..200 {
            let mut command = Command::new("true");
            // SAFETY: ends the child, which is all that it does.
            unsafe { command.pre_exec(|| libc::_exit(0)) };
            let started = CommitProcess::start(command, &image).unwrap();
            if let Some(mut committer) = started {
                committer.has_ended(&END);
                assert!(!committer.is_at_work());
            }
        }
    }
}
