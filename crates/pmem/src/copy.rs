//! Block copies between a region and ordinary memory.
//!
//! Other threads and processes may write the region's side at the same time. A Rust load or
//! `memcpy` would then be undefined behaviour, so neither touches it. Stores to a region are
//! relaxed atomics of the largest naturally aligned pieces, in ascending order. Loads from a region
//! have no guaranteed alignment and are therefore assembly. To the compiler each is an opaque step
//! that produces some bytes: it cannot repeat the step or assume anything about the bytes. To the
//! processor it is an ordinary load, each byte of which is old or new. Checksums and bounds checks
//! decide afterwards what the bytes mean.
//!
//! The figures in the comments are medians of `cargo bench -p directfs-pmem --bench copy` on an Ice
//! Lake server at 2.8 GHz.
//!
//! How a copy is made depends on length, alignment and processor. Stores through the cache fetch
//! lines first, and AMD's string copy stalls where the destination lies 1 to 31 bytes behind the
//! source, pages ignored; C library buffers often do. So copies stream where flushes are needed.
//! Elsewhere they are string copies: in four streams at slow distances on AMD, and streaming from
//! 256 KiB on Intel. *Reason:* 4 KiB flushed 1,427 to 300 ns with AVX-512 streams; varmail 632,000
//! to 791,000 a second with four streams; 1 MiB writes 9.4 to 20.5 GB/s on a Xeon with AMX.
//! *Rejected:* streaming from 64 KiB on: fileserver 5 % slower, since what is read again soon left
//! the cache.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::flush;
use crate::processor::{self, FAST_STRINGS, INTEL};

/// Bytes from which a copy of whole lines streams past the cache. Times with the fence, store and
/// flush against streaming: to cold lines 223 and 117 ns for 64 bytes, 227 and 143 for 256, 428 and
/// 175 for 1024, 1427 and 300 for 4096; to cached lines 127 and 132, 168 and 151, 421 and 169, 1417
/// and 304. Below 256 bytes the gain is smaller than the miss of the next reader: `clwb` leaves the
/// bytes cached, streaming does not.
pub(crate) const STREAM_BYTES_MIN: usize = 256;
/// `STREAM_BYTES_MIN` for a range that begins or ends inside a line: each edge costs an additional
/// fetch and flush. Cold, store and flush against streaming: 262 and 300 ns for 256 bytes, 277 and
/// 310 for 384, 299 and 261 for 512, 1419 and 527 for 4096.
pub(crate) const STREAM_BYTES_MIN_WITH_EDGES: usize = 512;
/// Bytes from which the processor's string copy beats a loop of 16-byte loads: at 512 bytes 19 ns
/// against 12, at 1024 equal at 21, at 4096 39 against 76. With this threshold a cached load takes
/// 4 ns for 8 bytes, 9 for 256, 27 for 1024 and 43 for 4096; `memcpy` takes 3, 6, 21 and 44.
pub(crate) const STRING_BYTES_MIN: usize = 1024;
/// Bytes from which copies on Intel processors do not use strings (measured on a Xeon with AMX).
///
/// - Loads use a loop: 13 GB/s from memory instead of 10. Shorter cached pieces would be slower.
/// - Stores go past the cache even where no flush is needed: 20 GB/s into memory instead of 9,
///   because the lines are not fetched first; 6.0 instead of 5.9 with a load of the same bytes
///   afterwards. Into cached lines this takes twice as long, but so many bytes are seldom cached.
const INTEL_BYTES_MIN: usize = 256 << 10;
/// Distances from source to destination, modulo the page size, at which the string copy of AMD's
/// Zen 4 stalls: it mistakes its own stores for the bytes that it is about to load. Cached bytes
/// are copied at 3 GB/s up to distance 15 and at 20 to 50 up to 31, instead of 50 to 100; bytes
/// from memory at 3 and 8 instead of 12 to 16. A buffer of 128 KiB or more from the C library's
/// allocator begins 16 bytes after a page boundary, and a file's blocks begin at one.
const STRING_STALLS: core::ops::Range<usize> = 1..32;
const PAGE_BYTES: usize = 4096;
/// Lengths that are loaded in four interleaved streams where strings stall. From memory this gives
/// 15 GB/s at 16 KiB and 18 at 64 KiB, one stream 11 and 13. Above this range one stream is as fast
/// again.
const FOUR_STREAMS: core::ops::Range<usize> = 8192..512 << 10;
const LINE_BYTES: usize = 64;

