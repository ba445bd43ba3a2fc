//! What becomes of a thread's work when it dies inside: another one takes its slot, finishes or undoes what it was at, and frees the slot.
//!
//! A slot says all that its owner had: the locks, what was out of the allocators, the operation, and the words that were to change together. What the
//! operation had come to is decided by looking at the image, as recovery would after a crash: a name that entered the mindex exists, a rename
//! whose journal record is whole has happened, of a file the newest property entry counts. Everything else is undone.
//!
//! Invariants
//! - A reaper is the slot's owner while it works, so that another takes over if it dies in turn. Every step may be repeated.
//! - It waits for nothing but for locks that are held for moments (of allocators), and takes no others: so whoever waits for a dead owner may
//!   call it, with whatever locks. What would need others is left to whoever comes next: a directory of which the counts are in doubt is
//!   indexed anew ([`DirectoryState::Doubtful`]).
//! - The pin of the dead stays until all is done: what its slot names is not used for something else.
//! - No loop waits for ever for what only a dead thread could end: locks reap their owners, and spins are counted ([`Patience`]).

mod intents;

use crate::alloc::owned_by_slot;
use crate::dram::{
    Cachelet, DIRTY, DirectoryState, FLAG_DEAD, FLAG_DELETED, FLAG_EVICTED, FLAG_HELD, FLAG_READABLE, FLAG_RENAMING,
    FLAG_UNNAMED, Group, IntentKind, References, RetiredKind, STEP_DONE, STEP_RETIRING, SlabState,
};
use crate::error::{Corruption, Error, Result};
use crate::format::{Dentry, FileKind, JournalRecord, LogPage, PROPERTY_INLINE, SlotTag, Valid, slot_word};
use crate::fs::{Fs, Thread};
use crate::mindex::{NameHash, Target};
use crate::step::step;
use crate::sync::{AtomicU32, AtomicU64, spin_loop};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;
use pmem::{BLOCK_BYTES, Commit64, Flushed, LINE_BYTES, Memory, Pm};

/// Looks in a row before a thread that waits begins to sleep between them.
const SPINS: u32 = 2000;
/// How long to wait for another one who puts a dead thread's work in order: he may have been stopped.
const SETTLING_WAIT_MS: u32 = 1000;
/// Sleeps between two looks whether somebody has died.
const SLEEPS: u32 = 4;

/// Waiting for a state that somebody else will end, unless he is dead.
pub(crate) struct Patience {
    looks: u32,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { looks: 0 }
    }

    /// Of who has looked often enough to sleep from now on.
    pub(crate) fn worn() -> Patience {
        Patience { looks: SPINS }
    }

    /// One look in vain. Out of line: looks are on the way of every call, and in vain they hardly ever are.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose<M: Memory>(&mut self, fs: &Fs<M>) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks < SPINS {
            spin_loop();
            return Ok(());
        }
        self.look(fs)
    }

    /// One look in vain by who is pinned: `Busy` when it is time to sleep. Whoever could end what is waited for may be waiting until all have left.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose_inside(&mut self) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks >= SPINS {
            return Err(Error::Busy);
        }
        spin_loop();
        Ok(())
    }

    fn look<M: Memory>(&mut self, fs: &Fs<M>) -> Result<()> {
        if self.looks >= SPINS + SLEEPS {
            self.looks = SPINS;
            fs.reap_dead()?;
        }
        fs.platform.wait(&AtomicU32::new(0), 0, 1);
        Ok(())
    }
}

