//! A worker: this program as a child process that receives requests and sends replies, one line of
//! JSON each, over pipes.
//!
//! The worker and its children are a process group of their own: the terminal's interrupts reach
//! only this process, which ends the group. After any failure of either side the worker ends
//! cleanly: it receives its last request, or is killed after a timeout.

use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use console::server::end_with_starter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval for showing progress and checking for interrupts while a worker runs.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Maximum time for a worker to exit cleanly: closing an image with many files takes time.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum time to stop and clean up after an interrupt or an error, before the worker is killed.
const TIMEOUT_STOPPED: Duration = Duration::from_secs(20);

/// A running worker.
pub struct Worker {
    child: Child,
    /// None after the last request.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// The worker has been waited for.
    ended: bool,
    /// The line after which the worker exits. Without it, the worker considers itself orphaned.
    last_request: Vec<u8>,
    /// What helps if the worker runs out of memory.
    remedy: &'static str,
}

impl Worker {
    /// Starts a worker.
    pub fn start(mut command: Command, last_request: &impl Serialize, remedy: &'static str) -> Result<Worker> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_starter(&mut command);
        let mut child = command.spawn().context("cannot start the measured program")?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().context("the worker's output is a pipe")?);
        Ok(Worker { child, requests, replies, ended: false, last_request: line(last_request)?, remedy })
    }

    /// Sends a request.
    pub fn send(&mut self, request: &impl Serialize) -> Result<()> {
        let line = line(request)?;
        self.send_line(&line)
    }

    fn send_line(&mut self, line: &[u8]) -> Result<()> {
        let requests = self.requests.as_mut().context("an active worker")?;
        requests.write_all(line).or_else(|_| self.died())
    }

    /// Waits for a reply; `tick` is called meanwhile.
    pub fn receive<R: DeserializeOwned>(&mut self, tick: &mut dyn FnMut()) -> Result<R> {
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

    /// Ends the worker cleanly.
    pub fn end(mut self) -> Result<()> {
        let line = std::mem::take(&mut self.last_request);
        self.send_line(&line)?;
        self.requests = None;
        let status = self.wait_for_end(TIMEOUT, interrupt::check)?;
        ensure!(status.success(), "the measured program failed ({status})");
        Ok(())
    }

    /// Kills the whole process group at once; returns the replies that were sent before.
    pub fn kill(mut self) -> Result<Vec<u8>> {
        self.signal(Signal::KILL);
        self.requests = None;
        let mut left = Vec::new();
        let read = self.replies.read_to_end(&mut left);
        self.reap()?;
        read.context("cannot read the killed program's output")?;
        Ok(left)
    }

    /// Whether there is output, or its end; false after a timeout or a signal.
    fn is_readable(&self, timeout: &Timespec) -> Result<bool> {
        if !self.replies.buffer().is_empty() {
            return Ok(true);
        }
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
                "the measured program was killed by signal {signal}; unless a user did that, memory may be exhausted: {}",
                self.remedy
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

impl Drop for Worker {
    /// After an error or an interrupt: asks the group to stop, and waits for it.
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::TERM);
            let line = std::mem::take(&mut self.last_request);
            if self.requests.is_some() {
                let _ = self.send_line(&line);
            }
            self.requests = None;
        }
        if !self.ended {
            let _ = self.wait_for_end(TIMEOUT_STOPPED, || Ok(()));
        }
    }
}

/// Sends a reply at once, from the worker's side: a buffer would be lost if the worker were killed.
pub fn reply(reply: &impl Serialize) -> Result<()> {
    let line = line(reply)?;
    let mut output = std::io::stdout().lock();
    output.write_all(&line)?;
    Ok(output.flush()?)
}

fn line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
