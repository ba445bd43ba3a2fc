//! The service of an image on a disk: a thread that commits at intervals, and does the checkpoints.
//!
//! Each process that opens such an image by its path has one. They share the work by the age of the
//! last commit.

use super::CommitPolicy;
use crate::commits::{Commits, WANTS_CHECKPOINT, WANTS_COMMIT};
use crate::host::PLATFORM;
use engine::{Fs, Platform, Thread};
use pmem::Memory;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest sleep: a service that is to end, or a commit that failed, waits no longer.
const SLEEP_MS: u32 = 1000;

/// The running service of this process.
pub(super) struct CommitService {
    is_ending: Arc<AtomicBool>,
    commits: Commits,
    policy: CommitPolicy,
    process_id: u32,
    thread: Option<JoinHandle<()>>,
}

impl CommitService {
    /// Starts it. Without a thread, calls do the work themselves.
    pub fn start<M: Memory + 'static>(fs: Arc<Fs<M>>, commits: Commits, policy: CommitPolicy) -> Option<CommitService> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let run = move || serve(&fs, &commits, policy, &ending);
        let thread = std::thread::Builder::new().name("directfs-commit".to_owned()).spawn(run).ok()?;
        Some(CommitService { is_ending, commits, policy, process_id: PLATFORM.process_id(), thread: Some(thread) })
    }

    /// Ends it, and returns its policy.
    pub fn stop(self) -> CommitPolicy {
        self.policy
    }
}

impl Drop for CommitService {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A child of a fork has no such thread.
        if self.process_id != PLATFORM.process_id() {
            std::mem::forget(thread);
            return;
        }
        self.is_ending.store(true, Release);
        thread.thread().unpark();
        self.commits.wake_service();
        // A panic of it is reported by the runtime already.
        let _ = thread.join();
    }
}

fn serve<M: Memory>(fs: &Fs<M>, commits: &Commits, policy: CommitPolicy, is_ending: &AtomicBool) {
    block_signals();
    let (Ok(thread), Ok(number)) = (fs.enter(), fs.process_number()) else { return };
    let interval_ms = match policy {
        CommitPolicy::Every(interval) => u32::try_from(interval.as_millis()).unwrap_or(u32::MAX).max(1),
        CommitPolicy::WhenSynced | CommitPolicy::Never => u32::MAX,
    };
    while !is_ending.load(Acquire) {
        // The kernel would end the process for a write. Requests are for other services.
        if commits.is_file_size_limited() {
            commits.end_service(number);
            std::thread::park_timeout(Duration::from_millis(SLEEP_MS.into()));
            continue;
        }
        commits.take_service(&thread, number);
        let wants = commits.wait_for_requests(interval_ms.min(SLEEP_MS));
        work(&thread, commits, interval_ms, wants);
    }
    commits.end_service(number);
}

/// The program's handlers run in its own threads. And a write beyond a limit of file sizes is an
/// error here, instead of the end of the process.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: fills a set of this function's own, and blocks its signals in this thread.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Commits and checkpoints what is due. A failure is stored for `info`; the next turn tries again.
fn work<M: Memory>(thread: &Thread<'_, M>, commits: &Commits, interval_ms: u32, wants: u32) {
    let age_ms = (PLATFORM.now_ns() - commits.committed_ns()) / 1_000_000;
    let is_due = age_ms >= i64::from(interval_ms) && interval_ms != u32::MAX && commits.has_changes();
    if is_due || wants & WANTS_COMMIT != 0 {
        let _ = commits.commit_here(thread);
        commits.wake_service();
    }
    if wants & WANTS_CHECKPOINT != 0 || commits.is_log_half_full() {
        let _ = commits.checkpoint(thread);
    }
}