impl<M: Memory> Fs<M> {
    /// Puts the work of all threads in order that died inside; how many there were. For whoever learns of a death, and before references of dead
    /// processes are given back.
    pub fn reap_dead(&self) -> Result<u64> {
        let mut reaped = 0;
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            reaped += u64::from(self.reap_if_dead(index)?);
        }
        Ok(reaped)
    }

    /// As [`Fs::reap_dead`], and waits for those who are at it already. For whoever has seen a process end: what that was doing has happened now, or has
    /// not and never will. Not pinned, and without locks.
    pub fn settle_dead(&self) -> Result<()> {
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            self.reap_if_dead(index)?;
            self.wait_until_settled(index)?;
        }
        Ok(())
    }

    fn wait_until_settled(&self, index: u32) -> Result<()> {
        let slot = self.dram.slot(index)?;
        for look in 0..SPINS + SETTLING_WAIT_MS {
            // Without an owner it is only what somebody wrote who came too late.
            if slot.settling.load(Acquire) == 0 || slot.owner.load(Acquire) == 0 {
                return Ok(());
            }
            match look {
                ..SPINS => spin_loop(),
                _ => self.platform.wait(&AtomicU32::new(0), 0, 1),
            }
            // The other one may have died, too.
            self.reap_if_dead(index)?;
        }
        // So long it takes nobody: he has been stopped, or came too late, and the slot has an owner who lives. Once is enough.
        slot.settling.store(0, Release);
        Ok(())
    }

    /// Puts the slots of all owners in order: nobody is inside, so those that are left died without a word.
    pub(crate) fn reap_all(&self) -> Result<()> {
        for index in 0..self.header()?.slots_high.load(Acquire) as u32 {
            if let Some(owner) = self.slot_owner(index)? {
                self.claim_slot(index, owner.pid as u64 | (owner.tid as u64) << 32)?;
                self.reap(index)?;
            }
        }
        Ok(())
    }

    /// The same for one slot. Whether it has no owner that lives any more.
    pub(crate) fn reap_if_dead(&self, index: u32) -> Result<bool> {
        let slot = self.dram.slot(index)?;
        let Some(owner) = self.slot_owner(index)? else { return Ok(true) };
        let word = owner.pid as u64 | (owner.tid as u64) << 32;
        if self.platform.is_alive(owner) {
            return Ok(false);
        }
        if slot.owner.load(Acquire) != word {
            return Ok(false);
        }
        // Between the two words the new owner must not pass for dead: without a start it is judged by its number alone.
        slot.started.store(0, Release);
        // From before the claim on, so that nobody takes what is not in order yet for a living thread's.
        slot.settling.store(word, Release);
        if !self.claim_slot(index, word)? {
            return Ok(false);
        }
        self.reap(index)?;
        Ok(true)
    }

    /// Puts the work of a slot in order that the calling thread has claimed, and frees it.
    fn reap(&self, index: u32) -> Result<()> {
        let thread = self.as_thread(index)?;
        if thread.may_have_shared()? {
            // A pointer to a shared block may be gone or made, and not counted: the next attach counts anew.
            thread.lose();
        }
        step();
        if self.untouched {
            thread.release_all();
        } else if thread.put_in_order().is_err() {
            // Something does not fit: fsck's business. Nobody waits for it.
            thread.lose();
        }
        thread.clear_slot();
        self.header()?.reaped.fetch_add(1, Relaxed);
        drop(thread);
        Ok(())
    }
}

// Reaping. All of it as the owner of a dead thread's slot.
impl<'f, M: Memory> Thread<'f, M> {
    fn put_in_order(&self) -> Result<()> {
        self.redo()?;
        self.release_allocators()?;
        self.recount_cachelets()?;
        self.repair_segments()?;
        self.repair_buckets()?;
        // One error must not keep the rest from being put in order.
        let intent = self.settle_intent();
        let hand = self.settle_hand();
        let files = self.for_locked_cachelets(|cachelet| self.settle_cachelet(cachelet));
        self.release_all();
        let lines = self.finish_lines();
        let batch = self.finish_batch();
        let victim = self.settle_victim();
        let blocks = self.settle_blocks();
        // What comes now notes other victims than the operation's: another reaper must not take them for its.
        step();
        self.slot.intent.kind.store(IntentKind::None as u32, Release);
        step();
        let references = self.settle_references();
        intent.and(hand).and(files).and(lines).and(batch).and(victim).and(blocks).and(references)
    }

    /// Nothing of the dead is left in the slot but what serves its next owner.
    fn clear_slot(&self) {
        self.release_all();
        self.end_intent();
        self.slot.hand.lines[1].store(0, Relaxed);
        self.slot.pins.store(0, Relaxed);
        step();
        self.slot.pinned.store(0, Release);
        self.slot.settling.store(0, Release);
    }

