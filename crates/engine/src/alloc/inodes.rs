//! Inode numbers.
//!
//! A bit per number shows whether it is in use. A shard takes up to [`MAGAZINE_INODES`] at a time
//! into its magazine, ascending, so that files made in succession lie side by side. When the
//! segments have none left, a new segment is added to the table.
//!
//! Invariants
//! - Each part of the map changes under its lock in the header; a number in a magazine counts as
//!   taken.
//! - The number that a thread takes stays in its magazine, in front of those that are left:
//!   stepping back gives it back.
//! - Segments are added in order and never removed. A segment is durably zero before the table
//!   names it.
//! - The identity of a free number is that of its last life and has no effect, because names have
//!   generations. The identities of numbers in a magazine are erased.
//! - Number 0 is never used: its bit is set from the beginning, and it is not counted.

use super::{BlockRun, OWNED_PERMANENTLY, owned_by_slot};
use crate::components::Allocator;
use crate::death::may_die_here;
use crate::dram::{INODE_MAP_PARTS, InodeMapPart, MAGAZINE_INODES, RetiredKind};
use crate::error::{Corruption, Error, Result};
use crate::format::{INODES_PER_SEGMENT, Inode, SEGMENT_BLOCKS, Segment, SegmentEntry};
use crate::fs::Fs;
use crate::lock::{LockGuard, Patience};
use crate::redo::WordChange;
use crate::slot_owner::SlotOwner;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Flushed, LINE_BYTES, Memory};

/// Words of bits of a segment.
const SEGMENT_WORDS: u64 = INODES_PER_SEGMENT / 64;
/// Segments that a refill searches before a new one is added. Bounds the cost of a create on a full
/// table with few holes.
const SEARCH_SEGMENTS: u64 = 64;

impl<M: Memory> Fs<M> {
    /// Number of inodes in use; exact while no thread is inside.
    pub(crate) fn inodes_used(&self) -> Result<u64> {
        let header = self.header()?;
        let mut used = header.inodes_used();
        for index in 0..header.slots_high.load(Acquire) as u32 {
            let slot = self.dram.slot(index)?;
            let ready = slot.inodes_count.load(Relaxed).saturating_sub(slot.inodes_next.load(Relaxed));
            used = used.saturating_sub(ready as u64);
        }
        Ok(used)
    }

    /// Whether a number is in use, or in the magazine of a shard.
    pub(crate) fn inode_is_taken(&self, number: u64) -> Result<bool> {
        Ok(self.dram.inode_word(number / 64)?.load(Acquire) >> (number % 64) & 1 == 1)
    }
}

/// The part of the map of inode numbers that a segment belongs to, locked.
pub(crate) struct InodeMap<'t, 'f, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
    part: &'f InodeMapPart,
    _held: LockGuard<'f>,
}

impl<M: Memory> InodeMap<'_, '_, M> {
    /// Gives back the numbers of the bits in word `index`, together with another change that
    /// records it.
    pub(crate) fn free(&self, index: u64, bits: u64, with: WordChange<'_>) -> Result<()> {
        let InodeMap { owner, part, .. } = self;
        let word = owner.fs.dram.inode_word(index)?;
        let was = word.load(Relaxed);
        let used = part.used.load(Relaxed).wrapping_sub((was & bits).count_ones() as u64);
        owner.change_together([WordChange::Wide(word, was & !bits), WordChange::Wide(&part.used, used), with]);
        // A damaged image may have a name for an inode that it calls free.
        if was & bits == bits { Ok(()) } else { Err(Corruption::Inode(index * 64).into()) }
    }
}

/// The lowest `count` bits that are set in `word`.
fn lowest_bits(word: u64, count: usize) -> u64 {
    let mut rest = word;
    for _ in 0..count {
        rest &= rest.wrapping_sub(1);
    }
    word & !rest
}

