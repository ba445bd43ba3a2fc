//! `directfs ps --left`: the newest states of images whose processes were killed.

use crate::arguments::Ps;
use crate::units;
use anyhow::{Context, Result, ensure};
use image::{KEPT_DAYS, RUNTIME_PARENT, left_copies, remove_left_copy};
use serde_json::json;
use std::path::Path;

/// Lists them, or removes one.
pub fn run(arguments: &Ps) -> Result<()> {
    let parent = Path::new(RUNTIME_PARENT);
    let failed = || format!("cannot examine {}", parent.display());
    if let Some(name) = &arguments.remove {
        let is_removed = remove_left_copy(parent, name).with_context(failed)?;
        ensure!(
            is_removed,
            "no state of that name is left, or a process uses it: `directfs ps --left` lists what there is"
        );
        return Ok(());
    }
    let copies = left_copies(parent).with_context(failed)?;
    if arguments.json {
        let copies = copies.iter().map(|copy| {
            let (name, image, seconds) = (&copy.name, &copy.image, copy.unused_for.as_secs());
            json!({ "name": name, "image": image.as_deref().map(units::path_text), "bytes": copy.bytes, "unused_seconds": seconds })
        });
        println!("{}", serde_json::to_string_pretty(&copies.collect::<Vec<_>>())?);
        return Ok(());
    }
    for copy in &copies {
        let days = copy.unused_for.as_secs() / 86_400;
        let image = copy.image.as_deref().unwrap_or(Path::new("?")).display().to_string();
        let image: String =
            image.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        println!("{}  {}  unused for {}  {image}", copy.name, units::size(copy.bytes), units::counted(days, "day"));
    }
    if !copies.is_empty() {
        println!("the next use of its image commits a state that continues it; after {KEPT_DAYS} days one is removed");
    }
    Ok(())
}
