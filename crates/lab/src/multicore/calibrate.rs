//! What the model's parts cost on this machine: the shortest of many short tries, since whatever else the machine does only adds.

use super::coherence::Costs;
use pmem::{Direct, Mapping, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Tries of which the shortest counts.
const TRIES: usize = 200;
const LINE: u64 = 64;
/// Lines that are flushed before one fence, and how often that is done in a try.
const FLUSHED: [u64; 2] = [1, 9];
const FENCES: u64 = 50;

fn shortest_ns(count: u64, mut work: impl FnMut()) -> f64 {
    let one = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64
    };
    (0..TRIES).map(one).fold(f64::MAX, f64::min) / count as f64
}

fn exchange_ns() -> f64 {
    const COUNT: u64 = 1000;
    let word = AtomicU64::new(0);
    shortest_ns(COUNT, || {
        for _ in 0..COUNT {
            word.fetch_add(1, Ordering::AcqRel);
        }
    })
}

/// A word goes to and fro between two threads. Each way is two transfers: the line is taken from its reader, and read by the other.
fn transfer_ns() -> f64 {
    #[repr(align(128))]
    struct Apart(AtomicU64);
    const TURNS: u64 = 100;
    let (word, over) = (Apart(AtomicU64::new(0)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let now = word.0.load(Ordering::Acquire);
                if now % 2 == 1 {
                    word.0.store(now + 1, Ordering::Release);
                } else {
                    std::hint::spin_loop();
                }
            }
        });
        let mut turn = 0;
        let least = shortest_ns(TURNS, || {
            for _ in 0..TURNS {
                word.0.store(turn + 1, Ordering::Release);
                turn += 2;
                let mut looks = 0u64;
                while word.0.load(Ordering::Acquire) != turn {
                    std::hint::spin_loop();
                    looks += 1;
                    // The other one may have no processor.
                    if looks.is_multiple_of(10_000) {
                        std::thread::yield_now();
                    }
                }
            }
        });
        over.store(true, Ordering::Relaxed);
        least / 4.0
    })
}

/// What a fence costs, and each line that was flushed before it.
fn persist_ns(region: &Region<Direct>) -> Option<(f64, f64)> {
    let mut both = [0.0; 2];
    for (lines, ns) in FLUSHED.into_iter().zip(&mut both) {
        let bytes = vec![1; (lines * LINE) as usize];
        region.persist(region.write_bytes(4096, &bytes).ok()?);
        *ns = shortest_ns(FENCES, || {
            for _ in 0..FENCES {
                if let Ok(dirty) = region.write_bytes(4096, &bytes) {
                    region.persist(dirty);
                }
            }
        });
    }
    let flush_ns = ((both[1] - both[0]) / (FLUSHED[1] - FLUSHED[0]) as f64).max(0.0);
    Some((flush_ns, (both[0] - flush_ns * FLUSHED[0] as f64).max(0.0)))
}

/// Measures all but the time of an instruction, which belongs to an operation ([`fit`]).
pub fn measure() -> Result<Costs, pmem::MapError> {
    let region = Arc::new(Mapping::anonymous(1 << 20)?).region(Direct)?;
    let (flush_ns, fence_ns) = persist_ns(&region).unwrap_or_default();
    Ok(Costs { instruction_ns: 0.0, exchange_ns: exchange_ns(), transfer_ns: transfer_ns(), flush_ns, fence_ns })
}

/// Chooses the time of an instruction so that an operation takes as long on one processor as was measured. The least is that of a processor at its best: then
/// the rest takes longer in the model than it did.
pub fn fit(costs: &Costs, measured_ns: f64, instructions: f64, rest_ns: f64) -> Costs {
    const LEAST_NS: f64 = 0.05;
    let instruction_ns = ((measured_ns - rest_ns) / instructions.max(1.0)).max(LEAST_NS);
    Costs { instruction_ns, ..*costs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_instruction_is_what_the_other_costs_leave() {
        let costs = Costs { instruction_ns: 0.0, exchange_ns: 5.0, transfer_ns: 50.0, flush_ns: 10.0, fence_ns: 100.0 };
        assert_eq!(fit(&costs, 500.0, 1000.0, 200.0).instruction_ns, 0.3);
        assert_eq!(fit(&costs, 100.0, 1000.0, 200.0).instruction_ns, 0.05);
    }
}
