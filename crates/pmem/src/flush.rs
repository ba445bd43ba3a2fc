//! Flushes of cache lines by the processor's best instruction, and the fence.

#[cfg(not(miri))]
use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

/// The instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FlushKind {
    /// `clwb`: writes back and may keep the line cached.
    Clwb = 1,
    /// `clflushopt`: writes back and drops the line, unordered among lines.
    Clflushopt = 2,
    /// `clflush`: writes back and drops the line, ordered among lines.
    Clflush = 3,
}

static KIND: AtomicU8 = AtomicU8::new(0);

impl FlushKind {
    /// The best kind of this processor, detected once per process.
    #[inline(always)]
    pub fn best() -> FlushKind {
        match KIND.load(Ordering::Relaxed) {
            1 => FlushKind::Clwb,
            2 => FlushKind::Clflushopt,
            3 => FlushKind::Clflush,
            _ => Self::detect(),
        }
    }

    #[cold]
    fn detect() -> FlushKind {
        if cfg!(miri) {
            return FlushKind::Clflush;
        }
        let leaf = core::arch::x86_64::__cpuid_count(7, 0);
        let kind = if leaf.ebx & (1 << 24) != 0 {
            FlushKind::Clwb
        } else if leaf.ebx & (1 << 23) != 0 {
            FlushKind::Clflushopt
        } else {
            FlushKind::Clflush
        };
        KIND.store(kind as u8, Ordering::Relaxed);
        kind
    }

    /// The instruction's name, for display.
    pub fn name(self) -> &'static str {
        match self {
            FlushKind::Clwb => "clwb",
            FlushKind::Clflushopt => "clflushopt",
            FlushKind::Clflush => "clflush",
        }
    }
}

#[cfg(test)]
std::thread_local! {
    /// The lines that this thread flushed, by address. A missing flush has no visible effect, so
    /// the tests check this list.
    pub(crate) static FLUSHED_LINES: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Writes back the lines that hold `address .. address + length`.
///
/// # Safety
/// The range lies in mapped memory.
#[inline(always)]
pub(crate) unsafe fn flush_lines(address: *const u8, length: usize) {
    #[cfg(not(miri))]
    let kind = FlushKind::best();
    let mut line = address as usize & !63;
    let end = address as usize + length;
    while line < end {
        #[cfg(test)]
        FLUSHED_LINES.with_borrow_mut(|lines| lines.push(line));
        // SAFETY: by this function's contract the line is mapped; flushing changes no bytes. (Miri
        // runs no assembly and has no caches.)
        #[cfg(not(miri))]
        unsafe {
            match kind {
                FlushKind::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                FlushKind::Clflushopt => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                FlushKind::Clflush => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
        line += 64;
    }
}

/// Waits until this thread's flushes and streaming stores have reached the medium.
#[inline(always)]
pub(crate) fn store_fence() {
    #[cfg(miri)]
    core::sync::atomic::fence(Ordering::SeqCst);
    // SAFETY: sfence has no operands and is part of the x86-64 baseline. It is not declared
    // `nomem`, so the compiler moves no store across it.
    #[cfg(not(miri))]
    unsafe {
        asm!("sfence", options(nostack, preserves_flags))
    }
}
