//! Appending to a directory's log (paper III.F). Slots are claimed by CAS on the tail, which lives
//! in DRAM. The nonzero slots on the image are the truth, so the tail needs no persisting.
//!
//! In a directory that several threads change at once ([`super::totals`]), each thread claims slots
//! in advance, so that they do not share a line.
//!
//! Invariants
//! - A claimed slot belongs to its claimer alone. If the claimer fails, the slot stays zero for
//!   ever: a hole.
//! - Slots claimed in advance are used only while the directory has the log of then: it was neither
//!   indexed again nor compacted since, and is not being compacted. A compaction begins before the
//!   grace period that it waits for, so no slot is filled in a page that it copies.
//! - A slot that names a dentry changes only when a rename gives its name to another file. One
//!   store then makes it name the new dentry, which has the same cookie, so a listing meets the
//!   name once. The store happens under the name's bucket, and never while the log is being
//!   compacted.
//! - A slot is filled after the page's bound of used slots covers it, so readers stop at the bound.
//! - The last page is an append page (or the log is empty). It is linked durably before any thread
//!   claims a slot in it. A linked page behind the tail's page waits for the tail to move there.
//!
//! A cookie is a position in a numbering that never repeats in a directory. A dentry keeps its
//! cookie, and compaction keeps the order: telldir and seekdir stay exact. *Rejected:* a tail on
//! the image, as in the paper. It takes a fence of its own.

use super::DirectoryHint;
use super::read::log_version;
use crate::alloc::BlockRun;
use crate::death::may_die_here;
use crate::dram::{Cachelet, DirectoryState, LogBatch, PLAIN};
use crate::error::{Corruption, Error, Result};
use crate::format::{
    Dentry, FIRST_COOKIE, FileKind, LOG_SLOTS, LogPage, LogPageKind, SlotTag, USED_SLOTS_MIN, slot_word,
};
use crate::fs::{Fs, Thread};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Commit64, Dirty, Flushed, Memory, Pm};

/// Slots of the log of a shared directory that a thread claims at a time: two lines.
const BATCH_SLOTS: u64 = 16;

/// A slot of a directory's log that this operation fills.
#[derive(Clone, Copy)]
pub(super) struct ClaimedSlot<'f> {
    /// The word.
    pub word: &'f Commit64,
    /// The slot's cookie.
    pub cookie: u64,
    /// The slot still names another dentry of the same name, which the new dentry replaces.
    pub reused: bool,
}

/// The tail of a log as one word: page number and next slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail(pub u64);

impl Tail {
    pub(super) fn new(page: u64, slot: u64) -> Tail {
        Tail(((page / BLOCK_BYTES) << 10) | slot)
    }

    pub(super) fn page(self) -> u64 {
        (self.0 >> 10) * BLOCK_BYTES
    }

    pub(super) fn slot(self) -> u64 {
        self.0 & 1023
    }
}

