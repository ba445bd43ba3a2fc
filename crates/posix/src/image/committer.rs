//! The process that commits an image on a disk for all others: how it is started, watched and
//! ended, and what it does.
//!
//! ```text
//!  launcher                                   committer (`directfs commit-service`)
//!  +------------------------------+  spawn    +-------------------------------------+
//!  | standard input: image file   | --------> | opens the image as any process does |
//!  | standard output: a socket    |   ASK     | commits at intervals and on request |
//!  | watches it while work waits  | <-------> | a thread of its own answers         |
//!  | the run or mount ends        |   END     |                                     |
//!  |                              | --------> | detaches, and ends                  |
//!  | is killed                    |  (end)    | detaches when no program needs it   |
//!  +------------------------------+           +-------------------------------------+
//! ```
//!
//! A process that is stopped, by a signal, a debugger or the freezer of control groups, does not
//! answer. One that waits for a slow disk does. (The freezer of version 1 also delays SIGKILL until
//! it thaws the process, so nothing replaces that one before.)
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
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// The thread or process that commits an image on a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Committer {
    /// The threads that need it, and one of this process.
    #[default]
    Threads,
    /// A process that this one starts when there is something to commit. The program is `directfs`.
    /// If it cannot be started, threads commit.
    Started(PathBuf),
    /// This process, which does nothing else.
    This,
}

/// How long a committer may take to end before it is killed.
const END_MAX: Duration = Duration::from_secs(5);
const AT_ONCE: Duration = Duration::ZERO;
/// What the starter writes: the committer returns this byte at once,
const ASK: u8 = 1;
/// or ends.
const END: u8 = 2;
/// Looks without an answer after which a committer is killed, and the least time between two. They
/// are counted instead of time that passes: the starter may have been stopped, too.
const SILENT_LOOKS: u32 = 20;
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// The longest pause of a committer without a launcher between looks for other processes.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// A committer that this process started.
pub(super) struct CommitProcess {
    process: OwnedFd,
    socket: UnixStream,
    /// Looks since it was asked, and the last one of them; `None`: it has answered.
    unanswered: Option<(u32, Instant)>,
}

impl CommitProcess {
    /// Starts it for an image.
    pub fn start(program: &Path, policy: CommitPolicy, image: &File) -> io::Result<CommitProcess> {
        let mut command = Command::new(program);
        command.arg("commit-service");
        if let CommitPolicy::Every(interval) = policy {
            command.arg(format!("--interval-ms={}", interval.as_millis().max(1)));
        }
        // A separate description: the locks of this one are not handed on.
        let image = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", image.as_raw_fd()))?;
        let (socket, its_end) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        command.stdin(Stdio::from(image)).stdout(Stdio::from(OwnedFd::from(its_end))).stderr(Stdio::null());
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let started = CommitProcess { process, socket, unanswered: None };
        // Another thread of this process may have waited for it before the descriptor was opened,
        // and then another process may have its number.
        match parent_of(pid) {
            Some(parent) if parent == std::process::id() && !started.has_ended(AT_ONCE) => Ok(started),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether it has ended, at the latest after so long.
    fn has_ended(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let has_ended =
            poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&timeout)).is_ok_and(|ended| ended > 0);
        if has_ended {
            // A thread that waits for any child may have taken its status.
            let _ = waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        has_ended
    }

    /// Whether it lives and, if it is to be asked, answers. One that does not is killed.
    pub fn is_at_work(&mut self, is_asked: bool) -> bool {
        if self.has_ended(AT_ONCE) {
            return false;
        }
        let is_silent = (is_asked || self.is_unanswered()) && self.is_silent();
        if is_silent {
            self.kill();
        }
        !is_silent
    }

    /// Whether it has not answered yet.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Asks whether it executes instructions. `true`: it did not answer for [`SILENT_LOOKS`].
    fn is_silent(&mut self) -> bool {
        let Some((looks, last)) = self.unanswered else {
            self.unanswered = Some((0, Instant::now()));
            // If it fails, it is about to end.
            let _ = self.socket.write_all(&[ASK]);
            return false;
        };
        if matches!(self.socket.read(&mut [0]), Ok(1)) {
            self.unanswered = None;
        } else if last.elapsed() >= LOOK {
            self.unanswered = Some((looks + 1, Instant::now()));
        }
        self.unanswered.is_some_and(|(looks, _)| looks >= SILENT_LOOKS)
    }

    /// Returns when no instruction of it is executed any more, and its locks are free.
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        self.has_ended(END_MAX);
    }

    /// Ends it.
    pub fn end(mut self) {
        let latest = Instant::now() + END_MAX;
        let is_asked = self.socket.write_all(&[END]).is_ok();
        while is_asked && !self.is_silent() && Instant::now() < latest {
            if self.has_ended(LOOK) {
                return;
            }
        }
        self.kill();
    }
}

/// The parent of a process, as /proc shows it.
fn parent_of(process: Pid) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
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
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let _ = std::fs::write("/proc/self/comm", "directfs-commit");
    super::service::block_signals();
    let failed = |source| lock_error(path, source);
    let starter = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?);
    let (ending, end) = mpsc::channel();
    let answering = std::thread::Builder::new().name("directfs-answer".to_owned());
    answering.spawn(move || answer(starter, &ending)).map_err(failed)?;
    let options = OpenImage { commits: policy, committer: Committer::This, ..OpenImage::default() };
    let image = Image::open(path, &options)?;
    let is_asked_to_end = end.recv().unwrap_or(false);
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

/// Answers the starter while it lives. Reports once whether it asked for the end, or has ended.
fn answer(mut starter: File, ending: &Sender<bool>) {
    let mut byte = [0];
    loop {
        match starter.read(&mut byte) {
            Ok(1) if byte == [ASK] => {
                let _ = starter.write_all(&byte);
            }
            Ok(1) => {
                let _ = ending.send(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => {
                let _ = ending.send(false);
                return;
            }
        }
    }
}
