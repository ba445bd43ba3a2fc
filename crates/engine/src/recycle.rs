//! Asynchronous recycling: a removed object waits in its shard's queue for a grace period, then
//! becomes free.
//!
//! Invariants
//! - While a stopped thread keeps grace periods from ending, the oldest records leave the queue for
//!   spill pages ([`crate::spill`]), and no thread waits.
//! - The queue never overflows: an operation that retires calls [`Recycler::make_room`] before it
//!   pins. Inside it then has room for at least 64 records (in fact [`ROOM`]). An operation that
//!   retires more (the truncation of a file in many pieces) unpins and makes room again between
//!   portions.
//! - Recycling has two phases. The first makes durably zero whatever could harm the next use, under
//!   one fence: of an inode its log, attributes, access time and inline area; of a dentry the words
//!   of its further lines that could pass for valid words. Most objects have none of these and need
//!   no flush: names are bound to a generation, seals to a reuse generation. Only then does the
//!   second phase give numbers, lines, blocks and cachelets back to the allocators. A crash in the
//!   first phase leaves objects that recovery finds dead and erases; after a crash in the second
//!   nothing names them.
//! - Records leave the queue when their batch is complete. Meanwhile the slot shows which of them
//!   are already free, and what the first phase is about to clear in an inode. What one record
//!   frees is freed together with its mark there, or repeatably. The cachelet of an inode keeps its
//!   last content until the batch is complete. So a reaper can complete a batch
//!   ([`Recycler::finish_batch`]).
//! - Records that do not parse are skipped: the objects stay allocated until the next scan, and
//!   fsck reports them.
//!
//! The thread that removes recycles when more than 63 items or 1 MiB wait: part of a removing
//! call's latency, and an idle thread keeps at most that out of reach. If little space is left on
//! the image it recycles at once, so that any thread can use what it removed. A batch returns items
//! word by word, and takes the map's lock once. *Reason:* for two threads in one directory (EPYC
//! 5th gen) unlink fell from 244 to 222 ns, rmdir from 267 to 236. Sorting a batch's numbers cost
//! one thread 14 ns and gained nothing.

mod erase;
mod logs;

use crate::alloc::{BlockRun, line_mask};
use crate::components::Recycler;
use crate::death::may_die_here;
use crate::dram::{RECYCLE_BATCH as BATCH, RETIRED_MAX, RetiredKind};
use crate::epoch::GRACE_PERIOD_EPOCHS;
use crate::error::{Error, Result};
use crate::fs::Thread;
use crate::redo::WordChange;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use pmem::{BLOCK_BYTES, BadOffset, Flushed, LINE_BYTES, Memory};

/// Records that fit into the queue after `make_room`.
const ROOM: u64 = RETIRED_MAX as u64 / 4;

/// This many blocks are recycled before a batch has gathered: the thread may stay idle for long,
/// and no other thread can use its queue meanwhile.
const HEAVY_BLOCKS: u32 = 256;

/// Up to this many slots, looking at each of them for an epoch costs little.
const SLOTS_FEW: u64 = 8;

/// A record being recycled.
#[derive(Clone, Copy)]
struct RetiredItem {
    /// Its place in the batch.
    index: usize,
    kind: RetiredKind,
    a: u64,
    b: u64,
    /// Dentries: lines. Inodes: 1. Zero: does not parse, skip.
    erased: u64,
    /// Inodes: the first log page, the xattr body and the file's body, which nothing names any
    /// more.
    log: u64,
    /// See above.
    xattrs: u64,
    /// See above.
    root: u64,
    /// A reaper continues with it.
    resumed: bool,
}

impl RetiredItem {
    /// Whether it is an inode that is to be freed.
    fn is_inode(&self) -> bool {
        self.kind == RetiredKind::Inode && self.erased != 0
    }
}

/// Lines of one slab that are freed together: names removed in the order of their creation lie side
/// by side.
#[derive(Default)]
struct GatheredLines {
    slab: u64,
    lines: u64,
    /// Their records.
    line_records: u64,
}

const NO_RETIRED_ITEM: RetiredItem = RetiredItem {
    index: 0,
    kind: RetiredKind::Cachelet,
    a: 0,
    b: 0,
    erased: 0,
    log: 0,
    xattrs: 0,
    root: 0,
    resumed: false,
};