    /// Of an array of elements with a lock: which one's lock a record of `held` names, if it is held.
    fn locked_element(
        &self,
        record: &AtomicU64,
        (start, count, size, lock): (u64, u64, u64, u64),
    ) -> Result<Option<u64>> {
        let offset = record.load(Relaxed);
        if offset < start || offset >= start + count * size || (offset - start) % size != lock {
            return Ok(None);
        }
        Ok(self.holds(self.fs.dram_word(offset)?).then_some((offset - start) / size))
    }

    /// What the locks of allocators protect is in order, since `redo`, but for the counts of groups. They come first, for the rest takes them.
    fn release_allocators(&self) -> Result<()> {
        let (layout, header) = (&self.fs.dram.layout, self.fs.header()?);
        let groups = (layout.groups, layout.groups_count, size_of::<Group>() as u64, 0);
        let lock = core::mem::offset_of!(SlabState, lock) as u64;
        let slabs = (layout.slabs, self.fs.geometry.blocks, size_of::<SlabState>() as u64, lock);
        let single = [&header.inodes_lock, &header.cachelets_lock, &header.overflow_lock];
        for record in &self.slot.held {
            let group = self.locked_element(record, groups)?;
            if let Some(index) = group {
                self.fs.recount_group(index)?;
            }
            let offset = record.load(Relaxed);
            let is_single = single.iter().any(|word| self.fs.dram.region.offset_of(*word) == offset);
            if group.is_some() || is_single || self.locked_element(record, slabs)?.is_some() {
                self.release_one(record);
            }
        }
        Ok(())
    }

