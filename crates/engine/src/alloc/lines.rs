//! Lines of slabs, for dentries: 1 to 5 contiguous cache lines within one block of 64.
//!
//! A shard hands out the lines of one slab at a time, whose free lines are a mask in its slot.
//! Lines that other threads free meanwhile gather in the slab's state; the shard takes them over
//! when its mask has no room left.
//!
//! Invariants
//! - A line is free in exactly one place: the slab's `free_lines`, or the mask of the shard that
//!   owns the slab (state 3). A slab changes under its lock, and all words of a change together.
//! - The word at the position of a dentry's seal (the second of a line) never verifies in a free
//!   line. A new slab is durably zeroed; a dentry's seal is durably zeroed before its lines are
//!   freed; and the rest of a name cannot look like a seal, which has a zero byte.
//! - A slab with free lines in state 1 (on no list) is listed again with the next line that is
//!   freed in it.

use super::{BlockRun, OWNED_PERMANENTLY, owned_by_slot};
use crate::components::Allocator;
use crate::death::may_die_here;
use crate::dram::{RetiredKind, SlabState};
use crate::error::{Error, Result};
use crate::lock::Patience;
use crate::redo::WordChange;
use crate::regions::Regions;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, BadOffset, LINE_BYTES, Memory};

/// The block is not a slab, or is a full one: a clean image does not distinguish full slabs from
/// other blocks.
pub(crate) const SLAB_NONE: u32 = 0;
/// A slab on no list: full, or not worth trying until more of it is freed.
pub(crate) const SLAB_FULL: u32 = 1;
/// On the list of a shard.
pub(crate) const SLAB_LISTED: u32 = 2;
/// A shard hands out its lines.
pub(crate) const SLAB_OWNED: u32 = 3;

/// Lines of the longest dentry.
const LINES_MAX: u64 = 5;
/// Slabs of the shard's list that are tried before a new block is taken.
const TRIES: usize = 4;
/// A shard with more slabs than this on its list turns wholly free ones back into free blocks. It
/// keeps fewer, because a newly taken block must be zeroed first.
const LISTED_SLABS_MAX: u32 = 256;
/// A slab with fewer free lines than this, in pieces that did not fit, is not tried again until
/// more of it is freed.
const REVISIT_FREE_LINES: u32 = 8;

/// The mask of `lines` lines from line `first` on.
pub(crate) fn line_mask(first: u64, lines: u64) -> u64 {
    (u64::MAX >> (64 - lines)) << first
}

/// The first of `lines` contiguous lines that are set in `mask`.
fn find_run(mask: u64, lines: u64) -> Option<u64> {
    let mut starts = mask;
    for shift in 1..lines {
        starts &= mask >> shift;
    }
    (starts != 0).then_some(starts.trailing_zeros() as u64)
}

/// Reports lines that were freed twice: a damaged image may have names in lines that it calls free.
fn freed_once(block: u64, twice: u64) -> Result<()> {
    if twice == 0 { Ok(()) } else { Err(BadOffset { offset: block * BLOCK_BYTES, length: BLOCK_BYTES }.into()) }
}

impl<M: Memory> Regions<M> {
    /// Whether `lines` lines at `offset` lie in one block of the data area.
    pub(crate) fn lines_fit(&self, offset: u64, lines: u64) -> bool {
        let block = offset / BLOCK_BYTES;
        offset.is_multiple_of(LINE_BYTES)
            && (1..=LINES_MAX).contains(&lines)
            && offset % BLOCK_BYTES + lines * LINE_BYTES <= BLOCK_BYTES
            && self.block_map().is_data(BlockRun { first: block, count: 1 })
    }
}

