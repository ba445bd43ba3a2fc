//! Growth of an image while processes use it.
//!
//! A thread that holds the lock of commits prepares the growth ([`Thread::begin_growth`]), makes
//! the image's file longer, and stores the description there by one write: the image has the new
//! size. Then the size in the DRAM region follows, and group after group of the new blocks becomes
//! free. Other threads go on meanwhile.
//!
//! The processes of an image on a disk have a working copy, and its commits a journal that moves.
//! The layer above makes the image in the file larger first, and then this one adopts the size
//! ([`Thread::adopt_size`]).
//!
//! Invariants
//! - The header names the wanted size from before the description changes until all is done. So a
//!   thread that takes the lock after a death finds it, and the description decides: the growth is
//!   completed or forgotten. Threads do so at the latest when blocks are short, when a process
//!   attaches by the path of the image, and before the last detach.
//! - The bits of blocks behind [`data_opened`](crate::dram::DramHeader::data_opened) are all set.
//!   A group gets its free blocks under its lock, together with that word: no death makes a block
//!   free twice.
//! - Memory of the tables and bytes of the file are there before the size says so.
//! - What the new data area takes of the old image, its copy of the superblock and its block map,
//!   becomes free last.
//!
//! Decision: docs/decisions/images.md, "Images grow while in use".

use super::description::{DESCRIPTION_BYTES, DescriptionChange, superblock_with};
use super::ready_header;
use crate::components::Allocator;
use crate::death::{dead, may_die_here};
use crate::dram::{GROUP_BLOCKS, Group};
use crate::error::{Error, Result};
use crate::format::Geometry;
use crate::fs::{Fs, Thread};
use crate::lock::CommitGuard;
use crate::redo::WordChange;
use crate::size::{bytes_of, geometry_with, size_word};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Direct, Memory, Region};

/// Why an image does not grow. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrowthRefusal {
    /// The wanted size gives files no block more: it must be larger than this.
    TooSmall {
        /// Bytes.
        now_bytes: u64,
    },
    /// The processes have no more addresses for the image.
    BeyondCapacity {
        /// Bytes that the image can have.
        most_bytes: u64,
        /// Whether a process has fewer addresses than others.
        is_limited: bool,
    },
    /// Another reason.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for GrowthRefusal {
    fn from(error: E) -> GrowthRefusal {
        GrowthRefusal::Failed(error.into())
    }
}

/// A growth that is prepared. When it is dropped, it is completed if the image's description has
/// the new size, and forgotten otherwise.
pub struct Growth<'t, 'f, M: Memory> {
    thread: &'t Thread<'f, M>,
    geometry: Geometry,
    _held: CommitGuard<'f>,
}

impl<M: Memory> Growth<'_, '_, M> {
    /// The positions of the areas then.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The superblock of the image then: see [`superblock_with`].
    pub fn superblock(&self) -> Result<[u8; BLOCK_BYTES as usize]> {
        self.thread.superblock_of(self.geometry)
    }
}

