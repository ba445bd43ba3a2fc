//! Tests of the block copies at every alignment and length. They are in a separate file because the
//! benchmark includes that of the copies.

use crate::copy::{
    STRING_BYTES_MIN, StreamKind, equal, load_bytes, store, store_and_flush, store_past_cache, stream, stream_by,
};
use crate::flush;

const KINDS: [StreamKind; 3] = [StreamKind::Sse2, StreamKind::Avx512, StreamKind::Movdir64b];
const LENGTH_MAX: usize = 600;
/// Miri, which takes a millisecond for each copy, tries a few places and lengths.
const STEP: usize = if cfg!(miri) { 41 } else { 1 };

/// Room for a copy at any alignment, on a line boundary, with a margin that must not change.
#[repr(align(64))]
struct Arena([u8; 1024]);

fn source() -> Vec<u8> {
    (0..1024u32).map(|index| (index * 31 + 7) as u8 | 1).collect()
}

/// Runs `copy(to, from, length)` for every alignment of the destination and every length, and
/// checks every byte.
fn at_every_alignment(copy: impl Fn(*mut u8, *const u8, usize)) {
    let source = source();
    for shift in (0..64).step_by(STEP) {
        for length in (0..=LENGTH_MAX).step_by(STEP) {
            let mut arena = Arena([0; 1024]);
            // The source's alignment varies too.
            let from = &source[(shift * 7 + length) % 64..];
            copy(arena.0[64 + shift..].as_mut_ptr(), from.as_ptr(), length);
            flush::store_fence();
            let (before, rest) = arena.0.split_at(64 + shift);
            let (copied, after) = rest.split_at(length);
            assert_eq!(copied, &from[..length], "shift {shift}, length {length}");
            assert!(
                before.iter().chain(after).all(|byte| *byte == 0),
                "outside the range, shift {shift}, length {length}"
            );
        }
    }
}

#[test]
fn every_way_to_stream_copies_exactly_its_range() {
    for kind in KINDS.into_iter().filter(|kind| kind.is_supported()) {
        // SAFETY: `at_every_alignment` gives ranges inside its arena and source; the processor has
        // the kind.
        at_every_alignment(|to, from, length| unsafe { stream_by(kind, to, from, length) });
    }
}

#[test]
fn a_stream_copies_exactly_its_range_whichever_way_it_chooses() {
    // SAFETY: as above.
    at_every_alignment(|to, from, length| unsafe { stream(to, from, length) });
}

/// Runs `copy` everywhere and checks that it flushed every line. With `may_stream`, whole lines may
/// go unflushed.
fn nothing_stays_in_the_cache(may_stream: bool, copy: impl Fn(*mut u8, *const u8, usize)) {
    at_every_alignment(|to, from, length| {
        flush::FLUSHED_LINES.take();
        copy(to, from, length);
        let flushed = flush::FLUSHED_LINES.take();
        let (start, end) = (to as usize, to as usize + length);
        for line in (start / 64 * 64..end).step_by(64).filter(|_| length > 0) {
            let is_whole = start <= line && line + 64 <= end;
            assert!(flushed.contains(&line) || may_stream && is_whole, "line {line:#x} of {start:#x}..{end:#x}");
        }
    });
}

#[test]
fn the_edges_of_a_stream_are_flushed() {
    for kind in KINDS.into_iter().filter(|kind| kind.is_supported()) {
        // SAFETY: as above.
        nothing_stays_in_the_cache(true, |to, from, length| unsafe { stream_by(kind, to, from, length) });
    }
    // SAFETY: as above.
    nothing_stays_in_the_cache(true, |to, from, length| unsafe { stream(to, from, length) });
}

#[test]
fn every_line_of_a_store_is_flushed() {
    // SAFETY: as above.
    nothing_stays_in_the_cache(false, |to, from, length| unsafe { store_and_flush(to, from, length) });
}

#[test]
fn stores_copy_exactly_their_range() {
    // SAFETY: as above.
    at_every_alignment(|to, from, length| unsafe { store_and_flush(to, from, length) });
    // SAFETY: as above.
    at_every_alignment(|to, from, length| unsafe { store_past_cache(to, from, length) });
}

#[test]
fn loads_copy_exactly_their_range() {
    at_every_alignment(|to, from, length| {
        // SAFETY: as above.
        unsafe { load_bytes(from, to, length) }
    });
    let source: Vec<u8> = (0..9000u32).map(|index| (index % 251) as u8).collect();
    for length in [STRING_BYTES_MIN - 1, STRING_BYTES_MIN, STRING_BYTES_MIN + 1, 4096, 8999] {
        let mut into = vec![0; length];
        // SAFETY: the source is one byte longer than the longest copy.
        unsafe { load_bytes(source.as_ptr().wrapping_add(1), into.as_mut_ptr(), length) };
        assert_eq!(into, source[1..=length]);
    }
}

/// A buffer at the start of a page.
#[repr(align(4096))]
struct Pages([u8; 80 << 12]);

/// Runs `copy(to, from, length)` for every distance between source and destination, and for the
/// lengths, at which the choice of instructions may change.
fn at_every_distance(copy: impl Fn(*mut u8, *const u8, usize)) {
    let mut source = Box::new(Pages([0; 80 << 12]));
    source.0.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8 | 1);
    for length in [STRING_BYTES_MIN - 1, STRING_BYTES_MIN, 4097, 8191, 8192, 8193, 8447, 8448, 16384, 70_001, 300_001] {
        for distance in (0..36).chain([4095]) {
            let mut into = Box::new(Pages([0; 80 << 12]));
            copy(into.0[64 + distance..].as_mut_ptr(), source.0[64..].as_ptr(), length);
            let (before, rest) = into.0.split_at(64 + distance);
            let (copied, after) = rest.split_at(length);
            assert!(copied == &source.0[64..64 + length], "distance {distance}, length {length}");
            assert!(
                before.iter().chain(after).all(|byte| *byte == 0),
                "outside the range, distance {distance}, length {length}"
            );
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes hours, and Miri has one way to copy")]
fn long_copies_are_exact_at_every_distance() {
    // SAFETY: `at_every_distance` gives ranges inside its buffers.
    at_every_distance(|to, from, length| unsafe { load_bytes(from, to, length) });
    // SAFETY: as above.
    at_every_distance(|to, from, length| unsafe { store(to, from, length) });
}

#[test]
fn comparison_sees_every_byte() {
    let source = source();
    for length in 0..40 {
        for shift in 0..8 {
            let here = &source[shift..shift + length];
            let mut other = here.to_vec();
            // SAFETY: both slices have the length.
            assert!(unsafe { equal(here.as_ptr(), &other) });
            for at in 0..length {
                other[at] ^= 0x80;
                // SAFETY: as above.
                assert!(!unsafe { equal(here.as_ptr(), &other) }, "byte {at} of {length}");
                other[at] ^= 0x80;
            }
        }
    }
}

#[test]
fn what_another_process_found_of_the_processor_is_adopted_and_nothing_else() {
    let found = crate::features();
    for unknown in [0, found & !1, found | 16, 255] {
        crate::adopt_features(unknown);
        assert_eq!(crate::features(), found, "{unknown}");
    }
    // A processor without any of the features.
    crate::adopt_features(1);
    assert_eq!(crate::features(), 1);
    assert_eq!(crate::crc32c(0, b"123456789"), 0xe306_9283);
    crate::adopt_features(found);
    assert_eq!(crate::features(), found);
}
