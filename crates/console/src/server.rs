//! The server of a mount: its start as a separate process, and the unmount that ends it.

use crate::asking::{self, Unanswered};
use crate::mounts;
use anyhow::{Context, Result, bail, ensure};
use rustix::io::FdFlags;
use rustix::mount::UnmountFlags;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The byte that the server writes when the mount answers; else it writes why there is none.
pub const READY: u8 = b'+';

/// Most bytes of a cause that are read from a server.
const CAUSE_BYTES_MAX: u64 = 4096;

/// Maximum time to wait for a server: writing a large cache back to a disk takes time.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A server to be started as a separate process.
pub struct Start {
    command: Command,
}

impl Start {
    /// For this image and mount point.
    pub fn new(image: &Path, directory: &Path) -> Start {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let mut command = Command::new("/proc/self/exe");
        command.arg0("directfs").arg("mount").arg("--foreground").stdin(Stdio::null());
        command.arg(image).arg(directory);
        Start { command }
    }

    /// With options as in `-o`.
    pub fn options(&mut self, lists: &[String]) -> &mut Start {
        for list in lists {
            self.command.arg("-o").arg(list);
        }
        self
    }

    /// Read-only or not.
    pub fn read_only(&mut self, read_only: bool) -> &mut Start {
        if read_only {
            self.command.arg("--read-only");
        }
        self
    }

    /// On an image of a store. `is_fetched`: another process fetches it while it is used.
    pub fn of_store(&mut self, url: &str, is_fetched: bool) -> &mut Start {
        self.command.arg(if is_fetched { "--fetched-from" } else { "--cached-from" }).arg(url);
        self
    }

    /// With its messages in this file.
    pub fn log(&mut self, file: Option<&Path>) -> &mut Start {
        if let Some(file) = file {
            self.command.arg("--log").arg(file);
        }
        self
    }

    /// Ends the server when this process dies, and keeps the terminal's interrupts from it.
    pub fn end_with_starter(&mut self) -> &mut Start {
        end_with_starter(&mut self.command);
        self
    }

    /// Starts the server and waits until the mount answers. Its errors go to standard error.
    pub fn in_background(mut self) -> Result<Child> {
        // A separate session: the server must not receive the terminal's signals.
        // SAFETY: setsid is a plain system call, allowed between fork and exec.
        unsafe {
            self.command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
        }
        self.start()
    }

    /// Starts the server as a child and waits until the mount answers.
    pub fn start(mut self) -> Result<Child> {
        let (mut ready, child_end) = std::io::pipe().context("cannot create a pipe")?;
        rustix::io::fcntl_setfd(&child_end, FdFlags::empty()).context("cannot pass a pipe to the server")?;
        self.command.arg("--ready-fd").arg(child_end.as_raw_fd().to_string());
        let mut server = self.command.spawn().context("cannot start the server; is /proc mounted?")?;
        drop(child_end);
        let mut first = [0];
        if matches!(ready.read(&mut first), Ok(1)) && first[0] == READY {
            return Ok(server);
        }
        // Else it has written the cause there, and ends.
        let mut cause = first.to_vec();
        let _ = ready.take(CAUSE_BYTES_MAX).read_to_end(&mut cause);
        let status = server.wait().context("cannot wait for the server")?;
        let cause = String::from_utf8_lossy(&cause).trim_matches('\0').to_owned();
        match status.code() {
            // The server has printed the cause.
            Some(code) => Err(ServerFailed { exit_code: code.clamp(1, 255) as u8, cause }.into()),
            None => bail!("the server was killed by signal {}", status.signal().unwrap_or(0)),
        }
    }
}

/// The server exited before the mount answered, after printing the cause on standard error.
#[derive(Debug)]
pub struct ServerFailed {
    exit_code: u8,
    cause: String,
}

impl ServerFailed {
    /// The server's exit code.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl std::fmt::Display for ServerFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.cause.as_str() {
            "" => f.write_str("the mount failed; see the server's message above"),
            cause => f.write_str(cause),
        }
    }
}

impl std::error::Error for ServerFailed {}

/// Makes a command a process group of its own, which gets SIGTERM when this process dies.
pub fn end_with_starter(command: &mut Command) {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: two plain system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if libc::getppid() as u32 != parent {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
}

/// Unmounts by system call or by fuse's helper.
pub fn unmount(point: &Path, lazy: bool) -> Result<()> {
    let shown = point.display();
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let limit = if lazy { asking::PATIENCE } else { TIMEOUT };
    match asking::unmount(point, flags, limit) {
        Ok(()) => Ok(()),
        // Detached, and what is written to it waits for the server.
        Err(Unanswered::Silent) if mounts::at(point).is_none() => Ok(()),
        Err(Unanswered::Silent) => bail!(
            "the server of {shown} does not answer within {} s; continue or end it, or detach the mount with --lazy",
            limit.as_secs()
        ),
        Err(Unanswered::Refused(rustix::io::Errno::PERM)) => unmount_by_helper(point, lazy),
        Err(Unanswered::Refused(rustix::io::Errno::BUSY)) => bail!(
            "{shown} is in use; stop the programs that use it (`fuser -vm {shown}` lists them), or detach it with --lazy"
        ),
        Err(Unanswered::Refused(error)) => Err(error).with_context(|| format!("cannot unmount {shown}")),
    }
}

/// Users other than root need fuse's helper.
fn unmount_by_helper(point: &Path, lazy: bool) -> Result<()> {
    // The helper may be missing in a short PATH although it was used to mount.
    let places = ["/usr/bin/fusermount3", "/bin/fusermount3"];
    let helper = places.into_iter().find(|place| Path::new(place).exists()).unwrap_or("fusermount3");
    let mut command = Command::new(helper);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg(point).output().context(
        "only root can unmount without fusermount3, and it cannot be run; install it (Debian: apt install fuse3)",
    )?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cannot unmount {}: {}; stop the programs that use it, or detach it with --lazy",
        point.display(),
        said.trim()
    );
    Ok(())
}
