//! Changes of the tables that survive the death of whoever makes them.
//!
//! An [`TableTransaction`] acts for one slot, under the lock of that slot's table; or, for one near descriptor, beside other threads of the process. What it does is a sequence of [`TransactionStep`]s; before each one the slot's intent says
//! which it is and on what. If the process dies, another takes its slot over, puts the step that was begun back to its beginning
//! ([`super::recovery`]) and then either undoes the operation (while nothing refers to what was taken) or goes on with it.
//!
//! Invariants
//! - Stores are seen in program order (x86, and release stores towards the compiler), so of a dead process all stores up to some point are there
//!   and none behind it.
//! - A count changes only under its lock, which names the slot; the count as it was is in the intent before it changes. The step is moved on before the
//!   lock is given up: a lock that is held, in a counting step, with `counting` set, means "perhaps counted", and the count as it was is put back.
//! - An actor holds at most one lock of a description or a record at a time, and beside it its table's, and while it is at tokens, theirs.
//! - Threads that open and close files side by side act for slots of their own ([`Processes::begin_lock_free`]). They say that they are at something before they look at the
//!   table's lock; whoever takes the lock then waits until none of them is. An entry that one of them is at has the mark [`BUSY`] until it cannot be
//!   repeated any more: so nobody else changes it meanwhile, and of two who close a descriptor one does.
//! - Whatever the actor frees is claimed with its own ticket first. So freeing twice does nothing: whoever claimed it meanwhile has another ticket.

use super::shared_tables::{
    IN_FLIGHT_REFERENCES, Intent, PAGE_DESCRIPTORS, REFERENCES_PER_LINE, Record, SLOTS, SharedTables, Slot, TableKind,
    in_flight_line,
};
use super::{Processes, lists};
use crate::errno::{Errno, Result};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use core::sync::atomic::{AtomicU32, AtomicU64};
use engine::{Node, Thread};
use pmem::Memory;

/// Looks at a taken lock before sleeping.
const SPINS: u32 = 300;
/// The longest sleep: how late a missed wake or a death is noticed.
const SLEEP_MS: u32 = 5;

/// What an operation is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum TransactionStep {
    /// Nothing is in flight.
    None = 0,
    /// Entries are being claimed, and used where nobody sees them. Undone.
    Claim,
    /// A record's count goes up. Undone.
    TakeRecord,
    /// A description's users go up by one. Undone.
    TakeReferences,
    /// The entry is put into the place. Goes on.
    Put,
    /// The node is put into the list of mappings. Goes on.
    LinkMapping,
    /// A description that lost its place is handed to a thread that uses it, if there is one. Goes on.
    HandOver,
    /// A description's users go down by one. Goes on.
    DropReferences,
    /// Nobody uses the description: its locks go. Goes on.
    DropLocks,
    /// A node is taken out of the list of mappings. Goes on.
    UnlinkMapping,
    /// A record's count goes down. Goes on.
    DropRecord,
    /// What is not used any more becomes free. Goes on.
    Free,
    /// The locks of a record change, each by one store. Undone as far as nodes are not linked.
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

/// Where a reference is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableSlot {
    /// Nowhere.
    Nowhere,
    /// Descriptor of a table (slot, number).
    Descriptor(u32, u32),
    /// Token.
    FdToken(u32),
    /// Use in flight (slot, which).
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

/// Mark of an entry, or of an empty one: a thread that acts beside others is at it.
pub(super) const BUSY: u32 = 1 << 31;
const _: () = assert!(super::shared_tables::FILES < BUSY >> 1);

/// The description of an entry that is not empty.
pub(super) fn file_of(entry: u32) -> Option<u32> {
    ((entry & !BUSY) >> 1).checked_sub(1)
}

/// Bit of a use: the description is the user's to drop, since its place is gone.
pub(super) const OWNED: u64 = 1 << 32;

/// One hold on a file.
pub(super) const ONE_HOLD: u64 = 1;
/// One hold on a file by a mapping.
pub(super) const ONE_MAPPING: u64 = 1 << 32 | ONE_HOLD;

/// Somebody who changes the tables on behalf of a slot.
pub(super) struct TableTransaction<'a, 'f, M: Memory> {
    pub processes: &'a Processes<'f, M>,
    pub thread: &'a Thread<'f, M>,
    /// The slot.
    pub index: u32,
    pub slot: &'f Slot,
    /// Slot of its table.
    pub table: u32,
    /// The same.
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

impl<'f, M: Memory> Processes<'f, M> {
    /// Acts for a living slot.
    pub(super) fn begin<'a>(&'a self, thread: &'a Thread<'f, M>, index: u32) -> Result<TableTransaction<'a, 'f, M>> {
        let slot = self.tables.slot(index)?;
        let table = slot.table.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        Ok(self.begin_in(thread, (index, slot), (table, self.tables.slot(table)?)))
    }

