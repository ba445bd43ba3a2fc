//! Bytes behind an image for its commit journal.
//!
//! A file becomes longer for a commit that exceeds the log. A block device does not, while a commit
//! may have to hold all of the image. So an image there takes at most so much that one such commit
//! fits behind it; with less room there could be changes that no commit can ever write. *Rejected:*
//! programs that wait while a commit makes room, since a store through a mapping cannot wait.

use journal::{CHUNK_BYTES_MAX, Journal};
use pmem::BLOCK_BYTES;
use posix::commits::ImageFile;

/// Bytes of a log: a sixteenth of the image, within these bounds.
const LOG_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(64 << 20);

/// Bytes of the log for an image of that length.
pub(super) fn log_bytes(image_bytes: u64) -> u64 {
    (image_bytes / 16).clamp(*LOG_BYTES.start(), *LOG_BYTES.end()).next_multiple_of(BLOCK_BYTES)
}

/// Bytes of the file of an image with its journal.
pub(super) fn file_bytes(image_bytes: u64) -> u64 {
    image_bytes + Journal::<ImageFile>::area_bytes(log_bytes(image_bytes))
}

/// The most bytes of an image on a block device of that size.
pub(super) fn image_bytes_within(device_bytes: u64) -> u64 {
    let (mut fits, mut exceeds) = (0, device_bytes / BLOCK_BYTES + 1);
    while fits + 1 < exceeds {
        let middle = fits + (exceeds - fits) / 2;
        if needed_bytes(middle * BLOCK_BYTES) <= device_bytes { fits = middle } else { exceeds = middle }
    }
    fits * BLOCK_BYTES
}

/// Bytes of an image, its journal, and one commit of all that it holds. A 64th is more than the
/// headers of chunks and runs take, and what a chunk leaves empty.
fn needed_bytes(image_bytes: u64) -> u64 {
    file_bytes(image_bytes) + image_bytes + image_bytes / 64 + CHUNK_BYTES_MAX as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_on_a_block_device_leaves_room_for_a_commit_of_all_that_it_holds() {
        for device_bytes in [16 << 20, 100 << 20, (1 << 30) + 512, 1 << 40] {
            let image_bytes = image_bytes_within(device_bytes);
            assert!(needed_bytes(image_bytes) <= device_bytes);
            assert!(needed_bytes(image_bytes + BLOCK_BYTES) > device_bytes);
            assert!(device_bytes - image_bytes > image_bytes + log_bytes(image_bytes));
        }
        assert_eq!(image_bytes_within(1 << 20), 0);
    }
}
