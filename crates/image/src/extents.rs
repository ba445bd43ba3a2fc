//! The parts of a file that are no holes.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;

/// The next range, from `at` on, of a file's beginning that may hold anything but zeros.
pub fn next_extent(file: &File, at: u64, length: u64) -> io::Result<Option<Range<u64>>> {
    if at >= length {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // Nothing but holes up to the end.
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not know holes.
        Err(Errno::INVAL) => at,
        Err(errno) => return Err(errno.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(length).min(length);
    Ok((start < end).then_some(start..end))
}

/// Passes the ranges of a file's beginning that may hold anything but zeros.
pub(super) fn for_each_extent(
    file: &File,
    length: u64,
    each: &mut dyn FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = 0;
    while let Some(extent) = next_extent(file, at, length)? {
        each(extent.start, extent.end)?;
        at = extent.end;
    }
    Ok(())
}

/// Passes the ranges of a file's beginning that are holes, or like them: stores there need space.
pub(super) fn for_each_hole(
    file: &File,
    length: u64,
    each: &mut dyn FnMut(Range<u64>) -> Result<(), engine::Error>,
) -> Result<(), engine::Error> {
    let (mut at, mut result) = (0, Ok(()));
    // What follows an error counts as a hole.
    let _ = for_each_extent(file, length, &mut |start, end| {
        result = each(at..start);
        at = end;
        if result.is_ok() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    });
    result.and_then(|()| each(at..length))
}
