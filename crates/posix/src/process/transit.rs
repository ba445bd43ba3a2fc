//! Descriptors on their way from one process to another (SCM_RIGHTS): a table of tokens, each of which keeps a description open.
//!
//! Invariants
//! - The table changes under its lock. A token with a description holds one reference to it.
//! - Whoever dies leaves a token as it was or as it was to become.

use super::actor::{Actor, Place, Step, entry_of, file_of};
use super::areas::Kind;
use super::{Process, Token};
use crate::errno::{Errno, Result};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use engine::Thread;
use pmem::Memory;

impl<M: Memory> Actor<'_, '_, M> {
    /// Runs `change` alone at the tokens.
    fn with_tokens<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let lock = &self.areas().header().tokens_lock;
        self.all.lock(self.thread, lock, &AtomicU32::new(0), self.ticket());
        let changed = change();
        lock.store(0, Release);
        changed
    }

    fn new_token(&self, file: u32, secret: u64) -> Result<u32> {
        self.prepare(Place::Nowhere, 0)?;
        self.step(Step::Claim);
        let Some(index) = self.claim(Kind::Token, 0)? else {
            self.step(Step::None);
            return Err(Errno::ETOOMANYREFS);
        };
        let token = self.areas().token(index)?;
        token.file.store(0, Relaxed);
        token.secret.store(secret, Release);
        let taken = self.take_into(file, Place::Token(index), entry_of(file, false));
        if taken.is_err() {
            self.step(Step::Claim);
            self.undo_claims()?;
            self.step(Step::None);
        }
        taken.map(|()| index)
    }

    /// Takes a description out of transit.
    fn drop_token(&self, index: u32) -> Result<()> {
        let token = self.areas().token(index)?;
        token.claimed.store(self.ticket(), Release);
        token.secret.store(0, Release);
        self.clear(Place::Token(index))?;
        self.unclaim(Kind::Token, index)
    }
}

impl<'f, M: Memory> Process<'f, M> {
    /// Puts a descriptor into transit (SCM_RIGHTS): the token keeps the description open until it is taken out with `last`, or
    /// [`Process::reap_transit`] finds that nobody can. EBADF: not ours. ETOOMANYREFS: the table is full (reap transit and try again).
    pub fn export(&self, thread: &Thread<'f, M>, fd: u32) -> Result<Token> {
        let actor = self.all.act(thread, self.index)?;
        let file = self.descriptor(fd).ok_or(Errno::EBADF)?.file;
        // Zero is what a free entry has.
        let secret = self.all.platform().random() | 1;
        let index = actor.with_tokens(|| actor.new_token(file, secret))?;
        Ok(Token { index, secret })
    }

    /// Puts a description in transit behind a descriptor of this process. `last`: take it out of transit (no when the message was only peeked at).
    /// EBADF: no such token.
    pub fn import(&self, thread: &Thread<'f, M>, token: Token, fd: u32, cloexec: bool, last: bool) -> Result<()> {
        let actor = self.all.act(thread, self.index)?;
        actor.reach(self.table_index, fd)?;
        actor.with_tokens(|| {
            let entry = actor.areas().token(token.index).map_err(|_| Errno::EBADF)?;
            let file = file_of(entry.file.load(Acquire)).ok_or(Errno::EBADF)?;
            if entry.secret.load(Acquire) != token.secret || token.secret == 0 {
                return Err(Errno::EBADF);
            }
            actor.release_locks(self.entry(fd))?;
            actor.take_into(file, Place::Descriptor(self.table_index, fd), entry_of(file, cloexec))?;
            if last { actor.drop_token(token.index) } else { Ok(()) }
        })
    }

    /// Takes descriptors out of transit that nobody can receive any more: those of which `in_flight` says no. (A front that sends an own
    /// descriptor along, with a lock on a byte of the image for each index, can ask the kernel: the lock lives in queues too.) How many.
    pub fn reap_transit(&self, thread: &Thread<'f, M>, in_flight: &mut dyn FnMut(u32) -> bool) -> Result<u32> {
        let actor = self.all.act(thread, self.index)?;
        actor.with_tokens(|| reap(&actor, in_flight))
    }
}

fn reap<M: Memory>(actor: &Actor<'_, '_, M>, in_flight: &mut dyn FnMut(u32) -> bool) -> Result<u32> {
    let mut reaped = 0;
    actor.areas().each_claimed(Kind::Token, &mut |index| {
        if !in_flight(index) {
            actor.drop_token(index)?;
            reaped += 1;
        }
        Ok(())
    })?;
    Ok(reaped)
}
