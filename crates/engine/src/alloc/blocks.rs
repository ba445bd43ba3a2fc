//! Blocks.
//!
//! A bit per block shows whether it is in use. Blocks come in groups of 512. A shard claims a group
//! and allocates inside it, which keeps files contiguous and shards apart.
//!
//! Each block in use has an owner word, for reapers of dead threads. It names the inode whose body,
//! log or attributes contain the block, or the thread slot that holds it in transit. Blocks in use
//! since before the region was built have none (zero); they get one before their last pointer is
//! removed ([`BlockMap::mark_owner`]). Blocks with several pointers have no owner: those that a
//! death leaves behind are found by the next scan only.
//!
//! Invariants
//! - Bits and count of a group change under its lock; the owner word of a block is set before its
//!   bit. A group whose lock's owner died is recovered by counting. Owning a group is only a
//!   preference: when blocks are short, any thread allocates from any group.
//! - Consider a block whose owner word names an inode, while nothing of that inode leads to the
//!   block. It is about to get its first pointer or has lost its last, by a thread that holds the
//!   inode's lock (or makes or recycles the inode). The same holds for a thread slot and its queue.
//!   So if that thread is dead, the block is free ([`Allocator::sweep_blocks`]).
//!
//! A shard takes groups that became half free before fresh ones, because their pages exist. Late
//! refills spread the image over fresh memory; early ones fragment files. *Reason:* with refills at
//! three quarters instead of half, varmail makes 501,000 instead of 612,000 operations a second,
//! fileserver 137,000 instead of 229,000. They take 638 instead of 483 MiB, and a large file among
//! small ones is written at 0.4 to 0.7 instead of 10 GB/s.
//!
//! Where four groups have no piece of 16 blocks, 8 are enough, and so on; a segment of inodes may
//! consist of single blocks, which a list block names. *Reason:* with every fourth block free, an
//! allocation of 8 blocks fell from 779 to 9.7 µs. A storm on an aged image ended with ENOSPC at 23
//! % free, and now uses all but 0.6 %.

use crate::components::{Allocator, BlockMap};
use crate::death::may_die_here;
use crate::dram::{GROUP_BLOCKS, Group, RetiredKind};
use crate::error::{Error, Result};
use crate::file::Blocks;
use crate::lock::Patience;
use crate::redo::WordChange;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use pmem::{Allocation, BLOCK_BYTES, BadOffset, ContentLoad, Layout, Memory, Unreachable};

/// Words of bits in a group.
const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// A shorter run is refused while the caller wants more and one of the next groups may have it, to
/// limit fragmentation of files.
const SHORT_RUN_BLOCKS: u64 = 16;
/// After this many groups half the run length is enough: where all free blocks are scattered, about
/// twenty groups are tried instead of all.
const GROUPS_TRIED: u64 = 4;

/// A group with this many free blocks again is the next to be claimed: its pages are already
/// allocated, unlike those of unused groups. A higher value wastes memory of an image in memory; a
/// lower one gives shorter runs to files that want long ones.
const REVISIT_FREE_BLOCKS: u32 = GROUP_BLOCKS as u32 / 2;
/// Blocks are scarce when fewer than this, and than this share of the image, are left. It is less
/// than a group, so that one look at a thread's own group usually shows that there are more.
const SCARCE_BLOCKS: u64 = GROUP_BLOCKS / 2;
const SCARCE_SHARE: u64 = 32;

/// Owner word of blocks of dentries and inodes.
pub(crate) const OWNED_PERMANENTLY: u64 = 1 << 61;
/// Owner word of blocks that several pointers name.
const OWNED_BY_MANY: u64 = OWNED_PERMANENTLY | 1;
/// In an owner word: a thread slot + 1, not an inode.
const OWNED_BY_SLOT: u64 = 1 << 63;
/// In an owner word while a reaper is at work: something leads to the block.
const REACHED: u64 = 1 << 62;

/// The owner word of blocks that thread slot `ticket - 1` holds in transit.
pub(crate) fn owned_by_slot(ticket: u32) -> u64 {
    OWNED_BY_SLOT | ticket as u64
}

/// The spare blocks of an image with that many blocks for files. Eight are enough for a rename into
/// another directory (lines for names, pages of two logs that are compacted) or a change of small
/// attributes; large attributes and many threads take more.
pub(crate) fn spare_blocks(blocks: u64) -> u64 {
    (blocks / 32).clamp(8, 64)
}

