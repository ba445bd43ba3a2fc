//! Opens and truncations on a mount that shares its image break the leases that runs hold.
//!
//! The kernel keeps those leases on lease files (`tables::process`). A request that finds one
//! broken but not yet given up is answered later, by a thread of its own, which attempts again
//! until the holder has given it up or the kernel has taken it away.
//!
//! Invariants
//! - A request that waits occupies no worker. It is in `waiting` until its thread answers it; an
//!   interrupt, and the end of the mount, make the thread look again.
//! - What a request does after the wait, its `Rest` does: also the reverse of what it did before,
//!   if the wait ends with an error.

use crate::files::Files;
use crate::protocol::Reply;
use crate::session::{Channel, Handled};
use posix::{Errno, Result};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tables::process::try_break_leases;

/// Waiting requests at once. Each has a thread.
const WAITING_MAX: usize = 1024;
/// Interrupts that are remembered because they may have overtaken their request.
const INTERRUPTS_KEPT: usize = 256;
/// Stack of a waiting thread, which may commit.
const STACK_BYTES: usize = 512 << 10;
/// Times between two attempts. The kernel does not report when a lease ends.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LAST: Duration = Duration::from_millis(16);

/// An open or truncation of a file, as leases on it see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// The file's inode number.
    pub node: u64,
    /// Access mode, and O_NONBLOCK.
    pub flags: i32,
}

/// The rest of a request, with the result of the wait: it completes the reply.
pub(crate) type Rest = Box<dyn FnOnce(&Files, Result<()>, &mut Reply) -> Result<()> + Send>;

/// The requests of a mount that wait for leases.
#[derive(Default)]
pub(crate) struct Leases {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// The waiting requests, by the kernel's numbers.
    requests: HashSet<u64>,
    /// Interrupts of requests that wait, or may begin to.
    interrupted: VecDeque<u64>,
    has_ended: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Waiting {
    fn is_over(&self, unique: u64) -> bool {
        self.has_ended || self.interrupted.contains(&unique)
    }
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere leaves the state consistent: no operation on it stops halfway.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Breaks leases on a file, and then does the rest of the request: at once, or later in a
    /// thread that answers it, and that commits it before if `changed` is an inode number.
    pub(crate) fn complete(
        &self,
        files: &Arc<Files>,
        access: Access,
        (rest, changed): (Rest, Option<u64>),
        reply: &mut Reply,
        (channel, unique): (&Channel, u64),
    ) -> Result<Handled> {
        let first = attempt(files, access);
        let waits = first == Err(Errno::EAGAIN) && access.flags & libc::O_NONBLOCK == 0;
        if !waits {
            return rest(files, first, reply).map(|()| Handled::Reply);
        }
        let mut waiting = self.lock();
        if waiting.is_over(unique) || waiting.requests.len() >= WAITING_MAX {
            let error = if waiting.is_over(unique) { Errno(libc::EINTR) } else { Errno(libc::ENOLCK) };
            drop(waiting);
            return rest(files, Err(error), reply).map(|()| Handled::Reply);
        }
        let mut begun = std::mem::replace(reply, Reply::new());
        let run = {
            let (files, channel) = (Arc::clone(files), channel.clone());
            move || {
                let result = files.leases().wait(&files, access, unique);
                let result = rest(&files, result, &mut begun);
                if let Some(changed) = changed.filter(|_| result.is_ok()) {
                    files.commit_change(changed);
                }
                channel.answer(&mut begun, unique, result.err().map_or(0, |Errno(number)| -number));
            }
        };
        // Without a thread the closure, and so the request's reverse, is lost: the handle or the
        // kernel's reference stays until the mount ends.
        let thread = std::thread::Builder::new().name("directfs-lease".to_owned()).stack_size(STACK_BYTES).spawn(run);
        let thread = thread.map_err(|_| Errno(libc::ENOLCK))?;
        waiting.requests.insert(unique);
        waiting.threads.retain(|thread| !thread.is_finished());
        waiting.threads.push(thread);
        Ok(Handled::Silent)
    }

    /// Attempts until no lease is in the way. EINTR: interrupted, or the mount has ended.
    fn wait(&self, files: &Files, access: Access, unique: u64) -> Result<()> {
        let mut pause = PAUSE_FIRST;
        let result = loop {
            match attempt(files, access) {
                Err(Errno::EAGAIN) => {}
                over => break over,
            }
            let waiting = self.lock();
            if waiting.is_over(unique) {
                break Err(Errno(libc::EINTR));
            }
            // However it ends, the next attempt decides.
            drop(self.changed.wait_timeout(waiting, pause));
            pause = (pause * 2).min(PAUSE_LAST);
        };
        let mut waiting = self.lock();
        waiting.requests.remove(&unique);
        waiting.interrupted.retain(|&other| other != unique);
        result
    }

    /// A program no longer waits for a request.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut waiting = self.lock();
        if waiting.interrupted.len() >= INTERRUPTS_KEPT {
            // First those whose request does not wait: it may have been another kind of request.
            let Waiting { requests, interrupted, .. } = &mut *waiting;
            let oldest = interrupted.iter().position(|other| !requests.contains(other)).unwrap_or(0);
            interrupted.remove(oldest);
        }
        waiting.interrupted.push_back(unique);
        drop(waiting);
        self.changed.notify_all();
    }

    /// Ends all waits, after the mount has ended.
    pub(crate) fn finish(&self) {
        let threads = {
            let mut waiting = self.lock();
            waiting.has_ended = true;
            std::mem::take(&mut waiting.threads)
        };
        self.changed.notify_all();
        // The threads do nothing that could panic.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Breaks leases without a wait; EAGAIN: one is not given up yet.
fn attempt(files: &Files, access: Access) -> Result<()> {
    let node = files.node(access.node)?;
    files.with_thread(|thread| try_break_leases(thread.fs(), node, access.flags))
}
