//! What the engine needs of the machine around it and cannot do itself: time, sleeping, and knowing who is alive.

use crate::dram::Owner;
use crate::sync::AtomicU32;

/// Services of the process that hosts the engine. All must be callable inside a signal handler: no allocation, no locks.
pub trait Platform: Sync {
    /// Wall-clock time, ns since 1970. May go backwards; the engine copes.
    fn now_ns(&self) -> i64;
    /// Sleeps while `word` equals `expected`, at most `timeout_ms`; may return early. `word` is in memory that other processes share.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32);
    /// Wakes all that wait on `word`.
    fn wake(&self, word: &AtomicU32);
    /// Who the calling thread is.
    fn identity(&self) -> Owner;
    /// Whether that thread still exists.
    fn is_alive(&self, owner: Owner) -> bool;
    /// Whether the process of that owner still exists, whichever of its threads live. (A process may outlive its first thread.)
    fn is_process_alive(&self, owner: Owner) -> bool {
        self.is_alive(Owner { tid: owner.pid, ..owner })
    }
    /// A number that nobody can predict.
    fn random(&self) -> u64;
    /// Provides huge pages for the mapped memory at `address`, a multiple of 2 MiB as is `length`, and fills all of it. What it holds stays. Best
    /// effort: where there are none, nothing happens.
    fn provide_huge(&self, _address: *mut u8, _length: usize) {}
}