    /// The same, for a process that knows its slot and its table.
    #[inline]
    pub(super) fn begin_in<'a>(
        &'a self,
        thread: &'a Thread<'f, M>,
        (index, slot): (u32, &'f Slot),
        (table, locked): (u32, &'f Slot),
    ) -> TableTransaction<'a, 'f, M> {
        // Alone, the process has nobody to keep out: a reaper comes only when it is dead.
        if locked.threads.load(Relaxed) == 0 {
            locked.lock.store(index + 1, Relaxed);
        } else {
            self.lock(thread, &locked.lock, &locked.waiters, index + 1);
            self.wait_for_members(locked);
        }
        TableTransaction { processes: self, thread, index, slot, table, locked, lock_free: false }
    }

    /// Waits until no thread acts beside whoever has just locked the table.
    fn wait_for_members(&self, locked: &Slot) {
        fence(SeqCst);
        for member in &locked.members {
            let Some(Ok(member)) = member.load(Acquire).checked_sub(1).map(|index| self.tables.slot(index)) else {
                continue;
            };
            let mut looks = 0;
            while member.intent.step.load(SeqCst) != TransactionStep::None as u32 {
                looks += 1;
                match looks < SPINS {
                    true => core::hint::spin_loop(),
                    false => self.platform().wait(&AtomicU32::new(0), 0, 1),
                }
            }
        }
    }

    /// Acts for a thread that has a slot of its own, on one near descriptor: beside other threads, and without a lock. None if somebody has the table to himself.
    #[inline]
    pub(super) fn begin_lock_free<'a>(
        &'a self,
        thread: &'a Thread<'f, M>,
        (index, slot): (u32, &'f Slot),
        (table, locked): (u32, &'f Slot),
    ) -> Option<TableTransaction<'a, 'f, M>> {
        // A full fence: see `wait_for_members`.
        slot.intent.step.swap(TransactionStep::Claim as u32, SeqCst);
        let transaction = TableTransaction { processes: self, thread, index, slot, table, locked, lock_free: true };
        (locked.lock.load(SeqCst) == 0 && locked.shared.load(Relaxed) == 0).then_some(transaction)
    }

    /// Acts for a slot whose process is gone or has left (by exec) what it was at. Nobody else does.
    pub(super) fn begin_for_dead<'a>(
        &'a self,
        thread: &'a Thread<'f, M>,
        index: u32,
    ) -> Result<TableTransaction<'a, 'f, M>> {
        let slot = self.tables.slot(index)?;
        let table = slot.table.load(Relaxed).checked_sub(1).unwrap_or(index);
        let locked = self.tables.slot(table)?;
        if locked.lock.load(Acquire) != index + 1 {
            self.lock(thread, &locked.lock, &locked.waiters, index + 1);
        }
        Ok(TableTransaction { processes: self, thread, index, slot, table, locked, lock_free: false })
    }

    /// Takes a lock in the tables for `ticket`. If its owner died, puts in order what that one was at.
    pub(super) fn lock(&self, thread: &Thread<'f, M>, word: &AtomicU32, waiters: &AtomicU32, ticket: u32) {
        let mut looks = 0;
        loop {
            let owner = word.load(Relaxed);
            if owner == 0 && word.compare_exchange(0, ticket, Acquire, Relaxed).is_ok() {
                return;
            }
            looks += 1;
            if looks < SPINS {
                core::hint::spin_loop();
                continue;
            }
            if owner != 0 {
                waiters.store(1, Release);
                self.platform().wait(word, owner, SLEEP_MS);
                if word.load(Relaxed) == owner && owner != ticket {
                    // Whatever comes of it shows in the word.
                    let _ = self.reap_if_dead(thread, owner - 1);
                }
            }
        }
    }

    #[inline]
    pub(super) fn unlock(&self, word: &AtomicU32, waiters: &AtomicU32) {
        word.store(0, Release);
        if waiters.load(Relaxed) != 0 {
            waiters.store(0, Relaxed);
            self.platform().wake(word);
        }
    }
}

impl<'a, 'f, M: Memory> TableTransaction<'a, 'f, M> {
    /// For a thread's slot of the process that this one acts for, under the lock that this one has.
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