/// The instruction that stores a line past the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// `movntdq`, four times a line: part of every x86-64.
    Sse2,
    /// `vmovntdq` of a whole line: as fast as SSE2 on cached lines and a little faster on cold ones
    /// (4096 bytes: 300 ns against 313; with edges, 512 bytes 261 against 369, 1024 323 against
    /// 379). Needs std: code inside a program that was interrupted at an arbitrary instruction must
    /// not change the program's vector registers.
    #[cfg(feature = "std")]
    Avx512,
    /// `movdir64b`: a whole line in one write that never tears.
    Movdir64b,
}

impl StreamKind {
    /// The best kind of this processor, detected once per process.
    #[inline(always)]
    pub(crate) fn best() -> StreamKind {
        if StreamKind::Movdir64b.is_supported() { StreamKind::Movdir64b } else { StreamKind::widest() }
    }

    #[cfg(feature = "std")]
    #[inline(always)]
    fn widest() -> StreamKind {
        if StreamKind::Avx512.is_supported() { StreamKind::Avx512 } else { StreamKind::Sse2 }
    }

    #[cfg(not(feature = "std"))]
    #[inline(always)]
    fn widest() -> StreamKind {
        StreamKind::Sse2
    }

    /// Whether the processor has this instruction.
    #[inline(always)]
    pub(crate) fn is_supported(self) -> bool {
        match self {
            StreamKind::Sse2 => true,
            #[cfg(feature = "std")]
            StreamKind::Avx512 => processor::newer() & processor::AVX512 != 0,
            StreamKind::Movdir64b => processor::newer() & processor::MOVDIR64B != 0,
        }
    }
}

macro_rules! opaque_load {
    ($name:ident, $type:ty, $class:ident, $instruction:literal) => {
        /// One load that is opaque to the compiler.
        ///
        /// # Safety
        /// The bytes at `from` are mapped, at any alignment.
        #[inline(always)]
        unsafe fn $name(from: *const u8) -> $type {
            // SAFETY: mapped by contract.
            #[cfg(miri)]
            let value = unsafe { from.cast::<$type>().read_unaligned() };
            #[cfg(not(miri))]
            let value: $type;
            // SAFETY: mapped by contract; the instruction writes no memory.
            #[cfg(not(miri))]
            unsafe {
                asm!($instruction, out($class) value, in(reg) from, options(nostack, readonly, preserves_flags));
            }
            value
        }
    };
}
opaque_load!(load8, u8, reg_byte, "mov {}, [{}]");
opaque_load!(load16, u16, reg, "movzx {:e}, word ptr [{}]");
opaque_load!(load32, u32, reg, "mov {:e}, [{}]");
opaque_load!(load64, u64, reg, "mov {}, [{}]");

/// Stores by naturally aligned pieces of 8, 4, 2 and 1 bytes, the largest that fits first. A piece
/// never tears: after a crash it is there whole or not at all.
///
/// # Safety
/// `to .. to + length` and `from .. from + length` are mapped and do not overlap.
pub(crate) unsafe fn store_bytes(to: *mut u8, from: *const u8, length: usize) {
    let mut at = 0;
    while at < length {
        let rest = length - at;
        // SAFETY: `at` plus the piece stays within the length on both sides; atomics are used only
        // where the destination has their alignment.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            let address = to as usize;
            if rest >= 8 && address & 7 == 0 {
                AtomicU64::from_ptr(to.cast()).store(load64(from), Ordering::Relaxed);
                at += 8;
            } else if rest >= 4 && address & 3 == 0 {
                AtomicU32::from_ptr(to.cast()).store(load32(from), Ordering::Relaxed);
                at += 4;
            } else if rest >= 2 && address & 1 == 0 {
                AtomicU16::from_ptr(to.cast()).store(load16(from), Ordering::Relaxed);
                at += 2;
            } else {
                AtomicU8::from_ptr(to).store(load8(from), Ordering::Relaxed);
                at += 1;
            }
        }
    }
}

