//! How transactions begin, and how they exclude each other: locks of tables, descriptions and
//! records, which name the slot that holds them.

use super::{TableTransaction, TransactionStep};
use crate::errno::{Errno, Result};
use crate::process::Processes;
use crate::process::shared_tables::Slot;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};
use engine::Thread;
use engine::dram::Owner;
use pmem::Memory;

/// Polls of a taken lock before sleeping.
const SPINS: u32 = 300;
/// Longest sleep, and so the delay until a missed wake-up or a death is noticed.
const SLEEP_MS: u32 = 5;

/// Sleeps after which a waiter reports for which process it waits: about 5 s.
const REPORT_SLEEPS: u32 = 5000 / SLEEP_MS;

impl<'f, M: Memory> Processes<'f, M> {
    /// Begins a transaction for a living slot.
    pub(in crate::process) fn begin<'a>(
        &'a self,
        thread: &'a Thread<'f, M>,
        index: u32,
    ) -> Result<TableTransaction<'a, 'f, M>> {
        let slot = self.tables.slot(index)?;
        let table = slot.table.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        Ok(self.begin_in(thread, (index, slot), (table, self.tables.slot(table)?)))
    }

    /// `begin` for a process with known slot and table.
    #[inline(always)]
    pub(in crate::process) fn begin_in<'a>(
        &'a self,
        thread: &'a Thread<'f, M>,
        (index, slot): (u32, &'f Slot),
        (table, locked): (u32, &'f Slot),
    ) -> TableTransaction<'a, 'f, M> {
        // With one thread there is nothing to exclude: a reaper comes only after the process's
        // death.
        if locked.threads.load(Relaxed) == 0 {
            locked.lock.store(index + 1, Relaxed);
        } else {
            self.lock_beside_members(thread, index, locked);
        }
        TableTransaction { processes: self, thread, index, slot, table, locked, lock_free: false }
    }

    /// Locks a table that other threads of the process use.
    #[cold]
    #[inline(never)]
    fn lock_beside_members(&self, thread: &Thread<'f, M>, index: u32, locked: &Slot) {
        self.lock(thread, &locked.lock, &locked.waiters, index + 1);
        self.wait_for_members(locked);
    }

    /// Waits until no lock-free transaction is active, after the table was locked.
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

    /// Begins a lock-free transaction on one inline descriptor, for a thread with its own slot.
    /// `None` if the table is locked.
    #[inline]
    pub(in crate::process) fn begin_lock_free<'a>(
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

    /// Begins a transaction for a slot whose process is dead, or whose interrupted operations were
    /// left behind by exec. The caller is the only one.
    pub(in crate::process) fn begin_for_dead<'a>(
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

    /// Takes a lock in the tables for `ticket`. If the owner died, recovers its transaction.
    pub(in crate::process) fn lock(&self, thread: &Thread<'f, M>, word: &AtomicU32, waiters: &AtomicU32, ticket: u32) {
        let (mut looks, mut sleeps) = (0, 0);
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
                    // The result shows in the word.
                    let _ = self.reap_if_dead(thread, owner - 1);
                    sleeps += 1;
                    if sleeps == REPORT_SLEEPS {
                        self.report_wait(owner - 1);
                    }
                }
            }
        }
    }

    /// Reports that this thread waits for the process of a slot.
    #[cold]
    fn report_wait(&self, index: u32) {
        let Ok(slot) = self.tables.slot(index) else { return };
        let owner = Owner { process: slot.number(), thread: slot.process_id.load(Relaxed) };
        self.platform().report_wait(Some(owner), "is opening, closing or locking a file that both use");
    }

    #[inline]
    pub(in crate::process) fn unlock(&self, word: &AtomicU32, waiters: &AtomicU32) {
        word.store(0, Release);
        if waiters.load(Relaxed) != 0 {
            waiters.store(0, Relaxed);
            self.platform().wake(word);
        }
    }
}
