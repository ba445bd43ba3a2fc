//! Threads that work for an image, and that of an image on a disk, which commits at intervals and
//! does the checkpoints.
//!
//! Each process that opens such an image by its path has one. They share the work by the age of the
//! last commit. The thread of a launcher does not commit: it starts a committer and watches it
//! (`committer`; `commits::requests` says why).

use super::CommitPolicy;
use super::committer::{CommitProcess, Committer, CommitterCommand};
use engine::{Fs, Platform, Thread};
use pmem::Memory;
use posix::commits::{Commits, ServiceKind, WANTS_CHECKPOINT, WANTS_COMMIT};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::Duration;
use tables::host::PLATFORM;

/// The longest sleep: a service that is to end, or a commit that failed, waits no longer.
const SLEEP_MS: u32 = 1000;
/// Between looks at a committer that starts.
const START_MS: u64 = 20;
/// Committers that may be lost before their starter commits itself.
const FAILURES_MAX: u32 = 100;

/// A thread that works for an image of this process, until this is dropped.
pub(super) struct Service {
    is_ending: Arc<AtomicBool>,
    process_id: u32,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a thread with this name, which works until the flag is set. `None`: there is no
    /// thread.
    pub fn start(name: &str, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Option<Service> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&ending)).ok()?;
        Some(Service { is_ending, process_id: PLATFORM.process_id(), thread: Some(thread) })
    }

    /// Ends it; `wake` ends what else than a parked thread it waits for.
    fn end(&mut self, wake: impl FnOnce()) {
        let Some(thread) = self.thread.take() else { return };
        // A child of a fork has no such thread.
        if self.process_id != PLATFORM.process_id() {
            std::mem::forget(thread);
            return;
        }
        self.is_ending.store(true, Release);
        thread.thread().unpark();
        wake();
        // A panic of it is reported by the runtime already.
        let _ = thread.join();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end(|| ());
    }
}

/// The service that commits, of this process.
pub(super) struct CommitService {
    service: Service,
    commits: Commits,
    policy: CommitPolicy,
}

impl CommitService {
    /// Starts it. Without a thread, calls do the work themselves.
    pub fn start<M: Memory + 'static>(
        fs: Arc<Fs<M>>,
        file: Arc<File>,
        commits: Commits,
        (policy, committer): (CommitPolicy, Committer),
    ) -> Option<CommitService> {
        let work = move |is_ending: &AtomicBool| match committer {
            Committer::Started(command) => watch(&fs, &commits, (policy, command, &file), is_ending),
            Committer::Threads | Committer::This => serve(&fs, &commits, (policy, committer), is_ending),
        };
        let service = Service::start("directfs-commit", work)?;
        Some(CommitService { service, commits, policy })
    }

    /// Ends it, and returns its policy.
    pub fn stop(self) -> CommitPolicy {
        self.policy
    }
}

impl Drop for CommitService {
    fn drop(&mut self) {
        self.service.end(|| self.commits.wake_service());
    }
}

/// Has a committer at work, as soon as there is something to commit: short runs need none. If it
/// ends or is stopped, another one takes its place. Without one, this thread serves.
fn watch<M: Memory>(
    fs: &Arc<Fs<M>>,
    commits: &Commits,
    (policy, command, file): (CommitPolicy, CommitterCommand, &File),
    is_ending: &AtomicBool,
) {
    block_signals();
    let (Ok(thread), Ok(number)) = (fs.enter(), fs.processes().process_number()) else { return };
    let interval_ms = interval_ms(policy);
    let mut committer: Option<CommitProcess> = None;
    let mut failures_left = FAILURES_MAX;
    while !is_ending.load(Acquire) {
        let is_lost = committer.as_mut().is_some_and(|process| !process.is_at_work());
        if is_lost {
            committer = None;
            failures_left -= 1;
        }
        if failures_left == 0 {
            drop(thread);
            return serve(fs, commits, (policy, Committer::Threads), is_ending);
        }
        if commits.has_committer(&thread) {
            leave_to_committer(&thread, commits, interval_ms);
            continue;
        }
        commits.take_service(&thread, number, ServiceKind::Starter);
        if committer.is_some() {
            // It is about to become the service. Requests are for it.
            std::thread::park_timeout(Duration::from_millis(START_MS));
            continue;
        }
        let wants = commits.wait_for_requests(SLEEP_MS);
        if is_ending.load(Acquire) || wants == 0 && !commits.has_changes() {
            continue;
        }
        match CommitProcess::start(command(policy), file) {
            Ok(Some(process)) => committer = Some(process),
            Ok(None) => failures_left -= 1,
            Err(_) => failures_left = 0,
        }
        // For the one that comes.
        commits.ask_service(wants);
    }
    commits.end_service(number);
    if let Some(process) = committer {
        process.end();
    }
}