impl<'t, 'f, M: Memory> Allocator<'t, 'f, M> {
    /// A free inode number, recorded as an in-flight allocation. Log, extended attributes, inline
    /// area and access time of its inode are durably zero.
    pub(crate) fn allocate_inode(self) -> Result<u64> {
        if self.owner.slot.inodes_next.load(Relaxed) >= self.owner.slot.inodes_count.load(Relaxed) {
            self.refill_inodes()?;
        }
        let next = self.owner.slot.inodes_next.load(Relaxed);
        let number = self.owner.slot.inodes.get(next as usize).ok_or(Error::NoInodes)?.load(Relaxed);
        self.owner.slot.in_flight.number.store(number, Relaxed);
        may_die_here();
        self.owner.slot.inodes_next.store(next + 1, Release);
        may_die_here();
        if next + 1 < self.owner.slot.inodes_count.load(Relaxed)
            && let Some(following) = self.owner.slot.inodes.get(next as usize + 1)
        {
            // The next file will be this one.
            let offset = self.owner.fs.inode_offset(following.load(Relaxed))?;
            self.owner.fs.pm.prefetch(offset);
            self.owner.fs.pm.prefetch(offset + LINE_BYTES);
        }
        Ok(number)
    }

    /// Puts back the number that was taken last. The caller has made durably zero what
    /// `allocate_inode` promises to be zero.
    pub(crate) fn put_back_inode(self, number: u64) -> Result<()> {
        let next = self.owner.slot.inodes_next.load(Relaxed);
        let last = next.checked_sub(1).filter(|last| self.owner.slot.inodes[*last as usize].load(Relaxed) == number);
        match last {
            Some(last) => self.owner.slot.inodes_next.store(last, Release),
            None => self.free_inode(number, WordChange::Wide(&self.owner.slot.in_flight.number, 0))?,
        }
        may_die_here();
        self.owner.slot.in_flight.number.store(0, Release);
        Ok(())
    }

    /// As the reaper of this slot: whether the number that its owner wanted was not taken, or was
    /// put back.
    pub(crate) fn is_in_magazine(self, number: u64) -> bool {
        let (next, end) = (self.owner.slot.inodes_next.load(Relaxed), self.owner.slot.inodes_count.load(Relaxed));
        self.owner.slot.inodes[..(end as usize).min(MAGAZINE_INODES)]
            .iter()
            .skip(next as usize)
            .any(|word| word.load(Relaxed) == number)
    }

    /// How many numbers the magazine may hold: many threads must not keep all of them ready.
    fn magazine_share(self) -> Result<usize> {
        let header = self.owner.fs.header()?;
        let free = self.owner.fs.geometry.inodes_max().saturating_sub(header.inodes_used());
        let share = free / (2 * header.slots_high.load(Relaxed).max(1));
        Ok((share as usize).clamp(1, MAGAZINE_INODES))
    }

    /// Takes free numbers of a segment into the magazine, unless a stopped thread holds its part of
    /// the map.
    fn take_from_segment(self, segment: u64, patience: Patience) -> Result<()> {
        let words = segment * SEGMENT_WORDS..(segment + 1) * SEGMENT_WORDS;
        let is_full = |index| -> Result<bool> { Ok(self.owner.fs.dram.inode_word(index)?.load(Relaxed) == u64::MAX) };
        if words.clone().try_fold(true, |all, index| is_full(index).map(|full| all && full))? {
            return Ok(());
        }
        let Some(InodeMap { part, .. }) = &self.hold_inode_map(segment, patience)? else { return Ok(()) };
        let segment_word = self.owner.fs.segment_entry(segment)?.load_acquire();
        let share = self.magazine_share()?;
        for index in words {
            let word = self.owner.fs.dram.inode_word(index)?;
            let seen = word.load(Relaxed);
            let count = self.owner.slot.inodes_count.load(Relaxed) as usize;
            if seen == u64::MAX || count >= share {
                continue;
            }
            let taken = lowest_bits(!seen, share - count);
            let mut rest = taken;
            for slot in &self.owner.slot.inodes[count..count + taken.count_ones() as usize] {
                let number = index * 64 + rest.trailing_zeros() as u64;
                // Before it is taken: this lock keeps other threads from taking it, and the
                // identity of a free number has no effect.
                self.clear_birth(self.owner.fs.inode_at(self.owner.fs.inode_offset_in(segment_word, number)?)?);
                slot.store(number, Relaxed);
                rest &= rest - 1;
            }
            let used = part.used.load(Relaxed).wrapping_add(taken.count_ones() as u64);
            self.owner.change_together([
                WordChange::Wide(word, seen | taken),
                WordChange::Wide(&part.used, used),
                WordChange::Narrow(&self.owner.slot.inodes_count, count as u32 + taken.count_ones()),
            ]);
        }
        Ok(())
    }

