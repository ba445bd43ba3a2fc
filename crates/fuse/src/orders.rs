//! Orders to a server that has the image alone: to copy it, and to give back what it does not use.
//! Other processes cannot attach the image meanwhile, so they ask for it by [`ATTRIBUTE`].
//!
//! An order is performed by a thread of its own, so that each request is answered at once:
//!
//! | request | text |
//! | --- | --- |
//! | set | `copy FD` (into that file of the calling process), or `trim` |
//! | get | `none`, `running DONE TOTAL` (bytes), `done`, `done BEFORE AFTER COPY` (of a trim), `failed ERRNO` |
//!
//! Invariants
//! - Only root, the server's user and the image's owner can give an order.
//! - The server takes the open file itself from the process that asks, with the rights that it was
//!   opened with. It opens no name for others.
//! - An order ends with the process that gave it. Until that process has ended, it alone sees the
//!   result: another order is refused with EBUSY.

use image::{ImageError, Trimmed, Watch};
use posix::{Errno, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The attribute of every file of the mount.
pub const ATTRIBUTE: &str = "system.directfs.order";

/// The orders of a mount: at most one at a time.
#[derive(Default)]
pub(crate) struct Orders {
    current: Mutex<Option<Current>>,
    /// The mount has ended.
    has_ended: Arc<AtomicBool>,
}

struct Current {
    order: Arc<Order>,
    thread: JoinHandle<()>,
}

/// An order that was given.
struct Order {
    /// The process that gave it.
    requester: OwnedFd,
    done: AtomicU64,
    total: AtomicU64,
    result: Mutex<Option<Result<Option<Trimmed>>>>,
}

/// Does what is to be done.
pub(crate) type Perform = Box<dyn FnOnce(&Task, Watch<'_>) -> Performed + Send>;

/// What was done, and if it was a trim, its result.
pub(crate) type Performed = std::result::Result<Option<Trimmed>, ImageError>;

/// What is to be done.
pub(crate) enum Task {
    /// Copy the image into this file.
    Copy(File),
    /// Give back what the image does not use.
    Trim,
}

impl Order {
    /// Whether the process that gave it has ended.
    fn is_abandoned(&self) -> bool {
        let mut asked = [PollFd::new(&self.requester, PollFlags::IN)];
        matches!(poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }

    /// Keeps account of what is done; returns whether to go on.
    fn watch(&self, done: u64, total: u64, has_ended: &AtomicBool) -> bool {
        self.done.store(done, Relaxed);
        self.total.store(total, Release);
        !has_ended.load(Acquire) && !self.is_abandoned()
    }

    fn lock_result(&self) -> MutexGuard<'_, Option<Result<Option<Trimmed>>>> {
        // A panic elsewhere leaves the value whole.
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        match &*self.lock_result() {
            None => {
                let total = self.total.load(Acquire);
                format!("running {} {total}", self.done.load(Relaxed))
            }
            Some(Ok(None)) => "done".to_owned(),
            Some(Ok(Some(trimmed))) => {
                let Trimmed { before_bytes, after_bytes, is_working_copy } = trimmed;
                format!("done {before_bytes} {after_bytes} {}", u8::from(*is_working_copy))
            }
            Some(Err(Errno(number))) => format!("failed {number}"),
        }
    }
}

impl Orders {
    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        // A panic elsewhere leaves the value whole.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of the last order.
    pub(crate) fn text(&self) -> String {
        self.lock().as_ref().map_or_else(|| "none".to_owned(), |current| current.order.text())
    }

    /// Begins to perform an order of a process that may give it.
    pub(crate) fn begin(&self, requester: u32, text: &[u8], perform: Perform) -> Result<()> {
        let process = i32::try_from(requester).ok().and_then(Pid::from_raw).ok_or(Errno(libc::ESRCH))?;
        let process = pidfd_open(process, PidfdFlags::empty()).map_err(errno)?;
        let mut words = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?.split(' ');
        let task = match (words.next(), words.next(), words.next()) {
            (Some("copy"), Some(fd), None) => {
                let file = taken_from(&process, fd.parse().map_err(|_| Errno::EINVAL)?)?;
                Task::Copy(file)
            }
            (Some("trim"), None, None) => Task::Trim,
            _ => return Err(Errno::EINVAL),
        };
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| !current.thread.is_finished() || !current.order.is_abandoned()) {
            return Err(Errno(libc::EBUSY));
        }
        let order = Arc::new(Order {
            requester: process,
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            result: Mutex::new(None),
        });
        let (performed, has_ended) = (Arc::clone(&order), Arc::clone(&self.has_ended));
        let run = move || {
            let result = perform(&task, &mut |done, total| performed.watch(done, total, &has_ended));
            *performed.lock_result() = Some(result.map_err(errno_of));
        };
        let thread = std::thread::Builder::new().name("directfs-order".to_owned()).spawn(run);
        *current = Some(Current { order, thread: thread.map_err(|_| Errno(libc::EAGAIN))? });
        Ok(())
    }

    /// Ends what is being performed, after the mount has ended.
    pub(crate) fn finish(&self) {
        self.has_ended.store(true, Release);
        let current = self.lock().take();
        if let Some(current) = current {
            // A panic there has been reported; nothing depends on it.
            let _ = current.thread.join();
        }
    }
}

/// An open file of another process: a regular one that can be read and written.
fn taken_from(process: &OwnedFd, fd: i32) -> Result<File> {
    let taken = pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).map_err(errno)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&taken).map_err(errno)?.st_mode);
    let mode = rustix::fs::fcntl_getfl(&taken).map_err(errno)? & OFlags::ACCMODE;
    if kind != FileType::RegularFile || mode != OFlags::RDWR {
        return Err(Errno::EINVAL);
    }
    Ok(File::from(taken))
}

fn errno(errno: rustix::io::Errno) -> Errno {
    Errno(errno.raw_os_error())
}

fn errno_of(error: ImageError) -> Errno {
    match error {
        ImageError::Stopped { .. } => Errno(libc::EINTR),
        ImageError::Overtaken { .. } => Errno(libc::EAGAIN),
        ImageError::CopyStopped { .. } => Errno::EBUSY,
        ImageError::LostContent { .. } => Errno(libc::EHWPOISON),
        ImageError::NoHoles { .. } | ImageError::TrimInPlace { .. } | ImageError::NoCommits { .. } => {
            Errno(libc::EOPNOTSUPP)
        }
        ImageError::Engine { source, .. } => source.into(),
        ImageError::File { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_programs_overtook_can_be_ordered_again() {
        assert_eq!(errno_of(ImageError::Overtaken { path: "image".into() }), Errno(libc::EAGAIN));
    }
}