    fn for_locked_cachelets(&self, mut each: impl FnMut(&'f Cachelet) -> Result<()>) -> Result<()> {
        let layout = &self.fs.dram.layout;
        let lock = core::mem::offset_of!(Cachelet, lock) as u64;
        let place = (layout.cachelets, layout.cachelets_max, size_of::<Cachelet>() as u64, lock);
        let mut result = Ok(());
        for record in &self.slot.held {
            if let Some(index) = self.locked_element(record, place)? {
                result = result.and(each(self.fs.dram.cachelet(index as u32)?));
            }
        }
        result
    }

    fn settle_intent(&self) -> Result<()> {
        let kind = self.slot.intent.kind.load(Acquire);
        let done = self.slot.intent.step.load(Acquire) == STEP_DONE;
        match kind {
            kind if kind == IntentKind::Create as u32 => self.settle_create(done)?,
            kind if kind == IntentKind::Link as u32 => self.settle_link(done)?,
            kind if kind == IntentKind::Unlink as u32 => self.settle_unlink(done)?,
            kind if kind == IntentKind::RemoveDirectory as u32 => self.settle_remove_directory(done)?,
            kind if kind == IntentKind::Rename as u32 => self.settle_rename(done, false)?,
            kind if kind == IntentKind::Exchange as u32 => self.settle_rename(done, true)?,
            kind if kind == IntentKind::Directory as u32 => return self.settle_maintenance(),
            _ => return Ok(()),
        }
        for directory in &self.slot.intent.directories {
            if let index @ 1.. = directory.load(Relaxed) {
                DirectoryState::doubt(self.fs.dram.cachelet(index)?);
            }
        }
        Ok(())
    }

    fn hash(&self, index: usize) -> NameHash {
        NameHash::from_intent(self.slot.intent.hashes[index].load(Relaxed))
    }

    /// Offset of a dentry in hand; zero: none.
    fn dentry_in_hand(&self, index: usize) -> u64 {
        self.slot.hand.dentries[index].load(Relaxed) & !63
    }

    /// Whether the dentry in hand entered the mindex before its maker died. He held the bucket until he noted it.
    fn is_named(&self, done: bool) -> Result<bool> {
        let dentry = self.dentry_in_hand(0);
        if done || dentry == 0 {
            return Ok(done);
        }
        match self.bucket_held_for(self.hash(0))? {
            Some(bucket) => self.is_in_bucket(bucket, self.hash(0), dentry),
            None => Ok(false),
        }
    }

    fn settle_create(&self, done: bool) -> Result<()> {
        if self.is_named(done)? { self.drop_created() } else { Ok(()) }
    }

    /// What was made exists; the reference to it was to go to a caller who is dead.
    fn drop_created(&self) -> Result<()> {
        let index = self.slot.hand.cachelet.load(Relaxed);
        self.slot.intent.step.store(STEP_DONE, Release);
        if index == 0 {
            // A reaper has come so far before.
            return Ok(());
        }
        // Whatever else happens to it decides the last user.
        self.slot.intent.victim.store(index, Release);
        self.empty_hand();
        self.fs.dram.cachelet(index)?.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
        Ok(())
    }

    fn settle_link(&self, done: bool) -> Result<()> {
        if self.is_named(done)? {
            // Another reaper finds the hand empty.
            self.slot.intent.step.store(STEP_DONE, Release);
            self.empty_hand();
            return Ok(());
        }
        match self.slot.intent.file.load(Relaxed) {
            0 => Ok(()),
            index => self.uncount_link(index, self.slot.intent.file_before.load(Relaxed)),
        }
    }

    /// Takes a link away that was counted for a name which is not there, if it was counted and the file's lock is held: nobody else has changed the links since,
    /// for all but the removal of an only link is done under it. The file's property entry follows when it is settled.
    fn uncount_link(&self, index: u32, before: u32) -> Result<()> {
        let cachelet = self.fs.dram.cachelet(index)?;
        let before = References::from_word((before as u64) << 32);
        let uncounted = |word: u64| {
            let state = References::from_word(word);
            let flags = before.flags & (FLAG_DELETED | FLAG_UNNAMED) | state.flags & !(FLAG_DELETED | FLAG_UNNAMED);
            (state.links == before.links + 1).then(|| References { links: before.links, flags, ..state }.word())
        };
        if self.holds(&cachelet.lock) {
            let _ = cachelet.references.fetch_update(AcqRel, Acquire, uncounted);
        }
        Ok(())
    }

    /// Drops the link of a name that is gone, unless that was done, if the file's lock is held.
    fn drop_link_once(&self, index: u32) -> Result<()> {
        let cachelet = self.fs.dram.cachelet(index)?;
        let before = References::from_word((self.slot.intent.victim_before.load(Relaxed) as u64) << 32);
        let state = References::from_word(cachelet.references.load(Acquire));
        if index != 0 && self.holds(&cachelet.lock) && state.links == before.links {
            // If that buries the file, `settle_victim` sees it in the cachelet.
            let _ = self.drop_counted_link(cachelet);
        }
        Ok(())
    }

    fn settle_unlink(&self, done: bool) -> Result<()> {
        let intent = &self.slot.intent;
        let Some(bucket) = self.bucket_held_for(self.hash(0))?.filter(|_| !done) else { return Ok(()) };
        let index = intent.victim.load(Relaxed);
        let offset = intent.old[0].load(Relaxed);
        let state = References::from_word(self.fs.dram.cachelet(index)?.references.load(Acquire));
        // Only who has the last name, and this is it, can have dropped the last link.
        let last_dropped = state.links == 0 && state.flags & FLAG_DELETED != 0;
        if self.counts(offset)? && !last_dropped {
            return Ok(());
        }
        if !last_dropped {
            self.drop_link_once(index)?;
        }
        step();
        self.remove_name(bucket, offset)
    }

    /// Whether a dentry counts.
    fn counts(&self, offset: u64) -> Result<bool> {
        let dentry = self.fs.pm.get(Pm::<Dentry>::new(offset))?;
        Ok(Valid::from_word(dentry.valid.load_acquire()).valid)
    }

    /// Ends the removal of a name whose bucket is held.
    fn remove_name(&self, bucket: &'f crate::dram::Bucket, offset: u64) -> Result<()> {
        let pm = &self.fs.pm;
        let dentry = pm.get(Pm::<Dentry>::new(offset))?;
        if Valid::from_word(dentry.valid.load()).valid {
            let moment_ns = self.fs.now_ns().max(0) as u64 & !1;
            pm.retract(&dentry.valid, dentry.gone(moment_ns)).unflushed();
        }
        pm.fence(pm.flush_all(dentry));
        self.repair_names(bucket, self.hash(0), &[offset], None)?;
        self.slot.intent.step.store(STEP_DONE, Release);
        step();
        Ok(())
    }

    fn settle_remove_directory(&self, done: bool) -> Result<()> {
        let intent = &self.slot.intent;
        let index = intent.victim.load(Relaxed);
        if !done {
            let Some(bucket) = self.bucket_held_for(self.hash(0))? else { return Ok(()) };
            if !self.fs.dram.cachelet(index)?.is_removed() {
                return Ok(());
            }
            self.remove_name(bucket, intent.old[0].load(Relaxed))?;
        }
        if index != 0 {
            self.bury_directory(self.fs.dram.cachelet(index)?, index);
        }
        Ok(())
    }

    fn settle_maintenance(&self) -> Result<()> {
        let intent = &self.slot.intent;
        let directory = self.fs.dram.cachelet(intent.directories[0].load(Relaxed))?;
        if !directory.is_maintained_by(self.ticket()) {
            return Ok(());
        }
        if DirectoryState::of(directory) == DirectoryState::Evicting {
            DirectoryState::doubt(directory);
        }
        if intent.step.load(Acquire) == STEP_RETIRING {
            self.settle_compaction(directory)?;
        }
        step();
        directory.end_maintaining(self.ticket());
        self.fs.platform.wake(&directory.directory);
        Ok(())
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// A log that was about to be replaced: if the head has changed, the old one is retired. If not, whoever settles the directory, whose lock is held,
    /// finds the old pages to be its own and the new ones free.
    fn settle_compaction(&self, directory: &'f Cachelet) -> Result<()> {
        let pm = &self.fs.pm;
        let head = &self.fs.inode_at(directory.inode.load(Relaxed))?.log;
        let [old_head, boundary] = &self.slot.intent.old;
        let (old_head, boundary) = (old_head.load(Relaxed), boundary.load(Relaxed));
        if head.load_acquire() == old_head {
            return Ok(());
        }
        pm.fence(pm.flush_all(head));
        // Positions in the log have changed.
        directory.directory.fetch_add(1 << 8, AcqRel);
        self.retire_log(directory, (old_head, boundary), head.load())
    }
}

// Renames.
impl<'f, M: Memory> Thread<'f, M> {
    fn settle_rename(&self, done: bool, exchanged: bool) -> Result<()> {
        let intent = &self.slot.intent;
        let record = match self.dentry_in_hand(0) {
            0 => None,
            dentry => self.rename_record(dentry)?,
        };
        match record {
            Some(record) => self.finish_rename(&record, done, exchanged)?,
            // The record of a rename that is over may be gone, or another reaper has come so far.
            None if done => {}
            None => {
                self.discard_record()?;
                self.undo_rename()?;
            }
        }
        if record.is_some() || done {
            self.finish_things(exchanged)?;
        }
        for index in [intent.file.load(Relaxed), intent.victim.load(Relaxed)] {
            self.end_marking(index)?;
        }
        Ok(())
    }

    /// Takes the mark of a rename off a file whose lock is held, or a directory whose names are.
    fn end_marking(&self, index: u32) -> Result<()> {
        let cachelet = self.fs.dram.cachelet(index)?;
        let is_directory = FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Directory);
        let names = self.bucket_held_for(self.hash(0))?.is_some() && self.bucket_held_for(self.hash(1))?.is_some();
        if index != 0 && (self.holds(&cachelet.lock) || (is_directory && names)) {
            cachelet.references.fetch_and(!References::flag(FLAG_RENAMING), AcqRel);
        }
        Ok(())
    }

    /// The journal record is whole: the rename has happened.
    fn finish_rename(&self, record: &JournalRecord, done: bool, exchanged: bool) -> Result<()> {
        let pm = &self.fs.pm;
        for offset in record.moves.iter().map(|step| step.dentry).filter(|offset| *offset != 0) {
            pm.flush_range(offset, (5 * LINE_BYTES).min(BLOCK_BYTES - offset % BLOCK_BYTES)).unfenced();
        }
        pm.fence(Flushed::nothing());
        self.fs.replay(record)?;
        pm.fence(Flushed::nothing());
        if !exchanged {
            self.drop_replaced(self.slot.intent.victim.load(Relaxed))?;
        }
        step();
        if !done {
            self.rename_names(record, exchanged)?;
        }
        for (offset, lines) in self.inherited(record)?.into_iter().flatten() {
            if !self.is_queued(RetiredKind::Dentry, offset) {
                self.retire(RetiredKind::Dentry, offset, lines);
            }
        }
        step();
        self.end_journal_of(record.turn);
        Ok(())
    }

    /// A replaced file has one link less. (A directory's end comes when all is settled.)
    fn drop_replaced(&self, victim: u32) -> Result<()> {
        let mode = self.fs.dram.cachelet(victim)?.mode.load(Relaxed);
        if FileKind::from_mode(mode) != Some(FileKind::Directory) { self.drop_link_once(victim) } else { Ok(()) }
    }

    /// What was replaced has one name less, and what stands in the old place is nobody's any more.
    fn finish_things(&self, exchanged: bool) -> Result<()> {
        let victim = self.slot.intent.victim.load(Relaxed);
        if victim != 0 && !exchanged {
            let replaced = self.fs.dram.cachelet(victim)?;
            if FileKind::from_mode(replaced.mode.load(Relaxed)) == Some(FileKind::Directory) {
                self.bury_directory(replaced, victim);
            }
        }
        let whiteout = self.slot.hand.cachelet.load(Relaxed);
        self.empty_hand();
        if whiteout != 0 {
            self.fs.dram.cachelet(whiteout)?.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
        }
        Ok(())
    }

    /// The mindex after a rename, where the buckets are held still.
    fn rename_names(&self, record: &JournalRecord, exchanged: bool) -> Result<()> {
        let intent = &self.slot.intent;
        let gone = [intent.old[0].load(Relaxed), intent.old[1].load(Relaxed)];
        let (file, victim) = (intent.file.load(Relaxed), intent.victim.load(Relaxed));
        let place = if exchanged { victim } else { self.slot.hand.cachelet.load(Relaxed) };
        let places = match record.moves[1].dentry {
            0 => None,
            dentry => Some((dentry, Target::Cachelet(place))),
        };
        let arrival = Some((record.moves[0].dentry, Target::Cachelet(file)));
        for (index, come) in [(0, places), (1, arrival)] {
            if let Some(bucket) = self.bucket_held_for(self.hash(index))? {
                self.repair_names(bucket, self.hash(index), &gone, come)?;
            }
        }
        self.slot.intent.step.store(STEP_DONE, Release);
        Ok(())
    }

    /// Nothing of the rename counts.
    fn undo_rename(&self) -> Result<()> {
        let intent = &self.slot.intent;
        let victim = intent.victim.load(Relaxed);
        if victim == 0 {
            return Ok(());
        }
        let cachelet = self.fs.dram.cachelet(victim)?;
        let is_directory = FileKind::from_mode(cachelet.mode.load(Relaxed)) == Some(FileKind::Directory);
        if is_directory && self.bucket_held_for(self.hash(1))?.is_some() {
            cachelet.allow_names();
        }
        Ok(())
    }
}

// Things.
impl<'f, M: Memory> Thread<'f, M> {
    /// Undoes what an operation that did not take effect had in hand, or gives back what was in hand without one.
    fn settle_hand(&self) -> Result<()> {
        let hand = &self.slot.hand;
        for index in 0..2 {
            self.undo_name(index)?;
        }
        let (number, cachelet) = (hand.number.load(Relaxed), hand.cachelet.load(Relaxed));
        if number != 0 {
            self.undo_inode(number, cachelet)?;
        } else if cachelet != 0 && !self.is_listed(cachelet)? && !self.stands_for_inode(cachelet)? {
            self.list_cachelet(cachelet)?;
        }
        self.empty_hand();
        Ok(())
    }