/// What a load is of: in `eax` throughout the code that loads, and its result.
const METADATA: u32 = 0;
/// Result of a load of content that a signal handler ended, because the memory has an error.
pub const LOAD_LOST: u32 = 1;

unsafe extern "C" {
    fn pmem_load(to: *mut u8, from: *const u8, length: usize, what: u32) -> u32;
    fn pmem_load_end();
}

/// A load that a memory error may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentLoad {
    /// A load of content of a file.
    Wanted = 2,
    /// A load of a free block, to find out whether its memory has an error.
    Probe = 3,
}

impl ContentLoad {
    /// For a signal handler: what an instruction belongs to, by its address and `rax`. The handler
    /// can end the load as it ends one with a bad pointer, with [`LOAD_LOST`] in `rax`.
    pub fn in_progress(at: usize, rax: u64) -> Option<ContentLoad> {
        let kinds = [ContentLoad::Wanted, ContentLoad::Probe];
        kinds.into_iter().find(|kind| load_code().contains(&at) && rax as u32 == *kind as u32)
    }
}

/// The address range of the code that copies to ordinary memory. It is a leaf without a frame:
/// returning from any of its instructions leaves the rest of the copy undone and has no other
/// effect. A signal handler can therefore return from it when the program's buffer is not writable.
pub fn load_code() -> core::ops::Range<usize> {
    pmem_load as *const () as usize..pmem_load_end as *const () as usize
}

// to: rdi, from: rsi, length: rdx, what: ecx, which becomes the result. Unaligned loads and stores
// in ascending order; the last one of a size may overlap the one before it.
core::arch::global_asm!(
    r#"
    .macro pmem_load_line at
    movdqu xmm0, xmmword ptr [rsi + \at]
    movdqu xmm1, xmmword ptr [rsi + \at + 16]
    movdqu xmm2, xmmword ptr [rsi + \at + 32]
    movdqu xmm3, xmmword ptr [rsi + \at + 48]
    movdqu xmmword ptr [rdi + \at], xmm0
    movdqu xmmword ptr [rdi + \at + 16], xmm1
    movdqu xmmword ptr [rdi + \at + 32], xmm2
    movdqu xmmword ptr [rdi + \at + 48], xmm3
    .endm
    .section .text.pmem_load,"ax",@progbits
    .p2align 5
    .globl pmem_load
    .hidden pmem_load
    .type pmem_load, @function
pmem_load:
    .cfi_startproc
    mov eax, ecx
20: cmp rdx, 16
    jb 4f
    lea r8, [rsi + rdx - 16]
    lea r9, [rdi + rdx - 16]
2:  cmp rdx, 64
    jb 3f
    pmem_load_line 0
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    jmp 2b
3:  cmp rdx, 16
    jb 5f
    movdqu xmm0, xmmword ptr [rsi]
    movdqu xmmword ptr [rdi], xmm0
    add rsi, 16
    add rdi, 16
    sub rdx, 16
    jmp 3b
5:  movdqu xmm0, xmmword ptr [r8]
    movdqu xmmword ptr [r9], xmm0
    ret
4:  cmp edx, 8
    jb 6f
    mov r8, qword ptr [rsi]
    mov r9, qword ptr [rsi + rdx - 8]
    mov qword ptr [rdi], r8
    mov qword ptr [rdi + rdx - 8], r9
    ret
6:  test edx, edx
    jz 8f
7:  movzx r8d, byte ptr [rsi]
    mov byte ptr [rdi], r8b
    inc rsi
    inc rdi
    dec edx
    jnz 7b
8:  ret
    .globl pmem_load_strings
    .hidden pmem_load_strings
    .type pmem_load_strings, @function
pmem_load_strings:
    mov eax, ecx
    mov rcx, rdx
    rep movsb
    ret
    .globl pmem_load_four
    .hidden pmem_load_four
    .type pmem_load_four, @function
pmem_load_four:
    mov eax, ecx
    mov rcx, rdx
    shr rcx, 2
    and rcx, -64
    lea r10, [rcx + rcx * 2]
    lea r11, [rcx * 4]
    sub rdx, r11
    mov r11, rcx
9:  pmem_load_line 0
    pmem_load_line rcx
    pmem_load_line rcx*2
    pmem_load_line r10
    add rsi, 64
    add rdi, 64
    sub r11, 64
    jnz 9b
    add rsi, r10
    add rdi, r10
    jmp 20b
    .globl pmem_clear
    .hidden pmem_clear
    .type pmem_clear, @function
pmem_clear:
    xor eax, eax
    mov rcx, rsi
    shr rcx, 3
    rep stosq
    mov ecx, esi
    and ecx, 7
    rep stosb
    ret
    .globl pmem_load_end
    .hidden pmem_load_end
pmem_load_end:
    .cfi_endproc
    .size pmem_load, . - pmem_load
    .purgem pmem_load_line
    "#
);

