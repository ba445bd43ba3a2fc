//! Changes of the shared tables that survive the death of their process at any instruction.
//!
//! A [`TableTransaction`] acts for one slot, under the lock of that slot's table; for an inline
//! descriptor it can be lock-free beside other threads of the process. It is a sequence of
//! [`TransactionStep`]s. Before each one the slot's intent names the step and its operands. If the
//! process dies, a reaper takes the slot over and rolls the interrupted step back to its beginning
//! ([`super::recovery`]). Then it rolls the transaction back, while nothing refers to what was
//! taken, or completes it.
//!
//! Invariants
//! - Stores become visible in program order (x86; release stores constrain the compiler). So of a
//!   dead process all stores up to some point are visible and none after it.
//! - A count changes only under its lock, which names the slot. The intent holds the previous count
//!   before the change. The step advances before the lock is released. So a held lock, in a
//!   counting step with `counting` set, means "perhaps counted": recovery restores the previous
//!   count.
//! - A transaction holds at most one lock of a description or record at a time. It may also hold
//!   its table's lock, and the tokens' lock.
//! - Threads that open and close files concurrently act for their own slots
//!   ([`Processes::begin_lock_free`]). They announce their step before they check the table's lock;
//!   a thread that takes the lock then waits until none of them is active. An entry in use by such
//!   a thread carries the mark [`BUSY`] until its step need not be repeated any more. So no other
//!   thread changes it meanwhile, and of two concurrent closes exactly one succeeds.
//! - Everything that a transaction frees is first claimed with its own ticket. So a second free
//!   does nothing, because a later claim has another ticket.
//!
//! Decision: docs/decisions/tables.md, "Process tables change by intents".

mod begin;
mod description_end;

use super::shared_tables::{
    IN_FLIGHT_REFERENCES, Intent, PAGE_DESCRIPTORS, REFERENCES_PER_LINE, Record, SLOTS, SharedTables, Slot, TableKind,
    in_flight_line,
};
use super::{Processes, lists};
use crate::errno::{Errno, Result};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use engine::{Node, Thread};
use pmem::Memory;

/// Steps of a transaction. Recovery rolls back the first ones and completes the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum TransactionStep {
    /// No transaction in flight.
    None = 0,
    /// Entries are claimed and filled, not yet visible. Rolled back.
    Claim,
    /// A record's count goes up. Rolled back.
    TakeRecord,
    /// A description's user count goes up by one. Rolled back.
    TakeReferences,
    /// The entry is stored into the slot. Completed.
    Put,
    /// The node is linked into the list of mappings. Completed.
    LinkMapping,
    /// The old description is handed to an in-flight reference, if there is one. Completed.
    HandOver,
    /// A description's user count goes down by one. Completed.
    DropReferences,
    /// The description has no user: its locks are released. Completed.
    DropLocks,
    /// A node is unlinked from the list of mappings. Completed.
    UnlinkMapping,
    /// A record's count goes down. Completed.
    DropRecord,
    /// Unused entries become free. Completed.
    Free,
    /// The locks of a record change, one store at a time. Rolled back as far as nodes are not
    /// linked.
    Locks,
}

const STEPS: [TransactionStep; 13] = [
    TransactionStep::None,
    TransactionStep::Claim,
    TransactionStep::TakeRecord,
    TransactionStep::TakeReferences,
    TransactionStep::Put,
    TransactionStep::LinkMapping,
    TransactionStep::HandOver,
    TransactionStep::DropReferences,
    TransactionStep::DropLocks,
    TransactionStep::UnlinkMapping,
    TransactionStep::DropRecord,
    TransactionStep::Free,
    TransactionStep::Locks,
];

impl TransactionStep {
    fn from_number(number: u32) -> TransactionStep {
        STEPS.into_iter().find(|step| *step as u32 == number).unwrap_or(TransactionStep::None)
    }
}

