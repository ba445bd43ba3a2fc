//! `directfs umount`: unmounts, then waits until the server has closed the image cleanly.

use crate::arguments::Umount;
use crate::asking;
use crate::mounts::{self, Mount};
use crate::processes::{self, ImageUser, is_stopped, silence};
use crate::terminal::{Of, Progress};
use crate::units;
use anyhow::{Result, anyhow, bail, ensure};
use console::server::{TIMEOUT, unmount};
use engine::format::Superblock;
use image::{Pending, Served};
use pmem::Direct;
use serde_json::json;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks at a server that is stopped.
const LOOK: Duration = Duration::from_millis(50);

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
    let served = mount.served();
    let servers = servers(&mount, served.as_ref());
    let identity = served.as_ref().map(|served| served.identity);
    let image = served.map_or_else(|| mount.source.clone(), |served| served.path);
    if !arguments.lazy {
        wait_for_continued(&servers, &mount)?;
    }
    let is_written = !mount.read_only && !servers.is_empty();
    unmount(&mount.point, arguments.lazy).map_err(|error| match servers.iter().find(|one| is_stopped(one.pid)) {
        Some(_) => anyhow!("{error} ({})", silence(&servers, &mount.point)),
        None => error,
    })?;
    if !arguments.lazy {
        wait(servers, &mount, identity)?;
        if is_written {
            check_closed(&mount, &image)?;
        }
    }
    if arguments.json {
        let value = json!({ "directory": units::path_text(&mount.point), "image": units::path_text(&mount.source) });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    Ok(())
}

fn servers(mount: &Mount, served: Option<&Served>) -> Vec<ImageUser> {
    // The source is a text that the maker of the mount chose.
    let of_source = || asking::identity(&mount.source).ok();
    let Some(image) = served.map(|served| served.identity).or_else(of_source) else { return Vec::new() };
    processes::users_of(image).into_iter().filter(|user| user.serves_mount).collect()
}

/// Waits a little for a server that is stopped. What it has in memory would not reach the image.
fn wait_for_continued(servers: &[ImageUser], mount: &Mount) -> Result<()> {
    let end = Instant::now() + asking::PATIENCE;
    while !servers.is_empty() && servers.iter().all(|server| is_stopped(server.pid)) {
        ensure!(Instant::now() < end, "{}; it stays mounted", silence(servers, &mount.point));
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Makes sure that the image is whole, if its server was the last one that used it.
fn check_closed(mount: &Mount, image: &Path) -> Result<()> {
    match File::open(image) {
        Ok(file) if image::users(&file).map_or(true, |users| !users.none()) => return Ok(()),
        // Removed while it was mounted.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // What maps it below says why it cannot be read.
        _ => {}
    }
    let is_clean = image::map_described(image).map(|(mapping, pending, _)| {
        // SAFETY: nothing is stored through the region.
        let region = unsafe { mapping.region_for_reading(Direct) };
        let is_clean = region.first::<Superblock>().is_ok_and(|superblock| superblock.state().clean);
        is_clean && matches!(pending, Pending::Nothing)
    });
    let what = match is_clean {
        Ok(true) => return Ok(()),
        Ok(false) => "it was not left cleanly".to_owned(),
        Err(error) => error.to_string(),
    };
    bail!(
        "{} is unmounted, but the last changes may not be in {}: {what}; the server's message is in the log (syslog, \
         the journal or the file of `-o log=`), and the next use recovers what is whole",
        mount.point.display(),
        image.display()
    )
}

/// Waits until the server has exited, which closes the image cleanly. Nothing shows which of
/// several servers it was, so as many may remain as the image has other mounts. `identity`: of the
/// image, as the server gave it.
fn wait(mut servers: Vec<ImageUser>, mount: &Mount, identity: Option<(u64, u64)>) -> Result<()> {
    let mut progress =
        Progress::start(&format!("waiting until {} is closed cleanly", mount.source.display()), Of::Steps(0));
    let end = Instant::now() + TIMEOUT;
    let mut left = None;
    loop {
        let step = Duration::from_millis(100) / servers.len().max(1) as u32;
        servers.retain(|server| !processes::wait_for_end(server.pid, step));
        let Some(server) = servers.first() else { return Ok(()) };
        // Other servers are asked only if one remains: each may be silent.
        if servers.len() <= *left.get_or_insert_with(|| other_mounts(mount, identity)) {
            return Ok(());
        }
        progress.at(0);
        ensure!(
            Instant::now() < end,
            "{} is unmounted, but its server ({}) is still closing the image, or another mount namespace has the mount; \
             wait until it exits before you use {}",
            mount.point.display(),
            processes::named(server.pid),
            mount.source.display()
        );
    }
}

/// The number of other mounts of the image. What their servers say counts, else the source.
fn other_mounts(mount: &Mount, identity: Option<(u64, u64)>) -> usize {
    let is_of_image = |other: &Mount| match identity.zip(other.served()) {
        Some((image, served)) => served.identity == image,
        None => other.source == mount.source,
    };
    mounts::all().iter().filter(|other| other.kind == mount.kind && is_of_image(other)).count()
}