impl<'f, M: Memory> Allocator<'_, 'f, M> {
    /// The offset of `lines` (1 to 5) contiguous free cache lines within one block. Their `seal`
    /// words never verify.
    pub(crate) fn allocate_lines(self, lines: u64) -> Result<u64> {
        if !(1..=LINES_MAX).contains(&lines) {
            return Err(Error::Invalid);
        }
        if let Some(offset) = self.lines_of_mask(lines) {
            return Ok(offset);
        }
        match self.owner.leaving_spare(|| self.find_slab(lines)) {
            Ok(()) => self.lines_of_mask(lines).ok_or(Error::NoSpace),
            Err(Error::NoSpace) => match self.lines_of_any_shard(lines) {
                Err(Error::NoSpace) if self.owner.spare_left() == 0 => {
                    self.new_slab()?;
                    self.lines_of_mask(lines).ok_or(Error::NoSpace)
                }
                found => found,
            },
            Err(error) => Err(error),
        }
    }

    /// When no block is left for another slab: free lines in a slab of any shard. Only those in the
    /// masks of other shards stay reserved.
    #[cold]
    fn lines_of_any_shard(self, lines: u64) -> Result<u64> {
        for index in 0..self.owner.fs.header()?.slots_high.load(Acquire) as u32 {
            let slot = self.owner.fs.dram.slot(index)?;
            let mut block = slot.slab.load(Relaxed);
            // The list may change meanwhile and then lead into another list, which serves as well.
            let mut next = slot.slab_list.load(Relaxed);
            for _ in 0..=slot.slab_count.load(Relaxed) {
                if block != 0
                    && let Some(offset) = self.lines_of_slab(block, lines)?
                {
                    return Ok(offset);
                }
                block = next as u64;
                next = self.owner.fs.dram.slab(block)?.next.load(Relaxed);
            }
        }
        Err(Error::NoSpace)
    }

    /// Takes lines that were freed in a slab of any shard.
    fn lines_of_slab(self, block: u64, lines: u64) -> Result<Option<u64>> {
        let slab = self.owner.fs.dram.slab(block)?;
        let Some(_held) = self.owner.lock_with(Patience::Long, &slab.lock, &slab.waiters)? else { return Ok(None) };
        let free = slab.free_lines.load(Relaxed);
        let Some(line) = find_run(free, lines) else { return Ok(None) };
        let offset = block * BLOCK_BYTES + line * LINE_BYTES;
        let in_flight = self.owner.slot.in_flight.dentries.iter().find(|word| word.load(Relaxed) == 0);
        self.owner.change_together([
            WordChange::Wide(&slab.free_lines, free & !line_mask(line, lines)),
            in_flight.map_or(WordChange::Nothing, |word| WordChange::Wide(word, offset | lines)),
        ]);
        Ok(Some(offset))
    }

    /// Gives back lines of a dentry at once. The caller has made the dentry's seal durably zero.
    pub(crate) fn free_lines(self, offset: u64, lines: u64) -> Result<()> {
        if !self.owner.fs.lines_fit(offset, lines) {
            return Err(BadOffset { offset, length: lines * LINE_BYTES }.into());
        }
        let in_flight = self.owner.slot.in_flight.dentries.iter().find(|word| word.load(Relaxed) == offset | lines);
        let with = in_flight.map_or(WordChange::Nothing, |word| WordChange::Wide(word, 0));
        self.free_line_mask(offset / BLOCK_BYTES, line_mask(offset % BLOCK_BYTES / LINE_BYTES, lines), with)
    }

    /// Gives back the lines of a mask in one block, which were checked to be lines of dentries,
    /// together with another change that records it.
    pub(crate) fn free_line_mask(self, block: u64, mask: u64, with: WordChange<'_>) -> Result<()> {
        if self.owner.slot.slab.load(Relaxed) == block {
            let own = self.owner.slot.slab_lines.load(Relaxed);
            self.owner.change_together([WordChange::Wide(&self.owner.slot.slab_lines, own | mask), with]);
            return freed_once(block, own & mask);
        }
        let slab = self.owner.fs.dram.slab(block)?;
        let Some(_held) = self.owner.lock_briefly(&slab.lock, &slab.waiters)? else {
            return self.owner.recycler().retire_together(RetiredKind::Lines, (block, mask), with);
        };
        let others = slab.free_lines.load(Relaxed);
        let free = WordChange::Wide(&slab.free_lines, others | mask);
        let state = slab.state.load(Relaxed);
        if state != SLAB_FULL && state != SLAB_NONE {
            self.owner.change_together([free, with]);
            return freed_once(block, others & mask);
        }
        let [a, b, c, d] = self.list_changes(block, slab)?;
        self.owner.change_together([free, WordChange::Narrow(&slab.state, SLAB_LISTED), a, b, c, d, with]);
        freed_once(block, others & mask)
    }

    /// Returns the shard's slabs to where all threads find them, and wholly free slabs to the
    /// blocks. For shards without a thread.
    pub(crate) fn give_back_lines(self) -> Result<()> {
        self.put_back_slab()?;
        for _ in 0..self.owner.slot.slab_count.load(Relaxed) {
            if !self.pop_slab()? {
                break;
            }
            if self.owner.slot.slab_lines.load(Relaxed) == u64::MAX { self.free_slab()? } else { self.put_back_slab()? }
        }
        Ok(())
    }

    fn lines_of_mask(self, lines: u64) -> Option<u64> {
        let free = self.owner.slot.slab_lines.load(Relaxed);
        let line = find_run(free, lines)?;
        let rest = free & !line_mask(line, lines);
        let slab = self.owner.slot.slab.load(Relaxed) * BLOCK_BYTES;
        let offset = slab + line * LINE_BYTES;
        if let Some(in_flight) = self.owner.slot.in_flight.dentries.iter().find(|word| word.load(Relaxed) == 0) {
            in_flight.store(offset | lines, Relaxed);
        }
        may_die_here();
        self.owner.slot.slab_lines.store(rest, Release);
        may_die_here();
        // The next name will want the next free line.
        self.owner.fs.pm.prefetch(slab + rest.trailing_zeros() as u64 % 64 * LINE_BYTES);
        Some(offset)
    }

    /// As the reaper of this slot: whether lines that its owner wanted were not taken, or were put
    /// back.
    pub(crate) fn are_in_mask(self, offset: u64, lines: u64) -> bool {
        let mask = line_mask(offset % BLOCK_BYTES / LINE_BYTES, lines);
        self.owner.slot.slab.load(Relaxed) == offset / BLOCK_BYTES
            && self.owner.slot.slab_lines.load(Relaxed) & mask != 0
    }

    /// Gives the shard a slab with room for `lines`: lines freed in the present one, one of the
    /// list, or a new block.
    fn find_slab(self, lines: u64) -> Result<()> {
        if self.owner.slot.slab.load(Relaxed) != 0 {
            self.take_freed()?;
            if find_run(self.owner.slot.slab_lines.load(Relaxed), lines).is_some() {
                return Ok(());
            }
            self.put_back_slab()?;
        }
        for _ in 0..TRIES {
            if !self.pop_slab()? {
                break;
            }
            let free = self.owner.slot.slab_lines.load(Relaxed);
            if free == u64::MAX && self.owner.slot.slab_count.load(Relaxed) > LISTED_SLABS_MAX {
                self.free_slab()?;
                continue;
            }
            if find_run(free, lines).is_some() {
                return Ok(());
            }
            self.put_back_slab()?;
        }
        self.new_slab()
    }

    /// Takes over the lines that other threads freed in the shard's slab.
    fn take_freed(self) -> Result<()> {
        let slab = self.owner.fs.dram.slab(self.owner.slot.slab.load(Relaxed))?;
        let Some(_held) = self.owner.lock_briefly(&slab.lock, &slab.waiters)? else { return Ok(()) };
        let free = self.owner.slot.slab_lines.load(Relaxed) | slab.free_lines.load(Relaxed);
        self.owner.change_together([
            WordChange::Wide(&slab.free_lines, 0),
            WordChange::Wide(&self.owner.slot.slab_lines, free),
        ]);
        Ok(())
    }

    /// Takes a block for a slab and zeroes it first: a crash may leave the slot that names a dentry
    /// without the dentry, and then no previous content may pass for one.
    fn new_slab(self) -> Result<()> {
        let block = self.owner.as_owner(owned_by_slot(self.owner.ticket()), || self.allocate_blocks(1))?.first;
        let pm = &self.owner.fs.pm;
        pm.fence(pm.stream_zeros(block * BLOCK_BYTES, BLOCK_BYTES)?);
        let slab = self.owner.fs.dram.slab(block)?;
        self.owner.change_together([
            WordChange::Wide(&slab.free_lines, 0),
            WordChange::Narrow(&slab.state, SLAB_OWNED),
            WordChange::Wide(self.owner.fs.dram.block_owner(block)?, OWNED_PERMANENTLY),
            WordChange::Wide(&self.owner.slot.slab_lines, u64::MAX),
            WordChange::Wide(&self.owner.slot.slab, block),
        ]);
        Ok(())
    }

    /// Releases the shard's slab: to the end of its list if it has lines worth another try.
    fn put_back_slab(self) -> Result<()> {
        let block = self.owner.slot.slab.load(Relaxed);
        if block == 0 {
            return Ok(());
        }
        let slab = self.owner.fs.dram.slab(block)?;
        let Some(_held) = self.owner.lock_briefly(&slab.lock, &slab.waiters)? else {
            return self.abandon_slab(block, slab);
        };
        let free = slab.free_lines.load(Relaxed) | self.owner.slot.slab_lines.load(Relaxed);
        let worth = free.count_ones() >= REVISIT_FREE_LINES;
        let [a, b, c, d] = if worth { self.list_changes(block, slab)? } else { [WordChange::Nothing; 4] };
        self.owner.change_together([
            WordChange::Wide(&slab.free_lines, free),
            WordChange::Narrow(&slab.state, if worth { SLAB_LISTED } else { SLAB_FULL }),
            WordChange::Wide(&self.owner.slot.slab, 0),
            WordChange::Wide(&self.owner.slot.slab_lines, 0),
            a,
            b,
            c,
            d,
        ]);
        Ok(())
    }

    /// Releases the shard's slab, whose lock a stopped thread holds: its lines wait in the queue. A
    /// thread with the lock that frees lines leaves the state of an owned slab alone.
    #[cold]
    fn abandon_slab(self, block: u64, slab: &SlabState) -> Result<()> {
        let lines = self.owner.slot.slab_lines.load(Relaxed);
        self.owner.change_together([
            WordChange::Narrow(&slab.state, SLAB_FULL),
            WordChange::Wide(&self.owner.slot.slab, 0),
            WordChange::Wide(&self.owner.slot.slab_lines, 0),
            WordChange::Wide(&self.owner.slot.in_flight.lines[0], block),
            WordChange::Wide(&self.owner.slot.in_flight.lines[1], lines),
        ]);
        let in_flight = &self.owner.slot.in_flight.lines[1];
        self.owner.recycler().retire_together(RetiredKind::Lines, (block, lines), WordChange::Wide(in_flight, 0))
    }

    /// Turns the shard's slab, which has no line in use, back into a free block.
    fn free_slab(self) -> Result<()> {
        let block = self.owner.slot.slab.load(Relaxed);
        let slab = self.owner.fs.dram.slab(block)?;
        self.owner.change_together([
            WordChange::Narrow(&slab.state, SLAB_NONE),
            WordChange::Wide(self.owner.fs.dram.block_owner(block)?, owned_by_slot(self.owner.ticket())),
            WordChange::Wide(&self.owner.slot.slab, 0),
            WordChange::Wide(&self.owner.slot.slab_lines, 0),
        ]);
        self.free_blocks(BlockRun { first: block, count: 1 })
    }

    /// Changes that append a slab to the shard's list. The oldest come first, so that a slab that
    /// does not fit does not block the list.
    fn list_changes<'c>(&'c self, block: u64, slab: &'c SlabState) -> Result<[WordChange<'c>; 4]> {
        let count = self.owner.slot.slab_count.load(Relaxed);
        let before = match count {
            0 => &self.owner.slot.slab_list,
            _ => &self.owner.fs.dram.slab(self.owner.slot.slab_tail.load(Relaxed) as u64)?.next,
        };
        Ok([
            WordChange::Narrow(&slab.next, 0),
            WordChange::Narrow(before, block as u32),
            WordChange::Narrow(&self.owner.slot.slab_tail, block as u32),
            WordChange::Narrow(&self.owner.slot.slab_count, count + 1),
        ])
    }

    /// Appends a slab in state `SLAB_LISTED` to the shard's list, while the region is being built.
    pub(crate) fn push_slab(self, block: u64, slab: &SlabState) -> Result<()> {
        let changes = self.list_changes(block, slab)?;
        self.owner.change_together(changes);
        Ok(())
    }

    /// Makes the first slab of the shard's list its current one. Returns whether there was one.
    fn pop_slab(self) -> Result<bool> {
        let count = self.owner.slot.slab_count.load(Relaxed);
        if count == 0 {
            return Ok(false);
        }
        let block = self.owner.slot.slab_list.load(Relaxed) as u64;
        let slab = self.owner.fs.dram.slab(block)?;
        let Some(_held) = self.owner.lock_briefly(&slab.lock, &slab.waiters)? else { return Ok(false) };
        self.owner.change_together([
            WordChange::Narrow(&self.owner.slot.slab_list, slab.next.load(Relaxed)),
            WordChange::Narrow(&self.owner.slot.slab_count, count - 1),
            WordChange::Narrow(&slab.state, SLAB_OWNED),
            WordChange::Wide(&self.owner.slot.slab_lines, slab.free_lines.load(Relaxed)),
            WordChange::Wide(&slab.free_lines, 0),
            WordChange::Wide(&self.owner.slot.slab, block),
        ]);
        Ok(true)
    }
}