    /// A dentry that is no name: its lines are recycled, and the slot that names it becomes a hole.
    fn undo_name(&self, index: usize) -> Result<()> {
        let hand = &self.slot.hand;
        let (offset, lines) = (self.dentry_in_hand(index), hand.dentries[index].load(Relaxed) & 63);
        if offset == 0 || self.are_in_mask(offset, lines) {
            return Ok(());
        }
        let pm = &self.fs.pm;
        if let slot @ 1.. = hand.slots[index].load(Relaxed) {
            let slot = pm.get(Pm::<Commit64>::new(slot))?;
            if slot.load() == slot_word(offset, SlotTag::Dentry) {
                pm.persist(pm.retract(slot, 0));
            }
        }
        if !self.is_queued(RetiredKind::Dentry, offset) {
            self.retire_unmade(offset, lines);
        }
        step();
        hand.dentries[index].store(0, Release);
        hand.slots[index].store(0, Release);
        Ok(())
    }

    /// An inode without a name. If others can have found it by its number, the last of them frees it; else it is free at once.
    fn undo_inode(&self, number: u64, index: u32) -> Result<()> {
        if self.is_in_magazine(number) {
            return Ok(());
        }
        let inode = self.fs.inode(number)?;
        if index != 0 && !self.is_listed(index)? {
            let cachelet = self.fs.dram.cachelet(index)?;
            if cachelet.number.load(Acquire) == number {
                return self.undo_cachelet(index, cachelet);
            }
            self.fs.pm.fence(self.fs.erase_inode(inode, inode.free_word()));
            self.list_cachelet(index)?;
        } else {
            self.fs.pm.fence(self.fs.erase_inode(inode, inode.free_word()));
        }
        self.sweep_blocks(number)?;
        self.put_back_inode(number)
    }

