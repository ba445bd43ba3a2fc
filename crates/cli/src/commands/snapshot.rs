//! `directfs snapshot` and `directfs clone`.

use crate::arguments::{CloneImage, Snapshot};
use crate::interrupt;
use crate::terminal::Progress;
use anyhow::Result;
use posix::image::{ImageError, NewIdentity, OpenImage, snapshot};

/// Copies an image. `identity`: of a clone.
pub fn run(arguments: &Snapshot, identity: Option<&NewIdentity>) -> Result<()> {
    interrupt::catch()?;
    let length = posix::image::image_length(&arguments.image).unwrap_or(0);
    let mut progress = Progress::quiet("copying (MiB)", length >> 20);
    let copied = snapshot(&arguments.image, &arguments.file, identity, &OpenImage::default(), &mut |done, _| {
        progress.at(done >> 20);
        interrupt::check().is_ok()
    });
    match copied {
        Err(ImageError::Stopped { .. }) => Err(interrupt::Interrupted.into()),
        copied => Ok(copied?),
    }
}

/// Copies an image, as another one.
pub fn clone(arguments: &CloneImage) -> Result<()> {
    run(&arguments.copy, Some(&NewIdentity { label: arguments.label.clone() }))
}
