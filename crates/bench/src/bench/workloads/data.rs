//! Large files, compared with memcpy: sequential by 1 MiB, random by 4 KiB. memcpy moves the same
//! amounts between a small buffer, as the program has it, and memory outside all caches, as the
//! file is.

use super::names::Random;
use super::system::{File, Outcomes};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use crate::interrupt;
use anyhow::Result;
use std::hint::black_box;

/// The row that writes are compared with.
pub const MEMCPY_TO: &str = "memcpy to memory, 1 MiB";
/// The row that reads are compared with.
pub const MEMCPY_FROM: &str = "memcpy from memory, 1 MiB";
const LARGE_PIECE: usize = 1 << 20;
const SMALL_PIECE: usize = 4096;

/// Measures with a file of this length.
pub fn run(bytes: u64, timer_ns: u64) -> Outcomes {
    let bytes = bytes.next_multiple_of(LARGE_PIECE as u64);
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        let mut piece = vec![0x5a; LARGE_PIECE];
        copy_memory(member, bytes, &mut piece)?;
        let large: Vec<u64> = (0..bytes / LARGE_PIECE as u64).map(|index| index * LARGE_PIECE as u64).collect();
        let mut small: Vec<u64> = (0..bytes / SMALL_PIECE as u64).map(|index| index * SMALL_PIECE as u64).collect();
        Random::new(1).shuffle(&mut small);
        let file = File::open(c"data", libc::O_CREAT | libc::O_RDWR)?;
        let mut pieces = |words: &str, offsets: &[u64], run: &mut dyn FnMut(u64) -> Result<()>| {
            member.phase(PhaseName::Bandwidth(words.into()), |watch| {
                let length = bytes / offsets.len() as u64;
                each(offsets, length, watch, run)
            })
        };
        pieces("write by 1 MiB, new file", &large, &mut |at| file.write_at(&piece, at))?;
        pieces("write by 1 MiB, again", &large, &mut |at| file.write_at(&piece, at))?;
        pieces("read by 1 MiB", &large, &mut |at| file.read_at(&mut piece, at))?;
        pieces("write by 4 KiB, random", &small, &mut |at| file.write_at(&piece[..SMALL_PIECE], at))?;
        pieces("read by 4 KiB, random", &small, &mut |at| file.read_at(&mut piece[..SMALL_PIECE], at))?;
        file.close()
    })
}

fn copy_memory(member: &mut Member, bytes: u64, piece: &mut [u8]) -> Result<()> {
    // Filled with ones, so that each page is allocated.
    let mut memory = vec![1u8; bytes as usize];
    let offsets: Vec<u64> = (0..bytes / LARGE_PIECE as u64).map(|index| index * LARGE_PIECE as u64).collect();
    member.phase(PhaseName::Bandwidth(MEMCPY_TO.into()), |watch| {
        each(&offsets, LARGE_PIECE as u64, watch, &mut |at| {
            memory[at as usize..][..LARGE_PIECE].copy_from_slice(black_box(piece));
            Ok(())
        })
    })?;
    member.phase(PhaseName::Bandwidth(MEMCPY_FROM.into()), |watch| {
        each(&offsets, LARGE_PIECE as u64, watch, &mut |at| {
            piece.copy_from_slice(&memory[at as usize..][..LARGE_PIECE]);
            black_box(&piece);
            Ok(())
        })
    })
}

/// Moves a piece at each offset; returns the bytes moved.
fn each(
    offsets: &[u64],
    length: u64,
    watch: &mut Stopwatch,
    run: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<PhaseResult> {
    for &offset in offsets {
        interrupt::check()?;
        watch.call(|| run(offset))?;
    }
    Ok(PhaseResult::calls(offsets.len() as u64 * length))
}
