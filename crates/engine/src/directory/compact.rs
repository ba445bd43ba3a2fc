//! Log compaction (paper III.G): when most of a directory's log is holes, the valid names move to
//! fresh pages, and the space of the others is recycled. The number of holes to wait for is a
//! trade-off: each removal pays its share of the copies, and each listing reads the holes.
//!
//! No operation is blocked. An append page is opened first, so that all later claims land behind
//! it. Once the threads that were pinned have left, no slot in front of that page is being written,
//! and only that part is copied. Concurrent removals change dentries, not slots. Compaction waits
//! for the removals that it has met before the new log counts: afterwards the directory's times are
//! the only record of them.
//!
//! Invariants
//! - The head of the log changes by one store, after the new pages and the directory's times are
//!   durable.
//! - Old pages and dead dentries become free only a grace period after that, as one entry in the
//!   queue of retired items; recycling first makes the journal records that name them superfluous.
//! - The directory's maintenance is held from beginning to end; the cachelet's lock only briefly,
//!   because other threads wait for it while they are pinned.
//!
//! *Reason* for three holes per name: with one, unlink takes 184 ns instead of 160, and the
//! engine's rename 530 instead of 453. In return a listing with three quarters removed takes 37 ns
//! a name, and not 28 to 31. One word holds both counts: with separate ones, two threads compacted
//! at each removal.
//!
//! *Rejected:* zeroing the slot on removal. It takes eight bytes in the dentry's first line and a
//! second persisted line, where compaction costs a third of a copied word.

use super::log::Tail;
use crate::alloc::{BlockRun, owned_by_slot};
use crate::components::Maintenance;
use crate::death::may_die_here;
use crate::dram::{Cachelet, DirectoryState, LogCounts, RETIRED_MAX, RetiredKind, STEP_RETIRING};
use crate::error::{Error, Result};
use crate::format::{LOG_SLOTS, LogPage, LogPageKind, Superblock, Valid, gone_word, slot_address};
use crate::fs::Node;
use crate::sync::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Flushed, Memory, Unreachable};

/// Fewer holes than this do not justify a compaction (paper: 100 dentries).
const HOLES_MIN: u64 = 500;
/// On a full image a compaction for this many lines of dentries is worth its time.
const HOLES_FOR_SPACE: u64 = 32;
/// Attempts to compact a log that other threads use, a millisecond apart.
const COMPACTIONS_MAX: u32 = 500;
/// Holes per name from which on a compaction pays. At one hole per name a removal pays for one
/// copied slot, at three for a third of one. A listing then reads two or four slots per name in the
/// worst case.
const HOLES_PER_NAME: u64 = 3;
/// Dentries are prefetched this many slots ahead.
const AHEAD: usize = 12;

/// Whether a log has enough holes for a compaction.
pub(super) fn is_worth_it(log: LogCounts) -> bool {
    log.holes >= HOLES_MIN && log.holes >= HOLES_PER_NAME * log.names
}

/// The chain that replaces the compacted part.
struct NewChain<'f> {
    /// First page, or zero: no name is valid.
    first: u64,
    /// The page that is being filled; nothing leads to it.
    last: Option<Unreachable<'f, LogPage>>,
    /// Names in the last page.
    used: u64,
    /// Flushes that must be fenced before the head names the pages.
    flushed: Flushed,
}

impl NewChain<'_> {
    fn add_flushed(&mut self, flushed: Flushed) {
        self.flushed = core::mem::replace(&mut self.flushed, Flushed::nothing()).and(flushed);
    }
}

