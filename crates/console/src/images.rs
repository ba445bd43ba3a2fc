//! Images that a command makes.

use crate::interrupt;
use crate::terminal::{Of, Progress};
use anyhow::Result;
use image::{ImageError, Made, MakeOptions, make_watched};
use std::path::Path;

/// Creates an image, with progress where it takes long. An interrupt (where it is caught) cancels
/// it and leaves no image.
pub fn make_shown(path: &Path, options: &MakeOptions) -> Result<Made> {
    let mut progress = Progress::quiet("allocating", Of::Bytes(options.length));
    let made = make_watched(path, options, &mut |done, _| {
        progress.at(done);
        interrupt::check().is_ok()
    });
    match made {
        Err(ImageError::Stopped { .. }) => Err(interrupt::Interrupted.into()),
        made => Ok(made?),
    }
}
