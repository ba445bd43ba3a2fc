//! Changes of an image's description (UUID, label, length) while no process uses it.
//!
//! Invariant: the description is one write of [`DESCRIPTION_BYTES`] bytes within a sector, so the
//! caller can store it by one write call. A crash leaves the old description or the new one, whose
//! copy in the last block is durable before.

use crate::alloc::BlockRun;
use crate::error::{Error, Result};
use crate::format::{FEATURE_RESERVE, Geometry, MAGIC, Superblock, reserve_word};
use crate::fs::Fs;
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use pmem::{BLOCK_BYTES, Memory, Region, crc32c};

/// Bytes of the superblock up to its state, which changes apart from them.
pub const DESCRIPTION_BYTES: usize = offset_of!(Superblock, state);
/// Where the figures of the snapshot are, and their length. Zeros: there is no snapshot.
pub const SNAPSHOT_FIGURES: (u64, usize) = (offset_of!(Superblock, snapshot) as u64, 64);

/// What changes in the description.
#[derive(Debug, Clone, Copy, Default)]
pub struct DescriptionChange {
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// Label, padded with zeros.
    pub label: Option<[u8; 64]>,
    /// Length in bytes, with its geometry.
    pub geometry: Option<Geometry>,
    /// Blocks reserved for root.
    pub reserved_blocks: Option<u32>,
}

/// The compatible features and the word of a superblock that reserves blocks, or none.
pub(super) fn reserve_words(features_compat: u64, blocks: u32) -> (u64, u64) {
    match blocks {
        0 => (features_compat & !FEATURE_RESERVE, 0),
        _ => (features_compat | FEATURE_RESERVE, reserve_word(blocks)),
    }
}

/// The superblock of an image with a changed description: what its copy holds, and in the first
/// [`DESCRIPTION_BYTES`] bytes what block 0 is to hold.
pub fn changed_superblock<M: Memory>(pm: &Region<M>, change: &DescriptionChange) -> Result<[u8; BLOCK_BYTES as usize]> {
    Superblock::check(pm, true).map_err(Error::Superblock)?;
    let mut block = superblock_with(pm, change)?;
    block[offset_of!(Superblock, runtime_directory)..][..8].copy_from_slice(&[0; 8]);
    Ok(block)
}

/// `changed_superblock` of an image in use, whose processes are found by the superblock. It is
/// right also where a thread that made the same change died before it had stored all words of it.
pub fn superblock_with<M: Memory>(pm: &Region<M>, change: &DescriptionChange) -> Result<[u8; BLOCK_BYTES as usize]> {
    let mut block = [0u8; BLOCK_BYTES as usize];
    pm.read_bytes(0, &mut block)?;
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset_of!(Superblock, magic), &MAGIC.to_le_bytes());
    if let Some(uuid) = change.uuid {
        put(offset_of!(Superblock, uuid), &uuid);
    }
    if let Some(label) = change.label {
        put(offset_of!(Superblock, label), &label);
    }
    if let Some(geometry) = change.geometry {
        put(offset_of!(Superblock, features_incompat), &geometry.features().to_le_bytes());
        put(offset_of!(Superblock, length), &(geometry.blocks * BLOCK_BYTES).to_le_bytes());
        for (index, word) in geometry.words().into_iter().enumerate() {
            put(offset_of!(Superblock, geometry) + index * 8, &word.to_le_bytes());
        }
    }
    if let Some(blocks) = change.reserved_blocks {
        let (features, word) = reserve_words(pm.first::<Superblock>()?.features_compat.load(), blocks);
        put(offset_of!(Superblock, features_compat), &features.to_le_bytes());
        put(offset_of!(Superblock, reserve), &word.to_le_bytes());
    }
    let end = offset_of!(Superblock, checksum);
    let checksum = crc32c(0, &block[offset_of!(Superblock, uuid)..end]) as u64;
    block[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
    Ok(block)
}

impl<M: Memory> Fs<M> {
    /// The last block that is in use, of the data area.
    pub fn last_used_block(&self) -> Result<u64> {
        let data_end = self.geometry().data_end();
        let mut index = data_end.div_ceil(64);
        while index > 0 {
            index -= 1;
            let mut used = self.dram.block_word(index)?.load(Relaxed);
            while used != 0 {
                let block = index * 64 + 63 - used.leading_zeros() as u64;
                if block < data_end {
                    return Ok(block);
                }
                used &= !(1 << (block % 64));
            }
        }
        Ok(0)
    }

    /// Whether a block of another geometry of this image is in use: here, or because it is one of
    /// the fixed areas there.
    pub fn is_used_with(&self, geometry: &Geometry, block: u64) -> bool {
        let is_fixed = !(geometry.data_block..geometry.data_end()).contains(&block);
        let is_here = self.block_map().is_data(BlockRun { first: block, count: 1 });
        let word = || self.dram.block_word(block / 64).map_or(u64::MAX, |word| word.load(Relaxed));
        is_fixed || is_here && word() >> (block % 64) & 1 == 1
    }
}