/// Contiguous blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRun {
    /// Number of the first block.
    pub first: u64,
    /// Number of blocks.
    pub count: u64,
}

/// A block that was allocated and that nothing on the image names yet.
#[derive(Debug)]
pub(crate) struct FreshBlock(BlockRun);

impl Allocation for FreshBlock {
    #[inline(always)]
    fn offset(&self) -> u64 {
        self.0.first * BLOCK_BYTES
    }
}

/// A copy of the free blocks of a group: a bit per block, set: free.
pub(crate) struct FreeMap([u64; GROUP_WORDS]);

impl FreeMap {
    /// The first block at or after `from` that is free (`wanted`) or used; `GROUP_BLOCKS` if there
    /// is none.
    pub(crate) fn next(&self, from: u64, wanted: bool) -> u64 {
        let mut at = from;
        while at < GROUP_BLOCKS {
            let word = self.0[(at / 64) as usize];
            let word = if wanted { word } else { !word } >> (at % 64);
            if word != 0 {
                return at + word.trailing_zeros() as u64;
            }
            at = (at / 64 + 1) * 64;
        }
        GROUP_BLOCKS
    }

    /// The first run of `wanted` free blocks, from `hint` on and then from the start; otherwise the
    /// longest run.
    fn run(&self, hint: u64, wanted: u64) -> Option<(u64, u64)> {
        let mut longest = (0, 0);
        for (from, end) in [(hint, GROUP_BLOCKS), (0, hint)] {
            let mut at = self.next(from, true);
            while at < end {
                let length = self.next(at, false) - at;
                if length >= wanted {
                    return Some((at, wanted));
                }
                if length > longest.1 {
                    longest = (at, length);
                }
                at = self.next(at + length, true);
            }
        }
        (longest.1 > 0).then_some(longest)
    }
}

/// Splits a run of blocks into pieces, one for each word of bits that it touches: word and mask.
fn pieces(run: BlockRun) -> impl Iterator<Item = (u64, u64)> {
    let end = run.first + run.count;
    let mut at = run.first;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, bit) = (at / 64, at % 64);
        let count = (64 - bit).min(end - at);
        at += count;
        Some((word, (u64::MAX >> (64 - count)) << bit))
    })
}

impl<'f, M: Memory> BlockMap<'f, M> {
    /// Number of blocks not in use; exact while no thread is inside.
    pub(crate) fn blocks_free(self) -> Result<u64> {
        let mut free = 0;
        for group in 0..self.groups() {
            free += self.dram.group(group)?.free.load(Relaxed) as u64;
        }
        Ok(free)
    }

    /// Whether all blocks of a run lie in the data area.
    pub(crate) fn is_data(self, run: BlockRun) -> bool {
        let Some(end) = run.first.checked_add(run.count) else { return false };
        run.first >= self.geometry.data_block && self.reaches(end)
    }

    fn provide_groups_of(self, run: BlockRun) -> Result<()> {
        let end = (run.first + run.count).div_ceil(GROUP_BLOCKS).min(self.groups());
        (run.first / GROUP_BLOCKS..end).try_for_each(|group| self.provider().provide_group(group))
    }

    /// Whether a block is in use.
    pub(crate) fn is_used(self, block: u64) -> bool {
        self.dram.block_word(block / 64).is_ok_and(|word| word.load(Relaxed) >> (block % 64) & 1 != 0)
    }

    /// While the region is being built: marks blocks as in use. Returns how many were marked
    /// already.
    pub(crate) fn mark_blocks(self, run: BlockRun) -> Result<u64> {
        let mut already = 0;
        self.provide_groups_of(run)?;
        for (word, mask) in pieces(run) {
            already += (self.dram.block_word(word)?.fetch_or(mask, AcqRel) & mask).count_ones() as u64;
        }
        Ok(already)
    }

    /// While the region is being built: marks blocks of a file's body; those already marked are
    /// shared.
    pub(crate) fn mark_body(self, run: BlockRun) -> Result<()> {
        self.provide_groups_of(run)?;
        for (word, mask) in pieces(run) {
            let mut shared = self.dram.block_word(word)?.fetch_or(mask, AcqRel) & mask;
            while shared != 0 {
                self.share_block(word * 64 + shared.trailing_zeros() as u64)?;
                shared &= shared - 1;
            }
        }
        Ok(())
    }

