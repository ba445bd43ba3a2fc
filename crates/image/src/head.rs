//! What the beginning of an image's file says, before recovery of its journal.
//!
//! Invariant: nothing else of the file is believed then. Magic and UUID never change, and the
//! length changes while the journal is empty.

use super::device;
use engine::format::{Geometry, MAGIC, Superblock};
use pmem::{BLOCK_BYTES, length_bytes};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub uuid: [u8; 16],
    pub image_bytes: u64,
    /// See [`Superblock::runtime_directory`].
    pub runtime_directory: u64,
}

impl Head {
    /// Reads it; `None`: not an image, or on a DAX device. That can only be mapped, and an image
    /// there has neither a journal nor a working copy.
    pub fn read(file: &File) -> io::Result<Option<Head>> {
        if !file.metadata()?.is_file() && !device::is_block(file) {
            return Ok(None);
        }
        let mut bytes = [0; 512];
        let length = file.read_at(&mut bytes, 0)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let image_bytes = word(offset_of!(Superblock, length));
        let is_image = length == bytes.len()
            && word(0) == MAGIC
            && image_bytes >= Geometry::LENGTH_MIN
            && image_bytes.is_multiple_of(BLOCK_BYTES)
            && image_bytes <= length_bytes(file)?;
        let uuid_at = offset_of!(Superblock, uuid);
        Ok(is_image.then(|| Head {
            uuid: bytes[uuid_at..uuid_at + 16].try_into().unwrap_or_default(),
            image_bytes,
            runtime_directory: word(offset_of!(Superblock, runtime_directory)),
        }))
    }
}

/// The UUID of the image in a file, which has all bytes of it. `None`: the file is no image.
pub fn uuid_of(file: &File) -> io::Result<Option<[u8; 16]>> {
    Ok(Head::read(file)?.map(|head| head.uuid))
}