unsafe extern "C" {
    fn pmem_load_strings(to: *mut u8, from: *const u8, length: usize, what: u32) -> u32;
    /// Interleaves the lines of four quarters, then copies the rest; at least 256 bytes.
    fn pmem_load_four(to: *mut u8, from: *const u8, length: usize, what: u32) -> u32;
    fn pmem_clear(to: *mut u8, length: usize);
}

/// Whether the processor's string copy is the fastest for this length and distance.
#[inline]
fn best_as_string(to: *const u8, from: *const u8, length: usize) -> bool {
    let distance = (to as usize).wrapping_sub(from as usize) % PAGE_BYTES;
    length >= STRING_BYTES_MIN
        && processor::features() & FAST_STRINGS != 0
        && (processor::features() & INTEL != 0 || !STRING_STALLS.contains(&distance))
}

/// Whether this length is faster without strings: see [`INTEL_BYTES_MIN`].
#[inline]
fn is_long_on_intel(length: usize) -> bool {
    length >= INTEL_BYTES_MIN && processor::features() & INTEL != 0
}

/// Copies bytes to ordinary memory: out of a region, or from or to a program's buffer.
///
/// # Safety
/// `from .. from + length` and `to .. to + length` are mapped, or a signal handler ends the copy,
/// and do not overlap.
#[inline]
pub(crate) unsafe fn load_bytes(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: by contract. A load of metadata is never ended for an error.
    unsafe { load(from, to, length, METADATA) };
}

/// [`load_bytes`] of content. Returns whether the bytes were there: false if the memory has an
/// error.
///
/// # Safety
/// See [`load_bytes`].
#[inline]
pub(crate) unsafe fn load_content(from: *const u8, to: *mut u8, length: usize, kind: ContentLoad) -> bool {
    // SAFETY: by contract.
    unsafe { load(from, to, length, kind as u32) != LOAD_LOST }
}

/// # Safety
/// See [`load_bytes`].
#[inline(always)]
unsafe fn load(from: *const u8, to: *mut u8, length: usize, what: u32) -> u32 {
    if cfg!(miri) {
        // SAFETY: by contract.
        unsafe { from.copy_to_nonoverlapping(to, length) };
        return 0;
    }
    let copy = if is_long_on_intel(length) {
        pmem_load
    } else if best_as_string(to, from, length) {
        pmem_load_strings
    } else if FOUR_STREAMS.contains(&length) {
        pmem_load_four
    } else {
        pmem_load
    };
    // SAFETY: `length` bytes on both sides, which do not overlap, by contract; the direction flag
    // is clear in Rust code.
    unsafe { copy(to, from, length, what) }
}

