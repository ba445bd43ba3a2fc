//! `mount -o replicate=URL`: a process that replicates the image while it is mounted.
//!
//! It ends after the image is closed, so its last push has all changes. If the server is killed, it
//! pushes once more and ends, too.

use anyhow::{Context, Result, bail, ensure};
use console::server::end_with_starter;
use fuse::MountOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Rejects options that cannot be together.
pub fn check(options: &MountOptions) -> Result<()> {
    let Some(url) = &options.replicate else { return Ok(()) };
    ensure!(!options.read_only, "a mount that is read-only has nothing to replicate: leave out replicate={url}");
    if options.keep {
        bail!("replicate and keep cannot be together: use `directfs replicate`, or its service, beside the mount");
    }
    // A mistake in the URL is reported before the image is opened.
    super::stores::connect(url, "replicating", || false).map(drop)
}

/// The process.
pub struct MountReplica {
    child: Child,
    url: String,
    is_ending: Arc<AtomicBool>,
}

impl MountReplica {
    /// Starts it, in a process whose signals are blocked.
    pub fn start(image: &Path, url: &str) -> Result<MountReplica> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("directfs").arg("replicate").arg(image).arg(url);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        end_with_starter(&mut command);
        // SAFETY: two plain calls between fork and exec, on a set of this function.
        unsafe {
            command.pre_exec(|| {
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                Ok(())
            });
        }
        let mut child = command.spawn().context("cannot start a process that replicates the image")?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let (messages, ending, shown) = (child.stderr.take(), Arc::clone(&is_ending), url.to_owned());
        let report = move || {
            let lines = messages.map(|messages| BufReader::new(messages).lines());
            lines
                .into_iter()
                .flatten()
                .map_while(Result::ok)
                .for_each(|line| fuse::report_error(format_args!("{line}")));
            if !ending.load(SeqCst) {
                fuse::report_error(format_args!(
                    "{shown}: replication has ended, and further changes are not in the store: start `directfs replicate`, or mount again"
                ));
            }
        };
        std::thread::Builder::new().name("directfs-replica".to_owned()).spawn(report)?;
        Ok(MountReplica { child, url: url.to_owned(), is_ending })
    }

    /// Waits for the last push.
    pub fn finish(mut self) {
        self.is_ending.store(true, SeqCst);
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        if !self.child.wait().is_ok_and(|status| status.success()) {
            fuse::report_error(format_args!("{}: the last changes are not in the store: push the image", self.url));
        }
    }
}
