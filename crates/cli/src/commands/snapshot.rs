//! `directfs snapshot` and `directfs clone`.

use super::info;
use crate::arguments::{CloneImage, Snapshot};
use crate::terminal::Progress;
use crate::{interrupt, orders, units};
use anyhow::{Context, Result};
use image::{ImageError, NewIdentity, OpenImage, snapshot, snapshot_by};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Copies an image. `identity`: of a clone.
pub fn run(arguments: &Snapshot, identity: Option<&NewIdentity>) -> Result<()> {
    interrupt::catch()?;
    let length = image::image_length(&arguments.image).unwrap_or(0);
    let mut progress = Progress::quiet("copying (MiB)", length >> 20);
    let mut watch = |done: u64, _: u64| {
        progress.at(done >> 20);
        interrupt::check().is_ok()
    };
    let (image, file) = (&arguments.image, &arguments.file);
    let begun = Instant::now();
    match orders::server_of(image)? {
        Some(server) => snapshot_by(image, file, identity, |into| server.copy(into, &mut watch))?,
        None => match snapshot(image, file, identity, &OpenImage::default(), &mut watch) {
            Err(ImageError::Stopped { .. }) => return Err(interrupt::Interrupted.into()),
            copied => copied?,
        },
    }
    drop(progress);
    report(arguments, begun.elapsed(), identity.is_some())
}

/// Prints what was done.
fn report(arguments: &Snapshot, took: Duration, is_clone: bool) -> Result<()> {
    let file = &arguments.file;
    let metadata = file.metadata().with_context(|| format!("cannot examine {}", file.display()))?;
    let used_bytes = metadata.blocks() * 512;
    let uuid = if is_clone { Some(info::identity(file)?.1) } else { None };
    if arguments.json {
        let mut value = json!({
            "image": units::path_text(&arguments.image),
            "file": units::path_text(file),
            "length": metadata.len(),
            "used_bytes": used_bytes,
            "duration_ns": took.as_nanos() as u64,
        });
        if let Some(uuid) = uuid {
            value["uuid"] = uuid.into();
        }
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let (length, used) = (units::size(metadata.len()), units::size(used_bytes));
    let identity = uuid.map_or(String::new(), |uuid| format!(", with the UUID {uuid}"));
    let took = units::duration(took.as_nanos() as f64);
    println!("copied to {} in {took}: {length}, of which the file takes {used}{identity}", file.display());
    Ok(())
}

/// Copies an image, as another one.
pub fn clone(arguments: &CloneImage) -> Result<()> {
    run(&arguments.copy, Some(&NewIdentity { label: arguments.label.clone() }))
}