/// Sleeps while a committer commits. It may have a longer interval than this process is to keep,
/// or be stopped, with the process that watches it.
fn leave_to_committer<M: Memory>(thread: &Thread<'_, M>, commits: &Commits, interval_ms: Option<i64>) {
    let age_ms = || (PLATFORM.now_ns() - commits.committed_ns()) / 1_000_000;
    std::thread::park_timeout(Duration::from_millis(sleep_ms(interval_ms, age_ms()).into()));
    if is_due(interval_ms, age_ms()) && commits.has_changes() {
        commits.ask_service(WANTS_COMMIT);
    }
    if commits.has_changes() {
        commits.end_stopped_committer(thread);
    }
}

fn interval_ms(policy: CommitPolicy) -> Option<i64> {
    match policy {
        CommitPolicy::Every(interval) => Some(i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1)),
        CommitPolicy::WhenSynced | CommitPolicy::Never => None,
    }
}

/// Commits at intervals and on request.
fn serve<M: Memory>(
    fs: &Fs<M>,
    commits: &Commits,
    (policy, committer): (CommitPolicy, Committer),
    is_ending: &AtomicBool,
) {
    block_signals();
    let (Ok(thread), Ok(number)) = (fs.enter(), fs.processes().process_number()) else { return };
    let interval_ms = interval_ms(policy);
    let kind = if matches!(committer, Committer::This) { ServiceKind::Committer } else { ServiceKind::Thread };
    let age_ms = || (PLATFORM.now_ns() - commits.committed_ns()) / 1_000_000;
    while !is_ending.load(Acquire) {
        // The kernel would end the process for a write. Requests are for other services. And while
        // a committer lives, only that one commits.
        let is_other = !commits.is_service(number) && commits.has_committer(&thread);
        if is_other || commits.is_file_size_limited() {
            commits.end_service(number);
            leave_to_committer(&thread, commits, interval_ms);
            continue;
        }
        commits.take_service(&thread, number, kind);
        let wants = commits.wait_for_requests(sleep_ms(interval_ms, age_ms()));
        if !commits.is_service(number) && commits.has_committer(&thread) {
            // Meant for that one.
            commits.ask_service(wants);
            continue;
        }
        if commits.is_growing() {
            // The thread that makes the image larger has ended when the lock is free.
            let _ = commits.lock(&thread);
        }
        work(&thread, commits, is_due(interval_ms, age_ms()), wants);
    }
    commits.end_service(number);
}

/// The program's handlers run in its own threads. And a write beyond a limit of file sizes is an
/// error here, instead of the end of the process.
pub(super) fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: fills a set of this function's own, and blocks its signals in this thread.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Whether a commit is due, given the age of the last one. A clock that was set back makes ages
/// negative: then one is due as well.
fn is_due(interval_ms: Option<i64>, age_ms: i64) -> bool {
    interval_ms.is_some_and(|interval_ms| !(0..interval_ms).contains(&age_ms))
}

/// Until the next commit is due. If one is due already, there was nothing to commit or it failed.
fn sleep_ms(interval_ms: Option<i64>, age_ms: i64) -> u32 {
    let left_ms = match interval_ms {
        Some(interval_ms) if is_due(Some(interval_ms), age_ms) => interval_ms,
        Some(interval_ms) => interval_ms - age_ms,
        None => i64::MAX,
    };
    u32::try_from(left_ms).unwrap_or(SLEEP_MS).clamp(1, SLEEP_MS)
}

/// Commits and checkpoints what is due. A failure is stored for `info`; the next turn tries again.
fn work<M: Memory>(thread: &Thread<'_, M>, commits: &Commits, is_due: bool, wants: u32) {
    if is_due && commits.has_changes() || wants & WANTS_COMMIT != 0 {
        let _ = commits.commit_here(thread);
    }
    if wants & WANTS_CHECKPOINT != 0 || commits.is_log_half_full() {
        let _ = commits.checkpoint(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_due_after_the_interval_and_after_the_clock_was_set_back() {
        assert!(!is_due(Some(5000), 4999) && is_due(Some(5000), 5000) && is_due(Some(5000), -1));
        assert!(!is_due(None, i64::MAX));
    }

    #[test]
    fn a_service_sleeps_until_a_commit_is_due_and_never_spins() {
        assert_eq!(sleep_ms(Some(5000), 4990), 10);
        assert_eq!(sleep_ms(Some(5000), 0), SLEEP_MS);
        // Nothing changed, or the disk is full.
        assert_eq!(sleep_ms(Some(5000), 9000), SLEEP_MS);
        assert_eq!(sleep_ms(Some(20), 9000), 20);
        assert_eq!(sleep_ms(None, 9000), SLEEP_MS);
    }
}