    /// Gives one number back, together with another change that records it.
    fn free_inode(self, number: u64, with: WordChange<'_>) -> Result<()> {
        self.free_inodes(number / 64, 1 << (number % 64), with)
    }

    /// Gives back the numbers of the bits in word `index`, together with another change that
    /// records it. While a stopped thread holds their part of the map, they wait in the queue.
    pub(crate) fn free_inodes(self, index: u64, bits: u64, with: WordChange<'_>) -> Result<()> {
        match self.hold_inode_map(index / SEGMENT_WORDS, Patience::Brief)? {
            Some(map) => map.free(index, bits, with),
            None => self.owner.recycler().retire_together(RetiredKind::Numbers, (index, bits), with),
        }
    }

    /// Locks the part of the map that a segment belongs to: no other thread takes or gives back
    /// numbers meanwhile. `None`: a stopped thread holds it.
    fn hold_inode_map(self, segment: u64, patience: Patience) -> Result<Option<InodeMap<'t, 'f, M>>> {
        let part = &self.owner.fs.header()?.inode_map[(segment % INODE_MAP_PARTS as u64) as usize];
        let held = self.owner.lock_with(patience, &part.lock, &part.waiters)?;
        Ok(held.map(|held| InodeMap { owner: self.owner, part, _held: held }))
    }

    /// Empties the magazine. For shards without a thread.
    pub(crate) fn give_back_inodes(self) -> Result<()> {
        let (next, end) = (self.owner.slot.inodes_next.load(Relaxed), self.owner.slot.inodes_count.load(Relaxed));
        for index in next..end.min(MAGAZINE_INODES as u32) {
            let number = self.owner.slot.inodes[index as usize].load(Relaxed);
            let taken = WordChange::Narrow(&self.owner.slot.inodes_next, index + 1);
            self.free_inode(number, taken)?;
        }
        Ok(())
    }

