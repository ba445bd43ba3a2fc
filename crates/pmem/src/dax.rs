//! What the kernel says of the memory behind DAX devices and DAX files, in sysfs: the bytes that
//! can be mapped, and whether they are kept without power.
//!
//! Persistent memory belongs to a region below an `ndbus`. The region's `persistence_domain` exists
//! if the platform guarantees that what leaves the processor's caches (`memory_controller`), or
//! even what is in them (`cpu_cache`), reaches the medium. A DAX device elsewhere is volatile
//! memory: of a CXL region in the mode `ram`, or a range that the firmware sets apart (`hmem`).
//!
//! Memory errors that the kernel knows are listed in `badblocks` of the disk or, for a DAX device,
//! of its region, in sectors from the start of that. Below a device of the device mapper they are
//! not looked for: an access finds them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::backing::Medium;
use crate::map::{HUGE_PAGE_BYTES, LENGTH_BYTES_MAX, MapError, PAGE_BYTES};

/// The unit of the kernel's lists of bad blocks.
const SECTOR_BYTES: u64 = 512;
/// Devices below a device of the device mapper, and below those.
const MAPPERS_MAX: usize = 8;

/// The folder with the attributes of a device; `kind` is `char` or `block`.
pub(crate) fn attributes_of_device(kind: &str, device: u64) -> PathBuf {
    format!("/sys/dev/{kind}/{}:{}", rustix::fs::major(device), rustix::fs::minor(device)).into()
}

/// Mappable bytes of a DAX device.
pub(crate) fn length_bytes(path: &Path, attributes: &Path) -> Result<u64, MapError> {
    let subsystem = std::fs::read_link(attributes.join("subsystem")).unwrap_or_default();
    if subsystem.file_name().is_none_or(|name| name != "dax") {
        return Err(MapError::NotMappable { path: path.to_owned(), kind: "a character device of another kind" });
    }
    let number = |attribute: PathBuf| -> Result<u64, MapError> {
        let read = || std::fs::read_to_string(&attribute)?.trim().parse::<u64>().map_err(io::Error::other);
        read().map_err(|source| MapError::DaxSize { path: path.to_owned(), attribute: attribute.clone(), source })
    };
    let length = number(attributes.join("size"))?;
    let align = alignment_bytes(attributes).map_err(|(attribute, source)| MapError::DaxSize {
        path: path.to_owned(),
        attribute,
        source,
    })?;
    if length < align {
        return Err(MapError::DaxAlignment { path: path.to_owned(), length, align });
    }
    if length > LENGTH_BYTES_MAX {
        return Err(MapError::TooLarge { path: Some(path.to_owned()), length });
    }
    Ok(length / align * align)
}

/// The unit in which a DAX device can be mapped.
fn alignment_bytes(attributes: &Path) -> Result<u64, (PathBuf, io::Error)> {
    let attribute = attributes.join("align");
    match std::fs::read_to_string(&attribute) {
        // Kernels before 5.10 do not export the alignment; their default is the huge page size.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HUGE_PAGE_BYTES),
        Err(error) => Err((attribute, error)),
        Ok(text) => match text.trim().parse::<u64>() {
            Ok(bytes) => Ok(bytes.max(PAGE_BYTES)),
            Err(error) => Err((attribute, io::Error::other(error))),
        },
    }
}

/// If `file` is a DAX device that cannot be mapped in single pages: the unit in which it can.
pub fn coarse_alignment_bytes(file: &File) -> Option<u64> {
    use std::os::unix::fs::FileTypeExt;
    let metadata = file.metadata().ok().filter(|metadata| metadata.file_type().is_char_device())?;
    alignment_bytes(&attributes_of_device("char", metadata.rdev())).ok().filter(|&bytes| bytes > PAGE_BYTES)
}

/// The medium below a file on a DAX file system.
pub(crate) fn medium_of_file(file: &File) -> Medium {
    let Ok(metadata) = file.metadata() else { return Medium::Unknown };
    Medium::of_block_device(&attributes_of_device("block", metadata.dev()), MAPPERS_MAX)
}

impl Medium {
    /// The medium of a DAX device.
    pub(crate) fn of_device(attributes: &Path) -> Medium {
        let Ok(place) = attributes.canonicalize() else { return Medium::Unknown };
        Medium::of_region_of(&place).unwrap_or(Medium::Volatile)
    }

