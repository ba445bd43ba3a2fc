//! The benchmark's side of a worker: starting it, sending requests, receiving replies, and ending
//! it cleanly after any failure of either side.
//!
//! The worker and its children are a process group of their own: the terminal's interrupts reach
//! only the benchmark, which ends the group.

use super::task::{Outcome, Reply, Request, Task};
use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval for showing progress and checking for interrupts while a worker runs.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Maximum time for a worker to exit cleanly: closing an image with many files takes time.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum time to stop and clean up after an interrupt or an error, before the worker is killed.
const TIMEOUT_STOPPED: Duration = Duration::from_secs(20);

/// A running worker.
pub struct Session {
    child: Child,
    /// None after the last request.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// The worker has been waited for.
    ended: bool,
    /// The cost of reading the clock in the worker.
    pub timer_ns: u64,
}

impl Session {
    /// Starts a worker.
    pub fn start(mut command: Command, tick: &mut dyn FnMut()) -> Result<Session> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let parent = std::process::id();
        // SAFETY: two plain system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // The workers must not outlive a killed benchmark.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                if libc::getppid() as u32 != parent {
                    return Err(std::io::ErrorKind::Interrupted.into());
                }
                Ok(())
            });
        }
        let mut child = command.spawn().context("cannot start the measured program")?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().context("the worker's output is a pipe")?);
        let mut session = Session { child, requests, replies, ended: false, timer_ns: 0 };
        match session.answer(tick)? {
            Reply::Ready { timer_ns } => session.timer_ns = timer_ns,
            other => bail!("a worker's first reply was {other:?}"),
        }
        Ok(session)
    }

    /// Runs a task in the worker; `tick` is called meanwhile.
    pub fn perform(&mut self, task: &Task, tick: &mut dyn FnMut()) -> Result<Vec<Outcome>> {
        self.ask(&Request::Run(task.clone()))?;
        match self.answer(tick)? {
            Reply::Done(outcomes) => Ok(outcomes),
            Reply::Failed(said) => bail!(said),
            other => bail!("a worker replied {other:?}"),
        }
    }

    /// Ends the worker cleanly.
    pub fn end(mut self) -> Result<()> {
        self.ask(&Request::End)?;
        self.requests = None;
        let status = self.wait_for_end(TIMEOUT, interrupt::check)?;
        ensure!(status.success(), "the measured program failed ({status})");
        Ok(())
    }

    fn ask(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let requests = self.requests.as_mut().context("an active session")?;
        requests.write_all(&line).or_else(|_| self.died())
    }

    fn answer(&mut self, tick: &mut dyn FnMut()) -> Result<Reply> {
        while !self.is_readable(&TICK)? {
            interrupt::check()?;
            tick();
        }
        interrupt::check()?;
        let mut line = String::new();
        self.replies.read_line(&mut line).context("cannot read the measured program's replies")?;
        if line.is_empty() {
            self.died()?;
        }
        serde_json::from_str(&line).with_context(|| format!("the measured program replied {:?}", line.trim()))
    }

    /// Whether there is output, or its end; false after a timeout or a signal.
    fn is_readable(&self, timeout: &Timespec) -> Result<bool> {
        let mut fds = [PollFd::new(self.replies.get_ref(), PollFlags::IN)];
        match poll(&mut fds, Some(timeout)) {
            Err(rustix::io::Errno::INTR) => Ok(false),
            result => Ok(result.context("cannot wait for the measured program")? > 0),
        }
    }

    /// Reports how the worker ended.
    fn died(&mut self) -> Result<()> {
        self.requests = None;
        let status = self.wait_for_end(TIMEOUT_STOPPED, || Ok(()))?;
        match status.signal() {
            Some(signal) => bail!(
                "the measured program was killed by signal {signal}; unless a user did that, memory may be exhausted: measure fewer files (--sizes)"
            ),
            None => bail!("the measured program exited ({status}); see its message above"),
        }
    }

    /// Waits until every process that holds the pipe has exited; kills them after a timeout.
    fn wait_for_end(&mut self, timeout: Duration, check: fn() -> Result<()>) -> Result<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < timeout {
            check()?;
            if self.is_readable(&TICK)? {
                let left = self.replies.fill_buf().map_or(0, <[u8]>::len);
                if left == 0 {
                    return self.reap();
                }
                // Its remaining output is discarded.
                self.replies.consume(left);
            }
        }
        self.signal(Signal::KILL);
        self.reap()
    }

    fn reap(&mut self) -> Result<ExitStatus> {
        self.ended = true;
        self.child.wait().context("cannot wait for the measured program")
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Session {
    /// After an error or an interrupt: asks the group to stop, and waits for it.
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::TERM);
            // Without this request the worker would consider itself orphaned.
            let _ = self.ask(&Request::End);
            self.requests = None;
        }
        if !self.ended {
            let _ = self.wait_for_end(TIMEOUT_STOPPED, || Ok(()));
        }
    }
}
