//! Copies of an image's bytes, which leave out its holes and its pages of zeros.

use super::extents::for_each_extent;
use pmem::{BLOCK_BYTES, Direct, LoadError, Mapping, Region, Residency};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Progress callback: receives the number of reserved bytes and the total; `false` stops the
/// operation.
pub type Watch<'w> = &'w mut dyn FnMut(u64, u64) -> bool;

/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// Reads bytes of a mapped image for a copy of it. A memory error is EHWPOISON: zeros in its place
/// would pass for content, and the image itself stays usable.
pub(super) fn read_for_copy(region: &Region<Direct>, offset: u64, into: &mut [u8]) -> io::Result<()> {
    region.read_through(offset, into).map(drop).map_err(|error| match error {
        LoadError::Lost => io::Error::from_raw_os_error(libc::EHWPOISON),
        LoadError::Disk(errno) => io::Error::from_raw_os_error(errno),
        _ => io::ErrorKind::InvalidData.into(),
    })
}

/// Copies a working copy that has only some of its pages, and the others from the image's file.
pub(super) fn copy_partly_resident(
    file: &File,
    working: &Mapping,
    residency: &Residency,
    (copy, length): (&Arc<Mapping>, u64),
    watch: Watch<'_>,
) -> io::Result<()> {
    let Some(resident) = working.file() else { return Err(io::ErrorKind::Unsupported.into()) };
    let mut copy_from = |source: &File, range: Range<u64>| {
        copy_pages(copy, range, &mut |offset, piece| {
            if watch(offset, length) {
                source.read_exact_at(piece, offset)
            } else {
                Err(io::ErrorKind::Interrupted.into())
            }
        })
    };
    let mut at = 0;
    residency.for_each_absent(0..length, |absent| {
        copy_from(resident, at..absent.start)?;
        at = absent.end;
        copy_from(file, absent)
    })?;
    copy_from(resident, at..length)
}

/// [`copy_content`], with progress.
pub(super) fn copy_watched(file: &File, into: &Arc<Mapping>, length: u64, watch: Watch<'_>) -> io::Result<()> {
    for_each_extent(file, length, &mut |start, end| {
        copy_pages(into, start..end, &mut |offset, piece| {
            file.read_exact_at(piece, offset)?;
            if watch(offset, length) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        })
    })
}

/// Bytes of a file's beginning that are not holes.
pub(super) fn content_bytes(file: &File, length: u64) -> io::Result<u64> {
    let mut bytes = 0;
    for_each_extent(file, length, &mut |start, end| {
        bytes += end - start;
        Ok(())
    })?;
    Ok(bytes)
}

/// Copies the beginning of a file into memory that is zero. `copied` gets the bytes so far.
pub(super) fn copy_content(file: &File, into: &Arc<Mapping>, length: u64, copied: fn(u64, u64)) -> io::Result<()> {
    for_each_extent(file, length, &mut |start, end| {
        copy_pages(into, start..end, &mut |offset, piece| {
            copied(offset, length);
            file.read_exact_at(piece, offset)
        })
    })
}

/// Copies a range, which `read` reads piece by piece, into memory that is zero.
pub(super) fn copy_pages(
    into: &Arc<Mapping>,
    range: Range<u64>,
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
    // SAFETY: mapped for writing, and the mapping outlives the region.
    let region = unsafe { Region::new(into.address(), into.length(), Direct) }.without_flushes();
    let store = |offset: u64, bytes: &[u8]| match into.file() {
        // Unlike a store, a call can fail where there is no space.
        Some(file) => file.write_all_at(bytes, offset),
        None => region.write_bytes(offset, bytes).map(drop).map_err(|_| io::ErrorKind::InvalidData.into()),
    };
    let mut buffer = vec![0; PIECE_BYTES];
    for at in range.clone().step_by(PIECE_BYTES) {
        let piece = PIECE_BYTES.min((range.end - at) as usize);
        read(at, &mut buffer[..piece])?;
        // A page of zeros takes no memory.
        for (index, page) in buffer[..piece].chunks(BLOCK_BYTES as usize).enumerate() {
            if page != &ZEROS[..page.len()] {
                let offset = at + (index as u64) * BLOCK_BYTES;
                store(offset, page)?;
            }
        }
    }
    Ok(())
}
