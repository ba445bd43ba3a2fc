//! The library's words of thread-local storage.
//!
//! Invariant: only their thread accesses them, or a child that it waits for (vfork).

unsafe extern "C" {
    fn directfs_tls() -> *mut ThreadWords;
}

/// This thread's words.
pub fn thread_words() -> *mut crate::abi::thread_words::ThreadWords {
    // SAFETY: every thread has a thread pointer, and the library's words lie at a fixed offset from
    // it.
    unsafe { directfs_tls() }
}

/// The words of a thread. Only that thread accesses them, or a child that it waits for (vfork).
#[derive(Debug)]
#[repr(C)]
pub struct ThreadWords {
    /// Top of the thread's stack; zero while it is in use, or if there is none.
    pub top: u64,
    /// Top of the thread's stack, in use or not: also the address of its [`Context`].
    pub owned: u64,
    /// The thread that started an exec while it used the stack; zero otherwise.
    pub left_by: i64,
    /// The process of the thread when it was about to create a child in the same memory; zero
    /// otherwise.
    pub forked_by: i64,
    /// 1 while a child in the same memory runs, if that is certain. Set by the child where the call
    /// that created it returns, and cleared there by its parent; also cleared by signal handlers,
    /// which may run before the parent gets there.
    pub child_runs: u64,
    /// Signals that wait until the call is done: see signals.rs.
    pub deferred: u64,
    /// Whether the kernel performs a call for the dispatcher that may block.
    pub passive: u64,
    /// The address at which a copy to the program's memory was cut short; zero if none was. See
    /// faults.rs.
    pub fault: u64,
    /// Start of the program's signal stack, while a handler runs on it (or after it left by a
    /// jump); zero if none did. See signals.rs.
    pub alternate: u64,
    /// End of that stack.
    pub alternate_end: u64,
    /// The program's signal mask while all signals are blocked: see entry_code.rs.
    pub held: u64,
    /// Signals of faults that the program believes it has blocked: see signals.rs.
    pub masked: u64,
    /// Their own address.
    #[cfg(feature = "loader")]
    pub this: u64,
    /// The address of a missing page that the thread is about to request: see
    /// `calls/mapping/missing.rs`.
    pub missing: u64,
    /// The address of the access.
    pub missing_from: u64,
    /// The address of one that it requested in vain.
    pub unresolved: u64,
}
/// Offset of `deferred`.
pub const DEFERRED_OFFSET: usize = core::mem::offset_of!(ThreadWords, deferred);
/// Offset of `alternate`.
pub const ALTERNATE_OFFSET: usize = core::mem::offset_of!(ThreadWords, alternate);
/// Offset of `alternate_end`.
pub const ALTERNATE_END_OFFSET: usize = core::mem::offset_of!(ThreadWords, alternate_end);
/// Offset of `held`.
pub const HELD_OFFSET: usize = core::mem::offset_of!(ThreadWords, held);
/// Offset of `masked`.
pub const MASKED_OFFSET: usize = core::mem::offset_of!(ThreadWords, masked);
/// Offset of `child_runs`.
pub const CHILD_RUNS_OFFSET: usize = core::mem::offset_of!(ThreadWords, child_runs);
/// Offset of `missing_from`.
pub const MISSING_FROM_OFFSET: usize = core::mem::offset_of!(ThreadWords, missing_from);
/// Size of the words, as entry_code.rs reserves them.
pub const WORDS_BYTES: usize = size_of::<ThreadWords>();
