//! `directfs mkfs`.

use crate::arguments::Mkfs;
use crate::interrupt;
use crate::terminal::{bold, print_fact};
use crate::units;
use anyhow::{Result, ensure};
use console::images::make_shown;
use image::MakeOptions;
use serde::Serialize;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Instant;

#[derive(Serialize)]
struct Summary<'a> {
    #[serde(serialize_with = "units::path_as_text")]
    image: &'a Path,
    uuid: String,
    label: &'a str,
    length: u64,
    backing: String,
    persistence: &'static str,
    space_reserved: bool,
    /// What programs cannot do on this device.
    mapping_limit: Option<String>,
    /// What came from a directory.
    files: Option<u64>,
    bytes: Option<u64>,
    duration_ns: Option<u64>,
}

/// Creates an image and prints its properties.
pub fn run(arguments: &Mkfs) -> Result<()> {
    let path = &arguments.image;
    let kind = std::fs::metadata(path).ok().map(|metadata| metadata.file_type());
    let is_device = kind.is_some_and(|kind| kind.is_char_device());
    let is_block = kind.is_some_and(|kind| kind.is_block_device());
    ensure!(
        !is_device || arguments.size.is_none(),
        "{} is a device, which has its own size: leave out --size (ndctl create-namespace --size makes a smaller device)",
        path.display()
    );
    let length = match arguments.size {
        Some(length) => length,
        None if is_device || is_block => 0,
        // An existing image keeps its size.
        None if path.is_file() => image::image_length(path).unwrap_or(0),
        None => 0,
    };
    ensure!(
        length > 0 || is_device || is_block || arguments.size.is_some(),
        "{} needs a size: add --size, for example --size 4G",
        path.display()
    );
    let label = arguments.label.clone().unwrap_or_default();
    let options = MakeOptions {
        length,
        label: label.clone(),
        inodes_max: arguments.inodes.unwrap_or(0),
        force: arguments.force,
        sparse: arguments.sparse,
        ..MakeOptions::default()
    };
    check_inodes(&options)?;
    interrupt::catch()?;
    if arguments.force && pmem::Mapping::open(path, pmem::Access::ReadOnly).is_ok() {
        // The error names the processes.
        super::fsck::ensure_idle(path)?;
    }
    let begun = Instant::now();
    let (made, copied) = match &arguments.from {
        Some(source) => {
            super::transfer::make_from(path, &options, source).map(|(made, counts)| (made, Some(counts)))?
        }
        None => (make_shown(path, &options)?, None),
    };
    let summary = Summary {
        image: path,
        uuid: units::uuid(&made.uuid),
        label: &label,
        length: made.length,
        backing: made.backing.to_string(),
        persistence: made.backing.persistence().sentence(),
        space_reserved: made.reserved,
        mapping_limit: mapping_limit(path),
        files: copied.map(|counts| counts.files),
        bytes: copied.map(|counts| counts.bytes),
        duration_ns: copied.map(|_| begun.elapsed().as_nanos() as u64),
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        summary.print();
    }
    Ok(())
}

/// What programs under `run` cannot do with the files of an image on a device.
pub fn mapping_limit(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let align = pmem::coarse_alignment_bytes(&file)?;
    Some(format!(
        "programs under `run` cannot map files as shared memory, because the device's alignment is {}: use a mount, or a namespace with \
         4 KiB (ndctl create-namespace --mode devdax --align 4K)",
        units::size(align)
    ))
}

/// The engine reports only an invalid argument; this names the argument.
fn check_inodes(options: &MakeOptions) -> Result<()> {
    let most = options.length / 256;
    ensure!(
        options.length == 0 || options.inodes_max <= most,
        "{} inodes do not fit into an image of {}: at most {} do; choose fewer or a larger image",
        units::count(options.inodes_max),
        units::size(options.length),
        units::count(most)
    );
    Ok(())
}

impl Summary<'_> {
    fn print(&self) {
        println!("{} {}", bold("created"), self.image.display());
        if !self.label.is_empty() {
            print_fact("label", self.label);
        }
        print_fact("uuid", &self.uuid);
        let reserved = if self.space_reserved {
            "all of it reserved"
        } else {
            "allocated as the image fills; when it runs out, calls return ENOSPC"
        };
        print_fact("size", format_args!("{}, {reserved}", units::size(self.length)));
        print_fact("backing", &self.backing);
        print_fact("persistence", self.persistence);
        if let Some(limit) = &self.mapping_limit {
            print_fact("limit", limit);
        }
        if let (Some(files), Some(bytes), Some(ns)) = (self.files, self.bytes, self.duration_ns) {
            let (files, took) = (units::counted(files, "file"), units::duration(ns as f64));
            print_fact("copied", format_args!("{files}, {} in {took}", units::size(bytes)));
        }
        print_fact("next", format_args!("directfs run --image {}", units::quoted(self.image)));
    }
}
