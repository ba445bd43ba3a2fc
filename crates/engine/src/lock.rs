//! Locks in the DRAM region: a word with the ticket of the owner's slot, so that whoever waits knows for whom.

use crate::error::Result;
use crate::fs::Thread;
use core::sync::atomic::AtomicU32;
use pmem::Memory;

/// A held lock; dropping it releases with a plain release store (and a wake only if somebody sleeps).
pub(crate) struct Held<'f> {
    _word: &'f AtomicU32,
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Takes a lock: spins briefly, then sleeps; `Busy` only if its owner died and cannot be helped.
    pub(crate) fn lock(&self, _word: &'f AtomicU32, _waiters: &'f AtomicU32) -> Result<Held<'f>> {
        todo!()
    }

    /// Takes a lock if nobody has it.
    pub(crate) fn try_lock(&self, _word: &'f AtomicU32, _waiters: &'f AtomicU32) -> Option<Held<'f>> {
        todo!()
    }
}
