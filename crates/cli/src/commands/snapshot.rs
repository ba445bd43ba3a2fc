//! `directfs snapshot` and `directfs clone`.

use crate::arguments::{CloneImage, Snapshot};
use crate::terminal::Progress;
use crate::{interrupt, orders};
use anyhow::Result;
use posix::image::{ImageError, NewIdentity, OpenImage, snapshot, snapshot_by};

/// Copies an image. `identity`: of a clone.
pub fn run(arguments: &Snapshot, identity: Option<&NewIdentity>) -> Result<()> {
    interrupt::catch()?;
    let length = posix::image::image_length(&arguments.image).unwrap_or(0);
    let mut progress = Progress::quiet("copying (MiB)", length >> 20);
    let mut watch = |done: u64, _: u64| {
        progress.at(done >> 20);
        interrupt::check().is_ok()
    };
    let (image, file) = (&arguments.image, &arguments.file);
    if let Some(server) = orders::server_of(image)? {
        return snapshot_by(image, file, identity, |into| server.copy(into, &mut watch));
    }
    match snapshot(image, file, identity, &OpenImage::default(), &mut watch) {
        Err(ImageError::Stopped { .. }) => Err(interrupt::Interrupted.into()),
        copied => Ok(copied?),
    }
}

/// Copies an image, as another one.
pub fn clone(arguments: &CloneImage) -> Result<()> {
    run(&arguments.copy, Some(&NewIdentity { label: arguments.label.clone() }))
}
