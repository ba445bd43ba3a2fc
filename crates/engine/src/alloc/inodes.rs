//! Inode numbers.
//!
//! A bit per number says whether it is in use. A shard takes up to [`MAGAZINE_INODES`] at a time into its magazine, ascending, so that files
//! that are made one after the other lie side by side. When the segments have none left, a new segment is added to the table.
//!
//! Invariants
//! - A number belongs to whoever set its bit; a number in a magazine counts as taken.
//! - Segments are added in order and never taken away. A segment is durably zero before the table names it.
//! - What a free number's identity says is of its last life, and counts for nobody: names have generations. The numbers in a magazine say nothing.
//! - Number 0 is nobody's: its bit is set from the beginning, and it is not counted.

use crate::dram::MAGAZINE_INODES;
use crate::error::{Error, Result};
use crate::format::{INODES_PER_SEGMENT, SEGMENT_BLOCKS};
use crate::fs::{Fs, Thread};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, LINE_BYTES, Memory};

/// Words of bits of a segment.
const SEGMENT_WORDS: u64 = INODES_PER_SEGMENT / 64;
/// Segments that a refill searches before a new one is added: bounds what a create may cost on a full table with few holes.
const SEARCH_SEGMENTS: u64 = 64;

/// Numbers on the way into a magazine, ascending.
struct Taken {
    numbers: [u64; MAGAZINE_INODES],
    count: usize,
}

impl<M: Memory> Fs<M> {
    /// Inodes in use; exact while nobody is inside.
    pub(crate) fn inodes_used(&self) -> Result<u64> {
        let header = self.header()?;
        let mut used = header.inodes_used.load(Relaxed);
        for index in 0..header.slots_high.load(Acquire) as u32 {
            used = used.saturating_sub(self.dram.slot(index)?.inodes_count.load(Relaxed) as u64);
        }
        Ok(used)
    }

    /// Whether a number is in use, or in the magazine of a shard.
    pub(crate) fn inode_is_taken(&self, number: u64) -> Result<bool> {
        Ok(self.dram.inode_word(number / 64)?.load(Acquire) >> (number % 64) & 1 == 1)
    }

