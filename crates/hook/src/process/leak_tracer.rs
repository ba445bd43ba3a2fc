//! The tracer of LeakSanitizer: a child that shares the memory of the process, and stops and reads
//! its threads while the thread that created it waits.
//!
//! It has its creator's thread pointer, hence the library's words of that thread. So none of its
//! calls may be served. It makes them by instructions of the sanitizer's runtime only, and touches
//! no file of the mount: the kernel performs them. Other children of this kind are refused.
//!
//! Invariant: a child is recognised by its stack, which it gets from its creator. No other thread
//! runs there while the child exists.
//!
//! AddressSanitizer refuses to run unless it is the first library. So in such a program this
//! library moves itself to the end of the loader's list. *Rejected:* `verify_asan_link_order=0`
//! (programs see it, and it does not help LeakSanitizer); loading such programs like static ones
//! (every call would trap).

use crate::abi::sys;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The flags of the call that creates it; it sends no signal at its end.
const FLAGS: u64 = (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_UNTRACED) as u64;
/// Limit for the size of its stack, which has 2 MiB.
const STACK_BYTES_MAX: u64 = 8 << 20;

/// End of the last tracer's stack, and the process that created it; zero: there is none.
static LAST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether a call creates a tracer. It then counts as the last one.
pub fn begins(flags: u64, stack: u64, is_inline: bool) -> bool {
    let begins = flags == FLAGS && stack != 0 && is_inline;
    if begins {
        LAST[1].store(sys::process_id() as u64, Relaxed);
        LAST[0].store(stack, Relaxed);
    }
    begins
}

/// In the child of a fork: there is none.
pub fn forget() {
    LAST[0].store(0, Relaxed);
}

/// Whether a thread with this stack pointer is a tracer.
pub fn is_running(stack: u64) -> bool {
    let end = LAST[0].load(Relaxed);
    end != 0
        && (end.saturating_sub(STACK_BYTES_MAX)..=end).contains(&stack)
        && LAST[1].load(Relaxed) != sys::process_id() as u64
}

/// Whether a call of a tracer would take the signal away by which its calls arrive.
pub fn takes_signal(registers: &[libc::greg_t]) -> bool {
    let of = |register: i32| registers[register as usize];
    of(libc::REG_RAX) == libc::SYS_rt_sigaction && of(libc::REG_RDI) == i64::from(libc::SIGSEGV)
}
