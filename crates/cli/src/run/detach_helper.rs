//! Closes the image, now or after the last background process of the program has ended.

use anyhow::{Context, Result};
use image::{HandoffId, Image, ImageError};
use std::os::fd::RawFd;
use std::time::Duration;

/// Descriptors that this process inherited, except the standard ones. Other processes may wait
/// until they are closed.
pub fn open_descriptors() -> Vec<RawFd> {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The list contains its own directory descriptor, which is closed by now. SAFETY: asks only.
    let is_open = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    numbers.into_iter().filter(|&fd| fd > libc::STDERR_FILENO && is_open(fd)).collect()
}

/// What becomes of an image once no program uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is left clean.
    Close,
    /// It is in memory, and deleted.
    Discard,
    /// All its changes are committed as one.
    Commit,
}

impl End {
    fn apply(self, image: Image) -> Result<(), ImageError> {
        match self {
            End::Close => image.close().map(drop),
            End::Commit => image.close_atomic().map(drop),
            End::Discard => {
                image.discard();
                Ok(())
            }
        }
    }
}

/// Ends the use of the image if no program uses it any more; otherwise a helper process does so
/// later.
pub fn leave(mut image: Image, end: End, handoff_id: HandoffId, foreign: &[RawFd]) -> Result<()> {
    let is_handed_back = is_handed_back_soon(&image, handoff_id)?;
    let end = match end {
        End::Commit if !is_handed_back => {
            image.commit_atomic().context("the image is unchanged, and all changes of the run are discarded")?;
            eprintln!("directfs: programs of the run still work; what they change from now on is discarded");
            End::Discard
        }
        end => end,
    };
    if is_handed_back {
        return end.apply(image).context("cannot close the image cleanly; the next process that opens it recovers it");
    }
    // If this is the first process of a container, the programs and the memory end with it.
    let is_written = end == End::Close && !image.fs().is_read_only();
    let synced = if is_written { image.sync() } else { Ok(()) };
    let paused = image.pause_services();
    // SAFETY: this process has one thread now, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context(
            "cannot start a process that closes the image later; the next process that opens the image recovers it",
        ),
        0 => {
            image.resume_services(paused);
            run_helper(image, end, handoff_id, foreign)
        }
        _ => {
            // The child owns it.
            std::mem::forget(image);
            synced.context("programs in the background still use the image, and its newest state is not on the disk")
        }
    }
}

/// Whether no program has the image, now or within about 40 ms: what a program started often ends
/// shortly after it.
fn is_handed_back_soon(image: &Image, handoff_id: HandoffId) -> Result<bool> {
    const RETRY_DELAYS_MS: [u64; 5] = [1, 2, 5, 10, 20];
    for moment_ms in RETRY_DELAYS_MS {
        if image.is_handoff_over(handoff_id)? {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(moment_ms));
    }
    Ok(image.is_handoff_over(handoff_id)?)
}

/// The helper process.
fn run_helper(image: Image, end: End, handoff_id: HandoffId, foreign: &[RawFd]) -> ! {
    detach_from_terminal(foreign);
    let result = image.wait_for_handoff(handoff_id).and_then(|()| end.apply(image));
    // SAFETY: ends this process; exit handlers run in the parent only.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}

/// Detaches from the terminal, and from the caller's pipes and directories.
pub fn detach_from_terminal(foreign: &[RawFd]) {
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let _ = rustix::thread::set_name(c"directfs-detach");
    for &fd in foreign {
        // SAFETY: inherited descriptors that nothing in this process owns or uses.
        unsafe { libc::close(fd) };
    }
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