    /// The word of a place that holds one.
    pub fn slot_word(&self, slot_at: TableSlot) -> Result<Option<&'f AtomicU32>> {
        Ok(match slot_at {
            TableSlot::Descriptor(slot, fd) => self.processes.descriptor_word(slot, fd)?,
            TableSlot::FdToken(index) => Some(&self.tables().token(index)?.file),
            TableSlot::Directory(slot) => Some(&self.tables().slot(slot)?.directory),
            TableSlot::Nowhere | TableSlot::InFlight(..) | TableSlot::Mappings(_) => None,
        })
    }

    /// What is at a place now.
    pub fn entry_in_slot(&self, slot_at: TableSlot) -> Result<u32> {
        Ok(self.slot_word(slot_at)?.map_or(0, |word| word.load(Acquire) & !BUSY))
    }

    /// Claims a free entry. Until the intent's step moves on it is given back if the process dies. `NONE` if there is none.
    pub fn claim(&self, kind: TableKind, which: usize) -> Result<Option<u32>> {
        let intent = self.intent();
        let cursor = &self.slot.cursors[kind as usize];
        let count = kind.count();
        // Slots begin at places of their own: what a process freed is warm, and nobody else is there.
        let own = (self.index as u64 * count as u64 / SLOTS as u64) as u32;
        let first = cursor.load(Relaxed).checked_sub(1).unwrap_or(own);
        intent.claimed_table.store(kind as u32, Release);
        for step in 0..count {
            let index = ((first as u64 + step as u64) % count as u64) as u32;
            // Looked at before it is in the intent: what is in there with this ticket was claimed by this operation.
            if self.tables().claim_word(kind, index)?.load(Relaxed) != 0 {
                continue;
            }
            intent.claims[which].store(index + 1, Release);
            if self.tables().try_claim(kind, index, self.ticket())? {
                cursor.store((index + 1) % count + 1, Relaxed);
                return Ok(Some(index));
            }
        }
        intent.claims[which].store(0, Release);
        Ok(None)
    }

    /// Makes an entry free that this actor claimed.
    pub fn unclaim(&self, kind: TableKind, index: u32) -> Result<()> {
        let word = self.tables().claim_word(kind, index)?;
        if word.load(Acquire) != self.ticket() {
            return Ok(());
        }
        word.store(0, Release);
        self.slot.cursors[kind as usize].store(index + 1, Relaxed);
        Ok(())
    }

