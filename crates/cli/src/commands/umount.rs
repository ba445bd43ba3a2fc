//! `directfs umount`: unmounts, then waits until the server has closed the image cleanly.

use crate::arguments::Umount;
use crate::asking::{self, Unanswered};
use crate::mounts::{self, Mount};
use crate::processes::{self, ImageUser};
use crate::terminal::Progress;
use anyhow::{Context, Result, bail, ensure};
use rustix::mount::UnmountFlags;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Maximum time to wait for a server: writing a large cache back to a disk takes time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Unmounts.
pub fn run(arguments: &Umount) -> Result<()> {
    let shown = arguments.directory.display();
    let Some(mount) = mounts::at(&arguments.directory) else {
        bail!("nothing is mounted at {shown}; `findmnt -t fuse.directfs` lists the mounts");
    };
    ensure!(
        mount.kind.starts_with("fuse"),
        "the file system at {shown} is {}, not DirectFS; unmount it with umount(8)",
        mount.kind
    );
    // Before the unmount: afterwards the servers cannot be identified.
    let servers = servers(&mount);
    unmount(&mount.point, arguments.lazy)?;
    if arguments.lazy {
        return Ok(());
    }
    wait(servers, &mount)
}

fn servers(mount: &Mount) -> Vec<ImageUser> {
    // The source is a text that the maker of the mount chose.
    let Ok(image) = asking::identity(&mount.source) else { return Vec::new() };
    processes::users_of(image).into_iter().filter(|user| user.serves_mount).collect()
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

/// Waits until the server has exited, which closes the image cleanly. Nothing tells which of
/// several servers it was, so as many may remain as the image has other mounts.
fn wait(mut servers: Vec<ImageUser>, mount: &Mount) -> Result<()> {
    let mut progress = Progress::start(&format!("waiting until {} is closed cleanly", mount.source.display()), 0);
    let end = Instant::now() + TIMEOUT;
    let left =
        mounts::all().into_iter().filter(|other| other.kind == mount.kind && other.source == mount.source).count();
    loop {
        let step = Duration::from_millis(100) / servers.len().max(1) as u32;
        servers.retain(|server| !processes::wait_for_end(server.pid, step));
        let Some(server) = servers.first().filter(|_| servers.len() > left) else { return Ok(()) };
        progress.at(0);
        ensure!(
            Instant::now() < end,
            "{} is unmounted, but its server (process {}) is still closing the image; wait until it exits before you use {}",
            mount.point.display(),
            server.pid,
            mount.source.display()
        );
    }
}
