//! What the processor can do. In a virtual machine each CPUID leaves the guest, which takes some
//! microseconds, so a process finds this out once, or adopts what its parent found.
//!
//! Invariant: what is adopted concerns only instructions that debuggers which execute a program
//! themselves know, too (Valgrind). Newer instructions ([`newer`]) each process looks for itself.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU8, Ordering};

/// Set in all words below once they are known.
const KNOWN: u8 = 1;
/// The instruction for CRC-32C (SSE 4.2).
pub(crate) const CRC32C: u8 = 2;
/// String copies are fast.
pub(crate) const FAST_STRINGS: u8 = 4;
/// The processor is Intel's.
pub(crate) const INTEL: u8 = 8;
const COMMON: u8 = KNOWN | CRC32C | FAST_STRINGS | INTEL;

/// `clwb`.
pub(crate) const CLWB: u8 = 2;
/// `clflushopt`.
pub(crate) const CLFLUSHOPT: u8 = 4;
/// `movdir64b`.
pub(crate) const MOVDIR64B: u8 = 8;
/// AVX-512, whose registers the kernel saves.
#[cfg(feature = "std")]
pub(crate) const AVX512: u8 = 16;

static COMMON_FEATURES: AtomicU8 = AtomicU8::new(0);
static NEWER_FEATURES: AtomicU8 = AtomicU8::new(0);

/// Features by constants from [`CRC32C`] on: what a process hands down to another one on the same
/// machine, see [`adopt_features`].
#[inline(always)]
pub fn features() -> u8 {
    match COMMON_FEATURES.load(Ordering::Relaxed) {
        0 => detect_common(),
        found => found,
    }
}

/// Features by constants from [`CLWB`] on.
#[inline(always)]
pub(crate) fn newer() -> u8 {
    match NEWER_FEATURES.load(Ordering::Relaxed) {
        0 => detect_newer(),
        found => found,
    }
}

/// Takes what another process on this machine found with [`features`], so that this one need not
/// look. A word that it cannot have returned is ignored.
pub fn adopt_features(found: u8) {
    if found & KNOWN != 0 && found & !COMMON == 0 {
        COMMON_FEATURES.store(found, Ordering::Relaxed);
    }
}

#[cold]
fn detect_common() -> u8 {
    let mut found = KNOWN;
    // Miri does not support `cpuid`.
    if !cfg!(miri) {
        let first = __cpuid(0);
        if [first.ebx, first.edx, first.ecx].map(u32::to_le_bytes) == [*b"Genu", *b"ineI", *b"ntel"] {
            found |= INTEL;
        }
        if __cpuid(1).ecx & (1 << 20) != 0 {
            found |= CRC32C;
        }
        if first.eax >= 7 && __cpuid_count(7, 0).ebx & (1 << 9) != 0 {
            found |= FAST_STRINGS;
        }
    }
    COMMON_FEATURES.store(found, Ordering::Relaxed);
    found
}

#[cold]
fn detect_newer() -> u8 {
    let mut found = KNOWN;
    if !cfg!(miri) && __cpuid(0).eax >= 7 {
        let leaf = __cpuid_count(7, 0);
        let bits = [(leaf.ebx >> 24, CLWB), (leaf.ebx >> 23, CLFLUSHOPT), (leaf.ecx >> 28, MOVDIR64B)];
        found |= bits.iter().filter(|(word, _)| word & 1 != 0).fold(0, |sum, (_, feature)| sum | feature);
        #[cfg(feature = "std")]
        if leaf.ebx & (1 << 16) != 0 && system_saves_avx512() {
            found |= AVX512;
        }
    }
    NEWER_FEATURES.store(found, Ordering::Relaxed);
    found
}

/// Whether the kernel saves the AVX-512 registers across task switches. If it does not, they must
/// not be used, whatever CPUID reports.
#[cfg(feature = "std")]
fn system_saves_avx512() -> bool {
    const SSE_AVX_AND_AVX512: u32 = 0b1110_0110;
    if __cpuid(1).ecx & (1 << 27) == 0 {
        return false;
    }
    let enabled: u32;
    // SAFETY: CPUID reports (OSXSAVE) that xgetbv works in user space; it touches no memory.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    enabled & SSE_AVX_AND_AVX512 == SSE_AVX_AND_AVX512
}