    /// The medium of a block device; that of the device mapper is as good as the worst below it.
    fn of_block_device(attributes: &Path, mappers: usize) -> Medium {
        let Ok(place) = attributes.canonicalize() else { return Medium::Unknown };
        if let Some(medium) = Medium::of_region_of(&place) {
            return medium;
        }
        let below = std::fs::read_dir(place.join("slaves")).into_iter().flatten().flatten();
        let mut below = below.map(|entry| match mappers {
            0 => Medium::Unknown,
            left => Medium::of_block_device(&entry.path(), left - 1),
        });
        let Some(first) = below.next() else { return Medium::Unknown };
        if below.all(|medium| medium == first) { first } else { Medium::Unknown }
    }

    /// The medium of the region that a device belongs to; `None`: it belongs to no `ndbus`.
    fn of_region_of(place: &Path) -> Option<Medium> {
        let region = region_of(place)?;
        let domain = std::fs::read_to_string(region.join("persistence_domain")).unwrap_or_default();
        match domain.trim() {
            "cpu_cache" | "memory_controller" => Some(Medium::Persistent),
            _ => Some(Medium::Unknown),
        }
    }
}

/// The region that a device belongs to; `None`: it belongs to no `ndbus`.
fn region_of(place: &Path) -> Option<&Path> {
    let is_bus = |folder: &&Path| {
        folder.parent().and_then(Path::file_name).is_some_and(|name| name.as_encoded_bytes().starts_with(b"ndbus"))
    };
    place.ancestors().find(is_bus)
}

/// If the kernel lists memory errors of what a file or device is on: this process expects them.
pub(crate) fn expect_listed_errors(file: &File) {
    if !bad_places(file).is_empty() {
        crate::expect_memory_errors();
    }
}

/// The ranges of the first `length` bytes of a file or device whose memory has errors, in whole
/// pages, in ascending order.
pub(crate) fn bad_ranges(file: &File, length: u64) -> Vec<Range<u64>> {
    let bad = bad_places(file);
    let extents = match file.metadata() {
        _ if bad.is_empty() => Vec::new(),
        Ok(metadata) if metadata.is_file() => extents(file).unwrap_or_default(),
        _ => vec![Placed { logical: 0, physical: 0, length }],
    };
    let mut ranges: Vec<Range<u64>> = extents
        .iter()
        .flat_map(|extent| bad.iter().filter_map(|place| extent.part_at(place)))
        .filter(|range| range.start < length)
        .map(|range| range.start / PAGE_BYTES * PAGE_BYTES..range.end.next_multiple_of(PAGE_BYTES).min(length))
        .collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        range.end = if touches { range.end.max(next.end) } else { range.end };
        touches
    });
    ranges
}

/// Bytes with memory errors, from the start of the device that a file is on, or that it is.
fn bad_places(file: &File) -> Vec<Range<u64>> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(metadata) = file.metadata() else { return Vec::new() };
    let attributes = match metadata.file_type().is_char_device() {
        true => attributes_of_device("char", metadata.rdev()),
        false => attributes_of_device("block", metadata.dev()),
    };
    attributes.canonicalize().map(|place| bad_places_of(&place)).unwrap_or_default()
}

/// Bytes with memory errors of a disk, a partition, or a DAX device, by its directory in sysfs.
fn bad_places_of(place: &Path) -> Vec<Range<u64>> {
    let number = |attribute: PathBuf| {
        let text = std::fs::read_to_string(attribute).ok()?;
        let text = text.trim();
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
    };
    let (list, start) = if place.join("badblocks").exists() {
        (place.to_owned(), Some(0))
    } else if let (Some(disk), true) = (place.parent(), place.join("partition").exists()) {
        (disk.to_owned(), number(place.join("start")).map(|sector: u64| sector.saturating_mul(SECTOR_BYTES)))
    } else if let Some(region) = region_of(place) {
        let addresses = number(place.join("resource")).zip(number(region.join("resource")));
        (region.to_owned(), addresses.and_then(|(device, region): (u64, u64)| device.checked_sub(region)))
    } else {
        return Vec::new();
    };
    let Some(start) = start else { return Vec::new() };
    let text = std::fs::read_to_string(list.join("badblocks")).unwrap_or_default();
    let range = |line: &str| {
        let (sector, count) = line.split_once(' ')?;
        let sector: u64 = sector.parse().ok()?;
        let end = sector.checked_add(count.trim().parse().ok()?)?.checked_mul(SECTOR_BYTES)?;
        let range = (sector * SECTOR_BYTES).saturating_sub(start)..end.saturating_sub(start);
        (!range.is_empty()).then_some(range)
    };
    text.lines().filter_map(range).collect()
}

/// A part of a file and where it lies on the device of its file system.
#[derive(Debug, Clone, Copy)]
struct Placed {
    logical: u64,
    physical: u64,
    length: u64,
}

