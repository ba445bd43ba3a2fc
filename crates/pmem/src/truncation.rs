//! Handling of mapped files that are truncated while they are mapped.
//!
//! The next access to a lost page raises SIGBUS. A program that called [`survive_truncations`]
//! reads zeros there instead, and the mapping reports from then on that it was cut
//! ([`Mapping::is_truncated`](crate::Mapping::is_truncated)), so that its users can stop with an
//! error. A sparse file whose file system is full behaves the same.
//!
//! Invariants: the signal handler touches only atomics and makes one system call. A slot of the
//! table is claimed by its first word; its range is set last and cleared first.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// File mappings that one process can guard at a time; further ones are not guarded.
const MAPPINGS_MAX: usize = 64;

struct Guarded {
    claimed: AtomicBool,
    truncated: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
}

static TABLE: [Guarded; MAPPINGS_MAX] = [const {
    Guarded {
        claimed: AtomicBool::new(false),
        truncated: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; MAPPINGS_MAX];
/// Whether any mapping was ever cut.
static ANY: AtomicBool = AtomicBool::new(false);

/// A mapping's slot in the table, for as long as it is mapped.
#[derive(Debug)]
pub(crate) struct GuardSlot(Option<usize>);

impl GuardSlot {
    pub(crate) fn claim(start: usize, length: usize) -> GuardSlot {
        let claim = |guarded: &Guarded| guarded.claimed.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
        let index = TABLE.iter().position(claim);
        if let Some(index) = index {
            TABLE[index].truncated.store(false, Relaxed);
            TABLE[index].start.store(start, Relaxed);
            TABLE[index].end.store(start + length, Release);
        }
        GuardSlot(index)
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.0.is_some_and(|index| TABLE[index].truncated.load(Acquire))
    }

    /// Called before the mapping is unmapped.
    pub(crate) fn release(&self) {
        if let Some(index) = self.0 {
            TABLE[index].end.store(0, Release);
            TABLE[index].claimed.store(false, Release);
        }
    }
}

/// Whether any file that this process mapped was truncated so far.
pub fn any_truncated() -> bool {
    ANY.load(Acquire)
}

/// Makes this process survive the truncation of a mapped file. It sets the action for SIGBUS, so
/// programs call it, not libraries.
pub fn survive_truncations() {
    // SAFETY: the handler is async-signal-safe; all zero is a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, core::ptr::null_mut());
    }
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let (address, is_fault) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    let contains = |guarded: &&Guarded| {
        address < guarded.end.load(Acquire) && address >= guarded.start.load(Relaxed) && guarded.claimed.load(Relaxed)
    };
    if is_fault && let Some(guarded) = TABLE.iter().find(contains) {
        let page = (address & !(PAGE_BYTES - 1)) as *mut libc::c_void;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces an inaccessible page of one of our mappings by a page of the same size.
        if unsafe { libc::mmap(page, PAGE_BYTES, protection, flags, -1, 0) } == page {
            guarded.truncated.store(true, Release);
            ANY.store(true, Release);
            return;
        }
    }
    // SAFETY: restores the default action, which ends the process as usual: the fault recurs, or
    // the signal is sent again.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if !is_fault {
            libc::raise(signal);
        }
    }
}
