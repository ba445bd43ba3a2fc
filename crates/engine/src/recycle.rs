//! Asynchronous recycling: what was removed waits in its shard's queue for a grace period, then becomes free.
//!
//! Invariants
//! - The queue never overflows: an operation that retires calls [`Thread::make_room`] before it enters, and so has room for 64 records at least
//!   ([`ROOM`] in truth) inside. Who retires more than that (the truncation of a file in many pieces) leaves and makes room again between
//!   portions.
//! - Recycling has two phases. First what could harm the next use is made durably zero, under one fence: of an inode its log, attributes, access time
//!   and inline area, of a dentry the words of its further lines that could pass for valid words. Most have nothing of the kind, and nothing is
//!   flushed: names bind themselves to a generation, seals to a turn. Only then do numbers, lines, blocks and cachelets go back to the allocators. A
//!   crash in the first phase leaves things that recovery finds dead and erases; a crash in the second finds nothing that names them.
//! - The dentries of a removed directory are erased and freed after its birth is durably zero, and after all cleared journal records are durably clear.
//! - What does not parse is skipped: it stays allocated until the next scan, and fsck names it.

use crate::alloc::{BlockRun, line_mask};
use crate::dram::{IntentKind, PLAIN, RETIRED_MAX, RetiredKind};
use crate::error::Result;
use crate::format::{
    Dentry, FileKind, Inode, LOG_SLOTS, LogPage, PROPERTY_INLINE, dentry_lines, slot_address, slot_tag,
};
use crate::fs::Thread;
use crate::grace::GRACE_EPOCHS;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use pmem::{BLOCK_BYTES, BadOffset, Flushed, LINE_BYTES, Memory, Pm};

/// Records that are recycled together, under one fence.
const BATCH: usize = 64;
/// Records that fit into the queue after `make_room`.
const ROOM: u64 = RETIRED_MAX as u64 / 4;

/// A record on its way.
#[derive(Clone, Copy)]
struct Item {
    kind: RetiredKind,
    a: u64,
    b: u64,
    /// Dentries: lines. Inodes: 1. Zero: does not parse, skip.
    erased: u64,
    /// Inodes: the first log page, the xattr body and the file's body, which nothing names any more.
    log: u64,
    /// See above.
    xattrs: u64,
    /// See above.
    root: u64,
}

/// Neighbours that go back together: what is removed in the order in which it was made lies side by side.
#[derive(Default)]
struct Gathered {
    inode_word: u64,
    inode_bits: u64,
    slab: u64,
    lines: u64,
}

const NO_ITEM: Item = Item { kind: RetiredKind::Cachelet, a: 0, b: 0, erased: 0, log: 0, xattrs: 0, root: 0 };

