//! Measures the model's costs on this machine. Each is the minimum of many short attempts, since
//! interference only adds time.
//!
//! Two simulated processors must agree with two threads within 15 %. Transfer and handover of a
//! line (7, 16 or 70 ns) change within seconds. So both are measured before and after each round,
//! and a round in which they changed does not count: 13 or 14 of 15 pairs of a system and a call
//! agree. *Rejected:* one transfer time for all, and the best rounds: 6 to 10 pairs. *Limits:*
//! bandwidth, sockets, failed exchanges, sleeping and background threads are left out.

use super::coherence::{Costs, Program};
use super::events::EventKind;
use crate::locks::lock;
use pmem::{Direct, Mapping, Pm, Region};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Attempts, of which the shortest counts. On a busy machine, where each takes long, there are
/// fewer.
const TRIES: usize = 200;
const TRIED: Duration = Duration::from_millis(100);
const LINE: u64 = 64;
/// Lines flushed before each fence, in the two measurements, and fences per attempt.
const FLUSHED: [u64; 2] = [1, 9];
const FENCES: u64 = 50;

fn shortest_ns(count: u64, mut work: impl FnMut()) -> f64 {
    let one = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64
    };
    let begun = Instant::now();
    let tries = (0..TRIES).take_while(|done| *done == 0 || begun.elapsed() < TRIED);
    tries.map(one).fold(f64::MAX, f64::min) / count as f64
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

/// The communication costs between two processors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// See [`Costs::transfer_ns`].
    pub transfer_ns: f64,
    /// See [`Costs::handover_ns`].
    pub handover_ns: f64,
}

impl Distance {
    /// Measures now. Where a virtual machine's processors run changes over time, and the distance
    /// with it.
    pub fn measure() -> Distance {
        Distance { transfer_ns: transfer_ns(), handover_ns: handover_ns() }
    }

    /// Whether the processors are hyperthreads of one core. These slow each other down by more than
    /// line transfers.
    pub fn is_within_core(&self) -> bool {
        self.transfer_ns < SIBLINGS_NS
    }

    /// The mean of two distances.
    pub fn mean(&self, other: &Distance) -> Distance {
        let mean = |one: f64, other: f64| (one + other) / 2.0;
        Distance {
            transfer_ns: mean(self.transfer_ns, other.transfer_ns),
            handover_ns: mean(self.handover_ns, other.handover_ns),
        }
    }

    /// `costs` with this distance.
    pub fn costs(&self, costs: &Costs) -> Costs {
        Costs { transfer_ns: self.transfer_ns, handover_ns: self.handover_ns, ..*costs }
    }
}

/// Transfers between two cores take longer than this.
const SIBLINGS_NS: f64 = 10.0;

/// Measures transfers with a word that two threads change in turn. Each direction takes two
/// transfers: the line is taken from its reader, then read by the other thread.
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
                await_turn(&word.0, turn);
            }
        });
        over.store(true, Ordering::Relaxed);
        least / 4.0
    })
}

/// Measures the time from the release of a lock until a waiter has it. Uses the median, since the
/// time depends on when the waiter polls.
fn handover_ns() -> f64 {
    const TIMES: u64 = 101;
    /// Long enough for the waiter to reach the lock, and too short for it to sleep.
    const WAITED: Duration = Duration::from_micros(1);
    let mutex = Mutex::new(());
    // The round in which the lock is held, waited for, and handed over; and the time of the
    // handover.
    let (held, waiting, taken, taken_ns) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let now_ns = || begun.elapsed().as_nanos() as u64;
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for time in 1..=TIMES {
                await_turn(&held, time);
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                waiting.store(time, Ordering::Release);
                let _guard = lock(&mutex);
                taken_ns.store(now_ns(), Ordering::Relaxed);
                taken.store(time, Ordering::Release);
            }
        });
        let one = |time| {
            let guard = lock(&mutex);
            held.store(time, Ordering::Release);
            await_turn(&waiting, time);
            let since = Instant::now();
            while since.elapsed() < WAITED {}
            let left_ns = now_ns();
            drop(guard);
            await_turn(&taken, time);
            taken_ns.load(Ordering::Relaxed).saturating_sub(left_ns) as f64
        };
        let times = (1..=TIMES).take_while(|time| *time == 1 || begun.elapsed() < TRIED).map(one).collect();
        is_over.store(true, Ordering::Release);
        held.store(TIMES, Ordering::Release);
        times
    });
    const SPINS: u64 = 100;
    let clock_ns = shortest_ns(SPINS, || {
        for _ in 0..SPINS {
            std::hint::black_box(now_ns());
        }
    });
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2] - clock_ns).max(0.0)
}