impl<M: Memory> Drop for Growth<'_, '_, M> {
    fn drop(&mut self) {
        if dead() {
            return;
        }
        // An error leaves it to the next thread that looks.
        let _ = self.thread.allocator().settle_growth();
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Prepares the image's growth to `bytes` bytes.
    pub fn begin_growth(&self, bytes: u64) -> core::result::Result<Growth<'_, 'f, M>, GrowthRefusal> {
        let held = self.lock_commits()?;
        let geometry = self.prepare_growth(&held, bytes)?;
        self.fs.header()?.image_size_wanted.store(size_word(&geometry), Release);
        may_die_here();
        Ok(Growth { thread: self, geometry, _held: held })
    }

    /// Whether the image can have `bytes` bytes: the positions of its areas then. The tables have
    /// memory for it.
    pub fn prepare_growth(&self, _held: &CommitGuard<'_>, bytes: u64) -> core::result::Result<Geometry, GrowthRefusal> {
        self.fs.writable()?;
        let (header, before) = (self.fs.header()?, self.fs.geometry());
        let capacity_bytes = header.capacity_blocks.load(Relaxed) * BLOCK_BYTES;
        let most_bytes = self.fs.image_bytes_max().min(capacity_bytes);
        if bytes > most_bytes {
            return Err(GrowthRefusal::BeyondCapacity { most_bytes, is_limited: most_bytes < capacity_bytes });
        }
        let now_bytes = before.blocks * BLOCK_BYTES;
        let wanted = before.with_length(bytes).filter(|wanted| wanted.data_end() > before.data_end());
        let Some(geometry) = wanted else { return Err(GrowthRefusal::TooSmall { now_bytes }) };
        self.fs.prepare_groups(geometry.blocks.div_ceil(GROUP_BLOCKS))?;
        Ok(geometry)
    }

    /// The superblock of the image with that geometry: see [`superblock_with`].
    pub fn superblock_of(&self, geometry: Geometry) -> Result<[u8; BLOCK_BYTES as usize]> {
        let change = DescriptionChange { geometry: Some(geometry), ..DescriptionChange::default() };
        superblock_with(&self.fs.pm, &change)
    }

    /// Gives a working copy the size that its image has on the disk already. After a death another
    /// thread repeats it. The block map of that size is in the memory.
    pub fn adopt_size(&self, _held: &CommitGuard<'_>, bytes: u64) -> Result<()> {
        let (fs, header) = (self.fs, self.fs.header()?);
        let geometry = fs.geometry().with_length(bytes).ok_or(Error::Invalid)?;
        if bytes > header.capacity_blocks.load(Relaxed) * BLOCK_BYTES {
            return Err(Error::Invalid);
        }
        if fs.image_bytes() < bytes {
            fs.prepare_groups(geometry.blocks.div_ceil(GROUP_BLOCKS))?;
            header.image_size_wanted.store(size_word(&geometry), Release);
            may_die_here();
        }
        let block = self.superblock_of(geometry)?;
        fs.pm.persist(fs.pm.write_bytes(0, &block[..DESCRIPTION_BYTES])?);
        may_die_here();
        self.allocator().settle_growth()?;
        // It may have got a feature since the image on the disk has its copy.
        fs.pm.persist(fs.pm.write_bytes(geometry.copy_block() * BLOCK_BYTES, &block)?);
        if fs.image_bytes() == bytes { Ok(()) } else { Err(Error::Invalid) }
    }
}

/// The bits of word `number` that stand for the blocks from `from` to `to`.
fn bits_of(number: u64, from: u64, to: u64) -> u64 {
    let first = number * 64;
    let (start, end) = (from.clamp(first, first + 64) - first, to.clamp(first, first + 64) - first);
    if start == end { 0 } else { u64::MAX << start & u64::MAX >> (64 - end) }
}

impl<M: Memory> Fs<M> {
    /// Gives the groups up to number `groups` a state, in which no block is free.
    fn prepare_groups(&self, groups: u64) -> Result<()> {
        let (layout, before) = (&self.dram.layout, self.groups());
        let more = groups.saturating_sub(before);
        self.provider().provide(layout.block_bits + before * GROUP_BLOCKS / 8, more * GROUP_BLOCKS / 8)?;
        self.provider()
            .provide(layout.groups + before * size_of::<Group>() as u64, more * size_of::<Group>() as u64)?;
        for word in before * (GROUP_BLOCKS / 64)..groups * (GROUP_BLOCKS / 64) {
            self.dram.block_word(word)?.store(u64::MAX, Relaxed);
        }
        Ok(())
    }

    /// Completes or forgets a growth whose thread has died.
    pub fn recover_growth(&self) -> Result<()> {
        if self.header()?.image_size_wanted.load(Acquire) != 0 {
            drop(self.enter()?.lock_commits()?);
        }
        Ok(())
    }

