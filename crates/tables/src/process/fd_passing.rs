//! Descriptors in transit between processes (SCM_RIGHTS): a table of fd tokens, each of which keeps
//! a description open.
//!
//! Invariants
//! - The table changes only under its lock. A token with a description holds one reference to it.
//! - After a process dies at any instruction, recovery leaves each token either unchanged or fully
//!   changed.

use super::shared_tables::TableKind;
use super::table_transaction::{TableSlot, TableTransaction, TransactionStep, entry_of, file_of};
use super::{FdToken, Process};
use crate::errno::{Errno, Result};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use engine::Thread;
use pmem::Memory;

impl<M: Memory> TableTransaction<'_, '_, M> {
    /// Runs `change` with exclusive access to the tokens.
    fn with_token_lock<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let lock = &self.tables().header().tokens_lock;
        self.processes.lock(self.thread, lock, &AtomicU32::new(0), self.ticket());
        let changed = change();
        lock.store(0, Release);
        changed
    }

    fn new_fd_token(&self, file: u32, secret: u64) -> Result<u32> {
        self.prepare(TableSlot::Nowhere, 0)?;
        self.step(TransactionStep::Claim);
        let Some(index) = self.claim(TableKind::FdToken, 0)? else {
            self.step(TransactionStep::None);
            return Err(Errno::ETOOMANYREFS);
        };
        let token = self.tables().token(index)?;
        token.file.store(0, Relaxed);
        token.secret.store(secret, Release);
        let taken = self.reference_into(file, TableSlot::FdToken(index), entry_of(file, false));
        if taken.is_err() {
            self.step(TransactionStep::Claim);
            self.undo_claims()?;
            self.step(TransactionStep::None);
        }
        taken.map(|()| index)
    }

    /// Takes a description out of transit.
    fn drop_fd_token(&self, index: u32) -> Result<()> {
        let token = self.tables().token(index)?;
        token.claimed.store(self.ticket(), Release);
        token.secret.store(0, Release);
        self.clear(TableSlot::FdToken(index))?;
        self.unclaim(TableKind::FdToken, index)
    }
}

impl<'f, M: Memory> Process<'f, M> {
    /// Puts a descriptor into transit (SCM_RIGHTS). The token keeps the description open until a
    /// receiver takes it out with `last`, or until [`Process::reap_fd_tokens`] finds that it cannot
    /// be received any more. EBADF: not of this file system. ETOOMANYREFS: the table is full (reap
    /// tokens and retry).
    pub fn export(&self, thread: &Thread<'f, M>, fd: u32) -> Result<FdToken> {
        let transaction = self.processes.begin(thread, self.index)?;
        let file = self.descriptor(fd).ok_or(Errno::EBADF)?.file;
        // Nonzero: zero marks a free entry.
        let secret = self.processes.platform().random() | 1;
        let index = transaction.with_token_lock(|| transaction.new_fd_token(file, secret))?;
        Ok(FdToken { index, secret })
    }

    /// Puts a description in transit behind a descriptor of this process. `last`: take it out of
    /// transit (false after a mere peek at the message). EBADF: no such token.
    pub fn import(&self, thread: &Thread<'f, M>, token: FdToken, fd: u32, cloexec: bool, last: bool) -> Result<()> {
        let transaction = self.processes.begin(thread, self.index)?;
        transaction.reach(self.table_index, fd)?;
        transaction.with_token_lock(|| {
            let entry = transaction.tables().token(token.index).map_err(|_| Errno::EBADF)?;
            let file = file_of(entry.file.load(Acquire)).ok_or(Errno::EBADF)?;
            if entry.secret.load(Acquire) != token.secret || token.secret == 0 {
                return Err(Errno::EBADF);
            }
            transaction.release_locks(self.entry(fd))?;
            transaction.reference_into(file, TableSlot::Descriptor(self.table_index, fd), entry_of(file, cloexec))?;
            if last { transaction.drop_fd_token(token.index) } else { Ok(()) }
        })
    }

    /// The token of an inotify descriptor in transit, by the key of its group.
    pub fn find_watcher_token(&self, thread: &Thread<'f, M>, key: u64) -> Option<FdToken> {
        let (tables, mut found) = (&self.processes.tables, None);
        let _ = tables.each_claimed(thread.fs(), TableKind::FdToken, &mut |index| {
            let token = tables.token(index)?;
            if let Some(file) = file_of(token.file.load(Acquire))
                && tables.file(file)?.watch_key() == Some(key)
            {
                found = Some(FdToken { index, secret: token.secret.load(Acquire) });
            }
            Ok(())
        });
        found
    }

    /// Takes descriptors out of transit for which `in_flight` returns false, because no process can
    /// receive them any more. Returns their number. (A VFS layer can ask the kernel: it sends its
    /// own descriptor along, with a lock on one byte of the image per index. The lock persists in
    /// socket queues as well.)
    pub fn reap_fd_tokens(&self, thread: &Thread<'f, M>, in_flight: &mut dyn FnMut(u32) -> bool) -> Result<u32> {
        let transaction = self.processes.begin(thread, self.index)?;
        transaction.with_token_lock(|| reap(&transaction, in_flight))
    }
}

fn reap<M: Memory>(transaction: &TableTransaction<'_, '_, M>, in_flight: &mut dyn FnMut(u32) -> bool) -> Result<u32> {
    let mut reaped = 0;
    transaction.tables().each_claimed(transaction.processes.fs, TableKind::FdToken, &mut |index| {
        if !in_flight(index) {
            transaction.drop_fd_token(index)?;
            reaped += 1;
        }
        Ok(())
    })?;
    Ok(reaped)
}
