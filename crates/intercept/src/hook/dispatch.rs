//! Calls that may be ours: to whoever serves them.
//!
//! Invariant: a handler either does the whole call and says what the program gets, or has changed nothing and leaves it to the kernel.

use super::entry::{Frame, Next, Verdict};
use super::{counts, exec, stack};
use crate::routes::NUMBERS;

/// Serves one kind of call.
pub type Handler = fn(&Frame) -> Verdict;

/// The kernel shall do it.
pub const NATIVE: Verdict = Verdict { result: 0, next: Next::Native };

/// That is what the program gets.
pub fn done(result: i64) -> Verdict {
    Verdict { result, next: Next::Done }
}

/// The handler of every number.
static HANDLERS: [Handler; NUMBERS] = handlers();

const fn handlers() -> [Handler; NUMBERS] {
    let mut handlers: [Handler; NUMBERS] = [native; NUMBERS];
    handlers[libc::SYS_execve as usize] = exec::execve;
    handlers[libc::SYS_execveat as usize] = exec::execveat;
    handlers
}

fn native(_: &Frame) -> Verdict {
    NATIVE
}

/// Called by the entry for every call that passed its filter.
///
/// # Safety
/// `frame` is the caller's frame, which nobody else uses meanwhile.
pub unsafe extern "C" fn directfs_dispatch(frame: *mut Frame, own_stack: u64) -> Verdict {
    if own_stack == 0 && stack::prepare() {
        return Verdict { result: 0, next: Next::Again };
    }
    // SAFETY: by the caller's promise.
    let frame = unsafe { &*frame };
    // The kernel looks at the lower half only.
    let number = frame.number as u32 as usize;
    counts::count(number);
    match HANDLERS.get(number) {
        Some(handler) => handler(frame),
        None => NATIVE,
    }
}