    /// While the region is being built: clears marks.
    pub(crate) fn unmark_blocks(self, run: BlockRun) -> Result<()> {
        for (word, mask) in pieces(run) {
            self.dram.block_word(word)?.fetch_and(!mask, AcqRel);
        }
        Ok(())
    }

    /// While the region is being built: marks what is never handed out: the fixed areas, at the
    /// end the superblock's copy, and the part of the last group beyond the image.
    pub(crate) fn mark_fixed_blocks(self) -> Result<()> {
        let end = self.geometry.attached().data_end();
        self.mark_blocks(BlockRun { first: 0, count: self.geometry.data_block })?;
        self.mark_blocks(BlockRun { first: end, count: self.groups() * GROUP_BLOCKS - end })?;
        Ok(())
    }

    /// Ends building the region: counts the free blocks of every group and returns their total.
    pub(crate) fn count_groups(self) -> Result<u64> {
        let mut total = 0;
        for group in 0..self.groups() {
            let mut free = 0;
            for word in 0..GROUP_WORDS as u64 {
                free += self.dram.block_word(group * GROUP_WORDS as u64 + word)?.load(Relaxed).count_zeros() as u64;
            }
            self.dram.group(group)?.free.store(free as u32, Relaxed);
            total += free;
        }
        Ok(total)
    }

    pub(crate) fn free_map(self, group: u64) -> Result<FreeMap> {
        let mut map = FreeMap([0; GROUP_WORDS]);
        for (index, word) in map.0.iter_mut().enumerate() {
            *word = !self.dram.block_word(group * GROUP_WORDS as u64 + index as u64)?.load(Relaxed);
        }
        Ok(map)
    }

    /// Counts one more pointer to a block that another pointer names already and marks as shared.
    /// From the first call in a region's life on, a death with a file locked makes the counts
    /// unreliable, which reapers must take into account.
    pub(crate) fn share_block(self, block: u64) -> Result<()> {
        self.header()?.blocks_shared.store(1, Relaxed);
        self.dram.block_owner(block)?.store(OWNED_BY_MANY, Relaxed);
        self.dram.block_shares(block)?.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Drops one pointer to a shared block. Returns whether it was the last one.
    pub(crate) fn unshare_block(self, block: u64) -> Result<bool> {
        let shares = self.dram.block_shares(block)?;
        Ok(shares.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1)).is_err())
    }

    /// Records the owner of blocks.
    pub(crate) fn mark_owner(self, run: BlockRun, owner: u64) -> Result<()> {
        for block in run.first..run.first + run.count {
            self.dram.block_owner(block)?.store(owner, Relaxed);
        }
        Ok(())
    }

    /// For a reaper: marks blocks that something of `owner` leads to.
    pub(crate) fn mark_reached(self, run: BlockRun, owner: u64) -> Result<()> {
        self.mark_owner(run, owner | REACHED)
    }

    /// For a reaper: the same for blocks of a body. Blocks with several pointers have no owner.
    pub(crate) fn mark_body_reached(self, blocks: Blocks, owner: u64) -> Result<()> {
        if blocks.shared { Ok(()) } else { self.mark_reached(blocks.run, owner) }
    }

    /// Recounts a group after a thread died while it held the group's lock, which the caller holds
    /// now.
    pub(crate) fn recount_group(self, index: u64) -> Result<()> {
        let map = self.free_map(index)?;
        let free: u32 = map.0.iter().map(|word| word.count_ones()).sum();
        self.dram.group(index)?.free.store(free, Release);
        Ok(())
    }
}