/// Sets bytes of ordinary memory to zero.
///
/// # Safety
/// `to .. to + length` is mapped, or a signal handler ends this.
#[inline]
pub(crate) unsafe fn clear(to: *mut u8, length: usize) {
    if cfg!(miri) {
        // SAFETY: by contract.
        return unsafe { to.write_bytes(0, length) };
    }
    // SAFETY: by contract; the direction flag is clear in Rust code.
    unsafe { pmem_clear(to, length) };
}

/// # Safety
/// `at .. at + bytes.len()` is mapped.
#[inline]
pub(crate) unsafe fn equal(at: *const u8, bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    // SAFETY: every load lies within the length of `bytes`.
    unsafe {
        for (index, word) in words.iter().enumerate() {
            if load64(at.add(index * 8)) != u64::from_le_bytes(*word) {
                return false;
            }
        }
        // The tail is compared by one or two wider loads that overlap bytes already compared. Only
        // the shortest tails are compared byte by byte.
        if let (false, Some(last)) = (rest.is_empty(), bytes.last_chunk::<8>()) {
            return load64(at.add(bytes.len() - 8)) == u64::from_le_bytes(*last);
        }
        if let (Some(first), Some(last)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
            return load32(at) == u32::from_le_bytes(*first)
                && load32(at.add(rest.len() - 4)) == u32::from_le_bytes(*last);
        }
        rest.iter().enumerate().all(|(index, byte)| load8(at.add(index)) == *byte)
    }
}

