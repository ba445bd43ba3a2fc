//! `directfs trim`.

use crate::arguments::Trim;
use crate::interrupt::{self, Interrupted, Stopped};
use crate::orders;
use crate::terminal::{Of, Progress};
use crate::units;
use anyhow::Result;
use image::{ImageError, OpenImage, trim};
use serde_json::json;

/// Gives back what an image does not use.
pub fn run(arguments: &Trim) -> Result<()> {
    interrupt::catch()?;
    let length = image::image_length(&arguments.image).unwrap_or(0);
    let mut progress = Progress::quiet("trimming", Of::Bytes(length));
    let mut watch = |done: u64, _: u64| {
        progress.at(done);
        interrupt::check().is_ok()
    };
    let trimmed = match orders::server_of(&arguments.image)? {
        Some(server) => server.trim(&mut watch),
        None => trim(&arguments.image, &OpenImage::default(), &mut watch).map_err(anyhow::Error::from),
    };
    drop(progress);
    let is_stopped = |error: &anyhow::Error| {
        error.is::<Interrupted>() || matches!(error.downcast_ref(), Some(ImageError::Stopped { .. }))
    };
    let trimmed = trimmed.map_err(|error| match is_stopped(&error) {
        true => Stopped("interrupted; what was given back so far stays so, and the image is whole").into(),
        false => error,
    })?;
    let freed_bytes = trimmed.before_bytes.saturating_sub(trimmed.after_bytes);
    if arguments.json {
        let value = json!({
            "image": units::path_text(&arguments.image),
            "before_bytes": trimmed.before_bytes,
            "after_bytes": trimmed.after_bytes,
            "freed_bytes": freed_bytes,
            "working_copy": trimmed.is_working_copy,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let (freed, left) = (units::size(freed_bytes), units::size(trimmed.after_bytes));
    match trimmed.is_working_copy {
        true => println!(
            "gave back {freed}: the working copy takes {left}; the file on the disk is trimmed when no process uses it"
        ),
        false => println!("gave back {freed}: {} takes {left}", arguments.image.display()),
    }
    Ok(())
}