/// Where a reference is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableSlot {
    /// Nowhere.
    Nowhere,
    /// Descriptor of a table (slot, number).
    Descriptor(u32, u32),
    /// Token.
    FdToken(u32),
    /// In-flight reference (slot, number).
    InFlight(u32, u32),
    /// Working directory of a slot.
    Directory(u32),
    /// List of mappings of a slot.
    Mappings(u32),
}

impl TableSlot {
    fn word(self) -> u64 {
        let word = |kind: u64, low: u32| kind << 32 | low as u64;
        match self {
            TableSlot::Nowhere => 0,
            TableSlot::Descriptor(slot, fd) => word(1, slot << 20 | fd),
            TableSlot::FdToken(index) => word(2, index),
            TableSlot::InFlight(slot, which) => word(3, slot << 8 | which),
            TableSlot::Directory(slot) => word(4, slot),
            TableSlot::Mappings(slot) => word(5, slot),
        }
    }

    pub fn from_word(word: u64) -> TableSlot {
        let low = word as u32;
        match word >> 32 {
            1 => TableSlot::Descriptor(low >> 20, low & 0xf_ffff),
            2 => TableSlot::FdToken(low),
            3 => TableSlot::InFlight(low >> 8, low & 0xff),
            4 => TableSlot::Directory(low),
            5 => TableSlot::Mappings(low),
            _ => TableSlot::Nowhere,
        }
    }
}

/// The entry of a description in a table.
pub(super) fn entry_of(file: u32, cloexec: bool) -> u32 {
    (file + 1) << 1 | cloexec as u32
}

/// Mark of an entry (also an empty one) that a lock-free transaction is changing.
pub(super) const BUSY: u32 = 1 << 31;
const _: () = assert!(super::shared_tables::FILES < BUSY >> 1);

/// The description of an entry that is not empty.
pub(super) fn file_of(entry: u32) -> Option<u32> {
    ((entry & !BUSY) >> 1).checked_sub(1)
}

/// Bit of an in-flight reference: it owns the description's reference, because the descriptor is
/// closed.
pub(super) const OWNED: u64 = 1 << 32;

/// One reference to a file.
pub(super) const ONE_HOLD: u64 = 1;
/// One reference to a file by a mapping.
pub(super) const ONE_MAPPING: u64 = 1 << 32 | ONE_HOLD;

/// A transaction on the tables on behalf of a slot.
pub(super) struct TableTransaction<'a, 'f, M: Memory> {
    pub processes: &'a Processes<'f, M>,
    pub thread: &'a Thread<'f, M>,
    /// The slot.
    pub index: u32,
    pub slot: &'f Slot,
    /// Slot of its table.
    pub table: u32,
    /// That slot.
    locked: &'f Slot,
    /// The table is not locked: see [`Processes::begin_lock_free`].
    lock_free: bool,
}

impl<M: Memory> Drop for TableTransaction<'_, '_, M> {
    #[inline]
    fn drop(&mut self) {
        match self.lock_free {
            true => self.step(TransactionStep::None),
            false => self.processes.unlock(&self.locked.lock, &self.locked.waiters),
        }
    }
}

impl<'a, 'f, M: Memory> TableTransaction<'a, 'f, M> {
    /// A transaction for a slot of one of the process's threads, under the lock of this one.
    pub fn as_member(&self, index: u32, slot: &'f Slot) -> TableTransaction<'a, 'f, M> {
        TableTransaction { index, slot, lock_free: true, ..*self }
    }

    pub fn tables(&self) -> &'a SharedTables<'f> {
        &self.processes.tables
    }

    pub fn ticket(&self) -> u32 {
        self.index + 1
    }

