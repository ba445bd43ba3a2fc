//! Flushes of cache lines by the processor's best instruction, and the fence.

use crate::processor;
#[cfg(not(miri))]
use core::arch::asm;

/// The instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushKind {
    /// `clwb`: writes back and may keep the line cached.
    Clwb,
    /// `clflushopt`: writes back and drops the line, unordered among lines.
    Clflushopt,
    /// `clflush`: writes back and drops the line, ordered among lines.
    Clflush,
}

impl FlushKind {
    /// The best kind of this processor.
    #[inline(always)]
    pub fn best() -> FlushKind {
        match processor::newer() {
            found if found & processor::CLWB != 0 => FlushKind::Clwb,
            found if found & processor::CLFLUSHOPT != 0 => FlushKind::Clflushopt,
            _ => FlushKind::Clflush,
        }
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
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    // SAFETY: sfence has no operands and is part of the x86-64 baseline. It is not declared
    // `nomem`, so the compiler moves no store across it.
    #[cfg(not(miri))]
    unsafe {
        asm!("sfence", options(nostack, preserves_flags))
    }
}
