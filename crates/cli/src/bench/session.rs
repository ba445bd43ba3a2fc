//! A worker as the benchmark sees it: started, asked, waited for, and ended in order, whatever happens to either of them.
//!
//! The worker and all that it starts are a process group of their own: the terminal's interrupts reach the benchmark alone, which ends the group.

use super::task::{Outcome, Reply, Request, Task};
use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often progress is shown and interrupts are looked for while a worker works.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How long a worker may take to end in order: leaving an image of many files behind clean takes its time.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long it may take to stop and clean up after an interrupt or an error, before it is killed.
const PATIENCE_STOPPED: Duration = Duration::from_secs(20);

/// A running worker.
pub struct Session {
    child: Child,
    /// None when there is nothing more to ask.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// It was waited for.
    ended: bool,
    /// What reading the clock costs in it.
    pub timer_ns: u64,
}

impl Session {
    /// Starts one.
    pub fn start(mut command: Command, tick: &mut dyn FnMut()) -> Result<Session> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let parent = std::process::id();
        // SAFETY: two plain system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // Whoever kills the benchmark means its workers.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                if libc::getppid() as u32 != parent {
                    return Err(std::io::ErrorKind::Interrupted.into());
                }
                Ok(())
            });
        }
        let mut child = command.spawn().context("cannot start the measured program")?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().context("the worker has a pipe to answer on")?);
        let mut session = Session { child, requests, replies, ended: false, timer_ns: 0 };
        match session.answer(tick)? {
            Reply::Ready { timer_ns } => session.timer_ns = timer_ns,
            other => bail!("a worker began with {other:?}"),
        }
        Ok(session)
    }

    /// Has a task done; `tick` is called while it goes on.
    pub fn perform(&mut self, task: &Task, tick: &mut dyn FnMut()) -> Result<Vec<Outcome>> {
        self.ask(&Request::Run(task.clone()))?;
        match self.answer(tick)? {
            Reply::Done(outcomes) => Ok(outcomes),
            Reply::Failed(said) => bail!(said),
            other => bail!("a worker answered {other:?}"),
        }
    }

    /// Ends it in order.
    pub fn end(mut self) -> Result<()> {
        self.ask(&Request::End)?;
        self.requests = None;
        let status = self.wait_for_end(PATIENCE, interrupt::check)?;
        ensure!(status.success(), "the measured program ended badly ({status})");
        Ok(())
    }

    fn ask(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let requests = self.requests.as_mut().context("a session that has not ended")?;
        requests.write_all(&line).or_else(|_| self.died())
    }

    fn answer(&mut self, tick: &mut dyn FnMut()) -> Result<Reply> {
        while !self.is_readable(&TICK)? {
            interrupt::check()?;
            tick();
        }
        interrupt::check()?;
        let mut line = String::new();
        self.replies.read_line(&mut line).context("cannot read what the measured program answers")?;
        if line.is_empty() {
            self.died()?;
        }
        serde_json::from_str(&line).with_context(|| format!("the measured program said {:?}", line.trim()))
    }

    /// Whether there is something to read, or the end; false after a while, or a signal.
    fn is_readable(&self, timeout: &Timespec) -> Result<bool> {
        let mut fds = [PollFd::new(self.replies.get_ref(), PollFlags::IN)];
        match poll(&mut fds, Some(timeout)) {
            Err(rustix::io::Errno::INTR) => Ok(false),
            result => Ok(result.context("cannot wait for the measured program")? > 0),
        }
    }

    /// It is gone: says how.
    fn died(&mut self) -> Result<()> {
        self.requests = None;
        let status = self.wait_for_end(PATIENCE_STOPPED, || Ok(()))?;
        match status.signal() {
            Some(signal) => bail!(
                "the measured program was killed by signal {signal}; if nobody did that, memory may have run out: measure fewer files (--sizes)"
            ),
            None => bail!("the measured program ended ({status}); its message is above"),
        }
    }

    /// Waits until all that hold the pipe have ended, for some time; then kills them.
    fn wait_for_end(&mut self, patience: Duration, check: fn() -> Result<()>) -> Result<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < patience {
            check()?;
            if self.is_readable(&TICK)? {
                let left = self.replies.fill_buf().map_or(0, <[u8]>::len);
                if left == 0 {
                    return self.reap();
                }
                // What it still says is not wanted any more.
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
    /// After an error or an interrupt: asks the group to stop, and waits until it has.
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::TERM);
            // Without it the worker would take itself to be left alone.
            let _ = self.ask(&Request::End);
            self.requests = None;
        }
        if !self.ended {
            let _ = self.wait_for_end(PATIENCE_STOPPED, || Ok(()));
        }
    }
}
