//! `lab mkfs`.

use super::arguments::Mkfs;
use anyhow::{Result, ensure};
use console::terminal::{bold, end_with_reader, print_fact};
use lab::physical::MkfsOptions;

/// Creates an image and prints its properties.
pub fn run(arguments: &Mkfs) -> Result<()> {
    end_with_reader();
    let (path, kind) = (&arguments.image, arguments.system);
    // An existing image keeps its size.
    let existing = std::fs::metadata(path).map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 });
    let length = arguments.size.unwrap_or(existing);
    ensure!(length > 0, "{} needs a size: add --size, for example --size 4G", path.display());
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    lab::mount::make(path, kind, length, &MkfsOptions { owner, ..Default::default() }, arguments.force)?;
    anstream::println!("{} {}", bold("created"), path.display());
    print_fact("system", kind.system.name());
    print_fact("VFS layer", format_args!("{} (option vfs= of a mount changes it)", kind.vfs.name()));
    print_fact("size", format_args!("{} MiB", length >> 20));
    print_fact("next", format_args!("lab mount {} DIR", path.display()));
    Ok(())
}