    fn undo_cachelet(&self, index: u32, cachelet: &'f Cachelet) -> Result<()> {
        let unnamed = |word: u64| {
            let state = References::from_word(word);
            let nameless = state.links == 0 && state.flags & (FLAG_DELETED | FLAG_UNNAMED) == FLAG_DELETED;
            let references = state.references.saturating_sub(1);
            let flags = FLAG_READABLE | FLAG_DELETED | state.flags & FLAG_HELD;
            (!nameless).then(|| References { references, links: 0, flags }.word())
        };
        let _ = cachelet.references.fetch_update(AcqRel, Acquire, unnamed);
        step();
        self.slot.intent.victim.store(index, Release);
        step();
        self.empty_hand();
        Ok(())
    }

    /// Whether a cachelet stands for an inode.
    fn stands_for_inode(&self, index: u32) -> Result<bool> {
        let cachelet = self.fs.dram.cachelet(index)?;
        let number = cachelet.number.load(Acquire);
        if number == 0 {
            return Ok(false);
        }
        Ok(self.fs.inode(number)?.nv_pointer.load_acquire() == self.fs.nv_pointer(index))
    }

    /// What was being removed, evicted, or given back, gets buried if its time has come and nobody else does it.
    fn settle_victim(&self) -> Result<()> {
        let index = self.slot.intent.victim.load(Relaxed);
        let cachelet = self.fs.dram.cachelet(index)?;
        let number = cachelet.number.load(Acquire);
        if index == 0 || number == 0 {
            return Ok(());
        }
        self.retire_if_unused(index, cachelet);
        let state = References::from_word(cachelet.references.load(Acquire));
        if state.flags & FLAG_DEAD == 0 || state.burier() != self.ticket() {
            return Ok(());
        }
        if state.flags & FLAG_EVICTED != 0 {
            self.forget_pointer(cachelet, index)?;
            if !self.is_queued(RetiredKind::Cachelet, index as u64) {
                self.retire(RetiredKind::Cachelet, index as u64, 0);
            }
        } else if !self.is_queued(RetiredKind::Inode, number) {
            self.retire(RetiredKind::Inode, number, index as u64);
        }
        Ok(())
    }