    /// Forgets the claims: they are used now.
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
        // Leaf locks are held for moments; their waiters look again after a while instead of being woken.
        self.processes.lock(self.thread, word, &AtomicU32::new(0), self.ticket());
    }

    /// Changes the users of the intent's description in step `step`; the count before. Then `next` is the step.
    fn count_users(&self, change: i32, next: impl Fn(u32) -> TransactionStep) -> Result<u32> {
        let intent = self.intent();
        let index = intent.file.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        let file = self.tables().file(index)?;
        intent.counting.store(0, Release);
        self.lock_leaf(&file.lock);
        let before = file.users.load(Relaxed);
        // Of none there is none to take or give: somebody else took the last one.
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

    /// Changes the counts of the intent's record; then `next` is the step.
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

    /// Tells the engine what the counts of a file say now.
    pub fn mark(&self, cachelet: u32, before: u64, after: u64) -> Result<()> {
        let number = self.thread.fs().dram().cachelet(cachelet)?.number.load(Acquire);
        let node = Node { cachelet, number };
        let (held, was_held) = (after as u32 != 0, before as u32 != 0);
        let (mapped, was_mapped) = (after >> 32 != 0, before >> 32 != 0);
        if held && !was_held {
            self.thread.set_held(node, true)?;
        }
        if mapped != was_mapped {
            self.thread.set_mapped(node, mapped)?;
        }
        if !held && was_held {
            self.thread.set_held(node, false)?;
        }
        Ok(())
    }

    // Operations.

    /// Puts one more reference to a description into a place, in place of what is there. EBADF if the description is gone.
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

    /// Says in the intent what is to come where.
    pub fn prepare(&self, slot_at: TableSlot, entry: u32) -> Result<()> {
        self.prepare_from(slot_at, entry, self.entry_in_slot(slot_at)?);
        Ok(())
    }

    /// The same, where it is known what is there.
    #[inline]
    fn prepare_from(&self, slot_at: TableSlot, entry: u32, old: u32) {
        let intent = self.intent();
        intent.place.store(slot_at.word(), Release);
        intent.entry.store((old as u64) << 32 | entry as u64, Release);
        intent.record.store(0, Release);
        intent.file.store(0, Release);
        intent.unlinked.store(0, Release);
    }

    /// Makes a description of an open file and puts it into a place. Its reference in the engine becomes this layer's hold; on errors it stays
    /// the caller's.
    pub fn create_into(&self, file: &crate::OpenFile, slot_at: TableSlot, cloexec: bool) -> Result<()> {
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
        // If this thread dies, whoever puts its work in order gives the reference back, which is noted; the hold is for whoever takes the process apart.
        self.take_record(ONE_HOLD, TransactionStep::Put)?;
        self.thread.release_recorded(file.node());
        self.resume()
    }

    /// Beside others: marks an empty descriptor near by, which nobody else puts anything into from now on; false if it is not empty.
    #[inline]
    pub fn reserve_inline(&self, fd: u32, word: &AtomicU32) -> bool {
        // First: whoever finds the mark on a dead process's table knows from where it is.
        self.prepare_from(TableSlot::Descriptor(self.table, fd), 0, 0);
        // Without a look before: the line may be another processor's, and would come twice.
        word.compare_exchange(0, BUSY, AcqRel, Relaxed).is_ok()
    }

    /// As [`TableTransaction::create_into`], for an empty descriptor near by: the same steps, one after the other, since nearly all files are opened so.
    pub fn make_inline(&self, file: &crate::OpenFile, fd: u32, word: &AtomicU32, cloexec: bool) -> Result<()> {
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
        // The first hold is what the reference becomes.
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
            // If it is somebody else's by now, the mark went with it.
            let _ = word.compare_exchange(entry | mark, entry, Release, Relaxed);
        }
        Ok(())
    }

    /// Empties a descriptor near by that has the entry `old`: as [`TableTransaction::clear`], in one go. Beside others the entry is marked.
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
            // Others have it, or nobody, which the step itself will find.
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

    /// Whether a call of a thread of this table uses a description, to which a descriptor leads no more.
    fn is_used_by_calls(&self, file: &crate::OpenFile, index: u32) -> bool {
        let thread = self.thread.index();
        // To look into the lines of others takes these from them.
        let lines = if file.sharing().is_only(thread) { 1 << in_flight_line(thread) } else { u32::MAX };
        let used = self.locked.in_flight_lines.load(SeqCst) & lines;
        let (lines, _) = self.locked.in_flight.as_chunks::<REFERENCES_PER_LINE>();
        let is_it = |word: &AtomicU64| word.load(Acquire) as u32 == index + 1;
        lines.iter().enumerate().any(|(line, references)| used >> line & 1 == 1 && references.iter().any(is_it))
    }

    /// Stores an entry: with a full fence where threads look descriptors up, see `descriptors`.
    #[inline]
    fn store_entry(&self, word: &AtomicU32, entry: u32) {
        match self.locked.threads.load(Relaxed) {
            0 => word.store(entry, Release),
            _ => drop(word.swap(entry, SeqCst)),
        }
    }

    /// Takes `change` of the intent's record; what was claimed for it is given back on errors.
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

    /// Empties a place that holds a description or a directory.
    pub fn clear(&self, slot_at: TableSlot) -> Result<()> {
        self.prepare(slot_at, 0)?;
        self.step(TransactionStep::Put);
        self.resume()
    }

    /// Drops the description of a use in flight that owns it.
    pub fn drop_in_flight(&self, file: u32, which: u32) -> Result<()> {
        let intent = self.intent();
        self.prepare(TableSlot::InFlight(self.table, which), 0)?;
        intent.entry.store((entry_of(file, false) as u64) << 32, Release);
        self.step(TransactionStep::Put);
        self.resume()
    }

    /// Takes a mapping out of the list of a slot, and frees it.
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

    /// Goes on from the intent's step to the end.
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
                    // No claim is left of one that was linked just before its process died.
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

    /// Stores the entry; what was there before loses a reference.
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

    /// Gives the reference to a thread of this table that uses the description, if there is one that has none.
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

    fn drop_locks(&self) -> Result<()> {
        let intent = self.intent();
        let index = intent.file.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        let file = self.tables().file(index)?;
        // From here on it is this slot's to free.
        file.claimed.store(self.ticket(), Release);
        let cachelet = file.node().cachelet;
        super::locks::release_description(self, cachelet, index)?;
        intent.record.store(cachelet, Release);
        intent.change.store(ONE_HOLD, Release);
        intent.unlinked.store(0, Release);
        self.step(TransactionStep::DropRecord);
        Ok(())
    }

    /// Sees to it that there is a page for a descriptor of a table.
    pub fn make_page(&self, slot: u32, fd: u32) -> Result<()> {
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