/// The fastest copy for memory that needs no flush.
///
/// # Safety
/// See [`stream`].
#[inline]
pub(crate) unsafe fn store(to: *mut u8, from: *const u8, length: usize) {
    if cfg!(miri) {
        // SAFETY: by contract.
        return unsafe { store_bytes(to, from, length) };
    }
    if is_long_on_intel(length) {
        // SAFETY: by contract.
        return unsafe { store_past_cache(to, from, length) };
    }
    if best_as_string(to, from, length) {
        // SAFETY: `length` bytes on both sides, which do not overlap, by contract; the direction
        // flag is clear in Rust code. The copy is opaque to the compiler and consists of ordinary
        // stores to the processor, so concurrent reads are allowed.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    let whole = length / LINE_BYTES * LINE_BYTES;
    for at in (0..whole).step_by(LINE_BYTES) {
        // SAFETY: the 64 bytes from `at` on lie within both ranges.
        unsafe {
            asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                from = in(reg) from.add(at), to = in(reg) to.add(at),
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }
    // SAFETY: the rest of both ranges.
    unsafe { store_bytes(to.add(whole), from.add(whole), length - whole) };
}

/// Bytes before the first whole line, the number of whole lines, and the offset of the bytes after
/// them.
fn split_at_lines(to: *mut u8, length: usize) -> (usize, usize, usize) {
    let head = to.align_offset(LINE_BYTES).min(length);
    let lines = (length - head) / LINE_BYTES;
    (head, lines, head + lines * LINE_BYTES)
}

/// Stores whole lines past the cache and edges through it. The fence at the end orders these stores
/// before all later ones, so the caller needs none.
///
/// # Safety
/// See [`stream`].
pub(crate) unsafe fn store_past_cache(to: *mut u8, from: *const u8, length: usize) {
    let (head, lines, tail) = split_at_lines(to, length);
    // SAFETY: as in `stream_by`.
    unsafe {
        store_bytes(to, from, head);
        stream_lines(StreamKind::best(), to.add(head), from.add(head), lines);
        store_bytes(to.add(tail), from.add(tail), length - tail);
    }
    flush::store_fence();
}

/// Copies such that the next fence makes the bytes durable: short ranges by stores and flushes,
/// long ones past the cache.
///
/// # Safety
/// `to .. to + length` and `from .. from + length` are mapped and do not overlap.
#[inline]
pub(crate) unsafe fn stream(to: *mut u8, from: *const u8, length: usize) {
    let has_edges = !(to as usize | length).is_multiple_of(LINE_BYTES);
    let enough = if has_edges { STREAM_BYTES_MIN_WITH_EDGES } else { STREAM_BYTES_MIN };
    // SAFETY: by contract.
    unsafe {
        if length < enough {
            store_and_flush(to, from, length);
        } else {
            stream_by(StreamKind::best(), to, from, length);
        }
    }
}

/// # Safety
/// See [`stream`].
pub(crate) unsafe fn store_and_flush(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: by contract.
    unsafe {
        store_bytes(to, from, length);
        flush::flush_lines(to, length);
    }
}

/// Stores whole lines past the cache, and the edges through the cache with a flush.
///
/// # Safety
/// The caller vouches for what [`stream`] needs, and the processor has `kind`.
pub(crate) unsafe fn stream_by(kind: StreamKind, to: *mut u8, from: *const u8, length: usize) {
    let (head, lines, tail) = split_at_lines(to, length);
    // SAFETY: head, lines and tail partition the range; the lines start at a multiple of their
    // size.
    unsafe {
        if head > 0 {
            store_and_flush(to, from, head);
        }
        stream_lines(kind, to.add(head), from.add(head), lines);
        if tail < length {
            store_and_flush(to.add(tail), from.add(tail), length - tail);
        }
    }
}

/// # Safety
/// `lines` whole lines at `to` (aligned to a line) and at `from` are mapped, and the processor has
/// `kind`.
#[inline]
unsafe fn stream_lines(kind: StreamKind, to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: by contract.
    unsafe {
        match kind {
            StreamKind::Sse2 => stream_lines_sse2(to, from, lines),
            #[cfg(feature = "std")]
            StreamKind::Avx512 => stream_lines_avx512(to, from, lines),
            StreamKind::Movdir64b => stream_lines_movdir64b(to, from, lines),
        }
    }
}

/// # Safety
/// `lines` whole lines at `to` (aligned to a line) and at `from` are mapped.
unsafe fn stream_lines_sse2(to: *mut u8, from: *const u8, lines: usize) {
    if cfg!(miri) {
        // SAFETY: by contract.
        return unsafe { store_bytes(to, from, lines * LINE_BYTES) };
    }
    for at in (0..lines * LINE_BYTES).step_by(LINE_BYTES) {
        // SAFETY: this line lies within both ranges, and is aligned at the destination.
        unsafe {
            asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                from = in(reg) from.add(at), to = in(reg) to.add(at),
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// # Safety
/// The caller vouches for what [`stream_lines_sse2`] needs, and the processor and the kernel have
/// AVX-512.
#[cfg(feature = "std")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines_avx512(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..lines * LINE_BYTES).step_by(LINE_BYTES) {
        // SAFETY: this line lies within both ranges, and is aligned at the destination. Registers
        // from 16 up share no part with SSE registers, so no vzeroupper is needed afterwards.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, [{from}]",
                "vmovntdq [{to}], zmm16",
                from = in(reg) from.add(at), to = in(reg) to.add(at), out("zmm16") _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// # Safety
/// The caller vouches for what [`stream_lines_sse2`] needs, and the processor has `movdir64b`.
unsafe fn stream_lines_movdir64b(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..lines * LINE_BYTES).step_by(LINE_BYTES) {
        // SAFETY: this line lies within both ranges. The destination, whose address is in the first
        // register, must be aligned to 64 bytes and is; the source need not be. The store is
        // ordered like a streaming store: the next sfence waits for it.
        unsafe {
            asm!(
                "movdir64b {to}, [{from}]",
                from = in(reg) from.add(at), to = in(reg) to.add(at),
                options(nostack, preserves_flags)
            );
        }
    }
}
