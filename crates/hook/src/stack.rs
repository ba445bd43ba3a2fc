//! A stack for each thread that reaches the dispatcher, because the program's may be a signal stack
//! of a few KiB.
//!
//! Invariants: a stack belongs to one thread of one process, its `owner`. It passes to
//! another thread of the same process only when its owner is dead; after a fork the stacks of the
//! parent's other threads stay unused. `top` is zero while the stack is in use: a signal handler
//! that interrupts its user and performs a call stays on the present stack.

use crate::abi::sys;
use crate::abi::thread_words::thread_words;
use crate::context::Context;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// Signal handlers that interrupt the dispatcher run on it, too.
const STACK_BYTES: usize = 1 << 20;
/// The part of the page at its top that the stack has. Calls that need little, like the one that
/// ends a short program, touch that page alone: the rest has what each call uses of the context.
const TOP_BYTES: usize = 3072;
/// Above its top.
const CONTEXT_BYTES: usize = size_of::<Context>();
/// Below its end.
const GUARD_BYTES: usize = 4096;
/// Threads beyond this number and the first use the program's stack.
const STACKS_MAX: usize = 1023;

struct Stack {
    /// Process and thread that own it; zero: no owner yet.
    owner: AtomicU64,
    /// Zero: not mapped yet.
    top: AtomicUsize,
}

/// The stack of the first thread, apart from the others: most programs touch no page of these.
static FIRST: Stack = Stack { owner: AtomicU64::new(0), top: AtomicUsize::new(0) };
static STACKS: [Stack; STACKS_MAX] =
    [const { Stack { owner: AtomicU64::new(0), top: AtomicUsize::new(0) } }; STACKS_MAX];

/// Prepares this thread's stack; returns false if it is in use, or if none is available.
pub fn prepare() -> bool {
    let words = thread_words();
    // SAFETY: the words are this thread's (see ThreadWords), valid for its life, and no reference
    // to them exists.
    let (owned, left_by) = unsafe { ((*words).owned, (*words).left_by) };
    let top = match owned {
        0 => match take() {
            Some(top) => top as u64,
            None => return false,
        },
        // A child in shared memory used it last, and ended without clearing `left_by`.
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

/// The context of this thread, whose stack the caller runs on.
///
/// # Safety
/// The caller runs on the thread's own stack, and no other reference to the context exists.
pub unsafe fn context<'a>() -> &'a mut Context {
    // SAFETY: by the caller's promise the words name a stack, with a context above its top: zeroed
    // when it was mapped, and valid so.
    unsafe { &mut *((*thread_words()).owned as *mut Context) }
}

/// Records that this thread may be about to exec another program, or that it did not.
pub fn set_leaving(leaving: bool) {
    let left_by = if leaving { i64::from(sys::thread_id()) } else { 0 };
    // SAFETY: as in `prepare`.
    unsafe { (*thread_words()).left_by = left_by };
}

fn take() -> Option<usize> {
    // SAFETY: only queries.
    let process = unsafe { sys::call(libc::SYS_getpid, [0; 6]) } as u64;
    let me = process << 32 | sys::thread_id() as u64;
    for Stack { owner, top } in core::iter::once(&FIRST).chain(&STACKS) {
        // Writing first saves the page fault of reading.
        let found = owner.compare_exchange(0, me, AcqRel, Acquire).unwrap_or_else(|found| found);
        let is_left = || found >> 32 == process && !is_alive(process, found & u64::from(u32::MAX));
        if found != 0 && (!is_left() || owner.compare_exchange(found, me, AcqRel, Relaxed).is_err()) {
            continue;
        }
        let known = top.load(Acquire);
        if known != 0 {
            // SAFETY: its owner is dead and it was just claimed, so no other reference to the
            // context exists.
            unsafe { (*(known as *mut Context)).leave() };
        }
        if known == 0 {
            let Some(new) = new_stack() else {
                owner.store(found, Release);
                return None;
            };
            // SAFETY: a new context, without other references.
            unsafe { (*(new as *mut Context)).start_records(me as u8) };
            top.store(new, Release);
        }
        return Some(top.load(Acquire));
    }
    None
}

/// Whether a thread of a process lives.
pub fn is_alive(process: u64, thread: u64) -> bool {
    // SAFETY: signal 0 only queries.
    let result = unsafe { sys::call(libc::SYS_tgkill, [process, thread, 0, 0, 0, 0]) };
    result != -i64::from(libc::ESRCH)
}

fn new_stack() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let bytes = GUARD_BYTES + STACK_BYTES + TOP_BYTES + CONTEXT_BYTES;
    let start = sys::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1).ok()? as usize;
    // SAFETY: the page is new and has no other users.
    unsafe { sys::protect(start, GUARD_BYTES, libc::PROT_NONE) }.ok()?;
    Some(start + GUARD_BYTES + STACK_BYTES + TOP_BYTES)
}