/// Waits until a word is at least `turn`.
fn await_turn(word: &AtomicU64, turn: u64) {
    let mut looks = 0u64;
    while word.load(Ordering::Acquire) < turn {
        std::hint::spin_loop();
        looks += 1;
        // The other thread may have no processor.
        if looks.is_multiple_of(10_000) {
            std::thread::yield_now();
        }
    }
}

/// Memory that [`measure`] allocates: far more than caches hold.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// Measures reads from memory: each line holds the number of the next one, at a random distance.
fn memory_ns() -> Result<f64, pmem::MapError> {
    const LINES: u64 = MEMORY_BYTES / LINE;
    const COUNT: u64 = 2000;
    // A multiplier of the form 4n + 1 and an odd summand visit every line once.
    const NEXT: [u64; 2] = [0x9e37_79b1, 0x7f4a_7c15];
    let mapping = Mapping::anonymous(MEMORY_BYTES)?;
    // Huge pages as in the systems' memory, if available.
    let _ = mapping.populate_huge(0..MEMORY_BYTES);
    let region = Arc::new(mapping).region(Direct)?;
    // Offset zero is invalid in a region, so line 0 is skipped.
    let word = |line: u64| region.get(Pm::<AtomicU64>::new(line.max(1) * LINE)).ok();
    for line in 1..LINES {
        let next = line.wrapping_mul(NEXT[0]).wrapping_add(NEXT[1]) % LINES;
        word(line).into_iter().for_each(|word| word.store(next, Ordering::Relaxed));
    }
    let mut line = 1;
    Ok(shortest_ns(COUNT, || {
        for _ in 0..COUNT {
            line = word(line).map_or(1, |word| word.load(Ordering::Relaxed));
        }
    }))
}

/// Measures the cost of a flushed line and of a fence.
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

/// Measures all costs except the distance between processors and the time of an instruction, which
/// depends on the operation ([`fit`]).
pub fn measure() -> Result<Costs, pmem::MapError> {
    let region = Arc::new(Mapping::anonymous(1 << 20)?).region(Direct)?;
    let (flush_ns, fence_ns) = persist_ns(&region).unwrap_or_default();
    let (memory_ns, exchange_ns) = (memory_ns()?, exchange_ns());
    Ok(Costs { instruction_ns: 0.0, memory_ns, exchange_ns, transfer_ns: 0.0, handover_ns: 0.0, flush_ns, fence_ns })
}

/// The lowest and the highest decile of distances measured at different times. Distances within a
/// core count only if there are no others.
pub fn short_and_long(measured: &[Distance]) -> Option<(Distance, Distance)> {
    let are_apart = measured.iter().any(|distance| !distance.is_within_core());
    let counted = || measured.iter().filter(|distance| !are_apart || !distance.is_within_core());
    let tenths = |mut times: Vec<f64>| -> Option<(f64, f64)> {
        times.sort_by(f64::total_cmp);
        let at = |tenth: usize| times.get(times.len().saturating_sub(1) * tenth / 10).copied();
        at(1).zip(at(9))
    };
    let transfer = tenths(counted().map(|distance| distance.transfer_ns).collect())?;
    let handover = tenths(counted().map(|distance| distance.handover_ns).collect())?;
    let of = |transfer_ns, handover_ns| Distance { transfer_ns, handover_ns };
    Some((of(transfer.0, handover.0), of(transfer.1, handover.1)))
}

