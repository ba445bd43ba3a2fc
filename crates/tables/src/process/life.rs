//! Start and end of processes: slots, forks, exec, and reclaiming what a dead process held.
//!
//! Invariants
//! - A slot is claimed by compare-and-swap of its owner word from zero. A store of zero frees it,
//!   as the last store.
//! - The reaper of a slot is named in the same word, and becomes so by compare-and-swap, also in
//!   place of a reaper that died. Every step of reaping is idempotent.
//! - A descriptor table belongs to the slot with the same index. If it is shared (CLONE_FILES), its
//!   slot remains without a process until the last process that uses the table has ended.
//! - A child's slot has the child's process number from the start if the parent has taken one. (The
//!   child inherits the liveness lock, so it counts as alive while parent or child hold that.)
//!   Otherwise it has the parent's number until the child adopts the slot.
//!
//! Decision: docs/decisions/recovery.md, "A waited-for process has its work complete".

use super::shared_tables::{INLINE_DESCRIPTORS, SLOTS, SharedTables, Slot, SlotState};
use super::table_transaction::{ONE_HOLD, OWNED, TableSlot, TableTransaction, TransactionStep, file_of};
use super::{ChildNumber, Fork, Process, Processes};
use crate::child_numbers;
use crate::errno::{Errno, Result};
use crate::host::open_description_for;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use engine::{Node, Thread};
use pmem::Memory;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};

/// A slot reserved for reaping when all others are in use. It does not count among those ever used.
const RESERVED_SLOT: u32 = SLOTS - 1;
/// Slots checked for dead processes whenever a process is made.
const SLOTS_LOOKED_AT: u32 = 2;

fn state_of(slot: &Slot) -> SlotState {
    let number = slot.state.load(Acquire);
    [SlotState::Prepared, SlotState::Live, SlotState::Dying, SlotState::Table, SlotState::Member]
        .into_iter()
        .find(|state| *state as u32 == number)
        .unwrap_or(SlotState::Free)
}

fn set_state(slot: &Slot, state: SlotState) {
    slot.state.store(state as u32, Release);
}

/// Why a slot's owner is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Death {
    /// The process with this number is dead, and stays so: no number is taken twice.
    OfProcess(u32),
    /// The slot was given up, or its table has no user.
    OfSlot,
}

fn change_state(slot: &Slot, from: SlotState, to: SlotState) -> bool {
    slot.state.compare_exchange(from as u32, to as u32, SeqCst, Relaxed).is_ok()
}