    pub fn intent(&self) -> &'f Intent {
        &self.slot.intent
    }

    #[inline]
    pub fn step(&self, step: TransactionStep) {
        self.intent().step.store(step as u32, Release);
    }

    pub fn present_step(&self) -> TransactionStep {
        TransactionStep::from_number(self.intent().step.load(Acquire))
    }

    // Entries.

    /// The word of a slot that has one.
    pub fn slot_word(&self, slot_at: TableSlot) -> Result<Option<&'f AtomicU32>> {
        Ok(match slot_at {
            TableSlot::Descriptor(slot, fd) => self.processes.descriptor_word(slot, fd)?,
            TableSlot::FdToken(index) => Some(&self.tables().token(index)?.file),
            TableSlot::Directory(slot) => Some(&self.tables().slot(slot)?.directory),
            TableSlot::Nowhere | TableSlot::InFlight(..) | TableSlot::Mappings(_) => None,
        })
    }

    /// The present entry of a slot.
    pub fn entry_in_slot(&self, slot_at: TableSlot) -> Result<u32> {
        Ok(self.slot_word(slot_at)?.map_or(0, |word| word.load(Acquire) & !BUSY))
    }

    /// Claims a free entry; `None` if there is none. If the process dies before the intent's step
    /// advances, recovery frees it.
    #[inline(always)]
    pub fn claim(&self, kind: TableKind, which: usize) -> Result<Option<u32>> {
        let count = kind.count();
        // Slots start at different positions: entries freed by this process are in its cache, and
        // contention is low.
        let own = (self.index as u64 * count as u64 / SLOTS as u64) as u32;
        let first = self.slot.cursors[kind as usize].load(Relaxed).checked_sub(1).unwrap_or(own);
        self.intent().claimed_table.store(kind as u32, Release);
        match self.claim_entry(kind, which, first, None)? {
            true => Ok(Some(first)),
            false => self.claim_after(kind, which, first),
        }
    }

    /// Claims an entry behind `first`, which was not free.
    #[inline(never)]
    fn claim_after(&self, kind: TableKind, which: usize, first: u32) -> Result<Option<u32>> {
        let count = kind.count();
        let mut has_room = true;
        for step in 0..count {
            let index = ((first as u64 + step as u64) % count as u64) as u32;
            if self.claim_entry(kind, which, index, Some(&mut has_room))? {
                return Ok(Some(index));
            }
        }
        self.intent().claims[which].store(0, Release);
        Ok(None)
    }

    /// Claims an entry; returns whether it was free. Provides memory for it, if there was room in a
    /// search before.
    #[inline(always)]
    fn claim_entry(&self, kind: TableKind, which: usize, index: u32, has_room: Option<&mut bool>) -> Result<bool> {
        let is_provided = self.processes.fs.dram().is_upper_provided(SharedTables::entry_part(kind, index).0);
        // Without memory for more, entries that have some are as good.
        if !is_provided && !has_room.is_some_and(|has_room| self.provide_entry(kind, index, has_room)) {
            return Ok(false);
        }
        // Checked before it enters the intent: so an entry in the intent with this ticket was
        // claimed by this transaction.
        if self.tables().claim_word(kind, index)?.load(Relaxed) != 0 {
            return Ok(false);
        }
        self.intent().claims[which].store(index + 1, Release);
        let is_claimed = self.tables().try_claim(kind, index, self.ticket())?;
        if is_claimed {
            self.slot.cursors[kind as usize].store((index + 1) % kind.count() + 1, Relaxed);
        }
        Ok(is_claimed)
    }

    /// Provides an entry without memory, unless a search found no room before. Returns whether it
    /// has memory now.
    #[cold]
    fn provide_entry(&self, kind: TableKind, index: u32, has_room: &mut bool) -> bool {
        let fs = self.processes.fs;
        if *has_room {
            let first = match kind {
                TableKind::Page => fs.provider().provide_upper(SharedTables::page_claim_part(index)),
                _ => Ok(()),
            };
            *has_room = first.and_then(|()| fs.provider().provide_upper(SharedTables::entry_part(kind, index))).is_ok();
        }
        *has_room
    }

    /// Frees an entry that this transaction claimed.
    pub fn unclaim(&self, kind: TableKind, index: u32) -> Result<()> {
        let word = self.tables().claim_word(kind, index)?;
        if word.load(Acquire) != self.ticket() {
            return Ok(());
        }
        word.store(0, Release);
        self.slot.cursors[kind as usize].store(index + 1, Relaxed);
        Ok(())
    }

    /// Clears the claims, because the entries are in use now.
    pub fn claims_used(&self) {
        for claim in &self.intent().claims {
            claim.store(0, Release);
        }
    }

    // Counting.

    #[inline]
    fn lock_leaf(&self, word: &AtomicU32) {
        if word.load(Relaxed) == 0 && word.compare_exchange(0, self.ticket(), Acquire, Relaxed).is_ok() {
            return;
        }
        // Leaf locks are held briefly; their waiters poll instead of being woken.
        self.processes.lock(self.thread, word, &AtomicU32::new(0), self.ticket());
    }

    /// Changes the user count of the intent's description, then moves to step `next`. Returns the
    /// previous count.
    fn count_users(&self, change: i32, next: impl Fn(u32) -> TransactionStep) -> Result<u32> {
        let intent = self.intent();
        let index = intent.file.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        let file = self.tables().file(index)?;
        intent.counting.store(0, Release);
        self.lock_leaf(&file.lock);
        let before = file.users.load(Relaxed);
        // A count of zero stays: another process dropped the last reference.
        if before != 0 {
            intent.before.store(before as u64, Release);
            intent.counting.store(1, Release);
            file.users.store(before.wrapping_add_signed(change), Release);
        }
        self.step(next(before));
        file.lock.store(0, Release);
        Ok(before)
    }

    pub fn lock_record(&self, cachelet: u32) -> Result<&'f Record> {
        self.intent().record.store(cachelet, Release);
        let record = self.tables().record(cachelet)?;
        self.lock_leaf(&record.lock);
        Ok(record)
    }

    pub fn unlock_record(&self, record: &Record) {
        record.lock.store(0, Release);
    }

    /// Changes the counts of the intent's record, then moves to step `next`.
    #[inline]
    fn count_record(&self, change: u64, up: bool, next: TransactionStep) -> Result<()> {
        let intent = self.intent();
        let cachelet = intent.record.load(Relaxed);
        intent.counting.store(0, Release);
        let record = self.lock_record(cachelet)?;
        let before = record.counts.load(Relaxed);
        intent.before.store(before, Release);
        intent.counting.store(1, Release);
        let after = if up { before.wrapping_add(change) } else { before.wrapping_sub(change) };
        record.counts.store(after, Release);
        let marked = self.mark(cachelet, before, after);
        if marked.is_err() && up {
            record.counts.store(before, Release);
            let _ = self.mark(cachelet, after, before);
        } else {
            self.step(next);
        }
        self.unlock_record(record);
        if up { marked } else { Ok(()) }
    }

    /// Updates the engine's marks of a file after its counts changed.
    pub fn mark(&self, cachelet: u32, before: u64, after: u64) -> Result<()> {
        let number = self.thread.fs().dram().cachelet(cachelet)?.number.load(Acquire);
        let node = Node { cachelet, number };
        let (held, was_held) = (after as u32 != 0, before as u32 != 0);
        let (mapped, was_mapped) = (after >> 32 != 0, before >> 32 != 0);
        if held && !was_held {
            self.thread.set_held(node, true)?;
        }
        if mapped != was_mapped {
            self.thread.files().set_mapped(node, mapped)?;
        }
        if !held && was_held {
            self.thread.set_held(node, false)?;
        }
        Ok(())
    }

    // Operations.

    /// Stores one more reference to a description into a slot and replaces the old entry. EBADF if
    /// the description has no user any more.
    pub fn reference_into(&self, file: u32, slot_at: TableSlot, entry: u32) -> Result<()> {
        let intent = self.intent();
        self.prepare(slot_at, entry)?;
        intent.file.store(file + 1, Release);
        self.step(TransactionStep::TakeReferences);
        let before =
            self.count_users(1, |before| if before == 0 { TransactionStep::None } else { TransactionStep::Put })?;
        if before == 0 {
            return Err(Errno::EBADF);
        }
        self.resume()
    }

    /// Writes slot and new entry into the intent.
    pub fn prepare(&self, slot_at: TableSlot, entry: u32) -> Result<()> {
        self.prepare_from(slot_at, entry, self.entry_in_slot(slot_at)?);
        Ok(())
    }

    /// `prepare` with a known old entry.
    #[inline]
    fn prepare_from(&self, slot_at: TableSlot, entry: u32, old: u32) {
        let intent = self.intent();
        intent.place.store(slot_at.word(), Release);
        intent.entry.store((old as u64) << 32 | entry as u64, Release);
        intent.record.store(0, Release);
        intent.file.store(0, Release);
        intent.unlinked.store(0, Release);
    }

    /// Makes a description of an open file and stores it into a slot. Its reference in the engine
    /// becomes a reference of this layer; on errors it stays the caller's. Returns whether
    /// leases on the file may exist.
    pub fn create_into(&self, file: &crate::OpenFile, slot_at: TableSlot, cloexec: bool) -> Result<bool> {
        let intent = self.intent();
        self.prepare(slot_at, 0)?;
        self.step(TransactionStep::Claim);
        let Some(index) = self.claim(TableKind::File, 0)? else {
            self.step(TransactionStep::None);
            return Err(Errno::ENFILE);
        };
        let made = self.tables().file(index)?;
        made.fill(file);
        made.begin_life(self.thread.index());
        made.users.store(1, Release);
        intent.record.store(file.node().cachelet, Release);
        let old = intent.entry.load(Relaxed) & !0xffff_ffff;
        intent.entry.store(old | entry_of(index, cloexec) as u64, Release);
        // If this thread dies, recovery of its engine slot releases the recorded reference; the
        // reaper of the process releases this layer's.
        self.take_record(ONE_HOLD, TransactionStep::Put)?;
        self.thread.release_recorded(file.node());
        let may_be_leased = self.tables().record(file.node().cachelet)?.may_be_leased();
        self.resume()?;
        Ok(may_be_leased)
    }

    /// Lock-free: marks an empty inline descriptor, so that no other thread changes it; false if it
    /// is not empty.
    #[inline]
    pub fn reserve_inline(&self, fd: u32, word: &AtomicU32) -> bool {
        // First the intent: a mark in a dead process's table can then be attributed.
        self.prepare_from(TableSlot::Descriptor(self.table, fd), 0, 0);
        // Without a load before: the line may be in another core's cache and would be transferred
        // twice.
        word.compare_exchange(0, BUSY, AcqRel, Relaxed).is_ok()
    }

    /// [`TableTransaction::create_into`] for an empty inline descriptor: the same steps in one
    /// function, because nearly all opens take this way.
    pub fn make_inline(&self, file: &crate::OpenFile, fd: u32, word: &AtomicU32, cloexec: bool) -> Result<bool> {
        let intent = self.intent();
        let node = file.node();
        self.prepare_from(TableSlot::Descriptor(self.table, fd), 0, 0);
        self.step(TransactionStep::Claim);
        let Some(index) = self.claim(TableKind::File, 0)? else {
            self.step(TransactionStep::None);
            return Err(Errno::ENFILE);
        };
        let (made, record) = (self.tables().file(index)?, self.tables().record(node.cachelet)?);
        made.fill(file);
        made.begin_life(self.thread.index());
        made.users.store(1, Release);
        intent.record.store(node.cachelet, Release);
        let entry = entry_of(index, cloexec);
        intent.entry.store(entry as u64, Release);
        intent.change.store(ONE_HOLD, Release);
        self.step(TransactionStep::TakeRecord);
        intent.counting.store(0, Release);
        self.lock_leaf(&record.lock);
        let before = record.counts.load(Relaxed);
        intent.before.store(before, Release);
        intent.counting.store(1, Release);
        record.counts.store(before.wrapping_add(ONE_HOLD), Release);
        let may_be_leased = record.may_be_leased();
        // The engine's recorded reference becomes the first reference of this layer.
        let is_first = before as u32 == 0;
        if is_first {
            self.thread.hold_recorded(node)?;
        }
        self.step(TransactionStep::Put);
        self.unlock_record(record);
        if !is_first {
            self.thread.release_recorded(node);
        }
        let mark = if self.lock_free { BUSY } else { 0 };
        word.store(entry | mark, Release);
        self.claims_used();
        self.step(TransactionStep::None);
        if self.lock_free {
            // If the entry has been replaced by now, the mark went with it.
            let _ = word.compare_exchange(entry | mark, entry, Release, Relaxed);
        }
        Ok(may_be_leased)
    }

    /// Empties an inline descriptor with the entry `old`: as [`TableTransaction::clear`], in one
    /// function. In a lock-free transaction the entry is marked.
    pub fn clear_inline(&self, fd: u32, word: &AtomicU32, old: u32) -> Result<()> {
        let intent = self.intent();
        let index = file_of(old).ok_or(Errno::EIO)?;
        let file = self.tables().file(index)?;
        self.prepare_from(TableSlot::Descriptor(self.table, fd), 0, old);
        self.step(TransactionStep::Put);
        self.store_entry(word, 0);
        self.claims_used();
        intent.file.store(index + 1, Release);
        if self.locked.threads.load(Relaxed) != 0 && self.is_used_by_calls(file, index) {
            self.step(TransactionStep::HandOver);
            return self.resume();
        }
        self.step(TransactionStep::DropReferences);
        intent.counting.store(0, Release);
        self.lock_leaf(&file.lock);
        let before = file.users.load(Relaxed);
        if before != 1 {
            // There are other users, or none: the step itself distinguishes.
            file.lock.store(0, Release);
            return self.resume();
        }
        intent.before.store(1, Release);
        intent.counting.store(1, Release);
        file.users.store(0, Release);
        self.step(TransactionStep::DropLocks);
        file.lock.store(0, Release);
        self.drop_locks()?;
        self.count_record(ONE_HOLD, false, TransactionStep::Free)?;
        self.unclaim(TableKind::File, index)?;
        self.step(TransactionStep::None);
        Ok(())
    }

    /// Whether a call of a thread of this table uses a description whose descriptor is already
    /// empty.
    fn is_used_by_calls(&self, file: &crate::OpenFile, index: u32) -> bool {
        let thread = self.thread.index();
        // Reading the lines of other threads would take these from their caches.
        let lines = if file.sharing().is_only(thread) { 1 << in_flight_line(thread) } else { u32::MAX };
        let used = self.locked.in_flight_lines.load(SeqCst) & lines;
        let (lines, _) = self.locked.in_flight.as_chunks::<REFERENCES_PER_LINE>();
        let is_it = |word: &AtomicU64| word.load(Acquire) as u32 == index + 1;
        lines.iter().enumerate().any(|(line, references)| used >> line & 1 == 1 && references.iter().any(is_it))
    }

    /// Stores an entry; with a full fence if other threads look up descriptors: see `descriptors`.
    #[inline]
    fn store_entry(&self, word: &AtomicU32, entry: u32) {
        match self.locked.threads.load(Relaxed) {
            0 => word.store(entry, Release),
            _ => drop(word.swap(entry, SeqCst)),
        }
    }

    /// Adds `change` to the counts of the intent's record. On errors, frees what was claimed for
    /// it.
    pub fn take_record(&self, change: u64, next: TransactionStep) -> Result<()> {
        self.intent().change.store(change, Release);
        self.step(TransactionStep::TakeRecord);
        let taken = self.count_record(change, true, next);
        if taken.is_err() {
            self.step(TransactionStep::Claim);
            self.undo_claims()?;
            self.step(TransactionStep::None);
        }
        taken
    }

    /// Empties a slot that holds a description or a directory.
    pub fn clear(&self, slot_at: TableSlot) -> Result<()> {
        self.prepare(slot_at, 0)?;
        self.step(TransactionStep::Put);
        self.resume()
    }

    /// Drops the description of an in-flight reference that owns it.
    pub fn drop_in_flight(&self, file: u32, which: u32) -> Result<()> {
        let intent = self.intent();
        self.prepare(TableSlot::InFlight(self.table, which), 0)?;
        intent.entry.store((entry_of(file, false) as u64) << 32, Release);
        self.step(TransactionStep::Put);
        self.resume()
    }

    /// Unlinks a mapping from the list of a slot, and frees it.
    pub fn drop_mapping(&self, slot: u32, node: u32) -> Result<()> {
        let intent = self.intent();
        let mapping = self.tables().mapping(node)?;
        self.prepare(TableSlot::Mappings(slot), 0)?;
        mapping.claimed.store(self.ticket(), Release);
        intent.record.store(mapping.cachelet.load(Relaxed), Release);
        intent.change.store(ONE_MAPPING, Release);
        intent.claimed_table.store(TableKind::Mapping as u32, Release);
        intent.unlinked.store(node + 1, Release);
        self.step(TransactionStep::UnlinkMapping);
        self.resume()
    }

    /// Runs from the intent's step to the end.
    pub fn resume(&self) -> Result<()> {
        let intent = self.intent();
        loop {
            let slot_at = TableSlot::from_word(intent.place.load(Relaxed));
            let entry = intent.entry.load(Relaxed);
            match self.present_step() {
                TransactionStep::Put => self.put(slot_at, entry as u32, (entry >> 32) as u32)?,
                TransactionStep::HandOver => self.adopt_owner(slot_at)?,
                TransactionStep::DropReferences => {
                    self.count_users(
                        -1,
                        |before| if before == 1 { TransactionStep::DropLocks } else { TransactionStep::None },
                    )?;
                }
                TransactionStep::DropLocks => self.drop_locks()?,
                TransactionStep::LinkMapping => {
                    // A node that was linked just before its process died leaves no claim.
                    if let Some(node) = intent.claims[0].load(Relaxed).checked_sub(1) {
                        lists::link_mapping(self, slot_at, node)?;
                    }
                    self.claims_used();
                    self.step(TransactionStep::None);
                }
                TransactionStep::UnlinkMapping => {
                    let node = intent.unlinked.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
                    lists::unlink_mapping(self, slot_at, node)?;
                    self.step(TransactionStep::DropRecord);
                }
                TransactionStep::DropRecord => {
                    self.count_record(intent.change.load(Relaxed), false, TransactionStep::Free)?;
                }
                TransactionStep::Free => {
                    if let Some(file) = intent.file.load(Relaxed).checked_sub(1) {
                        self.unclaim(TableKind::File, file)?;
                    }
                    if let Some(node) = intent.unlinked.load(Relaxed).checked_sub(1) {
                        self.unclaim(TableKind::Mapping, node)?;
                    }
                    self.step(TransactionStep::None);
                }
                TransactionStep::None
                | TransactionStep::Claim
                | TransactionStep::TakeRecord
                | TransactionStep::TakeReferences
                | TransactionStep::Locks => return Ok(()),
            }
        }
    }

    /// Stores the entry; the old one loses a reference.
    fn put(&self, slot_at: TableSlot, entry: u32, old: u32) -> Result<()> {
        let intent = self.intent();
        match slot_at {
            TableSlot::InFlight(slot, which) => {
                self.tables().slot(slot)?.in_flight[which as usize % IN_FLIGHT_REFERENCES].store(0, Release);
            }
            _ => {
                if let Some(word) = self.slot_word(slot_at)? {
                    self.store_entry(word, entry);
                }
            }
        }
        self.claims_used();
        match (slot_at, old) {
            (_, 0) => self.step(TransactionStep::None),
            (TableSlot::Directory(_), cachelet) => {
                intent.file.store(0, Release);
                intent.record.store(cachelet, Release);
                intent.change.store(ONE_HOLD, Release);
                self.step(TransactionStep::DropRecord);
            }
            (_, entry) => {
                intent.file.store(file_of(entry).map_or(0, |file| file + 1), Release);
                let threads = self.tables().slot(self.table)?.threads.load(Relaxed) != 0;
                let may_be_used = threads && matches!(slot_at, TableSlot::Descriptor(..) | TableSlot::InFlight(..));
                self.step(if may_be_used { TransactionStep::HandOver } else { TransactionStep::DropReferences });
            }
        }
        Ok(())
    }

    /// Hands the reference to an in-flight reference of this table to the same description that
    /// owns none, if there is one.
    fn adopt_owner(&self, slot_at: TableSlot) -> Result<()> {
        let intent = self.intent();
        let file = intent.file.load(Relaxed) as u64;
        let references = &self.tables().slot(self.table)?.in_flight;
        if let TableSlot::InFlight(_, which) = slot_at
            && references[which as usize % IN_FLIGHT_REFERENCES].load(Acquire) == file | OWNED
        {
            self.step(TransactionStep::None);
            return Ok(());
        }
        for (which, word) in references.iter().enumerate() {
            if word.load(Acquire) != file {
                continue;
            }
            intent.place.store(TableSlot::InFlight(self.table, which as u32).word(), Release);
            if word.compare_exchange(file, file | OWNED, AcqRel, Acquire).is_ok() {
                self.step(TransactionStep::None);
                return Ok(());
            }
        }
        self.step(TransactionStep::DropReferences);
        Ok(())
    }

    /// Ensures that the page of a descriptor exists.
    pub fn make_page(&self, slot: u32, fd: u32) -> Result<()> {
        self.processes.fs.provider().provide_upper(SharedTables::directory_part(slot))?;
        let link = self.tables().page_link(slot, fd)?;
        if link.load(Acquire) != 0 {
            return Ok(());
        }
        self.prepare(TableSlot::Descriptor(slot, fd), 0)?;
        self.step(TransactionStep::Claim);
        let claimed = self.claim(TableKind::Page, 0)?;
        if let Some(index) = claimed {
            link.store(index + 1, Release);
        }
        self.claims_used();
        self.step(TransactionStep::None);
        claimed.map(drop).ok_or(Errno::ENFILE)
    }

    /// Frees the pages of a table without descriptors.
    pub fn free_pages(&self, slot: u32) -> Result<()> {
        let end = self.tables().slot(slot)?.descriptors_end.load(Relaxed).min(super::DESCRIPTORS_MAX);
        for fd in (0..end).step_by(PAGE_DESCRIPTORS as usize) {
            let link = self.tables().page_link(slot, fd)?;
            let Some(index) = link.load(Acquire).checked_sub(1) else { continue };
            self.prepare(TableSlot::Descriptor(slot, fd), 0)?;
            let intent = self.intent();
            intent.claimed_table.store(TableKind::Page as u32, Release);
            self.tables().claim_word(TableKind::Page, index)?.store(self.ticket(), Release);
            intent.claims[0].store(index + 1, Release);
            self.step(TransactionStep::Claim);
            link.store(0, Release);
            self.unclaim(TableKind::Page, index)?;
            self.claims_used();
            self.step(TransactionStep::None);
        }
        Ok(())
    }
}
