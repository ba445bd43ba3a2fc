//! A stack for each thread that reaches the dispatcher: the program's may be a signal stack of a few KiB.
//!
//! Invariants: a stack belongs to one thread of one process, named in its slot. It passes to another thread of the same process only when its owner is
//! dead; after a fork those of the parent's other threads stay unused. `top` is zero while the stack is in use: whoever interrupts its user
//! (a signal handler) and calls again goes on where it stands.

use super::context::Context;
use super::entry::thread_words;
use super::sys;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// The words of a thread. Accessed by that thread alone, or by a child that it waits for (vfork).
#[derive(Debug)]
#[repr(C)]
pub struct ThreadWords {
    /// Where the thread's stack begins; zero while it is in use, or if there is none.
    pub top: u64,
    /// The same, in use or not: also the address of its [`Context`].
    pub owned: u64,
    /// The thread that left for another program while it used the stack; zero otherwise.
    pub left_by: i64,
    /// The process that the thread belonged to when it was about to make a child in the same memory; zero otherwise.
    pub forked_by: i64,
    /// Signals that wait until the call is done: see signals.rs.
    pub deferred: u64,
    /// Whether the kernel does a call for the dispatcher that may wait.
    pub passive: u64,
    /// Where a copy to the program's memory was given up; zero: none was. See faults.rs.
    pub fault: u64,
    /// Where the program's stack for signals begins, while a handler runs on it (or after it left by a jump); zero: none did. See signals.rs.
    pub alternate: u64,
    /// Where that ends.
    pub alternate_end: u64,
    /// The program's signals while none must come: see entry.rs.
    pub held: u64,
    /// Signals of faults that the program has blocked, as far as it knows: see signals.rs.
    pub masked: u64,
}
/// Where `deferred` is.
pub const DEFERRED_OFFSET: usize = core::mem::offset_of!(ThreadWords, deferred);
/// Where `alternate` is.
pub const ALTERNATE_OFFSET: usize = core::mem::offset_of!(ThreadWords, alternate);
/// Where `alternate_end` is.
pub const ALTERNATE_END_OFFSET: usize = core::mem::offset_of!(ThreadWords, alternate_end);
/// Where `held` is.
pub const HELD_OFFSET: usize = core::mem::offset_of!(ThreadWords, held);
/// Where `masked` is.
pub const MASKED_OFFSET: usize = core::mem::offset_of!(ThreadWords, masked);
/// Bytes of the words, as entry.rs reserves them.
pub const WORDS_BYTES: usize = size_of::<ThreadWords>();

/// Handlers of signals that interrupt the dispatcher run on it too.
const STACK_BYTES: usize = 1 << 20;
/// Behind its beginning.
const CONTEXT_BYTES: usize = size_of::<Context>().next_multiple_of(4096);
/// Behind its end.
const GUARD_BYTES: usize = 4096;
/// Threads beyond this use the program's stack.
const STACKS: usize = 1024;

/// Process and thread that own each stack; zero: nobody yet.
static OWNERS: [AtomicU64; STACKS] = [const { AtomicU64::new(0) }; STACKS];
/// Where each begins; zero: not mapped yet.
static TOPS: [AtomicUsize; STACKS] = [const { AtomicUsize::new(0) }; STACKS];

/// Sees to it that this thread's stack can be used; false if it is in use, or if there is none to be had.
pub fn prepare() -> bool {
    let words = thread_words();
    // SAFETY: the words are this thread's (see ThreadWords), valid for as long as it lives, and no reference to them exists.
    let (owned, left_by) = unsafe { ((*words).owned, (*words).left_by) };
    let top = match owned {
        0 => match take() {
            Some(top) => top as u64,
            None => return false,
        },
        // A child that shared our memory used it last, and is gone: it never came back to say so.
        owned if left_by != 0 && left_by != i64::from(sys::thread_id()) => owned,
        _ => return false,
    };
    // SAFETY: as above.
    unsafe {
        (*words).top = top;
        (*words).owned = top;
        (*words).left_by = 0;
    }
    true
}

/// The context of this thread, whose stack is in use by the caller.
///
/// # Safety
/// The caller runs on the thread's own stack, and nobody else has the context.
pub unsafe fn context<'a>() -> &'a mut Context {
    // SAFETY: by the caller's promise the words name a stack, behind whose beginning there is a context: zeroed when it was mapped, and
    // valid so.
    unsafe { &mut *((*thread_words()).owned as *mut Context) }
}

/// Notes that this thread may be about to leave for another program, or that it did not.
pub fn set_leaving(leaving: bool) {
    let left_by = if leaving { i64::from(sys::thread_id()) } else { 0 };
    // SAFETY: as in `prepare`.
    unsafe { (*thread_words()).left_by = left_by };
}

fn take() -> Option<usize> {
    // SAFETY: asks only.
    let process = unsafe { sys::call(libc::SYS_getpid, [0; 6]) } as u64;
    let me = process << 32 | sys::thread_id() as u64;
    for (owner, top) in OWNERS.iter().zip(&TOPS) {
        let found = owner.load(Acquire);
        let free = found == 0 || (found >> 32 == process && !is_alive(process, found & u64::from(u32::MAX)));
        if !free || owner.compare_exchange(found, me, AcqRel, Relaxed).is_err() {
            continue;
        }
        let known = top.load(Acquire);
        if known != 0 {
            // SAFETY: its owner is dead and it was just taken, so nobody else has the context.
            unsafe { (*(known as *mut Context)).leave() };
        }
        if known == 0 {
            let Some(new) = new_stack() else {
                owner.store(found, Release);
                return None;
            };
            top.store(new, Release);
        }
        return Some(top.load(Acquire));
    }
    None
}

fn is_alive(process: u64, thread: u64) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { sys::call(libc::SYS_tgkill, [process, thread, 0, 0, 0, 0]) };
    result != -i64::from(libc::ESRCH)
}

fn new_stack() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let start = sys::map(GUARD_BYTES + STACK_BYTES + CONTEXT_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
        .ok()? as usize;
    // SAFETY: the page is new and nobody's yet.
    unsafe { sys::protect(start, GUARD_BYTES, libc::PROT_NONE) }.ok()?;
    Some(start + GUARD_BYTES + STACK_BYTES)
}
