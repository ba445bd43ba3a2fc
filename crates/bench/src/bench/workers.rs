//! Workers (threads or processes) that run the phases of a workload in lockstep: all begin a phase
//! together, and none continues before all have ended it.
//!
//! The barrier is in memory shared between processes, so both kinds run the same code. It waits by
//! yielding, because members may outnumber processors. A failure or death of one member breaks the
//! barrier, and all end.

use super::measure::{Latencies, Stopwatch, now_ns};
use super::task::{Outcome, PhaseName, WorkerKind, Workers};
use crate::interrupt;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One member. Its number determines its part of the work.
pub struct Member<'b> {
    /// Its number, from zero.
    pub index: u32,
    /// The number of members.
    pub of: u32,
    timer_ns: u64,
    barrier: &'b Barrier,
    probe: Option<&'b dyn Probe>,
    phases: Vec<Phase>,
}

/// Observes the phases of a single member, to count events in them.
pub trait Probe {
    /// Begins a phase.
    fn begin(&self);
    /// Ends the phase.
    fn end(&self, what: &PhaseName, calls: u64);
}

/// A phase as measured by one member.
#[derive(Serialize, Deserialize)]
struct Phase {
    what: PhaseName,
    calls: u64,
    batch: u64,
    started_ns: u64,
    /// Without the time for reading the clock.
    ended_ns: u64,
    latencies: Latencies,
    user_ns: Option<f64>,
    system_ns: Option<f64>,
    requests: Option<f64>,
    refused: Option<String>,
}

/// The work done in a phase.
#[derive(Debug, Clone, Default)]
pub struct PhaseResult {
    /// Calls.
    pub calls: u64,
    /// Calls in each sample; zero means one.
    pub batch: u64,
    /// For programs: processor time outside the kernel.
    pub user_ns: Option<f64>,
    /// For programs: processor time in the kernel.
    pub system_ns: Option<f64>,
    /// The reason why the file system does not have this call.
    pub refused: Option<String>,
}

impl PhaseResult {
    /// This number of calls.
    pub fn calls(calls: u64) -> PhaseResult {
        PhaseResult { calls, ..PhaseResult::default() }
    }
}

impl Member<'_> {
    /// Runs a phase together with the other members.
    pub fn phase(&mut self, what: PhaseName, run: impl FnOnce(&mut Stopwatch) -> Result<PhaseResult>) -> Result<()> {
        let mut watch = Stopwatch::new(self.timer_ns);
        self.meet()?;
        if let Some(probe) = self.probe {
            probe.begin();
        }
        let started_ns = now_ns();
        let done = run(&mut watch).with_context(|| format!("while measuring {}", what.label()))?;
        let ended_ns = now_ns().saturating_sub(watch.overhead_ns()).max(started_ns + 1);
        if let Some(probe) = self.probe {
            probe.end(&what, done.calls);
        }
        self.meet()?;
        let PhaseResult { calls, batch, user_ns, system_ns, refused } = done;
        let latencies = watch.finish();
        let (batch, requests) = (batch.max(1), None);
        self.phases.push(Phase {
            what,
            calls,
            batch,
            started_ns,
            ended_ns,
            latencies,
            user_ns,
            system_ns,
            requests,
            refused,
        });
        Ok(())
    }

    /// Adds the requests per file of the last phase.
    pub fn add_requests(&mut self, requests: Option<f64>) {
        if let Some(phase) = self.phases.last_mut() {
            phase.requests = requests;
        }
    }

    /// Waits for all other members.
    pub fn meet(&self) -> Result<()> {
        self.barrier.wait(self.of)
    }

    /// This member's range of `of` items.
    pub fn share(&self, of: u64) -> std::ops::Range<u64> {
        share(of, self.index, self.of)
    }

    /// The range of the next member, cyclically.
    pub fn neighbours_share(&self, of: u64) -> std::ops::Range<u64> {
        share(of, (self.index + 1) % self.of, self.of)
    }
}

fn share(total: u64, index: u32, of: u32) -> std::ops::Range<u64> {
    let at = |index: u32| total * index as u64 / of as u64;
    at(index)..at(index + 1)
}

/// Runs `work` in this thread, as the only member.
pub fn open_exclusive(
    timer_ns: u64,
    probe: Option<&dyn Probe>,
    work: impl FnOnce(&mut Member) -> Result<()>,
) -> Result<Vec<Outcome>> {
    let barrier = Barrier::make()?;
    let mut member = Member { index: 0, of: 1, timer_ns, barrier: &barrier, probe, phases: Vec::new() };
    work(&mut member)?;
    merge(vec![member.phases])
}