    /// Keeps the image from growing beyond what this process has mapped. `false`: it has grown
    /// beyond that already.
    pub fn limit_growth(&self) -> Result<bool> {
        let reach = self.pm.reach();
        if reach >= self.header()?.capacity_blocks.load(Relaxed) * BLOCK_BYTES {
            return Ok(true);
        }
        let thread = self.enter()?;
        let _held = thread.lock_commits()?;
        if self.image_bytes() > reach {
            return Ok(false);
        }
        self.header()?.image_bytes_max.fetch_min(reach, AcqRel);
        Ok(true)
    }
}

impl<'f, M: Memory> Allocator<'_, 'f, M> {
    /// Completes or forgets a growth that has started. The caller holds the lock of commits.
    /// Returns whether the image has grown.
    pub(crate) fn settle_growth(self) -> Result<bool> {
        let header = self.owner.fs.header()?;
        let wanted = header.image_size_wanted.load(Acquire);
        if wanted == 0 {
            return Ok(false);
        }
        let superblock = self.owner.fs.superblock()?;
        let is_described = superblock.length.load() == bytes_of(wanted) && superblock.description_verifies();
        if is_described && let Some(geometry) = geometry_with(self.owner.fs.geometry.attached(), wanted) {
            header.image_size.store(wanted, Release);
            may_die_here();
            self.open_groups(&geometry)?;
        }
        may_die_here();
        header.image_size_wanted.store(0, Release);
        Ok(is_described)
    }

    /// Makes the new blocks free.
    fn open_groups(self, geometry: &Geometry) -> Result<()> {
        const WORDS: u64 = GROUP_BLOCKS / 64;
        let (header, dram) = (self.owner.fs.header()?, &self.owner.fs.dram);
        loop {
            let from = header.data_opened.load(Acquire);
            if from >= geometry.data_end() {
                return Ok(());
            }
            let index = from / GROUP_BLOCKS;
            let to = geometry.data_end().min((index + 1) * GROUP_BLOCKS);
            let group: &Group = dram.group(index)?;
            let _held = self.owner.lock(&group.lock, &group.waiters)?;
            // The memory was provided up to the old end.
            self.owner.fs.provider().forget_provided(group, (from % GROUP_BLOCKS, to - from));
            let (mut changes, mut free) = ([WordChange::Nothing; WORDS as usize + 2], 0);
            for (change, number) in changes.iter_mut().zip(index * WORDS..(index + 1) * WORDS) {
                let word = dram.block_word(number)?;
                let bits = word.load(Relaxed) & !bits_of(number, from, to);
                free += bits.count_zeros();
                *change = WordChange::Wide(word, bits);
            }
            changes[WORDS as usize] = WordChange::Wide(&header.data_opened, to);
            changes[WORDS as usize + 1] = WordChange::Narrow(&group.free, free);
            self.owner.change_together(changes);
        }
    }

    /// When no block is free: whether a growth whose thread has died supplies some.
    #[cold]
    pub(crate) fn has_grown(self) -> Result<bool> {
        let header = self.owner.fs.header()?;
        if header.image_size_wanted.load(Acquire) == 0 {
            return Ok(false);
        }
        // A living thread will complete it, and need not be waited for.
        let Some(_held) = self.owner.lock_briefly(&header.commit_lock, &header.commit_waiters)? else {
            return Ok(false);
        };
        self.settle_growth()
    }
}

/// What the header of a region says about the size of its image, for a process that maps the region
/// and has not mapped the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSize {
    /// Bytes of the image now.
    pub bytes: u64,
    /// Bytes that it can get while it is in use.
    pub capacity_bytes: u64,
}

/// See [`ImageSize`].
pub fn image_size(dram: &Region<Direct>) -> Result<ImageSize> {
    let header = ready_header(dram)?;
    Ok(ImageSize {
        bytes: bytes_of(header.image_size.load(Acquire)),
        capacity_bytes: header.capacity_blocks.load(Relaxed).saturating_mul(BLOCK_BYTES),
    })
}
