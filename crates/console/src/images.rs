//! Images that a command makes.

use crate::terminal::Progress;
use crate::{interrupt, units};
use anyhow::Result;
use image::{ImageError, Made, MakeOptions, make_watched};
use std::path::Path;

/// Creates an image, with progress where it takes long. An interrupt (where it is caught) cancels
/// it and leaves no image.
pub fn make_shown(path: &Path, options: &MakeOptions) -> Result<Made> {
    let mut progress =
        Progress::quiet(&format!("allocating {} (MiB)", units::size(options.length)), options.length >> 20);
    let made = make_watched(path, options, &mut |done, _| {
        progress.at(done >> 20);
        interrupt::check().is_ok()
    });
    match made {
        Err(ImageError::Stopped { .. }) => Err(interrupt::Interrupted.into()),
        made => Ok(made?),
    }
}
