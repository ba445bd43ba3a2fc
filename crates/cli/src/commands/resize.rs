//! `directfs resize` and `directfs tune`.

use crate::arguments::{NewUuid, Resize, Tune};
use crate::units;
use anyhow::{Context, Result, ensure};
use posix::image::{self, OpenImage};
use serde_json::json;
use std::path::Path;

/// Changes the size of an image.
pub fn run(arguments: &Resize) -> Result<()> {
    let path = &arguments.image;
    let wanted = wanted_bytes(path, &arguments.size)?;
    super::fsck::ensure_idle(path)?;
    let resized = image::resize(path, wanted, &OpenImage::default())?;
    if arguments.json {
        let value = json!({
            "image": path,
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

/// The size that was asked for: absolute, or with a sign.
fn wanted_bytes(path: &Path, text: &str) -> Result<u64> {
    let parse = |text: &str| units::parse_size(text).map_err(anyhow::Error::msg);
    let now = || {
        let (mapping, _) = image::map_newest(path)?;
        // SAFETY: nothing is stored through the region.
        let region = unsafe { mapping.region_for_reading(pmem::Direct) };
        let checked = engine::format::Superblock::check(&region, false);
        let geometry = checked.map_err(|cause| image::ImageError::NotUsable { path: path.to_owned(), cause })?;
        Ok::<_, image::ImageError>(geometry.blocks * pmem::BLOCK_BYTES)
    };
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