    /// What a cachelet whose lock is held says, and what the inode has, fit each other and the image again.
    fn settle_cachelet(&self, cachelet: &'f Cachelet) -> Result<()> {
        if cachelet.references.load(Acquire) & References::flag(FLAG_EVICTED) != 0 {
            // It was in order before it went, and by now another one may stand for the inode.
            return Ok(());
        }
        let number = cachelet.number.load(Acquire);
        let inode = self.fs.inode_at(cachelet.inode.load(Relaxed))?;
        let generation = cachelet.generation.load(Relaxed);
        let (property, sequence) = inode.property(number, generation).ok_or(Corruption::Inode(number))?;
        // The dead one's stores are in the cache; its fence may not have come.
        self.fs.pm.fence(self.fs.pm.flush_all(inode));
        cachelet.sequence.store(sequence, Relaxed);
        let version = cachelet.version.load(Acquire);
        cachelet.version.store(version.wrapping_add(version & 1), Release);
        // Any entry that is whole fits the map: what an earlier entry names is freed only after a later one was shown.
        self.publish_property(cachelet, &property);
        match property.kind() {
            Some(FileKind::Directory) => self.settle_directory(cachelet, number)?,
            _ => {
                let has_body = matches!(property.kind(), Some(FileKind::Regular | FileKind::Symlink));
                let mut after = property;
                after.links = References::from_word(cachelet.references.load(Acquire)).links;
                if has_body && property.flags & PROPERTY_INLINE == 0 {
                    let mut mark = |blocks| self.fs.mark_body_reached(blocks, number);
                    after.blocks = crate::file::recover_body(self.fs, inode, &property, &mut mark)?;
                }
                if after != property {
                    let flushed = self.commit_property(cachelet, &after, Flushed::nothing().sealed())?;
                    self.fs.pm.fence(flushed);
                    self.publish_property(cachelet, &after);
                }
            }
        }
        let mut mark = |blocks| self.fs.mark_body_reached(blocks, number);
        crate::file::mark_body(self.fs, inode.xattrs.load_acquire(), &mut mark)?;
        self.sweep_blocks(number)
    }