fn kind_of(word: u64) -> RetiredKind {
    match word & 0xff {
        1 => RetiredKind::Inode,
        2 => RetiredKind::Blocks,
        4 => RetiredKind::Dentry,
        5 => RetiredKind::Body,
        // Only this crate writes the queue. A cachelet of index zero is nobody's, so a word that is none of these does nothing.
        _ => RetiredKind::Cachelet,
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Queues something for recycling; never fails and recycles nothing (see `make_room` and `recycle_some`). The caller is pinned since before it took
    /// the thing out of reach.
    pub(crate) fn retire(&self, kind: RetiredKind, a: u64, b: u64) {
        let end = self.slot.retired_end.load(Relaxed);
        if end - self.slot.retired_first.load(Relaxed) >= RETIRED_MAX as u64 {
            debug_assert!(false, "retired more than there is room for: make_room was not called");
            self.lose();
            return;
        }
        let record = &self.slot.retired[end as usize % RETIRED_MAX];
        record.kind.store(kind as u64 | self.retirement_epoch() << 8, Relaxed);
        record.a.store(a, Relaxed);
        record.b.store(b, Relaxed);
        self.slot.retired_end.store(end + 1, Release);
    }

    /// To be called un-pinned before an operation that retires: sees to it that there is room for its records. (Inside another operation it does
    /// nothing: that one has made room.)
    #[inline]
    pub(crate) fn make_room(&self) -> Result<()> {
        if self.queued() <= RETIRED_MAX as u64 - ROOM || self.pinned() { Ok(()) } else { self.make_room_slowly() }
    }

    /// To be called un-pinned at the end of an operation that retires: recycles a batch when one has gathered. (Inside another operation it does
    /// nothing.)
    #[inline]
    pub(crate) fn recycle_some(&self) {
        // An error says that the region does not fit its layout, which the next operation says too.
        if self.queued() >= BATCH as u64 && !self.pinned() && self.recycle(BATCH).is_err() {
            self.lose();
        }
    }

    /// Recycles what can be, at most `limit` things; how many. Must not be called pinned.
    pub fn recycle(&self, limit: usize) -> Result<usize> {
        debug_assert!(!self.pinned(), "waits for itself");
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

    /// After `NoSpace`, `NoInodes`: recycles all that waits here and in shards without a thread, and takes back what those hold. Whether it is worth
    /// trying once more. Must not be called pinned.
    pub(crate) fn reclaim(&self) -> Result<bool> {
        let before = (self.fs.blocks_free()?, self.fs.header()?.inodes_used.load(Relaxed));
        let mut recycled = self.drain()?;
        self.give_back_lines()?;
        self.for_idle_shards(|idle| {
            recycled += idle.drain()?;
            idle.give_back_lines()?;
            idle.give_back_inodes()
        })?;
        let after = (self.fs.blocks_free()?, self.fs.header()?.inodes_used.load(Relaxed));
        Ok(recycled > 0 || after.0 > before.0 || after.1 < before.1)
    }

    /// Recycles the whole queue, waiting for others to leave; how many things. Must not be called pinned.
    pub(crate) fn drain(&self) -> Result<usize> {
        let mut done = 0;
        // What is queued now is enough: this thread adds nothing meanwhile.
        while self.queued() > 0 {
            done += self.recycle_or_wait()?;
        }
        Ok(done)
    }

    /// Calls `visit` as the owner of every slot that was used and has no thread now.
    pub(crate) fn for_idle_shards(&self, mut visit: impl FnMut(&Thread<'f, M>) -> Result<()>) -> Result<()> {
        let high = self.fs.header()?.slots_high.load(core::sync::atomic::Ordering::Acquire);
        for index in 0..high as u32 {
            if let Some(idle) = self.fs.enter_slot(index)? {
                visit(&idle)?;
            }
        }
        Ok(())
    }

    /// Something stays allocated until the next scan; sees to it that there is one.
    #[cold]
    fn lose(&self) {
        if let Ok(header) = self.fs.header() {
            header.abandoned.fetch_add(1, AcqRel);
        }
    }

    fn queued(&self) -> u64 {
        self.slot.retired_end.load(Relaxed) - self.slot.retired_first.load(Relaxed)
    }

    /// The epoch to wait from: that of the pin under which the thing was taken out of reach.
    fn retirement_epoch(&self) -> u64 {
        match self.slot.pinned.load(Relaxed) {
            0 => {
                fence(SeqCst);
                self.fs.header().map_or(0, |header| header.grace.load(SeqCst))
            }
            pinned => pinned,
        }
    }

    #[cold]
    fn make_room_slowly(&self) -> Result<()> {
        while self.queued() > RETIRED_MAX as u64 / 2 {
            self.recycle_or_wait()?;
        }
        Ok(())
    }

    /// Recycles a batch; if nothing is ripe, waits until the oldest record is.
    fn recycle_or_wait(&self) -> Result<usize> {
        let done = self.recycle_batch(BATCH)?;
        if done == 0 && self.queued() > 0 {
            let first = self.slot.retired_first.load(Relaxed) as usize % RETIRED_MAX;
            self.wait_for_epoch((self.slot.retired[first].kind.load(Relaxed) >> 8) + GRACE_EPOCHS)?;
        }
        Ok(done)
    }

    /// Recycles up to `limit` ripe records from the head of the queue under one fence; how many.
    fn recycle_batch(&self, limit: usize) -> Result<usize> {
        let mut batch = [NO_ITEM; BATCH];
        let count = self.ripe(&mut batch[..limit])?;
        let batch = &mut batch[..count];
        if count == 0 {
            return Ok(0);
        }
        self.slot.intent.kind.store(IntentKind::Recycle as u32, Release);
        let pm = &self.fs.pm;
        let named = |item: &Item| matches!(item.kind, RetiredKind::Dentry | RetiredKind::Blocks);
        let journal = batch.iter().any(named);
        let mut flushed = match journal {
            // The grace period is over, so every rename that named one of these dentries, or a slot in one of these pages, is finished.
            true => self.clear_journal()?,
            false => Flushed::nothing(),
        };
        let mut erased = 0;
        for item in batch.iter_mut() {
            let (lines, done) = self.erase(item);
            (erased, flushed) = (erased + lines, flushed.and(done));
        }
        // Crash point: any part of the batch is erased. Recovery frees what has no names or no birth either way.
        if erased > 0 || journal {
            pm.fence(flushed);
        }
        // Before anything is free: if this thread dies half-way, things are lost until the next scan, never free twice.
        self.slot.retired_first.store(self.slot.retired_first.load(Relaxed) + count as u64, Release);
        let mut gathered = Gathered::default();
        for item in batch.iter() {
            if self.free(item, &mut gathered).is_err() {
                self.lose();
            }
        }
        if self.free_gathered(&mut gathered).is_err() {
            self.lose();
        }
        self.slot.intent.kind.store(IntentKind::None as u32, Release);
        Ok(count)
    }

    /// Collects the records at the head of the queue whose grace period is over.
    fn ripe(&self, into: &mut [Item]) -> Result<usize> {
        let first = self.slot.retired_first.load(Relaxed);
        let queued = self.queued().min(into.len() as u64);
        if queued == 0 {
            return Ok(0);
        }
        let oldest = self.slot.retired[first as usize % RETIRED_MAX].kind.load(Relaxed) >> 8;
        let mut now = 0;
        for _ in 0..=GRACE_EPOCHS {
            now = self.fs.advance_grace(false)?;
            if now >= oldest + GRACE_EPOCHS {
                break;
            }
        }
        let mut count = 0;
        for (offset, item) in (0..queued).zip(into) {
            let record = &self.slot.retired[(first + offset) as usize % RETIRED_MAX];
            let word = record.kind.load(Relaxed);
            if now < (word >> 8) + GRACE_EPOCHS {
                break;
            }
            *item = Item { kind: kind_of(word), a: record.a.load(Relaxed), b: record.b.load(Relaxed), ..NO_ITEM };
            count += 1;
        }
        Ok(count)
    }

    /// First phase: what was flushed, and how many lines.
    fn erase(&self, item: &mut Item) -> (u64, Flushed) {
        match item.kind {
            RetiredKind::Inode => self.erase_retired_inode(item).unwrap_or((0, Flushed::nothing())),
            RetiredKind::Dentry => self.erase_dentry(item),
            RetiredKind::Blocks | RetiredKind::Cachelet | RetiredKind::Body => (0, Flushed::nothing()),
        }
    }

    /// The cachelet of a dead inode is as its last user left it, and says most of what is needed.
    fn erase_retired_inode(&self, item: &mut Item) -> Result<(u64, Flushed)> {
        let cachelet = self.fs.dram.cachelet(item.b as u32)?;
        let has_body = matches!(self.fs.kind(cachelet)?, FileKind::Regular | FileKind::Symlink)
            && cachelet.flags.load(Relaxed) as u16 & PROPERTY_INLINE == 0;
        item.root = if has_body { cachelet.root.load(Relaxed) } else { 0 };
        item.erased = 1;
        if cachelet.dirty.load(Relaxed) & PLAIN != 0 {
            return Ok((0, Flushed::nothing()));
        }
        let inode = self.fs.inode(item.a)?;
        (item.log, item.xattrs) = (inode.log.load_acquire(), inode.xattrs.load_acquire());
        Ok(match inode.is_plain() {
            true => (0, Flushed::nothing()),
            false => (2, self.fs.erase_inode(inode, inode.free_word())),
        })
    }

    fn erase_dentry(&self, item: &mut Item) -> (u64, Flushed) {
        let Ok(dentry) = self.fs.pm.get(Pm::<Dentry>::new(item.a)) else { return (0, Flushed::nothing()) };
        let Some(facts) = dentry.facts() else { return (0, Flushed::nothing()) };
        item.erased = dentry_lines(facts.name_length as usize);
        (item.erased - 1, self.fs.erase_dentry_lines(dentry, item.a, item.erased))
    }

    /// Second phase: gives it back.
    fn free(&self, item: &Item, gathered: &mut Gathered) -> Result<()> {
        match item.kind {
            RetiredKind::Blocks => self.free_blocks(BlockRun { first: item.a, count: item.b }),
            RetiredKind::Body => crate::file::free_body(self, item.a),
            RetiredKind::Cachelet if item.a != 0 => self.free_cachelet(item.a as u32),
            RetiredKind::Dentry if item.erased != 0 => self.gather_lines(item, gathered),
            RetiredKind::Inode if item.erased != 0 => self.free_whole_inode(item, gathered),
            _ => {
                self.lose();
                Ok(())
            }
        }
    }

    /// Frees all that an inode had.
    fn free_whole_inode(&self, item: &Item, gathered: &mut Gathered) -> Result<()> {
        let bodies = self.free_bodies(item);
        if gathered.inode_word != item.a / 64 {
            self.free_gathered(gathered)?;
            gathered.inode_word = item.a / 64;
        }
        gathered.inode_bits |= 1 << (item.a % 64);
        if item.b != 0 {
            self.free_cachelet(item.b as u32)?;
        }
        bodies
    }

    fn gather_lines(&self, item: &Item, gathered: &mut Gathered) -> Result<()> {
        if !self.fs.lines_fit(item.a, item.erased) {
            return Err(BadOffset { offset: item.a, length: item.erased * LINE_BYTES }.into());
        }
        if gathered.slab != item.a / BLOCK_BYTES {
            self.free_gathered(gathered)?;
            gathered.slab = item.a / BLOCK_BYTES;
        }
        gathered.lines |= line_mask(item.a % BLOCK_BYTES / LINE_BYTES, item.erased);
        Ok(())
    }

    fn free_gathered(&self, gathered: &mut Gathered) -> Result<()> {
        let Gathered { inode_word, inode_bits, slab, lines } = core::mem::take(gathered);
        let inodes = if inode_bits != 0 { self.free_inodes(inode_word, inode_bits) } else { Ok(()) };
        if lines != 0 { self.free_line_mask(slab, lines).and(inodes) } else { inodes }
    }

    fn free_bodies(&self, item: &Item) -> Result<()> {
        for root in [item.xattrs, item.root].into_iter().filter(|root| *root != 0) {
            crate::file::free_body(self, root)?;
        }
        self.free_log(item.log, item.a)
    }

    /// Frees the log of a removed directory: pages, and the dentries that their slots still name.
    fn free_log(&self, first: u64, owner: u64) -> Result<()> {
        if first == 0 {
            return Ok(());
        }
        // Of whichever thread a rename was that named one of these dentries: replaying it must be over before they are something else.
        self.fs.pm.fence(self.clear_journal()?);
        let mut offset = first;
        // A directory has no more pages than the image has blocks; a chain that goes on is a ring.
        for _ in 0..self.fs.geometry.blocks {
            if offset == 0 {
                break;
            }
            let run = BlockRun { first: offset / BLOCK_BYTES, count: 1 };
            let page = self.fs.pm.get(Pm::<LogPage>::new(offset))?;
            if !self.fs.is_data(run) || !page.belongs_to(owner) {
                return Err(crate::error::Corruption::LogPage(offset).into());
            }
            self.free_dentries(page, owner)?;
            offset = page.next.load_acquire();
            // A page that is met again is not this directory's any more.
            let pm = &self.fs.pm;
            pm.flush(pm.set64(&page.seal, 0)).unfenced();
            self.free_blocks(run)?;
        }
        Ok(())
    }

    /// Erases and frees the dead dentries of a page: a batch of them under each fence.
    fn free_dentries(&self, page: &LogPage, owner: u64) -> Result<()> {
        for slots in page.slots.chunks(BATCH) {
            let mut dead = [(0u64, 0u64); BATCH];
            let mut count = 0;
            let mut flushed = Flushed::nothing();
            for slot in slots {
                if let Some((offset, lines, erased)) = self.erase_dead_dentry(slot.load(), owner) {
                    dead[count] = (offset, lines);
                    count += 1;
                    flushed = flushed.and(erased);
                }
            }
            if count > 0 {
                self.fs.pm.fence(flushed);
            }
            for (offset, lines) in &dead[..count] {
                self.free_lines(*offset, *lines)?;
            }
        }
        Ok(())
    }

    /// Erases the dentry that a slot of a removed directory names, if it is one and does not count: its offset and lines.
    fn erase_dead_dentry(&self, word: u64, owner: u64) -> Option<(u64, u64, Flushed)> {
        slot_tag(word)?;
        let pm = &self.fs.pm;
        let offset = slot_address(word);
        let dentry = pm.get(Pm::<Dentry>::new(offset)).ok()?;
        let facts = dentry.verified(pm).filter(|facts| facts.parent == owner)?;
        if dentry.valid.load() & 1 != 0 {
            return None;
        }
        let lines = dentry_lines(facts.name_length as usize);
        Some((offset, lines, self.fs.erase_dentry_lines(dentry, offset, lines)))
    }
}

const _: () = assert!(LOG_SLOTS as usize >= BATCH && ROOM >= 64);

impl<M: Memory> crate::fs::Fs<M> {
    /// Ends the life of a dentry that does not count durably. What is flushed are its further lines; the caller fences.
    ///
    /// Its first line may stay as it is: see `format::dentry`. (The seal goes lest a damaged log that names it twice frees it twice.) A further
    /// line begins with a part of the name, which the next dentry there could take for a valid word of an earlier turn.
    fn erase_dentry_lines(&self, dentry: &Dentry, offset: u64, lines: u64) -> Flushed {
        let pm = &self.pm;
        pm.set64(&dentry.seal, 0).unflushed();
        let mut flushed = Flushed::nothing();
        for line in 1..lines {
            if let Ok(first) = pm.get(Pm::<Dentry>::new(offset + line * LINE_BYTES)) {
                flushed = flushed.and(pm.flush(pm.retract(&first.valid, 0)));
            }
        }
        flushed
    }

    /// Ends the life of an inode: no birth but a generation, `free_word`; `..`, log, xattrs, inline area and access time zero, flushed. The caller
    /// fences.
    ///
    /// The next life's birth certifies none of these, and shares a line with some: were they not zero before, a crash could give the new
    /// file what the old one had.
    pub(crate) fn erase_inode(&self, inode: &Inode, free_word: u64) -> Flushed {
        let pm = &self.pm;
        let first = pm
            .retract(&inode.birth, free_word)
            .and(pm.retract(&inode.parent, 0))
            .and(pm.retract(&inode.log, 0))
            .and(pm.retract(&inode.xattrs, 0))
            .and(pm.set64(&inode.nv_pointer, 0));
        if inode.tail_is_zero() {
            return pm.flush(first);
        }
        let mut last = pm.set64(&inode.accessed_ns, 0);
        for word in &inode.inline {
            last = last.and(pm.set64(word, 0));
        }
        pm.flush(first).and(pm.flush(last))
    }
}