/// Runs `work` in every member; returns the outcome of each phase.
pub fn run(
    workers: Workers,
    timer_ns: u64,
    work: &(impl Fn(&mut Member) -> Result<()> + Sync),
) -> Result<Vec<Outcome>> {
    let barrier = Barrier::make()?;
    let member = |index: u32| -> Result<Vec<Phase>> {
        let mut member =
            Member { index, of: workers.members, timer_ns, barrier: &barrier, probe: None, phases: Vec::new() };
        let result = work(&mut member);
        if result.is_err() {
            barrier.break_it();
        }
        result.map(|()| member.phases)
    };
    let phases = match (workers.members, workers.kind) {
        // Runs in this thread: a process with a second thread is slower in the kernel and in
        // DirectFS.
        (1, WorkerKind::Threads) => vec![member(0)],
        (members, WorkerKind::Threads) => run_threads(members, &member),
        (members, WorkerKind::Processes) => run_processes(members, &barrier, &member)?,
    };
    merge(first_cause(phases)?)
}

fn run_threads(members: u32, member: &(impl Fn(u32) -> Result<Vec<Phase>> + Sync)) -> Vec<Result<Vec<Phase>>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..members).map(|index| scope.spawn(move || member(index))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<_>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// A process that runs a member, and the pipe for its result.
struct Process {
    pid: libc::pid_t,
    result: File,
    received: Vec<u8>,
    open: bool,
}

fn run_processes(
    members: u32,
    barrier: &Barrier,
    member: &impl Fn(u32) -> Result<Vec<Phase>>,
) -> Result<Vec<Result<Vec<Phase>>>> {
    let mut processes = Vec::new();
    for index in 0..members {
        match fork(index, member) {
            Ok(process) => processes.push(process),
            Err(error) => {
                barrier.break_it();
                processes.iter_mut().for_each(Process::wait);
                return Err(error);
            }
        }
    }
    while processes.iter().any(|process| process.open) {
        if interrupt::check().is_err() {
            barrier.break_it();
        }
        for process in ready(&mut processes)? {
            process.receive()?;
            // A member that died silently leaves the others waiting.
            if !process.open && process.received.is_empty() {
                barrier.break_it();
            }
        }
    }
    processes.iter_mut().for_each(Process::wait);
    Ok(processes.iter().map(Process::outcome).collect())
}

/// Starts a member as a separate process. This process has one thread, so the child may call any
/// function.
fn fork(index: u32, member: &impl Fn(u32) -> Result<Vec<Phase>>) -> Result<Process> {
    let (result, mut teller) = std::io::pipe().context("cannot make a pipe")?;
    let parent = std::process::id();
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error())
            .context("cannot start another process; use fewer (--threads) or stop other programs"),
        0 => {
            drop(result);
            // SAFETY: requests the child's death with its parent, and checks whether the parent has
            // already died.
            let orphaned = unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::getppid() as u32 != parent
            };
            let said: Result<Vec<Phase>, String> = match orphaned {
                true => Err("the benchmark has ended".into()),
                false => member(index).map_err(|error| format!("{error:#}")),
            };
            let written = serde_json::to_vec(&said).is_ok_and(|text| teller.write_all(&text).is_ok());
            // SAFETY: exits this process without running the exit handlers of the parent.
            unsafe { libc::_exit(i32::from(!written)) }
        }
        pid => {
            drop(teller);
            let result = File::from(OwnedFd::from(result));
            Ok(Process { pid, result, received: Vec::new(), open: true })
        }
    }
}

/// The processes with output, or that have ended; none after a signal or a timeout.
fn ready(processes: &mut [Process]) -> Result<Vec<&mut Process>> {
    const LOOK_MS: libc::c_int = 100;
    let open: Vec<&mut Process> = processes.iter_mut().filter(|process| process.open).collect();
    let mut polled: Vec<libc::pollfd> = open
        .iter()
        .map(|process| libc::pollfd { fd: process.result.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: an array with its length.
    let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, LOOK_MS) };
    let interrupted = count < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
    ensure!(count >= 0 || interrupted, "cannot wait for processes: {}", std::io::Error::last_os_error());
    Ok(open.into_iter().zip(polled).filter(|(_, polled)| count > 0 && polled.revents != 0).map(|pair| pair.0).collect())
}

impl Process {
    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 65536];
        let length = self.result.read(&mut buffer).context("cannot read a process's measurements")?;
        self.received.extend_from_slice(&buffer[..length]);
        self.open = length > 0;
        Ok(())
    }

    fn wait(&mut self) {
        let mut status = 0;
        // SAFETY: a child of this process that has not been waited for.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
    }

    fn outcome(&self) -> Result<Vec<Phase>> {
        ensure!(!self.received.is_empty(), "a process of the benchmark was killed");
        let said: Result<Vec<Phase>, String> = serde_json::from_slice(&self.received)
            .context("a process of the benchmark was killed while it reported")?;
        said.map_err(|said| anyhow!(said))
    }
}

/// The results of all members, or the first failure itself rather than those that it caused.
fn first_cause(results: Vec<Result<Vec<Phase>>>) -> Result<Vec<Vec<Phase>>> {
    let (good, bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let mut errors: Vec<anyhow::Error> = bad.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| format!("{error:#}").contains(BROKEN));
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(good.into_iter().flatten().collect()),
    }
}