impl<'f, M: Memory> Processes<'f, M> {
    fn process(&self, index: u32) -> Result<Process<'f, M>> {
        let slot = self.tables.slot(index)?;
        let table_index = slot.table.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        let all = Processes { own_ticket: index + 1, ..*self };
        let (number, table) = (slot.number(), self.tables.slot(table_index)?);
        Ok(Process { processes: all, index, number, slot, table_index, table, member: None })
    }

    /// Registers the calling process: an empty table, no working directory in the mount, umask as
    /// given. Also checks a few slots for dead processes. ENFILE: too many processes.
    pub fn register(&self, thread: &Thread<'f, M>, umask: u32) -> Result<Process<'f, M>> {
        let index = self.claim_slot(thread, self.fs.processes().process_number()?)?;
        let slot = self.tables.slot(index)?;
        self.introduce(slot);
        slot.table.store(index + 1, Relaxed);
        slot.umask.store(umask, Relaxed);
        set_state(slot, SlotState::Live);
        // The starter of this process may rely on the end of other processes that it saw.
        thread.fs().recover_dead_threads()?;
        let process = self.process(index)?;
        process.processes.reap_some(thread)?;
        Ok(process)
    }

    /// Records in the calling process's slot its id, and whether other processes share its number.
    fn introduce(&self, slot: &Slot) {
        slot.process_id.store(self.platform().process_id(), Relaxed);
        slot.shares_number.store(self.fs.processes().shares_process_number() as u32, Relaxed);
    }

    /// Claims a slot for the process with this number.
    fn claim_slot(&self, thread: &Thread<'f, M>, number: u32) -> Result<u32> {
        if let Some(index) = self.try_claim_slot(0..RESERVED_SLOT, number)? {
            return Ok(index);
        }
        self.reap(thread)?;
        self.try_claim_slot(0..RESERVED_SLOT, number)?.ok_or(Errno::ENFILE)
    }

    fn try_claim_slot(&self, range: core::ops::Range<u32>, number: u32) -> Result<Option<u32>> {
        let map = self.tables.slot_map();
        let mut from = range.start;
        while let Some(index) = map.first_free(from.into()).map(|index| index as u32).filter(|index| *index < range.end)
        {
            // Each slot below the mark is provided.
            let high = &self.tables.header().slots_high;
            if index >= high.load(Acquire) {
                self.fs.provider().provide_upper(SharedTables::slot_part(index))?;
                if index != RESERVED_SLOT {
                    high.fetch_max(index + 1, AcqRel);
                }
            }
            let owner = &self.tables.slot(index)?.owner;
            if owner.load(Relaxed) == 0 && owner.compare_exchange(0, number as u64, AcqRel, Relaxed).is_ok() {
                map.set(index.into());
                return Ok(Some(index));
            }
            from = index + 1;
        }
        Ok(None)
    }

    /// The process number of a slot, and whether other processes may share it; `None` if the slot
    /// is not in use. For a program that resumes, after exec, in a slot with a known index.
    pub fn number_of(&self, index: u32) -> Option<(u32, bool)> {
        let slot = self.tables.slot(index).ok().filter(|slot| state_of(slot) == SlotState::Live)?;
        Some((slot.number(), slot.shares_number.load(Relaxed) != 0))
    }

    /// Replaces the number in the calling process's slot, after the process has taken its own
    /// number instead of a shared one. Returns whether the slot still belonged to the process.
    pub fn change_number(&self, index: u32, from: u32) -> Result<bool> {
        let slot = self.tables.slot(index)?;
        let changed = slot.change_number(from, self.fs.processes().process_number()?);
        if changed {
            self.introduce(slot);
        }
        Ok(changed)
    }

    /// After exec: returns the slot that the calling process had before, if any. `index` (from the
    /// environment) is checked first. Closes what exec closes, removes the mappings of the previous
    /// program, and recovers operations of other threads that exec interrupted.
    pub fn resume(&self, thread: &Thread<'f, M>, index: Option<u32>) -> Result<Option<Process<'f, M>>> {
        let number = self.fs.processes().process_number()?;
        let used = |index: &u32| *index < self.tables.header().slots_high.load(Acquire);
        for index in index.into_iter().filter(used).chain(self.tables.taken_slots()) {
            let slot = self.tables.slot(index)?;
            let mine = slot.number() == number && slot.process_id.load(Relaxed) == self.platform().process_id();
            if mine && state_of(slot) == SlotState::Live {
                return self.process(index)?.begin_again(thread).map(Some);
            }
        }
        Ok(None)
    }

    /// The calling process, if it is registered in that slot and continues unchanged, when another
    /// part of the same program takes over. ESRCH if the slot belongs to another process.
    pub fn rejoin(&self, index: u32) -> Result<Process<'f, M>> {
        let slot = self.tables.slot(index)?;
        let mine = slot.number() == self.fs.processes().process_number()?;
        if mine && state_of(slot) == SlotState::Live { self.process(index) } else { Err(Errno::ESRCH) }
    }

    /// In the child, before anything else: adopts the slot that [`Process::prepare_fork`] made.
    /// ESRCH if it was reaped, because the parent died before the child was known.
    pub fn adopt(&self, child: u32) -> Result<Process<'f, M>> {
        let slot = self.tables.slot(child)?;
        let (number, own) = (slot.number(), self.fs.processes().process_number()?);
        if state_of(slot) != SlotState::Prepared || number != own && !slot.change_number(number, own) {
            return Err(Errno::ESRCH);
        }
        self.introduce(slot);
        if !change_state(slot, SlotState::Prepared, SlotState::Live) {
            return Err(Errno::ESRCH);
        }
        self.process(child)
    }

    // End of processes.

    /// Reclaims all that dead processes held; returns their number. The caller need not be
    /// registered.
    pub fn reap(&self, thread: &Thread<'f, M>) -> Result<u32> {
        if self.own_ticket != 0 {
            return self.reap_all(thread);
        }
        // Any slot serves. If none but the reserved one is free, and that is taken, its owner does
        // the same work.
        let number = self.fs.processes().process_number()?;
        let index = match self.try_claim_slot(0..RESERVED_SLOT, number)? {
            None => self.try_claim_slot(RESERVED_SLOT..SLOTS, number)?,
            found => found,
        };
        let Some(index) = index else { return Ok(0) };
        let reaped = Processes { own_ticket: index + 1, ..*self }.reap_all(thread);
        free_slot(self, index)?;
        reaped
    }

    pub(super) fn reap_all(&self, thread: &Thread<'f, M>) -> Result<u32> {
        let mut reaped = 0;
        let reserved = self.fs.dram().is_upper_provided(SharedTables::slot_part(RESERVED_SLOT).0);
        let reserved = reserved.then_some(RESERVED_SLOT);
        for index in (0..self.tables.header().slots_high.load(Acquire).min(RESERVED_SLOT)).chain(reserved) {
            reaped += self.reap_if_dead(thread, index)? as u32;
        }
        Ok(reaped)
    }

    /// Checks the next few slots.
    fn reap_some(&self, thread: &Thread<'f, M>) -> Result<()> {
        let header = self.tables.header();
        let high = header.slots_high.load(Acquire).clamp(1, SLOTS);
        for _ in 0..SLOTS_LOOKED_AT.min(high) {
            let index = header.reap_cursor.fetch_add(1, Relaxed) % high;
            self.reap_if_dead(thread, index)?;
        }
        Ok(())
    }

    fn is_slot_alive(&self, slot: &Slot) -> bool {
        match slot.number() {
            0 => false,
            number => self.fs.processes().is_process_alive(number),
        }
    }

    fn death(&self, index: u32, slot: &Slot) -> Result<Option<Death>> {
        let number = slot.number();
        Ok(match state_of(slot) {
            _ if number == 0 => None,
            // A table ends with its last user.
            SlotState::Table => (!self.is_shared(index)?).then_some(Death::OfSlot),
            SlotState::Dying => Some(Death::OfSlot),
            SlotState::Free | SlotState::Live | SlotState::Member | SlotState::Prepared => {
                (!self.fs.processes().is_process_alive(number)).then_some(Death::OfProcess(number))
            }
        })
    }

    fn is_dead(&self, index: u32, slot: &Slot) -> Result<bool> {
        self.death(index, slot).map(|death| death.is_some())
    }

    /// Reaps a slot if its process is dead and no living process reaps it; returns whether it did.
    pub(super) fn reap_if_dead(&self, thread: &Thread<'f, M>, index: u32) -> Result<bool> {
        let slot = self.tables.slot(index)?;
        if self.own_ticket == index + 1 {
            return Ok(false);
        }
        let Some(death) = self.death(index, slot)? else { return Ok(false) };
        if self.is_member(thread, index, slot)?
            || !self.reclaim_parent(thread, slot)?
            || !self.claim_dead_slot(index, slot, death)?
        {
            return Ok(false);
        }
        self.release_slot(thread, index)?;
        Ok(true)
    }

    /// Whether a slot belongs to a thread of a process that still exists or is not reaped yet. Such
    /// a slot is reaped with its process, which this function attempts.
    fn is_member(&self, thread: &Thread<'f, M>, index: u32, slot: &Slot) -> Result<bool> {
        let Some(process) = slot.table.load(Acquire).checked_sub(1).filter(|_| state_of(slot) == SlotState::Member)
        else {
            return Ok(false);
        };
        let process_slot = self.tables.slot(process)?;
        let is_listed = || process_slot.members.iter().any(|word| word.load(Acquire) == index + 1);
        if is_listed() {
            self.reap_if_dead(thread, process)?;
        }
        Ok(is_listed() || state_of(slot) != SlotState::Member)
    }

    /// A prepared slot is reaped after its parent, if that is dead too, because the parent may have
    /// been changing it. Returns whether the slot may be reaped now.
    fn reclaim_parent(&self, thread: &Thread<'f, M>, slot: &Slot) -> Result<bool> {
        let parent = slot.parent.load(Acquire);
        if state_of(slot) != SlotState::Prepared || parent == 0 || parent == self.own_ticket {
            return Ok(true);
        }
        let parent_slot = self.tables.slot(parent - 1)?;
        if self.is_dead(parent - 1, parent_slot)? {
            self.reap_if_dead(thread, parent - 1)?;
        }
        Ok(!self.is_dead(parent - 1, parent_slot)?)
    }

    /// Becomes the reaper of a slot, of which `death` was seen before.
    fn claim_dead_slot(&self, index: u32, slot: &Slot, death: Death) -> Result<bool> {
        let (number, reaper) = (slot.number(), slot.reaper());
        if reaper == self.own_ticket || (reaper != 0 && self.is_slot_alive(self.tables.slot(reaper - 1)?)) {
            return Ok(false);
        }
        self.tables.slot(self.own_ticket - 1)?.has_reaped.store(1, SeqCst);
        if number == 0 || !slot.claim_reaping(number, reaper, self.own_ticket) {
            return Ok(false);
        }
        // Since the check it may have been reaped and reused by the same process, unless that was
        // dead already.
        let state = state_of(slot);
        let is_dead = death == Death::OfProcess(number) && state != SlotState::Table || self.is_dead(index, slot)?;
        let claimed = is_dead && (state == SlotState::Dying || change_state(slot, state, SlotState::Dying));
        if !claimed {
            slot.end_reaping();
        }
        Ok(claimed)
    }

    /// Removes a dead reaper from the slots that it had started to reap: its ticket will be reused.
    fn disown_dead_slots(&self, index: u32) -> Result<()> {
        if self.tables.slot(index)?.has_reaped.load(Acquire) == 0 {
            return Ok(());
        }
        for other in self.tables.taken_slots() {
            let slot = self.tables.slot(other)?;
            if other != index && slot.reaper() == index + 1 {
                slot.claim_reaping(slot.number(), index + 1, 0);
            }
        }
        Ok(())
    }

    /// Reclaims all that a slot holds, and the slot. The caller is its reaper, and its state is
    /// `Dying`.
    fn release_slot(&self, thread: &Thread<'f, M>, index: u32) -> Result<()> {
        let slot = self.tables.slot(index)?;
        if self.own_ticket != index + 1 {
            // First recovers its threads' operations in the engine: they may concern a file that is
            // released here.
            thread.fs().reap_dead_threads()?;
        }
        let (table, shared);
        {
            let transaction = self.begin_for_dead(thread, index)?;
            table = transaction.table;
            shared = self.is_shared(index)?;
            transaction.recover_members()?;
            transaction.recover()?;
            if slot.foreign.load(Acquire) != 0 {
                super::locks::release_mount_locks(&transaction)?;
            }
            transaction.clear(TableSlot::Directory(index))?;
            transaction.drop_mappings(index)?;
            if table == index && !shared {
                transaction.empty_table()?;
            }
        }
        if self.own_ticket != index + 1 {
            self.disown_dead_slots(index)?;
        }
        if table == index && !shared {
            return free_slot(self, index);
        }
        if table == index {
            set_state(slot, SlotState::Table);
            slot.end_reaping();
        } else {
            free_slot(self, index)?;
        }
        // Two processes that end at once may each have seen the other: the later one finds it alone
        // here.
        self.reap_if_dead(thread, table).map(drop)
    }

    /// Whether a table is used by processes (or slots of dead ones) other than its own.
    fn is_shared(&self, table: u32) -> Result<bool> {
        if self.tables.slot(table)?.shared.load(SeqCst) == 0 {
            return Ok(false);
        }
        for index in self.tables.taken_slots() {
            let slot = self.tables.slot(index)?;
            let counts = !matches!(state_of(slot), SlotState::Free | SlotState::Member);
            if index != table && slot.table.load(SeqCst) == table + 1 && counts {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Frees an empty slot.
pub(super) fn free_slot<M: Memory>(processes: &Processes<'_, M>, index: u32) -> Result<()> {
    let slot = processes.tables.slot(index)?;
    for word in [
        &slot.threads,
        &slot.shared,
        &slot.has_reaped,
        &slot.umask,
        &slot.parent,
        &slot.table,
        &slot.descriptors_end,
        &slot.in_flight_lines,
        &slot.intent.step,
    ] {
        word.store(0, Release);
    }
    slot.end_wait();
    slot.program[0].store(0, Release);
    slot.process_id.store(0, Release);
    slot.shares_number.store(0, Release);
    set_state(slot, SlotState::Free);
    processes.tables.slot_map().clear(index.into());
    slot.owner.store(0, Release);
    Ok(())
}

impl<M: Memory> TableTransaction<'_, '_, M> {
    /// Closes all descriptors of the transaction's table, ends all in-flight references, and frees
    /// its pages.
    fn empty_table(&self) -> Result<()> {
        let table = self.tables().slot(self.table)?;
        self.each_entry(self.table, 0, u32::MAX, &mut |fd, entry| self.close(fd, entry))?;
        self.end_in_flight()?;
        if table.descriptors_end.load(Relaxed) > INLINE_DESCRIPTORS {
            self.free_pages(self.table)?;
        }
        table.descriptors_end.store(0, Release);
        table.end_wait();
        Ok(())
    }

    /// Ends the in-flight references of dead threads.
    fn end_in_flight(&self) -> Result<()> {
        for (which, word) in self.tables().slot(self.table)?.in_flight.iter().enumerate() {
            let word_now = word.load(Acquire);
            if word_now & OWNED == 0 {
                word.store(0, Release);
            } else if let Some(file) = (word_now as u32).checked_sub(1) {
                self.drop_in_flight(file, which as u32)?;
            }
        }
        Ok(())
    }

    /// Gives a child copies of all that it inherits.
    fn copy_to_child(&self, child: u32, fork: Fork) -> Result<()> {
        if !fork.shares_files {
            self.each_entry(self.table, 0, u32::MAX, &mut |fd, entry| {
                self.reach(child, fd)?;
                self.reference_into(file_of(entry).ok_or(Errno::EIO)?, TableSlot::Descriptor(child, fd), entry)
            })?;
        }
        let directory = self.slot.directory.load(Relaxed);
        if directory != 0 {
            self.set_directory(child, directory)?;
        }
        if !fork.shares_memory {
            let tables = self.tables();
            let mut copied = Ok(());
            // Additions go to another list than the one that is walked.
            super::lists::walk_mappings(tables, self.index, &mut |index, _| {
                copied = self.inherit_mapping(child, index);
                copied.is_ok()
            })?;
            copied?;
        }
        Ok(())
    }

    fn set_directory(&self, slot: u32, cachelet: u32) -> Result<()> {
        let intent = self.intent();
        self.prepare(TableSlot::Directory(slot), cachelet)?;
        intent.record.store(cachelet, Release);
        self.take_record(ONE_HOLD, TransactionStep::Put)?;
        self.resume()
    }
}

/// Start and end.
impl<'f, M: Memory> Process<'f, M> {
    /// The slot's index, by which a child or a new program image finds it again.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// All processes.
    pub fn processes(&self) -> &Processes<'f, M> {
        &self.processes
    }

    /// The id of the process in its own namespace.
    pub(super) fn process_id(&self) -> u32 {
        self.slot.process_id.load(Relaxed)
    }

    /// Whether the slot was reaped as dead and no longer belongs to this process. Then nothing in
    /// the slot or its tables does.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.slot.owner.load(Relaxed) != self.number as u64
    }

    /// Declares that other threads of the process (or a process that shares the table) may make
    /// calls at the same time, which makes lookups slightly slower. Call it before the first such
    /// thread starts; only exec undoes it.
    pub fn set_threads(&self) {
        self.table.threads.store(1, SeqCst);
    }

    /// A view of the process for one of its threads, which opens and closes files lock-free beside
    /// the others until [`Process::end_thread`]. `None`: there are too many such threads, or the
    /// descriptor table is shared.
    pub fn for_thread(&self) -> Option<Process<'f, M>> {
        if self.table_index != self.index || self.table.shared.load(Relaxed) != 0 {
            return None;
        }
        let index = self.processes.try_claim_slot(0..RESERVED_SLOT / 2, self.number).ok()??;
        let slot = self.processes.tables.slot(index).ok()?;
        slot.table.store(self.index + 1, Release);
        set_state(slot, SlotState::Member);
        let is_free = |word: &&AtomicU32| word.compare_exchange(0, index + 1, AcqRel, Relaxed).is_ok();
        if self.slot.members.iter().any(|word| is_free(&word)) {
            return Some(Process { member: Some((index, slot)), ..*self });
        }
        let _ = free_slot(&self.processes, index);
        None
    }

    /// Ends the thread's own view; the thread ends, or uses the shared one.
    pub fn end_thread(self) {
        let Some((index, _)) = self.member else { return };
        // In this order: a slot in the list belongs to this process.
        if let Some(word) = self.slot.members.iter().find(|word| word.load(Relaxed) == index + 1) {
            word.store(0, Release);
            let _ = free_slot(&self.processes, index);
        }
    }

    /// Takes a process number for a child, and its liveness lock through a description that the
    /// child inherits. The descriptor is at or above `lowest`, and close-on-exec. Without a
    /// description (if no descriptor is free) parent and child share a number, and count as alive
    /// while either lives.
    pub fn take_child_number(&self, lowest: i32) -> Result<ChildNumber> {
        let fs = self.processes.fs;
        let Some(own) = fs.processes().liveness_description() else {
            return Ok(ChildNumber { number: fs.processes().new_process_number()?, description: None });
        };
        let own = child_numbers::own(own);
        // Where the limit on descriptors is low, all that the program does not know of is below.
        let lowest = lowest.min(own);
        // SAFETY: the file system's own descriptor, open for as long as it is in use.
        let own = unsafe { BorrowedFd::borrow_raw(own) };
        let number = fs.processes().new_process_number()?;
        let description = open_description_for(own, number);
        let description = description.and_then(|fresh| rustix::io::fcntl_dupfd_cloexec(fresh, lowest));
        if let Ok(description) = description
            && self.processes.platform().hold_liveness(description.as_raw_fd(), number)
        {
            return Ok(ChildNumber { number, description: Some(description.into_raw_fd()) });
        }
        Ok(self.share_number())
    }

    /// A child's process number that is shared with the parent.
    pub fn share_number(&self) -> ChildNumber {
        self.processes.fs.processes().share_process_number();
        self.slot.shares_number.store(1, Release);
        ChildNumber { number: self.number, description: None }
    }

    /// Before a fork: makes the child's slot with copies of everything that it inherits; returns
    /// its index. EAGAIN: too many processes.
    pub fn prepare_fork(&self, thread: &Thread<'f, M>, fork: Fork) -> Result<u32> {
        self.processes.reap_some(thread)?;
        let number = if fork.number == 0 { self.number } else { fork.number };
        let child = self.processes.claim_slot(thread, number).map_err(|error| match error {
            Errno::ENFILE => Errno::EAGAIN,
            error => error,
        })?;
        let slot = self.processes.tables.slot(child)?;
        if fork.shares_files {
            self.set_threads();
            self.table.shared.store(1, SeqCst);
        }
        let table = if fork.shares_files { self.table_index } else { child };
        slot.table.store(table + 1, SeqCst);
        slot.umask.store(self.umask(), Relaxed);
        slot.parent.store(self.index + 1, Relaxed);
        slot.program[1].store(self.slot.program[1].load(Relaxed), Relaxed);
        slot.program[0].store(self.slot.program[0].load(Relaxed), Relaxed);
        set_state(slot, SlotState::Prepared);
        let copied =
            self.processes.begin(thread, self.index).and_then(|transaction| transaction.copy_to_child(child, fork));
        if let Err(error) = copied {
            self.cancel_fork(thread, child);
            return Err(error);
        }
        Ok(child)
    }

    /// After a failed fork: undoes [`Process::prepare_fork`].
    pub fn cancel_fork(&self, thread: &Thread<'f, M>, child: u32) {
        let Ok(slot) = self.processes.tables.slot(child) else { return };
        let mine = slot.parent.load(Acquire) == self.index + 1;
        if mine
            && slot.claim_reaping(slot.number(), 0, self.processes.own_ticket)
            && change_state(slot, SlotState::Prepared, SlotState::Dying)
        {
            // What fails here is left to a reaper.
            let _ = self.processes.release_slot(thread, child);
        }
    }

    /// Ends the process and reclaims everything. In a process with several threads, some may be in
    /// calls until the kernel ends them: then only descriptors are closed, and the rest is reaped.
    /// (A process that does not call this is reaped as a whole.)
    pub fn exit(self, thread: &Thread<'f, M>) {
        if self.table.threads.load(Acquire) != 0 {
            let shared = self.table_index != self.index || self.processes.is_shared(self.index).unwrap_or(true);
            if !shared {
                let _ = self.close_range(thread, 0, u32::MAX, false);
            }
            return;
        }
        if self.slot.claim_reaping(self.number, 0, self.processes.own_ticket) {
            set_state(self.slot, SlotState::Dying);
            let _ = self.processes.release_slot(thread, self.index);
        }
    }

    /// Whether the process holds at most its working directory: no descriptor or mapping, also none
    /// that an exec would end. Its table and its number are its own, and it has one thread.
    pub fn has_no_files(&self) -> bool {
        let slot = self.slot;
        let is_alone = self.table_index == self.index
            && [&slot.shares_number, &slot.shared, &slot.threads].iter().all(|flag| flag.load(Acquire) == 0);
        let mut has_descriptor = false;
        self.descriptors(&mut |_, _| {
            has_descriptor = true;
            false
        });
        is_alone && !has_descriptor && slot.mappings.load(Acquire) == 0
    }

    /// Continues this process with a new program.
    fn begin_again(self, thread: &Thread<'f, M>) -> Result<Process<'f, M>> {
        {
            let transaction = self.processes.begin_for_dead(thread, self.index)?;
            transaction.recover_members()?;
            transaction.recover()?;
            self.end_wait();
            transaction.drop_mappings(self.index)?;
        }
        self.cancel_pending_forks(thread)?;
        let shared = self.table_index != self.index || self.processes.is_shared(self.index)?;
        if shared {
            return self.unshare(thread)?.begin_again(thread);
        }
        let transaction = self.processes.begin_for_dead(thread, self.index)?;
        transaction.end_in_flight()?;
        self.table.threads.store(0, Release);
        transaction.each_entry(self.index, 0, u32::MAX, &mut |fd, entry| match entry & 1 {
            0 => Ok(()),
            _ => transaction.close(fd, entry),
        })?;
        drop(transaction);
        Ok(self)
    }

    /// Cancels the forks that a thread was preparing when exec ended it.
    fn cancel_pending_forks(&self, thread: &Thread<'f, M>) -> Result<()> {
        if self.table.threads.load(Acquire) == 0 {
            return Ok(());
        }
        for index in self.processes.tables.taken_slots() {
            let slot = self.processes.tables.slot(index)?;
            // A child that was started has inherited the lock of its number.
            let number = slot.number();
            let unborn = number == self.number || !self.processes.fs.processes().is_process_alive(number);
            let unborn = unborn && state_of(slot) == SlotState::Prepared;
            if unborn && slot.parent.load(Acquire) == self.index + 1 {
                self.cancel_fork(thread, index);
            }
        }
        Ok(())
    }

    /// exec gives a process with a shared descriptor table its own one: the process moves to
    /// another slot.
    fn unshare(self, thread: &Thread<'f, M>) -> Result<Process<'f, M>> {
        let fresh = self.prepare_fork(thread, Fork::default())?;
        let moved = self.processes.adopt(fresh)?;
        if self.slot.claim_reaping(self.number, 0, moved.processes.own_ticket) {
            set_state(self.slot, SlotState::Dying);
            moved.processes.release_slot(thread, self.index)?;
        }
        Ok(moved)
    }

    /// The umask.
    pub fn umask(&self) -> u32 {
        self.slot.umask.load(Relaxed)
    }

    /// Sets the umask and returns the previous one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.slot.umask.swap(umask & 0o777, Relaxed)
    }

    /// The working directory, if it is in the mount. It stays referenced until it is changed. In a
    /// process with several threads a caller that uses it for longer takes its own reference
    /// (`thread.retain`).
    pub fn directory(&self) -> Option<Node> {
        let cachelet = self.slot.directory.load(Acquire);
        if cachelet == 0 {
            return None;
        }
        let number = self.processes.fs.dram().cachelet(cachelet).ok()?.number.load(Relaxed);
        Some(Node { cachelet, number })
    }

    /// chdir: into the mount, or out of it. Takes its own reference.
    pub fn set_directory(&self, thread: &Thread<'f, M>, directory: Option<Node>) -> Result<()> {
        let transaction = self.processes.begin(thread, self.index)?;
        match directory {
            Some(node) => transaction.set_directory(self.index, node.cachelet),
            None => transaction.clear(TableSlot::Directory(self.index)),
        }
    }
}