    fn refill_inodes(self) -> Result<()> {
        let (next, count) = (&self.owner.slot.inodes_next, &self.owner.slot.inodes_count);
        // The magazine is empty after either store, in this order.
        count.store(0, Release);
        may_die_here();
        next.store(0, Release);
        // Terminates: every round but the last sees one segment more than the round before.
        while count.load(Relaxed) == 0 {
            let segments = self.owner.fs.header()?.segments.load(Acquire);
            self.search_inodes(segments, SEARCH_SEGMENTS, Patience::Brief)?;
            if count.load(Relaxed) > 0 {
                break;
            }
            if let Err(error) = self.add_segment(segments) {
                self.search_inodes(segments, segments, Patience::Long)?;
                if count.load(Relaxed) == 0 {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Erases the birth of a number's last life when it is about to get another one, so that no
    /// lookup by number finds it meanwhile. Not flushed, because nothing depends on it after a
    /// crash; and the next owner finds the line in its cache.
    fn clear_birth(self, inode: &Inode) {
        let free = inode.free_word();
        if inode.birth.load() != free {
            self.owner.fs.pm.retract(&inode.birth, free).unflushed();
        }
    }

    /// Takes numbers of the newest segment, or of up to `limit` others from the cursor on.
    fn search_inodes(self, segments: u64, limit: u64, patience: Patience) -> Result<()> {
        let header = self.owner.fs.header()?;
        if segments == 0 || header.inodes_used() + 1 >= segments * INODES_PER_SEGMENT {
            return Ok(());
        }
        self.take_from_segment(segments - 1, patience)?;
        let cursor = header.segment_cursor.load(Relaxed);
        for step in 0..limit.min(segments) {
            if self.owner.slot.inodes_count.load(Relaxed) as usize >= self.magazine_share()? {
                return Ok(());
            }
            let segment = (cursor + step) % segments;
            self.take_from_segment(segment, patience)?;
            header.segment_cursor.store(segment, Relaxed);
        }
        Ok(())
    }

    /// Adds a segment to a table of `segments`, unless another thread does.
    fn add_segment(self, segments: u64) -> Result<()> {
        let header = self.owner.fs.header()?;
        if segments >= self.owner.fs.geometry.segments_max {
            return Err(Error::NoInodes);
        }
        self.owner.fs.provider().provide_segment(segments)?;
        self.owner
            .fs
            .provider()
            .provide_image(self.owner.fs.geometry.segment_table_block * BLOCK_BYTES + segments * 8, 8)?;
        let pm = &self.owner.fs.pm;
        let entry = self.owner.fs.segment_entry(segments)?;
        let fresh = self.owner.as_owner(owned_by_slot(self.owner.ticket()), || self.allocate_segment())?;
        let mut written = Flushed::nothing();
        for block in fresh.inode_blocks() {
            written = written.and(pm.stream_zeros(block * BLOCK_BYTES, BLOCK_BYTES)?);
        }
        if let SegmentEntry::List(at) = fresh.entry() {
            written = written.and(pm.stream_bytes(at, &fresh.list_bytes(segments))?);
        }
        let written = pm.fence(written);
        // Only now: a thread that is stopped while it holds the lock keeps others from adding one.
        let held = self.owner.lock_with(Patience::Long, &header.segment_lock, &header.segment_waiters)?;
        if held.is_none() || header.segments.load(Acquire) != segments {
            for block in fresh.blocks() {
                self.free_blocks(BlockRun { first: block, count: 1 })?;
            }
            return if held.is_none() { Err(Error::NoInodes) } else { Ok(()) };
        }
        // Crash point: zeroed but not named, the blocks are free again after recovery.
        debug_assert_eq!(entry.load(), 0, "segments are added, never replaced");
        pm.persist(pm.commit(entry, fresh.entry().word(), written));
        debug_assert!(self.owner.fs.segment(segments).is_some(), "recovery finds the segment");
        self.finish_segment(segments)
    }

    /// Blocks for a segment: contiguous if possible, else scattered, plus one for their list.
    fn allocate_segment(self) -> Result<Segment> {
        match self.allocate_contiguous(SEGMENT_BLOCKS) {
            Ok(run) => return Ok(Segment::contiguous(run.first * BLOCK_BYTES)),
            Err(Error::NoSpace) => {}
            Err(error) => return Err(error),
        }
        let mut offsets = [0; SEGMENT_BLOCKS as usize + 1];
        for taken in 0..offsets.len() {
            match self.allocate_blocks(1) {
                Ok(run) => offsets[taken] = run.first * BLOCK_BYTES,
                Err(error) => {
                    for offset in &offsets[..taken] {
                        self.free_blocks(BlockRun { first: offset / BLOCK_BYTES, count: 1 })?;
                    }
                    return Err(error);
                }
            }
        }
        let [list, blocks @ ..] = offsets;
        Ok(Segment::listed(list, blocks))
    }

    /// Completes the addition of a segment that the table names: numbers are taken from it from now
    /// on. A reaper may repeat it.
    fn finish_segment(self, segment: u64) -> Result<()> {
        let added = self.owner.fs.segment(segment).ok_or(Corruption::Inode(segment * INODES_PER_SEGMENT))?;
        for block in added.blocks() {
            self.owner.fs.block_map().mark_owner(BlockRun { first: block, count: 1 }, OWNED_PERMANENTLY)?;
        }
        may_die_here();
        self.owner.fs.header()?.segments.store(segment + 1, Release);
        Ok(())
    }

    /// As the reaper of this slot: completes the addition of a segment, if the table already names
    /// it.
    pub(crate) fn repair_segments(self) -> Result<()> {
        let header = self.owner.fs.header()?;
        let segments = header.segments.load(Acquire);
        if !self.owner.holds(&header.segment_lock) || segments >= self.owner.fs.geometry.segments_max {
            return Ok(());
        }
        let entry = self.owner.fs.segment_entry(segments)?;
        if entry.load() == 0 {
            return Ok(());
        }
        self.owner.fs.pm.fence(self.owner.fs.pm.flush_all(entry));
        self.finish_segment(segments)
    }
}