/// Merges the members' phases.
fn merge(members: Vec<Vec<Phase>>) -> Result<Vec<Outcome>> {
    let count = members.len() as u32;
    let phases = members.first().map_or(0, Vec::len);
    ensure!(members.iter().all(|member| member.len() == phases), "the workers ran different phases");
    let mut members: Vec<_> = members.into_iter().map(Vec::into_iter).collect();
    let mut outcomes = Vec::new();
    for _ in 0..phases {
        let parts: Vec<Phase> = members.iter_mut().filter_map(Iterator::next).collect();
        let Some(first) = parts.first() else { bail!("no workers") };
        let mut latencies = Latencies::default();
        parts.iter().for_each(|part| latencies.merge(&part.latencies));
        let started = parts.iter().map(|part| part.started_ns).min().unwrap_or(0);
        let ended = parts.iter().map(|part| part.ended_ns).max().unwrap_or(0);
        outcomes.push(Outcome {
            what: first.what.clone(),
            calls: parts.iter().map(|part| part.calls).sum(),
            elapsed_ns: (ended - started) as f64,
            members: count,
            latencies,
            batch: first.batch,
            user_ns: first.user_ns,
            system_ns: first.system_ns,
            requests: first.requests,
            refused: parts.iter().find_map(|part| part.refused.clone()),
        });
    }
    Ok(outcomes)
}

const BROKEN: &str = "another worker has failed";

/// A barrier in memory that is shared with child processes.
struct Barrier {
    shared: *mut BarrierWords,
}

#[repr(C)]
struct BarrierWords {
    arrived: AtomicU32,
    generation: AtomicU32,
    broken: AtomicBool,
}

// SAFETY: the pointer leads to atomics that stay mapped until the value is dropped.
unsafe impl Sync for Barrier {}

impl Barrier {
    fn make() -> Result<Barrier> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of zeros, which are the atomics' initial values.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<BarrierWords>(), protection, flags, -1, 0) };
        ensure!(address != libc::MAP_FAILED, "cannot map memory: {}", std::io::Error::last_os_error());
        Ok(Barrier { shared: address.cast() })
    }

    fn words(&self) -> &BarrierWords {
        // SAFETY: mapped as long as this value lives, and only used as atomics.
        unsafe { &*self.shared }
    }

    fn break_it(&self) {
        self.words().broken.store(true, Ordering::Release);
    }

    fn wait(&self, members: u32) -> Result<()> {
        let words = self.words();
        let generation = words.generation.load(Ordering::Acquire);
        if words.arrived.fetch_add(1, Ordering::AcqRel) + 1 == members {
            words.arrived.store(0, Ordering::Relaxed);
            words.generation.store(generation.wrapping_add(1), Ordering::Release);
            return interrupt::check();
        }
        while words.generation.load(Ordering::Acquire) == generation {
            ensure!(!words.broken.load(Ordering::Acquire), BROKEN);
            interrupt::check()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        // SAFETY: mapped by `make` with this length; no reference is left.
        unsafe { libc::munmap(self.shared.cast(), size_of::<BarrierWords>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew(members: u32) -> Workers {
        Workers::threads(members)
    }

    #[test]
    fn every_member_does_its_share_and_phases_are_added_up() {
        let outcomes = run(crew(3), 0, &|member: &mut Member| {
            let share = member.share(100);
            member.phase(PhaseName::Each("one".into()), |watch| {
                share.clone().for_each(|_| watch.call(|| ()));
                Ok(PhaseResult::calls(share.end - share.start))
            })?;
            member.phase(PhaseName::Each("two".into()), |_| Ok(PhaseResult::calls(1)))
        })
        .unwrap();
        let said: Vec<_> =
            outcomes.iter().map(|outcome| (outcome.what.label(), outcome.calls, outcome.members)).collect();
        assert_eq!(said, [("one", 100, 3), ("two", 3, 3)]);
        assert!(outcomes[0].latencies.count() >= 18);
    }

    #[test]
    fn the_failure_of_one_worker_ends_all_and_is_reported() {
        let error = run(crew(3), 0, &|member: &mut Member| {
            let index = member.index;
            member.phase(PhaseName::Each("failing".into()), |_| {
                ensure!(index != 1, "the cause");
                Ok(PhaseResult::calls(1))
            })?;
            member.phase(PhaseName::Each("never".into()), |_| Ok(PhaseResult::calls(1)))
        })
        .unwrap_err();
        assert!(format!("{error:#}").contains("the cause"), "{error:#}");
    }

    #[test]
    fn a_neighbours_share_is_that_of_the_next_worker() {
        assert_eq!(share(10, 0, 3), 0..3);
        assert_eq!(share(10, 2, 3), 6..10);
    }
}
