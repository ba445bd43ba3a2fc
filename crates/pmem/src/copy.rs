//! Block copies between a region and ordinary memory. The region's side may be read or written by others at the same time, so it is
//! accessed by volatile words: never torn below a word, never cached in registers, never assumed unchanged.

use crate::flush;

/// Copies from which on streaming past the cache beats a copy with flushes.
const STREAM_BYTES_MIN: usize = 256;

/// # Safety
/// `to .. to + from.len()` is mapped and does not overlap `from`.
pub(crate) unsafe fn store_bytes(to: *mut u8, from: &[u8]) {
    let mut at = 0;
    while at < from.len() {
        let rest = from.len() - at;
        // SAFETY: `at` stays below the length on both sides; words are written only where the destination is aligned.
        unsafe {
            let destination = to.add(at);
            if rest >= 8 && destination as usize & 7 == 0 {
                destination.cast::<u64>().write_volatile(from.as_ptr().add(at).cast::<u64>().read_unaligned());
                at += 8;
            } else {
                destination.write_volatile(from[at]);
                at += 1;
            }
        }
    }
}

/// # Safety
/// `from .. from + into.len()` is mapped and does not overlap `into`.
#[inline]
pub(crate) unsafe fn load_bytes(from: *const u8, into: &mut [u8]) {
    // SAFETY: by contract. A copy by the processor's string or vector instructions: the compiler can assume nothing about the
    // source across the call because it is reached by a raw pointer of unknown provenance, and no reference to it exists.
    unsafe { core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
}

/// # Safety
/// `at .. at + bytes.len()` is mapped.
#[inline]
pub(crate) unsafe fn equal(at: *const u8, bytes: &[u8]) -> bool {
    let length = bytes.len();
    let other = bytes.as_ptr();
    // SAFETY: every read lies within `length` bytes on both sides; unaligned reads are allowed on x86-64.
    unsafe {
        if length >= 8 {
            let mut done = 0;
            while done + 8 <= length {
                if at.add(done).cast::<u64>().read_unaligned() != other.add(done).cast::<u64>().read_unaligned() {
                    return false;
                }
                done += 8;
            }
            let last = length - 8;
            return at.add(last).cast::<u64>().read_unaligned() == other.add(last).cast::<u64>().read_unaligned();
        }
        for index in 0..length {
            if at.add(index).read_volatile() != *other.add(index) {
                return false;
            }
        }
    }
    true
}

/// Copies so that a fence makes the bytes durable: whole lines past the cache, edges by stores and a flush.
///
/// # Safety
/// `to .. to + from.len()` is mapped and does not overlap `from`.
pub(crate) unsafe fn stream(to: *mut u8, from: &[u8]) {
    let length = from.len();
    if length < STREAM_BYTES_MIN {
        // SAFETY: by contract.
        unsafe {
            store_bytes(to, from);
            flush::flush_lines(to, length);
        }
        return;
    }
    let head = to.align_offset(64).min(length);
    let lines = (length - head) / 64;
    let tail = head + lines * 64;
    // SAFETY: head, lines and tail split the range; the middle starts on a line.
    unsafe {
        if head > 0 {
            store_bytes(to, &from[..head]);
            flush::flush_lines(to, head);
        }
        stream_lines(to.add(head), from.as_ptr().add(head), lines);
        if tail < length {
            store_bytes(to.add(tail), &from[tail..]);
            flush::flush_lines(to.add(tail), length - tail);
        }
    }
}

/// # Safety
/// `lines` whole lines at `to` (aligned to 64) and at `from` are mapped.
unsafe fn stream_lines(to: *mut u8, from: *const u8, lines: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for line in 0..lines {
        // SAFETY: within the ranges by contract; SSE2 is part of the x86-64 baseline; the destination is aligned to 16.
        unsafe {
            let source = from.add(line * 64).cast::<__m128i>();
            let destination = to.add(line * 64).cast::<__m128i>();
            let a = _mm_loadu_si128(source);
            let b = _mm_loadu_si128(source.add(1));
            let c = _mm_loadu_si128(source.add(2));
            let d = _mm_loadu_si128(source.add(3));
            _mm_stream_si128(destination, a);
            _mm_stream_si128(destination.add(1), b);
            _mm_stream_si128(destination.add(2), c);
            _mm_stream_si128(destination.add(3), d);
        }
    }
}