impl Placed {
    /// The bytes of the file that lie in a part of the device.
    fn part_at(&self, place: &Range<u64>) -> Option<Range<u64>> {
        let start = place.start.max(self.physical);
        let end = place.end.min(self.physical.saturating_add(self.length));
        (start < end).then(|| start - self.physical + self.logical..end - self.physical + self.logical)
    }
}

/// Where a file lies, by FS_IOC_FIEMAP.
fn extents(file: &File) -> io::Result<Vec<Placed>> {
    use std::os::fd::AsRawFd;
    const FIEMAP: libc::c_ulong = 0xc020_660b;
    const EXTENTS: usize = 64;
    /// An extent, and the flag of the last one.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Extent {
        logical: u64,
        physical: u64,
        length: u64,
        reserved: [u64; 2],
        flags: u32,
        more: [u32; 3],
    }
    const LAST: u32 = 1;
    #[repr(C)]
    struct Request {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        room: u32,
        reserved: u32,
        extents: [Extent; EXTENTS],
    }
    let mut found: Vec<Placed> = Vec::new();
    loop {
        let start = found.last().map_or(0, |last| last.logical.saturating_add(last.length));
        let mut request = Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            room: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the kernel writes at most the extents for which the request has room.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let extents = &request.extents[..(request.mapped as usize).min(EXTENTS)];
        let placed =
            |extent: &Extent| Placed { logical: extent.logical, physical: extent.physical, length: extent.length };
        found.extend(extents.iter().map(placed));
        if extents.last().is_none_or(|extent| extent.flags & LAST != 0 || extent.length == 0) {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Attributes as the kernel exports them for a DAX device.
    fn attributes(subsystem: &str, size: Option<&str>, align: Option<&str>) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        symlink(format!("../../bus/{subsystem}"), directory.path().join("subsystem")).unwrap();
        for (name, value) in [("size", size), ("align", align)] {
            if let Some(value) = value {
                fs::write(directory.path().join(name), value).unwrap();
            }
        }
        directory
    }

    fn length_of(subsystem: &str, size: Option<&str>, align: Option<&str>) -> Result<u64, MapError> {
        length_bytes(Path::new("/dev/dax0.0"), attributes(subsystem, size, align).path())
    }

    #[test]
    fn a_dax_device_is_mapped_in_whole_units_of_its_alignment() {
        assert_eq!(length_of("dax", Some("16777216\n"), Some("2097152\n")).unwrap(), 16 << 20);
        assert_eq!(length_of("dax", Some("5242880"), Some("2097152")).unwrap(), 4 << 20);
        assert_eq!(
            length_of("dax", Some("5242880"), None).unwrap(),
            4 << 20,
            "an old kernel does not export the alignment"
        );
        assert_eq!(length_of("dax", Some("12288"), Some("4096")).unwrap(), 12288);
    }

    #[test]
    fn a_dax_device_that_cannot_be_mapped_is_explained() {
        let error = length_of("dax", Some("1048576"), Some("2097152")).unwrap_err();
        assert!(matches!(error, MapError::DaxAlignment { length: 1_048_576, align: 2_097_152, .. }), "{error}");
        let error = length_of("dax", None, None).unwrap_err();
        assert!(matches!(error, MapError::DaxSize { .. }), "{error}");
        let error = length_of("dax", Some("many"), None).unwrap_err();
        assert!(matches!(error, MapError::DaxSize { .. }), "{error}");
        let error = length_of("dax", Some("18446744073709551615"), Some("4096")).unwrap_err();
        assert!(matches!(error, MapError::TooLarge { .. }), "{error}");
        let error = length_of("tty", Some("16777216"), None).unwrap_err();
        assert!(matches!(error, MapError::NotMappable { .. }), "{error}");
    }

    /// A device of a region, as the kernel lays them out below /sys/devices.
    fn device_of(tree: &Path, region: &str, domain: Option<&str>, device: &str) -> PathBuf {
        let region = tree.join(region);
        let device = region.join(device);
        fs::create_dir_all(&device).unwrap();
        if let Some(domain) = domain {
            fs::write(region.join("persistence_domain"), domain).unwrap();
        }
        device
    }

    #[test]
    fn memory_is_persistent_only_if_its_region_has_a_persistence_domain() {
        let tree = tempfile::tempdir().unwrap();
        let at = |region, domain, device| Medium::of_device(&device_of(tree.path(), region, domain, device));
        assert_eq!(at("ACPI0012:00/ndbus0/region0", Some("cpu_cache\n"), "dax0.0/dax0.0"), Medium::Persistent);
        assert_eq!(at("ACPI0012:00/ndbus1/region1", Some("memory_controller\n"), "dax1.0/dax1.0"), Medium::Persistent);
        assert_eq!(at("ACPI0012:00/ndbus2/region2", None, "dax2.0/dax2.0"), Medium::Unknown, "an emulated NVDIMM");
        assert_eq!(at("virtio4/ndbus3/region3", Some("unknown\n"), "dax3.0/dax3.0"), Medium::Unknown);
    }

    #[test]
    fn a_dax_device_without_an_nvdimm_bus_is_volatile() {
        let tree = tempfile::tempdir().unwrap();
        let ram = device_of(tree.path(), "decoder0.0/region0", None, "dax_region0/dax0.0");
        assert_eq!(Medium::of_device(&ram), Medium::Volatile, "a CXL region in the mode ram");
        let hmem = device_of(tree.path(), "platform/hmem.0", None, "dax1.0");
        assert_eq!(Medium::of_device(&hmem), Medium::Volatile);
        assert_eq!(Medium::of_device(&tree.path().join("gone")), Medium::Unknown, "sysfs is not mounted");
    }

    #[test]
    fn a_mapped_block_device_is_as_persistent_as_what_is_below_it() {
        let tree = tempfile::tempdir().unwrap();
        let persistent = device_of(tree.path(), "ndbus0/region0", Some("cpu_cache"), "namespace0.0/block/pmem0");
        let unknown = device_of(tree.path(), "ndbus0/region1", None, "namespace1.0/block/pmem1");
        let partition = persistent.join("pmem0p1");
        fs::create_dir(&partition).unwrap();
        let mapper = |name: &str, below: &[&Path]| {
            let slaves = tree.path().join("virtual/block").join(name).join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            for (index, device) in below.iter().enumerate() {
                symlink(device, slaves.join(index.to_string())).unwrap();
            }
            Medium::of_block_device(slaves.parent().unwrap(), MAPPERS_MAX)
        };
        assert_eq!(Medium::of_block_device(&partition, MAPPERS_MAX), Medium::Persistent);
        assert_eq!(mapper("dm-0", &[&persistent, &partition]), Medium::Persistent);
        assert_eq!(mapper("dm-1", &[&persistent, &unknown]), Medium::Unknown);
        assert_eq!(mapper("dm-2", &[]), Medium::Unknown);
        let itself = tree.path().join("virtual/block/dm-3");
        fs::create_dir_all(itself.join("slaves")).unwrap();
        symlink(&itself, itself.join("slaves/0")).unwrap();
        assert_eq!(Medium::of_block_device(&itself, MAPPERS_MAX), Medium::Unknown, "a circle ends");
    }

    #[test]
    fn bad_blocks_are_those_of_the_disk_from_the_start_of_the_partition_or_device() {
        let tree = tempfile::tempdir().unwrap();
        let disk = device_of(tree.path(), "ndbus0/region0", None, "namespace0.0/block/pmem0");
        fs::write(disk.join("badblocks"), "16 8\n4096 2\n").unwrap();
        assert_eq!(bad_places_of(&disk), [8192..12288, 4096 * 512..4098 * 512]);
        let partition = disk.join("pmem0p1");
        fs::create_dir(&partition).unwrap();
        fs::write(partition.join("partition"), "1\n").unwrap();
        fs::write(partition.join("start"), "4000\n").unwrap();
        assert_eq!(
            bad_places_of(&partition).first(),
            Some(&(96 * 512..98 * 512)),
            "what lies before it is not its own"
        );
        let device = device_of(tree.path(), "ndbus0/region1", None, "dax1.0/dax1.0");
        fs::write(device.join("resource"), "0x140200000\n").unwrap();
        fs::write(tree.path().join("ndbus0/region1/resource"), "0x140000000\n").unwrap();
        fs::write(tree.path().join("ndbus0/region1/badblocks"), "4104 1\n").unwrap();
        assert_eq!(bad_places_of(&device).first(), Some(&(4096..4608)));
        assert!(bad_places_of(&tree.path().join("gone")).is_empty());
    }

    #[test]
    fn bad_blocks_of_a_device_are_found_in_the_file_that_lies_there() {
        let placed = Placed { logical: 8192, physical: 1 << 20, length: 8192 };
        assert_eq!(placed.part_at(&((1 << 20) + 512..(1 << 20) + 1024)), Some(8704..9216));
        assert_eq!(placed.part_at(&(0..u64::MAX)), Some(8192..16384));
        assert_eq!(placed.part_at(&((1 << 20) + 8192..u64::MAX)), None);
    }
}
