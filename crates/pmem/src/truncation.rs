//! Handling of mapped files that are truncated while they are mapped.
//!
//! The next access to a lost page raises SIGBUS. A program that called [`survive_truncations`]
//! reads zeros there instead, and the mapping reports from then on that it was cut
//! ([`Mapping::is_truncated`](crate::Mapping::is_truncated)), so that its users can stop with an
//! error. A sparse file whose file system is full, and a device that was removed, behave the same.
//! A memory error below content of a file ends the load of it instead ([`ContentLoad`]).
//!
//! Invariants: the signal handler touches only atomics and makes one system call. A slot of the
//! table is claimed by its first word; its range is set last and cleared first.

use crate::{ContentLoad, LOAD_LOST, Loss, dax_units_around, expect_memory_errors};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};

/// File mappings that one process can guard at a time; further ones are not guarded.
const MAPPINGS_MAX: usize = 64;

struct Guarded {
    claimed: AtomicBool,
    /// A child of a fork does not have the mapping.
    is_kept: AtomicBool,
    /// See `as_word`.
    loss: AtomicU8,
    start: AtomicUsize,
    end: AtomicUsize,
}

static TABLE: [Guarded; MAPPINGS_MAX] = [const {
    Guarded {
        claimed: AtomicBool::new(false),
        is_kept: AtomicBool::new(false),
        loss: AtomicU8::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; MAPPINGS_MAX];
/// The loss of any mapping so far.
static ANY: AtomicU8 = AtomicU8::new(0);
/// Whether a load of content ended.
static ANY_CONTENT: AtomicBool = AtomicBool::new(false);

/// A loss in a word; zero: none.
fn as_word(loss: Loss) -> u8 {
    loss as u8 + 1
}

fn of_word(word: u8) -> Option<Loss> {
    [Loss::Gone, Loss::MemoryError].into_iter().find(|loss| as_word(*loss) == word)
}

/// A mapping's slot in the table, for as long as it is mapped.
#[derive(Debug)]
pub(crate) struct GuardSlot(Option<usize>);

impl GuardSlot {
    pub(crate) fn claim(start: usize, length: usize) -> GuardSlot {
        let claim = |guarded: &Guarded| guarded.claimed.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
        let index = TABLE.iter().position(claim);
        if let Some(index) = index {
            TABLE[index].loss.store(0, Relaxed);
            TABLE[index].is_kept.store(false, Relaxed);
            TABLE[index].start.store(start, Relaxed);
            TABLE[index].end.store(start + length, Release);
        }
        GuardSlot(index)
    }

    /// The mapping is kept from later children of a fork.
    pub(crate) fn keep(&self) {
        if let Some(index) = self.0 {
            TABLE[index].is_kept.store(true, Relaxed);
        }
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.0.and_then(|index| of_word(TABLE[index].loss.load(Acquire)))
    }

    /// Called before the mapping is unmapped.
    pub(crate) fn release(&self) {
        if let Some(index) = self.0 {
            TABLE[index].free();
        }
    }
}

impl Guarded {
    fn contains(&self, address: usize) -> bool {
        address < self.end.load(Acquire) && address >= self.start.load(Relaxed) && self.claimed.load(Relaxed)
    }

    fn free(&self) {
        self.end.store(0, Release);
        self.claimed.store(false, Release);
    }
}

/// For the child of a fork: forgets the mappings that it did not get. Others may lie at their
/// addresses later. The values that made them must not be dropped in the child.
pub fn forget_kept_mappings() {
    for guarded in &TABLE {
        if guarded.is_kept.swap(false, Relaxed) {
            guarded.free();
        }
    }
}

/// Whether any mapping of this process has lost pages so far.
pub fn any_loss() -> Option<Loss> {
    of_word(ANY.load(Acquire))
}

/// Whether this process met a memory error below content of a file.
pub fn any_content_lost() -> bool {
    ANY_CONTENT.load(Acquire)
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

#[cfg(test)]
pub(crate) fn is_guarded(address: usize) -> bool {
    TABLE.iter().any(|guarded| guarded.contains(address))
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let is_fault = code > 0;
    if is_fault && let Some(guarded) = TABLE.iter().find(|guarded| guarded.contains(address)) {
        // SAFETY: the kernel passes the state of the interrupted thread.
        if Loss::of_code(code) == Loss::MemoryError && unsafe { end_load(context.cast()) } {
            return;
        }
        let mapping = guarded.start.load(Relaxed)..guarded.end.load(Acquire);
        // SAFETY: the page is inaccessible, and belongs to one of our mappings.
        if unsafe { put_zeros(address, mapping) } {
            let loss = as_word(Loss::of_code(code));
            guarded.loss.store(loss, Release);
            ANY.store(loss, Release);
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

/// Ends the load of content that a memory error interrupted, if it was one.
///
/// # Safety
/// The state is that of a thread that a signal interrupted.
unsafe fn end_load(context: *mut libc::ucontext_t) -> bool {
    // SAFETY: by contract.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let (at, rax) = (registers[libc::REG_RIP as usize] as usize, registers[libc::REG_RAX as usize] as u64);
    let Some(load) = ContentLoad::in_progress(at, rax) else { return false };
    expect_memory_errors();
    if load == ContentLoad::Wanted {
        ANY_CONTENT.store(true, Release);
    }
    // Equivalent to the instruction `ret`.
    let stack = registers[libc::REG_RSP as usize];
    registers[libc::REG_RAX as usize] = LOAD_LOST.into();
    // SAFETY: the code is a leaf without a frame: the top of the stack holds the return address.
    registers[libc::REG_RIP as usize] = unsafe { (stack as *const i64).read() };
    registers[libc::REG_RSP as usize] = stack + 8;
    true
}

/// Maps zeros in place of an inaccessible page, or of the smallest unit around it into which the
/// kernel divides a mapping of a DAX device.
///
/// # Safety
/// The address belongs to this mapping, which has lost the page.
unsafe fn put_zeros(address: usize, mapping: Range<usize>) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    dax_units_around(address, mapping).any(|unit| {
        let start = unit.start as *mut libc::c_void;
        // SAFETY: the unit lies in the mapping. What is lost with it is not read any more.
        unsafe { libc::mmap(start, unit.len(), protection, flags, -1, 0) == start }
    })
}
