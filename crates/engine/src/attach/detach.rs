//! Detaching.
//!
//! Invariant: the clean flag is set only if every shard was drained, nothing was lost, and what the
//! maps hold is right and durable. Otherwise the image stays as after a crash, which is always
//! correct and only costs the next attach a scan.

use crate::alloc::snapshot;
use crate::dram::{FLAG_DEAD, FLAG_DELETED, FLAG_EVICTED, FLAG_HELD, Phase, References};
use crate::error::Result;
use crate::format::State;
use crate::fs::{Fs, Thread};
use core::sync::atomic::Ordering::{Acquire, Release};
use pmem::Memory;

impl<M: Memory> Fs<M> {
    /// Detaches the last process: recycles, writes back lazily kept attributes, and leaves the
    /// image clean unless something was lost. No other thread or process is inside.
    pub fn detach_last(self) -> Result<()> {
        self.header()?.phase.store(Phase::Closed as u32, Release);
        if self.untouched {
            return Ok(());
        }
        self.reap_all()?;
        {
            let thread = self.enter()?;
            self.recover_growth()?;
            if self.header()?.reaped.load(Acquire) != 0 {
                thread.maintenance().recount_directories()?;
            }
            thread.sync_all()?;
            self.pm.fence(thread.flush_all_used_slots()?);
            thread.reclaim_orphans()?;
            // A record that stayed would be repeated after some later crash.
            self.pm.fence(self.clear_journal()?);
        }
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            if let Some(shard) = self.enter_slot(index)? {
                shard.recycler().drain()?;
                shard.allocator().give_back_lines()?;
                shard.allocator().give_back_inodes()?;
            }
        }
        if self.header()?.unclean_marks.load(Acquire) != 0 {
            return Ok(());
        }
        let Some(written) = snapshot::write(&self)? else { return Ok(()) };
        let snapshot = self.pm.fence(written);
        let word = State { epoch: self.epoch, clean: true }.word();
        self.pm.persist(self.pm.commit(&self.superblock()?.state, word, snapshot));
        Ok(())
    }
}

impl<M: Memory> Thread<'_, M> {
    /// Retires the inodes that have no names; no process has them open any more.
    fn reclaim_orphans(&self) -> Result<()> {
        let end = self.fs.header()?.cachelets_next.load(Acquire).min(self.fs.dram.layout.cachelets_max);
        for index in 1..end as u32 {
            let cachelet = self.fs.dram.cachelet(index)?;
            let word = cachelet.references.load(Acquire);
            let state = References::from_word(word);
            let orphan = state.links == 0 && state.flags & (FLAG_DELETED | FLAG_DEAD | FLAG_EVICTED) == FLAG_DELETED;
            if cachelet.number.load(Acquire) == 0 || !orphan {
                continue;
            }
            self.recycler().make_room()?;
            let _pin = self.pin();
            cachelet
                .references
                .store(References { references: 0, flags: state.flags & !FLAG_HELD, ..state }.word(), Release);
            self.cachelets().retire_if_unused(index, cachelet);
        }
        Ok(())
    }
}
