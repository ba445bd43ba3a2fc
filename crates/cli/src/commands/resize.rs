//! `directfs resize` and `directfs tune`.

use crate::arguments::{NewUuid, Resize, Tune};
use crate::asking::{self, Unanswered};
use crate::mounts;
use crate::processes;
use crate::terminal::{Of, Progress};
use crate::units;
use anyhow::{Context, Result, ensure};
use image::{self, ImageError, OpenImage, Resized};
use pmem::BLOCK_BYTES;
use rustix::io::Errno;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a server to enlarge its image, which may write to a slow disk.
const GROWTH_LIMIT: Duration = Duration::from_secs(600);

/// Changes the size of an image.
pub fn run(arguments: &Resize) -> Result<()> {
    let path = &arguments.image;
    let wanted = wanted_bytes(path, &arguments.size)?;
    // A clock: most of the time is that of one call of the kernel, which reserves the space.
    let progress = Progress::quiet("resizing", Of::Steps(0));
    let resized = resize(path, wanted);
    drop(progress);
    let resized = match resized {
        Err(error @ (ImageError::GrowsUnused { .. } | ImageError::ShrinksUnused { .. })) => {
            // It names the processes.
            super::fsck::ensure_idle(path).with_context(|| error.to_string())?;
            return Err(error.into());
        }
        resized => resized?,
    };
    if arguments.json {
        let value = json!({
            "image": units::path_text(path),
            "before_bytes": resized.before_bytes,
            "after_bytes": resized.after_bytes,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let (before, after) = (units::size(resized.before_bytes), units::size(resized.after_bytes));
    match resized.before_bytes == resized.after_bytes {
        true => println!("{} has {after} already", path.display()),
        false => println!("{} has {after} now, and had {before}", path.display()),
    }
    Ok(())
}

/// By the server of a mount, which may be alone on the image; otherwise by this process.
fn resize(path: &Path, wanted: u64) -> Result<Resized, ImageError> {
    let wanted = wanted / BLOCK_BYTES * BLOCK_BYTES;
    let first = mounts::of_image(path).into_iter().next();
    match first.and_then(|mount| resize_mounted(path, &mount.point, wanted)) {
        Some(resized) => resized,
        None => image::resize(path, wanted, &OpenImage::default()),
    }
}

/// `None`: the mount has no server that can do it.
fn resize_mounted(path: &Path, point: &Path, wanted: u64) -> Option<Result<Resized, ImageError>> {
    let failed = |path: PathBuf, source| ImageError::File { action: "enlarge the mounted image", path, source };
    let silent = || io::Error::other(processes::silent_servers(path, point));
    let sizes = match asking::attribute(point, fuse::SIZE_ATTRIBUTE) {
        Ok(sizes) => sizes,
        Err(Unanswered::Silent) => return Some(Err(failed(path.to_owned(), silent()))),
        Err(Unanswered::Refused(_)) => return None,
    };
    let (now, most) = std::str::from_utf8(&sizes).ok()?.split_once(' ')?;
    let (before_bytes, most): (u64, u64) = (now.parse().ok()?, most.parse().ok()?);
    let set = asking::set_attribute(point, fuse::SIZE_ATTRIBUTE, wanted.to_string().as_bytes(), GROWTH_LIMIT);
    let path = path.to_owned();
    let errno = match set {
        Ok(()) => return Some(Ok(Resized { before_bytes, after_bytes: wanted })),
        Err(Unanswered::Silent) => return Some(Err(failed(path, io::ErrorKind::TimedOut.into()))),
        Err(Unanswered::Refused(errno)) => errno,
    };
    Some(Err(match errno {
        Errno::FBIG => ImageError::BeyondCapacity { path, most, reason: image::NO_ROOM },
        Errno::INVAL if wanted < before_bytes => ImageError::ShrinksUnused { path },
        Errno::INVAL => ImageError::GrowthTooSmall { path, now: before_bytes },
        Errno::OPNOTSUPP => ImageError::GrowsUnused { path },
        Errno::NOSPC => {
            let available = rustix::fs::statvfs(&path).map_or(0, |space| space.f_bavail * space.f_frsize);
            ImageError::NoSpace { path, available, needed: wanted - before_bytes }
        }
        errno => failed(path, errno.into()),
    }))
}

/// The size that was asked for: absolute, or with a sign.
fn wanted_bytes(path: &Path, text: &str) -> Result<u64> {
    let parse = |text: &str| units::parse_size(text).map_err(anyhow::Error::msg);
    let now = || image::map_described(path).map(|(_, _, geometry)| geometry.blocks * pmem::BLOCK_BYTES);
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(more), _) => now()?.checked_add(parse(more)?).context("the size is too large; choose a smaller one"),
        (_, Some(less)) => {
            let (now, less) = (now()?, parse(less)?);
            ensure!(less < now, "the image has {}, so it cannot have {} less", units::size(now), units::size(less));
            Ok(now - less)
        }
        _ => parse(text),
    }
}

/// Changes the description of an image.
pub fn tune(arguments: &Tune) -> Result<()> {
    super::fsck::ensure_idle(&arguments.image)?;
    let uuid = arguments.uuid.map(|uuid| match uuid {
        NewUuid::Random => image::random_uuid(),
        NewUuid::Given(uuid) => uuid,
    });
    let tune = image::Tune { label: arguments.label.clone(), uuid, reserve: arguments.reserved };
    let reserved_bytes = image::tune(&arguments.image, &tune, &OpenImage::default())?;
    if arguments.json {
        let value = json!({
            "image": units::path_text(&arguments.image),
            "label": arguments.label,
            "uuid": uuid.map(|uuid| units::uuid(&uuid)),
            "reserved_bytes": reserved_bytes,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    if let Some(label) = &arguments.label {
        println!("label {}", if label.is_empty() { "none" } else { label });
    }
    if let Some(uuid) = uuid {
        println!("uuid {}", units::uuid(&uuid));
    }
    if let Some(bytes) = reserved_bytes {
        println!("reserved for root {}", units::size(bytes));
    }
    Ok(())
}