/// Bit of a dentry's `b`: it may never have been written, or its valid word may be set.
const UNPUBLISHED: u64 = 1 << 8;

fn kind_of(word: u64) -> RetiredKind {
    match word & 0xff {
        1 => RetiredKind::Inode,
        2 => RetiredKind::Blocks,
        4 => RetiredKind::Dentry,
        5 => RetiredKind::Body,
        6 => RetiredKind::Log,
        7 => RetiredKind::Numbers,
        8 => RetiredKind::Lines,
        // Only this crate writes the queue. Index zero is no cachelet, so an unknown word has no
        // effect.
        _ => RetiredKind::Cachelet,
    }
}

impl<'f, M: Memory> Recycler<'_, 'f, M> {
    /// Queues an object for recycling; never fails and recycles nothing (see `make_room` and
    /// `recycle_some`). The caller has been pinned since before it made the object unreachable.
    pub(crate) fn retire(self, kind: RetiredKind, a: u64, b: u64) {
        let end = self.owner.slot.retired_end.load(Relaxed);
        if end - self.owner.slot.retired_first.load(Relaxed) >= RETIRED_MAX as u64 {
            debug_assert!(false, "retired more than there is room for: make_room was not called");
            self.mark_unclean();
            return;
        }
        let record = &self.owner.slot.retired[end as usize % RETIRED_MAX];
        record.kind.store(kind as u64 | self.retirement_epoch() << 8, Relaxed);
        record.a.store(a, Relaxed);
        record.b.store(b, Relaxed);
        let blocks = self.owner.slot.retired_blocks.load(Relaxed).saturating_add(self.weight(kind, b));
        self.owner.slot.retired_blocks.store(blocks, Relaxed);
        may_die_here();
        self.owner.slot.retired_end.store(end + 1, Release);
        if kind == RetiredKind::Inode && self.owner.fs.is_watched() {
            self.report_end(a, b);
        }
    }

    /// Reports the end of an inode to the layer above.
    #[cold]
    fn report_end(self, number: u64, cachelet: u64) {
        let fs = self.owner.fs;
        let file = fs.dram.cachelet(cachelet as u32).and_then(|cachelet| fs.protection_of(cachelet));
        let (generation, kind) = file.map_or((0, None), |file| (file.generation, file.kind()));
        fs.platform.inode_ended(self.owner.reporter(), number, generation, kind);
    }

    /// [`Recycler::retire`] for what a lock that a stopped thread holds keeps from being freed.
    /// `with` records it together with the new record. If there is no room, it stays allocated
    /// until the next scan.
    #[cold]
    pub(crate) fn retire_together(self, kind: RetiredKind, (a, b): (u64, u64), with: WordChange<'_>) -> Result<()> {
        let end = self.owner.slot.retired_end.load(Relaxed);
        if end - self.owner.slot.retired_first.load(Relaxed) >= RETIRED_MAX as u64 {
            self.owner.change_together([with]);
            self.mark_unclean();
            return Ok(());
        }
        let record = &self.owner.slot.retired[end as usize % RETIRED_MAX];
        record.kind.store(kind as u64 | self.retirement_epoch() << 8, Relaxed);
        record.a.store(a, Relaxed);
        record.b.store(b, Relaxed);
        self.owner.change_together([WordChange::Wide(&self.owner.slot.retired_end, end + 1), with]);
        Ok(())
    }

    /// Makes room for the records of an operation that retires. Called before it, not pinned.
    /// (Inside another operation it does nothing: that one has made room.)
    #[inline]
    pub(crate) fn make_room(self) -> Result<()> {
        if self.queued() <= RETIRED_MAX as u64 - ROOM || self.owner.pinned() { Ok(()) } else { self.make_room_slowly() }
    }

    /// Recycles a batch if one has gathered, or if much space waits, and all that waits if little
    /// is left on the image. Called at the end of an operation that retires, not pinned. (Inside
    /// another operation it does nothing.)
    #[inline]
    pub(crate) fn recycle_some(self) {
        let worth_it = self.has_gathered() || self.owner.slot.retired_blocks.load(Relaxed) >= HEAVY_BLOCKS;
        let is_scarce = self.queued() > 0 && self.owner.allocator().are_blocks_scarce();
        if !(worth_it || is_scarce) || self.owner.fs.ablation.is_as_printed() || self.owner.pinned() {
            return;
        }
        let recycled = if is_scarce { self.recycle_for_others() } else { self.recycle(BATCH).map(drop) };
        // An error means that the region does not fit its layout; the next operation reports that,
        // too.
        if recycled.is_err() {
            self.mark_unclean();
        }
    }

    /// Recycles the queue, but for what a pinned thread that makes no progress may still see: a
    /// thread that finds no space cannot take what waits in the shard of another one.
    #[cold]
    fn recycle_for_others(self) -> Result<()> {
        let end = self.owner.slot.retired_end.load(Relaxed);
        while self.owner.slot.retired_first.load(Relaxed) < end {
            if self.recycle_batch(BATCH)? == 0 && !self.owner.wait_briefly_for_epoch(self.expiry_of_first())? {
                break;
            }
        }
        Ok(())
    }

    /// Whether a batch has gathered. With many threads it lies behind another one: by then other
    /// threads have usually advanced the epoch far enough.
    #[inline]
    fn has_gathered(self) -> bool {
        let queued = self.queued();
        queued >= BATCH as u64 && (queued >= 2 * BATCH as u64 || !self.has_many_threads())
    }

    fn has_many_threads(self) -> bool {
        self.owner.fs.header().is_ok_and(|header| header.slots_high.load(Relaxed) > SLOTS_FEW)
    }

    /// Recycles at most `limit` objects whose grace period is over; returns their number. Must not
    /// be called pinned.
    pub fn recycle(self, limit: usize) -> Result<usize> {
        debug_assert!(!self.owner.pinned(), "a pinned thread would wait for itself");
        let mut done = 0;
        while done < limit {
            let batch = self.recycle_batch((limit - done).min(BATCH))?;
            if batch == 0 {
                break;
            }
            done += batch;
        }
        Ok(done)
    }

    /// After `NoSpace` or `NoInodes`: recycles what waits here and in shards without a thread, as
    /// far as grace periods end, and takes back what those hold. Returns whether a retry is
    /// worthwhile. Must not be called pinned.
    pub(crate) fn reclaim_space(self) -> Result<bool> {
        let before = (self.owner.fs.block_map().blocks_free()?, self.owner.fs.header()?.inodes_used());
        self.owner.fs.reap_dead_threads()?;
        let mut recycled = self.drain_for_space()?;
        self.owner.allocator().give_back_lines()?;
        self.for_idle_shards(|idle| {
            recycled += idle.recycler().drain_for_space()?;
            idle.allocator().give_back_lines()?;
            idle.allocator().give_back_inodes()
        })?;
        let after = (self.owner.fs.block_map().blocks_free()?, self.owner.fs.header()?.inodes_used());
        Ok(recycled > 0 || after.0 > before.0 || after.1 < before.1)
    }

    /// Recycles the whole queue, waiting for other threads to unpin; returns the number of objects.
    /// Must not be called pinned.
    pub(crate) fn drain(self) -> Result<usize> {
        let mut done = 0;
        // Terminates: this thread adds only what a lock of another thread keeps from being freed,
        // and that until the lock is released.
        while self.queued() > 0 || self.owner.slot.spilled.load(Relaxed) != 0 {
            done += self.recycle_or_wait()?;
        }
        Ok(done)
    }

    /// [`Recycler::drain`], but leaves what a pinned thread that makes no progress may still see.
    pub(crate) fn drain_for_space(self) -> Result<usize> {
        let mut done = 0;
        let mut end = self.owner.slot.retired_end.load(Relaxed);
        // Records that a stopped thread keeps from being freed return to the end of the queue.
        while self.owner.slot.retired_first.load(Relaxed) < end || self.owner.slot.spilled.load(Relaxed) != 0 {
            let spilled = self.owner.slot.spilled.load(Relaxed);
            let batch = self.recycle_batch(BATCH)?;
            done += batch;
            if self.owner.slot.spilled.load(Relaxed) != spilled {
                end = self.owner.slot.retired_end.load(Relaxed);
            } else if batch == 0 && !self.owner.wait_long_for_epoch(self.expiry_of_first())? {
                break;
            }
        }
        Ok(done)
    }

    /// Calls `visit` as the owner of every slot that was used and has no thread now.
    pub(crate) fn for_idle_shards(self, mut visit: impl FnMut(&Thread<'f, M>) -> Result<()>) -> Result<()> {
        let high = self.owner.fs.header()?.slots_high.load(core::sync::atomic::Ordering::Acquire);
        for index in 0..high as u32 {
            if let Some(idle) = self.owner.fs.enter_slot(index)? {
                visit(&idle)?;
            }
        }
        Ok(())
    }

    /// Marks the image unclean: something stays allocated until the next scan, which this forces.
    #[cold]
    pub(crate) fn mark_unclean(self) {
        if let Ok(header) = self.owner.fs.header() {
            header.unclean_marks.fetch_add(1, AcqRel);
        }
    }

    /// As the reaper of this slot: queues the lines of an in-flight dentry that is not published.
    pub(crate) fn retire_unpublished(self, offset: u64, lines: u64) {
        self.retire(RetiredKind::Dentry, offset, lines | UNPUBLISHED);
    }

    /// Blocks that a record may free.
    fn weight(self, kind: RetiredKind, b: u64) -> u32 {
        let blocks = match kind {
            RetiredKind::Inode => {
                let size = self
                    .owner
                    .fs
                    .dram
                    .cachelet(b as u32)
                    .map_or(0, |cachelet| cachelet.as_file().size_bytes().load(Relaxed));
                size / BLOCK_BYTES
            }
            RetiredKind::Blocks => b,
            RetiredKind::Body => HEAVY_BLOCKS as u64,
            RetiredKind::Cachelet
            | RetiredKind::Dentry
            | RetiredKind::Log
            | RetiredKind::Numbers
            | RetiredKind::Lines => 0,
        };
        blocks.min(HEAVY_BLOCKS as u64) as u32
    }

    fn queued(self) -> u64 {
        self.owner.slot.retired_end.load(Relaxed) - self.owner.slot.retired_first.load(Relaxed)
    }

    /// The epoch to wait from: that of the pin under which the object became unreachable.
    fn retirement_epoch(self) -> u64 {
        match self.owner.slot.pinned.load(Relaxed) {
            0 => {
                fence(SeqCst);
                self.owner.fs.header().map_or(0, |header| header.global_epoch.load(SeqCst))
            }
            pinned => pinned,
        }
    }

    #[cold]
    fn make_room_slowly(self) -> Result<()> {
        // Nothing is written to an image that is only read.
        let may_spill = !self.owner.fs.untouched && !self.owner.fs.read_only;
        // Records that a stopped thread keeps from being freed return to the end of the queue.
        let end = self.owner.slot.retired_end.load(Relaxed);
        while self.queued() > RETIRED_MAX as u64 / 2 {
            if self.owner.slot.retired_first.load(Relaxed) < end && self.recycle_batch(BATCH)? != 0 {
                continue;
            }
            match may_spill {
                false => self.owner.wait_for_epoch(self.expiry_of_first())?,
                true if self.owner.wait_briefly_for_epoch(self.expiry_of_first())? => {}
                true => match self.spill_records() {
                    // No block is left: waiting is better than failing.
                    Err(Error::NoSpace) if self.owner.wait_long_for_epoch(self.expiry_of_first())? => {}
                    spilled => spilled?,
                },
            }
        }
        Ok(())
    }

    /// The global epoch from which on the oldest record may be recycled.
    fn expiry_of_first(self) -> u64 {
        let first = self.owner.slot.retired_first.load(Relaxed) as usize % RETIRED_MAX;
        (self.owner.slot.retired[first].kind.load(Relaxed) >> 8) + GRACE_PERIOD_EPOCHS
    }

    /// Recycles a batch; if no record is ripe, waits until the oldest one is.
    fn recycle_or_wait(self) -> Result<usize> {
        let done = self.recycle_batch(BATCH)?;
        if done == 0 && self.queued() > 0 {
            self.owner.wait_for_epoch(self.expiry_of_first())?;
        }
        Ok(done)
    }

    /// Recycles up to `limit` ripe records from the head of the queue under one fence; returns
    /// their number.
    fn recycle_batch(self, limit: usize) -> Result<usize> {
        if self.owner.slot.spilled.load(Relaxed) != 0 {
            self.return_expired()?;
        }
        let mut batch = [NO_RETIRED_ITEM; BATCH];
        let count = self.collect_expired(&mut batch[..limit])?;
        let batch = &mut batch[..count];
        if count == 0 {
            return Ok(0);
        }
        self.owner.slot.recycled.store(0, Relaxed);
        self.owner.slot.recycling_marked.store(0, Relaxed);
        self.owner.slot.recycling_recorded.store(0, Relaxed);
        may_die_here();
        self.owner.slot.recycling.store(count as u64, Release);
        may_die_here();
        self.recycle_items(batch)?;
        self.end_batch(count as u64);
        self.owner.allocator().trim_cachelets()?;
        Ok(count)
    }

    #[cold]
    fn return_expired(self) -> Result<()> {
        let mut now = 0;
        for _ in 0..GRACE_PERIOD_EPOCHS {
            now = self.owner.fs.advance_epoch(false)?;
        }
        // With nothing else in the queue there is nothing to wait by: the records wait there.
        let wanted = self.queued() == 0;
        self.return_spilled(|newest| wanted || now >= (newest >> 8) + GRACE_PERIOD_EPOCHS)
    }

    fn recycle_items(self, batch: &mut [RetiredItem]) -> Result<()> {
        let pm = &self.owner.fs.pm;
        let named = |item: &RetiredItem| matches!(item.kind, RetiredKind::Dentry | RetiredKind::Log);
        let journal = batch.iter().any(named);
        let mut flushed = match journal {
            // The grace period is over, so every rename that named one of these dentries, or a slot
            // in one of these pages, is finished.
            true => self.owner.fs.clear_journal()?,
            false => Flushed::nothing(),
        };
        let mut erased = 0;
        for item in batch.iter_mut() {
            let (lines, done) = self.erase(item);
            (erased, flushed) = (erased + lines, flushed.and(done));
        }
        // Crash point: any part of the batch is erased. Recovery frees objects without names or
        // birth in either case.
        if erased > 0 || journal {
            pm.fence(flushed);
        }
        let mut gathered = GatheredLines::default();
        for item in batch.iter() {
            if self.free(item, &mut gathered).is_err() {
                self.mark_unclean();
            }
        }
        if self.free_gathered(&mut gathered).is_err() {
            self.mark_unclean();
        }
        if self.free_numbers(batch).is_err() {
            self.mark_unclean();
        }
        Ok(())
    }

    fn end_batch(self, count: u64) {
        let first = self.owner.slot.retired_first.load(Relaxed) + count;
        self.owner.change_together([
            WordChange::Wide(&self.owner.slot.retired_first, first),
            WordChange::Wide(&self.owner.slot.recycling, 0),
        ]);
        if self.queued() == 0 {
            self.owner.slot.retired_blocks.store(0, Relaxed);
        }
    }

    /// As the reaper of this slot: completes the batch of its owner. Blocks that the owner had not
    /// freed belong to the slot, or to erased inodes, and are found by their owner words.
    pub(crate) fn finish_batch(self) -> Result<()> {
        let count = self.owner.slot.recycling.load(Relaxed).min(BATCH as u64);
        if count == 0 {
            return Ok(());
        }
        let done = self.owner.slot.recycled.load(Relaxed);
        let first = self.owner.slot.retired_first.load(Relaxed);
        let mut batch = [NO_RETIRED_ITEM; BATCH];
        let mut left = 0;
        for index in (0..count).filter(|index| done & 1 << index == 0) {
            let item = self.item(first, index);
            if !matches!(item.kind, RetiredKind::Blocks | RetiredKind::Body) {
                batch[left] = RetiredItem { resumed: true, ..item };
                left += 1;
            }
        }
        self.recycle_items(&mut batch[..left])?;
        self.end_batch(count);
        Ok(())
    }

    /// Record `index` of the batch at the head of the queue.
    fn item(self, first: u64, index: u64) -> RetiredItem {
        let record = &self.owner.slot.retired[(first + index) as usize % RETIRED_MAX];
        let kind = kind_of(record.kind.load(Relaxed));
        RetiredItem {
            index: index as usize,
            kind,
            a: record.a.load(Relaxed),
            b: record.b.load(Relaxed),
            ..NO_RETIRED_ITEM
        }
    }

    /// The change that marks records of the batch as freed.
    fn done(self, records: u64) -> WordChange<'f> {
        WordChange::Wide(&self.owner.slot.recycled, self.owner.slot.recycled.load(Relaxed) | records)
    }

    /// As the reaper of this slot: whether an object waits in its queue or its spill pages.
    pub(crate) fn is_queued(self, kind: RetiredKind, a: u64) -> bool {
        let first = self.owner.slot.retired_first.load(Relaxed);
        let mut found = (0..self.queued().min(RETIRED_MAX as u64))
            .map(|index| self.item(first, index))
            .any(|item| item.kind == kind && item.a == a);
        let pages = self.for_spilled(|_, records| {
            found |= records.iter().any(|[word, of, _]| kind_of(word.load()) == kind && of.load() == a);
            Ok(())
        });
        // In doubt it is: it stays allocated until the next scan.
        found || pages.is_err()
    }

    /// As the reaper of this slot: marks the blocks that wait in its queue and its spill pages, and
    /// those of the pages, so that a sweep spares them.
    pub(crate) fn mark_queued(self, owner: u64) -> Result<()> {
        let first = self.owner.slot.retired_first.load(Relaxed);
        for item in (0..self.queued().min(RETIRED_MAX as u64)).map(|index| self.item(first, index)) {
            self.mark_retired(item.kind, (item.a, item.b), owner)?;
        }
        self.for_spilled(|page, records| {
            self.owner.fs.block_map().mark_reached(page, owner)?;
            records
                .iter()
                .try_for_each(|[kind, a, b]| self.mark_retired(kind_of(kind.load()), (a.load(), b.load()), owner))
        })
    }

    fn mark_retired(self, kind: RetiredKind, (a, b): (u64, u64), owner: u64) -> Result<()> {
        match kind {
            RetiredKind::Blocks => self.owner.fs.block_map().mark_reached(BlockRun { first: a, count: b }, owner),
            RetiredKind::Body => crate::file::mark_body(self.owner.fs, a, &mut |blocks| {
                self.owner.fs.block_map().mark_body_reached(blocks, owner)
            }),
            RetiredKind::Log => self.for_old_pages(a, b, |_, run| self.owner.fs.block_map().mark_reached(run, owner)),
            RetiredKind::Inode
            | RetiredKind::Cachelet
            | RetiredKind::Dentry
            | RetiredKind::Numbers
            | RetiredKind::Lines => Ok(()),
        }
    }

    /// Collects the records at the head of the queue whose grace period is over.
    fn collect_expired(self, into: &mut [RetiredItem]) -> Result<usize> {
        let first = self.owner.slot.retired_first.load(Relaxed);
        let queued = self.queued().min(into.len() as u64);
        if queued == 0 {
            return Ok(0);
        }
        let expiry = |place: u64| {
            let record = &self.owner.slot.retired[place as usize % RETIRED_MAX];
            (record.kind.load(Relaxed) >> 8) + GRACE_PERIOD_EPOCHS
        };
        let mut now = self.owner.fs.header()?.global_epoch.load(Acquire);
        // An attempt reads a line of each thread, and an advance takes one from each.
        if now < expiry(first + queued - 1) {
            for _ in 0..=GRACE_PERIOD_EPOCHS {
                now = self.owner.fs.advance_epoch(false)?;
                if now >= expiry(first) {
                    break;
                }
            }
        }
        let mut count = 0;
        for (offset, item) in (0..queued).zip(into) {
            if now < expiry(first + offset) {
                break;
            }
            *item = self.item(first, offset);
            count += 1;
        }
        Ok(count)
    }

    /// Second phase of a record: frees its object.
    fn free(self, item: &RetiredItem, gathered: &mut GatheredLines) -> Result<()> {
        match item.kind {
            RetiredKind::Blocks => self.owner.allocator().free_blocks(BlockRun { first: item.a, count: item.b }),
            RetiredKind::Body => crate::file::free_body(self.owner, item.a),
            RetiredKind::Log => self.free_old_log(item),
            RetiredKind::Numbers => self.owner.allocator().free_inodes(item.a, item.b, self.done(1 << item.index)),
            RetiredKind::Lines => self.owner.allocator().free_line_mask(item.a, item.b, self.done(1 << item.index)),
            RetiredKind::Cachelet if item.a != 0 => self.relist_cachelet(item, item.a as u32),
            RetiredKind::Dentry if item.erased != 0 => self.gather_lines(item, gathered),
            RetiredKind::Inode if item.is_inode() => self.free_all_but_number(item),
            _ => {
                self.mark_unclean();
                Ok(())
            }
        }
    }

    /// Lists a cachelet, unless that was done before the reaper came.
    fn relist_cachelet(self, item: &RetiredItem, index: u32) -> Result<()> {
        if item.resumed && self.owner.allocator().is_listed(index)? {
            Ok(())
        } else {
            self.owner.allocator().list_cachelet(index)
        }
    }

    /// Frees everything that an inode had. Its number is freed last, because it identifies its
    /// blocks.
    fn free_all_but_number(self, item: &RetiredItem) -> Result<()> {
        let bodies = self.owner.as_owner(item.a, || self.free_bodies(item));
        if item.b != 0 {
            self.relist_cachelet(item, item.b as u32)?;
        }
        bodies
    }

    fn gather_lines(self, item: &RetiredItem, gathered: &mut GatheredLines) -> Result<()> {
        if !self.owner.fs.lines_fit(item.a, item.erased) {
            return Err(BadOffset { offset: item.a, length: item.erased * LINE_BYTES }.into());
        }
        if gathered.slab != item.a / BLOCK_BYTES {
            self.free_gathered(gathered)?;
            gathered.slab = item.a / BLOCK_BYTES;
        }
        gathered.lines |= line_mask(item.a % BLOCK_BYTES / LINE_BYTES, item.erased);
        gathered.line_records |= 1 << item.index;
        Ok(())
    }

    fn free_gathered(self, gathered: &mut GatheredLines) -> Result<()> {
        let GatheredLines { slab, lines, line_records } = core::mem::take(gathered);
        if lines == 0 { Ok(()) } else { self.owner.allocator().free_line_mask(slab, lines, self.done(line_records)) }
    }

    /// Frees the numbers of a batch's inodes, those of one word of the map together.
    fn free_numbers(self, batch: &[RetiredItem]) -> Result<()> {
        let mut inodes = batch.iter().filter(|item| item.is_inode()).peekable();
        let mut result = Ok(());
        while let Some(first) = inodes.next() {
            let word = first.a / 64;
            let (mut bits, mut records) = (1 << (first.a % 64), 1 << first.index);
            while let Some(item) = inodes.next_if(|item| item.a / 64 == word) {
                bits |= 1 << (item.a % 64);
                records |= 1 << item.index;
            }
            result = result.and(self.owner.allocator().free_inodes(word, bits, self.done(records)));
        }
        result
    }

    /// Frees the blocks of a dead inode. First all of them are marked as its own, which a reaper
    /// repeats; then they are freed, which a reaper completes by a sweep.
    fn free_bodies(self, item: &RetiredItem) -> Result<()> {
        if item.resumed && self.owner.slot.recycling_marked.load(Relaxed) & 1 << item.index != 0 {
            return self.owner.allocator().sweep_blocks(item.a);
        }
        if item.root == 0 && item.log == 0 && item.xattrs == 0 {
            return Ok(());
        }
        self.free_log_dentries(item.log, item.a)?;
        crate::file::mark_body_of(self.owner, item.root)?;
        crate::file::mark_body_of(self.owner, item.xattrs)?;
        self.owner
            .slot
            .recycling_marked
            .store(self.owner.slot.recycling_marked.load(Relaxed) | 1 << item.index, Release);
        may_die_here();
        for root in [item.xattrs, item.root].into_iter().filter(|root| *root != 0) {
            crate::file::free_body(self.owner, root)?;
        }
        self.free_log(item.log, item.a)
    }
}

const _: () = assert!(BATCH == 64 && ROOM >= 64);