impl<'f, M: Memory> Maintenance<'_, 'f, M> {
    /// Compacts a directory's log if it has enough holes. Not pinned. A failure (no space, a
    /// stopped thread) leaves the log as it is.
    pub(super) fn compact_if_worth_it(self, node: Node) -> Result<()> {
        let directory = self.thread.cachelet(node)?;
        let worth_it = directory.as_directory().is_holey()
            && !directory.as_directory().is_maintained()
            && is_worth_it(directory.as_directory().log_counts());
        if worth_it { self.compact(node) } else { Ok(()) }
    }

    /// On a full image: runs an operation in these directories, after their logs were compacted if
    /// that gives lines of dentries back. So renames use up no space. Not pinned.
    #[cold]
    pub(super) fn retry_compacted(self, directories: [Node; 2], operation: impl Fn() -> Result<()>) -> Result<()> {
        for _ in 0..COMPACTIONS_MAX {
            let mut compacted = false;
            for node in directories {
                if self.gives_space(self.thread.cachelet(node)?.as_directory().log_counts())? {
                    self.compact(node)?;
                    self.thread.recycler().reclaim_space()?;
                    compacted = true;
                }
            }
            // Another thread may just have done it.
            match self.thread.retry_when_full(&operation) {
                Err(Error::NoSpace) => {}
                result => return result,
            }
            if !compacted || self.thread.is_epoch_stalled()? {
                break;
            }
            // Another thread compacts it, or is in it.
            self.thread.fs.platform.wait(&AtomicU32::new(0), 0, 1);
        }
        self.thread.retry_with_spare(operation)
    }

    /// Whether a compaction gives lines back, and finds space for its pages: those that replace the
    /// others, and a last one.
    fn gives_space(self, log: LogCounts) -> Result<bool> {
        let pages = log.names / LOG_SLOTS + 2;
        let is_worth_it = log.holes >= HOLES_FOR_SPACE || log.holes > log.names;
        Ok(is_worth_it && self.thread.fs.block_map().blocks_free()? >= pages)
    }

    /// Compacts now, unless another thread maintains the directory. Not pinned; the caller has a
    /// reference to the directory.
    pub(crate) fn compact(self, node: Node) -> Result<()> {
        let directory = self.thread.cachelet(node)?;
        let is_indexed = || DirectoryState::of(directory) == DirectoryState::Indexed;
        if !is_indexed() {
            return Ok(());
        }
        self.thread.recycler().make_room()?;
        self.thread.intend_maintenance(node.cachelet);
        let result = match directory.as_directory().maintain(self.thread.ticket()) && is_indexed() {
            true => self.compact_maintained(directory),
            false => Ok(()),
        };
        directory.as_directory().end_maintaining(self.thread.ticket());
        self.thread.end_intent();
        // The log is one queue entry and frees much space, so it is recycled without waiting for
        // more entries.
        self.thread.recycler().recycle(RETIRED_MAX)?;
        match result {
            Err(Error::NoSpace | Error::Busy) => Ok(()),
            result => result,
        }
    }

    fn compact_maintained(self, directory: &'f Cachelet) -> Result<()> {
        // While a stopped thread keeps grace periods from ending, the log stays as it is.
        if self.thread.is_epoch_stalled()? {
            return Ok(());
        }
        let number = directory.number.load(Relaxed);
        let inode = self.thread.fs.inode_at(directory.inode.load(Relaxed))?;
        let boundary = {
            let _pin = self.thread.pin();
            match Tail(directory.as_directory().log_tail().load(Acquire)) {
                tail if tail.page() == 0 => return Ok(()),
                tail => self.thread.extend_log(directory, tail)?,
            }
        };
        if !self.thread.wait_briefly_for_grace_period()? {
            return Ok(());
        }
        let old_head = inode.log.load_acquire();
        let copied = self.copy_names(number, old_head, boundary);
        // A name that was not copied carries the timestamp of its removal. Its remover stays pinned
        // until the directory's times, which remain, have that timestamp too.
        let copied = copied.and_then(|chain| match self.thread.wait_briefly_for_grace_period() {
            Ok(true) => Ok(chain),
            Ok(false) => Err((chain, Error::Busy)),
            Err(error) => Err((chain, error)),
        });
        let mut chain = match copied {
            Ok(chain) => chain,
            Err((chain, error)) => {
                self.free_chain(number, &chain, boundary)?;
                return Err(error);
            }
        };
        self.swap_log(directory, old_head, &mut chain, boundary)?;
        self.retire_log(directory, (old_head, boundary), chain.first)
    }

    /// Copies the valid slots, from `old_head` up to `boundary`, into new pages, flushed.
    fn copy_names(
        self,
        owner: u64,
        old_head: u64,
        boundary: u64,
    ) -> core::result::Result<NewChain<'f>, (NewChain<'f>, Error)> {
        let mut chain = NewChain { first: 0, last: None, used: 0, flushed: Flushed::nothing() };
        let mut offset = old_head;
        while offset != boundary {
            match self.copy_page(owner, offset, &mut chain) {
                Ok(next) if next != 0 => offset = next,
                Ok(_) => return Err((chain, crate::error::Corruption::LogPage(offset).into())),
                Err(error) => return Err((chain, error)),
            }
        }
        self.link_new(&mut chain, boundary);
        Ok(chain)
    }

    fn copy_page(self, owner: u64, offset: u64, chain: &mut NewChain<'f>) -> Result<u64> {
        let (page, _) = self.thread.fs.log_page(offset, owner)?;
        for (index, slot) in page.slots.iter().enumerate() {
            self.prefetch_ahead(page, index);
            let word = slot.load_acquire();
            if word == 0 {
                continue;
            }
            // The threads that created names in these pages have left. A slot here that names no
            // dentry is damage, and the old pages stay.
            let named = self.thread.fs.dentry_of_slot(word, owner)?;
            let (dentry, _, facts) = named.ok_or(crate::error::Corruption::Dentry(slot_address(word)))?;
            if Valid::from_word(dentry.valid.load_acquire()).valid {
                self.append_copied(owner, chain, word, facts.cookie)?;
            }
        }
        Ok(page.next.load_acquire())
    }

    /// Prefetches a dentry that a walk over the slots reaches soon.
    #[inline]
    fn prefetch_ahead(self, page: &LogPage, index: usize) {
        if let Some(slot) = page.slots.get(index + AHEAD) {
            self.thread.fs.pm.prefetch(slot_address(slot.load()));
        }
    }

    fn append_copied(self, owner: u64, chain: &mut NewChain<'f>, word: u64, cookie: u64) -> Result<()> {
        let pm = &self.thread.fs.pm;
        if chain.last.is_none() || chain.used == LOG_SLOTS {
            let fresh = self.thread.allocator().allocate_unreachable::<LogPage>()?;
            let offset = pm.offset_of(&*fresh);
            // Flushed as a whole once it is filled.
            self.thread.write_page_header(offset, owner, cookie, LogPageKind::Compacted)?.unflushed();
            self.link_new(chain, offset);
            if chain.first == 0 {
                chain.first = offset;
            }
            (chain.last, chain.used) = (Some(fresh), 0);
        }
        if let Some(page) = &chain.last {
            // Flushed with the whole page.
            pm.commit_unreachable(page, |page| &page.slots[chain.used as usize], word).unflushed();
            chain.used += 1;
        }
        Ok(())
    }

    /// Links the last new page to its successor and flushes the whole page: it is full, or the
    /// chain ends.
    fn link_new(self, chain: &mut NewChain<'f>, next: u64) {
        if let Some(page) = chain.last.take() {
            let pm = &self.thread.fs.pm;
            page.reserved.iter().for_each(|word| pm.set64(word, 0).unflushed());
            let has_bound = self.thread.fs.superblock().is_ok_and(Superblock::has_used_slots);
            let used = LogPage::used_word(page.owner.load(), page.first_cookie.load(), chain.used);
            pm.set64(&page.used, if has_bound { used } else { 0 }).unflushed();
            page.slots[chain.used as usize..].iter().for_each(|slot| pm.retract(slot, 0).unflushed());
            pm.commit_unreachable(&page, |page| &page.next, next).unflushed();
            let flushed = pm.flush_all(page.linked());
            chain.add_flushed(flushed);
        }
    }

    /// Makes the new chain the log.
    fn swap_log(self, directory: &'f Cachelet, old_head: u64, chain: &mut NewChain<'_>, boundary: u64) -> Result<()> {
        let pm = &self.thread.fs.pm;
        let inode = self.thread.fs.inode_at(directory.inode.load(Relaxed))?;
        let _held = self.thread.lock(&directory.lock, &directory.waiters)?;
        // The removed dentries carry the times of removals: the directory's property entry must
        // have those times first.
        let property = self.thread.cachelets().property_now(directory);
        let times = self.thread.cachelets().commit_attributes(directory, &property)?;
        let durable = pm.fence(times.and(core::mem::replace(&mut chain.flushed, Flushed::nothing())));
        let head = if chain.first == 0 { boundary } else { chain.first };
        // Until the old pages are free, this thread owns them; the directory owns the new ones.
        let number = directory.number.load(Relaxed);
        self.own_pages(number, chain.first, boundary, number)?;
        self.own_pages(number, old_head, boundary, owned_by_slot(self.thread.ticket()))?;
        for (recorded, page) in self.thread.slot.intent.old.iter().zip([old_head, boundary]) {
            recorded.store(page, Relaxed);
        }
        may_die_here();
        // Before the head changes: the head shows a reaper whether the swap happened.
        self.thread.slot.intent.step.store(STEP_RETIRING, Release);
        may_die_here();
        // Crash point: before this is durable the log is the whole old chain, afterwards the new
        // one. The pages of the other chain are free in either case.
        pm.persist(pm.commit(&inode.log, head, durable));
        may_die_here();
        directory.as_directory().state().fetch_add(1 << 8, AcqRel);
        Ok(())
    }

    /// Records the owner of the pages of a chain from `first` up to `boundary`.
    fn own_pages(self, number: u64, first: u64, boundary: u64, owner: u64) -> Result<()> {
        let mut offset = first;
        while offset != 0 && offset != boundary {
            self.thread.fs.block_map().mark_owner(BlockRun { first: offset / BLOCK_BYTES, count: 1 }, owner)?;
            offset = self.thread.fs.log_page(offset, number)?.0.next.load_acquire();
        }
        Ok(())
    }

    /// Retires the part of the log from `old_head` up to `boundary`, with the dentries that were
    /// not copied. The new chain begins at `copied`. Called by the compacting thread or its reaper.
    pub(crate) fn retire_log(self, directory: &Cachelet, (old_head, boundary): (u64, u64), copied: u64) -> Result<()> {
        let holes = self.mark_gone(directory.number.load(Relaxed), old_head, boundary, copied)?;
        may_die_here();
        if !self.thread.recycler().is_queued(RetiredKind::Log, old_head) {
            self.thread.recycler().retire(RetiredKind::Log, old_head, boundary);
        }
        directory.as_directory().uncount_holes(holes);
        Ok(())
    }

    /// Marks the slots of the old pages that were not copied and returns their number. Both chains
    /// are walked in step: what the new one lacks was invalid when it was written, so no reader
    /// misses it.
    fn mark_gone(self, owner: u64, old_head: u64, boundary: u64, copied: u64) -> Result<u64> {
        let mut holes = 0;
        let mut copied = (copied, 0u64);
        let mut offset = old_head;
        while offset != boundary {
            let page = self.thread.fs.log_page(offset, owner)?.0;
            for slot in &page.slots {
                let word = slot.load_acquire();
                if word == 0 {
                    continue;
                }
                if self.copied_word(owner, &mut copied, boundary)? == word {
                    copied.1 += 1;
                } else {
                    holes += 1;
                    // Nothing leads to this page after a crash.
                    self.thread.fs.pm.retract(slot, gone_word(word)).unflushed();
                }
            }
            offset = page.next.load_acquire();
        }
        Ok(holes)
    }

    /// The next word of the new chain at a position, or zero behind its end.
    fn copied_word(self, owner: u64, position: &mut (u64, u64), boundary: u64) -> Result<u64> {
        if position.1 == LOG_SLOTS && position.0 != 0 {
            *position = (self.thread.fs.log_page(position.0, owner)?.0.next.load_acquire(), 0);
        }
        if position.0 == 0 || position.0 == boundary {
            return Ok(0);
        }
        Ok(self.thread.fs.log_page(position.0, owner)?.0.slots[position.1 as usize].load_acquire())
    }

    /// Frees a chain that nothing leads to: up to the page that is being filled, or up to the page
    /// of the log, `boundary`, to which it was linked.
    fn free_chain(self, owner: u64, chain: &NewChain<'f>, boundary: u64) -> Result<()> {
        let last = chain.last.as_ref().map_or(0, |page| self.thread.fs.pm.offset_of(&**page));
        let mut offset = chain.first;
        while offset != 0 && offset != boundary {
            let next = if offset == last { 0 } else { self.thread.fs.log_page(offset, owner)?.0.next.load_acquire() };
            self.thread.allocator().free_blocks(BlockRun { first: offset / BLOCK_BYTES, count: 1 })?;
            offset = next;
        }
        Ok(())
    }
}
