//! Reaping names that were being made or removed, and directories that were being evicted or
//! compacted.
//!
//! Decision: docs/decisions/recovery.md, "A directory in doubt is recounted".

use crate::components::Reaper;
use crate::death::may_die_here;
use crate::dram::{
    Cachelet, DirectoryState, FLAG_DELETED, FLAG_UNNAMED, IntentKind, References, STEP_DONE, STEP_RETIRING,
};
use crate::error::Result;
use crate::format::{Dentry, Valid};
use crate::mindex::NameToRepair;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{Memory, Pm};

impl<'f, M: Memory> Reaper<'_, 'f, M> {
    pub(super) fn recover_intent(self) -> Result<()> {
        let kind = self.thread.slot.intent.kind.load(Acquire);
        let done = self.thread.slot.intent.step.load(Acquire) == STEP_DONE;
        match kind {
            kind if kind == IntentKind::Create as u32 => self.recover_create(done)?,
            kind if kind == IntentKind::Link as u32 => self.recover_link(done)?,
            kind if kind == IntentKind::Unlink as u32 => self.recover_unlink(done)?,
            kind if kind == IntentKind::RemoveDirectory as u32 => self.recover_remove_directory(done)?,
            kind if kind == IntentKind::Rename as u32 => self.recover_rename(done, false)?,
            kind if kind == IntentKind::Exchange as u32 => self.recover_rename(done, true)?,
            kind if kind == IntentKind::Directory as u32 => return self.recover_maintenance(),
            _ => return Ok(()),
        }
        for directory in &self.thread.slot.intent.directories {
            if let index @ 1.. = directory.load(Relaxed) {
                DirectoryState::mark_needs_recount(self.thread.fs.dram.cachelet(index)?);
            }
        }
        Ok(())
    }

    /// Offset of an in-flight dentry; zero: none.
    pub(super) fn in_flight_dentry(self, index: usize) -> u64 {
        self.thread.slot.in_flight.dentries[index].load(Relaxed) & !63
    }

    /// Whether the in-flight dentry entered the mindex before its creator died. Until its intent
    /// records that, the creator holds the name.
    fn is_named(self, done: bool) -> Result<bool> {
        let dentry = self.in_flight_dentry(0);
        if done || dentry == 0 {
            return Ok(done);
        }
        Ok(self.held_name(0)?.is_some_and(|name| name.is(dentry)))
    }

    fn recover_create(self, done: bool) -> Result<()> {
        if self.is_named(done)? { self.drop_created() } else { Ok(()) }
    }

    /// The created file exists; its reference was meant for a caller that is dead.
    fn drop_created(self) -> Result<()> {
        let index = self.thread.slot.in_flight.cachelet.load(Relaxed);
        self.thread.slot.intent.step.store(STEP_DONE, Release);
        if index == 0 {
            // An earlier reaper got this far.
            return Ok(());
        }
        // The release of its last reference decides everything else.
        self.thread.slot.intent.victim.store(index, Release);
        self.thread.clear_in_flight();
        self.thread.fs.dram.cachelet(index)?.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
        Ok(())
    }

    fn recover_link(self, done: bool) -> Result<()> {
        if self.is_named(done)? {
            // Another reaper finds no in-flight allocations.
            self.thread.slot.intent.step.store(STEP_DONE, Release);
            self.thread.clear_in_flight();
            return Ok(());
        }
        match self.thread.slot.intent.file.load(Relaxed) {
            0 => Ok(()),
            index => self.roll_back_link(index, self.thread.slot.intent.file_before.load(Relaxed)),
        }
    }

    /// Rolls back the link count of a name that was never published, if it was counted and the
    /// file's lock is held. The lock ensures that no other thread has changed the links since:
    /// every change except the removal of an only link needs it. The file's property entry follows
    /// in `recover_cachelet`.
    fn roll_back_link(self, index: u32, before: u32) -> Result<()> {
        let cachelet = self.thread.fs.dram.cachelet(index)?;
        let before = References::from_word((before as u64) << 32);
        let uncounted = |word: u64| {
            let state = References::from_word(word);
            let flags = before.flags & (FLAG_DELETED | FLAG_UNNAMED) | state.flags & !(FLAG_DELETED | FLAG_UNNAMED);
            (state.links == before.links + 1).then(|| References { links: before.links, flags, ..state }.word())
        };
        if self.thread.holds(&cachelet.lock) {
            let _ = cachelet.references.fetch_update(AcqRel, Acquire, uncounted);
        }
        Ok(())
    }

    /// Drops the link of a name that is gone, unless that was done, if the file's lock is held.
    pub(super) fn drop_link_once(self, index: u32) -> Result<()> {
        let cachelet = self.thread.fs.dram.cachelet(index)?;
        let before = References::from_word((self.thread.slot.intent.victim_before.load(Relaxed) as u64) << 32);
        let state = References::from_word(cachelet.references.load(Acquire));
        if index != 0 && self.thread.holds(&cachelet.lock) && state.links == before.links {
            // If that makes the slot the file's reclaimer, `recover_victim` sees it in the
            // cachelet.
            let _ = self.thread.drop_counted_link(cachelet);
        }
        Ok(())
    }

    fn recover_unlink(self, done: bool) -> Result<()> {
        let intent = &self.thread.slot.intent;
        let Some(held) = self.held_name(0)?.filter(|_| !done) else { return Ok(()) };
        let index = intent.victim.load(Relaxed);
        let offset = intent.old[0].load(Relaxed);
        let state = References::from_word(self.thread.fs.dram.cachelet(index)?.references.load(Acquire));
        // The last link can only be dropped by the operation that holds the last name, which is
        // this one.
        let last_dropped = state.links == 0 && state.flags & FLAG_DELETED != 0;
        if self.counts(offset)? && !last_dropped {
            return Ok(());
        }
        if !last_dropped {
            self.drop_link_once(index)?;
        }
        may_die_here();
        self.remove_name(&held, offset)
    }

    /// Whether a dentry is valid.
    fn counts(self, offset: u64) -> Result<bool> {
        let dentry = self.thread.fs.pm.get(Pm::<Dentry>::new(offset))?;
        Ok(Valid::from_word(dentry.valid.load_acquire()).valid)
    }

    /// Completes the removal of a held name.
    fn remove_name(self, held: &NameToRepair<'f>, offset: u64) -> Result<()> {
        let pm = &self.thread.fs.pm;
        let dentry = pm.get(Pm::<Dentry>::new(offset))?;
        if Valid::from_word(dentry.valid.load()).valid {
            let timestamp_ns = self.thread.fs.now_ns().max(0) as u64;
            pm.retract(&dentry.valid, dentry.invalid_word(timestamp_ns)).unflushed();
        }
        pm.fence(pm.flush_all(dentry));
        held.set(None);
        self.thread.slot.intent.step.store(STEP_DONE, Release);
        may_die_here();
        Ok(())
    }

    fn recover_remove_directory(self, done: bool) -> Result<()> {
        let intent = &self.thread.slot.intent;
        let index = intent.victim.load(Relaxed);
        if !done {
            let Some(held) = self.held_name(0)? else { return Ok(()) };
            let victim = self.thread.fs.dram.cachelet(index)?;
            if !victim.as_directory().is_removed() {
                return Ok(());
            }
            self.thread.mark_removed(victim);
            self.remove_name(&held, intent.old[0].load(Relaxed))?;
        }
        if index != 0 {
            self.thread.reclaim_directory(self.thread.fs.dram.cachelet(index)?, index);
        }
        Ok(())
    }

    fn recover_maintenance(self) -> Result<()> {
        let intent = &self.thread.slot.intent;
        let directory = self.thread.fs.dram.cachelet(intent.directories[0].load(Relaxed))?;
        if !directory.as_directory().is_maintained_by(self.thread.ticket()) {
            return Ok(());
        }
        if DirectoryState::of(directory) == DirectoryState::Evicting {
            DirectoryState::mark_needs_recount(directory);
        }
        if intent.step.load(Acquire) == STEP_RETIRING {
            self.recover_compaction(directory)?;
        }
        may_die_here();
        directory.as_directory().end_maintaining(self.thread.ticket());
        self.thread.fs.platform.wake(directory.as_directory().state());
        Ok(())
    }

    /// Completes or rolls back the replacement of a log: if the head has changed, the old log is
    /// retired. Otherwise `recover_directory`, under the directory's lock, finds that the old pages
    /// belong to the directory and the new ones are free.
    fn recover_compaction(self, directory: &'f Cachelet) -> Result<()> {
        let pm = &self.thread.fs.pm;
        let head = &self.thread.fs.inode_at(directory.inode.load(Relaxed))?.log;
        let [old_head, boundary] = &self.thread.slot.intent.old;
        let (old_head, boundary) = (old_head.load(Relaxed), boundary.load(Relaxed));
        if head.load_acquire() == old_head {
            return Ok(());
        }
        pm.fence(pm.flush_all(head));
        // Positions in the log have changed.
        directory.as_directory().state().fetch_add(1 << 8, AcqRel);
        self.thread.maintenance().retire_log(directory, (old_head, boundary), head.load())
    }
}