    /// A directory's tail and pages.
    fn settle_directory(&self, directory: &'f Cachelet, number: u64) -> Result<()> {
        let inode = self.fs.inode_at(directory.inode.load(Relaxed))?;
        // Times and links that were about to be written.
        directory.dirty.fetch_or(DIRTY, AcqRel);
        match DirectoryState::of(directory) {
            DirectoryState::Indexing => DirectoryState::doubt(directory),
            DirectoryState::Indexed | DirectoryState::Doubtful => self.repair_tail(directory)?,
            _ => {}
        }
        let mut offset = inode.log.load_acquire();
        for _ in 0..self.fs.geometry.blocks {
            if offset == 0 {
                break;
            }
            let run = crate::alloc::BlockRun { first: offset / BLOCK_BYTES, count: 1 };
            self.fs.mark_reached(run, number)?;
            offset = self.fs.pm.get(Pm::<LogPage>::new(offset))?.next.load_acquire();
        }
        Ok(())
    }

    /// Blocks that the slot had between two places are free.
    fn settle_blocks(&self) -> Result<()> {
        let owner = owned_by_slot(self.ticket());
        self.mark_queued(owner)?;
        self.sweep_blocks(owner)
    }

    /// Whether the dead one may have been at making or dropping a pointer to a shared block: with a file locked, or a removed one's body in hand.
    fn may_have_shared(&self) -> Result<bool> {
        let recycles = self.slot.recycling.load(Acquire) != 0 && self.slot.recycling_marked.load(Acquire) != 0;
        let holds = self.slot.held.iter().any(|record| record.load(Acquire) != 0);
        Ok((recycles || holds) && self.fs.header()?.blocks_shared.load(Acquire) != 0)
    }

    /// References that the dead one noted are given back.
    fn settle_references(&self) -> Result<()> {
        for word in &self.slot.references {
            let index = word.load(Relaxed);
            if index == 0 {
                continue;
            }
            let cachelet = self.fs.dram.cachelet(index)?;
            self.slot.intent.victim.store(index, Release);
            step();
            // Nothing in between: see `release_from`.
            word.store(0, Release);
            cachelet.references.fetch_sub(References::ONE_REFERENCE, AcqRel);
            fence(AcqRel);
            step();
            self.settle_victim()?;
        }
        Ok(())
    }
}