impl<M: Memory> Allocator<'_, '_, M> {
    /// For a reaper: frees the blocks of `owner` that were not marked as reached, and clears the
    /// marks of the others.
    pub(crate) fn sweep_blocks(self, owner: u64) -> Result<()> {
        may_die_here();
        for index in 0..self.owner.fs.groups() * GROUP_WORDS as u64 {
            let mut used = self.owner.fs.dram.block_word(index)?.load(Acquire);
            while used != 0 {
                let block = index * 64 + used.trailing_zeros() as u64;
                used &= used - 1;
                let word = self.owner.fs.dram.block_owner(block)?;
                match word.load(Relaxed) {
                    found if found == owner => self.free_blocks(BlockRun { first: block, count: 1 })?,
                    found if found == owner | REACHED => word.store(owner, Relaxed),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl<'f, M: Memory> Allocator<'_, 'f, M> {
    /// Between one and `wanted` contiguous blocks, as long a run as can be found nearby. Their
    /// content is undefined.
    pub(crate) fn allocate_blocks(self, wanted: u64) -> Result<BlockRun> {
        match self.find_blocks(wanted) {
            Err(Error::NoSpace) if self.has_grown()? => self.find_blocks(wanted),
            found => found,
        }
    }

    fn find_blocks(self, wanted: u64) -> Result<BlockRun> {
        let wanted = self.permitted(wanted.clamp(1, GROUP_BLOCKS), 1)?;
        self.leave_others(self.search_blocks(wanted)?, 1)
    }

    fn search_blocks(self, wanted: u64) -> Result<BlockRun> {
        let groups = self.owner.fs.groups();
        // Groups with room for a run of useful length first, each tried at most once.
        for tried in 0..groups {
            let least = (wanted.min(SHORT_RUN_BLOCKS) >> (tried / GROUPS_TRIED).min(63)).max(1);
            match self.allocate_in_own(wanted, least) {
                Ok(Some(run)) => return Ok(run),
                Ok(None) if self.claim_group(least)? => {}
                // There is no memory for the state of further groups.
                Ok(None) | Err(Error::NoMemory) => break,
                Err(error) => return Err(error),
            }
        }
        // Then any free block, in any group whose state is in memory or gets there.
        let own = self.owner.slot.group.load(Relaxed).max(1) - 1;
        let mut has_memory = true;
        let mut has_state = |group| -> Result<bool> {
            has_memory = has_memory && self.owner.fs.provider().provide_group(group).is_ok();
            Ok(has_memory || self.owner.fs.provider().is_group_provided(group)?)
        };
        for patience in [Patience::Brief, Patience::Long] {
            for step in 0..groups {
                let group = (own + step) % groups;
                if self.owner.fs.dram.group(group)?.free.load(Acquire) != 0
                    && has_state(group)?
                    && let Some(run) = self.allocate_in(group, 0, (wanted, 1), patience)?
                {
                    return Ok(run);
                }
            }
        }
        Err(Error::NoSpace)
    }

    /// How many of the wanted blocks the thread may take: it leaves the spare ones, and those that
    /// are reserved for root if it acts for others. `NoSpace`: fewer than `least`.
    #[inline]
    fn permitted(self, wanted: u64, least: u64) -> Result<u64> {
        if self.owner.fs.reserved_blocks != 0 && self.owner.leaves_reserve() {
            return self.unreserved(wanted, least);
        }
        // Usually the thread's own group has enough.
        let (group, spare) = (self.owner.slot.group.load(Relaxed).max(1) - 1, self.owner.spare_left());
        let has_enough = spare == 0 || u64::from(self.owner.fs.dram.group(group)?.free.load(Relaxed)) > spare;
        if has_enough || self.blocks_free_to(spare + 1)? > spare { Ok(wanted) } else { Err(Error::NoSpace) }
    }

    #[cold]
    fn unreserved(self, wanted: u64, least: u64) -> Result<u64> {
        let permitted =
            self.blocks_known(wanted)?.saturating_sub(self.owner.fs.reserved_blocks + self.owner.spare_left());
        if permitted < least { Err(Error::NoSpace) } else { Ok(wanted.min(permitted)) }
    }

    /// The free blocks. The number is exact where fewer than `wanted` and a group's worth are left
    /// above the reserve.
    fn blocks_known(self, wanted: u64) -> Result<u64> {
        let counted = &self.owner.fs.header()?.blocks_counted;
        // Near the limit the groups are counted: threads may have died between a bit and the count.
        // So they are at first, when the count begins with zero, or is below.
        let known = counted.load(Relaxed);
        if known >= self.owner.fs.reserved_blocks + self.owner.fs.spare_blocks + wanted + GROUP_BLOCKS
            && known <= self.owner.fs.blocks()
        {
            return Ok(known);
        }
        let free = self.owner.fs.block_map().blocks_free()?;
        counted.store(free, Relaxed);
        Ok(free)
    }

    /// Gives back of blocks that were just allocated what the thread must leave: other threads may
    /// have taken the same free blocks into account. `NoSpace`: fewer than `least` would be left.
    #[inline]
    fn leave_others(self, run: BlockRun, least: u64) -> Result<BlockRun> {
        if self.owner.fs.reserved_blocks != 0 && self.owner.leaves_reserve() {
            return self.settle(run, least, self.owner.fs.reserved_blocks + self.owner.spare_left());
        }
        // Usually one group has enough.
        let free = self.owner.fs.dram.group(run.first / GROUP_BLOCKS)?.free.load(Relaxed);
        match self.owner.spare_left() {
            spare if u64::from(free) >= spare => Ok(run),
            spare => self.settle(run, least, spare),
        }
    }

    #[cold]
    fn settle(self, run: BlockRun, least: u64, left: u64) -> Result<BlockRun> {
        // Of two threads that allocate at once, the later one sees the blocks of both.
        fence(SeqCst);
        let free = if self.owner.fs.reserved_blocks != 0 { self.blocks_known(0)? } else { self.blocks_free_to(left)? };
        let lacking = left.saturating_sub(free);
        if lacking == 0 {
            return Ok(run);
        }
        let left = run.count.saturating_sub(lacking);
        let kept = if left < least { 0 } else { left };
        self.free_blocks(BlockRun { first: run.first + kept, count: run.count - kept })?;
        if kept == 0 { Err(Error::NoSpace) } else { Ok(BlockRun { first: run.first, count: kept }) }
    }

    /// Whether so few blocks are left that other threads may soon find none.
    #[inline]
    pub(crate) fn are_blocks_scarce(self) -> bool {
        let kept = self.owner.fs.reserved_blocks + self.owner.fs.spare_blocks;
        let few = kept + SCARCE_BLOCKS.min(self.owner.fs.blocks() / SCARCE_SHARE);
        // The group that this thread allocates from usually has more.
        let group = self.owner.slot.group.load(Relaxed).max(1) - 1;
        let own = self.owner.fs.dram.group(group).map_or(0, |group| u64::from(group.free.load(Relaxed)));
        own < few && self.blocks_free_to(few).is_ok_and(|free| free < few)
    }

    /// The free blocks, or a smaller number that is at least `enough`. The search begins where
    /// threads find free groups.
    fn blocks_free_to(self, enough: u64) -> Result<u64> {
        let (groups, cursor) = (self.owner.fs.groups(), self.owner.fs.header()?.group_cursor.load(Relaxed));
        let mut free = 0;
        for step in 0..groups {
            free += u64::from(self.owner.fs.dram.group((cursor + step) % groups)?.free.load(Relaxed));
            if free >= enough {
                break;
            }
        }
        Ok(free)
    }

    /// A block of its own for a structure that no crash state reaches yet. Its content is
    /// undefined.
    pub(crate) fn allocate_unreachable<T: Layout>(self) -> Result<Unreachable<'f, T>> {
        Ok(self.owner.fs.pm.unreachable(FreshBlock(self.allocate_blocks(1)?))?)
    }

    /// Exactly `count` contiguous blocks, at most a group's worth; otherwise `NoSpace`.
    pub(crate) fn allocate_contiguous(self, count: u64) -> Result<BlockRun> {
        if count == 0 || count > GROUP_BLOCKS {
            return Err(Error::NoSpace);
        }
        match self.find_contiguous(count) {
            Err(Error::NoSpace) if self.has_grown()? => self.find_contiguous(count),
            found => found,
        }
    }

    fn find_contiguous(self, count: u64) -> Result<BlockRun> {
        self.permitted(count, count)?;
        self.leave_others(self.search_contiguous(count)?, count)
    }

    fn search_contiguous(self, count: u64) -> Result<BlockRun> {
        for may_claim in [true, false] {
            match self.allocate_in_own(count, count) {
                Ok(Some(run)) => return Ok(run),
                Ok(None) if may_claim && self.claim_group(count)? => {}
                Ok(None) | Err(Error::NoMemory) => break,
                Err(error) => return Err(error),
            }
        }
        for group in 0..self.owner.fs.groups() {
            if self.owner.fs.dram.group(group)?.free.load(Acquire) as u64 >= count
                && self.owner.fs.provider().is_group_provided(group)?
                && let Some(run) = self.allocate_in(group, 0, (count, count), Patience::Brief)?
            {
                return Ok(run);
            }
        }
        Err(Error::NoSpace)
    }

    /// Frees blocks that no reader can reach, at once. (`retire` is for all others.)
    pub(crate) fn free_blocks(self, run: BlockRun) -> Result<()> {
        if !self.owner.fs.block_map().is_data(run) {
            return Err(BadOffset { offset: run.first, length: run.count }.into());
        }
        let mut at = run.first;
        while at < run.first + run.count {
            let end = (run.first + run.count).min((at / GROUP_BLOCKS + 1) * GROUP_BLOCKS);
            self.free_in_group(BlockRun { first: at, count: end - at })?;
            at = end;
        }
        // Blocks that were allocated last and are freed at once leave no gap behind them.
        if self.owner.slot.block_hint.load(Relaxed) == run.first + run.count {
            self.owner.slot.block_hint.store(run.first, Relaxed);
        }
        Ok(())
    }

    fn allocate_in_own(self, wanted: u64, least: u64) -> Result<Option<BlockRun>> {
        let Some(group) = self.owner.slot.group.load(Relaxed).checked_sub(1) else { return Ok(None) };
        let hint = self.owner.slot.block_hint.load(Relaxed);
        let hint = if hint / GROUP_BLOCKS == group { hint % GROUP_BLOCKS } else { 0 };
        self.allocate_in(group, hint, (wanted, least), Patience::Brief)
    }

    fn free_in_group(self, run: BlockRun) -> Result<()> {
        let group = self.owner.fs.dram.group(run.first / GROUP_BLOCKS)?;
        let Some(_held) = self.owner.lock_briefly(&group.lock, &group.waiters)? else {
            // A stopped thread holds the group: the blocks wait in the queue.
            self.owner.fs.block_map().mark_owner(run, owned_by_slot(self.owner.ticket()))?;
            may_die_here();
            return self.owner.recycler().retire_together(
                RetiredKind::Blocks,
                (run.first, run.count),
                WordChange::Nothing,
            );
        };
        let (mut freed, mut twice) = (0, false);
        for (index, mask) in pieces(run) {
            let word = self.owner.fs.dram.block_word(index)?;
            let bits = word.load(Relaxed);
            twice |= bits & mask != mask;
            freed += (bits & mask).count_ones();
            may_die_here();
            word.store(bits & !mask, Release);
        }
        may_die_here();
        let before = group.free.load(Relaxed);
        group.free.store(before + freed, Relaxed);
        if self.owner.fs.reserved_blocks != 0 {
            self.owner.fs.header()?.blocks_counted.fetch_add(freed.into(), Relaxed);
        }
        let index = run.first / GROUP_BLOCKS;
        let cursor = &self.owner.fs.header()?.group_cursor;
        if (before..before + freed).contains(&REVISIT_FREE_BLOCKS) && index < cursor.load(Relaxed) {
            cursor.store(index, Relaxed);
        }
        // A damaged image may name a block in several files.
        if twice {
            Err(BadOffset { offset: run.first * BLOCK_BYTES, length: run.count * BLOCK_BYTES }.into())
        } else {
            Ok(())
        }
    }

    /// Between `least` and `wanted` blocks of one group, or none. `NoMemory` if there is no room
    /// for the group's state.
    fn allocate_in(
        self,
        index: u64,
        hint: u64,
        (wanted, least): (u64, u64),
        patience: Patience,
    ) -> Result<Option<BlockRun>> {
        let group: &Group = self.owner.fs.dram.group(index)?;
        // While a stopped thread holds the group, others have blocks.
        let Some(_held) = self.owner.lock_with(patience, &group.lock, &group.waiters)? else { return Ok(None) };
        let Some((at, count)) = self.owner.fs.block_map().free_map(index)?.run(hint, wanted) else { return Ok(None) };
        if count < least {
            return Ok(None);
        }
        let mut run = BlockRun { first: index * GROUP_BLOCKS + at, count };
        if pmem::expects_memory_errors() {
            let Some(sound) = self.sound_run(index, (wanted, least))? else { return Ok(None) };
            run = sound;
        }
        let BlockRun { count, .. } = run;
        self.owner.fs.provider().provide_group(index)?;
        self.owner.fs.provider().provide_blocks(group, (run.first, count))?;
        self.owner.fs.pm.set_resident(run.first * BLOCK_BYTES, count * BLOCK_BYTES);
        self.owner.fs.block_map().mark_owner(run, self.owner.block_owner())?;
        for (index, mask) in pieces(run) {
            let word = self.owner.fs.dram.block_word(index)?;
            may_die_here();
            word.store(word.load(Relaxed) | mask, Release);
        }
        may_die_here();
        group.free.store(group.free.load(Relaxed) - count as u32, Relaxed);
        if self.owner.fs.reserved_blocks != 0 {
            self.owner.fs.header()?.blocks_counted.fetch_sub(count, Relaxed);
        }
        self.owner.slot.block_hint.store(run.first + count, Relaxed);
        Ok(Some(run))
    }

    /// A run of between `least` and `wanted` free blocks of a group, whose lock the caller holds,
    /// that have no memory errors.
    #[cold]
    fn sound_run(self, index: u64, (wanted, least): (u64, u64)) -> Result<Option<BlockRun>> {
        let map = self.owner.fs.block_map().free_map(index)?;
        let mut at = map.next(0, true);
        while at < GROUP_BLOCKS {
            let run = BlockRun { first: index * GROUP_BLOCKS + at, count: (map.next(at, false) - at).min(wanted) };
            let lost =
                self.owner.fs.pm.first_lost(run.first * BLOCK_BYTES, run.count * BLOCK_BYTES, ContentLoad::Probe);
            let count = lost.map_or(run.count, |page| page / BLOCK_BYTES - run.first);
            if count >= least {
                return Ok(Some(BlockRun { count, ..run }));
            }
            at = map.next(at + count + u64::from(lost.is_some()), true);
        }
        Ok(None)
    }

    /// A shard that has filled a group will fill the next one, too, if that is wholly free. So the
    /// next group is provided as a huge page, if that costs less than the single pages. So is the
    /// shard's first group, which it had filled in single pages.
    fn provide_pages(self, old: Option<u64>, fresh: u64, free: u64) {
        let Some(old) = old else { return };
        if free == GROUP_BLOCKS {
            let groups_filled = self.owner.slot.groups_filled.load(Relaxed);
            self.owner.slot.groups_filled.store(groups_filled + 1, Relaxed);
            if self.owner.fs.provide_groups(fresh..fresh + 1) && groups_filled == 0 {
                self.owner.fs.provide_groups(old..old + 1);
            }
        }
    }

    /// Releases the shard's group and claims the next unowned one with at least `least` free
    /// blocks. Returns whether there was one.
    fn claim_group(self, least: u64) -> Result<bool> {
        let header = self.owner.fs.header()?;
        let groups = self.owner.fs.groups();
        let old = self.owner.slot.group.load(Relaxed).checked_sub(1);
        if let Some(old) = old {
            let _ = self.owner.fs.dram.group(old)?.owner.compare_exchange(self.owner.ticket(), 0, AcqRel, Relaxed);
            self.owner.slot.group.store(0, Relaxed);
        }
        let cursor = header.group_cursor.load(Relaxed);
        for step in 0..groups {
            let index = (cursor + step) % groups;
            let group = self.owner.fs.dram.group(index)?;
            let owner = group.owner.load(Relaxed);
            let free = group.free.load(Relaxed) as u64;
            // A group that this slot owns already was claimed by a thread of this slot that died
            // right then.
            if free >= least
                && (owner == self.owner.ticket()
                    || owner == 0 && group.owner.compare_exchange(0, self.owner.ticket(), AcqRel, Relaxed).is_ok())
            {
                self.owner.slot.group.store(index + 1, Relaxed);
                header.group_cursor.store(index + 1, Relaxed);
                self.provide_pages(old, index, free);
                let (layout, bytes) = (&self.owner.fs.dram.layout, GROUP_BLOCKS * 8);
                self.owner.fs.enter_area(layout.block_owners, index * bytes..(index + 1) * bytes, groups * bytes);
                return Ok(true);
            }
        }
        Ok(false)
    }
}