    /// Takes free numbers of a segment.
    fn take_from_segment(&self, segment: u64, taken: &mut Taken) -> Result<()> {
        for index in segment * SEGMENT_WORDS..(segment + 1) * SEGMENT_WORDS {
            let word = self.dram.inode_word(index)?;
            let mut seen = word.load(Relaxed);
            while seen != u64::MAX && taken.count < MAGAZINE_INODES {
                let wanted = lowest_bits(!seen, MAGAZINE_INODES - taken.count);
                match word.compare_exchange_weak(seen, seen | wanted, AcqRel, Relaxed) {
                    Ok(_) => {
                        taken.add(index * 64, wanted);
                        self.header()?.inodes_used.fetch_add(wanted.count_ones() as u64, Relaxed);
                        break;
                    }
                    Err(now) => seen = now,
                }
            }
        }
        Ok(())
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

impl Taken {
    fn add(&mut self, base: u64, mut bits: u64) {
        while bits != 0 && self.count < MAGAZINE_INODES {
            self.numbers[self.count] = base + bits.trailing_zeros() as u64;
            self.count += 1;
            bits &= bits - 1;
        }
    }
}

impl<M: Memory> Thread<'_, M> {
    /// A free inode number. Log, extended attributes, inline area and access time of its inode are durably zero.
    pub(crate) fn allocate_inode(&self) -> Result<u64> {
        if self.slot.inodes_count.load(Relaxed) == 0 {
            self.refill_inodes()?;
        }
        let last = self.slot.inodes_count.load(Relaxed).checked_sub(1).ok_or(Error::NoInodes)?;
        self.slot.inodes_count.store(last, Relaxed);
        if let Some(next) = last.checked_sub(1) {
            // The next file will be this one.
            let offset = self.fs.inode_offset(self.slot.inodes[next as usize].load(Relaxed))?;
            self.fs.pm.prefetch(offset);
            self.fs.pm.prefetch(offset + LINE_BYTES);
        }
        Ok(self.slot.inodes[last as usize].load(Relaxed))
    }

    /// Gives a number back at once; the caller made durably zero what `allocate_inode` promises.
    pub(crate) fn free_inode(&self, number: u64) -> Result<()> {
        self.free_inodes(number / 64, 1 << (number % 64))
    }

    /// Gives back the numbers of the bits in word `index` of the map: what recycling gathers costs one atomic operation for up to 64.
    pub(crate) fn free_inodes(&self, index: u64, bits: u64) -> Result<()> {
        let was = self.fs.dram.inode_word(index)?.fetch_and(!bits, AcqRel);
        debug_assert!(was & bits == bits, "inodes {bits:#x} of word {index} freed twice");
        self.fs.header()?.inodes_used.fetch_sub((was & bits).count_ones() as u64, Relaxed);
        Ok(())
    }

    /// Empties the magazine. For shards without a thread.
    pub(crate) fn give_back_inodes(&self) -> Result<()> {
        for _ in 0..self.slot.inodes_count.load(Relaxed) {
            let number = self.allocate_inode()?;
            self.free_inode(number)?;
        }
        Ok(())
    }

    fn refill_inodes(&self) -> Result<()> {
        let mut taken = Taken { numbers: [0; MAGAZINE_INODES], count: 0 };
        // Ends: every turn but the last sees one segment more than the turn before.
        while taken.count == 0 {
            let segments = self.fs.header()?.segments.load(Acquire);
            self.search_inodes(segments, SEARCH_SEGMENTS, &mut taken)?;
            if taken.count > 0 {
                break;
            }
            if let Err(error) = self.add_segment(segments) {
                self.search_inodes(segments, segments, &mut taken)?;
                if taken.count == 0 {
                    return Err(error);
                }
            }
        }
        // The magazine is emptied from its end.
        for (slot, number) in self.slot.inodes.iter().zip(taken.numbers[..taken.count].iter().rev()) {
            self.forget_life(*number)?;
            slot.store(*number, Relaxed);
        }
        self.slot.inodes_count.store(taken.count as u32, Relaxed);
        Ok(())
    }

    /// Takes the last life's birth away from a number that is about to get another one, so that nobody finds it by its number meanwhile. Nothing
    /// depends on it after a crash, so it is not flushed; and the next owner finds the line in its cache.
    fn forget_life(&self, number: u64) -> Result<()> {
        let inode = self.fs.inode(number)?;
        if inode.birth.load() != inode.free_word() {
            self.fs.pm.retract(&inode.birth, inode.free_word()).unflushed();
        }
        Ok(())
    }

    /// Takes numbers of the newest segment, or of up to `limit` others from the cursor on.
    fn search_inodes(&self, segments: u64, limit: u64, taken: &mut Taken) -> Result<()> {
        let header = self.fs.header()?;
        if segments == 0 || header.inodes_used.load(Relaxed) + 1 >= segments * INODES_PER_SEGMENT {
            return Ok(());
        }
        self.fs.take_from_segment(segments - 1, taken)?;
        let cursor = header.segment_cursor.load(Relaxed);
        for step in 0..limit.min(segments) {
            if taken.count == MAGAZINE_INODES {
                return Ok(());
            }
            let segment = (cursor + step) % segments;
            self.fs.take_from_segment(segment, taken)?;
            header.segment_cursor.store(segment, Relaxed);
        }
        Ok(())
    }

    /// Adds a segment to a table of `segments`, unless somebody else does.
    fn add_segment(&self, segments: u64) -> Result<()> {
        let header = self.fs.header()?;
        let _held = self.lock(&header.segment_lock, &header.segment_waiters)?;
        if header.segments.load(Acquire) != segments {
            return Ok(());
        }
        if segments >= self.fs.geometry.segments_max {
            return Err(Error::NoInodes);
        }
        let pm = &self.fs.pm;
        let entry = self.fs.segment_entry(segments)?;
        let first = self.allocate_contiguous(SEGMENT_BLOCKS)?.first * BLOCK_BYTES;
        let zeroed = pm.fence(pm.stream_zeros(first, SEGMENT_BLOCKS * BLOCK_BYTES)?);
        // Crash point: zeroed but not named, the blocks are free again after recovery.
        pm.persist(pm.commit(entry, first, zeroed));
        header.segments.store(segments + 1, Release);
        Ok(())
    }
}
