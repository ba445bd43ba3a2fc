//! Making images.
//!
//! Invariant: the magic is durably cleared before anything else changes, and is written last. An
//! interrupted mkfs leaves no image, never half of one.

use super::MkfsOptions;
use super::description::{DescriptionChange, reserve_words};
use crate::alloc::snapshot;
use crate::error::{Error, Result};
use crate::format::{
    FEATURE_USED_SLOTS, FIRST_GENERATION, FORMAT_VERSION, FileKind, Geometry, Inode, MAGIC, Property, ROOT_INODE,
    SEGMENT_BLOCKS, State, Superblock, SuperblockError,
};
use pmem::{BLOCK_BYTES, Commit64, Durable, Flushed, Memory, Pm, Region};

/// Makes an empty file system on a region, durably. Previous contents are lost. Fails with
/// `Invalid` for more than one inode per 256 bytes, and with [`SuperblockError::TooShort`] if the
/// region is too short.
pub fn mkfs<M: Memory>(pm: &Region<M>, options: &MkfsOptions) -> Result<()> {
    make(pm, options, false)
}

/// [`mkfs`] in a file that is zero and whose data need not outlive the memory: what is zero of the
/// maps stays a hole. A detach that finds no room for them leaves the image as after a crash.
pub fn mkfs_with_holes<M: Memory>(pm: &Region<M>, options: &MkfsOptions) -> Result<()> {
    make(pm, &MkfsOptions { zeroed: true, ..*options }, true)
}

fn make<M: Memory>(pm: &Region<M>, options: &MkfsOptions, has_holes: bool) -> Result<()> {
    let geometry = geometry_for(pm.length(), options.inodes_max)?;
    let superblock = pm.first::<Superblock>()?;
    pm.persist(pm.retract(&superblock.magic, 0));
    // Crash point: from here to the end there is no image.
    pm.fence(clear(pm, &geometry, options.zeroed)?);
    let rooted = make_root(pm, &geometry, options)?;
    let flushed = describe(pm, superblock, &geometry, options);
    let flushed = flushed.and(snapshot::write_first(pm, superblock, &geometry, has_holes)?);
    let flushed = flushed.and(pm.flush(pm.commit(&superblock.state, State { epoch: 0, clean: true }.word(), rooted)));
    let whole = pm.fence(flushed.and(copy(pm, &geometry)?));
    // Crash point: everything except the magic is durable.
    pm.persist(pm.commit(&superblock.magic, MAGIC, whole));
    Ok(())
}

/// The geometry of an image of this length, if there can be one.
fn geometry_for(length: u64, inodes_max: u64) -> Result<Geometry> {
    let too_short = Error::Superblock(SuperblockError::TooShort { length });
    if length < Geometry::LENGTH_MIN {
        return Err(too_short);
    }
    let inodes_max = if inodes_max == 0 { Geometry::default_inodes(length) } else { inodes_max };
    // Inode numbers and cachelet indexes must fit their counters; more than one inode per 256 bytes
    // is useless.
    if inodes_max > length / 256 {
        return Err(Error::Invalid);
    }
    let geometry = Geometry::new(length, inodes_max);
    // The check that every attach makes: mkfs makes no image that an attach would reject.
    Geometry::from_words(&geometry.words(), length).ok_or(too_short)
}

/// Zeroes the superblock (whose magic is durably cleared), the journal, the segment table, and the
/// first segment.
fn clear<M: Memory>(pm: &Region<M>, geometry: &Geometry, zeroed: bool) -> Result<Flushed> {
    if zeroed {
        return Ok(Flushed::nothing());
    }
    let fixed = pm.stream_zeros(0, geometry.block_map_block * BLOCK_BYTES)?;
    Ok(fixed.and(pm.stream_zeros(geometry.data_block * BLOCK_BYTES, SEGMENT_BLOCKS * BLOCK_BYTES)?))
}

