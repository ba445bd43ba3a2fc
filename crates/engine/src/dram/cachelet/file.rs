//! The words of a cachelet that mean something else for directories, as a file's.

use super::Cachelet;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::Relaxed;

/// Bit of [`FileView::mapped`]: programs have it mapped.
pub const MAPPED: u32 = 1;

/// Bit of [`FileView::mapped`]: blocks behind its end stay in place for the sake of
/// mappings, and are freed with the last of them.
pub const MAPPED_KEPT: u32 = 2;

/// Bit of [`FileView::mapped`]: its modification time was set since it was mapped, so
/// that earlier stores do not count.
pub const MAPPED_TIMES_SET: u32 = 4;

/// Bit of [`FileView::mapped`]: a program may have stored into it through a mapping.
pub const MAPPED_STORES: u32 = 8;

/// A cachelet of anything but a directory.
#[derive(Clone, Copy)]
pub struct FileView<'c>(pub(super) &'c Cachelet);

impl<'c> FileView<'c> {
    /// Length in bytes.
    #[inline(always)]
    pub fn size_bytes(self) -> &'c AtomicU64 {
        &self.0.size_or_renames
    }

    /// [`MAPPED`] (then writes go in place), [`MAPPED_KEPT`], [`MAPPED_TIMES_SET`],
    /// [`MAPPED_STORES`].
    #[inline(always)]
    pub fn mapped(self) -> &'c AtomicU32 {
        &self.0.marks
    }

    /// Root of the block map, as in the property entry.
    #[inline(always)]
    pub fn root(self) -> &'c AtomicU64 {
        &self.0.root_or_tail
    }

    /// Blocks of the body.
    #[inline(always)]
    pub fn blocks(self) -> &'c AtomicU64 {
        &self.0.blocks_or_counts
    }

    /// Device number; zero if it is not a device.
    #[inline(always)]
    pub fn device(self) -> &'c AtomicU32 {
        &self.0.device_or_count
    }

    /// Sets all words, of a cachelet that no other thread can see.
    #[inline(always)]
    pub fn fill(self, size_bytes: u64, root: u64, blocks: u64, device: u32) {
        self.size_bytes().store(size_bytes, Relaxed);
        self.root().store(root, Relaxed);
        self.blocks().store(blocks, Relaxed);
        self.device().store(device, Relaxed);
        self.mapped().store(0, Relaxed);
        self.0.directory.store(0, Relaxed);
    }
}
