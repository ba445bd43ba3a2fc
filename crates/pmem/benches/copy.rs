//! Times of the block copies, in nanoseconds: `cargo bench -p directfs-pmem --bench copy`. The
//! thresholds and figures in `src/copy.rs` come from this benchmark.

// The copies are internal. Including the modules gives access to each of them.
#[allow(dead_code)]
#[path = "../src/copy.rs"]
mod copy;
#[path = "../src/flush.rs"]
mod flush;
#[expect(dead_code, reason = "a benchmark adopts no features")]
#[path = "../src/processor.rs"]
mod processor;

use std::hint::black_box;
use std::time::Instant;

use copy::StreamKind;
use flush::FlushKind;

/// Larger than the caches, so that a walk through the arena finds cold lines.
const ARENA_BYTES: usize = 256 << 20;
const ROUNDS: usize = 4000;

fn main() {
    let mut arena = vec![1u8; ARENA_BYTES];
    let source: Vec<u8> = (0..8192).map(|index| index as u8).collect();
    println!(
        "flush by {}, stream by {:?}; thresholds {}, {} with edges, {} for strings",
        FlushKind::best().name(),
        StreamKind::best(),
        copy::STREAM_BYTES_MIN,
        copy::STREAM_BYTES_MIN_WITH_EDGES,
        copy::STRING_BYTES_MIN
    );
    durable_copies(&mut arena, &source);
    copies_within(&mut arena);
    loads(&mut arena);
}

/// Median of single runs. Each run has its own place in the arena, `stride` bytes after the last.
fn median(arena: &mut [u8], stride: usize, mut run: impl FnMut(*mut u8)) -> u128 {
    let places = (arena.len() - 65536) / stride.max(1);
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|round| {
            let place = arena[round % places * stride..].as_mut_ptr();
            let start = Instant::now();
            run(black_box(place));
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn kinds() -> impl Iterator<Item = StreamKind> {
    [StreamKind::Sse2, StreamKind::Avx512, StreamKind::Movdir64b].into_iter().filter(|kind| kind.is_supported())
}

fn durable_copies(arena: &mut [u8], source: &[u8]) {
    for (name, stride) in [("cached", 0), ("cold", 65536 + 4096 + 64)] {
        for shift in [0, 24] {
            println!("\ncopy + fence, destination {name}, {shift} bytes past a line");
            for length in [64, 128, 192, 256, 320, 384, 512, 1024, 2048, 4096] {
                let by_flush = median(arena, stride, |to| {
                    let to = to.wrapping_add(to.align_offset(64) + shift);
                    // SAFETY: the arena has room beyond every place; the source is a separate
                    // slice.
                    unsafe { copy::store_and_flush(to, source.as_ptr(), length) };
                    flush::store_fence();
                });
                print!("{length:6}: store + flush {by_flush:5}");
                for kind in kinds() {
                    let by_stream = median(arena, stride, |to| {
                        let to = to.wrapping_add(to.align_offset(64) + shift);
                        // SAFETY: as above; only kinds that the processor has are tried.
                        unsafe { copy::stream_by(kind, to, source.as_ptr(), length) };
                        flush::store_fence();
                    });
                    print!("   {kind:?} {by_stream:5}");
                }
                println!();
            }
        }
    }
}

fn copies_within(arena: &mut [u8]) {
    println!("\ncopy within a region + fence, cold");
    for length in [512, 1024, 4096] {
        let direct = median(arena, 65536 + 4096, |place| {
            // SAFETY: the arena has room beyond every place, and the ranges are 16 KiB apart.
            unsafe { copy::stream(place.add(16384), place, length) };
            flush::store_fence();
        });
        let buffered = median(arena, 65536 + 4096, |place| {
            let mut buffer = [0; 512];
            for at in (0..length).step_by(512) {
                // SAFETY: as above.
                unsafe {
                    copy::load_bytes(place.add(at), buffer.as_mut_ptr(), 512);
                    copy::stream(place.add(16384 + at), buffer.as_ptr(), 512);
                }
            }
            flush::store_fence();
        });
        println!("{length:6}: direct {direct:5}   through 512 bytes {buffered:5}");
    }
}

fn loads(arena: &mut [u8]) {
    for (name, stride) in [("cached", 0), ("cold", 65536 + 4096 + 64)] {
        println!("\nload of {name} bytes, 16 times");
        for length in [8, 40, 100, 256, 512, 1024, 4096] {
            let mut into = vec![0u8; length];
            let load = median(arena, stride, |from| {
                for at in 0..16 {
                    // SAFETY: the arena has room beyond every place.
                    unsafe { copy::load_bytes(from.wrapping_add(at), black_box(into.as_mut_ptr()), length) };
                }
            });
            let memcpy = median(arena, stride, |from| {
                for at in 0..16 {
                    // SAFETY: as above, and nothing else writes the arena.
                    unsafe { from.wrapping_add(at).copy_to_nonoverlapping(black_box(into.as_mut_ptr()), length) };
                }
            });
            let word = median(arena, stride, |from| {
                for at in 0..16 {
                    // SAFETY: as above.
                    black_box(unsafe { copy::equal(from.wrapping_add(at), &into) });
                }
            });
            println!("{length:6}: load {load:5}   memcpy {memcpy:5}   compare {word:5}");
        }
    }
}
