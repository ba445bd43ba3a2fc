//! `directfs umount`: unmounts, then waits until the server has closed the image cleanly.

use crate::arguments::Umount;
use crate::asking;
use crate::mounts::{self, Mount};
use crate::processes::{self, ImageUser};
use crate::terminal::{Of, Progress};
use crate::units;
use anyhow::{Result, bail, ensure};
use console::server::{TIMEOUT, unmount};
use serde_json::json;
use std::time::{Duration, Instant};

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
    if !arguments.lazy {
        wait(servers, &mount)?;
    }
    if arguments.json {
        let value = json!({ "directory": units::path_text(&mount.point), "image": units::path_text(&mount.source) });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    Ok(())
}

fn servers(mount: &Mount) -> Vec<ImageUser> {
    // The source is a text that the maker of the mount chose.
    let Ok(image) = asking::identity(&mount.source) else { return Vec::new() };
    processes::users_of(image).into_iter().filter(|user| user.serves_mount).collect()
}

/// Waits until the server has exited, which closes the image cleanly. Nothing shows which of
/// several servers it was, so as many may remain as the image has other mounts.
fn wait(mut servers: Vec<ImageUser>, mount: &Mount) -> Result<()> {
    let mut progress =
        Progress::start(&format!("waiting until {} is closed cleanly", mount.source.display()), Of::Steps(0));
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
