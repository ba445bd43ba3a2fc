//! Mapped files that become shorter while they are mapped.
//!
//! The next access to a page that is gone raises SIGBUS. A program that wants to live on ([`survive_cuts`]) gets zeros there instead, and the mapping says from then on that it
//! was cut ([`Mapping::is_cut`](crate::Mapping::is_cut)): whoever works on it stops and says so. The same happens where a sparse file cannot get the page.
//!
//! Invariants: the handler touches atomics only and makes one system call; a slot of the table is claimed by its first word, and its range is set last and cleared first.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// Mappings of files that one process has at a time; those beyond are not guarded.
const MAPPINGS_MAX: usize = 64;

struct Guarded {
    taken: AtomicBool,
    cut: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
}

static TABLE: [Guarded; MAPPINGS_MAX] = [const {
    Guarded {
        taken: AtomicBool::new(false),
        cut: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; MAPPINGS_MAX];
/// Whether any mapping was ever cut.
static ANY: AtomicBool = AtomicBool::new(false);

/// A mapping's place in the table, for as long as it is mapped.
#[derive(Debug)]
pub(crate) struct Place(Option<usize>);

impl Place {
    pub(crate) fn take(start: usize, length: usize) -> Place {
        let claim = |guarded: &Guarded| guarded.taken.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
        let index = TABLE.iter().position(claim);
        if let Some(index) = index {
            TABLE[index].cut.store(false, Relaxed);
            TABLE[index].start.store(start, Relaxed);
            TABLE[index].end.store(start + length, Release);
        }
        Place(index)
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.0.is_some_and(|index| TABLE[index].cut.load(Acquire))
    }

    /// Before the mapping goes.
    pub(crate) fn give_back(&self) {
        if let Some(index) = self.0 {
            TABLE[index].end.store(0, Release);
            TABLE[index].taken.store(false, Release);
        }
    }
}

/// Whether any mapped file of this process became shorter so far.
pub fn has_any_been_cut() -> bool {
    ANY.load(Acquire)
}

/// From here on this process survives that a mapped file becomes shorter. For programs, not for libraries: it sets the action for SIGBUS.
pub fn survive_cuts() {
    // SAFETY: the handler keeps to what may be done in one; all zero is a valid action.
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
    // SAFETY: the kernel made it.
    let (address, is_fault) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    let contains = |guarded: &&Guarded| {
        address < guarded.end.load(Acquire) && address >= guarded.start.load(Relaxed) && guarded.taken.load(Relaxed)
    };
    if is_fault && let Some(guarded) = TABLE.iter().find(contains) {
        let page = (address & !(PAGE_BYTES - 1)) as *mut libc::c_void;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces a page of a mapping of ours that cannot be accessed, with as much as was there.
        if unsafe { libc::mmap(page, PAGE_BYTES, protection, flags, -1, 0) } == page {
            guarded.cut.store(true, Release);
            ANY.store(true, Release);
            return;
        }
    }
    // SAFETY: the default action, by which the process ends as it would have: the fault comes again, or the signal is sent again.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if !is_fault {
            libc::raise(signal);
        }
    }
}