impl<M: Memory> Fs<M> {
    /// The log page at an offset, checked to belong to directory `owner`.
    pub(crate) fn log_page(&self, offset: u64, owner: u64) -> Result<(&LogPage, LogPageKind)> {
        let corrupt = Error::Corrupt(Corruption::LogPage(offset));
        let page = self.pm.get(Pm::<LogPage>::new(offset)).map_err(|_| corrupt)?;
        let kind = page.kind(owner).ok_or(corrupt)?;
        Ok((page, kind))
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Number of slots of a page that may have been claimed: up to the tail in the last page of an
    /// indexed directory, else up to the bound of used slots.
    pub(super) fn slots_claimed(&self, directory: &Cachelet, page: &LogPage) -> usize {
        // While a pinned thread sees a directory indexed, its tail is known.
        if DirectoryState::of(directory) == DirectoryState::Indexed {
            let tail = Tail(directory.as_directory().log_tail().load(Acquire));
            if tail.page() == self.fs.pm.offset_of(page) {
                return page.slots.len().min(tail.slot() as usize);
            }
        }
        page.used_slots().len()
    }

    /// Claims a slot of a directory's log. The directory is indexed, so its tail is known.
    #[inline]
    pub(super) fn claim_slot(&self, directory: &'f Cachelet) -> Result<ClaimedSlot<'f>> {
        match directory.as_directory().is_shared_and_unmaintained() {
            true => self.claim_slot_in_advance(directory),
            false => self.claim_next_slot(directory),
        }
    }

    /// [`Thread::claim_slot`] of a directory that is shared and not maintained.
    #[inline(never)]
    fn claim_slot_in_advance(&self, directory: &'f Cachelet) -> Result<ClaimedSlot<'f>> {
        let index = self.fs.dram.index_of(directory);
        let batch = self.slot.names.batch(index);
        if !self.is_batch_of(batch, directory, index) {
            self.claim_batch(batch, directory, index)?;
        }
        let next = Tail(batch.next.load(Relaxed));
        batch.next.store(next.0 + 1, Relaxed);
        may_die_here();
        let page = self.fs.pm.get(Pm::<LogPage>::new(next.page()))?;
        let word = &page.slots[next.slot() as usize % LOG_SLOTS as usize];
        Ok(ClaimedSlot { word, cookie: page.first_cookie.load() + next.slot(), reused: false })
    }

    /// Whether there are slots left, and a directory still has the log of which they are.
    fn is_batch_of(&self, batch: &LogBatch, directory: &Cachelet, index: u32) -> bool {
        Tail(batch.next.load(Relaxed)).slot() < batch.end.load(Relaxed) as u64
            && batch.directory.load(Relaxed) == index
            && batch.number.load(Relaxed) == directory.number.load(Relaxed)
            && batch.version.load(Relaxed) == directory.version.load(Relaxed)
            && batch.state.load(Relaxed) == directory.as_directory().state().load(Acquire)
    }

    /// Claims the rest of a line's slots.
    fn claim_batch(&self, batch: &LogBatch, directory: &'f Cachelet, index: u32) -> Result<()> {
        // None is claimed while the words below belong to different directories.
        batch.end.store(0, Relaxed);
        may_die_here();
        batch.directory.store(index, Relaxed);
        batch.number.store(directory.number.load(Relaxed), Relaxed);
        batch.version.store(directory.version.load(Relaxed), Relaxed);
        batch.state.store(directory.as_directory().state().load(Acquire), Relaxed);
        // Brings the line with the tail here, for writing.
        self.pass_on_batch(directory, index);
        loop {
            let tail = Tail(directory.as_directory().log_tail().load(Acquire));
            if tail.page() == 0 || tail.slot() >= LOG_SLOTS {
                self.extend_log(directory, tail)?;
                continue;
            }
            let end = ((tail.slot() / BATCH_SLOTS + 1) * BATCH_SLOTS).min(LOG_SLOTS);
            let next = Tail::new(tail.page(), end);
            if directory.as_directory().log_tail().compare_exchange_weak(tail.0, next.0, AcqRel, Relaxed).is_err() {
                continue;
            }
            may_die_here();
            let page = self.fs.pm.get(Pm::<LogPage>::new(tail.page()))?;
            self.fs.pm.prefetch_for_write(self.fs.pm.offset_of(&page.slots[tail.slot() as usize]));
            if (page.used.load() as u32 as u64) < end {
                self.raise_used_slots(page, end)?;
            }
            batch.next.store(tail.0, Relaxed);
            may_die_here();
            batch.end.store(end as u32, Relaxed);
            return Ok(());
        }
    }

    /// Claims the next slot of a directory's log.
    #[inline]
    fn claim_next_slot(&self, directory: &'f Cachelet) -> Result<ClaimedSlot<'f>> {
        loop {
            let tail = Tail(directory.as_directory().log_tail().load(Acquire));
            if tail.page() == 0 || tail.slot() >= LOG_SLOTS {
                self.extend_log(directory, tail)?;
                continue;
            }
            let next = Tail(tail.0 + 1);
            if directory.as_directory().log_tail().compare_exchange_weak(tail.0, next.0, AcqRel, Relaxed).is_err() {
                continue;
            }
            may_die_here();
            let page = self.fs.pm.get(Pm::<LogPage>::new(tail.page()))?;
            // The neighbouring slots belong to other threads.
            self.fs.pm.prefetch_for_write(self.fs.pm.offset_of(&page.slots[tail.slot() as usize]));
            let cookie = page.first_cookie.load() + tail.slot();
            // In the line of the cookie. The rest of the word is checked where it is raised.
            if page.used.load() as u32 as u64 <= tail.slot() {
                self.raise_used_slots(page, tail.slot() + 1)?;
            }
            return Ok(ClaimedSlot { word: &page.slots[tail.slot() as usize], cookie, reused: false });
        }
    }

    /// Raises a page's bound of used slots to cover a number of them, before the last of these is
    /// filled. Not flushed here as a rule, so that a create flushes no line more: after a crash
    /// recovery corrects the bound, and the last detach flushes it.
    ///
    /// From an unknown bound, too: all used slots were claimed before the caller's, or their
    /// claimers come here for themselves. A claimer may have taken a damaged word for a higher
    /// bound, so that one is replaced by the highest.
    #[cold]
    #[inline(never)]
    fn raise_used_slots(&self, page: &LogPage, slots: u64) -> Result<()> {
        if !self.fs.superblock()?.has_used_slots() {
            return Ok(());
        }
        let (owner, first_cookie) = (page.owner.load(), page.first_cookie.load());
        loop {
            let word = page.used.load_acquire();
            let bound = page.used_bound();
            if bound.is_some_and(|bound| bound >= slots) {
                return Ok(());
            }
            let used = if word == 0 || bound.is_some() { LogPage::used_for(slots) } else { LOG_SLOTS };
            let raised = LogPage::used_word(owner, first_cookie, used);
            if let Some(dirty) = self.fs.pm.exchange64(&page.used, word, raised) {
                may_die_here();
                // A link that is stored later is flushed after the bound, which is in its line.
                // Otherwise the caller's fence makes the bound durable with its slot.
                match page.next.load_acquire() {
                    0 => dirty.unflushed(),
                    _ => self.fs.pm.flush(dirty).unfenced(),
                }
                return Ok(());
            }
        }
    }

    /// Flushes the bounds of used slots of all pages of a directory. Those of earlier pages were
    /// flushed with links, unless a thread died; then the directory comes here for a recount.
    pub(super) fn flush_used_slots(&self, directory: &Cachelet) -> Result<Flushed> {
        let number = directory.number.load(Relaxed);
        let mut offset = self.fs.inode_at(directory.inode.load(Relaxed))?.log.load_acquire();
        let mut flushed = Flushed::nothing();
        for _ in 0..self.fs.blocks() {
            // A log that is damaged gets no names.
            let Ok((page, _)) = self.fs.log_page(offset, number) else { break };
            flushed = flushed.and(self.fs.pm.flush_all(&page.used));
            offset = page.next.load_acquire();
            if offset == 0 {
                break;
            }
        }
        Ok(flushed)
    }

    /// Flushes the bound of used slots of the last page of each directory. For the last detach.
    pub(crate) fn flush_all_used_slots(&self) -> Result<Flushed> {
        let mut flushed = Flushed::nothing();
        if !self.fs.superblock()?.has_used_slots() {
            return Ok(flushed);
        }
        let end = self.fs.header()?.cachelets_next.load(Acquire).min(self.fs.dram.layout.cachelets_max);
        for index in 1..end as u32 {
            let cachelet = self.fs.dram.cachelet(index)?;
            let is_directory = FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Directory);
            if is_directory && cachelet.number.load(Acquire) != 0 {
                let page = Tail(cachelet.as_directory().log_tail().load(Acquire)).page();
                if page != 0 {
                    flushed = flushed.and(self.fs.pm.flush_all(&self.fs.pm.get(Pm::<LogPage>::new(page))?.used));
                }
            }
        }
        Ok(flushed)
    }

    /// Returns the slot that names a dentry, for the new dentry that replaces it; a fresh slot if
    /// the log does not name the dentry as expected. `Busy` while the log is being compacted, since
    /// copied slots must not change. Pinned, so a later compaction waits for this thread to leave.
    pub(super) fn reuse_slot(&self, directory: &'f Cachelet, replaced: (&Dentry, u64)) -> Result<ClaimedSlot<'f>> {
        let (dentry, offset) = replaced;
        if directory.as_directory().is_maintained() {
            return Err(Error::Busy);
        }
        let cookie = dentry.cookie.load();
        let log_version = log_version(directory);
        // Most names in active use lie in the last page; starting there spares the walk along the
        // chain.
        let tail = DirectoryHint { page: Tail(directory.as_directory().log_tail().load(Acquire)).page(), log_version };
        let page = self.first_page(directory, cookie, &tail, log_version)?;
        if page != 0 {
            let (page, kind) = self.fs.log_page(page, directory.number.load(Relaxed))?;
            let word = slot_word(offset, SlotTag::Dentry);
            let slot = match kind {
                LogPageKind::Append => page.slots.get(cookie.wrapping_sub(page.first_cookie.load()) as usize),
                LogPageKind::Compacted => page.slots.iter().find(|slot| slot.load() == word),
            };
            if let Some(slot) = slot.filter(|slot| slot.load_acquire() == word) {
                return Ok(ClaimedSlot { word: slot, cookie, reused: true });
            }
        }
        self.claim_slot(directory)
    }

    /// Appends a page behind a directory's last one and moves the tail to it (paper, algorithm 1,
    /// lines 5 to 9). Returns the page, which may be another thread's. No lock: of several threads
    /// one links its page, and each of them can do the rest. Pinned.
    pub(super) fn extend_log(&self, directory: &'f Cachelet, tail: Tail) -> Result<u64> {
        let number = directory.number.load(Relaxed);
        let (link, first_cookie) = match tail.page() {
            0 => (&self.fs.inode_at(directory.inode.load(Relaxed))?.log, FIRST_COOKIE),
            last => {
                let page = self.fs.log_page(last, number)?.0;
                (&page.next, page.first_cookie.load() + LOG_SLOTS)
            }
        };
        if link.load_acquire() == 0 {
            if tail.page() == 0 {
                directory.dirty.fetch_and(!PLAIN, AcqRel);
            }
            match self.link_page(number, link, first_cookie) {
                // Another thread had the space.
                Err(_) if link.load_acquire() != 0 => {}
                linked => linked?,
            }
        }
        let pm = &self.fs.pm;
        // The thread that linked the page may be stopped before its flush.
        pm.fence(pm.flush_all(link));
        may_die_here();
        let page = link.load_acquire();
        let behind = |now: u64| (Tail(now).page() == tail.page()).then_some(Tail::new(page, 0).0);
        let _ = directory.as_directory().log_tail().fetch_update(AcqRel, Relaxed, behind);
        Ok(page)
    }

    /// Links a new append page by `link`, unless another thread does. The slot records the page, so
    /// that a reaper knows its owner.
    fn link_page(&self, number: u64, link: &Commit64, first_cookie: u64) -> Result<()> {
        let (pm, in_flight) = (&self.fs.pm, &self.slot.in_flight_page);
        let (run, flushed) = self.new_page(number, first_cookie)?;
        let offset = run.first * BLOCK_BYTES;
        let durable = pm.fence(flushed);
        in_flight.page.store(offset, Relaxed);
        in_flight.owner.store(number, Relaxed);
        in_flight.link.store(pm.offset_of(link), Release);
        may_die_here();
        // Crash point: until the link is durable nothing names the page, so its block is free
        // again.
        let linked = pm.commit_if(link, 0, offset, durable);
        may_die_here();
        if let Some(dirty) = linked {
            // Flushed by the caller, like another thread's.
            dirty.unflushed();
            self.own_linked_page()
        } else {
            in_flight.link.store(0, Release);
            self.allocator().free_blocks(run)
        }
    }

    /// Gives the recorded page to its directory, if it was linked. Repeated by a reaper.
    pub(crate) fn own_linked_page(&self) -> Result<()> {
        let recorded = &self.slot.in_flight_page;
        let (link, page) = (recorded.link.load(Acquire), recorded.page.load(Relaxed));
        if link == 0 {
            return Ok(());
        }
        if self.fs.pm.get(Pm::<Commit64>::new(link))?.load_acquire() == page {
            // As a page that was reached: a reaper may be freeing what it did not meet in the
            // directory, and have passed the link before it was there.
            self.fs
                .block_map()
                .mark_reached(BlockRun { first: page / BLOCK_BYTES, count: 1 }, recorded.owner.load(Relaxed))?;
            may_die_here();
        }
        recorded.link.store(0, Release);
        Ok(())
    }

    /// A fresh append page: a header followed by zeros, flushed. The caller fences before it links
    /// the page.
    fn new_page(&self, owner: u64, first_cookie: u64) -> Result<(BlockRun, Flushed)> {
        let pm = &self.fs.pm;
        let run = self.allocator().allocate_blocks(1)?;
        let offset = run.first * BLOCK_BYTES;
        let zeros = pm.stream_zeros(offset, BLOCK_BYTES)?;
        let mut header = self.write_page_header(offset, owner, first_cookie, LogPageKind::Append)?;
        if self.fs.superblock()?.has_used_slots() {
            // Small directories have one page.
            let used = if first_cookie == FIRST_COOKIE { USED_SLOTS_MIN } else { LOG_SLOTS };
            let page = pm.get(Pm::<LogPage>::new(offset))?;
            header = header.and(pm.set64(&page.used, LogPage::used_word(owner, first_cookie, used)));
        }
        Ok((run, zeros.and(pm.flush(header))))
    }

    /// Writes the header of a fresh page, except for the words that count from zero on.
    pub(super) fn write_page_header(
        &self,
        offset: u64,
        owner: u64,
        first_cookie: u64,
        kind: LogPageKind,
    ) -> Result<Dirty> {
        let pm = &self.fs.pm;
        let page = pm.get(Pm::<LogPage>::new(offset))?;
        Ok(pm
            .set64(&page.owner, owner)
            .and(pm.set64(&page.first_cookie, first_cookie))
            .and(pm.set64(&page.seal, LogPage::seal_word(owner, first_cookie, kind))))
    }
}