/// The average content of an operation on one processor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Content {
    /// Instructions.
    pub instructions: f64,
    /// Lines brought from memory.
    pub brought: f64,
    /// Locked instructions.
    pub exchanges: f64,
    /// Flushes.
    pub flushes: f64,
    /// Fences.
    pub fences: f64,
}

impl Content {
    /// The average over all operations of some programs.
    pub fn of(programs: &[Program]) -> Content {
        let mut content = Content::default();
        let operations: usize = programs.iter().map(Vec::len).sum();
        let each = 1.0 / operations.max(1) as f64;
        for event in programs.iter().flatten().flatten() {
            match event.kind {
                EventKind::Work => content.instructions += event.count as f64 * each,
                EventKind::Bring => content.brought += each,
                EventKind::Exchange | EventKind::Acquire(_) | EventKind::Release(_, true) => content.exchanges += each,
                EventKind::Flush => content.flushes += each,
                EventKind::Fence => content.fences += each,
                EventKind::Load | EventKind::Store | EventKind::Release(_, false) => {}
            }
        }
        content
    }

    /// Time of locked instructions, flushes and fences, in nanoseconds.
    fn fixed_ns(&self, costs: &Costs) -> f64 {
        self.exchanges * costs.exchange_ns + self.flushes * costs.flush_ns + self.fences * costs.fence_ns
    }
}

/// Chooses the time of an instruction so that the model reproduces the measured time of an
/// operation on one processor. The minimum is that of a processor at its best. If the result is
/// still too long, lines were fetched in parallel or prefetched, and the memory time is reduced.
/// Beyond that the model takes longer than the measurement.
pub fn fit(costs: &Costs, measured_ns: f64, content: &Content) -> Costs {
    const LEAST_NS: f64 = 0.1;
    let (instructions, left_ns) = (content.instructions.max(1.0), measured_ns - content.fixed_ns(costs));
    let most_ns = (left_ns - instructions * LEAST_NS).max(0.0) / content.brought.max(1.0);
    let memory_ns = costs.memory_ns.min(most_ns);
    let instruction_ns = ((left_ns - content.brought * memory_ns) / instructions).max(LEAST_NS);
    Costs { instruction_ns, memory_ns, ..*costs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_within_a_core_and_outliers_do_not_count() {
        let way = |transfer_ns: f64| Distance { transfer_ns, handover_ns: transfer_ns * 3.0 };
        let mut measured = vec![way(16.0); 30];
        measured.extend([way(70.0); 30]);
        measured.extend([way(7.0); 10]);
        measured.push(way(900.0));
        assert_eq!(short_and_long(&measured), Some((way(16.0), way(70.0))));
        assert_eq!(short_and_long(&[way(7.0)]), Some((way(7.0), way(7.0))));
        assert_eq!(short_and_long(&[]), None);
    }

    #[test]
    fn the_time_of_an_instruction_is_what_the_other_costs_leave() {
        let costs = Costs {
            instruction_ns: 0.0,
            memory_ns: 100.0,
            exchange_ns: 5.0,
            transfer_ns: 50.0,
            handover_ns: 80.0,
            flush_ns: 10.0,
            fence_ns: 100.0,
        };
        let content = Content { instructions: 1000.0, brought: 2.0, exchanges: 4.0, flushes: 3.0, fences: 1.0 };
        let of = |measured_ns| {
            let fitted = fit(&costs, measured_ns, &content);
            (fitted.instruction_ns, fitted.memory_ns)
        };
        assert_eq!(of(150.0 + 200.0 + 300.0), (0.3, 100.0));
        assert_eq!(of(150.0 + 120.0 + 100.0), (0.1, 60.0), "lines came together");
        assert_eq!(of(100.0), (0.1, 0.0));
    }
}
