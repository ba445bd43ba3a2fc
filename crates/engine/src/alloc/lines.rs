//! Lines of slabs, for dentries: 1 to 5 cache lines in a row within one block of 64.
//!
//! A shard hands out the lines of one slab at a time, whose free lines are a mask in its slot. Lines that others free meanwhile gather in the
//! slab's state and are taken over when the mask has no room left.
//!
//! Invariants
//! - A line is free in exactly one place: the slab's `free_lines`, or the mask of the shard that owns the slab (state 3).
//! - The word where a dentry's seal is (the second of a line) never verifies in a free line: a new slab is durably zeroed, whoever frees a dentry
//!   zeroed its seal durably, and the rest of a name cannot look like a seal, which has a zero byte.
//! - A slab with free lines that is in state 1 (on no list) comes back with the next line that is freed in it.

use super::BlockRun;
use crate::dram::SlabState;
use crate::error::{Error, Result};
use crate::fs::{Fs, Thread};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use pmem::{BLOCK_BYTES, BadOffset, LINE_BYTES, Memory};

/// The block is no slab; or, since a clean image does not tell full slabs from other blocks, a full one.
pub(crate) const SLAB_NONE: u32 = 0;
/// A slab on no list: full, or not worth looking at until more of it is freed.
pub(crate) const SLAB_FULL: u32 = 1;
/// On the list of a shard.
pub(crate) const SLAB_LISTED: u32 = 2;
/// A shard hands out its lines.
pub(crate) const SLAB_OWNED: u32 = 3;

/// The lines of the longest dentry.
const LINES_MAX: u64 = 5;
/// Slabs of the shard's list that are tried before a new block is taken.
const TRIES: usize = 4;
/// A shard with more slabs than this on its list gives wholly free ones back to the blocks. Fewer it keeps: taken anew, a block must be zeroed first.
const KEPT_SLABS: u32 = 256;
/// A slab with fewer free lines than this, in pieces that did not fit, is not tried again until more of it is freed.
const WORTH_LINES: u32 = 8;

/// The mask of `lines` lines from line `first` on.
pub(crate) fn line_mask(first: u64, lines: u64) -> u64 {
    (u64::MAX >> (64 - lines)) << first
}

/// The first of `lines` lines in a row that are set in `mask`.
fn find_run(mask: u64, lines: u64) -> Option<u64> {
    let mut starts = mask;
    for shift in 1..lines {
        starts &= mask >> shift;
    }
    (starts != 0).then_some(starts.trailing_zeros() as u64)
}