/// Makes the first segment, which holds the root directory.
fn make_root<M: Memory>(pm: &Region<M>, geometry: &Geometry, options: &MkfsOptions) -> Result<Durable> {
    let segment = geometry.data_block * BLOCK_BYTES;
    let inode = pm.get(Pm::<Inode>::new(segment + ROOT_INODE * size_of::<Inode>() as u64))?;
    let kind = FileKind::Directory;
    let born_ns = options.now_ns as u64;
    let property = Property {
        mode: kind.mode_bits() | options.permissions & 0o7777,
        links: 2,
        uid: options.owner.0,
        gid: options.owner.1,
        modified_ns: options.now_ns,
        changed_ns: options.now_ns,
        ..Property::default()
    };
    // Nothing here counts before the magic does, so the stores need no order.
    let unordered = pm.fence_nothing_new();
    let _ = pm.set64(&inode.number, ROOT_INODE);
    let _ = pm.set32(&inode.kind, kind as u32);
    let _ = pm.set64(&inode.born_ns, born_ns);
    let _ = pm.commit(&inode.parent, ROOT_INODE, unordered);
    let words = property.words();
    for (cell, word) in inode.properties[0].words.iter().zip(words) {
        let _ = pm.set64(cell, word);
    }
    let _ = pm.commit(&inode.properties[0].seal, Property::seal(&words, 0, ROOT_INODE, FIRST_GENERATION), unordered);
    let birth = Inode::birth_word(ROOT_INODE, kind as u32, 0, born_ns, FIRST_GENERATION);
    let _ = pm.commit(&inode.birth, birth, unordered);
    let durable = pm.fence(pm.flush_all(inode));
    let entry = pm.get(Pm::<Commit64>::new(geometry.segment_table_block * BLOCK_BYTES))?;
    Ok(pm.persist(pm.commit(entry, segment, durable)))
}

/// Fills in the description and its checksum.
fn describe<M: Memory>(pm: &Region<M>, superblock: &Superblock, geometry: &Geometry, options: &MkfsOptions) -> Flushed {
    for (cells, bytes) in [(&superblock.uuid[..], &options.uuid[..]), (&superblock.label[..], &options.label[..])] {
        for (cell, word) in cells.iter().zip(bytes.as_chunks::<8>().0) {
            let _ = pm.set64(cell, u64::from_le_bytes(*word));
        }
    }
    let _ = pm.set64(&superblock.version, FORMAT_VERSION);
    let _ = pm.set64(&superblock.features_compat, 0);
    let _ = pm.set64(&superblock.features_ro_compat, FEATURE_USED_SLOTS);
    let _ = pm.set64(&superblock.features_incompat, geometry.features());
    let _ = pm.set64(&superblock.created_ns, options.now_ns as u64);
    let _ = pm.set64(&superblock.length, pm.length());
    for (cell, word) in superblock.geometry.iter().zip(geometry.words()) {
        let _ = pm.set64(cell, word);
    }
    let _ = pm.set64(&superblock.checksum, superblock.description_checksum());
    pm.flush_all(superblock)
}

/// Gives an image that no process uses another UUID, label or reserve, and forgets the last runtime
/// directory. A change of the length is not for it. Not atomic: a crash in between damages the
/// superblock.
pub fn set_identity<M: Memory>(pm: &Region<M>, change: &DescriptionChange) -> Result<()> {
    let geometry = Superblock::check(pm, true).map_err(crate::error::Error::Superblock)?;
    let superblock = pm.first::<Superblock>()?;
    let (uuid, label) = (change.uuid.as_ref().map(|uuid| &uuid[..]), change.label.as_ref().map(|label| &label[..]));
    for (cells, bytes) in [(&superblock.uuid[..], uuid), (&superblock.label[..], label)] {
        for (cell, word) in cells.iter().zip(bytes.unwrap_or_default().as_chunks::<8>().0) {
            let _ = pm.set64(cell, u64::from_le_bytes(*word));
        }
    }
    if let Some(blocks) = change.reserved_blocks {
        let (features, word) = reserve_words(superblock.features_compat.load(), blocks);
        let _ = pm.set64(&superblock.features_compat, features);
        let _ = pm.set64(&superblock.reserve, word);
    }
    let _ = pm.set64(&superblock.checksum, superblock.description_checksum());
    let _ = pm.set64(&superblock.runtime_directory, 0);
    let flushed = pm.flush_all(superblock).and(copy(pm, &geometry)?);
    pm.fence(flushed);
    Ok(())
}

/// Writes the copy, which has its magic from the start: it is not read while the first block has no
/// magic.
fn copy<M: Memory>(pm: &Region<M>, geometry: &Geometry) -> Result<Flushed> {
    let mut block = [0u8; BLOCK_BYTES as usize];
    pm.read_bytes(0, &mut block)?;
    block[..8].copy_from_slice(&MAGIC.to_le_bytes());
    Ok(pm.stream_bytes(geometry.copy_block() * BLOCK_BYTES, &block)?)
}