impl<M: Memory> Fs<M> {
    /// Whether `lines` lines at `offset` lie in one block that is handed out.
    pub(crate) fn lines_fit(&self, offset: u64, lines: u64) -> bool {
        let block = offset / BLOCK_BYTES;
        offset.is_multiple_of(LINE_BYTES)
            && (1..=LINES_MAX).contains(&lines)
            && offset % BLOCK_BYTES + lines * LINE_BYTES <= BLOCK_BYTES
            && self.is_data(BlockRun { first: block, count: 1 })
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// The offset of `lines` (1 to 5) free cache lines in a row within one block. Their `seal` words never verify.
    pub(crate) fn allocate_lines(&self, lines: u64) -> Result<u64> {
        if !(1..=LINES_MAX).contains(&lines) {
            return Err(Error::Invalid);
        }
        if let Some(offset) = self.lines_of_mask(lines) {
            return Ok(offset);
        }
        self.find_slab(lines)?;
        self.lines_of_mask(lines).ok_or(Error::NoSpace)
    }

    /// Gives lines back at once; the caller made the dentry's seal durably zero.
    pub(crate) fn free_lines(&self, offset: u64, lines: u64) -> Result<()> {
        if !self.fs.lines_fit(offset, lines) {
            return Err(BadOffset { offset, length: lines * LINE_BYTES }.into());
        }
        self.free_line_mask(offset / BLOCK_BYTES, line_mask(offset % BLOCK_BYTES / LINE_BYTES, lines))
    }

    /// Gives back the lines of a mask in one block, which were checked to be lines of dentries.
    pub(crate) fn free_line_mask(&self, block: u64, mask: u64) -> Result<()> {
        if self.slot.slab.load(Relaxed) == block {
            let own = self.slot.slab_lines.load(Relaxed);
            debug_assert!(own & mask == 0, "lines {mask:#x} of block {block} freed twice");
            self.slot.slab_lines.store(own | mask, Relaxed);
            return Ok(());
        }
        let slab = self.fs.dram.slab(block)?;
        let others = slab.free_lines.fetch_or(mask, SeqCst);
        debug_assert!(others & mask == 0, "lines {mask:#x} of block {block} freed twice");
        self.list_if_full(block, slab)
    }

    /// Gives what the shard holds of slabs back to where everybody finds it, wholly free slabs to the blocks. For shards without a thread.
    pub(crate) fn give_back_lines(&self) -> Result<()> {
        self.put_back_slab()?;
        for _ in 0..self.slot.slab_count.load(Relaxed) {
            let Some((block, slab)) = self.pop_slab()? else { break };
            if slab.free_lines.load(Acquire) == u64::MAX {
                self.free_slab(block, slab)?;
            } else {
                slab.state.store(SLAB_LISTED, Release);
                self.push_slab(block, slab)?;
            }
        }
        Ok(())
    }

    fn lines_of_mask(&self, lines: u64) -> Option<u64> {
        let free = self.slot.slab_lines.load(Relaxed);
        let line = find_run(free, lines)?;
        let rest = free & !line_mask(line, lines);
        self.slot.slab_lines.store(rest, Relaxed);
        let slab = self.slot.slab.load(Relaxed) * BLOCK_BYTES;
        // The next name will want the next free line.
        self.fs.pm.prefetch(slab + rest.trailing_zeros() as u64 % 64 * LINE_BYTES);
        Some(slab + line * LINE_BYTES)
    }

    /// Makes a slab with room for `lines` the shard's: what others freed in the present one, one of the list, or a new block.
    fn find_slab(&self, lines: u64) -> Result<()> {
        let present = self.slot.slab.load(Relaxed);
        if present != 0 {
            let freed = self.fs.dram.slab(present)?.free_lines.swap(0, AcqRel);
            let free = self.slot.slab_lines.load(Relaxed) | freed;
            self.slot.slab_lines.store(free, Relaxed);
            if find_run(free, lines).is_some() {
                return Ok(());
            }
            self.put_back_slab()?;
        }
        for _ in 0..TRIES {
            let Some((block, slab)) = self.pop_slab()? else { break };
            let free = slab.free_lines.swap(0, AcqRel);
            if free == u64::MAX && self.slot.slab_count.load(Relaxed) > KEPT_SLABS {
                slab.free_lines.store(free, Relaxed);
                self.free_slab(block, slab)?;
                continue;
            }
            self.own_slab(block, free);
            if find_run(free, lines).is_some() {
                return Ok(());
            }
            self.put_back_slab()?;
        }
        self.new_slab()
    }

    /// Takes a block for a slab. It is zeroed first: a crash may leave the slot that names a dentry without the dentry, and then nothing that lay
    /// there may pass for one.
    fn new_slab(&self) -> Result<()> {
        let block = self.allocate_blocks(1)?.first;
        let pm = &self.fs.pm;
        pm.fence(pm.stream_zeros(block * BLOCK_BYTES, BLOCK_BYTES)?);
        let slab = self.fs.dram.slab(block)?;
        slab.free_lines.store(0, Relaxed);
        slab.state.store(SLAB_OWNED, Release);
        self.own_slab(block, u64::MAX);
        Ok(())
    }

    fn own_slab(&self, block: u64, free_lines: u64) {
        self.slot.slab_lines.store(free_lines, Relaxed);
        self.slot.slab.store(block, Relaxed);
    }

    /// Gives the shard's slab up: to the end of its list if it has lines worth another look.
    fn put_back_slab(&self) -> Result<()> {
        let block = self.slot.slab.load(Relaxed);
        if block == 0 {
            return Ok(());
        }
        let slab = self.fs.dram.slab(block)?;
        let rest = self.slot.slab_lines.load(Relaxed);
        self.slot.slab_lines.store(0, Relaxed);
        self.slot.slab.store(0, Relaxed);
        let free = slab.free_lines.fetch_or(rest, SeqCst) | rest;
        if free.count_ones() >= WORTH_LINES {
            slab.state.store(SLAB_LISTED, Release);
            return self.push_slab(block, slab);
        }
        slab.state.swap(SLAB_FULL, SeqCst);
        // Whoever freed a line before the swap saw a slab with an owner and left it to him. (Whoever comes after it lists it himself.)
        if slab.free_lines.load(SeqCst) != free {
            return self.list_if_full(block, slab);
        }
        Ok(())
    }

    /// Puts a slab that is on no list on the shard's.
    fn list_if_full(&self, block: u64, slab: &'f SlabState) -> Result<()> {
        let state = slab.state.load(SeqCst);
        let full = state == SLAB_FULL || state == SLAB_NONE;
        if full && slab.state.compare_exchange(state, SLAB_LISTED, SeqCst, Relaxed).is_ok() {
            self.push_slab(block, slab)?;
        }
        Ok(())
    }

    /// A slab that has no line in use is no slab any more.
    fn free_slab(&self, block: u64, slab: &SlabState) -> Result<()> {
        slab.free_lines.store(0, Relaxed);
        slab.state.store(SLAB_NONE, Release);
        self.free_blocks(BlockRun { first: block, count: 1 })
    }

    /// Appends a slab in state `SLAB_LISTED` to the shard's list: the oldest come first, so that none that does not fit stays in the way.
    pub(crate) fn push_slab(&self, block: u64, slab: &SlabState) -> Result<()> {
        let count = self.slot.slab_count.load(Relaxed);
        slab.next.store(0, Relaxed);
        if count == 0 {
            self.slot.slab_list.store(block as u32, Relaxed);
        } else {
            self.fs.dram.slab(self.slot.slab_tail.load(Relaxed) as u64)?.next.store(block as u32, Relaxed);
        }
        self.slot.slab_tail.store(block as u32, Relaxed);
        self.slot.slab_count.store(count + 1, Relaxed);
        Ok(())
    }

    fn pop_slab(&self) -> Result<Option<(u64, &'f SlabState)>> {
        let count = self.slot.slab_count.load(Relaxed);
        if count == 0 {
            return Ok(None);
        }
        let block = self.slot.slab_list.load(Relaxed) as u64;
        let slab = self.fs.dram.slab(block)?;
        self.slot.slab_list.store(slab.next.load(Relaxed), Relaxed);
        self.slot.slab_count.store(count - 1, Relaxed);
        slab.state.store(SLAB_OWNED, Release);
        Ok(Some((block, slab)))
    }
}
